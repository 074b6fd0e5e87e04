//! Events of a parent that the supervisor reads after that of a fork.
//!
//! A thread reports a change some time after the change. So the parent may have unmapped or moved
//! memory before the fork although its event comes after it. The child's own mappings tell: all
//! that they have registered is there since the fork. A child waits for an answer until its
//! parent's events are read, so its mappings are those of the fork.

use std::ops::Range;

use super::fork_advice::{ForkAdvice, OwnMappings};
use super::{AddressSpace, PAGE, pages};
use crate::range_set::RangeSet;

/// Those of one fork.
#[derive(Debug, Default)]
pub(super) struct LaterEvents {
    pub(super) unmapped: RangeSet,
    moves: Vec<Move>,
    /// The supervisor has waited for others long enough.
    are_some_pending: bool,
}

/// The parent has moved memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: Range<u64>,
    pub(super) into: Range<u64>,
}

impl Move {
    /// The place of some of the memory after the move.
    pub(super) fn moved(&self, part: Range<u64>) -> Range<u64> {
        let at = |address: u64| address - self.from.start + self.into.start;
        at(part.start)..at(part.end)
    }

    /// As one move, if `next` has moved all of this memory on.
    fn followed_by(&self, next: &Move) -> Option<Move> {
        let is_whole = next.from.start <= self.into.start && self.into.end <= next.from.end;
        is_whole.then(|| Move { from: self.from.clone(), into: next.moved(self.into.clone()) })
    }
}

/// Whether the parent moved memory before the fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtFork {
    NotMoved,
    Moved,
    /// Both would leave the child as it is.
    Unknown,
}

impl AddressSpace {
    /// Notes for a child that is not decided that its parent has unmapped a range.
    pub(crate) fn note_unmapped_by_parent(&mut self, range: Range<u64>) {
        if let Some(undecided) = &mut self.undecided {
            undecided.later.unmapped.insert(range);
        }
    }

    /// Notes for a child that is not decided that its parent has moved a range.
    pub(crate) fn note_moved_by_parent(&mut self, from: Range<u64>, to: u64) {
        if let Some(undecided) = &mut self.undecided {
            let into = to..to + (from.end - from.start);
            undecided.later.moves.push(Move { from, into });
        }
    }

    /// Notes that its parent may report more, and that nobody waits for that.
    pub(crate) fn note_pending_of_parent(&mut self) {
        if let Some(undecided) = &mut self.undecided {
            undecided.later.are_some_pending = true;
        }
    }

    /// Places the child's memory where the fork left it. The number of evicted pages whose place
    /// is not known: the kernel must poison all missing pages at both addresses.
    pub(super) fn place_as_at_fork(
        &mut self,
        own: Option<&OwnMappings>,
        later: &LaterEvents,
        of_parent: &[ForkAdvice],
    ) -> usize {
        let mut doubtful = 0;
        for one in &later.moves {
            let is_elder = self.untold.has_some_of(&one.from);
            if !is_elder && !self.registered.has_some_of(&one.from) {
                continue;
            }
            let has_left = own.is_none_or(|own| !own.registered.has_some_of(&one.from));
            let further = later.moves.iter().filter(|_| has_left);
            let further = further.filter_map(|next| one.followed_by(next));
            for one in std::iter::once(one.clone()).chain(further) {
                let at_fork = own.map_or(AtFork::Unknown, |own| {
                    self.place_at_fork(own, &one, is_elder, of_parent)
                });
                match at_fork {
                    AtFork::NotMoved => {}
                    AtFork::Moved => {
                        self.relocate(&one, is_elder);
                        break;
                    }
                    AtFork::Unknown => doubtful += self.doubt(&one),
                }
            }
        }
        if let Some(own) = own
            && (later.are_some_pending || !later.moves.is_empty())
        {
            doubtful += self.doubt_unknown(own, of_parent);
        }
        doubtful
    }

    fn place_at_fork(
        &self,
        own: &OwnMappings,
        one: &Move,
        is_elder: bool,
        of_parent: &[ForkAdvice],
    ) -> AtFork {
        let Move { from, into } = one;
        let is_there = |range| own.registered.has_some_of(range);
        let was_left_out = || of_parent.iter().any(|it| it.not_copied.has_some_of(from));
        match (is_there(from), is_there(into)) {
            (_, false) => return AtFork::NotMoved,
            // Other memory is where it was.
            (_, true) if is_elder => return AtFork::Moved,
            (false, true) if !self.registered.has_some_of(into) && !was_left_out() => {
                return AtFork::Moved;
            }
            // Other memory may have been at the new address: the fork skipped the memory that
            // moved, or that moved after the fork. Or the move left empty memory behind
            // (MREMAP_DONTUNMAP).
            (_, true) => {}
        }
        // An evicted page is not resident.
        let resident = |range: &Range<u64>| own.resident_in(range.clone()).unwrap_or_default();
        // Nobody fills what MREMAP_DONTUNMAP left empty before the supervisor reads its event.
        if is_there(from) && resident(from) != RangeSet::new() {
            return AtFork::NotMoved;
        }
        let at_into = resident(into);
        let moved_page = |page: u64| page * PAGE - from.start + into.start;
        let cannot_have_moved =
            self.evicted_in(from).any(|page| at_into.contains(moved_page(page)));
        let cannot_have_stayed = self.evicted_in(into).any(|page| at_into.contains(page * PAGE));
        match (cannot_have_moved, cannot_have_stayed) {
            (true, false) => AtFork::NotMoved,
            (false, true) => AtFork::Moved,
            _ => AtFork::Unknown,
        }
    }

    /// Has all missing pages poisoned at both addresses, if some of them may be evicted ones. The
    /// number of these.
    fn doubt(&mut self, one: &Move) -> usize {
        let evicted = |range: &Range<u64>| {
            self.evicted_in(range).count() + self.elder.range(pages(range.clone())).count()
        };
        let doubtful = evicted(&one.from) + evicted(&one.into);
        if doubtful > 0 {
            for range in [one.from.clone(), one.into.clone()] {
                self.forget(range.clone());
                self.poison_later.insert(range);
            }
        }
        doubtful
    }

    /// Evicted pages may be absent although no advice of the parent says so. Then a pending event
    /// may have moved them to registered memory that the supervisor does not know: the kernel must
    /// poison all of that. The number of these evicted pages.
    fn doubt_unknown(&mut self, own: &OwnMappings, of_parent: &[ForkAdvice]) -> usize {
        let mut unknown = own.registered.without(&self.registered);
        self.identity_page().into_iter().for_each(|page| unknown.remove(page));
        if unknown == RangeSet::new() {
            return 0;
        }
        let is_explained =
            |page: &u64| of_parent.iter().any(|it| it.not_copied.contains(page * PAGE));
        let absent = self.registered.without(&own.registered);
        let unexplained = |part| self.evicted_in(&part).filter(|page| !is_explained(page)).count();
        let unexplained = absent.iter().map(unexplained).sum();
        if unexplained > 0 {
            self.poison_later.insert_all(&unknown);
        }
        unexplained
    }
}

#[cfg(test)]
mod tests {
    use super::super::fork_advice::Child;
    use super::super::inheritance::Uncertain;
    use super::*;
    use crate::page_table::{Entry, Place, UNKNOWN};

    /// Pages from the first number of each pair up to the second.
    type Pages<'a> = &'a [(u64, u64)];

    fn set(pages: Pages<'_>) -> RangeSet {
        let mut set = RangeSet::new();
        pages.iter().for_each(|(start, end)| set.insert(start * PAGE..end * PAGE));
        set
    }

    /// A child whose parent had evicted all pages that the supervisor knew by the fork.
    fn child_of(registered: Pages<'_>, later: LaterEvents) -> AddressSpace {
        let mut child = AddressSpace::of_nothing();
        child.registered = set(registered);
        for (page, slot) in registered.iter().flat_map(|&(start, end)| start..end).zip(0..) {
            child.table.set(page, Entry { place: Place::Stored(slot), ..UNKNOWN });
        }
        child.inherit_undecided(Uncertain { answers: vec![ForkAdvice::default()], later });
        child
    }

    /// Evicted pages, and pages to poison, of a child that has this registered and resident.
    fn decided(
        child: AddressSpace,
        registered: Pages<'_>,
        resident: Pages<'_>,
    ) -> (Vec<u64>, RangeSet) {
        let (registered, resident) = (set(registered), set(resident));
        let answers = Child::Assumed { resident, has_run: true };
        let own = OwnMappings { registered, wiped: RangeSet::new(), child: answers };
        decided_by(child, Some(own))
    }

    fn decided_by(mut child: AddressSpace, own: Option<OwnMappings>) -> (Vec<u64>, RangeSet) {
        let of_parent = child.undecided.take().unwrap();
        child.decide_by(own, true, of_parent);
        let poisoned = std::mem::take(&mut child.poison_later);
        (child.evicted_in(&(0..1000 * PAGE)).collect(), poisoned)
    }

    fn moved(moves: &[(u64, u64)]) -> LaterEvents {
        let moves = moves.iter().map(|(from, to)| Move {
            from: from * PAGE..(from + 4) * PAGE,
            into: to * PAGE..(to + 4) * PAGE,
        });
        LaterEvents { moves: moves.collect(), ..LaterEvents::default() }
    }

    fn found(evicted: Pages<'_>) -> (Vec<u64>, RangeSet) {
        (evicted.iter().flat_map(|&(start, end)| start..end).collect(), RangeSet::new())
    }

    #[test]
    fn a_child_has_what_its_parent_unmapped_after_the_fork() {
        // The fork did not copy the first page.
        let later = || LaterEvents { unmapped: set(&[(10, 18)]), ..LaterEvents::default() };
        let child = || child_of(&[(10, 18)], later());
        assert_eq!(decided(child(), &[(11, 18)], &[]), found(&[(11, 18)]));
        // The parent unmapped it before the fork, or the child's mappings are not known.
        assert_eq!(decided(child(), &[], &[]), found(&[]));
        assert_eq!(decided_by(child(), None), (Vec::new(), set(&[(10, 18)])));
    }

    #[test]
    fn memory_that_the_parent_moved_is_where_the_fork_left_it() {
        let child = |registered| child_of(registered, moved(&[(10, 50)]));
        // After the fork.
        assert_eq!(decided(child(&[(10, 14)]), &[(10, 14)], &[]), found(&[(10, 14)]));
        // Before it.
        assert_eq!(decided(child(&[(10, 14)]), &[(50, 54)], &[]), found(&[(50, 54)]));
        // Before it and on, in whichever order the supervisor read that.
        for moves in [[(10, 50), (50, 90)], [(50, 90), (10, 50)]] {
            let child = child_of(&[(10, 14)], moved(&moves));
            assert_eq!(decided(child, &[(90, 94)], &[]), found(&[(90, 94)]));
        }
        // Before it, and on after it.
        let mut two = child_of(&[(10, 14), (90, 94)], moved(&[(10, 50), (50, 90)]));
        two.table.set(91, UNKNOWN);
        let both = found(&[(50, 54), (90, 91), (92, 94)]);
        assert_eq!(decided(two, &[(50, 54), (90, 94)], &[(91, 92)]), both);
        assert_eq!(decided_by(child(&[(10, 14)]), None), (Vec::new(), set(&[(10, 14), (50, 54)])));
    }

    #[test]
    fn resident_pages_tell_where_memory_was_that_was_moved_over_other_memory() {
        let child = || {
            let mut child = child_of(&[(10, 14), (50, 54)], moved(&[(10, 50)]));
            // Of either memory, the parent had one page in memory.
            child.table.set(11, UNKNOWN);
            child.table.set(52, UNKNOWN);
            child
        };
        // The fork skipped what was moved after it, or copied both.
        assert_eq!(decided(child(), &[(50, 54)], &[(52, 53)]), found(&[(50, 52), (53, 54)]));
        let both = found(&[(10, 11), (12, 14), (50, 52), (53, 54)]);
        assert_eq!(decided(child(), &[(10, 14), (50, 54)], &[(11, 12), (52, 53)]), both);
        // A page at the old address: the memory there was not left empty.
        assert_eq!(decided(child(), &[(10, 14), (50, 54)], &[(11, 12)]), both);
        // It was moved before the fork.
        assert_eq!(decided(child(), &[(50, 54)], &[(51, 52)]), found(&[(50, 51), (52, 54)]));
        // Nothing tells.
        let doubtful = (Vec::new(), set(&[(10, 14), (50, 54)]));
        assert_eq!(decided(child(), &[(50, 54)], &[]), doubtful);
        assert_eq!(decided(child(), &[(10, 14), (50, 54)], &[]), doubtful);
    }

    #[test]
    fn memory_without_evicted_pages_is_not_poisoned() {
        let mut child = child_of(&[(10, 14)], moved(&[(10, 50)]));
        (10..14).for_each(|page| child.table.set(page, UNKNOWN));
        assert_eq!(decided_by(child, None), found(&[]));
    }

    #[test]
    fn memory_that_had_moved_before_other_memory_came_is_found() {
        let mut parent = AddressSpace::of_nothing();
        parent.registered = set(&[(10, 14), (50, 54)]);
        for (page, slot) in (10..14).chain(50..54).zip(0..) {
            parent.table.set(page, Entry { place: Place::Stored(slot), ..UNKNOWN });
        }
        // The event of an older move, from 10 to 90, comes after the fork.
        parent.moved(50 * PAGE..54 * PAGE, 10 * PAGE);
        let mut child = child_of(&[(10, 14)], moved(&[(10, 90)]));
        child.inherit_changes(&parent, &mut |_| {});
        assert_eq!(decided(child, &[(10, 14), (90, 94)], &[]), found(&[(10, 14), (90, 94)]));
    }

    #[test]
    fn events_that_were_not_waited_for_leave_no_page_in_doubt() {
        let later = || LaterEvents { are_some_pending: true, ..LaterEvents::default() };
        let child = || child_of(&[(10, 14)], later());
        assert_eq!(decided(child(), &[(50, 54)], &[]), (Vec::new(), set(&[(50, 54)])));
        assert_eq!(decided(child(), &[(10, 14), (50, 54)], &[]), found(&[(10, 14)]));
        assert_eq!(decided(child(), &[], &[]), found(&[]));
    }
}
