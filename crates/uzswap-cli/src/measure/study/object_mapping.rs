//! Cost of access to an object in two host pages: the kernel's zsmapbench in user space.
//!
//! One worker per processor, pinned, with pools of its own of three objects of 1632 bytes. A worker
//! maps and unmaps the third object, which crosses a page border, as often as it can. The methods
//! take turns in slices: a machine that slows down slows all of them, and all workers are at the
//! same one.

use std::fmt;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::{self, Scope};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Spread;
use crate::measure::child::ChildError;
use crate::measure::turns::{Cell, Progress, Study, StudyError, take_turns, wait};
use uzswap::by_name::by_name;
use uzswap::named_enum::named;
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

/// The purpose of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// To read.
    Ro,
    /// To write.
    Wo,
    /// To read and write.
    Rw,
}

named!(Mode, "mode", Ro => "RO", Wo => "WO", Rw => "RW");
by_name!(Mode);

const METHODS: [ObjectMapping; 3] =
    [ObjectMapping::Copy, ObjectMapping::Vm, ObjectMapping::Contiguous];

/// A method and a mode.
type Turn = (ObjectMapping, Mode);

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

/// An error of the machine, before any turn.
fn cannot(act: &str, error: &dyn fmt::Display) -> StudyError {
    StudyError::Machine { about: format!("cannot {act}"), message: error.to_string() }
}

/// What the study found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// What cycles are.
    pub cycles: String,
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectPlace {
    /// Of the object as it was asked for.
    pub bytes: usize,
    /// Of its slot.
    pub slot_bytes: usize,
    /// Bytes of the slot in each page.
    pub split: Vec<usize>,
}

/// One method with one mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Method {
    /// The way to the object.
    pub mapping: ObjectMapping,
    /// Its purpose.
    pub mode: Mode,
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Passed by all before a slice.
    line: Barrier,
    stop: AtomicBool,
}

/// The workers, and the time of a slice.
struct Slices<'a> {
    workers: Vec<WorkerThread>,
    signals: &'a Signals,
    time: Duration,
}

impl Study for Slices<'_> {
    type Variant = Turn;
    type Run = Vec<Slice>;

    fn rounds(&self) -> usize {
        ROUNDS
    }

    fn groups(&self) -> Vec<Vec<Turn>> {
        vec![METHODS.iter().flat_map(|&method| Mode::ALL.map(|mode| (method, mode))).collect()]
    }

    fn label(&self, (mapping, mode): &Turn) -> String {
        format!("{mapping} {mode}")
    }

    /// A slice of each worker.
    fn measure(&self, turn: &Turn, _round: usize) -> Result<Vec<Slice>, ChildError> {
        let Signals { line, stop } = self.signals;
        stop.store(false, Ordering::Relaxed);
        for worker in &self.workers {
            worker.turns.send(*turn).expect("a worker that is set up waits");
        }
        line.wait();
        wait(self.time);
        stop.store(true, Ordering::Relaxed);
        let slice = |worker: &WorkerThread| worker.slices.recv().expect("a worker counts");
        Ok(self.workers.iter().map(slice).collect())
    }
}

/// Does the study.
///
/// # Errors
///
/// A worker cannot be set up, or a signal came. No worker is left running.
pub fn measure(options: MapOptions, progress: Progress<'_>) -> Result<Findings, StudyError> {
    let mut cpus =
        cpus::allowed().map_err(|error| cannot("read the processors of this machine", &error))?;
    if options.single_threaded {
        cpus.truncate(1);
    }
    let signals = Signals { line: Barrier::new(cpus.len() + 1), stop: AtomicBool::new(false) };
    let cells = thread::scope(|scope| {
        let start = |&cpu| WorkerThread::start(scope, cpu, options.touch, &signals);
        let workers = cpus.iter().map(start).collect::<Result<_, StudyError>>()?;
        let time = options.time / ROUNDS as u32;
        take_turns(&Slices { workers, signals: &signals, time }, progress)
    })?;
    Ok(findings(options, &cpus, &cells))
}

/// A worker that is set up. Its thread ends once nobody has a turn for it.
struct WorkerThread {
    turns: Sender<Turn>,
    slices: Receiver<Slice>,
}

impl WorkerThread {
    fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        cpu: usize,
        touch: bool,
        signals: &'scope Signals,
    ) -> Result<WorkerThread, StudyError> {
        let (turns, asked) = channel();
        let (answer, slices) = channel();
        let (tell, told) = channel();
        let work = move || {
            let pools = match Pools::set_up(cpu) {
                Ok(pools) => pools,
                Err(error) => return drop(tell.send(Err(error))),
            };
            // A study that is given up hears neither.
            let _ = tell.send(Ok(()));
            for turn in asked {
                signals.line.wait();
                let _ = answer.send(pools.slice(turn, touch, &signals.stop));
            }
        };
        let started = thread::Builder::new().spawn_scoped(scope, work);
        started.map_err(|error| cannot("start a worker", &error))?;
        told.recv().expect("a worker tells before it ends")?;
        Ok(WorkerThread { turns, slices })
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
    fn set_up(cpu: usize) -> Result<Pools, StudyError> {
        cpus::pin_to(cpu)
            .map_err(|error| cannot(&format!("pin a worker to processor {cpu}"), &error))?;
        let pools = || {
            Ok(Pools { copy: Subject::new()?, vm: Subject::new()?, contiguous: Subject::new()? })
        };
        pools().map_err(|error: ZpoolError| {
            cannot(&format!("store three objects of {OBJECT_BYTES} bytes"), &error)
        })
    }

    /// Takes part in a slice.
    fn slice(&self, (mapping, mode): Turn, touch: bool, stop: &AtomicBool) -> Slice {
        match mapping {
            ObjectMapping::Copy => self.copy.slice(mode, touch, stop),
            ObjectMapping::Vm => self.vm.slice(mode, touch, stop),
            ObjectMapping::Contiguous => self.contiguous.slice(mode, touch, stop),
        }
    }
}

impl<P: ZspagePages> Subject<P> {
    fn new() -> Result<Subject<P>, ZpoolError> {
        let pool = Zsmalloc::new(Arc::new(Arena::new()), ZsmallocOptions::default());
        let mut third = None;
        for n in 0..OBJECTS {
            third = Some(pool.insert(&[n as u8; OBJECT_BYTES])?);
        }
        let third = third.expect("there are three objects");
        assert_eq!(pool.crosses_pages(third), Ok(true), "the third object is in two pages");
        Ok(Subject { pool, third })
    }

    /// Maps and unmaps the object until the slice ends.
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
fn findings(options: MapOptions, cpus: &[usize], cells: &[Cell<Turn, Vec<Slice>>]) -> Findings {
    let seconds = options.time.as_secs_f64();
    let costs = |cell: &Cell<Turn, Vec<Slice>>| -> Vec<f64> {
        cell.runs.iter().flatten().map(|slice| slice.cycles_per_map()).collect()
    };
    let method = |cell: &Cell<Turn, Vec<Slice>>| {
        let (mapping, mode) = cell.variant;
        let of = |(place, &cpu)| Worker::of(cpu, cell.runs.iter().map(|slices| slices[place]));
        let workers: Vec<Worker> = cpus.iter().enumerate().map(of).collect();
        let copy = cells.iter().find(|other| other.variant == (ObjectMapping::Copy, mode));
        let mappings: u64 = workers.iter().map(|worker| worker.mappings).sum();
        Method {
            mapping,
            mode,
            workers,
            mappings_per_second: mappings as f64 / seconds,
            cycles_per_map: Spread::of(&costs(cell)),
            over_copy: Spread::of_ratios(
                &costs(cell),
                &costs(copy.expect("each mode has a turn with each method")),
            ),
        }
    };
    Findings {
        cycles: cycles::UNIT.to_owned(),
        cpus: cpus.to_vec(),
        touch: options.touch,
        seconds,
        rounds: ROUNDS,
        object: ObjectPlace::of_third(),
        methods: cells.iter().map(method).collect(),
    }
}

impl Worker {
    /// Of its slices, round by round.
    fn of(cpu: usize, slices: impl Iterator<Item = Slice> + Clone) -> Worker {
        let costs: Vec<f64> = slices.clone().map(Slice::cycles_per_map).collect();
        Worker {
            cpu,
            cycles: slices.clone().map(|slice| slice.cycles).sum(),
            mappings: slices.map(|slice| slice.mappings).sum(),
            cycles_per_map: Spread::of(&costs),
            cycles_per_map_by_round: costs,
        }
    }
}

impl ObjectPlace {
    /// Of the third object of a pool: the third slot of its first zspage.
    fn of_third() -> ObjectPlace {
        let table = ClassTable::new(ZsmallocOptions::default());
        let slot_bytes = table.class_of(OBJECT_BYTES).slot_bytes;
        let first = PAGE_SIZE - (OBJECTS - 1) * slot_bytes % PAGE_SIZE;
        ObjectPlace { bytes: OBJECT_BYTES, slot_bytes, split: vec![first, slot_bytes - first] }
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
        let turns = METHODS.iter().flat_map(|&method| Mode::ALL.map(|mode| (method, mode)));
        let cell = |(t, variant)| Cell {
            variant,
            runs: (0..ROUNDS as u64).map(|r| vec![slice(0, r, t), slice(40, r, t)]).collect(),
        };
        let cells: Vec<_> = (0..).zip(turns).map(cell).collect();
        let time = Duration::from_secs(2);
        let options = MapOptions { single_threaded: false, touch: false, time };
        let findings = findings(options, &[3, 5], &cells);
        let last = &findings.methods[8];
        assert_eq!((last.mapping, last.mode), (ObjectMapping::Contiguous, Mode::Rw));
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
        assert_eq!((second.mapping, second.mode), (ObjectMapping::Copy, Mode::Wo));
        assert_eq!(findings.object.split, [736, 944]);
    }
}
