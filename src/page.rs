//! The page: 4096 bytes, and the key it is stored under.

use std::fmt;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 1 << 12; // 4096

/// Machine words (8 bytes) in a page.
pub const WORDS_PER_PAGE: usize = PAGE_SIZE / size_of::<u64>(); // 512

/// One uncompressed page.
pub type Page = [u8; PAGE_SIZE];

/// The name of a page: its number in the address space of whoever stores it (a swap offset, a
/// virtual page number). Neighbouring pages have neighbouring keys; the store relies on it to keep
/// its index dense.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey(pub u64);

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageKey({:#x})", self.0)
    }
}

impl fmt::Display for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The words of a page, in memory order.
#[inline]
fn words(page: &Page) -> &[[u8; 8]; WORDS_PER_PAGE] {
    let (words, rest) = page.as_chunks::<8>();
    debug_assert!(rest.is_empty());
    words.try_into().expect("4096 / 8 words")
}

/// The word a page repeats, if it is nothing but that word.
///
/// The last word is looked at first, as zswap and zram do since 2020 and 2023: a page that differs
/// anywhere tends to differ there. What is left is compared 64 bytes at a time, in a form the
/// compiler turns into wide compares.
#[inline]
pub fn same_filled_word(page: &Page) -> Option<u64> {
    let words = words(page);
    let first = words[0];
    if words[WORDS_PER_PAGE - 1] != first {
        return None;
    }
    let pattern = u64::from_ne_bytes(first);
    let (lines, rest) = words.as_chunks::<8>();
    debug_assert!(rest.is_empty());
    for line in lines {
        let differs =
            line.iter().fold(0, |bits, word| bits | (u64::from_ne_bytes(*word) ^ pattern));
        if differs != 0 {
            return None;
        }
    }
    Some(pattern)
}

/// Makes `page` the repetition of `word`.
#[inline]
pub fn fill_with_word(page: &mut Page, word: u64) {
    let (words, _) = page.as_chunks_mut::<8>();
    words.fill(word.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_word_is_found_and_refilled() {
        for word in [0, u64::MAX, 0x0123_4567_89ab_cdef, 1] {
            let mut page = [0x55; PAGE_SIZE];
            fill_with_word(&mut page, word);
            assert_eq!(same_filled_word(&page), Some(word));
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_is_seen() {
        for bit in 0..PAGE_SIZE * 8 {
            let mut page = [0xa5; PAGE_SIZE];
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(same_filled_word(&page), None, "bit {bit}");
        }
    }
}
