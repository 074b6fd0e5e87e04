//! Goal: a value comes back whole and as the last that was stored, whatever its length; nothing is
//! left of one that was refused, replaced or removed.
//! Method: every history of three operations on two keys, with lengths at the bounds of pages and
//! units, without a limit and with limits that refuse. Seeded random histories against a `HashMap`
//! for each compressor, with units, tenants, and a file. Threads, of which each stores one key, so
//! that an older value is noticed. A compressor that fails, and pages that are gone.
//! Blind to: 2^44 pages of one shard, beyond which a test of the module looks.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use uzswap::backing::{FileBacking, FileBackingOptions, MemoryBacking};
use uzswap::compressor::{
    CompressError, Compressor, CompressorKind, Corrupt, Filter, OUTPUT_BYTES,
};
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::SplitMix64;
use uzswap::values::{VALUE_BYTES_MAX, ValueError, Values};
use uzswap::zswap::{
    Incompressible, LoadError, TenantId, TenantOptions, WhenFull, WrittenAs, Zswap, ZswapOptions,
};

/// The value of a number: random bytes, one byte, or text that repeats. Its first 8 bytes
/// are the number.
fn value_of(number: u64, len: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(number);
    let mut value: Vec<u8> = match number % 4 {
        0 => (0..len).map(|_| random.next_word() as u8).collect(),
        1 => vec![number as u8; len],
        _ => {
            let text = random.next_word().to_le_bytes();
            (0..len).map(|at| text[at % 8] ^ (at / 600) as u8).collect()
        }
    };
    let head = len.min(8);
    value[..head].copy_from_slice(&number.to_le_bytes()[..head]);
    value
}

fn options(unit_pages: usize, compressor: &str) -> ZswapOptions {
    ZswapOptions::default()
        .unit_pages(unit_pages)
        .compressor(compressor.parse().unwrap())
        .incompressible(Incompressible::StoreAsIs)
}

/// Values, and the number and length that each key must have.
struct Modelled {
    values: Values,
    held: HashMap<u64, (u64, usize)>,
    tenant: TenantId,
    next: u64,
    refused: u64,
}

impl Modelled {
    fn new(zswap: Zswap) -> Modelled {
        let values = Values::new(zswap).unwrap();
        let held = HashMap::new();
        Modelled { values, held, tenant: TenantId::ROOT, next: 0, refused: 0 }
    }

    fn store(&mut self, key: u64, len: usize, kind: u64) {
        self.next += 4;
        let number = self.next | (kind % 4);
        let value = value_of(number, len);
        let before = self.values.len();
        let stored = match kind / 4 {
            0 => self.values.store(key, &value),
            1 => self.values.store_densely(key, &value),
            _ => self.values.store_for(self.tenant, key, &value),
        };
        let replaced = self.held.remove(&key).is_some();
        match stored {
            Ok(()) => drop(self.held.insert(key, (number, len))),
            Err(error) => {
                assert!(error.is_pool_limit() && error.key() == key, "{error:?}");
                assert_eq!(self.values.len(), before - u64::from(replaced));
                self.refused += 1;
            }
        }
    }

    fn load(&self, key: u64) {
        // Longer and shorter than the value, in turn.
        let mut value = vec![0x5c; key as usize % 3 * 5000];
        let there = self.values.load(key, &mut value).unwrap();
        assert_eq!(there, self.held.contains_key(&key), "value {key}");
        let len = self.held.get(&key).map(|&(number, len)| {
            assert!(value == value_of(number, len), "value {key} is another");
            len
        });
        assert_eq!(self.values.value_len(key), len);
        let mut room = vec![0x5c; len.unwrap_or(0) + 3];
        assert_eq!(self.values.load_into(key, &mut room).unwrap(), len);
        if let Some(len) = len {
            assert!(room[..len] == value && room[len..] == [0x5c; 3], "value {key} in a slice");
            match self.values.load_exclusive_into(key, &mut room[..len - 1]) {
                Err(ValueError::NoRoom { len: told, room, .. }) => {
                    assert_eq!((told, room), (len, len - 1));
                }
                other => panic!("value {key}: {other:?}"),
            }
        }
    }

    fn load_exclusive(&mut self, key: u64) {
        let mut value = Vec::new();
        let there = match self.values.value_len(key) {
            Some(len) if key.is_multiple_of(2) => {
                value.resize(len, 0);
                self.values.load_exclusive_into(key, &mut value).unwrap().is_some()
            }
            _ => self.values.load_exclusive(key, &mut value).unwrap(),
        };
        let held = self.held.remove(&key);
        assert_eq!(there, held.is_some(), "value {key}");
        let is_it = |(number, len)| value == value_of(number, len);
        assert!(held.is_none_or(is_it), "value {key} is another");
    }

    fn invalidate(&mut self, key: u64) {
        assert_eq!(self.values.invalidate(key), self.held.remove(&key).is_some(), "value {key}");
    }

    fn check(&self) {
        self.values.audit().unwrap();
        let zswap = self.values.zswap();
        zswap.audit().unwrap();
        assert!(zswap.budget().peak_bytes() <= zswap.budget().max_bytes());
        let stats = self.values.stats();
        let bytes = self.held.values().map(|&(_, len)| len as u64).sum();
        assert_eq!((stats.values, stats.value_bytes), (self.held.len() as u64, bytes));
    }
}

/// Does each history of three operations on two keys, and checks after each. An operation is a
/// store of one of `lengths`, a load that removes, an invalidation, or a compaction.
fn run_histories(lengths: &[usize], zswap: impl Fn() -> Zswap) -> u64 {
    let stores = lengths.len() * 2;
    let count = stores + 5;
    let mut refused = 0;
    for history in 0..count.pow(3) {
        let mut model = Modelled::new(zswap());
        for place in 0..3 {
            let operation = history / count.pow(place) % count;
            let key = (operation % 2) as u64 * 512; // in another shard
            match operation.checked_sub(stores) {
                None => model.store(key, lengths[operation / 2], (operation / 2 % 3) as u64),
                Some(0 | 1) => model.load_exclusive(key),
                Some(2 | 3) => model.invalidate(key),
                Some(_) => drop(model.values.zswap().compact()),
            }
            model.check();
            model.load(0);
            model.load(512);
        }
        refused += model.refused;
    }
    refused
}

#[test]
fn every_history_of_three_operations_holds_at_the_bounds_of_pages_and_units() {
    let lengths = [1, 4095, 4096, 4097, 8191, 8192, 8193, 12_288];
    let setting = options(2, "lz4").shards(1);
    assert_eq!(run_histories(&lengths, || setting.build().unwrap()), 0);
    let lengths = [4096, 4 * 4096 - 1, 4 * 4096, 4 * 4096 + 1];
    let setting = options(4, "zstd:1").shards(1);
    assert_eq!(run_histories(&lengths, || setting.build().unwrap()), 0);
}

#[test]
fn every_history_of_three_operations_holds_at_a_limit() {
    for kilobytes in [12, 20, 28, 40] {
        for when_full in [WhenFull::Bypass, WhenFull::Reclaim] {
            let setting = options(2, "lz4")
                .shards(1)
                .max_pool_bytes(kilobytes << 10)
                .accept_threshold_percent(100)
                .when_full(when_full);
            let lengths = [100, 4097, 8192, 12_289];
            let refused = run_histories(&lengths, || setting.build().unwrap());
            assert!(refused > 0, "{kilobytes} KiB hold everything");
        }
    }
}

#[test]
fn a_value_replaces_another_that_has_all_of_the_memory() {
    let setting = options(1, "lz4").max_pool_bytes(120 << 10).accept_threshold_percent(100);
    let mut model = Modelled::new(setting.build().unwrap());
    for len in [60_000, 80_000, 70_000, 90_001] {
        model.store(7, len, 0); // random bytes
        model.check();
        model.load(7);
    }
    assert_eq!(model.refused, 0, "the one before is given up first");
    model.store(7, 200_000, 0);
    assert_eq!((model.refused, model.values.len()), (1, 0));
    model.check();
}

#[test]
fn random_histories_hold_for_each_compressor_and_setting() {
    let compressors = ["lz4", "zstd:1", "lzo", "zstd:-5", "lzo-rle", "none"];
    for (seed, compressor) in (0..12).zip(compressors.into_iter().cycle()) {
        let has_units = matches!(compressor, "lz4" | "zstd:1" | "zstd:-5");
        let unit_pages = if has_units { [1, 2, 4, 16][seed as usize / 2 % 4] } else { 1 };
        let filters = if compressor == "none" { &Filter::ALL[..1] } else { &Filter::ALL[..] };
        let setting = options(unit_pages, compressor)
            .filter(filters[seed as usize % filters.len()])
            .records((seed % 4 != 3).then(Default::default))
            .max_pool_bytes(if seed % 3 == 0 { 400 << 10 } else { u64::MAX });
        run_history(Modelled::new(setting.build().unwrap()), seed);
    }
}

#[test]
fn values_whose_pages_are_in_a_file_come_back() {
    for (seed, written_as) in (20..24).zip([WrittenAs::Pages, WrittenAs::Objects].repeat(2)) {
        let folder = tempfile::tempdir().unwrap();
        let file = FileBackingOptions::new(folder.path().join("file"), Some(64 << 20));
        let setting = options([1, 4][seed as usize / 2 % 2], "lz4")
            .max_pool_bytes(300 << 10)
            .when_full(WhenFull::Reclaim)
            .written_as(written_as);
        let backing = Box::new(FileBacking::open(&file).unwrap());
        let zswap = Zswap::with_backing(setting, backing).unwrap();
        let model = run_history(Modelled::new(zswap), seed);
        let counters = model.values.zswap().counters();
        assert!(counters.written_back_pages > 100, "{counters:?}");
        assert_eq!(model.refused, 0, "the file has room");
    }
}

fn run_history(mut model: Modelled, seed: u64) -> Modelled {
    let is_large = seed.is_multiple_of(2);
    if let Ok(tenant) = model.values.zswap().add_tenant(TenantId::ROOT, TenantOptions::default()) {
        model.tenant = tenant;
    }
    let mut random = SplitMix64::new(seed);
    for step in 0..1500 {
        let mut below = |bound: u64| random.next_word() % bound;
        let key = below(24) * if below(2) == 0 { 1 } else { 0x0123_4567_89ab_cdef };
        match below(16) {
            0..7 => {
                let len = match below(8) {
                    0 => 4096 * below(9) + below(3) + 4095,
                    1 if is_large => below(1 << 18),
                    2..5 => below(300),
                    _ => below(40_000),
                };
                model.store(key, len as usize + 1, below(12));
            }
            7..11 => model.load(key),
            11 | 12 => model.load_exclusive(key),
            13 => model.invalidate(key),
            14 => drop(model.values.zswap().compact()),
            _ => drop(model.values.zswap().shrink(TenantId::ROOT, below(50) as usize)),
        }
        if step % 32 == 0 {
            model.check();
        }
    }
    model.held.keys().for_each(|&key| model.load(key));
    model.check();
    model
}

#[test]
fn lengths_are_from_one_byte_to_a_mebibyte() {
    let mut model = Modelled::new(options(16, "lz4").build().unwrap());
    for (key, len) in (0..).zip([1, VALUE_BYTES_MAX - 1, VALUE_BYTES_MAX]) {
        model.store(key, len, 2);
        model.load(key);
    }
    for (len, told) in [
        (0, "value 2 is refused: it has 0 bytes, of 1 to 1048576"),
        (VALUE_BYTES_MAX + 1, "value 2 is refused: it has 1048577 bytes, of 1 to 1048576"),
    ] {
        let error = model.values.store(2, &vec![7; len]).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.is_pool_limit()), (told, false));
        model.held.remove(&2);
        model.check();
        model.load(2);
        model.store(2, 5, 0);
    }
    let zswap = options(1, "lz4").build().unwrap();
    zswap.store(PageKey(9), &[0; PAGE_SIZE]).unwrap();
    let refused = Values::new(zswap).unwrap_err();
    assert_eq!(refused.to_string(), "values need an empty store, this one holds 1 pages");
    assert!(refused.zswap.contains(PageKey(9)));
}

#[test]
fn a_page_that_does_not_compress_is_refused_if_the_store_refuses_such_pages() {
    let setting = options(4, "lz4").incompressible(Incompressible::Reject);
    let mut model = Modelled::new(setting.build().unwrap());
    model.store(3, 20_000, 2);
    let mut value = value_of(2, 30_000);
    value[24_000..].copy_from_slice(&value_of(4, 6_000)); // random from its sixth page on
    let error = model.values.store(3, &value).unwrap_err();
    assert_eq!(error.to_string(), "value 3 of 30000 bytes is refused");
    assert!(matches!(error, ValueError::Refused { key: 3, len: 30_000, .. }));
    model.held.remove(&3);
    model.check();
    model.load(3);
    // Zeros are behind a short value, whatever the thread stored before.
    model.values.store(3, &value_of(4, 3_000)).unwrap();
    model.values.store(3, &value_of(4, 100)).unwrap();
    assert!(model.values.zswap().memory().compressed_bytes < 150);
}

#[test]
fn a_value_replaces_one_that_took_the_room_of_a_tenant_or_a_file() {
    let limit = |bytes| TenantOptions::default().max_bytes(bytes);
    let of_tenant = options(1, "lz4").build().unwrap();
    let blocks = Box::new(MemoryBacking::new(3).unwrap());
    let of_file = Zswap::with_backing(options(1, "lz4"), blocks).unwrap();
    for (zswap, max_bytes) in [(of_tenant, 3 * 4096), (of_file, 0)] {
        let mut model = Modelled::new(zswap);
        model.tenant = model.values.zswap().add_tenant(TenantId::ROOT, limit(max_bytes)).unwrap();
        for _ in 0..4 {
            model.store(1, 2 * 4096, 8); // random, so that there is room for one
            model.load(1);
            model.check();
        }
        assert_eq!(model.refused, 0);
        let error = model.values.store_for(model.tenant, 2, &value_of(4, 2 * 4096)).unwrap_err();
        assert!(!error.is_pool_limit() && model.values.len() == 1, "{error:?}");
    }
}

#[test]
fn the_budget_counts_the_table() {
    let setting = options(1, "lz4").max_pool_bytes(600 << 10).shards(1);
    let mut model = Modelled::new(setting.build().unwrap());
    // Everything that is in the budget is in one of these, beside what there is from the start.
    let uncounted = |model: &Modelled| {
        let (zswap, stats) = (model.values.zswap(), model.values.stats());
        let told = zswap.memory().metadata_bytes() + stats.table_bytes;
        told - zswap.budget().metadata_bytes()
    };
    let (at_start, table_bytes) = (uncounted(&model), model.values.stats().table_bytes);
    let mut key = 0;
    while model.refused == 0 {
        key += 1 << 40;
        model.store(key, 10, 1);
    }
    assert!(model.values.stats().table_bytes - table_bytes > model.values.len() * 16);
    assert_eq!(uncounted(&model), at_start);
    model.check();
    let keys: Vec<u64> = model.held.keys().copied().collect();
    keys.into_iter().for_each(|key| model.invalidate(key));
    assert_eq!(uncounted(&model), at_start);
    assert!(model.values.stats().table_bytes - table_bytes < 64 * 512);
    model.check();
}

/// The number of a value, which must be the value of that number, in one piece.
fn number_of(value: &[u8], key: u64) -> u64 {
    let number = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert_eq!(number >> 48, key, "value {key} is another's");
    assert_eq!(value.len(), len_of(number), "value {key} has another's length");
    assert!(value == value_of(number, value.len()), "value {key} is torn");
    number
}

fn len_of(number: u64) -> usize {
    8 + (uzswap::random::mix(number) % 30_000) as usize
}

/// Four threads, each the only one that stores its key; all load, take and remove any.
fn run_threads(zswap: Zswap) {
    let values = Values::new(zswap).unwrap();
    // No value of a key below its floor may come any more.
    let floors: [AtomicU64; 4] = Default::default();
    let taken = Mutex::new(HashSet::new());
    let stored = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for own in 0..4_u64 {
            let (values, floors, taken, stored) = (&values, &floors, &taken, &stored);
            scope.spawn(move || {
                let mut random = SplitMix64::new(own);
                for step in 1..3000_u64 {
                    let key = random.next_word() % 4;
                    let floor = || floors[key as usize].load(Ordering::SeqCst);
                    let mut value = Vec::new();
                    match random.next_word() % 12 {
                        0..4 => {
                            let number = own << 48 | step << 2 | (random.next_word() % 4);
                            let done = values.store(own, &value_of(number, len_of(number)));
                            stored.fetch_add(u64::from(done.is_ok()), Ordering::Relaxed);
                            let refused = done.inspect_err(|error| assert!(error.is_pool_limit()));
                            let floor = number + u64::from(refused.is_err());
                            floors[own as usize].store(floor, Ordering::SeqCst);
                        }
                        4 => drop(values.invalidate(key)),
                        5 => drop(values.zswap().compact()),
                        6 => drop(values.zswap().shrink(TenantId::ROOT, 10)),
                        7 | 8 => {
                            let floor = floor();
                            if values.load_exclusive(key, &mut value).unwrap() {
                                let number = number_of(&value, key);
                                assert!(number >= floor, "value {key} is an old one");
                                assert!(taken.lock().unwrap().insert(number), "taken twice");
                            }
                        }
                        _ => {
                            let floor = floor();
                            if values.load(key, &mut value).unwrap() {
                                let number = number_of(&value, key);
                                assert!(number >= floor, "value {key} is an old one");
                            }
                        }
                    }
                }
            });
        }
    });
    values.audit().unwrap();
    values.zswap().audit().unwrap();
    assert!(stored.into_inner() > 1000 && taken.into_inner().unwrap().len() > 100);
}

#[test]
fn threads_get_whole_values_and_no_old_ones() {
    run_threads(options(1, "lz4").shards(4).build().unwrap());
    run_threads(options(4, "zstd:1").shards(4).build().unwrap());
    let limited = options(4, "lz4").shards(1).max_pool_bytes(100 << 10);
    run_threads(limited.accept_threshold_percent(100).build().unwrap());
    let limited = limited.when_full(WhenFull::Reclaim);
    let backing = Box::new(MemoryBacking::new(4000).unwrap());
    run_threads(Zswap::with_backing(limited, backing).unwrap());
}

/// lz4, which fails on request.
#[derive(Debug)]
struct Failing {
    lz4: Box<dyn Compressor>,
    fails: Arc<AtomicBool>,
}

impl Compressor for Failing {
    fn name(&self) -> String {
        "failing".to_owned()
    }

    fn compress(&self, page: &Page, out: &mut [u8; OUTPUT_BYTES]) -> Result<usize, CompressError> {
        self.lz4.compress(page, out)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        match self.fails.load(Ordering::Relaxed) {
            true => Err(Corrupt("planted".to_owned())),
            false => self.lz4.decompress(object, page),
        }
    }
}

#[test]
fn a_corrupt_value_is_told_by_its_key_and_stays() {
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Failing { lz4: CompressorKind::Lz4.build(), fails: Arc::clone(&fails) };
    let zswap = Zswap::with_compressor(options(1, "lz4"), Box::new(failing)).unwrap();
    let mut model = Modelled::new(zswap);
    model.store(77, 9_000, 2);
    fails.store(true, Ordering::Relaxed);
    let mut value = Vec::new();
    for error in [
        model.values.load(77, &mut value).unwrap_err(),
        model.values.load_exclusive(77, &mut value).unwrap_err(),
    ] {
        assert_eq!(error.to_string(), "cannot load value 77 of 9000 bytes");
        let ValueError::Load { key: 77, source: LoadError::Corrupt { .. }, .. } = error else {
            panic!("{error:?}");
        };
    }
    fails.store(false, Ordering::Relaxed);
    model.load(77);
    let page = model.values.zswap().keys().max().unwrap();
    model.values.zswap().invalidate(page);
    let told = "value 77 of 9000 bytes is corrupt: the store does not hold all of its pages";
    assert_eq!(model.values.load(77, &mut value).unwrap_err().to_string(), told);
    assert_eq!(model.values.load_exclusive(77, &mut value).unwrap_err().key(), 77);
    let audit = model.values.audit().unwrap_err().to_string();
    assert_eq!(audit, "V2: a page of value 77 is not in the store");
    model.invalidate(77);
    model.check();
}
