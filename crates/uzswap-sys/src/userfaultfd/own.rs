//! Memory of this process with a userfaultfd, to try out what the kernel does.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use super::Userfaultfd;
use crate::pages::{HOST_PAGE_SIZE, PageRun};

/// Pages that only this type reaches, by single bytes read and written as atomics: so the kernel
/// may change them meanwhile at the request of another thread.
///
/// A thread that touches a registered page waits for whoever reads the userfaultfd. One that
/// discards, replaces, moves or forks waits as well where the event was asked for.
pub struct OwnMemory {
    /// First, so that it is closed before the pages go and sends no event.
    uffd: Userfaultfd,
    pages: PageRun,
}

impl OwnMemory {
    /// `count` pages, none of them there yet, with the userfaultfd `fd` from
    /// [`create`](super::create).
    ///
    /// # Errors
    ///
    /// As [`PageRun::map`].
    pub fn new(fd: OwnedFd, count: usize) -> io::Result<OwnMemory> {
        let mut pages = PageRun::map(count)?;
        let start = pages.as_mut_ptr().expose_provenance() as u64;
        let within = start..start + pages.len() as u64;
        Ok(OwnMemory { uffd: Userfaultfd { fd, within }, pages })
    }

    /// The userfaultfd, which refuses addresses outside of these pages with `EFAULT`.
    pub fn uffd(&self) -> &Userfaultfd {
        &self.uffd
    }

    /// The addresses of pages. They may lie outside; then nothing can be done to them.
    pub fn range(&self, pages: Range<usize>) -> Range<u64> {
        let address = |page: usize| {
            let offset = (page as u64).saturating_mul(HOST_PAGE_SIZE as u64);
            self.uffd.within.start.saturating_add(offset)
        };
        address(pages.start)..address(pages.end)
    }

    /// The address of a page.
    pub fn address(&self, page: usize) -> u64 {
        self.range(page..page).start
    }

    /// A byte of a page.
    ///
    /// # Panics
    ///
    /// If there is no such page or byte.
    pub fn load(&self, page: usize, byte: usize) -> u8 {
        self.byte(page, byte).load(Ordering::Relaxed)
    }

    /// Writes a byte of a page.
    ///
    /// # Panics
    ///
    /// If there is no such page or byte.
    pub fn store(&self, page: usize, byte: usize, value: u8) {
        self.byte(page, byte).store(value, Ordering::Relaxed);
    }

    fn byte(&self, page: usize, byte: usize) -> &AtomicU8 {
        assert!(page < self.pages.page_count() && byte < HOST_PAGE_SIZE, "{page}: {byte}");
        let address = self.pointer(page).wrapping_add(byte);
        // SAFETY: the byte is in our mapping, which lives as long as `self` and is always readable
        // and writable; it is only reached by atomics, here.
        unsafe { AtomicU8::from_ptr(address) }
    }

    /// Drops pages, by madvise: they are missing from now on.
    ///
    /// # Errors
    ///
    /// The kernel's error; `EFAULT` for pages outside.
    pub fn discard(&self, pages: Range<usize>) -> io::Result<()> {
        let (address, bytes) = self.place(pages)?;
        // SAFETY: the range is in our mapping, and nobody has a reference into it but to atomics.
        zero_is_done(unsafe { libc::madvise(address, bytes, libc::MADV_DONTNEED) })
    }

    /// Unmaps pages and maps fresh ones in their place, which are not registered.
    ///
    /// # Errors
    ///
    /// As [`discard`](OwnMemory::discard).
    pub fn replace(&self, pages: Range<usize>) -> io::Result<()> {
        let (address, bytes) = self.place(pages)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the range is in our mapping and stays mapped as it was; as in `discard`.
        match unsafe { libc::mmap(address, bytes, access, flags, -1, 0) } {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Moves the pages to those from `to` on, by mremap; missing ones stay in their place.
    ///
    /// # Errors
    ///
    /// As [`discard`](OwnMemory::discard); `EINVAL` where the two overlap, and before Linux 5.7.
    pub fn remap(&self, pages: Range<usize>, to: usize) -> io::Result<()> {
        let count = pages.len();
        let (from, bytes) = self.place(pages)?;
        let (to, _) = self.place(to..to.saturating_add(count))?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: both ranges are in our mapping and stay mapped; as in `discard`.
        match unsafe { libc::mremap(from, bytes, bytes, flags, to) } {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Forks a child that loads the first byte of a page and ends; the byte that it saw.
    ///
    /// # Errors
    ///
    /// The kernel's error: `EAGAIN` or `ENOMEM` where there can be no more processes, `ECHILD`
    /// where children are not waited for, `EINTR` where the child was killed by a signal.
    ///
    /// # Panics
    ///
    /// If there is no such page.
    pub fn load_in_fork(&self, page: usize) -> io::Result<u8> {
        let byte = self.byte(page, 0);
        // SAFETY: the child reads a byte and ends by _exit, which are async-signal-safe.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let seen = byte.load(Ordering::Relaxed);
            // SAFETY: ends the child, without running anything of the parent's.
            unsafe { libc::_exit(seen.into()) };
        }
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut status = 0;
        // SAFETY: the call writes an integer of ours; the child is ours too.
        while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        if !libc::WIFEXITED(status) {
            return Err(io::Error::from_raw_os_error(libc::EINTR));
        }
        Ok(libc::WEXITSTATUS(status) as u8) // a status has 8 bits
    }

    fn place(&self, pages: Range<usize>) -> io::Result<(*mut libc::c_void, usize)> {
        if pages.start > pages.end || pages.end > self.pages.page_count() {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        Ok((self.pointer(pages.start).cast(), pages.len() * HOST_PAGE_SIZE))
    }

    /// To a page, or the end. Not by way of a slice: nobody may believe that the bytes stay.
    fn pointer(&self, page: usize) -> *mut u8 {
        let start: *mut u8 = ptr::with_exposed_provenance_mut(self.uffd.within.start as usize);
        start.wrapping_add(page * HOST_PAGE_SIZE)
    }
}

fn zero_is_done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl fmt::Debug for OwnMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnMemory").field("pages", &self.pages).finish_non_exhaustive()
    }
}
