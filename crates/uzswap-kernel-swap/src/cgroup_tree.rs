//! Cgroups as folders: which are in one, ending what runs in them, removing them.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::kernel_files::while_busy;

/// How long programs that are killed may take to be gone.
const KILLED_WITHIN: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(2);

/// Cgroups in a cgroup, by name.
pub(super) fn children(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Processes in a cgroup, without those below it.
fn processes(folder: &Path) -> io::Result<Vec<Pid>> {
    match fs::read_to_string(folder.join("cgroup.procs")) {
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        text => Ok(text?.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()),
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// Ends all processes in a cgroup and below it, and waits until they are gone.
pub(super) fn kill_all(folder: &Path) -> io::Result<()> {
    for child in children(folder) {
        kill_all(&folder.join(child))?;
    }
    let since = Instant::now();
    loop {
        let all = processes(folder)?;
        if all.is_empty() {
            return Ok(());
        }
        for pid in all {
            // Held by a descriptor while it is looked whether it is there: no other process has
            // got its number.
            let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            if processes(folder)?.contains(&pid) {
                let _ = pidfd_send_signal(&held, Signal::KILL); // it may have ended
            }
        }
        if since.elapsed() > KILLED_WITHIN {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Ends all processes in a cgroup, and removes it and those below it; `false` where there is none.
pub(super) fn remove_all(folder: &Path) -> io::Result<bool> {
    if !folder.exists() {
        return Ok(false);
    }
    kill_all(folder)?;
    for child in children(folder) {
        remove_all(&folder.join(child))?;
    }
    // A process that has just ended may be in it for a moment.
    match while_busy(|| fs::remove_dir(folder)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(true),
    }
}
