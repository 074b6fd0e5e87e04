//! The usage of all programs, each shared page once.

use std::collections::BTreeMap;

use crate::PAGE_SIZE;
use crate::account::sample::SharedOnce;
use crate::address_space::AddressSpace;
use crate::fork::outsiders::Outsider;
use crate::fork_group::ForkGroup;

/// The sum of the anonymous memory of all programs, each page once.
#[derive(Debug, Default)]
pub(crate) struct UsageTotal {
    alone: u64,
    groups: BTreeMap<usize, OfGroup>,
    /// Bytes of unmanaged processes; `groups` has them, too.
    outside: u64,
    /// Bytes that may count twice until the next survey; `groups` has them, too.
    doubtful: u64,
}

#[derive(Debug)]
struct OfGroup {
    group: ForkGroup,
    /// Bytes if its members shared nothing; and the sum of their charges.
    apart: u64,
    together: u64,
    /// Members that had left before the first was added.
    left: u32,
}

impl UsageTotal {
    /// Adds a process with so many resident bytes.
    pub(crate) fn add(&mut self, space: &mut AddressSpace, resident: u64) {
        let counted = space.charge.count(resident);
        let Some(group) = space.charge.group() else {
            self.alone += counted;
            return;
        };
        let left = group.left();
        self.doubtful += space.charge.doubtful_bytes();
        let group = group.clone();
        self.add_member(&group, left, resident, counted);
    }

    /// Adds a process that has ended, which the server has not noted: other members may count its
    /// pages.
    pub(crate) fn add_ended(&mut self, space: &mut AddressSpace, resident: u64) {
        let doubtful = self.doubtful;
        self.add(space, resident);
        if space.charge.group().is_some() {
            self.doubtful = doubtful + space.charge.count(resident);
        }
    }

    /// Adds an unmanaged process that shares pages.
    pub(crate) fn add_outsider(&mut self, outsider: &Outsider, resident: u64) {
        let counted = outsider.count(resident);
        self.outside += counted;
        self.add_member(outsider.group(), outsider.group().left(), resident, counted);
    }

    fn add_member(&mut self, group: &ForkGroup, left: u32, resident: u64, counted: u64) {
        let nothing = || OfGroup { group: group.clone(), apart: 0, together: 0, left };
        let sums = self.groups.entry(group.number()).or_insert_with(nothing);
        sums.apart += resident;
        sums.together += counted;
    }

    /// The usage, each shared page once.
    pub(crate) fn once(&self) -> SharedOnce {
        SharedOnce {
            most: self.bytes(),
            known: self.known_bytes(),
            outside: self.outside,
            group_changes: self.changes(),
            is_certain: self.is_certain(), // after the bytes
        }
    }

    /// A lower bound of the usage, in bytes.
    fn known_bytes(&self) -> u64 {
        self.bytes().saturating_sub(self.doubtful)
    }

    /// A number that changes when a process joins or leaves a group.
    fn changes(&self) -> u64 {
        let of_group = |of: &OfGroup| u64::from(of.group.members()) + 2 * u64::from(of.left);
        self.groups.values().map(of_group).sum()
    }

    /// Whether no member has ended during the sum: its shared pages may have been added twice, as
    /// its own and as its heir's.
    fn is_certain(&self) -> bool {
        self.groups.values().all(|of| of.left == of.group.left())
    }

    /// In bytes.
    fn bytes(&self) -> u64 {
        let copied = |group: &ForkGroup| group.copied_since() * PAGE_SIZE as u64;
        let of_group = |of: &OfGroup| (of.together + copied(&of.group)).min(of.apart);
        self.alone + self.groups.values().map(of_group).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::member;
    use super::*;
    use crate::lock;

    #[test]
    fn an_end_during_a_sample_makes_it_uncertain() {
        let group = ForkGroup::default();
        let [first, second] = [(); 2].map(|()| member(&group));
        let mut sum = UsageTotal::default();
        sum.add(&mut lock(&first), 100);
        assert!(sum.is_certain());
        lock(&first).charge.take_member();
        lock(&second).charge.inherit(100);
        sum.add(&mut lock(&second), 100);
        assert!(!sum.is_certain());
        let mut sum = UsageTotal::default();
        sum.add(&mut lock(&first), 0);
        sum.add(&mut lock(&second), 100);
        assert!(sum.is_certain());
        assert_eq!(sum.bytes(), 100);
    }

    #[test]
    fn of_one_that_has_ended_unnoted_nothing_is_known() {
        let group = ForkGroup::default();
        let [first, second] = [(); 2].map(|()| member(&group));
        let sum = |has_ended: bool| {
            let mut sum = UsageTotal::default();
            match has_ended {
                true => sum.add_ended(&mut lock(&first), 300),
                false => sum.add(&mut lock(&first), 300),
            }
            sum.add(&mut lock(&second), 100);
            (sum.bytes(), sum.known_bytes())
        };
        let (before, after) = (sum(false), sum(true));
        assert_eq!(before.0, after.0, "where the limit is near, it counts until it is noted");
        assert_eq!([before.1, after.1], [400, 100], "it has freed what was its own");
    }

    #[test]
    fn copies_since_the_survey_and_inherited_bytes_are_added_and_doubtful() {
        const PAGE: u64 = PAGE_SIZE as u64;
        let group = ForkGroup::default();
        let (parent, child) = (member(&group), member(&group));
        lock(&child).join_group(&group, 10 * PAGE);
        lock(&child).charge.expect_helper();
        let sum = || {
            let mut sum = UsageTotal::default();
            [&parent, &child].iter().for_each(|space| sum.add(&mut lock(space), 10 * PAGE));
            (sum.bytes(), sum.known_bytes())
        };
        assert_eq!(sum(), (10 * PAGE, 10 * PAGE), "the parent counts the pages of both");
        group.part(3);
        assert_eq!(sum(), (13 * PAGE, 13 * PAGE));
        lock(&child).charge.inherit(100);
        assert_eq!(sum(), (13 * PAGE + 100, 13 * PAGE));
        drop(lock(&child).charge.take_member());
        let mut sum = UsageTotal::default();
        sum.add(&mut lock(&parent), PAGE);
        assert_eq!(sum.once().group_changes, 1 + 2, "a member, and one that has left");
        (0..2).for_each(|_| sum.add(&mut AddressSpace::of_nothing(), PAGE));
        assert_eq!(sum.bytes(), 3 * PAGE, "two share nothing");
    }

    #[test]
    fn a_group_takes_no_more_than_its_members_would_alone() {
        let group = ForkGroup::default();
        let [first, second] = [(); 2].map(|()| member(&group));
        let sum = || {
            let mut sum = UsageTotal::default();
            sum.add(&mut lock(&first), 0);
            sum.add(&mut lock(&second), 10 * PAGE_SIZE as u64);
            sum.bytes() / PAGE_SIZE as u64
        };
        let before = sum();
        assert!(before <= 10, "{before} pages");
        group.part(3);
        assert_eq!(sum(), (before + 3).min(10), "each page that was parted took one more");
        group.part(100);
        assert_eq!(sum(), 10);
        group.note_asked(103, 2);
        assert_eq!(sum(), before);
    }
}
