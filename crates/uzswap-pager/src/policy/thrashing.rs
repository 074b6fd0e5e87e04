//! Whether programs wait for pages far longer than they run: they go on, and the user cannot see
//! why they take so long.

use std::time::{Duration, Instant};

/// The time over which waits and work are compared.
pub(crate) const WINDOW: Duration = Duration::from_secs(20);

/// Programs thrash where they wait so many times as long as they run, ...
const TIMES: u32 = 3;

/// ... and wait for one part in so many of the window at least.
const WINDOW_PART: u32 = 2;

/// Times since the run began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) at: Instant,
    /// In which threads waited for pages, in sum.
    pub(crate) waited: Duration,
    /// In which programs had a processor, in sum.
    pub(crate) ran: Duration,
}

/// Compares waits and work, until it has reported once that programs thrash.
#[derive(Debug, Default)]
pub(crate) struct Thrashing {
    /// Times at the start of the window.
    start: Option<Times>,
    is_reported: bool,
}

impl Thrashing {
    /// Sees the times of now; at the end of the first window in which programs thrashed, how many
    /// times as long as they ran they waited.
    pub(crate) fn see(&mut self, now: Times) -> Option<u64> {
        let start = *self.start.get_or_insert(now);
        // Less than before: the time of a process is lost that nobody waited for.
        let Some(ran) = now.ran.checked_sub(start.ran) else {
            self.start = Some(now);
            return None;
        };
        if self.is_reported || now.at - start.at < WINDOW {
            return None;
        }
        self.start = Some(now);
        let waited = now.waited.saturating_sub(start.waited);
        self.is_reported = waited >= ran * TIMES && waited >= WINDOW / WINDOW_PART;
        // A tick of the clock is the least that is known of a run.
        let ran_ms = ran.as_millis().max(10);
        self.is_reported.then(|| (waited.as_millis() / ran_ms) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds of all reports, and their factors. In each second, programs wait and run for the
    /// milliseconds that `each` returns.
    fn reports(seconds: u64, each: impl Fn(u64) -> (u64, u64)) -> Vec<(u64, u64)> {
        let (start, mut thrashing) = (Instant::now(), Thrashing::default());
        let (mut waited, mut ran) = (0, 0);
        let mut reports = Vec::new();
        for second in 0..seconds {
            let now = Times {
                at: start + Duration::from_secs(second),
                waited: Duration::from_millis(waited),
                ran: Duration::from_millis(ran),
            };
            reports.extend(thrashing.see(now).map(|times| (second, times)));
            let (more_waited, more_ran) = each(second);
            (waited, ran) = (waited + more_waited, ran + more_ran);
        }
        reports
    }

    #[test]
    fn programs_that_wait_longer_than_they_run_thrash() {
        assert_eq!(reports(100, |_| (900, 100)), [(20, 9)], "once");
        assert_eq!(
            reports(100, |second| if second < 30 { (0, 1000) } else { (900, 10) }),
            [(60, 90)]
        );
        assert_eq!(reports(100, |_| (1000, 0)), [(20, 2000)], "no tick of the clock");
        assert_eq!(reports(100, |_| (750, 251)), [], "it runs too much");
        assert_eq!(reports(100, |_| (499, 1)), [], "it sleeps");
        assert_eq!(reports(20, |_| (900, 100)), [], "the window is not over");
    }

    #[test]
    fn time_that_is_lost_is_no_time_in_which_nothing_ran() {
        let (start, mut thrashing) = (Instant::now(), Thrashing::default());
        let mut see = |windows: u32, ran: Duration| {
            let [at, waited] = [WINDOW * windows; 2];
            thrashing.see(Times { at: start + at, waited, ran })
        };
        assert_eq!(see(0, WINDOW), None);
        // A process that ran for long has ended, and nobody waited for it.
        assert_eq!(see(1, WINDOW / 2), None);
        assert_eq!(see(2, WINDOW), None);
        assert_eq!(see(3, WINDOW + WINDOW / 10), Some(10));
    }
}
