//! The shrinker: a thread that keeps the pool below its accept threshold and writes staged pages,
//! so stores need not write anything back themselves.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::batch::BATCH_PAGES;
use super::lru::Lru;
use super::tenant_id::TenantId;
use super::{PAGE_SIZE, Shrunk, Zswap};
use crate::options::{OptionError, setters};

/// How the shrinker works.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct ShrinkerOptions {
    /// Writes back before the pool is near its limit too: as many pages at a time as pressure asks
    /// for, less as many as were lately loaded from the backing. The kernel's `shrinker_enabled`.
    pub dynamic: bool,
    /// The pool is compacted when so many percent of its bytes are not in objects, 0 to 100. 100 is
    /// never.
    pub compact_percent: u8,
    /// How long it waits at most before it looks at the pool again.
    pub interval: Duration,
}

setters!(ShrinkerOptions, dynamic: bool, compact_percent: u8, interval: Duration);

impl Default for ShrinkerOptions {
    fn default() -> Self {
        ShrinkerOptions {
            dynamic: false,
            compact_percent: 25,
            interval: Duration::from_millis(100),
        }
    }
}

/// Failures in a row after which the shrinker waits for its next turn: the kernel's 16.
const FAILURES_MAX: usize = 16;

/// The dynamic shrinker takes one in so many of the pages that it may write back. The kernel's
/// share at lowest pressure (`DEF_PRIORITY` is 12) would be too small, because here the reclaim of
/// a whole machine does not call the shrinker.
const DYNAMIC_SHARE: u64 = 64;

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Shrinker {
    zswap: Arc<Zswap>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Shrinker {
    /// Starts it for a store.
    ///
    /// # Errors
    ///
    /// The kernel's, where it gives no thread. `InvalidInput`, with an [`OptionError`] inside, for
    /// a `compact_percent` over 100.
    pub fn start(zswap: Arc<Zswap>, options: ShrinkerOptions) -> io::Result<Shrinker> {
        let percent = options.compact_percent;
        OptionError::check(percent <= 100, "compact_percent", "0 to 100", usize::from(percent))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (zswap, stop) = (Arc::clone(&zswap), Arc::clone(&stop));
            let work = move || {
                while !stop.load(Ordering::Relaxed) {
                    zswap.hysteresis.wait(options.interval);
                    zswap.shrinker_turn(options, &stop);
                }
            };
            std::thread::Builder::new().name("uzswap-shrinker".to_owned()).spawn(work)?
        };
        Ok(Shrinker { zswap, stop, thread: Some(thread) })
    }
}

impl Drop for Shrinker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.zswap.hysteresis.wake();
        // A panic there has been reported, and left the store as it was.
        self.thread.take().map(JoinHandle::join);
    }
}

impl Zswap {
    /// One turn of the shrinker: what is staged, below the accept threshold, and what else is due.
    /// The torture takes such turns itself, so that a seed repeats them.
    #[doc(hidden)]
    pub fn shrinker_turn(&self, options: ShrinkerOptions, stop: &AtomicBool) {
        while self.write_staged() > 0 && !stop.load(Ordering::Relaxed) {}
        if self.hysteresis.is_crowded(self.limited_bytes())
            && self.is_fragmented(options.compact_percent)
        {
            self.compact();
        }
        let mut failures = 0;
        while self.hysteresis.is_crowded(self.limited_bytes())
            && failures < FAILURES_MAX
            && !stop.load(Ordering::Relaxed)
        {
            let shrunk = self.shrink(TenantId::ROOT, BATCH_PAGES);
            failures = if shrunk.pages() > 0 { 0 } else { failures + 1 };
        }
        if options.dynamic {
            self.shrink_dynamically();
        }
        self.discard_until(|| stop.load(Ordering::Relaxed));
    }

    /// Writes back the coldest pages until the pool has at most `pool_bytes` of host pages, or no
    /// more go. Compacts the pool on the way if a quarter of it is in no object.
    pub fn shrink_to(&self, pool_bytes: u64) -> Shrunk {
        self.id.enter();
        let mut all = Shrunk::default();
        while self.budget().pool_bytes() > pool_bytes {
            let percent = ShrinkerOptions::default().compact_percent;
            if self.is_fragmented(percent) && self.compact() > 0 {
                continue;
            }
            let batch = self.shrink(TenantId::ROOT, BATCH_PAGES);
            all.add(batch);
            if batch.pages() == 0 {
                break;
            }
        }
        all
    }

    /// Whether so many percent of the pool are not in objects, and at least one batch's worth is.
    fn is_fragmented(&self, percent: u8) -> bool {
        let memory = self.memory();
        let unused = memory.pool_bytes.saturating_sub(memory.compressed_bytes);
        unused >= (BATCH_PAGES * PAGE_SIZE) as u64
            && unused * 100 > memory.pool_bytes * u64::from(percent)
            && percent < 100
    }

    /// Writes back some of the pages that may go now.
    fn shrink_dynamically(&self) {
        let pages = self.evictable_pages() / DYNAMIC_SHARE;
        self.shrink(TenantId::ROOT, pages as usize);
    }

    /// Pages that the dynamic shrinker may write back, counted as in the kernel: pages on the
    /// lists, less those lately loaded from the backing, scaled by their memory, because pages that
    /// compress well are not worth a write. Each page that was brought back counts at one call.
    pub(super) fn evictable_pages(&self) -> u64 {
        let Some(order) = &self.order else { return 0 };
        let lru = self.options.records.map(|records| records.lru);
        let (mut in_pool, mut evictable, mut compressed_bytes) = (0, 0, 0);
        for (id, tenant) in order.tenants.iter() {
            let (mut pages, mut protected) = (0, 0);
            for shard in self.shards.iter() {
                let (listed, spared) = shard.lock().listed_pages(id);
                pages += listed as u64;
                protected += spared as u64;
            }
            in_pool += pages;
            if order.tenants.may_write_back(id) {
                let spared = match lru {
                    Some(Lru::Protected) => protected,
                    _ => tenant.take_backing_loads(pages),
                };
                evictable += pages.saturating_sub(spared);
            }
        }
        for shard in self.shards.iter() {
            compressed_bytes += shard.lock().compressed_bytes;
        }
        let original_bytes = u128::from(in_pool) * PAGE_SIZE as u128;
        let scaled = u128::from(evictable) * u128::from(compressed_bytes);
        scaled.checked_div(original_bytes).map_or(0, |pages| (pages as u64).min(evictable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::MemoryBacking;
    use crate::page::{Page, PageKey};
    use crate::random::SplitMix64;
    use crate::zpool::ZpoolKind;
    use crate::zswap::{RecordOptions, TenantOptions, ZswapOptions};

    /// A page of which `noise` bytes do not shrink.
    fn page_of(number: u64, noise: usize) -> Page {
        let mut words = SplitMix64::new(number);
        let mut page = [0; PAGE_SIZE];
        page[..noise].fill_with(|| words.next_word() as u8);
        page
    }

    #[test]
    fn what_may_go_is_scaled_by_its_size_and_spares_as_many_as_came_back() {
        let records = Some(RecordOptions { lru: Lru::Plain, ..RecordOptions::default() });
        let options = ZswapOptions { records, ..ZswapOptions::default() };
        let backing = Box::new(MemoryBacking::new(4096).unwrap());
        let zswap = Zswap::with_backing(options, backing).unwrap();
        assert_eq!(zswap.evictable_pages(), 0, "of nothing");
        for key in 0..600 {
            zswap.store(PageKey(key), &page_of(key, 1000)).unwrap();
        }
        // So many of so many pages, at a ratio of compressed to original bytes.
        let scaled =
            |pages: u64, of: u64| pages * zswap.memory().compressed_bytes / (of * PAGE_SIZE as u64);
        assert!(scaled(600, 600) < 200, "they take a quarter");
        assert_eq!(zswap.evictable_pages(), scaled(600, 600));
        assert_eq!(zswap.shrink(TenantId::ROOT, 100).written_back, 100);
        let mut page = [0; PAGE_SIZE];
        for key in 0..90 {
            assert!(zswap.load_in_place(PageKey(key), &mut page).unwrap());
        }
        // Each counts once.
        assert_eq!(zswap.evictable_pages(), scaled(500 - 90, 500));
        assert_eq!(zswap.evictable_pages(), scaled(500, 500));
        // Pages of a tenant without writeback do not go, and have their part of the bytes.
        let pinned = TenantOptions { writeback: false, ..TenantOptions::default() };
        let pinned = zswap.add_tenant(TenantId::ROOT, pinned).unwrap();
        for key in 1000..1100 {
            zswap.store_for(pinned, PageKey(key), &page_of(key, 3000)).unwrap();
        }
        assert_eq!(zswap.evictable_pages(), scaled(500, 600));
        // Loads of a removed tenant's pages count for the tenant above.
        let removed = zswap.add_tenant(TenantId::ROOT, TenantOptions::default()).unwrap();
        for key in 2000..2050 {
            zswap.store_for(removed, PageKey(key), &page_of(key, 1000)).unwrap();
        }
        assert_eq!(zswap.shrink(removed, 50).written_back, 50);
        for key in 2000..2050 {
            assert!(zswap.load_in_place(PageKey(key), &mut page).unwrap());
        }
        zswap.remove_tenant(removed).unwrap();
        assert_eq!(zswap.evictable_pages(), scaled(500 - 50, 600));
        // A turn writes a share of them.
        let (before, evictable) = (zswap.counters().backing_pages, zswap.evictable_pages());
        zswap.shrink_dynamically();
        let written = zswap.counters().backing_pages - before;
        assert_eq!(written, evictable / DYNAMIC_SHARE);
        assert!(written > 0, "a share of {evictable}");
        zswap.audit().unwrap();
    }

    #[test]
    fn pages_that_are_protected_do_not_go() {
        let records = Some(RecordOptions { lru: Lru::Protected, ..RecordOptions::default() });
        let options = ZswapOptions { records, shards: 1, ..ZswapOptions::default() };
        let zswap = Zswap::new(options).unwrap();
        for key in 0..600 {
            zswap.store(PageKey(key), &page_of(key, 1000)).unwrap();
        }
        let root = TenantId::ROOT.as_number();
        let (pages, protected) = zswap.shards.number(0).lock().listed_pages(root);
        assert!(pages == 600 && (50..=150).contains(&protected), "{protected} of {pages}");
        let left = 600 - protected as u64;
        let scaled = left * zswap.memory().compressed_bytes / (600 * PAGE_SIZE as u64);
        // No call uses the protection up.
        assert_eq!([(); 2].map(|()| zswap.evictable_pages()), [scaled; 2]);
    }

    #[test]
    fn a_pool_is_fragmented_from_one_batch_of_unused_bytes_on() {
        // Two objects of a quarter page in each page.
        let options = ZswapOptions { zpool: ZpoolKind::Zbud, ..ZswapOptions::default() };
        let zswap = Zswap::new(options).unwrap();
        let unused = || {
            let memory = zswap.memory();
            memory.pool_bytes - memory.compressed_bytes
        };
        let mut keys = 0..1000;
        while !zswap.is_fragmented(25) {
            let key = keys.next().expect("many have enough unused bytes");
            zswap.store(PageKey(key), &page_of(key, 1000)).unwrap();
        }
        let batch = (BATCH_PAGES * PAGE_SIZE) as u64;
        assert!((batch..batch + PAGE_SIZE as u64).contains(&unused()), "{}", unused());
        assert!(!zswap.is_fragmented(75) && !zswap.is_fragmented(100));
    }
}
