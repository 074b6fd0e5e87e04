//! A two-level page table: leaves of 512 entries, found by the key's upper bits.
//!
//! ```text
//!  key | upper bits: 55 | place: 9 |
//!            |               '-----------> entry
//!            '-> leaf (4 KiB, for 2 MiB of pages)
//! ```
//!
//! Page keys come in clusters, as pages do in an address space: a leaf is mostly full, so an entry
//! costs little more than its 8 bytes, and a look-up is a hash of few keys and one array access.
//! A lone key costs a whole leaf.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Range, RangeInclusive};

use super::{Entry, Index, IndexError};
use crate::page::PageKey;

const LEAF_BITS: u32 = 9;
const LEAF_ENTRIES: usize = 1 << LEAF_BITS; // 512

#[derive(Debug)]
struct Leaf {
    entries: Box<[Option<Entry>; LEAF_ENTRIES]>,
    /// How many there are: 1 to 512.
    used: usize,
}

impl Leaf {
    fn new() -> Result<Leaf, IndexError> {
        let mut entries = Vec::new();
        entries.try_reserve_exact(LEAF_ENTRIES).map_err(|_| IndexError::NoMemory)?;
        entries.resize(LEAF_ENTRIES, None);
        let entries = entries.into_boxed_slice().try_into().expect("made with this length");
        Ok(Leaf { entries, used: 0 })
    }
}

/// The index as a page table.
#[derive(Debug, Default)]
pub struct Radix {
    leaves: HashMap<u64, Leaf, BuildHasherDefault<UpperBitsHasher>>,
    count: usize,
}

/// Upper bits of page keys: few and mostly neighbours, so one multiplication spreads them enough.
#[derive(Debug, Default, Clone, Copy)]
struct UpperBitsHasher(u64);

impl Hasher for UpperBitsHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The golden ratio, 2^64 / 1.618...: Knuth's multiplicative hashing. The high half has the
        // mixed bits; the map takes its bucket from the low ones.
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

fn split(key: PageKey) -> (u64, usize) {
    (key.0 >> LEAF_BITS, key.0 as usize & (LEAF_ENTRIES - 1))
}

fn key_of(upper: u64, place: usize) -> PageKey {
    PageKey(upper << LEAF_BITS | place as u64)
}

/// A range of keys as leaves and places in them.
struct Span {
    first: (u64, usize),
    last: (u64, usize),
}

impl Span {
    fn new(range: &RangeInclusive<PageKey>) -> Span {
        Span { first: split(*range.start()), last: split(*range.end()) }
    }

    fn uppers(&self) -> RangeInclusive<u64> {
        self.first.0..=self.last.0
    }

    /// The places of the range in one of its leaves.
    fn places(&self, upper: u64) -> Range<usize> {
        let start = if upper == self.first.0 { self.first.1 } else { 0 };
        let end = if upper == self.last.0 { self.last.1 + 1 } else { LEAF_ENTRIES };
        start..end.max(start)
    }

    /// Whether it has fewer leaves than the index: then they are looked up one by one, and
    /// otherwise those that the index has are filtered.
    fn is_shorter_than(&self, leaves: usize) -> bool {
        self.last.0.saturating_sub(self.first.0) < leaves as u64
    }
}

impl Radix {
    /// An empty index.
    pub fn new() -> Radix {
        Radix::default()
    }

    /// Removes the entry of `key` if `wanted` says so.
    fn remove_where(&mut self, key: PageKey, wanted: impl Fn(Entry) -> bool) -> Option<Entry> {
        let (upper, place) = split(key);
        let leaf = self.leaves.get_mut(&upper)?;
        let removed = leaf.entries[place].take_if(|entry| wanted(*entry))?;
        leaf.used -= 1;
        self.count -= 1;
        if leaf.used == 0 {
            self.leaves.remove(&upper);
            self.release_if_empty();
        }
        Some(removed)
    }

    /// A leaf that has entries with keys of the span.
    fn find_leaf(&self, span: &Span) -> Option<u64> {
        let has_entries = |&(&upper, leaf): &(&u64, &Leaf)| {
            span.uppers().contains(&upper)
                && leaf.entries[span.places(upper)].iter().any(Option::is_some)
        };
        self.leaves.iter().find(has_entries).map(|(&upper, _)| upper)
    }

    /// Takes entries of one leaf that are in the span, at most `max`; how many. The count of all is
    /// the caller's to correct.
    fn take_from(
        &mut self,
        upper: u64,
        span: &Span,
        max: usize,
        taken: &mut dyn FnMut(PageKey, Entry),
    ) -> usize {
        let Some(leaf) = self.leaves.get_mut(&upper) else { return 0 };
        let mut count = 0;
        for place in span.places(upper) {
            if count == max {
                break;
            }
            if let Some(entry) = leaf.entries[place].take() {
                taken(key_of(upper, place), entry);
                count += 1;
            }
        }
        leaf.used -= count;
        if leaf.used == 0 {
            self.leaves.remove(&upper);
        }
        count
    }

    /// Gives the table of leaves back if there are none.
    fn release_if_empty(&mut self) {
        if self.leaves.is_empty() {
            self.leaves = HashMap::default();
        }
    }
}

impl Index for Radix {
    fn name(&self) -> &'static str {
        "radix"
    }

    fn insert_or_replace(
        &mut self,
        key: PageKey,
        entry: Entry,
    ) -> Result<Option<Entry>, IndexError> {
        let (upper, place) = split(key);
        let leaf = match self.leaves.get_mut(&upper) {
            Some(leaf) => leaf,
            None => {
                self.leaves.try_reserve(1).map_err(|_| IndexError::NoMemory)?;
                let leaf = Leaf::new()?;
                self.leaves.entry(upper).or_insert(leaf)
            }
        };
        let replaced = leaf.entries[place].replace(entry);
        if replaced.is_none() {
            leaf.used += 1;
            self.count += 1;
        }
        Ok(replaced)
    }

    fn get(&self, key: PageKey) -> Option<Entry> {
        let (upper, place) = split(key);
        self.leaves.get(&upper)?.entries[place]
    }

    fn take(&mut self, key: PageKey) -> Option<Entry> {
        self.remove_where(key, |_| true)
    }

    fn remove_if(&mut self, key: PageKey, entry: Entry) -> bool {
        self.remove_where(key, |held| held == entry).is_some()
    }

    fn take_range(
        &mut self,
        range: RangeInclusive<PageKey>,
        max: usize,
        taken: &mut dyn FnMut(PageKey, Entry),
    ) -> usize {
        let span = Span::new(&range);
        let mut count = 0;
        if span.is_shorter_than(self.leaves.len()) {
            for upper in span.uppers() {
                count += self.take_from(upper, &span, max - count, taken);
            }
        } else {
            // One leaf after another: who takes a few entries at a time does not visit all leaves
            // each time.
            while count < max
                && let Some(upper) = self.find_leaf(&span)
            {
                count += self.take_from(upper, &span, max - count, taken);
            }
        }
        self.release_if_empty();
        self.count -= count;
        count
    }

    fn for_each(&self, range: RangeInclusive<PageKey>, visit: &mut dyn FnMut(PageKey, Entry)) {
        let span = Span::new(&range);
        let mut visit_leaf = |upper: u64, leaf: &Leaf| {
            for place in span.places(upper) {
                if let Some(entry) = leaf.entries[place] {
                    visit(key_of(upper, place), entry);
                }
            }
        };
        if span.is_shorter_than(self.leaves.len()) {
            for upper in span.uppers() {
                if let Some(leaf) = self.leaves.get(&upper) {
                    visit_leaf(upper, leaf);
                }
            }
        } else {
            for (&upper, leaf) in &self.leaves {
                if span.uppers().contains(&upper) {
                    visit_leaf(upper, leaf);
                }
            }
        }
    }

    fn count(&self) -> usize {
        self.count
    }

    fn bytes(&self) -> usize {
        let leaf = size_of::<[Option<Entry>; LEAF_ENTRIES]>();
        // A bucket: key, leaf and a control byte; the map keeps one in eight free.
        let bucket = size_of::<(u64, Leaf)>() + 1;
        self.leaves.len() * leaf + (self.leaves.capacity() * 8 / 7) * bucket + size_of::<Self>()
    }

    fn audit(&self) -> Result<(), String> {
        let mut count = 0;
        for (upper, leaf) in &self.leaves {
            let used = leaf.entries.iter().flatten().count();
            if used == 0 || used != leaf.used {
                return Err(format!("leaf {upper:#x}: {used} entries, {} counted", leaf.used));
            }
            count += used;
        }
        if count != self.count {
            return Err(format!("{count} entries, {} counted", self.count));
        }
        Ok(())
    }
}
