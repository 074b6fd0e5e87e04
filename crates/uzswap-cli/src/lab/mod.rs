//! The laboratory: captures pages of real processes, and measures how the allocators store them.

pub mod capture;
mod child;
pub mod experiment;
pub mod histogram;
pub mod limits;
pub mod live;
pub mod page_set;
pub mod replay;
pub mod report;
pub mod sizes;
pub mod study;
pub mod torture;
pub mod workload;
pub mod zipf;

pub use uzswap::random::{SplitMix64, mix};
