//! Texts of /proc.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Reads a file of /proc from its start.
pub(crate) fn read_to_string(file: &File) -> io::Result<String> {
    let mut text = Vec::new();
    let mut room = vec![0; 64 << 10];
    loop {
        match file.read_at(&mut room, text.len() as u64) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(&room[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    String::from_utf8(text).map_err(io::Error::other)
}

/// The addresses that a line of /proc/PID/maps begins with.
pub(crate) fn addresses(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}
