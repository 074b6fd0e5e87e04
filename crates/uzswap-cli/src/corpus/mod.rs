//! Pages to measure, and where they come from.
//!
//! ```text
//!  process, command, file --- capture ----.
//!  seed --------------------- workload ---+--> page_set: a file of pages, with its description
//!  all pages ---------------- sample -----'
//!  compressed lengths ------- size_list -----> pages with made-up contents of these lengths
//! ```
//!
//! A capture also finds `observed` facts and the `working_set`. `zipf` is the distribution of
//! accesses; `student` gives confidence to totals and differences.

pub mod capture;
pub mod observed;
pub mod page_set;
pub mod sample;
pub mod size_list;
pub(crate) mod student;
pub mod working_set;
pub mod workload;
pub mod zipf;
