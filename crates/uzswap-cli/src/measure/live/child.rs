//! Runs a process to its end, and measures its time.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use uzswap_sys::interrupt;
use uzswap_sys::process::{CpuTime, cpu_time_of_children};

/// How often a process that waits for another checks for Ctrl-C.
const TICK: Duration = Duration::from_millis(100);

/// How long a process may take to end that was asked to.
const TERM_FOR: Duration = Duration::from_secs(3);

/// How a process ended.
#[derive(Debug)]
pub(crate) enum Exit {
    /// By itself, or by a signal that somebody else sent.
    Status(ExitStatus),
    /// The study killed it, as it took longer than `--timeout`.
    TimedOut,
    /// The study killed it, as the study itself was interrupted.
    Interrupted,
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    /// From before it was started until after it was waited for.
    pub(crate) real: Duration,
    /// Its own, and that of all descendants that were waited for.
    pub(crate) cpu: CpuTime,
}

/// Starts a command in a process group of its own and waits for it. After `timeout`, or an
/// interrupt of this process, the whole group is asked to end, and killed. A terminal's Ctrl-C
/// reaches this process alone. No two may be waited for at once: their processor times would be
/// mixed.
///
/// # Errors
///
/// The kernel's, of starting it or of waiting; `NotFound` for a program that is not there.
pub(crate) fn run_to_end(command: &mut Command, timeout: Option<Duration>) -> io::Result<Ended> {
    let cpu_before = cpu_time_of_children();
    let start = Instant::now();
    let mut child = command.process_group(0).spawn()?;
    let group = Pid::from_child(&child);
    let exit = match wait(group, start, timeout) {
        Ok(None) => Exit::Status(child.wait()?),
        other => {
            // So that `uzswap run` removes what it has made; gone, at worst.
            let _ = kill_process_group(group, Signal::TERM);
            let has_ended = wait_for(group, TERM_FOR);
            let _ = kill_process_group(group, Signal::KILL);
            has_ended?;
            child.wait()?;
            other?.expect("the process did not end by itself")
        }
    };
    let real = start.elapsed();
    let cpu = cpu_time_of_children();
    let cpu = CpuTime { user: cpu.user - cpu_before.user, sys: cpu.sys - cpu_before.sys };
    Ok(Ended { exit, real, cpu })
}

/// Waits until a child can be waited for, or the time is over.
fn wait_for(child: Pid, time: Duration) -> io::Result<()> {
    let pidfd = pidfd_open(child, PidfdFlags::empty())?;
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: 0 };
    match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits until a child can be waited for; another exit if it must be killed.
fn wait(child: Pid, start: Instant, timeout: Option<Duration>) -> io::Result<Option<Exit>> {
    let pidfd = pidfd_open(child, PidfdFlags::empty())?;
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(Some(Exit::TimedOut));
        }
        let tick = left.map_or(TICK, |left| left.min(TICK));
        let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(tick.subsec_nanos()).max(1) };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&tick)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        if interrupt::noted() {
            return Ok(Some(Exit::Interrupted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    #[test]
    fn an_end_is_told_from_a_timeout_and_from_a_missing_program() {
        let ended = run_to_end(&mut shell("exit 7"), None).unwrap();
        assert!(matches!(ended.exit, Exit::Status(status) if status.code() == Some(7)));
        let timeout = Duration::from_millis(50);
        let ended = run_to_end(&mut shell("sleep 600 & sleep 600"), Some(timeout)).unwrap();
        assert!(matches!(ended.exit, Exit::TimedOut) && ended.real >= timeout);
        let error = run_to_end(&mut Command::new("/no/such/program"), None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
