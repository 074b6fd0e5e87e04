//! The built-in workload: heaps of the kinds that real programs have, for machines with nothing
//! else at hand.
//!
//! Ordinary collections on the ordinary allocator hold them, so the pages have the contents of real
//! pages: headers of malloc, half-full tables, pointers, short strings between them. The same name,
//! seed and size build the same heap, but for the addresses in it.

mod records;
mod rng;
mod series;
mod texts;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::str::FromStr;

use rng::Rng;
use uzswap::zpool::UnknownName;

/// A hash map whose order depends on its contents alone: std's default hashes by a random key.
type Table<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// A kind of heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Some of each of the others, and buffers: a service's heap.
    Mixed,
    /// Hash maps from string to string: URLs, user agents, ids.
    StringMap,
    /// Trees of JSON values: nested records.
    JsonTree,
    /// Arrays of numbers: series, sorted keys, counters, sparse matrices.
    Numeric,
    /// Text: prose, log lines, source code.
    Text,
    /// Small linked nodes: lists, trees, graphs.
    Pointers,
    /// Pictures: 8-bit RGBA tiles of gradients with noise, and masks.
    Images,
}

impl Workload {
    /// All of them, the default first.
    pub const ALL: [Workload; 7] = [
        Workload::Mixed,
        Workload::StringMap,
        Workload::JsonTree,
        Workload::Numeric,
        Workload::Text,
        Workload::Pointers,
        Workload::Images,
    ];

    /// The name it is chosen by.
    pub const fn name(self) -> &'static str {
        match self {
            Workload::Mixed => "mixed",
            Workload::StringMap => "string-map",
            Workload::JsonTree => "json-tree",
            Workload::Numeric => "numeric",
            Workload::Text => "text",
            Workload::Pointers => "pointers",
            Workload::Images => "images",
        }
    }

    /// Builds a heap of about `bytes` (within some 10 %, from 1 MiB up). The same seed gives the
    /// same contents.
    pub fn build(self, seed: u64, bytes: usize) -> Heap {
        let mut heap = Heap { parts: Vec::new() };
        let mut rng = Rng::new(seed ^ (self as u64) << 56);
        match self {
            Workload::Mixed => mixed(&mut heap, &mut rng, bytes),
            _ => self.fill(&mut heap, &mut rng, bytes),
        }
        // Whoever drops or leaks a heap unread still had it in memory.
        std::hint::black_box(&heap);
        heap
    }

    fn fill(self, heap: &mut Heap, rng: &mut Rng, bytes: usize) {
        match self {
            Workload::Mixed => mixed(heap, rng, bytes),
            Workload::StringMap => texts::string_maps(heap, rng, bytes),
            Workload::JsonTree => records::json_trees(heap, rng, bytes),
            Workload::Numeric => series::numbers(heap, rng, bytes),
            Workload::Text => texts::texts(heap, rng, bytes),
            Workload::Pointers => records::pointers(heap, rng, bytes),
            Workload::Images => series::images(heap, rng, bytes),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Workload::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownName {
            what: "workload",
            name: name.to_owned(),
            known: Workload::ALL.map(Workload::name).join(", "),
        })
    }
}

/// Parts of a mixed heap, in percent: a service that caches, indexes and logs. The shares of
/// buffers are those that captures of real services have: some pages zeroed and not used yet, a few
/// that do not compress.
const MIX: [(Part, usize); 8] = [
    (Part::Of(Workload::StringMap), 26),
    (Part::Of(Workload::JsonTree), 22),
    (Part::Of(Workload::Text), 13),
    (Part::Of(Workload::Pointers), 12),
    (Part::Of(Workload::Numeric), 10),
    (Part::Of(Workload::Images), 7),
    (Part::Zeroed, 8),
    (Part::Incompressible, 2),
];

enum Part {
    Of(Workload),
    /// Buffers and tables that were cleared and are not used yet.
    Zeroed,
    /// Keys, digests, compressed responses.
    Incompressible,
}

/// Rounds in which the parts are built in turn, so that they lie among each other in the heap.
const MIX_ROUNDS: usize = 1 << 3; // 8

fn mixed(heap: &mut Heap, rng: &mut Rng, bytes: usize) {
    for _ in 0..MIX_ROUNDS {
        for (part, percent) in &MIX {
            let bytes = bytes / MIX_ROUNDS * percent / 100;
            match part {
                Part::Of(workload) => workload.fill(heap, rng, bytes),
                Part::Zeroed => series::zeroed_buffers(heap, rng, bytes),
                Part::Incompressible => series::random_blobs(heap, rng, bytes),
            }
        }
    }
}

/// A built heap; it is in memory until this is dropped.
pub struct Heap {
    parts: Vec<(&'static str, Box<dyn Held>)>,
}

/// Anything that is kept alive and not looked at.
trait Held {}
impl<T> Held for T {}

impl Heap {
    fn hold(&mut self, what: &'static str, part: impl Sized + 'static) {
        self.parts.push((what, Box::new(part)));
    }

    /// What was built, in words: `4 hash maps of strings, 2 series`.
    pub fn summary(&self) -> String {
        let mut counts: Vec<(&str, usize)> = Vec::new();
        for (what, _) in &self.parts {
            match counts.iter_mut().find(|(name, _)| name == what) {
                Some((_, count)) => *count += 1,
                None => counts.push((what, 1)),
            }
        }
        let words: Vec<_> =
            counts.iter().map(|(what, count)| format!("{count} x {what}")).collect();
        words.join(", ")
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("parts", &self.summary()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_unknown_ones_are_told_the_known() {
        for workload in Workload::ALL {
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
        let error = "webscale".parse::<Workload>().unwrap_err().to_string();
        assert!(error.contains("webscale") && error.contains("string-map"), "{error}");
    }

    #[test]
    fn every_heap_is_built_at_any_size() {
        for workload in Workload::ALL {
            for bytes in [0, 1, 100_000, 3 << 20] {
                let heap = workload.build(1, bytes);
                assert!(bytes < 1 << 20 || !heap.summary().is_empty(), "{workload} of {bytes}");
            }
        }
    }
}
