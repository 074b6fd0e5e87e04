//! A backing in memory, for tests and measurements.

use std::collections::TryReserveError;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use super::{Backing, Block, BlockWrite, check_inside, check_writes, zeroed_blocks};

/// Blocks on the heap, taken when they are first written. To read one that was never written, or
/// was discarded, is an error: what asks for it has lost its way.
#[derive(Debug)]
pub struct MemoryBacking {
    blocks: RwLock<Vec<Option<Box<[Block]>>>>,
    count: u32,
    written: AtomicU64,
    read: AtomicU64,
    discarded: AtomicU64,
}

impl MemoryBacking {
    /// An empty one of `count` blocks.
    ///
    /// # Errors
    ///
    /// Where the heap has no room for its table, 16 bytes a block.
    pub fn new(count: u32) -> Result<MemoryBacking, TryReserveError> {
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(count as usize)?;
        blocks.resize_with(count as usize, || None);
        Ok(MemoryBacking {
            blocks: RwLock::new(blocks),
            count,
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
        })
    }

    /// Blocks written since it was made.
    pub fn blocks_written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Blocks read since it was made.
    pub fn blocks_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Blocks discarded since it was made.
    pub fn blocks_discarded(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }

    /// Blocks that hold something.
    pub fn resident_blocks(&self) -> usize {
        let blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        blocks.iter().flatten().count()
    }
}

impl Backing for MemoryBacking {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn block_count(&self) -> u32 {
        self.count
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        if !check_writes(writes, self.count) {
            return;
        }
        let mut blocks = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
        for write in writes {
            let places = &mut blocks[write.first as usize..][..write.blocks.len()];
            write.outcome = fill(places, write.blocks);
            self.written.fetch_add(write.blocks.len() as u64, Ordering::Relaxed);
        }
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        check_inside(first, blocks.len(), self.count)?;
        let held = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        let places = &held[first as usize..][..blocks.len()];
        for (block, place) in blocks.iter_mut().zip(places) {
            let held = place.as_ref().ok_or(io::ErrorKind::InvalidData)?;
            block.0 = held[0].0;
            self.read.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn discard(&self, range: Range<u32>) -> io::Result<()> {
        check_inside(range.start, range.len(), self.count)?;
        let mut blocks = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
        blocks[range.start as usize..][..range.len()].fill(None);
        self.discarded.fetch_add(range.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

fn fill(places: &mut [Option<Box<[Block]>>], blocks: &[Block]) -> io::Result<()> {
    for (place, block) in places.iter_mut().zip(blocks) {
        match place {
            Some(held) => held[0].0 = block.0,
            None => {
                let mut held = zeroed_blocks(1).map_err(|_| io::ErrorKind::OutOfMemory)?;
                held[0].0 = block.0;
                *place = Some(held);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_cannot_be_read() {
        let backing = MemoryBacking::new(4).unwrap();
        let mut blocks = zeroed_blocks(2).unwrap();
        blocks[1].0[9] = 1;
        let mut writes = [BlockWrite::new(1, &blocks)];
        backing.write(&mut writes);
        writes[0].outcome.as_ref().unwrap();
        let mut back = zeroed_blocks(2).unwrap();
        backing.read(1, &mut back).unwrap();
        assert_eq!(back[1].0[9], 1);
        backing.read(0, &mut back).unwrap_err();
        backing.discard(1..2).unwrap();
        backing.read(1, &mut back).unwrap_err();
        backing.read(3, &mut back).unwrap_err();
        assert_eq!(backing.resident_blocks(), 1);
        assert_eq!((backing.blocks_written(), backing.blocks_discarded()), (2, 1));
    }

    #[test]
    fn a_run_that_is_not_inside_writes_nothing() {
        let backing = MemoryBacking::new(4).unwrap();
        let blocks = zeroed_blocks(2).unwrap();
        let mut writes = [BlockWrite::new(0, &blocks), BlockWrite::new(3, &blocks)];
        backing.write(&mut writes);
        assert!(writes.iter().all(|write| write.outcome.is_err()));
        assert_eq!(backing.resident_blocks(), 0);
        assert!(backing.discard(u32::MAX - 1..u32::MAX).is_err());
    }
}
