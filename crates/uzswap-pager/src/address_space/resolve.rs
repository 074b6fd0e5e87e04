//! Where evicted pages are after changes of mappings by several threads.
//!
//! The kernel reports changes in any order. Markers tell which entries are those of evicted pages,
//! so the order matters only where memory moved: it decides which page is at which marker. This
//! tries each order of the moves that touch each other, and takes the orders that explain the
//! markers. A page on which these orders differ is unknown.

mod orders;

use std::ops::Range;

use crate::range_set::RangeSet;
use orders::Search;

/// A move of memory, by mremap(2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: Range<u64>,
    pub(super) to: u64,
    /// The move may have come after the moment in question.
    pub(super) is_optional: bool,
}

impl Move {
    pub(super) fn into(&self) -> Range<u64> {
        self.moved(&self.from)
    }

    /// The addresses of a part of the memory after the move.
    fn moved(&self, part: &Range<u64>) -> Range<u64> {
        let start = part.start - self.from.start + self.to;
        start..start + (part.end - part.start)
    }

    fn touches(&self, ranges: &RangeSet) -> bool {
        ranges.has_some_of(&self.from) || ranges.has_some_of(&self.into())
    }
}

/// Memory at addresses where other addresses had it before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The address of its start before.
    pub(super) was: u64,
}

impl Piece {
    pub(super) fn at(&self) -> Range<u64> {
        self.start..self.end
    }

    /// A part of it, by present addresses.
    fn part(&self, at: &Range<u64>) -> Option<Piece> {
        let (start, end) = (self.start.max(at.start), self.end.min(at.end));
        (start < end).then(|| Piece { start, end, was: self.was + (start - self.start) })
    }

    /// Its parts that were in one of these ranges before, and the others.
    fn split_by(&self, before: &RangeSet) -> (Vec<Piece>, Vec<Piece>) {
        let part = |was: Range<u64>| {
            let start = was.start - self.was + self.start;
            Piece { start, end: start + (was.end - was.start), was: was.start }
        };
        let within = before.within(self.before()).map(part).collect();
        (within, before.outside(self.before()).into_iter().map(part).collect())
    }

    /// Where its part of some addresses of before is now.
    pub(super) fn now_of(&self, before: &Range<u64>) -> Option<Range<u64>> {
        let was = before.start.max(self.was)..before.end.min(self.before().end);
        let at = |address: u64| address - self.was + self.start;
        (was.start < was.end).then(|| at(was.start)..at(was.end))
    }

    /// Its addresses before.
    pub(super) fn before(&self) -> Range<u64> {
        self.was..self.was + (self.end - self.start)
    }
}

/// Evicted pages before, markers now, and changes in between.
#[derive(Debug, Clone)]
pub(super) struct Evidence<'a> {
    pub(super) evicted: &'a RangeSet,
    /// Of the evicted pages: those without a marker, which the kernel refused.
    pub(super) late: &'a RangeSet,
    pub(super) marked: &'a RangeSet,
    pub(super) moves: &'a [Move],
    /// Ranges that were unmapped, each at once, if a limit or a sealed page did not prevent that.
    pub(super) unmaps: &'a [Range<u64>],
    /// Memory that was dropped or not copied, by an address on its way: its markers may be gone.
    pub(super) gone: &'a RangeSet,
    /// Registered mappings now, if the kernel was asked.
    pub(super) registered: Option<&'a RangeSet>,
    /// Memory that was registered since: it may be newer than an unmap.
    pub(super) registered_since: &'a RangeSet,
    /// The process is a child. Its fork may have skipped any memory that is not registered now.
    pub(super) is_of_child: bool,
}

/// An answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Resolved {
    /// Markers whose pages are known.
    pub(super) kept: Vec<Piece>,
    /// Where pages are whose content is not known: several orders explain the markers there, or a
    /// marker is gone.
    pub(super) unknown: RangeSet,
    /// Markers that no order explains.
    pub(super) unexplained: RangeSet,
}

impl Evidence<'_> {
    pub(super) fn resolve(&self) -> Resolved {
        let mut resolved = Resolved::default();
        let mut apart = self.marked.clone();
        apart.insert_all(self.evicted);
        for group in self.groups() {
            let touched = touched_by(&group);
            touched.iter().for_each(|range| apart.remove(range));
            self.resolve_group(&group, &touched, &mut resolved);
        }
        self.resolve_group(&[], &apart, &mut resolved);
        resolved
    }

    /// Moves in groups that touch no address of each other.
    fn groups(&self) -> Vec<Vec<Move>> {
        let mut groups: Vec<(RangeSet, Vec<Move>)> = Vec::new();
        for one in self.moves {
            let mut touched = touched_by(std::slice::from_ref(one));
            let mut moves = Vec::new();
            groups.retain_mut(|(others, group)| {
                let is_apart = !one.touches(others);
                if !is_apart {
                    touched.insert_all(others);
                    moves.append(group);
                }
                is_apart
            });
            moves.push(one.clone());
            groups.push((touched, moves));
        }
        groups.into_iter().map(|(_, moves)| moves).collect()
    }

    fn resolve_group(&self, moves: &[Move], touched: &RangeSet, resolved: &mut Resolved) {
        let within = |set: &RangeSet| {
            let mut found = RangeSet::new();
            touched.iter().flat_map(|range| set.within(range)).for_each(|it| found.insert(it));
            found
        };
        let marked = within(self.marked);
        let pieces = within(self.evicted);
        let mut reached = RangeSet::new();
        pieces.iter().for_each(|it| reached.insert_all(&reachable(moves, it)));
        let (moves, others): (Vec<Move>, Vec<Move>) =
            moves.iter().cloned().partition(|one| one.touches(&reached));
        let pieces = pieces.iter().map(|it| Piece { start: it.start, end: it.end, was: it.start });
        let mut search = Search::new(self, &marked, (&moves, &others));
        search.visit(search.first(pieces));
        let is_complete = !search.is_cut;
        let Some((first, others)) = search.best.split_first().filter(|_| is_complete) else {
            // Too many orders.
            let late = touched.iter().flat_map(|range| self.late.within(range));
            late.for_each(|range| resolved.unknown.insert_all(&reachable(&moves, range)));
            return resolved.unknown.insert_all(&marked);
        };
        let mut agreed = first.kept.clone();
        for other in others {
            agreed = agreed.iter().flat_map(|piece| parts_of_both(piece, &other.kept)).collect();
        }
        let mut unknown = RangeSet::new();
        let kept = search.best.iter().flat_map(|one| &one.kept);
        kept.for_each(|piece| unknown.insert(piece.at()));
        resolved.unexplained.insert_all(&marked.without(&unknown));
        for one in &search.best {
            unknown.insert_all(&one.doubtful);
            unknown.insert_all(&one.lost);
        }
        agreed.iter().for_each(|piece| unknown.remove(piece.at()));
        resolved.unknown.insert_all(&unknown);
        resolved.kept.append(&mut agreed);
    }
}

fn touched_by(moves: &[Move]) -> RangeSet {
    let mut touched = RangeSet::new();
    moves.iter().flat_map(|one| [one.from.clone(), one.into()]).for_each(|it| touched.insert(it));
    touched
}

/// Parts of a piece that others have from the same addresses.
fn parts_of_both<'a>(piece: &'a Piece, others: &'a [Piece]) -> impl Iterator<Item = Piece> + 'a {
    others.iter().filter_map(|other| {
        piece.part(&other.at()).filter(|part| other.part(&part.at()).as_ref() == Some(part))
    })
}

/// Addresses where memory may be after some of these moves, in any order.
pub(super) fn reachable(moves: &[Move], range: Range<u64>) -> RangeSet {
    let mut reached = RangeSet::new();
    reached.insert(range);
    loop {
        let before = reached.clone();
        for one in moves {
            let there: Vec<_> = reached.within(one.from.clone()).collect();
            there.iter().for_each(|part| reached.insert(one.moved(part)));
        }
        if reached == before {
            return reached;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 0x1000;
    const B: u64 = 0x2000;
    const C: u64 = 0x3000;
    const BYTES: u64 = 0x100;

    fn set(starts: &[u64]) -> RangeSet {
        let mut set = RangeSet::new();
        starts.iter().for_each(|&start| set.insert(start..start + BYTES));
        set
    }

    fn moves(all: &[(u64, u64)], is_optional: bool) -> Vec<Move> {
        let one = |&(from, to): &(u64, u64)| Move { from: from..from + BYTES, to, is_optional };
        all.iter().map(one).collect()
    }

    /// Evidence without an answer about registered memory.
    fn evidence<'a>(
        [evicted, late, marked, gone]: [&'a RangeSet; 4],
        moves: &'a [Move],
        unmaps: &'a [Range<u64>],
    ) -> Evidence<'a> {
        static NONE: RangeSet = RangeSet::new();
        let (registered, registered_since) = (None, &NONE);
        let is_of_child = false;
        Evidence {
            evicted,
            late,
            marked,
            moves,
            unmaps,
            gone,
            registered,
            registered_since,
            is_of_child,
        }
    }

    /// Where each marked page was, if that is known.
    fn origins(
        evicted: &[u64],
        marked: &[u64],
        moves: &[Move],
        unmaps: &[u64],
    ) -> Vec<(u64, Option<u64>)> {
        let (evicted, marks) = (set(evicted), set(marked));
        let none = &RangeSet::new();
        let unmaps: Vec<_> = unmaps.iter().map(|&at| at..at + BYTES).collect();
        let resolved = evidence([&evicted, none, &marks, none], moves, &unmaps).resolve();
        let was = |at: u64| {
            let mut all = resolved.kept.iter().filter(|piece| piece.at().contains(&at));
            all.next().map(|piece| piece.was + (at - piece.start))
        };
        for &at in marked {
            let is_unknown = resolved.unknown.contains(at) || resolved.unexplained.contains(at);
            assert_eq!(was(at).is_none(), is_unknown, "{resolved:x?}");
        }
        marked.iter().map(|&at| (at, was(at))).collect()
    }

    #[test]
    fn a_chain_of_moves_is_read_in_any_order() {
        for order in [[(A, B), (C, A)], [(C, A), (A, B)]] {
            let found = origins(&[A, C], &[A, B], &moves(&order, false), &[]);
            assert_eq!(found, [(A, Some(C)), (B, Some(A))]);
        }
        // One page of the two was evicted.
        for (evicted, at) in [(A, B), (C, A)] {
            let found = origins(&[evicted], &[at], &moves(&[(C, A), (A, B)], false), &[]);
            assert_eq!(found, [(at, Some(evicted))]);
        }
    }

    #[test]
    fn markers_tell_which_memory_is_gone() {
        assert_eq!(origins(&[A, B], &[A], &[], &[A, B]), [(A, Some(A))]);
        // The moved memory was unmapped, too.
        assert_eq!(origins(&[A], &[], &moves(&[(A, B)], false), &[B]), []);
    }

    #[test]
    fn an_unmap_takes_all_of_its_range_at_once() {
        // A page grows over memory that had moved there.
        let (evicted, marked, gone) = (&set(&[A, C]), &mut RangeSet::new(), &RangeSet::new());
        marked.insert(B..B + BYTES / 2);
        let mut moves = moves(&[(A, B), (C, B)], false);
        moves[1].from = C..C + BYTES / 2;
        let unmaps = std::slice::from_ref(&(B..B + BYTES));
        let resolved = evidence([evicted, gone, marked, gone], &moves, unmaps).resolve();
        assert_eq!(resolved.kept, [Piece { start: B, end: B + BYTES / 2, was: C }]);
    }

    #[test]
    fn a_part_of_before_is_where_its_piece_is() {
        let piece = Piece { start: B, end: B + 2 * BYTES, was: A };
        assert_eq!(piece.now_of(&(A..A + BYTES)), Some(B..B + BYTES));
        assert_eq!(piece.now_of(&(A + BYTES..C)), Some(B + BYTES..B + 2 * BYTES));
        assert_eq!(piece.now_of(&(0..A + 1)), Some(B..B + 1));
        assert_eq!([0..A, A + 2 * BYTES..C].map(|range| piece.now_of(&range)), [None, None]);
    }

    #[test]
    fn memory_that_a_fork_may_have_skipped_tells_nothing_about_moves() {
        let (evicted, marked, registered) = (&set(&[A, B]), &set(&[B]), &set(&[B]));
        let none = &RangeSet::new();
        let moves = &moves(&[(A, B)], true);
        let unmaps = std::slice::from_ref(&(B..B + BYTES));
        let of_parent = evidence([evicted, none, marked, none], moves, unmaps);
        let of_child =
            Evidence { registered: Some(registered), is_of_child: true, ..of_parent.clone() };
        // The page moved there, or the fork skipped it before.
        assert_eq!(of_child.resolve().unknown, set(&[B]));
        assert_eq!(of_parent.resolve().kept, [Piece { start: B, end: B + BYTES, was: A }]);
    }

    #[test]
    fn orders_that_differ_about_one_page_agree_about_another() {
        const D: u64 = 0x4000;
        let moves = moves(&[(A, C), (B, C), (D, A)], false);
        let found = origins(&[A, B, D], &[A, C], &moves, &[C]);
        assert_eq!(found, [(A, Some(D)), (C, None)]);
    }

    #[test]
    fn two_moves_to_one_place_leave_it_unknown() {
        let found = origins(&[A, B], &[C], &moves(&[(A, C), (B, C)], false), &[C]);
        assert_eq!(found, [(C, None)]);
    }

    #[test]
    fn pages_without_a_marker_are_where_all_orders_have_them() {
        let resolve = |moves: &[Move], gone: &[u64]| {
            let (evicted, late, marked) = (&set(&[A, C]), &set(&[A]), &set(&[C]));
            evidence([evicted, late, marked, &set(gone)], moves, &[]).resolve()
        };
        let to = |at: u64, was| Piece { start: at, end: at + BYTES, was };
        let back = resolve(&moves(&[(A, B), (B, A), (A, B)], false), &[]);
        assert_eq!(back.kept, [to(B, A), to(C, C)]);
        assert_eq!(back.unknown, RangeSet::new());
        // An unmap may have taken it.
        let gone = resolve(&moves(&[(A, B)], false), &[B]);
        assert_eq!((gone.kept, gone.unknown), (vec![to(C, C)], set(&[B])));
    }

    #[test]
    fn moves_to_and_fro_are_few_orders() {
        let all: Vec<(u64, u64)> = (0..20).flat_map(|_| [(A, B), (B, A)]).collect();
        assert_eq!(origins(&[A], &[A], &moves(&all, false), &[]), [(A, Some(A))]);
        // Each has its second event.
        let unmaps: Vec<u64> = (0..10).flat_map(|_| [A, B]).collect();
        assert_eq!(origins(&[A], &[A], &moves(&all[..20], false), &unmaps), [(A, Some(A))]);
    }

    #[test]
    fn a_move_may_have_come_after_a_fork() {
        let after = &moves(&[(A, B)], true);
        assert_eq!(origins(&[A], &[A], after, &[]), [(A, Some(A))]);
        assert_eq!(origins(&[A], &[B], after, &[]), [(B, Some(A))]);
        // Over other memory, which was unmapped before.
        assert_eq!(origins(&[A, B], &[A, B], after, &[B]), [(A, Some(A)), (B, Some(B))]);
        assert_eq!(origins(&[A, B], &[B], after, &[B]), [(B, Some(A))]);
        // The parent may have unmapped the memory that moved.
        assert_eq!(origins(&[A, B], &[B], after, &[A, B]), [(B, None)]);
    }

    #[test]
    fn a_page_without_a_marker_is_lost_unless_an_event_reports_that() {
        let (evicted, none) = (&set(&[A]), &RangeSet::new());
        let resolve =
            |gone: &[u64]| evidence([evicted, none, none, &set(gone)], &[], &[]).resolve();
        let (lost, gone) = (resolve(&[]), resolve(&[A]));
        assert_eq!((lost.unknown, gone.unknown), (set(&[A]), RangeSet::new()));
    }

    #[test]
    fn a_marker_without_an_evicted_page_is_unknown() {
        assert_eq!(origins(&[A], &[A, C], &[], &[]), [(A, Some(A)), (C, None)]);
    }

    #[test]
    fn too_many_orders_leave_all_unknown() {
        let ring: Vec<(u64, u64)> = (1..40).map(|at| (at * BYTES, (at + 1) * BYTES)).collect();
        let found = origins(&[BYTES], &[40 * BYTES], &moves(&ring, false), &[]);
        assert_eq!(found, [(40 * BYTES, None)]);
        // Moves that touch no others do not count.
        let apart: Vec<(u64, u64)> = (1..60).map(|at| (at << 20, (at + 100) << 20)).collect();
        let found = origins(&[1 << 20], &[101 << 20], &moves(&apart, false), &[]);
        assert_eq!(found, [(101 << 20, Some(1 << 20))]);
    }
}
