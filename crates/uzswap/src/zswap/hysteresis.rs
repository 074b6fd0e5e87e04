//! The limit of the pool: the hysteresis of `max_pool_percent` and `accept_threshold_percent`, and
//! the signal that wakes the shrinker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::named_enum::named;

/// Action of a store that finds the pool at its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WhenFull {
    /// The store writes back the coldest pages itself until there is headroom. Without a backing
    /// the page is refused.
    #[default]
    Reclaim,
    /// The page is refused at once, and so are all others until the pool is below the accept
    /// threshold, as in the kernel. With a backing, what is refused goes there.
    Bypass,
}

named!(WhenFull, "behaviour of a full pool", Reclaim => "reclaim", Bypass => "bypass");

/// The marks of a pool, in bytes of host pages.
#[derive(Debug)]
pub(super) struct Hysteresis {
    pub(super) max_bytes: u64,
    /// Below this a pool that was full takes pages again; the shrinker works down to it.
    pub(super) accept_bytes: u64,
    reached_full: AtomicBool,
    /// Bytes of the pool that were in no object after it was last compacted.
    unused_bytes: AtomicU64,
    bell: Bell,
}

/// A pool is compacted when one in so many of its bytes became unused since the last time: every
/// pool has some unused bytes that compaction cannot free.
const COMPACT_PART: u64 = 32;

impl Hysteresis {
    /// A limit, and the percentage of it that is the accept threshold.
    pub(super) fn new(max_bytes: u64, accept_percent: u8) -> Hysteresis {
        let accept_bytes = u128::from(max_bytes) * u128::from(accept_percent) / 100;
        Hysteresis {
            max_bytes,
            accept_bytes: accept_bytes as u64, // <= max_bytes
            reached_full: AtomicBool::new(false),
            unused_bytes: AtomicU64::new(0),
            bell: Bell::default(),
        }
    }

    /// Decides whether a pool that is as large as this takes pages, and notes that it was full, or
    /// is no more: the rule of kernels from 6.10 on.
    pub(super) fn admit(&self, pool_bytes: u64) -> bool {
        if pool_bytes >= self.max_bytes {
            self.note_full();
            return false;
        }
        if !self.reached_full.load(Ordering::Relaxed) {
            return true;
        }
        let accepts = pool_bytes <= self.accept_bytes;
        if accepts {
            self.reached_full.store(false, Ordering::Relaxed);
        }
        accepts
    }

    /// Notes that a store found no room, and wakes the shrinker.
    pub(super) fn note_full(&self) {
        self.reached_full.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    /// Whether so much more of a pool is in no object than after it was last compacted that it is
    /// worth doing again.
    pub(super) fn is_worth_compacting(&self, pool_bytes: u64, unused: u64) -> bool {
        unused > self.unused_bytes.load(Ordering::Relaxed) + pool_bytes / COMPACT_PART
    }

    /// Notes what is in no object after a compaction.
    pub(super) fn note_compacted(&self, unused: u64) {
        self.unused_bytes.store(unused, Ordering::Relaxed);
    }

    /// Wakes the shrinker where the pool is more than half way from the accept threshold to the
    /// limit.
    #[inline]
    pub(super) fn note_growth(&self, pool_bytes: u64) {
        if pool_bytes > self.accept_bytes + (self.max_bytes - self.accept_bytes) / 2 {
            self.bell.ring();
        }
    }

    /// Whether the pool is above the accept threshold: the shrinker has work.
    pub(super) fn is_crowded(&self, pool_bytes: u64) -> bool {
        pool_bytes > self.accept_bytes
    }

    /// Waits until the shrinker is needed, or for `timeout`.
    pub(super) fn wait(&self, timeout: Duration) {
        self.bell.wait(timeout);
    }

    /// Ends a wait whatever the pool's size.
    pub(super) fn wake(&self) {
        self.bell.ring();
    }
}

/// Rung by many, heard by one. Ringing what has been rung already costs one load.
#[derive(Debug, Default)]
struct Bell {
    rung: AtomicBool,
    lock: Mutex<()>,
    heard: Condvar,
}

impl Bell {
    #[inline]
    fn ring(&self) {
        if !self.rung.load(Ordering::Relaxed) {
            self.ring_now();
        }
    }

    #[cold]
    fn ring_now(&self) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.rung.store(true, Ordering::Relaxed);
        drop(guard);
        self.heard.notify_one();
    }

    fn wait(&self, timeout: Duration) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting =
            self.heard.wait_timeout_while(guard, timeout, |()| !self.rung.load(Ordering::Relaxed));
        drop(waiting.unwrap_or_else(PoisonError::into_inner));
        self.rung.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pool_accepts_again_below_the_threshold() {
        let hysteresis = Hysteresis::new(100, 90);
        for (pool_bytes, accepts) in
            [(0, true), (99, true), (100, false), (99, false), (91, false), (90, true), (99, true)]
        {
            assert_eq!(hysteresis.admit(pool_bytes), accepts, "{pool_bytes}");
        }
        hysteresis.note_full();
        assert!(!hysteresis.admit(91) && hysteresis.admit(90));
    }

    #[test]
    fn thresholds_are_of_any_limit() {
        for max_bytes in [0, 1, 99, 1 << 40, u64::MAX] {
            for percent in [0, 1, 90, 100] {
                let hysteresis = Hysteresis::new(max_bytes, percent);
                assert!(hysteresis.accept_bytes <= max_bytes);
                hysteresis.note_growth(max_bytes);
            }
        }
        assert!(!Hysteresis::new(u64::MAX, 100).is_crowded(u64::MAX));
    }

    #[test]
    fn the_shrinker_is_called_half_way_from_the_threshold_and_by_a_store_without_room() {
        let is_called = |note: &dyn Fn(&Hysteresis)| {
            let hysteresis = Hysteresis::new(100, 90);
            note(&hysteresis);
            hysteresis.bell.rung.load(Ordering::Relaxed)
        };
        for (pool_bytes, called) in [(0, false), (90, false), (95, false), (96, true), (100, true)]
        {
            assert_eq!(
                is_called(&|hysteresis| hysteresis.note_growth(pool_bytes)),
                called,
                "{pool_bytes}"
            );
        }
        assert!(is_called(&|hysteresis| hysteresis.note_full()));
        assert!(is_called(&|hysteresis| _ = hysteresis.admit(100)));
        assert!(!is_called(&|hysteresis| _ = hysteresis.admit(99)));
    }

    #[test]
    fn a_pool_is_compacted_again_once_a_part_of_it_came_to_be_unused() {
        let hysteresis = Hysteresis::new(100_000, 90);
        let is_worth = |unused| hysteresis.is_worth_compacting(32_000, unused);
        assert_eq!([1000, 1001].map(is_worth), [false, true]);
        hysteresis.note_compacted(500);
        assert_eq!([1500, 1501].map(is_worth), [false, true]);
    }

    #[test]
    fn a_bell_that_was_rung_before_the_wait_is_heard_once() {
        let bell = Bell::default();
        bell.ring();
        bell.ring();
        bell.wait(Duration::from_secs(60));
        bell.wait(Duration::from_millis(1));
    }
}
