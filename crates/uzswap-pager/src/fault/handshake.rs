//! Helpers that come: each proves whose it is, and gets what it needs.
//!
//! ```text
//!  Connected --- Hello ---> Greeting --- its space is known ---> Welcomed --- Ready ---> Proving
//!      the kernel names         (a forked child that may         its userfaultfd fills a page,
//!      the process              be behind its parent)            which its memory shows then
//! ```
//!
//! Nothing that a program says is believed. The kernel names its process, which must descend from
//! the supervisor. A forked child has a secret that it can have read in its own memory alone
//! ([`FaultServer::identify`]). What is read of a process later is read by descriptors that are
//! bound to the address space whose userfaultfd it is. Any message but the one that is due ends it.

use std::cmp::Ordering;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, getrlimit};

use super::token::Token;
use super::{FaultServer, PAGE};
use crate::address_space::{AddressSpace, STAGING_BYTES};
use crate::admission::lineage::Lineage;
use crate::doctor::RUN_FEATURES;
use crate::program::helper::{Helper, send};
use crate::program::peer::Peer;
use crate::program::polled::Polled;
use crate::program::procfs::ProcessFiles;
use crate::run_dir::random_bytes;
use crate::{lock, too_many_files};
use uzswap::page::PAGE_SIZE;
use uzswap_preload::SharedControl;
use uzswap_preload::protocol::{MESSAGE_BYTES, Message, kind};
use uzswap_sys::foreign::{Foreign, Maker};
use uzswap_sys::userfaultfd::Userfaultfd;
use uzswap_sys::{peer, process};

/// Connections of one process that are not ready, at most: one, and that of the program that it was
/// before an exec.
const PENDING_EACH: usize = 2;

/// Connections of all processes that are not ready, at most. One more replaces the oldest.
const PENDING_MAX: usize = 512;

/// How long one may take until it is ready.
const PENDING_FOR: Duration = Duration::from_secs(10);

/// Descriptors that are kept for children of programs that fork, which cannot be refused.
const SPARE_FILES: u64 = 16;

/// Descriptors that are opened for a helper that is ready: its files of /proc.
const OPENED_FILES: u64 = 6;

/// Where memory of programs may be: the kernel's mmap_min_addr as a rule, and 57 bits of address.
const USER_MEMORY: Range<u64> = 1 << 16..1 << 56;

/// Where helpers come in.
#[derive(Debug)]
pub(super) struct Entrance {
    listener: OwnedFd,
    /// A spare descriptor, closed for a moment if there is none for a connection.
    spare: Mutex<Option<OwnedFd>>,
    lineage: Mutex<Lineage>,
}

/// A helper that is ready, as the server has it.
#[derive(Debug)]
pub(super) struct ReadyHelper {
    pub(super) space: u32,
    /// The end of its door. No other process has the same: a holder could connect it to itself.
    door: Polled<Foreign>,
}

/// A connection, and the process at its other end.
#[derive(Debug)]
pub(super) struct Arrival {
    connection: Foreign,
    peer: Peer,
}

impl Entrance {
    pub(super) fn new(listener: OwnedFd) -> io::Result<Entrance> {
        // Connections have this from it. Before Linux 6.16 they take what nobody asked for.
        let _ = peer::let_descriptors(&listener, false);
        let spare = Mutex::new(Some(listener.try_clone()?));
        let lineage = Mutex::new(Lineage::of(std::process::id()));
        Ok(Entrance { listener, spare, lineage })
    }

    pub(super) fn listener(&self) -> &OwnedFd {
        &self.listener
    }

    /// Accepts a connection by the path of the socket.
    ///
    /// # Errors
    ///
    /// `WouldBlock` where there is none; `PermissionDenied` for a process that is none of the run;
    /// the kernel's else.
    pub(super) fn accept(&self) -> io::Result<Arrival> {
        let accept = || rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC);
        let connection = accept().inspect_err(|error| {
            if *error == rustix::io::Errno::MFILE {
                self.turn_away(accept);
            }
        })?;
        let connection = Foreign::new(connection);
        let peer = Peer::of_connection(&connection)?;
        self.check(Arrival { connection, peer })
    }

    /// Whether somebody who has come is of the run. The walk to the supervisor may take long: the
    /// caller holds no lock.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` where he is not, or where that is not found out.
    pub(super) fn check(&self, arrival: Arrival) -> io::Result<Arrival> {
        let mut lineage = self.lineage.lock().unwrap_or_else(PoisonError::into_inner);
        match lineage.find(&arrival.peer) {
            true => Ok(arrival),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Closes a connection for which there is no descriptor. Epoll would report it for ever.
    fn turn_away(&self, accept: impl FnOnce() -> rustix::io::Result<OwnedFd>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        drop(spare.take());
        drop(accept().map(Foreign::new));
        *spare = self.listener.try_clone().ok();
    }
}

/// A new door: the end that sends, for a helper, and the end that receives.
fn new_door() -> io::Result<(Foreign, Foreign)> {
    let (group, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    let (sends, receives) = rustix::net::socketpair(group, kind, SocketFlags::CLOEXEC, None)?;
    peer::tell_senders(&receives)?;
    Ok((Foreign::new(sends), Foreign::new(receives)))
}

impl ReadyHelper {
    /// Takes a connection that a process sends through this door. The process may be a stranger.
    ///
    /// # Errors
    ///
    /// The kernel's; `InvalidData` where it sends something else.
    fn take_sent(&self) -> io::Result<Arrival> {
        let (message, mut descriptors, sender) = receive(&self.door)?;
        let is_packets = |socket: &Foreign| {
            sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
                && sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET)
        };
        let connection = descriptors.pop().filter(is_packets);
        match (message.kind, connection, sender) {
            (kind::CONNECT, Some(connection), Some(sender)) if descriptors.is_empty() => {
                Ok(Arrival { connection, peer: Peer::new(sender)? })
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A helper that has come, and is not ready.
#[derive(Debug)]
pub(super) struct PendingHelper {
    connection: Polled<Foreign>,
    peer: Arc<Peer>,
    since: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Connected,
    /// It has said hello, and is answered once its space is known and has no pending event.
    Greeting(Message),
    Welcomed(Welcomed),
    /// It has said that it is ready, with a userfaultfd; the proof is due once no mapping changes.
    Proving(Welcomed, Message, Sent),
    /// The kernel has refused it something, with this errno.
    Unable {
        errno: u64,
        is_of_staging: bool,
    },
}

/// The contents of the message of a ready helper.
#[derive(Debug)]
struct Sent {
    userfaultfd: Foreign,
    /// The helper, if it is a process: its program has made the connection.
    helper: Option<Foreign>,
}

/// The state of a welcomed helper.
#[derive(Debug)]
struct Welcomed {
    /// The helper's own memory.
    own: Range<u64>,
    control: SharedControl,
    /// The end of its door that receives.
    door: Foreign,
    is_forked: bool,
    /// The space that its parent's fork made.
    space: Option<u32>,
}

/// Whose space a process is.
enum Identity {
    AddressSpace(u32),
    /// Nothing of its parent was registered when it forked, or it has no parent here.
    New,
    /// The supervisor must read pending events first, of its parent or its own.
    Pending,
}

impl FaultServer {
    /// A process of the run has connected.
    pub(super) fn admit(&mut self, arrival: Arrival) -> io::Result<()> {
        let Arrival { connection, peer } = arrival;
        if !newest_leaves_spare_files(&connection, 0) {
            self.warn_of_files(peer.pid());
            send_away(&connection);
            return Ok(());
        }
        let of_it = |pending: &&PendingHelper| pending.peer.pid() == peer.pid();
        if self.pending.values().filter(of_it).count() >= PENDING_EACH {
            send_away(&connection);
            return Ok(());
        }
        if self.pending.len() >= PENDING_MAX
            && let Some((_, oldest)) = self.pending.pop_first()
        {
            send_away(&oldest.connection);
        }
        let id = self.number();
        let token = Token::Helper(id).data();
        let peer = Arc::new(peer);
        let connection = connection.made_by(Arc::clone(&peer) as Arc<dyn Maker>);
        let connection = Polled::add(&self.epolls, connection, token)?;
        let (since, stage) = (Instant::now(), Stage::Connected);
        let pending = PendingHelper { connection, peer, since, stage };
        self.pending.insert(id, pending);
        Ok(())
    }

    /// Drops helpers that take too long.
    pub(super) fn drop_silent(&mut self) {
        self.pending.retain(|_, pending| {
            let is_silent = pending.since.elapsed() >= PENDING_FOR;
            if is_silent {
                send_away(&pending.connection);
            }
            !is_silent
        });
    }

    /// A process has sent something through a helper's door: what, to be checked once nothing is
    /// locked.
    pub(super) fn knocked(&self, id: u32) -> Option<Arrival> {
        self.helpers.get(&id)?.take_sent().ok()
    }

    /// A helper says something, or is gone.
    pub(super) fn heard(&mut self, id: u32) {
        if let Some(ReadyHelper { space, .. }) = self.helpers.remove(&id) {
            // Nothing is asked for: its connection has ended.
            self.tell_of_core(space);
            self.orphan_space(space);
            return;
        }
        let Some(pending) = self.pending.get_mut(&id) else { return };
        let stage = std::mem::replace(&mut pending.stage, Stage::Connected);
        let heard = receive(&pending.connection).and_then(|(message, descriptors, _)| {
            let by = |fd: Foreign| fd.made_by(Arc::clone(&pending.peer) as Arc<dyn Maker>);
            stage.next(message, descriptors.into_iter().map(by).collect())
        });
        let _ = peer::let_descriptors(&pending.connection, false); // as at the entrance
        match heard {
            Ok(stage) => self.go_on_with(id, stage),
            Err(error) => self.refuse(id, &error),
        }
    }

    /// Whether some helper could not be answered yet.
    pub(super) fn has_unanswered(&self) -> bool {
        let is_unanswered = |pending: &PendingHelper| {
            matches!(pending.stage, Stage::Greeting(_) | Stage::Proving(..))
        };
        self.pending.values().any(is_unanswered)
    }

    /// Goes on with those.
    pub(super) fn go_on_with_unanswered(&mut self) {
        if !self.has_unanswered() {
            return;
        }
        let all: Vec<u32> = self.pending.keys().copied().collect();
        for id in all {
            let Some(pending) = self.pending.get_mut(&id) else { continue };
            let stage = std::mem::replace(&mut pending.stage, Stage::Connected);
            self.go_on_with(id, stage);
        }
    }

    /// Does what a helper's stage asks for.
    fn go_on_with(&mut self, id: u32, stage: Stage) {
        let done = match stage {
            Stage::Greeting(hello) => self.welcome(id, hello).map(Some),
            Stage::Proving(welcomed, ready, sent) => self.meet(id, welcomed, ready, sent),
            Stage::Unable { errno, is_of_staging } => {
                let error = io::Error::from_raw_os_error(errno as i32);
                let pid = self.pending[&id].peer.pid();
                let cause = if is_of_staging {
                    format!(
                        "its limits (ulimit -v, -d) leave no {} MiB of addresses for the helper",
                        STAGING_BYTES >> 20
                    )
                } else {
                    "it cannot create a userfaultfd".to_owned()
                };
                self.pager.warn(&format!("process {pid} is unmanaged: {cause}: {error}"));
                Err(error)
            }
            stage => Ok(Some(stage)),
        };
        match done {
            Ok(Some(stage)) => {
                self.pending.get_mut(&id).expect("it was there").stage = stage;
            }
            Ok(None) => {} // it is ready
            Err(error) => self.refuse(id, &error),
        }
    }

    /// Nothing comes of a helper: it ends, and its program runs on as it would without it.
    fn refuse(&mut self, id: u32, error: &io::Error) {
        let Some(pending) = self.pending.remove(&id) else { return };
        send_away(&pending.connection);
        // Another error, as a rule, is that it has just ended.
        if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            self.warn_of_files(pending.peer.pid());
        }
    }

    fn warn_of_files(&mut self, pid: u32) {
        if !std::mem::replace(&mut self.has_told_of_files, true) {
            let error = io::Error::from_raw_os_error(libc::EMFILE);
            let why = too_many_files(&error);
            self.pager
                .warn(&format!("process {pid} is unmanaged: {why}; later cases are not reported"));
        }
    }

    /// Answers a hello, once it can be.
    fn welcome(&mut self, id: u32, hello: Message) -> io::Result<Stage> {
        let [start, bytes, secret @ ..] = hello.words;
        let own = memory(start, bytes)?;
        let is_forked = hello.kind == kind::HELLO_FORK;
        let identity = if is_forked { self.identify(secret)? } else { Identity::New };
        let space = match identity {
            Identity::AddressSpace(space) => Some(space),
            Identity::New => None,
            Identity::Pending => return Ok(Stage::Greeting(hello)),
        };
        let (control, file) = SharedControl::new()?;
        let (lent_door, door) = new_door()?;
        let connection = &self.pending[&id].connection;
        let welcome = |kind| Message::new(kind, [STAGING_BYTES]);
        let (file, lent) = (file.as_fd(), lent_door.as_fd());
        let _ = peer::let_descriptors(connection, true); // its userfaultfd, with the next message
        match (space, &self.device) {
            (Some(space), _) => {
                let space = lock(&self.spaces[space]);
                let uffd = space.uffd.as_fd();
                send(connection, welcome(kind::WELCOME_FORKED), &[file, lent, uffd])?;
            }
            (None, Some(device)) => {
                let device = device.as_fd();
                send(connection, welcome(kind::WELCOME_DEVICE), &[file, lent, device])?;
            }
            (None, None) => send(connection, welcome(kind::WELCOME_CALL), &[file, lent])?,
        }
        Ok(Stage::Welcomed(Welcomed { own, control, door, is_forked, space }))
    }

    /// The space that a fork made, by the secret that its page of identity was filled with when the
    /// child touched it: nobody else can have read that.
    fn identify(&self, secret: [u64; 2]) -> io::Result<Identity> {
        if secret == [0; 2] {
            return Ok(Identity::New);
        }
        let is_it = |space: &AddressSpace| space.pid.is_none() && space.has_secret(secret);
        match self.spaces.find(is_it) {
            // No page is evicted before all events were read.
            Some((id, _)) if self.pending_forks.has_child(id) => Ok(Identity::Pending),
            Some((id, _)) => Ok(Identity::AddressSpace(id)),
            None => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// A helper is ready, if its process has the memory that its userfaultfd is of; the stage to
    /// stay in where that cannot be asked now.
    fn meet(
        &mut self,
        id: u32,
        welcomed: Welcomed,
        ready: Message,
        sent: Sent,
    ) -> io::Result<Option<Stage>> {
        let [start, bytes, identity, end_word] = ready.words;
        let staging = memory(start, bytes)?;
        if bytes != STAGING_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if identity != 0 {
            memory(identity, PAGE)?;
        }
        let peer = Arc::clone(&self.pending[&id].peer);
        if self.has_space_of(peer.pid()) || self.orphans.has_too_many_of(peer.pid()) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let joins = welcomed.is_forked && welcomed.space.is_none();
        let kin = if joins { self.kin_to_join(peer.pid())? } else { None };
        // Several that were admitted at a time may have taken descriptors since.
        if !leaves_spare_files(OPENED_FILES) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let page = staging.end - PAGE;
        let helper = sent.helper.as_ref().map(|helper| helper.as_fd().try_clone_to_owned());
        let helper = helper.transpose()?.map(Peer::new).transpose()?;
        let (space, files) = match welcomed.space {
            Some(space) => {
                // The process may have ended since its hello.
                let shared = self.spaces.get(space).ok_or(io::ErrorKind::NotFound)?;
                let child = lock(shared);
                if child.pid.is_some() {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
                let files = ProcessFiles::open(&peer, helper.as_ref())?;
                match prove(&child.uffd, &files, page) {
                    Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                        drop(child);
                        return Ok(Some(Stage::Proving(welcomed, ready, sent)));
                    }
                    proved => proved?,
                }
                (space, files)
            }
            None => {
                let uffd = Userfaultfd::from_stranger(sent.userfaultfd)?;
                uffd.api(RUN_FEATURES)?;
                let files = ProcessFiles::open(&peer, helper.as_ref())?;
                prove(&uffd, &files, page)?;
                if self.has_space_with_memory_of(files.thread) {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                (self.spaces.add(&self.pager, AddressSpace::new(uffd, Some(peer.pid())), 0)?, files)
            }
        };
        let pending = self.pending.remove(&id).expect("it was there");
        // From now on the evictor reads its messages. Epoll reports its end in any case.
        let token = Token::Helper(id).data();
        pending.connection.report_end(token)?;
        let door = welcomed.door.made_by(Arc::clone(&peer) as Arc<dyn Maker>);
        let door = Polled::add(&self.epolls, door, Token::Door(id).data())?;
        self.helpers.insert(id, ReadyHelper { space, door });
        self.pager.drop_outsiders(|outsider| outsider.pid() == peer.pid());
        let could_exceed = kin.is_some_and(|kin| self.join(space, &kin));
        let mut child = lock(&self.spaces[space]);
        child.own.insert(staging);
        child.own.insert(welcomed.own);
        child.identify_by(identity);
        let helper = Helper::new(pending.connection, welcomed.control, start);
        let met = child.meet(peer, helper, files);
        child.leave_end_word(end_word);
        if could_exceed {
            let _ = child.register_shared();
        }
        drop(child);
        if met.is_err() && !welcomed.is_forked {
            // The process has ended already, and its connection is closed: no event follows.
            self.helpers.remove(&id);
            self.remove_space(space);
        }
        self.pager.ring();
        Ok(None)
    }
}

impl FaultServer {
    /// Whether a process is managed already: it has one helper, and counts once. The memory of the
    /// program that it was before an exec(2) is gone, or its helper's for a moment.
    fn has_space_of(&self, pid: u32) -> bool {
        let is_of_it = |space: &AddressSpace| {
            space.pid == Some(pid) && !space.is_dead() && space.has_memory_of_its_process()
        };
        self.spaces.find(is_of_it).is_some()
    }

    /// Whether the memory of a thread is managed already: that of a process which was made by
    /// clone(2) with `CLONE_VM` is its parent's.
    fn has_space_with_memory_of(&self, thread: u32) -> bool {
        let has_it = |helper| process::compare_memory(helper, thread).is_ok_and(Ordering::is_eq);
        self.spaces.find(|space| space.thread.is_some_and(has_it)).is_some()
    }
}

/// Whether so many descriptors more leave the spare ones.
pub(super) fn leaves_spare_files(more: u64) -> bool {
    new_descriptor().is_ok_and(|newest| newest_leaves_spare_files(&newest, more))
}

/// Whether a descriptor that was made just now, and so many more, leave the spare ones. The kernel
/// gives the lowest number that is free.
fn newest_leaves_spare_files(newest: &impl AsFd, more: u64) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    newest.as_fd().as_raw_fd() as u64 + more + SPARE_FILES < limit
}

/// One that is closed again at once.
fn new_descriptor() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?)
}

/// Has a helper end, whose program then runs on as it would without it.
fn send_away(connection: &impl AsFd) {
    let _ = send(connection, Message::new(kind::END, []), &[]); // it may have ended
}

impl Stage {
    /// The stage after a message, if that was due.
    fn next(self, message: Message, mut descriptors: Vec<Foreign>) -> io::Result<Stage> {
        let count = descriptors.len();
        match (self, message.kind) {
            (Stage::Connected, kind::HELLO_EXEC | kind::HELLO_FORK) if count == 0 => {
                Ok(Stage::Greeting(message))
            }
            (Stage::Welcomed(welcomed), kind::READY) if (1..=2).contains(&count) => {
                let userfaultfd = descriptors.remove(0);
                let sent = Sent { userfaultfd, helper: descriptors.pop() };
                Ok(Stage::Proving(welcomed, message, sent))
            }
            (Stage::Welcomed(_), kind::CANNOT) if count == 0 => {
                let [errno, is_of_staging, ..] = message.words;
                Ok(Stage::Unable { errno, is_of_staging: is_of_staging == 1 })
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A range of addresses that a program tells: whole pages where memory may be.
fn memory(start: u64, bytes: u64) -> io::Result<Range<u64>> {
    let end = start.checked_add(bytes).filter(|end| *end <= USER_MEMORY.end);
    let end = end.filter(|end| start >= USER_MEMORY.start && start < *end);
    match end {
        Some(end) if start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE) => Ok(start..end),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Proves that a userfaultfd and the files of a process are of one address space. The userfaultfd
/// fills a missing page with a nonce, and the process's memory shows it. That file was opened after
/// the userfaultfd was made, and as the last one. The page is private, before and after.
fn prove(uffd: &Userfaultfd, files: &ProcessFiles, page: u64) -> io::Result<()> {
    let nonce = random_bytes()?;
    let mut content = [0; PAGE_SIZE];
    content[..nonce.len()].copy_from_slice(&nonce);
    uffd.register(page..page + PAGE, true, false)?;
    let filled = uffd.copy(page, &content, true, false);
    filled.map_err(|stopped| io::Error::from_raw_os_error(stopped.errno))?;
    let mut read = [0; 16];
    // Two processes that map it may show the same nonce.
    let is_own = || files.mappings.has_private(page..page + PAGE);
    let was_own = is_own()?;
    files.memory.read(page, &mut read)?;
    if read == nonce && was_own && is_own()? {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

/// Receives a message, its descriptors, and its sender where the kernel names it.
fn receive(socket: &impl AsFd) -> io::Result<(Message, Vec<Foreign>, Option<OwnedFd>)> {
    let mut room = [0; MESSAGE_BYTES];
    let received = peer::receive(socket, &mut room)?;
    let message = Message::from_bytes(&room).filter(|_| received.bytes == MESSAGE_BYTES);
    let message = message.ok_or(io::ErrorKind::InvalidData)?;
    Ok((message, received.descriptors, received.sender))
}
