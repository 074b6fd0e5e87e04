//! Reads a snapshot, a block of pages at a time: a parser of untrusted bytes.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::error::Part;
use super::format::{
    BACKING_AS_IS, BACKING_OBJECT, BLOCK_BYTES_MAX, BLOCK_PREFIX_BYTES, BLOCK_TAG, END_TAG,
    HEADER_BYTES_MAX, MAGIC, POOL_AS_IS, POOL_OBJECT, RECORD_PREFIX_BYTES, SAME_FILLED,
    TRAILER_BYTES, VERSION, VERSION_MIN, skipped_pages, trailer, u16_at, u32_at, u64_at,
};
use super::{SnapshotFault, SnapshotHeader, SnapshotReadError, SnapshotSummary};
use crate::page::{PAGE_SIZE, Page, PageKey};
use crate::sealed::{CHECKSUM_BYTES, PREFIX_BYTES, checksum, next_in_chain};

/// Bytes that are read at a time if a stated length may be wrong.
const CHUNK_BYTES: usize = 1 << 16;

/// A snapshot that is being read.
#[derive(Debug)]
pub struct SnapshotReader<R> {
    name: String,
    input: Input<R>,
    header: SnapshotHeader,
    buffer: Vec<u8>,
    chain: u64,
    blocks: u64,
    summary: SnapshotSummary,
    is_complete: bool,
}

/// One page of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotPage<'a> {
    /// Its key.
    pub key: PageKey,
    /// The number of its tenant.
    pub tenant: usize,
    /// How often it was used, as its order of eviction counts.
    pub uses: u8,
    /// It was in the backing alone.
    pub in_backing: bool,
    /// Its bytes.
    pub form: PageForm<'a>,
}

/// How a page is kept in a snapshot: as it was in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageForm<'a> {
    /// This word, repeated.
    Word(u64),
    /// Compressed, 1 to 4096 bytes.
    Object(&'a [u8]),
    /// As it is.
    AsIs(&'a Page),
}

impl PageForm<'_> {
    /// Its length in the file.
    pub fn bytes(&self) -> usize {
        match self {
            PageForm::Word(_) => size_of::<u64>(),
            PageForm::Object(object) => object.len(),
            PageForm::AsIs(_) => PAGE_SIZE,
        }
    }
}

/// Some pages of a snapshot, checked, coldest first.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotBlock<'a> {
    records: &'a [u8],
}

impl SnapshotReader<File> {
    /// Opens a snapshot and reads its header.
    ///
    /// # Errors
    ///
    /// [`SnapshotReadError`].
    pub fn open(path: &Path) -> Result<SnapshotReader<File>, SnapshotReadError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => SnapshotReader::new(name, file),
            Err(error) => {
                Err(SnapshotReadError { name, fault: SnapshotFault::Io { at: 0, error } })
            }
        }
    }
}

impl<R: Read> SnapshotReader<R> {
    /// Reads the header of the snapshot that `input` gives; `name` is for messages.
    ///
    /// # Errors
    ///
    /// [`SnapshotReadError`].
    pub fn new(name: impl Into<String>, input: R) -> Result<SnapshotReader<R>, SnapshotReadError> {
        let name = name.into();
        let mut input = Input { input, at: 0 };
        let mut buffer = Vec::new();
        match read_header(&mut input, &mut buffer) {
            Err(fault) => Err(SnapshotReadError { name, fault }),
            Ok((header, chain)) => Ok(SnapshotReader {
                name,
                input,
                header,
                buffer,
                chain,
                blocks: 0,
                summary: SnapshotSummary::default(),
                is_complete: false,
            }),
        }
    }

    /// What it says before its pages.
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// The next block of pages. `None` once all have been read and the file has been found to be
    /// complete and without damage.
    ///
    /// # Errors
    ///
    /// [`SnapshotReadError`].
    pub fn next_block(&mut self) -> Result<Option<SnapshotBlock<'_>>, SnapshotReadError> {
        match self.read_part() {
            Ok(true) => {
                let end = self.buffer.len() - CHECKSUM_BYTES;
                Ok(Some(SnapshotBlock { records: &self.buffer[BLOCK_PREFIX_BYTES..end] }))
            }
            Ok(false) => Ok(None),
            Err(fault) => Err(self.error(fault)),
        }
    }

    /// Totals of the snapshot, once all of it has been read.
    pub fn summary(&self) -> Option<&SnapshotSummary> {
        self.is_complete.then_some(&self.summary)
    }

    /// This snapshot's error.
    pub(super) fn error(&self, fault: SnapshotFault) -> SnapshotReadError {
        SnapshotReadError { name: self.name.clone(), fault }
    }

    /// The error of a page that was just read and cannot be valid.
    pub(super) fn wrong_page(&self, expected: &str, found: String) -> SnapshotReadError {
        self.error(SnapshotFault::Damaged {
            at: self.input.at - self.buffer.len() as u64,
            part: Part::Block(self.blocks - 1),
            expected: expected.to_owned(),
            found,
        })
    }

    /// Reads a block, or the trailer; whether it was a block.
    fn read_part(&mut self) -> Result<bool, SnapshotFault> {
        if self.is_complete {
            return Ok(false);
        }
        let (at, part) = (self.input.at, Part::Block(self.blocks));
        let damaged = |part, expected: String, found: String| SnapshotFault::Damaged {
            at,
            part,
            expected,
            found,
        };
        self.buffer.clear();
        self.input.read(&mut self.buffer, BLOCK_PREFIX_BYTES, part)?;
        let tag = &self.buffer[..4];
        if tag == END_TAG {
            return self.read_trailer(at).map(|()| false);
        }
        if tag != BLOCK_TAG {
            return Err(damaged(
                part,
                "'PAGE' or 'END'".to_owned(),
                format!("'{}'", tag.escape_ascii()),
            ));
        }
        let (records, bytes) = (u32_at(&self.buffer, 4), u32_at(&self.buffer, 8) as usize);
        if bytes > BLOCK_BYTES_MAX {
            let expected = format!("a length of at most {BLOCK_BYTES_MAX} bytes");
            return Err(damaged(part, expected, bytes.to_string()));
        }
        self.input.read(&mut self.buffer, bytes + CHECKSUM_BYTES, part)?;
        let end = BLOCK_PREFIX_BYTES + bytes;
        let found = checksum(self.chain, &self.buffer[..end]);
        let expected = u64_at(&self.buffer, end);
        if found != expected {
            return Err(damaged(part, sum(expected), sum(found)));
        }
        self.chain = next_in_chain(self.chain, expected);
        let tenants = self.header.stats.tenants.len().max(1);
        let (mut rest, mut count) = (&self.buffer[BLOCK_PREFIX_BYTES..end], 0_u32);
        while !rest.is_empty() {
            let (page, after) = parse_record(rest, tenants)
                .map_err(|found| damaged(part, format!("a page as record {count}"), found))?;
            self.summary.count(page.form, page.in_backing);
            (rest, count) = (after, count + 1); // at most one for each 15 bytes
        }
        if count != records {
            return Err(damaged(part, format!("{records} records"), count.to_string()));
        }
        self.blocks += 1;
        Ok(true)
    }

    fn read_trailer(&mut self, at: u64) -> Result<(), SnapshotFault> {
        self.input.read(&mut self.buffer, TRAILER_BYTES - BLOCK_PREFIX_BYTES, Part::Trailer)?;
        let found: &[u8; TRAILER_BYTES] = self.buffer[..].try_into().expect("so many were read");
        self.summary.skipped_pages = skipped_pages(found);
        self.summary.file_bytes = self.input.at;
        let expected = trailer(&self.summary, self.chain);
        if *found != expected {
            let place = found.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(0) as u64;
            return Err(SnapshotFault::Damaged {
                at,
                part: Part::Trailer,
                expected: format!("the counts and checksum of {} pages", self.summary.pages()),
                found: format!("others from byte {} on", at + place),
            });
        }
        let mut more = Vec::new();
        match self.input.read(&mut more, 1, Part::Trailer) {
            Err(SnapshotFault::Truncated { .. }) => {
                self.is_complete = true;
                Ok(())
            }
            Err(other) => Err(other),
            Ok(()) => Err(SnapshotFault::Trailing { at: at + TRAILER_BYTES as u64 }),
        }
    }
}

impl<'a> SnapshotBlock<'a> {
    /// Its pages.
    pub fn pages(self) -> impl Iterator<Item = SnapshotPage<'a>> {
        let mut rest = self.records;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (page, after) = parse_record(rest, usize::MAX).expect("checked when it was read");
            rest = after;
            Some(page)
        })
    }
}

fn sum(checksum: u64) -> String {
    format!("the checksum {checksum:#018x}")
}

fn read_header<R: Read>(
    input: &mut Input<R>,
    buffer: &mut Vec<u8>,
) -> Result<(SnapshotHeader, u64), SnapshotFault> {
    input.read(buffer, MAGIC.len(), Part::Start)?;
    if buffer != MAGIC {
        let found = buffer[..].try_into().expect("so many were read");
        return Err(SnapshotFault::Magic { found });
    }
    input.read(buffer, PREFIX_BYTES - MAGIC.len(), Part::Start)?;
    let version = u32_at(buffer, MAGIC.len());
    if !(VERSION_MIN..=VERSION).contains(&version) {
        return Err(SnapshotFault::Version { found: version });
    }
    let damaged = |expected: String, found: String| SnapshotFault::Damaged {
        at: 0,
        part: Part::Header,
        expected,
        found,
    };
    let bytes = u32_at(buffer, MAGIC.len() + 4) as usize;
    if bytes > HEADER_BYTES_MAX {
        let expected = format!("a length of at most {HEADER_BYTES_MAX} bytes");
        return Err(damaged(expected, bytes.to_string()));
    }
    input.read(buffer, bytes + CHECKSUM_BYTES, Part::Header)?;
    let end = PREFIX_BYTES + bytes;
    let (found, expected) = (checksum(0, &buffer[..end]), u64_at(buffer, end));
    if found != expected {
        return Err(damaged(sum(expected), sum(found)));
    }
    let mut header: SnapshotHeader = serde_json::from_slice(&buffer[PREFIX_BYTES..end])
        .map_err(|error| damaged("a header in JSON".to_owned(), error.to_string()))?;
    if version == 1 {
        header.object_format = None;
    } else if header.object_format.is_none() {
        return Err(damaged("the format of objects".to_owned(), "none".to_owned()));
    }
    header.stats.check().map_err(|found| damaged("possible statistics".to_owned(), found))?;
    Ok((header, expected))
}

/// The first record of some, and the rest; what is wrong with it, in words.
fn parse_record(bytes: &[u8], tenants: usize) -> Result<(SnapshotPage<'_>, &[u8]), String> {
    let Some((prefix, rest)) = bytes.split_at_checked(RECORD_PREFIX_BYTES) else {
        return Err(format!("{} bytes", bytes.len()));
    };
    let key = PageKey(u64_at(prefix, 0));
    let tenant = usize::from(u16_at(prefix, 8));
    let (kind, uses, length) = (prefix[10], prefix[11], usize::from(u16_at(prefix, 12)));
    if tenant >= tenants {
        return Err(format!("page {key} of tenant {tenant}, and there are {tenants}"));
    }
    let Some((data, rest)) = rest.split_at_checked(length) else {
        return Err(format!("page {key} of {length} bytes where {} are left", rest.len()));
    };
    let as_page = || <&Page>::try_from(data).ok().map(PageForm::AsIs);
    let as_object = || (1..=PAGE_SIZE).contains(&length).then_some(PageForm::Object(data));
    let form = match kind {
        SAME_FILLED => data.try_into().ok().map(|word| PageForm::Word(u64::from_le_bytes(word))),
        POOL_OBJECT | BACKING_OBJECT => as_object(),
        POOL_AS_IS | BACKING_AS_IS => as_page(),
        _ => return Err(format!("page {key} of kind {kind}")),
    };
    let form = form.ok_or_else(|| format!("page {key} of kind {kind} with {length} bytes"))?;
    let in_backing = matches!(kind, BACKING_OBJECT | BACKING_AS_IS);
    Ok((SnapshotPage { key, tenant, uses, in_backing, form }, rest))
}

/// Bytes, counted.
#[derive(Debug)]
struct Input<R> {
    input: R,
    at: u64,
}

impl<R: Read> Input<R> {
    /// Reads so many bytes more to the end of `buffer`, which grows as they come.
    fn read(
        &mut self,
        buffer: &mut Vec<u8>,
        bytes: usize,
        part: Part,
    ) -> Result<(), SnapshotFault> {
        let end = buffer.len() + bytes;
        while buffer.len() < end {
            let start = buffer.len();
            let chunk = (end - start).min(CHUNK_BYTES);
            buffer.try_reserve(chunk).map_err(SnapshotFault::NoMemory)?;
            buffer.resize(start + chunk, 0);
            let mut filled = start;
            while filled < buffer.len() {
                match self.input.read(&mut buffer[filled..]) {
                    Ok(0) => {
                        let missing = (end - filled) as u64;
                        return Err(SnapshotFault::Truncated { at: self.at, part, missing });
                    }
                    Ok(read) => {
                        filled += read;
                        self.at += read as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(SnapshotFault::Io { at: self.at, error }),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compressor::CompressorKind;
    use crate::page::{PAGE_SIZE, PageKey};
    use crate::zswap::snapshot::SnapshotOptions;
    use crate::zswap::{Zswap, ZswapOptions};

    /// A snapshot of so many pages of 4096 bytes each.
    fn snapshot_of(pages: u64) -> Vec<u8> {
        let options = ZswapOptions::default().compressor(CompressorKind::None);
        let zswap = Zswap::new(options).unwrap();
        let mut page = [0; PAGE_SIZE];
        for key in 0..pages {
            page[0] = key as u8 | 1;
            zswap.store(PageKey(key), &page).unwrap();
        }
        let mut bytes = Vec::new();
        zswap.snapshot_to(&mut bytes, SnapshotOptions::default()).unwrap();
        bytes
    }

    #[test]
    fn no_block_is_empty() {
        // 64 pages fill a block.
        for (pages, expected) in
            [(0, &[][..]), (1, &[1]), (64, &[64]), (65, &[64, 1]), (128, &[64, 64])]
        {
            let bytes = snapshot_of(pages);
            let mut reader = SnapshotReader::new("bytes", &bytes[..]).unwrap();
            let mut blocks = Vec::new();
            while let Some(block) = reader.next_block().unwrap() {
                blocks.push(block.pages().count());
            }
            assert_eq!(blocks, expected, "{pages} pages");
        }
    }

    #[test]
    fn a_wrong_checksum_is_told_beside_the_right_one() {
        let mut bytes = snapshot_of(1);
        let end = PREFIX_BYTES + u32_at(&bytes, MAGIC.len() + 4) as usize;
        bytes[PREFIX_BYTES] ^= 1;
        let (right, wrong) = (u64_at(&bytes, end), checksum(0, &bytes[..end]));
        let told = SnapshotReader::new("bytes", &bytes[..]).unwrap_err().to_string();
        for sum in [right, wrong] {
            assert!(told.contains(&format!("the checksum {sum:#018x}")), "{told}");
        }
    }

    /// Gives few bytes at a time, and fails once before each of these reads.
    struct Failing<'a> {
        bytes: &'a [u8],
        kind: io::ErrorKind,
        /// Reads that do not fail, at first.
        reads: usize,
        has_failed: bool,
    }

    impl<'a> Failing<'a> {
        fn new(bytes: &'a [u8], kind: io::ErrorKind, reads: usize) -> Failing<'a> {
            Failing { bytes, kind, reads, has_failed: false }
        }
    }

    impl Read for Failing<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            self.has_failed = self.reads == 0 && !self.has_failed;
            if self.has_failed {
                return Err(self.kind.into());
            }
            self.reads = self.reads.saturating_sub(1);
            let few = room.len().min(1000);
            self.bytes.read(&mut room[..few])
        }
    }

    /// Reads a snapshot to its end; how many pages are in it.
    fn read_all(input: impl Read) -> Result<u64, SnapshotFault> {
        let mut reader = SnapshotReader::new("bytes", input).map_err(|error| error.fault)?;
        while reader.next_block().map_err(|error| error.fault)?.is_some() {}
        Ok(reader.summary().expect("all of it was read").pages())
    }

    #[test]
    fn a_read_that_is_interrupted_is_made_again() {
        let bytes = snapshot_of(70);
        let input = Failing::new(&bytes, io::ErrorKind::Interrupted, 0);
        assert_eq!(read_all(input).unwrap(), 70);
    }

    #[test]
    fn a_read_that_fails_ends_the_snapshot_at_its_byte() {
        let bytes = snapshot_of(3);
        let mut reads = 0;
        let mut at_before = None;
        loop {
            let mut input = Failing::new(&bytes, io::ErrorKind::TimedOut, reads);
            match read_all(&mut input) {
                Ok(pages) => {
                    assert_eq!(pages, 3);
                    break;
                }
                Err(SnapshotFault::Io { at, error }) => {
                    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                    assert!(at_before.is_none_or(|before| before <= at));
                    // Nothing was read after the one that failed.
                    assert_eq!(at as usize, bytes.len() - input.bytes.len());
                    at_before = Some(at);
                }
                Err(other) => panic!("after {reads} reads: {other}"),
            }
            reads += 1;
        }
        assert_eq!(at_before, Some(bytes.len() as u64));
    }

    #[test]
    fn a_length_above_the_maximum_is_refused_before_the_part_is_read() {
        let bytes = snapshot_of(1);
        let at = PREFIX_BYTES + u32_at(&bytes, MAGIC.len() + 4) as usize + CHECKSUM_BYTES;
        let header = (MAGIC.len() + 4, 0, HEADER_BYTES_MAX, "the header");
        let block = (at + 8, at, BLOCK_BYTES_MAX, "block 0 of pages");
        for (place, start, max, part) in [header, block] {
            for length in [max as u32 + 1, u32::MAX] {
                // The bytes end with the length: one that is read on is cut.
                let mut cut = bytes[..place + 4].to_vec();
                cut[place..].copy_from_slice(&length.to_le_bytes());
                let told = read_all(&cut[..]).unwrap_err().to_string();
                let expected = format!(
                    "damaged in {part}, which begins at byte {start}: expected a length of at \
                     most {max} bytes, found {length}; use an older copy"
                );
                assert_eq!(told, expected);
            }
            // The maximum itself is not refused.
            let mut cut = bytes[..place + 4].to_vec();
            cut[place..].copy_from_slice(&(max as u32).to_le_bytes());
            let fault = read_all(&cut[..]).unwrap_err();
            assert!(matches!(fault, SnapshotFault::Truncated { .. }), "{fault}");
        }
    }

    #[test]
    fn a_page_that_cannot_be_valid_is_told_with_its_block() {
        let bytes = snapshot_of(300);
        let mut reader = SnapshotReader::new("bytes", &bytes[..]).unwrap();
        let mut number = 0;
        loop {
            let at = reader.input.at;
            if reader.next_block().unwrap().is_none() {
                break;
            }
            let told = reader.wrong_page("each page once", "page 0 twice".to_owned()).to_string();
            let place = format!("in block {number} of pages, which begins at byte {at}: ");
            assert!(told.contains(&place), "{told}");
            number += 1;
        }
        assert!(number > 1);
    }
}
