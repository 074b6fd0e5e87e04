//! `uzswap fleet replay`: settings of the controller over all sampled machines.

use std::path::PathBuf;

use anyhow::Context;
use clap::builder::RangedU64ValueParser;
use serde::Serialize;

use super::super::Failure;
use super::super::corpus::bar;
use super::super::json::JsonOutput;
use super::params::Params;
use super::{failure, hex};
use crate::human_size::human_size;
use crate::report::Schema;
use crate::report::format::{counted, listed, thousands, trimmed, wrapped};
use uzswap_fleet::folder::{samples, write};
use uzswap_fleet::{Lengths, Tried, Tuned, tune};
use uzswap_sys::interrupt;

/// The parameters of Google's paper before they were tuned.
pub(super) const PARAMS: &str = "threshold-percentile=98,warm-up=10m,slo=0.2%,compressor=lz4";

/// What `uzswap fleet replay` is asked for.
///
/// The controller is that of Google's paper of 2019: for each process and interval, pages are
/// compressed from the smallest age on whose promotions are within the objective. Several values of
/// threshold-percentile and warm-up are tried in all combinations; the best comes first. Nothing is
/// drawn: the result depends on the files and parameters alone.
#[derive(Debug, clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Exit code: 0 if a setting is within the objective, 1 if none is or a file is \
                  damaged, 2 without samples, 3 if the machine refuses."
)]
pub(in super::super) struct Replay {
    /// Folder with the files that `uzswap sample` wrote
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Parameters of the controller, NAME=VALUE,...: threshold-percentile is that of past best
    /// ages; in its warm-up nothing of a process is compressed; slo is the promotions that are
    /// allowed, in percent of the working set a minute; compressor is lz4, lzo-rle or zstd
    #[arg(long, value_name = "PARAMS", default_value = PARAMS, value_parser = Params::parse)]
    params: Params,
    /// Threads [default: one for each processor]
    #[arg(long, value_name = "N",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    threads: Option<usize>,
    /// Write a row for each machine and setting to this Parquet file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON document instead; with =FILE, write it there beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    json: Option<Option<PathBuf>>,
}

/// The result; with `--json`, in an envelope.
#[derive(Debug, Serialize)]
struct Report {
    machines: u64,
    samples_without_end: u64,
    compressor: &'static str,
    slo_ppm: u64,
    settings: Vec<Setting>,
}

/// One setting over all machines.
#[derive(Debug, Serialize)]
struct Setting {
    threshold_percentile: u64,
    warm_up_seconds: u64,
    within_slo: bool,
    coverage: f64,
    p98_promotion_ppm: u64,
    active_intervals: u64,
    promoted_pages: u64,
    cpu_percent: f64,
    saved_bytes: Option<u64>,
    machines_within_slo: u64,
    /// The machine with the highest promotion rate.
    worst_host: String,
    worst_p98_promotion_ppm: u64,
}

impl Replay {
    pub(in super::super) fn run(self) -> Result<(), Failure> {
        interrupt::watch().context("cannot install signal handlers").map_err(Failure::Machine)?;
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let files = samples(&self.folder).map_err(failure)?;
        let settings = self.params.settings();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let bar = bar(files.len() as u64, "{elapsed:>4} [{bar:30}] {pos}/{len} machines");
        let tuned = tune(&files, &settings, self.threads.unwrap_or(threads), |done| {
            bar.set_position(done as u64);
            interrupt::end_if_noted(); // nothing was written yet
        });
        bar.finish_and_clear();
        let tuned = tuned.map_err(failure)?;
        if let Some(path) = &self.out {
            write(path, &Tried::encode(&tuned.settings)).map_err(failure)?;
        }
        let report =
            Report::new(&tuned, files.len() as u64, self.params.lengths, self.params.slo_ppm);
        output.print(Schema::FleetReplay, &report, || report.text())?;
        report.verdict()
    }
}

impl Report {
    fn new(tuned: &Tuned, machines: u64, lengths: Lengths, slo_ppm: u64) -> Report {
        let settings = tuned.settings.iter().map(Setting::new).collect();
        let (compressor, samples_without_end) = (lengths.name(), tuned.samples_without_end);
        Report { machines, samples_without_end, compressor, slo_ppm, settings }
    }

    /// The failed check where no setting is within the objective.
    fn verdict(&self) -> Result<(), Failure> {
        match self.settings.first() {
            Some(best) if best.within_slo => Ok(()),
            _ => Err(Failure::Check(anyhow::anyhow!(
                "no setting is within the objective of {} % of the working set a minute; try a \
                 higher threshold-percentile or a longer warm-up",
                self.slo_ppm as f64 / 1e4
            ))),
        }
    }

    fn text(&self) -> String {
        let slo = self.slo_ppm as f64 / 1e4;
        let machines = counted(self.machines as usize, "machine");
        let best = &self.settings[0];
        let saved = best
            .saved_bytes
            .map_or(String::new(), |bytes| format!(", saves {}", human_size(bytes)));
        let verdict = match best.within_slo {
            true => format!(
                "Use percentile {} and a warm-up of {} s with {}: it compresses {:.1} % of cold \
                 memory{saved}, and takes {:.3} % of a processor a machine.",
                best.threshold_percentile,
                best.warm_up_seconds,
                self.compressor,
                best.coverage * 100.0,
                best.cpu_percent
            ),
            false => format!(
                "Use none of these: the lowest p98 is {:.3} %.",
                percent(best.p98_promotion_ppm)
            ),
        };
        let table = listed(
            &self.settings,
            &[
                ("PERCENTILE", &|it| it.threshold_percentile.to_string()),
                ("WARM-UP", &|it| format!("{} s", it.warm_up_seconds)),
                ("COVERAGE", &|it| format!("{:.1}%", it.coverage * 100.0)),
                ("P98/MIN", &|it| rate(it.p98_promotion_ppm)),
                ("SLO", &|it| if it.within_slo { "met" } else { "not" }.to_owned()),
                ("MACHINES", &|it| format!("{}", it.machines_within_slo)),
                ("CPU", &|it| format!("{:.3}%", it.cpu_percent)),
                ("SAVED", &|it| it.saved_bytes.map_or("unknown".to_owned(), human_size)),
            ],
        );
        let legend = format!(
            "COVERAGE: compressed of cold memory. P98/MIN: promotions in percent of the working \
             set a minute, which 98 % of readings do not pass; the objective is {slo} %. MACHINES: \
             those that meet it, of {}.",
            thousands(self.machines)
        );
        let without_end = match self.samples_without_end {
            0 => String::new(),
            count => format!(
                " Nothing ended {} (killed, or it goes on): what was written counts.",
                counted(count as usize, "sample")
            ),
        };
        let verdict = wrapped("", "", &format!("{machines}.{without_end} {verdict}"));
        format!("{verdict}\n{}\n\n{}", trimmed(&table).trim_end(), wrapped("", "", &legend))
    }
}

fn percent(ppm: u64) -> f64 {
    ppm as f64 / 1e4
}

/// A rate for a column of the table: a high one has no decimals.
fn rate(ppm: u64) -> String {
    let decimals = if ppm < 1_000_000 { 3 } else { 0 };
    format!("{:.decimals$}%", percent(ppm))
}

impl Setting {
    fn new(tried: &Tried) -> Setting {
        let fleet = &tried.fleet;
        let within = tried.machines.iter().filter(|row| row.within_slo).count();
        let worst = tried.machines.iter().max_by_key(|row| row.p98_promotion_ppm);
        Setting {
            threshold_percentile: fleet.threshold_percentile,
            warm_up_seconds: fleet.warm_up_seconds,
            within_slo: fleet.within_slo,
            coverage: fleet.coverage,
            p98_promotion_ppm: fleet.p98_promotion_ppm,
            active_intervals: fleet.active_intervals,
            promoted_pages: fleet.promoted_pages,
            cpu_percent: fleet.cpu_percent,
            saved_bytes: fleet.saved_bytes,
            machines_within_slo: within as u64,
            worst_host: hex(worst.and_then(|row| row.host).unwrap_or(0)),
            worst_p98_promotion_ppm: worst.map_or(0, |row| row.p98_promotion_ppm),
        }
    }
}
