//! Forks: a child shares the stored pages of its parent, and the pages that both have are
//! write-protected.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::{io, iter};

use rustix::process::{Resource, getrlimit};

use super::entrance::leaves_spare_files;
use super::touch::Touch;
use super::wake_ups::WakeUps;
use super::{FaultServer, PAGE};
use crate::address_space::{AddressSpace, Occasion};
use crate::fork::outsiders::{Outsider, same_program_above};
use crate::fork_group::{ForkGroup, Member};
use crate::messages::log;
use crate::page_table::Place;
use crate::program::procfs::children_of;
use crate::range_set::RangeSet;
use crate::run_dir::random_bytes;
use crate::{SpaceHandle, lock, too_many_files};
use uzswap::page::PAGE_SIZE;
use uzswap_sys::process;
use uzswap_sys::userfaultfd::Userfaultfd;

/// Processes that share pages with a forked one.
#[derive(Debug)]
pub(super) enum Relatives {
    /// The nearest managed ancestor, and unmanaged processes between the two.
    Managed(SpaceHandle, Vec<u32>),
    /// No ancestor is managed.
    Unmanaged(Arc<Outsider>),
}

/// A former member of a group, and the shared bytes in its charge.
#[derive(Debug)]
pub(super) struct EndedMember {
    group: Member,
    lent_bytes: u64,
}

impl EndedMember {
    /// Has a space leave its group, if it has one.
    pub(super) fn take(space: &mut AddressSpace) -> Option<EndedMember> {
        let (group, lent_bytes) = space.charge.take_member()?;
        Some(EndedMember { group, lent_bytes })
    }
}

/// A child that cannot be followed.
struct NotFollowed {
    why: String,
    member: Option<EndedMember>,
}

/// Descriptors that an unmanaged member of a group takes.
const OUTSIDER_FILES: u64 = 8;

/// The part of all descriptors for the helperless children of one process, and the least number of
/// them.
const QUOTA_PART: u64 = 8;
const SPARE_CHILDREN: usize = 16;

/// Processes that the supervisor asks whether they are the child.
const CANDIDATES_MAX: usize = 64;

impl FaultServer {
    /// Relatives of a process that was forked before its parent was registered; `None` if it
    /// shares no memory with a known process.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` where that is not so: it has called exec(2) since, or it was here before.
    /// `WouldBlock` where too many have joined the parent lately: all that this has is protected
    /// for each.
    pub(super) fn relatives_to_join(&mut self, pid: u32) -> io::Result<Option<Relatives>> {
        if process::runs_what_was_forked(pid) != Some(true) || self.orphans.has_memory_of(pid) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // Not beyond one that runs another program: a process whose parent has ended has another.
        let above = same_program_above(pid);
        let is_managed = |pid: &u32| self.managed_process(*pid).is_some();
        let managed_at = above.iter().position(is_managed);
        let between = above[..managed_at.unwrap_or(above.len())].to_vec();
        let managed = match managed_at {
            Some(at) => self.managed_process(above[at]),
            None => match self.outsider_above(pid, &above) {
                Some(outsider) => return Ok(Some(Relatives::Unmanaged(outsider))),
                None => self.managed_with_program_of(pid),
            },
        };
        let Some(space) = managed else { return Ok(None) };
        let may_join = lock(&space).fork_reports.admit_child();
        match may_join {
            true => Ok(Some(Relatives::Managed(space, between))),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn managed_process(&self, pid: u32) -> Option<SpaceHandle> {
        self.spaces
            .find(|space| space.process.pid() == Some(pid))
            .map(|(_, space)| Arc::clone(space))
    }

    /// A process whose parent has ended, or cannot be read, shares pages with other forks of the
    /// same program.
    fn managed_with_program_of(&self, pid: u32) -> Option<SpaceHandle> {
        let places = process::places_of_program(pid)?;
        let is_of_it = |pid| process::places_of_program(pid) == Some(places);
        // The kernel is asked without a lock.
        let mut spaces = self.spaces.iter().map(|(_, space)| space);
        spaces
            .find(|space| {
                let pid = lock(space).process.pid();
                pid.is_some_and(is_of_it)
            })
            .cloned()
    }

    /// The nearest unmanaged ancestor that shares pages with a process. All ancestors with the
    /// same program belong to one group.
    fn outsider_above(&self, pid: u32, above: &[u32]) -> Option<Arc<Outsider>> {
        let places = process::places_of_program(pid)?;
        let known = self.pager.outsiders.all();
        let is_above = |outsider: &&Arc<Outsider>| above.contains(&outsider.pid());
        let group = known.iter().find(is_above).map(|outsider| outsider.group().clone());
        let group = group.unwrap_or_default();
        self.add_outsiders(above, &group, places);
        let nearest = self.pager.outsiders.of(&group);
        nearest.into_iter().find(|it| Some(it.pid()) == above.first().copied() && it.is_at(places))
    }

    /// Adds the unmanaged processes that are not outsiders yet.
    fn add_outsiders(&self, all: &[u32], group: &ForkGroup, places: [u64; 3]) {
        for pid in all {
            let is_known = self.pager.outsiders.all().iter().any(|outsider| outsider.pid() == *pid);
            if !is_known && leaves_spare_files(OUTSIDER_FILES) {
                self.pager.add_outsider(*pid, group, places);
            }
        }
    }

    /// A space belongs to a process that these have forked. Whether it must be registered at once:
    /// copies of all shared pages would not fit.
    pub(super) fn join(&mut self, id: u32, relatives: &Relatives) -> bool {
        match relatives {
            Relatives::Managed(parent, between) => {
                let could_exceed = self.join_parent(id, parent);
                let (group, places) = {
                    let parent = lock(parent);
                    (
                        parent.charge.group().cloned(),
                        parent.process.pid().and_then(process::places_of_program),
                    )
                };
                if let (Some(group), Some(places)) = (group, places) {
                    self.add_outsiders(between, &group, places);
                }
                could_exceed
            }
            Relatives::Unmanaged(outsider) => self.join_outsider(id, outsider),
        }
    }

    /// A space belongs to a child of an unmanaged process, which writes to shared pages without a
    /// fault.
    fn join_outsider(&mut self, id: u32, outsider: &Outsider) -> bool {
        let resident = outsider.resident_bytes().unwrap_or(0);
        let mut child = lock(&self.spaces[id]);
        child.join_group(outsider.group(), resident);
        child.count_copies_from_fork(resident);
        child.protect_all(resident, outsider.stacks());
        let could_exceed =
            child.protection.is_on() && resident > self.pager.account.headroom_for_copies();
        drop(child);
        self.protects = true;
        could_exceed
    }

    /// A space belongs to a process that was forked before its parent was registered. Returns
    /// whether it must be registered at once: copies of all shared pages would not fit.
    ///
    /// Locks two address spaces, the parent's first: see [`Spaces`](super::spaces::Spaces).
    fn join_parent(&mut self, id: u32, parent: &SpaceHandle) -> bool {
        let mut parent = lock(parent);
        let child = Arc::clone(&self.spaces[id]);
        let stacks = parent.process.stacks();
        let resident = self.share(&mut parent, &mut lock(&child), None, stacks);
        let could_exceed =
            parent.protection.is_on() && resident > self.pager.account.headroom_for_copies();
        if could_exceed {
            let _ = parent.register_shared();
        }
        could_exceed
    }

    /// A parent and a child share all resident bytes of the parent. All but `unprotected` was
    /// protected before the fork.
    fn share(
        &mut self,
        parent: &mut AddressSpace,
        child: &mut AddressSpace,
        unprotected: Option<&RangeSet>,
        stacks: Option<RangeSet>,
    ) -> u64 {
        let group = parent.charge.group().cloned().unwrap_or_default();
        let resident = parent.resident_to_share();
        child.count_copies_from_fork(resident);
        for space in [parent, child] {
            space.join_group(&group, resident);
            match unprotected {
                Some(rest) => space.protect_rest(rest),
                None => _ = space.protect_all(resident, stacks.clone()),
            }
        }
        self.protects = true;
        resident
    }

    /// Charges the shared bytes of an ended member to another one. The last member has its pages
    /// alone. Locks each space: the caller has none locked.
    pub(super) fn bequeath(&self, ended: Option<EndedMember>) {
        if let Some(EndedMember { group, lent_bytes }) = ended {
            let spaces: Vec<_> = self.spaces.iter().map(|(_, space)| space).collect();
            self.pager.lost(&group, lent_bytes, &spaces);
        }
    }

    /// Answers the report of a fork, so that the program goes on.
    pub(super) fn prepare_announced_fork(
        &self,
        space: &mut AddressSpace,
        address: u64,
        wake_ups: &mut WakeUps,
    ) {
        let page = address / PAGE * PAGE..(address / PAGE + 1) * PAGE;
        let room = self.pager.account.headroom_for_copies();
        let is_unregistered = !space.registration.is_any();
        let may_be_unreported =
            is_unregistered && space.allow_fork(self.unknown_children(space), room);
        let is_let = space.let_fork(page.clone());
        wake_ups.add(space, page);
        if is_let && !may_be_unreported {
            space.prepare_fork();
            // The parent may end before its child is known. A failure is reported at the fork.
            let _ = self.store_staged(space);
        }
    }

    /// Number of children of a process that have no helper. The caller has locked the space of the
    /// process; the server knows the helpers without another lock.
    fn unknown_children(&self, space: &AddressSpace) -> u32 {
        let Some(pid) = space.process.pid() else { return 0 };
        let is_unknown = |child: &&u32| !self.helpers.has_ready_of(**child);
        children_of(pid).iter().filter(is_unknown).count() as u32
    }

    /// Stores the staged pages of a space for its child; in words why some could not be stored.
    fn store_staged(&self, space: &mut AddressSpace) -> Result<(), String> {
        let mut content = [0; PAGE_SIZE];
        for staged in space.batch_pages() {
            space.read_staged(staged, &mut content).map_err(|error| error.to_string())?;
            let slot = self.pager.store.store_any(&content)?;
            match space.stored(staged, slot) {
                true => self.pager.meter.stored(1),
                false => self.pager.store.release(slot),
            }
        }
        Ok(())
    }

    /// Adds the child of a fork. A child that cannot be followed gets no page that it lacks, and
    /// the parent runs on. The caller bequeaths the membership of this child, which is returned,
    /// once the parent is unlocked.
    pub(super) fn add_child(
        &mut self,
        parent: &mut AddressSpace,
        child: Userfaultfd,
        worker: usize,
    ) -> Option<EndedMember> {
        let child = Arc::new(child);
        let followed = self.child_of(parent, Arc::clone(&child)).and_then(|space| {
            let is_undecided = space.layout.is_undecided();
            let added = self.spaces.add(&self.pager, space, worker);
            let added = added.map_err(|error| NotFollowed { why: error.to_string(), member: None });
            added.map(|child| (child, is_undecided))
        });
        match followed {
            Ok((child, true)) if parent.process.has_threads() => {
                let parent = Arc::clone(&parent.uffd);
                self.pending_forks.add(child, parent);
                None
            }
            Ok(_) => None,
            Err(NotFollowed { why, member }) => {
                let pid = parent.process.root().unwrap_or(0);
                log(&format!(
                    "cannot follow a child of process {pid}: {why}; the child gets SIGBUS or \
                     EFAULT on evicted pages"
                ));
                self.orphans.add(child, pid, parent.process.peer().cloned());
                member
            }
        }
    }

    /// Makes the space of a child, with the stored pages of its parent.
    fn child_of(
        &mut self,
        parent: &mut AddressSpace,
        child: Arc<Userfaultfd>,
    ) -> Result<AddressSpace, NotFollowed> {
        let secret = random_bytes().map_err(|error| NotFollowed {
            why: format!("cannot read random bytes: {error}"),
            member: None,
        })?;
        let mut space = AddressSpace::of_child(child, parent, secret);
        let unprotected = parent.take_unprotected();
        let advice = parent.advice_at_fork();
        let stacks = advice.stacks();
        // Parent and child run by now.
        let unprotected = unprotected
            .zip(stacks.clone())
            .map(|(rest, stacks)| parent.without_spared(rest, stacks));
        let shared_stacks = stacks.filter(|_| parent.process.thread().is_some());
        // Of an undecided child nothing is protected before its markers are read.
        let left_out = space.inherit(parent, advice);
        self.share(parent, &mut space, unprotected.as_ref(), shared_stacks);
        space.charge.expect_helper();
        let stored = self.store_staged(parent);
        let share = |slot| self.pager.store.share(slot);
        let is_any_staged = space.inherit_stored(parent, &left_out, share);
        if let (Err(why), true) = (stored, is_any_staged) {
            let member = EndedMember::take(&mut space);
            self.pager.discard_space(space);
            let why = format!("cannot store the staged pages of its parent: {why}");
            return Err(NotFollowed { why, member });
        }
        Ok(space)
    }

    /// Helperless children of each process, the oldest first.
    fn without_helper(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut found: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (id, space) in self.spaces.iter() {
            let space = lock(space);
            if space.process.pid().is_none() {
                found.entry(space.process.root().unwrap_or(0)).or_default().push(id);
            }
        }
        found
    }

    /// Keeps a process to its quota of helperless children: the oldest child is let go.
    pub(super) fn keep_to_quota(&mut self, id: u32) {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let quota = usize::try_from(limit / QUOTA_PART).unwrap_or(usize::MAX).max(SPARE_CHILDREN);
        let Some(root) = self.spaces.get(id).map(|space| lock(space).process.root().unwrap_or(0))
        else {
            return;
        };
        if let Some(all) = self.without_helper().remove(&root).filter(|all| all.len() > quota) {
            self.drop_one_child(root, &all);
        }
    }

    /// Frees a descriptor for a fork. The process with the most helperless children gives one up;
    /// if there is no such child, the forking process is ended.
    pub(super) fn make_way_for_fork(&mut self, shared: &SpaceHandle, error: &io::Error) {
        let all = self.without_helper();
        let most = all.into_iter().max_by_key(|(_, all)| all.len());
        if !most.is_some_and(|(root, all)| self.drop_one_child(root, &all)) {
            let why = too_many_files(error);
            self.pager.end(&lock(shared), &format!("cannot follow a fork: {why}"));
        }
    }

    /// Lets one of these children go: it gets SIGBUS or EFAULT for evicted pages. Whether there
    /// was one that does not fork itself just now.
    fn drop_one_child(&mut self, root: u32, children: &[u32]) -> bool {
        let is_still = |id: &&u32| {
            let mut space = lock(&self.spaces[**id]);
            space.settle();
            !space.uffd.is_changing()
        };
        let Some(&id) = children.iter().find(is_still) else { return false };
        let space = lock(&self.spaces[id]);
        space.table.for_each(&mut |page, entry| {
            if !matches!(entry.place, Place::Program) {
                let _ = space.uffd.poison(page * PAGE..(page + 1) * PAGE, true); // it is not mapped
            }
        });
        drop(space);
        self.pending_forks.forget(id);
        self.remove_space(id);
        if !std::mem::replace(&mut self.has_reported_children, true) {
            log(&format!(
                "a child of process {root} without a helper is not followed any more, because \
                 descriptors run out (ulimit -n); it gets SIGBUS or EFAULT on evicted pages; later \
                 cases are not reported"
            ));
        }
        true
    }
}

/// Decides which memory a fork gave a child, by the child's markers: the child waits for the answer
/// to its first message.
pub(super) fn decide_child(space: &mut AddressSpace, faults: &[Touch]) {
    if !space.layout.is_undecided() {
        return;
    }
    // The fault has the number of its thread in the PID namespace of that. The parent may not be
    // known itself, and may have ended. A wrong process does not show the secret.
    let of_fault = faults.first().map(|fault| fault.thread);
    let root = space.process.root().unwrap_or(0);
    let candidates = of_fault.into_iter().chain(descendants_of(root)).take(CANDIDATES_MAX);
    let occasion = match faults {
        [] => Occasion::Change,
        _ if faults.iter().any(|fault| space.asks_identity(fault.address)) => Occasion::Greeting,
        _ => Occasion::Fault,
    };
    space.decide_inheritance(candidates, occasion);
}

/// Descendants of a process: children before grandchildren, of each process the newest child first.
fn descendants_of(root: u32) -> impl Iterator<Item = u32> {
    let mut next = VecDeque::from([root]);
    let and_children = iter::from_fn(move || {
        let pid = next.pop_front()?;
        next.extend(children_of(pid).into_iter().rev());
        Some(pid)
    });
    and_children.skip(1)
}
