//! Host pages cut into chunks of 64 bytes and listed by free space: code that zbud and z3fold
//! share.
//!
//! ```text
//!  list        0    1    2   ...   62      a page with so many free chunks
//!                        '-> page 7 <-> page 2     the page listed last comes first
//!  occupied    0    0    1   ...    0      a bit a list: best fit is a shift and a count
//! ```
//!
//! The description of a page is in the table, not in the page's first bytes as in the kernel. Those
//! bytes stay unused, so a page has the same capacity as there.
//!
//! - C1: a page is on one list at most, and that is the list its state asks for.
//! - C2: a list has its bit in `occupied` if and only if it has a page.
//! - C3: every entry of the table has a host page or is on the vacant list.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use crate::AuditError;
use crate::budget::{Budget, GrowError};
use crate::budgeted_vec::BudgetedVec;
use crate::page::PAGE_SIZE;
use uzswap_sys::pages::PageRun;

/// Unit of an object's place.
pub(super) const CHUNK_BYTES: usize = 1 << 6; // 64

/// Chunks in a host page, header included.
pub(super) const PAGE_CHUNKS: usize = PAGE_SIZE / CHUNK_BYTES; // 64

/// Number of a page in its table.
pub(super) type PageId = u32;

const NONE: u32 = u32::MAX;

/// Lists by free chunks, one for every count there can be beside an object.
const LISTS: usize = 63;
/// The list of a page that is on none.
const UNLISTED: u8 = u8::MAX;

const _: () = assert!(LISTS <= u64::BITS as usize && LISTS < UNLISTED as usize);

/// Chunks that an object of `bytes` takes.
pub(super) fn chunks_of(bytes: usize) -> u8 {
    debug_assert!((1..=PAGE_SIZE).contains(&bytes));
    bytes.div_ceil(CHUNK_BYTES) as u8 // at most 64
}

/// One host page, and `S`, the owner's notes on what is in it.
#[derive(Debug)]
struct ChunkPage<S> {
    /// `None` while the entry is vacant.
    run: Option<PageRun>,
    /// Neighbours on the list; of a vacant entry, the next vacant one.
    previous: PageId,
    next: PageId,
    list: u8,
    state: S,
}

const _: () = assert!(size_of::<ChunkPage<[u8; 2]>>() == 32); // zbud's
const _: () = assert!(size_of::<ChunkPage<[u32; 5]>>() == 48); // z3fold's

/// A table of host pages and the lists through it. Indexed by page for the owner's notes.
#[derive(Debug)]
pub(super) struct ChunkPages<S> {
    pages: BudgetedVec<ChunkPage<S>>,
    vacant_head: PageId,
    used: usize,
    heads: [PageId; LISTS],
    occupied: u64,
}

impl<S> ChunkPages<S> {
    pub(super) fn new(budget: &Arc<Budget>) -> ChunkPages<S> {
        ChunkPages {
            pages: BudgetedVec::new(budget),
            vacant_head: NONE,
            used: 0,
            heads: [NONE; LISTS],
            occupied: 0,
        }
    }

    /// Host pages in the table.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Bytes of the table beyond its own struct.
    pub(super) fn heap_bytes(&self) -> usize {
        self.pages.bytes()
    }

    /// Entries, vacant ones included: page numbers are below it.
    pub(super) fn id_end(&self) -> PageId {
        self.pages.len() as u32
    }

    /// Whether the number names a page.
    pub(super) fn is_used(&self, id: PageId) -> bool {
        self.pages.get(id as usize).is_some_and(|page| page.run.is_some())
    }

    /// Makes sure that the next [`ChunkPages::add`] finds room.
    pub(super) fn reserve(&mut self) -> Result<(), GrowError> {
        if self.vacant_head == NONE {
            self.pages.reserve_one(NONE as usize)?;
        }
        Ok(())
    }

    /// Takes a page in, on no list.
    pub(super) fn add(&mut self, run: PageRun, state: S) -> PageId {
        debug_assert_eq!(run.page_count(), 1);
        let page = ChunkPage { run: Some(run), previous: NONE, next: NONE, list: UNLISTED, state };
        self.used += 1;
        if self.vacant_head == NONE {
            let id = self.id_end();
            self.pages.push(page);
            return id;
        }
        let id = self.vacant_head;
        self.vacant_head = self.pages[id as usize].next;
        self.pages[id as usize] = page;
        id
    }

    /// Lets go of a page that is on no list.
    pub(super) fn take(&mut self, id: PageId) -> PageRun {
        let page = &mut self.pages[id as usize];
        debug_assert_eq!(page.list, UNLISTED);
        page.next = self.vacant_head;
        self.vacant_head = id;
        self.used -= 1;
        page.run.take().expect("C3: a page that is let go was there")
    }

    /// Takes every host page, leaving the table unusable: the pool is going away.
    pub(super) fn take_runs(&mut self) -> impl Iterator<Item = PageRun> {
        self.pages.drain_from(0).filter_map(|page| page.run)
    }

    /// Gives the table's memory back if it has no page.
    pub(super) fn release_if_empty(&mut self) {
        if self.used == 0 {
            self.pages.release();
            self.vacant_head = NONE;
        }
    }

    /// The head of the first list, from `chunks` free chunks upward, that has a page.
    #[inline]
    pub(super) fn best_fit(&self, chunks: u8) -> Option<PageId> {
        let fitting = self.occupied >> chunks;
        let list = usize::from(chunks) + fitting.trailing_zeros() as usize;
        (fitting != 0).then(|| self.heads[list])
    }

    /// Puts a page that is on no list at the head of the list for `free` chunks.
    pub(super) fn link(&mut self, id: PageId, free: u8) {
        let head = std::mem::replace(&mut self.heads[usize::from(free)], id);
        self.occupied |= 1 << free;
        let page = &mut self.pages[id as usize];
        debug_assert_eq!(page.list, UNLISTED);
        page.previous = NONE;
        page.next = head;
        page.list = free;
        if head != NONE {
            self.pages[head as usize].previous = id;
        }
    }

    /// Takes a page off its list, if it is on one.
    pub(super) fn unlink(&mut self, id: PageId) {
        let page = &mut self.pages[id as usize];
        let list = std::mem::replace(&mut page.list, UNLISTED);
        if list == UNLISTED {
            return;
        }
        let (previous, next) = (page.previous, page.next);
        if next != NONE {
            self.pages[next as usize].previous = previous;
        }
        if previous != NONE {
            self.pages[previous as usize].next = next;
            return;
        }
        self.heads[usize::from(list)] = next;
        if next == NONE {
            self.occupied &= !(1 << list);
        }
    }

    /// The bytes of `chunks` chunks of a page.
    #[inline]
    pub(super) fn chunks(&self, id: PageId, start: u8, chunks: u8) -> &[u8] {
        let start = usize::from(start) * CHUNK_BYTES;
        &self.run(id)[start..start + usize::from(chunks) * CHUNK_BYTES]
    }

    /// Copies `object` to a page, from chunk `start` on.
    #[inline]
    pub(super) fn write(&mut self, id: PageId, start: u8, object: &[u8]) {
        let start = usize::from(start) * CHUNK_BYTES;
        let run = self.pages[id as usize].run.as_mut().expect("C3: a page in use has a run");
        run[start..start + object.len()].copy_from_slice(object);
    }

    /// Moves chunks inside a page; the two places may overlap.
    pub(super) fn slide(&mut self, id: PageId, from: u8, to: u8, chunks: u8) {
        let [from, to, chunks] = [from, to, chunks].map(|count| usize::from(count) * CHUNK_BYTES);
        let run = self.pages[id as usize].run.as_mut().expect("C3: a page in use has a run");
        run.copy_within(from..from + chunks, to);
    }

    /// Copies chunks from one page to another, from chunk to chunk.
    pub(super) fn copy(&mut self, from: (PageId, u8), to: (PageId, u8), chunks: u8) {
        let pair = [from.0 as usize, to.0 as usize];
        let [source, target] = self.pages.get_disjoint_mut(pair).expect("two pages");
        let source = source.run.as_ref().expect("C3: a page in use has a run");
        let target = target.run.as_mut().expect("C3: a page in use has a run");
        let [from, to, chunks] =
            [from.1, to.1, chunks].map(|count| usize::from(count) * CHUNK_BYTES);
        target[to..to + chunks].copy_from_slice(&source[from..from + chunks]);
    }

    fn run(&self, id: PageId) -> &PageRun {
        self.pages[id as usize].run.as_ref().expect("C3: a page in use has a run")
    }

    /// Checks C1 to C3; `list_of` says which list a page's state asks for.
    pub(super) fn audit(&self, list_of: impl Fn(&S) -> Option<u8>) -> Result<(), AuditError> {
        let mut used = 0;
        let mut unlisted = 0;
        for (id, page) in self.pages.iter().enumerate().filter(|(_, page)| page.run.is_some()) {
            used += 1;
            let list = list_of(&page.state);
            if page.list != list.unwrap_or(UNLISTED) {
                return Err(format!(
                    "C1: page {id} is marked for list {}, not {list:?}",
                    page.list
                )
                .into());
            }
            unlisted += usize::from(list.is_none());
        }
        if used != self.used {
            return Err(format!("C3: {used} entries have pages, {} are counted", self.used).into());
        }
        let mut listed = 0;
        for (list, &head) in self.heads.iter().enumerate() {
            if (self.occupied >> list & 1 != 0) != (head != NONE) {
                return Err(format!("C2: the bit of list {list} is wrong").into());
            }
            let (mut id, mut previous) = (head, NONE);
            while id != NONE {
                let page = self.pages.get(id as usize).ok_or("C1: a list leaves the table")?;
                // A cycle would show here: its entry point has two predecessors.
                if page.run.is_none() || page.list != list as u8 || page.previous != previous {
                    return Err(format!("C1: page {id} does not belong on list {list}").into());
                }
                listed += 1;
                (previous, id) = (id, page.next);
            }
        }
        if listed + unlisted != used {
            return Err(format!("C1: {listed} pages listed, {unlisted} not, of {used}").into());
        }
        let (mut vacant, mut id) = (0, self.vacant_head);
        while id != NONE {
            let page = self.pages.get(id as usize).ok_or("C3: the vacant list leaves the table")?;
            vacant += 1;
            if page.run.is_some() || vacant > self.pages.len() {
                return Err(format!("C3: entry {id} does not belong on the vacant list").into());
            }
            id = page.next;
        }
        if vacant + used != self.pages.len() {
            return Err(format!(
                "C3: {vacant} entries vacant, {used} used of {}",
                self.pages.len()
            )
            .into());
        }
        Ok(())
    }
}

impl<S> Index<PageId> for ChunkPages<S> {
    type Output = S;

    #[inline]
    fn index(&self, id: PageId) -> &S {
        &self.pages[id as usize].state
    }
}

impl<S> IndexMut<PageId> for ChunkPages<S> {
    #[inline]
    fn index_mut(&mut self, id: PageId) -> &mut S {
        &mut self.pages[id as usize].state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Table = ChunkPages<Option<u8>>;

    /// Pages 1 and 0 on list 5, page 2 on none, entry 3 vacant.
    fn table() -> Table {
        let mut table = Table::new(&Arc::default());
        for state in [Some(5), Some(5), None, None] {
            table.reserve().unwrap();
            let id = table.add(PageRun::map(1).unwrap(), state);
            state.into_iter().for_each(|list| table.link(id, list));
        }
        table.take(3);
        table
    }

    #[test]
    fn an_audit_tells_each_fault() {
        type Fault = (fn(&mut Table), &'static str);
        let faults: [Fault; 13] = [
            (|table| table.pages[2].list = 5, "C1: page 2 is marked for list 5, not None"),
            (|table| table.pages[0].list = 4, "C1: page 0 is marked for list 4, not Some(5)"),
            (|table| table.used = 4, "C3: 3 entries have pages, 4 are counted"),
            (|table| table.occupied |= 1 << 7, "C2: the bit of list 7 is wrong"),
            (|table| table.pages[0].next = 9, "C1: a list leaves the table"),
            (
                |table| {
                    (table.pages[3].list, table.pages[3].previous) = (5, 0);
                    table.pages[0].next = 3;
                },
                "C1: page 3 does not belong on list 5",
            ),
            (
                |table| {
                    table.heads.swap(5, 6);
                    table.occupied = 1 << 6;
                },
                "C1: page 1 does not belong on list 6",
            ),
            (|table| table.pages[1].previous = 2, "C1: page 1 does not belong on list 5"),
            (
                |table| (table.heads[5], table.occupied) = (NONE, 0),
                "C1: 0 pages listed, 1 not, of 3",
            ),
            (|table| table.vacant_head = 9, "C3: the vacant list leaves the table"),
            (|table| table.vacant_head = 0, "C3: entry 0 does not belong on the vacant list"),
            (|table| table.pages[3].next = 3, "C3: entry 3 does not belong on the vacant list"),
            (|table| table.vacant_head = NONE, "C3: 0 entries vacant, 3 used of 4"),
        ];
        table().audit(|&state| state).unwrap();
        for (plant, told) in faults {
            let mut table = table();
            plant(&mut table);
            let error = table.audit(|&state| state).unwrap_err().to_string();
            assert!(error.contains(told), "no '{told}' in: {error}");
        }
    }
}
