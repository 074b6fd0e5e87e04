//! A space that the supervisor's threads share.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::address_space::AddressSpace;
use crate::sched::priority::{AllTurns, try_lock};

/// A space, its lock, and another for what takes longer than anybody may be kept from the space.
#[derive(Debug)]
pub(crate) struct SharedAddressSpace {
    space: Mutex<AddressSpace>,
    /// Held while what the program does is read and noted, and while its memory is registered.
    events: Mutex<()>,
    turns: Arc<AllTurns>,
}

pub(crate) type SpaceHandle = Arc<SharedAddressSpace>;

impl SharedAddressSpace {
    pub(crate) fn new(space: AddressSpace, turns: Arc<AllTurns>) -> SpaceHandle {
        Arc::new(SharedAddressSpace { space: Mutex::new(space), events: Mutex::new(()), turns })
    }

    /// The space, if nobody has it locked.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, AddressSpace>> {
        try_lock(&self.space)
    }

    /// Keeps the server from reading what the program does. To be locked before the space.
    pub(crate) fn lock_events(&self) -> MutexGuard<'_, ()> {
        self.turns.lock(&self.events)
    }

    /// Likewise by the server itself, if nobody else does.
    pub(crate) fn try_lock_events(&self) -> Option<MutexGuard<'_, ()>> {
        try_lock(&self.events)
    }
}

/// Locks a space.
pub(crate) fn lock(space: &SpaceHandle) -> MutexGuard<'_, AddressSpace> {
    space.turns.lock(&space.space)
}
