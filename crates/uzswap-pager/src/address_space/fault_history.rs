//! The faults of a process so far: how many, by which threads, and in which order.

use std::ops::Range;
use std::time::Duration;

use super::AddressSpace;
use crate::page_table::{Entry, Place, UNKNOWN};
use crate::policy::readahead::{FreshStreams, Streams};
use crate::policy::refaults::Refaults;
use crate::sched::source_mix::{SourceMix, Sources};

/// The faults of a process.
#[derive(Debug, Default)]
pub(crate) struct FaultHistory {
    served: u64,
    refaults: Refaults,
    /// Streams of faults of evicted pages.
    evicted: Streams,
    /// Streams of faults in memory that was never touched.
    fresh: FreshStreams,
    /// Streams of first writes to protected pages.
    writes: Streams,
    /// Whether the last faults came from several threads.
    threads: SourceMix,
    /// All workers read its faults, because several threads fault in turn.
    has_all_workers: bool,
    /// The address space was removed: nothing is known of its pages.
    are_over: bool,
}

impl FaultHistory {
    /// Notes a served fault.
    pub(crate) fn note_served(&mut self) {
        self.served += 1;
    }

    /// Notes that no fault is served from now on.
    pub(crate) fn end(&mut self) {
        self.are_over = true;
    }

    pub(crate) fn are_over(&self) -> bool {
        self.are_over
    }

    pub(super) fn served(&self) -> u64 {
        self.served
    }

    /// Notes evicted pages.
    pub(super) fn note_evicted(&mut self, pages: usize) {
        self.refaults.evict(pages);
    }

    /// Notes that a thread touched a page soon after its eviction.
    pub(crate) fn note_refault(&mut self) {
        self.refaults.refault();
    }

    /// The age of pages of the process, discounted by its refaults.
    pub(crate) fn discount(&self, age: Duration) -> Duration {
        self.refaults.discount(age)
    }

    /// Pages to make writable for a write to `page`, at most `most`.
    pub(super) fn window_of_writes(&mut self, page: u64, most: usize) -> Range<u64> {
        self.writes.window(page, most, |_| true)
    }

    /// Notes how many pages left that were filled ahead of a touch: touched, and as they were.
    pub(crate) fn note_ahead(&mut self, touched: usize, untouched: usize) {
        self.fresh.see(touched, untouched);
    }

    /// Notes which thread faulted: the present sources, if other workers than now must read them.
    pub(crate) fn note_thread(&mut self, thread: u32) -> Option<Sources> {
        let sources = self.threads.see(thread);
        sources.filter(|it| (*it == Sources::Several) != self.has_all_workers)
    }

    pub(crate) fn has_all_workers(&self) -> bool {
        self.has_all_workers
    }

    /// Notes whether all workers read its faults.
    pub(crate) fn note_workers(&mut self, are_all: bool) {
        self.has_all_workers = are_all;
    }
}

impl AddressSpace {
    /// Pages to restore for a fault of the evicted `page`, at most `most`. A stream passes pages
    /// that are in the program: one that leaves evicted pages behind does not need them.
    pub(crate) fn evicted_window(&mut self, page: u64, most: usize) -> Range<u64> {
        let AddressSpace { faults, table, .. } = self;
        let is_there = |page| table.get(page).place == Place::Program;
        faults.evicted.window(page, most, |mut pages| pages.all(is_there))
    }

    /// Pages to fill for a fault of the fresh `page`, at most `most`; no command moves them.
    pub(crate) fn fresh_window(&mut self, page: u64, most: usize) -> Range<u64> {
        let AddressSpace { faults, table, .. } = self;
        let window = faults.fresh.window(page, most, |page| table.get(page) != UNKNOWN);
        self.not_commanded(page, window)
    }

    /// Pages of zeros are there: the one that a thread has asked for, and others ahead of that.
    pub(crate) fn filled_fresh(&mut self, asked: u64, filled: Range<u64>) {
        self.faults.fresh.filled(asked, &filled);
        for page in filled {
            self.returned(page, 0);
            if page != asked {
                self.table.set(page, Entry { ahead: true, returned: true, ..UNKNOWN });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_table::HEAT_MAX;

    #[test]
    fn a_process_has_streams_of_each_kind_of_fault() {
        let mut space = AddressSpace::of_nothing();
        assert_eq!([5, 6].map(|page| space.evicted_window(page, 16)), [5..6, 6..8]);
        assert_eq!([5, 6].map(|page| space.faults.window_of_writes(page, 16)), [5..6, 6..8]);
        // The fault passes an evicted page.
        space.table.set(8, Entry { place: Place::Stored(1), ..UNKNOWN });
        assert_eq!(space.evicted_window(9, 16), 9..10);
        (0..3).for_each(|_| space.faults.note_served());
        assert_eq!(space.faults.served(), 3);
    }

    #[test]
    fn the_age_of_refaulting_pages_is_discounted() {
        let (mut faults, age) = (FaultHistory::default(), Duration::from_millis(3200));
        assert_eq!(faults.discount(age), age);
        faults.note_evicted(1000);
        (0..1000).for_each(|_| faults.note_refault());
        assert_eq!(faults.discount(age), age / 32);
    }

    #[test]
    fn all_workers_read_the_faults_of_several_threads() {
        let mut faults = FaultHistory::default();
        let in_turn = |faults: &mut FaultHistory, threads: u32| {
            (0..32).filter_map(|at| faults.note_thread(at % threads)).last()
        };
        assert_eq!(in_turn(&mut faults, 1), None, "one worker reads them");
        assert!(!faults.has_all_workers());
        assert_eq!(in_turn(&mut faults, 2), Some(Sources::Several));
        faults.note_workers(true);
        assert!(faults.has_all_workers());
        assert_eq!(in_turn(&mut faults, 2), None);
        assert_eq!(in_turn(&mut faults, 1), Some(Sources::One));
    }

    #[test]
    fn fresh_pages_are_filled_ahead_of_a_stream() {
        let mut space = AddressSpace::of_nothing();
        let fill = |space: &mut AddressSpace, page| {
            let window = space.fresh_window(page, 64);
            space.filled_fresh(page, window.clone());
            window
        };
        assert_eq!([fill(&mut space, 100), fill(&mut space, 101)], [100..101, 101..103]);
        let entry = |page| {
            let Entry { returned, ahead, .. } = space.table.get(page);
            (returned, ahead)
        };
        let expected = [(true, false), (true, false), (true, true), (false, false)];
        assert_eq!([100, 101, 102, 103].map(entry), expected);
        // The page after them was restored from the store.
        space.table.set(103, Entry { returned: true, heat: HEAT_MAX, ..UNKNOWN });
        assert_eq!(fill(&mut space, 104), 104..108);
        // All that was filled ahead left untouched.
        (0..4).for_each(|_| space.faults.note_ahead(0, 64));
        assert_eq!(fill(&mut space, 108), 108..109);
    }
}
