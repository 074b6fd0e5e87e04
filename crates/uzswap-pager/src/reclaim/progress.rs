//! The evictor's reports. The fault server and the scheduler decide by them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a report holds: some rounds of the evictor.
const EXPECTED_FOR: Duration = Duration::from_millis(20);

/// How long the evictor counts as without effect: longer than a period of the supervisor's share.
const INEFFECTIVE_FOR: Duration = Duration::from_millis(200);

/// Reports of the evictor; times are in ms since the start.
#[derive(Debug)]
pub(crate) struct EvictorProgress {
    start: Instant,
    frees_until: AtomicU64,
    full_until: AtomicU64,
    ineffective_until: AtomicU64,
    rounds: AtomicU64,
    /// A fault waits for headroom.
    is_awaited: AtomicBool,
}

impl EvictorProgress {
    pub(crate) fn new(now: Instant) -> EvictorProgress {
        EvictorProgress {
            start: now,
            frees_until: AtomicU64::new(0),
            full_until: AtomicU64::new(0),
            ineffective_until: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            is_awaited: AtomicBool::new(false),
        }
    }

    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_millis() as u64
    }

    fn hold(&self, until: &AtomicU64, now: Instant, time: Duration) {
        until.store(self.ms(now + time), Ordering::Relaxed);
    }

    fn holds(&self, until: &AtomicU64, now: Instant) -> bool {
        self.ms(now) < until.load(Ordering::Relaxed)
    }

    /// The evictor frees pages.
    pub(super) fn note_freeing(&self, now: Instant) {
        self.hold(&self.frees_until, now, EXPECTED_FOR);
    }

    /// Stored pages leave hardly any working set.
    pub(super) fn note_full(&self, now: Instant) {
        self.hold(&self.full_until, now, EXPECTED_FOR);
        self.note_ineffective(now);
    }

    /// The evictor has freed nothing, or programs fault all freed pages back.
    pub(super) fn note_ineffective(&self, now: Instant) {
        self.hold(&self.ineffective_until, now, INEFFECTIVE_FOR);
    }

    /// Whether the evictor frees pages, by its last report.
    pub(crate) fn is_freeing(&self, now: Instant) -> bool {
        self.holds(&self.frees_until, now)
    }

    /// Whether the working set was too small, by the last report: a program will be ended.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.holds(&self.full_until, now)
    }

    /// Whether the evictor's last rounds had no effect.
    pub(crate) fn is_ineffective(&self, now: Instant) -> bool {
        self.holds(&self.ineffective_until, now)
    }

    /// Rounds of the evictor: a fault waits for headroom for two of them at most.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    pub(super) fn end_round(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a fault waits for headroom.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    pub(crate) fn set_awaited(&self, is_awaited: bool) {
        self.is_awaited.store(is_awaited, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_counted_and_a_waiting_fault_is_known() {
        let progress = EvictorProgress::new(Instant::now());
        assert_eq!((progress.rounds(), progress.is_awaited()), (0, false));
        (0..3).for_each(|_| progress.end_round());
        progress.set_awaited(true);
        assert_eq!((progress.rounds(), progress.is_awaited()), (3, true));
    }

    #[test]
    fn a_report_holds_for_a_while() {
        let start = Instant::now();
        let progress = EvictorProgress::new(start);
        let at = |ms| start + Duration::from_millis(ms);
        let states = |ms| {
            let now = at(ms);
            [progress.is_freeing(now), progress.is_full(now), progress.is_ineffective(now)]
        };
        assert_eq!(states(0), [false; 3]);
        progress.note_freeing(at(5));
        assert_eq!(states(24), [true, false, false]);
        progress.note_full(at(30));
        assert_eq!(
            [49, 50, 229, 230].map(states),
            [[false, true, true], [false, false, true], [false, false, true], [false; 3],]
        );
    }
}
