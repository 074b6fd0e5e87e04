//! `uzswap sample`: processes over time, as tables for a fleet.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::Serialize;

use super::super::Failure;
use super::super::args::parse_time;
use super::super::capture;
use super::super::corpus::bar;
use super::super::json::{JsonOutput, is_usage};

use super::{failure, hex, parse_percent};
use crate::human_size::human_size;
use crate::report::Schema;
use crate::report::format::{counted, listed, share, thousands, trimmed, wrapped};
use crate::sampler::{Plan, Salt, SampleError, Sampled, SampledProcess, Target, take};
use uzswap::page::PAGE_SIZE;
use uzswap_fleet::folder::prepare;
use uzswap_sys::escape::one_line;
use uzswap_sys::interrupt;

/// Processes that the text lists.
const LISTED_MAX: usize = 10;

/// What `uzswap sample` is asked for.
///
/// Writes three tables to DIR: pages, intervals and runs. They have hashes and counts: no contents,
/// names, PIDs or addresses. A command that is killed leaves all but its last minutes. Clearing
/// accessed bits makes pages look colder to the kernel's reclaim for a moment.
/// docs/how-to/sample-a-fleet.md says more.
#[derive(Debug, clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Ctrl-C or SIGTERM ends it early, with all tables. Exit code: 0 done, 3 if the \
                  machine refuses: at a full disk it ends, and files written before stay."
)]
pub(in super::super) struct Sample {
    /// Folder for the tables; one may hold those of many machines
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Sample all processes that you may read (default)
    #[arg(long, group = "target")]
    system: bool,
    /// Sample one process
    #[arg(long, value_name = "PID", group = "target",
          value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Sample a process and all of its descendants
    #[arg(long, value_name = "PID", group = "target",
          value_parser = clap::value_parser!(i32).range(1..))]
    tree: Option<i32>,
    /// Time between two readings: 500ms, 60s
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "60s")]
    interval: Duration,
    /// Number of intervals [default: an hour of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000),
          conflicts_with = "time")]
    intervals: Option<u64>,
    /// Time to sample, in place of --intervals: 10m, 24h
    #[arg(long = "for", id = "time", value_name = "TIME", value_parser = parse_time)]
    time: Option<Duration>,
    /// Most processor time, in percent of one processor
    #[arg(long, value_name = "PERCENT", value_parser = parse_budget, default_value = "1%")]
    budget: f64,
    /// Time between two saves: a killed command loses no more, and its last interval
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "5m")]
    save_every: Duration,
    /// Seed of the choice of pages
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON document instead; with =FILE, write it there beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    json: Option<Option<PathBuf>>,
}

/// A percentage above 0 and up to 100; its share of 1.
fn parse_budget(text: &str) -> Result<f64, String> {
    let share = parse_percent(text).filter(|&percent| percent >= 0.01);
    share
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "expected a percentage of 0.01 to 100, such as 1%".to_owned())
}

/// The result; with `--json`, in an envelope.
#[derive(Debug, Serialize)]
struct Report {
    run: String,
    host: String,
    files: Vec<String>,
    seconds: f64,
    intervals: u64,
    interval_seconds: f64,
    cpu_percent: f64,
    budget_percent: f64,
    resident_pages: u64,
    sampled_pages: u64,
    age_source: String,
    unreadable_processes: u64,
    notes: Vec<String>,
    saved_bytes: SavedBytes,
    processes: Vec<Process>,
}

/// Bytes that compression of all resident pages saves.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct SavedBytes {
    lz4: u64,
    lzo_rle: u64,
    zstd: u64,
}

#[derive(Debug, Serialize)]
struct Process {
    pid: i32,
    name: String,
    process: String,
    job: String,
    resident_pages: u64,
    working_set_pages: Option<u64>,
    sampled_pages: u64,
    saved_bytes: SavedBytes,
}

impl Sample {
    pub(in super::super) fn run(self) -> Result<(), Failure> {
        interrupt::watch().context("cannot install signal handlers").map_err(Failure::Machine)?;
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let plan = self.plan()?;
        prepare(&self.out).map_err(failure)?;
        let salt = Salt::of_this_machine().map_err(|(path, error)| {
            let is_machine = !is_usage(&error);
            let error = anyhow!("cannot take the salt {}: {error}", path.display());
            Failure::of(is_machine, error)
        })?;
        let bar = bar(plan.intervals, "{elapsed:>4} [{bar:30}] {pos}/{len} intervals");
        let sampled = take(&plan, &salt, &self.out, |done| bar.set_position(done));
        bar.finish_and_clear();
        let report = Report::new(&sampled.map_err(|error| match error {
            SampleError::Target(error) => capture::failure(error),
            SampleError::Write(error) => failure(error),
        })?);
        output.print(Schema::Sample, &report, || report.text())
    }

    fn plan(&self) -> Result<Plan, Failure> {
        const HOUR: Duration = Duration::from_secs(3600);
        let of_time = self.time.unwrap_or(HOUR).as_secs_f64() / self.interval.as_secs_f64();
        let intervals = self.intervals.unwrap_or((of_time as u64).max(1));
        if self.time.is_some_and(|time| time < self.interval) {
            return Err(Failure::Usage(anyhow!(
                "--for is shorter than one interval; give --interval a shorter time"
            )));
        }
        let target = match (self.pid, self.tree) {
            (Some(pid), _) => Target::Process(pid),
            (_, Some(pid)) => Target::Tree(pid),
            (None, None) => Target::System,
        };
        let (interval, save_every) = (self.interval, self.save_every);
        Ok(Plan { target, interval, intervals, save_every, share: self.budget, seed: self.seed })
    }
}

impl SavedBytes {
    fn of(process: &SampledProcess) -> SavedBytes {
        let [lz4, lzo_rle, zstd] =
            process.savings.map(|saving| saving.bytes_of(process.resident_pages));
        SavedBytes { lz4, lzo_rle, zstd }
    }

    fn plus(self, other: SavedBytes) -> SavedBytes {
        SavedBytes {
            lz4: self.lz4 + other.lz4,
            lzo_rle: self.lzo_rle + other.lzo_rle,
            zstd: self.zstd + other.zstd,
        }
    }
}

impl Report {
    fn new(sampled: &Sampled) -> Report {
        let run = &sampled.run;
        let processes: Vec<Process> = sampled.processes.iter().map(Process::new).collect();
        let saved = processes.iter().map(|process| process.saved_bytes);
        Report {
            run: hex(run.run),
            host: hex(run.host),
            files: sampled.files.iter().map(|path| path.display().to_string()).collect(),
            seconds: run.seconds,
            intervals: run.intervals,
            interval_seconds: run.interval_seconds,
            cpu_percent: run.cpu_us as f64 / 1e4 / run.seconds.max(1e-9),
            budget_percent: run.budget_percent,
            resident_pages: run.resident_pages,
            sampled_pages: run.sampled_pages,
            age_source: run.age_source.clone(),
            unreadable_processes: run.unreadable_processes,
            notes: sampled.notes.clone(),
            saved_bytes: saved.fold(SavedBytes::default(), SavedBytes::plus),
            processes,
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            text += &wrapped(&format!("{name:<10}"), &" ".repeat(10), value);
        };
        let unread = match self.unreadable_processes {
            0 => String::new(),
            others => format!("; of {others} more the kernel shows this user nothing"),
        };
        line("processes", &format!("{}{unread}", self.processes.len()));
        line("intervals", &format!("{} of {} s", self.intervals, self.interval_seconds));
        let (sampled, resident) = (self.sampled_pages, self.resident_pages);
        line(
            "pages",
            &format!(
                "{} sampled of {} resident anonymous ones ({})",
                thousands(sampled),
                thousands(resident),
                share(sampled, resident)
            ),
        );
        let cpu = format!("{:.2} % of a processor", self.cpu_percent);
        line("cost", &format!("{cpu}, with a budget of {} %", self.budget_percent));
        let saved = self.saved_bytes;
        let [lz4, lzo_rle, zstd] = [saved.lz4, saved.lzo_rle, saved.zstd].map(human_size);
        line("saving", &format!("lz4 {lz4}, lzo-rle {lzo_rle}, zstd {zstd}, if all is compressed"));
        for note in &self.notes {
            line("note", &one_line(note));
        }
        for file in &self.files {
            // Whole, as a path is copied.
            text += &format!("{:<10}{file}\n", "written");
        }
        let table = listed(
            self.processes.iter().take(LISTED_MAX),
            &[
                ("NAME", &|it| one_line(&it.name).into_owned()),
                ("PID", &|it| it.pid.to_string()),
                ("PROCESS", &|it| it.process.clone()),
                ("RESIDENT", &|it| human_size(it.resident_pages * PAGE_SIZE as u64)),
                ("TOUCHED", &|it| {
                    let bytes = it.working_set_pages.map(|pages| pages * PAGE_SIZE as u64);
                    bytes.map_or("unknown".to_owned(), human_size)
                }),
                ("lz4 SAVES", &|it| human_size(it.saved_bytes.lz4)),
            ],
        );
        let more = self.processes.len().saturating_sub(LISTED_MAX);
        let more = match more {
            0 => String::new(),
            more => format!("and {}\n", counted(more, "smaller one")),
        };
        format!("{text}\n{}\n{more}", trimmed(&table).trim_end())
    }
}

impl Process {
    fn new(process: &SampledProcess) -> Process {
        Process {
            pid: process.pid,
            name: process.name.clone(),
            process: hex(process.process),
            job: hex(process.job),
            resident_pages: process.resident_pages,
            working_set_pages: process.working_set_pages,
            sampled_pages: process.sampled_pages,
            saved_bytes: SavedBytes::of(process),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_percentages_above_nothing() {
        assert_eq!(parse_budget("1%"), Ok(0.01));
        assert_eq!(parse_budget("100"), Ok(1.0));
        for text in ["0", "0%", "101%", "-1%", "1e1", "nan", "%", ""] {
            assert!(parse_budget(text).unwrap_err().contains("0.01 to 100"), "{text}");
        }
    }
}
