//! Staged pages: incompressible pages that wait in the pool, as they are, for a batch to the
//! backing.
//!
//! ```text
//!  does not shrink -> put into the pool as it is -> off its list, marked -> queue -> next batch
//!                                                      (shard lock)
//! ```
//!
//! For other code, the writeback of a staged page has begun: it is loaded from the pool, and its
//! place in the queue is stale once it was replaced or removed. The queue holds two batches. When
//! there is one in it the shrinker is called; a store that finds two writes one itself.

use std::collections::{TryReserveError, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::batch::{BATCH_PAGES, Batch};
use super::entry::Held;
use super::shard::Victim;
use super::tenant_id::TenantNumber;
use super::writeback::Shrunk;
use super::{Zswap, with_scratch};
use crate::page::{PAGE_SIZE, Page, PageKey};

/// A batch of staged pages is at most one in so many of the pool's: it is for those that shrink.
const POOL_PART: u64 = 16;

/// The queue. Without a backing it has no place for any page.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    queue: Mutex<VecDeque<Victim>>,
    /// Pages of a batch; 0 where the pool is too small for any.
    batch: usize,
}

impl WriteQueue {
    /// An empty queue, for a pool of at most so many bytes.
    pub(super) fn new(pool_bytes_max: u64) -> Result<WriteQueue, TryReserveError> {
        let most = pool_bytes_max / (PAGE_SIZE as u64 * POOL_PART);
        let batch = most.min(BATCH_PAGES as u64) as usize;
        let mut queue = VecDeque::new();
        queue.try_reserve_exact(2 * batch)?;
        Ok(WriteQueue { queue: Mutex::new(queue), batch })
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Victim>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self) -> bool {
        self.queue().len() >= 2 * self.batch
    }

    /// Appends a page; how many there are now. `None` where the queue is full.
    fn push(&self, victim: Victim) -> Option<usize> {
        let mut queue = self.queue();
        if queue.len() >= 2 * self.batch {
            return None;
        }
        queue.push_back(victim);
        Some(queue.len())
    }

    /// Takes the oldest `most` pages that `belongs` says yes to.
    fn take(&self, most: usize, belongs: impl Fn(&Victim) -> bool, mut to: impl FnMut(Victim)) {
        let mut queue = self.queue();
        let mut left = most;
        queue.retain(|victim| {
            let taken = left > 0 && belongs(victim);
            if taken {
                left -= 1;
                to(*victim);
            }
            !taken
        });
    }

    /// Entries of the queue, including stale ones.
    pub(super) fn to_vec(&self) -> Vec<Victim> {
        self.queue().iter().copied().collect()
    }

    pub(super) fn bytes(&self) -> usize {
        2 * self.batch * size_of::<Victim>()
    }
}

impl Zswap {
    /// Puts a page that does not shrink into the pool as it is; [`Zswap::stage`] is next. `None`
    /// where the pool cannot have it.
    pub(super) fn keep_until_written(
        &self,
        tenant: TenantNumber,
        key: PageKey,
        page: &Page,
    ) -> Option<Held> {
        let bytes = self.options.object_header_bytes + PAGE_SIZE;
        if self.write_queue.batch == 0 || bytes > self.zpool.object_size_max() {
            return None;
        }
        if self.write_queue.is_full() {
            self.write_staged();
        }
        let reclaim = || self.drop_stale(key) || self.make_room();
        let held = with_scratch(|scratch| {
            let packed = scratch.pack_page(page);
            self.insert_packed(tenant, key, packed, scratch, reclaim).ok()
        })?;
        self.shards.of(key).lock().counters.staged_pages += 1;
        Some(held)
    }

    /// Hands a page that was put in to the next batch. Where others filled the queue meanwhile it
    /// stays on its list.
    pub(super) fn stage(&self, key: PageKey, held: Held) {
        let mut shard = self.shards.of(key).lock();
        let Some(victim) = shard.take_listed(key, held) else { return };
        match self.write_queue.push(victim) {
            Some(count) if count >= self.write_queue.batch => self.hysteresis.wake(),
            Some(_) => {}
            None => shard.end_writing(victim.entry),
        }
    }

    /// Takes staged pages of `scope` into a batch, oldest first, `pages` at most; how many left the
    /// queue. Stale ones are forgotten, and those that may not be written any more stay in the
    /// pool.
    pub(super) fn gather_staged(
        &self,
        batch: &mut Batch,
        scope: TenantNumber,
        pages: usize,
    ) -> usize {
        let Some(order) = &self.order else { return 0 };
        let belongs = |victim: &Victim| order.tenants.is_below(victim.held.tenant, scope);
        self.write_queue.take(pages, belongs, |victim| batch.add(victim));
        let taken = batch.pages.len();
        batch.pages.retain(|page| {
            let victim = page.victim;
            let mut shard = self.shards.of(victim.key).lock();
            // Its tenant may have been removed since: it is of the one above now.
            let Some(held) = shard.current(victim.entry) else { return false };
            let may_leave = order.tenants.may_write_back(held.tenant);
            if !may_leave {
                shard.end_writing(victim.entry);
            }
            may_leave
        });
        taken
    }

    /// Writes one batch of staged pages; how many left the queue.
    pub(super) fn write_staged(&self) -> usize {
        let Some(tier) = &self.tier else { return 0 };
        let mut batch = tier.batch();
        let taken = self.gather_staged(&mut batch, TenantNumber::ROOT, tier.batch_pages());
        self.write_batch(tier, &mut batch, &mut Shrunk::default());
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_takes_the_memory_of_its_places() {
        for (pool_pages, places) in [(0, 0), (16, 2), (160, 20), (1 << 40, 2 * BATCH_PAGES)] {
            let queue = WriteQueue::new(pool_pages * PAGE_SIZE as u64).unwrap();
            assert_eq!(queue.queue().capacity(), places);
            assert_eq!(queue.bytes(), places * size_of::<Victim>());
        }
    }
}
