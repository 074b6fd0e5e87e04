//! `uzswap bench index`: the indexes side by side.

use std::io;
use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use serde::Serialize;

use super::{three_digits, with_range};
use crate::cli::Failure;
use crate::cli::args::distinct;
use crate::cli::json::JsonOutput;
use crate::cli::report_args::ReportArgs;
use crate::lab::report::format::{counted, table, thousands, trimmed, wrapped};
use crate::lab::report::{Envelope, Schema};
use crate::lab::study::Spread;
use crate::lab::study::index::{Cell, Contender, IndexRun, IndexStudy, KeyOrder, child};
use uzswap::index::IndexKind;

/// The base of every ratio, where it takes part.
const BASE: Contender = Contender::Index(IndexKind::RbTree);

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
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    rounds: usize,
    /// Seed of the random numbers: same seed, same keys
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON document instead, or write it to FILE beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
    #[command(flatten)]
    report: ReportArgs,
}

/// The printed report; with `--json`, as it is.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    envelope: Envelope,
    rounds: usize,
    seed: u64,
    cells: Vec<Figures>,
}

/// A contender at one number and order of keys.
#[derive(Debug, Serialize)]
struct Figures {
    keys: usize,
    order: &'static str,
    index: &'static str,
    insert: Figure,
    lookup: Figure,
    lookup_chain: Figure,
    replace: Figure,
    remove: Figure,
    /// What the index says it takes.
    counted_bytes_per_entry: Option<f64>,
    /// What the process grew by.
    resident_bytes_per_entry: Spread,
}

/// Nanoseconds an operation.
#[derive(Debug, Serialize)]
struct Figure {
    ns: Spread,
    /// How many times faster than the red-black tree, round by round.
    times_faster: Option<Spread>,
}

impl IndexArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut output = JsonOutput::open(self.json.as_ref())?;
        let mut page = self.report.open()?;
        let contenders = if self.index.is_empty() { Contender::all() } else { self.index };
        let study = IndexStudy {
            keys: distinct(&self.keys),
            orders: distinct(&self.order),
            contenders: distinct(&contenders),
            rounds: self.rounds,
            seed: self.seed,
        };
        let cells = super::with_progress(|progress| study.run(progress))?;
        let report = Report {
            envelope: Envelope::new(Schema::BenchIndex),
            rounds: self.rounds,
            seed: self.seed,
            cells: cells.iter().map(|cell| Figures::of(cell, &cells)).collect(),
        };
        let printed = output.print_document(&report, || report.text());
        page.write(&report).and(printed)
    }
}

/// The inner command that does one run.
pub(in crate::cli) fn run_one() -> Result<(), Failure> {
    super::answer("index", child(io::stdin().lock(), io::stdout().lock()))
}

impl Figures {
    /// Of a cell, against the base's among all of them.
    fn of(cell: &Cell, cells: &[Cell]) -> Figures {
        let base = cells.iter().find(|other| {
            (other.keys, other.order) == (cell.keys, cell.order) && other.contender == BASE
        });
        let values = |cell: &Cell, of: fn(&IndexRun) -> f64| -> Vec<f64> {
            cell.runs.iter().map(of).collect()
        };
        let figure = |of| {
            let own = values(cell, of);
            let times_faster = base.map(|base| Spread::of_ratios(&values(base, of), &own));
            Figure { ns: Spread::of(&own), times_faster }
        };
        let per_entry = |bytes: u64| bytes as f64 / cell.keys as f64;
        let counted = cell.runs.last().and_then(|run| run.counted_bytes);
        let resident: Vec<f64> =
            cell.runs.iter().map(|run| per_entry(run.resident_bytes)).collect();
        Figures {
            keys: cell.keys,
            order: cell.order.name(),
            index: cell.contender.name(),
            insert: figure(|run| run.insert_ns),
            lookup: figure(|run| run.lookup_ns),
            lookup_chain: figure(|run| run.chain_ns),
            replace: figure(|run| run.replace_ns),
            remove: figure(|run| run.remove_ns),
            counted_bytes_per_entry: counted.map(per_entry),
            resident_bytes_per_entry: Spread::of(&resident),
        }
    }

    fn operations(&self) -> [&Figure; 5] {
        [&self.insert, &self.lookup, &self.lookup_chain, &self.replace, &self.remove]
    }
}

impl Report {
    fn text(&self) -> String {
        let machine = &self.envelope.machine;
        let mut text = format!(
            "uzswap {} bench index: {}, taking turns, each run in a process of its own\n\
             machine   Linux {}, {} x {}\n",
            self.envelope.version,
            counted(self.rounds, "round"),
            machine.kernel,
            machine.cpus,
            machine.cpu
        );
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
    let mut table = table(&[
        "ns", "INSERT", "LOOKUP", "CHAIN", "REPLACE", "REMOVE", "SPREAD", "COUNTED", "RESIDENT",
    ]);
    for figures in group {
        let spread = figures
            .operations()
            .map(|figure| (figure.ns.max - figure.ns.min) / figure.ns.median * 100.0)
            .into_iter()
            .fold(0.0, f64::max);
        let mut row = vec![figures.index.to_owned()];
        row.extend(figures.operations().map(|figure| three_digits(figure.ns.median)));
        row.push(format!("{spread:.0}%"));
        row.push(figures.counted_bytes_per_entry.map_or("-".to_owned(), three_digits));
        row.push(three_digits(figures.resident_bytes_per_entry.median));
        table.add_row(row);
    }
    trimmed(&table)
}

/// How many times faster than the base; `None` without it.
fn ratios(group: &[Figures]) -> Option<String> {
    let mut table = table(&["x rbtree", "INSERT", "LOOKUP", "CHAIN", "REPLACE", "REMOVE"]);
    for figures in group.iter().filter(|figures| figures.index != BASE.name()) {
        let mut row = vec![figures.index.to_owned()];
        for figure in figures.operations() {
            row.push(with_range(figure.times_faster?));
        }
        table.add_row(row);
    }
    (table.row_iter().count() > 0).then(|| trimmed(&table))
}
