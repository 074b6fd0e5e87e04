//! Compares one word with many, with the widest SIMD compare of the processor.
//!
//! The loop is ordinary code, compiled once for each instruction set; which of them runs is decided
//! at run time.

/// Words (8 bytes) that are compared before the result is looked at: 512 bytes. Of 16 to 128
/// words the fastest with AVX-512, and as fast as any with AVX2. Measured in
/// docs/experiments/2026-11-21-same-filled.md.
pub const BLOCK_WORDS: usize = 64;

/// The number of the first block of [`BLOCK_WORDS`] words that has another word than `word` in it,
/// from 0. Words after the last whole block are not looked at.
#[inline]
pub fn first_differing_block(words: &[[u8; 8]], word: [u8; 8]) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the one feature that the function needs.
            return unsafe { with_avx512(words, word) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the one feature that the function needs.
            return unsafe { with_avx2(words, word) };
        }
    }
    portable(words, word)
}

/// The instruction set that [`first_differing_block`] uses here: `avx512f`, `avx2`, or `baseline`
/// for what the program was compiled for.
pub fn instruction_set() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            return "avx512f";
        }
        if is_x86_feature_detected!("avx2") {
            return "avx2";
        }
    }
    "baseline"
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn with_avx512(words: &[[u8; 8]], word: [u8; 8]) -> Option<usize> {
    portable(words, word)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(words: &[[u8; 8]], word: [u8; 8]) -> Option<usize> {
    portable(words, word)
}

// Always inlined, and without closures: those would be made wide before they are inlined, by the
// instructions that every processor has.
#[inline(always)]
fn portable(words: &[[u8; 8]], word: [u8; 8]) -> Option<usize> {
    let word = u64::from_ne_bytes(word);
    let (blocks, _) = words.as_chunks::<BLOCK_WORDS>();
    for (number, block) in blocks.iter().enumerate() {
        // All of a block, with no way out of it, becomes wide compares.
        let mut bits = 0;
        for other in block {
            bits |= u64::from_ne_bytes(*other) ^ word;
        }
        if bits != 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    type Search = fn(&[[u8; 8]], [u8; 8]) -> Option<usize>;

    /// Those that this processor runs.
    fn searches() -> Vec<Search> {
        let mut searches: Vec<Search> = vec![portable, first_differing_block];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                // SAFETY: looked at just above.
                searches.push(|words, word| unsafe { with_avx2(words, word) });
            }
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: looked at just above.
                searches.push(|words, word| unsafe { with_avx512(words, word) });
            }
        }
        searches
    }

    #[test]
    fn every_bit_of_every_word_decides() {
        const BLOCKS: usize = 3;
        let word = 0x0123_4567_89ab_cdef_u64;
        for search in searches() {
            let mut words = [word.to_ne_bytes(); BLOCKS * BLOCK_WORDS + 5];
            for place in 0..words.len() {
                for bit in 0..64 {
                    words[place] = (word ^ (1 << bit)).to_ne_bytes();
                    let expected = Some(place / BLOCK_WORDS).filter(|&block| block < BLOCKS);
                    assert_eq!(search(&words, word.to_ne_bytes()), expected, "{place}, {bit}");
                }
                words[place] = word.to_ne_bytes();
            }
            assert_eq!(search(&words, word.to_ne_bytes()), None);
            words[70] = [0; 8];
            words[140] = [0; 8];
            assert_eq!(search(&words, word.to_ne_bytes()), Some(1), "the first of several");
            assert_eq!(search(&[], word.to_ne_bytes()), None);
        }
    }
}
