//! The store of evicted pages: slots, the compressed pool behind them, and a file behind the pool.
//!
//! A slot names a stored page. Address spaces that a fork made of one share it. The evictor stores,
//! the fault server loads. A released slot waits in a queue until the evictor frees its memory.

mod free_slots;
pub(crate) mod read_queue;
pub(crate) mod release_queue;
pub(crate) mod slots;
pub(crate) mod writeback;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::account::sample::StoreUsage;
use crate::page_table::key;
use crate::policy::clock;
use crate::policy::recompress::Density;
use crate::policy::shared_turns::Pages;
use release_queue::ReleaseQueue;
use slots::{Slots, Version};
use uzswap::page::{Page, PageKey};
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
    /// Pages that left the store since units were last split.
    left: AtomicU64,
}

/// Pages that leave before units are split, at least: 16 MiB.
const SPLIT_AFTER: u64 = 1 << 12; // 4096

/// Why the store does not keep a page.
#[derive(Debug)]
pub(crate) enum NotStored {
    /// The page is too large for the pool: zbud and zblock take no whole page.
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
        let (slots, released) = (Slots::new(zswap.options().unit_pages), Arc::default());
        let left = AtomicU64::new(0);
        PageStore { zswap, slots, released, write_back, density, recorder, left }
    }

    /// Stores a page; its slot.
    pub(crate) fn store(&self, page: &Page) -> Result<u32, NotStored> {
        let slot = self.take_slot().map_err(NotStored::Failed)?;
        let stored = match self.is_dense() {
            true => self.zswap.store_densely(key(slot), page),
            false => self.zswap.store(key(slot), page),
        };
        match stored {
            Ok(_) => {
                self.record(|recorder| recorder.store(key(slot), page));
                self.keep_share();
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

    /// Stores neighbours, those of a unit together; `outcome` is called with the place of a page
    /// among them and its slot, if the page fits the pool.
    ///
    /// # Errors
    ///
    /// The reason, in words: pages without an outcome are not stored.
    pub(crate) fn store_all(
        &self,
        pages: &[Page],
        outcome: &mut dyn FnMut(usize, Option<u32>),
    ) -> Result<(), String> {
        let unit_pages = self.zswap.options().unit_pages;
        for (number, unit) in pages.chunks(unit_pages).enumerate() {
            let start = number * unit_pages;
            match unit {
                [page] => match self.store(page) {
                    Ok(slot) => outcome(start, Some(slot)),
                    Err(NotStored::DoesNotShrink) => outcome(start, None),
                    Err(NotStored::Failed(why)) => return Err(why),
                },
                _ => self.store_unit(unit, &mut |at, slot| outcome(start + at, slot))?,
            }
        }
        Ok(())
    }

    fn store_unit(
        &self,
        unit: &[Page],
        outcome: &mut dyn FnMut(usize, Option<u32>),
    ) -> Result<(), String> {
        let first = self.slots.take_run(unit.len()).ok_or_else(none_left)?;
        let mut failed = None;
        let each = |PageKey(slot): PageKey, stored: Result<_, _>| {
            let slot = slot as u32; // as it was taken
            let at = (slot - first) as usize;
            match stored {
                Ok(_) => {
                    self.record(|recorder| recorder.store(key(slot), &unit[at]));
                    outcome(at, Some(slot));
                    return;
                }
                Err(StoreError::CompressPoor { .. }) => outcome(at, None),
                Err(error) => _ = failed.get_or_insert_with(|| error.to_string()),
            }
            self.slots.release(slot);
            self.slots.free(slot);
        };
        match self.is_dense() {
            true => self.zswap.store_all_densely(key(first), unit, each),
            false => self.zswap.store_all(key(first), unit, each),
        }
        self.keep_share();
        failed.map_or(Ok(()), Err)
    }

    fn is_dense(&self) -> bool {
        self.density.as_ref().is_some_and(Density::is_dense)
    }

    fn keep_share(&self) {
        if let Some(write_back) = &self.write_back {
            write_back.keep_share(&self.zswap);
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
        self.split_units(freed);
        Some((freed, start.elapsed()))
    }

    /// Splits units, once half as many pages were freed as are in units. The bytes of freed pages
    /// stay in the pool until then.
    fn split_units(&self, freed: u64) {
        if self.zswap.options().unit_pages == 1 {
            return;
        }
        let left = self.left.fetch_add(freed, Ordering::Relaxed) + freed;
        if left >= SPLIT_AFTER && left >= self.zswap.counters().unit_pages / 2 {
            self.zswap.compact();
            self.left.store(0, Ordering::Relaxed);
        }
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

    /// A process touched a page of the slot soon after the eviction. The page is not released yet.
    pub(crate) fn note_refault(&self, slot: u32) {
        self.slots.note_refault(slot);
    }

    /// Refaults since the start, of exclusive and of shared pages.
    pub(crate) fn refaults(&self) -> Pages {
        self.slots.refaults()
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

fn none_left() -> String {
    "the store is at its maximum of 256 GiB of pages".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap::page::PAGE_SIZE;
    use uzswap::random::SplitMix64;
    use uzswap::zswap::ZswapOptions;

    /// A page that compresses, or that does not.
    fn page_of(number: u64, compresses: bool) -> Page {
        let mut random = SplitMix64::new(number);
        let word = random.next_word();
        let mut next = || if compresses { word } else { random.next_word() };
        let mut page = [0; PAGE_SIZE];
        page.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&next().to_le_bytes()));
        page[..8].copy_from_slice(&number.to_le_bytes());
        page
    }

    #[test]
    fn neighbours_are_stored_in_units_and_each_page_has_its_slot() {
        let options = ZswapOptions::bare().unit_pages(4);
        let store = PageStore::new(Zswap::new(options).unwrap(), None, None, None);
        // Page 5 does not fit, and its unit is stored page by page; 8 and 9 are a part of a unit.
        let pages: Vec<Page> = (0..10).map(|number| page_of(number, number != 5)).collect();
        let mut slots = vec![Some(u32::MAX); 10];
        store.store_all(&pages, &mut |at, slot| slots[at] = slot).unwrap();
        let expected = [0, 1, 2, 3, 4, u32::MAX, 6, 7, 8, 9];
        let found = slots.iter().map(|slot| slot.unwrap_or(u32::MAX));
        assert_eq!(found.collect::<Vec<_>>(), expected);
        let counters = store.zswap().counters();
        assert_eq!((counters.stored_units, counters.unit_pages), (2, 6));
        let mut found = [0; PAGE_SIZE];
        for (page, slot) in pages.iter().zip(&slots) {
            let loaded = slot.map(|slot| store.load(slot, &mut found));
            assert!(loaded.is_none_or(|loaded| loaded == Ok(()) && found == *page));
        }
        // Single pages take the free slots of units in use.
        let mut single: Vec<u32> =
            (20..23).map(|n| store.store(&page_of(n, true)).unwrap()).collect();
        single.sort_unstable();
        assert_eq!(single, [5, 10, 11]);
        let named: Vec<u32> = slots.into_iter().flatten().chain(single).collect();
        assert_eq!(store.wrong_slots(named.clone()), [""; 0]);
        named.into_iter().for_each(|slot| store.release(slot));
        assert_eq!(store.free_released().map(|(pages, _)| pages), Some(12));
        assert_eq!((store.usage().slots, store.zswap().zpool().stats().objects), (0, 0));
    }

    #[test]
    fn units_are_split_once_half_of_their_pages_have_left() {
        let options = ZswapOptions::bare().unit_pages(4);
        let store = PageStore::new(Zswap::new(options).unwrap(), None, None, None);
        let pages: Vec<Page> = (0..4).map(|number| page_of(number, true)).collect();
        let mut slots = Vec::new();
        for _ in 0..3000 {
            store.store_all(&pages, &mut |_, slot| slots.push(slot.unwrap())).unwrap();
        }
        let counts = |share: usize| {
            let leaving: Vec<u32> = slots.iter().skip(share).step_by(4).copied().collect();
            leaving.into_iter().for_each(|slot| store.release(slot));
            store.free_released();
            let counters = store.zswap().counters();
            (counters.split_units, counters.unit_pages)
        };
        assert_eq!(counts(0), (0, 9000));
        assert_eq!(counts(1), (3000, 0));
        let (mut found, last) = ([0; PAGE_SIZE], slots[slots.len() - 1]);
        assert!(store.load(last, &mut found).is_ok() && found == pages[3]);
    }

    #[test]
    fn a_unit_that_the_pool_has_no_room_for_leaves_no_slot_taken() {
        let mut failed = 0;
        for pages in 0..12 {
            let options = ZswapOptions::bare().unit_pages(4).max_pool_bytes(pages << 12);
            let store = PageStore::new(Zswap::new(options).unwrap(), None, None, None);
            let all: Vec<Page> = (0..40).map(|n| page_of(n, n % 3 > 0)).collect();
            let mut named = Vec::new();
            let stored = store.store_all(&all, &mut |at, slot| {
                named.extend(slot.map(|slot| (at, slot)));
            });
            failed += usize::from(stored.is_err());
            let slots = named.iter().map(|&(_, slot)| slot).collect();
            assert_eq!(store.wrong_slots(slots), [""; 0], "{pages} pages");
            for (at, slot) in named {
                let mut found = [0; PAGE_SIZE];
                assert!(store.load(slot, &mut found).is_ok() && found == all[at]);
            }
        }
        assert!(failed > 2);
    }

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
