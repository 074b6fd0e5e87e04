//! Which memory of its parent a child has: the markers in the child's page table decide.
//!
//! A fork copies markers with the memory. The kernel skips memory with `MADV_DONTFORK`, and copies
//! no marker of memory with `MADV_WIPEONFORK`. Other threads of the parent may have changed
//! mappings or advice at the same time. So the supervisor reads the markers of the child before it
//! serves a fault of the child.

use std::ops::Range;
use std::sync::Arc;

use super::changes::Changes;
use super::fork_advice::ForkAdvice;
use super::markers::runs_of;
use super::resolve::{Evidence, Move, Resolved};
use super::write_protect::PROTECT_MAX;
use super::{AddressSpace, PAGE};
use crate::page_table::{Entry, Place};
use crate::program::procfs::ProcessFiles;
use crate::range_set::RangeSet;

/// A fork of a parent that may have changed at the same time.
#[derive(Debug)]
pub(crate) struct Uncertain {
    /// The kernel's answers: from before the fork, if the parent reported that, and from after it.
    pub(crate) answers: Vec<ForkAdvice>,
    /// Changes of the parent, from before the fork or from after it.
    pub(super) changes: Changes,
    /// More of them may follow, and nobody waits for that.
    pub(super) are_some_pending: bool,
}

impl Uncertain {
    /// Memory that the fork may have skipped, or copied without pages.
    fn left_out(&self) -> RangeSet {
        let mut left_out = RangeSet::new();
        for ForkAdvice { not_copied, wiped, .. } in &self.answers {
            left_out.insert_all(not_copied);
            left_out.insert_all(wiped);
        }
        left_out
    }
}

impl AddressSpace {
    /// Pages of a range that were evicted.
    pub(super) fn evicted_in(&self, range: &Range<u64>) -> impl Iterator<Item = u64> {
        let known = self.table.known(super::pages(range.clone()));
        known.filter(|(_, entry)| entry.place != Place::Program).map(|(page, _)| page)
    }

    /// Decides which memory the fork gave the child, unless an event of the child is pending.
    /// `candidates` are processes that may be the child.
    pub(crate) fn decide_inheritance(&mut self, candidates: &[u32]) {
        let found =
            self.process.files().cloned().or_else(|| self.find_process(candidates).map(Arc::new));
        let markers = found.as_ref().and_then(|files| self.registered_and_marked(files));
        if self.uffd.is_changing() {
            return;
        }
        let Some(of_parent) = self.layout.take_undecided() else { return };
        let own = self.layout.take_changes();
        match markers {
            Some((registered, marked)) => {
                self.decide_by(&of_parent, &own, &registered, &marked);
                self.mark_late();
                // Earlier, protection would have put markers on empty entries.
                let files = self.process.replace_files(found);
                self.protect(PROTECT_MAX);
                self.process.replace_files(files);
            }
            None => self.decide_without_markers(&of_parent, &own),
        }
    }

    /// Registered memory of the child, and markers there.
    fn registered_and_marked(&self, files: &ProcessFiles) -> Option<(RangeSet, RangeSet)> {
        let [registered] = files.mappings_with(["um"]).ok()?;
        let mut marked = RangeSet::new();
        for range in registered.iter() {
            marked.insert_all(&files.marked_in(range).ok()?);
        }
        Some((registered, marked))
    }

    fn decide_by(
        &mut self,
        of_parent: &Uncertain,
        own: &Changes,
        registered: &RangeSet,
        marked: &RangeSet,
    ) {
        let evicted = self.take_evicted();
        let mut pages = runs_of(evicted.iter().map(|(page, _)| *page));
        let mut gone = of_parent.left_out();
        gone.insert_all(&of_parent.changes.dropped());
        gone.insert_all(&own.dropped());
        // Markers of memory that the parent was dropping may be there.
        gone.insert_all(self.layout.removing());
        pages.insert_all(self.layout.removing());
        let moves: Vec<Move> = of_parent.changes.moves(true).chain(own.moves(false)).collect();
        let late = self.late_markers();
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
        }
        .resolve();
        // Memory that another thread of the parent kept from the child.
        resolved.unknown.without(registered).iter().for_each(|it| resolved.unknown.remove(it));
        if of_parent.are_some_pending && resolved.has_losses {
            // An unknown move may have put them over others.
            resolved = Resolved { unknown: marked.clone(), ..Resolved::default() };
        }
        let mut touched = of_parent.changes.touched();
        touched.insert_all(&own.touched());
        let before = self.registration.ranges();
        let still = before.without(&before.without(registered)).without(&touched);
        self.registration.replace(still);
        self.layout.move_unknown(&moves);
        self.place(evicted, &resolved, &own.dropped_unmoved());
    }

    /// Without the child's answer, pages are unknown that its parent or itself may have changed.
    fn decide_without_markers(&mut self, of_parent: &Uncertain, own: &Changes) {
        let mut doubtful = of_parent.left_out();
        doubtful.insert_all(&of_parent.changes.touched());
        doubtful.insert_all(&own.touched());
        if of_parent.answers.is_empty() || of_parent.are_some_pending {
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
    fn find_process(&self, candidates: &[u32]) -> Option<ProcessFiles> {
        self.tell_identity();
        let open = |&pid: &u32| ProcessFiles::of_thread(pid).ok();
        candidates.iter().filter_map(open).find(|files| self.shows_secret(files))
    }
}
