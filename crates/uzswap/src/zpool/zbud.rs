//! Two objects a host page, one at each end.
//!
//! ```text
//!  0        64                                              4096
//!  | header | first ->          free chunks          <- last |
//! ```
//!
//! An object takes whole chunks of 64 bytes. A page with one object is listed by its free chunks;
//! a new object goes to the page with the fewest that suffice. Nothing ever moves. Geometry, lists
//! and choice are those of the kernel's zbud, so the same calls give the same number of pages.
//!
//! Bound: never fewer pages than half the objects.
//!
//! - B1: first and last together are 1 to 63 chunks; a page without objects is not kept.
//! - B2: a page with a free end is on the list of its free chunks, a full one is on none.
//! - B3: every object is named by one handle, and every handle names an object.

use super::Handle;
use super::arena::Arena;
use super::chunked::{CHUNK_BYTES, PAGE_CHUNKS, PageId, chunks_of};
use super::chunked_pool::{ChunkedPool, Packing, Pages};
use super::handle::Location;
use super::lock::PoolLock;
use crate::AuditError;
use uzswap_sys::pages::PageRun;

/// Chunks that the kernel's page header takes.
const HEADER_CHUNKS: u8 = 1;

/// Chunks of a page that objects can take.
const FREE_CHUNKS: u8 = PAGE_CHUNKS as u8 - HEADER_CHUNKS; // 63

/// The largest object, in bytes: the kernel leaves a chunk beside it.
const OBJECT_BYTES_MAX: usize = (FREE_CHUNKS as usize - 1) * CHUNK_BYTES; // 3968

/// The allocator of two objects a page.
pub(super) type Zbud = ChunkedPool<Buddies>;

/// The objects of one page, in chunks; 0 where there is none. With its page's links 32 bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Buddies {
    first: u8,
    last: u8,
}

/// An end of a page, as the low bit of a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    First = 0,
    Last = 1,
}

impl Buddies {
    /// First chunk, and number of chunks, of an end's object.
    fn place(&self, end: End) -> (u8, u8) {
        match end {
            End::First => (HEADER_CHUNKS, self.first),
            End::Last => (PAGE_CHUNKS as u8 - self.last, self.last),
        }
    }

    fn chunks_mut(&mut self, end: End) -> &mut u8 {
        match end {
            End::First => &mut self.first,
            End::Last => &mut self.last,
        }
    }
}

impl Packing for Buddies {
    const NAME: &'static str = "zbud";
    const HANDLE_SET: u8 = 254;
    const OBJECT_BYTES_MAX: usize = OBJECT_BYTES_MAX;

    fn empty_for(_bytes: usize) -> Buddies {
        Buddies::default()
    }

    fn is_shareable(_bytes: usize) -> bool {
        true
    }

    fn list(&self) -> Option<u8> {
        (self.first == 0 || self.last == 0).then_some(FREE_CHUNKS - self.first - self.last)
    }

    fn place(pages: &mut Pages<Buddies>, id: PageId, object: &[u8]) -> Handle {
        pages.table.unlink(id);
        let buddies = &mut pages.table[id];
        let end = if buddies.first == 0 { End::First } else { End::Last };
        *buddies.chunks_mut(end) = chunks_of(object.len());
        let (start, _) = buddies.place(end);
        pages.table.write(id, start, object);
        pages.list(id);
        pages.handles.insert(location(id, end))
    }

    #[inline]
    fn find(pages: &Pages<Buddies>, handle: Handle) -> Option<(PageId, u8, u8)> {
        let (id, end) = page_and_end(pages.handles.get(handle)?);
        let (start, chunks) = pages.table[id].place(end);
        Some((id, start, chunks))
    }

    fn remove(pages: &mut Pages<Buddies>, handle: Handle) -> Option<Option<PageRun>> {
        let (id, end) = page_and_end(pages.handles.remove(handle)?);
        pages.table.unlink(id);
        let buddies = &mut pages.table[id];
        *buddies.chunks_mut(end) = 0;
        if buddies.first == 0 && buddies.last == 0 {
            return Some(Some(pages.table.take(id)));
        }
        pages.list(id);
        Some(None)
    }

    /// Nothing ever moves.
    fn compact(_pages: &PoolLock<Pages<Buddies>>, _arena: &Arena) -> usize {
        0
    }

    /// Checks B1 to B3.
    fn audit(pages: &Pages<Buddies>) -> Result<(), AuditError> {
        let mut objects = 0;
        for id in (0..pages.table.pages.id_end()).filter(|&id| pages.table.pages.is_used(id)) {
            let Buddies { first, last } = pages.table[id];
            if !(1..=u16::from(FREE_CHUNKS)).contains(&(u16::from(first) + u16::from(last))) {
                return Err(format!("B1: page {id} has {first} and {last} chunks").into());
            }
            objects += usize::from(first != 0) + usize::from(last != 0);
        }
        pages.table.audit(Buddies::list).map_err(|error| format!("B2: {error}"))?;
        // As many handles as objects, and no two name the same: each object has its own.
        let mut named = vec![0u8; pages.table.pages.id_end() as usize];
        for location in pages.handles.locations() {
            let (id, end) = page_and_end(location);
            let bit = 1 << end as u8;
            if !pages.table.pages.is_used(id)
                || pages.table[id].place(end).1 == 0
                || named[id as usize] & bit != 0
            {
                return Err(format!("B3: a handle names the {end:?} of page {id}, wrongly").into());
            }
            named[id as usize] |= bit;
        }
        if objects != pages.handles.used() {
            return Err(format!("B3: {objects} objects, {} handles", pages.handles.used()).into());
        }
        Ok(())
    }
}

/// A location: page number, end (1 bit).
fn location(id: PageId, end: End) -> Location {
    u64::from(id) << 1 | end as u64
}

fn page_and_end(location: Location) -> (PageId, End) {
    let end = if location & 1 == 0 { End::First } else { End::Last };
    ((location >> 1) as u32, end)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Zpool, ZpoolError};
    use super::*;

    #[test]
    fn the_smallest_room_that_suffices_is_taken_and_first_before_last() {
        let pool = Zbud::new(Arc::new(Arena::new()));
        let [large, small] = [40, 20].map(|chunks| vec![1; chunks * CHUNK_BYTES]);
        let in_large = pool.insert(&large).unwrap(); // leaves 23 chunks
        pool.insert(&vec![2; 44 * CHUNK_BYTES]).unwrap(); // leaves 19
        pool.insert(&vec![3; 62 * CHUNK_BYTES]).unwrap(); // leaves 1
        let place = |handle| page_and_end(pool.pages().read().handles.get(handle).unwrap());
        let beside = pool.insert(&small).unwrap();
        assert_eq!(place(beside), (0, End::Last));
        pool.remove(in_large).unwrap();
        assert_eq!(place(pool.insert(&large).unwrap()), (0, End::First));
        assert_eq!(pool.stats().pool_pages, 3);
        pool.audit().unwrap();
    }

    #[test]
    fn two_largest_objects_never_share_a_page() {
        let arena = Arc::new(Arena::new());
        let pool = Zbud::new(Arc::clone(&arena));
        for _ in 0..2 {
            pool.insert(&[7; OBJECT_BYTES_MAX]).unwrap();
        }
        assert!(matches!(
            pool.insert(&[7; OBJECT_BYTES_MAX + 1]),
            Err(ZpoolError::TooBig { max: 3968, .. })
        ));
        assert_eq!((pool.stats().pool_pages, arena.stats().used_pages), (2, 2));
        drop(pool);
        assert_eq!(arena.stats().used_pages, 0);
    }

    #[test]
    fn an_audit_tells_each_fault() {
        type Fault = (fn(&mut Pages<Buddies>), &'static str);
        // Cells 0 and 1 name the objects of page 0, cell 2 that of page 1; page 2 is gone.
        let faults: [Fault; 6] = [
            (|pages| pages.table[1].first = 64, "B1: page 1 has 64 and 0 chunks"),
            (|pages| pages.table.unlink(1), "B2: C1: page 1 is marked"),
            (
                |pages| pages.handles.relocate(2, location(1, End::Last)),
                "B3: a handle names the Last of page 1, wrongly",
            ),
            (
                |pages| {
                    pages.table[2].first = 1;
                    pages.handles.relocate(2, location(2, End::First));
                },
                "B3: a handle names the First of page 2, wrongly",
            ),
            (
                |pages| pages.handles.relocate(1, location(0, End::First)),
                "B3: a handle names the First of page 0, wrongly",
            ),
            (
                |pages| {
                    pages.table.unlink(1);
                    pages.table[1].last = 1;
                },
                "B3: 4 objects, 3 handles",
            ),
        ];
        for (plant, told) in faults {
            let pool = Zbud::new(Arc::new(Arena::new()));
            let handles =
                [20, 20, 62, 62].map(|chunks| pool.insert(&vec![1; chunks * CHUNK_BYTES]));
            pool.remove(*handles[3].as_ref().unwrap()).unwrap();
            pool.audit().unwrap();
            plant(&mut pool.pages().write());
            let error = pool.audit().unwrap_err().to_string();
            assert!(error.contains(told), "no '{told}' in: {error}");
        }
    }
}
