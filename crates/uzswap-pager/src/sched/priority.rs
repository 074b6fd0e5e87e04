//! Turns of the server's threads, and a guard against their starvation.
//!
//! Beside the faulting thread the server runs under SCHED_IDLE ([`crate::sched::affinity`]). Other
//! threads may keep that processor busy. If the sampler sees a waiting message, and no turn has
//! begun or ended since its last look, it raises the server to normal priority for a while. Each
//! thread of the server has turns of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use crate::locks::{Guard, Lock, Rank};
use uzswap_sys::process;

/// Looks at which it had the same to do, after which it starves: some 5 ms. The evictor and the
/// helper keep its processor for one or two now and then.
const LOOKS: u32 = 5;

/// How long the server runs as others do after it has starved: twice as long each time, and as at
/// first where it did not for long.
const FED_MIN: Duration = Duration::from_secs(1);
const FED_MAX: Duration = Duration::from_secs(60);
const FORGIVEN_AFTER: Duration = Duration::from_secs(10);

/// How long a lock is tried before it is slept for: a fault is served in less. And pauses of the
/// processor between two tries.
const SOON: Duration = Duration::from_micros(20);
const TRIES_EVERY: u32 = 8;

/// Those of all threads of the server.
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

/// What a thread of the server and the sampler know of it.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The server's thread.
    thread: AtomicU32,
    /// Turns begun and ended: odd while there is one.
    count: AtomicU64,
    /// It runs when nobody else would.
    gives_way: AtomicBool,
    /// It may not now.
    is_fed: AtomicBool,
    /// It runs before all others, for some microseconds.
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

    /// Whether the server is to run as others do for a while.
    pub(crate) fn is_fed(&self) -> bool {
        self.is_fed.load(Ordering::Relaxed)
    }

    /// From now on the server, which calls this and has locked nothing, runs when nobody else
    /// would; `false` where it may not now.
    pub(crate) fn give_way(&self) -> bool {
        if self.gives_way() || self.goes_first.load(Ordering::Relaxed) {
            return true; // or will be, once it goes on
        }
        if self.is_fed() {
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

/// The sampler's look at them.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The count when something was to be answered, and looks since.
    asked: Option<(u64, u32)>,
    fed_until: Option<Instant>,
    fed_for: Duration,
    /// When it starved last.
    last: Option<Instant>,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch { asked: None, fed_until: None, fed_for: FED_MIN, last: None }
    }

    /// Looks whether the server starves; `is_asked` says whether something waits to be read by it.
    /// `true` where it is to be looked again soon.
    pub(crate) fn look(&mut self, turns: &Turns, is_asked: impl FnOnce() -> bool) -> bool {
        if self.fed_until.is_some_and(|until| Instant::now() >= until) {
            self.fed_until = None;
            turns.is_fed.store(false, Ordering::Relaxed);
        }
        let count = turns.count.load(Ordering::Relaxed);
        if !turns.gives_way() || (count.is_multiple_of(2) && !is_asked()) {
            self.asked = None;
            return false;
        }
        let looks = self.asked.filter(|asked| asked.0 == count).map_or(1, |asked| asked.1 + 1);
        self.asked = Some((count, looks));
        if looks > LOOKS {
            self.feed(turns);
        }
        true
    }

    /// Has the server run as others do for a while.
    fn feed(&mut self, turns: &Turns) {
        self.asked = None;
        turns.is_fed.store(true, Ordering::Relaxed);
        // This before it is so: the server may set both at the same time, and may believe to run
        // as others do only if it does.
        turns.gives_way.store(false, Ordering::Relaxed);
        let _ = process::run_when_idle(Some(turns.thread.load(Ordering::Relaxed)), false);
        let now = Instant::now();
        let is_forgiven = self.last.is_none_or(|last| now - last > FORGIVEN_AFTER + self.fed_for);
        self.fed_for = if is_forgiven { FED_MIN } else { (self.fed_for * 2).min(FED_MAX) };
        self.fed_until = Some(now + self.fed_for);
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_starves_is_fed() {
        if !process::may_return_from_idle() {
            return; // this thread would stay so
        }
        let (turns, mut register) = (Turns::default(), Watch::new());
        turns.start();
        assert!(turns.give_way() && turns.gives_way());
        // Nothing to do; then something, and it is done.
        assert!(!register.look(&turns, || false));
        assert!(register.look(&turns, || true));
        turns.begin();
        assert!(register.look(&turns, || false));
        turns.end();
        assert!(!register.look(&turns, || false));
        assert!(turns.gives_way());
        // In the middle of a turn all the time.
        turns.begin();
        assert!((0..LOOKS).all(|_| register.look(&turns, || false) && turns.gives_way()));
        register.look(&turns, || false);
        assert!(!turns.gives_way());
        turns.end();
        assert!(!turns.give_way(), "it is fed still");
        register.fed_until = Some(Instant::now());
        register.look(&turns, || true);
        // Asked, and no turn all the time.
        assert!(turns.give_way());
        assert!((0..LOOKS).all(|_| register.look(&turns, || true) && turns.gives_way()));
        register.look(&turns, || true);
        assert!(!turns.gives_way());
        assert_eq!(register.fed_for, FED_MIN * 2);
        // Somebody waits for it: it may give way again at once, but not with anything locked.
        register.fed_until = Some(Instant::now());
        register.look(&turns, || false);
        assert!(turns.give_way());
        let waits = turns.wait();
        assert!(!turns.gives_way());
        turns.take_part_if_awaited();
        assert!(turns.give_way() && turns.gives_way());
        std::thread::scope(|scope| drop(scope.spawn(|| turns.take_part_if_awaited())));
        assert!(turns.gives_way(), "another thread has locked something");
        turns.take_part_if_awaited();
        assert!(!turns.gives_way());
        drop(waits);
        assert!(turns.give_way());
        turns.take_part_if_awaited();
        assert!(turns.gives_way());
        if turns.go_first() {
            drop(turns.wait());
            turns.go_on();
            assert!(!turns.gives_way());
        }
        turns.take_part();
    }
}
