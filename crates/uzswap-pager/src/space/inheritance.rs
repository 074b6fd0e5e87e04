//! Which memory of its parent a child has: the child's own mappings decide.
//!
//! A fork skips memory with `MADV_DONTFORK` and empties memory with `MADV_WIPEONFORK`. The kernel
//! reports neither advice, and a parent with threads may change it before and after the event of
//! the fork. The flags of the child's mappings stay as the fork made them until the child changes
//! them. So the supervisor reads them before it answers the first message of the child.

use std::io;
use std::ops::Range;

use super::{PAGE, Space};
use crate::process_files::ProcessFiles;
use crate::ranges::Ranges;
use crate::table::Place;

/// Memory that a fork treats in a way of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ForkAdvice {
    /// `MADV_DONTFORK`: the child does not have it.
    pub(crate) not_copied: Ranges,
    /// `MADV_WIPEONFORK`: the child has zeros.
    pub(crate) wiped: Ranges,
    /// Stacks of threads.
    pub(crate) stacks: Ranges,
}

impl ForkAdvice {
    /// The flags of such mappings in /proc/PID/smaps, in the order of the fields.
    const FLAGS: [&str; 3] = ["dc", "wf", "nh"];

    /// Asks the kernel for that of a process.
    pub(super) fn of(files: &ProcessFiles) -> io::Result<ForkAdvice> {
        let [not_copied, wiped, stacks] = files.mappings_with(ForkAdvice::FLAGS)?;
        Ok(ForkAdvice { not_copied, wiped, stacks })
    }
}

/// What is known of a parent's advice at a fork while which its threads ran.
#[derive(Debug)]
pub(crate) struct Uncertain {
    /// The kernel's answers: from before the fork, if the parent reported that, and from after it.
    pub(crate) answers: Vec<ForkAdvice>,
    /// The library reported the fork. Its handler touches the page of identity in the child before
    /// the program goes on there.
    pub(crate) was_reported: bool,
    pub(crate) later: LaterEvents,
}

/// Events of the parent that the supervisor read after that of the fork. The parent may have done
/// it before: a thread reports a change some time after the change.
#[derive(Debug, Default)]
pub(crate) struct LaterEvents {
    unmapped: Ranges,
    /// From where, and to which address.
    moved: Vec<(Range<u64>, u64)>,
    /// The supervisor has waited for others long enough.
    are_some_pending: bool,
}

/// What the mappings of a child say.
#[derive(Debug)]
struct OwnMappings {
    /// Registered with its userfaultfd: the child has it since the fork.
    registered: Ranges,
    /// With `MADV_WIPEONFORK`.
    wiped: Ranges,
}

impl OwnMappings {
    fn of(files: &ProcessFiles) -> io::Result<OwnMappings> {
        let [registered, wiped] = files.mappings_with(["um", "wf"])?;
        Ok(OwnMappings { registered, wiped })
    }
}

/// Where memory of the parent was at the fork, of which a later event tells that it was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtFork {
    NotMoved,
    Moved,
    /// Both would leave the child's mappings as they are.
    Unknown,
}

impl OwnMappings {
    /// Decides that. The child's memory is registered where the fork left it. `watched` is what
    /// the supervisor knew to be registered by the event of the fork.
    fn place_at_fork(
        &self,
        (from, into): (&Range<u64>, &Range<u64>),
        is_elder: bool,
        watched: &Ranges,
        of_parent: &[ForkAdvice],
    ) -> AtFork {
        let is_there = |range| self.registered.has_some_of(range);
        let was_left_out = || of_parent.iter().any(|it| it.not_copied.has_some_of(from));
        match (is_there(from), is_there(into)) {
            (_, false) => AtFork::NotMoved,
            // Other memory is where it was.
            _ if is_elder => AtFork::Moved,
            (true, true) if watched.has_some_of(into) => AtFork::NotMoved,
            // By MREMAP_DONTUNMAP; or the memory there was just registered.
            (true, true) => AtFork::Unknown,
            (false, true) if watched.has_some_of(into) || was_left_out() => AtFork::Unknown,
            (false, true) => AtFork::Moved,
        }
    }
}

/// What a fork left out of a child's memory.
#[derive(Debug, Default, PartialEq, Eq)]
struct LeftOut {
    absent: Ranges,
    wiped: Ranges,
    /// Whether these are there, or wiped, is not known.
    doubtful: Ranges,
}

/// Decides by the child's mappings, and by those of its parent before and after the fork. The child
/// decides alone if its program has not run since the fork (`is_first`).
fn decide(
    watched: &Ranges,
    own: Option<&OwnMappings>,
    is_first: bool,
    of_parent: &[ForkAdvice],
) -> LeftOut {
    let wiped_of_parent = of_parent.iter().map(|advice| &advice.wiped);
    // A child that unmaps memory waits until the supervisor has read that.
    let absent = match own {
        Some(own) => Agreed::on(watched.without(&own.registered)),
        None => Agreed::between(of_parent.iter().map(|advice| &advice.not_copied), watched),
    };
    let wiped = match own {
        Some(own) if is_first => Agreed::on(own.wiped.clone()),
        Some(own) => Agreed::between(wiped_of_parent.chain([&own.wiped]), watched),
        None => Agreed::between(wiped_of_parent, watched),
    };
    let mut doubtful = absent.differing;
    doubtful.insert_all(&wiped.differing);
    LeftOut { absent: absent.all, wiped: wiped.all, doubtful }
}

/// Memory that all answers name, and memory that some of them name.
struct Agreed {
    all: Ranges,
    differing: Ranges,
}

impl Agreed {
    fn on(all: Ranges) -> Agreed {
        Agreed { all, differing: Ranges::new() }
    }

    /// Nothing is agreed on without an answer.
    fn between<'a>(mut answers: impl Iterator<Item = &'a Ranges>, whole: &Ranges) -> Agreed {
        let Some(first) = answers.next() else {
            return Agreed { all: Ranges::new(), differing: whole.clone() };
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

impl Space {
    /// The child has all evicted pages of its parent until it is asked.
    pub(crate) fn inherit_undecided(&mut self, of_parent: Uncertain) {
        self.undecided = Some(of_parent);
    }

    /// Whether it is not known which memory of its parent it has.
    pub(crate) fn is_undecided(&self) -> bool {
        self.undecided.is_some()
    }

    /// Notes for a child that is not decided that its parent has unmapped a range.
    pub(crate) fn note_unmapped_by_parent(&mut self, range: Range<u64>) {
        if let Some(undecided) = &mut self.undecided {
            undecided.later.unmapped.insert(range);
        }
    }

    /// Notes for a child that is not decided that its parent has moved a range.
    pub(crate) fn note_moved_by_parent(&mut self, from: Range<u64>, to: u64) {
        if let Some(undecided) = &mut self.undecided {
            undecided.later.moved.push((from, to));
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
    fn place_as_at_fork(
        &mut self,
        own: Option<&OwnMappings>,
        moved: &[(Range<u64>, u64)],
        of_parent: &[ForkAdvice],
        release: &mut dyn FnMut(u32),
    ) -> usize {
        let into = |(from, to): &(Range<u64>, u64)| *to..*to + (from.end - from.start);
        let meet = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
        let mut doubtful = 0;
        for one in moved {
            let (from, to) = (one.0.clone(), into(one));
            let goes_on = |it: &(Range<u64>, u64)| meet(&from, &into(it)) || meet(&to, &it.0);
            let moves_once = !moved.iter().any(goes_on);
            let is_elder = self.untold.has_some_of(&from);
            if moves_once && !is_elder && !self.watched.has_some_of(&from) {
                continue;
            }
            let at_fork = own.filter(|_| moves_once).map_or(AtFork::Unknown, |own| {
                own.place_at_fork((&from, &to), is_elder, &self.watched, of_parent)
            });
            match at_fork {
                AtFork::NotMoved => {}
                AtFork::Moved => self.relocate(one.clone(), is_elder, release),
                AtFork::Unknown => {
                    for range in [from, to] {
                        let elder = self.elder.range(super::pages(range.clone())).count();
                        doubtful += self.evicted_in(&range).count() + elder;
                        self.forget(range.clone(), release);
                        self.poison_later.insert(range);
                    }
                }
            }
        }
        doubtful
    }

    /// Evicted pages may be absent although no advice of the parent says so. Then a pending event
    /// may have moved them to registered memory that the supervisor does not know: the kernel must
    /// poison all of that. The number of these evicted pages.
    fn doubt_unknown(
        &mut self,
        own: &OwnMappings,
        absent: &Ranges,
        of_parent: &[ForkAdvice],
    ) -> usize {
        let mut unknown = own.registered.without(&self.watched);
        self.identity_page().into_iter().for_each(|page| unknown.remove(page));
        let is_explained =
            |page: &u64| of_parent.iter().any(|it| it.not_copied.contains(page * PAGE));
        let unexplained = |part| self.evicted_in(&part).filter(|page| !is_explained(page)).count();
        let unexplained: usize = absent.iter().map(unexplained).sum();
        if unexplained == 0 || unknown == Ranges::new() {
            return 0;
        }
        self.poison_later.insert_all(&unknown);
        unexplained
    }

    /// Pages of a range that were evicted.
    fn evicted_in(&self, range: &Range<u64>) -> impl Iterator<Item = u64> {
        let known = self.table.known(super::pages(range.clone()));
        known.filter(|(_, entry)| entry.place != Place::Program).map(|(page, _)| page)
    }

    /// Forgets pages that the fork left out. The caller has read the first message of the child,
    /// and has not answered it. `candidates` are processes that may be the child. The number of
    /// evicted pages that the child may have or not: [`Space::poison_doubtful`] must follow.
    pub(crate) fn decide_inheritance(
        &mut self,
        first: FirstMessage,
        candidates: &[u32],
        release: &mut dyn FnMut(u32),
    ) -> usize {
        let Some(of_parent) = self.undecided.take() else { return 0 };
        let own = match first {
            FirstMessage::Change => None,
            _ => self.own_mappings(candidates),
        };
        let is_first = of_parent.was_reported || first == FirstMessage::AsksIdentity;
        self.decide_by(own.as_ref(), is_first, of_parent, release)
    }

    fn decide_by(
        &mut self,
        own: Option<&OwnMappings>,
        is_first: bool,
        of_parent: Uncertain,
        release: &mut dyn FnMut(u32),
    ) -> usize {
        let Uncertain { answers, later, .. } = of_parent;
        let mut doubtful = self.place_as_at_fork(own, &later.moved, &answers, release);
        // From here on, its own events tell of changes after these.
        self.forget_changes(release);
        let mut left_out = decide(&self.watched, own, is_first, &answers);
        match own {
            Some(own) if later.are_some_pending => {
                doubtful += self.doubt_unknown(own, &left_out.absent, &answers);
            }
            Some(_) => {}
            None => left_out.doubtful.insert_all(&later.unmapped),
        }
        for part in left_out.absent.iter() {
            self.watched.remove(part.clone());
            self.forget(part, release);
        }
        left_out.wiped.iter().for_each(|part| self.forget(part, release));
        if let Some(last) = &mut self.advice {
            last.ranges.wiped = left_out.wiped;
        }
        for part in left_out.doubtful.iter() {
            let pages: Vec<u64> = self.evicted_in(&part).collect();
            doubtful += pages.len();
            for page in pages {
                self.poison_later.insert(page * PAGE..(page + 1) * PAGE);
            }
            self.forget(part, release);
        }
        doubtful
    }

    /// Poisons pages whose content is not known. The kernel refuses that while mappings change.
    pub(crate) fn poison_doubtful(&mut self) {
        loop {
            let next = self.poison_later.iter().next();
            let Some(part) = next else { return };
            let done = match self.uffd.poison(part.clone(), false) {
                Err(stopped) if stopped.done > 0 => stopped.done,
                Err(stopped) if stopped.errno == libc::EAGAIN => return,
                // A page is there, or nothing is mapped.
                Err(stopped) if matches!(stopped.errno, libc::EEXIST | libc::ENOENT) => PAGE,
                // All of it; or the process has ended.
                Ok(()) | Err(_) => part.end - part.start,
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
        OwnMappings::of(&files).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Entry, UNKNOWN};

    /// Pages from the first number of each pair up to the second.
    fn set(pages: &[(u64, u64)]) -> Ranges {
        let mut set = Ranges::new();
        pages.iter().for_each(|(start, end)| set.insert(start * PAGE..end * PAGE));
        set
    }

    fn advice(not_copied: Ranges, wiped: Ranges) -> ForkAdvice {
        ForkAdvice { not_copied, wiped, stacks: Ranges::new() }
    }

    #[test]
    fn a_child_that_has_not_run_decides_alone() {
        let own = OwnMappings { registered: set(&[(0, 6)]), wiped: set(&[(2, 4)]) };
        let of_parent =
            [advice(Ranges::new(), set(&[(0, 1)])), advice(set(&[(1, 2)]), set(&[(5, 6)]))];
        let left_out = decide(&set(&[(0, 8)]), Some(&own), true, &of_parent);
        let expected =
            LeftOut { absent: set(&[(6, 8)]), wiped: set(&[(2, 4)]), doubtful: Ranges::new() };
        assert_eq!(left_out, expected);
    }

    #[test]
    fn a_child_that_may_have_run_must_agree_with_its_parent() {
        let own = OwnMappings { registered: set(&[(0, 6)]), wiped: set(&[(2, 4)]) };
        let of_parent = [advice(Ranges::new(), set(&[(3, 5)]))];
        let left_out = decide(&set(&[(0, 8)]), Some(&own), false, &of_parent);
        // Memory that is not registered was not copied, in any case.
        let expected = LeftOut {
            absent: set(&[(6, 8)]),
            wiped: set(&[(3, 4)]),
            doubtful: set(&[(2, 3), (4, 5)]),
        };
        assert_eq!(left_out, expected);
    }

    /// A child whose parent had evicted some pages, with slots from 0 on.
    fn undecided_child(
        evicted: &[(u64, u64)],
        watched: &[(u64, u64)],
        later: LaterEvents,
    ) -> Space {
        let mut child = Space::of_nothing();
        child.watched = set(watched);
        let pages = evicted.iter().flat_map(|&(start, end)| start..end);
        for (page, slot) in pages.zip(0..) {
            child.table.set(page, Entry { place: Place::Stored(slot), ..UNKNOWN });
        }
        child.inherit_undecided(Uncertain {
            answers: vec![ForkAdvice::default()],
            was_reported: true,
            later,
        });
        child
    }

    /// Evicted pages and pages to poison, once the child's mappings were read.
    fn decided(mut child: Space, registered: Option<&[(u64, u64)]>) -> (Vec<u64>, Ranges) {
        let own = registered
            .map(|pages| OwnMappings { registered: set(pages), wiped: Ranges::default() });
        let of_parent = child.undecided.take().unwrap();
        child.decide_by(own.as_ref(), true, of_parent, &mut |_| {});
        let poisoned = std::mem::take(&mut child.poison_later);
        (child.evicted_in(&(0..1000 * PAGE)).collect(), poisoned)
    }

    fn moved(from: (u64, u64), to: u64) -> LaterEvents {
        LaterEvents {
            moved: vec![(from.0 * PAGE..from.1 * PAGE, to * PAGE)],
            ..LaterEvents::default()
        }
    }

    #[test]
    fn a_child_has_what_its_parent_unmapped_after_the_fork() {
        // The fork did not copy the first page.
        let later = || LaterEvents { unmapped: set(&[(10, 18)]), ..LaterEvents::default() };
        let child = || undecided_child(&[(10, 18)], &[(10, 18)], later());
        assert_eq!(decided(child(), Some(&[(11, 18)])), ((11..18).collect(), Ranges::new()));
        // The parent unmapped it before the fork, or the child's mappings are not known.
        assert_eq!(decided(child(), Some(&[])), (Vec::new(), Ranges::new()));
        assert_eq!(decided(child(), None), (Vec::new(), set(&[(10, 18)])));
    }

    #[test]
    fn memory_that_the_parent_moved_is_where_the_fork_left_it() {
        let child =
            |watched: &[(u64, u64)]| undecided_child(&[(10, 14)], watched, moved((10, 14), 50));
        // After the fork, over memory that was known or not there.
        for registered in [&[(10, 14)][..], &[(10, 14), (50, 54)], &[(12, 14), (50, 54)]] {
            let pages = (registered[0].0..14).collect();
            let known = child(&[(10, 14), (50, 54)]);
            assert_eq!(decided(known, Some(registered)), (pages, Ranges::new()));
        }
        // Before it.
        let at_new_place = (50..54).collect::<Vec<u64>>();
        assert_eq!(decided(child(&[(10, 14)]), Some(&[(50, 54)])), (at_new_place, Ranges::new()));
        // By MREMAP_DONTUNMAP; or the supervisor was just registering the memory there.
        let doubtful = (Vec::new(), set(&[(10, 14), (50, 54)]));
        assert_eq!(decided(child(&[(10, 14)]), Some(&[(10, 14), (50, 54)])), doubtful);
        // Over memory that was known: or the advice has changed for a moment.
        assert_eq!(decided(child(&[(10, 14), (50, 54)]), Some(&[(50, 54)])), doubtful);
        assert_eq!(decided(child(&[(10, 14)]), None), doubtful);
        // It moved twice.
        let mut later = moved((10, 14), 50);
        later.moved.push((50 * PAGE..54 * PAGE, 90 * PAGE));
        let child = undecided_child(&[(10, 14)], &[(10, 14)], later);
        let (evicted, poisoned) = decided(child, Some(&[(90, 94)]));
        assert!(evicted.is_empty() && poisoned.contains(90 * PAGE), "{poisoned:?}");
    }

    #[test]
    fn memory_that_had_moved_before_something_else_came_is_found() {
        let mut parent = Space::of_nothing();
        parent.watched = set(&[(10, 14), (50, 54)]);
        for (page, slot) in (10..14).chain(50..54).zip(0..) {
            parent.table.set(page, Entry { place: Place::Stored(slot), ..UNKNOWN });
        }
        // The event of an older move, 10 to 90, is read after the fork.
        parent.moved(50 * PAGE..54 * PAGE, 10 * PAGE, &mut |_| {});
        let mut child = undecided_child(&[(10, 14)], &[(10, 14)], moved((10, 14), 90));
        child.inherit_changes(&parent, &mut |_| {});
        let expected = ((10..14).chain(90..94).collect(), Ranges::new());
        assert_eq!(decided(child, Some(&[(10, 14), (90, 94)])), expected);
    }

    #[test]
    fn events_that_were_not_waited_for_leave_no_page_in_doubt() {
        let later = || LaterEvents { are_some_pending: true, ..LaterEvents::default() };
        let child = || undecided_child(&[(10, 14)], &[(10, 14)], later());
        let doubtful = (Vec::new(), set(&[(50, 54)]));
        assert_eq!(decided(child(), Some(&[(50, 54)])), doubtful);
        let evicted: Vec<u64> = (10..14).collect();
        assert_eq!(decided(child(), Some(&[(10, 14), (50, 54)])), (evicted, Ranges::new()));
        assert_eq!(decided(child(), Some(&[])), (Vec::new(), Ranges::new()));
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
