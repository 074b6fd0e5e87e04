//! An allocator double that runs out of memory, and whose objects rot.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use super::{World, lock, note_waiting, set_pinned};
use crate::faults::Fault;
use crate::planted_bugs::PlantedBug;
use uzswap::AuditError;
use uzswap::budget::GrowError;
use uzswap::page::PAGE_SIZE;
use uzswap::zpool::{Arena, ArenaError, Handle, UnknownHandle, Zpool, ZpoolError, ZpoolKind};
use uzswap::zpool::{ZpoolStats, zsmalloc};

#[derive(Debug)]
pub(crate) struct RottingPool {
    world: Arc<World>,
    inner: Box<dyn Zpool>,
    /// Which bit of an object has changed.
    rotten: Mutex<BTreeMap<u64, usize>>,
    /// Pages beyond the limit, of [`PlantedBug::Overshoot`].
    beyond: Option<Box<dyn Zpool>>,
}

/// Distinguishes it from a handle of the pool itself, which has no such cell.
const BEYOND: u64 = 1 << 30;

impl RottingPool {
    pub(crate) fn new(world: Arc<World>, inner: Box<dyn Zpool>) -> RottingPool {
        let beyond = world
            .is_planted(PlantedBug::Overshoot)
            .then(|| ZpoolKind::Zbud.build(Arc::new(Arena::new()), Default::default()));
        RottingPool { world, inner, rotten: Mutex::default(), beyond }
    }

    /// The pool that has an object, and its handle there.
    fn place(&self, handle: Handle) -> (&dyn Zpool, Handle) {
        match &self.beyond {
            Some(beyond) if handle.to_bits() & BEYOND != 0 => {
                (&**beyond, Handle::from_bits(handle.to_bits() & !BEYOND))
            }
            _ => (&*self.inner, handle),
        }
    }
}

impl Zpool for RottingPool {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn object_size_max(&self) -> usize {
        self.inner.object_size_max()
    }

    fn insert(&self, object: &[u8]) -> Result<Handle, ZpoolError> {
        if self.world.strikes(Fault::NoPages) {
            let source = io::ErrorKind::OutOfMemory.into();
            return Err(ArenaError::Os { pages: 1, source }.into());
        }
        if self.world.strikes(Fault::NoTables) {
            return Err(GrowError::NoMemory { bytes: 64 }.into());
        }
        let inserted = match (self.inner.insert(object), &self.beyond) {
            (Err(ZpoolError::NoPages(_)), Some(beyond)) => {
                beyond.insert(object).map(|handle| Handle::from_bits(handle.to_bits() | BEYOND))
            }
            (inserted, _) => inserted,
        };
        let handle = inserted?;
        if self.world.strikes(Fault::ObjectRot) {
            let bit = self.world.draw() as usize % (object.len() * 8);
            lock(&self.rotten).insert(handle.to_bits(), bit);
        }
        Ok(handle)
    }

    fn read(&self, handle: Handle, reader: &mut dyn FnMut(&[u8])) -> Result<(), UnknownHandle> {
        let rotten_bit = lock(&self.rotten).get(&handle.to_bits()).copied();
        set_pinned(true);
        let (zpool, inner) = self.place(handle);
        let read = match rotten_bit {
            None => zpool.read(inner, reader),
            Some(bit) => {
                self.world.note(Fault::ObjectRot);
                zpool.read(inner, &mut |slot| {
                    let mut copy = [0; 2 * PAGE_SIZE + 128];
                    let copy = &mut copy[..slot.len()];
                    copy.copy_from_slice(slot);
                    copy[bit / 8] ^= 1 << (bit % 8);
                    reader(copy);
                })
            }
        };
        set_pinned(false);
        self.world.settle();
        read
    }

    fn remove(&self, handle: Handle) -> Result<(), UnknownHandle> {
        if self.world.is_planted(PlantedBug::LeakedObject) && self.world.draw().is_multiple_of(256)
        {
            return Ok(());
        }
        lock(&self.rotten).remove(&handle.to_bits());
        let (zpool, inner) = self.place(handle);
        note_waiting();
        zpool.remove(inner)
    }

    fn compact(&self) -> usize {
        self.inner.compact() + self.beyond.as_ref().map_or(0, |beyond| beyond.compact())
    }

    fn stats(&self) -> ZpoolStats {
        let mut stats = self.inner.stats();
        if let Some(beyond) = &self.beyond {
            let more = beyond.stats();
            stats.pool_pages += more.pool_pages;
            stats.objects += more.objects;
        }
        stats
    }

    fn class_stats(&self) -> Vec<zsmalloc::ClassStats> {
        self.inner.class_stats()
    }

    fn audit(&self) -> Result<(), AuditError> {
        self.inner.audit()
    }
}
