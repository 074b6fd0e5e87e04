//! Staging: memory of the library in the program. The helper moves pages there in batches, and the
//! supervisor stores them from there. "Staged" in this file means: in staging, not stored.

use std::collections::VecDeque;
use std::io;

use super::{AddressSpace, PAGE};
use crate::page_table::{BATCH_PAGES, Entry, Place};
use crate::program::vmas::{READ_WRITE, Rights};
use uzswap::page::{PAGE_SIZE, Page};

/// Pages of a process that can be staged at once: 16 MiB.
pub(crate) const STAGING_PAGES: usize = BATCHES * BATCH_PAGES;
const BATCHES: usize = 8;

/// Bytes of staging: one page more, whose touch reports a fork.
pub(crate) const STAGING_BYTES: u64 = (STAGING_PAGES as u64 + 1) * PAGE_SIZE as u64;

/// The owner of a free page of staging.
const NOBODY: u64 = u64::MAX;

/// The staged pages of a program.
#[derive(Debug)]
pub(super) struct Staging {
    owners: Owners,
    /// Batches with pages, the oldest first.
    filled: VecDeque<usize>,
    /// Empty batches.
    empty: Vec<usize>,
    /// Pages of memory that each batch has: all that it had when it was filled.
    moved: [usize; BATCHES],
    /// The rights of each batch; `None` if parts of it may have others.
    rights: [Option<Rights>; BATCHES],
    /// A drained batch, whose memory the helper has not freed yet.
    drained: Option<usize>,
}

/// By page of staging: the page of the program. A batch with none takes no memory.
#[derive(Debug, Default)]
struct Owners([Option<Box<OfBatch>>; BATCHES]);

#[derive(Debug)]
struct OfBatch {
    pages: [u64; BATCH_PAGES],
    /// Pages with an owner.
    count: usize,
}

impl Owners {
    fn set(&mut self, staged: u32, page: u64) {
        let staged = staged as usize;
        let none = || Box::new(OfBatch { pages: [NOBODY; BATCH_PAGES], count: 0 });
        let batch = self.0[staged / BATCH_PAGES].get_or_insert_with(none);
        let before = std::mem::replace(&mut batch.pages[staged % BATCH_PAGES], page);
        batch.count += usize::from(before == NOBODY);
    }

    /// Pages of staging that have an owner.
    fn count(&self) -> usize {
        self.0.iter().flatten().map(|batch| batch.count).sum()
    }

    /// The owner, if there is one.
    fn get(&self, staged: u32) -> Option<u64> {
        let batch = self.0[staged as usize / BATCH_PAGES].as_ref()?;
        Some(batch.pages[staged as usize % BATCH_PAGES]).filter(|&owner| owner != NOBODY)
    }

    /// Takes the owner; `None` if there is none.
    fn take(&mut self, staged: u32) -> Option<u64> {
        let owner = self.get(staged)?;
        let staged = staged as usize;
        let place = &mut self.0[staged / BATCH_PAGES];
        let batch = place.as_mut()?;
        batch.pages[staged % BATCH_PAGES] = NOBODY;
        batch.count -= 1;
        if batch.count == 0 {
            *place = None;
        }
        Some(owner)
    }

    /// Pages of staging that have an owner, of one batch, and each owner.
    fn of_batch(&self, batch: usize) -> impl Iterator<Item = (u32, u64)> {
        let pages = self.0[batch].iter().flat_map(|batch| &batch.pages);
        let first = (batch * BATCH_PAGES) as u32;
        (first..).zip(pages.copied()).filter(|(_, owner)| *owner != NOBODY)
    }

    /// Memory, in bytes, about.
    fn bytes(&self) -> usize {
        self.0.iter().flatten().count() * size_of::<OfBatch>()
    }
}

/// The pages of a batch that the evictor stores.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) number: usize,
    pub(crate) staged: Vec<StagedPage>,
}

/// A staged page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StagedPage {
    /// Its page of staging, and the address of that.
    pub(crate) number: u32,
    pub(crate) address: u64,
    /// Its owner when the batch was taken: a page of the program.
    pub(crate) owner: u64,
    /// No thread has asked for it: see [`Entry::ahead`].
    pub(crate) ahead: bool,
}

impl Staging {
    pub(super) fn new() -> Staging {
        Staging {
            owners: Owners::default(),
            filled: VecDeque::new(),
            empty: (0..BATCHES).rev().collect(),
            moved: [0; BATCHES],
            rights: [Some(READ_WRITE); BATCHES],
            drained: None,
        }
    }

    /// Takes an empty batch, to fill it.
    pub(super) fn take_empty(&mut self) -> Option<usize> {
        self.empty.pop()
    }

    /// Puts a batch back that was not filled.
    pub(super) fn put_empty(&mut self, batch: usize) {
        self.empty.push(batch);
    }

    /// Notes that the helper has freed the memory of a batch; how many pages it had.
    pub(super) fn free(&mut self, batch: usize) -> usize {
        self.empty.push(batch);
        std::mem::take(&mut self.moved[batch])
    }

    /// Notes that a command moved so many pages to a batch. If the kernel has filled the empty
    /// batch (mlockall), the helper frees that memory first.
    pub(super) fn fill(&mut self, batch: usize, pages: usize, is_in_the_way: bool) {
        self.moved[batch] = pages;
        match pages {
            0 if is_in_the_way && self.drained.is_none() => self.drained = Some(batch),
            0 => self.empty.push(batch),
            _ => self.filled.push_back(batch),
        }
    }

    /// Takes a drained batch, for the helper to free its memory.
    pub(super) fn take_drained(&mut self) -> Option<usize> {
        self.drained.take()
    }

    /// Whether all of a batch has these rights.
    pub(super) fn has_rights(&self, batch: usize, rights: Rights) -> bool {
        self.rights[batch] == Some(rights)
    }

    /// Notes the rights of a batch; `None` if parts of it may have others.
    pub(super) fn set_rights(&mut self, batch: usize, rights: Option<Rights>) {
        self.rights[batch] = rights;
    }

    /// The owner of a page of staging.
    pub(super) fn owner(&self, staged: u32) -> Option<u64> {
        self.owners.get(staged)
    }

    /// Pages of staging that have an owner.
    pub(super) fn owned(&self) -> usize {
        self.owners.count()
    }

    pub(super) fn set_owner(&mut self, staged: u32, page: u64) {
        self.owners.set(staged, page);
    }

    /// Takes the owner of a page of staging; `None` if it has none.
    pub(super) fn take_owner(&mut self, staged: u32) -> Option<u64> {
        self.owners.take(staged)
    }

    /// Memory of what is known, in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        self.owners.bytes()
    }
}

impl AddressSpace {
    /// Batches with pages.
    pub(crate) fn filled_batches(&self) -> usize {
        self.staging.filled.len()
    }

    /// Memory of staging, in bytes.
    pub(crate) fn staging_bytes(&self) -> u64 {
        self.staging.moved.iter().sum::<usize>() as u64 * PAGE
    }

    /// Takes the oldest batch, to store its pages.
    pub(crate) fn take_oldest_batch(&mut self) -> Option<Batch> {
        let number = self.staging.filled.pop_front()?;
        self.batch(number)
    }

    /// Takes the newest batch, to store its pages.
    pub(crate) fn take_newest_batch(&mut self) -> Option<Batch> {
        let number = self.staging.filled.pop_back()?;
        self.batch(number)
    }

    fn batch(&self, number: usize) -> Option<Batch> {
        let start = self.commands.staged_at(0)?;
        let staged = self.staging.owners.of_batch(number);
        let staged = staged
            .map(|(staged, owner)| StagedPage {
                number: staged,
                address: start + u64::from(staged) * PAGE,
                owner,
                ahead: self.table.get(owner).ahead,
            })
            .collect();
        Some(Batch { number, staged })
    }

    /// Notes the slot of a staged page; `false` if the batch has it no more.
    pub(crate) fn stored(&mut self, staged: u32, slot: u32) -> bool {
        let Some(owner) = self.staging.owners.take(staged) else { return false };
        let entry = self.table.get(owner);
        if entry.place == Place::Staged(staged) {
            self.table.set(owner, Entry { place: Place::Stored(slot), ahead: false, ..entry });
        }
        true
    }

    /// Gives a staged page back that cannot be stored, and keeps it in the program for a while;
    /// `false` if the batch has it no more.
    pub(crate) fn give_back(&mut self, staged: u32, content: &Page) -> io::Result<bool> {
        let Some(owner) = self.staging.owners.get(staged) else { return Ok(false) };
        if !self.settle() {
            return Err(io::ErrorKind::WouldBlock.into()); // it may have moved
        }
        if self.staging.owners.get(staged) != Some(owner) {
            return self.give_back(staged, content);
        }
        let at = owner * PAGE;
        let filled = self.uffd.copy(at, content, true, false);
        filled.map_err(|stopped| match stopped.errno {
            libc::EAGAIN => io::ErrorKind::WouldBlock.into(), // the mappings change
            errno => io::Error::from_raw_os_error(errno),
        })?;
        self.returned(owner, 0);
        self.unevictable.add(at..at + PAGE);
        Ok(true)
    }

    /// Puts a batch back that could not be drained.
    pub(crate) fn keep_batch(&mut self, number: usize) {
        self.staging.filled.push_back(number);
    }

    /// Drains a batch: the next command frees its memory.
    pub(crate) fn drain_batch(&mut self, number: usize) {
        self.staging.drained = Some(number);
    }

    /// Whether a drained batch has memory.
    pub(crate) fn has_drained_batch(&self) -> bool {
        self.staging.drained.is_some()
    }

    /// Whether one more batch can be filled.
    pub(crate) fn has_empty_batch(&self) -> bool {
        !self.staging.empty.is_empty()
    }

    /// Whether an address is in staging.
    pub(crate) fn is_staging(&self, address: u64) -> bool {
        let start = self.commands.staged_at(0);
        start.is_some_and(|start| (start..start + STAGING_BYTES).contains(&address))
    }

    /// Pages of staging with pages of the program.
    pub(crate) fn batch_pages(&self) -> Vec<u32> {
        let batches = (0..BATCHES).flat_map(|batch| self.staging.owners.of_batch(batch));
        batches.map(|(staged, _)| staged).collect()
    }

    /// Reads a staged page.
    pub(crate) fn read_staged(&self, staged: u32, page: &mut Page) -> io::Result<()> {
        let address = self.commands.staged_at(staged as usize);
        let (Some(files), Some(address)) = (self.process.files(), address) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        files.memory.read(address, page)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::address_space::for_tests::{STAGING, Written};
    use crate::address_space::fork_evidence::Uncertain;
    use crate::page_table::{HEAT_MAX, UNKNOWN};

    /// A batch with pages of the program in its first pages.
    fn fill(space: &mut AddressSpace, owners: &[u64]) -> usize {
        let batch = space.staging.take_empty().unwrap();
        for (staged, &owner) in ((batch * BATCH_PAGES) as u32..).zip(owners) {
            let entry = Entry { place: Place::Staged(staged), ahead: owner == 9, ..UNKNOWN };
            space.table.set(owner, entry);
            space.staging.set_owner(staged, owner);
        }
        space.staging.fill(batch, owners.len(), false);
        batch
    }

    #[test]
    fn batches_are_taken_by_age_with_the_pages_that_they_have_still() {
        let mut space = AddressSpace::with_helper(STAGING);
        let all = [&[7, 8, 9][..], &[20], &[30, 31]].map(|owners| fill(&mut space, owners));
        assert_eq!((space.filled_batches(), space.staging.owned()), (3, 6));
        assert_eq!(space.staging.bytes(), 3 * size_of::<OfBatch>());
        let first = (all[0] * BATCH_PAGES) as u32;
        space.returned(8, 0);
        assert_eq!(space.batch_pages()[..3], [first, first + 2, (all[1] * BATCH_PAGES) as u32]);
        let oldest = space.take_oldest_batch().unwrap();
        assert_eq!(oldest.number, all[0]);
        let pages = oldest.staged.iter().map(|it| (it.number, it.address, it.owner, it.ahead));
        let address = |number: u32| STAGING + u64::from(number) * PAGE;
        let [at_first, at_third] = [first, first + 2].map(|number| (number, address(number)));
        let expected = [(at_first.0, at_first.1, 7, false), (at_third.0, at_third.1, 9, true)];
        assert_eq!(pages.collect::<Vec<_>>(), expected);
        assert_eq!(space.take_newest_batch().unwrap().number, all[2]);
        space.keep_batch(all[0]);
        let numbers = [(); 3].map(|()| space.take_oldest_batch().map(|batch| batch.number));
        assert_eq!(numbers, [Some(all[1]), Some(all[0]), None]);
        // The helper frees its memory, and has moved three pages to it.
        assert!(!space.has_drained_batch());
        space.drain_batch(all[0]);
        assert!(space.has_drained_batch());
        assert_eq!(space.staging.take_drained(), Some(all[0]));
        assert_eq!(space.staging_bytes(), 6 * PAGE);
        assert_eq!(space.staging.free(all[0]), 3);
        assert_eq!(space.staging_bytes(), 3 * PAGE);
        assert_eq!(space.staging.take_empty(), Some(all[0]));
    }

    #[test]
    fn all_batches_are_filled_but_none_twice() {
        let mut space = AddressSpace::with_helper(STAGING);
        let mut taken: Vec<usize> = (0..BATCHES).map(|_| fill(&mut space, &[5])).collect();
        assert!(!space.has_empty_batch());
        taken.sort_unstable();
        assert_eq!(taken, Vec::from_iter(0..BATCHES));
        space.staging.put_empty(4);
        assert!(space.has_empty_batch());
        // Empty batches that the kernel has filled are freed one after the other.
        space.staging.fill(2, 0, true);
        space.staging.fill(3, 0, true);
        assert_eq!(space.staging.take_drained(), Some(2));
        let empty = std::iter::from_fn(|| space.staging.take_empty());
        assert_eq!(empty.collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn a_staged_page_is_stored_once_unless_it_has_returned() {
        let mut space = AddressSpace::with_helper(STAGING);
        let first = (fill(&mut space, &[7, 9]) * BATCH_PAGES) as u32;
        assert!(space.stored(first + 1, 3) && !space.stored(first + 1, 4));
        let entry = space.table.get(9);
        assert_eq!((entry.place, entry.ahead), (Place::Stored(3), false));
        // The table has it elsewhere by now.
        space.table.set(7, Entry { place: Place::Stored(2), ..UNKNOWN });
        assert!(space.stored(first, 5));
        assert_eq!(space.table.get(7).place, Place::Stored(2));
    }

    #[test]
    fn a_page_is_given_back_once_no_change_is_pending() {
        let mut space = AddressSpace::with_helper(STAGING);
        let first = (fill(&mut space, &[7]) * BATCH_PAGES) as u32;
        let page = [0; PAGE_SIZE];
        assert!(!space.give_back(first + 1, &page).unwrap(), "nobody has it");
        let error = space.give_back(first, &page).unwrap_err(); // its userfaultfd is none
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        space.layout.inherit_undecided(Uncertain::default());
        let error = space.give_back(first, &page).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn staging_has_addresses_rights_and_contents() {
        let space = AddressSpace::with_helper(STAGING);
        let ends = [STAGING - 1, STAGING, STAGING + STAGING_BYTES - 1, STAGING + STAGING_BYTES];
        assert_eq!(ends.map(|at| space.is_staging(at)), [false, true, true, false]);
        let mut staging = Staging::new();
        staging.set_rights(1, Some(READ_WRITE | 4));
        staging.set_rights(2, None);
        assert_eq!(
            [0, 1, 2].map(|batch| staging.has_rights(batch, READ_WRITE)),
            [true, false, false]
        );
        assert!(staging.has_rights(1, READ_WRITE | 4));
        let written = Written::new();
        let space = AddressSpace::with_helper(written.start - PAGE);
        let mut page = [2; PAGE_SIZE];
        space.read_staged(1, &mut page).unwrap();
        assert_eq!(page[..2], [1, 0]);
        assert!(AddressSpace::of_nothing().read_staged(0, &mut page).is_err());
    }

    #[test]
    fn owners_are_a_map_that_takes_memory_for_batches_in_use() {
        let (mut owners, mut twin) = (Owners::default(), BTreeMap::new());
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let staged = (state >> 33) as u32 % STAGING_PAGES as u32;
            match state >> 60 {
                0..3 => assert_eq!(owners.take(staged), twin.remove(&staged)),
                _ => {
                    owners.set(staged, state >> 40);
                    twin.insert(staged, state >> 40);
                }
            }
        }
        let all: Vec<(u32, u64)> = (0..BATCHES).flat_map(|batch| owners.of_batch(batch)).collect();
        assert_eq!(all, twin.into_iter().collect::<Vec<_>>());
        assert_eq!(owners.count(), all.len());
        for (staged, owner) in all {
            assert!(owners.bytes() >= BATCH_PAGES * 8);
            assert_eq!(owners.take(staged), Some(owner));
        }
        assert_eq!(owners.bytes(), 0);
    }

    #[test]
    fn a_page_that_returns_has_the_heat_of_its_fault_and_a_staging_hit_the_most() {
        let mut space = AddressSpace::of_nothing();
        let stale = Entry { heat: HEAT_MAX, ..UNKNOWN };
        space.table.set(7, Entry { place: Place::Stored(1), ..stale });
        space.table.set(8, Entry { place: Place::Staged(2), ..UNKNOWN });
        space.staging.owners.set(2, 8);
        space.returned(7, 0);
        space.returned(8, 0);
        assert_eq!(space.table.get(7), Entry { returned: true, ..UNKNOWN });
        assert_eq!(space.table.get(8), Entry { returned: true, heat: HEAT_MAX, ..UNKNOWN });
        assert_eq!(space.staging.owner(2), None);
    }
}
