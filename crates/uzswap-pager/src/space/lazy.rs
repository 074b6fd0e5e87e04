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

use super::{PAGE, Space};
use crate::helper::MoveRun;
use crate::process_files::ProcessFiles;
use crate::ranges::Ranges;
use uzswap_preload::protocol::{RUNS_MAX, work};

/// The pause between two looks at a process, and so many times the time that a look takes.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_TIMES: u32 = 50;

/// When to look for lazily freed pages.
#[derive(Debug)]
pub(super) struct LazyLooks {
    next: Instant,
    /// What was registered at the last look. Later frees there are no lazy ones: the library gives
    /// such pages back at once.
    registered: Ranges,
}

impl LazyLooks {
    pub(super) fn new(now: Instant) -> LazyLooks {
        LazyLooks { next: now, registered: Ranges::new() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.registered.bytes()
    }
}

impl Space {
    /// Where to look for lazily freed pages, if there may be any by now.
    pub(crate) fn start_lazy_look(&mut self, now: Instant) -> Option<Arc<ProcessFiles>> {
        let LazyLooks { next, registered } = &self.lazy_looks;
        if now < *next || *registered == self.watched {
            return None;
        }
        let (Some(_), None) = (self.helper(), &self.command) else { return None };
        self.lazy_looks.registered = self.watched.clone();
        self.files().filter(|_| !has_swap())
    }

    /// A look that began `since` found so many bytes in mappings: tells the helper to have the
    /// kernel drop them. `false` where there is nothing of it.
    pub(crate) fn give_drop_freed(&mut self, found: &[(Range<u64>, u64)], since: Instant) -> bool {
        self.lazy_looks.next = Instant::now() + PAUSE_MIN.max(since.elapsed() * PAUSE_TIMES);
        let (Some(helper), None) = (self.helper(), &self.command) else { return false };
        let mut runs = Vec::new();
        for part in found.iter().flat_map(|(range, _)| self.watched.within(range.clone())) {
            let count = ((part.end - part.start) / PAGE) as usize;
            runs.push(MoveRun { count, ..MoveRun::new(part.start / PAGE, 0) });
        }
        runs.truncate(RUNS_MAX);
        !runs.is_empty() && self.give(&helper, work::DROP_FREED, None, runs)
    }
}

/// Whether the system has swap. A file that cannot be read tells of none.
fn has_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1)
}
