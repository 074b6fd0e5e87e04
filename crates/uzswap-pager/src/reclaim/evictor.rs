//! The thread that keeps programs and pool under the limit.
//!
//! ```text
//!  clock hand --> stage a batch --> oldest batch --> store ---------> free its memory
//!  (policy)       (helper, 128+)    (staging)        (copy, compress) (helper)
//! ```
//!
//! A staged page that a thread touches returns without compression. That is its second chance: user
//! space has no accessed bit to read.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::account::Figures;
use crate::address_space::{AddressSpace, Moved, Way, leave_words_of_threads};
use crate::fork::outsiders::without_pages_of;
use crate::fork_group::ForkGroup;
use crate::locks::{Lock, PATIENCE};
use crate::policy::oom::{OomDetector, Outlook, Seen};
use crate::policy::shared_turns::{Pages, SharedTurns};
use crate::policy::victim::{self, Batches, Candidate};
use crate::program::helper::{Heard, Helper, Patience};
use crate::reclaim::batch_store::{BatchStore, relatives};
use crate::reclaim::evictable::Evictable;
use crate::reclaim::idle_rounds::{IdleRounds, Step};
use crate::{Pager, SpaceHandle, lock};
use uzswap::page::PAGE_SIZE;
use uzswap_sys::death_guard::DeathGuard;

/// How long the evictor waits to be woken.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// How long the evictor waits after a round that freed nothing.
const PAUSE: Duration = Duration::from_millis(1);

/// The guard's message if the supervisor is killed.
const SUPERVISOR_GONE: &[u8] =
    b"uzswap: the supervisor is gone; its programs were ended, because it held parts of their \
      memory\n";

pub(crate) struct Evictor {
    pager: Arc<Pager>,
    /// The preload library of this run: all its programs map this file, and no other program does.
    library: File,
    batches: BatchStore,
    /// Rounds since a page was freed.
    idle: IdleRounds,
    /// Pages in the commands of this round, moved or not.
    offered: Cell<usize>,
    pressure: OomDetector,
    evictable: Evictable,
    patience: Lock<Patience, PATIENCE>,
    shared_turns: SharedTurns,
}

impl Evictor {
    /// In programs, `library` is preloaded.
    pub(crate) fn new(pager: Arc<Pager>, library: File) -> Evictor {
        Evictor {
            batches: BatchStore::new(Arc::clone(&pager)),
            pager,
            library,
            idle: IdleRounds::default(),
            offered: Cell::new(0),
            pressure: OomDetector::default(),
            evictable: Evictable::new(Instant::now()),
            patience: Lock::new(Patience::new(Instant::now())),
            shared_turns: SharedTurns::default(),
        }
    }

    pub(crate) fn run(mut self) -> io::Result<()> {
        let pager = Arc::clone(&self.pager);
        let _raised = pager.sched.raised.raise_this();
        while !pager.wakers.is_stopping() {
            pager.free_released();
            if pager.sample() <= pager.account.goal_bytes() {
                self.idle = IdleRounds::default();
                self.pressure.reset();
                pager.wakers.evictor.wait(WAIT_MAX);
                continue;
            }
            self.relieve_pressure();
            // If there can be none, the helpers end their programs.
            let start = || DeathGuard::start(&self.library, SUPERVISOR_GONE);
            let _ = pager.guard.get_or_init(start);
            if self.run_round() > 0 {
                self.idle = IdleRounds::default();
                continue;
            }
            pager.progress.note_ineffective(Instant::now());
            self.end_idle_round();
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Ends a program, or has all pages tried again, if stored and unevictable pages leave too
    /// small a working set.
    fn relieve_pressure(&mut self) {
        let seen = self.seen();
        self.pager.end_unmanaged_over_limit();
        match self.pressure.judge(Instant::now(), seen) {
            Outlook::Open => {}
            Outlook::Retry => self.try_all_again(),
            Outlook::Thrashing => self.pager.end_largest(
                "compressed and unevictable pages leave under 1/8 of --limit as working set",
            ),
        }
        if seen.is_full() {
            self.pager.progress.note_full(Instant::now());
        }
    }

    /// Evicts once, and wakes the fault server if faults wait; how many pages were freed.
    fn run_round(&mut self) -> usize {
        self.offered.set(0);
        let freed = self.evict();
        let Pager { progress, wakers, store, account, .. } = &*self.pager;
        // A fault that waits for headroom also waits for the pages that a helper is about to move.
        if freed > 0 || !self.is_any_awaited() {
            progress.end_round();
        }
        if progress.is_awaited() {
            wakers.server.wake();
        }
        store.recompress_some(account.limit_bytes());
        freed
    }

    /// After a round that freed nothing. At last all pages are tried again; then a program ends.
    fn end_idle_round(&mut self) {
        let is_held_up = || Self::is_any_held_up(&self.pager);
        match self.idle.add(is_held_up, self.offered.get() > 0) {
            Step::GoOn => {}
            Step::RetryAll => self.try_all_again(),
            Step::GiveUp if self.pager.sample() > self.pager.account.limit_bytes() => {
                self.idle = IdleRounds::default();
                self.pager.end_largest(match self.has_no_memory() {
                    true => {
                        "no page can be evicted: the kernel refuses mappings to a program \
                         (ENOMEM; vm.max_map_count, ulimit -v and -d)"
                    }
                    false => "no page can be evicted",
                });
            }
            Step::GiveUp => {}
        }
    }

    fn try_all_again(&mut self) {
        self.evictable.holds_while_tried(Instant::now());
        self.pager.spaces().iter().for_each(|space| lock(space).try_all_again());
    }

    /// Whether the kernel has no memory or mappings for moves of some program's pages.
    fn has_no_memory(&self) -> bool {
        self.pager.spaces().iter().any(|space| lock(space).commands.has_no_memory())
    }

    /// Whether a space may give pages soon that it cannot give now: a thread waits while it changes
    /// mappings, or the helper is late. A stopped process may stay stopped, and does not count.
    fn is_any_held_up(pager: &Pager) -> bool {
        pager.spaces().iter().any(|space| {
            let space = lock(space);
            let is_late = space.commands.helper().is_some_and(|helper| helper.is_late());
            space.uffd.is_changing() || is_late && !space.process.is_stopped()
        })
    }

    fn is_any_awaited(&self) -> bool {
        let is_awaited = |space: &SpaceHandle| {
            lock(space).commands.helper().is_some_and(|helper| helper.is_awaited())
        };
        self.pager.spaces().iter().any(is_awaited)
    }

    fn seen(&mut self) -> Seen {
        let evictable = self.evictable.bytes(Instant::now(), &self.pager.spaces());
        self.pager.account.note_evictable(evictable);
        let Figures { limit, used, evictable, .. } = self.pager.account.figures();
        Seen {
            limit_bytes: limit,
            used_bytes: used,
            leaving_bytes: evictable,
            faults: self.pager.meter.faults(),
        }
    }

    /// Frees some memory; pages that left it.
    fn evict(&mut self) -> usize {
        let mut spaces: Vec<(Candidate, SpaceHandle)> = Vec::new();
        let now = Instant::now();
        for shared in self.pager.spaces() {
            let mut space = lock(&shared);
            let (resident_bytes, members) = (space.seen_bytes(), space.charge.members());
            let age = space.age(now);
            drop(space);
            spaces.push((Candidate { resident_bytes, age, members }, shared));
        }
        victim::sort(&mut spaces);
        let members_max = spaces.iter().map(|(candidate, _)| candidate.members).max().unwrap_or(1);
        if self.shared_turns.begin(members_max, self.pager.store.refaults()) {
            let freed = self.evict_from_some_of(&spaces, true);
            if freed > 0 {
                return freed;
            }
            self.shared_turns.note_no_exclusive();
        }
        self.evict_from_some_of(&spaces, false)
    }

    /// Evicts pages of some spaces until the goal is reached; returns how many. If it
    /// `spares_shared`, it leaves widely shared pages.
    fn evict_from_some_of(
        &mut self,
        spaces: &[(Candidate, SpaceHandle)],
        spares_shared: bool,
    ) -> usize {
        let wanted = victim::pages_wanted(self.pager.account.excess_bytes());
        let mut is_any_late = false;
        let mut freed = 0;
        for (candidate, space) in spaces {
            if candidate.keeps_pages(is_any_late) {
                continue;
            }
            let alone = spares_shared && candidate.shares_widely();
            match self.evict_from(space, candidate.resident_bytes, alone) {
                Ok(pages) => freed += pages,
                Err(error) => is_any_late |= error.kind() == io::ErrorKind::WouldBlock,
            }
            if freed >= wanted {
                break;
            }
            if freed > 0 && self.pager.progress.is_awaited() {
                self.pager.wakers.server.wake();
            }
        }
        freed
    }

    /// Stores the oldest batch of a space with so many resident bytes, and stages pages, until some
    /// memory is free; with `alone`, exclusive pages only. The command that stages pages also frees
    /// the memory of the stored batch: no drained batch waits for the next round.
    fn evict_from(&mut self, space: &SpaceHandle, resident: u64, alone: bool) -> io::Result<usize> {
        let batches = Batches::of(resident);
        let lazily_freed = self.drop_lazily_freed(space)?;
        if lazily_freed > 0 {
            return Ok(lazily_freed);
        }
        let mut has_moved = true;
        loop {
            self.helper(space)?; // it may end at any time
            if Self::is_oldest_due(space, batches, has_moved) {
                self.batches.store_batch(space, AddressSpace::take_oldest_batch)?;
            }
            lock(space).unevictable.try_pinned_again(Instant::now());
            let most = batches.pages_to_stage(lock(space).filled_batches());
            if most > 0 {
                leave_words_of_threads(space);
            }
            let (mut moved, mut freed) =
                self.carry_out(space, |space| space.give_move(most, alone))?;
            if !alone && !self.may_evict_shared(space) {
                moved.shared.clear();
            }
            moved.shared = self.worth_evicting(space, moved.shared);
            let mut moved_pages = moved.pages;
            for is_by_page in [false, true] {
                // The second time, those after a pinned page.
                let pages = std::mem::take(&mut moved.shared);
                let give =
                    |space: &mut AddressSpace| Ok(space.give_move_shared(&pages, is_by_page));
                let (moved_then, dropped) = self.carry_out(space, give)?;
                freed += dropped;
                if moved_then.pages > 0 && !alone {
                    freed += self.empty_all_by(space, give)?;
                }
                moved_pages += moved_then.pages;
                moved.shared = moved_then.shared;
                moved.refused.extend(moved_then.refused);
            }
            // With `alone`, the kernel takes exclusive pages for shared ones.
            let shared = if alone { 0 } else { (moved_pages - moved.pages) as u64 };
            let exclusive = moved_pages as u64 - shared;
            self.shared_turns.note_evicted(Pages { exclusive, shared });
            let (refused_moved, dropped) = self.move_refused(space, moved.refused, alone)?;
            freed += dropped;
            has_moved = moved_pages + refused_moved > 0;
            let space = lock(space);
            let is_at_end = !has_moved && space.filled_batches() == 0 && !space.has_drained_batch();
            if freed > 0 || is_at_end {
                return Ok(freed);
            }
        }
    }

    /// Whether the oldest batch is stored now. One drained batch at a time has memory.
    fn is_oldest_due(space: &SpaceHandle, batches: Batches, has_moved: bool) -> bool {
        let space = lock(space);
        let (filled, has_empty) = (space.filled_batches(), space.has_empty_batch());
        !space.has_drained_batch() && batches.is_oldest_due(filled, has_moved, has_empty)
    }

    /// Has the kernel drop pages that the program has freed lazily; how many those were.
    fn drop_lazily_freed(&self, space: &SpaceHandle) -> io::Result<usize> {
        let since = Instant::now();
        let files = lock(space).start_lazy_scan(since);
        let Some(files) = files else { return Ok(0) };
        let found = files.lazily_freed()?; // nothing is locked: the kernel walks all pages
        let mut is_given = false;
        self.carry_out(space, |space| {
            is_given = space.give_drop_freed(&found, since);
            Ok(is_given)
        })?;
        let bytes: u64 = found.iter().map(|(_, bytes)| bytes).sum();
        Ok(if is_given { bytes as usize / PAGE_SIZE } else { 0 })
    }

    /// Stages pages that the kernel refused to move, by each other way; how many, and how many
    /// pages were freed meanwhile.
    fn move_refused(
        &mut self,
        space: &SpaceHandle,
        mut refused: Vec<(u64, usize)>,
        alone: bool,
    ) -> io::Result<(usize, usize)> {
        let (mut count, mut freed) = (0, 0);
        for way in Way::ALL {
            let is_of_all = way == Way::RemapShared;
            if refused.is_empty() || is_of_all && (alone || !self.may_evict_shared(space)) {
                break;
            }
            let before = if is_of_all { refused.clone() } else { Vec::new() };
            let (moved, dropped) =
                self.carry_out(space, |space| space.give_refused(&mut refused, way))?;
            (count, freed) = (count + moved.pages, freed + dropped);
            if is_of_all && moved.pages > 0 {
                freed += self.empty_all_by(space, |space| {
                    space.give_refused(&mut before.clone(), Way::RemapShared)
                })?;
            }
            refused.extend(moved.refused);
            if way == Way::EXECUTABLE {
                // Shared or pinned: the next way tells.
                refused.extend(moved.shared);
            }
        }
        Ok((count, freed))
    }

    /// Whether shared pages of a space may be evicted.
    fn may_evict_shared(&self, space: &SpaceHandle) -> bool {
        let space = lock(space);
        let is_surveyed = space.charge.group().is_some_and(ForkGroup::is_counted);
        let (is_over, any) = (self.pager.account.is_surely_over(), self.idle.are_many());
        victim::may_evict_shared(space.charge.members(), is_surveyed, is_over, any)
    }

    /// The pages of some runs that no outsider has: what such a process has stays in any case.
    fn worth_evicting(&self, space: &SpaceHandle, runs: Vec<(u64, usize)>) -> Vec<(u64, usize)> {
        let group = lock(space).charge.group().cloned();
        match group.filter(|_| !runs.is_empty()) {
            Some(group) => without_pages_of(&self.pager.outsiders.of(&group), runs),
            None => runs,
        }
    }

    /// The helper of a space, where it is not late with what it was given before.
    fn helper(&self, space: &SpaceHandle) -> io::Result<Arc<Helper>> {
        let helper = lock(space).commands.helper().ok_or(io::ErrorKind::NotFound)?;
        if helper.is_late() {
            self.hear(space, helper.hear(Duration::ZERO))?;
        }
        Ok(helper)
    }

    /// Has the helper of a space do what it is given, if it is given anything: what was moved, and
    /// how many pages were freed.
    fn carry_out(
        &self,
        space: &SpaceHandle,
        give: impl FnOnce(&mut AddressSpace) -> io::Result<bool>,
    ) -> io::Result<(Moved, usize)> {
        let helper = self.helper(space)?;
        if !give(&mut lock(space))? {
            return Ok((Moved::default(), 0));
        }
        let mut patience = self.patience.lock();
        let heard = helper.carry_out(&mut patience, || lock(space).process.is_stopped());
        drop(patience);
        self.hear(space, heard)
    }

    /// Notes what a helper has done.
    fn hear(&self, space: &SpaceHandle, heard: Heard) -> io::Result<(Moved, usize)> {
        match heard {
            Heard::Done => {
                let (moved, freed) = lock(space).dropped();
                if freed > 0 {
                    self.pager.progress.note_freeing(Instant::now());
                }
                self.pager.meter.moved(moved.pages);
                self.offered.set(self.offered.get() + moved.offered);
                if let Some(address) = moved.replaced {
                    self.pager.end(
                        &lock(space),
                        &format!(
                            "the mapping at {address:#x} was replaced while its pages were evicted"
                        ),
                    );
                }
                Ok((moved, freed))
            }
            Heard::Late => Err(io::ErrorKind::WouldBlock.into()),
            Heard::Gone => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Evicts pages from the other members of a group, after a COW copy of each was staged for
    /// `space`; how many pages were freed. Until all members have lost a page it takes more memory
    /// than before, so it gets no second chance. `give` makes the command for each member.
    fn empty_all_by(
        &mut self,
        space: &SpaceHandle,
        give: impl Fn(&mut AddressSpace) -> io::Result<bool>,
    ) -> io::Result<usize> {
        let freed = self.empty_newest(space)?;
        let mut others = 0;
        for relative in relatives(&self.pager, space) {
            leave_words_of_threads(&relative);
            // The connection of a helper reports its end.
            let moved = self.carry_out(&relative, &give);
            let moved = moved.map_or(0, |(moved, _)| moved.pages);
            if moved > 0 {
                // As one less has them, they were in others' count, but for one's.
                others += lock(&relative).charge.count_itself(moved);
                let _ = self.empty_newest(&relative);
            }
        }
        // If not in its own, in that of the first that they have left.
        lock(space).charge.count_itself(others.min(freed));
        Ok(freed)
    }

    /// Stores the batch that was filled last, and gives its memory back.
    fn empty_newest(&mut self, space: &SpaceHandle) -> io::Result<usize> {
        self.batches.store_batch(space, AddressSpace::take_newest_batch)?;
        Ok(self.carry_out(space, |space| space.give_move(0, false))?.1)
    }
}
