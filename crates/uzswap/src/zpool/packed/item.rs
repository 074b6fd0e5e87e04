//! The items that follow each other in a region, and how each of them begins.
//!
//! ```text
//!  object | 1: 1 | bytes: 17 | cell: 30 |  the object             6 bytes of header
//!  hole   | 2: 2 | listed: 1 | bytes: 17 | next: 39 | previous    two words, 16 bytes
//!  filler | 0: 2 | bytes: 6 |                                     1 to 15 bytes
//! ```
//!
//! The bytes of an item are all of it, with its header. Nothing is aligned.

use super::{PLACE_BITS, Place};

/// Bytes in front of each object.
pub(super) const HEADER_BYTES: usize = 6;

/// The smallest hole: its two words. What is smaller is a filler.
pub(super) const HOLE_BYTES_MIN: usize = 16;

/// Bits of an item's bytes, and of an object's cell.
const BYTES_BITS: u32 = 17;
pub(super) const CELL_BITS: u32 = 48 - 1 - BYTES_BITS; // 30

const OBJECT: u64 = 1;
const HOLE: u64 = 2;
const LISTED: u64 = 4;
const HOLE_BYTES_SHIFT: u32 = 3;
const NEXT_SHIFT: u32 = HOLE_BYTES_SHIFT + BYTES_BITS; // 20

const _: () = assert!(NEXT_SHIFT + PLACE_BITS <= u64::BITS);

/// What is at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item {
    /// Free bytes that are too few for a hole.
    Filler { bytes: usize },
    /// Free bytes, on a list of holes or on none.
    Hole { bytes: usize, is_listed: bool },
    /// An object, named by a cell of the log's handle table.
    Object { bytes: usize, cell: u32 },
}

impl Item {
    /// The item at the start of `bytes`.
    #[inline]
    pub(super) fn at(bytes: &[u8]) -> Item {
        let first = u64::from(bytes[0]);
        if first & OBJECT != 0 {
            let mut header = [0; 8];
            header[..HEADER_BYTES].copy_from_slice(&bytes[..HEADER_BYTES]);
            let header = u64::from_le_bytes(header);
            let cell = (header >> (1 + BYTES_BITS)) as u32;
            return Item::Object { bytes: bytes_field(header >> 1), cell };
        }
        if first & HOLE == 0 {
            return Item::Filler { bytes: usize::from(bytes[0] >> 2) };
        }
        let word = word(bytes, 0);
        Item::Hole { bytes: bytes_field(word >> HOLE_BYTES_SHIFT), is_listed: word & LISTED != 0 }
    }

    /// All of its bytes.
    pub(super) fn bytes(self) -> usize {
        match self {
            Item::Filler { bytes } | Item::Hole { bytes, .. } | Item::Object { bytes, .. } => bytes,
        }
    }
}

/// Neighbours of a hole on its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Links {
    pub(super) next: Place,
    pub(super) previous: Place,
}

impl Links {
    /// The links of the hole at the start of `bytes`.
    pub(super) fn of(bytes: &[u8]) -> Links {
        Links { next: word(bytes, 0) >> NEXT_SHIFT, previous: word(bytes, 1) }
    }
}

/// Writes the header of an object that takes `item_bytes` with it.
#[inline]
pub(super) fn write_header(bytes: &mut [u8], item_bytes: usize, cell: u32) {
    let header = OBJECT | (item_bytes as u64) << 1 | u64::from(cell) << (1 + BYTES_BITS);
    bytes[..HEADER_BYTES].copy_from_slice(&header.to_le_bytes()[..HEADER_BYTES]);
}

/// Writes a filler of 1 to 15 bytes.
pub(super) fn write_filler(bytes: &mut [u8], item_bytes: usize) {
    bytes[0] = (item_bytes as u8) << 2; // < 64
}

/// Writes a hole; one with links is a listed one.
pub(super) fn write_hole(bytes: &mut [u8], item_bytes: usize, links: Option<Links>) {
    let (listed, Links { next, previous }) = match links {
        Some(links) => (LISTED, links),
        None => (0, Links { next: 0, previous: 0 }),
    };
    set_word(
        bytes,
        0,
        HOLE | listed | (item_bytes as u64) << HOLE_BYTES_SHIFT | next << NEXT_SHIFT,
    );
    set_word(bytes, 1, previous);
}

fn bytes_field(word: u64) -> usize {
    word as usize & ((1 << BYTES_BITS) - 1)
}

fn word(bytes: &[u8], number: usize) -> u64 {
    let word = bytes[number * 8..].first_chunk().expect("a hole has two words");
    u64::from_le_bytes(*word)
}

fn set_word(bytes: &mut [u8], number: usize, word: u64) {
    *bytes[number * 8..].first_chunk_mut().expect("a hole has two words") = word.to_le_bytes();
}

#[cfg(test)]
mod tests {
    use super::super::REGION_BYTES_MAX;
    use super::*;

    #[test]
    fn items_are_read_as_they_were_written() {
        let mut bytes = [0xff; 16];
        for item_bytes in [1, 2, 15] {
            write_filler(&mut bytes, item_bytes);
            assert_eq!(Item::at(&bytes[..1]), Item::Filler { bytes: item_bytes });
        }
        for (item_bytes, cell) in [(7, 0), (4102, 77), (REGION_BYTES_MAX, (1 << CELL_BITS) - 1)] {
            write_header(&mut bytes, item_bytes, cell);
            assert_eq!(Item::at(&bytes[..6]), Item::Object { bytes: item_bytes, cell });
        }
        let links = Links { next: (1 << PLACE_BITS) - 1, previous: 5 };
        for item_bytes in [HOLE_BYTES_MIN, 4000, REGION_BYTES_MAX] {
            write_hole(&mut bytes, item_bytes, Some(links));
            assert_eq!(Item::at(&bytes), Item::Hole { bytes: item_bytes, is_listed: true });
            assert_eq!(Links::of(&bytes), links);
            write_hole(&mut bytes, item_bytes, None);
            assert_eq!(Item::at(&bytes), Item::Hole { bytes: item_bytes, is_listed: false });
        }
    }
}
