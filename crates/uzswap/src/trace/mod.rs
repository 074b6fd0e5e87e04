//! Traces: the stores, loads and frees of a run in their order, with the contents by reference.
//!
//! ```text
//!  store, load, free -> Recorder -> block -> thread: zstd, checksum -> file -> TraceReader
//!                       (a lock)    (bounded queue)
//! ```
//!
//! - R1: an event is in the trace after all that ended before it; its content is before or with it.
//! - R2: a file that was cut off anywhere gives all its whole blocks, and says that it was cut.
//! - R3: a file that was changed is an error.
//! - R4: what a recorder needs of memory does not grow with what it records.
//!
//! The layout is in `docs/reference/trace-format.md`.

mod dedup_cache;
mod format;
mod reader;
mod recorder;

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use format::VERSION;
pub use reader::{Ending, TraceBlock, TraceReader};
pub use recorder::{RecordReport, Recorder};

use crate::page::PageKey;

/// What a trace says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceAbout {
    /// What was recorded, in words.
    pub origin: String,
    /// When, as RFC 3339 in UTC.
    pub recorded_at: String,
}

/// What was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The page of this number, counted from 0 through the trace.
    Page(u64),
    /// The page that repeats this word, in the machine's byte order.
    Word(u64),
}

/// What was done with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The key got this content; its previous content is gone.
    Store(Content),
    /// It was read.
    Load,
    /// It was forgotten.
    Free,
}

/// Something that was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When it ended: nanoseconds since the recording began.
    pub ns: u64,
    /// The key.
    pub key: PageKey,
    /// What.
    pub operation: Operation,
}

/// What there is in a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceTotals {
    /// Blocks.
    pub blocks: u64,
    /// Stores, of same-filled pages too.
    pub stores: u64,
    /// Of these, stores of same-filled pages.
    pub same_filled_stores: u64,
    /// Loads.
    pub loads: u64,
    /// Frees.
    pub frees: u64,
    /// Pages, each 4096 bytes.
    pub contents: u64,
    /// When the last event ended: nanoseconds since the recording began.
    pub ns: u64,
}

impl TraceTotals {
    /// All events.
    pub fn events(&self) -> u64 {
        self.stores + self.loads + self.frees
    }

    /// Counts an event.
    fn add(&mut self, event: &Event) {
        match event.operation {
            Operation::Store(content) => {
                self.stores += 1;
                self.same_filled_stores += u64::from(matches!(content, Content::Word(_)));
            }
            Operation::Load => self.loads += 1,
            Operation::Free => self.frees += 1,
        }
        self.ns = event.ns;
    }
}

/// Why a trace was not written or not read. The message has the kernel's error in it: there is no
/// chain of sources to print after it.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum TraceError {
    /// The output cannot be made.
    #[error("cannot create the trace {}: {error}", path.display())]
    Create {
        /// The output.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// Its start cannot be written: a full disk, above all.
    #[error("cannot write the trace {}: {error}", path.display())]
    Write {
        /// The output.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read the trace {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The file is something else.
    #[error("{} is not a trace of `uzswap run --record`", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
    },
    /// It was written by another version.
    #[error(
        "{} is a trace of version {found}; this uzswap reads version {VERSION}",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file was changed, or is not of this program.
    #[error("{} is corrupt at byte {offset}: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where the part begins that is wrong, in bytes.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
}

impl TraceError {
    /// Whether the machine is the reason (permission, disk, I/O) and not the path or file given.
    pub fn is_machine(&self) -> bool {
        match self {
            TraceError::Create { error, .. } | TraceError::Read { error, .. } => !matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::IsADirectory
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::InvalidFilename
            ),
            TraceError::Write { .. } => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
