//! Pages that are never evicted, because the kernel writes words in them past any userfaultfd when
//! a thread ends. On an evicted page these words would stay as they are. The kernel clears a word
//! for the thread that joins, and marks each robust futex that the ending thread holds. It finds
//! the futexes by a list, and stops at the first page that is missing.

use std::io;
use std::ops::Range;

use super::{AddressSpace, PAGE};
use crate::range_set::RangeSet;
use crate::{SpaceHandle, lock};
use uzswap_sys::process;

/// The most bytes between the list of robust futexes of a thread and the word that is cleared at
/// its end: 16 in glibc 2.36.
const BESIDE: u64 = 64;

/// Where such a list may be: a program can name any address, and names 0 where there is none.
pub(super) const LISTS: Range<u64> = PAGE..1 << 56;

/// Entries of a list that the kernel reads at most (`ROBUST_LIST_LIMIT`). The supervisor reads as
/// many of all lists together in one go, from another thread on in each.
const ENTRIES_MAX: usize = 2048;

/// Ranges of such pages that a space may have which were found since they last grew older. Of one
/// that has more, other pages leave, and its own waiters may wait in vain.
const FOUND_MAX: usize = 4096;

/// Pages that are never moved.
#[derive(Debug, Default)]
pub(super) struct KernelWords {
    /// All of them: those of `lasting`, and those that were found lately.
    all: RangeSet,
    /// Of arguments, and of the word that is cleared when the first thread ends.
    lasting: RangeSet,
    /// Pages that were found since the last aging.
    found: RangeSet,
    /// Threads whose entries were scanned.
    scanned: usize,
}

impl KernelWords {
    pub(super) fn insert_lasting(&mut self, pages: Range<u64>) {
        self.lasting.insert(pages.clone());
        self.all.insert(pages);
    }

    /// Adds pages that the kernel uses at the end of a thread; `false` where they are too many.
    pub(super) fn insert_found(&mut self, pages: Range<u64>) -> bool {
        if self.found.len() >= FOUND_MAX {
            return false;
        }
        self.found.insert(pages.clone());
        self.all.insert(pages);
        true
    }

    /// Forgets what was found before, and was not found again since this was called last.
    pub(super) fn grow_older(&mut self) {
        self.all = std::mem::take(&mut self.found);
        self.lasting.iter().for_each(|pages| self.all.insert(pages));
    }

    pub(super) fn remove(&mut self, range: Range<u64>) {
        for set in [&mut self.all, &mut self.lasting, &mut self.found] {
            set.remove(range.clone());
        }
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        self.all.contains(address)
    }

    pub(super) fn all(&self) -> &RangeSet {
        &self.all
    }

    pub(super) fn scanned(&self) -> usize {
        self.scanned
    }

    pub(super) fn note_scanned(&mut self, threads: usize) {
        self.scanned = threads;
    }

    /// Memory that they take, in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        self.all.bytes() + self.lasting.bytes() + self.found.bytes()
    }
}

/// Keeps the pages that threads need at their end. glibc has the cleared word on the thread's
/// stack, beside the list, whose address the kernel tells. These pages stay for a while: the next
/// thread may have the same stack. So do pages of held futexes, which will be held again. Pages
/// that are not found for some seconds are forgotten. A program can name any address: only
/// registered memory would be evicted, and the notes are bounded.
pub(crate) fn leave_words_of_threads(space: &SpaceHandle) {
    let (files, scanned) = {
        let mut space = lock(space);
        (space.process.files().cloned(), space.unevictable.begin_word_scan())
    };
    let Some(files) = files else { return };
    let threads: Vec<u32> = files.threads().collect();
    // Of one with no thread but its first nobody joins any, or waits for one.
    if threads.len() <= 1 {
        return;
    }
    // An error where it has ended.
    let lists = threads.into_iter().filter_map(|thread| process::robust_list(thread).ok());
    let mut lists: Vec<u64> = lists.filter(|list| LISTS.contains(list)).collect();
    let mut words: Vec<Range<u64>> =
        lists.iter().map(|list| list - BESIDE..list + BESIDE).collect();
    let first = scanned.checked_rem(lists.len()).unwrap_or(0);
    lists.rotate_left(first);
    let mut entries = ENTRIES_MAX;
    let mut scans = 0;
    for list in lists {
        if entries == 0 {
            break;
        }
        scans += 1;
        // Unreadable memory: the thread has ended, or has no list.
        let read = &mut |address, to: &mut [u8]| files.memory.read(address, to);
        let _ = held(list, &mut entries, read, &mut words);
    }
    let mut space = lock(space);
    let AddressSpace { unevictable, registration, .. } = &mut *space;
    let pages = |word: Range<u64>| word.start / PAGE * PAGE..word.end.next_multiple_of(PAGE);
    let found =
        words.into_iter().map(pages).filter(|pages| registration.ranges().has_some_of(pages));
    unevictable.end_word_scan(scanned.wrapping_add(scans), found);
}

/// Two addresses of each robust futex in a thread's list: its entry, and the futex itself. The head
/// (`struct robust_list_head`) has the offset between the two, and names a futex that the thread is
/// about to hold. The lowest bit of an entry's address tells its kind.
///
/// Reads at most `entries` entries, and subtracts those that it has read.
fn held(
    list: u64,
    entries: &mut usize,
    read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
    words: &mut Vec<Range<u64>>,
) -> io::Result<()> {
    let mut head = [0; 24];
    read(list, &mut head)?;
    let [first, beside, pending] = [0, 8, 16].map(|at| word(&head[at..at + 8]));
    let entry =
        |address: u64| (address & !1 != list && LISTS.contains(&address)).then_some(address & !1);
    let mut add = |entry: u64| {
        words.push(entry..entry + 8);
        let futex = entry.wrapping_add(beside);
        if LISTS.contains(&futex) {
            words.push(futex..futex + 4);
        }
    };
    entry(pending).into_iter().for_each(&mut add);
    let mut next = entry(first);
    while *entries > 0
        && let Some(at) = next
    {
        *entries -= 1;
        add(at);
        let mut address = [0; 8];
        read(at, &mut address)?;
        next = entry(word(&address));
    }
    Ok(())
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("eight of them"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The words of a list at 0x10000, in memory that is this; nothing else can be read.
    fn words_in(memory: &BTreeMap<u64, u64>) -> Vec<Range<u64>> {
        let mut read = |address: u64, to: &mut [u8]| {
            for (at, to) in (address..).step_by(8).zip(to.chunks_mut(8)) {
                to.copy_from_slice(&memory.get(&at).ok_or(io::ErrorKind::NotFound)?.to_ne_bytes());
            }
            Ok(())
        };
        let mut words = Vec::new();
        let _ = held(0x10000, &mut ENTRIES_MAX.clone(), &mut read, &mut words);
        words
    }

    #[test]
    fn what_a_program_names_is_bounded_and_forgotten() {
        let page = |number: u64| number * 2 * PAGE..(number * 2 + 1) * PAGE;
        let mut words = KernelWords::default();
        words.insert_lasting(page(0));
        let found = (1..10_000).filter(|&number| words.insert_found(page(number))).count();
        assert_eq!(found, FOUND_MAX);
        assert!(words.contains(page(1).start) && words.contains(page(0).start));
        // Found again, it stays; other pages have room.
        words.grow_older();
        assert!(words.insert_found(page(1)) && words.insert_found(page(20_000)));
        words.grow_older();
        assert!(words.contains(page(1).start) && !words.contains(page(2).start));
        assert_eq!(words.all().len(), 3);
        words.grow_older();
        assert_eq!(words.all().iter().collect::<Vec<_>>(), [page(0)]);
        words.remove(page(0));
        assert_eq!((words.all().len(), words.bytes()), (0, 0));
    }

    #[test]
    fn entries_of_all_lists_together_are_bounded() {
        let mut read = |_: u64, to: &mut [u8]| {
            to.fill(0); // an entry at 0x20000 that is followed by itself
            to[2] = 2;
            Ok(())
        };
        let (mut entries, mut words) = (100, Vec::new());
        for list in [0x10000, 0x30000] {
            let _ = held(list, &mut entries, &mut read, &mut words);
        }
        assert_eq!(entries, 0);
        assert!(words.len() <= 2 * 100 + 4, "{}", words.len());
    }

    #[test]
    fn futexes_that_are_held_are_found() {
        let mut memory =
            BTreeMap::from([(0x10000, 0x10000), (0x10008, -32_i64 as u64), (0x10010, 0)]);
        assert_eq!(words_in(&memory), []);
        // One that passes its priority on, then another, and one that is asked for.
        memory.extend([
            (0x10000, 0x20001),
            (0x20000, 0x30040),
            (0x30040, 0x10000),
            (0x10010, 0x40000),
        ]);
        let of = |entry: u64| [entry..entry + 8, entry - 32..entry - 28];
        let all = [of(0x40000), of(0x20000), of(0x30040)].concat();
        assert_eq!(words_in(&memory), all);
        // The end of the list cannot be read; it has none; what is named is no address.
        memory.remove(&0x30040);
        assert_eq!(words_in(&memory), all);
        memory.insert(0x30040, 0x20000);
        assert_eq!(words_in(&memory).len(), 2 + 2 * ENTRIES_MAX);
        memory.extend([(0x10000, 1), (0x10010, u64::MAX)]);
        assert_eq!(words_in(&memory), []);
        memory.extend([(0x10000, 0x20000), (0x10008, 1 << 60)]);
        assert_eq!(words_in(&memory)[0], 0x20000..0x20008);
    }
}
