//! Commands for many machines: `uzswap sample` and `uzswap fleet`.

pub(super) mod sample;

use uzswap_fleet::folder::FolderError;

use super::Failure;

/// The exit code of a file that was not read or not written.
fn failure(error: FolderError) -> Failure {
    Failure::of(error.is_machine(), error)
}

/// A hash as documents have it: JSON's numbers have 53 bits.
fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}
