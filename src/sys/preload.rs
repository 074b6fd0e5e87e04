//! The library that goes into the programs of `uzswap run`, and the memory that its helper shares
//! with the supervisor.

#[path = "../../preload/src/protocol.rs"]
pub mod protocol;

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::ptr::NonNull;

use protocol::Control;

/// The library, a shared object. Empty on a machine it is not made for.
pub static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libuzswap_preload.so"));

/// A [`Control`] in memory that can be sent to another process: its file is sent.
#[derive(Debug)]
pub struct SharedControl {
    file: File,
    control: NonNull<Control>,
}

// SAFETY: what it points to is atomics alone.
unsafe impl Send for SharedControl {}
// SAFETY: as above.
unsafe impl Sync for SharedControl {}

impl SharedControl {
    /// New memory, all zero.
    ///
    /// # Errors
    ///
    /// The kernel's, of memfd_create(2), ftruncate(2) or mmap(2).
    pub fn new() -> io::Result<SharedControl> {
        // SAFETY: the name is a string of C, and the call makes a new descriptor.
        let fd = unsafe { libc::memfd_create(c"uzswap-control".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: nobody else has this descriptor.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(size_of::<Control>() as u64)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (bytes, null) = (size_of::<Control>(), std::ptr::null_mut());
        // SAFETY: a new mapping, where the kernel finds room.
        let mapped =
            unsafe { libc::mmap(null, bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        match NonNull::new(mapped.cast()) {
            Some(control) if mapped != libc::MAP_FAILED => Ok(SharedControl { file, control }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Deref for SharedControl {
    type Target = Control;

    fn deref(&self) -> &Control {
        // SAFETY: mapped, of this size, until this is dropped; all zero is a Control, and so is
        // whatever others write, for every bit pattern is an integer. Access is atomic.
        unsafe { self.control.as_ref() }
    }
}

impl AsFd for SharedControl {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedControl {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody has a reference to any more.
        unsafe { libc::munmap(self.control.as_ptr().cast(), size_of::<Control>()) };
    }
}
