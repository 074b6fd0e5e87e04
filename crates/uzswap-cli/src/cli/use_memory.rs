//! `uzswap use-memory`: the programs of the presets usemem and memhog.

use std::thread;

use anyhow::anyhow;

use super::Failure;
use super::size::{check_available, parse_size};
use uzswap::page::PAGE_SIZE;
use uzswap::random::{SplitMix64, mix};

/// What `uzswap use-memory` is asked for.
#[derive(Debug, clap::Args)]
pub(super) struct UseMemory {
    /// Threads, each with memory of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Memory of each
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    size: usize,
    /// How often all of it is read, or with --hog filled
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Read pages in random order
    #[arg(long)]
    random: bool,
    /// Fill all pages again in each round, each with one byte
    #[arg(long)]
    hog: bool,
}

impl UseMemory {
    pub(super) fn run(self) -> Result<(), Failure> {
        check_available(self.size.saturating_mul(self.threads))?;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let work = &self;
                    scope.spawn(move || if work.hog { work.hog() } else { work.read(thread) })
                })
                .collect();
            let is_right = threads.into_iter().all(|thread| thread.join().unwrap_or(false));
            match is_right {
                true => Ok(()),
                false => Err(Failure::Check(anyhow!(
                    "memory does not contain the values that were written"
                ))),
            }
        })
    }

    /// Fills memory and reads it; whether each page was as it was written.
    fn read(&self, thread: usize) -> bool {
        let pages = (self.size / PAGE_SIZE).max(1);
        let seed = mix(thread as u64);
        let mut memory = vec![0_u8; pages * PAGE_SIZE];
        for (number, page) in memory.chunks_exact_mut(PAGE_SIZE).enumerate() {
            fill(page, seed ^ number as u64);
        }
        let mut expected = [0; PAGE_SIZE];
        let mut random = SplitMix64::new(seed);
        (0..self.rounds).all(|_| {
            (0..pages).all(|step| {
                let number = match self.random {
                    true => (random.next_word() % pages as u64) as usize,
                    false => step,
                };
                fill(&mut expected, seed ^ number as u64);
                memory[number * PAGE_SIZE..][..PAGE_SIZE] == expected
            })
        })
    }

    /// Fills memory with one byte a round; whether the last round is still there.
    fn hog(&self) -> bool {
        let mut memory = vec![0_u8; self.size];
        for _ in 0..self.rounds {
            memory.fill(0xff);
            std::hint::black_box(&mut memory);
        }
        memory.iter().all(|&byte| byte == 0xff)
    }
}

/// Units that pages repeat, of two words each.
const REPEATED: u64 = 8;

/// Fills a page that lz4 makes about three times smaller, as those of programs: an eighth of its
/// units is its own, the others come from a few.
fn fill(page: &mut [u8], seed: u64) {
    let mut random = SplitMix64::new(seed);
    for unit in page.as_chunks_mut::<16>().0 {
        let next = random.next_word();
        let first = if next.is_multiple_of(8) { next } else { (next >> 3) % REPEATED };
        let words = u128::from(mix(first)) << 64 | u128::from(mix(first.wrapping_add(REPEATED)));
        *unit = words.to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap::compressor::{CompressorKind, OUTPUT_BYTES};

    #[test]
    fn memory_is_as_dense_as_that_of_programs_and_checked() {
        let lz4 = CompressorKind::Lz4.build();
        let mut page = [0; PAGE_SIZE];
        let mut object = [0; OUTPUT_BYTES];
        for seed in 0..20 {
            fill(&mut page, mix(seed));
            let bytes = lz4.compress(&page, &mut object).unwrap();
            assert!((900..1700).contains(&bytes), "{bytes} bytes");
        }
        let work = |hog, random| UseMemory { threads: 1, size: 1 << 20, rounds: 2, random, hog };
        assert!(work(false, false).read(0) && work(false, true).read(1) && work(true, false).hog());
    }
}
