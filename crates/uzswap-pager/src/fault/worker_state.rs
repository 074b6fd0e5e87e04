//! The state of one worker, which it has without the server's lock.

use std::sync::Arc;

use super::FaultServer;
use super::wake_ups::WakeUps;
use crate::locks::{FAULT_SERVER, Guard};
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
    pub(super) wake_ups: WakeUps,
}

impl WorkerState {
    /// Releases the lock of the server, and then wakes the threads whose pages were filled: they
    /// may run before the worker goes on.
    pub(super) fn wake(&mut self, mut server: Guard<'_, FaultServer, FAULT_SERVER>) {
        std::mem::swap(&mut self.wake_ups, &mut server.wake_ups);
        // A wake-up of threads that wait for headroom would be useless.
        let may_join = server.waiting.is_empty();
        drop(server);
        if self.wake_ups.is_empty() {
            return;
        }
        if may_join {
            self.wake_ups.join();
        }
        if self.wake_ups.count() > 1 {
            self.affinity.leave(); // the first of them would run before the second is woken
        }
        self.affinity.give_way();
        self.wake_ups.wake();
    }
}
