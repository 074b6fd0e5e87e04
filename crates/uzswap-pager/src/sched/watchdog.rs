//! The watchdog: boosts a thread of the server that starves.
//!
//! Beside the faulting thread the server runs under SCHED_IDLE, and other threads may keep that
//! processor busy. The sampler checks whether a message waits while no turn of the server begins or
//! ends. After some of these checks it boosts the server to normal priority for a while.

use std::time::{Duration, Instant};

use super::priority::Turns;

/// Checks at which the server had the same to do, after which it starves: some 5 ms. The evictor
/// and the helper keep its processor for one or two now and then.
const CHECKS: u32 = 5;

/// The length of a boost: twice as long each time, and the least again after a longer time without
/// one.
const BOOST_MIN: Duration = Duration::from_secs(1);
const BOOST_MAX: Duration = Duration::from_secs(60);
const FORGIVEN_AFTER: Duration = Duration::from_secs(10);

/// The sampler's record of one thread of the server.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// The count of turns when a message waited, and the checks since.
    waiting: Option<(u64, u32)>,
    boosted_until: Option<Instant>,
    /// The length of the last boost.
    boost: Duration,
    last_boost: Option<Instant>,
}

impl Watchdog {
    pub(crate) fn new() -> Watchdog {
        Watchdog { waiting: None, boosted_until: None, boost: BOOST_MIN, last_boost: None }
    }

    /// Checks whether the server starves; `is_asked` says whether a message waits for it. Returns
    /// whether the next check must come soon.
    pub(crate) fn check(&mut self, turns: &Turns, is_asked: impl FnOnce() -> bool) -> bool {
        if self.boosted_until.is_some_and(|until| Instant::now() >= until) {
            self.boosted_until = None;
            turns.end_boost();
        }
        let count = turns.count();
        if !turns.gives_way() || (count.is_multiple_of(2) && !is_asked()) {
            self.waiting = None;
            return false;
        }
        let checks = self.waiting.filter(|it| it.0 == count).map_or(1, |it| it.1 + 1);
        self.waiting = Some((count, checks));
        if checks > CHECKS {
            self.waiting = None;
            turns.boost();
            self.note_boost(Instant::now());
        }
        true
    }

    /// Sets the length of a boost that begins now.
    fn note_boost(&mut self, now: Instant) {
        let is_forgiven =
            self.last_boost.is_none_or(|last| now - last > FORGIVEN_AFTER + self.boost);
        self.boost = if is_forgiven { BOOST_MIN } else { (self.boost * 2).min(BOOST_MAX) };
        self.boosted_until = Some(now + self.boost);
        self.last_boost = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use uzswap_sys::process;

    use super::*;

    #[test]
    fn a_server_that_starves_is_boosted() {
        if !process::may_return_from_idle() {
            return; // this thread would stay so
        }
        let (turns, mut watchdog) = (Turns::default(), Watchdog::new());
        turns.start();
        assert!(turns.give_way() && turns.gives_way());
        // Nothing to do; then something, and it is done.
        assert!(!watchdog.check(&turns, || false));
        assert!(watchdog.check(&turns, || true));
        turns.begin();
        assert!(watchdog.check(&turns, || false));
        turns.end();
        assert!(!watchdog.check(&turns, || false));
        assert!(turns.gives_way());
        // In the middle of a turn all the time.
        turns.begin();
        assert!((0..CHECKS).all(|_| watchdog.check(&turns, || false) && turns.gives_way()));
        watchdog.check(&turns, || false);
        assert!(!turns.gives_way());
        turns.end();
        assert!(!turns.give_way(), "it is boosted still");
        watchdog.boosted_until = Some(Instant::now());
        watchdog.check(&turns, || true);
        // Asked, and no turn all the time.
        assert!(turns.give_way());
        assert!((0..CHECKS).all(|_| watchdog.check(&turns, || true) && turns.gives_way()));
        watchdog.check(&turns, || true);
        assert!(!turns.gives_way());
        assert_eq!(watchdog.boost, BOOST_MIN * 2);
        // Somebody waits for it: it may give way again at once, but not with anything locked.
        watchdog.boosted_until = Some(Instant::now());
        watchdog.check(&turns, || false);
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

    #[test]
    fn a_boost_is_twice_as_long_as_the_last_one() {
        let mut watchdog = Watchdog::new();
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            watchdog.note_boost(now);
            let boost = Duration::from_secs(seconds);
            assert_eq!(watchdog.boosted_until, Some(now + boost));
            now += boost + FORGIVEN_AFTER; // not longer: it is not forgiven
        }
        now += Duration::from_millis(1);
        watchdog.note_boost(now);
        assert_eq!(watchdog.boosted_until, Some(now + BOOST_MIN));
    }
}
