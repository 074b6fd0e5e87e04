//! The place of an object in the backing: block and offset.

use std::ops::Range;

use uzswap_sys::blocks::BLOCK_SIZE;

/// Where objects start: at multiples of this many bytes.
const GRANULE: usize = 16;

/// Granules in a block.
const GRANULES_PER_BLOCK: u64 = (BLOCK_SIZE / GRANULE) as u64; // 256

/// The place of an object in a backing. Its length is known to who stores it; it may go on in the
/// blocks that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    block: u32,
    /// In units of 16 bytes.
    granule: u8,
}

impl Location {
    /// Bits of [`bits`](Self::bits).
    pub const BITS: u32 = 40;

    /// Byte `offset` of block `block`; `None` where that is not a multiple of 16 below 4096.
    pub fn new(block: u32, offset: usize) -> Option<Location> {
        let granule = u8::try_from(offset / GRANULE).ok()?;
        offset.is_multiple_of(GRANULE).then_some(Location { block, granule })
    }

    /// The block it starts in.
    pub fn block(self) -> u32 {
        self.block
    }

    /// The byte of that block it starts at, a multiple of 16 below 4096.
    pub fn offset(self) -> usize {
        usize::from(self.granule) * GRANULE
    }

    /// The blocks that an object of `length` bytes touches here; none for a length of 0. They end
    /// at the last number there is.
    pub fn blocks(self, length: usize) -> Range<u32> {
        if length == 0 {
            return self.block..self.block;
        }
        let count = (self.offset() + length).div_ceil(BLOCK_SIZE);
        self.block..self.block.saturating_add(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// The first place behind an object of `length` bytes here; `None` behind the last block.
    pub fn after(self, length: usize) -> Option<Location> {
        let granules = u64::try_from(length.div_ceil(GRANULE)).ok()?;
        let bits = self.bits().checked_add(granules)?;
        Location::from_bits(bits)
    }

    /// As a number below 2^40, in the order of the places.
    pub fn bits(self) -> u64 {
        u64::from(self.block) * GRANULES_PER_BLOCK + u64::from(self.granule)
    }

    /// The place of that number; `None` from 2^40 on.
    pub fn from_bits(bits: u64) -> Option<Location> {
        let block = u32::try_from(bits / GRANULES_PER_BLOCK).ok()?;
        Some(Location { block, granule: (bits % GRANULES_PER_BLOCK) as u8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_an_object() {
        let at = |offset, length| Location::new(7, offset).unwrap().blocks(length);
        assert_eq!(at(0, 0), 7..7);
        assert_eq!(at(0, 1), 7..8);
        assert_eq!(at(0, 4096), 7..8);
        assert_eq!(at(16, 4080), 7..8);
        assert_eq!(at(16, 4081), 7..9);
        assert_eq!(at(4080, 4096), 7..9);
        assert_eq!(at(4080, 4113), 7..10);
        let last = Location::new(u32::MAX, 16).unwrap();
        assert_eq!(last.blocks(1 << 20), u32::MAX..u32::MAX);
    }

    #[test]
    fn offsets_are_multiples_of_16_in_a_block() {
        for offset in 0..10_000 {
            let location = Location::new(1, offset);
            assert_eq!(location.is_some(), offset < 4096 && offset % 16 == 0);
            assert!(location.is_none_or(|location| location.offset() == offset));
        }
    }

    #[test]
    fn bits_and_back() {
        for (block, offset) in [(0, 0), (0, 4080), (1, 0), (12345, 512), (u32::MAX, 4080)] {
            let location = Location::new(block, offset).unwrap();
            assert!(location.bits() < 1 << Location::BITS);
            assert_eq!(Location::from_bits(location.bits()), Some(location));
        }
        assert_eq!(Location::from_bits(1 << Location::BITS), None);
        assert_eq!(Location::from_bits(u64::MAX), None);
    }

    #[test]
    fn places_follow_each_other() {
        let start = Location::new(3, 4064).unwrap();
        assert_eq!(start.after(0), Some(start));
        assert_eq!(start.after(1), Location::new(3, 4080));
        assert_eq!(start.after(17), Location::new(4, 0));
        assert_eq!(start.after(4096), Location::new(4, 4064));
        assert_eq!(Location::new(u32::MAX, 4080).unwrap().after(16), None);
        assert_eq!(start.after(usize::MAX), None);
    }
}
