//! Recompression: when the pool switches to the denser of two compressors.
//!
//! The faster compressor leaves larger objects, and the pool counts against the limit. Once
//! programs fault all the time for lack of memory, the denser one pays. New pages are then stored
//! densely, and the evictor recompresses some stored pages in each round.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::page_table::key;
use uzswap::zswap::Zswap;

/// The pool has one part in so many of the limit before pages are made dense. With two of three
/// instead, programs in half of their memory took as long, those in 30 % passed their limit more.
const DENSE_ABOVE: u64 = 2;

/// The fast compressor would have made a pool of one part in so many of the limit: pages are not
/// made dense any more. The size of the dense pool decides nothing: it falls below this part where
/// pages get three times as dense. Then the compressor would change for ever.
const FAST_BELOW: u64 = 4;

/// Slots that a round checks, whole units: some ms of work at most.
const SLOTS_A_ROUND: u32 = 64;

/// No slot has this number.
const NONE: u32 = u32::MAX;

/// Whether pages are made dense, and how far those are that were not. The evictor changes it.
#[derive(Debug)]
pub(crate) struct Density {
    is_dense: AtomicBool,
    /// Bytes of the pool for each page when pages began to be made dense.
    fast_page_bytes: AtomicU64,
    /// The next slot whose page may have to be compressed once more; [`NONE`] once there is none.
    next: AtomicU32,
}

impl Density {
    /// Pages are not made dense yet.
    pub(crate) fn new() -> Density {
        Density {
            is_dense: AtomicBool::new(false),
            fast_page_bytes: AtomicU64::new(0),
            next: AtomicU32::new(NONE),
        }
    }

    pub(crate) fn is_dense(&self) -> bool {
        self.is_dense.load(Ordering::Relaxed)
    }

    /// Sees whether pages are to be dense from now on, where the pool has so many bytes of the
    /// limit for so many pages.
    pub(crate) fn decide(&self, pool_bytes: u64, pages: usize, limit_bytes: u64) {
        let pages = pages as u64;
        let was_dense = self.is_dense();
        let is_dense = match was_dense {
            false => pool_bytes > limit_bytes / DENSE_ABOVE,
            true => {
                let fast_page_bytes = self.fast_page_bytes.load(Ordering::Relaxed);
                fast_page_bytes.saturating_mul(pages) > limit_bytes / FAST_BELOW
            }
        };
        if is_dense != was_dense {
            self.fast_page_bytes.store(pool_bytes / pages.max(1), Ordering::Relaxed);
            self.is_dense.store(is_dense, Ordering::Relaxed);
            self.next.store(if is_dense { 0 } else { NONE }, Ordering::Relaxed);
        }
    }

    /// Slots of `count` to recompress in this round, if there are any: each slot once.
    pub(crate) fn next_slots(&self, count: u32) -> Option<Range<u32>> {
        let start = self.next.load(Ordering::Relaxed);
        if start == NONE {
            return None;
        }
        let end = count.min(start + SLOTS_A_ROUND);
        self.next.store(if end < count { end } else { NONE }, Ordering::Relaxed);
        Some(start..end)
    }

    /// Recompresses the pages of the next few of `count` slots, if any slot is left. After the last
    /// one it compacts the pool.
    pub(crate) fn recompress_some(&self, zswap: &Zswap, count: u32) {
        let Some(slots) = self.next_slots(count) else { return };
        for slot in slots.step_by(zswap.options().unit_pages) {
            // A load reports a corrupt page.
            let _ = zswap.recompress_unit(key(slot));
        }
        if self.is_done() {
            // Their old objects were of sizes that nothing is stored in any more: the holes stay.
            zswap.compact();
        }
    }

    /// Whether all slots were returned.
    pub(crate) fn is_done(&self) -> bool {
        self.next.load(Ordering::Relaxed) == NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap::page::{PAGE_SIZE, Page};
    use uzswap::zswap::ZswapOptions;

    /// Finalizer of SplitMix64.
    fn mix(word: u64) -> u64 {
        let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    #[test]
    fn pages_are_dense_from_half_of_the_limit_until_a_fast_pool_would_have_a_quarter() {
        let density = Density::new();
        let decide = |(pool, pages)| {
            density.decide(pool, pages, 100);
            density.is_dense()
        };
        // A fast page takes 2 bytes, a dense one none.
        let cases = [
            (50, 25),
            (51, 25),
            (40, 20),
            (1, 13),
            (0, 12),
            (40, 20),
            (51, 51),
            (26, 26),
            (26, 25),
        ];
        let is_dense = [false, true, true, true, false, false, true, true, false];
        assert_eq!(cases.map(decide), is_dense);
    }

    #[test]
    fn pages_that_are_in_the_store_are_made_dense_and_the_pool_smaller() {
        const SLOTS: u32 = 1000;
        let dense = Some("zstd:1".parse().unwrap());
        let options = ZswapOptions::default().dense(dense);
        let zswap = Zswap::new(options).unwrap();
        // Words that zstd finds shorter codes for, and lz4 does not.
        let page_of = |slot: u32| -> Page {
            std::array::from_fn(|at| b'a' + (mix(u64::from(slot) << 12 | at as u64) % 8) as u8)
        };
        for slot in 0..SLOTS {
            zswap.store(key(slot), &page_of(slot)).unwrap();
        }
        let pool_bytes = zswap.budget().pool_bytes();
        let density = Density::new();
        density.recompress_some(&zswap, SLOTS);
        assert_eq!(zswap.counters().recompressed_pages, 0, "nobody has asked for it");
        density.decide(pool_bytes, SLOTS as usize, pool_bytes);
        let mut rounds = 0;
        while !density.is_done() {
            density.recompress_some(&zswap, SLOTS);
            rounds += 1;
            let most = u64::from((rounds * SLOTS_A_ROUND).min(SLOTS));
            assert_eq!(zswap.counters().recompressed_pages, most, "round {rounds}");
        }
        assert_eq!(rounds, SLOTS.div_ceil(SLOTS_A_ROUND));
        assert!(zswap.budget().pool_bytes() < pool_bytes * 2 / 3, "{pool_bytes} bytes before");
        assert!(zswap.zpool().class_stats().iter().all(|class| class.freeable_pages == 0));
        zswap.audit().unwrap();
        let mut page = [0; PAGE_SIZE];
        for slot in 0..SLOTS {
            assert!(zswap.load(key(slot), &mut page).unwrap() && page == page_of(slot));
        }
    }

    #[test]
    fn each_slot_comes_once_for_each_time_in_which_pages_are_dense() {
        let density = Density::new();
        assert_eq!(density.next_slots(1000), None);
        for _ in 0..2 {
            density.decide(60, 60, 100);
            let mut slots = Vec::new();
            // There are more of them with time, never fewer.
            for count in [100, 130, 130] {
                assert!(!density.is_done());
                slots.extend(density.next_slots(count).unwrap());
                density.decide(60, 60, 100);
            }
            assert_eq!(slots, (0..130).collect::<Vec<u32>>());
            assert!(density.is_done());
            assert_eq!(density.next_slots(1000), None);
            // Half of the way, and it is not dense any more.
            density.decide(10, 10, 100);
            density.decide(60, 60, 100);
            assert_eq!(density.next_slots(1000), Some(0..SLOTS_A_ROUND));
            density.decide(10, 10, 100);
            assert_eq!(density.next_slots(1000), None);
        }
    }
}
