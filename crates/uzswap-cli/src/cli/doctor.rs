//! `uzswap doctor`: checks whether this machine allows `uzswap run`.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Error, anyhow};

use super::json::JsonOutput;
use super::kernel_swap::failure;
use super::{Failure, print};
use crate::report::Schema;
use uzswap_kernel_swap::{left_over, restore};
use uzswap_pager::doctor::{Finding, Report, State};

/// What `uzswap doctor` is asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0 if `uzswap run` can work here, 3 if not.\n\
                        `doctor` tries and reads features; it changes nothing.\n\
                        With --restore: 0 if all changes are undone, 3 if one could not be.")]
pub(super) struct Doctor {
    /// Print JSON instead of text, or write it to FILE beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
    /// Undo changes of a killed measurement of the kernel's swap
    #[arg(long, conflicts_with = "json")]
    restore: bool,
}

impl Doctor {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.restore {
            return put_back();
        }
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let mut report = Report::of_this_machine();
        report.findings.extend(left_behind());
        output.print(Schema::Doctor, &report, || text(&report))?;
        if report.works { Ok(()) } else { Err(Failure::Machine(refusal(&report))) }
    }
}

/// Swap, devices and settings of a measurement that was killed, if there are such.
fn left_behind() -> Option<Finding> {
    let journals = left_over();
    let pids: Vec<String> = journals.iter().map(|journal| journal.pid.to_string()).collect();
    (!journals.is_empty()).then(|| Finding {
        topic: "kernel's swap",
        state: State::Note,
        found: format!("changed by process {}, which has ended", pids.join(", ")),
        means: "swap areas, devices and settings may differ from before".to_owned(),
        fix: vec!["uzswap doctor --restore".to_owned()],
    })
}

/// Undoes it, and prints a line for each thing undone.
fn put_back() -> Result<(), Failure> {
    let restored = restore().map_err(failure)?;
    let lines: Vec<&String> = restored.undone.iter().chain(&restored.left).collect();
    match lines[..] {
        [] if restored.failed.is_empty() => print("nothing to undo\n")?,
        _ => lines.iter().try_for_each(|line| print(&format!("{line}\n")))?,
    }
    let failed: Vec<String> = restored.failed.iter().map(ToString::to_string).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Machine(anyhow!("cannot {}", failed.join("; cannot ")))),
    }
}

/// The message on standard error beside the report.
fn refusal(report: &Report) -> Error {
    let missing = report.findings.iter().filter(|finding| finding.state == State::Missing).count();
    anyhow!("{missing} of {} findings prevent uzswap run", report.findings.len())
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
