//! Objects in blocks: equal slots in 1 to 8 adjacent host pages, of one of 37 types.
//!
//! ```text
//!  0        48                                             pages * 4096
//!  | header | slot 0 | slot 1 | slot 2 | ...         | rest |
//!
//!  list of a type    head <-> block <-> ... <-> tail    blocks with a free slot
//!                     |-- objects go here, new blocks too      '-- full ones, once a slot is free
//! ```
//!
//! The kernel never had this allocator: v4 of April 2025 was not merged. Types, lists and the
//! choice of a block are those of v4, by reading, so the same calls should give as many blocks. Two
//! of its properties show in the sizes:
//!
//! - an object is shorter than its slot: one of exactly the slot's bytes goes one type up;
//! - the largest slot has 4080 bytes. The original takes an object of 4080 bytes and looks for its
//!   type past the table; here it is refused.
//!
//! The description of a block is in a table of its type, not in the block's first 48 bytes. These
//! bytes stay unused, so a block has the same capacity as there. Nothing ever moves: a block goes
//! back when its last object does. Each type has a lock, and a handle says which type it is.
//!
//! - K1: a slot's bit is set if and only if the slot holds an object. One handle names each of
//!   these slots, and every handle names one of them.
//! - K2: a block with a free slot is on the list of its type once, a full one is not; no block is
//!   empty.
//! - K3: every entry of the table has the pages of its type or is on the vacant list.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::arena::Arena;
use super::handle::{HandleTable, Location};
use super::lock::{PoolLock, PoolPart};
use super::table::{Entry, EntryId, NONE, Table};
use super::zsmalloc::{ClassStats, FULLNESS_GROUPS, SizeClass, fullness_group};
use super::{Handle, UnknownHandle, Zpool, ZpoolError, ZpoolStats, check_object};
use crate::AuditError;
use crate::budget::{Budget, GrowError};
use crate::page::PAGE_SIZE;
use uzswap_sys::pages::PageRun;

/// Types of blocks.
const TYPE_COUNT: usize = 37;

/// Bytes of a block before its first slot: the original has a bitmap, links and counts there.
const HEADER_BYTES: usize = 48;

/// Slots are multiples of this.
const SLOT_STEP: usize = 8;

/// Slots and host pages of a block, by ascending size of the slots: the table of v4.
#[rustfmt::skip]
const SLOTS_AND_PAGES: [(usize, usize); TYPE_COUNT] = [
    (28, 1), (18, 1), (12, 1), (10, 1), (17, 2), (15, 2), (13, 2), (6, 1), (11, 2), (5, 1),
    (19, 4), (9, 2), (17, 4), (4, 1), (23, 6), (11, 3), (7, 2), (10, 3), (19, 6), (6, 2),
    (14, 5), (8, 3), (5, 2), (12, 5), (9, 4), (15, 7), (2, 1), (15, 8), (9, 5), (12, 7),
    (13, 8), (6, 4), (11, 8), (9, 7), (6, 5), (9, 8), (4, 4),
];

/// The types of blocks, smallest slots first; slots have 144 to 4080 bytes.
pub const TYPES: [SizeClass; TYPE_COUNT] = {
    let mut types = [SizeClass { index: 0, slot_bytes: 0, pages: 0, slots: 0 }; TYPE_COUNT];
    let mut index = 0;
    while index < TYPE_COUNT {
        let (slots, pages) = SLOTS_AND_PAGES[index];
        let bytes = (pages * PAGE_SIZE - HEADER_BYTES) / slots;
        types[index] = SizeClass { index, slot_bytes: bytes / SLOT_STEP * SLOT_STEP, pages, slots };
        index += 1;
    }
    types
};

/// The largest object, in bytes.
pub const OBJECT_BYTES_MAX: usize = TYPES[TYPE_COUNT - 1].slot_bytes - 1; // 4079

/// Place in [`TYPES`] of the type of an object of `bytes` (1 to [`OBJECT_BYTES_MAX`]).
#[inline]
pub fn place_of(bytes: usize) -> usize {
    TYPES.partition_point(|it| it.slot_bytes <= bytes)
}

/// Mark of the first type's handles, and the others follow: no size class of zsmalloc has them.
const HANDLE_SET: u8 = 216;

/// Number of a block in its type's table.
type BlockId = EntryId;

/// The most blocks of a type: a location has 31 bits for the number.
const BLOCKS_MAX: usize = 1 << 31;

/// One block, and a bit for each slot in use; 32 bytes.
type Block = Entry<PageRun, u64>;

const _: () = assert!(size_of::<Block>() == 32);

/// All blocks of one type: everything that its lock protects.
#[derive(Debug)]
struct Blocks {
    shape: SizeClass,
    handles: HandleTable,
    /// Its list is of the blocks with a free slot.
    table: Table<PageRun, u64, 1>,
    /// The end of the list.
    tail: BlockId,
}

/// The allocator of blocks.
#[derive(Debug)]
pub(super) struct Zblock {
    arena: Arc<Arena>,
    types: Box<[PoolLock<Blocks>]>,
    /// Host pages of all types. The types are locked one by one: the sum of their blocks, read
    /// while others store and free, may count pages that were never there at once.
    pool_pages: AtomicUsize,
}

impl Zblock {
    /// An empty pool.
    pub(super) fn new(arena: Arc<Arena>) -> Zblock {
        let blocks = |shape| PoolLock::new(Blocks::new(shape, arena.budget()));
        Zblock { types: TYPES.map(blocks).into(), pool_pages: AtomicUsize::new(0), arena }
    }

    fn blocks_of(&self, handle: Handle) -> Result<&PoolLock<Blocks>, UnknownHandle> {
        let place = handle.set().checked_sub(usize::from(HANDLE_SET));
        place.and_then(|place| self.types.get(place)).ok_or(UnknownHandle(handle))
    }
}

impl Zpool for Zblock {
    fn name(&self) -> &'static str {
        "zblock"
    }

    fn object_size_max(&self) -> usize {
        OBJECT_BYTES_MAX
    }

    fn insert(&self, object: &[u8]) -> Result<Handle, ZpoolError> {
        check_object(self.name(), object.len(), OBJECT_BYTES_MAX)?;
        let lock = &self.types[place_of(object.len())];
        let mut blocks = lock.write_reserved()?;
        if blocks.table.heads[0] != NONE {
            return Ok(blocks.place(object));
        }
        let pages = blocks.shape.pages;
        drop(blocks);
        let (mut blocks, run) =
            lock.write_with(self.arena.alloc(pages)?, |run| self.arena.free(run))?;
        self.pool_pages.fetch_add(pages, Ordering::Relaxed);
        blocks.add(run);
        Ok(blocks.place(object))
    }

    fn read(&self, handle: Handle, reader: &mut dyn FnMut(&[u8])) -> Result<(), UnknownHandle> {
        let blocks = self.blocks_of(handle)?.read();
        let (id, slot) = block_and_slot(blocks.handles.get(handle).ok_or(UnknownHandle(handle))?);
        let start = blocks.start(slot);
        reader(&blocks.table.pages(id)[start..start + blocks.shape.slot_bytes]);
        Ok(())
    }

    fn remove(&self, handle: Handle) -> Result<(), UnknownHandle> {
        let emptied = self.blocks_of(handle)?.write().remove(handle);
        if let Some(run) = emptied.ok_or(UnknownHandle(handle))? {
            self.pool_pages.fetch_sub(run.page_count(), Ordering::Relaxed);
            self.arena.free(run);
        }
        Ok(())
    }

    /// Nothing ever moves.
    fn compact(&self) -> usize {
        self.types.iter().for_each(|lock| lock.write().release_if_empty());
        0
    }

    fn stats(&self) -> ZpoolStats {
        let mut stats = ZpoolStats {
            pool_pages: self.pool_pages.load(Ordering::Relaxed),
            metadata_bytes: size_of::<Self>() + size_of_val(&self.types[..]),
            ..ZpoolStats::default()
        };
        for lock in &self.types {
            let blocks = lock.read();
            stats.objects += blocks.handles.used();
            stats.metadata_bytes += blocks.handles.bytes() + blocks.table.heap_bytes();
        }
        stats
    }

    fn class_stats(&self) -> Vec<ClassStats> {
        self.types.iter().rev().map(|lock| lock.read().stats()).collect()
    }

    fn audit(&self) -> Result<(), AuditError> {
        let mut pages = 0;
        for lock in &self.types {
            let blocks = lock.read();
            let shape = &blocks.shape;
            blocks.audit().map_err(|error| format!("type {}: {error}", shape.slot_bytes))?;
            pages += blocks.table.used() * shape.pages;
        }
        let counted = self.pool_pages.load(Ordering::Relaxed);
        if pages != counted {
            return Err(format!("blocks own {pages} host pages, {counted} are counted").into());
        }
        Ok(())
    }
}

impl Drop for Zblock {
    fn drop(&mut self) {
        // The arena may outlive the pool; its count of used pages must not.
        for lock in &self.types {
            for run in lock.write().table.take_all() {
                self.arena.free(run);
            }
        }
    }
}

impl PoolPart for Blocks {
    fn reserve(&mut self) -> Result<(), GrowError> {
        self.handles.reserve()?;
        self.table.reserve(BLOCKS_MAX).map(drop)
    }
}

impl Blocks {
    fn new(shape: SizeClass, budget: &Arc<Budget>) -> Blocks {
        Blocks {
            shape,
            handles: HandleTable::new(HANDLE_SET + shape.index as u8, budget), // below 253
            table: Table::new(budget),
            tail: NONE,
        }
    }

    /// The bits of a full block.
    fn full(&self) -> u64 {
        u64::MAX >> (u64::BITS as usize - self.shape.slots)
    }

    /// Offset of a slot in its block.
    fn start(&self, slot: u32) -> usize {
        HEADER_BYTES + slot as usize * self.shape.slot_bytes
    }

    /// Makes a block of `run`, at the head of the list.
    fn add(&mut self, run: PageRun) {
        debug_assert_eq!(run.page_count(), self.shape.pages);
        let id = self.table.add(run, 0);
        self.table.link(0, id);
        if self.tail == NONE {
            self.tail = id;
        }
    }

    /// Copies `object` to the first free slot of the block at the head, which is there.
    fn place(&mut self, object: &[u8]) -> Handle {
        let id = self.table.heads[0];
        let full = self.full();
        let used = &mut self.table[id];
        let slot = used.trailing_ones();
        *used |= 1 << slot;
        if *used == full {
            self.unlink(id);
        }
        let start = self.start(slot);
        self.table.pages_mut(id)[start..start + object.len()].copy_from_slice(object);
        self.handles.insert(location(id, slot))
    }

    /// Frees an object. The pages of the block that it leaves empty, if any; `None` for an unknown
    /// handle.
    fn remove(&mut self, handle: Handle) -> Option<Option<PageRun>> {
        let (id, slot) = block_and_slot(self.handles.remove(handle)?);
        let full = self.full();
        let used = &mut self.table[id];
        let was_full = *used == full;
        *used &= !(1 << slot);
        if was_full {
            // Each type has two slots or more: it is not empty yet.
            self.append(id);
        } else if *used == 0 {
            self.unlink(id);
            return Some(Some(self.table.take(id)));
        }
        Some(None)
    }

    /// Puts a block that is not on the list at its tail.
    fn append(&mut self, id: BlockId) {
        let tail = std::mem::replace(&mut self.tail, id);
        let block = self.table.entry_mut(id);
        (block.previous, block.next) = (tail, NONE);
        match tail {
            NONE => self.table.heads[0] = id,
            tail => self.table.entry_mut(tail).next = id,
        }
    }

    /// Takes a block off the list.
    fn unlink(&mut self, id: BlockId) {
        if self.tail == id {
            self.tail = self.table.entry(id).previous;
        }
        self.table.unlink(0, id);
    }

    /// Gives the tables' memory back if there is no block.
    fn release_if_empty(&mut self) {
        self.handles.release_if_empty();
        self.table.release_if_empty();
    }

    fn stats(&self) -> ClassStats {
        let SizeClass { pages, slots, .. } = self.shape;
        let mut group_zspages = [0; FULLNESS_GROUPS];
        for (_, _, used) in self.table.iter() {
            group_zspages[fullness_group(used.count_ones() as usize, slots)] += 1;
        }
        ClassStats {
            class: self.shape,
            group_zspages,
            slots_allocated: self.table.used() * slots,
            slots_used: self.handles.used(),
            pool_pages: self.table.used() * pages,
            freeable_pages: 0, // nothing ever moves
        }
    }

    /// Checks K1 to K3.
    fn audit(&self) -> Result<(), AuditError> {
        self.handles.audit()?;
        let mut named = vec![0u64; self.table.id_end() as usize];
        for location in self.handles.locations() {
            let (id, slot) = block_and_slot(location);
            match named.get_mut(id as usize) {
                Some(slots) if *slots >> slot & 1 == 0 => *slots |= 1 << slot,
                _ => return Err(format!("K1: slot {slot} of block {id} is named wrongly").into()),
            }
        }
        let mut open = 0;
        for (id, run, &used) in self.table.iter() {
            let named = std::mem::take(&mut named[id as usize]);
            if named != used {
                return Err(format!("K1: block {id} has slots {used:#x}, named {named:#x}").into());
            }
            if run.page_count() != self.shape.pages {
                let (pages, wanted) = (run.page_count(), self.shape.pages);
                return Err(format!("K3: block {id} has {pages} pages, its type {wanted}").into());
            }
            if used == 0 || used & !self.full() != 0 {
                return Err(format!("K2: block {id} has slots {used:#x}").into());
            }
            open += usize::from(used != self.full());
        }
        if let Some(id) = named.iter().position(|&named| named != 0) {
            return Err(format!("K1: block {id} has no pages, and is named").into());
        }
        self.table.audit().map_err(|error| format!("K3: {error}"))?;
        let walked = self.table.audit_list(0, |&used| used != self.full());
        let (listed, last) = walked.map_err(|error| format!("K2: {error}"))?;
        if listed != open || self.tail != last {
            let tail = self.tail;
            return Err(format!("K2: {listed} of {open} blocks listed, tail {tail}").into());
        }
        Ok(())
    }
}

/// A location: block number (31 bits), slot (6 bits).
fn location(id: BlockId, slot: u32) -> Location {
    debug_assert!(slot < 64 && (id as usize) < BLOCKS_MAX);
    u64::from(id) << 6 | u64::from(slot)
}

fn block_and_slot(location: Location) -> (BlockId, u32) {
    ((location >> 6) as u32, (location & 0x3f) as u32)
}

#[cfg(test)]
mod tests {
    use super::super::packed;
    use super::super::zsmalloc::{
        CHAIN_SIZE_MAX, CHAIN_SIZE_MIN, ChainRule, ClassTable, HandleHeader, ZsmallocOptions,
    };
    use super::*;

    fn pool() -> Zblock {
        Zblock::new(Arc::new(Arena::new()))
    }

    #[test]
    fn slots_have_the_published_sizes() {
        let sizes = TYPES.map(|it| it.slot_bytes);
        assert!(sizes.is_sorted_by(|a, b| a < b));
        assert_eq!(sizes[..4], [144, 224, 336, 400]);
        let above_half = [2024, 2176, 2264, 2384, 2512, 2720, 2968, 3176, 3400, 3632, 4080];
        assert_eq!(sizes[TYPE_COUNT - above_half.len()..], above_half);
        for it in TYPES {
            assert!(HEADER_BYTES + it.slots * it.slot_bytes <= it.pages * PAGE_SIZE);
            assert!((2..=64).contains(&it.slots) && (1..=8).contains(&it.pages));
        }
    }

    #[test]
    fn an_object_of_a_whole_slot_goes_one_type_up() {
        let slot_of = |bytes| TYPES[place_of(bytes)].slot_bytes;
        assert_eq!([1, 143, 144, 2023, 2024].map(slot_of), [144, 144, 224, 2024, 2176]);
        let pool = pool();
        assert!(matches!(pool.insert(&[7; 4080]), Err(ZpoolError::TooBig { max: 4079, .. })));
        let handle = pool.insert(&[7; 4079]).unwrap();
        pool.read(handle, &mut |slot| assert_eq!(slot.len(), 4080)).unwrap();
    }

    #[test]
    fn no_class_of_zsmalloc_has_a_handle_of_a_log_or_a_type() {
        for chain_size in CHAIN_SIZE_MIN..=CHAIN_SIZE_MAX {
            for (rule, header) in ChainRule::ALL.into_iter().zip(HandleHeader::ALL) {
                let options = ZsmallocOptions::default().chain_size(chain_size).chain_rule(rule);
                let table = ClassTable::new(options.handle_header(header));
                assert!(table.classes().len() <= usize::from(packed::HANDLE_SET));
            }
        }
    }

    /// Three blocks of two slots: a full one is on no list, and comes last when a slot is free.
    #[test]
    fn objects_go_to_the_head_and_full_blocks_return_to_the_tail() {
        let pool = pool();
        let handles = Vec::from_iter((0..6).map(|_| pool.insert(&[7; 2000]).unwrap()));
        let lock = &pool.types[place_of(2000)];
        assert_eq!((lock.read().table.heads[0], lock.read().tail), (NONE, NONE));
        for freed in [2, 0, 5] {
            pool.remove(handles[freed]).unwrap();
        }
        for block in [1, 0, 2] {
            assert_eq!(lock.read().table.heads[0], block);
            let handle = pool.insert(&[7; 2000]).unwrap();
            assert_eq!(block_and_slot(lock.read().handles.get(handle).unwrap()).0, block);
            pool.audit().unwrap();
        }
        assert_eq!(pool.stats().pool_pages, 3);
    }

    #[test]
    fn a_new_block_goes_to_the_head() {
        let arena = Arena::new();
        let mut blocks = Blocks::new(TYPES[place_of(2000)], arena.budget());
        for _ in 0..2 {
            blocks.reserve().unwrap();
            blocks.add(arena.alloc(1).unwrap());
        }
        assert_eq!((blocks.table.heads[0], blocks.tail), (1, 0));
    }

    #[test]
    fn a_type_counts_its_blocks() {
        let pool = pool();
        let handles = Vec::from_iter((0..13).map(|_| pool.insert(&[7; 3000]).unwrap()));
        pool.remove(handles[0]).unwrap();
        let stats = pool.class_stats();
        assert!(stats.is_sorted_by(|a, b| a.class.slot_bytes > b.class.slot_bytes));
        let used = stats.iter().find(|it| it.slots_used > 0).unwrap();
        assert_eq!((used.class.slots, used.class.pages), (9, 7));
        assert_eq!((used.slots_used, used.slots_allocated, used.pool_pages), (12, 18, 14));
        assert_eq!((used.group_zspages[9], used.group_zspages[5]), (1, 1)); // 8 and 4 of 9
        assert_eq!(used.freeable_pages, 0);
    }

    #[test]
    fn an_audit_tells_each_fault() {
        type Fault = (fn(&mut Blocks), &'static str);
        // Block 0 is full, block 1 has slot 1 free, block 2 is gone: cells 0 to 2 are used.
        let faults: [Fault; 16] = [
            (|it| it.handles.relocate(0, location(9, 0)), "K1: slot 0 of block 9 is named wrongly"),
            (|it| it.handles.relocate(0, location(0, 1)), "K1: slot 1 of block 0 is named wrongly"),
            (|it| it.handles.relocate(0, location(2, 0)), "K1: block 0 has slots 0x3, named 0x2"),
            (
                |it| {
                    it.handles.reserve().unwrap();
                    it.handles.insert(location(2, 0));
                },
                "K1: block 2 has no pages, and is named",
            ),
            (|it| it.table[1] = 3, "K1: block 1 has slots 0x3, named 0x1"),
            (
                |it| {
                    it.handles.relocate(2, location(1, 2));
                    it.table[1] = 4;
                },
                "K2: block 1 has slots 0x4",
            ),
            (|it| _ = it.handles.remove(handle(2)), "K1: block 1 has slots 0x1, named 0x0"),
            (
                |it| {
                    it.handles.remove(handle(2));
                    it.table[1] = 0;
                },
                "K2: block 1 has slots 0x0",
            ),
            (|it| it.shape.pages = 2, "K3: block 0 has 1 pages, its type 2"),
            (|it| it.table.used = 3, "K3: 2 entries have pages, 3 are counted"),
            (|it| it.table.heads[0] = 9, "K2: a list leaves the table"),
            (|it| it.table.heads[0] = 0, "K2: entry 0 does not belong on its list"),
            (|it| it.table.entry_mut(1).next = 1, "K2: entry 1 does not belong on its list"),
            (|it| (it.table.heads[0], it.tail) = (NONE, NONE), "K2: 0 of 1 blocks listed"),
            (|it| it.tail = 0, "K2: 1 of 1 blocks listed, tail 0"),
            (|it| it.table.vacant_head = 9, "K3: the vacant list leaves the table"),
        ];
        let vacant: [Fault; 3] = [
            (|it| it.table.vacant_head = 1, "K3: entry 1 does not belong on the vacant list"),
            (|it| it.table.entry_mut(2).next = 2, "K3: entry 2 does not belong on the vacant list"),
            (|it| it.table.vacant_head = NONE, "K3: 0 entries vacant, 2 used of 3"),
        ];
        for (plant, told) in faults.into_iter().chain(vacant) {
            let pool = pool();
            let handles = [(); 5].map(|()| pool.insert(&[7; 2000]).unwrap());
            handles[3..].iter().for_each(|&handle| pool.remove(handle).unwrap());
            pool.audit().unwrap();
            plant(&mut pool.types[place_of(2000)].write());
            let error = pool.audit().unwrap_err().to_string();
            assert!(error.contains(told), "no '{told}' in: {error}");
        }
        let pool = pool();
        pool.pool_pages.store(5, Ordering::Relaxed);
        let error = pool.audit().unwrap_err().to_string();
        assert_eq!(error, "blocks own 0 host pages, 5 are counted");
    }

    /// The first handle of this cell, for objects of 2000 bytes.
    fn handle(cell: u64) -> Handle {
        Handle::from_bits((u64::from(HANDLE_SET) + place_of(2000) as u64) << 43 | cell)
    }
}
