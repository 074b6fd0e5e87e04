//! `uzswap fleet simulate`: machines made of sampled ones.

use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

use super::super::Failure;
use super::super::corpus::bar;
use super::super::json::JsonOutput;
use super::failure;
use crate::report::Schema;
use crate::report::format::thousands;
use uzswap_fleet::folder::{FolderError, file_name, prepare, samples, write};
use uzswap_fleet::simulate::{Simulated, Source};
use uzswap_fleet::table::{IntervalRow, PageRow, RunRow, encode};
use uzswap_sys::interrupt;

/// What `uzswap fleet simulate` is asked for.
///
/// Each machine has processes of the samples in DIR: scaled, shifted in time, with other hashes.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Simulate {
    /// Folder with the files that `uzswap sample` wrote
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Folder for the machines
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Number of machines
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    machines: u64,
    /// Seed: same samples and seed, same machines
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON document instead; with =FILE, write it there beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    json: Option<Option<PathBuf>>,
}

/// The result; with `--json`, in an envelope.
#[derive(Debug, Serialize)]
struct Report {
    machines: u64,
    seed: u64,
    source_processes: u64,
    processes: u64,
    rows: u64,
    folder: String,
}

impl Simulate {
    pub(in super::super) fn run(self) -> Result<(), Failure> {
        interrupt::watch().context("cannot install signal handlers").map_err(Failure::Machine)?;
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let source = self.source().map_err(failure)?;
        if source.processes() == 0 {
            return Err(Failure::Usage(anyhow::anyhow!(
                "no process in {} has known ages: sample longer, or as root",
                self.folder.display()
            )));
        }
        prepare(&self.out).map_err(failure)?;
        let bar = bar(self.machines, "{elapsed:>4} [{bar:30}] {pos}/{len} machines");
        let (mut processes, mut rows) = (0, 0);
        for number in 0..self.machines {
            let machine = source.machine(self.seed, number);
            processes += machine.run.processes;
            rows += machine.intervals.len() as u64;
            self.write(machine).map_err(failure)?;
            bar.set_position(number + 1);
            interrupt::end_if_noted(); // each file is whole
        }
        bar.finish_and_clear();
        let report = Report {
            machines: self.machines,
            seed: self.seed,
            source_processes: source.processes() as u64,
            processes,
            rows,
            folder: self.out.display().to_string(),
        };
        output.print(Schema::FleetSimulate, &report, || report.text())
    }

    fn source(&self) -> Result<Source, FolderError> {
        let mut source = Source::default();
        for files in samples(&self.folder)? {
            let (intervals, pages) = files.rows()?;
            source.add(intervals, pages);
        }
        Ok(source)
    }

    fn write(&self, machine: Simulated) -> Result<(), FolderError> {
        let run = machine.run.run;
        write(&self.out.join(file_name::<PageRow>(run, 0)), &encode(machine.pages))?;
        write(&self.out.join(file_name::<IntervalRow>(run, 0)), &encode(machine.intervals))?;
        write(&self.out.join(file_name::<RunRow>(run, 0)), &encode([machine.run]))
    }
}

impl Report {
    fn text(&self) -> String {
        format!(
            "{} machines with {} processes, {} rows, made of {} sampled processes\nwritten  {}\n",
            thousands(self.machines),
            thousands(self.processes),
            thousands(self.rows),
            thousands(self.source_processes),
            self.folder
        )
    }
}
