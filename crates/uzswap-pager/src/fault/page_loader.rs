//! Reads evicted pages into a buffer, from where the kernel copies them to a program.
//!
//! ```text
//!  plan     with the space locked: which slots have the pages, and their versions
//!  load     with nothing locked: decompress them
//!  take     with the space locked again: the pages that are still those
//! ```

use std::ops::Range;
use std::sync::Arc;

use crate::address_space::AddressSpace;
use crate::locks::check_none_is_held;
use crate::page_table::Place;
use crate::range_set::count;
use crate::store::read_queue::Reader;
use crate::store::slots::Version;
use crate::{Pager, untouched_pages};
use uzswap::page::Page;

/// Pages that are brought back for one fault at most, where faults come one after the other.
pub(super) const RESTORED_MAX: usize = 16;

/// The pages of one fault.
#[derive(Debug)]
pub(super) struct PageLoader {
    pager: Arc<Pager>,
    /// Where the pool has a file behind it.
    reader: Option<Arc<Reader>>,
    buffer: Box<[Page]>,
    /// The page of the buffer's first one.
    first: u64,
    /// Pages of the store that are planned or loaded.
    planned: Vec<Planned>,
}

/// A page of the store.
#[derive(Debug)]
struct Planned {
    page: u64,
    version: Version,
    /// `None` before it is loaded; in words why it cannot be had.
    loaded: Option<Result<(), String>>,
}

impl PageLoader {
    pub(super) fn new(pager: &Arc<Pager>, reader: Option<Arc<Reader>>) -> PageLoader {
        let (pager, buffer) = (Arc::clone(pager), untouched_pages(RESTORED_MAX));
        PageLoader { pager, reader, buffer, first: 0, planned: Vec::new() }
    }

    /// Forgets the pages of the last fault.
    pub(super) fn forget(&mut self) {
        self.planned.clear();
    }

    /// Plans to load those of the `wanted` pages that the pool has, once for each fault, and again
    /// if `page` has moved there meanwhile. Whether there is a page to load. All are in a window of
    /// the buffer's length from `first` on.
    pub(super) fn plan(
        &mut self,
        space: &AddressSpace,
        page: u64,
        first: u64,
        wanted: &Range<u64>,
    ) -> bool {
        let is_planned = !self.planned.is_empty();
        if is_planned && self.loaded(space, page).is_some() {
            return false;
        }
        self.first = first;
        self.planned.clear();
        for page in wanted.clone() {
            if let Some(slot) = self.slot_in_pool(space, page) {
                let version = self.pager.store.version(slot);
                self.planned.push(Planned { page, version, loaded: None });
            }
        }
        match is_planned {
            true => self.planned.iter().any(|planned| planned.page == page),
            false => !self.planned.is_empty(),
        }
    }

    /// Loads the planned pages. The caller holds no lock.
    pub(super) fn load(&mut self) {
        check_none_is_held();
        for planned in &mut self.planned {
            let content = &mut self.buffer[(planned.page - self.first) as usize];
            planned.loaded = Some(self.pager.store.load(planned.version.slot(), content));
        }
    }

    /// Takes a page of a space, and its neighbours in `wanted` that are in memory. Returns the
    /// range of both, or the reason why the page cannot be loaded. `None` if the page must be read
    /// from the file first.
    pub(super) fn take(
        &mut self,
        space: &AddressSpace,
        page: u64,
        wanted: &Range<u64>,
    ) -> Option<Result<Range<u64>, String>> {
        match self.fetch(space, page, Reader::take) {
            Some(Ok(())) => {}
            None => {
                self.read_ahead(space, wanted.clone());
                return None;
            }
            Some(Err(error)) => return Some(Err(error)),
        }
        // A fault reports what is wrong with a neighbour.
        let mut is_ready =
            |at: &u64| matches!(self.fetch(space, *at, Reader::take_if_read), Some(Ok(())));
        let above = (page + 1..wanted.end).take_while(&mut is_ready).count() as u64;
        let below = (wanted.start..page).rev().take_while(is_ready).count() as u64;
        let ready = page - below..page + 1 + above;
        self.read_ahead(space, wanted.start..ready.start);
        self.read_ahead(space, ready.end..wanted.end);
        Some(Ok(ready))
    }

    /// The contents of pages that were taken.
    pub(super) fn contents(&self, taken: &Range<u64>) -> &[Page] {
        &self.buffer[count(&(self.first..taken.start))..][..count(taken)]
    }

    /// Has a staged or stored page in the buffer, or says why that failed. `None` if the page must
    /// be read from the file first, or was stored meanwhile.
    fn fetch(
        &mut self,
        space: &AddressSpace,
        page: u64,
        take: impl Fn(&Reader, u32, &mut Page) -> Option<Result<(), String>>,
    ) -> Option<Result<(), String>> {
        if let Some(loaded) = self.loaded(space, page) {
            return Some(loaded);
        }
        let content = &mut self.buffer[count(&(self.first..page))];
        match space.table.get(page).place {
            Place::Staged(staged) => {
                Some(space.read_staged(staged, content).map_err(|error| error.to_string()))
            }
            Place::Stored(slot) => take(self.reader.as_deref()?, slot, content),
            Place::Program => unreachable!("the run has none"),
        }
    }

    /// The page as it was loaded, if it is still that of its slot.
    fn loaded(&self, space: &AddressSpace, page: u64) -> Option<Result<(), String>> {
        let Planned { version, loaded, .. } =
            self.planned.iter().find(|planned| planned.page == page)?;
        let is_it = space.table.get(page).place == Place::Stored(version.slot())
            && self.pager.store.version(version.slot()) == *version;
        loaded.clone().filter(|_| is_it)
    }

    /// The slot of a page in the pool, and not in the file.
    fn slot_in_pool(&self, space: &AddressSpace, page: u64) -> Option<u32> {
        match space.table.get(page).place {
            Place::Stored(slot) => (!self.pager.store.is_in_file(slot)).then_some(slot),
            _ => None,
        }
    }

    /// Has pages read that are in the file, and will be asked for next.
    fn read_ahead(&self, space: &AddressSpace, pages: Range<u64>) {
        let Some(reader) = &self.reader else { return };
        for page in pages {
            if let Place::Stored(slot) = space.table.get(page).place
                && self.pager.store.is_in_file(slot)
            {
                reader.want(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_table::{Entry, UNKNOWN};
    use uzswap::page::PAGE_SIZE;

    const fn page_of(byte: u8) -> Page {
        [byte; PAGE_SIZE]
    }

    /// A space with stored pages from page 100 on, of these bytes.
    fn stored(pager: &Pager, bytes: &[u8]) -> AddressSpace {
        let mut space = AddressSpace::of_nothing();
        for (page, &byte) in (100..).zip(bytes) {
            store(pager, &mut space, page, byte);
        }
        space
    }

    fn store(pager: &Pager, space: &mut AddressSpace, page: u64, byte: u8) {
        let slot = pager.store.store(&page_of(byte)).unwrap();
        space.table.set(page, Entry { place: Place::Stored(slot), ..UNKNOWN });
    }

    /// The slot of a page is free, and a page of this byte gets it.
    fn replace(pager: &Pager, space: &mut AddressSpace, page: u64, byte: u8) {
        let before = space.table.get(page);
        let Place::Stored(slot) = before.place else { panic!("it is stored") };
        pager.store.release(slot);
        pager.store.free_released();
        store(pager, space, page, byte);
        assert_eq!(space.table.get(page).place, before.place, "the slot is used again");
    }

    #[test]
    fn pages_are_loaded_with_nothing_locked() {
        let pager = Arc::new(Pager::for_tests());
        let space = stored(&pager, &[1, 2, 3]);
        let mut loader = PageLoader::new(&pager, None);
        let wanted = 100..103;
        assert!(loader.plan(&space, 101, 99, &wanted));
        loader.load();
        assert!(!loader.plan(&space, 101, 99, &wanted));
        assert_eq!(loader.take(&space, 101, &wanted), Some(Ok(100..103)));
        assert_eq!(loader.contents(&(100..103)), [1, 2, 3].map(page_of));
        assert_eq!(loader.take(&space, 101, &(101..103)), Some(Ok(101..103)));
        assert_eq!(loader.contents(&(101..103)), [2, 3].map(page_of));
    }

    #[test]
    fn a_page_that_another_has_replaced_is_never_taken() {
        let pager = Arc::new(Pager::for_tests());
        let mut space = stored(&pager, &[1, 2, 3]);
        let mut loader = PageLoader::new(&pager, None);
        let wanted = 100..103;
        assert!(loader.plan(&space, 101, 100, &wanted));
        loader.load();
        replace(&pager, &mut space, 102, 4);
        assert!(!loader.plan(&space, 101, 100, &wanted), "a neighbour is not worth another load");
        assert_eq!(loader.take(&space, 101, &wanted), Some(Ok(100..102)));
        replace(&pager, &mut space, 101, 5);
        assert!(loader.plan(&space, 101, 100, &wanted));
        loader.load();
        assert_eq!(loader.take(&space, 101, &wanted), Some(Ok(100..103)));
        assert_eq!(loader.contents(&wanted), [1, 5, 4].map(page_of));
        loader.forget();
        assert!(loader.plan(&space, 101, 100, &wanted), "each fault loads its own pages");
    }

    #[test]
    fn a_page_that_cannot_be_loaded_is_an_error_and_a_neighbour_is_left_out() {
        let pager = Arc::new(Pager::for_tests());
        let mut space = stored(&pager, &[1, 2]);
        space.table.set(102, Entry { place: Place::Stored(2), ..UNKNOWN });
        let lost = pager.store.store(&page_of(3)).unwrap();
        pager.store.release(lost);
        pager.store.free_released(); // slot 2 has no page
        let mut loader = PageLoader::new(&pager, None);
        for (page, expected) in
            [(101, Ok(100..102)), (102, Err("slot 2 is not in the store".to_owned()))]
        {
            loader.forget();
            assert!(loader.plan(&space, page, 100, &(100..103)));
            loader.load();
            assert_eq!(loader.take(&space, page, &(100..103)), Some(expected));
        }
    }
}
