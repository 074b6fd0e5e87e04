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
    use crate::address_space::for_tests::Written;
    use crate::address_space::handle::SharedAddressSpace;
    use crate::fork_group::ForkGroup;
    use uzswap_sys::userfaultfd::Userfaultfd;

    /// This process, as a child of a process with so many bytes.
    fn child(resident_bytes: u64) -> AddressSpace {
        let nothing = std::fs::File::open("/dev/null").unwrap();
        let uffd = Userfaultfd::from_fd(nothing.into());
        let mut space = AddressSpace::new(uffd, Some(std::process::id()));
        space.join_group(&ForkGroup::default(), resident_bytes);
        space.charge.expect_helper();
        space
    }

    #[test]
    fn copies_of_unprotected_memory_are_counted_now_and_then() {
        let now = Instant::now();
        let is_due = |space: &mut AddressSpace, now| space.due_for_copies(now).is_some();
        let mut space = child(8 << 20);
        assert!(is_due(&mut space, now));
        space.count_copies_from_fork(8 << 20);
        let (at, counts) = space.copies.last.unwrap();
        assert_eq!((counts.anonymous, counts.others, counts.minor_faults), (2048, 0, 0));
        let after = [EVERY - Duration::from_micros(1), EVERY];
        assert_eq!(after.map(|age| is_due(&mut space, at + age)), [false, true]);
        // Faults report the copies of protected memory.
        space.registration.insert(0..PAGE);
        assert!(is_due(&mut space, at + EVERY));
        space.protect_rest(&crate::range_set::RangeSet::new());
        assert!(!is_due(&mut space, at + EVERY) && space.copies.last.is_none());
        assert!(!is_due(&mut child(1 << 20), now), "a small one makes few");
        assert!(!is_due(&mut AddressSpace::of_nothing(), now));
    }

    #[test]
    fn copied_pages_are_in_the_charge_of_the_child() {
        let now = Instant::now();
        let space = SharedAddressSpace::alone(child(8 << 20));
        let size = Size { mapped: 9, anonymous: 7, others: 5 };
        count_copies(&space, size, now);
        assert_eq!(lock(&space).charge.copied_bytes(), 0);
        drop(Written::new());
        count_copies(&space, size, now + EVERY / 2);
        assert_eq!(lock(&space).charge.copied_bytes(), 0, "it is too soon");
        count_copies(&space, size, now + EVERY);
        assert!(lock(&space).charge.copied_bytes() > 0);
        let (_, counts) = lock(&space).copies.last.unwrap();
        assert_eq!((counts.anonymous, counts.others), (7, 5));
    }

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
