//! How the supervisor's threads run beside others: turns, raised threads, and their share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::sched::priority::AllTurns;
use crate::sched::raised::RaisedThreads;

/// The scheduling of the supervisor's threads.
#[derive(Debug)]
pub(crate) struct Priorities {
    /// Turns of the fault server's workers.
    pub(crate) turns: Arc<AllTurns>,
    /// Threads with raised priority.
    pub(crate) raised: RaisedThreads,
    /// Percent of the processors that these threads may take while others wait.
    pub(crate) share_percent: u8,
    /// Time at ordinary priority for lack of credit, in ns.
    ordinary_ns: AtomicU64,
    /// Threads of other users of the machine kept the processors busy at the last sample.
    is_beside_others: AtomicBool,
}

impl Priorities {
    pub(crate) fn new(workers: usize, share_percent: u8) -> Priorities {
        Priorities {
            turns: Arc::new(AllTurns::of(workers)),
            raised: RaisedThreads::new(),
            share_percent,
            ordinary_ns: AtomicU64::new(0),
            is_beside_others: AtomicBool::new(false),
        }
    }

    /// Raises the threads, or lets them run at ordinary priority.
    pub(crate) fn set_raised(&self, is_raised: bool) {
        self.turns.let_go_first(is_raised);
        self.raised.set_raised(is_raised);
    }

    /// How long the threads ran at ordinary priority, in ns.
    pub(crate) fn ordinary_ns(&self) -> u64 {
        self.ordinary_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn note_ordinary(&self, time: Duration) {
        self.ordinary_ns.store(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn is_beside_others(&self) -> bool {
        self.is_beside_others.load(Ordering::Relaxed)
    }

    pub(crate) fn note_others(&self, are_busy: bool) {
        self.is_beside_others.store(are_busy, Ordering::Relaxed);
    }
}
