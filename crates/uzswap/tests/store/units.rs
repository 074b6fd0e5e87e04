//! Goal: units lose, mix up or invent no page, free each object once and no earlier, and count what
//! they do.
//! Method: every history of four operations on a unit of two pages, and on two units. Seeded random
//! histories against a `HashMap` of whole pages, for each compressor with units: with records and
//! without, with a limit, with a backing. Threads on the same units. A pool that changes objects.
//! Audits on the way look into each object.
//! Blind to: tenants, which units do not serve.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use uzswap::backing::MemoryBacking;
use uzswap::compressor::{
    CompressError, Compressor, CompressorKind, Corrupt, Filter, OUTPUT_BYTES, UNIT_PAGES_MAX,
};
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::SplitMix64;
use uzswap::zpool::{Handle, UnknownHandle, Zpool, ZpoolError, ZpoolKind, ZpoolStats};
use uzswap::zswap::snapshot::SnapshotReader;
use uzswap::zswap::{
    Incompressible, RecordOptions, StoreError, Stored, TenantId, WhenFull, WrittenAs, Zswap,
    ZswapOptions, ZswapParts,
};

/// The page of a number, which it tells: random bytes, one word, or a repeated text.
fn page_of(number: u64) -> Page {
    let mut random = SplitMix64::new(number);
    let mut page = [0; PAGE_SIZE];
    match number % 8 {
        0 => page.fill_with(|| random.next_word() as u8),
        1 => return [number as u8; PAGE_SIZE],
        _ => {
            let text = random.next_word().to_le_bytes();
            let length = 8 + (number % 5) as usize;
            page.iter_mut().enumerate().for_each(|(at, byte)| {
                *byte = text[(at % length) & 7] ^ (at / 512) as u8;
            });
        }
    }
    page[..8].copy_from_slice(&number.to_le_bytes());
    page
}

fn options(unit_pages: usize, compressor: &str) -> ZswapOptions {
    let (fast, dense) = compressor.split_once('+').unwrap_or((compressor, ""));
    ZswapOptions::default()
        .unit_pages(unit_pages)
        .shards(1)
        .compressor(fast.parse().unwrap())
        .dense((!dense.is_empty()).then(|| dense.parse().unwrap()))
}

/// A store, and the numbers of the pages that must be in it.
struct Modelled {
    zswap: Zswap,
    pages: HashMap<u64, u64>,
    next: u64,
}

impl Modelled {
    fn new(zswap: Zswap) -> Modelled {
        Modelled { zswap, pages: HashMap::new(), next: 2 }
    }

    /// A number of a page that was not used before, of this kind.
    fn number(&mut self, kind: u64) -> u64 {
        self.next += 8;
        self.next & !7 | kind
    }

    fn store_all(&mut self, first: u64, kinds: &[u64]) -> usize {
        let numbers: Vec<u64> = kinds.iter().map(|&kind| self.number(kind)).collect();
        let pages: Vec<Page> = numbers.iter().map(|&number| page_of(number)).collect();
        let mut keys = (first..).zip(numbers);
        let mut refused = 0;
        self.zswap.store_all(PageKey(first), &pages, |key, stored| {
            let (expected, number) = keys.next().unwrap();
            assert_eq!(key, PageKey(expected), "each page once, in order");
            match stored {
                Ok(_) => drop(self.pages.insert(expected, number)),
                Err(_) => {
                    refused += 1;
                    self.pages.remove(&expected);
                }
            }
        });
        assert_eq!(keys.next(), None);
        refused
    }

    fn load(&self, key: u64) {
        let mut page = [0x5c; PAGE_SIZE];
        let loaded = self.zswap.load(PageKey(key), &mut page).unwrap();
        assert_eq!(loaded, self.pages.contains_key(&key), "page {key}");
        if let Some(&number) = self.pages.get(&key) {
            assert!(page == page_of(number), "page {key} is another");
        }
    }

    fn load_exclusive(&mut self, key: u64) -> usize {
        let mut page = [0x5c; PAGE_SIZE];
        let loaded = self.zswap.load_exclusive(PageKey(key), &mut page).unwrap();
        let number = self.pages.remove(&key);
        assert_eq!(loaded, number.is_some(), "page {key}");
        assert!(number.is_none_or(|number| page == page_of(number)), "page {key} is another");
        usize::from(loaded)
    }

    fn invalidate(&mut self, key: u64) -> usize {
        let was_there = self.pages.remove(&key).is_some();
        assert_eq!(self.zswap.invalidate(PageKey(key)), was_there, "page {key}");
        usize::from(was_there)
    }

    fn invalidate_range(&mut self, keys: RangeInclusive<u64>) -> usize {
        let there = keys.clone().filter(|key| self.pages.remove(key).is_some()).count();
        let range = PageKey(*keys.start())..=PageKey(*keys.end());
        assert_eq!(self.zswap.invalidate_range(range), there);
        there
    }

    fn check(&self) {
        self.zswap.audit().unwrap();
        self.zswap.audit_objects().unwrap();
        assert_eq!(self.zswap.len(), self.pages.len() as u64);
        self.pages.keys().for_each(|&key| self.load(key));
    }
}

/// Operations of the small histories, on the keys of a unit of two.
type Operation = fn(&mut Modelled) -> usize;

const OPERATIONS: [Operation; 10] = [
    |store| store.store_all(0, &[2, 3]),
    |store| store.store_all(0, &[2, 1]),
    |store| store.store_all(1, &[4, 5]), // of two units: alone
    |store| store.store_all(0, &[6]),
    |store| store.load_exclusive(0),
    |store| store.load_exclusive(1),
    |store| store.invalidate(0),
    |store| store.invalidate_range(0..=3),
    |store| store.zswap.compact(),
    |store| store.zswap.recompress_unit(PageKey(1)).unwrap(),
];

#[test]
fn every_history_of_four_operations_on_a_unit_of_two_pages_holds() {
    let count = OPERATIONS.len();
    for records in [None, Some(RecordOptions::default())] {
        for history in 0..count.pow(4) {
            let mut store = Modelled::new(options(2, "lz4").records(records).build().unwrap());
            for place in 0..4 {
                OPERATIONS[history / count.pow(place) % count](&mut store);
                store.check();
            }
        }
    }
}

#[test]
fn an_object_stays_until_its_last_page_has_left() {
    let mut store = Modelled::new(options(4, "zstd:1").build().unwrap());
    assert_eq!(store.store_all(8, &[2, 3, 1, 4]), 0);
    let objects = |store: &Modelled| store.zswap.zpool().stats().objects;
    let counters = |store: &Modelled| store.zswap.counters();
    assert_eq!((objects(&store), counters(&store).unit_pages), (1, 3), "one is a word");
    assert_eq!(counters(&store).same_filled_pages, 1);
    store.load_exclusive(9);
    store.invalidate(8);
    assert_eq!((objects(&store), counters(&store).unit_pages), (1, 1));
    store.load(11);
    assert_eq!(store.store_all(11, &[5]), 0);
    assert_eq!((objects(&store), counters(&store).unit_pages), (1, 0), "the page alone");
    store.check();
    assert_eq!(counters(&store).stored_units, 1);
}

#[test]
fn a_unit_is_decompressed_once_for_neighbours_in_order() {
    let mut store = Modelled::new(options(16, "lz4").zpool(ZpoolKind::Zsmalloc).build().unwrap());
    assert_eq!(store.store_all(0, &[2; 16]) + store.store_all(16, &[3; 16]), 0);
    let counts = |store: &Modelled| {
        let counters = store.zswap.counters();
        assert_eq!(counters.stored_units, 2, "both fit an object");
        (counters.opened_units, counters.units_opened_for_one)
    };
    (0..16).for_each(|key| store.load(key));
    assert_eq!(counts(&store), (1, 0));
    [0, 16, 1, 17, 18].into_iter().for_each(|key| store.load(key));
    assert_eq!(counts(&store), (4, 2), "0 and 1 were in one that was open; 16, 1 alone");
}

#[test]
fn compaction_splits_a_unit_of_which_half_is_left() {
    for records in [None, Some(RecordOptions::default())] {
        let mut store = Modelled::new(options(4, "zstd:1").records(records).build().unwrap());
        for first in (0..400).step_by(4) {
            assert_eq!(store.store_all(first, &[2, 3, 4, 5]), 0);
        }
        (0..400).filter(|key| key % 4 == 1).for_each(|key| _ = store.invalidate(key));
        store.zswap.compact();
        assert_eq!(store.zswap.counters().split_units, 0, "three of four are left");
        (0..200).filter(|key| key % 4 == 2).for_each(|key| _ = store.invalidate(key));
        store.zswap.compact();
        let counters = store.zswap.counters();
        assert_eq!((counters.split_units, counters.unit_pages), (50, 150));
        assert_eq!(store.zswap.zpool().stats().objects, 150);
        store.check();
    }
}

#[test]
fn compaction_keeps_a_unit_that_was_made_of_few_pages() {
    let mut store = Modelled::new(options(16, "zstd:1").build().unwrap());
    for first in (0..400).step_by(4) {
        assert_eq!(store.store_all(first, &[2, 3, 4, 5]), 0);
    }
    (0..200).filter(|key| key % 4 == 1).for_each(|key| _ = store.invalidate(key));
    (0..100).filter(|key| key % 4 == 2).for_each(|key| _ = store.invalidate(key));
    store.zswap.compact();
    assert_eq!(store.zswap.counters().split_units, 25, "two of four are left");
    store.check();
}

#[test]
fn pages_that_rest_become_one_dense_object() {
    for (records, compressor) in [(false, "lz4"), (true, "lz4"), (false, "lz4+zstd")] {
        let records = records.then(RecordOptions::default);
        let mut store = Modelled::new(options(8, compressor).records(records).build().unwrap());
        for key in [0, 1, 3, 4, 5, 7] {
            assert_eq!(store.store_all(key, &[[2, 1, 3, 4, 5, 6, 7, 2][key as usize]]), 0);
        }
        let compressed = |store: &Modelled| store.zswap.memory().compressed_bytes as usize;
        let objects = |store: &Modelled| store.zswap.zpool().stats().objects;
        let counts = |store: &Modelled| {
            let counters = store.zswap.counters();
            (counters.joined_units, counters.unit_pages, counters.recompressed_pages)
        };
        let join = |store: &Modelled, key| store.zswap.recompress_unit(PageKey(key)).unwrap();
        let (bytes_before, objects_before) = (compressed(&store), objects(&store));
        let saved = join(&store, 4);
        assert!(saved > 0 && compressed(&store) == bytes_before - saved, "{saved}");
        assert_eq!((counts(&store), objects(&store)), ((1, 5, 5), objects_before - 4));
        store.check();
        assert_eq!((join(&store, 0), counts(&store)), (0, (1, 5, 5)), "it is dense");
        // A page that came since is joined with those that stayed.
        assert_eq!(store.load_exclusive(0) + store.store_all(2, &[7]), 1);
        assert!(join(&store, 0) > 0);
        assert_eq!((counts(&store), objects(&store)), ((2, 5, 10), objects_before - 4));
        store.check();
        // A unit of the fast compressor becomes one of the dense one.
        assert_eq!(store.store_all(8, &[2, 3, 4, 5]), 0);
        let is_pair = compressor.contains('+');
        assert_eq!(join(&store, 8) > 0, is_pair);
        store.check();
    }
}

/// Has another thread do something while it compresses a unit, once.
#[derive(Debug)]
struct Interrupted(Box<dyn Compressor>, Arc<Mutex<Option<Interruption>>>);

type Interruption = (Arc<Zswap>, Interrupt);
type Interrupt = fn(&Zswap);

impl Compressor for Interrupted {
    fn name(&self) -> String {
        self.0.name()
    }

    fn compress(&self, page: &Page, out: &mut [u8; OUTPUT_BYTES]) -> Result<usize, CompressError> {
        self.0.compress(page, out)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        self.0.decompress(object, page)
    }

    fn unit_pages_max(&self) -> usize {
        self.0.unit_pages_max()
    }

    fn compress_unit(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        let planned = self.1.lock().unwrap().take();
        if let Some((store, interrupt)) = planned {
            std::thread::spawn(move || interrupt(&store)).join().unwrap();
        }
        self.0.compress_unit(pages, out)
    }

    fn decompress_unit(&self, object: &[u8], pages: &mut [u8]) -> Result<(), Corrupt> {
        self.0.decompress_unit(object, pages)
    }
}

/// Pages of the same compressed length.
fn marked(number: u64) -> Page {
    let mut page = page_of(2);
    page[0] = number as u8;
    page
}

#[test]
fn a_page_that_changes_while_it_is_joined_is_what_it_became() {
    // The page of each key, or of none; keys 4 to 7 are those of a unit.
    let cases: [(Interrupt, [u64; 4]); 5] = [
        (|zswap| _ = zswap.store(PageKey(5), &marked(85)), [2, 85, 4, 5]),
        (|zswap| _ = zswap.invalidate_range(PageKey(4)..=PageKey(6)), [0, 0, 0, 5]),
        (|zswap| _ = zswap.invalidate_range(PageKey(4)..=PageKey(7)), [0, 0, 0, 0]),
        // Another object of that length has the handle: it comes again after as many others.
        (
            |zswap| {
                (0..1 << 12).for_each(|number| {
                    zswap.invalidate(PageKey(4));
                    zswap.store(PageKey(4), &marked(number % 64 + 80)).unwrap();
                });
            },
            [143, 3, 4, 5],
        ),
        (
            |zswap| {
                (0..1 << 12).for_each(|number| {
                    zswap.invalidate_range(PageKey(4)..=PageKey(6));
                    let pages = [number % 64 + 80, 83, 84].map(marked);
                    zswap.store_all(PageKey(4), &pages, |_, stored| _ = stored.unwrap());
                });
            },
            [143, 83, 84, 5],
        ),
    ];
    for (records, is_unit) in [(false, false), (true, false), (false, true)] {
        for (case, (interrupt, expected)) in cases.into_iter().enumerate() {
            let setting = options(4, "lz4").records(records.then(RecordOptions::default));
            let planned = Arc::new(Mutex::new(None));
            let lz4 = "lz4".parse::<CompressorKind>().unwrap().build();
            let compressor = Box::new(Interrupted(lz4, Arc::clone(&planned)));
            let store = Arc::new(Zswap::with_compressor(setting, compressor).unwrap());
            let pages = [2, 3, 4, 5].map(marked);
            match is_unit {
                // Without one, so that there is something to join.
                true => store.store_all(PageKey(4), &pages[..3], |_, stored| _ = stored.unwrap()),
                false => (4..7).zip(&pages).for_each(|(key, page)| {
                    store.store(PageKey(key), page).unwrap();
                }),
            }
            store.store(PageKey(7), &pages[3]).unwrap();
            *planned.lock().unwrap() = Some((Arc::clone(&store), interrupt));
            store.recompress_unit(PageKey(4)).unwrap();
            assert!(planned.lock().unwrap().is_none(), "nothing was compressed");
            let mut page = [0; PAGE_SIZE];
            for (key, number) in (4..8).zip(expected) {
                let is_there = store.load(PageKey(key), &mut page).unwrap();
                assert_eq!(is_there, number > 0, "case {case}, page {key}");
                assert!(
                    number == 0 || page == marked(number),
                    "case {case}: page {key} is another"
                );
            }
            store.audit().unwrap();
            store.audit_objects().unwrap();
            assert_eq!(store.invalidate_range(PageKey(0)..=PageKey(9)) > 0, expected[3] > 0);
            assert_eq!((store.zpool().stats().objects, store.memory().compressed_bytes), (0, 0));
        }
    }
}

#[test]
fn a_unit_that_would_not_be_smaller_is_recompressed_page_by_page() {
    // Random pages of eight letters: zstd compresses them further than lz4 does.
    let page = |seed: u64| -> Page {
        let mut random = SplitMix64::new(seed);
        std::array::from_fn(|_| b'a' + (random.next_word() % 8) as u8)
    };
    let pool = |unit_pages, is_room: bool| {
        let setting = options(unit_pages, "lz4+zstd").zpool(ZpoolKind::Zsmalloc);
        let store = setting.build().unwrap();
        (0..unit_pages as u64).for_each(|key| {
            store.store(PageKey(key), &page(key)).unwrap();
        });
        assert!(store.recompress_unit(PageKey(0)).unwrap() > 0);
        let counters = store.counters();
        assert_eq!(counters.recompressed_pages, unit_pages as u64);
        assert_eq!(counters.joined_units, u64::from(is_room));
        store.audit_objects().unwrap();
        let mut restored = [0; PAGE_SIZE];
        for key in 0..unit_pages as u64 {
            assert!(store.load(PageKey(key), &mut restored).unwrap() && restored == page(key));
        }
    };
    pool(1, false);
    pool(2, true); // two pages of 1.6 KB fit an object of zsmalloc
    pool(16, false);
}

#[test]
fn random_histories_hold_for_each_compressor_and_setting() {
    let settings = ["lz4", "zstd:1", "zstd:-5", "deflate:1", "lz4+zstd"];
    for (seed, compressor) in (0..10).zip(settings.into_iter().cycle()) {
        let unit_pages = [2, 4, 8, 16][seed as usize % 4];
        let records = (seed % 3 != 0).then(RecordOptions::default);
        let header_bytes = if seed % 2 == 0 { 0 } else { 8 };
        let policy = [Incompressible::Reject, Incompressible::StoreAsIs][seed as usize % 2];
        let setting = options(unit_pages, compressor)
            .records(records)
            .object_header_bytes(header_bytes)
            .incompressible(policy)
            .filter(Filter::ALL[seed as usize % 3])
            .max_pool_bytes(if seed % 5 < 3 { u64::MAX } else { 40 << 12 });
        let mut zswap = setting.build().unwrap();
        let (blocks, is_objects) = (if seed % 4 == 1 { 40 } else { 1000 }, seed % 2 == 0);
        if records.is_some() && seed >= 4 {
            let as_what = if is_objects { WrittenAs::Objects } else { WrittenAs::Pages };
            let backing = Box::new(MemoryBacking::new(blocks).unwrap());
            let setting = setting.written_as(as_what).when_full(WhenFull::Reclaim);
            zswap = Zswap::with_backing(setting, backing).unwrap();
        }
        run_history(Modelled::new(zswap), seed);
    }
}

fn run_history(mut store: Modelled, seed: u64) {
    let mut random = SplitMix64::new(seed);
    for step in 0..3000 {
        let mut below = |bound: u64| random.next_word() % bound;
        let key = below(96) + if below(2) == 0 { 0 } else { (1 << 14) - 48 };
        match below(16) {
            0..6 => {
                let kinds: Vec<u64> = (0..=below(24)).map(|_| below(8)).collect();
                _ = store.store_all(key, &kinds);
            }
            6..8 => store.load(key),
            8..11 => _ = store.load_exclusive(key),
            11 => _ = store.invalidate(key),
            12 => _ = store.invalidate_range(key..=key + below(20)),
            13 => _ = store.zswap.compact(),
            14 if below(2) == 0 => _ = store.zswap.recompress(PageKey(key)).unwrap(),
            14 => _ = store.zswap.recompress_unit(PageKey(key)).unwrap(),
            _ => _ = store.zswap.shrink(TenantId::ROOT, below(20) as usize),
        }
        if step % 64 == 0 {
            store.check();
        }
    }
    store.check();
    let counters = store.zswap.counters();
    assert!(counters.stored_units > 20 && counters.opened_units > 20, "seed {seed}: {counters:?}");
}

/// A page of the version that a key has, or of none.
fn version_of(page: &Page, key: u64) -> u64 {
    let number = u64::from_le_bytes(page[..8].try_into().unwrap());
    assert!(*page == page_of(number), "page {key} is torn");
    assert_eq!((number >> 32), key, "page {key} is another's");
    number as u32 as u64
}

#[test]
fn threads_share_units_and_each_gets_the_page_of_its_key() {
    let zswap = Arc::new(options(4, "lz4").shards(4).build().unwrap());
    let taken = Arc::new(Mutex::new(HashSet::new()));
    let versions = Arc::new(AtomicU64::new(1));
    let workers: Vec<_> = (0..4)
        .map(|seed| {
            let (zswap, taken) = (Arc::clone(&zswap), Arc::clone(&taken));
            let versions = Arc::clone(&versions);
            std::thread::spawn(move || {
                let mut random = SplitMix64::new(seed);
                for _ in 0..4000 {
                    let first = (random.next_word() % 4) * 4;
                    let key = first + random.next_word() % 4;
                    let mut page = [0; PAGE_SIZE];
                    match random.next_word() % 8 {
                        0..3 => {
                            let version = versions.fetch_add(1, Ordering::Relaxed) * 8 + 2;
                            let page = |key: u64| page_of(key << 32 | version);
                            let pages: Vec<Page> = (first..first + 4).map(page).collect();
                            zswap.store_all(PageKey(first), &pages, |_, stored| {
                                stored.unwrap();
                            });
                        }
                        3 => _ = zswap.invalidate(PageKey(key)),
                        4 if random.next_word().is_multiple_of(2) => _ = zswap.compact(),
                        4 => _ = zswap.recompress_unit(PageKey(key)).unwrap(),
                        5 | 6 => {
                            if zswap.load_exclusive(PageKey(key), &mut page).unwrap() {
                                let of = (key, version_of(&page, key));
                                assert!(taken.lock().unwrap().insert(of), "{of:?} taken twice");
                            }
                        }
                        _ => {
                            if zswap.load(PageKey(key), &mut page).unwrap() {
                                version_of(&page, key);
                            }
                        }
                    }
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    zswap.audit().unwrap();
    zswap.audit_objects().unwrap();
    assert!(zswap.counters().stored_units > 1000);
}

#[test]
fn a_store_without_units_or_room_keeps_its_pages_one_by_one() {
    let error = options(4, "lzo").build().unwrap_err().to_string();
    assert_eq!(error, "compressor 'lzo' does not compress units of 4 pages; omit the units");
    let error = options(3, "lz4").build().unwrap_err().to_string();
    assert_eq!(error, "unit_pages must be 1, 2, 4, 8 or 16, got 3");
    for (unit_pages, kinds) in [(1, [2, 3, 4, 5]), (4, [0, 0, 0, 2])] {
        let mut store = Modelled::new(options(unit_pages, "lz4").build().unwrap());
        assert_eq!(store.store_all(0, &kinds), kinds.iter().filter(|&&kind| kind == 0).count());
        let counters = store.zswap.counters();
        assert_eq!((counters.stored_units, counters.unit_pages), (0, 0));
        store.check();
    }
}

#[test]
fn the_last_key_is_the_last_of_its_unit() {
    let store = options(4, "lz4").build().unwrap();
    let pages: Vec<Page> = (0..3).map(|number| page_of(number * 8 + 2)).collect();
    let mut keys = Vec::new();
    store.store_all(PageKey(u64::MAX - 2), &pages, |key, stored| {
        stored.unwrap();
        keys.push(key.0);
    });
    assert_eq!(keys, [u64::MAX - 2, u64::MAX - 1, u64::MAX]);
    assert_eq!(store.counters().unit_pages, 3);
    store.audit_objects().unwrap();
    assert!(store.load_exclusive(PageKey(u64::MAX), &mut [0; PAGE_SIZE]).unwrap());
}

/// zsmalloc, of which a test changes what is read.
#[derive(Debug)]
struct Hostile {
    pool: Box<dyn Zpool>,
    change: Arc<Mutex<Change>>,
}

type Change = fn(&mut Vec<u8>);

impl Zpool for Hostile {
    fn name(&self) -> &'static str {
        "hostile"
    }

    fn object_size_max(&self) -> usize {
        self.pool.object_size_max()
    }

    fn insert(&self, object: &[u8]) -> Result<Handle, ZpoolError> {
        self.pool.insert(object)
    }

    fn read(&self, handle: Handle, reader: &mut dyn FnMut(&[u8])) -> Result<(), UnknownHandle> {
        self.pool.read(handle, &mut |slot| {
            let mut slot = slot.to_vec();
            self.change.lock().unwrap()(&mut slot);
            reader(&slot);
        })
    }

    fn remove(&self, handle: Handle) -> Result<(), UnknownHandle> {
        self.pool.remove(handle)
    }

    fn compact(&self) -> usize {
        self.pool.compact()
    }

    fn stats(&self) -> ZpoolStats {
        self.pool.stats()
    }

    fn audit(&self) -> Result<(), uzswap::AuditError> {
        self.pool.audit()
    }
}

#[test]
fn a_changed_object_is_told_and_its_pages_stay() {
    let changes: [(Change, &str); 7] = [
        (|slot| slot.truncate(9), "the pool shows 9 bytes of 10"),
        (|slot| slot.truncate(60), "the pool shows 50 bytes of"),
        (|slot| slot[6] = 0b0011, "the unit does not have the page"),
        (|slot| slot[0] ^= 1, "checksum"), // a number that no thread has open
        (|slot| (slot[0], slot[20]) = (slot[0] ^ 1, slot[20] ^ 8), "checksum"),
        (|slot| (slot[0], slot[8]) = (slot[0] ^ 1, slot[8] - 1), "checksum"), // and one byte less
        (|slot| slot.fill(0), "the unit does not have the page"),
    ];
    for (change, told) in changes {
        for checksum in [true, false] {
            let setting =
                options(4, "lz4").records(Some(RecordOptions::default().checksum(checksum)));
            let parts = ZswapParts::of(setting).unwrap();
            let none: Change = |_| ();
            let planted = Arc::new(Mutex::new(none));
            let zpool = Box::new(Hostile { pool: parts.zpool, change: Arc::clone(&planted) });
            let zswap = Zswap::from_parts(setting, ZswapParts { zpool, ..parts }, |budget| {
                setting.index.build_on(budget)
            });
            let mut store = Modelled::new(zswap.unwrap());
            assert_eq!(store.store_all(0, &[2, 3, 4, 5, 6, 7, 6, 7]), 0);
            store.load(4);
            *planted.lock().unwrap() = change;
            let mut page = [0; PAGE_SIZE];
            match store.zswap.load_exclusive(PageKey(2), &mut page) {
                Err(error) => {
                    let source = std::error::Error::source(&error).unwrap().to_string();
                    assert!(!checksum || source.contains(told), "no '{told}' in: {source}");
                }
                Ok(_) => assert!(!checksum, "{told}"),
            }
            *planted.lock().unwrap() = none;
            store.load(5); // the unit that was open may be overwritten
            if checksum {
                assert_eq!(store.zswap.counters().decompress_fail, 1);
                store.check();
            }
        }
    }
}

#[test]
fn objects_of_units_are_read_for_exactly_as_many_pages() {
    let names = ["lz4", "zstd:-5", "zstd:3", "deflate:6"];
    let mut compressors: Vec<Box<dyn Compressor>> =
        names.map(|name| name.parse::<CompressorKind>().unwrap().build()).into();
    let build = |name: &str| name.parse::<CompressorKind>().unwrap().build();
    for filter in Filter::ALL {
        compressors.push(filter.before(build("lz4"), None));
        compressors.push(filter.before(build("lz4"), Some(build("zstd"))));
    }
    for compressor in compressors {
        assert_eq!(compressor.unit_pages_max(), UNIT_PAGES_MAX);
        for count in 2..=UNIT_PAGES_MAX {
            let pages: Vec<Page> = (0..count as u64).map(|page| page_of(page * 8 + 3)).collect();
            let mut out = vec![0; count * OUTPUT_BYTES];
            for dense in [false, true] {
                let bytes = match dense {
                    true => compressor.compress_unit_densely(pages.as_flattened(), &mut out),
                    false => compressor.compress_unit(pages.as_flattened(), &mut out),
                };
                let object = &out[..bytes.unwrap()];
                let mut room = vec![[0; PAGE_SIZE]; count + 1];
                let restored = compressor.decompress_unit(object, room[..count].as_flattened_mut());
                assert_eq!(restored, Ok(()));
                assert!(room[..count] == pages);
                for wrong in [1, count - 1, count + 1] {
                    if wrong != count {
                        let room = room[..wrong].as_flattened_mut();
                        let restored: Result<(), Corrupt> =
                            compressor.decompress_unit(object, room);
                        assert!(restored.is_err(), "{}: {wrong} of {count}", compressor.name());
                    }
                }
                let cut = &object[..object.len() - 1];
                assert!(compressor.decompress_unit(cut, room[..count].as_flattened_mut()).is_err());
                assert!(compressor.decompress_unit(&[], room[..1].as_flattened_mut()).is_err());
                // The largest room that is too small.
                let length = object.len();
                let short = compressor.compress_unit(pages.as_flattened(), &mut out[..length / 2]);
                assert!(short.is_err(), "{}: in half the bytes", compressor.name());
            }
        }
    }
}

#[test]
fn a_snapshot_has_each_page_of_a_unit_by_itself() {
    let mut store = Modelled::new(options(4, "zstd:1").build().unwrap());
    assert_eq!(store.store_all(0, &[2, 3, 1, 4, 5, 6]), 0);
    let mut out = Vec::new();
    store.zswap.snapshot_to(&mut out, Default::default()).unwrap();
    let snapshot = SnapshotReader::new("bytes", &out[..]).unwrap();
    let (zswap, _) = options(1, "zstd:1").build().unwrap().restore_from(snapshot).unwrap();
    let restored = Modelled { zswap, ..store };
    restored.check();
    assert_eq!(restored.zswap.counters().unit_pages, 0);
}

#[test]
fn pages_that_the_index_has_no_room_for_leave_no_object_behind() {
    for kilobytes in 5..40 {
        let setting = options(4, "lz4").records(None).max_pool_bytes(kilobytes << 10);
        let mut store = Modelled::new(setting.build().unwrap());
        let mut refused = 0;
        for first in (0..1 << 20).step_by(1 << 15) {
            refused += store.store_all(first, &[2, 3, 4, 5]);
            store.check();
        }
        assert!(refused > 0);
        let errors = store.zswap.counters();
        assert!(errors.pool_limit_hit > 0);
    }
}

#[test]
fn a_refused_unit_tells_the_reason_for_each_page() {
    let setting = options(4, "lz4").max_pool_bytes(0);
    let store = setting.build().unwrap();
    let pages: Vec<Page> = (0..4).map(|number| page_of(number * 8 + 2)).collect();
    let mut refused = 0;
    store.store_all(PageKey(0), &pages, |_, stored: Result<Stored, StoreError>| {
        assert!(stored.unwrap_err().is_pool_limit());
        refused += 1;
    });
    assert_eq!((refused, store.len()), (4, 0));
    store.audit().unwrap();
}
