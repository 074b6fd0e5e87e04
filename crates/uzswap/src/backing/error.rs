//! Why a backing could not be had.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::options::OptionError;

/// Why a file or device could not be taken as backing. What was there is as it was, unless it was
/// ours before.
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
        "{}: it is in use by another store or mount; each needs a backing of its own",
        path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It has content that is not ours.
    #[error(
        "{}: this {kind} has other content, which would be lost; {}", path.display(),
        if *kind == "block device" { "if it is to be, allow to overwrite it" }
        else { "choose another path, or remove it" }
    )]
    NotScratch {
        /// The file.
        path: PathBuf,
        /// "file" or "block device".
        kind: &'static str,
    },
    /// Neither a regular file nor a block device.
    #[error("{}: it is a {kind}; a backing is a file or a block device", path.display())]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// A new file needs a size.
    #[error("{}: there is no such file; give a size in bytes to make one", path.display())]
    NoSize {
        /// The file.
        path: PathBuf,
    },
    /// No room for one block.
    #[error(
        "{}: {bytes} bytes are too few: a backing has a header and blocks of 4096 bytes, at least \
         8192 bytes together", path.display()
    )]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// What there is, or was asked for.
        bytes: u64,
    },
    /// Direct I/O was asked for.
    #[error(
        "{}: no direct I/O here: {error}; allow the page cache, or choose another file system",
        path.display()
    )]
    NoDirect {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// No memory for a buffer.
    #[error("no memory for a block")]
    NoMemory(#[from] std::collections::TryReserveError),
}

impl BackingError {
    /// Turns an error of the kernel into one that says what was tried.
    pub(super) fn os(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> BackingError {
        move |error| BackingError::Os { path: path.to_owned(), action, error }
    }
}

/// What to do about an error of the kernel.
fn advice(error: &io::Error) -> &'static str {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::StorageFull => "; free some space, or ask for fewer bytes",
        Kind::QuotaExceeded => "; ask for fewer bytes, or for a larger quota",
        Kind::FileTooLarge => "; ask for fewer bytes, or raise the limit (ulimit -f)",
        Kind::ReadOnlyFilesystem => "; choose a path on a file system that can be written",
        Kind::NotFound => "; make the directory first, or choose another path",
        Kind::PermissionDenied => "; choose a path that this user may read and write",
        _ => "",
    }
}
