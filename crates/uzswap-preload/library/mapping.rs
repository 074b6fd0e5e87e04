//! mmap(2), madvise(2), mlock(2) and mlockall(2) of the C library. Some of their calls are changed
//! because the supervisor cannot follow them: calls that fill much memory, lazy frees, guards.
//!
//! The kernel fills memory for MAP_POPULATE and for locks without a fault, and holds the lock of
//! all mappings meanwhile. The supervisor could register no memory and evict nothing until all is
//! filled.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use crate::WATCHED;
use crate::call::{self, MADV_DONTNEED, MADV_POPULATE_READ, MADV_POPULATE_WRITE, PAGE_BYTES};
use crate::exec::{Next, by_call, failed, next_found};
use crate::helper::ask;

/// Memory is filled in parts of a huge page. Between two parts others get the lock of all mappings.
const PART_BYTES: usize = 2 << 20;

const PROT_READ: c_int = 1;
const PROT_WRITE: c_int = 2;
const MAP_PRIVATE: c_int = 0x02;
const MAP_ANONYMOUS: c_int = 0x20;
const MAP_LOCKED: c_int = 0x2000;
const MAP_POPULATE: c_int = 0x8000;
const MAP_HUGETLB: c_int = 0x4_0000;

const MCL_ONFAULT: c_int = 4;

const MADV_FREE: usize = 8;
const MADV_GUARD_INSTALL: usize = 102;

static MMAP: Next = Next::new(c"mmap");
static MMAP_64: Next = Next::new(c"mmap64");

pub(crate) static ALL: [&Next; 2] = [&MMAP, &MMAP_64];

type Map = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;

/// mmap(2) by one of its names.
macro_rules! mmap {
    ($(#[$doc:meta])* $name:ident, $next:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As that of the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            address: *mut c_void,
            bytes: usize,
            rights: c_int,
            flags: c_int,
            file: c_int,
            offset: i64,
        ) -> *mut c_void {
            let fills_parts = is_filled_in_parts(bytes, flags);
            let flags = if fills_parts { flags & !MAP_POPULATE } else { flags };
            let numbers = [bytes, rights as usize, flags as usize, file as usize, offset as usize];
            let by_call = || {
                let [bytes, rights, flags, file, offset] = numbers;
                let arguments = [address.addr(), bytes, rights, flags, file, offset];
                core::ptr::with_exposed_provenance_mut(by_call(call::MMAP, arguments) as usize)
            };
            let mapped =
                next_found!($next: Map, (address, bytes, rights, flags, file, offset), by_call());
            if fills_parts && mapped.addr() != usize::MAX {
                fill(mapped.addr(), bytes, rights);
            }
            mapped
        }
    };
}

mmap! {
    /// mmap(2), which fills private anonymous memory in parts.
    mmap, MMAP
}
mmap! {
    /// The same.
    mmap64, MMAP_64
}

/// Whether a call asks for much private anonymous memory, and to fill it.
fn is_filled_in_parts(bytes: usize, flags: c_int) -> bool {
    const KIND: c_int = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    flags & (KIND | MAP_LOCKED | MAP_HUGETLB) == KIND && bytes > PART_BYTES
}

/// Fills memory as MAP_POPULATE does, which never fails: the rest is filled when it is touched.
#[cold]
fn fill(from: usize, bytes: usize, rights: c_int) {
    let advice = match rights {
        rights if rights & PROT_WRITE != 0 => MADV_POPULATE_WRITE,
        rights if rights & PROT_READ != 0 => MADV_POPULATE_READ,
        _ => return,
    };
    let _ = advise_in_parts(from, bytes, advice);
}

/// Gives advice about parts of a range, one after the other, up to the first that fails.
fn advise_in_parts(from: usize, bytes: usize, advice: usize) -> Result<(), u32> {
    in_parts(from, bytes, |from, bytes| ask(call::MADVISE, [from, bytes, advice, 0, 0, 0]))
}

/// Makes a system call for parts of a range, one after the other, up to the first that fails.
///
/// Between two parts it sleeps. A thread that waits for the lock takes some 35 us to wake up, and
/// the kernel lets other threads take the lock meanwhile, for 4 ms.
fn in_parts(
    from: usize,
    bytes: usize,
    fill: impl Fn(usize, usize) -> Result<usize, u32>,
) -> Result<(), u32> {
    let pause = [0_i64, 1]; // and the slack of timers, 50 us
    let mut done = 0;
    while done < bytes {
        if done > 0 {
            let _ = ask(call::NANOSLEEP, [pause.as_ptr().addr(), 0, 0, 0, 0, 0]);
        }
        let to_border = PART_BYTES - (from + done) % PART_BYTES;
        let part = to_border.min(bytes - done);
        fill(from + done, part)?;
        done += part;
    }
    Ok(())
}

/// madvise(2), with three changes:
///
/// - In registered memory, MADV_DONTNEED replaces MADV_FREE: a later free by the kernel sends no
///   event, so the supervisor could not evict such pages any more. The kernel may free them at once
///   too.
/// - MADV_DONTNEED comes before MADV_GUARD_INSTALL, which drops pages without an event.
/// - MADV_POPULATE_READ and MADV_POPULATE_WRITE fill memory in parts.
///
/// # Safety
///
/// As the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int {
    let from = address.addr();
    let advice = match advice as usize {
        MADV_FREE if WATCHED.load(Ordering::Relaxed) => MADV_DONTNEED,
        MADV_GUARD_INSTALL => {
            let _ = ask(call::MADVISE, [from, length, MADV_DONTNEED, 0, 0, 0]);
            advice as usize
        }
        fills @ (MADV_POPULATE_READ | MADV_POPULATE_WRITE) if has_parts(from, length) => {
            return match advise_in_parts(from, length, fills) {
                Ok(()) => 0,
                Err(errno) => failed(errno as c_int),
            };
        }
        other => other,
    };
    by_call(call::MADVISE, [from, length, advice, 0, 0, 0]) as c_int
}

/// Whether a range is large, and one about which the kernel takes advice.
fn has_parts(from: usize, bytes: usize) -> bool {
    bytes > PART_BYTES && from.is_multiple_of(PAGE_BYTES) && from.checked_add(bytes).is_some()
}

/// mlock(2), which fills memory in parts. If a part fails, no part stays locked.
///
/// # Safety
///
/// As the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(address: *const c_void, length: usize) -> c_int {
    let from = address.addr();
    let lock = |from, bytes| ask(call::MLOCK, [from, bytes, 0, 0, 0, 0]);
    if !has_parts(from, length) {
        return by_call(call::MLOCK, [from, length, 0, 0, 0, 0]) as c_int;
    }
    match in_parts(from, length, lock) {
        Ok(()) => 0,
        Err(errno) => {
            let _ = ask(call::MUNLOCK, [from, length, 0, 0, 0, 0]);
            failed(errno as c_int)
        }
    }
}

/// mlockall(2), which locks pages when they are touched and fills nothing: staging is among the
/// memory that the kernel would fill.
///
/// # Safety
///
/// As the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    let on_fault = if flags & !MCL_ONFAULT != 0 { flags | MCL_ONFAULT } else { flags };
    by_call(call::MLOCKALL, [on_fault as usize, 0, 0, 0, 0, 0]) as c_int
}
