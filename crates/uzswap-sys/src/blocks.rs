//! Blocks of 4096 aligned bytes, as direct I/O needs them.

use std::collections::TryReserveError;
use std::fmt;
use std::io;

/// Bytes in a block.
pub const BLOCK_SIZE: usize = 4096;

/// One block, aligned to its size: direct I/O asks for an alignment to the logical block of the
/// device, which is at most that.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK_SIZE]);

impl Block {
    /// A block of zeros.
    pub const ZERO: Block = Block([0; BLOCK_SIZE]);
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({:02x?}...)", &self.0[..8])
    }
}

/// `count` adjacent blocks of zeros.
///
/// # Errors
///
/// Where the heap has no room for them.
pub fn zeroed(count: usize) -> Result<Box<[Block]>, TryReserveError> {
    let mut blocks = Vec::new();
    blocks.try_reserve_exact(count)?;
    blocks.resize(count, Block::ZERO);
    Ok(blocks.into_boxed_slice())
}

/// The bytes of adjacent blocks.
pub fn bytes(blocks: &[Block]) -> &[u8] {
    // SAFETY: a block is 4096 bytes without padding (its size is its alignment), so the slice is
    // that many initialised bytes, borrowed for as long as `blocks` is.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), size_of_val(blocks)) }
}

/// The bytes of adjacent blocks, to be changed.
pub fn bytes_mut(blocks: &mut [Block]) -> &mut [u8] {
    // SAFETY: as in `bytes`; the borrow is exclusive, and any bytes make a valid block.
    unsafe { std::slice::from_raw_parts_mut(blocks.as_mut_ptr().cast(), size_of_val(blocks)) }
}

/// A run of adjacent blocks to write, and how that went.
#[derive(Debug)]
pub struct BlockWrite<'a> {
    /// The number of the first block.
    pub first: u32,
    /// What goes there and after it.
    pub blocks: &'a [Block],
    /// Filled in by the write. Where it is an error, the blocks may have changed in any way.
    pub outcome: io::Result<()>,
}

impl<'a> BlockWrite<'a> {
    /// A write to be done. Until it is, its outcome is an error.
    pub fn new(first: u32, blocks: &'a [Block]) -> BlockWrite<'a> {
        BlockWrite { first, blocks, outcome: Err(io::ErrorKind::Other.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_blocks() {
        let mut blocks = zeroed(3).unwrap();
        assert_eq!(blocks.as_ptr().addr() % BLOCK_SIZE, 0);
        bytes_mut(&mut blocks)[BLOCK_SIZE + 5] = 7;
        assert_eq!((blocks[1].0[5], bytes(&blocks).len()), (7, 3 * BLOCK_SIZE));
        assert!(bytes(&[]).is_empty());
        assert!(zeroed(usize::MAX / BLOCK_SIZE).is_err());
    }
}
