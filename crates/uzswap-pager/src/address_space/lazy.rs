//! Pages that a program has freed lazily (MADV_FREE), before its memory was registered.
//!
//! Their contents are worth nothing, and the kernel drops them once memory is short. An eviction
//! would store them instead. The kernel tells only how many bytes of a mapping are lazily freed, so
//! the helper has it drop those pages: MADV_PAGEOUT drops them at once, and keeps a page that was
//! written since. Where the system has swap, MADV_PAGEOUT would move all other pages there, and
//! lazily freed pages are stored like all others.

use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{AddressSpace, PAGE};
use crate::page_table::Entry;
use crate::program::helper::MoveRun;
use crate::program::procfs::ProcessFiles;
use crate::range_set::RangeSet;
use uzswap_preload::protocol::{RUNS_MAX, work};

/// The pause between two scans of a process, and so many times the time that a scan takes.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_TIMES: u32 = 50;

/// When to scan for lazily freed pages.
#[derive(Debug)]
pub(super) struct LazyScans {
    next: Instant,
    /// Registered ranges at the last scan. Later frees there are not lazy: the library gives the
    /// pages back at once.
    registered: RangeSet,
}

impl LazyScans {
    pub(super) fn new(now: Instant) -> LazyScans {
        LazyScans { next: now, registered: RangeSet::new() }
    }

    /// Begins a scan, if a pause has passed and memory was registered since; whether it did.
    pub(super) fn begin(&mut self, registered: &RangeSet, now: Instant) -> bool {
        let is_due = now >= self.next && self.registered != *registered;
        if is_due {
            self.registered = registered.clone();
        }
        is_due
    }

    /// Ends a scan that began `since`.
    pub(super) fn end(&mut self, since: Instant) {
        self.next = Instant::now() + PAUSE_MIN.max(since.elapsed() * PAUSE_TIMES);
    }

    pub(super) fn bytes(&self) -> usize {
        self.registered.bytes()
    }
}

impl AddressSpace {
    /// Where to scan for lazily freed pages, if there may be any by now.
    pub(crate) fn start_lazy_scan(&mut self, now: Instant) -> Option<Arc<ProcessFiles>> {
        self.commands.free_helper()?;
        let is_due = self.registration.begin_lazy_scan(now);
        self.process.files().cloned().filter(|_| is_due && !has_swap())
    }

    /// A scan that began `since` found so many bytes in mappings: tells the helper to have the
    /// kernel drop them. `false` where there is nothing of it.
    pub(crate) fn give_drop_freed(&mut self, found: &[(Range<u64>, u64)], since: Instant) -> bool {
        self.registration.end_lazy_scan(since);
        let Some(helper) = self.commands.free_helper() else { return false };
        let mut runs = Vec::new();
        for part in
            found.iter().flat_map(|(range, _)| self.registration.ranges().within(range.clone()))
        {
            let count = ((part.end - part.start) / PAGE) as usize;
            runs.push(MoveRun { count, ..MoveRun::new(part.start / PAGE, 0) });
        }
        runs.truncate(RUNS_MAX);
        // None of them is certain to be there any more.
        for run in &runs {
            let returned = self.table.known(run.pages()).filter(|(_, entry)| entry.returned);
            for (page, entry) in returned.collect::<Vec<_>>() {
                self.table.set(page, Entry { returned: false, ..entry });
            }
        }
        !runs.is_empty() && self.give(&helper, work::DROP_FREED, None, runs)
    }
}

/// Whether the system has swap. A file that cannot be read tells of none.
fn has_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1)
}

#[cfg(test)]
mod tests {
    use rustix::event::epoll;

    use super::*;
    use crate::page_table::UNKNOWN;
    use crate::program::helper::Helper;
    use crate::program::polled::Polled;
    use uzswap_preload::SharedControl;
    use uzswap_sys::foreign::Foreign;

    #[test]
    fn pages_that_may_have_been_dropped_are_not_known_to_be_there() {
        let (connection, _program) = std::os::unix::net::UnixStream::pair().unwrap();
        let epolls = [epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()].into();
        let connection = Foreign::new(connection.into());
        let connection = Polled::add(&epolls, connection, epoll::EventData::new_u64(1)).unwrap();
        let helper = Helper::new(connection, SharedControl::new().unwrap().0, 1 << 30);
        let mut space = AddressSpace::of_nothing();
        space.commands.meet(helper);
        space.registration.insert(0..20 * PAGE);
        for page in [3, 15] {
            space.table.set(page, Entry { returned: true, ..UNKNOWN });
        }
        assert!(space.give_drop_freed(&[(0..10 * PAGE, PAGE)], Instant::now()));
        assert_eq!([3, 15].map(|page| space.table.get(page).returned), [false, true]);
    }
}
