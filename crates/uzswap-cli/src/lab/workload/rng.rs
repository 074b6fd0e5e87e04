//! The workload's random numbers: the same on every machine for the same seed.

use crate::lab::SplitMix64;

/// A stream of random words, and what is drawn from it.
#[derive(Debug, Clone)]
pub(super) struct Rng {
    words: SplitMix64,
}

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng { words: SplitMix64::new(seed) }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.words.next_word()
    }

    /// A number below `bound`, which is at least 1.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True in `percent` of the calls.
    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A number in `0.0 .. 1.0`.
    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// About normal: mean 0, standard deviation 1 (a sum of uniforms; the tails end at 3.5).
    pub(super) fn normal(&mut self) -> f64 {
        let sum: f64 = (0..4).map(|_| self.fraction()).sum();
        (sum - 2.0) * 1.732
    }

    /// One of `choices`, each as likely.
    pub(super) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// One of `choices`, the early ones far more often: about Zipf's law, as words in a text.
    pub(super) fn pick_zipf<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        // Log-uniform ranks: the share of rank k falls as 1/k.
        let rank = (choices.len() as f64 + 1.0).powf(self.fraction()) as usize - 1;
        &choices[rank.min(choices.len() - 1)]
    }
}
