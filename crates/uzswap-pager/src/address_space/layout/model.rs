//! A model of the kernel, and of a program whose threads change mappings. The supervisor reads
//! their events in any order. Whenever no event is pending, its table must be right for each page.
//!
//! A thread changes mappings under their lock, then begins its event, and returns once the event
//! was read. Steps of other threads and of the supervisor come between these. The supervisor evicts
//! pages, reads events, and registers new memory. Without forks.

mod program;
mod supervisor;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use super::{AddressSpace, Change, Kernel, PAGE, RangeSet, runs_of};
use crate::page_table::{Entry, Place, UNKNOWN};
use crate::program::vmas::Mapping;

/// Pages of address space: few, so that what one thread has given up is another's soon.
const PAGES: usize = 20;
const FIRST: u64 = 1 << 30;
const THREADS: usize = 3;
const LENGTH_MAX: usize = 5;

fn addresses(at: &Range<usize>) -> Range<u64> {
    FIRST + at.start as u64 * PAGE..FIRST + at.end as u64 * PAGE
}

fn address(at: usize) -> u64 {
    FIRST + at as u64 * PAGE
}

fn number(at: usize) -> u64 {
    address(at) / PAGE
}

fn places(range: &Range<u64>) -> Range<usize> {
    let place = |at: u64| (at.saturating_sub(FIRST) / PAGE) as usize;
    place(range.start)..place(range.end).min(PAGES)
}

#[derive(Debug, Clone, Copy)]
struct Page {
    mapping: u32,
    is_registered: bool,
    /// What the program has there.
    content: u64,
    /// The content in memory, if a page is there.
    resident: Option<u64>,
    /// An empty entry has the marker of an evicted page.
    is_marked: bool,
}

/// The kernel's side.
#[derive(Debug, Default)]
struct Machine {
    pages: Vec<Option<Page>>,
    mappings: u32,
    /// Pending events, and those that threads have not begun.
    changing: usize,
}

impl Machine {
    fn is_same(&self, a: usize, b: usize) -> bool {
        match (self.pages[a], self.pages[b]) {
            (Some(a), Some(b)) => (a.mapping, a.is_registered) == (b.mapping, b.is_registered),
            _ => false,
        }
    }

    fn mappings(&self) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for at in (0..PAGES).filter(|&at| self.pages[at].is_some()) {
            match found.last_mut() {
                Some(last) if last.end == at && self.is_same(at - 1, at) => last.end += 1,
                _ => found.push(at..at + 1),
            }
        }
        found
    }

    fn is_free(&self, range: &Range<usize>) -> bool {
        range.end <= PAGES && self.pages[range.clone()].iter().all(Option::is_none)
    }

    fn has_registered(&self, range: &Range<usize>) -> bool {
        self.pages[range.clone()].iter().flatten().any(|page| page.is_registered)
    }

    fn new_mapping(&mut self) -> u32 {
        self.mappings += 1;
        self.mappings
    }

    fn unmap(&mut self, range: &Range<usize>) {
        self.pages[range.clone()].fill(None);
    }

    /// UFFDIO_REGISTER: of all mappings that reach into the range, if the first of them does so.
    fn register(&mut self, range: &Range<usize>) -> bool {
        let mapped = self.pages[range.clone()].iter_mut().flatten();
        mapped.map(|page| page.is_registered = true).count() > 0
    }
}

impl Kernel for Machine {
    fn marked_in(&self, range: Range<u64>) -> Option<RangeSet> {
        let is_marked = |at: &usize| self.pages[*at].is_some_and(|page| page.is_marked);
        Some(runs_of(places(&range).filter(is_marked).map(number)))
    }

    fn registered(&self) -> Option<RangeSet> {
        let is_registered =
            |at: &Range<usize>| self.pages[at.start].is_some_and(|page| page.is_registered);
        let mut mappings = RangeSet::new();
        let all = self.mappings().into_iter().filter(is_registered);
        all.for_each(|at| mappings.insert_apart(addresses(&at)));
        Some(mappings)
    }

    fn is_changing(&self) -> bool {
        self.changing > 0
    }
}

#[derive(Debug, Clone)]
enum Event {
    Unmap(Range<usize>),
    Move(Range<usize>, usize),
    Remove(Range<usize>),
}

impl Event {
    fn ranges(&self) -> [Range<usize>; 2] {
        match self {
            Event::Unmap(range) | Event::Remove(range) => [range.clone(), 0..0],
            Event::Move(from, to) => [from.clone(), *to..*to + from.len()],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    /// The thread is about to report an event.
    Reports,
    /// Its event is pending.
    Waits,
    WasRead,
    /// The thread drops the pages that it has reported.
    Drops,
}

#[derive(Debug)]
struct Thread {
    regions: Vec<Range<usize>>,
    pending: VecDeque<Event>,
    state: State,
    drops: Range<usize>,
}

/// A scan for memory that is not registered, as [`crate::address_space::register`] has it.
#[derive(Debug, Default)]
enum Registrar {
    #[default]
    Waits,
    Scanned(Vec<Mapping>),
    Registers {
        parts: VecDeque<Range<u64>>,
        registered: Vec<Range<u64>>,
        is_settled: bool,
    },
    Registered(Vec<Range<u64>>),
    ScannedAgain(Vec<Range<u64>>, Vec<Mapping>),
}

struct World {
    seed: u64,
    state: u64,
    machine: Machine,
    threads: Vec<Thread>,
    /// Pending events, the oldest first.
    queue: Vec<(usize, Event)>,
    /// Nothing is read.
    is_locked: bool,
    space: AddressSpace,
    kept: BTreeMap<u32, u64>,
    slots: u32,
    contents: u64,
    command: Vec<usize>,
    /// Pages that the helper has moved, with their contents: the supervisor has not noted these.
    moved: Vec<(usize, u64)>,
    /// Pages whose content the supervisor does not know.
    unknown: usize,
    registrar: Registrar,
    history: Vec<String>,
}

impl World {
    fn new(seed: u64) -> World {
        let thread = |_| Thread {
            regions: Vec::new(),
            pending: VecDeque::new(),
            state: State::Runs,
            drops: 0..0,
        };
        World {
            seed,
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            machine: Machine { pages: vec![None; PAGES], ..Machine::default() },
            threads: (0..THREADS).map(thread).collect(),
            queue: Vec::new(),
            is_locked: false,
            space: AddressSpace::of_nothing(),
            kept: BTreeMap::new(),
            slots: 0,
            contents: 0,
            command: Vec::new(),
            moved: Vec::new(),
            unknown: 0,
            registrar: Registrar::default(),
            history: Vec::new(),
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 20) as usize % end
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn note(&mut self, text: String) {
        self.history.push(text);
    }

    fn fail(&self, text: &str) -> ! {
        panic!("seed {}: {text}; after:\n  {}", self.seed, self.history.join("\n  "));
    }

    fn step(&mut self) {
        match self.below(18) {
            0..8 => {
                let thread = self.below(THREADS);
                self.step_of(thread);
            }
            8..10 => self.read(),
            10..13 => self.leave(),
            _ => (0..3).for_each(|_| self.register()),
        }
        self.check();
    }

    fn check(&self) {
        if let Err(error) = self.space.audit() {
            self.fail(&format!("{error:?}"));
        }
        let mut slots = BTreeSet::new();
        self.space.table.for_each(&mut |_, entry| {
            if let Place::Stored(slot) = entry.place {
                slots.insert(slot);
            }
        });
        if !slots.iter().eq(self.kept.keys()) {
            self.fail(&format!("slots {slots:?} are known, and kept {:?}", self.kept));
        }
        if self.machine.changing > 0 || !self.space.layout.is_settled() || !self.moved.is_empty() {
            return;
        }
        let is_dropped = |at: &usize| {
            let mut threads = self.threads.iter();
            threads.any(|thread| thread.state == State::Drops && thread.drops.contains(at))
        };
        for at in (0..PAGES).filter(|at| !is_dropped(at)) {
            let known = match self.space.table.get(number(at)).place {
                Place::Stored(slot) => Some(self.kept[&slot]),
                Place::Staged(_) | Place::Program => None,
            };
            let is = match self.machine.pages[at] {
                None => None,
                // An evicted page.
                Some(Page { resident: None, content: 1.., is_registered: true, .. }) => {
                    self.machine.pages[at].map(|page| page.content)
                }
                Some(Page { resident: None, content: 1.., .. }) => {
                    self.fail(&format!("page {at} has left what is not registered"))
                }
                Some(Page { resident: None, .. }) if known == Some(0) => Some(0),
                Some(_) => None,
            };
            // The page moved there before the drop: the next fault shows that its marker is gone.
            let has_gone = is.is_none() && self.space.layout.removing.contains(address(at));
            if known != is && !has_gone {
                let page = self.machine.pages[at];
                self.fail(&format!(
                    "of page {at}, {known:?} is known, and {is:?} is true: {page:?}"
                ));
            }
            let is_registered = self.space.registration.ranges().contains(address(at));
            if is_registered && !self.machine.pages[at].is_some_and(|page| page.is_registered) {
                self.fail(&format!("page {at} counts as registered, and is not"));
            }
        }
    }

    /// Reads all events, registers all memory, and checks each page.
    fn end(&mut self) {
        while self.threads.iter().any(|thread| thread.state != State::Runs) {
            for thread in 0..THREADS {
                if self.threads[thread].state != State::Runs {
                    self.step_of(thread);
                }
            }
            self.register();
            self.read();
        }
        (0..40).for_each(|_| self.register());
        while self.is_locked {
            self.register();
        }
        self.check();
        for at in 0..PAGES {
            if self.machine.pages[at].is_some() {
                assert!(self.fault(at), "nothing is in the way");
            }
        }
        self.check();
    }
}

/// Two moves to one place, with an unmap between, leave it unknown which of the two came last, if
/// all pages of both were evicted. Few of these histories have that case; each has hundreds of
/// changes.
#[test]
fn the_table_is_right_whenever_no_event_is_pending() {
    const HISTORIES: u64 = 10_000;
    let histories = || of_environment("UZSWAP_MODEL_HISTORIES").unwrap_or(HISTORIES);
    let (mut wrong, mut unknown) = (Vec::new(), 0);
    let first = of_environment("UZSWAP_MODEL_SEED").unwrap_or(0);
    for seed in first..first + histories() {
        let history = || {
            let mut world = World::new(seed);
            (0..600).for_each(|_| world.step());
            world.end();
            world.unknown
        };
        match std::panic::catch_unwind(history) {
            Ok(pages) => unknown += u64::from(pages > 0),
            Err(_) => wrong.push(seed),
        }
    }
    println!("{unknown} histories with pages of unknown content");
    assert!(wrong.is_empty(), "{} are wrong: {wrong:?}", wrong.len());
    assert!(unknown * 20 <= histories(), "{unknown} histories leave pages unknown");
}

pub(super) fn of_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}
