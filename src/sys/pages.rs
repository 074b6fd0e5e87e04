//! Runs of host pages: anonymous memory that is taken from the kernel and given back to it.
//!
//! A [`PageRun`] is an exclusive token for some pages of a mapping, as a `Box<[u8]>` is for heap
//! memory. Runs can be split and never overlap, which is what makes handing out `&[u8]` and
//! `&mut [u8]` safe. An untouched or discarded run costs address space, not memory.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes in one host page. Checked against the running kernel when a mapping is made.
pub const HOST_PAGE_SIZE: usize = 4096;

/// Bytes in one huge page.
pub const HUGE_PAGE_SIZE: usize = 2 << 20; // 2 MiB, on x86-64 and with 4 KiB granules on arm64

/// An anonymous private mapping, unmapped when the last run of it is dropped.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a `Mapping` is an address range without thread affinity; who may touch which of its bytes
// is decided by the `PageRun`s, each of which is unique for its pages.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared `Mapping` offers no access to the bytes.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base .. base + bytes` came from our own mmap, and every `PageRun` into it holds
        // an `Arc` of this mapping, so none is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A run of adjacent host pages with one owner.
pub struct PageRun {
    mapping: Arc<Mapping>,
    first: u32,
    count: u32,
}

impl PageRun {
    /// Maps `count` fresh pages, all zero, none of them resident yet.
    ///
    /// They are kept out of transparent huge pages, so that the resident size is what was touched
    /// and a single freed page goes back at once.
    ///
    /// # Errors
    ///
    /// The kernel's error: `ENOMEM` where address space or commit limit does not allow it,
    /// `EINVAL` where `count` is 0 or about `u32::MAX`, `Unsupported` where host pages are not 4096
    /// bytes.
    pub fn map(count: usize) -> io::Result<PageRun> {
        PageRun::map_advised(count, 1, libc::MADV_NOHUGEPAGE)
    }

    /// As [`PageRun::map`], from a huge page's border on, and with the kernel asked for transparent
    /// huge pages.
    ///
    /// # Errors
    ///
    /// As [`PageRun::map`]. A kernel without huge pages gives small ones.
    pub fn map_huge(count: usize) -> io::Result<PageRun> {
        PageRun::map_advised(count, HUGE_PAGE_SIZE / HOST_PAGE_SIZE, libc::MADV_HUGEPAGE)
    }

    /// Maps `count` pages from a multiple of `align_pages` on.
    fn map_advised(count: usize, align_pages: usize, advice: libc::c_int) -> io::Result<PageRun> {
        // SAFETY: sysconf only reads a value.
        let host_page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if host_page != HOST_PAGE_SIZE as libc::c_long {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("host pages are {host_page} bytes; only 4096 is supported"),
            ));
        }
        // With address space in front, so that there is a border to start at.
        let mapped = count.checked_add(align_pages - 1).filter(|_| count > 0);
        let Some(mapped) = mapped.and_then(|mapped| u32::try_from(mapped).ok()) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        let bytes = mapped as usize * HOST_PAGE_SIZE; // at most 2^44
        // SAFETY: a new private anonymous mapping at an address of the kernel's choosing touches no
        // memory that exists.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast()).expect("mmap without MAP_FIXED never returns null");
        let mapping = Mapping { base, bytes };
        // Best effort: a kernel without huge pages answers EINVAL, which is as good.
        // SAFETY: the range is the mapping made above.
        unsafe { libc::madvise(address, bytes, advice) };
        let past_border = address.addr() / HOST_PAGE_SIZE % align_pages;
        let first = ((align_pages - past_border) % align_pages) as u32; // below `align_pages`
        Ok(PageRun { mapping: Arc::new(mapping), first, count: count as u32 }) // <= mapped
    }

    /// Pages in the run.
    pub fn page_count(&self) -> usize {
        self.count as usize
    }

    /// Pages from the start of the run to the next border of a huge page.
    pub fn pages_to_huge_border(&self) -> usize {
        let past_border = self.start().addr().get() % HUGE_PAGE_SIZE;
        (HUGE_PAGE_SIZE - past_border) % HUGE_PAGE_SIZE / HOST_PAGE_SIZE
    }

    /// Cuts the first `count` pages off; `self` keeps the rest, which may be empty.
    ///
    /// # Panics
    ///
    /// If the run has fewer pages.
    pub fn split_front(&mut self, count: usize) -> PageRun {
        assert!(count <= self.page_count(), "a run of {} pages has no {count}", self.count);
        let count = count as u32; // <= self.count
        let front = PageRun { mapping: Arc::clone(&self.mapping), first: self.first, count };
        self.first += count;
        self.count -= count;
        front
    }

    /// Makes every page of the run resident, by a fault each.
    ///
    /// `MADV_POPULATE_WRITE` was measured to be no cheaper a page up to 64 pages and dearer for one
    /// (2.0 us instead of 1.5), and out of memory it ends like a fault: a process is killed.
    pub fn touch(&mut self) {
        for page in self.chunks_exact_mut(HOST_PAGE_SIZE) {
            page[0] = 0;
        }
    }

    /// Gives the memory of the run back to the kernel; it reads as zeros from now on.
    ///
    /// # Errors
    ///
    /// The kernel's error; `EINVAL` for memory that is locked.
    pub fn discard(&mut self) -> io::Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let address = self.start().as_ptr().cast();
        let bytes = self.page_count() * HOST_PAGE_SIZE;
        // SAFETY: the range lies in our mapping and belongs to this run alone, which is borrowed
        // mutably: nobody else sees its contents change.
        match unsafe { libc::madvise(address, bytes, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: `first` is a page of the mapping, or its end when the run is empty.
        unsafe { self.mapping.base.add(self.first as usize * HOST_PAGE_SIZE) }
    }
}

impl Deref for PageRun {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let bytes = self.page_count() * HOST_PAGE_SIZE;
        // SAFETY: the range is inside our mapping, readable, and initialised by the kernel; only a
        // `&mut` of this same run writes to it.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), bytes) }
    }
}

impl DerefMut for PageRun {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.page_count() * HOST_PAGE_SIZE;
        // SAFETY: as in `deref`, and writable; `&mut self` is the only borrow of the only run that
        // covers these pages.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), bytes) }
    }
}

impl fmt::Debug for PageRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageRun")
            .field("address", &self.start())
            .field("pages", &self.count)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_runs_are_disjoint_and_outlive_each_other() {
        let mut rest = PageRun::map(8).unwrap();
        let mut front = rest.split_front(3);
        assert_eq!((front.page_count(), rest.page_count()), (3, 5));
        front.fill(1);
        rest.fill(2);
        assert!(front.iter().all(|&byte| byte == 1));
        drop(front);
        assert!(rest.iter().all(|&byte| byte == 2));
    }

    #[test]
    fn a_discarded_run_reads_zeros() {
        let mut run = PageRun::map(2).unwrap();
        run.touch();
        run.fill(7);
        run.discard().unwrap();
        assert!(run.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_huge_mapping_starts_at_a_border_and_runs_know_how_far_the_next_is() {
        let mut rest = PageRun::map_huge(1000).unwrap();
        assert_eq!(rest.pages_to_huge_border(), 0);
        rest.fill(3);
        let front = rest.split_front(12);
        assert_eq!((front.pages_to_huge_border(), rest.pages_to_huge_border()), (0, 500));
        rest.split_front(500);
        assert_eq!(rest.pages_to_huge_border(), 0);
        assert!(rest.iter().all(|&byte| byte == 3));
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert_eq!(PageRun::map(0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(PageRun::map_huge(usize::MAX).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    #[should_panic(expected = "has no 3")]
    fn a_run_cannot_be_cut_past_its_end() {
        PageRun::map(2).unwrap().split_front(3);
    }
}
