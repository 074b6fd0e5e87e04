//! The pager: programs under a limit, their cold pages in the store.
//!
//! ```text
//!  program                       supervisor
//!   threads --- fault --------->  fault server --- load ----.
//!   helper  <-- move, drop -----  evictor -------- store --- zswap
//!     (preload)                      |
//!                                 limit: resident anonymous memory + pool + tables of pages
//! ```
//!
//! Far below the limit no memory is registered. Near it the registrar registers anonymous memory
//! with a userfaultfd, and the evictor has the helper move cold pages out: a process with the
//! program's memory, which the preloaded library starts. The kernel's side is in
//! `docs/explanation/run-design.md`.
//!
//! ```text
//!  monitor         sampler, registrar, unmanaged processes: what each takes, what is new
//!  fault           messages of the kernel: page faults, changes of mappings, forks
//!  reclaim         the loop that evicts, and the end of a program when no page is left
//!  address_space   one process: where its pages are, what is registered, what may move
//!  fork, account   groups that share pages, surveys; growth that no fault reports
//!  policy, sched   decisions: which page, which compressor; where threads run
//!  program, store  a process, its files and helper; slots of the store and the file behind it
//!  admission       who may connect
//!  telemetry       counters, status, metrics
//! ```
//!
//! The [`doctor`] says what a machine allows of this. The pager may call the store (`uzswap`), the
//! kernel (`uzswap-sys`), and carries the library for programs (`uzswap-preload`).

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod doctor;

mod account;
mod address_space;
mod admission;
mod fault;
mod fork;
mod fork_group;
mod messages;
mod monitor;
mod page_table;
mod policy;
mod program;
mod range_set;
mod reclaim;
mod report;
mod run_dir;
mod sched;
mod store;
mod supervisor;
mod telemetry;
mod token_bucket;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use account::growth::Growth;
pub use account::uncounted::{Uncounted, UncountedPeak};
use address_space::handle::{SharedAddressSpace, SpaceHandle, lock};
use address_space::{AddressSpace, count_copies, process_size, resident_bytes};
use fork::outsiders::Outsider;
use fork::pss_survey::UsageTotal;
use monitor::registrar::{Due, ScanQueue};
use monitor::unmanaged::{AskedLooks, Unmanaged};
pub use monitor::unmanaged_reason::why_unmanageable;
use policy::recompress::Density;
use report::ratio;
pub use report::{AtPeak, RunReport};
use sched::priority::AllTurns;
use sched::raised::RaisedThreads;
use store::release_queue::ReleaseQueue;
use store::slots::{Slots, key};
use store::writeback::WriteBack;
pub use store::writeback::{WriteBackOptions, WriteBackReport};
pub use supervisor::{RunError, RunOptions, run};
use telemetry::counters::Counters;
pub use telemetry::counters::{FaultTimes, FreeTimes, PagerCounts};
pub use telemetry::metrics::MetricsAddress;
pub use telemetry::query::{NoAnswer, Survey, find_run, survey};
pub use telemetry::status::{ProcessStatus, RunStatus};
pub use telemetry::timeline::RunSample;
use telemetry::timeline::Timeline;

use crate::messages::log;
#[cfg(debug_assertions)]
use uzswap::AuditError;
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::trace::Recorder;
use uzswap::zswap::{StoreError, Zswap};
use uzswap_sys::death_guard::DeathGuard;

/// At most this part of the limit is kept free for growth that no fault reports.
const UNTOLD_PART: u64 = 8;

/// How long a finding of the evictor holds: some of its rounds.
const EXPECTED_FOR: Duration = Duration::from_millis(20);

/// How long the evictor counts as without effect: longer than a period of the supervisor's share.
const VAIN_FOR: Duration = Duration::from_millis(200);

/// Programs may pass the limit by this part of it, page by page, while compressed and unevictable
/// pages take most of the limit.
const BEYOND_PART: u64 = 50;

/// How far the reported peak may stay below the true one where processes share pages: this part of
/// it, and so many bytes.
const PEAK_PART: u64 = 64;
const PEAK_BYTES: u64 = 256 << 10;

/// Pages of zeros that take no memory before they are written: a short program needs none of them.
fn untouched_pages(count: usize) -> Box<[Page]> {
    vec![[0; PAGE_SIZE]; count].into()
}

/// State that the supervisor's threads share.
#[derive(Debug)]
struct Pager {
    zswap: Zswap,
    /// Where pages go that the pool has no share for.
    write_back: Option<WriteBack>,
    /// Of what is done to the store.
    recorder: Option<Recorder>,
    slots: Slots,
    /// Released slots, once for each page.
    released: Arc<ReleaseQueue>,
    spaces: Mutex<Vec<SpaceHandle>>,
    limit_bytes: u64,
    /// Bytes in use at the last sample.
    sampled: AtomicU64,
    /// The same, if programs shared no page.
    apart: AtomicU64,
    /// The last complete PSS survey found usage above the goal.
    is_surely_over: AtomicBool,
    /// Held by the thread that samples.
    sampling: Mutex<Sampling>,
    /// Bytes by which programs may grow until the next sample, without a fault.
    untold: AtomicU64,
    /// Address spaces that the registrars must scan.
    to_scan: ScanQueue,
    /// Resident anonymous bytes of programs at the last sample.
    resident: AtomicU64,
    /// Evictable bytes at the last count; an upper bound if programs share pages.
    evictable: AtomicU64,
    /// Bytes given to programs since the last sample, less the bytes that the pool freed for them.
    charged: AtomicU64,
    /// Some programs shared pages at the last sample.
    shares: AtomicBool,
    /// Bytes that one batch needs on its way out: its objects in the pool, and COW copies of shared
    /// pages.
    reserved: AtomicU64,
    /// Bytes of the pool for each stored page.
    bytes_for_page: AtomicU64,
    peak: AtomicU64,
    resident_peak: AtomicU64,
    pool_peak: AtomicU64,
    /// Pages in the store then.
    stored_at_pool_peak: AtomicU64,
    metadata_peak: AtomicU64,
    /// The most that page tables of programs took, in bytes, as the tree was looked at.
    page_tables_peak: AtomicU64,
    meter: Counters,
    out_of_memory_kills: AtomicU64,
    stop: AtomicBool,
    /// Where the store has two compressors.
    density: Option<Density>,
    start: Instant,
    /// Until when the evictor counts as freeing pages, and until when the working set counts as too
    /// small, in ms since the start.
    frees_until: AtomicU64,
    full_until: AtomicU64,
    /// Until when the evictor counts as without effect, in ms since the start.
    vain_until: AtomicU64,
    /// Rounds of the evictor: a fault waits for headroom for two of them at most.
    rounds: AtomicU64,
    /// A fault waits for headroom.
    is_awaited: AtomicBool,
    /// Turns of the fault server's workers.
    turns: Arc<AllTurns>,
    /// Threads with raised priority.
    raised: RaisedThreads,
    /// Percent of the processors that these threads may take while others wait.
    cpu_share_percent: u8,
    /// Time that these threads ran at ordinary priority for lack of credit, in ns.
    ordinary_priority_ns: AtomicU64,
    /// A helper has ended, but its connection is open.
    has_lost_helper: AtomicBool,
    /// Wakes the fault server.
    wake: OwnedFd,
    /// Wakes all workers of the fault server at the end.
    over: OwnedFd,
    /// Wakes the evictor.
    bell: Bell,
    /// Wakes the thread that surveys.
    survey_bell: Bell,
    /// Wakes the thread that looks for unmanaged processes.
    tree_bell: Bell,
    /// Wakes the sampler at the end.
    end: Bell,
    /// Anonymous bytes of unmanaged processes without those that share pages; and of each process.
    unmanaged: AtomicU64,
    unmanaged_each: Mutex<BTreeMap<u32, u64>>,
    /// Memory that does not count against the limit; resident bytes that are not anonymous.
    uncounted: Arc<UncountedPeak>,
    others: AtomicU64,
    /// Threads of other users of the machine kept the processors busy at the last sample.
    is_beside_others: AtomicBool,
    /// Changes whenever a process joins or leaves a fork group.
    group_changes: AtomicU64,
    /// Unmanaged processes that share pages with managed ones.
    outsiders: Mutex<Vec<Arc<Outsider>>>,
    /// Bytes that count as theirs.
    outside: AtomicU64,
    /// Bytes in use at the last sample, each shared page once. Far below the limit `sampled` may be
    /// more.
    in_use: AtomicU64,
    asked_looks: AskedLooks,
    /// The largest unmanaged process.
    largest_unmanaged: Mutex<Option<Unmanaged>>,
    /// Started before the first eviction: if the supervisor is killed, it keeps the userfaultfds
    /// open until all programs are ended. Missing pages would read as zeros otherwise.
    guard: OnceLock<io::Result<DeathGuard>>,
    quiet: bool,
    /// That helpers connect to.
    socket: std::path::PathBuf,
}

/// The state between two samples.
#[derive(Debug)]
struct Sampling {
    growth: Growth,
    timeline: Timeline,
    at_peak: AtPeak,
}

/// Wakes a thread that waits.
#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn ring(&self) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *rung, true) {
            self.heard.notify_one();
        }
    }

    fn wait(&self, timeout: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.heard.wait_timeout_while(rung, timeout, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

impl Pager {
    fn spaces(&self) -> Vec<SpaceHandle> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add_space(&self, space: AddressSpace) -> SpaceHandle {
        let space =
            SharedAddressSpace::new(space, Arc::clone(&self.turns), Arc::clone(&self.released));
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&space));
        space
    }

    /// Releases the slots of an address space that was never added.
    fn discard_space(&self, mut space: AddressSpace) {
        space.forget_all();
        self.released.extend(space.take_released());
    }

    fn remove_space(&self, gone: &SpaceHandle) {
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        spaces.retain(|space| !Arc::ptr_eq(space, gone));
    }

    /// Bytes in use: resident anonymous memory of all programs, the pool, and what is known of
    /// pages.
    fn sample(&self) -> u64 {
        // One at a time, as what was charged until now is taken off when it is counted.
        let mut sampling = self.sampling();
        let counted = self.charged.load(Ordering::Relaxed);
        let (mut resident, mut tables) = (0, self.slots.bytes());
        let room = self.room_for_copies();
        let mut due = Due::new(self.untold.load(Ordering::Relaxed));
        let (mut shares, mut reserved, mut untold, mut sum) = (false, 0, 0, UsageTotal::default());
        let mut has_lost_helper = false;
        let mut others = 0;
        let mut managed = Vec::new();
        let outside = self.sum_outsiders(&mut sum);
        shares |= outside > 0;
        let now = Instant::now();
        for shared in &self.spaces() {
            let size = process_size(shared);
            let lives = size.filter(|size| size.mapped > 0);
            if let Some(size) = lives {
                count_copies(shared, size, now);
            }
            let mut space = lock(shared);
            managed.extend(space.pid);
            space.look_after_forks();
            has_lost_helper |= space.has_lost_helper(size);
            let bytes = space.bytes_of(size);
            resident += bytes;
            match lives.is_none() && space.files().is_some() {
                true => sum.add_ended(&mut space, bytes),
                false => sum.add(&mut space, bytes),
            }
            tables += space.bytes();
            shares |= space.group().is_some();
            reserved = reserved.max(reclaim::evictor::leaving_bytes(bytes));
            space.have_forks_told(bytes, room);
            if let Some(size) = lives {
                untold += space.grown_untold(size);
                others += size.others * PAGE_SIZE as u64;
                due.see(shared, &mut space, size);
            }
        }
        if has_lost_helper && !self.has_lost_helper.swap(true, Ordering::Relaxed) {
            self.wake_server();
        }
        if !shares && resident < self.limit_bytes / policy::oom::LEAST_PART {
            reserved = 0; // the pool leaves hardly any to run in: that is the programs'
        }
        let untold =
            sampling.growth.see(Instant::now(), untold).min(self.limit_bytes / UNTOLD_PART);
        self.untold.store(untold, Ordering::Relaxed);
        let budget = self.zswap.budget();
        let pool = budget.used_bytes();
        let kept = self.slots.used().max(1) as u64;
        self.bytes_for_page.store((pool / kept).min(PAGE_SIZE as u64), Ordering::Relaxed);
        // The last look at the tree may have met a process before its helper came.
        self.forget_unmanaged(&managed);
        let unmanaged = self.unmanaged.load(Ordering::Relaxed);
        let rest = unmanaged + pool + tables as u64;
        let mut used = resident + outside + rest;
        let known = sum.known_bytes() + rest;
        self.apart.store(used, Ordering::Relaxed);
        // To register takes a moment, in which programs grow.
        if used > self.goal_bytes().saturating_sub(self.margin_bytes() * 3) {
            self.to_scan.add(due);
        }
        if used > self.goal_bytes() {
            // Near the goal each shared page counts once.
            used = sum.bytes() + rest;
        }
        let outside = sum.outside_bytes();
        let once = if used > self.goal_bytes() { sum.bytes() } else { sum.known_bytes() };
        let resident = once.saturating_sub(outside);
        self.outside.store(outside, Ordering::Relaxed);
        self.in_use.store(known, Ordering::Relaxed);
        self.sampled.store(used, Ordering::Relaxed);
        self.others.store(others, Ordering::Relaxed);
        self.group_changes.store(sum.changes(), Ordering::Relaxed);
        self.shares.store(shares, Ordering::Relaxed);
        self.reserved.store(reserved, Ordering::Relaxed);
        // Pages that a fault brought during the sample may count twice until the next one.
        self.charged.fetch_sub(counted, Ordering::Release);
        self.resident.store(resident, Ordering::Relaxed);
        if sum.is_certain() {
            let programs = sum.known_bytes();
            let resident = programs.saturating_sub(outside);
            if self.peak.fetch_max(known, Ordering::Relaxed) < known {
                let pool_bytes = budget.pool_bytes().min(pool);
                sampling.at_peak = AtPeak {
                    resident_bytes: resident,
                    unmanaged_bytes: programs - resident + unmanaged,
                    pool_bytes,
                    metadata_bytes: pool - pool_bytes + tables as u64,
                };
            }
            self.resident_peak.fetch_max(resident, Ordering::Relaxed);
        }
        let pool_bytes = budget.pool_bytes();
        if self.pool_peak.fetch_max(pool_bytes, Ordering::Relaxed) < pool_bytes {
            let stored = match self.write_back {
                None => kept,
                Some(_) => self.zswap.counters().stored_pages, // without those in the file
            };
            self.stored_at_pool_peak.store(stored, Ordering::Relaxed);
        }
        let metadata = budget.metadata_bytes() + tables as u64;
        self.metadata_peak.fetch_max(metadata, Ordering::Relaxed);
        sampling.timeline.see(RunSample {
            ms: self.ms_later(Duration::ZERO),
            resident_bytes: resident + outside + unmanaged,
            pool_bytes,
            metadata_bytes: metadata,
            stored_pages: self.slots.used() as u64,
        });
        used
    }

    /// Adds those without a helper that share pages with others, and what they have; such that have
    /// ended are none any more.
    fn sum_outsiders(&self, sum: &mut UsageTotal) -> u64 {
        let outsiders = self.outsiders();
        if outsiders.iter().any(|outsider| outsider.resident_bytes().is_none()) {
            self.drop_outsiders(|outsider| outsider.resident_bytes().is_none());
        }
        let resident = outsiders.iter().filter_map(|outsider| {
            let bytes = outsider.resident_bytes()?;
            sum.add_outsider(outsider, bytes);
            Some(bytes)
        });
        resident.sum()
    }

    /// Whether programs would pass what the evictor works down to if they shared nothing: all may
    /// make shared pages their own.
    fn may_be_over_apart(&self) -> bool {
        self.apart.load(Ordering::Relaxed) > self.goal_bytes()
    }

    /// Whether the supervisor must know each program's part of the shared pages.
    fn is_survey_due(&self) -> bool {
        self.shares() && (self.may_be_over_apart() || self.may_pass_peak())
    }

    /// Whether the upper bound of usage exceeds the known peak of programs that share pages: only a
    /// survey tells.
    fn may_pass_peak(&self) -> bool {
        let peak = self.peak.load(Ordering::Relaxed);
        self.apart.load(Ordering::Relaxed) > peak + peak / PEAK_PART + PEAK_BYTES
    }

    /// Nobody else looks how much is used meanwhile.
    fn sampling(&self) -> MutexGuard<'_, Sampling> {
        self.sampling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts pages that were given to programs, of which so many were in the store.
    fn charge(&self, pages: usize, stored: usize) {
        let given_back = stored as u64 * self.bytes_for_page.load(Ordering::Relaxed);
        let bytes = (pages * PAGE_SIZE) as u64 - given_back;
        let charged = self.charged.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let used = self.sampled.load(Ordering::Relaxed) + charged;
        if used > self.goal_bytes() {
            self.ring();
        }
    }

    /// Bytes that programs have resident and can be evicted.
    fn evictable_bytes(&self) -> u64 {
        let resident = self.resident.load(Ordering::Relaxed);
        self.evictable.load(Ordering::Relaxed).min(resident)
    }

    /// Whether some programs shared pages at the last sample.
    fn shares(&self) -> bool {
        self.shares.load(Ordering::Relaxed)
    }

    /// Bytes up to which programs may grow before the evictor works.
    fn headroom_bytes(&self) -> u64 {
        let programs = self.resident.load(Ordering::Relaxed) + self.outside.load(Ordering::Relaxed);
        let used =
            programs + self.zswap.budget().used_bytes() + self.unmanaged.load(Ordering::Relaxed);
        self.goal_bytes().saturating_sub(used)
    }

    /// What the evictor works down to.
    fn goal_bytes(&self) -> u64 {
        let kept_free = self.margin_bytes() + self.untold.load(Ordering::Relaxed);
        self.limit_bytes.saturating_sub(kept_free)
    }

    /// Headroom for COW copies that no fault reports, in bytes.
    fn room_for_copies(&self) -> u64 {
        self.goal_bytes().saturating_sub(self.apart.load(Ordering::Relaxed))
    }

    /// How many pages a program may have now.
    fn room_pages(&self) -> usize {
        let reserved = self.reserved.load(Ordering::Relaxed);
        let kept_free = reserved.max(self.untold.load(Ordering::Relaxed));
        self.pages_below(self.limit_bytes.saturating_sub(kept_free))
    }

    /// How many pages there may be before the limit is passed.
    fn pages_to_limit(&self) -> usize {
        self.pages_below(self.limit_bytes)
    }

    /// The evictor frees pages.
    fn note_freeing(&self) {
        self.frees_until.store(self.ms_later(EXPECTED_FOR), Ordering::Relaxed);
    }

    /// The evictor finds that what is stored leaves hardly any to run in.
    fn note_full(&self) {
        self.full_until.store(self.ms_later(EXPECTED_FOR), Ordering::Relaxed);
        self.note_vain();
    }

    /// The evictor has freed nothing, or what it frees is of no use.
    fn note_vain(&self) {
        self.vain_until.store(self.ms_later(VAIN_FOR), Ordering::Relaxed);
    }

    /// Whether the evictor's last rounds were in vain.
    fn is_in_vain(&self) -> bool {
        self.ms_later(Duration::ZERO) < self.vain_until.load(Ordering::Relaxed)
    }

    /// Whether a fault is to wait on though the evictor had time for it: pages leave, or somebody
    /// will be ended for it.
    fn will_have_room(&self) -> bool {
        let now = self.ms_later(Duration::ZERO);
        let is_before = |until: &AtomicU64| now < until.load(Ordering::Relaxed);
        let beyond = self.limit_bytes + self.limit_bytes / BEYOND_PART;
        is_before(&self.frees_until) && self.pages_to_limit() == 0
            || is_before(&self.full_until) && self.pages_below(beyond) == 0
    }

    fn ms_later(&self, time: Duration) -> u64 {
        (self.start.elapsed() + time).as_millis() as u64
    }

    /// How many pages there may be before so many bytes are in use.
    fn pages_below(&self, bytes: u64) -> usize {
        // In this order: what is taken off the one was added to the other before.
        let charged = self.charged.load(Ordering::Acquire);
        let used = self.sampled.load(Ordering::Relaxed) + charged;
        (bytes.saturating_sub(used) / PAGE_SIZE as u64) as usize
    }

    /// Headroom for the time between two samples: a fiftieth of the limit, 2 MiB at least.
    fn margin_bytes(&self) -> u64 {
        (self.limit_bytes / 50).max(2 << 20)
    }

    /// Keeps a page; its slot.
    fn store(&self, page: &Page) -> Result<u32, NotStored> {
        let slot = self.take_slot().map_err(NotStored::Failed)?;
        let stored = match self.density.as_ref().is_some_and(Density::is_dense) {
            true => self.zswap.store_densely(key(slot), page),
            false => self.zswap.store(key(slot), page),
        };
        match stored {
            Ok(_) => {
                self.record(|recorder| recorder.store(key(slot), page));
                if let Some(told) = self.write_back.as_ref().and_then(|w| w.keep_share(&self.zswap))
                {
                    self.warn(&told);
                }
                Ok(slot)
            }
            Err(error) => {
                self.slots.release(slot);
                self.slots.free(slot);
                Err(match error {
                    StoreError::CompressPoor { .. } => NotStored::DoesNotShrink,
                    other => NotStored::Failed(other.to_string()),
                })
            }
        }
    }

    /// Keeps a page, as it is where it does not fit the pool; in words why that cannot be.
    fn store_any(&self, page: &Page) -> Result<u32, String> {
        match self.store(page) {
            Ok(slot) => Ok(slot),
            Err(NotStored::DoesNotShrink) => {
                let slot = self.take_slot()?;
                self.slots.keep_whole(slot, page);
                Ok(slot)
            }
            Err(NotStored::Failed(why)) => Err(why),
        }
    }

    fn take_slot(&self) -> Result<u32, String> {
        let none_left = || "the store is at its maximum of 256 GiB of pages".to_owned();
        self.slots.take().ok_or_else(none_left)
    }

    /// Reads a page that is kept; in words why that cannot be.
    fn load(&self, slot: u32, page: &mut Page) -> Result<(), String> {
        // The page leaves the store in a moment: the pool need not take it back.
        match self.zswap.load_in_place(key(slot), page) {
            Ok(true) => {
                self.record(|recorder| recorder.load(key(slot)));
                Ok(())
            }
            Ok(false) if self.slots.read_whole(slot, page) => Ok(()),
            Ok(false) => Err(format!("slot {slot} is not in the store")),
            Err(error) => match std::error::Error::source(&error) {
                Some(source) => Err(format!("{error}: {source}")),
                None => Err(error.to_string()),
            },
        }
    }

    /// Whether a slot's page is in the file, and takes a while to load.
    fn is_in_file(&self, slot: u32) -> bool {
        self.write_back.is_some() && self.zswap.is_written_back(key(slot))
    }

    /// A page has left this slot. The evictor frees the memory: neither a fault nor the sampler
    /// waits for that.
    fn release(&self, slot: u32) {
        self.released.extend([slot]);
    }

    /// Checks each address space, and the slots against all of them; nobody else works meanwhile.
    ///
    /// # Errors
    ///
    /// The first invariant that does not hold, with process and page.
    #[cfg(debug_assertions)]
    fn audit(&self) -> Result<(), AuditError> {
        let mut named = Vec::new();
        for space in self.spaces() {
            let space = lock(&space);
            space.audit()?;
            named.extend(space.named_slots());
        }
        self.slots.audit(named, self.write_back.is_some()) // reads of the file hold slots
    }

    /// Frees what was released.
    fn free_released(&self) {
        let slots = self.released.take();
        if slots.is_empty() {
            return;
        }
        let start = Instant::now();
        let mut freed = 0;
        for slot in slots {
            if self.slots.release(slot) {
                freed += 1;
                if self.zswap.invalidate(key(slot)) {
                    // Before anybody else may have the slot.
                    self.record(|recorder| recorder.free(key(slot)));
                }
                self.slots.free(slot);
            }
        }
        self.meter.freed(freed, start.elapsed());
    }

    /// Heat of a page that comes back from this slot.
    fn heat_of_restored(&self, slot: u32) -> u8 {
        let resident = self.resident.load(Ordering::Relaxed) / PAGE_SIZE as u64;
        policy::clock::heat_of_restored(self.slots.taken_since(slot), resident)
    }

    fn record(&self, event: impl FnOnce(&Recorder)) {
        if let Some(recorder) = &self.recorder {
            event(recorder);
        }
    }

    /// Wakes the evictor.
    fn ring(&self) {
        self.bell.ring();
    }

    /// The evictor waits to be woken.
    fn wait(&self) {
        self.bell.wait(Duration::from_secs(1));
    }

    /// The sampler waits for its next turn.
    fn pause(&self, time: Duration) {
        self.end.wait(time);
    }

    /// Ends all threads.
    fn stop_all(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
        self.survey_bell.ring();
        self.tree_bell.ring();
        self.end.ring();
        self.to_scan.end();
        wake(&self.over);
        // Where one runs when nobody else would.
        self.turns.each().iter().for_each(|turns| drop(turns.wait()));
    }

    /// Wakes the server: there may be room, or a page was read.
    fn wake_server(&self) {
        wake(&self.wake);
    }

    fn warn(&self, text: &str) {
        if !self.quiet {
            log(text);
        }
    }

    /// A page cannot be given back: its process is ended, never shown zeros. Of one that is not
    /// known, the thread that asks for the page gets SIGBUS.
    fn lose(&self, space: &AddressSpace, page: u64, text: &str) {
        if space.peer.is_some() {
            return self.end(space, text);
        }
        log(&format!("{text}; the faulting thread gets SIGBUS or EFAULT"));
        let page = page * PAGE_SIZE as u64..(page + 1) * PAGE_SIZE as u64;
        let _ = space.uffd.poison(page, true); // refused where its memory is gone
    }

    /// Ends the process of a space, if it is known.
    fn end(&self, space: &AddressSpace, text: &str) {
        if let Some(peer) = &space.peer {
            log(&format!("{text}; the process was ended"));
            peer.kill();
        }
    }

    /// The process that guards this one, if there is one yet.
    fn guard_pid(&self) -> Option<u32> {
        Some(self.guard.get()?.as_ref().ok()?.pid())
    }
}

/// Why a page is not kept.
#[derive(Debug)]
enum NotStored {
    /// The page is too large for the pool: zbud takes no whole page.
    DoesNotShrink,
    /// In words.
    Failed(String),
}

/// The message for a supervisor that has reached its limit of descriptors.
fn too_many_files(error: &io::Error) -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.unwrap_or(u64::MAX);
    format!("{error}: the limit is {limit} (ulimit -n), and each process needs 10")
}

/// A descriptor that wakes who waits for it.
fn wake_descriptor() -> io::Result<OwnedFd> {
    use rustix::event::EventfdFlags;
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Wakes who waits for such a descriptor.
fn wake(descriptor: &OwnedFd) {
    // Its counter overflows after 2^64.
    let _ = rustix::io::write(descriptor, &1_u64.to_ne_bytes());
}

/// So many bytes in MiB.
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
