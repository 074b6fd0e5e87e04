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
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::address_space::{AddressSpace, Batch, Moved, Way, leave_words_of_threads};
use crate::fork::outsiders::without_pages_of;
use crate::fork_group::ForkGroup;
use crate::page_table::{BATCH_PAGES, Place};
use crate::policy::oom::{OomDetector, Outlook, Seen};
use crate::program::helper::{Heard, Helper, Patience};
use crate::reclaim::evictable::Evictable;
use crate::{NotStored, Pager, SpaceHandle, lock, untouched_pages};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap_sys::death_guard::{DeathGuard, MappedFile};
use uzswap_sys::process_memory::ProcessMemory;

/// Pages that the helper moves at once, and their part of the resident pages. A thread that faults
/// meanwhile waits for the whole batch; larger batches make fewer of these moments.
const LEAVE_MIN: usize = 128;
const LEAVE_MAX: usize = BATCH_PAGES;
const LEAVE_PART: usize = 80;

/// Staged batches of an address space before the oldest is stored, and about their part of its
/// resident pages.
const BATCHES_STAGED_MIN: usize = 2;
const BATCHES_STAGED_MAX: usize = 4;
const ASIDE_PART: usize = 32;

/// After so many rounds without a freed page a process is ended: some 3 s.
const ROUNDS_IN_VAIN: u32 = 2000;

/// After so many rounds without a freed page the evictor takes shared pages without a survey: some
/// 0.3 s.
const UNKNOWN_ROUNDS: u32 = 250;

/// A process of so many bytes or fewer keeps its pages while a larger one cannot give any: it may
/// be the debugger that the larger one waits for.
const KEPT_MAX: u64 = 1 << 20;

/// Members of a group whose stored pages are compared with a new one at most, the oldest first.
const ASKED_RELATIVES: usize = 8;

/// Pages of groups of so many members are evicted without a survey.
const FEW: u32 = 2;

/// Pages of larger groups are evicted in one of so many rounds at most. On its way out each of them
/// takes a copy for each process, and each process restores it alone. Exclusive pages are cheaper,
/// but they may be the ones in use.
const MANY_TURN_MIN: u32 = 4;

/// Rounds without a search for exclusive pages after one that found none: it walks all pages.
const ALONE_PAUSE: u64 = 32;

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
    buffer: Box<[Page]>,
    /// A stored page of another member of the group.
    other: Box<Page>,
    /// Rounds without any page freed, and those before in which some might have been soon.
    in_vain: u32,
    held_up: u32,
    /// Pages in the commands of this round, moved or not.
    offered: Cell<usize>,
    /// Since some were freed last, all pages were tried again.
    has_tried_all: bool,
    pressure: OomDetector,
    evictable: Evictable,
    patience: Mutex<Patience>,
    /// The first round in which it may be what one of many has alone that leaves.
    alone_from: u64,
}

impl Evictor {
    /// In programs, `library` is preloaded.
    pub(crate) fn new(pager: Arc<Pager>, library: File) -> Evictor {
        Evictor {
            pager,
            library,
            buffer: untouched_pages(BATCH_PAGES),
            other: Box::new([0; PAGE_SIZE]),
            in_vain: 0,
            held_up: 0,
            offered: Cell::new(0),
            has_tried_all: false,
            pressure: OomDetector::default(),
            evictable: Evictable::new(Instant::now()),
            patience: Mutex::new(Patience::new(Instant::now())),
            alone_from: 0,
        }
    }

    pub(crate) fn run(mut self) -> io::Result<()> {
        let pager = Arc::clone(&self.pager);
        let _raised = pager.raised.raise_this();
        while !self.pager.stop.load(Ordering::Relaxed) {
            self.pager.free_released();
            if self.pager.sample() <= self.pager.goal_bytes() {
                self.note_freed();
                self.pressure.reset();
                self.pager.wait();
                continue;
            }
            let seen = self.seen();
            self.pager.end_unmanaged_over_limit();
            match self.pressure.look(Instant::now(), seen) {
                Outlook::Open => {}
                Outlook::Retry => self.try_all_again(),
                Outlook::Hopeless => self.pager.end_largest(
                    "compressed and unevictable pages leave under 1/8 of --limit as working set",
                ),
            }
            if seen.is_full() {
                self.pager.note_full();
            }
            // Where there can be none, the helpers end their programs.
            let _ = self.pager.guard.get_or_init(|| {
                DeathGuard::start(&MappedFile::of(&self.library)?, SUPERVISOR_GONE)
            });
            self.offered.set(0);
            let freed = self.evict();
            // A fault that waits for room also waits for the pages that a helper is about to move.
            if freed > 0 || !self.is_any_awaited() {
                self.pager.rounds.fetch_add(1, Ordering::Relaxed);
            }
            if self.pager.is_awaited.load(Ordering::Relaxed) {
                self.pager.wake_server();
            }
            self.recompress();
            if freed > 0 {
                self.note_freed();
                continue;
            }
            self.pager.note_vain();
            match self.held_up < ROUNDS_IN_VAIN && self.is_any_held_up() {
                true => self.held_up += 1,
                false => self.in_vain += 1,
            }
            if self.try_all_in_vain() && self.pager.sample() > self.pager.limit_bytes {
                self.note_freed();
                self.pager.end_largest(match self.has_no_memory() {
                    true => {
                        "no page can be evicted: the kernel refuses mappings to a program \
                         (ENOMEM; vm.max_map_count, ulimit -v and -d)"
                    }
                    false => "no page can be evicted",
                });
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Pages were freed, or none need to be.
    fn note_freed(&mut self) {
        (self.in_vain, self.held_up, self.has_tried_all) = (0, 0, false);
    }

    /// Once no page was freed for long, lets helpers try those again that were found to stay;
    /// `true` where that was in vain, too.
    fn try_all_in_vain(&mut self) -> bool {
        if self.in_vain < ROUNDS_IN_VAIN {
            return false;
        }
        if !self.has_tried_all {
            self.has_tried_all = true;
            self.try_all_again();
            return false;
        }
        self.offered.get() == 0 || self.in_vain >= 2 * ROUNDS_IN_VAIN
    }

    fn try_all_again(&mut self) {
        self.evictable.holds_while_tried(Instant::now());
        self.pager.spaces().iter().for_each(|space| lock(space).try_all_again());
    }

    /// Recompresses some stored pages if the pool is large enough for the second compressor.
    fn recompress(&self) {
        let Pager { density: Some(density), zswap, slots, .. } = &*self.pager else { return };
        density.look(zswap.budget().used_bytes(), slots.used(), self.pager.limit_bytes);
        density.recompress_some(zswap, slots.count());
    }

    /// Whether the kernel has no memory or mappings for moves of some program's pages.
    fn has_no_memory(&self) -> bool {
        self.pager.spaces().iter().any(|space| lock(space).has_no_memory())
    }

    /// Whether a space may give pages soon that it cannot give now: a thread waits while it changes
    /// mappings, or the helper is late. A stopped process may stay stopped, and does not count.
    fn is_any_held_up(&self) -> bool {
        self.pager.spaces().iter().any(|space| {
            let space = lock(space);
            let is_late = space.helper().is_some_and(|helper| helper.is_late());
            space.uffd.is_changing() || is_late && !space.is_stopped()
        })
    }

    fn is_any_awaited(&self) -> bool {
        let is_awaited =
            |space: &SpaceHandle| lock(space).helper().is_some_and(|helper| helper.is_awaited());
        self.pager.spaces().iter().any(is_awaited)
    }

    fn seen(&mut self) -> Seen {
        let evictable = self.evictable.bytes(Instant::now(), &self.pager.spaces());
        self.pager.evictable.store(evictable, Ordering::Relaxed);
        Seen {
            limit_bytes: self.pager.limit_bytes,
            used_bytes: self.pager.sampled.load(Ordering::Relaxed),
            leaving_bytes: self.pager.evictable_bytes(),
            faults: self.pager.meter.faults(),
        }
    }

    /// Frees some memory; pages that left it.
    fn evict(&mut self) -> usize {
        let mut most = 1;
        let mut spaces: Vec<(u64, u64, SpaceHandle)> = Vec::new();
        for shared in self.pager.spaces() {
            let space = lock(&shared);
            let bytes = space.seen_bytes();
            let discounted = space.refaults.discount(bytes);
            most = most.max(space.members());
            drop(space);
            spaces.push((discounted, bytes, shared));
        }
        spaces.sort_by_key(|(discounted, ..)| std::cmp::Reverse(*discounted));
        let round = self.pager.rounds.load(Ordering::Relaxed) + 1; // this one
        let is_turn_of_many = round.is_multiple_of(most.max(MANY_TURN_MIN).into());
        if most > FEW && !is_turn_of_many && round >= self.alone_from {
            let freed = self.evict_from_some_of(&spaces, true);
            if freed > 0 {
                return freed;
            }
            self.alone_from = round + ALONE_PAUSE;
        }
        self.evict_from_some_of(&spaces, false)
    }

    /// Evicts pages of some spaces (discounted size, resident bytes, space) until the goal is
    /// reached; returns how many. Where it `spares_common`, it leaves pages that many processes
    /// share. Each of a hundred small processes gives a few pages, so a sample of all after each
    /// would take longer than the eviction.
    fn evict_from_some_of(
        &mut self,
        spaces: &[(u64, u64, SpaceHandle)],
        spares_common: bool,
    ) -> usize {
        let above =
            self.pager.sampled.load(Ordering::Relaxed).saturating_sub(self.pager.goal_bytes());
        let wanted = ((above / PAGE_SIZE as u64) as usize).clamp(1, LEAVE_MIN);
        let mut is_any_late = false;
        let mut freed = 0;
        for (_, resident, space) in spaces {
            if is_any_late && *resident <= KEPT_MAX {
                continue; // it may be whom that waits for: a debugger
            }
            let alone = spares_common && lock(space).members() > FEW;
            match self.evict_from(space, *resident, alone) {
                Ok(pages) => freed += pages,
                Err(error) => is_any_late |= error.kind() == io::ErrorKind::WouldBlock,
            }
            if freed >= wanted {
                break;
            }
            if freed > 0 && self.pager.is_awaited.load(Ordering::Relaxed) {
                self.pager.wake_server();
            }
        }
        freed
    }

    /// Stages pages of a space with so many resident bytes, and stores the oldest batch, until some
    /// memory is free; with `alone`, exclusive pages only.
    fn evict_from(&mut self, space: &SpaceHandle, resident: u64, alone: bool) -> io::Result<usize> {
        let (leave, batches_staged) = batches(resident);
        let lazily_freed = self.drop_lazily_freed(space)?;
        if lazily_freed > 0 {
            return Ok(lazily_freed);
        }
        loop {
            self.helper(space)?; // it may end at any time
            lock(space).try_pinned_again();
            // A round may have filled two batches, and empties one.
            let is_ahead = lock(space).filled_batches() > batches_staged;
            let most = if is_ahead { 0 } else { leave };
            if most > 0 {
                leave_words_of_threads(space);
            }
            let (mut moved, mut freed) =
                self.carry_out(space, |space| space.give_move(most, alone))?;
            if !alone && !self.may_leave_many(space) {
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
            let (refused_moved, dropped) = self.move_refused(space, moved.refused, alone)?;
            freed += dropped;
            let moved_any = moved_pages + refused_moved > 0;
            let (filled, has_empty) = {
                let space = lock(space);
                (space.filled_batches(), space.has_empty_batch())
            };
            if filled >= batches_staged || (filled > 0 && !(moved_any && has_empty)) {
                self.store_batch(space, AddressSpace::take_oldest_batch)?;
            }
            let is_at_end = !moved_any && !lock(space).has_drained_batch();
            if freed > 0 || is_at_end {
                return Ok(freed);
            }
        }
    }

    /// Has the kernel drop pages that the program has freed lazily; how many those were.
    fn drop_lazily_freed(&self, space: &SpaceHandle) -> io::Result<usize> {
        let since = Instant::now();
        let files = lock(space).start_lazy_look(since);
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
            if refused.is_empty() || is_of_all && (alone || !self.may_leave_many(space)) {
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

    /// Whether shared pages of a space may be evicted. Each process restores such a page for
    /// itself, so a survey must show that usage is above the goal: a growing group seems to take
    /// more than it does.
    fn may_leave_many(&self, space: &SpaceHandle) -> bool {
        let is_known = |group: &ForkGroup| group.members() <= FEW || group.is_counted();
        lock(space).group().is_none_or(is_known)
            || self.pager.is_surely_over.load(Ordering::Relaxed)
            || self.in_vain >= UNKNOWN_ROUNDS
    }

    /// The pages of some runs that no outsider has: what such a process has stays in any case.
    fn worth_evicting(&self, space: &SpaceHandle, runs: Vec<(u64, usize)>) -> Vec<(u64, usize)> {
        let group = lock(space).group().cloned();
        match group.filter(|_| !runs.is_empty()) {
            Some(group) => without_pages_of(&self.pager.outsiders_of(&group), runs),
            None => runs,
        }
    }

    /// The helper of a space, where it is not late with what it was given before.
    fn helper(&self, space: &SpaceHandle) -> io::Result<Arc<Helper>> {
        let helper = lock(space).helper().ok_or(io::ErrorKind::NotFound)?;
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
        let mut patience = self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = helper.carry_out(&mut patience, || lock(space).is_stopped());
        drop(patience);
        self.hear(space, heard)
    }

    /// Notes what a helper has done.
    fn hear(&self, space: &SpaceHandle, heard: Heard) -> io::Result<(Moved, usize)> {
        match heard {
            Heard::Done => {
                let (moved, freed) = lock(space).dropped();
                if freed > 0 {
                    self.pager.note_freeing();
                }
                self.pager.meter.moved(moved.pages);
                self.offered.set(self.offered.get() + moved.offered);
                if let Some(address) = moved.astray {
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
        for relative in self.relatives(space) {
            leave_words_of_threads(&relative);
            // The connection of a helper reports its end.
            let moved = self.carry_out(&relative, &give);
            let moved = moved.map_or(0, |(moved, _)| moved.pages);
            if moved > 0 {
                // As one less has them, they were in others' count, but for one's.
                others += lock(&relative).count_itself(moved);
                let _ = self.empty_newest(&relative);
            }
        }
        // If not in its own, in that of the first that they have left.
        lock(space).count_itself(others.min(freed));
        Ok(freed)
    }

    /// Stores the batch that was filled last, and gives its memory back.
    fn empty_newest(&mut self, space: &SpaceHandle) -> io::Result<usize> {
        self.store_batch(space, AddressSpace::take_newest_batch)?;
        Ok(self.carry_out(space, |space| space.give_move(0, false))?.1)
    }

    /// Spaces that a fork made of the same one.
    fn relatives(&self, space: &SpaceHandle) -> Vec<SpaceHandle> {
        let group = lock(space).group().cloned();
        if group.is_none() {
            return Vec::new();
        }
        let mut all = self.pager.spaces();
        all.retain(|other| !Arc::ptr_eq(other, space) && lock(other).group() == group.as_ref());
        all
    }

    /// Puts a batch's pages into the store.
    fn store_batch(
        &mut self,
        space: &SpaceHandle,
        take: impl FnOnce(&mut AddressSpace) -> Option<Batch>,
    ) -> io::Result<()> {
        let (batch, files) = {
            let mut space = lock(space);
            let files = space.files().ok_or(io::ErrorKind::NotFound)?;
            let Some(batch) = take(&mut space) else { return Ok(()) };
            (batch, files)
        };
        let mut elsewhere = self.kept_elsewhere(space, &batch);
        let mut done = Emptied::default();
        let mut all = self.store(&files.memory, &batch, &mut elsewhere, &mut done);
        elsewhere.into_values().for_each(|slot| self.pager.release(slot));
        // All at once: faults are served under this lock, and whoever waits for it costs them more
        // than what is done under it.
        let mut space = lock(space);
        let mut stored = 0;
        space.fresh.see(done.slots_ahead, done.untouched.len());
        space.drop_untouched(done.untouched);
        for (staged, slot) in done.slots {
            if space.stored(staged, slot) {
                stored += 1;
            } else {
                self.pager.release(slot);
            }
        }
        for (staged, page) in done.unfit {
            match space.give_back(staged, &page) {
                Ok(is_back) => self.pager.charge(usize::from(is_back), 0),
                Err(error) => all = Err(error),
            }
        }
        match all {
            Ok(()) => space.drain_batch(batch.number),
            Err(_) => space.keep_batch(batch.number),
        }
        self.pager.meter.stored(stored);
        all
    }

    /// The slots of pages that relatives have in the store where this batch's pages were: held
    /// until they are released.
    fn kept_elsewhere(&self, space: &SpaceHandle, batch: &Batch) -> BTreeMap<u64, u32> {
        let mut found = BTreeMap::new();
        for relative in self.relatives(space).iter().take(ASKED_RELATIVES) {
            if found.len() == batch.staged.len() {
                break;
            }
            let relative = lock(relative);
            for owner in batch.staged.iter().map(|staged| staged.owner) {
                if let (Place::Stored(slot), Entry::Vacant(entry)) =
                    (relative.table.get(owner).place, found.entry(owner))
                    && !self.pager.is_in_file(slot)
                {
                    self.pager.slots.share(slot);
                    entry.insert(slot);
                }
            }
        }
        found
    }

    /// Stores the pages of a batch. A page that equals the one of a group member (`elsewhere`)
    /// shares its slot.
    fn store(
        &mut self,
        memory: &ProcessMemory,
        batch: &Batch,
        elsewhere: &mut BTreeMap<u64, u32>,
        done: &mut Emptied,
    ) -> io::Result<()> {
        for run in batch.staged.chunk_by(|a, b| a.number + 1 == b.number) {
            let pages = &mut self.buffer[..run.len()];
            memory.read(run[0].address, pages.as_flattened_mut())?;
            for (staged, page) in run.iter().zip(pages.iter()) {
                if staged.ahead && *page == [0; PAGE_SIZE] {
                    done.untouched.push(staged.number);
                    continue;
                }
                done.slots_ahead += usize::from(staged.ahead);
                let is_same = |slot: &u32| {
                    self.pager.load(*slot, &mut self.other).is_ok() && *self.other == *page
                };
                let stored = match elsewhere.get(&staged.owner).copied().filter(is_same) {
                    Some(slot) => Ok(elsewhere.remove(&staged.owner).unwrap_or(slot)),
                    None => self.pager.store(page),
                };
                match stored {
                    Ok(slot) => done.slots.push((staged.number, slot)),
                    Err(NotStored::DoesNotShrink) => {
                        done.unfit.push((staged.number, Box::new(*page)));
                    }
                    Err(NotStored::Failed(why)) => return Err(io::Error::other(why)),
                }
            }
        }
        Ok(())
    }
}

/// The outcome for each page of a batch, by page of staging.
#[derive(Debug, Default)]
struct Emptied {
    /// The slot of each that is in the store.
    slots: Vec<(u32, u32)>,
    /// Pages that did not fit the pool.
    unfit: Vec<(u32, Box<Page>)>,
    /// Pages that the server filled with zeros ahead of a touch, and that are still zeros.
    untouched: Vec<u32>,
    /// How many others were filled so.
    slots_ahead: usize,
}

/// Pages that leave a space at once that has so many bytes resident, in bytes.
pub(crate) fn leaving_bytes(resident_bytes: u64) -> u64 {
    (batches(resident_bytes).0 * PAGE_SIZE) as u64
}

/// Of a space with so many resident bytes: pages a batch, and staged batches before the oldest is
/// stored.
fn batches(resident_bytes: u64) -> (usize, usize) {
    let resident = (resident_bytes / PAGE_SIZE as u64) as usize;
    let leave = (resident / LEAVE_PART).clamp(LEAVE_MIN, LEAVE_MAX);
    (leave, (resident / ASIDE_PART).div_ceil(leave).clamp(BATCHES_STAGED_MIN, BATCHES_STAGED_MAX))
}
