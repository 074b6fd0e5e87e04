//! The one place that takes, counts and caps host pages.
//!
//! ```text
//!            alloc                         free
//!   fresh -----------> in use ------------------------> retired
//!   (mapped)        (pool pages)  <--------------   (resident, <= 64)
//!                         ^                                | more than 64
//!                         '----------- returned <----------' madvise
//! ```
//!
//! A run is made resident when it is given out, outside the lock. Of freed pages up to 64 stay
//! retired, for the next caller of their length: to return a page and to take one cost the kernel
//! 3 us together. They are reported as `reserve_pages`.
//!
//! Runs are private memory; single pages can be had of shared memory too, which a pool can map a
//! second time. The limit and the counts are of both together.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::names::named;
use crate::sys::pages::{HOST_PAGE_SIZE, HUGE_PAGE_SIZE, PageRun};

/// The longest run an arena gives, in host pages: zsmalloc's longest chain.
pub const RUN_PAGES_MAX: usize = 16;

/// How large the pages are that the kernel gives; those of shared memory are always small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HostPages {
    /// 4 KiB each: what is freed goes back at once, and the resident size is what is in use.
    #[default]
    Small,
    /// Transparent huge pages of 2 MiB where the kernel has them: taken in a tenth of the time if
    /// there are any at hand, and read with fewer address translations. A freed part leaves the
    /// resident size at once, but its memory only when all of the huge page is free or the kernel
    /// runs short.
    Huge,
}

named!(HostPages, "size of host pages", Small => "small", Huge => "huge");

/// Retired pages that are kept before they are given back together.
const RETIRED_PAGES_MAX: usize = 64;

/// Address space is taken in pieces of this many pages (16 GiB), or what the machine allows.
const MAPPING_PAGES: usize = 1 << 22;
const MAPPING_PAGES_MIN: usize = HUGE_PAGE_SIZE / HOST_PAGE_SIZE;

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
    host_pages: HostPages,
    used_pages: AtomicUsize,
    peak_pages: AtomicUsize,
    free: Mutex<FreeRuns>,
}

/// What single pages are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Memory with one address.
    Private,
    /// Memory that can be mapped a second time ([`crate::sys::window`]).
    Shared,
}

#[derive(Debug, Default)]
struct FreeRuns {
    /// Never touched: private and shared.
    fresh: Option<PageRun>,
    fresh_shared: Option<PageRun>,
    /// Used before and still resident, by [`list_of`].
    retired: [Vec<PageRun>; RUN_PAGES_MAX + 1],
    retired_pages: usize,
    /// Given back to the kernel; the address space is kept.
    returned: [Vec<PageRun>; RUN_PAGES_MAX + 1],
}

/// The list that free runs are on: by length, and single pages of shared memory in place of runs of
/// no pages.
fn list_of(count: usize, sharing: Sharing) -> usize {
    match sharing {
        Sharing::Private => count,
        Sharing::Shared => 0,
    }
}

fn list_of_run(run: &PageRun) -> usize {
    let sharing = if run.is_shared() { Sharing::Shared } else { Sharing::Private };
    list_of(run.page_count(), sharing)
}

/// What an arena has out, and what it keeps resident beside that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Host pages in use now.
    pub used_pages: usize,
    /// The most that were in use at once.
    pub peak_pages: usize,
    /// Resident host pages that nobody uses: at most 64, and the rest of a huge page.
    pub reserve_pages: usize,
    /// Bytes of the arena's own lists.
    pub metadata_bytes: usize,
}

impl Arena {
    /// An arena of small pages, bounded by the machine alone.
    pub fn new() -> Arena {
        Arena::with_limit(usize::MAX, HostPages::Small)
    }

    /// An arena that never has more than `limit_pages` host pages (of 4 KiB) in use.
    pub fn with_limit(limit_pages: usize, host_pages: HostPages) -> Arena {
        Arena {
            limit_pages,
            host_pages,
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
        let used_pages = self.charge(count)?;
        match self.find(count, Sharing::Private) {
            Ok(run) => {
                self.peak_pages.fetch_max(used_pages, Ordering::Relaxed);
                Ok(run)
            }
            Err(source) => {
                self.used_pages.fetch_sub(count, Ordering::Relaxed);
                Err(ArenaError::Os { pages: count, source })
            }
        }
    }

    /// Appends `count` runs of one page each to `pages`, all of them or none.
    ///
    /// # Errors
    ///
    /// [`ArenaError`]; nothing was taken.
    pub fn alloc_pages(
        &self,
        pages: &mut Vec<PageRun>,
        count: usize,
        sharing: Sharing,
    ) -> Result<(), ArenaError> {
        let used_pages = self.charge(count)?;
        for found in 0..count {
            match self.find(1, sharing) {
                Ok(page) => pages.push(page),
                Err(source) => {
                    self.used_pages.fetch_sub(count - found, Ordering::Relaxed);
                    pages.drain(pages.len() - found..).for_each(|page| self.free(page));
                    return Err(ArenaError::Os { pages: count, source });
                }
            }
        }
        self.peak_pages.fetch_max(used_pages, Ordering::Relaxed);
        Ok(())
    }

    /// Takes a run back. Where memory is so short that no list takes it, its pages go to the kernel
    /// and its address space is given up.
    pub fn free(&self, mut run: PageRun) {
        let count = run.page_count();
        self.used_pages.fetch_sub(count, Ordering::Relaxed);
        let list = list_of_run(&run);
        let mut free = self.lock();
        if free.retired[list].try_reserve(1).is_err() {
            drop(free);
            let _ = run.discard();
            return;
        }
        free.retired_pages += count;
        free.retired[list].push(run);
        if free.retired_pages > RETIRED_PAGES_MAX {
            self.give_back(free);
        }
    }

    /// Gives every page that nobody uses back to the kernel now.
    pub fn trim(&self) {
        self.give_back(self.lock());
    }

    /// Host pages in use now, without a lock.
    pub fn used_pages(&self) -> usize {
        self.used_pages.load(Ordering::Relaxed)
    }

    /// What is out now.
    pub fn stats(&self) -> ArenaStats {
        let free = self.lock();
        let runs = free.retired.iter().chain(&free.returned);
        ArenaStats {
            used_pages: self.used_pages.load(Ordering::Relaxed),
            peak_pages: self.peak_pages.load(Ordering::Relaxed),
            reserve_pages: free.retired_pages + free.rest_of_huge_page(self.host_pages),
            metadata_bytes: size_of::<Arena>()
                + runs.map(|list| list.capacity() * size_of::<PageRun>()).sum::<usize>(),
        }
    }

    /// Counts `count` pages as used, or refuses: how many there are then. The limit holds at every
    /// instant.
    fn charge(&self, count: usize) -> Result<usize, ArenaError> {
        let charged = self.used_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(count).filter(|&sum| sum <= self.limit_pages)
        });
        match charged {
            Ok(before) => Ok(before + count),
            Err(used_pages) => {
                Err(ArenaError::Limit { pages: count, limit_pages: self.limit_pages, used_pages })
            }
        }
    }

    fn find(&self, count: usize, sharing: Sharing) -> io::Result<PageRun> {
        let list = list_of(count, sharing);
        let mut free = self.lock();
        if let Some(run) = free.retired[list].pop() {
            free.retired_pages -= count;
            return Ok(run);
        }
        let mut run = match free.returned[list].pop() {
            Some(run) => run,
            None => free.take_fresh(count, sharing, self.host_pages)?,
        };
        drop(free);
        match run.touch() {
            Ok(()) => Ok(run),
            Err(error) => {
                self.lock().keep_returned(run);
                Err(error)
            }
        }
    }

    /// Empties the retired lists; the lock is not held while the kernel works.
    fn give_back(&self, mut free: MutexGuard<'_, FreeRuns>) {
        let mut batch: Vec<PageRun> = Vec::new();
        if batch.try_reserve_exact(free.retired.iter().map(Vec::len).sum()).is_err() {
            return; // they stay retired until a later call
        }
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
        batch.into_iter().for_each(|run| free.keep_returned(run));
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
    /// Pages that are resident because the ones before them are.
    fn rest_of_huge_page(&self, host_pages: HostPages) -> usize {
        match (host_pages, &self.fresh) {
            (HostPages::Huge, Some(fresh)) => fresh.pages_to_huge_border().min(fresh.page_count()),
            _ => 0,
        }
    }

    /// Puts a run that is not resident on its list, if there is memory for that.
    fn keep_returned(&mut self, run: PageRun) {
        let list = &mut self.returned[list_of_run(&run)];
        if list.try_reserve(1).is_ok() {
            list.push(run);
        }
    }

    /// Pages that were never touched.
    fn take_fresh(
        &mut self,
        count: usize,
        sharing: Sharing,
        host_pages: HostPages,
    ) -> io::Result<PageRun> {
        let (fresh, map): (_, fn(usize) -> io::Result<PageRun>) = match (sharing, host_pages) {
            (Sharing::Shared, _) => (&mut self.fresh_shared, PageRun::map_shared),
            (Sharing::Private, HostPages::Small) => (&mut self.fresh, PageRun::map),
            (Sharing::Private, HostPages::Huge) => (&mut self.fresh, PageRun::map_huge),
        };
        if fresh.as_ref().is_none_or(|fresh| fresh.page_count() < count) {
            // The few pages left of the last mapping stay untouched.
            *fresh = Some(map_largest(map)?);
        }
        Ok(fresh.as_mut().expect("mapped above").split_front(count))
    }
}

/// A mapping as large as the limits (RLIMIT_AS, RLIMIT_FSIZE, strict overcommit, and RLIMIT_MEMLOCK
/// after mlockall) let us have.
fn map_largest(map: fn(usize) -> io::Result<PageRun>) -> io::Result<PageRun> {
    // After mlockall the kernel fills a new mapping at once: then no more than is needed soon.
    let is_filled = map(1).is_ok_and(|probe| probe.is_resident());
    let mut pages = if is_filled { MAPPING_PAGES_MIN } else { MAPPING_PAGES };
    loop {
        match map(pages) {
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOMEM | libc::EFBIG | libc::EAGAIN)
                ) && pages > MAPPING_PAGES_MIN =>
            {
                pages /= 2;
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_as_large_as_the_limits_allow() {
        fn refused<const ERROR: i32, const MOST: usize>(pages: usize) -> io::Result<PageRun> {
            if pages > MOST { Err(io::Error::from_raw_os_error(ERROR)) } else { PageRun::map(1) }
        }
        // Over the address space, the size of files, and what may be locked.
        for map in [
            refused::<{ libc::ENOMEM }, 4096>,
            refused::<{ libc::EFBIG }, 512>,
            refused::<{ libc::EAGAIN }, 4096>,
        ] {
            map_largest(map).unwrap();
        }
        map_largest(refused::<{ libc::ENOMEM }, 511>).unwrap_err();
        map_largest(refused::<{ libc::EMFILE }, 4096>).unwrap_err();
    }

    #[test]
    fn pages_are_given_all_or_none_and_counted_with_runs() {
        for sharing in [Sharing::Private, Sharing::Shared] {
            let arena = Arena::with_limit(10, HostPages::Small);
            let run = arena.alloc(4).unwrap();
            let mut pages = Vec::new();
            let refused = arena.alloc_pages(&mut pages, 7, sharing).unwrap_err();
            assert!(matches!(refused, ArenaError::Limit { pages: 7, used_pages: 4, .. }));
            assert_eq!((pages.len(), arena.stats().used_pages), (0, 4));
            arena.alloc_pages(&mut pages, 6, sharing).unwrap();
            assert!(pages.iter().all(|page| page.is_shared() == (sharing == Sharing::Shared)));
            assert_eq!((arena.stats().used_pages, arena.stats().peak_pages), (10, 10));
            pages.into_iter().chain([run]).for_each(|run| arena.free(run));
            let stats = arena.stats();
            assert_eq!((stats.used_pages, stats.reserve_pages), (0, 10));
            arena.trim();
            assert_eq!(arena.stats().reserve_pages, 0);
            let mut again = Vec::new();
            arena.alloc_pages(&mut again, 6, sharing).unwrap();
            assert!(again.iter().all(|page| page.page_count() == 1 && page[0] == 0));
        }
    }
}
