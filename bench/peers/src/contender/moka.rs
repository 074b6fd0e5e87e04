//! `moka`: a concurrent cache after Caffeine, bounded by the weight of its values.

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use uzswap::page::Page;

use super::{Codec, Object, PageCache};

pub(super) struct Moka {
    cache: Cache<u32, Object>,
    codec: Codec,
}

impl Moka {
    /// With admission by frequency: moka's default.
    pub(super) fn tiny_lfu(codec: Codec, capacity: u64) -> Moka {
        Moka::new(codec, capacity, EvictionPolicy::tiny_lfu())
    }

    /// With every page admitted and the least recently used evicted.
    pub(super) fn lru(codec: Codec, capacity: u64) -> Moka {
        Moka::new(codec, capacity, EvictionPolicy::lru())
    }

    fn new(codec: Codec, capacity: u64, policy: EvictionPolicy) -> Moka {
        let cache = Cache::builder()
            .max_capacity(capacity)
            .weigher(|_, object: &Object| object.len() as u32) // at most a page
            .eviction_policy(policy)
            .build();
        Moka { cache, codec }
    }
}

impl PageCache for Moka {
    fn get(&self, key: u32, page: &mut Page) -> bool {
        let object = self.cache.get(&key);
        if let Some(object) = &object {
            self.codec.decode(object, page);
        }
        object.is_some()
    }

    fn insert(&self, key: u32, page: &Page) {
        self.cache.insert(key, self.codec.encode(page));
    }

    fn settle(&self) {
        self.cache.run_pending_tasks();
    }
}
