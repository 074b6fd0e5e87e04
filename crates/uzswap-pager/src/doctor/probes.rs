//! What can be tried without harm: done here to pages of our own, and with a child that ends.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use uzswap_sys::pagemap::{self, Found, Wanted};
use uzswap_sys::process_memory::ProcessMemory;
use uzswap_sys::userfaultfd::{
    self, DEVICE, Event, Features, Message, MoveFlags, OwnMemory, Stopped, Userfaultfd,
};

/// How something ended that was tried.
pub type Outcome = Result<(), Failure>;

/// Why it did not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The kernel's error.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Os(i32),
    /// The kernel allowed it, and something else happened.
    #[error("{0}")]
    Wrong(&'static str),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        error.raw_os_error().map_or(Failure::Wrong("failed without an errno"), Failure::Os)
    }
}

impl From<Stopped> for Failure {
    fn from(stopped: Stopped) -> Failure {
        Failure::Os(stopped.errno)
    }
}

/// What was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probes {
    /// A userfaultfd that serves faults of the kernel too, by the system call.
    pub by_syscall: Outcome,
    /// The same, by [`DEVICE`].
    pub by_device: Outcome,
    /// One that serves faults of user mode alone, by the system call.
    pub user_mode_only: Outcome,
    /// Each feature that `run` needs, with its name.
    pub features: Vec<(&'static str, Outcome)>,
    /// PAGEMAP_SCAN on this process.
    pub pagemap_scan: Outcome,
    /// /proc/PID/mem of a child.
    pub read_memory: Outcome,
}

/// A feature with its name, and how it is tried.
type Probe = (&'static str, Features, fn(&OwnMemory) -> Outcome);

/// The features that `run` needs.
const FEATURES: [Probe; 6] = [
    ("EVENT_FORK", Features::EVENT_FORK, fork),
    ("EVENT_REMAP", Features::EVENT_REMAP, remap),
    ("EVENT_REMOVE", Features::EVENT_REMOVE, remove),
    ("EVENT_UNMAP", Features::EVENT_UNMAP, unmap),
    ("MOVE", Features::MOVE, move_pages),
    ("WP_UNPOPULATED", Features::WP_UNPOPULATED, mark),
];

/// Pages to try with: the first half is registered.
const PAGES: usize = 8;
const REGISTERED: Range<usize> = 0..PAGES / 2;

/// What missing pages are filled with.
const FILL: u8 = 9;

/// How long something may take that takes microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

impl Probes {
    /// Tries everything.
    pub fn run() -> Probes {
        let device = File::options().read(true).write(true).open(DEVICE);
        let by_device =
            device.and_then(|device| userfaultfd::create_by_device(&device, false)).map(drop);
        let features = FEATURES.iter();
        let features = features
            .map(|&(name, feature, probe)| (name, memory(feature).and_then(|own| probe(&own))));
        Probes {
            by_syscall: outcome(userfaultfd::create_by_syscall(false)),
            by_device: outcome(by_device),
            user_mode_only: outcome(userfaultfd::create_by_syscall(true)),
            features: features.collect(),
            pagemap_scan: pagemap_scan(),
            read_memory: read_memory(),
        }
    }
}

fn outcome<T>(result: io::Result<T>) -> Outcome {
    result.map(drop).map_err(Failure::from)
}

/// Memory to try a feature on. User mode will do: nothing here is touched by the kernel.
fn memory(feature: Features) -> Result<OwnMemory, Failure> {
    let fd = userfaultfd::create(false).or_else(|error| {
        // The reason for the whole is the better one.
        userfaultfd::create(true).map_err(|_| error)
    })?;
    let memory = OwnMemory::new(fd, PAGES)?;
    memory.uffd().api(feature)?;
    Ok(memory)
}

/// Events during a change of the memory.
#[derive(Debug, Default)]
struct Reported {
    thread: u32,
    forks: u32,
    moved: Option<(u64, u64)>,
    removed: Option<Range<u64>>,
    unmapped: Option<Range<u64>>,
}

/// Registers memory, has a thread do something to it and serves that.
fn serve<T: Send>(
    memory: &OwnMemory,
    touch: impl FnOnce() -> T + Send,
) -> Result<(T, Reported), Failure> {
    memory.uffd().register(memory.range(REGISTERED), true, false)?;
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, touch)?;
        let mut children = Vec::new();
        let mut reported = Reported::default();
        let mut served = Ok(());
        let deadline = Instant::now() + PATIENCE;
        while !thread.is_finished() {
            let read = next(memory.uffd(), &mut children, &mut reported);
            match read {
                Ok(true) => continue,
                Ok(false) => {}
                Err(failure) => served = Err(failure),
            }
            if Instant::now() > deadline {
                served = served.and(Err(Failure::Wrong("UFFDIO_WAKE did not wake a thread")));
            }
            if served.is_err() {
                // It must not wait for ever: what is missing is zero now.
                children.clear();
                let _ = memory.uffd().unregister(memory.range(REGISTERED));
            }
            thread::sleep(Duration::from_micros(20));
        }
        let touched = thread.join().map_err(|_| Failure::Wrong("a thread panicked"))?;
        // A message that nobody waits for may be left.
        next(memory.uffd(), &mut children, &mut reported)?;
        served.map(|()| (touched, reported))
    })
}

/// Deals with a message of the memory or of a forked child's, if there is one.
fn next(
    own: &Userfaultfd,
    children: &mut Vec<Userfaultfd>,
    reported: &mut Reported,
) -> Result<bool, Failure> {
    let mut forked = None;
    let mut seen = false;
    for uffd in std::iter::once(own).chain(&*children) {
        let mut room = [Message::EMPTY];
        match uffd.read(&mut room) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            read => read?,
        };
        seen = true;
        match room[0].take() {
            Some(Event::PageFault { address, thread, .. }) => {
                reported.thread = thread;
                match uffd.copy(address, &[FILL; 4096], true, false) {
                    // Memory changes, or the child is gone: who waits comes again, or not.
                    Err(Stopped { errno: libc::EAGAIN | libc::EEXIST, .. }) => {
                        let _ = uffd.wake(address..address + 4096);
                    }
                    Err(Stopped { errno: libc::ESRCH, .. }) => {}
                    copied => copied?,
                }
            }
            Some(Event::Fork { child }) => {
                reported.forks += 1;
                forked = Some(child);
            }
            Some(Event::Remap { from, to, .. }) => reported.moved = Some((from, to)),
            Some(Event::Remove { start, end }) => reported.removed = Some(start..end),
            Some(Event::Unmap { start, end }) => reported.unmapped = Some(start..end),
            None => {}
        }
    }
    children.extend(forked);
    Ok(seen)
}

fn check(is_right: bool, otherwise: &'static str) -> Outcome {
    if is_right { Ok(()) } else { Err(Failure::Wrong(otherwise)) }
}

fn fork(memory: &OwnMemory) -> Outcome {
    // For the child's userfaultfd: where no descriptor is left, that cannot be read, and the fork
    // waits for ever.
    drop(File::open("/proc/self/status")?);
    let (seen, reported) = serve(memory, || memory.load_in_fork(0))?;
    check(seen? == FILL && reported.forks > 0, "a forked child saw zeros")
}

fn remap(memory: &OwnMemory) -> Outcome {
    let (done, reported) = serve(memory, || memory.remap(REGISTERED, REGISTERED.end))?;
    done?;
    let expected = (memory.address(0), memory.address(REGISTERED.end));
    check(reported.moved == Some(expected), "mremap was not reported")
}

fn remove(memory: &OwnMemory) -> Outcome {
    let (done, reported) = serve(memory, || memory.discard(1..2))?;
    done?;
    check(reported.removed == Some(memory.range(1..2)), "madvise was not reported")
}

fn unmap(memory: &OwnMemory) -> Outcome {
    let (done, reported) = serve(memory, || memory.replace(1..2))?;
    done?;
    check(reported.unmapped == Some(memory.range(1..2)), "munmap was not reported")
}

fn move_pages(memory: &OwnMemory) -> Outcome {
    let from = REGISTERED.end;
    memory.store(from, 0, 1);
    memory.uffd().register(memory.range(REGISTERED), true, false)?;
    memory.uffd().move_pages(
        memory.address(0),
        memory.address(from),
        4096,
        MoveFlags::default(),
    )?;
    check(memory.load(0, 0) == 1 && memory.load(from, 0) == 0, "UFFDIO_MOVE did not move a page")
}

fn mark(memory: &OwnMemory) -> Outcome {
    memory.uffd().register(memory.range(REGISTERED), true, true)?;
    memory.uffd().write_protect(memory.range(1..2))?;
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut found = [Found::default()];
    let all = memory.range(REGISTERED);
    let (count, _) = pagemap::scan(&pagemap, all, Wanted::Marked, &mut found, 0)?;
    let marked = found[0].start..found[0].end;
    check(count == 1 && marked == memory.range(1..2), "an empty entry took no marker")
}

fn pagemap_scan() -> Outcome {
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut found = [Found::default()];
    outcome(pagemap::scan(&pagemap, 0..1 << 40, Wanted::Anonymous, &mut found, 0))
}

fn read_memory() -> Outcome {
    let mut shell = Command::new("/bin/sh");
    let child = shell.args(["-c", "read line"]).stdin(Stdio::piped()).spawn();
    let mut child =
        child.map_err(|_| Failure::Wrong("no program to try it on: cannot start /bin/sh"))?;
    let read = ProcessMemory::open(child.id()).map(drop);
    // It ends when its input does.
    drop(child.stdin.take());
    let _ = child.wait();
    outcome(read)
}
