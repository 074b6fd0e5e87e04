//! Errors of writing, reading and restoring a snapshot.

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
    /// A directory or device instead of a file.
    #[error("{} is {what}; a snapshot needs the path of a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Another snapshot to this path is under way, of this process or another one.
    #[error("another snapshot to {} is being written; wait for its end", path.display())]
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
    /// The snapshot was written, but could not be put on the disk under its name.
    #[error("cannot {action} {}{}", path.display(), hint(source))]
    Place {
        /// What failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The snapshot is in place, but might not be after a power failure.
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
        "cannot write a page to the snapshot; set SnapshotOptions::skip_corrupt to omit such pages"
    )]
    Page {
        /// The page, and what is wrong with it.
        #[from]
        source: LoadError,
    },
    /// Its header would be too long.
    #[error(
        "the snapshot's header of {bytes} bytes exceeds {HEADER_BYTES_MAX}; give the tenants \
         shorter names"
    )]
    HeaderTooLong {
        /// What it came to.
        bytes: usize,
    },
    /// No memory for the list of pages (16 bytes each), or for the buffer.
    #[error("cannot allocate the snapshot's list of pages (16 bytes each)")]
    NoMemory(#[from] TryReserveError),
}

/// Advice for an error of the kernel.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            " (free some space there, or choose another path)"
        }
        io::ErrorKind::FileTooLarge => " (raise the file size limit: ulimit -f)",
        io::ErrorKind::ReadOnlyFilesystem => " (choose a writable path)",
        io::ErrorKind::PermissionDenied => " (its directory must be writable)",
        io::ErrorKind::NotFound => " (create its directory first)",
        _ => "",
    }
}

/// A fault of a snapshot, and its name.
#[derive(Debug, Error)]
#[error("{}", of_snapshot(name, fault))]
pub struct SnapshotReadError {
    /// Its path.
    pub name: String,
    /// What is wrong.
    pub fault: SnapshotFault,
}

fn of_snapshot(name: &str, fault: &SnapshotFault) -> String {
    match fault {
        SnapshotFault::Io { at: 0, error } => format!("cannot open snapshot {name}: {error}"),
        _ => format!("snapshot {name}: {fault}"),
    }
}

/// What is wrong with a snapshot.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum SnapshotFault {
    /// The file does not open, or does not read.
    #[error("cannot read byte {at}: {error}")]
    Io {
        /// The byte.
        at: u64,
        /// The kernel's error.
        error: io::Error,
    },
    /// Another kind of file.
    #[error("not a snapshot of uzswap: the file begins with {:?}", String::from_utf8_lossy(found))]
    Magic {
        /// What it begins with.
        found: [u8; 8],
    },
    /// Another version of the layout.
    #[error(
        "layout version {found}; this uzswap reads versions {VERSION_MIN} to {VERSION}; use the \
         uzswap that wrote it"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// It ends too soon.
    #[error(
        "truncated: the file ends at byte {at}, {missing} bytes before the end of {part}; use an \
         older copy"
    )]
    Truncated {
        /// Its length.
        at: u64,
        /// Where it ends.
        part: Part,
        /// Bytes of this part that are not there.
        missing: u64,
    },
    /// The file was changed since it was written.
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
    #[error("damaged: data follows the end at byte {at}; use an older copy")]
    Trailing {
        /// Where it should end.
        at: u64,
    },
    /// No memory for a part of it.
    #[error("cannot allocate memory to read it ({0})")]
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
    #[error("cannot restore a snapshot into a store that has been used; make a new one")]
    Used,
    /// Neither the store's compressor reads its objects nor one that is known by name.
    #[error(
        "no compressor reads the objects of '{name}' (format: {format}), neither the store's \
         '{store}' nor another of this uzswap; restore into a store with that compressor \
         (Zswap::from_parts)"
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
    #[error("cannot restore the tenants of the snapshot")]
    Tenants(#[from] TenantError),
    /// The compressor does not recognize a page.
    #[error("page {key} of the snapshot is not an object of compressor {compressor}")]
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
        "{pages} of the snapshot's {of_pages} pages ({bytes} bytes) fit neither into the pool \
         (limit: {max_pool_bytes} bytes) nor into {backing}; raise the limit, or give a backing \
         with {pages} more blocks"
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
    #[error("no headroom for the index entry of page {key}")]
    Index {
        /// The page.
        key: PageKey,
        /// What the index said.
        #[source]
        source: IndexError,
    },
    /// No memory for the backing's tables or a buffer.
    #[error("cannot allocate memory to restore a snapshot")]
    NoMemory(#[from] TryReserveError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_the_files_or_the_machines() {
        let io = |kind: io::ErrorKind| SnapshotFault::Io { at: 7, error: kind.into() };
        let no_memory = Vec::<u64>::new().try_reserve_exact(usize::MAX).unwrap_err();
        let (part, text) = (Part::Block(3), String::new);
        for (fault, is_damage, is_machine) in [
            (io(io::ErrorKind::TimedOut), false, true),
            (io(io::ErrorKind::PermissionDenied), false, true),
            (io(io::ErrorKind::NotFound), false, false),
            (io(io::ErrorKind::IsADirectory), false, false),
            (io(io::ErrorKind::NotADirectory), false, false),
            (SnapshotFault::NoMemory(no_memory), false, true),
            (SnapshotFault::Magic { found: [0; 8] }, false, false),
            (SnapshotFault::Version { found: 99 }, false, false),
            (SnapshotFault::Truncated { at: 1, part, missing: 2 }, true, false),
            (SnapshotFault::Damaged { at: 1, part, expected: text(), found: text() }, true, false),
            (SnapshotFault::Trailing { at: 1 }, true, false),
        ] {
            assert_eq!((fault.is_damage(), fault.is_machine()), (is_damage, is_machine), "{fault}");
        }
    }

    #[test]
    fn a_snapshot_that_gives_no_byte_is_told_as_one_that_does_not_open() {
        let told = |at, kind: io::ErrorKind| {
            let fault = SnapshotFault::Io { at, error: kind.into() };
            SnapshotReadError { name: "/x/s".to_owned(), fault }.to_string()
        };
        let kind = io::ErrorKind::NotFound;
        assert_eq!(told(0, kind), "cannot open snapshot /x/s: entity not found");
        let kind = io::ErrorKind::TimedOut;
        assert_eq!(told(1, kind), "snapshot /x/s: cannot read byte 1: timed out");
    }

    #[test]
    fn an_error_of_the_kernel_has_its_advice() {
        for (kind, advice) in [
            (io::ErrorKind::StorageFull, "free some space"),
            (io::ErrorKind::QuotaExceeded, "free some space"),
            (io::ErrorKind::FileTooLarge, "ulimit -f"),
            (io::ErrorKind::ReadOnlyFilesystem, "a writable path"),
            (io::ErrorKind::PermissionDenied, "must be writable"),
            (io::ErrorKind::NotFound, "create its directory"),
        ] {
            let error = SnapshotError::Create { path: "/x/s".into(), source: kind.into() };
            let told = error.to_string();
            assert!(told.starts_with("cannot create /x/s (") && told.contains(advice), "{told}");
        }
        let error = SnapshotError::Write { at: 5, source: io::ErrorKind::TimedOut.into() };
        assert_eq!(error.to_string(), "cannot write byte 5 of the snapshot");
    }
}
