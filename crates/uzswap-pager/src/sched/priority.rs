//! The priority of the server's threads, turn by turn.
//!
//! Beside the faulting thread the server runs under SCHED_IDLE ([`crate::sched::affinity`]), but at
//! normal priority while another thread waits for its locks, or while a
//! [`crate::sched::watchdog`] boosts it. Each thread of the server has turns of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use crate::locks::{Guard, Lock, Rank};
use uzswap_sys::process;

/// How long a lock is tried before it is slept for: a fault is served in less. And pauses of the
/// processor between two tries.
const SOON: Duration = Duration::from_micros(20);
const TRIES_EVERY: u32 = 8;

/// The turns of all threads of the server.
#[derive(Debug)]
pub(crate) struct AllTurns(Vec<Arc<Turns>>);

impl AllTurns {
    /// Of so many threads.
    pub(crate) fn of(threads: usize) -> AllTurns {
        AllTurns((0..threads).map(|_| Arc::default()).collect())
    }

    /// By thread.
    pub(crate) fn each(&self) -> &[Arc<Turns>] {
        &self.0
    }

    /// Locks what the server locks, too. A panic in another thread ends the run, and everything
    /// with it.
    pub(crate) fn lock<'a, T, const RANK: Rank>(
        &self,
        lock: &'a Lock<T, RANK>,
    ) -> Guard<'a, T, RANK> {
        lock.check_order();
        let locked = lock.try_lock().or_else(|| lock_soon(lock)).unwrap_or_else(|| {
            // The server may have it, and run when nobody else would.
            let _waits: Vec<Waits<'_>> = self.0.iter().map(|turns| turns.wait()).collect();
            lock.lock()
        });
        assert!(!lock.is_poisoned(), "another thread has failed: pages may be in no place");
        self.0.iter().for_each(|turns| turns.take_part_if_awaited());
        locked
    }

    /// Threads of the server that run when nobody else would.
    pub(crate) fn giving_way(&self) -> u32 {
        self.0.iter().map(|turns| u32::from(turns.gives_way())).sum()
    }

    /// Lets the server go before all for some microseconds, or has it not do so from now on.
    pub(crate) fn let_go_first(&self, may: bool) {
        self.0.iter().for_each(|turns| turns.may_not_go_first.store(!may, Ordering::Relaxed));
    }
}

/// Locks what is free in a moment, as most is: to sleep and to be woken takes longer.
fn lock_soon<T, const RANK: Rank>(lock: &Lock<T, RANK>) -> Option<Guard<'_, T, RANK>> {
    let start = Instant::now();
    while start.elapsed() < SOON {
        (0..TRIES_EVERY).for_each(|_| std::hint::spin_loop());
        if let Some(locked) = lock.try_lock() {
            return Some(locked);
        }
    }
    None
}

/// The turns and the priority of one thread of the server.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The server's thread.
    thread: AtomicU32,
    /// Turns begun and ended: odd while there is one.
    count: AtomicU64,
    /// The thread runs under SCHED_IDLE.
    gives_way: AtomicBool,
    /// The thread has starved, and runs at normal priority for a while.
    is_boosted: AtomicBool,
    /// The thread runs before all others, for some microseconds.
    goes_first: AtomicBool,
    /// The supervisor's share of the processors is used up, so it may not.
    may_not_go_first: AtomicBool,
    /// Threads that wait for what it may have locked.
    waiting: AtomicU32,
}

impl Turns {
    /// The calling thread is the server's.
    pub(crate) fn start(&self) {
        self.thread.store(gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
    }

    pub(crate) fn begin(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn gives_way(&self) -> bool {
        self.gives_way.load(Ordering::Relaxed)
    }

    /// Turns begun and ended.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether the server runs at normal priority for a while.
    pub(crate) fn is_boosted(&self) -> bool {
        self.is_boosted.load(Ordering::Relaxed)
    }

    /// Has the server run at normal priority until [`Turns::end_boost`].
    pub(super) fn boost(&self) {
        self.is_boosted.store(true, Ordering::Relaxed);
        // This before it is so: the server may set both at the same time, and may believe to run
        // as others do only if it does.
        self.gives_way.store(false, Ordering::Relaxed);
        let _ = process::run_when_idle(Some(self.thread.load(Ordering::Relaxed)), false);
    }

    pub(super) fn end_boost(&self) {
        self.is_boosted.store(false, Ordering::Relaxed);
    }

    /// From now on the server, which calls this and has locked nothing, runs when nobody else
    /// would; `false` where it may not now.
    pub(crate) fn give_way(&self) -> bool {
        if self.gives_way() || self.goes_first.load(Ordering::Relaxed) {
            return true; // or will be, once it goes on
        }
        if self.is_boosted() {
            return false;
        }
        self.gives_way.store(true, Ordering::SeqCst);
        if process::run_when_idle(None, true).is_err() {
            self.gives_way.store(false, Ordering::SeqCst);
            return false;
        }
        self.is_as_said()
    }

    /// The calling thread has locked something. The server runs as others do then where somebody
    /// waits: who does so from now on sees to it.
    pub(crate) fn take_part_if_awaited(&self) {
        let is_server =
            || gettid().as_raw_nonzero().get() as u32 == self.thread.load(Ordering::Relaxed);
        if self.gives_way() && self.waiting.load(Ordering::SeqCst) > 0 && is_server() {
            self.take_part();
        }
    }

    /// Runs as others do where somebody has said so meanwhile; whether it gives way.
    fn is_as_said(&self) -> bool {
        let gives_way = self.gives_way.load(Ordering::SeqCst);
        if !gives_way {
            let _ = process::run_when_idle(None, false); // it was tried before
        }
        gives_way
    }

    /// The calling thread is about to wait for what the server may have locked: that runs as others
    /// do until nobody waits.
    pub(crate) fn wait(&self) -> Waits<'_> {
        // In this order: the server looks for who waits once it has locked something, and gave way
        // before.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if self.gives_way.swap(false, Ordering::SeqCst) && !self.goes_first.load(Ordering::SeqCst) {
            let _ = process::run_when_idle(Some(self.thread.load(Ordering::Relaxed)), false);
        }
        Waits(self)
    }

    /// From now on the server, which calls this, goes before all; `false` where it may not.
    pub(crate) fn go_first(&self) -> bool {
        if self.may_not_go_first.load(Ordering::Relaxed) {
            return false;
        }
        self.goes_first.store(true, Ordering::Relaxed);
        let may = process::run_first().is_ok();
        self.goes_first.store(may, Ordering::Relaxed);
        may
    }

    /// The server, which calls this, does not go before all any more.
    pub(crate) fn go_on(&self) {
        self.goes_first.store(false, Ordering::SeqCst);
        // As others do first: see `process::run_first`. All of it was tried before.
        let _ = process::run_when_idle(None, false);
        if self.gives_way() {
            let _ = process::run_when_idle(None, true);
            if self.is_as_said() {
                // The kernel does not look for others on a change within this class.
                std::thread::yield_now();
            }
        }
    }

    /// From now on the server, which calls this, runs as others do.
    pub(crate) fn take_part(&self) {
        if self.gives_way.swap(false, Ordering::Relaxed) {
            let _ = process::run_when_idle(None, false); // it was tried before
        }
    }
}

/// A thread that waits, as long as this is there.
pub(crate) struct Waits<'a>(&'a Turns);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
