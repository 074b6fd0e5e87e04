//! The preload library as bytes, and the memory that its helper shares with the supervisor.

#![allow(unsafe_code, reason = "memory that two processes share")]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod protocol;
mod stub;

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;

use protocol::Control;

pub use stub::STUB_32;

/// The library, a shared object. Empty on a machine it is not made for.
pub static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libuzswap_preload.so"));

/// A [`Control`] in memory that another process maps as well. Its size is sealed: whatever that
/// process does to the file, no access here ends with SIGBUS.
#[derive(Debug)]
pub struct SharedControl {
    control: NonNull<Control>,
}

// SAFETY: what it points to is atomics alone.
unsafe impl Send for SharedControl {}
// SAFETY: as above.
unsafe impl Sync for SharedControl {}

impl SharedControl {
    /// New memory, all zero, and its file, for the other process.
    ///
    /// # Errors
    ///
    /// The kernel's, of memfd_create(2), ftruncate(2), fcntl(2) or mmap(2).
    pub fn new() -> io::Result<(SharedControl, File)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_NOEXEC_SEAL;
        // SAFETY: the name is a string of C, and the call makes a new descriptor.
        let fd = unsafe { libc::memfd_create(c"uzswap-control".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: nobody else has this descriptor.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(size_of::<Control>() as u64)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: sets seals of a file of ours; no pointers are passed.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (bytes, null) = (size_of::<Control>(), std::ptr::null_mut());
        // SAFETY: a new mapping, where the kernel finds room.
        let mapped =
            unsafe { libc::mmap(null, bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        match NonNull::new(mapped.cast()) {
            Some(control) if mapped != libc::MAP_FAILED => Ok((SharedControl { control }, file)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Deref for SharedControl {
    type Target = Control;

    fn deref(&self) -> &Control {
        // SAFETY: mapped with this size until this is dropped, and the file is sealed against
        // shrinking. All zero is a valid Control, and so is any other content, because every bit
        // pattern is an integer. Access is atomic.
        unsafe { self.control.as_ref() }
    }
}

impl Drop for SharedControl {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody has a reference to any more.
        unsafe { libc::munmap(self.control.as_ptr().cast(), size_of::<Control>()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn the_other_side_cannot_take_the_memory_away() {
        let (control, file) = SharedControl::new().unwrap();
        let bytes = size_of::<Control>() as u64;
        for size in [0, bytes - 1, bytes + 1] {
            assert_eq!(file.set_len(size).unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        // SAFETY: asks for seals of a file of ours; no pointers are passed.
        let sealed =
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) };
        assert_eq!(sealed, -1);
        control.work.store(7, Ordering::Relaxed);
        assert_eq!(control.work.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn the_helper_calls_no_function_of_the_program() {
        let asks_for = |name: &[u8]| LIBRARY.windows(name.len()).any(|part| part == name);
        assert!(asks_for(b"\0__errno_location\0"), "how names are told has changed");
        for name in [
            &b"\0memcpy\0"[..],
            b"\0memset\0",
            b"\0memmove\0",
            b"\0memcmp\0",
            b"\0bcmp\0",
            b"\0strlen\0",
        ] {
            assert!(!asks_for(name), "{}", String::from_utf8_lossy(name));
        }
    }
}
