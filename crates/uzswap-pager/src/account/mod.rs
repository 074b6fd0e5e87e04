//! How much memory programs use, each byte counted once, and the headroom below the limit.
//!
//! ```text
//!  0                    used            goal                       limit
//!  |-- programs, store --|-- headroom --|-- margin, unobserved growth --|
//! ```
//!
//! The sampler folds a [`sample::Sample`] of all programs into the account each millisecond.
//! Between two samples the fault server charges the pages that it gives to programs. The evictor
//! works while the usage is above the goal.

mod charges;
pub(crate) mod growth;
pub(crate) mod held_back;
pub(crate) mod peaks;
pub(crate) mod sample;
pub(crate) mod timeline;
pub(crate) mod uncounted;
pub(crate) mod unmanaged;
pub(crate) mod unmanaged_parts;
mod usage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::locks::{Lock, SAMPLES};
use charges::Charges;
use held_back::HeldBack;
use peaks::{Peak, Peaks};
use sample::{History, Sampling};
use uncounted::UncountedPeak;
use unmanaged::UnmanagedBytes;
use usage::Usage;
use uzswap::page::PAGE_SIZE;

/// At most this part of the limit is kept free for unobserved growth.
const UNOBSERVED_PART: u64 = 8;

/// Bytes that are kept free for the time between two samples, beside those for a batch on its way
/// out.
const MARGIN: u64 = 1 << 20;

/// The registrars work from this part of the limit below the goal on, and so many bytes at least: a
/// program may map memory and fill it meanwhile.
const REGISTERED_PART: u64 = 16;
const REGISTERED_MIN: u64 = 6 << 20;

/// From this part of the limit below the goal on, surveys are urgent.
const NEAR_PART: u64 = 50;

/// Programs may exceed the limit by this part of it, page by page, while compressed and unevictable
/// pages take most of the limit.
const BEYOND_PART: u64 = 50;

/// The reported peak of programs that share pages may stay below the true one by this part of it,
/// and so many bytes.
const PEAK_PART: u64 = 64;
const PEAK_BYTES: u64 = 256 << 10;

/// The memory of all programs and of the store, below one limit.
#[derive(Debug)]
pub(crate) struct MemoryAccount {
    limit_bytes: u64,
    /// At the last sample.
    usage: Usage,
    /// Since the last sample.
    charges: Charges,
    /// Bytes by which programs may grow until the next sample, without a fault.
    unobserved: AtomicU64,
    /// Of processes without a helper.
    unmanaged: UnmanagedBytes,
    /// Evictable bytes at the last count; an upper bound if programs share pages.
    evictable: AtomicU64,
    /// The last complete PSS survey found usage above the goal.
    is_surely_over: AtomicBool,
    peaks: Peaks,
    /// Memory that does not count against the limit.
    uncounted: Arc<UncountedPeak>,
    /// Held by the thread that samples.
    history: Lock<History, SAMPLES>,
}

/// Usage in bytes, at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// The limit.
    pub(crate) limit: u64,
    /// The usage that the evictor compares with its goal. Far below the goal each process counts
    /// all its pages.
    pub(crate) used: u64,
    /// A lower bound: each shared page counts once.
    pub(crate) known: u64,
    /// Resident anonymous memory of managed programs.
    pub(crate) resident: u64,
    /// Anonymous memory of processes without a helper.
    pub(crate) unmanaged: u64,
    /// Resident bytes that the evictor may evict.
    pub(crate) evictable: u64,
}

impl MemoryAccount {
    /// An empty account of a run that starts now.
    pub(crate) fn new(limit_bytes: u64, now: Instant) -> MemoryAccount {
        MemoryAccount {
            limit_bytes,
            usage: Usage::default(),
            charges: Charges::default(),
            unobserved: AtomicU64::new(0),
            unmanaged: UnmanagedBytes::default(),
            evictable: AtomicU64::new(0),
            is_surely_over: AtomicBool::new(false),
            peaks: Peaks::default(),
            uncounted: Arc::default(),
            history: Lock::new(History::new(now)),
        }
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub(crate) fn unmanaged(&self) -> &UnmanagedBytes {
        &self.unmanaged
    }

    pub(crate) fn uncounted(&self) -> &Arc<UncountedPeak> {
        &self.uncounted
    }

    /// Begins a sample. Until it is dropped no other thread samples, and no survey counts.
    pub(crate) fn begin_sample(&self) -> Sampling<'_> {
        Sampling::new(self, self.history.lock())
    }

    /// Charges pages that the fault server gave to programs, of which so many were in the store.
    /// Returns whether the usage is above the goal.
    pub(crate) fn charge(&self, pages: usize, stored: usize) -> bool {
        let charged = self.charges.add(pages, stored);
        self.usage.used() + charged > self.goal_bytes()
    }

    /// The goal of the evictor, in bytes.
    pub(crate) fn goal_bytes(&self) -> u64 {
        let kept_free = self.margin_bytes() + self.unobserved_bytes();
        self.limit_bytes.saturating_sub(kept_free)
    }

    /// Bytes that are kept free for the time between two samples, and for a batch on its way out.
    pub(crate) fn margin_bytes(&self) -> u64 {
        MARGIN + self.usage.reserved()
    }

    /// The usage from which on surveys are urgent.
    pub(crate) fn near_bytes(&self) -> u64 {
        self.goal_bytes().saturating_sub(self.limit_bytes / NEAR_PART)
    }

    /// Bytes by which programs may grow until the next sample, without a fault.
    pub(crate) fn unobserved_bytes(&self) -> u64 {
        self.unobserved.load(Ordering::Relaxed)
    }

    fn set_unobserved(&self, bytes: u64) {
        self.unobserved.store(bytes, Ordering::Relaxed);
    }

    /// Bytes by which programs may grow before the evictor works, while the store takes so many.
    pub(crate) fn headroom_bytes(&self, store_bytes: u64) -> u64 {
        let used = self.usage.programs() + store_bytes + self.unmanaged.bytes();
        self.goal_bytes().saturating_sub(used)
    }

    /// Headroom for COW copies that no fault reports, in bytes.
    pub(crate) fn headroom_for_copies(&self) -> u64 {
        self.goal_bytes().saturating_sub(self.usage.apart())
    }

    /// Pages that the fault server may give to programs now.
    pub(crate) fn headroom_pages(&self) -> usize {
        let kept_free = self.usage.reserved().max(self.unobserved_bytes());
        self.pages_below(self.limit_bytes.saturating_sub(kept_free))
    }

    /// Pages up to the limit.
    pub(crate) fn pages_to_limit(&self) -> usize {
        self.pages_below(self.limit_bytes)
    }

    /// Whether programs may not even exceed the limit by another page.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.pages_below(self.limit_bytes + self.limit_bytes / BEYOND_PART) == 0
    }

    /// Pages before so many bytes are in use.
    fn pages_below(&self, bytes: u64) -> usize {
        // In this order: a sample adds to the usage before it takes charges off.
        let charged = self.charges.bytes();
        let used = self.usage.used() + charged;
        (bytes.saturating_sub(used) / PAGE_SIZE as u64) as usize
    }

    /// Bytes above the goal at the last sample.
    pub(crate) fn excess_bytes(&self) -> u64 {
        self.usage.used().saturating_sub(self.goal_bytes())
    }

    /// Memory that is held back from programs, where staging and tables take so many bytes.
    pub(crate) fn held_back(&self, staging_bytes: u64, tables_bytes: u64) -> HeldBack {
        HeldBack {
            margin_bytes: self.margin_bytes(),
            growth_bytes: self.unobserved_bytes(),
            staging_bytes,
            tables_bytes,
        }
    }

    /// Notes how many bytes the evictor may evict, by its own count.
    pub(crate) fn note_evictable(&self, bytes: u64) {
        self.evictable.store(bytes, Ordering::Relaxed);
    }

    /// Whether programs would exceed the goal if each made a COW copy of all shared pages.
    pub(crate) fn may_be_over_apart(&self) -> bool {
        self.usage.apart() > self.goal_bytes()
    }

    /// Whether the supervisor must know each program's part of the shared pages.
    pub(crate) fn is_survey_due(&self) -> bool {
        self.usage.shares() && (self.may_be_over_apart() || self.may_exceed_peak())
    }

    /// Whether the upper bound of the usage exceeds the known peak. Only a survey decides it.
    fn may_exceed_peak(&self) -> bool {
        let peak = self.peaks.total_bytes();
        self.usage.apart() > peak + peak / PEAK_PART + PEAK_BYTES
    }

    /// Whether the last complete survey found usage above the goal.
    pub(crate) fn is_surely_over(&self) -> bool {
        self.is_surely_over.load(Ordering::Relaxed)
    }

    /// Notes the usage after a complete survey; `None` once sharing does not matter.
    pub(crate) fn note_surveyed(&self, used: Option<u64>) {
        let is_over = used.is_some_and(|used| used > self.goal_bytes());
        self.is_surely_over.store(is_over, Ordering::Relaxed);
    }

    /// A number that changes when a process joins or leaves a fork group.
    pub(crate) fn group_changes(&self) -> u64 {
        self.usage.group_changes()
    }

    /// Whether programs map much more memory that is not anonymous than at the last survey of it.
    pub(crate) fn take_growth_of_uncounted(&self) -> bool {
        self.uncounted.take_growth(self.usage.others())
    }

    /// Notes bytes of the kernel's page tables of all programs.
    pub(crate) fn note_page_tables(&self, bytes: u64) {
        self.peaks.raise_page_tables(bytes);
    }

    /// The usage at the last sample.
    pub(crate) fn figures(&self) -> Figures {
        let resident = self.usage.resident();
        Figures {
            limit: self.limit_bytes,
            used: self.usage.used(),
            known: self.usage.known(),
            resident,
            unmanaged: self.unmanaged.bytes() + self.usage.outside(),
            evictable: self.evictable.load(Ordering::Relaxed).min(resident),
        }
    }

    /// The peaks so far.
    pub(crate) fn peak(&self) -> Peak {
        self.peaks.get()
    }
}
