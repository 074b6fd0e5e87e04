//! Stores the pages of a staged batch.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::address_space::{AddressSpace, Batch, StagedPage};
use crate::locks::check_none_is_held;
use crate::page_table::{BATCH_PAGES, Place};
use crate::{Pager, SpaceHandle, lock, untouched_pages};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap_sys::process_memory::ProcessMemory;

/// Members of a group whose stored pages are compared with a new one at most, the oldest first.
const RELATIVES_MAX: usize = 8;

/// The way of a batch from staging into the store.
pub(super) struct BatchStore {
    pager: Arc<Pager>,
    buffer: Box<[Page]>,
    /// A stored page of another member of the group.
    other: Box<Page>,
}

impl BatchStore {
    pub(super) fn new(pager: Arc<Pager>) -> BatchStore {
        let buffer = untouched_pages(BATCH_PAGES);
        BatchStore { pager, buffer, other: Box::new([0; PAGE_SIZE]) }
    }

    /// Stores the pages of a batch, if the space has one to `take`.
    pub(super) fn store_batch(
        &mut self,
        space: &SpaceHandle,
        take: impl FnOnce(&mut AddressSpace) -> Option<Batch>,
    ) -> io::Result<()> {
        let (batch, files) = {
            let mut space = lock(space);
            let files = space.process.files().cloned().ok_or(io::ErrorKind::NotFound)?;
            let Some(batch) = take(&mut space) else { return Ok(()) };
            (batch, files)
        };
        let relatives = relatives(&self.pager, space);
        let mut elsewhere = self.kept_elsewhere(&relatives, &batch);
        check_none_is_held();
        let mut done = Emptied::default();
        let mut all = self.store(&files.memory, &batch, &mut elsewhere, &mut done);
        elsewhere.into_values().for_each(|slot| self.pager.store.release(slot));
        // All at once: faults are served under this lock, and whoever waits for it costs them more
        // than what is done under it.
        let mut space = lock(space);
        let mut stored = 0;
        space.faults.note_ahead(done.slots_ahead, done.untouched.len());
        space.drop_untouched(done.untouched);
        for (staged, slot) in done.slots {
            if space.stored(staged, slot) {
                stored += 1;
            } else {
                self.pager.store.release(slot);
            }
        }
        for (staged, page) in done.unfit {
            match space.give_back(staged, &page) {
                Ok(is_back) => self.pager.charge(usize::from(is_back), 0),
                Err(error) => all = Err(error),
            }
        }
        match all {
            Ok(()) => space.drain_batch(batch.number),
            Err(_) => space.keep_batch(batch.number),
        }
        self.pager.meter.stored(stored);
        all
    }

    /// The slots of pages that relatives have in the store where this batch's pages were: held
    /// until they are released.
    fn kept_elsewhere(&self, relatives: &[SpaceHandle], batch: &Batch) -> BTreeMap<u64, u32> {
        let mut found = BTreeMap::new();
        for relative in relatives.iter().take(RELATIVES_MAX) {
            if found.len() == batch.staged.len() {
                break;
            }
            let relative = lock(relative);
            for owner in batch.staged.iter().map(|staged| staged.owner) {
                if let (Place::Stored(slot), Entry::Vacant(entry)) =
                    (relative.table.get(owner).place, found.entry(owner))
                    && !self.pager.store.is_in_file(slot)
                {
                    self.pager.store.share(slot);
                    entry.insert(slot);
                }
            }
        }
        found
    }

    /// Stores the pages of a batch. A page that equals the one of a group member (`elsewhere`)
    /// shares its slot.
    fn store(
        &mut self,
        memory: &ProcessMemory,
        batch: &Batch,
        elsewhere: &mut BTreeMap<u64, u32>,
        done: &mut Emptied,
    ) -> io::Result<()> {
        for run in batch.staged.chunk_by(|a, b| a.number + 1 == b.number) {
            let pages = &mut self.buffer[..run.len()];
            memory.read(run[0].address, pages.as_flattened_mut())?;
            let mut together = 0..0;
            for (at, staged) in run.iter().enumerate() {
                if self.needs_room(at, *staged, elsewhere, done) {
                    together.end = at + 1;
                    continue;
                }
                self.store_together(run, together, done)?;
                together = at + 1..at + 1;
            }
            self.store_together(run, together, done)?;
        }
        Ok(())
    }

    /// Whether the page of a place in the buffer needs a slot. A page that nobody touched needs
    /// none, nor does one that equals the page of a group member.
    fn needs_room(
        &mut self,
        at: usize,
        staged: StagedPage,
        elsewhere: &mut BTreeMap<u64, u32>,
        done: &mut Emptied,
    ) -> bool {
        let page = &self.buffer[at];
        if staged.ahead && *page == [0; PAGE_SIZE] {
            done.untouched.push(staged.number);
            return false;
        }
        done.slots_ahead += usize::from(staged.ahead);
        let Some(&slot) = elsewhere.get(&staged.owner) else { return true };
        if self.pager.store.load(slot, &mut self.other).is_err() || *self.other != *page {
            return true;
        }
        elsewhere.remove(&staged.owner);
        done.slots.push((staged.number, slot));
        false
    }

    /// Stores neighbours in the buffer.
    fn store_together(
        &self,
        run: &[StagedPage],
        places: Range<usize>,
        done: &mut Emptied,
    ) -> io::Result<()> {
        let (run, pages) = (&run[places.clone()], &self.buffer[places]);
        let stored = self.pager.store.store_all(pages, &mut |at, slot| match slot {
            Some(slot) => done.slots.push((run[at].number, slot)),
            None => done.unfit.push((run[at].number, Box::new(pages[at]))),
        });
        stored.map_err(io::Error::other)
    }
}

/// The outcome for each page of a batch, by page of staging.
#[derive(Debug, Default)]
struct Emptied {
    /// The slot of each that is in the store.
    slots: Vec<(u32, u32)>,
    /// Pages that did not fit the pool.
    unfit: Vec<(u32, Box<Page>)>,
    /// Pages that the server filled with zeros ahead of a touch, and that are still zeros.
    untouched: Vec<u32>,
    /// How many others were filled so.
    slots_ahead: usize,
}

/// The other members of a space's fork group.
pub(super) fn relatives(pager: &Pager, space: &SpaceHandle) -> Vec<SpaceHandle> {
    let group = lock(space).charge.group().cloned();
    if group.is_none() {
        return Vec::new();
    }
    let mut all = pager.spaces();
    all.retain(|other| !Arc::ptr_eq(other, space) && lock(other).charge.group() == group.as_ref());
    all
}
