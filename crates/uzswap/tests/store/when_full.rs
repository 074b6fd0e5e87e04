//! Goal: a store at its limit makes the room that there is to make, and refuses only then.
//! Method: small pools filled by hand, with exact counts of pages taken and refused.
//! Blind to: threads (see `zswap_tier`).

use uzswap::backing::MemoryBacking;
use uzswap::budget::Counted;
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::SplitMix64;
use uzswap::zpool::ZpoolKind;
use uzswap::zswap::{StoreError, WhenFull, Zswap, ZswapOptions};

/// A page that comes to about so many bytes.
fn page_of(number: u64, noise: usize) -> Page {
    let mut random = SplitMix64::new(number);
    let mut page = [0; PAGE_SIZE];
    page[..noise].fill_with(|| random.next_word() as u8);
    page[noise] = 1;
    page
}

/// Stores pages from `first` on until one is refused; the key of that, and why.
fn fill(zswap: &Zswap, first: u64, noise: usize) -> (u64, StoreError) {
    let mut refused = (first..).map(|key| (key, zswap.store(PageKey(key), &page_of(key, noise))));
    let (key, refused) = refused.find(|(_, stored)| stored.is_err()).unwrap();
    (key, refused.unwrap_err())
}

/// Without a backing, the room is in the holes of the pool.
#[test]
fn a_full_pool_fills_its_holes_before_it_refuses() {
    const LIMIT: u64 = 64 * PAGE_SIZE as u64;
    let options = ZswapOptions::default()
        .zpool(ZpoolKind::Zsmalloc)
        .max_pool_bytes(LIMIT)
        .counted(Counted::Pool);
    for (when_full, accept) in [(WhenFull::Reclaim, 90), (WhenFull::Bypass, 100)] {
        let options = options.when_full(when_full).accept_threshold_percent(accept);
        let zswap = Zswap::new(options).unwrap();
        let (small, _) = fill(&zswap, 0, 600);
        assert!(zswap.memory().compressed_bytes > LIMIT * 9 / 10);
        // Three of four go, and no host page comes free but a few.
        for key in (0..small).filter(|key| key % 4 != 0) {
            assert!(zswap.invalidate(PageKey(key)));
        }
        if when_full == WhenFull::Bypass {
            // Bypass takes no page until the pool is smaller.
            zswap.compact();
        }
        let (last, refused) = fill(&zswap, 1000, 1500);
        let memory = zswap.memory();
        assert!(refused.is_pool_limit(), "{refused}");
        assert!(memory.compressed_bytes > LIMIT * 8 / 10, "{}", memory.compressed_bytes);
        let mut page = [0; PAGE_SIZE];
        for key in (1000..last).chain((0..small).step_by(4)) {
            let noise = if key < 1000 { 600 } else { 1500 };
            assert!(zswap.load(PageKey(key), &mut page).unwrap());
            assert!(page == page_of(key, noise), "{key}");
        }
        zswap.audit().unwrap();
    }
}

/// Entries of the index are in the budget: pages of the pool make room for them.
#[test]
fn a_store_without_room_in_the_index_writes_back_all_that_it_can_before_it_refuses() {
    for (when_full, leaves) in [(WhenFull::Reclaim, true), (WhenFull::Bypass, false)] {
        let options = ZswapOptions::default()
            .shards(1)
            .max_pool_bytes(512 << 10)
            .counted(Counted::PoolAndMetadata)
            .accept_threshold_percent(100)
            .when_full(when_full);
        let backing = Box::new(MemoryBacking::new(1 << 10).unwrap());
        let zswap = Zswap::with_backing(options, backing).unwrap();
        for key in 0..100 {
            zswap.store(PageKey(key), &page_of(key, 2000)).unwrap();
        }
        assert_eq!(zswap.counters().backing_pages, 0, "there is room for those");
        // A word takes no room in the pool, and an entry and a record of its own.
        let mut words = (1000..).map(|key| (key, zswap.store(PageKey(key), &[7; PAGE_SIZE])));
        let (key, refused) = words.find(|(_, stored)| stored.is_err()).unwrap();
        let refused = refused.unwrap_err();
        assert!(matches!(refused, StoreError::IndexFull { .. }), "{refused:?}");
        assert!(refused.is_pool_limit() && !zswap.contains(PageKey(key)));
        let counters = zswap.counters();
        assert_eq!((counters.reject_kmemcache_fail, counters.pool_limit_hit), (1, 1));
        assert_eq!(counters.same_filled_pages, key - 1000);
        let in_pool = counters.stored_pages - counters.same_filled_pages;
        assert_eq!((in_pool == 0, counters.written_back_pages == 100), (leaves, leaves));
        assert_eq!(in_pool + counters.backing_pages, 100);
        // The index can use memory that the pool gave up only once the budget has it back.
        assert_eq!(zswap.memory().reserve_bytes, 0);
        let mut page = [0; PAGE_SIZE];
        for key in 0..100 {
            assert!(zswap.load_in_place(PageKey(key), &mut page).unwrap());
            assert!(page == page_of(key, 2000), "{key}");
        }
        zswap.audit().unwrap();
    }
}
