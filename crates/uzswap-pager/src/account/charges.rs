//! Pages that the fault server gave to programs since the last sample.

use std::sync::atomic::{AtomicU64, Ordering};

use uzswap::page::PAGE_SIZE;

/// Bytes given to programs since the last sample, less the bytes that the pool freed for them.
#[derive(Debug, Default)]
pub(super) struct Charges {
    charged: AtomicU64,
    /// Bytes of the pool for each stored page.
    page_bytes: AtomicU64,
}

impl Charges {
    /// Adds pages, of which so many were in the store. Returns all bytes charged so far.
    pub(super) fn add(&self, pages: usize, stored: usize) -> u64 {
        let freed = stored as u64 * self.page_bytes.load(Ordering::Relaxed);
        let bytes = (pages * PAGE_SIZE) as u64 - freed;
        self.charged.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// All bytes charged so far. A usage that is loaded later has all that was taken off before.
    pub(super) fn bytes(&self) -> u64 {
        self.charged.load(Ordering::Acquire)
    }

    /// Takes off charges that a sample has counted. Pages that a fault brought during the sample
    /// may count twice until the next one.
    pub(super) fn take_off(&self, counted: u64) {
        self.charged.fetch_sub(counted, Ordering::Release);
    }

    /// Notes the bytes of the pool for each of so many stored pages.
    pub(super) fn note_pool(&self, pool_bytes: u64, pages: u64) {
        let bytes = (pool_bytes / pages.max(1)).min(PAGE_SIZE as u64);
        self.page_bytes.store(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_SIZE as u64;

    #[test]
    fn a_stored_page_costs_what_the_pool_does_not_free() {
        let charges = Charges::default();
        assert_eq!(charges.add(2, 2), 2 * PAGE, "nothing is known of the pool");
        charges.note_pool(10 * 1000, 10);
        assert_eq!(charges.add(3, 2), 5 * PAGE - 2000);
        charges.note_pool(100 * PAGE, 1);
        assert_eq!(charges.add(1, 1), 5 * PAGE - 2000, "no page frees more than it takes");
        charges.note_pool(7, 0);
        charges.add(1, 0);
        charges.take_off(charges.bytes());
        assert_eq!(charges.bytes(), 0);
    }

    #[test]
    fn charges_during_a_sample_stay() {
        let charges = Charges::default();
        charges.add(4, 0);
        let counted = charges.bytes();
        charges.add(1, 0);
        charges.take_off(counted);
        assert_eq!(charges.bytes(), PAGE);
    }
}
