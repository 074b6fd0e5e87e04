//! The helpers of the run: those that are not ready yet, and the one of each managed process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::entrance::{Arrival, newest_leaves_spare_files};
use super::token::Token;
use crate::program::helper::send;
use crate::program::peer::Peer;
use crate::program::polled::Polled;
use crate::{Pager, too_many_files};
use uzswap_preload::SharedControl;
use uzswap_preload::protocol::{MESSAGE_BYTES, Message, kind};
use uzswap_sys::foreign::{Foreign, Maker};
use uzswap_sys::peer;

/// Connections of one process that are not ready, at most: one, and that of the program that it was
/// before an exec.
const PENDING_EACH: usize = 2;

/// Connections of all processes that are not ready, at most. One more replaces the oldest.
const PENDING_MAX: usize = 512;

/// How long one may take until it is ready.
const PENDING_FOR: Duration = Duration::from_secs(10);

/// Helpers by number: connections count from one.
#[derive(Debug)]
pub(super) struct Helpers {
    pager: Arc<Pager>,
    epolls: Arc<[OwnedFd]>,
    /// The device `/dev/userfaultfd`, for programs that may not call userfaultfd(2).
    device: Option<File>,
    /// Helpers that are not ready, the oldest first.
    pending: BTreeMap<u32, PendingHelper>,
    /// Helpers of spaces.
    ready: BTreeMap<u32, ReadyHelper>,
    last_id: u32,
    /// The warning was printed that there are too few descriptors for all programs.
    has_warned_of_files: bool,
}

/// A helper that is ready, as the server has it.
#[derive(Debug)]
struct ReadyHelper {
    space: u32,
    pid: u32,
    /// The end of its channel. No other process has the same: a holder could connect it to itself.
    channel: Polled<Foreign>,
}

/// A helper that has come, and is not ready.
#[derive(Debug)]
struct PendingHelper {
    connection: Polled<Foreign>,
    peer: Arc<Peer>,
    since: Instant,
    stage: Stage,
}

#[derive(Debug)]
pub(super) enum Stage {
    Connected,
    /// The helper has said hello, and is answered once its space is known and has no pending event.
    Greeting(Message),
    Welcomed(Welcomed),
    /// The helper is ready and has sent a userfaultfd; the proof is due once no mapping changes.
    Proving(Welcomed, Message, Sent),
    /// The kernel has refused it something, with this errno.
    Unable {
        errno: u64,
        is_of_staging: bool,
    },
}

/// The contents of the message of a ready helper.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) userfaultfd: Foreign,
    /// The helper, if it is a process: its program has made the connection.
    pub(super) helper: Option<Foreign>,
}

/// The state of a welcomed helper.
#[derive(Debug)]
pub(super) struct Welcomed {
    /// The helper's own memory.
    pub(super) own: Range<u64>,
    pub(super) control: SharedControl,
    /// The end of its channel that receives.
    pub(super) channel: Foreign,
    pub(super) is_forked: bool,
    /// The space that its parent's fork made.
    pub(super) space: Option<u32>,
}

impl Helpers {
    pub(super) fn new(pager: Arc<Pager>, epolls: Arc<[OwnedFd]>) -> Helpers {
        Helpers {
            pager,
            epolls,
            device: File::options().read(true).write(true).open("/dev/userfaultfd").ok(),
            pending: BTreeMap::new(),
            ready: BTreeMap::new(),
            last_id: 0,
            has_warned_of_files: false,
        }
    }

    pub(super) fn device(&self) -> Option<&File> {
        self.device.as_ref()
    }

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
        self.last_id += 1;
        let id = self.last_id;
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

    /// Takes the connection that a process has sent through a helper's channel. The caller checks
    /// it once nothing is locked.
    pub(super) fn take_sent(&self, id: u32) -> Option<Arrival> {
        self.ready.get(&id)?.take_sent().ok()
    }

    /// Whether some helper could not be answered yet.
    pub(super) fn has_unanswered(&self) -> bool {
        let is_unanswered = |pending: &PendingHelper| {
            matches!(pending.stage, Stage::Greeting(_) | Stage::Proving(..))
        };
        self.pending.values().any(is_unanswered)
    }

    /// The helpers that are not ready.
    pub(super) fn pending_ids(&self) -> Vec<u32> {
        self.pending.keys().copied().collect()
    }

    /// Takes the stage of a pending helper. The caller sets the next one.
    pub(super) fn take_stage(&mut self, id: u32) -> Option<Stage> {
        let pending = self.pending.get_mut(&id)?;
        Some(std::mem::replace(&mut pending.stage, Stage::Connected))
    }

    pub(super) fn set_stage(&mut self, id: u32, stage: Stage) {
        self.pending.get_mut(&id).expect("the caller goes on with it").stage = stage;
    }

    /// The connection of a pending helper.
    pub(super) fn connection(&self, id: u32) -> &Polled<Foreign> {
        &self.pending[&id].connection
    }

    /// The process of a pending helper.
    pub(super) fn peer(&self, id: u32) -> &Arc<Peer> {
        &self.pending[&id].peer
    }

    /// Receives a message of a pending helper, and returns the stage that follows.
    ///
    /// # Errors
    ///
    /// The kernel's; `InvalidData` for a message that is not due.
    pub(super) fn receive(&mut self, id: u32) -> Option<io::Result<Stage>> {
        let stage = self.take_stage(id)?;
        let pending = &self.pending[&id];
        let next = receive(&pending.connection).and_then(|(message, descriptors, _)| {
            let by = |fd: Foreign| fd.made_by(Arc::clone(&pending.peer) as Arc<dyn Maker>);
            stage.next(message, descriptors.into_iter().map(by).collect())
        });
        let _ = peer::let_descriptors(&pending.connection, false); // as at the entrance
        Some(next)
    }

    /// A pending helper is that of a space from now on; returns its connection. The evictor reads
    /// its messages, and epoll reports its end.
    ///
    /// # Errors
    ///
    /// The kernel's, where it has no memory for the epoll set. The helper is no longer pending.
    pub(super) fn make_ready(
        &mut self,
        id: u32,
        space: u32,
        channel: Foreign,
    ) -> io::Result<Polled<Foreign>> {
        let pending = self.pending.remove(&id).expect("the caller goes on with it");
        let PendingHelper { connection, peer, .. } = pending;
        connection.report_end(Token::Helper(id).data())?;
        let pid = peer.pid();
        let channel = channel.made_by(peer as Arc<dyn Maker>);
        let channel = Polled::add(&self.epolls, channel, Token::Channel(id).data())?;
        self.ready.insert(id, ReadyHelper { space, pid, channel });
        Ok(connection)
    }

    /// Whether a process has a helper that is ready.
    pub(super) fn has_ready_of(&self, pid: u32) -> bool {
        self.ready.values().any(|helper| helper.pid == pid)
    }

    /// Forgets a ready helper; returns its space.
    pub(super) fn forget(&mut self, id: u32) -> Option<u32> {
        self.ready.remove(&id).map(|helper| helper.space)
    }

    /// Forgets the ready helper of a space.
    pub(super) fn forget_of_space(&mut self, space: u32) {
        self.ready.retain(|_, helper| helper.space != space);
    }

    /// Nothing comes of a helper: it ends, and its program runs on as it would without it.
    pub(super) fn refuse(&mut self, id: u32, error: &io::Error) {
        let Some(pending) = self.pending.remove(&id) else { return };
        send_away(&pending.connection);
        // Another error, as a rule, is that it has just ended.
        if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            self.warn_of_files(pending.peer.pid());
        }
    }

    fn warn_of_files(&mut self, pid: u32) {
        if !std::mem::replace(&mut self.has_warned_of_files, true) {
            let error = io::Error::from_raw_os_error(libc::EMFILE);
            let why = too_many_files(&error);
            self.pager
                .warn(&format!("process {pid} is unmanaged: {why}; later cases are not reported"));
        }
    }
}

/// A new channel: the end that sends, for a helper, and the end that receives.
pub(super) fn new_channel() -> io::Result<(Foreign, Foreign)> {
    let (group, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    let (sends, receives) = rustix::net::socketpair(group, kind, SocketFlags::CLOEXEC, None)?;
    peer::tell_senders(&receives)?;
    Ok((Foreign::new(sends), Foreign::new(receives)))
}

impl ReadyHelper {
    /// Takes a connection that a process sends through this channel. The process may be a stranger.
    ///
    /// # Errors
    ///
    /// The kernel's; `InvalidData` where it sends something else.
    fn take_sent(&self) -> io::Result<Arrival> {
        let (message, mut descriptors, sender) = receive(&self.channel)?;
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

/// Has a helper end, whose program then runs on as it would without it.
fn send_away(connection: &impl AsFd) {
    let _ = send(connection, Message::new(kind::END, []), &[]); // it may have ended
}

/// Receives a message, its descriptors, and its sender where the kernel names it.
fn receive(socket: &impl AsFd) -> io::Result<(Message, Vec<Foreign>, Option<OwnedFd>)> {
    let mut room = [0; MESSAGE_BYTES];
    let received = peer::receive(socket, &mut room)?;
    let message = Message::from_bytes(&room).filter(|_| received.bytes == MESSAGE_BYTES);
    let message = message.ok_or(io::ErrorKind::InvalidData)?;
    Ok((message, received.descriptors, received.sender))
}
