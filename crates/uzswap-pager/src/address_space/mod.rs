//! One address space: where each page is, which ranges are registered, and the helper's commands.
//!
//! - P1: a staged or stored page is missing in the program, and the userfaultfd reports its next
//!   touch. A page whose place is the program is resident, or zero-filled at its next touch.
//! - P2: the helper moves pages only while no event is read. Ranges that an event changed are taken
//!   out of the command first, so its addresses keep their meaning.
//! - P3: the supervisor notes the result of a command, also of a part, before it reads an event.
//! - P4: a page that the program drops by `madvise` is not evicted before it was missing once.
//! - P5: see `refused`; M1 and M2: see `markers`.

mod audit;
mod changes;
mod charge;
mod commands;
mod copies;
mod fault_history;
#[cfg(test)]
mod for_tests;
mod fork_advice;
mod fork_evidence;
mod fork_reports;
mod forking_threads;
pub(crate) mod handle;
mod identity;
mod inheritance;
mod kernel_words;
mod layout;
mod lazy;
mod markers;
mod move_batch;
mod pinned;
mod process;
mod refused;
mod registration;
mod resident;
mod resolve;
mod staging;
mod unevictable;
mod write_protect;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use audit::Violation;
pub(crate) use changes::Change;
use charge::Charge;
pub(crate) use charge::{SurveyAnswer, process_size, resident_bytes};
use commands::Commands;
use copies::Copies;
pub(crate) use copies::count_copies;
use fault_history::FaultHistory;
use fork_reports::ForkReports;
use identity::Identity;
pub(crate) use inheritance::Occasion;
pub(crate) use kernel_words::leave_words_of_threads;
use layout::Layout;
use markers::Markers;
pub(crate) use move_batch::Moved;
use process::Process;
pub(crate) use refused::Way;
use registration::Registration;
pub(crate) use registration::{ScanReason, register};
use staging::Staging;
pub(crate) use staging::{Batch, STAGING_BYTES, StagedPage};
use unevictable::Unevictable;
use write_protect::Protection;

use crate::page_table::{Entry, HEAT_MAX, PageTable, Place, UNKNOWN};
use crate::program::helper::Helper;
use crate::program::peer::Peer;
use crate::program::procfs::ProcessFiles;
use crate::range_set::RangeSet;
use crate::telemetry::status::ProcessStatus;
use uzswap::page::PAGE_SIZE;
use uzswap_sys::userfaultfd::Userfaultfd;

const PAGE: u64 = PAGE_SIZE as u64;

/// An address space.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    pub(crate) process: Process,
    identity: Identity,
    pub(crate) uffd: Arc<Userfaultfd>,
    pub(crate) commands: Commands,
    pub(crate) table: PageTable,
    pub(crate) registration: Registration,
    pub(crate) unevictable: Unevictable,
    markers: Markers,
    pub(crate) layout: Layout,
    staging: Staging,
    pub(crate) fork_reports: ForkReports,
    pub(crate) charge: Charge,
    pub(crate) protection: Protection,
    copies: Copies,
    pub(crate) faults: FaultHistory,
}

impl AddressSpace {
    /// A space whose process is known or not yet.
    pub(crate) fn new(uffd: Userfaultfd, pid: Option<u32>) -> AddressSpace {
        AddressSpace::with(Arc::new(uffd), pid)
    }

    fn with(uffd: Arc<Userfaultfd>, pid: Option<u32>) -> AddressSpace {
        AddressSpace {
            process: Process::new(pid),
            identity: Identity::default(),
            uffd,
            commands: Commands::default(),
            table: PageTable::default(),
            registration: Registration::new(Instant::now()),
            unevictable: Unevictable::new(Instant::now()),
            markers: Markers::default(),
            layout: Layout::default(),
            staging: Staging::new(),
            fork_reports: ForkReports::new(),
            charge: Charge::default(),
            protection: Protection::default(),
            copies: Copies::default(),
            faults: FaultHistory::default(),
        }
    }

    /// A space of no process, without a userfaultfd.
    #[cfg(test)]
    pub(crate) fn of_nothing() -> AddressSpace {
        let nothing = std::fs::File::open("/dev/null").unwrap();
        AddressSpace::new(Userfaultfd::from_fd(nothing.into()), None)
    }

    /// The space of a child that was forked with this userfaultfd. A secret identifies its process.
    pub(crate) fn of_child(
        uffd: Arc<Userfaultfd>,
        parent: &AddressSpace,
        secret: [u8; 16],
    ) -> AddressSpace {
        let identity = Identity::of_child(&parent.identity, secret);
        let process = Process::of_child(&parent.process);
        AddressSpace { identity, process, ..AddressSpace::with(uffd, None) }
    }

    /// The helper is there: pages can leave from now on.
    pub(crate) fn meet(
        &mut self,
        peer: Arc<Peer>,
        helper: Helper,
        files: ProcessFiles,
    ) -> io::Result<()> {
        self.process.meet(peer, files);
        self.unevictable.start();
        if self.layout.is_undecided() {
            self.decide_inheritance([], Occasion::Greeting);
        }
        self.forget_secret();
        self.commands.meet(helper);
        let is_protected = self.protection.is_on() && self.registration.is_any();
        self.charge.meet(self.process.size(), is_protected);
        if self.charge.has_joined() && self.registration.is_any() {
            // The parent's ranges may be newer than the fork: the child may have unregistered
            // memory there, and an evicted page of that is lost.
            self.registration.replace(RangeSet::default());
            self.register_and(false)?;
        }
        Ok(())
    }

    /// Whether the memory is gone. Of one with a helper that tells it.
    pub(crate) fn is_dead(&self) -> bool {
        self.uffd.is_memory_gone()
    }

    /// Its row of the run's status, without the name of the process; `None` before the process is
    /// known.
    pub(crate) fn status(&self) -> Option<ProcessStatus> {
        Some(ProcessStatus {
            pid: self.process.pid()?,
            name: String::new(),
            resident_bytes: self.resident_bytes().saturating_sub(self.charge.shared_bytes()),
            stored_pages: self.table.stored_pages(),
            staged_pages: self.table.staged_pages(),
            faults: self.faults.served(),
        })
    }

    /// The age of the pages that the hand comes to next, discounted by refaults.
    pub(crate) fn age(&mut self, now: Instant) -> Duration {
        let age = self.commands.hand().age(now);
        self.faults.discount(age)
    }

    /// A page is back in the program, with this heat if it was in the store.
    pub(crate) fn returned(&mut self, page: u64, heat: u8) {
        let entry = self.table.get(page);
        let heat = match entry.place {
            Place::Staged(staged) => {
                self.staging.take_owner(staged);
                HEAT_MAX
            }
            Place::Stored(_) | Place::Program => heat,
        };
        self.table.set(page, Entry { heat, returned: true, ..UNKNOWN });
        self.charge.note_faulted(1);
        self.note_missing(page);
    }

    /// The kernel's page of zeros is there: it takes no memory, and there is nothing to move.
    pub(crate) fn zeroed(&mut self, page: u64) {
        self.table.set(page, UNKNOWN);
        self.note_missing(page);
    }

    fn note_missing(&mut self, page: u64) {
        self.layout.note_missing(page);
        self.protection.note_touched(page..page + 1);
    }

    /// Memory of what is known, in bytes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.table.bytes()
            + self.staging.bytes()
            + self.registration.bytes()
            + self.layout.removing().bytes()
            + self.unevictable.bytes()
            + self.protection.bytes()
            + self.markers.bytes()
            + self.commands.bytes()
    }
}

/// The pages of a range of addresses.
fn pages(range: Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}
