//! Opens a file or block device as backing: checks, locks, marks and sizes it.
//!
//! ```text
//! block 0                                     block 1 ...
//! +-----------------+--------+- - - - - - - -+- - - - - - -
//! | mark (16 bytes) | remove |  zeros        |  block 0 of the backing
//! +-----------------+--------+- - - - - - - -+- - - - - - -
//! ```
//!
//! The mark says that the rest is worth nothing. Without it nothing is overwritten: neither a file
//! that is not empty nor a device, unless that is asked for.

use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use super::{BLOCK_SIZE, BackingError, block_bytes, zeroed_blocks};
use rustix::fs::OFlags;

use crate::files::{Contents, Place, check_private};
use crate::named_enum::named;
use crate::options::setters;
use uzswap_sys::files;

/// What block 0 begins with. The last byte is the version of this layout.
const MARK: &[u8; 16] = b"uzswap scratch\n\x01";

/// Where block 0 says whether the file is removed when its store ends.
const REMOVE_AT: usize = MARK.len();

/// Bytes before the first block of the backing.
pub(super) const HEADER_BYTES: u64 = BLOCK_SIZE as u64;

/// Blocks have numbers below this: 16 TiB.
const BLOCKS_MAX: u64 = u32::MAX as u64;

/// Tries to open a file that is replaced by others all the time.
const TRIES: usize = 10;

/// How long a store that was killed may have its file: the kernel ends what it has under way (of
/// io_uring) after the process is gone. A few milliseconds on a busy machine.
const IN_USE_FOR: Duration = Duration::from_millis(500);
const IN_USE_PAUSE: Duration = Duration::from_millis(5);

/// Whether to go past the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// Where the file system can.
    #[default]
    Auto,
    /// Or fail.
    Always,
    /// Through the page cache.
    Never,
}

named!(Direct, "direct I/O", Auto => "auto", Always => "always", Never => "never");

/// How blocks move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoMode {
    /// Between the device and our memory (`O_DIRECT`).
    Direct,
    /// Through the page cache, which then takes memory too.
    Buffered,
}

named!(IoMode, "I/O mode", Direct => "direct", Buffered => "buffered");

/// How the writes of a batch are handed to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submission {
    /// Many at once, through io_uring.
    Uring,
    /// From some threads.
    Threads,
    /// One after the other.
    Sequential,
}

named!(Submission, "submission",
    Uring => "uring", Threads => "threads", Sequential => "sequential");

/// The file or device to take as backing, and how.
#[non_exhaustive]
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct FileBackingOptions {
    /// A regular file, made if it is not there, or a block device. A file that is there must be of
    /// this user, with mode 0600 and one name. Symbolic links are followed, but for those of other
    /// users in a directory that every user can write.
    pub path: PathBuf,
    /// Bytes to take, at most 16 TiB, one block of them for the header. `None`: what the device
    /// has, or the file that is there.
    pub bytes: Option<u64>,
    /// Take the space of a file from the file system now, so that there is no surprise later.
    /// Where the file system cannot, the file is sparse ([`FileBacking::is_preallocated`]).
    ///
    /// [`FileBacking::is_preallocated`]: super::FileBacking::is_preallocated
    pub preallocate: bool,
    /// Give discarded blocks back to the file system or device. The next write there takes space
    /// again, and can meet a full disk even if the file was preallocated.
    pub punch: bool,
    /// Whether to go past the page cache.
    pub direct: Direct,
    /// How to hand over batches. `None`: direct I/O through io_uring, or from threads where that is
    /// forbidden; buffered I/O one after the other.
    pub submission: Option<Submission>,
    /// Writes in flight at once, 1 to 4096; threads are 8 at most.
    pub in_flight: usize,
    /// Leave the file there in the end. Without this, the file is removed if a store created it for
    /// removal: this store, or one that was killed.
    pub keep: bool,
    /// Take a device whatever is on it. Never applies to files.
    pub overwrite: bool,
}

setters!(
    FileBackingOptions,
    preallocate: bool,
    punch: bool,
    direct: Direct,
    submission: Option<Submission>,
    in_flight: usize,
    keep: bool,
    overwrite: bool,
);

impl FileBackingOptions {
    /// A file of `bytes`, preallocated, with direct I/O where that goes, 64 writes in flight;
    /// discarded blocks are given back; the file is removed in the end.
    pub fn new(path: impl Into<PathBuf>, bytes: Option<u64>) -> FileBackingOptions {
        FileBackingOptions {
            path: path.into(),
            bytes,
            preallocate: true,
            punch: true,
            direct: Direct::Auto,
            submission: None,
            in_flight: 64,
            keep: false,
            overwrite: false,
        }
    }
}

/// A file or device that is locked and marked as ours.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) file: File,
    /// Absolute.
    pub(super) path: PathBuf,
    pub(super) is_device: bool,
    /// Header and blocks.
    pub(super) bytes: u64,
    pub(super) io_mode: IoMode,
    pub(super) is_preallocated: bool,
    place: Place,
    remove: bool,
    /// The process that opened it: it alone removes it, and no child of it.
    opener: u32,
}

impl Scratch {
    pub(super) fn open(options: &FileBackingOptions) -> Result<Scratch, BackingError> {
        let path = std::path::absolute(&options.path)
            .map_err(BackingError::os(&options.path, "use this path"))?;
        let since = Instant::now();
        let (file, place, is_new) = loop {
            match open_locked(&path, options.bytes.is_some()) {
                Err(BackingError::InUse { .. }) if since.elapsed() < IN_USE_FOR => {
                    thread::sleep(IN_USE_PAUSE);
                }
                opened => break opened?,
            }
        };
        let fail = |action| BackingError::os(&path, action);
        let metadata = file.metadata().map_err(fail("read its metadata"))?;
        let is_device = metadata.file_type().is_block_device();
        // From here on a file that we made is removed if anything fails.
        let mut scratch = Scratch {
            file,
            path: path.clone(),
            is_device,
            bytes: metadata.len(),
            io_mode: IoMode::Buffered,
            is_preallocated: is_device,
            place,
            remove: is_new,
            opener: process::id(),
        };
        if is_device {
            let end = (&scratch.file).seek(SeekFrom::End(0)).map_err(fail("ask for its size"))?;
            scratch.bytes = end;
        }
        let mark = read_mark(&scratch.file).map_err(fail("read its first block"))?;
        if mark.is_none() && scratch.bytes > 0 && !(is_device && options.overwrite) {
            let kind = if is_device { "block device" } else { "file" };
            return Err(BackingError::NotScratch { path, kind });
        }
        check_private(&scratch.file).map_err(fail("take it"))?;
        let wanted = options.bytes.unwrap_or(scratch.bytes);
        let bytes = if is_device { wanted.min(scratch.bytes) } else { wanted };
        let blocks = (bytes / BLOCK_SIZE as u64).min(BLOCKS_MAX + 1);
        if blocks < 2 {
            return Err(BackingError::TooSmall { path, bytes });
        }
        scratch.bytes = blocks * BLOCK_SIZE as u64;
        let remove = !options.keep && (is_new || mark == Some(true));

        if !is_device {
            files::check_file_size(scratch.bytes).map_err(fail("make it so large"))?;
        }
        scratch.mark(options.direct, remove)?;
        if !is_device {
            scratch.resize(options.preallocate)?;
        }
        scratch.remove = remove;
        Ok(scratch)
    }

    /// Writes the header, and finds out whether direct I/O goes.
    fn mark(&mut self, direct: Direct, remove: bool) -> Result<(), BackingError> {
        let mut header = zeroed_blocks(1)?;
        header[0].0[..MARK.len()].copy_from_slice(MARK);
        header[0].0[REMOVE_AT] = u8::from(remove);
        if direct != Direct::Never {
            let tried = files::set_direct(&self.file, true)
                .and_then(|()| self.file.write_all_at(block_bytes(&header), 0));
            match tried {
                Ok(()) => {
                    self.io_mode = IoMode::Direct;
                    return Ok(());
                }
                Err(error) if !is_unsupported(&error) => return Err(self.unmarked(error)),
                Err(error) if direct == Direct::Always => {
                    return Err(BackingError::NoDirect { path: self.path.clone(), error });
                }
                // Where the flag could not be set, this changes nothing.
                Err(_) => files::set_direct(&self.file, false).map_err(|e| self.unmarked(e))?,
            }
        }
        self.file.write_all_at(block_bytes(&header), 0).map_err(|error| self.unmarked(error))
    }

    fn unmarked(&self, error: io::Error) -> BackingError {
        BackingError::os(&self.path, "write its header")(error)
    }

    /// Gives a file its length, and its space if that is wanted.
    fn resize(&mut self, preallocate: bool) -> Result<(), BackingError> {
        let fail = || BackingError::os(&self.path, "make it so large");
        if !preallocate {
            // Content of an earlier store takes space.
            self.file.set_len(HEADER_BYTES).map_err(fail())?;
        }
        self.file.set_len(self.bytes).map_err(fail())?;
        if preallocate {
            match files::allocate(&self.file, self.bytes) {
                Ok(()) => self.is_preallocated = true,
                Err(error) if is_unsupported(&error) => {}
                Err(error) => return Err(BackingError::os(&self.path, "preallocate it")(error)),
            }
        }
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let is_ours = self.remove && self.opener == process::id();
        // The target of a link stays.
        if is_ours && !self.place.was_link() && self.place.is_there(&self.file) {
            let _ = self.place.remove(); // nobody is left to be told
        }
    }
}

fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Errors of a kernel or file system that does not support the request.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS))
}

/// Opens and locks what is at `path`; whether it was made now.
fn open_locked(path: &Path, may_create: bool) -> Result<(File, Place, bool), BackingError> {
    let fail = |action| BackingError::os(path, action);
    for _ in 0..TRIES {
        let (file, place, is_new) = open_or_create(path, may_create)?;
        let ours = file.metadata().map_err(fail("read its metadata"))?;
        check_kind(path, &ours)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(BackingError::InUse { path: path.to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(fail("lock it")(error)),
        }
        // A store that ended may have removed it before we had the lock.
        if fs::metadata(path).is_ok_and(|there| is_same(&ours, &there)) {
            return Ok((file, place, is_new));
        }
    }
    Err(fail("open it")(io::Error::other("it is replaced all the time")))
}

fn open_or_create(path: &Path, may_create: bool) -> Result<(File, Place, bool), BackingError> {
    let fail = |action| BackingError::os(path, action);
    let place = match Place::of(path, Contents::Pages) {
        Ok(place) => place,
        // Where it is a directory, that is said below.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            return Err(BackingError::WrongKind { path: path.to_owned(), kind: "directory" });
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return Err(fail("take it")(error));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && !may_create => {
            return Err(BackingError::NoSize { path: path.to_owned() });
        }
        Err(error) => return Err(fail("create it")(error)),
    };
    if may_create && !place.was_link() {
        match place.create_new() {
            Ok(file) => return Ok((file, place, true)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(fail("create it")(error)),
        }
    }
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !may_create => {
            return Err(BackingError::NoSize { path: path.to_owned() });
        }
        Err(error) => return Err(fail("read its metadata")(error)),
    };
    // Before it is opened: that has effects on some devices.
    check_kind(path, &metadata)?;
    let exclusive = match metadata.file_type().is_block_device() {
        true => OFlags::EXCL, // neither mounted nor part of another device
        false => OFlags::empty(),
    };
    match place.open(OFlags::RDWR | exclusive) {
        Ok(file) => Ok((file, place, false)),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            Err(BackingError::InUse { path: path.to_owned() })
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(fail("take it")(error)),
        Err(error) => Err(fail("open it for reading and writing")(error)),
    }
}

fn check_kind(path: &Path, metadata: &fs::Metadata) -> Result<(), BackingError> {
    let file_type = metadata.file_type();
    let kind = match file_type {
        _ if file_type.is_file() || file_type.is_block_device() => return Ok(()),
        _ if file_type.is_dir() => "directory",
        _ if file_type.is_fifo() => "pipe",
        _ if file_type.is_socket() => "socket",
        _ => "character device",
    };
    Err(BackingError::WrongKind { path: path.to_owned(), kind })
}

/// Whether the file is marked as ours, and then whether its store was to remove it.
fn read_mark(file: &File) -> io::Result<Option<bool>> {
    let mut start = [0; REMOVE_AT + 1];
    match file.read_exact_at(&mut start, 0) {
        Ok(()) => Ok((start[..REMOVE_AT] == *MARK).then_some(start[REMOVE_AT] != 0)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}
