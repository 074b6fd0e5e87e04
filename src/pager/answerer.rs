//! A thread that answers at a socket, one connection after the other. Who connects cannot hold it
//! up for longer than a connection may last, and its end waits for nobody.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags};

use super::wake_descriptor;

/// How long a connection may last.
const CONNECTION_MAX: Duration = Duration::from_secs(1);

/// How long one whose answer is sent may take to read it.
const LINGER_MAX: Duration = Duration::from_millis(200);

/// How long it waits where the kernel has no descriptor for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Answerer {
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Where connections come in.
#[derive(Debug)]
pub(super) struct Door {
    /// Listens, and does not block.
    socket: OwnedFd,
    end: Arc<OwnedFd>,
}

/// One that has connected.
#[derive(Debug)]
pub(super) struct Connection<'a> {
    stream: OwnedFd,
    end: &'a OwnedFd,
    until: Instant,
}

impl Answerer {
    /// Starts a thread that works at a socket, which must listen and not block.
    pub(super) fn start(
        name: &str,
        socket: OwnedFd,
        work: impl FnOnce(Door) + Send + 'static,
    ) -> io::Result<Answerer> {
        let end = Arc::new(wake_descriptor()?);
        let door = Door { socket, end: Arc::clone(&end) };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(|| work(door))?;
        Ok(Answerer { end, thread: Some(thread) })
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        // The counter of an eventfd overflows after 2^64.
        let _ = rustix::io::write(&*self.end, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Door {
    /// The next one that connects; `None` once the thread is to end.
    pub(super) fn next(&self) -> Option<Connection<'_>> {
        while wait(&self.end, Some((self.socket.as_fd(), PollFlags::IN)), None).is_ok() {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.socket, flags) {
                Ok(stream) => {
                    let until = Instant::now() + CONNECTION_MAX;
                    return Some(Connection { stream, end: &self.end, until });
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                // No memory, or no descriptor: in a moment there may be.
                Err(_) => match wait(&self.end, None, Some(Instant::now() + PAUSE)) {
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                    _ => return None,
                },
            }
        }
        None
    }
}

impl Connection<'_> {
    /// The user who has connected, of a unix socket.
    pub(super) fn user(&self) -> io::Result<u32> {
        Ok(rustix::net::sockopt::socket_peercred(&self.stream)?.uid.as_raw())
    }

    /// Reads some bytes; 0 at the end of what the other side says.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::net::recv(&self.stream, &mut *bytes, RecvFlags::empty()) {
                Ok((count, _)) => return Ok(count),
                Err(Errno::AGAIN) => self.wait(PollFlags::IN)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends all of it.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Says that this was all, and reads what is left: else TCP may take back what was sent.
    pub(super) fn finish(mut self) {
        self.until = self.until.min(Instant::now() + LINGER_MAX);
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Write);
        let mut rest = [0; 4096];
        while matches!(self.read(&mut rest), Ok(1..)) && Instant::now() < self.until {}
    }

    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        wait(self.end, Some((self.stream.as_fd(), flags)), Some(self.until))
    }
}

/// Waits for a descriptor. An error where the thread is to end (`ConnectionAborted`), or it is too
/// late (`TimedOut`).
fn wait(
    end: &OwnedFd,
    wanted: Option<(BorrowedFd<'_>, PollFlags)>,
    until: Option<Instant>,
) -> io::Result<()> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec::try_from(left).expect("a short time"));
        let mut all = vec![PollFd::new(end, PollFlags::IN)];
        all.extend(wanted.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
        match poll(&mut all, timeout.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) if !all[0].revents().is_empty() => {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
