//! Three objects a host page: one at each end, one between.
//!
//! ```text
//!  0        128                                                4096
//!  | header | first ->  gap  |  middle ->  |    gap    <- last |
//!  |                      one headless object                  |
//! ```
//!
//! An object takes whole chunks of 64 bytes; one over 3904 bytes takes a page of its own, without
//! header. A page with a free place is listed by the larger of its gaps, and a new object goes to
//! the smallest gap that suffices. When an object is freed, what is left of its page is packed:
//!
//! - an object left alone moves to another page with room, and its page is given up;
//! - otherwise the middle object moves to where it joins the gaps beside it.
//!
//! Geometry, lists, choice and packing are those of the kernel's z3fold. Differences:
//!
//! - one set of lists, where the kernel has one a CPU: what it does on a machine of one CPU;
//! - packing is done by the call that frees, where the kernel queues it for a worker if the page is
//!   on a list;
//! - a moved object's handle cell is rewritten, where the kernel turns the page's slot numbers and
//!   keeps the slots of pages that are gone.
//!
//! Bound: never fewer pages than a third of the objects.
//!
//! - T1: first, middle and last lie in chunks 2 to 63 in this order and do not overlap; a page
//!   without objects is not kept.
//! - T2: a page with a free place is on the list of its larger gap; full and headless ones are on
//!   none.
//! - T3: every object names the cell of its handle, which leads back to it; nothing but an object
//!   is marked as foreign.

use super::Handle;
use super::arena::Arena;
use super::chunked::{PAGE_CHUNKS, PageId, chunks_of};
use super::chunked_pool::{ChunkedPool, Packing, Pages};
use super::handle::Location;
use super::lock::PoolLock;
use crate::AuditError;
use crate::page::PAGE_SIZE;
use uzswap_sys::pages::PageRun;

/// Chunks that the kernel's page header takes.
const HEADER_CHUNKS: u8 = 2;

/// First chunk after a page.
const END_CHUNK: u8 = PAGE_CHUNKS as u8; // 64

/// Chunks of a page that objects can take.
const FREE_CHUNKS: u8 = END_CHUNK - HEADER_CHUNKS; // 62

/// The most chunks of an object that shares a page; a larger one is headless.
const SHARED_CHUNKS_MAX: u8 = FREE_CHUNKS - 1; // 61: 3904 bytes

/// A gap of fewer chunks is not worth a move of the middle object (`BIG_CHUNK_GAP`).
const GAP_CHUNKS_MIN: u8 = 3; // 192 bytes

/// Pages that a sweep looks at before it lets other threads have the lock.
const SWEEP_PAGES: u32 = 64;

/// The allocator of three objects a page.
pub(super) type Z3fold = ChunkedPool<Buddies>;

/// A place in a page, as the low bits of a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Buddy {
    First = 0,
    Middle = 1,
    Last = 2,
    Headless = 3,
}

use Buddy::{First, Headless, Last, Middle};

/// The objects of one page.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Buddies {
    /// Handle cells of first (also of a headless object), middle, last.
    cells: [u32; 3],
    /// Their chunks; 0 where there is no object.
    chunks: [u8; 3],
    /// First chunk of the middle object, if there is one.
    middle_start: u8,
    /// A bit for each of the three that came from another page: the kernel moves such an object
    /// no second time.
    foreign: u8,
    headless: bool,
}

const _: () = assert!(size_of::<Buddies>() == 20);

impl Buddies {
    /// The objects, and where they are.
    fn objects(&self) -> impl Iterator<Item = Buddy> {
        let shared = [First, Middle, Last].into_iter().filter(|&buddy| self.has(buddy));
        self.headless.then_some(Headless).into_iter().chain(shared)
    }

    fn has(&self, buddy: Buddy) -> bool {
        match buddy {
            Headless => self.headless,
            buddy => self.chunks[buddy as usize] != 0,
        }
    }

    /// First chunk, and number of chunks, of an object.
    #[inline]
    fn place(&self, buddy: Buddy) -> (u8, u8) {
        match buddy {
            First => (HEADER_CHUNKS, self.chunks[0]),
            Middle => (self.middle_start, self.chunks[1]),
            Last => (END_CHUNK - self.chunks[2], self.chunks[2]),
            Headless => (0, END_CHUNK),
        }
    }

    /// Where the part between the header and the first gap ends.
    fn first_end(&self) -> u8 {
        HEADER_CHUNKS + self.chunks[First as usize]
    }

    /// The gap between middle and last object.
    fn gap_before_last(&self) -> u8 {
        let [_, middle, last] = self.chunks;
        END_CHUNK - last - (self.middle_start + middle)
    }

    /// Chunks that a new object may have. A gap between two objects does not count.
    fn free_chunks(&self) -> u8 {
        let [first, middle, last] = self.chunks;
        if middle == 0 {
            return FREE_CHUNKS - first - last;
        }
        let before = if first == 0 { self.middle_start - HEADER_CHUNKS } else { 0 };
        let after = if last == 0 { self.gap_before_last() } else { 0 };
        before.max(after)
    }

    /// The place of a new object in a page whose list promises room for it.
    fn place_for(&self, chunks: u8) -> Buddy {
        match self.chunks {
            [0, middle, _] if middle == 0 || chunks <= self.middle_start - HEADER_CHUNKS => First,
            [_, _, 0] => Last,
            _ => Middle,
        }
    }

    /// Notes an object that `buddy` now names.
    fn set(&mut self, buddy: Buddy, chunks: u8, cell: u32, foreign: bool) {
        if buddy == Middle {
            self.middle_start = self.first_end();
        }
        self.cells[buddy as usize] = cell;
        self.chunks[buddy as usize] = chunks;
        self.foreign = self.foreign & !(1 << buddy as u8) | u8::from(foreign) << buddy as u8;
    }

    fn clear(&mut self, buddy: Buddy) {
        self.chunks[buddy as usize] = 0;
        self.foreign &= !(1 << buddy as u8);
    }

    /// The object that may move to another page: the only one, and at home.
    fn movable(&self) -> Option<Buddy> {
        let only = match self.chunks {
            [_, 0, 0] => First,
            [0, _, 0] => Middle,
            [0, 0, _] => Last,
            _ => return None,
        };
        (self.foreign == 0 && !self.headless).then_some(only)
    }

    /// Where the middle object should move inside the page: its place and first chunk then.
    fn middle_target(&self) -> Option<(Buddy, u8)> {
        match self.chunks {
            [_, 0, _] => None,
            [0, _, 0] => Some((First, HEADER_CHUNKS)),
            [first, _, 0] if first > 0 => {
                let gap = self.middle_start - self.first_end();
                (gap >= GAP_CHUNKS_MIN).then(|| (Middle, self.first_end()))
            }
            [0, middle, last] => (self.gap_before_last() >= GAP_CHUNKS_MIN)
                .then(|| (Middle, END_CHUNK - last - middle)),
            _ => None,
        }
    }
}

impl Packing for Buddies {
    const NAME: &'static str = "z3fold";
    const HANDLE_SET: u8 = 255;
    const OBJECT_BYTES_MAX: usize = PAGE_SIZE;

    fn empty_for(bytes: usize) -> Buddies {
        Buddies { headless: !Buddies::is_shareable(bytes), ..Buddies::default() }
    }

    fn is_shareable(bytes: usize) -> bool {
        chunks_of(bytes) <= SHARED_CHUNKS_MAX
    }

    fn list(&self) -> Option<u8> {
        (!self.headless && self.chunks.contains(&0)).then(|| self.free_chunks())
    }

    fn place(pages: &mut Pages<Buddies>, id: PageId, object: &[u8]) -> Handle {
        if pages.table[id].headless {
            let handle = pages.handles.insert(location(id, Headless));
            pages.table[id].cells[First as usize] = handle.cell();
            pages.table.write(id, 0, object);
            return handle;
        }
        pages.table.unlink(id);
        let chunks = chunks_of(object.len());
        let buddy = pages.table[id].place_for(chunks);
        let handle = pages.handles.insert(location(id, buddy));
        pages.table[id].set(buddy, chunks, handle.cell(), false);
        let (start, _) = pages.table[id].place(buddy);
        pages.table.write(id, start, object);
        pages.list(id);
        handle
    }

    #[inline]
    fn find(pages: &Pages<Buddies>, handle: Handle) -> Option<(PageId, u8, u8)> {
        let (id, buddy) = page_and_buddy(pages.handles.get(handle)?);
        let (start, chunks) = pages.table[id].place(buddy);
        Some((id, start, chunks))
    }

    /// Packs what is left of the object's page, too.
    fn remove(pages: &mut Pages<Buddies>, handle: Handle) -> Option<Option<PageRun>> {
        let (id, buddy) = page_and_buddy(pages.handles.remove(handle)?);
        if buddy == Headless {
            return Some(Some(pages.table.take(id)));
        }
        pages.table.unlink(id);
        pages.table[id].clear(buddy);
        if pages.table[id].chunks == [0; 3] {
            return Some(Some(pages.table.take(id)));
        }
        let (emptied, _) = pages.pack(id);
        Some(emptied)
    }

    fn compact(pages: &PoolLock<Pages<Buddies>>, arena: &Arena) -> usize {
        let mut freed = 0;
        let mut emptied = Vec::new();
        let mut moved = true;
        while moved {
            moved = false;
            let mut next = Some(0);
            while let Some(start) = next {
                let mut pages = pages.write();
                moved |= pages.sweep(start, &mut emptied);
                let end = start.saturating_add(SWEEP_PAGES);
                next = (end < pages.table.pages.id_end()).then_some(end);
                drop(pages);
                freed += emptied.len();
                emptied.drain(..).for_each(|run| arena.free(run));
            }
        }
        freed
    }

    /// Checks T1 to T3.
    fn audit(pages: &Pages<Buddies>) -> Result<(), AuditError> {
        let mut objects = 0;
        for id in (0..pages.table.pages.id_end()).filter(|&id| pages.table.pages.is_used(id)) {
            objects += pages.audit_page(id).map_err(|error| format!("page {id}: {error}"))?;
        }
        if objects != pages.handles.used() {
            return Err(format!("T3: {objects} objects, {} handles", pages.handles.used()).into());
        }
        pages.table.audit(Buddies::list).map_err(|error| format!("T2: {error}").into())
    }
}

impl Pages<Buddies> {
    /// Packs a page that is on no list, and lists it again or gives it up; whether it changed.
    fn pack(&mut self, id: PageId) -> (Option<PageRun>, bool) {
        if self.move_out(id) {
            self.compacted += 1;
            return (Some(self.table.take(id)), true);
        }
        let changed = self.move_middle(id);
        self.list(id);
        (None, changed)
    }

    /// Moves an object that is alone in its page, which is on no list, to another page.
    fn move_out(&mut self, id: PageId) -> bool {
        let buddies = self.table[id];
        let Some(from) = buddies.movable() else { return false };
        let (from_start, chunks) = buddies.place(from);
        let Some(target) = self.table.best_fit(chunks) else { return false };
        self.table.unlink(target);
        let cell = buddies.cells[from as usize];
        let to = self.table[target].place_for(chunks);
        self.table[target].set(to, chunks, cell, true);
        let (to_start, _) = self.table[target].place(to);
        self.table.copy((id, from_start), (target, to_start), chunks);
        self.handles.relocate(cell, location(target, to));
        self.list(target);
        true
    }

    /// Moves the middle object of a page, which is on no list, to where it joins the gaps.
    fn move_middle(&mut self, id: PageId) -> bool {
        let mut buddies = self.table[id];
        let Some((to, to_start)) = buddies.middle_target() else { return false };
        let (from_start, chunks) = buddies.place(Middle);
        self.table.slide(id, from_start, to_start, chunks);
        if to == Middle {
            buddies.middle_start = to_start;
        } else {
            let cell = buddies.cells[Middle as usize];
            buddies.set(to, chunks, cell, buddies.foreign >> Middle as u8 & 1 != 0);
            buddies.clear(Middle);
            self.handles.relocate(cell, location(id, to));
        }
        self.table[id] = buddies;
        true
    }

    /// Packs up to [`SWEEP_PAGES`] pages from `start` on; whether anything moved.
    fn sweep(&mut self, start: PageId, emptied: &mut Vec<PageRun>) -> bool {
        let mut moved = false;
        for id in start..self.table.pages.id_end().min(start.saturating_add(SWEEP_PAGES)) {
            let buddies = self.table[id];
            // The order of the lists stays as it is where nothing can be won.
            let packable = buddies.movable().is_some() || buddies.middle_target().is_some();
            if !self.table.pages.is_used(id) || !packable {
                continue;
            }
            self.table.unlink(id);
            let (run, changed) = self.pack(id);
            emptied.extend(run);
            moved |= changed;
        }
        moved
    }

    fn audit_page(&self, id: PageId) -> Result<usize, AuditError> {
        let buddies = self.table[id];
        let (mut end, mut objects) = (u16::from(HEADER_CHUNKS), 0);
        if buddies.headless && buddies.chunks != [0; 3] {
            return Err(format!("T1: objects beside a headless one: {buddies:?}").into());
        }
        for buddy in buddies.objects() {
            objects += 1;
            if buddy != Headless {
                // Computed here, as a wrong count must not wrap.
                let chunks = u16::from(buddies.chunks[buddy as usize]);
                let start = match buddy {
                    First => u16::from(HEADER_CHUNKS),
                    Middle => u16::from(buddies.middle_start),
                    _ => u16::from(END_CHUNK).saturating_sub(chunks),
                };
                if start < end || start + chunks > u16::from(END_CHUNK) {
                    return Err(format!("T1: {buddy:?} does not fit: {buddies:?}").into());
                }
                end = start + chunks;
            }
            let cell = buddies.cells[if buddy == Headless { 0 } else { buddy as usize }];
            if self.handles.location_of_cell(cell) != Some(location(id, buddy)) {
                return Err(format!("T3: {buddy:?} names cell {cell}, which does not").into());
            }
        }
        if objects == 0 {
            return Err("T1: no object".into());
        }
        let absent =
            |&buddy: &Buddy| !buddies.has(buddy) && buddies.foreign >> buddy as u8 & 1 != 0;
        if let Some(buddy) = [First, Middle, Last].iter().find(|&buddy| absent(buddy)) {
            return Err(format!("T3: {buddy:?} is foreign and absent: {buddies:?}").into());
        }
        Ok(objects)
    }
}

/// A location: page number, place (2 bits).
fn location(id: PageId, buddy: Buddy) -> Location {
    u64::from(id) << 2 | buddy as u64
}

fn page_and_buddy(location: Location) -> (PageId, Buddy) {
    let buddy = [First, Middle, Last, Headless][(location & 3) as usize];
    ((location >> 2) as u32, buddy)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::chunked::CHUNK_BYTES;
    use super::super::{Zpool, ZpoolError};
    use super::*;
    use crate::random::SplitMix64;

    fn place(pool: &Z3fold, handle: Handle) -> (PageId, Buddy) {
        page_and_buddy(pool.pages().read().handles.get(handle).unwrap())
    }

    /// A page of three objects of these chunks, each filled with its number.
    fn page_of_three(chunks: [usize; 3]) -> (Z3fold, [Handle; 3]) {
        let pool = Z3fold::new(Arc::new(Arena::new()));
        let [first, last, middle] =
            [0, 2, 1].map(|n| pool.insert(&vec![n as u8; chunks[n] * CHUNK_BYTES]).unwrap());
        let handles = [first, middle, last];
        let places = handles.map(|handle| place(&pool, handle));
        assert_eq!(places, [(0, First), (0, Middle), (0, Last)]);
        (pool, handles)
    }

    fn check(pool: &Z3fold, handle: Handle, n: u8, start: u8) {
        let pages = pool.pages().read();
        let (id, buddy) = page_and_buddy(pages.handles.get(handle).unwrap());
        assert_eq!(pages.table[id].place(buddy).0, start);
        drop(pages);
        pool.read(handle, &mut |slot| assert!(slot.iter().all(|&byte| byte == n))).unwrap();
        pool.audit().unwrap();
    }

    #[test]
    fn freeing_the_first_slides_the_middle_to_the_last_over_big_gaps_only() {
        let (pool, [first, middle, last]) = page_of_three([20, 10, 29]); // 3 chunks are free
        pool.remove(first).unwrap();
        check(&pool, middle, 1, 64 - 29 - 10);
        check(&pool, last, 2, 64 - 29);
        let (pool, [first, middle, _]) = page_of_three([20, 10, 30]); // 2 chunks are free
        pool.remove(first).unwrap();
        check(&pool, middle, 1, 22);
    }

    #[test]
    fn freeing_the_last_slides_the_middle_to_the_first_over_big_gaps_only() {
        let (pool, [first, middle, last]) = page_of_three([20, 10, 29]);
        pool.remove(first).unwrap();
        let first = pool.insert(&[0; 20 * CHUNK_BYTES]).unwrap();
        check(&pool, middle, 1, 25);
        pool.remove(last).unwrap();
        check(&pool, middle, 1, 22);
        check(&pool, first, 0, 2);
    }

    #[test]
    fn a_middle_left_alone_becomes_first_and_keeps_its_handle() {
        let (pool, [first, middle, last]) = page_of_three([20, 10, 20]);
        pool.remove(first).unwrap();
        pool.remove(last).unwrap();
        assert_eq!(place(&pool, middle), (0, First));
        check(&pool, middle, 1, 2);
    }

    #[test]
    fn an_object_that_has_moved_stays_whatever_comes_beside_it() {
        let pool = Z3fold::new(Arc::new(Arena::new()));
        let insert =
            |chunks: usize| pool.insert(&vec![chunks as u8; chunks * CHUNK_BYTES]).unwrap();
        let [a, d, b, c] = [36, 20, 30, 25].map(insert);
        pool.remove(d).unwrap();
        pool.remove(b).unwrap(); // c moves to a
        assert_eq!([a, c].map(|handle| place(&pool, handle)), [(0, First), (0, Last)]);
        pool.remove(a).unwrap();
        let again = insert(37); // too large for a third beside it
        assert_eq!(place(&pool, again), (0, First));
        let e = [insert(60), insert(20)][1];
        assert_ne!(place(&pool, e).0, 0);
        pool.remove(again).unwrap();
        assert_eq!((place(&pool, c), pool.compact()), ((0, Last), 1));
        assert_eq!((place(&pool, c).0, place(&pool, e).0), (0, 0)); // e moved to it
        check(&pool, c, 25, 64 - 25);
    }

    #[test]
    fn an_object_left_alone_moves_once_only() {
        let pool = Z3fold::new(Arc::new(Arena::new()));
        let [a, d, b, c] = [36, 20, 30, 25]
            .map(|chunks| pool.insert(&vec![chunks as u8; chunks * CHUNK_BYTES]).unwrap());
        assert_eq!([a, b, c, d].map(|handle| place(&pool, handle).0), [0, 1, 1, 0]);
        pool.remove(d).unwrap(); // a does not fit beside b and c
        assert_eq!((place(&pool, a), pool.stats().pages_compacted), ((0, First), 0));
        pool.remove(b).unwrap(); // c moves to a
        assert_eq!(place(&pool, c), (0, Last));
        check(&pool, c, 25, 64 - 25);
        assert_eq!((pool.stats().pool_pages, pool.stats().pages_compacted), (1, 1));
        pool.insert(&[5; 60 * CHUNK_BYTES]).unwrap();
        let e = pool.insert(&[6; 20 * CHUNK_BYTES]).unwrap();
        assert_ne!(place(&pool, e).0, 0);
        pool.remove(a).unwrap(); // c is foreign: it stays, though e's page has room
        assert_eq!((place(&pool, c), pool.compact()), ((0, Last), 1));
        assert_eq!((place(&pool, c).0, place(&pool, e).0), (0, 0)); // e moved to it
        pool.audit().unwrap();
    }

    /// Pages in which something could be packed still.
    fn packable(pool: &Z3fold) -> Vec<PageId> {
        let mut pages = pool.pages().write();
        let used = (0..pages.table.pages.id_end()).filter(|&id| pages.table.pages.is_used(id));
        let used: Vec<PageId> = used.collect();
        let mut found = Vec::new();
        for id in used {
            let buddies = pages.table[id];
            pages.table.unlink(id);
            let chunks = buddies.movable().map(|from| buddies.place(from).1);
            let could_leave = chunks.is_some_and(|chunks| pages.table.best_fit(chunks).is_some());
            if could_leave || buddies.middle_target().is_some() {
                found.push(id);
            }
            pages.list(id);
        }
        found
    }

    /// Each removal packs its own page; what there is room for later elsewhere, compaction moves.
    #[test]
    fn compaction_leaves_nothing_to_pack_in_any_page() {
        let (mut words, mut packed) = (SplitMix64::new(5), [0; 2]);
        let mut random = |below: u64| words.next_word() % below;
        for _ in 0..20 {
            let pool = Z3fold::new(Arc::new(Arena::new()));
            let mut objects: Vec<(Handle, u8, usize)> = Vec::new();
            for number in 0..900 {
                let bytes = (1 + random(60) as usize) * CHUNK_BYTES;
                objects.push((
                    pool.insert(&vec![number as u8; bytes]).unwrap(),
                    number as u8,
                    bytes,
                ));
            }
            for _ in 0..600 {
                let at = random(objects.len() as u64) as usize;
                pool.remove(objects.swap_remove(at).0).unwrap();
            }
            let before = packable(&pool);
            packed[0] += before.iter().filter(|&&id| id < SWEEP_PAGES).count();
            packed[1] += before.iter().filter(|&&id| id >= SWEEP_PAGES).count();
            let pages = pool.stats().pool_pages;
            let freed = pool.compact();
            assert_eq!((pool.stats().pool_pages, packable(&pool)), (pages - freed, vec![]));
            pool.audit().unwrap();
            for (handle, number, bytes) in objects {
                let check = &mut |slot: &[u8]| {
                    assert!(slot[..bytes].iter().all(|&byte| byte == number), "{bytes} bytes");
                };
                pool.read(handle, check).unwrap();
            }
        }
        assert!(packed.iter().all(|&count| count > 20), "{packed:?} could be packed before");
    }

    #[test]
    fn from_3905_bytes_on_objects_are_headless() {
        let pool = Z3fold::new(Arc::new(Arena::new()));
        let shared = pool.insert(&[1; 3904]).unwrap();
        let headless = [3905, 4096].map(|bytes| pool.insert(&vec![2; bytes]).unwrap());
        assert_eq!(place(&pool, shared).1, First);
        assert_eq!(headless.map(|handle| place(&pool, handle).1), [Headless; 2]);
        assert!(matches!(pool.insert(&[0; 4097]), Err(ZpoolError::TooBig { max: 4096, .. })));
        pool.audit().unwrap();
        headless.into_iter().for_each(|handle| pool.remove(handle).unwrap());
        assert_eq!(pool.stats().pool_pages, 1);
    }

    #[test]
    fn a_middle_left_alone_moves_to_a_page_with_room() {
        let (pool, [first, middle, last]) = page_of_three([20, 10, 20]);
        pool.insert(&[3; 40 * CHUNK_BYTES]).unwrap();
        pool.remove(first).unwrap();
        pool.remove(last).unwrap();
        assert_eq!((place(&pool, middle), pool.stats().pool_pages), ((1, Last), 1));
        check(&pool, middle, 1, 64 - 10);
    }

    #[test]
    fn a_middle_that_becomes_first_may_leave_if_it_is_at_home() {
        let (pool, [first, middle, last]) = page_of_three([20, 10, 20]);
        let [_, end, _] = [30, 20, 5].map(|chunks| pool.insert(&vec![3; chunks * CHUNK_BYTES]));
        [first, last].into_iter().for_each(|handle| pool.remove(handle).unwrap());
        assert_eq!(place(&pool, middle), (0, First)); // the other page is full
        pool.remove(end.unwrap()).unwrap();
        assert_eq!((pool.compact(), place(&pool, middle)), (1, (1, Last)));
        check(&pool, middle, 1, 64 - 10);
    }

    #[test]
    fn a_middle_that_becomes_first_stays_if_it_is_foreign() {
        let pool = Z3fold::new(Arc::new(Arena::new()));
        let [first, last, beside, moved] = [(20, 0), (20, 2), (50, 3), (10, 1)]
            .map(|(chunks, n)| pool.insert(&vec![n; chunks * CHUNK_BYTES]).unwrap());
        assert_eq!(place(&pool, moved), (1, Last));
        pool.remove(beside).unwrap();
        assert_eq!(place(&pool, moved), (0, Middle));
        // A page with room for it, which nothing leaves.
        for chunks in [40, 10] {
            pool.insert(&vec![4; chunks * CHUNK_BYTES]).unwrap();
        }
        [first, last].into_iter().for_each(|handle| pool.remove(handle).unwrap());
        assert_eq!((place(&pool, moved), pool.compact()), ((0, First), 0));
        check(&pool, moved, 1, 2);
    }

    #[test]
    fn an_audit_tells_each_fault() {
        type Fault = (fn(&mut Pages<Buddies>), &'static str);
        // Page 0 has three objects, page 1 one of 61 chunks, page 2 a headless one.
        let faults: [Fault; 9] = [
            (|pages| pages.table[2].chunks[0] = 1, "T1: objects beside a headless one"),
            (|pages| pages.table[0].middle_start = 21, "T1: Middle does not fit"),
            (|pages| pages.table[0].middle_start = 60, "T1: Middle does not fit"),
            (|pages| pages.table[0].chunks[2] = 40, "T1: Last does not fit"),
            (|pages| pages.table[0].cells.swap(0, 2), "T3: First names cell"),
            (|pages| pages.table[1].chunks = [0; 3], "T1: no object"),
            (|pages| pages.table[1].foreign = 2, "T3: Middle is foreign and absent"),
            (
                |pages| {
                    pages.handles.reserve().unwrap();
                    pages.handles.insert(location(0, First));
                },
                "T3: 5 objects, 6 handles",
            ),
            (|pages| pages.table.unlink(1), "T2: C1: page 1 is marked"),
        ];
        for (plant, told) in faults {
            let (pool, _) = page_of_three([20, 10, 20]);
            pool.insert(&[3; 61 * CHUNK_BYTES]).unwrap();
            pool.insert(&[3; 4096]).unwrap();
            pool.audit().unwrap();
            plant(&mut pool.pages().write());
            let error = pool.audit().unwrap_err().to_string();
            assert!(error.contains(told), "no '{told}' in: {error}");
        }
    }
}
