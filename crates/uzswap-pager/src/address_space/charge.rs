//! The charge of a process: its resident bytes, less the shared bytes that others count.

use std::time::{Duration, Instant};

use super::resident::Resident;
use super::{AddressSpace, PAGE};
use crate::fork_group::{ForkGroup, Member, Part};
use crate::program::procfs::Size;
use crate::{SpaceHandle, lock};

/// Smaller processes stay unprotected while copies of their pages are few.
pub(super) const PROTECTED_BYTES_MIN: u64 = 4 << 20;

/// How the memory that a process shares is counted.
#[derive(Debug)]
struct Shared {
    /// Resident bytes that another process counts.
    bytes: u64,
    /// `bytes` may be too many: the child was forked before anything was registered.
    is_unsure: bool,
    /// Bytes of its charge that others may share: nobody counts them once it has ended.
    lent_bytes: u64,
    /// Bytes that moved from others' charge to its own so far, by COW copies.
    copied_bytes: u64,
    /// Bytes of its charge that ended processes counted before, until the next survey.
    inherited_bytes: u64,
    /// Bytes of its charge that a small child is assumed to have copied, until the next survey.
    assumed_bytes: u64,
}

impl Default for Shared {
    /// The process counts all of its resident bytes.
    fn default() -> Shared {
        Shared {
            bytes: 0,
            is_unsure: false,
            lent_bytes: u64::MAX,
            copied_bytes: 0,
            inherited_bytes: 0,
            assumed_bytes: 0,
        }
    }
}

/// The charge of a process, and the group that shares its pages.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    /// The processes with which it may share pages.
    group: Option<Member>,
    /// When it joined the group.
    joined: Option<Joined>,
    /// A child whose helper is expected.
    awaits_helper: bool,
    shared: Shared,
    resident: Resident,
    /// Bytes that it counted for at the last sample.
    counted: u64,
}

/// The answer of a process to a survey.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SurveyAnswer {
    /// Just before the query.
    pub(crate) at: Instant,
    /// Bytes that were resident.
    pub(crate) resident: u64,
    pub(crate) part: Part,
    /// `Shared::copied_bytes` at that time.
    pub(crate) copied_bytes: u64,
}

/// The last fork that brought a space into its group.
#[derive(Debug, Clone, Copy)]
struct Joined {
    at: Instant,
    /// Resident bytes of the parent.
    resident_bytes: u64,
}

/// Bytes that a small child usually copies as soon as it runs. (When each child counted in full,
/// the evictor took shared pages without need: 60 children in twice their memory ran ten times as
/// long.)
const OWN_BYTES: u64 = 256 << 10;

/// How long a child may be without a helper: two scans for unmanaged processes.
const ASSUMED_FOR: Duration = Duration::from_secs(1);

impl Charge {
    /// Bytes that it counted for at the last sample.
    pub(crate) fn counted(&self) -> u64 {
        self.counted
    }

    /// The group of processes that share its pages.
    pub(crate) fn group(&self) -> Option<&ForkGroup> {
        self.group.as_deref()
    }

    /// Number of processes that may share its pages, itself among them.
    pub(crate) fn members(&self) -> u32 {
        self.group().map_or(1, ForkGroup::members)
    }

    /// Joins a group because of a fork of a process with so many resident bytes. A child may share
    /// all of its memory from now on.
    pub(super) fn join(&mut self, group: &ForkGroup, resident_bytes: u64) {
        self.joined = Some(Joined { at: Instant::now(), resident_bytes });
        if self.group.is_none() {
            self.group = Some(group.join());
            self.shared = Shared::default();
        }
        self.shared.lent_bytes = u64::MAX;
    }

    pub(super) fn has_joined(&self) -> bool {
        self.joined.is_some()
    }

    /// Nobody shares its pages any more.
    pub(super) fn leave_group(&mut self) {
        self.group = None;
        self.shared = Shared::default();
    }

    /// Takes its membership at its end, and the shared bytes in its charge.
    pub(crate) fn take_member(&mut self) -> Option<(Member, u64)> {
        Some((self.group.take()?, self.lent_bytes()))
    }

    /// Notes that it is a child whose process is unknown yet.
    pub(crate) fn expect_helper(&mut self) {
        self.awaits_helper = true;
        self.share_all(None, true);
    }

    /// Ends the wait for a helper that is late, or whose process is dead.
    fn await_helper_no_more(&mut self, is_dead: bool) {
        if is_dead {
            self.group = None;
        }
        let is_late = self.joined.is_some_and(|joined| joined.at.elapsed() >= ASSUMED_FOR);
        self.awaits_helper &= !is_dead && !is_late;
    }

    /// The helper is there, of a process of this size.
    pub(super) fn meet(&mut self, size: Option<Size>, for_sure: bool) {
        let shared = std::mem::take(&mut self.awaits_helper).then_some(self.shared.bytes);
        self.share_all(size, for_sure);
        // Some of it may be in its own count by now, as it has written to it.
        self.shared.bytes = self.shared.bytes.min(shared.unwrap_or(u64::MAX));
    }

    /// Resident bytes of the parent of a child that awaits its helper; 0 for others.
    fn resident_at_fork(&self) -> u64 {
        self.joined.filter(|_| self.awaits_helper).map_or(0, |by| by.resident_bytes)
    }

    /// Resident bytes that another process counts.
    pub(super) fn shared_bytes(&self) -> u64 {
        self.shared.bytes
    }

    /// Whether it may make many COW copies. A small process is assumed to make a certain number.
    pub(super) fn may_copy(&self) -> bool {
        let is_small = |joined: Joined| joined.resident_bytes < PROTECTED_BYTES_MIN;
        self.shared.bytes > 0 && !self.joined.is_none_or(is_small)
    }

    /// Notes pages that a fault brought, or, if negative, evicted pages.
    pub(super) fn note_faulted(&mut self, pages: i64) {
        self.resident.note_faulted(pages);
    }

    /// The charge of the process, with so many resident bytes.
    pub(crate) fn count(&mut self, resident: u64) -> u64 {
        self.counted = resident.saturating_sub(self.shared.bytes);
        self.counted
    }

    /// Growth since the last sample that no fault brought, in bytes. It is too low while an
    /// eviction is not noted yet. Shared pages that the process gave back left its count, and not
    /// the group's usage.
    pub(crate) fn take_unobserved_growth(&mut self, size: Size) -> i64 {
        let unexplained = self.resident.sample(size.anonymous);
        if let Some(group) = self.group.as_deref().filter(|group| group.members() > 1) {
            let given_back = unexplained.given_back * PAGE;
            let lent = self.shared.lent_bytes.min(self.counted + given_back);
            let shared = (self.shared.bytes + lent) as f64;
            let before = (size.anonymous * PAGE + given_back).max(1) as f64;
            let still_there = given_back as f64 * (shared / before).min(1.0);
            group.part(still_there as usize / PAGE as usize);
        }
        unexplained.grown * PAGE as i64
    }

    /// Its parent counts the memory that it inherited. Not `for_sure`: COW copies may have been
    /// made without a fault, so a survey must come at once. A small child is assumed to have made
    /// some.
    fn share_all(&mut self, size: Option<Size>, for_sure: bool) {
        let (Some(joined), Some(_)) = (self.joined, &self.group) else { return };
        let bytes = size.map_or(u64::MAX, |size| size.anonymous * PAGE).min(joined.resident_bytes);
        let is_small = joined.resident_bytes < PROTECTED_BYTES_MIN;
        let own_bytes = if is_small && !for_sure { OWN_BYTES } else { 0 };
        let inherited_bytes = self.shared.inherited_bytes;
        self.shared = Shared {
            bytes: bytes.saturating_sub(own_bytes + inherited_bytes),
            is_unsure: !for_sure && !is_small,
            lent_bytes: inherited_bytes, // it got all else after the fork
            assumed_bytes: own_bytes,
            ..self.shared
        };
    }

    /// Bytes that moved from others' charge to its own so far.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.shared.copied_bytes
    }

    pub(crate) fn is_part_unsure(&self) -> bool {
        self.shared.is_unsure
    }

    /// Takes over its answer to a survey that all members have answered; `of` so many count a share
    /// of each shared page.
    pub(crate) fn count_part(&mut self, answer: &SurveyAnswer, of: u32) {
        let SurveyAnswer { at, resident, part, copied_bytes } = *answer;
        let (counted, part_bytes) = part.counted_of(of);
        let since = self.shared.copied_bytes.saturating_sub(copied_bytes);
        let has_forked_since = self.joined.is_some_and(|joined| joined.at >= at);
        self.shared = Shared {
            bytes: resident.saturating_sub(counted + since),
            is_unsure: false,
            lent_bytes: if has_forked_since { u64::MAX } else { part_bytes },
            inherited_bytes: 0,
            assumed_bytes: 0,
            ..self.shared
        };
        self.count(resident); // it may end before the next sample
    }

    /// Counts no shared page of a process that has ended: the members that answered count them.
    pub(crate) fn count_no_part(&mut self) {
        let lent = self.lent_bytes();
        self.shared.lent_bytes = 0;
        self.shared.bytes += lent;
        self.counted -= lent;
    }

    /// Notes COW copies. Each takes one more page, which this process counts; or the other one, if
    /// this process counted the shared page.
    pub(crate) fn note_copies(&mut self, pages: usize) {
        let others = self.count_itself(pages);
        if let Some(group) = &self.group {
            group.part(others);
        }
    }

    /// Counts pages itself that others counted; how many pages nobody else counted.
    pub(crate) fn count_itself(&mut self, pages: usize) -> usize {
        let in_others = (self.shared.bytes / PAGE).min(pages as u64) as usize;
        self.shared.bytes -= in_others as u64 * PAGE;
        self.shared.copied_bytes += in_others as u64 * PAGE;
        pages - in_others
    }

    /// Bytes of its charge that a survey may find with another process, or nowhere.
    pub(crate) fn doubtful_bytes(&self) -> u64 {
        (self.shared.assumed_bytes + self.shared.inherited_bytes).min(self.counted)
    }

    /// Bytes of its charge that others may share.
    pub(crate) fn lent_bytes(&self) -> u64 {
        self.shared.lent_bytes.min(self.counted)
    }

    /// Counts bytes of a member that has ended, until the next survey: nobody may count its shared
    /// pages now.
    pub(crate) fn inherit(&mut self, inherited: u64) {
        let inherited = inherited.min(self.shared.bytes);
        self.shared.bytes -= inherited;
        self.shared.inherited_bytes += inherited;
        self.shared.lent_bytes = self.shared.lent_bytes.saturating_add(inherited);
        self.counted += inherited; // it may end before the next sample
    }

    /// A survey has found so many shared bytes at most: its answers count what this process
    /// inherited of them.
    pub(crate) fn give_back_inherited(&mut self, common_bytes: u64) {
        let given = self.shared.inherited_bytes.min(common_bytes);
        self.shared.inherited_bytes -= given;
        self.shared.bytes += given;
        if self.shared.lent_bytes != u64::MAX {
            self.shared.lent_bytes = self.shared.lent_bytes.saturating_sub(given);
        }
        self.counted = self.counted.saturating_sub(given);
    }
}

impl AddressSpace {
    /// Resident anonymous bytes, shared pages included.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.bytes_of(self.process.size())
    }

    /// The same at the last sample.
    pub(crate) fn seen_bytes(&self) -> u64 {
        self.charge.resident.pages().map_or_else(|| self.resident_bytes(), |pages| pages * PAGE)
    }

    /// The same for a process of this size.
    pub(crate) fn bytes_of(&self, size: Option<Size>) -> u64 {
        match (size, self.process.files()) {
            (Some(size), _) if size.mapped > 0 => size.anonymous * PAGE,
            // A child without its helper yet has as much as its parent had.
            (_, None) => self.charge.resident_at_fork(),
            // The process has ended. Others count its shared pages after the next survey.
            (_, Some(_)) if self.charge.group.is_some() => {
                self.charge.counted + self.charge.shared.bytes
            }
            (_, Some(_)) => 0,
        }
    }

    /// The rank of an heir: whether its process is known, and the bytes of it that others count.
    pub(crate) fn may_inherit(&self) -> (bool, u64) {
        (self.process.files().is_some(), self.charge.shared.bytes)
    }

    /// Its group, if a survey can query it.
    pub(crate) fn group_to_ask(&self) -> Option<&ForkGroup> {
        self.process.files().and(self.charge.group())
    }

    /// Ends the wait for the helper of a child that has ended, or that is late: it may run another
    /// program, or be unmanaged. Ends a protection for a fork that has failed.
    pub(crate) fn check_forks(&mut self) {
        self.settle(); // no event may follow the last one for long
        let is_dead = self.charge.awaits_helper && self.is_dead();
        self.charge.await_helper_no_more(is_dead);
        if self.protection.is_on() && self.charge.members() == 1 && !self.is_about_to_fork() {
            self.end_sharing();
        }
    }

    /// Its resident bytes, which a child has, too.
    pub(crate) fn resident_to_share(&self) -> u64 {
        self.charge.resident_at_fork().max(self.resident_bytes())
    }
}

// The sampler queries the kernel without the lock of the space: faults wait for that lock.

/// As [`AddressSpace::resident_bytes`].
pub(crate) fn resident_bytes(space: &SpaceHandle) -> u64 {
    let size = process_size(space);
    lock(space).bytes_of(size)
}

/// The size of its process; `None` before the process is known, and after its end.
pub(crate) fn process_size(space: &SpaceHandle) -> Option<Size> {
    let files = lock(space).process.files().cloned();
    files.and_then(|files| files.size())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(group: &ForkGroup, resident: u64) -> Charge {
        let mut charge = Charge::default();
        charge.join(group, resident);
        charge
    }

    fn answer(resident: u64, part: Part, copied_bytes: u64) -> SurveyAnswer {
        SurveyAnswer { at: Instant::now(), resident, part, copied_bytes }
    }

    #[test]
    fn what_nobody_counts_any_more_is_what_was_lent() {
        let mut charge = member(&ForkGroup::default(), 100);
        charge.count(100);
        assert_eq!(charge.lent_bytes(), 100);
        // The process has 40 exclusive bytes, and a third of 60.
        charge.count_part(&answer(100, Part::of(60, 100, 3), 0), 3);
        assert_eq!((charge.count(100), charge.lent_bytes()), (60, 20));
        charge.inherit(30);
        assert_eq!((charge.count(100), charge.lent_bytes()), (90, 50));
        charge.inherit(30);
        assert_eq!((charge.count(100), charge.lent_bytes()), (100, 60));
    }

    #[test]
    fn shared_pages_that_a_process_gives_back_stay_in_the_usage_of_its_group() {
        let group = ForkGroup::default();
        let [mut parent, mut child] = [(); 2].map(|()| member(&group, 100 * PAGE));
        child.share_all(None, true);
        let size = |anonymous| Size { mapped: 200, anonymous, others: 0 };
        let give_back = |charge: &mut Charge, [before, after]: [u64; 2]| {
            let copied = group.copied();
            for anonymous in [before, after, after] {
                charge.count(anonymous * PAGE);
                charge.take_unobserved_growth(size(anonymous));
            }
            group.copied() - copied
        };
        assert_eq!(give_back(&mut parent, [100, 80]), 20, "it counts all, and shares all");
        assert_eq!(give_back(&mut child, [100, 80]), 20, "it counts nothing, and shares all");
        // 20 exclusive pages, and half of the 60 others.
        parent.count_part(&answer(80 * PAGE, Part::of(50 * PAGE, 80 * PAGE, 2), 0), 2);
        assert_eq!(give_back(&mut parent, [80, 40]), 30, "in proportion");
        drop(child);
        assert_eq!(give_back(&mut parent, [40, 30]), 0, "nobody else has them");
    }

    #[test]
    fn what_was_inherited_is_counted_once_when_all_have_answered() {
        let group = ForkGroup::default();
        let [mut asked, mut newcomer, mut gone] = [(); 3].map(|()| member(&group, 100));
        for charge in [&mut asked, &mut newcomer, &mut gone] {
            charge.share_all(None, true);
            charge.count(100);
        }
        // A fourth has ended, in whose count all was.
        newcomer.inherit(60);
        gone.inherit(40);
        let counts = |charges: [&mut Charge; 3]| charges.map(|charge| charge.count(100));
        assert_eq!(counts([&mut asked, &mut newcomer, &mut gone]), [0, 60, 40]);
        // One of the three was asked, one has come since, and of one there is nothing left.
        asked.count_part(&answer(100, Part::of(50, 100, 2), 0), 1);
        newcomer.give_back_inherited(100);
        gone.give_back_inherited(100);
        gone.count_no_part();
        assert_eq!(counts([&mut asked, &mut newcomer, &mut gone]), [100, 0, 0]);
        assert_eq!([asked, newcomer, gone].map(|charge| charge.lent_bytes()), [100, 0, 0]);
    }

    #[test]
    fn what_a_child_has_of_one_that_has_answered_and_ended_is_counted() {
        let group = ForkGroup::default();
        let [mut parent, mut child] = [(); 2].map(|()| member(&group, 100));
        parent.count(100);
        // The parent has 70 exclusive bytes, and half of 30; then it forks.
        let answer = answer(100, Part::of(85, 100, 2), 0);
        parent.join(&group, 100);
        child.share_all(None, true);
        parent.count_part(&answer, 2);
        assert_eq!(parent.lent_bytes(), 85);
        // It ends before another survey: what the child alone has now is not given back.
        child.count(100);
        child.inherit(parent.lent_bytes());
        child.give_back_inherited(30);
        assert_eq!(child.count(100), 55);
    }

    #[test]
    fn what_is_made_its_own_while_others_are_asked_is_in_its_count() {
        let mut charge = member(&ForkGroup::default(), 100 * PAGE);
        charge.share_all(None, true);
        let copied = charge.copied_bytes();
        // It reports that it shares all pages with one other, and then writes to ten of them.
        let part = Part::of(50 * PAGE, 100 * PAGE, 2);
        charge.note_copies(10);
        charge.count_part(&answer(100 * PAGE, part, copied), 2);
        assert_eq!(charge.count(100 * PAGE), 60 * PAGE);
        // Of pages in nobody else's count it takes none more.
        assert_eq!(charge.count_itself(50), 10);
        assert_eq!(charge.count(100 * PAGE), 100 * PAGE);
    }
}
