//! A space that the supervisor's threads share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::space::Space;
use super::turns::Turns;

/// How long a lock is tried before it is slept for: a fault is served in less. And pauses of the
/// processor between two tries.
const SOON: Duration = Duration::from_micros(20);
const TRIES_EVERY: u32 = 8;

/// A space, its lock, and another for what takes longer than anybody may be kept from the space.
#[derive(Debug)]
pub(super) struct SharedSpace {
    space: Mutex<Space>,
    /// Held while what the program does is read and noted, and while its memory is registered.
    events: Mutex<()>,
    turns: Arc<Turns>,
}

pub(super) type SpaceLock = Arc<SharedSpace>;

impl SharedSpace {
    pub(super) fn new(space: Space, turns: Arc<Turns>) -> SpaceLock {
        Arc::new(SharedSpace { space: Mutex::new(space), events: Mutex::new(()), turns })
    }

    /// The space, if nobody has it locked.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Space>> {
        try_lock(&self.space)
    }

    /// Keeps the server from reading what the program does. To be locked before the space.
    pub(super) fn lock_events(&self) -> MutexGuard<'_, ()> {
        self.lock_one(&self.events)
    }

    /// Likewise by the server itself, if nobody else does.
    pub(super) fn try_lock_events(&self) -> Option<MutexGuard<'_, ()>> {
        try_lock(&self.events)
    }

    fn lock_one<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        let locked = try_lock(mutex).or_else(|| lock_soon(mutex)).unwrap_or_else(|| {
            // The server may have it, and run when nobody else would.
            let _waits = self.turns.wait();
            mutex.lock().unwrap_or_else(PoisonError::into_inner)
        });
        self.turns.has_locked();
        locked
    }
}

/// Locks a space. A panic in another thread ends the run, and everything with it.
pub(super) fn lock(space: &SpaceLock) -> MutexGuard<'_, Space> {
    space.lock_one(&space.space)
}

/// Locks what is free in a moment, as most is: to sleep and to be woken takes longer.
fn lock_soon<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let start = Instant::now();
    while start.elapsed() < SOON {
        (0..TRIES_EVERY).for_each(|_| std::hint::spin_loop());
        if let Some(locked) = try_lock(mutex) {
            return Some(locked);
        }
    }
    None
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(locked) => Some(locked),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
