//! Limits and timers of a process, which a program that it starts is to have.

use std::io;
use std::ptr;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit of the stack that this process was started with, if it was raised.
static STACK: OnceLock<Rlimit> = OnceLock::new();

/// Raises a smaller soft limit of the stack to so many bytes, for this process alone: the kernel
/// reads the limit whenever the first thread's stack grows.
///
/// # Errors
///
/// The hard limit in bytes, where that is smaller.
pub fn raise_stack(bytes: u64) -> Result<(), u64> {
    let limit = getrlimit(Resource::Stack);
    if limit.current.is_none_or(|current| current >= bytes) {
        return Ok(());
    }
    let maximum = limit.maximum;
    let raised = setrlimit(Resource::Stack, Rlimit { current: Some(bytes), maximum });
    raised.map_err(|_| maximum.unwrap_or(u64::MAX))?;
    let _ = STACK.set(limit);
    Ok(())
}

/// Limits and timers that a program would have if it had been started in the place of this process.
#[derive(Debug, Clone, Default)]
pub struct Inherited {
    /// Resource limits that were changed, as they were.
    limits: Vec<(Resource, Rlimit)>,
    /// Timers of setitimer(2), which exec keeps and fork does not.
    timers: Vec<(libc::c_int, libc::itimerval)>,
}

impl Inherited {
    /// Takes the timers from this process; for a program that is to have these resource limits,
    /// and that of the stack as it was before [`raise_stack`].
    pub fn take(mut limits: Vec<(Resource, Rlimit)>) -> Inherited {
        limits.extend(STACK.get().map(|limit| (Resource::Stack, *limit)));
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
