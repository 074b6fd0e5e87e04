//! Messages on standard error.

use std::io::Write;

use crate::escape::escaped;

/// Writes a line to standard error, after the name of the program, with control characters
/// escaped. An error of the write (a closed pipe, a full disk) is ignored; `eprintln!` would panic.
pub fn log(text: &str) {
    write(&format!("uzswap: {text}\n"));
}

/// The same without the name of the program and without a line break.
pub fn write(text: &str) {
    let _ = std::io::stderr().write_all(escaped(text).as_bytes());
}
