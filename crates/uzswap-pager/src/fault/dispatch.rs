//! Dispatch: one read of a userfaultfd, answered in an order that each rule needs.
//!
//! A worker holds the server's lock, the space's event lock and the space's lock:
//!
//! 1. While memory is being registered, while the helper moves pages, or while events of the
//!    parent from before a fork may be unread, nothing is read ([`Unread`]).
//! 2. The helper starts no command from here on, and the worker reads.
//! 3. Addresses that changed leave the command of the helper, which may then go on.
//! 4. Changes are noted before faults. A forked child has the pages that its parent had at the
//!    fork, and none that a fault of the same read brings the parent.
//! 5. A new child's memory is decided before the child gets an answer. If no event is pending, the
//!    layout applies the changes.
//! 6. The worker releases the locks of the server and of the events, and serves the faults
//!    ([`PageServer`](super::page_fault::PageServer)). A change that another worker reads meanwhile
//!    is noted with the space locked, between two faults or while a page is decompressed.
//! 7. Threads wake up once nothing is locked.
//!
//! `docs/explanation/run-design.md` has the reasons.

use std::io;
use std::ops::Range;
use std::time::Instant;

use super::fork_event::{self, EndedMember};
use super::page_fault::Fault;
use super::touch::{Access, Touch};
use super::worker_state::WorkerState;
use super::{FaultServer, PAGE};
use crate::address_space::handle::Locked;
use crate::address_space::{AddressSpace, Change};
use crate::sched::affinity::AffinityGuard;
use crate::{SpaceHandle, lock, try_lock};
use uzswap_sys::userfaultfd::{Event, Message};

/// Messages of a userfaultfd that are read at once.
pub(super) const MESSAGES: usize = 16;

/// Messages of a userfaultfd that a worker has read, and whose changes are noted.
pub(super) struct Dispatched<'a> {
    pub(super) count: usize,
    pub(super) space: Locked<'a>,
    /// Faults to serve.
    pub(super) faults: Vec<Fault>,
    /// The worker must wake a thread on its own processor.
    pub(super) guard: Option<AffinityGuard>,
    pub(super) rest: Rest,
}

/// Work that is left once the space is unlocked: it locks others.
#[derive(Default)]
pub(super) struct Rest {
    /// Memberships of children that cannot be followed.
    ended: Vec<EndedMember>,
    has_forked: bool,
    /// The process waits in fork(2): the kernel has no descriptor for its event.
    no_descriptor: Option<io::Error>,
}

impl Rest {
    pub(super) fn is_any(&self) -> bool {
        self.has_forked || self.no_descriptor.is_some() || !self.ended.is_empty()
    }
}

/// Why a userfaultfd could not be read now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// Its memory is being registered, for longer.
    IsRegistered,
    /// Its helper moves pages, for some microseconds.
    Moves,
    /// Another thread has locked the space: the server's lock is free while the worker waits.
    IsLocked,
    /// Events of its parent from before the fork may still be unread.
    ForkPending,
}

/// Messages of one read.
struct Messages {
    /// Also of those that the supervisor has caused.
    count: usize,
    faults: Vec<Touch>,
    changes: Vec<Event>,
    no_descriptor: Option<io::Error>,
}

impl Messages {
    fn read(space: &mut AddressSpace) -> Messages {
        let mut room = [Message::EMPTY; MESSAGES];
        let mut no_descriptor = None;
        space.note_forking_threads();
        let count = space.uffd.read(&mut room).unwrap_or_else(|error| {
            no_descriptor =
                matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)).then_some(error);
            0
        });
        let (mut faults, mut changes) = (Vec::new(), Vec::new());
        for event in room[..count].iter_mut().filter_map(Message::take) {
            match event {
                Event::PageFault { address, write, wp, thread } => {
                    let (access, poisonings) = (Access::of(write, wp), space.layout.poisonings());
                    faults.push(Touch { thread, address, access, poisonings });
                }
                change if space.commands.take_own_change(&change) => {}
                change => changes.push(change),
            }
        }
        Messages { count, faults, changes, no_descriptor }
    }
}

impl FaultServer {
    /// Reads some messages, and does with them all that needs the server: steps 1 to 5 of this
    /// module's doc.
    pub(super) fn dispatch<'a>(
        &mut self,
        worker: &mut WorkerState,
        id: u32,
        shared: &'a SpaceHandle,
    ) -> Result<Dispatched<'a>, Unread> {
        let _events = shared.try_lock_events().ok_or(Unread::IsRegistered)?;
        self.pending_forks.settle(&self.spaces);
        if self.pending_forks.has_child(id) {
            return Err(Unread::ForkPending);
        }
        let mut space = try_lock(shared).ok_or(Unread::IsLocked)?;
        if !space.hold_commands() {
            return Err(Unread::Moves);
        }
        #[cfg(debug_assertions)]
        space.audit_at_times();
        let since = Instant::now();
        let Messages { count, faults, changes, no_descriptor } = Messages::read(&mut space);
        if count > 0 {
            worker.turns.begin();
        }
        let has_forked = changes.iter().any(|change| matches!(change, Event::Fork { .. }));
        release_commands(&mut space, &changes);
        let mut ended = Vec::new();
        for change in changes {
            ended.extend(self.apply(worker, &mut space, change));
        }
        if count > 0 {
            fork_event::decide_child(&mut space, &faults);
        }
        space.poison_doubtful();
        let (faults, guard) = self.sort_faults(worker, id, &mut space, faults, since);
        if count < MESSAGES {
            space.settle();
        }
        let rest = Rest { ended, has_forked, no_descriptor };
        Ok(Dispatched { count, space, faults, guard, rest })
    }

    /// Does the work that is left of a read. The caller has no space locked.
    pub(super) fn finish(&mut self, id: u32, shared: &SpaceHandle, rest: Rest) {
        rest.ended.into_iter().for_each(|member| self.bequeath(Some(member)));
        if rest.has_forked {
            // Of a program that forks in a loop, each child has a table of its own.
            self.forget_dead(|space| space.process.pid().is_none());
            self.keep_to_quota(id);
        }
        if let Some(error) = rest.no_descriptor {
            self.make_way_for_fork(shared, &error);
        }
    }

    /// Applies a change of mappings, or a fork. Returns the membership of a child that cannot be
    /// followed.
    fn apply(
        &mut self,
        worker: &mut WorkerState,
        space: &mut AddressSpace,
        change: Event,
    ) -> Option<EndedMember> {
        match change {
            Event::Remove { start, .. } if space.is_staging(start) => {} // no page of the program
            Event::Remove { start, end } => self.note_change(space, Change::Dropped(start..end)),
            Event::Unmap { start, end } => self.note_change(space, Change::Unmapped(start..end)),
            Event::Remap { from, to, len } => {
                self.note_change(space, Change::Moved(from..from + len, to));
            }
            Event::Fork { child } => {
                worker.affinity.leave();
                return self.add_child(space, child, worker.number);
            }
            Event::PageFault { .. } => unreachable!("a fault is no change"),
        }
        None
    }

    /// Notes a change of mappings, also for children whose forks may have come after it.
    ///
    /// Locks two address spaces, the parent's first: see [`Spaces`](super::spaces::Spaces).
    fn note_change(&self, space: &mut AddressSpace, change: Change) {
        for child in self.pending_forks.children_of(&space.uffd, &self.spaces) {
            lock(&child).layout.note_change_of_parent(change.clone());
        }
        space.changed(change);
    }

    /// Answers touches that ask for no page of the program, and notes the others: the faults to
    /// serve.
    fn sort_faults(
        &mut self,
        worker: &mut WorkerState,
        id: u32,
        space: &mut AddressSpace,
        touches: Vec<Touch>,
        since: Instant,
    ) -> (Vec<Fault>, Option<AffinityGuard>) {
        let (mut faults, mut guard) = (Vec::with_capacity(touches.len()), None);
        for touch in touches {
            let wake_ups = &mut worker.pages.wake_ups;
            if let Some(page) = page_without_content(space, touch.address) {
                wake_ups.add(space, page);
                continue;
            }
            if space.tells_fork(touch.address) {
                drop(guard.take());
                // At the fork, both sides keep the processors busy.
                worker.affinity.leave();
                self.prepare_announced_fork(space, touch.address, wake_ups);
                continue;
            }
            if self.waiting.has(id, &touch) {
                continue;
            }
            let known = space.process.reported_thread(touch.thread);
            self.spaces.note_fault(worker, id, space, touch.thread, since);
            if space.faults.has_all_workers() {
                worker.affinity.follow_several();
            } else {
                guard = worker.affinity.follow(known, space.process.pid(), space.process.thread());
            }
            let is_helper = known.is_some() && known == space.process.thread();
            faults.push(Fault::new(id, touch, is_helper, since, self.pager.progress.rounds()));
        }
        (faults, guard)
    }
}

/// The page of a touch that asks for no page of the program: it was filled or poisoned already.
fn page_without_content(space: &mut AddressSpace, address: u64) -> Option<Range<u64>> {
    if space.asks_identity(address) {
        return Some(space.tell_identity());
    }
    let page = address / PAGE * PAGE;
    space.layout.awaits_poison(address).then_some(page..page + PAGE)
}

/// Takes the addresses that changed out of the helper's command, and lets the helper go on.
fn release_commands(space: &mut AddressSpace, changes: &[Event]) {
    for range in changes.iter().flat_map(addresses_of) {
        space.commands.take_back(range);
    }
    space.commands.let_go(!changes.is_empty());
}

/// Addresses that mean something else after this.
fn addresses_of(change: &Event) -> [Range<u64>; 2] {
    match *change {
        Event::Remove { start, end } | Event::Unmap { start, end } => [start..end, 0..0],
        Event::Remap { from, to, len } => [from..from + len, to..to + len],
        // A fork changes which pages are exclusive.
        Event::Fork { .. } => [0..u64::MAX, 0..0],
        Event::PageFault { .. } => [0..0, 0..0],
    }
}
