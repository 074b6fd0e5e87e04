//! The page set: a file of raw 4096-byte pages, and a JSON side file that describes their source.
//!
//! ```text
//!  FILE        page 0 | page 1 | ... | page n-1        nothing else
//!  FILE.json   origin, time, sha256 of FILE, ranges    may be missing
//! ```
//!
//! - P1: under its final name a page set is complete, or it is not there.
//! - P2: the ranges of the side file, in order, cover the pages of the file exactly.
//! - P3: a side file that does not belong to its file is an error, never ignored.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use thiserror::Error;

use crate::corpus::observed::Observed;
use crate::corpus::sample::{Sample, UNIT_PAGES, pieces};
use uzswap::files::create_private;
use uzswap::page::{PAGE_SIZE, Page};

/// The side file's format that this version reads and writes.
pub const FORMAT: u32 = 1;

/// Pages of a unit in samples that earlier versions drew.
const UNIT_PAGES_BEFORE: u64 = 1 << 7; // 128

/// Pages that are read or written at a time.
const CHUNK_PAGES: usize = 1 << 8; // 1 MiB

/// What the side file says.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Version of the side file's format: [`FORMAT`].
    pub format: u32,
    /// Source of the pages, in words: a process, a command, a file.
    pub origin: String,
    /// When, as RFC 3339 in UTC: `2026-01-31T08:15:00Z`. Without a side file, when the file was
    /// last written.
    pub captured_at: String,
    /// Pages in the file.
    pub page_count: u64,
    /// SHA-256 of the file, 64 hexadecimal digits.
    pub sha256: String,
    /// Where the pages were, in the order of the file. Empty without a side file.
    pub ranges: Vec<PageRange>,
    /// Notes for a reader of the figures: pages that are missing or were skipped.
    pub notes: Vec<String>,
    /// The whole of which the pages are a sample; absent where they are all. Its units follow from
    /// the ranges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// The most resident pages that a command had while it ran, where that was looked at. A capture
    /// at the peak may have some percent less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_pages: Option<u64>,
    /// Facts of the processes beside their pages, where the caller asked for them. Not in the side
    /// file.
    #[serde(skip)]
    pub observed: Observed,
}

impl About {
    /// Pages of each unit, in the order of the file; empty where the pages are not a sample.
    pub fn unit_pages(&self) -> Vec<u64> {
        self.sample.map_or(Vec::new(), |sample| units_of(&self.ranges, sample.unit_pages))
    }

    /// The description of a file of pages that has none.
    fn without_side_file(path: &Path, page_count: u64, written_at: Option<SystemTime>) -> About {
        About {
            format: FORMAT,
            origin: path.display().to_string(),
            captured_at: written_at.map(rfc3339).unwrap_or_default(),
            page_count,
            sha256: String::new(),
            ranges: Vec::new(),
            notes: Vec::new(),
            sample: None,
            peak_pages: None,
            observed: Observed::default(),
        }
    }

    /// The first field that does not fit pages of this number: its name, what it says, what it has
    /// to be.
    fn mismatch(&self, page_count: u64) -> Option<(&'static str, String, String)> {
        let in_ranges =
            self.ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(range.pages));
        let differs = |name, given: u64, found: u64| {
            (given != found).then(|| (name, given.to_string(), found.to_string()))
        };
        let of_pages = differs("page_count", self.page_count, page_count).or_else(|| {
            let known = if self.ranges.is_empty() { page_count } else { in_ranges };
            differs("the sum of the ranges", known, page_count)
        });
        let Some(sample) = self.sample.filter(|_| of_pages.is_none()) else { return of_pages };
        let of_unit = differs("sample.unit_pages", sample.unit_pages, UNIT_PAGES);
        if of_unit.is_some() && sample.unit_pages != UNIT_PAGES_BEFORE {
            return of_unit;
        }
        let units = units_of(&self.ranges, sample.unit_pages);
        differs("the sum of the ranges", units.iter().sum(), page_count)
            .or_else(|| differs("sample.pages", sample.pages, page_count))
            .or_else(|| differs("sample.units", sample.units, units.len() as u64))
            .or_else(|| {
                differs("sample.of_pages", sample.of_pages, sample.of_pages.max(page_count))
            })
    }
}

/// Pages of each unit that the ranges have, of at most so many pages.
fn units_of(ranges: &[PageRange], unit_pages: u64) -> Vec<u64> {
    let window_bytes = unit_pages * PAGE_SIZE as u64;
    let (mut last, mut units) = (None, Vec::new());
    for range in ranges {
        for piece in pieces(range.start..range.end(), window_bytes) {
            let pages = (piece.end - piece.start).div_ceil(PAGE_SIZE as u64);
            let unit = Some((range.pid, &range.name, piece.start / window_bytes));
            match units.last_mut() {
                Some(unit_pages) if unit == last => *unit_pages += pages,
                _ => units.push(pages),
            }
            last = unit;
        }
    }
    units
}

/// Adjacent pages of one mapping.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct PageRange {
    /// The process; none for a file.
    pub pid: Option<u32>,
    /// Address of the first page, or its offset in the file it was read from. In bytes.
    pub start: u64,
    /// How many pages.
    pub pages: u64,
    /// The mapping: `[heap]`, `[stack]`, `anon`, or a path.
    pub name: String,
}

impl PageRange {
    /// The address after the last page.
    fn end(&self) -> u64 {
        self.start.saturating_add(self.pages.saturating_mul(PAGE_SIZE as u64))
    }

    /// Whether `next` starts where this ends, in the same mapping.
    fn continues_with(&self, next: &PageRange) -> bool {
        self.pid == next.pid && self.name == next.name && self.end() == next.start
    }
}

/// Why a page set was not read or not written. The message has the kernel's error in it: there is
/// no chain of sources to print after it.
#[derive(Debug, Error)]
pub enum PageSetError {
    /// A directory where a file is needed.
    #[error("{} is a directory; give a file of pages", path.display())]
    Directory {
        /// The path.
        path: PathBuf,
    },
    /// A device, socket or the like where a file is needed.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file does not open or does not read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// No pages.
    #[error("{} is empty; a page set needs at least one page of 4096 bytes", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file ends inside a page.
    #[error(
        "{} is truncated in page {page}: the file ends {over} bytes into it, and a page has 4096 \
         bytes",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Number of the page that is not whole, from 0.
        page: u64,
        /// Bytes of it that are there, 1 to 4095.
        over: usize,
    },
    /// The side file is not JSON of the expected form.
    #[error(
        "{} is not the side file of a page set: {reason}; a page set needs both names: choose \
         another name for the pages, or move this file",
        path.display()
    )]
    SideFile {
        /// The side file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The side file belongs to another file, or the file was changed.
    #[error(
        "{} does not belong to {}: its {what} is {given}, that of the pages is {found}; delete the \
         side file to use the pages without it",
        side.display(),
        path.display()
    )]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Its side file.
        side: PathBuf,
        /// Which field differs.
        what: &'static str,
        /// What the side file says.
        given: String,
        /// What the file has.
        found: String,
    },
    /// The output cannot be made.
    #[error("cannot create {}: {error}", path.display())]
    Create {
        /// The output.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The output cannot be written: a full disk, most of all. Nothing is left under its name.
    #[error("cannot write {}: {error}; nothing was kept", path.display())]
    Write {
        /// The output.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
}

impl PageSetError {
    /// Whether the machine is the reason (permission, disk, I/O) and not the path or file given.
    pub fn is_machine(&self) -> bool {
        match self {
            PageSetError::Read { error, .. } | PageSetError::Create { error, .. } => !matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::InvalidFilename
            ),
            PageSetError::Write { .. } => true,
            _ => false,
        }
    }
}

/// Pages in memory, and where they are from.
#[derive(Debug, Clone)]
pub struct PageSet {
    /// The pages, in the order of the file. At least one.
    pub pages: Vec<Page>,
    /// The side file, or what stands for it.
    pub about: About,
}

impl PageSet {
    /// Reads the file at `path` and its side file, and checks one against the other. A file without
    /// a side file is as good: its origin then is its path, and it has no ranges.
    ///
    /// # Errors
    ///
    /// [`PageSetError`]: not a readable file, empty, truncated in a page, a side file that is
    /// malformed or of another file.
    pub fn read(path: &Path) -> Result<PageSet, PageSetError> {
        let side = side_path(path);
        let given = read_side_file(&side)?;
        let (pages, sha256, written_at) = read_pages(path)?;
        let page_count = pages.len() as u64;
        let about = match given {
            None => About { sha256, ..About::without_side_file(path, page_count, written_at) },
            Some(about) => {
                let mismatch = |what, given: String, found: String| PageSetError::Mismatch {
                    path: path.to_owned(),
                    side: side.clone(),
                    what,
                    given,
                    found,
                };
                if let Some((what, given, found)) = about.mismatch(page_count) {
                    return Err(mismatch(what, given, found));
                }
                if !about.sha256.eq_ignore_ascii_case(&sha256) {
                    return Err(mismatch("sha256", about.sha256, sha256));
                }
                about
            }
        };
        Ok(PageSet { pages, about })
    }
}

/// A page set that is too large to read: its side file, or what stands for it, checked against the
/// length of the file alone. The SHA-256 is not checked.
///
/// # Errors
///
/// As [`PageSet::read`], except for the contents of the file.
pub fn describe(path: &Path) -> Result<About, PageSetError> {
    let failed = |error| PageSetError::Read { path: path.to_owned(), error };
    let metadata = fs::metadata(path).map_err(failed)?;
    let (page_count, over) =
        (metadata.len() / PAGE_SIZE as u64, (metadata.len() % PAGE_SIZE as u64) as usize);
    if over != 0 {
        return Err(PageSetError::Truncated { path: path.to_owned(), page: page_count, over });
    }
    let side = side_path(path);
    let Some(about) = read_side_file(&side)? else {
        return Ok(About::without_side_file(path, page_count, metadata.modified().ok()));
    };
    match about.mismatch(page_count) {
        None => Ok(about),
        Some((what, given, found)) => {
            Err(PageSetError::Mismatch { path: path.to_owned(), side, what, given, found })
        }
    }
}

/// The side file of `path`: its name with `.json` after it.
pub fn side_path(path: &Path) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(".json");
    name.into()
}

fn read_side_file(side: &Path) -> Result<Option<About>, PageSetError> {
    let text = match fs::read(side) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // The file itself is not in a directory: reading it says so better.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        Err(error) => return Err(PageSetError::Read { path: side.to_owned(), error }),
    };
    let malformed = |reason| PageSetError::SideFile { path: side.to_owned(), reason };
    let about: About =
        serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
    if about.format != FORMAT {
        return Err(malformed(format!("format {} instead of {FORMAT}", about.format)));
    }
    Ok(Some(about))
}

/// The pages of a file, its SHA-256, and when it was written.
fn read_pages(path: &Path) -> Result<(Vec<Page>, String, Option<SystemTime>), PageSetError> {
    let failed = |error| PageSetError::Read { path: path.to_owned(), error };
    let mut file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(PageSetError::Directory { path: path.to_owned() });
    }
    // A pipe is welcome (`<(xz -dc pages.xz)`); a device may have no end.
    if !metadata.is_file() && !metadata.file_type().is_fifo() {
        return Err(PageSetError::NotAFile { path: path.to_owned() });
    }
    let expected = usize::try_from(metadata.len()).unwrap_or(0) / PAGE_SIZE;
    let mut pages: Vec<Page> = Vec::with_capacity(expected);
    let mut hash = Sha256::new();
    let mut chunk = vec![[0; PAGE_SIZE]; CHUNK_PAGES];
    loop {
        let filled = read_full(&mut file, chunk.as_flattened_mut()).map_err(failed)?;
        hash.update(&chunk.as_flattened()[..filled]);
        let (whole, over) = (filled / PAGE_SIZE, filled % PAGE_SIZE);
        pages.extend_from_slice(&chunk[..whole]);
        if over != 0 {
            let page = pages.len() as u64;
            return Err(PageSetError::Truncated { path: path.to_owned(), page, over });
        }
        if whole < CHUNK_PAGES {
            break;
        }
    }
    if pages.is_empty() {
        return Err(PageSetError::Empty { path: path.to_owned() });
    }
    Ok((pages, hex(&hash.finalize()), metadata.modified().ok()))
}

/// Reads until `buffer` is full or the file ends; how many bytes were read.
pub(super) fn read_full(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The place of a page set that is written.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    path: &'a Path,
    /// Whether the set is to outlast a crash of the machine.
    is_lasting: bool,
}

impl<'a> Place<'a> {
    /// A place for the time of one command, which does not wait for the disk.
    pub fn temporary(path: &'a Path) -> Place<'a> {
        Place { path, is_lasting: false }
    }
}

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for Place<'a> {
    /// A place that lasts.
    fn from(path: &'a P) -> Place<'a> {
        Place { path: path.as_ref(), is_lasting: true }
    }
}

/// Writes a page set, page by page, so that it appears under its name whole or not at all.
///
/// Until [`finish`](PageSetWriter::finish) the pages are in a hidden temporary file of the same
/// directory, which is removed when the writer is dropped. The files are readable by their owner
/// alone: they hold whatever the process held.
#[derive(Debug)]
pub struct PageSetWriter {
    path: PathBuf,
    is_lasting: bool,
    file: NamedTempFile,
    hash: Sha256,
    page_count: u64,
    ranges: Vec<PageRange>,
    /// Of a sample: pages of the whole, and the seed.
    sample: Option<(u64, u64)>,
    peak_pages: Option<u64>,
}

impl PageSetWriter {
    /// A writer for the page set at `place`, which is replaced only when this one is complete.
    ///
    /// # Errors
    ///
    /// [`PageSetError::Directory`] or [`PageSetError::NotAFile`] if the path is not a file;
    /// [`PageSetError::SideFile`] if the name of the side file belongs to another file;
    /// [`PageSetError::Create`] if its directory is not writable.
    pub fn create<'a>(place: impl Into<Place<'a>>) -> Result<PageSetWriter, PageSetError> {
        let Place { path, is_lasting } = place.into();
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(PageSetError::Directory { path: path.to_owned() });
        }
        let side = side_path(path);
        for taken in [path, &side] {
            match fs::metadata(taken) {
                Ok(metadata) if metadata.is_dir() => {
                    return Err(PageSetError::Directory { path: taken.to_owned() });
                }
                // Renaming over a device (`-o /dev/null`, as root) would replace the device.
                Ok(metadata) if !metadata.is_file() => {
                    return Err(PageSetError::NotAFile { path: taken.to_owned() });
                }
                _ => {}
            }
        }
        let file = temporary_beside(path)
            .map_err(|error| PageSetError::Create { path: path.to_owned(), error })?;
        // A side file may be replaced; `-o package` must not take a package.json for one.
        read_side_file(&side)?;
        Ok(PageSetWriter {
            path: path.to_owned(),
            is_lasting,
            file,
            hash: Sha256::new(),
            page_count: 0,
            ranges: Vec::new(),
            sample: None,
            peak_pages: None,
        })
    }

    /// Adds `pages`, which lie at `range`. Its `pages` field is set from the slice. A range that
    /// continues the one before it becomes part of that one.
    ///
    /// # Errors
    ///
    /// [`PageSetError::Write`]: a full disk, an I/O error. The writer is of no use any more.
    pub fn push(&mut self, range: PageRange, pages: &[Page]) -> Result<(), PageSetError> {
        if pages.is_empty() {
            return Ok(());
        }
        let bytes = pages.as_flattened();
        // The file itself: its wrapper's errors name the temporary file, which is no help.
        self.file
            .as_file_mut()
            .write_all(bytes)
            .map_err(|error| PageSetError::Write { path: self.path.clone(), error })?;
        self.hash.update(bytes);
        let count = pages.len() as u64;
        self.page_count += count;
        match self.ranges.last_mut() {
            Some(last) if last.continues_with(&range) => last.pages += count,
            _ => self.ranges.push(PageRange { pages: count, ..range }),
        }
        Ok(())
    }

    /// Notes that the pages are a sample of `of_pages` pages, whose units were drawn with `seed`.
    pub fn set_sample(&mut self, of_pages: u64, seed: u64) {
        self.sample = Some((of_pages, seed));
    }

    /// Notes the most resident pages that a command had.
    pub fn set_peak(&mut self, pages: u64) {
        self.peak_pages = Some(pages);
    }

    /// Pages written so far.
    pub fn page_count(&self) -> u64 {
        self.page_count
    }

    /// Pages of the whole: those written, if they are not a sample.
    pub fn of_pages(&self) -> u64 {
        self.sample.map_or(self.page_count, |(of_pages, _)| of_pages)
    }

    /// Writes the side file and puts both under their names.
    ///
    /// # Errors
    ///
    /// [`PageSetError::Empty`] without any page, [`PageSetError::Write`] otherwise. Nothing is left
    /// under the final name then, unless another page set was there before.
    pub fn finish(self, origin: String, notes: Vec<String>) -> Result<About, PageSetError> {
        if self.page_count == 0 {
            return Err(PageSetError::Empty { path: self.path });
        }
        let sample = self.sample.map(|(of_pages, seed)| Sample {
            of_pages: of_pages.max(self.page_count),
            pages: self.page_count,
            unit_pages: UNIT_PAGES,
            units: units_of(&self.ranges, UNIT_PAGES).len() as u64,
            seed,
        });
        let about = About {
            format: FORMAT,
            origin,
            captured_at: rfc3339(SystemTime::now()),
            page_count: self.page_count,
            sha256: hex(&self.hash.finalize()),
            ranges: self.ranges,
            notes,
            sample,
            peak_pages: self.peak_pages,
            observed: Observed::default(),
        };
        publish(self.file, &about, &self.path, self.is_lasting)
            .map_err(|error| PageSetError::Write { path: self.path.clone(), error })?;
        Ok(about)
    }
}

/// Puts the pages and their side file under their names.
///
/// An old side file goes first. So an interrupted write leaves an old set or a new one without a
/// side file, never a file with the side file of another.
fn publish(pages: NamedTempFile, about: &About, path: &Path, is_lasting: bool) -> io::Result<()> {
    let side = side_path(path);
    let mut side_file = temporary_beside(&side)?;
    let text = serde_json::to_string_pretty(about)? + "\n";
    side_file.as_file_mut().write_all(text.as_bytes())?;
    if is_lasting {
        side_file.as_file().sync_all()?;
        pages.as_file().sync_all()?;
    }
    match fs::remove_file(&side) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    pages.persist(path)?;
    if let Err(error) = side_file.persist(&side) {
        fs::remove_file(path)?;
        return Err(error.error);
    }
    // The names are on disk too. Some file systems cannot sync a directory: theirs to lose.
    if is_lasting && let Ok(directory) = File::open(directory_of(path)) {
        let _ = directory.sync_all();
    }
    Ok(())
}

/// A hidden file in the directory of `path`, removed when dropped.
fn temporary_beside(path: &Path) -> io::Result<NamedTempFile> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "give a path with a file name"));
    };
    let mut prefix = OsString::from(".");
    prefix.push(name);
    // `make_in` and not `tempfile_in`: that one wraps the kernel's error in one that names the
    // temporary file, which means nothing to a reader of the message.
    tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".part")
        .make_in(directory_of(path), create_private)
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// `2026-01-31T08:15:00Z`. Times before 1970 become 1970.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a number of days since 1970, in the Gregorian calendar.
fn civil_date(days: u64) -> (u64, u64, u64) {
    // Years that begin in March end with the leap day, and 400 of them are 146097 days.
    let days = days + 719_468; // from 0000-03-01
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn range(start: u64, name: &str) -> PageRange {
        PageRange { pid: Some(7), start, pages: 0, name: name.to_owned() }
    }

    fn written(path: &Path) -> About {
        let mut writer = PageSetWriter::create(path).unwrap();
        writer.push(range(0x1000, "[heap]"), &[[1; PAGE_SIZE], [2; PAGE_SIZE]]).unwrap();
        writer.push(range(0x3000, "[heap]"), &[[3; PAGE_SIZE]]).unwrap();
        writer.push(range(0x9000, "anon"), &[[4; PAGE_SIZE]]).unwrap();
        writer.finish("a test".to_owned(), vec!["a note".to_owned()]).unwrap()
    }

    fn names_in(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_written_is_read_and_adjacent_ranges_are_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pages");
        let about = written(&path);
        assert_eq!(about.ranges.len(), 2);
        assert_eq!((about.ranges[0].pages, about.ranges[1].start), (3, 0x9000));
        let set = PageSet::read(&path).unwrap();
        assert_eq!(set.about, about);
        assert_eq!(set.pages.iter().map(|page| page[99]).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(names_in(directory.path()), ["pages", "pages.json"]);
    }

    #[test]
    fn a_dropped_writer_leaves_nothing_and_an_old_set_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pages");
        let about = written(&path);
        let mut writer = PageSetWriter::create(&path).unwrap();
        writer.push(range(0, "anon"), &[[9; PAGE_SIZE]]).unwrap();
        drop(writer);
        assert_eq!(names_in(directory.path()), ["pages", "pages.json"]);
        assert_eq!(PageSet::read(&path).unwrap().about, about);
        let empty = PageSetWriter::create(&path).unwrap();
        assert!(matches!(empty.finish(String::new(), vec![]), Err(PageSetError::Empty { .. })));
    }

    #[test]
    fn a_file_without_a_side_file_stands_for_itself() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("raw");
        fs::write(&path, vec![5; 3 * PAGE_SIZE]).unwrap();
        let set = PageSet::read(&path).unwrap();
        assert_eq!(set.pages.len(), 3);
        assert_eq!(set.about.origin, path.display().to_string());
        assert!(set.about.ranges.is_empty());
    }

    #[test]
    fn files_that_are_no_page_sets_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bad");
        let message = |path: &Path| PageSet::read(path).unwrap_err().to_string();

        fs::write(&path, vec![5; 300 * PAGE_SIZE + 17]).unwrap();
        assert!(message(&path).contains("truncated in page 300: the file ends 17 bytes into it"));
        fs::write(&path, []).unwrap();
        assert!(message(&path).contains("is empty"));
        assert!(message(directory.path()).contains("is a directory"));
        assert!(message(Path::new("/dev/zero")).contains("not a regular file"));
        assert!(message(&directory.path().join("none")).contains("No such file"));
    }

    #[test]
    fn a_side_file_that_does_not_fit_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pages");
        let about = written(&path);
        let with = |change: &dyn Fn(&mut About)| {
            let mut about = about.clone();
            change(&mut about);
            fs::write(side_path(&path), serde_json::to_vec(&about).unwrap()).unwrap();
            PageSet::read(&path).unwrap_err().to_string()
        };
        assert!(
            with(&|about| about.page_count = 5)
                .contains("its page_count is 5, that of the pages is 4")
        );
        assert!(with(&|about| about.sha256 = "00".repeat(32)).contains("sha256 is 0000"));
        assert!(with(&|about| about.format = 2).contains("format 2 instead of 1"));
        assert!(with(&|about| about.ranges[0].pages = 9).contains("the sum of the ranges is 10"));
        fs::write(side_path(&path), b"{\"format\":").unwrap();
        assert!(PageSet::read(&path).unwrap_err().to_string().contains("is not the side file"));
    }

    #[test]
    fn a_sample_keeps_its_units_and_is_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pages");
        let mut writer = PageSetWriter::create(&path).unwrap();
        // Two pages at the end of a window, three of the next, and one of another mapping.
        let at = 128 * PAGE_SIZE as u64 * 9;
        let pages = [[1; PAGE_SIZE]; 5];
        writer.push(range(at - 2 * PAGE_SIZE as u64, "anon"), &pages).unwrap();
        writer.push(range(at + 3 * PAGE_SIZE as u64, "[heap]"), &pages[..1]).unwrap();
        writer.set_sample(5000, 7);
        let about = writer.finish("a test".to_owned(), Vec::new()).unwrap();
        let sample = Sample { of_pages: 5000, pages: 6, unit_pages: 16, units: 3, seed: 7 };
        assert_eq!((about.sample, about.unit_pages()), (Some(sample), vec![2, 3, 1]));
        assert_eq!(PageSet::read(&path).unwrap().about, about);
        assert_eq!(describe(&path).unwrap(), about);
        let wrong = |sample: Sample| {
            let about = About { sample: Some(sample), ..about.clone() };
            fs::write(side_path(&path), serde_json::to_vec(&about).unwrap()).unwrap();
            let message = PageSet::read(&path).unwrap_err().to_string();
            assert_eq!(describe(&path).unwrap_err().to_string(), message);
            message
        };
        assert!(wrong(Sample { units: 2, ..sample }).contains("its sample.units is 2"));
        assert!(wrong(Sample { unit_pages: 0, ..sample }).contains("its sample.unit_pages is 0"));
        assert!(wrong(Sample { pages: 7, ..sample }).contains("its sample.pages is 7"));
        assert!(wrong(Sample { of_pages: 5, ..sample }).contains("its sample.of_pages is 5"));
        // Two ranges in one window of the longer units of earlier versions.
        let of = |start| PageRange { pages: 3, ..range(start, "anon") };
        let sample = Some(Sample { unit_pages: 128, units: 1, ..sample });
        let before =
            About { ranges: vec![of(0), of(32 * PAGE_SIZE as u64)], sample, ..about.clone() };
        fs::write(side_path(&path), serde_json::to_vec(&before).unwrap()).unwrap();
        assert_eq!(PageSet::read(&path).unwrap().about.unit_pages(), [6]);
    }

    #[test]
    fn outputs_that_are_no_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let refused = |path: &Path| PageSetWriter::create(path).unwrap_err();
        assert!(matches!(refused(directory.path()), PageSetError::Directory { .. }));
        assert!(matches!(refused(Path::new("/dev/null")), PageSetError::NotAFile { .. }));
        let error = refused(&directory.path().join("none/pages"));
        assert!(error.to_string().contains("none/pages: No such file"), "{error}");
        assert!(!error.is_machine());
    }

    #[test]
    fn dates_are_civil_dates() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
