//! `uzswap bench same-filled`: the checks for same-filled pages side by side.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::RangedU64ValueParser;
use serde::Serialize;

use crate::cli::Failure;
use crate::cli::corpus::{Source, bar};
use crate::cli::json::JsonOutput;
use crate::cli::report_args::ReportArgs;
use crate::cli::size::parse_size;
use crate::lab::report::format::{mib, table, thousands, trimmed, wrapped};
use crate::lab::report::{CorpusInfo, Envelope, Machine, Schema};
use crate::lab::sample::SamplePlan;
use crate::lab::study::same_filled::{
    CheckFindings, FEW_PAGES, Figures, Findings, SameFilledError, measure, read_pages,
};
use crate::lab::workload::Workload;
use uzswap::page::PAGE_SIZE;
use uzswap_sys::interrupt;

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
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    rounds: usize,
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
    corpus: CorpusInfo,
    #[serde(flatten)]
    findings: Findings,
}

impl SameFilled {
    pub(super) fn run(self) -> Result<(), Failure> {
        interrupt::watch().context("cannot watch for signals").map_err(Failure::Machine)?;
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let mut page = self.report.open()?;
        let result = self.report();
        // Files are removed: an interrupt may have its effect now.
        interrupt::end_if_noted();
        let report = result?;
        let printed = output.print_document(&report, || report.text());
        page.write(&report).and(printed)
    }

    fn report(&self) -> Result<Report, Failure> {
        let source = match &self.corpus {
            Some(path) => Source::of_file(path, SamplePlan::ALL)?,
            None => Source::of_workload(self.workload, self.seed, self.size)?,
        };
        let path = source.file.path();
        let path = Path::new(path);
        let pages = read_pages(path)
            .with_context(|| format!("cannot read {}", path.display()))
            .map_err(Failure::Machine)?;
        let bar = bar(self.rounds as u64, "{elapsed:>4} [{bar:30}] {pos}/{len}");
        let findings = measure(&pages, self.rounds, &mut |done| bar.set_position(done as u64));
        bar.finish_and_clear();
        let findings = findings.map_err(|error| match error {
            SameFilledError::Wrong { .. } => Failure::Check(error.into()),
            SameFilledError::Interrupted => Failure::Machine(error.into()),
        })?;
        Ok(Report {
            envelope: Envelope::new(Schema::BenchSameFilled),
            corpus: source.info,
            findings,
        })
    }
}

impl Report {
    fn text(&self) -> String {
        let Findings { census, rounds, evict_bytes, instruction_set, checks } = &self.findings;
        let share = |pages: u64| {
            let percent = 100.0 * pages as f64 / census.pages as f64;
            format!("{} ({percent:.2} %)", thousands(pages))
        };
        let line = |name: &str, words: &str| wrapped(name, "          ", words);
        let mut text = format!(
            "uzswap {} bench same-filled: {} checks, taking turns, {rounds} rounds\n",
            self.envelope.version,
            checks.len()
        );
        text += &line("corpus    ", &self.origin());
        text += &line(
            "pages     ",
            &format!(
                "zero {}, same-filled with those {}, duplicates of other pages {}",
                share(census.zero_pages),
                share(census.same_filled_pages),
                share(census.duplicate_pages)
            ),
        );
        let Machine { kernel, cpu, cpus } = &self.envelope.machine;
        text += &line(
            "machine   ",
            &format!("Linux {kernel}, {cpus} x {cpu}; vector is compiled for {instruction_set}"),
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
                text += &line(
                    "",
                    &format!(
                        "There are only {} of them: too short a time for the clock.\n",
                        census.same_filled_pages
                    ),
                );
                text += "\n";
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
    let mut table =
        table(&["CHECK", "ITERATIONS", "MB/s", "ns/PAGE", "MIN", "MAX", "/ FORWARD", "RANGE"]);
    for (of, figures) in rows {
        let (ns, speed) = (figures.ns_per_page, figures.speed_vs_forward);
        table.add_row([
            of.check.to_owned(),
            format!("{:.1}", figures.iterations_mean),
            thousands(figures.mb_per_s.median.round() as u64),
            nanoseconds(ns.median),
            nanoseconds(ns.min),
            nanoseconds(ns.max),
            format!("{:.2}", speed.median),
            format!("{:.2} to {:.2}", speed.min, speed.max),
        ]);
    }
    format!("{title}\n\n{}\n\n", trimmed(&table))
}
