//! Staging: memory in the program to which its pages are moved, in trays, until they are stored.

use std::collections::VecDeque;
use std::io;

use super::{PAGE, Space};
use crate::page_table::{Entry, Place, UNKNOWN};
use crate::target::vmas::{READ_WRITE, Rights};
use uzswap::page::{PAGE_SIZE, Page};

/// Pages that are moved by one command: the kernel flushes the TLB once for more than 33, and page
/// by page below.
pub(crate) const TRAY_PAGES: usize = 512;

/// Pages of a process that can be aside at once: 16 MiB.
pub(crate) const STAGING_PAGES: usize = TRAYS * TRAY_PAGES;
const TRAYS: usize = 8;

/// Bytes of staging: one page more, whose touch tells of a fork.
pub(crate) const STAGING_BYTES: u64 = (STAGING_PAGES as u64 + 1) * PAGE_SIZE as u64;

/// A page of staging that belongs to nobody.
const NOBODY: u64 = u64::MAX;

/// Pages that are aside in the program.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) owners: Owners,
    /// Trays with pages, the oldest first.
    pub(super) filled: VecDeque<usize>,
    /// Trays without.
    pub(super) empty: Vec<usize>,
    /// How many pages were moved to each when it was filled.
    pub(super) moved: [usize; TRAYS],
    /// The rights of each; none where parts of it may have others.
    pub(super) rights: [Option<Rights>; TRAYS],
    /// A tray of which all is in the store, and that has its memory still.
    pub(super) spent: Option<usize>,
}

/// By page of staging: the page of the program. A tray with none takes no memory.
#[derive(Debug, Default)]
pub(super) struct Owners([Option<Box<OfTray>>; TRAYS]);

#[derive(Debug)]
struct OfTray {
    pages: [u64; TRAY_PAGES],
    /// Those that are not nobody's.
    count: usize,
}

impl Owners {
    pub(super) fn set(&mut self, staged: u32, page: u64) {
        let staged = staged as usize;
        let none = || Box::new(OfTray { pages: [NOBODY; TRAY_PAGES], count: 0 });
        let tray = self.0[staged / TRAY_PAGES].get_or_insert_with(none);
        let before = std::mem::replace(&mut tray.pages[staged % TRAY_PAGES], page);
        tray.count += usize::from(before == NOBODY);
    }

    /// The owner, if there is one.
    fn get(&self, staged: u32) -> Option<u64> {
        let tray = self.0[staged as usize / TRAY_PAGES].as_ref()?;
        Some(tray.pages[staged as usize % TRAY_PAGES]).filter(|&owner| owner != NOBODY)
    }

    /// The owner, which it is no more; `None` where there is none.
    pub(super) fn take(&mut self, staged: u32) -> Option<u64> {
        let owner = self.get(staged)?;
        let staged = staged as usize;
        let place = &mut self.0[staged / TRAY_PAGES];
        let tray = place.as_mut()?;
        tray.pages[staged % TRAY_PAGES] = NOBODY;
        tray.count -= 1;
        if tray.count == 0 {
            *place = None;
        }
        Some(owner)
    }

    /// Pages of staging that have an owner, of one tray, and each owner.
    fn of_tray(&self, tray: usize) -> impl Iterator<Item = (u32, u64)> {
        let pages = self.0[tray].iter().flat_map(|tray| &tray.pages);
        let first = (tray * TRAY_PAGES) as u32;
        (first..).zip(pages.copied()).filter(|(_, owner)| *owner != NOBODY)
    }

    /// Memory, in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().flatten().count() * size_of::<OfTray>()
    }
}

/// Pages of a tray that are to be stored.
#[derive(Debug, Default)]
pub(crate) struct Tray {
    pub(crate) number: usize,
    pub(crate) staged: Vec<StagedPage>,
}

/// A page that is aside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StagedPage {
    /// Its page of staging, and the address of that.
    pub(crate) number: u32,
    pub(crate) address: u64,
    /// The page of the program that it was when it was asked for.
    pub(crate) owner: u64,
    /// No thread has asked for it: see [`Entry::ahead`].
    pub(crate) ahead: bool,
}

impl Staging {
    pub(super) fn new() -> Staging {
        Staging {
            owners: Owners::default(),
            filled: VecDeque::new(),
            empty: (0..TRAYS).rev().collect(),
            moved: [0; TRAYS],
            rights: [Some(READ_WRITE); TRAYS],
            spent: None,
        }
    }
}

impl Space {
    /// Trays with pages.
    pub(crate) fn filled_trays(&self) -> usize {
        self.staging.filled.len()
    }

    /// Takes the tray that was filled first, to store what is in it still.
    pub(crate) fn take_oldest_tray(&mut self) -> Option<Tray> {
        let number = self.staging.filled.pop_front()?;
        self.tray(number)
    }

    /// Takes the tray that was filled last, likewise.
    pub(crate) fn take_newest_tray(&mut self) -> Option<Tray> {
        let number = self.staging.filled.pop_back()?;
        self.tray(number)
    }

    fn tray(&self, number: usize) -> Option<Tray> {
        let helper = self.helper.as_ref()?;
        let staged = self.staging.owners.of_tray(number);
        let staged = staged
            .map(|(staged, owner)| StagedPage {
                number: staged,
                address: helper.staged_at(staged as usize),
                owner,
                ahead: self.table.get(owner).ahead,
            })
            .collect();
        Some(Tray { number, staged })
    }

    /// A page of a tray is in the store now; `false` where it has left the tray meanwhile.
    pub(crate) fn stored(&mut self, staged: u32, slot: u32) -> bool {
        let Some(owner) = self.staging.owners.take(staged) else { return false };
        let entry = self.table.get(owner);
        if entry.place == Place::Staged(staged) {
            self.table.set(owner, Entry { place: Place::Stored(slot), ahead: false, ..entry });
        } else if let Some(entry) = self.elder.get_mut(&owner) {
            entry.place = Place::Stored(slot);
        }
        true
    }

    /// A page of a tray that was filled with zeros ahead of any touch, and is as it was filled, is
    /// taken back: the next touch fills it again.
    pub(crate) fn taken_back(&mut self, staged: u32) {
        let Some(owner) = self.staging.owners.take(staged) else { return };
        if self.table.get(owner).place == Place::Staged(staged) {
            self.table.set(owner, UNKNOWN);
        } else if let Some(entry) = self.elder.get_mut(&owner) {
            *entry = UNKNOWN;
        }
    }

    /// A page of a tray that cannot be stored goes back to where it was, and is left there for a
    /// while; `false` where it has left the tray meanwhile.
    pub(crate) fn give_back(&mut self, staged: u32, content: &Page) -> io::Result<bool> {
        let Some(owner) = self.staging.owners.get(staged) else { return Ok(false) };
        if self.table.get(owner).place != Place::Staged(staged) {
            return Err(io::ErrorKind::WouldBlock.into()); // it is still to be told where it is
        }
        let at = owner * PAGE;
        let filled = self.uffd.copy(at, content, true, false);
        filled.map_err(|stopped| match stopped.errno {
            libc::EAGAIN => io::ErrorKind::WouldBlock.into(), // the mappings change
            errno => io::Error::from_raw_os_error(errno),
        })?;
        self.returned(owner, 0);
        self.left.insert(at..at + PAGE);
        Ok(true)
    }

    /// Puts a tray back that could not be emptied.
    pub(crate) fn keep_tray(&mut self, number: usize) {
        self.staging.filled.push_back(number);
    }

    /// All of a tray is in the store, or has gone back: its memory goes with the next command.
    pub(crate) fn spend_tray(&mut self, number: usize) {
        self.staging.spent = Some(number);
    }

    /// Whether a tray's memory is to be given back.
    pub(crate) fn has_spent_tray(&self) -> bool {
        self.staging.spent.is_some()
    }

    /// Whether one more tray can be filled.
    pub(crate) fn has_empty_tray(&self) -> bool {
        !self.staging.empty.is_empty()
    }

    /// Whether an address is in staging.
    pub(crate) fn is_staging(&self, address: u64) -> bool {
        self.helper.as_ref().is_some_and(|helper| {
            let start = helper.staged_at(0);
            (start..start + STAGING_BYTES).contains(&address)
        })
    }

    /// Pages of staging with pages of the program.
    pub(crate) fn pages_aside(&self) -> Vec<u32> {
        let trays = (0..TRAYS).flat_map(|tray| self.staging.owners.of_tray(tray));
        trays.map(|(staged, _)| staged).collect()
    }

    /// Reads a page that is aside.
    pub(crate) fn read_staged(&self, staged: u32, page: &mut Page) -> io::Result<()> {
        let (Some(files), Some(helper)) = (&self.files, &self.helper) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        files.memory.read(helper.staged_at(staged as usize), page)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn owners_are_a_map_that_takes_memory_for_trays_in_use() {
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
        let all: Vec<(u32, u64)> = (0..TRAYS).flat_map(|tray| owners.of_tray(tray)).collect();
        assert_eq!(all, twin.into_iter().collect::<Vec<_>>());
        for (staged, owner) in all {
            assert!(owners.bytes() >= TRAY_PAGES * 8);
            assert_eq!(owners.take(staged), Some(owner));
        }
        assert_eq!(owners.bytes(), 0);
    }
}
