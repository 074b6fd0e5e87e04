//! Where stored pages go that the pool has no share for: a file.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::locks::{Lock, WRITE_BACK, WRITE_ERROR};
use crate::messages::log;
use uzswap::backing::{
    BLOCK_SIZE, Backing, BackingError, Block, BlockWrite, FileBacking, FileBackingOptions,
};
use uzswap::zswap::Zswap;

/// The file is this many times as large as the limit at most. It is sparse: it takes what is in it.
/// What is known of its blocks takes 2 bytes for each that was written: a 128th of the limit at
/// most.
const LIMITS: u64 = 16;

/// The least, for small limits.
const BYTES_MIN: u64 = 1 << 30;

/// How long nothing is written after a write has failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Where pages are written back to, and when.
#[derive(Debug, Clone)]
pub struct WriteBackOptions {
    /// A file, made and removed, or a block device, as [`FileBackingOptions`] has it.
    pub path: PathBuf,
    /// The most host pages of the pool, in bytes: above that the pages that were stored first go.
    pub max_pool_bytes: u64,
}

/// What was written back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WriteBackReport {
    /// The file.
    pub path: PathBuf,
    /// The pool's share, in bytes.
    pub max_pool_bytes: u64,
    /// Pages that left the pool for the file.
    pub written_back_pages: u64,
    /// Pages that came back from it.
    pub read_pages: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// The last error of a write.
    pub error: Option<String>,
}

/// Keeps the pool at its share.
#[derive(Debug)]
pub(crate) struct WriteBack {
    options: WriteBackOptions,
    notes: Arc<Notes>,
    /// When a write has failed last. The thread that writes holds it.
    failed_at: Lock<Option<Instant>, WRITE_BACK>,
    /// No warnings.
    quiet: bool,
}

/// What is known of writes.
#[derive(Debug, Default)]
struct Notes {
    written_blocks: AtomicU64,
    error: Lock<Option<String>, WRITE_ERROR>,
}

/// A file whose errors are noted.
#[derive(Debug)]
struct Noted {
    file: FileBacking,
    notes: Arc<Notes>,
}

impl WriteBack {
    /// Opens the file, for programs in so many bytes.
    pub(crate) fn open(
        options: &WriteBackOptions,
        limit_bytes: u64,
        quiet: bool,
    ) -> Result<(WriteBack, Box<dyn Backing>), BackingError> {
        let bytes = limit_bytes.saturating_mul(LIMITS).max(BYTES_MIN);
        let file = FileBackingOptions::new(&options.path, Some(bytes)).preallocate(false);
        let notes = Arc::new(Notes::default());
        let noted = Noted { file: FileBacking::open(&file)?, notes: Arc::clone(&notes) };
        let failed_at = Lock::default();
        let write_back = WriteBack { options: options.clone(), notes, failed_at, quiet };
        Ok((write_back, Box::new(noted)))
    }

    /// Writes pages back until the pool is at its share. If that fails the pages stay in the pool;
    /// the first failure is reported.
    pub(super) fn keep_share(&self, zswap: &Zswap) {
        let share = self.options.max_pool_bytes;
        if zswap.budget().pool_bytes() <= share {
            return;
        }
        // If another thread writes there is nothing to do.
        let Some(mut failed_at) = self.failed_at.try_lock() else { return };
        if failed_at.is_some_and(|at| at.elapsed() < PAUSE) || zswap.shrink_to(share).failed == 0 {
            return;
        }
        let is_first = failed_at.replace(Instant::now()).is_none();
        if is_first && !self.quiet {
            let path = self.options.path.display();
            let error = self.error().unwrap_or_else(|| "no free blocks".to_owned());
            log(&format!("backing {path}: {error}; pages stay in the pool"));
        }
    }

    fn error(&self) -> Option<String> {
        self.notes.error.lock().clone()
    }

    pub(crate) fn report(&self, zswap: &Zswap) -> WriteBackReport {
        let counters = zswap.counters();
        WriteBackReport {
            path: self.options.path.clone(),
            max_pool_bytes: self.options.max_pool_bytes,
            written_back_pages: counters.written_back_pages,
            read_pages: counters.backing_loads,
            written_bytes: self.notes.written_blocks.load(Ordering::Relaxed) * BLOCK_SIZE as u64,
            error: self.error(),
        }
    }
}

impl Backing for Noted {
    fn name(&self) -> String {
        self.file.name()
    }

    fn block_count(&self) -> u32 {
        self.file.block_count()
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        self.file.write(writes);
        let mut blocks = 0;
        for write in writes {
            match &write.outcome {
                Ok(()) => blocks += write.blocks.len() as u64,
                Err(error) => {
                    let mut noted = self.notes.error.lock();
                    *noted = Some(format!("cannot write: {error}"));
                }
            }
        }
        self.notes.written_blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        self.file.read(first, blocks)
    }

    fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        self.file.discard(blocks)
    }
}
