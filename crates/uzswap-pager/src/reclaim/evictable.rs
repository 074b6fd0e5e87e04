//! How much of what programs have resident can be evicted.
//!
//! It is counted, not concluded from reasons why pages stay: pages of registered memory that are
//! present, without those that no command moves (locked ones, futex words). All else stays, for
//! whatever reason: written pages of private file mappings, memory that the kernel does not
//! register.

use std::time::{Duration, Instant};

use crate::range_set::count;
use crate::{SpaceHandle, lock};

/// A count is taken to hold for so long, and for so many times the time that it took.
const HOLDS_FOR: Duration = Duration::from_millis(100);
const HOLDS_TIMES: u32 = 50;

/// Helpers try some 100 MiB of pages again in so long.
const TRIED_FOR: Duration = Duration::from_millis(400);

/// The last count.
#[derive(Debug)]
pub(crate) struct Evictable {
    bytes: u64,
    until: Instant,
}

impl Evictable {
    /// Nothing was counted yet.
    pub(crate) fn new(now: Instant) -> Evictable {
        Evictable { bytes: 0, until: now }
    }

    /// Pages that were found to stay are tried again: until they were, the last count holds.
    pub(crate) fn holds_while_tried(&mut self, now: Instant) {
        self.until = now + TRIED_FOR;
    }

    /// The bytes that could be evicted when they were counted last, which is done now if that is a
    /// while ago. Pages that several processes share count for each of them.
    pub(crate) fn bytes(&mut self, now: Instant, spaces: &[SpaceHandle]) -> u64 {
        if now >= self.until {
            let start = Instant::now();
            // A process whose files cannot be read has ended.
            self.bytes = spaces.iter().filter_map(of_space).sum();
            self.until = now + HOLDS_FOR.max(start.elapsed() * HOLDS_TIMES);
        }
        self.bytes
    }
}

/// Of one space; the pages are counted while nothing is locked.
fn of_space(space: &SpaceHandle) -> Option<u64> {
    let (ranges, files) = {
        let space = lock(space);
        (space.evictable_ranges(), space.process.files().cloned()?)
    };
    let mut bytes = 0;
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let (runs, walked_to) = files.resident(at..range.end).ok()?;
            bytes += runs.iter().map(|run| count(run) as u64).sum::<u64>();
            at = walked_to;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::address_space::AddressSpace;
    use crate::address_space::handle::SharedAddressSpace;
    use uzswap::page::PAGE_SIZE;

    const PAGE: u64 = PAGE_SIZE as u64;

    #[test]
    fn pages_that_are_registered_and_may_move_count() {
        let pages = vec![[1_u8; PAGE_SIZE]; 66];
        let start = (pages.as_ptr().addr() as u64).next_multiple_of(PAGE);
        let mut space = AddressSpace::of_nothing();
        space.process.read(std::process::id());
        let files = space.process.files().cloned().unwrap();
        if files.resident(start..start + PAGE).is_err() {
            return; // before Linux 6.7
        }
        space.registration.insert(start..start + 64 * PAGE);
        space.unevictable.add(start + 10 * PAGE..start + 20 * PAGE);
        let spaces = [SharedAddressSpace::alone(space)];
        let (now, mut evictable) = (Instant::now(), Evictable::new(Instant::now()));
        let later = now + Duration::from_secs(1);
        assert_eq!(evictable.bytes(later, &spaces), 54 * PAGE);
        lock(&spaces[0]).unevictable.add(start..start + 10 * PAGE);
        assert_eq!(evictable.bytes(later, &spaces), 54 * PAGE, "the last count holds for a while");
        assert_eq!(evictable.bytes(later + Duration::from_secs(60), &spaces), 44 * PAGE);
        drop(pages);
    }
}
