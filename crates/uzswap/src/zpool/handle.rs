//! Handles and the table behind them: names of objects that survive the object's moves.
//!
//! ```text
//!  handle   | 0: 13 | set: 8 | generation: 12 | cell number: 31 |
//!  cell             |          generation: 12 |    location: 40 |   in use
//!                   |          generation: 12 |   next free: 32 |   free, on the table's list
//! ```
//!
//! A pool rewrites the cell when it moves the object, as the kernel does. The generation, which the
//! kernel does not have, changes with every reuse of a cell: a removed handle differs from its
//! successors in that cell, up to the 2^12th. The upper 13 bits are left to who keeps a handle.

use std::fmt;
use std::sync::Arc;

use crate::AuditError;
use crate::budget::{Budget, GrowError};
use crate::budgeted_vec::BudgetedVec;

/// The opaque name of an object in a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(u64);

const CELL_BITS: u32 = 31;
const GENERATION_BITS: u32 = 12;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;
const SET_BITS: u32 = 8;

impl Handle {
    /// Bits that a handle has at most.
    pub const BITS: u32 = SET_BITS + GENERATION_BITS + CELL_BITS; // 51

    /// The handle with these bits; for callers that kept [`Handle::to_bits`].
    pub const fn from_bits(bits: u64) -> Handle {
        Handle(bits)
    }

    /// The handle as one word.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Which table it belongs to. zsmalloc's classes count from 0, packed's logs from 208, zblock's
    /// types from 216, and the others have one number each. A handle of one allocator is none of
    /// another's.
    pub(super) fn set(self) -> usize {
        (self.0 >> (GENERATION_BITS + CELL_BITS)) as usize
    }

    fn generation(self) -> u64 {
        (self.0 >> CELL_BITS) & GENERATION_MASK
    }

    /// The number of its cell in that table.
    pub(super) fn cell(self) -> u32 {
        self.0 as u32 & (CELLS_MAX as u32 - 1)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({:#018x})", self.0)
    }
}

/// Where an object is: 40 bits, read by the pool that wrote them.
pub(super) type Location = u64;

const LOCATION_BITS: u32 = 40;
const LOCATION_MASK: u64 = (1 << LOCATION_BITS) - 1;
/// Set in a free cell's location bits, clear in a used one's.
const FREE: u64 = 1 << (LOCATION_BITS - 1);
const NO_CELL: u32 = u32::MAX;

/// The most cells of a table. zsmalloc writes a cell's number and one bit more into 32 bits.
pub(super) const CELLS_MAX: usize = 1 << CELL_BITS;

/// Cells of 8 bytes, one an object.
#[derive(Debug)]
pub(super) struct HandleTable {
    set: u8,
    cells: BudgetedVec<u64>,
    free_head: u32,
    used: usize,
    /// The generation of a cell's first use: past those of cells that were given up.
    first_generation: u64,
}

impl HandleTable {
    /// An empty table whose handles carry `set`.
    pub(super) fn new(set: u8, budget: &Arc<Budget>) -> HandleTable {
        let cells = BudgetedVec::new(budget);
        HandleTable { set, cells, free_head: NO_CELL, used: 0, first_generation: 0 }
    }

    /// Objects named now.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Bytes of the table.
    pub(super) fn bytes(&self) -> usize {
        self.cells.bytes()
    }

    /// Makes sure that the next [`HandleTable::insert`] finds a cell.
    pub(super) fn reserve(&mut self) -> Result<(), GrowError> {
        if self.free_head == NO_CELL {
            self.cells.reserve_one(CELLS_MAX)?;
        }
        Ok(())
    }

    /// The handle the next [`HandleTable::insert`] will give.
    pub(super) fn next(&self) -> Handle {
        match self.free_head {
            NO_CELL => self.handle(self.cells.len() as u32, self.first_generation),
            cell => self.handle(cell, self.cells[cell as usize] >> LOCATION_BITS),
        }
    }

    /// Names the object at `location` (39 bits). Call [`HandleTable::reserve`] before.
    pub(super) fn insert(&mut self, location: Location) -> Handle {
        debug_assert!(location < FREE);
        let handle = self.next();
        let cell = handle.cell();
        if self.free_head == NO_CELL {
            debug_assert!((cell as usize) < CELLS_MAX);
            self.cells.push(handle.generation() << LOCATION_BITS | location);
        } else {
            self.free_head = self.cells[cell as usize] as u32;
            self.cells[cell as usize] = handle.generation() << LOCATION_BITS | location;
        }
        self.used += 1;
        handle
    }

    /// Where the object is, if the handle is one of ours and in use.
    #[inline]
    pub(super) fn get(&self, handle: Handle) -> Option<Location> {
        let value = *self.cells.get(handle.cell() as usize)?;
        let ours = handle.set() == usize::from(self.set);
        (ours && value >> LOCATION_BITS == handle.generation() && value & FREE == 0)
            .then_some(value & LOCATION_MASK)
    }

    /// Where every object is, in no order.
    pub(super) fn locations(&self) -> impl Iterator<Item = Location> {
        let used = self.cells.iter().filter(|value| **value & FREE == 0);
        used.map(|value| value & LOCATION_MASK)
    }

    /// The location in a cell that is known to be in use.
    pub(super) fn location_of_cell(&self, cell: u32) -> Option<Location> {
        let value = *self.cells.get(cell as usize)?;
        (value & FREE == 0).then_some(value & LOCATION_MASK)
    }

    /// The object of this cell has moved.
    pub(super) fn relocate(&mut self, cell: u32, location: Location) {
        debug_assert!(location < FREE);
        let value = &mut self.cells[cell as usize];
        debug_assert!(*value & FREE == 0);
        *value = *value & !LOCATION_MASK | location;
    }

    /// Forgets the handle; where its object was.
    pub(super) fn remove(&mut self, handle: Handle) -> Option<Location> {
        let location = self.get(handle)?;
        let generation = handle.generation().wrapping_add(1) & GENERATION_MASK;
        let cell = handle.cell();
        self.cells[cell as usize] = generation << LOCATION_BITS | FREE | u64::from(self.free_head);
        self.free_head = cell;
        self.used -= 1;
        Some(location)
    }

    /// Gives the table's memory back if it names nothing.
    pub(super) fn release_if_empty(&mut self) {
        if self.used == 0 {
            // The one that is furthest ahead; generations start again after the last.
            let first = self.first_generation;
            let ahead =
                |value: &u64| (value >> LOCATION_BITS).wrapping_sub(first) & GENERATION_MASK;
            let furthest = self.cells.iter().map(ahead).max().unwrap_or(0);
            self.first_generation = (first + furthest) & GENERATION_MASK;
            self.cells.release();
            self.free_head = NO_CELL;
        }
    }

    /// Checks the free list and the count of used cells.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let free = self.cells.iter().filter(|&&value| value & FREE != 0).count();
        let mut listed = 0;
        let mut cell = self.free_head;
        while cell != NO_CELL {
            let value =
                *self.cells.get(cell as usize).ok_or("free list leaves the handle table")?;
            if value & FREE == 0 {
                return Err(format!("free list reaches the used handle cell {cell}").into());
            }
            listed += 1;
            if listed > free {
                return Err("free list of the handle table has a cycle".into());
            }
            cell = value as u32;
        }
        if listed != free || self.used + free != self.cells.len() {
            return Err(format!(
                "handle table: {} cells, {} used, {free} free, {listed} on the free list",
                self.cells.len(),
                self.used
            )
            .into());
        }
        Ok(())
    }

    fn handle(&self, cell: u32, generation: u64) -> Handle {
        let upper = u64::from(self.set) << GENERATION_BITS | generation;
        Handle(upper << CELL_BITS | u64::from(cell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_handle_is_not_its_successor() {
        let mut table = HandleTable::new(7, &Arc::default());
        table.reserve().unwrap();
        let first = table.insert(5);
        assert_eq!((first.set(), table.get(first)), (7, Some(5)));
        table.relocate(first.cell(), 6);
        assert_eq!(table.remove(first), Some(6));
        assert_eq!((table.get(first), table.remove(first)), (None, None));
        table.reserve().unwrap();
        let second = table.insert(9);
        assert_eq!(second.cell(), first.cell());
        assert_eq!((table.get(first), table.get(second)), (None, Some(9)));
        assert_eq!(table.get(Handle::from_bits(second.to_bits() ^ 1 << 50)), None);
        table.audit().unwrap();
    }

    #[test]
    fn a_released_table_knows_its_old_handles_from_new_ones() {
        let mut table = HandleTable::new(0, &Arc::default());
        table.reserve().unwrap();
        let old = table.insert(1);
        table.release_if_empty();
        assert_eq!(table.get(old), Some(1));
        table.remove(old).unwrap();
        table.release_if_empty();
        assert_eq!((table.bytes(), table.get(old)), (0, None));
        table.reserve().unwrap();
        let new = table.insert(2);
        assert_eq!((table.get(old), table.get(new)), (None, Some(2)));
        table.audit().unwrap();
    }

    #[test]
    fn next_foretells_insert() {
        let mut table = HandleTable::new(0, &Arc::default());
        let mut held = Vec::new();
        for step in 0..100u64 {
            if step % 3 == 2 {
                table.remove(held.remove(step as usize % held.len())).unwrap();
            }
            table.reserve().unwrap();
            let next = table.next();
            held.push(table.insert(step));
            assert_eq!(held.last(), Some(&next));
        }
        assert_eq!(table.used(), held.len());
        table.audit().unwrap();
    }

    #[test]
    fn an_audit_tells_each_fault() {
        type Fault = (fn(&mut HandleTable), &'static str);
        let faults: [Fault; 5] = [
            (|table| table.free_head = 7, "free list leaves the handle table"),
            (|table| table.free_head = 0, "free list reaches the used handle cell 0"),
            (|table| table.cells[1] = FREE | 1, "free list of the handle table has a cycle"),
            (|table| table.free_head = NO_CELL, "2 cells, 1 used, 1 free, 0 on the free list"),
            (|table| table.used = 2, "2 cells, 2 used, 1 free, 1 on the free list"),
        ];
        for (plant, told) in faults {
            let mut table = HandleTable::new(0, &Arc::default());
            // As if this location were the end of a free list.
            let handles = [u64::from(NO_CELL), 5].map(|location| {
                table.reserve().unwrap();
                table.insert(location)
            });
            table.remove(handles[1]).unwrap();
            table.audit().unwrap();
            plant(&mut table);
            let error = table.audit().unwrap_err().to_string();
            assert!(error.contains(told), "no '{told}' in: {error}");
        }
    }
}
