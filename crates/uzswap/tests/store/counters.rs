//! Goal: each call counts what it did, and nothing else.
//! Method: calls one after the other, with all counters compared before and after each. Parts fail
//! on request.
//! Blind to: threads, whose counts the models add up.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uzswap::backing::{Backing, Block, BlockWrite, MemoryBacking};
use uzswap::budget::Counted;
use uzswap::compressor::{CompressError, Compressor, CompressorKind, Corrupt, OUTPUT_BYTES};
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::SplitMix64;
use uzswap::zpool::ZpoolKind;
use uzswap::zswap::{
    Incompressible, LoadError, StoreError, TenantId, TenantOptions, WhenFull, Zswap, ZswapOptions,
    ZswapParts,
};

/// Calls of a part that fail.
const COMPRESS: u32 = 1;
const DECOMPRESS: u32 = 2;
pub(crate) const WRITE: u32 = 4;
const READ: u32 = 8;
/// A read that gives other bytes.
const MISREAD: u32 = 16;

/// Those that fail now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults(Arc<AtomicU32>);

impl Faults {
    pub(crate) fn are(&self, calls: u32) {
        self.0.store(calls, Ordering::Relaxed);
    }

    fn has(&self, call: u32) -> bool {
        self.0.load(Ordering::Relaxed) & call != 0
    }
}

#[derive(Debug)]
struct FaultyCompressor(Box<dyn Compressor>, Faults);

impl Compressor for FaultyCompressor {
    fn name(&self) -> String {
        "faulty".to_owned()
    }

    fn compress(&self, page: &Page, out: &mut [u8; OUTPUT_BYTES]) -> Result<usize, CompressError> {
        if self.1.has(COMPRESS) {
            return Err(CompressError::Failed("told to".to_owned()));
        }
        self.0.compress(page, out)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        if self.1.has(DECOMPRESS) {
            return Err(Corrupt("told to".to_owned()));
        }
        self.0.decompress(object, page)
    }
}

#[derive(Debug)]
pub(crate) struct FaultyBacking(pub(crate) MemoryBacking, pub(crate) Faults);

impl Backing for FaultyBacking {
    fn name(&self) -> String {
        "disk".to_owned()
    }

    fn block_count(&self) -> u32 {
        self.0.block_count()
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        match self.1.has(WRITE) {
            true => writes.iter_mut().for_each(|w| w.outcome = Err(io::ErrorKind::Other.into())),
            false => self.0.write(writes),
        }
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        if self.1.has(READ) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.0.read(first, blocks)?;
        blocks[0].0[100] ^= u8::from(self.1.has(MISREAD));
        Ok(())
    }

    fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        self.0.discard(blocks)
    }
}

fn text(number: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    page[..8].copy_from_slice(&(number + 1).to_le_bytes());
    page[8..1000].fill(number as u8 | 1);
    page
}

fn noise(number: u64) -> Page {
    let mut random = SplitMix64::new(number);
    let mut page = [0; PAGE_SIZE];
    page.fill_with(|| random.next_word() as u8);
    page
}

fn word(number: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    uzswap::page::fill_with_word(&mut page, number);
    page
}

/// A store, and its counters after the last step.
struct Watched {
    zswap: Zswap,
    before: Vec<(&'static str, u64)>,
}

impl Watched {
    fn new(zswap: Zswap) -> Watched {
        let before = counts(&zswap);
        Watched { zswap, before }
    }

    /// Calls the store; the counters that changed must be these, and by so much.
    #[track_caller]
    fn step<T>(&mut self, call: impl FnOnce(&Zswap) -> T, changed: &[(&str, i64)]) -> T {
        let result = call(&self.zswap);
        let after = counts(&self.zswap);
        let pairs = self.before.iter().zip(&after);
        let found: Vec<(&str, i64)> = pairs
            .map(|(before, after)| (before.0, after.1.wrapping_sub(before.1).cast_signed()))
            .filter(|(_, change)| *change != 0)
            .collect();
        let mut expected = changed.to_vec();
        expected.sort_by_key(|(name, _)| after.iter().position(|(known, _)| known == name));
        assert_eq!(found, expected);
        self.before = after;
        self.zswap.audit().unwrap();
        result
    }

    #[track_caller]
    fn store(&mut self, key: u64, page: &Page, changed: &[(&str, i64)]) {
        self.step(|zswap| zswap.store(PageKey(key), page), changed).unwrap();
    }

    #[track_caller]
    fn refuse(&mut self, key: u64, page: &Page, changed: &[(&str, i64)]) -> StoreError {
        self.step(|zswap| zswap.store(PageKey(key), page), changed).unwrap_err()
    }

    /// Loads a page, which must be this one.
    #[track_caller]
    fn load(&mut self, verb: Load, key: u64, expected: &Page, changed: &[(&str, i64)]) {
        let mut page = [0; PAGE_SIZE];
        let loaded = self.step(|zswap| verb(zswap, PageKey(key), &mut page), changed);
        assert!(loaded.unwrap() && page == *expected);
    }

    #[track_caller]
    fn load_fails(&mut self, verb: Load, key: u64, changed: &[(&str, i64)]) -> LoadError {
        let mut page = [0; PAGE_SIZE];
        self.step(|zswap| verb(zswap, PageKey(key), &mut page), changed).unwrap_err()
    }

    #[track_caller]
    fn shrink(&mut self, pages: usize, changed: &[(&str, i64)]) {
        let shrunk = self.step(|zswap| zswap.shrink(TenantId::ROOT, pages), changed);
        let change = |name| changed.iter().find(|change| change.0 == name).map_or(0, |c| c.1);
        let names = ["written_back_pages", "dropped_clean_pages", "reject_reclaim_fail"];
        let found = [shrunk.written_back, shrunk.dropped_clean, shrunk.failed];
        assert_eq!(found.map(|pages| pages as i64), names.map(change), "{shrunk:?}");
    }
}

type Load = fn(&Zswap, PageKey, &mut Page) -> Result<bool, LoadError>;
const VERBS: [Load; 3] = [Zswap::load, Zswap::load_in_place, Zswap::load_exclusive];

/// All counters but the bytes of the pool, which are those of the budget.
fn counts(zswap: &Zswap) -> Vec<(&'static str, u64)> {
    let counters = zswap.counters();
    assert_eq!(counters.pool_total_size, zswap.budget().pool_bytes());
    let counts = counters.list().map(|counter| (counter.name, counter.value));
    counts.filter(|(name, _)| *name != "pool_total_size").collect()
}

fn with_faults(options: ZswapOptions) -> (Watched, Faults) {
    let faults = Faults::default();
    let parts = ZswapParts::of(options).unwrap();
    let backing = FaultyBacking(MemoryBacking::new(64).unwrap(), faults.clone());
    let compressor = Box::new(FaultyCompressor(parts.compressor, faults.clone()));
    let parts = ZswapParts { compressor, backing: Some(Box::new(backing)), ..parts };
    let zswap = Zswap::from_parts(options, parts, |budget| options.index.build_on(budget));
    (Watched::new(zswap.unwrap()), faults)
}

/// A page comes from the backing into the pool, and its copy stays.
const PROMOTED: [(&str, i64); 5] = [
    ("stored_pages", 1),
    ("backing_pages", -1),
    ("clean_pages", 1),
    ("backing_loads", 1),
    ("promoted_pages", 1),
];

/// A page with a copy leaves the pool.
const DROPPED: [(&str, i64); 4] =
    [("stored_pages", -1), ("backing_pages", 1), ("clean_pages", -1), ("dropped_clean_pages", 1)];

#[test]
fn what_is_in_the_pool_comes_and_goes() {
    let (mut zswap, _) = with_faults(ZswapOptions::default());
    let new = ("zswpout", 1);
    zswap.store(1, &text(1), &[("stored_pages", 1), new]);
    zswap.store(2, &word(7), &[("stored_pages", 1), ("same_filled_pages", 1), new]);
    let replaced = ("duplicate_entry", 1);
    zswap.store(1, &text(2), &[new, replaced]);
    zswap.store(1, &word(1), &[("same_filled_pages", 1), new, replaced]);
    zswap.store(1, &text(3), &[("same_filled_pages", -1), new, replaced]);
    let [load, load_in_place, load_exclusive] = VERBS;
    for verb in [load, load_in_place] {
        zswap.load(verb, 1, &text(3), &[("zswpin", 1)]);
        zswap.load(verb, 2, &word(7), &[("zswpin", 1)]);
    }
    let taken = [("stored_pages", -1), ("zswpin", 1), ("exclusive_loads", 1)];
    zswap.load(load_exclusive, 1, &text(3), &taken);
    zswap.load(load_exclusive, 2, &word(7), &[&taken[..], &[("same_filled_pages", -1)]].concat());
    for verb in VERBS {
        let found = zswap.step(|zswap| verb(zswap, PageKey(1), &mut [0; PAGE_SIZE]), &[]);
        assert!(!found.unwrap());
    }
    for key in 0..5 {
        zswap.store(key, &text(key), &[("stored_pages", 1), new]);
    }
    let gone = [("stored_pages", -1), ("invalidated_pages", 1)];
    assert!(zswap.step(|zswap| zswap.invalidate(PageKey(4)), &gone));
    assert!(!zswap.step(|zswap| zswap.invalidate(PageKey(4)), &[]));
    let range = PageKey(1)..=PageKey(9);
    let gone = [("stored_pages", -3), ("invalidated_pages", 3)];
    assert_eq!(zswap.step(|zswap| zswap.invalidate_range(range), &gone), 3);
    assert_eq!(zswap.step(Zswap::len, &[]), 1);
}

#[test]
fn what_is_in_the_backing_comes_and_goes() {
    let (mut zswap, faults) = with_faults(ZswapOptions::default());
    let [load, load_in_place, load_exclusive] = VERBS;
    let stored = [("stored_pages", 1), ("zswpout", 1)];
    for key in 0..3 {
        zswap.store(key, &text(key), &stored);
    }
    faults.are(WRITE);
    zswap.shrink(1, &[("reject_reclaim_fail", 1)]);
    faults.are(0);
    let written = [("stored_pages", -3), ("backing_pages", 3), ("written_back_pages", 3)];
    zswap.shrink(3, &written);
    zswap.load(load_in_place, 1, &text(1), &[("backing_loads", 1)]);
    zswap.load(load, 1, &text(1), &PROMOTED);
    zswap.shrink(1, &DROPPED);
    let taken = [("backing_pages", -1), ("backing_loads", 1), ("exclusive_loads", 1)];
    zswap.load(load_exclusive, 1, &text(1), &taken);
    zswap.load(load, 0, &text(0), &PROMOTED);
    zswap.store(0, &text(9), &[("clean_pages", -1), ("zswpout", 1), ("duplicate_entry", 1)]);

    for (is_exclusive, verb) in [(false, load), (false, load_in_place), (true, load_exclusive)] {
        faults.are(READ);
        let error = zswap.load_fails(verb, 2, &[("backing_read_fail", 1)]);
        assert_eq!(error.key(), PageKey(2));
        assert_eq!(error.to_string(), "cannot read page 0x2 from block 2 of disk");
        faults.are(MISREAD);
        let error = zswap.load_fails(verb, 2, &[("decompress_fail", 1)]);
        let told = "page 0x2 is corrupt in disk (faulty, object of 4096 bytes)";
        assert_eq!((error.to_string().as_str(), error.key()), (told, PageKey(2)));
        faults.are(DECOMPRESS);
        // A load from memory counts when it finds the page, and an exclusive one when it has it.
        let found = [("decompress_fail", 1), ("zswpin", 1)];
        let found = if is_exclusive { &found[..1] } else { &found };
        let error = zswap.load_fails(verb, 0, found);
        let bytes = zswap.zswap.memory().compressed_bytes;
        let told = format!("page 0x0 is corrupt in zsmalloc (faulty, object of {bytes} bytes)");
        assert_eq!((error.to_string(), error.key()), (told, PageKey(0)));
    }
    // A page that cannot be restored is not written.
    zswap.shrink(1, &[("reject_reclaim_fail", 1), ("decompress_fail", 1)]);
    faults.are(0);
    let gone = [("stored_pages", -1), ("backing_pages", -1), ("invalidated_pages", 2)];
    let all = PageKey(0)..=PageKey(u64::MAX);
    assert_eq!(zswap.step(|zswap| zswap.invalidate_range(all), &gone), 2);
}

#[test]
fn what_does_not_shrink_is_counted_by_its_reason_and_its_way() {
    let (mut zswap, faults) = with_faults(ZswapOptions::default());
    let staged = |reason| {
        let held = ("stored_incompressible_pages", 1);
        [("stored_pages", 1), held, ("zswpout", 1), (reason, 1), ("staged_pages", 1)]
    };
    zswap.store(1, &noise(1), &staged("reject_compress_poor"));
    faults.are(COMPRESS);
    zswap.store(2, &text(2), &staged("reject_compress_fail"));
    faults.are(0);
    let written = [
        ("stored_pages", -2),
        ("stored_incompressible_pages", -2),
        ("backing_pages", 2),
        ("written_back_pages", 2),
    ];
    zswap.shrink(2, &written);
    // A page that does not shrink stays in the backing.
    zswap.load(Zswap::load, 1, &noise(1), &[("backing_loads", 1)]);

    let pinned = TenantOptions::default().writeback(false);
    let pinned = zswap.step(|zswap| zswap.add_tenant(TenantId::ROOT, pinned), &[]).unwrap();
    let store = |page| move |zswap: &Zswap| zswap.store_for(pinned, PageKey(3), &page).map(drop);
    let refused = zswap.step(store(noise(3)), &[("reject_compress_poor", 1)]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "page 0x3 does not compress enough: the compressed page exceeds 4096 bytes"
    );
    faults.are(COMPRESS);
    let refused = zswap.step(store(text(3)), &[("reject_compress_fail", 1)]).unwrap_err();
    assert_eq!(refused.to_string(), "cannot compress page 0x3: told to");
    faults.are(0);
    zswap.step(store(text(3)), &[("stored_pages", 1), ("zswpout", 1)]).unwrap();

    // Allocators that have no room for a whole page: at once, by itself.
    let (mut zswap, faults) = with_faults(ZswapOptions::default().zpool(ZpoolKind::Zbud));
    let through = [
        ("backing_pages", 1),
        ("zswpout", 1),
        ("reject_compress_poor", 1),
        ("written_through_pages", 1),
    ];
    zswap.store(1, &noise(1), &through);
    faults.are(WRITE);
    let refused = zswap.refuse(
        1,
        &noise(1),
        &[("backing_pages", -1), ("reject_compress_poor", 1), ("duplicate_entry", 1)],
    );
    assert_eq!(
        refused.to_string(),
        "cannot write page 0x1 to disk (page 0x1 does not compress enough: the compressed page \
         exceeds 4096 bytes)"
    );

    let options = ZswapOptions::default().incompressible(Incompressible::StoreAsIs);
    let (mut zswap, faults) = with_faults(options);
    let kept = [("stored_pages", 1), ("stored_incompressible_pages", 1), ("zswpout", 1)];
    zswap.store(1, &noise(1), &kept);
    faults.are(COMPRESS);
    zswap.store(2, &text(2), &kept);
    faults.are(0);
    zswap.load(Zswap::load, 2, &text(2), &[("zswpin", 1)]);
}

#[test]
fn a_limit_is_counted_by_its_kind() {
    let limit = |bytes| ZswapOptions::default().max_pool_bytes(bytes).counted(Counted::Pool);
    let mut zswap = Watched::new(Zswap::new(limit(0)).unwrap());
    let refused = [("pool_limit_hit", 1), ("reject_alloc_fail", 1)];
    assert!(zswap.refuse(1, &text(1), &refused).is_pool_limit());
    zswap.store(1, &word(1), &[("stored_pages", 1), ("same_filled_pages", 1), ("zswpout", 1)]);
    let gone = [("stored_pages", -1), ("same_filled_pages", -1), ("duplicate_entry", 1)];
    zswap.refuse(1, &text(1), &[&gone[..], &refused].concat());

    let options = limit(0).when_full(WhenFull::Bypass);
    let mut zswap = Watched::new(Zswap::new(options).unwrap());
    let error = zswap.refuse(1, &text(1), &[("pool_limit_hit", 1)]);
    assert!(matches!(error, StoreError::PoolLimit { key: PageKey(1), .. }), "{error:?}");

    let options = ZswapOptions::default().max_pool_bytes(0).counted(Counted::PoolAndMetadata);
    let mut zswap = Watched::new(Zswap::new(options).unwrap());
    let error = zswap.refuse(1, &word(1), &[("pool_limit_hit", 1), ("reject_kmemcache_fail", 1)]);
    assert!(matches!(error, StoreError::IndexFull { key: PageKey(1), .. }), "{error:?}");

    let mut zswap = Watched::new(Zswap::new(ZswapOptions::default()).unwrap());
    let small = TenantOptions::default().max_bytes(10);
    let small = zswap.step(|zswap| zswap.add_tenant(TenantId::ROOT, small), &[]).unwrap();
    zswap.store(1, &text(1), &[("stored_pages", 1), ("zswpout", 1)]);
    let gone = [("stored_pages", -1), ("duplicate_entry", 1), ("reject_tenant_limit", 1)];
    let store = |zswap: &Zswap| zswap.store_for(small, PageKey(1), &text(1)).map(drop);
    let refused = zswap.step(store, &gone).unwrap_err();
    assert!(matches!(refused, StoreError::TenantLimit { key: PageKey(1), .. }), "{refused:?}");
    // One of a tenant that was removed is no refusal of the pool.
    zswap.step(|zswap| zswap.remove_tenant(small), &[]).unwrap();
    assert!(matches!(zswap.step(store, &[]), Err(StoreError::NoTenant { .. })));
    zswap.store(1, &text(1), &[("stored_pages", 1), ("zswpout", 1)]);
    let gone = [("stored_pages", -1), ("duplicate_entry", 1)];
    assert!(matches!(zswap.step(store, &gone), Err(StoreError::NoTenant { .. })));
}

/// A page comes back into a crowded pool only in the place of others.
#[test]
fn a_page_stays_in_the_backing_where_no_other_can_leave_the_pool() {
    let limit = ZswapOptions::default().max_pool_bytes(256 << 10).counted(Counted::Pool);
    let (mut zswap, faults) = with_faults(limit.accept_threshold_percent(50));
    let half_noise = |key: u64| {
        let mut page = noise(key);
        page[2048..].fill(0);
        page
    };
    for key in 0..110 {
        zswap.store(key, &half_noise(key), &[("stored_pages", 1), ("zswpout", 1)]);
    }
    let written = [("stored_pages", -5), ("backing_pages", 5), ("written_back_pages", 5)];
    zswap.shrink(5, &written);
    let pool_bytes = zswap.zswap.budget().pool_bytes();
    assert!(pool_bytes > 128 << 10, "{pool_bytes} bytes are no crowd");
    faults.are(WRITE);
    let failed = ("reject_reclaim_fail", 16);
    zswap.load(Zswap::load, 0, &half_noise(0), &[("backing_loads", 1), failed]);
    assert_eq!(zswap.zswap.budget().pool_bytes(), pool_bytes);
    faults.are(0);
    let displaced = [
        ("stored_pages", 1 - 16),
        ("backing_pages", 16 - 1),
        ("written_back_pages", 16),
        ("clean_pages", 1),
        ("backing_loads", 1),
        ("promoted_pages", 1),
    ];
    zswap.load(Zswap::load, 1, &half_noise(1), &displaced);
}

#[test]
fn what_was_compressed_once_more_is_counted() {
    let options = ZswapOptions::default().dense(Some(CompressorKind::Zstd(1)));
    let mut zswap = Watched::new(Zswap::new(options).unwrap());
    let mut page = noise(1);
    page[2000..].fill(7);
    page[..2000].iter_mut().for_each(|byte| *byte &= 15);
    zswap.store(1, &page, &[("stored_pages", 1), ("zswpout", 1)]);
    let before = zswap.zswap.memory().compressed_bytes;
    let again = |zswap: &Zswap| zswap.recompress(PageKey(1)).unwrap();
    let saved = zswap.step(again, &[("recompressed_pages", 1)]);
    assert!(saved > 300, "{saved}");
    assert_eq!(zswap.zswap.memory().compressed_bytes, before - saved as u64);
    assert_eq!(zswap.step(again, &[]), 0);
    zswap.load(Zswap::load, 1, &page, &[("zswpin", 1)]);
    // Densely at once is as long.
    let dense = |zswap: &Zswap| zswap.store_densely(PageKey(2), &page);
    zswap.step(dense, &[("stored_pages", 1), ("zswpout", 1)]).unwrap();
    assert_eq!(zswap.zswap.memory().compressed_bytes, 2 * (before - saved as u64));
    assert_eq!(zswap.step(|zswap| zswap.recompress(PageKey(2)).unwrap(), &[]), 0);
    // The copy in the backing is that of the page still.
    let backing = Box::new(MemoryBacking::new(4).unwrap());
    let mut zswap = Watched::new(Zswap::with_backing(options, backing).unwrap());
    zswap.store(1, &page, &[("stored_pages", 1), ("zswpout", 1)]);
    zswap.shrink(1, &[("stored_pages", -1), ("backing_pages", 1), ("written_back_pages", 1)]);
    zswap.load(Zswap::load, 1, &page, &PROMOTED);
    assert!(zswap.step(again, &[("recompressed_pages", 1)]) > 300);
    zswap.shrink(1, &DROPPED);
    zswap.load(Zswap::load_in_place, 1, &page, &[("backing_loads", 1)]);
    // A result that is no smaller is not kept.
    let (zstd, lz4) = (CompressorKind::Zstd(3), CompressorKind::Lz4);
    let options = ZswapOptions::default().compressor(zstd).dense(Some(lz4));
    let mut zswap = Watched::new(Zswap::new(options).unwrap());
    zswap.store(1, &page, &[("stored_pages", 1), ("zswpout", 1)]);
    assert_eq!(zswap.step(again, &[]), 0);
}
