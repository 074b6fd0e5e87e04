//! Where a file has data and where it has holes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Where the next data at or after `offset` begins, in bytes; `None` when only a hole follows.
/// A file system that does not know says that all is data.
///
/// # Errors
///
/// The kernel's error; `ESPIPE` for what is not a seekable file.
pub fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(file, offset, libc::SEEK_DATA) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        found => found.map(Some),
    }
}

/// Where the next hole after `offset`, which is inside the file, begins; the end of the file counts
/// as one. In bytes.
///
/// # Errors
///
/// The kernel's error; `ENXIO` for an offset after the end.
pub fn next_hole(file: &File, offset: u64) -> io::Result<u64> {
    seek(file, offset, libc::SEEK_HOLE)
}

fn seek(file: &File, offset: u64, whence: libc::c_int) -> io::Result<u64> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: takes numbers and touches no memory; the descriptor is open while `file` is borrowed.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}
