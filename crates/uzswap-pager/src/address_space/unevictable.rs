//! Memory that is not evicted: for good, or until the evictor tries it again.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::kernel_words::{KernelWords, LISTS};
use super::pinned::Pinned;
use super::process::Process;
use super::{AddressSpace, PAGE};
use crate::range_set::RangeSet;
use uzswap_sys::process;

/// Bytes of arguments and environment that are never evicted.
const ARGUMENTS_MAX: u64 = 16 * PAGE;

/// How long the evictor leaves pages alone that could not be moved.
const REFUSED_FOR: Duration = Duration::from_secs(5);

/// The unevictable memory of an address space.
#[derive(Debug)]
pub(crate) struct Unevictable {
    /// All of it: the ranges below, and pages that the kernel refused to move.
    ranges: RangeSet,
    /// Memory of the library, which never moves: staging, the helper's stack, the page of identity.
    library: RangeSet,
    /// Pages that never move because the kernel reads or writes words in them past any userfaultfd:
    /// words for the end of a thread (see [`super::leave_words_of_threads`]), and arguments.
    words: KernelWords,
    /// Arguments are among them.
    knows_arguments: bool,
    /// Words in all registered memory are known.
    knows_words: bool,
    /// Locked mappings (mlock) that the kernel refused to move.
    locked: RangeSet,
    /// Pages that the kernel holds for I/O.
    pinned: Pinned,
    /// When the evictor was last allowed to try all refused pages again.
    retried: Instant,
}

impl Unevictable {
    pub(super) fn new(now: Instant) -> Unevictable {
        Unevictable {
            ranges: RangeSet::new(),
            library: RangeSet::new(),
            words: KernelWords::default(),
            knows_arguments: false,
            knows_words: false,
            locked: RangeSet::new(),
            pinned: Pinned::new(now),
            retried: now,
        }
    }

    /// Ranges with all of it.
    pub(super) fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// Pages with words of the kernel.
    pub(super) fn words(&self) -> &RangeSet {
        self.words.all()
    }

    /// Whether a page never leaves because of words of the kernel.
    pub(super) fn has_words_at(&self, address: u64) -> bool {
        self.words.contains(address)
    }

    /// Keeps pages of a range for a while.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        self.ranges.insert(range);
    }

    /// Keeps memory of the library, from [`Unevictable::start`] on.
    pub(crate) fn add_library(&mut self, range: Range<u64>) {
        self.library.insert(range);
    }

    /// The helper is there: memory of the library alone stays.
    pub(super) fn start(&mut self) {
        self.ranges = self.library.clone();
    }

    pub(super) fn keeps_library(&self) -> bool {
        self.library.without(&self.ranges) == RangeSet::new()
    }

    /// Keeps a page that the kernel holds for I/O, until it is tried again.
    pub(super) fn add_pinned(&mut self, page: u64) {
        let range = page * PAGE..(page + 1) * PAGE;
        self.pinned.add(range.clone(), Instant::now());
        self.add(range);
    }

    /// Keeps the locked ones of these parts, and takes them out: mremap would unlock them.
    pub(super) fn take_locked(
        &mut self,
        process: &Process,
        parts: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        self.locked = process.locked_mappings()?;
        for part in std::mem::take(parts) {
            self.locked.within(part.clone()).for_each(|part| self.ranges.insert(part));
            parts.extend(self.locked.outside(part));
        }
        Ok(())
    }

    /// Keeps the pages of arguments and environment resident: readers of /proc/PID/cmdline find no
    /// evicted page. They are registered nevertheless. Otherwise the kernel would split the
    /// mapping of the stack, by which the C library tells the size of the stack.
    pub(super) fn keep_arguments(&mut self, process: &Process) {
        if std::mem::replace(&mut self.knows_arguments, true) {
            return;
        }
        let Some(range) = process.thread().and_then(process::arguments_of) else { return };
        let start = range.start / PAGE * PAGE;
        self.keep(start..range.end.next_multiple_of(PAGE).min(start + ARGUMENTS_MAX));
    }

    /// Keeps the page of the word that the kernel clears when the first thread ends: an ending
    /// thread has no faults served. In musl the word is a lock that all threads take when they
    /// end.
    pub(crate) fn keep_end_word(&mut self, address: u64) {
        if LISTS.contains(&address) {
            let start = address / PAGE * PAGE;
            self.keep(start..(address + 4).next_multiple_of(PAGE));
        }
    }

    fn keep(&mut self, pages: Range<u64>) {
        self.words.insert_lasting(pages.clone());
        self.add(pages);
    }

    /// Whether the words in all registered memory are known.
    pub(super) fn knows_words(&self) -> bool {
        self.knows_words
    }

    /// Notes newly registered memory: its words are not known.
    pub(super) fn expect_words(&mut self) {
        self.knows_words = false;
    }

    /// Begins a scan for words in all registered memory; how many threads were scanned before.
    pub(super) fn begin_word_scan(&mut self) -> usize {
        self.knows_words = true;
        self.words.scanned()
    }

    /// Ends a scan, which found words in these pages, and notes how many threads were scanned.
    pub(super) fn end_word_scan(
        &mut self,
        scanned: usize,
        found: impl Iterator<Item = Range<u64>>,
    ) {
        self.words.note_scanned(scanned);
        for pages in found {
            if self.words.insert_found(pages.clone()) {
                self.add(pages);
            }
        }
    }

    /// Forgets a range whose mappings changed. Memory of the library stays: the unmap may have
    /// failed, and the helper must never wait for it.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        self.ranges.remove(range.clone());
        self.library.within(range.clone()).for_each(|part| self.ranges.insert(part));
        self.words.remove(range);
    }

    /// Lets pages leave that were pinned a while ago.
    pub(crate) fn try_pinned_again(&mut self, now: Instant) {
        let Some(due) = self.pinned.take_due(now) else { return };
        let words = self.words.all();
        for part in due.iter().flat_map(|part| words.outside(part)) {
            self.ranges.remove(part);
        }
        self.library.iter().for_each(|part| self.ranges.insert(part));
    }

    /// Lets refused pages leave, and forgets old words, once in some seconds.
    pub(super) fn try_at_times(&mut self, process: &Process) {
        if self.retried.elapsed() > REFUSED_FOR {
            self.words.grow_older();
            self.try_all_again(process);
        }
    }

    fn try_all_again(&mut self, process: &Process) {
        self.retried = Instant::now();
        if self.locked != RangeSet::new() {
            self.locked = process.locked_mappings().unwrap_or_default();
        }
        self.start();
        self.ranges.insert_all(&self.locked);
        self.ranges.insert_all(self.words.all());
    }

    /// Memory of what is known, in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        let sets = [&self.ranges, &self.library, &self.locked];
        let sets = sets.iter().map(|set| set.bytes()).sum::<usize>();
        sets + self.words.bytes() + self.pinned.bytes()
    }
}

impl AddressSpace {
    /// Lets all refused pages leave, but for those that never leave, and locked ones.
    pub(crate) fn try_all_again(&mut self) {
        self.unevictable.try_all_again(&self.process);
    }

    /// Registered memory, without the pages that no command moves.
    pub(crate) fn evictable_ranges(&self) -> Vec<Range<u64>> {
        let Unevictable { ranges, words, .. } = &self.unevictable;
        self.registration.ranges().without(ranges).without(words.all()).iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_pages_may_leave_again_and_others_stay() {
        let mut space = AddressSpace::of_nothing();
        space.registration.insert(0..100 * PAGE);
        let unevictable = &mut space.unevictable;
        unevictable.add(2 * PAGE..3 * PAGE); // locked
        unevictable.add_library(98 * PAGE..99 * PAGE);
        (10..20).for_each(|page| unevictable.add_pinned(page));
        unevictable.words.insert_lasting(12 * PAGE..13 * PAGE);
        let stay =
            |space: &AddressSpace| Vec::from_iter((0..100).filter(|page| !space.may_leave(*page)));
        let now = Instant::now();
        space.unevictable.try_pinned_again(now);
        assert_eq!(stay(&space), Vec::from_iter(std::iter::once(2).chain(10..20)));
        space.unevictable.try_pinned_again(now + Duration::from_secs(1));
        assert_eq!(stay(&space), [2, 12, 98]);
        assert!(space.unevictable.ranges().contains(12 * PAGE));
        space.try_all_again();
        assert_eq!(stay(&space), [12, 98]);
    }
}
