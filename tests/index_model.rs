//! Goal: an index answers as a sorted map would.
//! Method: seeded random histories against `BTreeMap`, keys in clusters, with audits.
//! Blind to: failing memory (see `zswap_model`).

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use uzswap::index::radix::Radix;
use uzswap::index::{Entry, Index};
use uzswap::lab::SplitMix64;
use uzswap::page::PageKey;

struct Random(SplitMix64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(SplitMix64::new(seed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_word() % bound
    }
}

fn indexes() -> [Box<dyn Index>; 1] {
    [Box::new(Radix::new())]
}

fn entry(step: u64) -> Entry {
    Entry(NonZeroU64::new(step << 40 | step).expect("steps count from 1"))
}

#[test]
fn every_index_agrees_with_a_sorted_map() {
    for mut index in indexes() {
        for seed in 0..16 {
            let mut random = Random::new(seed);
            let mut model: BTreeMap<PageKey, Entry> = BTreeMap::new();
            for step in 1..4000 {
                let place = format!("{}, seed {seed}, step {step}", index.name());
                let base = [0, 500, 1 << 20, u64::MAX - 600][random.below(4) as usize];
                let key = PageKey(base + random.below(600));
                match random.below(9) {
                    0..4 => {
                        let replaced = index.insert_or_replace(key, entry(step)).unwrap();
                        assert_eq!(replaced, model.insert(key, entry(step)), "{place}");
                    }
                    4 => assert_eq!(index.take(key), model.remove(&key), "{place}"),
                    5 => {
                        let wrong =
                            model.get(&key).map_or(entry(1), |held| entry(held.0.get() + 1));
                        assert!(!index.remove_if(key, wrong), "{place}");
                    }
                    6 => {
                        let Some(held) = model.get(&key).copied() else { continue };
                        assert!(index.remove_if(key, held), "{place}");
                        model.remove(&key);
                    }
                    7 => {
                        let end = PageKey(key.0.saturating_add(random.below(3000)));
                        let max = random.below(40) as usize;
                        let inside = model.range(key..=end).count();
                        let mut taken = Vec::new();
                        let count = index
                            .take_range(key..=end, max, &mut |key, entry| taken.push((key, entry)));
                        assert_eq!((count, taken.len()), (inside.min(max), count), "{place}");
                        for (taken, entry) in taken {
                            assert!((key..=end).contains(&taken), "{place}: {taken}");
                            assert_eq!(index.get(taken), None, "{place}: still there");
                            assert_eq!(model.remove(&taken), Some(entry), "{place}: {taken}");
                        }
                    }
                    _ => {
                        let end = PageKey(key.0.saturating_add(random.below(2000)));
                        let mut found = BTreeMap::new();
                        index.for_each(key..=end, &mut |key, entry| {
                            assert_eq!(found.insert(key, entry), None, "{place}: twice");
                        });
                        assert!(found.iter().eq(model.range(key..=end)), "{place}");
                    }
                }
                assert_eq!(index.get(key), model.get(&key).copied(), "{place}");
                assert_eq!(index.count(), model.len(), "{place}");
                if step % 64 == 0 {
                    index.audit().unwrap_or_else(|error| panic!("{error} at {place}"));
                }
            }
            for key in model.into_keys() {
                index.take(key).unwrap();
            }
            assert_eq!(index.count(), 0);
            index.audit().unwrap();
        }
    }
}

#[test]
fn dense_keys_cost_little_more_than_their_entries() {
    for mut index in indexes() {
        for key in 0..100_000 {
            index.insert_or_replace(PageKey(key), entry(1)).unwrap();
        }
        let bytes = index.bytes() as f64 / 100_000.0;
        assert!((8.0..10.0).contains(&bytes), "{}: {bytes} bytes an entry", index.name());
    }
}
