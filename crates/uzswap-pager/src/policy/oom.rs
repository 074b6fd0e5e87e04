//! The out-of-memory detector: whether programs can go on under their limit.
//!
//! Compressed pages may take nearly as much as before, and unevictable pages may take the rest.
//! Evictions then bring no headroom. A fault that has waited too long is served over the limit, so
//! the program gets a few hundred pages a second. It hardly gets more if faults find headroom
//! only after a wait, or if each evicted page takes long.

use std::time::{Duration, Instant};

use crate::telemetry::counters::Faults;

/// One part in so many of the limit is too little for programs to run in.
pub(crate) const LEAST_PART: u64 = 8;

/// And one in so many is none, to run in or that could be had.
const NONE_PART: u64 = 64;

/// Bytes of a limit that are none.
pub(crate) fn none_bytes(limit_bytes: u64) -> u64 {
    limit_bytes / NONE_PART
}

/// How long the programs must have thrashed.
const FULL_FOR: Duration = Duration::from_secs(3);

/// How long where memory that cannot be evicted passes the limit by itself (locked memory, memory
/// of unmanaged programs): no eviction helps, and each fault makes it worse.
const BEYOND_FOR: Duration = Duration::from_secs(1);

/// Of so many faults that waited, one may not have, without any hope; there must be as many in that
/// time at least.
const WAITED_PART: u64 = 10;
const WAITED_MIN: u64 = 30;

/// What a fault takes, on the average, without any hope: less than 5000 pages a second for each
/// thread.
const TAKES: Duration = Duration::from_micros(200);

/// What is seen at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) limit_bytes: u64,
    pub(crate) used_bytes: u64,
    /// What of it programs have resident, and can leave.
    pub(crate) leaving_bytes: u64,
    pub(crate) faults: Faults,
}

impl Seen {
    /// Whether what is stored, or cannot be, leaves programs hardly any to run in.
    pub(crate) fn is_full(&self) -> bool {
        let rest = self.used_bytes.saturating_sub(self.leaving_bytes);
        rest >= self.limit_bytes - self.limit_bytes / LEAST_PART
    }
}

/// The verdict at a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// There is hope, or it is too early to say.
    Open,
    /// Half of the time has passed without hope: the evictor tries pages again that were found to
    /// stay, so that no program is ended for them.
    Retry,
    /// The supervisor ends a program.
    Thrashing,
}

/// The samples since the first one that may show thrashing.
#[derive(Debug)]
struct Since {
    at: Instant,
    faults: Faults,
    has_retried: bool,
    /// At each sample, memory that cannot be evicted passed the limit.
    is_beyond: bool,
    /// At each sample, the limit was passed.
    is_over: bool,
    /// Or there was nothing to run in.
    has_none: bool,
    /// Or nothing free.
    is_tight: bool,
}

/// Judges the samples that are taken while pages must be evicted.
#[derive(Debug, Default)]
pub(crate) struct OomDetector {
    since: Option<Since>,
}

impl OomDetector {
    /// Nothing is to leave: there is room.
    pub(crate) fn reset(&mut self) {
        self.since = None;
    }

    /// Whether programs can run on beside stored and unevictable pages. They cannot if those took
    /// 7/8 of the limit for some seconds, and one of these holds for all that time:
    ///
    /// - the limit was passed;
    /// - hardly a fault found room;
    /// - nothing was left to run in, and hardly a fault found room at once;
    /// - nothing was free, and faults took long.
    ///
    /// The answer comes sooner where no eviction helps.
    pub(crate) fn judge(&mut self, now: Instant, seen: Seen) -> Outlook {
        let Seen { limit_bytes, used_bytes, leaving_bytes, faults } = seen;
        if !seen.is_full() {
            self.since = None;
            return Outlook::Open;
        }
        let since = self.since.get_or_insert(Since {
            at: now,
            faults,
            has_retried: false,
            is_beyond: true,
            is_over: true,
            has_none: true,
            is_tight: true,
        });
        since.is_beyond &= used_bytes.saturating_sub(leaving_bytes) > limit_bytes;
        since.is_over &= used_bytes > limit_bytes;
        since.has_none &= leaving_bytes < none_bytes(limit_bytes);
        since.is_tight &= used_bytes > limit_bytes - none_bytes(limit_bytes);
        let least = if since.is_beyond { BEYOND_FOR } else { FULL_FOR };
        let lasted = now.duration_since(since.at);
        if lasted <= least {
            let is_half = lasted > least / 2;
            let retries = is_half && !std::mem::replace(&mut since.has_retried, is_half);
            return if retries { Outlook::Retry } else { Outlook::Open };
        }
        let is_thrashing = since.is_beyond || since.is_over || since.has_starved(seen);
        self.since = None;
        if is_thrashing { Outlook::Thrashing } else { Outlook::Open }
    }
}

impl Since {
    /// Whether faults since then say that programs hardly run.
    fn has_starved(&self, seen: Seen) -> bool {
        let all = seen.faults.all - self.faults.all;
        let are_all = |of_those: u64| {
            of_those >= WAITED_MIN && all.saturating_sub(of_those) <= of_those / WAITED_PART
        };
        let waited = seen.faults.waited - self.faults.waited;
        let take = seen.faults.sum_ns.saturating_sub(self.faults.sum_ns) / all.max(1);
        are_all(seen.faults.over_limit - self.faults.over_limit)
            || self.has_none && are_all(waited)
            || self.is_tight && waited >= WAITED_MIN && take >= TAKES.as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges a sample each 10 ms for so long; the time of the first verdict of thrashing, in ms.
    /// `at` makes the sample of a time.
    fn thrashing_at(ms: u64, at: impl Fn(u64) -> Seen) -> Option<u64> {
        let (start, mut pressure) = (Instant::now(), OomDetector::default());
        (0..ms).step_by(10).find(|ms| {
            let now = start + Duration::from_millis(*ms);
            pressure.judge(now, at(*ms)) == Outlook::Thrashing
        })
    }

    const FULL: Seen = Seen {
        limit_bytes: 800,
        used_bytes: 801,
        leaving_bytes: 90,
        faults: Faults { all: 0, sum_ns: 0, waited: 0, over_limit: 0 },
    };

    /// So many faults that were served over the limit, and others that did not wait.
    fn faults(over_limit: u64, others: u64) -> Faults {
        Faults { all: over_limit + others, sum_ns: 0, waited: over_limit, over_limit }
    }

    #[test]
    fn a_limit_that_is_passed_all_the_time_is_thrashing() {
        assert_eq!(thrashing_at(9_000, |_| FULL), Some(3_010));
        let now_and_then =
            |ms: u64| Seen { used_bytes: 801 - u64::from(ms.is_multiple_of(1000)), ..FULL };
        assert_eq!(thrashing_at(9_000, now_and_then), None);
        assert_eq!(thrashing_at(9_000, |_| Seen { leaving_bytes: 200, ..FULL }), None);
    }

    #[test]
    fn memory_that_passes_the_limit_by_itself_is_thrashing_soon() {
        assert_eq!(thrashing_at(9_000, |_| Seen { used_bytes: 891, ..FULL }), Some(1_010));
        let at_first = |ms| Seen { used_bytes: if ms < 900 { 891 } else { 890 }, ..FULL };
        assert_eq!(thrashing_at(9_000, at_first), Some(3_010));
    }

    #[test]
    fn pages_that_stay_are_tried_again_once_at_half_time() {
        for (used_bytes, half) in [(801, 1_510), (891, 510)] {
            let (start, mut pressure) = (Instant::now(), OomDetector::default());
            let retries: Vec<u64> = (0..half * 2)
                .step_by(10)
                .filter(|ms| {
                    let now = start + Duration::from_millis(*ms);
                    pressure.judge(now, Seen { used_bytes, ..FULL }) == Outlook::Retry
                })
                .collect();
            assert_eq!(retries, [half]);
        }
    }

    #[test]
    fn what_is_seen_counts_for_three_seconds_and_until_there_is_room() {
        let (start, mut pressure) = (Instant::now(), OomDetector::default());
        let judge = |pressure: &mut OomDetector, ms: u64, used_bytes: u64| {
            let now = start + Duration::from_millis(ms);
            pressure.judge(now, Seen { used_bytes, ..FULL }) == Outlook::Thrashing
        };
        // One sample below the limit counts for the first three seconds alone.
        let below_once = [(0, 800), (3_010, 801), (3_020, 801), (6_040, 801)];
        let seen = below_once.map(|(ms, used)| judge(&mut pressure, ms, used));
        assert_eq!(seen, [false, false, false, true]);
        // After a report, the next takes as long again.
        let seen = [6_050, 9_000, 9_060, 20_000].map(|ms| judge(&mut pressure, ms, 801));
        assert_eq!(seen, [false, false, true, false]);
        pressure.reset();
        let seen = [23_010, 26_000, 26_020].map(|ms| judge(&mut pressure, ms, 801));
        assert_eq!(seen, [false, false, true], "there was room between");
    }

    #[test]
    fn few_faults_that_take_long_are_those_of_a_program_that_hardly_runs() {
        let of = |in_all: u64| {
            move |ms: u64| {
                let waited = ms * in_all / 3_010;
                let faults = Faults { all: waited, sum_ns: waited << 20, waited, over_limit: 0 };
                Seen { used_bytes: 800, leaving_bytes: 50, faults, ..FULL }
            }
        };
        assert_eq!(thrashing_at(3_020, of(WAITED_MIN)), Some(3_010));
        assert_eq!(thrashing_at(3_020, of(WAITED_MIN - 1)), None);
    }

    #[test]
    fn faults_that_all_go_over_the_limit_are_thrashing() {
        let below = Seen { used_bytes: 800, ..FULL };
        let of_ten_found = |found: u64| {
            move |ms: u64| Seen { faults: faults(ms / 10 * 10, ms / 10 * found), ..below }
        };
        assert_eq!(thrashing_at(9_000, of_ten_found(0)), Some(3_010));
        assert_eq!(thrashing_at(9_000, of_ten_found(1)), Some(3_010));
        assert_eq!(thrashing_at(9_000, of_ten_found(2)), None);
        // Few, of a program that hardly runs.
        let seldom = |ms: u64| Seen { faults: faults(ms / 110, 0), ..below };
        assert_eq!(thrashing_at(9_000, seldom), None);
        // Once there is room, all begins anew.
        let room_at = |ms: u64| ms.is_multiple_of(2_500);
        let leaving_bytes = |ms| if room_at(ms) { 200 } else { 90 };
        let until_room = |ms| Seen { leaving_bytes: leaving_bytes(ms), ..of_ten_found(0)(ms) };
        assert_eq!(thrashing_at(9_000, until_room), None);
    }

    #[test]
    fn faults_that_all_wait_where_there_is_nothing_to_run_in_are_thrashing() {
        let of_ten_go_on = |go_on: u64| {
            move |ms: u64| {
                let (waited, all) = (ms / 10 * 10, ms / 10 * (10 + go_on));
                let faults = Faults { all, sum_ns: 0, waited, over_limit: 0 };
                Seen { used_bytes: 799, leaving_bytes: 12, faults, ..FULL }
            }
        };
        assert_eq!(thrashing_at(9_000, of_ten_go_on(0)), None); // not less than one in 64
        let bare = |go_on| move |ms| Seen { leaving_bytes: 11, ..of_ten_go_on(go_on)(ms) };
        assert_eq!(thrashing_at(9_000, bare(1)), Some(3_010));
        assert_eq!(thrashing_at(9_000, bare(2)), None);
        let now_and_then = |ms: u64| {
            let leaving_bytes = if ms.is_multiple_of(1000) { 13 } else { 11 };
            Seen { leaving_bytes, ..of_ten_go_on(0)(ms) }
        };
        assert_eq!(thrashing_at(9_000, now_and_then), None);
    }

    #[test]
    fn faults_that_take_long_where_nothing_is_free_are_thrashing() {
        let of = |used_bytes: u64, us: u64| {
            move |ms: u64| {
                let faults =
                    Faults { all: ms, sum_ns: ms * us * 1000, waited: ms / 2, over_limit: 0 };
                Seen { used_bytes, leaving_bytes: 50, faults, ..FULL }
            }
        };
        assert_eq!(thrashing_at(9_000, of(789, 200)), Some(3_010)); // 12 are one in 64
        assert_eq!(thrashing_at(9_000, of(789, 199)), None);
        assert_eq!(thrashing_at(9_000, of(788, 900)), None);
        let now_and_then = |ms: u64| of(789 - u64::from(ms.is_multiple_of(1000)), 900)(ms);
        assert_eq!(thrashing_at(9_000, now_and_then), None);
    }
}
