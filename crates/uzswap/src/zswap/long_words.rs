//! Long words of same-filled pages, which do not fit into an index entry.

use std::sync::Arc;

use crate::budget::Budget;
use crate::budgeted_vec::BudgetedVec;
use crate::index::IndexError;

/// Ends the list of free slots.
const NONE: u32 = u32::MAX;

/// The most slots of a shard, 32 GiB of them: a number is less than [`NONE`].
const SLOTS_MAX: usize = NONE as usize;

/// Slots of one word each. Not shared with other pages of the same word: an entry owns its slot.
#[derive(Debug)]
pub(super) struct LongWords {
    /// A word, or of a free slot the number of the next one.
    slots: BudgetedVec<u64>,
    free_head: u32,
    used: usize,
}

impl LongWords {
    pub(super) fn new(budget: &Arc<Budget>) -> LongWords {
        LongWords { slots: BudgetedVec::new(budget), free_head: NONE, used: 0 }
    }

    /// Keeps a word; the number of its slot.
    pub(super) fn insert(&mut self, word: u64) -> Result<u32, IndexError> {
        let slot = self.free_head;
        if slot != NONE {
            self.free_head = std::mem::replace(&mut self.slots[slot as usize], word) as u32;
        } else {
            self.slots.reserve_one(SLOTS_MAX)?;
            self.slots.push(word);
        }
        self.used += 1;
        Ok(if slot == NONE { self.slots.len() as u32 - 1 } else { slot }) // < SLOTS_MAX
    }

    pub(super) fn get(&self, slot: u32) -> u64 {
        self.slots[slot as usize]
    }

    /// Frees a slot; the word it had.
    pub(super) fn remove(&mut self, slot: u32) -> u64 {
        let word = std::mem::replace(&mut self.slots[slot as usize], u64::from(self.free_head));
        self.free_head = slot;
        self.used -= 1;
        if self.used == 0 {
            self.slots.release();
            self.free_head = NONE;
        }
        word
    }

    /// LongWords held.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_given_back() {
        let mut words = LongWords::new(&Arc::default());
        let slots: Vec<u32> = (0..10).map(|word| words.insert(word << 40).unwrap()).collect();
        assert_eq!(slots, (0..10).collect::<Vec<u32>>());
        assert_eq!((words.remove(3), words.remove(7)), (3 << 40, 7 << 40));
        assert_eq!((words.insert(70).unwrap(), words.insert(30).unwrap()), (7, 3));
        assert_eq!(words.insert(100).unwrap(), 10);
        assert_eq!(
            (words.get(7), words.get(3), words.get(10), words.get(9)),
            (70, 30, 100, 9 << 40)
        );
        assert!(words.bytes() >= 11 * 8);
        assert_eq!((0..11).map(|slot| words.remove(slot)).count(), 11);
        assert_eq!((words.used(), words.bytes()), (0, 0));
    }
}
