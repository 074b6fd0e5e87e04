//! Turns Ctrl-C into a flag, so a command can end its children and remove its files first.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

use super::signals::{FROM_OUTSIDE, handle, is_ignored};

/// The signal that came, 0 before any.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

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
    for signal in FROM_OUTSIDE.into_iter().filter(|signal| !is_ignored(*signal)) {
        handle(signal, note, libc::SA_RESETHAND)?;
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
