//! Every window of changes: three threads, four pages, all orders of changes and of their events.
//!
//! A window begins and ends while no event is pending. Nobody fills or evicts pages in between, so
//! each history is a row of windows. At the end of a window the table must name each evicted page
//! where it is; or the page is unknown, and is poisoned.

use std::ops::Range;

use super::{AddressSpace, Change, Kernel, PAGE, runs_of};
use crate::page_table::{Entry, Place, UNKNOWN};
use crate::range_set::RangeSet;

const PAGES: usize = 4;
const FIRST: u64 = 1 << 20;
const THREADS: usize = 3;

/// The memory at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

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
}

impl Operation {
    fn all() -> Vec<Operation> {
        let mut all = Vec::new();
        for from in 0..PAGES {
            all.extend([Operation::Unmap(from), Operation::FailToUnmap(from)]);
            all.extend([Operation::MapOver(from), Operation::Drop(from)]);
            for to in (0..PAGES).filter(|&to| to != from) {
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

/// A window up to now.
#[derive(Debug, Clone)]
struct Window {
    memory: [Memory; PAGES],
    /// Events of each thread that were not read, the first one last.
    pending: [Vec<Change>; THREADS],
    /// Pages that each thread drops once its event was read.
    drops: [Option<usize>; THREADS],
    read: Vec<Change>,
    done: Vec<(usize, Operation)>,
}

impl Window {
    /// Does an operation; `false` if the kernel would refuse it, or if it changes nothing.
    fn begin(&mut self, thread: usize, operation: Operation) -> bool {
        let before = self.memory;
        let is_mapped = |page: usize| before[page] != Memory::Unmapped;
        let is_registered = |page: usize| before[page].is_registered();
        let unmapped = |page: usize| is_registered(page).then(|| Change::Unmapped(range(page)));
        let mut events = Vec::new();
        match operation {
            Operation::Unmap(page) if is_mapped(page) => {
                self.memory[page] = Memory::Unmapped;
                events.extend(unmapped(page));
            }
            Operation::FailToUnmap(page) if is_registered(page) => events.extend(unmapped(page)),
            Operation::MapOver(page) if is_registered(page) => {
                self.memory[page] = Memory::Fresh { is_registered: false };
                events.extend(unmapped(page));
            }
            Operation::Drop(page) if is_registered(page) => {
                self.drops[thread] = Some(page);
                events.push(Change::Dropped(range(page)));
            }
            Operation::Move { from, to, stays } if is_mapped(from) => {
                let is_registered = is_registered(from);
                self.memory[to] = before[from];
                self.memory[from] = match stays {
                    true => Memory::Fresh { is_registered },
                    false => Memory::Unmapped,
                };
                events.extend(unmapped(to));
                events.extend(is_registered.then(|| Change::Moved(range(from), address(to))));
                events.extend(unmapped(from).filter(|_| !stays));
            }
            _ => return false,
        }
        events.reverse();
        self.pending[thread] = events;
        self.done.push((thread, operation));
        true
    }

    fn is_waiting(&self, thread: usize) -> bool {
        !self.pending[thread].is_empty() || self.drops[thread].is_some()
    }

    fn read(&mut self, thread: usize) {
        self.read.extend(self.pending[thread].pop());
    }

    fn drop_page(&mut self, thread: usize) {
        if let Some(page) = self.drops[thread].take()
            && self.memory[page].is_registered()
        {
            self.memory[page] = Memory::Fresh { is_registered: true };
        }
    }

    /// Applies the window to the table of `at_first`; whether a page is unknown.
    fn check(&self, at_first: &[Memory; PAGES]) -> bool {
        let mut space = AddressSpace::of_nothing();
        for (page, memory) in at_first.iter().enumerate() {
            if let Memory::Evicted { slot, is_late } = *memory {
                let place = Place::Stored(slot as u32);
                space.table.set(address(page) / PAGE, Entry { place, ..UNKNOWN });
                if is_late {
                    space.mark_later(range(page));
                }
            }
        }
        self.read.iter().for_each(|change| space.changed(change.clone()));
        assert!(space.settle_with(self));
        let mut is_unknown = false;
        for page in 0..PAGES {
            let known = match space.table.get(address(page) / PAGE).place {
                Place::Stored(slot) => Some(slot as usize),
                Place::Staged(_) | Place::Program => None,
            };
            let is = match self.memory[page] {
                Memory::Evicted { slot, .. } => Some(slot),
                Memory::Fresh { .. } | Memory::Unmapped => None,
            };
            // The page is dropped in a moment. Or it was, and its next fault shows no marker.
            let is_dropped = space.layout.removing.contains(address(page));
            if space.layout.poison_later.contains(address(page)) {
                is_unknown = true;
            } else if known != is && !(is_dropped && (known.is_none() || is.is_none())) {
                panic!("page {page}: {known:?} is known, {is:?} is true; {at_first:?}, {self:?}");
            }
        }
        is_unknown
    }
}

impl Kernel for Window {
    fn marked_in(&self, wanted: Range<u64>) -> Option<RangeSet> {
        let is_marked = |page: &usize| {
            matches!(self.memory[*page], Memory::Evicted { is_late: false, .. })
                && wanted.contains(&address(*page))
        };
        Some(runs_of((0..PAGES).filter(is_marked).map(|page| address(page) / PAGE)))
    }

    fn registered(&self) -> Option<RangeSet> {
        let mut mappings = RangeSet::new();
        let registered = (0..PAGES).filter(|&page| self.memory[page].is_registered());
        registered.for_each(|page| mappings.insert_apart(range(page)));
        Some(mappings)
    }

    fn is_changing(&self) -> bool {
        false
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
fn go_on(window: &Window, at_first: &[Memory; PAGES], most: usize, counts: &mut [Counts; 2]) {
    let is_pending = window.pending.iter().any(|events| !events.is_empty());
    if !is_pending && !window.done.is_empty() {
        let is_late = |memory: &Memory| matches!(memory, Memory::Evicted { is_late: true, .. });
        counts[usize::from(at_first.iter().any(is_late))].add(window.check(at_first));
        return;
    }
    if window.done.len() < most {
        // Threads are alike: the first one that has done nothing stands for the others.
        let has_begun = |thread: usize| window.done.iter().any(|(it, _)| *it == thread);
        let new = (0..THREADS).find(|&thread| !has_begun(thread));
        let free = (0..THREADS).filter(|&it| !window.is_waiting(it) && has_begun(it)).chain(new);
        for thread in free {
            for operation in Operation::all() {
                let mut next = window.clone();
                if next.begin(thread, operation) {
                    go_on(&next, at_first, most, counts);
                }
            }
        }
    }
    for thread in 0..THREADS {
        let mut next = window.clone();
        if !window.pending[thread].is_empty() {
            next.read(thread);
        } else if window.drops[thread].is_some() {
            next.drop_page(thread);
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
        let at_first = [0, 1, 2, 3].map(|page| Memory::of_kind(kind(page), page));
        let window = Window {
            memory: at_first,
            pending: Default::default(),
            drops: [None; THREADS],
            read: Vec::new(),
            done: Vec::new(),
        };
        go_on(&window, &at_first, most, &mut counts);
    }
    println!("{counts:?}");
    // Two moves that touch each other's pages.
    let [without, with] = counts;
    assert!(without.all > 50_000 && without.unknown * 10 < without.all, "{without:?}");
    assert!(with.all > 50_000 && with.unknown * 5 < with.all * 2, "{with:?}");
}
