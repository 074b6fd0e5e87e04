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

/// Copies the bytes of `object` to `bytes`, in place of what was there.
///
/// # Errors
///
/// The object has no bytes, is not contiguous, or has more than a value may have.
pub(crate) fn copy_bytes(object: &Bound<'_, PyAny>, bytes: &mut Vec<u8>) -> PyResult<()> {
    let (view, len) = bytes_of(object)?;
    if len > VALUE_BYTES_MAX {
        return Err(PyValueError::new_err(format!(
            "the value has {len} bytes, over the maximum of {VALUE_BYTES_MAX}"
        )));
    }
    bytes.resize(len, 0);
    PyBuffer::get(&view)?.copy_to_slice(object.py(), bytes)
}

/// A contiguous object as a view of bytes, and how many there are.
fn bytes_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, usize)> {
    let buffer = PyUntypedBuffer::get(object)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err(
            "the buffer is not contiguous; pass a copy, such as numpy.ascontiguousarray(a)",
        ));
    }
    let view = PyMemoryView::from(object)?.into_any();
    let is_of_bytes = buffer.dimensions() == 1 && buffer.format() == c"B";
    let view = if is_of_bytes { view } else { view.call_method1("cast", ("B",))? };
    Ok((view, buffer.len_bytes()))
}

/// A contiguous object of one page or more, as a view of bytes.
pub(crate) struct Buffer<'py> {
    view: Bound<'py, PyAny>,
    pages: usize,
}

impl<'py> Buffer<'py> {
    /// The bytes of `object`, whatever its items are.
    ///
    /// # Errors
    ///
    /// The object has no bytes, is not contiguous, or is empty or not of whole pages.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Buffer<'py>> {
        let (view, bytes) = bytes_of(object)?;
        if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE) {
            return Err(PyValueError::new_err(format!(
                "the buffer has {bytes} bytes; pass whole pages of {PAGE_SIZE} bytes, one at least"
            )));
        }
        Ok(Buffer { view, pages: bytes / PAGE_SIZE })
    }

    /// The same, to write to.
    ///
    /// # Errors
    ///
    /// It is read-only, too.
    pub(crate) fn to_fill(object: &Bound<'py, PyAny>) -> PyResult<Buffer<'py>> {
        let buffer = Buffer::of(object)?;
        match buffer.view.getattr("readonly")?.extract()? {
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
        match self.pages {
            1 => Ok(self),
            pages => Err(PyValueError::new_err(format!(
                "the buffer has {pages} pages instead of one; store_many and load_many take more"
            ))),
        }
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Copies pages from number `first` on.
    pub(crate) fn read(&self, first: usize, pages: &mut [Page]) -> PyResult<()> {
        let part = self.part(first, pages.len())?;
        part.copy_to_slice(self.view.py(), pages.as_flattened_mut())
    }

    /// Copies `pages` to number `first` and those after it.
    pub(crate) fn write(&self, first: usize, pages: &[Page]) -> PyResult<()> {
        let part = self.part(first, pages.len())?;
        part.copy_from_slice(self.view.py(), pages.as_flattened())
    }

    fn part(&self, first: usize, pages: usize) -> PyResult<PyBuffer<u8>> {
        if pages == self.pages {
            return PyBuffer::get(&self.view);
        }
        let [start, end] = [first, first + pages].map(|page| (page * PAGE_SIZE) as isize);
        PyBuffer::get(&self.view.get_item(PySlice::new(self.view.py(), start, end, 1))?)
    }
}
