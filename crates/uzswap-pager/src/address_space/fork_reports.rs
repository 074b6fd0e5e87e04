//! Forks that a program reports before they happen, and its advice about them.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::AddressSpace;
use super::charge::PROTECTED_BYTES_MIN;
use super::fork_advice::ForkAdvice;
use super::fork_evidence::{AdviceAtFork, Uncertain};
use super::forking_threads::ForkingThreads;
use super::staging::STAGING_PAGES;
use crate::range_set::RangeSet;
use crate::token_bucket::Bucket;

/// Children that may join a process of which nothing was registered when it forked: for each, all
/// that it has is protected. Others run unmanaged.
const JOINS_AT_ONCE: u32 = 1024;
const JOINS_EACH_SECOND: u32 = 128;

/// How long a child may stay unknown if no report came before its fork.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);

/// How long a fork may take from its report to its event.
const REPORTED_FOR: Duration = Duration::from_secs(1);

/// Forks of a process, as its program and the kernel report them.
#[derive(Debug)]
pub(crate) struct ForkReports {
    counted: Forks,
    pending: Reports,
    /// Threads in a fork before events were read: a thread runs on once its event is read.
    forking: ForkingThreads,
    /// Advice about forks; a child begins with its parent's.
    advice: Option<LastAdvice>,
    /// A budget for children that join without an event of their fork.
    joins: Bucket,
}

impl ForkReports {
    pub(super) fn new() -> ForkReports {
        ForkReports {
            counted: Forks::new(),
            pending: Reports::default(),
            forking: ForkingThreads::default(),
            advice: None,
            joins: Bucket::new(JOINS_AT_ONCE, JOINS_EACH_SECOND),
        }
    }

    /// Admits a child that joins without an event of its fork; `false` if there were too many.
    pub(crate) fn admit_child(&mut self) -> bool {
        self.joins.take(1, Instant::now())
    }

    /// Whether the kernel has answered about the advice.
    pub(super) fn has_advice(&self) -> bool {
        self.advice.is_some()
    }

    /// Notes an answer of the kernel, unless a later one is there.
    pub(super) fn note_advice(&mut self, answer: io::Result<ForkAdvice>) {
        if !self.has_advice() {
            self.advice = answer.ok().map(LastAdvice::new);
        }
    }

    /// Notes the report of a fork, and the kernel's answer of now.
    pub(super) fn note_report(&mut self, advice: Option<ForkAdvice>, holds_at_fork: bool) {
        self.pending.add(Instant::now());
        self.advice = advice.map(|ranges| LastAdvice { ranges, holds_at_fork });
    }

    /// A child has its parent's advice until it gives other advice.
    pub(super) fn inherit_advice(&mut self, of_parent: ForkAdvice) {
        let ranges = ForkAdvice { not_copied: RangeSet::new(), ..of_parent };
        self.advice = Some(LastAdvice::new(ranges));
    }
}

/// Forks of a process, by its own count.
#[derive(Debug)]
struct Forks {
    read: Instant,
    /// The count when it was read last, and the one before.
    counts: [u32; 2],
}

impl Forks {
    fn new() -> Forks {
        Forks { read: Instant::now(), counts: [0; 2] }
    }

    /// Notes how many are known.
    fn have_known(&mut self, count: u32) {
        *self = Forks { read: Instant::now(), counts: [count; 2] };
    }

    /// Forks whose children are known, if there are any; so many forks were counted so far.
    fn known(&mut self, count: u32, now: Instant) -> u32 {
        if now.duration_since(self.read) >= UNKNOWN_FOR {
            *self = Forks { read: now, counts: [count, self.counts[0]] };
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
struct LastAdvice {
    ranges: ForkAdvice,
    /// The process had one thread then, so nothing changes the advice before the fork.
    holds_at_fork: bool,
}

impl LastAdvice {
    /// An answer at no particular time.
    fn new(ranges: ForkAdvice) -> LastAdvice {
        LastAdvice { ranges, holds_at_fork: false }
    }
}

impl AddressSpace {
    /// The advice for the fork whose event was just read.
    pub(crate) fn advice_at_fork(&mut self) -> AdviceAtFork {
        // One thread since the report: if no event is pending, it has changed nothing since.
        let is_alone = self.fork_reports.advice.as_ref().is_some_and(|last| last.holds_at_fork);
        if is_alone && self.is_about_to_fork() {
            self.settle();
        }
        // The mappings of a process that has ended are partly there, or not at all.
        self.advice_by(|space| space.process.fork_advice().ok().filter(|_| !space.hides_mappings()))
    }

    /// The advice for a fork, with the kernel's answer of now, if it is needed.
    pub(super) fn advice_by(
        &mut self,
        ask: impl FnOnce(&AddressSpace) -> Option<ForkAdvice>,
    ) -> AdviceAtFork {
        let was_reported = self.fork_reports.pending.take(Instant::now());
        match self.fork_reports.advice.take() {
            Some(last) if was_reported && last.holds_at_fork => {
                self.fork_reports.advice = Some(LastAdvice::new(last.ranges.clone()));
                match self.layout.is_settled() {
                    true => AdviceAtFork::Known(last.ranges),
                    false => AdviceAtFork::Uncertain(self.uncertain(vec![last.ranges])),
                }
            }
            last => {
                let before = last.as_ref().filter(|_| was_reported).map(|last| last.ranges.clone());
                let now = ask(self).or_else(|| last.map(|last| last.ranges));
                self.fork_reports.advice = now.clone().map(LastAdvice::new);
                let answers = before.into_iter().chain(now).collect();
                AdviceAtFork::Uncertain(self.uncertain(answers))
            }
        }
    }

    fn uncertain(&self, answers: Vec<ForkAdvice>) -> Uncertain {
        let changes = self.layout.changes().clone();
        let forking = self.fork_reports.forking;
        let of_parent = Uncertain { answers, changes, forking, ..Uncertain::default() };
        match self.layout.undecided() {
            Some(of_grandparent) => of_parent.after(of_grandparent),
            None => of_parent,
        }
    }

    /// Notes which threads fork by the C library, before the supervisor reads events.
    pub(crate) fn note_forking_threads(&mut self) {
        let forking = self.commands.last_helper().map(|helper| ForkingThreads(helper.forking()));
        self.fork_reports.forking = forking.unwrap_or_default();
    }

    /// Whether its mappings cannot be read: the process is unknown, or has ended.
    fn hides_mappings(&self) -> bool {
        self.process.files().is_none() || self.is_dead()
    }

    /// Queries the advice, unless it is known, before the supervisor reads the event of a fork. The
    /// process may end a moment later.
    pub(super) fn know_fork_advice(&mut self) {
        if !self.fork_reports.has_advice() {
            self.fork_reports.note_advice(self.process.fork_advice());
        }
    }

    /// Whether a touch of this address tells of a fork.
    pub(crate) fn tells_fork(&self, address: u64) -> bool {
        self.commands.staged_at(STAGING_PAGES).is_some_and(|page| address >= page)
            && self.is_staging(address)
    }

    /// Has the program report a fork before it happens: each fork if memory is registered.
    /// Otherwise the first fork whose copies, with those of unknown children, would exceed so much
    /// headroom.
    pub(crate) fn have_forks_reported(&mut self, resident_bytes: u64, room: u64) {
        let Some(helper) = self.commands.last_helper() else { return };
        if self.registration.is_any() {
            return self.have_all_forks_reported();
        }
        let fitting = copies_that_fit(resident_bytes, room);
        let is_reported = resident_bytes >= PROTECTED_BYTES_MIN || fitting == 0;
        let from = u64::from(self.fork_reports.counted.known(helper.forks(), Instant::now()))
            + fitting
            + 1;
        helper.have_forks_reported(if is_reported { from.try_into().unwrap_or(0) } else { 0 });
    }

    /// Allows a reported fork without protection if its copies fit; whether they do. So many of its
    /// children are unknown; the others have ended or are counted.
    pub(crate) fn allow_fork(&mut self, unknown: u32, room: u64) -> bool {
        let Some(helper) = self.commands.last_helper() else { return false };
        self.fork_reports.counted.have_known(helper.forks().saturating_sub(1 + unknown));
        let resident = self.resident_bytes();
        self.have_forks_reported(resident, room);
        u64::from(unknown) < copies_that_fit(resident, room)
    }

    /// Has the program report each fork before it happens.
    pub(super) fn have_all_forks_reported(&self) {
        if let Some(helper) = self.commands.last_helper() {
            helper.have_forks_reported(1);
        }
    }

    /// Answers the report of a fork: fills the page whose touch was the report, without a wake-up.
    /// `false` if the thread must ask again: the helper is at work, or the mappings change.
    pub(crate) fn let_fork(&mut self, reported_by: Range<u64>) -> bool {
        if !self.hold_commands() {
            return false;
        }
        let is_filled = self.uffd.zeropage(reported_by, false).is_ok();
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
        self.fork_reports.note_report(advice, holds_at_fork);
        // The kernel copies the protection to the child.
        let spared = self.protect_all(self.resident_bytes(), stacks);
        self.protection.prepare(spared);
    }

    pub(crate) fn is_about_to_fork(&self) -> bool {
        self.fork_reports.pending.is_any(Instant::now())
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
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::address_space::for_tests::STAGING;
    use crate::address_space::handle::{SharedAddressSpace, lock};
    use crate::address_space::{Change, PAGE};
    use uzswap_preload::protocol::holder;

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
        space.fork_reports.inherit_advice(of_parent.clone());
        space.changed(Change::Unmapped(0..PAGE));
        let AdviceAtFork::Uncertain(of) = space.advice_at_fork() else { panic!() };
        assert_eq!(of.answers, [ForkAdvice { not_copied: RangeSet::new(), ..of_parent }]);
        assert!(!of.changes.is_empty() && !of.are_some_pending);
    }

    #[test]
    fn forks_are_reported_before_their_copies_exceed_the_headroom() {
        const MIB: u64 = 1 << 20;
        let mut space = AddressSpace::with_helper(STAGING);
        let helper = space.commands.free_helper().unwrap();
        let mut from = |resident_mib, room_mib| {
            space.have_forks_reported(resident_mib * MIB, room_mib * MIB);
            helper.control().tell_forks_from.load(Relaxed)
        };
        assert_eq!([from(8, 7), from(8, 8), from(8, 23), from(8, 24)], [1, 2, 3, 4]);
        // Copies of a small process are few, until they do not fit.
        assert_eq!([from(3, 3), from(3, 2), from(4, 4)], [0, 1, 2]);
        assert_eq!(from(4, u64::MAX / MIB), 0, "there is no such number");
        assert_eq!(from(0, 0), 1);
        space.registration.insert(0..PAGE);
        space.have_forks_reported(8 * MIB, 800 * MIB);
        assert_eq!(helper.control().tell_forks_from.load(Relaxed), 1, "each one");
    }

    #[test]
    fn a_fork_is_allowed_while_its_copies_fit() {
        let mut space = AddressSpace::with_helper(STAGING);
        let helper = space.commands.free_helper().unwrap();
        helper.control().forks.store(5, Relaxed);
        assert!(!space.allow_fork(0, 0) && !space.allow_fork(1, 0));
        // One child of the four forks before this one is unknown.
        assert_eq!(helper.control().tell_forks_from.load(Relaxed), 3 + 1);
        let room = space.resident_bytes() * 100;
        assert!(space.allow_fork(0, room) && space.allow_fork(1, room));
        assert!(!space.allow_fork(10_000, room));
        assert!(!AddressSpace::of_nothing().allow_fork(0, u64::MAX));
    }

    #[test]
    fn a_report_is_answered_while_the_helper_moves_nothing() {
        let mut space = AddressSpace::with_helper(STAGING);
        let helper = space.commands.free_helper().unwrap();
        for lock in [holder::NONE, holder::HELPER] {
            helper.control().lock.store(lock, Relaxed);
            assert!(!space.let_fork(0..PAGE), "its userfaultfd is none");
            assert_eq!(helper.control().lock.load(Relaxed), lock);
        }
        assert_eq!(helper.control().changes.load(Relaxed), 0);
        space.have_all_forks_reported();
        assert_eq!(helper.control().tell_forks_from.load(Relaxed), 1);
    }

    #[test]
    fn a_touch_behind_staging_tells_of_a_fork() {
        let space = AddressSpace::with_helper(STAGING);
        let last = STAGING + STAGING_PAGES as u64 * PAGE;
        let touches = [STAGING, last - 1, last, last + PAGE - 1, last + PAGE];
        assert_eq!(touches.map(|at| space.tells_fork(at)), [false, false, true, true, false]);
        assert!(!AddressSpace::of_nothing().tells_fork(last));
    }

    #[test]
    fn a_reported_fork_of_one_thread_has_the_advice_of_before() {
        let mut process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut space = AddressSpace::of_nothing();
        space.process.read(process.id());
        assert!(!space.is_about_to_fork() && !space.fork_reports.has_advice());
        space.prepare_fork();
        assert!(space.is_about_to_fork() && space.fork_reports.has_advice());
        space.changed(Change::Unmapped(0..PAGE));
        assert!(matches!(space.advice_at_fork(), AdviceAtFork::Known(_)));
        assert!(!space.is_about_to_fork());
        // A later fork is not reported: only its advice of after is known.
        let AdviceAtFork::Uncertain(of) = space.advice_at_fork() else { panic!() };
        assert_eq!(of.answers.len(), 1);
        space.prepare_fork();
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(matches!(space.advice_at_fork(), AdviceAtFork::Known(_)));
        // This process has several threads, which may change it until the fork.
        space.process.read(std::process::id());
        let threads = [(); 2].map(|()| std::thread::spawn(std::thread::park));
        space.prepare_fork();
        let AdviceAtFork::Uncertain(of) = space.advice_at_fork() else { panic!() };
        assert_eq!(of.answers.len(), 2, "of before and of after");
        for thread in threads {
            thread.thread().unpark();
            thread.join().unwrap();
        }
    }

    #[test]
    fn the_first_answer_about_advice_stays_and_joins_are_bounded() {
        let mut reports = ForkReports::new();
        reports.note_advice(Err(io::ErrorKind::NotFound.into()));
        assert!(!reports.has_advice());
        let mut stacks = RangeSet::new();
        stacks.insert(0..PAGE);
        reports.note_advice(Ok(ForkAdvice { stacks: stacks.clone(), ..ForkAdvice::default() }));
        reports.note_advice(Ok(ForkAdvice::default()));
        let advice = reports.advice.unwrap().ranges;
        assert_eq!(AdviceAtFork::Known(advice).stacks(), Some(stacks));
        let mut reports = ForkReports::new();
        let admitted = (0..JOINS_AT_ONCE).filter(|_| reports.admit_child()).count();
        assert_eq!(admitted, JOINS_AT_ONCE as usize);
        assert!((0..JOINS_AT_ONCE).any(|_| !reports.admit_child()));
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
        let mut forks = Forks { read: start, counts: [0; 2] };
        let mut known = |count, ms| forks.known(count, start + Duration::from_millis(ms));
        assert_eq!([known(0, 0), known(3, 10), known(5, 990)], [0, 0, 0]);
        // Some of the five were a moment ago.
        assert_eq!([known(5, 1010), known(9, 2000)], [0, 0]);
        assert_eq!([known(9, 2020), known(9, 3000)], [5, 5]);
        assert_eq!(known(9, 3030), 9);
    }
}
