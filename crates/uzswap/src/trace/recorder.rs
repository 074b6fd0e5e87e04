//! Records the operations on a store, from any thread, as they happen.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;
use zstd_safe::CCtx;

use super::dedup_cache::DedupCache;
use super::format::{
    self, BLOCK_CONTENTS, BLOCK_EVENT_BYTES, BLOCK_EVENT_BYTES_MAX, BODY_BYTES_MAX,
    HEADER_BYTES_MAX, MAGIC,
};
use super::{Content, Event, Operation, TraceAbout, TraceError, TraceTotals, VERSION};
use crate::files::{Contents, PatientFile, open_output};
use crate::page::{PAGE_SIZE, Page, PageKey};
use crate::same_filled::SameFilled;
use crate::sealed;

/// Blocks that wait for the disk at most: 4 MiB. Who has another waits too.
const WAITING_BLOCKS: usize = 1 << 4;

/// A block with an event older than this is written, full or not.
const BLOCK_AGE: Duration = Duration::from_secs(1);

/// A pipe whose reader takes nothing for so long ends the recording. All that is recorded waits
/// meanwhile, and the reader may be a program that waits for one of these pages.
const PATIENCE: Duration = Duration::from_secs(5);

/// The fastest that still finds what is the same in a block.
const ZSTD_LEVEL: i32 = 1;

/// Records events to a file. Shared by threads: an event that ended before another is before it.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    start: Instant,
    /// Set when a write has failed: nothing is recorded any more.
    stopped: Arc<AtomicBool>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    seen: DedupCache,
    block: Block,
    totals: TraceTotals,
    /// When the first event of the block came.
    since: Instant,
    /// Taken at the end.
    writer: Option<(SyncSender<Block>, JoinHandle<Written>)>,
}

/// What is written at once.
#[derive(Debug)]
struct Block {
    events: Vec<u8>,
    contents: Vec<u8>,
    /// Of the trace with this block.
    totals: TraceTotals,
}

/// What came to the file.
#[derive(Debug, Default)]
struct Written {
    totals: TraceTotals,
    bytes: u64,
    failed: Option<String>,
}

/// What a recording came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordReport {
    /// The file.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// What there is in it.
    #[serde(flatten)]
    pub totals: TraceTotals,
    /// Whether it has all that was done.
    pub complete: bool,
    /// Why it has not.
    pub error: Option<String>,
}

impl Block {
    fn new() -> Block {
        Block {
            events: Vec::with_capacity(BLOCK_EVENT_BYTES_MAX),
            contents: Vec::new(),
            totals: TraceTotals::default(),
        }
    }
}

impl State {
    /// Events recorded since the last block.
    fn take_block(&mut self) -> Block {
        let mut block = std::mem::replace(&mut self.block, Block::new());
        self.totals.blocks += u64::from(!block.events.is_empty());
        block.totals = self.totals;
        block
    }
}

impl Recorder {
    /// Begins a trace in the file at `path`, which is made, or emptied. Only its owner can read the
    /// file: it holds the memory of programs. A file that exists must be private. `warn` is
    /// called if a write fails later, once, with the message.
    ///
    /// # Errors
    ///
    /// [`TraceError::Create`], [`TraceError::Write`].
    pub fn create(
        path: &Path,
        about: &TraceAbout,
        warn: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Recorder, TraceError> {
        Recorder::begin(path, Recorder::make_file(path)?, about, warn)
    }

    /// Makes the file, or empties it, and nothing else: to open a pipe waits for a reader.
    ///
    /// # Errors
    ///
    /// [`TraceError::Create`].
    pub fn make_file(path: &Path) -> Result<File, TraceError> {
        open_output(path, Contents::Pages)
            .map_err(|error| TraceError::Create { path: path.to_owned(), error })
    }

    /// As [`Recorder::create`], in a file that was made before, at `path`.
    ///
    /// # Errors
    ///
    /// [`TraceError::Write`], and [`TraceError::Create`] where there is no thread.
    pub fn begin(
        path: &Path,
        file: File,
        about: &TraceAbout,
        warn: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Recorder, TraceError> {
        let fail = |error| TraceError::Create { path: path.to_owned(), error };
        let mut json = serde_json::to_vec(about).expect("strings");
        if json.len() > HEADER_BYTES_MAX {
            let about = TraceAbout { origin: String::new(), ..about.clone() };
            json = serde_json::to_vec(&about).expect("strings");
        }
        let (header, chain) = sealed::header(MAGIC, VERSION, &json);
        let cannot_write = |error| TraceError::Write { path: path.to_owned(), error };
        let mut file = PatientFile::new(file, PATIENCE).map_err(cannot_write)?;
        file.write_all(&header).map_err(cannot_write)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let mut writer = Writer {
            path: path.to_owned(),
            file,
            chain,
            body: Vec::new(),
            raw: Vec::new(),
            written: Written { bytes: header.len() as u64, ..Written::default() },
        };
        let (sender, receiver) = sync_channel(WAITING_BLOCKS);
        let thread = {
            let stopped = Arc::clone(&stopped);
            let work = move || {
                writer.run(&receiver, &stopped, warn);
                writer.written
            };
            std::thread::Builder::new()
                .name("uzswap-recorder".to_owned())
                .spawn(work)
                .map_err(fail)?
        };
        let start = Instant::now();
        Ok(Recorder {
            path: path.to_owned(),
            start,
            stopped,
            state: Mutex::new(State {
                seen: DedupCache::new(),
                block: Block::new(),
                totals: TraceTotals::default(),
                since: start,
                writer: Some((sender, thread)),
            }),
        })
    }

    /// A page was stored.
    pub fn store(&self, key: PageKey, page: &Page) {
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        if let Some(word) = SameFilled::default().word(page) {
            return self.record(key, |_| Operation::Store(Content::Word(word)));
        }
        let hash = XxHash3_128::oneshot(page);
        self.record(key, |state| {
            let next = state.totals.contents;
            let number = state.seen.number_or_insert(hash, next);
            if number == next {
                state.totals.contents += 1;
                state.block.contents.extend_from_slice(page);
            }
            Operation::Store(Content::Page(number))
        });
    }

    /// A page was loaded.
    pub fn load(&self, key: PageKey) {
        self.record(key, |_| Operation::Load);
    }

    /// A page was freed.
    pub fn free(&self, key: PageKey) {
        self.record(key, |_| Operation::Free);
    }

    /// Ends the trace. What comes later is not recorded.
    pub fn finish(&self) -> RecordReport {
        let mut state = self.lock();
        let writer = state.writer.take();
        let last = state.take_block();
        drop(state);
        let written = writer.and_then(|(sender, thread)| {
            if !last.events.is_empty() {
                // Sending fails if the thread has ended, which then reports why.
                let _ = sender.send(last);
            }
            drop(sender);
            thread.join().ok()
        });
        let written = written.unwrap_or_else(|| Written {
            failed: Some("the recording has ended before".to_owned()),
            ..Written::default()
        });
        RecordReport {
            path: self.path.clone(),
            bytes: written.bytes,
            totals: written.totals,
            complete: written.failed.is_none(),
            error: written.failed,
        }
    }

    /// A panic in another thread does not leave half an event.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, key: PageKey, operation: impl FnOnce(&mut State) -> Operation) {
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.lock();
        if state.writer.is_none() {
            return;
        }
        let now = Instant::now();
        if state.block.events.is_empty() {
            state.since = now;
        }
        let ns = u64::try_from(now.duration_since(self.start).as_nanos()).unwrap_or(u64::MAX);
        let event = Event { ns, key, operation: operation(&mut state) };
        let since_ns = ns.saturating_sub(state.totals.ns);
        format::put_event(&mut state.block.events, since_ns, &event);
        state.totals.add(&event);
        if state.block.events.len() >= BLOCK_EVENT_BYTES
            || state.block.contents.len() >= BLOCK_CONTENTS * PAGE_SIZE
            || now.duration_since(state.since) >= BLOCK_AGE
        {
            let block = state.take_block();
            if let Some((sender, _)) = &state.writer {
                // Sending fails if the thread has ended, which then reports why.
                let _ = sender.send(block);
            }
        }
    }
}

/// The thread that writes.
struct Writer {
    path: PathBuf,
    file: PatientFile,
    chain: u64,
    /// Of the last block, before it was compressed and after.
    raw: Vec<u8>,
    body: Vec<u8>,
    written: Written,
}

impl Writer {
    /// Writes blocks and the end, or until a write fails; then blocks are thrown away.
    fn run(&mut self, blocks: &Receiver<Block>, stopped: &AtomicBool, warn: impl FnOnce(&str)) {
        let mut context = CCtx::create();
        let mut outcome = Ok(());
        for block in blocks {
            if outcome.is_ok() {
                outcome = self.write_block(&mut context, &block);
                stopped.store(outcome.is_err(), Ordering::Relaxed);
            }
        }
        let outcome = outcome.and_then(|()| {
            let end = format::end(&self.written.totals, self.chain);
            self.write(&end)
        });
        if let Err(error) = outcome {
            let text = format!("{}: {error}", self.path.display());
            warn(&text);
            self.written.failed = Some(text);
        }
    }

    fn write_block(&mut self, context: &mut CCtx<'_>, block: &Block) -> io::Result<()> {
        self.raw.clear();
        self.raw.extend_from_slice(&block.events);
        self.raw.extend_from_slice(&block.contents);
        self.body.clear();
        self.body.reserve(BODY_BYTES_MAX);
        context
            .compress(&mut self.body, &self.raw, ZSTD_LEVEL)
            .map_err(|code| io::Error::other(zstd_safe::get_error_name(code)))?;
        let contents = block.contents.len() / PAGE_SIZE;
        let lengths = [block.events.len(), contents, self.body.len()];
        let (prefix, seed) = format::block_prefix(self.chain, lengths);
        let sum = sealed::checksum(seed, &self.body);
        self.body.splice(0..0, prefix);
        self.body.extend(sum.to_le_bytes());
        let bytes = std::mem::take(&mut self.body);
        self.write(&bytes)?;
        self.body = bytes;
        self.chain = sealed::next_in_chain(self.chain, sum);
        self.written.totals = block.totals;
        Ok(())
    }

    /// Adds to the file all of it, or nothing.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(bytes);
        match written {
            Ok(()) => self.written.bytes += bytes.len() as u64,
            // The output may be no file, and a reader accepts a part of a block.
            Err(_) => drop(self.file.set_len(self.written.bytes)),
        }
        written
    }
}
