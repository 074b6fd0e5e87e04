//! System calls without the C library: the helper has no thread-local memory, so no `errno`.

use core::arch::asm;

pub(crate) const CLOSE: usize = 3;
pub(crate) const POLL: usize = 7;
pub(crate) const MMAP: usize = 9;
pub(crate) const MPROTECT: usize = 10;
pub(crate) const MUNMAP: usize = 11;
pub(crate) const SIGNAL_MASK: usize = 14;
pub(crate) const IOCTL: usize = 16;
pub(crate) const PREAD: usize = 17; // pread64
pub(crate) const PWRITE: usize = 18; // pwrite64
pub(crate) const YIELD: usize = 24;
pub(crate) const MREMAP: usize = 25;
pub(crate) const MINCORE: usize = 27;
pub(crate) const MADVISE: usize = 28;
pub(crate) const NANOSLEEP: usize = 35;
pub(crate) const GETPID: usize = 39;
pub(crate) const SOCKET: usize = 41;
pub(crate) const CONNECT: usize = 42;
pub(crate) const BIND: usize = 49;
pub(crate) const LISTEN: usize = 50;
pub(crate) const GETSOCKNAME: usize = 51;
pub(crate) const GETSOCKOPT: usize = 55;
pub(crate) const ACCEPT4: usize = 288;
pub(crate) const RECVFROM: usize = 45;
pub(crate) const SOCKETPAIR: usize = 53;
pub(crate) const SENDMSG: usize = 46;
pub(crate) const RECVMSG: usize = 47;
pub(crate) const EXECVE: usize = 59;
pub(crate) const EXIT: usize = 60;
pub(crate) const WAIT4: usize = 61;
pub(crate) const KILL: usize = 62;
pub(crate) const FCNTL: usize = 72;
pub(crate) const PRCTL: usize = 157;
pub(crate) const CHDIR: usize = 80;
pub(crate) const SETGROUPS: usize = 116;
pub(crate) const SETRESUID: usize = 117;
pub(crate) const GETRESUID: usize = 118;
pub(crate) const SETRESGID: usize = 119;
pub(crate) const SETPGID: usize = 109;
pub(crate) const CAPGET: usize = 125;
pub(crate) const CAPSET: usize = 126;
pub(crate) const MLOCK: usize = 149;
pub(crate) const MUNLOCK: usize = 150;
pub(crate) const MLOCKALL: usize = 151;
pub(crate) const GETTID: usize = 186;
pub(crate) const FUTEX: usize = 202;
pub(crate) const CLOCK_GETTIME: usize = 228;
pub(crate) const EXIT_GROUP: usize = 231;
pub(crate) const READLINKAT: usize = 267;
pub(crate) const WRITE: usize = 1;
pub(crate) const RESTART: usize = 219;
pub(crate) const SECCOMP: usize = 317;
pub(crate) const GETRANDOM: usize = 318;
pub(crate) const SCHED_SETATTR: usize = 314;
pub(crate) const SCHED_GETATTR: usize = 315;
pub(crate) const EXECVEAT: usize = 322;
pub(crate) const USERFAULTFD: usize = 323;
pub(crate) const PIDFD_OPEN: usize = 434;
pub(crate) const CLOSE_RANGE: usize = 436;
pub(crate) const PIDFD_GETFD: usize = 438;
pub(crate) const UNSHARE: usize = 272;
pub(crate) const FUTEX_WAITV: usize = 449;
pub(crate) const FACCESSAT: usize = 269;
pub(crate) const PREADV: usize = 295;
pub(crate) const PWRITEV: usize = 296;

pub(crate) const CLONE: usize = 56;

pub(crate) const PAGE_BYTES: usize = 4096;

// Advice of madvise(2).
pub(crate) const MADV_DONTNEED: usize = 4;
pub(crate) const MADV_POPULATE_READ: usize = 22;
pub(crate) const MADV_POPULATE_WRITE: usize = 23;

/// The folder of a path that has none: the one of the process.
pub(crate) const AT_FDCWD: usize = -100_isize as usize;

/// A system call; its result, or its errno.
///
/// # Safety
///
/// The arguments must be right for the call, as the kernel reads and writes what they point to.
pub(crate) unsafe fn call(number: usize, arguments: [usize; 6]) -> Result<usize, u32> {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the kernel changes rax, rcx and r11 alone; what it does else is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) { Err(-result as u32) } else { Ok(result as usize) }
}

/// Starts a thread on a stack of its own, which ends in `main`; its number.
///
/// # Safety
///
/// `stack_end` is the end of memory that nobody else uses while the thread runs, 16-byte aligned.
/// `main` must not use thread-local memory: it would be that of this thread.
pub(crate) unsafe fn start_thread(
    flags: usize,
    stack_end: usize,
    main: extern "C" fn(usize) -> !,
    argument: usize,
) -> Result<usize, u32> {
    let result: isize;
    // SAFETY: the new thread has this thread's registers except rax and rsp, jumps to `main`, and
    // never returns here; this thread continues after the call.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r9",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") CLONE as isize => result,
            in("rdi") flags, in("rsi") stack_end, in("rdx") 0, in("r10") 0, in("r8") 0,
            in("r9") argument, in("r12") main,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    if (-4095..0).contains(&result) { Err(-result as u32) } else { Ok(result as usize) }
}
