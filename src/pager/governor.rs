//! The thread that looks at programs: how much they use, and what of it is to be watched.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::census::Census;
use super::process_files::{children_of, part_of_anonymous_of};
use super::turns::Watch;
use super::{Pager, lock, status, watcher};
use crate::sys::process;
use crate::sys::signals::{self, SignalNumber};

/// Programs are taken to touch new memory at most this fast: what decides how often they are looked
/// at.
const BYTES_PER_MS_MAX: u64 = 4 << 20;

/// How often programs are looked at.
const LOOK_MAX: Duration = Duration::from_millis(50);
const LOOK_MIN: Duration = Duration::from_millis(1);

/// How often it is looked for processes without a helper.
const TREE_EVERY: Duration = Duration::from_millis(500);

pub(super) struct Governor {
    pager: Arc<Pager>,
    /// The server's: readable while there is something to answer.
    queue: OwnedFd,
    turns: Watch,
    watchers: Vec<JoinHandle<()>>,
    /// It runs before all others, but for what takes long.
    goes_first: bool,
    census: Census,
    tree_at: Instant,
    /// What killed runs left was removed.
    has_tidied: bool,
    /// Processes without a helper when that was looked for last.
    without: BTreeSet<u32>,
    /// Programs of which that was told.
    told: BTreeSet<PathBuf>,
}

impl Governor {
    pub(super) fn new(pager: Arc<Pager>, queue: OwnedFd) -> Governor {
        Governor {
            pager,
            queue,
            turns: Watch::new(),
            watchers: Vec::new(),
            goes_first: false,
            census: Census::new(),
            tree_at: Instant::now(),
            has_tidied: false,
            without: BTreeSet::new(),
            told: BTreeSet::new(),
        }
    }

    pub(super) fn run(mut self) -> io::Result<()> {
        process::prefer_this_thread();
        self.goes_first = process::run_first().is_ok();
        while !self.pager.stop.load(Ordering::Relaxed) {
            if self.pager.has_failed() {
                self.end_programs();
            }
            let used = self.pager.sample();
            let goal = self.pager.goal_bytes();
            if used > goal {
                self.pager.ring();
            }
            self.keep_watchers()?;
            // What programs have in common may be made their own by all of them.
            if self.pager.shares() && self.pager.apart.load(Ordering::Relaxed) > goal {
                self.beside_others(|governor| governor.census.go_on(&governor.pager, used));
            } else {
                self.census.rest(&self.pager);
            }
            if self.tree_at.elapsed() >= TREE_EVERY {
                self.tree_at = Instant::now();
                self.beside_others(Governor::look_at_tree);
            }
            let queue = &self.queue;
            let is_watched = self.turns.look(&self.pager.turns, || is_readable(queue));
            let room_ms = goal.saturating_sub(used) / BYTES_PER_MS_MAX / 2;
            let pause = Duration::from_millis(room_ms).clamp(LOOK_MIN, LOOK_MAX);
            self.pager.pause(if is_watched { LOOK_MIN } else { pause });
        }
        Ok(())
    }

    /// Starts watchers once there is something to watch. Where one has failed, fails as well.
    fn keep_watchers(&mut self) -> io::Result<()> {
        if self.watchers.is_empty() && !self.pager.to_watch.is_empty() {
            self.watchers = self.beside_others(|governor| watcher::start(&governor.pager))?;
        }
        while let Some(at) = self.watchers.iter().position(JoinHandle::is_finished) {
            if let Err(panic) = self.watchers.remove(at).join() {
                resume_unwind(panic);
            }
        }
        Ok(())
    }

    /// Does what takes longer than some microseconds.
    fn beside_others<T>(&mut self, work: impl FnOnce(&mut Governor) -> T) -> T {
        if self.goes_first {
            let _ = process::run_when_idle(None, false);
        }
        let done = work(self);
        self.goes_first = self.goes_first && process::run_first().is_ok();
        done
    }

    fn look_at_tree(&mut self) {
        if !std::mem::replace(&mut self.has_tidied, true) {
            status::remove_left_overs(); // not in the time of a short program
        }
        self.look_for_unmanaged();
    }

    /// Ends all programs: those that are known, which takes no descriptor and gives some back, and
    /// all others.
    fn end_programs(&self) {
        let known: Vec<u32> = self.managed().collect();
        for pid in known.into_iter().chain(self.processes()) {
            let _ = signals::send(pid as i32, SignalNumber(9));
        }
    }

    /// Processes with a helper.
    fn managed(&self) -> impl Iterator<Item = u32> {
        self.pager.spaces().into_iter().filter_map(|space| lock(&space).pid)
    }

    /// All processes below this one that are not its own.
    fn processes(&self) -> Vec<u32> {
        let guard = self.pager.guard_pid();
        let mut processes = below(std::process::id());
        processes.retain(|pid| Some(*pid) != guard);
        processes
    }

    /// Looks for processes without a helper: static and setuid programs. Their memory counts, and
    /// stays.
    fn look_for_unmanaged(&mut self) {
        let managed: BTreeSet<u32> = self.managed().collect();
        let mut without = BTreeSet::new();
        let mut bytes = 0;
        for pid in self.processes() {
            // One that ended, or that the kernel lets nobody look at, has no such link.
            let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) else { continue };
            if managed.contains(&pid) {
                continue;
            }
            without.insert(pid);
            // Seen twice: a program that has just started says hello in a moment, or ends.
            if !self.without.contains(&pid) {
                continue;
            }
            bytes += part_of_anonymous_of(pid).unwrap_or(0);
            // What is stopped may say hello when it goes on.
            if !process::is_stopped(pid) && self.told.insert(program.clone()) {
                let program = program.display();
                self.pager.warn(&format!(
                    "{program} (process {pid}) runs unmanaged, as static and setuid programs do: \
                     its memory stays"
                ));
            }
        }
        self.without = without;
        self.pager.unmanaged.store(bytes, Ordering::Relaxed);
    }
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// All processes below one.
fn below(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        at += 1;
        found.extend(children_of(pid));
    }
    found.remove(0);
    found
}
