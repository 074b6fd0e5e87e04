//! Goal: a snapshot has all pages of the store, restores to the same store, and is read only if it
//! is whole. A failure on the way loses neither the store nor the snapshot before.
//! Method: seeded histories over allocators, compressors and tenants, against a map of whole pages.
//! Every cut and every changed byte of a small file; a writer that fails at each call; real errors
//! of the file system. Threads that change the store meanwhile; a file of version 1.
//! Blind to: power failures.

use uzswap_testing::varied_pages;

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use uzswap::backing::{Backing, Block, BlockWrite, MemoryBacking};
use uzswap::budget::Counted;
use uzswap::compressor::CompressorKind;
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::zpool::ZpoolKind;
use uzswap::zswap::snapshot::{
    PageForm, RestoreError, SnapshotError, SnapshotFault, SnapshotOptions, SnapshotReader, VERSION,
};
use uzswap::zswap::{
    Incompressible, Lru, RecordOptions, Stats, TenantId, TenantOptions, WrittenAs, Zswap,
    ZswapOptions,
};
use varied_pages::{Random, varied_page};

type Model = HashMap<PageKey, Page>;

/// A store with some history, and what is in it.
fn store_of(options: ZswapOptions, blocks: Option<u32>, seed: u64, steps: usize) -> (Zswap, Model) {
    let zswap = match blocks {
        Some(blocks) => {
            Zswap::with_backing(options, Box::new(MemoryBacking::new(blocks).unwrap())).unwrap()
        }
        None => Zswap::new(options).unwrap(),
    };
    let mut random = Random::new(seed);
    let mut tenants = vec![TenantId::ROOT];
    if options.records.is_some() {
        let add = |parent, name: &str, max_bytes, writeback| {
            let name = name.to_owned();
            zswap
                .add_tenant(
                    parent,
                    TenantOptions::default().name(name).max_bytes(max_bytes).writeback(writeback),
                )
                .unwrap()
        };
        let above = add(TenantId::ROOT, "above", 1 << 20, true);
        tenants.extend([above, add(above, "below \"it\"", 1 << 18, true)]);
        tenants.push(add(TenantId::ROOT, "pinned", u64::MAX, false));
    }
    let mut model = Model::new();
    for _ in 0..steps {
        let key = PageKey((random.word() % 400) << (random.word() % 2 * 12));
        match random.below(10) {
            0..7 => {
                let page = match random.below(5) {
                    0 => [random.byte() & 1; PAGE_SIZE],
                    1 => {
                        let mut page = [0; PAGE_SIZE];
                        uzswap::page::fill_with_word(&mut page, random.word());
                        page
                    }
                    _ => varied_page(&mut random),
                };
                let tenant = tenants[random.below(tenants.len())];
                match zswap.store_for(tenant, key, &page) {
                    Ok(_) => model.insert(key, page),
                    Err(_) => model.remove(&key),
                };
            }
            7 => assert_eq!(zswap.invalidate(key), model.remove(&key).is_some()),
            8 => {
                zswap.shrink(TenantId::ROOT, random.below(30));
            }
            _ => {
                let mut page = [0; PAGE_SIZE];
                assert_eq!(zswap.load(key, &mut page).unwrap(), model.contains_key(&key));
            }
        }
    }
    (zswap, model)
}

fn check(zswap: &Zswap, model: &Model) {
    zswap.audit().unwrap();
    let counters = zswap.counters();
    assert_eq!(counters.stored_pages + counters.backing_pages, model.len() as u64);
    let mut page = [0; PAGE_SIZE];
    for (key, expected) in model {
        assert!(zswap.load(*key, &mut page).unwrap(), "page {key} is not there");
        assert!(page == *expected, "page {key} is another");
    }
}

/// The pages of a snapshot by content, not through a store.
fn pages_in(path: &Path) -> Model {
    let mut reader = SnapshotReader::open(path).unwrap();
    let kind: CompressorKind = reader.header().stats.options.compressor.parse().unwrap();
    let compressor = kind.build();
    let mut model = Model::new();
    while let Some(block) = reader.next_block().unwrap() {
        for entry in block.pages() {
            let mut page = [0; PAGE_SIZE];
            match entry.form {
                PageForm::Word(word) => {
                    uzswap::page::fill_with_word(&mut page, word);
                }
                PageForm::Object(object) => {
                    compressor.decompress(object, &mut page).unwrap();
                }
                PageForm::AsIs(bytes) => page = *bytes,
            }
            assert!(model.insert(entry.key, page).is_none());
        }
    }
    assert_eq!(reader.summary().unwrap().pages(), model.len() as u64);
    model
}

fn small(options: ZswapOptions) -> ZswapOptions {
    options.shards(4)
}

fn memory(blocks: u32) -> Option<Box<dyn Backing>> {
    Some(Box::new(MemoryBacking::new(blocks).unwrap()))
}

struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Place {
        // In memory where that is: every snapshot is synced.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Place { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn what_was_in_the_store_is_in_the_restored_one() {
    let place = Place::new();
    let path = place.path("s");
    let mut seed = 0;
    for zpool in ZpoolKind::ALL {
        for compressor in ["lz4", "lzo", "lzo-rle", "zstd", "deflate", "none"] {
            seed += 1;
            let options = small(
                ZswapOptions::default()
                    .zpool(zpool)
                    .compressor(compressor.parse().unwrap())
                    .incompressible(Incompressible::ALL[seed % 2])
                    .written_as(WrittenAs::ALL[seed / 2 % 2])
                    .records(Some(
                        RecordOptions::default().lru(Lru::ALL[seed % 4]).checksum(seed % 3 > 0),
                    ))
                    .object_header_bytes(seed % 3 * 8),
            );
            let blocks = [None, Some(40), Some(1000)][seed % 3];
            let (zswap, model) = store_of(options, blocks, seed as u64, 600);
            let before = zswap.stats();
            let summary = zswap.snapshot(&path).unwrap();
            assert_eq!(zswap.stats().counters, before.counters, "a snapshot counts as nothing");
            assert_eq!(summary.pages(), model.len() as u64);
            assert_eq!(summary.backing_pages(), before.counters.backing_pages);
            assert_eq!(summary.file_bytes, fs::metadata(&path).unwrap().len());
            assert!(pages_in(&path) == model);

            let backing = blocks.and_then(memory);
            let (restored, told) = Zswap::from_snapshot(options, backing, &path).unwrap();
            let place = format!("{options:?} {blocks:?}");
            assert_eq!(told.snapshot, summary);
            assert_eq!(restored.counters().pool_total_size > 0, before.memory.pool_bytes > 0);
            let comparable = |stats: Stats| {
                let mut stats = Stats { memory: Default::default(), ..stats };
                stats.counters.pool_total_size = 0;
                // A page that is in the pool is restored there alone.
                stats.counters.clean_pages = 0;
                stats.backing.as_mut().into_iter().for_each(|backing| backing.used_blocks = 0);
                stats
            };
            assert_eq!(comparable(restored.stats()), comparable(before), "{place}");
            check(&restored, &model);
            check(&zswap, &model);
        }
    }
}

/// The keys of a snapshot and whose they are.
fn owners(zswap: &Zswap) -> Vec<(PageKey, usize)> {
    let mut bytes = Vec::new();
    zswap.snapshot_to(&mut bytes, SnapshotOptions::default()).unwrap();
    let mut reader = SnapshotReader::new("bytes", &bytes[..]).unwrap();
    let mut owners = Vec::new();
    while let Some(block) = reader.next_block().unwrap() {
        owners.extend(block.pages().map(|page| (page.key, page.tenant)));
    }
    owners.sort_unstable();
    owners
}

#[test]
fn each_page_is_of_its_tenant_in_the_restored_store() {
    let place = Place::new();
    let zswap = Zswap::with_backing(ZswapOptions::default(), memory(64).unwrap()).unwrap();
    let add = || zswap.add_tenant(TenantId::ROOT, TenantOptions::default()).unwrap();
    let tenants = [TenantId::ROOT, add(), add()];
    // A word, an object and one in the backing for each.
    for (number, &tenant) in tenants.iter().enumerate() {
        for kind in 0..3_u8 {
            let mut page = [number as u8 + 1; PAGE_SIZE];
            page[0] += kind;
            let key = PageKey((number * 3) as u64 + u64::from(kind));
            zswap.store_for(tenant, key, &page).unwrap();
            if kind == 1 {
                zswap.shrink(tenant, 1);
            }
        }
    }
    let expected: Vec<_> = (0..9).map(|key| (PageKey(key), key as usize / 3)).collect();
    assert_eq!(zswap.counters().same_filled_pages, 3);
    assert_eq!((zswap.counters().backing_pages, owners(&zswap)), (3, expected.clone()));
    zswap.snapshot(place.path("s")).unwrap();
    for blocks in [None, memory(64)] {
        let (restored, _) =
            Zswap::from_snapshot(ZswapOptions::default(), blocks, place.path("s")).unwrap();
        assert_eq!(owners(&restored), expected);
        restored.audit().unwrap();
    }
}

#[test]
fn a_store_without_records_has_snapshots_too() {
    let place = Place::new();
    let path = place.path("s");
    let (zswap, model) = store_of(small(ZswapOptions::bare()), None, 5, 500);
    zswap.snapshot(&path).unwrap();
    let (restored, _) = Zswap::from_snapshot(small(ZswapOptions::bare()), None, &path).unwrap();
    check(&restored, &model);
    let with_records = small(ZswapOptions::default());
    let (restored, _) = Zswap::from_snapshot(with_records, None, &path).unwrap();
    check(&restored, &model);

    let (zswap, _) = store_of(with_records, None, 5, 500);
    zswap.snapshot(&path).unwrap();
    let refused = Zswap::from_snapshot(small(ZswapOptions::bare()), None, &path).unwrap_err();
    assert!(matches!(refused, RestoreError::Tenants(_)), "{refused}");
}

#[test]
fn another_compressor_takes_the_pages() {
    let place = Place::new();
    let path = place.path("s");
    for (seed, from, to) in
        [(1, "lz4", "zstd"), (2, "zstd:19", "zstd:1"), (3, "lzo", "lzo-rle"), (4, "none", "lz4")]
    {
        let options = |name: &str| small(ZswapOptions::default().compressor(name.parse().unwrap()));
        for (blocks, backing) in [(None, None), (Some(500), memory(500)), (Some(500), None)] {
            let (zswap, model) = store_of(options(from), blocks, seed, 600);
            zswap.snapshot(&path).unwrap();
            let (restored, _) = Zswap::from_snapshot(options(to), backing, &path).unwrap();
            check(&restored, &model);
        }
    }
}

#[test]
fn the_order_of_eviction_and_the_uses_are_kept() {
    let place = Place::new();
    let path = place.path("s");
    for lru in Lru::ALL {
        let options = ZswapOptions::default()
            .shards(1)
            .records(Some(RecordOptions::default().lru(lru).checksum(true)));
        let zswap = Zswap::with_backing(options, memory(1000).unwrap()).unwrap();
        let mut random = Random::new(9);
        let mut page = [0; PAGE_SIZE];
        for key in 0..500_u64 {
            page[..8].copy_from_slice(&random.word().to_le_bytes());
            zswap.store(PageKey(key * 7919 % 500), &page).unwrap();
        }
        for _ in 0..700 {
            zswap.load(PageKey(random.word() % 500), &mut page).unwrap();
        }
        zswap.shrink(TenantId::ROOT, 50);
        zswap.snapshot(&path).unwrap();
        let (restored, _) = Zswap::from_snapshot(options, memory(1000), &path).unwrap();
        let in_backing = |zswap: &Zswap| {
            zswap.shrink(TenantId::ROOT, 200);
            let path = place.path("after");
            zswap.snapshot(&path).unwrap();
            let mut reader = SnapshotReader::open(&path).unwrap();
            let mut keys = Vec::new();
            while let Some(block) = reader.next_block().unwrap() {
                keys.extend(block.pages().map(|page| (page.key, page.in_backing, page.uses)));
            }
            keys
        };
        let (ours, theirs) = (in_backing(&zswap), in_backing(&restored));
        assert_eq!(ours.iter().filter(|page| page.1).count(), 250);
        assert_eq!(ours, theirs, "{lru}");
    }
}

#[test]
fn what_does_not_fit_goes_to_the_backing_or_is_refused() {
    let place = Place::new();
    let path = place.path("s");
    let options = small(ZswapOptions::default());
    let zswap = Zswap::with_backing(options, memory(500).unwrap()).unwrap();
    let mut random = Random::new(3);
    let mut model = Model::new();
    for key in (0..600).map(PageKey) {
        let page = varied_page(&mut random);
        zswap.store(key, &page).unwrap();
        model.insert(key, page);
    }
    zswap.shrink(TenantId::ROOT, 50);
    zswap.snapshot(&path).unwrap();
    let max_pool_bytes = zswap.counters().pool_total_size / 3;
    let limited = options.max_pool_bytes(max_pool_bytes).counted(Counted::Pool);
    let (restored, told) = Zswap::from_snapshot(limited, memory(2000), &path).unwrap();
    assert!(restored.memory().pool_peak_bytes <= max_pool_bytes);
    assert!(told.backing_pages > zswap.counters().backing_pages);
    check(&restored, &model);

    let bytes = fs::read(&path).unwrap();
    for backing in [None, memory(20)] {
        let refused = Zswap::from_snapshot(limited, backing, &path).unwrap_err();
        let RestoreError::DoesNotFit { pages, of_pages, bytes, .. } = refused else {
            panic!("{refused}")
        };
        assert_eq!(of_pages, model.len() as u64);
        assert!((1..of_pages).contains(&pages) && bytes >= pages);
    }
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_used_store_takes_no_snapshot() {
    let place = Place::new();
    let path = place.path("s");
    let (zswap, model) = store_of(small(ZswapOptions::default()), None, 3, 50);
    zswap.snapshot(&path).unwrap();
    let used = Zswap::new(ZswapOptions::default()).unwrap();
    used.store(PageKey(1), &[1; PAGE_SIZE]).unwrap();
    let refused = used.restore_from(SnapshotReader::open(&path).unwrap()).unwrap_err();
    assert!(matches!(refused, RestoreError::Used));
    let new = Zswap::new(ZswapOptions::default()).unwrap();
    let (restored, _) = new.restore_from(SnapshotReader::open(&path).unwrap()).unwrap();
    check(&restored, &model);
}

/// A small snapshot with every kind of page.
fn small_snapshot() -> (Vec<u8>, Model) {
    let options = ZswapOptions::default()
        .shards(1)
        .written_as(WrittenAs::Objects)
        .incompressible(Incompressible::StoreAsIs)
        .latencies(false);
    let zswap = Zswap::with_backing(options, memory(8).unwrap()).unwrap();
    let name = "t".to_owned();
    let tenant = zswap.add_tenant(TenantId::ROOT, TenantOptions::default().name(name)).unwrap();
    let mut model = Model::new();
    for key in 0..6_u8 {
        let mut page = [0; PAGE_SIZE];
        page[..100].fill(key + 1);
        if key == 5 {
            page = varied_noise();
        }
        zswap.store_for(tenant, PageKey(key.into()), &page).unwrap();
        model.insert(PageKey(key.into()), page);
    }
    zswap.store(PageKey(u64::MAX), &[9; PAGE_SIZE]).unwrap();
    model.insert(PageKey(u64::MAX), [9; PAGE_SIZE]);
    zswap.shrink(TenantId::ROOT, 2);
    let mut bytes = Vec::new();
    let summary = zswap.snapshot_to(&mut bytes, SnapshotOptions::default()).unwrap();
    assert_eq!((summary.same_filled_pages, summary.pool_as_is_pages), (1, 1));
    assert_eq!((summary.pool_objects, summary.backing_objects), (3, 2));
    (bytes, model)
}

fn varied_noise() -> Page {
    Random::new(77).bytes(PAGE_SIZE).try_into().unwrap()
}

fn read_all(bytes: &[u8]) -> Result<u64, SnapshotFault> {
    let mut reader = SnapshotReader::new("bytes", bytes).map_err(|error| error.fault)?;
    while reader.next_block().map_err(|error| error.fault)?.is_some() {}
    Ok(reader.summary().unwrap().pages())
}

#[test]
fn every_cut_and_every_changed_byte_is_noticed() {
    let (bytes, _) = small_snapshot();
    assert_eq!(read_all(&bytes).unwrap(), 7);
    for length in 0..bytes.len() {
        let fault = read_all(&bytes[..length]).unwrap_err();
        let end = bytes.len() as u64;
        assert!(
            matches!(fault, SnapshotFault::Truncated { at, missing, .. }
                if at == length as u64 && (1..=end - at).contains(&missing)),
            "{length}: {fault}"
        );
    }
    let mut changed = bytes.clone();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            changed[at] ^= 1 << bit;
            let fault = read_all(&changed).unwrap_err();
            match at {
                0..8 => assert!(matches!(fault, SnapshotFault::Magic { .. })),
                8..12 => assert!(matches!(fault, SnapshotFault::Version { .. })),
                _ => assert!(fault.is_damage(), "{at}: {fault}"),
            }
            changed[at] ^= 1 << bit;
        }
    }
    changed.push(0);
    let fault = read_all(&changed).unwrap_err();
    let end = bytes.len() as u64;
    assert!(matches!(fault, SnapshotFault::Trailing { at } if at == end), "{fault}");
}

#[test]
fn blocks_that_are_moved_doubled_or_left_out_are_noticed() {
    let options = ZswapOptions::default().compressor(CompressorKind::None);
    let zswap = Zswap::new(options).unwrap();
    let mut page = [0; PAGE_SIZE];
    for key in 0..300_u64 {
        page[..8].copy_from_slice(&(key + 1).to_le_bytes());
        zswap.store(PageKey(key), &page).unwrap();
    }
    let mut bytes = Vec::new();
    zswap.snapshot_to(&mut bytes, SnapshotOptions::default()).unwrap();
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let first = 16 + u32_at(12) + 8;
    let second = first + 12 + u32_at(first + 8) + 8;
    let third = second + 12 + u32_at(second + 8) + 8;
    assert_eq!((&bytes[second..second + 4], second - first), (&b"PAGE"[..], third - second));
    let (start, one, two, rest) =
        (&bytes[..first], &bytes[first..second], &bytes[second..third], &bytes[third..]);
    for changed in [
        [start, two, one, rest].concat(),
        [start, one, one, rest].concat(),
        [start, one, one, two, rest].concat(),
        [start, two, rest].concat(),
        [start, one, rest].concat(),
    ] {
        assert!(read_all(&changed).unwrap_err().is_damage());
    }
    assert_eq!(read_all(&[start, one, two, rest].concat()).unwrap(), 300);
    // A fault names the block that it is in, and where that begins.
    let blocks = [first, second, third, bytes.len()];
    for (number, at) in blocks.into_iter().take(3).enumerate() {
        let mut changed = bytes.clone();
        changed[at + 100] ^= 1;
        let fault = read_all(&changed).unwrap_err();
        let told = format!("damaged in block {number} of pages, which begins at byte {at}: ");
        assert!(fault.to_string().starts_with(&told), "{fault}");
        let fault = read_all(&bytes[..at + 100]).unwrap_err().to_string();
        assert!(fault.contains(&format!("before the end of block {number} of pages")), "{fault}");
    }
    let trailer = bytes.len() - 84;
    let mut changed = bytes.clone();
    changed[trailer + 13] ^= 1;
    let fault = read_all(&changed).unwrap_err().to_string();
    assert!(fault.starts_with("damaged in the trailer, which begins at byte "), "{fault}");
    assert!(fault.contains(&format!("others from byte {} on", trailer + 13)), "{fault}");
}

/// Takes so many calls of `write`, then fails.
struct Failing {
    calls: usize,
    bytes: Vec<u8>,
    flushes: bool,
}

impl Write for Failing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.calls == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.calls -= 1;
        // A short write: the rest comes again.
        let taken = bytes.len().min(50_000);
        self.bytes.extend(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.flushes { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }
}

#[test]
fn a_write_that_fails_is_told_and_changes_nothing() {
    let (zswap, model) = store_of(small(ZswapOptions::default()), Some(100), 8, 900);
    let mut calls = 0;
    loop {
        let mut out = Failing { calls, bytes: Vec::new(), flushes: true };
        match zswap.snapshot_to(&mut out, SnapshotOptions::default()) {
            Ok(_) => break,
            Err(SnapshotError::Write { at, source }) => {
                assert_eq!(source.kind(), io::ErrorKind::StorageFull);
                assert!(at <= out.bytes.len() as u64);
                assert!(read_all(&out.bytes).is_err());
            }
            Err(other) => panic!("{other}"),
        }
        calls += 1;
    }
    assert!(calls > 10);
    let out = Failing { calls, bytes: Vec::new(), flushes: false };
    let failed = zswap.snapshot_to(out, SnapshotOptions::default()).unwrap_err();
    assert!(matches!(failed, SnapshotError::Write { .. }));
    check(&zswap, &model);
}

#[test]
fn places_that_cannot_be_are_refused_with_the_reason() {
    let place = Place::new();
    let (zswap, model) = store_of(small(ZswapOptions::default()), None, 8, 100);
    let refused = |path: &Path, words: &str| {
        let error = zswap.snapshot(path).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    };
    refused(place.directory.path(), "is a directory");
    refused(&place.path("none/"), "is a directory");
    refused(&place.path("missing/s"), "create its directory first");
    refused(Path::new("/dev/null"), "not a regular file");
    refused(Path::new("/proc/s"), "cannot create");
    refused(&place.path(&"x".repeat(254)), "cannot create");
    assert!(place.names().is_empty());
    // A file of another kind is replaced: it is the path that was given.
    fs::write(place.path("s"), "old").unwrap();
    zswap.snapshot(place.path("s")).unwrap();
    assert!(pages_in(&place.path("s")) == model);
    assert_eq!(place.names(), ["s"]);
}

/// Child of a test with a limit of file sizes.
#[test]
fn child_with_a_limit() {
    let Some(path) = std::env::var_os("UZSWAP_SNAPSHOT_LIMITED") else { return };
    uzswap_sys::signals::report_size_limit_as_error();
    let (zswap, model) = store_of(small(ZswapOptions::default()), None, 8, 900);
    let error = zswap.snapshot(&path).unwrap_err();
    check(&zswap, &model);
    println!("{error}");
}

#[test]
fn a_full_disk_leaves_the_old_snapshot_and_no_part() {
    let place = Place::new();
    let path = place.path("s");
    let (zswap, model) = store_of(small(ZswapOptions::default()), None, 1, 20);
    zswap.snapshot(&path).unwrap();
    // A limit of 64 KiB on the size of files fails at the same place as a full disk does.
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 64; exec \"$0\" --exact snapshot::child_with_a_limit --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env("UZSWAP_SNAPSHOT_LIMITED", &path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("raise the file size limit"), "{text}");
    assert_eq!(place.names(), ["s"]);
    assert!(pages_in(&path) == model);
}

/// A backing whose block can be made unreadable or wrong.
#[derive(Debug)]
struct Bad {
    inner: MemoryBacking,
    unreadable: Arc<AtomicU32>,
    wrong: Arc<AtomicU32>,
}

impl Backing for Bad {
    fn name(&self) -> String {
        "bad".to_owned()
    }

    fn block_count(&self) -> u32 {
        self.inner.block_count()
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        self.inner.write(writes);
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        if first == self.unreadable.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.inner.read(first, blocks)?;
        if first == self.wrong.load(Ordering::Relaxed) {
            blocks[0].0[1000] ^= 1;
        }
        Ok(())
    }

    fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        self.inner.discard(blocks)
    }
}

#[test]
fn a_corrupt_page_ends_a_snapshot_or_is_left_out() {
    let place = Place::new();
    let path = place.path("s");
    let unreadable = Arc::new(AtomicU32::new(u32::MAX));
    let wrong = Arc::new(AtomicU32::new(u32::MAX));
    let backing = Bad {
        inner: MemoryBacking::new(100).unwrap(),
        unreadable: Arc::clone(&unreadable),
        wrong: Arc::clone(&wrong),
    };
    let zswap = Zswap::with_backing(small(ZswapOptions::default()), Box::new(backing)).unwrap();
    let mut page = [0; PAGE_SIZE];
    for key in 0..40 {
        page[0] = key;
        zswap.store(PageKey(key.into()), &page).unwrap();
    }
    assert_eq!(zswap.shrink(TenantId::ROOT, 20).pages(), 20);
    zswap.snapshot(&path).unwrap();
    let whole = pages_in(&path);
    for (number, fault) in [(3, &unreadable), (5, &wrong)] {
        fault.store(number, Ordering::Relaxed);
        let error = zswap.snapshot(&path).unwrap_err();
        let SnapshotError::Page { source } = &error else { panic!("{error}") };
        assert!(error.to_string().contains("skip_corrupt"));
        assert!(whole.contains_key(&source.key()));
        assert!(pages_in(&path) == whole, "the old one is there still");
        assert_eq!(place.names(), ["s"]);
    }
    let other = place.path("other");
    let skip = SnapshotOptions { skip_corrupt: true };
    let summary = zswap.snapshot_with(&other, skip).unwrap();
    assert_eq!((summary.pages(), summary.skipped_pages), (38, 2));
    let pages = pages_in(&other);
    assert!(pages.iter().all(|(key, page)| whole[key] == *page));
}

/// A backing that lets something happen between the request of a read and the read.
struct Meddled {
    inner: MemoryBacking,
    meddle: Arc<Meddling>,
}

/// Done once, at the next read.
type Meddling = Mutex<Option<Box<dyn FnOnce() + Send>>>;

impl std::fmt::Debug for Meddled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Backing for Meddled {
    fn name(&self) -> String {
        "meddled".to_owned()
    }

    fn block_count(&self) -> u32 {
        self.inner.block_count()
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        self.inner.write(writes);
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        let meddle = self.meddle.lock().unwrap().take();
        meddle.into_iter().for_each(|meddle| meddle());
        self.inner.read(first, blocks)
    }

    fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        self.inner.discard(blocks)
    }
}

#[test]
fn a_block_that_is_anothers_when_it_is_read_is_not_taken() {
    let meddle = Arc::new(Meddling::default());
    let inner = MemoryBacking::new(16).unwrap();
    let backing = Box::new(Meddled { inner, meddle: Arc::clone(&meddle) });
    // Without checksums nothing else would tell.
    let records = Some(RecordOptions::default().lru(Lru::Plain).checksum(false));
    let options = ZswapOptions::default().shards(1).records(records);
    let zswap = Arc::new(Zswap::with_backing(options, backing).unwrap());
    let page_of = |key: u64| {
        let mut page = [0; PAGE_SIZE];
        page[..8].copy_from_slice(&(key + 1).to_le_bytes());
        page
    };
    for key in 0..15 {
        zswap.store(PageKey(key), &page_of(key)).unwrap();
    }
    assert_eq!(zswap.shrink(TenantId::ROOT, 12).pages(), 12);
    // Two pages come back to the pool, and go to the backing again: each to the other one's block.
    let store = Arc::clone(&zswap);
    *meddle.lock().unwrap() = Some(Box::new(move || {
        // By another thread: a backing must not call its own store.
        let moves = std::thread::spawn(move || {
            let mut page = [0; PAGE_SIZE];
            for key in [1, 0].map(PageKey) {
                assert!(store.load(key, &mut page).unwrap());
            }
            assert_eq!(store.shrink(TenantId::ROOT, 5).pages(), 5);
        });
        moves.join().unwrap();
    }));
    let place = Place::new();
    zswap.snapshot(place.path("s")).unwrap();
    assert!(meddle.lock().unwrap().is_none());
    let pages = pages_in(&place.path("s"));
    assert!(pages.len() == 15 && pages.iter().all(|(key, page)| *page == page_of(key.0)));
}

#[test]
fn threads_go_on_meanwhile() {
    let place = Place::new();
    let path = place.path("s");
    let options = small(ZswapOptions::default()).max_pool_bytes(200 << 12);
    let zswap = Zswap::with_backing(options, memory(3000).unwrap()).unwrap();
    // A page says its key, and how often it was stored. Keys below 500 are never without one.
    let page_of = |key: u64, round: u64| {
        let mut page = [0; PAGE_SIZE];
        let mut random = Random::new(key ^ round << 32);
        page[..1500].copy_from_slice(&random.bytes(1500));
        page[..16].copy_from_slice(&(u128::from(key) << 64 | u128::from(round)).to_le_bytes());
        page
    };
    for key in 0..500 {
        zswap.store(PageKey(key), &page_of(key, 0)).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (zswap, stop) = (&zswap, &stop);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                let mut page = [0; PAGE_SIZE];
                for round in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = random.word() % 300 * 2;
                    match random.below(4) {
                        0 => {
                            zswap.store(PageKey(key), &page_of(key, round)).unwrap();
                        }
                        1 => {
                            zswap.load(PageKey(key), &mut page).unwrap();
                        }
                        2 if key >= 500 => {
                            zswap.invalidate(PageKey(key));
                        }
                        _ => {
                            zswap.shrink(TenantId::ROOT, 5);
                        }
                    }
                }
            });
        }
        for _ in 0..12 {
            let summary = zswap.snapshot(&path).unwrap();
            let pages = pages_in(&path);
            assert_eq!(summary.pages(), pages.len() as u64);
            assert!((0..500).all(|key| pages.contains_key(&PageKey(key))));
            for (key, page) in pages {
                let tag = u128::from_le_bytes(page[..16].try_into().unwrap());
                let (found, round) = ((tag >> 64) as u64, tag as u64);
                assert!(found == key.0 && page == page_of(found, round), "page {key}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    zswap.audit().unwrap();
}

#[test]
fn two_snapshots_to_one_path_at_once() {
    let place = Place::new();
    let path = place.path("s");
    let (zswap, model) = store_of(small(ZswapOptions::default()), None, 2, 300);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    match zswap.snapshot(&path) {
                        Ok(_) | Err(SnapshotError::Busy { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    assert_eq!(place.names(), ["s"]);
    assert!(pages_in(&path) == model);
}

/// A file that the first version wrote.
#[test]
fn version_1_opens_for_ever() {
    let path = uzswap_testing::data("snapshot-1.uzs");
    let (_, model) = small_snapshot();
    assert!(pages_in(&path) == model);
    let (restored, told) = Zswap::from_snapshot(ZswapOptions::default(), memory(8), &path).unwrap();
    check(&restored, &model);
    assert_eq!((told.memory_pages, told.backing_pages), (5, 2));
    assert_eq!(restored.tenants()[1].options.name, "t");
    assert_eq!(restored.counters().zswpout, 7);
    let newer = {
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = VERSION as u8 + 1;
        SnapshotReader::new("newer", &bytes[..]).unwrap_err().to_string()
    };
    assert!(newer.contains("version 3") && newer.contains("reads versions 1 to 2"), "{newer}");
}
