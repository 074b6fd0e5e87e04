//! Entries that are alone in their 512 keys: a hash table of keys and entries, without a leaf.
//!
//! A search goes from slot to slot. The table grows by a quarter where three quarters are in use,
//! so that an entry takes 21 to 27 bytes. The table shrinks once five eighths of it are free.

use std::sync::Arc;

use super::hash::{mix, scale};
use super::leaf::LEAF_BITS;
use crate::AuditError;
use crate::budget::{Budget, GrowError};
use crate::budgeted_vec::BudgetedVec;
use crate::index::{Entry, Visit};
use crate::page::PageKey;

/// A key and its entry; `None` where the slot is free.
type Slot = (u64, Option<Entry>);

const FREE: Slot = (0, None);

/// The fewest slots of a table, and the fewest it grows by.
const SLOTS_MIN: usize = 4;

/// The lone entries, at most one for each value of the keys' upper bits.
#[derive(Debug)]
pub(super) struct Lone {
    slots: BudgetedVec<Slot>,
    used: usize,
    /// Where the last search of the whole table ended: the next batch goes on there.
    resume: usize,
}

impl Lone {
    pub(super) fn new(budget: &Arc<Budget>) -> Lone {
        Lone { slots: BudgetedVec::new(budget), used: 0, resume: 0 }
    }

    /// Entries held.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// The slot of the entry with these upper bits.
    #[inline(never)]
    pub(super) fn find(&self, upper: u64) -> Option<usize> {
        if self.used == 0 {
            return None;
        }
        let mut number = self.home(upper);
        loop {
            let (key, entry) = self.slots[number];
            entry?;
            if key >> LEAF_BITS == upper {
                return Some(number);
            }
            number = self.after(number);
        }
    }

    /// The key and the entry in a slot that [`Lone::find`] found.
    pub(super) fn at(&self, number: usize) -> (PageKey, Entry) {
        let (key, entry) = self.slots[number];
        (PageKey(key), entry.expect("a slot in use"))
    }

    /// Puts another entry into a slot that [`Lone::find`] found; the one before.
    pub(super) fn replace(&mut self, number: usize, entry: Entry) -> Entry {
        self.slots[number].1.replace(entry).expect("a slot in use")
    }

    /// Adds an entry whose key's upper bits have none yet.
    ///
    /// # Errors
    ///
    /// [`GrowError`]; nothing was changed.
    pub(super) fn insert(&mut self, key: PageKey, entry: Entry) -> Result<(), GrowError> {
        let slots = self.slots.len();
        if self.used >= slots / 4 * 3 {
            self.move_to(slots + (slots / 4).max(SLOTS_MIN))?;
        }
        self.put(key.0, entry);
        self.used += 1;
        Ok(())
    }

    /// Removes the entry in a slot that [`Lone::find`] found.
    pub(super) fn remove(&mut self, number: usize) -> (PageKey, Entry) {
        let removed = self.free(number);
        self.shrink();
        removed
    }

    /// Removes entries with keys that are `wanted`, at most `max`, and hands each to `taken`; how
    /// many. The search goes through the whole table, from where the last one ended.
    pub(super) fn take_where(
        &mut self,
        wanted: impl Fn(PageKey) -> bool,
        max: usize,
        taken: Visit<'_>,
    ) -> usize {
        let (mut count, mut looks) = (0, 0);
        let mut number = if self.resume < self.slots.len() { self.resume } else { 0 };
        while count < max && looks < self.slots.len() {
            if self.slots[number].1.is_some() && wanted(PageKey(self.slots[number].0)) {
                // Another one may come into this slot.
                let (key, entry) = self.free(number);
                taken(key, entry);
                count += 1;
            } else {
                number = self.after(number);
                looks += 1;
            }
        }
        self.resume = number;
        self.shrink();
        count
    }

    /// The entries, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PageKey, Entry)> {
        self.slots.iter().filter_map(|&(key, entry)| Some((PageKey(key), entry?)))
    }

    /// The slot where a search begins. Mixed once, keys of some strides would crowd in a part of
    /// the table.
    #[inline]
    fn home(&self, upper: u64) -> usize {
        scale(mix(mix(upper)), self.slots.len())
    }

    #[inline]
    fn after(&self, number: usize) -> usize {
        if number + 1 == self.slots.len() { 0 } else { number + 1 }
    }

    /// Slots from one to another, forwards.
    fn distance(&self, from: usize, to: usize) -> usize {
        if from <= to { to - from } else { to + self.slots.len() - from }
    }

    /// Puts an entry into the first free slot from its home on.
    fn put(&mut self, key: u64, entry: Entry) {
        let mut number = self.home(key >> LEAF_BITS);
        while self.slots[number].1.is_some() {
            number = self.after(number);
        }
        self.slots[number] = (key, Some(entry));
    }

    /// Frees a slot, and moves entries behind it nearer to their homes, so that a search meets no
    /// free slot on its way.
    fn free(&mut self, number: usize) -> (PageKey, Entry) {
        let freed = self.at(number);
        let (mut gap, mut next) = (number, self.after(number));
        while self.slots[next].1.is_some() {
            let home = self.home(self.slots[next].0 >> LEAF_BITS);
            if self.distance(home, next) >= self.distance(gap, next) {
                self.slots[gap] = self.slots[next];
                gap = next;
            }
            next = self.after(next);
        }
        self.slots[gap] = FREE;
        self.used -= 1;
        freed
    }

    /// Moves the entries to a table of so many slots, more than there are entries.
    #[cold]
    fn move_to(&mut self, slots: usize) -> Result<(), GrowError> {
        let mut table = BudgetedVec::new(self.slots.budget());
        table.reserve_exact(slots)?;
        table.resize(slots, FREE);
        let before = std::mem::replace(&mut self.slots, table);
        for &(key, entry) in before.iter() {
            if let Some(entry) = entry {
                self.put(key, entry);
            }
        }
        // Homes are in the order of the hashes, whatever the number of slots.
        self.resume = 0;
        Ok(())
    }

    /// Gives memory back that is not needed any more. Where there is no room for both tables, the
    /// larger one stays until the next removal.
    fn shrink(&mut self) {
        let slots = self.slots.len();
        if self.used == 0 {
            self.slots.release();
        } else if slots > 2 * SLOTS_MIN && self.used < slots / 8 * 3 {
            let _ = self.move_to(self.used / 3 * 5 + SLOTS_MIN);
        }
    }

    /// Checks R4.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let used = self.iter().count();
        if used != self.used {
            return Err(format!("R4: {used} lone entries, {} counted", self.used).into());
        }
        if used > self.slots.len() / 4 * 3 {
            return Err(format!("R4: {used} lone entries in {} slots", self.slots.len()).into());
        }
        for (number, &(key, entry)) in self.slots.iter().enumerate() {
            if entry.is_some() && self.find(key >> LEAF_BITS) != Some(number) {
                return Err(
                    format!("R4: slot {number}: {key:#x} is not found, or is not alone").into()
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn entry(key: u64) -> Entry {
        Entry(NonZeroU64::MIN.saturating_add(key))
    }

    fn filled(keys: impl Iterator<Item = u64>) -> Lone {
        let mut lone = Lone::new(&Arc::default());
        for key in keys {
            lone.insert(PageKey(key), entry(key)).unwrap();
        }
        lone
    }

    #[test]
    fn a_search_is_short_whatever_the_stride() {
        const KEYS: u64 = 4000;
        let powers = (LEAF_BITS..=52).map(|bits| 1 << bits);
        let others = (LEAF_BITS..=38).flat_map(|bits| [3, 5, 7, 10946].map(|n| n << bits));
        for stride in powers.chain(others) {
            let lone = filled((0..KEYS).map(|n| u64::wrapping_mul(n, stride)));
            let far = |&(key, entry): &Slot| {
                entry.map(|_| {
                    let upper = key >> LEAF_BITS;
                    lone.distance(lone.home(upper), lone.find(upper).expect("held"))
                })
            };
            let sum: usize = lone.slots.iter().filter_map(far).sum();
            assert!(sum < 3 * KEYS as usize, "stride {stride:#x}: {sum} slots in vain");
        }
    }

    #[test]
    fn slots_in_use_stay_where_a_search_finds_them() {
        // Tables of any size, with homes that are shared and runs over the end.
        for keys in 1..40 {
            for gone in 0..keys {
                let key = |n: u64| (n * n * 7919) << LEAF_BITS | n;
                let mut lone = filled((0..keys).map(key));
                lone.audit().unwrap();
                let number = lone.find(key(gone) >> LEAF_BITS).unwrap();
                assert_eq!(lone.at(number), (PageKey(key(gone)), entry(key(gone))));
                assert_eq!(lone.replace(number, entry(7)), entry(key(gone)));
                assert_eq!(lone.remove(number), (PageKey(key(gone)), entry(7)));
                assert_eq!(lone.find(key(gone) >> LEAF_BITS), None);
                lone.audit().unwrap();
                assert_eq!(lone.used() as u64, keys - 1);
            }
        }
    }

    #[test]
    fn batches_go_on_where_the_one_before_ended_and_miss_nothing() {
        const KEYS: u64 = 1000;
        for start in [0, 1, 500, 1300, usize::MAX] {
            let mut lone = filled((0..KEYS).map(|n| n << 20));
            lone.resume = start;
            let (mut taken, mut looks) = (Vec::new(), 0);
            let wanted = |key: PageKey| key.0 >> 20 & 1 == 1;
            loop {
                let count = lone.take_where(wanted, 7, &mut |key, held| {
                    assert_eq!(held, entry(key.0));
                    taken.push(key.0);
                });
                lone.audit().unwrap();
                looks += 1;
                if count < 7 {
                    break;
                }
            }
            taken.sort_unstable();
            assert!(taken.into_iter().eq((0..KEYS).filter(|n| n & 1 == 1).map(|n| n << 20)));
            assert_eq!((looks, lone.used() as u64), (KEYS / 2 / 7 + 1, KEYS / 2));
            assert!(lone.iter().all(|(key, _)| !wanted(key)));
        }
        let mut lone = filled((0..KEYS).map(|n| n << 20));
        assert_eq!(lone.take_where(|_| true, 10, &mut |_, _| ()), 10);
        assert!(lone.resume > 0);
    }

    #[test]
    fn a_table_takes_27_bytes_an_entry_and_goes_back() {
        let mut lone = filled(0..0);
        assert_eq!(lone.bytes(), 0);
        let mut moves = 0;
        for n in 0..5000 {
            let before = lone.bytes();
            lone.insert(PageKey(n << 30), entry(n)).unwrap();
            moves += usize::from(lone.bytes() != before);
            let allowed = 27 * lone.used() + 2 * SLOTS_MIN * size_of::<Slot>();
            let least = lone.used() * size_of::<Slot>();
            assert!((least..=allowed).contains(&lone.bytes()), "{}: {}", lone.used(), lone.bytes());
        }
        assert!(moves < 40, "{moves} tables for 5000 entries: each grows by a quarter");
        for n in 0..5000 {
            lone.remove(lone.find(n << 30 >> LEAF_BITS).unwrap());
            let allowed = 43 * lone.used() + 3 * SLOTS_MIN * size_of::<Slot>();
            assert!(lone.bytes() <= allowed, "{} for {}", lone.bytes(), lone.used());
        }
        assert_eq!((lone.used(), lone.bytes()), (0, 0));
    }

    #[test]
    fn a_table_shrinks_however_many_entries_go_at_once() {
        for kept in [1, 2, 5, 20, 100, 200] {
            let mut lone = filled((0..1000).map(|n| n << 20));
            let wanted = |key: PageKey| key.0 >> 20 >= kept;
            assert_eq!(lone.take_where(wanted, usize::MAX, &mut |_, _| ()) as u64, 1000 - kept);
            lone.audit().unwrap();
            let allowed = 43 * lone.used() + 3 * SLOTS_MIN * size_of::<Slot>();
            assert!(lone.bytes() <= allowed, "{} for {kept}", lone.bytes());
        }
    }
}
