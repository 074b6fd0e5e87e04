//! What a run did: counts, and how long programs waited.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Counts while programs run.
#[derive(Debug)]
pub(super) struct Meter {
    fresh: AtomicU64,
    restored: AtomicU64,
    rescued: AtomicU64,
    stored: AtomicU64,
    moved: AtomicU64,
    waits: Mutex<Histogram<u64>>,
}

/// How long faults took, in nanoseconds: from when they were read to when the page was there.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct FaultTimes {
    /// Faults.
    pub count: u64,
    /// Half took at most this long.
    pub p50_ns: u64,
    /// 99 of 100 did.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// What was done, in pages.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct PagerCounts {
    /// Filled with zeros, at a first touch of watched memory.
    pub fresh_pages: u64,
    /// Brought back from the store.
    pub restored_pages: u64,
    /// Brought back before they were stored.
    pub rescued_pages: u64,
    /// Put into the store.
    pub stored_pages: u64,
    /// Moved aside.
    pub moved_pages: u64,
}

impl Meter {
    pub(super) fn new() -> Meter {
        let waits = Histogram::new_with_bounds(1, 1 << 36, 2).expect("2 digits up to 68 s");
        Meter {
            fresh: AtomicU64::new(0),
            restored: AtomicU64::new(0),
            rescued: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            waits: Mutex::new(waits),
        }
    }

    pub(super) fn fault(&self, waited: Duration) {
        let ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(ns);
    }

    pub(super) fn fresh(&self, pages: usize) {
        self.fresh.fetch_add(pages as u64, Ordering::Relaxed);
    }

    pub(super) fn restored(&self, restored: usize, rescued: usize) {
        self.restored.fetch_add(restored as u64, Ordering::Relaxed);
        self.rescued.fetch_add(rescued as u64, Ordering::Relaxed);
    }

    pub(super) fn stored(&self, pages: usize) {
        self.stored.fetch_add(pages as u64, Ordering::Relaxed);
    }

    pub(super) fn moved(&self, pages: usize) {
        self.moved.fetch_add(pages as u64, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> PagerCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        PagerCounts {
            fresh_pages: get(&self.fresh),
            restored_pages: get(&self.restored),
            rescued_pages: get(&self.rescued),
            stored_pages: get(&self.stored),
            moved_pages: get(&self.moved),
        }
    }

    pub(super) fn times(&self) -> FaultTimes {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        FaultTimes {
            count: waits.len(),
            p50_ns: waits.value_at_quantile(0.50),
            p99_ns: waits.value_at_quantile(0.99),
            max_ns: waits.max(),
        }
    }
}
