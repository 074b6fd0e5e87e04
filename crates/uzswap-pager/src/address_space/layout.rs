//! Follows the mappings of a program by the events of its userfaultfd.

#[cfg(test)]
mod model;

use std::ops::Range;
use std::sync::Arc;

use super::later_events::Move;
use super::{AddressSpace, PAGE, pages};
use crate::page_table::{Entry, Place, UNKNOWN};
use crate::program::procfs::{ProcessFiles, growth_under_way};
use crate::range_set::{RangeSet, count};
use uzswap_sys::userfaultfd::Userfaultfd;

/// Queries of the kernel about an address space, as it is now.
trait Kernel {
    /// Whether anything is mapped in a range, or may be.
    fn has_some_in(&self, range: &Range<u64>) -> bool;

    /// The mapping of private anonymous memory at an address.
    fn mapping_at(&self, at: u64) -> Option<Range<u64>>;

    /// All mappings that are registered with the userfaultfd.
    fn registered(&self) -> RangeSet;

    /// Pages of a range, resident or in swap; `None` if the kernel does not tell.
    fn pages_in(&self, range: &Range<u64>) -> Option<RangeSet>;

    /// Whether an event is pending.
    fn is_changing(&self) -> bool;
}

/// The queries of a process. Of an unknown process the kernel tells little.
struct KernelOf {
    files: Option<Arc<ProcessFiles>>,
    uffd: Arc<Userfaultfd>,
}

impl Kernel for KernelOf {
    fn has_some_in(&self, range: &Range<u64>) -> bool {
        self.files.as_ref().is_some_and(|files| files.mappings.has_some_in(range))
    }

    fn mapping_at(&self, at: u64) -> Option<Range<u64>> {
        let first = at..at + PAGE;
        let found = self.files.as_ref()?.mappings.at(&[first]).ok()?;
        found.into_iter().map(|mapping| mapping.range).find(|range| range.contains(&at))
    }

    fn registered(&self) -> RangeSet {
        // An error if the process is gone.
        let found = self.files.as_ref().and_then(|files| files.mappings_with(["um"]).ok());
        found.map_or(RangeSet::default(), |[registered]| registered)
    }

    fn pages_in(&self, range: &Range<u64>) -> Option<RangeSet> {
        self.files.as_ref()?.pages_in(range.clone()).ok()
    }

    fn is_changing(&self) -> bool {
        self.uffd.is_changing()
    }
}

impl AddressSpace {
    fn kernel(&self) -> KernelOf {
        KernelOf { files: self.files.clone(), uffd: Arc::clone(&self.uffd) }
    }

    /// Forgets a range of pages, and releases the slots that they named.
    pub(crate) fn forget(&mut self, range: Range<u64>) {
        let AddressSpace { table, staging, released, .. } = self;
        table.take_range(pages(range), &mut |_, entry| match entry.place {
            Place::Stored(slot) => released.push(slot),
            Place::Staged(staged) => drop(staging.owners.take(staged)),
            Place::Program => {}
        });
    }

    /// Takes the slots of forgotten pages.
    pub(crate) fn take_released(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.released)
    }

    /// Forgets all pages.
    pub(crate) fn forget_all(&mut self) {
        self.forget(0..u64::MAX - PAGE);
        self.drop_all_aside(0..u64::MAX - PAGE);
    }

    /// Notes that the program drops a range of pages, now or in a moment (P4).
    pub(crate) fn removed(&mut self, range: Range<u64>) {
        self.forget(range.clone());
        self.removing.insert(range);
    }

    /// Tells a running scan that this range has changed.
    fn note_change(&mut self, range: Range<u64>) {
        if let Some(changed) = &mut self.looks.changed {
            changed.insert(range);
        }
    }

    /// Notes that the program has unmapped a range.
    pub(crate) fn unmapped(&mut self, range: Range<u64>) {
        self.unmapped_with(&self.kernel(), range);
    }

    fn unmapped_with(&mut self, kernel: &impl Kernel, range: Range<u64>) {
        self.note_change(range.clone());
        self.doubted.retain(|doubted| !doubted.has_some_of(&range));
        let (late, departed) = self.late(kernel, range.clone());
        self.untold.remove(range.clone());
        self.departed.remove(range.clone());
        self.elder_registered.remove(range.clone());
        for part in late.outside(range.clone()) {
            self.to_protect.remove(part.clone());
            self.removing.remove(part.clone());
            self.words.remove(part.clone());
            for part in departed.within(part.clone()) {
                let registered = self.set_aside(part.clone());
                self.looks.unmapped(registered);
                self.untold.insert(part.clone());
                self.departed.insert(part);
            }
            departed.outside(part).into_iter().for_each(|part| self.forget_gone(part));
        }
        for part in late.within(range) {
            self.drop_all_aside(part);
        }
    }

    /// Forgets a part that is unmapped, and memory before a move to it.
    fn forget_gone(&mut self, part: Range<u64>) {
        self.moved_in.remove(part.clone());
        let registered = self.registered.within(part.clone()).map(|part| count(&pages(part))).sum();
        self.looks.unmapped(registered);
        self.forget(part.clone());
        self.registered.remove(part.clone());
        self.left.remove(part.clone());
        // The unmap may have failed, and the helper must never wait for memory of the library.
        self.own.within(part).for_each(|part| self.left.insert(part));
    }

    /// Notes that the program has moved a range.
    pub(crate) fn moved(&mut self, from: Range<u64>, to: u64) {
        self.moved_with(&self.kernel(), from, to);
    }

    fn moved_with(&mut self, kernel: &impl Kernel, from: Range<u64>, to: u64) {
        let into = to..to + (from.end - from.start);
        self.markers.moved(&from, to);
        let has_departed = self.departed.has_some_of(&from); // and is aside
        self.end_doubt(kernel, &from, &into);
        for range in [from.clone(), into.clone()] {
            self.note_change(range.clone());
            self.to_protect.remove(range.clone());
            self.removing.remove(range.clone());
            self.words.remove(range);
        }
        let mut late = RangeSet::default();
        if has_departed || self.is_older(kernel, &from, to) {
            let came = self.moved_in.within(from.clone()).chain(self.untold.within(from.clone()));
            came.for_each(|part| late.insert(part));
            self.untold.remove(from.clone());
        }
        let mut entries = Vec::new();
        let mut registered = Vec::new();
        // An unmap of the moved memory's old address follows, and applies to memory that came
        // there since.
        for part in late.outside(from.clone()) {
            self.moved_in.remove(part.clone());
            let taken = &mut |page, entry| entries.push((page, entry));
            self.table.take_range(pages(part.clone()), taken);
            registered.extend(self.registered.within(part.clone()));
            self.registered.remove(part.clone());
            self.left.remove(part);
        }
        for part in late.within(from.clone()) {
            registered.extend(self.elder_registered.within(part.clone()));
            self.elder_registered.remove(part.clone());
            let elder: Vec<(u64, Entry)> =
                self.elder.range(pages(part)).map(|(&page, &entry)| (page, entry)).collect();
            for (page, _) in &elder {
                self.elder.remove(page);
            }
            entries.extend(elder);
        }
        self.set_aside(into.clone());
        for (page, entry) in entries {
            let page = page - from.start / PAGE + to / PAGE;
            if let Place::Staged(staged) = entry.place {
                self.staging.owners.set(staged, page);
            }
            self.table.set(page, entry);
        }
        let moved = |part: Range<u64>| part.start - from.start + to..part.end - from.start + to;
        registered.into_iter().for_each(|part| self.registered.insert(moved(part)));
        self.moved_in.insert_apart(into);
    }

    /// Keeps the state of memory that has gone from a range, until an event reports that. Returns
    /// how many of its pages were registered.
    fn set_aside(&mut self, part: Range<u64>) -> usize {
        let mut elder = Vec::new();
        self.table.take_range(pages(part.clone()), &mut |page, entry| elder.push((page, entry)));
        for (page, entry) in elder {
            self.drop_aside(page);
            self.elder.insert(page, entry);
            self.untold.insert(page * PAGE..(page + 1) * PAGE);
        }
        let registered: Vec<Range<u64>> = self.registered.within(part.clone()).collect();
        self.registered.remove(part.clone());
        self.left.remove(part.clone());
        self.elder_registered.remove(part);
        for part in &registered {
            self.untold.insert(part.clone());
            self.elder_registered.insert(part.clone());
        }
        registered.into_iter().map(|part| count(&pages(part))).sum()
    }

    /// Parts of an unmapped range to which memory moved after the unmap, although its event comes
    /// later: a thread may be preempted between its change and the event. These parts were
    /// registered when the memory came, or registered memory is mapped there that the registrar
    /// has not registered again. Parts without any page of the moved memory count, too: it may
    /// have moved on. (If only a part of it has gone, that part was unmapped.)
    ///
    /// The kernel also reports an unmap that fails in the end (a limit, a sealed page): that
    /// memory is there as before. But the memory may also have grown to there, from below or from
    /// the target of a move, without an event, and may have been split since. While an event is
    /// pending nobody fills pages, so resident and missing pages tell which memory it is. If all
    /// pages are evicted, the likelier explanation counts.
    fn late(&mut self, kernel: &impl Kernel, range: Range<u64>) -> (RangeSet, RangeSet) {
        let [mut late, mut departed] = [const { RangeSet::new() }; 2];
        if self.moved_in.has_some_of(&range) || kernel.has_some_in(&range) {
            let registered = kernel.registered();
            // All registered memory is there, and did not grow from below.
            let is_whole = |found: &Range<u64>| {
                let mut known = self.registered.within(range.clone());
                found.start >= range.start
                    && known.all(|known| registered.outside(known).is_empty())
                    && !registered.iter().any(|other| other.end == found.start)
            };
            for found in registered.reaching_into(range.clone()) {
                let part = found.start.max(range.start)..found.end.min(range.end);
                // The first moved memory may have grown, also over others.
                let first = self.moved_in.reaching_into(found.clone()).next();
                let is_first = |part: &Range<u64>| {
                    let mut first = first.iter();
                    first.any(|first| first.contains(&part.start) && first.start <= found.start)
                };
                let is_of_before = first.is_none() && is_whole(&found);
                for known in self.registered.within(part) {
                    let moved = self.moved_in.within(known.clone());
                    let moved = moved.map(|part| (is_first(&part), part));
                    let others = self.moved_in.outside(known).into_iter();
                    let others = others.map(|part| (is_of_before, part));
                    for (is_likely, part) in moved.chain(others) {
                        if self.is_at(kernel, &part, part.start).unwrap_or(is_likely) {
                            late.insert(part);
                        }
                    }
                }
            }
            for moved in self.moved_in.reaching_into(range.clone()) {
                if !registered.has_some_of(&moved) {
                    departed.insert(moved.start.max(range.start)..moved.end.min(range.end));
                }
            }
            if late != RangeSet::default() {
                self.doubted.push(late.clone());
            }
        }
        self.untold.within(range).for_each(|part| late.insert(part));
        (late, departed)
    }

    /// Whether the state of some pages fits the memory at an address now; `None` if that is
    /// unknown. Nobody fills or evicts pages while an event is pending.
    fn is_at(&self, kernel: &impl Kernel, part: &Range<u64>, at: u64) -> Option<bool> {
        let there = kernel.pages_in(&(at..at + (part.end - part.start)))?;
        let mut is_at = None;
        for (page, entry) in self.table.known(pages(part.clone())) {
            match (entry.place, there.contains(page * PAGE - part.start + at)) {
                (Place::Stored(_) | Place::Staged(_), true) => return Some(false),
                (Place::Program, false) if entry.returned => return Some(false),
                (Place::Program, true) if entry.returned => is_at = Some(true),
                _ => {}
            }
        }
        is_at
    }

    /// Whether a reported move is of the memory before a move to its range; that one may still be
    /// there. Otherwise the move is of the moved memory.
    fn is_older(&self, kernel: &impl Kernel, from: &Range<u64>, to: u64) -> bool {
        let Some(first) = self.moved_in.reaching_into(from.clone()).next() else { return false };
        if first.start > from.start {
            return true; // that begins within it
        }
        let came: Vec<Range<u64>> = self.moved_in.within(from.clone()).collect();
        // A query for registered mappings may take milliseconds.
        let is_any_mapped = came.iter().any(|part| kernel.has_some_in(part));
        let registered = if is_any_mapped { kernel.registered() } else { RangeSet::default() };
        let is_there = |part: &Range<u64>| registered.outside(part.clone()).is_empty();
        let is_at = |part: &Range<u64>, at| self.is_at(kernel, part, at);
        if came.iter().any(|part| is_there(part) && is_at(part, part.start) == Some(true)) {
            return true;
        }
        let has_moved: Vec<Option<bool>> =
            came.iter().map(|part| is_at(part, part.start - from.start + to)).collect();
        if has_moved.contains(&Some(false)) || has_moved.contains(&Some(true)) {
            return has_moved.contains(&Some(false));
        }
        // MREMAP_DONTUNMAP leaves the mapping at the old address.
        self.untold.has_some_of(from) && came.iter().all(is_there)
    }

    /// Ends the doubt about unmaps of a range, because memory moved to it: the unmapped memory was
    /// the one that had moved there, not the one before. The kernel reports the unmap of a move's
    /// target just before the move; it does not report by how much the move grew the memory.
    fn end_doubt(&mut self, kernel: &impl Kernel, from: &Range<u64>, into: &Range<u64>) {
        self.end_departures(from, into);
        if self.doubted.is_empty() {
            return;
        }
        let found = kernel.mapping_at(into.start);
        let end = found.map_or(into.end, |found| found.end.max(into.end));
        let is_gone = |doubted: &mut RangeSet| doubted.has_some_of(&(into.start..end));
        self.doubted.retain(|doubted| !doubted.has_some_of(from));
        let gone: Vec<RangeSet> = self.doubted.extract_if(.., is_gone).collect();
        gone.iter().flat_map(RangeSet::iter).for_each(|range| self.forget_gone(range));
    }

    /// The same for memory that may have moved on: this move is its move, or other memory has come
    /// to its range, or grown into it from below.
    fn end_departures(&mut self, from: &Range<u64>, into: &Range<u64>) {
        if self.departed == RangeSet::default() {
            return;
        }
        let moved_on = |moved: &Range<u64>| moved.contains(&from.start);
        let was_there = self.moved_in.reaching_into(from.clone()).filter(|moved| !moved_on(moved));
        let ended: Vec<_> = was_there.chain(self.moved_in.reaching_into(into.clone())).collect();
        for part in ended {
            let gone: Vec<Range<u64>> = self.departed.within(part.clone()).collect();
            self.departed.remove(part);
            for part in gone {
                self.untold.remove(part.clone());
                self.elder_registered.remove(part.clone());
                pages(part).for_each(|page| self.drop_aside(page));
            }
        }
        self.departed.remove(from.clone());
    }

    fn drop_all_aside(&mut self, part: Range<u64>) {
        while let Some((&page, _)) = self.elder.range(pages(part.clone())).next() {
            self.drop_aside(page);
        }
    }

    fn drop_aside(&mut self, page: u64) {
        match self.elder.remove(&page).map(|entry| entry.place) {
            Some(Place::Stored(slot)) => self.released.push(slot),
            Some(Place::Staged(staged)) => drop(self.staging.owners.take(staged)),
            Some(Place::Program) | None => {}
        }
    }

    /// All events were read: later events are of later changes, if none is under way.
    pub(crate) fn settle(&mut self) {
        self.settle_with(&self.kernel());
    }

    fn settle_with(&mut self, kernel: &impl Kernel) {
        let is_settled = self.moved_in == RangeSet::default() && self.doubted.is_empty();
        if (!is_settled || self.has_late_markers()) && !kernel.is_changing() {
            self.forget_changes();
            self.mark_late();
        }
    }

    /// Forgets changes that were pending: the events of all of them were read.
    pub(crate) fn forget_changes(&mut self) {
        self.moved_in = RangeSet::default();
        self.untold = RangeSet::default();
        self.departed = RangeSet::default();
        self.elder_registered = RangeSet::default();
        self.doubted = Vec::new();
        while let Some((&page, _)) = self.elder.first_key_value() {
            self.drop_aside(page);
        }
    }

    /// A child inherits the unsettled changes of its parent; `share` is called for each slot.
    /// Returns whether some of the pages are staged: the child does not get these.
    pub(crate) fn inherit_changes(
        &mut self,
        parent: &AddressSpace,
        share: &mut dyn FnMut(u32),
    ) -> bool {
        self.moved_in = parent.moved_in.clone();
        self.untold = parent.untold.clone();
        self.departed = parent.departed.clone();
        self.elder_registered = parent.elder_registered.clone();
        self.doubted = parent.doubted.clone();
        let mut is_any_aside = false;
        for (&page, &Entry { place, .. }) in &parent.elder {
            match place {
                Place::Stored(slot) => {
                    share(slot);
                    self.elder.insert(page, Entry { place, ..UNKNOWN });
                }
                Place::Staged(_) => is_any_aside = true,
                Place::Program => {}
            }
        }
        is_any_aside
    }

    /// Moves the state of a child's memory, because its parent moved that memory before the fork.
    /// `is_elder`: the memory that was at `from` before other memory came there.
    pub(super) fn relocate(&mut self, moved: &Move, is_elder: bool) {
        let Move { from, into } = moved;
        let mut entries = Vec::new();
        let registered = if is_elder { &mut self.elder_registered } else { &mut self.registered };
        let parts: Vec<Range<u64>> = registered.within(from.clone()).collect();
        registered.remove(from.clone());
        if is_elder {
            self.untold.remove(from.clone());
            entries.extend(self.elder.range(pages(from.clone())).map(|(&page, &it)| (page, it)));
            self.elder.retain(|&page, _| !pages(from.clone()).contains(&page));
        } else {
            let taken = &mut |page, entry| entries.push((page, entry));
            self.table.take_range(pages(from.clone()), taken);
        }
        self.forget(into.clone());
        self.registered.remove(into.clone());
        for (page, entry) in entries {
            self.table.set(page - from.start / PAGE + into.start / PAGE, entry);
        }
        parts.into_iter().for_each(|part| self.registered.insert(moved.moved(part)));
    }

    /// Handles a missing page while mappings change. If its thread is in mremap(2) of locked
    /// memory, the kernel fills the growth itself, first page first, before it reports the move.
    /// So the server leaves that page to the kernel; not pages elsewhere, and none while the
    /// helper works. Returns whether the page is such growth.
    pub(crate) fn leave_growth_to_kernel(&mut self, address: u64, waits: u32) -> bool {
        let growth = self.search_thread_told(waits).and_then(growth_under_way);
        if let Some(growth) = growth {
            self.leave_to_kernel(address..address.saturating_add(growth));
        }
        growth.is_some()
    }

    fn leave_to_kernel(&mut self, range: Range<u64>) {
        let Ok([locked]) = self.mappings_with(["lo"]) else { return };
        if !self.hold_commands() {
            return;
        }
        let mut unknown = RangeSet::default();
        for page in locked.within(range).flat_map(pages) {
            if self.table.get(page).place == Place::Program {
                unknown.insert(page * PAGE..(page + 1) * PAGE);
            }
        }
        for part in unknown.iter() {
            let _ = self.uffd.unregister(part.clone());
            self.note_change(part.clone());
            self.registered.remove(part.clone());
            self.to_protect.remove(part.clone());
            self.take_back(part);
        }
        self.let_commands(true);
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one mapping is a range")]
mod tests {
    use super::*;

    const COUNT: u64 = 8;
    const BYTES: u64 = COUNT * PAGE;
    const AT: u64 = 1 << 40;
    const ELSEWHERE: [u64; 3] = [1 << 42, 2 << 42, 3 << 42];

    /// These mappings are registered, and have pages in this range; nothing else is mapped.
    struct Registered<'a>(&'a [Range<u64>], Range<u64>);

    const ONE: &Registered<'_> = &Registered(&[AT..AT + BYTES], 0..0);

    impl Kernel for Registered<'_> {
        fn has_some_in(&self, range: &Range<u64>) -> bool {
            self.registered().has_some_of(range)
        }

        fn mapping_at(&self, at: u64) -> Option<Range<u64>> {
            self.0.iter().find(|range| range.contains(&at)).cloned()
        }

        fn registered(&self) -> RangeSet {
            let mut registered = RangeSet::default();
            self.0.iter().for_each(|range| registered.insert_apart(range.clone()));
            registered
        }

        fn pages_in(&self, range: &Range<u64>) -> Option<RangeSet> {
            let mut pages = RangeSet::default();
            pages.insert(self.1.start.max(range.start)..self.1.end.min(range.end).max(range.start));
            Some(pages)
        }

        fn is_changing(&self) -> bool {
            false
        }
    }

    fn whole(at: u64) -> Range<u64> {
        at..at + BYTES
    }

    /// Pages that have left, under slots from `slot` on.
    fn have_left(space: &mut AddressSpace, at: u64, slot: u32) {
        for (page, slot) in pages(at..at + BYTES).zip(slot..) {
            space.table.set(page, Entry { place: Place::Stored(slot), ..UNKNOWN });
        }
        space.registered.insert(at..at + BYTES);
    }

    fn slots(space: &AddressSpace, at: u64) -> Vec<u32> {
        let places = pages(at..at + BYTES).map(|page| space.table.get(page).place);
        places
            .filter_map(|place| if let Place::Stored(slot) = place { Some(slot) } else { None })
            .collect()
    }

    #[test]
    fn what_is_told_late_is_of_what_was_there_before() {
        let mut space = AddressSpace::of_nothing();
        let [from, to, other] = ELSEWHERE;
        have_left(&mut space, AT, 0);
        have_left(&mut space, from, 100);
        // Something else came before it is told that what was there was moved, and it is told then
        // that it was unmapped, too.
        space.moved_with(ONE, from..from + BYTES, AT);
        space.moved_with(ONE, AT..AT + BYTES, to);
        space.unmapped_with(ONE, AT..AT + BYTES);
        space.unmapped_with(ONE, from..from + BYTES);
        assert_eq!(slots(&space, AT), Vec::from_iter(100..108));
        assert_eq!(slots(&space, to), Vec::from_iter(0..8));
        for start in [AT, to] {
            assert!(space.registered.outside(start..start + BYTES).is_empty());
        }
        // A page is moved over it, and grows.
        have_left(&mut space, other, 200);
        space.unmapped_with(ONE, AT..AT + BYTES);
        space.moved_with(ONE, other..other + PAGE, AT);
        assert_eq!(slots(&space, AT), [200]);
        space.settle_with(ONE);
        assert_eq!(slots(&space, AT), [200]);
        assert_eq!(space.take_released(), Vec::from_iter(100..108));
    }

    #[test]
    fn what_was_moved_in_may_have_grown_over_what_is_told_late() {
        let mut space = AddressSpace::of_nothing();
        have_left(&mut space, AT, 0);
        have_left(&mut space, ELSEWHERE[0], 100);
        space.moved_with(ONE, ELSEWHERE[0]..ELSEWHERE[0] + 3 * PAGE, AT);
        space.unmapped_with(ONE, AT..AT + BYTES);
        assert_eq!(slots(&space, AT), Vec::from_iter(100..103));
        let mut released = space.take_released();
        released.sort_unstable();
        assert_eq!(released, Vec::from_iter(0..8));
    }

    #[test]
    fn what_has_grown_to_where_something_was_unmapped_is_not_that() {
        let [from, ..] = ELSEWHERE;
        let below = AT - BYTES;
        // Something had been moved there; in place from below; so, and then split off.
        for (has_moved, now) in [
            (true, vec![below..AT + BYTES]),
            (false, vec![below..AT + 3 * PAGE]),
            (false, vec![whole(below), whole(AT)]),
        ] {
            let mut space = AddressSpace::of_nothing();
            have_left(&mut space, if has_moved { from } else { AT }, 0);
            space.registered.insert(whole(below));
            if has_moved {
                space.moved_with(ONE, whole(from), AT);
            }
            space.unmapped_with(&Registered(&now, 0..0), whole(AT));
            assert_eq!(
                (slots(&space, AT), space.take_released()),
                (Vec::new(), Vec::from_iter(0..8))
            );
        }
    }

    #[test]
    fn pages_that_are_there_tell_what_memory_it_is() {
        let [from, to, _] = ELSEWHERE;
        let here = whole(AT);
        let returned = Entry { returned: true, ..UNKNOWN };
        // It may have been unmapped, and the same have grown there from below, if its page is not.
        for (pages, is_it) in [(here.clone(), false), (AT..AT + PAGE, true), (0..0, false)] {
            let mut space = AddressSpace::of_nothing();
            have_left(&mut space, AT, 0);
            space.table.set(AT / PAGE, returned);
            let now = [AT - BYTES..AT + BYTES];
            space.unmapped_with(&Registered(&now, pages), here.clone());
            assert_eq!(slots(&space, AT).len(), if is_it { 7 } else { 0 });
        }
        // Both may have been moved on: what came with a page, or what was there before with none.
        for (page, has_moved) in [(AT, false), (to, true)] {
            let mut space = AddressSpace::of_nothing();
            have_left(&mut space, AT, 0);
            have_left(&mut space, from, 100);
            space.table.set(from / PAGE, returned);
            let kernel = Registered(&[whole(AT), whole(to)], page..page + PAGE);
            space.moved_with(&kernel, whole(from), AT);
            space.moved_with(&kernel, here.clone(), to);
            let first = if has_moved { 101 } else { 0 };
            assert_eq!(slots(&space, to), Vec::from_iter(first..first / 100 * 100 + 8));
        }
    }

    #[test]
    fn what_came_last_moves_on_where_nothing_is_any_more() {
        let [from, to, _] = ELSEWHERE;
        let mut space = AddressSpace::of_nothing();
        have_left(&mut space, AT, 0);
        have_left(&mut space, from, 100);
        space.moved_with(ONE, whole(from), AT);
        let now = &Registered(&[whole(to)], 0..0);
        space.moved_with(now, whole(AT), to);
        // Of both it is told.
        space.unmapped_with(now, whole(AT));
        space.unmapped_with(now, whole(AT));
        assert_eq!(slots(&space, to), Vec::from_iter(100..108));
    }

    #[test]
    fn what_was_not_known_to_be_registered_may_be_so_since() {
        let mut space = AddressSpace::of_nothing();
        have_left(&mut space, AT, 0);
        space.registered.remove(AT..AT + 2 * PAGE);
        space.unmapped_with(ONE, AT..AT + 4 * PAGE);
        assert_eq!((slots(&space, AT), space.take_released()), (Vec::from_iter(2..8), vec![0, 1]));
    }

    #[test]
    fn what_could_not_be_unmapped_is_there_as_before() {
        let mut space = AddressSpace::of_nothing();
        have_left(&mut space, AT, 0);
        space.unmapped_with(ONE, AT..AT + BYTES);
        space.settle_with(ONE);
        assert_eq!(slots(&space, AT), Vec::from_iter(0..8));
        // A mapping that begins below has grown to where something was unmapped.
        space.unmapped_with(ONE, AT + 4 * PAGE..AT + BYTES);
        assert_eq!(slots(&space, AT), Vec::from_iter(0..4));
        assert_eq!(space.take_released(), Vec::from_iter(4..8));
    }

    #[test]
    fn what_has_moved_on_may_be_told_to_be_unmapped_first() {
        let [from, there, to] = ELSEWHERE;
        let has_come = || {
            let mut space = AddressSpace::of_nothing();
            have_left(&mut space, from, 100);
            space.moved_with(ONE, from..from + BYTES, there);
            space.unmapped_with(ONE, there..there + BYTES);
            assert!(slots(&space, there).is_empty() && space.take_released().is_empty());
            space
        };
        // It has, with what it had grown by; and is told to be unmapped, too.
        let mut space = has_come();
        space.moved_with(ONE, there..there + 2 * BYTES, to);
        space.unmapped_with(ONE, there..there + 2 * BYTES);
        space.settle_with(ONE);
        assert_eq!((slots(&space, to), space.take_released().len()), (Vec::from_iter(100..108), 0));
        // It was unmapped: nothing is told any more; or of something else there, or that has grown.
        for end in 0..4 {
            let mut space = has_come();
            match end {
                0 => space.settle_with(ONE),
                1 => space.unmapped_with(ONE, there..there + BYTES),
                2 => space.moved_with(ONE, to - BYTES..to - PAGE, there + PAGE),
                _ => space.moved_with(ONE, there - PAGE..there + BYTES, to),
            }
            assert_eq!(
                (slots(&space, to), space.take_released()),
                (Vec::new(), Vec::from_iter(100..108))
            );
        }
        // Where the rest is there still, so much of it was unmapped.
        let mut space = has_come();
        have_left(&mut space, from, 200);
        have_left(&mut space, from + BYTES, 300);
        space.moved_with(ONE, from..from + 2 * BYTES, AT);
        space.unmapped_with(ONE, AT + BYTES..AT + 2 * BYTES);
        assert_eq!(space.take_released(), Vec::from_iter(300..308));
        assert_eq!(slots(&space, AT), Vec::from_iter(200..208));
    }

    #[test]
    fn a_child_has_what_is_not_settled_of_its_parent() {
        let [from, there, _] = ELSEWHERE;
        let mut parent = AddressSpace::of_nothing();
        have_left(&mut parent, from, 100);
        parent.moved_with(ONE, from..from + BYTES, there);
        parent.unmapped_with(ONE, there..there + BYTES);
        let mut child = AddressSpace::of_nothing();
        let mut shared = Vec::new();
        assert!(!child.inherit_changes(&parent, &mut |slot| shared.push(slot)));
        assert_eq!(shared, Vec::from_iter(100..108));
        child.moved_with(ONE, there..there + BYTES, AT);
        assert_eq!(slots(&child, AT), shared);
        assert!(parent.take_released().is_empty() && child.take_released().is_empty());
    }
}
