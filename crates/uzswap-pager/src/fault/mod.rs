//! The fault server: admits helpers, serves page faults, and follows changes of mappings and forks.

mod entrance;
mod fork_event;
mod handshake;
mod helpers;
mod orphan;
mod page_fault;
mod pending_forks;
mod spaces;
mod token;
mod wake_ups;
mod worker;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use helpers::Helpers;
use orphan::Orphans;
use page_fault::{Access, FRESH_MAX, RESTORED_MAX, Requester, Resolution, Waiting};
use pending_forks::PendingForks;
use rustix::event::epoll;
use spaces::Spaces;
use token::Token;
use wake_ups::WakeUps;
use worker::WorkerState;
pub(crate) use worker::{Workers, count as count_of_workers};

use crate::address_space::AddressSpace;
use crate::sched::affinity::AffinityGuard;
use crate::store::read_queue::Reader;
use crate::{Pager, SpaceHandle, lock, untouched_pages};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap_sys::process;
use uzswap_sys::userfaultfd::{Event, Message as Told};

const PAGE: u64 = PAGE_SIZE as u64;

/// Messages of a userfaultfd that are read at once.
const MESSAGES: usize = 16;

/// All that is known to answer, behind the lock of [`Workers`].
#[derive(Debug)]
pub(crate) struct FaultServer {
    pager: Arc<Pager>,
    spaces: Spaces,
    helpers: Helpers,
    waiting: Vec<Waiting>,
    pending_forks: PendingForks,
    orphans: Orphans,
    /// The message about children that cannot be followed was printed.
    has_told_of_children: bool,
    /// Some address space may have ranges still to protect.
    protects: bool,
    /// Where there is a file.
    reader: Option<Reader>,
    wake_ups: WakeUps,
    buffer: Box<[Page]>,
    zeros: Box<[Page]>,
}

/// Messages of a userfaultfd that a worker has answered.
struct Answered {
    /// Messages.
    count: usize,
    /// The worker must wake a thread on its own processor.
    guard: Option<AffinityGuard>,
}

/// Why a userfaultfd could not be read now.
#[derive(Debug, PartialEq, Eq)]
enum Unread {
    /// Its memory is being registered, for longer.
    IsRegistered,
    /// Its helper moves pages, for some microseconds.
    Moves,
    /// It was forked, and events of its parent from before the fork may still be unread.
    ForkPending,
}

impl FaultServer {
    fn new(
        pager: Arc<Pager>,
        listener: &OwnedFd,
        epolls: Arc<[OwnedFd]>,
    ) -> io::Result<FaultServer> {
        let first = &epolls[0];
        epoll::add(first, listener, Token::Listener.data(), epoll::EventFlags::IN)?;
        epoll::add(first, &pager.wake, Token::Wake.data(), epoll::EventFlags::IN)?;
        for epoll in &*epolls {
            epoll::add(epoll, &pager.over, Token::Over.data(), epoll::EventFlags::IN)?;
        }
        let helpers = Helpers::new(Arc::clone(&pager), Arc::clone(&epolls));
        let orphans = Orphans::new(Arc::clone(&epolls));
        let spaces = Spaces::new(epolls, Arc::clone(&pager.turns));
        let reader = pager.write_back.as_ref().map(|_| Reader::start(&pager)).transpose()?;
        Ok(FaultServer {
            pager,
            spaces,
            helpers,
            waiting: Vec::new(),
            pending_forks: PendingForks::default(),
            orphans,
            has_told_of_children: false,
            protects: false,
            reader,
            wake_ups: WakeUps::default(),
            buffer: untouched_pages(RESTORED_MAX),
            zeros: untouched_pages(FRESH_MAX),
        })
    }

    /// Whether there is something to do of which no descriptor tells.
    fn is_busy(&self) -> bool {
        let has_work = !self.waiting.is_empty() || self.protects;
        has_work || self.orphans.has_young() || self.helpers.has_unanswered()
    }

    /// Goes on with those that were to wait, then with helpers that say something, or are gone:
    /// after the userfaultfds that were readable at the same time.
    fn hear_all(&mut self, helpers: Vec<u32>) {
        self.go_on_with_unanswered();
        helpers.into_iter().for_each(|id| self.hear_helper(id));
    }

    /// Goes on with what could not be done at once.
    fn go_on(&mut self) {
        self.leave_without_helpers();
        self.serve_waiting();
        self.orphans.check();
        if self.protects {
            let protects = |(_, space)| !lock(space).protect(Duration::ZERO);
            self.protects = self.spaces.iter().filter(|space| protects(*space)).count() > 0;
        }
    }

    /// A space is no more: all that was kept for it is freed.
    fn remove_space(&mut self, id: u32) {
        let Some(shared) = self.spaces.remove(id) else { return };
        self.pager.remove_space(&shared);
        let mut space = lock(&shared);
        self.spaces.take_from_workers(&space.uffd, None);
        if let Some(helper) = space.helper() {
            helper.connection().leave(); // the evictor may have the space still
        }
        space.gone = true;
        space.forget_all();
        let (group, lent_bytes) = (space.group.take(), space.lent_bytes());
        drop(space);
        if let Some(group) = group {
            self.lost(&group, lent_bytes);
        }
    }

    /// Where a process was written to a core file, what had left it is missing there: the kernel
    /// does not ask for it.
    fn warn_of_core(&self, id: u32) {
        let Some(space) = self.spaces.get(id).map(lock) else { return };
        let (missing, pid) = (space.table.stored_pages() + space.table.staged_pages(), space.pid);
        drop(space);
        if let (1.., Some(pid)) = (missing, pid)
            && process::has_dumped_core(pid)
        {
            self.pager.warn(&format!(
                "the core file of process {pid} has zeros for {missing} evicted pages"
            ));
        }
    }

    /// Forgets address spaces whose memory is gone. No event reports the end of one without a
    /// helper, or of one whose connection another process has, too.
    fn forget_dead(&mut self, may_be: impl Fn(&AddressSpace) -> bool) {
        for id in self.spaces.ids_of(|space| may_be(space) && space.is_dead()) {
            if lock(&self.spaces[id]).pid.is_some() {
                self.helpers.forget_of_space(id);
                self.warn_of_core(id);
            }
            self.remove_space(id);
        }
    }

    /// Leaves spaces whose helpers have ended though their connections go on: nothing is known of
    /// their memory any more, which counts as that of unmanaged programs.
    fn leave_without_helpers(&mut self) {
        if !self.pager.has_lost_helper.swap(false, Ordering::Relaxed) {
            return;
        }
        for id in self.spaces.ids_of(AddressSpace::is_ending) {
            self.helpers.forget_of_space(id);
            self.warn_of_core(id);
            self.orphan_space(id);
        }
    }

    /// Looks after all that ends unseen.
    fn look_after_ends(&mut self) {
        self.forget_dead(|_| true);
        self.helpers.drop_silent();
        self.orphans.check();
        self.spaces.iter().for_each(|(_, space)| lock(space).end_helper_left_alone());
    }

    /// Reads some messages and answers them.
    fn answer(
        &mut self,
        worker: &mut WorkerState,
        id: u32,
        shared: &SpaceHandle,
    ) -> Result<Answered, Unread> {
        let reading = shared.try_lock_events().ok_or(Unread::IsRegistered)?;
        self.pending_forks.settle(&self.spaces);
        if self.pending_forks.has_child(id) {
            return Err(Unread::ForkPending);
        }
        let mut space = lock(shared);
        if !space.hold_commands() {
            return Err(Unread::Moves);
        }
        let start = Instant::now();
        let mut room = [Told::EMPTY; MESSAGES];
        let mut no_descriptor = None;
        let count = space.uffd.read(&mut room).unwrap_or_else(|error| {
            // The process waits in fork(2): the kernel has no descriptor for its event.
            no_descriptor =
                matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)).then_some(error);
            0
        });
        if count > 0 {
            worker.turns.begin();
        }
        let events = room[..count].iter_mut().filter_map(Told::take);
        let (faults, changes): (Vec<Event>, Vec<Event>) =
            events.partition(|event| matches!(event, Event::PageFault { .. }));
        let changes: Vec<Event> =
            changes.into_iter().filter(|change| !space.take_own_change(change)).collect();
        if count > 0 && space.is_undecided() {
            self.ask_child(&mut space, &faults, &changes);
        }
        if space.has_doubt() {
            self.end_doubt(&mut space, &faults, &changes);
        }
        space.poison_doubtful();
        let has_forked = changes.iter().any(|change| matches!(change, Event::Fork { .. }));
        for range in changes.iter().flat_map(addresses_of) {
            space.take_back(range);
        }
        space.let_commands(!changes.is_empty());
        // The changes come before the faults of the same read: a forked child has the pages that
        // its parent had at the fork, and none that the parent gets for a fault.
        for change in changes {
            self.changed(worker, &mut space, change);
        }
        let mut guard = None;
        for fault in faults {
            let Event::PageFault { address, write, wp, thread } = fault else { continue };
            if space.asks_identity(address) {
                let page = space.tell_identity();
                self.wake_ups.add(&space, page);
                continue;
            }
            if space.awaits_poison(address) {
                let page = address / PAGE * PAGE;
                self.wake_ups.add(&space, page..page + PAGE);
                continue;
            }
            if space.tells_fork(address) {
                drop(guard.take());
                // At the fork, both sides keep the processors busy.
                worker.affinity.leave();
                self.prepare_announced_fork(&mut space, address);
                continue;
            }
            let access = match (wp, write) {
                (true, _) => Access::FirstWrite,
                (false, true) => Access::Write,
                (false, false) => Access::Read,
            };
            if self.waiting.iter().any(|it| it.is(id, thread, address, access)) {
                continue; // a signal has come: the thread tells its fault again, and again
            }
            let known = space.thread_told(thread);
            self.spaces.note_fault(worker, id, &mut space, thread, start);
            if space.has_all_workers {
                worker.affinity.follow_several();
            } else {
                guard = worker.affinity.follow(known, space.pid, space.thread);
            }
            let is_helper = known.is_some() && known == space.thread;
            let by = if is_helper { Requester::Helper } else { Requester::Program };
            let round = self.pager.rounds.load(Ordering::Relaxed);
            let fault = Waiting {
                space: id,
                thread,
                address,
                access,
                since: start,
                round,
                found_no_room: false,
                waits_on: false,
                window: None,
            };
            let served = self.serve(&mut space, &fault, by);
            if served == Resolution::NoRoom {
                self.pager.is_awaited.store(true, Ordering::Relaxed);
                self.pager.ring();
            }
            self.note(fault, served);
        }
        if count < MESSAGES {
            space.settle();
        }
        if count > 0 {
            worker.turns.end();
        }
        drop((reading, space));
        if has_forked {
            // Of a program that forks in a loop, each child has a table of its own.
            self.forget_dead(|space| space.pid.is_none());
            self.keep_to_quota(id);
        }
        if let Some(error) = no_descriptor {
            self.make_way_for_fork(shared, &error);
        }
        Ok(Answered { count, guard })
    }

    /// A program has changed its mappings.
    fn changed(&mut self, worker: &mut WorkerState, space: &mut AddressSpace, event: Event) {
        match event {
            Event::Remove { start, .. } if space.is_staging(start) => {} // no page of the program
            Event::Remove { start, end } => space.removed(start..end),
            Event::Unmap { start, end } => {
                space.unmapped(start..end);
                let children = self.pending_forks.children_of(&space.uffd, &self.spaces);
                children.iter().for_each(|it| lock(it).note_unmapped_by_parent(start..end));
            }
            Event::Remap { from, to, len } => {
                space.moved(from..from + len, to);
                let children = self.pending_forks.children_of(&space.uffd, &self.spaces);
                children.iter().for_each(|it| lock(it).note_moved_by_parent(from..from + len, to));
            }
            Event::Fork { child } => {
                worker.affinity.leave();
                self.forked(space, child, worker.number);
            }
            Event::PageFault { .. } => unreachable!("the caller has dealt with faults"),
        }
    }
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
