//! Changes of mappings, as events report them.

use std::ops::Range;

use super::PAGE;
use super::resolve::Move;
use crate::range_set::{RangeSet, overlap};

/// A change of mappings, as an event reports it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// munmap(2), or a mapping over others. A limit or a sealed page may have prevented it.
    Unmapped(Range<u64>),
    /// madvise(2): the pages go now or in a moment (P4).
    Dropped(Range<u64>),
    /// mremap(2), to an address.
    Moved(Range<u64>, u64),
}

impl Change {
    fn as_move(&self) -> Option<(&Range<u64>, u64)> {
        match self {
            Change::Moved(from, to) => Some((from, *to)),
            Change::Unmapped(_) | Change::Dropped(_) => None,
        }
    }

    /// Addresses that mean something else after it.
    pub(super) fn touched(&self) -> [Range<u64>; 2] {
        match self {
            Change::Unmapped(range) | Change::Dropped(range) => [range.clone(), 0..0],
            Change::Moved(from, to) => [from.clone(), *to..to + (from.end - from.start)],
        }
    }
}

/// Changes in the order in which they were read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes(Vec<Change>);

impl Changes {
    pub(super) fn push(&mut self, change: Change) {
        self.0.push(change);
    }

    pub(super) fn append(&mut self, later: &Changes) {
        self.0.extend_from_slice(&later.0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn touched(&self) -> RangeSet {
        self.touched_by(|_| true)
    }

    pub(super) fn moves(&self, is_optional: bool) -> impl Iterator<Item = Move> {
        let moves = self.0.iter().filter_map(Change::as_move);
        moves.map(move |(from, to)| Move { from: from.clone(), to, is_optional })
    }

    pub(super) fn unmaps(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().filter_map(|change| match change {
            Change::Unmapped(range) => Some(range.clone()),
            Change::Dropped(_) | Change::Moved(..) => None,
        })
    }

    pub(super) fn dropped(&self) -> RangeSet {
        self.touched_by(|change| matches!(change, Change::Dropped(_)))
    }

    /// Memory that the program drops where it is: nothing has moved there, or from there.
    pub(super) fn dropped_unmoved(&self) -> RangeSet {
        self.dropped().without(&self.touched_by(|change| change.as_move().is_some()))
    }

    /// Addresses whose mappings changed.
    pub(super) fn remapped(&self) -> RangeSet {
        self.touched_by(|change| !matches!(change, Change::Dropped(_)))
    }

    fn touched_by(&self, is_one: impl Fn(&Change) -> bool) -> RangeSet {
        let mut touched = RangeSet::new();
        let all = self.0.iter().filter(|change| is_one(change));
        all.flat_map(Change::touched).for_each(|range| touched.insert(range));
        touched
    }

    pub(super) fn touch(&self, range: &Range<u64>) -> bool {
        self.0.iter().flat_map(Change::touched).any(|it| overlap(&it, range))
    }

    /// Where a page is after these in their order; `None` if it is gone.
    pub(super) fn follow(&self, page: u64) -> Option<u64> {
        let followed = self.0.iter().try_fold(page * PAGE, |at, change| match change {
            Change::Moved(from, to) if from.contains(&at) => Some(at - from.start + to),
            Change::Moved(..) if change.touched()[1].contains(&at) => None,
            Change::Unmapped(range) | Change::Dropped(range) if range.contains(&at) => None,
            _ => Some(at),
        });
        followed.map(|at| at / PAGE)
    }

    /// Moves whose addresses no other change touches, but for the second event of a move that
    /// leaves no mapping behind.
    pub(super) fn sole_moves(&self) -> impl Iterator<Item = (&Range<u64>, Range<u64>)> {
        let is_apart = |one: &Change, other: &Change| {
            !one.touched().iter().any(|a| other.touched().iter().any(|b| overlap(a, b)))
        };
        self.0.iter().enumerate().filter_map(move |(number, change)| {
            let (from, _) = change.as_move()?;
            let mut others = self.0.iter().enumerate().filter(|(other, _)| *other != number);
            let [_, into] = change.touched();
            let is_second = |other: &Change| *other == Change::Unmapped(from.clone());
            let is_sole = others.all(|(_, it)| is_apart(change, it) || is_second(it));
            is_sole.then_some((from, into))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u64) -> Range<u64> {
        number * PAGE..(number + 1) * PAGE
    }

    fn changes(all: &[Change]) -> Changes {
        Changes(all.to_vec())
    }

    fn moved(from: u64, to: u64) -> Change {
        Change::Moved(page(from), to * PAGE)
    }

    #[test]
    fn each_kind_of_change_touches_its_addresses() {
        let dropped = |number| Change::Dropped(page(number));
        let all = changes(&[dropped(1), moved(3, 5), Change::Unmapped(page(7)), dropped(5)]);
        let numbers = |set: RangeSet| {
            (0..10).filter(|number| set.contains(number * PAGE)).collect::<Vec<u64>>()
        };
        assert_eq!(numbers(all.touched()), [1, 3, 5, 7]);
        assert_eq!(numbers(all.dropped()), [1, 5]);
        assert_eq!(numbers(all.dropped_unmoved()), [1], "memory has moved to the other page");
        assert_eq!(numbers(all.remapped()), [3, 5, 7]);
        let touch = (0..10).filter(|number| all.touch(&page(*number)));
        assert_eq!(touch.collect::<Vec<_>>(), [1, 3, 5, 7]);
        let expected = Move { from: page(3), to: 5 * PAGE, is_optional: true };
        assert_eq!(all.moves(true).collect::<Vec<_>>(), [expected]);
        assert_eq!(all.unmaps().map(|range| range.start / PAGE).collect::<Vec<_>>(), [7]);
        assert!(!all.is_empty() && changes(&[]).is_empty());
    }

    #[test]
    fn a_page_is_followed_through_the_changes_in_their_order() {
        let followed = |all: &[Change]| [1, 2, 3].map(|number| changes(all).follow(number));
        assert_eq!(followed(&[]), [Some(1), Some(2), Some(3)]);
        assert_eq!(followed(&[moved(1, 2)]), [Some(2), None, Some(3)], "over another page");
        assert_eq!(followed(&[moved(1, 2), moved(2, 9)]), [Some(9), None, Some(3)]);
        assert_eq!(followed(&[moved(2, 9), moved(1, 2)]), [Some(2), Some(9), Some(3)]);
        for gone in [Change::Unmapped(page(3)), Change::Dropped(page(3))] {
            assert_eq!(followed(std::slice::from_ref(&gone)), [Some(1), Some(2), None]);
            assert_eq!(followed(&[moved(3, 1), gone]), [None, Some(2), Some(1)]);
        }
    }

    #[test]
    fn a_sole_move_has_addresses_that_nothing_else_touches() {
        let sole = |all: &[Change]| changes(all).sole_moves().count();
        assert_eq!(sole(&[moved(1, 2), moved(3, 4)]), 2);
        assert_eq!(sole(&[moved(1, 2), Change::Unmapped(page(1))]), 1, "its second event");
        assert_eq!(sole(&[moved(1, 2), Change::Unmapped(page(2))]), 0);
        assert_eq!(sole(&[Change::Dropped(page(2)), moved(1, 2)]), 0);
        assert_eq!(sole(&[moved(1, 2), moved(2, 3), moved(7, 8)]), 1);
    }
}
