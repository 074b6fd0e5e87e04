//! The fault server: admits helpers, serves page faults, and follows changes of mappings and forks.

mod fork_event;
mod handshake;
mod orphan;
mod page_fault;
mod worker;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fork_event::PendingFork;
use handshake::{PendingHelper, ReadyHelper};
use orphan::Left;
use page_fault::{Access, FRESH_MAX, RESTORED_MAX, Requester, Resolution, Waiting};
use rustix::event::epoll;
use worker::WorkerState;
pub(crate) use worker::{Workers, count as count_of_workers};

use crate::address_space::{AddressSpace, Change};
use crate::sched::affinity::AffinityGuard;
use crate::store::read_queue::Reader;
use crate::{Pager, SpaceHandle, lock, untouched_pages};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap_sys::process;
use uzswap_sys::userfaultfd::{Event, Message as Told, Userfaultfd};

const PAGE: u64 = PAGE_SIZE as u64;

/// Messages of a userfaultfd that are read at once.
const MESSAGES: usize = 16;

/// The kind of a descriptor in an epoll set.
#[derive(Debug, Clone, Copy)]
enum Token {
    Listener,
    Wake,
    /// Of the end of all.
    Over,
    /// A helper that is not ready yet, or that may end.
    Helper(u32),
    Userfaultfd(u32),
    /// Of a helper.
    Door(u32),
    /// A userfaultfd whose helper has ended.
    Left(u32),
}

impl Token {
    fn data(self) -> epoll::EventData {
        let number = match self {
            Token::Listener => 0,
            Token::Wake => 1,
            Token::Over => 2,
            Token::Helper(id) => u64::from(id) * 4 + 4,
            Token::Userfaultfd(id) => u64::from(id) * 4 + 5,
            Token::Door(id) => u64::from(id) * 4 + 6,
            Token::Left(id) => u64::from(id) * 4 + 7,
        };
        epoll::EventData::new_u64(number)
    }

    fn of(data: epoll::EventData) -> Token {
        match data.u64() {
            0 => Token::Listener,
            1 => Token::Wake,
            2 => Token::Over,
            number => {
                let id = (number / 4).saturating_sub(1) as u32;
                match number % 4 {
                    0 => Token::Helper(id),
                    1 => Token::Userfaultfd(id),
                    2 => Token::Door(id),
                    _ => Token::Left(id),
                }
            }
        }
    }
}

/// All that is known to answer, behind the lock of [`Workers`].
#[derive(Debug)]
pub(crate) struct FaultServer {
    pager: Arc<Pager>,
    /// What each worker waits for.
    epolls: Arc<[OwnedFd]>,
    /// When each worker had a fault last: of those that were started.
    busy: Vec<Instant>,
    device: Option<File>,
    spaces: BTreeMap<u32, SpaceHandle>,
    /// Helpers that are not ready, the oldest first.
    pending: BTreeMap<u32, PendingHelper>,
    /// Helpers of spaces, by the number that they came with: to see that they end.
    helpers: BTreeMap<u32, ReadyHelper>,
    waiting: Vec<Waiting>,
    overtaking: Vec<PendingFork>,
    left: BTreeMap<u32, Left>,
    /// The message about a touch of orphaned memory was printed.
    has_told_of_left: bool,
    /// The message about children that cannot be followed was printed.
    has_told_of_children: bool,
    /// The warning was printed that there are too few descriptors for all programs.
    has_told_of_files: bool,
    /// Some address space may have ranges still to protect.
    protects: bool,
    /// Where there is a file.
    reader: Option<Reader>,
    next: u32,
    /// Pages for which somebody waits, to be woken once nothing is locked.
    to_wake: Vec<(Arc<Userfaultfd>, Range<u64>)>,
    buffer: Box<[Page]>,
    zeros: Box<[Page]>,
}

/// Messages of a userfaultfd that a worker has answered.
struct Answered {
    /// Messages.
    count: usize,
    /// The worker must wake a thread on its own processor.
    drawn: Option<AffinityGuard>,
}

/// Why a userfaultfd could not be read now.
#[derive(Debug, PartialEq, Eq)]
enum Unread {
    /// Its memory is being registered, for longer.
    IsRegistered,
    /// Its helper moves pages, for some microseconds.
    Moves,
    /// It was forked, and events of its parent from before the fork may still be unread.
    Overtakes,
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
        let device = File::options().read(true).write(true).open("/dev/userfaultfd").ok();
        let reader = pager.write_back.as_ref().map(|_| Reader::start(&pager)).transpose()?;
        Ok(FaultServer {
            pager,
            epolls,
            busy: vec![Instant::now()],
            device,
            spaces: BTreeMap::new(),
            pending: BTreeMap::new(),
            helpers: BTreeMap::new(),
            waiting: Vec::new(),
            overtaking: Vec::new(),
            left: BTreeMap::new(),
            has_told_of_left: false,
            has_told_of_children: false,
            has_told_of_files: false,
            protects: false,
            reader,
            next: 0,
            to_wake: Vec::new(),
            buffer: untouched_pages(RESTORED_MAX),
            zeros: untouched_pages(FRESH_MAX),
        })
    }

    /// Whether there is something to do of which no descriptor tells.
    fn is_busy(&self) -> bool {
        let has_young = self.left.values().any(Left::is_young);
        let has_some = !self.waiting.is_empty() || has_young || self.protects;
        has_some || self.has_unanswered()
    }

    /// Goes on with those that were to wait, then with helpers that say something, or are gone:
    /// after the userfaultfds that were readable at the same time.
    fn hear_all(&mut self, helpers: Vec<u32>) {
        self.go_on_with_unanswered();
        helpers.into_iter().for_each(|id| self.heard(id));
    }

    /// Goes on with what could not be done at once.
    fn go_on(&mut self) {
        self.leave_without_helpers();
        self.serve_waiting();
        self.look_at_left();
        if self.protects {
            let is_left = |space: &&SpaceHandle| !lock(space).protect(Duration::ZERO);
            self.protects = self.spaces.values().filter(is_left).count() > 0;
        }
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// A space that a worker is to answer.
    fn add_space(&mut self, space: AddressSpace, worker: usize) -> io::Result<u32> {
        let id = self.number();
        let token = Token::Userfaultfd(id).data();
        if let Err(error) =
            epoll::add(&self.epolls[worker], &space.uffd, token, epoll::EventFlags::IN)
        {
            self.pager.discard_space(space);
            return Err(error.into());
        }
        let space = self.pager.add_space(space);
        self.spaces.insert(id, space);
        Ok(id)
    }

    /// A space is no more: all that was kept for it is freed.
    fn gone(&mut self, id: u32) {
        let Some(shared) = self.spaces.remove(&id) else { return };
        self.pager.remove_space(&shared);
        let mut space = lock(&shared);
        self.take_from_workers(&space.uffd, None);
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
    fn tell_of_core(&self, id: u32) {
        let Some(space) = self.spaces.get(&id).map(lock) else { return };
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
        let is_dead = |space: &AddressSpace| may_be(space) && space.is_dead();
        let dead: Vec<u32> = self
            .spaces
            .iter()
            .filter(|(_, space)| is_dead(&lock(space)))
            .map(|(&id, _)| id)
            .collect();
        for id in dead {
            if lock(&self.spaces[&id]).pid.is_some() {
                self.helpers.retain(|_, helper| helper.space != id);
                self.tell_of_core(id);
            }
            self.gone(id);
        }
    }

    /// Leaves spaces whose helpers have ended though their connections go on: nothing is known of
    /// their memory any more, which counts as that of unmanaged programs.
    fn leave_without_helpers(&mut self) {
        if !self.pager.has_lost_helper.swap(false, Ordering::Relaxed) {
            return;
        }
        let is_left = |space: &SpaceHandle| lock(space).is_ending();
        let left: Vec<u32> =
            self.spaces.iter().filter(|(_, space)| is_left(space)).map(|(&id, _)| id).collect();
        for id in left {
            self.helpers.retain(|_, helper| helper.space != id);
            self.tell_of_core(id);
            self.leave(id);
        }
    }

    /// Looks after all that ends unseen.
    fn look_after_ends(&mut self) {
        self.forget_dead(|_| true);
        self.drop_silent();
        self.look_at_left();
        self.spaces.values().for_each(|space| lock(space).end_helper_left_alone());
    }

    /// Reads some messages and answers them.
    fn answer(
        &mut self,
        desk: &mut WorkerState,
        id: u32,
        shared: &SpaceHandle,
    ) -> Result<Answered, Unread> {
        let reading = shared.try_lock_events().ok_or(Unread::IsRegistered)?;
        self.settle_forks();
        if self.has_pending_events(id) {
            return Err(Unread::Overtakes);
        }
        let mut space = lock(shared);
        if !space.hold_commands() {
            return Err(Unread::Moves);
        }
        #[cfg(debug_assertions)]
        space.audit_markers_at_times();
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
            desk.turns.begin();
        }
        let events = room[..count].iter_mut().filter_map(Told::take);
        let (faults, changes): (Vec<Event>, Vec<Event>) =
            events.partition(|event| matches!(event, Event::PageFault { .. }));
        let changes: Vec<Event> =
            changes.into_iter().filter(|change| !space.take_own_change(change)).collect();
        let has_forked = changes.iter().any(|change| matches!(change, Event::Fork { .. }));
        for range in changes.iter().flat_map(addresses_of) {
            space.take_back(range);
        }
        space.let_commands(!changes.is_empty());
        // The changes come before the faults of the same read: a forked child has the pages that
        // its parent had at the fork, and none that the parent gets for a fault.
        for change in changes {
            self.changed(desk, &mut space, change);
        }
        if count > 0 && space.is_undecided() {
            self.ask_child(&mut space, &faults);
        }
        space.settle();
        space.poison_doubtful();
        let mut drawn = None;
        for fault in faults {
            let Event::PageFault { address, write, wp, thread } = fault else { continue };
            if space.asks_identity(address) {
                let page = space.tell_identity();
                self.to_wake.push((Arc::clone(&space.uffd), page));
                continue;
            }
            if space.awaits_poison(address) {
                let page = address / PAGE * PAGE;
                self.to_wake.push((Arc::clone(&space.uffd), page..page + PAGE));
                continue;
            }
            if space.tells_fork(address) {
                drop(drawn.take());
                // At the fork, both sides keep the processors busy.
                desk.company.leave();
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
            self.see(desk, id, &mut space, thread, start);
            if space.has_all_workers {
                desk.company.keep_several();
            } else {
                drawn = desk.company.keep(known, space.pid, space.thread);
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
            desk.turns.end();
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
        Ok(Answered { count, drawn })
    }

    /// Notes a change of mappings for a program, and for its children whose forks may have come
    /// before or after it.
    fn note_change(&self, space: &mut AddressSpace, change: Change) {
        for child in self.overtaking(space) {
            lock(&child).note_change_of_parent(change.clone());
        }
        space.changed(change);
    }

    /// A program has changed its mappings.
    fn changed(&mut self, desk: &mut WorkerState, space: &mut AddressSpace, event: Event) {
        match event {
            Event::Remove { start, .. } if space.is_staging(start) => {} // no page of the program
            Event::Remove { start, end } => self.note_change(space, Change::Dropped(start..end)),
            Event::Unmap { start, end } => self.note_change(space, Change::Unmapped(start..end)),
            Event::Remap { from, to, len } => {
                self.note_change(space, Change::Moved(from..from + len, to));
            }
            Event::Fork { child } => {
                desk.company.leave();
                self.forked(space, child, desk.number);
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
