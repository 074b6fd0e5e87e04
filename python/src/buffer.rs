//! Bytes-like objects, page by page.
//!
//! Another thread may change the bytes at any time: one of Python while the GIL is released, one of
//! numpy also while it is held. So no reference of Rust leads to them. CPython itself copies pages
//! between the object and memory of this thread (`PyBuffer_ToContiguous`), while the GIL is held.
//! The store gets the copy. A page that another thread changes meanwhile is stored as a mix of both
//! contents.

use std::cell::RefCell;

use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PySlice};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::values::VALUE_BYTES_MAX;

/// Pages that are copied at a time: one release of the GIL for 256 KiB, which processors have room
/// for in their second cache.
pub(crate) const CHUNK_PAGES: usize = 1 << 6;

thread_local! {
    static PAGES: RefCell<Vec<Page>> = const { RefCell::new(Vec::new()) };
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Gives `work` this thread's room for [`CHUNK_PAGES`].
pub(crate) fn with_room<T>(work: impl FnOnce(&mut [Page]) -> T) -> T {
    // Taken out: `work` runs code of Python, which may come here again.
    let mut room = PAGES.take();
    room.resize(CHUNK_PAGES, [0; PAGE_SIZE]);
    let result = work(&mut room);
    PAGES.set(room);
    result
}

/// Gives `work` this thread's room for a value.
pub(crate) fn with_bytes<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let mut room = BYTES.take();
    let result = work(&mut room);
    BYTES.set(room);
    result
}

/// Copies the bytes of `object` to `bytes`, in place of what was there, and tells their number. Of
/// more than a value may have, none is copied.
///
/// # Errors
///
/// The object has no bytes, or is not contiguous.
pub(crate) fn copy_bytes(object: &Bound<'_, PyAny>, bytes: &mut Vec<u8>) -> PyResult<usize> {
    let (_, buffer) = bytes_of(object)?;
    let len = buffer.len_bytes();
    if len <= VALUE_BYTES_MAX {
        bytes.resize(len, 0);
        buffer.copy_to_slice(object.py(), bytes)?;
    }
    Ok(len)
}

/// A contiguous object as one of single bytes, and its buffer.
fn bytes_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, PyBuffer<u8>)> {
    let buffer = PyUntypedBuffer::get(object)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err(
            "the buffer is not contiguous; pass a copy, such as numpy.ascontiguousarray(a)",
        ));
    }
    if buffer.dimensions() == 1 && buffer.format() == c"B" {
        return Ok((object.clone(), buffer.into_typed()?));
    }
    let view = PyMemoryView::from(object)?.call_method1("cast", ("B",))?;
    let buffer = PyBuffer::get(&view)?;
    Ok((view, buffer))
}

/// A contiguous object of one page or more.
pub(crate) struct Buffer<'py> {
    /// An object of single bytes.
    object: Bound<'py, PyAny>,
    whole: PyBuffer<u8>,
}

impl<'py> Buffer<'py> {
    /// The bytes of `object`, whatever its items are.
    ///
    /// # Errors
    ///
    /// The object has no bytes, is not contiguous, or is empty or not of whole pages.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Buffer<'py>> {
        let (object, whole) = bytes_of(object)?;
        let bytes = whole.len_bytes();
        if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE) {
            return Err(PyValueError::new_err(format!(
                "the buffer has {bytes} bytes; pass whole pages of {PAGE_SIZE} bytes, one at least"
            )));
        }
        Ok(Buffer { object, whole })
    }

    /// The same, to write to.
    ///
    /// # Errors
    ///
    /// It is read-only, too.
    pub(crate) fn to_fill(object: &Bound<'py, PyAny>) -> PyResult<Buffer<'py>> {
        let buffer = Buffer::of(object)?;
        match buffer.whole.readonly() {
            true => Err(PyBufferError::new_err(
                "the buffer is read-only; pass a bytearray, a numpy array or another that can be \
                 written",
            )),
            false => Ok(buffer),
        }
    }

    /// A copy of the single page of `object`.
    ///
    /// # Errors
    ///
    /// The object has no bytes, is not contiguous, or is not of one page.
    pub(crate) fn page(object: &Bound<'py, PyAny>) -> PyResult<Page> {
        let mut page = [0; PAGE_SIZE];
        Buffer::of(object)?.of_one_page()?.read(0, std::slice::from_mut(&mut page))?;
        Ok(page)
    }

    /// Checks that it is of one page.
    pub(crate) fn of_one_page(self) -> PyResult<Buffer<'py>> {
        match self.pages() {
            1 => Ok(self),
            pages => Err(PyValueError::new_err(format!(
                "the buffer has {pages} pages instead of one; store_many and load_many take more"
            ))),
        }
    }

    pub(crate) fn pages(&self) -> usize {
        self.whole.len_bytes() / PAGE_SIZE
    }

    /// Copies pages from number `first` on.
    pub(crate) fn read(&self, first: usize, pages: &mut [Page]) -> PyResult<()> {
        let (py, to) = (self.object.py(), pages.as_flattened_mut());
        match to.len() == self.whole.len_bytes() {
            true => self.whole.copy_to_slice(py, to),
            false => self.part(first, to.len())?.copy_to_slice(py, to),
        }
    }

    /// Copies `pages` to number `first` and those after it.
    pub(crate) fn write(&self, first: usize, pages: &[Page]) -> PyResult<()> {
        let (py, from) = (self.object.py(), pages.as_flattened());
        match from.len() == self.whole.len_bytes() {
            true => self.whole.copy_from_slice(py, from),
            false => self.part(first, from.len())?.copy_from_slice(py, from),
        }
    }

    /// So many bytes from the page of number `first` on.
    fn part(&self, first: usize, bytes: usize) -> PyResult<PyBuffer<u8>> {
        let (start, py) = ((first * PAGE_SIZE) as isize, self.object.py());
        let slice = PySlice::new(py, start, start + bytes as isize, 1);
        PyBuffer::get(&PyMemoryView::from(&self.object)?.get_item(slice)?)
    }
}
