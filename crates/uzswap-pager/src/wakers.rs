//! Wake-ups of the supervisor's threads, and the end of all of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::locks::{Lock, WAKER};

/// Wakes one thread. A wake-up between two waits ends the second at once.
#[derive(Debug, Default)]
pub(crate) struct Waker {
    is_woken: Lock<bool, WAKER>,
    changed: Condvar,
}

impl Waker {
    pub(crate) fn wake(&self) {
        let mut is_woken = self.is_woken.lock();
        if !std::mem::replace(&mut *is_woken, true) {
            self.changed.notify_one();
        }
    }

    /// Waits until another thread wakes this one, for so long at most.
    pub(crate) fn wait(&self, timeout: Duration) {
        let since = Instant::now();
        let mut is_woken = self.is_woken.lock();
        while !*is_woken {
            let Some(rest) = timeout.checked_sub(since.elapsed()) else { break };
            is_woken = is_woken.wait_timeout(&self.changed, rest);
        }
        *is_woken = false;
    }
}

/// A descriptor that wakes the threads that poll it.
#[derive(Debug)]
pub(crate) struct WakeDescriptor(OwnedFd);

impl WakeDescriptor {
    /// # Errors
    ///
    /// The kernel's error.
    pub(crate) fn new() -> io::Result<WakeDescriptor> {
        Ok(WakeDescriptor(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn wake(&self) {
        // The counter overflows after 2^64.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Takes a wake-up: the descriptor is not readable until the next one.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]); // there may be none
    }
}

impl AsFd for WakeDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The wakers of all threads.
#[derive(Debug)]
pub(crate) struct Wakers {
    /// There may be headroom for a fault, or a page was read from the file.
    pub(crate) server: WakeDescriptor,
    /// Wakes all workers of the fault server at the end.
    pub(crate) server_end: WakeDescriptor,
    pub(crate) evictor: Waker,
    pub(crate) sampler: Waker,
    /// The thread that surveys fork groups.
    pub(crate) surveyor: Waker,
    /// The thread that scans the tree of processes.
    pub(crate) tree: Waker,
    /// A helper has ended, but its connection is open.
    has_lost_helper: AtomicBool,
    is_stopping: AtomicBool,
}

impl Wakers {
    /// # Errors
    ///
    /// The kernel's error.
    pub(crate) fn new() -> io::Result<Wakers> {
        Ok(Wakers {
            server: WakeDescriptor::new()?,
            server_end: WakeDescriptor::new()?,
            evictor: Waker::default(),
            sampler: Waker::default(),
            surveyor: Waker::default(),
            tree: Waker::default(),
            has_lost_helper: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Has the fault server check a helper that has ended.
    pub(crate) fn report_lost_helper(&self) {
        if !self.has_lost_helper.swap(true, Ordering::Relaxed) {
            self.server.wake();
        }
    }

    /// Whether a lost helper was reported since the last call.
    pub(crate) fn take_lost_helper(&self) -> bool {
        self.has_lost_helper.swap(false, Ordering::Relaxed)
    }

    /// Whether all threads must end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Ends all threads.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        let threads = [&self.evictor, &self.surveyor, &self.tree, &self.sampler];
        threads.into_iter().for_each(Waker::wake);
        self.server_end.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_before_the_wait_is_not_lost() {
        let waker = Waker::default();
        waker.wake();
        waker.wake();
        waker.wait(Duration::MAX); // returns at once
        waker.wait(Duration::ZERO);
        assert!(!*waker.is_woken.lock(), "both wake-ups were one");
    }

    #[test]
    fn a_lost_helper_is_taken_once() {
        let wakers = Wakers::new().unwrap();
        let is_readable = || rustix::io::read(&wakers.server, &mut [0; 8]).is_ok();
        assert!(!is_readable());
        wakers.report_lost_helper();
        assert!(is_readable());
        wakers.report_lost_helper();
        assert!(!is_readable(), "it was reported already");
        assert!(wakers.take_lost_helper() && !wakers.take_lost_helper());
    }
}
