//! Some programs cannot have the helper among their threads: those that set a seccomp filter for
//! all of them (`SECCOMP_FILTER_FLAG_TSYNC`), and those that stop them all (leak sanitizer). The
//! kernel refuses such a filter while the helper, which has one of its own, is one of them. So the
//! helper becomes a process *apart*, which has the same memory, and a *witness* stays behind: a
//! thread without a filter of its own that does nothing.
//!
//! ```text
//!  thread, before its call      witness                  helper         supervisor
//!    starts it ----------------> gives up its rights
//!    touches the page of forks ------------------------------------------> takes the witness for
//!                                                         <-- APART ------ the helper's thread
//!                                                        starts the process apart, and ends
//!    goes on                     <-- a byte by the pipe -- the process apart
//! ```
//!
//! The pipe tells each side of the other's end. The witness ends with its program, also by
//! execve(2), and the process apart with it. If that ends first, memory of the program may be gone:
//! the kernel kills the program, by the signal that it sends for the pipe.

use core::arch::naked_asm;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::call::{self, start_thread};
use crate::exec::{execve_by_call, execveat_by_call};
use crate::helper::{self, THREAD, ask, close};
use crate::protocol::Control;
use crate::{FOR_FORKS, ForForks};

/// The witness's stack: all that it has.
const STACK_BYTES: usize = 16 << 10;

/// How long the helper is waited for, in turns of a millisecond.
const TURNS_MAX: u32 = 2000;

/// How far a program has come.
pub(crate) mod stage {
    /// The helper is a thread.
    pub(crate) const THREAD: u32 = 0;
    /// A thread of the program sees to it.
    pub(crate) const STARTS: u32 = 1;
    /// The witness is there, and the helper may begin.
    pub(crate) const WITNESSED: u32 = 2;
    /// The helper has begun.
    pub(crate) const PARTS: u32 = 3;
    /// The helper is a process apart, and the program ends if that does.
    pub(crate) const APART: u32 = 4;
    /// It is not to be had: the helper is a thread.
    pub(crate) const REFUSED: u32 = 5;
}

/// syscall(2) of the C library, for a program that sets a filter for all threads by it: the C
/// libraries have no function for seccomp(2). Others start a program by it.
///
/// # Safety
///
/// As that of the C library.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() -> isize {
    naked_asm!(
        "cmp rdi, {execve}",
        "je 4f",
        "cmp rdi, {execveat}",
        "je 5f",
        "cmp rdi, {seccomp}",
        "jne 2f",
        "cmp rsi, {set_filter}",
        "jne 2f",
        "test dl, {all_threads}",
        "jz 2f",
        // Without a filter it is the question whether the kernel knows the flag.
        "test rcx, rcx",
        "jz 2f",
        // Five of them: the stack is aligned then.
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "call {prepare}",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, qword ptr [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "3:",
        "neg eax",
        "push rax",
        "call qword ptr [rip + __errno_location@GOTPCREL]",
        "pop rcx",
        "mov dword ptr [rax], ecx",
        "mov rax, -1",
        "ret",
        // The same arguments, each one place before.
        "4:",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "jmp {execve_by_call}",
        "5:",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov rcx, r8",
        "mov r8, r9",
        "jmp {execveat_by_call}",
        execve = const call::EXECVE,
        execveat = const call::EXECVEAT,
        execve_by_call = sym execve_by_call,
        execveat_by_call = sym execveat_by_call,
        seccomp = const call::SECCOMP,
        set_filter = const 1,
        all_threads = const 1,
        prepare = sym will_filter_all,
    )
}

/// Runs before a filter is set for all threads. Where the helper cannot leave, the kernel refuses
/// the filter.
extern "C" fn will_filter_all() {
    part_from_helper();
}

/// Has the helper become a process apart, if there is one.
pub(crate) fn part_from_helper() {
    // SAFETY: null, or memory that stays mapped and is all atomics.
    let Some(for_forks) = (unsafe { FOR_FORKS.load(Ordering::Relaxed).as_ref() }) else { return };
    let stage = &for_forks.stage;
    let (none, starts) = (stage::THREAD, stage::STARTS);
    if stage.compare_exchange(none, starts, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        let has_parted = part(for_forks);
        let reached = if has_parted.is_some() { stage::APART } else { stage::REFUSED };
        stage.store(reached, Ordering::Release);
    } else {
        // Another thread does the same.
        let _ = wait(|| matches!(stage.load(Ordering::Acquire), stage::APART | stage::REFUSED));
    }
}

fn part(for_forks: &ForForks) -> Option<()> {
    let is_met = || !for_forks.control.load(Ordering::Acquire).is_null();
    wait(|| is_met() || for_forks.comes.load(Ordering::Acquire) == 0)?;
    // SAFETY: null, or the helper's memory, which stays mapped and is all atomics.
    let control = unsafe { for_forks.control.load(Ordering::Acquire).as_ref() }?;
    let thread = for_forks.thread.load(Ordering::Relaxed);
    let mut pipe = [0_u32; 2];
    const CLOEXEC: usize = 0o2_000_000;
    ask(call::PIPE, [pipe.as_mut_ptr().addr(), CLOEXEC, 0, 0, 0, 0]).ok()?;
    for_forks.pipe.store(pipe[1], Ordering::Relaxed);
    let parted = leave_witness(for_forks, pipe[0]).and_then(|()| {
        control.wants_apart.store(1, Ordering::Release);
        helper::touch(for_forks.page.load(Ordering::Relaxed));
        let stage = &for_forks.stage;
        let has_parted = || stage.load(Ordering::Acquire) >= stage::APART;
        // A helper that has begun is waited for: it is about to take the pipe.
        if wait(has_parted).is_none() && !advance(stage, stage::REFUSED) {
            wait(has_parted)?;
        }
        (stage.load(Ordering::Acquire) == stage::APART).then_some(())?;
        let pid = ask(call::GETPID, [0; 6]).ok()?;
        // Until it is no thread of this process any more.
        wait(|| ask(call::TGKILL, [pid, thread, 0, 0, 0, 0]).is_err())
    });
    // Theirs are in tables of their own.
    pipe.into_iter().for_each(close);
    parted
}

/// Goes on from the stage in which there is a witness; `false` where it is another by now.
pub(crate) fn advance(stage: &AtomicU32, to: u32) -> bool {
    let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
    stage.compare_exchange(stage::WITNESSED, to, acquire, relaxed).is_ok()
}

/// Starts the witness, which has one end of the pipe.
fn leave_witness(for_forks: &ForForks, pipe: u32) -> Option<()> {
    let stack = helper::new_stack(STACK_BYTES)?;
    let first: *mut Witness = ptr::with_exposed_provenance_mut(stack);
    // SAFETY: memory that was mapped just now, for this.
    unsafe { first.write(Witness { for_forks: ptr::from_ref(for_forks), pipe }) };
    let started = helper::without_signals(|| {
        // SAFETY: the stack is the witness's alone, and `bear_witness` keeps to it.
        unsafe { start_thread(THREAD, stack + STACK_BYTES, bear_witness, stack) }
    });
    started.ok()?;
    let is_there = || for_forks.stage.load(Ordering::Acquire) == stage::WITNESSED;
    wait(is_there)
}

/// What a witness begins with.
struct Witness {
    for_forks: *const ForForks,
    pipe: u32,
}

extern "C" fn bear_witness(stack: usize) -> ! {
    let first: *const Witness = ptr::with_exposed_provenance(stack);
    // SAFETY: the thread that started the witness wrote it there; it stays mapped.
    let Witness { for_forks, pipe } = unsafe { &*first };
    // SAFETY: memory that stays mapped and is all atomics.
    let ForForks { stage, has_written, .. } = unsafe { &**for_forks };
    let pipe = *pipe as usize;
    const F_SETFL: usize = 4;
    const F_SETOWN: usize = 8;
    const F_SETSIG: usize = 10;
    const ASYNC: usize = 0o2_0000;
    let set = |what, value| ask(call::FCNTL, [pipe, what, value, 0, 0, 0]);
    let read = || {
        let mut byte = 0_u8;
        ask(call::READ, [pipe, ptr::from_mut(&mut byte).addr(), 1, 0, 0, 0]) == Ok(1)
    };
    let came = helper::keep_only(Some(pipe as u32))
        // With the program's rights: by these the kernel sends the signal.
        .and_then(|()| ask(call::GETPID, [0; 6]))
        .and_then(|pid| set(F_SETOWN, pid))
        .and_then(|_| set(F_SETSIG, helper::SIGKILL));
    if came.is_ok() {
        helper::give_up_user();
        stage.store(stage::WITNESSED, Ordering::Release);
        // The kernel sends the signal of a write after the byte can be read. The writer must be
        // back from its call before a signal may end the program.
        let is_written = || has_written.load(Ordering::Acquire) == 1;
        if read() && wait(is_written).is_some() && set(F_SETFL, ASYNC).is_ok() {
            stage.store(stage::APART, Ordering::Release);
            let _ = read(); // for ever
            let _ = ask(call::EXIT_GROUP, [128 + helper::SIGKILL, 0, 0, 0, 0, 0]);
        }
        // The supervisor may look at the process by this thread.
        while ask(call::PAUSE, [0; 6]) == Err(helper::EINTR) {}
    }
    let _ = ask(call::EXIT, [0; 6]);
    unreachable!()
}

/// Waits until something is so; `None` where it takes too long.
fn wait(is_so: impl Fn() -> bool) -> Option<()> {
    for _ in 0..TURNS_MAX {
        if is_so() {
            return Some(());
        }
        let millisecond = [0_u64, 1_000_000];
        let _ = ask(call::NANOSLEEP, [millisecond.as_ptr().addr(), 0, 0, 0, 0, 0]);
    }
    None
}

/// What the process apart begins with, on its part of the helper's stack.
pub(crate) struct Apart {
    pub(crate) socket: usize,
    pub(crate) userfaultfd: usize,
    pub(crate) control: &'static Control,
    pub(crate) pipe: usize,
    pub(crate) stack: usize,
    pub(crate) staging: (usize, usize),
}

/// The end of the pipe that the program has for its helper, in the helper's table of files.
pub(crate) fn take_pipe(number: &AtomicU32) -> Result<usize, u32> {
    let pid = ask(call::GETPID, [0; 6])?;
    let pidfd = ask(call::PIDFD_OPEN, [pid, 0, 0, 0, 0, 0])?;
    let taken =
        ask(call::PIDFD_GETFD, [pidfd, number.load(Ordering::Relaxed) as usize, 0, 0, 0, 0]);
    close(pidfd as u32);
    taken
}
