//! The address spaces of the fault server, and the worker that reads the messages of each.
//!
//! One worker could answer all faults, because one lock guards the server's state. But a worker is
//! fast on the processor of the faulting thread ([`crate::sched::affinity`]), and if several
//! processes fault in turn it is on one of their processors. So there are as many workers as
//! processors. A worker that sees two address spaces take turns hands one over to a worker without
//! one.
//!
//! If several threads of an address space fault in turn, all workers read its userfaultfd, on any
//! processor. A single worker left two processors idle for 45 % of the time, because each fault
//! woke one.

use std::collections::BTreeMap;
use std::io;
use std::ops::Index;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::token::Token;
use super::worker_state::WorkerState;
use crate::address_space::AddressSpace;
use crate::sched::priority::AllTurns;
use crate::sched::source_mix::Sources;
use crate::{Pager, SpaceHandle, lock};
use uzswap_sys::userfaultfd::Userfaultfd;

/// A worker without a fault for so long takes an address space over.
const FREE_AFTER: Duration = Duration::from_millis(5);

/// Address spaces by number. A number is never used again.
///
/// # Two spaces at once
///
/// A worker with the server's lock may lock two spaces, first the parent's and then the child's.
/// All other threads lock one space at a time, and none waits for the server's lock meanwhile. So
/// no circle of waits can form. A thread that locks one space twice waits for ever: callers of
/// [`Spaces::find`] and [`Spaces::ids_of`] have none locked.
#[derive(Debug)]
pub(super) struct Spaces {
    by_id: BTreeMap<u32, SpaceHandle>,
    last_id: u32,
    /// The epoll set of each worker.
    epolls: Arc<[OwnedFd]>,
    /// When each started worker had its last fault.
    last_faults: Vec<Instant>,
    turns: Arc<AllTurns>,
}

impl Index<u32> for Spaces {
    type Output = SpaceHandle;

    fn index(&self, id: u32) -> &SpaceHandle {
        &self.by_id[&id]
    }
}

impl Spaces {
    /// None yet. The calling thread is the first worker.
    pub(super) fn new(epolls: Arc<[OwnedFd]>, turns: Arc<AllTurns>) -> Spaces {
        let last_faults = vec![Instant::now()];
        Spaces { by_id: BTreeMap::new(), last_id: 0, epolls, last_faults, turns }
    }

    /// Adds a space, whose messages this worker reads.
    ///
    /// # Errors
    ///
    /// The kernel's, where it has no memory for the epoll set.
    pub(super) fn add(
        &mut self,
        pager: &Pager,
        space: AddressSpace,
        worker: usize,
    ) -> io::Result<u32> {
        self.last_id += 1;
        let id = self.last_id;
        let token = Token::Userfaultfd(id).data();
        if let Err(error) =
            epoll::add(&self.epolls[worker], &space.uffd, token, epoll::EventFlags::IN)
        {
            pager.discard_space(space);
            return Err(error.into());
        }
        self.by_id.insert(id, pager.add_space(space));
        Ok(id)
    }

    /// Removes a space; the workers still read its userfaultfd.
    pub(super) fn remove(&mut self, id: u32) -> Option<SpaceHandle> {
        self.by_id.remove(&id)
    }

    pub(super) fn get(&self, id: u32) -> Option<&SpaceHandle> {
        self.by_id.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &SpaceHandle)> {
        self.by_id.iter().map(|(&id, space)| (id, space))
    }

    /// The first space of this kind. Each is locked for the question.
    pub(super) fn find(
        &self,
        is_it: impl Fn(&AddressSpace) -> bool,
    ) -> Option<(u32, &SpaceHandle)> {
        self.iter().find(|(_, space)| is_it(&lock(space)))
    }

    /// The spaces of this kind. Each is locked for the question.
    pub(super) fn ids_of(&self, is_it: impl Fn(&AddressSpace) -> bool) -> Vec<u32> {
        self.iter().filter(|(_, space)| is_it(&lock(space))).map(|(id, _)| id).collect()
    }

    /// One more worker has started.
    pub(super) fn add_worker(&mut self) {
        self.last_faults.push(Instant::now());
    }

    /// Workers at most: some may not have started.
    pub(super) fn workers(&self) -> usize {
        self.epolls.len()
    }

    /// Notes which thread faulted. If threads of the address space take turns, all workers read it
    /// from now on. If two address spaces take turns, the worker hands one over.
    pub(super) fn note_fault(
        &mut self,
        worker: &mut WorkerState,
        id: u32,
        space: &mut AddressSpace,
        thread: u32,
        now: Instant,
    ) {
        let own = worker.number;
        self.last_faults[own] = now;
        match space.faults.note_thread(thread) {
            Some(Sources::Several) => {
                let are_all = self.give_to_all(own, id, &space.uffd);
                space.faults.note_workers(are_all);
            }
            Some(Sources::One) => {
                self.take_from_workers(&space.uffd, Some(own));
                space.faults.note_workers(false);
            }
            None => {}
        }
        if space.faults.has_all_workers() || worker.sources.see(id) != Some(Sources::Several) {
            return;
        }
        if let Some(free) = self.free_worker(own, now)
            && self.hand_over(id, &space.uffd, free)
        {
            self.last_faults[free] = now;
            worker.affinity.leave();
        }
    }

    /// The worker with the longest time since its last fault, if that is long enough.
    fn free_worker(&self, own: usize, now: Instant) -> Option<usize> {
        let others = (0..self.last_faults.len()).filter(|&worker| worker != own);
        let free = others.min_by_key(|&worker| self.last_faults[worker])?;
        (now.saturating_duration_since(self.last_faults[free]) >= FREE_AFTER).then_some(free)
    }

    /// Has this worker alone read a userfaultfd; `false` where the kernel has no memory.
    fn hand_over(&self, id: u32, uffd: &Userfaultfd, to: usize) -> bool {
        // The worker may be on the processor of a thread that does not wait. It moves to this
        // one's.
        drop(self.turns.each()[to].wait());
        let token = Token::Userfaultfd(id).data();
        // Two workers have it for a moment: never none.
        let is_added = epoll::add(&self.epolls[to], uffd, token, epoll::EventFlags::IN).is_ok();
        if is_added {
            self.take_from_workers(uffd, Some(to));
        }
        is_added
    }

    /// Has all workers read a userfaultfd that one has; `false` where that stays the only one. For
    /// a fault, the kernel wakes both of two workers, because one may be where no processor is free
    /// for it. Of more than two, the kernel wakes one.
    fn give_to_all(&self, has_it: usize, id: u32, uffd: &Userfaultfd) -> bool {
        let token = || Token::Userfaultfd(id).data();
        let workers = self.last_faults.len();
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::EXCLUSIVE, workers > 2);
        let started = self.epolls.iter().take(workers).enumerate();
        let others = started.filter(|(worker, _)| *worker != has_it);
        let given = others.filter(|(_, epoll)| epoll::add(epoll, uffd, token(), flags).is_ok());
        if given.count() == 0 {
            return false; // there are no others, or the kernel has no memory
        }
        let own = &self.epolls[has_it];
        // The kernel does not change the wake-up of a registered descriptor.
        let _ = epoll::delete(own, uffd).and_then(|()| epoll::add(own, uffd, token(), flags));
        true
    }

    /// Takes an address space from all workers but one.
    pub(super) fn take_from_workers(&self, uffd: &Userfaultfd, but: Option<usize>) {
        for (worker, epoll) in self.epolls.iter().enumerate() {
            if Some(worker) != but {
                let _ = epoll::delete(epoll, uffd); // most do not have it
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_without_a_fault_for_5_ms_is_free() {
        let mut spaces = Spaces::new(Arc::new([]), Arc::new(AllTurns::of(3)));
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(spaces.free_worker(0, at(1000)), None, "no other has started");
        spaces.last_faults = vec![at(0), at(3), at(2)];
        assert_eq!(spaces.free_worker(0, at(6)), None);
        assert_eq!(spaces.free_worker(0, at(7)), Some(2));
        assert_eq!(spaces.free_worker(1, at(7)), Some(0));
        assert_eq!(spaces.free_worker(2, at(5)), Some(0));
    }
}
