//! Memory whose helper has ended, and which somebody has still: threads that are about to end as
//! well, in a system call maybe that reads a page that is not there; and processes that have it in
//! common with the one that has ended (`vfork`, or `clone` with `CLONE_VM`).
//!
//! Its userfaultfd is kept until nobody has it: with the last descriptor gone, what is missing
//! would read as zeros, which a thread that ends may be about to write to a pipe. Nothing is
//! answered: a thread that ends does not wait, and who goes on is ended.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{PAGE, Server};
use crate::pager::lock;
use crate::sys::userfaultfd::{Event, Message, Userfaultfd};

/// How long threads may take to end. They do so in some ms, as a rule.
const ENDING_FOR: Duration = Duration::from_secs(1);

/// Where memory of programs may be, but for addresses of 57 bits.
const ALL: Range<u64> = 1 << 16..(1 << 47) - PAGE;

#[derive(Debug)]
pub(super) struct Left {
    uffd: Arc<Userfaultfd>,
    /// The process that has ended.
    pid: u32,
    numbers_as_here: bool,
    since: Instant,
}

impl Left {
    /// Whether it is not known yet that it stays.
    pub(super) fn is_ending(&self) -> bool {
        self.since.elapsed() < ENDING_FOR
    }
}

impl Server {
    /// The helper of a space has ended.
    pub(super) fn leave(&mut self, id: u32) {
        let left = self.spaces.get(&id).map(|space| {
            let space = lock(space);
            Left {
                uffd: Arc::clone(&space.uffd),
                pid: space.pid.unwrap_or(0),
                numbers_as_here: space.numbers_as_here(),
                since: Instant::now(),
            }
        });
        self.gone(id);
        self.left.extend(left.filter(|left| !left.uffd.is_memory_gone()));
    }

    /// Looks whether anybody has it still, and waits for something that was kept for it.
    pub(super) fn look_at_left(&mut self) {
        let mut all = std::mem::take(&mut self.left);
        all.retain(|left| !left.uffd.is_memory_gone());
        for left in &all {
            if !left.is_ending() {
                self.end_who_waits(left);
            }
        }
        self.left.append(&mut all);
    }

    fn end_who_waits(&mut self, left: &Left) {
        let mut room = [const { Message::EMPTY }; 16];
        let count = left.uffd.read(&mut room).unwrap_or(0);
        for event in room[..count].iter_mut().filter_map(Message::take) {
            match event {
                Event::PageFault { address, thread, .. } => {
                    let pid = if left.numbers_as_here { thread } else { 0 };
                    let why = match pid == left.pid {
                        true => "its helper has ended (seccomp?)".to_owned(),
                        false => {
                            format!("its memory is that of process {}, which has ended", left.pid)
                        }
                    };
                    let text =
                        format!("page {address:#x} of process {pid} cannot be given back: {why}");
                    self.pager.lose(pid, &text);
                }
                // It has no more than its parent.
                Event::Fork { child } => {
                    self.left.push(Left { uffd: Arc::new(child), since: Instant::now(), ..*left });
                }
                Event::Remove { .. } | Event::Unmap { .. } | Event::Remap { .. } => {}
            }
        }
        // Faults that were read before the helper ended are told again.
        let _ = left.uffd.wake(ALL);
    }
}
