//! The frame of each function: errors become codes, and panics end.

use std::any::Any;
use std::error::Error;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::last_error;
use crate::status::{HasStatus, Status};

/// A failure whose message is the thread's last one.
#[derive(Debug)]
pub(crate) struct Failure(Status);

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<Box<dyn Error>>) -> Failure {
        last_error::note(message.into());
        Failure(status)
    }
}

impl<E: HasStatus + Into<Box<dyn Error>>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(error.status(), error)
    }
}

/// Does the work of a function. A panic was printed when it began, and becomes `UZ_PANIC` here.
#[inline]
pub(crate) fn call(work: impl FnOnce() -> Result<Status, Failure>) -> Status {
    // The store is made for panics of its parts, and options change as a whole.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(status)) => status,
        Ok(Err(Failure(status))) => status,
        Err(panic) => note_panic(&*panic),
    }
}

#[cold]
fn note_panic(panic: &(dyn Any + Send)) -> Status {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    let Failure(status) = Failure::new(Status::UzPanic, format!("a defect of uzswap: {text}"));
    status
}

/// A page that was found, or not.
pub(crate) fn found(is_found: bool) -> Status {
    if is_found { Status::UzOk } else { Status::UzNotFound }
}

/// A few words about a code, which may be any number. The text is constant.
#[unsafe(no_mangle)]
pub extern "C" fn uz_strerror(status: i32) -> *const c_char {
    Status::of(status).map_or(c"unknown status", Status::text).as_ptr()
}

/// The version of the library, "0.1.0". The text is constant.
#[unsafe(no_mangle)]
pub extern "C" fn uz_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL"),
        };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_code_with_its_message() {
        for _ in 0..2 {
            assert_eq!(call(|| panic!("number {}", 7)), Status::UzPanic);
        }
        assert_eq!(call(|| Ok(found(false))), Status::UzNotFound);
    }
}
