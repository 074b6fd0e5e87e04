//! `uzswap bench STUDY`: benchmarks of single parts of the store, beside their rivals.

mod index;
mod map;
mod same_filled;
mod swapload;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Subcommand;
use serde::Serialize;

use super::Failure;
use super::json::JsonOutput;
use super::report_args::ReportArgs;
use crate::measure::study::Spread;
use crate::report::format::{table, three_digits, trimmed, wrapped};
use crate::report::{Envelope, Schema};
use uzswap_sys::interrupt;

/// What `uzswap bench` is asked for.
#[derive(Debug, clap::Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    study: Study,
}

#[derive(Debug, Subcommand)]
enum Study {
    /// Compare the indexes: time an operation, memory an entry
    Index(index::IndexArgs),
    /// Map and unmap an object that crosses a page border, by every method
    Map(map::Map),
    /// Compare the checks for same-filled pages
    SameFilled(same_filled::SameFilled),
    /// Check whether a faster index speeds up swapping: the setting of the 2019 study
    Swapload(swapload::SwaploadArgs),
}

impl Bench {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.study {
            Study::Index(study) => study.run(),
            Study::Map(study) => study.run(),
            Study::SameFilled(study) => study.run(),
            Study::Swapload(study) => study.run(),
        }
    }
}

/// The flags of all studies, and where their findings go.
#[derive(Debug, clap::Args)]
struct Output {
    /// Print one JSON document instead, or write it to FILE beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
    #[command(flatten)]
    report: ReportArgs,
}

/// The findings of a study.
trait Findings: Serialize {
    /// The form of their document.
    const SCHEMA: Schema;

    /// Their text; `envelope` has the version and the machine.
    fn text(&self, envelope: &Envelope) -> String;
}

impl Output {
    /// Makes a study, and prints what it finds. An interrupt has its effect once the study's
    /// children are gone, and its files removed.
    fn of<T: Findings>(self, study: impl FnOnce() -> Result<T, Failure>) -> Result<(), Failure> {
        interrupt::watch().context("cannot install signal handlers").map_err(Failure::Machine)?;
        let mut json = JsonOutput::open(self.json.as_ref())?;
        let mut page = self.report.open()?;
        let findings = study();
        interrupt::end_if_noted();
        let findings = findings?;
        let envelope = Envelope::new(T::SCHEMA);
        let document = envelope.around(&findings);
        let printed = json.print_document(&document, || findings.text(&envelope));
        page.write(&document).and(printed)
    }
}

/// The lines that a text begins with: a title, facts with their names, and the machine, with a
/// remark on it.
fn opening(envelope: &Envelope, title: &str, facts: &[(&str, &str)], remark: &str) -> String {
    let Envelope { version, command, machine, .. } = envelope;
    let machine = format!("Linux {}, {} x {}{remark}", machine.kernel, machine.cpus, machine.cpu);
    let mut text = format!("uzswap {version} {command}: {title}\n");
    for (name, words) in facts.iter().chain(&[("machine", &*machine)]) {
        text += &wrapped(&format!("{name:10}"), "          ", words);
    }
    text
}

/// A table of rows.
fn lines<R>(header: &[&str], rows: impl IntoIterator<Item = R>) -> String
where
    Vec<String>: From<R>,
{
    let mut table = table(header);
    for row in rows {
        table.add_row(Vec::from(row));
    }
    trimmed(&table)
}

/// Seconds from 0.01 to 3600.
///
/// # Errors
///
/// The text is no number of that range.
pub fn parse_seconds(text: &str) -> Result<Duration, anyhow::Error> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(anyhow!("seconds must be 0.01 to 3600, such as 1 or 0.5")),
    }
}

/// A median with its range: `5.88 (5.2-6.6)`.
fn with_range(spread: Spread) -> String {
    let end = |value: f64| if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") };
    format!("{} ({}-{})", three_digits(spread.median), end(spread.min), end(spread.max))
}
