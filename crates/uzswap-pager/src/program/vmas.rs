//! The private anonymous mappings of a process.
//!
//! Each scan asks for them, and programs map and fill memory unseen meanwhile. So the kernel is
//! asked for one mapping after the other: some 50 us for the 80 of a python3. Before Linux 6.11
//! there is only their text, which takes 300 to 500.

use std::fs::File;
use std::io;
use std::ops::Range;

use crate::program::proc_text::{addresses, read_to_string};
use crate::range_set::RangeSet;
use uzswap_sys::maps::{self, Mapped};

/// A mapping of private anonymous memory that is readable, or that has no rights: it may hold data
/// that is protected for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<u64>,
    /// The mapping just below has no rights, as below the stack of a thread.
    pub(crate) is_above_guard: bool,
    /// It has no rights: a guard, reserved memory, or protected data.
    pub(crate) has_no_access: bool,
}

/// Rights of memory, as of mmap(2): `PROT_READ` and so on.
pub(crate) type Rights = u32;

/// The rights of most memory.
pub(crate) const READ_WRITE: Rights = (libc::PROT_READ | libc::PROT_WRITE) as Rights;

/// Longer than any name that the kernel gives to memory without a file: `[anon:...]`, of up to 80
/// bytes.
const NAME_MAX: usize = 128;

/// A mapping of so many bytes is large. A program fills as much in half a millisecond.
const LARGE_BYTES: u64 = 1 << 20;

/// The mappings found so far, in the order of addresses.
#[derive(Debug, Default)]
struct Found {
    mappings: Vec<Mapping>,
    /// Where the last one ends, if it is a guard.
    guard_end: Option<u64>,
}

impl Found {
    fn add(&mut self, range: Range<u64>, is_guard: bool, is_anonymous: bool) {
        let is_above_guard = self.guard_end == Some(range.start);
        self.guard_end = is_guard.then_some(range.end);
        if is_anonymous {
            self.mappings.push(Mapping { range, is_above_guard, has_no_access: is_guard });
        }
    }
}

/// The mappings of a process.
#[derive(Debug)]
pub(crate) struct Mappings(File);

impl Mappings {
    /// The mappings by /proc/PID/maps.
    pub(crate) fn new(maps: File) -> Mappings {
        Mappings(maps)
    }

    /// All mappings with a part outside `known`, and perhaps others, in the order of addresses. A
    /// collector that protects single pages has thousands of mappings, most of them known.
    pub(crate) fn outside(&self, known: &RangeSet) -> io::Result<Vec<Mapping>> {
        or_by_text(self.outside_by_query(known), || self.all_by_text())
    }

    /// The large ones, in the order of addresses; none where the kernel cannot be asked. The kernel
    /// is asked at addresses this far apart, not for each of thousands of small ones.
    pub(crate) fn large(&self) -> io::Result<Vec<Mapping>> {
        or_by_text(self.large_by_query(), || Ok(Vec::new()))
    }

    /// The mappings in which these ranges begin, or more. The ranges are in the order of
    /// addresses.
    pub(crate) fn at(&self, ranges: &[Range<u64>]) -> io::Result<Vec<Mapping>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        let by_query = ranges.iter().filter_map(|range| self.at_by_query(range.start).transpose());
        or_by_text(by_query.collect(), || self.all_by_text())
    }

    /// Whether a page is private anonymous memory.
    ///
    /// # Errors
    ///
    /// Of reading the file.
    pub(crate) fn has_private(&self, page: Range<u64>) -> io::Result<bool> {
        let is_in = |mapping: &Mapping| mapping.range.contains(&page.start);
        Ok(self.at(std::slice::from_ref(&page))?.iter().any(is_in))
    }

    /// Whether all of a range lies in one private mapping without a file that cannot be touched.
    pub(crate) fn has_no_access(&self, range: &Range<u64>) -> bool {
        let is_it = |mapping: &Mapping| {
            let within = mapping.range.start <= range.start && range.end <= mapping.range.end;
            within && mapping.has_no_access
        };
        self.at(std::slice::from_ref(range)).is_ok_and(|found| found.iter().any(is_it))
    }

    /// The private mappings without a file in a range, cut to it, and the rights of each.
    pub(crate) fn rights_in(&self, range: Range<u64>) -> io::Result<Vec<(Range<u64>, Rights)>> {
        let by_query = self.rights_by_query(&range);
        or_by_text(by_query, || Ok(rights_in_text(&read_to_string(&self.0)?, &range)))
    }

    fn rights_by_query(&self, range: &Range<u64>) -> io::Result<Vec<(Range<u64>, Rights)>> {
        let (mut found, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let Some(mapped) = maps::query(&self.0, at, &mut [])? else { break };
            let part = mapped.range.start.max(at)..mapped.range.end.min(range.end);
            at = mapped.range.end;
            if !part.is_empty() && mapped.inode == 0 && !mapped.is_shared() {
                found.push((part, mapped.rights()));
            }
        }
        Ok(found)
    }

    /// Where the mapping ends that has an address.
    pub(crate) fn end_of(&self, address: u64) -> io::Result<Option<u64>> {
        let by_query = maps::query(&self.0, address, &mut []);
        let end = by_query.map(|mapped| mapped.map(|mapped| mapped.range));
        let range = or_by_text(end, || {
            let text = read_to_string(&self.0)?;
            Ok(text.lines().filter_map(addresses).find(|range| range.end > address))
        });
        Ok(range?.filter(|range| range.contains(&address)).map(|range| range.end))
    }

    fn outside_by_query(&self, known: &RangeSet) -> io::Result<Vec<Mapping>> {
        let mut found = Found::default();
        let (mut at, mut end) = (0, 0);
        loop {
            while let Some(known_end) = known.end_around(at) {
                at = known_end;
            }
            let Some(mapped) = maps::query(&self.0, at, &mut [])? else { break };
            // The mapping may have grown downwards since the query before.
            let range = mapped.range.start.max(end)..mapped.range.end;
            (at, end) = (range.end, range.end);
            found.add(range, mapped.is_guard(), self.is_anonymous(&mapped)?);
        }
        Ok(found.mappings)
    }

    fn large_by_query(&self) -> io::Result<Vec<Mapping>> {
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some(mapped) = maps::query(&self.0, at, &mut [])? {
            let range = mapped.range.clone();
            // A large one that begins before this address has it.
            at = range.end.max(range.start + LARGE_BYTES);
            if at == range.end && self.is_anonymous(&mapped)? {
                let below = maps::query(&self.0, range.start.saturating_sub(1), &mut [])?;
                let is_guard = |below: Mapped| below.range.end == range.start && below.is_guard();
                let is_above_guard = below.is_some_and(is_guard);
                let has_no_access = mapped.is_guard();
                found.push(Mapping { range, is_above_guard, has_no_access });
            }
        }
        Ok(found)
    }

    fn at_by_query(&self, address: u64) -> io::Result<Option<Mapping>> {
        let Some(mapped) = maps::query(&self.0, address, &mut [])? else { return Ok(None) };
        // The query that found it has shown the memory below.
        let is_there = mapped.range.contains(&address) && self.is_anonymous(&mapped)?;
        let has_no_access = mapped.is_guard();
        let range = mapped.range;
        Ok(is_there.then_some(Mapping { range, is_above_guard: false, has_no_access }))
    }

    fn is_anonymous(&self, mapped: &Mapped) -> io::Result<bool> {
        if mapped.inode != 0 || mapped.is_shared() {
            return Ok(false);
        }
        // Mappings of the kernel (vdso) are not writable.
        Ok(mapped.is_writable() || self.has_name_of_anonymous(mapped.range.start)?)
    }

    fn has_name_of_anonymous(&self, address: u64) -> io::Result<bool> {
        let mut name = [0; NAME_MAX];
        let mapped = maps::query(&self.0, address, &mut name)?;
        let length = mapped.map_or(0, |mapped| mapped.name_bytes.saturating_sub(1));
        Ok(std::str::from_utf8(&name[..length]).is_ok_and(is_name_of_anonymous))
    }

    fn all_by_text(&self) -> io::Result<Vec<Mapping>> {
        Ok(in_text(&read_to_string(&self.0)?))
    }
}

/// The result of a query, or of the text on kernels without that query.
fn or_by_text<T>(
    by_query: io::Result<T>,
    by_text: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    match by_query {
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => by_text(),
        found => found,
    }
}

fn in_text(maps: &str) -> Vec<Mapping> {
    let mut found = Found::default();
    for line in maps.lines() {
        let Some(range) = addresses(line) else { continue };
        let is_guard = line.split_ascii_whitespace().nth(1) == Some("---p");
        found.add(range, is_guard, is_anonymous(line).unwrap_or(false));
    }
    found.mappings
}

/// As [`Mappings::rights_in`], of the text.
fn rights_in_text(maps: &str, range: &Range<u64>) -> Vec<(Range<u64>, Rights)> {
    let all = maps.lines().filter_map(|line| {
        let (mapped, rights) = (addresses(line)?, private_rights(line)?);
        let part = mapped.start.max(range.start)..mapped.end.min(range.end);
        (!part.is_empty()).then_some((part, rights))
    });
    all.collect()
}

/// The rights on a line of /proc/PID/maps that is a private mapping without a file.
fn private_rights(line: &str) -> Option<Rights> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (letters, inode) = (fields.next()?.as_bytes(), fields.nth(2)?);
    let bit = |(at, wanted): (usize, u8)| Rights::from(letters.get(at) == Some(&wanted)) << at;
    let is_private = letters.get(3) == Some(&b'p') && inode == "0";
    is_private.then(|| b"rwx".iter().copied().enumerate().map(bit).sum())
}

/// Whether a line of /proc/PID/maps, if it is whole, is private anonymous memory. Its rights are of
/// no concern: pages stay in memory that can only be written, or not be touched at all.
fn is_anonymous(line: &str) -> Option<bool> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let rights = fields.next()?.as_bytes();
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or("");
    Some(rights.last() == Some(&b'p') && inode == "0" && is_name_of_anonymous(name))
}

/// Whether memory without a file that has this name, or none, is the program's.
fn is_name_of_anonymous(name: &str) -> bool {
    name.is_empty() || name == "[heap]" || name == "[stack]" || name.starts_with("[anon")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Child, Command};

    use uzswap::page::PAGE_SIZE;
    use uzswap_sys::pages::PageRun;

    use super::*;

    const PAGE: u64 = PAGE_SIZE as u64;

    /// A process whose mappings do not change while they are read.
    struct Still(Child);

    impl Still {
        fn start() -> Still {
            let still = Still(Command::new("sleep").arg("600").spawn().unwrap());
            let call = || fs::read_to_string(format!("/proc/{}/syscall", still.0.id())).unwrap();
            let sleeps = format!("{} ", libc::SYS_clock_nanosleep);
            while !call().starts_with(&sleeps) {
                std::thread::yield_now();
            }
            still
        }
    }

    impl Drop for Still {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn the_kernel_is_asked_for_what_the_text_says() {
        let still = Still::start();
        let maps = File::open(format!("/proc/{}/maps", still.0.id())).unwrap();
        let mappings = Mappings::new(maps);
        let by_text = mappings.all_by_text().unwrap();
        assert!(by_text.len() >= 3, "{by_text:?}");
        assert_eq!(mappings.outside(&RangeSet::new()).unwrap(), by_text);
        let text = read_to_string(&mappings.0).unwrap();
        let is_adjacent = |at| text.lines().filter_map(addresses).any(|range| range.end == at);
        let outside = |known: Range<u64>| {
            let mut set = RangeSet::new();
            set.insert(known);
            mappings.outside(&set).unwrap()
        };
        for mapping in &by_text {
            let Range { start, end } = mapping.range;
            let is_it = |found: &Mapping| found.range == mapping.range;
            assert!(outside(0..start).iter().any(is_it) && outside(end..1 << 56).iter().any(is_it));
            if end - start > 4096 {
                assert!(outside(start..start + 4096).iter().any(is_it), "a part of it is known");
            }
            // With nothing below it that is asked for, the kernel may tell it nevertheless.
            assert!(!is_adjacent(start) || !outside(start..end).iter().any(is_it));
        }
        assert!(by_text.iter().any(|mapping| is_adjacent(mapping.range.start)));
        let starts = |found: &[Mapping]| Vec::from_iter(found.iter().map(|m| m.range.clone()));
        let ranges = starts(&by_text);
        assert_eq!(starts(&mappings.at(&ranges).unwrap()), ranges);
        assert_eq!(mappings.at(&[]).unwrap(), []);
        let is_large = |mapping: &Mapping| mapping.range.end - mapping.range.start >= LARGE_BYTES;
        let by_text: Vec<Mapping> = by_text.into_iter().filter(is_large).collect();
        assert_eq!(mappings.large().unwrap(), by_text);
        // Where nothing is, what comes next is not meant.
        let below = ranges[0].start - 1..ranges[0].end;
        let found = mappings.at(std::slice::from_ref(&below)).unwrap();
        assert!(!found.iter().any(|found| found.range.contains(&below.start)));
        drop(still);
        assert!(mappings.outside(&RangeSet::new()).is_err(), "it has ended");
    }

    #[test]
    fn large_mappings_are_found_among_many() {
        const COUNT: usize = LARGE_BYTES as usize / PAGE_SIZE;
        // Side by side, they would be one mapping.
        let map = |at: usize| match at.is_multiple_of(2) {
            true => PageRun::map(COUNT),
            false => PageRun::map_shared(1),
        };
        let runs: Vec<PageRun> = (0..40).map(|at| map(at).unwrap()).collect();
        let mappings = Mappings::new(File::open("/proc/self/maps").unwrap());
        let large = mappings.large().unwrap();
        assert!(large.iter().all(|it| it.range.end - it.range.start >= LARGE_BYTES));
        assert!(large.is_sorted_by_key(|it| it.range.start));
        for run in &runs {
            let start = run.as_ptr().addr() as u64;
            let is_found = large.iter().any(|it| it.range.contains(&start));
            assert_eq!(is_found, !run.is_shared(), "{start:x}");
        }
    }

    #[test]
    fn rights_come_from_the_kernel_and_from_the_text() {
        let maps = "1000-3000 rw-p 00000000 00:00 0\n3000-4000 r-xp 00000000 00:00 0 [anon:x]\n\
                    4000-5000 rw-s 00000000 00:01 9\n6000-7000 ---p 00000000 00:00 0\n\
                    7000-7800 rw-s 00000000 00:00 0\n7800-9000 rwxp 00000000 fe:00 7 /bin/sh\n";
        let found = rights_in_text(maps, &(0x2000..0x8000));
        assert_eq!(found, [(0x2000..0x3000, 3), (0x3000..0x4000, 5), (0x6000..0x7000, 0)]);
        let still = Still::start();
        let mappings = Mappings::new(File::open(format!("/proc/{}/maps", still.0.id())).unwrap());
        let text = read_to_string(&mappings.0).unwrap();
        let all = 0..1 << 47;
        assert!(rights_in_text(&text, &all).len() > 3);
        assert_eq!(mappings.rights_in(all.clone()).unwrap(), rights_in_text(&text, &all));
        let first = text.lines().find_map(addresses).unwrap();
        assert_eq!(mappings.end_of(first.start).unwrap(), Some(first.end));
        assert_eq!(mappings.end_of(first.start - 1).unwrap(), None);
        // Parts of a mapping, and what is beside it.
        let all = mappings.rights_in(all).unwrap();
        let (range, rights) = all.iter().find(|(range, _)| range.end - range.start > PAGE).unwrap();
        let last = range.end - PAGE..range.end;
        for part in [range.start..range.start + PAGE, last.clone()] {
            assert_eq!(mappings.rights_in(part.clone()).unwrap(), [(part, *rights)]);
        }
        assert!(mappings.has_private(last).unwrap());
        assert!(!mappings.has_private(first.start - PAGE..first.start).unwrap());
        drop(still);
    }

    #[test]
    fn the_text_is_read_where_the_kernel_cannot_be_asked() {
        let failed = |errno| Err(io::Error::from_raw_os_error(errno));
        assert_eq!(or_by_text(failed(libc::ENOTTY), || Ok(1)).unwrap(), 1);
        let ended = or_by_text(failed(libc::ESRCH), || Ok(1)).unwrap_err();
        assert_eq!(ended.raw_os_error(), Some(libc::ESRCH));
        assert_eq!(or_by_text(Ok(2), || failed(libc::EIO)).unwrap(), 2);
    }

    #[test]
    fn mappings_differ_by_kind() {
        let is = |line| is_anonymous(line).unwrap();
        assert!(is("7f00-8000 rw-p 00000000 00:00 0 "));
        assert!(is("7f00-8000 rw-p 00000000 00:00 0      [heap]"));
        assert!(is("7f00-8000 r--p 00000000 00:00 0      [anon:name]"));
        assert!(is("7f00-8000 ---p 00000000 00:00 0 "));
        assert!(is("7f00-8000 -w-p 00000000 00:00 0 "));
        assert!(is("7f00-8000 --xp 00000000 00:00 0 "));
        assert!(!is("7f00-8000 --xp 00000000 00:00 0      [vsyscall]"));
        assert!(!is("7f00-8000 rw-s 00000000 00:00 0 "));
        assert!(!is("7f00-8000 r--p 00000000 00:00 0      [vvar]"));
        assert!(!is("7f00-8000 rw-p 00000000 fe:00 1234  /lib/libc.so"));
        assert!(is("7f00-8000 rw-p 00000000 00:00 0"));
        assert_eq!(addresses("7f00-8000 rw-p 00000000 00:00 0"), Some(0x7f00..0x8000));
        let maps = "1000-2000 ---p 00000000 00:00 0\n2000-4000 rw-p 00000000 00:00 0\n\
                    5000-6000 rw-p 00000000 00:00 0\n6000-7000 r-xp 00000000 fe:00 7 /bin/sh\n\
                    7000-8000 ---p 00000000 00:00 0\n9000-a000 rw-p 00000000 00:00 0\n";
        let found: Vec<_> = in_text(maps)
            .into_iter()
            .map(|m| (m.range, m.is_above_guard, m.has_no_access))
            .collect();
        let expected = [
            (0x1000..0x2000, false, true),
            (0x2000..0x4000, true, false),
            (0x5000..0x6000, false, false),
            (0x7000..0x8000, false, true),
            (0x9000..0xa000, false, false),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_stack_is_above_its_guard() {
        let check = || {
            let here = 0;
            let here = std::ptr::from_ref(&here).addr() as u64;
            let mappings = Mappings::new(File::open("/proc/thread-self/maps").unwrap());
            let large = mappings.large().unwrap();
            let stack = large.iter().find(|it| it.range.contains(&here)).unwrap();
            assert!(stack.is_above_guard && !stack.has_no_access);
            let Range { start, end } = stack.range;
            let guard = start - PAGE..start;
            assert!(mappings.has_no_access(&guard));
            assert!(!mappings.has_no_access(&(guard.start..start + PAGE)));
            assert!(!mappings.has_no_access(&(end - PAGE..end)));
        };
        std::thread::Builder::new().stack_size(4 << 20).spawn(check).unwrap().join().unwrap();
    }
}
