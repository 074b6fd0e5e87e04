//! `uzswap compare`: the allocators side by side on given pages.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::builder::RangedU64ValueParser;

use super::Failure;
use super::args::{check_units, distinct, rounds};
use super::capture::When;
use super::corpus::Source;
use super::filter::check_filter;
use super::json::JsonOutput;
use super::limit_args::LimitArgs;
use super::live::{self, LiveArguments, LiveChoice};
use super::progress::with_progress;
use super::report_args::ReportArgs;
use super::sample_size::{self, SampleSize};
use super::size::{parse_size, parse_unit};
use super::window;
use crate::corpus::capture::{CaptureOptions, capture_command, capture_pid};
use crate::corpus::workload::Workload;
use crate::measure::experiment::{Experiment, Settings};
use crate::measure::replay::FreedHalf;
use crate::report::format::thousands;
use crate::report::{Baseline, Bound, Changes, Report, Schema, Screen};
use uzswap::compressor::{CompressorKind, Filter, FilteredKind};
use uzswap::index::IndexKind;
use uzswap::named_enum::UnknownName;
use uzswap::same_filled::SameFilledCheck;
use uzswap::zpool::zsmalloc::{
    CHAIN_SIZE_MAX, CHAIN_SIZE_MIN, ChainRule, HandleHeader, ObjectMapping,
};
use uzswap::zpool::{HostPages, ZpoolKind};
use uzswap::zswap::{Incompressible, OBJECT_HEADER_MAX};
use uzswap_sys::interrupt;

/// With fewer pages zsmalloc's classes are mostly part-filled: 119 classes of up to 8 pages each.
const FEW_PAGES: u64 = 10_000;

/// What `uzswap compare` is asked for.
#[derive(Debug, clap::Args)]
#[command(next_line_help = false, allow_negative_numbers = true)]
pub(super) struct Compare {
    /// Replay the pages of a file: a page set, a core dump, any whole pages
    #[arg(long, value_name = "FILE", group = "pages", help_heading = "Pages")]
    corpus: Option<PathBuf>,
    /// Replay the anonymous pages of a running process
    #[arg(long, value_name = "PID", group = "pages", help_heading = "Pages",
          value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Replay a list of compressed sizes, one a line, with made-up contents
    ///
    /// One decimal number from 0 to 4096 a line, in store order; 0 is a same-filled page, and text
    /// after a # is ignored. On a machine with zswap on zsmalloc, this collects such a list without
    /// any contents:
    ///
    /// bpftrace -q -e 'kprobe:zs_malloc { printf("%d\n", arg1); }' > sizes
    #[arg(long, value_name = "FILE", group = "pages", help_heading = "Pages")]
    sizes: Option<PathBuf>,
    /// Replay a trace of run --record: each store, load and free in its order
    ///
    /// As fast as they go, by one thread, whatever the run's times were. Each load is compared.
    #[arg(long, value_name = "FILE", group = "pages", help_heading = "Pages",
          conflicts_with_all = ["tree", "free", "LimitArgs"])]
    trace: Option<PathBuf>,
    /// Run this command and replay its anonymous pages
    #[arg(last = true, value_name = "CMD", group = "pages", help_heading = "Pages")]
    command: Vec<OsString>,
    /// When to capture the command: peak, exit, or after 2s, 500ms
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "peak",
        requires = "command",
        conflicts_with_all = ["corpus", "pid", "sizes", "trace"],
        help_heading = "Pages"
    )]
    at: When,
    /// Include the pages of the process's descendants
    #[arg(long, help_heading = "Pages", hide_short_help = true)]
    tree: bool,
    /// Built-in workload, if no other pages are given
    #[arg(
        long,
        value_name = "NAME",
        default_value = "mixed",
        conflicts_with = "pages",
        help_heading = "Pages",
        hide_short_help = true
    )]
    workload: Workload,
    /// Size of the built-in workload
    #[arg(long, value_name = "SIZE", default_value = "384M", value_parser = parse_size,
          conflicts_with = "pages", help_heading = "Pages", hide_short_help = true)]
    size: usize,
    /// Read about this much of memory above it: 1G, or all [default: 1G]
    ///
    /// The sample has runs of 16 adjacent pages of --pid, --corpus or a command. Sizes are scaled
    /// to all pages, with the interval in which they lie with 95 % confidence.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["sizes", "trace", "workload", "size"],
          help_heading = "Pages", hide_short_help = true)]
    sample: Option<SampleSize>,
    /// Seed of the built-in workload, or of a sample: same seed, same pages
    #[arg(
        long,
        hide_short_help = true,
        value_name = "N",
        default_value_t = 1,
        conflicts_with_all = ["sizes", "trace"],
        help_heading = "Pages"
    )]
    seed: u64,

    /// zsmalloc (the base), zbud, z3fold, zblock, packed [default: first 3]
    #[arg(
        long,
        help_heading = "Comparison",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "zsmalloc,zbud,z3fold",
        hide_default_value = true
    )]
    zpool: Vec<ZpoolKind>,
    /// lz4, lzo, lzo-rle, zstd:19, deflate, none [default: lz4,zstd]
    ///
    /// A live study has lz4 alone by default.
    #[arg(
        long,
        help_heading = "Comparison",
        value_name = "NAMES",
        value_delimiter = ',',
        conflicts_with = "sizes"
    )]
    compressor: Vec<CompressorKind>,
    /// Filters before the compressors: none, shuffle, auto
    #[arg(long, hide_short_help = true, help_heading = "Comparison", value_name = "NAMES",
          value_delimiter = ',', default_value = Filter::None.name(), conflicts_with = "sizes")]
    filter: Vec<Filter>,
    /// Indexes from page keys to objects
    #[arg(long, hide_short_help = true, help_heading = "Comparison", value_name = "NAMES",
          value_delimiter = ',', default_value = IndexKind::default().name())]
    index: Vec<IndexKind>,
    /// Runs of each combination [default: 5, of a sample 3]
    ///
    /// Each run is a process of its own. Without this, a sample has fewer than 3 runs where they
    /// would take more than 105 seconds.
    #[arg(long, help_heading = "Comparison", value_name = "N",
          value_parser = rounds())]
    runs: Option<usize>,
    /// Pages to free once all are stored: half (random) or odd
    #[arg(long, hide_short_help = true, help_heading = "Comparison",
          value_name = "WHICH", default_value_t = FreedHalf::Random)]
    free: FreedHalf,
    /// Incompressible pages: reject or store-as-is
    #[arg(long, hide_short_help = true, help_heading = "Comparison",
          value_name = "POLICY", default_value_t = Incompressible::Reject)]
    incompressible: Incompressible,
    /// Bytes in front of each object; kernel 6.1: zbud=8,z3fold=8
    #[arg(long, hide_short_help = true, help_heading = "Comparison",
          value_name = "ZPOOL=N", value_delimiter = ',', value_parser = parse_header)]
    object_header: Vec<(ZpoolKind, usize)>,
    /// Longest zspage of zsmalloc in pages, 4 to 16; 4 up to 6.2
    #[arg(long, hide_short_help = true, help_heading = "Comparison", value_name = "N",
          default_value_t = 8,
          value_parser = RangedU64ValueParser::<usize>::new()
              .range(CHAIN_SIZE_MIN as u64..=CHAIN_SIZE_MAX as u64))]
    chain_size: usize,
    /// zsmalloc's choice of chains: used-percent up to 6.2, least-waste since
    #[arg(long, hide_short_help = true, help_heading = "Comparison",
          value_name = "RULE", default_value_t = ChainRule::LeastWaste)]
    chain_rule: ChainRule,
    /// zsmalloc's handles: in-object as in the kernel, or beside
    #[arg(long, hide_short_help = true, help_heading = "Comparison",
          value_name = "PLACE", default_value_t = HandleHeader::InObject)]
    handle_header: HandleHeader,
    /// zsmalloc's ways to objects in two pages: contiguous, copy, vm
    #[arg(long, hide_short_help = true, help_heading = "Comparison", value_name = "NAMES",
          value_delimiter = ',', default_value = ObjectMapping::default().name())]
    mapping: Vec<ObjectMapping>,
    /// Sizes of units, compressed together: 16K, 64K [default: 4K, a page]
    ///
    /// Of one page to 16: 4K, 8K, 16K, 32K, 64K.
    /// Pages go in and out in order: a unit is decompressed once for all of its pages. lz4, zstd
    /// and deflate take units.
    #[arg(long, help_heading = "Comparison", value_name = "SIZES", value_delimiter = ',',
          default_value = "4K", hide_default_value = true, value_parser = parse_unit,
          conflicts_with_all = ["sizes", "trace", "LimitArgs"])]
    unit: Vec<usize>,
    /// Pages that pools take from the kernel: small, or huge where it has them
    #[arg(long, hide_short_help = true, help_heading = "Comparison", value_name = "SIZE",
          default_value_t = HostPages::Small)]
    host_pages: HostPages,
    /// Check for same-filled pages: forward, backward, last-first, vector, off
    #[arg(long, hide_short_help = true, help_heading = "Comparison", value_name = "CHECK",
          default_value_t = SameFilledCheck::default(), conflicts_with = "sizes")]
    same_filled: SameFilledCheck,
    /// Only zero pages are kept as a word, as since 6.12
    #[arg(long, hide_short_help = true, help_heading = "Comparison", conflicts_with = "sizes")]
    same_filled_zero_only: bool,

    #[command(flatten)]
    live: LiveArguments,

    #[command(flatten)]
    limits: LimitArgs,

    /// Print one JSON document instead, or write it to FILE beside the text
    ///
    /// One element of "combinations" for each combination; sizes in bytes, times in seconds with
    /// one value a run, latencies in nanoseconds over all runs with their counts per power of two.
    #[arg(long, value_name = "FILE", num_args = 0..=1, help_heading = "Output")]
    json: Option<Option<PathBuf>>,
    /// Print one CSV row per run instead
    #[arg(long, help_heading = "Output")]
    csv: bool,
    /// Print histograms, all times, settings and a summary, too
    #[arg(long, help_heading = "Output")]
    details: bool,
    /// Print the changes since the JSON document of an earlier comparison
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    baseline: Option<PathBuf>,
    /// Exit with 1 where a change is over a bound: 'pool>2%,store_p50>10%,ratio<-1%'
    ///
    /// A change counts where its 95 % interval does not contain zero. Sizes have no spread. Figures
    /// of a replay: pool, all_in, store_p50, store_p99, load_p50, load_p99, real, sys, user, ratio,
    /// metadata, refused, rss, accesses. Figures of a live study: real, sys, user, engine_cpu,
    /// pool, peak, stored, store_p50, load_p50, fault_p50, fault_p99.
    #[arg(
        long,
        value_name = "BOUNDS",
        value_delimiter = ',',
        requires = "baseline",
        help_heading = "Output",
        hide_short_help = true
    )]
    fail_on: Vec<Bound>,
    #[command(flatten, next_help_heading = "Output")]
    report: ReportArgs,
}

/// Runs of each combination. A sample is 1 GiB by default, and three runs show what five do. A
/// sample of a process of any size is compared in two minutes: the rest of them is for the capture.
const RUNS: usize = 5;
const RUNS_OF_SAMPLE: usize = 3;
const TIME_OF_SAMPLE: Duration = Duration::from_secs(105);

/// Compressors of a replay where none is named.
const REPLAY_COMPRESSORS: [CompressorKind; 2] = [CompressorKind::Lz4, CompressorKind::Zstd(3)];

impl Compare {
    pub(super) fn run(self) -> Result<(), Failure> {
        interrupt::watch().context("cannot install signal handlers").map_err(Failure::Machine)?;
        check_filter(&self.compressor, &self.filter)?;
        let choice = LiveChoice {
            command: &self.command,
            zpools: &self.zpool,
            compressors: &self.compressor,
            filters: &self.filter,
            indexes: &self.index,
            unit_pages: &self.unit,
            runs: self.runs.unwrap_or(RUNS),
        };
        let experiment = self.live.experiment(&choice)?;
        if self.csv && matches!(self.json, Some(None)) {
            return Err(Failure::Usage(anyhow!(
                "--json without a FILE cannot be used with --csv: both go to standard output"
            )));
        }
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let screen = Screen::new(window::columns(), self.details);
        let mut page = self.report.open()?;
        if let Some(experiment) = experiment {
            let baseline = self.open_baseline(Schema::CompareLimit)?;
            let report = live::study(&experiment);
            interrupt::end_if_noted();
            let mut report = report?;
            report.conclusions.baseline = baseline.map(|old| old.changes(&report, &self.fail_on));
            let printed = output.print_document(&report, || match self.csv {
                true => report.to_csv(),
                false => report.to_text(screen),
            });
            page.write(&report).and(printed)?;
            return live::verdict(&report).and(held(report.conclusions.baseline.as_ref()));
        }
        let baseline = self.open_baseline(Schema::Compare)?;
        let report = self.compare();
        // Children are gone and files removed: an interrupt may have its effect now.
        interrupt::end_if_noted();
        let mut report = report?;
        report.conclusions.baseline = baseline.map(|old| old.changes(&report, &self.fail_on));
        let printed = output.print_document(&report, || match self.csv {
            true => report.to_csv(),
            false => report.to_text(screen),
        });
        page.write(&report).and(printed)?;
        held(report.conclusions.baseline.as_ref())
    }

    /// Reads the older document before any work is done.
    fn open_baseline(&self, schema: Schema) -> Result<Option<Baseline>, Failure> {
        let Some(path) = &self.baseline else { return Ok(None) };
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read --baseline {}", path.display()))
            .map_err(Failure::Usage)?;
        let baseline = Baseline::parse(&path.display().to_string(), &text, schema.name());
        baseline.map(Some).map_err(|why| Failure::Usage(anyhow!("--baseline: {why}")))
    }

    fn compare(&self) -> Result<Report, Failure> {
        if self.tree && self.pid.is_none() && self.command.is_empty() {
            return Err(Failure::Usage(anyhow!("--tree needs --pid or a command")));
        }
        let has_pages = self.pid.is_some() || self.corpus.is_some() || !self.command.is_empty();
        if self.sample.is_some() && !has_pages {
            return Err(Failure::Usage(anyhow!("--sample needs --pid, --corpus or a command")));
        }
        for (place, (zpool, _)) in self.object_header.iter().enumerate() {
            if self.object_header[..place].iter().any(|(other, _)| other == zpool) {
                return Err(Failure::Usage(anyhow!(
                    "--object-header gives {zpool} twice; give each allocator once"
                )));
            }
        }
        if self.same_filled_zero_only && self.same_filled == SameFilledCheck::Off {
            return Err(Failure::Usage(anyhow!(
                "--same-filled-zero-only does not work with --same-filled off; choose a check"
            )));
        }
        check_units(self.unit.iter().copied().max().unwrap_or(1), &self.compressor)?;
        self.limits.check()?;
        let source = self.source()?;
        let warnings = self.warnings(source.info.pages);
        let limits = self.limits.of(source.info.pages, self.seed)?;
        let settings = Settings {
            chain_size: self.chain_size,
            chain_rule: self.chain_rule,
            handle_header: self.handle_header,
            host_pages: self.host_pages,
            incompressible: self.incompressible,
            free: self.free,
            same_filled: self.same_filled,
            same_filled_zero_only: self.same_filled_zero_only,
        };
        let is_sample = source.info.sample.is_some();
        let runs = if is_sample { RUNS_OF_SAMPLE } else { RUNS };
        let experiment = Experiment {
            corpus: source.file.clone(),
            pages: source.count(),
            kinds: Some(source.kinds.clone()),
            units: source.units.clone(),
            zpools: distinct(&self.zpool),
            indexes: distinct(&self.index),
            mappings: distinct(&self.mapping),
            unit_pages: distinct(&self.unit),
            compressors: self.compressors(),
            runs: self.runs.unwrap_or(runs),
            time_max: (is_sample && self.runs.is_none()).then_some(TIME_OF_SAMPLE),
            is_brief: false,
            settings,
            object_headers: self.object_header.clone(),
            limits,
        };
        let result = with_progress(|progress| experiment.run(progress));
        if result.is_err() {
            self.limits.remove_left(&experiment);
        }
        let combinations = result?;
        let limits = experiment.limits.map(|limits| limits.settings);
        let mut report = Report::new(source.info, settings, limits, &combinations);
        report.conclusions.notes.splice(0..0, warnings);
        Ok(report)
    }

    /// The compressors of a replay, each behind each filter.
    fn compressors(&self) -> Vec<FilteredKind> {
        let kinds = match &self.compressor[..] {
            [] => REPLAY_COMPRESSORS.to_vec(),
            named => distinct(named),
        };
        let filters = distinct(&self.filter);
        let behind_each =
            |compressor| filters.iter().map(move |&filter| FilteredKind { compressor, filter });
        kinds.into_iter().flat_map(behind_each).collect()
    }

    /// Remarks on the pages that a reader needs before any figure.
    fn warnings(&self, pages: u64) -> Vec<String> {
        let has_own = self.corpus.is_some()
            || self.pid.is_some()
            || self.sizes.is_some()
            || self.trace.is_some()
            || !self.command.is_empty();
        let mut warnings = Vec::new();
        if !has_own {
            warnings.push(
                "These pages come from a built-in workload; no program runs. For your own pages \
                 use --corpus, --pid or -- COMMAND; to run a command under a limit, use --limit \
                 60% -- COMMAND."
                    .to_owned(),
            );
        }
        if pages < FEW_PAGES {
            warnings.push(format!(
                "Only {pages} pages: most zspages of zsmalloc are partly filled, so zsmalloc looks \
                 less dense than it is. Use at least {} pages.",
                thousands(FEW_PAGES)
            ));
        }
        warnings
    }

    fn source(&self) -> Result<Source, Failure> {
        if let Some(path) = &self.sizes {
            return Source::of_sizes(path);
        }
        if let Some(path) = &self.trace {
            return Source::of_trace(path);
        }
        let plan = sample_size::plan(self.sample, self.seed);
        if let Some(path) = &self.corpus {
            return Source::of_file(path, plan);
        }
        let options = CaptureOptions {
            sample: plan,
            tree: self.tree,
            stdout_to_stderr: true,
            ..CaptureOptions::default()
        };
        if let Some(pid) = self.pid {
            return Source::captured(&format!("capturing process {pid}"), |path| {
                capture_pid(pid, path, &options)
            });
        }
        if !self.command.is_empty() {
            // No words: the command may print.
            return Source::captured("", |path| {
                capture_command(&self.command, self.at.0, path, &options)
            });
        }
        Source::of_workload(self.workload, self.seed, self.size)
    }
}

/// Whether all bounds hold.
fn held(changes: Option<&Changes>) -> Result<(), Failure> {
    let broken = changes.map_or(&[][..], |changes| &changes.broken_bounds);
    match broken {
        [] => Ok(()),
        broken => Err(Failure::Check(anyhow!("--fail-on: {}", broken.join("; ")))),
    }
}

fn parse_header(text: &str) -> Result<(ZpoolKind, usize), String> {
    let (zpool, bytes) = text
        .split_once('=')
        .ok_or_else(|| "expected ZPOOL=BYTES, as in zbud=8,z3fold=8".to_owned())?;
    let zpool = zpool.parse().map_err(|error: UnknownName| error.to_string())?;
    let bytes = bytes.parse().ok().filter(|&bytes| bytes <= OBJECT_HEADER_MAX);
    let bytes =
        bytes.ok_or_else(|| format!("an object header must be 0 to {OBJECT_HEADER_MAX} bytes"))?;
    Ok((zpool, bytes))
}
