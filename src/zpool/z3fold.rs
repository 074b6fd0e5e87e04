//! Stub.
use super::{Arena, Handle, UnknownHandle, Zpool, ZpoolError, ZpoolStats};
use std::sync::Arc;

/// Stub.
#[derive(Debug)]
pub struct Z3fold {
    _arena: Arc<Arena>,
}

impl Z3fold {
    /// An empty pool.
    pub fn new(arena: Arc<Arena>) -> Z3fold {
        Z3fold { _arena: arena }
    }
}

impl Zpool for Z3fold {
    fn name(&self) -> &'static str {
        "z3fold"
    }
    fn object_size_max(&self) -> usize {
        4096
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
