//! Which memory of its parent a child has: the child's own mappings decide.
//!
//! A fork skips memory with `MADV_DONTFORK` and empties memory with `MADV_WIPEONFORK`. The kernel
//! reports neither advice, and a parent with threads may change it before and after the event of
//! the fork. The flags of the child's mappings stay as the fork made them until the child changes
//! them. So the supervisor reads them before it answers the first message of the child.

use std::ops::Range;

use super::fork_advice::{ForkAdvice, OwnMappings};
use super::later_events::LaterEvents;
use super::{AddressSpace, PAGE};
use crate::page_table::Place;
use crate::program::procfs::ProcessFiles;
use crate::range_set::RangeSet;

/// The advice of a parent whose threads ran during the fork.
#[derive(Debug)]
pub(crate) struct Uncertain {
    /// The kernel's answers: from before the fork, if the parent reported that, and from after it.
    pub(crate) answers: Vec<ForkAdvice>,
    pub(super) later: LaterEvents,
}

/// Evicted pages that the child has by its own mappings or by those of its parent, but not by both.
/// Its own mappings are right if its program had not run when the supervisor read them.
#[derive(Debug)]
pub(super) struct Doubt {
    own: OwnMappings,
    ranges: RangeSet,
}

/// Memory that a fork did not copy to a child.
#[derive(Debug, Default, PartialEq, Eq)]
struct LeftOut {
    absent: RangeSet,
    wiped: RangeSet,
    /// Whether these are there, or wiped, is not known.
    doubtful: RangeSet,
}

/// Decides by the child's mappings, and by those of its parent before and after the fork. The child
/// decides alone if its program has not run since the fork (`is_first`).
fn decide(
    registered: &RangeSet,
    own: Option<&OwnMappings>,
    is_first: bool,
    of_parent: &[ForkAdvice],
) -> LeftOut {
    let wiped_of_parent = of_parent.iter().map(|advice| &advice.wiped);
    // A child that unmaps memory waits until the supervisor has read that.
    let absent = match own {
        Some(own) => Agreed::on(registered.without(&own.registered)),
        None => Agreed::between(of_parent.iter().map(|advice| &advice.not_copied), registered),
    };
    let wiped = match own {
        Some(own) if is_first => Agreed::on(own.wiped.clone()),
        Some(own) => Agreed::between(wiped_of_parent.chain([&own.wiped]), registered),
        None => Agreed::between(wiped_of_parent, registered),
    };
    let mut doubtful = absent.differing;
    doubtful.insert_all(&wiped.differing);
    LeftOut { absent: absent.all, wiped: wiped.all, doubtful }
}

/// Memory that all answers name, and memory that some of them name.
struct Agreed {
    all: RangeSet,
    differing: RangeSet,
}

impl Agreed {
    fn on(all: RangeSet) -> Agreed {
        Agreed { all, differing: RangeSet::new() }
    }

    /// Nothing is agreed on without an answer.
    fn between<'a>(mut answers: impl Iterator<Item = &'a RangeSet>, whole: &RangeSet) -> Agreed {
        let Some(first) = answers.next() else {
            return Agreed { all: RangeSet::new(), differing: whole.clone() };
        };
        let (mut all, mut any) = (first.clone(), first.clone());
        for answer in answers {
            all = all.without(&all.without(answer));
            any.insert_all(answer);
        }
        Agreed { differing: any.without(&all), all }
    }
}

/// The first message of a child since the fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstMessage {
    /// It asks for its secret, as the library does before the program goes on.
    AsksIdentity,
    /// Another fault, or a fork of its own: it has not changed its mappings before.
    Fault,
    /// It has changed its mappings.
    Change,
}

impl AddressSpace {
    /// The child has all evicted pages of its parent until it is asked.
    pub(crate) fn inherit_undecided(&mut self, of_parent: Uncertain) {
        self.undecided = Some(of_parent);
    }

    /// Whether it is not known which memory of its parent it has.
    pub(crate) fn is_undecided(&self) -> bool {
        self.undecided.is_some()
    }

    /// Pages of a range that were evicted.
    pub(super) fn evicted_in(&self, range: &Range<u64>) -> impl Iterator<Item = u64> {
        let known = self.table.known(super::pages(range.clone()));
        known.filter(|(_, entry)| entry.place != Place::Program).map(|(page, _)| page)
    }

    /// Forgets pages that the fork left out. The caller has read the first message of the child,
    /// and has not answered it. `candidates` are processes that may be the child. The number of
    /// evicted pages that the child may have or not: [`AddressSpace::poison_doubtful`] must follow.
    pub(crate) fn decide_inheritance(&mut self, first: FirstMessage, candidates: &[u32]) -> usize {
        let Some(of_parent) = self.undecided.take() else { return 0 };
        let own = match first {
            FirstMessage::Change => None,
            _ => self.own_mappings(candidates),
        };
        self.decide_by(own, first == FirstMessage::AsksIdentity, of_parent)
    }

    pub(super) fn decide_by(
        &mut self,
        own: Option<OwnMappings>,
        is_first: bool,
        of_parent: Uncertain,
    ) -> usize {
        let Uncertain { answers, later } = of_parent;
        let all = own;
        let own = all.as_ref();
        let mut doubtful = self.place_as_at_fork(own, &later, &answers);
        // From here on, its own events tell of changes after these.
        self.forget_changes();
        let mut left_out = decide(&self.registered, own, is_first, &answers);
        if own.is_none() {
            left_out.doubtful.insert_all(&later.unmapped);
        }
        for part in left_out.absent.iter() {
            self.registered.remove(part.clone());
            self.forget(part);
        }
        left_out.wiped.iter().for_each(|part| self.forget(part));
        if let Some(last) = &mut self.advice {
            last.ranges.wiped = left_out.wiped;
        }
        match all {
            Some(own) => {
                let ranges = left_out.doubtful;
                self.doubt = (ranges != RangeSet::new()).then_some(Doubt { own, ranges });
            }
            None => doubtful += self.poison_evicted(&left_out.doubtful),
        }
        doubtful
    }

    /// Whether its own mappings and its parent's differ about an address.
    pub(crate) fn is_in_doubt(&self, address: u64) -> bool {
        self.doubt.as_ref().is_some_and(|doubt| doubt.ranges.contains(address))
    }

    /// Whether they differ about any address.
    pub(crate) fn has_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Ends the doubt, before a page of that memory is filled and before the child's mappings
    /// change. The library runs in a child before its program does, so it has not run yet when the
    /// supervisor reads the mappings at the first message. After a fork by system call alone it
    /// does not run. The number of evicted pages that the child may have or not.
    pub(crate) fn end_doubt_of_child(&mut self) -> usize {
        let Some(Doubt { own, ranges }) = self.doubt.take() else { return 0 };
        let page = self.identity_page().map_or(0, |page| page.start);
        if !own.has_run_library(page) {
            return self.poison_evicted(&ranges);
        }
        let wiped: Vec<_> = ranges.iter().flat_map(|part| own.wiped.within(part)).collect();
        wiped.into_iter().for_each(|part| self.forget(part));
        if let Some(last) = &mut self.advice {
            last.ranges.wiped = own.wiped;
        }
        0
    }

    /// Has evicted pages poisoned; how many those are.
    fn poison_evicted(&mut self, ranges: &RangeSet) -> usize {
        let mut count = 0;
        for part in ranges.iter() {
            let pages: Vec<u64> = self.evicted_in(&part).collect();
            count += pages.len();
            for page in pages {
                self.poison_later.insert(page * PAGE..(page + 1) * PAGE);
            }
            self.forget(part);
        }
        count
    }

    /// Poisons pages whose content is not known. The kernel refuses that while mappings change.
    pub(crate) fn poison_doubtful(&mut self) {
        loop {
            let next = self.poison_later.iter().next();
            let Some(mut part) = next else { return };
            let done = loop {
                let bytes = part.end - part.start;
                match self.uffd.poison(part.clone(), false) {
                    Err(stopped) if stopped.done > 0 => break stopped.done,
                    Err(stopped) if stopped.errno == libc::EAGAIN => return,
                    // The range crosses the border of a mapping, or nothing is mapped.
                    Err(stopped) if stopped.errno == libc::ENOENT && bytes > PAGE => {
                        part.end = part.start + bytes / PAGE / 2 * PAGE;
                    }
                    // A page is there, or nothing is mapped.
                    Err(stopped) if matches!(stopped.errno, libc::EEXIST | libc::ENOENT) => {
                        break PAGE;
                    }
                    // All of it; or the process has ended.
                    Ok(()) | Err(_) => break bytes,
                }
            };
            self.poison_later.remove(part.start..part.start + done);
        }
    }

    /// Whether the page of an address waits to be poisoned.
    pub(crate) fn awaits_poison(&self, address: u64) -> bool {
        self.poison_later.contains(address)
    }

    /// The mappings of the candidate that shows the secret of this space.
    fn own_mappings(&self, candidates: &[u32]) -> Option<OwnMappings> {
        self.tell_identity();
        let open = |&pid: &u32| ProcessFiles::of_thread(pid).ok();
        let files = candidates.iter().filter_map(open).find(|files| self.shows_secret(files))?;
        OwnMappings::of(files).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fork_advice::Child;
    use super::*;
    use crate::page_table::{Entry, UNKNOWN};

    /// Pages from the first number of each pair up to the second.
    fn set(pages: &[(u64, u64)]) -> RangeSet {
        let mut set = RangeSet::new();
        pages.iter().for_each(|(start, end)| set.insert(start * PAGE..end * PAGE));
        set
    }

    fn own(registered: RangeSet, wiped: RangeSet) -> OwnMappings {
        let child = Child::Assumed { resident: RangeSet::new(), has_run: false };
        OwnMappings { registered, wiped, child }
    }

    fn advice(not_copied: RangeSet, wiped: RangeSet) -> ForkAdvice {
        ForkAdvice { not_copied, wiped, stacks: RangeSet::new() }
    }

    #[test]
    fn a_child_that_has_not_run_decides_alone() {
        let own = own(set(&[(0, 6)]), set(&[(2, 4)]));
        let of_parent =
            [advice(RangeSet::new(), set(&[(0, 1)])), advice(set(&[(1, 2)]), set(&[(5, 6)]))];
        let left_out = decide(&set(&[(0, 8)]), Some(&own), true, &of_parent);
        let expected =
            LeftOut { absent: set(&[(6, 8)]), wiped: set(&[(2, 4)]), doubtful: RangeSet::new() };
        assert_eq!(left_out, expected);
    }

    #[test]
    fn a_child_that_may_have_run_must_agree_with_its_parent() {
        let own = own(set(&[(0, 6)]), set(&[(2, 4)]));
        let of_parent = [advice(RangeSet::new(), set(&[(3, 5)]))];
        let left_out = decide(&set(&[(0, 8)]), Some(&own), false, &of_parent);
        // Memory that is not registered was not copied, in any case.
        let expected = LeftOut {
            absent: set(&[(6, 8)]),
            wiped: set(&[(3, 4)]),
            doubtful: set(&[(2, 3), (4, 5)]),
        };
        assert_eq!(left_out, expected);
    }

    #[test]
    fn a_child_in_which_the_library_ran_decides_alone_later() {
        for has_run in [true, false] {
            let mut child = AddressSpace::of_nothing();
            child.registered = set(&[(0, 8)]);
            for page in 0..8 {
                let entry = Entry { place: Place::Stored(page as u32), ..UNKNOWN };
                child.table.set(page, entry);
            }
            let answers = vec![advice(RangeSet::new(), set(&[(0, 3)]))];
            let mut own = own(set(&[(0, 8)]), set(&[(2, 5)]));
            own.child = Child::Assumed { resident: RangeSet::new(), has_run };
            let of_parent = Uncertain { answers, later: LaterEvents::default() };
            assert_eq!(child.decide_by(Some(own), false, of_parent), 0);
            let in_doubt: Vec<u64> = (0..8).filter(|page| child.is_in_doubt(page * PAGE)).collect();
            assert_eq!(in_doubt, [0, 1, 3, 4]);
            let doubtful = child.end_doubt_of_child();
            let evicted: Vec<u64> = child.evicted_in(&(0..8 * PAGE)).collect();
            match has_run {
                true => assert_eq!((doubtful, evicted), (0, vec![0, 1, 5, 6, 7])),
                false => assert_eq!((doubtful, evicted), (4, vec![5, 6, 7])),
            }
            assert_eq!(child.poison_later == RangeSet::new(), has_run);
        }
    }

    #[test]
    fn without_the_child_the_answers_of_its_parent_must_agree() {
        let answers =
            [advice(set(&[(0, 2)]), set(&[(4, 6)])), advice(set(&[(1, 3)]), set(&[(4, 6)]))];
        let left_out = decide(&set(&[(0, 8)]), None, true, &answers);
        let expected = LeftOut {
            absent: set(&[(1, 2)]),
            wiped: set(&[(4, 6)]),
            doubtful: set(&[(0, 1), (2, 3)]),
        };
        assert_eq!(left_out, expected);
        let nothing = decide(&set(&[(0, 8)]), None, true, &[]);
        assert_eq!(nothing, LeftOut { doubtful: set(&[(0, 8)]), ..LeftOut::default() });
    }
}
