//! The victims of a round: which address spaces give pages, in which order and how many, and when
//! the evictor stores the staged ones.

use std::cmp::Reverse;
use std::time::Duration;

use crate::page_table::BATCH_PAGES;
use uzswap::page::PAGE_SIZE;

/// A process of so many bytes or fewer gives pages after all larger ones, and none while one of
/// those cannot give any. The larger one may wait for a debugger.
const KEPT_MAX: u64 = 1 << 20;

/// Pages of groups of so many members are evicted without a survey.
pub(super) const FEW: u32 = 2;

/// Pages of a batch, and their part of the resident pages. A thread that faults meanwhile waits for
/// the whole batch; larger batches make fewer of these moments.
const PAGES_MIN: usize = 128;
const PAGES_MAX: usize = BATCH_PAGES;
const PAGES_PART: usize = 80;

/// Staged batches of an address space before the oldest is stored, and about their part of its
/// resident pages.
const STAGED_MIN: usize = 2;
const STAGED_MAX: usize = 4;
const STAGED_PART: usize = 32;

/// An address space at the start of a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) resident_bytes: u64,
    /// The age of the pages that it would give, discounted by refaults.
    pub(crate) age: Duration,
    /// Processes that may share its pages, itself among them.
    pub(crate) members: u32,
}

impl Candidate {
    /// Whether it gives no pages; the helper of a space before it may be late.
    pub(crate) fn keeps_pages(&self, is_any_late: bool) -> bool {
        is_any_late && !self.is_large()
    }

    fn is_large(&self) -> bool {
        self.resident_bytes > KEPT_MAX
    }

    /// Whether more processes share its pages than the evictor takes without a survey.
    pub(crate) fn shares_widely(&self) -> bool {
        self.members > FEW
    }
}

/// Puts address spaces in the order in which the evictor asks them: that with the oldest pages
/// first, of equals the larger one.
pub(crate) fn sort<T>(spaces: &mut [(Candidate, T)]) {
    spaces.sort_by_key(|(one, _)| Reverse((one.is_large(), one.age, one.resident_bytes)));
}

/// Pages that end a round, for so many bytes above the goal. A hundred small processes give a few
/// pages each, so a sample of all after each would take longer than the eviction.
pub(crate) fn pages_wanted(excess_bytes: u64) -> usize {
    ((excess_bytes / PAGE_SIZE as u64) as usize).clamp(1, PAGES_MIN)
}

/// Whether pages that so many processes share may be evicted. Each process restores such a page for
/// itself, so a survey of the group (`is_surveyed`) or of all (`is_over`) must show that usage is
/// above the goal. A growing group seems to take more than it does. After many rounds without a
/// freed page the evictor takes `any`.
pub(crate) fn may_evict_shared(members: u32, is_surveyed: bool, is_over: bool, any: bool) -> bool {
    members <= FEW || is_surveyed || is_over || any
}

/// The batches of an address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batches {
    /// Pages of a batch.
    pages: usize,
    /// Staged batches before the oldest is stored.
    staged: usize,
}

impl Batches {
    /// The batches of an address space with so many resident bytes.
    pub(crate) fn of(resident_bytes: u64) -> Batches {
        let resident = (resident_bytes / PAGE_SIZE as u64) as usize;
        let pages = (resident / PAGES_PART).clamp(PAGES_MIN, PAGES_MAX);
        let staged = (resident / STAGED_PART).div_ceil(pages).clamp(STAGED_MIN, STAGED_MAX);
        Batches { pages, staged }
    }

    /// Bytes of a batch.
    pub(crate) fn bytes(&self) -> u64 {
        (self.pages * PAGE_SIZE) as u64
    }

    /// Pages to stage next to so many filled batches. A step may have filled two batches, and
    /// empties one.
    pub(crate) fn pages_to_stage(&self, filled: usize) -> usize {
        if filled > self.staged { 0 } else { self.pages }
    }

    /// Whether the evictor stores the oldest of so many filled batches, after a step that has moved
    /// pages or not. The next step needs an empty batch.
    pub(crate) fn is_oldest_due(&self, filled: usize, has_moved: bool, has_empty: bool) -> bool {
        filled >= self.staged || filled > 0 && !(has_moved && has_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_SIZE as u64;

    fn candidate(resident_bytes: u64, members: u32) -> Candidate {
        Candidate { resident_bytes, age: Duration::ZERO, members }
    }

    #[test]
    fn the_space_with_the_oldest_pages_is_asked_first_and_small_ones_last() {
        let of = |mib: u64, seconds| Candidate {
            age: Duration::from_secs(seconds),
            ..candidate(mib << 20, 1)
        };
        let mut spaces =
            [(of(9, 1), 'a'), (of(4, 7), 'b'), (of(8, 3), 'c'), (of(5, 7), 'd'), (of(1, 9), 'e')];
        sort(&mut spaces);
        assert_eq!(spaces.map(|(_, name)| name), ['d', 'b', 'c', 'a', 'e']);
    }

    #[test]
    fn a_small_space_keeps_its_pages_while_a_helper_is_late() {
        let keeps = |bytes, is_any_late| candidate(bytes, 1).keeps_pages(is_any_late);
        assert!(keeps(1 << 20, true) && !keeps((1 << 20) + 1, true));
        assert!(!keeps(1 << 20, false));
    }

    #[test]
    fn a_round_ends_after_the_excess_or_a_small_batch() {
        let wanted = |pages| pages_wanted(pages * PAGE);
        assert_eq!([0, 1, 2, 127, 128, 129].map(wanted), [1, 1, 2, 127, 128, 128]);
        assert_eq!(pages_wanted(3 * PAGE - 1), 2);
    }

    #[test]
    fn a_group_of_three_gives_shared_pages_only_after_a_survey_or_many_rounds() {
        assert_eq!([2, 3].map(|members| candidate(0, members).shares_widely()), [false, true]);
        let may = may_evict_shared;
        assert!(!may(3, false, false, false) && may(2, false, false, false));
        assert!(may(3, true, false, false) && may(3, false, true, false));
        assert!(may(3, false, false, true));
    }

    #[test]
    fn batches_grow_with_the_resident_pages_between_bounds() {
        for (resident, pages, staged) in [
            (0, 128, 2),
            (257 * 32 - 1, 128, 2),
            (257 * 32, 128, 3),
            (129 * 80 - 1, 128, 3),
            (129 * 80, 129, 3),
            (512 * 80 - 1, 511, 3),
            (512 * 80, 512, 3),
            (1537 * 32 - 1, 512, 3),
            (1537 * 32, 512, 4),
            (1 << 30, 512, 4),
        ] {
            let batches = Batches::of(resident * PAGE);
            assert_eq!(batches, Batches { pages, staged }, "{resident} pages");
            assert_eq!(batches.bytes(), pages as u64 * PAGE);
        }
    }

    #[test]
    fn the_oldest_batch_is_stored_once_enough_are_staged_or_none_can_be_added() {
        let batches = Batches { pages: 200, staged: 3 };
        assert_eq!([0, 3, 4].map(|filled| batches.pages_to_stage(filled)), [200, 200, 0]);
        let stores = |has_moved, has_empty| {
            [0, 1, 2, 3, 4].map(|filled| batches.is_oldest_due(filled, has_moved, has_empty))
        };
        assert_eq!(stores(true, true), [false, false, false, true, true]);
        for stuck in [stores(false, true), stores(true, false), stores(false, false)] {
            assert_eq!(stuck, [false, true, true, true, true]);
        }
    }
}
