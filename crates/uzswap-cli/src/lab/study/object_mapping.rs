//! Cost of access to an object in two host pages: the kernel's zsmapbench in user space.
//!
//! One worker per processor, pinned, with pools of its own of three objects of 1632 bytes. A worker
//! maps and unmaps the third object, which crosses a page border, as often as it can. The methods
//! take turns in slices: a machine that slows down slows all of them, and all workers are at the
//! same one.

use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use super::Spread;
use uzswap::page::PAGE_SIZE;
use uzswap::zpool::zsmalloc::{
    ClassTable, Contiguous, CopiedPages, MappedPages, ObjectMapping, WriteMode, Zsmalloc,
    ZsmallocOptions, ZspagePages,
};
use uzswap::zpool::{Arena, Handle, Zpool, ZpoolError};
use uzswap_sys::{cpus, cycles};

/// Bytes of an object, as in the original: two fifths of a page.
pub const OBJECT_BYTES: usize = 1632;

/// Objects of a pool; the last is the one that is mapped.
pub const OBJECTS: usize = 3;

/// Slices that the time of each method is cut into.
pub const ROUNDS: usize = 10;

/// What the object is mapped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Ro,
    Wo,
    Rw,
}

const METHODS: [ObjectMapping; 3] =
    [ObjectMapping::Copy, ObjectMapping::Vm, ObjectMapping::Contiguous];
const MODES: [(Mode, &str); 3] = [(Mode::Ro, "RO"), (Mode::Wo, "WO"), (Mode::Rw, "RW")];

/// How the study is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MapOptions {
    /// On the first processor alone.
    pub single_threaded: bool,
    /// Read and write the bytes too.
    pub touch: bool,
    /// For each method and mode.
    pub time: Duration,
}

/// Why the study was not done.
#[derive(Debug, Error)]
pub enum MapError {
    /// The kernel does not say which processors there are.
    #[error("cannot read the processors of this machine")]
    Cpus(#[source] io::Error),
    /// A worker cannot be kept on its processor.
    #[error("cannot pin a worker to processor {cpu}")]
    Pin {
        /// The processor.
        cpu: usize,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// No worker.
    #[error("cannot start a worker")]
    Thread(#[source] io::Error),
    /// No pool.
    #[error("cannot store three objects of {OBJECT_BYTES} bytes")]
    Pool(#[from] ZpoolError),
}

/// What the study found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Findings {
    /// What cycles are.
    pub cycles: &'static str,
    /// The processors of the workers, each pinned to its own.
    pub cpus: Vec<usize>,
    /// Whether bytes were read and written.
    pub touch: bool,
    /// Seconds for each method and mode.
    pub seconds: f64,
    /// Slices that they were cut into.
    pub rounds: usize,
    /// Where the object is.
    pub object: ObjectPlace,
    /// Each method with each mode.
    pub methods: Vec<Method>,
}

/// Where the mapped object is in its zspage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ObjectPlace {
    /// Of the object as it was asked for.
    pub bytes: usize,
    /// Of its slot.
    pub slot_bytes: usize,
    /// Bytes of the slot in the first page and in the second one.
    pub split: [usize; 2],
}

/// One method with one mode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Method {
    /// The way to the object.
    #[serde(serialize_with = "name")]
    pub mapping: ObjectMapping,
    /// RO, WO or RW.
    pub mode: &'static str,
    /// One a worker.
    pub workers: Vec<Worker>,
    /// Of all workers together: mappings a second, by round.
    pub mappings_per_second: f64,
    /// Of all workers and rounds.
    pub cycles_per_map: Spread,
    /// These cycles over those of `copy` in this mode, worker by worker and round by round.
    pub over_copy: Spread,
}

/// What one worker counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Worker {
    /// Its processor.
    pub cpu: usize,
    /// In all rounds.
    pub cycles: u64,
    /// In all rounds.
    pub mappings: u64,
    /// Of its rounds.
    pub cycles_per_map: Spread,
    /// Round by round.
    pub cycles_per_map_by_round: Vec<f64>,
}

fn name<S: serde::Serializer>(mapping: &ObjectMapping, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(mapping)
}

/// One slice of one worker.
#[derive(Debug, Clone, Copy, Default)]
struct Slice {
    cycles: u64,
    mappings: u64,
}

impl Slice {
    fn cycles_per_map(self) -> f64 {
        self.cycles as f64 / self.mappings as f64
    }
}

/// State that the workers share with the timing thread.
struct Signals {
    /// Passed by all before a slice and after it.
    line: Barrier,
    stop: AtomicBool,
}

/// Does the study.
///
/// # Errors
///
/// [`MapError`]; no worker is left running.
pub fn measure(options: MapOptions) -> Result<Findings, MapError> {
    let mut cpus = cpus::allowed().map_err(MapError::Cpus)?;
    if options.single_threaded {
        cpus.truncate(1);
    }
    let signals = Signals { line: Barrier::new(cpus.len() + 1), stop: AtomicBool::new(false) };
    let by_worker = thread::scope(|scope| -> Result<Vec<Vec<Slice>>, MapError> {
        let mut workers = Vec::new();
        for &cpu in &cpus {
            let signals = &signals;
            let (tell, told) = channel();
            let (start, is_started) = channel();
            let worker = move || {
                let pools = match Pools::set_up(cpu) {
                    Ok(pools) => pools,
                    Err(error) => return tell.send(Err(error)).map(|()| Vec::new()).ok(),
                };
                tell.send(Ok(())).ok()?;
                // Where another worker cannot be set up, nobody starts.
                is_started.recv().ok()?;
                Some(pools.work(signals, options.touch))
            };
            let worker =
                thread::Builder::new().spawn_scoped(scope, worker).map_err(MapError::Thread)?;
            told.recv().expect("a worker tells before it ends")?;
            workers.push((start, worker));
        }
        for (start, _) in &workers {
            start.send(()).expect("a worker that is set up waits");
        }
        time(&signals, options.time);
        let join = |worker: thread::ScopedJoinHandle<'_, Option<Vec<Slice>>>| {
            worker.join().ok().flatten().expect("a worker that was started counts")
        };
        Ok(workers.into_iter().map(|(_, worker)| join(worker)).collect())
    })?;
    Ok(findings(options, &cpus, &by_worker))
}

/// The slices of a round, in their order.
fn turns() -> impl Iterator<Item = (ObjectMapping, Mode, &'static str)> {
    METHODS.into_iter().flat_map(|mapping| MODES.map(|(mode, name)| (mapping, mode, name)))
}

/// Starts and ends the slices.
fn time(signals: &Signals, time: Duration) {
    let slice = time / ROUNDS as u32;
    for _ in 0..ROUNDS * turns().count() {
        signals.stop.store(false, Ordering::Relaxed);
        signals.line.wait();
        thread::sleep(slice);
        signals.stop.store(true, Ordering::Relaxed);
        signals.line.wait();
    }
}

/// A pool and the object in it that is mapped.
struct Subject<P: ZspagePages> {
    pool: Zsmalloc<P>,
    third: Handle,
}

/// State of a worker: a pool for each method.
struct Pools {
    copy: Subject<CopiedPages>,
    vm: Subject<MappedPages>,
    contiguous: Subject<Contiguous>,
}

impl Pools {
    /// Pins this thread and makes the pools.
    fn set_up(cpu: usize) -> Result<Pools, MapError> {
        cpus::pin_to(cpu).map_err(|source| MapError::Pin { cpu, source })?;
        Ok(Pools { copy: Subject::new()?, vm: Subject::new()?, contiguous: Subject::new()? })
    }

    /// Takes part in all slices.
    fn work(&self, signals: &Signals, touch: bool) -> Vec<Slice> {
        let mut slices = Vec::new();
        for _ in 0..ROUNDS {
            for (mapping, mode, _) in turns() {
                signals.line.wait();
                slices.push(match mapping {
                    ObjectMapping::Copy => self.copy.slice(mode, touch, &signals.stop),
                    ObjectMapping::Vm => self.vm.slice(mode, touch, &signals.stop),
                    ObjectMapping::Contiguous => self.contiguous.slice(mode, touch, &signals.stop),
                });
                signals.line.wait();
            }
        }
        slices
    }
}

impl<P: ZspagePages> Subject<P> {
    fn new() -> Result<Subject<P>, MapError> {
        let pool = Zsmalloc::new(Arc::new(Arena::new()), ZsmallocOptions::default());
        let mut third = None;
        for n in 0..OBJECTS {
            third = Some(pool.insert(&[n as u8; OBJECT_BYTES])?);
        }
        let third = third.expect("there are three objects");
        assert_eq!(pool.crosses_pages(third), Ok(true), "the third object is in two pages");
        Ok(Subject { pool, third })
    }

    /// Maps and unmaps the object until the study ends.
    fn slice(&self, mode: Mode, touch: bool, stop: &AtomicBool) -> Slice {
        match (mode, touch) {
            (Mode::Ro, false) => self.read(stop, ignore),
            (Mode::Ro, true) => self.read(stop, sum),
            (Mode::Wo, false) => self.write(WriteMode::WriteOnly, stop, |slot| ignore(slot)),
            (Mode::Wo, true) => self.write(WriteMode::WriteOnly, stop, fill),
            (Mode::Rw, false) => self.write(WriteMode::ReadWrite, stop, |slot| ignore(slot)),
            (Mode::Rw, true) => self.write(WriteMode::ReadWrite, stop, change),
        }
    }

    fn read(&self, stop: &AtomicBool, access: impl Fn(&[u8])) -> Slice {
        repeat(stop, || {
            let found = self.pool.read(self.third, |slot| access(slot));
            found.expect("nobody removes the object");
        })
    }

    fn write(&self, mode: WriteMode, stop: &AtomicBool, access: impl Fn(&mut [u8])) -> Slice {
        repeat(stop, || {
            let found = self.pool.write(self.third, mode, |slot| access(slot));
            found.expect("nobody removes the object");
        })
    }
}

/// Counts and times one mapping after another.
fn repeat(stop: &AtomicBool, map: impl Fn()) -> Slice {
    let start = cycles::now();
    let mut mappings = 0;
    loop {
        map();
        mappings += 1;
        if stop.load(Ordering::Relaxed) {
            return Slice { cycles: cycles::now() - start, mappings };
        }
    }
}

/// Touches nothing; for all the compiler knows, it may read every byte, so that none is left
/// uncopied.
#[inline]
fn ignore(slot: &[u8]) {
    black_box(slot);
}

/// Reads every byte.
#[inline]
fn sum(slot: &[u8]) {
    let words = slot[..OBJECT_BYTES].as_chunks::<8>().0.iter();
    black_box(words.fold(0, |sum: u64, word| sum.wrapping_add(u64::from_ne_bytes(*word))));
}

/// Writes every byte.
#[inline]
fn fill(slot: &mut [u8]) {
    slot[..OBJECT_BYTES].fill(black_box(0x5a));
    black_box(slot);
}

/// Reads and writes every byte.
#[inline]
fn change(slot: &mut [u8]) {
    for word in slot[..OBJECT_BYTES].as_chunks_mut::<8>().0 {
        *word = u64::from_ne_bytes(*word).wrapping_add(1).to_ne_bytes();
    }
    black_box(slot);
}

/// Puts the slices of all workers in order.
fn findings(options: MapOptions, cpus: &[usize], by_worker: &[Vec<Slice>]) -> Findings {
    let turn_count = turns().count();
    // Of a turn: a worker's slices, one a round.
    let slices = |worker: usize, turn: usize| -> Vec<Slice> {
        by_worker[worker].iter().copied().skip(turn).step_by(turn_count).collect()
    };
    let costs = |worker: usize, turn: usize| -> Vec<f64> {
        slices(worker, turn).into_iter().map(Slice::cycles_per_map).collect()
    };
    let method = |(turn, (mapping, _, mode)): (usize, (ObjectMapping, Mode, &'static str))| {
        let worker = |(worker, &cpu): (usize, &usize)| {
            let (slices, costs) = (slices(worker, turn), costs(worker, turn));
            Worker {
                cpu,
                cycles: slices.iter().map(|slice| slice.cycles).sum(),
                mappings: slices.iter().map(|slice| slice.mappings).sum(),
                cycles_per_map: Spread::of(&costs),
                cycles_per_map_by_round: costs,
            }
        };
        let workers: Vec<Worker> = cpus.iter().enumerate().map(worker).collect();
        // `copy` has the first turns, in the same order of modes.
        let against = |worker: usize| {
            let (copy, this) = (costs(worker, turn % MODES.len()), costs(worker, turn));
            copy.into_iter().zip(this).map(|(copy, this)| this / copy).collect::<Vec<f64>>()
        };
        let all: Vec<f64> = (0..cpus.len()).flat_map(|worker| costs(worker, turn)).collect();
        let ratios: Vec<f64> = (0..cpus.len()).flat_map(against).collect();
        let mappings: u64 = workers.iter().map(|worker| worker.mappings).sum();
        Method {
            mapping,
            mode,
            workers,
            mappings_per_second: mappings as f64 / options.time.as_secs_f64(),
            cycles_per_map: Spread::of(&all),
            over_copy: Spread::of(&ratios),
        }
    };
    Findings {
        cycles: cycles::UNIT,
        cpus: cpus.to_vec(),
        touch: options.touch,
        seconds: options.time.as_secs_f64(),
        rounds: ROUNDS,
        object: ObjectPlace::of_third(),
        methods: turns().enumerate().map(method).collect(),
    }
}

impl ObjectPlace {
    /// Of the third object of a pool: the third slot of its first zspage.
    fn of_third() -> ObjectPlace {
        let table = ClassTable::new(ZsmallocOptions::default());
        let slot_bytes = table.class_of(OBJECT_BYTES).slot_bytes;
        let first = PAGE_SIZE - (OBJECTS - 1) * slot_bytes % PAGE_SIZE;
        ObjectPlace { bytes: OBJECT_BYTES, slot_bytes, split: [first, slot_bytes - first] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_sorted_by_method_mode_worker_and_round() {
        // Worker w, round r, turn t: (t + 1) * 10 mappings of 100 + w + r cycles.
        let slice = |w: u64, r: u64, t: u64| Slice {
            cycles: (t + 1) * 10 * (100 + w + r),
            mappings: (t + 1) * 10,
        };
        let worker =
            |w| (0..ROUNDS as u64).flat_map(|r| (0..9).map(move |t| slice(w, r, t))).collect();
        let time = Duration::from_secs(2);
        let options = MapOptions { single_threaded: false, touch: false, time };
        let findings = findings(options, &[3, 5], &[worker(0), worker(40)]);
        let last = &findings.methods[8];
        assert_eq!((last.mapping, last.mode), (ObjectMapping::Contiguous, "RW"));
        assert_eq!((last.workers[1].cpu, last.workers[1].mappings), (5, 900));
        assert_eq!(last.workers[1].cycles_per_map_by_round[9], 149.0);
        assert_eq!(
            last.workers[0].cycles_per_map,
            Spread { median: 104.5, min: 100.0, max: 109.0 }
        );
        assert_eq!((last.cycles_per_map.min, last.cycles_per_map.max), (100.0, 149.0));
        assert_eq!(last.mappings_per_second, 900.0);
        assert_eq!(last.over_copy, Spread { median: 1.0, min: 1.0, max: 1.0 });
        let second = &findings.methods[1];
        assert_eq!((second.mapping, second.mode), (ObjectMapping::Copy, "WO"));
        assert_eq!(findings.object.split, [736, 944]);
    }
}
