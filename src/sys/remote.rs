//! The memory of another process.

use std::io;

/// Reads memory of a process into `bytes`, all of it.
///
/// # Errors
///
/// The kernel's error: `ESRCH` where there is no such process, `EPERM` where it may not be read,
/// `EFAULT` for memory that is not there; `UnexpectedEof` where a part of it is not.
pub fn read(pid: u32, address: u64, bytes: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address as usize),
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel writes into `bytes`, which is borrowed mutably for the call; `remote` is
    // an address of the other process.
    let read = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
    match usize::try_from(read) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(read) if read < bytes.len() => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read() {
        let (from, mut to) = ([7_u8; 100], [0_u8; 100]);
        read(std::process::id(), from.as_ptr().addr() as u64, &mut to).unwrap();
        assert_eq!(from, to);
        assert!(read(std::process::id(), 0, &mut to).is_err());
    }
}
