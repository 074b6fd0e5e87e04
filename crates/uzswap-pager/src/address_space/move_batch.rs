//! Commands to the helper: which pages leave, and what came of it.

#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::time::Instant;

use super::{AddressSpace, PAGE};
use crate::page_table::BATCH_PAGES;
use crate::page_table::{Entry, Place, UNKNOWN};
use crate::policy::clock::{Answer, Known};
use crate::program::helper::{Command, Helper, MoveRun, RunAnswer, add_page};
use crate::program::vmas::{READ_WRITE, Rights};
use crate::range_set::RangeSet;
use uzswap_preload::protocol::work;

/// How a command to move went.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    pub(crate) pages: usize,
    /// Pages of the command, moved or not.
    pub(crate) offered: usize,
    /// Pages that are not the program's alone, or may not be: the first, and how many.
    pub(crate) shared: Vec<(u64, usize)>,
    /// Pages that were refused: not all of one mapping, or not with the rights of the batch.
    pub(crate) refused: Vec<(u64, usize)>,
    /// An address where something else may have been moved (P5).
    pub(crate) replaced: Option<u64>,
}

impl AddressSpace {
    /// Commands the helper to stage the next `most` pages of the hand, with `alone` exclusive
    /// ones, and to free the memory of a drained batch. `false` if there is neither. The caller
    /// has called [`super::leave_words_of_threads`], has the helper carry the command out without
    /// the lock, and then calls [`AddressSpace::dropped`].
    pub(crate) fn give_move(&mut self, most: usize, alone: bool) -> io::Result<bool> {
        self.settle();
        let Some(helper) = self.commands.free_helper() else { return Ok(false) };
        let mut batch = (most > 0 && self.may_move()).then(|| self.staging.take_empty()).flatten();
        let runs = batch.map_or(Ok(Vec::new()), |batch| self.next_pages(batch, most, alone));
        if runs.as_ref().map_or(true, Vec::is_empty) {
            batch.take().into_iter().for_each(|batch| self.staging.put_empty(batch));
        }
        let runs = runs?;
        Ok(self.give(&helper, work::MOVE, batch.map(|batch| (batch, READ_WRITE)), runs))
    }

    /// Tells the helper to make pages exclusive that a forked process shares, and to move them. The
    /// same serves pages that were evicted from the other process already.
    ///
    /// Page by page, a pinned page keeps no page after it.
    pub(crate) fn give_move_shared(&mut self, wanted: &[(u64, usize)], is_by_page: bool) -> bool {
        self.give_own(wanted, READ_WRITE, is_by_page)
    }

    /// As that, of memory that has these rights.
    pub(super) fn give_own(
        &mut self,
        wanted: &[(u64, usize)],
        rights: Rights,
        is_by_page: bool,
    ) -> bool {
        if wanted.is_empty() || !self.may_move() {
            return false;
        }
        let Some(helper) = self.commands.free_helper() else { return false };
        let Some(batch) = self.staging.take_empty() else { return false };
        let first = batch * BATCH_PAGES;
        let mut runs: Vec<MoveRun> = Vec::new();
        let pages = wanted.iter().flat_map(|&(page, count)| page..page + count as u64);
        let pages = pages.filter(|&page| self.is_here(page)).take(BATCH_PAGES);
        for (page, staged) in pages.zip(first..) {
            match is_by_page {
                true => runs.push(MoveRun::new(page, staged)),
                false => add_page(&mut runs, page, staged),
            }
        }
        if runs.is_empty() {
            self.staging.put_empty(batch);
            return self.give(&helper, work::MOVE, None, runs);
        }
        if self.protection.is_on() {
            // The helper is not to wait for room.
            for run in &runs {
                let _ = self.uffd.write_unprotect(run.addresses(), true);
            }
        }
        self.give(&helper, work::OWN_AND_MOVE, Some((batch, rights)), runs)
    }

    /// Whether a page is in the program, as far as is known, and is none that never leaves.
    fn is_here(&self, page: u64) -> bool {
        let address = page * PAGE;
        self.table.get(page).place == Place::Program
            && !self.layout.removing().contains(address)
            && !self.unevictable.has_words_at(address)
            && self.registration.ranges().has_some_of(&(address..address + PAGE))
    }

    /// As that, of a page that the kernel has not refused to move.
    pub(super) fn may_leave(&self, page: u64) -> bool {
        self.is_here(page) && !self.unevictable.ranges().contains(page * PAGE)
    }

    /// Gives a command that fills a batch, which then has these rights.
    pub(super) fn give(
        &mut self,
        helper: &Helper,
        work: u32,
        filled: Option<(usize, Rights)>,
        runs: Vec<MoveRun>,
    ) -> bool {
        let drops = self.staging.take_drained();
        if runs.is_empty() && drops.is_none() {
            return false;
        }
        let others = |&(batch, rights): &(usize, Rights)| !self.staging.has_rights(batch, rights);
        let anew = filled.filter(others).map(|(_, rights)| rights);
        let batch = filled.map(|(batch, _)| batch);
        self.commands.give(helper, Command { number: 0, work, anew, batch, runs, drops });
        true
    }

    /// Whether pages may leave now.
    pub(super) fn may_move(&self) -> bool {
        self.unevictable.knows_words() && !self.is_about_to_fork() && self.layout.is_settled()
    }

    /// The helper has said that it is done: what came of it, and pages of a batch that is empty
    /// now.
    pub(crate) fn dropped(&mut self) -> (Moved, usize) {
        self.collect(false);
        let (moved, dropping) = self.commands.take_result();
        self.faults.note_evicted(moved.pages);
        let freed = dropping.map_or(0, |batch| self.staging.free(batch));
        self.charge.note_faulted(-(freed as i64));
        (moved, freed)
    }

    /// The pages of a window around `page` that no command moves now: of those the table does not
    /// know whether they are in the program still. Empty where the page itself is one.
    pub(crate) fn not_commanded(&self, page: u64, window: Range<u64>) -> Range<u64> {
        let mut free = window;
        for run in self.commands.current().into_iter().flat_map(|command| &command.runs) {
            let pages = run.pages();
            if pages.end <= page {
                free.start = free.start.max(pages.end);
            } else {
                free.end = free.end.min(pages.start.max(free.start));
            }
        }
        if free.contains(&page) { free } else { page..page }
    }

    /// Notes what a command did, if it is done, or `in_part` (P3).
    pub(super) fn collect(&mut self, in_part: bool) {
        let Some(mut command) = self.commands.take_current() else { return };
        let Some(helper) = self.commands.last_helper().cloned() else { return };
        let is_done = helper.has_done(&command);
        if is_done || in_part {
            let answers: Vec<RunAnswer> = helper.answers(&command).collect();
            self.note_moved(&mut command, answers.iter().map(|run| (run.moved, run.marked)));
            if is_done {
                return self.done(command, answers.into_iter().map(|run| run.error));
            }
        }
        self.commands.put_back(command);
    }

    /// The helper moves nothing more of its command: notes all moves, reported or not. A run
    /// is moved from its first page on, into a batch that was empty. (Where a page was, there may
    /// be another by now.)
    pub(super) fn break_off(&mut self) -> io::Result<()> {
        let Some(helper) = self.commands.last_helper() else { return Ok(()) };
        let Some(files) = self.process.files() else { return Ok(()) };
        let Some(command) = self.commands.current() else { return Ok(()) };
        let mut counts = Vec::with_capacity(command.runs.len());
        if command.work == work::DROP_FREED {
            counts.resize(command.runs.len(), 0);
        } else if command.is_remap() {
            counts = helper.answers(command).map(|run| run.moved).collect();
        }
        for run in &command.runs[counts.len()..] {
            let mut count = run.moved;
            while count < run.count && files.is_there(helper.staged_at(run.staged + count))? {
                count += 1;
            }
            counts.push(count);
        }
        if let Some(mut command) = self.commands.take_current() {
            // Whatever the helper has marked, it may be marked twice.
            self.note_moved(&mut command, counts.into_iter().map(|count| (count, 0)));
            self.done(command, std::iter::repeat(0));
        }
        Ok(())
    }

    /// Of each run of a command so many pages were moved, and so many of these are marked.
    fn note_moved(&mut self, command: &mut Command, counts: impl Iterator<Item = (usize, usize)>) {
        let is_remap = command.is_remap();
        for (run, (count, marked)) in command.runs.iter_mut().zip(counts) {
            let is_new = is_remap && run.moved < count;
            let there = is_new.then(|| self.staged_of(run, run.moved, count)).flatten();
            let address = |staged| self.commands.staged_at(staged).unwrap_or(0);
            let is_there =
                |staged| there.as_ref().is_none_or(|there| there.contains(address(staged)));
            let missing: Vec<usize> =
                (run.moved..count).filter(|at| !is_there(run.staged + at)).collect();
            run.missing += missing.len();
            let mut to_mark = RangeSet::new();
            for at in (run.moved..count).filter(|at| missing.binary_search(at).is_err()) {
                let (page, staged) = (run.page + at as u64, run.staged + at);
                let place = Place::Staged(staged as u32);
                self.table.set(page, Entry { place, ..self.table.get(page) });
                self.staging.set_owner(staged as u32, page);
                if at >= marked || run.is_unmarked {
                    to_mark.insert(page * PAGE..(page + 1) * PAGE);
                }
            }
            run.moved = count;
            to_mark.iter().for_each(|part| self.mark(part));
        }
    }

    /// A command is done, and all that it moved is noted; why each run stopped, an errno or 0.
    fn done(&mut self, command: Command, errors: impl Iterator<Item = i32>) {
        let mut moved = Moved { replaced: self.find_replaced(&command), ..Moved::default() };
        let is_remap = command.is_remap();
        let (mut is_in_the_way, mut has_no_memory) = (false, false);
        for (run, error) in command.runs.iter().zip(errors) {
            moved.pages += run.moved - run.missing;
            moved.offered += run.count;
            if run.moved == run.count {
                continue;
            }
            let (stopped_at, rest) = (run.page + run.moved as u64, run.count - run.moved);
            match error {
                // The first is pinned for I/O of the kernel. It stays, but keeps no other.
                libc::EBUSY if command.work == work::OWN_AND_MOVE => {
                    self.unevictable.add_pinned(stopped_at);
                    if rest > 1 {
                        moved.shared.push((stopped_at + 1, rest - 1));
                    }
                }
                libc::EBUSY => moved.shared.push((stopped_at, rest)),
                // A border between mappings is in it, or it has other rights, or is locked; or the
                // system allows no such staging.
                libc::EINVAL | libc::EACCES | libc::EPERM if !is_remap => {
                    moved.refused.push((stopped_at, rest));
                }
                // Of a special kind, or sealed.
                libc::EINVAL | libc::EPERM => self.unevictable.add(run.addresses()),
                libc::EEXIST => is_in_the_way = true,
                libc::ENOMEM => has_no_memory = true,
                // The page is gone (MADV_FREE).
                libc::ENOENT => self.table.set(stopped_at, UNKNOWN),
                _ => {} // it went, or will be tried again
            }
        }
        let has_no_memory = has_no_memory && moved.pages == 0;
        if let Some(batch) = command.batch {
            if command.anew.is_some() {
                let helper = self.commands.last_helper();
                let is_anew = helper.is_some_and(|it| it.has_mapped_anew());
                self.staging.set_rights(batch, command.anew.filter(|_| is_anew && !is_remap));
            }
            self.staging.fill(batch, moved.pages, is_in_the_way);
        }
        self.commands.finish(moved, command.drops, has_no_memory);
    }

    /// Pages that the hand comes to next, as runs that go into a batch.
    fn next_pages(&mut self, batch: usize, most: usize, alone: bool) -> io::Result<Vec<MoveRun>> {
        let Some(files) = self.process.files() else { return Ok(Vec::new()) };
        let AddressSpace { commands, table, registration, unevictable, layout, .. } = self;
        let resident = &mut |range| {
            let start = Instant::now();
            let (runs, to) = match alone {
                true => files.resident_alone(range)?,
                false => files.resident(range)?,
            };
            Ok(Answer { runs, to, took: start.elapsed() })
        };
        let (registered, unevictable) = (registration.ranges(), unevictable.ranges());
        let known = Known { table, registered, unevictable, removing: layout.removing() };
        let pages = commands.hand().pick(Instant::now(), most, known, resident, alone)?;
        let mut runs = Vec::new();
        for (page, staged) in pages.into_iter().zip(batch * BATCH_PAGES..) {
            add_page(&mut runs, page, staged);
        }
        Ok(runs)
    }
}
