//! How much memory a space takes.

use std::sync::Arc;
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

/// How it was when a space came into its family, by the fork that was last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Joined {
    pub(super) at: Instant,
    /// Pages that the family had parted.
    pub(super) parted: u64,
    /// Of the parent.
    pub(super) resident_bytes: u64,
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
    /// made their own since, and it has alone; all, where there are no others.
    fn assumed_bytes(&self) -> u64 {
        let Some(joined) = self.joined.filter(|_| self.expected) else { return 0 };
        match &self.family {
            Some(family) => ((family.parted() - joined.parted) * PAGE).min(joined.resident_bytes),
            None => joined.resident_bytes,
        }
    }

    /// Looks after forks: a child whose helper has not come has ended or runs another program; or
    /// it has none, and after a while is found to be unmanaged. A fork that was told may have
    /// failed.
    pub(in crate::pager) fn look_after_forks(&mut self) {
        let is_late = self.joined.is_some_and(|joined| joined.at.elapsed() >= ASSUMED_FOR);
        if self.expected && (is_late || self.is_dead()) {
            self.expect_no_more();
        }
        if self.protects && self.family.is_none() && !self.is_about_to_fork() {
            self.shares_no_more();
        }
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
/// part of them (`Pss_Anon`). What was told of it last counts for so many times of what it took; or
/// as long as it has a child of which nothing is known yet, for then parts are in nobody's count.
pub(in crate::pager) fn counted_bytes(space: &SpaceLock, times: u32) -> u64 {
    let resident = resident_bytes(space);
    let (files, before, told, joined, is_complete) = {
        let space = lock(space);
        let (Some(files), Some(family)) = (&space.files, &space.family) else { return resident };
        let Shared { bytes, told } = space.shared;
        (Arc::clone(files), bytes, told, space.joined, family.is_complete())
    };
    let now = Instant::now();
    let is_fresh = told.is_some_and(|(at, took)| now < at + (took * times).min(SHARED_FOR));
    if is_fresh || !is_complete {
        return resident.saturating_sub(before);
    }
    let part = files.part_of_anonymous().unwrap_or(0); // it has ended
    let took = now.elapsed();
    let mut space = lock(space);
    let is_complete = space.family.as_ref().is_some_and(|family| family.is_complete());
    if space.family.is_some() {
        space.shared.told = Some((now, took));
    }
    if !is_complete || space.joined != joined || space.uffd.is_changing() {
        // There was a fork meanwhile, of which may not have been told yet, or none is left.
        return resident.saturating_sub(space.shared.bytes);
    }
    // What was made its own meanwhile may not be told of.
    let made_own = before.saturating_sub(space.shared.bytes);
    space.shared.bytes = resident.saturating_sub(part).saturating_sub(made_own);
    part
}
