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
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use super::changes::{Change, Changes};
use super::fork_evidence::Uncertain;
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

/// Changes of mappings that the table does not follow yet, and the evicted pages in doubt.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Changes whose events were read while others were pending.
    changes: Changes,
    /// Memory that was registered since changes are pending.
    registered_since: RangeSet,
    /// Of a child whose markers the supervisor has not read yet.
    undecided: Option<Uncertain>,
    /// Ranges that the program has reported to drop, and may not have dropped yet (P4).
    removing: RangeSet,
    /// Evicted pages with unknown content that the kernel has not poisoned yet.
    poison_later: RangeSet,
    /// How many times the kernel was asked to poison pages.
    poisonings: u64,
    /// Slots of forgotten pages, until the space is unlocked.
    released: Vec<u32>,
}

impl Layout {
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    pub(super) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn registered_since(&self) -> &RangeSet {
        &self.registered_since
    }

    /// Notes memory that was registered while mappings change: it may be newer than the changes.
    pub(super) fn note_registered_since(&mut self, registered: &[Range<u64>]) {
        registered.iter().for_each(|part| self.registered_since.insert(part.clone()));
    }

    /// Ranges that the program has reported to drop, and may not have dropped yet (P4).
    pub(super) fn removing(&self) -> &RangeSet {
        &self.removing
    }

    /// Notes that the program may drop a range in a moment.
    pub(super) fn note_removing(&mut self, range: Range<u64>) {
        self.removing.insert(range);
    }

    /// Notes a missing page: the program has dropped it.
    pub(super) fn note_missing(&mut self, page: u64) {
        self.removing.remove(page * PAGE..(page + 1) * PAGE);
    }

    /// A child has the pending drops, registrations and unknown pages of its parent.
    pub(super) fn inherit(&mut self, parent: &Layout) {
        self.removing = parent.removing.clone();
        self.registered_since = parent.registered_since.clone();
        self.poison_later = parent.poison_later.clone();
    }

    /// Unknown pages may be wherever these moves lead.
    pub(super) fn move_unknown(&mut self, moves: &[Move]) {
        for range in std::mem::take(&mut self.poison_later).iter() {
            self.poison_later.insert_all(&reachable(moves, range));
        }
    }

    /// The child has all evicted pages of its parent until its markers are read.
    pub(super) fn inherit_undecided(&mut self, of_parent: Uncertain) {
        self.undecided = Some(of_parent);
    }

    /// Whether it is not known which memory of its parent it has.
    pub(crate) fn is_undecided(&self) -> bool {
        self.undecided.is_some()
    }

    /// Whether an undecided child, with this stack pointer, comes from a fork by the C library.
    pub(super) fn is_forked_by_library(&self, stack: Option<u64>) -> bool {
        self.undecided().is_some_and(|of_parent| of_parent.forking.have_forked(stack))
    }

    pub(super) fn undecided(&self) -> Option<&Uncertain> {
        self.undecided.as_ref()
    }

    pub(super) fn take_undecided(&mut self) -> Option<Uncertain> {
        self.undecided.take()
    }

    /// Notes for a child that is not decided that its parent has changed mappings.
    pub(crate) fn note_change_of_parent(&mut self, change: Change) {
        if let Some(undecided) = &mut self.undecided {
            undecided.changes.push(change);
        }
    }

    /// Notes that its parent may report more, and that nobody waits for that.
    pub(crate) fn note_pending_of_parent(&mut self) {
        if let Some(undecided) = &mut self.undecided {
            undecided.are_some_pending = true;
        }
    }

    /// Whether the table is that of the present mappings, as far as events were read.
    pub(super) fn is_settled(&self) -> bool {
        self.changes.is_empty() && !self.is_undecided()
    }

    /// Whether a change of a range was read and is not applied.
    pub(super) fn has_changed(&self, range: &Range<u64>) -> bool {
        self.changes.touch(range)
    }

    /// Whether the page of an address waits to be poisoned.
    pub(crate) fn awaits_poison(&self, address: u64) -> bool {
        self.poison_later.contains(address)
    }

    /// A range to poison.
    pub(super) fn next_to_poison(&self) -> Option<Range<u64>> {
        self.poison_later.iter().next()
    }

    pub(super) fn note_poisoned(&mut self, range: Range<u64>) {
        self.poison_later.remove(range);
        self.poisonings += 1;
    }

    /// Notes a page whose content is lost.
    pub(super) fn note_lost(&mut self, page: u64) {
        self.poison_later.insert(page * PAGE..(page + 1) * PAGE);
    }

    pub(crate) fn poisonings(&self) -> u64 {
        self.poisonings
    }

    pub(super) fn released(&self) -> &[u32] {
        &self.released
    }

    /// Takes the slots of forgotten pages.
    pub(crate) fn take_released(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.released)
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
            Place::Stored(slot) => self.layout.released.push(slot),
            Place::Staged(staged) => drop(self.staging.take_owner(staged)),
            Place::Program => {}
        }
    }

    /// Forgets all pages.
    pub(crate) fn forget_all(&mut self) {
        self.forget(0..u64::MAX - PAGE);
        self.layout.changes = Changes::default();
    }

    /// Notes a change, whose event was read.
    pub(crate) fn changed(&mut self, change: Change) {
        let touched = change.touched().into_iter();
        touched.for_each(|range| self.registration.scans().note_changed(range));
        self.layout.changes.push(change);
    }

    /// Applies the changes to the table, if no event is pending; `false` if one is.
    pub(crate) fn settle(&mut self) -> bool {
        if self.layout.changes.is_empty() && !self.has_late_markers() {
            return !self.layout.is_undecided();
        }
        self.settle_with(&self.kernel())
    }

    fn settle_with(&mut self, kernel: &impl Kernel) -> bool {
        if self.layout.is_undecided() || kernel.is_changing() {
            return false;
        }
        if !self.layout.changes.is_empty() {
            let changes = self.layout.changes.clone();
            let resolved = self.resolve(kernel, &changes);
            // An event that came meanwhile may explain the markers.
            if kernel.is_changing() {
                return false;
            }
            self.layout.changes = Changes::default();
            self.apply(&changes, &resolved);
            self.layout.registered_since = RangeSet::new();
        }
        self.mark_late();
        true
    }

    /// Where the evicted pages of changed memory are.
    fn resolve(&self, kernel: &impl Kernel, changes: &Changes) -> Resolved {
        let touched = changes.touched();
        let (mut evicted, mut marked) = (RangeSet::new(), RangeSet::new());
        for range in touched.iter() {
            evicted.insert_all(&runs_of(self.evicted_in(&range)));
        }
        let drops_some = touched.iter().any(|range| self.layout.removing.has_some_of(&range));
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
        touched.iter().flat_map(|it| self.layout.removing.within(it)).for_each(|it| {
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
            registered_since: &self.layout.registered_since,
            is_of_child: false,
        };
        let resolved = evidence.resolve();
        if resolved.unknown == RangeSet::new() {
            return resolved;
        }
        // The kernel walks all mappings for it.
        let registered = kernel.registered();
        let by_these = Evidence { registered: registered.as_ref(), ..evidence }.resolve();
        // With them the search has more states, perhaps too many.
        if by_these.unknown.total() < resolved.unknown.total() { by_these } else { resolved }
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
        let dropping: Vec<_> =
            touched.iter().flat_map(|it| self.layout.removing.within(it)).collect();
        self.change_ranges(changes);
        for piece in &resolved.kept {
            let before = dropping.iter().filter_map(|range| piece.now_of(range));
            before.for_each(|range| self.layout.removing.insert(range));
        }
        self.layout.move_unknown(&changes.moves(false).collect::<Vec<_>>());
        self.place(evicted, resolved, &changes.dropped_unmoved());
        changes.dropped().iter().for_each(|range| self.layout.removing.insert(range));
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
            let registered = self.registration.ranges().within(range.clone());
            lost += registered.map(|it| count(&pages(it))).sum::<usize>();
            self.registration.remove(range.clone());
            self.protection.forget(range.clone());
            self.layout.removing.remove(range.clone());
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
                        self.staging.set_owner(staged, now / PAGE);
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
            self.layout.poison_later.insert_all(&unknown);
            let unknown: usize = unknown.iter().map(|part| count(&pages(part))).sum();
            log(&format!(
                "{}: mappings changed in several threads at once, or around its fork; the content \
                 of {unknown} evicted pages is not known: it gets SIGBUS or EFAULT there",
                self.process.in_words()
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
