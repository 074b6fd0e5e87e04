//! Forks: what parent and child have in common is protected from being written to unasked.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::charge::{Joined, Shared};
use super::inheritance::{ForkAdvice, Uncertain};
use super::later_events::LaterEvents;
use super::never_evicted::LISTS;
use super::staging::STAGING_PAGES;
use super::{AddressSpace, PAGE};
use crate::fork::group::ForkGroup;
use crate::range_set::{RangeSet, count};
use uzswap_sys::process;

/// What of the memory of a process that is about to fork is not protected.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    /// Never: stacks of threads.
    spared: RangeSet,
    /// Not any more: it was touched since.
    touched: RangeSet,
}

/// Forks of a process, as it counts them.
#[derive(Debug)]
pub(super) struct Forks {
    looked: Instant,
    /// Then, and when it was looked before.
    counts: [u32; 2],
}

/// How long it may take until a child is known whose fork was not told.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);

/// How long a fork may take from its report to its event.
const REPORTED_FOR: Duration = Duration::from_secs(1);

/// Processes smaller than this make their pages their own unasked, as long as copies for all that
/// have them take no more than that.
pub(super) const PROTECTED_BYTES_MIN: u64 = 4 << 20;
const COPIES_BYTES_MAX: u64 = 8 << 20;

/// How long it is waited for that who forks goes on, before pages are protected: a moment after
/// that was read. Other changes of the mappings are to be read first.
pub(super) const PROTECT_MAX: Duration = Duration::from_micros(500);

/// How long of that without giving the processor away: who runs there then may write to pages that
/// are not protected yet, for some milliseconds.
const SPIN_MAX: Duration = Duration::from_micros(200);

impl Forks {
    pub(super) fn new() -> Forks {
        Forks { looked: Instant::now(), counts: [0; 2] }
    }

    /// So many are known.
    fn have_known(&mut self, count: u32) {
        *self = Forks { looked: Instant::now(), counts: [count; 2] };
    }

    /// Those whose children are known, if any came of them; there were so many so far.
    fn known(&mut self, count: u32, now: Instant) -> u32 {
        if now.duration_since(self.looked) >= UNKNOWN_FOR {
            *self = Forks { looked: now, counts: [count, self.counts[0]] };
        }
        self.counts[1]
    }
}

/// Forks that the threads of a process have reported, and whose events were not read.
#[derive(Debug, Default)]
pub(super) struct Reports {
    count: u32,
    last: Option<Instant>,
}

impl Reports {
    /// Whether there is one. A fork that was reported a second ago has failed.
    fn is_any(&self, now: Instant) -> bool {
        self.count > 0 && self.last.is_some_and(|last| now.duration_since(last) < REPORTED_FOR)
    }

    fn add(&mut self, now: Instant) {
        self.count = if self.is_any(now) { self.count + 1 } else { 1 };
        self.last = Some(now);
    }

    /// The event of a fork was read: whether that was reported.
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

/// A parent's advice, as far as it is known once the event of a fork was read.
#[derive(Debug)]
pub(crate) enum AdviceAtFork {
    /// That of the moment of the fork.
    Known(ForkAdvice),
    /// The parent runs on, or other threads of it did.
    Uncertain(Uncertain),
}

impl AdviceAtFork {
    /// Stacks of threads; `None` where nothing is known.
    pub(crate) fn stacks(&self) -> Option<RangeSet> {
        let last = match self {
            AdviceAtFork::Known(advice) => Some(advice),
            AdviceAtFork::Uncertain(uncertain) => uncertain.answers.last(),
        };
        last.map(|advice| advice.stacks.clone())
    }
}

impl AddressSpace {
    /// The advice that its fork went by, of which the event was just read.
    pub(crate) fn advice_at_fork(&mut self) -> AdviceAtFork {
        let was_reported = self.reports.take(Instant::now());
        match self.advice.take() {
            Some(last) if was_reported && last.holds_at_fork => {
                self.advice = Some(LastAdvice::new(last.ranges.clone()));
                AdviceAtFork::Known(last.ranges)
            }
            last => {
                let before = last.as_ref().filter(|_| was_reported).map(|last| last.ranges.clone());
                // The mappings of a process that has ended are partly there, or not at all.
                let now = self.ask_fork_advice().ok().filter(|_| !self.hides_mappings());
                let now = now.or_else(|| last.map(|last| last.ranges));
                self.advice = now.clone().map(LastAdvice::new);
                let answers = before.into_iter().chain(now).collect();
                AdviceAtFork::Uncertain(Uncertain { answers, later: LaterEvents::default() })
            }
        }
    }

    /// Whether its mappings cannot all be read: its process is not known, or has ended.
    fn hides_mappings(&self) -> bool {
        self.files.is_none() || self.is_dead()
    }

    /// Asks for it, unless it is known, before the supervisor reads the event of a fork. The
    /// process may end a moment later.
    pub(super) fn know_fork_advice(&mut self) {
        if !self.has_fork_advice() {
            let told = self.ask_fork_advice();
            self.note_fork_advice(told);
        }
    }

    pub(super) fn has_fork_advice(&self) -> bool {
        self.advice.is_some()
    }

    /// The kernel was asked for it; there may be an answer of later than that.
    pub(super) fn note_fork_advice(&mut self, told: io::Result<ForkAdvice>) {
        if !self.has_fork_advice() {
            self.advice = told.ok().map(LastAdvice::new);
        }
    }

    /// A child has what its parent had, as long as it says nothing else before a fork of its own.
    pub(crate) fn inherit_advice(&mut self, of_parent: ForkAdvice) {
        let ranges = ForkAdvice { not_copied: RangeSet::new(), ..of_parent };
        self.advice = Some(LastAdvice::new(ranges));
    }

    fn ask_fork_advice(&self) -> io::Result<ForkAdvice> {
        match &self.files {
            Some(files) => ForkAdvice::of(files),
            None => Ok(ForkAdvice::default()),
        }
    }

    /// Whether a touch of this address tells of a fork.
    pub(crate) fn tells_fork(&self, address: u64) -> bool {
        self.helper.as_ref().is_some_and(|helper| address >= helper.staged_at(STAGING_PAGES))
            && self.is_staging(address)
    }

    /// Has the program tell of a fork before where copies of all that it has would not fit into so
    /// much room, nor those of forks before whose children are not known yet; of each where some of
    /// it is registered.
    pub(crate) fn have_forks_told(&mut self, resident_bytes: u64, room: u64) {
        let Some(helper) = &self.helper else { return };
        if self.registered != RangeSet::default() {
            return self.have_all_forks_told();
        }
        let fitting = copies_that_fit(resident_bytes, room);
        let is_told = resident_bytes >= PROTECTED_BYTES_MIN || fitting == 0;
        let from = u64::from(self.forks.known(helper.forks(), Instant::now())) + fitting + 1;
        helper.have_forks_told(if is_told { from.try_into().unwrap_or(0) } else { 0 });
    }

    /// Whether the fork that it tells of fits after all, where nothing is registered: of its
    /// children so many are not known, and the others have ended or are counted.
    pub(crate) fn allow_fork(&mut self, unknown: u32, room: u64) -> bool {
        let Some(helper) = &self.helper else { return false };
        self.forks.have_known(helper.forks().saturating_sub(1 + unknown));
        let resident = self.resident_bytes();
        self.have_forks_told(resident, room);
        u64::from(unknown) < copies_that_fit(resident, room)
    }

    /// Has the program tell of each fork before.
    pub(super) fn have_all_forks_told(&self) {
        if let Some(helper) = &self.helper {
            helper.have_forks_told(1);
        }
    }

    /// The program is about to fork: fills the page that told of it; who waits for it is not woken.
    /// `false` where it is to ask again: the helper is at work, or the mappings change.
    pub(crate) fn let_fork(&mut self, told_by: Range<u64>) -> bool {
        if !self.hold_commands() {
            return false;
        }
        let is_filled = self.uffd.zeropage(told_by, false).is_ok();
        if is_filled {
            self.take_back(0..u64::MAX);
        }
        self.let_commands(is_filled);
        is_filled
    }

    /// Registers and protects what is to be so in both once it has forked, and asks what it takes
    /// to know by then, when there is less time. No page leaves until it has.
    pub(crate) fn prepare_fork(&mut self) {
        let _ = self.register(); // what is not registered is not protected
        let holds_at_fork = !self.has_threads();
        let advice = self.ask_fork_advice().ok();
        let stacks = advice.as_ref().map(|advice| advice.stacks.clone());
        self.reports.add(Instant::now());
        self.advice = advice.map(|ranges| LastAdvice { ranges, holds_at_fork });
        // What is protected by then is so in the child, too, from its first moment on.
        let spared = self.protect_all(self.resident_bytes(), stacks);
        self.prepared = spared.map(|spared| Prepared { spared, ..Prepared::default() });
    }

    pub(crate) fn is_about_to_fork(&self) -> bool {
        self.reports.is_any(Instant::now())
    }

    /// It has forked: what was to be protected, and is not; `None` where that was not prepared.
    pub(crate) fn take_unprotected(&mut self) -> Option<RangeSet> {
        let prepared = self.prepared.take().filter(|_| self.is_about_to_fork())?;
        let mut rest = prepared.touched;
        self.to_protect.iter().for_each(|part| rest.insert(part));
        Some(rest)
    }

    /// Without what is not to be protected, of which there may be more than before the fork: other
    /// threads run on.
    pub(crate) fn without_spared(&self, mut rest: RangeSet, stacks: RangeSet) -> RangeSet {
        match self.not_to_protect(stacks) {
            Some(spared) => spared.iter().for_each(|part| rest.remove(part)),
            None => rest = RangeSet::default(),
        }
        rest
    }

    /// What it has resident, for a child to have as much.
    pub(crate) fn resident_to_share(&self) -> u64 {
        let joined = self.joined.filter(|_| self.expected);
        joined.map_or(0, |joined| joined.resident_bytes).max(self.resident_bytes())
    }

    /// It has pages in common with others, since a process forked that had so much resident.
    pub(crate) fn joins(&mut self, group: &ForkGroup, resident_bytes: u64) {
        self.joined = Some(Joined { at: Instant::now(), resident_bytes });
        self.shares_unregistered = true;
        if self.group.is_none() {
            self.group = Some(group.join());
            self.shared = Shared::default();
        }
        self.lend_all();
    }

    /// The processes that it has pages in common with, itself among them.
    pub(crate) fn group(&self) -> Option<&ForkGroup> {
        self.group.as_deref()
    }

    /// How many processes may have pages of it, itself among them.
    pub(crate) fn members(&self) -> u32 {
        self.group().map_or(1, ForkGroup::members)
    }

    /// It is a child of whose process nothing is known yet.
    pub(crate) fn expect(&mut self) {
        self.expected = true;
        self.share_all(true);
    }

    /// A process of some size is to ask before it makes pages its own that others have, too, which
    /// takes memory that no fault for a missing page announces; not in the `stacks` of its threads
    /// and of threads that may come. What else is spared; `None` where nothing is protected.
    pub(crate) fn protect_all(
        &mut self,
        resident_bytes: u64,
        stacks: Option<RangeSet>,
    ) -> Option<RangeSet> {
        // At a fork, before the child is known.
        let members = self.members().max(2);
        let copies_bytes = resident_bytes * u64::from(members);
        if resident_bytes < PROTECTED_BYTES_MIN && copies_bytes <= COPIES_BYTES_MAX {
            return None;
        }
        let spared = self.not_to_protect(stacks?)?;
        let mut rest = RangeSet::default();
        for part in self.registered.iter() {
            spared.outside(part).into_iter().for_each(|part| rest.insert(part));
        }
        self.protect_rest(&rest);
        Some(spared)
    }

    /// As [`AddressSpace::protect_all`], where all but the rest was protected before the fork.
    pub(crate) fn protect_rest(&mut self, rest: &RangeSet) {
        rest.iter().for_each(|part| self.to_protect.insert(part));
        self.protects = true;
        self.protect(PROTECT_MAX);
    }

    /// Protects what is to be protected; `false` where something is left after this time, as
    /// mappings change.
    pub(crate) fn protect(&mut self, most: Duration) -> bool {
        let since = Instant::now();
        loop {
            let next = self.to_protect.iter().next();
            let Some(part) = next else { return true };
            match self.uffd.write_protect(part.clone()) {
                Err(error) if is_busy(&error) => {
                    if since.elapsed() >= most {
                        return false;
                    }
                    if since.elapsed() >= SPIN_MAX {
                        std::thread::yield_now();
                    }
                }
                // What is not there any more needs no protection.
                Ok(()) | Err(_) => self.to_protect.remove(part),
            }
        }
    }

    /// Stacks of threads that there are, or were: mappings of their own since Linux 6.7 (MAP_STACK:
    /// no huge pages). `None` where that is not known.
    pub(crate) fn stacks(&self) -> Option<RangeSet> {
        self.thread?;
        self.mappings_with(["nh"]).ok().map(|[stacks]| stacks)
    }

    /// What must not be protected, as [`super::leave_words_of_threads`] says; `None` where that is
    /// not known. A stack is spared without a thread, too: one may come before it is protected.
    pub(super) fn not_to_protect(&self, stacks: RangeSet) -> Option<RangeSet> {
        if !self.has_threads() {
            return Some(stacks);
        }
        let mut spared = stacks;
        for thread in self.files.as_ref()?.threads() {
            // None on its way in or out, or it is a thread of another kind.
            let list = process::robust_list(thread).ok().filter(|list| LISTS.contains(list))?;
            let page = list / PAGE * PAGE;
            if Some(thread) == self.pid {
                spared.insert(page - PAGE..page + PAGE * 2); // not on a stack that was mapped so
            } else if !spared.contains(list) {
                return None;
            }
        }
        Some(spared)
    }

    /// Whether it has more threads than one.
    pub(crate) fn has_threads(&self) -> bool {
        self.files.as_ref().is_some_and(|files| files.threads().count() > 1)
    }

    /// Nobody has pages of it any more.
    pub(crate) fn end_sharing(&mut self) {
        self.group = None;
        self.shared = Shared::default();
        if self.is_about_to_fork() {
            return; // it is protected for that
        }
        self.to_protect = RangeSet::default();
        self.prepared = None;
        if std::mem::take(&mut self.protects) {
            // What stays protected as mappings change is asked for.
            self.registered.iter().for_each(|part| drop(self.uffd.write_unprotect(part, true)));
        }
    }

    /// Lets a page be written that was protected, and up to `most` with it: those. Who waits for
    /// them is not woken; where it is none, something has happened that is to be read first, and
    /// who waits is to look again.
    pub(crate) fn let_write(&mut self, page: u64, most: usize) -> Range<u64> {
        let window = self.writes.window(page, most);
        let tries = [self.registered_around(page, window), page..page + 1];
        let may_be_written = |pages: &Range<u64>| {
            self.uffd.write_unprotect(pages.start * PAGE..pages.end * PAGE, false).is_ok()
        };
        let freed = tries.into_iter().find(may_be_written).unwrap_or(page..page);
        self.touched(freed.clone());
        self.note_own(count(&freed));
        freed
    }

    /// Some pages are not protected any more, or were missing.
    pub(super) fn touched(&mut self, pages: Range<u64>) {
        if let Some(Prepared { spared, touched }) = &mut self.prepared {
            let parts = spared.outside(pages.start * PAGE..pages.end * PAGE);
            parts.into_iter().for_each(|part| touched.insert(part));
        }
    }
}

/// The mappings are being changed.
fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAGAIN)
}

/// Children of a process with so much resident that may each make all of it their own in so much
/// room.
fn copies_that_fit(resident_bytes: u64, room: u64) -> u64 {
    room / resident_bytes.max(1)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use super::*;
    use crate::address_space::handle::{SharedAddressSpace, lock};
    use crate::target::procfs::ProcessFiles;

    #[test]
    fn children_of_a_process_that_has_ended_have_what_was_known_last() {
        for is_locked in [true, false] {
            let mut process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let mut space = AddressSpace::of_nothing();
            space.files = Some(Arc::new(ProcessFiles::of_thread(process.id()).unwrap()));
            let space = SharedAddressSpace::alone(space);
            match is_locked {
                true => lock(&space).register().unwrap(),
                false => super::super::register(&space).unwrap(),
            }
            process.kill().unwrap();
            process.wait().unwrap();
            let mut space = lock(&space);
            assert!(space.ask_fork_advice().is_err());
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
