//! `uzswap run`: runs a program in less memory.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime};

use super::Failure;
use super::args::check_units;
use super::filter::check_filter;
use super::json::{ReportFile, is_usage, json};
use super::limit_args::no_backing;
use super::program::why_unmanageable;
use super::report_args::ReportArgs;
use super::size::{parse_size, parse_unit};
use crate::corpus::page_set::rfc3339;
use crate::human_size::human_size;
use crate::report::{Envelope, Schema};
use uzswap::budget::Counted;
use uzswap::compressor::{CompressorKind, CompressorNameError, Filter};
use uzswap::index::IndexKind;
use uzswap::named_enum::UnknownName;
use uzswap::page::PAGE_SIZE;
use uzswap::trace::{TraceAbout, TraceError};
use uzswap::zpool::ZpoolKind;
use uzswap::zswap::{Incompressible, RecordOptions, WrittenAs, ZswapOptions};
use uzswap_pager::doctor;
use uzswap_pager::{MetricsAddress, RunError, RunOptions, RunReport, WriteBackOptions, run};
use uzswap_sys::stderr::{self, log};
use uzswap_sys::wait;

/// The default dense compressor: a third smaller than lz4, in three times its time.
const DENSE: CompressorKind = CompressorKind::Zstd(1);

const AUTO: &str = "auto";

/// What compresses pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    /// lz4, and [`DENSE`] once the pool leaves programs too little.
    Auto,
    /// This one.
    By(CompressorKind),
}

impl Compression {
    /// The compressor of fresh pages, and the one that recompresses them later, if it differs.
    fn kinds(self) -> (CompressorKind, Option<CompressorKind>) {
        match self {
            Compression::Auto => (CompressorKind::Lz4, Some(DENSE)),
            Compression::By(kind) => (kind, None),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::Auto => f.write_str(AUTO),
            Compression::By(kind) => kind.fmt(f),
        }
    }
}

impl FromStr for Compression {
    type Err = CompressorNameError;

    fn from_str(text: &str) -> Result<Self, CompressorNameError> {
        match text.parse() {
            Ok(kind) => Ok(Compression::By(kind)),
            Err(_) if text == AUTO => Ok(Compression::Auto),
            Err(CompressorNameError::Unknown(UnknownName { what, name, known })) => {
                Err(UnknownName { what, name, known: format!("{AUTO}, {known}") }.into())
            }
            Err(other) => Err(other),
        }
    }
}

/// The allocator where none is named. In 30 % of their memory, programs take 0.67 to 0.98 of the
/// time that they take with zsmalloc (docs/experiments/2026-11-30-density.md).
pub(super) const ZPOOL: ZpoolKind = ZpoolKind::Packed;

/// The filter where none is named.
pub(super) fn usual_filter(compressor: CompressorKind) -> Filter {
    match compressor {
        CompressorKind::None => Filter::None, // its objects would be longer than a page
        _ => Filter::Auto,
    }
}

/// What `uzswap run` is asked for.
#[derive(Debug, clap::Args)]
#[command(override_usage = "uzswap run [OPTIONS] -- COMMAND [ARGUMENTS]")]
pub(super) struct Run {
    /// Memory for the program, its children and the pool: 512M [default: 7/8 of available memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<usize>,
    /// Allocator: zsmalloc, z3fold, zbud, zblock, packed
    #[arg(long, value_name = "NAME", default_value_t = ZPOOL)]
    zpool: ZpoolKind,
    /// Compressor: auto (lz4, then zstd under pressure), lz4, lzo, lzo-rle, zstd, deflate, none
    #[arg(long, value_name = "NAME", default_value_t = Compression::Auto)]
    compressor: Compression,
    /// Pages that leave together are compressed together: 16K, 64K; 4K is a page
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = parse_unit)]
    unit: usize,
    /// Filter before the compressor: none, shuffle, auto [default: auto]
    #[arg(long, value_name = "NAME")]
    filter: Option<Filter>,
    /// Index: radix, rbtree, btree, btree32, xarray
    #[arg(long, value_name = "NAME", default_value_t = IndexKind::Radix)]
    index: IndexKind,
    /// Write the statistics of the run to a file, as JSON
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
    /// Serve Prometheus metrics at 127.0.0.1:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<MetricsAddress>,
    /// File to write cold pages to; created, and removed at the end
    #[arg(long, value_name = "FILE")]
    backing: Option<PathBuf>,
    /// Pool size from which pages are written back [default: half the limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "backing")]
    max_pool: Option<usize>,
    /// Record all stores, loads and frees in a trace, for compare --trace
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Share of all processors that the supervisor may take first while others wait, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u8).range(..=100))]
    cpu_share: u8,
    /// Fail before the start if the program cannot be managed (static, setuid, 32-bit)
    #[arg(long)]
    require_managed: bool,
    /// Print only errors of uzswap itself
    #[arg(long)]
    quiet: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    /// Runs the program; its exit code is ours, unless that is 0 and an output was not written.
    pub(super) fn run(self) -> ExitCode {
        match self.run_program() {
            Ok(code) => code,
            Err(failure) => {
                log(&format!("{:#}", failure.error()));
                ExitCode::from(failure.code())
            }
        }
    }

    fn run_program(self) -> Result<ExitCode, Failure> {
        let limit = match self.limit {
            Some(limit) => limit as u64,
            None => usual_limit()?,
        };
        if limit < LIMIT_MIN {
            return Err(Failure::Usage(anyhow::anyhow!(
                "--limit must be at least {1}, got {0}",
                human_size(limit),
                human_size(LIMIT_MIN)
            )));
        }
        let max_pool = self.max_pool.map_or(limit / 2, |bytes| bytes as u64);
        if max_pool >= limit {
            return Err(Failure::Usage(anyhow::anyhow!(
                "--max-pool {} must be less than --limit {}",
                human_size(max_pool),
                human_size(limit)
            )));
        }
        if self.require_managed
            && let Some((program, why)) = why_unmanageable(&self.command[0])
        {
            return Err(Failure::Machine(anyhow::anyhow!(
                "cannot manage {}: {why}; without --require-managed, its memory counts but cannot \
                 be evicted",
                program.display()
            )));
        }
        let write_back = self.backing.clone();
        let write_back = write_back.map(|path| WriteBackOptions { path, max_pool_bytes: max_pool });
        let (compressor, dense) = self.compressor.kinds();
        check_units(self.unit, [compressor].iter().chain(&dense))?;
        let filter = self.filter.unwrap_or(usual_filter(compressor));
        check_filter(&[compressor], &[filter])?;
        let options = RunOptions {
            limit_bytes: limit,
            store: ZswapOptions::bare()
                .zpool(self.zpool)
                .compressor(compressor)
                .dense(dense)
                .unit_pages(self.unit)
                .filter(filter)
                .index(self.index)
                .incompressible(Incompressible::StoreAsIs)
                .counted(Counted::PoolAndMetadata)
                .records(write_back.is_some().then(RecordOptions::default))
                .written_as(WrittenAs::Objects)
                .latencies(self.stats.is_some() || self.report.is_given()),
            write_back,
            record: self.record.clone().map(|path| (path, self.about(limit, filter))),
            cpu_share_percent: self.cpu_share,
            quiet: self.quiet,
            metrics: self.metrics.clone(),
        };
        let stats = self.stats.as_ref().map(|path| ReportFile::open("--stats", path));
        let stats = stats.transpose()?;
        let mut page = self.report.open()?;
        let start = Instant::now();
        let (status, report) = match run(&self.command, &options) {
            Ok(done) => done,
            // As env(1), nohup(1) and time(1) have it.
            Err(RunError::Program { program, source }) => {
                let code = match source.kind() {
                    std::io::ErrorKind::NotFound => 127,
                    _ => 126,
                };
                let error = anyhow::Error::from(RunError::Program { program, source });
                log(&format!("{error:#}"));
                return Ok(ExitCode::from(code));
            }
            Err(RunError::Metrics { address, source }) => {
                let is_machine = !is_usage(&source);
                return Err(Failure::of(is_machine, RunError::Metrics { address, source }));
            }
            Err(RunError::Backing(error)) => return Err(no_backing(error)),
            Err(RunError::Trace(error @ TraceError::Write { .. })) => {
                return Err(Failure::Check(error.into()));
            }
            Err(RunError::Trace(error)) => {
                return Err(Failure::of(error.is_machine(), error));
            }
            Err(error) => return Err(Failure::Machine(error.into())),
        };
        // The recorder has said why.
        let mut is_kept = report.trace.as_ref().is_none_or(|trace| trace.complete);
        let envelope = Envelope::new(Schema::Run);
        let document = envelope.around(&report);
        let kept = stats.map_or(Ok(()), |mut file| file.write(&json(&document)));
        for failure in [kept, page.write(&document)].into_iter().filter_map(Result::err) {
            log(&format!("{:#}", failure.error()));
            is_kept = false;
        }
        if !self.quiet {
            stderr::write(&summary(&report, start.elapsed()));
        }
        if let Some(signal) = status.signal() {
            wait::end_by(signal);
            return Ok(ExitCode::from(128 + signal as u8)); // 1 to 64
        }
        Ok(match status.code() {
            Some(0) if !is_kept => ExitCode::from(NOT_KEPT),
            code => ExitCode::from(code.unwrap_or(1) as u8), // 0 to 255
        })
    }

    /// Description of this run in the header of a trace.
    fn about(&self, limit: u64, filter: Filter) -> TraceAbout {
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let Run { zpool, compressor, index, unit, .. } = self;
        let limit = human_size(limit);
        let mut parts = String::new();
        if !filter.is_none() {
            parts += &format!(" --filter {filter}");
        }
        if *unit > 1 {
            parts += &format!(" --unit {}K", unit * PAGE_SIZE / 1024);
        }
        TraceAbout {
            origin: format!(
                "run --limit {limit} --zpool {zpool} --compressor {compressor}{parts} --index \
                 {index} -- {}",
                words.join(" ")
            ),
            recorded_at: rfc3339(SystemTime::now()),
        }
    }
}

/// The exit code where the program did well, and its trace or its figures could not be written.
const NOT_KEPT: u8 = 1;

/// The least limit that is taken, in bytes: what is less was meant to have a unit.
const LIMIT_MIN: u64 = 1 << 20;

/// The least limit that is taken where none is given, in bytes: with less, programs hardly run.
const USUAL_LIMIT_MIN: u64 = 16 << 20;

/// The limit where none is given: what is left is for files and for what others need meanwhile.
fn usual_limit() -> Result<u64, Failure> {
    let available = doctor::available_memory().ok_or_else(|| {
        Failure::Machine(anyhow::anyhow!(
            "cannot determine available memory (no MemAvailable in /proc/meminfo); pass --limit"
        ))
    })?;
    Ok((available / 8 * 7).max(USUAL_LIMIT_MIN))
}

/// The report at the end of a run.
fn summary(report: &RunReport, wall: Duration) -> String {
    let size = |bytes: u64| human_size(bytes);
    let micros = |ns: u64| ns as f64 / 1000.0;
    let RunReport { counts, faults, backing, trace, .. } = report;
    let written = backing.as_ref().map_or(String::new(), |backing| {
        format!(
            "uzswap: {} pages written back to {}, {} read from it\n",
            backing.written_back_pages,
            backing.path.display(),
            backing.read_pages
        )
    });
    let recorded = trace.as_ref().map_or(String::new(), |trace| {
        let totals = trace.totals;
        format!(
            "uzswap: recorded {} stores, {} loads, {} frees in {}{}\n",
            totals.stores,
            totals.loads,
            totals.frees,
            size(trace.bytes),
            if trace.complete { "" } else { ", incomplete: the recording failed" }
        )
    });
    let pool = report.ratio.map_or(String::new(), |ratio| {
        format!("; pool {} at most ({ratio:.1} to 1)", size(report.pool_peak_bytes))
    });
    let recompressed = match report.store.recompressed_pages {
        0 => String::new(),
        pages => format!(", {pages} recompressed"),
    };
    let tables = match report.has_large_page_tables() {
        true => format!(
            "uzswap: {} of page tables in the kernel, beside the limit: few pages of each 2 MiB \
             are in use\n",
            size(report.page_tables_peak_bytes)
        ),
        false => String::new(),
    };
    let limit = size(report.limit_bytes);
    let peak = match report.peak_bytes {
        0 => format!("ended before the first sample of its memory; limit {limit}"),
        peak => {
            let at = report.at_peak;
            let unmanaged = match at.unmanaged_bytes {
                0 => String::new(),
                bytes => format!(" ({} unmanaged)", size(bytes)),
            };
            format!(
                "peak {} of {limit}: {} resident{unmanaged}, {} pool, {} metadata",
                size(peak),
                size(at.resident_bytes + at.unmanaged_bytes),
                size(at.pool_bytes),
                size(at.metadata_bytes),
            )
        }
    };
    let uncounted = report.uncounted.text(size);
    let uncounted =
        uncounted.map_or(String::new(), |text| format!("uzswap: not counted: {text}\n"));
    format!(
        "uzswap: {:.2} s; {peak}\n\
         uzswap: {} pages stored, {} restored, {} rescued, {} fresh{recompressed}{pool}\n\
         uzswap: {} faults, p50 {:.1} us, p99 {:.1} us, {:.2} s in all; our own: {:.2} s of \
         processor, {}\n{uncounted}{tables}{written}{recorded}",
        wall.as_secs_f64(),
        counts.stored_pages,
        counts.restored_pages,
        counts.staging_hits,
        counts.fresh_pages,
        faults.count,
        micros(faults.p50_ns),
        micros(faults.p99_ns),
        Duration::from_nanos(faults.sum_ns).as_secs_f64(),
        Duration::from_nanos(report.own_cpu_ns).as_secs_f64(),
        size(report.own_bytes),
    )
}
