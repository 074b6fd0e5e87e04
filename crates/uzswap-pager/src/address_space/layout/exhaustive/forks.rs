//! Every window with a fork: all orders of changes, of the fork, of their events, and of the
//! kernel's answers.
//!
//! Thread 0 of the parent forks, by the library, which reports that before, or by a system call. A
//! window is over when the supervisor has decided what the child has, and no event is pending.
//! Then the supervisor's steps are made again, by the real code: each page of the child must be
//! known or unknown, and each page of the parent.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;
use crate::address_space::fork_advice::ForkAdvice;
use crate::address_space::fork_evidence::ChildMappings;

/// The way of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Way {
    is_reported: bool,
    /// Of the parent.
    threads: usize,
}

/// How far the fork is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Before,
    /// The supervisor has answered the report.
    Reported,
    /// The child has its memory, and runs once the event was read.
    Forked,
    /// The supervisor has read the event.
    Read,
    /// The supervisor knows the child, which waits for events of its parent.
    Waits,
    /// The supervisor reads events of the child.
    Runs,
    Decided,
}

/// A step of the supervisor, with the memory as the kernel tells it at that moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    Report(Pages),
    Read(Change),
    /// The parent's changes are applied to its table.
    Settle(Pages),
    /// The event of the fork, and the answer about the parent's advice after it.
    Fork(Pages),
    EndWait {
        are_some_pending: bool,
    },
    ReadOfChild(Change),
    Decide(Pages),
}

/// An act of the program and its thread, to tell the story of a window that goes wrong.
type Act = (&'static str, usize, Option<Operation>);

/// A window up to now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    way: Way,
    stage: Stage,
    parent: Process,
    /// Empty before the fork.
    child: Process,
    steps: Vec<Step>,
    /// Changes of the program up to now.
    changes: usize,
    /// Threads that have changed something: the others are alike.
    active: usize,
}

/// Advice about forks, as /proc/PID/smaps tells it.
fn advice_of(pages: &Pages) -> ForkAdvice {
    let with = |advice| mappings(pages, |page| page.advice == advice);
    ForkAdvice {
        not_copied: with(Advice::Skip),
        wiped: with(Advice::Wipe),
        ..ForkAdvice::default()
    }
}

/// The kernel copies markers with memory. Wiped memory is registered, and empty.
fn forked(parent: &Process) -> Pages {
    let mut pages = parent.pages;
    for (number, page) in pages.iter_mut().enumerate() {
        match page.advice {
            Advice::Skip => *page = Page::UNMAPPED,
            Advice::Wipe if page.memory != Memory::Unmapped => {
                page.memory = Memory::Fresh { is_registered: page.memory.is_registered() };
            }
            Advice::Copy | Advice::Wipe => {}
        }
        page.is_dropping |= parent.drops.contains(&Some(number));
    }
    pages
}

impl State {
    fn new(way: Way, at_first: Pages) -> State {
        State {
            way,
            stage: Stage::Before,
            parent: Process::new(at_first),
            child: Process::new([Page::UNMAPPED; PAGES]),
            steps: Vec::new(),
            changes: 0,
            active: 0,
        }
    }

    /// Threads of the parent that may begin an operation: the first idle one of those alike.
    fn free_threads(&self) -> impl Iterator<Item = usize> {
        let may_begin = |thread: usize| match thread {
            0 => !matches!(self.stage, Stage::Reported | Stage::Forked),
            _ => thread <= self.active + 1,
        };
        let threads = if self.stage == Stage::Decided { 0 } else { self.way.threads };
        (0..threads).filter(move |&it| may_begin(it) && !self.parent.is_waiting(it))
    }

    /// Whether the child may change its mappings: after a reported fork it asks first.
    fn is_child_free(&self) -> bool {
        matches!(self.stage, Stage::Read | Stage::Waits | Stage::Runs)
            && !self.way.is_reported
            && !self.child.is_waiting(0)
    }

    fn with(&self, step: Step, stage: Stage) -> State {
        let mut next = State { stage, ..self.clone() };
        next.steps.push(step);
        next
    }

    /// Changes of the parent were read and not applied.
    fn is_unsettled(&self) -> bool {
        let steps = self.steps.iter().rev();
        steps
            .take_while(|step| !matches!(step, Step::Settle(_)))
            .any(|it| matches!(it, Step::Read(_)))
    }

    /// The supervisor applies the parent's changes, and marks late pages. `None` if a page is
    /// unknown: another window has its poison.
    fn settled(&self, at_first: &Pages) -> Option<State> {
        let mut next = self.with(Step::Settle(self.parent.pages), self.stage);
        let (Spaces { parent, .. }, is_unknown) = next.replay(at_first).unwrap();
        for (number, page) in next.parent.pages.iter_mut().enumerate() {
            if let Memory::Evicted { is_late, .. } = &mut page.memory {
                *is_late &= !parent.markers.marked.contains(address(number));
            }
        }
        (!is_unknown && parent.layout.poison_later == RangeSet::new()).then_some(next)
    }

    /// What the supervisor may do next.
    fn steps_of_supervisor(&self, at_first: &Pages) -> Vec<State> {
        let is_pending = self.parent.is_pending();
        let mut all = Vec::new();
        match self.stage {
            Stage::Before | Stage::Reported => {
                let may_report = self.stage == Stage::Before && self.way.is_reported;
                if may_report && !is_pending && !self.parent.is_waiting(0) {
                    all.push(self.with(Step::Report(self.parent.pages), Stage::Reported));
                }
                // Otherwise another window begins with the memory of now.
                let matters =
                    self.stage == Stage::Reported || self.parent.drops.iter().any(Option::is_some);
                if matters && !is_pending && self.is_unsettled() {
                    all.extend(self.settled(at_first));
                }
            }
            Stage::Forked => all.push(State { stage: Stage::Read, ..self.clone() }),
            Stage::Read => {
                let stage = if self.way.threads > 1 { Stage::Waits } else { Stage::Runs };
                all.push(self.with(Step::Fork(self.parent.pages), stage));
                return all;
            }
            Stage::Waits => {
                let are_some_pending = is_pending;
                all.push(self.with(Step::EndWait { are_some_pending }, Stage::Runs));
            }
            Stage::Runs if !self.child.is_pending() => {
                let mut pages = self.child.pages;
                let own_drop = self.child.drops[0];
                own_drop.into_iter().for_each(|page| pages[page].is_dropping = true);
                all.push(self.with(Step::Decide(pages), Stage::Decided));
            }
            Stage::Runs => {
                let mut next = self.clone();
                let change = next.child.pending[0].pop().expect("an event is pending");
                all.push(next.with(Step::ReadOfChild(change), self.stage));
            }
            Stage::Decided => {}
        }
        let reads = (0..THREADS).filter_map(|thread| {
            let mut next = self.clone();
            let change = next.parent.pending[thread].pop()?;
            Some(next.with(Step::Read(change), self.stage))
        });
        // After the decision, their order changes nothing for the child.
        let most = if self.stage == Stage::Decided { 1 } else { THREADS };
        all.extend(reads.take(most));
        all
    }

    /// What the program may do next.
    fn acts_of_program(&self, most: usize, operations: &[Operation]) -> Vec<(Act, State)> {
        let mut all = Vec::new();
        let changed = || State { changes: self.changes + 1, ..self.clone() };
        for &operation in operations.iter().filter(|_| self.changes < most) {
            // Advice before all else is the memory of another window.
            let is_first = self.changes == 0 && self.stage == Stage::Before;
            if is_first && matches!(operation, Operation::Advise(..)) {
                continue;
            }
            for thread in self.free_threads() {
                let mut parent = self.parent.clone();
                if parent.begin(thread, operation) {
                    let active = self.active.max(thread);
                    all.push((
                        ("thread", thread, Some(operation)),
                        State { parent, active, ..changed() },
                    ));
                }
            }
            let mut child = self.child.clone();
            if self.is_child_free() && child.begin(0, operation) {
                all.push((("child", 0, Some(operation)), State { child, ..changed() }));
            }
        }
        let is_ready = match self.way.is_reported {
            true => self.stage == Stage::Reported,
            false => self.stage == Stage::Before && !self.parent.is_waiting(0),
        };
        if is_ready {
            let child = Process::new(forked(&self.parent));
            all.push((("fork", 0, None), State { stage: Stage::Forked, child, ..self.clone() }));
        }
        for thread in 0..THREADS {
            let Some(page) = self.parent.drops[thread] else { continue };
            // After a settlement, it may as well have come before another page moved there.
            let is_late = self.steps.iter().any(|it| matches!(it, Step::Settle(_)))
                && !self.parent.pages[page].is_dropping;
            if !is_late && self.parent.pending[thread].is_empty() {
                let mut next = self.clone();
                next.parent.drop_page(thread);
                all.push((("drop", thread, None), next));
            }
        }
        if self.child.drops[0].is_some() && self.child.pending[0].is_empty() {
            let mut next = self.clone();
            next.child.drop_page(0);
            all.push((("drop in child", 0, None), next));
        }
        all
    }

    /// Makes the supervisor's steps. The spaces of parent and child after them, and whether a page
    /// of the child is unknown. An error names the page of which the child's table is wrong.
    fn replay(&self, at_first: &Pages) -> Result<(Spaces, bool), String> {
        let mut parent = space_of(at_first);
        let mut child = AddressSpace::of_nothing();
        let (mut waits, mut is_unknown) = (false, false);
        for step in &self.steps {
            match step {
                Step::Report(pages) => {
                    let is_alone = self.way.threads == 1;
                    parent.fork_reports.note_report(Some(advice_of(pages)), is_alone);
                }
                Step::Read(change) => {
                    if waits {
                        child.layout.note_change_of_parent(change.clone());
                    }
                    parent.changed(change.clone());
                }
                Step::Settle(pages) => assert!(parent.settle_with(pages)),
                Step::Fork(pages) => {
                    let advice = parent.advice_by(|_| Some(advice_of(pages)));
                    let left_out = child.inherit(&parent, advice);
                    child.inherit_stored(&parent, &left_out, |_| {});
                    waits = self.way.threads > 1;
                }
                Step::EndWait { are_some_pending } => {
                    if *are_some_pending {
                        child.layout.note_pending_of_parent();
                    }
                    waits = false;
                }
                Step::ReadOfChild(change) => child.changed(change.clone()),
                Step::Decide(pages) => {
                    is_unknown = decide(&mut child, pages, self.way.is_reported)?;
                }
            }
        }
        Ok((Spaces { parent, child }, is_unknown))
    }

    /// Whether the child may fork before it is decided: a direct fork, as it has reported none.
    fn may_fork_undecided(&self) -> bool {
        self.stage == Stage::Runs && self.is_child_free() && !self.child.is_pending()
    }

    /// Checks what a child of the undecided child has.
    fn check_grandchild(&self, at_first: &Pages, has_waited: bool) -> Result<(), String> {
        let mut child = self.replay(at_first)?.0.child;
        let mut grandchild = AddressSpace::of_nothing();
        let advice = child.advice_by(|_| Some(advice_of(&self.child.pages)));
        let left_out = grandchild.inherit(&child, advice);
        grandchild.inherit_stored(&child, &left_out, |_| {});
        let decided = decide(&mut grandchild, &forked(&self.child), has_waited);
        decided.map(drop).map_err(|wrong| format!("child of the child: {wrong}"))
    }

    /// Whether the window leaves a page unknown; or the page of which a table is wrong.
    fn check(&self, at_first: &Pages) -> Result<bool, String> {
        let (Spaces { mut parent, .. }, is_unknown) = self.replay(at_first)?;
        assert!(parent.settle_with(&self.parent.pages));
        let of_parent = check(&parent, &self.parent.pages, false);
        Ok(is_unknown | of_parent.map_err(|wrong| format!("parent: {wrong}"))?)
    }
}

struct Spaces {
    parent: AddressSpace,
    child: AddressSpace,
}

/// Decides what a child has, by its memory. Whether a page is unknown, or the page of which the
/// table is wrong.
fn decide(child: &mut AddressSpace, pages: &Pages, has_waited: bool) -> Result<bool, String> {
    child.decide(Some(&ChildMappings {
        registered: pages.registered().expect("an answer"),
        wiped: advice_of(pages).wiped,
        marked: pages.marked_in(0..u64::MAX).expect("an answer"),
        has_waited,
    }));
    check(child, pages, true)
}

/// Memory at first: each kind with each advice. Advice of other memory changes nothing.
fn memories(pages: usize) -> impl Iterator<Item = Pages> {
    let page = |memory, advice| Page { memory, advice, is_dropping: false };
    let kinds = move |number: usize| {
        let registered = [1, 3, 4].map(|kind| Memory::of_kind(kind, number));
        let advised =
            |memory| [Advice::Copy, Advice::Skip, Advice::Wipe].map(|it| page(memory, it));
        let fresh = Memory::Fresh { is_registered: false };
        let others = [Page::UNMAPPED, page(fresh, Advice::Copy)];
        others.into_iter().chain(registered.into_iter().flat_map(advised)).collect::<Vec<_>>()
    };
    let count = kinds(0).len();
    (0..count.pow(pages as u32)).filter_map(move |number| {
        let kind = |page: usize| number / count.pow(page as u32) % count;
        let page = |page| if page < pages { kinds(page)[kind(page)] } else { Page::UNMAPPED };
        // Pages are alike: one order of their kinds stands for the others.
        (0..pages).is_sorted_by_key(kind).then(|| [0, 1, 2, 3].map(page))
    })
}

/// The search through all windows that begin with the same memory.
struct Search<'a> {
    at_first: Pages,
    /// Changes of the program.
    most: usize,
    operations: &'a [Operation],
    /// Hashes of states: two ways to one state go on alike.
    seen: HashSet<u64>,
    story: Vec<Act>,
    counts: &'a mut Counts,
}

impl Search<'_> {
    fn go_on(&mut self, state: &State) {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        if !self.seen.insert(hasher.finish()) {
            return;
        }
        let Search { at_first, story, .. } = &self;
        let fail = |wrong| panic!("{wrong}; {at_first:?}, {story:?}, {state:?}");
        if state.stage == Stage::Decided && !state.parent.is_pending() {
            let is_unknown = state.check(at_first).unwrap_or_else(fail);
            return self.counts.add(is_unknown);
        }
        if state.may_fork_undecided() {
            for has_waited in [false, true] {
                state.check_grandchild(at_first, has_waited).unwrap_or_else(|it| _ = fail(it));
            }
        }
        for next in state.steps_of_supervisor(&self.at_first) {
            self.go_on(&next);
        }
        for (act, next) in state.acts_of_program(self.most, self.operations) {
            self.story.push(act);
            self.go_on(&next);
            self.story.pop();
        }
    }
}

#[test]
fn every_fork_leaves_each_page_known_or_poisoned() {
    let of_environment = |name| crate::address_space::layout::model::of_environment(name);
    let most = of_environment("UZSWAP_WINDOW_OPERATIONS").map(|most| most as usize);
    let pages = of_environment("UZSWAP_WINDOW_PAGES").unwrap_or(2) as usize;
    let mut operations = Operation::all(pages);
    for page in 0..pages {
        let all = [Advice::Copy, Advice::Skip, Advice::Wipe];
        operations.extend(all.map(|advice| Operation::Advise(page, advice)));
    }
    for (threads, is_reported) in [(1, false), (1, true), (THREADS, false), (THREADS, true)] {
        let way = Way { is_reported, threads };
        // Without late markers, and with them.
        let mut counts = <[Counts; 2]>::default();
        for at_first in memories(pages) {
            let number_of = |is_one: fn(&Page) -> bool| {
                at_first.iter().filter(|page| page.advice == Advice::Copy && is_one(page)).count()
            };
            let late = number_of(|page| page.memory.is_late());
            let evicted = number_of(|page| page.memory.slot().is_some());
            // By default, two changes from one memory, and one from all others.
            let default = if (evicted, late) == (pages, 1) { 2 } else { 1 };
            let mut search = Search {
                at_first,
                most: most.unwrap_or(default),
                operations: &operations,
                seen: HashSet::new(),
                story: Vec::new(),
                counts: &mut counts[usize::from(at_first.iter().any(|page| page.memory.is_late()))],
            };
            search.go_on(&State::new(way, at_first));
        }
        println!("{way:?}: {counts:?}");
        let [without, with] = counts;
        assert!(without.all > 2_000 && without.unknown * 4 < without.all, "{without:?}");
        assert!(with.all > 4_000 && with.unknown < with.all, "{with:?}");
    }
}
