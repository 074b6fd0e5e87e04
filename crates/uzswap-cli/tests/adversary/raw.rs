//! System calls that the standard library does not have, for memory that a test maps itself.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::AtomicBool;

use io_uring::{IoUring, opcode, types};

pub(crate) const PAGE: usize = 4096;
pub(crate) const WORDS: usize = PAGE / 8;

pub(crate) type Words = [u64; WORDS];

/// The errno of the last call.
pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn told(result: i32) -> Result<(), i32> {
    if result == 0 { Ok(()) } else { Err(errno()) }
}

pub(crate) const READ: i32 = libc::PROT_READ;
pub(crate) const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
pub(crate) const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
/// As glibc maps the stack of a thread.
pub(crate) const STACK: i32 = PRIVATE | libc::MAP_STACK;
pub(crate) const PRIVATE_FILE: i32 = libc::MAP_PRIVATE;
pub(crate) const SHARED: i32 = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// mmap(2), of memory or of a file.
pub(crate) fn map(at: usize, bytes: usize, rights: i32, flags: i32, fd: i32) -> Result<usize, i32> {
    let at = ptr::without_provenance_mut(at);
    // SAFETY: a fixed address is one that the test has mapped, and forgets.
    let mapped = unsafe { libc::mmap(at, bytes, rights, flags, fd, 0) };
    if mapped == libc::MAP_FAILED { Err(errno()) } else { Ok(mapped.expose_provenance()) }
}

/// munmap(2).
pub(crate) fn unmap(at: usize, bytes: usize) -> Result<(), i32> {
    // SAFETY: the caller has mapped it, and forgets it.
    told(unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at), bytes) })
}

/// Calls code that the caller has written, which returns a number.
pub(crate) fn call(at: usize) -> u32 {
    let code: *const () = ptr::with_exposed_provenance(at);
    // SAFETY: the caller has written such a function there.
    let code = unsafe { std::mem::transmute::<*const (), extern "C" fn() -> u32>(code) };
    code()
}

/// mremap(2).
pub(crate) fn remap(
    at: usize,
    old: usize,
    new: usize,
    flags: i32,
    to: usize,
) -> Result<usize, i32> {
    let (at, to) = (ptr::with_exposed_provenance_mut(at), to as *mut libc::c_void);
    // SAFETY: the caller has mapped it, and knows it at its new place from now on.
    let moved = unsafe { libc::mremap(at, old, new, flags, to) };
    if moved == libc::MAP_FAILED { Err(errno()) } else { Ok(moved.expose_provenance()) }
}

/// madvise(2), through the library.
pub(crate) fn advise(at: usize, bytes: usize, advice: i32) -> Result<(), i32> {
    // SAFETY: the caller has mapped it, and expects what the advice does.
    told(unsafe { libc::madvise(ptr::with_exposed_provenance_mut(at), bytes, advice) })
}

/// madvise(2), around the library.
pub(crate) fn advise_directly(at: usize, bytes: usize, advice: i32) -> Result<(), i32> {
    // SAFETY: as above.
    told(unsafe { libc::syscall(libc::SYS_madvise, at, bytes, advice) } as i32)
}

/// mprotect(2).
pub(crate) fn protect(at: usize, bytes: usize, rights: i32) -> Result<(), i32> {
    // SAFETY: the caller has mapped it, and does not touch it against its rights.
    told(unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(at), bytes, rights) })
}

/// mlock(2).
pub(crate) fn lock(at: usize, bytes: usize) -> Result<(), i32> {
    // SAFETY: changes no content.
    told(unsafe { libc::mlock(ptr::with_exposed_provenance(at), bytes) })
}

/// mlockall(2) of what there is, and munlockall(2).
pub(crate) fn lock_all_and_unlock() -> Result<(), i32> {
    // SAFETY: changes no content.
    let locked = unsafe { libc::mlockall(libc::MCL_CURRENT) };
    // SAFETY: as above.
    let unlocked = unsafe { libc::munlockall() };
    if locked | unlocked == 0 { Ok(()) } else { Err(errno()) }
}

/// Enters a mount namespace.
pub(crate) fn enter_mounts(namespace: i32) -> Result<(), i32> {
    // SAFETY: takes a descriptor.
    let entered = unsafe { libc::setns(namespace, libc::CLONE_NEWNS) };
    if entered == 0 { Ok(()) } else { Err(errno()) }
}

/// munlock(2).
pub(crate) fn unlock(at: usize, bytes: usize) -> Result<(), i32> {
    // SAFETY: changes no content.
    told(unsafe { libc::munlock(ptr::with_exposed_provenance(at), bytes) })
}

/// A page that the caller has mapped and that no other thread uses.
pub(crate) fn page(address: usize) -> &'static mut Words {
    // SAFETY: the caller has mapped it; every bit pattern is a number; it is the only user, and
    // keeps the reference for one operation.
    unsafe { &mut *ptr::with_exposed_provenance_mut(address) }
}

/// Bytes that the caller has mapped and that no other thread uses.
pub(crate) fn bytes(address: usize, count: usize) -> &'static mut [u8] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address), count) }
}

/// A flag at the start of memory that the caller has mapped for ever, and uses for nothing else.
pub(crate) fn flag(address: usize) -> &'static AtomicBool {
    // SAFETY: the caller has mapped it, as zeros; all others use it as such a flag, too.
    unsafe { AtomicBool::from_ptr(ptr::with_exposed_provenance_mut(address)) }
}

/// fork(2): 0 in the child.
pub(crate) fn fork() -> i32 {
    // SAFETY: the child is one thread, which keeps to memory and to calls of the kernel and malloc.
    unsafe { libc::fork() }
}

/// The fork that runs nothing of the C library: 0 in the child.
pub(crate) fn fork_directly() -> i32 {
    // SAFETY: as above; and the child does not use malloc.
    unsafe { libc::syscall(libc::SYS_fork) as i32 }
}

/// Starts a process that shares its memory with this one: it must not use malloc.
pub(crate) fn share_memory(run: extern "C" fn(*mut libc::c_void) -> i32) {
    const STACK: usize = 64 << 10;
    let stack = map(0, STACK, READ_WRITE, PRIVATE, -1).expect("mmap");
    let top = ptr::with_exposed_provenance_mut(stack + STACK);
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: the stack is the new process's alone.
    let pid = unsafe { libc::clone(run, top, flags, ptr::null_mut()) };
    assert!(pid > 0, "clone: {}", errno());
}

pub(crate) fn parent() -> i32 {
    // SAFETY: asks for a number.
    unsafe { libc::getppid() }
}

/// Ends this thread, and nothing else.
pub(crate) fn end_thread(code: i32) -> ! {
    // SAFETY: nothing of the thread is used any more; its stack stays.
    unsafe { libc::syscall(libc::SYS_exit, code) };
    unreachable!()
}

/// Ends this process at once.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Waits for the end of a child; its wait status.
pub(crate) fn wait(pid: i32) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: the pointer is to a number of ours.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if ended == pid {
            return status;
        }
        assert_eq!(errno(), libc::EINTR, "waitpid {pid}");
    }
}

/// Waits until a child stops or ends; its wait status.
pub(crate) fn wait_stopped(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the pointer is to a number of ours.
    unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
    status
}

/// A signal to a process.
pub(crate) fn signal(pid: i32, signal: i32) {
    // SAFETY: a child of the caller's.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "kill {pid}");
}

/// Size of the stack of this thread, in bytes, as the C library tells it.
pub(crate) fn stack_bytes() -> usize {
    let mut about = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: a call without arguments.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the pointer is to space for the attributes of a thread that lives.
    assert_eq!(unsafe { libc::pthread_getattr_np(this, about.as_mut_ptr()) }, 0);
    let mut bytes = 0;
    // SAFETY: the call above has initialised it.
    assert_eq!(unsafe { libc::pthread_attr_getstacksize(about.as_ptr(), &raw mut bytes) }, 0);
    bytes
}

/// Two ends of a pipe.
pub(crate) fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0, "pipe: {}", errno());
    ends
}

/// A file in memory.
pub(crate) fn file() -> i32 {
    // SAFETY: the name is a string of C.
    unsafe { libc::memfd_create(c"adversary".as_ptr(), libc::MFD_CLOEXEC) }
}

pub(crate) fn close(fd: i32) {
    // SAFETY: the caller has opened it.
    unsafe { libc::close(fd) };
}

/// write(2) from memory that the caller has mapped.
pub(crate) fn write(fd: i32, from: usize, count: usize) -> isize {
    // SAFETY: the caller has mapped it.
    unsafe { libc::write(fd, ptr::with_exposed_provenance(from), count) }
}

/// read(2) into memory that the caller has mapped.
pub(crate) fn read(fd: i32, to: usize, count: usize) -> isize {
    // SAFETY: the caller has mapped it.
    unsafe { libc::read(fd, ptr::with_exposed_provenance_mut(to), count) }
}

/// pwrite(2), as above.
pub(crate) fn write_at(fd: i32, from: usize, count: usize, at: i64) -> isize {
    // SAFETY: the caller has mapped it.
    unsafe { libc::pwrite(fd, ptr::with_exposed_provenance(from), count, at) }
}

/// preadv(2) into two places that the caller has mapped.
pub(crate) fn read_two(fd: i32, to: [(usize, usize); 2], at: i64) -> isize {
    let parts = to.map(|(address, count)| libc::iovec {
        iov_base: ptr::with_exposed_provenance_mut(address),
        iov_len: count,
    });
    // SAFETY: the caller has mapped both.
    unsafe { libc::preadv(fd, parts.as_ptr(), 2, at) }
}

/// FUTEX_WAIT on a word that the caller has mapped; the errno.
pub(crate) fn futex_wait(word: usize, value: u32) -> i32 {
    let none = libc::timespec { tv_sec: 0, tv_nsec: 1 };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: reads a word that is mapped, and a time of ours.
    let waited = unsafe { libc::syscall(libc::SYS_futex, word, operation, value, &raw const none) };
    if waited == 0 { 0 } else { errno() }
}

/// poll(2) with one descriptor whose request is in memory that the caller has mapped; the events.
pub(crate) fn poll(request: usize, fd: i32) -> Option<i16> {
    let request: *mut libc::pollfd = ptr::with_exposed_provenance_mut(request);
    let asked = libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
    // SAFETY: the caller has mapped a page there.
    unsafe { request.write(asked) };
    // SAFETY: as above.
    let ready = unsafe { libc::poll(request, 1, 0) };
    // SAFETY: as above.
    let answer = unsafe { request.read() };
    (ready >= 0).then_some(answer.revents)
}

/// Reads memory of another process.
pub(crate) fn read_remote(pid: i32, from: usize, to: &mut [u8]) -> Result<usize, i32> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: ptr::without_provenance_mut(from), iov_len: to.len() };
    // SAFETY: writes to memory that is borrowed for it.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read).map_err(|_| errno())
}

pub(crate) fn trace_me_and_stop() {
    // SAFETY: concerns this process alone.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    // SAFETY: a signal to this process.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// A word of a stopped child that is traced.
pub(crate) fn peek(pid: i32, address: usize) -> Result<u64, i32> {
    let mut word = 0_u64;
    // SAFETY: the kernel's call writes the word to the last argument.
    let done = unsafe {
        libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, pid, address, &raw mut word)
    };
    if done == 0 { Ok(word) } else { Err(errno()) }
}

pub(crate) fn let_go(pid: i32) {
    // SAFETY: concerns a child that is traced.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0) };
}

/// A stack for signal handlers of this thread.
pub(crate) fn signal_stack(at: usize, bytes: usize) {
    let stack =
        libc::stack_t { ss_sp: ptr::with_exposed_provenance_mut(at), ss_flags: 0, ss_size: bytes };
    // SAFETY: the caller keeps the memory mapped for the life of the thread.
    let set = unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) };
    assert_eq!(set, 0, "sigaltstack: {}", errno());
}

/// The standard library's own again: none.
pub(crate) fn no_signal_stack() {
    let none = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: takes it away.
    unsafe { libc::sigaltstack(&raw const none, ptr::null_mut()) };
}

/// Handles a signal on the alternate stack.
pub(crate) fn handle(signal: i32, handler: extern "C" fn(i32)) {
    handle_at(signal, handler as *const () as usize, libc::SA_RESTART);
}

/// Handles touches of memory that is not there.
pub(crate) fn handle_faults(handler: extern "C" fn(i32, &libc::siginfo_t)) {
    handle_at(libc::SIGSEGV, handler as *const () as usize, libc::SA_SIGINFO);
}

/// The address that was touched, of such a signal.
pub(crate) fn fault_address(info: &libc::siginfo_t) -> usize {
    // SAFETY: it has one.
    unsafe { info.si_addr() }.expose_provenance()
}

fn handle_at(signal: i32, handler: usize, flags: i32) {
    let action = libc::sigaction {
        sa_sigaction: handler,
        sa_flags: libc::SA_ONSTACK | flags,
        // SAFETY: all zero is the empty set.
        sa_mask: unsafe { std::mem::zeroed() },
        sa_restorer: None,
    };
    // SAFETY: the handler keeps to what a handler may do.
    let set = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    assert_eq!(set, 0, "sigaction: {}", errno());
}

/// A signal to this thread.
pub(crate) fn raise(signal: i32) {
    // SAFETY: it has a handler.
    unsafe { libc::raise(signal) };
}

pub(crate) fn close_all_from(first: u32) {
    // SAFETY: nothing of this process is used after this that needs a descriptor.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    assert_eq!(closed, 0, "close_range: {}", errno());
}

/// A userfaultfd of the program's own.
pub(crate) fn userfaultfd() -> Result<i32, i32> {
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 { Err(errno()) } else { Ok(fd as i32) }
}

/// An ioctl whose argument is an array of numbers.
pub(crate) fn ioctl(fd: i32, request: u64, argument: &mut [u64]) -> Result<(), i32> {
    // SAFETY: the array is as large as the request says.
    told(unsafe { libc::ioctl(fd, request, argument.as_mut_ptr()) })
}

/// setrlimit(2).
pub(crate) fn limit(what: u32, value: u64) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: reads a limit of ours.
    unsafe { libc::setrlimit(what, &raw const limit) };
}

/// Where this thread has its list of robust futexes.
pub(crate) fn robust_list() -> usize {
    let (mut head, mut bytes) = (0_usize, 0_usize);
    let call = libc::SYS_get_robust_list;
    // SAFETY: the kernel writes a word to each of these.
    let told = unsafe { libc::syscall(call, 0, &raw mut head, &raw mut bytes) };
    assert_eq!(told, 0);
    head
}

/// Says that this thread's list of robust futexes is there.
pub(crate) fn name_robust_list(address: usize) {
    // SAFETY: the kernel notes the address, and finds nothing there when the thread ends.
    let told = unsafe { libc::syscall(libc::SYS_set_robust_list, address, 24) };
    assert_eq!(told, 0);
}

/// Has this thread run little where others would: some 3 ms of 600 beside three that do not wait.
/// The thread must not starve for seconds, as with SCHED_IDLE: no page can be evicted while
/// mappings change.
pub(crate) fn run_little() {
    // SAFETY: changes how this thread is scheduled; no pointers are passed.
    let told = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
    assert_eq!(told, 0);
}

/// How many processors this thread may run on.
pub(crate) fn processors() -> i32 {
    // SAFETY: all zero is a set, which the call fills.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a set of this size.
    let told = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    assert_eq!(told, 0);
    // SAFETY: the set is initialised, and only read.
    unsafe { libc::CPU_COUNT(&set) }
}

/// Makes a mutex at an address that tells who waits for it that its owner has ended.
pub(crate) fn make_robust_mutex(at: usize) {
    let mut kind = std::mem::MaybeUninit::uninit();
    let mutex: *mut libc::pthread_mutex_t = ptr::with_exposed_provenance_mut(at);
    // SAFETY: the first call fills it.
    let of_kind = unsafe { libc::pthread_mutexattr_init(kind.as_mut_ptr()) };
    // SAFETY: it is filled.
    let robust =
        unsafe { libc::pthread_mutexattr_setrobust(kind.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST) };
    // SAFETY: the test has mapped that memory for it.
    let made = unsafe { libc::pthread_mutex_init(mutex, kind.as_ptr()) };
    assert_eq!([of_kind, robust, made], [0; 3]);
}

/// Locks one; 0, or an errno: `EOWNERDEAD`, and `ETIMEDOUT` after 2 s.
pub(crate) fn lock_robust_mutex(at: usize) -> i32 {
    let mutex: *mut libc::pthread_mutex_t = ptr::with_exposed_provenance_mut(at);
    let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it is filled by this call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until) }, 0);
    until.tv_sec += 2;
    // SAFETY: a mutex was made there, and is not moved.
    unsafe { libc::pthread_mutex_timedlock(mutex, &raw const until) }
}

/// Memory that the kernel has pinned, to read files into.
pub(crate) struct Pinned {
    ring: IoUring,
    at: usize,
    bytes: usize,
}

impl Pinned {
    pub(crate) fn new(at: usize, bytes: usize) -> io::Result<Pinned> {
        let ring = IoUring::new(1)?;
        let buffer = libc::iovec { iov_base: at as *mut _, iov_len: bytes };
        // SAFETY: it stays mapped until the process ends.
        unsafe { ring.submitter().register_buffers(&[buffer]) }?;
        Ok(Pinned { ring, at, bytes })
    }

    /// Reads the file's first bytes into all of it; how many it has.
    pub(crate) fn read(mut self, file: &File) -> io::Result<usize> {
        let file = types::Fd(file.as_raw_fd());
        let read = opcode::ReadFixed::new(file, self.at as *mut u8, self.bytes as u32, 0).build();
        // SAFETY: nothing else uses the memory until the read has ended.
        unsafe { self.ring.submission().push(&read) }.map_err(io::Error::other)?;
        self.ring.submit_and_wait(1)?;
        let read = self.ring.completion().next().expect("one has ended").result();
        usize::try_from(read).map_err(|_| io::Error::from_raw_os_error(-read))
    }
}
