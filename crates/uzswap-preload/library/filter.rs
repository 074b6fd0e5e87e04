//! The seccomp filter of a helper that has given up its credentials. The program may take the
//! helper over: it must not become a process of the helper's user, nor trace or open anything.

use core::ptr;

use crate::call::{self, call};
use crate::helper::CLONE_VM;

// Of linux/bpf_common.h, seccomp.h and audit.h.
const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;
const RETURN_ALLOW: u32 = 0x7fff_0000;
const RETURN_EPERM: u32 = 0x0005_0001;
const ARCH_X86_64: u32 = 0xc000_003e;
/// Calls of the x32 ABI have this bit.
const X32_BIT: u32 = 0x4000_0000;
/// Places in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

const SET_MODE_FILTER: usize = 1;
/// Speculation stays as it is: the program has no secrets from its helper.
const SPEC_ALLOW: usize = 1 << 2;

const AF_UNIX: u32 = 1;

/// All that the helper does after that, and what the kernel does in its name when it is continued.
const ALLOWED: [usize; 28] = [
    call::WRITE,
    call::CLOSE,
    call::POLL,
    call::MMAP,
    call::MPROTECT,
    call::MUNMAP,
    call::MREMAP,
    call::IOCTL,
    call::YIELD,
    call::MINCORE,
    call::MADVISE,
    call::GETPID,
    call::CONNECT,
    call::SENDMSG,
    call::RECVFROM,
    call::RECVMSG,
    call::EXIT,
    call::KILL,
    call::MUNLOCK,
    call::FUTEX,
    call::RESTART,
    call::EXIT_GROUP,
    call::PIDFD_OPEN,
    call::PIDFD_GETFD,
    call::GETTID,
    call::FCNTL,
    call::CLOCK_GETTIME,
    call::FUTEX_WAITV,
];

/// `struct sock_filter`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Step {
    code: u16,
    if_so: u8,
    if_not: u8,
    value: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    steps: u16,
    first: usize,
}

/// Before the calls, one for each, and after them.
const BEFORE: usize = 6;
const AFTER: usize = 8;
const STEPS: usize = BEFORE + ALLOWED.len() + AFTER;

const fn step(code: u16, value: u32, if_so: usize, if_not: usize) -> Step {
    Step { code, if_so: if_so as u8, if_not: if_not as u8, value }
}

const fn steps() -> [Step; STEPS] {
    let deny = STEPS - 2;
    let allow = STEPS - 1;
    // A jump counts from the step after it.
    let mut all = [step(RETURN, RETURN_EPERM, 0, 0); STEPS];
    all[0] = step(LOAD_WORD, ARCH, 0, 0);
    all[1] = step(JUMP_IF_EQUAL, ARCH_X86_64, 0, deny - 2);
    all[2] = step(LOAD_WORD, NUMBER, 0, 0);
    all[3] = step(JUMP_IF_AT_LEAST, X32_BIT, deny - 4, 0);
    let sockets = BEFORE + ALLOWED.len();
    let unshares = sockets + 3;
    all[4] = step(JUMP_IF_EQUAL, call::SOCKET as u32, sockets - 5, 0);
    all[5] = step(JUMP_IF_EQUAL, call::UNSHARE as u32, unshares - 6, 0);
    let mut at = 0;
    while at < ALLOWED.len() {
        let here = BEFORE + at;
        all[here] = step(JUMP_IF_EQUAL, ALLOWED[at] as u32, allow - here - 1, 0);
        at += 1;
    }
    // A call that is in no list.
    all[sockets - 1].if_not = (deny - sockets) as u8;
    all[sockets] = step(LOAD_WORD, FIRST_ARGUMENT, 0, 0);
    all[sockets + 1] = step(JUMP_IF_EQUAL, AF_UNIX, allow - sockets - 2, 0);
    // The question whether another process has this memory changes nothing.
    all[unshares] = step(LOAD_WORD, FIRST_ARGUMENT, 0, 0);
    all[unshares + 1] = step(JUMP_IF_EQUAL, CLONE_VM as u32, allow - unshares - 2, 0);
    all[allow] = step(RETURN, RETURN_ALLOW, 0, 0);
    all
}

static FILTER: [Step; STEPS] = steps();

/// Confines the calling thread to what the helper does. Where the kernel refuses that, as one
/// without seccomp does, the thread stays as it is.
pub(crate) fn confine() {
    let program = Program { steps: STEPS as u16, first: FILTER.as_ptr().addr() };
    let at = ptr::from_ref(&program).addr();
    // SAFETY: a program of that many steps, which the kernel copies.
    let _ = unsafe { call(call::SECCOMP, [SET_MODE_FILTER, SPEC_ALLOW, at, 0, 0, 0]) };
}
