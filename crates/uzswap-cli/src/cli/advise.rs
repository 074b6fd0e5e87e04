//! `uzswap advise`: settings for `uzswap run`, zram and zswap, from the pages of a program.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use super::Failure;
use super::args::parse_time;
use super::corpus::Source;
use super::json::JsonOutput;
use super::live;
use super::progress::with_progress;
use super::report_args::ReportArgs;
use super::run::{ZPOOL, usual_filter};
use super::sample_size::{self, SampleSize};
use super::window;
use crate::advise::machine::SwapState;
use crate::advise::{AdviceReport, Runtime, Target, Trial};
use crate::corpus::capture::{
    CaptureAt, CaptureOptions, capture_command, capture_pid, capture_system,
};
use crate::corpus::sample::SamplePlan;
use crate::html::shell_line;
use crate::measure::experiment::{Experiment, Settings};
use crate::measure::live::{LiveCommand, LiveExperiment, LiveLimit, LiveParts};
use crate::report::{Report, Screen};
use uzswap::compressor::{CompressorKind, FilteredKind};
use uzswap::index::IndexKind;
use uzswap::page::PAGE_SIZE;
use uzswap::zpool::ZpoolKind;
use uzswap::zpool::zsmalloc::ObjectMapping;
use uzswap_kernel_swap::SwapBacking;
use uzswap_sys::interrupt;

/// The compressors to choose from: each is in kernels of today, and in `uzswap run`.
const COMPRESSORS: [CompressorKind; 3] =
    [CompressorKind::Lz4, CompressorKind::LzoRle, CompressorKind::Zstd(3)];

/// Runs of each compressor: sizes are the same in each, and a median of thousands of stores and
/// loads needs no more.
const RUNS: usize = 1;

/// Runs under the limit for `--try`.
const TRIALS: usize = 3;

/// The sample of a command, whose user waits, and of anything else.
const SAMPLE_OF_COMMAND: u64 = 64 << 20;
const SAMPLE: u64 = 256 << 20;

/// The time of the measurement is one part in so many of the command's own.
const COMMAND_SHARE: u32 = 10;

/// One page in all of the compressors, stored and loaded: some 60 us on a processor of 2020.
const PAGE_TIME: Duration = Duration::from_micros(80);

/// Pages that are measured however short a command is: fewer are little more than a guess.
const PAGES_MIN: u64 = 1 << 11; // 2,048

/// What `uzswap advise` is asked for.
///
/// A sample of the pages is compressed by lz4, lzo-rle and zstd, as `uzswap run` does it and as the
/// kernel does it. The advice is for the running kernel; nothing is changed. Without a target, it
/// is for the whole machine (--system).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 with advice, also if it is to change nothing; 3 if no memory \
                        can be read."
)]
pub(super) struct Advise {
    /// Advise for this command, by its pages when it has most of them
    #[arg(last = true, value_name = "CMD", group = "target")]
    command: Vec<OsString>,
    /// Advise for a running process
    #[arg(long, value_name = "PID", group = "target",
          value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Include the pages of the process's descendants; those of a command always count
    #[arg(long)]
    tree: bool,
    /// Advise for the pages of a file: a page set, a core dump
    #[arg(long, value_name = "FILE", group = "target")]
    corpus: Option<PathBuf>,
    /// Advise for the machine, by all processes that you may read
    #[arg(long, group = "target")]
    system: bool,
    /// Most time for reading the processes of --system: 500ms, 30s
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "10s")]
    budget: Duration,
    /// Time to watch which pages a process of --pid touches
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "1s",
          requires = "pid")]
    observe: Duration,
    /// Memory to measure, or all of it [default: 256M; of a command at most 64M, and in a tenth of
    /// its time]
    #[arg(long, value_name = "SIZE")]
    sample: Option<SampleSize>,
    /// Run the command again without a limit and three times under the advised one, and state the
    /// times
    #[arg(long = "try", requires = "command")]
    is_tried: bool,
    /// Seed of the sample: same seed, same pages
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON document instead, or write it to FILE beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
    #[command(flatten)]
    report: ReportArgs,
}

impl Advise {
    pub(super) fn run(self) -> Result<(), Failure> {
        interrupt::watch().context("cannot install signal handlers").map_err(Failure::Machine)?;
        if self.tree && self.pid.is_none() {
            return Err(Failure::Usage(anyhow!("--tree needs --pid")));
        }
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let mut page = self.report.open()?;
        let report = self.advice().and_then(|report| self.tried(report));
        interrupt::end_if_noted();
        let report = report?;
        let screen = Screen::new(window::columns(), false);
        let printed = output.print_document(&report, || report.to_text(screen));
        page.write(&report).and(printed)
    }

    fn advice(&self) -> Result<AdviceReport, Failure> {
        let source = self.source()?;
        let target = self.target(&source);
        let settings = Settings::default();
        let of_run = Experiment {
            corpus: source.file.clone(),
            pages: source.count(),
            kinds: None,
            units: source.units.clone(),
            zpools: vec![ZPOOL],
            indexes: vec![IndexKind::default()],
            mappings: vec![ObjectMapping::default()],
            unit_pages: vec![1],
            compressors: COMPRESSORS.map(filtered).to_vec(),
            runs: RUNS,
            time_max: None,
            is_brief: true,
            settings,
            object_headers: Vec::new(),
            limits: None,
        };
        let of_kernel = Experiment {
            zpools: vec![ZpoolKind::Zsmalloc],
            compressors: COMPRESSORS.map(FilteredKind::from).to_vec(),
            ..of_run.clone()
        };
        let mut combinations = with_progress(|progress| of_run.run(progress))?;
        combinations.extend(with_progress(|progress| of_kernel.run(progress))?);
        let report = Report::new(source.info, settings, None, &combinations);
        let windows = source.observed.windows;
        Ok(AdviceReport::new(target, report, windows, SwapState::of_this_machine()))
    }

    /// Runs the command under the limit that was found, if that is asked for.
    fn tried(&self, report: AdviceReport) -> Result<AdviceReport, Failure> {
        let Some((limit_bytes, compressor)) = report.limit().filter(|_| self.is_tried) else {
            return Ok(report);
        };
        let compressor: CompressorKind = compressor.parse().expect("it is one of ours");
        let experiment = LiveExperiment {
            command: LiveCommand::new(self.command.clone()),
            parts: vec![LiveParts::Uzswap {
                zpool: ZPOOL,
                compressor: filtered(compressor),
                index: IndexKind::default(),
                unit_pages: 1,
            }],
            rounds: TRIALS,
            limit: LiveLimit::Bytes(limit_bytes),
            find_limit: false,
            kernel_backing: SwapBacking::Loop,
            has_usual_compressor: false,
        };
        let study = live::study(&experiment)?;
        let row = &study.combinations[0];
        let failure = row.failure.as_ref().map(|failure| failure.message.clone());
        let trial = Trial::new(&study.warm_up, &row.runs, failure);
        Ok(report.tried(trial))
    }

    fn source(&self) -> Result<Source, Failure> {
        let default = if self.command.is_empty() { SAMPLE } else { SAMPLE_OF_COMMAND };
        let size = self.sample.unwrap_or(SampleSize::Bytes(default));
        let options = CaptureOptions {
            sample: sample_size::plan(Some(size), self.seed),
            // A command is often a shell or make, whose children have the memory.
            tree: self.tree || !self.command.is_empty(),
            stdout_to_stderr: true,
            touches: Some(self.observe),
            ..CaptureOptions::default()
        };
        if let Some(path) = &self.corpus {
            return Source::of_file(path, options.sample);
        }
        if let Some(pid) = self.pid {
            return Source::captured(&format!("sampling process {pid}"), |path| {
                capture_pid(pid, path, &options)
            });
        }
        if !self.command.is_empty() {
            let start = Instant::now();
            let source = Source::captured("", |path| {
                capture_command(&self.command, CaptureAt::Peak, path, &options)
            })?;
            return match self.sample {
                Some(_) => Ok(source),
                None => source.thinned(plan_for(start.elapsed(), self.seed)),
            };
        }
        Source::captured("sampling all processes", |path| {
            capture_system(path, &options, self.budget)
        })
    }

    fn target(&self, source: &Source) -> Target {
        let pages = source.info.sample.map_or(source.info.pages, |sample| sample.of_pages);
        let pages = pages.max(source.peak_pages.unwrap_or(0));
        let program = self.command.first().map(|name| name.to_string_lossy().into_owned());
        let names = program.iter().map(String::as_str);
        let mappings = source.mappings.iter().map(String::as_str);
        Target {
            origin: source.info.origin.clone(),
            command: (!self.command.is_empty()).then(|| shell_line(&self.command)),
            bytes: pages * PAGE_SIZE as u64,
            is_machine: self.command.is_empty() && self.pid.is_none() && self.corpus.is_none(),
            runtime: names.chain(mappings).find_map(Runtime::of),
            uncounted: source.observed.uncounted,
            unmanaged: source.observed.unmanaged.clone(),
        }
    }
}

/// A compressor with the filter that `run` has by default.
fn filtered(compressor: CompressorKind) -> FilteredKind {
    FilteredKind { compressor, filter: usual_filter(compressor) }
}

/// The pages to measure of a command that took so long.
fn plan_for(taken: Duration, seed: u64) -> SamplePlan {
    let pages = (taken / COMMAND_SHARE).as_nanos() / PAGE_TIME.as_nanos();
    let pages = u64::try_from(pages).unwrap_or(u64::MAX).max(PAGES_MIN);
    SamplePlan { pages_max: Some(pages), seed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_command_is_measured_in_a_tenth_of_its_time() {
        let pages = |millis| plan_for(Duration::from_millis(millis), 1).pages_max.unwrap();
        assert_eq!(pages(0), PAGES_MIN);
        assert_eq!(pages(2000), 2500, "0.2 s of 80 us a page");
        assert_eq!(pages(20_000), 25_000);
    }
}
