//! Orphaned memory: its helper has ended, and other tasks still have it. These are ending threads
//! in a system call, processes with the same memory (`vfork`, `clone` with `CLONE_VM`), or readers
//! by `process_vm_readv`. The kernel, too, clears a word there at an exec(2).
//!
//! The supervisor keeps the userfaultfd until nobody has the memory. Without a descriptor missing
//! pages would read as zeros, and an ending thread may write them to a pipe. The supervisor
//! poisons pages that are touched: a system call fails with EFAULT or is short, and a thread gets
//! SIGBUS.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
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
const CHECK_FIRST: Duration = Duration::from_millis(1);
const CHECK_LAST: Duration = Duration::from_secs(1);

/// How long the waits stay short.
const YOUNG: Duration = Duration::from_millis(100);

/// Orphaned address spaces of one process at most. The one from before an exec(2) may be in use by
/// a child. The library gives no reason for more.
const ORPHANS_EACH: usize = 2;

/// Children that one helperless process may fork. With more it is ended.
const CHILDREN_MAX: usize = 64;

/// Empty reports of epoll at most: another holder of the userfaultfd can cause more.
const EMPTY_MAX: u32 = 16;

/// Orphaned memory by number.
#[derive(Debug)]
pub(super) struct Orphans {
    epolls: Arc<[OwnedFd]>,
    by_id: BTreeMap<u32, OrphanedMemory>,
    last_id: u32,
    /// The message about a touch was printed.
    has_reported: bool,
}

#[derive(Debug)]
struct OrphanedMemory {
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

impl Orphans {
    pub(super) fn new(epolls: Arc<[OwnedFd]>) -> Orphans {
        Orphans { epolls, by_id: BTreeMap::new(), last_id: 0, has_reported: false }
    }

    /// Keeps memory without a helper: pages that are touched are poisoned.
    pub(super) fn add(&mut self, uffd: Arc<Userfaultfd>, pid: u32, peer: Option<Arc<Peer>>) {
        self.last_id += 1;
        let token = Token::Orphan(self.last_id).data();
        // Without epoll each check reads it.
        let polled = Polled::add(&self.epolls, Arc::clone(&uffd), token).ok();
        let since = Instant::now();
        let (due, interval) = (since, CHECK_FIRST);
        let orphan = OrphanedMemory { polled, uffd, pid, peer, since, due, interval, empty: 0 };
        self.by_id.insert(self.last_id, orphan);
    }

    /// Whether the checks of some are still frequent.
    pub(super) fn has_young(&self) -> bool {
        self.by_id.values().any(|orphan| orphan.interval < YOUNG)
    }

    /// Whether the helper of a process has ended, and the process has the same memory still.
    pub(super) fn has_memory_of(&self, pid: u32) -> bool {
        self.count_of(pid) > 0
    }

    /// Whether a process has orphaned as many address spaces as allowed: it gets no new helper.
    pub(super) fn has_too_many_of(&self, pid: u32) -> bool {
        self.count_of(pid) >= ORPHANS_EACH
    }

    fn count_of(&self, pid: u32) -> usize {
        let is_of_it = |it: &&OrphanedMemory| it.pid == pid && !it.uffd.is_memory_gone();
        self.by_id.values().filter(is_of_it).count()
    }

    /// Checks whether memory is gone, if that is due.
    pub(super) fn check(&mut self) {
        let now = Instant::now();
        let due = self.by_id.iter_mut().filter(|(_, orphan)| orphan.due <= now);
        let due: Vec<u32> = due
            .map(|(&id, orphan)| {
                orphan.interval = (orphan.interval * 2).min(CHECK_LAST);
                orphan.due = now + orphan.interval;
                id
            })
            .collect();
        for id in due {
            if self.by_id[&id].uffd.is_memory_gone() {
                self.by_id.remove(&id);
            } else {
                self.poison_touched(id);
            }
        }
    }

    /// Reads messages of one that epoll reports.
    pub(super) fn read(&mut self, id: u32) {
        let count = self.poison_touched(id);
        let Some(orphan) = self.by_id.get_mut(&id).filter(|_| count == 0) else { return };
        orphan.empty += 1;
        if orphan.empty >= EMPTY_MAX {
            orphan.polled = None;
        }
    }

    /// Reads some messages, and poisons the pages that are touched; returns the number of messages.
    fn poison_touched(&mut self, id: u32) -> usize {
        let Some(orphan) = self.by_id.get(&id) else { return 0 };
        let (uffd, pid, peer) = (Arc::clone(&orphan.uffd), orphan.pid, orphan.peer.clone());
        let since = orphan.since;
        let mut room = [const { Message::EMPTY }; 16];
        let count = uffd.read(&mut room).unwrap_or(0);
        for event in room[..count].iter_mut().filter_map(Message::take) {
            match event {
                Event::PageFault { address, .. } => {
                    let page = address / PAGE * PAGE..(address / PAGE + 1) * PAGE;
                    if uffd.poison(page.clone(), true).is_err() {
                        let _ = uffd.wake(page); // the thread faults again
                    }
                    if since.elapsed() >= ENDING_FOR {
                        self.report_touch(address, pid);
                    }
                }
                Event::Fork { child } => self.add_child(Arc::new(child), pid, peer.clone()),
                Event::Remove { .. } | Event::Unmap { .. } | Event::Remap { .. } => {}
            }
        }
        count
    }

    fn report_touch(&mut self, address: u64, pid: u32) {
        if !std::mem::replace(&mut self.has_reported, true) {
            log(&format!(
                "cannot restore page {address:#x} of process {pid}: the process or its \
                 helper has ended; the reader gets EFAULT or SIGBUS; later cases are \
                 not reported"
            ));
        }
    }

    /// Adds a child, which has the same memory at most. A process with too many is ended.
    fn add_child(&mut self, child: Arc<Userfaultfd>, pid: u32, peer: Option<Arc<Peer>>) {
        if self.by_id.values().filter(|orphan| orphan.pid == pid).count() < CHILDREN_MAX {
            self.add(child, pid, peer);
        } else if let Some(peer) = peer.filter(|peer| peer.is_alive()) {
            log(&format!(
                "process {pid} forked {CHILDREN_MAX} processes without a helper; the \
                 process was ended"
            ));
            peer.kill();
        }
    }
}

impl FaultServer {
    /// Takes over the address space of an ended helper.
    pub(super) fn orphan_space(&mut self, id: u32) {
        let orphan = self.spaces.get(id).map(|space| {
            let space = lock(space);
            (
                Arc::clone(&space.uffd),
                space.process.pid().unwrap_or(0),
                space.process.peer().cloned(),
            )
        });
        self.remove_space(id);
        if let Some((uffd, pid, peer)) = orphan.filter(|(uffd, ..)| !uffd.is_memory_gone()) {
            // The kernel reports faults again that were read before.
            let _ = uffd.wake(ALL);
            self.orphans.add(uffd, pid, peer);
        }
    }

    /// Orphans all spaces; `false` while somebody has memory of the ended programs.
    pub(super) fn orphan_all(&mut self) -> bool {
        self.spaces.ids_of(|_| true).into_iter().for_each(|id| self.orphan_space(id));
        self.orphans.by_id.values_mut().for_each(|orphan| orphan.due = orphan.since);
        self.orphans.check();
        self.orphans.by_id.is_empty()
    }
}
