//! The same work as of `bench/batches.py` in Rust alone.

use std::sync::Mutex;

use pyo3::prelude::*;
use uzswap::page::{PAGE_SIZE, Page, PageKey};

use crate::buffer::Buffer;
use crate::store::Store;

/// A batch of pages in memory of Rust.
#[pyclass(frozen)]
pub(crate) struct Batch {
    pages: Mutex<Vec<Page>>,
}

#[pymethods]
impl Batch {
    #[new]
    fn copy(buffer: &Bound<'_, PyAny>) -> PyResult<Batch> {
        let buffer = Buffer::of(buffer)?;
        let mut pages = vec![[0; PAGE_SIZE]; buffer.pages()];
        buffer.read(0, &mut pages)?;
        Ok(Batch { pages: Mutex::new(pages) })
    }

    fn store_many(&self, py: Python<'_>, store: &Store, first_key: u64) -> PyResult<()> {
        let zswap = store.zswap()?;
        py.detach(|| {
            let pages = self.pages.lock().expect("no panic");
            zswap.store_all(PageKey(first_key), &pages, |_, stored| {
                stored.expect("there is no limit");
            });
        });
        Ok(())
    }

    fn load_many(&self, py: Python<'_>, store: &Store, first_key: u64) -> PyResult<()> {
        let zswap = store.zswap()?;
        py.detach(|| {
            let mut pages = self.pages.lock().expect("no panic");
            for (page, key) in pages.iter_mut().zip(first_key..) {
                assert!(zswap.load(PageKey(key), page).expect("no page is corrupt"));
            }
        });
        Ok(())
    }
}
