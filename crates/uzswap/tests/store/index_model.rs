//! Goal: an index answers as a sorted map would, keeps its invariants, and gives its memory back.
//! Method: seeded random histories against `BTreeMap` over keys of several shapes, with audits.
//! Trees of tiny nodes through every short history; bytes an entry after runs of inserts and
//! removals.
//! Blind to: failing memory (see `out_of_memory` and `zswap_model`).

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use uzswap::index::btree::BTree;
use uzswap::index::{Entry, Index, IndexError, IndexKind};
use uzswap::page::PageKey;
use uzswap::random::SplitMix64;

struct Random(SplitMix64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(SplitMix64::new(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.next_word()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn entry(step: u64) -> Entry {
    Entry(NonZeroU64::new(step << 40 | step).expect("steps count from 1"))
}

/// The largest key an index takes.
fn key_max(kind: IndexKind) -> u64 {
    match kind.build().insert_or_replace(PageKey(u64::MAX), entry(1)) {
        Ok(_) => u64::MAX,
        Err(IndexError::KeyTooLarge { max }) => max.0,
        Err(error) => panic!("{kind}: {error}"),
    }
}

/// An index and what must be in it.
struct Modelled {
    index: Box<dyn Index>,
    model: BTreeMap<PageKey, Entry>,
    /// Operations so far; what entries are made of.
    step: u64,
    /// What replays the history.
    replay: String,
}

impl Modelled {
    fn new(index: Box<dyn Index>, replay: String) -> Modelled {
        Modelled { index, model: BTreeMap::new(), step: 0, replay }
    }

    fn place(&self) -> String {
        format!("{}, {}, step {}", self.index.name(), self.replay, self.step)
    }

    fn insert(&mut self, key: u64) {
        self.step += 1;
        let (key, entry) = (PageKey(key), entry(self.step));
        let replaced = self.index.insert_or_replace(key, entry).expect("memory");
        assert_eq!(replaced, self.model.insert(key, entry), "{}", self.place());
    }

    fn take(&mut self, key: u64) {
        self.step += 1;
        let key = PageKey(key);
        assert_eq!(self.index.take(key), self.model.remove(&key), "{}", self.place());
    }

    /// Tries with another entry first, which must change nothing.
    fn remove_if(&mut self, key: u64) {
        self.step += 1;
        let key = PageKey(key);
        let held = self.model.get(&key).copied();
        let wrong = held.map_or(entry(1), |held| self::entry((held.0.get() & 0xff_ffff) + 1));
        assert!(!self.index.remove_if(key, wrong), "{}", self.place());
        assert_eq!(self.index.get(key), held, "{}", self.place());
        if let Some(held) = held {
            assert!(self.index.remove_if(key, held), "{}", self.place());
            self.model.remove(&key);
        }
    }

    fn take_range(&mut self, start: u64, end: u64, max: usize) {
        self.step += 1;
        let place = self.place();
        let range = PageKey(start)..=PageKey(end);
        let inside = if start <= end { self.model.range(range.clone()).count() } else { 0 };
        let mut taken = Vec::new();
        let count =
            self.index.take_range(range.clone(), max, &mut |key, entry| taken.push((key, entry)));
        assert_eq!((count, taken.len()), (inside.min(max), count), "{place}");
        for (key, entry) in taken {
            assert!(range.contains(&key), "{place}: {key}");
            assert_eq!(self.index.get(key), None, "{place}: still there");
            assert_eq!(self.model.remove(&key), Some(entry), "{place}: {key}");
        }
    }

    fn for_each(&self, start: u64, end: u64) {
        let mut found = BTreeMap::new();
        self.index.for_each(PageKey(start)..=PageKey(end), &mut |key, entry| {
            assert_eq!(found.insert(key, entry), None, "{}: {key} twice", self.place());
        });
        if start <= end {
            let expected = self.model.range(PageKey(start)..=PageKey(end));
            assert!(found.iter().eq(expected), "{}: {start} to {end}", self.place());
        } else {
            assert!(found.is_empty(), "{}", self.place());
        }
    }

    /// Checks that are cheap after each step.
    fn check_key(&self, key: u64) {
        let key = PageKey(key);
        assert_eq!(self.index.get(key), self.model.get(&key).copied(), "{}", self.place());
        assert_eq!(self.index.count(), self.model.len(), "{}", self.place());
    }

    fn audit(&self) {
        self.index.audit().unwrap_or_else(|error| panic!("{error} at {}", self.place()));
    }

    /// Audit and every entry.
    fn check(&self) {
        self.audit();
        self.for_each(0, u64::MAX);
        for (key, entry) in &self.model {
            assert_eq!(self.index.get(*key), Some(*entry), "{}: {key}", self.place());
        }
    }

    fn bytes_per_entry(&self) -> f64 {
        self.index.bytes() as f64 / self.model.len() as f64
    }

    /// Takes everything; an empty index has as much memory as a new one.
    fn finish(mut self, empty_bytes: usize) {
        let keys: Vec<u64> = self.model.keys().map(|key| key.0).collect();
        for (n, key) in keys.into_iter().enumerate() {
            self.take(key);
            if n % 512 == 0 {
                self.audit();
            }
        }
        self.check();
        assert_eq!(self.index.bytes(), empty_bytes, "{}", self.place());
    }
}

/// Trees of nodes so small that a few keys make several levels.
const TINY: [fn() -> Box<dyn Index>; 5] = [
    || Box::new(BTree::<u64, 2, 3>::on(&Arc::default())),
    || Box::new(BTree::<u64, 3, 3>::on(&Arc::default())),
    || Box::new(BTree::<u32, 3, 4>::on(&Arc::default())),
    || Box::new(BTree::<u64, 4, 4>::on(&Arc::default())),
    || Box::new(BTree::<u64, 5, 7>::on(&Arc::default())),
];

/// Where the keys of a history lie, all up to `max`.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// Some places far apart, both ends of the key space among them.
    Clusters,
    /// All keys of a small range.
    Dense,
    /// Anywhere.
    Anywhere,
    /// In a few blocks of 512, of which each is emptied and filled: leaves of every size.
    Blocks,
    /// One behind the other, mostly.
    Ascending,
    /// One before the other, mostly.
    Descending,
}

const SHAPES: [Shape; 6] = [
    Shape::Clusters,
    Shape::Dense,
    Shape::Anywhere,
    Shape::Blocks,
    Shape::Ascending,
    Shape::Descending,
];

impl Shape {
    fn key(self, random: &mut Random, step: u64, max: u64) -> u64 {
        match self {
            Shape::Clusters => {
                let base = [0, 500, 1 << 20, max - 600][random.below(4) as usize];
                base + random.below(601)
            }
            Shape::Dense => random.below(1500),
            // Few enough to meet again.
            Shape::Anywhere => uzswap::random::mix(random.below(3000)) & max,
            // The further a block is, the fewer of its keys there are.
            Shape::Blocks => {
                let block = random.below(12);
                random.below(1 << (9 - block.min(9))) << block.min(9) | block << 20
            }
            Shape::Ascending if random.below(4) > 0 => step,
            Shape::Descending if random.below(4) > 0 => max - step,
            Shape::Ascending => random.below(step + 1),
            Shape::Descending => max - random.below(step + 1),
        }
    }
}

/// One random operation at `key`.
fn step(modelled: &mut Modelled, random: &mut Random, key: u64, max: u64, inserts: u64) {
    match random.below(16) {
        choice if choice < inserts => modelled.insert(key),
        14 => {
            let end = key.saturating_add(random.below(3000)).min(max);
            modelled.take_range(key, end, random.below(40) as usize);
        }
        15 => modelled.for_each(key, key.saturating_add(random.below(2000))),
        choice if choice % 2 == 0 => modelled.take(key),
        _ => modelled.remove_if(key),
    }
    modelled.check_key(key);
}

fn run_history(index: Box<dyn Index>, max: u64, shape: Shape, seed: u64) {
    let empty_bytes = index.bytes();
    let mut modelled = Modelled::new(index, format!("{shape:?}, seed {seed}"));
    let mut random = Random::new(seed);
    // Grows to several levels, shrinks to nearly nothing, grows again.
    for (phase, inserts) in [10, 3, 9].into_iter().enumerate() {
        for n in 0..2000 {
            let mut key = shape.key(&mut random, phase as u64 * 2000 + n, max);
            if phase == 1 {
                // One that is there, so that removals meet something.
                let behind = modelled.model.range(PageKey(key)..).next();
                key = behind.or(modelled.model.first_key_value()).map_or(key, |(key, _)| key.0);
            }
            step(&mut modelled, &mut random, key, max, inserts);
            if n % 64 == 0 {
                modelled.audit();
            }
        }
        modelled.check();
    }
    modelled.finish(empty_bytes);
}

#[test]
fn every_index_agrees_with_a_sorted_map() {
    for kind in IndexKind::ALL {
        let max = key_max(kind);
        for (seed, shape) in (0..3).flat_map(|round| SHAPES.map(|shape| (round, shape))) {
            run_history(kind.build(), max, shape, seed);
        }
    }
}

#[test]
fn trees_of_tiny_nodes_agree_with_a_sorted_map() {
    for (seed, shape) in (0..3).flat_map(|round| SHAPES.map(|shape| (round, shape))) {
        for build in TINY {
            run_history(build(), u64::from(u32::MAX), shape, seed);
        }
    }
}

/// Calls `visit` with every order of `items`.
fn permutations(items: &mut [u64], from: usize, visit: &mut impl FnMut(&[u64])) {
    if from == items.len() {
        return visit(items);
    }
    for n in from..items.len() {
        items.swap(from, n);
        permutations(items, from + 1, visit);
        items.swap(from, n);
    }
}

#[test]
fn tiny_trees_take_and_lose_few_keys_in_every_order() {
    let mut keys = [1, 2, 3, 4, 5, 6, 7];
    let removals = [[1, 2, 3, 4, 5, 6, 7], [4, 2, 6, 1, 3, 5, 7]];
    for build in TINY {
        permutations(&mut keys, 0, &mut |order| {
            // In any order, removed in some; and the other way round.
            for removal in &removals {
                for (first, second) in [(order, &removal[..]), (&removal[..], order)] {
                    let mut index = build();
                    for (n, &key) in first.iter().enumerate() {
                        index.insert_or_replace(PageKey(key), entry(key)).unwrap();
                        let audit = index.audit();
                        assert_eq!(audit, Ok(()), "{order:?}, {removal:?}, insert {n}");
                    }
                    for (n, &key) in second.iter().enumerate() {
                        assert_eq!(index.take(PageKey(key)), Some(entry(key)));
                        let audit = index.audit();
                        assert_eq!(audit, Ok(()), "{order:?}, {removal:?}, removal {n}");
                        let left = &second[n + 1..];
                        assert!(left.iter().all(|key| index.get(PageKey(*key)).is_some()));
                    }
                }
            }
        });
    }
}

#[test]
fn tiny_trees_survive_every_few_operations_after_growth() {
    const KEYS: u64 = 20;
    let orders: [fn(u64) -> u64; 4] = [
        |n| n * 2 + 1,
        |n| (KEYS - n) * 2 - 1,
        |n| n * 7 % KEYS * 2 + 1,
        |n| (n % 2 * KEYS / 2 + n / 2) * 2 + 1,
    ];
    for build in TINY {
        for order in orders {
            // Present ones go, absent ones come: odd keys are there, even ones are not.
            let toggles = || (0..=2 * KEYS).step_by(7);
            for (a, b) in (0..=2 * KEYS).flat_map(|a| (0..=2 * KEYS).map(move |b| (a, b))) {
                for c in toggles() {
                    let mut index = build();
                    (0..KEYS).for_each(|n| {
                        index.insert_or_replace(PageKey(order(n)), entry(1)).unwrap();
                    });
                    let mut count = KEYS as usize;
                    for key in [a, b, c].map(PageKey) {
                        if index.take(key).is_some() {
                            count -= 1;
                        } else {
                            assert_eq!(index.insert_or_replace(key, entry(2)), Ok(None));
                            count += 1;
                        }
                    }
                    assert_eq!((index.count(), index.audit()), (count, Ok(())), "{a}, {b}, {c}");
                }
            }
        }
    }
}

#[test]
fn the_ends_of_the_key_space_are_keys_like_any_other() {
    for kind in IndexKind::ALL {
        let max = key_max(kind);
        let mut modelled = Modelled::new(kind.build(), "ends".to_owned());
        // Enough in between that the ends are in different nodes.
        for key in [0, max, 1, max - 1].into_iter().chain((0..300).map(|n| n * (max / 300))) {
            modelled.insert(key);
        }
        modelled.insert(max);
        modelled.check();
        modelled.for_each(max, max);
        modelled.for_each(0, 0);
        modelled.for_each(1, 0);
        modelled.take_range(2, 1, 10);
        modelled.take_range(max, u64::MAX, 10);
        modelled.take_range(0, 0, 10);
        modelled.check();
        modelled.take_range(0, u64::MAX, usize::MAX);
        modelled.check();
    }
}

#[test]
fn few_keys_are_counted_and_valid_wherever_they_are() {
    for kind in IndexKind::ALL {
        let max = key_max(kind);
        for key in [0, 1, 63, 64, 511, 512, max - 1, max] {
            let index = kind.build();
            let empty_bytes = index.bytes();
            let mut modelled = Modelled::new(index, format!("key {key:#x}"));
            modelled.check_key(key);
            for key in [key, max / 2, 1000] {
                modelled.insert(key);
                modelled.check_key(key);
                modelled.check();
            }
            modelled.take(max / 2);
            modelled.check_key(key);
            modelled.finish(empty_bytes);
        }
    }
}

#[test]
fn ranges_end_where_nodes_do() {
    for kind in IndexKind::ALL {
        let mut modelled = Modelled::new(kind.build(), "borders".to_owned());
        const KEYS: u64 = 1200;
        // Every second key: bounds are keys, or between them.
        (0..KEYS).for_each(|n| modelled.insert(n * 2 + 1));
        for start in 0..2 * KEYS {
            modelled.for_each(start, start);
            modelled.for_each(start, start + 61);
        }
        for start in (0..2 * KEYS).step_by(97) {
            modelled.take_range(start, start + 31 + start % 64, 40);
            modelled.check();
        }
        // In batches, as the store does it.
        while !modelled.model.is_empty() {
            modelled.take_range(0, u64::MAX, 64);
            modelled.audit();
        }
        modelled.check();
    }
}

/// Keys in the orders that stores come in.
fn orders(count: u64) -> Vec<(&'static str, Vec<u64>)> {
    let mut shuffled: Vec<u64> = (0..count).collect();
    let mut random = Random::new(7);
    for n in (1..count as usize).rev() {
        shuffled.swap(n, random.below(n as u64 + 1) as usize);
    }
    // Long runs that take turns, each behind the one before, over sparse keys that are there.
    let mut runs: Vec<u64> = (0..64).map(|n| n * (count / 64) * 2 + count / 64).collect();
    runs.extend((0..count - 64).map(|n| n % 64 * (count / 64) * 2 + n / 64));
    vec![
        ("ascending", (0..count).collect()),
        ("descending", (0..count).rev().collect()),
        ("shuffled", shuffled),
        ("runs", runs.clone()),
        ("runs backwards", runs.into_iter().rev().collect()),
    ]
}

/// The most bytes an entry may take after inserts in these orders; the red-black tree takes what
/// its nodes take.
fn bytes_allowed(kind: IndexKind, order: &str) -> f64 {
    match (kind, order) {
        (IndexKind::Radix, "runs" | "runs backwards") => 20.0,
        (IndexKind::Radix | IndexKind::XArray, _) => 10.0,
        (IndexKind::RbTree, _) => 41.0,
        (IndexKind::BTree, "shuffled") => 23.0,
        (IndexKind::BTree, _) => 18.0,
        (IndexKind::BTree32, "shuffled") => 17.0,
        (IndexKind::BTree32, _) => 13.5,
    }
}

#[test]
fn memory_is_bounded_for_every_order_and_goes_back() {
    const COUNT: u64 = 50_000;
    for kind in IndexKind::ALL {
        for (order, keys) in orders(COUNT) {
            let index = kind.build();
            let empty_bytes = index.bytes();
            let mut modelled = Modelled::new(index, order.to_owned());
            keys.iter().for_each(|&key| modelled.insert(key));
            modelled.check();
            let full = modelled.bytes_per_entry();
            let allowed = bytes_allowed(kind, order);
            assert!((8.0..=allowed).contains(&full), "{kind}, {order}: {full} bytes an entry");
            // All but every tenth, in random order.
            let mut random = Random::new(3);
            let mut gone = keys.clone();
            for n in (1..gone.len()).rev() {
                gone.swap(n, random.below(n as u64 + 1) as usize);
            }
            gone.truncate(keys.len() * 9 / 10);
            gone.iter().for_each(|&key| modelled.take(key));
            modelled.check();
            let left = modelled.bytes_per_entry();
            println!("{kind}, {order}: {full:.1} bytes an entry, {left:.1} with a tenth left");
            // The xarray gives a node back only once it is empty.
            let allowed = match kind {
                IndexKind::XArray => 10.0 * allowed,
                IndexKind::Radix => 100.0,
                _ => 50.0,
            };
            assert!(left <= allowed, "{kind}, {order}: {left} bytes an entry of a tenth");
            modelled.finish(empty_bytes);
        }
    }
}

/// Keys of every stride from 1 to 2^52, as many as there are, and random ones.
fn sparse_patterns(count: u64) -> impl Iterator<Item = (String, Vec<u64>)> {
    let strides = (0..=52).map(move |bits| {
        let keys = (0..count.min(u64::MAX >> bits)).map(|n| n << bits).collect();
        (format!("stride 2^{bits}"), keys)
    });
    let random = ("random".to_owned(), (0..count).map(uzswap::random::mix).collect());
    // As few in a block of 512 keys as a leaf of each size has after it grew.
    let few = [2, 3, 4, 13, 65].into_iter().map(move |few| {
        let keys = (0..count).map(|n| ((n / few) << 9) + n % few).collect();
        (format!("{few} in 512"), keys)
    });
    strides.chain([random]).chain(few)
}

/// The most bytes an entry of these may take, and from how many entries on: nodes come in chunks.
/// The default index and the trees that compare keys have a bound for all patterns.
fn sparse_bytes_allowed(kind: IndexKind) -> Option<(f64, usize)> {
    match kind {
        IndexKind::Radix => Some((66.0, 100)),
        IndexKind::BTree | IndexKind::BTree32 => Some((24.0, 5000)),
        IndexKind::RbTree => Some((41.0, 5000)),
        IndexKind::XArray => None, // a lone key costs a node a level, as in the kernel
    }
}

#[test]
fn sparse_keys_take_bounded_memory_at_every_stride() {
    for kind in IndexKind::ALL {
        let max = key_max(kind);
        let (allowed, least) = sparse_bytes_allowed(kind).unwrap_or((f64::INFINITY, 5000));
        let mut worst = (0.0, String::new());
        for (pattern, mut keys) in sparse_patterns(10_000) {
            keys.retain(|&key| key <= max);
            let index = kind.build();
            let fixed_bytes = index.bytes();
            let mut modelled = Modelled::new(index, pattern.clone());
            for (n, &key) in keys.iter().enumerate() {
                modelled.insert(key);
                let bytes = (modelled.index.bytes() - fixed_bytes) as f64 / (n + 1) as f64;
                if n >= least && bytes > worst.0 {
                    worst = (bytes, format!("{pattern}, {} entries", n + 1));
                }
            }
            modelled.check();
        }
        println!("{kind}: {:.1} bytes an entry at most, {}", worst.0, worst.1);
        assert!(worst.0 <= allowed, "{kind}: {worst:?}");
    }
}

#[test]
fn what_is_left_of_dense_keys_takes_bounded_memory_in_the_default_index() {
    let mut worst = (0.0, String::new());
    for keep in [2, 3, 5, 8, 13, 20, 40, 64, 100, 200, 512, 1000] {
        let index = IndexKind::default().build();
        let fixed_bytes = index.bytes();
        let mut modelled = Modelled::new(index, format!("one in {keep} left"));
        (0..100_000).for_each(|key| modelled.insert(key));
        // In an order without neighbours.
        for key in (0..100_000).map(|n| n * 7919 % 100_000).filter(|key| key % keep != 0) {
            modelled.take(key);
            let left = modelled.model.len();
            let bytes = (modelled.index.bytes() - fixed_bytes) as f64 / left as f64;
            if left >= 100 && bytes > worst.0 {
                worst = (bytes, format!("one in {keep} left, now {left}"));
            }
        }
        modelled.check();
    }
    println!("{:.1} bytes an entry at most, {}", worst.0, worst.1);
    assert!(worst.0 <= 100.0, "{worst:?}");
}

#[test]
fn a_range_over_scattered_keys_is_taken_whole_and_visited_whole() {
    const PLACES: u64 = 200;
    // Keys alone, in pairs and in rows, far from each other.
    for (kind, row) in IndexKind::ALL.into_iter().flat_map(|kind| [1, 2, 20].map(|n| (kind, n))) {
        for order in [0, 1, 2] {
            let mut modelled = Modelled::new(kind.build(), format!("rows of {row}, {order}"));
            for place in 0..PLACES {
                (0..row).for_each(|n| modelled.insert(place << 20 | n));
            }
            let (first, last) = (3 << 20, (PLACES - 2) << 20 | 0xf_ffff);
            modelled.for_each(first, last);
            match order {
                0 => modelled.take_range(first, last, usize::MAX),
                1 => (0..4).for_each(|_| modelled.take_range(first, last, 50)),
                _ => modelled.take_range(0, u64::MAX, (PLACES * row) as usize),
            }
            modelled.check();
        }
    }
}
