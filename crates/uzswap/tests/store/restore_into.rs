//! Goal: a snapshot restores into a store of any other compressors with every page right, or is
//! refused by the names of both. A restored store stays in its budget at every instant. Each page
//! goes to the pool or to the backing by where it was, and by what takes it.
//! Method: all ordered pairs of a list of configurations, foreign compressors among them. Every
//! index, on dense and sparse keys, with and without a backing, with a budget that counts all
//! memory.
//! Blind to: snapshots that were damaged (`snapshot`), several threads (`torture`).

use uzswap_testing::varied_pages;

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uzswap::backing::{Backing, MemoryBacking};
use uzswap::budget::{Budget, Counted};
use uzswap::compressor::{
    CompressError, Compressor, CompressorKind, Corrupt, FilteredKind, OUTPUT_BYTES, ObjectFormat,
};
use uzswap::index::IndexKind;
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::zswap::snapshot::{
    RestoreError, RestoreSummary, SnapshotOptions, SnapshotReader, SnapshotSummary,
};
use uzswap::zswap::{
    Incompressible, StoreError, TenantId, TenantOptions, WrittenAs, Zswap, ZswapOptions, ZswapParts,
};
use varied_pages::{Random, varied_page};

use crate::counters::{Faults, FaultyBacking, WRITE};

const PAGES: u64 = 24;

/// Compressors of this crate, alone and in pairs.
const KNOWN: [(&str, Option<&str>); 22] = [
    ("lz4", None),
    ("lzo", None),
    ("lzo-rle", None),
    ("zstd:1", None),
    ("zstd:3", None),
    ("zstd:-7", None),
    ("deflate:1", None),
    ("deflate:9", None),
    ("none", None),
    ("zstd:1", Some("zstd:3")),
    ("zstd:2", Some("zstd:9")),
    ("zstd:1", Some("lz4")),
    ("lz4", Some("zstd:1")),
    ("lz4", Some("lz4")),
    ("lzo", Some("lzo-rle")),
    ("deflate:1", Some("deflate:9")),
    ("none", Some("zstd:3")),
    ("lzo-rle", Some("deflate:6")),
    ("lz4~auto", None),
    ("lz4~shuffle", None),
    ("lz4~auto", Some("zstd:1")),
    ("zstd:1~shuffle", Some("lz4")),
];

/// Names of compressors of others: one of their own, and two that say what this crate's do.
const FOREIGN: [&str; 3] = ["mirror", "zstd:1", "zstd:1+zstd:3"];

/// A compressor of others: a page's bytes, backwards, without the zeros at its end.
#[derive(Debug)]
struct Mirror(&'static str);

impl Compressor for Mirror {
    fn name(&self) -> String {
        self.0.to_owned()
    }

    fn compress(&self, page: &Page, out: &mut [u8; OUTPUT_BYTES]) -> Result<usize, CompressError> {
        let bytes = page.iter().rposition(|&byte| byte != 0).map_or(1, |last| last + 1);
        page[..bytes].iter().rev().zip(out).for_each(|(from, to)| *to = *from);
        Ok(bytes)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let Some(rest) = page.get_mut(object.len()..) else {
            return Err(Corrupt("too long".to_owned()));
        };
        rest.fill(0);
        object.iter().rev().zip(page).for_each(|(from, to)| *to = *from);
        Ok(())
    }
}

#[derive(Debug, Clone, Copy)]
enum Configuration {
    Known(&'static str, Option<&'static str>),
    Foreign(&'static str),
}

use Configuration::{Foreign, Known};

impl Configuration {
    fn all() -> Vec<Configuration> {
        let known = KNOWN.map(|(fast, dense)| Known(fast, dense));
        known.into_iter().chain(FOREIGN.map(Foreign)).collect()
    }

    fn name(self) -> String {
        match self {
            Known(fast, dense) => {
                let name = |name: &str| name.parse::<CompressorKind>().unwrap().to_string();
                let FilteredKind { compressor, filter } = fast.parse().unwrap();
                let dense = dense.map_or(String::new(), |dense| format!("+{}", name(dense)));
                filter.name_of(&format!("{compressor}{dense}"))
            }
            Foreign(name) => name.to_owned(),
        }
    }

    fn store(self) -> Zswap {
        match self {
            Known(fast, dense) => {
                let FilteredKind { compressor, filter } = fast.parse().unwrap();
                Zswap::new(
                    ZswapOptions::default()
                        .compressor(compressor)
                        .dense(dense.map(|dense| dense.parse().unwrap()))
                        .filter(filter)
                        // A page of "none" and the tag of a pair are more than a page.
                        .incompressible(Incompressible::StoreAsIs),
                )
                .unwrap()
            }
            Foreign(name) => {
                Zswap::with_compressor(ZswapOptions::default(), Box::new(Mirror(name))).unwrap()
            }
        }
    }
}

fn page_of(number: u64) -> Page {
    let mut page = varied_page(&mut Random::new(number / 3 + 7));
    page[0] = 1;
    page[8] = 2; // not one word
    page[16..24].copy_from_slice(&number.to_le_bytes());
    page[2048..].fill(0); // each of the compressors shrinks it
    page
}

fn snapshot_of(zswap: &Zswap) -> Vec<u8> {
    let mut bytes = Vec::new();
    zswap.snapshot_to(&mut bytes, SnapshotOptions::default()).unwrap();
    bytes
}

/// A store in which every other page is dense, as a snapshot.
fn snapshot_from(from: Configuration) -> Vec<u8> {
    let zswap = from.store();
    for number in 0..PAGES {
        match number % 2 {
            0 => zswap.store(PageKey(number), &page_of(number)).unwrap(),
            _ => zswap.store_densely(PageKey(number), &page_of(number)).unwrap(),
        };
    }
    snapshot_of(&zswap)
}

fn check_all(zswap: &Zswap, pages: u64, stride: u64, what: &dyn Fn() -> String) {
    zswap.audit().unwrap_or_else(|error| panic!("{}: {error}", what()));
    let mut page = [0; PAGE_SIZE];
    for number in 0..pages {
        match zswap.load(PageKey(number * stride), &mut page) {
            Ok(true) => assert!(page == page_of(number), "{}: page {number} is another", what()),
            other => panic!("{}: page {number}: {other:?}", what()),
        }
    }
}

#[test]
fn every_configuration_restores_into_every_other_or_is_refused_by_name() {
    let (mut restored, mut refused) = (0, 0);
    for from in Configuration::all() {
        let snapshot = snapshot_from(from);
        for into in Configuration::all() {
            let what = || format!("{} into {}", from.name(), into.name());
            let reader = SnapshotReader::new("snapshot", &snapshot[..]).unwrap();
            match into.store().restore_from(reader) {
                Ok((zswap, _)) => {
                    restored += 1;
                    check_all(&zswap, PAGES, 1, &what);
                    if matches!((from, into), (Known(_, Some(_)), Known(_, Some(_)))) {
                        let dense = (0..PAGES).filter(|number| number % 2 == 1);
                        let made: Vec<usize> = dense
                            .map(|number| zswap.recompress(PageKey(number)).unwrap())
                            .collect();
                        assert!(made.iter().all(|&bytes| bytes == 0), "{}: {made:?}", what());
                    }
                }
                Err(error) => {
                    refused += 1;
                    let text = error.to_string();
                    let is_named = [from.name(), into.name()]
                        .iter()
                        .all(|name| text.contains(&format!("'{name}'")));
                    assert!(
                        matches!(error, RestoreError::Compressor { .. }),
                        "{}: {error}",
                        what()
                    );
                    assert!(is_named, "{}: {text}", what());
                    assert!(matches!(from, Foreign(_)), "{}: {text}", what());
                }
            }
        }
    }
    // A foreign one into itself alone.
    assert_eq!((restored, refused), (22 * 25 + 3, 3 * 24));
}

/// A snapshot of version 1 names the compressor of its objects, and no format.
#[test]
fn a_header_without_the_format_is_damaged() {
    let snapshot = snapshot_from(Known("lz4", Some("zstd:1")));
    let reader = SnapshotReader::new("snapshot", &snapshot[..]).unwrap();
    let pair = ObjectFormat::Pair(Box::new((ObjectFormat::Lz4, ObjectFormat::Zstd)));
    assert_eq!(reader.header().object_format, Some(pair));
    let at = |text: &str| snapshot.windows(text.len()).position(|part| part == text.as_bytes());
    let start = at("\"object_format\"").unwrap();
    let mut other = snapshot.clone();
    other[start + 1] = b'x'; // a field that is not looked at
    let header = 16 + u32::from_le_bytes(other[12..16].try_into().unwrap()) as usize;
    let sum = twox_hash::XxHash3_64::oneshot_with_seed(0, &other[..header]);
    other[header..header + 8].copy_from_slice(&sum.to_le_bytes());
    let refused = SnapshotReader::new("snapshot", &other[..]).unwrap_err();
    assert!(refused.fault.is_damage() && refused.to_string().contains("format"), "{refused}");
    // The same, marked as version 1: a pair is recognized by its name.
    other[8] = 1;
    let sum = twox_hash::XxHash3_64::oneshot_with_seed(0, &other[..header]);
    other[header..header + 8].copy_from_slice(&sum.to_le_bytes());
    let reader = SnapshotReader::new("snapshot", &other[..]).unwrap();
    let pair = ObjectFormat::Pair(Box::new((ObjectFormat::Lz4, ObjectFormat::Zstd)));
    assert_eq!((reader.header().object_format.as_ref(), reader.header().objects()), (None, pair));
}

/// Reads some bytes at a time, and looks at the budget before each.
struct Watched<'a> {
    bytes: &'a [u8],
    budget: &'a Budget,
}

impl Read for Watched<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let (used, most) = (self.budget.used_bytes(), self.budget.max_bytes());
        assert!(used <= most, "{used} bytes are used of {most}");
        let most = room.len().min(10_000);
        self.bytes.read(&mut room[..most])
    }
}

/// Bytes of what grows with the pages.
fn grown(zswap: &Zswap, empty: u64) -> u64 {
    let memory = zswap.memory();
    memory.pool_bytes + memory.reserve_bytes + memory.index_bytes + memory.zpool_metadata_bytes
        - empty
}

fn backing(blocks: Option<u32>) -> Option<Box<dyn Backing>> {
    blocks.map(|blocks| Box::new(MemoryBacking::new(blocks).unwrap()) as Box<dyn Backing>)
}

#[test]
fn a_restored_store_is_in_its_budget_from_the_first_byte() {
    const MANY: u64 = 1200;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let mut restored = 0;
    for stride in [1, 1 << 9, 1 << 20] {
        let full = Zswap::new(ZswapOptions::default()).unwrap();
        for number in 0..MANY {
            full.store(PageKey(number * stride), &page_of(number)).unwrap();
        }
        full.snapshot(&path).unwrap();
        let snapshot = snapshot_of(&full);
        for index in IndexKind::ALL {
            for (kib, blocks) in [(256, None), (512, Some(MANY as u32)), (16 << 10, Some(99))] {
                let options = ZswapOptions::default()
                    .index(index)
                    .max_pool_bytes(kib << 10)
                    .counted(Counted::PoolAndMetadata)
                    .written_as(WrittenAs::Objects);
                let what = || format!("{index}, stride {stride}, {kib} KiB, {blocks:?} blocks");
                let empty = {
                    let memory = Zswap::new(options).unwrap().memory();
                    memory.index_bytes + memory.zpool_metadata_bytes
                };
                let parts = ZswapParts::of(options).unwrap();
                let parts = ZswapParts { backing: backing(blocks), ..parts };
                let arena = Arc::clone(&parts.arena);
                let budget = arena.budget();
                let new = Zswap::from_parts(options, parts, |budget| index.build_on(budget));
                let watched = Watched { bytes: &snapshot, budget };
                let reader = SnapshotReader::new("snapshot", watched).unwrap();
                let by_parts = new.unwrap().restore_from(reader);
                assert!(budget.peak_bytes() <= options.max_pool_bytes, "{}", what());
                let by_path = Zswap::from_snapshot(options, backing(blocks), &path);
                assert_eq!(by_parts.is_ok(), by_path.is_ok(), "{}", what());
                for (zswap, told) in by_parts.into_iter().chain(by_path) {
                    restored += 1;
                    let bytes = grown(&zswap, empty);
                    let used = zswap.budget().used_bytes();
                    assert!(bytes <= used, "{}: {bytes} bytes grown, {used} charged", what());
                    assert!(used <= options.max_pool_bytes, "{}: {used}", what());
                    assert!(kib > 512 || told.backing_pages > 0, "{}", what());
                    check_all(&zswap, MANY, stride, &what);
                    zswap.shrink(TenantId::ROOT, 50);
                    let (used, peak) = (zswap.budget().used_bytes(), zswap.budget().peak_bytes());
                    assert!(used <= peak && peak <= options.max_pool_bytes, "{}", what());
                }
            }
        }
    }
    println!("{restored} restored");
    assert!(restored >= 2 * 2 * IndexKind::ALL.len());
}

#[test]
fn pages_give_way_to_the_index_of_a_restored_store() {
    const MANY: u64 = 500;
    const STRIDE: u64 = 1 << 20;
    let full = Zswap::new(ZswapOptions::default()).unwrap();
    for number in 0..MANY {
        full.store(PageKey(number * STRIDE), &page_of(number)).unwrap();
    }
    let snapshot = snapshot_of(&full);
    for index in [IndexKind::Radix, IndexKind::BTree, IndexKind::RbTree] {
        for kib in [300, 320, 340] {
            let options = ZswapOptions::default()
                .index(index)
                .shards(1)
                .max_pool_bytes(kib << 10)
                .counted(Counted::PoolAndMetadata);
            let new = Zswap::with_backing(options, backing(Some(MANY as u32)).unwrap()).unwrap();
            let reader = SnapshotReader::new("snapshot", &snapshot[..]).unwrap();
            let (restored, told) = new.restore_from(reader).unwrap();
            assert!(told.backing_pages > 0 && restored.budget().peak_bytes() <= kib << 10);
            check_all(&restored, MANY, STRIDE, &|| format!("{index}, {kib} KiB"));
        }
    }
}

/// A store with [`PAGES`] pages of a tenant.
fn full_of(options: ZswapOptions, tenant: TenantOptions) -> (Zswap, TenantId) {
    let full = Zswap::with_backing(options, backing(Some(64)).unwrap()).unwrap();
    let tenant = full.add_tenant(TenantId::ROOT, tenant).unwrap();
    for number in 0..PAGES {
        full.store_for(tenant, PageKey(number), &page_of(number)).unwrap();
    }
    (full, tenant)
}

fn write_all_back(zswap: &Zswap) {
    assert_eq!(zswap.shrink(TenantId::ROOT, PAGES as usize).pages(), PAGES as usize);
}

/// A snapshot with [`PAGES`] pages, all of them in the backing or none.
fn snapshot_with(options: ZswapOptions, in_backing: bool) -> Vec<u8> {
    let (full, _) = full_of(options, TenantOptions::default());
    if in_backing {
        write_all_back(&full);
    }
    snapshot_of(&full)
}

fn restore(
    snapshot: &[u8],
    options: ZswapOptions,
    backing: Option<Box<dyn Backing>>,
) -> Result<(Zswap, RestoreSummary), RestoreError> {
    restore_by(snapshot, options, ZswapParts { backing, ..ZswapParts::of(options).unwrap() })
}

fn restore_by(
    snapshot: &[u8],
    options: ZswapOptions,
    parts: ZswapParts,
) -> Result<(Zswap, RestoreSummary), RestoreError> {
    let new = Zswap::from_parts(options, parts, |budget| options.index.build_on(budget));
    new.unwrap().restore_from(SnapshotReader::new("snapshot", snapshot).unwrap())
}

/// The pages of a snapshot that was refused, and how many of them found no place.
fn refused(restored: Result<(Zswap, RestoreSummary), RestoreError>) -> (u64, u64) {
    match restored {
        Err(RestoreError::DoesNotFit { pages, of_pages, .. }) => (of_pages, pages),
        Err(other) => panic!("{other}"),
        Ok((_, told)) => panic!("{told:?}"),
    }
}

/// Pages in memory and in the backing.
fn places(told: &RestoreSummary) -> (u64, u64) {
    (told.memory_pages, told.backing_pages)
}

/// Its pool takes no page.
fn without_room() -> ZswapOptions {
    ZswapOptions::default().max_pool_bytes(0).counted(Counted::Pool)
}

/// A backing that takes no page.
fn failing_backing() -> Option<Box<dyn Backing>> {
    let faults = Faults::default();
    faults.are(WRITE);
    Some(Box::new(FaultyBacking(MemoryBacking::new(64).unwrap(), faults)))
}

#[test]
fn a_tenant_above_its_limit_is_restored_whole() {
    let (full, tenant) = full_of(ZswapOptions::default(), TenantOptions::default());
    let limit = TenantOptions::default().max_bytes(1);
    full.set_tenant(tenant, limit.clone()).unwrap();
    let snapshot = snapshot_of(&full);
    for blocks in [None, Some(64)] {
        let (restored, told) =
            restore(&snapshot, ZswapOptions::default(), backing(blocks)).unwrap();
        assert_eq!(places(&told), (PAGES, 0), "{blocks:?} blocks");
        let tenants = restored.tenants();
        assert_eq!(tenants[1].options, limit);
        assert_eq!(tenants[1].current_bytes, full.tenants()[1].current_bytes);
        check_all(&restored, PAGES, 1, &|| format!("{blocks:?} blocks"));
        if blocks.is_none() {
            let low = restored.tenant_id(tenants[1].number).unwrap();
            let more = restored.store_for(low, PageKey(PAGES), &page_of(PAGES));
            assert!(matches!(more, Err(StoreError::TenantLimit { .. })), "{more:?}");
        }
    }
}

#[test]
fn a_page_that_the_pool_refuses_goes_to_the_backing_if_its_tenant_may() {
    for may in [true, false] {
        let tenant = TenantOptions::default().writeback(may);
        let (full, _) = full_of(ZswapOptions::default(), tenant);
        full.store(PageKey(PAGES), &page_of(PAGES)).unwrap(); // of the root, which may
        let snapshot = snapshot_of(&full);
        let restored = restore(&snapshot, without_room(), backing(Some(64)));
        if may {
            let (restored, told) = restored.unwrap();
            assert_eq!(places(&told), (0, PAGES + 1));
            check_all(&restored, PAGES + 1, 1, &|| "into the backing".to_owned());
        } else {
            assert_eq!(refused(restored), (PAGES + 1, PAGES));
        }
        assert_eq!(refused(restore(&snapshot, without_room(), None)), (PAGES + 1, PAGES + 1));
    }
}

#[test]
fn a_page_of_the_backing_is_compressed_again_in_the_pool() {
    let (full, _) = full_of(ZswapOptions::default(), TenantOptions::default());
    let compressed_bytes = full.memory().compressed_bytes;
    assert!(compressed_bytes < PAGES * PAGE_SIZE as u64);
    write_all_back(&full);
    let snapshot = snapshot_of(&full);
    for backing in [None, failing_backing()] {
        let (restored, told) = restore(&snapshot, ZswapOptions::default(), backing).unwrap();
        assert_eq!(told.snapshot.backing_as_is_pages, PAGES);
        assert_eq!(places(&told), (PAGES, 0));
        assert_eq!(restored.memory().compressed_bytes, compressed_bytes);
        assert_eq!(restored.counters().stored_incompressible_pages, 0);
        check_all(&restored, PAGES, 1, &|| "compressed again".to_owned());
    }
}

#[test]
fn a_page_of_the_backing_goes_to_the_pool_where_the_new_backing_does_not_take_it() {
    for written_as in WrittenAs::ALL {
        let options = ZswapOptions::default().written_as(written_as);
        let snapshot = snapshot_with(options, true);
        for (backing, in_backing) in [(backing(Some(1)), 1..PAGES), (failing_backing(), 0..1)] {
            let (restored, told) = restore(&snapshot, options, backing).unwrap();
            let what = || format!("{written_as}, {told:?}");
            assert!(in_backing.contains(&told.backing_pages), "{}", what());
            assert_eq!(told.memory_pages + told.backing_pages, PAGES, "{}", what());
            check_all(&restored, PAGES, 1, &what);
        }
    }
}

/// Counts the pages that it compresses.
#[derive(Debug)]
struct Counting(Arc<AtomicU64>);

impl Compressor for Counting {
    fn name(&self) -> String {
        "counting".to_owned()
    }

    fn compress(&self, page: &Page, out: &mut [u8; OUTPUT_BYTES]) -> Result<usize, CompressError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        CompressorKind::Lz4.build().compress(page, out)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        CompressorKind::Lz4.build().decompress(object, page)
    }
}

#[test]
fn a_page_without_a_place_was_offered_to_the_pool_once() {
    for in_backing in [false, true] {
        let snapshot = snapshot_with(ZswapOptions::default(), in_backing);
        let compressed = Arc::new(AtomicU64::new(0));
        let options = without_room();
        let parts = ZswapParts {
            compressor: Box::new(Counting(Arc::clone(&compressed))),
            backing: failing_backing(),
            ..ZswapParts::of(options).unwrap()
        };
        assert_eq!(refused(restore_by(&snapshot, options, parts)), (PAGES, PAGES));
        assert_eq!(compressed.load(Ordering::Relaxed), PAGES, "in the backing: {in_backing}");
    }
}

#[test]
fn an_object_of_the_backing_stays_one_only_where_the_store_reads_it() {
    let options = ZswapOptions::default().written_as(WrittenAs::Objects);
    let snapshot = snapshot_with(options, true);
    let again = |to: &str| {
        let options = options.compressor(to.parse().unwrap());
        let (restored, told) = restore(&snapshot, options, backing(Some(64))).unwrap();
        assert_eq!(told.snapshot.backing_objects, PAGES, "{to}");
        assert_eq!(places(&told), (0, PAGES), "{to}");
        let summary = restored.snapshot_to(io::sink(), SnapshotOptions::default()).unwrap();
        check_all(&restored, PAGES, 1, &|| format!("lz4 into {to}"));
        let SnapshotSummary { backing_objects, backing_as_is_pages, .. } = summary;
        (backing_objects, backing_as_is_pages)
    };
    assert_eq!([again("lz4"), again("zstd")], [(PAGES, 0), (0, PAGES)]);
}

#[test]
fn a_page_is_as_dense_in_another_pair_as_it_was() {
    let (from, into) = (Known("lz4", Some("zstd:1")), Known("lzo", Some("deflate:6")));
    let bytes = [false, true].map(|is_dense| {
        let filled = |zswap: Zswap| {
            for key in (0..PAGES).map(PageKey) {
                match is_dense {
                    false => zswap.store(key, &page_of(key.0)).unwrap(),
                    true => zswap.store_densely(key, &page_of(key.0)).unwrap(),
                };
            }
            zswap
        };
        let snapshot = snapshot_of(&filled(from.store()));
        let reader = SnapshotReader::new("snapshot", &snapshot[..]).unwrap();
        let (restored, _) = into.store().restore_from(reader).unwrap();
        let bytes = restored.memory().compressed_bytes;
        assert_eq!(bytes, filled(into.store()).memory().compressed_bytes, "dense: {is_dense}");
        bytes
    });
    assert!(bytes[1] < bytes[0], "{bytes:?}");
}
