//! `uzswap doctor`: what this machine allows.

use std::fmt::Write as _;

use anyhow::{Error, anyhow};

use super::{Failure, print, print_json};
use crate::doctor::{Finding, Report, State};

/// What `uzswap doctor` is asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0 if `uzswap run` can work here, 3 if not.\n\
                        What was found is tried or read; nothing is changed.")]
pub(super) struct Doctor {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(super) fn run(self) -> Result<(), Failure> {
        let report = Report::of_this_machine();
        if self.json { print_json(&report) } else { print(&text(&report)) }?;
        if report.works { Ok(()) } else { Err(Failure::Machine(refusal(&report))) }
    }
}

/// What there is to say beside the report itself.
fn refusal(report: &Report) -> Error {
    let missing = report.findings.iter().filter(|finding| finding.state == State::Missing).count();
    anyhow!("{missing} of {} findings are in the way of uzswap run", report.findings.len())
}

/// The verdict; then a line for each finding, and its commands.
fn text(report: &Report) -> String {
    let mut text = format!("{}\n\n", report.verdict);
    let width = report.findings.iter().map(|finding| finding.topic.len()).max().unwrap_or(0);
    for finding in &report.findings {
        let Finding { topic, state, found, means, fix } = finding;
        let state = match state {
            State::Ok => "ok",
            State::Note => "note",
            State::Missing => "MISSING",
        };
        writeln!(text, "{state:7}  {topic:width$}  {found}: {means}").expect("into a string");
        for command in fix {
            writeln!(text, "{:7}  {:width$}    # {command}", "", "").expect("into a string");
        }
    }
    text
}
