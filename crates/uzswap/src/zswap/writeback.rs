//! Writeback: moves the coldest pages from the pool to the backing.
//!
//! ```text
//!  coldest of all lists -> off its list, marked -> object pinned, checked -> placed in the batch
//!      (shard lock)                                  (class lock)              (extents lock)
//!                          one write of the batch   (no lock but the batch's)
//!  still the same page? -> it is in the backing now, its object is freed
//!      (shard lock)        used meanwhile? it stays, and has a copy
//! ```
//!
//! Pages that were staged are first in a batch: see [`super::write_queue`].
//!
//! A page that is loaded meanwhile comes from the pool; one that is replaced or invalidated is
//! found to be gone, and its place is given up. Where a write fails the page is back on its list
//! as if nothing had been (S7).

use std::time::Instant;

use super::batch::{BATCH_PAGES, Batch};
use super::entry::{Content, Held, Written};
use super::lru::Coldest;
use super::shard::{Shard, Victim};
use super::tenant_id::{TenantId, TenantNumber};
use super::tier::Tier;
use super::{RECLAIM_PAGES, WrittenAs, Zswap};
use crate::page::{PAGE_SIZE, Page};

/// Pages that are looked at for each one that is wanted, before a search for cold ones gives up.
const LOOKS_PER_PAGE: usize = 32;

/// Result of [`Zswap::shrink`], in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shrunk {
    /// Written to the backing, and out of the pool.
    pub written_back: usize,
    /// Out of the pool without a write: the backing had them still.
    pub dropped_clean: usize,
    /// Back on their list, as they could not be written.
    pub failed: usize,
    /// Not written back, as they were used or removed meanwhile.
    pub kept: usize,
}

impl Shrunk {
    /// Pages that left the pool.
    pub fn pages(&self) -> usize {
        self.written_back + self.dropped_clean
    }

    pub(super) fn add(&mut self, other: Shrunk) {
        self.written_back += other.written_back;
        self.dropped_clean += other.dropped_clean;
        self.failed += other.failed;
        self.kept += other.kept;
    }
}

impl Zswap {
    /// Writes back the `pages` coldest pages, of `tenant` and those below it, or of all. Those of
    /// tenants without writeback stay. Fewer are written where no more are cold, and none without
    /// a backing.
    pub fn shrink(&self, tenant: TenantId, pages: usize) -> Shrunk {
        self.id.enter();
        let mut all = Shrunk::default();
        let Some(tier) = &self.tier else { return all };
        let Some(scope) = self.hold_tenant(tenant) else { return all };
        while all.pages() < pages {
            let batch =
                self.shrink_batch(tier, scope.number, (pages - all.pages()).min(BATCH_PAGES));
            all.add(batch);
            if batch.pages() == 0 {
                break;
            }
        }
        all
    }

    /// Gives free blocks of the backing back to its file system, 64 or more adjacent ones at a
    /// time; how many. Blocks that it does not take stay as they are. A [`Shrinker`] does so at
    /// each of its turns.
    ///
    /// [`Shrinker`]: super::Shrinker
    pub fn discard(&self) -> usize {
        self.id.enter();
        self.discard_until(|| false)
    }

    pub(super) fn discard_until(&self, is_over: impl Fn() -> bool) -> usize {
        let Some(tier) = &self.tier else { return 0 };
        let mut all = 0;
        loop {
            let count = tier.discard();
            all += count;
            if count == 0 || is_over() {
                return all;
            }
        }
    }

    fn shrink_batch(&self, tier: &Tier, tenant: TenantNumber, pages: usize) -> Shrunk {
        let mut batch = tier.batch();
        let mut shrunk = Shrunk::default();
        let pages = pages.min(tier.batch_pages());
        self.gather_staged(&mut batch, tenant, pages);
        self.gather(&mut batch, tenant, pages, &mut shrunk);
        self.write_batch(tier, &mut batch, &mut shrunk);
        shrunk
    }

    /// Writes the pages of a batch: those that were written leave the pool.
    pub(super) fn write_batch(&self, tier: &Tier, batch: &mut Batch, shrunk: &mut Shrunk) {
        if batch.pages.is_empty() {
            return;
        }
        let start = self.options.latencies.then(Instant::now);
        self.free_blocks(tier, batch.pages.len());
        self.fill(tier, batch);
        tier.write(batch);
        for number in 0..batch.pages.len() {
            let victim = batch.pages[number].victim;
            match batch.pages[number].written {
                Some(written) if batch.failure(number).is_none() => {
                    self.finish(tier, victim, written, shrunk);
                }
                placed => {
                    placed.inspect(|&written| tier.release(written));
                    self.put_back(victim, shrunk);
                }
            }
        }
        start.inspect(|start| self.latencies.writeback.record(start.elapsed()));
    }

    /// Takes the coldest pages off their lists. Pages that the backing still has leave at once.
    fn gather(&self, batch: &mut Batch, scope: TenantNumber, pages: usize, shrunk: &mut Shrunk) {
        let Some(order) = &self.order else { return };
        let mut looks = pages * LOOKS_PER_PAGE;
        while looks > 0 && batch.pages.len() + shrunk.dropped_clean < pages {
            let Some(Coldest { shard, tenant, until }) = order.coldest(scope) else { return };
            let mut shard = self.shards.number(shard).lock();
            // Also if nothing is taken: the cold end may be younger than noted.
            looks -= 1;
            while batch.pages.len() + shrunk.dropped_clean < pages {
                let Some(victim) = shard.take_coldest(tenant, until, &mut looks) else { break };
                if victim.held.written.is_some() {
                    self.drop_clean(&mut shard, victim);
                    shrunk.dropped_clean += 1;
                } else {
                    batch.add(victim);
                }
            }
        }
    }

    /// A page whose copy in the backing is there still leaves the pool.
    fn drop_clean(&self, shard: &mut Shard, victim: Victim) {
        let held = Held { content: Content::WrittenBack, checksum: 0, ..victim.held };
        shard.set(victim.entry, held);
        shard.end_writing(victim.entry);
        shard.counters.dropped_clean_pages += 1;
        self.release_object(shard.leave_unit(victim.key, victim.held));
    }

    /// Makes headroom for a page that was used `uses` times and comes back from the backing: the
    /// coldest page of all is evicted if it has fewer uses. Whether any did.
    pub(super) fn displace(&self, uses: u8) -> bool {
        let Some(order) = &self.order else { return false };
        let Some(coldest) = order.coldest(TenantNumber::ROOT) else { return false };
        let mut shard = self.shards.number(coldest.shard).lock();
        let Some(victim) = shard.take_coldest_below(coldest.tenant, uses) else { return false };
        if victim.held.written.is_some() {
            self.drop_clean(&mut shard, victim);
            return true;
        }
        // Others that are as cold are written back with it, or in its place.
        shard.end_writing(victim.entry);
        drop(shard);
        self.shrink(TenantId::ROOT, RECLAIM_PAGES).pages() > 0
    }

    /// Provides `wanted` free blocks, or as many as possible: copies of pages that are in the pool
    /// too are given up for them.
    pub(super) fn free_blocks(&self, tier: &Tier, wanted: usize) {
        let mut dropped = Vec::new();
        for shard in self.shards.iter() {
            let free = tier.free_blocks();
            if free >= wanted {
                return;
            }
            shard.lock().drop_copies(wanted - free, &mut dropped);
            dropped.drain(..).for_each(|written| tier.release(written));
        }
    }

    /// Copies the batch's pages into its blocks, as far as there is place.
    fn fill(&self, tier: &Tier, batch: &mut Batch) {
        let length = |victim: &Victim| match self.options.written_as {
            WrittenAs::Pages => PAGE_SIZE,
            // Each may begin 15 bytes after the last one's end.
            WrittenAs::Objects => match victim.held.content {
                Content::Compressed { bytes, .. } => usize::from(bytes) + 15,
                _ => PAGE_SIZE + 15,
            },
        };
        let mut left: usize = batch.pages.iter().map(|page| length(&page.victim)).sum();
        for number in 0..batch.pages.len() {
            let victim = batch.pages[number].victim;
            if let Some(written) = self.copy_out(tier, batch, victim, left) {
                batch.note_placed(number, written);
            }
            left -= length(&victim);
        }
    }

    /// Copies one page or its object to the batch; where it will be.
    fn copy_out(
        &self,
        tier: &Tier,
        batch: &mut Batch,
        victim: Victim,
        left: usize,
    ) -> Option<Written> {
        let content = victim.held.content;
        let handle = content.handle().expect("what is on a list is in the pool");
        let lock = self.shards.of(victim.key);
        let shard = lock.lock();
        shard.current(victim.entry)?; // else it has gone, and its object may have too
        let (bytes, as_is) = match (self.options.written_as, content) {
            (WrittenAs::Objects, Content::Compressed { bytes, .. }) => (bytes, false),
            _ => (PAGE_SIZE as u16, true),
        };
        let copied = self.zpool.read(handle, |slot| {
            drop(shard); // the pool pins the object from here on
            let (at, room) = tier.place(batch, usize::from(bytes), left)?;
            let filled = match as_is {
                true => {
                    let page: &mut Page = room.try_into().expect("a page's length");
                    self.restore(victim.key, victim.held, slot, page)
                }
                false => self.check_slot(victim.key, victim.held, slot).map(|object| {
                    room.copy_from_slice(object);
                }),
            };
            Some((at, filled.map(|()| self.checksum_of(victim.key, room))))
        });
        match copied {
            Ok(None) => None, // no place in the backing
            Ok(Some((at, Ok(checksum)))) => Some(Written { at, bytes, as_is, checksum }),
            Err(_) => {
                lock.lock().counters.decompress_fail += 1;
                None
            }
            Ok(Some((at, Err(_)))) => {
                lock.lock().counters.decompress_fail += 1;
                tier.release(Written { at, bytes, as_is, checksum: 0 });
                None
            }
        }
    }

    /// A page was written: it leaves the pool, if it is still there and nobody used it.
    fn finish(&self, tier: &Tier, victim: Victim, written: Written, shrunk: &mut Shrunk) {
        let mut shard = self.shards.of(victim.key).lock();
        // The page's tenant may have changed.
        let Some(in_pool) = shard.current(victim.entry) else {
            drop(shard);
            tier.release(written);
            shrunk.kept += 1;
            return;
        };
        let held = Held { written: Some(written), ..in_pool };
        if shard.is_used(victim.entry) {
            shard.set(victim.entry, held);
            shard.end_writing(victim.entry);
            shrunk.kept += 1;
            return;
        }
        shard.set(victim.entry, Held { content: Content::WrittenBack, checksum: 0, ..held });
        shard.end_writing(victim.entry);
        shard.counters.written_back_pages += 1;
        let gone = shard.leave_unit(victim.key, in_pool);
        drop(shard);
        self.release_object(gone);
        shrunk.written_back += 1;
    }

    /// A page could not be written: it goes back to its list's hot end, not to be tried again at
    /// once. One that has gone is not missed.
    fn put_back(&self, victim: Victim, shrunk: &mut Shrunk) {
        let mut shard = self.shards.of(victim.key).lock();
        if shard.current(victim.entry).is_none() {
            shrunk.kept += 1;
            return;
        }
        shard.counters.reject_reclaim_fail += 1;
        shard.end_writing(victim.entry);
        shrunk.failed += 1;
    }
}
