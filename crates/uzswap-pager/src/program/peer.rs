//! A process of the run, by the kernel's word: a pidfd, and descent from the supervisor.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::locks::{Lock, SLOW_CLOSES};
use crate::messages::log;
use uzswap_sys::foreign::Maker;
use uzswap_sys::{peer, process};

/// Generations between the supervisor and a process at most.
const GENERATIONS_MAX: usize = 4096;

/// A process.
#[derive(Debug)]
pub(crate) struct Peer {
    pid: u32,
    pidfd: OwnedFd,
}

impl Peer {
    /// The process that a pidfd names.
    pub(crate) fn new(pidfd: OwnedFd) -> io::Result<Peer> {
        Ok(Peer { pid: peer::number_of(pidfd.as_fd())?, pidfd })
    }

    /// The process that has a number now; `None` where there is none, or no descriptor for it.
    pub(crate) fn open(pid: u32) -> Option<Peer> {
        let pidfd = pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()?;
        Some(Peer { pid, pidfd })
    }

    /// The process that made a connection.
    pub(crate) fn of_connection(connection: &impl AsFd) -> io::Result<Peer> {
        Peer::new(peer::of_connection(connection)?)
    }

    /// Its number, which is another's once it has ended and was waited for.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it has not ended: its number is its own.
    pub(crate) fn is_alive(&self) -> bool {
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut ended, Some(&Timespec::default())), Ok(0))
    }

    /// Whether it descends from a process that is there.
    pub(crate) fn descends_from(&self, ancestor: u32) -> bool {
        descends(self.pid, ancestor, process::parent_of) && self.is_alive()
    }

    /// Ends it, and no other.
    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL); // refused where it has ended
    }
}

/// Closes of one process's files that may wait, and in what time. A busy machine makes some late.
const DELAYS_MAX: u32 = 8;
const DELAYS_FOR: Duration = Duration::from_secs(10);

/// No helper of the library sends a file whose close waits.
impl Maker for Peer {
    fn delays_close(&self) {
        static SEEN: Lock<BTreeMap<u32, (Instant, u32)>, SLOW_CLOSES> = Lock::new(BTreeMap::new());
        let mut seen = SEEN.lock();
        seen.retain(|_, (since, _)| since.elapsed() < DELAYS_FOR);
        let (_, count) = seen.entry(self.pid).or_insert((Instant::now(), 0));
        *count += 1;
        if *count == DELAYS_MAX && self.is_alive() {
            log(&format!(
                "process {} sent {DELAYS_MAX} descriptors whose close blocks; the process was \
                 ended",
                self.pid
            ));
            self.kill();
        }
    }
}

/// The end of a walk from a process to its parents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    Arrives,
    Strays,
    /// A process of the line has ended meanwhile: its children have another parent now.
    Changes,
}

/// Walks at most: each further one is because a process of the line has ended.
const WALKS_MAX: usize = 8;

/// Whether a walk arrives, once nothing changes meanwhile.
pub(crate) fn arrives(mut walk: impl FnMut() -> Walk) -> bool {
    (0..WALKS_MAX).map(|_| walk()).find(|found| *found != Walk::Changes) == Some(Walk::Arrives)
}

/// Whether the parents of a process lead to another.
///
/// The kernel gives the number of a process that has ended to another one, and its children another
/// parent. So each link is read twice, upwards and then downwards. A process that has the same
/// parent at two times had it all the time between. A parent that was read meanwhile is that one's.
fn descends(pid: u32, ancestor: u32, mut parent_of: impl FnMut(u32) -> Option<u32>) -> bool {
    arrives(|| {
        let mut line = vec![pid];
        while let Some(&last) = line.last()
            && last != ancestor
        {
            match parent_of(last) {
                Some(parent @ 1..) if line.len() < GENERATIONS_MAX => line.push(parent),
                None if last != pid => return Walk::Changes,
                _ => return Walk::Strays,
            }
        }
        match line.windows(2).rev().all(|link| parent_of(link[0]) == Some(link[1])) {
            true => Walk::Arrives,
            false => Walk::Changes,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn descent_is_found_and_holds_at_one_moment() {
        let parents = BTreeMap::from([(9, 8), (8, 7), (7, 1), (1, 0), (5, 1)]);
        let parent_of = |pid| parents.get(&pid).copied();
        assert!(descends(9, 7, parent_of) && descends(7, 7, parent_of));
        assert!(descends(9, 1, parent_of));
        assert!(!descends(5, 7, parent_of) && !descends(9, 6, parent_of));
        assert!(!descends(4, 7, parent_of), "it has ended");
        assert!(!descends(2, 3, |_| Some(2)), "a circle ends");
        // A stranger's parent ends once it was asked for, and a process of the run has its number.
        let mut asked = 0;
        let reused = |pid| {
            asked += 1;
            match (pid, asked) {
                (9, 1) => Some(8),
                (9, _) => Some(1),
                (8, _) => Some(7),
                _ => None,
            }
        };
        assert!(!descends(9, 7, reused));
    }

    #[test]
    fn descent_is_found_although_parents_end() {
        // 8 ends before it is asked for, or after.
        for ends_before in [true, false] {
            let mut asked = 0;
            let parent_of = |pid| {
                asked += 1;
                let has_ended = asked > if ends_before { 1 } else { 2 };
                match (pid, has_ended) {
                    (9, false) => Some(8),
                    (9, true) | (8, false) => Some(7),
                    _ => None,
                }
            };
            assert!(descends(9, 7, parent_of), "{ends_before}");
        }
        let mut asked = 0;
        let changes = |_| {
            asked += 1;
            Some(asked)
        };
        assert!(!descends(9, 1 << 20, changes), "it ends where all changes for ever");
    }

    #[test]
    fn a_child_is_a_descendant_until_it_ends() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let peer = Peer::open(child.id()).unwrap();
        assert_eq!(Peer::new(peer.pidfd.try_clone().unwrap()).unwrap().pid(), child.id());
        assert!(peer.descends_from(std::process::id()));
        assert!(!peer.descends_from(2), "a kernel thread");
        peer.kill();
        child.wait().unwrap();
        assert!(!peer.is_alive() && !peer.descends_from(std::process::id()));
    }
}
