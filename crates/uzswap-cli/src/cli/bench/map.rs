//! `uzswap bench map`: the cost of access to an object in two host pages.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::parse_seconds;
use crate::cli::Failure;
use crate::cli::json::JsonOutput;
use crate::cli::report_args::ReportArgs;
use crate::lab::report::format::{table, thousands, trimmed, wrapped};
use crate::lab::report::{Envelope, Schema};
use crate::lab::study::Spread;
use crate::lab::study::object_mapping::{Findings, MapOptions, Method, measure};

/// What `uzswap bench map` is asked for.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct Map {
    /// One worker on the first processor, not one on each
    #[arg(long)]
    single_threaded: bool,
    /// Read and write the object's bytes too
    #[arg(long)]
    touch: bool,
    /// For each method and mode, in ten slices that take turns
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    seconds: Duration,
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
    #[serde(flatten)]
    findings: Findings,
}

impl Map {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Map { single_threaded, touch, seconds, json, report } = self;
        let mut output = JsonOutput::open(json.as_ref())?;
        let mut page = report.open()?;
        let findings = measure(MapOptions { single_threaded, touch, time: seconds })
            .map_err(|error| Failure::Machine(error.into()))?;
        let report = Report { envelope: Envelope::new(Schema::BenchMap), findings };
        let printed = output.print_document(&report, || report.text());
        page.write(&report).and(printed)
    }
}

impl Report {
    fn text(&self) -> String {
        let findings = &self.findings;
        let object = &findings.object;
        let cpus: Vec<String> = findings.cpus.iter().map(usize::to_string).collect();
        let touched = if findings.touch { "all touched" } else { "not touched" };
        let line = |title: &str, words: &str| wrapped(&format!("{title:10}"), "          ", words);
        let mut text = format!(
            "uzswap {} bench map: {} pinned to {} {}, each with its own pools\n",
            self.envelope.version,
            if cpus.len() == 1 { "1 worker".to_owned() } else { format!("{} workers", cpus.len()) },
            if cpus.len() == 1 { "processor" } else { "processors" },
            cpus.join(",")
        );
        text += &line(
            "object",
            &format!(
                "the third of {} bytes, in a slot of {}: {} in one page, {} in the next; {touched}",
                object.bytes, object.slot_bytes, object.split[0], object.split[1]
            ),
        );
        text += &line(
            "settings",
            &format!(
                "{} s for each line, in {} slices that take turns; {}",
                findings.seconds, findings.rounds, findings.cycles
            ),
        );
        let machine = &self.envelope.machine;
        text += &line(
            "machine",
            &format!("Linux {}, {} x {}", machine.kernel, machine.cpus, machine.cpu),
        );
        text += &format!("\n{}\n\n{}\n", self.workers(), self.together());
        text
    }

    /// A line for each worker, with the figures that the original printed first.
    fn workers(&self) -> String {
        let mut table =
            table(&["METHOD", "CPU", "CYCLES", "MAPPINGS", "CYCLES/MAP", "MEDIAN (RANGE)"]);
        for method in &self.findings.methods {
            for worker in &method.workers {
                table.add_row([
                    label(method),
                    worker.cpu.to_string(),
                    thousands(worker.cycles),
                    thousands(worker.mappings),
                    thousands(worker.cycles / worker.mappings),
                    spread(worker.cycles_per_map, 0),
                ]);
            }
        }
        trimmed(&table)
    }

    /// A line for each method and mode.
    fn together(&self) -> String {
        let mut table = table(&["ALL WORKERS", "MAPPINGS/s", "CYCLES/MAP", "/ copy"]);
        for method in &self.findings.methods {
            table.add_row([
                label(method),
                thousands(method.mappings_per_second as u64),
                spread(method.cycles_per_map, 0),
                spread(method.over_copy, 2),
            ]);
        }
        trimmed(&table)
    }
}

fn label(method: &Method) -> String {
    format!("{:10} {}", method.mapping.name(), method.mode)
}

fn spread(spread: Spread, decimals: usize) -> String {
    let Spread { median, min, max } = spread;
    format!("{median:.decimals$} ({min:.decimals$} to {max:.decimals$})")
}
