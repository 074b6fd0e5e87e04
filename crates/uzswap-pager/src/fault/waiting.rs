//! Faults that wait: for headroom, or for the file behind the pool.

use super::page_fault::{Fault, Touch};
use super::spaces::Spaces;
use crate::SpaceHandle;

/// Faults that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting(Vec<Fault>);

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes them, to be served again, with their spaces. Those of removed spaces are left out.
    pub(super) fn take(&mut self, spaces: &Spaces) -> Vec<(Fault, SpaceHandle)> {
        let with_space = |fault: Fault| {
            let space = spaces.get(fault.space())?.clone();
            Some((fault, space))
        };
        std::mem::take(&mut self.0).into_iter().filter_map(with_space).collect()
    }

    /// Has faults wait.
    pub(super) fn add(&mut self, faults: Vec<Fault>) {
        for fault in faults {
            if !self.has(fault.space(), fault.touch()) {
                self.0.push(fault);
            }
        }
    }

    /// Whether this fault waits already: a signal has come, and the thread reports it again.
    pub(super) fn has(&self, space: u32, touch: &Touch) -> bool {
        self.0.iter().any(|fault| fault.is(space, touch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::page_fault::Access;
    use std::time::Instant;

    #[test]
    fn a_fault_that_is_reported_again_waits_once() {
        let touch = |thread| Touch { thread, address: 4096, access: Access::Read };
        let fault = |thread| Fault::new(7, touch(thread), false, Instant::now(), 0);
        let mut waiting = Waiting::default();
        waiting.add(vec![fault(1), fault(2), fault(1)]);
        assert_eq!(waiting.0.len(), 2);
        assert!(waiting.has(7, &touch(2)) && !waiting.has(7, &touch(3)));
        waiting.add(vec![fault(2)]);
        assert_eq!(waiting.0.len(), 2);
    }
}
