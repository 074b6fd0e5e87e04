//! The tier behind the pool: a backing, and which of its blocks hold what.

use crate::AuditError;
use std::collections::TryReserveError;
use std::io;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::entry::Written;
use super::parts::Behind;
use super::shard::Victim;
use super::write_queue::WriteQueue;
use crate::backing::{
    BLOCK_SIZE, Block, BlockWrite, Extents, Location, block_bytes, block_bytes_mut, zeroed_blocks,
};
use crate::page::Page;

/// Pages that are written back at once: 256 KiB at most. A store that finds the pool full waits for
/// one such batch.
pub(super) const BATCH_PAGES: usize = 64;

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
    /// What the next one takes first.
    pub(super) staged: WriteQueue,
}

/// Pages on their way to the backing.
#[derive(Debug)]
pub(super) struct Batch {
    blocks: Box<[Block]>,
    pub(super) pages: Vec<Outgoing>,
    runs: Vec<Run>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) victim: Victim,
    /// Where it will be, in a block that is held for it; until then its place in the batch's last
    /// run is not known.
    pub(super) written: Option<Written>,
    run: usize,
}

/// Adjacent blocks of the backing, and what goes there.
#[derive(Debug)]
struct Run {
    blocks: Range<u32>,
    /// Its first block in the buffer.
    buffer: usize,
    /// Bytes in use.
    filled: usize,
    failed: Option<io::Error>,
}

impl Tier {
    /// A tier behind a pool of at most so many bytes.
    pub(super) fn new(backing: Behind, pool_bytes_max: u64) -> Result<Tier, TryReserveError> {
        let extents = Extents::new(backing.block_count())?;
        let mut batch =
            Batch { blocks: zeroed_blocks(BATCH_PAGES)?, pages: Vec::new(), runs: Vec::new() };
        batch.pages.try_reserve_exact(BATCH_PAGES)?;
        batch.runs.try_reserve_exact(BATCH_PAGES)?;
        Ok(Tier {
            backing,
            extents: Mutex::new(extents),
            discarded: Condvar::new(),
            writer: Mutex::new(batch),
            staged: WriteQueue::new(pool_bytes_max)?,
        })
    }

    pub(super) fn backing(&self) -> &Behind {
        &self.backing
    }

    /// The batch, empty; waits for the one that is being written.
    pub(super) fn batch(&self) -> MutexGuard<'_, Batch> {
        let mut batch = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        batch.pages.clear();
        batch.runs.clear();
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
            match batch.place(self, bytes, left) {
                None => outcomes[number] = Some(Err(io::ErrorKind::StorageFull.into())),
                Some((at, room)) => match fill(number, room) {
                    true => placed[number] = Some((at, batch.runs.len() - 1)),
                    false => self.release_blocks(at, bytes),
                },
            }
            left -= bytes.next_multiple_of(16);
        }
        batch.write(self);
        for (number, &bytes) in lengths.iter().enumerate() {
            let Some((at, run)) = placed[number] else { continue };
            outcomes[number] = Some(match batch.runs[run].failed.as_ref() {
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

    /// Whether a page that comes back to the pool leaves its copy: not where more than half of the
    /// blocks are in use, as the kernel frees swap slots then.
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

    /// Blocks in use, and bytes of what is known of blocks and of pages that are to be written.
    pub(super) fn usage(&self) -> (usize, usize) {
        let extents = self.extents();
        let buffers = BATCH_PAGES * BLOCK_SIZE + self.staged.bytes();
        (extents.used_blocks(), extents.bytes() + buffers)
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

impl Batch {
    pub(super) fn add(&mut self, victim: Victim) {
        self.pages.push(Outgoing { victim, written: None, run: 0 });
    }

    /// Finds a place for `bytes` more, of `left` that are still to come with them; the room to fill
    /// and where that will be. `None` where the backing has no free block.
    pub(super) fn place(
        &mut self,
        tier: &Tier,
        bytes: usize,
        left: usize,
    ) -> Option<(Location, &mut [u8])> {
        let mut extents = tier.extents();
        let fits = |run: &Run| run.filled + bytes <= run.blocks.len() * BLOCK_SIZE;
        if !self.runs.last().is_some_and(fits) {
            let buffer = self.runs.last().map_or(0, |run| run.buffer + run.blocks.len());
            let wanted = left.div_ceil(BLOCK_SIZE).min(self.blocks.len() - buffer);
            let blocks = extents.take_run(wanted as u32)?; // <= BATCH_PAGES
            block_bytes_mut(&mut self.blocks[buffer..buffer + blocks.len()]).fill(0);
            self.runs.push(Run { blocks, buffer, filled: 0, failed: None });
        }
        let run = self.runs.last_mut().expect("there is one now");
        let start = run.filled;
        let first = run.blocks.start + (start / BLOCK_SIZE) as u32; // in the run
        let at = Location::new(first, start % BLOCK_SIZE).expect("a multiple of 16");
        for block in at.blocks(bytes) {
            extents.hold(block).expect("the writer holds it, and few objects");
        }
        run.filled = (start + bytes).next_multiple_of(16);
        let buffer = block_bytes_mut(&mut self.blocks[run.buffer..]);
        Some((at, &mut buffer[start..start + bytes]))
    }

    /// Notes where page `number` of the batch was put: into the last place.
    pub(super) fn placed(&mut self, number: usize, written: Written) {
        let page = &mut self.pages[number];
        (page.written, page.run) = (Some(written), self.runs.len() - 1);
    }

    /// Writes all of it and lets go of the blocks; [`Batch::failure`] tells how it went.
    pub(super) fn write(&mut self, tier: &Tier) {
        let Batch { blocks, runs, .. } = self;
        let mut writes: Vec<BlockWrite<'_>> = Vec::new();
        if writes.try_reserve_exact(runs.len()).is_err() {
            for run in runs.iter_mut() {
                run.failed = Some(io::ErrorKind::OutOfMemory.into());
            }
        } else {
            let buffer = |run: &Run| run.buffer..run.buffer + run.filled.div_ceil(BLOCK_SIZE);
            let write = |run: &Run| BlockWrite::new(run.blocks.start, &blocks[buffer(run)]);
            writes.extend(runs.iter().map(write));
            tier.backing.write(&mut writes);
            let failures: Vec<_> = writes.into_iter().map(|write| write.outcome.err()).collect();
            runs.iter_mut().zip(failures).for_each(|(run, failed)| run.failed = failed);
        }
        let mut extents = tier.extents();
        for block in runs.iter().flat_map(|run| run.blocks.clone()) {
            extents.release(block).expect("the writer holds its runs");
        }
    }

    /// Why page `number` was not written.
    pub(super) fn failure(&self, number: usize) -> Option<&io::Error> {
        self.runs[self.pages[number].run].failed.as_ref()
    }
}
