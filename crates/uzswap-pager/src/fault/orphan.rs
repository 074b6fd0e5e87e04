//! Orphaned memory: its helper has ended, and other tasks still have it. They may be ending
//! threads in a system call, processes with the same memory (`vfork`, `clone` with `CLONE_VM`),
//! readers by `process_vm_readv`, or the kernel, which clears a word there at an exec(2).
//!
//! The supervisor keeps the userfaultfd until nobody has the memory. Without a descriptor missing
//! pages would read as zeros, and an ending thread may write them to a pipe. The supervisor
//! poisons pages that are touched: a system call fails with EFAULT or is short, and a thread gets
//! SIGBUS.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::token::Token;
use super::{FaultServer, PAGE};
use crate::lock;
use crate::messages::log;
use crate::program::peer::Peer;
use crate::program::polled::Polled;
use uzswap_sys::userfaultfd::{Event, Message, Userfaultfd};

/// How long the supervisor prints no message: at an exec(2) or the end of a process nobody misses
/// the page.
const ENDING_FOR: Duration = Duration::from_millis(200);

/// Addresses of programs, without those of 57 bits.
const ALL: Range<u64> = 1 << 16..(1 << 47) - PAGE;

/// The first wait before the check whether the memory is gone; each wait is twice as long.
const LOOK_FIRST: Duration = Duration::from_millis(1);
const LOOK_LAST: Duration = Duration::from_secs(1);

/// How long the waits stay short.
const YOUNG: Duration = Duration::from_millis(100);

/// Orphaned address spaces of one process at most. The one from before an exec(2) may be in use by
/// a child. The library gives no reason for more.
const LEFT_EACH: usize = 2;

/// Children that one helperless process may fork. With more it is ended.
const CHILDREN_MAX: usize = 64;

/// Empty reports of epoll at most: another holder of the userfaultfd can cause more.
const EMPTY_MAX: u32 = 16;

#[derive(Debug)]
pub(super) struct Left {
    /// The descriptor in the epoll set.
    polled: Option<Polled<Arc<Userfaultfd>>>,
    uffd: Arc<Userfaultfd>,
    /// The process that has ended, or its helper.
    pid: u32,
    peer: Option<Arc<Peer>>,
    since: Instant,
    /// The next check, and the wait before it.
    due: Instant,
    interval: Duration,
    /// Reports of epoll without a message.
    empty: u32,
}

impl Left {
    /// Whether its checks are still frequent.
    pub(super) fn is_young(&self) -> bool {
        self.interval < YOUNG
    }
}

impl FaultServer {
    /// Keeps memory without a helper: pages that are touched are poisoned.
    pub(super) fn orphan(&mut self, uffd: Arc<Userfaultfd>, pid: u32, peer: Option<Arc<Peer>>) {
        let id = self.number();
        let token = Token::Orphan(id).data();
        // Without epoll each check reads it.
        let polled = Polled::add(&self.epolls, Arc::clone(&uffd), token).ok();
        let since = Instant::now();
        let (due, interval) = (since, LOOK_FIRST);
        self.left.insert(id, Left { polled, uffd, pid, peer, since, due, interval, empty: 0 });
    }

    /// Takes over the address space of an ended helper.
    pub(super) fn leave(&mut self, id: u32) {
        let left = self.spaces.get(id).map(|space| {
            let space = lock(space);
            (Arc::clone(&space.uffd), space.pid.unwrap_or(0), space.peer.clone())
        });
        self.remove_space(id);
        if let Some((uffd, pid, peer)) = left.filter(|(uffd, ..)| !uffd.is_memory_gone()) {
            // The kernel reports faults again that were read before.
            let _ = uffd.wake(ALL);
            self.orphan(uffd, pid, peer);
        }
    }

    /// Whether the helper of a process has ended, and the process has the same memory still.
    pub(super) fn has_left(&self, pid: u32) -> bool {
        self.left.values().any(|left| left.pid == pid && !left.uffd.is_memory_gone())
    }

    /// Whether a process has orphaned as many address spaces as allowed: it gets no new helper.
    pub(super) fn has_left_too_much(&self, pid: u32) -> bool {
        let of_it = |left: &&Left| left.pid == pid && !left.uffd.is_memory_gone();
        self.left.values().filter(of_it).count() >= LEFT_EACH
    }

    /// Whether nobody has memory of the ended programs.
    pub(super) fn leave_all(&mut self) -> bool {
        self.spaces.ids_of(|_| true).into_iter().for_each(|id| self.leave(id));
        self.left.values_mut().for_each(|left| left.due = left.since);
        self.look_at_left();
        self.left.is_empty()
    }

    /// Checks whether memory is gone, if that is due.
    pub(super) fn look_at_left(&mut self) {
        let now = Instant::now();
        let due = self.left.iter_mut().filter(|(_, left)| left.due <= now);
        let due: Vec<u32> = due
            .map(|(&id, left)| {
                left.interval = (left.interval * 2).min(LOOK_LAST);
                left.due = now + left.interval;
                id
            })
            .collect();
        for id in due {
            if self.left[&id].uffd.is_memory_gone() {
                self.left.remove(&id);
            } else {
                self.poison_what_is_asked_for(id);
            }
        }
    }

    /// Epoll reports it.
    pub(super) fn hear_left(&mut self, id: u32) {
        let count = self.poison_what_is_asked_for(id);
        let Some(left) = self.left.get_mut(&id).filter(|_| count == 0) else { return };
        left.empty += 1;
        if left.empty >= EMPTY_MAX {
            left.polled = None;
        }
    }

    /// Reads some messages, and answers; how many.
    fn poison_what_is_asked_for(&mut self, id: u32) -> usize {
        let Some(left) = self.left.get(&id) else { return 0 };
        let (uffd, pid, peer) = (Arc::clone(&left.uffd), left.pid, left.peer.clone());
        let since = left.since;
        let mut room = [const { Message::EMPTY }; 16];
        let count = uffd.read(&mut room).unwrap_or(0);
        for event in room[..count].iter_mut().filter_map(Message::take) {
            match event {
                Event::PageFault { address, .. } => {
                    let page = address / PAGE * PAGE..(address / PAGE + 1) * PAGE;
                    if uffd.poison(page.clone(), true).is_err() {
                        let _ = uffd.wake(page); // it is told again
                    }
                    if since.elapsed() >= ENDING_FOR
                        && !std::mem::replace(&mut self.has_told_of_left, true)
                    {
                        log(&format!(
                            "cannot restore page {address:#x} of process {pid}: the process or its \
                             helper has ended; the reader gets EFAULT or SIGBUS; later cases are \
                             not reported"
                        ));
                    }
                }
                // Its child has the same memory at most.
                Event::Fork { child } => {
                    let of_it = |left: &&Left| left.pid == pid;
                    if self.left.values().filter(of_it).count() < CHILDREN_MAX {
                        self.orphan(Arc::new(child), pid, peer.clone());
                    } else if let Some(peer) = peer.as_ref().filter(|peer| peer.is_alive()) {
                        log(&format!(
                            "process {pid} forked {CHILDREN_MAX} processes without a helper; the \
                             process was ended"
                        ));
                        peer.kill();
                    }
                }
                Event::Remove { .. } | Event::Unmap { .. } | Event::Remap { .. } => {}
            }
        }
        count
    }
}
