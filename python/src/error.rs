//! Exceptions: those of `package/uzswap/errors.py`, with the messages of the library.

use std::error::Error;

use pyo3::prelude::*;
use pyo3::{PyErr, import_exception};
use uzswap::zswap::{LoadError, StoreError};

/// The exceptions of the package.
pub(crate) mod exceptions {
    use super::import_exception;

    import_exception!(uzswap.errors, BackingError);
    #[cfg(feature = "fleet")]
    import_exception!(uzswap.errors, FleetError);
    import_exception!(uzswap.errors, LoadError);
    import_exception!(uzswap.errors, OptionError);
    import_exception!(uzswap.errors, PoolLimitError);
    import_exception!(uzswap.errors, RefusedPagesError);
    import_exception!(uzswap.errors, SnapshotError);
    import_exception!(uzswap.errors, StoreError);
    import_exception!(uzswap.errors, TenantError);
    import_exception!(uzswap.errors, TraceError);
}

/// The message of an error and of those that caused it, in one sentence.
pub(crate) fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}

/// The exception for a page that was not stored.
pub(crate) fn refusal(key: u64, error: &StoreError) -> PyErr {
    let arguments = (sentence(error), key);
    match error.is_pool_limit() {
        true => exceptions::PoolLimitError::new_err(arguments),
        false => exceptions::StoreError::new_err(arguments),
    }
}

/// The exception for a page that is held but was not restored.
pub(crate) fn load_error(error: &LoadError) -> PyErr {
    exceptions::LoadError::new_err((sentence(error), error.key().0))
}

/// The exception for some pages of a batch.
pub(crate) fn refused_pages(
    py: Python<'_>,
    pages: usize,
    refused: Vec<(u64, StoreError)>,
) -> PyErr {
    let errors: Vec<_> =
        refused.iter().map(|(key, error)| refusal(*key, error).into_value(py)).collect();
    exceptions::RefusedPagesError::new_err((pages, errors))
}
