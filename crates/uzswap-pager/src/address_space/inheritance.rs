//! Which memory of its parent a child has: the markers in the child's page table decide.
//!
//! A fork copies markers with the memory. The kernel skips memory with `MADV_DONTFORK`, and copies
//! no marker of memory with `MADV_WIPEONFORK`. Other threads of the parent may have changed
//! mappings or advice at the same time. So the supervisor reads the markers of the child before it
//! serves a fault of the child.
//!
//! An evicted page whose marker the kernel refused in the parent has none in the child either. The
//! child's own mappings tell whether the fork copied it: after a reported fork, the child waits for
//! the supervisor before it gives advice of its own.

use std::ops::Range;
use std::sync::Arc;

use super::changes::Changes;
use super::fork_advice::ForkAdvice;
use super::fork_evidence::{AdviceAtFork, ChildMappings, Uncertain};
use super::markers::runs_of;
use super::resolve::{Evidence, Move, Resolved};
use super::write_protect::PROTECT_MAX;
use super::{AddressSpace, PAGE};
use crate::page_table::{Entry, Place, UNKNOWN};
use crate::program::procfs::{ProcessFiles, stack_pointer};
use crate::range_set::RangeSet;

/// Why the supervisor decides now which memory a child has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// The library asks for the secret of the child, or has sent it: it waits for the supervisor.
    Greeting,
    /// A fault of the child waits.
    Fault,
    /// Changes of the child were read: a fault can come later.
    Change,
}

impl AddressSpace {
    /// A child begins with what is known of its parent. Returns the memory that its fork left out
    /// for certain.
    pub(crate) fn inherit(&mut self, parent: &AddressSpace, advice: AdviceAtFork) -> ForkAdvice {
        self.registration.replace(parent.registration.ranges().clone());
        self.inherit_markers(parent);
        match advice {
            AdviceAtFork::Known(advice) => {
                self.fork_reports.inherit_advice(advice.clone());
                advice.not_copied.iter().for_each(|range| self.registration.remove(range));
                advice
            }
            // The child has all pages until its markers are read.
            AdviceAtFork::Uncertain(of_parent) => {
                let last = of_parent.answers.last();
                last.into_iter().for_each(|last| self.fork_reports.inherit_advice(last.clone()));
                self.layout.inherit_undecided(of_parent);
                ForkAdvice::default()
            }
        }
    }

    /// A child has the stored pages of its parent, but for memory that the fork left out. Returns
    /// whether there are staged pages, which it lacks.
    pub(crate) fn inherit_stored(
        &mut self,
        parent: &AddressSpace,
        left_out: &ForkAdvice,
        mut share: impl FnMut(u32),
    ) -> bool {
        let mut is_any_staged = false;
        parent.table.for_each(&mut |page, entry| {
            let at = page * PAGE;
            if left_out.not_copied.contains(at) || left_out.wiped.contains(at) {
                return;
            }
            match entry.place {
                Place::Stored(slot) => {
                    share(slot);
                    self.table.set(page, Entry { place: entry.place, ..UNKNOWN });
                }
                Place::Staged(_) => is_any_staged = true,
                Place::Program => {}
            }
        });
        is_any_staged
    }

    /// Pages of a range that were evicted.
    pub(super) fn evicted_in(&self, range: &Range<u64>) -> impl Iterator<Item = u64> {
        let known = self.table.known(super::pages(range.clone()));
        known.filter(|(_, entry)| entry.place != Place::Program).map(|(page, _)| page)
    }

    /// Decides which memory the fork gave the child, unless an event of the child is pending.
    /// `candidates` are processes that may be the child.
    pub(crate) fn decide_inheritance(
        &mut self,
        candidates: impl IntoIterator<Item = u32>,
        occasion: Occasion,
    ) {
        if self.uffd.is_changing() {
            return; // the kernel would refuse to fill the page of identity
        }
        let found =
            self.process.files().cloned().or_else(|| self.find_process(candidates).map(Arc::new));
        let mappings = found.as_ref().and_then(|files| {
            let by_library = || self.layout.is_forked_by_library(stack_pointer(files.thread));
            ChildMappings::read(files, occasion == Occasion::Greeting || by_library())
        });
        let can_wait = occasion == Occasion::Change || self.is_dead();
        if self.uffd.is_changing() || mappings.is_none() && can_wait {
            return;
        }
        if self.decide(mappings.as_ref()) && mappings.is_some() {
            self.mark_late();
            // Earlier, protection would have put markers on empty entries.
            let files = self.process.replace_files(found);
            self.protect(PROTECT_MAX);
            self.process.replace_files(files);
        }
    }

    /// Decides it by these mappings, or without them; `false` if it was decided.
    pub(super) fn decide(&mut self, mappings: Option<&ChildMappings>) -> bool {
        let Some(of_parent) = self.layout.take_undecided() else { return false };
        let own = self.layout.take_changes();
        match mappings {
            Some(child) => self.decide_by(&of_parent, &own, child),
            None => self.decide_without_markers(&of_parent, &own),
        }
        true
    }

    fn decide_by(&mut self, of_parent: &Uncertain, own: &Changes, child: &ChildMappings) {
        let ChildMappings { registered, marked, .. } = child;
        let evicted = self.take_evicted();
        let mut pages = runs_of(evicted.iter().map(|(page, _)| *page));
        let late = self.late_markers();
        let [mut gone, mut doubtful] = of_parent.left_out_of(child);
        doubtful.insert_all(&of_parent.changes.dropped());
        let is_late = |page: &u64| late.contains(page * PAGE) && !marked.contains(page * PAGE);
        let late_pages: Vec<u64> = evicted.iter().map(|it| it.0).filter(is_late).collect();
        let is_doubtful = |page: &u64| doubtful.contains(page * PAGE);
        let doubtful = runs_of(late_pages.iter().copied().filter(is_doubtful));
        gone.insert_all(&doubtful);
        gone.insert_all(&of_parent.changes.dropped());
        gone.insert_all(&own.dropped());
        // Markers of memory that the parent was dropping may be there.
        gone.insert_all(self.layout.removing());
        pages.insert_all(self.layout.removing());
        let moves: Vec<Move> = of_parent.changes.moves(true).chain(own.moves(false)).collect();
        let unmaps: Vec<_> = of_parent.changes.unmaps().chain(own.unmaps()).collect();
        let mut resolved = Evidence {
            evicted: &pages,
            late,
            marked,
            moves: &moves,
            unmaps: &unmaps,
            gone: &gone,
            registered: Some(registered),
            registered_since: self.layout.registered_since(),
            is_of_child: true,
        }
        .resolve();
        resolved.unknown.insert_all(&doubtful);
        // Memory that another thread of the parent kept from the child.
        resolved.unknown.without(registered).iter().for_each(|it| resolved.unknown.remove(it));
        if of_parent.are_some_pending {
            resolved = despite_pending(resolved, &pages, !late_pages.is_empty(), child);
        }
        let mut touched = of_parent.changes.touched();
        touched.insert_all(&own.touched());
        let before = self.registration.ranges();
        let still = before.without(&before.without(registered)).without(&touched);
        self.registration.replace(still);
        self.layout.move_unknown(&moves);
        self.place(evicted, &resolved, &own.dropped_unmoved());
    }

    /// Without the child's answer, pages are unknown that its parent or itself may have changed:
    /// all of them where the advice at the fork is not known.
    fn decide_without_markers(&mut self, of_parent: &Uncertain, own: &Changes) {
        let [mut doubtful, wiped] = of_parent.left_out();
        doubtful.insert_all(&wiped);
        doubtful.insert_all(&of_parent.changes.touched());
        doubtful.insert_all(&own.touched());
        let is_known = of_parent.forking.are_any() && !of_parent.answers.is_empty();
        if !is_known || of_parent.are_some_pending {
            doubtful = self.registration.ranges().clone();
        }
        let mut unknown = RangeSet::new();
        for part in doubtful.iter() {
            unknown.insert_all(&runs_of(self.evicted_in(&part)));
            self.forget(part.clone());
            self.registration.remove(part);
        }
        let resolved = Resolved { unknown, ..Resolved::default() };
        self.place(Vec::new(), &resolved, &RangeSet::new());
    }

    /// Takes all entries of evicted pages out of the table.
    fn take_evicted(&mut self) -> Vec<(u64, Entry)> {
        let mut evicted = Vec::new();
        self.table.take_range(0..u64::MAX / PAGE, &mut |page, entry| {
            if entry.place != Place::Program {
                evicted.push((page, entry));
            }
        });
        evicted
    }

    /// Whether the page of a fault may be poisoned by now, or waits for it: there were so many
    /// poisonings when the fault was read. A fill would put zeros over the poison.
    pub(crate) fn may_be_poisoned(&self, address: u64, poisonings: u64) -> bool {
        self.layout.poisonings() != poisonings || self.layout.awaits_poison(address)
    }

    /// Poisons a page whose content is lost.
    pub(crate) fn poison_lost(&mut self, page: u64) {
        self.forget(page * PAGE..(page + 1) * PAGE);
        self.layout.note_lost(page);
        self.poison_doubtful();
    }

    /// Poisons pages whose content is not known, unless mappings change.
    pub(crate) fn poison_doubtful(&mut self) {
        if !self.settle() {
            return; // these pages may be at other addresses
        }
        loop {
            let Some(mut part) = self.layout.next_to_poison() else { return };
            let done = loop {
                let bytes = part.end - part.start;
                self.commands.expect_unmarked(&part);
                match self.uffd.poison(part.clone(), false) {
                    Err(stopped) if stopped.done > 0 => break stopped.done,
                    Err(stopped) if stopped.errno == libc::EAGAIN => return,
                    // The range crosses the border of a mapping, or nothing is mapped.
                    Err(stopped) if stopped.errno == libc::ENOENT && bytes > PAGE => {
                        part.end = part.start + bytes / PAGE / 2 * PAGE;
                    }
                    // A page is there, or nothing is mapped.
                    Err(stopped) if matches!(stopped.errno, libc::EEXIST | libc::ENOENT) => {
                        break PAGE;
                    }
                    // All of it; or the process has ended.
                    Ok(()) | Err(_) => break bytes,
                }
            };
            self.layout.note_poisoned(part.start..part.start + done);
        }
    }

    /// The process among the candidates that shows the secret of this space.
    fn find_process(&self, candidates: impl IntoIterator<Item = u32>) -> Option<ProcessFiles> {
        self.tell_identity();
        let open = |pid| ProcessFiles::of_thread(pid).ok();
        candidates.into_iter().filter_map(open).find(|files| self.shows_secret(files))
    }
}

/// The pages that are known while changes of the parent are pending. An unknown move may have put a
/// page over another one, or a page without a marker anywhere.
fn despite_pending(
    resolved: Resolved,
    pages: &RangeSet,
    is_any_late: bool,
    child: &ChildMappings,
) -> Resolved {
    let mut kept = RangeSet::new();
    resolved.kept.iter().for_each(|piece| kept.insert(piece.before()));
    let unknown = match pages.without(&kept) == RangeSet::new() {
        _ if is_any_late => &child.registered,
        true => return resolved,
        false => &child.marked,
    };
    Resolved { unknown: unknown.clone(), ..Resolved::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address_space::changes::Change;
    use crate::address_space::forking_threads::ForkingThreads;

    fn set(pages: &[u64]) -> RangeSet {
        runs_of(pages.iter().copied())
    }

    /// A child of a parent whose pages 0 to 5 were evicted, 3 to 5 without a marker.
    fn child() -> AddressSpace {
        let mut space = AddressSpace::of_nothing();
        for page in 0..6 {
            space.table.set(page, Entry { place: Place::Stored(page as u32), ..UNKNOWN });
        }
        space.mark_later(3 * PAGE..6 * PAGE);
        space
    }

    /// Pages that the child has, pages that are gone, and pages that it will not get.
    fn decided(of_parent: &Uncertain, child_mappings: &ChildMappings) -> [Vec<u64>; 3] {
        decided_as(|space| space.decide_by(of_parent, &Changes::default(), child_mappings))
    }

    fn decided_as(decide: impl FnOnce(&mut AddressSpace)) -> [Vec<u64>; 3] {
        let mut space = child();
        decide(&mut space);
        let is_there = |page: &u64| space.table.get(*page).place == Place::Stored(*page as u32);
        let is_unknown = |page: &u64| space.layout.awaits_poison(page * PAGE);
        let (there, gone): (Vec<u64>, Vec<u64>) = (0..6).partition(is_there);
        let (unknown, gone) = gone.into_iter().partition(is_unknown);
        [there, gone, unknown]
    }

    /// The parent says that the pages 1 and 4 are wiped and 2 and 5 are not copied, before the fork
    /// or after it.
    fn with_advice() -> Uncertain {
        let [wiped, not_copied] = [set(&[1, 4]), set(&[2, 5])];
        let answers = vec![ForkAdvice { not_copied, wiped, ..ForkAdvice::default() }];
        Uncertain { answers, ..Uncertain::default() }
    }

    /// A thread has reported the fork of this parent.
    fn reported(of_parent: Uncertain) -> Uncertain {
        let mut forking = ForkingThreads::default();
        forking.0[0] = PAGE;
        Uncertain { forking, ..of_parent }
    }

    fn mappings(registered: &[u64], wiped: &[u64], marked: &[u64]) -> ChildMappings {
        let [registered, wiped, marked] = [registered, wiped, marked].map(set);
        ChildMappings { registered, wiped, marked, has_waited: true }
    }

    #[test]
    fn the_mappings_of_a_child_decide_where_the_markers_are_late() {
        let all = [0, 1, 2, 3, 4, 5];
        // The advice came after the fork.
        let copied = mappings(&all, &[], &[0, 1, 2]);
        assert_eq!(decided(&with_advice(), &copied), [all.to_vec(), vec![], vec![]]);
        // It came before.
        let left_out = mappings(&[0, 1, 3, 4], &[1, 4], &[0]);
        let expected = [vec![0, 3], vec![1, 2, 4, 5], vec![]];
        assert_eq!(decided(&with_advice(), &left_out), expected);
        // The advice held at the fork alone: no answer has it.
        assert_eq!(decided(&Uncertain::default(), &left_out), expected);
    }

    #[test]
    fn after_a_fork_that_was_not_reported_a_child_may_have_changed_its_advice() {
        let all = [0, 1, 2, 3, 4, 5];
        let decided =
            |child| decided(&with_advice(), &ChildMappings { has_waited: false, ..child });
        // Both may have taken it back.
        let expected = [vec![0, 1, 2], vec![], vec![3, 4, 5]];
        assert_eq!(decided(mappings(&all, &[], &[0, 1, 2])), expected);
        assert_eq!(decided(mappings(&all, &[3], &[0, 1, 2])), expected);
        let left_out = mappings(&[0, 1, 3, 4], &[1, 4], &[0]);
        assert_eq!(decided(left_out), [vec![0], vec![1, 2, 5], vec![3, 4]]);
    }

    #[test]
    fn a_page_without_a_marker_is_unknown_if_the_parent_has_dropped_it_since() {
        let all = [0, 1, 2, 3, 4, 5];
        let mut of_parent = Uncertain::default();
        for page in [0, 3] {
            of_parent.changes.push(Change::Dropped(page * PAGE..(page + 1) * PAGE));
        }
        let mappings = mappings(&all, &[], &[0, 1, 2]);
        let expected = [vec![0, 1, 2, 4, 5], vec![], vec![3]];
        assert_eq!(decided(&of_parent, &mappings), expected);
    }

    #[test]
    fn while_changes_of_the_parent_are_pending_a_page_without_a_marker_may_be_anywhere() {
        let of_parent = Uncertain { are_some_pending: true, ..Uncertain::default() };
        let found = decided(&of_parent, &mappings(&[0, 1, 2, 3, 4, 5], &[], &[0, 1, 2]));
        assert_eq!(found, [vec![], vec![], vec![0, 1, 2, 3, 4, 5]]);
    }

    #[test]
    fn a_page_without_a_marker_is_lost_unless_the_child_was_wiped() {
        let all = [0, 1, 2, 3, 4, 5];
        let mappings = mappings(&all, &[1], &[0]);
        assert_eq!(decided(&Uncertain::default(), &mappings), [vec![0, 3, 4, 5], vec![1], vec![2]]);
    }

    /// Page 0 has moved over page 1, which was evicted too, before the fork or after it.
    #[test]
    fn a_child_that_is_not_decided_passes_its_evidence_on() {
        let mut parent = child();
        parent.layout.inherit_undecided(Uncertain::default());
        for change in [Change::Unmapped(PAGE..2 * PAGE), Change::Moved(0..PAGE, PAGE)] {
            parent.layout.note_change_of_parent(change);
        }
        let mut grandchild = AddressSpace::of_nothing();
        let advice = parent.advice_by(|_| Some(ForkAdvice::default()));
        let left_out = grandchild.inherit(&parent, advice);
        grandchild.inherit_stored(&parent, &left_out, |_| {});
        grandchild.decide(Some(&mappings(&[0, 1, 2, 3, 4, 5], &[], &[1, 2])));
        let place = |page| grandchild.table.get(page).place;
        assert_eq!([0, 1, 2].map(place), [Place::Program, Place::Stored(0), Place::Stored(2)]);
        // The advice at the first fork may have been another, and taken back.
        assert!((3..6).all(|page| grandchild.layout.awaits_poison(page * PAGE)));
    }

    #[test]
    fn a_child_that_is_not_found_is_decided_once_a_fault_waits() {
        let mut space = child();
        space.layout.inherit_undecided(Uncertain::default());
        space.decide_inheritance([], Occasion::Change);
        assert!(space.layout.is_undecided());
        space.decide_inheritance([], Occasion::Fault);
        assert!(!space.layout.is_undecided());
    }

    #[test]
    fn a_child_that_is_not_found_has_pages_only_if_the_advice_at_its_fork_is_known() {
        let decided = |of_parent: Uncertain| {
            decided_as(|space| {
                space.registration.insert(0..6 * PAGE);
                space.decide_without_markers(&of_parent, &Changes::default());
            })
        };
        let all = vec![0, 1, 2, 3, 4, 5];
        assert_eq!(decided(reported(with_advice())), [vec![0, 3], vec![], vec![1, 2, 4, 5]]);
        // The parent may have taken other advice back since.
        assert_eq!(decided(with_advice()), [vec![], vec![], all.clone()]);
        assert_eq!(decided(reported(Uncertain::default())), [vec![], vec![], all]);
    }
}
