//! The throttle: whether a fault is served, waits for headroom, or is served over the limit.
//!
//! ```text
//!  headroom?  else  waited briefly?  else  will pages be freed?  else
//!    serve            wait                   wait longer            serve over the limit
//! ```

use std::time::Duration;

/// Rounds of the evictor for which a fault waits: the second one has begun after the fault. More
/// rounds would not help.
const ROUNDS: u64 = 2;

/// How long a fault waits as a rule: as long as the evictor waits for a late helper
/// (`program/helper.rs`), which may itself wait for a page.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// How long a fault waits while pages are evicted all the time, or while a process is about to be
/// ended. A helper may report pages and free none: it delays no thread for longer.
const LONGER_WAIT_MAX: Duration = Duration::from_millis(100);

/// Pages in a row that the server unprotects for a first write: without headroom, fewer than the
/// evictor frees in a round (128, `policy/victim.rs`).
const UNPROTECTED_MIN: usize = 8;
const UNPROTECTED_MAX: usize = 64;

/// A try to serve a fault: the values that decide about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// Time and rounds of the evictor since the fault.
    pub(crate) waited: Duration,
    pub(crate) rounds: u64,
    /// The helper faults. The evictor waits for it, so it must not wait for the evictor.
    pub(crate) is_helper: bool,
    /// The thread writes to a page that may be another process's as well.
    pub(crate) is_first_write: bool,
    /// A thread of the process is about to fork.
    pub(crate) is_about_to_fork: bool,
    /// The process has a helper, which can evict pages.
    pub(crate) has_helper: bool,
    /// Pages that the server may give to programs now, and pages up to the limit.
    pub(crate) headroom_pages: usize,
    pub(crate) pages_to_limit: usize,
    /// Programs may not even exceed the limit by another page.
    pub(crate) is_exhausted: bool,
    /// The evictor frees pages, by its last report.
    pub(crate) is_freeing: bool,
    /// Stored and unevictable pages leave too small a working set, by its last report.
    pub(crate) is_full: bool,
}

/// The decision about a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Serve,
    /// Headroom is likely soon.
    Wait,
    /// The usual time has passed, but pages are evicted, or a process will be ended.
    WaitLonger,
    /// Other threads may depend on the faulting one.
    ServeOverLimit,
}

impl Attempt {
    /// Whether the fault is served, or waits for the evictor.
    pub(crate) fn decide(&self) -> Decision {
        // A shared page that the evictor frees in a round may still be another process's.
        let may_help = self.is_first_write || self.rounds < ROUNDS;
        let may_wait = may_help && self.waited <= WAIT_MAX;
        // The evictor moves no page of a process that is about to fork, and that process has all
        // protected pages already.
        let is_wait_useless = self.is_first_write && self.is_about_to_fork;
        match (may_wait, is_wait_useless) {
            _ if self.headroom_pages > 0 || self.is_helper => Decision::Serve,
            (true, false) => Decision::Wait,
            (true, true) => Decision::Serve,
            (false, false) if self.may_wait_longer() => Decision::WaitLonger,
            (false, _) => Decision::ServeOverLimit,
        }
    }

    /// Whether the evictor keeps freeing pages, or a process will be ended. A child whose helper is
    /// on its way can give up no pages.
    fn may_wait_longer(&self) -> bool {
        let will_have_headroom =
            self.is_freeing && self.pages_to_limit == 0 || self.is_full && self.is_exhausted;
        self.has_helper && self.waited <= LONGER_WAIT_MAX && will_have_headroom
    }

    /// Pages in a row that the server unprotects for a first write.
    pub(crate) fn pages_to_unprotect(&self) -> usize {
        self.headroom_pages.clamp(UNPROTECTED_MIN, UNPROTECTED_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::Decision::{Serve, ServeOverLimit, Wait, WaitLonger};
    use super::*;

    const NS: Duration = Duration::from_nanos(1);

    /// A fault without headroom that has just happened, while the evictor frees nothing.
    const NEW: Attempt = Attempt {
        waited: Duration::ZERO,
        rounds: 0,
        is_helper: false,
        is_first_write: false,
        is_about_to_fork: false,
        has_helper: true,
        headroom_pages: 0,
        pages_to_limit: 0,
        is_exhausted: false,
        is_freeing: false,
        is_full: false,
    };

    /// The same after its usual wait.
    const LATE: Attempt = Attempt { rounds: ROUNDS, ..NEW };

    #[test]
    fn a_fault_waits_for_two_rounds_and_20_ms_at_most() {
        let ms = Duration::from_millis;
        let decide = |rounds, waited| Attempt { rounds, waited, ..NEW }.decide();
        assert_eq!([decide(0, ms(0)), decide(1, ms(20))], [Wait; 2]);
        assert_eq!([decide(2, ms(0)), decide(1, ms(20) + NS)], [ServeOverLimit; 2]);
        // The pages that a round frees may be another process's still.
        let first_write =
            |rounds, waited| Attempt { is_first_write: true, rounds, waited, ..NEW }.decide();
        assert_eq!(first_write(1000, ms(20)), Wait);
        assert_eq!(first_write(0, ms(20) + NS), ServeOverLimit);
    }

    #[test]
    fn a_fault_waits_longer_only_if_pages_will_be_free() {
        let (freeing, full) = ((true, false), (false, true));
        for ((is_freeing, is_full), pages_to_limit, is_exhausted, expected) in [
            ((false, false), 0, true, ServeOverLimit),
            (freeing, 0, false, WaitLonger),
            (freeing, 1, true, ServeOverLimit),
            (full, 1, true, WaitLonger),
            (full, 0, false, ServeOverLimit),
            ((true, true), 1, false, ServeOverLimit),
        ] {
            let late = Attempt { is_freeing, is_full, pages_to_limit, is_exhausted, ..LATE };
            assert_eq!(late.decide(), expected, "{late:?}");
            assert_eq!(Attempt { rounds: 1, ..late }.decide(), Wait, "not late yet");
        }
    }

    #[test]
    fn the_longer_wait_ends_after_100_ms_and_needs_a_helper() {
        let freeing = Attempt { is_freeing: true, ..LATE };
        let decide = |waited| Attempt { waited, ..freeing }.decide();
        let most = Duration::from_millis(100);
        assert_eq!([decide(most), decide(most + NS)], [WaitLonger, ServeOverLimit]);
        assert_eq!(Attempt { has_helper: false, ..freeing }.decide(), ServeOverLimit);
    }

    #[test]
    fn headroom_serves_each_fault_and_a_helper_needs_none() {
        let freeing = Attempt { is_freeing: true, ..LATE };
        for attempt in [NEW, LATE, freeing] {
            assert_ne!(attempt.decide(), Serve);
            assert_eq!(Attempt { headroom_pages: 1, ..attempt }.decide(), Serve);
            assert_eq!(Attempt { is_helper: true, ..attempt }.decide(), Serve);
        }
    }

    #[test]
    fn a_first_write_before_a_fork_does_not_wait() {
        let decide = |is_first_write, waited| {
            Attempt { is_first_write, waited, is_about_to_fork: true, is_freeing: true, ..LATE }
                .decide()
        };
        assert_eq!(decide(true, WAIT_MAX), Serve);
        assert_eq!(decide(true, WAIT_MAX + NS), ServeOverLimit);
        assert_eq!(decide(false, WAIT_MAX + NS), WaitLonger, "another kind of access");
    }

    #[test]
    fn a_first_write_unprotects_8_to_64_pages() {
        let pages = |headroom_pages| Attempt { headroom_pages, ..NEW }.pages_to_unprotect();
        assert_eq!([0, 8, 9, 63, 64, 65].map(pages), [8, 8, 9, 63, 64, 64]);
    }
}
