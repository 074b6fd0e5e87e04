//! `quick_cache`: a sharded cache with the CLOCK-PRO order, bounded by the weight of its values.

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use uzswap::page::Page;

use super::{Codec, Object, PageCache};

#[derive(Debug, Clone)]
struct Bytes;

impl Weighter<u32, Object> for Bytes {
    fn weight(&self, _key: &u32, object: &Object) -> u64 {
        object.len() as u64
    }
}

pub(super) struct Quick {
    cache: Cache<u32, Object, Bytes>,
    codec: Codec,
}

impl Quick {
    /// Sized for half of `pages`, which is about what it will hold.
    pub(super) fn new(codec: Codec, capacity: u64, pages: usize) -> Quick {
        Quick { cache: Cache::with_weighter(pages / 2, capacity, Bytes), codec }
    }
}

impl PageCache for Quick {
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
}
