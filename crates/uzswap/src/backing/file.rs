//! A backing in one file or block device.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::open::{HEADER_BYTES, Scratch, is_unsupported};
use super::{
    BLOCK_SIZE, Backing, BackingError, Block, BlockWrite, FileBackingOptions, IoMode, Submission,
    block_bytes, block_bytes_mut, check_inside, check_writes, fail_all,
};
use crate::options::OptionError;
use uzswap_sys::files;
use uzswap_sys::uring::Ring;

/// More threads than this cost more to start than they gain.
const THREADS_MAX: usize = 8;

/// Blocks in a file or on a device that this process alone has.
///
/// The descriptor is what counts: a file that is unlinked or renamed meanwhile goes on working, and
/// its space is free once the backing is dropped.
#[derive(Debug)]
pub struct FileBacking {
    scratch: Scratch,
    block_count: u32,
    punches: AtomicBool,
    submission: Submission,
    in_flight: usize,
    /// Buffers that no thread is using now.
    rings: Mutex<Vec<Ring>>,
}

impl FileBacking {
    /// Takes a file or device.
    ///
    /// # Errors
    ///
    /// [`BackingError`]. A file that was made for it is gone again.
    pub fn open(options: &FileBackingOptions) -> Result<FileBacking, BackingError> {
        let in_flight = options.in_flight;
        OptionError::check((1..=4096).contains(&in_flight), "in_flight", "1 to 4096", in_flight)?;
        let scratch = Scratch::open(options)?;
        let block_count = ((scratch.bytes - HEADER_BYTES) / BLOCK_SIZE as u64) as u32;
        let wanted = options.submission.unwrap_or(match scratch.io_mode {
            IoMode::Direct => Submission::Uring,
            IoMode::Buffered => Submission::Sequential,
        });
        let mut rings = Vec::new();
        let submission = match wanted {
            Submission::Uring => match Ring::new(in_flight) {
                Ok(ring) => {
                    rings.try_reserve(1)?;
                    rings.push(ring);
                    Submission::Uring
                }
                Err(_) => Submission::Threads,
            },
            other => other,
        };
        Ok(FileBacking {
            scratch,
            block_count,
            punches: AtomicBool::new(options.punch),
            submission,
            in_flight,
            rings: Mutex::new(rings),
        })
    }

    /// Whether transfers go past the page cache.
    pub fn io_mode(&self) -> IoMode {
        self.scratch.io_mode
    }

    /// How batches are handed to the kernel.
    pub fn submission(&self) -> Submission {
        self.submission
    }

    /// Whether all the space was taken at the start; so it is on a device.
    pub fn is_preallocated(&self) -> bool {
        self.scratch.is_preallocated
    }

    /// Whether discarded blocks are given back, as far as is known.
    pub fn is_punching(&self) -> bool {
        self.punches.load(Ordering::Relaxed)
    }

    /// A file that somebody else made shorter has lost blocks. To write behind its end would turn
    /// them into zeros that can be read.
    fn check_length(&self) -> io::Result<()> {
        if !self.scratch.is_device && self.scratch.file.metadata()?.len() < self.scratch.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn write_one(&self, write: &mut BlockWrite<'_>) {
        let bytes = block_bytes(write.blocks);
        write.outcome = self.scratch.file.write_all_at(bytes, offset_of(write.first));
    }

    fn write_by_ring(&self, writes: &mut [BlockWrite<'_>]) {
        let idle = self.rings.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // Another thread has it: this one gets its own.
        let Ok(mut ring) = idle.map_or_else(|| Ring::new(self.in_flight), Ok) else {
            return writes.iter_mut().for_each(|write| self.write_one(write));
        };
        ring.write(&self.scratch.file, HEADER_BYTES, writes);
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        if rings.try_reserve(1).is_ok() {
            rings.push(ring);
        }
    }

    fn write_by_threads(&self, writes: &mut [BlockWrite<'_>]) {
        let threads = self.in_flight.min(THREADS_MAX).min(writes.len());
        let queue = Mutex::new(writes.iter_mut());
        let work = || {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(write) = next else { return };
                self.write_one(write);
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads {
                if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break; // those there are do the work
                }
            }
            work();
        });
    }
}

/// Where in the file a block is.
fn offset_of(block: u32) -> u64 {
    HEADER_BYTES + u64::from(block) * BLOCK_SIZE as u64
}

impl Backing for FileBacking {
    fn name(&self) -> String {
        self.scratch.path.display().to_string()
    }

    fn block_count(&self) -> u32 {
        self.block_count
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        if !check_writes(writes, self.block_count) {
            return;
        }
        if let Err(error) = self.check_length() {
            return fail_all(writes, || error.kind().into());
        }
        match (writes, self.submission) {
            ([write], _) => self.write_one(write),
            (writes, Submission::Uring) => self.write_by_ring(writes),
            (writes, Submission::Threads) => self.write_by_threads(writes),
            (writes, Submission::Sequential) => {
                writes.iter_mut().for_each(|write| self.write_one(write));
            }
        }
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        check_inside(first, blocks.len(), self.block_count)?;
        self.scratch.file.read_exact_at(block_bytes_mut(blocks), offset_of(first))
    }

    fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        check_inside(blocks.start, blocks.len(), self.block_count)?;
        if blocks.is_empty() || !self.is_punching() {
            return Ok(());
        }
        let bytes = blocks.len() as u64 * BLOCK_SIZE as u64;
        match files::punch_hole(&self.scratch.file, offset_of(blocks.start), bytes) {
            Err(error) if is_unsupported(&error) => {
                self.punches.store(false, Ordering::Relaxed);
                Ok(())
            }
            outcome => outcome,
        }
    }
}
