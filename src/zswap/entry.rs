//! What the store knows of a page, and how it packs into an index entry.
//!
//! ```text
//!  | handle: 51                 | length: 1 to 4096 |   an object
//!  | handle: 51                 |              4097 |   an object that is the page as it was
//!  | word: 51, sign-extended    |              4098 |   a same-filled page
//!  | number of the word's slot  |              4099 |   a same-filled page, a longer word
//! ```

use std::num::NonZeroU64;

use super::words::Words;
use crate::index::{Entry, IndexError};
use crate::page::PAGE_SIZE;
use crate::zpool::Handle;

/// Where a page's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Nowhere: the page is this word, repeated.
    SameFilled(u64),
    /// In the pool, compressed to `bytes`.
    Compressed { handle: Handle, bytes: u16 },
    /// In the pool as it was, 4096 bytes.
    AsIs { handle: Handle },
}

const LENGTH_BITS: u32 = 13;
const _: () = assert!(Handle::BITS + LENGTH_BITS == u64::BITS);

/// What stands for a length where there is none.
const AS_IS: u64 = PAGE_SIZE as u64 + 1;
const WORD: u64 = AS_IS + 1;
const WORD_SLOT: u64 = WORD + 1;

impl Content {
    /// The entry of this content; a word that is too long for one goes to `words`.
    pub(super) fn pack(self, words: &mut Words) -> Result<Entry, IndexError> {
        let (upper, length) = match self {
            Content::Compressed { handle, bytes } => (handle.to_bits(), u64::from(bytes)),
            Content::AsIs { handle } => (handle.to_bits(), AS_IS),
            Content::SameFilled(word) if is_short(word) => (word, WORD),
            Content::SameFilled(word) => (u64::from(words.insert(word)?), WORD_SLOT),
        };
        assert!(
            self.handle().is_none_or(|handle| handle.to_bits() >> Handle::BITS == 0),
            "a pool's handles have {} bits at most",
            Handle::BITS
        );
        let packed = NonZeroU64::new(upper << LENGTH_BITS | length);
        Ok(Entry(packed.expect("a length is not 0")))
    }

    /// What an entry says. The word of a same-filled page stays where it is.
    pub(super) fn of(entry: Entry, words: &Words) -> Content {
        Content::unpack(entry, |slot| words.get(slot))
    }

    /// What an entry that is in the index no more said; its slot in `words` is freed.
    pub(super) fn release(entry: Entry, words: &mut Words) -> Content {
        Content::unpack(entry, |slot| words.remove(slot))
    }

    fn unpack(entry: Entry, word: impl FnOnce(u32) -> u64) -> Content {
        let packed = entry.0.get();
        let handle = Handle::from_bits(packed >> LENGTH_BITS);
        match packed & ((1 << LENGTH_BITS) - 1) {
            AS_IS => Content::AsIs { handle },
            WORD => Content::SameFilled((packed.cast_signed() >> LENGTH_BITS).cast_unsigned()),
            WORD_SLOT => Content::SameFilled(word((packed >> LENGTH_BITS) as u32)),
            bytes => Content::Compressed { handle, bytes: bytes as u16 }, // <= 4096
        }
    }

    /// Whether it is a word that is kept beside the index.
    pub(super) fn has_slot(self) -> bool {
        matches!(self, Content::SameFilled(word) if !is_short(word))
    }

    /// The object's handle, if there is one.
    pub(super) fn handle(self) -> Option<Handle> {
        match self {
            Content::SameFilled(_) => None,
            Content::Compressed { handle, .. } | Content::AsIs { handle } => Some(handle),
        }
    }

    /// Bytes of compressed data; 0 for a same-filled page.
    pub(super) fn compressed_bytes(self) -> u64 {
        match self {
            Content::SameFilled(_) => 0,
            Content::Compressed { bytes, .. } => u64::from(bytes),
            Content::AsIs { .. } => PAGE_SIZE as u64,
        }
    }
}

/// Whether a word is its 51 low bits, sign-extended: 0, -1, small numbers, most addresses.
fn is_short(word: u64) -> bool {
    let shifted = word.cast_signed() << LENGTH_BITS;
    (shifted >> LENGTH_BITS).cast_unsigned() == word
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn every_content_survives_packing() {
        let handle = Handle::from_bits(0x0007_4567_89ab_cdef);
        let mut words = Words::new(&Arc::default());
        for (content, slots) in [
            (Content::SameFilled(0), 0),
            (Content::SameFilled(u64::MAX), 0),
            (Content::SameFilled((1 << 50) - 1), 0),
            (Content::SameFilled(u64::MAX << 50), 0),
            (Content::SameFilled(1 << 50), 1),
            (Content::SameFilled(u64::MAX << 51), 1),
            (Content::SameFilled(0x5a5a_5a5a_5a5a_5a5a), 1),
            (Content::SameFilled(i64::MIN.cast_unsigned()), 1),
            (Content::Compressed { handle, bytes: 1 }, 0),
            (Content::Compressed { handle, bytes: 4096 }, 0),
            (Content::AsIs { handle }, 0),
        ] {
            let entry = content.pack(&mut words).unwrap();
            assert_eq!((Content::of(entry, &words), words.used()), (content, slots));
            assert_eq!((Content::release(entry, &mut words), words.used()), (content, 0));
        }
    }
}
