//! `uzswap capture`: the pages of a process, a command or a file, as a page set.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;

use super::args::parse_any_time;
use super::json::JsonOutput;
use super::sample_size::{self, SampleSize};
use super::{Failure, print};
use crate::corpus::capture::{
    CaptureAt, CaptureError, CaptureOptions, capture_command, capture_file, capture_pid,
};
use crate::corpus::page_set::{About, PageSetError, side_path};
use crate::human_size::human_size;
use crate::report::format::{in_brief, wrapped};
use crate::report::{Schema, sample_in_words};
use uzswap::page::PAGE_SIZE;
use uzswap_sys::escape::{escaped, one_line};

/// What `uzswap capture` is asked for.
#[derive(Debug, clap::Args)]
#[command(
    allow_negative_numbers = true,
    override_usage = "uzswap capture -o FILE [OPTIONS] --pid PID\n       \
                      uzswap capture -o FILE [OPTIONS] --from FILE\n       \
                      uzswap capture -o FILE [OPTIONS] -- COMMAND [ARGUMENTS]",
    group(clap::ArgGroup::new("source").required(true).args(["pid", "from", "command"])),
    after_help = "The pages are the memory of the process: passwords, keys, mail. Only their owner \
                  can read FILE and FILE.json."
)]
pub(super) struct Capture {
    /// Page set to write; FILE.json beside it describes it
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Capture a running process: its resident anonymous pages
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Take the pages of a core dump or any other file
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Run this command and capture it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Include all descendants of the process
    #[arg(long, conflicts_with = "from")]
    tree: bool,
    /// When to capture a command: peak, exit, or after 2s, 500ms
    ///
    /// peak: when it has most resident anonymous memory; a program that frees its memory before it
    /// exits is caught within some 10 %. exit: when it exits, before its memory goes. For both the
    /// command runs to its end. A time: that long after its start; the command is ended then.
    #[arg(long, value_name = "WHEN", default_value = "peak", requires = "command",
          conflicts_with_all = ["pid", "from"])]
    at: When,
    /// Stop the process while it is read (a command is always stopped)
    #[arg(long, conflicts_with = "from")]
    freeze: bool,
    /// Do not trace the command (for debuggers and setuid programs); its exit may be missed
    #[arg(long, requires = "command", conflicts_with_all = ["pid", "from"])]
    no_trace: bool,
    /// Read about this much of memory above it: 1G, or all [default: 1G]
    ///
    /// The sample has runs of 16 adjacent pages. `compare` scales its figures to all pages.
    #[arg(long, value_name = "SIZE")]
    sample: Option<SampleSize>,
    /// Seed of the sample: same seed, same runs of pages
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the side file as JSON instead of a summary; with =FILE, write it there beside that
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    json: Option<Option<PathBuf>>,
}

/// A moment, as it is given on the command line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct When(pub(super) CaptureAt);

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<When, String> {
        match text {
            "peak" => return Ok(When(CaptureAt::Peak)),
            "exit" => return Ok(When(CaptureAt::Exit)),
            _ => {}
        }
        let wait = parse_any_time(text).map(|wait| When(CaptureAt::After(wait)));
        wait.ok_or_else(|| "expected peak, exit, or a time such as 2s, 500ms or 1m".to_owned())
    }
}

impl Capture {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let plan = sample_size::plan(self.sample, self.seed);
        let options = CaptureOptions {
            sample: plan,
            tree: self.tree,
            freeze: self.freeze,
            untraced: self.no_trace,
            ..CaptureOptions::default()
        };
        let about = match (self.pid, &self.from) {
            (Some(pid), _) => capture_pid(pid, &self.output, &options),
            (None, Some(from)) => capture_file(from, &self.output, plan),
            (None, None) => capture_command(&self.command, self.at.0, &self.output, &options),
        };
        let about = about.map_err(failure)?;
        // Standard output belongs to the command, if there is one.
        let print: fn(&str) -> Result<(), Failure> = match self.command.is_empty() {
            true => print,
            false => print_beside,
        };
        output.print_by(print, Schema::Capture, &about, || self.summary(&about))
    }

    fn summary(&self, about: &About) -> String {
        let mut text = String::new();
        let bytes = about.page_count * PAGE_SIZE as u64;
        let mut line = |name: &str, value: &str| {
            text += &wrapped(&format!("{name:<9}"), &" ".repeat(9), value);
        };
        line("origin", &in_brief(&about.origin));
        let pages = format!("{} ({})", about.page_count, human_size(bytes));
        line("pages", &pages);
        if let Some(sample) = &about.sample {
            line("sample", &sample_in_words(sample));
        }
        line("ranges", &by_name(about));
        for note in &about.notes {
            line("note", &one_line(note));
        }
        let side = side_path(&self.output);
        // Whole, as a path is copied.
        text + &format!("written  {}, {}\n", self.output.display(), side.display())
    }
}

/// Prints to standard error.
fn print_beside(text: &str) -> Result<(), Failure> {
    let written = io::stderr().lock().write_all(escaped(text).as_bytes());
    written.context("cannot write the summary").map_err(Failure::Check)
}

/// How many ranges there are and the names with most pages.
fn by_name(about: &About) -> String {
    const NAMES_MAX: usize = 4;
    let mut names: Vec<(&str, u64)> = Vec::new();
    for range in &about.ranges {
        match names.iter_mut().find(|(name, _)| *name == range.name) {
            Some((_, pages)) => *pages += range.pages,
            None => names.push((&range.name, range.pages)),
        }
    }
    names.sort_by_key(|(_, pages)| std::cmp::Reverse(*pages));
    let percent = |pages: u64| 100.0 * pages as f64 / about.page_count as f64;
    let shown: Vec<_> = names
        .iter()
        .take(NAMES_MAX)
        .map(|(name, pages)| format!("{} {:.1} %", one_line(name), percent(*pages)))
        .collect();
    let more = if names.len() > NAMES_MAX { ", ..." } else { "" };
    format!("{} ({}{more})", about.ranges.len(), shown.join(", "))
}

/// The exit code of a capture's error.
pub(super) fn failure(error: CaptureError) -> Failure {
    match &error {
        CaptureError::Output(PageSetError::Write { .. }) => Failure::Check(error.into()),
        _ => Failure::of(error.is_machine(), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn moments_are_named_or_times() {
        let after = |ms| Ok(When(CaptureAt::After(Duration::from_millis(ms))));
        assert_eq!("peak".parse(), Ok(When(CaptureAt::Peak)));
        assert_eq!("exit".parse(), Ok(When(CaptureAt::Exit)));
        assert_eq!("2s".parse(), after(2000));
        assert_eq!("1.5s".parse(), after(1500));
        assert_eq!("500ms".parse(), after(500));
        assert_eq!("1m".parse(), after(60_000));
        for text in ["", "2", "s", "ms", "-1s", "infs", "1e3s", "top", "2 h"] {
            assert!(text.parse::<When>().is_err(), "{text}");
        }
    }
}
