//! The functions of the C library that start programs, with [`environment::with_ours`].
//!
//! Each calls the next function of its name: that of the C library, or of another library that is
//! preloaded. A function of the C library does not find these here, as it calls its own by other
//! ways; so all of its functions are here that start a program.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::call::{self, call};
use crate::environment::{self, Variables, with_ours};
use crate::{__errno_location, mapping, memory_file, weak_address};

const ENOSYS: c_int = 38;

core::arch::global_asm!(".weak dlsym", ".weak _dl_sym");

/// The next function of a name.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicUsize::new(0) }
    }

    /// Its address; 0 in a program of no C library that is known.
    pub(crate) fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            0 => self.find(),
            address => address,
        }
    }

    /// The same, as far as [`find_all`] has found it: a search may map memory.
    pub(crate) fn found(&self) -> usize {
        self.address.load(Ordering::Relaxed)
    }

    fn find(&self) -> usize {
        const NEXT: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);
        // glibc before 2.34 has dlsym(3) in a library that a program may lack, and this instead.
        let (ordinary, old) = (weak_address!("dlsym"), weak_address!("_dl_sym"));
        let name = self.name.as_ptr();
        let found = if ordinary != 0 {
            type Find = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
            // SAFETY: this is its type.
            let find = unsafe { core::mem::transmute::<usize, Find>(ordinary) };
            // SAFETY: a string of C.
            unsafe { find(NEXT, name) }
        } else if old != 0 {
            type Find = unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> *mut c_void;
            // SAFETY: this is its type.
            let find = unsafe { core::mem::transmute::<usize, Find>(old) };
            // SAFETY: a string of C. The last argument is an address in the library that asks.
            unsafe { find(NEXT, name, find_all as *const () as usize) }
        } else {
            core::ptr::null_mut()
        };
        self.address.store(found.addr(), Ordering::Relaxed);
        found.addr()
    }
}

static EXECVE: Next = Next::new(c"execve");
static EXECVPE: Next = Next::new(c"execvpe");
static FEXECVE: Next = Next::new(c"fexecve");
static SPAWN: Next = Next::new(c"posix_spawn");
static SPAWN_BY_PATH: Next = Next::new(c"posix_spawnp");
static SYSTEM: Next = Next::new(c"system");
static POPEN: Next = Next::new(c"popen");

/// Finds them before the program's `main`: in the child of a fork it may be too late to search.
pub(crate) fn find_all() {
    for next in [&EXECVE, &EXECVPE, &FEXECVE, &SPAWN, &SPAWN_BY_PATH, &SYSTEM, &POPEN] {
        next.find();
    }
    memory_file::ALL.iter().chain(&mapping::ALL).for_each(|next| _ = next.find());
}

/// Calls the next function, of the type that is given; `$otherwise` where there is none.
macro_rules! next {
    ($next:ident: $type:ty, $arguments:tt, $otherwise:expr) => {
        crate::exec::call_at!($next.address(), $type, $arguments, $otherwise)
    };
}
pub(crate) use next;

/// The same, without a search for that function.
macro_rules! next_found {
    ($next:ident: $type:ty, $arguments:tt, $otherwise:expr) => {
        crate::exec::call_at!($next.found(), $type, $arguments, $otherwise)
    };
}
pub(crate) use next_found;

/// Calls the function at an address; `$otherwise` if that is 0.
macro_rules! call_at {
    ($address:expr, $type:ty, ($($argument:expr),*), $otherwise:expr) => {
        match $address {
            0 => $otherwise,
            address => {
                // SAFETY: this is its type.
                let function = unsafe { core::mem::transmute::<usize, $type>(address) };
                // SAFETY: it is the caller's call.
                unsafe { function($($argument),*) }
            }
        }
    };
}
pub(crate) use call_at;

/// Sets errno, and returns what a function does then.
pub(crate) fn failed(errno: c_int) -> c_int {
    // SAFETY: a pointer to this thread's errno.
    unsafe { *__errno_location() = errno };
    -1
}

/// A system call with errno, as syscall(2) makes it.
pub(crate) fn by_call(number: usize, arguments: [usize; 6]) -> isize {
    // SAFETY: it is the caller's call; the kernel checks each address.
    match unsafe { call(number, arguments) } {
        Ok(result) => result as isize,
        Err(errno) => failed(errno as c_int) as isize,
    }
}

/// A system call that returns where it fails alone.
fn exec(number: usize, arguments: [usize; 6]) -> c_int {
    by_call(number, arguments) as c_int
}

type Exec = unsafe extern "C" fn(*const c_char, Variables, Variables) -> c_int;
type ExecFile = unsafe extern "C" fn(c_int, Variables, Variables) -> c_int;

/// execve(2).
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Variables, given: Variables) -> c_int {
    with_ours(given, &mut |variables| {
        let by_call = || exec(call::EXECVE, [path.addr(), argv.addr(), variables.addr(), 0, 0, 0]);
        next!(EXECVE: Exec, (path, argv, variables), by_call())
    })
}

/// execvpe(3).
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Variables, given: Variables) -> c_int {
    with_ours(given, &mut |variables| next!(EXECVPE: Exec, (file, argv, variables), failed(ENOSYS)))
}

/// execv(3).
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Variables) -> c_int {
    // SAFETY: it is the caller's call.
    unsafe { execve(path, argv, environment::own()) }
}

/// execvp(3).
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Variables) -> c_int {
    // SAFETY: it is the caller's call.
    unsafe { execvpe(file, argv, environment::own()) }
}

/// execle(3), with its arguments as an array: the environment comes after their end.
unsafe extern "C" fn exec_list_and_environment(path: *const c_char, argv: Variables) -> c_int {
    let mut end = argv;
    // SAFETY: the caller's arguments end with a null pointer.
    while !unsafe { *end }.is_null() {
        // SAFETY: this was not the end.
        end = unsafe { end.add(1) };
    }
    // SAFETY: the argument after the null pointer.
    let given = unsafe { end.add(1) };
    // SAFETY: the caller has given that argument.
    let given = unsafe { *given }.cast();
    // SAFETY: it is the caller's call.
    unsafe { execve(path, argv, given) }
}

/// A function with a list of arguments. The first five of them are in registers. Pushed to the
/// place of the return address, they are before all others: an array.
macro_rules! with_list {
    ($(#[$doc:meta])* $name:ident => $function:path) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As that of the C library.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
                "pop r10",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                // The sixth: the stack is aligned then.
                "push r10",
                "call {function}",
                "pop r10",
                "add rsp, 40",
                "push r10",
                "ret",
                function = sym $function,
            )
        }
    };
}

with_list! {
    /// execl(3).
    execl => execv
}
with_list! {
    /// execlp(3).
    execlp => execvp
}
with_list! {
    /// execle(3).
    execle => exec_list_and_environment
}

/// fexecve(3).
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(file: c_int, argv: Variables, given: Variables) -> c_int {
    with_ours(
        given,
        &mut |variables| next!(FEXECVE: ExecFile, (file, argv, variables), failed(ENOSYS)),
    )
}

/// execveat(2). Not each C library has it.
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    argv: Variables,
    given: Variables,
    flags: c_int,
) -> c_int {
    with_ours(given, &mut |variables| {
        let (path, argv, flags) = (path.addr(), argv.addr(), flags as usize);
        exec(call::EXECVEAT, [folder as usize, path, argv, variables.addr(), flags, 0])
    })
}

/// execve(2) by syscall(2).
pub(crate) extern "C" fn execve_by_call(path: usize, argv: usize, given: Variables) -> isize {
    with_ours(given, &mut |variables| exec(call::EXECVE, [path, argv, variables.addr(), 0, 0, 0]))
        as isize
}

/// execveat(2) by syscall(2).
pub(crate) extern "C" fn execveat_by_call(
    folder: usize,
    path: usize,
    argv: usize,
    given: Variables,
    flags: usize,
) -> isize {
    with_ours(given, &mut |variables| {
        exec(call::EXECVEAT, [folder, path, argv, variables.addr(), flags, 0])
    }) as isize
}

type Spawn = unsafe extern "C" fn(
    *mut c_int,
    *const c_char,
    *const c_void,
    *const c_void,
    Variables,
    Variables,
) -> c_int;

/// A function of spawn.h.
macro_rules! spawn {
    ($(#[$doc:meta])* $name:ident, $next:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As that of the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut c_int,
            file: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: Variables,
            given: Variables,
        ) -> c_int {
            with_ours(given, &mut |variables| {
                next!($next: Spawn, (pid, file, actions, attributes, argv, variables), ENOSYS)
            })
        }
    };
}

spawn! {
    /// posix_spawn(3).
    posix_spawn, SPAWN
}
spawn! {
    /// posix_spawnp(3).
    posix_spawnp, SPAWN_BY_PATH
}

/// system(3).
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    type System = unsafe extern "C" fn(*const c_char) -> c_int;
    environment::put_back();
    next!(SYSTEM: System, (command), failed(ENOSYS))
}

/// popen(3).
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    type Open = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;
    environment::put_back();
    next!(POPEN: Open, (command, kind), {
        failed(ENOSYS);
        core::ptr::null_mut()
    })
}
