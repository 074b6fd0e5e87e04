//! The private anonymous mappings of a process.
//!
//! Each look at a program asks for them, and what is mapped and filled until it was looked at is
//! growth that nobody is told of. So the kernel is asked for one mapping after the other: some
//! 50 us for the 80 of a python3. Before Linux 6.11 there is their text alone, which takes 300 to
//! 500.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::process_files::read_to_string;
use uzswap_sys::maps::{self, Mapped};

/// A mapping of private anonymous memory that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) range: Range<u64>,
    /// What lies just below it cannot be touched: so are the stacks of threads.
    pub(super) is_above_guard: bool,
}

/// Longer than any name that the kernel gives to memory without a file: `[anon:...]`, of up to 80
/// bytes.
const NAME_MAX: usize = 128;

/// Those that were found among all mappings, which come in the order of their addresses.
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
            self.mappings.push(Mapping { range, is_above_guard });
        }
    }
}

/// The mappings of a process.
#[derive(Debug)]
pub(super) struct Mappings(File);

impl Mappings {
    /// Those that a file tells: /proc/PID/maps.
    pub(super) fn new(maps: File) -> Mappings {
        Mappings(maps)
    }

    /// All, in the order of their addresses.
    pub(super) fn all(&self) -> io::Result<Vec<Mapping>> {
        or_by_text(self.all_by_query(), || self.all_by_text())
    }

    /// Those in which these ranges begin, which are in the order of their addresses; or more of
    /// them.
    pub(super) fn at(&self, ranges: &[Range<u64>]) -> io::Result<Vec<Mapping>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        let by_query = ranges.iter().filter_map(|range| self.at_by_query(range.start).transpose());
        or_by_text(by_query.collect(), || self.all_by_text())
    }

    /// Whether a page is private anonymous memory that can be read.
    ///
    /// # Errors
    ///
    /// Of reading the file.
    pub(super) fn has_private(&self, page: Range<u64>) -> io::Result<bool> {
        let is_in = |mapping: &Mapping| mapping.range.contains(&page.start);
        Ok(self.at(std::slice::from_ref(&page))?.iter().any(is_in))
    }

    /// Whether there is any mapping in a range; or there may be, where the kernel does not tell.
    pub(super) fn has_some_in(&self, range: &Range<u64>) -> bool {
        let next = maps::query(&self.0, range.start, &mut []);
        next.map_or(true, |next| next.is_some_and(|next| next.range.start < range.end))
    }

    fn all_by_query(&self) -> io::Result<Vec<Mapping>> {
        let mut found = Found::default();
        let mut at = 0;
        while let Some(mapped) = maps::query(&self.0, at, &mut [])? {
            // It may have grown downwards since the one before was asked for.
            let range = mapped.range.start.max(at)..mapped.range.end;
            at = range.end;
            found.add(range, mapped.is_guard(), self.is_anonymous(&mapped)?);
        }
        Ok(found.mappings)
    }

    fn at_by_query(&self, address: u64) -> io::Result<Option<Mapping>> {
        let Some(mapped) = maps::query(&self.0, address, &mut [])? else { return Ok(None) };
        // What is below it was told when it was found.
        let is_there = mapped.range.contains(&address) && self.is_anonymous(&mapped)?;
        Ok(is_there.then_some(Mapping { range: mapped.range, is_above_guard: false }))
    }

    fn is_anonymous(&self, mapped: &Mapped) -> io::Result<bool> {
        if mapped.inode != 0 || mapped.is_shared() || !mapped.is_readable() {
            return Ok(false);
        }
        // What the kernel puts there itself (vdso) cannot be written.
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

/// What was found, or what the text says where the kernel cannot be asked.
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

/// Whether a line of /proc/PID/maps, if it is whole, is private anonymous memory that can be read.
fn is_anonymous(line: &str) -> Option<bool> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let rights = fields.next()?.as_bytes();
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or("");
    Some(
        rights.first() == Some(&b'r')
            && rights.last() == Some(&b'p')
            && inode == "0"
            && is_name_of_anonymous(name),
    )
}

/// Whether memory without a file that has this name, or none, is the program's.
fn is_name_of_anonymous(name: &str) -> bool {
    name.is_empty() || name == "[heap]" || name == "[stack]" || name.starts_with("[anon")
}

/// The addresses that a line of /proc/PID/maps begins with.
pub(super) fn addresses(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Child, Command};

    use super::*;

    /// A process whose mappings do not change while it is looked at.
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
        assert_eq!(mappings.all().unwrap(), by_text);
        let starts = |found: &[Mapping]| Vec::from_iter(found.iter().map(|m| m.range.clone()));
        let ranges = starts(&by_text);
        assert_eq!(starts(&mappings.at(&ranges).unwrap()), ranges);
        assert_eq!(mappings.at(&[]).unwrap(), []);
        // Where nothing is, what comes next is not meant.
        let below = ranges[0].start - 1..ranges[0].end;
        let found = mappings.at(std::slice::from_ref(&below)).unwrap();
        assert!(!found.iter().any(|found| found.range.contains(&below.start)));
        drop(still);
        assert!(mappings.all().is_err(), "it has ended");
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
    fn mappings_are_told_apart() {
        let is = |line| is_anonymous(line).unwrap();
        assert!(is("7f00-8000 rw-p 00000000 00:00 0 "));
        assert!(is("7f00-8000 rw-p 00000000 00:00 0      [heap]"));
        assert!(is("7f00-8000 r--p 00000000 00:00 0      [anon:name]"));
        assert!(!is("7f00-8000 ---p 00000000 00:00 0 "));
        assert!(!is("7f00-8000 rw-s 00000000 00:00 0 "));
        assert!(!is("7f00-8000 r--p 00000000 00:00 0      [vvar]"));
        assert!(!is("7f00-8000 rw-p 00000000 fe:00 1234  /lib/libc.so"));
        assert!(is("7f00-8000 rw-p 00000000 00:00 0"));
        assert_eq!(addresses("7f00-8000 rw-p 00000000 00:00 0"), Some(0x7f00..0x8000));
        let maps = "1000-2000 ---p 00000000 00:00 0\n2000-4000 rw-p 00000000 00:00 0\n\
                    5000-6000 rw-p 00000000 00:00 0\n6000-7000 r-xp 00000000 fe:00 7 /bin/sh\n\
                    7000-8000 ---p 00000000 00:00 0\n9000-a000 rw-p 00000000 00:00 0\n";
        let found: Vec<_> =
            in_text(maps).into_iter().map(|m| (m.range, m.is_above_guard)).collect();
        let expected = [(0x2000..0x4000, true), (0x5000..0x6000, false), (0x9000..0xa000, false)];
        assert_eq!(found, expected);
    }
}
