//! Reads a trace, block by block.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use zstd_safe::DCtx;

use super::format::{
    self, BLOCK_CONTENTS, BLOCK_EVENT_BYTES_MAX, BLOCK_PREFIX_BYTES, BLOCK_TAG, BODY_BYTES_MAX,
    END_BYTES, END_TAG, HEADER_BYTES_MAX, MAGIC,
};
use super::{Content, Event, Operation, TraceAbout, TraceError, TraceTotals, VERSION};
use crate::page::{PAGE_SIZE, Page};
use crate::sealed::{self, CHECKSUM_BYTES, PREFIX_BYTES, TAG_BYTES};

/// How a trace ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// As it should.
    Whole,
    /// In the middle: whoever wrote it was ended, or the disk was full. It is right up to there.
    Cut {
        /// The end of the last whole block, in bytes.
        at: u64,
    },
}

/// A trace that is being read. Takes some 2 MiB of memory, whatever is in the file.
pub struct TraceReader<R> {
    path: PathBuf,
    input: R,
    about: TraceAbout,
    context: DCtx<'static>,
    chain: u64,
    /// The end of what was read of whole parts, in bytes.
    offset: u64,
    totals: TraceTotals,
    ending: Option<Ending>,
    body: Vec<u8>,
    raw: Vec<u8>,
    events: Vec<Event>,
}

impl<R> fmt::Debug for TraceReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceReader")
            .field("path", &self.path)
            .field("offset", &self.offset)
            .field("totals", &self.totals)
            .finish_non_exhaustive()
    }
}

/// A part of a trace.
#[derive(Debug, Clone, Copy)]
pub struct TraceBlock<'a> {
    /// What was done, in order.
    pub events: &'a [Event],
    /// The contents that these are the first to need, in the order of their numbers.
    pub contents: &'a [Page],
}

impl<R: Read> TraceReader<R> {
    /// Begins to read `input`; `path` is for messages.
    ///
    /// # Errors
    ///
    /// [`TraceError`].
    pub fn new(path: impl AsRef<Path>, input: R) -> Result<TraceReader<R>, TraceError> {
        let mut reader = TraceReader {
            path: path.as_ref().to_owned(),
            input,
            about: TraceAbout::default(),
            context: DCtx::create(),
            chain: 0,
            offset: 0,
            totals: TraceTotals::default(),
            ending: None,
            body: Vec::new(),
            raw: Vec::new(),
            events: Vec::new(),
        };
        reader.read_header()?;
        Ok(reader)
    }

    /// What it says of itself.
    pub fn about(&self) -> &TraceAbout {
        &self.about
    }

    /// Totals of the blocks that were read.
    pub fn totals(&self) -> &TraceTotals {
        &self.totals
    }

    /// The end of what was read of whole parts, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How it ends; `None` while there may be another block.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The next block; `None` at the end, also of a trace that was cut off.
    ///
    /// # Errors
    ///
    /// [`TraceError`]. There is nothing more to be read then.
    pub fn next_block(&mut self) -> Result<Option<TraceBlock<'_>>, TraceError> {
        if self.ending.is_some() {
            return Ok(None);
        }
        let mut start = [0; BLOCK_PREFIX_BYTES];
        let (tag, rest) = start.split_at_mut(TAG_BYTES);
        if !self.fill(tag)? {
            return Ok(self.end_cut());
        }
        if *tag == *END_TAG {
            return self.read_end();
        }
        if *tag != *BLOCK_TAG {
            return Err(self.corrupt("expected a block or the end of the trace"));
        }
        if !self.fill(rest)? {
            return Ok(self.end_cut());
        }
        let (words, _) = rest.as_chunks::<4>();
        let lengths = [words[0], words[1], words[2]].map(|word| u32::from_le_bytes(word) as usize);
        let (expected, seed) = format::block_prefix(self.chain, lengths);
        if start != expected {
            return Err(self.corrupt("the lengths of a block do not match their checksum"));
        }
        let [event_bytes, contents, body_bytes] = lengths;
        if event_bytes > BLOCK_EVENT_BYTES_MAX
            || contents > BLOCK_CONTENTS
            || body_bytes > BODY_BYTES_MAX
        {
            return Err(self.corrupt("a block exceeds the maximum length"));
        }
        let mut body = std::mem::take(&mut self.body);
        body.resize(body_bytes + CHECKSUM_BYTES, 0);
        let filled = self.fill(&mut body)?;
        self.body = body;
        if !filled {
            return Ok(self.end_cut());
        }
        let (body, sum) = self.body.split_at(body_bytes);
        let found = sealed::checksum(seed, body);
        if found.to_le_bytes() != *sum {
            return Err(self.corrupt("a block does not match its checksum"));
        }
        let raw_bytes = event_bytes + contents * PAGE_SIZE;
        self.raw.clear();
        self.raw.reserve(raw_bytes);
        let unpacked = self.context.decompress(&mut self.raw, body);
        if unpacked.is_err() || self.raw.len() != raw_bytes {
            return Err(self.corrupt("a block does not decompress to its recorded length"));
        }
        self.read_events(event_bytes, contents as u64)?;
        self.chain = sealed::next_in_chain(self.chain, found);
        self.offset += (BLOCK_PREFIX_BYTES + body_bytes + CHECKSUM_BYTES) as u64;
        let (pages, _) = self.raw[event_bytes..].as_chunks::<PAGE_SIZE>();
        Ok(Some(TraceBlock { events: &self.events, contents: pages }))
    }

    fn read_header(&mut self) -> Result<(), TraceError> {
        let mut prefix = [0; PREFIX_BYTES];
        let is_full = self.fill(&mut prefix)?;
        if prefix[..MAGIC.len()] != *MAGIC {
            return Err(TraceError::NotATrace { path: self.path.clone() });
        }
        const CUT: &str = "truncated before the first block";
        if !is_full {
            return Err(self.corrupt(CUT));
        }
        let (words, _) = prefix[MAGIC.len()..].as_chunks::<4>();
        let [version, length] = [words[0], words[1]].map(u32::from_le_bytes);
        if version != VERSION {
            return Err(TraceError::Version { path: self.path.clone(), found: version });
        }
        let length = length as usize;
        if length > HEADER_BYTES_MAX {
            return Err(self.corrupt("the header exceeds the maximum length"));
        }
        let mut rest = vec![0; length + CHECKSUM_BYTES];
        if !self.fill(&mut rest)? {
            return Err(self.corrupt(CUT));
        }
        let (expected, chain) = sealed::header(MAGIC, VERSION, &rest[..length]);
        if expected[PREFIX_BYTES..] != rest {
            return Err(self.corrupt("the header does not match its checksum"));
        }
        let about = serde_json::from_slice(&rest[..length]);
        self.about = about.map_err(|error| self.corrupt(&format!("invalid header: {error}")))?;
        self.chain = chain;
        self.offset = expected.len() as u64;
        Ok(())
    }

    /// Reads the events of a block with so many contents, and counts them.
    fn read_events(&mut self, bytes: usize, contents: u64) -> Result<(), TraceError> {
        let mut totals = self.totals;
        totals.blocks += 1;
        totals.contents += contents;
        self.events.clear();
        let mut rest = &self.raw[..bytes];
        while !rest.is_empty() {
            let event = format::take_event(&mut rest, totals.ns);
            let event = event.map_err(|what| self.corrupt(what))?;
            if let Operation::Store(Content::Page(number)) = event.operation
                && number >= totals.contents
            {
                return Err(self.corrupt("an event refers to a content that does not exist"));
            }
            totals.add(&event);
            self.events.push(event);
        }
        self.totals = totals;
        Ok(())
    }

    /// Reads what is after the tag of the end.
    fn read_end(&mut self) -> Result<Option<TraceBlock<'_>>, TraceError> {
        let mut rest = [0; END_BYTES - TAG_BYTES];
        if !self.fill(&mut rest)? {
            return Ok(self.end_cut());
        }
        if rest != format::end(&self.totals, self.chain)[TAG_BYTES..] {
            return Err(self.corrupt("the counts at the end do not match the trace"));
        }
        self.offset += END_BYTES as u64;
        if self.read(&mut [0])? > 0 {
            return Err(self.corrupt("data follows the end of the trace"));
        }
        self.ending = Some(Ending::Whole);
        Ok(None)
    }

    /// Fills `room`; whether there was as much.
    fn fill(&mut self, room: &mut [u8]) -> Result<bool, TraceError> {
        let mut filled = 0;
        while filled < room.len() {
            match self.read(&mut room[filled..])? {
                0 => return Ok(false),
                bytes => filled += bytes,
            }
        }
        Ok(true)
    }

    fn read(&mut self, room: &mut [u8]) -> Result<usize, TraceError> {
        loop {
            match self.input.read(room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => {
                    let path = &self.path;
                    return read.map_err(|error| TraceError::Read { path: path.clone(), error });
                }
            }
        }
    }

    fn end_cut(&mut self) -> Option<TraceBlock<'_>> {
        self.ending = Some(Ending::Cut { at: self.offset });
        None
    }

    fn corrupt(&self, what: &str) -> TraceError {
        let what = what.to_owned();
        TraceError::Corrupt { path: self.path.clone(), offset: self.offset, what }
    }
}
