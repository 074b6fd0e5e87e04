//! Faults that wait: for headroom, or for the file behind the pool.

use super::page_fault::Fault;
use super::touch::Touch;
use crate::SpaceHandle;

/// Faults that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    faults: Vec<Fault>,
    /// A worker has taken them, and tries them.
    are_tried: bool,
    /// Headroom or a page came while they were tried.
    is_due: bool,
}

impl Waiting {
    /// Whether none waits, and none is tried.
    pub(super) fn is_empty(&self) -> bool {
        self.faults.is_empty() && !self.are_tried
    }

    /// Takes them with their spaces, to try them again, without faults of removed spaces. Where
    /// another worker tries them, it does so once more.
    pub(super) fn take(
        &mut self,
        space: impl Fn(u32) -> Option<SpaceHandle>,
    ) -> Vec<(Fault, SpaceHandle)> {
        if self.are_tried {
            self.is_due = true;
            return Vec::new();
        }
        let with_space = |fault: Fault| {
            let space = space(fault.space())?;
            Some((fault, space))
        };
        let faults = std::mem::take(&mut self.faults);
        let taken: Vec<_> = faults.into_iter().filter_map(with_space).collect();
        self.are_tried = !taken.is_empty();
        taken
    }

    /// Has those wait again that were not served. Whether the worker must try them once more.
    pub(super) fn put_back(&mut self, faults: Vec<Fault>) -> bool {
        self.are_tried = false;
        self.add(faults);
        std::mem::take(&mut self.is_due) && !self.is_empty()
    }

    /// Has faults wait.
    pub(super) fn add(&mut self, faults: Vec<Fault>) {
        for fault in faults {
            if !self.has(fault.space(), fault.touch()) {
                self.faults.push(fault);
            }
        }
    }

    /// Whether this fault waits already: a signal has come, and the thread reports it again.
    pub(super) fn has(&self, space: u32, touch: &Touch) -> bool {
        self.faults.iter().any(|fault| fault.is(space, touch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address_space::AddressSpace;
    use crate::address_space::handle::SharedAddressSpace;
    use crate::fault::touch::Access;
    use std::time::Instant;

    fn touch(thread: u32) -> Touch {
        Touch { thread, address: 4096, access: Access::Read, poisonings: 0 }
    }

    fn fault(thread: u32) -> Fault {
        Fault::new(7, touch(thread), false, Instant::now(), 0)
    }

    #[test]
    fn a_fault_that_is_reported_again_waits_once() {
        let mut waiting = Waiting::default();
        waiting.add(vec![fault(1), fault(2), fault(1)]);
        assert_eq!(waiting.faults.len(), 2);
        assert!(waiting.has(7, &touch(2)) && !waiting.has(7, &touch(3)));
        waiting.add(vec![fault(2)]);
        assert_eq!(waiting.faults.len(), 2);
    }

    #[test]
    fn faults_are_tried_once_more_if_they_were_due_meanwhile() {
        let space = SharedAddressSpace::alone(AddressSpace::of_nothing());
        let mut waiting = Waiting::default();
        waiting.add(vec![fault(1), fault(2)]);
        let find = |id| (id == 7).then(|| space.clone());
        let mut taken = waiting.take(find);
        assert_eq!((taken.len(), waiting.is_empty()), (2, false));
        assert!(waiting.take(find).is_empty(), "another worker tries them");
        taken.truncate(1);
        assert!(waiting.put_back(taken.into_iter().map(|(fault, _)| fault).collect()));
        let taken = waiting.take(find);
        assert_eq!(taken.len(), 1);
        assert!(!waiting.put_back(taken.into_iter().map(|(fault, _)| fault).collect()));
        assert_eq!(waiting.take(|_| None).len(), 0, "the space was removed");
        assert!(waiting.is_empty());
    }
}
