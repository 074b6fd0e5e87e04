//! Replays a trace: the stores, loads and frees of a run, in their order, at full speed.
//!
//! ```text
//!  64 events, timed each -> loads compared, pool looked at -> 64 events ... -> load all, audit
//!                           (off the clock)
//! ```
//!
//! Loads and frees of a page that the store had refused are left out, and counted.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    BATCH_PAGES, Buffers, Figures, Phases, ReplayError, Rss, RunResult, Spent, check,
    growth_from_here,
};
use crate::measure::histogram::Latencies;
use uzswap::page::{PAGE_SIZE, Page, PageKey, fill_with_word};
use uzswap::trace::{
    Content, Ending, Operation, TraceAbout, TraceBlock, TraceError, TraceReader, TraceTotals,
};
use uzswap::zswap::{LoadError, Zswap};
use uzswap_sys::process::cpu_time;

/// Names a word among contents; those without it are pages.
const WORD: u32 = 1 << 31;

/// The resident size is read when the pool has grown by one part in so many, as reading it takes
/// milliseconds.
const RSS_PART: u64 = 16;

/// A trace in memory.
#[derive(Debug)]
pub struct Trace {
    pages: Vec<Page>,
    words: Vec<u64>,
    /// By place: the keys, in the order in which they were first stored.
    keys: Vec<PageKey>,
    steps: Vec<Step>,
    info: TraceInfo,
}

/// Notes about a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceInfo {
    /// What it says of itself.
    #[serde(flatten)]
    pub about: TraceAbout,
    /// What is in it.
    #[serde(flatten)]
    pub totals: TraceTotals,
    /// Whether it ends as it should. If not, it is replayed up to its last whole block.
    pub complete: bool,
    /// Bytes of the file that were used.
    pub bytes: u64,
}

/// An event to replay.
#[derive(Debug, Clone, Copy)]
struct Step {
    place: u32,
    action: Action,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Store(u32),
    /// With what is to come back.
    Load(u32),
    Free,
}

/// Why a trace cannot be replayed.
#[derive(Debug, Error)]
pub enum TraceReadError {
    /// It cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// An event cannot have been.
    #[error("{path}: event {number} {what} key {key}, but no page was stored under that key")]
    NotStored {
        /// The file.
        path: String,
        /// The event, from 0.
        number: u64,
        /// What is done with the key.
        what: &'static str,
        /// The key.
        key: PageKey,
    },
    /// There is nothing to replay.
    #[error("{0} has no events: the run stored no page, or the trace was cut off at its start")]
    Empty(String),
    /// It is too long.
    #[error("cannot allocate memory for the contents and events of {0}")]
    NoMemory(String),
}

impl TraceReadError {
    /// Whether the machine is the reason, and not the file.
    pub fn is_machine(&self) -> bool {
        match self {
            TraceReadError::Trace(error) => error.is_machine(),
            TraceReadError::NoMemory(_) => true,
            _ => false,
        }
    }
}

/// Counts of the replay of a trace: the same in each run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceCounts {
    /// Stores.
    pub stores: u64,
    /// Of these, refused.
    pub refused_stores: u64,
    /// Pages that the store would have had when the pool was largest, had it not refused them.
    pub refused_at_peak: u64,
    /// Loads, each of which gave what was stored.
    pub loads: u64,
    /// Loads that were left out, as the page had been refused.
    pub missed_loads: u64,
    /// Frees of pages that the store had.
    pub frees: u64,
    /// Pages that the store had at the end.
    pub pages_left: u64,
}

/// Results of the replay of a trace, beside those of any run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Traced {
    /// The counts.
    pub counts: TraceCounts,
    /// Seconds in stores.
    pub store_s: f64,
    /// Seconds in loads.
    pub load_s: f64,
    /// Seconds in frees.
    pub free_s: f64,
}

impl Trace {
    /// Reads the trace at `path`, up to where it is whole.
    ///
    /// # Errors
    ///
    /// [`TraceReadError`].
    pub fn read(path: &Path) -> Result<Trace, TraceReadError> {
        let input =
            File::open(path).map_err(|error| TraceError::Read { path: path.to_owned(), error })?;
        let mut reader = TraceReader::new(path, input)?;
        let mut builder = Builder {
            name: path.display().to_string(),
            places: HashMap::new(),
            current: Vec::new(),
            pages: Vec::new(),
            words: Vec::new(),
            word_numbers: HashMap::new(),
            keys: Vec::new(),
            steps: Vec::new(),
        };
        while let Some(block) = reader.next_block()? {
            builder.add(&block)?;
        }
        let Builder { name, pages, words, keys, steps, .. } = builder;
        if steps.is_empty() {
            return Err(TraceReadError::Empty(name));
        }
        let info = TraceInfo {
            about: reader.about().clone(),
            totals: *reader.totals(),
            complete: reader.ending() == Some(Ending::Whole),
            bytes: reader.offset(),
        };
        Ok(Trace { pages, words, keys, steps, info })
    }

    /// Notes about it.
    pub fn info(&self) -> &TraceInfo {
        &self.info
    }

    /// A content; where it is no page of the trace it is made in `room`.
    fn content<'a>(&'a self, number: u32, room: &'a mut Page) -> &'a Page {
        if number & WORD == 0 {
            return &self.pages[number as usize];
        }
        fill_with_word(room, self.words[(number & !WORD) as usize]);
        room
    }
}

/// A trace while it is read.
struct Builder {
    name: String,
    /// By key.
    places: HashMap<u64, u32>,
    /// By place: the content that it has now.
    current: Vec<Option<u32>>,
    pages: Vec<Page>,
    words: Vec<u64>,
    word_numbers: HashMap<u64, u32>,
    keys: Vec<PageKey>,
    steps: Vec<Step>,
}

impl Builder {
    fn add(&mut self, block: &TraceBlock<'_>) -> Result<(), TraceReadError> {
        let has_room = self.pages.try_reserve(block.contents.len()).is_ok()
            && self.words.try_reserve(block.events.len()).is_ok()
            && self.word_numbers.try_reserve(block.events.len()).is_ok()
            && self.places.try_reserve(block.events.len()).is_ok()
            && self.keys.try_reserve(block.events.len()).is_ok()
            && self.current.try_reserve(block.events.len()).is_ok()
            && self.steps.try_reserve(block.events.len()).is_ok();
        let most = WORD as usize - block.events.len() - block.contents.len();
        if !has_room || self.pages.len() > most || self.keys.len().max(self.words.len()) > most {
            return Err(TraceReadError::NoMemory(self.name.clone()));
        }
        self.pages.extend_from_slice(block.contents);
        for event in block.events {
            let place = self.places.get(&event.key.0).copied();
            let held = place.and_then(|place| Some((place, self.current[place as usize]?)));
            let not_stored = |what| TraceReadError::NotStored {
                path: self.name.clone(),
                number: self.steps.len() as u64,
                what,
                key: event.key,
            };
            let step = match event.operation {
                Operation::Store(content) => {
                    let content = self.number_of(content);
                    let place = place.unwrap_or_else(|| self.new_place(event.key));
                    self.current[place as usize] = Some(content);
                    Step { place, action: Action::Store(content) }
                }
                Operation::Load => {
                    let (place, content) = held.ok_or_else(|| not_stored("loads"))?;
                    Step { place, action: Action::Load(content) }
                }
                Operation::Free => {
                    let (place, _) = held.ok_or_else(|| not_stored("frees"))?;
                    self.current[place as usize] = None;
                    Step { place, action: Action::Free }
                }
            };
            self.steps.push(step);
        }
        Ok(())
    }

    fn new_place(&mut self, key: PageKey) -> u32 {
        let place = self.keys.len() as u32; // < WORD
        self.keys.push(key);
        self.current.push(None);
        self.places.insert(key.0, place);
        place
    }

    fn number_of(&mut self, content: Content) -> u32 {
        match content {
            Content::Page(number) => number as u32, // < pages.len() <= WORD
            Content::Word(word) => *self.word_numbers.entry(word).or_insert_with(|| {
                self.words.push(word);
                (self.words.len() - 1) as u32 | WORD
            }),
        }
    }
}

/// The page that the store has under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Nothing,
    /// The content of this number.
    Content(u32),
    /// It refused a page.
    Refused,
}

/// Replays `trace` into the store that `build` makes. `compressor` is the compressor's name, for
/// messages.
///
/// # Errors
///
/// [`ReplayError`], at the first page that does not come back as it was stored; page numbers in it
/// are keys.
pub fn replay_trace(
    trace: &Trace,
    compressor: &str,
    build: impl FnOnce() -> Zswap,
) -> Result<RunResult, ReplayError> {
    let mut buffers = Buffers::new(0);
    let mut held = vec![Held::Refused; trace.keys.len()];
    held.fill(Held::Nothing); // touched before the store is
    let (mut store_ns, mut load_ns) = (Latencies::new(), Latencies::new());
    let rss = growth_from_here()?;
    let zswap = build();
    let mut replay = Replay {
        trace,
        zswap: &zswap,
        compressor,
        buffers: &mut buffers,
        held: &mut held,
        outcomes: Vec::with_capacity(BATCH_PAGES),
        refused_now: 0,
        spent: Spent::default(),
        traced: Traced::default(),
    };
    let mut figures = Figures::default();
    let mut resident = Rss::default();
    let mut rss_at = 0;
    for steps in trace.steps.chunks(BATCH_PAGES) {
        replay.batch(steps, &mut store_ns, &mut load_ns)?;
        let pool_bytes = zswap.budget().pool_bytes();
        if pool_bytes > figures.pool_total_size || figures.pages == 0 {
            figures = Figures::of_store(&zswap, trace.info.totals.stores);
            replay.traced.counts.refused_at_peak = replay.refused_now;
        }
        if pool_bytes > rss_at {
            rss_at = pool_bytes + pool_bytes / RSS_PART;
            resident.full = resident.full.max(rss()?);
        }
    }
    let Replay { mut traced, spent, .. } = replay;

    let (counters, memory) = (zswap.counters(), zswap.memory());
    figures.reject_compress_poor = counters.reject_compress_poor;
    figures.reject_compress_fail = counters.reject_compress_fail;
    figures.reject_alloc_fail = counters.reject_alloc_fail;
    figures.reject_kmemcache_fail = counters.reject_kmemcache_fail;
    figures.pool_peak_bytes = memory.pool_peak_bytes;
    figures.freed_pages = traced.counts.frees;
    figures.kept_compressed_bytes = memory.compressed_bytes;
    figures.pool_after_free_bytes = memory.pool_bytes;
    resident.after_free = rss()?;
    zswap.compact();
    figures.pool_after_compact_bytes = zswap.memory().pool_bytes;
    resident.after_compact = rss()?;
    traced.counts.pages_left = load_rest(trace, &zswap, compressor, &held)?;
    zswap.audit().map_err(|error| ReplayError::Audit(error.into()))?;
    Ok(RunResult {
        figures,
        rss: resident,
        phases: Phases { trace: Some(spent), ..Phases::default() },
        store_ns,
        load_ns,
        verified_pages: traced.counts.loads + traced.counts.pages_left,
        accessed: None,
        traced: Some(traced),
        unit_sums: Vec::new(),
        open_bytes: 0,
    })
}

/// Loads what the store has at the end, and compares it; how many pages.
fn load_rest(
    trace: &Trace,
    zswap: &Zswap,
    compressor: &str,
    held: &[Held],
) -> Result<u64, ReplayError> {
    const LAST: &str = "loaded after the trace";
    let zpool = zswap.zpool().name();
    let (mut loaded, mut room) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    let mut left = 0;
    for (&key, &held) in trace.keys.iter().zip(held) {
        let number = key.0 as usize;
        let found = zswap.load(key, &mut loaded).map_err(|source| load_error(key, LAST, source))?;
        let Held::Content(content) = held else {
            if found {
                return Err(ReplayError::Presence { number, held: true, zpool, when: LAST });
            }
            continue;
        };
        if !found {
            return Err(gone(key, zpool, LAST));
        }
        check(number, trace.content(content, &mut room), &loaded, zpool, compressor, LAST)?;
        left += 1;
    }
    Ok(left)
}

/// What came of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It was done.
    Done,
    /// The store refused the page.
    Refused,
    /// The store should have had the page, and had not.
    Gone,
    /// The store had refused the page: there was nothing to do.
    LeftOut,
}

struct Replay<'a> {
    trace: &'a Trace,
    zswap: &'a Zswap,
    compressor: &'a str,
    buffers: &'a mut Buffers,
    /// By place.
    held: &'a mut [Held],
    /// Of a batch.
    outcomes: Vec<Outcome>,
    /// Pages that the store would have, had it not refused them.
    refused_now: u64,
    spent: Spent,
    traced: Traced,
}

impl Replay<'_> {
    /// Does some events, then looks at what came of them.
    fn batch(
        &mut self,
        steps: &[Step],
        store_ns: &mut Latencies,
        load_ns: &mut Latencies,
    ) -> Result<(), ReplayError> {
        let Buffers { made, ends, .. } = &mut *self.buffers;
        for (step, room) in steps.iter().zip(made) {
            if let Action::Store(content) = step.action {
                self.trace.content(content, room);
            }
        }
        ends.clear();
        self.outcomes.clear();
        let before = cpu_time();
        let start = Instant::now();
        for (at, step) in steps.iter().enumerate() {
            let outcome = self.step(at, step)?;
            self.outcomes.push(outcome);
            self.buffers.ends.push(Instant::now());
        }
        self.spent.add(start.elapsed(), before, cpu_time());
        self.look(start, steps, store_ns, load_ns)
    }

    /// Does the event at this place of a batch.
    fn step(&mut self, at: usize, step: &Step) -> Result<Outcome, ReplayError> {
        let place = step.place as usize;
        let key = self.trace.keys[place];
        let was = self.held[place];
        let done = |is_done| if is_done { Outcome::Done } else { Outcome::Gone };
        Ok(match (step.action, was) {
            (Action::Store(content), _) => {
                let page = match content & WORD {
                    0 => &self.trace.pages[content as usize],
                    _ => &self.buffers.made[at],
                };
                self.refused_now -= u64::from(was == Held::Refused);
                if self.zswap.store(key, page).is_ok() {
                    self.held[place] = Held::Content(content);
                    Outcome::Done
                } else {
                    self.held[place] = Held::Refused;
                    self.refused_now += 1;
                    Outcome::Refused
                }
            }
            (Action::Load(_), Held::Content(_)) => {
                let found = self.zswap.load(key, &mut self.buffers.loaded[at]);
                done(found.map_err(|source| load_error(key, WHEN, source))?)
            }
            (Action::Free, Held::Content(_)) => {
                self.held[place] = Held::Nothing;
                done(self.zswap.invalidate(key))
            }
            (Action::Free, _) => {
                self.refused_now -= u64::from(was == Held::Refused);
                self.held[place] = Held::Nothing;
                Outcome::LeftOut
            }
            (Action::Load(_), _) => Outcome::LeftOut,
        })
    }

    /// Counts what a batch did and how long it took, and compares what was loaded.
    fn look(
        &mut self,
        start: Instant,
        steps: &[Step],
        store_ns: &mut Latencies,
        load_ns: &mut Latencies,
    ) -> Result<(), ReplayError> {
        let zpool = self.zswap.zpool().name();
        let Buffers { made, loaded, ends, .. } = &mut *self.buffers;
        let traced = &mut self.traced;
        let mut from = start;
        for (at, (step, outcome)) in steps.iter().zip(&self.outcomes).enumerate() {
            let key = self.trace.keys[step.place as usize];
            let took = ends[at].duration_since(from);
            from = ends[at];
            let ns = took.as_nanos().try_into().unwrap_or(u64::MAX);
            if *outcome == Outcome::Gone {
                return Err(gone(key, zpool, WHEN));
            }
            let is_left_out = *outcome == Outcome::LeftOut;
            match step.action {
                Action::Store(_) => {
                    traced.counts.stores += 1;
                    traced.counts.refused_stores += u64::from(*outcome == Outcome::Refused);
                    traced.store_s += took.as_secs_f64();
                    store_ns.record(ns);
                }
                Action::Load(_) if is_left_out => traced.counts.missed_loads += 1,
                Action::Load(content) => {
                    traced.counts.loads += 1;
                    traced.load_s += took.as_secs_f64();
                    load_ns.record(ns);
                    let stored = self.trace.content(content, &mut made[at]);
                    let number = key.0 as usize;
                    check(number, stored, &loaded[at], zpool, self.compressor, WHEN)?;
                }
                Action::Free if is_left_out => {}
                Action::Free => {
                    traced.counts.frees += 1;
                    traced.free_s += took.as_secs_f64();
                }
            }
        }
        Ok(())
    }
}

/// When most of it happens.
const WHEN: &str = "replaying the trace";

fn load_error(key: PageKey, when: &'static str, source: LoadError) -> ReplayError {
    ReplayError::Load { number: key.0 as usize, when, source } // of 64 bits, as all that we run on
}

fn gone(key: PageKey, zpool: &'static str, when: &'static str) -> ReplayError {
    ReplayError::Presence { number: key.0 as usize, held: false, zpool, when }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap::trace::Recorder;
    use uzswap::zpool::ZpoolKind;
    use uzswap::zswap::ZswapOptions;

    /// A trace of `count` events from a seed, and how many of them are stores, loads, frees.
    fn recorded(seed: u64, count: usize) -> (Trace, [u64; 3]) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let about = TraceAbout::default();
        let recorder = Recorder::create(&path, &about, |error| panic!("{error}")).unwrap();
        let mut random = uzswap::random::SplitMix64::new(seed);
        let mut held = [false; 200];
        let mut counts = [0; 3];
        for _ in 0..count {
            let key = random.next_word() as usize % held.len();
            let choice = random.next_word() % 4;
            if !held[key] || choice == 0 {
                let mut page = [random.next_word() as u8 & 3; PAGE_SIZE];
                let end = random.next_word() as usize % PAGE_SIZE;
                let is_plain = random.next_word().is_multiple_of(5);
                let change = |byte: &mut u8| *byte = random.next_word() as u8;
                page[..if is_plain { 0 } else { end }].iter_mut().for_each(change);
                recorder.store(PageKey(key as u64), &page);
                held[key] = true;
                counts[0] += 1;
            } else if choice == 1 {
                recorder.free(PageKey(key as u64));
                held[key] = false;
                counts[2] += 1;
            } else {
                recorder.load(PageKey(key as u64));
                counts[1] += 1;
            }
        }
        assert!(recorder.finish().complete);
        (Trace::read(&path).unwrap(), counts)
    }

    #[test]
    fn a_trace_is_replayed_as_it_was_recorded() {
        let (trace, [stores, loads, frees]) = recorded(1, 6000);
        let info = trace.info();
        assert_eq!((info.totals.stores, info.totals.loads), (stores, loads));
        assert!(info.complete && info.totals.same_filled_stores > 100);
        for zpool in ZpoolKind::ALL {
            let options = ZswapOptions::bare().zpool(zpool);
            let run = replay_trace(&trace, "lz4", || Zswap::new(options).unwrap()).unwrap();
            let traced = run.traced.unwrap();
            assert_eq!(traced.counts.stores, stores);
            assert_eq!(traced.counts.loads + traced.counts.missed_loads, loads);
            assert!(traced.counts.frees <= frees && traced.counts.refused_stores > 0);
            assert_eq!(run.verified_pages, traced.counts.loads + traced.counts.pages_left);
            assert_eq!(run.store_ns.summary().count, stores);
            assert_eq!(run.load_ns.summary().count, traced.counts.loads);
            let figures = run.figures;
            assert!(figures.pool_total_size <= figures.pool_peak_bytes);
            assert!(figures.pool_after_free_bytes <= figures.pool_peak_bytes);
            assert_eq!(figures.rejected_pages(), traced.counts.refused_stores);
            assert_eq!(run.phases.total(), run.phases.trace.unwrap());
            // Of the 200 keys.
            assert!(traced.counts.refused_at_peak + figures.stored_pages <= 200);
            assert!(traced.counts.pages_left <= 200);
        }
    }

    #[test]
    fn nothing_is_refused_by_a_store_that_takes_pages_as_they_are() {
        let (trace, [stores, loads, frees]) = recorded(2, 3000);
        let options = ZswapOptions::bare().incompressible(uzswap::zswap::Incompressible::StoreAsIs);
        let traced =
            replay_trace(&trace, "lz4", || Zswap::new(options).unwrap()).unwrap().traced.unwrap();
        assert_eq!(
            (traced.counts.stores, traced.counts.loads, traced.counts.frees),
            (stores, loads, frees)
        );
        assert_eq!((traced.counts.refused_stores, traced.counts.missed_loads), (0, 0));
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let (mut trace, _) = recorded(3, 500);
        let load = |step: &Step| match step.action {
            Action::Load(content) if content & WORD == 0 => Some(content as usize),
            _ => None,
        };
        let at = trace.steps.iter().position(|step| load(step).is_some()).unwrap();
        let mut page = trace.pages[load(&trace.steps[at]).unwrap()];
        page[4000] ^= 1;
        trace.pages.push(page);
        trace.steps[at].action = Action::Load(trace.pages.len() as u32 - 1);
        let key = trace.keys[trace.steps[at].place as usize].0;
        let error =
            replay_trace(&trace, "lz4", || Zswap::new(ZswapOptions::bare()).unwrap()).unwrap_err();
        assert!(error.is_check());
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("page {key} came back different at byte 4000")),
            "{text}"
        );
    }

    #[test]
    fn events_that_cannot_have_been_are_refused() {
        for frees in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("trace");
            let recorder = Recorder::create(&path, &TraceAbout::default(), |_| ()).unwrap();
            let empty = Trace::read(&path).unwrap_err().to_string();
            assert!(empty.contains("no events"), "{empty}");
            recorder.store(PageKey(5), &[1; PAGE_SIZE]);
            if frees {
                recorder.free(PageKey(6))
            } else {
                recorder.load(PageKey(6))
            }
            recorder.finish();
            let error = Trace::read(&path).unwrap_err();
            assert!(!error.is_machine());
            assert!(error.to_string().contains("event 1"), "{error}");
            assert!(error.to_string().contains("key 0x6, but no page"), "{error}");
        }
    }
}
