//! The store: bounded, with the source of the pages behind it as its backing; and without a bound.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::RwLock;

use uzswap::backing::{Backing, Block, BlockWrite, zeroed_blocks};
use uzswap::compressor::CompressorKind;
use uzswap::page::{Page, PageKey};
use uzswap::zswap::{Incompressible, Lru, RecordOptions, Zswap, ZswapOptions};

use super::PageCache;

/// Without a bound: it holds every page it was offered.
pub(super) struct Unbounded(Zswap);

impl Unbounded {
    pub(super) fn new(compressor: CompressorKind) -> Unbounded {
        Unbounded(
            Zswap::new(
                ZswapOptions::default()
                    .compressor(compressor)
                    .incompressible(Incompressible::StoreAsIs),
            )
            .expect("options in their ranges"),
        )
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

/// Bounded: a page that is not in the pool is read from the backing, which takes the place that the
/// source has for the others.
pub(super) struct Bounded {
    zswap: Zswap,
    source_bytes: u64,
}

thread_local! {
    /// Whether the read that this thread is at went to the backing.
    static WENT_BEHIND: Cell<bool> = const { Cell::new(false) };
}

impl Bounded {
    pub(super) fn new(
        compressor: CompressorKind,
        lru: Lru,
        capacity: u64,
        pages: usize,
    ) -> Bounded {
        let options = ZswapOptions::default()
            .compressor(compressor)
            .incompressible(Incompressible::StoreAsIs)
            .records(Some(RecordOptions::default().lru(lru)))
            .max_pool_bytes(capacity);
        // Twice as many blocks as pages: copies of pages that are in the pool too are kept.
        let source = Source::new(pages * 2 + 64);
        let source_bytes = source.bytes();
        let zswap = Zswap::with_backing(options, Box::new(source)).expect("memory for few tables");
        Bounded { zswap, source_bytes }
    }
}

impl PageCache for Bounded {
    fn get(&self, key: u32, page: &mut Page) -> bool {
        WENT_BEHIND.set(false);
        let is_held =
            self.zswap.load(PageKey(key.into()), page).expect("pool and source are sound");
        is_held && !WENT_BEHIND.get()
    }

    fn insert(&self, key: u32, page: &Page) {
        self.zswap.store(PageKey(key.into()), page).expect("the source takes what does not fit");
    }

    fn read(&self, source: &[Page], key: u32, page: &mut Page) -> bool {
        WENT_BEHIND.set(false);
        if self.zswap.load(PageKey(key.into()), page).expect("pool and source are sound") {
            return !WENT_BEHIND.get();
        }
        // Only while it is filled.
        *page = source[key as usize];
        self.insert(key, page);
        false
    }

    fn source_bytes(&self) -> u64 {
        self.source_bytes
    }
}

/// Blocks in memory, all of them resident from the start.
#[derive(Debug)]
struct Source(RwLock<Box<[Block]>>);

impl Source {
    fn new(blocks: usize) -> Source {
        let mut blocks = zeroed_blocks(blocks).expect("memory for the source");
        blocks.iter_mut().for_each(|block| block.0[0] = 1);
        Source(RwLock::new(blocks))
    }

    fn bytes(&self) -> u64 {
        size_of_val(&**self.0.read().unwrap()) as u64
    }
}

impl Backing for Source {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn block_count(&self) -> u32 {
        self.0.read().unwrap().len() as u32 // as many as pages, twice
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        let mut blocks = self.0.write().unwrap();
        for write in writes {
            blocks[write.first as usize..][..write.blocks.len()].clone_from_slice(write.blocks);
        }
    }

    fn read(&self, first: u32, room: &mut [Block]) -> io::Result<()> {
        WENT_BEHIND.set(true);
        room.clone_from_slice(&self.0.read().unwrap()[first as usize..][..room.len()]);
        Ok(())
    }

    fn discard(&self, _: Range<u32>) -> io::Result<()> {
        Ok(())
    }
}
