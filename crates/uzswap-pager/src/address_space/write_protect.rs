//! Write protection of pages that parent and child share since a fork: a COW copy takes memory, and
//! must wait for headroom.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::charge::PROTECTED_BYTES_MIN;
use super::markers::is_busy;
use super::{AddressSpace, PAGE};
use crate::fork_group::ForkGroup;
use crate::range_set::{RangeSet, count};

/// The write protection of an address space.
#[derive(Debug, Default)]
pub(crate) struct Protection {
    /// Registered pages that it may share are write-protected.
    is_on: bool,
    /// Unregistered memory may be shared.
    shares_unregistered: bool,
    /// Ranges still to protect: the kernel refuses while mappings change.
    pending: RangeSet,
    /// The state of the protection for a reported fork.
    prepared: Option<Prepared>,
}

/// Memory that is not protected of a process that is about to fork.
#[derive(Debug, Default)]
struct Prepared {
    /// Stacks of threads, which are never protected.
    spared: RangeSet,
    /// Ranges that were touched since.
    touched: RangeSet,
}

/// Copies for all members of a small process, up to which it stays unprotected.
const COPIES_BYTES_MAX: u64 = 8 << 20;

/// How long the server waits for the forking thread before it protects pages. Other changes of the
/// mappings come first.
pub(super) const PROTECT_MAX: Duration = Duration::from_micros(500);

/// How long of [`PROTECT_MAX`] the server keeps its processor: another thread there may write to
/// unprotected pages for some milliseconds.
const SPIN_MAX: Duration = Duration::from_micros(200);

impl Protection {
    /// Whether registered pages that it may share are write-protected.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn shares_unregistered(&self) -> bool {
        self.shares_unregistered
    }

    /// Notes a registration: of all memory, or not.
    pub(super) fn note_registered(&mut self, is_all: bool) {
        self.shares_unregistered &= !is_all;
    }

    /// Adds a range to those still to protect.
    pub(super) fn add(&mut self, range: Range<u64>) {
        self.pending.insert(range);
    }

    /// Forgets a range whose mappings changed.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        self.pending.remove(range);
    }

    /// Notes the protection for a reported fork, without the `spared` memory.
    pub(super) fn prepare(&mut self, spared: Option<RangeSet>) {
        self.prepared = spared.map(|spared| Prepared { spared, ..Prepared::default() });
    }

    /// Notes pages that are unprotected or were missing.
    pub(super) fn note_touched(&mut self, pages: Range<u64>) {
        if let Some(Prepared { spared, touched }) = &mut self.prepared {
            let parts = spared.outside(pages.start * PAGE..pages.end * PAGE);
            parts.into_iter().for_each(|part| touched.insert(part));
        }
    }

    /// Memory of what is known, in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        self.pending.bytes()
    }
}

impl AddressSpace {
    /// Ends the preparation after a fork: memory that is still unprotected; `None` if nothing was
    /// prepared.
    pub(crate) fn take_unprotected(&mut self) -> Option<RangeSet> {
        let prepared = self.protection.prepared.take().filter(|_| self.is_about_to_fork())?;
        let mut rest = prepared.touched;
        self.protection.pending.iter().for_each(|part| rest.insert(part));
        Some(rest)
    }

    /// Leaves out memory that must not be protected. Other threads may have added some since.
    pub(crate) fn without_spared(&self, mut rest: RangeSet, stacks: RangeSet) -> RangeSet {
        match self.not_to_protect(stacks) {
            Some(spared) => spared.iter().for_each(|part| rest.remove(part)),
            None => rest = RangeSet::default(),
        }
        rest
    }

    /// Joins a group because of a fork of a process with so many resident bytes.
    pub(crate) fn join_group(&mut self, group: &ForkGroup, resident_bytes: u64) {
        self.charge.join(group, resident_bytes);
        self.protection.shares_unregistered = true;
    }

    /// Write-protects the memory of a process of some size, without the `stacks` of its threads and
    /// of later ones. Returns the other memory that is left out; `None` if nothing is protected.
    pub(crate) fn protect_all(
        &mut self,
        resident_bytes: u64,
        stacks: Option<RangeSet>,
    ) -> Option<RangeSet> {
        // At a fork, before the child is known.
        let members = self.charge.members().max(2);
        let copies_bytes = resident_bytes * u64::from(members);
        if resident_bytes < PROTECTED_BYTES_MIN && copies_bytes <= COPIES_BYTES_MAX {
            return None;
        }
        let spared = self.not_to_protect(stacks?)?;
        let mut rest = RangeSet::default();
        for part in self.registration.ranges().iter() {
            spared.outside(part).into_iter().for_each(|part| rest.insert(part));
        }
        self.protect_rest(&rest);
        Some(spared)
    }

    /// As [`AddressSpace::protect_all`], for the rest that was not protected before the fork.
    pub(crate) fn protect_rest(&mut self, rest: &RangeSet) {
        rest.iter().for_each(|part| self.protection.pending.insert(part));
        self.protection.is_on = true;
        self.protect(PROTECT_MAX);
    }

    /// Protects the ranges still to protect; `false` if some are left after this time, because
    /// mappings change.
    pub(crate) fn protect(&mut self, most: Duration) -> bool {
        if self.layout.is_undecided() {
            return true; // protection would leave markers on empty entries
        }
        let since = Instant::now();
        loop {
            let next = self.protection.pending.iter().next();
            let Some(part) = next else { return true };
            match self.protect_pages(part.clone()) {
                Err(error) if is_busy(&error) => {
                    if since.elapsed() >= most {
                        return false;
                    }
                    if since.elapsed() >= SPIN_MAX {
                        std::thread::yield_now();
                    }
                }
                // The range is unmapped.
                Ok(()) | Err(_) => self.protection.pending.remove(part),
            }
        }
    }

    /// Memory that must not be protected: stacks, and words that the kernel writes at the end of a
    /// thread. `None` where it is not known.
    pub(super) fn not_to_protect(&self, mut stacks: RangeSet) -> Option<RangeSet> {
        stacks.insert_all(self.unevictable.words());
        self.process.not_to_protect(stacks)
    }

    /// Leaves its group: nobody shares its pages any more.
    pub(crate) fn end_sharing(&mut self) {
        self.charge.leave_group();
        if self.is_about_to_fork() {
            return; // the fork needs its protection
        }
        self.protection.pending = RangeSet::default();
        self.protection.prepared = None;
        if std::mem::take(&mut self.protection.is_on) {
            // The program faults on pages that stay protected because mappings change.
            self.unprotect_all_pages();
        }
    }

    /// Removes the protection of a page and of up to `most` pages in a row, without a wake-up;
    /// which pages. None if an event must be read first: then the thread faults again.
    pub(crate) fn let_write(&mut self, page: u64, most: usize) -> Range<u64> {
        let window = self.faults.window_of_writes(page, most);
        let window = self.in_program_around(page, self.registered_around(page, window));
        if count(&window) == 0 {
            return window; // it was evicted since: the next touch is a missing page
        }
        let mut tries = [window, page..page + 1].into_iter();
        let may_be_written = |pages: &Range<u64>| {
            self.unprotect(pages.start * PAGE..pages.end * PAGE, false).is_ok()
        };
        let freed = tries.find(may_be_written).unwrap_or(page..page);
        self.protection.note_touched(freed.clone());
        self.charge.note_copies(count(&freed));
        freed
    }
}
