//! Programs that do one odd thing.

use super::raw;

/// Runs one by its name.
pub(crate) fn run(name: &str) -> ! {
    let _ = name;
    raw::exit(98)
}
