//! Why a snapshot was not written, not read, or not restored.

use std::collections::TryReserveError;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::format::{HEADER_BYTES_MAX, VERSION, VERSION_MIN};
use crate::compressor::{Corrupt, ObjectFormat};
use crate::index::IndexError;
use crate::page::PageKey;
use crate::zswap::{BuildError, LoadError, TenantError};

/// Why there is no new snapshot. The store is as it was, and so is the snapshot that was there
/// before, if not said otherwise.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// A directory or device where a file is to be.
    #[error("{} is {what}: a snapshot is a regular file; give the name of one", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Another snapshot to this path is under way, of this process or another one.
    #[error("another snapshot to {} is being written: wait for it to end", path.display())]
    Busy {
        /// The path.
        path: PathBuf,
    },
    /// Its temporary file could not be made.
    #[error("cannot create {}{}", path.display(), hint(source))]
    Create {
        /// The temporary file, beside the snapshot.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// It could not be written.
    #[error("cannot write byte {at} of the snapshot{}", hint(source))]
    Write {
        /// Bytes that were written.
        at: u64,
        /// The error of the file or writer.
        source: io::Error,
    },
    /// It was written, but could not be put on the disk under its name.
    #[error("cannot {action} {}{}", path.display(), hint(source))]
    Place {
        /// What failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// It is in its place, but might not be after a power failure.
    #[error(
        "the new snapshot is in place, but its directory {} could not be written to disk: after a \
         power failure the one before may be there", path.display()
    )]
    SyncDirectory {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A page is corrupt, or the backing does not give it.
    #[error(
        "a page cannot be written to the snapshot; skip_corrupt leaves such pages out \
         (SnapshotOptions)"
    )]
    Page {
        /// The page, and what is wrong with it.
        #[from]
        source: LoadError,
    },
    /// Its header would be too long.
    #[error(
        "a snapshot's header of {bytes} bytes is over {HEADER_BYTES_MAX}: give the tenants \
         shorter names"
    )]
    HeaderTooLong {
        /// What it came to.
        bytes: usize,
    },
    /// No memory for the list of pages (16 bytes each), or for the buffer.
    #[error("no memory for a snapshot's list of pages, 16 bytes for each")]
    NoMemory(#[from] TryReserveError),
}

/// What to do about an error of the kernel.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            " (free some space there, or choose another place)"
        }
        io::ErrorKind::FileTooLarge => " (raise the limit of file sizes: ulimit -f)",
        io::ErrorKind::ReadOnlyFilesystem => " (choose a place that can be written)",
        io::ErrorKind::PermissionDenied => " (its directory must be writable)",
        io::ErrorKind::NotFound => " (make its directory first)",
        _ => "",
    }
}

/// What is wrong with a snapshot, and which one it is.
#[derive(Debug, Error)]
#[error("snapshot {name}: {fault}")]
pub struct SnapshotReadError {
    /// Its path.
    pub name: String,
    /// What is wrong.
    pub fault: SnapshotFault,
}

/// What is wrong with a snapshot.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum SnapshotFault {
    /// It does not open, or does not read.
    #[error("cannot read byte {at}: {error}")]
    Io {
        /// The byte.
        at: u64,
        /// The kernel's error.
        error: io::Error,
    },
    /// Another kind of file.
    #[error("not a snapshot of uzswap: it begins with {:?}", String::from_utf8_lossy(found))]
    Magic {
        /// What it begins with.
        found: [u8; 8],
    },
    /// Another version of the layout.
    #[error(
        "its layout has version {found}, and this uzswap reads versions {VERSION_MIN} to \
         {VERSION}: use the uzswap that wrote it"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// It ends too soon.
    #[error(
        "truncated: it ends at byte {at}, {missing} bytes before the end of {part}; use an older \
         copy"
    )]
    Truncated {
        /// Its length.
        at: u64,
        /// Where it ends.
        part: Part,
        /// Bytes of this part that are not there.
        missing: u64,
    },
    /// It was changed since it was written.
    #[error(
        "damaged in {part}, which begins at byte {at}: expected {expected}, found {found}; use an \
         older copy"
    )]
    Damaged {
        /// The first byte of the part.
        at: u64,
        /// Where.
        part: Part,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// It goes on after its end.
    #[error("damaged: it goes on after its end at byte {at}; use an older copy")]
    Trailing {
        /// Where it should end.
        at: u64,
    },
    /// No memory for a part of it.
    #[error("no memory to read it ({0})")]
    NoMemory(TryReserveError),
}

impl SnapshotFault {
    /// Whether it is a snapshot of this version that was damaged or cut.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            SnapshotFault::Truncated { .. }
                | SnapshotFault::Damaged { .. }
                | SnapshotFault::Trailing { .. }
        )
    }

    /// Whether the machine is at fault, and not the file.
    pub fn is_machine(&self) -> bool {
        match self {
            SnapshotFault::Io { error, .. } => !matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::IsADirectory
                    | io::ErrorKind::NotADirectory
            ),
            SnapshotFault::NoMemory(_) => true,
            _ => false,
        }
    }
}

/// A part of a snapshot file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Magic, version and length.
    Start,
    /// The header.
    Header,
    /// A block of pages, by its number from 0.
    Block(u64),
    /// What comes after the last block.
    Trailer,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Part::Start => f.write_str("the first 16 bytes"),
            Part::Header => f.write_str("the header"),
            Part::Block(number) => write!(f, "block {number} of pages"),
            Part::Trailer => f.write_str("the trailer"),
        }
    }
}

/// Why a snapshot was not restored. The file is as it was.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum RestoreError {
    /// Something is wrong with the file.
    #[error(transparent)]
    Read(#[from] SnapshotReadError),
    /// The store cannot be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The store is not a new one.
    #[error("a snapshot is restored into a new store only: this one has been used")]
    Used,
    /// Neither the store's compressor reads its objects nor one that is known by name.
    #[error(
        "its objects are of compressor '{name}' (format: {format}), which neither the store's \
         compressor '{store}' reads nor another one of this uzswap: restore it into a store with \
         that compressor (Zswap::from_parts)"
    )]
    Compressor {
        /// The compressor that made them.
        name: String,
        /// Their format.
        format: ObjectFormat,
        /// The compressor of the store.
        store: String,
    },
    /// Its tenants cannot be made.
    #[error("its tenants cannot be restored")]
    Tenants(#[from] TenantError),
    /// It has a page that the compressor does not know.
    #[error("page {key} of the snapshot is no object of compressor {compressor}")]
    Corrupt {
        /// The page.
        key: PageKey,
        /// The compressor.
        compressor: String,
        /// What is wrong with it.
        #[source]
        source: Corrupt,
    },
    /// There is no room for all of it.
    #[error(
        "{pages} of its {of_pages} pages, {bytes} bytes, fit neither into the pool (limit: \
         {max_pool_bytes} bytes) nor into {backing}, where tenants with writeback may go: raise \
         the limit, or give a backing with {pages} more blocks"
    )]
    DoesNotFit {
        /// Pages that found no place.
        pages: u64,
        /// All of them.
        of_pages: u64,
        /// Bytes of those without a place, compressed as they are.
        bytes: u64,
        /// The pool's limit.
        max_pool_bytes: u64,
        /// The backing, in words.
        backing: String,
    },
    /// No memory for the index.
    #[error("no memory for the index entry of page {key}")]
    Index {
        /// The page.
        key: PageKey,
        /// What the index said.
        #[source]
        source: IndexError,
    },
    /// No memory for the backing's tables or a buffer.
    #[error("no memory to restore a snapshot")]
    NoMemory(#[from] TryReserveError),
}
