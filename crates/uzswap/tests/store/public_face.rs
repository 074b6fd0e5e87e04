//! Goal: the face of the library: options out of their range are refused by name, tenants are of
//! one store, and a store answers simple questions.
//! Method: each option at the ends of its range and beyond them; statistics of stores with all
//! options set, as whole values.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use uzswap::OptionError;
use uzswap::backing::{BackingError, FileBacking, FileBackingOptions, MemoryBacking};
use uzswap::compressor::{
    CompressError, Compressor, CompressorKind, Corrupt, Filter, FilteredKind, OUTPUT_BYTES,
    ObjectFormat,
};
use uzswap::index::IndexKind;
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::same_filled::{SameFilled, SameFilledCheck};
use uzswap::zpool::zsmalloc::ZsmallocOptions;
use uzswap::zpool::{Arena, HostPages, ZpoolKind};
use uzswap::zswap::snapshot::SnapshotSummary;
use uzswap::zswap::{
    BackingStats, BuildError, Incompressible, Lru, OptionNames, RecordOptions, Shrinker,
    ShrinkerOptions, Shrunk, StoreError, TenantError, TenantId, TenantOptions, WhenFull, WrittenAs,
    Zswap, ZswapOptions,
};

fn page(number: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    page[..8].copy_from_slice(&(number + 1).to_le_bytes());
    page
}

#[test]
fn an_option_out_of_its_range_is_refused_by_name() {
    let base = ZswapOptions::default;
    let chain = |pages| base().zsmalloc(ZsmallocOptions::default().chain_size(pages));
    for (options, told) in [
        (base().shards(0), "shards must be a power of two, got 0"),
        (base().shards(3), "shards must be a power of two, got 3"),
        (base().shards(1 << 17), "shards must be at most 65536, got 131072"),
        (base().shards(1 << 63), "shards must be at most 65536, got 9223372036854775808"),
        (base().object_header_bytes(100), "object_header_bytes must be 0 to 64, got 100"),
        (
            base().accept_threshold_percent(101),
            "accept_threshold_percent must be 0 to 100, got 101",
        ),
        (chain(3), "chain_size must be 4 to 16, got 3"),
        (chain(17), "chain_size must be 4 to 16, got 17"),
    ] {
        let backing = || Box::new(MemoryBacking::new(16).unwrap());
        let errors = [
            options.build().unwrap_err(),
            Zswap::with_compressor(options, CompressorKind::Lz4.build()).unwrap_err(),
            Zswap::with_backing(options, backing()).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, BuildError::Option(_)), "{error:?}");
            assert_eq!(error.to_string(), told);
        }
        let error = Zswap::from_snapshot(options, None, "/nowhere").unwrap_err();
        assert_eq!(error.to_string(), told, "before the file is opened");
    }
    for options in [
        base().shards(1),
        base().object_header_bytes(64),
        base().accept_threshold_percent(0),
        base().accept_threshold_percent(100),
        chain(4),
        chain(16),
    ] {
        options.build().unwrap().store(PageKey(1), &page(1)).unwrap();
    }
}

#[test]
fn a_backing_needs_records() {
    let backing = Box::new(MemoryBacking::new(16).unwrap());
    let error = Zswap::with_backing(ZswapOptions::bare(), backing).unwrap_err();
    assert_eq!(error, BuildError::BackingWithoutRecords);
    assert!(error.to_string().contains("records"));
    let backing = Box::new(MemoryBacking::new(16).unwrap());
    let options = ZswapOptions::bare().records(Some(RecordOptions::default()));
    assert!(Zswap::with_backing(options, backing).is_ok());
}

#[test]
fn writes_in_flight_and_percents_have_ranges() {
    let folder = tempfile::tempdir().unwrap();
    let options = FileBackingOptions::new(folder.path().join("backing"), Some(1 << 16));
    for in_flight in [0, 4097] {
        let error = FileBacking::open(&options.clone().in_flight(in_flight)).unwrap_err();
        assert!(matches!(error, BackingError::Option(_)), "{error:?}");
        assert_eq!(error.to_string(), format!("in_flight must be 1 to 4096, got {in_flight}"));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "no file was made");
    }
    FileBacking::open(&options.in_flight(1)).unwrap();

    let zswap = Arc::new(ZswapOptions::default().build().unwrap());
    let options = ShrinkerOptions::default().interval(Duration::from_secs(3600));
    let error = Shrinker::start(Arc::clone(&zswap), options.compact_percent(200)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let error = error.into_inner().unwrap().downcast::<OptionError>().unwrap();
    assert_eq!(error.to_string(), "compact_percent must be 0 to 100, got 200");
    Shrinker::start(zswap, options.compact_percent(100)).unwrap();
}

#[test]
fn a_tenant_is_of_its_store_alone() {
    let [one, other] = [(); 2].map(|()| ZswapOptions::default().build().unwrap());
    let options = || TenantOptions::default().name("of one".to_owned());
    let tenant = one.add_tenant(TenantId::ROOT, options()).unwrap();
    let same_number = other.add_tenant(TenantId::ROOT, options()).unwrap();
    assert_eq!(tenant.number(), same_number.number());
    assert_ne!(tenant, same_number);

    let refused = other.store_for(tenant, PageKey(1), &page(1)).unwrap_err();
    assert!(matches!(refused, StoreError::NoTenant { .. }), "{refused}");
    let unknown = Err(TenantError::Unknown(tenant));
    assert_eq!(other.set_tenant(tenant, options()), unknown);
    assert_eq!(other.remove_tenant(tenant), unknown);
    assert_eq!(other.add_tenant(tenant, options()), Err(TenantError::Unknown(tenant)));
    assert!(other.is_empty() && other.tenants().len() == 2);

    one.store_for(tenant, PageKey(1), &page(1)).unwrap();
    other.store_for(TenantId::ROOT, PageKey(1), &page(1)).unwrap();
    assert_eq!(other.tenant_id(same_number.number()), Some(same_number));
}

#[test]
fn a_store_says_what_it_has() {
    let backing = Box::new(MemoryBacking::new(1 << 10).unwrap());
    let zswap = Zswap::with_backing(ZswapOptions::default().shards(4), backing).unwrap();
    assert!(zswap.is_empty() && zswap.keys().next().is_none());
    let keys: BTreeSet<PageKey> = (0..300).map(|number| PageKey(number * 1000)).collect();
    for &key in &keys {
        zswap.store(key, &page(key.0)).unwrap();
    }
    zswap.store(PageKey(u64::MAX), &[0; PAGE_SIZE]).unwrap();
    assert!(!zswap.is_empty());
    assert_eq!(zswap.lost_objects(), 0);
    zswap.shrink(TenantId::ROOT, 100);
    assert!(zswap.counters().backing_pages > 0);
    assert_eq!(zswap.len(), 301);
    assert!(zswap.invalidate(PageKey(u64::MAX)));
    assert_eq!(zswap.keys().collect::<BTreeSet<_>>(), keys);
    assert_eq!(zswap.len(), 300);
    assert!(zswap.contains(PageKey(1000)) && !zswap.contains(PageKey(1)));

    let told = format!("{zswap:?}");
    assert!(told.len() < 200 && !told.contains('\n'), "{told}");
    assert!(told.starts_with("Zswap { zpool: zsmalloc, compressor: lz4, pool_bytes: "), "{told}");
    let pretty = format!("{zswap:#?}");
    assert!(pretty.len() < 200, "{pretty}");
}

#[test]
fn options_are_written_and_read_by_their_names() {
    let options = ZswapOptions::default()
        .compressor("zstd:19".parse().unwrap())
        .records(Some(RecordOptions::default().checksum(false)))
        .max_pool_bytes(1 << 40);
    let json = serde_json::to_value(options).unwrap();
    assert_eq!(json["compressor"], "zstd:19");
    assert_eq!(json["zpool"], "zsmalloc");
    assert_eq!(serde_json::from_value::<ZswapOptions>(json).unwrap(), options);

    let read = |json: &str| serde_json::from_str::<ZswapOptions>(json);
    assert_eq!(read("{}").unwrap(), ZswapOptions::default());
    let z3fold = ZswapOptions::default().zpool(uzswap::zpool::ZpoolKind::Z3fold);
    assert_eq!(read(r#"{"zpool": "z3fold"}"#).unwrap(), z3fold);
    for (wrong, told) in [
        (r#"{"zpool": "slab"}"#, "slab"),
        (r#"{"compressor": "zstd:99"}"#, "zstd"),
        (r#"{"shard": 4}"#, "unknown field `shard`"),
        (r#"{"zpool": 3}"#, "a name"),
    ] {
        let error = read(wrong).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    // Ranges are the builder's.
    assert!(read(r#"{"shards": 3}"#).unwrap().build().is_err());

    let shrinker = ShrinkerOptions::default().dynamic(true);
    let json = serde_json::to_string(&shrinker).unwrap();
    assert_eq!(serde_json::from_str::<ShrinkerOptions>(&json).unwrap(), shrinker);
    let file = FileBackingOptions::new("/nowhere", None).in_flight(3);
    let json = serde_json::to_string(&file).unwrap();
    let back: FileBackingOptions = serde_json::from_str(&json).unwrap();
    assert_eq!((back.path, back.in_flight), (file.path, 3));
}

const UNKNOWN_FILTER: &str = "unknown filter ''; one of: none, shuffle, auto";

#[test]
fn each_part_has_the_name_it_is_chosen_by() {
    for kind in ZpoolKind::ALL {
        let pool = kind.build(Arc::new(Arena::new()), ZsmallocOptions::default());
        assert_eq!((pool.name(), pool.name().parse()), (kind.name(), Ok(kind)));
    }
    for kind in IndexKind::ALL {
        assert_eq!((kind.build().name(), kind.name().parse()), (kind.name(), Ok(kind)));
    }
    let with_levels = ["zstd:19", "zstd:-5", "deflate:12"];
    for &name in CompressorKind::NAMES.iter().chain(&with_levels) {
        let kind: CompressorKind = name.parse().unwrap();
        let built = kind.build();
        assert_eq!((kind.to_string(), built.name()), (name.to_owned(), name.to_owned()));
        assert_eq!(built.format(), kind.format());
        assert_eq!(built.format().decoder().unwrap().format(), kind.format());
        for filter in Filter::ALL {
            let name = filter.name_of(name);
            let kind = FilteredKind { compressor: kind, filter };
            assert_eq!((kind.build().name(), name.parse()), (name.clone(), Ok(kind)));
        }
    }
    assert_eq!("lz4~".parse::<FilteredKind>().unwrap_err().to_string(), UNKNOWN_FILTER);
}

#[test]
fn statistics_tell_the_options_by_their_names() {
    let told = Zswap::new(ZswapOptions::bare()).unwrap().stats();
    let bare = OptionNames {
        zpool: "zsmalloc".to_owned(),
        compressor: "lz4".to_owned(),
        index: "radix".to_owned(),
        shards: 64,
        incompressible: "reject".to_owned(),
        object_header_bytes: 0,
        max_pool_bytes: None,
        accept_threshold_percent: 90,
        when_full: "reclaim".to_owned(),
        host_pages: "small".to_owned(),
        same_filled_check: SameFilledCheck::default().name().to_owned(),
        same_filled_zero_only: false,
        lru: None,
        checksum: false,
        written_as: "pages".to_owned(),
    };
    assert_eq!((told.options, told.backing), (bare, None));
    assert!(told.tenants.is_empty());

    let same_filled = SameFilled { check: SameFilledCheck::Backward, zero_only: true };
    let options = ZswapOptions::default()
        .zpool(ZpoolKind::Z3fold)
        .compressor("zstd:19".parse().unwrap())
        .index(IndexKind::RbTree)
        .shards(2)
        .incompressible(Incompressible::StoreAsIs)
        .object_header_bytes(8)
        .max_pool_bytes(u64::MAX - 1)
        .accept_threshold_percent(7)
        .when_full(WhenFull::Bypass)
        .host_pages(HostPages::Huge)
        .same_filled(same_filled)
        .records(Some(RecordOptions::default().lru(Lru::Protected).checksum(true)))
        .written_as(WrittenAs::Objects);
    let zswap = Zswap::with_backing(options, Box::new(MemoryBacking::new(33).unwrap())).unwrap();
    (0..3).for_each(|key| _ = zswap.store(PageKey(key), &page(key)).unwrap());
    zswap.shrink(TenantId::ROOT, 3);
    assert_eq!(zswap.options(), &options);
    let told = zswap.stats();
    let others = OptionNames {
        zpool: "z3fold".to_owned(),
        compressor: "zstd:19".to_owned(),
        index: "rbtree".to_owned(),
        shards: 2,
        incompressible: "store-as-is".to_owned(),
        object_header_bytes: 8,
        max_pool_bytes: Some(u64::MAX - 1),
        accept_threshold_percent: 7,
        when_full: "bypass".to_owned(),
        host_pages: "huge".to_owned(),
        same_filled_check: "backward".to_owned(),
        same_filled_zero_only: true,
        lru: Some("protected".to_owned()),
        checksum: true,
        written_as: "objects".to_owned(),
    };
    let name = zswap.backing().unwrap().name();
    // Three small objects are in one block.
    let backing = BackingStats { name, blocks: 33, used_blocks: 1 };
    assert_eq!((told.options, told.backing), (others, Some(backing)));
    assert_eq!((told.tenants.len(), told.counters), (1, zswap.counters()));
}

#[test]
fn sums_are_of_their_parts() {
    let shrunk = Shrunk { written_back: 1, dropped_clean: 2, failed: 4, kept: 8 };
    assert_eq!(shrunk.pages(), 3);
    let summary = SnapshotSummary {
        same_filled_pages: 1,
        pool_objects: 2,
        pool_as_is_pages: 4,
        backing_objects: 8,
        backing_as_is_pages: 16,
        data_bytes: 32,
        skipped_pages: 64,
        file_bytes: 128,
    };
    assert_eq!((summary.pages(), summary.backing_pages()), (31, 24));
}

#[test]
fn each_policy_takes_its_memory() {
    let policy_bytes = |zswap: Zswap| zswap.memory().policy_bytes;
    let with_backing = |options: ZswapOptions, blocks| {
        let backing = Box::new(MemoryBacking::new(blocks).unwrap());
        policy_bytes(Zswap::with_backing(options, backing).unwrap())
    };
    let latencies = policy_bytes(Zswap::new(ZswapOptions::bare()).unwrap());
    assert!((1..128 << 10).contains(&latencies), "{latencies}");
    let options = ZswapOptions::default();
    let tenants = policy_bytes(Zswap::new(options).unwrap()) - latencies;
    assert!((1 << 10..64 << 10).contains(&tenants), "{tenants}");
    // A batch of 256 KiB, and places of pages that are staged.
    let batch = with_backing(options, 64) - tenants - latencies;
    assert!((256 << 10..300 << 10).contains(&batch), "{batch}");
    let small = with_backing(options.max_pool_bytes(1 << 18), 64) - tenants - latencies;
    assert!((256 << 10..batch).contains(&small), "{small}");
    // Two bytes a block.
    let blocks = with_backing(options, 64 + (1 << 20)) - batch - tenants - latencies;
    assert!((2 << 20..3 << 20).contains(&blocks), "{blocks}");
}

#[test]
fn one_verb_in_sixteen_is_timed_if_any_is() {
    let timed = |options: ZswapOptions| {
        // A thread of its own, whose first verb is timed.
        let work = move || {
            let zswap = Zswap::new(options).unwrap();
            (0..160).for_each(|key| _ = zswap.store(PageKey(key), &page(key)).unwrap());
            let mut loaded = [0; PAGE_SIZE];
            (0..160).for_each(|key| assert!(zswap.load(PageKey(key), &mut loaded).unwrap()));
            zswap.latencies().verbs().map(|(_, counts)| counts.count)
        };
        std::thread::spawn(work).join().unwrap()
    };
    assert_eq!(timed(ZswapOptions::default().latencies(true)), [10, 10, 0, 0]);
    for options in [ZswapOptions::default().latencies(false), ZswapOptions::bare()] {
        assert_eq!(timed(options), [0; 4]);
    }
}

/// A compressor of others that has no other way for pages that are to take little room.
#[derive(Debug)]
struct Single(Box<dyn Compressor>);

impl Compressor for Single {
    fn name(&self) -> String {
        "single".to_owned()
    }

    fn compress(&self, page: &Page, out: &mut [u8; OUTPUT_BYTES]) -> Result<usize, CompressError> {
        self.0.compress(page, out)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        self.0.decompress(object, page)
    }
}

#[test]
fn a_compressor_alone_is_as_dense_as_it_can() {
    let single = Single(CompressorKind::Lz4.build());
    assert_eq!(single.format(), ObjectFormat::Other("single".to_owned()));
    let mut outs = [[0; OUTPUT_BYTES]; 2];
    let page = page(77);
    let bytes = single.compress(&page, &mut outs[0]).unwrap();
    assert_eq!(single.compress_densely(&page, &mut outs[1]).unwrap(), bytes);
    assert!(outs[0][..bytes] == outs[1][..bytes] && single.is_dense(&outs[0][..bytes]));
    let zswap = Zswap::with_compressor(ZswapOptions::default(), Box::new(single)).unwrap();
    zswap.store_densely(PageKey(1), &page).unwrap();
    assert_eq!(zswap.recompress(PageKey(1)).unwrap(), 0);
    let mut loaded = [0; PAGE_SIZE];
    assert!(zswap.load(PageKey(1), &mut loaded).unwrap() && loaded == page);
}
