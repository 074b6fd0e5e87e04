//! How much memory a space takes.

use std::time::{Duration, Instant};

use super::{PAGE, Space};
use crate::pager::{SpaceLock, lock};

/// Memory that is another process's too, as it was told last.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) bytes: u64,
    /// When that was asked for, and how long it took; nothing where it is not known.
    pub(super) told: Option<(Instant, Duration)>,
}

/// How long what was told of shared pages counts at most.
const SHARED_FOR: Duration = Duration::from_millis(50);

/// How long a child may be without a helper: it is looked twice for such in that time.
const ASSUMED_FOR: Duration = Duration::from_secs(1);

impl Space {
    /// Bytes of anonymous memory that the process has; pages that others have too count here.
    pub(in crate::pager) fn resident_bytes(&self) -> u64 {
        let size = self.files.as_ref().and_then(|files| files.size());
        size.map_or_else(|| self.assumed_bytes(), |size| size.anonymous * PAGE)
    }

    /// What a child is taken to have whose helper is not there yet: the pages that the others have
    /// made their own since, and it has alone. Nothing if it has ended or runs another program, and
    /// nothing after a while, for then it is found to be unmanaged.
    fn assumed_bytes(&self) -> u64 {
        let (Some(family), Some((at, before))) = (&self.family, self.born) else { return 0 };
        let is_young = self.pid.is_none() && at.elapsed() < ASSUMED_FOR;
        let pages = if is_young { family.parted() - before } else { 0 };
        if pages == 0 || self.is_dead() { 0 } else { pages * PAGE }
    }
}

// What is asked of the kernel at each look is asked for without the space's lock: faults wait for
// that.

/// As [`Space::resident_bytes`].
pub(in crate::pager) fn resident_bytes(space: &SpaceLock) -> u64 {
    let files = lock(space).files.clone();
    let size = files.and_then(|files| files.size());
    size.map_or_else(|| lock(space).assumed_bytes(), |size| size.anonymous * PAGE)
}

/// Bytes of anonymous memory that count as this process's: where pages are shared since a fork, its
/// part of them (`Pss_Anon`). What was told of it last counts for so many times of what it took.
pub(in crate::pager) fn counted_bytes(space: &SpaceLock, times: u32) -> u64 {
    let resident = resident_bytes(space);
    let (files, before, told) = {
        let space = lock(space);
        let files = space.files.clone().filter(|_| space.family.is_some());
        (files, space.shared.bytes, space.shared.told)
    };
    let Some(files) = files else { return resident };
    let now = Instant::now();
    if told.is_some_and(|(at, took)| now < at + (took * times).min(SHARED_FOR)) {
        return resident.saturating_sub(before);
    }
    let part = files.part_of_anonymous().unwrap_or(0); // it has ended
    let took = now.elapsed();
    let mut space = lock(space);
    // What was made its own meanwhile may not be told of.
    let made_own = before.saturating_sub(space.shared.bytes);
    space.shared.bytes = resident.saturating_sub(part).saturating_sub(made_own);
    space.shared.told = Some((now, took));
    part
}
