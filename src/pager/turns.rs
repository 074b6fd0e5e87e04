//! Turns of the server, and that it gets to have them.
//!
//! While it keeps a thread company, the server runs when nobody else would ([`super::company`]).
//! Where others keep the processor busy, that is hardly ever: the governor sees that something is
//! to be answered and that no turn has begun or ended since it looked last, and has the server run
//! as others do for a while.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use crate::sys::process;

/// How long the server runs as others do after it has starved; twice as long each time.
const FED_MIN: Duration = Duration::from_secs(1);
const FED_MAX: Duration = Duration::from_secs(60);

/// What server and governor know of it.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The server's thread.
    thread: AtomicU32,
    /// Turns begun and ended: odd while there is one.
    count: AtomicU64,
    /// It runs when nobody else would.
    gives_way: AtomicBool,
    /// It may not now.
    is_fed: AtomicBool,
}

impl Turns {
    /// The calling thread is the server's.
    pub(super) fn start(&self) {
        self.thread.store(gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
    }

    pub(super) fn begin(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn gives_way(&self) -> bool {
        self.gives_way.load(Ordering::Relaxed)
    }

    /// From now on the server, which calls this, runs when nobody else would, if it may.
    pub(super) fn give_way(&self) {
        if !self.is_fed.load(Ordering::Relaxed) && process::run_when_idle(None, true).is_ok() {
            self.gives_way.store(true, Ordering::Relaxed);
        }
    }

    /// From now on the server, which calls this, runs as others do.
    pub(super) fn take_part(&self) {
        if self.gives_way.swap(false, Ordering::Relaxed) {
            let _ = process::run_when_idle(None, false); // it was tried before
        }
    }
}

/// The governor's look at them.
#[derive(Debug)]
pub(super) struct Watch {
    /// The count when something was to be answered.
    asked_at: Option<u64>,
    fed_until: Option<Instant>,
    fed_for: Duration,
}

impl Watch {
    pub(super) fn new() -> Watch {
        Watch { asked_at: None, fed_until: None, fed_for: FED_MIN }
    }

    /// Looks whether the server starves; `is_asked` says whether something waits to be read by it.
    /// `true` where it is to be looked again soon.
    pub(super) fn look(&mut self, turns: &Turns, is_asked: impl FnOnce() -> bool) -> bool {
        if self.fed_until.is_some_and(|until| Instant::now() >= until) {
            self.fed_until = None;
            turns.is_fed.store(false, Ordering::Relaxed);
        }
        let count = turns.count.load(Ordering::Relaxed);
        if !turns.gives_way() || (count.is_multiple_of(2) && !is_asked()) {
            self.asked_at = None;
            return false;
        }
        if self.asked_at.replace(count) == Some(count) {
            self.asked_at = None;
            turns.is_fed.store(true, Ordering::Relaxed);
            // This before it is so: the server may set both at the same time, and may believe to
            // run as others do only if it does.
            turns.gives_way.store(false, Ordering::Relaxed);
            let _ = process::run_when_idle(Some(turns.thread.load(Ordering::Relaxed)), false);
            self.fed_until = Some(Instant::now() + self.fed_for);
            self.fed_for = (self.fed_for * 2).min(FED_MAX);
        }
        true
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
        let (turns, mut watch) = (Turns::default(), Watch::new());
        turns.start();
        turns.give_way();
        assert!(turns.gives_way());
        // Nothing to do; then something, and it is done.
        assert!(!watch.look(&turns, || false));
        assert!(watch.look(&turns, || true));
        turns.begin();
        assert!(watch.look(&turns, || false));
        turns.end();
        assert!(!watch.look(&turns, || false));
        assert!(turns.gives_way());
        // In the middle of a turn for two looks.
        turns.begin();
        assert!(watch.look(&turns, || false) && watch.look(&turns, || false));
        assert!(!turns.gives_way());
        turns.end();
        turns.give_way();
        assert!(!turns.gives_way(), "it is fed still");
        watch.fed_until = Some(Instant::now());
        watch.look(&turns, || true);
        // Asked, and no turn for two looks.
        turns.give_way();
        assert!(watch.look(&turns, || true) && watch.look(&turns, || true));
        assert!(!turns.gives_way());
        assert_eq!(watch.fed_for, FED_MIN * 4);
        turns.take_part();
    }
}
