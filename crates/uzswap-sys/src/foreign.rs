//! Closes descriptors made by other processes, in threads of its own.
//!
//! A close(2) of the last descriptor does what the maker of the file has prepared. A TCP socket
//! with `SO_LINGER` waits for its peer. A unix socket drops its unread messages, with their
//! descriptors. So a [`Foreign`] descriptor is closed in one of a few threads, which wait for
//! nobody for long: a signal interrupts a close that takes more than `PATIENCE`.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::thread::{JoinHandleExt, RawPthread};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{process, signals};

/// Threads that close.
const CLOSERS: usize = 4;

/// How long a close may take.
const PATIENCE: Duration = Duration::from_millis(50);

/// What interrupts a close. Nobody else sends it here, and it ends nothing.
const SIGNAL: libc::c_int = libc::SIGURG;

/// Somebody who answers for a file.
pub trait Maker: fmt::Debug + Send + Sync {
    /// The close of that file has waited. A thread of its own tells this.
    fn delays_close(&self);
}

/// A descriptor of a file that a stranger made, or to which strangers send.
#[derive(Debug)]
pub struct Foreign {
    /// `None` once it is taken.
    fd: Option<OwnedFd>,
    maker: Option<Arc<dyn Maker>>,
}

impl Foreign {
    /// Takes one.
    pub fn new(fd: OwnedFd) -> Foreign {
        Foreign { fd: Some(fd), maker: None }
    }

    /// Names who answers for the file.
    #[must_use]
    pub fn made_by(mut self, maker: Arc<dyn Maker>) -> Foreign {
        self.maker = Some(maker);
        self
    }

    /// Of a file that this caller knows: it may close it.
    ///
    /// # Panics
    ///
    /// Never: it is taken once.
    pub fn into_inner(mut self) -> OwnedFd {
        self.fd.take().expect("it is taken once")
    }
}

impl From<OwnedFd> for Foreign {
    fn from(fd: OwnedFd) -> Foreign {
        Foreign::new(fd)
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is taken once").as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            start().expect("the threads that close have been started");
            QUEUE.lock().waiting.push_back((fd, self.maker.take()));
            QUEUE.has_more.notify_one();
        }
    }
}

/// Descriptors that wait for their close. There are no more than the kernel lets the process have.
struct Queue {
    state: Mutex<State>,
    has_more: Condvar,
    has_begun: Condvar,
}

struct State {
    waiting: VecDeque<(OwnedFd, Option<Arc<dyn Maker>>)>,
    /// What each thread closes now.
    closing: [Option<Closing>; CLOSERS],
}

struct Closing {
    since: Instant,
    maker: Option<Arc<dyn Maker>>,
}

static QUEUE: Queue = Queue {
    state: Mutex::new(State { waiting: VecDeque::new(), closing: [const { None }; CLOSERS] }),
    has_more: Condvar::new(),
    has_begun: Condvar::new(),
};

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes all that comes, for ever.
    fn close_all(&self, number: usize) {
        let mut state = self.lock();
        loop {
            let Some((fd, maker)) = state.waiting.pop_front() else {
                state = self.has_more.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.closing[number] = Some(Closing { since: Instant::now(), maker });
            self.has_begun.notify_one();
            drop(state);
            drop(fd);
            state = self.lock();
            state.closing[number] = None;
        }
    }

    /// Interrupts what takes too long, for ever.
    fn interrupt_all(&self, threads: &[RawPthread]) {
        let mut state = self.lock();
        loop {
            while state.closing.iter().all(Option::is_none) {
                state = self.has_begun.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            thread::sleep(PATIENCE);
            let mut makers = Vec::new();
            state = self.lock();
            for (closing, &thread) in state.closing.iter_mut().zip(threads) {
                if let Some(Closing { since, maker }) = closing
                    && since.elapsed() >= PATIENCE
                {
                    makers.extend(maker.take());
                    // SAFETY: the thread never ends, so its number is its own.
                    let _ = unsafe { libc::pthread_kill(thread as libc::pthread_t, SIGNAL) };
                }
            }
            drop(state);
            makers.iter().for_each(|maker| maker.delays_close());
            state = self.lock();
        }
    }
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// Starts the threads, once. They keep the processors and the priority that the caller has then.
///
/// # Errors
///
/// If the kernel starts no thread: the caller must not close such a file itself.
pub fn start() -> io::Result<()> {
    static IS_STARTED: Mutex<bool> = Mutex::new(false);
    let mut is_started = IS_STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_started {
        return Ok(());
    }
    signals::handle(SIGNAL, nothing, libc::SA_RESTART)?;
    let spawn = |work: Box<dyn FnOnce() + Send>| {
        let thread = thread::Builder::new().name("uzswap-closer".to_owned());
        thread.spawn(|| {
            process::keep_capabilities_for_programs();
            work();
        })
    };
    let closers = (0..CLOSERS).map(|number| spawn(Box::new(move || QUEUE.close_all(number))));
    let closers: Vec<_> = closers.collect::<io::Result<_>>()?;
    let threads: Vec<RawPthread> = closers.iter().map(JoinHandleExt::as_pthread_t).collect();
    spawn(Box::new(move || QUEUE.interrupt_all(&threads)))?;
    *is_started = true;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use rustix::net::sockopt;

    use super::*;

    /// A socket whose close waits for half a minute, and its peer.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        sockopt::set_socket_linger(&socket, Some(Duration::from_secs(30))).unwrap();
        (socket.into(), peer)
    }

    #[derive(Debug, Default)]
    struct Told(Mutex<bool>, Condvar);

    impl Maker for Told {
        fn delays_close(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }
    }

    #[test]
    fn a_close_that_waits_delays_no_other() {
        let told = Arc::new(Told::default());
        let all: Vec<_> = (0..3 * CLOSERS).map(|_| lingering()).collect();
        let (sockets, peers): (Vec<OwnedFd>, Vec<TcpStream>) = all.into_iter().unzip();
        let since = Instant::now();
        let made_by = |socket| Foreign::new(socket).made_by(Arc::clone(&told) as Arc<dyn Maker>);
        sockets.into_iter().for_each(|socket| drop(made_by(socket)));
        assert!(since.elapsed() < Duration::from_millis(500), "{:?}", since.elapsed());
        let (reader, mut writer) = io::pipe().unwrap();
        drop(Foreign::new(reader.into()));
        while writer.write_all(b"x").is_ok() {
            assert!(since.elapsed() < Duration::from_secs(10), "the pipe is open still");
            thread::sleep(Duration::from_millis(1));
        }
        let wait = Duration::from_secs(10);
        let is_untold = |told: &mut bool| !*told;
        let (told, _) = told.1.wait_timeout_while(told.0.lock().unwrap(), wait, is_untold).unwrap();
        assert!(*told, "who made it is named");
        drop(peers);
    }
}
