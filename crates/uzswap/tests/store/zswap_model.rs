//! Goal: the store never loses, mixes up or invents a page, and its counters add up.
//! Method: seeded random histories of every operation against a `HashMap` of whole pages, for each
//! allocator, compressor and policy. Audits on the way; failing parts by doubles; two threads.
//! Blind to: what takes more pages than fit these small pools.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uzswap::AuditError;
use uzswap::budget::{Budget, Counted};
use uzswap::compressor::{CompressError, Compressor, CompressorKind, Corrupt, OUTPUT_BYTES};
use uzswap::index::radix::Radix;
use uzswap::index::{Entry, Index, IndexError, IndexKind, KeyRange, Replaced, Visit};
use uzswap::page::{PAGE_SIZE, Page, PageKey, fill_with_word};
use uzswap::random::SplitMix64;
use uzswap::same_filled::{SameFilled, SameFilledCheck};
use uzswap::zpool::zsmalloc::{ObjectMapping, ZsmallocOptions};
use uzswap::zpool::{Arena, Handle, UnknownHandle, Zpool, ZpoolError, ZpoolKind, ZpoolStats};
use uzswap::zswap::{
    Counters, Incompressible, StoreError, Stored, Zswap, ZswapOptions, ZswapParts,
};

struct Random(SplitMix64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(SplitMix64::new(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.next_word()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A page of any compressibility: one word, random bytes in front of a run, or nothing but random.
fn any_page(random: &mut Random) -> Page {
    let mut page = [0; PAGE_SIZE];
    match random.below(8) {
        // Words that fit into an index entry, and words that do not.
        0 => fill_with_word(&mut page, random.next() & [3, u64::MAX][random.below(2) as usize]),
        1 => random_front(random, PAGE_SIZE, &mut page),
        _ => {
            let bytes = random.below(PAGE_SIZE as u64) as usize;
            random_front(random, bytes, &mut page);
        }
    }
    page
}

fn random_front(random: &mut Random, bytes: usize, page: &mut Page) {
    page.fill(random.next() as u8);
    for byte in &mut page[..bytes] {
        *byte = random.next() as u8;
    }
}

/// A key among few, some of them far apart: replacements, neighbours and shard borders all happen.
fn any_key(random: &mut Random) -> PageKey {
    let base = [0, (1 << 14) - 8, 1 << 20, 1 << 52, u64::MAX - 15][random.below(5) as usize];
    PageKey(base + random.below(16))
}

/// The length that a page's object must have without its header, from the compressed length alone;
/// `None` where the compressor or the policy has none.
fn object_bytes(options: &ZswapOptions, page: &Page) -> Option<usize> {
    let mut out = [0; OUTPUT_BYTES];
    match options.compressor.build().compress(page, &mut out) {
        Ok(bytes) if bytes < PAGE_SIZE => Some(bytes),
        _ if options.incompressible == Incompressible::StoreAsIs => Some(PAGE_SIZE),
        result => result.ok(),
    }
}

/// Whether the store must keep `page` as its one word.
fn expect_word(options: &ZswapOptions, page: &Page) -> bool {
    let SameFilled { check, zero_only } = options.same_filled;
    let same_filled = page.chunks(8).all(|word| word == &page[..8]);
    same_filled && check != SameFilledCheck::Off && !(zero_only && page[..8] != [0; 8])
}

/// Expected answers of a store for `page`.
fn expect_refusal(options: &ZswapOptions, page: &Page) -> bool {
    let max = match options.zpool {
        ZpoolKind::Zbud => 3968,
        ZpoolKind::Zblock => 4079,
        ZpoolKind::Packed => 69_626,
        _ => PAGE_SIZE,
    };
    object_bytes(options, page).is_none_or(|bytes| bytes + options.object_header_bytes > max)
}

fn run_history(options: ZswapOptions, seed: u64, steps: usize) {
    let replay = format!("{options:?}, seed {seed}");
    let zswap = Zswap::new(options).unwrap();
    let mut random = Random::new(seed);
    let mut model: HashMap<PageKey, Page> = HashMap::new();
    let mut expected = Counters::default();
    for step in 0..steps {
        let place = format!("step {step} of {replay}");
        let mut key = any_key(&mut random);
        if options.index == IndexKind::BTree32 {
            key.0 &= u64::from(u32::MAX);
        }
        let mut page = [0x5c; PAGE_SIZE];
        match random.below(16) {
            0..8 => {
                let page = any_page(&mut random);
                expected.duplicate_entry += u64::from(model.remove(&key).is_some());
                let one_word = expect_word(&options, &page);
                match zswap.store(key, &page) {
                    Ok(Stored::SameFilled) => assert!(one_word, "{place}"),
                    Ok(_) => {
                        assert!(!one_word && !expect_refusal(&options, &page), "{place}");
                    }
                    Err(StoreError::CompressPoor { .. }) => {
                        assert!(expect_refusal(&options, &page), "{place}");
                        expected.reject_compress_poor += 1;
                        continue;
                    }
                    Err(StoreError::AllocFail { .. }) => {
                        assert!(options.max_pool_bytes < u64::MAX, "{place}");
                        expected.reject_alloc_fail += 1;
                        expected.pool_limit_hit += 1;
                        continue;
                    }
                    Err(error) => panic!("{error} at {place}"),
                }
                model.insert(key, page);
                expected.zswpout += 1;
            }
            8..11 => {
                let held = zswap.load(key, &mut page).expect(&place);
                assert_eq!(held.then_some(&page), model.get(&key), "{place}");
            }
            11..13 => {
                let held = zswap.load_exclusive(key, &mut page).expect(&place);
                expected.exclusive_loads += u64::from(held);
                assert_eq!(held.then_some(page), model.remove(&key), "{place}");
            }
            13 => {
                let held = model.remove(&key).is_some();
                assert_eq!(zswap.invalidate(key), held, "{place}");
                expected.invalidated_pages += u64::from(held);
            }
            14 => {
                let bits = random.below(30);
                let end = PageKey(key.0.saturating_add(random.below(1 << bits)));
                let before = model.len();
                model.retain(|held, _| !(key..=end).contains(held));
                let count = zswap.invalidate_range(key..=end);
                assert_eq!(count, before - model.len(), "{place}");
                expected.invalidated_pages += count as u64;
            }
            _ => {
                zswap.compact();
            }
        }
        if step % 32 == 0 {
            check(&zswap, &options, &model, &expected, &place);
        }
    }
    check(&zswap, &options, &model, &expected, &replay);
    let everything = PageKey(0)..=PageKey(u64::MAX);
    assert_eq!(zswap.invalidate_range(everything), model.len(), "{replay}");
    zswap.audit().expect(&replay);
    assert_eq!((zswap.memory().pool_bytes, zswap.memory().compressed_bytes), (0, 0), "{replay}");
}

fn check(
    zswap: &Zswap,
    options: &ZswapOptions,
    model: &HashMap<PageKey, Page>,
    expected: &Counters,
    place: &str,
) {
    zswap.audit().unwrap_or_else(|error| panic!("{error} at {place}"));
    let (mut same_filled_pages, mut as_is, mut compressed_bytes) = (0, 0, 0);
    for (&key, held) in model {
        let mut page = [0; PAGE_SIZE];
        assert!(zswap.load(key, &mut page).expect(place), "page {key} lost at {place}");
        assert!(page == *held, "page {key} differs at {place}");
        if expect_word(options, held) {
            same_filled_pages += 1;
            continue;
        }
        let bytes = object_bytes(options, held).expect(place);
        let whole = bytes == PAGE_SIZE && options.incompressible == Incompressible::StoreAsIs;
        as_is += u64::from(whole);
        compressed_bytes += bytes as u64;
    }
    let memory = zswap.memory();
    assert_eq!(memory.compressed_bytes, compressed_bytes, "{place}");
    let counters = zswap.counters();
    assert_eq!(
        counters,
        Counters {
            pool_total_size: memory.pool_bytes,
            stored_pages: model.len() as u64,
            same_filled_pages,
            stored_incompressible_pages: as_is,
            zswpin: counters.zswpin, // of this check too
            ..*expected
        },
        "{place}"
    );
}

#[test]
fn every_index_agrees_with_a_map_of_pages() {
    for index in IndexKind::ALL {
        for shards in [1, 64] {
            let options = ZswapOptions::default().index(index).shards(shards);
            run_history(options, 3, 2000);
        }
    }
}

#[test]
fn a_key_that_the_index_cannot_have_is_refused_and_known_to_be_absent() {
    let zswap = Zswap::new(ZswapOptions::default().index(IndexKind::BTree32)).unwrap();
    let (last, over) = (PageKey(u64::from(u32::MAX)), PageKey(1 << 32));
    zswap.store(last, &compressible(1)).unwrap();
    let error = zswap.store(over, &compressible(2)).unwrap_err();
    assert!(matches!(
        error,
        StoreError::IndexFull { source: IndexError::KeyTooLarge { max }, .. } if max == last
    ));
    let mut page = [0; PAGE_SIZE];
    assert!(!zswap.load(over, &mut page).unwrap() && !zswap.invalidate(over));
    assert_eq!(zswap.invalidate_range(over..=PageKey(u64::MAX)), 0);
    assert!(zswap.load(last, &mut page).unwrap() && page == compressible(1));
    assert_eq!(zswap.counters().reject_kmemcache_fail, 1);
    zswap.audit().unwrap();
}

#[test]
fn every_combination_agrees_with_a_map_of_pages() {
    for zpool in ZpoolKind::ALL {
        for compressor in ["lz4", "lzo", "lzo-rle", "zstd", "zstd:1", "deflate", "none"] {
            for incompressible in [Incompressible::Reject, Incompressible::StoreAsIs] {
                for object_header_bytes in [0, 8] {
                    let options = ZswapOptions::default()
                        .zpool(zpool)
                        .compressor(compressor.parse().unwrap())
                        .incompressible(incompressible)
                        .object_header_bytes(object_header_bytes);
                    run_history(options, 1, 600);
                }
            }
        }
    }
}

/// Every allocator, and zsmalloc with every mapping of objects.
fn every_pool() -> impl Iterator<Item = ZswapOptions> {
    let allocators = ZpoolKind::ALL.map(|zpool| ZswapOptions::default().zpool(zpool));
    let mappings = [ObjectMapping::Copy, ObjectMapping::Vm].map(|mapping| {
        ZswapOptions::default().zsmalloc(ZsmallocOptions::default().mapping(mapping))
    });
    allocators.into_iter().chain(mappings)
}

#[test]
fn every_same_filled_check_keeps_every_page() {
    for check in SameFilledCheck::ALL {
        for zero_only in [false, true] {
            for compressor in ["lz4", "none"] {
                let options = ZswapOptions::default()
                    .same_filled(SameFilled { check, zero_only })
                    .compressor(compressor.parse().unwrap())
                    .incompressible(Incompressible::StoreAsIs);
                run_history(options, 2, 600);
            }
        }
    }
}

#[test]
fn many_seeds_agree_with_a_map_of_pages() {
    for seed in 0..32 {
        for options in every_pool() {
            run_history(options, seed, 2000);
        }
    }
}

#[test]
fn a_pool_that_runs_out_refuses_and_loses_nothing() {
    for options in every_pool() {
        for pages in [0, 1, 2, 7, 20] {
            // Of the bytes that are no page nothing is taken.
            let max_pool_bytes = (pages << 12) + 4095;
            let counted = Counted::Pool;
            run_history(options.max_pool_bytes(max_pool_bytes).counted(counted), 3, 1500);
        }
    }
}

/// A compressor that fails and lies on request.
#[derive(Debug, Default)]
struct Faulty {
    /// Fail every call of compress.
    fail: Arc<AtomicBool>,
    /// Report every object as corrupt.
    corrupt: Arc<AtomicBool>,
}

impl Compressor for Faulty {
    fn name(&self) -> String {
        "faulty".to_owned()
    }

    fn compress(&self, page: &Page, out: &mut [u8; OUTPUT_BYTES]) -> Result<usize, CompressError> {
        if self.fail.load(Ordering::Relaxed) {
            return Err(CompressError::Failed("told to".to_owned()));
        }
        CompressorKind::Lz4.build().compress(page, out)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        if self.corrupt.load(Ordering::Relaxed) {
            return Err(Corrupt("told to".to_owned()));
        }
        CompressorKind::Lz4.build().decompress(object, page)
    }
}

/// An index without memory, on request.
#[derive(Debug)]
struct FullIndex {
    full: Arc<AtomicBool>,
    inner: Radix,
}

impl Index for FullIndex {
    fn name(&self) -> &'static str {
        "full"
    }

    fn insert_or_replace(&mut self, key: PageKey, entry: Entry) -> Replaced {
        if self.full.load(Ordering::Relaxed) && self.inner.get(key).is_none() {
            return Err(IndexError::NoMemory);
        }
        self.inner.insert_or_replace(key, entry)
    }

    fn get(&self, key: PageKey) -> Option<Entry> {
        self.inner.get(key)
    }

    fn remove(&mut self, key: PageKey, only: Option<Entry>) -> Option<Entry> {
        self.inner.remove(key, only)
    }

    fn take_range(&mut self, range: KeyRange, max: usize, taken: Visit<'_>) -> usize {
        self.inner.take_range(range, max, taken)
    }

    fn for_each(&self, range: KeyRange, visit: Visit<'_>) {
        self.inner.for_each(range, visit);
    }

    fn count(&self) -> usize {
        self.inner.count()
    }

    fn bytes(&self) -> usize {
        self.inner.bytes()
    }

    fn audit(&self) -> Result<(), AuditError> {
        self.inner.audit()
    }
}

/// A store whose compressor and index fail when these are set.
struct Doubles {
    zswap: Zswap,
    fail: Arc<AtomicBool>,
    corrupt: Arc<AtomicBool>,
    full: Arc<AtomicBool>,
}

fn doubles(incompressible: Incompressible) -> Doubles {
    let faulty = Faulty::default();
    let (fail, corrupt) = (Arc::clone(&faulty.fail), Arc::clone(&faulty.corrupt));
    let full = Arc::new(AtomicBool::new(false));
    let options = ZswapOptions::default().incompressible(incompressible);
    let arena = Arc::new(Arena::new());
    let zpool = options.zpool.build(Arc::clone(&arena), options.zsmalloc);
    let index_full = Arc::clone(&full);
    let index = |_: &Arc<Budget>| -> Box<dyn Index> {
        Box::new(FullIndex { full: Arc::clone(&index_full), inner: Radix::on(&Arc::default()) })
    };
    let parts = ZswapParts { arena, zpool, compressor: Box::new(faulty), backing: None };
    let zswap = Zswap::from_parts(options, parts, index).unwrap();
    Doubles { zswap, fail, corrupt, full }
}

fn compressible(word: u8) -> Page {
    let mut page = [word; PAGE_SIZE];
    page[7] = !word;
    page
}

#[test]
fn a_refused_store_drops_the_stale_page_and_nothing_else() {
    let Doubles { zswap, fail, full, .. } = doubles(Incompressible::Reject);
    for key in 1..=4 {
        zswap.store(PageKey(key), &compressible(key as u8)).unwrap();
    }
    fail.store(true, Ordering::Relaxed);
    assert!(matches!(
        zswap.store(PageKey(1), &compressible(9)),
        Err(StoreError::CompressFail { key: PageKey(1), .. })
    ));
    fail.store(false, Ordering::Relaxed);
    full.store(true, Ordering::Relaxed);
    for page in [compressible(9), [9; PAGE_SIZE]] {
        assert!(matches!(
            zswap.store(PageKey(1 << 30), &page),
            Err(StoreError::IndexFull { key: PageKey(0x4000_0000), .. })
        ));
    }
    // Replacing needs no memory of the index.
    zswap.store(PageKey(2), &[9; PAGE_SIZE]).unwrap();
    zswap.store(PageKey(3), &compressible(9)).unwrap();
    let mut page = [0; PAGE_SIZE];
    assert!(!zswap.load(PageKey(1), &mut page).unwrap());
    assert!(zswap.load(PageKey(3), &mut page).unwrap() && page == compressible(9));
    assert!(zswap.load(PageKey(2), &mut page).unwrap() && page == [9; PAGE_SIZE]);
    assert!(zswap.load(PageKey(4), &mut page).unwrap() && page == compressible(4));
    let counters = zswap.counters();
    assert_eq!((counters.reject_compress_fail, counters.reject_kmemcache_fail), (1, 2));
    assert_eq!((counters.stored_pages, counters.duplicate_entry), (3, 3));
    zswap.audit().unwrap();
}

#[test]
fn a_page_that_is_replaced_may_take_the_room_of_the_old_one() {
    // A pool of one page that an incompressible page fills.
    let options = ZswapOptions::default()
        .incompressible(Incompressible::StoreAsIs)
        .max_pool_bytes(1 << 12)
        .counted(Counted::Pool);
    let zswap = Zswap::new(options).unwrap();
    let mut random = Random::new(1);
    let (mut old, mut new) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    random_front(&mut random, PAGE_SIZE, &mut old);
    random_front(&mut random, PAGE_SIZE, &mut new);
    zswap.store(PageKey(1), &old).unwrap();
    assert!(matches!(zswap.store(PageKey(2), &new), Err(StoreError::AllocFail { .. })));
    zswap.store(PageKey(1), &new).unwrap();
    let mut page = [0; PAGE_SIZE];
    assert!(zswap.load(PageKey(1), &mut page).unwrap() && page == new);
    assert_eq!((zswap.counters().reject_alloc_fail, zswap.counters().duplicate_entry), (1, 1));
}

#[test]
fn a_page_can_be_loaded_until_it_is_replaced() {
    let (zswap, _, in_compress) = hooked();
    zswap.store(PageKey(1), &compressible(1)).unwrap();
    let other = Arc::clone(&zswap);
    in_compress.set(move || {
        // By another thread: a compressor must not call its own store.
        let loads = std::thread::spawn(move || {
            let mut page = [0; PAGE_SIZE];
            assert!(other.load(PageKey(1), &mut page).unwrap() && page == compressible(1));
        });
        loads.join().unwrap();
    });
    zswap.store(PageKey(1), &compressible(2)).unwrap();
    let mut page = [0; PAGE_SIZE];
    assert!(zswap.load(PageKey(1), &mut page).unwrap() && page == compressible(2));
}

#[test]
fn a_failing_compressor_stores_as_is_where_the_policy_says_so() {
    let Doubles { zswap, fail, .. } = doubles(Incompressible::StoreAsIs);
    fail.store(true, Ordering::Relaxed);
    assert_eq!(zswap.store(PageKey(1), &compressible(1)).unwrap(), Stored::AsIs);
    let mut page = [0; PAGE_SIZE];
    assert!(zswap.load_exclusive(PageKey(1), &mut page).unwrap() && page == compressible(1));
    assert_eq!(zswap.memory().pool_bytes, 0);
}

#[test]
fn a_corrupt_object_is_an_error_and_stays() {
    let Doubles { zswap, corrupt, .. } = doubles(Incompressible::Reject);
    zswap.store(PageKey(1), &compressible(1)).unwrap();
    corrupt.store(true, Ordering::Relaxed);
    let mut page = [0; PAGE_SIZE];
    for _ in 0..2 {
        let error = zswap.load_exclusive(PageKey(1), &mut page).unwrap_err();
        assert_eq!(error.key(), PageKey(1));
        assert!(error.to_string().contains("page 0x1 is corrupt in zsmalloc"), "{error}");
    }
    assert!(zswap.load(PageKey(1), &mut page).is_err());
    assert_eq!((zswap.counters().decompress_fail, zswap.counters().stored_pages), (3, 1));
    corrupt.store(false, Ordering::Relaxed);
    assert!(zswap.load_exclusive(PageKey(1), &mut page).unwrap() && page == compressible(1));
    zswap.audit().unwrap();
}

#[test]
fn real_compressors_refuse_what_is_not_a_page() {
    let mut random = Random::new(5);
    for name in CompressorKind::NAMES {
        let compressor = name.parse::<CompressorKind>().unwrap().build();
        let mut out = [0; OUTPUT_BYTES];
        let mut page = [0; PAGE_SIZE];
        for _ in 0..200 {
            let original = any_page(&mut random);
            let Ok(bytes) = compressor.compress(&original, &mut out) else { continue };
            compressor.decompress(&out[..bytes], &mut page).unwrap();
            assert!(page == original, "{name}");
            // A shorter object is never a whole page; any other may only not crash or overrun.
            assert!(compressor.decompress(&out[..bytes - 1], &mut page).is_err(), "{name}");
            assert!(compressor.decompress(&[], &mut page).is_err(), "{name}");
            let flipped = random.below(bytes as u64) as usize;
            out[flipped] ^= 1 << random.below(8);
            let _ = compressor.decompress(&out[..bytes], &mut page);
        }
    }
}

/// A page that says whose it is and which version, over enough random bytes to be worth a move.
fn stamped(key: u64, version: u32) -> Page {
    let mut page = [0; PAGE_SIZE];
    let mut random = Random::new(key << 32 | u64::from(version));
    let bytes = 64 + random.below(3000) as usize;
    random_front(&mut random, bytes, &mut page);
    page[..8].copy_from_slice(&key.to_le_bytes());
    page[8..12].copy_from_slice(&version.to_le_bytes());
    page
}

fn stamp(page: &Page) -> (u64, u32) {
    let key = u64::from_le_bytes(page[..8].try_into().unwrap());
    (key, u32::from_le_bytes(page[8..12].try_into().unwrap()))
}

#[test]
fn two_threads_in_one_store_never_see_a_wrong_page() {
    const KEYS: u64 = 48;
    for options in every_pool() {
        let zswap = Zswap::new(options).unwrap();
        // Odd threads' keys and even threads' are the same ones: everything collides.
        let latest: Vec<AtomicU32> = (0..KEYS).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (zswap, latest) = (&zswap, &latest);
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    for _ in 0..6000 {
                        let key = random.below(KEYS);
                        let mut page = [0; PAGE_SIZE];
                        match random.below(8) {
                            0..4 => {
                                let version = &latest[key as usize];
                                let version = version.fetch_add(1, Ordering::Relaxed) + 1;
                                zswap.store(PageKey(key), &stamped(key, version)).unwrap();
                            }
                            operation @ 4..7 => {
                                let held = if operation == 6 {
                                    zswap.load_exclusive(PageKey(key), &mut page)
                                } else {
                                    zswap.load(PageKey(key), &mut page)
                                };
                                if held.unwrap() {
                                    let (stored, version) = stamp(&page);
                                    assert_eq!(stored, key);
                                    assert!(
                                        version <= latest[key as usize].load(Ordering::Relaxed)
                                    );
                                    assert!(page == stamped(key, version), "a torn page");
                                }
                            }
                            _ if random.below(40) == 0 => {
                                zswap.compact();
                            }
                            _ => {
                                zswap.invalidate(PageKey(key));
                            }
                        }
                    }
                });
            }
        });
        zswap.audit().unwrap();
        zswap.invalidate_range(PageKey(0)..=PageKey(KEYS));
        zswap.audit().unwrap();
        assert_eq!(zswap.memory().pool_bytes, 0);
    }
}

#[test]
fn an_exclusive_load_is_given_to_one_thread() {
    const KEYS: u64 = 2000;
    let zswap = Zswap::new(ZswapOptions::default()).unwrap();
    for key in 0..KEYS {
        zswap.store(PageKey(key), &stamped(key, 1)).unwrap();
    }
    let taken: u64 = std::thread::scope(|scope| {
        let take_all = || {
            let mut page = [0; PAGE_SIZE];
            let mine = (0..KEYS).filter(|&key| {
                let held = zswap.load_exclusive(PageKey(key), &mut page).unwrap();
                assert!(!held || page == stamped(key, 1));
                held
            });
            mine.count() as u64
        };
        let threads = [scope.spawn(take_all), scope.spawn(take_all)];
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!((taken, zswap.counters().stored_pages), (KEYS, 0));
}

/// Runs a hook at the two moments of a load when the store's locks are between two owners.
struct Hooked<T> {
    inner: T,
    hook: Arc<Hook>,
}

/// A closure that runs once, at the moment it was set for.
#[derive(Default)]
struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Hook {
    fn set(&self, run: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(run));
    }

    fn run(&self) {
        let hook = self.0.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Hooked<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

/// The hook runs after the entry was looked up and before the pool pins its object.
impl Zpool for Hooked<Box<dyn Zpool>> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn object_size_max(&self) -> usize {
        self.inner.object_size_max()
    }

    fn insert(&self, object: &[u8]) -> Result<Handle, ZpoolError> {
        self.inner.insert(object)
    }

    fn read(&self, handle: Handle, reader: &mut dyn FnMut(&[u8])) -> Result<(), UnknownHandle> {
        self.hook.run();
        self.inner.read(handle, reader)
    }

    fn remove(&self, handle: Handle) -> Result<(), UnknownHandle> {
        self.inner.remove(handle)
    }

    fn compact(&self) -> usize {
        self.inner.compact()
    }

    fn stats(&self) -> ZpoolStats {
        self.inner.stats()
    }

    fn audit(&self) -> Result<(), AuditError> {
        self.inner.audit()
    }
}

/// The hook runs while a page is compressed or an object decompressed.
impl Compressor for Hooked<Box<dyn Compressor>> {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn compress(&self, page: &Page, out: &mut [u8; OUTPUT_BYTES]) -> Result<usize, CompressError> {
        self.hook.run();
        self.inner.compress(page, out)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        self.hook.run();
        self.inner.decompress(object, page)
    }
}

/// A store with hooks: before the pool pins an object, and while it is decompressed.
fn hooked() -> (Arc<Zswap>, Arc<Hook>, Arc<Hook>) {
    let (before_pin, in_decompress) = (Arc::new(Hook::default()), Arc::new(Hook::default()));
    let options = ZswapOptions::default();
    let arena = Arc::new(Arena::new());
    let zpool = options.zpool.build(Arc::clone(&arena), options.zsmalloc);
    let zpool = Box::new(Hooked { inner: zpool, hook: Arc::clone(&before_pin) });
    let compressor = options.compressor.build();
    let compressor = Box::new(Hooked { inner: compressor, hook: Arc::clone(&in_decompress) });
    let parts = ZswapParts { arena, zpool, compressor, backing: None };
    let zswap =
        Zswap::from_parts(options, parts, |_| Box::new(Radix::on(&Arc::default()))).unwrap();
    (Arc::new(zswap), before_pin, in_decompress)
}

/// Starts `run` on another thread and gives it time to get as far as it can.
fn meanwhile(zswap: &Arc<Zswap>, run: impl FnOnce(&Zswap) + Send + 'static) {
    let zswap = Arc::clone(zswap);
    std::thread::spawn(move || run(&zswap));
    std::thread::sleep(Duration::from_millis(50));
}

#[test]
fn an_object_is_pinned_before_its_entry_can_go() {
    let (zswap, before_pin, _) = hooked();
    zswap.store(PageKey(1), &compressible(1)).unwrap();
    let other = Arc::clone(&zswap);
    before_pin.set(move || {
        meanwhile(&other, |zswap| {
            zswap.invalidate(PageKey(1));
            // Into the slot that came free, had it been free too early.
            zswap.store(PageKey(2), &compressible(2)).unwrap();
        });
    });
    let mut page = [0; PAGE_SIZE];
    assert!(zswap.load(PageKey(1), &mut page).unwrap() && page == compressible(1));
}

#[test]
fn an_exclusive_load_never_erases_a_newer_page() {
    let (zswap, _, in_decompress) = hooked();
    zswap.store(PageKey(1), &compressible(1)).unwrap();
    let other = Arc::clone(&zswap);
    in_decompress.set(move || {
        meanwhile(&other, |zswap| {
            zswap.store(PageKey(1), &[2; PAGE_SIZE]).unwrap();
        });
    });
    let mut page = [0; PAGE_SIZE];
    assert!(zswap.load_exclusive(PageKey(1), &mut page).unwrap());
    assert!(page == [2; PAGE_SIZE], "the page that was stored last is the one to give");
    assert!(!zswap.load(PageKey(1), &mut page).unwrap());
}

#[test]
fn an_exclusive_load_does_not_wait_for_the_shard_while_it_pins() {
    let (zswap, _, in_decompress) = hooked();
    for key in 1..=3 {
        zswap.store(PageKey(key), &compressible(1)).unwrap();
    }
    let other = Arc::clone(&zswap);
    in_decompress.set(move || {
        // One that frees waits for the pin; one that reads waits behind it, and has the shard.
        meanwhile(&other, |zswap| assert!(zswap.invalidate(PageKey(3))));
        meanwhile(&other, |zswap| {
            assert!(zswap.load(PageKey(2), &mut [0; PAGE_SIZE]).unwrap());
        });
    });
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut page = [0; PAGE_SIZE];
        let held = zswap.load_exclusive(PageKey(1), &mut page).unwrap();
        tell.send(held && page == compressible(1)).unwrap();
    });
    // Not a measurement: without an end it would stand still for ever.
    assert_eq!(told.recv_timeout(Duration::from_secs(30)), Ok(true), "true, or a deadlock");
}
