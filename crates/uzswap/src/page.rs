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
pub fn words(page: &Page) -> &[[u8; 8]; WORDS_PER_PAGE] {
    let (words, rest) = page.as_chunks::<8>();
    debug_assert!(rest.is_empty());
    words.try_into().expect("4096 / 8 words")
}

/// Makes `page` the repetition of `word`.
#[inline]
pub fn fill_with_word(page: &mut Page, word: u64) {
    let (words, _) = page.as_chunks_mut::<8>();
    words.fill(word.to_ne_bytes());
}
