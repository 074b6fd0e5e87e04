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

use super::table::{Entry, EntryId, NONE, Table};
use crate::AuditError;
use crate::budget::{Budget, GrowError};
use crate::page::PAGE_SIZE;
use uzswap_sys::pages::PageRun;

/// Unit of an object's place.
pub(super) const CHUNK_BYTES: usize = 1 << 6; // 64

/// Chunks in a host page, header included.
pub(super) const PAGE_CHUNKS: usize = PAGE_SIZE / CHUNK_BYTES; // 64

/// Number of a page in its table.
pub(super) type PageId = EntryId;

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

/// The list of a page, and `S`, the owner's notes on what is in it.
#[derive(Debug)]
pub(super) struct Listed<S> {
    list: u8,
    state: S,
}

type ChunkPage<S> = Entry<PageRun, Listed<S>>;

const _: () = assert!(size_of::<ChunkPage<[u8; 2]>>() == 32); // zbud's
const _: () = assert!(size_of::<ChunkPage<[u32; 5]>>() == 48); // z3fold's

/// A table of host pages and the lists through it. Indexed by page for the owner's notes.
#[derive(Debug)]
pub(super) struct ChunkPages<S> {
    pub(super) pages: Table<PageRun, Listed<S>, LISTS>,
    occupied: u64,
}

impl<S> ChunkPages<S> {
    pub(super) fn new(budget: &Arc<Budget>) -> ChunkPages<S> {
        ChunkPages { pages: Table::new(budget), occupied: 0 }
    }

    /// Makes sure that the next [`ChunkPages::add`] finds room.
    pub(super) fn reserve(&mut self) -> Result<(), GrowError> {
        self.pages.reserve(NONE as usize).map(drop)
    }

    /// Takes a page in, on no list.
    pub(super) fn add(&mut self, run: PageRun, state: S) -> PageId {
        debug_assert_eq!(run.page_count(), 1);
        self.pages.add(run, Listed { list: UNLISTED, state })
    }

    /// Lets go of a page that is on no list.
    pub(super) fn take(&mut self, id: PageId) -> PageRun {
        debug_assert_eq!(self.pages[id].list, UNLISTED);
        self.pages.take(id)
    }

    /// The head of the first list, from `chunks` free chunks upward, that has a page.
    #[inline]
    pub(super) fn best_fit(&self, chunks: u8) -> Option<PageId> {
        let fitting = self.occupied >> chunks;
        let list = usize::from(chunks) + fitting.trailing_zeros() as usize;
        (fitting != 0).then(|| self.pages.heads[list])
    }

    /// Puts a page that is on no list at the head of the list for `free` chunks.
    pub(super) fn link(&mut self, id: PageId, free: u8) {
        let page = &mut self.pages[id];
        debug_assert_eq!(page.list, UNLISTED);
        page.list = free;
        self.pages.link(usize::from(free), id);
        self.occupied |= 1 << free;
    }

    /// Takes a page off its list, if it is on one.
    pub(super) fn unlink(&mut self, id: PageId) {
        let list = std::mem::replace(&mut self.pages[id].list, UNLISTED);
        if list == UNLISTED {
            return;
        }
        self.pages.unlink(usize::from(list), id);
        if self.pages.heads[usize::from(list)] == NONE {
            self.occupied &= !(1 << list);
        }
    }

    /// The bytes of `chunks` chunks of a page.
    #[inline]
    pub(super) fn chunks(&self, id: PageId, start: u8, chunks: u8) -> &[u8] {
        let start = usize::from(start) * CHUNK_BYTES;
        &self.pages.pages(id)[start..start + usize::from(chunks) * CHUNK_BYTES]
    }

    /// Copies `object` to a page, from chunk `start` on.
    #[inline]
    pub(super) fn write(&mut self, id: PageId, start: u8, object: &[u8]) {
        let start = usize::from(start) * CHUNK_BYTES;
        self.pages.pages_mut(id)[start..start + object.len()].copy_from_slice(object);
    }

    /// Moves chunks inside a page; the two places may overlap.
    pub(super) fn slide(&mut self, id: PageId, from: u8, to: u8, chunks: u8) {
        let [from, to, chunks] = [from, to, chunks].map(|count| usize::from(count) * CHUNK_BYTES);
        self.pages.pages_mut(id).copy_within(from..from + chunks, to);
    }

    /// Copies chunks from one page to another, from chunk to chunk.
    pub(super) fn copy(&mut self, from: (PageId, u8), to: (PageId, u8), chunks: u8) {
        let [source, target] = self.pages.pair_mut(from.0, to.0);
        let [from, to, chunks] =
            [from.1, to.1, chunks].map(|count| usize::from(count) * CHUNK_BYTES);
        target[to..to + chunks].copy_from_slice(&source[from..from + chunks]);
    }

    /// Checks C1 to C3; `list_of` says which list a page's state asks for.
    pub(super) fn audit(&self, list_of: impl Fn(&S) -> Option<u8>) -> Result<(), AuditError> {
        let mut unlisted = 0;
        for (id, _, page) in self.pages.iter() {
            let list = list_of(&page.state);
            if page.list != list.unwrap_or(UNLISTED) {
                let marked = page.list;
                return Err(
                    format!("C1: page {id} is marked for list {marked}, not {list:?}").into()
                );
            }
            unlisted += usize::from(list.is_none());
        }
        self.pages.audit().map_err(|error| format!("C3: {error}"))?;
        let mut listed = 0;
        for (list, &head) in self.pages.heads.iter().enumerate() {
            if (self.occupied >> list & 1 != 0) != (head != NONE) {
                return Err(format!("C2: the bit of list {list} is wrong").into());
            }
            let walked = self.pages.audit_list(list, |page| page.list == list as u8);
            listed += walked.map_err(|error| format!("C1: list {list}: {error}"))?.0;
        }
        let used = self.pages.used();
        if listed + unlisted != used {
            return Err(format!("C1: {listed} pages listed, {unlisted} not, of {used}").into());
        }
        Ok(())
    }
}

impl<S> Index<PageId> for ChunkPages<S> {
    type Output = S;

    #[inline]
    fn index(&self, id: PageId) -> &S {
        &self.pages[id].state
    }
}

impl<S> IndexMut<PageId> for ChunkPages<S> {
    #[inline]
    fn index_mut(&mut self, id: PageId) -> &mut S {
        &mut self.pages[id].state
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
            (|table| table.pages.used = 4, "C3: 3 entries have pages, 4 are counted"),
            (|table| table.occupied |= 1 << 7, "C2: the bit of list 7 is wrong"),
            (|table| table.pages.entry_mut(0).next = 9, "C1: list 5: a list leaves the table"),
            (
                |table| {
                    (table.pages[3].list, table.pages.entry_mut(3).previous) = (5, 0);
                    table.pages.entry_mut(0).next = 3;
                },
                "C1: list 5: entry 3 does not belong",
            ),
            (
                |table| {
                    table.pages.heads.swap(5, 6);
                    table.occupied = 1 << 6;
                },
                "C1: list 6: entry 1 does not belong",
            ),
            (|table| table.pages.entry_mut(1).previous = 2, "C1: list 5: entry 1 does not belong"),
            (
                |table| (table.pages.heads[5], table.occupied) = (NONE, 0),
                "C1: 0 pages listed, 1 not, of 3",
            ),
            (|table| table.pages.vacant_head = 9, "C3: the vacant list leaves the table"),
            (|table| table.pages.vacant_head = 0, "C3: entry 0 does not belong on the vacant list"),
            (
                |table| table.pages.entry_mut(3).next = 3,
                "C3: entry 3 does not belong on the vacant list",
            ),
            (|table| table.pages.vacant_head = NONE, "C3: 0 entries vacant, 3 used of 4"),
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
