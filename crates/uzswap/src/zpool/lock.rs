//! The lock over a part of a pool, and the one way to give that part more host pages.

use std::hint::spin_loop;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use super::ZpoolError;
use crate::budget::GrowError;

/// The data that a pool's lock protects: host pages, and tables of their contents.
pub(super) trait PoolPart {
    /// Makes sure that the tables have room for one more object and one more run of host pages.
    fn reserve(&mut self) -> Result<(), GrowError>;
}

/// How often it is tried to write before the thread sleeps, and how long it pauses in between: some
/// 10 us together. Objects are decompressed while they are read, in some 2 us; whoever reads and
/// has to wake a thread then takes five times as long.
const TRIES: u32 = 64;
const PAUSES: u32 = 4;

/// A lock on cache lines of its own. Shared while objects are read.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct PoolLock<T>(RwLock<T>);

impl<T: PoolPart> PoolLock<T> {
    pub(super) fn new(part: T) -> PoolLock<T> {
        PoolLock(RwLock::new(part))
    }

    // Poisoned only by a broken invariant; what it protects is as good as it was for the others.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, T> {
        for _ in 0..TRIES {
            match self.0.try_write() {
                Ok(part) => return part,
                Err(TryLockError::Poisoned(part)) => return part.into_inner(),
                Err(TryLockError::WouldBlock) => (0..PAUSES).for_each(|_| spin_loop()),
            }
        }
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the part with room in its tables.
    pub(super) fn write_reserved(&self) -> Result<RwLockWriteGuard<'_, T>, ZpoolError> {
        let mut part = self.write();
        part.reserve()?;
        Ok(part)
    }

    /// Locks the part with room for host pages that were taken outside the lock, or gives those
    /// back.
    pub(super) fn write_with<P>(
        &self,
        pages: P,
        give_back: impl FnOnce(P),
    ) -> Result<(RwLockWriteGuard<'_, T>, P), ZpoolError> {
        match self.write_reserved() {
            Ok(part) => Ok((part, pages)),
            Err(error) => {
                give_back(pages);
                Err(error)
            }
        }
    }
}
