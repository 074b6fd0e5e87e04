//! `uzswap top`: lists the runs of this user, sampled at an interval.

mod audit;
mod block;
mod figures;
mod rates;
mod sampler;
mod screen;
mod state;
mod terminal;
mod trend;
mod view;

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;

use self::block::block;
use self::rates::{History, TopRun};
use self::sampler::{Sample, Sampler};
use self::screen::Screen;
use self::view::{NOTHING, note};
use super::json::{JsonOutput, json_line};
use super::{Failure, write_out};
use crate::report::{Envelope, Schema};
use uzswap_pager::NoAnswer;
use uzswap_sys::interrupt;
use uzswap_sys::stderr::log;

/// How soon Ctrl-C is seen.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What `uzswap top` is asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code with --audit: 0 if all invariants hold, 1 if one does not,\n\
                        3 if a run did not answer or there is none.")]
pub(super) struct Top {
    /// Show only the run with this PID of `uzswap run`
    #[arg(value_name = "PID")]
    pid: Option<u32>,
    /// Seconds between samples, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,
    /// Stop after so many samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print one line of JSON for each sample; with =FILE, write it there beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    json: Option<Option<PathBuf>>,
    /// Have the supervisor audit its state, and print the result
    #[arg(long, conflicts_with_all = ["interval", "count"])]
    audit: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Look<'a> {
    runs: &'a [TopRun],
}

impl Top {
    /// Takes samples until it is enough.
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut output = JsonOutput::open(self.json.as_ref())?;
        if self.audit {
            return audit::audit(self.pid, &mut output);
        }
        let mut records = Records { output, envelope: Envelope::new(Schema::Top) };
        interrupt::watch().context("cannot watch for Ctrl-C").map_err(Failure::Machine)?;
        let is_screen =
            !records.output.is_standard() && self.count != Some(1) && io::stdout().is_terminal();
        if is_screen {
            let screen = Screen::new(self.interval);
            let record = |runs: &[TopRun]| records.add(runs).map(drop);
            return screen.show(Sampler::new(self.pid), self.count, record);
        }
        self.print_samples(&mut records)
    }

    /// Prints one block or one document for each sample.
    fn print_samples(&self, records: &mut Records) -> Result<(), Failure> {
        let mut sampler = Sampler::new(self.pid);
        let mut history = History::default();
        let mut reported = Reported::default();
        let mut next = Instant::now();
        for number in 1_u64.. {
            let survey = match wait_for_sample(&mut sampler)? {
                None => break,                                            // interrupted
                Some(Err(NoAnswer::NoRun { .. })) if number > 1 => break, // it has ended
                Some(sample) => sample?,
            };
            let runs = history.next(survey.runs);
            let document = records.add(&runs)?;
            reported.report(runs.is_empty() && document.is_none(), survey.silent);
            let text = document.unwrap_or_else(|| block_text(&runs, number == 1));
            if !write_out(text.as_bytes())? || self.count == Some(number) {
                break;
            }
            next = (next + self.interval).max(Instant::now());
            while !interrupt::noted() && Instant::now() < next {
                thread::sleep(LOOK_EVERY.min(next.saturating_duration_since(Instant::now())));
            }
            if interrupt::noted() {
                break;
            }
        }
        Ok(())
    }
}

/// A sample; none where a signal came first.
fn wait_for_sample(sampler: &mut Sampler) -> Result<Option<Sample>, Failure> {
    sampler.begin()?;
    loop {
        if let Some(sample) = sampler.take(LOOK_EVERY) {
            return Ok(Some(sample));
        }
        if interrupt::noted() {
            return Ok(None);
        }
    }
}

impl From<NoAnswer> for Failure {
    fn from(error: NoAnswer) -> Failure {
        Failure::of(!matches!(error, NoAnswer::NoRun { .. }), error)
    }
}

/// The place for documents.
struct Records {
    output: JsonOutput,
    envelope: Envelope,
}

impl Records {
    /// Writes the document of a sample to its file. The document, where standard output takes it.
    fn add(&mut self, runs: &[TopRun]) -> Result<Option<String>, Failure> {
        self.envelope.renew();
        let sample = Look { runs };
        let document = || json_line(&self.envelope.around(&sample));
        match &mut self.output {
            JsonOutput::None => Ok(None),
            JsonOutput::Standard => Ok(Some(document())),
            JsonOutput::File(file) => file.write(&document()).map(|()| None),
        }
    }
}

/// The messages of the sample before: none is repeated.
#[derive(Debug, Default)]
struct Reported {
    of_nothing: bool,
    silent: BTreeSet<u32>,
}

impl Reported {
    /// Reports on standard error that there is no run, and runs that did not answer.
    fn report(&mut self, is_nothing: bool, silent: BTreeSet<u32>) {
        if is_nothing && !self.of_nothing {
            log(NOTHING);
        }
        if let Some(note) = note(&silent).filter(|_| silent != self.silent) {
            log(&note);
        }
        *self = Reported { of_nothing: is_nothing, silent };
    }
}

/// One sample of many in a file.
fn block_text(runs: &[TopRun], is_first: bool) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let gap = if is_first { "" } else { "\n" };
    gap.to_owned() + &block(runs).join("\n") + "\n"
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let expected = || "interval must be 0.1 to 3600 seconds".to_owned();
    seconds.map(Duration::from_secs_f64).ok_or_else(expected)
}
