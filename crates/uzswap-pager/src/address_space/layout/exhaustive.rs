//! Every window of changes: three threads, four pages, all orders of changes and of their events.
//!
//! A window begins and ends while no event is pending. Nobody fills or evicts pages in between, so
//! each history is a row of windows. At the end of a window the table must name each evicted page
//! where it is; or the page is unknown, and is poisoned.

mod forks;

use std::fmt::{self, Debug, Formatter};
use std::ops::Range;

use super::{AddressSpace, Change, Kernel, PAGE, runs_of};
use crate::page_table::{Entry, Place, UNKNOWN};
use crate::range_set::RangeSet;

const PAGES: usize = 4;
const FIRST: u64 = 1 << 20;
const THREADS: usize = 3;

/// The memory at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Memory {
    Unmapped,
    /// Without an evicted page. No event reports changes of unregistered memory.
    Fresh {
        is_registered: bool,
    },
    /// With the evicted page that was at this address at first. The kernel refused late markers.
    Evicted {
        slot: usize,
        is_late: bool,
    },
}

impl Memory {
    /// Kinds of memory at first.
    const KINDS: usize = 5;

    fn of_kind(kind: usize, page: usize) -> Memory {
        match kind {
            0 => Memory::Unmapped,
            1 | 2 => Memory::Fresh { is_registered: kind == 1 },
            _ => Memory::Evicted { slot: page, is_late: kind == 4 },
        }
    }

    fn is_registered(self) -> bool {
        matches!(self, Memory::Fresh { is_registered: true } | Memory::Evicted { .. })
    }

    fn is_late(self) -> bool {
        matches!(self, Memory::Evicted { is_late: true, .. })
    }

    fn slot(self) -> Option<usize> {
        match self {
            Memory::Evicted { slot, .. } => Some(slot),
            Memory::Fresh { .. } | Memory::Unmapped => None,
        }
    }
}

/// Advice of a mapping about forks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Advice {
    Copy,
    /// `MADV_DONTFORK`.
    Skip,
    /// `MADV_WIPEONFORK`.
    Wipe,
}

/// A mapping of one page, or none.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Page {
    memory: Memory,
    advice: Advice,
    /// madvise(2) was about to drop it, and another call may have come first: zeros are right, too.
    is_dropping: bool,
}

impl Page {
    const UNMAPPED: Page =
        Page { memory: Memory::Unmapped, advice: Advice::Copy, is_dropping: false };
}

impl Debug for Page {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Page { memory, advice, is_dropping } = self;
        write!(f, "{memory:?} {advice:?}{}", if *is_dropping { " dropping" } else { "" })
    }
}

/// The memory of a process, as the kernel tells it.
type Pages = [Page; PAGES];

/// A change of one page by a thread.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Unmap(usize),
    /// The kernel reports it, and cannot do it.
    FailToUnmap(usize),
    MapOver(usize),
    /// madvise(2), which drops the page some time after its event was read.
    Drop(usize),
    /// mremap(2) to a page, over what is there; the old mapping may stay.
    Move {
        from: usize,
        to: usize,
        stays: bool,
    },
    /// madvise(2) about forks, without an event.
    Advise(usize, Advice),
}

impl Operation {
    /// All of so many pages, but advice.
    fn all(pages: usize) -> Vec<Operation> {
        let mut all = Vec::new();
        for from in 0..pages {
            all.extend([Operation::Unmap(from), Operation::FailToUnmap(from)]);
            all.extend([Operation::MapOver(from), Operation::Drop(from)]);
            for to in (0..pages).filter(|&to| to != from) {
                all.extend([false, true].map(|stays| Operation::Move { from, to, stays }));
            }
        }
        all
    }
}

fn address(page: usize) -> u64 {
    FIRST + page as u64 * PAGE
}

fn range(page: usize) -> Range<u64> {
    address(page)..address(page + 1)
}

/// A process whose threads change its mappings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Process {
    pages: Pages,
    /// Events of each thread that were not read, the first one last.
    pending: [Vec<Change>; THREADS],
    /// Pages that each thread drops once its event was read.
    drops: [Option<usize>; THREADS],
}

impl Process {
    fn new(pages: Pages) -> Process {
        Process { pages, pending: Default::default(), drops: [None; THREADS] }
    }

    /// Does an operation; `false` if the kernel would refuse it, or if it changes nothing.
    fn begin(&mut self, thread: usize, operation: Operation) -> bool {
        let before = self.pages;
        let is_mapped = |page: usize| before[page].memory != Memory::Unmapped;
        let is_registered = |page: usize| before[page].memory.is_registered();
        let unmapped = |page: usize| is_registered(page).then(|| Change::Unmapped(range(page)));
        let fresh = |is_registered| Memory::Fresh { is_registered };
        let mut events = Vec::new();
        match operation {
            Operation::Unmap(page) if is_mapped(page) => {
                self.pages[page] = Page::UNMAPPED;
                events.extend(unmapped(page));
            }
            Operation::FailToUnmap(page) if is_registered(page) => events.extend(unmapped(page)),
            Operation::MapOver(page) if is_registered(page) => {
                self.pages[page] = Page { memory: fresh(false), ..Page::UNMAPPED };
                events.extend(unmapped(page));
            }
            Operation::Drop(page) if is_registered(page) => {
                self.drops[thread] = Some(page);
                self.pages[page].is_dropping = true;
                events.push(Change::Dropped(range(page)));
            }
            Operation::Move { from, to, stays } if is_mapped(from) => {
                let is_registered = is_registered(from);
                self.pages[to] = before[from];
                self.pages[from] = match stays {
                    true => Page { memory: fresh(is_registered), ..before[from] },
                    false => Page::UNMAPPED,
                };
                events.extend(unmapped(to));
                events.extend(is_registered.then(|| Change::Moved(range(from), address(to))));
                events.extend(unmapped(from).filter(|_| !stays));
            }
            Operation::Advise(page, advice) if is_mapped(page) => {
                // From one to the other in two calls.
                if (before[page].advice == Advice::Copy) == (advice == Advice::Copy) {
                    return false;
                }
                self.pages[page].advice = advice;
            }
            _ => return false,
        }
        events.reverse();
        self.pending[thread] = events;
        true
    }

    fn is_pending(&self) -> bool {
        self.pending.iter().any(|events| !events.is_empty())
    }

    fn is_waiting(&self, thread: usize) -> bool {
        !self.pending[thread].is_empty() || self.drops[thread].is_some()
    }

    fn drop_page(&mut self, thread: usize) {
        if let Some(page) = self.drops[thread].take()
            && self.pages[page].memory.is_registered()
        {
            self.pages[page].memory = Memory::Fresh { is_registered: true };
        }
    }
}

/// The table of a process whose memory is this.
fn space_of(pages: &Pages) -> AddressSpace {
    let mut space = AddressSpace::of_nothing();
    for (page, Page { memory, .. }) in pages.iter().enumerate() {
        if let Some(slot) = memory.slot() {
            let place = Place::Stored(slot as u32);
            space.table.set(address(page) / PAGE, Entry { place, ..UNKNOWN });
        }
        if memory.is_late() {
            space.mark_later(range(page));
        }
    }
    space
}

/// Compares a table that is settled with the memory: whether a page is unknown, or the page of
/// which the table is wrong.
fn check(space: &AddressSpace, pages: &Pages, is_child: bool) -> Result<bool, String> {
    let mut is_unknown = false;
    for (number, page) in pages.iter().enumerate() {
        let known = match space.table.get(address(number) / PAGE).place {
            Place::Stored(slot) => Some(slot as usize),
            Place::Staged(_) | Place::Program => None,
        };
        let is = page.memory.slot();
        // The page is dropped in a moment. Or it was, and its next fault shows no marker.
        let is_dropped = space.layout.removing.contains(address(number));
        let may_be_zero = page.is_dropping || is_dropped && !is_child;
        let is_right = known == is || may_be_zero && known.is_none() || is_dropped && is.is_none();
        if space.layout.poison_later.contains(address(number)) {
            is_unknown = true;
        } else if !is_right {
            return Err(format!("page {number}: {known:?} is known, {is:?} is true"));
        }
    }
    Ok(is_unknown)
}

impl Kernel for Pages {
    fn marked_in(&self, wanted: Range<u64>) -> Option<RangeSet> {
        let is_marked = |page: &usize| {
            matches!(self[*page].memory, Memory::Evicted { is_late: false, .. })
                && wanted.contains(&address(*page))
        };
        Some(runs_of((0..PAGES).filter(is_marked).map(|page| address(page) / PAGE)))
    }

    fn registered(&self) -> Option<RangeSet> {
        Some(mappings(self, |page| page.memory.is_registered()))
    }

    fn is_changing(&self) -> bool {
        false
    }
}

/// Mappings of a kind, each a range of its own.
fn mappings(pages: &Pages, is_one: impl Fn(&Page) -> bool) -> RangeSet {
    let mut found = RangeSet::new();
    let all = (0..PAGES).filter(|&page| is_one(&pages[page]));
    all.for_each(|page| found.insert_apart(range(page)));
    found
}

/// A window up to now.
#[derive(Debug, Clone)]
struct Window {
    process: Process,
    read: Vec<Change>,
    done: Vec<(usize, Operation)>,
}

impl Window {
    fn begin(&mut self, thread: usize, operation: Operation) -> bool {
        self.done.push((thread, operation));
        self.process.begin(thread, operation)
    }

    /// Applies the window to the table of `at_first`; whether a page is unknown.
    fn check(&self, at_first: &Pages) -> bool {
        let mut space = space_of(at_first);
        self.read.iter().for_each(|change| space.changed(change.clone()));
        assert!(space.settle_with(&self.process.pages));
        // The table knows which pages the program drops.
        let pages = self.process.pages.map(|page| Page { is_dropping: false, ..page });
        check(&space, &pages, false)
            .unwrap_or_else(|wrong| panic!("{wrong}; {at_first:?}, {self:?}"))
    }
}

/// Counts of windows, and of those that leave a page unknown.
#[derive(Debug, Default)]
struct Counts {
    all: u64,
    unknown: u64,
}

impl Counts {
    fn add(&mut self, is_unknown: bool) {
        self.all += 1;
        self.unknown += u64::from(is_unknown);
    }
}

/// Goes on in each way: a thread begins an operation, the supervisor reads an event, or a thread
/// drops a page. While nothing is pending, the window is over.
fn go_on(window: &Window, at_first: &Pages, most: usize, counts: &mut [Counts; 2]) {
    let process = &window.process;
    if !process.is_pending() && !window.done.is_empty() {
        let is_late = at_first.iter().any(|page| page.memory.is_late());
        counts[usize::from(is_late)].add(window.check(at_first));
        return;
    }
    if window.done.len() < most {
        // Threads are alike: the first one that has done nothing stands for the others.
        let has_begun = |thread: usize| window.done.iter().any(|(it, _)| *it == thread);
        let new = (0..THREADS).find(|&thread| !has_begun(thread));
        let free = (0..THREADS).filter(|&it| !process.is_waiting(it) && has_begun(it)).chain(new);
        for thread in free {
            for operation in Operation::all(PAGES) {
                let mut next = window.clone();
                if next.begin(thread, operation) {
                    go_on(&next, at_first, most, counts);
                }
            }
        }
    }
    for thread in 0..THREADS {
        let mut next = window.clone();
        if let Some(change) = next.process.pending[thread].pop() {
            next.read.push(change);
        } else if process.drops[thread].is_some() {
            next.process.drop_page(thread);
        } else {
            continue;
        }
        go_on(&next, at_first, most, counts);
    }
}

#[test]
fn every_window_leaves_each_page_known_or_poisoned() {
    let most = super::model::of_environment("UZSWAP_WINDOW_OPERATIONS").unwrap_or(2) as usize;
    // Without late markers, and with them.
    let mut counts = <[Counts; 2]>::default();
    for number in 0..Memory::KINDS.pow(PAGES as u32) {
        let kind = |page: usize| number / Memory::KINDS.pow(page as u32) % Memory::KINDS;
        // Pages are alike: one order of their kinds stands for the others.
        if !(0..PAGES).is_sorted_by_key(kind) {
            continue;
        }
        let page = |page| Page { memory: Memory::of_kind(kind(page), page), ..Page::UNMAPPED };
        let at_first = [0, 1, 2, 3].map(page);
        let (process, read, done) = (Process::new(at_first), Vec::new(), Vec::new());
        go_on(&Window { process, read, done }, &at_first, most, &mut counts);
    }
    println!("{counts:?}");
    // Two moves that touch each other's pages.
    let [without, with] = counts;
    assert!(without.all > 50_000 && without.unknown * 10 < without.all, "{without:?}");
    assert!(with.all > 50_000 && with.unknown * 5 < with.all * 2, "{with:?}");
}
