//! The thread that answers: programs that come, their faults, and what they do to their mappings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags};

use super::company::Company;
use super::family::Family;
use super::helper::send;
use super::ranges::{Ranges, count};
use super::reader::Reader;
use super::space::{STAGING_BYTES, Space};
use super::table::{Entry, Place, UNKNOWN};
use super::{Pager, SpaceLock, lock, untouched_pages};
use crate::doctor::RUN_FEATURES;
use crate::page::{PAGE_SIZE, Page};
use crate::sys::preload::SharedControl;
use crate::sys::preload::protocol::{MESSAGE_BYTES, Message, kind};
use crate::sys::process;
use crate::sys::userfaultfd::{Event, Message as Told, Stopped, Userfaultfd};

const PAGE: u64 = PAGE_SIZE as u64;

/// Messages of a userfaultfd that are read at once.
const MESSAGES: usize = 16;

/// How often one userfaultfd is read before others are looked at.
const TURNS: usize = 64;

/// Pages that are brought back for one fault at most, where faults come one after the other.
const RESTORED_MAX: usize = 16;

/// Pages of zeros for one fault at most, likewise.
const FRESH_MAX: usize = 64;

/// Pages that may be made a process's own at once, where there is no room: fewer than leave.
const UNASKED_MAX: usize = 8;

/// Rounds of the evictor that a fault waits for room: the second has begun after it. More would not
/// help.
const ROOM_ROUNDS: u64 = 2;

/// How long it waits at most: the evictor may be waiting for a helper, and that for a page itself.
const ROOM_WAIT: Duration = Duration::from_millis(20);

/// What a descriptor in the epoll set is.
#[derive(Debug, Clone, Copy)]
enum Token {
    Listener,
    Wake,
    /// A helper that is not ready yet, or that may end.
    Helper(u32),
    Userfaultfd(u32),
}

impl Token {
    fn data(self) -> epoll::EventData {
        let number = match self {
            Token::Listener => 0,
            Token::Wake => 1,
            Token::Helper(id) => u64::from(id) * 2 + 2,
            Token::Userfaultfd(id) => u64::from(id) * 2 + 3,
        };
        epoll::EventData::new_u64(number)
    }

    fn of(data: epoll::EventData) -> Token {
        match data.u64() {
            0 => Token::Listener,
            1 => Token::Wake,
            number if number % 2 == 0 => Token::Helper(((number - 2) / 2) as u32),
            number => Token::Userfaultfd(((number - 3) / 2) as u32),
        }
    }
}

/// A helper that has come, and has not said that it is ready.
#[derive(Debug)]
struct Newcomer {
    connection: OwnedFd,
    pid: u32,
    own: Range<u64>,
    control: SharedControl,
    forked: bool,
    /// The space that its parent's fork made.
    space: Option<u32>,
}

/// What a thread wants that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    /// To write to a page that may be another process's as well.
    FirstWrite,
}

/// Who waits for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Program,
    /// A thread of the program that has waited for room long enough.
    Waiting,
    /// The evictor waits for the helper: that must not wait for the evictor.
    Helper,
}

/// A fault that waits for room.
#[derive(Debug)]
struct Waiting {
    space: u32,
    /// As the kernel numbers it: see [`Space::thread_told`].
    thread: u32,
    address: u64,
    access: Access,
    since: Instant,
    /// Of the evictor.
    round: u64,
    /// Pages to restore, where its page is being read.
    window: Option<Range<u64>>,
}

impl Waiting {
    fn page(&self) -> u64 {
        self.address / PAGE
    }
}

#[derive(Debug)]
pub(super) struct Server {
    pager: Arc<Pager>,
    listener: OwnedFd,
    epoll: OwnedFd,
    device: Option<File>,
    spaces: BTreeMap<u32, SpaceLock>,
    newcomers: BTreeMap<u32, Newcomer>,
    /// What helpers said that are to be greeted again.
    hellos: Vec<(u32, Message)>,
    /// Helpers of spaces, by the number that they came with: to see that they end.
    helpers: BTreeMap<u32, u32>,
    waiting: Vec<Waiting>,
    /// Spaces whose helper was at work when they were to be read.
    deferred: BTreeSet<u32>,
    /// Some space may have something that is to be protected still.
    protects: bool,
    company: Company,
    /// Where there is a file.
    reader: Option<Reader>,
    next: u32,
    /// Pages of the space that is served, for which somebody waits.
    to_wake: Vec<Range<u64>>,
    buffer: Box<[Page]>,
    zeros: Box<[Page]>,
}

/// Whose space a process is.
enum Found {
    Space(u32),
    None,
    /// It may be one of which something is to be read first.
    Later,
}

/// What became of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Served {
    Done,
    /// There is no room for it now.
    NoRoom,
    /// Its page is being read from the file, and these are to be restored then.
    Later(Range<u64>),
}

impl Server {
    pub(super) fn new(pager: Arc<Pager>, listener: OwnedFd) -> io::Result<Server> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, Token::Listener.data(), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &pager.wake, Token::Wake.data(), epoll::EventFlags::IN)?;
        let device = File::options().read(true).write(true).open("/dev/userfaultfd").ok();
        let company = Company::new(Arc::clone(&pager.turns));
        let reader = pager.write_back.as_ref().map(|_| Reader::start(&pager)).transpose()?;
        Ok(Server {
            pager,
            listener,
            epoll,
            device,
            spaces: BTreeMap::new(),
            newcomers: BTreeMap::new(),
            hellos: Vec::new(),
            helpers: BTreeMap::new(),
            waiting: Vec::new(),
            deferred: BTreeSet::new(),
            protects: false,
            company,
            reader,
            next: 0,
            to_wake: Vec::new(),
            buffer: untouched_pages(RESTORED_MAX),
            zeros: untouched_pages(FRESH_MAX),
        })
    }

    /// Readable while there is something to answer.
    pub(super) fn queue(&self) -> io::Result<OwnedFd> {
        self.epoll.try_clone()
    }

    /// Answers until the pager is told to stop.
    pub(super) fn run(mut self) -> io::Result<()> {
        process::prefer_this_thread();
        self.pager.turns.start();
        let mut events = [const { MaybeUninit::uninit() }; 64];
        let mut looked = Instant::now();
        while !self.pager.stop.load(Ordering::Relaxed) {
            let is_busy = !self.waiting.is_empty()
                || !self.deferred.is_empty()
                || !self.hellos.is_empty()
                || self.protects;
            let timeout = if is_busy { Duration::from_millis(1) } else { Duration::from_secs(1) };
            let timeout = Timespec::try_from(timeout).expect("a short time");
            let (ready, _) = match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
                Ok(ready) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut helpers = Vec::new();
            for event in ready.iter() {
                match Token::of(event.data) {
                    Token::Listener => self.accept(),
                    Token::Wake => {
                        let _ = rustix::io::read(&self.pager.wake, &mut [0; 8]);
                    }
                    // After the userfaultfds: a fork is read before its child says hello.
                    Token::Helper(id) => helpers.push(id),
                    Token::Userfaultfd(id) => self.read(id),
                }
            }
            for (id, message) in std::mem::take(&mut self.hellos) {
                self.hear(id, message, None);
            }
            helpers.into_iter().for_each(|id| self.heard(id));
            for id in std::mem::take(&mut self.deferred) {
                self.read(id);
            }
            self.serve_waiting();
            if self.protects {
                let is_left = |space: &&SpaceLock| !lock(space).protect(Duration::ZERO);
                self.protects = self.spaces.values().filter(is_left).count() > 0;
            }
            if looked.elapsed() >= Duration::from_secs(1) {
                looked = Instant::now();
                self.forget_dead();
            }
        }
        Ok(())
    }

    /// A program has come.
    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC;
        let Ok(connection) = rustix::net::accept_with(&self.listener, flags) else { return };
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&connection) else { return };
        let Ok(control) = SharedControl::new() else { return };
        let id = self.number();
        let token = Token::Helper(id).data();
        if epoll::add(&self.epoll, &connection, token, epoll::EventFlags::IN).is_err() {
            return;
        }
        let pid = peer.pid.as_raw_nonzero().get() as u32; // a process number is not negative
        let newcomer = Newcomer { connection, pid, own: 0..0, control, forked: false, space: None };
        self.newcomers.insert(id, newcomer);
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// A helper says something, or is gone.
    fn heard(&mut self, id: u32) {
        if let Some(&space) = self.helpers.get(&id) {
            // Nothing is asked for: its connection has ended.
            self.helpers.remove(&id);
            self.gone(space);
            return;
        }
        let Some(newcomer) = self.newcomers.get(&id) else { return };
        match receive(&newcomer.connection) {
            Ok((message, fd)) => self.hear(id, message, fd),
            // It has ended.
            Err(_) => drop(self.newcomers.remove(&id)),
        }
    }

    /// A helper has said something.
    fn hear(&mut self, id: u32, message: Message, fd: Option<OwnedFd>) {
        if self.newcomers.contains_key(&id) && self.greet(id, message, fd).is_err() {
            // It runs on without us; its connection closes.
            self.newcomers.remove(&id);
        }
    }

    /// Goes on with a helper that says hello or that it is ready.
    fn greet(&mut self, id: u32, message: Message, fd: Option<OwnedFd>) -> io::Result<()> {
        match message.kind {
            kind::HELLO_EXEC | kind::HELLO_FORK => {
                let own = message.first..message.first.saturating_add(message.second);
                let pid = self.newcomers[&id].pid;
                let space = match message.kind {
                    kind::HELLO_FORK => match self.forked_space(pid, own.start) {
                        Found::Space(space) => Some(space),
                        Found::None => None,
                        Found::Later => {
                            self.hellos.push((id, message));
                            return Ok(());
                        }
                    },
                    _ => None,
                };
                let newcomer = self.newcomers.get_mut(&id).expect("the caller has it");
                newcomer.forked = message.kind == kind::HELLO_FORK;
                newcomer.own = own;
                newcomer.space = space;
                let control = newcomer.control.as_fd();
                let welcome = |kind| Message::new(kind, STAGING_BYTES, 0);
                match (space, &self.device) {
                    (Some(space), _) => {
                        let space = lock(&self.spaces[&space]);
                        let uffd = space.uffd.as_fd();
                        let message = welcome(kind::WELCOME_FORKED);
                        send(&newcomer.connection, message, &[control, uffd])
                    }
                    (None, Some(device)) => {
                        let message = welcome(kind::WELCOME_DEVICE);
                        send(&newcomer.connection, message, &[control, device.as_fd()])
                    }
                    (None, None) => {
                        send(&newcomer.connection, welcome(kind::WELCOME_CALL), &[control])
                    }
                }
            }
            kind::READY if message.second == STAGING_BYTES => {
                let newcomer = self.newcomers.remove(&id).expect("the caller has it");
                let space = match newcomer.space {
                    // It may have ended, and been found dead, since it said hello.
                    Some(space) if !self.spaces.contains_key(&space) => {
                        return Err(io::ErrorKind::NotFound.into());
                    }
                    Some(space) => space,
                    None => {
                        let fd = fd.ok_or(io::ErrorKind::InvalidData)?;
                        let uffd = Userfaultfd::from_fd(fd);
                        uffd.api(RUN_FEATURES)?;
                        self.add_space(Space::new(uffd, Some(newcomer.pid)))?
                    }
                };
                let token = Token::Helper(id).data();
                // From now on the evictor reads what it says; its end is told in any case.
                epoll::modify(
                    &self.epoll,
                    &newcomer.connection,
                    token,
                    epoll::EventFlags::empty(),
                )?;
                self.helpers.insert(id, space);
                let Newcomer { connection, pid, own, control, forked, .. } = newcomer;
                let could_exceed = forked && newcomer.space.is_none() && self.is_child(space, pid);
                let mut child = lock(&self.spaces[&space]);
                let met = child.meet(pid, connection, control, message.first, own);
                if could_exceed {
                    let _ = child.watch_shared();
                }
                drop(child);
                if met.is_err() && !forked {
                    // It has ended already, which nobody tells us: its connection is closed.
                    self.helpers.remove(&id);
                    self.gone(space);
                }
                self.pager.ring();
                met
            }
            kind::CANNOT => {
                let error = io::Error::from_raw_os_error(message.first as i32);
                let pid = self.newcomers[&id].pid;
                self.pager.warn(&format!("process {pid} runs unmanaged: userfaultfd: {error}"));
                Err(error)
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The space that a fork made, of a process that has one page for sure at `address`. Told from
    /// those of its brothers by an effect that only its own has: the mark of write protection.
    fn forked_space(&self, pid: u32, address: u64) -> Found {
        let Ok(pagemap) = File::open(format!("/proc/{pid}/pagemap")) else { return Found::None };
        let is_marked = || {
            let mut entry = [0; 8];
            let read = pagemap.read_exact_at(&mut entry, address / PAGE * 8);
            const UFFD_WP: u64 = 1 << 57;
            read.is_ok() && u64::from_ne_bytes(entry) & UFFD_WP != 0
        };
        let range = address..address + PAGE;
        let mut found = Found::None;
        for (&id, space) in &self.spaces {
            let space = lock(space);
            // In a brother of it the program's memory may be there, which must stay as it is.
            let is_brother = space.watched.within(range.clone()).next().is_some();
            if space.pid.is_some()
                || is_brother
                || space.uffd.register(range.clone(), false, true).is_err()
            {
                continue;
            }
            let protected = space.uffd.write_protect(range.clone());
            let marked = protected.is_ok() && is_marked();
            let _ = space.uffd.write_unprotect(range.clone(), true);
            let _ = space.uffd.unregister(range.clone());
            if marked {
                return Found::Space(id);
            }
            if protected.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN)) {
                found = Found::Later;
            }
        }
        found
    }

    fn add_space(&mut self, space: Space) -> io::Result<u32> {
        let id = self.number();
        let token = Token::Userfaultfd(id).data();
        epoll::add(&self.epoll, &space.uffd, token, epoll::EventFlags::IN)?;
        let space = self.pager.add_space(space);
        self.spaces.insert(id, space);
        Ok(id)
    }

    /// A space is no more: all that was kept for it is freed.
    fn gone(&mut self, id: u32) {
        let Some(shared) = self.spaces.remove(&id) else { return };
        self.pager.remove_space(&shared);
        let mut space = lock(&shared);
        let _ = epoll::delete(&self.epoll, &space.uffd);
        if let Some(helper) = space.helper() {
            // Others may have it still.
            let _ = epoll::delete(&self.epoll, helper.connection());
        }
        space.gone = true;
        let pager = &self.pager;
        space.forget_all(&mut |slot| pager.release(slot));
        let family = space.family.take();
        drop(space);
        self.lost(family);
    }

    /// A space is that of a process that was forked when nothing of its parent was watched. Whether
    /// it is to be watched at once: copies of all that they share would not fit.
    fn is_child(&mut self, id: u32, pid: u32) -> bool {
        let Some(parent) = process::parent_of(pid) else { return false };
        let is_parent = |space: &&SpaceLock| lock(space).pid == Some(parent);
        let Some(parent) = self.spaces.values().find(is_parent).cloned() else { return false };
        let mut parent = lock(&parent);
        let child = Arc::clone(&self.spaces[&id]);
        let stacks = parent.stacks();
        let resident = self.share(&mut parent, &mut lock(&child), None, stacks);
        let used = self.pager.sampled.load(Ordering::Relaxed);
        let could_exceed = parent.protects && used + resident > self.pager.goal_bytes();
        if could_exceed {
            let _ = parent.watch_shared();
        }
        could_exceed
    }

    /// A parent and a child have pages in common: as many bytes as the parent has. What of it is
    /// not `unprotected` was protected before the fork.
    fn share(
        &mut self,
        parent: &mut Space,
        child: &mut Space,
        unprotected: Option<&Ranges>,
        stacks: Option<Ranges>,
    ) -> u64 {
        let family = parent.family.clone().unwrap_or_default();
        let resident = parent.resident_bytes();
        for space in [parent, child] {
            space.joins(family.clone());
            match unprotected {
                Some(rest) => space.protect_rest(rest),
                None => _ = space.protect_all(resident, stacks.clone()),
            }
        }
        self.protects = true;
        resident
    }

    /// One of those that have pages in common is gone: the last one has them alone.
    fn lost(&self, family: Option<Family>) {
        let is_of_it = |space: &&SpaceLock| family.is_some() && lock(space).family == family;
        let mut rest = self.spaces.values().filter(is_of_it);
        if let (Some(last), None) = (rest.next(), rest.next()) {
            lock(last).shares_no_more();
        }
    }

    /// Spaces of processes without a helper end unseen: looks after them.
    fn forget_dead(&mut self) {
        let is_dead = |space: &Space| space.pid.is_none() && space.is_dead();
        let dead: Vec<u32> = self
            .spaces
            .iter()
            .filter(|(_, space)| is_dead(&lock(space)))
            .map(|(&id, _)| id)
            .collect();
        dead.into_iter().for_each(|id| self.gone(id));
    }

    /// Reads what a userfaultfd has, and answers.
    fn read(&mut self, id: u32) {
        let Some(shared) = self.spaces.get(&id).cloned() else { return };
        for turn in 0..TURNS {
            let Some(count) = self.answer(id, &shared) else {
                self.deferred.insert(id);
                return;
            };
            if count == MESSAGES {
                continue; // there may be more
            }
            // Who was woken has run, where that was here, and may have its next fault.
            if count == 0 && turn == 1 {
                self.company.has_missed();
            }
            if count == 0 || !self.company.gives_way() {
                return;
            }
        }
    }

    /// Reads some messages and answers them; how many. `None` where the helper is at work.
    fn answer(&mut self, id: u32, shared: &SpaceLock) -> Option<usize> {
        let mut space = lock(shared);
        if !space.hold_commands() {
            // It moves pages, for some microseconds.
            drop(space);
            std::thread::yield_now();
            space = lock(shared);
            if !space.hold_commands() {
                return None;
            }
        }
        let start = Instant::now();
        let mut room = [Told::EMPTY; MESSAGES];
        let count = space.uffd.read(&mut room).unwrap_or(0);
        if count > 0 {
            self.pager.turns.begin();
        }
        let events = room[..count].iter_mut().filter_map(Told::take);
        let (faults, changes): (Vec<Event>, Vec<Event>) =
            events.partition(|event| matches!(event, Event::PageFault { .. }));
        for range in changes.iter().flat_map(addresses_of) {
            space.take_back(range);
        }
        space.let_commands(!changes.is_empty());
        // These were done before now: a child that was forked has the pages that its parent had
        // then, and none that comes back to the parent for a fault that was told first.
        for change in changes {
            self.changed(&mut space, change);
        }
        let mut drawn = None;
        for fault in faults {
            let Event::PageFault { address, write, wp, thread } = fault else { continue };
            if space.tells_fork(address) {
                drop(drawn.take());
                self.will_fork(&mut space, address);
                continue;
            }
            let known = space.thread_told(thread);
            drawn = self.company.keep(known, space.thread);
            let access = match (wp, write) {
                (true, _) => Access::FirstWrite,
                (false, true) => Access::Write,
                (false, false) => Access::Read,
            };
            let is_helper = known.is_some() && known == space.thread;
            let by = if is_helper { By::Helper } else { By::Program };
            let round = self.pager.rounds.load(Ordering::Relaxed);
            let fault =
                Waiting { space: id, thread, address, access, since: start, round, window: None };
            let served = self.serve(&mut space, &fault, by);
            if served == Served::NoRoom {
                self.pager.is_awaited.store(true, Ordering::Relaxed);
                self.pager.ring();
            }
            self.note(fault, served);
        }
        if count < MESSAGES {
            let pager = &self.pager;
            space.settle(&mut |slot| pager.release(slot));
        }
        if count > 0 {
            self.pager.turns.end();
        }
        self.wake(space);
        drop(drawn);
        Some(count)
    }

    /// Wakes those whose pages were filled, as the last of all: they may run before this goes on.
    fn wake(&mut self, space: MutexGuard<'_, Space>) {
        if self.to_wake.is_empty() {
            return;
        }
        let uffd = Arc::clone(&space.uffd);
        drop(space);
        for range in self.to_wake.drain(..) {
            let _ = uffd.wake(range); // refused where nobody is left
        }
    }

    /// A program has changed its mappings.
    fn changed(&mut self, space: &mut Space, event: Event) {
        let pager = Arc::clone(&self.pager);
        let release = &mut |slot| pager.release(slot);
        match event {
            Event::Remove { start, .. } if space.is_staging(start) => {} // no page of the program
            Event::Remove { start, end } => space.removed(start..end, release),
            Event::Unmap { start, end } => space.unmapped(start..end, release),
            Event::Remap { from, to, len } => space.moved(from..from + len, to, release),
            Event::Fork { child } => {
                self.company.leave();
                let forked = self.fork(space, child);
                if let Err(error) = self.add_space(forked) {
                    self.pager.warn(&format!("a forked process is not watched: {error}"));
                }
            }
            Event::PageFault { .. } => unreachable!("the caller has dealt with faults"),
        }
    }

    /// A program is about to fork, and goes on once it may.
    fn will_fork(&mut self, space: &mut Space, address: u64) {
        // At the fork, both sides keep the processors busy.
        self.company.leave();
        let page = address / PAGE * PAGE..(address / PAGE + 1) * PAGE;
        let is_prepared = space.will_fork(page.clone());
        self.to_wake.push(page);
        if is_prepared {
            // The parent may be gone before its child is known. What is aside still then is told.
            let _ = self.store_aside(space);
        }
    }

    /// Stores what is aside of a space, for whoever will have it; in words why some of it is aside
    /// still.
    fn store_aside(&mut self, space: &mut Space) -> Result<(), String> {
        let content = &mut self.buffer[0];
        let pages = space.pages_aside();
        let mut store = |staged| {
            space.read_staged(staged, content).map_err(|error| error.to_string())?;
            let slot = self.pager.store(content).map_err(|error| error.to_string())?;
            match space.stored(staged, slot) {
                true => self.pager.meter.stored(1),
                false => self.pager.release(slot),
            }
            Ok(())
        };
        pages.into_iter().try_for_each(&mut store)
    }

    /// The space of a child: it has the pages of its parent that are in the store.
    fn fork(&mut self, parent: &mut Space, child: Userfaultfd) -> Space {
        let mut space = Space::new(child, None);
        space.watched = parent.watched.clone();
        let unprotected = parent.take_unprotected();
        // What the kernel does not give to children, and what it gives as zeros.
        let [not_copied, wiped, stacks] = parent.fork_advice().unwrap_or_else(|error| {
            self.pager.fail(&format!("a fork cannot be followed: {error}"));
            [const { Ranges::new() }; 3]
        });
        space.inherit_advice(wiped.clone(), stacks.clone());
        // Both run on by now.
        let stacks = parent.thread.map(|_| stacks);
        self.share(parent, &mut space, unprotected.as_ref(), stacks);
        not_copied.iter().for_each(|range| space.watched.remove(range));
        let is_in =
            |ranges: &Ranges, page| ranges.within(page * PAGE..(page + 1) * PAGE).next().is_some();
        let stored = self.store_aside(parent);
        let mut is_any_aside = false;
        parent.table.for_each(&mut |page, entry| {
            if is_in(&not_copied, page) || is_in(&wiped, page) {
                return;
            }
            match entry.place {
                Place::Stored(slot) => {
                    self.pager.slots.share(slot);
                    space.table.set(page, Entry { place: entry.place, ..UNKNOWN });
                }
                Place::Staged(_) => is_any_aside = true,
                Place::Program => {}
            }
        });
        if let (true, Err(error)) = (is_any_aside, stored) {
            self.pager.fail(&format!("pages of a forked process cannot be kept: {error}"));
        }
        space
    }

    fn serve_waiting(&mut self) {
        for fault in std::mem::take(&mut self.waiting) {
            let Some(shared) = self.spaces.get(&fault.space).cloned() else { continue };
            let rounds = self.pager.rounds.load(Ordering::Relaxed) - fault.round;
            // Of pages in common, what the evictor frees in a round is another's still.
            let may_help = fault.access == Access::FirstWrite || rounds < ROOM_ROUNDS;
            let by = match may_help && fault.since.elapsed() <= ROOM_WAIT {
                true => By::Program,
                false => By::Waiting,
            };
            let mut space = lock(&shared);
            let served = self.serve(&mut space, &fault, by);
            self.wake(space);
            self.note(fault, served);
        }
        self.pager.is_awaited.store(!self.waiting.is_empty(), Ordering::Relaxed);
    }

    /// A fault was served, or waits.
    fn note(&mut self, fault: Waiting, served: Served) {
        match served {
            Served::Done => self.pager.meter.fault(fault.since.elapsed()),
            Served::NoRoom => self.waiting.push(fault),
            Served::Later(window) => {
                self.waiting.push(Waiting { window: Some(window), ..fault });
            }
        }
    }

    /// Gives a program the page that it waits for, and those that it will want next.
    fn serve(&mut self, space: &mut Space, fault: &Waiting, by: By) -> Served {
        let (page, access) = (fault.page(), fault.access);
        if self.pager.has_failed() {
            return Served::Done; // never zeros where something was: it is ended
        }
        let place = space.table.get(page).place;
        // Nothing leaves that is about to fork, and it has all that is protected already.
        let may_wait = access != Access::FirstWrite || !space.is_about_to_fork();
        let room = self.pager.room_pages();
        if by == By::Program && may_wait && room == 0 {
            return Served::NoRoom;
        }
        if access == Access::FirstWrite {
            let freed = space.let_write(page, room.clamp(UNASKED_MAX, FRESH_MAX));
            self.to_wake.push(freed.start * PAGE..freed.end.max(page + 1) * PAGE);
            self.pager.charge(count(&freed), 0);
        } else if place != Place::Program {
            if let Some(window) = self.serve_kept(space, fault) {
                return Served::Later(window);
            }
        } else if by != By::Helper && space.not_commanded(page, page..page + 1).is_empty() {
            // It came back since the fault, and is on its way out again: not fresh. Who waits looks
            // again. The helper itself has not begun to move anything while it waits for a page.
            self.to_wake.push(page * PAGE..(page + 1) * PAGE);
        } else {
            self.serve_fresh(space, fault);
        }
        space.faults += 1;
        Served::Done
    }

    /// A page that was never touched, or dropped: zeros.
    fn serve_fresh(&mut self, space: &mut Space, fault: &Waiting) {
        let page = fault.page();
        let address = page * PAGE;
        if fault.access == Access::Read {
            let filled =
                space.uffd.zeropage(address..address + PAGE, false).map(|()| page..page + 1);
            self.filled(space, fault, filled).for_each(|page| space.zeroed(page));
            return;
        }
        let window = space.streams.window(page, FRESH_MAX);
        let window = space.not_commanded(page, window);
        let wanted = run_around(space, page, window, |place| place == Place::Program);
        let filled = fill(space, wanted.start, &self.zeros[..count(&wanted)]);
        let done = self.filled(space, fault, filled);
        self.pager.charge(count(&done), 0);
        self.pager.meter.fresh(count(&done));
        done.for_each(|page| space.returned(page, 0));
    }

    /// A page that was aside or in the store. Where it is being read: the pages that are to be
    /// restored then, as `window`.
    fn serve_kept(&mut self, space: &mut Space, fault: &Waiting) -> Option<Range<u64>> {
        let page = fault.page();
        let window = fault.window.clone();
        let window = window.unwrap_or_else(|| space.streams.window(page, RESTORED_MAX));
        let wanted = run_around(space, page, window.clone(), |place| place != Place::Program);
        match self.fetch(space, page, count(&(wanted.start..page))) {
            Some(Ok(())) => {}
            None => {
                self.read_ahead(space, wanted);
                return Some(window);
            }
            Some(Err(error)) => {
                let (pid, address) = (space.pid.unwrap_or(0), page * PAGE);
                self.pager.lose(pid, &format!("page {address:#x} of process {pid}: {error}"));
                return None;
            }
        }
        // Others come along if they are at hand: what they lack is told when they are asked for.
        let mut is_ready =
            |at: &u64| matches!(self.fetch(space, *at, count(&(wanted.start..*at))), Some(Ok(())));
        let above = (page + 1..wanted.end).take_while(&mut is_ready).count() as u64;
        let below = (wanted.start..page).rev().take_while(is_ready).count() as u64;
        let ready = page - below..page + 1 + above;
        self.read_ahead(space, wanted.start..ready.start);
        self.read_ahead(space, ready.end..wanted.end);
        let contents = &self.buffer[count(&(wanted.start..ready.start))..][..count(&ready)];
        let filled = fill(space, ready.start, contents);
        let done = self.filled(space, fault, filled);
        let (mut restored, mut rescued) = (0, 0);
        for at in done {
            match space.table.get(at).place {
                Place::Stored(slot) => {
                    // Others came along, and were not asked for.
                    let heat = if at == page { self.pager.heat_of_restored(slot) } else { 0 };
                    space.returned(at, heat);
                    self.pager.release(slot);
                    restored += 1;
                }
                _ => {
                    space.returned(at, 0);
                    rescued += 1;
                }
            }
        }
        self.pager.charge(restored + rescued, restored);
        self.pager.meter.restored(restored, rescued);
        None
    }

    /// Gets the content of a page that is aside or in the store, into the buffer; in words why that
    /// cannot be. `None` where it is read from the file first.
    fn fetch(&mut self, space: &Space, page: u64, at: usize) -> Option<Result<(), String>> {
        let content = &mut self.buffer[at];
        match space.table.get(page).place {
            Place::Staged(staged) => {
                Some(space.read_staged(staged, content).map_err(|error| error.to_string()))
            }
            Place::Stored(slot) => match &self.reader {
                Some(reader) if self.pager.is_in_file(slot) => reader.take(slot, content),
                _ => Some(self.pager.load(slot, content)),
            },
            Place::Program => unreachable!("the run has none"),
        }
    }

    /// Has pages read that are in the file, and will be asked for next.
    fn read_ahead(&self, space: &Space, pages: Range<u64>) {
        let Some(reader) = &self.reader else { return };
        for page in pages {
            if let Place::Stored(slot) = space.table.get(page).place
                && self.pager.is_in_file(slot)
            {
                reader.want(slot);
            }
        }
    }

    /// Some pages were filled for a fault, or none: those.
    fn filled(
        &mut self,
        space: &mut Space,
        fault: &Waiting,
        filled: Result<Range<u64>, Stopped>,
    ) -> Range<u64> {
        let page = fault.page();
        match filled {
            Ok(done) => {
                self.to_wake.push(done.start * PAGE..done.end * PAGE);
                if !done.contains(&page) {
                    // It asks again, for this page alone.
                    self.to_wake.push(page * PAGE..(page + 1) * PAGE);
                }
                done
            }
            Err(stopped) => {
                self.not_filled(space, fault, stopped);
                page..page
            }
        }
    }

    /// A page could not be filled.
    fn not_filled(&mut self, space: &mut Space, fault: &Waiting, stopped: Stopped) {
        let address = fault.page() * PAGE;
        if stopped.errno == libc::EAGAIN {
            let is_growth = space.leave_growth_to_kernel(address, fault.thread);
            if !is_growth && self.company.has_one_processor() {
                // For who changes the mappings. Where there are more, that runs anyway.
                std::thread::yield_now();
            }
        }
        match stopped.errno {
            // Its memory is gone.
            libc::ESRCH => {}
            // It is there already, or no longer mapped, or something has happened that is to be
            // read first: who waits looks again.
            libc::EEXIST | libc::ENOENT | libc::EAGAIN | libc::EINVAL => {
                self.to_wake.push(address..address + PAGE);
            }
            errno => {
                let pid = space.pid.unwrap_or(0);
                let error = io::Error::from_raw_os_error(errno);
                self.pager.lose(pid, &format!("page {address:#x} of process {pid}: {error}"));
            }
        }
    }
}

/// Addresses that mean something else after this.
fn addresses_of(change: &Event) -> [Range<u64>; 2] {
    match *change {
        Event::Remove { start, end } | Event::Unmap { start, end } => [start..end, 0..0],
        Event::Remap { from, to, len } => [from..from + len, to..to + len],
        // What is the process's alone is not what it was.
        Event::Fork { .. } => [0..u64::MAX, 0..0],
        Event::PageFault { .. } => [0..0, 0..0],
    }
}

/// Copies contents to missing pages from `first` on; those that were filled.
fn fill(space: &Space, first: u64, contents: &[Page]) -> Result<Range<u64>, Stopped> {
    match space.uffd.copy(first * PAGE, contents.as_flattened(), false, false) {
        Ok(()) => Ok(first..first + contents.len() as u64),
        Err(stopped) if stopped.done < PAGE => Err(stopped),
        Err(stopped) => Ok(first..first + stopped.done / PAGE),
    }
}

/// The pages of a window around `page`, itself in any case, that are watched and in a place like
/// this.
fn run_around(
    space: &Space,
    page: u64,
    window: Range<u64>,
    like: impl Fn(Place) -> bool,
) -> Range<u64> {
    let watched = space.watched_around(page, window);
    let is_like = |page: &u64| like(space.table.get(*page).place);
    let below = (watched.start..page).rev().take_while(is_like).count() as u64;
    let above = (page + 1..watched.end).take_while(is_like).count() as u64;
    page - below..page + 1 + above
}

/// Receives a message, and a descriptor if one came along.
fn receive(connection: &OwnedFd) -> io::Result<(Message, Option<OwnedFd>)> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut extra = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received =
        rustix::net::recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut extra, flags)?;
    let fd = extra.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let message = Message::from_bytes(&bytes[..received.bytes]);
    message.map(|message| (message, fd)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
