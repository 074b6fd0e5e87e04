//! The store.

use uzswap::compressor::CompressorKind;
use uzswap::page::{Page, PageKey};
use uzswap::zswap::{Incompressible, Zswap, ZswapOptions};

use super::PageCache;

/// Without a bound: it holds every page it was offered.
pub(super) struct Unbounded(Zswap);

impl Unbounded {
    pub(super) fn new(compressor: CompressorKind) -> Unbounded {
        Unbounded(Zswap::new(ZswapOptions {
            compressor,
            incompressible: Incompressible::StoreAsIs,
            ..ZswapOptions::default()
        }))
    }
}

impl PageCache for Unbounded {
    fn get(&self, key: u32, page: &mut Page) -> bool {
        self.0.load(PageKey(key.into()), page).expect("the pool is sound")
    }

    fn insert(&self, key: u32, page: &Page) {
        self.0.store(PageKey(key.into()), page).expect("the machine has memory for every page");
    }
}
