//! The time that Rust alone takes for the batches of `bench/batches.py`.

use std::time::Instant;

use pyo3::prelude::*;
use uzswap::page::{PAGE_SIZE, Page, PageKey};

use crate::buffer::Buffer;
use crate::store::Store;

/// Stores the pages of a buffer with one call of Rust and loads each of them. Returns the
/// nanoseconds of both.
#[pyfunction]
pub(crate) fn time_in_rust(
    py: Python<'_>,
    store: &Store,
    first_key: u64,
    buffer: &Bound<'_, PyAny>,
) -> PyResult<(u64, u64)> {
    let (zswap, buffer) = (store.zswap()?, Buffer::of(buffer)?);
    let mut pages: Vec<Page> = vec![[0; PAGE_SIZE]; buffer.pages()];
    buffer.read(0, &mut pages)?;
    Ok(py.detach(|| {
        let start = Instant::now();
        zswap.store_all(PageKey(first_key), &pages, |_, stored| {
            stored.expect("no limit");
        });
        let stored = start.elapsed();
        let start = Instant::now();
        for (page, key) in pages.iter_mut().zip(first_key..) {
            assert!(zswap.load(PageKey(key), page).expect("no corrupt page"));
        }
        (stored.as_nanos() as u64, start.elapsed().as_nanos() as u64)
    }))
}
