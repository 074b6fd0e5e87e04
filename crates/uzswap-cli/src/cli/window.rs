//! The size of the terminal.

use std::io;

/// Columns and lines of the terminal on standard output, both at least 1. `None` where that is
/// another file, or a terminal that does not know its size.
pub(super) fn size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col.into(), size.ws_row.into()))
}

/// Columns for a report: those of the terminal, 80 without one.
pub(super) fn columns() -> usize {
    size().map_or(80, |(columns, _)| columns)
}
