//! A batch: pages on their way from the pool to the backing, and the blocks they go to.

use std::collections::TryReserveError;
use std::io;
use std::ops::Range;

use super::entry::Written;
use super::parts::Behind;
use super::shard::Victim;
use crate::backing::{
    BLOCK_SIZE, Block, BlockWrite, Extents, Location, block_bytes_mut, zeroed_blocks,
};

/// Pages that are written back at once: 256 KiB at most. A store that finds the pool full waits for
/// one such batch.
pub(super) const BATCH_PAGES: usize = 64;

/// Pages on their way to the backing.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) blocks: Box<[Block]>,
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

impl Batch {
    pub(super) fn new() -> Result<Batch, TryReserveError> {
        let mut batch =
            Batch { blocks: zeroed_blocks(BATCH_PAGES)?, pages: Vec::new(), runs: Vec::new() };
        batch.pages.try_reserve_exact(BATCH_PAGES)?;
        batch.runs.try_reserve_exact(BATCH_PAGES)?;
        Ok(batch)
    }

    pub(super) fn clear(&mut self) {
        self.pages.clear();
        self.runs.clear();
    }

    pub(super) fn add(&mut self, victim: Victim) {
        self.pages.push(Outgoing { victim, written: None, run: 0 });
    }

    /// Finds a place for `bytes` more, of `left` that are still to come with them; the room to fill
    /// and where that will be. `None` where the backing has no free block.
    pub(super) fn place(
        &mut self,
        extents: &mut Extents,
        bytes: usize,
        left: usize,
    ) -> Option<(Location, &mut [u8])> {
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
    pub(super) fn note_placed(&mut self, number: usize, written: Written) {
        let run = self.last_run();
        let page = &mut self.pages[number];
        (page.written, page.run) = (Some(written), run);
    }

    /// The run of the last place.
    pub(super) fn last_run(&self) -> usize {
        self.runs.len() - 1
    }

    /// Writes all of it; [`Batch::failure`] tells how it went.
    pub(super) fn write(&mut self, backing: &Behind) {
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
            backing.write(&mut writes);
            let failures: Vec<_> = writes.into_iter().map(|write| write.outcome.err()).collect();
            runs.iter_mut().zip(failures).for_each(|(run, failed)| run.failed = failed);
        }
    }

    /// Lets go of the blocks of its runs.
    pub(super) fn release(&self, extents: &mut Extents) {
        for block in self.runs.iter().flat_map(|run| run.blocks.clone()) {
            extents.release(block).expect("the writer holds its runs");
        }
    }

    /// Why page `number` was not written.
    pub(super) fn failure(&self, number: usize) -> Option<&io::Error> {
        self.failure_of(self.pages[number].run)
    }

    /// Why a run was not written.
    pub(super) fn failure_of(&self, run: usize) -> Option<&io::Error> {
        self.runs[run].failed.as_ref()
    }
}
