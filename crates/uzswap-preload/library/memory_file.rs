//! The functions of the C library that read and write a file at a position, for a program's own
//! memory as a file (`/proc/self/mem`): compilers write read-only code by it.
//!
//! For such a file the kernel waits for no userfaultfd. At an evicted page the call fails (EIO), or
//! ends early. These functions then bring the page in, and continue. Each calls the next function
//! of its name first, so all other files are read and written as before.
//!
//! read(2) and write(2) are left alone: on the way through here each call, a short one takes 0.24
//! us, would take 5 to 10 % longer.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use crate::call::{self, MADV_POPULATE_READ, MADV_POPULATE_WRITE, PAGE_BYTES, call};
use crate::exec::{Next, by_call, next};
use crate::helper::{ask, read_link};
use crate::{__errno_location, WATCHED};

/// Pages that are brought in at once.
const AHEAD_BYTES: usize = 64 * PAGE_BYTES;

/// Calls without progress after which it fails. A page that is brought in may be evicted again.
const TRIES: u32 = 8;

const EIO: c_int = 5;

static PREAD: Next = Next::new(c"pread");
static PREAD_64: Next = Next::new(c"pread64");
static PWRITE: Next = Next::new(c"pwrite");
static PWRITE_64: Next = Next::new(c"pwrite64");
static PREADV: Next = Next::new(c"preadv");
static PREADV_64: Next = Next::new(c"preadv64");
static PWRITEV: Next = Next::new(c"pwritev");
static PWRITEV_64: Next = Next::new(c"pwritev64");

pub(crate) static ALL: [&Next; 8] =
    [&PREAD, &PREAD_64, &PWRITE, &PWRITE_64, &PREADV, &PREADV_64, &PWRITEV, &PWRITEV_64];

/// A buffer of `struct iovec`.
#[repr(C)]
pub struct Part {
    base: *mut c_void,
    bytes: usize,
}

/// What a call was to read or write.
struct Access {
    file: c_int,
    address: usize,
    bytes: usize,
    is_write: bool,
}

impl Access {
    /// Continues after `done` bytes, if the file is this process's memory: how many are done then.
    /// `again` makes the call for what is left, or anew, and returns how many are done after it.
    #[cold]
    fn finish(
        &self,
        mut done: usize,
        again: &dyn Fn(usize) -> Result<usize, u32>,
    ) -> Option<usize> {
        if done >= self.bytes || !is_own_memory(self.file) {
            return None;
        }
        let mut tries = TRIES;
        while done < self.bytes && tries > 0 && self.bring_in(done, tries < TRIES) {
            match again(done) {
                Ok(then) if then > done => (done, tries) = (then, TRIES),
                Err(errno) if errno == EIO as u32 => tries -= 1,
                Ok(_) | Err(_) => break,
            }
        }
        (done > 0).then_some(done)
    }

    /// Brings in the page at which a call has stopped, and some after it.
    fn bring_in(&self, done: usize, was_in_vain: bool) -> bool {
        let Some(at) = self.address.checked_add(done) else { return false };
        let page = at - at % PAGE_BYTES;
        let left = (at - page).saturating_add(self.bytes - done).min(AHEAD_BYTES);
        let populate = |bytes, advice| ask(call::MADVISE, [page, bytes, advice, 0, 0, 0]).is_ok();
        // Memory that can be written alone is not brought in by reading.
        let is_in =
            populate(PAGE_BYTES, MADV_POPULATE_READ) || populate(PAGE_BYTES, MADV_POPULATE_WRITE);
        if is_in && left > PAGE_BYTES {
            populate(left.next_multiple_of(PAGE_BYTES), MADV_POPULATE_READ);
        }
        if is_in && self.is_write && was_in_vain {
            // The supervisor may have protected it against writes.
            populate(PAGE_BYTES, MADV_POPULATE_WRITE);
        }
        is_in
    }
}

/// Whether a file is the memory of this process.
fn is_own_memory(file: c_int) -> bool {
    const FILES: &[u8] = b"/proc/thread-self/fd/";
    let Ok(mut number) = u32::try_from(file) else { return false };
    let mut path = [0; FILES.len() + 11]; // ten digits, and the end
    path[..FILES.len()].copy_from_slice(FILES);
    let digits = number.checked_ilog10().map_or(1, |log| log as usize + 1);
    for digit in (0..digits).rev() {
        path[FILES.len() + digit] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    let (mut opened, mut own) = ([0; 64], [0; 16]);
    let (opened, own) = (read_link(&path, &mut opened), read_link(b"/proc/self\0", &mut own));
    let parts = || opened.split(|byte| *byte == b'/');
    // "/proc/PID/mem", or "/proc/PID/task/TID/mem".
    parts().nth(1) == Some(b"proc")
        && !own.is_empty()
        // Without a function of the program, such as memcmp(3).
        && parts().nth(2).is_some_and(|of| of.iter().eq(own))
        && parts().nth(if parts().nth(3) == Some(b"task") { 5 } else { 3 }) == Some(b"mem")
}

/// Whether a call may have met an evicted page: it failed, or ended between two pages.
fn may_be_cut(result: isize, position: i64) -> bool {
    match result {
        // SAFETY: a pointer to this thread's errno.
        -1 => WATCHED.load(Ordering::Relaxed) && unsafe { *__errno_location() } == EIO,
        done if done > 0 => {
            (position as usize).wrapping_add(done as usize).is_multiple_of(PAGE_BYTES)
                && WATCHED.load(Ordering::Relaxed)
        }
        _ => false,
    }
}

type At = unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize;
type Parts = unsafe extern "C" fn(c_int, *const Part, c_int, i64) -> isize;

/// A function with a position.
macro_rules! at {
    ($(#[$doc:meta])* $name:ident, $next:ident, $number:expr, $is_write:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As that of the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            file: c_int,
            at: *mut c_void,
            bytes: usize,
            position: i64,
        ) -> isize {
            let arguments = [file as usize, at.addr(), bytes, position as usize, 0, 0];
            let result = next!($next: At, (file, at, bytes, position), by_call($number, arguments));
            if result != bytes as isize && may_be_cut(result, position) {
                return finish_at(result, $number, arguments, $is_write);
            }
            result
        }
    };
}

/// Of a call that failed, or ended early.
#[cold]
fn finish_at(result: isize, number: usize, arguments: [usize; 6], is_write: bool) -> isize {
    let [file, at, bytes, address, ..] = arguments;
    let access = Access { file: file as c_int, address, bytes, is_write };
    let again = |done| {
        let rest = [file, at + done, bytes - done, address + done, 0, 0];
        // SAFETY: the rest of the caller's call.
        unsafe { call(number, rest) }.map(|more| done + more)
    };
    access.finish(result.max(0) as usize, &again).map_or(result, |done| done as isize)
}

/// A function with a position and several buffers.
macro_rules! parts {
    ($(#[$doc:meta])* $name:ident, $next:ident, $number:expr, $is_write:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As that of the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            file: c_int,
            parts: *const Part,
            count: c_int,
            position: i64,
        ) -> isize {
            // The kernel shifts the upper half out (preadv(2)).
            let arguments =
                [file as usize, parts.addr(), count as usize, position as usize, 0, 0];
            let result =
                next!($next: Parts, (file, parts, count, position), by_call($number, arguments));
            if may_be_cut(result, position) {
                // SAFETY: the kernel has read them.
                let parts = unsafe { core::slice::from_raw_parts(parts, count as usize) };
                return finish_parts(result, $number, arguments, parts, $is_write);
            }
            result
        }
    };
}

/// Of a call that failed, or ended early. It is made anew: that reads or writes the same.
#[cold]
fn finish_parts(
    result: isize,
    number: usize,
    arguments: [usize; 6],
    parts: &[Part],
    is_write: bool,
) -> isize {
    let [file, _, _, address, ..] = arguments;
    let bytes = parts.iter().map(|part| part.bytes).sum();
    let access = Access { file: file as c_int, address, bytes, is_write };
    // SAFETY: it is the caller's call.
    let again = |_| unsafe { call(number, arguments) };
    access.finish(result.max(0) as usize, &again).map_or(result, |done| done as isize)
}

at! {
    /// pread(2).
    pread, PREAD, call::PREAD, false
}
at! {
    /// The same.
    pread64, PREAD_64, call::PREAD, false
}
at! {
    /// pwrite(2).
    pwrite, PWRITE, call::PWRITE, true
}
at! {
    /// The same.
    pwrite64, PWRITE_64, call::PWRITE, true
}
parts! {
    /// preadv(2).
    preadv, PREADV, call::PREADV, false
}
parts! {
    /// The same.
    preadv64, PREADV_64, call::PREADV, false
}
parts! {
    /// pwritev(2).
    pwritev, PWRITEV, call::PWRITEV, true
}
parts! {
    /// The same.
    pwritev64, PWRITEV_64, call::PWRITEV, true
}
