//! Memory whose helper has ended, and which somebody has still: threads that are about to end as
//! well, in a system call maybe that reads a page that is not there; processes that have it in
//! common with the one that has ended (`vfork`, or `clone` with `CLONE_VM`); who reads that of
//! another process (`process_vm_readv`); and the kernel, which clears a word there at an exec(2).
//!
//! Its userfaultfd is kept until nobody has it: with the last descriptor gone, what is missing
//! would read as zeros, which a thread that ends may be about to write to a pipe. Pages that are
//! asked for are poisoned: a system call fails with EFAULT, or is short; a thread gets SIGBUS.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{PAGE, Server};
use crate::pager::lock;
use crate::sys::stderr::tell;
use crate::sys::userfaultfd::{Event, Message, Userfaultfd};

/// How long nothing is told: at an exec(2) or the end of a process nobody misses the page.
const ENDING_FOR: Duration = Duration::from_millis(200);

/// Where memory of programs may be, but for addresses of 57 bits.
const ALL: Range<u64> = 1 << 16..(1 << 47) - PAGE;

#[derive(Debug)]
pub(super) struct Left {
    uffd: Arc<Userfaultfd>,
    /// The process that has ended.
    pid: u32,
    since: Instant,
}

impl Server {
    /// Nobody can answer for this memory: pages that are asked for are poisoned.
    pub(super) fn orphan(&mut self, uffd: Arc<Userfaultfd>, pid: u32) {
        self.left.push(Left { uffd, pid, since: Instant::now() });
    }

    /// The helper of a space has ended.
    pub(super) fn leave(&mut self, id: u32) {
        let left = self.spaces.get(&id).map(|space| {
            let space = lock(space);
            Left {
                uffd: Arc::clone(&space.uffd),
                pid: space.pid.unwrap_or(0),
                since: Instant::now(),
            }
        });
        self.gone(id);
        if let Some(left) = left.filter(|left| !left.uffd.is_memory_gone()) {
            // Faults that were read before are told again.
            let _ = left.uffd.wake(ALL);
            self.left.push(left);
        }
    }

    /// Whether the helper of a process has ended, and the process has the same memory still.
    pub(super) fn has_left(&self, pid: u32) -> bool {
        self.left.iter().any(|left| left.pid == pid && !left.uffd.is_memory_gone())
    }

    /// All programs have ended. Whether nobody has any memory of theirs.
    pub(super) fn leave_all(&mut self) -> bool {
        let all: Vec<u32> = self.spaces.keys().copied().collect();
        all.into_iter().for_each(|id| self.leave(id));
        self.look_at_left();
        self.left.is_empty()
    }

    /// Looks whether anybody has it still, and waits for something that was kept for it.
    pub(super) fn look_at_left(&mut self) {
        let mut all = std::mem::take(&mut self.left);
        all.retain(|left| !left.uffd.is_memory_gone());
        for left in &all {
            self.poison_what_is_asked_for(left);
        }
        self.left.append(&mut all);
    }

    fn poison_what_is_asked_for(&mut self, left: &Left) {
        let mut room = [const { Message::EMPTY }; 16];
        let count = left.uffd.read(&mut room).unwrap_or(0);
        for event in room[..count].iter_mut().filter_map(Message::take) {
            match event {
                Event::PageFault { address, .. } => {
                    let page = address / PAGE * PAGE..(address / PAGE + 1) * PAGE;
                    if left.uffd.poison(page.clone(), true).is_err() {
                        let _ = left.uffd.wake(page); // it is told again
                    }
                    if left.since.elapsed() >= ENDING_FOR
                        && !std::mem::replace(&mut self.has_told_of_left, true)
                    {
                        tell(&format!(
                            "page {address:#x} of process {} cannot be given back, as it \
                             has ended, or its helper: who asked for it gets EFAULT or SIGBUS; \
                             likewise from now on",
                            left.pid
                        ));
                    }
                }
                // It has no more than its parent.
                Event::Fork { child } => {
                    self.left.push(Left { uffd: Arc::new(child), ..*left });
                }
                Event::Remove { .. } | Event::Unmap { .. } | Event::Remap { .. } => {}
            }
        }
    }
}
