//! `uzswap bench swapload`: a simulated machine that swaps, with one index or another.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use serde::Serialize;

use super::parse_seconds;

use super::{three_digits, with_range};
use crate::cli::Failure;
use crate::cli::args::distinct;
use crate::cli::json::JsonOutput;
use crate::cli::report_args::ReportArgs;
use crate::cli::size::{check_available, parse_size};
use crate::lab::report::format::{table, thousands, trimmed, wrapped};
use crate::lab::report::{Envelope, Schema, Stats};
use crate::lab::study::Spread;
use crate::lab::study::swapload::{Cell, Swapload, SwaploadRun, child};
use uzswap::compressor::CompressorKind;
use uzswap::index::IndexKind;
use uzswap::page::PAGE_SIZE;

/// What `uzswap bench swapload` is asked for.
///
/// 4 io-like and 4 vm-like workers use a store of z3fold at once; all pages are in it when the
/// clock starts. A vm-like operation pages one page in and one out, in a sweep through the worker's
/// own keys; every second page is invalidated when it comes in, the others are replaced when they
/// go out. An io-like operation pages four random pages of a small range in and out. Contents are
/// patterns as stress-ng's vm workers write them. Each run is a process of its own, taking turns.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct SwaploadArgs {
    /// Indexes to compare; rbtree is the base
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "rbtree,btree,radix")]
    index: Vec<IndexKind>,
    /// Shards of the index, a lock each: 1 as in 2019, 64 as in this store; 1,64 for both
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1",
          value_parser = parse_shards)]
    shards: Vec<usize>,
    /// Compressor: lz4, lzo, lzo-rle, zstd, deflate, none
    #[arg(long, value_name = "NAME", default_value = "lz4")]
    compressor: CompressorKind,
    /// Pages to swap, and limit of the pool
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_pages)]
    size: u64,
    /// Length of a run, once all pages are stored
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = parse_seconds)]
    seconds: Duration,
    /// Runs of each index with each number of shards
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    runs: usize,
    /// Print one JSON document instead, or write it to FILE beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
    #[command(flatten)]
    report: ReportArgs,
}

/// The printed report; with `--json`, as it is.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    envelope: Envelope,
    bytes: u64,
    compressor: String,
    seconds: f64,
    /// Runs of each cell.
    runs_each: usize,
    cells: Vec<Figures>,
}

/// An index with a number of shards.
#[derive(Debug, Serialize)]
struct Figures {
    shards: usize,
    index: &'static str,
    io: Rate,
    vm: Rate,
    /// The same for each second of processor time: other load on the machine weighs less.
    io_per_cpu: Rate,
    /// The same.
    vm_per_cpu: Rate,
    /// Operations of the index.
    index_operations: Rate,
    /// Nanoseconds an operation of the index, alone.
    index_ns: Spread,
    /// The share of the processor time that is the index's, 0 to 1.
    index_share: Spread,
    cpus_used: Spread,
}

/// Operations a second.
#[derive(Debug, Serialize)]
struct Rate {
    mean: f64,
    stddev: f64,
    min: f64,
    max: f64,
    /// The mean over the red-black tree's.
    times_rbtree: Option<f64>,
    /// The ratios run by run.
    times_rbtree_by_run: Option<Spread>,
}

impl SwaploadArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        // The pool may come to that.
        check_available(self.size as usize * PAGE_SIZE)?;
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let mut page = self.report.open()?;
        let study = Swapload {
            indexes: distinct(&self.index),
            shards: distinct(&self.shards),
            compressor: self.compressor,
            pages: self.size,
            time: self.seconds,
            runs: self.runs,
        };
        let cells = super::with_progress(|progress| study.run(progress))?;
        let report = Report {
            envelope: Envelope::new(Schema::BenchSwapload),
            bytes: study.pages * PAGE_SIZE as u64,
            compressor: study.compressor.to_string(),
            seconds: study.time.as_secs_f64(),
            runs_each: study.runs,
            cells: cells.iter().map(|cell| Figures::of(cell, &cells)).collect(),
        };
        let printed = output.print_document(&report, || report.text());
        page.write(&report).and(printed)
    }
}

/// The inner command that does one run.
pub(in crate::cli) fn run_one() -> Result<(), Failure> {
    super::answer("swapload", child(io::stdin().lock(), io::stdout().lock()))
}

/// A power of two up to 65,536.
fn parse_shards(text: &str) -> Result<usize, String> {
    let shards = text.parse().ok().filter(|&shards: &usize| shards.is_power_of_two());
    let shards = shards.filter(|&shards| shards <= 1 << 16);
    shards.ok_or_else(|| "shards must be a power of two from 1 to 65536".to_owned())
}

/// A size in whole pages.
fn parse_pages(text: &str) -> Result<u64, String> {
    let pages = (parse_size(text)? / PAGE_SIZE) as u64;
    if pages < Swapload::PAGES_MIN {
        let least = (Swapload::PAGES_MIN * PAGE_SIZE as u64) >> 20;
        return Err(format!("size must be at least {least}M for 8 workers"));
    }
    Ok(pages)
}

impl Figures {
    /// Of a cell, against the red-black tree's among all of them.
    fn of(cell: &Cell, cells: &[Cell]) -> Figures {
        let base = cells
            .iter()
            .find(|other| other.shards == cell.shards && other.index == IndexKind::RbTree);
        let values = |cell: &Cell, of: fn(&SwaploadRun) -> f64| -> Vec<f64> {
            cell.runs.iter().map(of).collect()
        };
        let rate = |of| {
            let own = values(cell, of);
            let Stats { mean, stddev, min, max, .. } = Stats::of(&own);
            let base = base.map(|base| values(base, of));
            Rate {
                mean,
                stddev,
                min,
                max,
                times_rbtree: base.as_ref().map(|base| mean / Stats::of(base).mean),
                times_rbtree_by_run: base.map(|base| Spread::of_ratios(&own, &base)),
            }
        };
        let spread = |of| Spread::of(&values(cell, of));
        Figures {
            shards: cell.shards,
            index: cell.index.name(),
            io: rate(|run| run.io_per_second),
            vm: rate(|run| run.vm_per_second),
            io_per_cpu: rate(|run| run.io_per_second / run.cpus_used),
            vm_per_cpu: rate(|run| run.vm_per_second / run.cpus_used),
            index_operations: rate(|run| run.index_per_second),
            index_ns: spread(|run| run.index_ns),
            index_share: spread(SwaploadRun::index_share),
            cpus_used: spread(|run| run.cpus_used),
        }
    }
}

impl Report {
    fn text(&self) -> String {
        let machine = &self.envelope.machine;
        let mut text = format!(
            "uzswap {} bench swapload: 4 io-like and 4 vm-like workers, {} MiB of pages, z3fold, \
             {}\n\
             settings  {} runs of {} s of each, taking turns, each in a process of its own\n\
             machine   Linux {}, {} x {}\n",
            self.envelope.version,
            self.bytes >> 20,
            self.compressor,
            self.runs_each,
            self.seconds,
            machine.kernel,
            machine.cpus,
            machine.cpu
        );
        for group in self.cells.chunk_by(|a, b| a.shards == b.shards) {
            text += &match group[0].shards {
                1 => "\n1 SHARD: one lock over the whole index\n\n".to_owned(),
                shards => format!("\n{shards} SHARDS, a lock each\n\n"),
            };
            text += &format!("{}\n", rates(group));
            text += &format!("\n{}\n", shares(group));
            if let Some(base) = group.iter().find(|figures| figures.index == "rbtree") {
                let share = base.index_share.median;
                text += &format!(
                    "\nBy SHARE, an index that took no time would make this load {:.2} times as \
                     fast as rbtree does.\n",
                    1.0 / (1.0 - share.min(0.99))
                );
            }
        }
        text += "\n";
        text + &wrapped(
            "",
            "",
            "IO, VM: operations a second of all workers of the sort, means of the runs; /CPU: for \
             each second of processor time, where other load on the machine weighs less; +-: \
             standard deviation; x: the mean over rbtree's; BY RUN: median and range of the \
             ratios run by run. ns: an operation of the index, the same load on the index alone; \
             SHARE: those times their number over the processor time, without waiting for locks.",
        )
    }
}

fn rates(group: &[Figures]) -> String {
    let mut table = table(&["a second", "IO", "+-", "x", "BY RUN", "VM", "+-", "x", "BY RUN"]);
    for figures in group {
        table.add_row(row(figures.index.to_owned(), [&figures.io, &figures.vm]));
    }
    for figures in group {
        let label = format!("{} /CPU", figures.index);
        table.add_row(row(label, [&figures.io_per_cpu, &figures.vm_per_cpu]));
    }
    trimmed(&table)
}

fn row(label: String, rates: [&Rate; 2]) -> Vec<String> {
    let mut row = vec![label];
    for rate in rates {
        row.push(thousands(rate.mean.round() as u64));
        row.push(format!("{:.0}%", rate.stddev / rate.mean * 100.0));
        row.push(rate.times_rbtree.map_or("-".to_owned(), three_digits));
        row.push(rate.times_rbtree_by_run.map_or("-".to_owned(), with_range));
    }
    row
}

fn shares(group: &[Figures]) -> String {
    let mut table = table(&["INDEX", "INDEX OPS/s", "ns", "SHARE", "CPUS USED"]);
    for figures in group {
        table.add_row([
            figures.index.to_owned(),
            thousands(figures.index_operations.mean.round() as u64),
            three_digits(figures.index_ns.median),
            format!("{:.1}%", figures.index_share.median * 100.0),
            three_digits(figures.cpus_used.median),
        ]);
    }
    trimmed(&table)
}
