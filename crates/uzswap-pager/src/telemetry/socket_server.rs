//! A thread that answers at a socket, many connections at once: no peer delays another.
//!
//! The thread polls. Each turn takes one step of every connection that is ready: it reads once, or
//! sends once. Connections, their requests and their lifetimes are bounded.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, SocketFlags};

use crate::wakers::WakeDescriptor;
use uzswap_sys::foreign::Foreign;
use uzswap_sys::{peer, process};

/// Connections at once. One more takes the place of the one that has been idle for longest.
const CONNECTIONS_MAX: usize = 32;

/// Connections that are accepted in one turn: the open ones have their turns, too.
const ACCEPTS_A_TURN: usize = CONNECTIONS_MAX / 2;

/// From a connection to its answer.
const CONNECTION_MAX: Duration = Duration::from_secs(3);

/// How long a peer may take to read an answer that comes late, or to close after its answer.
const LINGER_MAX: Duration = Duration::from_millis(200);

/// How long nothing is accepted after the kernel had no descriptor or no memory for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes that are read of a connection in one turn.
const READ_BYTES: usize = 4 << 10;

/// Decides what a peer is answered.
pub(crate) trait Speaker: Send + 'static {
    /// A new turn begins: answers of the last one are old.
    fn begin_turn(&mut self) {}

    /// A peer has connected.
    fn greet(&mut self, peer: BorrowedFd<'_>) -> Verdict;

    /// The peer has sent `heard` up to now.
    fn hear(&mut self, heard: &[u8], more: More) -> Verdict;
}

/// Whether the peer will send more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum More {
    /// It may.
    Maybe,
    /// It has closed its side.
    Ended,
    /// Its time is over.
    TooLate,
}

/// What becomes of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The request is not complete. After the last of it, this closes the connection.
    Listen,
    /// These bytes are sent, then the connection is closed.
    Reply(Vec<u8>),
    /// It is closed without a word.
    Close,
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Answerer {
    end: Arc<WakeDescriptor>,
    thread: Option<JoinHandle<()>>,
}

impl Answerer {
    /// Starts a thread that answers at a socket, which must listen and not block.
    pub(crate) fn start(
        name: &str,
        socket: OwnedFd,
        speaker: impl Speaker,
    ) -> io::Result<Answerer> {
        // A TCP socket takes none; before Linux 6.16 each one is closed.
        let _ = peer::let_descriptors(&socket, false);
        let end = Arc::new(WakeDescriptor::new()?);
        let listener = Listener {
            socket,
            end: Arc::clone(&end),
            speaker,
            connections: Vec::with_capacity(CONNECTIONS_MAX),
            closed_until: None,
        };
        let work = move || {
            process::keep_capabilities_for_programs();
            listener.run();
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Answerer { end, thread: Some(thread) })
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.end.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The socket and its connections.
struct Listener<S> {
    socket: OwnedFd,
    end: Arc<WakeDescriptor>,
    speaker: S,
    connections: Vec<Connection>,
    /// Set while nothing is accepted.
    closed_until: Option<Instant>,
}

/// A peer that has connected.
struct Connection {
    stream: Foreign,
    state: State,
    /// When it is over, whatever it does.
    until: Instant,
    /// When bytes moved last.
    active: Instant,
}

enum State {
    /// The request up to now.
    Hearing(Vec<u8>),
    /// An answer, and how many of its bytes are sent.
    Sending(Vec<u8>, usize),
    /// All is sent. The rest of what the peer sends is read first: a TCP socket that is closed
    /// before takes back its answer.
    Lingering,
}

impl<S: Speaker> Listener<S> {
    fn run(mut self) {
        while let Some(ready) = self.wait() {
            self.speaker.begin_turn();
            let now = Instant::now();
            self.take_turns(&ready, now);
            if ready.accept {
                self.accept();
            }
        }
    }

    /// Waits until there is something to do; `None` once the thread is to end.
    fn wait(&self) -> Option<Ready> {
        let now = Instant::now();
        let is_open = self.closed_until.is_none_or(|until| until <= now);
        let deadlines = self.connections.iter().map(|connection| connection.until);
        let until = deadlines.chain(self.closed_until.filter(|_| !is_open)).min();
        // A millisecond more, so that the deadline has passed.
        let left = until.map(|until| until.saturating_duration_since(now) + PAUSE / 100);
        let timeout = left.map(|left| Timespec::try_from(left).expect("a short time"));
        let accepts = if is_open { PollFlags::IN } else { PollFlags::empty() };
        let mut all =
            vec![PollFd::new(&self.end, PollFlags::IN), PollFd::new(&self.socket, accepts)];
        all.extend(self.connections.iter().map(|one| PollFd::new(&one.stream, one.wanted())));
        match poll(&mut all, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // No memory: in a moment there may be some.
            Err(_) => std::thread::sleep(PAUSE),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if is_ready(&all[0]) {
            return None;
        }
        let connections = all[2..].iter().map(is_ready).collect();
        Some(Ready { accept: is_open && is_ready(&all[1]), connections })
    }

    /// One step of each connection that is ready, and the end of those whose time is over.
    fn take_turns(&mut self, ready: &Ready, now: Instant) {
        let mut ready = ready.connections.iter();
        let speaker = &mut self.speaker;
        self.connections.retain_mut(|connection| {
            let is_ready = ready.next().is_some_and(|ready| *ready);
            (!is_ready || connection.step(speaker, now))
                && (now < connection.until || connection.expire(speaker, now))
        });
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_A_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.socket, flags) {
                Ok(stream) => self.admit(Foreign::new(stream)),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // No memory, or no descriptor.
                Err(_) => {
                    if !self.drop_idle() {
                        self.closed_until = Some(Instant::now() + PAUSE);
                    }
                    return;
                }
            }
        }
    }

    /// Takes a new connection. Its first step is now: a request that has come with it is answered
    /// whatever comes after it.
    fn admit(&mut self, stream: Foreign) {
        let now = Instant::now();
        let verdict = self.speaker.greet(stream.as_fd());
        let state = State::Hearing(Vec::new());
        let mut connection = Connection { stream, state, until: now + CONNECTION_MAX, active: now };
        if !connection.obey(verdict) || !connection.step(&mut self.speaker, now) {
            return;
        }
        if self.connections.len() >= CONNECTIONS_MAX {
            self.drop_idle();
        }
        self.connections.push(connection);
    }

    /// Closes the connection that has been idle for longest, answered ones first; whether there
    /// was one.
    fn drop_idle(&mut self) -> bool {
        let idleness = |at: &usize| {
            let connection = &self.connections[*at];
            (!matches!(connection.state, State::Lingering), connection.active)
        };
        let idlest = (0..self.connections.len()).min_by_key(idleness);
        idlest.map(|at| self.connections.remove(at)).is_some()
    }
}

/// What a wait has found.
struct Ready {
    accept: bool,
    /// In the order of the connections.
    connections: Vec<bool>,
}

impl Connection {
    fn wanted(&self) -> PollFlags {
        match self.state {
            State::Sending(..) => PollFlags::OUT,
            State::Hearing(_) | State::Lingering => PollFlags::IN,
        }
    }

    /// Reads or sends once; whether it goes on.
    fn step(&mut self, speaker: &mut impl Speaker, now: Instant) -> bool {
        if let State::Sending(..) = self.state {
            return self.send();
        }
        let mut bytes = [0; READ_BYTES];
        // Descriptors may come along, which nobody asked for.
        let count = match peer::receive_part(&self.stream, &mut bytes) {
            Ok(received) => received.bytes,
            Err(error) => {
                let kind = error.kind();
                return kind == io::ErrorKind::WouldBlock || kind == io::ErrorKind::Interrupted;
            }
        };
        self.active = now;
        let State::Hearing(heard) = &mut self.state else { return count > 0 };
        heard.extend_from_slice(&bytes[..count]);
        let more = if count == 0 { More::Ended } else { More::Maybe };
        let verdict = speaker.hear(heard, more);
        (count > 0 || verdict != Verdict::Listen) && self.obey(verdict)
    }

    /// Its time is over; whether it goes on all the same, which it does for an answer that says so.
    fn expire(&mut self, speaker: &mut impl Speaker, now: Instant) -> bool {
        let State::Hearing(heard) = &self.state else { return false };
        let verdict = speaker.hear(heard, More::TooLate);
        self.until = now + LINGER_MAX;
        verdict != Verdict::Listen && self.obey(verdict)
    }

    /// Does what the speaker decided; whether it goes on.
    fn obey(&mut self, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Listen => true,
            Verdict::Close => false,
            Verdict::Reply(bytes) => {
                self.state = State::Sending(bytes, 0);
                self.send()
            }
        }
    }

    /// Sends what the kernel takes; whether it goes on.
    fn send(&mut self) -> bool {
        let State::Sending(bytes, sent) = &mut self.state else { return true };
        match rustix::net::send(&self.stream, &bytes[*sent..], SendFlags::NOSIGNAL) {
            Ok(count) => *sent += count,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        }
        let is_sent = *sent == bytes.len();
        self.active = Instant::now();
        if is_sent {
            self.state = State::Lingering;
            self.until = self.until.min(self.active + LINGER_MAX);
            return rustix::net::shutdown(&self.stream, Shutdown::Write).is_ok();
        }
        true
    }
}
