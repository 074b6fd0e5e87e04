//! The state of one worker, which it has without the server's lock.

use std::sync::Arc;

use super::page_fault::PageServer;
use crate::sched::affinity::Affinity;
use crate::sched::priority::Turns;
use crate::sched::source_mix::SourceMix;

/// The state of one worker.
#[derive(Debug)]
pub(super) struct WorkerState {
    pub(super) number: usize,
    pub(super) affinity: Affinity,
    pub(super) turns: Arc<Turns>,
    /// Address spaces of its last faults.
    pub(super) sources: SourceMix,
    pub(super) pages: PageServer,
}

impl WorkerState {
    /// Wakes the threads whose pages were filled: they may run before the worker goes on. The
    /// caller holds no lock. While threads wait for headroom, ranges may not be joined: to wake
    /// those would be useless.
    pub(super) fn wake(&mut self, may_join: bool) {
        let wake_ups = &mut self.pages.wake_ups;
        if wake_ups.is_empty() {
            return;
        }
        if may_join {
            wake_ups.join();
        }
        if wake_ups.count() > 1 {
            self.affinity.leave(); // the first of them would run before the second is woken
        }
        self.affinity.give_way();
        self.pages.wake_ups.wake();
    }
}
