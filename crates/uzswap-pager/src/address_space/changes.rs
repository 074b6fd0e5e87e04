//! Changes of mappings, as events report them.

use std::ops::Range;

use super::PAGE;
use super::resolve::Move;
use crate::range_set::{RangeSet, overlap};

/// A change of mappings, as an event reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
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
