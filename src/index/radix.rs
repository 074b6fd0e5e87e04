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
use std::sync::Arc;

use super::{Entry, Index, IndexError};
use crate::budget::Budget;
use crate::page::PageKey;

const LEAF_BITS: u32 = 9;
const LEAF_ENTRIES: usize = 1 << LEAF_BITS; // 512

/// Leaves of a range that are searched for at once.
const LEAVES_FOUND: usize = 64;

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

/// The leaves by the upper bits of their keys. Both they and the hash table are charged.
#[derive(Debug)]
struct Leaves {
    table: HashMap<u64, Leaf, BuildHasherDefault<MultiplyHasher>>,
    /// Of the table. It never shrinks, but the capacity it tells does, as removals leave marks in
    /// it.
    buckets: usize,
    budget: Arc<Budget>,
}

const LEAF_BYTES: usize = size_of::<[Option<Entry>; LEAF_ENTRIES]>();

/// The fewest buckets of a hash table.
const BUCKETS_MIN: usize = 4;

/// Entries that a hash table of so many buckets, a power of two, takes: one in eight stays free.
fn table_capacity(buckets: usize) -> usize {
    if buckets < 8 { buckets.saturating_sub(1) } else { buckets / 8 * 7 }
}

/// Bytes of a hash table: keys and leaves, a control byte for each, and 16 more, so that a search
/// may look at 16 at once (hashbrown's layout).
fn table_bytes(buckets: usize) -> usize {
    if buckets == 0 { 0 } else { buckets * (size_of::<(u64, Leaf)>() + 1) + 16 }
}

impl Leaves {
    fn new(budget: &Arc<Budget>) -> Leaves {
        Leaves { table: HashMap::default(), buckets: 0, budget: Arc::clone(budget) }
    }

    /// Adds an empty leaf.
    #[cold]
    fn add(&mut self, upper: u64) -> Result<&mut Leaf, IndexError> {
        if self.table.len() == self.table.capacity() {
            self.move_table()?;
        }
        if let Err(error) = self.budget.charge_metadata(LEAF_BYTES as u64) {
            self.release_if_empty();
            return Err(error.into());
        }
        match Leaf::new() {
            Ok(leaf) => Ok(self.table.entry(upper).or_insert(leaf)),
            Err(error) => {
                self.budget.uncharge_metadata(LEAF_BYTES as u64);
                self.release_if_empty();
                Err(error)
            }
        }
    }

    /// Moves to a table with room: of twice the size, unless marks of removals fill it.
    fn move_table(&mut self) -> Result<(), IndexError> {
        let (old, used) = (self.buckets, self.table.len());
        let new = if used < table_capacity(old) / 2 { old } else { (old * 2).max(BUCKETS_MIN) };
        self.budget.charge_metadata(table_bytes(new) as u64)?;
        let mut table = HashMap::default();
        if table.try_reserve(table_capacity(new)).is_err() {
            self.budget.uncharge_metadata(table_bytes(new) as u64);
            return Err(IndexError::NoMemory);
        }
        debug_assert_eq!(table.capacity(), table_capacity(new));
        table.extend(self.table.drain());
        self.table = table;
        self.buckets = new;
        self.budget.uncharge_metadata(table_bytes(old) as u64);
        Ok(())
    }

    /// Removes an empty leaf.
    fn remove(&mut self, upper: u64) {
        if let Some(leaf) = self.table.remove(&upper) {
            drop(leaf);
            self.budget.uncharge_metadata(LEAF_BYTES as u64);
        }
    }

    /// Gives the table back if there are no leaves.
    fn release_if_empty(&mut self) {
        if self.table.is_empty() {
            self.table = HashMap::default();
            let bytes = table_bytes(std::mem::take(&mut self.buckets));
            self.budget.uncharge_metadata(bytes as u64);
        }
    }

    fn bytes(&self) -> usize {
        self.table.len() * LEAF_BYTES + table_bytes(self.buckets)
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        let bytes = self.bytes();
        self.table = HashMap::default();
        self.budget.uncharge_metadata(bytes as u64);
    }
}

/// The index as a page table.
#[derive(Debug)]
pub struct Radix {
    leaves: Leaves,
    count: usize,
    /// The leaf that the last entries of a range were taken from: the next batch goes on there.
    resume: u64,
}

/// A hash of one number: page keys, and their upper bits, are mostly neighbours, so that one
/// multiplication spreads them enough.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct MultiplyHasher(u64);

impl Hasher for MultiplyHasher {
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
    /// An empty index, bounded by the machine alone.
    pub fn new() -> Radix {
        Radix::on(&Arc::default())
    }

    /// An empty index whose memory is charged to `budget`.
    pub fn on(budget: &Arc<Budget>) -> Radix {
        Radix { leaves: Leaves::new(budget), count: 0, resume: 0 }
    }

    /// Removes the entry of `key` if `wanted` says so.
    fn remove_where(&mut self, key: PageKey, wanted: impl Fn(Entry) -> bool) -> Option<Entry> {
        let (upper, place) = split(key);
        let leaf = self.leaves.table.get_mut(&upper)?;
        let removed = leaf.entries[place].take_if(|entry| wanted(*entry))?;
        leaf.used -= 1;
        self.count -= 1;
        if leaf.used == 0 {
            self.leaves.remove(upper);
            self.leaves.release_if_empty();
        }
        Some(removed)
    }

    /// Finds leaves that have entries with keys of the span, as many as there is room for; how
    /// many.
    fn find_leaves(&self, span: &Span, found: &mut [u64]) -> usize {
        let has_entries = |&(&upper, leaf): &(&u64, &Leaf)| {
            span.uppers().contains(&upper)
                && leaf.entries[span.places(upper)].iter().any(Option::is_some)
        };
        let mut count = 0;
        for (place, (&upper, _)) in
            found.iter_mut().zip(self.leaves.table.iter().filter(has_entries))
        {
            *place = upper;
            count += 1;
        }
        count
    }

    /// Takes entries of one leaf that are in the span, at most `max`; how many. The count of all is
    /// the caller's to correct. The next batch goes on at this leaf.
    fn take_from(
        &mut self,
        upper: u64,
        span: &Span,
        max: usize,
        taken: &mut dyn FnMut(PageKey, Entry),
    ) -> usize {
        self.resume = upper;
        let Some(leaf) = self.leaves.table.get_mut(&upper) else { return 0 };
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
            self.leaves.remove(upper);
        }
        count
    }
}

impl Default for Radix {
    fn default() -> Self {
        Radix::new()
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
        let leaf = match self.leaves.table.get_mut(&upper) {
            Some(leaf) => leaf,
            None => self.leaves.add(upper)?,
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
        self.leaves.table.get(&upper)?.entries[place]
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
        let resume = Some(self.resume).filter(|upper| span.uppers().contains(upper));
        if span.is_shorter_than(self.leaves.table.len()) {
            // All of the span, from where the batch before ended.
            let start = resume.unwrap_or(span.first.0);
            for upper in (start..=span.last.0).chain(span.first.0..start) {
                if count == max {
                    break;
                }
                count += self.take_from(upper, &span, max - count, taken);
            }
        } else {
            // That leaf, and those side by side behind it.
            for upper in resume.into_iter().flat_map(|resume| resume..=span.last.0) {
                if count == max || Some(upper) != resume && !self.leaves.table.contains_key(&upper)
                {
                    break;
                }
                count += self.take_from(upper, &span, max - count, taken);
            }
            // Then others, many at a time: a search goes through the whole table.
            let mut found = [0; LEAVES_FOUND];
            while count < max {
                let leaves = self.find_leaves(&span, &mut found);
                for &upper in &found[..leaves] {
                    if count == max {
                        break;
                    }
                    count += self.take_from(upper, &span, max - count, taken);
                }
                if leaves < found.len() {
                    break;
                }
            }
        }
        self.leaves.release_if_empty();
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
        if span.is_shorter_than(self.leaves.table.len()) {
            for upper in span.uppers() {
                if let Some(leaf) = self.leaves.table.get(&upper) {
                    visit_leaf(upper, leaf);
                }
            }
        } else {
            for (&upper, leaf) in &self.leaves.table {
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
        self.leaves.bytes() + size_of::<Self>()
    }

    fn audit(&self) -> Result<(), String> {
        let mut count = 0;
        for (upper, leaf) in &self.leaves.table {
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn filled(keys: impl Iterator<Item = u64>) -> Radix {
        let mut radix = Radix::new();
        for key in keys {
            radix.insert_or_replace(PageKey(key), Entry(NonZeroU64::MIN)).expect("memory");
        }
        radix
    }

    /// The keys of a range in batches, and the leaf after each.
    fn drain(radix: &mut Radix, range: RangeInclusive<u64>, batch: usize) -> Vec<(Vec<u64>, u64)> {
        let range = PageKey(*range.start())..=PageKey(*range.end());
        let mut batches = Vec::new();
        loop {
            let mut keys = Vec::new();
            let count = radix.take_range(range.clone(), batch, &mut |key, _| keys.push(key.0));
            assert_eq!((count, radix.audit()), (keys.len(), Ok(())));
            if count == 0 {
                return batches;
            }
            batches.push((keys, radix.resume));
        }
    }

    #[test]
    fn a_batch_goes_on_where_the_one_before_ended() {
        const KEYS: u64 = 40 * LEAF_ENTRIES as u64;
        // Fewer leaves in the range than in the index; and more.
        for (others, end) in [(KEYS..2 * KEYS, KEYS - 1), (0..0, u64::MAX)] {
            let other_count = others.end - others.start;
            let mut radix = filled((0..KEYS).chain(others));
            radix.resume = 0;
            let batches = drain(&mut radix, 0..=end, 64);
            assert_eq!(batches.len() as u64, KEYS / 64);
            for (n, (_, resume)) in batches.iter().enumerate() {
                assert_eq!(*resume, n as u64 * 64 / LEAF_ENTRIES as u64, "batch {n}");
            }
            assert_eq!(radix.count() as u64, other_count);
        }
    }

    #[test]
    fn what_is_before_the_place_to_go_on_is_taken_as_well() {
        const STRIDE: u64 = 3 * LEAF_ENTRIES as u64;
        for (keys, end) in [(300, 60 * STRIDE), (300, u64::MAX), (20, 10 * STRIDE - 1)] {
            for resume in [0, 15, 30, 400, u64::MAX >> LEAF_BITS] {
                let mut radix = filled((0..keys).map(|n| n * STRIDE));
                radix.resume = resume;
                let batches = drain(&mut radix, STRIDE..=end, 7);
                let mut taken: Vec<u64> = batches.into_iter().flat_map(|(keys, _)| keys).collect();
                taken.sort_unstable();
                let expected = (1..keys).map(|n| n * STRIDE).filter(|&key| key <= end);
                assert!(taken.into_iter().eq(expected), "{keys}, {end}, {resume}");
            }
        }
    }

    #[test]
    fn the_table_of_leaves_counts_until_it_is_given_back() {
        const LEAVES: u64 = 448; // as many as 512 buckets take
        // Scattered over the table by chance: neighbours would be spread evenly.
        let key = |n: u64| (n * n * 7919) << LEAF_BITS;
        let mut radix = filled((0..LEAVES).map(key));
        let full = radix.bytes();
        for n in 1..LEAVES {
            radix.take(PageKey(key(n)));
        }
        assert_eq!(radix.bytes(), full - (LEAVES as usize - 1) * LEAF_BYTES);
        radix.take(PageKey(0));
        assert_eq!(radix.bytes(), Radix::new().bytes());
    }
}
