//! The pages of a program that have to stay as they are, from those that it touches.

use serde::{Deserialize, Serialize};

use super::Measured;
use crate::corpus::working_set::{
    Budget, WORKING_SHARE, Window, least_time_factor, seconds, working_set_pages,
};
use uzswap::page::PAGE_SIZE;
use uzswap::random::SplitMix64;

/// The share of a program's pages that stay as they are where nothing shows which ones it needs.
/// With a third, programs took several times as long (bench/advise).
const KEPT_SHARE: f64 = 1.0 / 2.0;

/// Shares to choose from, in this many parts of the pages: a quarter to seven eighths. With less,
/// the supervisor's own work shows; with more, there is little to save.
const PARTS: u32 = 32;
const PARTS_LEAST: u32 = PARTS / 4;
const PARTS_MOST: u32 = PARTS / 8 * 7;

/// Shares of an outlook, in the same parts.
const SHOWN: [u32; 4] = [PARTS / 8 * 7, PARTS / 4 * 3, PARTS / 2, PARTS / 4];

/// The least time factor of an advised limit, which also keeps the pages that the program touches
/// in nine of ten windows. Without two in a hundred of these, xz took more than twelve times as
/// long; its least was 1.05 (bench/advise). Other programs took up to three times as long as their
/// least (docs/experiments/2026-11-27-working-set.md).
const FACTOR_MAX: f64 = 1.1;

/// Time of a fault of `uzswap run` beside the store and the load of a page: the userfaultfd, two
/// switches of threads, the copy (bench/run/latency.py).
const FAULT_US: f64 = 15.0;

/// Fewer windows say little.
const WINDOWS_MIN: usize = 8;

/// The windows are drawn anew so many times, to see how far the limit depends on chance. They are
/// drawn in so many runs of neighbours, as neighbours are alike.
const DRAWS: usize = 100;
const DRAWN_RUNS: usize = 8;

/// Windows of a draw at most: the limits of fewer vary more, not less.
const DRAWN_MAX: usize = 1 << 9; // 512

/// One draw in so many may lie beyond each end of the range.
const BEYOND: usize = 20;

/// The share of the windows by which the highest limit is found, beside the draws. The windows of
/// one run may miss those in which it needs most.
const HIGHEST_SHARE: f64 = 29.0 / 30.0;

/// Draws within this factor are of a program that needs the same all the time. Otherwise the limit
/// of another run may be so many times as high: the limits of five runs were, of a compiler and of
/// node on a busy machine, whose windows are longer.
const STEADY: f64 = 1.1;
const UNSTEADY: f64 = 1.4;

/// The memory that a program touches. Its JSON form has the windows in sum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkingSet {
    #[serde(skip)]
    windows: Vec<Window>,
    /// Windows of time in which it was sampled.
    #[serde(rename = "windows")]
    count: usize,
    /// Their mean length, in milliseconds.
    pub window_ms: f64,
    /// Bytes of anonymous pages that nine tenths of the windows do not pass.
    pub touched_bytes: u64,
}

impl WorkingSet {
    /// Of the windows of a program; `None` if they are too few.
    pub(super) fn of(windows: Vec<Window>) -> Option<WorkingSet> {
        WorkingSet::with(windows, WORKING_SHARE)
    }

    /// The same by another share of the windows.
    fn with(windows: Vec<Window>, share: f64) -> Option<WorkingSet> {
        (windows.len() >= WINDOWS_MIN).then(|| WorkingSet {
            count: windows.len(),
            window_ms: seconds(&windows) * 1e3 / windows.len() as f64,
            touched_bytes: working_set_pages(&windows, share) * PAGE_SIZE as u64,
            windows,
        })
    }
}

/// The least time under one limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Outlook {
    /// Bytes of pages that stay as they are.
    pub kept_bytes: u64,
    /// The limit: those, and the others compressed.
    pub limit_bytes: u64,
    /// The program's time over its time without the limit: this or more.
    pub least_time_factor: f64,
}

/// The pages that stay as they are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kept {
    /// Half of them: nothing shows which ones the program needs.
    Half,
    /// Those that it needs.
    WorkingSet(Outlook),
    /// All of them: with fewer it would take far longer. The outlook is that of the most.
    All(Outlook),
}

impl Kept {
    /// Of so many bytes, with one compressor.
    pub(super) fn of(bytes: u64, best: &Measured, working_set: Option<&WorkingSet>) -> Kept {
        let Some(working_set) = working_set else { return Kept::Half };
        let outlook = |parts| working_set.outlook(bytes, best, parts);
        let mut all = (PARTS_LEAST..=PARTS_MOST).map(outlook);
        let is_enough = |it: &Outlook| {
            it.kept_bytes >= working_set.touched_bytes && it.least_time_factor <= FACTOR_MAX
        };
        match all.find(is_enough) {
            Some(least) => Kept::WorkingSet(least),
            None => Kept::All(outlook(PARTS_MOST)),
        }
    }

    /// Bytes of pages that stay, of so many.
    pub(super) fn bytes(self, of: u64) -> u64 {
        match self {
            Kept::Half => (of as f64 * KEPT_SHARE) as u64,
            Kept::WorkingSet(outlook) => outlook.kept_bytes,
            Kept::All(_) => of,
        }
    }

    /// The limit with them for so many bytes; `None` where all of them stay.
    fn limit_bytes(self, of: u64, ratio: f64) -> Option<u64> {
        match self {
            Kept::All(_) => None,
            _ => Some(limit_bytes(of, self.bytes(of), ratio)),
        }
    }

    /// The least time with them; `None` where nothing shows it.
    pub(super) fn least_time_factor(self) -> Option<f64> {
        match self {
            Kept::Half => None,
            Kept::WorkingSet(outlook) | Kept::All(outlook) => Some(outlook.least_time_factor),
        }
    }
}

/// The limits that other runs of a program may lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRange {
    /// The lowest, in bytes; `None` where each run leads to no limit.
    pub low_bytes: Option<u64>,
    /// The highest; `None` where a run may lead to no limit.
    pub high_bytes: Option<u64>,
}

impl LimitRange {
    /// Of so many bytes, with one compressor. Without windows nothing shows which pages a program
    /// needs: it may be any part that is ever advised.
    pub(super) fn of(bytes: u64, best: &Measured, working_set: Option<&WorkingSet>) -> LimitRange {
        let part = |parts: u32| {
            let kept = (bytes as f64 / f64::from(PARTS) * f64::from(parts)) as u64;
            limit_bytes(bytes, kept, best.ratio())
        };
        let (least, most) = (part(PARTS_LEAST), part(PARTS_MOST));
        let Some(set) = working_set else {
            return LimitRange { low_bytes: Some(least), high_bytes: Some(most) };
        };
        let mut random = SplitMix64::new(set.count as u64);
        let limit_of = |set: &WorkingSet| {
            let kept = Kept::of(bytes, best, Some(set));
            kept.limit_bytes(bytes, best.ratio()).unwrap_or(u64::MAX)
        };
        let mut limits: Vec<u64> = (0..DRAWS).map(|_| limit_of(&set.drawn(&mut random))).collect();
        let highest = WorkingSet::with(set.windows.clone(), HIGHEST_SHARE);
        let highest = highest.map_or(0, |set| limit_of(&set));
        limits.sort_unstable();
        // A step of the parts to either side: the peaks of two runs differ, too.
        let step = part(1) - part(0);
        let low = limits[DRAWS / BEYOND];
        let high = limits[DRAWS - 1 - DRAWS / BEYOND].max(highest);
        let unsteady = (limit_of(set) as f64 * UNSTEADY) as u64;
        let high = match high as f64 <= low as f64 * STEADY {
            true => high,
            false => high.max(unsteady.min(most)),
        };
        let high = high.checked_add(step);
        LimitRange {
            low_bytes: (low < u64::MAX).then(|| low.saturating_sub(step).max(least)),
            high_bytes: high.filter(|&high| high <= most + step).map(|high| high.min(most)),
        }
    }
}

impl WorkingSet {
    /// As many windows, or the most of a draw, in runs that are drawn by chance.
    fn drawn(&self, random: &mut SplitMix64) -> WorkingSet {
        let count = self.windows.len().min(DRAWN_MAX);
        let run = count.div_ceil(DRAWN_RUNS);
        let mut windows = Vec::with_capacity(count + run);
        while windows.len() < count {
            let start = (random.next_word() % self.windows.len() as u64) as usize;
            windows.extend(self.windows.iter().cycle().skip(start).take(run));
        }
        WorkingSet::of(windows).expect("it had as many before")
    }

    /// The outlook of some limits, the highest first.
    pub(super) fn outlooks(&self, bytes: u64, best: &Measured) -> Vec<Outlook> {
        SHOWN.iter().map(|parts| self.outlook(bytes, best, *parts)).collect()
    }

    fn outlook(&self, bytes: u64, best: &Measured, parts: u32) -> Outlook {
        let kept_bytes = (bytes as f64 / f64::from(PARTS) * f64::from(parts)) as u64;
        let limit_bytes = limit_bytes(bytes, kept_bytes, best.ratio());
        let fault_us = best.us_per_page() + FAULT_US;
        let budget = Budget { limit_bytes, ratio: best.ratio(), fault_us };
        let least_time_factor = least_time_factor(&self.windows, budget);
        Outlook { kept_bytes, limit_bytes, least_time_factor }
    }
}

/// The memory of pages of which some stay, and the others are compressed.
pub(super) fn limit_bytes(bytes: u64, kept_bytes: u64, ratio: f64) -> u64 {
    kept_bytes + (bytes.saturating_sub(kept_bytes) as f64 / ratio) as u64
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::corpus::sample::Estimate;
    use uzswap::zpool::ZpoolKind;

    const MIB: u64 = 1 << 20;

    /// A program with pages of 100 MiB, which touches so much of them in each of ten windows.
    pub(in super::super) fn touching(mib: u64) -> WorkingSet {
        let pages = |mib: u64| mib * MIB / PAGE_SIZE as u64;
        let window = Window {
            length: Duration::from_millis(25),
            touched_pages: pages(mib),
            resident_pages: pages(100),
        };
        WorkingSet::of(vec![window; 10]).unwrap()
    }

    fn four_to_one() -> Measured {
        let bytes = Estimate { estimate: 25 * MIB, low: 25 * MIB, high: 25 * MIB };
        Measured {
            compressor: "zstd~auto".to_owned(),
            zpool: ZpoolKind::Packed,
            pages: 25_600,
            bytes,
            of_bytes: 100 * MIB,
            store_us: 7.0,
            load_us: 3.0,
        }
    }

    #[test]
    fn the_pages_that_a_program_touches_stay() {
        let kept = |mib| Kept::of(100 * MIB, &four_to_one(), Some(&touching(mib)));
        let Kept::WorkingSet(outlook) = kept(60) else { panic!("{:?}", kept(60)) };
        // 60 MiB stay, to a part of 32.
        assert!((60 * MIB..64 * MIB).contains(&outlook.kept_bytes), "{outlook:?}");
        assert_eq!(outlook.limit_bytes, outlook.kept_bytes + (100 * MIB - outlook.kept_bytes) / 4);
        assert!(outlook.least_time_factor <= FACTOR_MAX);
        // A quarter, however few it touches.
        assert_eq!(kept(1).bytes(100 * MIB), 25 * MIB);
        assert_eq!(kept(1).least_time_factor(), Some(1.0));
        // All: 87.5 MiB are too few by a little, which costs little if each page faults once.
        let windows = [touching(88).windows, touching(1).windows].concat();
        let found = Kept::of(100 * MIB, &four_to_one(), WorkingSet::of(windows).as_ref());
        let Kept::All(most) = found else { panic!("{found:?}") };
        assert!((1.0..FACTOR_MAX).contains(&most.least_time_factor), "{most:?}");
        assert!(
            matches!(kept(100), Kept::All(it) if it.least_time_factor > 2.0),
            "{:?}",
            kept(100)
        );
        assert_eq!(kept(100).bytes(100 * MIB), 100 * MIB);
        assert_eq!(Kept::of(100 * MIB, &four_to_one(), None).bytes(100 * MIB), 50 * MIB);
    }

    #[test]
    fn the_range_is_as_wide_as_the_windows_differ() {
        let (bytes, best) = (100 * MIB, four_to_one());
        let of = |set: &WorkingSet| LimitRange::of(bytes, &best, Some(set));
        let step =
            limit_bytes(bytes, bytes / 32, best.ratio()) - limit_bytes(bytes, 0, best.ratio());
        let limit = |set: &WorkingSet| {
            Kept::of(bytes, &best, Some(set)).limit_bytes(bytes, best.ratio()).unwrap()
        };
        // All windows alike: a step to each side.
        let steady = touching(60);
        let (low, high) = (limit(&steady) - step, limit(&steady) + step);
        let found = of(&steady);
        assert_eq!(found, LimitRange { low_bytes: Some(low), high_bytes: Some(high) });
        // One in ten windows decides: without it the limit is lower, with two it is not.
        let mut windows = touching(40).windows;
        windows[9] = touching(70).windows[0];
        let mixed = WorkingSet::of(windows).unwrap();
        let found = of(&mixed);
        assert!(found.low_bytes.unwrap() < limit(&touching(45)), "{found:?}");
        assert!(found.high_bytes.unwrap() > limit(&touching(65)), "{found:?}");
        assert_eq!(of(&touching(100)), LimitRange { low_bytes: None, high_bytes: None });
        let found = LimitRange::of(bytes, &best, None);
        assert!(found.low_bytes < Some(limit(&steady)) && found.high_bytes > Some(limit(&steady)));
    }

    #[test]
    fn less_memory_never_takes_less_time() {
        let outlooks = touching(60).outlooks(100 * MIB, &four_to_one());
        assert_eq!(outlooks.len(), SHOWN.len());
        assert!(outlooks.is_sorted_by(|one, next| {
            one.limit_bytes > next.limit_bytes && one.least_time_factor <= next.least_time_factor
        }));
        assert_eq!(outlooks[0].least_time_factor, 1.0);
    }

    #[test]
    fn a_few_windows_say_nothing() {
        let window = Window { resident_pages: 1, ..Window::default() };
        assert_eq!(WorkingSet::of(vec![window; WINDOWS_MIN - 1]), None);
        let set = touching(60);
        assert_eq!((set.count, set.touched_bytes), (10, 60 * MIB));
        assert!((set.window_ms - 25.0).abs() < 1e-9);
    }
}
