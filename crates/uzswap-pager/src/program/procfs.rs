//! Readers of /proc for one process.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::page_table::BATCH_PAGES;
use crate::program::peer::Peer;
use crate::program::proc_text::{addresses, read_to_string};
use crate::program::vmas::Mappings;
use crate::range_set::RangeSet;
use uzswap::page::PAGE_SIZE;
use uzswap_preload::protocol::Control;
use uzswap_sys::pagemap::{self, Found, Wanted};
use uzswap_sys::process::{bytes_after, compare_memory};
use uzswap_sys::process_memory::ProcessMemory;

/// Runs and pages of one query for resident pages. Faults wait meanwhile, and the next search asks
/// again for pages that stay.
const FOUND_AT_ONCE: usize = 64;
const FOUND_PAGES_MAX: u64 = BATCH_PAGES as u64;

/// Folder of a process in /proc, and open files that are read again and again.
#[derive(Debug)]
pub(crate) struct ProcessFiles {
    /// The helper's thread, which may have the memory longer than the first thread.
    pub(crate) thread: u32,
    /// The program's process.
    process: u32,
    statm: File,
    pagemap: File,
    smaps: File,
    smaps_rollup: File,
    pub(crate) mappings: Mappings,
    pub(crate) memory: ProcessMemory,
}

/// The size of a process in pages (/proc/PID/statm).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) mapped: u64,
    pub(crate) anonymous: u64,
    /// Resident pages of files and of shared memory.
    pub(crate) others: u64,
}

/// Entries without a page and without a guard (MADV_GUARD_INSTALL).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Empty {
    /// With a marker.
    Marked,
    Unmarked,
    Either,
}

impl ProcessFiles {
    /// Opens the files of a managed process: of its helper, if that is a process. All but `statm`
    /// stay bound to the present address space. The last file to be opened is the memory.
    pub(crate) fn open(peer: &Peer, helper: Option<&Peer>) -> io::Result<ProcessFiles> {
        let thread = helper.map_or_else(|| helper_thread(peer.pid()), |helper| Ok(helper.pid()))?;
        let files = ProcessFiles { process: peer.pid(), ..ProcessFiles::of_thread(thread)? };
        let has_it = |thread| compare_memory(thread, files.thread).is_ok_and(Ordering::is_eq);
        let is_its_own = helper.is_none() || threads(peer.pid())?.any(has_it);
        // The process had its number until now.
        let are_alive = peer.is_alive() && helper.is_none_or(Peer::is_alive);
        if is_its_own && are_alive { Ok(files) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// The files of any process, by one of its threads.
    pub(crate) fn of_thread(thread: u32) -> io::Result<ProcessFiles> {
        let open = |name| File::open(format!("/proc/{thread}/{name}"));
        Ok(ProcessFiles {
            thread,
            process: thread,
            statm: open("statm")?,
            pagemap: open("pagemap")?,
            smaps: open("smaps")?,
            smaps_rollup: open("smaps_rollup")?,
            mappings: Mappings::new(open("maps")?),
            memory: ProcessMemory::open(thread)?,
        })
    }

    /// Whether the helper is one of the program's threads.
    pub(crate) fn has_helper_as_thread(&self) -> bool {
        is_of_same_process(self.process, self.thread)
    }

    /// The program's threads without the helper; none if it has ended.
    pub(crate) fn threads(&self) -> impl Iterator<Item = u32> {
        let all = threads(self.process).into_iter().flatten();
        all.filter(|thread| *thread != self.thread)
    }

    /// `None` where the process has ended.
    pub(crate) fn size(&self) -> Option<Size> {
        let mut text = [0; 128];
        let length = self.statm.read_at(&mut text, 0).ok()?;
        size(std::str::from_utf8(&text[..length]).ok()?)
    }

    /// `Pss_Anon`: anonymous bytes, and its part of shared pages. The kernel walks all pages for
    /// this.
    pub(crate) fn part_of_anonymous(&self) -> Option<u64> {
        let mut text = [0; 2048];
        let length = self.smaps_rollup.read_at(&mut text, 0).ok()?;
        part_of_anonymous(std::str::from_utf8(&text[..length]).ok()?)
    }

    /// Whether there is a page at an address: resident, or in swap.
    pub(crate) fn is_there(&self, address: u64) -> io::Result<bool> {
        let range = address..address + PAGE_SIZE as u64;
        Ok(self.pages_in(range)? != RangeSet::new())
    }

    /// The first resident pages of a range, as runs, and the address to go on from.
    pub(crate) fn resident(&self, range: Range<u64>) -> io::Result<(Vec<Range<u64>>, u64)> {
        let mut found = [Found::default(); FOUND_AT_ONCE];
        let (count, walked_to) =
            pagemap::scan(&self.pagemap, range, Wanted::Resident, &mut found, FOUND_PAGES_MAX)?;
        Ok((found[..count].iter().map(|run| run.start..run.end).collect(), walked_to))
    }

    /// The same for exclusive pages.
    pub(crate) fn resident_alone(&self, range: Range<u64>) -> io::Result<(Vec<Range<u64>>, u64)> {
        const PAGE: u64 = PAGE_SIZE as u64;
        let (runs, walked_to) = self.resident(range)?;
        let mut alone: Vec<Range<u64>> = Vec::new();
        let mut room = [[0; pagemap::ENTRY_BYTES]; FOUND_PAGES_MAX as usize];
        for run in runs {
            let room = &mut room[..((run.end - run.start) / PAGE) as usize];
            let entries = pagemap::entries(&self.pagemap, run.start, room)?;
            let pages = (run.start..).step_by(PAGE_SIZE).zip(entries);
            for (at, _) in pages.filter(|(_, entry)| entry.is_alone()) {
                match alone.last_mut() {
                    Some(last) if last.end == at => last.end += PAGE,
                    _ => alone.push(at..at + PAGE),
                }
            }
        }
        Ok((alone, walked_to))
    }

    /// Whether each of some pages from an address on is resident and shared.
    pub(crate) fn shares(&self, address: u64, count: usize) -> io::Result<Vec<bool>> {
        let mut room = vec![[0; pagemap::ENTRY_BYTES]; count];
        let entries = pagemap::entries(&self.pagemap, address, &mut room)?;
        Ok(entries.map(|entry| entry.is_present() && !entry.is_alone()).collect())
    }

    /// Where in a range there are pages: resident, or in swap.
    pub(crate) fn pages_in(&self, range: Range<u64>) -> io::Result<RangeSet> {
        self.find_all(range, Wanted::Anonymous, |run| !run.is_marked())
    }

    /// Entries of a range that are not empty.
    pub(crate) fn populated_in(&self, range: Range<u64>) -> io::Result<RangeSet> {
        self.find_all(range, Wanted::Populated, |_| true)
    }

    /// Empty entries of a range with a marker.
    pub(crate) fn marked_in(&self, range: Range<u64>) -> io::Result<RangeSet> {
        self.find_all(range, Wanted::Marked, |_| true)
    }

    fn find_all(
        &self,
        range: Range<u64>,
        wanted: Wanted,
        is_one: impl Fn(&Found) -> bool,
    ) -> io::Result<RangeSet> {
        let mut all = RangeSet::default();
        let mut at = range.start;
        while at < range.end {
            let mut found = [Found::default(); FOUND_AT_ONCE];
            let (count, walked_to) =
                pagemap::scan(&self.pagemap, at..range.end, wanted, &mut found, 0)?;
            let runs = found[..count].iter().filter(|run| is_one(run));
            runs.for_each(|run| all.insert(run.start..run.end));
            if walked_to <= at {
                break; // the memory is gone
            }
            at = walked_to;
        }
        Ok(all)
    }

    /// The addresses around a page whose entries are empty and of one kind. `None` if its own
    /// entry is empty and of the other; the page alone if it has a page or a guard.
    pub(crate) fn empty_around(
        &self,
        page: Range<u64>,
        range: Range<u64>,
        kind: Empty,
    ) -> io::Result<Option<Range<u64>>> {
        let mut found = [Found::default(); FOUND_AT_ONCE];
        let (count, walked_to) =
            pagemap::scan(&self.pagemap, range.clone(), Wanted::Anonymous, &mut found, 0)?;
        let runs = &found[..count];
        let own = runs.iter().find(|run| (run.start..run.end).contains(&page.start));
        match (own, kind) {
            (Some(own), _) if !own.is_marked() => return Ok(Some(page)),
            (Some(own), Empty::Marked) => return Ok(Some(own.start..own.end)),
            (Some(_), Empty::Unmarked) | (None, Empty::Marked) => return Ok(None),
            (Some(_), Empty::Either) | (None, Empty::Unmarked | Empty::Either) => {}
        }
        let Range { mut start, end } = range;
        let mut end = end.min(walked_to.max(page.end));
        for run in runs.iter().filter(|run| kind == Empty::Unmarked || !run.is_marked()) {
            if run.end <= page.start {
                start = run.end;
            } else {
                end = end.min(run.start);
            }
        }
        Ok(Some(start..end))
    }

    /// Whether at most so few pages of a range are resident; `false` if the kernel does not tell.
    pub(crate) fn has_at_most(&self, range: Range<u64>, most: u64) -> bool {
        let mut found = [Found::default(); FOUND_AT_ONCE];
        let scanned =
            pagemap::scan(&self.pagemap, range.clone(), Wanted::Anonymous, &mut found, most + 1);
        scanned.is_ok_and(|(count, walked_to)| {
            let bytes: u64 = found[..count].iter().map(|run| run.end - run.start).sum();
            walked_to >= range.end && bytes <= most * PAGE_SIZE as u64
        })
    }

    /// Mappings with pages that were freed lazily (MADV_FREE) and not written since, and the bytes
    /// of these pages: `LazyFree` of /proc/PID/smaps. The kernel walks all pages for this.
    pub(crate) fn lazily_freed(&self) -> io::Result<Vec<(Range<u64>, u64)>> {
        Ok(lazily_freed(&read_to_string(&self.smaps)?))
    }

    /// Mappings with each of these flags: `VmFlags` of /proc/PID/smaps. Each is a range of its own.
    pub(crate) fn mappings_with<const N: usize>(
        &self,
        wanted: [&str; N],
    ) -> io::Result<[RangeSet; N]> {
        let mut found = [const { RangeSet::new() }; N];
        let mut range = 0..0;
        for line in read_to_string(&self.smaps)?.lines() {
            if let Some(flags) = line.strip_prefix("VmFlags:") {
                for flag in flags.split_ascii_whitespace() {
                    if let Some(at) = wanted.iter().position(|wanted| *wanted == flag) {
                        found[at].insert_apart(range.clone());
                    }
                }
            } else if let Some(mapping) = addresses(line) {
                range = mapping;
            }
        }
        Ok(found)
    }
}

fn lazily_freed(smaps: &str) -> Vec<(Range<u64>, u64)> {
    let (mut range, mut found) = (0..0, Vec::new());
    for line in smaps.lines() {
        if let Some(bytes) = bytes_after(line, "LazyFree:") {
            found.extend((bytes > 0).then(|| (range.clone(), bytes)));
        } else if let Some(mapping) = addresses(line) {
            range = mapping;
        }
    }
    found
}

/// The helper's thread in a process, by its name. The program can name another of its threads so.
fn helper_thread(pid: u32) -> io::Result<u32> {
    for thread in threads(pid)? {
        match is_helper(thread) {
            Ok(true) => return Ok(thread),
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => return Err(error),
            Ok(false) | Err(_) => {} // another, or it has ended
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// The threads of the process of a thread.
pub(crate) fn threads(thread: u32) -> io::Result<impl Iterator<Item = u32>> {
    let tasks = fs::read_dir(format!("/proc/{thread}/task"))?;
    Ok(tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()))
}

/// Whether two threads are of one process.
pub(crate) fn is_of_same_process(one: u32, other: u32) -> bool {
    fs::exists(format!("/proc/{one}/task/{other}")).unwrap_or(false)
}

/// Whether a thread is a helper.
pub(crate) fn is_helper(thread: u32) -> io::Result<bool> {
    Ok(fs::read(format!("/proc/{thread}/comm"))? == b"uzswap-helper\n")
}

/// The bytes by which a thread makes a mapping larger just now: it waits in mremap(2).
pub(crate) fn growth_under_way(thread: u32) -> Option<u64> {
    growth(&system_call_of(thread)?)
}

/// The same by a line of /proc/PID/syscall: the call and its arguments.
fn growth(syscall: &str) -> Option<u64> {
    let mut fields = syscall.split_ascii_whitespace();
    if fields.next()?.parse() != Ok(libc::SYS_mremap) {
        return None;
    }
    let mut bytes = fields
        .skip(1)
        .map_while(|field| hexadecimal(field)?.checked_next_multiple_of(PAGE_SIZE as u64));
    let (before, after) = (bytes.next()?, bytes.next()?);
    after.checked_sub(before).filter(|&growth| growth > 0)
}

/// The stack pointer of a thread that waits in the kernel; `None` while it runs, or has ended.
pub(crate) fn stack_pointer(thread: u32) -> Option<u64> {
    stack_pointer_of(&system_call_of(thread)?)
}

/// The same by a line of /proc/PID/syscall, which ends with it and the program counter.
fn stack_pointer_of(syscall: &str) -> Option<u64> {
    hexadecimal(syscall.split_ascii_whitespace().rev().nth(1)?)
}

/// The line of /proc/PID/syscall.
fn system_call_of(thread: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{thread}/syscall")).ok()
}

fn hexadecimal(field: &str) -> Option<u64> {
    u64::from_str_radix(field.strip_prefix("0x")?, 16).ok()
}

/// The number of a thread in its own PID namespace, if that is another one. `None` for an ended
/// thread.
pub(crate) fn number_in_namespace(thread: u32) -> Option<u32> {
    last_of_several(&in_status(thread, "NSpid:")?)
}

fn last_of_several(numbers: &str) -> Option<u32> {
    numbers.split_ascii_whitespace().skip(1).last()?.parse().ok()
}

/// Whether the process of a thread has memory that is locked.
pub(crate) fn has_locked_memory(thread: u32) -> bool {
    locked_bytes(thread) > 0
}

/// Whether the kernel holds memory of the process of a thread for I/O, and counts that: registered
/// buffers of io_uring, and memory of RDMA. A read or write with `O_DIRECT` does not count.
pub(crate) fn has_pinned_memory(thread: u32) -> bool {
    bytes_in_status(thread, "VmPin:").unwrap_or(0) > 0
}

/// Bytes of mappings that the process of a thread has locked.
pub(crate) fn locked_bytes(thread: u32) -> u64 {
    bytes_in_status(thread, "VmLck:").unwrap_or(0)
}

/// A thread of a process that has its memory, and the file of the program that it runs: the first
/// thread may have ended before others.
pub(crate) fn thread_and_program_of(pid: u32) -> Option<(u32, PathBuf)> {
    let with_program = |thread| Some((thread, program_of(thread)?));
    with_program(pid).or_else(|| threads(pid).ok()?.find_map(with_program))
}

/// The file of the program that a process runs; `None` where it has no memory any more. The kernel
/// tells no path that is longer than a page.
fn program_of(pid: u32) -> Option<PathBuf> {
    match fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(path) => Some(path),
        Err(_) if size_of(pid).is_some_and(|size| size.mapped > 0) => {
            Some("a program whose path is unknown".into())
        }
        Err(_) => None,
    }
}

/// The children of a process.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let children = threads.into_iter().flatten().flatten().filter_map(|thread| {
        fs::read_to_string(thread.path().join("children")).ok() // or it has ended
    });
    children.flat_map(|pids| pids.split(' ').flat_map(str::parse).collect::<Vec<u32>>()).collect()
}

/// The user of a process, by its real number.
pub(crate) fn user_of(pid: u32) -> Option<u32> {
    in_status(pid, "Uid:")?.split_ascii_whitespace().next()?.parse().ok()
}

/// As `statm` in /proc tells it.
fn size(statm: &str) -> Option<Size> {
    let mut numbers = statm.split(' ').map_while(|number| number.parse::<u64>().ok());
    let (mapped, resident, files) = (numbers.next()?, numbers.next()?, numbers.next()?);
    Some(Size { mapped, anonymous: resident.saturating_sub(files), others: files })
}

/// The size of the process of a thread; `None` if it has ended.
pub(crate) fn size_of(thread: u32) -> Option<Size> {
    size(&fs::read_to_string(format!("/proc/{thread}/statm")).ok()?)
}

/// The text of /proc/PID/status; `None` if the thread has ended.
fn status_of(thread: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{thread}/status")).ok()
}

/// The value of a line of it.
fn in_status(pid: u32, name: &str) -> Option<String> {
    let status = status_of(pid)?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.map(|line| line.trim().to_owned())
}

/// The bytes of a line of it.
fn bytes_in_status(thread: u32, name: &str) -> Option<u64> {
    bytes_after(&status_of(thread)?, name)
}

/// Bytes of the kernel's page tables of a process.
pub(crate) fn page_table_bytes_of(thread: u32) -> Option<u64> {
    bytes_in_status(thread, "VmPTE:")
}

/// As [`ProcessFiles::part_of_anonymous`], for an unmanaged process.
pub(crate) fn part_of_anonymous_of(pid: u32) -> Option<u64> {
    part_of_anonymous(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?)
}

fn part_of_anonymous(smaps_rollup: &str) -> Option<u64> {
    bytes_after(smaps_rollup, "Pss_Anon:")
}

/// Mapped bytes of a process that do not count against the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OfProcess {
    /// Its part of shared memory.
    pub(crate) shared_part: u64,
    /// Huge pages that it has alone, and others.
    pub(crate) huge_alone: u64,
    pub(crate) huge_shared: u64,
}

/// Memory that each managed program shares with the supervisor, in bytes.
const CONTROL_BYTES: u64 =
    (std::mem::size_of::<Control>() as u64).next_multiple_of(PAGE_SIZE as u64);

/// Mapped bytes of a process that do not count against the limit; `None` if it has ended.
pub(crate) fn uncounted_of(thread: u32) -> Option<OfProcess> {
    // The kernel walks all pages for the parts.
    let status = status_of(thread)?;
    let has = |name, least| bytes_after(&status, name).is_some_and(|bytes| bytes > least);
    if !has("RssShmem:", CONTROL_BYTES) && !has("HugetlbPages:", 0) {
        return None;
    }
    let rollup = fs::read_to_string(format!("/proc/{thread}/smaps_rollup")).ok()?;
    let bytes = |name| bytes_after(&rollup, name).unwrap_or(0);
    Some(OfProcess {
        shared_part: bytes("Pss_Shmem:"),
        huge_alone: bytes("Private_Hugetlb:"),
        huge_shared: bytes("Shared_Hugetlb:"),
    })
}
