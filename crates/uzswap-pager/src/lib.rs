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

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use account::MemoryAccount;
pub use account::peaks::AtPeak;
pub use account::timeline::RunSample;
pub use account::uncounted::{Uncounted, UncountedPeak};
use address_space::handle::{SharedAddressSpace, SpaceHandle, lock};
use address_space::{AddressSpace, resident_bytes};
use fork::outsiders::Outsider;
use monitor::registrar::ScanQueue;
use monitor::unmanaged::{AskedLooks, Unmanaged};
pub use monitor::unmanaged_reason::why_unmanageable;
pub use report::RunReport;
use report::ratio;
use sched::priority::AllTurns;
use sched::raised::RaisedThreads;
use store::PageStore;
pub use store::writeback::{WriteBackOptions, WriteBackReport};
pub use supervisor::{RunError, RunOptions, run};
use telemetry::counters::Counters;
pub use telemetry::counters::{FaultTimes, FreeTimes, PagerCounts};
pub use telemetry::metrics::MetricsAddress;
pub use telemetry::query::{NoAnswer, Survey, find_run, survey};
pub use telemetry::status::{ProcessStatus, RunStatus};

use crate::messages::log;
#[cfg(debug_assertions)]
use uzswap::AuditError;
use uzswap::page::{PAGE_SIZE, Page};
use uzswap_sys::death_guard::DeathGuard;

/// How long a finding of the evictor holds: some of its rounds.
const EXPECTED_FOR: Duration = Duration::from_millis(20);

/// How long the evictor counts as without effect: longer than a period of the supervisor's share.
const VAIN_FOR: Duration = Duration::from_millis(200);

/// Pages of zeros that take no memory before they are written: a short program needs none of them.
fn untouched_pages(count: usize) -> Box<[Page]> {
    vec![[0; PAGE_SIZE]; count].into()
}

/// State that the supervisor's threads share.
#[derive(Debug)]
struct Pager {
    store: PageStore,
    spaces: Mutex<Vec<SpaceHandle>>,
    account: MemoryAccount,
    /// Address spaces that the registrars must scan.
    to_scan: ScanQueue,
    meter: Counters,
    out_of_memory_kills: AtomicU64,
    stop: AtomicBool,
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
    /// Threads of other users of the machine kept the processors busy at the last sample.
    is_beside_others: AtomicBool,
    /// Unmanaged processes that share pages with managed ones.
    outsiders: Mutex<Vec<Arc<Outsider>>>,
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
        let space = SharedAddressSpace::new(
            space,
            Arc::clone(&self.turns),
            Arc::clone(self.store.release_queue()),
        );
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&space));
        space
    }

    /// Releases the slots of an address space that was never added.
    fn discard_space(&self, mut space: AddressSpace) {
        space.forget_all();
        self.store.release_queue().extend(space.take_released());
    }

    fn remove_space(&self, gone: &SpaceHandle) {
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        spaces.retain(|space| !Arc::ptr_eq(space, gone));
    }

    /// Charges pages that the fault server gave to programs, of which so many were in the store.
    fn charge(&self, pages: usize, stored: usize) {
        if self.account.charge(pages, stored) {
            self.ring();
        }
    }

    /// Bytes by which programs may grow before the evictor works.
    fn headroom_bytes(&self) -> u64 {
        self.account.headroom_bytes(self.store.usage().used)
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
        is_before(&self.frees_until) && self.account.pages_to_limit() == 0
            || is_before(&self.full_until) && self.account.is_exhausted()
    }

    fn ms_later(&self, time: Duration) -> u64 {
        (self.start.elapsed() + time).as_millis() as u64
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
        self.store.audit(named)
    }

    /// Frees slots that were released.
    fn free_released(&self) {
        if let Some((pages, time)) = self.store.free_released() {
            self.meter.freed(pages, time);
        }
    }

    /// Heat of a page that is restored from this slot.
    fn heat_of_restored(&self, slot: u32) -> u8 {
        let resident = self.account.figures().resident / PAGE_SIZE as u64;
        self.store.heat_of_restored(slot, resident)
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
