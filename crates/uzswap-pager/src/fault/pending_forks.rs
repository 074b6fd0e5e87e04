//! Forks whose event may arrive before earlier changes by other threads of the parent.
//!
//! Until the supervisor has read these changes, it answers no fault of the child. Each of them may
//! have happened before the fork or after it, so the child notes them, too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::spaces::Spaces;
use crate::{SpaceHandle, lock};
use uzswap_sys::userfaultfd::Userfaultfd;

/// How long a child waits for events of its parent at most. An event counts as pending until its
/// thread runs again: on a busy machine, that takes long.
const PENDING_FOR: Duration = Duration::from_secs(5);

/// What becomes of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    GoesOn,
    /// All events from before the fork were read.
    IsOver,
    /// Some of them may follow.
    IsGivenUp,
}

impl Wait {
    /// The supervisor may look late: then the wait is over all the same.
    fn after(waited: Duration, is_parent_changing: bool) -> Wait {
        match is_parent_changing {
            false => Wait::IsOver,
            true if waited < PENDING_FOR => Wait::GoesOn,
            true => Wait::IsGivenUp,
        }
    }
}

#[derive(Debug)]
struct PendingFork {
    child: u32,
    parent: Arc<Userfaultfd>,
    since: Instant,
}

#[derive(Debug, Default)]
pub(super) struct PendingForks(Vec<PendingFork>);

impl PendingForks {
    /// Adds a fork that was read just now.
    pub(super) fn add(&mut self, child: u32, parent: Arc<Userfaultfd>) {
        self.0.push(PendingFork { child, parent, since: Instant::now() });
    }

    /// Whether events of this child's parent from before the fork may still arrive.
    pub(super) fn has_child(&self, child: u32) -> bool {
        self.0.iter().any(|fork| fork.child == child)
    }

    pub(super) fn forget(&mut self, child: u32) {
        self.0.retain(|fork| fork.child != child);
    }

    /// Ends the wait of children whose parents have no event pending, or that have waited long
    /// enough. The caller has no address space locked.
    pub(super) fn settle(&mut self, spaces: &Spaces) {
        let mut last = None;
        self.0.retain(|PendingFork { child, parent, since }| {
            // Children of one parent mostly follow each other.
            let is_changing = match &last {
                Some((asked, answer)) if Arc::ptr_eq(asked, parent) => *answer,
                _ => parent.is_changing(),
            };
            last = Some((Arc::clone(parent), is_changing));
            let wait = Wait::after(since.elapsed(), is_changing);
            if wait == Wait::IsGivenUp
                && let Some(child) = spaces.get(*child)
            {
                lock(child).layout.note_pending_of_parent();
            }
            wait == Wait::GoesOn
        });
    }

    /// Children to which an event of this parent may apply as well.
    pub(super) fn children_of(
        &self,
        parent: &Arc<Userfaultfd>,
        spaces: &Spaces,
    ) -> Vec<SpaceHandle> {
        let forks = self.0.iter().filter(|fork| Arc::ptr_eq(&fork.parent, parent));
        forks.filter_map(|fork| spaces.get(fork.child).cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_given_up_only_while_the_parent_changes() {
        let after = |ms, is_changing| Wait::after(Duration::from_millis(ms), is_changing);
        assert_eq!([0, 100, 4999].map(|ms| after(ms, true)), [Wait::GoesOn; 3]);
        assert_eq!(after(5000, true), Wait::IsGivenUp);
        assert_eq!([0, 5000, 60_000].map(|ms| after(ms, false)), [Wait::IsOver; 3]);
    }
}
