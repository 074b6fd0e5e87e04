//! Threads to wake: their pages were filled while locks were held.

use std::ops::Range;
use std::sync::Arc;

use crate::address_space::AddressSpace;
use uzswap_sys::userfaultfd::Userfaultfd;

/// Addresses at which threads wait, in the order in which the threads wake up.
#[derive(Debug, Default)]
pub(super) struct WakeUps(Vec<(Arc<Userfaultfd>, Range<u64>)>);

impl WakeUps {
    /// Wakes the threads that wait at these addresses, once nothing is locked.
    pub(super) fn add(&mut self, space: &AddressSpace, addresses: Range<u64>) {
        self.0.push((Arc::clone(&space.uffd), addresses));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether a thread of another address space than this one is among them.
    pub(super) fn has_other_than(&self, own: Option<&Arc<Userfaultfd>>) -> bool {
        !self.0.iter().all(|(uffd, _)| own.is_some_and(|own| Arc::ptr_eq(own, uffd)))
    }

    /// Joins ranges of one address space that follow one another, with the gaps. A thread that
    /// waits in a gap faults again.
    pub(super) fn join(&mut self) {
        join_ranges(&mut self.0);
    }

    /// Wakes them. The caller holds no lock.
    pub(super) fn wake(&mut self) {
        for (uffd, range) in self.0.drain(..) {
            let _ = uffd.wake(range); // refused where nobody is left
        }
    }
}

fn join_ranges<T>(ranges: &mut Vec<(Arc<T>, Range<u64>)>) {
    ranges.dedup_by(|(next, more), (space, range)| {
        let is_same = Arc::ptr_eq(next, space);
        if is_same {
            *range = range.start.min(more.start)..range.end.max(more.end);
        }
        is_same
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_one_space_in_a_row_are_one() {
        let [a, b] = [Arc::new('a'), Arc::new('b')];
        let mut ranges: Vec<(Arc<char>, Range<u64>)> =
            [(&a, 5..6), (&a, 1..2), (&b, 7..9), (&b, 7..8), (&a, 3..4)]
                .map(|(space, range)| (Arc::clone(space), range))
                .into();
        join_ranges(&mut ranges);
        let joined: Vec<(char, Range<u64>)> =
            ranges.into_iter().map(|(space, range)| (*space, range)).collect();
        assert_eq!(joined, [('a', 1..6), ('b', 7..9), ('a', 3..4)]);
    }
}
