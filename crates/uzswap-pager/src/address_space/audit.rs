//! The audit of an address space: whether its parts agree with each other and with the kernel.
//!
//! Tests and the end of debug runs audit it, `uzswap top --audit` does while a program runs.

use std::io;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::markers::runs_of;
use super::{AddressSpace, PAGE};
use crate::page_table::Place;
use crate::range_set::RangeSet;

/// To list mappings the kernel walks all pages: an audit has it do so for this many at most.
const LISTED_PAGES_MAX: u64 = 1 << 16;

/// An invariant that does not hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Violation {
    /// Its tag (as P1), or the part that disagrees: space, staging, slots, account.
    pub invariant: String,
    /// The process of the address space.
    pub pid: Option<u32>,
    /// The address of the page.
    pub address: Option<u64>,
    /// The disagreement.
    pub text: String,
}

impl AddressSpace {
    fn violation(&self, invariant: &str, address: Option<u64>, text: &str) -> Violation {
        let (invariant, text) = (invariant.to_owned(), text.to_owned());
        Violation { invariant, pid: self.process.pid(), address, text }
    }

    /// Slots that its entries name; a slot once for each entry.
    pub(crate) fn named_slots(&self) -> Vec<u32> {
        let mut slots = self.layout.released().to_vec();
        self.table.for_each(&mut |_, entry| {
            if let Place::Stored(slot) = entry.place {
                slots.push(slot);
            }
        });
        slots
    }

    /// Checks that
    ///
    /// - each staged page has its page of staging, and no other page of staging has an owner;
    /// - the table counts its staged and stored pages right;
    /// - memory of the library stays where it is.
    ///
    /// # Errors
    ///
    /// The first of these that does not hold.
    pub(crate) fn audit(&self) -> Result<(), Violation> {
        let (mut found, mut wrong) = ([0_u64; 2], None);
        self.table.for_each(&mut |page, entry| match entry.place {
            Place::Staged(at) => {
                found[0] += 1;
                if self.staging.owner(at) != Some(page) {
                    wrong = wrong.or(Some(page * PAGE));
                }
            }
            Place::Stored(_) => found[1] += 1,
            Place::Program => {}
        });
        let counted = [self.table.staged_pages(), self.table.stored_pages()];
        let text = if found != counted {
            format!("{found:?} pages are staged, stored; counted: {counted:?}")
        } else if wrong.is_some() || self.staging.owned() as u64 != found[0] {
            "staging has other pages than the page table".to_owned()
        } else if self.commands.last_helper().is_some() && !self.unevictable.keeps_library() {
            "memory of the library may be evicted".to_owned()
        } else {
            return Ok(());
        };
        Err(self.violation("space", wrong, &text))
    }

    /// Checks P1, M1 and M2, and which memory is registered. `None` if mappings change, if the
    /// helper moves pages, or if the process is unknown or has ended.
    pub(crate) fn audit_with_kernel(&mut self) -> Option<Result<(), Violation>> {
        if !self.settle() || !self.hold_commands() {
            return None;
        }
        let registered = self.registration.ranges().iter();
        let found = self.find_wrong(registered).and_then(|wrong| match wrong {
            None => self.find_unregistered(),
            wrong => Ok(wrong),
        });
        self.commands.let_go(false);
        // An event that came meanwhile explains a disagreement.
        if self.uffd.is_changing() || self.is_dead() {
            return None;
        }
        Some(found.ok()?.map_or(Ok(()), Err))
    }

    /// Panics if an invariant does not hold, once in a number of calls. The caller keeps the helper
    /// from moving pages.
    #[cfg(debug_assertions)]
    pub(crate) fn audit_at_times(&mut self) {
        if !self.layout.is_settled() {
            return;
        }
        let ranges = self.markers.audits.next_ranges(self.registration.ranges());
        let Ok(Some(wrong)) = self.find_wrong(ranges.into_iter()) else { return };
        // An event that came meanwhile explains it.
        assert!(self.uffd.is_changing() || self.is_dead(), "{wrong:x?}");
    }

    /// The first page of registered ranges for which P1, M1 or M2 does not hold.
    fn find_wrong(
        &self,
        ranges: impl Iterator<Item = Range<u64>>,
    ) -> io::Result<Option<Violation>> {
        let files = self.process.files().ok_or(io::ErrorKind::NotFound)?;
        for part in ranges {
            let evicted = runs_of(self.evicted_in(&part));
            let populated = files.populated_in(part.clone())?;
            let marked = files.marked_in(part)?;
            let [unmarked, unknown] = self.wrong_markers(&evicted, &marked);
            let resident = evicted.without(&evicted.without(&populated.without(&marked)));
            let rules = [
                ("P1", resident, "an evicted page is resident"),
                ("M1", unmarked, "an evicted page has no marker"),
                ("M2", unknown, "a page with a marker is not known as evicted"),
            ];
            for (rule, wrong, text) in rules {
                if let Some(at) = first_of(&wrong) {
                    return Ok(Some(self.violation(rule, Some(at), text)));
                }
            }
        }
        Ok(None)
    }

    /// The first evicted page or registered range that is not registered.
    fn find_unregistered(&self) -> io::Result<Option<Violation>> {
        let files = self.process.files().ok_or(io::ErrorKind::NotFound)?;
        let registered = self.registration.ranges();
        let evicted = runs_of(self.evicted_in(&(0..u64::MAX - PAGE)));
        let mut wrong = first_of(&evicted.without(registered))
            .map(|at| (at, "an evicted page is not registered"));
        if wrong.is_none() && files.size().is_some_and(|size| size.anonymous <= LISTED_PAGES_MAX) {
            let [listed] = files.mappings_with(["um"])?;
            let unregistered = first_of(&registered.without(&listed));
            wrong = unregistered.map(|at| (at, "the kernel has not registered this memory"));
        }
        Ok(wrong.map(|(at, text)| self.violation("P1", Some(at), text)))
    }
}

fn first_of(set: &RangeSet) -> Option<u64> {
    set.iter().next().map(|part| part.start)
}
