//! Names of stored pages: each is a key of the store, and is shared by the address spaces that a
//! fork made of one.

use std::collections::BTreeMap;

use super::free_slots::FreeSlots;
use crate::locks::{Lock, SLOTS};
use crate::page_table::NUMBERS;
use crate::policy::shared_turns::Pages;
use uzswap::page::Page;

/// A slot since it was taken: another page may have the slot later, and never the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    slot: u32,
    taken_at: u32,
}

impl Version {
    pub(crate) fn slot(self) -> u32 {
        self.slot
    }
}

/// The slots. A slot is free while nobody names it.
#[derive(Debug)]
pub(crate) struct Slots(Lock<Inner, SLOTS>);

#[derive(Debug)]
struct Inner {
    /// Slots that are taken together at most.
    unit_pages: usize,
    /// By slot: how many pages it stands for.
    holders: Vec<u32>,
    /// By slot: how many were taken before.
    taken_at: Vec<u32>,
    /// How many were taken, modulo 2^32.
    taken: u32,
    free: FreeSlots,
    /// Pages that do not fit the pool, of slots that have none in the store.
    whole: BTreeMap<u32, Box<Page>>,
    /// Since the start. A page is a shared one if its slot had other holders.
    refaults: Pages,
}

impl Inner {
    /// Notes that a free slot is taken.
    fn note_taken(&mut self, slot: u32) {
        self.taken = self.taken.wrapping_add(1);
        self.holders[slot as usize] = 1;
        self.taken_at[slot as usize] = self.taken;
    }

    /// Makes one more group of slots; whether there are numbers left.
    fn grow(&mut self) -> bool {
        let first = self.holders.len();
        let end = first + self.unit_pages;
        let has_numbers = end <= NUMBERS as usize;
        if has_numbers {
            self.holders.resize(end, 0);
            self.taken_at.resize(end, 0);
            (first..end).for_each(|slot| self.free.add(slot as u32)); // < NUMBERS
        }
        has_numbers
    }

    fn holders_of(&mut self, slot: u32) -> &mut u32 {
        let holders = &mut self.holders[slot as usize];
        assert!(*holders > 0, "slot {slot} is used after its last page was released");
        holders
    }
}

impl Slots {
    /// No slots. Up to `unit_pages` of them, a power of two, are taken together.
    pub(crate) fn new(unit_pages: usize) -> Slots {
        Slots(Lock::new(Inner {
            unit_pages,
            holders: Vec::new(),
            taken_at: Vec::new(),
            taken: 0,
            free: FreeSlots::new(unit_pages),
            whole: BTreeMap::new(),
            refaults: Pages::default(),
        }))
    }

    /// A slot for one page; `None` where there are no more numbers.
    pub(crate) fn take(&self) -> Option<u32> {
        let mut inner = self.0.lock();
        let slot = match inner.free.take() {
            None => inner.grow().then(|| inner.free.take())?,
            slot => slot,
        };
        slot.inspect(|&slot| inner.note_taken(slot))
    }

    /// Adjacent slots of one unit, for as many pages, at most a unit's; the first of them.
    pub(crate) fn take_run(&self, pages: usize) -> Option<u32> {
        let mut inner = self.0.lock();
        let pages = pages as u32; // 16 at most
        let first = match inner.free.take_run(pages) {
            None => inner.grow().then(|| inner.free.take_run(pages))?,
            first => first,
        };
        first.inspect(|&first| (first..first + pages).for_each(|slot| inner.note_taken(slot)))
    }

    /// The version of a slot that stands for a page.
    pub(crate) fn version(&self, slot: u32) -> Version {
        Version { slot, taken_at: self.0.lock().taken_at[slot as usize] }
    }

    /// How many other slots were taken since this one was.
    pub(crate) fn taken_since(&self, slot: u32) -> u32 {
        let inner = self.0.lock();
        inner.taken.wrapping_sub(inner.taken_at[slot as usize])
    }

    /// One more page is this one.
    ///
    /// # Panics
    ///
    /// If the slot stands for no page.
    pub(crate) fn share(&self, slot: u32) {
        *self.0.lock().holders_of(slot) += 1;
    }

    /// A process touched a page of the slot soon after the eviction. The page is not released yet.
    pub(crate) fn note_refault(&self, slot: u32) {
        let mut inner = self.0.lock();
        match *inner.holders_of(slot) {
            1 => inner.refaults.exclusive += 1,
            _ => inner.refaults.shared += 1,
        }
    }

    /// Refaults since the start.
    pub(crate) fn refaults(&self) -> Pages {
        self.0.lock().refaults
    }

    /// A page is not this one any more. Whether it was the last: the caller must remove the key and
    /// then [`Slots::free`] the slot.
    ///
    /// # Panics
    ///
    /// If the slot stands for no page: the next page of this slot would be taken for another.
    pub(crate) fn release(&self, slot: u32) -> bool {
        let mut inner = self.0.lock();
        let holders = inner.holders_of(slot);
        *holders -= 1;
        *holders == 0
    }

    /// The slot may stand for another page.
    ///
    /// # Panics
    ///
    /// If it stands for a page.
    pub(crate) fn free(&self, slot: u32) {
        let mut inner = self.0.lock();
        let holders = inner.holders[slot as usize];
        assert!(holders == 0, "slot {slot} is freed while {holders} pages name it");
        inner.free.add(slot);
        inner.whole.remove(&slot);
    }

    /// Keeps a page here that does not fit the pool, until its slot is free.
    pub(crate) fn keep_whole(&self, slot: u32, page: &Page) {
        self.0.lock().whole.insert(slot, Box::new(*page));
    }

    /// Reads a page that is kept here; `false` where the slot has none.
    pub(crate) fn read_whole(&self, slot: u32, page: &mut Page) -> bool {
        let inner = self.0.lock();
        let whole = inner.whole.get(&slot);
        whole.inspect(|whole| page.copy_from_slice(&whole[..])).is_some()
    }

    /// Slots there are, whether they stand for a page or not.
    pub(crate) fn count(&self) -> u32 {
        self.0.lock().holders.len() as u32 // at most NUMBERS
    }

    /// Slots that stand for a page.
    pub(crate) fn used(&self) -> usize {
        let inner = self.0.lock();
        inner.holders.len() - inner.free.count()
    }

    /// The slots, in words, whose count is not the number of pages that name them, or that are not
    /// free exactly if the count is 0. The count may be higher if a reader `else_holds` slots.
    pub(crate) fn wrong(&self, named: Vec<u32>, else_holds: bool) -> Vec<String> {
        let inner = self.0.lock();
        let count = |slots: &[u32]| {
            let mut counts = vec![0_u32; inner.holders.len()];
            for &slot in slots {
                let at = slot as usize;
                counts.resize(counts.len().max(at + 1), 0);
                counts[at] += 1;
            }
            counts
        };
        let (names, frees) = (count(&named), count(&inner.free.all()));
        let mut wrong = Vec::new();
        for (slot, &names) in names.iter().enumerate() {
            let of = |all: &[u32]| all.get(slot).copied().unwrap_or(0);
            let (holders, frees) = (of(&inner.holders), of(&frees));
            let is_right = names == holders || else_holds && names < holders;
            if !is_right || frees != u32::from(holders == 0) {
                wrong.push(format!(
                    "slot {slot}, taken as number {}, is named by {names} pages, counts {holders}, \
                     and is free {frees} times",
                    of(&inner.taken_at)
                ));
            }
        }
        wrong
    }

    /// Memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let inner = self.0.lock();
        (inner.holders.capacity() + inner.taken_at.capacity()) * size_of::<u32>()
            + inner.free.bytes()
            + inner.whole.len() * size_of::<Page>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_counted_and_know_how_many_were_taken_since() {
        let slots = Slots::new(1);
        let taken: Vec<u32> = (0..5).map(|_| slots.take().unwrap()).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4]);
        assert_eq!(
            taken.iter().map(|&slot| slots.taken_since(slot)).collect::<Vec<_>>(),
            [4, 3, 2, 1, 0]
        );
        assert_eq!((slots.count(), slots.used()), (5, 5));
        assert!(slots.release(1));
        slots.free(1);
        assert_eq!((slots.count(), slots.used()), (5, 4));
        // The same number again is another one.
        assert_eq!(slots.take(), Some(1));
        assert_eq!([0, 1, 4].map(|slot| slots.taken_since(slot)), [5, 0, 1]);
        assert_eq!((slots.count(), slots.used()), (5, 5));
        let bytes = {
            let Inner { holders, taken_at, free, .. } = &*slots.0.lock();
            (holders.capacity() + taken_at.capacity()) * size_of::<u32>() + free.bytes()
        };
        assert_eq!(slots.bytes(), bytes);
    }

    #[test]
    fn a_slot_counts_the_pages_that_name_it_and_is_free_without() {
        let slots = Slots::new(1);
        [0, 1].into_iter().for_each(|slot| assert_eq!(slots.take(), Some(slot)));
        slots.share(1);
        let wrong = |named: &[u32], else_holds| slots.wrong(named.to_vec(), else_holds);
        assert!(wrong(&[0, 1, 1], false).is_empty());
        assert_eq!((wrong(&[0, 1], false).len(), wrong(&[0, 1], true).len()), (1, 0));
        assert_eq!(wrong(&[0, 0, 1, 1], true).len(), 1, "no reader takes a name away");
        assert!(wrong(&[0, 1, 1, 2], false)[0].starts_with("slot 2, "), "nobody has taken it");
        assert!(slots.release(0));
        assert_eq!(wrong(&[1, 1], false).len(), 1, "it is not free yet");
        slots.free(0);
        assert!(wrong(&[1, 1], false).is_empty());
        slots.free(0);
        let text = "slot 0, taken as number 1, is named by 0 pages, counts 0, and is free 2 times";
        assert_eq!(wrong(&[1, 1], false), [text]);
    }

    #[test]
    fn refaults_are_counted_by_whether_another_page_has_the_slot() {
        let slots = Slots::new(1);
        let slot = slots.take().unwrap();
        slots.share(slot);
        slots.note_refault(slot);
        slots.release(slot);
        (0..2).for_each(|_| slots.note_refault(slot));
        assert_eq!(slots.refaults(), Pages { exclusive: 2, shared: 1 });
    }

    #[test]
    fn a_slot_without_pages_is_neither_shared_nor_released_and_one_with_pages_is_not_freed() {
        let slots = Slots::new(1);
        let slot = slots.take().unwrap();
        let panics = |use_slot: &dyn Fn(&Slots)| {
            let use_it = std::panic::AssertUnwindSafe(|| use_slot(&slots));
            std::panic::catch_unwind(use_it).is_err()
        };
        assert!(panics(&|slots| slots.free(slot)));
        assert!(slots.release(slot));
        assert!(panics(&|slots| assert!(!slots.release(slot))));
        assert!(panics(&|slots| slots.share(slot)));
    }

    #[test]
    fn a_whole_page_is_kept_until_nobody_has_its_slot() {
        let slots = Slots::new(1);
        let slot = slots.take().unwrap();
        let mut page = [0; size_of::<Page>()];
        assert!(!slots.read_whole(slot, &mut page));
        let bytes = slots.bytes();
        slots.keep_whole(slot, &[7; size_of::<Page>()]);
        assert_eq!(slots.bytes(), bytes + size_of::<Page>());
        slots.share(slot);
        assert!(!slots.release(slot));
        assert!(slots.read_whole(slot, &mut page) && page == [7; size_of::<Page>()]);
        assert!(slots.release(slot));
        slots.free(slot);
        assert_eq!(slots.take(), Some(slot));
        assert!(!slots.read_whole(slot, &mut page));
    }
}
