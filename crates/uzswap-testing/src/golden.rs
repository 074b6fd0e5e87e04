//! Figures of real kernels (`data`, see the README there) and the experiment they come from.

use std::sync::Arc;

use uzswap::page::{PAGE_SIZE, Page};
use uzswap::random::{SplitMix64, mix};
use uzswap::zpool::zsmalloc::ZsmallocOptions;
use uzswap::zpool::{Arena, Handle, Zpool, ZpoolKind};

pub const PAGES: usize = 65536;

pub fn in_random_half(index: usize) -> bool {
    mix(0x5EED + index as u64) & 1 == 1
}

pub fn is_odd(index: usize) -> bool {
    index % 2 == 1
}

/// A line of one of the tables: fields by the names of the head line.
#[derive(Debug)]
pub struct Line<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Line<'a> {
    pub fn all(table: &'a str) -> Vec<Line<'a>> {
        let (head, lines) = table.split_once('\n').expect("a head line");
        let line = |line: &'a str| Line(head.split(',').zip(line.split(',')).collect());
        lines.lines().map(line).collect()
    }

    pub fn text(&self, name: &str) -> &'a str {
        self.0.iter().find(|field| field.0 == name).expect("a column of the table").1
    }

    /// `None` where it was not measured.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name).parse().ok()
    }
}

/// The compressed sizes of a corpus, in the format of `data/README.md`.
pub fn sizes(corpus: &str, compressor: &str) -> Vec<u16> {
    let frame: &[u8] = match corpus {
        "mixed" => include_bytes!("../data/mixed.sizes.zst"),
        "cc1" => include_bytes!("../data/cc1.sizes.zst"),
        _ => panic!("no sizes of corpus {corpus}"),
    };
    let mut lists = vec![0; 4 * 2 * PAGES];
    assert_eq!(zstd_safe::decompress(&mut lists[..], frame), Ok(4 * 2 * PAGES));
    let list = |n: usize| -> Vec<u16> {
        let (low, high) = lists[2 * n * PAGES..2 * (n + 1) * PAGES].split_at(PAGES);
        low.iter().zip(high).map(|(&low, &high)| u16::from_le_bytes([low, high])).collect()
    };
    let sum = |a: Vec<u16>, b: Vec<u16>| -> Vec<u16> {
        a.into_iter().zip(b).map(|(a, b)| a.wrapping_add(b)).collect()
    };
    match compressor {
        "lzo" => list(0),
        "lzo-rle" => sum(list(0), list(1)),
        "lz4" => sum(list(0), list(2)),
        "zstd" => sum(sum(list(0), list(2)), list(3)),
        _ => panic!("no sizes of compressor {compressor}"),
    }
}

/// A pool and the pages in it, by index.
#[derive(Debug)]
pub struct Experiment {
    pub pool: Box<dyn Zpool>,
    /// Object lengths; 0 for pages that need no object.
    requests: Vec<usize>,
    handles: Vec<Option<Handle>>,
}

impl Experiment {
    pub fn new(
        kind: ZpoolKind,
        options: ZsmallocOptions,
        requests: impl Iterator<Item = usize>,
    ) -> Experiment {
        Experiment {
            pool: kind.build(Arc::new(Arena::new()), options),
            requests: requests.collect(),
            handles: vec![None; PAGES],
        }
    }

    /// Stores the chosen pages in the order of their indexes; pool bytes then.
    pub fn store(&mut self, chosen: impl Fn(usize) -> bool) -> u64 {
        let bytes = [0x5a; PAGE_SIZE + 8];
        for index in (0..PAGES).filter(|&index| chosen(index) && self.requests[index] > 0) {
            assert!(self.handles[index].is_none());
            // One that is too large for the allocator stays out.
            self.handles[index] = self.pool.insert(&bytes[..self.requests[index]]).ok();
        }
        self.pool_bytes()
    }

    pub fn free(&mut self, chosen: impl Fn(usize) -> bool) -> u64 {
        for index in (0..PAGES).filter(|&index| chosen(index)) {
            if let Some(handle) = self.handles[index].take() {
                self.pool.remove(handle).unwrap();
            }
        }
        self.pool_bytes()
    }

    pub fn pool_bytes(&self) -> u64 {
        (self.pool.stats().pool_pages * PAGE_SIZE) as u64
    }
}

/// The corpus `mixed`, page by page: random bytes, and from a random place on one byte repeated.
pub fn mixed_corpus() -> impl Iterator<Item = Box<Page>> {
    let mut words = SplitMix64::new(20_261_121);
    let mut draw = move || words.next_word();
    (0..PAGES).map(move |_| {
        let random_bytes = (draw() % 4097) as usize;
        let filler = draw() as u8;
        let mut page = Box::new([0; PAGE_SIZE]);
        for word in page.as_chunks_mut::<8>().0 {
            *word = draw().to_le_bytes();
        }
        page[random_bytes..].fill(filler);
        page
    })
}
