//! Two host pages side by side in the address space, for the time of an access.
//!
//! ```text
//!  shared mapping   | ... | page 7 | ... | page 2 | ...
//!                            |              |
//!  window           |  page 7   |  page 2   |   the thread's own, as long as the closure runs
//! ```
//!
//! A thread reserves the address space of its window at its first access and keeps it: two mappings
//! at most. An access maps its two pages over those of the access before. Those stay mapped until
//! then, out of reach: covering them after each access was measured to be slower
//! (`docs/experiments/2026-11-22-object-mapping.md`).

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use super::pages::{HOST_PAGE_SIZE, PageRun};

/// Bytes of a window.
pub const WINDOW_BYTES: usize = 2 * HOST_PAGE_SIZE;

thread_local! {
    static WINDOW: Window = const { Window { state: Cell::new(State::Unreserved) } };
}

/// A thread's window; unmapped when the thread ends.
struct Window {
    state: Cell<State>,
}

#[derive(Clone, Copy)]
enum State {
    Unreserved,
    /// Nobody looks through it.
    Free(NonNull<u8>),
    /// An access is under way.
    Busy,
    /// The kernel refused to replace a mapping. The kernel may have removed the old mapping, and
    /// another thread may own that address now, so the window is not touched again.
    Lost,
}

/// Calls `reader` with the bytes `range` of the two pages as if they were adjacent.
///
/// # Errors
///
/// `reader`, which was not called: a run is not one shared page, the kernel refuses the mapping, or
/// this thread is inside another access.
///
/// # Panics
///
/// If `range` is not within [`WINDOW_BYTES`].
pub fn read<R, F: FnOnce(&[u8]) -> R>(
    pages: [&PageRun; 2],
    range: Range<usize>,
    reader: F,
) -> Result<R, F> {
    show(pages, reader, |base, reader| {
        // SAFETY: `base` is a window onto the two pages until this closure returns; the runs are
        // borrowed for as long, so that nobody writes to them.
        let both = unsafe { std::slice::from_raw_parts(base.as_ptr(), WINDOW_BYTES) };
        reader(&both[range])
    })
}

/// As [`read`], for a closure that changes the bytes.
///
/// # Errors
///
/// As [`read`].
///
/// # Panics
///
/// As [`read`].
pub fn write<R, F: FnOnce(&mut [u8]) -> R>(
    pages: [&mut PageRun; 2],
    range: Range<usize>,
    writer: F,
) -> Result<R, F> {
    let pages = pages.map(|page| &*page);
    show(pages, writer, |base, writer| {
        // SAFETY: as in `read`; the runs are borrowed mutably by the caller, so that nobody else
        // reads or writes them.
        let both = unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), WINDOW_BYTES) };
        writer(&mut both[range])
    })
}

/// Calls `look` with the address of a window onto the pages, or gives `access` back.
fn show<R, F>(
    pages: [&PageRun; 2],
    access: F,
    look: impl FnOnce(NonNull<u8>, F) -> R,
) -> Result<R, F> {
    let mut access = Some(access);
    // Where the thread is ending, its window is gone.
    let result = WINDOW.try_with(|window| {
        let view = window.map(pages)?;
        access.take().map(|access| look(view.base, access))
    });
    match (result, access) {
        (Ok(Some(result)), _) => Ok(result),
        (_, Some(access)) => Err(access),
        (_, None) => unreachable!("an access that was begun has a result"),
    }
}

/// A window in use; free again when it is dropped, also by a panic.
struct View<'a> {
    window: &'a Window,
    base: NonNull<u8>,
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.window.state.set(State::Free(self.base));
    }
}

impl Window {
    /// Maps two pages into the window.
    fn map(&self, pages: [&PageRun; 2]) -> Option<View<'_>> {
        let base = match self.state.get() {
            State::Free(base) => base,
            State::Unreserved => reserve().ok()?,
            State::Busy | State::Lost => return None,
        };
        self.state.set(State::Free(base));
        if !pages.iter().all(|page| page.is_shared() && page.page_count() == 1) {
            return None;
        }
        self.state.set(State::Busy);
        for (n, page) in pages.into_iter().enumerate() {
            if map_over(base, n, page).is_err() {
                self.state.set(State::Lost);
                // The half that was not asked for is still ours.
                unmap(half(base, 1 - n), HOST_PAGE_SIZE);
                return None;
            }
        }
        // Memory in the window has another address too, which the compiler does not know.
        compiler_fence(Ordering::SeqCst);
        Some(View { window: self, base })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let State::Free(base) = self.state.get() {
            unmap(base, WINDOW_BYTES);
        }
    }
}

/// Address space for a window, with nothing in it.
fn reserve() -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choosing touches no memory that exists.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            WINDOW_BYTES,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    match NonNull::new(address.cast()) {
        Some(base) if address != libc::MAP_FAILED => Ok(base),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Replaces what half `n` of a window shows.
fn map_over(base: NonNull<u8>, n: usize, page: &PageRun) -> io::Result<()> {
    let (fd, offset) = page.place_in_file().ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the range is half of a window that this thread has reserved and that no access uses
    // now; the new mapping is of a page that the caller's run borrows.
    let address = unsafe {
        libc::mmap(
            half(base, n).as_ptr().cast(),
            HOST_PAGE_SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            fd.as_raw_fd(),
            offset,
        )
    };
    if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Half `n` of a window.
fn half(base: NonNull<u8>, n: usize) -> NonNull<u8> {
    // SAFETY: `n` is 0 or 1, and a window is two pages.
    unsafe { base.add(n * HOST_PAGE_SIZE) }
}

fn unmap(base: NonNull<u8>, bytes: usize) {
    // SAFETY: the range is of a window of this thread, which is not used again.
    unsafe { libc::munmap(base.as_ptr().cast(), bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    /// Pages of one file, each filled with its number.
    fn pages(count: usize) -> Vec<PageRun> {
        let mut rest = PageRun::map_shared(count).unwrap();
        let page = |n| {
            let mut page = rest.split_front(1);
            page.fill(n as u8);
            page
        };
        (0..count).map(page).collect()
    }

    fn firsts_and_lasts(pages: [&PageRun; 2]) -> Option<[u8; 4]> {
        read(pages, 0..WINDOW_BYTES, |both| [both[0], both[4095], both[4096], both[8191]]).ok()
    }

    #[test]
    fn a_window_shows_its_two_pages_and_no_earlier_ones() {
        let pages = pages(9);
        for (a, b) in [(0, 1), (5, 3), (3, 5), (7, 7), (8, 0), (0, 8)] {
            let [first, second] = [a, b].map(|n| n as u8);
            assert_eq!(
                firsts_and_lasts([&pages[a], &pages[b]]),
                Some([first, first, second, second])
            );
        }
    }

    #[test]
    fn what_is_written_through_a_window_is_in_the_pages() {
        let mut pages = pages(3);
        let [a, b, c] = &mut pages[..] else { panic!("three pages") };
        write([c, a], 4000..5000, |bytes| bytes.fill(0xee)).ok().unwrap();
        assert!(c[..4000].iter().all(|&byte| byte == 2) && c[4000..].iter().all(|&b| b == 0xee));
        assert!(a[..904].iter().all(|&byte| byte == 0xee) && a[904..].iter().all(|&b| b == 0));
        assert!(b.iter().all(|&byte| byte == 1));
        a[0] = 7;
        assert_eq!(firsts_and_lasts([b, a]), Some([1, 1, 7, 0]));
    }

    #[test]
    fn an_access_inside_another_and_private_pages_are_given_back() {
        let shared = pages(2);
        let private = PageRun::map(1).unwrap();
        let both = [&shared[0], &shared[1]];
        assert_eq!(firsts_and_lasts([&shared[0], &private]), None);
        let inner = read(both, 0..8, |_| firsts_and_lasts(both)).ok().unwrap();
        assert_eq!(inner, None);
        assert_eq!(firsts_and_lasts(both), Some([0, 0, 1, 1]));
    }

    #[test]
    fn a_panic_leaves_the_window_free() {
        let pages = pages(2);
        let both = [&pages[0], &pages[1]];
        let unwound = AssertUnwindSafe(|| read(both, 0..8, |_| panic!("in the access")).is_ok());
        assert!(catch_unwind(unwound).is_err());
        assert_eq!(firsts_and_lasts(both), Some([0, 0, 1, 1]));
    }

    #[test]
    fn a_mapping_that_fails_half_way_is_told_and_the_window_given_up() {
        let pages = pages(2);
        let bad = PageRun::of_file_that_cannot_be_mapped();
        thread::scope(|scope| {
            for both in [[&bad, &pages[0]], [&pages[0], &bad]] {
                scope.spawn(move || {
                    assert_eq!(firsts_and_lasts(both), None);
                    // In a window that was in use before.
                    assert_eq!(firsts_and_lasts([both[0], both[0]]), None);
                });
            }
            scope.spawn(|| {
                assert!(firsts_and_lasts([&pages[1], &pages[0]]).is_some());
                assert_eq!(firsts_and_lasts([&pages[1], &bad]), None);
                assert_eq!(firsts_and_lasts([&pages[1], &pages[0]]), None);
            });
        });
        assert_eq!(firsts_and_lasts([&pages[0], &pages[1]]), Some([0, 0, 1, 1]));
    }

    #[test]
    fn memory_goes_back_though_a_window_shows_it() {
        let mut pages = pages(3);
        let (fd, _) = pages[0].place_in_file().unwrap();
        let file = File::from(fd.try_clone_to_owned().unwrap());
        let held = || file.metadata().unwrap().blocks() * 512 / HOST_PAGE_SIZE as u64;
        firsts_and_lasts([&pages[0], &pages[1]]).unwrap();
        assert_eq!(held(), 3);
        pages[1].discard().unwrap();
        assert_eq!(held(), 2);
        drop(pages);
        assert_eq!(held(), 0);
    }

    /// Mappings of this process that are of files like ours.
    fn mappings() -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("memfd:uzswap")).count()
    }

    #[test]
    fn a_window_goes_with_its_thread() {
        // Other tests map files meanwhile: look for what is left of many threads.
        let pages = pages(2);
        let before = mappings();
        for _ in 0..200 {
            thread::scope(|scope| {
                scope.spawn(|| firsts_and_lasts([&pages[0], &pages[1]]).unwrap());
            });
        }
        assert!(mappings() < before + 100, "{} mappings, {before} before", mappings());
    }
}
