//! The supervisor's threads that run before others, and at ordinary priority while they may not.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{Pid, gettid};

use uzswap_sys::process;

/// The niceness of a thread that runs before others of its session.
const RAISED: i32 = -20;

/// Those threads.
#[derive(Debug)]
pub(super) struct RaisedThreads {
    state: Mutex<State>,
    /// The niceness that the supervisor was started with.
    ordinary: i32,
}

#[derive(Debug, Default)]
struct State {
    threads: Vec<Pid>,
    is_ordinary: bool,
}

/// The calling thread runs before others, as long as this is there.
pub(super) struct Raised<'a> {
    all: &'a RaisedThreads,
    thread: Pid,
}

impl RaisedThreads {
    /// None yet. Their ordinary priority is that of the calling thread.
    pub(super) fn new() -> RaisedThreads {
        let ordinary = getpriority_process(None).unwrap_or(0);
        RaisedThreads { state: Mutex::default(), ordinary }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the calling thread run before others, if the kernel allows it and the share of the
    /// supervisor is not used up.
    pub(super) fn raise_this(&self) -> Raised<'_> {
        let thread = gettid();
        process::prefer_this_thread();
        let mut state = self.state();
        state.threads.push(thread);
        if state.is_ordinary {
            set_niceness(thread, self.ordinary);
        }
        Raised { all: self, thread }
    }

    /// Has all of them run before others, or at ordinary priority.
    pub(super) fn set_raised(&self, is_raised: bool) {
        let mut state = self.state();
        state.is_ordinary = !is_raised;
        let niceness = if is_raised { RAISED } else { self.ordinary };
        state.threads.iter().for_each(|thread| set_niceness(*thread, niceness));
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        // Its number may be that of another process soon.
        self.all.state().threads.retain(|thread| *thread != self.thread);
    }
}

/// Best effort: what is refused stays as it is. A thread that the kernel did not raise is ordinary
/// already.
fn set_niceness(thread: Pid, niceness: i32) {
    let _ = setpriority_process(Some(thread), niceness);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn niceness() -> i32 {
        getpriority_process(Some(gettid())).unwrap()
    }

    #[test]
    fn threads_are_raised_until_they_end() {
        std::thread::spawn(|| {
            let all = RaisedThreads::new();
            let raised = all.raise_this();
            if niceness() != RAISED {
                return; // an ordinary user's
            }
            all.set_raised(false);
            assert_eq!(niceness(), all.ordinary);
            std::thread::scope(|scope| {
                let others = || {
                    let _raised = all.raise_this();
                    niceness()
                };
                assert_eq!(scope.spawn(others).join().unwrap(), all.ordinary);
            });
            all.set_raised(true);
            assert_eq!(niceness(), RAISED);
            drop(raised);
            all.set_raised(false);
            assert_eq!(niceness(), RAISED, "it is none of them any more");
        })
        .join()
        .unwrap();
    }
}
