//! What of a space is watched, and never leaves.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::forking::PROTECT_MAX;
use super::{PAGE, Space, pages, threads};
use crate::pager::process_files::{Mapping, ProcessFiles};
use crate::pager::{SpaceLock, lock};
use crate::sys::process;

/// How far the list of robust futexes of a thread and the word that is cleared at its end are from
/// each other at most: 16 bytes in glibc 2.36.
const BESIDE: u64 = 64;

/// Where such a list may be: a program can name any address, and names 0 where there is none.
pub(super) const LISTS: Range<u64> = PAGE..1 << 56;

/// Where no more pages are resident of what may be a thread's stack, it is not watched: there is
/// little to win, and each thread that ends would be held up to tell that it drops its stack.
const STACK_PAGES: u64 = 16;

/// How much of a program's arguments and environment stays, in bytes.
const ARGUMENTS_MAX: u64 = 16 * PAGE;

/// How long pages that could not be moved are left alone.
const LEFT_FOR: Duration = Duration::from_secs(5);

impl Space {
    /// Watches all anonymous memory that is not watched yet.
    pub(in crate::pager) fn watch(&mut self) -> io::Result<()> {
        // Threads have new stacks all the time.
        self.watch_and(|space| !space.has_threads())
    }

    /// Likewise, where it may all be another process's as well.
    pub(in crate::pager) fn watch_shared(&mut self) -> io::Result<()> {
        self.watch_and(|_| true)
    }

    /// As [`Space::watch`]; what may be another's as well is protected where that `may` be.
    pub(super) fn watch_and(&mut self, may: impl FnOnce(&Space) -> bool) -> io::Result<()> {
        let Some(files) = self.files.clone() else { return Ok(()) };
        let mappings = files.anonymous_mappings()?;
        self.watch_these(&files, mappings, may).map(drop)
    }

    /// As [`Space::watch_and`], of mappings that there were a moment ago; `false` where that is to
    /// be done again soon.
    fn watch_these(
        &mut self,
        files: &ProcessFiles,
        mappings: Vec<Mapping>,
        may_protect: impl FnOnce(&Space) -> bool,
    ) -> io::Result<bool> {
        if self.uffd.is_changing() {
            return Ok(false);
        }
        if self.left_since.elapsed() > LEFT_FOR {
            self.left_since = Instant::now();
            self.left = self.own.clone();
            self.words.iter().for_each(|word| self.left.insert(word));
        }
        let mut registered = Vec::new();
        for mapping in mappings {
            let unwatched = self.watched.outside(mapping.range.clone());
            if mapping.is_above_guard
                && unwatched == [mapping.range.clone()]
                && files.has_at_most(mapping.range, STACK_PAGES)
            {
                continue;
            }
            for part in unwatched {
                for part in self.left.outside(part) {
                    match self.uffd.register(part.clone(), true, self.protects) {
                        Ok(()) => registered.push(part),
                        // It went, or another userfaultfd has it, or it is of a special kind.
                        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                            return Err(error);
                        }
                        Err(_) => {}
                    }
                }
            }
        }
        if registered.is_empty() {
            self.shares_unwatched = false;
            return Ok(true);
        }
        // A part may have had a hole when it was registered, where something else is now that is
        // not. A mapping is registered as a whole or not at all: what lies in one now is watched,
        // if nothing has changed since of which nobody was told yet.
        let now = files.anonymous_mappings()?;
        if self.uffd.is_changing() {
            return Ok(false);
        }
        // Since it forked, all that was mapped is its own.
        let is_shared = self.shares_unwatched && self.protects;
        let mut are_whole = true;
        let spared = (is_shared && may_protect(self)).then(|| self.stacks()).flatten();
        let spared = spared.and_then(|stacks| self.not_to_protect(stacks));
        for part in registered {
            let at = now.partition_point(|mapping| mapping.range.end <= part.start);
            let is_whole = now.get(at).is_some_and(|Mapping { range, .. }| {
                range.start <= part.start && part.end <= range.end
            });
            are_whole &= is_whole;
            if is_whole {
                for part in spared.iter().flat_map(|spared| spared.outside(part.clone())) {
                    self.to_protect.insert(part);
                }
                self.watched.insert(part);
                self.knows_words = false;
            }
        }
        self.shares_unwatched &= !are_whole;
        if !std::mem::replace(&mut self.knows_arguments, true) {
            self.leave_arguments();
        }
        self.have_all_forks_told();
        self.protect(PROTECT_MAX);
        Ok(are_whole)
    }

    /// Leaves arguments and environment where they are: to ps and others who read
    /// /proc/PID/cmdline, a page that has left is not there. They are watched all the same: else
    /// the kernel would split the mapping of the stack, whose size the C library tells by it.
    fn leave_arguments(&mut self) {
        let Some(range) = self.thread.and_then(process::arguments_of) else { return };
        let start = range.start / PAGE * PAGE;
        let pages = start..range.end.next_multiple_of(PAGE).min(start + ARGUMENTS_MAX);
        self.words.insert(pages.clone());
        self.left.insert(pages);
    }

    /// The pages of a window that are watched in a row with `page`; that in any case.
    pub(in crate::pager) fn watched_around(&self, page: u64, window: Range<u64>) -> Range<u64> {
        let mut parts = self.watched.within(window.start * PAGE..window.end * PAGE);
        parts.find(|part| part.contains(&(page * PAGE))).map_or(page..page + 1, pages)
    }
}

/// Whether the address space has grown or shrunk since all of it was watched.
pub(in crate::pager) fn has_changed(space: &SpaceLock) -> bool {
    let (files, before) = {
        let space = lock(space);
        (space.files.clone(), space.watched_at_size)
    };
    files.and_then(|files| files.size()).is_some_and(|size| Some(size.mapped) != before)
}

/// When its mappings were last looked at.
pub(in crate::pager) fn looked_at(space: &SpaceLock) -> Option<Instant> {
    lock(space).looked_at
}

/// As [`Space::watch`], of one that may have pages to serve meanwhile: /proc is read without the
/// lock.
pub(in crate::pager) fn watch(space: &SpaceLock) -> io::Result<()> {
    let files = {
        let mut space = lock(space);
        space.looked_at = Some(Instant::now());
        space.files.clone()
    };
    let Some(files) = files else { return Ok(()) };
    let size = files.size().map(|size| size.mapped);
    let mappings = files.anonymous_mappings()?;
    let mut space = lock(space);
    if space.shares_unwatched {
        return space.watch(); // nothing of before the fork may be missing
    }
    if space.watch_these(&files, mappings, |space| !space.has_threads())? {
        space.watched_at_size = size;
    }
    Ok(())
}

/// Leaves pages where they are that threads need at their end. The kernel clears a word of a thread
/// then for whoever joins it, past any userfaultfd: were that page away, the word would stay as it
/// is. glibc has it on the thread's stack, beside the thread's list of robust futexes, which can be
/// asked for. Such a page is left until it is unmapped: the next thread may have the same stack.
pub(in crate::pager) fn leave_words_of_threads(space: &SpaceLock) {
    let helper = {
        let mut space = lock(space);
        space.knows_words = true; // of what is watched now
        space.thread
    };
    let Some(helper) = helper else { return };
    // Of one with no threads but its first and the helper nobody joins any.
    let Some(threads) = threads(helper).ok().map(Vec::from_iter) else { return };
    if threads.len() <= 2 {
        return;
    }
    // An error where it has ended.
    let lists = threads.into_iter().filter_map(|thread| process::robust_list(thread).ok());
    let lists: Vec<u64> = lists.filter(|list| LISTS.contains(list)).collect();
    let mut space = lock(space);
    for list in lists {
        let word = (list - BESIDE) / PAGE * PAGE..(list + BESIDE).next_multiple_of(PAGE);
        space.words.insert(word.clone());
        space.left.insert(word);
    }
}
