//! The helper: a process with the program's memory that carries out the supervisor's commands.

use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::call::{self, MADV_DONTNEED, MADV_POPULATE_WRITE, call, start_thread};
use crate::environment::socket_path;
use crate::filter;
use crate::protocol::{
    Control, MAP_ANEW, MESSAGE_BYTES, Message, RUNS_MAX, Run, holder, kind, work,
};
use crate::{FOR_FORKS, ForForks, PATH_BYTES, WATCHED};

/// The helper's stack, all the memory that is its own.
const STACK_BYTES: usize = 64 << 10;

const PAGE_BYTES: u64 = 4096;

// Of linux/sched.h.
pub(crate) const CLONE_VM: usize = 0x100;
const CLONE_FS: usize = 0x200;
const CLONE_FILES: usize = 0x400;
const CLONE_SIGHAND: usize = 0x800;
const CLONE_THREAD: usize = 0x1_0000;
const CLONE_UNTRACED: usize = 0x80_0000;

/// A process with the program's memory and files. No debugger follows it, and its parent gets no
/// signal at its end.
const PROCESS: usize = CLONE_VM | CLONE_FILES | CLONE_UNTRACED;

/// A thread with a table of files of its own: an ordinary one except for the working directory
/// (CLONE_FS) and the list of semaphore adjustments (CLONE_SYSVSEM). A thread that shares its
/// directory with another may not enter a mount namespace. A thread that shares the list has one,
/// which kcmp(2) shows.
const THREAD: usize = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD;

const PROT_READ: usize = 1;
const PROT_READ_WRITE: usize = 3;
const MAP_SHARED: usize = 1;
const MAP_PRIVATE_ANONYMOUS: usize = 0x22;
const MAP_FIXED: usize = 0x10;
const MAP_NORESERVE: usize = 0x4000;
/// MREMAP_MAYMOVE, _FIXED and _DONTUNMAP.
const MREMAP_PAGES_TO: usize = 1 | 2 | 4;
const MADV_PAGEOUT: usize = 21;
const MADV_DONTFORK: usize = 10;
const MADV_NOHUGEPAGE: usize = 15;
const MADV_WIPEONFORK: usize = 18;

/// Of linux/capability.h.
const CAPABILITY_VERSION_3: u64 = 0x2008_0522;

const FUTEX_WAIT_PRIVATE: usize = 128;
const FUTEX_WAKE_PRIVATE: usize = 129;
const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;
/// Of futex_waitv(2): a word of 32 bits, which another process may have mapped.
const FUTEX_SHARED_32: u32 = 2;
const CLOCK_MONOTONIC: usize = 1;

const SIG_SETMASK: usize = 2;
const SIGKILL: usize = 9;
const EPERM: u32 = 1;
const ENOENT: u32 = 2;
const EINTR: u32 = 4;
const EAGAIN: u32 = 11;
const ENOMEM: u32 = 12;
const EEXIST: u32 = 17;
const EINVAL: u32 = 22;
const ETIMEDOUT: u32 = 110;
const ECONNREFUSED: u32 = 111;
const MSG_PEEK_DONTWAIT: usize = 2 | 0x40;

// Of linux/userfaultfd.h.
const UFFDIO_REGISTER: usize = 0xc020_aa00;
const REGISTER_MISSING: u64 = 1;
const UFFDIO_UNREGISTER: usize = 0x8010_aa01;
const UFFDIO_COPY: usize = 0xc028_aa03;
const UFFDIO_MOVE: usize = 0xc028_aa05;
const MOVE_DONTWAKE: u64 = 1;
const UFFDIO_WRITEPROTECT: usize = 0xc018_aa06;
const WRITEPROTECT: u64 = 1;
const USERFAULTFD_IOC_NEW: usize = 0xaa00;
const O_CLOEXEC_NONBLOCK: usize = 0o2_000_000 | 0o4_000;

/// How often a command waits at most for the supervisor to read what the program changes, and how
/// long: in turns of others on this processor.
const PAUSES_MAX: u32 = 1000;
const YIELDS: u32 = 4;

/// How long a program waits at its start until the supervisor knows its helper. An unmanaged
/// program could fill its limit. A supervisor that is stopped holds up no program for longer.
const MEET_SECONDS: u64 = 1;

/// How long the helper waits for a command, in microseconds, until it looks whether the supervisor
/// is there still: a file tells of that no sooner.
const LOOK_AGAIN_US: u64 = 1_000_000;

/// Likewise at first, once the program's first thread has ended or is about to become another
/// program: whether the memory is let go. Twice as long each time.
const LET_GO_US: u64 = 50;

/// Turns in which a program that was killed has let its memory go, with some 10 us each.
const ENDS_WITHIN: u32 = 100_000;

/// Turns between two checks that the supervisor which holds the lock still exists.
const LOOK_EVERY: u32 = 1024;

const SUPERVISOR_GONE: &[u8] =
    b"uzswap: the supervisor is gone; this program was ended, because it held parts of its \
      memory\n";

const NO_SUPERVISOR: &[u8] =
    b"uzswap: the supervisor is gone; this program was ended, as are all that it ran\n";

const UNTOLD: &[u8] =
    b"uzswap: mincore does not report which pages the kernel moved; this program was ended, \
      because pages would be lost\n";

/// Asks the kernel for something that touches no memory, or memory of ours alone.
pub(crate) fn ask(number: usize, arguments: [usize; 6]) -> Result<usize, u32> {
    // SAFETY: every caller in this file passes addresses of live memory of the helper's, of the
    // size that the call uses, or of pages that the supervisor names.
    unsafe { call(number, arguments) }
}

/// Where a link leads, by a path that ends with a zero; nothing where that cannot be read.
pub(crate) fn read_link<'a>(path: &[u8], into: &'a mut [u8]) -> &'a [u8] {
    let (path, to) = (path.as_ptr().addr(), into.as_mut_ptr().addr());
    let read = ask(call::READLINKAT, [call::AT_FDCWD, path, to, into.len(), 0, 0]);
    &into[..read.unwrap_or(0)]
}

/// Starts the helper, which keeps the `door` if there is one, and closes all else. Where that fails
/// the program runs as it would without us. The program has one thread.
pub(crate) fn start(hello: u32, door: Option<u32>) {
    let Some(stack) = new_stack(STACK_BYTES) else { return };
    // The lowest part of the stack tells what to begin with.
    let first: *mut Start = ptr::with_exposed_provenance_mut(stack);
    let end_word = end_word();
    let start = Start {
        hello,
        door,
        end_word,
        program: ask(call::GETPID, [0; 6]).unwrap_or(1),
        tie: AtomicU64::new(0),
        socket: AtomicU32::new(0),
        has_started: AtomicU32::new(0),
        has_no_rights: AtomicU32::new(0),
        is_met: AtomicU32::new(0),
    };
    // SAFETY: memory that was mapped just now, for this.
    unsafe { first.write(start) };
    // SAFETY: written above; it stays mapped, and what changes is atomic.
    let start = unsafe { &*first };
    let started = without_signals(|| {
        start_process(start, stack) || {
            // A copy of the table of files takes longer, and is needed where the program closes the
            // door.
            let files = if door.is_some() { 0 } else { CLONE_FILES };
            // SAFETY: the stack is the helper's alone, and `main` keeps to it.
            unsafe { start_thread(THREAD | files, stack + STACK_BYTES, main, stack) }.is_ok()
        }
    });
    if !started {
        let _ = ask(call::MUNMAP, [stack, STACK_BYTES, 0, 0, 0, 0]);
        return;
    }
    wait_for_rights(start);
    if hello == kind::HELLO_EXEC {
        wait_for(&start.is_met, Some(MEET_SECONDS));
    }
}

/// Waits until a word of [`Start`] is 1, for so many seconds at most, if any.
fn wait_for(word: &AtomicU32, seconds: Option<u64>) {
    let most = seconds.map(|seconds| [seconds, 0]);
    let most = most.as_ref().map_or(0, |most| most.as_ptr().addr());
    let at = ptr::from_ref(word).addr();
    while word.load(Ordering::Acquire) == 0 {
        let waited = ask(call::FUTEX, [at, FUTEX_WAIT_PRIVATE, 0, most, 0, 0]);
        if waited == Err(ETIMEDOUT) {
            break;
        }
    }
}

/// The program goes on once no thread of it, and no helper, has rights that it may give up.
fn wait_for_rights(start: &Start) {
    if !users().contains(&0) && !has_capabilities() {
        return;
    }
    wait_for(&start.has_no_rights, None);
}

/// Starts the helper as a process; `false` where it has to be a thread:
///
/// - The program is the one that its orphans become children of, and might wait for the helper.
/// - Its first child is to be the first process of a PID namespace, and may not end at once.
/// - The kernel does not tell where the program's end can be seen.
/// - There is no connection to the supervisor, or no descriptor for it in the program's table. The
///   kernel names the supervisor the process that connects: it has to be the program.
fn start_process(start: &Start, stack: usize) -> bool {
    const WAIT_ALL: usize = 0x4000_0000;
    if start.end_word == 0 || adopts_orphans(start.program) || !has_children_beside_it() {
        return false;
    }
    let Ok(socket) = connect(start.door) else { return false };
    start.socket.store(socket as u32, Ordering::Relaxed);
    // SAFETY: the stack is that process's alone, and `step_out` keeps to it.
    let between = unsafe { start_thread(PROCESS, stack + STACK_BYTES, step_out, stack) };
    if let Ok(between) = between {
        wait_for_rights(start); // then that process has ended: one wait is enough
        while ask(call::WAIT4, [between, 0, WAIT_ALL, 0, 0, 0]) == Err(EINTR) {}
    }
    close(socket as u32);
    let has_started = start.has_started.load(Ordering::Acquire) == 1;
    if !has_started {
        start.tie.store(0, Ordering::Relaxed);
        start.has_no_rights.store(0, Ordering::Relaxed);
    }
    has_started
}

/// Whether this process becomes the parent of descendants that lose theirs.
fn adopts_orphans(own: usize) -> bool {
    const PR_GET_CHILD_SUBREAPER: usize = 37;
    let mut is_subreaper = 0_u32;
    let at = ptr::from_mut(&mut is_subreaper).addr();
    let _ = ask(call::PRCTL, [PR_GET_CHILD_SUBREAPER, at, 0, 0, 0, 0]);
    own == 1 || is_subreaper != 0
}

/// Whether children of this process are in its own PID namespace; `false` where that is not told.
fn has_children_beside_it() -> bool {
    let [mut own, mut of_children] = [[0_u8; 32]; 2]; // "pid:[4026531836]"
    let own = read_link(b"/proc/self/ns/pid\0", &mut own);
    let of_children = read_link(b"/proc/self/ns/pid_for_children\0", &mut of_children);
    // Element by element: `==` of two slices calls bcmp, which may be the program's.
    !own.is_empty() && own.iter().eq(of_children)
}

/// A process between the program and the helper, which starts the helper and ends: so the helper is
/// no child of the program's. The program waits for it.
extern "C" fn step_out(stack: usize) -> ! {
    let first: *const Start = ptr::with_exposed_provenance(stack);
    // SAFETY: the program wrote it there; it stays mapped, and what changes is atomic.
    let start = unsafe { &*first };
    let tied = keep_only(Some(start.socket.load(Ordering::Relaxed))).and_then(|()| {
        let _ = ask(call::SETPGID, [0; 6]);
        tie(start.program)
    });
    if let Ok([one, other]) = tied {
        start.tie.store(one as u64 | (other as u64) << 32, Ordering::Relaxed);
        // SAFETY: the lower half of the stack is the helper's alone, and `main` keeps to it.
        let helper =
            unsafe { start_thread(PROCESS | CLONE_FS, stack + STACK_BYTES / 2, main, stack) };
        if helper.is_ok() {
            start.has_started.store(1, Ordering::Release);
            let _ = ask(call::EXIT_GROUP, [0; 6]);
        }
    }
    start.let_go_on();
    start.tied().end()
}

const F_SETFL: usize = 4;

/// Ties the program's life to the helper's: a pair of sockets, both ends the helper's. If the
/// helper ends by whatever cause, the kernel closes one end first, and kills the program by the
/// signal that it sends for the other one.
fn tie(program: usize) -> Result<[i32; 2], u32> {
    const F_SETOWN: usize = 8;
    const F_SETSIG: usize = 10;
    const ASYNC: usize = 0o2_0000;
    const F_DUPFD_CLOEXEC: usize = 1030;
    const ABOVE_ALL: usize = 64;
    let mut pair = [0_i32; 2];
    let at = pair.as_mut_ptr().addr();
    ask(call::SOCKETPAIR, [UNIX_PACKETS[0], UNIX_PACKETS[1], 0, at, 0, 0])?;
    // The kernel closes descriptors in the order of numbers, or backwards: before the userfaultfd
    // in any case, after which missing pages read as zeros.
    let other = pair[1] as usize;
    if let Ok(above) = ask(call::FCNTL, [other, F_DUPFD_CLOEXEC, ABOVE_ALL, 0, 0, 0]) {
        close(other as u32);
        pair[1] = above as i32;
    }
    for end in pair {
        let set = |what, value| ask(call::FCNTL, [end as usize, what, value, 0, 0, 0]);
        // With the program's rights: by these the kernel sends the signal.
        set(F_SETOWN, program)?;
        set(F_SETSIG, SIGKILL)?;
        set(F_SETFL, ASYNC)?;
    }
    Ok(pair)
}

/// Address of the word that the kernel clears when the calling thread ends; 0 where the kernel does
/// not tell it (without CONFIG_CHECKPOINT_RESTORE).
pub(crate) fn end_word() -> usize {
    const PR_GET_TID_ADDRESS: usize = 40;
    let mut address = 0_usize;
    let to = ptr::from_mut(&mut address).addr();
    let told = ask(call::PRCTL, [PR_GET_TID_ADDRESS, to, 0, 0, 0, 0]);
    told.map_or(0, |_| address)
}

/// Memory for the stack of a thread, which a child of a fork does not have.
pub(crate) fn new_stack(bytes: usize) -> Option<usize> {
    let flags = MAP_PRIVATE_ANONYMOUS | MAP_NORESERVE;
    let stack = ask(call::MMAP, [0, bytes, PROT_READ_WRITE, flags, usize::MAX, 0]).ok()?;
    let _ = ask(call::MADVISE, [stack, bytes, MADV_DONTFORK, 0, 0, 0]);
    Some(stack)
}

/// A thread that is started meanwhile handles no signal of the program's.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let (all, mut before) = ([u64::MAX; 1], [0_u64; 1]);
    let mask = |new: &u64, old: usize| {
        ask(call::SIGNAL_MASK, [SIG_SETMASK, ptr::from_ref(new).addr(), old, 8, 0, 0])
    };
    let _ = mask(&all[0], before.as_mut_ptr().addr());
    let started = start();
    let _ = mask(&before[0], 0);
    started
}

/// What a helper begins with.
struct Start {
    hello: u32,
    door: Option<u32>,
    /// As [`end_word`] tells it.
    end_word: usize,
    /// The program's process.
    program: usize,
    /// The two descriptors of [`tie`].
    tie: AtomicU64,
    /// A connection to the supervisor.
    socket: AtomicU32,
    /// 1 once the helper is a process.
    has_started: AtomicU32,
    /// 1 once the helper has given up its rights, or ends: a futex.
    has_no_rights: AtomicU32,
    /// 1 once the supervisor knows the helper, or will not: a futex.
    is_met: AtomicU32,
}

/// Sets a word of [`Start`] to 1.
fn set(word: &AtomicU32) {
    word.store(1, Ordering::Release);
    let at = ptr::from_ref(word).addr();
    let _ = ask(call::FUTEX, [at, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0]);
}

impl Start {
    /// The program goes on: the helper has given up its rights, or there is none.
    fn let_go_on(&self) {
        set(&self.has_no_rights);
    }

    fn tied(&self) -> Tied {
        let tie = self.tie.load(Ordering::Relaxed);
        let ends = (tie != 0).then_some([tie as u32, (tie >> 32) as u32]);
        Tied { program: self.program, end_word: self.end_word, ends }
    }
}

/// How the helper and its program know of each other's end.
#[derive(Clone, Copy)]
struct Tied {
    program: usize,
    end_word: usize,
    /// The ends of [`tie`]; `None` of a thread, which ends with its process.
    ends: Option<[u32; 2]>,
}

impl Tied {
    /// Kills the program, and ends the helper once nobody has the memory: the userfaultfd stays
    /// open for so long. Comes back where the helper is a thread.
    fn kill(&self) {
        let Some([one, _]) = self.ends else { return };
        close(one); // the kernel sends the signal
        for _ in 0..ENDS_WITHIN {
            if self.is_alone() {
                break; // else another process of the run has it, too
            }
            let _ = ask(call::YIELD, [0; 6]);
        }
        self.end()
    }

    /// Ends the helper, whose program runs on, or has ended.
    fn end(&self) -> ! {
        for end in self.ends.into_iter().flatten() {
            let _ = ask(call::FCNTL, [end as usize, F_SETFL, 0, 0, 0, 0]);
        }
        let _ = ask(call::EXIT, [0; 6]);
        unreachable!()
    }

    /// What is at the word now; `None` of a thread.
    fn word(&self) -> Option<u32> {
        self.ends?;
        let word: *const AtomicU32 = ptr::with_exposed_provenance(self.end_word);
        // SAFETY: the program has it as long as its first thread; then it may have unmapped it,
        // and the helper ends with its program.
        Some(unsafe { &*word }.load(Ordering::Relaxed))
    }

    /// Whether no program has this memory any more: it has ended, or is another one.
    fn is_alone(&self) -> bool {
        // The kernel does nothing but answer: EINVAL where others have it.
        self.ends.is_some() && ask(call::UNSHARE, [CLONE_VM, 0, 0, 0, 0, 0]).is_ok()
    }
}

extern "C" fn main(stack: usize) -> ! {
    let first: *const Start = ptr::with_exposed_provenance(stack);
    // SAFETY: the thread that started the helper wrote it there; it stays mapped.
    let start = unsafe { &*first };
    let (hello, tied) = (start.hello, start.tied());
    let come = match tied.ends {
        Some(_) => Ok(arrive(hello, start.socket.load(Ordering::Relaxed) as usize)),
        None => come(hello, start.door),
    };
    give_up_rights();
    start.let_go_on();
    let met = match come {
        Ok(come) => Helper::meet(hello, stack, &come, tied),
        Err(errno) if is_deserted(hello, errno) => Err(Failed::Lost),
        Err(_) => Err(Failed::Refused),
    };
    set(&start.is_met);
    let failed = match met {
        Ok(helper) => helper.work(),
        Err(failed) => failed,
    };
    if failed == Failed::Lost
        && let Err(errno) = look_for_supervisor(tied)
    {
        // Parts of the memory may be kept by the supervisor since before the fork.
        if hello == kind::HELLO_FORK && WATCHED.load(Ordering::Relaxed) {
            end_program(Some(tied), SUPERVISOR_GONE);
        }
        if is_deserted(hello, errno) {
            end_program(Some(tied), NO_SUPERVISOR);
        }
    }
    tied.end()
}

/// The error of a connection to the supervisor, if there is none. One that is being killed may have
/// closed the helper's connection, and not yet the socket that new ones come to.
/// None is looked for on behalf of a program that has ended.
fn look_for_supervisor(tied: Tied) -> Result<(), u32> {
    const TRIES: usize = 3;
    const LOOKS: usize = 50;
    const EVERY_MS: usize = 20;
    for _ in 0..TRIES {
        let mut looks = 0..LOOKS;
        if tied.is_alone() {
            break;
        }
        let socket = connect(None)?;
        // `struct pollfd`: the descriptor. poll(2) reports a closed peer without being asked to.
        let mut closed = [socket as u64];
        let lasts = looks.all(|_| {
            let polled = ask(call::POLL, [closed.as_mut_ptr().addr(), 1, EVERY_MS, 0, 0, 0]);
            polled == Ok(0) && !tied.is_alone()
        });
        close(socket as u32);
        if lasts {
            break;
        }
    }
    Ok(())
}

/// Whether the supervisor ended, by an error of connect(2). A supervisor removes its folder at its
/// end, and the next run removes that of a killed one. A program that starts has loaded this
/// library from there; one that forks may have another root by now.
fn is_deserted(hello: u32, errno: u32) -> bool {
    errno == ECONNREFUSED || errno == ENOENT && hello == kind::HELLO_EXEC
}

/// Resources of a helper that took its program's credentials.
struct Come {
    socket: usize,
    /// A userfaultfd of its own. None where it has that of a fork, or the kernel refuses it.
    userfaultfd: Option<usize>,
}

/// Why there is no helper.
#[derive(PartialEq)]
enum Failed {
    /// The supervisor or the kernel refused it.
    Refused,
    /// The supervisor said nothing more.
    Lost,
}

/// Does all that takes the program's rights.
fn come(hello: u32, door: Option<u32>) -> Result<Come, u32> {
    keep_only(door)?;
    let socket = connect(door);
    // The variable belongs to the parent: this process gets its own.
    door.into_iter().for_each(close);
    Ok(arrive(hello, socket?))
}

/// Likewise, with a connection.
fn arrive(hello: u32, socket: usize) -> Come {
    run_soon();
    let is_known = hello == kind::HELLO_FORK && WATCHED.load(Ordering::Relaxed);
    let make = || ask(call::USERFAULTFD, [O_CLOEXEC_NONBLOCK, 0, 0, 0, 0, 0]).ok();
    Come { socket, userfaultfd: if is_known { None } else { make() } }
}

/// Becomes a thread that has nothing of its program but one descriptor.
pub(crate) fn keep_only(kept: Option<u32>) -> Result<(), u32> {
    // The program's files are not ours: none must stay open because of us.
    close_all_but(kept)?;
    // Nor must a directory of the program stay in use.
    let _ = ask(call::CHDIR, [c"/".as_ptr().addr(), 0, 0, 0, 0, 0]);
    const PR_SET_NAME: usize = 15;
    // Without it the supervisor would not know the helper.
    ask(call::PRCTL, [PR_SET_NAME, c"uzswap-helper".as_ptr().addr(), 0, 0, 0, 0]).map(|_| ())
}

/// Closes all descriptors of this thread but one.
fn close_all_but(kept: Option<u32>) -> Result<(), u32> {
    const UNSHARE: usize = 2;
    let close = |from: u32, to: u32| {
        ask(call::CLOSE_RANGE, [from as usize, to as usize, UNSHARE, 0, 0, 0]).map(|_| ())
    };
    let Some(kept) = kept else { return close(0, u32::MAX) };
    if kept > 0 {
        close(0, kept - 1)?;
    }
    close(kept + 1, u32::MAX)
}

/// The real, effective and saved user of the calling thread.
fn users() -> [u32; 3] {
    let mut users = [u32::MAX; 3];
    let [real, effective, saved] = users.each_mut().map(|user| ptr::from_mut(user).addr());
    let _ = ask(call::GETRESUID, [real, effective, saved, 0, 0, 0]);
    users
}

/// Whether the calling thread has rights of root, or may take some: not root alone has (see
/// capabilities(7), ambient ones).
fn has_capabilities() -> bool {
    // `struct __user_cap_header_struct` of the calling thread; effective, permitted, inheritable.
    let (header, mut sets) = ([CAPABILITY_VERSION_3], [0_u32; 6]);
    let (header, told) = (header.as_ptr().addr(), sets.as_mut_ptr().addr());
    let asked = ask(call::CAPGET, [header, told, 0, 0, 0, 0]);
    asked.is_ok() && [0, 1, 3, 4].iter().any(|at| sets[*at] != 0)
}

/// Gives up what the program has of root's rights: it may give them up itself later, and whoever
/// takes it over then has the helper, too. A refused request changes nothing. The program waits.
///
/// The helper's user is drawn, and the helper can start no process: none but root can trace it or
/// send it signals.
fn give_up_rights() {
    give_up_user();
    filter::confine();
}

/// Likewise, but for the filter: the thread may do what the program may.
pub(crate) fn give_up_user() {
    const SAME: usize = u32::MAX as usize;
    const PR_SET_DUMPABLE: usize = 4;
    const PR_GET_DUMPABLE: usize = 3;
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    let users = users();
    if users.contains(&0) {
        // With other users' rights it would be a program that leaves no core file (prctl(2)).
        let dumpable = ask(call::PRCTL, [PR_GET_DUMPABLE, 0, 0, 0, 0, 0]);
        let own = user_of_nobody();
        if users[1] != 0 {
            // As root, whose rights it could take back, it may take any user.
            let _ = ask(call::SETRESUID, [SAME, 0, SAME, 0, 0, 0]);
        }
        let _ = ask(call::SETGROUPS, [0; 6]);
        let _ = ask(call::SETRESGID, [own, own, own, 0, 0, 0]);
        let _ = ask(call::SETRESUID, [own, own, own, 0, 0, 0]);
        if dumpable == Ok(1) {
            let _ = ask(call::PRCTL, [PR_SET_DUMPABLE, 1, 0, 0, 0, 0]);
        }
    }
    // `struct __user_cap_header_struct` of the calling thread, and no capabilities.
    let (header, none) = ([CAPABILITY_VERSION_3], [0_u64; 3]);
    let (header, none) = (header.as_ptr().addr(), none.as_ptr().addr());
    let _ = ask(call::CAPSET, [header, none, 0, 0, 0, 0]);
    let _ = ask(call::PRCTL, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0]);
}

/// A user of no program, of 2^28, which nobody can tell before: the number of a thread would come
/// again, in another PID namespace at once.
fn user_of_nobody() -> usize {
    const NOBODYS: u32 = 0x7000_0000;
    const NONBLOCK: usize = 1;
    let mut drawn = 0_u32;
    let at = ptr::from_mut(&mut drawn).addr();
    // Where the kernel has none yet, it is the address of the stack, which the kernel has drawn.
    if ask(call::GETRANDOM, [at, size_of::<u32>(), NONBLOCK, 0, 0, 0]).is_err() {
        drawn = (at >> 12) as u32;
    }
    (NOBODYS | drawn & 0x0fff_ffff) as usize
}

/// Has the kernel run the helper as soon as it is woken, beside a thread that runs: who asks for
/// less time at once comes first (Linux 6.12).
fn run_soon() {
    const SHORTEST_SLICE: u64 = 100_000; // ns
    let mut scheduled = Scheduled::default();
    let at = ptr::from_mut(&mut scheduled).addr();
    let asked = ask(call::SCHED_GETATTR, [0, at, size_of::<Scheduled>(), 0, 0, 0]);
    if asked.is_ok() && scheduled.policy == 0 {
        scheduled.slice = SHORTEST_SLICE;
        let at = ptr::from_mut(&mut scheduled).addr();
        let _ = ask(call::SCHED_SETATTR, [0, at, 0, 0, 0, 0]);
    }
}

/// `struct sched_attr`.
#[derive(Default)]
#[repr(C)]
struct Scheduled {
    bytes: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    slice: u64,
    rest: [u64; 2],
}

struct Helper {
    socket: usize,
    userfaultfd: usize,
    control: &'static Control,
    tied: Tied,
    door: i32,
    /// Where staging begins and ends, without the page by which the supervisor knows the program.
    staging: (usize, usize),
}

/// `struct sockaddr_un`.
#[repr(C)]
struct Address {
    family: u16,
    path: [u8; PATH_BYTES],
}

/// `struct iovec`.
#[repr(C)]
struct Buffer {
    base: usize,
    bytes: usize,
}

/// `struct msghdr`.
#[repr(C)]
struct Header {
    name: usize,
    name_bytes: usize,
    buffers: usize,
    buffer_count: usize,
    extra: usize,
    extra_bytes: usize,
    flags: usize,
}

/// Descriptors that one message brings at most.
const DESCRIPTORS_MAX: usize = 3;

/// `struct cmsghdr` with up to so many descriptors.
#[repr(C)]
struct Extra {
    bytes: usize,
    level: u32,
    kind: u32,
    descriptors: [i32; DESCRIPTORS_MAX],
}

const EXTRA_HEAD_BYTES: usize = 16;
const SOL_SOCKET: u32 = 1;
const SCM_RIGHTS: u32 = 1;
const MSG_NOSIGNAL: usize = 0x4000;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    from: u64,
    bytes: u64,
    mode: u64,
    can: u64,
}

/// `struct uffdio_move`.
#[repr(C)]
struct Move {
    to: u64,
    from: u64,
    bytes: u64,
    mode: u64,
    moved: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtect {
    from: u64,
    bytes: u64,
    mode: u64,
}

impl Helper {
    /// Makes itself known to the supervisor. Where that fails the program runs as it would without
    /// us.
    fn meet(hello: u32, stack: usize, come: &Come, tied: Tied) -> Result<Helper, Failed> {
        let socket = come.socket;
        let refused = |_| Failed::Refused;
        let [secret, more] = if hello == kind::HELLO_FORK { read_secret() } else { [0; 2] };
        let words = [stack as u64, STACK_BYTES as u64, secret, more];
        send(socket, Message::new(hello, words), None).ok_or(Failed::Lost)?;
        let (welcome, [shared, door, given]) = receive(socket).ok_or(Failed::Lost)?;
        if welcome.kind == kind::END {
            return Err(Failed::Refused);
        }
        let bytes = size_of::<Control>().next_multiple_of(PAGE_BYTES as usize);
        let map = |bytes, flags, file| ask(call::MMAP, [0, bytes, PROT_READ_WRITE, flags, file, 0]);
        let control = map(bytes, MAP_SHARED, shared as usize).map_err(refused)?;
        let _ = ask(call::MADVISE, [control, bytes, MADV_DONTFORK, 0, 0, 0]);
        close(shared as u32);
        let control: *const Control = ptr::with_exposed_provenance(control);
        // SAFETY: the supervisor's memory has this size, is all atomics, and stays mapped.
        let control = unsafe { &*control };
        let made = match (welcome.kind, come.userfaultfd) {
            (kind::WELCOME_FORKED, own) => {
                own.into_iter().for_each(|own| close(own as u32));
                Ok(given as usize)
            }
            (kind::WELCOME_DEVICE | kind::WELCOME_CALL, Some(own)) => Ok(own),
            (kind::WELCOME_DEVICE, None) => {
                ask(call::IOCTL, [given as usize, USERFAULTFD_IOC_NEW, O_CLOEXEC_NONBLOCK, 0, 0, 0])
            }
            (kind::WELCOME_CALL, None) => Err(EPERM),
            _ => return Err(Failed::Refused),
        };
        let staging_bytes = welcome.words[0] as usize;
        let staging = map_staging(None, staging_bytes, PROT_READ_WRITE).inspect(|at| {
            let last = at + staging_bytes - PAGE_BYTES as usize;
            let _ = ask(call::MADVISE, [last, PAGE_BYTES as usize, MADV_DONTNEED, 0, 0, 0]);
        });
        let made = made.map_err(|errno| [errno, 0]);
        let staging = staging.map_err(|errno| [errno, 1]);
        let (userfaultfd, staging) = match (made, staging) {
            (Ok(made), Ok(staging)) => (made, staging),
            (Err(words), _) | (_, Err(words)) => {
                send(socket, Message::new(kind::CANNOT, words.map(u64::from)), None);
                return Err(Failed::Refused);
            }
        };
        if welcome.kind == kind::WELCOME_DEVICE {
            close(given as u32);
        }
        // SAFETY: null, or memory that stays mapped and is all atomics.
        let for_forks = unsafe { FOR_FORKS.load(Ordering::Relaxed).as_ref() };
        let identity = for_forks.map_or(0, page_of_identity);
        let ready = [staging, staging_bytes, identity, tied.end_word].map(|word| word as u64);
        // The helper keeps it open too: with the supervisor gone, memory that is not there must not
        // read as zeros.
        let own = tied.ends.and_then(|_| {
            let pid = ask(call::GETPID, [0; 6]).ok()?;
            ask(call::PIDFD_OPEN, [pid, 0, 0, 0, 0, 0]).ok()
        });
        let descriptors = [userfaultfd as i32, own.map_or(-1, |own| own as i32)];
        let ready = try_send(socket, Message::new(kind::READY, ready), descriptors);
        own.into_iter().for_each(|own| close(own as u32));
        ready.map_err(|_| Failed::Lost)?;
        if let Some(for_forks) = for_forks {
            let page = staging + staging_bytes - PAGE_BYTES as usize;
            for_forks.page.store(page, Ordering::Relaxed);
            for_forks.thread.store(ask(call::GETTID, [0; 6]).unwrap_or(0), Ordering::Relaxed);
            for_forks.door.store(door as usize, Ordering::Relaxed);
            for_forks.control.store(ptr::from_ref(control).cast_mut(), Ordering::Release);
        }
        let staging = (staging, staging + staging_bytes - PAGE_BYTES as usize);
        Ok(Helper { socket, userfaultfd, control, tied, door, staging })
    }

    /// Carries out commands until the program ends, or becomes another one.
    fn work(&self) -> ! {
        let (mut rung, mut lent, mut look_after, mut waited) = (0, 0, LET_GO_US, Ok(()));
        // glibc has a thread's number there until the kernel clears it, musl a lock that is mostly
        // free. The kernel clears the word before the memory is let go.
        let (has_number, mut is_cleared) = (self.tied.word() != Some(0), false);
        loop {
            let bell = self.control.bell.load(Ordering::Acquire);
            if bell != rung {
                rung = bell;
                self.answer_bell();
                continue;
            }
            let wish = self.control.wish.load(Ordering::Acquire);
            if wish != lent {
                lent = wish;
                let _ = self.lend_door();
                self.control.lent.store(lent, Ordering::Release);
                wake(&self.control.lent);
                continue;
            }
            // Threads that run on may unmap the word of one that has ended.
            let word = if is_cleared { None } else { self.tied.word() };
            is_cleared |= has_number && word == Some(0);
            let may_end = is_cleared || word == Some(0);
            // An ending thread serves no faults: the kernel leaves a word on a protected page.
            if (may_end || waited == Err(ETIMEDOUT)) && self.tied.is_alone() {
                self.tied.end();
            }
            let most = if may_end { look_after } else { LOOK_AGAIN_US };
            waited = self.wait([bell, wish], word.filter(|_| !is_cleared), most);
            look_after = match waited {
                Ok(()) => LET_GO_US,
                Err(_) => (look_after * 2).min(LOOK_AGAIN_US),
            };
            // The supervisor says nothing on the connection, but that it does without the helper.
            if waited == Err(ETIMEDOUT) && self.is_alone() {
                match receive(self.socket) {
                    Some((message, _)) if message.kind == kind::END => self.tied.end(),
                    _ => end_program(Some(self.tied), SUPERVISOR_GONE),
                }
            }
        }
    }

    fn answer_bell(&self) {
        let code = self.control.end.load(Ordering::Relaxed);
        if code != 0 {
            let _ = ask(call::EXIT, [code as usize - 1, 0, 0, 0, 0, 0]);
        }
        WATCHED.store(true, Ordering::Relaxed);
        self.carry_out();
        if send(self.socket, Message::new(kind::DONE, []), None).is_none() {
            end_program(Some(self.tied), SUPERVISOR_GONE);
        }
    }

    /// Waits until the supervisor or the program wants something, or the first thread of the
    /// program ends.
    fn wait(&self, known: [u32; 2], word: Option<u32>, most: u64) -> Result<(), u32> {
        let until = monotonic_after(most);
        let Control { bell, wish, .. } = self.control;
        let awaited = |value: u32, at: usize| Awaited {
            value: u64::from(value),
            at: at as u64,
            flags: FUTEX_SHARED_32,
            rest: 0,
        };
        let all = [
            awaited(known[0], ptr::from_ref(bell).addr()),
            awaited(known[1], ptr::from_ref(wish).addr()),
            awaited(word.unwrap_or(0), self.tied.end_word),
        ];
        let count = 2 + usize::from(word.is_some());
        let until = until.as_ptr().addr();
        let waited = [all.as_ptr().addr(), count, 0, until, CLOCK_MONOTONIC, 0];
        if ask(call::FUTEX_WAITV, waited)? == 2 {
            // Somebody else may wait for it, and the kernel, or musl, wakes but one.
            let _ = ask(call::FUTEX, [self.tied.end_word, FUTEX_WAKE, 1, 0, 0, 0]);
        }
        Ok(())
    }

    /// Sends the door to the program, which has changed its user.
    fn lend_door(&self) -> Result<(), u32> {
        let name = self.control.lend_to.load(Ordering::Relaxed).to_ne_bytes();
        let mut address = Address { family: 1, path: [0; PATH_BYTES] };
        address.path[..NAME_BYTES].copy_from_slice(&name[..NAME_BYTES]);
        let at = ptr::from_ref(&address).addr();
        let socket = ask(call::SOCKET, [UNIX_PACKETS[0], UNIX_PACKETS[1], 0, 0, 0, 0])?;
        let bytes = size_of::<u16>() + NAME_BYTES;
        let sent = ask(call::CONNECT, [socket, at, bytes, 0, 0, 0])
            .and_then(|_| try_send(socket, Message::new(kind::CONNECT, []), [self.door, -1]));
        close(socket as u32);
        sent
    }

    fn carry_out(&self) {
        let control = self.control;
        let what = control.work.load(Ordering::Acquire);
        let count = (control.run_count.load(Ordering::Relaxed) as usize).min(RUNS_MAX);
        let runs = &control.runs[..count];
        if what == work::DROP_FREED {
            // Without the lock: nothing of this is in staging.
            for run in runs {
                let _ = advise(&run.from, &run.bytes, MADV_PAGEOUT);
            }
            control.done.store(control.given.load(Ordering::Relaxed), Ordering::Release);
            return;
        }
        if what == work::OWN_AND_MOVE {
            // Without the lock: a page that is missing by now is asked for of the supervisor.
            for run in runs {
                let _ = advise(&run.from, &run.bytes, MADV_POPULATE_WRITE);
            }
        }
        let is_remap = work::is_remap(what);
        let is_ready = self.map_anew().and_then(|()| match is_remap {
            true => Ok(()), // the kernel would report that staging is mapped over
            false => self.register(true),
        });
        self.lock();
        let mut pauses = PAUSES_MAX;
        for (at, run) in runs.iter().enumerate() {
            match is_ready {
                Ok(()) if is_remap => self.remap_run(at as u32, run, &mut pauses),
                Ok(()) => self.move_run(run, &mut pauses),
                Err(errno) => run.error.store(u64::from(errno), Ordering::Relaxed),
            }
        }
        control.done.store(control.given.load(Ordering::Relaxed), Ordering::Release);
        self.unlock();
        // What mremap has moved is registered as before. Memory that stays registered is discarded
        // all the same.
        let _ = self.register(false);
        if control.drop_bytes.load(Ordering::Relaxed) > 0 {
            self.drop_tray();
        }
    }

    /// Gives memory of staging back to the kernel, which refuses that once the program has locked
    /// all of its memory (mlockall). The helper then unlocks staging. From then on, the kernel
    /// refuses to move locked pages there.
    fn drop_tray(&self) {
        let control = self.control;
        let drop = || advise(&control.drop_from, &control.drop_bytes, MADV_DONTNEED);
        if drop() == Err(EINVAL) {
            let (from, to) = self.staging;
            let _ = ask(call::MUNLOCK, [from, to - from, 0, 0, 0, 0]);
            let _ = drop();
        }
    }

    /// Maps the memory that the runs go to anew, if it needs other rights. It is empty.
    fn map_anew(&self) -> Result<(), u32> {
        let control = self.control;
        let rights = control.fill_anew.load(Ordering::Relaxed);
        if rights & MAP_ANEW != 0 {
            let from = control.fill_from.load(Ordering::Relaxed) as usize;
            let bytes = control.fill_bytes.load(Ordering::Relaxed) as usize;
            map_staging(Some(from), bytes, (rights & !MAP_ANEW) as usize)?;
            control.fill_anew.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Registers the memory that the runs go to with the userfaultfd, or does so no longer. The
    /// kernel makes that a mapping of its own, and refuses if the program has its maximum number of
    /// mappings; all of staging needs no other mapping.
    fn register(&self, on: bool) -> Result<(), u32> {
        let from = self.control.fill_from.load(Ordering::Relaxed);
        let bytes = self.control.fill_bytes.load(Ordering::Relaxed);
        if bytes == 0 {
            return Ok(());
        }
        match self.register_range(on, from, bytes) {
            Err(ENOMEM) => {
                let (from, to) = self.staging;
                self.register_range(on, from as u64, (to - from) as u64)
            }
            result => result,
        }
    }

    fn register_range(&self, on: bool, from: u64, bytes: u64) -> Result<(), u32> {
        // The argument begins with the range, and UFFDIO_UNREGISTER reads nothing else.
        let mut order = Register { from, bytes, mode: REGISTER_MISSING, can: 0 };
        let request = if on { UFFDIO_REGISTER } else { UFFDIO_UNREGISTER };
        let address = ptr::from_mut(&mut order).addr();
        ask(call::IOCTL, [self.userfaultfd, request, address, 0, 0, 0])?;
        Ok(())
    }

    fn lock(&self) {
        let mut turns = 0_u32;
        while !self.changes_lock(holder::NONE, holder::HELPER)
            && !self.changes_lock(holder::REMAPPING, holder::HELPER)
        {
            let _ = ask(call::YIELD, [0; 6]);
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(LOOK_EVERY) && self.is_alone() {
                end_program(Some(self.tied), SUPERVISOR_GONE);
            }
        }
    }

    /// Lets go of the lock, unless the supervisor has taken it away.
    fn unlock(&self) {
        let _ = self.changes_lock(holder::HELPER, holder::NONE);
    }

    /// Gives the lock to another holder; `false` where it has a third one.
    fn changes_lock(&self, from: u32, to: u32) -> bool {
        let lock = &self.control.lock;
        lock.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether the supervisor is gone. While a command is carried out, it says nothing.
    fn is_alone(&self) -> bool {
        let mut byte = 0_u8;
        let at = ptr::from_mut(&mut byte).addr();
        let asked = ask(call::RECVFROM, [self.socket, at, 1, MSG_PEEK_DONTWAIT, 0, 0]);
        asked != Err(EAGAIN)
    }

    /// Lets the supervisor read what the program has changed, and the program go on.
    fn pause(&self) {
        let Control { changes, paused, .. } = self.control;
        let before = changes.load(Ordering::Relaxed);
        paused.store(1, Ordering::Relaxed);
        self.unlock();
        for _ in 0..YIELDS {
            let _ = ask(call::YIELD, [0; 6]);
            if changes.load(Ordering::Relaxed) != before {
                break;
            }
        }
        self.lock();
        paused.store(0, Ordering::Relaxed);
    }

    /// Moves the pages of a run, up to the first that does not go. The caller has the lock, and is
    /// without it for so many moments.
    fn move_run(&self, run: &Run, pauses: &mut u32) {
        let (to, from) = (run.to.load(Ordering::Relaxed), run.from.load(Ordering::Relaxed));
        let (mut moved, mut marked, mut error) = (0, 0, 0);
        loop {
            let bytes = run.bytes.load(Ordering::Relaxed);
            if moved >= bytes {
                break;
            }
            let mut order = Move {
                to: to + moved,
                from: from + moved,
                bytes: bytes - moved,
                mode: MOVE_DONTWAKE,
                moved: 0,
            };
            let address = ptr::from_mut(&mut order).addr();
            let asked = ask(call::IOCTL, [self.userfaultfd, UFFDIO_MOVE, address, 0, 0, 0]);
            let mut part = order.moved.max(0) as u64;
            if asked.is_err() {
                // Before the supervisor may look.
                let rest = moved + part;
                part += self.moved_untold(to + rest, from + rest, bytes - rest);
            }
            // Later the program may have changed mappings there.
            if marked == moved && part > 0 && self.mark(from + moved, part) {
                marked += part;
                run.marked.store(marked, Ordering::Relaxed);
            }
            moved += part;
            run.moved.store(moved, Ordering::Relaxed);
            match asked {
                Ok(_) => {}
                Err(EAGAIN | EEXIST) if part > 0 => {} // it was interrupted
                Err(EAGAIN) if *pauses > 0 => {
                    *pauses -= 1;
                    self.pause();
                }
                Err(errno) => {
                    error = errno;
                    break;
                }
            }
        }
        run.error.store(u64::from(error), Ordering::Relaxed);
    }

    /// Write-protects empty entries. They are marked as those of evicted pages.
    fn mark(&self, from: u64, bytes: u64) -> bool {
        let mut order = WriteProtect { from, bytes, mode: WRITEPROTECT };
        let address = ptr::from_mut(&mut order).addr();
        ask(call::IOCTL, [self.userfaultfd, UFFDIO_WRITEPROTECT, address, 0, 0, 0]).is_ok()
    }

    /// Moves the pages of a run, all of them or none, whatever their rights. The lock as in
    /// [`Helper::move_run`]; the supervisor may also take it once they have moved.
    ///
    /// mremap(2) moves whatever is at the address. The helper calls it at once after the kernel has
    /// said that no event is pending, and that the program cannot write there. The kernel may hold
    /// pages of writable memory for I/O, and would go on with the pages in staging. Pages that are
    /// not of registered memory move without a report: by that the supervisor sees that another
    /// mapping came between the two.
    fn remap_run(&self, number: u32, run: &Run, pauses: &mut u32) {
        let to = run.to.load(Ordering::Relaxed) as usize;
        let from = run.from.load(Ordering::Relaxed) as usize;
        while *pauses > 0 && self.is_changing() {
            *pauses -= 1;
            self.pause();
        }
        self.control.remapped_run.store(number, Ordering::Relaxed);
        let bytes = run.bytes.load(Ordering::Relaxed) as usize; // 0 once taken back
        let is_writable = || {
            let is_meant = self.control.work.load(Ordering::Relaxed) == work::REMAP_UNREADABLE;
            !is_meant && self.is_writable(from)
        };
        let may_go = *pauses > 0 && (bytes == 0 || !is_writable());
        let mut error = if may_go { 0 } else { EAGAIN };
        if error == 0 && bytes > 0 && self.changes_lock(holder::HELPER, holder::REMAPPING) {
            let asked = ask(call::MREMAP, [from, bytes, bytes, MREMAP_PAGES_TO, to, 0]);
            match asked {
                Ok(_) => run.moved.store(bytes as u64, Ordering::Relaxed),
                Err(errno) => error = errno,
            }
            self.lock();
            if asked.is_ok() {
                // The supervisor reads it, whatever rights it had, and no child needs it.
                let _ = ask(call::MPROTECT, [to, bytes, PROT_READ, 0, 0, 0]);
                let _ = ask(call::MADVISE, [to, bytes, MADV_DONTFORK, 0, 0, 0]);
            }
        }
        run.error.store(u64::from(error), Ordering::Relaxed);
    }

    /// Whether the program can write at an address, or mappings change. The kernel refuses to move
    /// a page to where it is: first for the rights of the mapping, if that is read-only.
    fn is_writable(&self, at: usize) -> bool {
        let at = at as u64;
        let mut order = Move { to: at, from: at, bytes: PAGE_BYTES, mode: MOVE_DONTWAKE, moved: 0 };
        let address = ptr::from_mut(&mut order).addr();
        ask(call::IOCTL, [self.userfaultfd, UFFDIO_MOVE, address, 0, 0, 0]) != Err(EINVAL)
    }

    /// Whether the kernel has something to be read about changed mappings: then it refuses a copy
    /// of nothing for that.
    fn is_changing(&self) -> bool {
        let mut order = Move { to: 0, from: 0, bytes: 0, mode: 0, moved: 0 };
        let address = ptr::from_mut(&mut order).addr();
        ask(call::IOCTL, [self.userfaultfd, UFFDIO_COPY, address, 0, 0, 0]) == Err(EAGAIN)
    }

    /// Bytes that were moved and not counted, of a move that has failed: EEXIST, or EAGAIN where
    /// some were counted before. Linux 6.18 moves several pages at once. If the program writes to
    /// the first one meanwhile, the kernel moves them in a second try and then tries once more,
    /// because the -EAGAIN of the first try is still set. They are there, and not where they were:
    /// nobody fills that before the supervisor has read of it.
    fn moved_untold(&self, to: u64, from: u64, bytes: u64) -> u64 {
        let is_moved = |at: &u64| self.is_resident(to + at) && !self.is_resident(from + at);
        let pages = (0..bytes).step_by(PAGE_BYTES as usize).take_while(is_moved).count();
        pages as u64 * PAGE_BYTES
    }

    fn is_resident(&self, page: u64) -> bool {
        let mut told = 0_u8;
        loop {
            let at = ptr::from_mut(&mut told).addr();
            match ask(call::MINCORE, [page as usize, PAGE_BYTES as usize, at, 0, 0, 0]) {
                Ok(_) => return told & 1 == 1,
                Err(ENOMEM) => return false, // the program has unmapped it
                Err(EAGAIN) => {}
                Err(_) => end_program(Some(self.tied), UNTOLD),
            }
        }
    }
}

/// `struct futex_waitv`.
#[repr(C)]
struct Awaited {
    value: u64,
    at: u64,
    flags: u32,
    rest: u32,
}

/// `struct timespec`: so long after now.
fn monotonic_after(microseconds: u64) -> [u64; 2] {
    let mut time = [0_u64; 2];
    let _ = ask(call::CLOCK_GETTIME, [CLOCK_MONOTONIC, time.as_mut_ptr().addr(), 0, 0, 0, 0]);
    let [seconds, nanoseconds] = time;
    let nanoseconds = nanoseconds + microseconds * 1000;
    [seconds + nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000]
}

/// Maps staging, where the kernel finds room or over what was there.
fn map_staging(at: Option<usize>, bytes: usize, rights: usize) -> Result<usize, u32> {
    let fixed = at.map_or(0, |_| MAP_FIXED);
    let flags = MAP_PRIVATE_ANONYMOUS | MAP_NORESERVE | fixed;
    let at = ask(call::MMAP, [at.unwrap_or(0), bytes, rights, flags, usize::MAX, 0])?;
    ask(call::MADVISE, [at, bytes, MADV_DONTFORK, 0, 0, 0])?;
    let _ = ask(call::MADVISE, [at, bytes, MADV_NOHUGEPAGE, 0, 0, 0]);
    // Of a program that locks all of its memory (mlockall), it is filled by now.
    let _ = ask(call::MUNLOCK, [at, bytes, 0, 0, 0, 0]);
    Ok(at)
}

/// Memory that is all zero, in each child of a fork again: a page for [`ForForks`], and the page of
/// identity. Null if the kernel has none.
pub(crate) fn memory_for_forks() -> *mut ForForks {
    let bytes = 2 * PAGE_BYTES as usize;
    let mapped = ask(call::MMAP, [0, bytes, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, usize::MAX, 0]);
    let Ok(at) = mapped else { return ptr::null_mut() };
    match ask(call::MADVISE, [at, bytes, MADV_WIPEONFORK, 0, 0, 0]) {
        Ok(_) => ptr::with_exposed_provenance_mut(at),
        Err(_) => {
            let _ = ask(call::MUNMAP, [at, bytes, 0, 0, 0, 0]);
            ptr::null_mut()
        }
    }
}

/// The page that the supervisor fills with a secret of this process alone, once it is touched.
fn page_of_identity(for_forks: &ForForks) -> usize {
    ptr::from_ref(for_forks).addr() + PAGE_BYTES as usize
}

/// The secret of a child that the supervisor knows of since the fork; zeros where it does not.
pub(crate) fn read_secret() -> [u64; 2] {
    // SAFETY: null, or memory that stays mapped and is all atomics.
    let Some(for_forks) = (unsafe { FOR_FORKS.load(Ordering::Relaxed).as_ref() }) else {
        return [0; 2];
    };
    let words: *const [u64; 2] = ptr::with_exposed_provenance(page_of_identity(for_forks));
    // SAFETY: memory that stays mapped.
    unsafe { words.read_volatile() }
}

/// Whether the program reaches the path of the supervisor's socket.
fn reaches_socket() -> bool {
    const WRITE_OK: usize = 2;
    let path = socket_path().as_ptr().addr();
    ask(call::FACCESSAT, [call::AT_FDCWD, path, WRITE_OK, 0, 0, 0]).is_ok()
}

/// The door, from the helper's table of files for that of the calling thread, where its children
/// would not reach the supervisor otherwise (Linux 6.9).
pub(crate) fn borrow_door(for_forks: &ForForks) -> Option<u32> {
    const PIDFD_THREAD: usize = 0o200;
    if reaches_socket() {
        return None;
    }
    let helper = for_forks.thread.load(Ordering::Relaxed);
    let pidfd = ask(call::PIDFD_OPEN, [helper, PIDFD_THREAD, 0, 0, 0, 0]).ok()?;
    let door = for_forks.door.load(Ordering::Relaxed);
    let lent = ask(call::PIDFD_GETFD, [pidfd, door, 0, 0, 0, 0]);
    let _ = ask(call::CLOSE, [pidfd, 0, 0, 0, 0, 0]);
    lent.or_else(|_| ask_for_door(for_forks, helper)).ok().map(|door| door as u32)
}

/// Likewise, where the program has not the right to take it: it has changed its user.
fn ask_for_door(for_forks: &ForForks, helper: usize) -> Result<usize, u32> {
    // SAFETY: null, or the helper's memory, which stays mapped and is all atomics.
    let control = unsafe { for_forks.control.load(Ordering::Acquire).as_ref() }.ok_or(EINVAL)?;
    let listener = ask(call::SOCKET, [UNIX_PACKETS[0], UNIX_PACKETS[1], 0, 0, 0, 0])?;
    let lent = have_door_sent(control, listener, helper);
    close(listener as u32);
    lent
}

/// Takes what the helper sends to a new socket.
fn have_door_sent(control: &Control, listener: usize, helper: usize) -> Result<usize, u32> {
    const NONBLOCK_CLOEXEC: usize = 0o2_004_000;
    const SO_PEERCRED: usize = 17;
    let mut address = Address { family: 1, path: [0; PATH_BYTES] };
    let at = ptr::from_mut(&mut address).addr();
    // With the family alone, the kernel gives it a name.
    ask(call::BIND, [listener, at, size_of::<u16>(), 0, 0, 0])?;
    ask(call::LISTEN, [listener, 1, 0, 0, 0, 0])?;
    let mut bytes = size_of::<Address>() as u32;
    ask(call::GETSOCKNAME, [listener, at, ptr::from_mut(&mut bytes).addr(), 0, 0, 0])?;
    let mut name = [0; size_of::<u64>()];
    name[..NAME_BYTES].copy_from_slice(&address.path[..NAME_BYTES]);
    control.lend_to.store(u64::from_ne_bytes(name), Ordering::Relaxed);
    let wish = control.wish.fetch_add(1, Ordering::Release).wrapping_add(1);
    wake(&control.wish);
    let second = [1_u64, 0];
    let lent = loop {
        let lent = control.lent.load(Ordering::Acquire);
        let at = ptr::from_ref(&control.lent).addr();
        let wait = [at, FUTEX_WAIT, lent as usize, second.as_ptr().addr(), 0, 0];
        if lent == wish || ask(call::FUTEX, wait) == Err(ETIMEDOUT) {
            break lent == wish;
        }
    };
    let socket = ask(call::ACCEPT4, [listener, 0, 0, NONBLOCK_CLOEXEC, 0, 0])?;
    // `struct ucred`: anybody can find the name.
    let mut peer = [0_u32; 3];
    let mut bytes = size_of_val(&peer) as u32;
    let (at, bytes) = (peer.as_mut_ptr().addr(), ptr::from_mut(&mut bytes).addr());
    let asked = ask(call::GETSOCKOPT, [socket, 1, SO_PEERCRED, at, bytes, 0]);
    let is_helper = lent && asked.is_ok() && peer[0] as usize == helper;
    let sent = is_helper.then(|| receive(socket)).flatten();
    close(socket as u32);
    sent.map(|(_, [door, ..])| door as usize).ok_or(EPERM)
}

/// Bytes of a name in the abstract namespace that the kernel gives: a zero, and five digits.
const NAME_BYTES: usize = 6;

/// Wakes who waits for a word that others have mapped, too.
fn wake(word: &AtomicU32) {
    let _ = ask(call::FUTEX, [ptr::from_ref(word).addr(), FUTEX_WAKE, 1, 0, 0, 0]);
}

pub(crate) fn close(descriptor: u32) {
    let _ = ask(call::CLOSE, [descriptor as usize, 0, 0, 0, 0, 0]);
}

/// Reads a page of staging that is missing, or is made so: the supervisor gets the fault and fills
/// the page.
pub(crate) fn touch(page: usize) {
    let _ = ask(call::MADVISE, [page, PAGE_BYTES as usize, MADV_DONTNEED, 0, 0, 0]);
    let page: *const u8 = ptr::with_exposed_provenance(page);
    // SAFETY: memory of the helper's, which stays mapped.
    let _ = unsafe { page.read_volatile() };
}

/// A connection to the supervisor: by the path of its socket, or else through the door.
fn connect(door: Option<u32>) -> Result<usize, u32> {
    match (connect_by_path(), door) {
        (Err(_), Some(door)) => connect_by_door(door),
        (connected, _) => connected,
    }
}

/// A unix socket of packets, closed on exec.
const UNIX_PACKETS: [usize; 2] = [1, 5 | 0o2_000_000];

fn connect_by_path() -> Result<usize, u32> {
    let socket = ask(call::SOCKET, [UNIX_PACKETS[0], UNIX_PACKETS[1], 0, 0, 0, 0])?;
    let address = Address { family: 1, path: *socket_path() };
    let bytes = size_of::<Address>();
    let connected = ask(call::CONNECT, [socket, ptr::from_ref(&address).addr(), bytes, 0, 0, 0]);
    if connected.is_err() {
        let _ = ask(call::CLOSE, [socket, 0, 0, 0, 0, 0]);
    }
    connected.map(|_| socket)
}

fn connect_by_door(door: u32) -> Result<usize, u32> {
    let mut pair = [0_i32; 2];
    let at = pair.as_mut_ptr().addr();
    ask(call::SOCKETPAIR, [UNIX_PACKETS[0], UNIX_PACKETS[1], 0, at, 0, 0])?;
    let [kept, given] = pair;
    let sent = try_send(door as usize, Message::new(kind::CONNECT, []), [given, -1]);
    let _ = ask(call::CLOSE, [given as usize, 0, 0, 0, 0, 0]);
    sent.map(|_| kept as usize)
}

fn advise(from: &AtomicU64, bytes: &AtomicU64, advice: usize) -> Result<usize, u32> {
    let from = from.load(Ordering::Relaxed) as usize;
    let bytes = bytes.load(Ordering::Relaxed) as usize;
    ask(call::MADVISE, [from, bytes, advice, 0, 0, 0])
}

/// Sends a message, with a descriptor or none.
fn send(socket: usize, message: Message, descriptor: Option<i32>) -> Option<()> {
    try_send(socket, message, [descriptor.unwrap_or(-1), -1]).ok()
}

/// Sends a message, with the descriptors before a -1.
fn try_send(socket: usize, message: Message, descriptors: [i32; 2]) -> Result<(), u32> {
    let mut bytes = message.to_bytes();
    let buffer = Buffer { base: bytes.as_mut_ptr().addr(), bytes: MESSAGE_BYTES };
    let count = descriptors.iter().filter(|descriptor| **descriptor >= 0).count();
    let mut extra = Extra {
        bytes: EXTRA_HEAD_BYTES + count * size_of::<i32>(),
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        descriptors: [descriptors[0], descriptors[1], -1],
    };
    let header = Header {
        name: 0,
        name_bytes: 0,
        buffers: ptr::from_ref(&buffer).addr(),
        buffer_count: 1,
        extra: if count > 0 { ptr::from_mut(&mut extra).addr() } else { 0 },
        extra_bytes: if count > 0 { extra.bytes.next_multiple_of(8) } else { 0 },
        flags: 0,
    };
    loop {
        let address = ptr::from_ref(&header).addr();
        match ask(call::SENDMSG, [socket, address, MSG_NOSIGNAL, 0, 0, 0]) {
            Ok(_) => return Ok(()),
            Err(EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Waits for a message, and the descriptors that come along.
fn receive(socket: usize) -> Option<(Message, [i32; DESCRIPTORS_MAX])> {
    let mut bytes = [0_u8; MESSAGE_BYTES];
    let buffer = Buffer { base: bytes.as_mut_ptr().addr(), bytes: MESSAGE_BYTES };
    let mut extra = Extra { bytes: 0, level: 0, kind: 0, descriptors: [-1; DESCRIPTORS_MAX] };
    let mut header = Header {
        name: 0,
        name_bytes: 0,
        buffers: ptr::from_ref(&buffer).addr(),
        buffer_count: 1,
        extra: ptr::from_mut(&mut extra).addr(),
        extra_bytes: size_of::<Extra>(),
        flags: 0,
    };
    loop {
        let address = ptr::from_mut(&mut header).addr();
        match ask(call::RECVMSG, [socket, address, MSG_CMSG_CLOEXEC, 0, 0, 0]) {
            Ok(MESSAGE_BYTES) => return Some((Message::from_bytes(&bytes)?, extra.descriptors)),
            Err(EINTR) => {}
            Ok(_) | Err(_) => return None,
        }
    }
}

/// The program's standard error, as it is: the helper may open nothing. An error where a write may
/// have to wait, and where the file is one of data: a database may have been opened as number 2.
fn standard_error(program: Option<usize>) -> Result<usize, u32> {
    const POLLOUT: u64 = 4;
    let pid = program.map_or_else(|| ask(call::GETPID, [0; 6]), Ok)?;
    let pidfd = ask(call::PIDFD_OPEN, [pid, 0, 0, 0, 0, 0])?;
    let file = ask(call::PIDFD_GETFD, [pidfd, 2, 0, 0, 0, 0])?;
    // Files and disks can be mapped if they are open for reading, too: a log is not.
    if ask(call::MMAP, [0, PAGE_BYTES as usize, PROT_READ, MAP_SHARED, file, 0]).is_ok() {
        return Err(EEXIST);
    }
    // `struct pollfd`: the descriptor, what is asked for, what is so.
    let mut ready = [file as u64 | POLLOUT << 32];
    match ask(call::POLL, [ready.as_mut_ptr().addr(), 1, 0, 0, 0, 0])? {
        0 => Err(EAGAIN),
        _ => Ok(file),
    }
}

/// Ends the program where this library has failed.
pub(crate) fn end_failed(message: &[u8]) -> ! {
    end_program(None, message)
}

/// Ends the program, with a message on its standard error if the helper may write there. A helper
/// of a program of root's has no such right, unless it is a thread. The program ends with a helper
/// that is a process.
fn end_program(tied: Option<Tied>, message: &[u8]) -> ! {
    if let Some(tied) = tied
        && tied.is_alone()
    {
        tied.end();
    }
    // Where nobody reads it, the program is ended all the same.
    if let Ok(file) = standard_error(tied.map(|tied| tied.program)) {
        let _ = ask(call::WRITE, [file, message.as_ptr().addr(), message.len(), 0, 0, 0]);
    }
    tied.iter().for_each(Tied::kill);
    loop {
        if let Ok(pid) = ask(call::GETPID, [0; 6]) {
            let _ = ask(call::KILL, [pid, SIGKILL, 0, 0, 0, 0]);
        }
        // The first process of a PID namespace cannot kill itself.
        let _ = ask(call::EXIT_GROUP, [128 + SIGKILL, 0, 0, 0, 0, 0]);
    }
}
