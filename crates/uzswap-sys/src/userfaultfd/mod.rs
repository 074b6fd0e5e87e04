//! userfaultfd, for the side that holds the descriptors: serves page faults of another process.
//!
//! A process makes a descriptor for its own memory ([`create`]) and sends it to a *supervisor*,
//! which asks for [`Features`], registers ranges, reads [`Event`]s and fills pages in.
//!
//! # Whose memory
//!
//! Nothing of another process's memory is a value of this one, so all of [`Userfaultfd`] is safe,
//! whatever the addresses. A descriptor of one's own memory is as `/proc/self/mem`: who opens that
//! and writes to it, or gives it to [`Userfaultfd::from_fd`], is outside of what Rust calls safe.
//! [`OwnMemory`] is the safe way to try things out in one process: its userfaultfd refuses
//! addresses that are not in a mapping of its own.

mod abi;
mod message;
mod own;

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::foreign::Foreign;

pub use abi::Features;
pub use message::{Event, Message};
pub use own::OwnMemory;

/// The device that makes userfaultfds, for whoever may open it (Linux 6.1).
pub const DEVICE: &str = "/dev/userfaultfd";

/// A userfaultfd of this process's memory, non-blocking and closed on exec: by the system call, or
/// else by [`DEVICE`].
///
/// With `user_mode_only` it serves no faults that the kernel takes, as in read(2): they fail with
/// `EFAULT`.
///
/// # Errors
///
/// The error of the system call, if both are refused. `EPERM`: no `CAP_SYS_PTRACE` and
/// `vm.unprivileged_userfaultfd` is 0; `ENOSYS`: the kernel has none; `EINVAL`: `user_mode_only`
/// before Linux 5.11; or `EMFILE`.
pub fn create(user_mode_only: bool) -> io::Result<OwnedFd> {
    create_by_syscall(user_mode_only).or_else(|refused| {
        let device = File::options().read(true).write(true).open(DEVICE);
        device.and_then(|device| create_by_device(&device, user_mode_only)).map_err(|_| refused)
    })
}

/// As [`create`], by the system call alone.
///
/// # Errors
///
/// As [`create`].
pub fn create_by_syscall(user_mode_only: bool) -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags, no pointers, and makes a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags(user_mode_only)) };
    owned(fd as RawFd) // a file descriptor or -1
}

/// As [`create`], by [`DEVICE`], which is open for reading and writing. The memory is that of the
/// caller, whoever opened the device.
///
/// # Errors
///
/// The kernel's error: `ENOTTY` if `device` is something else, `EMFILE`.
pub fn create_by_device(device: &File, user_mode_only: bool) -> io::Result<OwnedFd> {
    // SAFETY: the request takes flags, no pointers, and makes a new descriptor.
    owned(unsafe { libc::ioctl(device.as_raw_fd(), abi::NEW, flags(user_mode_only)) })
}

fn flags(user_mode_only: bool) -> libc::c_int {
    let user_mode_only = if user_mode_only { abi::USER_MODE_ONLY } else { 0 };
    libc::O_CLOEXEC | libc::O_NONBLOCK | user_mode_only
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made by the caller, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Why pages were not filled in, or not all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("userfaultfd: after {done} bytes: {}", io::Error::from_raw_os_error(*errno))]
pub struct Stopped {
    /// Bytes done before: whole pages, from the start.
    pub done: u64,
    /// The kernel's error. `EAGAIN` with `done` above 0: the call for the rest returns the reason.
    /// `EAGAIN` with 0: the memory changes; read the messages first. `EEXIST`: the page is present.
    /// After a move it may be one of those that Linux 6.18 moved and did not count, which are no
    /// longer at their old place (`tests/userfaultfd.rs`). `ENOENT`: it is not registered, or the
    /// range crosses the border of a mapping. `ESRCH`: the process has ended.
    pub errno: i32,
}

/// How [`Userfaultfd::move_pages`] moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MoveFlags {
    /// Wakes who waits for the pages.
    pub wake: bool,
    /// Skips source pages that are not there, instead of `ENOENT`.
    pub allow_holes: bool,
}

/// The supervisor's end. Addresses are bytes in the address space of the process that made it;
/// ranges are whole pages, and cross no border between mappings.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
    /// The addresses it may be used for: all of another process's.
    within: Range<u64>,
}

impl Userfaultfd {
    /// Of a descriptor that another process made and sent.
    pub fn from_fd(fd: OwnedFd) -> Userfaultfd {
        Userfaultfd { fd, within: 0..u64::MAX }
    }

    /// As [`from_fd`](Userfaultfd::from_fd), of a process that is not trusted: by the kernel's word
    /// it is a userfaultfd, and no device that would take its requests for something else.
    ///
    /// # Errors
    ///
    /// `InvalidData` where it is something else; those of readlink(2).
    pub fn from_stranger(fd: Foreign) -> io::Result<Userfaultfd> {
        let told = fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))?;
        match told.as_os_str() == "anon_inode:[userfaultfd]" {
            true => Ok(Userfaultfd::from_fd(fd.into_inner())),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Asks for features, before anything else and once: whoever only wants to know what there is
    /// asks for [`Features::NONE`], of a descriptor that is good for nothing else. Returns what the
    /// kernel has, whatever was asked for.
    ///
    /// # Errors
    ///
    /// The kernel's error: `EINVAL` for a feature that it has not or a second call, `EPERM` for
    /// [`EVENT_FORK`](Features::EVENT_FORK) where *this* process lacks `CAP_SYS_PTRACE`.
    pub fn api(&self, features: Features) -> io::Result<Features> {
        let mut api = abi::Api { api: abi::API_VERSION, features: features.0, ioctls: 0 };
        self.request(abi::API, &mut api)?;
        Ok(Features(api.features))
    }

    /// Requests faults of `range`: of pages that are `missing`, and writes to pages under write
    /// protection (`wp`).
    ///
    /// # Errors
    ///
    /// The kernel's error: `EINVAL` for other memory than it takes, or none; `EBUSY` where another
    /// userfaultfd has it, `ESRCH`.
    pub fn register(&self, range: Range<u64>, missing: bool, wp: bool) -> io::Result<()> {
        let missing = if missing { abi::REGISTER_MISSING } else { 0 };
        let mode = missing | if wp { abi::REGISTER_WP } else { 0 };
        self.request(
            abi::REGISTER,
            &mut abi::Register { range: self.range(range)?, mode, ioctls: 0 },
        )
    }

    /// Ends what [`register`](Userfaultfd::register) began, and wakes who waits there: missing
    /// pages are zero from now on, protection is off.
    ///
    /// # Errors
    ///
    /// The kernel's error: `EINVAL` where nothing is mapped, `ESRCH`.
    pub fn unregister(&self, range: Range<u64>) -> io::Result<()> {
        let mut range = self.range(range)?;
        self.request(abi::UNREGISTER, &mut range)
    }

    /// Fills missing pages at `to` with whole pages of `bytes`; with `wp` they are write-protected
    /// from the start.
    ///
    /// # Errors
    ///
    /// [`Stopped`].
    pub fn copy(&self, to: u64, bytes: &[u8], wake: bool, wp: bool) -> Result<(), Stopped> {
        let len = bytes.len() as u64;
        self.check(to, len)?;
        let from = bytes.as_ptr().expose_provenance() as u64;
        let mode = dontwake(wake) | if wp { abi::COPY_WP } else { 0 };
        let mut copy = abi::Transfer { to, from, len, mode, done: 0 };
        let result = self.request(abi::COPY, &mut copy);
        stopped(result, copy.done)
    }

    /// Fills missing pages with zeros, at no memory until they are written.
    ///
    /// # Errors
    ///
    /// [`Stopped`].
    pub fn zeropage(&self, range: Range<u64>, wake: bool) -> Result<(), Stopped> {
        self.fill(abi::ZEROPAGE, range, wake)
    }

    /// Makes a touch of missing pages end with `SIGBUS`, and ends the write protection of the
    /// range: the kernel poisons no entry with a marker.
    ///
    /// # Errors
    ///
    /// [`Stopped`]; `EINVAL` before Linux 6.6.
    pub fn poison(&self, range: Range<u64>, wake: bool) -> Result<(), Stopped> {
        let _ = self.write_unprotect(range.clone(), false); // it may not be registered for that
        self.fill(abi::POISON, range, wake)
    }

    fn fill(&self, request: libc::Ioctl, range: Range<u64>, wake: bool) -> Result<(), Stopped> {
        let range = self.range(range).map_err(|error| nothing_done(&error))?;
        let mut fill = abi::Fill { range, mode: dontwake(wake), done: 0 };
        let result = self.request(request, &mut fill);
        stopped(result, fill.done)
    }

    /// Moves pages to missing ones at `to`, without a copy. Those at `from` are missing then.
    ///
    /// Only in the process's own memory: the caller must be that process.
    ///
    /// # Errors
    ///
    /// [`Stopped`]. `EBUSY`: the page is pinned or shared with a forked process; `ENOENT`: it is
    /// not present; `EINVAL`: Linux before 6.8, another process, or two mappings that differ.
    pub fn move_pages(
        &self,
        to: u64,
        from: u64,
        len: u64,
        flags: MoveFlags,
    ) -> Result<(), Stopped> {
        self.check(to, len)?;
        self.check(from, len)?;
        let holes = if flags.allow_holes { abi::MOVE_ALLOW_SRC_HOLES } else { 0 };
        let mode = dontwake(flags.wake) | holes;
        let mut pages = abi::Transfer { to, from, len, mode, done: 0 };
        let result = self.request(abi::MOVE, &mut pages);
        stopped(result, pages.done)
    }

    /// Protects pages from writes.
    ///
    /// # Errors
    ///
    /// The kernel's error: `ENOENT` where it is not registered for this, `EAGAIN` while the memory
    /// changes (read the messages first), `ESRCH`.
    pub fn write_protect(&self, range: Range<u64>) -> io::Result<()> {
        self.set_protection(range, abi::WRITEPROTECT_WP)
    }

    /// Lets pages be written again.
    ///
    /// # Errors
    ///
    /// As [`Userfaultfd::write_protect`].
    pub fn write_unprotect(&self, range: Range<u64>, wake: bool) -> io::Result<()> {
        self.set_protection(range, if wake { 0 } else { abi::WRITEPROTECT_DONTWAKE })
    }

    fn set_protection(&self, range: Range<u64>, mode: u64) -> io::Result<()> {
        let range = self.range(range)?;
        self.request(abi::WRITEPROTECT, &mut abi::WriteProtect { range, mode })
    }

    /// Whether the memory was changed in a way that a message tells which was not read yet. A copy
    /// of nothing is refused for that before it is for anything else.
    pub fn is_changing(&self) -> bool {
        let mut copy = abi::Transfer { to: 0, from: 0, len: 0, mode: 0, done: 0 };
        let told = self.request(abi::COPY, &mut copy);
        told.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN))
    }

    /// Whether the memory is gone: nobody has it any more.
    pub fn is_memory_gone(&self) -> bool {
        // Nothing is mapped so low; `ENOMEM` is said of memory that is gone.
        const LOW: Range<u64> = 0x1_0000..0x1_1000;
        let asked = self.unregister(LOW);
        asked.is_err_and(|error| error.raw_os_error() == Some(libc::ENOMEM))
    }

    /// Has those who wait for pages of `range` look again.
    ///
    /// # Errors
    ///
    /// The kernel's error: `EINVAL` for a range that is not whole pages.
    pub fn wake(&self, range: Range<u64>) -> io::Result<()> {
        let mut range = self.range(range)?;
        self.request(abi::WAKE, &mut range)
    }

    /// Reads messages into the start of `room`, and drops what was there; how many. Takes no
    /// memory, and does not wait, even where a process that has the descriptor too has set it to
    /// block. (An older kernel that knows no `RWF_NOWAIT` here would wait then.)
    ///
    /// # Errors
    ///
    /// The kernel's error: `EAGAIN` ([`WouldBlock`](io::ErrorKind::WouldBlock)) where there is
    /// none, `EINVAL` before [`api`](Userfaultfd::api), `EMFILE` where no descriptor is left for
    /// that of a forked child.
    pub fn read(&self, room: &mut [Message]) -> io::Result<usize> {
        for message in room.iter_mut() {
            drop(message.take()); // may own a descriptor
        }
        let part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: size_of_val(room) };
        let read = |flags| {
            // SAFETY: `room` is borrowed mutably for the call, which writes at most its bytes; all
            // that the kernel puts there is a message.
            let read = unsafe { libc::preadv2(self.fd.as_raw_fd(), &raw const part, 1, -1, flags) };
            usize::try_from(read).map_err(|_| io::Error::last_os_error())
        };
        let read = match read(libc::RWF_NOWAIT) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => read(0),
            done => done,
        };
        Ok(read? / size_of::<Message>())
    }

    /// A request about the memory that it was made for.
    fn request<T>(&self, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: each request is given with the structure of its number, which has the size in it,
        // borrowed mutably for the call. The request changes memory of another process, or memory
        // without references (checked by the caller). The `bytes` of a copy are borrowed by the
        // caller and only read.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), request, std::ptr::from_mut(argument)) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    fn range(&self, range: Range<u64>) -> io::Result<abi::AddressRange> {
        let len = range.end.checked_sub(range.start);
        let len = len.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        self.check(range.start, len)
            .map_err(|stopped| io::Error::from_raw_os_error(stopped.errno))?;
        Ok(abi::AddressRange { start: range.start, len })
    }

    /// Whether it may be used for these addresses.
    fn check(&self, start: u64, len: u64) -> Result<(), Stopped> {
        let end = start.checked_add(len);
        match end {
            Some(end) if start >= self.within.start && end <= self.within.end => Ok(()),
            _ => Err(Stopped { done: 0, errno: libc::EFAULT }),
        }
    }
}

fn dontwake(wake: bool) -> u64 {
    if wake { 0 } else { abi::DONTWAKE }
}

fn nothing_done(error: &io::Error) -> Stopped {
    Stopped { done: 0, errno: error.raw_os_error().unwrap_or(libc::EINVAL) }
}

/// Result of a request that fills pages: `done` is what the kernel wrote.
fn stopped(result: io::Result<()>, done: i64) -> Result<(), Stopped> {
    result.map_err(|error| Stopped { done: done.try_into().unwrap_or(0), ..nothing_done(&error) })
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
