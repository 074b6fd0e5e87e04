//! Why a backing could not be had.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::options::OptionError;

/// Why a file or device could not be taken as backing. The file is unchanged, unless it was ours
/// before.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum BackingError {
    /// An option is out of its range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The kernel refused.
    #[error("{}: cannot {action}: {error}{}", path.display(), advice(error))]
    Os {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
    /// Somebody else has it.
    #[error(
        "{}: in use by another store or mount; choose another backing",
        path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file has content that is not ours.
    #[error(
        "{}: this {kind} has other content, which a backing would overwrite; {}", path.display(),
        if *kind == "block device" { "allow that with the overwrite option, or choose another \
                                      device" }
        else { "choose another path, or remove it" }
    )]
    NotScratch {
        /// The file.
        path: PathBuf,
        /// "file" or "block device".
        kind: &'static str,
    },
    /// Neither a regular file nor a block device.
    #[error("{}: is a {kind}; a backing is a regular file or a block device", path.display())]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// A new file needs a size.
    #[error("{}: no such file; give a size in bytes to create it", path.display())]
    NoSize {
        /// The file.
        path: PathBuf,
    },
    /// No room for one block.
    #[error(
        "{}: {bytes} bytes are too few; a backing needs 8192 bytes at least (a header and one \
         block)", path.display()
    )]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Its size, or the size asked for.
        bytes: u64,
    },
    /// Direct I/O was asked for.
    #[error(
        "{}: direct I/O is not possible: {error}; allow the page cache, or choose another file \
         system",
        path.display()
    )]
    NoDirect {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// No memory for a buffer.
    #[error("cannot allocate memory for a block")]
    NoMemory(#[from] std::collections::TryReserveError),
}

impl BackingError {
    /// Turns an error of the kernel into one that says what was tried.
    pub(super) fn os(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> BackingError {
        move |error| BackingError::Os { path: path.to_owned(), action, error }
    }
}

/// Advice for an error of the kernel.
fn advice(error: &io::Error) -> &'static str {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::StorageFull => "; free some space, or ask for fewer bytes",
        Kind::QuotaExceeded => "; ask for fewer bytes, or for a larger quota",
        Kind::FileTooLarge => "; ask for fewer bytes, or raise the limit (ulimit -f)",
        Kind::ReadOnlyFilesystem => "; choose a path on a writable file system",
        Kind::NotFound => "; create the directory first, or choose another path",
        Kind::PermissionDenied => "; choose a path that this user can read and write",
        _ => "",
    }
}
