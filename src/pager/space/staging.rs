//! Staging: memory in the program to which its pages are moved, in trays, until they are stored.

use std::collections::VecDeque;
use std::io;

use super::Space;
use crate::page::{PAGE_SIZE, Page};
use crate::pager::table::{Entry, Place};
use crate::sys::remote;

/// Pages that are moved by one command: the kernel flushes the TLB once for more than 33, and page
/// by page below.
pub(in crate::pager) const TRAY_PAGES: usize = 512;

/// Pages of a process that can be aside at once: 16 MiB.
pub(in crate::pager) const STAGING_PAGES: usize = TRAYS * TRAY_PAGES;
const TRAYS: usize = 8;

/// Bytes of staging: one page more, whose touch tells of a fork.
pub(in crate::pager) const STAGING_BYTES: u64 = (STAGING_PAGES as u64 + 1) * PAGE_SIZE as u64;

/// A page of staging that belongs to nobody.
pub(super) const NOBODY: u64 = u64::MAX;

/// Pages that are aside in the program.
#[derive(Debug)]
pub(super) struct Staging {
    /// By page of staging: the page of the program.
    pub(super) owners: Box<[u64]>,
    /// Trays with pages, the oldest first.
    pub(super) filled: VecDeque<usize>,
    /// Trays without.
    pub(super) empty: Vec<usize>,
    /// How many pages were moved to each when it was filled.
    pub(super) moved: [usize; TRAYS],
    /// A tray of which all is in the store, and that has its memory still.
    pub(super) spent: Option<usize>,
}

/// Pages of a tray that are to be stored.
#[derive(Debug, Default)]
pub(in crate::pager) struct Tray {
    pub(in crate::pager) number: usize,
    pub(in crate::pager) staged: Vec<StagedPage>,
}

/// A page that is aside.
#[derive(Debug, Clone, Copy)]
pub(in crate::pager) struct StagedPage {
    /// Its page of staging, and the address of that.
    pub(in crate::pager) number: u32,
    pub(in crate::pager) address: u64,
    /// The page of the program that it was when it was asked for.
    pub(in crate::pager) owner: u64,
}

impl Staging {
    pub(super) fn new() -> Staging {
        Staging {
            owners: vec![NOBODY; STAGING_PAGES].into(),
            filled: VecDeque::new(),
            empty: (0..TRAYS).rev().collect(),
            moved: [0; TRAYS],
            spent: None,
        }
    }
}

impl Space {
    /// Trays with pages.
    pub(in crate::pager) fn filled_trays(&self) -> usize {
        self.staging.filled.len()
    }

    /// Takes the tray that was filled first, to store what is in it still.
    pub(in crate::pager) fn take_oldest_tray(&mut self) -> Option<Tray> {
        let number = self.staging.filled.pop_front()?;
        self.tray(number)
    }

    /// Takes the tray that was filled last, likewise.
    pub(in crate::pager) fn take_newest_tray(&mut self) -> Option<Tray> {
        let number = self.staging.filled.pop_back()?;
        self.tray(number)
    }

    fn tray(&self, number: usize) -> Option<Tray> {
        let helper = self.helper.as_ref()?;
        let pages = number * TRAY_PAGES..(number + 1) * TRAY_PAGES;
        let staged = pages
            .map(|staged| StagedPage {
                number: staged as u32,
                address: helper.staged_at(staged),
                owner: self.staging.owners[staged],
            })
            .filter(|staged| staged.owner != NOBODY)
            .collect();
        Some(Tray { number, staged })
    }

    /// A page of a tray is in the store now; `false` where it has left the tray meanwhile.
    pub(in crate::pager) fn stored(&mut self, staged: u32, slot: u32) -> bool {
        let owner = std::mem::replace(&mut self.staging.owners[staged as usize], NOBODY);
        if owner == NOBODY {
            return false;
        }
        let entry = self.table.get(owner);
        if entry.place == Place::Staged(staged) {
            self.table.set(owner, Entry { place: Place::Stored(slot), ..entry });
        } else if let Some(entry) = self.elder.get_mut(&owner) {
            entry.place = Place::Stored(slot);
        }
        true
    }

    /// Puts a tray back that could not be emptied.
    pub(in crate::pager) fn keep_tray(&mut self, number: usize) {
        self.staging.filled.push_back(number);
    }

    /// All of a tray is in the store, or has gone back: its memory goes with the next command.
    pub(in crate::pager) fn spend_tray(&mut self, number: usize) {
        self.staging.spent = Some(number);
    }

    /// Whether a tray's memory is to be given back.
    pub(in crate::pager) fn has_spent_tray(&self) -> bool {
        self.staging.spent.is_some()
    }

    /// Whether one more tray can be filled.
    pub(in crate::pager) fn has_empty_tray(&self) -> bool {
        !self.staging.empty.is_empty()
    }

    /// Whether an address is in staging.
    pub(in crate::pager) fn is_staging(&self, address: u64) -> bool {
        self.helper.as_ref().is_some_and(|helper| {
            let start = helper.staged_at(0);
            (start..start + STAGING_BYTES).contains(&address)
        })
    }

    /// Pages of staging with pages of the program.
    pub(in crate::pager) fn pages_aside(&self) -> Vec<u32> {
        let owners = self.staging.owners.iter().zip(0..);
        owners.filter(|(owner, _)| **owner != NOBODY).map(|(_, staged)| staged).collect()
    }

    /// Reads a page that is aside.
    pub(in crate::pager) fn read_staged(&self, staged: u32, page: &mut Page) -> io::Result<()> {
        let (Some(thread), Some(helper)) = (self.thread, &self.helper) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        remote::read(thread, helper.staged_at(staged as usize), page)
    }
}
