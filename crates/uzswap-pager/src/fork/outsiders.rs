//! Processes without a helper that share pages with managed ones: a zygote, and processes between a
//! managed program and its managed descendants.
//!
//! A forked child has all pages of its parent. If the parent has no helper, nothing else says so:
//! each child would count for all of them. So the parent joins the fork group of its children, and
//! is queried for its part when they are. Its pages cannot be evicted, and a page that it has frees
//! nothing when the others give it up.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fork_group::{ForkGroup, Member, Part};
use crate::locks::{Lock, OUTSIDERS};
use crate::program::peer::Peer;
use crate::program::procfs::ProcessFiles;
use crate::range_set::RangeSet;
use crate::{PAGE_SIZE, Pager, SpaceHandle, lock};
use uzswap_sys::process;

/// Outsiders at most: each takes some descriptors. Further ones count as other unmanaged programs.
pub(crate) const OUTSIDERS_MAX: usize = 64;

/// Generations between a child and the first process that may share memory with it.
const GENERATIONS_MAX: usize = 16;

const PAGE: u64 = PAGE_SIZE as u64;

/// A process without a helper that shares pages with managed ones.
#[derive(Debug)]
pub(crate) struct Outsider {
    peer: Peer,
    files: ProcessFiles,
    /// Where its program is: another place after an exec.
    places: [u64; 3],
    member: Member,
    /// Bytes of its memory in the count of others.
    shared: AtomicU64,
    /// Bytes in its own count that others may have, too.
    lent: AtomicU64,
    counted: AtomicU64,
}

impl Outsider {
    /// A process of the run, whose program is at these places, in a group; `None` where it has
    /// ended or cannot be read.
    fn open(pid: u32, group: &ForkGroup, places: [u64; 3]) -> Option<Outsider> {
        let peer = Peer::open(pid)?;
        let files = ProcessFiles::of_thread(pid).ok()?;
        let is_at_them = process::places_of_program(pid) == Some(places);
        let size = files.size();
        let size = size.filter(|size| size.mapped > 0 && is_at_them && peer.is_alive())?;
        // What it has is in the count of those before it, if there are any, until all are queried.
        let (shared, lent) = match group.members() {
            0 => (0, u64::MAX),
            _ => (size.anonymous * PAGE, 0),
        };
        let (shared, lent) = (AtomicU64::new(shared), AtomicU64::new(lent));
        let counted = AtomicU64::new(0);
        Some(Outsider { peer, files, places, member: group.join(), shared, lent, counted })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.peer.pid()
    }

    pub(crate) fn group(&self) -> &ForkGroup {
        &self.member
    }

    /// Bytes of anonymous memory that it has; `None` once it has ended.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        let size = self.files.size().filter(|size| size.mapped > 0)?;
        Some(size.anonymous * PAGE)
    }

    /// Bytes that count as its own where so many are resident.
    pub(crate) fn count(&self, resident: u64) -> u64 {
        let counted = resident.saturating_sub(self.shared.load(Ordering::Relaxed));
        self.counted.store(counted, Ordering::Relaxed);
        counted
    }

    /// Bytes that counted as its own when it was sampled last.
    pub(crate) fn counted_bytes(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    /// Bytes of anonymous memory, its part of pages that others have too. The kernel walks all
    /// pages. `None` once the program has ended.
    pub(crate) fn part_of_anonymous(&self) -> Option<u64> {
        self.files.part_of_anonymous()
    }

    /// Counts its part, as all of its group were queried: what they share is in the count `of` so
    /// many.
    pub(crate) fn count_part(&self, resident: u64, part: Part, of: u32) {
        let (counted, lent) = part.counted_of(of);
        self.shared.store(resident.saturating_sub(counted), Ordering::Relaxed);
        self.lent.store(lent, Ordering::Relaxed);
        self.count(resident);
    }

    /// Memory of stacks of its threads, which children do not protect.
    pub(crate) fn stacks(&self) -> Option<RangeSet> {
        self.files.mappings_with(["nh"]).ok().map(|[stacks]| stacks)
    }

    /// The pages of a run that it does not share, as far as is known: only these are worth
    /// evicting.
    fn lacks(&self, pages: Range<u64>) -> Vec<bool> {
        self.files.shares(pages.start * PAGE, (pages.end - pages.start) as usize).map_or_else(
            |_| vec![true; (pages.end - pages.start) as usize],
            |shared| shared.into_iter().map(|is_shared| !is_shared).collect(),
        )
    }

    /// Whether its program is at these places.
    pub(crate) fn is_at(&self, places: [u64; 3]) -> bool {
        places == self.places
    }

    /// Whether it runs the program still of which its children have pages.
    fn is_there(&self) -> bool {
        self.peer.is_alive() && process::places_of_program(self.pid()) == Some(self.places)
    }
}

/// The runs of pages without those that some outsider of a group has as well: to evict these frees
/// nothing.
pub(crate) fn without_pages_of(
    outsiders: &[Arc<Outsider>],
    runs: Vec<(u64, usize)>,
) -> Vec<(u64, usize)> {
    let mut left = Vec::new();
    for (first, count) in runs {
        let pages = first..first + count as u64;
        let mut worth = vec![true; count];
        for outsider in outsiders {
            let lacks = outsider.lacks(pages.clone());
            worth.iter_mut().zip(lacks).for_each(|(worth, lacks)| *worth &= lacks);
        }
        left.extend(runs_of(first, &worth));
    }
    left
}

/// Runs of pages from the first on that are marked.
fn runs_of(first: u64, marked: &[bool]) -> Vec<(u64, usize)> {
    let mut runs: Vec<(u64, usize)> = Vec::new();
    for (page, _) in (first..).zip(marked).filter(|(_, marked)| **marked) {
        match runs.last_mut() {
            Some((start, count)) if *start + *count as u64 == page => *count += 1,
            _ => runs.push((page, 1)),
        }
    }
    runs
}

/// The processes above one that run the same program since the same exec, the nearest first, up to
/// the first that does not.
pub(crate) fn same_program_above(pid: u32) -> Vec<u32> {
    same_program(pid, process::parent_of, process::places_of_program)
}

fn same_program(
    pid: u32,
    parent_of: impl Fn(u32) -> Option<u32>,
    places_of: impl Fn(u32) -> Option<[u64; 3]>,
) -> Vec<u32> {
    let Some(places) = places_of(pid) else { return Vec::new() };
    let above = std::iter::successors(parent_of(pid), |at| parent_of(*at));
    let above = above.take(GENERATIONS_MAX);
    above.take_while(|at| *at > 0 && places_of(*at) == Some(places)).collect()
}

/// Unmanaged processes that share pages with managed ones, as far as is known.
#[derive(Debug, Default)]
pub(crate) struct Outsiders(Lock<Vec<Arc<Outsider>>, OUTSIDERS>);

impl Outsiders {
    pub(crate) fn all(&self) -> Vec<Arc<Outsider>> {
        self.0.lock().clone()
    }

    /// The members of a group.
    pub(crate) fn of(&self, group: &ForkGroup) -> Vec<Arc<Outsider>> {
        self.0.lock().iter().filter(|outsider| outsider.group() == group).cloned().collect()
    }
}

impl Pager {
    /// A process without a helper, whose program is at these places, shares pages with a group, as
    /// an outsider from now on, unless there are too many or it has ended.
    pub(crate) fn add_outsider(&self, pid: u32, group: &ForkGroup, places: [u64; 3]) {
        let Some(opened) = Outsider::open(pid, group, places) else { return };
        let mut outsiders = self.outsiders.0.lock();
        if outsiders.len() >= OUTSIDERS_MAX || outsiders.iter().any(|it| it.pid() == pid) {
            return;
        }
        outsiders.push(Arc::new(opened));
        self.account.unmanaged().forget(&[pid]); // it counts by itself from now on
    }

    /// A process without a helper was found. If a managed process forked it while nothing of that
    /// was registered, it is an outsider from now on. So is a process whose parent has ended, and
    /// the helper of a child that was killed: it has the child's memory. Returns whether a space
    /// counts its memory. A later child of a managed process has a space from its fork on. The
    /// child's first write to a shared page faults before the kernel copies the page.
    pub(crate) fn see_without_helper(&self, pid: u32) -> bool {
        let Some(places) = process::places_of_program(pid) else { return false };
        let above = same_program_above(pid);
        let pid_of = |space: &SpaceHandle| lock(space).process.pid();
        let spaces = self.spaces();
        let find = |is_it: &dyn Fn(u32) -> bool| {
            spaces.iter().find(|space| pid_of(space).is_some_and(is_it))
        };
        let relative = match above.is_empty() {
            true => find(&|pid| process::places_of_program(pid) == Some(places)),
            false => find(&|pid| above.contains(&pid)),
        };
        let Some(relative) = relative else { return false };
        let mut relative = lock(relative);
        if !above.is_empty() && relative.registration.is_any() && relative.protection.is_on() {
            return true;
        }
        let group = relative.charge.group().cloned().unwrap_or_default();
        let resident = relative.resident_bytes();
        relative.join_group(&group, resident);
        drop(relative);
        self.add_outsider(pid, &group, places);
        if group.members() == 1 {
            self.lost(&group, 0, &spaces.iter().collect::<Vec<_>>()); // it could not be added
        }
        false
    }

    /// Bytes of processes without a helper, as they were found; outsiders count by themselves.
    pub(crate) fn see_unmanaged(&self, mut each: BTreeMap<u32, u64>) {
        let outsiders = self.outsiders.0.lock();
        outsiders.iter().for_each(|outsider| _ = each.remove(&outsider.pid()));
        let is_growing = self.account.unmanaged().replace(each);
        drop(outsiders);
        if is_growing && self.headroom_bytes() == 0 {
            self.wakers.evictor.wake();
        }
    }

    /// Outsiders that have ended, or run another program by now, are none any more: what they
    /// counted for others is in another's count.
    pub(crate) fn drop_outsiders(&self, is_gone: impl Fn(&Outsider) -> bool) {
        let mut outsiders = self.outsiders.0.lock();
        let gone: Vec<_> = outsiders.extract_if(.., |outsider| is_gone(outsider)).collect();
        drop(outsiders);
        for outsider in gone {
            let group = outsider.group().clone();
            let lent = outsider.lent.load(Ordering::Relaxed).min(outsider.counted_bytes());
            drop(outsider);
            let spaces = self.spaces();
            self.lost(&group, lent, &spaces.iter().collect::<Vec<_>>());
        }
    }

    /// The same, after a query of each program.
    pub(crate) fn drop_changed_outsiders(&self) {
        self.drop_outsiders(|outsider| !outsider.is_there());
    }

    /// One of those that share pages is gone, in whose count so much of them was at most: the last
    /// one has them alone.
    pub(crate) fn lost(&self, group: &ForkGroup, lent_bytes: u64, spaces: &[&SpaceHandle]) {
        let is_of_it = |space: &&&SpaceHandle| lock(space).charge.group() == Some(group);
        let rest: Vec<&SpaceHandle> = spaces.iter().filter(is_of_it).copied().collect();
        match rest[..] {
            [last] if self.outsiders.of(group).is_empty() => lock(last).end_sharing(),
            _ => bequeath(&rest, lent_bytes),
        }
    }
}

/// Of those that are left of a group, who has the most of it counts what one has counted that has
/// gone.
pub(crate) fn bequeath(rest: &[&SpaceHandle], lent_bytes: u64) {
    if let Some(heir) = rest.iter().max_by_key(|space| lock(space).may_inherit()) {
        lock(heir).charge.inherit(lent_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_one_program_ends_at_another_program() {
        // 9 is a child of 8, and so on; 6 runs another program, and 7 and 8 what 9 runs.
        let parent_of = |pid: u32| pid.checked_sub(1);
        let places_of = |pid: u32| Some([if pid > 6 { 1 } else { 2 }, 0, 0]);
        assert_eq!(same_program(9, parent_of, places_of), [8, 7]);
        assert!(same_program(7, parent_of, places_of).is_empty());
        assert_eq!(same_program(99, parent_of, places_of).len(), GENERATIONS_MAX);
        assert!(same_program(9, parent_of, |_| None).is_empty(), "it has ended");
    }

    #[test]
    fn runs_are_those_of_marked_pages() {
        assert_eq!(runs_of(7, &[true, true, false, true]), [(7, 2), (10, 1)]);
        assert!(runs_of(7, &[false; 3]).is_empty());
        assert_eq!(without_pages_of(&[], vec![(3, 4)]), [(3, 4)]);
    }
}
