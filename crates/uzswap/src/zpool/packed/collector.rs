//! The collector: empties regions by moving their objects to holes of others.
//!
//! ```text
//!  victim  | objects that found no hole | gap | items ahead |
//!          0                          write  read          end
//! ```
//!
//! The collector works on one region at a time, the *victim*, item by item, a bounded part in each
//! call. An object goes to the hole that fits it best. Where no hole is long enough, it goes to the
//! front of the victim, which needs no memory. In the end the victim is empty and goes, or it has
//! one hole.
//!
//! A moved object fills bytes that another one left. So a freed byte costs 0.9 bytes of moves. A
//! log that only appends needs some 8 at the same density.

use super::item::Item;
use super::log::Log;
use super::place;
use super::regions::RegionId;
use super::victim::Victim;
use uzswap_sys::pages::{HOST_PAGE_SIZE, PageRun};

/// Free bytes that the collector leaves to a log: this part of the objects, and a region's length.
const FREE_PART: usize = 33; // 3 %

/// Work for each byte inserted or removed. Random frees need 1.05.
const PACE: usize = 16;

/// The most work of a call beside one object: 12 us for objects of pages, and at most 256 items.
const WORK_MAX: usize = 64 << 10;

/// Work of an item beside its bytes: some cache misses.
const ITEM_WORK: usize = 256;

/// Regions that are looked at for the next victim. The emptiest of all would be no better: each
/// byte that is moved fills a hole.
const CANDIDATES: RegionId = 32;

/// After a victim that did not become empty, the collector rests for a part of a region's bytes
/// inserted or removed. The part doubles up to 1 with each such victim that follows.
const REST_DOUBLINGS: u32 = 4;

/// Where [`Log::compact_step`] goes on.
#[derive(Debug, Default)]
pub(super) struct Pass {
    next: RegionId,
    has_emptied: bool,
}

/// Where objects of the victim may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moves {
    ToHoles,
    /// To the victim's front alone: no region becomes empty.
    Together,
}

impl Log {
    /// Does what an object of `bytes` that came or went is worth; a region that this has emptied.
    pub(super) fn collect(&mut self, bytes: usize) -> Option<PageRun> {
        self.collector.rest_bytes = self.collector.rest_bytes.saturating_sub(bytes);
        let mut left = (bytes * PACE).min(WORK_MAX);
        while left > 0 {
            if self.collector.victim.is_none() {
                self.collector.victim = Some(self.choose()?);
            }
            let (work, emptied) = self.step(Moves::ToHoles);
            if emptied.is_some() {
                return emptied;
            }
            left = left.saturating_sub(work);
        }
        None
    }

    /// Compacts one region; `None` once no region can be emptied. The caller begins with a new
    /// [`Pass`].
    pub(super) fn compact_step(&mut self, pass: &mut Pass) -> Option<Option<PageRun>> {
        if self.collector.victim.is_none() {
            self.collector.victim = Some(self.next_of_pass(pass)?);
        }
        while self.collector.victim.is_some() {
            let (_, emptied) = self.step(Moves::ToHoles);
            if emptied.is_some() {
                pass.has_emptied = true;
                return Some(emptied);
            }
        }
        Some(None)
    }

    /// Makes a hole of so many bytes in a region that has them, if there is one. No memory is
    /// needed, and no region goes.
    pub(super) fn make_hole(&mut self, bytes: usize) -> bool {
        self.move_together();
        if self.holes.find(&self.regions, bytes).is_some() {
            return true;
        }
        let used = (0..self.regions.id_end()).filter(|&id| self.regions.region_bytes(id) > 0);
        let Some(region) = used.max_by_key(|&id| self.regions.region_free_bytes(id)) else {
            return false;
        };
        if self.regions.region_free_bytes(region) < bytes {
            return false;
        }
        self.collector.victim = Some(Victim { region, read: 0, write: 0 });
        self.move_together();
        true
    }

    fn move_together(&mut self) {
        while self.collector.victim.is_some() {
            self.step(Moves::Together);
        }
    }

    /// The victim of a log with too many free bytes: the emptiest of the next few regions.
    fn choose(&mut self) -> Option<Victim> {
        let free_bytes = self.regions.free_bytes();
        let object_bytes = self.regions.bytes() - free_bytes;
        let left_bytes = object_bytes / FREE_PART + self.region_pages() * HOST_PAGE_SIZE;
        if free_bytes <= left_bytes || self.collector.rest_bytes > 0 {
            return None;
        }
        let ids = self.regions.id_end();
        let first = if self.collector.hand < ids { self.collector.hand } else { 0 };
        let candidates = (first..ids).chain(0..first).take(CANDIDATES as usize);
        self.collector.hand = first + CANDIDATES;
        let region = candidates
            .filter(|&id| id != self.collector.newest && self.is_worth(id))
            .max_by_key(|&id| self.regions.region_free_bytes(id))?;
        Some(Victim { region, read: 0, write: 0 })
    }

    /// Whether the free bytes of the log suffice to empty a region in use.
    fn is_worth(&self, id: RegionId) -> bool {
        (1..=self.regions.free_bytes()).contains(&self.regions.region_bytes(id))
    }

    fn next_of_pass(&mut self, pass: &mut Pass) -> Option<Victim> {
        if self.collector.is_settled {
            return None;
        }
        let ids = self.regions.id_end();
        if pass.next >= ids && std::mem::take(&mut pass.has_emptied) {
            pass.next = 0;
        }
        match (pass.next..ids).find(|&id| self.is_worth(id)) {
            Some(region) => {
                pass.next = region + 1;
                Some(Victim { region, read: 0, write: 0 })
            }
            None if pass.has_emptied => {
                pass.next = ids;
                self.next_of_pass(pass)
            }
            None => {
                self.collector.is_settled = true;
                None
            }
        }
    }

    /// Moves the first item ahead, or ends with this victim; the work, and the victim's run if it
    /// became empty.
    pub(super) fn step(&mut self, moves: Moves) -> (usize, Option<PageRun>) {
        let victim = self.collector.victim.expect("there is a victim");
        let Victim { region, read, write } = victim;
        let region_bytes = self.regions.region_bytes(region);
        if read == region_bytes {
            self.collector.victim = None;
            self.collector.rest_bytes =
                region_bytes >> (REST_DOUBLINGS - self.collector.fruitless.min(REST_DOUBLINGS));
            self.collector.fruitless += 1;
            self.set_free(place(region, write), region_bytes - write);
            return (ITEM_WORK, None);
        }
        let at = place(region, read);
        let item = self.regions.item(at);
        let read = read + item.bytes();
        let Item::Object { bytes, cell } = item else {
            self.unlist(at, item);
            self.collector.victim = Some(Victim { read, ..victim });
            return (ITEM_WORK, None);
        };
        let hole = if moves == Moves::ToHoles { self.take_hole(bytes) } else { None };
        let to = hole.unwrap_or(place(region, write));
        if to != at {
            self.regions.copy(at, to, bytes);
            self.handles.relocate(cell, to);
        }
        let write = if hole.is_none() { write + bytes } else { write };
        self.collector.victim = Some(Victim { region, read, write });
        let mut emptied = None;
        if hole.is_some() && self.regions.free(region, bytes) {
            self.collector.fruitless = 0;
            let run = self.drop_region(region);
            self.compacted += run.page_count();
            emptied = Some(run);
        }
        (ITEM_WORK + bytes, emptied)
    }
}
