//! The index study: time per operation and memory per entry of each index.
//!
//! Each contender runs in a fresh process for each number of keys, each order and each round, the
//! contenders taking turns. A run inserts all keys, looks each up, looks each up again in a chain
//! (the next key is known only once the entry is read), replaces all entries, and removes all.
//! Operations other than the chain's do not depend on each other, so that their cache misses
//! overlap: throughput, as a store with many threads sees it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::BuildHasherDefault;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::Spread;
use crate::measure::child::{ChildError, Refusal, answer, ask};
use crate::measure::turns::{Cell, Progress, Study, StudyError, take_turns};
use uzswap::by_name::by_name;
use uzswap::index::radix::MultiplyHasher;
use uzswap::index::{Entry, Index, IndexKind};
use uzswap::named_enum::{UnknownName, named};
use uzswap::page::PageKey;
use uzswap::random::SplitMix64;
use uzswap_sys::process::{anonymous_bytes, disable_huge_pages, trim_heap};

/// The hidden subcommand that does one run.
pub const RUN_COMMAND: &str = "index-run";

/// Keys per page of key space where they are sparse: one in so many.
const SPARSENESS: u64 = 4;

/// Neighbouring keys in a cluster.
const CLUSTER_KEYS: u64 = 8;

/// Look-ups and replacements are repeated until there are so many, lest the clock count.
const OPERATIONS_MIN: usize = 500_000;

/// In which order the keys come, and how densely they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyOrder {
    /// 0, 1, 2 ... in every phase.
    Sequential,
    /// One key in four of a range, by chance; every phase in another random order.
    Random,
    /// Runs of 8 neighbouring keys, one run in four of a range; runs in random order.
    Clusters,
    /// All keys of a range; every phase in another random order.
    Shuffled,
}

named!(
    KeyOrder, "order of keys",
    Sequential => "sequential", Random => "random", Clusters => "clusters",
    Shuffled => "shuffled",
);
by_name!(KeyOrder, Contender);

/// A contender: one of our indexes, or a peer of the standard library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Contender {
    /// An index of the store.
    Index(IndexKind),
    /// `std::collections::BTreeMap`.
    BTreeMap,
    /// `std::collections::HashMap`, which is hashbrown, with one multiplication as its hash.
    Hashbrown,
}

/// The base of every ratio, where it takes part.
pub const BASE: Contender = Contender::Index(IndexKind::RbTree);

impl Contender {
    /// Every one there is: the indexes first.
    pub fn all() -> Vec<Contender> {
        let peers = [Contender::BTreeMap, Contender::Hashbrown];
        IndexKind::ALL.map(Contender::Index).into_iter().chain(peers).collect()
    }

    /// The name it is chosen by.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Index(kind) => kind.name(),
            Contender::BTreeMap => "BTreeMap",
            Contender::Hashbrown => "hashbrown",
        }
    }

    fn build(self) -> Box<dyn Map> {
        match self {
            Contender::Index(kind) => Box::new(kind.build()),
            Contender::BTreeMap => Box::new(BTreeMap::new()),
            Contender::Hashbrown => Box::new(FastMap::default()),
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Contender {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let all = Contender::all();
        all.iter().copied().find(|contender| contender.name() == name).ok_or_else(|| UnknownName {
            what: "index",
            name: name.to_owned(),
            known: all.iter().map(|contender| contender.name()).collect::<Vec<_>>().join(", "),
        })
    }
}

/// What all contenders can do. Called through a pointer for all of them, as the store does it.
trait Map {
    fn insert_or_replace(&mut self, key: u64, entry: Entry) -> Result<Option<Entry>, String>;
    fn get(&self, key: u64) -> Option<Entry>;
    fn take(&mut self, key: u64) -> Option<Entry>;
    /// Its own count of its memory; the peers have none.
    fn bytes(&self) -> Option<usize> {
        None
    }
}

impl Map for Box<dyn Index> {
    fn insert_or_replace(&mut self, key: u64, entry: Entry) -> Result<Option<Entry>, String> {
        (**self).insert_or_replace(PageKey(key), entry).map_err(|error| error.to_string())
    }

    fn get(&self, key: u64) -> Option<Entry> {
        (**self).get(PageKey(key))
    }

    fn take(&mut self, key: u64) -> Option<Entry> {
        (**self).take(PageKey(key))
    }

    fn bytes(&self) -> Option<usize> {
        Some((**self).bytes())
    }
}

impl Map for BTreeMap<u64, Entry> {
    fn insert_or_replace(&mut self, key: u64, entry: Entry) -> Result<Option<Entry>, String> {
        Ok(self.insert(key, entry))
    }

    fn get(&self, key: u64) -> Option<Entry> {
        self.get(&key).copied()
    }

    fn take(&mut self, key: u64) -> Option<Entry> {
        self.remove(&key)
    }
}

/// The hash map with the hash that the page table has for its leaves.
type FastMap = HashMap<u64, Entry, BuildHasherDefault<MultiplyHasher>>;

impl Map for FastMap {
    fn insert_or_replace(&mut self, key: u64, entry: Entry) -> Result<Option<Entry>, String> {
        Ok(self.insert(key, entry))
    }

    fn get(&self, key: u64) -> Option<Entry> {
        self.get(&key).copied()
    }

    fn take(&mut self, key: u64) -> Option<Entry> {
        self.remove(&key)
    }
}

/// The measurement to make.
#[derive(Debug, Clone)]
pub struct IndexStudy {
    /// Numbers of keys.
    pub keys: Vec<usize>,
    /// Their orders.
    pub orders: Vec<KeyOrder>,
    /// The contenders, in the order they take turns.
    pub contenders: Vec<Contender>,
    /// Rounds; each contender runs once in each.
    pub rounds: usize,
    /// Start of the random numbers.
    pub seed: u64,
}

/// One run: the task of a child.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct RunSpec {
    contender: Contender,
    keys: usize,
    order: KeyOrder,
    seed: u64,
}

/// Findings of one run: nanoseconds an operation, bytes of all entries.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct IndexRun {
    /// Memory from the heap included.
    insert_ns: f64,
    lookup_ns: f64,
    chain_ns: f64,
    replace_ns: f64,
    remove_ns: f64,
    /// Memory with all keys in it, by the index's own count.
    counted_bytes: Option<u64>,
    /// Growth of the process's anonymous memory.
    resident_bytes: u64,
}

/// The findings of all runs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Findings {
    /// Runs of each contender.
    pub rounds: usize,
    /// Start of the random numbers.
    pub seed: u64,
    /// Contenders that took turns are neighbours.
    pub cells: Vec<Figures>,
}

/// A contender at one number and order of keys.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Number of keys.
    pub keys: usize,
    /// Their order.
    pub order: KeyOrder,
    /// The contender.
    pub index: Contender,
    /// Inserts of keys that are not there.
    pub insert: Figure,
    /// Look-ups of keys that are there.
    pub lookup: Figure,
    /// Look-ups, each of which waits for the one before.
    pub lookup_chain: Figure,
    /// Replacements of the entries of keys that are there.
    pub replace: Figure,
    /// Removals.
    pub remove: Figure,
    /// Memory by the index's own count.
    pub counted_bytes_per_entry: Option<f64>,
    /// Growth of the process.
    pub resident_bytes_per_entry: Spread,
}

/// The times of one operation.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Nanoseconds an operation.
    pub ns: Spread,
    /// How many times faster than [`BASE`], round by round.
    pub times_faster: Option<Spread>,
}

impl IndexStudy {
    /// Runs it.
    ///
    /// # Errors
    ///
    /// At the first run that does not end well. No child is left running.
    pub fn run(&self, progress: Progress<'_>) -> Result<Findings, StudyError> {
        let cells = take_turns(self, progress)?;
        Ok(Findings {
            rounds: self.rounds,
            seed: self.seed,
            cells: cells.iter().map(|cell| Figures::of(cell, &cells)).collect(),
        })
    }
}

impl Study for IndexStudy {
    type Variant = RunSpec;
    type Run = IndexRun;

    fn rounds(&self) -> usize {
        self.rounds
    }

    fn groups(&self) -> Vec<Vec<RunSpec>> {
        let group = |keys, order| {
            let spec = |&contender| RunSpec { contender, keys, order, seed: self.seed };
            self.contenders.iter().map(spec).collect()
        };
        let orders = |&keys| self.orders.iter().map(move |&order| group(keys, order));
        self.keys.iter().flat_map(orders).collect()
    }

    fn label(&self, RunSpec { contender, keys, order, .. }: &RunSpec) -> String {
        format!("{contender}, {keys} keys, {order}")
    }

    fn measure(&self, spec: &RunSpec, _round: usize) -> Result<IndexRun, ChildError> {
        ask(&[RUN_COMMAND], spec)
    }
}

impl Figures {
    /// Of a cell, against the base's among all of them.
    fn of(cell: &Cell<RunSpec, IndexRun>, cells: &[Cell<RunSpec, IndexRun>]) -> Figures {
        let RunSpec { contender, keys, order, .. } = cell.variant;
        let is_base = |of: &RunSpec| (of.keys, of.order, of.contender) == (keys, order, BASE);
        let base = cells.iter().find(|other| is_base(&other.variant));
        let figure = |of: fn(&IndexRun) -> f64| {
            let own = cell.values(of);
            let times_faster = base.map(|base| Spread::of_ratios(&base.values(of), &own));
            Figure { ns: Spread::of(&own), times_faster }
        };
        let per_entry = |bytes: u64| bytes as f64 / keys as f64;
        let counted = cell.runs.last().and_then(|run| run.counted_bytes);
        Figures {
            keys,
            order,
            index: contender,
            insert: figure(|run| run.insert_ns),
            lookup: figure(|run| run.lookup_ns),
            lookup_chain: figure(|run| run.chain_ns),
            replace: figure(|run| run.replace_ns),
            remove: figure(|run| run.remove_ns),
            counted_bytes_per_entry: counted.map(per_entry),
            resident_bytes_per_entry: Spread::of(&cell.values(|run| per_entry(run.resident_bytes))),
        }
    }

    /// The five operations, in the order of a run.
    pub fn operations(&self) -> [&Figure; 5] {
        [&self.insert, &self.lookup, &self.lookup_chain, &self.replace, &self.remove]
    }
}

/// The child's side: one run.
///
/// # Errors
///
/// Of the two streams, and of an order that is none.
pub fn child(input: impl Read, output: impl Write) -> io::Result<()> {
    answer(input, output, |spec: RunSpec| run_one(&spec))
}

fn run_one(spec: &RunSpec) -> Result<IndexRun, Refusal> {
    // A huge page would count as what is in it.
    disable_huge_pages();
    let mut random = SplitMix64::new(spec.seed);
    let keys = Keys::draw(spec.order, spec.keys, &mut random);
    let mut order = keys.in_order(&mut random);
    let mut map = spec.contender.build();
    trim_heap();
    let resident = || anonymous_bytes().map_err(|error| Refusal::CannotRun(error.to_string()));
    let before = resident()?;
    let lost = |phase: &str| Refusal::Check(format!("{phase}: a key has a wrong value"));

    let insert_ns = timed(&order, 1, |map_key| {
        let new = map.insert_or_replace(map_key, entry(map_key)).map_err(Refusal::CannotRun)?;
        if new.is_some() { Err(lost("insert")) } else { Ok(()) }
    })?;
    // Tables that have been replaced by larger ones are not part of it.
    trim_heap();
    let resident_bytes = resident()?.saturating_sub(before);
    let counted_bytes = map.bytes().map(|bytes| bytes as u64);

    let passes = OPERATIONS_MIN.div_ceil(order.len());
    order = keys.in_order(&mut random);
    let mut sum = 0_u64;
    let lookup_ns = timed(&order, passes, |key| {
        sum = sum.wrapping_add(map.get(key).map_or(0, |entry| entry.0.get()));
        Ok(())
    })?;
    let expected = order.iter().fold(0_u64, |sum, &key| sum.wrapping_add(entry(key).0.get()));
    if sum != expected.wrapping_mul(passes as u64) {
        return Err(lost("look-up"));
    }
    let chain_ns = chain(&*map, &order, passes).ok_or_else(|| lost("chain"))?;
    let replace_ns = timed(&order, passes, |key| match map.insert_or_replace(key, entry(key)) {
        Ok(Some(_)) => Ok(()),
        _ => Err(lost("replace")),
    })?;
    order = keys.in_order(&mut random);
    let remove_ns = timed(&order, 1, |key| map.take(key).map(drop).ok_or_else(|| lost("remove")))?;
    Ok(IndexRun {
        insert_ns,
        lookup_ns,
        chain_ns,
        replace_ns,
        remove_ns,
        counted_bytes,
        resident_bytes,
    })
}

/// The entry of a key: never 0, and below 2^63.
fn entry(key: u64) -> Entry {
    Entry(NonZeroU64::MIN.saturating_add(key))
}

/// Nanoseconds an operation, of `passes` over the keys.
fn timed(
    keys: &[u64],
    passes: usize,
    mut operation: impl FnMut(u64) -> Result<(), Refusal>,
) -> Result<f64, Refusal> {
    let since = Instant::now();
    for _ in 0..passes {
        for &key in keys {
            operation(key)?;
        }
    }
    Ok(since.elapsed().as_nanos() as f64 / (keys.len() * passes) as f64)
}

/// The same of look-ups, where the place of the next key comes out of the entry of the last.
fn chain(map: &dyn Map, keys: &[u64], passes: usize) -> Option<f64> {
    let since = Instant::now();
    for _ in 0..passes {
        let mut place = 0;
        while let Some(&key) = keys.get(place) {
            let entry = map.get(key)?.0.get();
            // No entry has the highest bit, which is not known to whoever compiles this.
            place += 1 + (entry >> 63) as usize;
        }
    }
    Some(since.elapsed().as_nanos() as f64 / (keys.len() * passes) as f64)
}

/// The keys of a run: runs of neighbours, by their first key.
struct Keys {
    firsts: Vec<u64>,
    run: u64,
    is_shuffled: bool,
}

impl Keys {
    fn draw(order: KeyOrder, count: usize, random: &mut SplitMix64) -> Keys {
        let count = count as u64;
        let run = if order == KeyOrder::Clusters { CLUSTER_KEYS } else { 1 };
        let runs = count.div_ceil(run);
        let firsts = match order {
            KeyOrder::Sequential | KeyOrder::Shuffled => (0..runs).collect(),
            KeyOrder::Random | KeyOrder::Clusters => {
                // Each place as likely as any other: Knuth's selection sampling.
                let mut missing = runs;
                let places = runs * SPARSENESS;
                let drawn = (0..places).filter(|place| {
                    let is_drawn = below(random, places - place) < missing;
                    missing -= u64::from(is_drawn);
                    is_drawn
                });
                drawn.map(|place| place * run).collect()
            }
        };
        Keys { firsts, run, is_shuffled: order != KeyOrder::Sequential }
    }

    /// All of them, in a new order.
    fn in_order(&self, random: &mut SplitMix64) -> Vec<u64> {
        let mut firsts = self.firsts.clone();
        if self.is_shuffled {
            for place in (1..firsts.len()).rev() {
                firsts.swap(place, below(random, place as u64 + 1) as usize);
            }
        }
        firsts.into_iter().flat_map(|first| first..first + self.run).collect()
    }
}

fn below(random: &mut SplitMix64, bound: u64) -> u64 {
    ((u128::from(random.next_word()) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_different_and_as_dense_as_said() {
        let mut random = SplitMix64::new(1);
        for (order, span) in [
            (KeyOrder::Sequential, 8000),
            (KeyOrder::Random, 32_000),
            (KeyOrder::Clusters, 32_000),
            (KeyOrder::Shuffled, 8000),
        ] {
            let keys = Keys::draw(order, 8000, &mut random);
            let first = keys.in_order(&mut random);
            let second = keys.in_order(&mut random);
            assert_eq!(first == second, order == KeyOrder::Sequential, "{order}");
            let mut sorted = first.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), 8000, "{order}");
            assert!(sorted[7999] < span && sorted[7999] > span - span / 10, "{order}");
            let neighbours = first.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
            match order {
                KeyOrder::Sequential => assert_eq!(neighbours, 7999),
                KeyOrder::Clusters => assert!((7000..7100).contains(&neighbours)),
                _ => assert!(neighbours < 20),
            }
        }
    }

    #[test]
    fn every_contender_gets_through_a_run() {
        for contender in Contender::all() {
            assert_eq!(contender.to_string().parse(), Ok(contender));
            let spec = RunSpec { contender, keys: 500, order: KeyOrder::Clusters, seed: 1 };
            let run = run_one(&spec).unwrap_or_else(|refusal| panic!("{contender}: {refusal:?}"));
            assert!(run.lookup_ns > 0.0 && run.chain_ns > 0.0);
            assert_eq!(run.counted_bytes.is_some(), matches!(contender, Contender::Index(_)));
        }
        assert!("tree".parse::<Contender>().unwrap_err().to_string().contains("btree32"));
    }
}
