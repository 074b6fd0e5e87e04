//! Markers: the page table tells evicted pages from fresh ones.
//!
//! The helper write-protects the empty entry of each page that it has moved out. The supervisor
//! does that later if the kernel refused it. The kernel keeps this marker when memory moves or
//! forks, and drops it with the memory (`munmap`, `MADV_DONTNEED`) or when the page returns.
//!
//! - M1: the entry of an evicted page has a marker, or waits for it in `to_mark`.
//! - M2: an entry with a marker is that of an evicted page, unless markers are `loose`.
//!
//! Both hold while no event is pending.

use std::io;
use std::ops::Range;

use super::{AddressSpace, PAGE};
use crate::page_table::{Place, UNKNOWN};
use crate::range_set::RangeSet;

/// The state of markers.
#[derive(Debug, Default)]
pub(super) struct Markers {
    /// Ranges with evicted pages whose markers the kernel refused while mappings changed.
    to_mark: RangeSet,
    /// Fresh entries may have markers: the kernel protected ranges of a child before its process
    /// was known, or a stopped helper goes on late.
    loose: bool,
    #[cfg(debug_assertions)]
    pub(super) audits: AuditsAtTimes,
    /// Ranges that were marked, for tests without a kernel.
    #[cfg(test)]
    pub(super) marked: RangeSet,
}

/// Which memory is audited when. All 8192 ranges of a program took 10 ms, in which it grew by
/// 8 MiB: an audit takes some of them, the next one goes on there.
#[cfg(debug_assertions)]
#[derive(Debug, Default)]
pub(super) struct AuditsAtTimes {
    calls: u32,
    /// The address at which the next audit begins.
    next: u64,
}

#[cfg(debug_assertions)]
impl AuditsAtTimes {
    const CALLS: u32 = 16;
    const RANGES: usize = 16;
    const BYTES: u64 = 4 << 20; // of one range

    /// Registered ranges to audit now: in most calls, none.
    pub(super) fn next_ranges(&mut self, registered: &RangeSet) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        self.calls = self.calls.wrapping_add(1);
        if !self.calls.is_multiple_of(Self::CALLS) {
            return ranges;
        }
        let from = std::mem::take(&mut self.next);
        for range in registered.iter().filter(|range| range.end > from) {
            let start = range.start.max(from);
            let end = range.end.min(start + Self::BYTES);
            ranges.push(start..end);
            if end < range.end || ranges.len() == Self::RANGES {
                self.next = end;
                break;
            }
        }
        ranges
    }
}

impl Markers {
    pub(super) fn bytes(&self) -> usize {
        self.to_mark.bytes()
    }

    /// Notes that fresh entries may have markers from now on.
    pub(super) fn expect_stray(&mut self) {
        self.loose = true;
    }

    /// Replaces the addresses of pages without markers.
    pub(super) fn move_late(&mut self, before: &RangeSet, now: &RangeSet) {
        before.iter().for_each(|range| self.to_mark.remove(range));
        self.to_mark.insert_all(now);
    }
}

impl AddressSpace {
    /// Marks entries whose pages were moved out.
    pub(super) fn mark(&mut self, range: Range<u64>) {
        #[cfg(test)]
        self.markers.marked.insert(range.clone());
        if self.layout.has_changed(&range) {
            return self.mark_later(range); // the kernel has other memory there
        }
        // Other errors: the memory is gone.
        if self.uffd.write_protect(range.clone()).is_err_and(|error| is_busy(&error)) {
            self.mark_later(range);
        }
    }

    /// Notes evicted pages whose markers the kernel refused.
    pub(super) fn mark_later(&mut self, range: Range<u64>) {
        self.markers.to_mark.insert(range);
    }

    /// Marks evicted pages whose markers the kernel refused.
    pub(super) fn mark_late(&mut self) {
        for part in std::mem::take(&mut self.markers.to_mark).iter() {
            let evicted = runs_of(self.evicted_in(&part));
            evicted.iter().for_each(|run| self.mark(run));
        }
    }

    /// Ranges in which the kernel refused markers.
    pub(super) fn late_markers(&self) -> &RangeSet {
        &self.markers.to_mark
    }

    /// Whether the page of an address was evicted, and the kernel refused its marker.
    pub(super) fn awaits_marker(&self, address: u64) -> bool {
        self.markers.to_mark.contains(address)
    }

    pub(super) fn has_late_markers(&self) -> bool {
        self.markers.to_mark != RangeSet::new()
    }

    /// A child has the markers of its parent, and lacks those that its parent lacks.
    pub(super) fn inherit_markers(&mut self, parent: &AddressSpace) {
        self.markers.to_mark = parent.markers.to_mark.clone();
        self.markers.loose = parent.markers.loose;
        self.layout.inherit(&parent.layout);
    }

    /// Write-protects the pages of a range. Without the files of the process, empty entries get
    /// markers, too.
    pub(super) fn protect_pages(&mut self, range: Range<u64>) -> io::Result<()> {
        let Some(Ok(populated)) = self.process.files().map(|it| it.populated_in(range.clone()))
        else {
            self.markers.loose = true;
            return self.uffd.write_protect(range);
        };
        populated.iter().try_for_each(|run| self.uffd.write_protect(run))
    }

    /// Ends the write protection of a range of pages in the program. The helper may have moved and
    /// marked some of them by now.
    pub(super) fn unprotect(&mut self, range: Range<u64>, wake: bool) -> io::Result<()> {
        self.commands.expect_unmarked(&range);
        self.uffd.write_unprotect(range, wake)
    }

    /// Ends the write protection of all pages, and leaves the markers of evicted ones. Pages stay
    /// protected while mappings change: the table does not tell then where evicted pages are.
    pub(super) fn unprotect_all_pages(&mut self) {
        let mut are_all = self.settle();
        let registered = if are_all { self.registration.ranges().clone() } else { RangeSet::new() };
        for part in registered.iter() {
            let mut start = part.start;
            let evicted: Vec<u64> = self.evicted_in(&part).map(|page| page * PAGE).collect();
            for end in evicted.into_iter().chain([part.end]) {
                if start < end {
                    are_all &= self.unprotect(start..end, true).is_ok();
                }
                start = end + PAGE;
            }
        }
        // A protected page in swap looks like an entry with a marker.
        self.markers.loose = !are_all;
    }

    /// The pages of a window in a row with `page` that are in the program: empty if `page` is
    /// evicted.
    pub(super) fn in_program_around(&self, page: u64, window: Range<u64>) -> Range<u64> {
        let is_here = |page: &u64| self.table.get(*page).place == Place::Program;
        let below = (window.start..page).rev().take_while(is_here).count() as u64;
        let above = (page..window.end).take_while(is_here).count() as u64;
        if above == 0 { page..page } else { page - below..page + above }
    }

    /// Whether a marker is that of an evicted page for certain. A page in swap looks the same while
    /// it is write-protected.
    pub(super) fn are_markers_strict(&self) -> bool {
        !self.markers.loose && !self.protection.is_on()
    }

    /// Evicted pages for which M1 does not hold, and markers for which M2 does not.
    pub(super) fn wrong_markers(&self, evicted: &RangeSet, marked: &RangeSet) -> [RangeSet; 2] {
        let removing = self.layout.removing();
        let unmarked = evicted.without(marked).without(&self.markers.to_mark).without(removing);
        let unknown = match self.are_markers_strict() {
            true => marked.without(evicted).without(removing),
            false => RangeSet::new(),
        };
        [if self.markers.loose { RangeSet::new() } else { unmarked }, unknown]
    }

    /// Drops staged pages that the server filled with zeros ahead of a touch, and that nobody
    /// wrote: the next touch fills them again.
    pub(crate) fn drop_untouched(&mut self, staged: Vec<u32>) {
        let is_settled = self.settle(); // before: this moves pages to other addresses
        let mut fresh = RangeSet::new();
        for staged in staged {
            let Some(owner) = self.staging.take_owner(staged) else { continue };
            if self.table.get(owner).place == Place::Staged(staged) {
                self.table.set(owner, UNKNOWN);
                fresh.insert(owner * PAGE..(owner + 1) * PAGE);
            }
        }
        for run in fresh.iter() {
            // While mappings change, the markers stay. They tell as little as those of memory that
            // the program drops.
            if !is_settled || self.uffd.write_unprotect(run.clone(), false).is_err() {
                self.layout.note_removing(run);
            }
        }
    }
}

/// Whether the kernel refused because mappings change.
pub(super) fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAGAIN)
}

/// Addresses of pages, as runs.
pub(super) fn runs_of(all: impl Iterator<Item = u64>) -> RangeSet {
    let mut runs = RangeSet::new();
    all.for_each(|page| runs.insert(page * PAGE..(page + 1) * PAGE));
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address_space::changes::Change;
    use crate::page_table::Entry;

    const FROM: u64 = 1 << 30;
    const TO: u64 = 1 << 31;

    /// With a page whose move was read, and is not applied.
    fn space_that_changes() -> AddressSpace {
        let mut space = AddressSpace::of_nothing();
        space.registration.insert(FROM..FROM + PAGE);
        space.table.set(FROM / PAGE, Entry { place: Place::Staged(0), ..UNKNOWN });
        space.staging.set_owner(0, FROM / PAGE);
        space.changed(Change::Moved(FROM..FROM + PAGE, TO));
        space
    }

    /// Forty small ranges and a large one, in which several audits follow each other.
    #[cfg(debug_assertions)]
    #[test]
    fn audits_at_times_reach_all_memory() {
        let (mut registered, mut audited) = (RangeSet::new(), RangeSet::new());
        for number in 0..40 {
            registered.insert(FROM + number * 2 * PAGE..FROM + (number * 2 + 1) * PAGE);
        }
        registered.insert(TO..TO + (9 << 20));
        let mut audits = AuditsAtTimes::default();
        for _ in 0..5 * AuditsAtTimes::CALLS {
            let ranges = audits.next_ranges(&registered);
            assert!(ranges.len() <= AuditsAtTimes::RANGES);
            for range in ranges {
                assert!(range.end - range.start <= AuditsAtTimes::BYTES);
                audited.insert(range);
            }
        }
        assert_eq!(audits.next, 0, "the last one has reached the end");
        assert_eq!(registered.without(&audited).total(), 0);
        assert_eq!(audited.without(&registered).total(), 0);
    }

    #[test]
    fn markers_of_memory_that_changes_are_late() {
        let mut space = space_that_changes();
        space.mark(FROM..FROM + PAGE);
        assert!(space.awaits_marker(FROM));
        // Its userfaultfd is none: the memory is gone.
        space.mark(FROM + PAGE..FROM + PAGE * 2);
        assert!(!space.awaits_marker(FROM + PAGE));
    }

    #[test]
    fn markers_are_removed_where_changes_have_moved_them() {
        let mut space = space_that_changes();
        space.drop_untouched(vec![0]);
        assert_eq!([FROM, TO].map(|at| space.layout.removing().contains(at)), [false, true]);
        // Not before: the table tells where evicted pages are.
        let mut space = space_that_changes();
        space.protect_rest(&RangeSet::new());
        space.end_sharing();
        assert!(space.layout.is_settled());
    }
}
