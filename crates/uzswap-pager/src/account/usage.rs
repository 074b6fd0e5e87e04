//! Usage at the last sample.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The sums of one sample, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// If no process shared a page.
    pub(super) apart: u64,
    /// A lower bound: each shared page counts once.
    pub(super) known: u64,
    /// The usage that decides: near the goal each shared page counts once, else `apart`.
    pub(super) used: u64,
    /// Of managed programs, each shared page once.
    pub(super) resident: u64,
    /// Of unmanaged processes that share pages.
    pub(super) outside: u64,
}

/// The last sample, for readers that do not sample.
#[derive(Debug, Default)]
pub(super) struct Usage {
    apart: AtomicU64,
    known: AtomicU64,
    used: AtomicU64,
    resident: AtomicU64,
    outside: AtomicU64,
    /// Resident bytes that are not anonymous.
    others: AtomicU64,
    /// Some programs share pages.
    shares: AtomicBool,
    group_changes: AtomicU64,
    /// Bytes that one batch needs on its way out: its objects in the pool, and COW copies of shared
    /// pages.
    reserved: AtomicU64,
}

impl Usage {
    pub(super) fn note_totals(&self, totals: Totals) {
        let Totals { apart, known, used, resident, outside } = totals;
        self.apart.store(apart, Ordering::Relaxed);
        self.outside.store(outside, Ordering::Relaxed);
        self.known.store(known, Ordering::Relaxed);
        self.used.store(used, Ordering::Relaxed);
        self.resident.store(resident, Ordering::Relaxed);
    }

    pub(super) fn note_sharing(&self, shares: bool, group_changes: u64) {
        self.group_changes.store(group_changes, Ordering::Relaxed);
        self.shares.store(shares, Ordering::Relaxed);
    }

    pub(super) fn note_others(&self, bytes: u64) {
        self.others.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn reserve(&self, bytes: u64) {
        self.reserved.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn apart(&self) -> u64 {
        self.apart.load(Ordering::Relaxed)
    }

    pub(super) fn known(&self) -> u64 {
        self.known.load(Ordering::Relaxed)
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn resident(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    pub(super) fn outside(&self) -> u64 {
        self.outside.load(Ordering::Relaxed)
    }

    /// Anonymous bytes of managed programs and of those that share pages with them.
    pub(super) fn programs(&self) -> u64 {
        self.resident() + self.outside()
    }

    pub(super) fn others(&self) -> u64 {
        self.others.load(Ordering::Relaxed)
    }

    pub(super) fn shares(&self) -> bool {
        self.shares.load(Ordering::Relaxed)
    }

    pub(super) fn group_changes(&self) -> u64 {
        self.group_changes.load(Ordering::Relaxed)
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }
}
