//! The one place that takes, counts and caps host pages.
//!
//! ```text
//!            alloc                                    free
//!   fresh ---------> ready ---------> in use ------------------> retired
//!   (mapped)   (resident, < 64)    (pool pages)   <------    (resident, <= 64)
//!                                       ^                          | more than 64
//!                                       '------- returned <--------' madvise
//! ```
//!
//! Fresh pages are made resident 64 at a time, because a fault each costs three times as much.
//! Freed pages go back to the kernel, 64 at a time for the same reason; until then they are
//! retired and used again first. What is resident without being in use is at most some 128 pages
//! (512 KiB), and 64 more for each further thread that is just taking pages; it is reported as
//! `reserve_pages`.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::sys::pages::PageRun;

/// The longest run an arena gives, in host pages: zsmalloc's longest chain.
pub const RUN_PAGES_MAX: usize = 16;

/// Pages made resident, and pages given back, in one call to the kernel.
const BATCH_PAGES: usize = 64;

/// Address space is taken in pieces of this many pages (16 GiB), or what the machine allows.
const MAPPING_PAGES: usize = 1 << 22;
const MAPPING_PAGES_MIN: usize = BATCH_PAGES;

/// Why the arena gave no pages.
#[derive(Debug, Error)]
pub enum ArenaError {
    /// The arena's own limit.
    #[error("{pages} more host pages exceed the limit of {limit_pages} ({used_pages} in use)")]
    Limit {
        /// Pages asked for.
        pages: usize,
        /// The limit.
        limit_pages: usize,
        /// Pages in use.
        used_pages: usize,
    },
    /// The kernel refused.
    #[error("the kernel gave no memory for {pages} host pages")]
    Os {
        /// Pages asked for.
        pages: usize,
        /// Its error.
        #[source]
        source: io::Error,
    },
}

/// A source of runs of 1 to 16 host pages, shared by threads.
#[derive(Debug)]
pub struct Arena {
    limit_pages: usize,
    used_pages: AtomicUsize,
    peak_pages: AtomicUsize,
    free: Mutex<FreeRuns>,
}

#[derive(Debug, Default)]
struct FreeRuns {
    /// Never touched.
    fresh: Option<PageRun>,
    /// Batches the kernel would not make resident, to be tried again before `fresh` is.
    refused: Vec<PageRun>,
    /// Resident and never used: what is left of batches.
    ready: Vec<PageRun>,
    /// Used before and still resident, by length.
    retired: [Vec<PageRun>; RUN_PAGES_MAX + 1],
    retired_pages: usize,
    /// Given back to the kernel, by length; the address space is kept.
    returned: [Vec<PageRun>; RUN_PAGES_MAX + 1],
}

/// What an arena has out, and what it keeps resident beside that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Host pages in use now.
    pub used_pages: usize,
    /// The most that were in use at once.
    pub peak_pages: usize,
    /// Resident host pages that nobody uses: at most 128.
    pub reserve_pages: usize,
    /// Bytes of the arena's own lists.
    pub metadata_bytes: usize,
}

impl Arena {
    /// An arena bounded by the machine alone.
    pub fn new() -> Arena {
        Arena::with_limit(usize::MAX)
    }

    /// An arena that never has more than `limit_pages` host pages in use.
    pub fn with_limit(limit_pages: usize) -> Arena {
        Arena {
            limit_pages,
            used_pages: AtomicUsize::new(0),
            peak_pages: AtomicUsize::new(0),
            free: Mutex::new(FreeRuns::default()),
        }
    }

    /// A run of `count` adjacent host pages with whatever was in them last.
    ///
    /// # Errors
    ///
    /// [`ArenaError`]; nothing was taken.
    ///
    /// # Panics
    ///
    /// If `count` is not in 1 ..= [`RUN_PAGES_MAX`].
    pub fn alloc(&self, count: usize) -> Result<PageRun, ArenaError> {
        assert!((1..=RUN_PAGES_MAX).contains(&count), "runs are 1 to {RUN_PAGES_MAX} pages");
        self.charge(count)?;
        self.find(count).map_err(|source| {
            self.used_pages.fetch_sub(count, Ordering::Relaxed);
            ArenaError::Os { pages: count, source }
        })
    }

    /// Takes a run back.
    pub fn free(&self, run: PageRun) {
        let count = run.page_count();
        self.used_pages.fetch_sub(count, Ordering::Relaxed);
        let mut free = self.lock();
        free.retire(run);
        if free.retired_pages > BATCH_PAGES {
            self.give_back(free);
        }
    }

    /// Gives every page that nobody uses back to the kernel now.
    pub fn trim(&self) {
        let mut free = self.lock();
        for run in std::mem::take(&mut free.ready) {
            free.retire(run);
        }
        self.give_back(free);
    }

    /// What is out now.
    pub fn stats(&self) -> ArenaStats {
        let free = self.lock();
        let runs = free.retired.iter().chain(&free.returned);
        ArenaStats {
            used_pages: self.used_pages.load(Ordering::Relaxed),
            peak_pages: self.peak_pages.load(Ordering::Relaxed),
            reserve_pages: free.retired_pages + free.ready_pages(),
            metadata_bytes: size_of::<Arena>()
                + runs.map(|list| list.capacity() * size_of::<PageRun>()).sum::<usize>(),
        }
    }

    /// Counts `count` pages as used, or refuses; the limit holds at every instant.
    fn charge(&self, count: usize) -> Result<(), ArenaError> {
        let charged = self.used_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(count).filter(|&sum| sum <= self.limit_pages)
        });
        match charged {
            Ok(before) => {
                self.peak_pages.fetch_max(before + count, Ordering::Relaxed);
                Ok(())
            }
            Err(used_pages) => {
                Err(ArenaError::Limit { pages: count, limit_pages: self.limit_pages, used_pages })
            }
        }
    }

    fn find(&self, count: usize) -> io::Result<PageRun> {
        let mut free = self.lock();
        if let Some(run) = free.retired[count].pop() {
            free.retired_pages -= count;
            return Ok(run);
        }
        if let Some(mut run) = free.returned[count].pop() {
            drop(free);
            return match run.populate() {
                Ok(()) => Ok(run),
                Err(error) => {
                    self.lock().returned[count].push(run);
                    Err(error)
                }
            };
        }
        if let Some(run) = free.take_ready(count) {
            return Ok(run);
        }
        // Made resident outside the lock: 64 pages take some 20 us.
        let mut batch = free.take_fresh()?;
        drop(free);
        if let Err(error) = batch.populate() {
            self.lock().refused.push(batch);
            return Err(error);
        }
        let run = batch.split_front(count);
        let mut free = self.lock();
        free.ready.push(batch);
        // Short leftovers that nobody asked for.
        while free.ready_pages() > 2 * BATCH_PAGES {
            let oldest = free.ready.remove(0);
            free.retire(oldest);
        }
        if free.retired_pages > BATCH_PAGES {
            self.give_back(free);
        }
        Ok(run)
    }

    /// Empties the retired lists; the lock is not held while the kernel works.
    fn give_back(&self, mut free: MutexGuard<'_, FreeRuns>) {
        let mut batch: Vec<PageRun> = Vec::new();
        for list in &mut free.retired {
            batch.append(list);
        }
        free.retired_pages = 0;
        drop(free);
        for run in &mut batch {
            // Only locked memory (mlockall) refuses: then it stays resident, as its owner asked.
            let _ = run.discard();
        }
        let mut free = self.lock();
        for run in batch {
            free.returned[run.page_count()].push(run);
        }
    }

    fn lock(&self) -> MutexGuard<'_, FreeRuns> {
        // Nothing panics while the lists are half changed.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Arena {
    fn default() -> Self {
        Arena::new()
    }
}

impl FreeRuns {
    /// Keeps a resident run for the next caller, in pieces that a caller can ask for.
    fn retire(&mut self, mut run: PageRun) {
        while run.page_count() > 0 {
            let piece = run.split_front(run.page_count().min(RUN_PAGES_MAX));
            self.retired_pages += piece.page_count();
            self.retired[piece.page_count()].push(piece);
        }
    }

    fn ready_pages(&self) -> usize {
        self.ready.iter().map(PageRun::page_count).sum()
    }

    /// Pages from the shortest of the leftovers that has enough.
    fn take_ready(&mut self, count: usize) -> Option<PageRun> {
        let fitting = self.ready.iter_mut().filter(|run| run.page_count() >= count);
        let run = fitting.min_by_key(|run| run.page_count())?.split_front(count);
        self.ready.retain(|run| run.page_count() > 0);
        Some(run)
    }

    /// The next `BATCH_PAGES` pages that were never touched.
    fn take_fresh(&mut self) -> io::Result<PageRun> {
        if let Some(batch) = self.refused.pop() {
            return Ok(batch);
        }
        if self.fresh.as_ref().is_none_or(|fresh| fresh.page_count() < BATCH_PAGES) {
            self.fresh = Some(map_largest()?);
        }
        let fresh = self.fresh.as_mut().expect("mapped above");
        Ok(fresh.split_front(BATCH_PAGES))
    }
}

/// A mapping as large as the machine's limits (RLIMIT_AS, strict overcommit) let us have.
fn map_largest() -> io::Result<PageRun> {
    let mut pages = MAPPING_PAGES;
    loop {
        match PageRun::map(pages) {
            Err(error)
                if error.raw_os_error() == Some(libc::ENOMEM) && pages > MAPPING_PAGES_MIN =>
            {
                pages /= 2;
            }
            result => return result,
        }
    }
}
