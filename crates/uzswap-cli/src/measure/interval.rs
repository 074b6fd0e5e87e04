//! Decides whether two combinations differ or their runs only vary.
//!
//! Runs are compared round by round: two runs of one round saw the same machine. The interval is
//! that of the percentile bootstrap (Efron, 1979) of the mean difference. It is never narrower than
//! Student's: resamples of a handful of rounds vary less than the mean does (Hesterberg, "What
//! Teachers Should Know About the Bootstrap", 2015, section 3.2).

use serde::{Deserialize, Serialize};

use super::stats;
use crate::corpus::student;
use uzswap::random::SplitMix64;

/// Fewer rounds say nothing about how much runs vary.
pub(crate) const ROUNDS_MIN: usize = 3;

/// Resamples that are drawn.
const RESAMPLES: usize = 10_000;

/// A difference of means, and where it lies with 95 % confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The mean of one less that of the other.
    pub mean: f64,
    /// Lower end of the interval; `null` with too few rounds.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
}

impl Difference {
    /// Of values to those of the base, round by round; both have the same rounds. `None` without
    /// any.
    pub fn of(values: &[f64], base: &[f64]) -> Option<Difference> {
        let differences: Vec<f64> = values.iter().zip(base).map(|(one, base)| one - base).collect();
        let count = differences.len();
        if count == 0 {
            return None;
        }
        let mean = stats::mean(&differences);
        if count < ROUNDS_MIN {
            return Some(Difference { mean, low: None, high: None });
        }
        let (low, high) = bootstrap(&differences);
        let reach = error_squared(&differences).sqrt() * student::reach(count - 1);
        Some(Difference {
            mean,
            low: Some(low.min(mean - reach)),
            high: Some(high.max(mean + reach)),
        })
    }

    /// Of the logarithms of times to those of the base, round by round: how many times as long is
    /// `mean.exp()`. A round that something disturbed counts for less so than in a difference of
    /// times. `None` without any.
    pub(crate) fn of_logarithms(times: &[f64], base: &[f64]) -> Option<Difference> {
        let logarithms =
            |times: &[f64]| times.iter().map(|time| time.max(1e-9).ln()).collect::<Vec<_>>();
        Difference::of(&logarithms(times), &logarithms(base))
    }

    /// Of values to those of the base, which had rounds of their own: the interval of Welch's test
    /// (Biometrika 34, 1947). `None` without any.
    pub(crate) fn of_unpaired(values: &[f64], base: &[f64]) -> Option<Difference> {
        if values.is_empty() || base.is_empty() {
            return None;
        }
        let mean = stats::mean(values) - stats::mean(base);
        if values.len().min(base.len()) < ROUNDS_MIN {
            return Some(Difference { mean, low: None, high: None });
        }
        let (one, other) = (error_squared(values), error_squared(base));
        let of_each = |part: f64, count: usize| part.powi(2) / (count - 1) as f64;
        let below = of_each(one, values.len()) + of_each(other, base.len());
        let freedom = if below > 0.0 { (one + other).powi(2) / below } else { 1.0 };
        let reach = (one + other).sqrt() * student::reach((freedom as usize).max(1));
        Some(Difference { mean, low: Some(mean - reach), high: Some(mean + reach) })
    }

    /// Whether the interval leaves no doubt about the sign.
    pub fn is_real(&self) -> bool {
        match (self.low, self.high) {
            (Some(low), Some(high)) => low > 0.0 || high < 0.0,
            _ => false,
        }
    }
}

/// The square of a mean's standard error.
fn error_squared(values: &[f64]) -> f64 {
    let (count, mean) = (values.len() as f64, stats::mean(values));
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0) / count
}

/// The 2.5 % and the 97.5 % point of the means of resamples.
fn bootstrap(values: &[f64]) -> (f64, f64) {
    let mut random = SplitMix64::new(1);
    let count = values.len() as u64;
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn = (0..count).map(|_| values[(random.next_word() % count) as usize]);
            drawn.sum::<f64>() / count as f64
        })
        .collect();
    let (low, high) = (RESAMPLES / 40, RESAMPLES - 1 - RESAMPLES / 40);
    let (below, &mut high, _) = means.select_nth_unstable_by(high, f64::total_cmp);
    let (_, &mut low, _) = below.select_nth_unstable_by(low, f64::total_cmp);
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A normal deviate, by the sum of twelve uniform ones.
    fn normal(random: &mut SplitMix64) -> f64 {
        (0..12).map(|_| random.next_word() as f64 / u64::MAX as f64).sum::<f64>() - 6.0
    }

    #[test]
    fn nineteen_in_twenty_intervals_hold_the_mean() {
        let mut random = SplitMix64::new(7);
        for (rounds, trials) in [(3, 400), (5, 400), (10, 400), (40, 200)] {
            let held = (0..trials).filter(|_| {
                // A machine that drifts far more than the two differ.
                let drift: Vec<f64> = (0..rounds).map(|_| 50.0 * normal(&mut random)).collect();
                let noisy = |mean: f64, random: &mut SplitMix64| -> Vec<f64> {
                    drift.iter().map(|drift| mean + drift + normal(random)).collect()
                };
                let (one, base) = (noisy(102.0, &mut random), noisy(100.0, &mut random));
                let difference = Difference::of(&one, &base).unwrap();
                (difference.low.unwrap()..=difference.high.unwrap()).contains(&2.0)
            });
            let held = held.count();
            assert!(held * 100 >= trials * 92, "{held} of {trials} with {rounds} rounds");
        }
    }

    /// Studies of two combinations that differ by `difference` on average: how many call it real
    /// that the first is slower, and how many that it is faster.
    fn called_real(difference: f64, rounds: usize, studies: usize) -> (usize, usize) {
        called_real_by(Difference::of, difference, rounds, studies)
    }

    fn called_real_by(
        by: fn(&[f64], &[f64]) -> Option<Difference>,
        difference: f64,
        rounds: usize,
        studies: usize,
    ) -> (usize, usize) {
        let mut random = SplitMix64::new(11);
        let (mut slower, mut faster) = (0, 0);
        for _ in 0..studies {
            let (one, base): (Vec<f64>, Vec<f64>) = (0..rounds)
                .map(|_| {
                    // Run times have a lower end, and a long tail above it.
                    let mut run = || 0.5 * normal(&mut random).exp();
                    (10.0 + difference + run(), 10.0 + run())
                })
                .unzip();
            let found = by(&one, &base).unwrap();
            slower += usize::from(found.is_real() && found.mean > 0.0);
            faster += usize::from(found.is_real() && found.mean < 0.0);
        }
        (slower, faster)
    }

    #[test]
    fn of_equal_combinations_one_in_twenty_is_called_different_at_most() {
        for rounds in [3, 5, 9, 20] {
            let studies = 400;
            let (slower, faster) = called_real(0.0, rounds, studies);
            assert!((slower + faster) * 20 <= studies, "{slower} and {faster}, {rounds} rounds");
        }
    }

    #[test]
    fn studies_that_call_a_difference_real_agree_on_its_sign() {
        for (difference, rounds) in [(0.5, 3), (0.5, 5), (0.5, 9), (1.0, 5), (2.0, 5)] {
            let studies = 200;
            let (slower, faster) = called_real(difference, rounds, studies);
            assert!(
                slower > 0 && faster * 10 <= slower,
                "{slower} and {faster}, {difference} in {rounds} rounds"
            );
        }
        // A study finds a difference that is large beside the spread.
        let (slower, faster) = called_real(4.0, 5, 100);
        assert!(slower >= 90 && faster == 0, "{slower} and {faster}");
    }

    #[test]
    fn ratios_are_called_real_as_seldom_and_in_spite_of_one_disturbed_round() {
        for rounds in [3, 5, 9, 20] {
            let (slower, faster) = called_real_by(Difference::of_logarithms, 0.0, rounds, 400);
            assert!((slower + faster) * 20 <= 400, "{slower} and {faster}, {rounds} rounds");
        }
        let (slower, faster) = called_real_by(Difference::of_logarithms, 4.0, 5, 100);
        assert!(slower >= 90 && faster == 0, "{slower} and {faster}");
        // Each run is slower than any of the base, one of them far slower.
        let (base, slower) = ([0.36, 0.45, 0.42, 0.76, 0.48], [0.95, 1.52, 4.50, 1.34, 1.36]);
        assert!(!Difference::of(&slower, &base).unwrap().is_real());
        let found = Difference::of_logarithms(&slower, &base).unwrap();
        assert!(found.is_real() && (3.0..4.0).contains(&found.mean.exp()), "{found:?}");
    }

    #[test]
    fn so_do_those_of_runs_at_other_times() {
        let mut random = SplitMix64::new(9);
        for (count, of_base) in [(3, 3), (5, 5), (10, 4), (3, 40)] {
            let trials = 400;
            let held = (0..trials).filter(|_| {
                let mut drawn = |count: usize, mean: f64, spread: f64| -> Vec<f64> {
                    (0..count).map(|_| mean + spread * normal(&mut random)).collect()
                };
                let (one, base) = (drawn(count, 102.0, 1.0), drawn(of_base, 100.0, 3.0));
                let difference = Difference::of_unpaired(&one, &base).unwrap();
                (difference.low.unwrap()..=difference.high.unwrap()).contains(&2.0)
            });
            let held = held.count();
            assert!(held * 100 >= trials * 92, "{held} of {trials} with {count} and {of_base}");
        }
        let same = Difference::of_unpaired(&[5.0; 3], &[4.0; 3]).unwrap();
        assert_eq!((same.mean, same.low, same.is_real()), (1.0, Some(1.0), true));
        assert!(!Difference::of_unpaired(&[4.0; 3], &[4.0; 3]).unwrap().is_real());
    }

    #[test]
    fn a_real_difference_is_told_from_none() {
        let base = [10.0, 10.2, 9.9, 10.1, 10.0];
        let slower = base.map(|value| value + 1.0 + value % 0.3);
        let difference = Difference::of(&slower, &base).unwrap();
        assert!(difference.is_real() && difference.mean > 1.0, "{difference:?}");
        let shuffled = [10.2, 9.9, 10.1, 10.0, 10.0];
        assert!(!Difference::of(&shuffled, &base).unwrap().is_real());
        let one = Difference::of(&[11.0], &[10.0]).unwrap();
        assert_eq!((one.mean, one.low, one.is_real()), (1.0, None, false));
        assert_eq!(Difference::of(&[], &[]), None);
    }
}
