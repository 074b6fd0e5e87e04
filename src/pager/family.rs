//! Processes that forks made of one: pages of one may be another's as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A family. Its members have the same one.
#[derive(Debug, Clone, Default)]
pub(super) struct Family {
    /// Pages that some member made its own: each took one page more.
    parted: Arc<AtomicU64>,
    /// Members whose process is not known yet.
    unmet: Arc<AtomicU32>,
}

impl Family {
    /// A member has come whose process is not known yet.
    pub(super) fn expect(&self) {
        self.unmet.fetch_add(1, Ordering::Relaxed);
    }

    /// Such a member's process is known, or is none of ours.
    pub(super) fn expect_no_more(&self) {
        self.unmet.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether all processes are known that have pages of this family.
    pub(super) fn is_complete(&self) -> bool {
        self.unmet.load(Ordering::Relaxed) == 0
    }

    /// A member has made pages its own.
    pub(super) fn part(&self, pages: usize) {
        self.parted.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// How many pages members have made their own so far.
    pub(super) fn parted(&self) -> u64 {
        self.parted.load(Ordering::Relaxed)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Family) -> bool {
        Arc::ptr_eq(&self.parted, &other.parted)
    }
}
