//! Follows the mappings of a program by the events of its userfaultfd.
//!
//! ```text
//!  events, as they are read      pending changes      the kernel: no event is pending
//!    munmap, mremap, madvise ---> one after the other ---> markers of evicted pages ---> table
//! ```
//!
//! The kernel reports changes of several threads in any order, and while an event is pending it
//! refuses to fill and to move pages. So the supervisor collects changes until none is pending.
//! Then the markers tell which pages are evicted, and [`Evidence`] tells which pages these are.

#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod model;

use std::ops::Range;
use std::sync::Arc;

use super::markers::runs_of;
use super::resolve::{Evidence, Move, Resolved, reachable};
use super::{AddressSpace, PAGE, pages};
use crate::messages::log;
use crate::page_table::{Entry, Place};
use crate::program::procfs::{ProcessFiles, growth_under_way};
use crate::range_set::{RangeSet, count};
use uzswap_sys::userfaultfd::Userfaultfd;

/// Queries of the kernel about an address space, as it is now.
pub(super) trait Kernel {
    /// Markers of a range; `None` if the kernel does not tell.
    fn marked_in(&self, range: Range<u64>) -> Option<RangeSet>;

    /// Registered mappings, each a range of its own; `None` if the kernel does not tell.
    fn registered(&self) -> Option<RangeSet>;

    /// Whether an event is pending.
    fn is_changing(&self) -> bool;
}

/// The queries of a process. Of an unknown process the kernel tells no markers.
pub(super) struct KernelOf {
    files: Option<Arc<ProcessFiles>>,
    uffd: Arc<Userfaultfd>,
}

impl Kernel for KernelOf {
    fn marked_in(&self, range: Range<u64>) -> Option<RangeSet> {
        self.files.as_ref()?.marked_in(range).ok()
    }

    fn registered(&self) -> Option<RangeSet> {
        let [registered] = self.files.as_ref()?.mappings_with(["um"]).ok()?;
        Some(registered)
    }

    fn is_changing(&self) -> bool {
        self.uffd.is_changing()
    }
}

/// A change of mappings, as an event reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// munmap(2), or a mapping over others. A limit or a sealed page may have prevented it.
    Unmapped(Range<u64>),
    /// madvise(2): the pages go now or in a moment (P4).
    Dropped(Range<u64>),
    /// mremap(2), to an address.
    Moved(Range<u64>, u64),
}

impl Change {
    fn as_move(&self) -> Option<(&Range<u64>, u64)> {
        match self {
            Change::Moved(from, to) => Some((from, *to)),
            Change::Unmapped(_) | Change::Dropped(_) => None,
        }
    }

    /// Addresses that mean something else after it.
    pub(super) fn touched(&self) -> [Range<u64>; 2] {
        match self {
            Change::Unmapped(range) | Change::Dropped(range) => [range.clone(), 0..0],
            Change::Moved(from, to) => [from.clone(), *to..to + (from.end - from.start)],
        }
    }
}

/// Changes in the order in which they were read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes(Vec<Change>);

impl Changes {
    pub(super) fn push(&mut self, change: Change) {
        self.0.push(change);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn touched(&self) -> RangeSet {
        self.touched_by(|_| true)
    }

    pub(super) fn moves(&self, is_optional: bool) -> impl Iterator<Item = Move> {
        let moves = self.0.iter().filter_map(Change::as_move);
        moves.map(move |(from, to)| Move { from: from.clone(), to, is_optional })
    }

    pub(super) fn unmaps(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().filter_map(|change| match change {
            Change::Unmapped(range) => Some(range.clone()),
            Change::Dropped(_) | Change::Moved(..) => None,
        })
    }

    pub(super) fn dropped(&self) -> RangeSet {
        self.touched_by(|change| matches!(change, Change::Dropped(_)))
    }

    /// Memory that the program drops where it is: nothing has moved there, or from there.
    pub(super) fn dropped_unmoved(&self) -> RangeSet {
        self.dropped().without(&self.touched_by(|change| change.as_move().is_some()))
    }

    /// Addresses whose mappings changed.
    fn remapped(&self) -> RangeSet {
        self.touched_by(|change| !matches!(change, Change::Dropped(_)))
    }

    fn touched_by(&self, is_one: impl Fn(&Change) -> bool) -> RangeSet {
        let mut touched = RangeSet::new();
        let all = self.0.iter().filter(|change| is_one(change));
        all.flat_map(Change::touched).for_each(|range| touched.insert(range));
        touched
    }

    fn touch(&self, range: &Range<u64>) -> bool {
        let overlaps = |it: Range<u64>| it.start < range.end && range.start < it.end;
        self.0.iter().flat_map(Change::touched).any(overlaps)
    }

    /// Where a page is after these in their order; `None` if it is gone.
    fn follow(&self, page: u64) -> Option<u64> {
        let followed = self.0.iter().try_fold(page * PAGE, |at, change| match change {
            Change::Moved(from, to) if from.contains(&at) => Some(at - from.start + to),
            Change::Moved(..) if change.touched()[1].contains(&at) => None,
            Change::Unmapped(range) | Change::Dropped(range) if range.contains(&at) => None,
            _ => Some(at),
        });
        followed.map(|at| at / PAGE)
    }

    /// Moves whose addresses no other change touches, but for the second event of a move that
    /// leaves no mapping behind.
    fn sole_moves(&self) -> impl Iterator<Item = (&Range<u64>, Range<u64>)> {
        let is_apart = |one: &Change, other: &Change| {
            let overlaps = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
            !one.touched().iter().any(|a| other.touched().iter().any(|b| overlaps(a, b)))
        };
        self.0.iter().enumerate().filter_map(move |(number, change)| {
            let (from, _) = change.as_move()?;
            let mut others = self.0.iter().enumerate().filter(|(other, _)| *other != number);
            let [_, into] = change.touched();
            let is_second = |other: &Change| *other == Change::Unmapped(from.clone());
            let is_sole = others.all(|(_, it)| is_apart(change, it) || is_second(it));
            is_sole.then_some((from, into))
        })
    }
}

impl AddressSpace {
    fn kernel(&self) -> KernelOf {
        KernelOf { files: self.process.files().cloned(), uffd: Arc::clone(&self.uffd) }
    }

    /// Forgets a range of pages, and releases the slots that they named.
    pub(crate) fn forget(&mut self, range: Range<u64>) {
        let mut evicted = Vec::new();
        self.table.take_range(pages(range), &mut |_, entry| {
            evicted.extend(Some(entry.place).filter(|place| *place != Place::Program));
        });
        evicted.into_iter().for_each(|place| self.release(place));
    }

    /// Releases the slot, or the page of staging, of a page that is forgotten.
    fn release(&mut self, place: Place) {
        match place {
            Place::Stored(slot) => self.released.push(slot),
            Place::Staged(staged) => drop(self.staging.owners.take(staged)),
            Place::Program => {}
        }
    }

    /// Takes the slots of forgotten pages.
    pub(crate) fn take_released(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.released)
    }

    /// Forgets all pages.
    pub(crate) fn forget_all(&mut self) {
        self.forget(0..u64::MAX - PAGE);
        self.changes = Changes::default();
    }

    /// Notes a change, whose event was read.
    pub(crate) fn changed(&mut self, change: Change) {
        let touched = change.touched().into_iter();
        touched.for_each(|range| self.registration.scans().note_changed(range));
        self.changes.push(change);
    }

    /// Whether the table is that of the present mappings, as far as events were read.
    pub(crate) fn is_settled(&self) -> bool {
        self.changes.is_empty() && !self.is_undecided()
    }

    /// Whether a change of a range was read and is not applied.
    pub(super) fn has_changed(&self, range: &Range<u64>) -> bool {
        self.changes.touch(range)
    }

    /// Applies the changes to the table, if no event is pending; `false` if one is.
    pub(crate) fn settle(&mut self) -> bool {
        if self.changes.is_empty() && !self.has_late_markers() {
            return !self.is_undecided();
        }
        self.settle_with(&self.kernel())
    }

    fn settle_with(&mut self, kernel: &impl Kernel) -> bool {
        if self.is_undecided() || kernel.is_changing() {
            return false;
        }
        if !self.changes.is_empty() {
            let changes = self.changes.clone();
            let resolved = self.resolve(kernel, &changes);
            // An event that came meanwhile may explain the markers.
            if kernel.is_changing() {
                return false;
            }
            self.changes = Changes::default();
            self.apply(&changes, &resolved);
            self.registered_since = RangeSet::new();
        }
        self.mark_late();
        true
    }

    /// Applies the changes before those of the one thread of a process that waits in fork(2): no
    /// other thread has a change that is not reported.
    pub(super) fn settle_at_fork(&mut self) {
        if self.is_undecided() || self.process.files().is_none() || self.process.has_threads() {
            return;
        }
        let changes = std::mem::take(&mut self.changes);
        let resolved = self.resolve(&self.kernel(), &changes);
        self.apply(&changes, &resolved);
    }

    /// Where the evicted pages of changed memory are.
    fn resolve(&self, kernel: &impl Kernel, changes: &Changes) -> Resolved {
        let touched = changes.touched();
        let (mut evicted, mut marked) = (RangeSet::new(), RangeSet::new());
        for range in touched.iter() {
            evicted.insert_all(&runs_of(self.evicted_in(&range)));
        }
        let drops_some = touched.iter().any(|range| self.removing.has_some_of(&range));
        if evicted == RangeSet::new() && !drops_some {
            return Resolved::default();
        }
        for range in touched.iter() {
            // Of an unknown process, the order of the events counts.
            let followed = || runs_of(self.evicted_in(&range).filter_map(|it| changes.follow(it)));
            marked.insert_all(&kernel.marked_in(range.clone()).unwrap_or_else(followed));
        }
        let mut gone = changes.dropped();
        // Markers of memory that the program drops may be there still.
        touched.iter().flat_map(|it| self.removing.within(it)).for_each(|it| {
            gone.insert(it.clone());
            evicted.insert(it);
        });
        let evidence = Evidence {
            evicted: &evicted,
            late: self.late_markers(),
            marked: &marked,
            moves: &changes.moves(false).collect::<Vec<_>>(),
            unmaps: &changes.unmaps().collect::<Vec<_>>(),
            gone: &gone,
            registered: None,
            registered_since: &self.registered_since,
        };
        let resolved = evidence.resolve();
        if resolved.unknown == RangeSet::new() {
            return resolved;
        }
        // The kernel walks all mappings for it.
        let registered = kernel.registered();
        Evidence { registered: registered.as_ref(), ..evidence }.resolve()
    }

    /// Changes the table and the ranges as the changes and the markers say.
    fn apply(&mut self, changes: &Changes, resolved: &Resolved) {
        let touched = changes.touched();
        let mut entries: Vec<(u64, Entry)> = Vec::new();
        for range in touched.iter() {
            self.table.take_range(pages(range), &mut |page, entry| entries.push((page, entry)));
        }
        let (evicted, others): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(_, entry)| entry.place != Place::Program);
        for (page, entry) in others {
            if let Some(page) = changes.follow(page) {
                self.table.set(page, entry);
            }
        }
        let dropping: Vec<_> = touched.iter().flat_map(|it| self.removing.within(it)).collect();
        self.change_ranges(changes);
        for piece in &resolved.kept {
            let before = dropping.iter().filter_map(|range| piece.now_of(range));
            before.for_each(|range| self.removing.insert(range));
        }
        let poisoned: Vec<_> = touched.iter().flat_map(|it| self.poison_later.within(it)).collect();
        let moves: Vec<Move> = changes.moves(false).collect();
        poisoned.into_iter().for_each(|it| self.poison_later.insert_all(&reachable(&moves, it)));
        self.place(evicted, resolved, &changes.dropped_unmoved());
        changes.dropped().iter().for_each(|range| self.removing.insert(range));
    }

    /// Changes the sets of ranges. Registration is never overestimated: the registrar finds what is
    /// registered beyond that.
    fn change_ranges(&mut self, changes: &Changes) {
        let mut moved = Vec::new();
        for (from, into) in changes.sole_moves() {
            let at = |address| address - from.start + into.start;
            let parts = self.registration.ranges().within(from.clone());
            moved.extend(parts.map(|part| at(part.start)..at(part.end)));
        }
        let mut lost = 0;
        for range in changes.remapped().iter() {
            lost += self
                .registration
                .ranges()
                .within(range.clone())
                .map(|it| count(&pages(it)))
                .sum::<usize>();
            self.registration.remove(range.clone());
            self.protection.forget(range.clone());
            self.removing.remove(range.clone());
            self.unevictable.forget(range);
        }
        let kept: usize = moved.iter().map(|part| count(&pages(part.clone()))).sum();
        moved.into_iter().for_each(|part| self.registration.insert(part));
        self.registration.scans().unmapped(lost - kept.min(lost));
    }

    /// Puts evicted pages where they are now, and forgets pages that are gone.
    pub(super) fn place(
        &mut self,
        evicted: Vec<(u64, Entry)>,
        resolved: &Resolved,
        dropped: &RangeSet,
    ) {
        let mut kept = resolved.kept.clone();
        kept.sort_unstable_by_key(|piece| piece.was);
        let (mut late, mut late_now) = (RangeSet::new(), RangeSet::new());
        for (page, entry) in evicted {
            let address = page * PAGE;
            let at = kept.partition_point(|piece| piece.before().end <= address);
            let now = kept.get(at).filter(|piece| piece.was <= address);
            let now = now.map(|piece| address - piece.was + piece.start);
            let is_dropped = now == Some(address) && dropped.contains(address);
            if self.awaits_marker(address) {
                late.insert(address..address + PAGE);
                now.into_iter().for_each(|now| late_now.insert(now..now + PAGE));
            }
            match (now.filter(|_| !is_dropped), entry.place) {
                (Some(now), place) => {
                    if let Place::Staged(staged) = place {
                        self.staging.owners.set(staged, now / PAGE);
                    }
                    self.table.set(now / PAGE, entry);
                    self.registration.insert(now..now + PAGE);
                }
                (None, place) => self.release(place),
            }
        }
        self.markers.move_late(&late, &late_now);
        let mut unknown = resolved.unknown.clone();
        if self.are_markers_strict() {
            unknown.insert_all(&resolved.unexplained);
        }
        if unknown != RangeSet::new() {
            self.poison_later.insert_all(&unknown);
            let unknown: usize = unknown.iter().map(|part| count(&pages(part))).sum();
            log(&format!(
                "process {} changed mappings in several threads at once: which of its evicted \
                 pages are where is not known for {unknown} pages; it gets SIGBUS or EFAULT there",
                self.process.root().unwrap_or(0)
            ));
        }
    }

    /// Handles a missing page while mappings change. If its thread is in mremap(2) of locked
    /// memory, the kernel fills the growth itself, first page first, before it reports the move.
    /// So the server leaves that page to the kernel; not pages elsewhere, and none while the
    /// helper works. Returns whether the page is such growth.
    pub(crate) fn leave_growth_to_kernel(&mut self, address: u64, waits: u32) -> bool {
        let growth = self.process.search_reported_thread(waits).and_then(growth_under_way);
        if let Some(growth) = growth {
            self.leave_to_kernel(address..address.saturating_add(growth));
        }
        growth.is_some()
    }

    fn leave_to_kernel(&mut self, range: Range<u64>) {
        let Ok([locked]) = self.process.mappings_with(["lo"]) else { return };
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
            self.registration.scans().note_changed(part.clone());
            self.registration.remove(part.clone());
            self.protection.forget(part.clone());
            self.commands.take_back(part);
        }
        self.commands.let_go(true);
    }
}
