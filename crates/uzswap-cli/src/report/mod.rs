//! The documents of `compare`: text, JSON and CSV of them.
//!
//! ```text
//!  measure --> Report, of replays ------> text, csv; JSON by serde
//!          --> live::LiveReport --------> live::text, live; JSON by serde
//!                 |-- conclusions                  the words of both
//!                 |-- verdict, summary             sentences
//!                 |-- choice                       the rule by which one is the best
//!                 |-- baseline                     changes since an older document
//!                 '-- access_section, trace_section, whole     parts that some have
//! ```
//!
//! `envelope` begins each document of each command. `format` has tables, sections and numbers, for
//! other commands, too.

mod access_section;
mod baseline;
mod cell;
pub mod choice;
mod conclusions;
mod csv;
mod envelope;
pub(crate) mod format;
pub mod live;
mod summary;
mod text;
mod trace_section;
mod verdict;
mod whole;

use std::fs;
use std::thread;

use serde::{Deserialize, Serialize};

use crate::corpus::sample::Sample;
use crate::measure::compressed_lengths::{CHUNK_BYTES, KindLengths};
use crate::measure::experiment::{Combination, Parts, Settings};
use crate::measure::histogram::{Latencies, LatencySummary, Percentiles};
pub use crate::measure::interval::Difference;
pub(crate) use crate::measure::interval::ROUNDS_MIN;
use crate::measure::limited_pool::LimitSettings;
use crate::measure::replay::{Figures, Phases, RunResult, TraceInfo};
pub use crate::measure::stats::{Stats, mean, percent_change};
pub use access_section::AccessFindings;
pub use baseline::{Baseline, Bound, Change, Changes};
pub use conclusions::Conclusions;
pub(crate) use conclusions::opening;
pub use envelope::{Document, Envelope, Schema};
pub use format::Screen;
pub(crate) use text::machine;
pub use trace_section::TraceFindings;
use uzswap::page::PAGE_SIZE;
use uzswap::zpool::ZpoolKind;
pub use whole::{Whole, sample_in_words};

/// The longest label that leaves room for the widest table.
const LABEL_COLUMNS: usize = 17;

/// An experiment's findings. Its JSON form is what `--json` prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The fields that every document begins with.
    #[serde(flatten)]
    pub envelope: Envelope,
    /// What was replayed.
    pub corpus: CorpusInfo,
    /// How.
    pub settings: ReportSettings,
    /// One element a combination of parts, in the order asked for.
    pub combinations: Vec<Findings>,
    /// How the pages compress, one element a compressor; none for a trace.
    pub compressed_lengths: Vec<CompressedLengths>,
    /// What it comes to, in words.
    #[serde(flatten)]
    pub conclusions: Conclusions,
}

/// The machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel's release.
    pub kernel: String,
    /// The processor's model.
    pub cpu: String,
    /// Processors that may be used.
    pub cpus: usize,
}

impl Machine {
    /// This one.
    pub fn this() -> Machine {
        let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = file("/proc/cpuinfo");
        let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split_once(':')).map_or("unknown", |(_, name)| name);
        Machine {
            kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: model.split_whitespace().collect::<Vec<&str>>().join(" "),
            cpus: thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// What was replayed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CorpusInfo {
    /// Where it came from, in words.
    pub origin: String,
    /// `pages`, `trace`, or `sizes` where the contents were made up.
    pub kind: String,
    /// Pages in it, of a trace its stores.
    pub pages: u64,
    /// What is in a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceInfo>,
    /// Of the file.
    pub sha256: String,
    /// When it was captured; empty if unknown.
    pub captured_at: String,
    /// The whole of which the pages are a sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// Notes about it.
    pub notes: Vec<String>,
}

/// How one compressor compresses the pages.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CompressedLengths {
    /// Its name.
    pub compressor: String,
    /// The step of lengths, in bytes.
    pub chunk_bytes: usize,
    /// One element a kind of page, in the order of the pages.
    pub kinds: Vec<KindLengths>,
}

impl CompressedLengths {
    fn of(combination: &Combination) -> Option<CompressedLengths> {
        Some(CompressedLengths {
            compressor: combination.compressor.clone(),
            chunk_bytes: CHUNK_BYTES,
            kinds: combination.lengths.clone()?,
        })
    }
}

/// How it was replayed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReportSettings {
    /// Runs of each combination.
    pub runs_each: usize,
    /// Settings shared by all combinations.
    #[serde(flatten)]
    pub settings: Settings,
    /// Settings shared by all pools with limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitSettings>,
}

/// What one combination came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Findings {
    /// The parts beside the compressor.
    #[serde(flatten)]
    pub parts: Parts,
    /// Their name: the allocator's, and those of parts of which several are compared.
    pub name: String,
    /// The compressor.
    pub compressor: String,
    /// Bytes in front of each object.
    pub object_header_bytes: usize,
    /// Counts and bytes, the same in each run.
    #[serde(flatten)]
    pub figures: Figures,
    /// Index and allocator's tables.
    pub metadata_bytes: u64,
    /// Pages that were not taken, for whatever reason.
    pub rejected_pages: u64,
    /// Stored pages in bytes over pool and metadata.
    pub effective_ratio: f64,
    /// Pool, metadata, and the refused pages as they were.
    pub bytes_with_rejected: u64,
    /// The name of the parts that percentages refer to.
    pub base: String,
    /// The compressor of those: its own, if the comparison is one of allocators or other parts.
    pub base_compressor: String,
    /// The pool against the base's, from bytes; `null` if that is empty.
    pub pool_percent_of_base: Option<f64>,
    /// Resident memory with every page stored; the median run.
    pub rss_bytes: u64,
    /// The same, run by run.
    pub rss_bytes_by_run: Vec<u64>,
    /// The same with the half freed.
    pub rss_after_free_bytes: u64,
    /// The same after compaction.
    pub rss_after_compact_bytes: u64,
    /// The same with the half stored again.
    pub rss_after_refill_bytes: u64,
    /// Seconds of each run.
    pub real_s: Vec<f64>,
    /// Seconds in the kernel of each run.
    pub sys_s: Vec<f64>,
    /// Seconds in user mode of each run.
    pub user_s: Vec<f64>,
    /// Each run by phase.
    pub phases: Vec<Phases>,
    /// Stores of all runs together, in nanoseconds.
    pub store_ns: LatencySummary,
    /// Loads of all runs together, in nanoseconds.
    pub load_ns: LatencySummary,
    /// Stores run by run, without buckets.
    pub store_ns_by_run: Vec<Percentiles>,
    /// Loads run by run, without buckets.
    pub load_ns_by_run: Vec<Percentiles>,
    /// Pages that were loaded back and found equal, in each run.
    pub verified_pages: u64,
    /// The accesses, where the pool has a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<AccessFindings>,
    /// The events, where a trace was replayed. Counts and bytes are then of the time when the pool
    /// was largest, and `pool_after_*` and `rss_after_*` of the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceFindings>,
    /// Totals of all pages, where a sample of them was replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole: Option<Whole>,
}

impl Findings {
    /// Name and compressor.
    pub fn label(&self) -> String {
        format!("{} {}", self.name, self.compressor)
    }

    /// Whether this is what its percentages refer to.
    pub fn is_base(&self) -> bool {
        self.name == self.base && self.compressor == self.base_compressor
    }

    /// The time of a store or a load that a verdict goes by: the median. With units it is the mean,
    /// because one load in several decompresses for all of them.
    pub(crate) fn typical_ns(&self, times: &LatencySummary) -> u64 {
        if self.parts.unit_pages > 1 { times.mean as u64 } else { times.p50 }
    }

    /// Mean time of a run, in seconds.
    pub(crate) fn mean_real_s(&self) -> f64 {
        mean(&self.real_s)
    }

    fn new(combination: &Combination, base: &Base<'_>, sample: Option<&Sample>) -> Findings {
        let runs = &combination.runs;
        let figures = runs[0].figures;
        let seconds = |of: fn(&Phases) -> f64| runs.iter().map(|run| of(&run.phases)).collect();
        let rss = |of: fn(&RunResult) -> u64| median(runs.iter().map(of).collect());
        let pool = figures.pool_total_size + figures.metadata_bytes();
        // With a limit, what is too large for the pool may be in the backing.
        let rejected_pages = match (&runs[0].accessed, &runs[0].traced) {
            (None, None) => figures.rejected_pages(),
            (Some(accessed), _) => accessed.refused_pages,
            (_, Some(traced)) => traced.counts.refused_at_peak,
        };
        let by_run = |of: fn(&RunResult) -> &Latencies| {
            runs.iter().map(|run| of(run).summary().percentiles()).collect()
        };
        let merged =
            |of: fn(&RunResult) -> &Latencies| runs.iter().map(of).sum::<Latencies>().summary();
        Findings {
            parts: combination.parts,
            name: combination.name.clone(),
            compressor: combination.compressor.clone(),
            object_header_bytes: combination.object_header_bytes,
            figures,
            metadata_bytes: figures.metadata_bytes(),
            rejected_pages,
            effective_ratio: (figures.stored_pages * PAGE_SIZE as u64) as f64 / pool.max(1) as f64,
            bytes_with_rejected: pool + rejected_pages * PAGE_SIZE as u64,
            base: base.name.to_owned(),
            base_compressor: base.compressor.unwrap_or(&combination.compressor).to_owned(),
            pool_percent_of_base: None,
            rss_bytes: rss(|run| run.rss.full),
            rss_bytes_by_run: runs.iter().map(|run| run.rss.full).collect(),
            rss_after_free_bytes: rss(|run| run.rss.after_free),
            rss_after_compact_bytes: rss(|run| run.rss.after_compact),
            rss_after_refill_bytes: rss(|run| run.rss.after_refill),
            real_s: seconds(|phases| phases.total().real_s),
            sys_s: seconds(|phases| phases.total().sys_s),
            user_s: seconds(|phases| phases.total().user_s),
            phases: runs.iter().map(|run| run.phases).collect(),
            store_ns: merged(|run| &run.store_ns),
            load_ns: merged(|run| &run.load_ns),
            store_ns_by_run: by_run(|run| &run.store_ns),
            load_ns_by_run: by_run(|run| &run.load_ns),
            verified_pages: runs.iter().map(|run| run.verified_pages).min().unwrap_or(0),
            access: AccessFindings::of(runs),
            trace: TraceFindings::of(runs),
            whole: Whole::of(&runs[0], sample),
        }
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

impl Report {
    /// The findings of an experiment. Every combination must have a run.
    pub fn new(
        corpus: CorpusInfo,
        settings: Settings,
        limits: Option<LimitSettings>,
        combinations: &[Combination],
    ) -> Report {
        let base = Base::among(combinations);
        let sample = corpus.sample.as_ref();
        let of = |combination| Findings::new(combination, &base, sample);
        let mut runs: Vec<Findings> = combinations.iter().map(of).collect();
        for place in 0..runs.len() {
            let base = base_of(&runs, &runs[place]).figures.pool_total_size;
            let pool = runs[place].figures.pool_total_size;
            runs[place].pool_percent_of_base =
                (base > 0).then(|| pool as f64 / base as f64 * 100.0);
        }
        let mut report = Report {
            envelope: Envelope::new(Schema::Compare),
            corpus,
            settings: ReportSettings { runs_each: combinations[0].runs.len(), settings, limits },
            compressed_lengths: combinations.iter().filter_map(CompressedLengths::of).collect(),
            conclusions: Conclusions {
                notes: notes(combinations),
                summary: summary::sentences(&runs, settings.free),
                ..Conclusions::default()
            },
            combinations: runs,
        };
        report.conclusions.verdict = verdict::sentences(&report);
        report
    }

    /// One row a run, under a header line.
    pub fn to_csv(&self) -> String {
        csv::rows(self)
    }

    /// For a terminal.
    pub fn to_text(&self, screen: Screen) -> String {
        text::page(self, screen)
    }
}

/// The first column. With limits it can be long, and takes two lines then.
fn label(findings: &Findings) -> String {
    let label = findings.label();
    match label[..label.len().min(LABEL_COLUMNS)].rfind(' ') {
        Some(blank) if findings.access.is_some() && label.len() > LABEL_COLUMNS => {
            format!("{}\n{}", &label[..blank], &label[blank + 1..])
        }
        _ => label,
    }
}

/// The combinations that percentages refer to.
struct Base<'a> {
    /// The name of their parts.
    name: &'a str,
    /// Their compressor; `None` where each compressor has a base of its own.
    compressor: Option<&'a str>,
}

impl Base<'_> {
    /// Of several allocators or other parts, zsmalloc, compressor by compressor. Where there is one
    /// alone, the compressors are compared with the first of them.
    fn among(combinations: &[Combination]) -> Base<'_> {
        let first = &combinations[0];
        let is_zsmalloc = |it: &&Combination| it.parts.zpool == ZpoolKind::Zsmalloc;
        let name = &combinations.iter().find(is_zsmalloc).unwrap_or(first).name;
        let is_alone = combinations.iter().all(|it| it.name == *name);
        Base { name, compressor: is_alone.then_some(&first.compressor) }
    }
}

/// The base of the percentages of `of`.
fn base_of<'a>(runs: &'a [Findings], of: &'a Findings) -> &'a Findings {
    let is_its_base =
        |other: &&Findings| other.name == of.base && other.compressor == of.base_compressor;
    runs.iter().find(is_its_base).unwrap_or(of)
}

/// Warnings about the runs: figures that should be equal and differ, and run times that vary by
/// more than a quarter.
fn notes(combinations: &[Combination]) -> Vec<String> {
    const UNSTEADY: f64 = 1.25;
    let mut notes = Vec::new();
    let mut unsteady = Vec::new();
    for combination in combinations {
        let figures: Vec<&Figures> = combination.runs.iter().map(|run| &run.figures).collect();
        if access_section::is_steady(combination)
            && figures.iter().any(|other| *other != figures[0])
        {
            notes.push(unequal(&combination.label(), &figures));
        }
        let seconds = combination.runs.iter().map(|run| run.phases.total().real_s);
        let real = Stats::of(&seconds.collect::<Vec<f64>>());
        if real.max > real.min * UNSTEADY {
            let (min, max) = (real.min, real.max);
            unsteady.push(format!("{} {min:.3} to {max:.3} s", combination.label()));
        }
    }
    if !unsteady.is_empty() {
        notes.push(format!(
            "The machine was unsteady, most likely busy with other work: {}. Read times with care; \
             sizes do not depend on it.",
            unsteady.join(", ")
        ));
    }
    notes
}

fn unequal(label: &str, figures: &[&Figures]) -> String {
    let range = |of: fn(&Figures) -> u64| {
        let values = || figures.iter().map(|figures| of(figures));
        let [min, max] = [values().min(), values().max()].map(Option::unwrap_or_default);
        format!("{} to {}", format::thousands(min), format::thousands(max))
    };
    format!(
        "{label}: the results of its runs differ (pool {} bytes, {} pages refused); those of the \
         first run are shown.",
        range(|figures| figures.pool_total_size),
        range(Figures::rejected_pages),
    )
}
