//! `uzswap bench swapload`: a simulated machine that swaps, with one index or another.

use std::time::Duration;

use super::{Output, lines, opening, parse_seconds, with_range};
use crate::cli::Failure;
use crate::cli::args::{distinct, rounds};
use crate::cli::progress::with_progress;
use crate::cli::size::{check_available, parse_size};
use crate::measure::study::swapload::{Figures, Findings, Rate, Swapload};
use crate::report::format::{thousands, three_digits, wrapped};
use crate::report::{Envelope, Schema};
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
          value_parser = rounds())]
    runs: usize,
    #[command(flatten)]
    output: Output,
}

impl SwaploadArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        // The pool may come to that.
        check_available(self.size as usize * PAGE_SIZE)?;
        let study = Swapload {
            indexes: distinct(&self.index),
            shards: distinct(&self.shards),
            compressor: self.compressor,
            pages: self.size,
            time: self.seconds,
            runs: self.runs,
        };
        self.output.of(|| with_progress(|progress| study.run(progress)))
    }
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

impl super::Findings for Findings {
    const SCHEMA: Schema = Schema::BenchSwapload;

    fn text(&self, envelope: &Envelope) -> String {
        let Findings { bytes, compressor, seconds, runs_each, .. } = self;
        let title = format!(
            "4 io-like and 4 vm-like workers, {} MiB of pages, z3fold, {compressor}",
            bytes >> 20
        );
        let settings = format!(
            "{runs_each} runs of {seconds} s of each, taking turns, each in a process of its own"
        );
        let mut text = opening(envelope, &title, &[("settings", &settings)], "");
        for group in self.cells.chunk_by(|a, b| a.shards == b.shards) {
            text += &match group[0].shards {
                1 => "\n1 SHARD: one lock over the whole index\n\n".to_owned(),
                shards => format!("\n{shards} SHARDS, a lock each\n\n"),
            };
            text += &format!("{}\n", rates(group));
            text += &format!("\n{}\n", shares(group));
            if let Some(base) = group.iter().find(|figures| figures.index == IndexKind::RbTree) {
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
    let all = group.iter().map(|it| row(it.index.to_string(), [&it.io, &it.vm]));
    let per_cpu =
        |it: &Figures| row(format!("{} /CPU", it.index), [&it.io_per_cpu, &it.vm_per_cpu]);
    lines(
        &["a second", "IO", "+-", "x", "BY RUN", "VM", "+-", "x", "BY RUN"],
        all.chain(group.iter().map(per_cpu)),
    )
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
    let row = |figures: &Figures| {
        [
            figures.index.to_string(),
            thousands(figures.index_operations.mean.round() as u64),
            three_digits(figures.index_ns.median),
            format!("{:.1}%", figures.index_share.median * 100.0),
            three_digits(figures.cpus_used.median),
        ]
    };
    lines(&["INDEX", "INDEX OPS/s", "ns", "SHARE", "CPUS USED"], group.iter().map(row))
}
