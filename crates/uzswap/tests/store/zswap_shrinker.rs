//! Goal: the shrinker comes when it is called, goes on where writes fail, and compacts a pool that
//! is full of holes before it writes anything.
//! Method: the shrinker's interval is an hour, so that only a wake-up can have brought it. A
//! backing in memory fails a set number of writes. Pools have holes, or none.
//! Blind to: races (the torture test has those).

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use uzswap::backing::{Backing, Block, BlockWrite, MemoryBacking};
use uzswap::budget::Counted;
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::SplitMix64;
use uzswap::zpool::ZpoolKind;
use uzswap::zswap::{
    Lru, RecordOptions, Shrinker, ShrinkerOptions, TenantId, TenantOptions, Zswap, ZswapOptions,
};

const ROOT: TenantId = TenantId::ROOT;
const POOL_BYTES: u64 = 8 << 20;

/// Writes that the backing must fail, and counts of its calls.
#[derive(Debug, Default)]
struct Calls {
    /// Writes that are still to fail.
    failures: AtomicU32,
    /// Those that have.
    failed: AtomicU32,
    /// Blocks that were given back.
    discarded: AtomicU32,
}

/// A backing that fails its next writes, a set number of them.
#[derive(Debug)]
struct Failing(MemoryBacking, Arc<Calls>);

impl Backing for Failing {
    fn name(&self) -> String {
        self.0.name()
    }

    fn block_count(&self) -> u32 {
        self.0.block_count()
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        let fewer = |left: u32| left.checked_sub(1);
        let relaxed = Ordering::Relaxed;
        if self.1.failures.fetch_update(relaxed, relaxed, fewer).is_ok() {
            self.1.failed.fetch_add(1, Ordering::Relaxed);
            let eio = || io::Error::from_raw_os_error(5);
            writes.iter_mut().for_each(|write| write.outcome = Err(eio()));
            return;
        }
        self.0.write(writes);
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        self.0.read(first, blocks)
    }

    fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        self.1.discarded.fetch_add(blocks.len() as u32, Ordering::Relaxed);
        self.0.discard(blocks)
    }
}

/// A pool whose shrinker works down to half of it, and is called at three quarters. No page is
/// spared: a search for cold ones finds some each time.
fn store() -> (Arc<Zswap>, Arc<Calls>) {
    store_with(ZpoolKind::Zsmalloc)
}

fn store_with(zpool: ZpoolKind) -> (Arc<Zswap>, Arc<Calls>) {
    let options = ZswapOptions::default()
        .zpool(zpool)
        .records(Some(RecordOptions::default().lru(Lru::Plain).checksum(true)))
        .max_pool_bytes(POOL_BYTES)
        .accept_threshold_percent(50)
        .latencies(true)
        // by which each test says when the pool is full
        .counted(Counted::Pool);
    let calls = Arc::new(Calls::default());
    let backing = Failing(MemoryBacking::new(1 << 13).unwrap(), Arc::clone(&calls));
    (Arc::new(Zswap::with_backing(options, Box::new(backing)).unwrap()), calls)
}

/// Starts a shrinker that would come by itself in an hour.
fn shrinker(zswap: &Arc<Zswap>) -> Shrinker {
    let options = ShrinkerOptions::default().interval(Duration::from_secs(3600));
    Shrinker::start(Arc::clone(zswap), options).unwrap()
}

/// A page that becomes an object of some 2000 bytes.
fn half_noise(number: u64) -> Page {
    let mut random = SplitMix64::new(number);
    let mut page = [0; PAGE_SIZE];
    page[..1950].fill_with(|| random.next_word() as u8);
    page
}

/// Stores pages from `first` on until the pool has more than so many bytes; the next key.
fn fill(zswap: &Zswap, first: u64, pool_bytes: u64) -> u64 {
    let mut key = first;
    while zswap.budget().pool_bytes() <= pool_bytes {
        zswap.store(PageKey(key), &half_noise(key)).unwrap();
        key += 1;
    }
    key
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn check_all(zswap: &Zswap, keys: impl Iterator<Item = u64>) {
    zswap.audit().unwrap();
    zswap.audit_objects().unwrap();
    for key in keys {
        let mut page = [0; PAGE_SIZE];
        assert!(zswap.load_in_place(PageKey(key), &mut page).unwrap(), "key {key}");
        assert!(page == half_noise(key), "key {key}");
    }
}

fn is_at_threshold(zswap: &Zswap) -> bool {
    zswap.budget().pool_bytes() <= POOL_BYTES / 2
}

#[test]
fn growth_calls_the_shrinker_before_the_pool_is_full() {
    let (zswap, _) = store();
    let shrinker = shrinker(&zswap);
    // Two pages take a host page: some more than three quarters.
    let end = POOL_BYTES / 4096 * 2 * 13 / 16;
    (0..end).for_each(|key| _ = zswap.store(PageKey(key), &half_noise(key)).unwrap());
    // The shrinker is called at 12/16, and may be done before the last 1/16 is stored.
    let most_bytes = POOL_BYTES / 2 + POOL_BYTES / 16;
    wait_until("the pool is near its threshold", || zswap.budget().pool_bytes() <= most_bytes);
    drop(shrinker);
    let counters = zswap.counters();
    assert_eq!(counters.pool_limit_hit + counters.reject_alloc_fail, 0);
    assert!(counters.written_back_pages > 0 && zswap.latencies().writeback.count > 0);
    check_all(&zswap, 0..end);
}

#[test]
fn a_write_that_fails_is_tried_again() {
    let (zswap, calls) = store();
    let end = fill(&zswap, 0, POOL_BYTES / 4);
    calls.failures.store(3, Ordering::Relaxed);
    for _ in 0..3 {
        let shrunk = zswap.shrink(ROOT, 8);
        assert_eq!((shrunk.failed, shrunk.pages()), (8, 0));
        zswap.audit().unwrap();
    }
    assert_eq!(zswap.counters().reject_reclaim_fail, 3 * 8);
    assert_eq!(zswap.shrink(ROOT, end as usize).written_back, end as usize, "all of them");
    assert_eq!((calls.failed.load(Ordering::Relaxed), zswap.counters().stored_pages), (3, 0));
    check_all(&zswap, 0..end);
}

/// The shrinker ends its turn after 16 failures in a row, and not before. Growth wakes it once.
#[test]
fn a_turn_goes_on_after_writes_that_fail() {
    let (zswap, calls) = store();
    let end = fill(&zswap, 0, POOL_BYTES * 3 / 4);
    calls.failures.store(15, Ordering::Relaxed);
    let shrinker = shrinker(&zswap);
    wait_until("the pool is at its threshold", || is_at_threshold(&zswap));
    drop(shrinker);
    assert_eq!(calls.failed.load(Ordering::Relaxed), 15);
    let counters = zswap.counters();
    assert!(counters.reject_reclaim_fail >= 15 && counters.written_back_pages > 0);
    check_all(&zswap, 0..end);
}

#[test]
fn a_backing_that_comes_back_is_written_to() {
    let (zswap, calls) = store();
    let mut end = fill(&zswap, 0, POOL_BYTES * 3 / 4);
    calls.failures.store(u32::MAX, Ordering::Relaxed);
    let shrinker = shrinker(&zswap);
    wait_until("16 writes have failed", || calls.failed.load(Ordering::Relaxed) >= 16);
    calls.failures.store(0, Ordering::Relaxed);
    // Each store above the mark wakes the shrinker again.
    wait_until("the pool is at its threshold", || {
        if zswap.budget().pool_bytes() > POOL_BYTES * 3 / 4 {
            zswap.store(PageKey(end), &half_noise(end)).unwrap();
            end += 1;
        }
        is_at_threshold(&zswap)
    });
    drop(shrinker);
    check_all(&zswap, 0..end);
}

#[test]
fn a_turn_ends_after_sixteen_writes_that_failed() {
    let (zswap, calls) = store();
    let end = fill(&zswap, 0, POOL_BYTES * 3 / 4);
    calls.failures.store(u32::MAX, Ordering::Relaxed);
    zswap.shrinker_turn(ShrinkerOptions::default(), &AtomicBool::new(false));
    assert_eq!(calls.failed.load(Ordering::Relaxed), 16);
    check_all(&zswap, 0..end);
}

/// Fills a pool to so many bytes, and removes one page in `part`; the keys that are left.
fn with_holes(zswap: &Zswap, pool_bytes: u64, part: u64) -> Vec<u64> {
    let end = fill(zswap, 0, pool_bytes);
    let goes = |key: &u64| key.is_multiple_of(part);
    (0..end).filter(goes).for_each(|key| assert!(zswap.invalidate(PageKey(key))));
    (0..end).filter(|key| !goes(key)).collect()
}

#[test]
fn holes_are_filled_before_pages_are_written() {
    let (zswap, _) = store();
    let left = with_holes(&zswap, POOL_BYTES / 2, 2);
    let before = zswap.budget().pool_bytes();
    assert!(before > POOL_BYTES / 3, "what is left keeps its host pages: {before} bytes");
    let shrunk = zswap.shrink_to(before);
    assert_eq!((shrunk.pages(), zswap.zpool().stats().pages_compacted), (0, 0));
    let shrunk = zswap.shrink_to(before * 2 / 3);
    assert_eq!(shrunk.pages(), 0, "the holes were as much");
    assert!(zswap.budget().pool_bytes() <= before * 2 / 3);
    assert!(zswap.zpool().stats().pages_compacted > 0);
    check_all(&zswap, left.into_iter());
}

/// One object of 2600 bytes a page: two fifths of it are in none, and stay so.
#[test]
fn a_pool_that_no_compaction_helps_is_written_back() {
    let (zswap, _) = store_with(ZpoolKind::Zbud);
    let page = |key: u64| {
        let mut page = half_noise(key);
        let mut random = SplitMix64::new(!key);
        page[1950..2550].fill_with(|| random.next_word() as u8);
        page
    };
    (0..500).for_each(|key| _ = zswap.store(PageKey(key), &page(key)).unwrap());
    assert_eq!(zswap.budget().pool_bytes(), 500 * PAGE_SIZE as u64);
    let shrunk = zswap.shrink_to(200 * PAGE_SIZE as u64);
    assert!((300..364).contains(&shrunk.written_back), "{shrunk:?}");
    assert!(zswap.budget().pool_bytes() <= 200 * PAGE_SIZE as u64);
    for key in 0..500 {
        let mut loaded = [0; PAGE_SIZE];
        assert!(zswap.load_in_place(PageKey(key), &mut loaded).unwrap() && loaded == page(key));
    }
}

#[test]
fn a_pool_with_few_holes_is_not_compacted() {
    let (zswap, _) = store();
    // One page in eight is less than a quarter.
    let left = with_holes(&zswap, POOL_BYTES / 2, 8);
    let before = zswap.budget().pool_bytes();
    let shrunk = zswap.shrink_to(before * 3 / 4);
    assert!(shrunk.written_back > 0);
    assert_eq!(zswap.zpool().stats().pages_compacted, 0);
    check_all(&zswap, left.into_iter());
}

#[test]
fn the_shrinker_compacts_a_pool_with_holes_first() {
    let (zswap, _) = store();
    let left = with_holes(&zswap, POOL_BYTES - (64 << 10), 2);
    assert!(zswap.budget().pool_bytes() > POOL_BYTES * 3 / 4);
    let shrinker = shrinker(&zswap); // growth has called it
    wait_until("the pool is at its threshold", || is_at_threshold(&zswap));
    drop(shrinker);
    assert_eq!(zswap.counters().written_back_pages, 0);
    assert!(zswap.zpool().stats().pages_compacted > 0);
    check_all(&zswap, left.into_iter());
}

#[test]
fn a_turn_compacts_no_pool_below_the_threshold_and_none_with_few_holes() {
    for (pool_bytes, part) in [(POOL_BYTES * 2 / 5, 2), (POOL_BYTES * 9 / 10, 8)] {
        let (zswap, _) = store();
        let left = with_holes(&zswap, pool_bytes, part);
        let is_crowded = !is_at_threshold(&zswap);
        assert_eq!(is_crowded, pool_bytes > POOL_BYTES / 2);
        zswap.shrinker_turn(ShrinkerOptions::default(), &AtomicBool::new(false));
        assert_eq!(zswap.counters().written_back_pages > 0, is_crowded);
        assert_eq!(zswap.zpool().stats().pages_compacted, 0, "{pool_bytes} bytes");
        check_all(&zswap, left.into_iter());
    }
}

#[test]
fn a_dynamic_shrinker_writes_what_is_cold_below_the_threshold() {
    let (zswap, _) = store();
    let end = fill(&zswap, 0, POOL_BYTES / 3);
    let interval = Duration::from_millis(1);
    let options = ShrinkerOptions::default().dynamic(true).interval(interval);
    let shrinker = Shrinker::start(Arc::clone(&zswap), options).unwrap();
    wait_until("a page was written back", || zswap.counters().written_back_pages > 0);
    drop(shrinker);
    check_all(&zswap, 0..end);
}

#[test]
fn the_shrinker_gives_blocks_back_that_are_free() {
    let (zswap, calls) = store();
    let end = fill(&zswap, 0, POOL_BYTES / 3);
    assert_eq!(zswap.shrink(ROOT, end as usize).written_back, end as usize);
    (0..end).for_each(|key| assert!(zswap.invalidate(PageKey(key))));
    assert_eq!(calls.discarded.load(Ordering::Relaxed), 0);
    let discarded = zswap.discard();
    assert!(discarded as u64 >= end - 64, "{discarded} of {end} blocks");
    assert_eq!(calls.discarded.swap(0, Ordering::Relaxed) as usize, discarded);
    assert_eq!(zswap.discard(), 0);
    let end = fill(&zswap, 0, POOL_BYTES / 3);
    assert_eq!(zswap.shrink(ROOT, end as usize).written_back, end as usize);
    (0..end).for_each(|key| assert!(zswap.invalidate(PageKey(key))));
    let shrinker = shrinker(&zswap);
    let again = POOL_BYTES / 4096 * 2 * 13 / 16; // as many as call it
    (0..again).for_each(|key| _ = zswap.store(PageKey(key), &half_noise(key)).unwrap());
    wait_until("blocks are given back", || calls.discarded.load(Ordering::Relaxed) >= 64);
    drop(shrinker);
    check_all(&zswap, 0..again);
}

/// A store over a tenant's limit writes back that tenant's coldest pages, and succeeds.
#[test]
fn a_tenant_at_its_limit_writes_its_own_pages_back() {
    let (zswap, _) = store();
    let end = fill(&zswap, 0, POOL_BYTES / 8);
    let options = TenantOptions::default().max_bytes(100_000);
    let tenant = zswap.add_tenant(ROOT, options).unwrap();
    let keys = 1 << 20..(1 << 20) + 200;
    for key in keys.clone() {
        zswap.store_for(tenant, PageKey(key), &half_noise(key)).unwrap();
    }
    let counters = zswap.counters();
    assert_eq!(counters.reject_tenant_limit, 0);
    assert!(counters.written_back_pages >= 140, "{counters:?}");
    assert!((0..end).all(|key| !zswap.is_written_back(PageKey(key))), "they are of another");
    check_all(&zswap, (0..end).chain(keys));
}

/// In a pool above its threshold a page comes back in the place of another.
#[test]
fn a_page_that_comes_back_to_a_crowded_pool_displaces_the_coldest() {
    let (zswap, _) = store();
    let end = fill(&zswap, 0, POOL_BYTES * 5 / 8);
    assert_eq!(zswap.shrink(ROOT, 10).written_back, 10);
    assert!(!is_at_threshold(&zswap));
    let mut page = [0; PAGE_SIZE];
    for key in 0..10 {
        assert!(zswap.is_written_back(PageKey(key)), "key {key} is one of the coldest");
        assert!(zswap.load(PageKey(key), &mut page).unwrap() && page == half_noise(key));
        let counters = zswap.counters();
        assert_eq!(counters.promoted_pages, key + 1);
        assert!(counters.backing_pages >= 10, "{counters:?}");
    }
    assert!((0..10).all(|key| !zswap.is_written_back(PageKey(key))));
    check_all(&zswap, 0..end);
}
