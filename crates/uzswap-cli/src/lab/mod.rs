//! The laboratory: captures pages of real processes, and measures how the allocators store them.

pub mod advise;
pub mod capture;
mod child;
pub mod choice;
pub mod compressed_lengths;
pub mod experiment;
pub mod histogram;
pub mod html;
pub(crate) mod levels;
pub mod limited_pool;
pub mod live;
pub mod observed;
pub mod page_set;
pub mod recompression;
pub mod replay;
pub mod report;
pub mod sample;
pub mod size_list;
mod student;
pub mod study;
pub mod turns;
pub mod working_set;
pub mod workload;
pub mod zipf;

pub use uzswap::random::{SplitMix64, mix};
