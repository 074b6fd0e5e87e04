//! Goal: a foreign compressor, pool or backing that panics, calls its own store or returns
//! impossible values does no harm. The result is an error, or the one in `zswap/parts.rs`, and all
//! other pages stay.
//! Method: doubles that do one such deed at one of their methods while all verbs are called; then
//! the audit, and every page against a model. A watchdog reports a deadlock.
//! Blind to: parts that give other pages of the right length, and give other handles than theirs.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Once, OnceLock, Weak};
use std::time::Duration;

use uzswap::AuditError;
use uzswap::backing::{Backing, Block, BlockWrite, MemoryBacking};
use uzswap::compressor::{
    CompressError, Compressor, CompressorKind, Corrupt, Dual, OUTPUT_BYTES, ObjectFormat, Output,
};
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::zpool::{Handle, UnknownHandle, Zpool, ZpoolError, ZpoolStats};
use uzswap::zswap::snapshot::{SnapshotError, SnapshotOptions};
use uzswap::zswap::{
    Incompressible, LoadError, StoreError, Stored, TenantId, TenantOptions, WhenFull, WrittenAs,
    Zswap, ZswapOptions, ZswapParts,
};

/// Where a double does something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Compress,
    CompressDensely,
    IsDense,
    Decompress,
    Insert,
    ReadObject,
    Remove,
    Compact,
    Stats,
    Audit,
    Write,
    ReadBlocks,
    Discard,
}

use Method::{
    Audit, Compact, Compress, CompressDensely, Decompress, Discard, Insert, IsDense, ReadBlocks,
    ReadObject, Remove, Stats, Write,
};

/// What it does there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Panic,
    /// The part does its work, and then panics.
    PanicAfter,
    /// The part calls the store, by the verb of this number.
    Call(usize),
    /// The part returns this length: of an object, a slot, or bits of a handle.
    Length(usize),
    /// It returns, and has done nothing.
    Nothing,
    /// It does it twice.
    Twice,
}

/// A double's orders.
#[derive(Default)]
struct Orders {
    orders: Mutex<Option<(Method, Deed)>>,
    store: OnceLock<Weak<Zswap>>,
    followed: AtomicU64,
}

impl std::fmt::Debug for Orders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Orders")
    }
}

impl Orders {
    fn give(&self, orders: Option<(Method, Deed)>) {
        *self.orders.lock().unwrap() = orders;
    }

    /// Follows the orders for a method, if there are any; what is left for it to do.
    fn follow(&self, here: Method) -> Option<Deed> {
        let orders = *self.orders.lock().unwrap();
        let deed = orders.filter(|(method, _)| *method == here)?.1;
        self.followed.fetch_add(1, Ordering::Relaxed);
        match deed {
            Deed::Panic => panic!("told to, at {here:?}"),
            Deed::Call(verb) => {
                let store = self.store.get().and_then(Weak::upgrade).expect("the store is there");
                VERBS[verb].1(&store);
                None
            }
            other => Some(other),
        }
    }

    /// At the end of a method.
    fn end(&self, deed: Option<Deed>) {
        assert!(deed != Some(Deed::PanicAfter), "told to, at the end");
    }
}

type Verb = fn(&Zswap);

/// Whatever the answer is.
fn forget<T>(_answer: T) {}

/// All verbs of a store, which none of its parts may call.
const VERBS: [(&str, Verb); 18] = [
    ("store", |zswap| forget(zswap.store(PageKey(3), &page_of(3, 1)))),
    ("store_densely", |zswap| forget(zswap.store_densely(PageKey(3), &page_of(3, 1)))),
    ("load", |zswap| forget(zswap.load(PageKey(2), &mut [0; PAGE_SIZE]))),
    ("load_in_place", |zswap| forget(zswap.load_in_place(PageKey(2), &mut [0; PAGE_SIZE]))),
    ("load_exclusive", |zswap| forget(zswap.load_exclusive(PageKey(2), &mut [0; PAGE_SIZE]))),
    ("is_written_back", |zswap| assert!(!zswap.is_written_back(PageKey(999)))),
    ("invalidate", |zswap| assert!(!zswap.invalidate(PageKey(999)))),
    ("invalidate_range", |zswap| {
        assert_eq!(zswap.invalidate_range(PageKey(900)..=PageKey(999)), 0);
    }),
    ("recompress", |zswap| forget(zswap.recompress(PageKey(2)))),
    ("shrink", |zswap| forget(zswap.shrink(TenantId::ROOT, 3))),
    ("shrink_to", |zswap| forget(zswap.shrink_to(1 << 20))),
    ("compact", |zswap| forget(zswap.compact())),
    ("discard", |zswap| forget(zswap.discard())),
    ("counters", |zswap| forget(zswap.counters())),
    ("stats", |zswap| forget(zswap.stats())),
    ("tenants", |zswap| {
        forget(zswap.set_tenant(TenantId::ROOT, TenantOptions::default()));
        forget(zswap.add_tenant(TenantId::ROOT, TenantOptions::default()));
        forget(zswap.tenants());
    }),
    ("snapshot", |zswap| {
        forget(zswap.snapshot_to(io::sink(), SnapshotOptions::default()));
    }),
    ("audit", |zswap| forget(zswap.audit())),
];

#[derive(Debug)]
struct BadCompressor(Box<dyn Compressor>, Arc<Orders>);

impl BadCompressor {
    fn made(
        &self,
        method: Method,
        out: &mut Output,
        make: impl Fn(&mut Output) -> Result<usize, CompressError>,
    ) -> Result<usize, CompressError> {
        let deed = self.1.follow(method);
        let made = make(out);
        self.1.end(deed);
        match deed {
            Some(Deed::Length(bytes)) => Ok(bytes),
            _ => made,
        }
    }
}

impl Compressor for BadCompressor {
    fn name(&self) -> String {
        self.0.name()
    }

    fn format(&self) -> ObjectFormat {
        self.0.format()
    }

    fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        self.made(Compress, out, |out| self.0.compress(page, out))
    }

    fn compress_densely(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        self.made(CompressDensely, out, |out| self.0.compress_densely(page, out))
    }

    fn is_dense(&self, object: &[u8]) -> bool {
        self.1.follow(IsDense);
        self.0.is_dense(object)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let deed = self.1.follow(Decompress);
        let done = self.0.decompress(object, page);
        self.1.end(deed);
        done
    }
}

#[derive(Debug)]
struct BadPool(Box<dyn Zpool>, Arc<Orders>);

impl Zpool for BadPool {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn object_size_max(&self) -> usize {
        self.0.object_size_max()
    }

    fn insert(&self, object: &[u8]) -> Result<Handle, ZpoolError> {
        let deed = self.1.follow(Insert);
        let handle = self.0.insert(object);
        self.1.end(deed);
        match deed {
            Some(Deed::Length(bits)) => Ok(Handle::from_bits(1 << bits)),
            _ => handle,
        }
    }

    fn read(&self, handle: Handle, reader: &mut dyn FnMut(&[u8])) -> Result<(), UnknownHandle> {
        let deed = self.1.follow(ReadObject);
        let read = match deed {
            Some(Deed::Nothing) => Ok(()),
            Some(Deed::Length(usize::MAX)) => Err(UnknownHandle(handle)),
            Some(Deed::Length(bytes)) => self.0.read(handle, &mut |slot| reader(&slot[..bytes])),
            Some(Deed::Twice) => {
                reader(&[7; 9000]);
                self.0.read(handle, reader)
            }
            _ => self.0.read(handle, reader),
        };
        self.1.end(deed);
        read
    }

    fn remove(&self, handle: Handle) -> Result<(), UnknownHandle> {
        let deed = self.1.follow(Remove);
        let removed = match deed {
            Some(Deed::Nothing) => Err(UnknownHandle(handle)),
            _ => self.0.remove(handle),
        };
        self.1.end(deed);
        removed
    }

    fn compact(&self) -> usize {
        let deed = self.1.follow(Compact);
        let freed = self.0.compact();
        self.1.end(deed);
        if let Some(Deed::Length(pages)) = deed { pages } else { freed }
    }

    fn stats(&self) -> ZpoolStats {
        match self.1.follow(Stats) {
            Some(Deed::Length(many)) => ZpoolStats {
                pool_pages: many,
                objects: many,
                metadata_bytes: many,
                pages_compacted: many,
            },
            _ => self.0.stats(),
        }
    }

    fn audit(&self) -> Result<(), AuditError> {
        self.1.follow(Audit);
        self.0.audit()
    }
}

#[derive(Debug)]
struct BadBacking(MemoryBacking, Arc<Orders>);

impl Backing for BadBacking {
    fn name(&self) -> String {
        "bad".to_owned()
    }

    fn block_count(&self) -> u32 {
        self.0.block_count()
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        let deed = self.1.follow(Write);
        if deed != Some(Deed::Nothing) {
            self.0.write(writes);
        }
        self.1.end(deed);
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        let deed = self.1.follow(ReadBlocks);
        let read = self.0.read(first, blocks);
        self.1.end(deed);
        read
    }

    fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        let deed = self.1.follow(Discard);
        let done = self.0.discard(blocks);
        self.1.end(deed);
        done
    }
}

/// A page that shrinks to a third or so, and says whose it is.
fn page_of(key: u64, version: u64) -> Page {
    let mut page = [0x20; PAGE_SIZE];
    let mut word = (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version << 32;
    for chunk in page[..1200].as_chunks_mut::<8>().0 {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        *chunk = word.to_le_bytes();
    }
    page
}

struct Scene {
    zswap: Arc<Zswap>,
    orders: Arc<Orders>,
    /// The version of what each key holds.
    model: BTreeMap<u64, u64>,
}

const BLOCKS: u32 = 1 << 10;

/// Some pages in the pool, with records of others in the backing if there is one.
fn scene(options: ZswapOptions, with_backing: bool) -> Scene {
    let orders = Arc::new(Orders::default());
    let bad = || Arc::clone(&orders);
    let parts = ZswapParts::of(options).unwrap();
    let pair = Dual::new(CompressorKind::Lz4.build(), CompressorKind::Zstd(3).build());
    let memory = MemoryBacking::new(BLOCKS).unwrap();
    let backing = with_backing.then(|| Box::new(BadBacking(memory, bad())) as Box<dyn Backing>);
    let parts = ZswapParts {
        arena: parts.arena,
        zpool: Box::new(BadPool(parts.zpool, bad())),
        compressor: Box::new(BadCompressor(Box::new(pair), bad())),
        backing,
    };
    let zswap = Zswap::from_parts(options, parts, |budget| options.index.build_on(budget));
    let zswap = Arc::new(zswap.unwrap());
    orders.store.set(Arc::downgrade(&zswap)).unwrap();
    let mut scene = Scene { zswap, orders, model: BTreeMap::new() };
    for key in 0..300 {
        scene.store(key, 0).unwrap();
    }
    scene.zswap.shrink(TenantId::ROOT, 200);
    for key in 100..170 {
        assert!(scene.zswap.invalidate(PageKey(key)));
        scene.model.remove(&key);
    }
    scene
}

impl Scene {
    fn store(&mut self, key: u64, version: u64) -> Result<Stored, StoreError> {
        let stored = self.zswap.store(PageKey(key), &page_of(key, version));
        self.note_stored(key, version, &stored);
        stored
    }

    fn note_stored(&mut self, key: u64, version: u64, stored: &Result<Stored, StoreError>) {
        match stored {
            Ok(_) => self.model.insert(key, version),
            Err(_) => self.model.remove(&key),
        };
    }

    /// Loads a page; whether it was loaded.
    fn load(&mut self, key: u64, exclusively: bool) -> Result<bool, LoadError> {
        let mut page = [0; PAGE_SIZE];
        let loaded = match exclusively {
            true => self.zswap.load_exclusive(PageKey(key), &mut page),
            false => self.zswap.load(PageKey(key), &mut page),
        };
        if let Ok(loaded) = loaded {
            let expected = self.model.get(&key).map(|&version| page_of(key, version));
            assert_eq!(loaded, expected.is_some(), "key {key}");
            assert!(expected.is_none_or(|expected| expected == page), "key {key}: another page");
            if exclusively {
                self.model.remove(&key);
            }
        }
        loaded
    }

    /// Calls each verb on some keys; what fails, fails.
    fn all_verbs(&mut self) {
        for round in 0..3 {
            for key in [2, 50 + round, 180 + round, 200, 250 + round, 290, 295, 400 + round] {
                let _ = self.load(key, false);
                let _ = self.zswap.recompress(PageKey(key));
                let _ = self.load(key + 1, true);
                let _ = self.store(key + 2, 1 + round);
                let stored = self.zswap.store_densely(PageKey(key + 3), &page_of(key + 3, round));
                self.note_stored(key + 3, round, &stored);
                let removed = self.zswap.invalidate(PageKey(key + 4));
                assert_eq!(removed, self.model.remove(&(key + 4)).is_some());
            }
            self.zswap.shrink(TenantId::ROOT, 20);
            let range = 270..=272;
            let removed = self.zswap.invalidate_range(PageKey(270)..=PageKey(272));
            assert_eq!(removed, range.filter(|key| self.model.remove(key).is_some()).count());
            self.zswap.compact();
            self.zswap.discard();
            self.zswap.counters();
            self.zswap.stats();
            let _ = self.zswap.audit();
            let options = SnapshotOptions { skip_corrupt: round == 0 };
            let _ = self.zswap.snapshot_to(io::sink(), options);
        }
    }

    /// The part is well again: nothing else may be missing.
    fn check(&mut self, what: &str) {
        self.orders.give(None);
        self.zswap.audit().unwrap_or_else(|error| panic!("{what}: {error}"));
        for key in 0..410 {
            self.load(key, false).unwrap_or_else(|error| panic!("{what}: key {key}: {error}"));
        }
        self.zswap.shrink(TenantId::ROOT, 64);
        self.store(1, 77).unwrap();
        self.zswap.compact();
        self.zswap.audit().unwrap_or_else(|error| panic!("{what}: {error}"));
        for key in 0..410 {
            self.load(key, false).unwrap_or_else(|error| panic!("{what}: key {key}: {error}"));
        }
    }
}

/// Says nothing of panics that were ordered.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let payload = panic.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            let text = text.unwrap_or_default();
            if !text.starts_with("told to") && !text.contains("called the store") {
                tell(panic);
            }
        }));
    });
}

/// Runs `work` on a thread of its own; one that does not end is a deadlock.
fn in_time(what: &str, work: impl FnOnce() + Send + 'static) {
    keep_quiet();
    let (tell, told) = channel();
    let thread = std::thread::spawn(move || {
        let done = catch_unwind(AssertUnwindSafe(work));
        tell.send(()).unwrap();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    // Not a measurement: without an end it would stand still for ever.
    told.recv_timeout(Duration::from_secs(120)).unwrap_or_else(|_| panic!("{what}: a deadlock"));
    thread.join().unwrap_or_else(|_| panic!("{what}: the store panicked"));
}

/// Each method with what it can do wrong, but for calls.
fn deeds() -> Vec<(Method, Deed)> {
    let lengths = [0, PAGE_SIZE + 1, OUTPUT_BYTES, OUTPUT_BYTES + 1, usize::MAX].map(Deed::Length);
    let mut deeds = Vec::new();
    let mut add = |method, list: &[Deed]| deeds.extend(list.iter().map(|&deed| (method, deed)));
    for method in [Compress, CompressDensely] {
        add(method, &lengths);
        add(method, &[Deed::Panic, Deed::PanicAfter]);
    }
    add(IsDense, &[Deed::Panic]);
    add(Decompress, &[Deed::Panic, Deed::PanicAfter]);
    add(Insert, &[Deed::Panic, Deed::PanicAfter, Deed::Length(51), Deed::Length(63)]);
    add(ReadObject, &[Deed::Panic, Deed::PanicAfter, Deed::Nothing, Deed::Twice]);
    add(ReadObject, &[Deed::Length(0), Deed::Length(7), Deed::Length(usize::MAX)]);
    add(Remove, &[Deed::Panic, Deed::PanicAfter, Deed::Nothing]);
    add(Compact, &[Deed::Panic, Deed::PanicAfter, Deed::Length(usize::MAX)]);
    add(Stats, &[Deed::Panic, Deed::Length(usize::MAX), Deed::Length(0)]);
    add(Audit, &[Deed::Panic]);
    add(Write, &[Deed::Panic, Deed::PanicAfter, Deed::Nothing]);
    add(ReadBlocks, &[Deed::Panic, Deed::PanicAfter]);
    add(Discard, &[Deed::Panic, Deed::PanicAfter]);
    deeds
}

fn is_of_backing(method: Method) -> bool {
    matches!(method, Write | ReadBlocks | Discard)
}

/// Options that differ in what a part is asked for.
fn option_sets() -> [ZswapOptions; 3] {
    let small = ZswapOptions::default().max_pool_bytes(48 * PAGE_SIZE as u64);
    [
        ZswapOptions::default(),
        ZswapOptions::default()
            .incompressible(Incompressible::StoreAsIs)
            .written_as(WrittenAs::Objects)
            .object_header_bytes(8),
        small.when_full(WhenFull::Reclaim),
    ]
}

fn try_deed(options: ZswapOptions, with_backing: bool, method: Method, deed: Deed) {
    let what = match deed {
        Deed::Call(verb) => format!("{method:?} calls {}", VERBS[verb].0),
        other => format!("{method:?}, {other:?}"),
    };
    let named = what.clone();
    in_time(&named, move || {
        let mut scene = scene(options, with_backing);
        scene.orders.give(Some((method, deed)));
        scene.all_verbs();
        assert!(scene.orders.followed.load(Ordering::Relaxed) > 0, "{what}: never came to it");
        scene.check(&what);
        let loses = matches!(method, Insert | Remove);
        assert!(loses || scene.zswap.lost_objects() == 0, "{what}: objects were lost");
    });
}

#[test]
fn a_part_that_does_wrong_does_no_harm() {
    for options in option_sets() {
        let is_small = options.max_pool_bytes < u64::MAX;
        let in_blocks = options.written_as == WrittenAs::Pages && !is_small;
        for (method, deed) in deeds() {
            // Others have too few free blocks beside each other to discard any.
            if in_blocks || method != Discard {
                try_deed(options, true, method, deed);
            }
            if !is_of_backing(method) && !is_small {
                try_deed(options, false, method, deed);
            }
        }
    }
}

#[test]
fn a_part_that_calls_its_own_store_gets_no_answer_and_no_deadlock() {
    let methods = [
        Compress,
        CompressDensely,
        IsDense,
        Decompress,
        Insert,
        ReadObject,
        Remove,
        Compact,
        Stats,
        Audit,
        Write,
        ReadBlocks,
        Discard,
    ];
    for method in methods {
        for verb in 0..VERBS.len() {
            try_deed(ZswapOptions::default(), true, method, Deed::Call(verb));
        }
    }
}

/// What each deed comes to.
#[test]
fn errors_say_which_part_did_what() {
    keep_quiet();
    let of = |with_backing, method, deed| {
        let scene = scene(ZswapOptions::default(), with_backing);
        scene.orders.give(Some((method, deed)));
        scene
    };
    for (deed, words) in [
        (Deed::Panic, "panicked: told to"),
        (Deed::Call(0), "panicked: a compressor, pool or backing called the store"),
        (Deed::Length(0), "an object of 0 bytes"),
        (Deed::Length(usize::MAX), "in a buffer of"),
    ] {
        let error = of(false, Compress, deed).store(9, 9).unwrap_err();
        assert!(matches!(error, StoreError::CompressFail { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let error = of(false, Compress, Deed::Length(PAGE_SIZE + 1)).store(9, 9).unwrap_err();
    assert!(matches!(error, StoreError::CompressPoor { .. }), "{error:?}");
    for deed in [Deed::Panic, Deed::PanicAfter, Deed::Length(60)] {
        let mut scene = of(false, Insert, deed);
        let error = scene.store(9, 9).unwrap_err();
        let is_failed =
            matches!(&error, StoreError::AllocFail { source: ZpoolError::Failed(_), .. });
        assert!(is_failed, "{error:?}");
        assert_eq!(scene.zswap.lost_objects(), 1);
        scene.zswap.audit().unwrap();
    }
    for (method, deed) in [
        (Decompress, Deed::Panic),
        (ReadObject, Deed::Panic),
        (ReadObject, Deed::Nothing),
        (ReadObject, Deed::Length(3)),
        (ReadObject, Deed::Call(2)),
    ] {
        for exclusively in [false, true] {
            let error = of(false, method, deed).load(250, exclusively).unwrap_err();
            assert!(matches!(error, LoadError::Corrupt { .. }), "{error:?}");
        }
    }
    // The shown object counts, whatever came after.
    assert!(of(false, ReadObject, Deed::PanicAfter).load(250, true).unwrap());
    let is_written = |scene: &Scene| scene.zswap.is_written_back(PageKey(0));
    let mut written = of(true, ReadBlocks, Deed::Panic);
    assert!(is_written(&written));
    let error = written.load(0, false).unwrap_err();
    assert!(matches!(error, LoadError::Backing { .. }), "{error:?}");
    for deed in [Deed::Panic, Deed::Nothing, Deed::Call(9)] {
        let scene = of(true, Write, deed);
        let shrunk = scene.zswap.shrink(TenantId::ROOT, 10);
        assert_eq!((shrunk.pages(), shrunk.failed), (0, 10), "{deed:?}");
    }
    let error = of(false, Audit, Deed::Panic).zswap.audit().unwrap_err();
    assert!(error.to_string().contains("told to"), "{error}");
    // An object that is not shown stays where it is, and counts as corrupt.
    for deed in [Deed::Panic, Deed::Nothing, Deed::Length(usize::MAX)] {
        let scene = of(true, ReadObject, deed);
        let before = scene.zswap.counters();
        let shrunk = scene.zswap.shrink(TenantId::ROOT, 10);
        scene.orders.give(None);
        let after = scene.zswap.counters();
        assert_eq!((shrunk.pages(), shrunk.failed), (0, 10), "{deed:?}");
        assert_eq!(after.decompress_fail - before.decompress_fail, 10, "{deed:?}");
        assert_eq!(after.backing_pages, before.backing_pages);
        scene.zswap.audit().unwrap();
    }
    let scene = of(false, Remove, Deed::Nothing);
    assert!(scene.zswap.invalidate(PageKey(250)) && scene.zswap.lost_objects() == 1);
    scene.zswap.audit().unwrap();
}

#[test]
fn a_snapshot_counts_each_object_that_it_finds_corrupt_once() {
    keep_quiet();
    let options = |skip_corrupt| SnapshotOptions { skip_corrupt };
    for deed in [Deed::Panic, Deed::Nothing, Deed::Twice, Deed::Length(usize::MAX)] {
        let scene = scene(ZswapOptions::default(), false);
        let (zswap, pages) = (&scene.zswap, scene.model.len() as u64);
        let failures = || zswap.counters().decompress_fail;
        scene.orders.give(Some((ReadObject, deed)));
        let error = zswap.snapshot_to(io::sink(), options(false)).unwrap_err();
        assert!(matches!(error, SnapshotError::Page { .. }), "{deed:?}: {error}");
        assert_eq!(failures(), 1, "{deed:?}: the first one ends it");
        let summary = zswap.snapshot_to(io::sink(), options(true)).unwrap();
        assert_eq!((summary.pages(), summary.skipped_pages), (0, pages), "{deed:?}");
        assert_eq!(failures(), 1 + pages, "{deed:?}");
        scene.orders.give(None);
        assert_eq!(zswap.snapshot_to(io::sink(), options(false)).unwrap().pages(), pages);
        assert_eq!(failures(), 1 + pages, "{deed:?}: none is corrupt");
    }
}

/// Blocks that could not be discarded can be taken again: none is lost, and nobody waits.
#[test]
fn blocks_are_taken_again_after_a_discard_that_panicked() {
    in_time("discard", || {
        let mut scene = scene(ZswapOptions::default(), true);
        scene.orders.give(Some((Discard, Deed::Panic)));
        assert!(scene.zswap.discard() > 0);
        scene.orders.give(None);
        for key in 1000..1000 + u64::from(BLOCKS) {
            scene.store(key, 0).unwrap();
        }
        let left = scene.zswap.shrink(TenantId::ROOT, 2 * BLOCKS as usize);
        assert!(left.pages() > 0);
        let used = scene.zswap.stats().backing.unwrap().used_blocks;
        assert_eq!(used, u64::from(BLOCKS), "all blocks are in use");
        scene.check("a discard that panicked");
    });
}

/// A backing that is a store, and a compressor that keeps notes in one.
#[derive(Debug)]
struct StoreBehind(Arc<Zswap>);

impl Backing for StoreBehind {
    fn name(&self) -> String {
        "a store".to_owned()
    }

    fn block_count(&self) -> u32 {
        BLOCKS
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        for write in writes {
            let numbers = u64::from(write.first)..;
            write.outcome = numbers.zip(write.blocks).try_for_each(|(number, block)| {
                self.0.store(PageKey(number), &block.0).map(drop).map_err(io::Error::other)
            });
        }
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        for (number, block) in (u64::from(first)..).zip(blocks) {
            let is_there = self.0.load(PageKey(number), &mut block.0).map_err(io::Error::other)?;
            assert!(is_there, "block {number}");
        }
        Ok(())
    }

    fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        for number in blocks {
            self.0.invalidate(PageKey(u64::from(number)));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Noting(Box<dyn Compressor>, Arc<Zswap>);

impl Compressor for Noting {
    fn name(&self) -> String {
        self.0.name()
    }

    fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        self.1.store(PageKey(1 << 20), page).unwrap();
        self.0.compress(page, out)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        self.0.decompress(object, page)?;
        self.1.store(PageKey(1 << 20), page).unwrap();
        Ok(())
    }
}

#[test]
fn parts_can_be_made_of_other_stores() {
    in_time("a store of stores", || {
        let inner = Arc::new(Zswap::new(ZswapOptions::default()).unwrap());
        let options = ZswapOptions::default().written_as(WrittenAs::Objects);
        let parts = ZswapParts {
            compressor: Box::new(Noting(CompressorKind::Lz4.build(), Arc::clone(&inner))),
            backing: Some(Box::new(StoreBehind(Arc::clone(&inner)))),
            ..ZswapParts::of(options).unwrap()
        };
        let zswap = Zswap::from_parts(options, parts, |budget| options.index.build_on(budget));
        let zswap = zswap.unwrap();
        for key in 0..300 {
            zswap.store(PageKey(key), &page_of(key, 0)).unwrap();
        }
        assert_eq!(zswap.shrink(TenantId::ROOT, 200).pages(), 200);
        zswap.discard();
        let mut page = [0; PAGE_SIZE];
        for key in 0..300 {
            assert!(zswap.load(PageKey(key), &mut page).unwrap() && page == page_of(key, 0));
        }
        zswap.audit().unwrap();
        inner.audit().unwrap();
    });
}
