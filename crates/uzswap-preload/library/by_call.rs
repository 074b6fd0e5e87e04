//! syscall(2) of the C library, by which some programs start another one.

use core::arch::naked_asm;

use crate::call;
use crate::exec::{execve_by_call, execveat_by_call};

/// syscall(2), which starts programs as the functions of this library do.
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
    )
}
