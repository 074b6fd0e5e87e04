//! The supervisor's threads that run before others, and at ordinary priority while they may not.

use std::fs;
use std::time::Duration;

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{Pid, gettid};

use crate::locks::{Lock, RAISED_THREADS};
use uzswap_sys::process;

/// The niceness of a thread that runs before others of its session.
const RAISED: i32 = -20;

/// Those threads.
#[derive(Debug)]
pub(crate) struct RaisedThreads {
    state: Lock<State, RAISED_THREADS>,
    /// The niceness that the supervisor was started with.
    ordinary: i32,
}

#[derive(Debug, Default)]
struct State {
    threads: Vec<Pid>,
    is_ordinary: bool,
}

/// The calling thread runs before others, as long as this is there.
pub(crate) struct Raised<'a> {
    all: &'a RaisedThreads,
    thread: Pid,
}

impl RaisedThreads {
    /// None yet. Their ordinary priority is that of the calling thread.
    pub(crate) fn new() -> RaisedThreads {
        let ordinary = getpriority_process(None).unwrap_or(0);
        RaisedThreads { state: Lock::default(), ordinary }
    }

    /// Has the calling thread run before others, if the kernel allows it and the share of the
    /// supervisor is not used up.
    pub(crate) fn raise_this(&self) -> Raised<'_> {
        let thread = gettid();
        process::prefer_this_thread();
        let mut state = self.state.lock();
        state.threads.push(thread);
        if state.is_ordinary {
            set_niceness(thread, self.ordinary);
        }
        Raised { all: self, thread }
    }

    /// Has the calling thread, which has inherited more from the one that started it, run at
    /// ordinary priority.
    pub(crate) fn lower_this(&self) {
        set_niceness(gettid(), self.ordinary);
    }

    /// How long all of them have run or were runnable, in sum; how much of processors this process
    /// has had where the kernel does not say.
    pub(crate) fn demanded(&self) -> Duration {
        let times: Option<Vec<Duration>> =
            self.state.lock().threads.iter().map(demanded_by).collect();
        let used = || {
            let used = process::cpu_time();
            used.user + used.sys
        };
        times.map_or_else(used, |times| times.iter().sum())
    }

    /// Has all of them run before others, or at ordinary priority.
    pub(crate) fn set_raised(&self, is_raised: bool) {
        let mut state = self.state.lock();
        state.is_ordinary = !is_raised;
        let niceness = if is_raised { RAISED } else { self.ordinary };
        state.threads.iter().for_each(|thread| set_niceness(*thread, niceness));
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        // Its number may be that of another process soon.
        self.all.state.lock().threads.retain(|thread| *thread != self.thread);
    }
}

/// How long a thread of this process has run or was runnable: the first two numbers of its file.
fn demanded_by(thread: &Pid) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    let ns: Option<Vec<u64>> =
        text.split_whitespace().take(2).map(|number| number.parse().ok()).collect();
    Some(Duration::from_nanos(ns?.iter().sum()))
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
            assert!(all.demanded() > Duration::ZERO);
            std::thread::scope(|scope| {
                let others = || {
                    let _raised = all.raise_this();
                    niceness()
                };
                assert_eq!(scope.spawn(others).join().unwrap(), all.ordinary);
            });
            all.set_raised(true);
            assert_eq!(niceness(), RAISED);
            let started_by_it = || {
                all.lower_this();
                niceness()
            };
            std::thread::scope(|scope| {
                assert_eq!(scope.spawn(started_by_it).join().unwrap(), all.ordinary);
            });
            drop(raised);
            all.set_raised(false);
            assert_eq!(niceness(), RAISED, "it is none of them any more");
        })
        .join()
        .unwrap();
    }
}
