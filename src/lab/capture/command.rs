//! A command that is run to be captured.

use std::ffi::OsString;
use std::path::Path;

use super::{CaptureAt, CaptureError, CaptureOptions};
use crate::lab::page_set::About;

pub(super) fn capture(
    argv: &[OsString],
    _at: CaptureAt,
    _out: &Path,
    _options: &CaptureOptions,
) -> Result<About, CaptureError> {
    if argv.is_empty() {
        return Err(CaptureError::NoCommand);
    }
    Err(CaptureError::NoCommand)
}
