//! Words for whoever reads standard error, if anybody does.

use std::io::Write;

/// Writes text to standard error, as it is. Where that cannot be written (a pipe that nobody reads,
/// a full disk), nothing is told, and all goes on: `eprintln!` panics there.
pub fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
