//! The simulated world: doubles of the store's parts that fail as real ones do, and worse.

mod compressor;
mod disk;
mod file;
mod index;
mod pool;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) use compressor::LyingCompressor;
pub(super) use disk::Disk;
pub(super) use file::SnapshotFile;
pub(super) use index::FailingIndex;
pub(super) use pool::RottingPool;

use super::faults::{FAULTS, Fault, Struck};
use super::planted_bugs::PlantedBug;
use uzswap::random::mix;

/// Where in an operation another thread gets its turn, and so what it may do there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Point {
    /// No lock is held: anything.
    Free,
    /// Pages are being written: nothing that writes.
    Writing,
    /// An object is pinned: nothing that needs the pool, but to free something at its end.
    Pinned,
}

/// What the other thread says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The operation may have to wait for the pool.
    Waiting,
    /// The operation is over.
    Over,
}

/// The way to the other thread, which works in turn with this one, so that its operations come at
/// the same points each time.
#[derive(Debug)]
pub(super) struct Meanwhile {
    pub(super) jobs: SyncSender<Point>,
    pub(super) turns: Receiver<Turn>,
}

/// An operation that takes longer will never end.
const STUCK: Duration = Duration::from_secs(60);

/// What all doubles share.
#[derive(Debug)]
pub(super) struct World {
    seed: u64,
    /// One in so many, by fault; 0 is never.
    rates: [u32; FAULTS],
    fired: [AtomicU64; FAULTS],
    drawn: AtomicU64,
    calm: AtomicBool,
    /// Threads are interleaved by chance, not in turn.
    crowded: bool,
    busy: AtomicBool,
    pending: AtomicBool,
    meanwhile: Mutex<Option<Meanwhile>>,
    violation: Mutex<Option<String>>,
    pub(super) plant: Option<PlantedBug>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(super) fn new(
        seed: u64,
        rates: [u32; FAULTS],
        crowded: bool,
        plant: Option<PlantedBug>,
    ) -> World {
        World {
            seed: mix(seed),
            rates,
            fired: [const { AtomicU64::new(0) }; FAULTS],
            drawn: AtomicU64::new(0),
            calm: AtomicBool::new(false),
            crowded,
            busy: AtomicBool::new(false),
            pending: AtomicBool::new(false),
            meanwhile: Mutex::new(None),
            violation: Mutex::new(None),
            plant,
        }
    }

    /// A number of the world's own stream.
    pub(super) fn draw(&self) -> u64 {
        mix(self.seed.wrapping_add(self.drawn.fetch_add(1, Ordering::Relaxed)))
    }

    /// Whether the fault can come at all.
    pub(super) fn has(&self, fault: Fault) -> bool {
        self.rates[fault.number()] > 0
    }

    /// Whether the fault comes now.
    pub(super) fn strikes(&self, fault: Fault) -> bool {
        let rate = u64::from(self.rates[fault.number()]);
        if rate == 0 || self.calm.load(Ordering::Relaxed) || !self.draw().is_multiple_of(rate) {
            return false;
        }
        self.note(fault);
        true
    }

    /// Counts a fault that came.
    pub(super) fn note(&self, fault: Fault) {
        self.fired[fault.number()].fetch_add(1, Ordering::Relaxed);
        Struck::note(fault);
    }

    pub(super) fn fired(&self, fault: Fault) -> u64 {
        self.fired[fault.number()].load(Ordering::Relaxed)
    }

    pub(super) fn is_planted(&self, plant: PlantedBug) -> bool {
        self.plant == Some(plant)
    }

    /// From now on nothing fails any more.
    pub(super) fn calm_down(&self) {
        self.calm.store(true, Ordering::Relaxed);
    }

    /// Does something while nothing fails.
    pub(super) fn calmly<T>(&self, work: impl FnOnce() -> T) -> T {
        let was_calm = self.calm.swap(true, Ordering::Relaxed);
        let done = work();
        self.calm.store(was_calm, Ordering::Relaxed);
        done
    }

    /// Does something while the other thread gets no turn.
    pub(super) fn alone<T>(&self, work: impl FnOnce() -> T) -> T {
        let was_busy = self.busy.swap(true, Ordering::Relaxed);
        let done = work();
        self.busy.store(was_busy, Ordering::Relaxed);
        done
    }

    pub(super) fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    /// Notes that the store did what it never may.
    pub(super) fn violated(&self, what: impl FnOnce() -> String) {
        lock(&self.violation).get_or_insert_with(what);
    }

    pub(super) fn take_violation(&self) -> Option<String> {
        lock(&self.violation).take()
    }

    /// Lets another thread have its turn here.
    pub(super) fn happen(&self, point: Point) {
        if self.crowded {
            if self.strikes(Fault::Meanwhile) {
                std::thread::yield_now();
            }
            return;
        }
        if self.busy.load(Ordering::Relaxed) || !self.strikes(Fault::Meanwhile) {
            return;
        }
        let meanwhile = lock(&self.meanwhile);
        let Some(other) = &*meanwhile else { return };
        self.busy.store(true, Ordering::Relaxed);
        let sent = other.jobs.send(point);
        let turn = sent.ok().and_then(|()| other.turns.recv_timeout(STUCK).ok());
        if turn.is_none() {
            self.violated(|| format!("an operation at a {point:?} point does not end"));
        }
        match turn {
            Some(Turn::Waiting) => self.pending.store(true, Ordering::Relaxed),
            _ => self.busy.store(false, Ordering::Relaxed),
        }
    }

    /// Waits for the end of what [`World::happen`] began.
    pub(super) fn settle(&self) {
        if self.pending.load(Ordering::Relaxed) && !is_other() {
            if let Some(other) = &*lock(&self.meanwhile) {
                let _ = other.turns.recv_timeout(STUCK); // it has gone: that is found elsewhere
            }
            self.pending.store(false, Ordering::Relaxed);
            self.busy.store(false, Ordering::Relaxed);
        }
    }

    pub(super) fn connect(&self, other: Option<Meanwhile>) {
        *lock(&self.meanwhile) = other;
    }

    /// Takes its time, if that is what happens now.
    fn delay(&self) {
        if self.strikes(Fault::Delay) && self.crowded {
            std::thread::sleep(Duration::from_micros(self.draw() % 64));
        }
    }
}

thread_local! {
    static WAITING: RefCell<Option<SyncSender<Turn>>> = const { RefCell::new(None) };
    static OTHER: Cell<bool> = const { Cell::new(false) };
    static PINNED: Cell<bool> = const { Cell::new(false) };
}

/// Sets the callback for the next time this thread comes to the pool, with no lock held.
pub(super) fn tell_when_waiting(to: Option<SyncSender<Turn>>) {
    WAITING.set(to);
}

fn note_waiting() {
    if let Some(to) = WAITING.take() {
        let _ = to.send(Turn::Waiting); // nobody listens any more
    }
}

/// Whether this thread is reading an object in the pool.
fn is_pinned() -> bool {
    PINNED.get()
}

fn set_pinned(pinned: bool) {
    PINNED.set(pinned);
}

/// This is the thread that works in between.
pub(super) fn become_other() {
    OTHER.set(true);
}

fn is_other() -> bool {
    OTHER.get()
}
