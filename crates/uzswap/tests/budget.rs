//! Goal: what a budget counts is what is there, and its limit holds at every instant.
//! Method: an allocator that compares, at each allocation and before each free, the memory of a
//! thread's calls with the charge. Seeded random histories of indexes and pools under small
//! budgets, against a sorted map. Threads that store into a budget too small for them while another
//! one watches it.
//! Blind to: what malloc adds to a block, and to resident host pages (see `rss`).

#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

#[allow(dead_code, reason = "the model of a pool is not used here")]
#[path = "store/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::SUBJECTS;
use uzswap::budget::{Budget, Counted};
use uzswap::index::btree::BTree;
use uzswap::index::{Entry, Index, IndexError, IndexKind};
use uzswap::page::{PAGE_SIZE, Page, PageKey, fill_with_word};
use uzswap::random::SplitMix64;
use uzswap::zpool::{Arena, Handle, HostPages, ZpoolError, ZpoolKind};
use uzswap::zswap::{StoreError, Zswap, ZswapOptions};

/// The system's allocator, with what this thread's watched calls hold.
struct Watching;

thread_local! {
    /// The budget of the calls; null outside of them.
    static BUDGET: Cell<*const Budget> = const { Cell::new(std::ptr::null()) };
    /// Bytes they hold, and the most that these were over the charge.
    static HELD: Cell<i64> = const { Cell::new(0) };
    static OVER: Cell<i64> = const { Cell::new(i64::MIN) };
}

/// Notes bytes that come, before they do, or go, after they did.
fn note(bytes: i64) {
    let budget = BUDGET.get();
    if budget.is_null() {
        return;
    }
    // SAFETY: `watched` sets it for as long as it borrows the budget.
    let metadata_bytes = unsafe { &*budget }.metadata_bytes();
    let held = HELD.get();
    HELD.set(held + bytes);
    OVER.set(OVER.get().max(held.max(held + bytes) - metadata_bytes.cast_signed()));
}

// SAFETY: every call is passed to the system's allocator as it came.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
        note(-(layout.size() as i64));
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // As where it has to move: both places are there for a while.
        note(bytes as i64);
        note(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// Runs a call whose allocations are compared with the budget; none may be over it by more than
/// `slack` bytes.
fn watched<R>(budget: &Budget, slack: i64, place: &str, call: impl FnOnce() -> R) -> R {
    OVER.set(i64::MIN);
    BUDGET.set(budget);
    let result = call();
    BUDGET.set(std::ptr::null());
    assert!(OVER.get() <= slack, "{place}: {} bytes more held than charged", OVER.get());
    result
}

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0.next_word() % end
    }
}

fn entry(key: u64) -> Entry {
    Entry(NonZeroU64::new(key + 1).expect("over 0"))
}

/// An index and what must be in it.
struct IndexModel {
    budget: Arc<Budget>,
    index: Box<dyn Index>,
    model: BTreeMap<u64, Entry>,
    /// Of the empty index; it is not charged.
    fixed_bytes: usize,
    place: String,
}

impl IndexModel {
    fn check(&self) {
        let IndexModel { budget, index, model, fixed_bytes, place } = self;
        assert_eq!((index.audit(), index.count()), (Ok(()), model.len()), "{place}");
        assert!(model.iter().all(|(&key, &entry)| index.get(PageKey(key)) == Some(entry)));
        assert_eq!(budget.metadata_bytes(), (index.bytes() - fixed_bytes) as u64, "{place}");
        assert!(budget.used_bytes() <= budget.max_bytes(), "{place}");
        // All charged memory exists, except for nodes of the red-black tree that are charged ahead.
        let ahead = budget.metadata_bytes().cast_signed() - HELD.get();
        assert!((0..=2600).contains(&ahead), "{place}: {ahead} bytes are not there");
        assert!(index.name() == "rbtree" || ahead == 0, "{place}: {ahead} bytes are not there");
    }

    /// Whether the entry was taken.
    fn insert(&mut self, key: u64) -> bool {
        let IndexModel { budget, index, model, place, .. } = self;
        let call = || index.insert_or_replace(PageKey(key), entry(key));
        match watched(budget, 0, place, call) {
            Ok(replaced) => {
                assert_eq!(replaced, model.insert(key, entry(key)), "{place}");
                true
            }
            Err(IndexError::OverBudget(over)) => {
                assert!(over.asked_bytes + over.used_bytes > over.max_bytes, "{place}: {over}");
                assert!(!model.contains_key(&key), "{place}: a replacement takes no memory");
                self.check();
                false
            }
            Err(error) => panic!("{error} at {place}"),
        }
    }

    fn take_range(&mut self, first: u64, last: u64) {
        let IndexModel { budget, index, model, place, .. } = self;
        let mut sum = 0;
        let call = || {
            let range = PageKey(first)..=PageKey(last);
            index.take_range(range, usize::MAX, &mut |key, _| sum += key.0)
        };
        let count = watched(budget, 0, place, call);
        let keys: Vec<u64> = model.range(first..=last).map(|(&key, _)| key).collect();
        model.retain(|key, _| !(first..=last).contains(key));
        assert_eq!((count, sum), (keys.len(), keys.iter().sum()), "{place}");
    }
}

/// A random history; how many inserts were taken and refused.
fn index_history(build: impl Fn(&Arc<Budget>) -> Box<dyn Index>, seed: u64) -> [usize; 2] {
    let mut random = Random(SplitMix64::new(seed));
    let max_bytes = random.below([2_000, 8_000, 24_000][seed as usize % 3]);
    let budget = Arc::new(Budget::new(max_bytes, Counted::PoolAndMetadata));
    let index = build(&budget);
    let (fixed_bytes, place) = (index.bytes(), String::new());
    let mut index = IndexModel { budget, index, model: BTreeMap::new(), fixed_bytes, place };
    HELD.set(0);
    let mut counts = [0; 2];
    for step in 0..3000 {
        index.place = format!("{}, seed {seed}, step {step}", index.index.name());
        let key = match random.below(4) {
            0 => step,
            1 => 100_000 + random.below(300),
            2 => random.below(1 << 20),
            _ => random.below(100) << 20,
        };
        // Tides: it fills, and drains.
        if random.below(10) < [9, 3][step as usize / 800 % 2] {
            let refused = !index.insert(key);
            counts[usize::from(refused)] += 1;
        } else {
            let key = index.model.range(key..).next().map_or(0, |(&key, _)| key);
            index.take_range(key, key + random.below(40));
        }
        if step % 64 == 0 {
            index.check();
        }
    }
    index.check();
    if seed.is_multiple_of(2) {
        index.take_range(0, u64::MAX);
        index.check();
        assert_eq!(index.budget.metadata_bytes(), 0, "{}", index.place);
    }
    let IndexModel { budget, index, place, .. } = index;
    watched(&budget, 0, &place, || drop(index));
    assert_eq!((budget.metadata_bytes(), budget.used_bytes()), (0, 0), "{place}");
    counts
}

#[test]
fn an_index_takes_what_its_budget_has_room_for() {
    let tiny: fn(&Arc<Budget>) -> Box<dyn Index> =
        |budget| Box::new(BTree::<u64, 3, 3>::on(budget));
    for seed in 0..12 {
        let mut counts = vec![index_history(tiny, seed)];
        counts.extend(IndexKind::ALL.map(|kind| index_history(|on| kind.build_on(on), seed)));
        let refused: usize = counts.iter().map(|[_, refused]| refused).sum();
        assert!(refused > 0, "seed {seed}: {counts:?} taken and refused");
    }
}

#[test]
fn a_refused_first_entry_leaves_no_memory() {
    for kind in IndexKind::ALL {
        let mut taken = 0;
        for max_bytes in (0..20_000).step_by(100) {
            let budget = Arc::new(Budget::new(max_bytes, Counted::PoolAndMetadata));
            let mut index = kind.build_on(&budget);
            match index.insert_or_replace(PageKey(7), entry(7)) {
                Ok(_) => taken += 1,
                Err(_) => assert_eq!(budget.metadata_bytes(), 0, "{kind}, {max_bytes}"),
            }
        }
        assert!((1..200).contains(&taken), "{kind}: {taken} taken");
    }
}

/// Memory of an arena's mapping, of which it has a few.
const MAPPING_SLACK: i64 = 512;

#[test]
fn a_pool_takes_what_its_budget_has_room_for() {
    let object = [7; PAGE_SIZE];
    for (seed, subject) in (0..4).flat_map(|seed| SUBJECTS.map(|subject| (seed, subject))) {
        let place = format!("{}, seed {seed}", subject.name);
        let mut random = Random(SplitMix64::new(seed));
        // Also the densest pool is full at times.
        let max_bytes = 20_000 + random.below(200_000);
        let budget = Arc::new(Budget::new(max_bytes, Counted::PoolAndMetadata));
        let arena = Arc::new(Arena::on(Arc::clone(&budget), HostPages::Small));
        let pool = (subject.build)(Arc::clone(&arena));
        // A thread's window is not the pool's.
        let warm: Vec<Handle> = (0..2).map_while(|_| pool.insert(&object[..2900]).ok()).collect();
        warm.into_iter().for_each(|handle| pool.remove(handle).unwrap());
        pool.compact();
        HELD.set(budget.metadata_bytes().cast_signed());
        let (mut live, mut refused) = (Vec::new(), 0);
        live.reserve(4000);
        for step in 0..4000 {
            if random.below(10) < [8, 3][step / 1000 % 2] || live.is_empty() {
                let bytes = 1 + random.below(3900) as usize / (1 + random.below(20) as usize);
                match watched(&budget, MAPPING_SLACK, &place, || pool.insert(&object[..bytes])) {
                    Ok(handle) => live.push(handle),
                    Err(ZpoolError::NoPages(_) | ZpoolError::NoTables(_)) => refused += 1,
                    Err(error) => panic!("{error}: {place}"),
                }
            } else {
                let handle = live.swap_remove(random.below(live.len() as u64) as usize);
                watched(&budget, MAPPING_SLACK, &place, || pool.remove(handle)).unwrap();
            }
        }
        assert!(refused > 0, "{place}");
        watched(&budget, MAPPING_SLACK, &place, || drop(pool));
        watched(&budget, MAPPING_SLACK, &place, || drop(arena));
        let left = (budget.pool_bytes(), budget.reserve_bytes(), budget.metadata_bytes());
        assert_eq!((left, budget.used_bytes()), ((0, 0, 0), 0), "{place}");
    }
}

/// A page that comes to an object of 20 to 4000 bytes, or to a word.
fn page_of(random: &mut Random) -> Page {
    let mut page = [0; PAGE_SIZE];
    match random.below(4) {
        0 => fill_with_word(&mut page, random.0.next_word()),
        _ => {
            let bytes = random.below(3900) as usize;
            for word in page[..bytes].chunks_mut(8) {
                let random = random.0.next_word().to_le_bytes();
                word.copy_from_slice(&random[..word.len()]);
            }
        }
    }
    page
}

#[test]
fn threads_never_pass_a_budget_together() {
    for (round, (zpool, index)) in
        ZpoolKind::ALL.into_iter().flat_map(|zpool| IndexKind::ALL.map(|i| (zpool, i))).enumerate()
    {
        let counted = Counted::ALL[usize::from(round % 4 != 3)];
        let options = ZswapOptions::default().zpool(zpool).index(index).counted(counted);
        let zswap =
            Zswap::new(options.max_pool_bytes((20 + 2 * round as u64) << 12).shards(4)).unwrap();
        let fixed_bytes = zswap.memory().metadata_bytes();
        let budget = zswap.budget();
        let stop = AtomicBool::new(false);
        let check = || {
            let (used, peak) = (budget.used_bytes(), budget.peak_bytes());
            assert!(used.max(peak) <= budget.max_bytes(), "{used} bytes used, {peak} at most");
        };
        let work = |seed| {
            let mut random = Random(SplitMix64::new(seed));
            let mut refused = 0;
            for _ in 0..600 {
                let key = PageKey(random.below(100) << (random.below(8) * 3));
                match random.below(8) {
                    0 => drop(zswap.invalidate(key)),
                    1 => {
                        let end = PageKey(key.0 + random.below(1 << 10));
                        zswap.invalidate_range(key..=end);
                    }
                    2 if random.below(10) == 0 => drop(zswap.compact()),
                    _ => match zswap.store(key, &page_of(&mut random)) {
                        Ok(_) => {}
                        Err(StoreError::AllocFail { .. } | StoreError::IndexFull { .. }) => {
                            refused += 1;
                        }
                        Err(StoreError::CompressPoor { .. }) => {}
                        Err(error) => panic!("{error}"),
                    },
                }
            }
            refused
        };
        let refused: usize = thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    check();
                    thread::yield_now();
                }
            });
            let threads = [1, 2, 3, 4].map(|seed| scope.spawn(move || work(seed)));
            let refused = threads.map(|thread| thread.join()).into_iter();
            stop.store(true, Ordering::Relaxed);
            refused.map(|refused| refused.unwrap()).sum()
        });
        check();
        let place = format!("{zpool}, {index}, {counted}");
        assert!(refused > 0, "{place}");
        zswap.audit().unwrap_or_else(|error| panic!("{error}: {place}"));
        let agree = || {
            let memory = zswap.memory();
            assert_eq!(budget.pool_bytes(), memory.pool_bytes, "{place}");
            assert_eq!(budget.reserve_bytes(), memory.reserve_bytes, "{place}");
            let metadata_bytes = memory.metadata_bytes() - fixed_bytes;
            assert_eq!(budget.metadata_bytes(), metadata_bytes, "{place}");
        };
        agree();
        zswap.invalidate_range(PageKey(0)..=PageKey(u64::MAX));
        zswap.compact();
        agree();
        // Lists of address space alone are left.
        assert_eq!((budget.pool_bytes(), budget.reserve_bytes()), (0, 0), "{place}");
        assert!(budget.metadata_bytes() < 16 << 10, "{place}: {}", budget.metadata_bytes());
    }
}

/// A sum over size classes, read one after the other, has objects that moved between them twice.
#[test]
fn a_pool_never_reports_more_pages_than_it_may_have() {
    const PAGES: usize = 8; // the largest block of any allocator
    for subject in SUBJECTS {
        let budget = Arc::new(Budget::new((PAGES * PAGE_SIZE) as u64, Counted::Pool));
        let pool = (subject.build)(Arc::new(Arena::on(budget, HostPages::Small)));
        let object = [7; PAGE_SIZE];
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut random = Random(SplitMix64::new(1));
                for _ in 0..3000 {
                    let fill = std::iter::from_fn(|| {
                        pool.insert(&object[..1 + random.below(3900) as usize]).ok()
                    });
                    let live = Vec::from_iter(fill);
                    live.into_iter().for_each(|handle| pool.remove(handle).unwrap());
                }
            });
            while !worker.is_finished() {
                let pages = pool.stats().pool_pages;
                assert!(pages <= PAGES, "{}: {pages} pages", subject.name);
            }
        });
    }
}

#[test]
fn charges_that_race_for_the_last_bytes_never_pass_the_limit() {
    // Room for one of two at a time.
    let budget = Budget::new(150, Counted::PoolAndMetadata);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..1_000_000 {
                    if budget.charge_pool(100).is_ok() {
                        budget.uncharge_pool(100);
                    }
                    if budget.charge_metadata(70).is_ok() {
                        budget.uncharge_metadata(70);
                    }
                }
            });
        }
    });
    assert_eq!(budget.used_bytes(), 0);
    // 70 twice is the most that fits.
    assert!((100..=140).contains(&budget.peak_bytes()), "{} at once", budget.peak_bytes());
}

#[test]
fn a_charge_that_passes_the_limit_changes_nothing() {
    let budget = Budget::new(100, Counted::PoolAndMetadata);
    assert_eq!(budget.charge_pool(60), Ok(60));
    budget.charge_metadata(40).unwrap();
    for over in [
        budget.charge_pool(1).unwrap_err(),
        budget.charge_metadata(1).unwrap_err(),
        budget.charge_reserve(u64::MAX).unwrap_err(),
    ] {
        assert_eq!((over.used_bytes, over.max_bytes), (100, 100));
    }
    budget.move_to_reserve(60);
    assert_eq!((budget.pool_bytes(), budget.reserve_bytes(), budget.used_bytes()), (0, 60, 100));
    budget.move_to_pool(20).unwrap();
    budget.uncharge_reserve(40);
    assert_eq!((budget.pool_bytes(), budget.used_bytes(), budget.peak_bytes()), (20, 60, 100));

    // Where the pool alone is counted, the rest is not refused.
    let budget = Budget::new(100, Counted::Pool);
    budget.charge_metadata(1000).unwrap();
    budget.charge_reserve(1000).unwrap();
    budget.charge_pool(90).unwrap();
    let over = budget.move_to_pool(20).unwrap_err();
    assert_eq!((over.asked_bytes, over.used_bytes), (20, 90));
    assert_eq!((budget.pool_bytes(), budget.reserve_bytes()), (90, 1000));
    assert_eq!(
        over.to_string(),
        "20 more bytes exceed the budget of 100 bytes (90 in use, counted: pool)"
    );
    budget.move_to_reserve(90);
    assert_eq!((budget.used_bytes(), budget.reserve_bytes()), (0, 1090));
}

/// Bytes of a store beside its pool, for pages of one word at these keys; an empty store's are left
/// out.
fn bytes_beside(options: ZswapOptions, keys: impl Iterator<Item = u64>) -> f64 {
    let zswap = Zswap::new(options).unwrap();
    let (empty, mut pages) = (zswap.memory().metadata_bytes(), 0);
    for key in keys {
        zswap.store(PageKey(key), &[0; PAGE_SIZE]).unwrap();
        pages += 1;
    }
    assert_eq!(zswap.counters().stored_pages, pages);
    (zswap.memory().metadata_bytes() - empty) as f64 / pages as f64
}

#[test]
fn sparse_keys_of_a_store_take_bounded_memory_at_every_stride() {
    const PAGES: u64 = 4000;
    for index in IndexKind::ALL {
        let mut figures = Vec::new();
        for bits in (0..=52).step_by(4) {
            let keys = (0..PAGES).map(|n| n << bits);
            if index == IndexKind::BTree32 && bits > 20 {
                break;
            }
            let options = ZswapOptions::default().index(index);
            figures.push((format!("2^{bits}"), bytes_beside(options, keys)));
        }
        let random = (0..PAGES).map(uzswap::random::mix);
        let random = random.map(|key| if index == IndexKind::BTree32 { key >> 32 } else { key });
        let options = ZswapOptions::default().index(index);
        figures.push(("random".to_owned(), bytes_beside(options, random)));
        let text: Vec<String> =
            figures.iter().map(|(stride, bytes)| format!("{stride}: {bytes:.0}")).collect();
        println!("{index}, bytes a page by stride: {}", text.join(", "));
        // Records of 52 bytes are in it, 64 at a time: a shard has few of the random keys.
        let most = figures.into_iter().fold(0.0, |most, (_, bytes)| bytes.max(most));
        assert!(index != IndexKind::default() || most <= 110.0, "{index}: {most} bytes a page");
    }
}

#[test]
fn a_limit_is_on_the_index_as_well_unless_another_is_asked_for() {
    const LIMIT: u64 = 1 << 20;
    for options in [ZswapOptions::default(), ZswapOptions::bare()] {
        assert_eq!(options.counted, Counted::PoolAndMetadata);
        let zswap = Zswap::new(options.max_pool_bytes(LIMIT)).unwrap();
        let empty = zswap.memory().metadata_bytes();
        let stored = (0..).take_while(|n| {
            let stored = zswap.store(PageKey(n << 20), &[0; PAGE_SIZE]);
            let metadata_bytes = zswap.memory().metadata_bytes() - empty;
            assert!(metadata_bytes <= LIMIT, "{metadata_bytes} bytes at page {n}");
            assert!(matches!(stored, Ok(_) | Err(StoreError::IndexFull { .. })), "{stored:?}");
            stored.is_ok()
        });
        let stored = stored.count() as u64;
        // A table that grows is there twice for a while.
        assert!((LIMIT / 200..LIMIT / 16).contains(&stored), "{stored} pages");
        zswap.audit().unwrap();
    }
}
