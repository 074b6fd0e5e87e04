//! Words for whoever reads standard error, if anybody does.

use std::io::Write;

/// Writes a line to standard error, with our name before it. Where that cannot be written (a pipe
/// that nobody reads, a full disk), nothing is told, and all goes on: `eprintln!` panics there.
pub fn log(text: &str) {
    write(&format!("uzswap: {text}\n"));
}

/// Likewise, of text as it is.
pub fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
