//! The environment that a program gives to another one. The loader finds the preload library by a
//! variable there, and the library finds the supervisor by another. Programs that clear both
//! (`env -i`, sudo, a test runner) would leave the run, so the library puts them back.
//!
//! An exec may come after vfork(2), in memory that the parent has too. So nothing here takes a lock
//! or allocates, and each changed environment is on the stack of the calling thread.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::PATH_BYTES;
use crate::call::{self, PAGE_BYTES, call};
use crate::protocol::{LIBRARY_NAME, SOCKET_VARIABLE};
use crate::{__errno_location, environ};

/// An array of variables, as execve(2) takes it.
pub(crate) type Variables = *const *const c_char;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const SOCKET: &[u8] = b"UZSWAP_SOCKET=";
const _: () = assert!(SOCKET.len() == SOCKET_VARIABLE.len() + 1);

const E2BIG: c_int = 7;
const EINVAL: u32 = 22;

/// Variables of an environment that this library changes at most, and bytes of LD_PRELOAD. The
/// array is on the stack, and a thread of musl has 128 KiB. Others stay as they are.
const FEW: usize = 256;
const MANY: usize = 4096;
const TEXT_BYTES: usize = 4096;

/// Places of an array beside those: two variables, and the null pointer.
const ENDS: usize = 3;

/// A variable of this program that others need, as a string of C.
struct Kept<const BYTES: usize>(UnsafeCell<[u8; BYTES]>);

// SAFETY: written by the constructor alone, when there is one thread.
unsafe impl<const BYTES: usize> Sync for Kept<BYTES> {}

impl<const BYTES: usize> Kept<BYTES> {
    const fn new(name: &[u8]) -> Self {
        let (mut text, mut at) = ([0; BYTES], 0);
        while at < name.len() {
            text[at] = name[at];
            at += 1;
        }
        Kept(UnsafeCell::new(text))
    }

    fn text(&self) -> &[u8; BYTES] {
        // SAFETY: nobody writes it any more, or there is one thread.
        unsafe { &*self.0.get() }
    }

    /// The value, with the null byte at its end.
    fn value(&self, name: &[u8]) -> &[u8] {
        let value = &self.text()[name.len()..];
        let end = value.iter().position(|byte| *byte == 0).unwrap_or(0);
        &value[..=end]
    }

    /// Keeps a value that is shorter than a path of a socket.
    fn keep(&self, name: &[u8], value: &[u8]) {
        // SAFETY: there is one thread, and nobody has a reference.
        let text = unsafe { &mut *self.0.get() };
        text[name.len()..][..value.len()].copy_from_slice(value);
    }

    fn pointer(&self) -> *const c_char {
        self.0.get().cast()
    }
}

static KEPT_PRELOAD: Kept<{ PRELOAD.len() + PATH_BYTES }> = Kept::new(PRELOAD);
static KEPT_SOCKET: Kept<{ SOCKET.len() + PATH_BYTES }> = Kept::new(SOCKET);

/// Whether both are known.
static IS_KEPT: AtomicBool = AtomicBool::new(false);

/// Keeps what others need of this program's environment: the socket, and of the libraries that are
/// preloaded this one. Runs before the program's `main`.
pub(crate) fn keep(socket: &[u8], preloaded: &[u8]) {
    KEPT_SOCKET.keep(SOCKET, socket);
    let is_ours =
        |entry: &&[u8]| entry.ends_with(LIBRARY_NAME.as_bytes()) && entry.len() < PATH_BYTES;
    if let Some(entry) = preloaded.split(|byte| is_separator(*byte)).find(is_ours) {
        KEPT_PRELOAD.keep(PRELOAD, entry);
        IS_KEPT.store(true, Ordering::Release);
    }
}

/// The path of the supervisor's socket, with null bytes up to its end.
pub(crate) fn socket_path() -> &'static [u8; PATH_BYTES] {
    let path = KEPT_SOCKET.text().last_chunk();
    path.expect("the path is at the end of the variable")
}

/// The loader takes both.
const fn is_separator(byte: u8) -> bool {
    matches!(byte, b':' | b' ')
}

/// What the program's own variable is now.
pub(crate) fn own() -> Variables {
    // SAFETY: the C library's variable, which the program may change.
    unsafe { ptr::read_volatile(&raw const environ) }
}

/// Calls a function that starts a program, with a changed environment if that is needed. Where the
/// kernel finds the changed one too long, the function is called with the given one.
pub(crate) fn with_ours(given: Variables, start: &mut dyn FnMut(Variables) -> c_int) -> c_int {
    let Some(missing) = Missing::of(given) else { return start(given) };
    let result = match missing.variables {
        0..FEW => missing.fill::<{ FEW + ENDS }>(start),
        FEW..MANY => missing.fill::<{ MANY + ENDS }>(start),
        _ => return start(given),
    };
    // A function of spawn.h returns the error, all others -1.
    let is_too_long = match result {
        // SAFETY: a pointer to this thread's errno.
        -1 => unsafe { *__errno_location() == E2BIG },
        result => result == E2BIG,
    };
    if is_too_long { start(given) } else { result }
}

unsafe extern "C" {
    fn setenv(name: *const c_char, value: *const c_char, replaces: c_int) -> c_int;
}

/// Puts back into the program's own environment what is missing there, for functions that read it
/// themselves.
pub(crate) fn put_back() {
    let Some(missing) = Missing::of(own()) else { return };
    let mut buffer = [0; TEXT_BYTES];
    let Some(preload) = missing.preload_text(&mut buffer) else { return };
    for (name, variable) in [(c"LD_PRELOAD", preload), (c"UZSWAP_SOCKET", KEPT_SOCKET.pointer())] {
        let value = variable.wrapping_add(name.count_bytes() + 1);
        // SAFETY: strings of C, which the function copies.
        unsafe { setenv(name.as_ptr(), value, 1) };
    }
}

/// An environment in which something is missing.
struct Missing {
    given: Variables,
    /// How many variables it has.
    variables: usize,
    has_socket: bool,
    /// The place of its last LD_PRELOAD, which counts.
    preload: Option<usize>,
}

impl Missing {
    /// `None` where the environment is to stay as it is: nothing is missing, it is that of another
    /// run, or it cannot be read, which the kernel reports.
    fn of(given: Variables) -> Option<Missing> {
        if !IS_KEPT.load(Ordering::Acquire) {
            return None;
        }
        let mut missing = Missing { given, variables: 0, has_socket: false, preload: None };
        let (mut array, mut strings) = (Reader::new(), Reader::new());
        let mut has_library = false;
        while !given.is_null() {
            let text = array.word(given.wrapping_add(missing.variables).addr())?;
            if text == 0 {
                break;
            }
            if let Some(value) = strings.value(text, PRELOAD)? {
                has_library = strings.match_entry(value, KEPT_PRELOAD.value(PRELOAD))?;
                missing.preload = Some(missing.variables);
            } else if let Some(value) = strings.value(text, SOCKET)? {
                // That of an inner run, or none: a program may refuse to be managed.
                strings.value(value, KEPT_SOCKET.value(SOCKET))??;
                missing.has_socket = true;
            }
            missing.variables += 1;
        }
        // With another root, its loader would complain of a library that it does not find.
        (!(has_library && missing.has_socket) && is_library_there()).then_some(missing)
    }

    /// Calls a function with the environment and what was missing there, in an array of `ROOM`.
    #[inline(never)]
    fn fill<const ROOM: usize>(&self, start: &mut dyn FnMut(Variables) -> c_int) -> c_int {
        let (mut array, mut buffer) = ([ptr::null(); ROOM], [0; TEXT_BYTES]);
        let Some(preload) = self.preload_text(&mut buffer) else { return start(self.given) };
        for (at, variable) in array[..self.variables].iter_mut().enumerate() {
            // SAFETY: one of the variables that were read before.
            let given = unsafe { self.given.add(at) };
            // SAFETY: that variable, which another thread must not change.
            *variable = unsafe { given.read_unaligned() };
        }
        let mut end = self.variables;
        let mut set = |at: Option<usize>, text| {
            array[at.unwrap_or(end)] = text;
            end += usize::from(at.is_none());
        };
        set(self.preload, preload);
        if !self.has_socket {
            set(None, KEPT_SOCKET.pointer());
        }
        start(array.as_ptr())
    }

    /// The variable for the loader: this library before those that the environment names. `None`
    /// where these are too long.
    fn preload_text(&self, buffer: &mut [u8; TEXT_BYTES]) -> Option<*const c_char> {
        let Some(at) = self.preload else { return Some(KEPT_PRELOAD.pointer()) };
        let mut strings = Reader::new();
        let text = strings.word(self.given.wrapping_add(at).addr())?;
        let value = strings.value(text, PRELOAD)??;
        if strings.byte(value)? == 0 {
            return Some(KEPT_PRELOAD.pointer());
        }
        let entry = KEPT_PRELOAD.value(PRELOAD);
        if strings.match_entry(value, entry)? {
            return Some(ptr::with_exposed_provenance(text));
        }
        let ours = PRELOAD.len() + entry.len();
        buffer[..ours].copy_from_slice(&KEPT_PRELOAD.text()[..ours]);
        buffer[ours - 1] = b':'; // instead of the null byte
        for (at, byte) in buffer[ours..].iter_mut().enumerate() {
            *byte = strings.byte(value + at)?;
            if *byte == 0 {
                return Some(buffer.as_ptr().cast());
            }
        }
        None
    }
}

/// Whether the program's root has the library.
fn is_library_there() -> bool {
    const READ_OK: usize = 4;
    let path = KEPT_PRELOAD.value(PRELOAD).as_ptr().addr();
    // SAFETY: the kernel reads a string of C.
    unsafe { call(call::FACCESSAT, [call::AT_FDCWD, path, READ_OK, 0, 0, 0]) }.is_ok()
}

/// Reads memory of which a program says that it is there; `None` is the answer where it is not.
struct Reader {
    /// A page that can be read.
    page: usize,
}

impl Reader {
    fn new() -> Reader {
        Reader { page: 0 }
    }

    /// Whether a page can be read; asks the kernel if it is not the last one.
    fn try_page(&mut self, at: usize) -> bool {
        let page = at & !(PAGE_BYTES - 1);
        if page != self.page || page == 0 {
            // The kernel reads eight bytes there before it refuses an unknown action.
            // SAFETY: it changes nothing.
            let asked = unsafe { call(call::SIGNAL_MASK, [usize::MAX, page, 0, 8, 0, 0]) };
            if asked != Err(EINVAL) {
                return false;
            }
            self.page = page;
        }
        true
    }

    fn byte(&mut self, at: usize) -> Option<u8> {
        let pointer = ptr::with_exposed_provenance::<u8>(at);
        // SAFETY: the kernel has read this page just now.
        self.try_page(at).then(|| unsafe { pointer.read_volatile() })
    }

    /// An address, which may be at any.
    fn word(&mut self, at: usize) -> Option<usize> {
        let mut bytes = [0; size_of::<usize>()];
        for (offset, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(at + offset)?;
        }
        Some(usize::from_ne_bytes(bytes))
    }

    /// The address behind `name`, if the memory begins so.
    fn value(&mut self, mut at: usize, name: &[u8]) -> Option<Option<usize>> {
        for expected in name {
            if self.byte(at)? != *expected {
                return Some(None);
            }
            at += 1;
        }
        Some(Some(at))
    }

    /// Whether a list of libraries has one, which ends with a null byte here.
    fn match_entry(&mut self, mut at: usize, entry: &[u8]) -> Option<bool> {
        let mut same = Some(0);
        loop {
            let byte = self.byte(at)?;
            let is_end = byte == 0 || is_separator(byte);
            let expected = same.map(|same| entry[same]);
            match expected {
                Some(0) if is_end => return Some(true),
                Some(expected) if expected == byte => same = same.map(|same| same + 1),
                _ => same = None,
            }
            if byte == 0 {
                return Some(false);
            }
            if is_end {
                same = Some(0);
            }
            at += 1;
        }
    }
}
