//! Limits and timers of a process, which a program that it starts is to have.

use std::io;
use std::ptr;

use rustix::process::{Resource, Rlimit, setrlimit};

/// Limits and timers that a program would have if it had been started in the place of this process.
#[derive(Debug, Clone, Default)]
pub struct Inherited {
    /// Resource limits that were changed, as they were.
    limits: Vec<(Resource, Rlimit)>,
    /// Timers of setitimer(2), which exec keeps and fork does not.
    timers: Vec<(libc::c_int, libc::itimerval)>,
}

impl Inherited {
    /// Takes the timers from this process; for a program that is to have these resource limits.
    pub fn take(limits: Vec<(Resource, Rlimit)>) -> Inherited {
        let mut timers = Vec::new();
        let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let disarmed = libc::itimerval { it_interval: none, it_value: none };
        for which in [libc::ITIMER_REAL, libc::ITIMER_VIRTUAL, libc::ITIMER_PROF] {
            let mut before = disarmed;
            // SAFETY: both point to a timer's value of our own.
            let done = unsafe { libc::setitimer(which, &raw const disarmed, &raw mut before) };
            if done == 0 && (before.it_value.tv_sec, before.it_value.tv_usec) != (0, 0) {
                timers.push((which, before));
            }
        }
        Inherited { limits, timers }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.timers.is_empty()
    }

    /// Gives them to the calling process: between fork and exec, without an allocation.
    pub(crate) fn give(&self) -> io::Result<()> {
        for (resource, limit) in &self.limits {
            setrlimit(*resource, *limit)?;
        }
        for (which, timer) in &self.timers {
            // SAFETY: the pointer is to a timer's value; nothing is written where null is given.
            unsafe { libc::setitimer(*which, timer, ptr::null_mut()) };
        }
        Ok(())
    }
}
