//! Runs of host pages: allocates memory from the kernel, and returns it.
//!
//! A [`PageRun`] is an exclusive token for some pages of a mapping, as a `Box<[u8]>` is for heap
//! memory. Runs can be split and never overlap, which is what makes handing out `&[u8]` and
//! `&mut [u8]` safe. An untouched or discarded run costs address space, not memory.
//!
//! Pages of a *shared* run can be mapped a second time, as [`window`](super::window) does: their
//! memory is a file without a name (memfd) that no other process has open. A forked child does not
//! get them, as it would not get a copy: it must not use a run of its parent.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes in one host page. Checked against the running kernel when a mapping is made.
pub const HOST_PAGE_SIZE: usize = 4096;

/// Bytes in one huge page.
pub const HUGE_PAGE_SIZE: usize = 2 << 20; // 2 MiB, on x86-64 and with 4 KiB granules on arm64

/// A mapping, unmapped when the last run of it is dropped.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// Of a shared mapping: where its memory is.
    file: Option<MemoryFile>,
}

/// The memory of a shared mapping, which starts at byte 0 of it.
struct MemoryFile {
    fd: OwnedFd,
    /// The process that has the mapping: its forked children have the file alone.
    owner_pid: u32,
}

// SAFETY: a `Mapping` is an address range without thread affinity; who may touch which of its bytes
// is decided by the `PageRun`s, each of which is unique for its pages.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared `Mapping` offers no access to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A new mapping, none of it resident yet: of the whole file if there is one, of anonymous
    /// private memory else.
    fn new(bytes: usize, file: Option<MemoryFile>) -> io::Result<Mapping> {
        let (flags, fd) = match &file {
            Some(file) => (libc::MAP_SHARED, file.fd.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        // SAFETY: a new mapping at an address of the kernel's choosing touches no memory that
        // exists.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags | libc::MAP_NORESERVE,
                fd,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast()).expect("mmap without MAP_FIXED never returns null");
        Ok(Mapping { base, bytes, file })
    }

    /// Best effort: a kernel without huge pages answers EINVAL to advice about them, which is as
    /// good.
    fn advise(&self, advice: libc::c_int) {
        // SAFETY: the range is this mapping, of which no run is handed out yet.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, advice) };
    }
}

/// Bytes of `count` pages, 1 to `u32::MAX`; at most 2^44.
fn mapping_bytes(count: usize) -> io::Result<usize> {
    // SAFETY: sysconf only reads a value.
    let host_page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    if host_page != HOST_PAGE_SIZE as libc::c_long {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("host pages are {host_page} bytes; only 4096 is supported"),
        ));
    }
    match u32::try_from(count) {
        Ok(count) if count > 0 => Ok(count as usize * HOST_PAGE_SIZE),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            if file.owner_pid != std::process::id() {
                return; // a forked child: something else may be at this address
            }
            // A thread's window may keep the file in use: its memory goes back here.
            // SAFETY: no run of the file is left, so nobody can reach the bytes that go.
            unsafe { libc::ftruncate(file.fd.as_raw_fd(), 0) };
        }
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

    /// As [`PageRun::map`], of memory that can be mapped a second time.
    ///
    /// # Errors
    ///
    /// As [`PageRun::map`]; `EFBIG` over the process's limit for file sizes, `EMFILE` where it has
    /// no file descriptor left.
    pub fn map_shared(count: usize) -> io::Result<PageRun> {
        let bytes = mapping_bytes(count)?;
        super::files::check_file_size(bytes as u64)?;
        // SAFETY: the name is a C string; the call makes a new file descriptor.
        let fd = unsafe { libc::memfd_create(c"uzswap".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was made above and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: resizes our own empty file; no pointers are passed.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping::new(bytes, Some(MemoryFile { fd, owner_pid: std::process::id() }))?;
        mapping.advise(libc::MADV_NOHUGEPAGE);
        mapping.advise(libc::MADV_DONTFORK);
        Ok(PageRun { mapping: Arc::new(mapping), first: 0, count: count as u32 }) // <= u32::MAX
    }

    /// Maps `count` pages from a multiple of `align_pages` on.
    fn map_advised(count: usize, align_pages: usize, advice: libc::c_int) -> io::Result<PageRun> {
        // With address space in front, so that there is a border to start at.
        let mapped = count.checked_add(align_pages - 1).filter(|_| count > 0).unwrap_or(0);
        let mapping = Mapping::new(mapping_bytes(mapped)?, None)?;
        mapping.advise(advice);
        let past_border = mapping.base.addr().get() / HOST_PAGE_SIZE % align_pages;
        let first = ((align_pages - past_border) % align_pages) as u32; // below `align_pages`
        Ok(PageRun { mapping: Arc::new(mapping), first, count: count as u32 }) // <= mapped
    }

    /// Pages in the run.
    pub fn page_count(&self) -> usize {
        self.count as usize
    }

    /// Whether the pages can be mapped a second time.
    pub fn is_shared(&self) -> bool {
        self.mapping.file.is_some()
    }

    /// Of a shared run: the file, and the offset of the run's first byte in it.
    pub(super) fn place_in_file(&self) -> Option<(BorrowedFd<'_>, libc::off_t)> {
        let file = self.mapping.file.as_ref()?;
        // At most 2^44.
        Some((file.fd.as_fd(), self.first as libc::off_t * HOST_PAGE_SIZE as libc::off_t))
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

    /// Makes every page of the run resident.
    ///
    /// One fault for each page: `MADV_POPULATE_WRITE` was no cheaper for up to 64 pages and more
    /// expensive for one (2.0 us instead of 1.5). If memory runs out it ends like a fault: the
    /// kernel kills a process. Shared pages are populated, as a fault of theirs would end in
    /// `SIGBUS` where this is an error.
    ///
    /// # Errors
    ///
    /// Of a shared run, `ENOMEM` where the kernel has no memory for it.
    pub fn touch(&mut self) -> io::Result<()> {
        if self.is_shared() {
            match self.madvise(libc::MADV_POPULATE_WRITE) {
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    return Err(io::Error::from_raw_os_error(libc::ENOMEM));
                }
                // Kernels before 5.14 do not know it.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                result => return result,
            }
        }
        for page in self.chunks_exact_mut(HOST_PAGE_SIZE) {
            page[0] = 0;
        }
        Ok(())
    }

    /// Gives the memory of the run back to the kernel; it reads as zeros from now on.
    ///
    /// # Errors
    ///
    /// The kernel's error; `EINVAL` for memory that is locked.
    pub fn discard(&mut self) -> io::Result<()> {
        // Of shared memory, DONTNEED would take the mapping's pages and leave the file's.
        let advice = if self.is_shared() { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
        self.madvise(advice)
    }

    /// Asks the kernel to move one page of the run to swap, now. The contents stay.
    ///
    /// # Errors
    ///
    /// The kernel's error; `EINVAL` before Linux 5.4. Where there is no swap, it does nothing.
    ///
    /// # Panics
    ///
    /// If the run has no such page.
    pub fn page_out(&self, page: usize) -> io::Result<()> {
        let bytes = &self[page * HOST_PAGE_SIZE..(page + 1) * HOST_PAGE_SIZE];
        let address = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the page is one of ours, and its contents are the same before and after.
        match unsafe { libc::madvise(address, HOST_PAGE_SIZE, libc::MADV_PAGEOUT) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Advice about the whole run, which may change its contents.
    fn madvise(&mut self, advice: libc::c_int) -> io::Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let range = self.range();
        // SAFETY: the range lies in our mapping and belongs to this run alone, which is borrowed
        // mutably: nobody else sees its contents change.
        match unsafe { libc::madvise(range.iov_base, range.iov_len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether every page of the run is in memory now. Fresh ones are after `mlockall` with
    /// `MCL_FUTURE`; `false` where the kernel does not tell.
    pub fn is_resident(&self) -> bool {
        (0..self.page_count()).all(|page| self.is_page_resident(page))
    }

    /// Whether a page of the run is in memory now; one in the cache of swap is. `false` where the
    /// kernel does not tell.
    ///
    /// # Panics
    ///
    /// If the run has no such page.
    pub fn is_page_resident(&self, page: usize) -> bool {
        let mut state = 0;
        let bytes = &self[page * HOST_PAGE_SIZE..(page + 1) * HOST_PAGE_SIZE];
        let address = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the page is one of ours, and is not touched; the kernel writes one byte.
        let result = unsafe { libc::mincore(address, HOST_PAGE_SIZE, &raw mut state) };
        result == 0 && state & 1 == 1
    }

    fn range(&self) -> libc::iovec {
        let iov_len = self.page_count() * HOST_PAGE_SIZE;
        libc::iovec { iov_base: self.start().as_ptr().cast(), iov_len }
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: `first` is a page of the mapping, or its end when the run is empty.
        unsafe { self.mapping.base.add(self.first as usize * HOST_PAGE_SIZE) }
    }
}

/// Gives the memory of runs back to the kernel; they read as zeros from now on. Locked memory stays
/// as it is.
///
/// Neighbours go together. From Linux 6.16 on, one system call takes all of them, and interrupts
/// each processor that runs another thread of this process once, not once for each run.
pub fn discard_all(runs: &mut [Option<PageRun>]) {
    for runs in runs.chunks_mut(RANGES_MAX) {
        let mut ranges = [NO_RANGE; RANGES_MAX];
        let mut count = 0;
        for run in runs.iter_mut().flatten() {
            if run.is_shared() {
                let _ = run.discard(); // refused where it is locked
            } else if !run.is_empty() {
                ranges[count] = run.range();
                count += 1;
            }
        }
        let count = join_neighbours(&mut ranges[..count]);
        let ranges = &ranges[..count];
        let discard = |range: &libc::iovec| {
            // SAFETY: the runs of these bytes are borrowed mutably: nobody sees them change.
            unsafe { libc::madvise(range.iov_base, range.iov_len, libc::MADV_DONTNEED) == 0 }
        };
        if !discard_at_once(ranges) && !ranges.iter().all(discard) {
            // The kernel ends with the first page that is locked.
            runs.iter_mut().flatten().for_each(|run| drop(run.discard()));
        }
    }
}

/// Ranges that one system call takes here; the kernel takes 1024.
const RANGES_MAX: usize = 128;

const NO_RANGE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Joins ranges that touch each other; how many are left, in the order of their addresses.
fn join_neighbours(ranges: &mut [libc::iovec]) -> usize {
    ranges.sort_unstable_by_key(|range| range.iov_base);
    let mut count = 0;
    for next in 0..ranges.len() {
        let range = ranges[next];
        match ranges[..count].last_mut() {
            Some(last) if last.iov_base.addr() + last.iov_len == range.iov_base.addr() => {
                last.iov_len += range.iov_len;
            }
            _ => {
                ranges[count] = range;
                count += 1;
            }
        }
    }
    count
}

/// Drops the pages of ranges of private memory by one system call; `false` where some may be left,
/// as before Linux 6.13, or with locked memory.
fn discard_at_once(ranges: &[libc::iovec]) -> bool {
    /// This process, in place of a descriptor (include/uapi/linux/pidfd.h).
    const PIDFD_SELF: libc::c_int = -10_000;
    static IS_REFUSED: AtomicBool = AtomicBool::new(false);
    if ranges.len() < 2 || IS_REFUSED.load(Ordering::Relaxed) {
        return false;
    }
    let (first, count) = (ranges.as_ptr(), ranges.len());
    // SAFETY: the runs of these bytes are borrowed mutably by `discard_all`: nobody sees them
    // change.
    let bytes = unsafe {
        libc::syscall(libc::SYS_process_madvise, PIDFD_SELF, first, count, libc::MADV_DONTNEED, 0)
    };
    if bytes < 0 {
        // A kernel without it, or a seccomp filter; EINVAL is of locked memory, or of 6.12.
        let error = io::Error::last_os_error();
        let is_known = !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM));
        IS_REFUSED.fetch_or(is_known, Ordering::Relaxed);
    }
    usize::try_from(bytes) == Ok(ranges.iter().map(|range| range.iov_len).sum())
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
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

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
    fn touched_pages_are_resident() {
        let mut run = PageRun::map(3).unwrap();
        assert!(!run.is_resident());
        run[0] = 1;
        run[8192] = 1;
        assert!(!run.is_resident());
        run.touch().unwrap();
        assert!(run.is_resident());
    }

    #[test]
    fn a_discarded_run_reads_zeros() {
        for map in [PageRun::map, PageRun::map_shared] {
            let mut run = map(2).unwrap();
            run.touch().unwrap();
            run.fill(7);
            run.discard().unwrap();
            assert!(run.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn all_runs_are_discarded_but_locked_ones() {
        for locks in [false, true] {
            // Of each three pages, two or all three go: neighbours, and others between those kept.
            let mut rest = PageRun::map(600).unwrap();
            let (mut gone, mut kept) = (vec![None], Vec::new());
            while !rest.is_empty() {
                let mut three = rest.split_front(3);
                three.fill(7);
                gone.push(Some(three.split_front(2)));
                match gone.len() % 2 {
                    0 => gone.push(Some(three)),
                    _ => kept.push(three),
                }
            }
            let mut shared = PageRun::map_shared(2).unwrap();
            shared.fill(7);
            gone.push(Some(shared));
            if locks {
                let page = gone[gone.len() / 2].as_ref().unwrap();
                // SAFETY: mlock changes nothing but that the pages stay in memory.
                assert_eq!(unsafe { libc::mlock(page.as_ptr().cast(), page.len()) }, 0);
            }
            gone.reverse(); // their order is no matter
            discard_all(&mut gone);
            let are = |run: &PageRun, byte: u8| run.iter().all(|&found| found == byte);
            assert!(kept.iter().all(|run| are(run, 7)));
            let stayed = gone.iter().flatten().filter(|run| !are(run, 0)).count();
            assert_eq!(stayed, usize::from(locks));
        }
    }

    #[test]
    fn neighbours_become_one_range() {
        let range = |first: usize, pages: usize| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(first * HOST_PAGE_SIZE),
            iov_len: pages * HOST_PAGE_SIZE,
        };
        let joined = |mut ranges: Vec<libc::iovec>| -> Vec<(usize, usize)> {
            let count = join_neighbours(&mut ranges);
            let ranges = ranges[..count].iter();
            let pages = |range: &libc::iovec| range.iov_len / HOST_PAGE_SIZE;
            ranges.map(|range| (range.iov_base.addr() / HOST_PAGE_SIZE, pages(range))).collect()
        };
        assert_eq!(joined(vec![]), []);
        assert_eq!(joined(vec![range(5, 2)]), [(5, 2)]);
        assert_eq!(joined(vec![range(7, 1), range(5, 2), range(9, 1)]), [(5, 3), (9, 1)]);
        let all = [range(8, 2), range(6, 2), range(1, 4), range(5, 1)];
        assert_eq!(joined(all.into()), [(1, 9)]);
    }

    impl PageRun {
        /// A shared page whose file does not allow a mapping.
        pub(crate) fn of_file_that_cannot_be_mapped() -> PageRun {
            let mut run = PageRun::map_shared(1).unwrap();
            let mapping = Arc::get_mut(&mut run.mapping).unwrap();
            mapping.file.as_mut().unwrap().fd = File::open("/dev/null").unwrap().into();
            run
        }
    }

    /// Bytes of memory that the file has.
    fn file_bytes(run: &PageRun) -> u64 {
        let (fd, _) = run.place_in_file().unwrap();
        let file = File::from(fd.try_clone_to_owned().unwrap());
        file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn the_memory_of_shared_pages_goes_back() {
        let mut rest = PageRun::map_shared(1 << 22).unwrap();
        assert_eq!(file_bytes(&rest), 0);
        let mut front = rest.split_front(3);
        let mut middle = rest.split_front(2);
        front.touch().unwrap();
        middle.touch().unwrap();
        middle.fill(9);
        assert_eq!(file_bytes(&rest), 5 * HOST_PAGE_SIZE as u64);
        front.discard().unwrap();
        assert_eq!(file_bytes(&rest), 2 * HOST_PAGE_SIZE as u64);
        assert!(middle.iter().all(|&byte| byte == 9));
    }

    #[test]
    fn shared_pages_without_memory_are_an_error() {
        let mut run = PageRun::map_shared(2).unwrap();
        let (fd, _) = run.place_in_file().unwrap();
        // SAFETY: resizes a file that nobody else has; no page of it was touched.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 4096) }, 0);
        assert_eq!(run.touch().unwrap_err().raw_os_error(), Some(libc::ENOMEM));
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
        assert_eq!(PageRun::map_shared(0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(PageRun::map_shared(1 << 33).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(PageRun::map_huge(usize::MAX).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    #[should_panic(expected = "has no 3")]
    fn a_run_cannot_be_cut_past_its_end() {
        PageRun::map(2).unwrap().split_front(3);
    }
}
