//! Helpers for the tests of several packages. Not published.

pub mod fuzz;
pub mod golden;
pub mod json_schema;
pub mod outputs;
pub mod trials;
pub mod varied_pages;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// A file that tests read: figures of real kernels, an old snapshot.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

/// How long a test waits for a state before it says that it does not come. Only a test that fails
/// takes as long, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until there is one.
///
/// # Panics
///
/// After [`PATIENCE`].
#[track_caller]
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(since.elapsed() < PATIENCE, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
