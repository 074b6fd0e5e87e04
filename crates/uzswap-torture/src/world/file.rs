//! A snapshot file double that fails at any byte.

use std::io::{self, Read, Write};
use std::sync::Arc;

use super::{Point, World};
use crate::faults::Fault;

#[derive(Debug)]
pub(crate) struct SnapshotFile {
    world: Arc<World>,
    bytes: Vec<u8>,
    /// Where it is read.
    at: usize,
    /// What the next call fails with.
    failing: Option<io::ErrorKind>,
}

/// The most bytes that pass where few do.
const FEW: usize = 64;

impl SnapshotFile {
    pub(crate) fn new(world: &Arc<World>, bytes: Vec<u8>) -> SnapshotFile {
        SnapshotFile { world: Arc::clone(world), bytes, at: 0, failing: None }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many of so many bytes pass. Where it fails, some have passed before.
    fn passing(&mut self, bytes: usize) -> io::Result<usize> {
        if let Some(kind) = self.failing.take() {
            return Err(kind.into());
        }
        let world = &self.world;
        world.delay();
        world.happen(Point::Free);
        if world.strikes(Fault::FileError) {
            let drawn = world.draw();
            let kind = [io::ErrorKind::StorageFull, io::ErrorKind::Other][drawn as usize % 2];
            let passing = (drawn >> 1) as usize % bytes.max(1);
            if passing == 0 {
                return Err(kind.into());
            }
            self.failing = Some(kind);
            return Ok(passing);
        }
        if world.strikes(Fault::FileShort) {
            let drawn = world.draw();
            if drawn.is_multiple_of(4) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            return Ok(bytes.min(1 + (drawn >> 2) as usize % FEW));
        }
        Ok(bytes)
    }
}

impl Write for SnapshotFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let passing = self.passing(bytes.len())?;
        self.bytes.extend_from_slice(&bytes[..passing]);
        Ok(passing)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.passing(0) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

impl Read for SnapshotFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let rest = self.bytes.len() - self.at;
        let passing = self.passing(bytes.len().min(rest))?;
        bytes[..passing].copy_from_slice(&self.bytes[self.at..self.at + passing]);
        self.at += passing;
        Ok(passing)
    }
}
