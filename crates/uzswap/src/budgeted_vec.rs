//! Vectors that grow under a budget, for handles, descriptors, words and nodes.
//!
//! While a table moves to a larger place, both places are charged.

use std::collections::TryReserveError;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::budget::{Budget, GrowError};

/// A vector whose memory is charged to a budget as metadata, before it is taken and until it has
/// been freed. The caller makes it grow, by a quarter each time, so it is never half empty.
#[derive(Debug)]
pub struct BudgetedVec<T> {
    elements: Vec<T>,
    budget: Arc<Budget>,
}

impl<T> BudgetedVec<T> {
    /// An empty table, without memory.
    pub fn new(budget: &Arc<Budget>) -> BudgetedVec<T> {
        BudgetedVec { elements: Vec::new(), budget: Arc::clone(budget) }
    }

    /// The budget that it is charged to.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Bytes of memory it has: what is charged for it.
    pub fn bytes(&self) -> usize {
        self.elements.capacity() * size_of::<T>()
    }

    /// Elements it has memory for.
    pub fn capacity(&self) -> usize {
        self.elements.capacity()
    }

    /// Makes room for one more element, of at most `max`; by a quarter of what there is where it
    /// has to grow.
    ///
    /// # Errors
    ///
    /// [`GrowError`]; the table is as it was.
    #[inline]
    pub fn reserve_one(&mut self, max: usize) -> Result<(), GrowError> {
        if self.elements.len() < self.elements.capacity() && self.elements.len() < max {
            return Ok(());
        }
        self.reserve(1, max)
    }

    /// Makes room for `count` more elements, of at most `max` together.
    ///
    /// # Errors
    ///
    /// [`GrowError`]; the table is as it was.
    #[cold]
    pub fn reserve(&mut self, count: usize, max: usize) -> Result<(), GrowError> {
        let len = self.elements.len();
        if max.saturating_sub(len) < count {
            return Err(GrowError::Full { max });
        }
        if self.elements.capacity() - len >= count {
            return Ok(());
        }
        self.resize_memory(len + (len / 4).max(4).max(count))
    }

    /// Makes room for exactly `count` more elements.
    ///
    /// # Errors
    ///
    /// [`GrowError`]; the table is as it was.
    pub fn reserve_exact(&mut self, count: usize) -> Result<(), GrowError> {
        let len = self.elements.len();
        if self.elements.capacity() - len >= count {
            return Ok(());
        }
        self.resize_memory(len.checked_add(count).ok_or(GrowError::Full { max: usize::MAX })?)
    }

    /// Appends an element, for which there must be room.
    #[inline]
    pub fn push(&mut self, element: T) {
        assert!(self.elements.len() < self.elements.capacity(), "a table grows by its reserve");
        self.elements.push(element);
    }

    /// Appends clones of `element`, for which there must be room, up to `len` elements; or removes
    /// the last ones.
    pub fn resize(&mut self, len: usize, element: T)
    where
        T: Clone,
    {
        assert!(len <= self.elements.capacity(), "a table grows by its reserve");
        self.elements.resize(len, element);
    }

    /// Removes the last element.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.elements.pop()
    }

    /// Removes an element; the last one takes its place.
    ///
    /// # Panics
    ///
    /// If there is none at `place`.
    pub fn swap_remove(&mut self, place: usize) -> T {
        self.elements.swap_remove(place)
    }

    /// Removes the elements from `len` on. The memory stays.
    pub fn truncate(&mut self, len: usize) {
        self.elements.truncate(len);
    }

    /// Removes the elements from `start` on, and hands them out. The memory stays.
    pub fn drain_from(&mut self, start: usize) -> impl Iterator<Item = T> {
        self.elements.drain(start..)
    }

    /// Moves to a place for the elements and `spare` more, if that is smaller. Where the heap or
    /// the budget has no room for both, the table stays where it is.
    pub fn shrink(&mut self, spare: usize) {
        let capacity = self.elements.len() + spare;
        if capacity < self.elements.capacity() {
            let _ = self.resize_memory(capacity);
        }
    }

    /// Removes every element and frees the memory.
    pub fn release(&mut self) {
        let bytes = self.bytes();
        self.elements = Vec::new();
        self.budget.uncharge_metadata(bytes as u64);
    }

    /// Moves to a place for `capacity` elements, at least as many as there are.
    fn resize_memory(&mut self, capacity: usize) -> Result<(), GrowError> {
        let no_memory = |bytes| GrowError::NoMemory { bytes: bytes as u64 };
        let bytes = capacity.checked_mul(size_of::<T>()).ok_or(no_memory(usize::MAX))?;
        let old_bytes = self.bytes();
        self.budget.charge_metadata(bytes as u64)?;
        if self.move_to(capacity).is_err() {
            self.budget.uncharge_metadata(bytes as u64);
            return Err(no_memory(bytes));
        }
        debug_assert_eq!(self.bytes(), bytes);
        self.budget.uncharge_metadata(old_bytes as u64);
        Ok(())
    }

    fn move_to(&mut self, capacity: usize) -> Result<(), TryReserveError> {
        if capacity > self.elements.capacity() {
            return self.elements.try_reserve_exact(capacity - self.elements.len());
        }
        // A vector shrinks by itself only where the heap cannot fail.
        let mut elements = Vec::new();
        elements.try_reserve_exact(capacity)?;
        elements.append(&mut self.elements);
        self.elements = elements;
        Ok(())
    }
}

impl<T> Drop for BudgetedVec<T> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<T> Deref for BudgetedVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.elements
    }
}

impl<T> DerefMut for BudgetedVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.elements
    }
}
