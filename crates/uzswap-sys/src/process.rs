//! Facts about processes and threads from /proc and system calls; scheduling of this thread.

use std::cmp::Ordering;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

/// Processor time this process has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In user mode.
    pub user: Duration,
    /// In the kernel.
    pub sys: Duration,
}

/// The processor time used so far, by all threads.
pub fn cpu_time() -> CpuTime {
    cpu_time_of(libc::RUSAGE_SELF)
}

/// The processor time of all descendants that have ended and were waited for.
pub fn cpu_time_of_children() -> CpuTime {
    cpu_time_of(libc::RUSAGE_CHILDREN)
}

/// Processor time that the calling thread has used. Waits do not count.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn usage_of(who: libc::c_int) -> libc::rusage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a rusage of our own, which the call fills.
    let result = unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
    assert_eq!(result, 0, "getrusage of oneself cannot fail");
    // SAFETY: plain integers, all zero before the call filled them.
    unsafe { usage.assume_init() }
}

fn cpu_time_of(who: libc::c_int) -> CpuTime {
    let usage = usage_of(who);
    let duration = |time: libc::timeval| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::from_secs(seconds)
            + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    };
    CpuTime { user: duration(usage.ru_utime), sys: duration(usage.ru_stime) }
}

/// Resident anonymous memory of this process, in bytes, counted page by page by the kernel: private
/// memory and shared memory (memfd). A page that is mapped twice counts once.
///
/// # Errors
///
/// Of reading `/proc/self/smaps_rollup`.
pub fn anonymous_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let anonymous = bytes_after(&text, "Anonymous:").ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "smaps_rollup has no line 'Anonymous'")
    })?;
    // Kernels before 5.3 do not tell it from files.
    Ok(anonymous + bytes_after(&text, "Pss_Shmem:").unwrap_or(0))
}

/// The bytes of the first line of a text of /proc that begins with `name`: `VmRSS:      12 kB`.
pub fn bytes_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Keeps memory touched from now on out of transparent huge pages, so that the resident size is
/// what was touched. Best effort: kernels without huge pages need no asking.
pub fn disable_huge_pages() {
    // SAFETY: sets a flag of this process; no pointers are passed.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1_u64, 0_u64, 0_u64, 0_u64) };
}

/// Gives memory that the C heap keeps free back to the kernel, so that what is allocated next shows
/// in the resident size. Does nothing with other C libraries than glibc.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: works on the allocator's own free memory, under its locks.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// The parent of a process; `None` once it has ended.
pub fn parent_of(pid: u32) -> Option<u32> {
    stat_field(pid, 4)
}

/// When a process started, in clock ticks since the machine did: with its number, the name of a
/// process that no later one has. `None` once it has ended, also where nobody has waited for it.
pub fn start_time(pid: u32) -> Option<u64> {
    let state: char = stat_field(pid, 3)?;
    (!matches!(state, 'Z' | 'X')).then(|| stat_field(pid, 22))?
}

/// The parent of a process, and when it started, as [`start_time`]; `None` once it was waited for.
pub fn parent_and_start(pid: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some((field(&text, 4)?, field(&text, 22)?))
}

/// Faults of a process that the kernel served without I/O, of all its threads; `None` once it was
/// waited for.
pub fn minor_faults(pid: u32) -> Option<u64> {
    stat_field(pid, 10)
}

/// Whether a process has not called exec(2) since it was forked: it runs the program that its
/// parent ran then. `None` once it was waited for.
pub fn runs_what_was_forked(pid: u32) -> Option<bool> {
    const PF_FORKNOEXEC: u32 = 0x40; // of linux/sched.h
    stat_field(pid, 9).map(|flags: u32| flags & PF_FORKNOEXEC != 0)
}

/// Processor time of a process and of the children that it has waited for, in clock ticks, as
/// [`time_of_ticks`] takes them. `None` once it was waited for itself.
pub fn cpu_ticks(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    (14..=17).map(|number| field::<u64>(&text, number)).sum()
}

/// So many clock ticks of the kernel.
pub fn time_of_ticks(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)
}

/// Where the code and the stack of a process's program are: code's start and end, and the stack's
/// start. exec(2) puts them at random places; fork(2) keeps them.
pub fn places_of_program(pid: u32) -> Option<[u64; 3]> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some([field(&text, 26)?, field(&text, 27)?, field(&text, 28)?])
}

/// Compares the address spaces of two threads, in an order of the kernel: `Equal` if it is the same
/// one, or if both threads have none any more.
///
/// # Errors
///
/// The kernel's: `ESRCH` where one of them has ended, `EPERM` where one may not be looked into,
/// `ENOSYS` where it was built without kcmp(2).
pub fn compare_memory(one: u32, other: u32) -> io::Result<Ordering> {
    const KCMP_VM: libc::c_int = 1; // of linux/kcmp.h
    // SAFETY: compares what two threads have, by their numbers; no pointers are passed.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0_usize, 0_usize) } {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The processor that a thread ran on last; `None` once it has ended.
pub fn last_processor(thread: u32) -> Option<usize> {
    stat_field(thread, 39)
}

/// Whether a process was stopped, by a signal or by who traces it.
pub fn is_stopped(pid: u32) -> bool {
    stat_field(pid, 3).is_some_and(|state: char| matches!(state, 'T' | 't'))
}

/// The exit code of the first thread of a process, which has ended, be it before others: 128 and
/// the signal where it was ended by one.
pub fn first_thread_code(pid: u32) -> Option<u32> {
    let has_ended = stat_field(pid, 3) == Some('Z');
    let status: u32 = has_ended.then(|| stat_field(pid, 52))??;
    let signal = status & 0x7f;
    Some(if signal > 0 { 128 + signal } else { status >> 8 & 0xff })
}

/// Whether a process that has ended, or is about to, was written to a core file. `false` where it
/// is not known any more.
pub fn has_dumped_core(pid: u32) -> bool {
    const DUMPED: u32 = 0x80; // of a wait status
    // Of one that is traced, the field tells why it was stopped.
    stat_field(pid, 52).is_some_and(|status: u32| status & DUMPED != 0) && !is_stopped(pid)
}

/// Addresses of a process's arguments and environment, in bytes; `None` if the kernel does not
/// report them.
pub fn arguments_of(pid: u32) -> Option<std::ops::Range<u64>> {
    let range = stat_field(pid, 48)?..stat_field(pid, 51)?;
    (range.start != 0 && range.start <= range.end).then_some(range)
}

/// A field of `/proc/PID/stat` after the name, numbered as in proc(5).
fn stat_field<T: std::str::FromStr>(pid: u32, number: usize) -> Option<T> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    field(&text, number)
}

fn field<T: std::str::FromStr>(stat: &str, number: usize) -> Option<T> {
    // The second is the name, in parentheses, and may have spaces in it.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(number - 3)?.parse().ok()
}

/// Address of a thread's list of robust futexes; 0 if it has none. glibc and musl keep the list in
/// their thread descriptor.
///
/// # Errors
///
/// The kernel's: `ESRCH` where there is no such thread, `EPERM` where its process may not be looked
/// into.
pub fn robust_list(thread: u32) -> io::Result<u64> {
    let mut head: *mut libc::c_void = std::ptr::null_mut();
    let mut length: libc::size_t = 0;
    // SAFETY: both pointers are to variables of ours of the kinds that the call fills.
    let asked =
        unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut length) };
    match asked {
        0 => Ok(head.addr() as u64),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the kernel end this process when its parent, `parent_pid`, ends.
///
/// # Errors
///
/// `NotFound` if the parent is gone already; the kernel's error otherwise.
pub fn end_with_parent(parent_pid: u32) -> io::Result<()> {
    // SAFETY: sets an attribute of this process; no pointers are passed.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if std::os::unix::process::parent_id() != parent_pid {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the parent process has ended"));
    }
    Ok(())
}

/// Has the kernel run this thread before others of the same kind: those that others wait for. Best
/// effort: the kernel may refuse it, and before Linux 6.12 a waking thread may wait until the
/// running one has used its 3 ms.
pub fn prefer_this_thread() {
    const LEAST_NICE: libc::c_int = -20;
    // SAFETY: changes how the calling thread is scheduled; no pointers are passed.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LEAST_NICE) };
    let _ = scheduled().and_then(|mut attributes| {
        // A thread that asks for a shorter slice than the running thread has preempts it.
        attributes.sched_runtime = SHORTEST_SLICE;
        schedule(&attributes)
    });
}

/// Gives up the capabilities of this thread, but for four that serve to look after processes of
/// other users. `CAP_SYS_PTRACE` and `CAP_DAC_READ_SEARCH` read their files in /proc, `CAP_KILL`
/// ends them, `CAP_SYS_NICE` schedules them. Threads that it starts have no others. Best effort.
pub fn keep_capabilities_for_programs() {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    let kept = CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::KILL
        | CapabilitySet::SYS_NICE;
    if let Ok(CapabilitySets { effective, permitted, .. }) = capabilities(None) {
        let sets = CapabilitySets {
            effective: effective & kept,
            permitted: permitted & kept,
            inheritable: CapabilitySet::empty(),
        };
        let _ = set_capabilities(None, sets); // to have less is always allowed
    }
}

/// The shortest slice that a thread may ask for, in ns.
const SHORTEST_SLICE: u64 = 100_000;

/// How the calling thread is scheduled.
fn scheduled() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32; // 48 bytes
    // SAFETY: all zero is such a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: a pointer to a variable of ours of that size, which the call fills.
    match unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } {
        0 => Ok(attributes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel schedule the calling thread so.
fn schedule(attributes: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: a pointer to a value that is only read, and has its size in it.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel run a thread of this process where nobody else would run (`SCHED_IDLE`), or as
/// others again; `None` is the calling one. A processor that has none but such threads counts as
/// idle, and whoever is woken there runs at once.
///
/// # Errors
///
/// The kernel's: `EPERM` on the way back, where [`may_return_from_idle`] is not so.
pub fn run_when_idle(thread: Option<u32>, on: bool) -> io::Result<()> {
    let policy = if on { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let thread = thread.unwrap_or(0);
    debug_assert!(!on || policy_of(thread) != libc::SCHED_FIFO, "it is to run as others do first");
    set_policy(thread, policy, 0)
}

/// Has the kernel run this thread before all usual ones (`SCHED_FIFO`), until
/// [`run_when_idle`] has it run as others do.
///
/// A caller changes the thread to `SCHED_OTHER` before it changes it to `SCHED_IDLE`. Linux 6.18
/// does not scale the load of a `SCHED_FIFO` thread to a new weight. A direct step to `SCHED_IDLE`
/// multiplies the load of the session (autogroup) by the ratio of the weights, 341 at nice 0. After
/// a few, the session's share of a processor is 2 of 1048576.
///
/// # Errors
///
/// The kernel's: `EPERM` without CAP_SYS_NICE, or where the control group has no such time.
pub fn run_first() -> io::Result<()> {
    set_policy(0, libc::SCHED_FIFO, 1)
}

/// Of a thread of this process; 0 is the calling one.
fn set_policy(thread: u32, policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let thread = thread as libc::pid_t; // a thread's number is at most 2^22
    // The kernel's `struct sched_param`. musl's function of this name refuses, by its design.
    let parameters: [libc::c_int; 1] = [priority];
    let parameters = parameters.as_ptr();
    // SAFETY: changes how a thread of this process is scheduled, by parameters that are only read.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Of a thread of this process; 0 is the calling one.
fn policy_of(thread: u32) -> libc::c_int {
    // SAFETY: passes no pointers.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) as libc::c_int }
}

/// Whether a thread may leave `SCHED_IDLE` again: with CAP_SYS_NICE, or an RLIMIT_NICE that allows
/// it. Tried by one that ends.
pub fn may_return_from_idle() -> bool {
    let tried = std::thread::Builder::new()
        .spawn(|| run_when_idle(None, true).and_then(|()| run_when_idle(None, false)).is_ok());
    tried.is_ok_and(|thread| thread.join().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_costs_processor_time() {
        let before = cpu_time();
        let mut sum = 0_u64;
        while cpu_time().user + cpu_time().sys < before.user + before.sys + Duration::from_millis(5)
        {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0);
    }

    #[test]
    fn who_is_stopped_is_told_from_who_sleeps() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let since = std::time::Instant::now();
        let becomes = |stopped| {
            while is_stopped(child.id()) != stopped {
                assert!(since.elapsed() < std::time::Duration::from_secs(20));
                std::thread::yield_now();
            }
        };
        becomes(false);
        let pid = child.id() as i32;
        crate::signals::send(pid, crate::signals::SignalNumber(libc::SIGSTOP)).unwrap();
        becomes(true);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_stopped(pid as u32));
    }

    #[test]
    fn a_process_that_has_ended_has_no_start() {
        let own = start_time(std::process::id()).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        // Not waited for: it stays in the table of processes.
        while let Some(start) = start_time(child.id()) {
            assert!(start >= own);
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    fn arguments_are_found() {
        let range = arguments_of(std::process::id()).unwrap();
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let memory = crate::process_memory::ProcessMemory::open(std::process::id()).unwrap();
        memory.read(range.start, &mut bytes).unwrap();
        let name = std::env::args().next().unwrap();
        assert_eq!(bytes.split(|byte| *byte == 0).next(), Some(name.as_bytes()));
        assert_eq!(arguments_of(2), None); // has no memory
    }

    #[test]
    fn a_thread_gives_up_capabilities_for_good() {
        let told = std::thread::spawn(|| {
            keep_capabilities_for_programs();
            let of_thread = || fs::read_to_string("/proc/thread-self/status").unwrap();
            (of_thread(), std::thread::spawn(of_thread).join().unwrap())
        });
        let (own, of_its_thread) = told.join().unwrap();
        for status in [own, of_its_thread] {
            let set = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                u64::from_str_radix(line.trim(), 16).unwrap()
            };
            // Of linux/capability.h: DAC_READ_SEARCH 2, KILL 5, SYS_PTRACE 19, SYS_NICE 23.
            let kept = 1 << 2 | 1 << 5 | 1 << 19 | 1 << 23;
            assert_eq!((set("CapEff:") & !kept, set("CapPrm:") & !kept), (0, 0));
            assert_eq!(set("CapInh:"), 0);
        }
    }

    #[test]
    fn a_preferred_thread_asks_for_little_time() {
        let told = std::thread::spawn(|| {
            let before = scheduled();
            prefer_this_thread();
            (before, scheduled())
        });
        let (Ok(before), Ok(after)) = told.join().unwrap() else { panic!("not told") };
        assert_eq!(before.sched_policy, after.sched_policy);
        // 0 where the kernel knows no such thing.
        assert!([0, SHORTEST_SLICE].contains(&after.sched_runtime), "{}", after.sched_runtime);
    }

    #[test]
    fn a_thread_runs_when_idle_and_as_others_again() {
        if !may_return_from_idle() {
            return; // it would stay so
        }
        run_when_idle(None, true).unwrap();
        assert_eq!(policy_of(0), libc::SCHED_IDLE);
        if run_first().is_ok() {
            assert_eq!(policy_of(0), libc::SCHED_FIFO);
        }
        run_when_idle(None, false).unwrap();
        assert_eq!(policy_of(0), libc::SCHED_OTHER);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_thread_that_runs_first_is_to_run_as_others_do_before_it_gives_way() {
        if !may_return_from_idle() || run_first().is_err() {
            return; // it has no such right
        }
        assert!(std::panic::catch_unwind(|| run_when_idle(None, true)).is_err());
        assert_eq!(policy_of(0), libc::SCHED_FIFO);
        run_when_idle(None, false).unwrap();
        run_when_idle(None, true).unwrap();
    }

    #[test]
    fn a_parent_is_found() {
        assert_eq!(parent_of(std::process::id()), Some(std::os::unix::process::parent_id()));
        assert_eq!(parent_of(i32::MAX as u32), None);
    }

    #[test]
    fn a_program_is_told_from_a_fork() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        // spawn(3) returns after exec(2).
        assert_eq!(runs_what_was_forked(child.id()), Some(false));
        assert_ne!(places_of_program(child.id()), places_of_program(own));
        let (parent, start) = parent_and_start(child.id()).unwrap();
        assert_eq!((parent, Some(start)), (own, start_time(child.id())));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(parent_and_start(child.id()).is_none());
        assert_eq!(runs_what_was_forked(child.id()), None);
    }

    #[test]
    fn address_spaces_are_compared() {
        let own = std::process::id();
        let thread = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let other = std::thread::spawn(move || compare_memory(own, thread())).join().unwrap();
        if other.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOSYS)) {
            return; // the kernel was built without it
        }
        assert_eq!(other.unwrap(), Ordering::Equal);
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let order = compare_memory(own, child.id()).unwrap();
        assert_ne!(order, Ordering::Equal);
        assert_eq!(compare_memory(child.id(), own).unwrap(), order.reverse());
        child.kill().unwrap();
        child.wait().unwrap();
        let gone = compare_memory(own, child.id()).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn robust_lists_are_found() {
        let own = robust_list(0).unwrap();
        let other = std::thread::spawn(|| robust_list(0).unwrap()).join().unwrap();
        assert!(own != 0 && other != 0 && own != other);
        let gone = robust_list(i32::MAX as u32).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn another_parent_is_refused() {
        assert!(end_with_parent(u32::MAX).is_err());
    }
}
