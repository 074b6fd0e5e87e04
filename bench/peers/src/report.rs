//! The result of the runs: a table for people, JSON for programs.

use std::fmt;

use serde::Serialize;
use uzswap_cli::measure::histogram::Latencies;

use crate::Options;
use crate::contender::Contender;
use crate::run::Outcome;

/// A contender at one count of threads: its runs.
pub(crate) struct Measured {
    pub(crate) contender: Contender,
    pub(crate) threads: u32,
    pub(crate) capacity: u64,
    pub(crate) outcomes: Vec<Outcome>,
}

/// The whole comparison.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pages: u64,
    /// Sum of the pages' compressed sizes.
    object_bytes: u64,
    /// The memory that every bounded contender was brought to.
    memory_target: u64,
    compressor: String,
    zipf: f64,
    reads: u64,
    rounds: u64,
    seed: u64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    contender: &'static str,
    threads: u32,
    /// None without a bound.
    capacity: Option<u64>,
    reads_per_second: Spread,
    /// Of each round over moka's in the same round with as many threads.
    over_moka: Option<Spread>,
    /// A share, 0 to 1.
    hit_rate: Spread,
    memory: Spread,
    hit_ns: Percentiles,
    miss_ns: Percentiles,
}

/// The median of the rounds, and their range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// Of at least one value.
    fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Spread { median, min: values[0], max: values[values.len() - 1] }
    }
}

/// Latencies of all rounds together. None where there was no such read.
#[derive(Debug, Serialize)]
struct Percentiles {
    p50: Option<u64>,
    p99: Option<u64>,
}

impl Percentiles {
    fn of<'a>(rounds: impl Iterator<Item = &'a Latencies>) -> Percentiles {
        let summary = rounds.sum::<Latencies>().summary();
        let some = |ns| (summary.count > 0).then_some(ns);
        Percentiles { p50: some(summary.p50), p99: some(summary.p99) }
    }
}

impl Report {
    pub(crate) fn new(
        options: &Options,
        pages: u64,
        object_bytes: u64,
        memory_target: u64,
        measured: &[Measured],
    ) -> Report {
        Report {
            pages,
            object_bytes,
            memory_target,
            compressor: options.compressor.to_string(),
            zipf: options.zipf,
            reads: options.reads,
            rounds: options.rounds,
            seed: options.seed,
            rows: measured.iter().map(|one| Row::new(one, measured)).collect(),
        }
    }
}

impl Row {
    fn new(one: &Measured, all: &[Measured]) -> Row {
        let moka = all.iter().find(|m| m.contender == Contender::Moka && m.threads == one.threads);
        let over_moka = moka.map(|moka| {
            let rounds = one.outcomes.iter().zip(&moka.outcomes);
            Spread::of(rounds.map(|(mine, base)| mine.reads_per_second() / base.reads_per_second()))
        });
        let runs = || one.outcomes.iter();
        Row {
            contender: one.contender.name(),
            threads: one.threads,
            capacity: one.contender.is_bounded().then_some(one.capacity),
            reads_per_second: Spread::of(runs().map(Outcome::reads_per_second)),
            over_moka,
            hit_rate: Spread::of(runs().map(Outcome::hit_rate)),
            memory: Spread::of(runs().map(|run| run.memory as f64)),
            hit_ns: Percentiles::of(runs().map(|run| &run.hit)),
            miss_ns: Percentiles::of(runs().map(|run| &run.miss)),
        }
    }
}

const MIB: f64 = (1 << 20) as f64;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} pages, {:.1} MiB as {} objects; every cache at {:.1} MiB of real memory",
            self.pages,
            self.object_bytes as f64 / MIB,
            self.compressor,
            self.memory_target as f64 / MIB
        )?;
        writeln!(
            f,
            "Zipf {}, {} reads a run; median of {} rounds (lowest to highest)\n",
            self.zipf, self.reads, self.rounds
        )?;
        writeln!(
            f,
            "{:17} {:>2} {:>20} {:>19} {:>6} {:>7} {:>8} {:>8} {:>8} {:>8}",
            "contender",
            "N",
            "k reads/s",
            "/ moka",
            "hits %",
            "MiB",
            "hit p50",
            "p99 ns",
            "miss p50",
            "p99 ns"
        )?;
        for row in &self.rows {
            let ns = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| ns.to_string());
            writeln!(
                f,
                "{:17} {:>2} {:>20} {:>19} {:>6.2} {:>7.1} {:>8} {:>8} {:>8} {:>8}",
                row.contender,
                row.threads,
                spread(row.reads_per_second, 1e-3, 0),
                row.over_moka.map_or("-".to_owned(), |ratio| spread(ratio, 1.0, 2)),
                row.hit_rate.median * 100.0,
                row.memory.median / MIB,
                ns(row.hit_ns.p50),
                ns(row.hit_ns.p99),
                ns(row.miss_ns.p50),
                ns(row.miss_ns.p99)
            )?;
        }
        Ok(())
    }
}

fn spread(value: Spread, scale: f64, digits: usize) -> String {
    let [median, min, max] = [value.median, value.min, value.max].map(|value| value * scale);
    format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_the_sorted_values() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(spread(&[4.0, 1.0]), Spread { median: 2.5, min: 1.0, max: 4.0 });
    }

    fn outcome(contender_speed: u64) -> Outcome {
        Outcome {
            reads: contender_speed,
            hits: contender_speed / 2,
            seconds: 1.0,
            memory: 1 << 20,
            hit: Latencies::new(),
            miss: Latencies::new(),
        }
    }

    #[test]
    fn ratios_are_of_the_same_round_and_threads() {
        let measured = |contender, threads, speeds: [u64; 3]| Measured {
            contender,
            threads,
            capacity: 1,
            outcomes: speeds.map(outcome).to_vec(),
        };
        let all = [
            measured(Contender::Moka, 1, [100, 200, 400]),
            measured(Contender::Moka, 2, [1000, 1000, 1000]),
            measured(Contender::Lru, 1, [200, 200, 200]),
            measured(Contender::Lru, 2, [500, 500, 500]),
            measured(Contender::Lru, 3, [500, 500, 500]),
        ];
        let ratio = |at: usize| Row::new(&all[at], &all).over_moka;
        assert_eq!(ratio(2), Some(Spread { median: 1.0, min: 0.5, max: 2.0 }));
        assert_eq!(ratio(3), Some(Spread { median: 0.5, min: 0.5, max: 0.5 }));
        assert_eq!(ratio(4), None);
        let row = Row::new(&all[2], &all);
        assert_eq!((row.hit_rate.median, row.hit_ns.p50), (0.5, None));
    }
}
