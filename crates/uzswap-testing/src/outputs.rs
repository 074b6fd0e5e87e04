//! The output of a command that has ended, and its exit code.

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

/// Printed bytes as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The exit code; 128 and the signal where one ended it, as a shell says it.
pub fn code(output: &Output) -> Option<i32> {
    output.status.code().or(output.status.signal().map(|signal| 128 + signal))
}

/// Expects an exit code, as [`code`] has it.
///
/// # Panics
///
/// With all that was printed, if it is another.
#[track_caller]
pub fn expect(output: &Output, expected: i32) {
    let Output { stdout, stderr, .. } = output;
    assert_eq!(code(output), Some(expected), "{}\n{}", text(stdout), text(stderr));
}
