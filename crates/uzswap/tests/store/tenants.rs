//! Goal: tenants come and go, and no page, charge or place in the order is lost with them; an id
//! that was removed never means another tenant.
//! Method: all short histories of three tenants, and long random ones, against a model of the tree
//! and of the owner of each page. Threads that store for tenants while these are removed; snapshots
//! with gaps in the numbers.
//! Blind to: backings that fail.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};

use uzswap::backing::MemoryBacking;
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::SplitMix64;
use uzswap::zswap::{
    Lru, RecordOptions, StoreError, Stored, TENANTS_MAX, TenantError, TenantId, TenantOptions,
    Zswap, ZswapOptions,
};

fn page_of(number: u64) -> Page {
    let mut random = SplitMix64::new(number);
    let mut page = [0; PAGE_SIZE];
    for byte in &mut page[..(number % 7) as usize * 150] {
        *byte = random.next_word() as u8;
    }
    page[..8].copy_from_slice(&number.to_le_bytes());
    page
}

fn named(name: String) -> TenantOptions {
    TenantOptions::default().name(name)
}

/// A store, and what it should have.
struct Twin {
    zswap: Zswap,
    has_backing: bool,
    /// By id: its parent.
    tree: BTreeMap<TenantId, Option<TenantId>>,
    removed: Vec<TenantId>,
    /// Number of the page, whose it is, and its bytes.
    pages: BTreeMap<PageKey, (u64, TenantId, u64)>,
    stores: u64,
}

impl Twin {
    fn new(options: ZswapOptions, blocks: u32) -> Twin {
        let zswap = match blocks {
            0 => Zswap::new(options).unwrap(),
            _ => {
                let backing = Box::new(MemoryBacking::new(blocks).unwrap());
                Zswap::with_backing(options, backing).unwrap()
            }
        };
        Twin {
            zswap,
            has_backing: blocks > 0,
            tree: BTreeMap::from([(TenantId::ROOT, None)]),
            removed: Vec::new(),
            pages: BTreeMap::new(),
            stores: 0,
        }
    }

    fn add(&mut self, parent: TenantId) -> Option<TenantId> {
        let added = self.zswap.add_tenant(parent, named(format!("below {parent}")));
        if !self.tree.contains_key(&parent) {
            assert_eq!(added, Err(TenantError::Unknown(parent)));
            return None;
        }
        let id = added.unwrap();
        assert!(!self.removed.contains(&id) && self.tree.insert(id, Some(parent)).is_none());
        Some(id)
    }

    fn remove(&mut self, id: TenantId) {
        let removed = self.zswap.remove_tenant(id);
        let below = |other: &Option<TenantId>| *other == Some(id);
        match self.tree.get(&id) {
            None => assert_eq!(removed, Err(TenantError::Unknown(id))),
            Some(None) => assert_eq!(removed, Err(TenantError::Root)),
            Some(_) if self.tree.values().any(below) => {
                assert!(matches!(removed, Err(TenantError::HasBelow { tenant, below })
                    if tenant == id && self.tree[&below] == Some(id)));
            }
            Some(Some(parent)) => {
                removed.unwrap();
                self.pages.values_mut().filter(|page| page.1 == id).for_each(|p| p.1 = *parent);
                self.tree.remove(&id);
                self.removed.push(id);
            }
        }
    }

    fn store(&mut self, tenant: TenantId, key: PageKey) {
        self.stores += 1;
        let stored = self.zswap.store_for(tenant, key, &page_of(self.stores));
        self.pages.remove(&key);
        match stored {
            Err(StoreError::NoTenant { tenant: told, .. }) => {
                assert!(told == tenant && !self.tree.contains_key(&tenant));
            }
            Ok(stored) => {
                assert!(self.tree.contains_key(&tenant));
                let Stored::Compressed { bytes } = stored else { panic!("{stored:?}") };
                self.pages.insert(key, (self.stores, tenant, bytes as u64));
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn is_below(&self, mut id: TenantId, above: TenantId) -> bool {
        loop {
            if id == above {
                return true;
            }
            match self.tree[&id] {
                Some(parent) => id = parent,
                None => return false,
            }
        }
    }

    fn check(&self) {
        self.zswap.audit().unwrap();
        let mut page = [0; PAGE_SIZE];
        let told = self.zswap.tenants();
        assert_eq!(told.len(), self.tree.len());
        for (&id, parent) in &self.tree {
            let told = told.iter().find(|tenant| tenant.number == id.number()).unwrap();
            assert_eq!(told.parent, parent.map(TenantId::number));
            let below = self.pages.values().filter(|page| self.is_below(page.1, id));
            let bytes: u64 = below.map(|page| page.2).sum();
            assert!(told.current_bytes == bytes || self.has_backing && told.current_bytes < bytes);
            assert!(told.peak_bytes >= told.current_bytes);
        }
        for (&key, &(number, ..)) in &self.pages {
            assert!(self.zswap.load(key, &mut page).unwrap() && page == page_of(number), "{key}");
        }
        let counters = self.zswap.counters();
        assert_eq!(counters.stored_pages + counters.backing_pages, self.pages.len() as u64);
    }
}

#[test]
fn all_short_histories_of_three_tenants() {
    const LENGTH: u32 = 4;
    const OPERATIONS: u32 = 9;
    let options = ZswapOptions::default().shards(1).latencies(false);
    for history in 0..OPERATIONS.pow(LENGTH) {
        let mut twin = Twin::new(options, 8);
        // Below the root, below the first, below the root.
        let mut ids = [TenantId::ROOT; 3];
        ids[0] = twin.add(TenantId::ROOT).unwrap();
        twin.store(ids[0], PageKey(0));
        let mut left = history;
        for _ in 0..LENGTH {
            let (operation, of) = (left % OPERATIONS / 3, (left % OPERATIONS % 3) as usize);
            left /= OPERATIONS;
            match operation {
                0 => {
                    let parent = [TenantId::ROOT, ids[0], TenantId::ROOT][of];
                    ids[of] = twin.add(parent).unwrap_or(ids[of]);
                }
                1 => twin.remove(ids[of]),
                _ => {
                    twin.store(ids[of], PageKey(of as u64));
                    twin.zswap.shrink(ids[of], 1);
                }
            }
        }
        twin.check();
    }
}

#[test]
fn long_histories_agree_with_the_model() {
    for (seed, lru) in (0..6).zip(Lru::ALL.into_iter().cycle()) {
        let records = Some(RecordOptions::default().lru(lru).checksum(true));
        let options = ZswapOptions::default().records(records).shards(4);
        let mut twin = Twin::new(options, if seed % 2 == 0 { 0 } else { 400 });
        let mut random = SplitMix64::new(seed);
        let mut below = |end: usize| (random.next_word() % end as u64) as usize;
        for step in 0..4000 {
            let there: Vec<TenantId> = twin.tree.keys().copied().collect();
            let some = match below(8) {
                0 if !twin.removed.is_empty() => twin.removed[below(twin.removed.len())],
                _ => there[below(there.len())],
            };
            let key = PageKey(((below(5) << 14) + below(60)) as u64);
            match below(16) {
                0 | 1 if there.len() < 12 => drop(twin.add(some)),
                2 => twin.remove(some),
                3 => assert_eq!(twin.zswap.invalidate(key), twin.pages.remove(&key).is_some()),
                4 | 5 => {
                    let shrunk = twin.zswap.shrink(some, below(20)).pages();
                    assert!(shrunk == 0 || twin.tree.contains_key(&some));
                }
                6 => {
                    let set = twin.zswap.set_tenant(some, named("other".to_owned()));
                    assert_eq!(set.is_ok(), twin.tree.contains_key(&some));
                }
                _ => twin.store(some, key),
            }
            if step % 100 == 0 {
                twin.check();
            }
        }
        twin.check();
        let ids: Vec<TenantId> = twin.tree.keys().copied().collect();
        while twin.tree.len() > 1 {
            ids.iter().filter(|id| **id != TenantId::ROOT).for_each(|id| twin.remove(*id));
        }
        twin.check();
        let bytes = twin.zswap.memory().compressed_bytes;
        assert_eq!(twin.zswap.tenants()[0].current_bytes, bytes);
    }
}

#[test]
fn the_order_is_that_of_all_pages_after_a_tenant_has_gone() {
    // A page in 20 is of another tenant; the clock ticks once in 16 pages.
    let options = ZswapOptions::default()
        .shards(1)
        .records(Some(RecordOptions::default().lru(Lru::Plain).checksum(true)));
    let mut twin = Twin::new(options, 500);
    let tenants = [TenantId::ROOT, twin.add(TenantId::ROOT).unwrap()];
    for key in 0..400 {
        twin.store(tenants[usize::from(key / 20 % 2 == 1)], PageKey(key));
    }
    twin.remove(tenants[1]);
    assert_eq!(twin.zswap.shrink(TenantId::ROOT, 200).written_back, 200);
    let mut page = [0; PAGE_SIZE];
    for key in 240..400 {
        twin.zswap.load(PageKey(key), &mut page).unwrap();
    }
    assert_eq!(twin.zswap.counters().backing_loads, 0, "the 160 hottest stayed");
    twin.check();
}

#[test]
fn numbers_and_memory_are_used_again() {
    let zswap = Zswap::new(ZswapOptions::default().shards(4)).unwrap();
    let first = zswap.add_tenant(TenantId::ROOT, named(String::new())).unwrap();
    let bytes = zswap.memory().policy_bytes;
    zswap.remove_tenant(first).unwrap();
    for key in 0..4 * TENANTS_MAX as u64 {
        let id = zswap.add_tenant(TenantId::ROOT, named(format!("{key}"))).unwrap();
        assert!(id != first && id.number() == first.number());
        zswap.store_for(id, PageKey(key), &page_of(key)).unwrap();
        zswap.remove_tenant(id).unwrap();
        let refused = zswap.store_for(id, PageKey(key), &page_of(0)).unwrap_err();
        assert!(matches!(refused, StoreError::NoTenant { .. }), "{refused}");
        zswap.store(PageKey(key), &page_of(key)).unwrap();
    }
    assert_eq!(zswap.memory().policy_bytes, bytes);
    assert_eq!(zswap.counters().stored_pages, 4 * TENANTS_MAX as u64);
    zswap.audit().unwrap();
    let bare = Zswap::new(ZswapOptions::bare()).unwrap();
    assert_eq!(bare.remove_tenant(first), Err(TenantError::NoRecords));
    let refused = bare.store_for(first, PageKey(0), &page_of(0)).unwrap_err();
    assert!(matches!(refused, StoreError::NoTenant { .. }), "{refused}");
}

#[test]
fn threads_store_for_tenants_that_go() {
    let options = ZswapOptions::default().shards(4).max_pool_bytes(60 << 12);
    let backing = Box::new(MemoryBacking::new(3000).unwrap());
    let zswap = Zswap::with_backing(options, backing).unwrap();
    let ids = RwLock::new(vec![TenantId::ROOT]);
    let (stop, stored) = (AtomicBool::new(false), Mutex::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (zswap, ids, stop, stored) = (&zswap, &ids, &stop, &stored);
            scope.spawn(move || {
                let mut random = SplitMix64::new(thread);
                let (mut page, mut model) = ([0; PAGE_SIZE], BTreeMap::new());
                while !stop.load(Ordering::Relaxed) {
                    let key = PageKey((thread << 15) + random.next_word() % 150);
                    let number = random.next_word() >> 8;
                    let id = {
                        let ids = ids.read().unwrap();
                        ids[random.next_word() as usize % ids.len()]
                    };
                    match random.next_word() % 8 {
                        0..4 => {
                            model.remove(&key);
                            match zswap.store_for(id, key, &page_of(number)) {
                                Ok(_) => drop(model.insert(key, number)),
                                Err(StoreError::NoTenant { tenant, .. }) => assert_eq!(tenant, id),
                                Err(error) => panic!("{error:?}"),
                            }
                        }
                        4 => drop(zswap.shrink(id, 20)),
                        _ => {
                            let held = zswap.load(key, &mut page).unwrap();
                            assert_eq!(held.then_some(page), model.get(&key).map(|&n| page_of(n)));
                        }
                    }
                }
                *stored.lock().unwrap() += model.len() as u64;
            });
        }
        let mut random = SplitMix64::new(99);
        for _ in 0..3000 {
            let parent = ids.read().unwrap()[0];
            let mut there = ids.write().unwrap();
            if there.len() < 6 {
                there.push(zswap.add_tenant(parent, named(String::new())).unwrap());
            }
            let victim = there[1 + random.next_word() as usize % (there.len() - 1)];
            drop(there);
            zswap.remove_tenant(victim).unwrap();
            ids.write().unwrap().retain(|id| *id != victim);
        }
        stop.store(true, Ordering::Relaxed);
    });
    zswap.audit().unwrap();
    let ids = ids.into_inner().unwrap();
    ids[1..].iter().for_each(|id| zswap.remove_tenant(*id).unwrap());
    let counters = zswap.counters();
    assert_eq!(counters.stored_pages + counters.backing_pages, *stored.lock().unwrap());
    assert_eq!(zswap.tenants().len(), 1);
    zswap.audit().unwrap();
    zswap.invalidate_range(PageKey(0)..=PageKey(u64::MAX));
    assert_eq!(zswap.tenants()[0].current_bytes, 0);
}

#[test]
fn snapshots_have_the_tenants_that_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut twin = Twin::new(ZswapOptions::default(), 0);
    let gone = twin.add(TenantId::ROOT).unwrap();
    let above = twin.add(TenantId::ROOT).unwrap();
    let last = twin.add(above).unwrap();
    for (key, id) in [(1, gone), (2, above), (3, last), (4, TenantId::ROOT)] {
        twin.store(id, PageKey(key));
    }
    twin.remove(gone);
    // Its number is below that of its parent.
    let below = twin.add(last).unwrap();
    assert!(below.number() < last.number());
    twin.store(below, PageKey(5));
    twin.remove(below);
    let below = twin.add(last).unwrap();
    twin.store(below, PageKey(6));
    twin.zswap.snapshot(&path).unwrap();
    let (zswap, _) = Zswap::from_snapshot(ZswapOptions::default(), None, &path).unwrap();
    zswap.audit().unwrap();
    let tree = |zswap: &Zswap| {
        let tenants = zswap.tenants();
        let place = |number| tenants.iter().find(|tenant| tenant.number == number).unwrap();
        let depth = |mut number| {
            (0..).find(|_| match place(number).parent {
                Some(parent) => {
                    number = parent;
                    false
                }
                None => true,
            })
        };
        let told = |tenant: &uzswap::zswap::TenantStats| {
            (depth(tenant.number), tenant.current_bytes, tenant.options.clone().name)
        };
        let mut tree: Vec<_> = tenants.iter().map(told).collect();
        tree.sort();
        tree
    };
    assert_eq!(tree(&zswap), tree(&twin.zswap));
    assert_eq!(zswap.tenants().len(), 4);
    let mut page = [0; PAGE_SIZE];
    for (&key, &(number, ..)) in &twin.pages {
        assert!(zswap.load(key, &mut page).unwrap() && page == page_of(number));
    }
}
