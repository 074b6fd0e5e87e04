//! `uzswap.Values`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use uzswap::values::{ValueError, Values as ValuesOfRust};

use crate::buffer::{copy_bytes, with_bytes};
use crate::closable::Closable;
use crate::error::{exceptions, sentence};
use crate::options::StoreOptions;
use crate::store::Tenant;

/// Values of 1 byte to 1 MiB under keys of 64 bits, in a compressed store of their own.
///
/// Threads share it. Values are passed as bytes-like objects, which must be contiguous; options
/// are those of `Store`.
///
/// >>> import uzswap
/// >>> values = uzswap.Values(compressor="zstd:1", unit_pages=4, incompressible="store-as-is")
/// >>> values.store(7, b"a value" * 1000)
/// >>> values.load(7) == b"a value" * 1000
/// True
/// >>> 7 in values, 8 in values, len(values), values.value_len(7)
/// (True, False, 1, 7000)
#[pyclass(module = "uzswap", frozen)]
pub(crate) struct Values {
    values: Closable<ValuesOfRust>,
}

impl Values {
    /// Stores a copy of a value by `store`, without the GIL. One that is too long is not copied.
    fn stored(
        &self,
        py: Python<'_>,
        key: u64,
        value: &Bound<'_, PyAny>,
        store: impl FnOnce(&ValuesOfRust, &[u8]) -> Result<(), ValueError> + Send,
    ) -> PyResult<()> {
        let values = self.values.get()?;
        with_bytes(|bytes| {
            let len = copy_bytes(value, bytes)?;
            let stored = py.detach(|| match len == bytes.len() {
                true => store(&values, bytes),
                false => {
                    values.invalidate(key);
                    Err(ValueError::Length { key, len })
                }
            });
            stored.map_err(|error| value_error(&error))
        })
    }

    /// Loads a value by `load`, without the GIL.
    fn loaded<'py>(
        &self,
        py: Python<'py>,
        load: impl FnOnce(&ValuesOfRust, &mut Vec<u8>) -> Result<bool, ValueError> + Send,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let values = self.values.get()?;
        with_bytes(|value| {
            let loaded = py.detach(|| load(&values, value)).map_err(|error| value_error(&error))?;
            Ok(loaded.then(|| PyBytes::new(py, value)))
        })
    }
}

#[pymethods]
impl Values {
    #[new]
    #[pyo3(signature = (**options))]
    fn with_options(options: Option<&Bound<'_, PyDict>>) -> PyResult<Values> {
        let zswap = StoreOptions::read(options)?.build()?;
        let values = ValuesOfRust::new(zswap).expect("a new store is empty");
        Ok(Values { values: Closable::new(values) })
    }

    /// Keeps a copy of a value under a key of 0 to 2**64 - 1. With `dense` it is made to take
    /// little room, whatever the time.
    ///
    /// Raises StoreError where it is refused, PoolLimitError where the limit is the reason. The
    /// key's earlier value is gone either way.
    #[pyo3(signature = (key, value, *, dense = false))]
    fn store(
        &self,
        py: Python<'_>,
        key: u64,
        value: &Bound<'_, PyAny>,
        dense: bool,
    ) -> PyResult<()> {
        self.stored(py, key, value, |values, bytes| match dense {
            true => values.store_densely(key, bytes),
            false => values.store(key, bytes),
        })
    }

    /// As `store`, for a tenant; page by page.
    fn store_for(
        &self,
        py: Python<'_>,
        tenant: &Tenant,
        key: u64,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.stored(py, key, value, |values, bytes| values.store_for(tenant.id, key, bytes))
    }

    /// The value of a key; None where there is none.
    ///
    /// Raises LoadError where there is one that cannot be restored.
    fn load<'py>(&self, py: Python<'py>, key: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.loaded(py, |values, value| values.load(key, value))
    }

    /// The value of a key, which has none then; None where there is none. Of threads that ask for
    /// the same value, one gets it.
    fn load_exclusive<'py>(
        &self,
        py: Python<'py>,
        key: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.loaded(py, |values, value| values.load_exclusive(key, value))
    }

    /// Forgets the value of a key. Returns whether there was one.
    fn invalidate(&self, py: Python<'_>, key: u64) -> PyResult<bool> {
        let values = self.values.get()?;
        Ok(py.detach(|| values.invalidate(key)))
    }

    /// Bytes of the value of a key; None where there is none.
    fn value_len(&self, key: u64) -> PyResult<Option<usize>> {
        Ok(self.values.get()?.value_len(key))
    }

    /// Values, their bytes and their table; `store` has the statistics of the store below.
    ///
    /// >>> from uzswap import Values
    /// >>> values = Values()
    /// >>> values.store(1, b"short")
    /// >>> stats = values.stats()
    /// >>> stats.values, stats.value_bytes, stats.store.counters.stored_pages
    /// (1, 5, 1)
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let values = self.values.get()?;
        let json = py.detach(|| {
            let mut stats = serde_json::to_value(values.stats()).expect("numbers");
            stats["store"] = serde_json::to_value(values.zswap().stats()).expect("numbers");
            stats.to_string()
        });
        py.import("uzswap.documents")?.call_method1("value_stats_of_json", (json,))
    }

    /// As `Store.add_tenant`.
    #[pyo3(signature = (name = "", *, parent = None, max_bytes = None, writeback = true))]
    fn add_tenant(
        &self,
        name: &str,
        parent: Option<&Tenant>,
        max_bytes: Option<u64>,
        writeback: bool,
    ) -> PyResult<Tenant> {
        Tenant::add(self.values.get()?.zswap(), name, parent, max_bytes, writeback)
    }

    /// Frees all values, once the calls of other threads have ended; as `Store.close`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.values.close(py)
    }

    fn __enter__(slf: Bound<'_, Values>) -> Bound<'_, Values> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __contains__(&self, key: u64) -> PyResult<bool> {
        Ok(self.values.get()?.value_len(key).is_some())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let values = self.values.get()?;
        Ok(py.detach(|| values.len()) as usize) // fewer than there are bytes
    }
}

/// The exception for a value that was not stored or not loaded.
fn value_error(error: &ValueError) -> PyErr {
    let arguments = (sentence(error), error.key());
    match error {
        ValueError::Load { .. } | ValueError::Lost { .. } | ValueError::NoRoom { .. } => {
            exceptions::LoadError::new_err(arguments)
        }
        _ if error.is_pool_limit() => exceptions::PoolLimitError::new_err(arguments),
        _ => exceptions::StoreError::new_err(arguments),
    }
}
