//! Captures a file: the writable segments of an ELF core dump, or all of any other file.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};

use super::{CaptureError, finish};
use crate::corpus::page_set::{self, About, PageRange, PageSetWriter, Place, read_full};
use crate::corpus::sample::{Population, SamplePlan, UNIT_BYTES, UNIT_PAGES, UnitWalk, pieces};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap_sys::files;
use uzswap_sys::signals::SignalsHeld;

/// Pages of a file that are read at a time.
const CHUNK_PAGES: usize = 1 << 8; // 1 MiB

pub(super) fn capture(
    from: &Path,
    out: Place<'_>,
    plan: SamplePlan,
) -> Result<About, CaptureError> {
    let signals = SignalsHeld::new();
    let bad =
        |reason: &str| CaptureError::BadInput { path: from.to_owned(), reason: reason.to_owned() };
    let failed = |error| CaptureError::Input { path: from.to_owned(), error };
    let file = File::open(from).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(bad("is a directory; give a file with pages"));
    }
    if kind.is_char_device() || kind.is_socket() {
        return Err(bad("is a device without an end; give a file with pages"));
    }
    let mut writer = PageSetWriter::create(out)?;
    let mut source = Source { path: from, file, plan, writer: &mut writer, signals: &signals };
    if kind.is_file() && is_core(&source.file).map_err(failed)? {
        let notes = source.core(metadata.len())?;
        return finish(writer, format!("core dump {}", from.display()), notes);
    }
    let sampled = if kind.is_file() { source.raw_sample(metadata.len())? } else { None };
    let notes = match sampled {
        Some(notes) => notes,
        None => source.raw()?,
    };
    if writer.page_count() == 0 {
        return Err(bad("is empty"));
    }
    finish(writer, format!("file {}", from.display()), notes)
}

pub(super) fn sample_page_set(
    from: &Path,
    out: Place<'_>,
    plan: SamplePlan,
) -> Result<Option<About>, CaptureError> {
    let signals = SignalsHeld::new();
    let failed = |error| CaptureError::Input { path: from.to_owned(), error };
    // A large regular file alone is looked into; reading says what is wrong with any other.
    match fs::metadata(from) {
        Ok(metadata) if metadata.is_file() && !plan.has_room(pages_of(&metadata)) => {}
        _ => return Ok(None),
    }
    let about = page_set::describe(from)?;
    if about.sample.is_some() {
        return Ok(None);
    }
    let file = File::open(from).map_err(failed)?;
    let mut writer = PageSetWriter::create(out)?;
    let mut source = Source { path: from, file, plan, writer: &mut writer, signals: &signals };
    let sampled = source.raw_sample(about.page_count * PAGE_SIZE as u64)?;
    let notes = about.notes.into_iter().chain(sampled.unwrap_or_default()).collect();
    let taken = finish(writer, about.origin, notes)?;
    Ok(Some(About { captured_at: about.captured_at, ..taken }))
}

pub(super) fn thin(
    from: &Path,
    about: &About,
    out: Place<'_>,
    plan: SamplePlan,
) -> Result<Option<About>, CaptureError> {
    let signals = SignalsHeld::new();
    let failed = |error| CaptureError::Input { path: from.to_owned(), error };
    let mut counting = UnitWalk::counting();
    pieces_of_ranges(about).for_each(|(range, piece)| {
        counting.meets(range.pid, &range.name, &piece);
    });
    let Some(mut walk) = UnitWalk::drawing(counting.met(), plan) else { return Ok(None) };
    let file = File::open(from).map_err(failed)?;
    let mut writer = PageSetWriter::create(out)?;
    let mut chunk: Vec<Page> = vec![[0; PAGE_SIZE]; UNIT_PAGES as usize];
    let mut offset = 0;
    for (range, piece) in pieces_of_ranges(about) {
        let bytes = (piece.end - piece.start) as usize; // one window
        if walk.meets(range.pid, &range.name, &piece) {
            if let Some(signal) = signals.pending() {
                return Err(CaptureError::Interrupted(signal));
            }
            let pages = &mut chunk[..bytes / PAGE_SIZE];
            file.read_exact_at(pages.as_flattened_mut(), offset).map_err(failed)?;
            writer.push(PageRange { start: piece.start, ..range.clone() }, pages)?;
        }
        offset += bytes as u64;
    }
    writer.set_sample(about.sample.map_or(about.page_count, |sample| sample.of_pages), plan.seed);
    about.peak_pages.into_iter().for_each(|pages| writer.set_peak(pages));
    let taken = finish(writer, about.origin.clone(), about.notes.clone())?;
    let (captured_at, observed) = (about.captured_at.clone(), about.observed.clone());
    Ok(Some(About { captured_at, observed, ..taken }))
}

/// The ranges of a page set, cut at the borders of units, in the order of its file.
fn pieces_of_ranges(about: &About) -> impl Iterator<Item = (&PageRange, Range<u64>)> {
    about.ranges.iter().flat_map(|range| {
        let pages = range.start..range.start + range.pages * PAGE_SIZE as u64;
        pieces(pages, UNIT_BYTES).map(move |piece| (range, piece))
    })
}

/// Whether a file begins as a core dump does: the magic, and its type, ET_CORE.
pub(super) fn is_core(file: &File) -> io::Result<bool> {
    let mut start = [0; 18];
    let bytes = file.read_at(&mut start, 0)?;
    let little = u16::from_le_bytes([start[16], start[17]]);
    let kind = if start[5] == 2 { little.swap_bytes() } else { little };
    Ok(bytes == start.len() && start[..4] == elf::ELFMAG && kind == elf::ET_CORE.0)
}

/// Whole pages of a file.
fn pages_of(metadata: &fs::Metadata) -> u64 {
    metadata.len() / PAGE_SIZE as u64
}

struct Source<'a> {
    path: &'a Path,
    file: File,
    plan: SamplePlan,
    writer: &'a mut PageSetWriter,
    signals: &'a SignalsHeld,
}

/// A loadable segment of a core dump that the process could write to.
struct Segment {
    offset: u64,
    address: u64,
    file_bytes: u64,
    memory_bytes: u64,
}

impl Segment {
    /// Where its windows are counted from: its address, on a page's border, if it is one.
    fn base(&self) -> u64 {
        let page = PAGE_SIZE as u64;
        self.address.checked_add(self.file_bytes).map_or(0, |_| self.address / page * page)
    }
}

/// A file that was mapped, by the NT_FILE note.
struct MappedFile {
    start: u64,
    end: u64,
    name: String,
}

impl Source<'_> {
    fn failed(&self, error: io::Error) -> CaptureError {
        CaptureError::Input { path: self.path.to_owned(), error }
    }

    fn bad_core(&self, reason: impl Into<String>) -> CaptureError {
        CaptureError::BadCore { path: self.path.to_owned(), reason: reason.into() }
    }

    fn check_signals(&self) -> Result<(), CaptureError> {
        self.signals.pending().map_or(Ok(()), |signal| Err(CaptureError::Interrupted(signal)))
    }

    /// Takes a sample of a file of so many bytes. `None` where the plan has room for
    /// the whole.
    fn raw_sample(&mut self, bytes: u64) -> Result<Option<Vec<String>>, CaptureError> {
        let pages = bytes.div_ceil(PAGE_SIZE as u64);
        let counted = Population { pages, units: pages.div_ceil(UNIT_PAGES) };
        let Some(mut walk) = UnitWalk::drawing(counted, self.plan) else { return Ok(None) };
        let mut notes = Vec::new();
        let mut chunk: Vec<Page> = vec![[0; PAGE_SIZE]; UNIT_PAGES as usize];
        let name = self.path.display().to_string();
        for piece in pieces(0..bytes, UNIT_BYTES) {
            if walk.meets(None, &name, &piece) {
                self.check_signals()?;
                let wanted = (piece.end - piece.start) as usize; // one window
                self.read_piece(piece.start, &mut chunk, wanted, &mut notes)?;
                let range =
                    PageRange { pid: None, start: piece.start, pages: 0, name: name.clone() };
                self.writer.push(range, &chunk[..wanted.div_ceil(PAGE_SIZE)])?;
            }
        }
        self.writer.set_sample(pages, self.plan.seed);
        Ok(Some(notes))
    }

    /// Reads bytes from an offset on into whole pages.
    fn read_piece(
        &self,
        offset: u64,
        chunk: &mut [Page],
        bytes: usize,
        notes: &mut Vec<String>,
    ) -> Result<(), CaptureError> {
        self.file
            .read_exact_at(&mut chunk.as_flattened_mut()[..bytes], offset)
            .map_err(|error| self.failed(error))?;
        pad(chunk, bytes, notes);
        Ok(())
    }

    fn raw(&mut self) -> Result<Vec<String>, CaptureError> {
        let mut notes = Vec::new();
        let mut chunk: Vec<Page> = vec![[0; PAGE_SIZE]; CHUNK_PAGES];
        let name = self.path.display().to_string();
        let mut offset = 0;
        loop {
            self.check_signals()?;
            let read = read_full(&mut self.file, chunk.as_flattened_mut());
            let bytes = read.map_err(|error| self.failed(error))?;
            let pages = bytes.div_ceil(PAGE_SIZE);
            pad(&mut chunk, bytes, &mut notes);
            let range = PageRange { pid: None, start: offset, pages: 0, name: name.clone() };
            self.writer.push(range, &chunk[..pages])?;
            offset += bytes as u64;
            if bytes < CHUNK_PAGES * PAGE_SIZE {
                return Ok(notes);
            }
        }
    }

    fn core(&mut self, file_bytes: u64) -> Result<Vec<String>, CaptureError> {
        let class = {
            let mut class = [0];
            self.file.read_exact_at(&mut class, 4).map_err(|error| self.failed(error))?;
            class[0]
        };
        // The cache keeps the headers and notes that are asked for; pages do not go through it.
        let cache = ReadCache::new(self.file.try_clone().map_err(|error| self.failed(error))?);
        let layout = match class {
            1 => core_layout::<FileHeader32<Endianness>, _>(&cache),
            _ => core_layout::<FileHeader64<Endianness>, _>(&cache),
        };
        let (segments, mapped) =
            layout.map_err(|error| self.bad_core(format!("cannot parse its headers ({error})")))?;
        if segments.is_empty() {
            return Err(self.bad_core("no segment of writable memory"));
        }
        for segment in &segments {
            let end = segment.offset.checked_add(segment.file_bytes);
            if end.is_none_or(|end| end > file_bytes) {
                return Err(self.bad_core(format!(
                    "truncated: the segment at address {:#x} has {} bytes from offset {}, and the \
                     file ends at {file_bytes}",
                    segment.address, segment.file_bytes, segment.offset
                )));
            }
        }
        // A few bytes of headers could ask for terabytes of pages otherwise.
        let in_segments: u128 = segments.iter().map(|one| u128::from(one.file_bytes)).sum();
        if in_segments > u128::from(file_bytes) {
            return Err(self.bad_core(format!(
                "its segments overlap: they have {in_segments} bytes in a file of {file_bytes}"
            )));
        }
        let mut walk = None;
        if self.plan.pages_max.is_some() {
            let mut counting = UnitWalk::counting();
            for segment in &segments {
                let name = name_of(segment, &mapped);
                self.pieces_of(segment, |_, piece| {
                    counting.meets(None, name, &piece);
                    Ok(())
                })?;
            }
            walk = UnitWalk::drawing(counting.met(), self.plan);
        }
        let mut notes = Vec::new();
        let mut skipped: u64 = 0;
        for segment in &segments {
            let not_dumped = segment.memory_bytes.saturating_sub(segment.file_bytes);
            let name = name_of(segment, &mapped);
            let holes = self.segment(segment, name, walk.as_mut(), &mut notes)?;
            skipped = skipped.saturating_add(not_dumped).saturating_add(holes);
        }
        if let Some(walk) = walk {
            self.writer.set_sample(walk.met().pages, self.plan.seed);
        }
        if skipped >= PAGE_SIZE as u64 {
            notes.push(format!(
                "{} pages are holes in the core dump: they were not resident or not dumped",
                skipped / PAGE_SIZE as u64
            ));
        }
        notes.push(
            "a core dump without holes does not distinguish untouched pages from zero pages"
                .to_owned(),
        );
        Ok(notes)
    }

    /// Reads the data of one segment, or its units in the sample; the bytes of it that are holes in
    /// the file.
    fn segment(
        &mut self,
        segment: &Segment,
        name: &str,
        mut walk: Option<&mut UnitWalk>,
        notes: &mut Vec<String>,
    ) -> Result<u64, CaptureError> {
        let mut chunk: Vec<Page> = vec![[0; PAGE_SIZE]; UNIT_PAGES as usize];
        self.pieces_of(segment, |source, piece| {
            if walk.as_mut().is_none_or(|walk| walk.meets(None, name, &piece)) {
                let done = piece.start - segment.base();
                let bytes = (piece.end - piece.start) as usize; // one window
                source.read_piece(segment.offset + done, &mut chunk, bytes, notes)?;
                let pages = &chunk[..bytes.div_ceil(PAGE_SIZE)];
                let start = segment.address.wrapping_add(done);
                let range = PageRange { pid: None, start, pages: 0, name: name.to_owned() };
                source.writer.push(range, pages)?;
            }
            Ok(())
        })
    }

    /// Calls `visit` with the addresses of the data of one segment, window by window. The pages are
    /// whole, except for the last. Returns the bytes that are holes.
    fn pieces_of(
        &mut self,
        segment: &Segment,
        mut visit: impl FnMut(&mut Self, Range<u64>) -> Result<(), CaptureError>,
    ) -> Result<u64, CaptureError> {
        let page = PAGE_SIZE as u64;
        let (mut done, mut holes) = (0, 0);
        while done < segment.file_bytes {
            self.check_signals()?;
            let at = segment.offset + done;
            // Whole pages of holes alone are left out.
            let data = files::next_data(&self.file, at).map_err(|error| self.failed(error))?;
            let data = data.map_or(segment.file_bytes, |data| data - segment.offset);
            let hole = data.min(segment.file_bytes).saturating_sub(done) / page * page;
            if hole > 0 {
                (done, holes) = (done + hole, holes + hole);
                continue;
            }
            let end = files::next_hole(&self.file, at + page - 1).unwrap_or(u64::MAX);
            let until = end.saturating_sub(segment.offset).min(segment.file_bytes);
            let wanted = (until - done).next_multiple_of(page).min(segment.file_bytes - done);
            let base = segment.base();
            for piece in pieces(base + done..base + done + wanted, UNIT_BYTES) {
                visit(self, piece)?;
            }
            done += wanted;
        }
        Ok(holes)
    }
}

/// The mapping that a segment is of.
fn name_of<'a>(segment: &Segment, mapped: &'a [MappedFile]) -> &'a str {
    let is_at = |file: &&MappedFile| (file.start..file.end).contains(&segment.address);
    mapped.iter().find(is_at).map_or("anon", |file| &file.name)
}

/// Fills the rest of the last page with zeros, and says so.
fn pad(chunk: &mut [Page], bytes: usize, notes: &mut Vec<String>) {
    let over = bytes % PAGE_SIZE;
    if over != 0 {
        let page = &mut chunk[bytes / PAGE_SIZE];
        page[over..].fill(0);
        notes.push(format!("a last page of {over} bytes was padded with zeros to 4096"));
    }
}

/// The writable segments of a core dump, and the files that were mapped.
fn core_layout<'data, Elf, R>(data: R) -> object::read::Result<(Vec<Segment>, Vec<MappedFile>)>
where
    Elf: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let header = Elf::parse(data)?;
    let endian = header.endian()?;
    let (mut segments, mut mapped) = (Vec::new(), Vec::new());
    for program in header.program_headers(endian, data)? {
        let writable = program.p_flags(endian).contains(elf::PF_W);
        if program.p_type(endian) == elf::PT_LOAD && writable {
            segments.push(Segment {
                offset: program.p_offset(endian).into(),
                address: program.p_vaddr(endian).into(),
                file_bytes: program.p_filesz(endian).into(),
                memory_bytes: program.p_memsz(endian).into(),
            });
        }
        // Names only: a core without readable notes has its pages all the same.
        let Ok(Some(mut notes)) = program.notes(endian, data) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.n_type(endian) == elf::NT_FILE && note.name() == b"CORE" {
                mapped = mapped_files(note.desc(), Elf::is_type_64_sized(), endian);
            }
        }
    }
    Ok((segments, mapped))
}

/// The NT_FILE note: a count, the page size, three words for each mapping, and then the names.
fn mapped_files(note: &[u8], wide: bool, endian: Endianness) -> Vec<MappedFile> {
    let word_bytes = if wide { 8 } else { 4 };
    let word = |index: usize| -> Option<u64> {
        let bytes = note.get(index.checked_mul(word_bytes)?..)?.get(..word_bytes)?;
        let mut little = [0; 8];
        little[..word_bytes].copy_from_slice(bytes);
        if endian == Endianness::Big {
            little[..word_bytes].reverse();
        }
        Some(u64::from_le_bytes(little))
    };
    let Some(count) = word(0).and_then(|count| usize::try_from(count).ok()) else {
        return Vec::new();
    };
    let names_at = count.saturating_mul(3).saturating_add(2).saturating_mul(word_bytes);
    let names = note.get(names_at..).unwrap_or_default().split(|byte| *byte == 0);
    let ranges = (0..count).map_while(|index| Some((word(2 + 3 * index)?, word(3 + 3 * index)?)));
    ranges
        .zip(names)
        .map(|((start, end), name)| MappedFile {
            start,
            end,
            name: String::from_utf8_lossy(name).into_owned(),
        })
        .collect()
}
