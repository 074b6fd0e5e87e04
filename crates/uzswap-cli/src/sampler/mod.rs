//! Samples processes over time, for the tables of a fleet.
//!
//! ```text
//!  each interval   touched pages, faults, time   --> ages    --> table intervals
//!  each cycle      some pages of each process    --> lengths --> table pages
//!  each save       how it goes                               --> table runs
//! ```
//!
//! The kernel counts a page as touched when we read it. So pages are read where a cycle ends, just
//! before the accessed bits are cleared.
//!
//! - V1: no byte of a page, no name, no PID and no address is in a table.
//! - V2: after each step the sample waits until its processor time is within its share.
//! - V3: the files of a killed sample lack the intervals since its last save, and no others.

mod ages;
mod facts;
mod pace;
mod pages;
mod parts;
mod salt;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::rand::{GetRandomFlags, getrandom};
use thiserror::Error;

pub use ages::AGES;
pub use salt::Salt;

use crate::corpus::capture::{
    CaptureError, clear_touches, processes_of_system, processes_of_tree, touches, visit,
};
use crate::corpus::sample::{SamplePlan, UNIT_PAGES, UNITS_MIN};
use ages::{Ages, CYCLE};
use facts::{Counters, MachineFacts, ProcessFacts};
use pace::{Pace, cpu_time};
use pages::{Ids, PageTable};
use parts::Parts;
use salt::Of;
use uzswap_fleet::Saving;
use uzswap_fleet::folder::FolderError;
use uzswap_fleet::table::{IntervalRow, Micros, RunRow};
use uzswap_sys::interrupt;

/// A page that is read, compressed three times and hashed: some 40 us on a processor of 2020.
const PAGE_TIME: Duration = Duration::from_micros(50);

/// The most pages of a sample: 1 GiB of them.
const PAGES_MAX: u64 = 1 << 18;

/// Notes that are kept: a machine has many processes that end.
const NOTES_MAX: usize = 20;

/// Whose memory is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// All processes that this user may read.
    System,
    /// One process.
    Process(i32),
    /// One process and those below it.
    Tree(i32),
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Target::System => "system",
            Target::Process(_) => "process",
            Target::Tree(_) => "tree",
        }
    }

    /// The processes now, and how many others this user may not read.
    fn pids(self) -> Result<(Vec<i32>, u64), CaptureError> {
        match self {
            Target::System => Ok(processes_of_system()),
            Target::Process(pid) => Ok((processes_of_tree(pid, false)?, 0)),
            Target::Tree(pid) => Ok((processes_of_tree(pid, true)?, 0)),
        }
    }
}

/// What to sample, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Whose memory.
    pub target: Target,
    /// Time between two readings.
    pub interval: Duration,
    /// How many intervals, at least 1.
    pub intervals: u64,
    /// Time between two saves, at least; a killed sample loses no more, and its last interval.
    pub save_every: Duration,
    /// The most processor time, as a share of one processor.
    pub share: f64,
    /// Seed of the choice of pages.
    pub seed: u64,
}

/// A process of a sample, for the eyes of its user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampledProcess {
    /// Its PID.
    pub pid: i32,
    /// The name of its program.
    pub name: String,
    /// Its hash in the tables.
    pub process: u64,
    /// The hash of its name there.
    pub job: u64,
    /// Resident anonymous pages at its last reading.
    pub resident_pages: u64,
    /// Pages touched in an interval; none where that is unknown.
    pub working_set_pages: Option<u64>,
    /// Pages of it that were sampled.
    pub sampled_pages: u64,
    /// Savings of these pages by lz4, lzo-rle and zstd; without any, of all sampled pages.
    pub savings: [Saving; 3],
}

/// A sample that was taken and written.
#[derive(Debug)]
pub struct Sampled {
    /// How it was taken.
    pub run: RunRow,
    /// The files of its tables.
    pub files: Vec<PathBuf>,
    /// The processes that were there at the end, the largest first.
    pub processes: Vec<SampledProcess>,
    /// Notes for a reader of the figures: the run's, then the notes that name processes.
    pub notes: Vec<String>,
}

/// Why a sample was not taken, or ended early.
#[derive(Debug, Error)]
pub enum SampleError {
    /// The target is not there or may not be read.
    #[error(transparent)]
    Target(#[from] CaptureError),
    /// A file was not written. Those that were written before stay.
    #[error(transparent)]
    Write(#[from] FolderError),
}

/// A process that is watched.
struct Watched {
    started: u64,
    ids: Ids,
    name: String,
    /// `None` where the kernel does not count touches, or not for us.
    ages: Option<Ages>,
    counters: Counters,
    read_at: Duration,
    resident_pages: u64,
}

/// Takes a sample, and writes its files to a folder as it goes. A signal that [`interrupt::watch`]
/// notes ends it early, with all tables. `progress` is called with the number of each interval that
/// is over.
///
/// # Errors
///
/// [`SampleError`].
pub fn take(
    plan: &Plan,
    salt: &Salt,
    folder: &Path,
    progress: impl FnMut(u64),
) -> Result<Sampled, SampleError> {
    let mut sampler = Sampler::new(plan, salt, folder);
    sampler.watch(progress)?;
    sampler.finish()
}

struct Sampler<'a> {
    plan: &'a Plan,
    salt: &'a Salt,
    pace: Pace,
    run: RunRow,
    watched: HashMap<i32, Watched>,
    /// The last processes, the largest first.
    pids: Vec<i32>,
    machine: (MachineFacts, Duration),
    parts: Parts<'a>,
    /// Of each process, by the pages that were read last.
    savings: HashMap<u64, [Saving; 3]>,
    /// For the table, and for the user alone: the table has no PIDs.
    notes: [Vec<String>; 2],
}

impl<'a> Sampler<'a> {
    fn new(plan: &'a Plan, salt: &'a Salt, folder: &'a Path) -> Sampler<'a> {
        let mut run = [0; 8];
        // Its own hash keeps two samples apart where the kernel has no random bytes yet.
        let _ = getrandom(&mut run, GetRandomFlags::empty());
        let run = RunRow {
            run: u64::from_le_bytes(run),
            host: salt.hash(Of::Host, b""),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: now(),
            ended_by: "nothing".to_owned(),
            target: plan.target.name().to_owned(),
            interval_seconds: plan.interval.as_secs_f64(),
            budget_percent: plan.share * 100.0,
            age_source: "unknown".to_owned(),
            memory_bytes: MachineFacts::now().memory_bytes,
            ..RunRow::default()
        };
        Sampler {
            plan,
            salt,
            pace: Pace::new(plan.share),
            parts: Parts::new(folder, run.run),
            run,
            watched: HashMap::new(),
            pids: Vec::new(),
            machine: (MachineFacts::default(), Duration::ZERO),
            savings: HashMap::new(),
            notes: [Vec::new(), Vec::new()],
        }
    }

    /// Reads the processes at the end of each interval, until something ends the sample.
    fn watch(&mut self, mut progress: impl FnMut(u64)) -> Result<(), SampleError> {
        self.turn(None)?;
        self.read_pages(self.pages_max());
        // Again, as the counters are those of a minute ago where the budget is small.
        if let Err(error) = self.turn(None) {
            self.lose_target(&error);
            return Ok(());
        }
        self.clear_all();
        self.save()?;
        let (begun, mut saved) = (self.pace.elapsed(), self.pace.elapsed());
        for number in 1..=self.plan.intervals {
            let intervals = u32::try_from(number).unwrap_or(u32::MAX);
            self.pace.wait_until(begun + self.plan.interval.saturating_mul(intervals));
            if interrupt::noted() {
                self.note("a signal ended it early".to_owned());
                "signal".clone_into(&mut self.run.ended_by);
                return Ok(());
            }
            if let Err(error) = self.turn(Some(number - 1)) {
                self.lose_target(&error);
                return Ok(());
            }
            self.run.intervals = number;
            progress(number);
            if number % CYCLE == 0 && number < self.plan.intervals {
                // Only what is paid for: until the bits are cleared, no touch is counted.
                if self.has_paid_pages() {
                    self.read_pages(self.pages_max());
                }
                self.clear_all();
            }
            if self.pace.elapsed() - saved >= self.plan.save_every {
                self.save()?;
                saved = self.pace.elapsed();
            }
        }
        "plan".clone_into(&mut self.run.ended_by);
        Ok(())
    }

    fn lose_target(&mut self, error: &CaptureError) {
        self.note("its target ended early".to_owned());
        self.tell(error.to_string());
        "target".clone_into(&mut self.run.ended_by);
    }

    /// Reads all processes, at the end of an interval or before the first.
    fn turn(&mut self, interval: Option<u64>) -> Result<(), CaptureError> {
        let (pids, unreadable) = self.plan.target.pids()?;
        self.run.unreadable_processes = unreadable;
        let mut there: HashMap<i32, Watched> = HashMap::new();
        for &pid in &pids {
            let Some(facts) = ProcessFacts::of(pid) else { continue };
            let before = self.watched.remove(&pid).filter(|it| it.started == facts.started);
            let watched = match (before, interval) {
                (Some(before), Some(interval)) => self.read(pid, before, facts, interval),
                (None, Some(_)) => {
                    self.run.processes += 1;
                    let mut it = self.begin(pid, facts);
                    self.clear(pid, &mut it);
                    it
                }
                (_, None) => self.begin(pid, facts),
            };
            there.insert(pid, watched);
            self.pace.pay();
            if interrupt::noted() {
                there.extend(self.watched.drain());
                break;
            }
        }
        (self.watched, self.pids) = (there, pids);
        match interval {
            Some(interval) => self.read_machine(interval),
            None => {
                self.run.processes = self.watched.len() as u64;
                self.machine = (MachineFacts::now(), self.pace.elapsed());
            }
        }
        Ok(())
    }

    fn begin(&self, pid: i32, facts: ProcessFacts) -> Watched {
        let start = [pid.to_le_bytes().as_slice(), &facts.started.to_le_bytes()].concat();
        let process = self.salt.hash(Of::Process, &start);
        Watched {
            started: facts.started,
            ids: Ids { process, job: self.salt.hash(Of::Job, facts.name.as_bytes()) },
            name: facts.name,
            ages: Some(Ages::default()),
            counters: facts.counters,
            read_at: self.pace.elapsed(),
            resident_pages: facts.resident_pages,
        }
    }

    /// Begins a cycle of all processes.
    fn clear_all(&mut self) {
        let mut watched = std::mem::take(&mut self.watched);
        for (&pid, it) in &mut watched {
            self.clear(pid, it);
            self.pace.pay();
        }
        self.watched = watched;
    }

    /// Begins a cycle of a process.
    fn clear(&mut self, pid: i32, it: &mut Watched) {
        let Some(ages) = &mut it.ages else { return };
        match clear_touches(pid) {
            Ok(()) => {
                ages.begin_cycle();
                "cleared-bits".clone_into(&mut self.run.age_source);
            }
            Err(error) => {
                it.ages = None;
                if ProcessFacts::of(pid).is_none() {
                    return; // it has ended
                }
                // Not the PID: the notes are in a table.
                self.note(format!("ages of a process are unknown: clear_refs: {error}"));
            }
        }
    }

    /// Reads a process at the end of an interval.
    fn read(&mut self, pid: i32, mut it: Watched, facts: ProcessFacts, interval: u64) -> Watched {
        let window = it.ages.as_ref().and_then(|_| touches(pid).ok());
        it.resident_pages = window.map_or(facts.resident_pages, |window| window.resident_pages);
        if let (Some(ages), Some(window)) = (&mut it.ages, window) {
            ages.turn(window);
        }
        let elapsed = self.pace.elapsed();
        let added = facts.counters.since(it.counters);
        let resident = it.resident_pages;
        self.parts.push(IntervalRow {
            run: self.run.run,
            host: self.run.host,
            process: Some(it.ids.process),
            job: Some(it.ids.job),
            interval,
            ended_at: now(),
            seconds: (elapsed - it.read_at).as_secs_f64(),
            working_set_pages: it.ages.as_ref().map(Ages::working_set),
            resident_pages: resident,
            swapped_pages: facts.swapped_pages,
            cold_pages: it.ages.as_ref().map_or(Vec::new(), |ages| ages.cold(resident)),
            promoted_pages: it.ages.as_ref().map_or(Vec::new(), Ages::promoted),
            pool_bytes: None,
            minor_faults: added.minor_faults,
            major_faults: added.major_faults,
            stall_us: None,
            cpu_us: added.cpu_us,
        });
        Watched { counters: facts.counters, read_at: elapsed, ..it }
    }

    fn read_machine(&mut self, interval: u64) {
        let (facts, elapsed) = (MachineFacts::now(), self.pace.elapsed());
        let (before, read_at) = self.machine;
        let added = facts.counters.since(before.counters);
        self.parts.push(IntervalRow {
            run: self.run.run,
            host: self.run.host,
            interval,
            ended_at: now(),
            seconds: (elapsed - read_at).as_secs_f64(),
            resident_pages: facts.used_pages,
            swapped_pages: facts.swapped_pages,
            pool_bytes: facts.pool_bytes,
            minor_faults: added.minor_faults,
            major_faults: added.major_faults,
            stall_us: added.stall_us,
            cpu_us: added.cpu_us,
            ..IntervalRow::default()
        });
        self.machine = (facts, elapsed);
    }

    /// Reads so many pages at most. Where that fails, those that were read before stay.
    fn read_pages(&mut self, pages_max: u64) {
        let ids = self.watched.iter().map(|(&pid, it)| (pid as u32, it.ids)).collect();
        let mut table = PageTable::new((self.run.run, self.run.host), self.salt, &self.pace, ids);
        let plan = SamplePlan { pages_max: Some(pages_max), seed: self.plan.seed };
        let visited = visit(&self.there(), plan, |range, pages| table.add(range, pages));
        let (pages, savings) = table.finish();
        match visited {
            Ok(visited) => {
                self.run.resident_pages = visited.of_pages;
                self.run.sampled_pages = visited.pages;
                self.parts.set_pages(pages);
                self.savings = savings;
                visited.notes.into_iter().for_each(|note| self.tell(note));
            }
            Err(_) if interrupt::noted() => {
                self.note("a signal ended its last reading of pages".to_owned());
            }
            Err(error) => self.tell(format!("pages were not read: {error}")),
        }
    }

    /// The last processes that are watched, the largest first.
    fn there(&self) -> Vec<i32> {
        self.pids.iter().copied().filter(|pid| self.watched.contains_key(pid)).collect()
    }

    fn save(&mut self) -> Result<(), FolderError> {
        self.run.notes = self.notes[0].join("\n");
        self.run.seconds = self.pace.elapsed().as_secs_f64();
        self.run.cpu_us = u64::try_from(cpu_time().as_micros()).unwrap_or(u64::MAX);
        self.parts.save(&self.run)
    }

    fn finish(mut self) -> Result<Sampled, SampleError> {
        // A user who ends it waits no longer, and a process that ended has no pages.
        if self.run.ended_by == "plan" {
            self.read_pages(self.pages_max());
        }
        self.save()?;
        let processes = self.processes();
        let (files, notes) = (self.parts.files(), self.notes.concat());
        Ok(Sampled { run: self.run, files, processes, notes })
    }

    /// As many pages as the share of one interval pays for.
    fn pages_max(&self) -> u64 {
        let pages = self.plan.interval.as_secs_f64() * self.plan.share / PAGE_TIME.as_secs_f64();
        (pages as u64).clamp(UNIT_PAGES * UNITS_MIN, PAGES_MAX)
    }

    /// Whether the share has paid for a reading of pages.
    fn has_paid_pages(&self) -> bool {
        let left = self.pace.elapsed().mul_f64(self.plan.share).saturating_sub(cpu_time());
        left.as_secs_f64() >= self.pages_max() as f64 * PAGE_TIME.as_secs_f64()
    }

    fn processes(&self) -> Vec<SampledProcess> {
        let mut all = <[Saving; 3]>::default();
        for savings in self.savings.values() {
            all.iter_mut().zip(savings).for_each(|(all, saving)| all.add(*saving));
        }
        let one = |pid: i32| {
            let it = &self.watched[&pid];
            let own = self.savings.get(&it.ids.process).copied();
            SampledProcess {
                pid,
                name: it.name.clone(),
                process: it.ids.process,
                job: it.ids.job,
                resident_pages: it.resident_pages,
                working_set_pages: it.ages.as_ref().map(Ages::working_set),
                sampled_pages: own.map_or(0, |[saving, ..]| saving.pages),
                savings: own.unwrap_or(all),
            }
        };
        self.there().into_iter().map(one).collect()
    }

    fn note(&mut self, note: String) {
        add(&mut self.notes[0], note);
    }

    fn tell(&mut self, note: String) {
        add(&mut self.notes[1], note);
    }
}

fn add(notes: &mut Vec<String>, note: String) {
    if notes.len() < NOTES_MAX && !notes.contains(&note) {
        notes.push(note);
    }
}

fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
