//! Captures the pages of running processes through /proc.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use procfs::ProcError;
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process, Stat};

use super::residency::{Look, PageMap, SharedPages};
use super::sink::PageSink;
use super::{CaptureError, CaptureOptions};
use crate::corpus::page_set::PageRange;
use crate::corpus::sample::{Population, SamplePlan, UNIT_BYTES, UnitWalk, pieces};
use crate::human_size::human_size;
use uzswap::page::{PAGE_SIZE, Page};
use uzswap_sys::signals::{self, RunsAgain, SignalNumber, SignalsHeld};

/// Pages read at a time.
const CHUNK_PAGES: usize = 1 << 7; // 128

/// Their bytes.
const CHUNK_BYTES: u64 = (CHUNK_PAGES * PAGE_SIZE) as u64;

/// Addresses looked at together: half a million runs of pages at most. Whole windows of units.
const LOOK_BYTES: u64 = UNIT_BYTES << 16; // 4 GiB

/// How long a process may take to stop; one in an uninterruptible wait takes for ever.
const STOP_WAIT: Duration = Duration::from_millis(500);

/// The process's flag that says it is a kernel thread: PF_KTHREAD of linux/sched.h.
const KERNEL_THREAD: u32 = 1 << 21;

/// Checks that there is a process with memory of its own; its name.
pub(super) fn check(pid: i32) -> Result<String, CaptureError> {
    if pid <= 0 {
        return Err(CaptureError::Gone { pid });
    }
    let stat = Process::new(pid)
        .and_then(|process| process.stat())
        .map_err(|error| failed(pid, "stat", error))?;
    if stat.flags & KERNEL_THREAD != 0 {
        return Err(CaptureError::KernelThread { pid, name: stat.comm });
    }
    if has_ended(&stat) {
        return Err(CaptureError::Zombie { pid, name: stat.comm });
    }
    Ok(stat.comm)
}

fn has_ended(stat: &Stat) -> bool {
    matches!(stat.state, 'Z' | 'X' | 'x')
}

/// What an error of procfs means.
fn failed(pid: i32, what: &'static str, error: ProcError) -> CaptureError {
    match error {
        ProcError::NotFound(_) => CaptureError::Gone { pid },
        ProcError::PermissionDenied(_) => {
            no_permission(pid, what, io::Error::from_raw_os_error(libc::EACCES))
        }
        ProcError::Io(error, _) => io_failed(pid, what, error),
        other => CaptureError::Process { pid, what, error: io::Error::other(other.to_string()) },
    }
}

fn io_failed(pid: i32, what: &'static str, error: io::Error) -> CaptureError {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::ENOENT) => CaptureError::Gone { pid },
        Some(libc::EACCES | libc::EPERM) => no_permission(pid, what, error),
        _ => CaptureError::Process { pid, what, error },
    }
}

/// The files of a process that ends become root's: that it ends is the reason then.
fn no_permission(pid: i32, what: &'static str, error: io::Error) -> CaptureError {
    match Process::new(pid).and_then(|process| process.stat()) {
        Err(ProcError::NotFound(_)) => CaptureError::Gone { pid },
        Ok(stat) if has_ended(&stat) => CaptureError::Zombie { pid, name: stat.comm },
        // On its way there: its memory is gone already.
        Ok(stat) if stat.vsize == 0 => CaptureError::Ended { pid },
        _ => CaptureError::NoPermission { pid, what, error },
    }
}

/// Captures `pid`, and with `options.tree` what is below it, into `writer`; the notes.
pub(super) fn capture(
    pid: i32,
    options: &CaptureOptions,
    writer: &mut dyn PageSink,
    signals: &SignalsHeld,
) -> Result<Vec<String>, CaptureError> {
    let mut notes = Vec::new();
    let frozen = if options.freeze {
        Some(Frozen::stop(pid, options.tree, &mut notes, &mut || {})?)
    } else {
        None
    };
    let pids = processes(pid, options.tree, &mut notes);
    read_all(&pids, options.sample, writer, signals, &mut notes)?;
    drop(frozen);
    Ok(notes)
}

/// Reads the pages of `pids`, the first of which has to be there, or a sample of them.
pub(super) fn read_all(
    pids: &[i32],
    plan: SamplePlan,
    writer: &mut dyn PageSink,
    signals: &SignalsHeld,
    notes: &mut Vec<String>,
) -> Result<(), CaptureError> {
    let counted = match plan.pages_max {
        Some(_) => count_all(pids, signals)?,
        None => Population::default(),
    };
    read_counted(pids, counted, plan, writer, signals, notes, |index| index > 0)
}

/// Reads the pages of those of `pids` that are there and may be read, or a sample of them.
pub(super) fn read_any(
    pids: &[i32],
    plan: SamplePlan,
    writer: &mut dyn PageSink,
    signals: &SignalsHeld,
    notes: &mut Vec<String>,
) -> Result<(), CaptureError> {
    let counted = count_all(pids, signals)?;
    read_counted(pids, counted, plan, writer, signals, notes, |_| true)
}

/// Reads what was counted, or a sample of it. A process that is gone or may not be read is left out
/// where `may_miss` its place among `pids`.
fn read_counted(
    pids: &[i32],
    counted: Population,
    plan: SamplePlan,
    writer: &mut dyn PageSink,
    signals: &SignalsHeld,
    notes: &mut Vec<String>,
    may_miss: impl Fn(usize) -> bool,
) -> Result<(), CaptureError> {
    let mut walk = UnitWalk::drawing(counted, plan);
    let mut lost = Lost::default();
    let mut shared = shared_by(pids);
    for (index, &pid) in pids.iter().enumerate() {
        match read_process(pid, walk.as_mut(), shared.as_mut(), writer, signals, &mut lost) {
            Ok(()) => {}
            // One of many: the others are still of use.
            Err(
                error @ (CaptureError::Gone { .. }
                | CaptureError::Ended { .. }
                | CaptureError::NoPermission { .. }
                | CaptureError::Zombie { .. }),
            ) if may_miss(index) => notes.push(format!("skipped a process: {error}")),
            Err(error) => return Err(error),
        }
    }
    lost.tell(notes);
    if let Some(walk) = walk {
        let met = walk.met();
        writer.set_sample(met.pages, plan.seed);
        let changed = met.units.abs_diff(counted.units);
        if changed > 0 {
            notes.push(format!(
                "{changed} units came or went between the count and the reading of the sample"
            ));
        }
    }
    Ok(())
}

/// Counts the pages and units of `pids`. A process that cannot be read has none: reading its pages
/// says why.
fn count_all(pids: &[i32], signals: &SignalsHeld) -> Result<Population, CaptureError> {
    count_until(pids, signals, None).map(|(population, _)| population)
}

/// Counts the pages of processes in their order until the deadline; the number of processes that it
/// got to.
fn count_until(
    pids: &[i32],
    signals: &SignalsHeld,
    deadline: Option<Instant>,
) -> Result<(Population, usize), CaptureError> {
    let mut walk = UnitWalk::counting();
    let mut shared = shared_by(pids);
    for (index, &pid) in pids.iter().enumerate() {
        if index > 0 && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok((walk.met(), index));
        }
        let maps = Process::new(pid).and_then(|process| process.maps());
        let (Ok(maps), Ok(mut page_map)) = (maps, PageMap::open(pid)) else { continue };
        for map in maps.into_iter().filter(is_private_memory) {
            let name = mapping_name(&map);
            for addresses in looks(map.address) {
                check_signals(signals)?;
                let look = look(&mut page_map, addresses, shared.as_mut());
                let Ok(look) = look else { break };
                for piece in look.resident.into_iter().flat_map(units) {
                    walk.meets(Some(pid as u32), &name, &piece); // checked to be positive
                }
            }
        }
    }
    Ok((walk.met(), pids.len()))
}

/// Takes a sample of all processes that this one may read, the largest first; the notes. Processes
/// that it does not get to by the deadline are left out.
pub(super) fn capture_system(
    plan: SamplePlan,
    deadline: Instant,
    writer: &mut dyn PageSink,
    signals: &SignalsHeld,
) -> Result<Vec<String>, CaptureError> {
    let all = processes_by_memory();
    let pids: Vec<i32> = all.iter().filter(|it| it.is_readable).map(|it| it.pid).collect();
    let (counted, reached) = count_until(&pids, signals, Some(deadline))?;
    let mut notes = Vec::new();
    let bytes = |them: &[ByMemory]| them.iter().map(|it| it.anonymous_bytes).sum::<u64>();
    let readable = all.iter().filter(|it| it.is_readable).count();
    if readable < all.len() {
        let rest: Vec<ByMemory> = all.iter().copied().filter(|it| !it.is_readable).collect();
        notes.push(format!(
            "this user cannot read {} of {} processes, which have {}; root reads all",
            rest.len(),
            all.len(),
            human_size(bytes(&rest))
        ));
    }
    if reached < pids.len() {
        notes.push(format!(
            "{} of {} processes were reached in time, the largest first; --budget gives more",
            reached,
            pids.len()
        ));
    }
    read_counted(&pids[..reached], counted, plan, writer, signals, &mut notes, |_| true)?;
    Ok(notes)
}

/// A process of the machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByMemory {
    pub(super) pid: i32,
    anonymous_bytes: u64,
    pub(super) is_readable: bool,
}

/// All processes with memory of their own but this one, the largest first.
pub(super) fn processes_by_memory() -> Vec<ByMemory> {
    let Ok(processes) = procfs::process::all_processes() else { return Vec::new() };
    let one = |process: Process| {
        let status = process.status().ok()?;
        let anonymous_bytes = status.rssanon? << 10; // in KiB
        let is_readable = File::open(format!("/proc/{}/mem", process.pid)).is_ok();
        Some(ByMemory { pid: process.pid, anonymous_bytes, is_readable })
    };
    let mut all: Vec<ByMemory> = processes
        .filter_map(Result::ok)
        .filter(|process| !is_us(process.pid))
        .filter_map(one)
        .filter(|it| it.anonymous_bytes > 0)
        .collect();
    all.sort_by_key(|it| std::cmp::Reverse(it.anonymous_bytes));
    all
}

/// The parts of a run of pages that are of one unit each.
fn units(run: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    pieces(run, UNIT_BYTES)
}

/// The parts of a mapping that are looked at one by one: lists of their pages stay small.
fn looks((start, end): (u64, u64)) -> impl Iterator<Item = Range<u64>> {
    let first = start / LOOK_BYTES * LOOK_BYTES;
    let from = (first..end).step_by(LOOK_BYTES as usize);
    from.map(move |from| from.max(start)..from.saturating_add(LOOK_BYTES).min(end))
}

fn check_signals(signals: &SignalsHeld) -> Result<(), CaptureError> {
    signals.pending().map_or(Ok(()), |signal| Err(CaptureError::Interrupted(signal)))
}

/// What a capture could not have.
#[derive(Debug, Default)]
struct Lost {
    /// Pages that were gone when they were read.
    unmapped: u64,
    /// Pages in swap.
    swapped: u64,
    /// Whether pages of the shared zero page may be in the set.
    zero_page: bool,
    /// Processes that ended while they were read.
    ended: Vec<i32>,
}

impl Lost {
    fn tell(&self, notes: &mut Vec<String>) {
        for pid in &self.ended {
            notes.push(format!(
                "process {pid} ended while it was read; the pages read so far are \
                                kept"
            ));
        }
        if self.unmapped > 0 {
            notes.push(format!("{} pages were unmapped while they were read", self.unmapped));
        }
        if self.swapped > 0 {
            notes.push(format!("{} pages were in swap and are omitted", self.swapped));
        }
        if self.zero_page {
            notes.push(
                "this kernel has no PAGEMAP_SCAN: the zero pages include pages that were only read"
                    .to_owned(),
            );
        }
    }
}

/// A process being read.
struct Reader<'a> {
    pid: i32,
    memory: File,
    page_map: PageMap,
    /// Of a sample: which units to take.
    walk: Option<&'a mut UnitWalk>,
    /// Of several processes: the shared pages of those before.
    shared: Option<&'a mut SharedPages>,
    writer: &'a mut dyn PageSink,
    signals: &'a SignalsHeld,
    lost: &'a mut Lost,
    chunk: Vec<Page>,
}

/// What reading a piece came to.
#[derive(PartialEq)]
enum Piece {
    Done,
    ProcessEnded,
}

fn read_process(
    pid: i32,
    walk: Option<&mut UnitWalk>,
    shared: Option<&mut SharedPages>,
    writer: &mut dyn PageSink,
    signals: &SignalsHeld,
    lost: &mut Lost,
) -> Result<(), CaptureError> {
    let open = |what| {
        File::open(format!("/proc/{pid}/{what}")).map_err(|error| io_failed(pid, what, error))
    };
    let maps = Process::new(pid)
        .and_then(|process| process.maps())
        .map_err(|error| failed(pid, "maps", error))?;
    let memory = open("mem")?;
    let page_map = PageMap::open(pid).map_err(|error| io_failed(pid, "pagemap", error))?;
    let before = writer.page_count();
    let chunk = vec![[0; PAGE_SIZE]; CHUNK_PAGES];
    let mut reader = Reader { pid, memory, page_map, walk, shared, writer, signals, lost, chunk };
    for map in maps.into_iter().filter(is_private_memory) {
        if reader.read_mapping(&map)? == Piece::ProcessEnded {
            if reader.writer.page_count() == before {
                return Err(CaptureError::Ended { pid });
            }
            reader.lost.ended.push(pid);
            break;
        }
    }
    reader.lost.zero_page |= !reader.page_map.knows_zero_page();
    Ok(())
}

/// None so far, where several processes may share pages.
fn shared_by(pids: &[i32]) -> Option<SharedPages> {
    (pids.len() > 1).then(SharedPages::default)
}

/// Looks at addresses of one of several processes, and finds a page that these share once.
fn look(
    page_map: &mut PageMap,
    addresses: Range<u64>,
    shared: Option<&mut SharedPages>,
) -> io::Result<Look> {
    let look = page_map.look(addresses)?;
    match shared {
        Some(shared) => Ok(Look { resident: page_map.once(look.resident, shared)?, ..look }),
        None => Ok(look),
    }
}

/// Whether a mapping can have anonymous pages of the process's own.
fn is_private_memory(map: &MemoryMap) -> bool {
    let of_kernel = match &map.pathname {
        MMapPath::Vdso | MMapPath::Vvar | MMapPath::Vsyscall => true,
        // [vvar_vclock] and what may follow it.
        MMapPath::Other(name) => name.starts_with("vvar"),
        _ => false,
    };
    map.perms.contains(MMPermissions::PRIVATE) && !of_kernel
}

fn mapping_name(map: &MemoryMap) -> String {
    match &map.pathname {
        MMapPath::Path(path) => path.display().to_string(),
        MMapPath::Heap => "[heap]".to_owned(),
        MMapPath::Stack | MMapPath::TStack(_) => "[stack]".to_owned(),
        MMapPath::Anonymous => "anon".to_owned(),
        MMapPath::Other(name) => format!("[{name}]"),
        other => format!("{other:?}"),
    }
}

impl Reader<'_> {
    fn read_mapping(&mut self, map: &MemoryMap) -> Result<Piece, CaptureError> {
        let name = mapping_name(map);
        let pid = self.pid;
        for addresses in looks(map.address) {
            let failed = |error| io_failed(pid, "pagemap", error);
            let shared = self.shared.as_deref_mut();
            let look = look(&mut self.page_map, addresses, shared).map_err(failed)?;
            self.lost.swapped += look.swapped;
            let window_bytes = if self.walk.is_some() { UNIT_BYTES } else { CHUNK_BYTES };
            // A chunk has room for a piece.
            for piece in look.resident.into_iter().flat_map(|run| pieces(run, window_bytes)) {
                check_signals(self.signals)?;
                let pid = Some(pid as u32); // checked to be positive
                let is_wanted =
                    self.walk.as_mut().is_none_or(|walk| walk.meets(pid, &name, &piece));
                if is_wanted && self.read_chunk(piece, &name)? == Piece::ProcessEnded {
                    return Ok(Piece::ProcessEnded);
                }
            }
        }
        Ok(Piece::Done)
    }

    /// Reads at most a chunk of pages that were resident a moment ago.
    fn read_chunk(&mut self, addresses: Range<u64>, name: &str) -> Result<Piece, CaptureError> {
        let pages = ((addresses.end - addresses.start) / PAGE_SIZE as u64) as usize;
        // Where in the chunk there is what, as runs of pages.
        let mut have: Vec<Range<usize>> = Vec::new();
        let mut page = 0;
        while page < pages {
            let bytes = self.chunk[page..pages].as_flattened_mut();
            let address = addresses.start + (page * PAGE_SIZE) as u64;
            match self.memory.read_at(bytes, address) {
                // The address space is gone; mem does not tell it from the end of a file.
                Ok(0) => return Ok(Piece::ProcessEnded),
                Ok(read) => {
                    // Short where the next page cannot be read.
                    let whole = read / PAGE_SIZE;
                    have.push(page..page + whole);
                    page += whole.max(1);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // EIO: no such page any more.
                Err(_) => page += 1,
            }
        }
        // Reading a page that was dropped in between gives zeros that the process never had, and
        // makes it the shared zero page: a second look tells.
        let still = match self.page_map.look(addresses.clone()) {
            Ok(look) => look.resident,
            Err(error) => return Err(io_failed(self.pid, "pagemap", error)),
        };
        if still.is_empty() && check(self.pid).is_err() {
            return Ok(Piece::ProcessEnded);
        }
        let mut kept = 0;
        for run in still {
            let index = |address: u64| ((address - addresses.start) / PAGE_SIZE as u64) as usize;
            let run = index(run.start)..index(run.end);
            for had in &have {
                let both = had.start.max(run.start)..had.end.min(run.end);
                if both.start >= both.end {
                    continue;
                }
                kept += both.len();
                let range = PageRange {
                    pid: Some(self.pid as u32), // checked to be positive
                    start: addresses.start + (both.start * PAGE_SIZE) as u64,
                    pages: both.len() as u64,
                    name: name.to_owned(),
                };
                self.writer.push(range, &self.chunk[both])?;
            }
        }
        self.lost.unmapped += (pages - kept) as u64;
        Ok(Piece::Done)
    }
}

/// A process, and those below it where it `has_tree`.
pub(super) fn processes(pid: i32, has_tree: bool, notes: &mut Vec<String>) -> Vec<i32> {
    if has_tree { tree(pid, notes) } else { vec![pid] }
}

/// `pid` and everything below it, parents first. This process is left out: the tree of a shell has
/// it, and stopping it would be for ever.
pub(super) fn tree(pid: i32, notes: &mut Vec<String>) -> Vec<i32> {
    walk(pid, children, notes)
}

fn walk(
    pid: i32,
    children: impl Fn(i32) -> Result<Vec<i32>, ProcError>,
    notes: &mut Vec<String>,
) -> Vec<i32> {
    let mut pids = vec![pid];
    let mut next = 0;
    while let Some(&parent) = pids.get(next) {
        next += 1;
        match children(parent) {
            Ok(children) => {
                for child in children {
                    // A thread that ends hands its children to another: they may be listed twice.
                    if !pids.contains(&child) && !is_us(child) {
                        pids.push(child);
                    }
                }
            }
            Err(_) if parent != pid => {
                notes.push(format!("skipped a process: process {parent} ended"));
            }
            Err(_) => {} // reading its pages says it better
        }
    }
    pids
}

fn is_us(pid: i32) -> bool {
    u32::try_from(pid) == Ok(std::process::id())
}

/// The live children of a process, of any of its threads.
fn children(pid: i32) -> Result<Vec<i32>, ProcError> {
    let mut pids = Vec::new();
    for task in Process::new(pid)?.tasks()? {
        // A thread may have ended since.
        let Ok(children) = task.and_then(|task| task.children()) else { continue };
        for child in children.into_iter().filter_map(|child| i32::try_from(child).ok()) {
            let ended = Process::new(child).and_then(|process| process.stat());
            if ended.is_ok_and(|stat| !has_ended(&stat)) {
                pids.push(child);
            }
        }
    }
    Ok(pids)
}

/// Stopped processes, which run again when this is dropped, and when this process is killed.
#[derive(Debug)]
pub(super) struct Frozen {
    seen: Vec<i32>,
    resume: Vec<RunsAgain>,
}

impl Frozen {
    /// Stops `pid` and, with `tree_too`, everything below it; `meanwhile` is called again and again
    /// until they have stopped.
    pub(super) fn stop(
        pid: i32,
        tree_too: bool,
        notes: &mut Vec<String>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Frozen, CaptureError> {
        let mut frozen = Frozen { seen: Vec::new(), resume: Vec::new() };
        // A child may be born before its parent stops: look again until there is no new one.
        loop {
            let all = if tree_too { tree(pid, &mut Vec::new()) } else { vec![pid] };
            let new: Vec<i32> = all.into_iter().filter(|pid| !frozen.seen.contains(pid)).collect();
            if new.is_empty() {
                return Ok(frozen);
            }
            for new in new {
                if is_us(new) {
                    frozen.seen.push(new);
                    continue;
                }
                frozen.add(new, new == pid, notes, meanwhile)?;
            }
        }
    }

    fn add(
        &mut self,
        pid: i32,
        must: bool,
        notes: &mut Vec<String>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), CaptureError> {
        // 'T' alone: one that is stopped for its tracer, which may be us, runs again by itself.
        // One that somebody else had stopped stays stopped.
        if !all_threads(pid, &['T']) {
            self.resume.push(RunsAgain::new(pid));
        }
        match signals::send(pid, SignalNumber(libc::SIGSTOP)) {
            Ok(()) => {}
            Err(error) if must => return Err(io_failed(pid, "state", error)),
            Err(error) => notes.push(format!("process {pid} was not stopped: {error}")),
        }
        self.seen.push(pid);
        let since = Instant::now();
        loop {
            meanwhile();
            if is_stopped(pid) {
                break;
            }
            if since.elapsed() > STOP_WAIT {
                notes.push(format!("process {pid} did not stop and was read while it ran"));
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Whether every thread of a process is stopped, for a signal or its tracer, or gone.
fn is_stopped(pid: i32) -> bool {
    all_threads(pid, &['T', 't', 'Z', 'X', 'x'])
}

/// Whether every thread of a process is in one of these states; true for a process that is gone.
fn all_threads(pid: i32, states: &[char]) -> bool {
    let Ok(tasks) = Process::new(pid).and_then(|process| process.tasks()) else { return true };
    tasks
        .filter_map(|task| task.and_then(|task| task.stat()).ok())
        .all(|stat| states.contains(&stat.state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::page_set::PageSetWriter;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use uzswap_sys::pages::PageRun;

    /// Reads eight pages of our own, of which `change` took some away after they were found.
    fn read_after(change: impl FnOnce(&mut Vec<PageRun>)) -> (Vec<u8>, Lost) {
        let mut rest = PageRun::map(8).unwrap();
        for (number, page) in rest.chunks_mut(PAGE_SIZE).enumerate() {
            page.fill(number as u8 + 1);
        }
        let start = rest.as_ptr().addr() as u64;
        let mut runs: Vec<PageRun> = (0..8).map(|_| rest.split_front(1)).collect();
        drop(rest); // an empty run holds the mapping too

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pages");
        let mut writer = PageSetWriter::create(&path).unwrap();
        let signals = SignalsHeld::new();
        let mut lost = Lost::default();
        let pid = std::process::id() as i32;
        let mut reader = Reader {
            pid,
            memory: File::open("/proc/self/mem").unwrap(),
            page_map: PageMap::open(pid).unwrap(),
            walk: None,
            shared: None,
            writer: &mut writer,
            signals: &signals,
            lost: &mut lost,
            chunk: vec![[0xee; PAGE_SIZE]; CHUNK_PAGES],
        };
        change(&mut runs);
        let bytes = 8 * PAGE_SIZE as u64;
        assert!(reader.read_chunk(start..start + bytes, "anon").unwrap() == Piece::Done);
        if writer.page_count() == 0 {
            return (Vec::new(), lost);
        }
        writer.finish("a test".to_owned(), Vec::new()).unwrap();
        let pages = crate::corpus::page_set::PageSet::read(&path).unwrap().pages;
        (pages.iter().map(|page| page[77]).collect(), lost)
    }

    #[test]
    fn a_child_that_is_listed_twice_is_one_process() {
        let us = std::process::id() as i32;
        let children = |pid| match pid {
            1 => Ok(vec![3, 2, 3, us]),
            2 => Ok(vec![4, 1]),
            3 => Ok(vec![4]),
            _ => Err(ProcError::NotFound(None)),
        };
        let mut notes = Vec::new();
        assert_eq!(walk(1, children, &mut notes), [1, 3, 2, 4]);
        assert_eq!(notes, ["skipped a process: process 4 ended"]);
    }

    #[test]
    fn pages_that_went_away_are_left_out_and_counted() {
        let (pages, lost) = read_after(|_| {});
        assert_eq!((pages, lost.unmapped), (vec![1, 2, 3, 4, 5, 6, 7, 8], 0));
        // Dropped, the mapping stays: a read gives zeros.
        let (pages, lost) = read_after(|runs| {
            runs[0].discard().unwrap();
            runs[4].discard().unwrap();
            runs[5].discard().unwrap();
        });
        assert_eq!((pages, lost.unmapped), (vec![2, 3, 4, 7, 8], 3));
        let (pages, lost) = read_after(|runs| {
            for run in runs {
                run.discard().unwrap();
            }
        });
        assert_eq!((pages.len(), lost.unmapped), (0, 8));
    }

    #[test]
    fn a_mapping_that_went_away_is_left_out_and_counted() {
        // All runs of the mapping: dropping the last unmaps it.
        let (pages, lost) = read_after(Vec::clear);
        // Another thread may have mapped something there meanwhile, but not our bytes.
        assert!(pages.len() as u64 + lost.unmapped == 8);
        assert!(pages.iter().all(|byte| !(1..=8).contains(byte)), "{pages:?}");
    }

    #[test]
    fn a_stopped_process_runs_again_and_one_stopped_before_does_not() {
        let mut sleep = Command::new("sleep").arg("30").process_group(0).spawn().unwrap();
        let pid = sleep.id() as i32;
        let mut notes = Vec::new();
        let frozen = Frozen::stop(pid, true, &mut notes, &mut || {}).unwrap();
        assert!(is_stopped(pid));
        // A second one finds it stopped, and leaves it so.
        drop(Frozen::stop(pid, false, &mut notes, &mut || {}).unwrap());
        assert!(is_stopped(pid));
        drop(frozen);
        let since = Instant::now();
        while is_stopped(pid) && since.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!is_stopped(pid));
        sleep.kill().unwrap();
        sleep.wait().unwrap();
        assert!(notes.is_empty(), "{notes:?}");
    }

    #[test]
    fn the_tree_leaves_this_process_out() {
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let parent = std::os::unix::process::parent_id() as i32;
        let pids = tree(parent, &mut Vec::new());
        let ours = std::process::id() as i32;
        assert!(pids.contains(&parent) && !pids.contains(&ours));
        assert!(tree(ours, &mut Vec::new()).contains(&(child.id() as i32)));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
