//! COW copies of shared pages, before the memory is registered. No fault reports them to the
//! supervisor, and they leave the resident size of the process as it is. Each takes one minor
//! fault, and so does each new page: the copies are the minor faults less the growth.

use std::time::{Duration, Instant};

use super::{AddressSpace, PAGE};
use crate::program::procfs::Size;
use crate::{SpaceHandle, lock};
use uzswap_sys::process;

/// How often the faults of a process are read, which costs some microseconds.
const EVERY: Duration = Duration::from_millis(20);

/// Counts of a process at one time.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    minor_faults: u64,
    /// Pages.
    anonymous: u64,
    others: u64,
}

impl Counts {
    /// Pages that were copied since earlier counts, at least.
    fn copies_since(&self, before: &Counts) -> u64 {
        let grown = self.anonymous.saturating_sub(before.anonymous)
            + self.others.saturating_sub(before.others);
        self.minor_faults.saturating_sub(before.minor_faults).saturating_sub(grown)
    }
}

/// The last counts of a process.
#[derive(Debug, Default)]
pub(super) struct Copies {
    last: Option<(Instant, Counts)>,
}

impl AddressSpace {
    /// It is a child that shares so many bytes. The kernel counts its faults from its fork on,
    /// which gave it no page of a file.
    pub(crate) fn count_copies_from_fork(&mut self, shared_bytes: u64) {
        let counts = Counts { anonymous: shared_bytes / PAGE, ..Counts::default() };
        self.copies.last = Some((Instant::now(), counts));
    }

    /// The process, if a count of its copies is due. Faults report copies of protected memory.
    fn due_for_copies(&mut self, now: Instant) -> Option<u32> {
        let pid = self.process.pid()?;
        let is_protected = self.protection.is_on() && self.registration.is_any();
        if is_protected || !self.charge.may_copy() {
            self.copies = Copies::default();
            return None;
        }
        let is_young = |(at, _): &(Instant, Counts)| now.duration_since(*at) < EVERY;
        (!self.copies.last.as_ref().is_some_and(is_young)).then_some(pid)
    }
}

/// Counts the copies that a process of this size has made since the last counts as its own memory.
pub(crate) fn count_copies(space: &SpaceHandle, size: Size, now: Instant) {
    let due = lock(space).due_for_copies(now);
    // Without the lock: faults wait for that.
    let Some(minor_faults) = due.and_then(process::minor_faults) else { return };
    let counts = Counts { minor_faults, anonymous: size.anonymous, others: size.others };
    let mut space = lock(space);
    if let Some((_, before)) = space.copies.last.replace((now, counts)) {
        space.charge.count_itself(counts.copies_since(&before) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_brought_new_pages_are_no_copies() {
        let before = Counts { minor_faults: 100, anonymous: 1000, others: 50 };
        let now = |minor_faults, anonymous, others| Counts { minor_faults, anonymous, others };
        assert_eq!(now(400, 1000, 50).copies_since(&before), 300);
        assert_eq!(now(400, 1200, 90).copies_since(&before), 60);
        // Pages that it gave back are none, and one fault may bring several pages of a file.
        assert_eq!(now(400, 700, 50).copies_since(&before), 300);
        assert_eq!(now(110, 1000, 210).copies_since(&before), 0);
    }
}
