//! Where the server runs: beside the thread that faults.
//!
//! A fault wakes the server, and the server the program. The scheduler likes an idle processor for
//! whom it wakes, and on a virtual machine that takes some 35 us, seven times what the fault itself
//! does. While all faults come from one thread, the server stays on its processor, and runs there
//! only when nobody else would: the processor counts as idle, the thread is woken there, and runs
//! at once. When it faults again, the server goes on where it was, without having slept.
//!
//! The scheduler takes two threads on one processor for one too many, and moves the program now and
//! then. The server sees that it goes on although it has just woken somebody, and draws it back:
//! its processors are set for the moment in which it waits in its fault. It must not run before
//! they are set back, as threads that it makes have the same: the server goes before all until
//! then.
//!
//! The helper stays there, too: where it runs on another processor than the program, each run of
//! pages that it moves interrupts the program (25 us for a single page).
//!
//! Where threads of one space take turns, a worker gives way to all of them, on any processor. As a
//! rule, the thread that it has just woken is to run where the worker is
//! (docs/experiments/2026-11-26-run-threads.md).

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::sched::priority::Turns;
use crate::target::procfs::{is_helper, is_of_same_process};
use uzswap_sys::process;

/// Faults of one thread in a row that it takes to keep it company.
const FAULTS_IN_A_ROW: u32 = 16;

/// Where the server goes on so soon after it has woken somebody, that runs elsewhere.
const ELSEWHERE: Duration = Duration::from_micros(100);

/// The server's company.
#[derive(Debug)]
pub(crate) struct Company {
    turns: Arc<Turns>,
    /// The thread of the last fault, and how many of its faults were the last ones.
    thread: u32,
    in_a_row: u32,
    /// The worker gives way to several threads that take turns.
    is_of_several: bool,
    /// Where server and helper stay.
    place: Option<CpuSet>,
    /// Of that thread's process.
    helper: Option<Pid>,
    /// When somebody was woken last, and that this one did not run here.
    woke: Instant,
    has_missed: bool,
    /// Whether the server may give way, once that was tried.
    may_give_way: Option<bool>,
    /// Where the server may be; `None` where there is but one processor.
    anywhere: Option<CpuSet>,
}

/// A thread that is to be woken in one place; to be dropped once it is woken: it may run where it
/// could before, and does not run earlier.
pub(crate) struct AffinityGuard {
    turns: Arc<Turns>,
    thread: Pid,
    anywhere: CpuSet,
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        // It has ended where this is refused.
        let _ = sched_setaffinity(Some(self.thread), &self.anywhere);
        self.turns.go_on();
    }
}

impl Company {
    /// Of this thread, which the server inherits its processors from.
    pub(crate) fn new(turns: Arc<Turns>) -> Company {
        Company {
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

    /// Whether the server gives way to the thread that it keeps company: who is woken runs first.
    pub(crate) fn gives_way(&self) -> bool {
        self.turns.gives_way()
    }

    /// Somebody is about to be woken, and nothing is locked: whom the server keeps company runs
    /// before it.
    pub(crate) fn give_way(&mut self) {
        let Some(anywhere) = self.anywhere else { return };
        let keeps_some = self.place.is_some() || self.is_of_several;
        if keeps_some && !self.turns.give_way() {
            self.part(&anywhere);
        }
        self.woke = Instant::now();
    }

    /// The server goes on, and who was woken has had no fault: it runs elsewhere, where that was a
    /// moment ago. Here, the server would not have gone on so soon.
    pub(crate) fn goes_on(&mut self) {
        self.has_missed = self.woke.elapsed() < ELSEWHERE;
    }

    /// A thread of a process with a helper waits for a page: keeps it company, if it is the
    /// only one that does, and if the server may give way; draws it here, where it went away.
    /// Nobody where it is not known who waits.
    pub(crate) fn keep(
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
            self.part(&anywhere);
            (self.thread, self.in_a_row) = (thread, 0);
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row < FAULTS_IN_A_ROW {
            return None;
        }
        if !self.learn_whether_to_give_way() {
            self.part(&anywhere);
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
        // What the program may not be moved by (`EPERM`) leaves it where it is.
        let thread = pid(thread)?;
        let anywhere = sched_getaffinity(Some(thread)).ok()?;
        if !self.turns.go_first() {
            return None;
        }
        let _ = sched_setaffinity(Some(thread), place);
        Some(AffinityGuard { turns: Arc::clone(&self.turns), thread, anywhere })
    }

    /// A thread waits for a page, of several that take turns and that all workers answer: keeps all
    /// of them company, if the server may give way.
    pub(crate) fn keep_several(&mut self) {
        if !self.is_of_several {
            self.leave();
            self.is_of_several = self.learn_whether_to_give_way();
        }
    }

    /// Whether the server may run when nobody else would, and it is not fed.
    fn learn_whether_to_give_way(&mut self) -> bool {
        *self.may_give_way.get_or_insert_with(process::may_return_from_idle) && !self.turns.is_fed()
    }

    /// Something is to be done that takes longer than a fault: keeps nobody company for now.
    pub(crate) fn leave(&mut self) {
        if let Some(anywhere) = self.anywhere {
            self.part(&anywhere);
        }
        (self.thread, self.in_a_row) = (0, 0);
    }

    /// Server and helper may be anywhere again.
    fn part(&mut self, anywhere: &CpuSet) {
        (self.has_missed, self.is_of_several) = (false, false);
        self.turns.take_part();
        if self.place.take().is_some() {
            // It may have ended since, and its number be another's.
            let is_it = |thread: &Pid| is_helper(thread.as_raw_nonzero().get() as u32);
            self.helper = self.helper.filter(|thread| is_it(thread).unwrap_or(false));
            self.stay(anywhere);
            self.helper = None;
        }
    }

    /// What is refused stays where it is.
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

    /// Company that may be kept, all processors, a thread to keep it with, and this one in the
    /// place of its helper.
    fn company() -> Option<(Company, CpuSet, Other, Option<u32>)> {
        let company = Company::new(Arc::default());
        let all = company.anywhere?; // one processor: nothing to choose
        let own = Some(raw(rustix::thread::gettid()));
        process::may_return_from_idle().then(|| (company, all, other(), own))
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
        let mut company = Company::new(Arc::default());
        let Some(all) = company.anywhere else { return }; // one processor: nothing to choose
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let stranger = Pid::from_child(&child);
        let own = Some(raw(rustix::thread::gettid()));
        for _ in 0..2 * FAULTS_IN_A_ROW {
            company.woke = Instant::now() + ELSEWHERE;
            company.goes_on();
            assert!(company.keep(Some(raw(stranger)), this_process(), own).is_none());
        }
        assert!(company.place.is_none());
        assert_eq!((count(None), count(Some(stranger))), (all.count(), all.count()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_thread_is_kept_company_while_it_alone_faults() {
        let Some((mut company, all, other, own)) = company() else { return };
        for _ in 1..FAULTS_IN_A_ROW {
            assert!(company.keep(Some(raw(other.number)), this_process(), own).is_none());
            company.give_way();
            assert!(!company.gives_way());
        }
        company.keep(Some(raw(other.number)), this_process(), own);
        company.give_way();
        assert!(company.gives_way());
        assert_eq!((count(None), count(Some(other.number))), (1, all.count()));
        // It runs here, and then it went away.
        company.woke = Instant::now() - ELSEWHERE;
        company.goes_on();
        assert!(company.keep(Some(raw(other.number)), this_process(), own).is_none());
        company.woke = Instant::now() + ELSEWHERE;
        company.goes_on();
        let drawn = company.keep(Some(raw(other.number)), this_process(), own);
        if process::run_first().is_ok() {
            assert!(drawn.is_some());
            assert_eq!(count(Some(other.number)), 1);
        }
        drop(drawn);
        assert_eq!(count(Some(other.number)), all.count());
        assert!(company.keep(Some(raw(other.number)), this_process(), own).is_none());
        // One that is not known, or another one: back to where all was.
        company.keep(None, None, None);
        assert!(!company.gives_way());
        assert_eq!(count(None), all.count());
        company.keep(Some(raw(other.number) + 1), this_process(), own);
        assert!(!company.gives_way());
        assert_eq!(count(None), all.count());
    }

    #[test]
    fn several_threads_are_kept_company_anywhere() {
        let Some((mut company, all, other, own)) = company() else { return };
        for _ in 0..FAULTS_IN_A_ROW {
            company.keep(Some(raw(other.number)), this_process(), own);
        }
        company.give_way();
        assert!(company.gives_way());
        assert_eq!(count(None), 1);
        for _ in 0..2 {
            company.keep_several();
            company.give_way();
            assert!(company.gives_way());
            assert_eq!(count(None), all.count());
        }
        // The same thread, and now by itself.
        company.keep(Some(raw(other.number)), this_process(), own);
        company.give_way();
        assert!(!company.gives_way());
        company.keep_several();
        company.leave();
        company.give_way();
        assert!(!company.gives_way());
    }
}
