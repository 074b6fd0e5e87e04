//! Pages that UFFDIO_MOVE refuses for their rights, and how these leave.
//!
//! The kernel moves pages between memory that can be written alone, with the same rights on both
//! sides. So pages that can be executed, too, go to a batch with these rights. Read-only pages
//! leave by mremap(2) with MREMAP_DONTUNMAP: the mapping stays, registered and with its rights, and
//! the pages are missing. UFFDIO_COPY brings them back, as it asks for no rights.
//!
//! UFFDIO_MOVE refuses pages that the kernel holds for I/O; mremap moves them, and the kernel goes
//! on writing to the page in staging. The kernel takes such pages from memory that can be written.
//! So the helper asks right before mremap whether the program can write there. No page leaves by
//! mremap while the program has registered buffers.
//!
//! - P5: what mremap moves is what the command meant. The helper calls it right after the kernel
//!   said that nothing is to be read. The kernel reports a move of registered memory, and no other:
//!   where it reports none, another mapping came between the two, and the process is ended.

use std::io;
use std::ops::Range;

use super::{AddressSpace, PAGE, pages};
use crate::page_table::BATCH_PAGES;
use crate::program::helper::{Command, Helper, MoveRun};
use crate::program::vmas::{READ_WRITE, Rights};
use crate::range_set::{RangeSet, count};
use uzswap_preload::protocol::work;

/// Runs that one command moves by mremap at most: each is a mapping of its own in the batch.
const REMAPPED_RUNS: usize = 64;

/// The same limit for pages: the last page of the batch stays free, so each run ends before it.
const REMAPPED_PAGES: usize = BATCH_PAGES - 1;

/// How refused pages leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By UFFDIO_MOVE, those that have these rights, mapping by mapping.
    Move(Rights),
    /// By UFFDIO_MOVE, those that no other process has, once they are the program's alone. A page
    /// that the kernel refuses then is pinned, and stays.
    Own(Rights),
    /// By mremap, those that can be written and not read, and that no other process has.
    RemapUnreadable,
    /// By mremap, those that cannot be written, and that no other process has.
    Remap,
    /// By mremap, those that cannot be written, whoever has them.
    RemapShared,
}

impl Way {
    /// In this order: what one way refuses again is left for the next.
    pub(crate) const ALL: [Way; 6] = [
        Way::Move(READ_WRITE),
        Way::EXECUTABLE,
        Way::Own(READ_WRITE | libc::PROT_EXEC as Rights),
        Way::RemapUnreadable,
        Way::Remap,
        Way::RemapShared,
    ];

    /// Memory of programs that write code and execute it.
    pub(crate) const EXECUTABLE: Way = Way::Move(READ_WRITE | libc::PROT_EXEC as Rights);

    fn is_remap(self) -> bool {
        matches!(self, Way::RemapUnreadable | Way::Remap | Way::RemapShared)
    }

    /// Whether memory with these rights leaves another way, if at all.
    fn is_not_for(self, rights: Rights) -> bool {
        match self {
            Way::Move(wanted) | Way::Own(wanted) => rights != wanted,
            Way::RemapUnreadable => rights & READ_WRITE != libc::PROT_WRITE as Rights,
            Way::Remap | Way::RemapShared => false,
        }
    }

    /// Whether memory with these rights has no way to leave now: it was read-only a moment ago, or
    /// has a protection key.
    fn keeps(self, rights: Rights) -> bool {
        matches!(self, Way::Remap | Way::RemapShared) && rights & libc::PROT_WRITE as Rights != 0
    }
}

impl AddressSpace {
    /// Tells the helper to move refused pages, those that go this way: they are not among the
    /// `refused` ones any more. `false` where there are none.
    pub(crate) fn give_refused(
        &mut self,
        refused: &mut Vec<(u64, usize)>,
        way: Way,
    ) -> io::Result<bool> {
        let (Some(files), Some(helper)) =
            (self.process.files().cloned(), self.commands.free_helper())
        else {
            return Ok(false);
        };
        if refused.is_empty() || !self.may_move() {
            return Ok(false);
        }
        let is_pinning = way.is_remap() && self.process.has_pinned_memory();
        let all = std::mem::take(refused);
        let (mut fitting, mut kept) = (Vec::new(), Vec::new());
        for range in all.iter().map(|&(page, count)| page * PAGE..(page + count as u64) * PAGE) {
            for (part, rights) in files.mappings.rights_in(range)? {
                match way {
                    _ if way.is_not_for(rights) => refused.push(numbered(&part)),
                    _ if is_pinning || way.keeps(rights) => kept.push(part),
                    Way::Own(_) | Way::RemapUnreadable | Way::Remap
                        if self.charge.members() > 1 =>
                    {
                        let mut shared = RangeSet::default();
                        shared.insert(part.clone());
                        for run in files.resident_alone(part)?.0 {
                            shared.remove(run.clone());
                            fitting.push(run);
                        }
                        refused.extend(shared.iter().map(|part| numbered(&part)));
                    }
                    _ => fitting.push(part),
                }
            }
        }
        if way.is_remap() {
            self.unevictable.take_locked(&self.process, &mut fitting)?;
            self.unevictable.take_locked(&self.process, &mut kept)?;
            kept.into_iter().flat_map(pages).for_each(|page| self.unevictable.add_pinned(page));
        }
        if let Way::Own(rights) = way {
            let fitting: Vec<_> = fitting.iter().map(numbered).collect();
            return Ok(self.give_own(&fitting, rights, true));
        }
        Ok(self.give_parts(&helper, fitting, way))
    }

    fn give_parts(&mut self, helper: &Helper, parts: Vec<Range<u64>>, way: Way) -> bool {
        let Some(batch) = self.staging.take_empty() else { return false };
        let (runs_max, pages_max) = match way {
            Way::Move(_) | Way::Own(_) => (BATCH_PAGES, BATCH_PAGES),
            _ => (REMAPPED_RUNS, REMAPPED_PAGES),
        };
        let runs = self.runs_of(parts, batch * BATCH_PAGES, runs_max, pages_max);
        if runs.is_empty() {
            self.staging.put_empty(batch);
            return false;
        }
        match way {
            Way::Move(rights) | Way::Own(rights) => {
                self.give(helper, work::MOVE, Some((batch, rights)), runs)
            }
            _ => {
                let unreadable = way == Way::RemapUnreadable;
                let work = if unreadable { work::REMAP_UNREADABLE } else { work::REMAP };
                self.staging.set_rights(batch, None); // it is to be one mapping
                self.give(helper, work, Some((batch, READ_WRITE)), runs)
            }
        }
    }

    /// The pages of some mappings that may leave, in runs of one mapping each.
    fn runs_of(
        &self,
        parts: Vec<Range<u64>>,
        first: usize,
        runs_max: usize,
        pages_max: usize,
    ) -> Vec<MoveRun> {
        let (mut runs, mut taken): (Vec<MoveRun>, usize) = (Vec::new(), 0);
        for part in parts {
            let mut end = None;
            for page in pages(part).filter(|page| self.may_leave(*page)) {
                let goes_on = end == Some(page);
                if taken == pages_max || !goes_on && runs.len() == runs_max {
                    return runs;
                }
                match runs.last_mut() {
                    Some(last) if goes_on => last.count += 1,
                    _ => runs.push(MoveRun::new(page, first + taken)),
                }
                (end, taken) = (Some(page + 1), taken + 1);
            }
        }
        runs
    }

    /// Holds the helper where it has moved a run by mremap, and waits until that is read; `false`
    /// where it is at work. Its moves are noted (P3).
    pub(super) fn hold_remapping(&mut self, helper: &Helper) -> bool {
        let (Some(files), Some(command)) = (self.process.files(), self.commands.current()) else {
            return false;
        };
        let Some(number) = helper.remapped_run() else { return false };
        let is_remap = command.is_remap();
        let Some(run) = command.runs.get(number).filter(|_| is_remap) else { return false };
        // Before, it is one mapping to the end of the batch.
        let staged = helper.staged_at(run.staged)..helper.staged_at(run.staged + run.count);
        let has_moved =
            files.mappings.end_of(staged.start).is_ok_and(|end| end == Some(staged.end));
        if !has_moved || !helper.hold_remapping(number, run) {
            return false;
        }
        self.collect(true);
        true
    }

    /// A run of a done command that may have moved what it was not to move (P5), by its address.
    pub(super) fn find_replaced(&self, command: &Command) -> Option<u64> {
        if !command.is_remap() {
            return None;
        }
        let mut moved = command.runs.iter().filter(|run| run.moved > 0);
        let run = moved.find(|run| {
            // What was reported was registered; it is what was meant, unless other such memory had
            // been moved there, and is there.
            !run.is_reported || run.is_doubted && self.is_registered_in(&run.addresses())
        });
        run.map(|run| run.addresses().start)
    }

    fn is_registered_in(&self, range: &Range<u64>) -> bool {
        let registered = self.process.mappings_with(["um"]);
        registered.map_or(true, |[registered]| registered.has_some_of(range))
    }

    /// Of the pages that a run has moved by mremap, from `first` on: those that are in staging. The
    /// others were missing.
    pub(super) fn staged_of(&self, run: &MoveRun, first: usize, end: usize) -> Option<RangeSet> {
        let (files, helper) = (self.process.files()?, self.commands.last_helper()?);
        let staged = helper.staged_at(run.staged + first)..helper.staged_at(run.staged + end);
        files.pages_in(staged).ok() // an error where the process has ended
    }
}

/// As a first page and how many.
fn numbered(part: &Range<u64>) -> (u64, usize) {
    let pages = pages(part.clone());
    (pages.start, count(&pages))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::address_space::for_tests::{STAGING, WRITTEN, Written};
    use crate::fork_group::ForkGroup;
    use crate::program::procfs::ProcessFiles;
    use uzswap_preload::protocol::holder;

    #[test]
    fn each_way_takes_the_refused_pages_of_its_rights() {
        let written = Written::new();
        let first = written.page();
        // The command of a way: its work, its runs and the rights of a new mapping; and the pages
        // that are left for the next way. Another process may share the pages.
        let give = |way, is_shared: bool| {
            let mut space = AddressSpace::with_helper(STAGING);
            let group = ForkGroup::default();
            let _other = group.join();
            if is_shared {
                space.join_group(&group, PAGE);
            }
            space.registration.insert(written.start..written.start + 5 * PAGE);
            space.staging.take_empty();
            let mut refused = vec![(first, 5)];
            assert!(!space.give_refused(&mut Vec::new(), way).unwrap());
            let is_given = space.give_refused(&mut refused, way).unwrap();
            assert_eq!(is_given, space.commands.current().is_some());
            let left: Vec<_> = refused.iter().map(|&(page, count)| (page - first, count)).collect();
            let command = space.commands.take_current();
            let command = command.map(|it| {
                assert_eq!(it.runs[0].staged, BATCH_PAGES, "the second batch");
                let runs = it.runs.iter().map(|run| (run.page - first, run.count));
                (it.work, runs.collect::<Vec<_>>(), it.anew)
            });
            (command, left)
        };
        let executable = READ_WRITE | libc::PROT_EXEC as Rights;
        let all = vec![(0, 5)];
        let rest = vec![(WRITTEN, 2)];
        for is_shared in [false, true] {
            let moved = Some((work::MOVE, all.clone(), None));
            assert_eq!(give(Way::Move(READ_WRITE), is_shared), (moved, vec![]));
            for way in [Way::EXECUTABLE, Way::Own(executable)] {
                assert_eq!(give(way, is_shared), (None, all.clone()), "they have other rights");
            }
            assert_eq!(give(Way::RemapUnreadable, is_shared), (None, all.clone()));
            for way in [Way::Remap, Way::RemapShared] {
                assert_eq!(give(way, is_shared), (None, vec![]), "they stay: they may be pinned");
            }
        }
        let by_page = |pages: u64| (0..pages).map(|page| (page, 1)).collect::<Vec<_>>();
        let owned = |pages| Some((work::OWN_AND_MOVE, by_page(pages), None));
        assert_eq!(give(Way::Own(READ_WRITE), false), (owned(5), vec![]));
        // A page that nobody has touched may be another process's.
        assert_eq!(give(Way::Own(READ_WRITE), true), (owned(WRITTEN), rest));
    }

    #[test]
    fn pages_that_can_be_written_leave_by_mremap_only_if_they_cannot_be_read() {
        let bits = [libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC].map(|it| it as Rights);
        for rights in 0..8 {
            let [reads, writes, executes] = bits.map(|bit| rights & bit != 0);
            let leaves = |way: Way| !way.is_not_for(rights) && !way.keeps(rights);
            let found = Way::ALL.map(leaves);
            let moves = reads && writes;
            let expected = [
                moves && !executes,
                moves && executes,
                moves && executes,
                writes && !reads,
                !writes,
                !writes,
            ];
            assert_eq!(found, expected, "rights {rights}");
        }
    }

    #[test]
    fn refused_pages_stay_while_pages_may_not_move() {
        let written = Written::new();
        let mut space = AddressSpace::with_helper(STAGING);
        let refused = vec![(written.page(), 1)];
        let is_given = |space: &mut AddressSpace| {
            space.give_refused(&mut refused.clone(), Way::Move(READ_WRITE)).unwrap()
        };
        assert!(!is_given(&mut space), "they are not registered");
        assert_eq!(space.staging.take_empty(), Some(0));
        space.registration.insert(written.start..written.start + PAGE);
        space.unevictable.expect_words();
        assert!(!is_given(&mut space));
        space.unevictable.begin_word_scan();
        assert!(is_given(&mut space) && !is_given(&mut space), "the helper has a command");
    }

    #[test]
    fn a_remap_that_no_event_reports_may_have_moved_something_else() {
        let mut space = AddressSpace::with_helper(STAGING);
        let replaced = |space: &AddressSpace, work, moved, is_reported, is_doubted| {
            let run = MoveRun { moved, is_reported, is_doubted, ..MoveRun::new(7, 0) };
            let runs = vec![MoveRun::new(5, 1), run];
            space.find_replaced(&Command {
                number: 1,
                work,
                anew: None,
                batch: None,
                runs,
                drops: None,
            })
        };
        assert_eq!(replaced(&space, work::REMAP, 1, false, false), Some(7 * PAGE));
        assert_eq!(replaced(&space, work::REMAP, 0, false, false), None);
        assert_eq!(replaced(&space, work::MOVE, 1, false, false), None);
        // An event before it moved other memory away, which was not registered.
        assert_eq!(replaced(&space, work::REMAP, 1, true, true), None);
        let mut ended = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        space.process.read(ended.id());
        ended.kill().unwrap();
        ended.wait().unwrap();
        assert_eq!(replaced(&space, work::REMAP, 1, true, false), None);
        assert_eq!(replaced(&space, work::REMAP, 1, true, true), Some(7 * PAGE), "nobody knows");
    }

    #[test]
    fn a_helper_is_held_once_its_run_is_a_mapping_of_its_own() {
        let files = ProcessFiles::of_thread(std::process::id()).unwrap();
        let mapped = uzswap_preload::LIBRARY.as_ptr().addr() as u64;
        let end = files.mappings.end_of(mapped).unwrap().unwrap();
        let hold = |lock, work, pages_to_end: u64| {
            let mut space = AddressSpace::with_helper(end - pages_to_end * PAGE);
            let helper = space.commands.free_helper().unwrap();
            let mut run = MoveRun::new(7, 0);
            run.count = 2;
            space.give(&helper, work, Some((0, READ_WRITE)), vec![run]);
            helper.control().lock.store(lock, Relaxed);
            let is_held = space.hold_remapping(&helper);
            let MoveRun { moved, missing, .. } = space.commands.current().unwrap().runs[0];
            // No page of a file was moved there.
            assert_eq!(missing, moved);
            (is_held, moved, helper.control().lock.load(Relaxed))
        };
        let (remapping, held) = (holder::REMAPPING, holder::SUPERVISOR);
        assert_eq!(hold(remapping, work::REMAP, 2), (true, 2, held));
        assert_eq!(hold(remapping, work::REMAP, 3), (false, 0, remapping), "it has not moved");
        assert_eq!(hold(remapping, work::MOVE, 2), (false, 0, remapping));
        assert_eq!(hold(holder::HELPER, work::REMAP, 2), (false, 0, holder::HELPER));
    }

    #[test]
    fn a_run_is_of_one_mapping_and_of_pages_that_may_leave() {
        let mut space = AddressSpace::of_nothing();
        space.registration.insert(0..1000 * PAGE);
        space.unevictable.add(5 * PAGE..6 * PAGE);
        let parts = vec![2 * PAGE..8 * PAGE, 8 * PAGE..10 * PAGE, 998 * PAGE..1002 * PAGE];
        let runs = |runs_max, pages_max| {
            let runs = space.runs_of(parts.clone(), 100, runs_max, pages_max);
            Vec::from_iter(runs.iter().map(|run| (run.page, run.count, run.staged)))
        };
        let all = [(2, 3, 100), (6, 2, 103), (8, 2, 105), (998, 2, 107)];
        assert_eq!(runs(64, 511), all);
        assert_eq!(runs(2, 511), all[..2]);
        assert_eq!(runs(64, 4), [(2, 3, 100), (6, 1, 103)]);
    }

    #[test]
    fn pages_that_may_be_pinned_are_owned_before_they_are_remapped() {
        let at = |wanted: &dyn Fn(&Way) -> bool| Way::ALL.iter().position(wanted).unwrap();
        let owned = at(&|way| matches!(way, Way::Own(_)));
        assert_eq!(owned, at(&|way| *way == Way::EXECUTABLE) + 1);
        assert!(owned < at(&|way| *way == Way::Remap));
    }
}
