//! Processes that forks made of one: pages of one may be another's as well.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A family.
#[derive(Debug, Clone, Default)]
pub(crate) struct Family(Arc<Figures>);

#[derive(Debug, Default)]
struct Figures {
    /// Processes that have pages of it; of some of them that is all that is known yet.
    members: AtomicU32,
    /// Such that were members.
    left: AtomicU32,
    /// Pages that some member made its own, and that were in no other's count: each took one page
    /// more.
    parted: AtomicU64,
    /// Of these, those that are in what members were told; and members that were asked.
    known: AtomicU64,
    asked: AtomicU32,
}

/// A member of it, as long as this is there.
#[derive(Debug)]
pub(crate) struct Member(Family);

impl Drop for Member {
    fn drop(&mut self) {
        self.0.0.members.fetch_sub(1, Ordering::Relaxed);
        self.0.0.left.fetch_add(1, Ordering::Relaxed);
    }
}

impl Deref for Member {
    type Target = Family;

    fn deref(&self) -> &Family {
        &self.0
    }
}

impl Family {
    /// One more has pages of it.
    pub(crate) fn join(&self) -> Member {
        self.0.members.fetch_add(1, Ordering::Relaxed);
        Member(self.clone())
    }

    /// How many have.
    pub(crate) fn members(&self) -> u32 {
        self.0.members.load(Ordering::Relaxed)
    }

    /// How many have had, and have no more.
    pub(crate) fn left(&self) -> u32 {
        self.0.left.load(Ordering::Relaxed)
    }

    /// No other family has it.
    pub(crate) fn number(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// A member has made pages its own that were in its own count.
    pub(crate) fn part(&self, pages: usize) {
        self.0.parted.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// How many pages that were so far.
    pub(crate) fn parted(&self) -> u64 {
        self.0.parted.load(Ordering::Relaxed)
    }

    /// Members were asked for their part since so many pages were parted: so many, where all were.
    pub(crate) fn was_asked(&self, parted: u64, members: u32) {
        self.0.known.store(parted, Ordering::Release);
        self.0.asked.store(members, Ordering::Relaxed);
    }

    /// Whether nobody has come or gone since all were asked.
    pub(crate) fn is_counted(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed) == self.members()
    }

    /// Pages that were parted since: at most so many more does the family take than its members'
    /// counts tell.
    pub(crate) fn parted_since(&self) -> u64 {
        // In this order: a census may end between the two.
        let known = self.0.known.load(Ordering::Acquire);
        self.parted().saturating_sub(known)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Family) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_and_go_and_are_counted() {
        let [family, other] = [(); 2].map(|()| Family::default());
        assert!(family == family.clone() && family != other);
        assert_eq!(family.number(), family.clone().number());
        assert_ne!(family.number(), other.number());
        assert_eq!((family.members(), family.left()), (0, 0));
        let members = [(); 3].map(|()| family.join());
        assert_eq!((family.members(), family.left()), (3, 0));
        assert!(members.iter().all(|member| **member == family));
        drop(members);
        assert_eq!((family.members(), family.left()), (0, 3));
    }

    #[test]
    fn a_family_is_counted_until_somebody_comes_or_goes() {
        let family = Family::default();
        let first = family.join();
        assert!(!family.is_counted(), "nobody was asked");
        family.was_asked(0, 1);
        assert!(family.is_counted());
        let second = family.join();
        assert!(!family.is_counted(), "one has come");
        family.was_asked(0, 2);
        assert!(family.is_counted());
        drop(first);
        assert!(!family.is_counted(), "one has gone");
        drop(second);
    }

    #[test]
    fn pages_that_were_parted_count_until_members_were_asked() {
        let family = Family::default();
        family.part(5);
        family.part(2);
        assert_eq!((family.parted(), family.parted_since()), (7, 7));
        // They were asked when there were five.
        family.was_asked(5, 1);
        assert_eq!((family.parted(), family.parted_since()), (7, 2));
        family.part(1);
        assert_eq!((family.parted(), family.parted_since()), (8, 3));
        family.was_asked(8, 1);
        assert_eq!(family.parted_since(), 0);
    }
}
