//! Ctrl-C as a flag, so that whoever started children or made files can clean up first.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};

/// The signal that came, 0 before any.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

const WATCHED: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

extern "C" fn note(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

/// From now on the first SIGINT, SIGTERM or SIGHUP is only noted; a second one ends the process as
/// ever. A signal that is ignored (`nohup`) stays so.
///
/// # Errors
///
/// The kernel's error.
pub fn watch() -> io::Result<()> {
    for signal in WATCHED {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: no new action is given, and the old one goes into our own struct.
        if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: integers, an integer array and an optional function, all zero before the call
        // filled them; each of those may be zero.
        let mut action = unsafe { action.assume_init() };
        if action.sa_sigaction == libc::SIG_IGN {
            continue;
        }
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
        // SAFETY: `note` has the signature of a handler without SA_SIGINFO, and only writes an
        // atomic.
        if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Whether a watched signal has come.
pub fn noted() -> bool {
    SIGNAL.load(Ordering::Relaxed) != 0
}

/// Ends the process by the signal that was noted, so that its parent sees which. Returns if none
/// was.
pub fn end_if_noted() {
    let signal = SIGNAL.load(Ordering::Relaxed);
    if signal != 0 {
        // SAFETY: the handler was reset when the signal came, so this ends the process.
        unsafe { libc::raise(signal) };
    }
}
