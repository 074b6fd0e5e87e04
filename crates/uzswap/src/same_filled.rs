//! Same-filled pages: one machine word, repeated. The store keeps the word.
//!
//! The checks give the same answer and differ in how soon they see that a page is not one:
//!
//! ```text
//!  forward       0 | 1 2 3 4 ...              511      zswap, kernels 4.16 to 6.3
//!  backward      0 | 511 510 509 ...            1      the study's second
//!  last-first    0 | 511, then 1 2 3 ...      510      zswap 6.4 to 6.11, zram since 5.6
//!  vector        0 | 511, then blocks of 64 words      ours
//! ```

use crate::named_enum::named;
use crate::page::{Page, WORDS_PER_PAGE, words};
use uzswap_sys::simd::{BLOCK_WORDS, first_differing_block};

/// In which order the words of a page are compared with its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SameFilledCheck {
    /// Words 1 to 511: zswap of kernels 4.16 to 6.3.
    Forward,
    /// Words 511 to 1.
    Backward,
    /// Word 511, then 1 to 510: zswap of kernels 6.4 to 6.11, zram since 5.6.
    LastFirst,
    /// Word 511, then all in blocks of 64, by the widest compares that the processor has.
    #[default]
    Vector,
    /// None: no page is same-filled.
    Off,
}

named!(
    SameFilledCheck, "same-filled check",
    Forward => "forward", Backward => "backward", LastFirst => "last-first", Vector => "vector",
    Off => "off",
);

/// Which pages are kept as one word, and how they are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct SameFilled {
    /// How they are found.
    pub check: SameFilledCheck,
    /// Whether the word must be 0, as since kernel 6.12; other same-filled pages are compressed.
    pub zero_only: bool,
}

impl SameFilled {
    /// The word to keep instead of `page`, if it is same-filled and the check is on.
    #[inline]
    pub fn word(self, page: &Page) -> Option<u64> {
        if self.zero_only && words(page)[0] != [0; 8] {
            return None;
        }
        self.check.word(page)
    }
}

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The word that the page repeats, if it is nothing but that word.
    pub word: Option<u64>,
    /// Compares until that was known; each is of [`SameFilledCheck::iteration_words`] words.
    pub iterations: usize,
}

impl SameFilledCheck {
    /// The word that `page` repeats, if it is nothing but that word.
    #[inline]
    pub fn word(self, page: &Page) -> Option<u64> {
        self.look(page).word
    }

    /// The same, with how long it took to see. The compiler leaves the counting out where nobody
    /// asks for it.
    #[inline]
    pub fn look(self, page: &Page) -> Verdict {
        let words = words(page);
        let (equal, most) = match self {
            SameFilledCheck::Forward => (forward(words), WORDS_PER_PAGE - 1),
            SameFilledCheck::Backward => (backward(words), WORDS_PER_PAGE - 1),
            SameFilledCheck::LastFirst => (last_first(words), WORDS_PER_PAGE - 1),
            SameFilledCheck::Vector => (vector(words), 1 + WORDS_PER_PAGE / BLOCK_WORDS),
            SameFilledCheck::Off => return Verdict { word: None, iterations: 0 },
        };
        match equal {
            Some(equal) => Verdict { word: None, iterations: equal + 1 },
            None => Verdict { word: Some(u64::from_ne_bytes(words[0])), iterations: most },
        }
    }

    /// Words that one iteration compares: 1, and with [`SameFilledCheck::Vector`] 64 in every
    /// iteration but the first.
    pub fn iteration_words(self) -> usize {
        if self == SameFilledCheck::Vector { BLOCK_WORDS } else { 1 }
    }
}

type Words = [[u8; 8]; WORDS_PER_PAGE];

// Each of these is one check: the compares that found no difference, before the one that did.

#[inline]
fn forward(words: &Words) -> Option<usize> {
    words[1..].iter().position(|word| *word != words[0])
}

#[inline]
fn backward(words: &Words) -> Option<usize> {
    words[1..].iter().rev().position(|word| *word != words[0])
}

#[inline]
fn last_first(words: &Words) -> Option<usize> {
    if words[WORDS_PER_PAGE - 1] != words[0] {
        return Some(0);
    }
    let between = words[1..WORDS_PER_PAGE - 1].iter().position(|word| *word != words[0]);
    between.map(|equal| 1 + equal)
}

#[inline]
fn vector(words: &Words) -> Option<usize> {
    if words[WORDS_PER_PAGE - 1] != words[0] {
        return Some(0);
    }
    first_differing_block(words, words[0]).map(|equal| 1 + equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{PAGE_SIZE, fill_with_word};
    use crate::random::SplitMix64;

    /// Those that look.
    const CHECKS: [SameFilledCheck; 4] = [
        SameFilledCheck::Forward,
        SameFilledCheck::Backward,
        SameFilledCheck::LastFirst,
        SameFilledCheck::Vector,
    ];

    const WORDS: [u64; 5] = [0, u64::MAX, 0x0123_4567_89ab_cdef, 1, 1 << 63];

    fn filled(word: u64) -> Page {
        let mut page = [0x55; PAGE_SIZE];
        fill_with_word(&mut page, word);
        page
    }

    /// The obvious twin.
    fn slowly(page: &Page) -> Option<u64> {
        let first: [u8; 8] = page[..8].try_into().unwrap();
        page.chunks(8).all(|word| word == first).then_some(u64::from_ne_bytes(first))
    }

    fn iterations(page: &Page) -> [usize; 4] {
        CHECKS.map(|check| check.look(page).iterations)
    }

    #[test]
    fn a_repeated_word_is_found() {
        for word in WORDS {
            let page = filled(word);
            assert_eq!(CHECKS.map(|check| check.word(&page)), [Some(word); 4]);
            assert_eq!(iterations(&page), [511, 511, 511, 9], "all of it must be compared");
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_is_seen() {
        for word in [0, u64::MAX, 0xa5a5_a5a5_a5a5_a5a5] {
            let mut page = filled(word);
            for bit in 0..PAGE_SIZE * 8 {
                page[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(CHECKS.map(|check| check.word(&page)), [None; 4], "bit {bit}");
                page[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn iterations_are_those_counted_by_hand() {
        let mut page = filled(7);
        // Word 0 differs from all others: seen at once.
        page[0] = 8;
        assert_eq!(iterations(&page), [1, 1, 1, 1]);
        page = filled(7);
        page[8] = 8; // word 1
        assert_eq!(iterations(&page), [1, 511, 2, 2]);
        page = filled(7);
        page[4095] = 8; // word 511
        assert_eq!(iterations(&page), [511, 1, 1, 1]);
        for at in 2..511 {
            page = filled(7);
            page[at * 8] = 8;
            assert_eq!(iterations(&page), [at, 512 - at, at + 1, at / 64 + 2], "word {at}");
        }
    }

    #[test]
    fn random_pages_are_judged_as_by_the_twin() {
        // Half of the changes restore or leave the page same-filled.
        let mut words = SplitMix64::new(20_261_121);
        let mut random = |bound: u64| words.next_word() % bound;
        let mut same_filled = 0;
        for _ in 0..20_000 {
            let mut page = filled(WORDS[random(5) as usize]);
            for _ in 0..random(4) {
                let (at, byte) = (random(4096) as usize, [0, 0, 0xff, 1][random(4) as usize]);
                page[at] = byte;
            }
            let expected = slowly(&page);
            same_filled += u32::from(expected.is_some());
            assert_eq!(CHECKS.map(|check| check.word(&page)), [expected; 4]);
            let zero = SameFilled { zero_only: true, ..SameFilled::default() };
            assert_eq!(zero.word(&page), expected.filter(|&word| word == 0));
            assert_eq!(SameFilledCheck::Off.word(&page), None);
        }
        assert!((5_000..15_000).contains(&same_filled), "{same_filled} of either kind");
    }
}
