//! Stub.
use super::{Arena, Handle, UnknownHandle, Zpool, ZpoolError, ZpoolStats};
use std::sync::Arc;

/// Stub.
#[derive(Debug)]
pub struct Zbud {
    _arena: Arc<Arena>,
}

impl Zbud {
    /// An empty pool.
    pub fn new(arena: Arc<Arena>) -> Zbud {
        Zbud { _arena: arena }
    }
}

impl Zpool for Zbud {
    fn name(&self) -> &'static str {
        "zbud"
    }
    fn object_size_max(&self) -> usize {
        3968
    }
    fn insert(&self, _object: &[u8]) -> Result<Handle, ZpoolError> {
        Err(ZpoolError::Empty)
    }
    fn read(&self, handle: Handle, _reader: &mut dyn FnMut(&[u8])) -> Result<(), UnknownHandle> {
        Err(UnknownHandle(handle))
    }
    fn remove(&self, handle: Handle) -> Result<(), UnknownHandle> {
        Err(UnknownHandle(handle))
    }
    fn compact(&self) -> usize {
        0
    }
    fn stats(&self) -> ZpoolStats {
        ZpoolStats::default()
    }
    fn audit(&self) -> Result<(), String> {
        Ok(())
    }
}
