//! Measures how parts of a store do with pages.
//!
//! ```text
//!  turns        variants take turns in rounds; each turn is a measured step
//!    |-- experiment   combinations of parts, each replay in a child of its own
//!    |     '-- replay     a page set, a list of sizes or a trace through a store
//!    '-- study        index, mapping, same-filled pages, a machine that swaps
//!  live         rounds of a real command under a limit, by this program or by the kernel
//!  histogram, stats, interval     latencies, and differences with their confidence
//! ```
//!
//! `child` is a run in a process of its own, `limited_pool` the settings of a store with a limit.
//! `compressed_lengths` is a fact about the pages, `recompression` a rule over times and bytes.
//! `levels` draws values over time as a line of characters.

mod child;
pub mod compressed_lengths;
pub mod experiment;
pub mod histogram;
pub mod interval;
pub(crate) mod levels;
pub mod limited_pool;
pub mod live;
pub mod recompression;
pub mod replay;
pub mod stats;
pub mod study;
pub mod turns;
