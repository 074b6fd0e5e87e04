//! The message of a thread's last failure.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString, c_char};

/// A thread's last failure. The error becomes text once C asks for that: some callers store pages
/// until one is refused, and need no text then.
#[derive(Default)]
struct LastError {
    error: Option<Box<dyn Error>>,
    text: CString,
}

thread_local! {
    static LAST: RefCell<LastError> = RefCell::default();
}

/// Keeps an error as the last one of this thread. Without effect while the thread ends.
pub(crate) fn note(error: Box<dyn Error>) {
    let before = LAST.try_with(|last| last.borrow_mut().error.replace(error));
    drop(before);
}

/// An error and its sources, without the NULs that may be in a name.
fn text(error: &dyn Error) -> CString {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

/// The message of the last failure of the calling thread, in English, without a line end. "" where
/// no call of this thread has failed. Never NULL.
///
/// The library owns the text, which is valid until the thread calls this function again or ends.
#[unsafe(no_mangle)]
pub extern "C" fn uz_last_error() -> *const c_char {
    let none: &CStr = c"";
    let pointer = LAST.try_with(|last| {
        let last = &mut *last.borrow_mut();
        if let Some(error) = last.error.take() {
            last.text = text(&*error);
        }
        last.text.as_ptr()
    });
    pointer.unwrap_or(none.as_ptr())
}

/// The message of the calling thread.
#[cfg(test)]
pub(crate) fn message() -> String {
    let error = LAST.with(|last| last.borrow_mut().error.take());
    error.map(|error| text(&*error).into_string().expect("UTF-8")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_message_has_its_sources_and_no_nul() {
        let inner = io::Error::other("b\0c");
        let outer = uzswap::zswap::snapshot::SnapshotError::Write { at: 7, source: inner };
        let expected = c"cannot write byte 7 of the snapshot: b?c";
        assert_eq!(text(&outer).as_c_str(), expected);
    }
}
