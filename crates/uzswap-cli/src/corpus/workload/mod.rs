//! The built-in workload: heaps like those of real programs, for machines without any other data.
//!
//! Each heap is an image, in which collections lie in blocks of an allocator. Its pages have the
//! contents of real ones: headers of malloc, half-full tables, pointers, short strings, remains of
//! freed blocks. The same name, seed and size give the same bytes on any machine and in any build.
//! No address, allocator or library of the process has a part in them.

mod collections;
mod heap;
mod records;
mod rng;
mod series;
mod texts;

use std::fmt;
use std::str::FromStr;

pub use heap::Heap;
use rng::Rng;
use uzswap::zpool::UnknownName;

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

    /// Builds a heap of about `bytes` (within a fifth, from 1 MiB up). The same seed gives the
    /// same bytes.
    pub fn build(self, seed: u64, bytes: usize) -> Heap {
        let mut heap = Heap::new();
        let mut rng = Rng::new(seed ^ (self as u64) << 56);
        match self {
            Workload::Mixed => mixed(&mut heap, &mut rng, bytes),
            _ => self.fill(&mut heap, &mut rng, bytes),
        }
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

impl Heap {
    /// The things that were built, counted: `4 x hash map of strings, 2 x series`.
    pub fn summary(&self) -> String {
        let mut counts: Vec<(&str, usize)> = Vec::new();
        for part in &self.parts {
            match counts.iter_mut().find(|(name, _)| name == part) {
                Some((_, count)) => *count += 1,
                None => counts.push((part, 1)),
            }
        }
        let words: Vec<_> =
            counts.iter().map(|(name, count)| format!("{count} x {name}")).collect();
        words.join(", ")
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
                let is_close = heap.bytes().abs_diff(bytes) <= bytes / 5;
                assert!(bytes < 1 << 20 || is_close, "{workload} of {bytes}: {}", heap.bytes());
            }
        }
    }
}
