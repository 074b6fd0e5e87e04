//! Helpers for the tests of several packages. Not published.

pub mod fuzz;
pub mod golden;
pub mod json_schema;
pub mod trials;
pub mod varied_pages;

use std::path::{Path, PathBuf};

/// A file that tests read: figures of real kernels, an old snapshot.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}
