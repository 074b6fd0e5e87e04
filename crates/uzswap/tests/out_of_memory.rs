//! Goal: where the heap gives no memory in the middle of a store, the store returns an error and is
//! as before.
//! Method: an allocator that fails the n-th allocation of a thread, for every n that a call makes,
//! in histories of stores; audits and contents after each failure.
//! Blind to: a kernel that gives no pages (see `zswap_model` and `zpool_model`, by a limit).

#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use uzswap::index::btree::BTree;
use uzswap::index::{Entry, Index, IndexError, IndexKind};
use uzswap::page::{PAGE_SIZE, Page, PageKey, fill_with_word};
use uzswap::random::SplitMix64;
use uzswap::zpool::ZpoolKind;
use uzswap::zpool::zsmalloc::{ObjectMapping, ZsmallocOptions};
use uzswap::zswap::{StoreError, Zswap, ZswapOptions};

/// The system's allocator, and a failure where this thread asked for one.
struct Failing;

thread_local! {
    /// Allocations of this thread until one fails; 0 for never.
    static COUNTDOWN: Cell<u64> = const { Cell::new(0) };
}

/// Whether this allocation is the one to fail.
fn fails() -> bool {
    let left = COUNTDOWN.get();
    COUNTDOWN.set(left.saturating_sub(1));
    left == 1
}

// SAFETY: every call is passed to the system's allocator as it came, or refused with null, which a
// caller must expect.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// A page of `key` that comes to an object of 30 to 4096 bytes.
fn page_of(key: u64, version: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    let mut words = SplitMix64::new(key << 20 | version);
    let bytes = 16 + (key * 397) as usize % (PAGE_SIZE - 16);
    for byte in &mut page[..bytes] {
        *byte = words.next_word() as u8;
    }
    page
}

fn check(zswap: &Zswap, model: &HashMap<u64, Page>, place: &str) {
    zswap.audit().unwrap_or_else(|error| panic!("{error} at {place}"));
    assert_eq!(zswap.counters().stored_pages, model.len() as u64, "{place}");
    let mut page = [0; PAGE_SIZE];
    for (&key, held) in model {
        assert!(zswap.load(PageKey(key), &mut page).unwrap() && page == *held, "{key} at {place}");
    }
}

/// Stores pages, each with its 1st, 2nd ... allocation failing until there is none to fail; the
/// stores that were refused for it.
fn run_history(zpool: ZpoolKind, mapping: ObjectMapping, index: IndexKind) -> usize {
    let zsmalloc = ZsmallocOptions::default().mapping(mapping);
    let zswap =
        Zswap::new(ZswapOptions::default().zpool(zpool).zsmalloc(zsmalloc).index(index)).unwrap();
    // This thread's compressor is made here, and its window (the second object of 2900 bytes
    // crosses a border): not where memory is short.
    for key in [7, 8] {
        zswap.store(PageKey(key), &page_of(7, 1)).unwrap();
    }
    let mut model = HashMap::from([7, 8].map(|key| (key, page_of(7, 1))));
    let mut refused = 0;
    for step in 0..1000u64 {
        // Keys that come again, and keys with a leaf of the page table of their own.
        let key = if step % 2 == 0 { step % 100 } else { step << 20 };
        let page = page_of(key, 9);
        for n in 1.. {
            let place = format!("{zpool}, {mapping}, {index}, step {step}, allocation {n}");
            COUNTDOWN.set(n);
            let result = zswap.store(PageKey(key), &page);
            let failed = COUNTDOWN.replace(0) == 0;
            model.remove(&key);
            match result {
                Ok(_) => drop(model.insert(key, page)),
                Err(StoreError::AllocFail { .. } | StoreError::IndexFull { .. }) if failed => {
                    refused += 1;
                    check(&zswap, &model, &place);
                    continue;
                }
                Err(StoreError::CompressPoor { .. }) => {}
                Err(error) => panic!("{error} at {place}"),
            }
            if !failed {
                break;
            }
        }
        // Freeing needs no memory.
        let gone = step * 77 % 100;
        COUNTDOWN.set(1);
        let held = zswap.invalidate(PageKey(gone));
        COUNTDOWN.set(0);
        assert_eq!(held, model.remove(&gone).is_some(), "{zpool}, {index}, step {step}");
        let range = gone + 1..=gone + step % 8;
        COUNTDOWN.set(1);
        let count = zswap.invalidate_range(PageKey(*range.start())..=PageKey(*range.end()));
        COUNTDOWN.set(0);
        let before = model.len();
        model.retain(|key, _| !range.contains(key));
        assert_eq!(count, before - model.len(), "{zpool}, {index}, step {step}");
    }
    check(&zswap, &model, "the end");
    refused
}

#[test]
fn a_store_without_memory_is_refused_and_changes_nothing() {
    let mappings = [ObjectMapping::Copy, ObjectMapping::Vm];
    let mapped = mappings.map(|mapping| (ZpoolKind::Zsmalloc, mapping));
    for (zpool, mapping) in
        ZpoolKind::ALL.map(|zpool| (zpool, ObjectMapping::Contiguous)).into_iter().chain(mapped)
    {
        let refused = run_history(zpool, mapping, IndexKind::Radix);
        println!("{zpool}, {mapping}: {refused} stores refused");
        // Handles, pages and records need memory, and the tables and the leaf of the index.
        assert!(refused > 40, "{zpool}: {refused} stores refused");
    }
    for index in IndexKind::ALL {
        let refused = run_history(ZpoolKind::Zsmalloc, ObjectMapping::Contiguous, index);
        println!("{index}: {refused} stores refused");
        assert!(refused > 0, "{index}: {refused} stores refused");
    }
}

/// Inserts keys; the 1st, 2nd ... allocation of each fails until none is left to fail. Removes some
/// without any memory. Returns the refused inserts.
fn grow_and_shrink(mut index: Box<dyn Index>) -> usize {
    let entry = |key: u64| Entry(NonZeroU64::new(key + 1).expect("over 0"));
    let mut held = HashMap::new();
    let mut refused = 0;
    for step in 0..3000_u64 {
        let place = format!("{}, step {step}", index.name());
        // Up, down, and anywhere; and now and then far apart.
        let key = match step % 4 {
            0 => 100_000 + step,
            1 => 100_000 - step,
            2 => uzswap::random::mix(step) % 200_000,
            _ => (step % 100) << 24,
        };
        for n in 1.. {
            COUNTDOWN.set(n);
            let result = index.insert_or_replace(PageKey(key), entry(key));
            let failed = COUNTDOWN.replace(0) == 0;
            if !failed {
                assert_eq!(result, Ok(held.insert(key, entry(key))), "{place}");
                break;
            }
            assert_eq!(result, Err(IndexError::NoMemory), "{place}");
            assert_eq!((index.audit(), index.count()), (Ok(()), held.len()), "{place}");
            assert!(held.keys().all(|&key| index.get(PageKey(key)) == Some(entry(key))), "{place}");
            refused += 1;
        }
        let gone = step.wrapping_mul(77) % 200_000;
        COUNTDOWN.set(1);
        let count = index.take_range(PageKey(gone)..=PageKey(gone + 60), 9, &mut |key, entry| {
            assert_eq!(held.remove(&key.0), Some(entry), "{place}");
        });
        let left = COUNTDOWN.replace(0);
        assert!(count < 10 && left <= 1, "{place}");
        if step % 64 == 0 {
            assert_eq!((index.audit(), index.count()), (Ok(()), held.len()), "{place}");
        }
    }
    for (key, entry) in held {
        COUNTDOWN.set(1);
        let taken = index.take(PageKey(key));
        COUNTDOWN.set(0);
        assert_eq!(taken, Some(entry), "{}: {key}", index.name());
    }
    assert_eq!((index.audit(), index.count()), (Ok(()), 0));
    refused
}

#[test]
fn an_index_without_memory_refuses_an_entry_and_changes_nothing() {
    let tiny = || Box::new(BTree::<u64, 3, 3>::on(&Arc::default())) as Box<dyn Index>;
    for index in IndexKind::ALL.map(IndexKind::build).into_iter().chain([tiny()]) {
        let name = index.name();
        let refused = grow_and_shrink(index);
        println!("{name}: {refused} inserts refused");
        // Chunks of nodes and their table, twice.
        assert!(refused > 4, "{name}: {refused} inserts refused");
    }
}

#[test]
fn a_word_without_memory_is_refused_and_the_page_before_it_is_gone() {
    let zswap = Zswap::new(ZswapOptions::bare()).unwrap();
    let mut page = [0; PAGE_SIZE];
    for before in [page_of(7, 1), page] {
        zswap.store(PageKey(7), &before).unwrap();
        // No index entry has room for it.
        fill_with_word(&mut page, u64::MAX / 3);
        COUNTDOWN.set(1);
        let result = zswap.store(PageKey(7), &page);
        COUNTDOWN.set(0);
        assert!(matches!(result, Err(StoreError::IndexFull { .. })), "{result:?}");
        check(&zswap, &HashMap::new(), "the refusal");
        page.fill(0);
    }
    let counters = zswap.counters();
    assert_eq!((counters.duplicate_entry, counters.reject_kmemcache_fail), (2, 2));
    assert_eq!(zswap.zpool().stats().objects, 0);
}
