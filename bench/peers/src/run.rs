//! One run: a fresh process, one cache, one count of threads.

use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use uzswap::compressor::CompressorKind;
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::random::SplitMix64;
use uzswap_cli::corpus::page_set::PageSet;
use uzswap_cli::corpus::zipf::Zipf;
use uzswap_cli::measure::histogram::Latencies;
use uzswap_sys::process::{anonymous_bytes, disable_huge_pages, trim_heap};

use crate::contender::{Contender, PageCache};

/// Reads between two whose time is taken: the clock costs a few percent of a hit.
const TIMED_EVERY: u64 = 8;

/// Reads between two whose page is compared with the source.
const CHECKED_EVERY: u64 = 64;

/// What a run does. The parent passes it on the command line, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) contender: Contender,
    /// As `uzswap compare` takes it: `lz4`, `zstd:3`.
    pub(crate) compressor: String,
    /// The page set that is the source.
    pub(crate) pages: PathBuf,
    /// Bytes of what the cache counts.
    pub(crate) capacity: u64,
    pub(crate) skew: f64,
    pub(crate) seed: u64,
    pub(crate) threads: u32,
    /// Reads before the clock starts, after every page was read once; of all threads together.
    pub(crate) warm_up: u64,
    /// Reads that are timed; of all threads together.
    pub(crate) reads: u64,
}

/// What a run found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) reads: u64,
    pub(crate) hits: u64,
    pub(crate) seconds: f64,
    /// Anonymous memory that the cache came to take, after the last read. In bytes.
    pub(crate) memory: u64,
    pub(crate) hit: Latencies,
    pub(crate) miss: Latencies,
}

impl Outcome {
    pub(crate) fn reads_per_second(&self) -> f64 {
        self.reads as f64 / self.seconds
    }

    pub(crate) fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.reads as f64
    }
}

/// What one thread does and finds.
struct Reader {
    random: SplitMix64,
    page: Page,
    hits: u64,
    wrong: u64,
    hit: Latencies,
    miss: Latencies,
}

impl Reader {
    fn new(seed: u64) -> Reader {
        Reader {
            random: SplitMix64::new(seed),
            page: [0; PAGE_SIZE],
            hits: 0,
            wrong: 0,
            hit: Latencies::new(),
            miss: Latencies::new(),
        }
    }

    /// Makes `reads` reads. Pages are checked always; hits and times are kept if `is_timed`.
    fn read(
        &mut self,
        cache: &dyn PageCache,
        source: &[Page],
        zipf: &Zipf,
        reads: u64,
        is_timed: bool,
    ) {
        for step in 0..reads {
            let key = zipf.draw(&mut self.random);
            let start = (is_timed && step % TIMED_EVERY == 0).then(Instant::now);
            let is_hit = cache.read(source, key, &mut self.page);
            if let Some(start) = start {
                let ns = start.elapsed().as_nanos() as u64;
                if is_hit { self.hit.record(ns) } else { self.miss.record(ns) }
            }
            self.hits += u64::from(is_hit && is_timed);
            if step % CHECKED_EVERY == 1 && self.page != source[key as usize] {
                self.wrong += 1;
            }
        }
    }
}

/// Does the run of `spec`, in this process.
///
/// # Errors
///
/// A source that does not read, a compressor that is none, a page that came back wrong.
pub(crate) fn run(spec: &Spec) -> Result<Outcome> {
    disable_huge_pages();
    let compressor: CompressorKind = spec.compressor.parse()?;
    let source = PageSet::read(&spec.pages)?.pages;
    let zipf = Zipf::new(source.len(), spec.skew, &mut SplitMix64::new(1));
    let seeds = (0..u64::from(spec.threads)).map(|n| spec.seed + n);
    let mut readers: Vec<Reader> = seeds.map(Reader::new).collect();
    trim_heap();
    let before = anonymous_bytes()?;

    let cache = spec.contender.build(compressor, spec.capacity, source.len());
    let time = read_all(spec, &*cache, &source, &zipf, &mut readers);
    cache.settle();
    let memory = anonymous_bytes()?.saturating_sub(before + cache.source_bytes());

    let wrong: u64 = readers.iter().map(|reader| reader.wrong).sum();
    ensure!(wrong == 0, "{wrong} pages came back wrong from {}", spec.contender.name());
    Ok(Outcome {
        reads: spec.reads / u64::from(spec.threads) * u64::from(spec.threads),
        hits: readers.iter().map(|reader| reader.hits).sum(),
        seconds: time.as_secs_f64(),
        memory,
        hit: readers.iter().map(|reader| &reader.hit).sum(),
        miss: readers.iter().map(|reader| &reader.miss).sum(),
    })
}

/// Fills the cache, warms it up and then times it, from the start of the first reader to the end of
/// the last. Each reader is one thread throughout: the C heap has an arena per thread, and pages of
/// a thread that is gone would count as the cache's.
fn read_all(
    spec: &Spec,
    cache: &dyn PageCache,
    source: &[Page],
    zipf: &Zipf,
    readers: &mut [Reader],
) -> Duration {
    let threads = readers.len();
    let barrier = Barrier::new(threads);
    let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let started = readers.iter_mut().enumerate().map(|(number, reader)| {
            let barrier = &barrier;
            scope.spawn(move || {
                // Coldest first, so that what is held at the end is what is read most.
                for &key in zipf.pages().iter().rev().skip(number).step_by(threads) {
                    cache.read(source, key, &mut reader.page);
                }
                reader.read(cache, source, zipf, spec.warm_up / threads as u64, false);
                barrier.wait();
                let start = Instant::now();
                reader.read(cache, source, zipf, spec.reads / threads as u64, true);
                (start, Instant::now())
            })
        });
        let started: Vec<_> = started.collect();
        started.into_iter().map(|thread| thread.join().expect("a reader does not panic")).collect()
    });
    let start = times.iter().map(|time| time.0).min().expect("there is a reader");
    let end = times.iter().map(|time| time.1).max().expect("there is a reader");
    end - start
}
