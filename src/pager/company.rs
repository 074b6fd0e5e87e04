//! Where the server runs: beside the thread that faults.
//!
//! A fault wakes the server, and the server the program. The scheduler likes an idle processor for
//! whom it wakes, and on a virtual machine that takes some 35 us, seven times what the fault itself
//! does. While all faults come from one thread, the server stays on one processor and has the
//! thread woken there, at 2 us a fault. So does the helper: where it runs on another one than the
//! program, each run of pages that it moves interrupts the program (25 us for a single page).

use std::fs::File;
use std::io::Read;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// Faults of one thread in a row that it takes to keep it company.
const FAULTS_IN_A_ROW: u32 = 16;

/// The server's company.
#[derive(Debug)]
pub(super) struct Company {
    /// The thread of the last fault, and how many of its faults were the last ones.
    thread: u32,
    in_a_row: u32,
    /// Where server and helper stay.
    place: Option<CpuSet>,
    /// Of that thread's process.
    helper: Option<Pid>,
    /// Where the server may be; `None` where there is but one processor.
    anywhere: Option<CpuSet>,
}

/// A thread that is to be woken in one place; dropped once it is woken, it may run where it could
/// before.
pub(super) struct Drawn {
    thread: Pid,
    anywhere: CpuSet,
}

impl Drop for Drawn {
    fn drop(&mut self) {
        // It has ended where this is refused.
        let _ = sched_setaffinity(Some(self.thread), &self.anywhere);
    }
}

impl Company {
    /// Of this thread, which the server inherits its processors from.
    pub(super) fn new() -> Company {
        let anywhere = sched_getaffinity(None).ok().filter(|set| set.count() > 1);
        Company { thread: 0, in_a_row: 0, place: None, helper: None, anywhere }
    }

    /// A thread of the process with this helper waits for a page: has it woken here, if it is the
    /// only one that does. Where `other_is_busy`, one processor besides this one is: of two there
    /// is none then that the scheduler would like better, and 2 us are saved. What the program may
    /// not be moved by (`EPERM`) leaves it where it is.
    pub(super) fn draw(
        &mut self,
        thread: u32,
        helper: Option<u32>,
        other_is_busy: bool,
    ) -> Option<Drawn> {
        let anywhere = self.anywhere?;
        if thread != self.thread {
            (self.thread, self.in_a_row) = (thread, 0);
            if self.place.take().is_some() {
                let _ = sched_setaffinity(None, &anywhere);
                let helper = self.helper.take();
                let _ = helper.map(|helper| sched_setaffinity(Some(helper), &anywhere));
            }
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row < FAULTS_IN_A_ROW {
            return None;
        }
        let thread = pid(thread)?;
        if self.place.is_none() {
            let mut place = CpuSet::new();
            place.set(last_processor(thread)?);
            sched_setaffinity(None, &place).ok()?;
            self.place = Some(place);
            self.helper = helper.and_then(pid);
            let _ = self.helper.map(|helper| sched_setaffinity(Some(helper), &place));
        }
        if other_is_busy && anywhere.count() == 2 {
            return None;
        }
        let anywhere = sched_getaffinity(Some(thread)).ok()?;
        sched_setaffinity(Some(thread), self.place.as_ref()?).ok()?;
        Some(Drawn { thread, anywhere })
    }
}

fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(number as i32) // at most 2^22
}

/// The processor that a thread ran on last.
fn last_processor(thread: Pid) -> Option<usize> {
    let path = format!("/proc/{}/stat", thread.as_raw_nonzero());
    let mut text = String::new();
    File::open(path).ok()?.read_to_string(&mut text).ok()?;
    // The 39th field; the second, in parentheses, may have spaces in it.
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_drawn_while_it_alone_faults() {
        let mut company = Company::new();
        let Some(all) = company.anywhere else { return }; // one processor: nothing to choose
        let (started, start) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            started.send(rustix::thread::gettid()).unwrap();
            let _ = ended.recv();
        });
        let thread = start.recv().unwrap();
        let number = thread.as_raw_nonzero().get() as u32;
        let count = |thread| sched_getaffinity(thread).unwrap().count();
        for _ in 1..FAULTS_IN_A_ROW {
            assert!(company.draw(number, None, false).is_none());
        }
        let drawn = company.draw(number, None, false);
        assert!(drawn.is_some());
        assert_eq!((count(None), count(Some(thread))), (1, 1));
        drop(drawn);
        assert_eq!((count(None), count(Some(thread))), (1, all.count()));
        // Another one: back to where all was.
        assert!(company.draw(number + 1, None, false).is_none());
        assert_eq!(count(None), all.count());
        drop(end);
        other.join().unwrap();
    }
}
