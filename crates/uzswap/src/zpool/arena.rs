//! The arena: the only place that takes, counts and limits host pages.
//!
//! ```text
//!            alloc                         free
//!   fresh -----------> in use ------------------------> retired
//!   (mapped)        (pool pages)  <--------------   (resident, <= 64)
//!                         ^                                | more than 64
//!                         '----------- returned <----------' madvise
//! ```
//!
//! A run is made resident when it is given out, outside the lock. Up to 64 freed pages stay retired
//! for the next caller of their length: returning a page and taking one cost 3 us together in the
//! kernel. They are reported as `reserve_pages`.
//!
//! Pages in use are charged to a [`Budget`] before they are taken. If the budget counts metadata
//! too, it counts the reserve (retired pages and the rest of a huge page). Then at most a 64th of
//! the budget is retired, and the arena returns those pages before it refuses a run.
//!
//! Runs are private memory; single pages can be had of shared memory too, which a pool can map a
//! second time. The limit and the counts are of both together.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::budget::{Budget, Counted, OverBudget};
use crate::budgeted_vec::BudgetedVec;
use crate::named_enum::named;
use uzswap_sys::pages::{HOST_PAGE_SIZE, HUGE_PAGE_SIZE, PageRun, discard_all};

/// The longest run an arena gives, in host pages: packed's longest region. zsmalloc's chains are up
/// to 16.
pub const RUN_PAGES_MAX: usize = 17;

/// How large the pages are that the kernel gives; those of shared memory are always small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HostPages {
    /// 4 KiB each: what is freed goes back at once, and the resident size is what is in use.
    #[default]
    Small,
    /// Transparent huge pages of 2 MiB, if the kernel has them: allocated in a tenth of the time if
    /// some are free, and read with fewer address translations. A freed part leaves the resident
    /// size at once, but its memory only when all of the huge page is free or the kernel runs
    /// short.
    Huge,
}

named!(HostPages, "size of host pages", Small => "small", Huge => "huge");

/// Retired pages that are kept before they are given back together.
const RETIRED_PAGES_MAX: usize = 64;

/// The part of a budget that retired pages may take where they are counted.
const RETIRED_PART: u64 = 64;

/// Address space is taken in pieces of this many pages (16 GiB), or what the machine allows.
const MAPPING_PAGES: usize = 1 << 22;
const MAPPING_PAGES_MIN: usize = HUGE_PAGE_SIZE / HOST_PAGE_SIZE;

/// Why the arena gave no pages.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum ArenaError {
    /// The budget.
    #[error("no headroom for {pages} host pages: {source}")]
    Limit {
        /// Pages asked for.
        pages: usize,
        /// The limit, and what is in use.
        source: OverBudget,
    },
    /// The kernel refused.
    #[error("the kernel refused memory for {pages} host pages")]
    Os {
        /// Pages asked for.
        pages: usize,
        /// Its error.
        #[source]
        source: io::Error,
    },
}

/// A source of runs of 1 to 17 host pages, shared by threads.
#[derive(Debug)]
pub struct Arena {
    budget: Arc<Budget>,
    retired_pages_max: usize,
    used_pages: AtomicUsize,
    peak_pages: AtomicUsize,
    free: Mutex<FreeRuns>,
}

/// What single pages are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Memory with one address.
    Private,
    /// Memory that can be mapped a second time ([`uzswap_sys::window`]).
    Shared,
}

#[derive(Debug)]
struct FreeRuns {
    host_pages: HostPages,
    /// Never touched: private and shared.
    fresh: Option<PageRun>,
    fresh_shared: Option<PageRun>,
    /// Used before and still resident, by [`list_of`].
    retired: [BudgetedVec<PageRun>; RUN_PAGES_MAX + 1],
    retired_pages: usize,
    /// Given back to the kernel; the address space is kept.
    returned: [BudgetedVec<PageRun>; RUN_PAGES_MAX + 1],
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

/// Pages that an arena has given out, and those that it keeps resident beside them.
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
        Arena::on(Arc::new(Budget::unlimited()), HostPages::Small)
    }

    /// An arena that never has more than `limit_pages` host pages (of 4 KiB) in use.
    pub fn with_limit(limit_pages: usize, host_pages: HostPages) -> Arena {
        let max_bytes = (limit_pages as u64).saturating_mul(HOST_PAGE_SIZE as u64);
        Arena::on(Arc::new(Budget::new(max_bytes, Counted::Pool)), host_pages)
    }

    /// An arena whose pages and lists are charged to `budget`.
    pub fn on(budget: Arc<Budget>, host_pages: HostPages) -> Arena {
        let retired_pages_max = match budget.counted() {
            Counted::Pool => RETIRED_PAGES_MAX,
            Counted::PoolAndMetadata => (budget.max_bytes() / RETIRED_PART / HOST_PAGE_SIZE as u64)
                .min(RETIRED_PAGES_MAX as u64) as usize,
        };
        let free = Mutex::new(FreeRuns::new(&budget, host_pages));
        Arena {
            budget,
            retired_pages_max,
            used_pages: AtomicUsize::new(0),
            peak_pages: AtomicUsize::new(0),
            free,
        }
    }

    /// The budget that its pages are charged to; the tables of a pool on this arena are charged
    /// there too.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
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
        self.take(count, Sharing::Private)
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
        for found in 0..count {
            match self.take(1, sharing) {
                Ok(page) => pages.push(page),
                Err(error) => {
                    pages.drain(pages.len() - found..).for_each(|page| self.free(page));
                    return Err(match error {
                        ArenaError::Limit { source, .. } => {
                            // As if all of them had been asked for at once.
                            let used_bytes = source.used_bytes.saturating_sub(bytes_of(found));
                            let asked_bytes = bytes_of(count);
                            let source = OverBudget { asked_bytes, used_bytes, ..source };
                            ArenaError::Limit { pages: count, source }
                        }
                        ArenaError::Os { source, .. } => ArenaError::Os { pages: count, source },
                    });
                }
            }
        }
        Ok(())
    }

    /// Takes a run back. Where memory is so short that no list takes it, its pages go to the kernel
    /// and its address space is given up.
    pub fn free(&self, mut run: PageRun) {
        let count = run.page_count();
        self.used_pages.fetch_sub(count, Ordering::Relaxed);
        let list = list_of_run(&run);
        let mut free = self.lock();
        if free.retired[list].reserve_one(usize::MAX).is_err() {
            drop(free);
            let _ = run.discard();
            self.budget.uncharge_pool(bytes_of(count));
            return;
        }
        self.budget.move_to_reserve(bytes_of(count));
        free.retired_pages += count;
        free.retired[list].push(run);
        if free.retired_pages > self.retired_pages_max {
            let _ = self.give_back(free);
        }
    }

    /// Gives every page that nobody uses back to the kernel now.
    pub fn trim(&self) {
        let _ = self.give_back(self.lock());
    }

    /// What is out now.
    pub fn stats(&self) -> ArenaStats {
        let free = self.lock();
        let runs = free.retired.iter().chain(&free.returned);
        ArenaStats {
            used_pages: self.used_pages.load(Ordering::Relaxed),
            peak_pages: self.peak_pages.load(Ordering::Relaxed),
            reserve_pages: free.retired_pages + free.rest_of_huge_page(),
            metadata_bytes: size_of::<Arena>() + runs.map(BudgetedVec::bytes).sum::<usize>(),
        }
    }

    /// A run of pages that are charged, resident and counted as used.
    fn take(&self, count: usize, sharing: Sharing) -> Result<PageRun, ArenaError> {
        let run = loop {
            match self.take_charged(count, sharing) {
                // Retired pages may use up the limit.
                Err(ArenaError::Limit { .. })
                    if self.budget.counted() == Counted::PoolAndMetadata
                        && self.give_back(self.lock()) => {}
                result => break result?,
            }
        };
        let used_pages = self.used_pages.fetch_add(count, Ordering::Relaxed) + count;
        self.peak_pages.fetch_max(used_pages, Ordering::Relaxed);
        Ok(run)
    }

    /// A run of pages that are charged and resident.
    fn take_charged(&self, count: usize, sharing: Sharing) -> Result<PageRun, ArenaError> {
        let over = |source| ArenaError::Limit { pages: count, source };
        let no_memory = |source| ArenaError::Os { pages: count, source };
        let list = list_of(count, sharing);
        let mut free = self.lock();
        if !free.retired[list].is_empty() {
            self.budget.move_to_pool(bytes_of(count)).map_err(over)?;
            free.retired_pages -= count;
            return Ok(free.retired[list].pop().expect("there is one"));
        }
        let mut run = if free.returned[list].is_empty() {
            let rest = free.map_fresh(count, sharing, &self.budget).map_err(no_memory)?;
            self.charge_fresh(count, rest).map_err(over)?;
            free.take_fresh(count, sharing)
        } else {
            self.budget.charge_pool(bytes_of(count)).map_err(over)?;
            free.returned[list].pop().expect("there is one")
        };
        drop(free);
        match run.touch() {
            Ok(()) => Ok(run),
            Err(error) => {
                self.lock().keep_returned(run);
                self.budget.uncharge_pool(bytes_of(count));
                Err(no_memory(error))
            }
        }
    }

    /// Charges a run of fresh pages. With huge pages, the first `rest` of them are resident, and
    /// those that they share a huge page with become so.
    fn charge_fresh(&self, count: usize, rest: Option<usize>) -> Result<(), OverBudget> {
        let Some(rest) = rest else { return self.budget.charge_pool(bytes_of(count)).map(drop) };
        let begun = count.saturating_sub(rest).next_multiple_of(HUGE_PAGE_SIZE / HOST_PAGE_SIZE);
        self.budget.charge_reserve(bytes_of(begun))?;
        let charged = self.budget.move_to_pool(bytes_of(count));
        charged.inspect_err(|_| self.budget.uncharge_reserve(bytes_of(begun)))
    }

    /// Empties the retired lists; whether anything was on them. The lock is not held while the
    /// kernel works.
    fn give_back(&self, mut free: MutexGuard<'_, FreeRuns>) -> bool {
        let mut batch = [const { None }; RETIRED_PAGES_MAX + RUN_PAGES_MAX];
        let retired = free.retired.iter_mut().flat_map(|list| list.drain_from(0));
        // As many as there can be: one run over the most that are kept.
        batch.iter_mut().zip(retired).for_each(|(place, run)| *place = Some(run));
        let pages = std::mem::take(&mut free.retired_pages);
        drop(free);
        // Locked memory (mlockall) stays resident, as its owner asked.
        discard_all(&mut batch);
        self.budget.uncharge_reserve(bytes_of(pages));
        let mut free = self.lock();
        batch.into_iter().flatten().for_each(|run| free.keep_returned(run));
        pages > 0
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

impl Drop for Arena {
    fn drop(&mut self) {
        let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
        let reserve = free.retired_pages + free.rest_of_huge_page();
        *free = FreeRuns::new(&self.budget, free.host_pages);
        // Their owners have given the other runs back: the mappings are gone.
        self.budget.uncharge_reserve(bytes_of(reserve));
    }
}

/// Bytes of `pages` host pages.
fn bytes_of(pages: usize) -> u64 {
    (pages * HOST_PAGE_SIZE) as u64
}

impl FreeRuns {
    fn new(budget: &Arc<Budget>, host_pages: HostPages) -> FreeRuns {
        FreeRuns {
            host_pages,
            fresh: None,
            fresh_shared: None,
            retired: std::array::from_fn(|_| BudgetedVec::new(budget)),
            retired_pages: 0,
            returned: std::array::from_fn(|_| BudgetedVec::new(budget)),
        }
    }

    /// Pages that are resident because the ones before them are.
    fn rest_of_huge_page(&self) -> usize {
        match (self.host_pages, &self.fresh) {
            (HostPages::Huge, Some(fresh)) => fresh.pages_to_huge_border(),
            _ => 0,
        }
    }

    /// Puts a run that is not resident on its list, if there is memory for that.
    fn keep_returned(&mut self, run: PageRun) {
        let list = &mut self.returned[list_of_run(&run)];
        if list.reserve_one(usize::MAX).is_ok() {
            list.push(run);
        }
    }

    fn fresh(&mut self, sharing: Sharing) -> &mut Option<PageRun> {
        match sharing {
            Sharing::Private => &mut self.fresh,
            Sharing::Shared => &mut self.fresh_shared,
        }
    }

    /// Makes sure of `count` fresh pages. Of huge ones: how many of the first are resident.
    fn map_fresh(
        &mut self,
        count: usize,
        sharing: Sharing,
        budget: &Budget,
    ) -> io::Result<Option<usize>> {
        let is_huge = sharing == Sharing::Private && self.host_pages == HostPages::Huge;
        let map: fn(usize) -> io::Result<PageRun> = match sharing {
            Sharing::Shared => PageRun::map_shared,
            Sharing::Private if is_huge => PageRun::map_huge,
            Sharing::Private => PageRun::map,
        };
        let fresh = self.fresh(sharing);
        if fresh.as_ref().is_none_or(|fresh| fresh.page_count() < count) {
            let before = fresh.replace(map_largest(map)?);
            if let Some(mut left) = before.filter(|_| is_huge) {
                // The few pages left of the last mapping are of a huge page in use.
                let _ = left.discard();
                budget.uncharge_reserve(bytes_of(left.page_count()));
            }
        }
        Ok(is_huge.then(|| self.rest_of_huge_page()))
    }

    /// Fresh pages, of which there are enough.
    fn take_fresh(&mut self, count: usize, sharing: Sharing) -> PageRun {
        self.fresh(sharing).as_mut().expect("mapped before").split_front(count)
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
    fn retired_pages_are_few_and_give_way() {
        let arena = Arena::new();
        let mut most = 0;
        let runs: Vec<PageRun> = (0..300).map(|_| arena.alloc(1).unwrap()).collect();
        assert_eq!((arena.stats().used_pages, arena.stats().peak_pages), (300, 300));
        for run in runs {
            arena.free(run);
            most = most.max(arena.stats().reserve_pages);
        }
        assert_eq!(most, RETIRED_PAGES_MAX);
        assert_eq!((arena.stats().used_pages, arena.stats().peak_pages), (0, 300));
        // Where they count, they are no reason to refuse a run of another length.
        let max_bytes = 640 * HOST_PAGE_SIZE as u64;
        let budget = Arc::new(Budget::new(max_bytes, Counted::PoolAndMetadata));
        let arena = Arena::on(budget, HostPages::Small);
        // The list of retired pages has its memory before there is none.
        let first: Vec<PageRun> = (0..8).map(|_| arena.alloc(1).unwrap()).collect();
        first.into_iter().for_each(|run| arena.free(run));
        let mut runs: Vec<PageRun> = std::iter::from_fn(|| arena.alloc(1).ok()).collect();
        let few = runs.len() - 4;
        runs.drain(few..).for_each(|run| arena.free(run));
        assert_eq!(arena.stats().reserve_pages, 4);
        runs.push(arena.alloc(4).expect("the retired pages give way"));
        assert_eq!(arena.stats().reserve_pages, 0);
        runs.into_iter().for_each(|run| arena.free(run));
    }

    #[test]
    fn all_retired_pages_go_back_and_are_used_again() {
        let arena = Arena::new();
        let runs: Vec<PageRun> = (0..RETIRED_PAGES_MAX).map(|_| arena.alloc(1).unwrap()).collect();
        let longest = arena.alloc(RUN_PAGES_MAX).unwrap();
        runs.into_iter().for_each(|run| arena.free(run));
        assert_eq!(arena.stats().reserve_pages, RETIRED_PAGES_MAX);
        arena.free(longest); // one run over the most that are kept
        assert_eq!(arena.stats().reserve_pages, 0);
        let free = arena.lock();
        let pages = free.returned.iter().flat_map(|list| list.iter()).map(PageRun::page_count);
        assert_eq!(pages.sum::<usize>(), RETIRED_PAGES_MAX + RUN_PAGES_MAX);
    }

    #[test]
    fn pages_are_given_all_or_none_and_counted_with_runs() {
        for sharing in [Sharing::Private, Sharing::Shared] {
            let arena = Arena::with_limit(10, HostPages::Small);
            let run = arena.alloc(4).unwrap();
            let mut pages = Vec::new();
            let refused = arena.alloc_pages(&mut pages, 7, sharing).unwrap_err();
            let (asked_bytes, used_bytes) = (7 << 12, 4 << 12);
            let over =
                OverBudget { asked_bytes, used_bytes, max_bytes: 10 << 12, counted: Counted::Pool };
            assert!(matches!(refused, ArenaError::Limit { pages: 7, source } if source == over));
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

    #[test]
    fn the_rest_of_a_huge_page_in_use_is_in_reserve() {
        let huge = HUGE_PAGE_SIZE / HOST_PAGE_SIZE;
        let arena = Arena::on(Arc::new(Budget::unlimited()), HostPages::Huge);
        let mut runs = Vec::new();
        for used in (7..huge * 2).step_by(7) {
            runs.push(arena.alloc(7).unwrap());
            let stats = arena.stats();
            let expected = (used, used.next_multiple_of(huge) - used);
            assert_eq!((stats.used_pages, stats.reserve_pages), expected);
        }
        assert_eq!(runs[0].pages_to_huge_border(), 0);
        runs.into_iter().for_each(|run| arena.free(run));
    }
}
