//! Accesses by Zipf's law: the page of rank k is loaded in proportion to 1 / k^skew.
//!
//! Numbers are drawn by the inverse of the cumulated distribution, from a table of it: exact, at 8
//! bytes a page. A second table says where in it to start (indexed search: Chen and Asau, 1974), so
//! a draw looks at two entries or so. Ranks are scattered over the pages by a permutation, so that
//! neighbours are not equally hot.

use uzswap::random::SplitMix64;

/// A word is cut to so many bits, those of a double's fraction.
const BITS: u32 = 53;

/// Page numbers by Zipf's law: the same for the same words on every machine.
#[derive(Debug, Clone)]
pub struct Zipf {
    /// The share of accesses that go to each rank or one before it, in 2^-53 and rounded up; the
    /// last is 1.
    cumulated: Vec<u64>,
    /// The first rank for draws that begin with each value of some bits.
    starts: Vec<u32>,
    /// The page of each rank.
    pages: Vec<u32>,
}

impl Zipf {
    /// Accesses to pages `0 .. pages`, of which there is at least one and fewer than 2^32. A skew
    /// of 0 asks for all alike; 0.99 is that of the YCSB benchmark. `words` scatter the ranks.
    ///
    /// # Panics
    ///
    /// If there are no pages, or too many.
    pub fn new(pages: usize, skew: f64, words: &mut SplitMix64) -> Zipf {
        assert!(pages > 0, "no pages, no accesses");
        let count = u32::try_from(pages).expect("16 TiB of pages are not replayed");
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=count)
            .map(|rank| {
                sum += f64::from(rank).powf(-skew);
                sum
            })
            .collect();
        let one = (1_u64 << BITS) as f64;
        let cumulated: Vec<u64> =
            sums.into_iter().map(|share| (share / sum * one).ceil() as u64).collect();
        let slots = pages.next_power_of_two() as u64;
        let mut rank = 0;
        let starts = (0..slots)
            .map(|slot| {
                while cumulated[rank] <= slot << (BITS - slots.ilog2()) {
                    rank += 1;
                }
                rank as u32 // below `count`
            })
            .collect();
        let mut places: Vec<u32> = (0..count).collect();
        for last in (1..pages).rev() {
            places.swap(last, below(words, last + 1));
        }
        Zipf { cumulated, starts, pages: places }
    }

    /// The page that the next word draws.
    pub fn draw(&self, words: &mut SplitMix64) -> u32 {
        self.pages[self.rank_of(words.next_word())]
    }

    /// The pages, hottest first.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The rank that a word draws, from 0.
    fn rank_of(&self, word: u64) -> usize {
        let at = word >> (u64::BITS - BITS);
        let start = self.starts[(at >> (BITS - self.starts.len().ilog2())) as usize] as usize;
        start + self.cumulated[start..].iter().take_while(|&&share| share <= at).count()
    }
}

/// A number below `bound`, which is at least 1.
fn below(words: &mut SplitMix64, bound: usize) -> usize {
    ((u128::from(words.next_word()) * bound as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zipf(pages: usize, skew: f64, seed: u64) -> Zipf {
        Zipf::new(pages, skew, &mut SplitMix64::new(seed))
    }

    /// The probability of each rank, summed from the small ones on.
    fn exact(count: usize, skew: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=count).map(|rank| (rank as f64).powf(-skew)).collect();
        let sum: f64 = weights.iter().rev().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }

    #[test]
    fn the_table_is_the_exact_distribution() {
        for (count, skew) in [(1, 0.99), (2, 0.0), (10, 1.0), (1000, 0.99), (50_000, 1.3)] {
            let zipf = zipf(count, skew, 1);
            let mut before = 0.0;
            for (share, probability) in zipf.cumulated.iter().zip(exact(count, skew)) {
                let share = *share as f64 / (1_u64 << BITS) as f64;
                assert!((share - before - probability).abs() < 1e-12, "{count}, {skew}");
                before = share;
            }
            assert!((before - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn a_draw_is_the_first_rank_with_a_larger_share() {
        let mut words = SplitMix64::new(2);
        for (count, skew) in [(1, 0.99), (2, 0.0), (7, 10.0), (1000, 0.99), (1024, 3.0)] {
            let zipf = zipf(count, skew, 1);
            let edges = zipf.cumulated.iter().flat_map(|&share| [share - 1, share]);
            let edges: Vec<u64> = edges.map(|at| at << (u64::BITS - BITS)).collect();
            let drawn = (0..10_000).map(|_| words.next_word()).chain([0, u64::MAX]);
            for word in drawn.chain(edges.into_iter().filter(|&word| word > 0)) {
                let slow = zipf.cumulated.partition_point(|&share| share <= word >> 11);
                assert_eq!(zipf.rank_of(word), slow, "{count}, {skew}: {word:#x}");
            }
        }
    }

    #[test]
    fn draws_follow_it() {
        const DRAWS: usize = 400_000;
        for (skew, seed) in [(0.0, 3), (0.6, 4), (0.99, 5), (1.4, 6)] {
            let mut words = SplitMix64::new(seed);
            let zipf = Zipf::new(100, skew, &mut words);
            let mut counts = [0_u32; 100];
            (0..DRAWS).for_each(|_| counts[zipf.rank_of(words.next_word())] += 1);
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
        let mut pages = zipf(1000, 0.99, 7).pages;
        let others = zipf(1000, 0.99, 8).pages;
        assert_ne!(pages, others);
        assert!(pages.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count() < 20);
        pages.sort_unstable();
        assert!(pages.iter().copied().eq(0..1000));
        let draws = |seed| {
            let mut words = SplitMix64::new(seed);
            let zipf = Zipf::new(1000, 0.99, &mut words);
            (0..50).map(|_| zipf.draw(&mut words)).collect::<Vec<u32>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }
}
