//! The first try of many programs: the `lru` crate's map under one mutex, and a count of bytes.

use std::sync::Mutex;

use lru::LruCache;
use uzswap::page::Page;

use super::{Codec, Object, PageCache};

struct Inner {
    map: LruCache<u32, Object>,
    bytes: u64,
}

pub(super) struct Lru {
    inner: Mutex<Inner>,
    capacity: u64,
    codec: Codec,
}

impl Lru {
    pub(super) fn new(codec: Codec, capacity: u64) -> Lru {
        let inner = Inner { map: LruCache::unbounded(), bytes: 0 };
        Lru { inner: Mutex::new(inner), capacity, codec }
    }
}

impl PageCache for Lru {
    fn get(&self, key: u32, page: &mut Page) -> bool {
        let object = self.inner.lock().unwrap().map.get(&key).cloned();
        if let Some(object) = &object {
            self.codec.decode(object, page);
        }
        object.is_some()
    }

    fn insert(&self, key: u32, page: &Page) {
        let object = self.codec.encode(page);
        let mut inner = self.inner.lock().unwrap();
        inner.bytes += object.len() as u64;
        if let Some(replaced) = inner.map.put(key, object) {
            inner.bytes -= replaced.len() as u64;
        }
        while inner.bytes > self.capacity
            && let Some((_, evicted)) = inner.map.pop_lru()
        {
            inner.bytes -= evicted.len() as u64;
        }
    }
}
