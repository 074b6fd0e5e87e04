//! The lists of holes, by length: one for each 16 bytes up to a page, and for each KiB above.

use std::ops::Range;

use super::item::{Item, Links, write_hole};
use super::regions::Regions;
use super::{PLACE_BITS, Place, REGION_BYTES_MAX};

/// The end of a list.
const NOWHERE: Place = (1 << PLACE_BITS) - 1;

/// Holes are listed from this length on. No object of a usual length fits a shorter one. The
/// collector takes all holes of a region off their lists, so these are few: at most 980.
pub(super) const LISTED_BYTES_MIN: usize = 64;

const FINE_BYTES: usize = 16;
const FINE_BYTES_END: usize = 4096;
const FINE_LISTS: usize = FINE_BYTES_END / FINE_BYTES; // 256
const COARSE_BYTES: usize = 1024;
/// The list of the longest hole, and one more.
const LISTS: usize = FINE_LISTS + (REGION_BYTES_MAX - FINE_BYTES_END) / COARSE_BYTES + 1; // 321

/// Holes of the first list that are looked at: only some of them are long enough.
const TRIES: usize = 4;

/// Heads of the lists, and a bit for each that is not empty.
#[derive(Debug)]
pub(super) struct Holes {
    heads: [Place; LISTS],
    pub(super) nonempty: [u64; LISTS.div_ceil(64)],
}

impl Holes {
    pub(super) fn new() -> Holes {
        Holes { heads: [NOWHERE; LISTS], nonempty: [0; LISTS.div_ceil(64)] }
    }

    /// A hole of at least so many bytes: of those of about this length, else of the next ones that
    /// there are.
    #[inline]
    pub(super) fn find(&self, regions: &Regions, bytes: usize) -> Option<(Place, usize)> {
        let list = list_of(bytes);
        let mut hole = self.heads[list];
        for _ in 0..TRIES {
            if hole == NOWHERE {
                break;
            }
            let found = hole_bytes(regions, hole);
            if found >= bytes {
                return Some((hole, found));
            }
            hole = Links::of(regions.at(hole)).next;
        }
        let hole = self.heads[self.first_nonempty(list + 1..LISTS)?];
        Some((hole, hole_bytes(regions, hole)))
    }

    /// The first list of these that is not empty.
    fn first_nonempty(&self, lists: Range<usize>) -> Option<usize> {
        let mut number = lists.start / 64;
        let mut word = self.nonempty.get(number)? & u64::MAX << (lists.start % 64);
        while word == 0 {
            number += 1;
            word = *self.nonempty.get(number)?;
        }
        Some(number * 64 + word.trailing_zeros() as usize)
    }

    /// Makes a hole of free bytes and puts it at the head of its list.
    pub(super) fn list(&mut self, regions: &mut Regions, hole: Place, bytes: usize) {
        let list = list_of(bytes);
        let next = std::mem::replace(&mut self.heads[list], hole);
        self.nonempty[list / 64] |= 1 << (list % 64);
        write_hole(regions.at_mut(hole), bytes, Some(Links { next, previous: NOWHERE }));
        if next != NOWHERE {
            relink(regions, next, |links| links.previous = hole);
        }
    }

    /// Takes a hole off its list. The caller writes something else there.
    pub(super) fn unlist(&mut self, regions: &mut Regions, hole: Place, bytes: usize) {
        let Links { next, previous } = Links::of(regions.at(hole));
        if next != NOWHERE {
            relink(regions, next, |links| links.previous = previous);
        }
        if previous != NOWHERE {
            return relink(regions, previous, |links| links.next = next);
        }
        let list = list_of(bytes);
        self.heads[list] = next;
        if next == NOWHERE {
            self.nonempty[list / 64] &= !(1 << (list % 64));
        }
    }

    /// Checks that every list has holes of its own lengths alone, that its links agree, and that
    /// its bit is right; calls `seen` with each hole.
    pub(super) fn audit(
        &self,
        regions: &Regions,
        mut seen: impl FnMut(Place) -> Result<(), String>,
    ) -> Result<(), String> {
        for (list, &head) in self.heads.iter().enumerate() {
            if (head != NOWHERE) != (self.nonempty[list / 64] >> (list % 64) & 1 == 1) {
                return Err(format!("the bit of list {list} is wrong"));
            }
            let (mut hole, mut previous) = (head, NOWHERE);
            while hole != NOWHERE {
                seen(hole)?;
                let is_right = matches!(regions.item(hole), Item::Hole { bytes, is_listed: true }
                    if list_of(bytes) == list);
                let links = Links::of(regions.at(hole));
                if !is_right || links.previous != previous {
                    return Err(format!("the hole at {hole:#x} is on list {list}, wrongly"));
                }
                (previous, hole) = (hole, links.next);
            }
        }
        Ok(())
    }
}

/// The list of holes of this length.
fn list_of(bytes: usize) -> usize {
    match bytes {
        ..FINE_BYTES_END => bytes / FINE_BYTES,
        _ => FINE_LISTS + (bytes - FINE_BYTES_END) / COARSE_BYTES,
    }
}

fn hole_bytes(regions: &Regions, hole: Place) -> usize {
    let item = regions.item(hole);
    debug_assert!(matches!(item, Item::Hole { is_listed: true, .. }));
    item.bytes()
}

fn relink(regions: &mut Regions, hole: Place, change: impl FnOnce(&mut Links)) {
    let bytes = hole_bytes(regions, hole);
    let at = regions.at_mut(hole);
    let mut links = Links::of(at);
    change(&mut links);
    write_hole(at, bytes, Some(links));
}
