//! /proc/PID/pagemap: an entry for each page, and the PAGEMAP_SCAN call, which finds resident pages
//! without reading entries.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use super::pages::HOST_PAGE_SIZE;

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 8;

/// Bits of a page: Documentation/admin-guide/mm/pagemap.rst of Linux.
#[derive(Debug, Clone, Copy)]
pub struct Entry(u64);

impl Entry {
    /// The page is resident, and no other process maps it.
    pub fn is_alone(self) -> bool {
        self.is_present() && self.has(56)
    }

    /// The page is resident.
    pub fn is_present(self) -> bool {
        self.has(63)
    }

    /// The page is in swap, not in memory.
    pub fn is_swapped(self) -> bool {
        !self.is_present() && self.has(62)
    }

    /// The page is of a file or of shared memory.
    pub fn is_of_file(self) -> bool {
        self.has(61)
    }

    /// The number of its frame; 0 without `CAP_SYS_ADMIN`.
    pub fn frame(self) -> u64 {
        self.0 & ((1 << 55) - 1)
    }

    fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }
}

/// Entries of pages from `address` on, as many as there is `room` for. `pagemap` is an open
/// /proc/PID/pagemap.
///
/// # Errors
///
/// The kernel's error, or `UnexpectedEof` past the end of the address space, or where nobody has it
/// any more.
pub fn entries<'a>(
    pagemap: &File,
    address: u64,
    room: &'a mut [[u8; ENTRY_BYTES]],
) -> io::Result<impl Iterator<Item = Entry> + 'a> {
    let at = address / HOST_PAGE_SIZE as u64 * ENTRY_BYTES as u64;
    pagemap.read_exact_at(room.as_flattened_mut(), at)?;
    Ok(room.iter().map(|entry| Entry(u64::from_ne_bytes(*entry))))
}

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// A run of pages that was found: `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    /// Address of the first page, in bytes.
    pub start: u64,
    /// Address after the last page, in bytes.
    pub end: u64,
    categories: u64,
}

impl Found {
    /// Whether the entries have no page in memory: it is in swap, or see [`Wanted::Anonymous`].
    pub fn is_swapped(&self) -> bool {
        self.categories & PAGE_IS_SWAPPED != 0
    }

    /// Whether the entries are empty and carry the marker of a userfaultfd's write protection. A
    /// page in swap looks the same while it is write-protected.
    pub fn is_marked(&self) -> bool {
        self.categories & (PAGE_IS_SWAPPED | PAGE_IS_WRITTEN) == PAGE_IS_SWAPPED
    }
}

/// Entries that [`scan`] finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Anonymous pages in memory, without the shared zero page.
    Resident,
    /// Resident pages, pages in swap, guards (`MADV_GUARD_INSTALL`), and markers.
    Anonymous,
    /// Entries that are not empty: those, and the shared zero page.
    Populated,
    /// Markers: see [`Found::is_marked`].
    Marked,
}

impl Wanted {
    /// Categories that an entry must have, must not have, of which it must have one, and that are
    /// returned.
    fn categories(self) -> [u64; 4] {
        const ANY: u64 = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
        let others = PAGE_IS_FILE | PAGE_IS_PFNZERO;
        match self {
            Wanted::Resident => [PAGE_IS_PRESENT, others, 0, 0],
            Wanted::Anonymous => [0, others, ANY, PAGE_IS_SWAPPED | PAGE_IS_WRITTEN],
            Wanted::Populated => [0, 0, ANY, 0],
            Wanted::Marked => [PAGE_IS_SWAPPED, PAGE_IS_WRITTEN, 0, PAGE_IS_SWAPPED],
        }
    }
}

const PAGE_IS_WRITTEN: u64 = 1 << 1; // not write-protected
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = libc::_IOWR::<ScanArgument>(b'f' as u32, 16);

const _: () = assert!(size_of::<ScanArgument>() == 96 && size_of::<Found>() == 24);

/// Finds entries of `addresses`, `most` of them (0: all); each takes some 60 ns.
/// `pagemap` is an open /proc/PID/pagemap. How many runs were put into `found`, and the address to
/// go on from; the end of `addresses` when all was seen.
///
/// # Errors
///
/// The kernel's error: `ENOTTY` before Linux 6.7, `EINVAL` for addresses that are not whole pages,
/// `EINTR`.
pub fn scan(
    pagemap: &File,
    addresses: Range<u64>,
    wanted: Wanted,
    found: &mut [Found],
    most: u64,
) -> io::Result<(usize, u64)> {
    let [all_of, none_of, any_of, returned] = wanted.categories();
    let mut argument = ScanArgument {
        size: size_of::<ScanArgument>() as u64,
        flags: 0,
        start: addresses.start,
        end: addresses.end,
        walk_end: 0,
        vec: found.as_mut_ptr().expose_provenance() as u64,
        vec_len: found.len() as u64,
        max_pages: most,
        category_inverted: none_of,
        category_mask: all_of | none_of,
        category_anyof_mask: any_of,
        return_mask: returned,
    };
    // SAFETY: the argument has the kernel's layout (sizes asserted above). It names `found`,
    // borrowed mutably for the call; the kernel writes at most `vec_len` regions into it.
    let runs = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) };
    match usize::try_from(runs) {
        Ok(runs) => Ok((runs, argument.walk_end)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
