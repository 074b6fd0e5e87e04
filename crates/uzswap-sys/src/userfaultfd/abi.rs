//! Structures and numbers of linux/userfaultfd.h, as of Linux 6.8: 17 features.

use std::fmt;
use std::ops::{BitOr, Sub};

use libc::{_IO, _IOR, _IOWR, Ioctl};

/// Features of a userfaultfd beside missing pages of anonymous memory: `UFFD_FEATURE_*`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Features(pub u64);

impl Features {
    /// None of them.
    pub const NONE: Features = Features(0);
    /// Write faults on protected pages (Linux 5.7).
    pub const PAGEFAULT_FLAG_WP: Features = Features(1);
    /// A message for each fork, with a userfaultfd of the child. Needs `CAP_SYS_PTRACE` (4.11).
    pub const EVENT_FORK: Features = Features(1 << 1);
    /// A message where mremap moves memory (4.11).
    pub const EVENT_REMAP: Features = Features(1 << 2);
    /// A message where madvise drops pages (4.11).
    pub const EVENT_REMOVE: Features = Features(1 << 3);
    /// Missing pages of huge-page files (4.11).
    pub const MISSING_HUGETLBFS: Features = Features(1 << 4);
    /// Missing pages of shared memory (4.11).
    pub const MISSING_SHMEM: Features = Features(1 << 5);
    /// A message where memory is unmapped (4.11).
    pub const EVENT_UNMAP: Features = Features(1 << 6);
    /// A signal to the thread that faults, and no message (4.14).
    pub const SIGBUS: Features = Features(1 << 7);
    /// A message names the faulting thread (4.14).
    pub const THREAD_ID: Features = Features(1 << 8);
    /// Pages of huge-page files that are there and not mapped (5.13).
    pub const MINOR_HUGETLBFS: Features = Features(1 << 9);
    /// Pages of shared memory that are there and not mapped (5.14).
    pub const MINOR_SHMEM: Features = Features(1 << 10);
    /// Addresses of faults to the byte, and not to the page (5.18).
    pub const EXACT_ADDRESS: Features = Features(1 << 11);
    /// Write protection of shared memory and huge-page files (5.19).
    pub const WP_HUGETLBFS_SHMEM: Features = Features(1 << 12);
    /// Write protection of pages that are not there yet (6.4).
    pub const WP_UNPOPULATED: Features = Features(1 << 13);
    /// Pages that give a signal when they are touched (6.6).
    pub const POISON: Features = Features(1 << 14);
    /// Protection ends with the first write, without a message (6.7).
    pub const WP_ASYNC: Features = Features(1 << 15);
    /// Pages moved from one address to another (6.8).
    pub const MOVE: Features = Features(1 << 16);

    /// Each with its name in linux/userfaultfd.h.
    pub const NAMES: [(Features, &'static str); 17] = [
        (Features::PAGEFAULT_FLAG_WP, "PAGEFAULT_FLAG_WP"),
        (Features::EVENT_FORK, "EVENT_FORK"),
        (Features::EVENT_REMAP, "EVENT_REMAP"),
        (Features::EVENT_REMOVE, "EVENT_REMOVE"),
        (Features::MISSING_HUGETLBFS, "MISSING_HUGETLBFS"),
        (Features::MISSING_SHMEM, "MISSING_SHMEM"),
        (Features::EVENT_UNMAP, "EVENT_UNMAP"),
        (Features::SIGBUS, "SIGBUS"),
        (Features::THREAD_ID, "THREAD_ID"),
        (Features::MINOR_HUGETLBFS, "MINOR_HUGETLBFS"),
        (Features::MINOR_SHMEM, "MINOR_SHMEM"),
        (Features::EXACT_ADDRESS, "EXACT_ADDRESS"),
        (Features::WP_HUGETLBFS_SHMEM, "WP_HUGETLBFS_SHMEM"),
        (Features::WP_UNPOPULATED, "WP_UNPOPULATED"),
        (Features::POISON, "POISON"),
        (Features::WP_ASYNC, "WP_ASYNC"),
        (Features::MOVE, "MOVE"),
    ];

    /// Whether all of `features` are among these.
    pub const fn contains(self, features: Features) -> bool {
        self.0 & features.0 == features.0
    }

    /// The names of those that have one.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Features::NAMES.into_iter().filter(move |(feature, _)| self.contains(*feature)).map(|f| f.1)
    }
}

impl BitOr for Features {
    type Output = Features;

    fn bitor(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

impl Sub for Features {
    type Output = Features;

    fn sub(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// `UFFD_API`.
pub(super) const API_VERSION: u64 = 0xaa;
/// `UFFD_USER_MODE_ONLY`: a flag of the system call, beside `O_CLOEXEC` and `O_NONBLOCK`.
pub(super) const USER_MODE_ONLY: libc::c_int = 1;

/// `struct uffdio_api`.
#[repr(C)]
pub(super) struct Api {
    pub(super) api: u64,
    pub(super) features: u64,
    pub(super) ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AddressRange {
    pub(super) start: u64,
    pub(super) len: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
pub(super) struct Register {
    pub(super) range: AddressRange,
    pub(super) mode: u64,
    pub(super) ioctls: u64,
}

/// `struct uffdio_copy` and `struct uffdio_move`.
#[repr(C)]
pub(super) struct Transfer {
    pub(super) to: u64,
    pub(super) from: u64,
    pub(super) len: u64,
    pub(super) mode: u64,
    /// Written by the kernel: bytes, or an error below 0.
    pub(super) done: i64,
}

/// `struct uffdio_zeropage` and `struct uffdio_poison`.
#[repr(C)]
pub(super) struct Fill {
    pub(super) range: AddressRange,
    pub(super) mode: u64,
    /// Written by the kernel: bytes, or an error below 0.
    pub(super) done: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
pub(super) struct WriteProtect {
    pub(super) range: AddressRange,
    pub(super) mode: u64,
}

const _: () = assert!(size_of::<Api>() == 24 && size_of::<Register>() == 32);
const _: () = assert!(size_of::<Transfer>() == 40 && size_of::<Fill>() == 32);
const _: () = assert!(size_of::<WriteProtect>() == 24);

/// `USERFAULTFD_IOC_NEW`, of /dev/userfaultfd.
pub(super) const NEW: Ioctl = _IO(0xaa, 0x00);
pub(super) const REGISTER: Ioctl = _IOWR::<Register>(0xaa, 0x00);
pub(super) const UNREGISTER: Ioctl = _IOR::<AddressRange>(0xaa, 0x01);
pub(super) const WAKE: Ioctl = _IOR::<AddressRange>(0xaa, 0x02);
pub(super) const COPY: Ioctl = _IOWR::<Transfer>(0xaa, 0x03);
pub(super) const ZEROPAGE: Ioctl = _IOWR::<Fill>(0xaa, 0x04);
pub(super) const MOVE: Ioctl = _IOWR::<Transfer>(0xaa, 0x05);
pub(super) const WRITEPROTECT: Ioctl = _IOWR::<WriteProtect>(0xaa, 0x06);
pub(super) const POISON: Ioctl = _IOWR::<Fill>(0xaa, 0x08);
pub(super) const API: Ioctl = _IOWR::<Api>(0xaa, 0x3f);

/// Modes of REGISTER.
pub(super) const REGISTER_MISSING: u64 = 1;
pub(super) const REGISTER_WP: u64 = 1 << 1;
/// Of COPY, ZEROPAGE, MOVE and POISON.
pub(super) const DONTWAKE: u64 = 1;
/// Of COPY.
pub(super) const COPY_WP: u64 = 1 << 1;
/// Of MOVE.
pub(super) const MOVE_ALLOW_SRC_HOLES: u64 = 1 << 1;
/// Of WRITEPROTECT.
pub(super) const WRITEPROTECT_WP: u64 = 1;
pub(super) const WRITEPROTECT_DONTWAKE: u64 = 1 << 1;

/// `uffd_msg.event`.
pub(super) const EVENT_PAGEFAULT: u8 = 0x12;
pub(super) const EVENT_FORK: u8 = 0x13;
pub(super) const EVENT_REMAP: u8 = 0x14;
pub(super) const EVENT_REMOVE: u8 = 0x15;
pub(super) const EVENT_UNMAP: u8 = 0x16;

/// `uffd_msg.arg.pagefault.flags`.
pub(super) const PAGEFAULT_WRITE: u64 = 1;
pub(super) const PAGEFAULT_WP: u64 = 1 << 1;
