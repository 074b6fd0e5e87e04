//! Processes that forks made of one: pages of one may be another's as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A family. Its members have the same one.
#[derive(Debug, Clone, Default)]
pub(super) struct Family {
    /// Pages that some member made its own: each took one page more.
    parted: Arc<AtomicU64>,
}

impl Family {
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
