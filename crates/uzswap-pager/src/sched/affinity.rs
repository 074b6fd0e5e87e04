//! Affinity: the server runs on the processor of the faulting thread.
//!
//! A fault wakes the server, and the server wakes the thread. The scheduler prefers an idle
//! processor for a woken thread. On a virtual machine that takes some 35 us, seven times as long
//! as the fault. While all faults come from one thread, the server stays on its processor under
//! SCHED_IDLE. That processor counts as idle, so the thread runs there at once. At its next fault
//! the server goes on without a sleep.
//!
//! The scheduler now and then moves the program away from two threads on one processor. The server
//! notices that it runs on after a wake-up. It sets the thread's processors while the thread waits
//! in its next fault. Until they are restored the server runs before all others: a thread that the
//! program makes would inherit them.
//!
//! The helper stays there, too. On another processor each move of pages would interrupt the
//! program (25 us for a single page).
//!
//! If several threads of an address space fault in turn, a worker gives way to all of them, on any
//! processor. Usually the woken thread should run on the worker's processor
//! (docs/experiments/2026-11-26-run-threads.md).

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::program::procfs::{is_helper, is_of_same_process};
use crate::sched::priority::Turns;
use uzswap_sys::process;

/// Faults in a row from one thread before the server joins its processor.
const FAULTS_IN_A_ROW: u32 = 16;

/// If the server goes on so soon after a wake-up, the woken thread runs on another processor.
const ELSEWHERE: Duration = Duration::from_micros(100);

/// The affinity of a worker.
#[derive(Debug)]
pub(crate) struct Affinity {
    turns: Arc<Turns>,
    /// The thread of the last fault, and how many of its faults were the last ones.
    thread: u32,
    in_a_row: u32,
    /// The worker gives way to several threads that take turns.
    is_of_several: bool,
    /// The processor of server and helper.
    place: Option<CpuSet>,
    /// The helper of that thread's process.
    helper: Option<Pid>,
    /// The last wake-up, and whether that thread ran on another processor.
    woke: Instant,
    has_missed: bool,
    /// Whether the server may use SCHED_IDLE, once that was tried.
    may_give_way: Option<bool>,
    /// The processors of the server; `None` with a single processor.
    anywhere: Option<CpuSet>,
}

/// A thread with its processors set for one wake-up. The drop after that restores them.
pub(crate) struct AffinityGuard {
    turns: Arc<Turns>,
    thread: Pid,
    anywhere: CpuSet,
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        // The kernel refuses this for an ended thread.
        let _ = sched_setaffinity(Some(self.thread), &self.anywhere);
        self.turns.go_on();
    }
}

impl Affinity {
    /// The affinity of a thread with the processors of the calling thread.
    pub(crate) fn new(turns: Arc<Turns>) -> Affinity {
        Affinity {
            turns,
            thread: 0,
            in_a_row: 0,
            is_of_several: false,
            place: None,
            helper: None,
            woke: Instant::now(),
            has_missed: false,
            may_give_way: None,
            anywhere: sched_getaffinity(None).ok().filter(|set| set.count() > 1),
        }
    }

    /// Whether the server gives way to the faulting thread: a woken thread runs first.
    pub(crate) fn gives_way(&self) -> bool {
        self.turns.gives_way()
    }

    /// Notes a wake-up, with nothing locked: the faulting thread runs before the server.
    pub(crate) fn give_way(&mut self) {
        let Some(anywhere) = self.anywhere else { return };
        let keeps_some = self.place.is_some() || self.is_of_several;
        if keeps_some && !self.turns.give_way() {
            self.move_anywhere(&anywhere);
        }
        self.woke = Instant::now();
    }

    /// Notes that the server goes on, and the woken thread has not faulted: shortly after the
    /// wake-up that means another processor.
    pub(crate) fn note_running_on(&mut self) {
        self.has_missed = self.woke.elapsed() < ELSEWHERE;
    }

    /// Notes a fault of a thread whose process has a helper. Joins the processor of the thread if
    /// all faults come from it, and draws the thread here if it went away. Does nothing for an
    /// unknown thread.
    pub(crate) fn follow(
        &mut self,
        thread: Option<u32>,
        process: Option<u32>,
        helper: Option<u32>,
    ) -> Option<AffinityGuard> {
        let anywhere = self.anywhere?;
        let Some(thread) = thread else {
            self.leave();
            return None;
        };
        if thread != self.thread {
            self.move_anywhere(&anywhere);
            (self.thread, self.in_a_row) = (thread, 0);
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row < FAULTS_IN_A_ROW {
            return None;
        }
        if !self.learn_whether_to_give_way() {
            self.move_anywhere(&anywhere);
            return None;
        }
        // The kernel tells a thread's number in its own PID namespace. In another one, which the
        // program can make, it may be a number that a stranger has here.
        let is_its_own = || process.is_some_and(|process| is_of_same_process(process, thread));
        let Some(place) = &self.place else {
            if !is_its_own() {
                return None;
            }
            let mut place = CpuSet::new();
            place.set(process::last_processor(thread)?);
            self.place = Some(place);
            self.helper = helper.and_then(pid);
            self.stay(&place);
            return None;
        };
        if !std::mem::take(&mut self.has_missed) || !is_its_own() {
            return None;
        }
        // Without the right to move the program (`EPERM`) it stays where it is.
        let thread = pid(thread)?;
        let anywhere = sched_getaffinity(Some(thread)).ok()?;
        if !self.turns.go_first() {
            return None;
        }
        let _ = sched_setaffinity(Some(thread), place);
        Some(AffinityGuard { turns: Arc::clone(&self.turns), thread, anywhere })
    }

    /// Notes a fault of one of several threads that fault in turn: gives way to all of them, if
    /// the server may.
    pub(crate) fn follow_several(&mut self) {
        if !self.is_of_several {
            self.leave();
            self.is_of_several = self.learn_whether_to_give_way();
        }
    }

    /// Tries once whether the server may return from SCHED_IDLE; whether it may give way now.
    fn learn_whether_to_give_way(&mut self) -> bool {
        *self.may_give_way.get_or_insert_with(process::may_return_from_idle)
            && !self.turns.is_boosted()
    }

    /// Leaves the processor for work that takes longer than a fault.
    pub(crate) fn leave(&mut self) {
        if let Some(anywhere) = self.anywhere {
            self.move_anywhere(&anywhere);
        }
        (self.thread, self.in_a_row) = (0, 0);
    }

    /// Lets server and helper run anywhere.
    fn move_anywhere(&mut self, anywhere: &CpuSet) {
        (self.has_missed, self.is_of_several) = (false, false);
        self.turns.take_part();
        if self.place.take().is_some() {
            // The helper may have ended, and its number may be another thread's.
            let is_it = |thread: &Pid| is_helper(thread.as_raw_nonzero().get() as u32);
            self.helper = self.helper.filter(|thread| is_it(thread).unwrap_or(false));
            self.stay(anywhere);
            self.helper = None;
        }
    }

    /// A thread stays where it is if the kernel refuses.
    fn stay(&self, processors: &CpuSet) {
        let _ = sched_setaffinity(None, processors);
        let _ = self.helper.map(|helper| sched_setaffinity(Some(helper), processors));
    }
}

fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(number as i32) // at most 2^22
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that waits until it is dropped, and its number.
    struct Other {
        number: Pid,
        _end: std::sync::mpsc::Sender<()>,
    }

    fn other() -> Other {
        let (started, start) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            started.send(rustix::thread::gettid()).unwrap();
            let _ = ended.recv();
        });
        Other { number: start.recv().unwrap(), _end: end }
    }

    /// An affinity that may follow a thread, all processors, a thread to follow, and this thread as
    /// its helper.
    fn followed() -> Option<(Affinity, CpuSet, Other, Option<u32>)> {
        let affinity = Affinity::new(Arc::default());
        let all = affinity.anywhere?; // one processor: nothing to choose
        let own = Some(raw(rustix::thread::gettid()));
        process::may_return_from_idle().then(|| (affinity, all, other(), own))
    }

    fn raw(thread: Pid) -> u32 {
        thread.as_raw_nonzero().get() as u32
    }

    fn count(thread: Option<Pid>) -> u32 {
        sched_getaffinity(thread).unwrap().count()
    }

    fn this_process() -> Option<u32> {
        Some(std::process::id())
    }

    #[test]
    fn a_thread_of_another_process_is_left_alone() {
        let mut affinity = Affinity::new(Arc::default());
        let Some(all) = affinity.anywhere else { return }; // one processor: nothing to choose
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let stranger = Pid::from_child(&child);
        let own = Some(raw(rustix::thread::gettid()));
        for _ in 0..2 * FAULTS_IN_A_ROW {
            affinity.woke = Instant::now() + ELSEWHERE;
            affinity.note_running_on();
            assert!(affinity.follow(Some(raw(stranger)), this_process(), own).is_none());
        }
        assert!(affinity.place.is_none());
        assert_eq!((count(None), count(Some(stranger))), (all.count(), all.count()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_thread_is_followed_while_it_alone_faults() {
        let Some((mut affinity, all, other, own)) = followed() else { return };
        for _ in 1..FAULTS_IN_A_ROW {
            assert!(affinity.follow(Some(raw(other.number)), this_process(), own).is_none());
            affinity.give_way();
            assert!(!affinity.gives_way());
        }
        affinity.follow(Some(raw(other.number)), this_process(), own);
        affinity.give_way();
        assert!(affinity.gives_way());
        assert_eq!((count(None), count(Some(other.number))), (1, all.count()));
        // It runs here, and then it went away.
        affinity.woke = Instant::now() - ELSEWHERE;
        affinity.note_running_on();
        assert!(affinity.follow(Some(raw(other.number)), this_process(), own).is_none());
        affinity.woke = Instant::now() + ELSEWHERE;
        affinity.note_running_on();
        let guard = affinity.follow(Some(raw(other.number)), this_process(), own);
        if process::run_first().is_ok() {
            assert!(guard.is_some());
            assert_eq!(count(Some(other.number)), 1);
        }
        drop(guard);
        assert_eq!(count(Some(other.number)), all.count());
        assert!(affinity.follow(Some(raw(other.number)), this_process(), own).is_none());
        // One that is not known, or another one: back to where all was.
        affinity.follow(None, None, None);
        assert!(!affinity.gives_way());
        assert_eq!(count(None), all.count());
        affinity.follow(Some(raw(other.number) + 1), this_process(), own);
        assert!(!affinity.gives_way());
        assert_eq!(count(None), all.count());
    }

    #[test]
    fn several_threads_are_followed_anywhere() {
        let Some((mut affinity, all, other, own)) = followed() else { return };
        for _ in 0..FAULTS_IN_A_ROW {
            affinity.follow(Some(raw(other.number)), this_process(), own);
        }
        affinity.give_way();
        assert!(affinity.gives_way());
        assert_eq!(count(None), 1);
        for _ in 0..2 {
            affinity.follow_several();
            affinity.give_way();
            assert!(affinity.gives_way());
            assert_eq!(count(None), all.count());
        }
        // The same thread, and now by itself.
        affinity.follow(Some(raw(other.number)), this_process(), own);
        affinity.give_way();
        assert!(!affinity.gives_way());
        affinity.follow_several();
        affinity.leave();
        affinity.give_way();
        assert!(!affinity.gives_way());
    }
}
