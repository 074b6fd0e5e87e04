//! uzswap beside the caches that a program would use instead: the same pages, the same compressor,
//! the same order of reads, the same real memory. See README.md.

mod calibrate;
mod contender;
mod report;
mod run;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use tempfile::TempDir;
use uzswap::compressor::{CompressorKind, OUTPUT_BYTES};
use uzswap::page::PAGE_SIZE;
use uzswap_cli::corpus::capture::capture_workload;
use uzswap_cli::corpus::page_set::PageSet;
use uzswap_cli::corpus::workload::Workload;

use calibrate::{TOLERANCE, calibrate};
use contender::Contender;
use report::{Measured, Report};
use run::{Outcome, Spec};

/// The command of this program that is one run.
const RUN_COMMAND: &str = "run-one";

/// Compare page caches: operations per second and hit rate at the same real memory.
#[derive(Debug, Parser)]
#[command(name = "peers", max_term_width = 100)]
struct Options {
    /// Contenders to run
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    contenders: Vec<Contender>,
    /// File of whole pages to use instead of the built-in workload `mixed`
    #[arg(long, value_name = "FILE")]
    corpus: Option<PathBuf>,
    /// Size of the built-in workload
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    size: u64,
    /// Real memory each cache may take [default: half of the compressed pages]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Compressor of every contender
    #[arg(long, default_value = "lz4", value_name = "NAME")]
    compressor: CompressorKind,
    /// Skew of the Zipf distribution of the keys
    #[arg(long, value_name = "S", default_value_t = 0.99)]
    zipf: f64,
    /// Counts of threads
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1, 2])]
    threads: Vec<u32>,
    /// Timed reads of a run; as many are made before, untimed
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    reads: u64,
    /// Runs of each contender, in turn
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u64,
    /// Start of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(RUN_COMMAND) => exit_code(answer()),
        _ => exit_code(compare(&Options::parse())),
    }
}

fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> Result<()> {
    ensure!(options.rounds > 0 && options.reads > 0, "without rounds and reads there is nothing");
    ensure!(!options.threads.contains(&0), "a run needs a thread");
    ensure!((0.0..=10.0).contains(&options.zipf), "the skew is from 0 to 10");
    let folder = TempDir::with_prefix("uzswap-peers-")?;
    let corpus = match &options.corpus {
        Some(path) => path.clone(),
        None => {
            let path = folder.path().join("pages");
            capture_workload(Workload::Mixed, 1, usize::try_from(options.size)?, &path)?;
            path
        }
    };
    let (pages, objects) = weigh(&corpus, options.compressor)?;
    let memory = options.memory.unwrap_or(objects / 2);
    let contenders = match &options.contenders[..] {
        [] => Contender::value_variants(),
        chosen => chosen,
    };
    let spec = |contender, threads, capacity, round| Spec {
        contender,
        compressor: options.compressor.to_string(),
        pages: corpus.clone(),
        capacity,
        skew: options.zipf,
        seed: options.seed + round * 1000,
        threads,
        warm_up: options.reads,
        reads: options.reads,
    };

    let mut measured: Vec<Measured> = Vec::new();
    for &threads in &options.threads {
        for &contender in contenders {
            let capacity = if contender.is_bounded() {
                let memory_of = |capacity| Ok(ask(&spec(contender, threads, capacity, 0))?.memory);
                let fit = calibrate(memory, TOLERANCE, memory_of)
                    .with_context(|| format!("{} cannot be calibrated", contender.name()))?;
                fit.capacity
            } else {
                u64::MAX
            };
            measured.push(Measured { contender, threads, capacity, outcomes: Vec::new() });
        }
    }
    // In turn, so that a slow minute of the machine is everybody's.
    for round in 1..=options.rounds {
        for one in &mut measured {
            one.outcomes.push(ask(&spec(one.contender, one.threads, one.capacity, round))?);
        }
    }
    let report = Report::new(options, pages, objects, memory, &measured);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}

/// The pages of the file, and the bytes of their objects.
fn weigh(corpus: &Path, compressor: CompressorKind) -> Result<(u64, u64)> {
    let set = PageSet::read(corpus)?;
    let compressor = compressor.build();
    let mut out = [0; OUTPUT_BYTES];
    let size = |page| compressor.compress(page, &mut out).unwrap_or(PAGE_SIZE) as u64;
    Ok((set.pages.len() as u64, set.pages.iter().map(size).sum()))
}

/// Has a fresh process of this program do the run, so that neither its heap nor its resident size
/// is another's.
fn ask(spec: &Spec) -> Result<Outcome> {
    let output = Command::new(std::env::current_exe()?)
        .arg(RUN_COMMAND)
        .arg(serde_json::to_string(spec)?)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the process of a run")?;
    ensure!(output.status.success(), "a run of {} failed", spec.contender.name());
    serde_json::from_slice(&output.stdout).context("a run gave no result")
}

/// The other side of [`ask`].
fn answer() -> Result<()> {
    let Some(spec) = std::env::args().nth(2) else { bail!("{RUN_COMMAND} needs a description") };
    let outcome = run::run(&serde_json::from_str(&spec)?)?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// A size in bytes: a number with K, M or G, powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let size = number.parse().ok().and_then(|number: u64| number.checked_mul(1 << shift));
    size.filter(|&size| size > 0).ok_or_else(|| format!("'{text}' is not a size, as 128M"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_1024() {
        assert_eq!(parse_size("128M"), Ok(128 << 20));
        assert_eq!(parse_size("4096"), Ok(4096));
        for text in ["", "M", "0", "-1", "1X", "99999999999G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
