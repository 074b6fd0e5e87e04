//! Goal: a bounded store with a backing never loses, mixes up or invents a page, keeps its limits,
//! and its counters add up.
//! Method: seeded random histories of every operation, writeback among them, against a `HashMap` of
//! whole pages, for each eviction order, form of writing and behaviour when full. Tenants with
//! limits; audits on the way; threads that store, load and write back the same keys at once.
//! Writes fail for some runs of a batch, and pages go while they are written.
//! Blind to: backings that fail at any moment (the torture test has those).

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use uzswap::backing::{Backing, Block, BlockWrite, MemoryBacking};
use uzswap::budget::Counted;
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::SplitMix64;
use uzswap::zpool::ZpoolKind;
use uzswap::zswap::{
    Incompressible, Lru, RecordOptions, Shrinker, ShrinkerOptions, StoreError, Stored, TenantId,
    TenantOptions, WhenFull, WrittenAs, Zswap, ZswapOptions,
};

/// The page of a number: a header that tells it, and random bytes of a length that it draws.
fn page_of(number: u64) -> Page {
    let mut random = SplitMix64::new(number);
    let mut page = [0; PAGE_SIZE];
    let bytes = match number % 8 {
        0 => PAGE_SIZE,
        1 => 0,
        _ => (random.next_word() % 3000) as usize,
    };
    for byte in &mut page[..bytes] {
        *byte = random.next_word() as u8;
    }
    if number % 8 != 1 {
        page[..8].copy_from_slice(&number.to_le_bytes());
    }
    page
}

struct Setting {
    options: ZswapOptions,
    blocks: u32,
    seed: u64,
}

fn run_history(setting: &Setting, steps: usize) {
    let Setting { options, blocks, seed } = *setting;
    let place = format!("{options:?}, {blocks} blocks, seed {seed}");
    let backing = Box::new(MemoryBacking::new(blocks).unwrap());
    let zswap = Zswap::with_backing(options, backing).unwrap();
    let small = TenantOptions::default().max_bytes(40_000);
    let pinned = small.clone().writeback(false).max_bytes(30_000);
    let tenants = [
        TenantId::ROOT,
        zswap.add_tenant(TenantId::ROOT, small).unwrap(),
        zswap.add_tenant(TenantId::ROOT, pinned).unwrap(),
    ];
    let mut random = SplitMix64::new(seed);
    let mut below = |bound: u64| random.next_word() % bound;
    let mut model: HashMap<PageKey, (u64, TenantId)> = HashMap::new();
    let rejects = options.incompressible == Incompressible::Reject;
    let mut refused = 0;
    for step in 0..steps {
        let place = format!("step {step}, {place}");
        let key = PageKey([0, (1 << 14) - 8, 1 << 30][below(3) as usize] + below(80));
        let mut page = [0x5c; PAGE_SIZE];
        match below(32) {
            0..12 => {
                let number = below(1 << 40);
                let tenant = tenants[below(3) as usize];
                model.remove(&key);
                match zswap.store_for(tenant, key, &page_of(number)) {
                    Ok(stored) => {
                        let leaves =
                            stored == Stored::WrittenThrough || rejects && stored == Stored::AsIs;
                        assert!(tenant != tenants[2] || !leaves, "{place}");
                        model.insert(key, (number, tenant));
                    }
                    Err(error) => {
                        refused += 1;
                        let expected = tenant == tenants[2] || blocks < 1000;
                        assert!(
                            expected,
                            "{error}: {:?} at {place}",
                            std::error::Error::source(&error)
                        );
                        if blocks >= 1000 {
                            assert!(!matches!(error, StoreError::Backing { .. }), "{place}");
                        }
                    }
                }
            }
            12..20 => {
                let held = if step % 2 == 0 {
                    zswap.load(key, &mut page)
                } else {
                    let before = zswap.counters().promoted_pages;
                    let held = zswap.load_in_place(key, &mut page);
                    assert_eq!(zswap.counters().promoted_pages, before, "{place}");
                    held
                };
                assert_eq!(held.expect(&place), model.contains_key(&key), "{place}");
                if let Some(&(number, _)) = model.get(&key) {
                    assert!(page == page_of(number), "{place}");
                }
            }
            20..24 => {
                let held = zswap.load_exclusive(key, &mut page).expect(&place);
                let expected = model.remove(&key).map(|(number, _)| page_of(number));
                assert!(held.then_some(page) == expected, "{place}");
            }
            24 => assert_eq!(zswap.invalidate(key), model.remove(&key).is_some(), "{place}"),
            25 => {
                let bits = below(32);
                let end = PageKey(key.0 + below(1 << bits));
                let before = model.len();
                model.retain(|held, _| !(key..=end).contains(held));
                assert_eq!(zswap.invalidate_range(key..=end), before - model.len(), "{place}");
            }
            26 if step % 2 == 0 => {
                zswap.compact();
            }
            26 => {
                let pool_bytes = zswap.budget().pool_bytes();
                let wanted = below(pool_bytes + 1);
                let shrunk = zswap.shrink_to(wanted);
                let now = zswap.budget().pool_bytes();
                // Pages without writeback stay, and some 256 KiB are not worth compacting.
                let is_done = now <= wanted || shrunk.failed > 0 || now < 1 << 19;
                assert!(is_done && now <= pool_bytes, "{now}, {wanted}: {place}");
            }
            _ => {
                let tenant = tenants[below(3) as usize];
                let shrunk = zswap.shrink(tenant, below(100) as usize);
                assert!(tenant != tenants[2] || shrunk.pages() == 0, "{place}");
                // A staged page may have been used.
                assert!(shrunk.kept == 0 || rejects, "{place}");
            }
        }
        if step % 64 == 0 {
            check(&zswap, &model, &place);
        }
    }
    check(&zswap, &model, &place);
    assert!(refused < steps / 6, "{refused} of {steps} steps refused: {place}");
    let everything = PageKey(0)..=PageKey(u64::MAX);
    assert_eq!(zswap.invalidate_range(everything), model.len(), "{place}");
    zswap.audit().expect(&place);
    let (memory, counters) = (zswap.memory(), zswap.counters());
    assert_eq!((memory.pool_bytes, memory.compressed_bytes), (0, 0), "{place}");
    assert_eq!((counters.stored_pages, counters.backing_pages), (0, 0), "{place}");
}

fn check(zswap: &Zswap, model: &HashMap<PageKey, (u64, TenantId)>, place: &str) {
    zswap.audit().unwrap_or_else(|error| panic!("{error} at {place}"));
    let counters = zswap.counters();
    let held = counters.stored_pages + counters.backing_pages;
    assert_eq!(held, model.len() as u64, "{place}");
    let gone = counters.exclusive_loads + counters.invalidated_pages + counters.duplicate_entry;
    assert_eq!(counters.zswpout, gone + held, "{place}");
    let limit = zswap.options().max_pool_bytes;
    assert!(zswap.memory().pool_peak_bytes <= limit, "{place}");
    for tenant in zswap.tenants() {
        assert!(tenant.peak_bytes <= tenant.options.max_bytes, "{place}");
    }
}

fn settings(seeds: std::ops::Range<u64>) -> impl Iterator<Item = Setting> {
    seeds.flat_map(|seed| {
        Lru::ALL.into_iter().flat_map(move |lru| {
            WrittenAs::ALL.into_iter().flat_map(move |written_as| {
                WhenFull::ALL.into_iter().map(move |when_full| {
                    let options = ZswapOptions::default()
                        .records(Some(RecordOptions::default().lru(lru).checksum(seed % 4 != 3)))
                        .written_as(written_as)
                        .when_full(when_full)
                        .max_pool_bytes([16, 40, 200][seed as usize % 3] << 12)
                        .counted(Counted::ALL[seed as usize % 7 / 5])
                        .zpool(ZpoolKind::ALL[(seed / 3) as usize % ZpoolKind::ALL.len()])
                        .shards([1, 64][seed as usize % 2])
                        .incompressible(Incompressible::ALL[(seed / 2) as usize % 2]);
                    Setting { options, blocks: [1 << 12, 60][(seed / 5) as usize % 2], seed }
                })
            })
        })
    })
}

#[test]
fn every_order_and_form_agrees_with_a_map_of_pages() {
    for setting in settings(0..12) {
        run_history(&setting, 1200);
    }
}

#[test]
fn threads_that_share_keys_see_whole_pages_of_their_keys() {
    for lru in Lru::ALL {
        for written_as in WrittenAs::ALL {
            let options = ZswapOptions::default()
                .records(Some(RecordOptions::default().lru(lru).checksum(true)))
                .written_as(written_as)
                .max_pool_bytes(24 << 12)
                // which is what is asked of it below
                .counted(Counted::Pool);
            let backing = Box::new(MemoryBacking::new(4096).unwrap());
            let zswap = Arc::new(Zswap::with_backing(options, backing).unwrap());
            let shrinker = ShrinkerOptions::default().dynamic(true);
            let shrinker = Shrinker::start(Arc::clone(&zswap), shrinker).unwrap();
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let workers: Vec<_> = (0..4)
                    .map(|seed| {
                        let zswap = &zswap;
                        scope.spawn(move || share_keys(zswap, seed, 6000))
                    })
                    .collect();
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let pool_bytes = zswap.counters().pool_total_size;
                        assert!(pool_bytes <= (24 * PAGE_SIZE) as u64);
                        zswap.compact();
                        std::thread::yield_now();
                    }
                });
                let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
                stop.store(true, Ordering::Relaxed);
                results.into_iter().for_each(|result| result.unwrap());
            });
            drop(shrinker);
            zswap.audit().unwrap();
            let counters = zswap.counters();
            assert!(counters.written_back_pages > 100 && counters.backing_loads > 100);
            let gone =
                counters.exclusive_loads + counters.invalidated_pages + counters.duplicate_entry;
            assert_eq!(counters.zswpout, gone + counters.stored_pages + counters.backing_pages);
            zswap.invalidate_range(PageKey(0)..=PageKey(u64::MAX));
            zswap.audit().unwrap();
            assert_eq!(zswap.memory().pool_bytes, 0);
        }
    }
}

/// Stores, loads and removes pages of few keys; each page tells its key.
fn share_keys(zswap: &Zswap, seed: u64, steps: usize) {
    let mut random = SplitMix64::new(seed);
    for _ in 0..steps {
        let key = random.next_word() % 128;
        let mut page = [0; PAGE_SIZE];
        let held = match random.next_word() % 8 {
            0..4 => {
                let number = ((random.next_word() % (1 << 20)) << 10) | (key << 3) | 2;
                zswap.store(PageKey(key), &page_of(number)).unwrap();
                continue;
            }
            4 => zswap.load_exclusive(PageKey(key), &mut page).unwrap(),
            5 => {
                zswap.invalidate(PageKey(key));
                continue;
            }
            _ => zswap.load(PageKey(key), &mut page).unwrap(),
        };
        if held {
            let number = u64::from_le_bytes(page[..8].try_into().unwrap());
            assert!(number >> 3 & 127 == key && page == page_of(number), "key {key}");
        }
    }
}

#[test]
fn a_backing_full_of_copies_of_pages_in_the_pool_takes_others() {
    let backing = Box::new(MemoryBacking::new(8).unwrap());
    // A load moves a page to the hot end, so that others leave before it.
    let records = Some(RecordOptions::default().lru(Lru::Plain));
    let zswap = Zswap::with_backing(ZswapOptions::default().records(records), backing).unwrap();
    let store = |key: u64| zswap.store(PageKey(key), &page_of(key * 8 + 2)).unwrap();
    let mut page = [0; PAGE_SIZE];
    for key in 0..4 {
        store(key);
    }
    assert_eq!(zswap.shrink(TenantId::ROOT, 4).written_back, 4);
    for key in 0..4 {
        assert!(zswap.load(PageKey(key), &mut page).unwrap());
    }
    // Four pages in the pool with copies, in half of the blocks; eight others want to be written.
    let counters = zswap.counters();
    assert_eq!((counters.clean_pages, counters.backing_pages), (4, 0));
    for key in 4..12 {
        store(key);
    }
    for key in 0..4 {
        assert!(zswap.load(PageKey(key), &mut page).unwrap());
    }
    let mut left = 0;
    while left < 8 {
        let shrunk = zswap.shrink(TenantId::ROOT, 8 - left);
        assert!(shrunk.pages() > 0 && shrunk.failed == 0, "{shrunk:?}");
        left += shrunk.pages();
        zswap.audit().unwrap();
    }
    let counters = zswap.counters();
    assert_eq!((counters.backing_pages, counters.clean_pages), (8, 0));
    assert_eq!((counters.written_back_pages, counters.dropped_clean_pages), (12, 0));
    for key in 0..12 {
        assert!(zswap.load(PageKey(key), &mut page).unwrap() && page == page_of(key * 8 + 2));
    }
    zswap.audit().unwrap();
}

#[test]
fn a_page_that_is_stored_again_counts_as_used_as_before() {
    for (lru, first) in [(Lru::Frequency, 1), (Lru::SecondChance, 0), (Lru::Plain, 0)] {
        let records = Some(RecordOptions::default().lru(lru));
        let options = ZswapOptions::default().shards(1).records(records);
        let backing = Box::new(MemoryBacking::new(8).unwrap());
        let zswap = Zswap::with_backing(options, backing).unwrap();
        let store = |key: u64| _ = zswap.store(PageKey(key), &page_of(key * 8 + 2)).unwrap();
        let is_written = |key: u64| {
            let before = zswap.counters().backing_loads;
            assert!(zswap.load_in_place(PageKey(key), &mut [0; PAGE_SIZE]).unwrap());
            zswap.counters().backing_loads > before
        };
        (0..4).for_each(store);
        (0..8).for_each(|_| assert!(zswap.load(PageKey(0), &mut [0; PAGE_SIZE]).unwrap()));
        (0..4).for_each(store);
        assert_eq!(zswap.shrink(TenantId::ROOT, 1).written_back, 1);
        let written: Vec<u64> = (0..4).filter(|&key| is_written(key)).collect();
        assert_eq!(written, [first], "{lru}");
    }
}

/// As the kernel frees swap slots once more than half of them are in use.
#[test]
fn a_page_that_comes_back_leaves_its_copy_while_half_of_the_blocks_are_free() {
    for (blocks, kept) in [(8, 0), (11, 0), (12, 1), (64, 1)] {
        let backing = Box::new(MemoryBacking::new(blocks).unwrap());
        let options = ZswapOptions::default().written_as(WrittenAs::Pages);
        let zswap = Zswap::with_backing(options, backing).unwrap();
        (0..6).for_each(|key| _ = zswap.store(PageKey(key), &page_of(key * 8 + 2)).unwrap());
        while zswap.counters().backing_pages < 6 {
            zswap.shrink(TenantId::ROOT, 6);
        }
        let mut page = [0; PAGE_SIZE];
        assert!(zswap.load(PageKey(3), &mut page).unwrap() && page == page_of(3 * 8 + 2));
        let counters = zswap.counters();
        assert_eq!((counters.promoted_pages, counters.backing_pages), (1, 5), "{blocks} blocks");
        assert_eq!(counters.clean_pages, kept, "{blocks} blocks");
        zswap.audit().unwrap();
        // A clean one leaves without a write, the other is written once more.
        while zswap.counters().backing_pages < 6 {
            zswap.shrink(TenantId::ROOT, 1);
        }
        let counters = zswap.counters();
        assert_eq!(counters.dropped_clean_pages, kept, "{blocks} blocks");
        assert_eq!(counters.written_back_pages, 6 + 1 - kept, "{blocks} blocks");
        zswap.audit().unwrap();
    }
}

/// A backing that asks before each write, by its first block, whether it succeeds.
struct Asking<F>(MemoryBacking, F);

impl<F> std::fmt::Debug for Asking<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asking")
    }
}

impl<F: Fn(u32) -> bool + Send + Sync> Backing for Asking<F> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn block_count(&self) -> u32 {
        self.0.block_count()
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        for write in writes {
            match self.1(write.first) {
                true => self.0.write(std::slice::from_mut(write)),
                false => write.outcome = Err(io::ErrorKind::Other.into()),
            }
        }
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        self.0.read(first, blocks)
    }

    fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        self.0.discard(blocks)
    }
}

#[test]
fn pages_of_a_run_that_fails_stay_in_the_pool_and_others_leave() {
    const BLOCKS: u64 = 64;
    let fails = Arc::new(AtomicBool::new(false));
    let may_fail = Arc::clone(&fails);
    let succeeds = move |first: u32| first % 4 != 3 || !may_fail.load(Ordering::Relaxed);
    let backing = Box::new(Asking(MemoryBacking::new(BLOCKS as u32).unwrap(), succeeds));
    let options = ZswapOptions::default().shards(1).written_as(WrittenAs::Pages);
    let zswap = Zswap::with_backing(options, backing).unwrap();
    let page = |key: u64| page_of(key * 8 + 2);
    let store = |key: u64| _ = zswap.store(PageKey(key), &page(key)).unwrap();
    (0..BLOCKS).for_each(store);
    assert_eq!(zswap.shrink(TenantId::ROOT, BLOCKS as usize).written_back, BLOCKS as usize);
    // Blocks 1, 3, 5 and so on are free: a run of one block each.
    (1..BLOCKS).step_by(2).for_each(|key| assert!(zswap.invalidate(PageKey(key))));
    (100..116).for_each(store);
    fails.store(true, Ordering::Relaxed);
    let shrunk = zswap.shrink(TenantId::ROOT, 8);
    assert!(shrunk.failed > 0 && shrunk.written_back > 0, "{shrunk:?}");
    zswap.audit().unwrap();
    let mut loaded = [0; PAGE_SIZE];
    for key in (0..BLOCKS).step_by(2).chain(100..116) {
        assert!(zswap.load_in_place(PageKey(key), &mut loaded).unwrap() && loaded == page(key));
    }
}

/// A page goes while it is written; whether the write succeeds does not matter to it.
#[test]
fn a_page_that_is_removed_while_it_is_written_is_gone_and_kept_by_none() {
    for succeeds in [true, false] {
        let (begun, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let ends = Mutex::new((begun, may_go_on));
        let ask = move |_| {
            let ends = ends.lock().unwrap();
            ends.0.send(()).unwrap();
            ends.1.recv().unwrap();
            succeeds
        };
        let backing = Box::new(Asking(MemoryBacking::new(8).unwrap(), ask));
        let zswap = Zswap::with_backing(ZswapOptions::default(), backing).unwrap();
        zswap.store(PageKey(1), &page_of(2)).unwrap();
        let shrunk = std::thread::scope(|scope| {
            let shrinks = scope.spawn(|| zswap.shrink(TenantId::ROOT, 1));
            has_begun.recv().unwrap();
            assert!(zswap.invalidate(PageKey(1)));
            go_on.send(()).unwrap();
            shrinks.join().unwrap()
        });
        assert_eq!((shrunk.kept, shrunk.failed, shrunk.pages()), (1, 0, 0), "{succeeds}");
        assert!(zswap.is_empty());
        zswap.audit().unwrap();
    }
}

#[test]
fn free_blocks_apart_from_each_other_take_as_many_pages() {
    const BLOCKS: u64 = 64;
    let backing = Box::new(MemoryBacking::new(BLOCKS as u32).unwrap());
    let options = ZswapOptions::default().shards(1).written_as(WrittenAs::Pages);
    let zswap = Zswap::with_backing(options, backing).unwrap();
    let page = |key: u64| page_of(key * 8 + 2);
    let write_all = |keys: std::ops::Range<u64>| {
        let count = (keys.end - keys.start) as usize;
        keys.for_each(|key| _ = zswap.store(PageKey(key), &page(key)).unwrap());
        let shrunk = zswap.shrink(TenantId::ROOT, count);
        assert_eq!((shrunk.written_back, shrunk.failed), (count, 0));
    };
    write_all(0..BLOCKS);
    // Every other block is free.
    (0..BLOCKS).step_by(2).for_each(|key| assert!(zswap.invalidate(PageKey(key))));
    write_all(100..100 + BLOCKS / 2);
    let mut loaded = [0; PAGE_SIZE];
    for key in (1..BLOCKS).step_by(2).chain(100..100 + BLOCKS / 2) {
        assert!(zswap.load_in_place(PageKey(key), &mut loaded).unwrap() && loaded == page(key));
    }
    zswap.audit().unwrap();
}
