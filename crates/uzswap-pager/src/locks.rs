//! The locks of the pager, and their order.
//!
//! A thread that holds a lock may take those below it in this list, and none above it:
//!
//! ```text
//!  fault server      the state of the fault server's workers
//!  samples           one sample at a time, or a survey that counts
//!  patience          how long the evictor waits for helpers
//!  events            one address space: what the program does is read, or memory is registered
//!  address space     one address space; two of them under the fault server's lock only
//!  outsiders         unmanaged members of fork groups
//!  leaves            each guards one structure for a moment, in the order below
//! ```
//!
//! Debug builds check the order at each lock that may wait. A thread of release builds pays for
//! neither ranks nor checks. The entrance of the fault server has two more locks, which a thread
//! takes alone.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// The place of a lock in the order: a thread takes locks of rising ranks.
pub(crate) type Rank = usize;

pub(crate) const FAULT_SERVER: Rank = 0;
pub(crate) const SAMPLES: Rank = 1;
pub(crate) const PATIENCE: Rank = 2;
pub(crate) const EVENTS: Rank = 3;
pub(crate) const ADDRESS_SPACE: Rank = 4;
pub(crate) const OUTSIDERS: Rank = 5;
pub(crate) const UNMANAGED_BYTES: Rank = 6;
pub(crate) const LARGEST_UNMANAGED: Rank = 7;
pub(crate) const SPACES: Rank = 8;
pub(crate) const SCAN_QUEUE: Rank = 9;
pub(crate) const HELPER: Rank = 10;
pub(crate) const READ_QUEUE: Rank = 11;
pub(crate) const WRITE_BACK: Rank = 12;
pub(crate) const WRITE_ERROR: Rank = 13;
pub(crate) const SLOTS: Rank = 14;
pub(crate) const RELEASE_QUEUE: Rank = 15;
pub(crate) const FAULT_TIMES: Rank = 16;
pub(crate) const RAISED_THREADS: Rank = 17;
pub(crate) const WAKER: Rank = 18;
pub(crate) const SLOW_CLOSES: Rank = 19;
pub(crate) const MESSAGES: Rank = 20;

/// The locks by rank.
#[cfg(debug_assertions)]
const NAMES: [&str; MESSAGES + 1] = [
    "fault server",
    "samples",
    "patience",
    "events",
    "address space",
    "outsiders",
    "unmanaged bytes",
    "largest unmanaged",
    "address spaces",
    "scan queue",
    "helper",
    "read queue",
    "write-back",
    "write error",
    "slots",
    "release queue",
    "fault times",
    "raised threads",
    "waker",
    "slow closes",
    "messages",
];

/// Checks in debug builds that this thread has no lock: it begins work that no other may wait for.
#[inline]
pub(crate) fn check_none_is_held() {
    #[cfg(debug_assertions)]
    order::check_none();
}

/// A mutex with a place in the order. A panic of a thread that holds one ends the run, so that no
/// other thread asks whether it is poisoned.
#[derive(Debug, Default)]
pub(crate) struct Lock<T, const RANK: Rank>(Mutex<T>);

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct Guard<'a, T, const RANK: Rank> {
    guard: MutexGuard<'a, T>, // unlocked first: fields are dropped in this order
    held: Held<RANK>,
}

impl<T, const RANK: Rank> Lock<T, RANK> {
    pub(crate) const fn new(value: T) -> Self {
        Lock(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> Guard<'_, T, RANK> {
        self.check_order();
        self.held(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lock, if no thread holds it. This waits for no thread, so any order is right.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T, RANK>> {
        match self.0.try_lock() {
            Ok(guard) => Some(self.held(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.held(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether a thread that held the lock has failed.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.0.is_poisoned()
    }

    /// Checks that this thread may wait for the lock.
    #[inline]
    pub(crate) fn check_order(&self) {
        #[cfg(debug_assertions)]
        order::check(RANK, self.address());
    }

    fn held<'a>(&self, guard: MutexGuard<'a, T>) -> Guard<'a, T, RANK> {
        Guard { guard, held: Held::new(self.address()) }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl<T, const RANK: Rank> Guard<'_, T, RANK> {
    /// Waits until another thread notifies, without the lock meanwhile.
    pub(crate) fn wait(self, changed: &Condvar) -> Self {
        let Guard { guard, held } = self;
        Guard { guard: changed.wait(guard).unwrap_or_else(PoisonError::into_inner), held }
    }

    /// The same for so long at most.
    pub(crate) fn wait_timeout(self, changed: &Condvar, timeout: Duration) -> Self {
        let Guard { guard, held } = self;
        let waited = changed.wait_timeout(guard, timeout);
        Guard { guard: waited.unwrap_or_else(PoisonError::into_inner).0, held }
    }
}

impl<T, const RANK: Rank> Deref for Guard<'_, T, RANK> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const RANK: Rank> DerefMut for Guard<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// The entry of a held lock in the list of its thread.
#[derive(Debug)]
struct Held<const RANK: Rank> {
    #[cfg(debug_assertions)]
    address: usize,
}

#[cfg(not(debug_assertions))]
impl<const RANK: Rank> Held<RANK> {
    fn new(_: usize) -> Self {
        Held {}
    }
}

#[cfg(debug_assertions)]
impl<const RANK: Rank> Held<RANK> {
    fn new(address: usize) -> Self {
        order::push(RANK, address);
        Held { address }
    }
}

#[cfg(debug_assertions)]
impl<const RANK: Rank> Drop for Held<RANK> {
    fn drop(&mut self) {
        order::remove(RANK, self.address);
    }
}

/// The locks that each thread holds, with their addresses.
#[cfg(debug_assertions)]
mod order {
    use std::cell::RefCell;

    use super::{ADDRESS_SPACE, FAULT_SERVER, NAMES, Rank};

    thread_local! {
        static HELD: RefCell<Vec<(Rank, usize)>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn check(rank: Rank, address: usize) {
        let wrong = HELD.with_borrow(|held| {
            // Only one thread at a time holds two address spaces: no other waits for a second.
            let may_be_second =
                rank == ADDRESS_SPACE && held.iter().any(|&(rank, _)| rank == FAULT_SERVER);
            let is_right = |&(other, at): &(Rank, usize)| {
                other < rank || other == rank && may_be_second && at != address
            };
            held.iter().find(|held| !is_right(held)).map(|&(other, _)| other)
        });
        if let Some(other) = wrong
            && !std::thread::panicking()
        {
            panic!("the lock \"{}\" is taken under \"{}\"", NAMES[rank], NAMES[other]);
        }
    }

    pub(super) fn check_none() {
        if let Some(&(rank, _)) = HELD.with_borrow(|held| held.first().copied()).as_ref()
            && !std::thread::panicking()
        {
            panic!("the lock \"{}\" is held through work that takes longer", NAMES[rank]);
        }
    }

    pub(super) fn push(rank: Rank, address: usize) {
        HELD.with_borrow_mut(|held| held.push((rank, address)));
    }

    pub(super) fn remove(rank: Rank, address: usize) {
        HELD.with_borrow_mut(|held| {
            if let Some(at) = held.iter().rposition(|&it| it == (rank, address)) {
                held.remove(at);
            }
        });
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    type Space = Lock<u32, ADDRESS_SPACE>;

    /// The message of the panic of an order that is wrong.
    fn refused(take: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(take)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn locks_are_taken_in_their_order_alone() {
        let (samples, space) = (Lock::<u32, SAMPLES>::new(1), Space::new(2));
        let slots = Lock::<u32, SLOTS>::new(3);
        let first = samples.lock();
        let second = space.lock();
        assert_eq!(*first + *second + *slots.lock(), 6);
        drop(first); // in any order
        let held = slots.lock();
        drop(second);
        let wrong = refused(|| drop(space.lock()));
        assert_eq!(wrong, "the lock \"address space\" is taken under \"slots\"");
        drop(space.try_lock().unwrap()); // waits for no thread
        drop(held);
        drop(space.lock());
    }

    #[test]
    fn the_fault_server_alone_holds_two_address_spaces() {
        let server = Lock::<(), FAULT_SERVER>::new(());
        let [parent, child] = [Space::new(1), Space::new(2)];
        let held = parent.lock();
        let wrong = refused(|| drop(child.lock()));
        assert_eq!(wrong, "the lock \"address space\" is taken under \"address space\"");
        drop(held);
        let _server = server.lock();
        let _held = parent.lock();
        drop(child.lock());
        let again = refused(|| drop(parent.lock()));
        assert_eq!(again, wrong, "the same one never");
    }

    #[test]
    fn longer_work_is_refused_under_any_lock() {
        let slots = Lock::<u32, SLOTS>::new(3);
        check_none_is_held();
        let held = slots.lock();
        let wrong = refused(check_none_is_held);
        assert_eq!(wrong, "the lock \"slots\" is held through work that takes longer");
        drop(held);
        check_none_is_held();
    }

    #[test]
    fn a_thread_that_waits_holds_the_lock_again_afterwards() {
        let (lock, changed) = (Lock::<u32, SLOTS>::new(0), Condvar::new());
        std::thread::scope(|scope| {
            let mut held = lock.lock();
            scope.spawn(|| {
                *lock.lock() += 1;
                changed.notify_one();
            });
            while *held == 0 {
                held = held.wait(&changed);
            }
            held = held.wait_timeout(&changed, Duration::ZERO);
            assert_eq!(*held, 1);
            refused(|| drop(lock.lock()));
        });
        drop(lock.lock());
    }
}
