//! Whether there is any hope for programs under their limit.
//!
//! What is stored may take as much as it did: then pages leave all the time, and there is no more
//! room than before. A fault goes on nevertheless once it has waited for that in vain, with a page;
//! a program whose faults all do gets a few hundred pages a second.

use std::time::{Duration, Instant};

/// One part in so many of the limit is too little for programs to run in.
pub(super) const LEAST_PART: u64 = 8;

/// How long there must have been no hope.
const LOOKED_FOR: Duration = Duration::from_secs(3);

/// Of so many faults, one may have found room, without any hope; there must be as many in that time
/// at least.
const IN_VAIN_PART: u64 = 10;
const IN_VAIN_MIN: u64 = 30;

/// What is seen at one time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) limit_bytes: u64,
    pub(super) used_bytes: u64,
    /// What of it programs have resident.
    pub(super) resident_bytes: u64,
    /// Faults since the beginning, and those that went on without room.
    pub(super) faults: u64,
    pub(super) in_vain: u64,
}

/// Looks since a time at which there may have been no hope.
#[derive(Debug)]
struct Since {
    at: Instant,
    faults: u64,
    in_vain: u64,
    /// The limit was passed at each look.
    is_over: bool,
}

/// Looks, all of them while something is to leave.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    since: Option<Since>,
}

impl Pressure {
    /// Nothing is to leave: there is room.
    pub(super) fn is_gone(&mut self) {
        self.since = None;
    }

    /// Whether what is stored has left hardly any to run in for some seconds, in which the limit
    /// was passed all the time, or hardly a fault found room.
    pub(super) fn is_hopeless(&mut self, now: Instant, seen: Seen) -> bool {
        let Seen { limit_bytes, used_bytes, resident_bytes, faults, in_vain } = seen;
        if used_bytes.saturating_sub(resident_bytes) < limit_bytes - limit_bytes / LEAST_PART {
            self.since = None;
            return false;
        }
        let since = self.since.get_or_insert(Since { at: now, faults, in_vain, is_over: true });
        since.is_over &= used_bytes > limit_bytes;
        if now.duration_since(since.at) <= LOOKED_FOR {
            return false;
        }
        let (faults, in_vain) = (faults - since.faults, in_vain - since.in_vain);
        let is_stalled =
            in_vain >= IN_VAIN_MIN && faults.saturating_sub(in_vain) <= in_vain / IN_VAIN_PART;
        let is_hopeless = since.is_over || is_stalled;
        self.since = None;
        is_hopeless
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks each 10 ms for so long; when there was no hope for the first time, in ms. `at` says
    /// what is seen at a time.
    fn hopeless_at(ms: u64, at: impl Fn(u64) -> Seen) -> Option<u64> {
        let (start, mut pressure) = (Instant::now(), Pressure::default());
        (0..ms)
            .step_by(10)
            .find(|ms| pressure.is_hopeless(start + Duration::from_millis(*ms), at(*ms)))
    }

    const FULL: Seen =
        Seen { limit_bytes: 800, used_bytes: 801, resident_bytes: 90, faults: 0, in_vain: 0 };

    #[test]
    fn a_limit_that_is_passed_all_the_time_is_hopeless() {
        assert_eq!(hopeless_at(9_000, |_| FULL), Some(3_010));
        let now_and_then =
            |ms: u64| Seen { used_bytes: 801 - u64::from(ms.is_multiple_of(1000)), ..FULL };
        assert_eq!(hopeless_at(9_000, now_and_then), None);
        assert_eq!(hopeless_at(9_000, |_| Seen { resident_bytes: 200, ..FULL }), None);
    }

    #[test]
    fn faults_that_all_wait_in_vain_are_hopeless() {
        let below = Seen { used_bytes: 800, ..FULL };
        let of_ten_found = |found: u64| {
            move |ms: u64| Seen { faults: ms / 10 * (10 + found), in_vain: ms, ..below }
        };
        assert_eq!(hopeless_at(9_000, of_ten_found(0)), Some(3_010));
        assert_eq!(hopeless_at(9_000, of_ten_found(1)), Some(3_010));
        assert_eq!(hopeless_at(9_000, of_ten_found(2)), None);
        // Few, of a program that hardly runs.
        let seldom = |ms: u64| Seen { faults: ms / 110, in_vain: ms / 110, ..below };
        assert_eq!(hopeless_at(9_000, seldom), None);
        // Once there is room, all begins anew.
        let room_at = |ms: u64| ms.is_multiple_of(2_500);
        let resident_bytes = |ms| if room_at(ms) { 200 } else { 90 };
        let until_room = |ms| Seen { resident_bytes: resident_bytes(ms), ..of_ten_found(0)(ms) };
        assert_eq!(hopeless_at(9_000, until_room), None);
    }
}
