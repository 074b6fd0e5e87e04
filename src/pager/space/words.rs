//! Words that the kernel uses when a thread ends, past any userfaultfd: were their pages away, they
//! would stay as they are. It clears one for whoever joins the thread, and marks each robust futex
//! that the thread holds, for whoever waits for it. It finds these by a list, and goes on with none
//! that comes after one that is away.

use std::io;
use std::ops::Range;

use super::PAGE;
use crate::pager::process_files::threads;
use crate::pager::{SpaceLock, lock};
use crate::sys::process;

/// How far the list of robust futexes of a thread and the word that is cleared at its end are from
/// each other at most: 16 bytes in glibc 2.36.
const BESIDE: u64 = 64;

/// Where such a list may be: a program can name any address, and names 0 where there is none.
pub(super) const LISTS: Range<u64> = PAGE..1 << 56;

/// As many entries of a list does the kernel look at (`ROBUST_LIST_LIMIT`).
const ENTRIES_MAX: usize = 2048;

/// Leaves pages where they are that threads need at their end. glibc has the word that is cleared
/// on the thread's stack, beside the list, which can be asked for. Such a page is left until it is
/// unmapped: the next thread may have the same stack. So is one of a futex that is held: as a
/// rule, it will be again.
pub(in crate::pager) fn leave_words_of_threads(space: &SpaceLock) {
    let files = {
        let mut space = lock(space);
        space.knows_words = true; // of what is watched now
        space.files.clone()
    };
    let Some(files) = files else { return };
    // Of one with no threads but its first and the helper nobody joins any, or waits for one.
    let Some(threads) = threads(files.thread).ok().map(Vec::from_iter) else { return };
    if threads.len() <= 2 {
        return;
    }
    // An error where it has ended.
    let lists = threads.into_iter().filter_map(|thread| process::robust_list(thread).ok());
    let mut words = Vec::new();
    for list in lists.filter(|list| LISTS.contains(list)) {
        words.push(list - BESIDE..list + BESIDE);
        // What cannot be read has ended, or is no list.
        let _ = held(list, &mut |address, to| files.memory.read(address, to), &mut words);
    }
    let mut space = lock(space);
    for word in words {
        let pages = word.start / PAGE * PAGE..word.end.next_multiple_of(PAGE);
        space.words.insert(pages.clone());
        space.left.insert(pages);
    }
}

/// The words of futexes that a thread holds, or is about to: of each its entry in the list, and
/// itself (`struct robust_list_head`: the first entry, where futexes are beside entries, and one
/// that is about to be held). A bit of an entry's address tells its kind.
fn held(
    list: u64,
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
    for _ in 0..ENTRIES_MAX {
        let Some(at) = next else { break };
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
        let _ = held(0x10000, &mut read, &mut words);
        words
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
