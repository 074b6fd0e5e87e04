//! The store of evicted pages: slots, the compressed pool behind them, and a file behind the pool.
//!
//! A slot names a stored page. Address spaces that a fork made of one share it. The evictor stores,
//! the fault server loads. A released slot waits in a queue until the evictor frees its memory.

pub(crate) mod read_queue;
pub(crate) mod release_queue;
pub(crate) mod slots;
pub(crate) mod writeback;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::account::sample::StoreUsage;
use crate::page_table::key;
use crate::policy::clock;
use crate::policy::recompress::Density;
use release_queue::ReleaseQueue;
use slots::{Slots, Version};
use uzswap::page::Page;
use uzswap::trace::{RecordReport, Recorder};
use uzswap::zswap::{StoreError, Zswap};
use writeback::{WriteBack, WriteBackReport};

/// Evicted pages, each in a slot.
#[derive(Debug)]
pub(crate) struct PageStore {
    zswap: Zswap,
    slots: Slots,
    /// Released slots, once for each page.
    released: Arc<ReleaseQueue>,
    /// Where pages go that the pool has no share for.
    write_back: Option<WriteBack>,
    /// Where the pool has two compressors.
    density: Option<Density>,
    /// Records stores, loads and frees.
    recorder: Option<Recorder>,
}

/// Why the store does not keep a page.
#[derive(Debug)]
pub(crate) enum NotStored {
    /// The page is too large for the pool: zbud takes no whole page.
    DoesNotShrink,
    /// In words.
    Failed(String),
}

impl PageStore {
    pub(crate) fn new(
        zswap: Zswap,
        write_back: Option<WriteBack>,
        density: Option<Density>,
        recorder: Option<Recorder>,
    ) -> PageStore {
        let (slots, released) = (Slots::default(), Arc::default());
        PageStore { zswap, slots, released, write_back, density, recorder }
    }

    /// Stores a page; its slot.
    pub(crate) fn store(&self, page: &Page) -> Result<u32, NotStored> {
        let slot = self.take_slot().map_err(NotStored::Failed)?;
        let stored = match self.density.as_ref().is_some_and(Density::is_dense) {
            true => self.zswap.store_densely(key(slot), page),
            false => self.zswap.store(key(slot), page),
        };
        match stored {
            Ok(_) => {
                self.record(|recorder| recorder.store(key(slot), page));
                if let Some(write_back) = &self.write_back {
                    write_back.keep_share(&self.zswap);
                }
                Ok(slot)
            }
            Err(error) => {
                self.slots.release(slot);
                self.slots.free(slot);
                Err(match error {
                    StoreError::CompressPoor { .. } => NotStored::DoesNotShrink,
                    other => NotStored::Failed(other.to_string()),
                })
            }
        }
    }

    /// Stores a page, uncompressed if it does not fit the pool.
    ///
    /// # Errors
    ///
    /// The reason, in words.
    pub(crate) fn store_any(&self, page: &Page) -> Result<u32, String> {
        match self.store(page) {
            Ok(slot) => Ok(slot),
            Err(NotStored::DoesNotShrink) => {
                let slot = self.take_slot()?;
                self.slots.keep_whole(slot, page);
                Ok(slot)
            }
            Err(NotStored::Failed(why)) => Err(why),
        }
    }

    fn take_slot(&self) -> Result<u32, String> {
        let none_left = || "the store is at its maximum of 256 GiB of pages".to_owned();
        self.slots.take().ok_or_else(none_left)
    }

    /// Reads a stored page.
    ///
    /// # Errors
    ///
    /// The reason, in words.
    pub(crate) fn load(&self, slot: u32, page: &mut Page) -> Result<(), String> {
        // The page leaves the store in a moment: the pool need not take it back.
        match self.zswap.load_in_place(key(slot), page) {
            Ok(true) => {
                self.record(|recorder| recorder.load(key(slot)));
                Ok(())
            }
            Ok(false) if self.slots.read_whole(slot, page) => Ok(()),
            Ok(false) => Err(format!("slot {slot} is not in the store")),
            Err(error) => match std::error::Error::source(&error) {
                Some(source) => Err(format!("{error}: {source}")),
                None => Err(error.to_string()),
            },
        }
    }

    /// Names the content of a slot: a page that is loaded with nothing locked is the slot's own if
    /// the slot has the same version afterwards.
    pub(crate) fn version(&self, slot: u32) -> Version {
        self.slots.version(slot)
    }

    /// Whether pages may be in a file.
    pub(crate) fn has_file(&self) -> bool {
        self.write_back.is_some()
    }

    /// Whether a slot's page is in the file, and takes a while to load.
    pub(crate) fn is_in_file(&self, slot: u32) -> bool {
        self.has_file() && self.zswap.is_written_back(key(slot))
    }

    /// One more page is that of the slot.
    pub(crate) fn share(&self, slot: u32) {
        self.slots.share(slot);
    }

    /// The slot names one page less. The evictor frees the memory later: neither a fault nor the
    /// sampler waits for it.
    pub(crate) fn release(&self, slot: u32) {
        self.released.extend([slot]);
    }

    pub(crate) fn release_queue(&self) -> &Arc<ReleaseQueue> {
        &self.released
    }

    /// Frees released slots; how many pages left the store, and the time, if any slot was released.
    pub(crate) fn free_released(&self) -> Option<(u64, Duration)> {
        let slots = self.released.take();
        if slots.is_empty() {
            return None;
        }
        let start = Instant::now();
        let mut freed = 0;
        for slot in slots {
            if self.slots.release(slot) {
                freed += 1;
                if self.zswap.invalidate(key(slot)) {
                    // Before another page may have the slot.
                    self.record(|recorder| recorder.free(key(slot)));
                }
                self.slots.free(slot);
            }
        }
        Some((freed, start.elapsed()))
    }

    /// Recompresses some pages, if the pool takes enough of the limit for the second compressor.
    pub(crate) fn recompress_some(&self, limit_bytes: u64) {
        let Some(density) = &self.density else { return };
        density.decide(self.zswap.budget().used_bytes(), self.slots.used(), limit_bytes);
        density.recompress_some(&self.zswap, self.slots.count());
    }

    /// Heat of a page that is restored from the slot, while so many pages are resident.
    pub(crate) fn heat_of_restored(&self, slot: u32, resident_pages: u64) -> u8 {
        clock::heat_of_restored(self.slots.taken_since(slot), resident_pages)
    }

    /// Memory of the store without the table of slots.
    pub(crate) fn usage(&self) -> StoreUsage {
        let budget = self.zswap.budget();
        StoreUsage {
            used: budget.used_bytes(),
            pool: budget.pool_bytes(),
            metadata: budget.metadata_bytes(),
            slots: self.slots.used() as u64,
        }
    }

    /// Pages in the pool, without those in the file, at this usage.
    pub(crate) fn pages_in_pool(&self, usage: &StoreUsage) -> u64 {
        match self.has_file() {
            false => usage.slots.max(1),
            true => self.zswap.counters().stored_pages,
        }
    }

    /// Bytes of the table of slots.
    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slots.bytes() as u64
    }

    /// The pool, for its figures.
    pub(crate) fn zswap(&self) -> &Zswap {
        &self.zswap
    }

    pub(crate) fn write_back_report(&self) -> Option<WriteBackReport> {
        self.write_back.as_ref().map(|write_back| write_back.report(&self.zswap))
    }

    /// Ends the recording, if there is one.
    pub(crate) fn finish_recording(&self) -> Option<RecordReport> {
        self.recorder.as_ref().map(Recorder::finish)
    }

    fn record(&self, event: impl FnOnce(&Recorder)) {
        if let Some(recorder) = &self.recorder {
            event(recorder);
        }
    }

    /// Slots with a wrong count, in words; `named` are those that all address spaces name.
    pub(crate) fn wrong_slots(&self, named: Vec<u32>) -> Vec<String> {
        self.slots.wrong(named, self.has_file()) // reads of the file hold slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap::page::PAGE_SIZE;
    use uzswap::zswap::ZswapOptions;

    #[test]
    fn a_page_stays_until_each_holder_has_released_its_slot() {
        let zswap = Zswap::new(ZswapOptions::default()).unwrap();
        let store = PageStore::new(zswap, None, None, None);
        let page: Page = std::array::from_fn(|at| (at / 7) as u8);
        let slot = store.store(&page).unwrap();
        store.share(slot);
        let mut found = [0; PAGE_SIZE];
        for freed in [0, 1] {
            assert!(store.load(slot, &mut found).is_ok() && found == page);
            assert_eq!(store.usage().slots, 1);
            store.release(slot);
            assert_eq!(store.free_released().map(|(pages, _)| pages), Some(freed));
        }
        assert_eq!((store.usage().slots, store.free_released()), (0, None));
        assert_eq!(store.load(slot, &mut found), Err(format!("slot {slot} is not in the store")));
        assert_eq!(store.wrong_slots(Vec::new()), [""; 0]);
        // It is free, and the next one does not exist.
        assert_eq!([slot, slot + 1].map(|slot| store.wrong_slots(vec![slot]).len()), [1, 1]);
    }
}
