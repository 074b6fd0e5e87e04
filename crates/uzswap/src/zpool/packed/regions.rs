//! The regions of a log: runs of host pages, by number.

use std::sync::Arc;

use super::item::Item;
use super::{Place, REGION_PAGES_MAX, offset_of, place, region_of};
use crate::budget::{Budget, GrowError};
use crate::budgeted_vec::BudgetedVec;
use uzswap_sys::pages::{HOST_PAGE_SIZE, PageRun};

/// Number of a region in its log.
pub(super) type RegionId = u32;

/// No region; the last number is left free for it.
pub(super) const NO_REGION: RegionId = (1 << super::REGION_BITS) - 1;

/// A run of host pages; 24 bytes.
#[derive(Debug)]
struct Region {
    /// `None` while the entry is vacant.
    run: Option<PageRun>,
    /// Bytes that are not of objects; of a vacant entry, the next vacant one.
    free_bytes: u32,
}

const _: () = assert!(size_of::<Region>() == 24);

/// Every region of a log.
#[derive(Debug)]
pub(super) struct Regions {
    table: BudgetedVec<Region>,
    vacant_head: RegionId,
    /// Bytes of all regions, and those that are not of objects.
    bytes: usize,
    pub(super) free_bytes: usize,
}

impl Regions {
    pub(super) fn new(budget: &Arc<Budget>) -> Regions {
        Regions { table: BudgetedVec::new(budget), vacant_head: NO_REGION, bytes: 0, free_bytes: 0 }
    }

    /// Makes sure that the next region finds an entry.
    pub(super) fn reserve(&mut self) -> Result<(), GrowError> {
        if self.vacant_head == NO_REGION {
            self.table.reserve_one(NO_REGION as usize)?;
        }
        Ok(())
    }

    /// Adds a run, all of it free. Its bytes are not yet items.
    pub(super) fn add(&mut self, run: PageRun) -> RegionId {
        let bytes = run.len();
        debug_assert!(run.page_count() <= REGION_PAGES_MAX);
        let region = Region { run: Some(run), free_bytes: bytes as u32 };
        self.bytes += bytes;
        self.free_bytes += bytes;
        if self.vacant_head == NO_REGION {
            self.table.push(region);
            return self.table.len() as u32 - 1;
        }
        let id = self.vacant_head;
        self.vacant_head = self.table[id as usize].free_bytes;
        self.table[id as usize] = region;
        id
    }

    /// Takes the run of a region without objects.
    pub(super) fn take(&mut self, id: RegionId) -> PageRun {
        debug_assert_eq!(self.region_free_bytes(id), self.region_bytes(id));
        let region = &mut self.table[id as usize];
        region.free_bytes = self.vacant_head;
        self.vacant_head = id;
        let run = region.run.take().expect("a region in use has a run");
        self.bytes -= run.len();
        self.free_bytes -= run.len();
        run
    }

    /// Takes every run: the log is going away.
    pub(super) fn take_runs(&mut self) -> impl Iterator<Item = PageRun> {
        self.table.drain_from(0).filter_map(|region| region.run)
    }

    /// Gives the table's memory back if there is no region.
    pub(super) fn release_if_empty(&mut self) {
        if self.bytes == 0 {
            self.table.release();
            self.vacant_head = NO_REGION;
        }
    }

    /// Bytes of the table.
    pub(super) fn table_bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Bytes of all regions.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Host pages of all regions.
    pub(super) fn pages(&self) -> usize {
        self.bytes / HOST_PAGE_SIZE
    }

    /// Bytes that are not of objects.
    pub(super) fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// All numbers are below it.
    pub(super) fn id_end(&self) -> RegionId {
        self.table.len() as u32
    }

    /// Bytes of a region; 0 of a vacant entry.
    pub(super) fn region_bytes(&self, id: RegionId) -> usize {
        self.table.get(id as usize).and_then(|region| region.run.as_deref()).map_or(0, <[u8]>::len)
    }

    /// Bytes of a region in use that are not of objects.
    pub(super) fn region_free_bytes(&self, id: RegionId) -> usize {
        self.table[id as usize].free_bytes as usize
    }

    /// An object takes so many bytes of a region.
    #[inline]
    pub(super) fn fill(&mut self, id: RegionId, bytes: usize) {
        self.table[id as usize].free_bytes -= bytes as u32;
        self.free_bytes -= bytes;
    }

    /// An object gives so many bytes of a region up; whether the region has no object now.
    #[inline]
    pub(super) fn free(&mut self, id: RegionId, bytes: usize) -> bool {
        self.table[id as usize].free_bytes += bytes as u32;
        self.free_bytes += bytes;
        self.region_free_bytes(id) == self.region_bytes(id)
    }

    /// The bytes from a place to its region's end.
    #[inline]
    pub(super) fn at(&self, at: Place) -> &[u8] {
        let run = self.table[region_of(at) as usize].run.as_ref();
        &run.expect("a region in use has a run")[offset_of(at)..]
    }

    /// As [`Regions::at`], to change them.
    #[inline]
    pub(super) fn at_mut(&mut self, at: Place) -> &mut [u8] {
        let run = self.table[region_of(at) as usize].run.as_mut();
        &mut run.expect("a region in use has a run")[offset_of(at)..]
    }

    /// The item at a place.
    #[inline]
    pub(super) fn item(&self, at: Place) -> Item {
        Item::at(self.at(at))
    }

    /// Copies bytes to another place, where they may overlap themselves.
    pub(super) fn copy(&mut self, from: Place, to: Place, bytes: usize) {
        let (source, destination) = (region_of(from), region_of(to));
        if source == destination {
            let from = offset_of(from);
            let all = self.at_mut(place(source, 0));
            return all.copy_within(from..from + bytes, offset_of(to));
        }
        let [source, destination] = self
            .table
            .get_disjoint_mut([source as usize, destination as usize])
            .expect("two regions that are in the table");
        let source = source.run.as_ref().expect("a region in use has a run");
        let destination = destination.run.as_mut().expect("a region in use has a run");
        destination[offset_of(to)..][..bytes].copy_from_slice(&source[offset_of(from)..][..bytes]);
    }
}
