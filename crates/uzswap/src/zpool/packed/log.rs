//! One log: regions full of items, lists of the holes in them, and handles.

use std::sync::Arc;

use super::holes::{Holes, LISTED_BYTES_MIN};
use super::item::{CELL_BITS, HEADER_BYTES, HOLE_BYTES_MIN, Item};
use super::item::{write_filler, write_header, write_hole};
use super::regions::{RegionId, Regions};
use super::victim::Collector;
use super::{Place, REGION_PAGES_MAX, REGION_PAGES_MIN, offset_of, place, region_of};
use crate::budget::{Budget, GrowError};
use crate::zpool::handle::{Handle, HandleTable};
use crate::zpool::lock::PoolPart;
use uzswap_sys::pages::{HOST_PAGE_SIZE, PageRun};

/// The most objects of a log: their headers have so many bits for the cell.
const CELLS_MAX: u32 = 1 << CELL_BITS;

/// A new region is at most this part of its log, as its end is free: 0.8 % on average.
const REGION_PART: usize = 64;

/// A new region is for so many objects of the log's mean length. The bytes that no object fits are
/// a smaller part of a longer region; but a longer one takes longer to get, 2 us a page.
const REGION_OBJECTS: usize = 20;

/// Everything of one log that its lock protects.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) handles: HandleTable,
    pub(super) regions: Regions,
    pub(super) holes: Holes,
    pub(super) collector: Collector,
    /// Host pages freed by moves of objects.
    pub(super) compacted: usize,
}

impl PoolPart for Log {
    fn reserve(&mut self) -> Result<(), GrowError> {
        self.handles.reserve()?;
        if self.handles.next().cell() >= CELLS_MAX {
            return Err(GrowError::Full { max: CELLS_MAX as usize });
        }
        self.regions.reserve()
    }
}

impl Log {
    pub(super) fn new(handle_set: u8, budget: &Arc<Budget>) -> Log {
        Log {
            handles: HandleTable::new(handle_set, budget),
            regions: Regions::new(budget),
            holes: Holes::new(),
            collector: Collector::new(),
            compacted: 0,
        }
    }

    /// Bytes of the tables that grow.
    pub(super) fn table_bytes(&self) -> usize {
        self.handles.bytes() + self.regions.table_bytes()
    }

    /// Pages of a new region, as the log is now.
    pub(super) fn region_pages(&self) -> usize {
        let object_bytes = self.regions.bytes() - self.regions.free_bytes();
        let mean_bytes = object_bytes / self.handles.used().max(1);
        (self.regions.pages() / REGION_PART)
            .min(mean_bytes * REGION_OBJECTS / HOST_PAGE_SIZE)
            .clamp(REGION_PAGES_MIN, REGION_PAGES_MAX)
    }

    /// Adds a region that is one hole.
    pub(super) fn add_region(&mut self, run: PageRun) {
        let bytes = run.len();
        let id = self.regions.add(run);
        self.set_free(place(id, 0), bytes);
        self.collector.newest = id;
    }

    /// Copies an object to a hole; `None` where no hole is long enough. [`PoolPart::reserve`] comes
    /// before.
    pub(super) fn insert(&mut self, object: &[u8]) -> Option<Handle> {
        let bytes = HEADER_BYTES + object.len();
        let at = self.take_hole(bytes)?;
        let handle = self.handles.insert(at);
        let item = self.regions.at_mut(at);
        write_header(item, bytes, handle.cell());
        item[HEADER_BYTES..bytes].copy_from_slice(object);
        self.collector.is_settled = false;
        Some(handle)
    }

    /// An object's bytes.
    #[inline]
    pub(super) fn object(&self, handle: Handle) -> Option<&[u8]> {
        let item = self.regions.at(self.handles.get(handle)?);
        Some(&item[HEADER_BYTES..Item::at(item).bytes()])
    }

    /// Frees an object: the bytes of its item, and the region that has no object now. `None` for an
    /// unknown handle.
    pub(super) fn remove(&mut self, handle: Handle) -> Option<(usize, Option<PageRun>)> {
        let at = self.handles.remove(handle)?;
        self.collector.is_settled = false;
        let bytes = self.regions.item(at).bytes();
        if self.regions.free(region_of(at), bytes) {
            return Some((bytes, Some(self.drop_region(region_of(at)))));
        }
        let end = self.join_free(at, bytes);
        self.set_free(at, end - offset_of(at));
        Some((bytes, None))
    }

    /// Takes free bytes for an item out of a hole; they are counted as an object's then.
    pub(super) fn take_hole(&mut self, bytes: usize) -> Option<Place> {
        loop {
            let (at, hole_bytes) = self.holes.find(&self.regions, bytes)?;
            self.holes.unlist(&mut self.regions, at, hole_bytes);
            if self.collector.has_ahead(at) {
                // The collector is about to clear it.
                self.set_unlisted(at, hole_bytes);
                continue;
            }
            self.set_free(at + bytes as Place, hole_bytes - bytes);
            self.regions.fill(region_of(at), bytes);
            return Some(at);
        }
    }

    /// Takes the free items that follow an item of so many bytes off their lists; the offset where
    /// they end. The items ahead of the victim stay as they are.
    fn join_free(&mut self, at: Place, bytes: usize) -> usize {
        let id = region_of(at);
        let end = self.collector.end_of_items(id).unwrap_or(self.regions.region_bytes(id));
        let mut offset = offset_of(at) + bytes;
        while offset < end {
            let next = self.regions.item(place(id, offset));
            if let Item::Object { .. } = next {
                break;
            }
            self.unlist(place(id, offset), next);
            offset += next.bytes();
        }
        offset
    }

    /// Takes a hole off its list, if it is on one.
    pub(super) fn unlist(&mut self, at: Place, item: Item) {
        if let Item::Hole { bytes, is_listed: true } = item {
            self.holes.unlist(&mut self.regions, at, bytes);
        }
    }

    /// Makes an item of free bytes, and lists it if it is long enough.
    pub(super) fn set_free(&mut self, at: Place, bytes: usize) {
        if bytes >= LISTED_BYTES_MIN {
            self.holes.list(&mut self.regions, at, bytes);
        } else if bytes > 0 {
            self.set_unlisted(at, bytes);
        }
    }

    /// Makes an item of free bytes that is on no list.
    fn set_unlisted(&mut self, at: Place, bytes: usize) {
        let item = self.regions.at_mut(at);
        match bytes {
            HOLE_BYTES_MIN.. => write_hole(item, bytes, None),
            _ => write_filler(item, bytes),
        }
    }

    /// Takes the run of a region without objects.
    pub(super) fn drop_region(&mut self, id: RegionId) -> PageRun {
        let bytes = self.regions.region_bytes(id);
        let mut offset = 0;
        while let Some((at, item)) = self.item_from(id, offset, bytes) {
            self.unlist(at, item);
            offset = offset_of(at) + item.bytes();
        }
        self.collector.forget(id);
        self.regions.take(id)
    }

    /// The first item of a region of so many bytes from an offset on, over the gap that the
    /// collector has made.
    pub(super) fn item_from(
        &self,
        id: RegionId,
        offset: usize,
        bytes: usize,
    ) -> Option<(Place, Item)> {
        let offset = self.collector.over_gap(id, offset);
        (offset < bytes).then(|| (place(id, offset), self.regions.item(place(id, offset))))
    }
}
