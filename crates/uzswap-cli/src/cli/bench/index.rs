//! `uzswap bench index`: the indexes side by side.

use clap::builder::RangedU64ValueParser;

use super::{Output, lines, opening, with_range};
use crate::cli::Failure;
use crate::cli::args::{distinct, rounds};
use crate::cli::progress::with_progress;
use crate::measure::study::index::{BASE, Contender, Figures, Findings, IndexStudy, KeyOrder};
use crate::report::format::{counted, thousands, three_digits, wrapped};
use crate::report::{Envelope, Schema};

/// What `uzswap bench index` is asked for.
///
/// Each run is a fresh process that inserts all keys, looks each up, looks each up in a chain,
/// replaces all entries and removes all keys. In the chain the next key is known only once the
/// entry is read; the other operations are independent, so their cache misses overlap. hashbrown is
/// std's HashMap with one multiplication as its hash; it and BTreeMap are peers, not for stores.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct IndexArgs {
    /// Numbers of keys; 10000000 takes minutes
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "100000,1000000",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000_000))]
    keys: Vec<usize>,
    /// sequential; random (1 key in 4 of a range); clusters (runs of 8); shuffled (all of a range)
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "sequential,random,clusters"
    )]
    order: Vec<KeyOrder>,
    /// Indexes, and the peers BTreeMap and hashbrown [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    index: Vec<Contender>,
    /// Runs of each, each in its own process, taking turns
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = rounds())]
    rounds: usize,
    /// Seed of the random numbers: same seed, same keys
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

impl IndexArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let contenders = if self.index.is_empty() { Contender::all() } else { self.index };
        let study = IndexStudy {
            keys: distinct(&self.keys),
            orders: distinct(&self.order),
            contenders: distinct(&contenders),
            rounds: self.rounds,
            seed: self.seed,
        };
        self.output.of(|| with_progress(|progress| study.run(progress)))
    }
}

impl super::Findings for Findings {
    const SCHEMA: Schema = Schema::BenchIndex;

    fn text(&self, envelope: &Envelope) -> String {
        let rounds = counted(self.rounds, "round");
        let title = format!("{rounds}, taking turns, each run in a process of its own");
        let mut text = opening(envelope, &title, &[], "");
        for group in self.cells.chunk_by(|a, b| (a.keys, a.order) == (b.keys, b.order)) {
            let Figures { keys, order, .. } = group[0];
            text += &format!("\n{} KEYS, {order}\n\n", thousands(keys as u64));
            text += &format!("{}\n", nanoseconds(group));
            if let Some(ratios) = ratios(group) {
                text += &format!("\n{ratios}\n");
            }
        }
        text += "\n";
        text + &wrapped(
            "",
            "",
            "ns an operation and bytes an entry, medians of the rounds; SPREAD: the widest range \
             of the five, in percent of its median. CHAIN: look-ups that wait for each other. \
             COUNTED: what the index says; RESIDENT: what the process grew by. Second table: how \
             many times faster than rbtree, round by round, with the range.",
        )
    }
}

fn nanoseconds(group: &[Figures]) -> String {
    let row = |figures: &Figures| {
        let spread = figures
            .operations()
            .map(|figure| (figure.ns.max - figure.ns.min) / figure.ns.median * 100.0)
            .into_iter()
            .fold(0.0, f64::max);
        let mut row = vec![figures.index.to_string()];
        row.extend(figures.operations().map(|figure| three_digits(figure.ns.median)));
        row.push(format!("{spread:.0}%"));
        row.push(figures.counted_bytes_per_entry.map_or("-".to_owned(), three_digits));
        row.push(three_digits(figures.resident_bytes_per_entry.median));
        row
    };
    lines(
        &["ns", "INSERT", "LOOKUP", "CHAIN", "REPLACE", "REMOVE", "SPREAD", "COUNTED", "RESIDENT"],
        group.iter().map(row),
    )
}

/// How many times faster than the base; `None` without it.
fn ratios(group: &[Figures]) -> Option<String> {
    let row = |figures: &Figures| {
        let mut row = vec![figures.index.to_string()];
        for figure in figures.operations() {
            row.push(with_range(figure.times_faster?));
        }
        Some(row)
    };
    let others = group.iter().filter(|figures| figures.index != BASE);
    let rows: Vec<_> = others.map(row).collect::<Option<_>>()?;
    let header = ["x rbtree", "INSERT", "LOOKUP", "CHAIN", "REPLACE", "REMOVE"];
    (!rows.is_empty()).then(|| lines(&header, rows))
}
