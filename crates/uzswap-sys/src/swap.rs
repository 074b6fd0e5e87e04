//! Swap areas, loop devices, and a file of the kernel that is read into another file.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use super::pages::HOST_PAGE_SIZE;

/// The highest priority of a swap area: the kernel fills it before all others (swapon(2)).
pub const HIGHEST_PRIORITY: u16 = 32767;

// Of linux/swap.h.
const SWAP_FLAG_PREFER: libc::c_int = 0x8000;
const SWAP_FLAG_DISCARD: libc::c_int = 0x10000;
const SWAP_FLAG_DISCARD_PAGES: libc::c_int = 0x40000;

// Of linux/loop.h.
const LOOP_SET_FD: libc::Ioctl = 0x4C00;
const LOOP_CLR_FD: libc::Ioctl = 0x4C01;
const LOOP_CTL_ADD: libc::Ioctl = 0x4C80;
const LOOP_CTL_REMOVE: libc::Ioctl = 0x4C81;

/// Loop devices have numbers below this (`MINORBITS` of linux/kdev_t.h).
pub const LOOP_NUMBER_END: u32 = 1 << 20;

/// Turns a swap area on. With `discard` the kernel tells the device which pages are free again.
///
/// # Errors
///
/// The kernel's: `EPERM` without CAP_SYS_ADMIN, `EINVAL` where there is no swap header, `EBUSY`
/// where it is on already.
///
/// # Panics
///
/// If the priority is higher than [`HIGHEST_PRIORITY`].
pub fn swap_on(path: &Path, priority: u16, discard: bool) -> io::Result<()> {
    assert!(priority <= HIGHEST_PRIORITY, "priority {priority}");
    let discard = if discard { SWAP_FLAG_DISCARD | SWAP_FLAG_DISCARD_PAGES } else { 0 };
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = SWAP_FLAG_PREFER | libc::c_int::from(priority) | discard;
    // SAFETY: the path ends with NUL and lives as long as the call.
    done(unsafe { libc::swapon(path.as_ptr(), flags) })
}

/// Turns a swap area off, which brings its pages back into memory.
///
/// # Errors
///
/// The kernel's: `ENOMEM` where the pages do not fit, `EINVAL` where it is not on.
pub fn swap_off(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    loop {
        // SAFETY: the path ends with NUL and lives as long as the call.
        match done(unsafe { libc::swapoff(path.as_ptr()) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Makes the loop device with this number; `control` is an open /dev/loop-control.
///
/// # Errors
///
/// The kernel's: `EEXIST` where there is one.
pub fn loop_add(control: &File, number: u32) -> io::Result<()> {
    loop_call(control, LOOP_CTL_ADD, number.into())
}

/// Removes a loop device, which must have no file; `control` is an open /dev/loop-control.
///
/// # Errors
///
/// The kernel's: `ENODEV` where there is none, `EBUSY` where it is in use.
pub fn loop_remove(control: &File, number: u32) -> io::Result<()> {
    loop_call(control, LOOP_CTL_REMOVE, number.into())
}

/// Attaches a file to a loop device; both are open for reading and writing.
///
/// # Errors
///
/// The kernel's: `EBUSY` where the device has a file.
pub fn loop_attach(device: &File, backing: &File) -> io::Result<()> {
    loop_call(device, LOOP_SET_FD, i64::from(backing.as_raw_fd()))
}

/// Detaches the file from a loop device: at once, or when the last process closes the device.
///
/// # Errors
///
/// The kernel's: `ENXIO` where it has no file.
pub fn loop_detach(device: &File) -> io::Result<()> {
    loop_call(device, LOOP_CLR_FD, 0)
}

fn loop_call(file: &File, call: libc::Ioctl, argument: i64) -> io::Result<()> {
    // SAFETY: these calls take a number and touch no memory; the descriptor is open.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), call, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads at most `length` bytes of `source` straight into `target` from byte `at` on, by one
/// read(2). The target's page is mapped and resident, so the kernel itself copies into the file.
/// The kernel acts on SIGKILL when the call returns. By then the bytes are in the file.
///
/// # Errors
///
/// The kernel's; `InvalidInput` where the target does not reach `at + length`, or where that is on
/// two pages.
pub fn read_into(source: &File, target: &File, at: u64, length: usize) -> io::Result<usize> {
    let page = at / HOST_PAGE_SIZE as u64 * HOST_PAGE_SIZE as u64;
    let offset = (at - page) as usize; // below a page
    if offset + length > HOST_PAGE_SIZE || target.metadata()?.len() < at + length as u64 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mapped = FilePage::map(target, page)?;
    mapped.populate()?;
    let place = mapped.0.cast::<u8>().wrapping_add(offset);
    // SAFETY: the place is inside of the mapped page, which nothing else in this process refers to.
    let got = unsafe { libc::read(source.as_raw_fd(), place.cast(), length) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// A page of a file, mapped.
struct FilePage(*mut libc::c_void);

impl FilePage {
    fn map(file: &File, at: u64) -> io::Result<FilePage> {
        let at = libc::off_t::try_from(at).map_err(io::Error::other)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                HOST_PAGE_SIZE,
                access,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                at,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(FilePage(address))
    }

    /// Makes the page resident and writable: what is in it stays.
    fn populate(&self) -> io::Result<()> {
        let bytes = self.0.cast::<u8>();
        // SAFETY: the first byte of the mapped page; the file has that byte.
        let first = unsafe { bytes.read_volatile() };
        // SAFETY: as above; the page is writable.
        unsafe { bytes.write_volatile(first) };
        // SAFETY: the range is the mapped page.
        done(unsafe { libc::mlock(self.0, HOST_PAGE_SIZE) })
    }
}

impl Drop for FilePage {
    fn drop(&mut self) {
        // SAFETY: it came from mmap, and nothing refers to it any more.
        unsafe { libc::munmap(self.0, HOST_PAGE_SIZE) };
    }
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};

    #[test]
    fn a_file_is_read_into_another() {
        let mut source = tempfile::tempfile().unwrap();
        source.write_all(b"17\n").unwrap();
        source.seek(SeekFrom::Start(0)).unwrap();
        let mut target = tempfile::NamedTempFile::new().unwrap();
        let blank = [b' '; 5000];
        target.write_all(&blank).unwrap();
        assert_eq!(read_into(&source, target.as_file(), 4500, 16).unwrap(), 3);
        let text = std::fs::read(target.path()).unwrap();
        assert_eq!(&text[4499..4504], b" 17\n ");
        assert_eq!(text.len(), 5000);
        for (at, length) in [(4090, 16), (4990, 16)] {
            let error = read_into(&source, target.as_file(), at, length).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{at}");
        }
    }

    #[test]
    fn an_area_that_is_none_is_an_error() {
        let none = Path::new("/no/such/area");
        assert!(swap_on(none, 1, false).is_err());
        assert!(swap_off(none).is_err());
    }
}
