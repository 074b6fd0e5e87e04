//! The pages of a program that have to stay as they are, from those that it touches.

use serde::Serialize;

use super::Measured;
use crate::lab::working_set::{Budget, Window, least_time_factor, seconds, working_set_pages};
use uzswap::page::PAGE_SIZE;

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

/// The memory that a program touches. Its JSON form has the windows in sum.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
        (windows.len() >= WINDOWS_MIN).then(|| WorkingSet {
            count: windows.len(),
            window_ms: seconds(&windows) * 1e3 / windows.len() as f64,
            touched_bytes: working_set_pages(&windows) * PAGE_SIZE as u64,
            windows,
        })
    }
}

/// The least time under one limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
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

    /// The least time with them; `None` where nothing shows it.
    pub(super) fn least_time_factor(self) -> Option<f64> {
        match self {
            Kept::Half => None,
            Kept::WorkingSet(outlook) | Kept::All(outlook) => Some(outlook.least_time_factor),
        }
    }
}

impl WorkingSet {
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
    use crate::lab::sample::Estimate;

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
            compressor: "zstd".to_owned(),
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
