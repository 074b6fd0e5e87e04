//! The laboratory: pages from real processes, and what the allocators make of them.

pub mod capture;
pub mod page_set;
pub mod workload;
