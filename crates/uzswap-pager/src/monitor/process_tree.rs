//! The tree of processes below the supervisor, and scans of it for other threads.

use std::cmp::Ordering;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use crate::locks::{LARGEST_UNMANAGED, Lock};
use crate::program::peer::Peer;
use crate::program::procfs::{
    children_of, page_table_bytes_of, size_of, thread_and_program_of, threads,
};
use crate::{Pager, SpaceHandle, lock};
use uzswap_sys::process;

/// How long a thread waits for a scan, or for the end of a process, at most.
const PATIENCE: Duration = Duration::from_secs(1);

/// A process without a helper.
#[derive(Debug)]
pub(crate) struct Unmanaged {
    pub(crate) bytes: u64,
    pub(crate) peer: Peer,
    /// One of its threads that has its memory.
    pub(crate) thread: u32,
}

/// Scans of the tree for other threads, and the largest unmanaged process of the last one.
#[derive(Debug, Default)]
pub(crate) struct TreeScans {
    requested: AtomicU64,
    /// Requests that a scan has answered.
    done: AtomicU64,
    largest: Lock<Option<Unmanaged>, LARGEST_UNMANAGED>,
}

impl TreeScans {
    /// All requests so far, if one waits.
    pub(super) fn waiting(&self) -> Option<u64> {
        let requested = self.requested.load(Relaxed);
        (requested > self.done.load(Relaxed)).then_some(requested)
    }

    /// Notes that a scan has answered so many requests.
    pub(super) fn answer(&self, requests: u64) {
        self.done.store(requests, Release);
    }

    pub(super) fn note_largest(&self, largest: Option<Unmanaged>) {
        *self.largest.lock() = largest;
    }

    /// The largest unmanaged process, once for each scan.
    pub(crate) fn take_largest(&self) -> Option<Unmanaged> {
        self.largest.lock().take()
    }
}

impl Pager {
    /// Has the tree scanned now, and waits until it was.
    pub(crate) fn scan_tree(&self) {
        let TreeScans { requested, done, .. } = &self.tree;
        let number = requested.fetch_add(1, Relaxed) + 1;
        self.wakers.tree.wake();
        wait_while(|| done.load(Acquire) < number);
    }

    /// Waits until the fault server has seen the end of a process that has written a core file: it
    /// reads in /proc that there is one.
    pub(crate) fn await_end_of_space(&self, pid: u32) {
        let is_it = |space: &SpaceHandle| lock(space).process.pid() == Some(pid);
        wait_while(|| self.spaces().iter().any(is_it));
    }
}

/// Waits as long as this is so, for some time at most.
fn wait_while(is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while is_so() && since.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Ends a process, of which this thread has the memory. Ends all other processes of the run that
/// have it, too: the memory stays as long as one of them.
pub(crate) fn end_with_memory(pager: &Pager, peer: &Peer, thread: u32) {
    let has_it = |other: u32| process::compare_memory(other, thread).is_ok_and(Ordering::is_eq);
    let is_its_own = || threads(peer.pid()).is_ok_and(|mut own| own.any(has_it));
    if peer.is_alive() && is_its_own() {
        for pid in processes(pager).into_iter().filter(|pid| *pid != peer.pid()) {
            // A process that has its number by then is not ended: it is asked once more.
            let is_it = || thread_and_program_of(pid).is_some_and(|(thread, _)| has_it(thread));
            if is_it()
                && let Some(other) = Peer::open(pid).filter(|_| is_it())
            {
                other.kill();
            }
        }
    }
    peer.kill();
}

/// Waits until a process that was killed has no memory any more; for a moment at most, as the
/// kernel may keep it from ending.
pub(crate) fn await_end(thread: u32) {
    wait_while(|| size_of(thread).is_some_and(|size| size.mapped > 0));
}

/// Bytes of the kernel's page tables of all managed programs.
pub(crate) fn page_table_bytes(pager: &Pager) -> u64 {
    helpers(pager).filter_map(|(_, thread)| page_table_bytes_of(thread)).sum()
}

/// Processes with a helper, and that thread.
pub(super) fn helpers(pager: &Pager) -> impl Iterator<Item = (u32, u32)> {
    pager.spaces().into_iter().filter_map(|space| {
        let space = lock(&space);
        Some((space.process.pid()?, space.process.thread()?))
    })
}

/// All processes below this one that are not its own.
pub(crate) fn processes(pager: &Pager) -> Vec<u32> {
    let guard = pager.guard_pid();
    let mut processes = below(std::process::id());
    processes.retain(|pid| Some(*pid) != guard);
    processes
}

/// All processes below one.
fn below(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        at += 1;
        found.extend(children_of(pid));
    }
    found.remove(0);
    found
}
