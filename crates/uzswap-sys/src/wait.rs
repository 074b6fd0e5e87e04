//! Waits for the processes below this one, and passes signals on to the first.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use super::signals::SignalMask;

/// Signals that ask a program to do something, and that whoever runs one passes on to it.
const PASSED_ON: [libc::c_int; 8] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGALRM,
];

/// Processes that lose their parent become children of this one, so that it can wait for them.
///
/// # Errors
///
/// The kernel's.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: sets an attribute of this process; no pointers are passed.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1_u64, 0_u64, 0_u64, 0_u64) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The signals of this thread, held back for [`Waiter::wait`]. To be made before there are other
/// threads, which would take them.
#[derive(Debug)]
pub struct Waiter {
    before: SignalMask,
    held: libc::sigset_t,
}

impl Waiter {
    /// Holds them back.
    pub fn new() -> Waiter {
        let mut held = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is ours to write.
        unsafe { libc::sigemptyset(held.as_mut_ptr()) };
        // SAFETY: the call has initialised it.
        let mut held = unsafe { held.assume_init() };
        for signal in PASSED_ON.into_iter().chain([libc::SIGCHLD]) {
            // SAFETY: `held` is an initialised set and the number is a signal.
            unsafe { libc::sigaddset(&raw mut held, signal) };
        }
        Waiter { before: SignalMask::block(&held), held }
    }

    /// The mask as it was before: what a program should start with.
    pub fn mask_before(&self) -> SignalMask {
        self.before
    }

    /// Waits until process `first` and all others below this one have ended; the wait status of
    /// `first`. Signals that are sent to this process are passed on to it; those that a terminal
    /// sends it has already. `see_dumped` is called for each process that has written a core file,
    /// while /proc still shows its end. Returns `None` once `is_over` says so.
    pub fn wait(
        &self,
        first: u32,
        see_dumped: &mut dyn FnMut(u32),
        is_over: &mut dyn FnMut() -> bool,
    ) -> Option<i32> {
        let mut status = None;
        while !is_over() {
            loop {
                let (pid, has_dumped) = match ended_process() {
                    Some((0, _)) => break,
                    Some(ended) => ended,
                    None => return status,
                };
                if has_dumped {
                    see_dumped(pid as u32);
                }
                let mut ended = 0;
                // SAFETY: the pointer is to an integer of our own.
                unsafe { libc::waitpid(pid, &raw mut ended, libc::WNOHANG) };
                if pid as u32 == first {
                    status = Some(ended);
                }
            }
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            let second = timespec(Duration::from_secs(1));
            // SAFETY: the pointers are to a set and a time that live, and to room for the answer.
            let signal = unsafe {
                libc::sigtimedwait(&raw const self.held, info.as_mut_ptr(), &raw const second)
            };
            // SAFETY: all zero is a siginfo, and the call has filled it where there was a signal.
            let info = unsafe { info.assume_init() };
            if PASSED_ON.contains(&signal) && info.si_code <= 0 && status.is_none() {
                // SAFETY: a signal to a process; no pointers are passed. It is gone, at worst.
                unsafe { libc::kill(first as libc::pid_t, signal) };
            }
        }
        None
    }
}

impl Default for Waiter {
    fn default() -> Self {
        Waiter::new()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.before.apply();
    }
}

/// A child that has ended and was not waited for, or 0, and whether it has written a core file;
/// `None` if there are no children.
fn ended_process() -> Option<(libc::pid_t, bool)> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is to room for the answer.
    let waited = unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), how) };
    // SAFETY: all zero is a siginfo, and the call has filled it where a child had ended.
    let info = unsafe { info.assume_init() };
    // SAFETY: the siginfo is of a child, or all zero.
    let pid = unsafe { info.si_pid() };
    (waited == 0).then_some((pid, info.si_code == libc::CLD_DUMPED))
}

/// Ends this process as another one ended that a signal ended: by the same signal, without a dump
/// of its memory. Returns where the signal does not do that.
pub fn end_by(signal: i32) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a limit of our own.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
    // SAFETY: back to what the kernel does by itself.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is ours to write.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: it is initialised now, and no old mask is asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), ptr::null_mut()) };
    // SAFETY: a signal to oneself.
    unsafe { libc::raise(signal) };
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}
