//! The workload's random numbers: the same on every machine for the same seed.

use uzswap::random::SplitMix64;

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
    ///
    /// Ranks are drawn evenly from a logarithmic scale, whose octaves are straight lines here. The
    /// logarithms of two C libraries differ in their last bits.
    pub(super) fn pick_zipf<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let end = choices.len() as u64 + 1;
        let octaves = end.ilog2();
        let part = ((end << 32) >> octaves) - (1 << 32);
        let at = self.below((u64::from(octaves) << 32 | part) as usize) as u64;
        let rank = ((1 << 32) + (at & 0xffff_ffff)) << (at >> 32) >> 32;
        &choices[rank as usize - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_choices_are_picked_more_often_and_all_are() {
        let mut rng = Rng::new(3);
        for length in [1, 2, 3, 7, 12, 100] {
            let choices: Vec<usize> = (0..length).collect();
            let mut counts = vec![0; length];
            (0..20_000).for_each(|_| counts[*rng.pick_zipf(&choices)] += 1);
            assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
            assert!(counts[0] > 20_000 / (length + 1), "{counts:?}");
            assert!(length < 3 || counts[0] > counts[2], "{counts:?}");
        }
    }
}
