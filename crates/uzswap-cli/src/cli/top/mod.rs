//! `uzswap top`: lists the runs of this user, sampled at an interval.

mod rates;
mod view;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde::Serialize;

use self::rates::{History, TopRun};
use self::view::{Size, frame};
use super::json::{JsonOutput, json_line};
use super::{Failure, write_out};
use crate::lab::report::{Envelope, Schema};
use uzswap_pager::running;
use uzswap_sys::interrupt;
use uzswap_sys::stderr::log;

/// How soon Ctrl-C is seen.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Message if there is nothing to show.
const NOTHING: &str = "no run of this user; start one with `uzswap run`";

/// What `uzswap top` is asked for.
#[derive(Debug, clap::Args)]
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
    /// Print one line of JSON for each look; with =FILE, write it there beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    json: Option<Option<PathBuf>>,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Look<'a> {
    runs: &'a [TopRun],
}

impl Top {
    /// Looks until it is enough.
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let mut envelope = Envelope::new(Schema::Top);
        interrupt::watch().context("cannot watch for Ctrl-C").map_err(Failure::Machine)?;
        let is_screen =
            !output.is_standard() && self.count != Some(1) && io::stdout().is_terminal();
        let mut history = History::default();
        let mut told_of_none = false;
        let mut next = Instant::now();
        for look in 1_u64.. {
            let mut found = running();
            if let Some(pid) = self.pid {
                found.retain(|run| run.pid == pid);
                match (found.is_empty(), look) {
                    (true, 1) => return Err(Failure::Usage(no_such_run(pid))),
                    (true, _) => break, // it has ended
                    _ => {}
                }
            }
            let runs = history.next(found);
            if runs.is_empty() && !output.is_standard() && !is_screen && !told_of_none {
                log(NOTHING);
            }
            told_of_none = runs.is_empty();
            envelope.renew();
            let sample = Look { runs: &runs };
            let document = envelope.around(&sample);
            if let JsonOutput::File(file) = &mut output {
                file.write(&json_line(&document))?;
            }
            let text = match is_screen {
                _ if output.is_standard() => json_line(&document),
                true => screen(&runs, look == 1, self.interval),
                false => block(&runs, look == 1),
            };
            if !write_out(text.as_bytes())? || self.count == Some(look) {
                break;
            }
            next = (next + self.interval).max(Instant::now());
            while !interrupt::noted() && Instant::now() < next {
                thread::sleep(LOOK_EVERY.min(next.saturating_duration_since(Instant::now())));
            }
            if interrupt::noted() {
                if is_screen {
                    write_out(b"\n")?; // after the ^C of the terminal
                }
                break;
            }
        }
        Ok(())
    }
}

fn no_such_run(pid: u32) -> anyhow::Error {
    anyhow!("no run with PID {pid} for this user; 'uzswap top' lists them")
}

/// All that is on the terminal.
fn screen(runs: &[TopRun], is_first: bool, interval: Duration) -> String {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let size = size.map_or(Size::TERMINAL, |size| Size {
        columns: usize::from(size.ws_col),
        lines: usize::from(size.ws_row),
    });
    let size = if size.columns == 0 || size.lines == 0 { Size::TERMINAL } else { size };
    let seconds = interval.as_secs_f64();
    let mut lines = vec![format!("uzswap top, every {seconds} s; Ctrl-C ends it")];
    match runs.is_empty() {
        true => lines.push(NOTHING.to_owned()),
        // One line for the title, and one for the cursor.
        false => lines.extend(frame(runs, Size { lines: size.lines.saturating_sub(2), ..size })),
    }
    lines.truncate(size.lines.saturating_sub(1));
    let mut text = if is_first { "\x1b[2J\x1b[H" } else { "\x1b[H" }.to_owned();
    for line in &lines {
        text += &line[..line.len().min(size.columns)];
        text += "\x1b[K\n";
    }
    text + "\x1b[J"
}

/// One look of many in a file.
fn block(runs: &[TopRun], is_first: bool) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let gap = if is_first { "" } else { "\n" };
    gap.to_owned() + &frame(runs, Size::FILE).join("\n") + "\n"
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let expected = || "interval must be 0.1 to 3600 seconds".to_owned();
    seconds.map(Duration::from_secs_f64).ok_or_else(expected)
}
