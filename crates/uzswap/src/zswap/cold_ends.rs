//! The age of each shard's coldest page, which threads read without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// When the coldest page of each shard was put at the hot end, of one tenant; never later than it
/// was. Read without a lock, to know which shard to look into.
#[derive(Debug)]
pub(super) struct ColdEnds(Box<[AtomicU64]>);

/// The time of a list without pages.
pub(super) const EMPTY: u64 = u64::MAX;

impl ColdEnds {
    pub(super) fn new(shards: usize) -> ColdEnds {
        ColdEnds((0..shards).map(|_| AtomicU64::new(EMPTY)).collect())
    }

    /// The times of the cold ends there are, and their shards.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, usize)> {
        let times = self.0.iter().map(|time| time.load(Ordering::Relaxed));
        times.zip(0..).filter(|&(time, _)| time != EMPTY)
    }

    pub(super) fn time(&self, shard: usize) -> u64 {
        self.0[shard].load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, shard: usize, time: u64) {
        self.0[shard].store(time, Ordering::Relaxed);
    }
}
