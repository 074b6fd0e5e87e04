//! Stub of io_uring(7) without the feature `io-uring`: no ring is ever available.

use std::convert::Infallible;
use std::fs::File;
use std::io;

use super::blocks::BlockWrite;

/// A ring, of which there are none.
#[derive(Debug)]
pub struct Ring(Infallible);

impl Ring {
    /// Refuses.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Unsupported`].
    pub fn new(_depth: usize) -> io::Result<Ring> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Is never called.
    pub fn write(&mut self, _file: &File, _start: u64, _writes: &mut [BlockWrite<'_>]) {
        match self.0 {}
    }
}
