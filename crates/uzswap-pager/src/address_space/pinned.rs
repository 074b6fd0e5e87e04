//! Pages that the kernel holds for I/O, and refuses to move meanwhile (EBUSY).
//!
//! process_vm_readv(2) holds pages for microseconds, a registered buffer of io_uring for as long as
//! the program runs. Which it is shows only in the next try. So the supervisor tries these pages
//! again soon, and ever later where most of them are held still.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::PAGE;
use crate::range_set::RangeSet;

/// The pause before a try. It doubles up to the longer one while most pages are held still: a tenth
/// of the time after which a program is ended, because no page can be evicted.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(320);

/// Pages that were refused since the last try.
#[derive(Debug)]
pub(super) struct Pinned {
    pages: RangeSet,
    since: Instant,
    pause: Duration,
    /// Pages of the last try, and how many were refused again.
    tried: RangeSet,
    again: u64,
}

impl Pinned {
    pub(super) fn new(now: Instant) -> Pinned {
        let (pages, tried) = (RangeSet::default(), RangeSet::default());
        Pinned { pages, since: now, pause: PAUSE_MIN, tried, again: 0 }
    }

    /// The kernel refused a page.
    pub(super) fn add(&mut self, page: Range<u64>, now: Instant) {
        if self.pages == RangeSet::default() {
            self.since = now;
        }
        self.again += u64::from(self.tried.contains(page.start));
        self.pages.insert(page);
    }

    /// Takes the pages that the evictor must try again by now.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<RangeSet> {
        if self.pages == RangeSet::default() || now.duration_since(self.since) < self.pause {
            return None;
        }
        let tried: u64 = self.tried.iter().map(|part| (part.end - part.start) / PAGE).sum();
        self.pause = match self.again * 2 > tried {
            true => (self.pause * 2).min(PAUSE_MAX),
            false => PAUSE_MIN,
        };
        self.again = 0;
        self.tried = std::mem::take(&mut self.pages);
        Some(self.tried.clone())
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.bytes() + self.tried.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: Range<u64> = 8 * PAGE..16 * PAGE;

    fn add(pinned: &mut Pinned, pages: Range<u64>, now: Instant) {
        let pages = pages.step_by(PAGE as usize);
        pages.for_each(|page| pinned.add(page..page + PAGE, now));
    }

    #[test]
    fn pages_that_are_held_still_are_tried_ever_later() {
        let mut now = Instant::now();
        let mut pinned = Pinned::new(now);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            add(&mut pinned, HELD, now);
            let pause =
                (0..1000).find(|ms| pinned.take_due(now + Duration::from_millis(*ms)).is_some());
            pauses.push(pause.unwrap());
            now += Duration::from_millis(pause.unwrap());
        }
        assert_eq!(pauses, [10, 10, 20, 40, 80, 160, 320, 320]);
    }

    #[test]
    fn pages_that_are_held_for_a_moment_are_tried_soon() {
        let mut now = Instant::now();
        let mut pinned = Pinned::new(now);
        for round in 0..20 {
            let at = round % 3 * 4 * PAGE; // half of them are those of the round before
            add(&mut pinned, at..at + 8 * PAGE, now);
            assert_eq!(pinned.take_due(now + Duration::from_millis(9)), None);
            now += Duration::from_millis(10);
            assert!(pinned.take_due(now).is_some(), "round {round}");
            assert_eq!(pinned.take_due(now + Duration::from_secs(1)), None, "nothing is held");
        }
    }
}
