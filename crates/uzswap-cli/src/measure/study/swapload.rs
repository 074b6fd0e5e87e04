//! The swap load: does a faster index make a machine that swaps faster?
//!
//! The setting of the 2019 study of a B-tree for zswap, in user space. The keys of 1 GiB of swap go
//! to a store of z3fold that may grow to 1 GiB. 4 workers sweep through memory; each operation of 4
//! others needs a few pages back. All pages are in the store when the clock starts, and all workers
//! run at once for the same time.
//!
//! - A *vm-like* worker has a range of keys of its own and goes through it again and again, as
//!   stress-ng's vm workers write and check patterns in their memory. For each page it pages one in
//!   (load, and a look at its contents) and, 16 pages behind, one out (store). Every second page
//!   was written to while it was in: its old copy is invalidated at once. The others leave it in
//!   the store, and paging them out replaces it. One operation is one page in and one out.
//! - An *io-like* worker has a small range and does short operations: it pages four random pages of
//!   its range in, and out again with new contents. stress-ng's io workers only call sync; under
//!   memory pressure they wait for their own few pages.
//!
//! Contents are patterns such as stress-ng's vm workers write: one byte all over, bytes counting
//! up, a random byte for each eight.

use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Spread, number};
use crate::measure::child::{ChildError, Refusal, answer, ask};
use crate::measure::stats::Stats;
use crate::measure::turns::{Cell, Progress, Study, StudyError, take_turns};
use uzswap::budget::Counted;
use uzswap::compressor::CompressorKind;
use uzswap::index::{Entry, Index, IndexKind};
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::{SplitMix64, mix};
use uzswap::zpool::ZpoolKind;
use uzswap::zswap::{Zswap, ZswapOptions};
use uzswap_sys::process::cpu_time;

/// The hidden subcommand that does one run.
pub const RUN_COMMAND: &str = "swapload-run";

/// Workers of each sort.
const WORKERS: u64 = 4;

/// The share of the keys that all io-like workers have together: one in so many.
const IO_SHARE: u64 = 16;

/// Pages that an io-like operation needs.
const IO_PAGES: usize = 4;

/// Pages between the one that comes in and the one that goes out.
const RESIDENT_PAGES: u64 = 16;

/// Shards take turns in regions of so many keys, as in the store.
const REGION_BITS: u32 = 14;

/// Index operations that are timed alone.
const PROBES: u64 = 400_000;

/// The measurement to make.
#[derive(Debug, Clone)]
pub struct Swapload {
    /// The indexes, in the order they take turns.
    pub indexes: Vec<IndexKind>,
    /// Numbers of shards.
    pub shards: Vec<usize>,
    /// The compressor.
    pub compressor: CompressorKind,
    /// Pages of key space, and the most host pages of the pool.
    pub pages: u64,
    /// How long each run takes.
    pub time: Duration,
    /// Runs of each index with each number of shards.
    pub runs: usize,
}

/// One run: the task of a child.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct RunSpec {
    index: IndexKind,
    shards: usize,
    compressor: CompressorKind,
    pages: u64,
    time: Duration,
}

/// What one run found.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct SwaploadRun {
    /// Operations of all io-like workers, a second.
    io_per_second: f64,
    /// Operations of all vm-like workers, a second.
    vm_per_second: f64,
    /// Operations of the index that these took, a second.
    index_per_second: f64,
    /// Nanoseconds an operation of the index: the same operations again after the run, with the
    /// index alone and by one thread.
    index_ns: f64,
    /// The processor time that all workers used, in seconds a second.
    cpus_used: f64,
}

impl SwaploadRun {
    /// The index's share of the processor time, 0 to 1, by these figures. Not included: waiting for
    /// its lock, and cache lines that the rest of the store takes from it.
    fn index_share(&self) -> f64 {
        self.index_per_second * self.index_ns / 1e9 / self.cpus_used
    }
}

/// The findings of all runs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Findings {
    /// Pages of key space, in bytes.
    pub bytes: u64,
    /// The compressor.
    pub compressor: CompressorKind,
    /// Seconds of each run.
    pub seconds: f64,
    /// Runs of each cell.
    pub runs_each: usize,
    /// Indexes with as many shards are neighbours.
    pub cells: Vec<Figures>,
}

/// An index with a number of shards.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Number of shards.
    pub shards: usize,
    /// The index.
    pub index: IndexKind,
    /// Operations of all io-like workers.
    pub io: Rate,
    /// Operations of all vm-like workers.
    pub vm: Rate,
    /// The same for each second of processor time: other load on the machine weighs less.
    pub io_per_cpu: Rate,
    /// The same.
    pub vm_per_cpu: Rate,
    /// Operations of the index.
    pub index_operations: Rate,
    /// Nanoseconds an operation of the index, alone.
    pub index_ns: Spread,
    /// The share of the processor time that is the index's, 0 to 1.
    pub index_share: Spread,
    /// Seconds of processor time a second.
    pub cpus_used: Spread,
}

/// Operations a second.
#[derive(Debug, Serialize, Deserialize)]
pub struct Rate {
    /// The mean of the runs.
    #[serde(deserialize_with = "number")]
    pub mean: f64,
    /// Their sample standard deviation.
    #[serde(deserialize_with = "number")]
    pub stddev: f64,
    /// The smallest.
    #[serde(deserialize_with = "number")]
    pub min: f64,
    /// The largest.
    #[serde(deserialize_with = "number")]
    pub max: f64,
    /// The mean over the red-black tree's.
    pub times_rbtree: Option<f64>,
    /// The ratios run by run.
    pub times_rbtree_by_run: Option<Spread>,
}

impl Swapload {
    /// The fewest pages: every worker has some.
    pub const PAGES_MIN: u64 = 1 << 12; // 16 MiB

    /// Runs it.
    ///
    /// # Errors
    ///
    /// At the first run that does not end well. No child is left running.
    pub fn run(&self, progress: Progress<'_>) -> Result<Findings, StudyError> {
        let cells = take_turns(self, progress)?;
        Ok(Findings {
            bytes: self.pages * PAGE_SIZE as u64,
            compressor: self.compressor,
            seconds: self.time.as_secs_f64(),
            runs_each: self.runs,
            cells: cells.iter().map(|cell| Figures::of(cell, &cells)).collect(),
        })
    }
}

impl Study for Swapload {
    type Variant = RunSpec;
    type Run = SwaploadRun;

    fn rounds(&self) -> usize {
        self.runs
    }

    fn groups(&self) -> Vec<Vec<RunSpec>> {
        let spec = |shards, index| RunSpec {
            index,
            shards,
            compressor: self.compressor,
            pages: self.pages,
            time: self.time,
        };
        let indexes = |&shards| self.indexes.iter().map(move |&index| spec(shards, index));
        vec![self.shards.iter().flat_map(indexes).collect()]
    }

    fn label(&self, RunSpec { index, shards, .. }: &RunSpec) -> String {
        format!("{index}, shards: {shards}")
    }

    fn measure(&self, spec: &RunSpec, _round: usize) -> Result<SwaploadRun, ChildError> {
        ask(&[RUN_COMMAND], spec)
    }
}

impl Figures {
    /// Of a cell, against the red-black tree's among all of them.
    fn of(cell: &Cell<RunSpec, SwaploadRun>, cells: &[Cell<RunSpec, SwaploadRun>]) -> Figures {
        let RunSpec { index, shards, .. } = cell.variant;
        let is_base = |of: &RunSpec| (of.shards, of.index) == (shards, IndexKind::RbTree);
        let base = cells.iter().find(|other| is_base(&other.variant));
        let rate = |of: fn(&SwaploadRun) -> f64| {
            let own = cell.values(of);
            let Stats { mean, stddev, min, max, .. } = Stats::of(&own);
            let base = base.map(|base| base.values(of));
            Rate {
                mean,
                stddev,
                min,
                max,
                times_rbtree: base.as_ref().map(|base| mean / Stats::of(base).mean),
                times_rbtree_by_run: base.map(|base| Spread::of_ratios(&own, &base)),
            }
        };
        let spread = |of: fn(&SwaploadRun) -> f64| Spread::of(&cell.values(of));
        Figures {
            shards,
            index,
            io: rate(|run| run.io_per_second),
            vm: rate(|run| run.vm_per_second),
            io_per_cpu: rate(|run| run.io_per_second / run.cpus_used),
            vm_per_cpu: rate(|run| run.vm_per_second / run.cpus_used),
            index_operations: rate(|run| run.index_per_second),
            index_ns: spread(|run| run.index_ns),
            index_share: spread(SwaploadRun::index_share),
            cpus_used: spread(|run| run.cpus_used),
        }
    }
}

/// The child's side: one run.
///
/// # Errors
///
/// Of the two streams, and of an order that is none.
pub fn child(input: impl Read, output: impl Write) -> io::Result<()> {
    answer(input, output, |spec: RunSpec| run_one(&spec))
}

/// Where pages go: the store, or nothing but its index.
trait Swap {
    fn page_in(&mut self, key: u64, version: u32) -> Result<(), Refusal>;
    fn page_out(&mut self, key: u64, version: u32) -> Result<(), Refusal>;
    fn invalidate(&mut self, key: u64);
}

/// The store, as one worker uses it.
struct Store<'a> {
    zswap: &'a Zswap,
    buffer: Page,
    index_operations: u64,
}

impl Store<'_> {
    fn new(zswap: &Zswap) -> Store<'_> {
        Store { zswap, buffer: [0; PAGE_SIZE], index_operations: 0 }
    }
}

impl Swap for Store<'_> {
    fn page_in(&mut self, key: u64, version: u32) -> Result<(), Refusal> {
        self.index_operations += 1;
        match self.zswap.load(PageKey(key), &mut self.buffer) {
            Ok(true) if begins_with_pattern(key, version, &self.buffer) => Ok(()),
            Ok(true) => Err(Refusal::Check(format!("page {key} has wrong contents"))),
            Ok(false) => Err(lost(key)),
            Err(error) => Err(Refusal::Check(error.to_string())),
        }
    }

    fn page_out(&mut self, key: u64, version: u32) -> Result<(), Refusal> {
        self.index_operations += 1;
        write_pattern(key, version, &mut self.buffer);
        let stored = self.zswap.store(PageKey(key), &self.buffer);
        stored.map(drop).map_err(|error| Refusal::CannotRun(error.to_string()))
    }

    fn invalidate(&mut self, key: u64) {
        self.index_operations += 1;
        self.zswap.invalidate(PageKey(key));
    }
}

/// The indexes of such a store, and nothing else.
struct Alone {
    shards: Vec<Box<dyn Index>>,
    operations: u64,
}

impl Alone {
    fn of(&mut self, key: u64) -> &mut dyn Index {
        self.operations += 1;
        let shard = (key >> REGION_BITS) as usize % self.shards.len();
        &mut *self.shards[shard]
    }
}

impl Swap for Alone {
    fn page_in(&mut self, key: u64, _: u32) -> Result<(), Refusal> {
        self.of(key).get(PageKey(key)).map(drop).ok_or_else(|| lost(key))
    }

    fn page_out(&mut self, key: u64, version: u32) -> Result<(), Refusal> {
        let entry = Entry(NonZeroU64::MIN.saturating_add(key << 32 | u64::from(version)));
        let put = self.of(key).insert_or_replace(PageKey(key), entry);
        put.map(drop).map_err(|error| Refusal::CannotRun(error.to_string()))
    }

    fn invalidate(&mut self, key: u64) {
        self.of(key).take(PageKey(key));
    }
}

fn lost(key: u64) -> Refusal {
    Refusal::Check(format!("page {key} is lost"))
}

/// A worker with a range of keys of its own.
struct Worker {
    first: u64,
    /// How often each page was written.
    versions: Vec<u32>,
    steps: u64,
    /// Of an io-like worker.
    random: Option<SplitMix64>,
}

impl Worker {
    fn new(first: u64, pages: u64, random: Option<SplitMix64>) -> Worker {
        Worker { first, versions: vec![0; pages as usize], steps: 0, random }
    }

    /// Four of each sort, the vm-like ones first, with all keys between them.
    fn all(pages: u64) -> Vec<Worker> {
        let io_pages = pages / IO_SHARE / WORKERS;
        let vm_pages = pages / WORKERS - io_pages;
        let first = |worker| worker * (vm_pages + io_pages);
        let vm = |worker| Worker::new(first(worker), vm_pages, None);
        let io =
            |worker| Worker::new(first(worker) + vm_pages, io_pages, Some(SplitMix64::new(worker)));
        (0..WORKERS).map(vm).chain((0..WORKERS).map(io)).collect()
    }

    fn page_out(&self, page: u64, swap: &mut impl Swap) -> Result<(), Refusal> {
        swap.page_out(self.first + page, self.versions[page as usize])
    }

    fn page_in_and_write(&mut self, page: u64, swap: &mut impl Swap) -> Result<(), Refusal> {
        let version = &mut self.versions[page as usize];
        swap.page_in(self.first + page, *version)?;
        *version += 1;
        Ok(())
    }

    /// Pages everything out, as before the clock starts.
    fn fill(&self, swap: &mut impl Swap) -> Result<(), Refusal> {
        (0..self.versions.len() as u64).try_for_each(|page| self.page_out(page, swap))
    }

    /// One operation.
    fn operate(&mut self, swap: &mut impl Swap) -> Result<(), Refusal> {
        let pages = self.versions.len() as u64;
        if let Some(random) = &mut self.random {
            for page in [(); IO_PAGES].map(|()| random.next_word() % pages) {
                self.page_in_and_write(page, swap)?;
                self.page_out(page, swap)?;
            }
        } else {
            let page = self.steps % pages;
            self.page_in_and_write(page, swap)?;
            // Odd ones are replaced when they go out.
            if page.is_multiple_of(2) {
                swap.invalidate(self.first + page);
            }
            if let Some(behind) = self.steps.checked_sub(RESIDENT_PAGES) {
                self.page_out(behind % pages, swap)?;
            }
        }
        self.steps += 1;
        Ok(())
    }
}

fn run_one(spec: &RunSpec) -> Result<SwaploadRun, Refusal> {
    let zswap = ZswapOptions::bare()
        .zpool(ZpoolKind::Z3fold)
        .compressor(spec.compressor)
        .index(spec.index)
        .shards(spec.shards)
        .max_pool_bytes(spec.pages * PAGE_SIZE as u64)
        .counted(Counted::Pool) // as the kernel does
        .build()
        .expect("the command line has checked the ranges");
    let mut workers = Worker::all(spec.pages);
    workers.iter().try_for_each(|worker| worker.fill(&mut Store::new(&zswap)))?;

    let stop = AtomicBool::new(false);
    let start = Barrier::new(workers.len() + 1);
    let (mut index_operations, mut seconds, mut cpu_seconds) = (0, 0.0, 0.0);
    thread::scope(|scope| {
        let (zswap, stop, start) = (&zswap, &stop, &start);
        let spawn = |worker| scope.spawn(move || work(worker, zswap, stop, start));
        let threads: Vec<_> = workers.iter_mut().map(spawn).collect();
        start.wait();
        let (since, cpu_before) = (Instant::now(), cpu_time());
        thread::sleep(spec.time);
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            let panicked = |_| Refusal::Check("a worker panicked; see above".to_owned());
            index_operations += thread.join().map_err(panicked)??;
        }
        seconds = since.elapsed().as_secs_f64();
        let cpu = cpu_time();
        cpu_seconds = (cpu.user + cpu.sys - cpu_before.user - cpu_before.sys).as_secs_f64();
        Ok(())
    })?;
    let (vm, io) = workers.split_at(WORKERS as usize);
    let [vm, io] = [vm, io].map(|workers| workers.iter().map(|worker| worker.steps).sum::<u64>());
    Ok(SwaploadRun {
        io_per_second: io as f64 / seconds,
        vm_per_second: vm as f64 / seconds,
        index_per_second: index_operations as f64 / seconds,
        index_ns: index_ns(spec, vm / io.max(1))?,
        cpus_used: cpu_seconds / seconds,
    })
}

/// A thread of a worker; the operations of the index that it took.
fn work(
    worker: &mut Worker,
    zswap: &Zswap,
    stop: &AtomicBool,
    start: &Barrier,
) -> Result<u64, Refusal> {
    let mut store = Store::new(zswap);
    start.wait();
    // One at least, lest rates and their ratios have no meaning.
    loop {
        worker.operate(&mut store)?;
        if stop.load(Ordering::Relaxed) {
            return Ok(store.index_operations);
        }
    }
}

/// Nanoseconds an operation of the index alone: the same workers in turn, with `vm` vm-like
/// operations for each io-like one.
fn index_ns(spec: &RunSpec, vm: u64) -> Result<f64, Refusal> {
    let shards = (0..spec.shards).map(|_| spec.index.build()).collect();
    let mut alone = Alone { shards, operations: 0 };
    let mut workers = Worker::all(spec.pages);
    workers.iter().try_for_each(|worker| worker.fill(&mut alone))?;
    alone.operations = 0;
    let since = Instant::now();
    while alone.operations < PROBES {
        for worker in &mut workers {
            let times = if worker.random.is_some() { 1 } else { vm };
            for _ in 0..times {
                worker.operate(&mut alone)?;
            }
        }
    }
    Ok(since.elapsed().as_nanos() as f64 / alone.operations as f64)
}

/// A byte in all eight bytes of a word.
fn repeated(byte: u64) -> u64 {
    (byte & 0xff) * 0x0101_0101_0101_0101
}

/// The word at `place` of a page: one byte all over, bytes counting up, or a random byte.
fn pattern_word(key: u64, version: u32, place: u64) -> u64 {
    let seed = mix(key << 32 | u64::from(version));
    match key % 3 {
        0 => repeated(seed),
        1 => u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|n| (seed + place * 8 + n) as u8)),
        _ => repeated(mix(seed + place)),
    }
}

fn write_pattern(key: u64, version: u32, page: &mut Page) {
    for (place, word) in (0..).zip(page.as_chunks_mut::<8>().0) {
        *word = pattern_word(key, version, place).to_le_bytes();
    }
}

fn begins_with_pattern(key: u64, version: u32, page: &Page) -> bool {
    page[..8] == pattern_word(key, version, 0).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap::same_filled::SameFilled;

    #[test]
    fn patterns_are_what_they_are_said_to_be() {
        let mut page = [0; PAGE_SIZE];
        write_pattern(3, 7, &mut page);
        assert!(SameFilled::default().word(&page).is_some() && begins_with_pattern(3, 7, &page));
        write_pattern(4, 7, &mut page);
        assert!(page.windows(2).all(|pair| pair[0].wrapping_add(1) == pair[1]));
        write_pattern(5, 7, &mut page);
        assert!(page.chunks(8).all(|word| word == [word[0]; 8]) && page[0] != page[8]);
        assert!(begins_with_pattern(5, 7, &page) && !begins_with_pattern(5, 8, &page));
    }

    #[test]
    fn every_index_gets_through_a_short_run() {
        for (index, shards) in IndexKind::ALL.into_iter().flat_map(|kind| [(kind, 1), (kind, 64)]) {
            let spec = RunSpec {
                index,
                shards,
                compressor: CompressorKind::Lz4,
                pages: Swapload::PAGES_MIN,
                time: Duration::from_millis(20),
            };
            let run = run_one(&spec).unwrap_or_else(|refusal| panic!("{index}: {refusal:?}"));
            assert!(run.io_per_second > 0.0 && run.vm_per_second > 0.0, "{run:?}");
            assert!(run.index_share() > 0.0 && run.cpus_used > 0.0, "{run:?}");
            let run = run_one(&RunSpec { time: Duration::ZERO, ..spec })
                .unwrap_or_else(|refusal| panic!("{index}: {refusal:?}"));
            assert!(run.io_per_second > 0.0 && run.vm_per_second > 0.0, "no time: {run:?}");
        }
    }
}
