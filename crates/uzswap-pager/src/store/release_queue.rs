//! Slots whose pages are gone. The evictor frees their memory: a thread that waits for a page does
//! not wait for that, nor does the sampler.

use crate::locks::{Lock, RELEASE_QUEUE};

/// Released slots that are not freed yet.
#[derive(Debug, Default)]
pub(crate) struct ReleaseQueue(Lock<Vec<u32>, RELEASE_QUEUE>);

impl ReleaseQueue {
    pub(crate) fn extend(&self, slots: impl IntoIterator<Item = u32>) {
        self.0.lock().extend(slots);
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// A copy, for an audit.
    pub(crate) fn slots(&self) -> Vec<u32> {
        self.0.lock().clone()
    }

    pub(crate) fn take(&self) -> Vec<u32> {
        std::mem::take(&mut *self.0.lock())
    }
}
