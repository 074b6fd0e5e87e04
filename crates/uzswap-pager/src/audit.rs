//! The audit of a running pager: whether its parts agree with each other, and with the kernel.
//!
//! The auditor locks one address space at a time. Slots and usage change meanwhile, so a wrong
//! count is a violation only if each of several passes finds it.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::address_space::Violation;
use crate::{Pager, SpaceHandle, lock};

/// Passes over slots and usage, and the pause between two. The evictor stores a batch, and the
/// sampler samples, in less time than all passes take.
const PASSES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Tries to find an address space without a pending event, and the pause between two.
const TRIES: usize = 20;
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// The result of an audit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditReport {
    /// The supervisor's process.
    pub pid: u32,
    /// Address spaces.
    pub spaces: u64,
    /// Address spaces that were not compared with the kernel: mappings changed, or the process
    /// ended.
    pub skipped_spaces: u64,
    /// Evicted pages.
    pub pages: u64,
    /// Slots of the store that stand for a page.
    pub slots: u64,
    /// The first violation.
    pub violation: Option<Violation>,
}

fn of_pager(invariant: &str, text: String) -> Violation {
    Violation { invariant: invariant.to_owned(), text, ..Violation::default() }
}

impl Pager {
    /// Audits all address spaces, the slots and the account while programs run.
    pub(crate) fn audit_running(&self) -> AuditReport {
        let mut report = AuditReport { pid: std::process::id(), ..AuditReport::default() };
        for space in self.spaces() {
            report.spaces += 1;
            let audited = audit_shared(&space, &mut report);
            report.violation = report.violation.or(audited);
        }
        report.slots = self.store.usage().slots;
        let lasting = |invariant, find: &dyn Fn() -> BTreeSet<String>| {
            self.lasting(find).map(|text| of_pager(invariant, text))
        };
        report.violation = report
            .violation
            .or_else(|| lasting("slots", &|| self.wrong_slots()))
            .or_else(|| lasting("account", &|| self.wrong_usage()));
        report
    }

    /// Slots whose count is not the number of pages that name them.
    fn wrong_slots(&self) -> BTreeSet<String> {
        let mut named = self.store.release_queue().slots();
        self.spaces().iter().for_each(|space| named.extend(lock(space).named_slots()));
        self.store.wrong_slots(named).into_iter().collect()
    }

    /// Checks the usage of the last sample against the charges of all processes. Surveys correct
    /// the charges of processes that share pages, so these are left to them.
    fn wrong_usage(&self) -> BTreeSet<String> {
        let _sampling = self.account.begin_sample();
        let figures = self.account.figures();
        let (mut charged, mut is_shared) = (0, !self.outsiders.all().is_empty());
        for space in self.spaces() {
            let space = lock(&space);
            charged += space.charge.counted();
            is_shared |= space.charge.group().is_some();
        }
        let wrong = [
            (figures.used < figures.known, "the usage is below its lower bound"),
            (
                !is_shared && figures.resident != charged,
                "resident memory is not the sum of the charges of all processes",
            ),
        ];
        let wrong = wrong.into_iter().filter(|(is_wrong, _)| *is_wrong);
        wrong.map(|(_, text)| text.to_owned()).collect()
    }

    /// The first text that each of several passes finds.
    fn lasting(&self, find: &dyn Fn() -> BTreeSet<String>) -> Option<String> {
        let mut lasting = find();
        for _ in 1..PASSES {
            if lasting.is_empty() || self.wakers.is_stopping() {
                return None;
            }
            thread::sleep(PAUSE);
            lasting = &lasting & &find();
        }
        lasting.pop_first()
    }
}

/// Audits an address space, and counts it.
fn audit_shared(shared: &SpaceHandle, report: &mut AuditReport) -> Option<Violation> {
    let mut tries = 1;
    loop {
        let events = shared.lock_events(); // no event is read, no memory is registered
        let mut space = lock(shared);
        let audited = space.audit().err();
        let compared = space.audit_with_kernel();
        if audited.is_some() || compared.is_some() || tries == TRIES {
            report.pages += space.table.staged_pages() + space.table.stored_pages();
            report.skipped_spaces += u64::from(compared.is_none());
            return audited.or_else(|| compared?.err());
        }
        drop((space, events));
        thread::sleep(TRY_AGAIN);
        tries += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address_space::AddressSpace;
    use crate::page_table::{Entry, Place, UNKNOWN};
    use uzswap::page::PAGE_SIZE;

    const PAGE: u64 = PAGE_SIZE as u64;

    fn set(space: &SpaceHandle, page: u64, place: Place) {
        lock(space).table.set(page, Entry { place, ..UNKNOWN });
    }

    /// The address of a page of this process, which is resident.
    fn resident_page(memory: &[u8]) -> u64 {
        (memory.as_ptr().addr() as u64).next_multiple_of(PAGE)
    }

    #[test]
    fn an_evicted_page_is_in_its_slot_and_out_of_the_program() {
        let pager = Pager::for_tests();
        let space = pager.add_space(AddressSpace::of_nothing());
        let memory = vec![1_u8; 2 * PAGE_SIZE];
        let page = resident_page(&memory);
        lock(&space).process.read(std::process::id());
        let report = pager.audit_running();
        assert_eq!((report.spaces, report.skipped_spaces, report.violation), (1, 0, None));

        let slot = pager.store.store(&[7; PAGE_SIZE]).unwrap();
        assert_eq!(pager.audit_running().violation.unwrap().invariant, "slots", "no page names it");
        set(&space, page / PAGE, Place::Stored(slot));
        let of_page = |text| {
            let report = pager.audit_running();
            assert_eq!((report.spaces, report.skipped_spaces, report.slots), (1, 0, 1));
            let violation = report.violation.unwrap();
            assert_eq!((&*violation.invariant, violation.address), ("P1", Some(page)));
            assert_eq!(violation.text, text);
        };
        of_page("an evicted page is not registered");
        lock(&space).registration.insert(page..page + PAGE);
        of_page("an evicted page is resident");
        set(&space, page / PAGE, Place::Program);
        of_page("the kernel has not registered this memory");
    }

    #[test]
    fn tables_agree_with_staging_and_the_account_with_processes() {
        let pager = Pager::for_tests();
        let space = pager.add_space(AddressSpace::of_nothing());
        assert_eq!(pager.audit_running().skipped_spaces, 1, "no process is known");
        lock(&space).charge.count(PAGE);
        assert_eq!(pager.audit_running().violation.unwrap().invariant, "account");
        set(&space, 5, Place::Staged(3));
        let violation = pager.audit_running().violation.unwrap();
        assert_eq!((&*violation.invariant, violation.address), ("space", Some(5 * PAGE)));
    }
}
