//! Private mounts of this process: the kernel removes them with the last process that sees them.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Gives this thread, and all that it starts from now on, a mount table of its own. No other
/// process sees its mounts, and the kernel removes them with the last process of the table.
///
/// # Errors
///
/// The kernel's: `EPERM` without CAP_SYS_ADMIN.
pub fn have_own() -> io::Result<()> {
    // SAFETY: no pointers are passed; other threads keep the mount table that they have.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    mount(c"none", c"/", None, libc::MS_REC | libc::MS_PRIVATE, c"")
}

/// How a tmpfs is made.
#[derive(Debug, Clone, Copy)]
pub struct TmpfsOptions {
    /// The most that it may hold.
    pub bytes: u64,
    /// Whether the kernel may swap its pages, which is the kernel's default.
    pub swapped: bool,
}

/// A tmpfs at a folder, until it is dropped.
#[derive(Debug)]
pub struct Tmpfs {
    path: PathBuf,
    swapped: bool,
}

impl Tmpfs {
    /// Mounts one. Where the kernel does not know how not to swap it (before 6.4), it is swapped.
    ///
    /// # Errors
    ///
    /// The kernel's: `EPERM` without CAP_SYS_ADMIN.
    pub fn mount(path: &Path, options: &TmpfsOptions) -> io::Result<Tmpfs> {
        let at = CString::new(path.as_os_str().as_bytes())?;
        let size = format!("size={}", options.bytes);
        let with = |data: &str| mount(c"tmpfs", &at, Some(c"tmpfs"), 0, &CString::new(data)?);
        let mut swapped = options.swapped;
        if swapped {
            with(&size)?;
        } else if let Err(error) = with(&format!("{size},noswap")) {
            if error.raw_os_error() != Some(libc::EINVAL) {
                return Err(error);
            }
            with(&size)?;
            swapped = true;
        }
        Ok(Tmpfs { path: path.to_owned(), swapped })
    }

    /// Whether the kernel may swap its pages.
    pub fn is_swapped(&self) -> bool {
        self.swapped
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let Ok(path) = CString::new(self.path.as_os_str().as_bytes()) else { return };
        // The kernel frees it when no process uses it any more.
        // SAFETY: the pointer is to a string that lives until after the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn mount(
    source: &CStr,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    data: &CStr,
) -> io::Result<()> {
    let kind = kind.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the pointers are to strings that live until after the call, or null where that says
    // "none".
    let result =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind, flags, data.as_ptr().cast()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
