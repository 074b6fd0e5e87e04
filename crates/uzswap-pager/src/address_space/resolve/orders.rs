//! The search through the orders of moves and unmaps that touch each other.
//!
//! A state is the memory after some of the changes. The search makes each change that is left in
//! turn, and compares the states after all moves with the markers.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Evidence, Move, Piece, touched_by};
use crate::range_set::{RangeSet, overlap};

/// States that a search visits at most: five moves in a chain have 326 orders of subsets.
const STATES_MAX: usize = 1 << 12;

/// A piece on its way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Moving {
    piece: Piece,
    /// A change may have dropped it.
    may_be_gone: bool,
}

impl Moving {
    fn part(&self, at: &Range<u64>) -> Option<Moving> {
        Some(Moving { piece: self.piece.part(at)?, may_be_gone: self.may_be_gone })
    }

    /// Parts of the piece, with those in `gone` noted.
    fn noted(self, gone: &RangeSet) -> Vec<Moving> {
        let at = self.piece.at();
        let may_be_gone = self.may_be_gone;
        let part = |may_be_gone| {
            move |at: &Range<u64>| self.piece.part(at).map(|piece| Moving { piece, may_be_gone })
        };
        let within: Vec<_> = gone.within(at.clone()).collect();
        let mut parts: Vec<_> = within.iter().filter_map(part.clone()(true)).collect();
        parts.extend(gone.outside(at).iter().filter_map(part(may_be_gone)));
        parts
    }
}

/// Memory after some of the changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct State {
    /// The changes, by their numbers.
    made: u64,
    pieces: Vec<Moving>,
    /// Memory that has moved, and where it was: it is registered until an unmap. Not noted unless
    /// the kernel was asked.
    registered: RangeSet,
    /// Where nothing is registered after an unmap.
    cleared: RangeSet,
    /// Bytes of pages that a move has overwritten, although no event reports them as gone.
    unexplained: u64,
}

/// How an order explains the markers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Explanation {
    pub(super) kept: Vec<Piece>,
    /// Where pages without a marker may be, or are gone.
    pub(super) doubtful: RangeSet,
    /// Where pages should be: they have no marker, and no event reports them as gone.
    pub(super) lost: RangeSet,
}

/// A search through the orders of some moves.
#[derive(Debug)]
pub(super) struct Search<'a> {
    evidence: &'a Evidence<'a>,
    marked: &'a RangeSet,
    moves: &'a [Move],
    /// Unmaps of memory that may move.
    unmaps: Vec<Range<u64>>,
    /// Memory that was unmapped. Nothing has moved there, or from there.
    unmapped: RangeSet,
    /// Memory that may be newer than an unmap: it was registered since, or other moves put it
    /// there.
    newer: RangeSet,
    seen: BTreeSet<State>,
    /// The best explanations, and the bytes that these leave unexplained.
    pub(super) best: Vec<Explanation>,
    unexplained: u64,
    /// There are too many orders.
    pub(super) is_cut: bool,
}

impl<'a> Search<'a> {
    /// A search through the orders of `moves`. Others of the group move no evicted page.
    pub(super) fn new(
        evidence: &'a Evidence<'_>,
        marked: &'a RangeSet,
        (moves, others): (&'a [Move], &[Move]),
    ) -> Search<'a> {
        let touched = touched_by(moves);
        let unmaps = evidence.unmaps.iter().filter(|range| touched.has_some_of(range));
        let mut unmapped = RangeSet::new();
        if moves.is_empty() {
            evidence.unmaps.iter().for_each(|range| unmapped.insert(range.clone()));
        }
        let mut newer = evidence.registered_since.clone();
        others.iter().for_each(|one| newer.insert(one.into()));
        Search {
            evidence,
            marked,
            moves,
            unmaps: unmaps.cloned().collect(),
            unmapped,
            newer,
            seen: BTreeSet::new(),
            best: Vec::new(),
            unexplained: 0,
            is_cut: false,
        }
    }

    /// The state before all changes.
    pub(super) fn first(&self, pieces: impl Iterator<Item = Piece>) -> State {
        let pieces = pieces.map(|piece| Moving { piece, may_be_gone: false });
        let pieces = pieces.flat_map(|it| it.noted(self.evidence.gone)).collect();
        let (registered, cleared) = (RangeSet::new(), RangeSet::new());
        State { made: 0, pieces, registered, cleared, unexplained: 0 }
    }

    /// Goes on after a state, in each order.
    pub(super) fn visit(&mut self, state: State) {
        let is_within = self.seen.len() < STATES_MAX && self.moves.len() + self.unmaps.len() < 64;
        if !is_within {
            self.is_cut = true;
        }
        if !is_within || !self.seen.insert(state.clone()) {
            return;
        }
        let is_made = |number: usize| state.made & 1 << number != 0;
        let mut is_end = true;
        let moves = self.moves;
        for (number, one) in moves.iter().enumerate() {
            // Moves alike are made in their order.
            let is_next = !(0..number).any(|at| !is_made(at) && moves[at] == *one);
            if !is_made(number) && is_next {
                is_end &= one.is_optional;
                let made = state.made | 1 << number;
                self.visit(State { made, ..self.after_move(&state, one) });
            }
        }
        for number in 0..self.unmaps.len() {
            let (range, bit) = (self.unmaps[number].clone(), moves.len() + number);
            let has_some = state.pieces.iter().any(|it| it.part(&range).is_some())
                || state.registered.has_some_of(&range);
            let is_next =
                !(0..number).any(|at| !is_made(moves.len() + at) && self.unmaps[at] == range);
            if !is_made(bit) && has_some && is_next {
                let made = state.made | 1 << bit;
                self.visit(State { made, ..self.after_unmap(&state, &range) });
            }
        }
        if is_end {
            self.end(&state);
        }
    }

    /// The state after a move.
    fn after_move(&self, state: &State, one: &Move) -> State {
        let (into, mut state) = (one.into(), state.clone());
        let (first, last) = match one.from.start < into.start {
            true => (&one.from, &into),
            false => (&into, &one.from),
        };
        let others = [0..first.start, first.end..last.start, last.end..u64::MAX];
        if self.evidence.registered.is_some() {
            state.registered.insert_all(&touched_by(std::slice::from_ref(one)));
        }
        state.cleared.remove(into.clone());
        // A child moves memory to where its fork has skipped some.
        let may_be_skipped = self.evidence.is_of_child && !one.is_optional;
        for it in std::mem::take(&mut state.pieces) {
            state.pieces.extend(others.iter().filter_map(|range| it.part(range)));
            if let Some(Moving { piece, may_be_gone }) = it.part(&one.from) {
                let Range { start, end } = one.moved(&piece.at());
                let piece = Piece { start, end, was: piece.was };
                let now = Moving { piece, may_be_gone };
                state.pieces.extend(now.noted(self.evidence.gone));
            }
            let lost = it.part(&into).filter(|part| !part.may_be_gone && !may_be_skipped);
            state.unexplained += bytes_of(lost.iter().map(|part| part.piece.at()));
        }
        state.pieces.sort_unstable();
        state
    }

    /// The state after an unmap.
    fn after_unmap(&self, state: &State, range: &Range<u64>) -> State {
        let mut state = state.clone();
        let others = [0..range.start, range.end..u64::MAX];
        let parts = |it: &Moving| others.clone().map(|range| it.part(&range));
        state.pieces = state.pieces.iter().flat_map(parts).flatten().collect();
        state.registered.remove(range.clone());
        self.newer.outside(range.clone()).into_iter().for_each(|part| state.cleared.insert(part));
        state
    }

    /// Compares a state with the markers.
    fn end(&mut self, state: &State) {
        let mut found = Explanation::default();
        let mut markers = self.marked.clone();
        for Moving { piece, may_be_gone } in &state.pieces {
            for at in self.marked.within(piece.at()) {
                found.kept.extend(piece.part(&at));
            }
            markers.remove(piece.at());
            for at in self.marked.outside(piece.at()) {
                let Some(missing) = piece.part(&at) else { continue };
                let (late, others) = missing.split_by(self.evidence.late);
                late.iter().for_each(|part| self.end_late(part, *may_be_gone, &mut found));
                let others = others.iter().filter(|_| !may_be_gone);
                others.for_each(|part| self.lose(part.at(), &mut found.lost));
            }
        }
        let unexplained =
            state.unexplained + self.unregistered(state) + markers.total() + found.lost.total();
        found.kept.sort_unstable();
        if self.best.is_empty() || unexplained < self.unexplained {
            self.unexplained = unexplained;
            self.best.clear();
        }
        if unexplained == self.unexplained && !self.best.contains(&found) {
            self.best.push(found);
        }
    }

    /// Bytes of a state that are registered and should not be, or the other way round.
    fn unregistered(&self, state: &State) -> u64 {
        let Some(mappings) = self.evidence.registered else { return 0 };
        let missing = match self.evidence.is_of_child {
            true => 0,
            false => state.registered.without(mappings).total(),
        };
        // Memory may also grow over unmapped addresses, without an event. Then the mapping there is
        // not the moved one.
        let is_moved = |mapping: &Range<u64>| {
            let mut moves = self.moves.iter().filter(|one| overlap(&Move::into(one), mapping));
            moves.next().is_some_and(|one| one.into() == *mapping) && moves.next().is_none()
        };
        let moved = mappings.iter().filter(is_moved);
        missing + bytes_of(moved.flat_map(|mapping| state.cleared.within(mapping)))
    }

    /// Compares a page that has no marker in any case.
    fn end_late(&self, part: &Piece, may_be_gone: bool, found: &mut Explanation) {
        let mut there = vec![part.at()];
        if let Some(registered) = self.evidence.registered {
            there = registered.within(part.at()).collect();
            let elsewhere = registered.outside(part.at()).into_iter().filter(|_| !may_be_gone);
            elsewhere.for_each(|at| self.lose(at, &mut found.lost));
        }
        for at in there {
            if may_be_gone {
                // Memory that did not move was dropped.
                if !self.moves.is_empty() {
                    found.doubtful.insert(at);
                }
                continue;
            }
            self.unmapped.within(at.clone()).for_each(|at| found.doubtful.insert(at));
            found.kept.extend(self.unmapped.outside(at).iter().filter_map(|at| part.part(at)));
        }
    }

    /// Notes pages as lost, unless they were unmapped, or a fork skipped them.
    fn lose(&self, at: Range<u64>, lost: &mut RangeSet) {
        let skipped = |at: &Range<u64>| match self.evidence.registered {
            Some(registered) if self.evidence.is_of_child => registered.outside(at.clone()),
            _ => Vec::new(),
        };
        for at in self.unmapped.outside(at) {
            lost.insert(at.clone());
            skipped(&at).into_iter().for_each(|part| lost.remove(part));
        }
    }
}

fn bytes_of(ranges: impl Iterator<Item = Range<u64>>) -> u64 {
    ranges.map(|range| range.end - range.start).sum()
}
