//! `uzswap.Store` and its tenants.

use std::path::PathBuf;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::zswap::{LoadError, StoreError, Stored, TenantId, TenantOptions, Zswap};

use crate::buffer::{Buffer, CHUNK_PAGES, with_room};
use crate::closable::{Closable, InCall};
use crate::error::{exceptions, load_error, refusal, refused_pages, sentence};
use crate::options::StoreOptions;

/// A tenant of a store, as a memory cgroup is to zswap. `Store.add_tenant` makes it.
#[pyclass(module = "uzswap", frozen, eq, hash)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tenant {
    pub(crate) id: TenantId,
}

impl Tenant {
    /// Makes a tenant.
    ///
    /// # Errors
    ///
    /// `TenantError`.
    pub(crate) fn add(
        zswap: &Zswap,
        name: &str,
        parent: Option<&Tenant>,
        max_bytes: Option<u64>,
        writeback: bool,
    ) -> PyResult<Tenant> {
        let options = TenantOptions::default()
            .name(name.to_owned())
            .max_bytes(max_bytes.unwrap_or(u64::MAX))
            .writeback(writeback);
        let added = zswap.add_tenant(parent.map_or(TenantId::ROOT, |parent| parent.id), options);
        let id = added.map_err(|error| exceptions::TenantError::new_err(sentence(&error)))?;
        Ok(Tenant { id })
    }
}

#[pymethods]
impl Tenant {
    /// Its number in `Store.stats().tenants`. A later tenant may have it again.
    #[getter]
    fn number(&self) -> usize {
        self.id.number()
    }

    fn __repr__(&self) -> String {
        format!("Tenant(number={})", self.id.number())
    }
}

/// A compressed page store: pages of 4096 bytes under keys of 64 bits.
///
/// Threads share it: each call releases the GIL while it compresses. Pages are passed as bytes-like
/// objects: bytes, bytearray, memoryview, numpy arrays, mmap. They must be contiguous.
///
/// >>> import uzswap
/// >>> with uzswap.Store(compressor="zstd:3", max_pool_bytes=64 << 20) as store:
/// ...     kept = store.store(42, b"page" * 1024)
/// ...     store.load(42) == b"page" * 1024
/// True
///
/// Arguments (docs/reference/options.md of uzswap has the names, docs/reference/store.md the
/// meaning):
///
/// compressor: lz4, lzo, lzo-rle, zstd, zstd:LEVEL, deflate, deflate:LEVEL, none
/// dense: a second compressor, for `dense=True` and `recompress`
/// filter: none, shuffle, auto
/// unit_pages: pages that `store_many` compresses together: 1, 2, 4, 8 or 16
/// zpool: zsmalloc, zbud, z3fold, zblock, packed
/// chain_size, chain_rule, handle_header, mapping: size classes of zsmalloc
/// index: radix, btree, btree32, xarray, rbtree
/// shards: parts of the index with a lock each; a power of two
/// incompressible: reject, store-as-is
/// object_header_bytes: 0 to 64
/// max_pool_bytes: the limit in bytes; None for none
/// counted: what the limit is on: all, pool
/// accept_threshold_percent: 0 to 100
/// when_full: reclaim, bypass
/// host_pages: small, huge
/// same_filled: vector, forward, backward, last-first, off
/// same_filled_zero_only: whether only zeros count as such
/// records: False for a store without eviction, tenants and checksums: 52 bytes a page less
/// lru: second-chance, frequency, plain, protected
/// checksum: whether each load checks its object
/// written_as: pages, objects
/// latencies: whether times are counted
/// backing: path of a file or device for cold pages; scratch, removed at the end
/// backing_bytes: its size; None for what is there
/// keep_backing: leave the file there
///
/// A store is of the process that made it: after a fork, the child must not use it.
#[pyclass(module = "uzswap", frozen)]
pub(crate) struct Store {
    zswap: Closable<Zswap>,
}

impl Store {
    fn new(zswap: Zswap) -> Store {
        Store { zswap: Closable::new(zswap) }
    }

    pub(crate) fn zswap(&self) -> PyResult<InCall<'_, Zswap>> {
        self.zswap.get()
    }

    /// Loads a page by `load`, without the GIL.
    fn loaded(
        &self,
        py: Python<'_>,
        load: impl FnOnce(&Zswap, &mut Page) -> Result<bool, LoadError> + Send,
    ) -> PyResult<Option<Page>> {
        let zswap = self.zswap()?;
        let mut page = [0; PAGE_SIZE];
        let loaded = py.detach(|| load(&zswap, &mut page));
        Ok(loaded.map_err(|error| load_error(&error))?.then_some(page))
    }
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (**options))]
    fn with_options(options: Option<&Bound<'_, PyDict>>) -> PyResult<Store> {
        Ok(Store::new(StoreOptions::read(options)?.build()?))
    }

    /// A store with the pages, tenants and counters of a snapshot, and options as of `Store`.
    #[classmethod]
    #[pyo3(signature = (path, **options))]
    fn from_snapshot(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        path: PathBuf,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Store> {
        let options = StoreOptions::read(options)?;
        let backing = options.open_backing()?;
        let restored = py.detach(|| Zswap::from_snapshot(options.zswap, backing, path));
        let (zswap, _) =
            restored.map_err(|error| exceptions::SnapshotError::new_err(sentence(&error)))?;
        Ok(Store::new(zswap))
    }

    /// Keeps a copy of a page of 4096 bytes under a key of 0 to 2**64 - 1. With `dense` it is made
    /// to take little room, whatever the time. Returns the bytes that it takes in the pool: 0 for a
    /// page of one repeated word, and for one that went to the backing.
    ///
    /// Raises StoreError where the page is refused, PoolLimitError where the limit is the reason.
    /// The key's earlier page is gone either way.
    ///
    /// >>> from uzswap import Store
    /// >>> Store().store(1, bytes(4096))
    /// 0
    #[pyo3(signature = (key, page, *, dense = false))]
    fn store(
        &self,
        py: Python<'_>,
        key: u64,
        page: &Bound<'_, PyAny>,
        dense: bool,
    ) -> PyResult<usize> {
        let (zswap, page) = (self.zswap()?, Buffer::page(page)?);
        let stored = py.detach(|| match dense {
            true => zswap.store_densely(PageKey(key), &page),
            false => zswap.store(PageKey(key), &page),
        });
        kept_bytes(key, stored)
    }

    /// As `store`, for a tenant.
    fn store_for(
        &self,
        py: Python<'_>,
        tenant: &Tenant,
        key: u64,
        page: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (zswap, page, tenant) = (self.zswap()?, Buffer::page(page)?, tenant.id);
        kept_bytes(key, py.detach(|| zswap.store_for(tenant, PageKey(key), &page)))
    }

    /// Keeps copies of the pages of a buffer under `first_key` and the keys after it. The buffer
    /// has a multiple of 4096 bytes. Pages of one unit (`unit_pages`) are compressed together.
    ///
    /// Raises RefusedPagesError where pages are refused; all others are stored then. Ctrl-C ends it
    /// between chunks of 64 pages.
    ///
    /// >>> from uzswap import Store
    /// >>> store = Store(unit_pages=4, zpool="packed")
    /// >>> store.store_many(8, bytearray(range(256)) * 64)
    /// >>> len(store), 11 in store
    /// (4, True)
    #[pyo3(signature = (first_key, buffer, *, dense = false))]
    fn store_many(
        &self,
        py: Python<'_>,
        first_key: u64,
        buffer: &Bound<'_, PyAny>,
        dense: bool,
    ) -> PyResult<()> {
        let (zswap, buffer) = (self.zswap()?, Buffer::of(buffer)?);
        let mut refused: Vec<(u64, StoreError)> = Vec::new();
        for_chunks(py, first_key, buffer.pages(), |first, key, room| {
            buffer.read(first, room)?;
            py.detach(|| {
                let outcome = |key: PageKey, stored: Result<Stored, StoreError>| {
                    refused.extend(stored.err().map(|error| (key.0, error)));
                };
                match dense {
                    true => zswap.store_all_densely(PageKey(key), room, outcome),
                    false => zswap.store_all(PageKey(key), room, outcome),
                }
            });
            Ok(())
        })?;
        match refused.is_empty() {
            true => Ok(()),
            false => Err(refused_pages(py, buffer.pages(), refused)),
        }
    }

    /// The page of a key; None where the store has none.
    ///
    /// Raises LoadError where it has one that cannot be restored.
    ///
    /// >>> from uzswap import Store
    /// >>> print(Store().load(7))
    /// None
    fn load<'py>(&self, py: Python<'py>, key: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let page = self.loaded(py, |zswap, page| zswap.load(PageKey(key), page))?;
        Ok(page.map(|page| PyBytes::new(py, &page)))
    }

    /// Fills a buffer of 4096 bytes with the page of a key. Returns whether there was one; if not,
    /// the buffer is unchanged.
    fn load_into(&self, py: Python<'_>, key: u64, buffer: &Bound<'_, PyAny>) -> PyResult<bool> {
        let buffer = Buffer::to_fill(buffer)?.of_one_page()?;
        let page = self.loaded(py, |zswap, page| zswap.load(PageKey(key), page))?;
        match page {
            None => Ok(false),
            Some(page) => buffer.write(0, std::slice::from_ref(&page)).map(|()| true),
        }
    }

    /// Fills a buffer of a multiple of 4096 bytes with the pages of `first_key` and the keys after
    /// it. Returns the keys without a page, in order; their part of the buffer is unchanged.
    ///
    /// Raises LoadError at the first page that cannot be restored.
    ///
    /// >>> from uzswap import Store
    /// >>> store = Store()
    /// >>> store.store_many(0, b"ab" * 4096)
    /// >>> buffer = bytearray(3 * 4096)
    /// >>> store.load_many(0, buffer)
    /// [2]
    /// >>> buffer[:8192] == b"ab" * 4096
    /// True
    fn load_many(
        &self,
        py: Python<'_>,
        first_key: u64,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<u64>> {
        let (zswap, buffer) = (self.zswap()?, Buffer::to_fill(buffer)?);
        let mut missing = Vec::new();
        for_chunks(py, first_key, buffer.pages(), |first, key, room| {
            let mut is_held = [true; CHUNK_PAGES];
            py.detach(|| {
                for ((page, is_held), key) in room.iter_mut().zip(&mut is_held).zip(key..) {
                    *is_held = zswap.load(PageKey(key), page)?;
                }
                Ok(())
            })
            .map_err(|error| load_error(&error))?;
            let mut at = 0;
            for run in is_held[..room.len()].chunk_by(|a, b| a == b) {
                let pages = at..at + run.len();
                match run[0] {
                    true => buffer.write(first + at, &room[pages])?,
                    false => missing.extend(pages.map(|at| key + at as u64)),
                }
                at += run.len();
            }
            Ok(())
        })?;
        Ok(missing)
    }

    /// The page of a key, which the store then has no more; None where it has none. Of threads that
    /// ask for the same page, one gets it.
    fn load_exclusive<'py>(
        &self,
        py: Python<'py>,
        key: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let page = self.loaded(py, |zswap, page| zswap.load_exclusive(PageKey(key), page))?;
        Ok(page.map(|page| PyBytes::new(py, &page)))
    }

    /// Forgets the page of a key. Returns whether there was one.
    fn invalidate(&self, py: Python<'_>, key: u64) -> PyResult<bool> {
        let zswap = self.zswap()?;
        Ok(py.detach(|| zswap.invalidate(PageKey(key))))
    }

    /// Forgets the pages of `pages` keys from `first_key` on. Returns how many there were.
    fn invalidate_many(&self, py: Python<'_>, first_key: u64, pages: u64) -> PyResult<usize> {
        let zswap = self.zswap()?;
        let Some(more) = pages.checked_sub(1) else { return Ok(0) };
        let last = PageKey(last_key(first_key, more)?);
        Ok(py.detach(|| zswap.invalidate_range(PageKey(first_key)..=last)))
    }

    /// Compresses the page of a key again, densely. Returns the bytes that this saved.
    fn recompress(&self, py: Python<'_>, key: u64) -> PyResult<usize> {
        let zswap = self.zswap()?;
        py.detach(|| zswap.recompress(PageKey(key))).map_err(|error| load_error(&error))
    }

    /// Writes the coldest pages back: of a tenant and those below it, or of all. Returns the pages
    /// that left the pool; 0 without a backing.
    #[pyo3(signature = (pages, tenant = None))]
    fn shrink(&self, py: Python<'_>, pages: usize, tenant: Option<&Tenant>) -> PyResult<usize> {
        let (zswap, tenant) = (self.zswap()?, tenant.map_or(TenantId::ROOT, |tenant| tenant.id));
        Ok(py.detach(|| zswap.shrink(tenant, pages).pages()))
    }

    /// Packs the objects of the pool together. Returns the host pages that this freed.
    fn compact(&self, py: Python<'_>) -> PyResult<usize> {
        let zswap = self.zswap()?;
        Ok(py.detach(|| zswap.compact()))
    }

    /// Options, counters, memory, tenants and times.
    ///
    /// >>> from uzswap import Store
    /// >>> store = Store()
    /// >>> store.store_many(0, bytes(range(256)) * 160)
    /// >>> stats = store.stats()
    /// >>> stats.options.zpool, stats.counters.stored_pages
    /// ('zsmalloc', 10)
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let zswap = self.zswap()?;
        let json = py.detach(|| serde_json::to_string(&zswap.stats()).expect("numbers and names"));
        py.import("uzswap.documents")?.call_method1("stats_of_json", (json,))
    }

    /// The keys of all pages, in no particular order.
    fn keys(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let zswap = self.zswap()?;
        Ok(py.detach(|| zswap.keys().map(|key| key.0).collect()))
    }

    /// Makes a tenant below `parent`, or below the root. `max_bytes` limits the compressed bytes of
    /// it and of those below it; without `writeback` its pages do not go to the backing.
    #[pyo3(signature = (name = "", *, parent = None, max_bytes = None, writeback = true))]
    fn add_tenant(
        &self,
        name: &str,
        parent: Option<&Tenant>,
        max_bytes: Option<u64>,
        writeback: bool,
    ) -> PyResult<Tenant> {
        let zswap = self.zswap()?;
        Tenant::add(&zswap, name, parent, max_bytes, writeback)
    }

    /// Removes a tenant. Its pages are those of the tenant above it from then on.
    fn remove_tenant(&self, py: Python<'_>, tenant: &Tenant) -> PyResult<()> {
        let (zswap, id) = (self.zswap()?, tenant.id);
        let removed = py.detach(|| zswap.remove_tenant(id));
        removed.map_err(|error| exceptions::TenantError::new_err(sentence(&error)))
    }

    /// Writes all pages to a file, which is replaced once the new one is complete. Returns the
    /// pages in it.
    fn snapshot(&self, py: Python<'_>, path: PathBuf) -> PyResult<u64> {
        let zswap = self.zswap()?;
        let written = py.detach(|| zswap.snapshot(path));
        let written =
            written.map_err(|error| exceptions::SnapshotError::new_err(sentence(&error)))?;
        Ok(written.pages())
    }

    /// Frees all pages, once the calls of other threads have ended; later ones raise ValueError.
    ///
    /// Raises RuntimeError in a signal handler that interrupts a call of the same thread. Ctrl-C
    /// ends the wait; the last of those calls frees the pages then.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.zswap.close(py)
    }

    fn __enter__(slf: Bound<'_, Store>) -> Bound<'_, Store> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __contains__(&self, key: u64) -> PyResult<bool> {
        Ok(self.zswap()?.contains(PageKey(key)))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let zswap = self.zswap()?;
        Ok(py.detach(|| zswap.len()) as usize) // fewer than there are bytes
    }

    fn __repr__(&self) -> String {
        match self.zswap() {
            Ok(zswap) => format!("<uzswap.Store: {:?}>", &*zswap),
            Err(_) => "<uzswap.Store: closed>".to_owned(),
        }
    }
}

/// The bytes that a stored page takes in the pool.
fn kept_bytes(key: u64, stored: Result<Stored, StoreError>) -> PyResult<usize> {
    match stored.map_err(|error| refusal(key, &error))? {
        Stored::Compressed { bytes } => Ok(bytes),
        Stored::AsIs => Ok(PAGE_SIZE),
        _ => Ok(0),
    }
}

/// The key so many after another.
fn last_key(first_key: u64, more: u64) -> PyResult<u64> {
    first_key.checked_add(more).ok_or_else(|| {
        PyOverflowError::new_err(format!("{more} keys after {first_key} exceed 2**64 - 1"))
    })
}

/// Calls `work` with the number of the first page, its key, and room for the pages, chunk by chunk.
/// Chunks end where units end.
fn for_chunks(
    py: Python<'_>,
    first_key: u64,
    pages: usize,
    mut work: impl FnMut(usize, u64, &mut [Page]) -> PyResult<()>,
) -> PyResult<()> {
    last_key(first_key, pages as u64 - 1)?;
    with_room(|room| {
        let mut first = 0;
        while first < pages {
            let key = first_key + first as u64;
            let to_boundary = CHUNK_PAGES - key as usize % CHUNK_PAGES;
            let count = to_boundary.min(pages - first);
            work(first, key, &mut room[..count])?;
            first += count;
            py.check_signals()?;
        }
        Ok(())
    })
}
