//! Pages to measure, and where they come from.
//!
//! ```text
//!  process --- capture ----.   (observed, working_set: what a capture saw beside the pages)
//!  seed ------ workload ---+--> page_set: a file of pages, with its description
//!  all pages - sample -----'
//!  lengths --- size_list ------> a list of compressed lengths, without contents
//! ```
//!
//! `zipf` and `student` are the distributions of accesses and of sampled totals.

pub mod capture;
pub mod observed;
pub mod page_set;
pub mod sample;
pub mod size_list;
pub(crate) mod student;
pub mod working_set;
pub mod workload;
pub mod zipf;
