//! Zipf's law: the key of rank `r`, from 1, is drawn with a probability proportional to `r^-s`.
//!
//! Walker's alias method (1974): exact for any skew, and one table look-up a draw.

use uzswap::random::SplitMix64;

/// A distribution over the keys 0 to `count - 1`. Which key has which rank is a shuffle, so that
/// neither neighbours nor the order of insertion say how hot a key is.
#[derive(Debug)]
pub(crate) struct Zipf {
    /// The key of each rank.
    keys: Vec<u32>,
    /// Of each column, the share that is its own, in 2^-32.
    own: Vec<u32>,
    /// Of each column, the rank that has the rest of it.
    other: Vec<u32>,
}

impl Zipf {
    /// Of `count` keys, 1 to 2^32 - 1, with skew `skew`: 0 is uniform. The shuffle is of `seed`.
    pub(crate) fn new(count: u32, skew: f64, seed: u64) -> Zipf {
        let weights = probabilities(count, skew);
        let size = f64::from(count);
        let mut room: Vec<f64> = weights.iter().map(|weight| weight * size).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..count).partition(|&rank| room[rank as usize] < 1.0);
        let mut own = vec![u32::MAX; count as usize];
        let mut other: Vec<u32> = (0..count).collect();
        while let (Some(rank), Some(&giver)) = (small.pop(), large.last()) {
            let (rank_at, giver_at) = (rank as usize, giver as usize);
            own[rank_at] = (room[rank_at] * f64::from(u32::MAX)) as u32;
            other[rank_at] = giver;
            room[giver_at] -= 1.0 - room[rank_at];
            if room[giver_at] < 1.0 {
                large.pop();
                small.push(giver);
            }
        }
        Zipf { keys: shuffled(count, seed), own, other }
    }

    /// The next key.
    pub(crate) fn draw(&self, random: &mut SplitMix64) -> u32 {
        let word = random.next_word();
        // The upper half, scaled to the columns; the lower half decides within one.
        let column = (((word >> 32) * self.keys.len() as u64) >> 32) as usize;
        let is_own = (word as u32) <= self.own[column];
        let rank = if is_own { column } else { self.other[column] as usize };
        self.keys[rank]
    }

    /// The keys, hottest first.
    pub(crate) fn keys(&self) -> &[u32] {
        &self.keys
    }
}

/// The probability of each rank.
fn probabilities(count: u32, skew: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=count).map(|rank| f64::from(rank).powf(-skew)).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// 0 to `count - 1` in an order of `seed`: Fisher and Yates.
fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut random = SplitMix64::new(seed);
    let mut keys: Vec<u32> = (0..count).collect();
    for i in (1..keys.len()).rev() {
        keys.swap(i, (random.next_word() % (i as u64 + 1)) as usize);
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probability of each rank that the table of columns stands for.
    fn table_probabilities(zipf: &Zipf) -> Vec<f64> {
        let count = zipf.keys.len();
        let mut sums = vec![0.0; count];
        for column in 0..count {
            let own = (f64::from(zipf.own[column]) + 1.0) / 2_f64.powi(32);
            sums[column] += own / count as f64;
            sums[zipf.other[column] as usize] += (1.0 - own) / count as f64;
        }
        sums
    }

    #[test]
    fn the_table_has_the_exact_probabilities() {
        for count in [1, 2, 3, 10, 1000, 100_000] {
            for skew in [0.0, 0.5, 0.99, 1.0, 1.5] {
                let table = table_probabilities(&Zipf::new(count, skew, 1));
                for (rank, (found, exact)) in
                    table.iter().zip(probabilities(count, skew)).enumerate()
                {
                    let off = (found - exact).abs();
                    assert!(off < 1e-9, "{count} keys, skew {skew}, rank {rank}: {found} {exact}");
                }
            }
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let (count, draws) = (50, 2_000_000);
        let zipf = Zipf::new(count, 0.99, 7);
        let mut random = SplitMix64::new(8);
        let mut counts = vec![0_u32; count as usize];
        (0..draws).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
        // Pearson's statistic; 49 degrees of freedom are over 94 once in 10,000.
        let statistic: f64 = probabilities(count, 0.99)
            .into_iter()
            .zip(zipf.keys())
            .map(|(probability, &key)| {
                let expected = probability * f64::from(draws);
                (f64::from(counts[key as usize]) - expected).powi(2) / expected
            })
            .sum();
        assert!(statistic < 94.0, "{statistic}");
    }

    #[test]
    fn every_key_has_one_rank() {
        let mut keys = Zipf::new(1000, 0.99, 3).keys().to_vec();
        assert_ne!(keys, (0..1000).collect::<Vec<u32>>());
        keys.sort_unstable();
        assert_eq!(keys, (0..1000).collect::<Vec<u32>>());
    }
}
