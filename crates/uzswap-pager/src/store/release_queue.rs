//! Slots whose pages are gone. The evictor frees their memory: a thread that waits for a page does
//! not wait for that, nor does the sampler.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Released slots that are not freed yet.
#[derive(Debug, Default)]
pub(crate) struct ReleaseQueue(Mutex<Vec<u32>>);

impl ReleaseQueue {
    pub(crate) fn extend(&self, slots: impl IntoIterator<Item = u32>) {
        self.lock().extend(slots);
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn take(&self) -> Vec<u32> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
