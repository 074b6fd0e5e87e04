//! One replay: pages go into a fresh store and out again; half of them are freed, the pool is
//! compacted and refilled.
//!
//! ```text
//!  store all -> load all -> free half -> compact -> refill -> (load all again, audit)
//!  |           |            |            |          |
//!  timed each  timed each   phase timed  timed      timed
//!  full pool   compared     after free   compacted  refilled
//! ```
//!
//! Pages go in by their number, which is also their key, in batches. Other work of a batch (making
//! pages up, comparing them, counting latencies) happens between batches, off the clock. The order
//! of the phases is that of the kernel experiment whose figures we compare with: nothing compacts
//! before the pool after freeing is read.
//!
//! Where the pool has a limit, [`Accesses`] come between storing and loading. A [`Trace`] is
//! replayed as it was recorded instead.

mod access;
mod trace;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use access::{Accessed, Accesses};
pub use trace::{Trace, TraceCounts, TraceInfo, TraceReadError, Traced, replay_trace};

use crate::corpus::sample::UnitSums;
use crate::corpus::size_list::SizeList;
use crate::measure::histogram::Latencies;
use uzswap::by_name::by_name;
use uzswap::named_enum::named;
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::mix;
use uzswap::zpool::Zpool;
use uzswap::zpool::zsmalloc::ClassStats;
use uzswap::zswap::{Counters, LoadError, Shrinker, Zswap};
use uzswap_sys::process::{CpuTime, anonymous_bytes, cpu_time, trim_heap};

/// Pages between two looks at the process's clocks: 256 KiB, which a core's cache holds.
const BATCH_PAGES: usize = 1 << 6; // 64

/// What is replayed.
#[derive(Debug)]
pub enum Corpus {
    /// Pages as they are.
    Pages(Vec<Page>),
    /// Pages made up from their compressed sizes.
    Sizes(SizeList),
}

impl Corpus {
    /// How many pages.
    pub fn page_count(&self) -> usize {
        match self {
            Corpus::Pages(pages) => pages.len(),
            Corpus::Sizes(sizes) => sizes.page_count(),
        }
    }

    /// Fills `room` with one page.
    pub(super) fn copy_page(&self, number: usize, room: &mut Page) {
        match self {
            Corpus::Pages(pages) => room.copy_from_slice(&pages[number]),
            Corpus::Sizes(sizes) => sizes.make_page(number, room),
        }
    }

    /// Pages from `first` on, at most as many as `room` holds.
    fn batch<'a>(&'a self, first: usize, room: &'a mut [Page]) -> &'a [Page] {
        let count = room.len().min(self.page_count() - first);
        match self {
            Corpus::Pages(pages) => &pages[first..first + count],
            Corpus::Sizes(sizes) => {
                for (place, page) in room[..count].iter_mut().enumerate() {
                    sizes.make_page(first + place, page);
                }
                &room[..count]
            }
        }
    }
}

/// Which pages are freed once all have been stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FreedHalf {
    /// Pages whose number draws a 1: the lowest bit of `mix(0x5EED + number)`.
    #[default]
    Random,
    /// Those of odd number.
    Odd,
}

named!(FreedHalf, "half", Random => "half", Odd => "odd");
by_name!(FreedHalf);

impl FreedHalf {
    /// Whether page `number` is in it.
    pub fn holds(self, number: usize) -> bool {
        match self {
            FreedHalf::Random => mix(0x5eed + number as u64) & 1 == 1,
            FreedHalf::Odd => number % 2 == 1,
        }
    }
}

/// Time spent: on the clock on the wall, and by the processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Seconds that passed.
    pub real_s: f64,
    /// Processor seconds in user mode.
    pub user_s: f64,
    /// Processor seconds in the kernel.
    pub sys_s: f64,
}

impl Spent {
    fn add(&mut self, real: Duration, before: CpuTime, after: CpuTime) {
        *self = Spent {
            real_s: self.real_s + real.as_secs_f64(),
            user_s: self.user_s + after.user.saturating_sub(before.user).as_secs_f64(),
            sys_s: self.sys_s + after.sys.saturating_sub(before.sys).as_secs_f64(),
        }
        .in_nanoseconds();
    }

    /// Without what floating point adds below a nanosecond: readers of the JSON need not see it.
    fn in_nanoseconds(self) -> Spent {
        let round = |seconds: f64| (seconds * 1e9).round() / 1e9;
        Spent { real_s: round(self.real_s), user_s: round(self.user_s), sys_s: round(self.sys_s) }
    }
}

impl std::iter::Sum for Spent {
    fn sum<I: Iterator<Item = Spent>>(parts: I) -> Spent {
        let add = |sum: Spent, part: Spent| Spent {
            real_s: sum.real_s + part.real_s,
            user_s: sum.user_s + part.user_s,
            sys_s: sum.sys_s + part.sys_s,
        };
        parts.fold(Spent::default(), add).in_nanoseconds()
    }
}

/// Time spent by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// Storing every page.
    pub store: Spent,
    /// The accesses, where the pool has a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Spent>,
    /// The events of a trace, all together: there are no other phases then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Spent>,
    /// Loading every page.
    pub load: Spent,
    /// Freeing the half.
    pub free: Spent,
    /// Compacting.
    pub compact: Spent,
    /// Storing the freed half again.
    pub refill: Spent,
}

impl Phases {
    /// All of it.
    pub fn total(&self) -> Spent {
        let always = [self.store, self.load, self.free, self.compact, self.refill];
        always.into_iter().chain(self.access).chain(self.trace).sum()
    }
}

/// Counts and bytes of a run: the same in each run of the same pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Pages given to the store.
    pub pages: u64,
    /// Pages it took, same-filled ones included.
    pub stored_pages: u64,
    /// Of these, pages kept as one word.
    pub same_filled_pages: u64,
    /// Of these, pages kept as they were.
    pub stored_incompressible_pages: u64,
    /// Pages refused as too large for the pool.
    pub reject_compress_poor: u64,
    /// Pages refused as the compressor failed.
    pub reject_compress_fail: u64,
    /// Pages refused for want of memory in the pool.
    pub reject_alloc_fail: u64,
    /// Pages refused for want of memory in the index.
    pub reject_kmemcache_fail: u64,
    /// Sum of the compressed lengths.
    pub compressed_bytes: u64,
    /// Bytes of the pool's host pages with every page stored.
    pub pool_total_size: u64,
    /// The most the pool had on the way there.
    pub pool_peak_bytes: u64,
    /// Index nodes and shards.
    pub index_bytes: u64,
    /// The allocator's own tables.
    pub zpool_metadata_bytes: u64,
    /// Resident host pages kept for the next caller.
    pub reserve_bytes: u64,
    /// Pages freed.
    pub freed_pages: u64,
    /// Sum of the compressed lengths of the pages left.
    pub kept_compressed_bytes: u64,
    /// The pool with the half freed.
    pub pool_after_free_bytes: u64,
    /// The pool after compaction.
    pub pool_after_compact_bytes: u64,
    /// The pool with the half stored again.
    pub pool_after_refill_bytes: u64,
}

impl Figures {
    /// The pages that the store counts, and no others.
    fn of_counters(counters: &Counters) -> Figures {
        Figures {
            stored_pages: counters.stored_pages,
            same_filled_pages: counters.same_filled_pages,
            stored_incompressible_pages: counters.stored_incompressible_pages,
            reject_compress_poor: counters.reject_compress_poor,
            reject_compress_fail: counters.reject_compress_fail,
            reject_alloc_fail: counters.reject_alloc_fail,
            reject_kmemcache_fail: counters.reject_kmemcache_fail,
            ..Figures::default()
        }
    }

    /// Counts and bytes of a store that was given so many pages.
    fn of_store(zswap: &Zswap, pages: u64) -> Figures {
        let memory = zswap.memory();
        Figures {
            pages,
            compressed_bytes: memory.compressed_bytes,
            pool_total_size: memory.pool_bytes,
            pool_peak_bytes: memory.pool_peak_bytes,
            index_bytes: memory.index_bytes,
            zpool_metadata_bytes: memory.zpool_metadata_bytes,
            reserve_bytes: memory.reserve_bytes,
            ..Figures::of_counters(&zswap.counters())
        }
    }

    /// Pages that the store did not take.
    pub fn rejected_pages(&self) -> u64 {
        self.reject_compress_poor
            + self.reject_compress_fail
            + self.reject_alloc_fail
            + self.reject_kmemcache_fail
    }

    /// Memory beside the pool's host pages.
    pub fn metadata_bytes(&self) -> u64 {
        self.index_bytes + self.zpool_metadata_bytes
    }
}

/// Anonymous resident memory that the store took, in bytes: what the process had more than before
/// the store was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rss {
    /// With every page stored.
    pub full: u64,
    /// With the half freed.
    pub after_free: u64,
    /// After compaction.
    pub after_compact: u64,
    /// With the half stored again.
    pub after_refill: u64,
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunResult {
    /// Counts and bytes.
    pub figures: Figures,
    /// Real memory.
    pub rss: Rss,
    /// Time.
    pub phases: Phases,
    /// Each store of the first phase.
    pub store_ns: Latencies,
    /// Each load of the second phase.
    pub load_ns: Latencies,
    /// Pages that were loaded and found equal in the second phase.
    pub verified_pages: u64,
    /// The accesses, where the pool has a limit.
    pub accessed: Option<Accessed>,
    /// The events, where a trace was replayed.
    #[serde(default)]
    pub traced: Option<Traced>,
    /// Sums by unit, where the pages are a sample.
    #[serde(default)]
    pub unit_sums: Vec<UnitSums>,
    /// Bytes of the pool that wait for more objects, with every page stored: [`open_bytes`].
    #[serde(default)]
    pub open_bytes: u64,
}

/// Why a run was given up.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// A page came back changed.
    #[error(
        "page {number} came back different at byte {offset}: stored {stored:#04x}, loaded \
         {loaded:#04x} ({zpool}, {compressor}, {when})"
    )]
    Mismatch {
        /// The page.
        number: usize,
        /// Its first byte that differs.
        offset: usize,
        /// That byte in the corpus.
        stored: u8,
        /// That byte in what was loaded.
        loaded: u8,
        /// The allocator.
        zpool: &'static str,
        /// The compressor.
        compressor: String,
        /// In which phase.
        when: &'static str,
    },
    /// A page is there but cannot be restored.
    #[error("cannot load page {number} ({when})")]
    Load {
        /// The page.
        number: usize,
        /// In which phase.
        when: &'static str,
        /// The store's words.
        #[source]
        source: LoadError,
    },
    /// The store has a page that it must not have, or has one no more.
    #[error(
        "page {number} is {} the store ({zpool}, {when})",
        if *held { "still in" } else { "gone from" }
    )]
    Presence {
        /// The page.
        number: usize,
        /// Whether the store has it.
        held: bool,
        /// The allocator.
        zpool: &'static str,
        /// In which phase.
        when: &'static str,
    },
    /// The store's structures are broken.
    #[error("the store's structures are broken after the run: {0}")]
    Audit(String),
    /// There was no memory for the store.
    #[error("cannot allocate the store's tables; use a smaller backing")]
    NoMemory,
    /// The kernel gave no thread.
    #[error("cannot start the shrinker")]
    NoThread(#[source] io::Error),
    /// The resident size could not be read.
    #[error("cannot read /proc/self/smaps_rollup")]
    Rss(#[source] io::Error),
}

impl ReplayError {
    /// Whether it is the store that is at fault, not the machine.
    pub fn is_check(&self) -> bool {
        !matches!(
            self,
            ReplayError::Rss(_)
                | ReplayError::NoMemory
                | ReplayError::NoThread(_)
                | ReplayError::Load { source: LoadError::Backing { .. }, .. }
        )
    }
}

/// Replays `corpus` into the store that `build` makes.
///
/// `units` has the pages of each unit of a sample, whose sums are returned. Without a half to free,
/// the run ends after the loads. `compressor` is the compressor's name, for messages.
///
/// # Errors
///
/// [`ReplayError`], at the first page that does not come back as it was stored.
pub fn replay(
    corpus: &Corpus,
    units: &[u64],
    freed: impl Into<Option<FreedHalf>>,
    compressor: &str,
    build: impl FnOnce() -> Zswap,
) -> Result<RunResult, ReplayError> {
    replay_and_access(corpus, units, freed, compressor, None, || Some(build()))
}

/// The same, with the accesses to a pool with a limit; `build` is `None` where there is no memory.
///
/// # Errors
///
/// As [`replay`], and where the store or its shrinker cannot be had.
pub fn replay_and_access(
    corpus: &Corpus,
    units: &[u64],
    freed: impl Into<Option<FreedHalf>>,
    compressor: &str,
    mut accesses: Option<Accesses>,
    build: impl FnOnce() -> Option<Zswap>,
) -> Result<RunResult, ReplayError> {
    let mut accessed = accesses.as_ref().map(|_| Accessed::default());
    let mut buffers = Buffers::new(corpus.page_count());
    let (mut store_ns, mut load_ns) = (Latencies::new(), Latencies::new());
    let rss = growth_from_here()?;
    let zswap = Arc::new(build().ok_or(ReplayError::NoMemory)?);
    let shrinker = accesses
        .as_ref()
        .and_then(|accesses| accesses.shrinker)
        .map(|options| Shrinker::start(Arc::clone(&zswap), options));
    let shrinker = shrinker.transpose().map_err(ReplayError::NoThread)?;
    let mut run = Run { corpus, zswap: &zswap, compressor, buffers: &mut buffers };
    let mut unit_sums = UnitCounter::new(units);
    let store = run.store(|_| true, Some(&mut store_ns), &mut unit_sums);
    let mut figures = Figures::of_store(&zswap, corpus.page_count() as u64);
    let mut resident = Rss { full: rss()?, ..Rss::default() };
    let open_bytes = open_bytes(zswap.zpool());

    if let (Some(accesses), Some(accessed)) = (&mut accesses, &mut accessed) {
        run.access(accesses, accessed)?;
    }

    let (load, verified_pages) = run.load_all(Some(&mut load_ns), "loaded after storing")?;
    let access = accessed.as_ref().map(|accessed| accessed.spent);
    let mut phases = Phases { store, access, load, ..Phases::default() };
    if let Some(freed) = freed.into() {
        run.free_and_refill(freed, &rss, &mut figures, &mut resident, &mut phases)?;
    }
    drop(shrinker); // the audit needs a store at rest
    zswap.audit().map_err(|error| ReplayError::Audit(error.into()))?;
    Ok(RunResult {
        figures,
        rss: resident,
        phases,
        store_ns,
        load_ns,
        verified_pages,
        accessed,
        traced: None,
        unit_sums: unit_sums.sums,
        open_bytes,
    })
}

/// The growth of the resident size, in bytes: what the store touches from here on.
fn growth_from_here() -> Result<impl Fn() -> Result<u64, ReplayError>, ReplayError> {
    trim_heap();
    let now = || anonymous_bytes().map_err(ReplayError::Rss);
    now()?; // its own buffers
    let before = now()?;
    Ok(move || Ok(now()?.saturating_sub(before)))
}

/// Bytes of a pool in free slots of its zspages. There is about one part-filled zspage for each
/// class, however many objects the pool has. Allocators without classes have none.
pub fn open_bytes(zpool: &dyn Zpool) -> u64 {
    let open = |class: &ClassStats| {
        let free = class.slots_allocated - class.slots_used;
        (class.pool_pages * PAGE_SIZE * free).checked_div(class.slots_allocated).unwrap_or(0) as u64
    };
    zpool.class_stats().iter().map(open).sum()
}

/// Sums by unit, as differences of what the store counts at the end of each.
struct UnitCounter<'a> {
    /// Units whose pages are not all stored.
    units: &'a [u64],
    /// Pages of the first of them that are.
    stored: u64,
    /// The counts of the store at its start.
    before: UnitSums,
    sums: Vec<UnitSums>,
}

impl UnitCounter<'_> {
    fn new(units: &[u64]) -> UnitCounter<'_> {
        let sums = Vec::with_capacity(units.len());
        UnitCounter { units, stored: 0, before: UnitSums::default(), sums }
    }

    /// Pages to the end of the unit; none where there are no units.
    fn left(&self) -> Option<usize> {
        self.units.first().map(|pages| (pages - self.stored) as usize) // of the corpus
    }

    /// Counts a batch that was stored, which ends no later than its unit.
    fn add(&mut self, pages: usize, zswap: &Zswap) {
        let Some((&unit, rest)) = self.units.split_first() else { return };
        self.stored += pages as u64;
        if self.stored < unit {
            return;
        }
        let (counters, memory) = (zswap.counters(), zswap.memory());
        let now = UnitSums {
            pages: self.before.pages + unit,
            compressed_bytes: memory.compressed_bytes,
            same_filled_pages: counters.same_filled_pages,
            rejected_pages: Figures::of_counters(&counters).rejected_pages(),
            pool_bytes: memory.pool_bytes.saturating_sub(open_bytes(zswap.zpool())),
        };
        self.sums.push(now.less(&self.before));
        (self.units, self.stored, self.before) = (rest, 0, now);
    }
}

/// Buffers of a run beside the store, made and touched before it starts.
struct Buffers {
    /// Made-up pages.
    made: Vec<Page>,
    /// Loaded pages.
    loaded: Vec<Page>,
    /// Whether each load of a batch found its page.
    found: Vec<bool>,
    /// When each operation of a batch ended.
    ends: Vec<Instant>,
    /// Whether the store should have each page of the corpus.
    held: Vec<bool>,
}

impl Buffers {
    fn new(pages: usize) -> Buffers {
        // No zeros: zeroed memory is not resident until written to.
        Buffers {
            made: vec![[1; PAGE_SIZE]; BATCH_PAGES],
            loaded: vec![[1; PAGE_SIZE]; BATCH_PAGES],
            found: vec![true; BATCH_PAGES],
            ends: vec![Instant::now(); BATCH_PAGES],
            held: vec![true; pages],
        }
    }
}

struct Run<'a> {
    corpus: &'a Corpus,
    zswap: &'a Zswap,
    compressor: &'a str,
    buffers: &'a mut Buffers,
}

impl Run<'_> {
    /// Frees half of the pages, compacts, stores that half again, and looks at all of them.
    fn free_and_refill(
        &mut self,
        freed: FreedHalf,
        rss: &impl Fn() -> Result<u64, ReplayError>,
        figures: &mut Figures,
        resident: &mut Rss,
        phases: &mut Phases,
    ) -> Result<(), ReplayError> {
        (phases.free, figures.freed_pages) = self.free(freed)?;
        let memory = self.zswap.memory();
        figures.pool_after_free_bytes = memory.pool_bytes;
        figures.kept_compressed_bytes = memory.compressed_bytes;
        resident.after_free = rss()?;

        phases.compact = timed(|| self.zswap.compact());
        figures.pool_after_compact_bytes = self.zswap.memory().pool_bytes;
        resident.after_compact = rss()?;

        let wanted = |number| freed.holds(number);
        phases.refill = self.store(wanted, None, &mut UnitCounter::new(&[]));
        figures.pool_after_refill_bytes = self.zswap.memory().pool_bytes;
        resident.after_refill = rss()?;

        // The pages that stayed were moved by compaction; the others are new.
        self.load_all(None, "loaded after refilling")?;
        Ok(())
    }

    /// Stores the pages that are `wanted`. A batch ends where a unit does.
    fn store(
        &mut self,
        wanted: impl Fn(usize) -> bool,
        mut latencies: Option<&mut Latencies>,
        units: &mut UnitCounter<'_>,
    ) -> Spent {
        let mut spent = Spent::default();
        let unit_pages = self.zswap.options().unit_pages;
        let Buffers { made, ends, held, .. } = &mut *self.buffers;
        let mut first = 0;
        while first < self.corpus.page_count() {
            let most = units.left().map_or(BATCH_PAGES, |left| left.min(BATCH_PAGES));
            let batch = self.corpus.batch(first, &mut made[..most]);
            ends.clear();
            let before = cpu_time();
            let start = Instant::now();
            if unit_pages > 1 {
                store_units(self.zswap, first, batch, &wanted, (&mut *held, &mut *ends));
            } else {
                for (number, page) in (first..).zip(batch) {
                    if wanted(number) {
                        held[number] = self.zswap.store(PageKey(number as u64), page).is_ok();
                        ends.push(Instant::now());
                    }
                }
            }
            let real = start.elapsed();
            spent.add(real, before, cpu_time());
            if let Some(latencies) = latencies.as_deref_mut() {
                record(latencies, start, ends);
            }
            units.add(batch.len(), self.zswap);
            first += batch.len();
        }
        spent
    }

    /// Loads every page and compares it with the corpus; how many there were.
    fn load_all(
        &mut self,
        mut latencies: Option<&mut Latencies>,
        when: &'static str,
    ) -> Result<(Spent, u64), ReplayError> {
        let (mut spent, mut verified) = (Spent::default(), 0);
        let zpool = self.zswap.zpool().name();
        let Buffers { made, loaded, found, ends, held } = &mut *self.buffers;
        for first in (0..self.corpus.page_count()).step_by(BATCH_PAGES) {
            let count = BATCH_PAGES.min(self.corpus.page_count() - first);
            ends.clear();
            let before = cpu_time();
            let start = Instant::now();
            for (place, page) in loaded[..count].iter_mut().enumerate() {
                let number = first + place;
                if held[number] {
                    found[place] = self
                        .zswap
                        .load(PageKey(number as u64), page)
                        .map_err(|source| ReplayError::Load { number, when, source })?;
                    ends.push(Instant::now());
                }
            }
            let real = start.elapsed();
            spent.add(real, before, cpu_time());
            if let Some(latencies) = latencies.as_deref_mut() {
                record(latencies, start, ends);
            }
            let batch = self.corpus.batch(first, made);
            for (place, (stored, loaded)) in batch.iter().zip(&mut loaded[..count]).enumerate() {
                let number = first + place;
                if !held[number] {
                    // Refused: it must not be there, and looking for it is no load.
                    found[place] = self
                        .zswap
                        .load(PageKey(number as u64), loaded)
                        .map_err(|source| ReplayError::Load { number, when, source })?;
                }
                if found[place] != held[number] {
                    return Err(ReplayError::Presence { number, held: found[place], zpool, when });
                }
                if !held[number] {
                    continue;
                }
                check(number, stored, loaded, zpool, self.compressor, when)?;
                verified += 1;
            }
        }
        Ok((spent, verified))
    }

    /// Frees the half; how many pages of it the store had.
    fn free(&mut self, half: FreedHalf) -> Result<(Spent, u64), ReplayError> {
        let mut freed = 0;
        let mut wrong = None;
        let held = &mut self.buffers.held;
        let spent = timed(|| {
            for (number, held) in held.iter_mut().enumerate() {
                if half.holds(number) {
                    let was_held = self.zswap.invalidate(PageKey(number as u64));
                    if was_held != *held {
                        wrong.get_or_insert((number, was_held));
                    }
                    freed += u64::from(was_held);
                    *held = false;
                }
            }
        });
        match wrong {
            None => Ok((spent, freed)),
            Some((number, held)) => Err(ReplayError::Presence {
                number,
                held,
                zpool: self.zswap.zpool().name(),
                when: "freed",
            }),
        }
    }
}

/// Stores the wanted pages of a batch, neighbours of one unit together. Each took an equal share of
/// the time of its unit.
fn store_units(
    zswap: &Zswap,
    first: usize,
    batch: &[Page],
    wanted: &impl Fn(usize) -> bool,
    (held, ends): (&mut [bool], &mut Vec<Instant>),
) {
    let unit_pages = zswap.options().unit_pages;
    let mut at = 0;
    while at < batch.len() {
        let to_boundary = unit_pages - (first + at) % unit_pages;
        let rest = &batch[at..batch.len().min(at + to_boundary)];
        let count = (first + at..).zip(rest).take_while(|&(number, _)| wanted(number)).count();
        if count == 0 {
            at += 1;
            continue;
        }
        let start = Instant::now();
        zswap.store_all(PageKey((first + at) as u64), &rest[..count], |key, stored| {
            held[key.0 as usize] = stored.is_ok();
        });
        let count = count as u32; // of a batch
        let each = start.elapsed() / count;
        ends.extend((1..=count).map(|pages| start + each * pages));
        at += count as usize;
    }
}

/// Counts what each operation of a batch took: from the end of the one before it to its own.
fn record(latencies: &mut Latencies, start: Instant, ends: &[Instant]) {
    let mut from = start;
    for &end in ends {
        latencies.record(end.duration_since(from).as_nanos().try_into().unwrap_or(u64::MAX));
        from = end;
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> Spent {
    let mut spent = Spent::default();
    let before = cpu_time();
    let start = Instant::now();
    work();
    spent.add(start.elapsed(), before, cpu_time());
    spent
}

/// Compares a page with what was stored.
fn check(
    number: usize,
    stored: &Page,
    loaded: &Page,
    zpool: &'static str,
    compressor: &str,
    when: &'static str,
) -> Result<(), ReplayError> {
    let Some(offset) = first_difference(stored, loaded) else { return Ok(()) };
    Err(ReplayError::Mismatch {
        number,
        offset,
        stored: stored[offset],
        loaded: loaded[offset],
        zpool,
        compressor: compressor.to_owned(),
        when,
    })
}

fn first_difference(one: &Page, other: &Page) -> Option<usize> {
    if one == other {
        return None;
    }
    one.iter().zip(other).position(|(one, other)| one != other)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::measure::limited_pool::AccessSettings;
    use uzswap::compressor::{CompressError, Compressor, CompressorKind, Corrupt, Output};
    use uzswap::zswap::ZswapOptions;

    /// Corrupts one byte of the n-th page it restores, or fails there.
    #[derive(Debug)]
    struct Liar {
        honest: Box<dyn Compressor>,
        restored: AtomicUsize,
        lie_at: usize,
        fail: bool,
    }

    impl Compressor for Liar {
        fn name(&self) -> String {
            "liar".to_owned()
        }

        fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
            self.honest.compress(page, out)
        }

        fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
            self.honest.decompress(object, page)?;
            if self.restored.fetch_add(1, Ordering::Relaxed) == self.lie_at {
                page[77] ^= 0x10;
                if self.fail {
                    return Err(Corrupt("a lie".to_owned()));
                }
            }
            Ok(())
        }
    }

    fn text_pages(count: usize) -> Corpus {
        let page = |number: usize| {
            let mut page = [0; PAGE_SIZE];
            for (place, byte) in page.iter_mut().enumerate() {
                *byte = (mix(number as u64 * 31 + place as u64 / 9) % 23) as u8;
            }
            page
        };
        Corpus::Pages((0..count).map(page).collect())
    }

    fn liar(lie_at: usize, fail: bool) -> Zswap {
        let honest = CompressorKind::Lz4.build();
        let liar = Liar { honest, restored: AtomicUsize::new(0), lie_at, fail };
        Zswap::with_compressor(ZswapOptions::default(), Box::new(liar)).unwrap()
    }

    #[test]
    fn figures_add_up() {
        let corpus = text_pages(300);
        let run = replay(&corpus, &[], FreedHalf::Odd, "lz4", || {
            Zswap::new(ZswapOptions::default()).unwrap()
        });
        let run = run.unwrap();
        let figures = run.figures;
        assert_eq!((figures.pages, figures.stored_pages, run.verified_pages), (300, 300, 300));
        assert_eq!((figures.freed_pages, figures.rejected_pages()), (150, 0));
        assert_eq!(run.store_ns.summary().count, 300);
        assert_eq!(run.load_ns.summary().count, 300);
        assert!(figures.pool_after_free_bytes <= figures.pool_total_size);
        assert!(figures.pool_after_compact_bytes <= figures.pool_after_free_bytes);
        assert_eq!(figures.pool_after_refill_bytes, figures.pool_total_size);
        assert!(figures.kept_compressed_bytes < figures.compressed_bytes);
        assert!(run.phases.total().real_s > 0.0);
    }

    #[test]
    fn sums_of_units_are_those_of_their_pages() {
        // The first unit has the pages that are refused, the second same-filled ones.
        let mut sizes: Vec<u16> = vec![4096; 70];
        sizes.extend([0; 128]);
        sizes.extend((0..102).map(|number| 500 + number));
        let corpus = Corpus::Sizes(sizes.into_iter().collect());
        let build = || {
            let strip = Box::new(crate::corpus::size_list::StripPadding);
            let options = ZswapOptions::default().object_header_bytes(8);
            Zswap::with_compressor(options, strip).unwrap()
        };
        let run = replay(&corpus, &[70, 128, 102], FreedHalf::Odd, "sizes", build).unwrap();
        assert!(run.open_bytes > 0, "102 objects do not fill their zspages");
        let filled = run.figures.pool_total_size - run.open_bytes;
        assert!(filled > run.figures.compressed_bytes, "{filled}");
        let sums = |pages, compressed_bytes, same_filled_pages, rejected_pages| UnitSums {
            pages,
            compressed_bytes,
            same_filled_pages,
            rejected_pages,
            pool_bytes: if compressed_bytes > 0 { filled } else { 0 },
        };
        let last = run.figures.compressed_bytes;
        assert!(last >= 102 * 500, "{last}");
        assert_eq!(
            run.unit_sums,
            [sums(70, 0, 0, 70), sums(128, 0, 128, 0), sums(102, last, 0, 0)]
        );
        assert_eq!(replay(&corpus, &[], FreedHalf::Odd, "sizes", build).unwrap().unit_sums, []);
    }

    #[test]
    fn a_run_without_a_half_ends_after_the_loads() {
        let build = || Zswap::new(ZswapOptions::default()).unwrap();
        let run = replay(&text_pages(300), &[], None, "lz4", build).unwrap();
        let whole = replay(&text_pages(300), &[], FreedHalf::Odd, "lz4", build).unwrap();
        assert_eq!((run.verified_pages, run.figures.freed_pages), (300, 0));
        assert_eq!(run.figures.pool_total_size, whole.figures.pool_total_size);
        assert_eq!(run.phases.refill, Spent::default());
        assert!(run.phases.load.real_s > 0.0);
    }

    #[test]
    fn a_changed_page_is_found_and_named() {
        let corpus = text_pages(200);
        for (lie_at, when) in [(123, "storing"), (323, "refilling")] {
            let run = replay(&corpus, &[], FreedHalf::Random, "liar", || liar(lie_at, false));
            let error = run.unwrap_err();
            assert!(error.is_check());
            let text = error.to_string();
            assert!(text.starts_with("page 123 came back different at byte 77"), "{text}");
            assert!(text.contains("zsmalloc") && text.contains("liar"), "{text}");
            assert!(text.contains(when), "{text}");
        }
    }

    fn accesses(exclusive: bool) -> Option<Accesses> {
        let settings = AccessSettings { count: 1000, skew: 0.99, seed: 1, exclusive };
        Some(Accesses::new(200, settings, Arc::default(), None))
    }

    #[test]
    fn accesses_are_counted_and_come_between_storing_and_loading() {
        let corpus = text_pages(200);
        for exclusive in [false, true] {
            let build = || Some(Zswap::new(ZswapOptions::default()).unwrap());
            let accesses = accesses(exclusive);
            let run =
                replay_and_access(&corpus, &[], FreedHalf::Odd, "lz4", accesses, build).unwrap();
            let accessed = run.accessed.unwrap();
            assert_eq!((accessed.pool_hits, accessed.backing_hits, accessed.misses), (1000, 0, 0));
            assert_eq!(accessed.pool_load_ns.summary().count, 1000);
            let stores = accessed.store_ns.summary().count;
            assert_eq!(stores, if exclusive { 1000 } else { 0 });
            assert_eq!((run.store_ns.summary().count, run.verified_pages), (200, 200));
            assert_eq!(run.phases.access, Some(accessed.spent));
        }
    }

    #[test]
    fn a_page_that_is_changed_by_an_access_is_found() {
        let corpus = text_pages(200);
        for exclusive in [false, true] {
            let build = || Some(liar(50, false));
            let accesses = accesses(exclusive);
            let run = replay_and_access(&corpus, &[], FreedHalf::Random, "liar", accesses, build);
            let error = run.unwrap_err();
            assert!(error.is_check());
            let text = error.to_string();
            assert!(text.contains("came back different at byte 77"), "{text}");
            assert!(text.contains("accessed"), "{text}");
        }
    }

    #[test]
    fn a_store_without_memory_is_the_machines_fault() {
        let run =
            replay_and_access(&text_pages(1), &[], FreedHalf::Odd, "lz4", accesses(false), || None);
        assert!(!run.unwrap_err().is_check());
    }

    #[test]
    fn a_page_that_cannot_be_restored_is_named() {
        let corpus = text_pages(100);
        let run = replay(&corpus, &[], FreedHalf::Random, "liar", || liar(42, true));
        assert!(matches!(run, Err(ReplayError::Load { number: 42, .. })));
    }

    #[test]
    fn refused_pages_are_counted_and_not_expected_back() {
        // Every third page does not shrink, and its object with a header is over a page.
        let sizes: SizeList =
            (0..300).map(|number| if number % 3 == 0 { 4096 } else { number }).collect();
        let options = ZswapOptions::default().object_header_bytes(8);
        let strip = Box::new(crate::corpus::size_list::StripPadding);
        let build = || Zswap::with_compressor(options, strip).unwrap();
        let run = replay(&Corpus::Sizes(sizes), &[], FreedHalf::Random, "sizes", build).unwrap();
        assert_eq!(run.figures.reject_compress_poor, 100);
        assert_eq!((run.figures.stored_pages, run.verified_pages), (200, 200));
    }

    #[test]
    fn the_random_half_is_the_published_one() {
        let half: String =
            (0..16).map(|number| if FreedHalf::Random.holds(number) { '1' } else { '0' }).collect();
        // splitmix64 of 0x5EED + 0, 1, 2 ...
        let expected: String = (0..16_u64).map(|n| (mix(0x5eed + n) & 1).to_string()).collect();
        assert_eq!(half, expected);
        // The first output of splitmix64 seeded with 0, as published.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
    }
}
