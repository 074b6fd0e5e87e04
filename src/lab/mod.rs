//! The laboratory: pages from real processes, and what the allocators make of them.

pub mod capture;
pub mod experiment;
pub mod histogram;
pub mod page_set;
pub mod replay;
pub mod report;
pub mod sizes;
pub mod workload;

/// The published splitmix64: spreads a counter over all 64-bit words.
pub fn mix(counter: u64) -> u64 {
    let mut x = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
