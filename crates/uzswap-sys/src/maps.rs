//! The PROCMAP_QUERY call on /proc/PID/maps: finds one mapping by its address without parsing text.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
struct QueryArgument {
    size: u64,
    query_flags: u64,
    query_address: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device_major: u32,
    device_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const READABLE: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const EXECUTABLE: u64 = 1 << 2;
const SHARED: u64 = 1 << 3;

/// Where no mapping covers the address, the next one is wanted.
const COVERING_OR_NEXT: u64 = 1 << 4;

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::Ioctl = libc::_IOWR::<QueryArgument>(b'f' as u32, 17);

const _: () = assert!(size_of::<QueryArgument>() == 104);

/// A mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// Its addresses, in bytes.
    pub range: Range<u64>,
    /// Of its file; 0 where it has none.
    pub inode: u64,
    /// Bytes of its name, with the 0 at its end; 0 where it has none, or none was asked for.
    pub name_bytes: usize,
    flags: u64,
}

impl Mapped {
    /// Its rights, as of mmap(2): `PROT_READ` and so on.
    pub fn rights(&self) -> u32 {
        (self.flags & (READABLE | WRITABLE | EXECUTABLE)) as u32 // the same bits
    }

    /// Whether it can be read.
    pub fn is_readable(&self) -> bool {
        self.flags & READABLE != 0
    }

    /// Whether it can be written.
    pub fn is_writable(&self) -> bool {
        self.flags & WRITABLE != 0
    }

    /// Whether it is shared with whoever else maps the same.
    pub fn is_shared(&self) -> bool {
        self.flags & SHARED != 0
    }

    /// Whether it is private, and cannot be touched: the guard of a thread's stack.
    pub fn is_guard(&self) -> bool {
        self.flags & (READABLE | WRITABLE | EXECUTABLE | SHARED) == 0
    }
}

/// The mapping that covers an address, or the next above it; `None` where there is none. `maps` is
/// an open /proc/PID/maps. Its name is put into `name`, where that is not empty.
///
/// # Errors
///
/// The kernel's error: `ENOTTY` before Linux 6.11, `ESRCH` where the process has ended,
/// `ENAMETOOLONG` where the name does not fit.
pub fn query(maps: &File, address: u64, name: &mut [u8]) -> io::Result<Option<Mapped>> {
    let mut argument = QueryArgument {
        size: size_of::<QueryArgument>() as u64,
        query_flags: COVERING_OR_NEXT,
        query_address: address,
        start: 0,
        end: 0,
        flags: 0,
        page_size: 0,
        offset: 0,
        inode: 0,
        device_major: 0,
        device_minor: 0,
        name_size: u32::try_from(name.len()).unwrap_or(u32::MAX),
        build_id_size: 0,
        // Not one without the other.
        name: if name.is_empty() { 0 } else { name.as_mut_ptr().expose_provenance() as u64 },
        build_id: 0,
    };
    // SAFETY: the argument has the kernel's layout (size asserted above) and names `name`, which is
    // borrowed mutably for the call; the kernel writes at most `name_size` bytes there.
    let done = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut argument) };
    if done == 0 {
        return Ok(Some(Mapped {
            range: argument.start..argument.end,
            inode: argument.inode,
            name_bytes: argument.name_size as usize,
            flags: argument.flags,
        }));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        error => Err(error),
    }
}
