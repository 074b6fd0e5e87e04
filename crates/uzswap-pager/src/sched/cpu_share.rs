//! How long the supervisor may run before others: its share of the processors.
//!
//! Its threads run before all others of their session (nice -20), or of the machine (`SCHED_FIFO`).
//! This priority costs nobody anything while no thread waits for a processor, or only threads of
//! the run do. While a thread of others does, the supervisor pays from a credit, which grows by its
//! share of the time. The supervisor pays for the time in which its threads run or are runnable,
//! because others of the session do not run then. Without credit its threads run at ordinary
//! priority until the credit of a second is saved. They also do while evictions are ineffective,
//! however much it has saved.

use std::time::{Duration, Instant};

/// How long it is measured at once.
const PERIOD: Duration = Duration::from_millis(100);

/// The credit of so much time is saved at most.
const SAVED: Duration = Duration::from_secs(1);

/// The state of the machine and of the supervisor's work at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuSample {
    /// More threads are runnable than there are processors.
    pub(crate) is_contended: bool,
    /// Some of those are not the run's, as far as is known.
    pub(crate) is_beside_others: bool,
    /// Evictions bring programs nothing.
    pub(crate) is_ineffective: bool,
}

/// The account of time that threads of the supervisor run or are runnable.
#[derive(Debug)]
pub(crate) struct CpuShare {
    /// Processors that it may take at raised priority.
    processors: f64,
    /// Since when the period is, and that time of all threads up to then.
    since: Instant,
    demanded: Duration,
    /// Samples in this period, and those of them with contention.
    samples: u32,
    contended: u32,
    /// In seconds of one processor.
    credit: f64,
    is_raised: bool,
    /// How long it was not.
    ordinary: Duration,
}

impl CpuShare {
    /// Of a supervisor that may take `percent` of so many processors at raised priority.
    pub(crate) fn new(percent: u8, processors: u32, now: Instant) -> CpuShare {
        let processors = f64::from(percent) / 100.0 * f64::from(processors);
        CpuShare {
            processors,
            since: now,
            demanded: Duration::ZERO,
            samples: 0,
            contended: 0,
            credit: processors * SAVED.as_secs_f64(),
            is_raised: true,
            ordinary: Duration::ZERO,
        }
    }

    /// Adds a sample; whether threads of the supervisor may run at raised priority from now on.
    /// `demanded` is how long they ran or were runnable since their start, in sum.
    pub(crate) fn see(
        &mut self,
        now: Instant,
        sample: CpuSample,
        demanded: impl FnOnce() -> Duration,
    ) -> bool {
        self.samples += 1;
        self.contended += u32::from(sample.is_contended);
        let time = now.duration_since(self.since);
        if time >= PERIOD {
            self.end_period(time, sample, demanded());
            self.since = now;
            (self.samples, self.contended) = (0, 0);
        }
        self.is_raised
    }

    /// How long threads have run at ordinary priority, up to the last period.
    pub(crate) fn ordinary(&self) -> Duration {
        self.ordinary
    }

    fn end_period(&mut self, time: Duration, last: CpuSample, demanded: Duration) {
        let is_contended = self.contended * 2 >= self.samples;
        // Less than before where a thread has ended.
        let before = std::mem::replace(&mut self.demanded, demanded);
        let used = demanded.saturating_sub(before);
        let most = self.processors * SAVED.as_secs_f64();
        if self.is_raised && is_contended && last.is_beside_others {
            self.credit -= used.as_secs_f64();
        }
        self.credit = (self.credit + self.processors * time.as_secs_f64()).min(most);
        if !self.is_raised {
            self.ordinary += time;
        }
        let has_credit = self.credit > 0.0 && (self.is_raised || self.credit >= most);
        let may_be_raised = has_credit || !last.is_beside_others;
        self.is_raised = !is_contended || may_be_raised && !last.is_ineffective;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: CpuSample =
        CpuSample { is_contended: false, is_beside_others: true, is_ineffective: false };
    const CONTENDED: CpuSample = CpuSample { is_contended: true, ..IDLE };
    const ALONE: CpuSample = CpuSample { is_beside_others: false, ..CONTENDED };

    /// For so many seconds, a supervisor with a share in percent of two processors would use so
    /// much of one at raised priority, and `ordinary` of one otherwise. How much it used at raised
    /// priority, and how long it had it, in parts of that time. `at` says all else, by ms.
    fn run(
        seconds: u64,
        percent: u8,
        [raised, ordinary]: [f64; 2],
        at: impl Fn(u64) -> CpuSample,
    ) -> [f64; 2] {
        let start = Instant::now();
        let mut share = CpuShare::new(percent, 2, start);
        let (mut used, mut used_raised, mut time_raised) = (Duration::ZERO, 0.0, 0.0);
        let mut is_raised = true;
        for ms in 1..=seconds * 1000 {
            let part = if is_raised { raised } else { ordinary };
            used += Duration::from_secs_f64(part / 1e3);
            if is_raised {
                used_raised += part / 1e3;
                time_raised += 1e-3;
            }
            is_raised = share.see(start + Duration::from_millis(ms), at(ms), || used);
        }
        let time = seconds as f64;
        assert!((share.ordinary().as_secs_f64() - (time - time_raised)).abs() < 0.2);
        [used_raised / time, time_raised / time]
    }

    #[test]
    fn nothing_is_paid_while_nobody_waits() {
        assert_eq!(run(20, 5, [2.0; 2], |_| IDLE).map(f64::round), [2.0, 1.0]);
        assert_eq!(run(20, 0, [2.0; 2], |_| IDLE).map(f64::round), [2.0, 1.0]);
        let ineffective = CpuSample { is_ineffective: true, ..IDLE };
        assert_eq!(run(20, 5, [2.0; 2], |_| ineffective).map(f64::round), [2.0, 1.0]);
        // A thread that waits now and then is no contention.
        let now_and_then = |ms: u64| CpuSample { is_contended: ms.is_multiple_of(3), ..IDLE };
        assert_eq!(run(20, 5, [2.0; 2], now_and_then).map(f64::round), [2.0, 1.0]);
        // Nor are threads of the run.
        assert_eq!(run(20, 5, [2.0; 2], |_| ALONE).map(f64::round), [2.0, 1.0]);
        assert_eq!(run(20, 0, [2.0; 2], |_| ALONE).map(f64::round), [2.0, 1.0]);
    }

    #[test]
    fn raised_time_is_the_share_while_others_wait() {
        for percent in [2, 5, 10, 40] {
            let share = 2.0 * f64::from(percent) / 100.0;
            for raised in [1.0, 1.5, 2.0] {
                let [used, _] = run(200, percent, [raised, 0.3], |_| CONTENDED);
                // And what was saved at first, and may be used up within a period.
                assert!(used > share * 0.9 && used < share * 1.1 + 0.01, "{percent}: {used}");
            }
        }
        // One that takes less is not held back.
        assert_eq!(run(20, 5, [0.09; 2], |_| CONTENDED)[1].round(), 1.0);
        assert_eq!(run(20, 100, [2.0; 2], |_| CONTENDED)[1].round(), 1.0);
        assert!(run(20, 0, [0.1; 2], |_| CONTENDED)[1] < 0.01);
    }

    #[test]
    fn ineffective_work_has_no_share() {
        let ineffective = CpuSample { is_ineffective: true, ..CONTENDED };
        for percent in [5, 100] {
            assert!(run(20, percent, [0.01; 2], |_| ineffective)[1] < 0.01);
            let alone = CpuSample { is_ineffective: true, ..ALONE };
            assert!(run(20, percent, [0.01; 2], |_| alone)[1] < 0.01);
        }
        let first_half = |ms| if ms < 10_000 { ineffective } else { CONTENDED };
        assert!((run(20, 5, [0.01; 2], first_half)[1] - 0.5).abs() < 0.02);
    }

    #[test]
    fn threads_are_raised_within_a_period_once_nobody_waits() {
        let start = Instant::now();
        let mut share = CpuShare::new(5, 2, start);
        let used = || Duration::from_secs(1);
        let mut see = |ms: u64, sample| share.see(start + Duration::from_millis(ms), sample, used);
        assert!(!see(100, CONTENDED));
        assert!(!see(150, IDLE));
        assert!(see(200, IDLE));
        // The supervisor still owes the time that it used then.
        assert!(!see(300, CONTENDED));
    }

    /// Has a supervisor that may take half of two processors use 2.5 of them, for so many periods
    /// of each sample. Whether it ran at raised priority after each of the last ones.
    fn raised_after(phases: &[(u64, CpuSample)]) -> Vec<bool> {
        let start = Instant::now();
        let mut share = CpuShare::new(50, 2, start);
        let (mut period, mut raised) = (0, Vec::new());
        for &(periods, sample) in phases {
            raised.clear();
            for _ in 0..periods {
                period += 1;
                let used = || Duration::from_millis(250 * period);
                raised.push(share.see(start + Duration::from_millis(100 * period), sample, used));
            }
        }
        raised
    }

    #[test]
    fn the_credit_of_a_second_is_used_up_and_saved_again() {
        // In a period the credit of one second loses 0.15 s, and gains 0.1 s without priority.
        let expected: Vec<bool> = (1..=18).map(|period| period < 7 || period == 18).collect();
        assert_eq!(raised_after(&[(18, CONTENDED)]), expected);
        // No more is saved, and only contention with others is paid for.
        assert_eq!(raised_after(&[(100, IDLE), (18, CONTENDED)]), expected);
        assert_eq!(raised_after(&[(100, ALONE), (18, CONTENDED)]), expected);
    }

    #[test]
    fn half_of_the_samples_of_a_period_are_contention() {
        let ineffective = CpuSample { is_ineffective: true, ..CONTENDED };
        let calm = CpuSample { is_contended: false, ..ineffective };
        for (contended, is_raised) in [(1, true), (2, false), (3, false)] {
            let start = Instant::now();
            let mut share = CpuShare::new(50, 2, start);
            let mut see = |sample: u64, is_contended| {
                let sample_at = start + Duration::from_millis(25 * sample);
                share.see(sample_at, if is_contended { ineffective } else { calm }, || {
                    Duration::ZERO
                })
            };
            assert!((1..4).all(|sample| see(sample, sample <= contended)));
            assert_eq!(see(4, false), is_raised, "{contended} of 4");
        }
        // Each period counts its own samples.
        assert_eq!(raised_after(&[(10, ineffective), (1, calm)]), [true]);
    }
}
