//! The state that the supervisor's threads share, by owner.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::account::MemoryAccount;
use crate::address_space::AddressSpace;
#[cfg(debug_assertions)]
use crate::address_space::handle::lock;
use crate::address_space::handle::{SharedAddressSpace, SpaceHandle};
use crate::fork::outsiders::Outsiders;
use crate::locks::{Lock, SPACES};
use crate::messages::log;
use crate::monitor::process_tree::TreeScans;
use crate::monitor::registrar::ScanQueue;
use crate::reclaim::progress::EvictorProgress;
use crate::sched::priorities::Priorities;
use crate::store::PageStore;
use crate::telemetry::counters::Counters;
use crate::wakers::Wakers;
#[cfg(debug_assertions)]
use uzswap::AuditError;
use uzswap::page::PAGE_SIZE;
use uzswap_sys::death_guard::DeathGuard;

/// State that the supervisor's threads share.
#[derive(Debug)]
pub(crate) struct Pager {
    pub(crate) account: MemoryAccount,
    pub(crate) store: Arc<PageStore>,
    spaces: Lock<Vec<SpaceHandle>, SPACES>,
    /// Unmanaged processes that share pages with managed ones.
    pub(crate) outsiders: Outsiders,
    /// Address spaces that the registrars must scan.
    pub(crate) to_scan: ScanQueue,
    pub(crate) tree: TreeScans,
    pub(crate) progress: EvictorProgress,
    pub(crate) wakers: Arc<Wakers>,
    pub(crate) sched: Priorities,
    pub(crate) meter: Counters,
    /// Started before the first eviction: if the supervisor is killed, it keeps the userfaultfds
    /// open until all programs are ended. Missing pages would read as zeros otherwise.
    pub(crate) guard: OnceLock<io::Result<DeathGuard>>,
    quiet: bool,
    /// Helpers connect to it.
    pub(crate) socket: PathBuf,
}

impl Pager {
    /// The state of a run in so many bytes, before any program is started.
    ///
    /// # Errors
    ///
    /// The kernel has no descriptor left.
    pub(crate) fn new(
        limit_bytes: u64,
        store: PageStore,
        sched: Priorities,
        socket: PathBuf,
        quiet: bool,
    ) -> io::Result<Pager> {
        let now = Instant::now();
        Ok(Pager {
            account: MemoryAccount::new(limit_bytes, now),
            store: Arc::new(store),
            spaces: Lock::default(),
            outsiders: Outsiders::default(),
            to_scan: ScanQueue::default(),
            tree: TreeScans::default(),
            progress: EvictorProgress::new(now),
            wakers: Arc::new(Wakers::new()?),
            sched,
            meter: Counters::new(),
            guard: OnceLock::new(),
            quiet,
            socket,
        })
    }

    /// The state of a run in 64 MiB.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Pager {
        Pager::of_limit(64 << 20)
    }

    /// The state of a run in so many bytes, of tests.
    #[cfg(test)]
    pub(crate) fn of_limit(limit_bytes: u64) -> Pager {
        let zswap = uzswap::zswap::Zswap::new(uzswap::zswap::ZswapOptions::default()).unwrap();
        let store = PageStore::new(zswap, None, None, None);
        Pager::new(limit_bytes, store, Priorities::new(1, 100), PathBuf::new(), true).unwrap()
    }

    /// All address spaces, as they are now.
    pub(crate) fn spaces(&self) -> Vec<SpaceHandle> {
        self.spaces.lock().clone()
    }

    pub(crate) fn add_space(&self, space: AddressSpace) -> SpaceHandle {
        let turns = Arc::clone(&self.sched.turns);
        let releases = Arc::clone(self.store.release_queue());
        let space = SharedAddressSpace::new(space, turns, releases);
        self.spaces.lock().push(Arc::clone(&space));
        space
    }

    /// Releases the slots of an address space that was never added.
    pub(crate) fn discard_space(&self, mut space: AddressSpace) {
        space.forget_all();
        self.store.release_queue().extend(space.layout.take_released());
    }

    pub(crate) fn remove_space(&self, gone: &SpaceHandle) {
        self.spaces.lock().retain(|space| !Arc::ptr_eq(space, gone));
    }

    /// Charges pages that the fault server gave to programs, of which so many were in the store.
    pub(crate) fn charge(&self, pages: usize, stored: usize) {
        if self.account.charge(pages, stored) {
            self.wakers.evictor.wake();
        }
    }

    /// Bytes by which programs may grow before the evictor works.
    pub(crate) fn headroom_bytes(&self) -> u64 {
        self.account.headroom_bytes(self.store.usage().used)
    }

    /// Frees slots that were released.
    pub(crate) fn free_released(&self) {
        if let Some((pages, time)) = self.store.free_released() {
            self.meter.freed(pages, time);
        }
    }

    /// Heat of a page that is restored from this slot.
    pub(crate) fn heat_of_restored(&self, slot: u32) -> u8 {
        let resident = self.account.figures().resident / PAGE_SIZE as u64;
        self.store.heat_of_restored(slot, resident)
    }

    /// Checks each address space, and the slots against all of them, once no thread works.
    ///
    /// # Errors
    ///
    /// The first invariant that does not hold, with process and page.
    #[cfg(debug_assertions)]
    pub(crate) fn audit(&self) -> Result<(), AuditError> {
        let mut named = Vec::new();
        for space in self.spaces() {
            let space = lock(&space);
            space.audit().map_err(|wrong| format!("{wrong:x?}"))?;
            named.extend(space.named_slots());
        }
        self.store.wrong_slots(named).into_iter().next().map_or(Ok(()), |text| Err(text.into()))
    }

    /// Ends all threads.
    pub(crate) fn stop_all(&self) {
        self.wakers.stop();
        self.to_scan.end();
        // A worker may run when no other thread would.
        self.sched.turns.each().iter().for_each(|turns| drop(turns.wait()));
    }

    pub(crate) fn warn(&self, text: &str) {
        if !self.quiet {
            log(text);
        }
    }

    /// A page cannot be restored: its process is ended, never shown zeros. If the process is
    /// unknown, the thread that asks for the page gets SIGBUS.
    pub(crate) fn lose(&self, space: &mut AddressSpace, page: u64, text: &str) {
        if space.process.peer().is_some() {
            return self.end(space, text);
        }
        log(&format!("{text}; the faulting thread gets SIGBUS or EFAULT"));
        space.poison_lost(page);
    }

    /// Ends the process of a space, if it is known.
    pub(crate) fn end(&self, space: &AddressSpace, text: &str) {
        if let Some(peer) = space.process.peer() {
            log(&format!("{text}; the process was ended"));
            peer.kill();
        }
    }

    /// Ends the guard, once all programs have ended. Some thread may still hold this pager, and the
    /// guard would outlive the supervisor.
    pub(crate) fn end_guard(&self) {
        self.guard.get().into_iter().flatten().for_each(DeathGuard::end);
    }

    /// The process that guards this one, if there is one yet.
    pub(crate) fn guard_pid(&self) -> Option<u32> {
        Some(self.guard.get()?.as_ref().ok()?.pid())
    }
}
