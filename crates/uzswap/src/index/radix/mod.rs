//! A two-level page table: leaves of 512 places, found by the key's upper bits.
//!
//! ```text
//!  key | upper bits: 55 | place: 9 |
//!            |               '-----------> entry
//!            '-> leaf: 2 MiB of pages, 32 bytes to 4 KiB
//! ```
//!
//! - R1: a leaf holds as many entries as it says, and at least one.
//! - R2: a small leaf has its entries at different places, without gaps.
//! - R3: an entry outside of the leaves is alone: nothing else has its upper bits.
//! - R4: a search for a lone entry finds it, and ends at a free slot where there is none.
//!
//! Page keys come in clusters, as pages do in an address space. A leaf is mostly full, so an entry
//! costs little more than its 8 bytes; a look-up is a hash of few keys and one array access.
//! Sparse keys have small leaves, and lone ones none. With its part of the tables, an entry takes
//! at most 66 bytes after inserts in any pattern, and 100 after removals.

mod hash;
mod leaf;
mod lone;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

#[doc(hidden)]
pub use self::hash::MultiplyHasher;
use self::leaf::{IsFull, LEAF_BITS, LEAF_PLACES, Leaf, Size};
use self::lone::Lone;
use super::{Entry, Index, IndexError, KeyRange, Replaced, Visit};
use crate::AuditError;
use crate::budget::Budget;
use crate::page::PageKey;

/// Leaves of a range that are searched for at once.
const LEAVES_FOUND: usize = 64;

/// The leaves by the upper bits of their keys. Both they and the hash table are charged.
#[derive(Debug)]
struct Leaves {
    table: HashMap<u64, Leaf, BuildHasherDefault<MultiplyHasher>>,
    /// Of the table, whose capacity tells less, as removals leave marks in it.
    buckets: usize,
    /// Bytes of the leaves.
    leaf_bytes: usize,
    budget: Arc<Budget>,
}

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
        let (table, budget) = (HashMap::default(), Arc::clone(budget));
        Leaves { table, buckets: 0, leaf_bytes: 0, budget }
    }

    /// Adds an empty leaf, of the smallest size.
    fn add(&mut self, upper: u64) -> Result<&mut Leaf, IndexError> {
        if self.table.len() == self.table.capacity() {
            let has_marks = self.table.len() < table_capacity(self.buckets) / 2;
            let buckets = if has_marks { self.buckets } else { self.buckets * 2 };
            self.move_table(buckets.max(BUCKETS_MIN))?;
        }
        match self.new_leaf(Size::SMALLEST) {
            Ok(leaf) => Ok(self.table.entry(upper).or_insert(leaf)),
            Err(error) => {
                self.release_if_empty();
                Err(error)
            }
        }
    }

    /// Takes memory for a leaf.
    fn new_leaf(&mut self, size: Size) -> Result<Leaf, IndexError> {
        self.budget.charge_metadata(size.bytes() as u64)?;
        let leaf = Leaf::new(size).inspect_err(|_| {
            self.budget.uncharge_metadata(size.bytes() as u64);
        })?;
        self.leaf_bytes += size.bytes();
        Ok(leaf)
    }

    /// Gives the memory of a leaf back.
    fn free_leaf(&mut self, leaf: Leaf) {
        let bytes = leaf.size().bytes();
        drop(leaf);
        self.leaf_bytes -= bytes;
        self.budget.uncharge_metadata(bytes as u64);
    }

    /// Moves the entries of a leaf to one of another size, which has room for them.
    #[cold]
    fn resize(&mut self, upper: u64, size: Size) -> Result<&mut Leaf, IndexError> {
        let mut resized = self.new_leaf(size)?;
        let leaf = self.table.get_mut(&upper).expect("the caller has seen it");
        leaf.for_each(|place, entry| resized.put(place, entry));
        let before = std::mem::replace(leaf, resized);
        self.free_leaf(before);
        Ok(self.table.get_mut(&upper).expect("as before"))
    }

    /// Moves to a table of so many buckets, which has room.
    fn move_table(&mut self, buckets: usize) -> Result<(), IndexError> {
        self.budget.charge_metadata(table_bytes(buckets) as u64)?;
        let mut table = HashMap::default();
        if table.try_reserve(table_capacity(buckets)).is_err() {
            self.budget.uncharge_metadata(table_bytes(buckets) as u64);
            return Err(IndexError::NoMemory);
        }
        debug_assert_eq!(table.capacity(), table_capacity(buckets));
        table.extend(self.table.drain());
        self.table = table;
        let before = std::mem::replace(&mut self.buckets, buckets);
        self.budget.uncharge_metadata(table_bytes(before) as u64);
        Ok(())
    }

    /// Removes a leaf.
    fn remove(&mut self, upper: u64) {
        if let Some(leaf) = self.table.remove(&upper) {
            self.free_leaf(leaf);
        }
    }

    /// Halves the table while no more than a quarter is in use; frees it without leaves. Where
    /// there is no room for both tables, the larger one stays until the next removal.
    fn shrink_table(&mut self) {
        self.release_if_empty();
        while self.buckets > BUCKETS_MIN && self.table.len() <= table_capacity(self.buckets) / 4 {
            if self.move_table(self.buckets / 2).is_err() {
                return;
            }
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
        self.leaf_bytes + table_bytes(self.buckets)
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
    lone: Lone,
    count: usize,
    /// The upper bits of the last entries of a range that were taken: the next batch goes on there.
    resume: u64,
}

fn split(key: PageKey) -> (u64, usize) {
    (key.0 >> LEAF_BITS, key.0 as usize & (LEAF_PLACES - 1))
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
    fn new(range: &KeyRange) -> Span {
        Span { first: split(*range.start()), last: split(*range.end()) }
    }

    fn uppers(&self) -> RangeInclusive<u64> {
        self.first.0..=self.last.0
    }

    /// The places of the range in one of its leaves.
    fn places(&self, upper: u64) -> Range<usize> {
        let start = if upper == self.first.0 { self.first.1 } else { 0 };
        let end = if upper == self.last.0 { self.last.1 + 1 } else { LEAF_PLACES };
        start..end.max(start)
    }

    /// Whether it has fewer values of the upper bits than the index. Then a caller looks those up
    /// one by one; otherwise it filters those of the index.
    fn is_shorter_than(&self, uppers: usize) -> bool {
        self.last.0.saturating_sub(self.first.0) < uppers as u64
    }

    fn contains(&self, key: PageKey) -> bool {
        let (upper, place) = split(key);
        self.uppers().contains(&upper) && self.places(upper).contains(&place)
    }

    /// Calls `visit` for each entry of a leaf that is in the span.
    fn for_each(&self, upper: u64, leaf: &Leaf, visit: Visit<'_>) {
        let places = self.places(upper);
        leaf.for_each(|place, entry| {
            if places.contains(&place) {
                visit(key_of(upper, place), entry);
            }
        });
    }
}

impl Radix {
    /// An empty index whose memory is charged to `budget`.
    pub fn on(budget: &Arc<Budget>) -> Radix {
        Radix { leaves: Leaves::new(budget), lone: Lone::new(budget), count: 0, resume: 0 }
    }

    /// Values of the upper bits that keys have.
    fn uppers(&self) -> usize {
        self.leaves.table.len() + self.lone.used()
    }

    /// Whether a key has these upper bits.
    fn has(&self, upper: u64) -> bool {
        self.leaves.table.contains_key(&upper) || self.lone.find(upper).is_some()
    }

    /// The entry of a key that is in no leaf.
    #[inline(never)]
    fn get_lone(&self, key: PageKey) -> Option<Entry> {
        let (held, entry) = self.lone.at(self.lone.find(split(key).0)?);
        (held == key).then_some(entry)
    }

    /// Inserts into a leaf that has no room.
    #[cold]
    fn insert_into_larger(&mut self, key: PageKey, entry: Entry) -> Result<(), IndexError> {
        let (upper, place) = split(key);
        let larger = self.leaves.table[&upper].size().larger();
        self.leaves.resize(upper, larger)?.put(place, entry);
        Ok(())
    }

    /// Inserts an entry whose key is in no leaf, or replaces the one it has.
    #[inline(never)]
    fn insert_beside(&mut self, key: PageKey, entry: Entry) -> Result<Option<Entry>, IndexError> {
        let (upper, place) = split(key);
        let Some(number) = self.lone.find(upper) else {
            self.lone.insert(key, entry)?;
            return Ok(None);
        };
        let (other, others_entry) = self.lone.at(number);
        if other == key {
            return Ok(Some(self.lone.replace(number, entry)));
        }
        let leaf = self.leaves.add(upper)?;
        leaf.put(split(other).1, others_entry);
        leaf.put(place, entry);
        self.lone.remove(number);
        Ok(None)
    }

    /// Gives memory back that a leaf does not need any more. Where there is no room for both, the
    /// larger leaf stays until the next removal from it.
    #[cold]
    fn settle(&mut self, upper: u64) {
        let Some(leaf) = self.leaves.table.get(&upper) else { return };
        match leaf.used() {
            0 => {}
            1 => {
                let mut moved = false;
                leaf.for_each(|place, entry| {
                    moved = self.lone.insert(key_of(upper, place), entry).is_ok();
                });
                if !moved {
                    return;
                }
            }
            _ => {
                let size = leaf.fitting_size();
                if size != leaf.size() {
                    let _ = self.leaves.resize(upper, size);
                }
                return;
            }
        }
        self.leaves.remove(upper);
        self.leaves.shrink_table();
    }

    /// Finds leaves that have entries with keys of the span, as many as there is room for; how
    /// many.
    fn find_leaves(&self, span: &Span, found: &mut [u64]) -> usize {
        let has_entries = |&(&upper, leaf): &(&u64, &Leaf)| {
            span.uppers().contains(&upper) && leaf.has_any(span.places(upper))
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

    /// Takes entries with these upper bits that are in the span, at most `max`; how many. The count
    /// of all is the caller's to correct. The next batch goes on here.
    fn take_from(&mut self, upper: u64, span: &Span, max: usize, taken: Visit<'_>) -> usize {
        self.resume = upper;
        let places = span.places(upper);
        if let Some(leaf) = self.leaves.table.get_mut(&upper) {
            let count = leaf
                .take_places(places, max, &mut |place, entry| taken(key_of(upper, place), entry));
            if count > 0 && leaf.is_sparse() {
                self.settle(upper);
            }
            return count;
        }
        let is_wanted =
            |&number: &usize| max > 0 && places.contains(&split(self.lone.at(number).0).1);
        let Some(number) = self.lone.find(upper).filter(is_wanted) else { return 0 };
        let (key, entry) = self.lone.remove(number);
        taken(key, entry);
        1
    }

    /// Takes entries of a span that has more values of upper bits than the index, at most `max`;
    /// how many.
    fn take_from_found(&mut self, span: &Span, max: usize, taken: Visit<'_>) -> usize {
        let mut count = 0;
        // First where the batch before ended, and side by side behind it.
        let resume = Some(self.resume).filter(|upper| span.uppers().contains(upper));
        for upper in resume.into_iter().flat_map(|resume| resume..=span.last.0) {
            if count == max || Some(upper) != resume && !self.has(upper) {
                break;
            }
            count += self.take_from(upper, span, max - count, taken);
        }
        // Then other leaves, many at a time: a search goes through the whole table.
        let mut found = [0; LEAVES_FOUND];
        while count < max {
            let leaves = self.find_leaves(span, &mut found);
            for &upper in &found[..leaves] {
                if count == max {
                    break;
                }
                count += self.take_from(upper, span, max - count, taken);
            }
            if leaves < found.len() {
                break;
            }
        }
        count + self.lone.take_where(|key| span.contains(key), max - count, taken)
    }
}

impl Index for Radix {
    fn name(&self) -> &'static str {
        "radix"
    }

    fn insert_or_replace(&mut self, key: PageKey, entry: Entry) -> Replaced {
        let (upper, place) = split(key);
        let replaced = match self.leaves.table.get_mut(&upper) {
            Some(leaf) => match leaf.replace(place, entry) {
                Ok(replaced) => replaced,
                Err(IsFull) => {
                    self.insert_into_larger(key, entry)?;
                    None
                }
            },
            None => self.insert_beside(key, entry)?,
        };
        self.count += usize::from(replaced.is_none());
        Ok(replaced)
    }

    fn get(&self, key: PageKey) -> Option<Entry> {
        let (upper, place) = split(key);
        match self.leaves.table.get(&upper) {
            Some(leaf) => leaf.get(place),
            None => self.get_lone(key),
        }
    }

    fn remove(&mut self, key: PageKey, only: Option<Entry>) -> Option<Entry> {
        let (upper, place) = split(key);
        let removed = if let Some(leaf) = self.leaves.table.get_mut(&upper) {
            let removed = leaf.take_if(place, |entry| only.is_none_or(|only| only == entry))?;
            if leaf.is_sparse() {
                self.settle(upper);
            }
            removed
        } else {
            self.get_lone(key).filter(|entry| only.is_none_or(|only| only == *entry))?;
            self.lone.remove(self.lone.find(upper)?).1
        };
        self.count -= 1;
        Some(removed)
    }

    fn take_range(&mut self, range: KeyRange, max: usize, taken: Visit<'_>) -> usize {
        let span = Span::new(&range);
        let mut count = 0;
        if span.is_shorter_than(self.uppers()) {
            // All of the span, from where the batch before ended.
            let resume = Some(self.resume).filter(|upper| span.uppers().contains(upper));
            let start = resume.unwrap_or(span.first.0);
            for upper in (start..=span.last.0).chain(span.first.0..start) {
                if count == max {
                    break;
                }
                count += self.take_from(upper, &span, max - count, taken);
            }
        } else {
            count = self.take_from_found(&span, max, taken);
        }
        self.count -= count;
        count
    }

    fn for_each(&self, range: KeyRange, visit: Visit<'_>) {
        let span = Span::new(&range);
        if !span.is_shorter_than(self.uppers()) {
            for (&upper, leaf) in &self.leaves.table {
                if span.uppers().contains(&upper) {
                    span.for_each(upper, leaf, visit);
                }
            }
            let lone = self.lone.iter().filter(|(key, _)| span.contains(*key));
            lone.for_each(|(key, entry)| visit(key, entry));
            return;
        }
        for upper in span.uppers() {
            if let Some(leaf) = self.leaves.table.get(&upper) {
                span.for_each(upper, leaf, visit);
            } else if let Some(number) = self.lone.find(upper) {
                let (key, entry) = self.lone.at(number);
                if span.contains(key) {
                    visit(key, entry);
                }
            }
        }
    }

    fn count(&self) -> usize {
        self.count
    }

    fn bytes(&self) -> usize {
        self.leaves.bytes() + self.lone.bytes() + size_of::<Self>()
    }

    fn audit(&self) -> Result<(), AuditError> {
        self.lone.audit()?;
        let (mut count, mut leaf_bytes) = (self.lone.used(), 0);
        for (&upper, leaf) in &self.leaves.table {
            leaf.audit().map_err(|error| format!("{error}, in leaf {upper:#x}"))?;
            if self.lone.find(upper).is_some() {
                return Err(format!("R3: leaf {upper:#x}, and a lone entry beside it").into());
            }
            count += leaf.used();
            leaf_bytes += leaf.size().bytes();
        }
        if (count, leaf_bytes) != (self.count, self.leaves.leaf_bytes) {
            return Err(format!(
                "R1: {count} entries, {} counted; {leaf_bytes} bytes of leaves, {} counted",
                self.count, self.leaves.leaf_bytes
            )
            .into());
        }
        if self.leaves.table.capacity() > table_capacity(self.leaves.buckets) {
            let capacity = self.leaves.table.capacity();
            return Err(format!("{} buckets, with room for {capacity}", self.leaves.buckets).into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn filled(keys: impl Iterator<Item = u64>) -> Radix {
        let mut radix = Radix::on(&Arc::default());
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
        const KEYS: u64 = 40 * LEAF_PLACES as u64;
        // Fewer leaves in the range than in the index; and more.
        for (others, end) in [(KEYS..2 * KEYS, KEYS - 1), (0..0, u64::MAX)] {
            let other_count = others.end - others.start;
            let mut radix = filled((0..KEYS).chain(others));
            radix.resume = 0;
            let batches = drain(&mut radix, 0..=end, 64);
            assert_eq!(batches.len() as u64, KEYS / 64);
            for (n, (_, resume)) in batches.iter().enumerate() {
                assert_eq!(*resume, n as u64 * 64 / LEAF_PLACES as u64, "batch {n}");
            }
            assert_eq!(radix.count() as u64, other_count);
        }
    }

    #[test]
    fn what_is_before_the_place_to_go_on_is_taken_as_well() {
        const STRIDE: u64 = 3 * LEAF_PLACES as u64;
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
    fn a_table_of_leaves_takes_what_its_layout_says() {
        for (buckets, capacity, bytes) in [(0, 0, 0), (4, 3, 116), (8, 7, 216), (512, 448, 12_816)]
        {
            assert_eq!((table_capacity(buckets), table_bytes(buckets)), (capacity, bytes));
        }
    }

    #[test]
    fn the_table_of_leaves_shrinks_and_is_given_back() {
        const LEAVES: u64 = 448; // as many as 512 buckets take
        // Scattered over the table by chance: neighbours would be spread evenly.
        let key = |n: u64| (n * n * 7919) << LEAF_BITS;
        let pair = |n: u64| [key(n), key(n) + 1];
        let mut radix = filled((0..LEAVES).flat_map(pair));
        assert_eq!(radix.leaves.buckets, 512);
        for n in 1..LEAVES {
            for key in pair(n) {
                radix.take(PageKey(key));
            }
            let leaves = radix.leaves.table.len();
            let allowed = (leaves * 8).next_power_of_two().max(2 * BUCKETS_MIN);
            assert!(radix.leaves.buckets <= allowed, "{} for {leaves}", radix.leaves.buckets);
            assert_eq!(radix.audit(), Ok(()));
        }
        for key in pair(0) {
            assert!(radix.take(PageKey(key)).is_some());
        }
        assert_eq!(radix.bytes(), Radix::on(&Arc::default()).bytes());
    }

    /// The size of a leaf, of which nothing is left where it has one entry.
    fn size(radix: &Radix, upper: u64) -> Option<Size> {
        radix.leaves.table.get(&upper).map(Leaf::size)
    }

    #[test]
    fn a_leaf_grows_and_shrinks_through_every_size() {
        let mut radix = Radix::on(&Arc::default());
        let mut sizes = Vec::new();
        for place in 0..LEAF_PLACES {
            let key = key_of(7, place * 185 % LEAF_PLACES);
            assert_eq!(radix.insert_or_replace(key, Entry(NonZeroU64::MIN)), Ok(None));
            assert_eq!(radix.audit(), Ok(()));
            sizes.push(size(&radix, 7));
        }
        let last_with = |size| sizes.iter().rposition(|held| *held == size).map(|n| n + 1);
        assert_eq!(last_with(None), Some(1));
        for expected in [Size::UpTo3, Size::UpTo12, Size::UpTo64, Size::All] {
            assert_eq!(last_with(Some(expected)), Some(expected.capacity()));
        }
        for left in (0..LEAF_PLACES).rev() {
            assert!(radix.take(key_of(7, left * 185 % LEAF_PLACES)).is_some());
            assert_eq!(radix.audit(), Ok(()));
            let expected = match left {
                0 | 1 => None,
                2 => Some(Size::UpTo3),
                3..=8 => Some(Size::UpTo12),
                9..=42 => Some(Size::UpTo64),
                _ => Some(Size::All),
            };
            assert_eq!(size(&radix, 7), expected, "{left} left");
        }
        assert_eq!(radix.bytes(), Radix::on(&Arc::default()).bytes());
    }

    #[test]
    fn an_entry_that_is_alone_again_has_no_leaf() {
        let mut radix = filled([5, 6, 1 << 40].into_iter());
        assert_eq!((radix.leaves.table.len(), radix.lone.used()), (1, 1));
        let entry = Entry(NonZeroU64::MIN);
        assert!(radix.remove_if(PageKey(5), entry) && !radix.remove_if(PageKey(5), entry));
        assert_eq!((radix.leaves.table.len(), radix.lone.used()), (0, 2));
        assert_eq!(radix.get(PageKey(6)), Some(entry));
        assert_eq!((radix.get(PageKey(7)), radix.get(PageKey(1 << 40 | 1))), (None, None));
        assert_eq!(radix.insert_or_replace(PageKey(6), entry), Ok(Some(entry)));
        assert_eq!((radix.audit(), radix.count()), (Ok(()), 2));
    }
}
