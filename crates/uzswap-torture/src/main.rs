//! The command `uzswap-torture`: tests the store with injected faults.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Parser;
use clap::builder::RangedU64ValueParser;
use serde::Serialize;

use uzswap::random::mix;
use uzswap_cli::cli::{self, Failure, JsonOutput, bar, parse_seconds};
use uzswap_cli::report::Schema;
use uzswap_torture::{Failure as Found, Fault, FaultSet, Outcome, PlantedBug, Torture};

/// Test the store with injected faults, and check every answer.
///
/// Each seed chooses a store, a backing, and how often what fails; then operations are done and
/// every answer and counter is checked. With one thread the same seed has the same history. The
/// first failure ends it: exit code 1, with the command that does it again.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, allow_negative_numbers = true)]
struct Arguments {
    /// First seed; the others follow it
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of seeds [8, or as many as --seconds allows]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    seeds: Option<u64>,
    /// Start no new seed after this time
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Operations of each thread for each seed
    #[arg(long, value_name = "N", default_value_t = Torture::default().operations,
          value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    ops: u64,
    /// Threads; only a run with one thread is repeatable
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=64))]
    threads: usize,
    /// Faults to inject: all, none, or names (read-error,torn-write,no-pages,...)
    #[arg(long, value_name = "LIST", default_value_t = FaultSet::ALL)]
    faults: FaultSet,
    /// A bug to put in, to see that it is found
    #[arg(long, value_name = "NAME")]
    plant: Option<PlantedBug>,
    /// Print one JSON document instead, or write it to FILE beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
}

/// The result; with `--json`, in an envelope.
#[derive(Debug, Serialize)]
struct Report {
    first_seed: u64,
    seeds: u64,
    operations: u64,
    threads: usize,
    seconds: f64,
    /// A hash of all answers; the same each time with one thread.
    digest: String,
    faults: BTreeMap<&'static str, u64>,
    answers: BTreeMap<&'static str, u64>,
    counters: BTreeMap<&'static str, u64>,
    failure: Option<Found>,
}

/// Seeds where nothing is said.
const SEEDS: u64 = 8;

fn main() -> ExitCode {
    cli::run(|arguments: Arguments| arguments.run().map(|()| ExitCode::SUCCESS))
}

impl Arguments {
    fn run(self) -> Result<(), Failure> {
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let report = self.torture();
        output.print(Schema::Torture, &report, || report.text())?;
        match report.failure {
            None => Ok(()),
            Some(found) => Err(Failure::Check(anyhow!(
                "seed {}: {}\n  replay: {}",
                found.seed,
                found.what,
                found.replay
            ))),
        }
    }

    fn torture(&self) -> Report {
        let start = Instant::now();
        let torture = Torture {
            operations: self.ops,
            threads: self.threads,
            faults: self.faults,
            plant: self.plant,
        };
        let unlimited = if self.seconds.is_some() { u64::MAX } else { SEEDS };
        let seeds = self.seeds.unwrap_or(unlimited);
        let mut report = Report::new(self);
        let progress = match (self.seeds, self.seconds) {
            (None, Some(seconds)) => {
                bar(seconds.as_secs().max(1), "torture {wide_bar} {pos}/{len} s {msg}")
            }
            _ => bar(seeds, "torture {wide_bar} {pos}/{len} seeds {msg}"),
        };
        for number in 0..seeds {
            if self.seconds.is_some_and(|seconds| start.elapsed() >= seconds) {
                break;
            }
            report.add(torture.run(self.seed.wrapping_add(number)));
            let by_time = self.seeds.is_none() && self.seconds.is_some();
            progress.set_position(if by_time { start.elapsed().as_secs() } else { number + 1 });
            progress.set_message(format!("{} operations", report.operations));
            if report.failure.is_some() {
                break;
            }
        }
        progress.finish_and_clear();
        report.seconds = start.elapsed().as_secs_f64();
        report
    }
}

impl Report {
    fn new(arguments: &Arguments) -> Report {
        Report {
            first_seed: arguments.seed,
            seeds: 0,
            operations: 0,
            threads: arguments.threads,
            seconds: 0.0,
            digest: format!("{:016x}", 0),
            faults: Fault::ALL.map(|fault| (fault.name(), 0)).into(),
            answers: BTreeMap::new(),
            counters: BTreeMap::new(),
            failure: None,
        }
    }

    fn add(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.operations += outcome.operations;
        let digest = u64::from_str_radix(&self.digest, 16).expect("of this");
        self.digest = format!("{:016x}", mix(digest ^ outcome.digest));
        for (fault, count) in Fault::ALL.into_iter().zip(outcome.fired) {
            *self.faults.entry(fault.name()).or_default() += count;
        }
        for (answer, count) in outcome.tally {
            *self.answers.entry(answer).or_default() += count;
        }
        for counter in outcome.counters.list() {
            *self.counters.entry(counter.name).or_default() += counter.value;
        }
        self.failure = outcome.failure;
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{} operations, {} seeds from {}, {} threads, {:.1} s; digest {}\n",
            self.operations, self.seeds, self.first_seed, self.threads, self.seconds, self.digest
        );
        let sections = [
            ("what failed", &self.faults),
            ("answers", &self.answers),
            ("counters", &self.counters),
        ];
        for (title, counts) in sections {
            writeln!(text, "\n{title}").expect("a string takes all");
            for (name, count) in counts {
                writeln!(text, "  {count:>12}  {name}").expect("a string takes all");
            }
        }
        if let Some(found) = &self.failure {
            writeln!(text, "\nFAILED seed {}: {}", found.seed, found.what).expect("as above");
            writeln!(text, "  store: {:?}", found.plan).expect("as above");
            for step in &found.steps {
                writeln!(text, "  {step}").expect("as above");
            }
            writeln!(text, "  replay: {}", found.replay).expect("as above");
        }
        text
    }
}
