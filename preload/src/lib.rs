//! The library that `uzswap run` puts into a program: it starts a thread, the helper, which gives
//! the supervisor a userfaultfd of the program's memory and carries out what only the program's own
//! threads may do: move pages aside, and give memory back.
//!
//! The helper has its own table of files, so the program sees none of ours and may close all of
//! its own. It uses its own stack and system calls alone: no C library, no thread-local memory, no
//! memory of the program, since any of that may be on its way out of it.

#![no_std]

mod call;
mod helper;
#[allow(dead_code, reason = "the supervisor uses the rest")]
mod protocol;

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use call::call;
use protocol::{Control, SOCKET_VARIABLE, kind};

/// Longest path of a socket: `sun_path` of unix(7).
const PATH_BYTES: usize = 108;

/// The supervisor's socket. Written once, before the program's `main`.
struct SocketPath(UnsafeCell<[u8; PATH_BYTES]>);

// SAFETY: written by the constructor alone, when there is one thread.
unsafe impl Sync for SocketPath {}

static SOCKET_PATH: SocketPath = SocketPath(UnsafeCell::new([0; PATH_BYTES]));

/// Parts of the program's memory are watched. In the program's own memory, so that a fork has it.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// What is to be known of the helper before a fork: nothing where there is none, as in a child of
/// whatever kind of fork, which finds this memory all zero.
struct ForForks {
    /// What the helper shares with the supervisor.
    control: AtomicPtr<Control>,
    /// The page whose touch tells of a fork.
    page: AtomicUsize,
}

/// Null where there was no such memory to be had.
static FOR_FORKS: AtomicPtr<ForForks> = AtomicPtr::new(core::ptr::null_mut());

#[link(name = "c")]
unsafe extern "C" {
    safe static environ: *const *const c_char;
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    safe fn __errno_location() -> *mut c_int;
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = start;

/// Runs before the program's `main`.
extern "C" fn start() {
    let Some(path) = variable(SOCKET_VARIABLE.as_bytes()) else { return };
    if path.is_empty() || path.len() >= PATH_BYTES {
        return;
    }
    // Under valgrind, which has its own idea of threads and memory, the program runs without us.
    const OF_VALGRIND: &[u8] = b"/vgpreload_";
    let preloaded = variable(b"LD_PRELOAD").unwrap_or_default();
    if preloaded.windows(OF_VALGRIND.len()).any(|part| part == OF_VALGRIND) {
        return;
    }
    // SAFETY: this is the only thread yet.
    let room = unsafe { &mut *SOCKET_PATH.0.get() };
    room[..path.len()].copy_from_slice(path);
    // SAFETY: the handler is a function of this library, which is never unloaded.
    unsafe { pthread_atfork(Some(will_fork), None, Some(forked)) };
    FOR_FORKS.store(helper::memory_for_forks(), Ordering::Relaxed);
    // Its children have helpers in any case.
    if !insists_on_one_thread() {
        helper::start(kind::HELLO_EXEC);
    }
}

/// Whether this is a zygote of chromium or electron: it ends itself where it finds that it has more
/// threads than one (the links of /proc/self/task), as it forks all that it is asked for.
fn insists_on_one_thread() -> bool {
    const ZYGOTE: &[u8] = b"\0--type=zygote\0"; // mostly the first argument
    let mut arguments = [0; 1024];
    let bytes = helper::read_file(c"/proc/self/cmdline", &mut arguments);
    arguments[..bytes].windows(ZYGOTE.len()).any(|part| part == ZYGOTE)
}

/// Runs before a fork. Where that matters to the supervisor, it goes on once that is prepared.
extern "C" fn will_fork() {
    // SAFETY: null, or memory that stays mapped and is all atomics.
    let Some(for_forks) = (unsafe { FOR_FORKS.load(Ordering::Relaxed).as_ref() }) else { return };
    // Null where there is no helper, or it is not ready; the page was told before.
    let control = for_forks.control.load(Ordering::Acquire);
    // SAFETY: null, or the helper's memory, which stays mapped and is all atomics.
    let Some(control) = (unsafe { control.as_ref() }) else { return };
    let number = control.forks.fetch_add(1, Ordering::Relaxed).saturating_add(1);
    let from = control.tell_forks_from.load(Ordering::Relaxed);
    if from != 0 && number >= from {
        helper::touch(for_forks.page.load(Ordering::Relaxed));
    }
}

/// Runs in the child of a fork, which has one thread.
extern "C" fn forked() {
    helper::start(kind::HELLO_FORK);
}

/// The value of a variable of the environment.
fn variable(name: &[u8]) -> Option<&'static [u8]> {
    let mut at = environ;
    if at.is_null() {
        return None;
    }
    loop {
        // SAFETY: the environment is an array of pointers that ends with a null pointer.
        let text = unsafe { *at };
        if text.is_null() {
            return None;
        }
        // SAFETY: each is a string of C.
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        if let Some(value) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(value);
        }
        // SAFETY: this was not the null pointer at the end.
        at = unsafe { at.add(1) };
    }
}

const MADV_DONTNEED: c_int = 4;
const MADV_FREE: c_int = 8;

/// madvise(2), with MADV_FREE done at once where memory is watched: what it frees later nobody is
/// told of, so such pages could not leave memory any more. The kernel may free them at once too.
///
/// # Safety
///
/// As the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int {
    let advice = match advice {
        MADV_FREE if WATCHED.load(Ordering::Relaxed) => MADV_DONTNEED,
        other => other,
    };
    // SAFETY: it is the caller's call.
    match unsafe { call(call::MADVISE, [address.addr(), length, advice as usize, 0, 0, 0]) } {
        Ok(_) => 0,
        Err(errno) => {
            // SAFETY: a pointer to this thread's errno.
            unsafe { *__errno_location() = errno as c_int };
            -1
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    helper::end_program(
        b"uzswap: the helper failed; the program was ended, as parts of its memory \
                          are kept outside it\n",
    )
}
