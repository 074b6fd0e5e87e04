//! How much memory a space takes.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::write_protect::PROTECTED_BYTES_MIN;
use super::{AddressSpace, PAGE};
use crate::fork::group::ForkGroup;
use crate::target::procfs::{ProcessFiles, Size};
use crate::{SpaceHandle, lock};

/// What a process has in common with others.
#[derive(Debug)]
pub(super) struct Shared {
    /// What of its memory is in another's count.
    pub(super) bytes: u64,
    /// It may be less: of a child that was forked when nothing was registered.
    pub(super) is_unsure: bool,
    /// What of its own count others may have, too: nobody counts that once it has ended.
    lent_bytes: u64,
    /// What came from others' count into its own so far, as it has a page of its own now.
    made_own_bytes: u64,
    /// Of its own count, what was in that of such that have ended, until all are asked.
    inherited_bytes: u64,
    /// Of its own count, what a small child is taken to have made its own, until all are asked.
    assumed_bytes: u64,
}

impl Default for Shared {
    /// All of it is in its own count.
    fn default() -> Shared {
        Shared {
            bytes: 0,
            is_unsure: false,
            lent_bytes: u64::MAX,
            made_own_bytes: 0,
            inherited_bytes: 0,
            assumed_bytes: 0,
        }
    }
}

/// What a process takes of its group's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// What it has alone.
    own_bytes: u64,
    /// What it has in common with others.
    common_bytes: u64,
}

impl Part {
    /// Of one that has so many bytes resident, of what it has in common with others its part. All
    /// members are taken to have that.
    pub(crate) fn of(bytes: u64, resident: u64, members: u32) -> Part {
        let own_bytes = match u64::from(members) {
            0 | 1 => bytes,
            members => (bytes * members).saturating_sub(resident) / (members - 1),
        };
        let own_bytes = own_bytes.min(bytes).min(resident);
        let common_bytes = (bytes - own_bytes) * u64::from(members);
        Part { own_bytes, common_bytes: common_bytes.min(resident - own_bytes) }
    }

    /// What it has in common with others.
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

/// What a process has told of its memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    /// Before it was asked.
    pub(crate) at: Instant,
    /// Bytes that were resident.
    pub(crate) resident: u64,
    pub(crate) part: Part,
    /// What it had made its own by then, in bytes.
    pub(crate) made_own_bytes: u64,
}

/// How it was when a space came into its group, by the fork that was last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joined {
    pub(super) at: Instant,
    /// Of the parent.
    pub(super) resident_bytes: u64,
}

/// What a small child makes its own as soon as it runs, as a rule. (Where it counted for all, pages
/// of many left that had room, and came back as one for each: 60 children in twice what they take
/// ran ten times as long.)
const OWN_BYTES: u64 = 256 << 10;

/// How long a child may be without a helper: it is looked twice for such in that time.
const ASSUMED_FOR: Duration = Duration::from_secs(1);

impl AddressSpace {
    /// Bytes of anonymous memory that the process has; pages that others have too count here.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.bytes_of(self.files.as_ref().and_then(|files| files.size()))
    }

    /// Bytes of anonymous memory at the last sample.
    pub(crate) fn seen_bytes(&self) -> u64 {
        self.was_resident.map_or_else(|| self.resident_bytes(), |pages| pages * PAGE)
    }

    /// Likewise, if it has this size.
    pub(crate) fn bytes_of(&self, size: Option<Size>) -> u64 {
        match (size, &self.files) {
            (Some(size), _) if size.mapped > 0 => size.anonymous * PAGE,
            // A child whose helper is not there yet has what its parent had.
            (_, None) => self.joined.filter(|_| self.expected).map_or(0, |by| by.resident_bytes),
            // It has ended. What others have, too, is theirs once that was told.
            (_, Some(_)) if self.group.is_some() => self.counted + self.shared.bytes,
            (_, Some(_)) => 0,
        }
    }

    /// Registered memory, without the pages that no command moves.
    pub(crate) fn evictable_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges = self.registered.clone();
        self.left.iter().chain(self.words.all().iter()).for_each(|stays| ranges.remove(stays));
        ranges.iter().collect()
    }

    /// Bytes that count as this process's where so many are resident.
    pub(crate) fn count(&mut self, resident: u64) -> u64 {
        self.counted = resident.saturating_sub(self.shared.bytes);
        self.counted
    }

    /// By how many bytes it has grown since it was looked at last, if it was, but for what faults
    /// were given and what has left: some that has left may not be noted yet.
    pub(crate) fn grown_untold(&mut self, size: Size) -> i64 {
        let told = std::mem::take(&mut self.told_pages);
        let before = self.was_resident.replace(size.anonymous).unwrap_or(size.anonymous);
        (size.anonymous as i64 - before as i64 - told) * PAGE as i64
    }

    /// What it has of its parent is in that one's count. Not `for_sure`: some of it may have been
    /// made somebody's own since, unasked, and it is to be asked for its part at once; unless that
    /// is little, of which it is taken to have some until all are asked.
    pub(super) fn share_all(&mut self, for_sure: bool) {
        let (Some(joined), Some(_)) = (self.joined, &self.group) else { return };
        let size = self.files.as_ref().and_then(|files| files.size());
        let bytes = size.map_or(u64::MAX, |size| size.anonymous * PAGE).min(joined.resident_bytes);
        let is_small = joined.resident_bytes < PROTECTED_BYTES_MIN;
        let own_bytes = if is_small && !for_sure { OWN_BYTES } else { 0 };
        let inherited_bytes = self.shared.inherited_bytes;
        self.shared = Shared {
            bytes: bytes.saturating_sub(own_bytes + inherited_bytes),
            is_unsure: !for_sure && !is_small,
            lent_bytes: inherited_bytes, // what else it counts itself has come since
            assumed_bytes: own_bytes,
            ..self.shared
        };
    }

    /// Who has the most of this inherits: a process that is known, and what of its memory is in
    /// others' count.
    pub(crate) fn may_inherit(&self) -> (bool, u64) {
        (self.files.is_some(), self.shared.bytes)
    }

    /// What came from others' count into its own so far.
    pub(crate) fn made_own_bytes(&self) -> u64 {
        self.shared.made_own_bytes
    }

    /// Its group, if it can be asked for its part of what that has in common.
    pub(crate) fn group_to_ask(&self) -> Option<&ForkGroup> {
        self.files.as_ref().and(self.group())
    }

    pub(crate) fn is_part_unsure(&self) -> bool {
        self.shared.is_unsure
    }

    /// Counts the part that it has reported, as all of its group have; what they share is in the
    /// count `of` so many.
    pub(crate) fn count_part(&mut self, told: &Told, of: u32) {
        let Told { at, resident, part, made_own_bytes } = *told;
        let (counted, part_bytes) = part.counted_of(of);
        let since = self.shared.made_own_bytes.saturating_sub(made_own_bytes);
        let has_forked_since = self.joined.is_some_and(|joined| joined.at >= at);
        self.shared = Shared {
            bytes: resident.saturating_sub(counted + since),
            is_unsure: false,
            lent_bytes: if has_forked_since { u64::MAX } else { part_bytes },
            inherited_bytes: 0,
            assumed_bytes: 0,
            ..self.shared
        };
        self.count(resident); // were it to end before it is looked at
    }

    /// Counts no shared page of a process that has ended: those are in the count of processes that
    /// have reported their part.
    pub(crate) fn count_no_part(&mut self) {
        let lent = self.lent_bytes();
        self.shared.lent_bytes = 0;
        self.shared.bytes += lent;
        self.counted -= lent;
    }

    /// Some pages were shared, and are no more: each takes a page more, here or, where none of them
    /// was in others' count, there.
    pub(crate) fn note_own(&mut self, pages: usize) {
        let others = self.count_itself(pages);
        if let Some(group) = &self.group {
            group.part(others);
        }
    }

    /// Some pages that were in others' count are in its own from now on; pages that were not.
    pub(crate) fn count_itself(&mut self, pages: usize) -> usize {
        let in_others = (self.shared.bytes / PAGE).min(pages as u64) as usize;
        self.shared.bytes -= in_others as u64 * PAGE;
        self.shared.made_own_bytes += in_others as u64 * PAGE;
        pages - in_others
    }

    /// What of its count may be in another's as well, or nowhere, until all are asked.
    pub(crate) fn doubtful_bytes(&self) -> u64 {
        (self.shared.assumed_bytes + self.shared.inherited_bytes).min(self.counted)
    }

    /// What of its count others may have, too.
    pub(crate) fn lent_bytes(&self) -> u64 {
        self.shared.lent_bytes.min(self.counted)
    }

    /// All that it has may be a child's as well.
    pub(super) fn lend_all(&mut self) {
        self.shared.lent_bytes = u64::MAX;
    }

    /// One that it had pages in common with is gone: they may be in nobody's count now. As much of
    /// them as `inherited` is in its own until it is asked.
    pub(crate) fn inherit(&mut self, inherited: u64) {
        let inherited = inherited.min(self.shared.bytes);
        self.shared.bytes -= inherited;
        self.shared.inherited_bytes += inherited;
        self.shared.lent_bytes = self.shared.lent_bytes.saturating_add(inherited);
        self.counted += inherited; // were it to end before it is looked at
    }

    /// All were asked, who have so many bytes in common at most: what it has inherited of that is
    /// in the count of those that have told their part.
    pub(crate) fn give_back_inherited(&mut self, common_bytes: u64) {
        let given = self.shared.inherited_bytes.min(common_bytes);
        self.shared.inherited_bytes -= given;
        self.shared.bytes += given;
        if self.shared.lent_bytes != u64::MAX {
            self.shared.lent_bytes = self.shared.lent_bytes.saturating_sub(given);
        }
        self.counted = self.counted.saturating_sub(given);
    }

    /// What /proc tells of it.
    pub(crate) fn files(&self) -> Option<Arc<ProcessFiles>> {
        self.files.clone()
    }

    /// Looks after forks: a child whose helper has not come has ended or runs another program; or
    /// it has none, and after a while is found to be unmanaged. A fork that was told may have
    /// failed.
    pub(crate) fn look_after_forks(&mut self) {
        let is_late = self.joined.is_some_and(|joined| joined.at.elapsed() >= ASSUMED_FOR);
        if self.expected && self.is_dead() {
            self.expected = false;
            self.group = None;
        }
        self.expected &= !is_late;
        if self.protects && self.members() == 1 && !self.is_about_to_fork() {
            self.end_sharing();
        }
    }
}

// What is asked of the kernel at each look is asked for without the space's lock: faults wait for
// that.

/// As [`AddressSpace::resident_bytes`].
pub(crate) fn resident_bytes(space: &SpaceHandle) -> u64 {
    let size = process_size(space);
    lock(space).bytes_of(size)
}

/// The size of its process; `None` where that is not known yet, or nobody is there any more.
pub(crate) fn process_size(space: &SpaceHandle) -> Option<Size> {
    let files = lock(space).files();
    files.and_then(|files| files.size())
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
                let told = own(number) + SHARED / u64::from(members);
                let part = Part::of(told, own(number) + SHARED, members);
                bytes += part.own_bytes;
                lent += part.common_bytes / u64::from(asked);
            }
            let is_about = |a: u64, b: u64| a.abs_diff(b) < 4096;
            assert!(is_about(lent, SHARED), "{lent} of {SHARED}, {members} members");
            assert!(is_about(bytes, (0..u64::from(asked)).map(own).sum()));
        }
        // Alone; and one that has nothing in common, or nothing any more.
        assert_eq!(Part::of(7, 7, 1), Part { own_bytes: 7, common_bytes: 0 });
        assert_eq!(Part::of(7, 7, 5), Part { own_bytes: 7, common_bytes: 0 });
        assert_eq!(Part::of(7, 5, 5), Part { own_bytes: 5, common_bytes: 0 });
    }

    fn member(group: &ForkGroup, resident: u64) -> AddressSpace {
        let mut space = AddressSpace::of_nothing();
        space.joins(group, resident);
        space
    }

    fn told(resident: u64, part: Part, made_own_bytes: u64) -> Told {
        Told { at: Instant::now(), resident, part, made_own_bytes }
    }

    #[test]
    fn what_nobody_counts_any_more_is_what_was_lent() {
        let mut space = member(&ForkGroup::default(), 100);
        space.count(100);
        assert_eq!(space.lent_bytes(), 100);
        // It has 40 alone, and a third of 60.
        space.count_part(&told(100, Part::of(60, 100, 3), 0), 3);
        assert_eq!((space.count(100), space.lent_bytes()), (60, 20));
        space.inherit(30);
        assert_eq!((space.count(100), space.lent_bytes()), (90, 50));
        space.inherit(30);
        assert_eq!((space.count(100), space.lent_bytes()), (100, 60));
    }

    #[test]
    fn what_was_inherited_is_counted_once_when_all_have_told() {
        let group = ForkGroup::default();
        let [mut asked, mut newcomer, mut gone] = [(); 3].map(|()| member(&group, 100));
        for space in [&mut asked, &mut newcomer, &mut gone] {
            space.share_all(true);
            space.count(100);
        }
        // A fourth has ended, in whose count all was.
        newcomer.inherit(60);
        gone.inherit(40);
        let counts = |spaces: [&mut AddressSpace; 3]| spaces.map(|space| space.count(100));
        assert_eq!(counts([&mut asked, &mut newcomer, &mut gone]), [0, 60, 40]);
        // One of the three was asked, one has come since, and of one there is nothing left.
        asked.count_part(&told(100, Part::of(50, 100, 2), 0), 1);
        newcomer.give_back_inherited(100);
        gone.give_back_inherited(100);
        gone.count_no_part();
        assert_eq!(counts([&mut asked, &mut newcomer, &mut gone]), [100, 0, 0]);
        assert_eq!([asked, newcomer, gone].map(|space| space.lent_bytes()), [100, 0, 0]);
    }

    #[test]
    fn what_a_child_has_of_one_that_has_told_and_ended_is_counted() {
        let group = ForkGroup::default();
        let [mut parent, mut child] = [(); 2].map(|()| member(&group, 100));
        parent.count(100);
        // It has 70 alone, and half of 30; then it forks.
        let told = told(100, Part::of(85, 100, 2), 0);
        parent.joins(&group, 100);
        child.share_all(true);
        parent.count_part(&told, 2);
        assert_eq!(parent.lent_bytes(), 85);
        // It ends before another census: what the child alone has now is not given back.
        child.count(100);
        child.inherit(parent.lent_bytes());
        child.give_back_inherited(30);
        assert_eq!(child.count(100), 55);
    }

    #[test]
    fn what_is_made_its_own_while_others_are_asked_is_in_its_count() {
        let mut space = member(&ForkGroup::default(), 100 * PAGE);
        space.share_all(true);
        let made_own = space.made_own_bytes();
        // It has told that it has all in common with one other; then it writes to ten pages.
        let part = Part::of(50 * PAGE, 100 * PAGE, 2);
        space.note_own(10);
        space.count_part(&told(100 * PAGE, part, made_own), 2);
        assert_eq!(space.count(100 * PAGE), 60 * PAGE);
        // Of pages in nobody else's count it takes none more.
        assert_eq!(space.count_itself(50), 10);
        assert_eq!(space.count(100 * PAGE), 100 * PAGE);
    }
}
