//! Data and holes of a file, and free space of its file system.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

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

/// Whether this process may have a file of so many bytes; to try it would end the process by a
/// signal (`SIGXFSZ`).
///
/// # Errors
///
/// `EFBIG` where its limit (`ulimit -f`) is lower.
pub fn check_file_size(bytes: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a structure of our own, which the call fills.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0 && limit.rlim_cur < bytes
    {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(())
}

/// Gives the first `bytes` of a file their place on the disk; the file grows to that.
///
/// # Errors
///
/// The kernel's: `ENOSPC` where there is no room, `EOPNOTSUPP` where the file system cannot.
pub fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    // The kernel takes all that is free before it says that this is not enough (ext4), and nobody
    // else can write until the file is gone.
    let taken = file.metadata()?.blocks().saturating_mul(STAT_BLOCK);
    if free_space(file)?.is_some_and(|free| bytes.saturating_sub(taken) > free) {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    fallocate(file, 0, 0, bytes)
}

/// Unit of the space of a file in `stat` (stat(2)), bytes.
const STAT_BLOCK: u64 = 512;

/// Free space of the file system of a file, including the share reserved for root, in bytes; `None`
/// if the file system does not report it.
fn free_space(file: &File) -> io::Result<Option<u64>> {
    let mut room = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the pointer is to a structure of our own, which the call fills; the descriptor is
    // open while `file` is borrowed.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), room.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: integers, which were zero and are what the call filled in.
    let room = unsafe { room.assume_init() };
    Ok((room.f_blocks > 0).then(|| room.f_bfree.saturating_mul(room.f_frsize)))
}

/// Gives a part of a file, or of a block device, back to where it is from; it reads as zeros then.
/// The size stays.
///
/// # Errors
///
/// The kernel's: `EOPNOTSUPP` where the file system or the device cannot.
pub fn punch_hole(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, bytes)
}

fn fallocate(file: &File, mode: libc::c_int, offset: u64, bytes: u64) -> io::Result<()> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    let bytes = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    loop {
        // SAFETY: takes numbers and touches no memory; the descriptor is open while `file` is
        // borrowed.
        if unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Makes transfers go past the page cache, or through it.
///
/// # Errors
///
/// The kernel's: `EINVAL` where the file system cannot.
pub fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    // SAFETY: reads the descriptor's flags; no pointers are passed.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = if direct { flags | libc::O_DIRECT } else { flags & !libc::O_DIRECT };
    // SAFETY: sets the descriptor's flags; no pointers are passed.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_disk_has_no_room_for_takes_none_of_it() {
        let file = tempfile::tempfile().unwrap();
        let free = free_space(&file).unwrap().expect("a file system with a size");
        let error = allocate(&file, free + (1 << 30)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.blocks(), metadata.len()), (0, 0), "not even tried");
    }
}
