//! The caches that are compared, behind one trait, and the objects that the peers keep in them.

mod lru;
mod moka;
mod quick_cache;
mod uzswap;

use std::sync::Arc;

use ::uzswap::compressor::{Compressor, CompressorKind, OUTPUT_BYTES};
use ::uzswap::page::{PAGE_SIZE, Page};
use ::uzswap::zswap::Lru;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A cache of pages in front of a source. Shared by threads.
pub(crate) trait PageCache: Send + Sync {
    /// Brings the page of `key` to `page` if the cache holds it; whether it does.
    fn get(&self, key: u32, page: &mut Page) -> bool;

    /// Offers a page that was not there. The cache may refuse it.
    fn insert(&self, key: u32, page: &Page);

    /// Bytes of memory that are its source, where it has one of its own.
    fn source_bytes(&self) -> u64 {
        0
    }

    /// Does the work that the cache has put off.
    fn settle(&self) {}

    /// One read of a program: from the cache, or else from `source` and then offered to the
    /// cache. Whether it was a hit. A cache with a source of its own replaces this.
    fn read(&self, source: &[Page], key: u32, page: &mut Page) -> bool {
        if self.get(key, page) {
            return true;
        }
        *page = source[key as usize];
        self.insert(key, page);
        false
    }
}

/// The contenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Contender {
    /// `moka::sync::Cache`, by bytes, with its default policy (TinyLFU).
    Moka,
    /// The same with its LRU policy.
    MokaLru,
    /// `quick_cache::sync::Cache`, by bytes.
    QuickCache,
    /// `lru::LruCache` under one mutex, by bytes.
    Lru,
    /// The store with the order by counted uses.
    Uzswap,
    /// The store with the order of kernel 6.12.
    UzswapSecondChance,
    /// The store without a bound: every read is a hit. What the others could reach.
    UzswapUnbounded,
}

impl Contender {
    /// Its name on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Contender::Moka => "moka",
            Contender::MokaLru => "moka-lru",
            Contender::QuickCache => "quick-cache",
            Contender::Lru => "lru",
            Contender::Uzswap => "uzswap",
            Contender::UzswapSecondChance => "uzswap-second-chance",
            Contender::UzswapUnbounded => "uzswap-unbounded",
        }
    }

    /// Whether its memory follows its capacity, and can be brought to a target.
    pub(crate) fn is_bounded(self) -> bool {
        self != Contender::UzswapUnbounded
    }

    /// The cache. `capacity` is in bytes of what it counts; `pages` are expected to be read.
    pub(crate) fn build(
        self,
        compressor: CompressorKind,
        capacity: u64,
        pages: usize,
    ) -> Box<dyn PageCache> {
        let codec = Codec(compressor.build());
        match self {
            Contender::Moka => Box::new(moka::Moka::tiny_lfu(codec, capacity)),
            Contender::MokaLru => Box::new(moka::Moka::lru(codec, capacity)),
            Contender::QuickCache => Box::new(quick_cache::Quick::new(codec, capacity, pages)),
            Contender::Lru => Box::new(lru::Lru::new(codec, capacity)),
            Contender::Uzswap => {
                Box::new(uzswap::Bounded::new(compressor, Lru::Frequency, capacity, pages))
            }
            Contender::UzswapSecondChance => {
                Box::new(uzswap::Bounded::new(compressor, Lru::SecondChance, capacity, pages))
            }
            Contender::UzswapUnbounded => Box::new(uzswap::Unbounded::new(compressor)),
        }
    }
}

/// The object that a peer keeps: shared, so a reader decompresses it without a lock of the cache.
type Object = Arc<[u8]>;

/// Pages to objects and back, with the compressor that the store uses.
struct Codec(Box<dyn Compressor>);

impl Codec {
    /// The object of `page`: the page itself where it does not shrink.
    fn encode(&self, page: &Page) -> Object {
        let mut out = [0; OUTPUT_BYTES];
        match self.0.compress(page, &mut out) {
            Ok(bytes) if bytes < PAGE_SIZE => out[..bytes].into(),
            _ => page.as_slice().into(),
        }
    }

    /// The page of an object of [`Codec::encode`].
    fn decode(&self, object: &[u8], page: &mut Page) {
        match object.try_into() {
            Ok(whole) => *page = whole,
            Err(_) => self.0.decompress(object, page).expect("an object of this compressor"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages that compress well, badly and not at all.
    fn pages() -> Vec<Page> {
        let byte = |key: usize, i: usize| match key % 3 {
            0 => key as u8,
            1 => (i / 16 % 7 * key) as u8,
            _ => ::uzswap::random::mix((key * PAGE_SIZE + i) as u64) as u8,
        };
        (0..600).map(|key| std::array::from_fn(|i| byte(key, i))).collect()
    }

    #[test]
    fn every_contender_gives_the_right_pages() {
        let source = pages();
        for contender in Contender::value_variants() {
            let cache = contender.build(CompressorKind::Lz4, 400_000, source.len());
            let mut hits = 0;
            for step in 0..20_000_u64 {
                let key = ::uzswap::random::mix(step) as usize % source.len();
                let mut page = [0xa5; PAGE_SIZE];
                hits += usize::from(cache.read(&source, key as u32, &mut page));
                assert!(page == source[key], "{}: page {key} at {step}", contender.name());
            }
            cache.settle();
            let name = contender.name();
            assert!(hits > 5_000, "{name}: {hits} hits");
            assert_eq!(contender.is_bounded(), hits < 19_000, "{name}: {hits} hits");
        }
    }
}
