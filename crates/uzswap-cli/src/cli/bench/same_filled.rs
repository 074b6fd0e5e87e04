//! `uzswap bench same-filled`: the checks for same-filled pages side by side.

use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

use super::{Output, lines, opening};
use crate::cli::Failure;
use crate::cli::args::rounds;
use crate::cli::corpus::Source;
use crate::cli::progress::with_progress;
use crate::cli::size::parse_size;
use crate::corpus::sample::SamplePlan;
use crate::corpus::workload::Workload;
use crate::measure::study::same_filled::{
    CheckFindings, FEW_PAGES, Figures, Findings, measure, read_pages,
};
use crate::report::format::{mib, thousands, wrapped};
use crate::report::{CorpusInfo, Envelope, Schema};
use uzswap::page::PAGE_SIZE;

/// What `uzswap bench same-filled` is asked for.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct SameFilled {
    /// Pages of a file: a page set, a core dump, any whole pages
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "size", "seed"])]
    corpus: Option<PathBuf>,
    /// Built-in workload, if no file is given
    #[arg(long, value_name = "NAME", default_value = "mixed")]
    workload: Workload,
    /// Size of the built-in workload
    #[arg(long, value_name = "SIZE", default_value = "384M", value_parser = parse_size)]
    size: usize,
    /// Seed of its random numbers: same seed, same data
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Turns of each check
    #[arg(long, value_name = "N", default_value_t = 15,
          value_parser = rounds())]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

/// The findings, and the pages that they are of.
#[derive(Debug, Serialize)]
struct Report {
    corpus: CorpusInfo,
    #[serde(flatten)]
    findings: Findings,
}

impl SameFilled {
    pub(super) fn run(self) -> Result<(), Failure> {
        let SameFilled { corpus, workload, size, seed, rounds, output } = self;
        output.of(|| {
            let source = match &corpus {
                Some(path) => Source::of_file(path, SamplePlan::ALL)?,
                None => Source::of_workload(workload, seed, size)?,
            };
            let path = source.file.path();
            let pages = read_pages(path)
                .with_context(|| format!("cannot read {}", path.display()))
                .map_err(Failure::Machine)?;
            let findings = with_progress(|progress| measure(&pages, rounds, progress))?;
            Ok(Report { corpus: source.info, findings })
        })
    }
}

impl super::Findings for Report {
    const SCHEMA: Schema = Schema::BenchSameFilled;

    fn text(&self, envelope: &Envelope) -> String {
        let Findings { census, rounds, evict_bytes, instruction_set, checks } = &self.findings;
        let share = |pages: u64| {
            let percent = 100.0 * pages as f64 / census.pages as f64;
            format!("{} ({percent:.2} %)", thousands(pages))
        };
        let kinds = format!(
            "zero {}, same-filled with those {}, duplicates of other pages {}",
            share(census.zero_pages),
            share(census.same_filled_pages),
            share(census.duplicate_pages)
        );
        let mut text = opening(
            envelope,
            &format!("{} checks, taking turns, {rounds} rounds", checks.len()),
            &[("corpus", &self.origin()), ("pages", &kinds)],
            &format!("; vector is compiled for {instruction_set}"),
        );
        text += "\n";
        let cold = format!("in order, caches emptied before ({})", mib(*evict_bytes as u64));
        let all: Vec<Row<'_>> = checks.iter().map(|of| (of, &of.all)).collect();
        text += &section(&format!("ALL PAGES: {cold}"), &all);
        let same_filled: Vec<Row<'_>> =
            checks.iter().filter_map(|of| Some((of, of.same_filled.as_ref()?))).collect();
        if same_filled.is_empty() {
            text += "SAME-FILLED PAGES: this corpus has none.\n\n";
        } else {
            text += &section(&format!("SAME-FILLED PAGES: {cold}"), &same_filled);
            if census.same_filled_pages < FEW_PAGES {
                text.pop();
                text += &format!(
                    "There are only {} of them: too short a time for the clock.\n\n",
                    census.same_filled_pages
                );
            }
        }
        let in_cache: Vec<Row<'_>> = checks.iter().map(|of| (of, &of.in_cache)).collect();
        text += &section("ONE ZERO PAGE, IN CACHE: the check alone", &in_cache);
        text += &wrapped(
            "",
            "",
            "ITERATIONS: compares until the answer is known, the mean; of one word with the \
             page's first, with vector of the last word and then of blocks of 64 words. MB/s: \
             4096 bytes a page, looked at or not; 10^6 bytes. / FORWARD: the speed, to that of \
             forward, and its range. Medians of the rounds.",
        );
        text
    }
}

impl Report {
    fn origin(&self) -> String {
        let CorpusInfo { origin, pages, sha256, .. } = &self.corpus;
        let size = mib(pages * PAGE_SIZE as u64);
        format!("{origin}, {} pages ({size}), sha256 {}", thousands(*pages), &sha256[..12])
    }
}

type Row<'a> = (&'a CheckFindings, &'a Figures);

/// A thousand and more, as where a machine was busy, in fewer columns.
fn nanoseconds(ns: f64) -> String {
    if ns < 1000.0 { format!("{ns:.1}") } else { thousands(ns.round() as u64) }
}

fn section(title: &str, rows: &[Row<'_>]) -> String {
    let row = |(of, figures): &Row<'_>| {
        let (ns, speed) = (figures.ns_per_page, figures.speed_vs_forward);
        [
            of.check.to_string(),
            format!("{:.1}", figures.iterations_mean),
            thousands(figures.mb_per_s.median.round() as u64),
            nanoseconds(ns.median),
            nanoseconds(ns.min),
            nanoseconds(ns.max),
            format!("{:.2}", speed.median),
            format!("{:.2} to {:.2}", speed.min, speed.max),
        ]
    };
    let header = ["CHECK", "ITERATIONS", "MB/s", "ns/PAGE", "MIN", "MAX", "/ FORWARD", "RANGE"];
    format!("{title}\n\n{}\n\n", lines(&header, rows.iter().map(row)))
}
