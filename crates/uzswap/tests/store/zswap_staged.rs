//! Goal: an incompressible page waits in the pool for a batch and is never lost or mixed up on its
//! way. Neither does it wait for ever or with too many others.
//! Method: a backing in memory that counts its calls and fails on request; each order of events of
//! a staged page; audits after every step.
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
use uzswap::zswap::snapshot::SnapshotReader;
use uzswap::zswap::{
    Lru, RecordOptions, Shrinker, ShrinkerOptions, Shrunk, StoreError, Stored, TenantId,
    TenantOptions, WhenFull, WrittenAs, Zswap, ZswapOptions,
};

const ROOT: TenantId = TenantId::ROOT;

/// Of a pool without a limit.
const BATCH: usize = 64;

/// Calls of a backing, and whether it fails.
#[derive(Debug, Default)]
struct Calls {
    writes: AtomicU32,
    blocks: AtomicU32,
    fails: AtomicBool,
}

impl Calls {
    /// Calls and blocks.
    fn written(&self) -> (u32, u32) {
        (self.writes.load(Ordering::Relaxed), self.blocks.load(Ordering::Relaxed))
    }

    fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Counting(MemoryBacking, Arc<Calls>);

impl Backing for Counting {
    fn name(&self) -> String {
        self.0.name()
    }

    fn block_count(&self) -> u32 {
        self.0.block_count()
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        if self.1.fails.load(Ordering::Relaxed) {
            let eio = || io::Error::from_raw_os_error(5);
            writes.iter_mut().for_each(|write| write.outcome = Err(eio()));
            return;
        }
        self.1.writes.fetch_add(1, Ordering::Relaxed);
        let blocks: usize = writes.iter().map(|write| write.blocks.len()).sum();
        self.1.blocks.fetch_add(blocks as u32, Ordering::Relaxed);
        self.0.write(writes);
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        self.0.read(first, blocks)
    }

    fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        self.0.discard(blocks)
    }
}

fn store_of(options: ZswapOptions) -> (Zswap, Arc<Calls>) {
    let calls = Arc::new(Calls::default());
    let backing = Counting(MemoryBacking::new(1 << 12).unwrap(), Arc::clone(&calls));
    (Zswap::with_backing(options, Box::new(backing)).unwrap(), calls)
}

/// Every order, and both forms.
fn stores() -> impl Iterator<Item = (Zswap, Arc<Calls>)> {
    Lru::ALL.into_iter().flat_map(|lru| {
        WrittenAs::ALL.into_iter().map(move |written_as| {
            let records = Some(RecordOptions::default().lru(lru).checksum(true));
            store_of(ZswapOptions::default().records(records).written_as(written_as))
        })
    })
}

/// A page of a number that no compressor makes smaller.
fn noise(number: u64) -> Page {
    let mut random = SplitMix64::new(number);
    let mut page = [0; PAGE_SIZE];
    for chunk in page.as_chunks_mut::<8>().0 {
        *chunk = random.next_word().to_le_bytes();
    }
    page
}

/// One that shrinks.
fn text(number: u64) -> Page {
    let mut page = [0x20; PAGE_SIZE];
    page[..8].copy_from_slice(&number.to_le_bytes());
    page
}

fn store_all(zswap: &Zswap, keys: Range<u64>, page: fn(u64) -> Page) {
    for key in keys {
        zswap.store(PageKey(key), &page(key)).unwrap();
    }
}

fn check(zswap: &Zswap, key: u64, expected: &Page) {
    let mut page = [0; PAGE_SIZE];
    assert!(zswap.load(PageKey(key), &mut page).unwrap() && page == *expected, "key {key}");
    zswap.audit().unwrap();
}

/// Pages in the pool, of those as they are, in the backing alone.
fn held(zswap: &Zswap) -> (u64, u64, u64) {
    let counters = zswap.counters();
    zswap.audit().unwrap();
    (counters.stored_pages, counters.stored_incompressible_pages, counters.backing_pages)
}

#[test]
fn a_staged_page_is_in_the_pool_until_the_next_batch_which_takes_it_first() {
    for (zswap, calls) in stores() {
        zswap.store(PageKey(1), &text(1)).unwrap();
        assert_eq!(zswap.store(PageKey(2), &noise(2)).unwrap(), Stored::AsIs);
        zswap.store(PageKey(3), &noise(3)).unwrap();
        assert_eq!((held(&zswap), calls.written()), ((3, 2, 0), (0, 0)));
        let counters = zswap.counters();
        assert_eq!((counters.staged_pages, counters.reject_compress_poor), (2, 2));
        assert_eq!(zswap.tenants()[0].current_bytes, zswap.memory().compressed_bytes);
        let shrunk = zswap.shrink(ROOT, 1);
        assert_eq!(shrunk, Shrunk { written_back: 1, ..Shrunk::default() });
        assert_eq!((held(&zswap), calls.written()), ((2, 1, 1), (1, 1)));
        assert_eq!(zswap.shrink(ROOT, 1).written_back, 1);
        assert_eq!((held(&zswap), calls.written()), ((1, 0, 2), (2, 2)));
        (2..4).for_each(|key| check(&zswap, key, &noise(key)));
        check(&zswap, 1, &text(1));
    }
}

#[test]
fn one_that_is_used_meanwhile_stays_and_leaves_later_without_a_write() {
    for (zswap, calls) in stores() {
        zswap.store(PageKey(2), &noise(2)).unwrap();
        check(&zswap, 2, &noise(2));
        assert_eq!(zswap.shrink(ROOT, 1), Shrunk { kept: 1, ..Shrunk::default() });
        assert_eq!((held(&zswap), zswap.counters().clean_pages), ((1, 1, 0), 1));
        let mut left = 0;
        for _ in 0..8 {
            left += zswap.shrink(ROOT, 1).dropped_clean;
        }
        assert_eq!((left, held(&zswap), calls.written().1), (1, (0, 0, 1), 1));
        check(&zswap, 2, &noise(2));
    }
}

#[test]
fn one_that_cannot_be_written_stays_in_the_pool() {
    for (zswap, calls) in stores() {
        calls.fail(true);
        zswap.store(PageKey(2), &noise(2)).unwrap();
        assert_eq!(zswap.shrink(ROOT, 1).failed, 1);
        assert_eq!((held(&zswap), zswap.counters().reject_reclaim_fail), ((1, 1, 0), 1));
        check(&zswap, 2, &noise(2));
        calls.fail(false);
        let left: usize = (0..8).map(|_| zswap.shrink(ROOT, 1).pages()).sum();
        assert_eq!((left, held(&zswap)), (1, (0, 0, 1)));
        check(&zswap, 2, &noise(2));
    }
}

#[test]
fn one_that_is_gone_or_replaced_is_not_written() {
    for (zswap, calls) in stores() {
        let mut page = [0; PAGE_SIZE];
        store_all(&zswap, 0..6, noise);
        assert!(zswap.invalidate(PageKey(0)));
        assert!(zswap.load_exclusive(PageKey(1), &mut page).unwrap() && page == noise(1));
        zswap.store(PageKey(2), &text(2)).unwrap();
        zswap.store(PageKey(3), &noise(33)).unwrap();
        assert_eq!(zswap.invalidate_range(PageKey(4)..=PageKey(4)), 1);
        assert_eq!(held(&zswap), (3, 2, 0));
        // Two are staged and current: they are first; the order of the others is free.
        assert_eq!(zswap.shrink(ROOT, 6).written_back + held(&zswap).0 as usize, 3);
        while held(&zswap).1 > 0 {
            zswap.shrink(ROOT, 1);
        }
        check(&zswap, 2, &text(2));
        check(&zswap, 3, &noise(33));
        check(&zswap, 5, &noise(5));
        assert!(!zswap.load(PageKey(4), &mut page).unwrap());
        assert!(calls.written().1 <= 3);
        assert_eq!(zswap.invalidate_range(PageKey(0)..=PageKey(9)), 3);
        assert_eq!((held(&zswap), zswap.memory().pool_bytes), ((0, 0, 0), 0));
    }
}

#[test]
fn stale_places_do_not_fill_the_queue() {
    let (zswap, calls) = store_of(ZswapOptions::default());
    for round in 0..=1000 {
        assert_eq!(zswap.store(PageKey(7), &noise(round)).unwrap(), Stored::AsIs);
        if round % 3 == 0 {
            zswap.invalidate(PageKey(7));
        }
    }
    assert_eq!(zswap.counters().staged_pages, 1001);
    zswap.audit().unwrap();
    // Each time that the queue was full, one was current at most.
    assert!(calls.written().1 <= 1000 / BATCH as u32);
    check(&zswap, 7, &noise(1000));
}

#[test]
fn as_many_wait_as_two_batches_which_small_pools_have_smaller_ones_of() {
    for (pages, batch) in
        [(None, 64), (Some(1024), 64), (Some(160), 10), (Some(16), 1), (Some(15), 0)]
    {
        let max_pool_bytes = pages.map_or(u64::MAX, |pages: u64| pages * PAGE_SIZE as u64);
        let (zswap, calls) = store_of(ZswapOptions::default().max_pool_bytes(max_pool_bytes));
        for key in 0..200 {
            let stored = zswap.store(PageKey(key), &noise(key)).unwrap();
            assert_eq!(stored == Stored::WrittenThrough, batch == 0);
            assert!(held(&zswap).1 <= 2 * batch, "{max_pool_bytes}");
        }
        let (in_pool, _, in_backing) = held(&zswap);
        let (writes, blocks) = calls.written();
        assert_eq!((in_pool + in_backing, u64::from(blocks)), (200, in_backing));
        assert!(u64::from(writes) <= 200 / batch.max(1), "{writes} writes");
        (0..200).for_each(|key| check(&zswap, key, &noise(key)));
    }
}

#[test]
fn where_the_pool_cannot_have_a_page_it_is_written_through() {
    let options = ZswapOptions::default()
        .when_full(WhenFull::Bypass)
        .max_pool_bytes(64 * PAGE_SIZE as u64)
        // the index has room
        .counted(Counted::Pool);
    let (full, _) = store_of(options);
    store_all(&full, 0..6000, text);
    let options = ZswapOptions::default();
    let (zbud, _) = store_of(options.zpool(ZpoolKind::Zbud));
    let (headed, _) = store_of(options.object_header_bytes(8));
    for zswap in [full, zbud, headed] {
        let stored = zswap.store(PageKey(1 << 20), &noise(1)).unwrap();
        assert_eq!((stored, held(&zswap).1), (Stored::WrittenThrough, 0));
        check(&zswap, 1 << 20, &noise(1));
    }
    let (zswap, _) = store_of(options);
    let limited = TenantOptions::default().max_bytes(4095);
    let tenant = zswap.add_tenant(ROOT, limited).unwrap();
    let stored = zswap.store_for(tenant, PageKey(1), &noise(1)).unwrap();
    assert_eq!((stored, held(&zswap)), (Stored::WrittenThrough, (0, 0, 1)));
}

#[test]
fn a_batch_has_staged_pages_of_its_tenants_alone() {
    let (zswap, calls) = store_of(ZswapOptions::default());
    let add = |parent| zswap.add_tenant(parent, TenantOptions::default()).unwrap();
    let above = add(ROOT);
    let (below, beside) = (add(above), add(ROOT));
    for (key, tenant) in [beside, below, above, ROOT].into_iter().enumerate() {
        zswap.store_for(tenant, PageKey(key as u64), &noise(key as u64)).unwrap();
    }
    assert_eq!(zswap.shrink(above, 9).written_back, 2);
    let current = || -> Vec<u64> { zswap.tenants().iter().map(|t| t.current_bytes).collect() };
    assert_eq!((current(), held(&zswap)), (vec![8192, 0, 0, 4096], (2, 2, 2)));
    // One may not leave any more: it stays in the pool, and may later.
    let writeback = |writeback| TenantOptions::default().writeback(writeback);
    zswap.set_tenant(beside, writeback(false)).unwrap();
    let error = zswap.store_for(beside, PageKey(9), &noise(9)).unwrap_err();
    assert!(matches!(error, StoreError::CompressPoor { .. }));
    assert_eq!(zswap.shrink(ROOT, 9).written_back, 1);
    assert_eq!((held(&zswap), calls.written().1), ((1, 1, 3), 3));
    zswap.set_tenant(beside, writeback(true)).unwrap();
    let left: usize = (0..8).map(|_| zswap.shrink(beside, 1).pages()).sum();
    assert_eq!((left, held(&zswap)), (1, (0, 0, 4)));
    (0..4).for_each(|key| check(&zswap, key, &noise(key)));
}

#[test]
fn a_staged_page_of_a_tenant_that_is_removed_is_of_the_one_above() {
    for may_write_back in [true, false] {
        let (zswap, calls) = store_of(ZswapOptions::default());
        let above = zswap.add_tenant(TenantId::ROOT, TenantOptions::default()).unwrap();
        let tenant = zswap.add_tenant(above, TenantOptions::default()).unwrap();
        zswap.store_for(tenant, PageKey(1), &noise(1)).unwrap();
        let options = TenantOptions::default().writeback(may_write_back);
        zswap.set_tenant(above, options).unwrap();
        zswap.remove_tenant(tenant).unwrap();
        assert_eq!(held(&zswap), (1, 1, 0));
        zswap.shrink(above, 1);
        // One that may not be written is on the list of its tenant now, which stays as it is.
        let written = u32::from(may_write_back);
        assert_eq!(calls.blocks.load(Ordering::Relaxed), written);
        assert_eq!(held(&zswap).2, u64::from(written));
        check(&zswap, 1, &noise(1));
    }
}

#[test]
fn a_snapshot_has_staged_pages_and_they_are_as_others_then() {
    let (zswap, calls) = store_of(ZswapOptions::default());
    store_all(&zswap, 0..20, noise);
    let mut snapshot = Vec::new();
    zswap.snapshot_to(&mut snapshot, Default::default()).unwrap();
    assert_eq!((held(&zswap), calls.written()), ((20, 20, 0), (0, 0)));
    let (restored, calls) = store_of(ZswapOptions::default());
    let (restored, _) =
        restored.restore_from(SnapshotReader::new("a snapshot", &snapshot[..]).unwrap()).unwrap();
    assert_eq!((held(&restored), calls.written()), ((20, 20, 0), (0, 0)));
    for zswap in [&zswap, &restored] {
        (0..20).for_each(|key| check(zswap, key, &noise(key)));
        zswap.shrink(ROOT, 20);
        zswap.audit().unwrap();
        (0..20).for_each(|key| check(zswap, key, &noise(key)));
    }
}

#[test]
fn a_turn_of_the_shrinker_writes_all_that_is_staged() {
    let (zswap, _) = store_of(ZswapOptions::default());
    let all = 2 * BATCH as u64;
    store_all(&zswap, 0..all, noise);
    assert_eq!(held(&zswap), (all, all, 0));
    zswap.shrinker_turn(ShrinkerOptions::default(), &AtomicBool::new(false));
    assert_eq!(held(&zswap), (0, 0, all));
    (0..all).for_each(|key| check(&zswap, key, &noise(key)));
}

#[test]
fn the_shrinker_is_called_for_a_batch() {
    let (zswap, _) = store_of(ZswapOptions::default());
    let zswap = Arc::new(zswap);
    let options = ShrinkerOptions::default().interval(Duration::from_hours(1));
    let shrinker = Shrinker::start(Arc::clone(&zswap), options).unwrap();
    store_all(&zswap, 0..BATCH as u64, noise);
    let start = Instant::now();
    while zswap.counters().backing_pages < BATCH as u64 {
        assert!(start.elapsed() < Duration::from_secs(60), "it was not");
        std::thread::yield_now();
    }
    drop(shrinker);
    assert_eq!(held(&zswap), (0, 0, BATCH as u64));
    (0..BATCH as u64).for_each(|key| check(&zswap, key, &noise(key)));
}
