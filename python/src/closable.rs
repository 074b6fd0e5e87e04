//! A thing of Rust that threads of Python share until one of them closes it.

use std::sync::{Arc, PoisonError, RwLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// None once it is closed.
pub(crate) struct Closable<T>(RwLock<Option<Arc<T>>>);

impl<T: Send + Sync> Closable<T> {
    pub(crate) fn new(open: T) -> Closable<T> {
        Closable(RwLock::new(Some(Arc::new(open))))
    }

    /// The open thing, for the time of one call.
    ///
    /// # Errors
    ///
    /// Another call has closed it (ValueError, as of a file).
    pub(crate) fn get(&self) -> PyResult<Arc<T>> {
        let open = self.0.read().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| PyValueError::new_err("the store is closed"))
    }

    /// Closes it: calls that have it end first.
    pub(crate) fn close(&self, py: Python<'_>) {
        let open = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(open));
    }
}
