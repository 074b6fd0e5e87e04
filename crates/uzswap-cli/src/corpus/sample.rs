//! A sample of large memory: how it is drawn, and how figures of it are scaled to all pages.
//!
//! ```text
//!  memory     | unit | unit | unit | unit | unit | unit | unit | unit |   windows of 16 pages
//!  first walk    1      2      3      4      5      6      7      8       counts units and pages
//!  strata     |                           |                           |   as many units in each
//!  second walk          x             x      x             x              takes two of each
//! ```
//!
//! A unit has the pages of one mapping in one window of 64 KiB. Neighbours compress alike, so that
//! a page more of a unit tells less than a page from elsewhere: units are as short as reading them
//! allows. Each unit has the same chance, and none is drawn twice. Strata are stretches of memory,
//! whose pages are more alike than those of all memory. So two units from each are closer to the
//! whole than as many units from anywhere. The draw is one pass in constant memory: algorithm S of
//! Knuth, The Art of Computer Programming, volume 2, section 3.4.2, in each stratum.
//!
//! Totals are combined ratio estimates: the mean of a page in the sample, times all pages. Their
//! variance is the linearised one of two units from each stratum, corrected for a finite
//! population (Cochran, Sampling Techniques, 3rd edition, 1977, chapters 5A and 6).
//!
//! - D1: the same seed and the same units give the same sample.
//! - D2: a draw takes as many units as it set out to, if both walks find as many.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::corpus::student;
use uzswap::page::PAGE_SIZE;
use uzswap::random::SplitMix64;

/// Pages of a unit that is full.
pub const UNIT_PAGES: u64 = 1 << 4; // 16

/// Bytes of a unit's window.
pub const UNIT_BYTES: u64 = UNIT_PAGES * PAGE_SIZE as u64; // 64 KiB

/// Units of a stratum, and so of the smallest sample: one does not show how much units vary.
pub const UNITS_MIN: u64 = 2;

/// How much of the memory to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplePlan {
    /// About the most pages, whole units of them; no limit with `None`.
    pub pages_max: Option<u64>,
    /// Seed of the draw.
    pub seed: u64,
}

impl SamplePlan {
    /// Every page.
    pub const ALL: SamplePlan = SamplePlan { pages_max: None, seed: 1 };

    /// Whether so many pages are taken whole.
    pub fn has_room(&self, pages: u64) -> bool {
        self.pages_max.is_none_or(|most| pages <= most)
    }
}

impl Default for SamplePlan {
    fn default() -> SamplePlan {
        SamplePlan::ALL
    }
}

/// A sample that was taken: the field `sample` of side files and documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Pages of the whole, of which the sample is a part.
    pub of_pages: u64,
    /// Pages in the sample.
    pub pages: u64,
    /// The most pages in a unit: [`UNIT_PAGES`], and 128 in sets of earlier versions.
    pub unit_pages: u64,
    /// Units in the sample.
    pub units: u64,
    /// Seed of the draw.
    pub seed: u64,
}

/// Pages and units that a walk met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Population {
    /// Pages.
    pub pages: u64,
    /// Units.
    pub units: u64,
}

/// The choice of units, in their order: two from each stratum.
#[derive(Debug, Clone)]
struct Draw {
    /// Units that the count had.
    units: u64,
    strata: u64,
    /// Units that were met, strata that were begun.
    met: u64,
    begun: u64,
    /// Units that this stratum is still to give.
    wanted: u64,
    random: SplitMix64,
}

impl Draw {
    /// The first unit after a stratum.
    fn end_of(&self, stratum: u64) -> u64 {
        let end = u128::from(self.units) * u128::from(stratum + 1) / u128::from(self.strata);
        end as u64 // at most `units`
    }

    fn takes_next(&mut self) -> bool {
        if self.met == self.units {
            return false; // a unit that the count did not have
        }
        if self.begun == 0 || self.met == self.end_of(self.begun - 1) {
            (self.begun, self.wanted) = (self.begun + 1, UNITS_MIN);
        }
        let left = self.end_of(self.begun - 1) - self.met;
        let word = u128::from(self.random.next_word());
        let takes = (word * u128::from(left)) >> 64 < u128::from(self.wanted);
        self.met += 1;
        self.wanted -= u64::from(takes);
        takes
    }
}

/// A walk along memory that tells units apart, counts them, and says which to take.
#[derive(Debug, Clone, Default)]
pub struct UnitWalk {
    draw: Option<Draw>,
    met: Population,
    /// Process, mapping and window of the last unit.
    last: (Option<u32>, String, u64),
    takes_last: bool,
}

impl UnitWalk {
    /// A walk that counts.
    pub fn counting() -> UnitWalk {
        UnitWalk::default()
    }

    /// The second walk along the memory that the first one counted. `None` where `plan` has room
    /// for all of it.
    pub fn drawing(counted: Population, plan: SamplePlan) -> Option<UnitWalk> {
        let pages_max = plan.pages_max.filter(|_| !plan.has_room(counted.pages))?;
        let share = u128::from(pages_max) * u128::from(counted.units) / u128::from(counted.pages);
        let strata = (share as u64 / UNITS_MIN).max(1); // share <= units
        let random = SplitMix64::new(plan.seed);
        let draw = Draw { units: counted.units, strata, met: 0, begun: 0, wanted: 0, random };
        Some(UnitWalk { draw: Some(draw), ..UnitWalk::default() })
    }

    /// Meets some pages of one window of a mapping, at these addresses in bytes. Whether they are
    /// in the sample.
    pub fn meets(&mut self, pid: Option<u32>, mapping: &str, piece: &Range<u64>) -> bool {
        let window = piece.start / UNIT_BYTES;
        let is_same = self.last.0 == pid && self.last.2 == window && self.last.1 == mapping;
        if !is_same || self.met.units == 0 {
            self.last = (pid, mapping.to_owned(), window);
            self.met.units += 1;
            self.takes_last = self.draw.as_mut().is_some_and(Draw::takes_next);
        }
        self.met.pages += (piece.end - piece.start).div_ceil(PAGE_SIZE as u64);
        self.takes_last
    }

    /// Pages and units that were met so far.
    pub fn met(&self) -> Population {
        self.met
    }
}

/// Cuts a range of bytes at the borders of windows of so many bytes, not 0.
pub fn pieces(range: Range<u64>, window_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let border = (at / window_bytes + 1).saturating_mul(window_bytes);
        let piece = at..border.min(range.end);
        at = piece.end;
        (piece.start < piece.end).then_some(piece)
    })
}

/// Sums of one unit of a replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitSums {
    /// Its pages.
    pub pages: u64,
    /// Their compressed lengths.
    pub compressed_bytes: u64,
    /// Pages kept as one word.
    pub same_filled_pages: u64,
    /// Pages that the store did not take.
    pub rejected_pages: u64,
    /// Growth of the pool, without the slots that are free.
    pub pool_bytes: u64,
}

impl UnitSums {
    /// What was added since `before`.
    pub fn less(&self, before: &UnitSums) -> UnitSums {
        UnitSums {
            pages: self.pages - before.pages,
            compressed_bytes: self.compressed_bytes - before.compressed_bytes,
            same_filled_pages: self.same_filled_pages - before.same_filled_pages,
            rejected_pages: self.rejected_pages - before.rejected_pages,
            pool_bytes: self.pool_bytes.saturating_sub(before.pool_bytes),
        }
    }
}

/// A total of all pages, and the interval in which it lies with 95 % confidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// The most likely value.
    pub estimate: u64,
    /// The lower end.
    pub low: u64,
    /// The upper end.
    pub high: u64,
}

impl Estimate {
    /// The total of a value of which each unit of a sample has some: its pages, and the value. The
    /// value is at most `page_max` a page. The whole has `of_pages`. The units are in their order.
    pub fn of_total(units: &[(u64, u64)], of_pages: u64, page_max: u64) -> Estimate {
        let sum = |of: fn(&(u64, u64)) -> u64| units.iter().map(of).sum::<u64>();
        let (pages, seen) = (sum(|unit| unit.0), sum(|unit| unit.1));
        let unseen = of_pages.saturating_sub(pages) as f64 * page_max as f64;
        let bounded = |value: f64| value.clamp(seen as f64, seen as f64 + unseen).round() as u64;
        // The rule of three (Hanley and Lippman-Hand, 1983), for units: none of n has any, or all
        // have all there can be.
        let three = unseen * (1.0 - 0.05_f64.powf(1.0 / units.len().max(1) as f64));
        let most = pages * page_max;
        if seen == 0 || seen == most {
            let estimate = if seen == 0 { 0.0 } else { seen as f64 + unseen };
            let [low, high] = [estimate - three, estimate + three].map(bounded);
            return Estimate { estimate: bounded(estimate), low, high };
        }
        let ratio = seen as f64 / pages as f64;
        let total = ratio * of_pages as f64;
        let reach = standard_error(units, ratio, of_pages)
            .map_or(f64::INFINITY, |error| error * student::reach(units.len() / 2));
        Estimate {
            estimate: bounded(total),
            low: bounded(total - reach),
            high: bounded(total + reach),
        }
    }

    /// With a part that is the same for any number of pages.
    pub fn plus(self, bytes: u64) -> Estimate {
        let Estimate { estimate, low, high } = self;
        Estimate { estimate: estimate + bytes, low: low + bytes, high: high + bytes }
    }

    /// The longer side of the interval, in percent of the estimate; `None` of none.
    pub fn reach_percent(self) -> Option<f64> {
        let reach = (self.high - self.estimate).max(self.estimate - self.low);
        (self.estimate > 0).then(|| 100.0 * reach as f64 / self.estimate as f64)
    }
}

/// The standard error of a total; `None` from one unit. Two units that follow each other are of one
/// stratum; an odd one at the end goes with the unit before it.
fn standard_error(units: &[(u64, u64)], ratio: f64, of_pages: u64) -> Option<f64> {
    let pages: u64 = units.iter().map(|(pages, _)| pages).sum();
    let off = |unit: &(u64, u64)| unit.1 as f64 - ratio * unit.0 as f64;
    let square = |pair: &[(u64, u64)]| (off(&pair[0]) - off(&pair[1])).powi(2);
    let (pairs, odd) = units.as_chunks::<2>();
    let mut squares: f64 = pairs.iter().map(|pair| square(pair)).sum();
    if let ([_], [.., one, other]) = (odd, units) {
        squares += square(&[*one, *other]) / 2.0;
    }
    let fraction = pages as f64 / of_pages.max(pages) as f64;
    // Each stratum of N units adds N^2 (1 - f) / 2 times half the square, and N is 2 / f.
    (units.len() > 1).then(|| ((1.0 - fraction) * squares).sqrt() / fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units of a process with many kinds of pages: most compress alike, some hardly, some are
    /// zero; a tenth of the units is part-filled.
    fn skewed(units: usize, random: &mut SplitMix64) -> Vec<(u64, u64)> {
        let mut below = |bound: u64| random.next_word() % bound;
        (0..units)
            .map(|_| {
                let pages = if below(10) == 0 { 1 + below(128) } else { 128 };
                let page = match below(100) {
                    0..4 => 4096,
                    4..12 => 0,
                    12..20 => 2500 + below(1000),
                    _ => 900 + below(500),
                };
                (pages, pages * page)
            })
            .collect()
    }

    fn drawn(all: &[(u64, u64)], pages_max: u64, seed: u64) -> Vec<(u64, u64)> {
        let counted =
            Population { pages: all.iter().map(|unit| unit.0).sum(), units: all.len() as u64 };
        let plan = SamplePlan { pages_max: Some(pages_max), seed };
        let mut walk = UnitWalk::drawing(counted, plan).unwrap();
        let takes = |(place, unit): (u64, &(u64, u64))| {
            let start = place * UNIT_BYTES;
            walk.meets(None, "anon", &(start..start + unit.0 * PAGE_SIZE as u64)).then_some(*unit)
        };
        (0..).zip(all).filter_map(takes).collect()
    }

    #[test]
    fn nineteen_in_twenty_intervals_have_the_truth() {
        let mut random = SplitMix64::new(5);
        let all = skewed(3000, &mut random);
        let pages: u64 = all.iter().map(|unit| unit.0).sum();
        let truth: u64 = all.iter().map(|unit| unit.1).sum();
        // Four fifths as well, where the correction for a finite population counts.
        for pages_max in [pages / 20, pages / 10, pages / 5 * 4] {
            let (mut held, mut width) = (0, 0.0);
            for seed in 0..400 {
                let estimate = Estimate::of_total(&drawn(&all, pages_max, seed), pages, 4096);
                held += usize::from((estimate.low..=estimate.high).contains(&truth));
                width += estimate.reach_percent().unwrap() / 400.0;
            }
            assert!((368..=396).contains(&held), "{held} of 400 with {pages_max} pages");
            assert!(width < 14.0, "{width} %");
        }
    }

    #[test]
    fn memory_in_stretches_has_narrow_intervals() {
        let mut random = SplitMix64::new(5);
        let mut all = skewed(3000, &mut random);
        let pages: u64 = all.iter().map(|unit| unit.0).sum();
        let truth: u64 = all.iter().map(|unit| unit.1).sum();
        let tried = |all: &[(u64, u64)]| {
            let (mut held, mut width) = (0, 0.0);
            for seed in 0..400 {
                let estimate = Estimate::of_total(&drawn(all, pages / 10, seed), pages, 4096);
                held += usize::from((estimate.low..=estimate.high).contains(&truth));
                width += estimate.reach_percent().unwrap() / 400.0;
            }
            assert!(held >= 368, "{held} of 400");
            width
        };
        let mixed = tried(&all);
        all.sort_by_key(|(pages, value)| value / pages);
        let sorted = tried(&all);
        assert!(sorted * 3.0 < mixed, "{sorted} % beside {mixed} %");
    }

    #[test]
    fn each_unit_is_drawn_as_often_and_as_many_as_wanted() {
        let all = vec![(128, 1); 50];
        let mut counts = [0; 50];
        for seed in 0..4000 {
            let numbered: Vec<(u64, u64)> = (0..50).map(|number| (128, number)).collect();
            let sample = drawn(&numbered, 10 * 128, seed);
            assert_eq!(sample.len(), 10);
            sample.iter().for_each(|unit| counts[unit.1 as usize] += 1);
        }
        // 800 of each: 5 standard deviations are 126.
        assert!(counts.iter().all(|count| (674..926).contains(count)), "{counts:?}");
        assert_eq!(drawn(&all, 1, 1).len(), 2, "one unit has no interval");
    }

    #[test]
    fn a_plan_with_room_takes_all_and_more_units_than_counted_are_left_out() {
        let counted = Population { pages: 1000, units: 10 };
        let plan = |pages| SamplePlan { pages_max: Some(pages), seed: 1 };
        assert!(UnitWalk::drawing(counted, SamplePlan::ALL).is_none());
        assert!(UnitWalk::drawing(counted, plan(1000)).is_none());
        let mut walk = UnitWalk::drawing(counted, plan(999)).unwrap();
        let taken = (0..20).filter(|number| {
            let start = number * UNIT_BYTES;
            walk.meets(Some(1), "anon", &(start..start + 4096))
        });
        assert_eq!(taken.collect::<Vec<u64>>().len(), 8, "two of each of four strata");
        assert_eq!(walk.met(), Population { pages: 20, units: 20 });
    }

    #[test]
    fn units_are_windows_of_a_mapping() {
        let cut: Vec<_> = pieces(UNIT_BYTES - 4096..2 * UNIT_BYTES + 1, UNIT_BYTES).collect();
        assert_eq!(
            cut,
            [
                UNIT_BYTES - 4096..UNIT_BYTES,
                UNIT_BYTES..2 * UNIT_BYTES,
                2 * UNIT_BYTES..2 * UNIT_BYTES + 1
            ]
        );
        assert_eq!(pieces(u64::MAX - 5..u64::MAX, UNIT_BYTES).count(), 1);
        assert_eq!(pieces(7..7, UNIT_BYTES).count(), 0);
        let mut walk = UnitWalk::counting();
        for (pid, name, start) in
            [(1, "a", 0), (1, "a", 8192), (1, "b", 16384), (2, "b", 20480), (2, "b", UNIT_BYTES)]
        {
            assert!(!walk.meets(Some(pid), name, &(start..start + 4096)));
        }
        assert_eq!(walk.met(), Population { pages: 5, units: 4 });
    }

    #[test]
    fn values_without_any_in_the_sample_have_an_upper_end() {
        let none = Estimate::of_total(&[(128, 0); 100], 128 * 1000, 1);
        assert_eq!((none.estimate, none.low), (0, 0));
        assert!((3000..4000).contains(&none.high), "{none:?}");
        let all = Estimate::of_total(&[(128, 128); 100], 128 * 1000, 1);
        assert_eq!((all.estimate, all.high, all.low), (128_000, 128_000, 128_000 - none.high));
        let one = Estimate::of_total(&[(128, 64)], 256, 1);
        assert_eq!((one.low, one.estimate, one.high), (64, 128, 192), "nothing is known");
        let whole = Estimate::of_total(&[(128, 64), (100, 3)], 228, 1);
        assert_eq!((whole.low, whole.high), (67, 67));
    }
}
