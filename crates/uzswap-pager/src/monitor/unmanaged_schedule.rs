//! When the tree of processes is scanned next, and how deep.

use std::time::{Duration, Instant};

/// How often all processes are scanned.
const FULL_EVERY: Duration = Duration::from_millis(500);

/// How soon processes that a scan saw for the first time are scanned again: a program may be short,
/// and take the whole limit. These scans take one part in so many of a processor at most.
pub(super) const SOON: Duration = Duration::from_millis(100);
const SOON_PART: u32 = 20;

/// Between full scans the thread follows unmanaged memory, as soon as that may have taken the
/// headroom. As a rule programs fill so many bytes a second at most. While no memory is unmanaged
/// these scans take one part in so many of a processor at most.
const FILLED_BYTES: u64 = 2 << 30;
const FOLLOW_MIN: Duration = Duration::from_millis(10);
const FOLLOW_PART: u32 = 100;

/// Scans that find a process without a helper until it counts as unmanaged: a program that has just
/// started connects in a moment, or ends.
pub(super) const SCANS: u32 = 2;

/// How much a scan does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Counts the memory of processes without a helper.
    Follow,
    /// Counts as a scan of processes that were seen for the first time a moment ago.
    Newcomers,
    /// Counts as a scan of all processes.
    Full,
}

impl Depth {
    /// Whether it counts as a scan of a process that had so many.
    pub(super) fn counts(self, scans: u32) -> bool {
        match self {
            Depth::Follow => false,
            Depth::Newcomers => scans < SCANS,
            Depth::Full => true,
        }
    }
}

/// The findings of a scan that decide when the next one is due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scanned {
    pub(super) depth: Depth,
    /// Some processes were seen for the first time.
    pub(super) has_newcomers: bool,
    /// Some memory is unmanaged.
    pub(super) has_unmanaged: bool,
    /// Processor time of the scan.
    pub(super) took: Duration,
    pub(super) headroom_bytes: u64,
}

/// The times of the next scans.
#[derive(Debug)]
pub(super) struct Schedule {
    follow: Instant,
    newcomers: Option<Instant>,
    full: Instant,
}

impl Schedule {
    /// A full scan is due at once.
    pub(super) fn new(now: Instant) -> Schedule {
        Schedule { follow: now, newcomers: None, full: now }
    }

    /// When a scan is due next.
    pub(super) fn next(&self) -> Instant {
        let others = self.newcomers.map_or(self.full, |newcomers| newcomers.min(self.full));
        others.min(self.follow)
    }

    /// The depth of the scan that is due now, if one is. A requested scan is a full one.
    pub(super) fn depth(&self, is_requested: bool, now: Instant) -> Option<Depth> {
        if is_requested || now >= self.full {
            return Some(Depth::Full);
        }
        let is_soon = self.newcomers.is_some_and(|newcomers| now >= newcomers);
        let follows = now >= self.follow;
        is_soon.then_some(Depth::Newcomers).or_else(|| follows.then_some(Depth::Follow))
    }

    /// Sets the times of the next scans after one that ends now.
    pub(super) fn end_scan(&mut self, now: Instant, scanned: Scanned) {
        let Scanned { depth, has_newcomers, has_unmanaged, took, headroom_bytes } = scanned;
        let part = if has_unmanaged { SOON_PART } else { FOLLOW_PART };
        let until_filled = Duration::from_secs_f64(headroom_bytes as f64 / FILLED_BYTES as f64);
        self.follow = now + until_filled.max(FOLLOW_MIN).max(took * part);
        if depth == Depth::Full {
            self.full = now + FULL_EVERY;
        }
        let soon = now + SOON.max(took * SOON_PART);
        self.newcomers = match depth {
            Depth::Follow => self.newcomers.or(has_newcomers.then_some(soon)),
            _ => has_newcomers.then_some(soon),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newcomers_and_filling_programs_are_scanned_before_all_others() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut schedule = Schedule::new(start);
        assert_eq!(schedule.depth(false, start), Some(Depth::Full));
        let mut scanned = Scanned {
            depth: Depth::Full,
            has_newcomers: true,
            has_unmanaged: true,
            took: Duration::from_millis(1),
            headroom_bytes: FILLED_BYTES / 20,
        };
        schedule.end_scan(start, scanned);
        assert_eq!(schedule.next(), at(50), "the headroom may be filled");
        assert_eq!(
            [49, 50, 100, 500].map(|ms| schedule.depth(false, at(ms))),
            [None, Some(Depth::Follow), Some(Depth::Newcomers), Some(Depth::Full)]
        );
        assert_eq!(schedule.depth(true, at(1)), Some(Depth::Full));
        // To follow does not put off the other scans.
        scanned = Scanned { depth: Depth::Follow, headroom_bytes: 0, ..scanned };
        schedule.end_scan(at(90), scanned);
        assert_eq!((schedule.follow, schedule.next()), (at(110), at(100)));
        scanned = Scanned { depth: Depth::Newcomers, has_newcomers: false, ..scanned };
        schedule.end_scan(at(100), Scanned { has_unmanaged: false, ..scanned });
        assert_eq!((schedule.newcomers, schedule.next()), (None, at(200)));
        // A long scan puts newcomers off.
        let took = Duration::from_millis(10);
        schedule.end_scan(at(100), Scanned { has_newcomers: true, took, ..scanned });
        assert_eq!((schedule.newcomers, schedule.follow), (Some(at(300)), at(300)));
    }

    #[test]
    fn each_depth_counts_for_some_processes() {
        let counts = |depth: Depth| [0, SCANS].map(|scans| depth.counts(scans));
        assert_eq!(
            [Depth::Follow, Depth::Newcomers, Depth::Full].map(counts),
            [[false, false], [true, false], [true, true]]
        );
    }
}
