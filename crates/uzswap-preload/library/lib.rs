//! The preload library that `uzswap run` puts into a program. It starts a process that has the
//! program's memory, the helper, which gives the supervisor a userfaultfd of that memory. The
//! helper also does the work for which the kernel asks for the memory itself: it moves pages to
//! staging and discards memory.
//!
//! The helper has its own table of files, so the program sees none of ours and may close all of its
//! own. The helper uses its own stack and system calls alone: no C library, no thread-local memory,
//! no memory of the program, because any of that may be evicted at that moment. No count of the
//! program's threads or children has the helper in it.

#![no_std]

mod by_call;
mod call;
mod environment;
mod exec;
mod filter;
mod helper;
mod mapping;
mod memory;
mod memory_file;
#[allow(dead_code, reason = "the supervisor uses the rest")]
#[path = "../src/protocol.rs"]
mod protocol;
mod sanitizer;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use protocol::{Control, SAME_STACK_BYTES, SOCKET_VARIABLE, kind};

/// Longest path of a socket: `sun_path` of unix(7).
const PATH_BYTES: usize = 108;

/// Parts of the program's memory are watched. In the program's own memory, so that a fork has it.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// State of the helper that a fork needs. All zero means no helper; a child of any kind of fork
/// finds this memory all zero.
struct ForForks {
    /// Memory that the helper shares with the supervisor.
    control: AtomicPtr<Control>,
    /// The page whose touch tells of a fork.
    page: AtomicUsize,
    /// The helper's thread, and the door in its table of files.
    thread: AtomicUsize,
    door: AtomicUsize,
}

/// The door in the program's table of files, while threads fork that lend it to their children.
struct LentDoor {
    /// 1 while a thread of the parent changes this. A child has one thread, and takes no heed.
    lock: AtomicU32,
    /// Threads that fork.
    forks: AtomicU32,
    /// Its descriptor and 1; 0 for none.
    descriptor: AtomicU32,
}

impl LentDoor {
    const fn new() -> LentDoor {
        LentDoor {
            lock: AtomicU32::new(0),
            forks: AtomicU32::new(0),
            descriptor: AtomicU32::new(0),
        }
    }

    /// A thread is about to fork. While one does, the descriptor stays as it is.
    fn lend(&self, for_forks: Option<&ForForks>) {
        self.locked(|| {
            if self.forks.fetch_add(1, Ordering::Relaxed) == 0 {
                let door = for_forks.and_then(helper::borrow_door).map_or(0, |door| door + 1);
                self.descriptor.store(door, Ordering::Relaxed);
            }
        });
    }

    /// A thread has forked, or failed to.
    fn take_back(&self) {
        self.locked(|| {
            if self.forks.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.take().into_iter().for_each(helper::close);
            }
        });
    }

    /// The descriptor, which is the caller's from now on.
    fn take(&self) -> Option<u32> {
        self.descriptor.swap(0, Ordering::Relaxed).checked_sub(1)
    }

    /// In the child of a fork: nobody else forks.
    fn take_in_child(&self) -> Option<u32> {
        self.lock.store(0, Ordering::Relaxed);
        self.forks.store(0, Ordering::Relaxed);
        self.take()
    }

    /// Without signals: a handler may fork.
    fn locked(&self, change: impl FnOnce()) {
        helper::without_signals(|| {
            while self.lock.swap(1, Ordering::Acquire) != 0 {
                core::hint::spin_loop();
            }
            change();
            self.lock.store(0, Ordering::Release);
        });
    }
}

static LENT_DOOR: LentDoor = LentDoor::new();

/// Null where there was no such memory to be had.
static FOR_FORKS: AtomicPtr<ForForks> = AtomicPtr::new(core::ptr::null_mut());

// Programs of glibc and of musl load this library, so it is linked with neither: these are found in
// the C library that the program has. Symbols without a version fit both.
unsafe extern "C" {
    safe static environ: *const *const c_char;
    safe fn __errno_location() -> *mut c_int;
}

// glibc has the first one alone, musl the second. The address of a weak symbol that the program's
// libraries lack is null.
core::arch::global_asm!(".weak __register_atfork", ".weak pthread_atfork");

/// The address of a weak symbol; 0 if the program's libraries lack it.
macro_rules! weak_address {
    ($symbol:literal) => {{
        let address: usize;
        // SAFETY: reads an entry of this library's own table of addresses.
        unsafe {
            core::arch::asm!(
                concat!("mov {}, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
                out(reg) address
            )
        };
        address
    }};
}
use weak_address;

/// A function of fork's that runs before it or after it.
type AtFork = extern "C" fn();

/// `pthread_atfork(3)`; nothing where the program has no C library of the two.
fn at_fork(prepare: AtFork, parent: AtFork, child: AtFork) {
    let glibc = weak_address!("__register_atfork");
    let musl = weak_address!("pthread_atfork");
    if glibc != 0 {
        type Register = unsafe extern "C" fn(AtFork, AtFork, AtFork, *const c_void) -> c_int;
        // SAFETY: this is its type. The last argument names a library with which the handlers go;
        // null stands for none, as this one stays.
        let register = unsafe { core::mem::transmute::<usize, Register>(glibc) };
        // SAFETY: it keeps three functions, which are there as long as the program.
        unsafe { register(prepare, parent, child, core::ptr::null()) };
    } else if musl != 0 {
        type Register = unsafe extern "C" fn(AtFork, AtFork, AtFork) -> c_int;
        // SAFETY: this is its type.
        let register = unsafe { core::mem::transmute::<usize, Register>(musl) };
        // SAFETY: as above.
        unsafe { register(prepare, parent, child) };
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: Constructor = start;

/// glibc passes these; musl passes nothing.
type Constructor = extern "C" fn(c_int, *const *const c_char, *const *const c_char);

/// Runs before the program's `main`.
extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // This library names no other one, so glibc may start it before its own start has set
    // `environ`. musl has set that before.
    let environment = if environ.is_null() { environment } else { environ };
    exec::find_all();
    let Some(path) = variable(environment, SOCKET_VARIABLE.as_bytes()) else { return };
    if path.is_empty() || path.len() >= PATH_BYTES {
        return;
    }
    // Under valgrind, which has its own idea of threads and memory, the program runs without us.
    const OF_VALGRIND: &[u8] = b"/vgpreload_";
    let preloaded = variable(environment, b"LD_PRELOAD").unwrap_or_default();
    if preloaded.windows(OF_VALGRIND.len()).any(|part| part == OF_VALGRIND) {
        return;
    }
    environment::keep(path, preloaded);
    at_fork(will_fork, has_forked, forked);
    FOR_FORKS.store(helper::memory_for_forks(), Ordering::Relaxed);
    helper::start(kind::HELLO_EXEC, None);
}

/// Runs before a fork.
extern "C" fn will_fork() {
    let ready = ready_helper();
    if let Some((for_forks, control)) = ready {
        announce_fork(for_forks, control);
        note_forking(control, true);
    }
    LENT_DOOR.lend(ready.map(|(for_forks, _)| for_forks));
}

/// State of the helper and its memory, if there is one and it is ready.
fn ready_helper() -> Option<(&'static ForForks, &'static Control)> {
    // SAFETY: null, or memory that stays mapped and is all atomics.
    let for_forks = unsafe { FOR_FORKS.load(Ordering::Relaxed).as_ref() }?;
    // Null if there is no helper or it is not ready; `page` was stored before it.
    let control = for_forks.control.load(Ordering::Acquire);
    // SAFETY: null, or the helper's memory, which stays mapped and is all atomics.
    let control = unsafe { control.as_ref() }?;
    Some((for_forks, control))
}

/// Where a fork matters to the supervisor, goes on once that is prepared.
fn announce_fork(for_forks: &ForForks, control: &Control) {
    let number = control.forks.fetch_add(1, Ordering::Relaxed).saturating_add(1);
    let from = control.tell_forks_from.load(Ordering::Relaxed);
    if from != 0 && number >= from {
        helper::touch(for_forks.page.load(Ordering::Relaxed));
    }
}

/// Tells the supervisor that the calling thread is in a fork, or no longer.
fn note_forking(control: &Control, is_in_fork: bool) {
    let local = 0_u8;
    let here = core::hint::black_box(&raw const local).addr() as u64;
    for thread in &control.forking {
        let before = thread.load(Ordering::Relaxed);
        let (is_its, now) = match is_in_fork {
            true => (before == 0, here),
            false => (before.abs_diff(here) < SAME_STACK_BYTES, 0),
        };
        let relaxed = Ordering::Relaxed;
        if is_its && thread.compare_exchange(before, now, relaxed, relaxed).is_ok() {
            return;
        }
    }
}

/// Runs in the parent after a fork, or where it failed.
extern "C" fn has_forked() {
    if let Some((_, control)) = ready_helper() {
        note_forking(control, false);
    }
    LENT_DOOR.take_back();
}

/// Runs in the child of a fork, which has one thread.
extern "C" fn forked() {
    // The supervisor reads the child's markers before it answers, and so before the child can
    // change its mappings.
    helper::read_secret();
    let door = LENT_DOOR.take_in_child();
    helper::start(kind::HELLO_FORK, door);
    door.into_iter().for_each(helper::close);
}

/// The value of a variable of the environment.
fn variable(environment: *const *const c_char, name: &[u8]) -> Option<&'static [u8]> {
    let mut at = environment;
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

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    helper::end_failed(
        b"uzswap: the helper failed; the program was ended, because parts of its memory are \
          outside of it\n",
    )
}
