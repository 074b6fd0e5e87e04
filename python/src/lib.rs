//! The module `uzswap._uzswap`: the store, the trace and replays of fleets for Python.
//!
//! ```text
//!  package/*.py     names, dataclasses, the command
//!      |
//!  store  values  trace    classes of Python over those of the crate
//!      \    |    /   fleet  functions over those of `uzswap-fleet`
//!   options  closable       keyword arguments; what can be closed
//!    buffer  error          bytes-like objects, page by page; exceptions
//! ```
//!
//! Rust has no reference to memory that Python may change: CPython copies pages for `buffer`, while
//! the GIL is held. The store works on these copies without the GIL.

mod buffer;
mod closable;
mod error;
#[cfg(feature = "fleet")]
mod fleet;
mod options;
mod store;
#[cfg(feature = "timing")]
mod timing;
mod trace;
mod values;

/// The store and the trace, in Rust.
#[pyo3::pymodule]
mod _uzswap {
    #[cfg(feature = "fleet")]
    #[pymodule_export]
    use super::fleet::{Machine, fleet_samples, sum_machines, table_columns};
    #[pymodule_export]
    use super::store::{Store, Tenant};
    #[cfg(feature = "timing")]
    #[pymodule_export]
    use super::timing::Batch;
    #[pymodule_export]
    use super::trace::{TraceRecorder, read_trace};
    #[pymodule_export]
    use super::values::Values;
}
