//! Write protection of pages that parent and child share since a fork: a COW copy takes memory, and
//! must wait for headroom.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::charge::PROTECTED_BYTES_MIN;
use super::fork_advice::ForkAdvice;
use super::inheritance::Uncertain;
use super::markers::is_busy;
use super::staging::STAGING_PAGES;
use super::{AddressSpace, PAGE, PROTECT_MAX};
use crate::fork_group::ForkGroup;
use crate::range_set::{RangeSet, count};

/// Memory that is not protected of a process that is about to fork.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    /// Stacks of threads, which are never protected.
    spared: RangeSet,
    /// Ranges that were touched since.
    touched: RangeSet,
}

/// Forks of a process, by its own count.
#[derive(Debug)]
pub(super) struct Forks {
    looked: Instant,
    /// The count at the last look, and at the one before.
    counts: [u32; 2],
}

/// How long a child may stay unknown if no report came before its fork.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);

/// How long a fork may take from its report to its event.
const REPORTED_FOR: Duration = Duration::from_secs(1);

/// Copies for all members of a small process, up to which it stays unprotected.
const COPIES_BYTES_MAX: u64 = 8 << 20;

/// How long of [`PROTECT_MAX`] the server keeps its processor: another thread there may write to
/// unprotected pages for some milliseconds.
const SPIN_MAX: Duration = Duration::from_micros(200);

impl Forks {
    pub(super) fn new() -> Forks {
        Forks { looked: Instant::now(), counts: [0; 2] }
    }

    /// Notes how many are known.
    fn have_known(&mut self, count: u32) {
        *self = Forks { looked: Instant::now(), counts: [count; 2] };
    }

    /// Forks whose children are known, if there are any; so many forks were counted so far.
    fn known(&mut self, count: u32, now: Instant) -> u32 {
        if now.duration_since(self.looked) >= UNKNOWN_FOR {
            *self = Forks { looked: now, counts: [count, self.counts[0]] };
        }
        self.counts[1]
    }
}

/// Reported forks of a process whose events are unread.
#[derive(Debug, Default)]
pub(super) struct Reports {
    count: u32,
    last: Option<Instant>,
}

impl Reports {
    /// Whether there is one. After a second a reported fork counts as failed.
    fn is_any(&self, now: Instant) -> bool {
        self.count > 0 && self.last.is_some_and(|last| now.duration_since(last) < REPORTED_FOR)
    }

    fn add(&mut self, now: Instant) {
        self.count = if self.is_any(now) { self.count + 1 } else { 1 };
        self.last = Some(now);
    }

    /// Takes the report that belongs to the event of a fork; whether there was one.
    fn take(&mut self, now: Instant) -> bool {
        let is_any = self.is_any(now);
        self.count = if is_any { self.count - 1 } else { 0 };
        is_any
    }
}

/// The last answer of the kernel about a process's advice.
#[derive(Debug)]
pub(super) struct LastAdvice {
    pub(super) ranges: ForkAdvice,
    /// The process had one thread then, so nothing changes the advice before the fork.
    holds_at_fork: bool,
}

impl LastAdvice {
    /// An answer at no particular time.
    pub(super) fn new(ranges: ForkAdvice) -> LastAdvice {
        LastAdvice { ranges, holds_at_fork: false }
    }
}

/// The advice of a parent, as known after the event of its fork.
#[derive(Debug)]
pub(crate) enum AdviceAtFork {
    /// The advice at the fork.
    Known(ForkAdvice),
    /// An advice of before or after: threads of the parent ran in between.
    Uncertain(Uncertain),
}

impl AdviceAtFork {
    /// Stacks of threads; `None` without an answer.
    pub(crate) fn stacks(&self) -> Option<RangeSet> {
        let last = match self {
            AdviceAtFork::Known(advice) => Some(advice),
            AdviceAtFork::Uncertain(uncertain) => uncertain.answers.last(),
        };
        last.map(|advice| advice.stacks.clone())
    }
}

impl AddressSpace {
    /// The advice for the fork whose event was just read.
    pub(crate) fn advice_at_fork(&mut self) -> AdviceAtFork {
        let was_reported = self.reports.take(Instant::now());
        if !self.is_settled() {
            self.settle_at_fork();
        }
        match self.advice.take() {
            Some(last) if was_reported && last.holds_at_fork => {
                self.advice = Some(LastAdvice::new(last.ranges.clone()));
                match self.is_settled() {
                    true => AdviceAtFork::Known(last.ranges),
                    false => AdviceAtFork::Uncertain(self.uncertain(vec![last.ranges])),
                }
            }
            last => {
                let before = last.as_ref().filter(|_| was_reported).map(|last| last.ranges.clone());
                // The mappings of a process that has ended are partly there, or not at all.
                let now = self.process.fork_advice().ok().filter(|_| !self.hides_mappings());
                let now = now.or_else(|| last.map(|last| last.ranges));
                self.advice = now.clone().map(LastAdvice::new);
                let answers = before.into_iter().chain(now).collect();
                AdviceAtFork::Uncertain(self.uncertain(answers))
            }
        }
    }

    fn uncertain(&self, answers: Vec<ForkAdvice>) -> Uncertain {
        let changes = self.changes.clone();
        Uncertain { answers, changes, are_some_pending: false }
    }

    /// Whether its mappings cannot be read: the process is unknown, or has ended.
    fn hides_mappings(&self) -> bool {
        self.process.files().is_none() || self.is_dead()
    }

    /// Queries the advice, unless it is known, before the supervisor reads the event of a fork. The
    /// process may end a moment later.
    pub(super) fn know_fork_advice(&mut self) {
        if !self.has_fork_advice() {
            let told = self.process.fork_advice();
            self.note_fork_advice(told);
        }
    }

    pub(super) fn has_fork_advice(&self) -> bool {
        self.advice.is_some()
    }

    /// Notes an answer of the kernel, unless a later one is there.
    pub(super) fn note_fork_advice(&mut self, told: io::Result<ForkAdvice>) {
        if !self.has_fork_advice() {
            self.advice = told.ok().map(LastAdvice::new);
        }
    }

    /// A child has its parent's advice until it gives other advice.
    pub(crate) fn inherit_advice(&mut self, of_parent: ForkAdvice) {
        let ranges = ForkAdvice { not_copied: RangeSet::new(), ..of_parent };
        self.advice = Some(LastAdvice::new(ranges));
    }

    /// Whether a touch of this address tells of a fork.
    pub(crate) fn tells_fork(&self, address: u64) -> bool {
        self.commands.staged_at(STAGING_PAGES).is_some_and(|page| address >= page)
            && self.is_staging(address)
    }

    /// Has the program report a fork before it happens: each fork if memory is registered.
    /// Otherwise the first fork whose copies, with those of unknown children, would exceed so much
    /// headroom.
    pub(crate) fn have_forks_told(&mut self, resident_bytes: u64, room: u64) {
        let Some(helper) = self.commands.last_helper() else { return };
        if self.registered != RangeSet::default() {
            return self.have_all_forks_told();
        }
        let fitting = copies_that_fit(resident_bytes, room);
        let is_told = resident_bytes >= PROTECTED_BYTES_MIN || fitting == 0;
        let from = u64::from(self.forks.known(helper.forks(), Instant::now())) + fitting + 1;
        helper.have_forks_told(if is_told { from.try_into().unwrap_or(0) } else { 0 });
    }

    /// Allows a reported fork without protection if its copies fit; whether they do. So many of its
    /// children are unknown; the others have ended or are counted.
    pub(crate) fn allow_fork(&mut self, unknown: u32, room: u64) -> bool {
        let Some(helper) = self.commands.last_helper() else { return false };
        self.forks.have_known(helper.forks().saturating_sub(1 + unknown));
        let resident = self.resident_bytes();
        self.have_forks_told(resident, room);
        u64::from(unknown) < copies_that_fit(resident, room)
    }

    /// Has the program report each fork before it happens.
    pub(super) fn have_all_forks_told(&self) {
        if let Some(helper) = self.commands.last_helper() {
            helper.have_forks_told(1);
        }
    }

    /// Answers the report of a fork: fills the page whose touch was the report, without a wake-up.
    /// `false` if the thread must ask again: the helper is at work, or the mappings change.
    pub(crate) fn let_fork(&mut self, told_by: Range<u64>) -> bool {
        if !self.hold_commands() {
            return false;
        }
        let is_filled = self.uffd.zeropage(told_by, false).is_ok();
        if is_filled {
            self.commands.take_back(0..u64::MAX);
        }
        self.commands.let_go(is_filled);
        is_filled
    }

    /// Registers and protects memory before a fork, and queries the advice, because there is less
    /// time after the fork. No page is evicted until the fork.
    pub(crate) fn prepare_fork(&mut self) {
        let _ = self.register(); // what is not registered is not protected
        let holds_at_fork = !self.process.has_threads();
        let advice = self.process.fork_advice().ok();
        let stacks = advice.as_ref().map(|advice| advice.stacks.clone());
        self.reports.add(Instant::now());
        self.advice = advice.map(|ranges| LastAdvice { ranges, holds_at_fork });
        // The kernel copies the protection to the child.
        let spared = self.protect_all(self.resident_bytes(), stacks);
        self.prepared = spared.map(|spared| Prepared { spared, ..Prepared::default() });
    }

    pub(crate) fn is_about_to_fork(&self) -> bool {
        self.reports.is_any(Instant::now())
    }

    /// Ends the preparation after a fork: memory that is still unprotected; `None` if nothing was
    /// prepared.
    pub(crate) fn take_unprotected(&mut self) -> Option<RangeSet> {
        let prepared = self.prepared.take().filter(|_| self.is_about_to_fork())?;
        let mut rest = prepared.touched;
        self.to_protect.iter().for_each(|part| rest.insert(part));
        Some(rest)
    }

    /// Leaves out memory that must not be protected. Other threads may have added some since.
    pub(crate) fn without_spared(&self, mut rest: RangeSet, stacks: RangeSet) -> RangeSet {
        match self.process.not_to_protect(stacks) {
            Some(spared) => spared.iter().for_each(|part| rest.remove(part)),
            None => rest = RangeSet::default(),
        }
        rest
    }

    /// Joins a group because of a fork of a process with so many resident bytes.
    pub(crate) fn join_group(&mut self, group: &ForkGroup, resident_bytes: u64) {
        self.charge.join(group, resident_bytes);
        self.shares_unregistered = true;
    }

    /// Write-protects the memory of a process of some size, without the `stacks` of its threads and
    /// of later ones. What else is left out; `None` if nothing is protected.
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
        let spared = self.process.not_to_protect(stacks?)?;
        let mut rest = RangeSet::default();
        for part in self.registered.iter() {
            spared.outside(part).into_iter().for_each(|part| rest.insert(part));
        }
        self.protect_rest(&rest);
        Some(spared)
    }

    /// As [`AddressSpace::protect_all`], for the rest that was not protected before the fork.
    pub(crate) fn protect_rest(&mut self, rest: &RangeSet) {
        rest.iter().for_each(|part| self.to_protect.insert(part));
        self.protects = true;
        self.protect(PROTECT_MAX);
    }

    /// Protects the ranges still to protect; `false` if some are left after this time, because
    /// mappings change.
    pub(crate) fn protect(&mut self, most: Duration) -> bool {
        if self.is_undecided() {
            return true; // protection would leave markers on empty entries
        }
        let since = Instant::now();
        loop {
            let next = self.to_protect.iter().next();
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
                Ok(()) | Err(_) => self.to_protect.remove(part),
            }
        }
    }

    /// Leaves its group: nobody shares its pages any more.
    pub(crate) fn end_sharing(&mut self) {
        self.charge.leave_group();
        if self.is_about_to_fork() {
            return; // the fork needs its protection
        }
        self.to_protect = RangeSet::default();
        self.prepared = None;
        if std::mem::take(&mut self.protects) {
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
        self.touched(freed.clone());
        self.charge.note_copies(count(&freed));
        freed
    }

    /// Notes pages that are unprotected or were missing.
    pub(super) fn touched(&mut self, pages: Range<u64>) {
        if let Some(Prepared { spared, touched }) = &mut self.prepared {
            let parts = spared.outside(pages.start * PAGE..pages.end * PAGE);
            parts.into_iter().for_each(|part| touched.insert(part));
        }
    }
}

/// Number of children of a process with so many resident bytes whose copies of all pages fit into
/// so much headroom.
fn copies_that_fit(resident_bytes: u64, room: u64) -> u64 {
    room / resident_bytes.max(1)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::address_space::handle::{SharedAddressSpace, lock};

    #[test]
    fn children_of_a_process_that_has_ended_have_what_was_known_last() {
        for is_locked in [true, false] {
            let mut process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let mut space = AddressSpace::of_nothing();
            space.process.read(process.id());
            let space = SharedAddressSpace::alone(space);
            match is_locked {
                true => lock(&space).register().unwrap(),
                false => super::super::register(&space).unwrap(),
            }
            process.kill().unwrap();
            process.wait().unwrap();
            let mut space = lock(&space);
            assert!(space.process.fork_advice().is_err());
            // The events of several forks may be read so late.
            for _ in 0..2 {
                let advice = space.advice_at_fork();
                assert!(matches!(advice, AdviceAtFork::Uncertain(of) if of.answers.len() == 1));
            }
        }
    }

    #[test]
    fn children_of_an_unknown_process_have_what_it_inherited() {
        let mut space = AddressSpace::of_nothing();
        let page = |number| {
            let mut page = RangeSet::new();
            page.insert(number * PAGE..(number + 1) * PAGE);
            page
        };
        let of_parent = ForkAdvice { not_copied: page(0), wiped: page(1), stacks: page(2) };
        space.inherit_advice(of_parent.clone());
        let AdviceAtFork::Uncertain(of) = space.advice_at_fork() else { panic!() };
        assert_eq!(of.answers, [ForkAdvice { not_copied: RangeSet::new(), ..of_parent }]);
    }

    #[test]
    fn each_event_of_a_fork_takes_one_report() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut reports = Reports::default();
        assert!(!reports.take(start));
        // Two threads fork at once.
        reports.add(start);
        reports.add(after(1));
        assert_eq!([2, 3, 4].map(|ms| reports.take(after(ms))), [true, true, false]);
        // A fork fails, and another is reported later.
        reports.add(after(10));
        assert!(!reports.is_any(after(1010)));
        reports.add(after(1020));
        assert_eq!([1030, 1040].map(|ms| reports.take(after(ms))), [true, false]);
    }

    #[test]
    fn forks_are_known_when_their_children_had_time_to_come() {
        let start = Instant::now();
        let mut forks = Forks { looked: start, counts: [0; 2] };
        let mut known = |count, ms| forks.known(count, start + Duration::from_millis(ms));
        assert_eq!([known(0, 0), known(3, 10), known(5, 990)], [0, 0, 0]);
        // Some of the five were a moment ago.
        assert_eq!([known(5, 1010), known(9, 2000)], [0, 0]);
        assert_eq!([known(9, 2020), known(9, 3000)], [5, 5]);
        assert_eq!(known(9, 3030), 9);
    }
}
