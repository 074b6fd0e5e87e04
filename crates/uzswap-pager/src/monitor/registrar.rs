//! The registrars: threads that scan the mappings of programs and register new memory.
//!
//! A registration takes the lock of a program's mappings. A preempted thread may hold that lock
//! for some milliseconds while other programs grow. So there are two registrars, and no other
//! thread waits for them.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::address_space::{AddressSpace, ScanReason, register};
use crate::locks::{Lock, SCAN_QUEUE};
use crate::program::procfs::Size;
use crate::{Pager, SpaceHandle, lock};
use uzswap_sys::process;

/// While one registrar waits, the other goes on.
const REGISTRARS: usize = 2;

/// How often the mappings of a program that does not grow are scanned, about.
const SCAN_EVERY: Duration = Duration::from_millis(20);

/// All scans together take this part of a processor at most, and scans of one program half of it;
/// `AT_ONCE` may be saved up. The parts count while programs grow unobserved, and otherwise.
const PART_WHILE_GROWING: u32 = 1;
const PART_ELSE: u32 = 4;
const AT_ONCE: Duration = Duration::from_millis(5);

/// From this expectation on, in bytes, programs count as growing.
const GROWING_BYTES: u64 = 1 << 20;

fn part(unobserved_bytes: u64) -> u32 {
    if unobserved_bytes >= GROWING_BYTES { PART_WHILE_GROWING } else { PART_ELSE }
}

/// Address spaces to scan, in turn.
#[derive(Debug, Default)]
pub(crate) struct ScanQueue {
    state: Lock<State, SCAN_QUEUE>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    spaces: VecDeque<SpaceHandle>,
    /// When the scans so far have used up their share.
    used_up_to: Option<Instant>,
    is_over: bool,
}

impl ScanQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().spaces.is_empty()
    }

    /// Adds those that are due.
    pub(crate) fn add(&self, due: Due) {
        for space in due.grown.into_iter().chain(due.longest.map(|(_, space)| space)) {
            lock(&space).registration.scans().await_one();
            self.state.lock().spaces.push_back(space);
            self.changed.notify_one();
        }
    }

    /// No process is scanned any more.
    pub(crate) fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Waits for one; `None` at the end.
    fn next(&self) -> Option<SpaceHandle> {
        let mut state = self.state.lock();
        loop {
            if state.is_over {
                return None;
            }
            let left = state.used_up_to.map_or(Duration::ZERO, |until| until - Instant::now());
            let most = Duration::from_secs(1);
            let pause = if state.spaces.is_empty() { most } else { left };
            if pause.is_zero() {
                return state.spaces.pop_front();
            }
            state = state.wait_timeout(&self.changed, pause);
        }
    }

    /// Notes the processor time of a scan; scans may take one part in so many.
    fn note_time(&self, took: Duration, part: u32) {
        let earliest = Instant::now() - AT_ONCE * part;
        let mut state = self.state.lock();
        let from = state.used_up_to.map_or(earliest, |until| until.max(earliest));
        state.used_up_to = Some(from + took * part);
    }
}

/// Address spaces due for a scan: all that grew, and the one that was not scanned for longest.
/// Memory that comes and goes may leave the size as it is.
#[derive(Debug)]
pub(crate) struct Due {
    part: u32,
    grown: Vec<SpaceHandle>,
    longest: Option<(Duration, SpaceHandle)>,
}

impl Due {
    /// An empty list, while so many bytes of unobserved growth are expected.
    pub(crate) fn new(unobserved_bytes: u64) -> Due {
        Due { part: part(unobserved_bytes), grown: Vec::new(), longest: None }
    }

    /// One, which has this size.
    pub(crate) fn see(&mut self, space: &SpaceHandle, locked: &mut AddressSpace, size: Size) {
        match locked.registration.scans().due(size, self.part * 2) {
            None => {}
            Some(ScanReason::Grown) => self.grown.push(Arc::clone(space)),
            Some(ScanReason::After(time)) => {
                let longest = self.longest.as_ref().map_or(SCAN_EVERY, |(longest, _)| *longest);
                if time >= longest {
                    self.longest = Some((time, Arc::clone(space)));
                }
            }
        }
    }
}

/// Starts them.
pub(crate) fn start(pager: &Arc<Pager>) -> io::Result<Vec<JoinHandle<()>>> {
    let work = |pager: Arc<Pager>| {
        process::prefer_this_thread();
        while let Some(space) = pager.to_scan.next() {
            let before = process::thread_time();
            // The connection of the helper reports the end of its program.
            let _ = register(&space);
            let took = process::thread_time() - before;
            lock(&space).registration.scans().end(took);
            pager.to_scan.note_time(took, part(pager.account.unobserved_bytes()));
        }
    };
    let start = |_| {
        let pager = Arc::clone(pager);
        thread::Builder::new().name("uzswap-register".to_owned()).spawn(move || work(pager))
    };
    (0..REGISTRARS).map(start).collect()
}
