//! Anonymous memory of processes without a helper. It counts, and cannot be evicted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::locks::{Lock, UNMANAGED_BYTES};

/// Bytes by process. Unmanaged processes that share pages with managed ones count elsewhere.
#[derive(Debug, Default)]
pub(crate) struct UnmanagedBytes {
    each: Lock<BTreeMap<u32, u64>, UNMANAGED_BYTES>,
    sum: AtomicU64,
}

impl UnmanagedBytes {
    /// The bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.sum.load(Ordering::Relaxed)
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.each.lock().keys().copied().collect()
    }

    /// Counts these processes from now on; whether they have more than those before.
    pub(crate) fn replace(&self, each: BTreeMap<u32, u64>) -> bool {
        let mut counted = self.each.lock();
        let bytes: u64 = each.values().sum();
        *counted = each;
        bytes > self.sum.swap(bytes, Ordering::Relaxed)
    }

    /// Counts the bytes of some processes no more.
    pub(crate) fn forget(&self, pids: &[u32]) {
        if self.bytes() == 0 {
            return;
        }
        let mut each = self.each.lock();
        pids.iter().for_each(|pid| _ = each.remove(pid));
        self.sum.store(each.values().sum(), Ordering::Relaxed);
    }

    /// Lowers the bytes of each process to those that it has `now`, none once it has ended.
    /// Returns the bytes that the processes freed.
    pub(crate) fn take_off_freed(&self, now: impl Fn(u32) -> Option<u64>) -> u64 {
        let mut each = self.each.lock();
        let mut freed = 0;
        for (pid, bytes) in each.iter_mut() {
            let rest = now(*pid).unwrap_or(0).min(*bytes);
            freed += *bytes - rest;
            *bytes = rest;
        }
        self.sum.store(each.values().sum(), Ordering::Relaxed);
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_process_that_has_ended_or_shrunk_are_taken_off() {
        let now = |pid| match pid {
            1 => Some(70), // has grown: the next scan counts that
            2 => Some(30),
            _ => None,
        };
        let unmanaged = UnmanagedBytes::default();
        assert!(unmanaged.replace(BTreeMap::from([(1, 60), (2, 50), (3, 40)])));
        assert_eq!(unmanaged.take_off_freed(now), 60);
        assert_eq!(*unmanaged.each.lock(), BTreeMap::from([(1, 60), (2, 30), (3, 0)]));
        assert_eq!((unmanaged.bytes(), unmanaged.take_off_freed(now)), (90, 0));
    }

    #[test]
    fn the_sum_is_that_of_the_processes() {
        let unmanaged = UnmanagedBytes::default();
        assert!(!unmanaged.replace(BTreeMap::new()));
        assert!(unmanaged.replace(BTreeMap::from([(1, 6), (2, 5)])));
        assert!(!unmanaged.replace(BTreeMap::from([(2, 5), (3, 5)])));
        assert_eq!((unmanaged.bytes(), unmanaged.pids()), (10, vec![2, 3]));
        unmanaged.forget(&[1, 2]);
        assert_eq!((unmanaged.bytes(), unmanaged.pids()), (5, vec![3]));
    }
}
