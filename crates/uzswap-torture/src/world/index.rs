//! An index double that runs out of memory.

use std::sync::Arc;

use super::World;
use crate::faults::Fault;
use crate::planted_bugs::PlantedBug;
use uzswap::AuditError;
use uzswap::index::{Entry, Index, IndexError, KeyRange, Replaced, Visit};
use uzswap::page::PageKey;

#[derive(Debug)]
pub(crate) struct FailingIndex {
    world: Arc<World>,
    inner: Box<dyn Index>,
}

impl FailingIndex {
    pub(crate) fn new(world: Arc<World>, inner: Box<dyn Index>) -> FailingIndex {
        FailingIndex { world, inner }
    }

    fn is_planted(&self, plant: PlantedBug) -> bool {
        self.world.is_planted(plant) && self.world.draw().is_multiple_of(64)
    }
}

impl Index for FailingIndex {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn insert_or_replace(&mut self, key: PageKey, entry: Entry) -> Replaced {
        let before = self.inner.get(key);
        if before.is_none() && self.world.strikes(Fault::NoIndex) {
            return Err(IndexError::NoMemory);
        }
        if before.is_some() && self.is_planted(PlantedBug::StaleEntry) {
            return Ok(Some(entry));
        }
        let replaced = self.inner.insert_or_replace(key, entry);
        if self.is_planted(PlantedBug::LostEntry) { replaced.map(|_| None) } else { replaced }
    }

    fn get(&self, key: PageKey) -> Option<Entry> {
        self.inner.get(key)
    }

    fn remove(&mut self, key: PageKey, only: Option<Entry>) -> Option<Entry> {
        match only {
            None if self.is_planted(PlantedBug::ForgottenRemoval) => None,
            Some(_) if self.world.is_planted(PlantedBug::KeyOnlyErase) => self.inner.take(key),
            only => self.inner.remove(key, only),
        }
    }

    fn take_range(&mut self, range: KeyRange, max: usize, taken: Visit<'_>) -> usize {
        self.inner.take_range(range, max, taken)
    }

    fn for_each(&self, range: KeyRange, visit: Visit<'_>) {
        self.inner.for_each(range, visit);
    }

    fn count(&self) -> usize {
        self.inner.count()
    }

    fn bytes(&self) -> usize {
        self.inner.bytes()
    }

    fn audit(&self) -> Result<(), AuditError> {
        self.inner.audit()
    }
}
