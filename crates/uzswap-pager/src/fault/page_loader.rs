//! Reads evicted pages into a buffer, from where the kernel copies them to a program.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::address_space::AddressSpace;
use crate::page_table::Place;
use crate::range_set::count;
use crate::store::read_queue::Reader;
use crate::{Pager, untouched_pages};
use uzswap::page::Page;

/// Pages that are brought back for one fault at most, where faults come one after the other.
pub(super) const RESTORED_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct PageLoader {
    pager: Arc<Pager>,
    /// Where the pool has a file behind it.
    reader: Option<Reader>,
    buffer: Box<[Page]>,
}

impl PageLoader {
    /// Starts the threads that read the file, if there is one.
    pub(super) fn start(pager: &Arc<Pager>) -> io::Result<PageLoader> {
        let reader = pager
            .store
            .has_file()
            .then(|| Reader::start(&pager.store, &pager.wakers))
            .transpose()?;
        Ok(PageLoader { pager: Arc::clone(pager), reader, buffer: untouched_pages(RESTORED_MAX) })
    }

    /// Loads a page of a space into the buffer, and its neighbours in `wanted` that are in memory.
    /// Returns the range of both, or the reason why the page cannot be loaded. `None` if the page
    /// must be read from the file first.
    pub(super) fn load(
        &mut self,
        space: &AddressSpace,
        page: u64,
        wanted: &Range<u64>,
    ) -> Option<Result<Range<u64>, String>> {
        match self.fetch(space, page, wanted, Reader::take) {
            Some(Ok(())) => {}
            None => {
                self.read_ahead(space, wanted.clone());
                return None;
            }
            Some(Err(error)) => return Some(Err(error)),
        }
        // A fault reports what is wrong with a neighbour.
        let mut is_ready =
            |at: &u64| matches!(self.fetch(space, *at, wanted, Reader::take_if_read), Some(Ok(())));
        let above = (page + 1..wanted.end).take_while(&mut is_ready).count() as u64;
        let below = (wanted.start..page).rev().take_while(is_ready).count() as u64;
        let ready = page - below..page + 1 + above;
        self.read_ahead(space, wanted.start..ready.start);
        self.read_ahead(space, ready.end..wanted.end);
        Some(Ok(ready))
    }

    /// The pages that the last load of `wanted` has made ready.
    pub(super) fn contents(&self, wanted: &Range<u64>, ready: &Range<u64>) -> &[Page] {
        &self.buffer[count(&(wanted.start..ready.start))..][..count(ready)]
    }

    /// One page of the buffer, for another use.
    pub(super) fn scratch(&mut self) -> &mut Page {
        &mut self.buffer[0]
    }

    /// Copies a staged or stored page into the buffer, or says why that failed. `None` if the page
    /// must be read from the file first.
    fn fetch(
        &mut self,
        space: &AddressSpace,
        page: u64,
        wanted: &Range<u64>,
        take: impl Fn(&Reader, u32, &mut Page) -> Option<Result<(), String>>,
    ) -> Option<Result<(), String>> {
        let content = &mut self.buffer[count(&(wanted.start..page))];
        match space.table.get(page).place {
            Place::Staged(staged) => {
                Some(space.read_staged(staged, content).map_err(|error| error.to_string()))
            }
            Place::Stored(slot) => match &self.reader {
                Some(reader) if self.pager.store.is_in_file(slot) => take(reader, slot, content),
                _ => Some(self.pager.store.load(slot, content)),
            },
            Place::Program => unreachable!("the run has none"),
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
