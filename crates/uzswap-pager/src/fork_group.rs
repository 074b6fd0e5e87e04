//! Processes that forks made of one: pages of one may be another's as well.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A group.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForkGroup(Arc<Figures>);

#[derive(Debug, Default)]
struct Figures {
    /// Processes that have pages of it; of some of them that is all that is known yet.
    members: AtomicU32,
    /// Such that were members.
    left: AtomicU32,
    /// COW copies of members that were in no other member's count: each took one page more.
    copied: AtomicU64,
    /// Of these, those that the last survey counted; and the members that it queried.
    known: AtomicU64,
    asked: AtomicU32,
}

/// A member of it, as long as this is there.
#[derive(Debug)]
pub(crate) struct Member(ForkGroup);

impl Drop for Member {
    fn drop(&mut self) {
        self.0.0.members.fetch_sub(1, Ordering::Relaxed);
        self.0.0.left.fetch_add(1, Ordering::Relaxed);
    }
}

impl Deref for Member {
    type Target = ForkGroup;

    fn deref(&self) -> &ForkGroup {
        &self.0
    }
}

impl ForkGroup {
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

    /// No other group has it.
    pub(crate) fn number(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// A member has made pages its own that were in its own count.
    pub(crate) fn part(&self, pages: usize) {
        self.0.copied.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// How many pages that were so far.
    pub(crate) fn copied(&self) -> u64 {
        self.0.copied.load(Ordering::Relaxed)
    }

    /// Members were asked for their part since so many pages were copied: so many, where all were.
    pub(crate) fn note_asked(&self, copied: u64, members: u32) {
        self.0.known.store(copied, Ordering::Release);
        self.0.asked.store(members, Ordering::Relaxed);
    }

    /// Whether nobody has come or gone since all were asked.
    pub(crate) fn is_counted(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed) == self.members()
    }

    /// Pages that were copied since: at most so many more does the group take than its members'
    /// counts tell.
    pub(crate) fn copied_since(&self) -> u64 {
        // In this order: a survey may end between the two.
        let known = self.0.known.load(Ordering::Acquire);
        self.copied().saturating_sub(known)
    }
}

impl PartialEq for ForkGroup {
    fn eq(&self, other: &ForkGroup) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The part of a process in the memory of its group, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Exclusive bytes.
    own_bytes: u64,
    /// Shared bytes.
    common_bytes: u64,
}

impl Part {
    /// The part of a process with so many resident bytes and this `Pss_Anon`. All members are
    /// assumed to share its shared pages.
    pub(crate) fn of(bytes: u64, resident: u64, members: u32) -> Part {
        let own_bytes = match u64::from(members) {
            0 | 1 => bytes,
            members => (bytes * members).saturating_sub(resident) / (members - 1),
        };
        let own_bytes = own_bytes.min(bytes).min(resident);
        let common_bytes = (bytes - own_bytes) * u64::from(members);
        Part { own_bytes, common_bytes: common_bytes.min(resident - own_bytes) }
    }

    /// Shared bytes.
    pub(crate) fn common_bytes(&self) -> u64 {
        self.common_bytes
    }

    /// Bytes in its own count, if `of` members count all shared pages; and how many of them are
    /// shared.
    pub(crate) fn counted_of(&self, of: u32) -> (u64, u64) {
        let part_bytes = self.common_bytes / u64::from(of.max(1));
        (self.own_bytes + part_bytes, part_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_what_a_group_takes() {
        const SHARED: u64 = 96 << 20;
        for (members, asked) in [(2, 2_u32), (32, 32), (32, 24), (3, 1)] {
            // Each has so much alone, and all of them the rest.
            let own = |number: u64| number << 20;
            let (mut bytes, mut lent) = (0, 0);
            for number in 0..u64::from(asked) {
                let answer = own(number) + SHARED / u64::from(members);
                let part = Part::of(answer, own(number) + SHARED, members);
                bytes += part.own_bytes;
                lent += part.common_bytes / u64::from(asked);
            }
            let is_about = |a: u64, b: u64| a.abs_diff(b) < 4096;
            assert!(is_about(lent, SHARED), "{lent} of {SHARED}, {members} members");
            assert!(is_about(bytes, (0..u64::from(asked)).map(own).sum()));
        }
        // Alone; and a process that shares nothing, or has nothing any more.
        assert_eq!(Part::of(7, 7, 1), Part { own_bytes: 7, common_bytes: 0 });
        assert_eq!(Part::of(7, 7, 5), Part { own_bytes: 7, common_bytes: 0 });
        assert_eq!(Part::of(7, 5, 5), Part { own_bytes: 5, common_bytes: 0 });
    }

    #[test]
    fn members_come_and_go_and_are_counted() {
        let [group, other] = [(); 2].map(|()| ForkGroup::default());
        assert!(group == group.clone() && group != other);
        assert_eq!(group.number(), group.clone().number());
        assert_ne!(group.number(), other.number());
        assert_eq!((group.members(), group.left()), (0, 0));
        let members = [(); 3].map(|()| group.join());
        assert_eq!((group.members(), group.left()), (3, 0));
        assert!(members.iter().all(|member| **member == group));
        drop(members);
        assert_eq!((group.members(), group.left()), (0, 3));
    }

    #[test]
    fn a_group_is_counted_until_somebody_comes_or_goes() {
        let group = ForkGroup::default();
        let first = group.join();
        assert!(!group.is_counted(), "nobody was asked");
        group.note_asked(0, 1);
        assert!(group.is_counted());
        let second = group.join();
        assert!(!group.is_counted(), "one has come");
        group.note_asked(0, 2);
        assert!(group.is_counted());
        drop(first);
        assert!(!group.is_counted(), "one has gone");
        drop(second);
    }

    #[test]
    fn cow_copies_count_until_members_were_asked() {
        let group = ForkGroup::default();
        group.part(5);
        group.part(2);
        assert_eq!((group.copied(), group.copied_since()), (7, 7));
        // They were asked when there were five.
        group.note_asked(5, 1);
        assert_eq!((group.copied(), group.copied_since()), (7, 2));
        group.part(1);
        assert_eq!((group.copied(), group.copied_since()), (8, 3));
        group.note_asked(8, 1);
        assert_eq!(group.copied_since(), 0);
    }
}
