//! Names of stored pages: each is a key of the store, and is shared by the address spaces that a
//! fork made of one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::table::NUMBERS;
use crate::page::PageKey;

/// The slots. A slot is free while nobody names it.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// By slot: how many pages it stands for.
    holders: Vec<u32>,
    /// By slot: how many were taken before.
    taken_at: Vec<u32>,
    /// How many were taken, modulo 2^32.
    taken: u32,
    free: Vec<u32>,
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for one page; `None` where there are no more numbers.
    pub(super) fn take(&self) -> Option<u32> {
        let mut inner = self.lock();
        inner.taken = inner.taken.wrapping_add(1);
        let taken = inner.taken;
        if let Some(slot) = inner.free.pop() {
            inner.holders[slot as usize] = 1;
            inner.taken_at[slot as usize] = taken;
            return Some(slot);
        }
        let slot = u32::try_from(inner.holders.len()).ok().filter(|&slot| slot < NUMBERS)?;
        inner.holders.push(1);
        inner.taken_at.push(taken);
        Some(slot)
    }

    /// How many other slots were taken since this one was.
    pub(super) fn taken_since(&self, slot: u32) -> u32 {
        let inner = self.lock();
        inner.taken.wrapping_sub(inner.taken_at[slot as usize])
    }

    /// One more page is this one.
    pub(super) fn share(&self, slot: u32) {
        self.lock().holders[slot as usize] += 1;
    }

    /// A page is not this one any more. Whether it was the last: the caller must remove the key and
    /// then [`Slots::free`] the slot.
    pub(super) fn release(&self, slot: u32) -> bool {
        let mut inner = self.lock();
        let holders = &mut inner.holders[slot as usize];
        *holders -= 1;
        *holders == 0
    }

    /// The slot may stand for another page.
    pub(super) fn free(&self, slot: u32) {
        self.lock().free.push(slot);
    }

    /// Slots there are, whether they stand for a page or not.
    pub(super) fn count(&self) -> u32 {
        self.lock().holders.len() as u32 // at most NUMBERS
    }

    /// Slots that stand for a page.
    pub(super) fn used(&self) -> usize {
        let inner = self.lock();
        inner.holders.len() - inner.free.len()
    }

    /// Memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let inner = self.lock();
        (inner.holders.capacity() + inner.taken_at.capacity() + inner.free.capacity())
            * size_of::<u32>()
    }
}

/// The key of a slot.
pub(super) fn key(slot: u32) -> PageKey {
    PageKey(u64::from(slot))
}
