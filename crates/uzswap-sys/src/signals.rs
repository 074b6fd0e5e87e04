//! Blocks signals during critical work, and sends them to other processes.

use std::fmt;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// The signals that end a process from outside.
pub(super) const FROM_OUTSIDE: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// A signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalNumber(pub i32);

impl fmt::Display for SignalNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            libc::SIGHUP => "SIGHUP",
            libc::SIGINT => "SIGINT",
            libc::SIGQUIT => "SIGQUIT",
            libc::SIGILL => "SIGILL",
            libc::SIGABRT => "SIGABRT",
            libc::SIGBUS => "SIGBUS",
            libc::SIGFPE => "SIGFPE",
            libc::SIGKILL => "SIGKILL",
            libc::SIGSEGV => "SIGSEGV",
            libc::SIGPIPE => "SIGPIPE",
            libc::SIGALRM => "SIGALRM",
            libc::SIGTERM => "SIGTERM",
            other => return write!(f, "signal {other}"),
        };
        f.write_str(name)
    }
}

/// SIGINT, SIGTERM and SIGHUP held back in this thread for as long as this lives. One that came in
/// between takes its effect when it is dropped, which for most programs is to end. Signals that
/// this process ignores (SIGHUP under nohup) stay ignored.
pub struct SignalsHeld {
    before: libc::sigset_t,
    // A signal mask belongs to the thread that set it: not Send.
    _thread: std::marker::PhantomData<*const ()>,
}

impl SignalsHeld {
    /// Holds them back.
    pub fn new() -> SignalsHeld {
        let mut before = empty_set();
        let mut held = empty_set();
        for signal in FROM_OUTSIDE.into_iter().filter(|signal| !is_ignored(*signal)) {
            // SAFETY: `held` is an initialised set and the number is a signal.
            unsafe { libc::sigaddset(&raw mut held, signal) };
        }
        // SAFETY: both sets are initialised; the call changes this thread's mask alone. The call
        // fails only for an unknown first argument.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, &raw mut before) };
        SignalsHeld { before, _thread: std::marker::PhantomData }
    }

    /// One that came since, if any did. Signals that were held back before this was made are not
    /// ours to act on.
    pub fn pending(&self) -> Option<SignalNumber> {
        let mut pending = empty_set();
        // SAFETY: the set is ours to write.
        unsafe { libc::sigpending(&raw mut pending) };
        FROM_OUTSIDE
            .into_iter()
            .filter(|signal| !is_ignored(*signal))
            .find(|&signal| contains(&pending, signal) && !contains(&self.before, signal))
            .map(SignalNumber)
    }

    /// The mask as it was before: what a child process should start with.
    pub fn mask_before(&self) -> SignalMask {
        SignalMask(self.before)
    }
}

impl Default for SignalsHeld {
    fn default() -> Self {
        SignalsHeld::new()
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        self.mask_before().apply();
    }
}

impl fmt::Debug for SignalsHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignalsHeld").field("pending", &self.pending()).finish_non_exhaustive()
    }
}

/// Which signals a thread holds back.
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

impl SignalMask {
    /// Holds back the signals of a set in this thread; the mask as it was before.
    pub(super) fn block(set: &libc::sigset_t) -> SignalMask {
        let mut before = empty_set();
        // SAFETY: both sets are initialised; the call changes this thread's mask alone. The call
        // fails only for an unknown first argument.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, &raw mut before) };
        SignalMask(before)
    }

    /// Holds back all signals in this thread. Safe after a fork.
    pub fn block_all() {
        let mut all = empty_set();
        // SAFETY: the set is ours to write.
        unsafe { libc::sigfillset(&raw mut all) };
        SignalMask(all).apply();
    }

    /// Of one signal.
    pub(super) fn of(signal: libc::c_int) -> SignalMask {
        let mut set = empty_set();
        // SAFETY: the set is initialised and the number is a signal.
        unsafe { libc::sigaddset(&raw mut set, signal) };
        SignalMask(set)
    }

    pub(super) fn set(&self) -> &libc::sigset_t {
        &self.0
    }

    /// Makes it the mask of this thread. Safe between fork and exec.
    pub fn apply(&self) {
        // SAFETY: the set is initialised; no old set is asked for. The call fails only for an
        // unknown first argument.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

impl fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignalMask").finish_non_exhaustive()
    }
}

/// From now on a write beyond the limit of file sizes (`ulimit -f`) fails with `EFBIG`: it does not
/// end this process with its temporary files left behind. Programs that it starts are as ever: a
/// handler, unlike an ignored signal, ends with exec.
pub fn report_size_limit_as_error() {
    extern "C" fn nothing(_signal: libc::c_int) {}
    handle(libc::SIGXFSZ, nothing, 0).expect("there is such a signal");
}

/// Calls `handler`, which may do only what is async-signal-safe, when `signal` comes. Calls of the
/// kernel that it interrupts go on; `flags` are added to that.
///
/// # Errors
///
/// The kernel's error: `EINVAL` for a signal that does not exist or cannot be handled.
pub(super) fn handle(
    signal: libc::c_int,
    handler: extern "C" fn(libc::c_int),
    flags: libc::c_int,
) -> io::Result<()> {
    let action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: integers, an integer array and an optional function, all of which may be zero.
    let mut action = unsafe { action.assume_init() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART | flags;
    // SAFETY: the handler has the signature of one without SA_SIGINFO.
    match unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the pointer is to room for a set, which the call initialises.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by the call above, which cannot fail for a valid pointer.
    unsafe { set.assume_init() }
}

fn contains(set: &libc::sigset_t, signal: libc::c_int) -> bool {
    // SAFETY: the set is initialised and the number is a signal.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// Whether this process ignores a signal.
pub(super) fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is set; the old one is written to room for it.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeroed, which is a valid action, and overwritten by the call.
    let action = unsafe { action.assume_init() };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// A process that is about to be stopped and runs again when this is dropped, or when this process
/// ends without dropping it: killed, out of memory. A small process watches for that; where there
/// can be none, dropping is all there is.
#[derive(Debug)]
pub struct RunsAgain {
    pid: i32,
    watcher: Option<(i32, PipeWriter)>,
}

impl RunsAgain {
    /// To be made before `pid` is stopped.
    ///
    /// # Panics
    ///
    /// If `pid` is not positive: those name groups of processes.
    pub fn new(pid: i32) -> RunsAgain {
        assert!(pid > 0, "{pid} is not one process");
        let watcher = io::pipe().ok().and_then(|(reader, writer)| {
            // SAFETY: the child makes async-signal-safe calls alone; `watch` does not return.
            match unsafe { libc::fork() } {
                0 => watch(pid, &reader, &writer),
                watcher => (watcher > 0).then_some((watcher, writer)),
            }
        });
        RunsAgain { pid, watcher }
    }
}

impl Drop for RunsAgain {
    fn drop(&mut self) {
        // ESRCH: it was killed meanwhile.
        let _ = send(self.pid, SignalNumber(libc::SIGCONT));
        let Some((watcher, mut writer)) = self.watcher.take() else { return };
        // It ends at this byte. If it is gone already, there is nothing to tell.
        let _ = writer.write_all(&[1]);
        drop(writer);
        // SAFETY: no status is asked for; the process is a child of ours.
        unsafe { libc::waitpid(watcher, std::ptr::null_mut(), 0) };
    }
}

/// The watcher: lets `pid` run again if the pipe ends without a byte in it.
fn watch(pid: i32, reader: &PipeReader, writer: &PipeWriter) -> ! {
    // SAFETY: no arguments. In a session of its own, what ends our group does not end it.
    unsafe { libc::setsid() };
    // SAFETY: the child's own copy, which nothing uses: the child ends by `_exit`.
    unsafe { libc::close(writer.as_raw_fd()) };
    let mut byte = 0_u8;
    let read = loop {
        // SAFETY: one byte into a byte of our own.
        let read = unsafe { libc::read(reader.as_raw_fd(), (&raw mut byte).cast(), 1) };
        if read >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break read;
        }
    };
    if read == 0 {
        // SAFETY: takes two numbers and touches no memory of ours.
        unsafe { libc::kill(pid, libc::SIGCONT) };
    }
    // SAFETY: ends the process at once, without the parent's exit handlers.
    unsafe { libc::_exit(0) }
}

/// Sends a signal to a process.
///
/// # Errors
///
/// The kernel's error: `ESRCH` where there is no such process, `EPERM` where it is not ours.
///
/// # Panics
///
/// If `pid` is not positive: those name groups of processes.
pub fn send(pid: i32, signal: SignalNumber) -> io::Result<()> {
    assert!(pid > 0, "{pid} is not one process");
    // SAFETY: takes two numbers and touches no memory of ours.
    match unsafe { libc::kill(pid, signal.0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
