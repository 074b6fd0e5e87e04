//! The state of a log's collector: the region that it is emptying, and when the next one is due.

use super::regions::{NO_REGION, RegionId};
use super::{Place, offset_of, region_of};

/// The region that is being emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Victim {
    pub(super) region: RegionId,
    /// Where the items ahead begin.
    pub(super) read: usize,
    /// Where the objects end that found no hole.
    pub(super) write: usize,
}

/// The state of the collector of one log.
#[derive(Debug)]
pub(super) struct Collector {
    pub(super) victim: Option<Victim>,
    /// The region added last, which is filling up and no victim; it may be gone.
    pub(super) newest: RegionId,
    /// Nothing was inserted or removed since all was compacted.
    pub(super) is_settled: bool,
    /// Where the search for the next victim goes on.
    pub(super) hand: RegionId,
    /// Bytes to insert or remove before the next victim.
    pub(super) rest_bytes: usize,
    /// Victims in a row that did not become empty.
    pub(super) fruitless: u32,
}

impl Collector {
    pub(super) fn new() -> Collector {
        Collector {
            victim: None,
            newest: NO_REGION,
            is_settled: true,
            hand: 0,
            rest_bytes: 0,
            fruitless: 0,
        }
    }

    /// Whether a place is among the items ahead: holes there are not to be filled.
    #[inline]
    pub(super) fn has_ahead(&self, at: Place) -> bool {
        self.victim.is_some_and(|Victim { region, read, .. }| {
            region == region_of(at) && offset_of(at) >= read
        })
    }

    /// Where the items in front of the gap end, if the region is the victim.
    pub(super) fn end_of_items(&self, id: RegionId) -> Option<usize> {
        self.victim.filter(|victim| victim.region == id).map(|victim| victim.write)
    }

    /// The offset, or that behind the gap if it is the gap's.
    pub(super) fn over_gap(&self, id: RegionId, offset: usize) -> usize {
        match self.victim {
            Some(Victim { region, read, write }) if region == id && offset == write => read,
            _ => offset,
        }
    }

    /// A region goes away.
    pub(super) fn forget(&mut self, id: RegionId) {
        self.victim = self.victim.filter(|victim| victim.region != id);
    }
}
