//! What the store knows of a page, and how it packs into an index entry.

use crate::index::Entry;
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

const KIND_SHIFT: u32 = 16;
const SAME_FILLED: u32 = 0;
const COMPRESSED: u32 = 1;
const AS_IS: u32 = 2;

impl Content {
    pub(super) fn pack(self, identity: u32) -> Entry {
        let (payload, kind, bytes) = match self {
            Content::SameFilled(word) => (word, SAME_FILLED, 0),
            Content::Compressed { handle, bytes } => (handle.to_bits(), COMPRESSED, bytes),
            Content::AsIs { handle } => (handle.to_bits(), AS_IS, PAGE_SIZE as u16),
        };
        Entry { payload, identity, tag: kind << KIND_SHIFT | u32::from(bytes) }
    }

    pub(super) fn unpack(entry: Entry) -> Content {
        let handle = Handle::from_bits(entry.payload);
        match entry.tag >> KIND_SHIFT {
            SAME_FILLED => Content::SameFilled(entry.payload),
            COMPRESSED => Content::Compressed { handle, bytes: entry.tag as u16 },
            AS_IS => Content::AsIs { handle },
            kind => unreachable!("an entry of kind {kind}"),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_content_survives_packing() {
        let handle = Handle::from_bits(0x0123_4567_89ab_cdef);
        for content in [
            Content::SameFilled(0),
            Content::SameFilled(u64::MAX),
            Content::Compressed { handle, bytes: 1 },
            Content::Compressed { handle, bytes: 4096 },
            Content::AsIs { handle },
        ] {
            let entry = content.pack(9);
            assert_eq!((Content::unpack(entry), entry.identity), (content, 9));
        }
    }
}
