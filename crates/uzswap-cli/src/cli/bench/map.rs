//! `uzswap bench map`: the cost of access to an object in two host pages.

use std::time::Duration;

use super::{Output, lines, opening, parse_seconds};
use crate::cli::Failure;
use crate::cli::progress::with_progress;
use crate::measure::study::Spread;
use crate::measure::study::object_mapping::{
    Findings, MapOptions, Method, ObjectPlace, Worker, measure,
};
use crate::report::format::{counted, thousands};
use crate::report::{Envelope, Schema};

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
    #[command(flatten)]
    output: Output,
}

impl Map {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Map { single_threaded, touch, seconds, output } = self;
        let options = MapOptions { single_threaded, touch, time: seconds };
        output.of(|| with_progress(|progress| measure(options, progress)))
    }
}

impl super::Findings for Findings {
    const SCHEMA: Schema = Schema::BenchMap;

    fn text(&self, envelope: &Envelope) -> String {
        let ObjectPlace { bytes, slot_bytes, split } = &self.object;
        let cpus: Vec<String> = self.cpus.iter().map(usize::to_string).collect();
        let title = format!(
            "{} pinned to {} {}, each with its own pools",
            counted(cpus.len(), "worker"),
            if cpus.len() == 1 { "processor" } else { "processors" },
            cpus.join(",")
        );
        let touched = if self.touch { "all touched" } else { "not touched" };
        let object = format!(
            "the third of {bytes} bytes, in a slot of {slot_bytes}: {} in one page, {} in the \
             next; {touched}",
            split[0], split[1]
        );
        let settings = format!(
            "{} s for each line, in {} slices that take turns; {}",
            self.seconds, self.rounds, self.cycles
        );
        let facts = [("object", &*object), ("settings", &*settings)];
        let opening = opening(envelope, &title, &facts, "");
        format!("{opening}\n{}\n\n{}\n", workers(&self.methods), together(&self.methods))
    }
}

/// A line for each worker, with the figures that the original printed first.
fn workers(methods: &[Method]) -> String {
    let row = |method: &Method, worker: &Worker| {
        [
            label(method),
            worker.cpu.to_string(),
            thousands(worker.cycles),
            thousands(worker.mappings),
            thousands(worker.cycles / worker.mappings),
            spread(worker.cycles_per_map, 0),
        ]
    };
    lines(
        &["METHOD", "CPU", "CYCLES", "MAPPINGS", "CYCLES/MAP", "MEDIAN (RANGE)"],
        methods
            .iter()
            .flat_map(|method| method.workers.iter().map(move |worker| row(method, worker))),
    )
}

/// A line for each method and mode.
fn together(methods: &[Method]) -> String {
    let row = |method: &Method| {
        [
            label(method),
            thousands(method.mappings_per_second as u64),
            spread(method.cycles_per_map, 0),
            spread(method.over_copy, 2),
        ]
    };
    lines(&["ALL WORKERS", "MAPPINGS/s", "CYCLES/MAP", "/ copy"], methods.iter().map(row))
}

fn label(method: &Method) -> String {
    format!("{:10} {}", method.mapping.name(), method.mode)
}

fn spread(spread: Spread, decimals: usize) -> String {
    let Spread { median, min, max } = spread;
    format!("{median:.decimals$} ({min:.decimals$} to {max:.decimals$})")
}
