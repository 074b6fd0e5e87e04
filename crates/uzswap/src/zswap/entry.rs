//! Description of a stored page in 64 bits: an index entry in a store without records, else a part
//! of a record.
//!
//! ```text
//!  | handle: 51                 | length: 1 to 4096 |   an object
//!  | handle: 51                 |              4097 |   an object that is the page as it was
//!  | handle: 51                 |  4100 + its share |   a page of a unit, which is one object
//!  | word: 51, sign-extended    |              4098 |   a same-filled page
//!  | number of the word's slot  |              4099 |   a same-filled page, a longer word
//!  | 0                          |                 0 |   a page in the backing alone (records)
//! ```

use std::num::NonZeroU64;

use super::long_words::LongWords;
use super::tenant_id::TenantNumber;
use crate::backing::Location;
use crate::index::{Entry, IndexError};
use crate::page::PAGE_SIZE;
use crate::zpool::Handle;

/// All that the store knows of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) content: Content,
    /// Of the object in the pool; 0 where nothing is in the pool, or checksums are off.
    pub(super) checksum: u32,
    /// Its copy in the backing: the only one, or one beside that in the pool.
    pub(super) written: Option<Written>,
    pub(super) tenant: TenantNumber,
}

impl Held {
    /// All there is where there are no records.
    pub(super) fn of_root(content: Content) -> Held {
        Held { content, checksum: 0, written: None, tenant: TenantNumber::ROOT }
    }
}

/// A page's copy in the backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) at: Location,
    /// 1 to 4096.
    pub(super) bytes: u16,
    /// Whether the copy is the page itself; otherwise it is an object.
    pub(super) as_is: bool,
    pub(super) checksum: u32,
}

/// Where a page's bytes are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Nowhere: the page is this word, repeated.
    SameFilled(u64),
    /// In the pool, compressed to `bytes`.
    Compressed { handle: Handle, bytes: u16 },
    /// In the pool as it was, 4096 bytes.
    AsIs { handle: Handle },
    /// In the pool, in an object with its neighbours, of which `bytes` are its share.
    InUnit { handle: Handle, bytes: u16 },
    /// In no entry: it was in a unit, whose object other pages still need.
    LeftUnit { bytes: u16 },
    /// Not in memory: in the backing.
    WrittenBack,
}

const LENGTH_BITS: u32 = 13;
const _: () = assert!(Handle::BITS + LENGTH_BITS == u64::BITS);

/// Placeholder for a length.
const AS_IS: u64 = PAGE_SIZE as u64 + 1;
const WORD: u64 = AS_IS + 1;
const WORD_SLOT: u64 = WORD + 1;
/// Placeholders from here on are shares of units.
const UNIT: u64 = WORD_SLOT + 1;

/// The largest share that an entry can tell.
pub(super) const UNIT_SHARE_MAX: usize = (1 << LENGTH_BITS) - 1 - UNIT as usize; // 4091

impl Content {
    /// The entry of this content; a word that is too long for one goes to `words`.
    pub(super) fn pack(self, words: &mut LongWords) -> Result<Entry, IndexError> {
        let bits = match self {
            Content::SameFilled(word) if is_short(word) => word << LENGTH_BITS | WORD,
            Content::SameFilled(word) => u64::from(words.insert(word)?) << LENGTH_BITS | WORD_SLOT,
            object => object.to_bits(),
        };
        Ok(Entry(NonZeroU64::new(bits).expect("a length is not 0")))
    }

    /// An object, or none, in 64 bits.
    pub(super) fn to_bits(self) -> u64 {
        let (handle, length) = match self {
            Content::Compressed { handle, bytes } => (handle, u64::from(bytes)),
            Content::AsIs { handle } => (handle, AS_IS),
            Content::InUnit { handle, bytes } => (handle, UNIT + u64::from(bytes)),
            Content::SameFilled(_) | Content::WrittenBack | Content::LeftUnit { .. } => return 0,
        };
        assert!(
            handle.to_bits() >> Handle::BITS == 0,
            "a pool's handles have {} bits at most",
            Handle::BITS
        );
        handle.to_bits() << LENGTH_BITS | length
    }

    /// What [`Content::to_bits`] packed.
    pub(super) fn from_bits(bits: u64) -> Content {
        let handle = Handle::from_bits(bits >> LENGTH_BITS);
        match bits & ((1 << LENGTH_BITS) - 1) {
            0 => Content::WrittenBack,
            AS_IS => Content::AsIs { handle },
            share @ UNIT.. => Content::InUnit { handle, bytes: (share - UNIT) as u16 }, // < 4092
            bytes => Content::Compressed { handle, bytes: bytes as u16 },               // <= 4096
        }
    }

    /// What an entry says. The word of a same-filled page stays where it is.
    pub(super) fn of(entry: Entry, words: &LongWords) -> Content {
        Content::unpack(entry, |slot| words.get(slot))
    }

    /// Decodes an entry that is no longer in the index; its slot in `words` is freed.
    pub(super) fn release(entry: Entry, words: &mut LongWords) -> Content {
        Content::unpack(entry, |slot| words.remove(slot))
    }

    fn unpack(entry: Entry, word: impl FnOnce(u32) -> u64) -> Content {
        let packed = entry.0.get();
        match packed & ((1 << LENGTH_BITS) - 1) {
            WORD => Content::SameFilled((packed.cast_signed() >> LENGTH_BITS).cast_unsigned()),
            WORD_SLOT => Content::SameFilled(word((packed >> LENGTH_BITS) as u32)),
            _ => Content::from_bits(packed),
        }
    }

    /// Whether it is a word that is kept beside the index.
    pub(super) fn has_slot(self) -> bool {
        matches!(self, Content::SameFilled(word) if !is_short(word))
    }

    /// The object's handle, if there is one.
    pub(super) fn handle(self) -> Option<Handle> {
        match self {
            Content::SameFilled(_) | Content::WrittenBack | Content::LeftUnit { .. } => None,
            Content::Compressed { handle, .. }
            | Content::AsIs { handle }
            | Content::InUnit { handle, .. } => Some(handle),
        }
    }

    /// Bytes of compressed data, its share of a unit's; 0 for a same-filled page.
    pub(super) fn compressed_bytes(self) -> u64 {
        match self {
            Content::SameFilled(_) | Content::WrittenBack => 0,
            Content::Compressed { bytes, .. }
            | Content::InUnit { bytes, .. }
            | Content::LeftUnit { bytes } => u64::from(bytes),
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
        let mut words = LongWords::new(&Arc::default());
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
            (Content::InUnit { handle, bytes: 1 }, 0),
            (Content::InUnit { handle, bytes: UNIT_SHARE_MAX as u16 }, 0),
        ] {
            let entry = content.pack(&mut words).unwrap();
            assert_eq!((Content::of(entry, &words), words.used()), (content, slots));
            assert_eq!((Content::release(entry, &mut words), words.used()), (content, 0));
        }
    }
}
