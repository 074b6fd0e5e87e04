//! The pools of all allocators over the bytes of their objects: full, after a random half is freed,
//! and after long runs.
//!
//! ```text
//! churn SIZES                  one object length a line, 0 for pages without an object
//! churn PAGES COMPRESSOR       whole pages of 4096 bytes, compressed first
//! ```
//!
//! Churn replaces random objects, 20 for each object in the pool. A round frees a random half and
//! fills the pool again; there are figures of the last half and of the end. Lengths of new objects
//! are drawn from the list.
//!
//! Objects that an allocator refuses count as 4096 bytes of payload and of pool. zsmalloc comes a
//! second time, compacted before each figure.

use std::error::Error;
use std::sync::Arc;
use std::{env, fs};

use uzswap::compressor::{CompressError, CompressorKind, OUTPUT_BYTES};
use uzswap::page::PAGE_SIZE;
use uzswap::random::{SplitMix64, mix};
use uzswap::zpool::zsmalloc::ZsmallocOptions;
use uzswap::zpool::{Arena, Handle, Zpool, ZpoolError, ZpoolKind};

/// Objects that are replaced for each object in the pool, and rounds.
const TURNOVER: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let lengths = match &arguments[..] {
        [sizes] => {
            let text = fs::read_to_string(sizes)?;
            text.lines().map(str::parse).collect::<Result<Vec<usize>, _>>()?
        }
        [pages, compressor] => compressed(&fs::read(pages)?, compressor.parse()?)?,
        _ => return Err("usage: churn SIZES, or churn PAGES COMPRESSOR".into()),
    };
    let lengths: Vec<usize> = lengths.into_iter().filter(|&bytes| bytes > 0).collect();
    let payload = lengths.iter().sum::<usize>();
    println!("{} objects, {payload} bytes", lengths.len());
    println!(
        "| pool over payload | full | half freed | churned | 20 rounds, half | 20 rounds, full |"
    );
    println!("|---|--:|--:|--:|--:|--:|");
    for kind in ZpoolKind::ALL {
        for compacts in [false, true] {
            if !compacts || kind == ZpoolKind::Zsmalloc {
                println!("{}", row(kind, compacts, &lengths)?);
            }
        }
    }
    Ok(())
}

/// The figures of one allocator, as a row of a table.
fn row(kind: ZpoolKind, compacts: bool, lengths: &[usize]) -> Result<String, ZpoolError> {
    let label = if compacts { format!("{kind}, compacted") } else { kind.to_string() };
    let mut cells = Vec::new();

    let mut pool = Pool::filled(kind, lengths)?;
    cells.push(pool.overhead(compacts));
    pool.free(|number| mix(0x5EED + number as u64) & 1 == 1);
    cells.push(pool.overhead(compacts));

    let mut pool = Pool::filled(kind, lengths)?;
    let mut random = SplitMix64::new(1);
    let mut below = |end: usize| (random.next_word() % end as u64) as usize;
    for _ in 0..TURNOVER * lengths.len() {
        pool.replace(below(lengths.len()), lengths[below(lengths.len())])?;
    }
    cells.push(pool.overhead(compacts));

    let mut pool = Pool::filled(kind, lengths)?;
    for round in 1..=TURNOVER as u64 {
        pool.free(|number| mix(round << 32 | number as u64) & 1 == 1);
        if round == TURNOVER as u64 {
            cells.push(pool.overhead(compacts));
        }
        for number in 0..lengths.len() {
            if pool.objects[number].is_none() {
                pool.replace(number, lengths[below(lengths.len())])?;
            }
        }
    }
    cells.push(pool.overhead(compacts));

    let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:.3}")).collect();
    Ok(format!("| {label} | {} |", cells.join(" | ")))
}

/// A pool and its objects; those that it refused have no handle.
struct Pool {
    zpool: Box<dyn Zpool>,
    objects: Vec<Option<(Option<Handle>, usize)>>,
}

impl Pool {
    fn filled(kind: ZpoolKind, lengths: &[usize]) -> Result<Pool, ZpoolError> {
        let zpool = kind.build(Arc::new(Arena::new()), ZsmallocOptions::default());
        let mut pool = Pool { zpool, objects: vec![None; lengths.len()] };
        for (number, &bytes) in lengths.iter().enumerate() {
            pool.replace(number, bytes)?;
        }
        Ok(pool)
    }

    /// Frees an object, if there is one, and inserts one of `bytes` in its place.
    fn replace(&mut self, number: usize, bytes: usize) -> Result<(), ZpoolError> {
        self.free_one(number);
        let handle = match self.zpool.insert(&[0x5a; PAGE_SIZE][..bytes]) {
            Ok(handle) => Some(handle),
            Err(ZpoolError::TooBig { .. }) => None,
            Err(error) => return Err(error),
        };
        self.objects[number] = Some((handle, bytes));
        Ok(())
    }

    fn free(&mut self, chosen: impl Fn(usize) -> bool) {
        (0..self.objects.len()).filter(|&number| chosen(number)).for_each(|it| self.free_one(it));
    }

    fn free_one(&mut self, number: usize) {
        if let Some((Some(handle), _)) = self.objects[number].take() {
            self.zpool.remove(handle).expect("a handle of this pool");
        }
    }

    /// Bytes of the pool over bytes of its objects.
    fn overhead(&self, compacts: bool) -> f64 {
        if compacts {
            self.zpool.compact();
        }
        let (mut payload, mut refused) = (0, 0);
        for (handle, bytes) in self.objects.iter().flatten() {
            payload += if handle.is_some() { *bytes } else { PAGE_SIZE };
            refused += usize::from(handle.is_none());
        }
        ((self.zpool.stats().pool_pages + refused) * PAGE_SIZE) as f64 / payload as f64
    }
}

/// Lengths of the compressed pages; a page that does not shrink stays as it is.
fn compressed(pages: &[u8], kind: CompressorKind) -> Result<Vec<usize>, Box<dyn Error>> {
    let compressor = kind.build();
    let mut output = [0; OUTPUT_BYTES];
    let (pages, rest) = pages.as_chunks::<PAGE_SIZE>();
    if !rest.is_empty() {
        return Err("the file has no whole pages".into());
    }
    let mut lengths = Vec::new();
    for page in pages {
        let is_same_filled = page.as_chunks::<8>().0.iter().all(|word| word[..] == page[..8]);
        lengths.push(match compressor.compress(page, &mut output) {
            _ if is_same_filled => 0,
            Ok(bytes) => bytes.min(PAGE_SIZE),
            Err(CompressError::TooBig) => PAGE_SIZE,
            Err(error) => return Err(error.into()),
        });
    }
    Ok(lengths)
}
