//! Hashes of page keys and of their upper bits.

use std::hash::Hasher;

/// The golden ratio, 2^64 / 1.618...: Knuth's multiplicative hashing.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number of 64 bits that are all mixed. Page keys are mostly neighbours, so that one
/// multiplication spreads them enough. Its high half comes into the low one: numbers that are far
/// apart have nothing there.
#[inline]
pub(super) fn mix(value: u64) -> u64 {
    let product = u128::from(value) * u128::from(GOLDEN);
    product as u64 ^ (product >> 64) as u64
}

/// A number below `end` from the high bits of a hash.
#[inline]
pub(super) fn scale(hash: u64, end: usize) -> usize {
    ((u128::from(hash) * end as u128) >> 64) as usize // < end
}

/// `mix` for a hash map of numbers.
#[derive(Debug, Default, Clone, Copy)]
pub struct MultiplyHasher(u64);

impl Hasher for MultiplyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_stride_get_buckets_of_their_own() {
        const KEYS: u64 = 4096;
        for bits in 0..=52 {
            let mut buckets = vec![0; KEYS as usize];
            for n in 0..KEYS {
                let mut hasher = MultiplyHasher::default();
                hasher.write_u64(n << bits);
                buckets[(hasher.finish() % KEYS) as usize] += 1;
            }
            let most = buckets.into_iter().max().unwrap();
            assert!(most <= 64, "stride 2^{bits}: {most} in one bucket");
        }
    }

    #[test]
    fn hashes_scale_to_all_of_a_range() {
        for end in [1, 3, 1000] {
            assert_eq!((scale(0, end), scale(u64::MAX, end)), (0, end - 1));
        }
    }

    #[test]
    fn each_bit_counts_of_numbers_and_of_bytes() {
        let of_numbers = |numbers: &[u64]| {
            let mut hasher = MultiplyHasher::default();
            numbers.iter().for_each(|&number| hasher.write_u64(number));
            hasher.finish()
        };
        let mut hashes = std::collections::HashSet::new();
        for first in [0, 1, GOLDEN, u64::MAX] {
            assert!((0..64).all(|bit| hashes.insert(of_numbers(&[first, 1 << bit]))), "{first}");
        }
        let mut hasher = MultiplyHasher::default();
        hasher.write(&[7, 0, 255]);
        assert_eq!(hasher.finish(), of_numbers(&[7, 0, 255]));
    }
}
