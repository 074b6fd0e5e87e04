//! Pointers from C, as types that check a pointer before they turn it into a reference.
//!
//! Each type is one pointer, so a function with such an argument has a pointer there for C;
//! `cbindgen.toml` has the names. Only C makes values of them: the fields are private. The header
//! begins with C's promise: a pointer is NULL, or leads to memory that is there during the call.
//! Handles come from a function that makes them, and were not freed. No other thread writes to the
//! memory that a call reads, or uses the memory that it writes. Arguments of one call do not
//! overlap.
//!
//! A reference lives as long as its argument, and so ends with the call.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::slice;

use uzswap::page::{PAGE_SIZE, Page};

use crate::call::Failure;
use crate::status::Status;

/// A handle that C keeps and other threads may use too.
#[repr(transparent)]
#[derive(Debug)]
pub struct Shared<T>(*const T);

/// A handle that C gives back.
#[repr(transparent)]
#[derive(Debug)]
pub struct Owned<T>(*mut T);

/// A place for a new handle.
#[repr(transparent)]
#[derive(Debug)]
pub struct NewHandle<T>(*mut *mut T);

/// A text that ends with a NUL.
#[repr(transparent)]
#[derive(Debug)]
pub struct Text(*const c_char);

/// Bytes to read; their number is another argument.
#[repr(transparent)]
#[derive(Debug)]
pub struct Input(*const c_void);

/// Memory to write bytes to; their number is another argument.
#[repr(transparent)]
#[derive(Debug)]
pub struct Output(*mut c_void);

/// A place for one result, or for an array of them.
#[repr(transparent)]
#[derive(Debug)]
pub struct Place<T>(*mut T);

/// The failure of an argument.
#[cold]
fn wrong(name: &str, fault: &str) -> Failure {
    Failure::new(Status::UzArgument, format!("argument '{name}' {fault}"))
}

/// Checks that a pointer can lead to `count` values of T.
#[inline]
fn check<T>(pointer: *const T, count: usize, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(wrong(name, "is NULL"));
    }
    if !pointer.is_aligned() {
        return Err(wrong(name, "is not aligned for its type"));
    }
    // What Rust asks of every slice.
    let bytes = count.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize);
    match bytes.and_then(|bytes| pointer.addr().checked_add(bytes)) {
        Some(_) => Ok(()),
        None => Err(wrong(name, "has a length that exceeds the address space")),
    }
}

/// So many values to read from a pointer.
#[inline]
fn values<'a, T>(pointer: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    check(pointer, count, name)?;
    // SAFETY: the pointer was checked, and C promises `count` values there, which nobody changes
    // during the call. All callers are of types whose every bit pattern is a value.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// Room for so many values to write. This side never reads it: C may not have written to it.
#[inline]
fn room<'a, T>(
    pointer: *mut T,
    count: usize,
    name: &str,
) -> Result<&'a mut [MaybeUninit<T>], Failure> {
    check(pointer, count, name)?;
    // SAFETY: the pointer was checked, and C promises memory for `count` values there, which nobody
    // else uses during the call.
    Ok(unsafe { slice::from_raw_parts_mut(pointer.cast(), count) })
}

impl<T> Shared<T> {
    /// The value of the handle.
    #[inline]
    pub(crate) fn get(&self, name: &str) -> Result<&T, Failure> {
        check(self.0, 1, name)?;
        // SAFETY: the pointer was checked, and C promises that it is a handle that was not freed.
        // Nobody has it as `&mut`: `Owned::take` is called once, and after all other calls.
        Ok(unsafe { &*self.0 })
    }

    /// The same; `None` for NULL.
    pub(crate) fn optional(&self, name: &str) -> Result<Option<&T>, Failure> {
        if self.0.is_null() { Ok(None) } else { self.get(name).map(Some) }
    }
}

impl<T> Owned<T> {
    /// A new handle.
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned(Box::into_raw(Box::new(value)))
    }

    /// No handle.
    pub(crate) fn null() -> Owned<T> {
        Owned(std::ptr::null_mut())
    }

    /// Takes the value of the handle back; `None` for NULL.
    pub(crate) fn take(self, name: &str) -> Result<Option<Box<T>>, Failure> {
        if self.0.is_null() {
            return Ok(None);
        }
        check(self.0, 1, name)?;
        // SAFETY: the pointer was checked. C promises that `Owned::new` made it, that it was not
        // given back before, and that no other call has it now.
        Ok(Some(unsafe { Box::from_raw(self.0) }))
    }
}

impl<T> NewHandle<T> {
    /// Writes the handle of what `make` makes, or NULL where that fails.
    pub(crate) fn fill(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<Status, Failure> {
        let place = &mut room(self.0, 1, name)?[0];
        place.write(std::ptr::null_mut());
        place.write(Owned::new(make()?).0);
        Ok(Status::UzOk)
    }
}

impl Text {
    /// Its bytes, without the NUL.
    pub(crate) fn bytes(&self, name: &str) -> Result<&[u8], Failure> {
        check(self.0, 1, name)?;
        // SAFETY: the pointer is not NULL, and C promises a text there that ends with a NUL and
        // that nobody changes during the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_bytes())
    }

    /// The same as UTF-8.
    pub(crate) fn utf8(&self, name: &str) -> Result<&str, Failure> {
        std::str::from_utf8(self.bytes(name)?).map_err(|_| wrong(name, "is not UTF-8"))
    }
}

impl Input {
    /// So many bytes.
    pub(crate) fn bytes(&self, count: usize, name: &str) -> Result<&[u8], Failure> {
        values(self.0.cast(), count, name)
    }

    /// One page.
    #[inline]
    pub(crate) fn page(&self, name: &str) -> Result<&Page, Failure> {
        Ok(&self.pages(1, name)?[0])
    }

    /// So many pages.
    #[inline]
    pub(crate) fn pages(&self, count: usize, name: &str) -> Result<&[Page], Failure> {
        values(self.0.cast(), count, name)
    }
}

impl Output {
    /// Room for so many bytes.
    #[inline]
    pub(crate) fn bytes(&mut self, count: usize, name: &str) -> Result<&mut [u8], Failure> {
        let pointer = self.0.cast::<u8>();
        check(pointer, count, name)?;
        // SAFETY: the pointer was checked, and C promises memory for `count` bytes there, which
        // nobody else uses during the call. C's memory has values that Rust cannot know, so that
        // none of it is uninitialized to Rust; and loads write it without a read.
        Ok(unsafe { slice::from_raw_parts_mut(pointer, count) })
    }

    /// Room for a page.
    #[inline]
    pub(crate) fn page(&mut self, name: &str) -> Result<&mut Page, Failure> {
        let bytes = self.bytes(PAGE_SIZE, name)?;
        Ok(bytes.try_into().expect("a page has so many bytes"))
    }

    /// Writes a text and a NUL, if `size` is enough for both.
    pub(crate) fn write_text(
        &mut self,
        size: usize,
        text: &str,
        name: &str,
    ) -> Result<(), Failure> {
        if size <= text.len() {
            let needed = text.len() + 1;
            let message = format!("buffer of {size} bytes is too small; {needed} are needed");
            return Err(Failure::new(Status::UzBuffer, message));
        }
        let (to, end) = self.bytes(size, name)?.split_at_mut(text.len());
        to.copy_from_slice(text.as_bytes());
        end[0] = 0;
        Ok(())
    }
}

impl<T> Place<T> {
    /// The place of a result.
    #[inline]
    pub(crate) fn get(&mut self, name: &str) -> Result<&mut MaybeUninit<T>, Failure> {
        Ok(&mut room(self.0, 1, name)?[0])
    }

    /// The same; `None` for NULL, where C does not ask for the result.
    pub(crate) fn optional(&mut self, name: &str) -> Result<Option<&mut MaybeUninit<T>>, Failure> {
        if self.0.is_null() { Ok(None) } else { self.get(name).map(Some) }
    }

    /// Places of an array; none for NULL.
    pub(crate) fn array(
        &mut self,
        count: usize,
        name: &str,
    ) -> Result<&mut [MaybeUninit<T>], Failure> {
        if self.0.is_null() { Ok(&mut []) } else { room(self.0, count, name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::last_error::uz_last_error;

    fn message() -> String {
        let Ok(text) = Text(uz_last_error()).utf8("text").map(str::to_owned) else { panic!() };
        text
    }

    #[test]
    fn pointers_that_cannot_be_are_refused() {
        let word = 7_u64;
        let odd = (&raw const word).wrapping_byte_add(1);
        assert_eq!(Shared(&raw const word).get("word").ok(), Some(&7));
        for (pointer, expected) in [
            (std::ptr::null(), "argument 'word' is NULL"),
            (odd, "argument 'word' is not aligned for its type"),
        ] {
            assert!(Shared::<u64>(pointer).get("word").is_err());
            assert_eq!(message(), expected);
        }
        let page = [0_u8; PAGE_SIZE];
        let input = Input((&raw const page).cast());
        assert!(input.page("page").is_ok_and(|found| *found == page));
        for count in [usize::MAX, usize::MAX / PAGE_SIZE, isize::MAX as usize / PAGE_SIZE + 1] {
            assert!(input.pages(count, "pages").is_err());
            assert_eq!(message(), "argument 'pages' has a length that exceeds the address space");
        }
    }

    #[test]
    fn a_text_is_utf8_where_that_is_asked() {
        let text = Text(c"a\xff".as_ptr());
        assert_eq!(text.bytes("name").ok(), Some(&b"a\xff"[..]));
        assert!(text.utf8("name").is_err());
        assert_eq!(message(), "argument 'name' is not UTF-8");
    }

    #[test]
    fn a_text_is_written_whole_or_not() {
        let mut buffer = [9_u8; 4];
        let mut output = Output((&raw mut buffer).cast());
        assert!(output.write_text(3, "abc", "buffer").is_err());
        assert_eq!(message(), "buffer of 3 bytes is too small; 4 are needed");
        assert!(output.write_text(4, "ab", "buffer").is_ok());
        assert_eq!(buffer, *b"ab\0\x09");
    }

    #[test]
    fn a_handle_that_is_given_back_is_dropped() {
        let value = std::rc::Rc::new(());
        let handle = Owned::new(std::rc::Rc::clone(&value));
        assert_eq!(std::rc::Rc::strong_count(&value), 2);
        assert!(handle.take("handle").is_ok_and(|taken| taken.is_some()));
        assert_eq!(std::rc::Rc::strong_count(&value), 1);
        assert!(Owned::<u64>::null().take("handle").is_ok_and(|taken| taken.is_none()));
    }
}
