//! One sample of all programs, and its way into the account.

use std::time::Instant;

use super::growth::Growth;
use super::held_back::HeldBack;
use super::peaks::AtPeak;
use super::timeline::{RunSample, Timeline};
use super::usage::Totals;
use super::{MemoryAccount, REGISTERED_MIN, REGISTERED_PART, UNOBSERVED_PART};
use crate::locks::{Guard, SAMPLES};
use crate::policy::oom::LEAST_PART;

/// The sums over all programs, in bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    /// Anonymous memory of managed programs, and of unmanaged ones that share pages with them, if
    /// no process shared a page.
    pub(crate) managed_apart: u64,
    pub(crate) outside_apart: u64,
    /// The same, each shared page once.
    pub(crate) once: SharedOnce,
    /// Some programs share pages.
    pub(crate) shares: bool,
    /// Growth since the last sample that no fault reported.
    pub(crate) unobserved: i64,
    /// The largest batch that the evictor may move out of a program.
    pub(crate) largest_batch: u64,
    /// Resident memory that is not anonymous.
    pub(crate) others: u64,
    /// Tables of pages and slots.
    pub(crate) tables: u64,
    /// Memory of staging.
    pub(crate) staging: u64,
}

/// Anonymous memory of all programs where each shared page counts once, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SharedOnce {
    /// An upper bound: some pages may count twice until the next survey.
    pub(crate) most: u64,
    /// A lower bound.
    pub(crate) known: u64,
    /// The part of unmanaged processes.
    pub(crate) outside: u64,
    /// A number that changes when a process joins or leaves a fork group.
    pub(crate) group_changes: u64,
    /// No member of a group ended during the sample.
    pub(crate) is_certain: bool,
}

/// The memory of the store, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StoreUsage {
    /// All of it.
    pub(crate) used: u64,
    /// Host pages of the pool, and the rest.
    pub(crate) pool: u64,
    pub(crate) metadata: u64,
    /// Slots that stand for a page: a number.
    pub(crate) slots: u64,
}

/// The result of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sampled {
    /// Bytes in use, as the evictor compares them with its goal.
    pub(crate) used: u64,
    /// The usage is so near the goal that the registrars must register memory.
    pub(crate) is_near_goal: bool,
}

/// All samples so far.
#[derive(Debug)]
pub(super) struct History {
    start: Instant,
    growth: Growth,
    timeline: Timeline,
    at_peak: AtPeak,
    held_back: HeldBack,
}

impl History {
    pub(super) fn new(now: Instant) -> History {
        let (growth, timeline) = (Growth::new(now), Timeline::new());
        let (at_peak, held_back) = (AtPeak::default(), HeldBack::default());
        History { start: now, growth, timeline, at_peak, held_back }
    }
}

/// A sample that was begun.
#[derive(Debug)]
pub(crate) struct Sampling<'a> {
    account: &'a MemoryAccount,
    history: Guard<'a, History, SAMPLES>,
    /// Charges that the sample counts.
    counted: u64,
}

impl<'a> Sampling<'a> {
    pub(super) fn new(account: &'a MemoryAccount, history: Guard<'a, History, SAMPLES>) -> Self {
        Sampling { account, history, counted: account.charges.bytes() }
    }

    /// The parts of the highest usage, the memory that was held back then, and all samples that
    /// are kept.
    pub(crate) fn into_history(self) -> (AtPeak, HeldBack, Vec<RunSample>) {
        (self.history.at_peak, self.history.held_back, self.history.timeline.samples())
    }

    /// Puts the sample into the account. The pool has `pages_in_pool`.
    pub(crate) fn fold(
        &mut self,
        now: Instant,
        sample: &Sample,
        store: &StoreUsage,
        pages_in_pool: impl FnOnce() -> u64,
    ) -> Sampled {
        let account = self.account;
        self.expect_growth(now, sample.unobserved);
        account.charges.note_pool(store.used, store.slots);
        let unmanaged = account.unmanaged.bytes();
        let totals = account.totals(sample, unmanaged + store.used + sample.tables);
        account.usage.note_totals(totals);
        account.usage.note_others(sample.others);
        account.usage.note_sharing(sample.shares, sample.once.group_changes);
        account.usage.reserve(account.reserve_for(sample));
        account.charges.take_off(self.counted);
        self.counted = 0;
        if sample.once.is_certain {
            self.raise_total(totals.known, sample, store, unmanaged);
        }
        account.peaks.raise_pool(store.pool, pages_in_pool);
        account.peaks.raise_metadata(store.metadata + sample.tables);
        let ms = (now - self.history.start).as_millis() as u64;
        self.history.timeline.see(RunSample {
            ms,
            resident_bytes: totals.resident + totals.outside + unmanaged,
            pool_bytes: store.pool,
            metadata_bytes: store.metadata + sample.tables,
            stored_pages: store.slots,
        });
        Sampled { used: totals.used, is_near_goal: account.is_near_goal(totals.apart) }
    }

    /// Sets the headroom that is kept for growth without faults.
    fn expect_growth(&mut self, now: Instant, unobserved: i64) {
        let expected = self.history.growth.see(now, unobserved);
        let most = self.account.limit_bytes / UNOBSERVED_PART;
        self.account.set_unobserved(expected.min(most));
    }

    /// Notes the usage `known`; its parts, if it is the highest so far.
    fn raise_total(&mut self, known: u64, sample: &Sample, store: &StoreUsage, unmanaged: u64) {
        let programs = sample.once.known;
        let resident = programs.saturating_sub(sample.once.outside);
        if self.account.peaks.raise_total(known, resident) {
            let pool_bytes = store.pool.min(store.used);
            self.history.at_peak = AtPeak {
                resident_bytes: resident,
                unmanaged_bytes: programs - resident + unmanaged,
                pool_bytes,
                metadata_bytes: store.used - pool_bytes + sample.tables,
            };
            self.history.held_back = self.account.held_back(sample.staging, sample.tables);
        }
    }
}

impl MemoryAccount {
    /// The sums of a sample beside `rest` of other memory.
    fn totals(&self, sample: &Sample, rest: u64) -> Totals {
        let once = &sample.once;
        let apart = sample.managed_apart + sample.outside_apart + rest;
        let used = if apart > self.goal_bytes() { once.most + rest } else { apart };
        let programs = if used > self.goal_bytes() { once.most } else { once.known };
        Totals {
            apart,
            known: once.known + rest,
            used,
            resident: programs.saturating_sub(once.outside),
            outside: once.outside,
        }
    }

    /// Bytes that faults leave free for one batch on its way out. Where the pool leaves hardly any
    /// memory, programs get all of that.
    fn reserve_for(&self, sample: &Sample) -> u64 {
        let is_tiny = sample.managed_apart < self.limit_bytes / LEAST_PART;
        if !sample.shares && is_tiny { 0 } else { sample.largest_batch }
    }

    /// Whether programs may reach the goal while the registrars register their memory.
    fn is_near_goal(&self, apart: u64) -> bool {
        let distance = (self.limit_bytes / REGISTERED_PART).max(REGISTERED_MIN);
        apart > self.goal_bytes().saturating_sub(distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MIB: u64 = 1 << 20;

    /// A program alone, with so many MiB.
    fn alone(mib: u64) -> Sample {
        let bytes = mib * MIB;
        let once = SharedOnce { most: bytes, known: bytes, is_certain: true, ..Default::default() };
        Sample { managed_apart: bytes, once, largest_batch: MIB, ..Sample::default() }
    }

    fn store(pool: u64, metadata: u64, slots: u64) -> StoreUsage {
        StoreUsage {
            used: (pool + metadata) * MIB,
            pool: pool * MIB,
            metadata: metadata * MIB,
            slots,
        }
    }

    fn fold(account: &MemoryAccount, now: Instant, sample: &Sample, store: &StoreUsage) -> Sampled {
        account.begin_sample().fold(now, sample, store, || store.slots)
    }

    #[test]
    fn the_parts_of_the_peak_add_up_to_it() {
        let now = Instant::now();
        let account = MemoryAccount::new(1000 * MIB, now);
        account.unmanaged().replace([(7, 30 * MIB)].into());
        let mut sample = alone(200);
        sample.outside_apart = 50 * MIB;
        sample.once.outside = 40 * MIB;
        sample.once.known = 220 * MIB;
        sample.once.most = 230 * MIB;
        (sample.tables, sample.staging) = (MIB, 3 * MIB);
        let sampled = fold(&account, now, &sample, &store(100, 5, 400));
        assert_eq!(sampled.used, (200 + 50 + 30 + 105 + 1) * MIB, "apart, far below the goal");
        let (at, held_back, samples) = account.begin_sample().into_history();
        let in_time = RunSample {
            ms: 0,
            resident_bytes: (180 + 40 + 30) * MIB,
            pool_bytes: 100 * MIB,
            metadata_bytes: 6 * MIB,
            stored_pages: 400,
        };
        assert_eq!((samples, account.peak().metadata), (vec![in_time], 6 * MIB));
        let HeldBack { margin_bytes, growth_bytes, staging_bytes, tables_bytes } = held_back;
        let kinds = [margin_bytes, growth_bytes, staging_bytes, tables_bytes];
        assert_eq!(kinds.map(|bytes| bytes / MIB), [2, 0, 3, 1]);
        let parts = [at.resident_bytes, at.unmanaged_bytes, at.pool_bytes, at.metadata_bytes];
        assert_eq!(parts.map(|bytes| bytes / MIB), [180, 70, 100, 6]);
        let peak = account.peak();
        assert_eq!(peak.total, parts.iter().sum::<u64>());
        assert!(peak.total <= peak.resident + at.unmanaged_bytes + peak.pool + peak.metadata);
        assert_eq!(account.figures().known, peak.total);
        // A smaller sample, and an uncertain one, leave all as it is.
        fold(&account, now, &alone(10), &store(1, 1, 1));
        let uncertain = SharedOnce { is_certain: false, ..alone(900).once };
        fold(&account, now, &Sample { once: uncertain, ..alone(900) }, &store(1, 1, 1));
        assert_eq!((account.peak(), account.begin_sample().into_history().0), (peak, at));
    }

    #[test]
    fn near_the_goal_each_shared_page_counts_once() {
        let now = Instant::now();
        let account = MemoryAccount::new(100 * MIB, now);
        let once = SharedOnce {
            most: 60 * MIB,
            known: 50 * MIB,
            outside: 10 * MIB,
            group_changes: 3,
            is_certain: true,
        };
        let shared = Sample { managed_apart: 90 * MIB, once, shares: true, ..alone(0) };
        let far = fold(&account, now, &shared, &StoreUsage::default());
        assert_eq!((far.used, far.is_near_goal), (90 * MIB, false));
        assert_eq!(account.figures().resident, 40 * MIB);
        assert_eq!(account.headroom_bytes(0), (98 - 40 - 10) * MIB);
        assert!(account.is_survey_due() && !account.may_be_over_apart());
        let over = fold(&account, now, &shared, &store(10, 0, 1));
        assert_eq!((over.used, over.is_near_goal), (70 * MIB, true));
        assert!(account.may_be_over_apart());
        assert_eq!((account.group_changes(), account.headroom_for_copies()), (3, 0));
        let known = account.figures().known;
        assert!(known <= over.used && over.used <= 100 * MIB);
    }

    #[test]
    fn headroom_is_what_the_limit_leaves_and_never_negative() {
        let now = Instant::now();
        let account = MemoryAccount::new(100 * MIB, now);
        for used in [0, 50, 91, 92, 97, 98, 99, 100, 101, 500] {
            let sampled = fold(&account, now, &alone(used), &StoreUsage::default());
            assert_eq!((sampled.used, sampled.is_near_goal), (used * MIB, used > 91));
            let reserved = if used < 12 { 0 } else { 1 };
            let goal = 99 - reserved;
            assert_eq!(account.goal_bytes(), goal * MIB);
            assert_eq!(account.near_bytes(), (goal - 2) * MIB);
            assert_eq!(account.headroom_bytes(0), goal.saturating_sub(used) * MIB);
            assert_eq!(account.headroom_bytes(MIB), (goal - 1).saturating_sub(used) * MIB);
            assert_eq!(account.excess_bytes(), used.saturating_sub(98) * MIB);
            assert_eq!(account.pages_to_limit() as u64, 100_u64.saturating_sub(used) * 256);
            let headroom = 100_u64.saturating_sub(reserved + used) * 256;
            assert_eq!(account.headroom_pages() as u64, headroom, "{used} MiB");
            assert_eq!(account.is_exhausted(), used >= 102);
            assert_eq!(account.may_be_over_apart(), used > 98);
            assert_eq!(account.charge(1, 0), used >= 98);
        }
    }

    #[test]
    fn charges_count_until_a_sample_has_counted_them() {
        let now = Instant::now();
        let account = MemoryAccount::new(100 * MIB, now);
        assert!(!account.charge(256, 0));
        let mut sampling = account.begin_sample();
        account.charge(512, 0); // during the sample
        sampling.fold(now, &alone(1), &StoreUsage::default(), || 0);
        // A second fold of one sample takes nothing off again.
        sampling.fold(now, &alone(1), &StoreUsage::default(), || 0);
        drop(sampling);
        assert_eq!(account.pages_to_limit(), (100 - 1 - 2) * 256);
        fold(&account, now, &alone(3), &StoreUsage::default());
        assert_eq!(account.pages_to_limit(), 97 * 256);
        assert!(!account.charge(96 * 256, 0) && account.charge(1, 0), "above the goal");
    }

    #[test]
    fn unobserved_growth_keeps_at_most_an_eighth_free() {
        let now = Instant::now();
        let account = MemoryAccount::new(80 * MIB, now);
        let grown = Sample { unobserved: 500 << 20, ..alone(1) };
        fold(&account, now + Duration::from_millis(1), &grown, &StoreUsage::default());
        assert_eq!(account.unobserved_bytes(), 10 * MIB);
        assert_eq!(account.goal_bytes(), (80 - 10 - 1) * MIB);
        assert_eq!(account.headroom_pages(), (80 - 1 - 10) * 256);
        let tiny = MemoryAccount::new(MIB, now);
        assert_eq!((tiny.goal_bytes(), tiny.headroom_bytes(5)), (0, 0));
    }

    #[test]
    fn sums_count_apart_up_to_the_goal_itself() {
        let now = Instant::now();
        let account = MemoryAccount::new(100 * MIB, now);
        assert_eq!((account.limit_bytes(), account.goal_bytes()), (100 * MIB, 99 * MIB));
        let once = SharedOnce { most: 60 * MIB, known: 50 * MIB, ..SharedOnce::default() };
        let shared = |apart| Sample { managed_apart: apart, once, shares: true, ..alone(0) };
        let sums = |apart, rest| {
            let Totals { used, resident, .. } = account.totals(&shared(apart), rest);
            (used / MIB, resident / MIB)
        };
        assert_eq!(sums(99 * MIB, 0), (99, 50));
        assert_eq!(sums(100 * MIB, 0), (60, 50));
        assert_eq!(sums(100 * MIB, 39 * MIB), (99, 50));
        assert_eq!(sums(100 * MIB, 40 * MIB), (100, 60));
        // Where the pool leaves less than an eighth of the limit, programs get all of it.
        let reserve = |apart| account.reserve_for(&Sample { managed_apart: apart, ..alone(1) });
        assert_eq!([100 * MIB / 8 - 1, 100 * MIB / 8].map(reserve), [0, MIB]);
    }

    #[test]
    fn a_survey_is_due_where_shared_pages_may_hide_a_new_peak() {
        let now = Instant::now();
        let account = MemoryAccount::new(1 << 30, now);
        let shared = |apart: u64| Sample { managed_apart: apart, shares: true, ..alone(64) };
        // The known peak is 64 MiB; one part in 64 above it is 65.
        for (apart, is_due) in [(65 * MIB + (256 << 10), false), (65 * MIB + (256 << 10) + 1, true)]
        {
            fold(&account, now, &shared(apart), &StoreUsage::default());
            assert_eq!(account.is_survey_due(), is_due, "{apart}");
            fold(&account, now, &Sample { shares: false, ..shared(apart) }, &StoreUsage::default());
            assert!(!account.is_survey_due());
        }
        account.note_page_tables(5);
        assert_eq!((account.peak().page_tables, account.peak().total), (5, 64 * MIB));
    }

    #[test]
    fn other_mapped_memory_is_surveyed_once_it_has_grown() {
        let now = Instant::now();
        let account = MemoryAccount::new(1 << 30, now);
        for (others, is_due) in [(7 * MIB, false), (8 * MIB, true), (8 * MIB, false)] {
            fold(&account, now, &Sample { others, ..alone(1) }, &StoreUsage::default());
            assert_eq!(account.take_growth_of_uncounted(), is_due);
        }
    }

    #[test]
    fn evictable_memory_is_resident() {
        let now = Instant::now();
        let account = MemoryAccount::new(80 * MIB, now);
        account.note_evictable(9 * MIB);
        assert_eq!(account.figures().evictable, 0);
        fold(&account, now, &alone(5), &StoreUsage::default());
        assert_eq!(account.figures().evictable, 5 * MIB);
        account.note_evictable(MIB);
        assert_eq!(account.figures().evictable, MIB);
    }

    #[test]
    fn a_survey_settles_whether_usage_is_above_the_goal() {
        let account = MemoryAccount::new(80 * MIB, Instant::now());
        let goal = account.goal_bytes();
        let states = [Some(goal), Some(goal + 1), None].map(|used| {
            account.note_surveyed(used);
            account.is_surely_over()
        });
        assert_eq!(states, [false, true, false]);
    }
}
