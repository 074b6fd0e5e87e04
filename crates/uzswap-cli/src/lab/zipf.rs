//! Accesses by Zipf's law: the page of rank k is loaded in proportion to 1 / k^skew.
//!
//! Numbers are drawn by the inverse of the cumulated distribution, from a table of it: exact, at 8
//! bytes a page. Ranks are scattered over the pages by a permutation, so that neighbours are not
//! equally hot.

use super::SplitMix64;

/// A stream of page numbers: the same for the same seed on every machine.
#[derive(Debug, Clone)]
pub struct Zipf {
    /// The share of accesses that go to each rank or one before it; the last is 1.
    cumulated: Vec<f64>,
    /// The page of each rank.
    pages: Vec<u32>,
    words: SplitMix64,
}

impl Zipf {
    /// Accesses to pages `0 .. pages`, of which there is at least one and fewer than 2^32. A skew
    /// of 0 asks for all alike; 0.99 is that of the YCSB benchmark.
    ///
    /// # Panics
    ///
    /// If there are no pages, or too many.
    pub fn new(pages: usize, skew: f64, seed: u64) -> Zipf {
        assert!(pages > 0, "no pages, no accesses");
        let count = u32::try_from(pages).expect("16 TiB of pages are not replayed");
        let mut sum = 0.0;
        let mut cumulated: Vec<f64> = (1..=count)
            .map(|rank| {
                sum += f64::from(rank).powf(-skew);
                sum
            })
            .collect();
        cumulated.iter_mut().for_each(|share| *share /= sum);
        let mut words = SplitMix64::new(seed);
        let mut places: Vec<u32> = (0..count).collect();
        for last in (1..pages).rev() {
            places.swap(last, below(&mut words, last + 1));
        }
        Zipf { cumulated, pages: places, words }
    }

    /// The next page.
    pub fn draw(&mut self) -> usize {
        let rank = self.draw_rank();
        self.pages[rank] as usize
    }

    /// The next rank, from 0.
    fn draw_rank(&mut self) -> usize {
        let at = (self.words.next_word() >> 11) as f64 / (1_u64 << 53) as f64; // 0 to below 1
        let rank = self.cumulated.partition_point(|&share| share <= at);
        rank.min(self.cumulated.len() - 1)
    }
}

/// A number below `bound`, which is at least 1.
fn below(words: &mut SplitMix64, bound: usize) -> usize {
    ((u128::from(words.next_word()) * bound as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probability of each rank, summed from the small ones on.
    fn exact(count: usize, skew: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=count).map(|rank| (rank as f64).powf(-skew)).collect();
        let sum: f64 = weights.iter().rev().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }

    #[test]
    fn the_table_is_the_exact_distribution() {
        for (count, skew) in [(1, 0.99), (2, 0.0), (10, 1.0), (1000, 0.99), (50_000, 1.3)] {
            let zipf = Zipf::new(count, skew, 1);
            let mut before = 0.0;
            for (share, probability) in zipf.cumulated.iter().zip(exact(count, skew)) {
                assert!((share - before - probability).abs() < 1e-12, "{count}, {skew}");
                before = *share;
            }
            assert!((before - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn draws_follow_it() {
        const DRAWS: usize = 400_000;
        for (skew, seed) in [(0.0, 3), (0.6, 4), (0.99, 5), (1.4, 6)] {
            let mut zipf = Zipf::new(100, skew, seed);
            let mut counts = [0_u32; 100];
            (0..DRAWS).for_each(|_| counts[zipf.draw_rank()] += 1);
            // Pearson's chi-square with 99 degrees of freedom: over 160 once in 10,000.
            let chi_square: f64 = exact(100, skew)
                .iter()
                .zip(counts)
                .map(|(probability, count)| {
                    let expected = probability * DRAWS as f64;
                    (f64::from(count) - expected).powi(2) / expected
                })
                .sum();
            assert!(chi_square < 160.0, "skew {skew}: {chi_square}");
        }
    }

    #[test]
    fn ranks_are_scattered_over_all_pages_by_the_seed() {
        let mut pages = Zipf::new(1000, 0.99, 7).pages;
        let others = Zipf::new(1000, 0.99, 8).pages;
        assert_ne!(pages, others);
        assert!(pages.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count() < 20);
        pages.sort_unstable();
        assert!(pages.iter().copied().eq(0..1000));
        let draws = |seed| {
            let mut zipf = Zipf::new(1000, 0.99, seed);
            (0..50).map(|_| zipf.draw()).collect::<Vec<usize>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }
}
