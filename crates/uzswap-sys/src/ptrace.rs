//! Traces a command up to its exit stop, where a process still has all of its memory.
//!
//! A tracer belongs to a thread: the thread that started the command must make all calls here. A
//! traced process stops at each signal and goes on only when [`poll`] is called.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::ptr;

use crate::inherited::Inherited;
use crate::signals::{self, SignalMask, SignalNumber};

/// The event of a stop that is a group stop or the first one: linux/ptrace.h. libc has it for some
/// C libraries only.
const PTRACE_EVENT_STOP: i32 = 128;

/// The signals that stop a process.
const STOP_SIGNALS: [i32; 4] = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// An event of a child or a traced process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The process has ended and is waited for.
    Ended(ExitStatus),
    /// The process is about to end: it waits, with its memory, for [`resume`].
    AtExit,
    /// The process has made another one, which is traced too.
    Forked(i32),
    /// Something that was dealt with: a signal passed on, a stop.
    Handled,
}

/// Starts a command with the signal mask `mask` and what it inherits; with `traced`, it offers
/// itself for tracing. Where it cannot (a sandbox), it runs as any other. The kernel kills a traced
/// command if the thread that calls this ends before it.
///
/// # Errors
///
/// As [`Command::spawn`].
pub fn spawn(
    command: &mut Command,
    mask: SignalMask,
    inherited: Inherited,
    traced: bool,
) -> io::Result<Child> {
    let before_exec = move || {
        mask.apply();
        inherited.give()?;
        if traced {
            // SAFETY: the request takes no pointers. `attach` sees a refusal.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, ptr::null_mut::<u8>(), 0_usize) };
            // While `attach` hands it over, the process is stopped and has no tracer.
            // SAFETY: the option takes a signal number, no pointer.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls that are async-signal-safe,
    // and allocates nothing.
    unsafe { command.pre_exec(before_exec) };
    command.spawn()
}

/// Traces a child that was started by [`spawn`] and has reached its program. With `forks`, the
/// processes that it makes as well. The child is killed if this process ends before it.
///
/// # Errors
///
/// The kernel's error where tracing is not allowed. The child then runs, untraced.
pub fn attach(child: &Child, forks: bool) -> io::Result<()> {
    let pid = child.id() as i32; // a pid_t that std gives as u32
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    if status.lines().any(|line| line == "TracerPid:\t0") {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    // The process stops when its program is loaded. From there it is handed over, stopped, to the
    // newer kind of tracing, which does not disturb job control and has the option to end with us.
    wait(pid, libc::__WALL)?;
    request(libc::PTRACE_DETACH, pid, libc::SIGSTOP as usize)?;
    let seized = wait(pid, libc::WUNTRACED).and_then(|_| {
        let fork_options = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
        let options = libc::PTRACE_O_TRACEEXIT
            | libc::PTRACE_O_EXITKILL
            | if forks { fork_options } else { 0 };
        request(libc::PTRACE_SEIZE, pid, options as usize)
    });
    signals::send(pid, SignalNumber(libc::SIGCONT))?;
    seized
}

/// The event of `pid`, a child or a traced process, if there was one. It goes on, except at its
/// exit stop.
///
/// # Errors
///
/// The kernel's error; `ECHILD` where it is neither or was waited for.
pub fn poll(pid: i32) -> io::Result<Option<Event>> {
    let Some(status) = wait(pid, libc::__WALL | libc::WNOHANG)? else { return Ok(None) };
    let ended = ExitStatus::from_raw(status);
    if !libc::WIFSTOPPED(status) {
        return Ok(Some(Event::Ended(ended)));
    }
    let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
    match event {
        libc::PTRACE_EVENT_EXIT => return Ok(Some(Event::AtExit)),
        libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
            let mut made: libc::c_ulong = 0;
            // SAFETY: the request writes one unsigned long to the address it is given.
            let got = unsafe {
                libc::ptrace(libc::PTRACE_GETEVENTMSG, pid, ptr::null_mut::<u8>(), &raw mut made)
            };
            resume(pid)?;
            if got == 0 {
                return Ok(Some(Event::Forked(made as i32))); // the kernel's pid_t
            }
        }
        // A stop of the whole process: it stays stopped until it gets SIGCONT.
        PTRACE_EVENT_STOP if STOP_SIGNALS.contains(&signal) => {
            gone_is_fine(request(libc::PTRACE_LISTEN, pid, 0))?;
        }
        // A signal on its way to the process.
        0 => gone_is_fine(request(libc::PTRACE_CONT, pid, signal as usize))?,
        _ => resume(pid)?,
    }
    Ok(Some(Event::Handled))
}

/// Lets a process go on from its exit stop.
///
/// # Errors
///
/// The kernel's error. A process that was killed meanwhile is no error.
pub fn resume(pid: i32) -> io::Result<()> {
    gone_is_fine(request(libc::PTRACE_CONT, pid, 0))
}

/// Ends the tracing of a process, which runs on.
///
/// # Errors
///
/// The kernel's error; `ESRCH` where it is gone or not traced.
pub fn detach(pid: i32) -> io::Result<()> {
    // Stopped already at its exit, or running: only a stopped process can be let go.
    if request(libc::PTRACE_DETACH, pid, 0).is_ok() {
        return Ok(());
    }
    request(libc::PTRACE_INTERRUPT, pid, 0)?;
    let status = wait(pid, libc::__WALL)?.unwrap_or(0);
    if !libc::WIFSTOPPED(status) {
        return Ok(());
    }
    let signal = if status >> 16 == 0 { libc::WSTOPSIG(status) } else { 0 };
    gone_is_fine(request(libc::PTRACE_DETACH, pid, signal as usize))
}

fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

/// A request whose argument is a number.
fn request(what: Request, pid: i32, argument: usize) -> io::Result<()> {
    // SAFETY: the callers' requests (CONT, LISTEN, INTERRUPT, DETACH, SEIZE) take a number and no
    // pointer, and act on a process of ours.
    match unsafe { libc::ptrace(what, pid, ptr::null_mut::<u8>(), argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The status of one process that changed its state; `None` where `WNOHANG` found no change.
fn wait(pid: i32, flags: libc::c_int) -> io::Result<Option<libc::c_int>> {
    let mut status = 0;
    loop {
        // SAFETY: the status is ours to write.
        match unsafe { libc::waitpid(pid, &raw mut status, flags) } {
            0 => return Ok(None),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ => return Ok(Some(status)),
        }
    }
}
