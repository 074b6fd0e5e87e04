//! An address space that the supervisor's threads share.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::address_space::AddressSpace;
use crate::locks::{ADDRESS_SPACE, EVENTS, Guard, Lock};
use crate::sched::priority::AllTurns;
use crate::store::release_queue::ReleaseQueue;

/// An address space, its lock, and another for what takes longer than anybody may be kept from the
/// address space.
#[derive(Debug)]
pub(crate) struct SharedAddressSpace {
    space: Lock<AddressSpace, ADDRESS_SPACE>,
    /// Held while what the program does is read and noted, and while its memory is registered.
    events: Lock<(), EVENTS>,
    turns: Arc<AllTurns>,
    releases: Arc<ReleaseQueue>,
}

pub(crate) type SpaceHandle = Arc<SharedAddressSpace>;

impl SharedAddressSpace {
    pub(crate) fn new(
        space: AddressSpace,
        turns: Arc<AllTurns>,
        releases: Arc<ReleaseQueue>,
    ) -> SpaceHandle {
        let (space, events) = (Lock::new(space), Lock::new(()));
        Arc::new(SharedAddressSpace { space, events, turns, releases })
    }

    /// One of tests, which nobody else locks.
    #[cfg(test)]
    pub(crate) fn alone(space: AddressSpace) -> SpaceHandle {
        SharedAddressSpace::new(space, Arc::new(AllTurns::of(1)), Arc::default())
    }

    fn locked<'a>(&'a self, space: Guard<'a, AddressSpace, ADDRESS_SPACE>) -> Locked<'a> {
        Locked { space, released: Released { slots: Vec::new(), queue: &self.releases } }
    }

    /// Keeps the server from reading what the program does. To be locked before the space.
    pub(crate) fn lock_events(&self) -> Guard<'_, (), EVENTS> {
        self.turns.lock(&self.events)
    }

    /// The same for the server itself, if nobody else has that lock.
    pub(crate) fn try_lock_events(&self) -> Option<Guard<'_, (), EVENTS>> {
        self.events.try_lock()
    }
}

/// Locks an address space.
pub(crate) fn lock(space: &SpaceHandle) -> Locked<'_> {
    space.locked(space.turns.lock(&space.space))
}

/// Locks an address space, if nobody else has it.
pub(crate) fn try_lock(space: &SpaceHandle) -> Option<Locked<'_>> {
    Some(space.locked(space.space.try_lock()?))
}

/// A locked address space. The slots that it has released go to the queue once it is unlocked.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    // Unlocked first: fields are dropped in this order.
    space: Guard<'a, AddressSpace, ADDRESS_SPACE>,
    released: Released<'a>,
}

impl Deref for Locked<'_> {
    type Target = AddressSpace;

    fn deref(&self) -> &AddressSpace {
        &self.space
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut AddressSpace {
        &mut self.space
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.released.slots = self.space.layout.take_released();
    }
}

#[derive(Debug)]
struct Released<'a> {
    slots: Vec<u32>,
    queue: &'a ReleaseQueue,
}

impl Drop for Released<'_> {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            self.queue.extend(self.slots.drain(..));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_table::{Entry, Place, UNKNOWN};

    #[test]
    fn released_slots_are_in_the_queue_once_the_space_is_unlocked() {
        let releases = Arc::new(ReleaseQueue::default());
        let turns = Arc::new(AllTurns::of(1));
        let space =
            SharedAddressSpace::new(AddressSpace::of_nothing(), turns, Arc::clone(&releases));
        let mut locked = lock(&space);
        for page in 1..4 {
            locked.table.set(page, Entry { place: Place::Stored(page as u32), ..UNKNOWN });
        }
        locked.forget_all();
        assert_eq!(releases.len(), 0);
        drop(locked);
        assert_eq!(releases.take(), [1, 2, 3]);
        drop(lock(&space));
        assert_eq!(releases.len(), 0);
    }
}
