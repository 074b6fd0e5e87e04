//! The tier behind the pool: a backing, and the contents of its blocks.

use std::collections::TryReserveError;
use std::io;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::batch::{BATCH_PAGES, Batch};
use super::entry::Written;
use super::parts::Behind;
use crate::AuditError;
use crate::backing::{BLOCK_SIZE, Block, BlockWrite, Extents, Location, block_bytes};
use crate::page::Page;

/// Free blocks that are given back together, adjacent ones: 256 KiB.
const DISCARD_BLOCKS_MIN: u32 = 64;

#[derive(Debug)]
pub(super) struct Tier {
    backing: Behind,
    extents: Mutex<Extents>,
    /// A discard has ended: its blocks can be taken.
    discarded: Condvar,
    /// One batch is written at a time.
    writer: Mutex<Batch>,
}

impl Tier {
    pub(super) fn new(backing: Behind) -> Result<Tier, TryReserveError> {
        let extents = Extents::new(backing.block_count())?;
        Ok(Tier {
            backing,
            extents: Mutex::new(extents),
            discarded: Condvar::new(),
            writer: Mutex::new(Batch::new()?),
        })
    }

    pub(super) fn backing(&self) -> &Behind {
        &self.backing
    }

    /// The batch, empty; waits for the one that is being written.
    pub(super) fn batch(&self) -> MutexGuard<'_, Batch> {
        let mut batch = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        batch.clear();
        batch
    }

    fn extents(&self) -> MutexGuard<'_, Extents> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a page's copy once more, for whoever reads it.
    pub(super) fn hold(&self, written: Written) {
        let mut extents = self.extents();
        for block in written.at.blocks(usize::from(written.bytes)) {
            extents.hold(block).expect("S6: a copy's blocks are held, and read by few at once");
        }
    }

    /// Gives up a page's copy.
    pub(super) fn release(&self, written: Written) {
        self.release_blocks(written.at, usize::from(written.bytes));
    }

    /// Reads the blocks of a copy into `room`; its bytes.
    pub(super) fn read<'a>(
        &self,
        written: Written,
        room: &'a mut [Block; 2],
    ) -> io::Result<&'a [u8]> {
        let bytes = usize::from(written.bytes);
        let blocks = written.at.blocks(bytes);
        self.backing.read(blocks.start, &mut room[..blocks.len()])?;
        Ok(&block_bytes(room)[written.at.offset()..][..bytes])
    }

    /// Writes one page as it is; where it is now.
    pub(super) fn write_page(&self, page: &Page) -> io::Result<Location> {
        let mut batch = self.batch();
        let run = self.take_block().ok_or(io::ErrorKind::StorageFull)?;
        batch.blocks[0].0.copy_from_slice(page);
        let mut writes = [BlockWrite::new(run.start, &batch.blocks[..1])];
        self.backing.write(&mut writes);
        let [write] = writes;
        write.outcome.inspect_err(|_| {
            self.extents().release(run.start).expect("it was taken just now");
        })?;
        // The hold of the writer becomes that of the page.
        Ok(Location::new(run.start, 0).expect("the start of a block"))
    }

    /// As [`Batch::place`], in this backing.
    pub(super) fn place<'a>(
        &self,
        batch: &'a mut Batch,
        bytes: usize,
        left: usize,
    ) -> Option<(Location, &'a mut [u8])> {
        batch.place(&mut self.extents(), bytes, left)
    }

    /// Writes all of a batch and lets go of its blocks; [`Batch::failure`] tells how it went.
    pub(super) fn write(&self, batch: &mut Batch) {
        batch.write(&self.backing);
        batch.release(&mut self.extents());
    }

    /// Blocks that can be written.
    pub(super) fn free_blocks(&self) -> usize {
        self.extents().free_blocks()
    }

    /// Pages that the next batch can have. Of a backing that is full one is enough to ask whether
    /// copies can give way.
    pub(super) fn batch_pages(&self) -> usize {
        self.free_blocks().clamp(1, BATCH_PAGES)
    }

    /// Takes a free block. A backing is not full while its free blocks are being discarded: waits
    /// for that.
    fn take_block(&self) -> Option<Range<u32>> {
        let mut extents = self.extents();
        loop {
            let run = extents.take_run(1);
            if run.is_some() || extents.discarding_blocks() == 0 {
                return run;
            }
            extents = self.discarded.wait(extents).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes up to [`BATCH_PAGES`] copies of these lengths, 1 to 4096 bytes each, several at once.
    /// `fill` makes copy number n in its room; whether there is one. Where each one is now, or why
    /// it is not there.
    pub(super) fn write_copies(
        &self,
        lengths: &[usize],
        fill: &mut dyn FnMut(usize, &mut [u8]) -> bool,
    ) -> [Option<io::Result<Location>>; BATCH_PAGES] {
        let mut outcomes = [const { None }; BATCH_PAGES];
        let mut placed = [None; BATCH_PAGES];
        let mut batch = self.batch();
        let mut left: usize = lengths.iter().map(|bytes| bytes.next_multiple_of(16)).sum();
        for (number, &bytes) in lengths.iter().enumerate() {
            match self.place(&mut batch, bytes, left) {
                None => outcomes[number] = Some(Err(io::ErrorKind::StorageFull.into())),
                Some((at, room)) => match fill(number, room) {
                    true => placed[number] = Some((at, batch.last_run())),
                    false => self.release_blocks(at, bytes),
                },
            }
            left -= bytes.next_multiple_of(16);
        }
        self.write(&mut batch);
        for (number, &bytes) in lengths.iter().enumerate() {
            let Some((at, run)) = placed[number] else { continue };
            outcomes[number] = Some(match batch.failure_of(run) {
                None => Ok(at),
                Some(failed) => {
                    self.release_blocks(at, bytes);
                    Err(failed.kind().into())
                }
            });
        }
        outcomes
    }

    fn release_blocks(&self, at: Location, bytes: usize) {
        let mut extents = self.extents();
        for block in at.blocks(bytes) {
            extents.release(block).expect("S6: a copy's blocks are held for it");
        }
    }

    /// Whether a page that comes back to the pool keeps its copy in the backing: not if more than
    /// half of the blocks are in use, as the kernel frees swap slots then.
    pub(super) fn keeps_copies(&self) -> bool {
        let extents = self.extents();
        extents.used_blocks() <= extents.free_blocks()
    }

    /// Gives free blocks back to the file system, some 128 MiB at most; how many.
    pub(super) fn discard(&self) -> usize {
        let Some(blocks) = self.extents().begin_discard(DISCARD_BLOCKS_MIN) else { return 0 };
        // Where that fails they are as good as before, only not given back.
        let _ = self.backing.discard(blocks.clone());
        let count = blocks.len();
        self.extents().end_discard(blocks).expect("they were being discarded");
        self.discarded.notify_all();
        count
    }

    /// Blocks in use, and bytes of the state of blocks and of staged pages.
    pub(super) fn usage(&self) -> (usize, usize) {
        let extents = self.extents();
        (extents.used_blocks(), extents.bytes() + BATCH_PAGES * BLOCK_SIZE)
    }

    /// Checks that the copies, `holds` blocks in all, hold each block as often as is counted.
    pub(super) fn audit(&self, copies: &[Written]) -> Result<(), AuditError> {
        let extents = self.extents();
        extents.audit()?;
        let mut blocks: Vec<u32> = copies
            .iter()
            .flat_map(|written| written.at.blocks(usize::from(written.bytes)))
            .collect();
        blocks.sort_unstable();
        let mut used = 0;
        for same in blocks.chunk_by(|a, b| a == b) {
            used += 1;
            if usize::from(extents.holds(same[0])) != same.len() {
                return Err(format!(
                    "S6: block {} is held {} times and has {} copies",
                    same[0],
                    extents.holds(same[0]),
                    same.len()
                )
                .into());
            }
        }
        if used != extents.used_blocks() {
            return Err(
                format!("S6: {used} blocks with copies, {} held", extents.used_blocks()).into()
            );
        }
        Ok(())
    }
}
