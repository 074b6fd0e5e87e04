//! A store with a limit, a backing and tenants: filled, written to a snapshot, restored, printed.
//!
//! ```text
//! cargo run --release --example snapshot -- FILE [PAGES]
//! uzswap stat FILE
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use uzswap::backing::{Backing, FileBacking, FileBackingOptions};
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::SplitMix64;
use uzswap::zswap::{TenantId, TenantOptions, Zswap, ZswapOptions};

/// Words of a text that fills half of a page.
const WORDS: [&str; 8] =
    ["page ", "object ", "pool ", "index ", "tenant ", "backing ", "limit ", "order "];

fn page_of(number: u64) -> Page {
    let mut random = SplitMix64::new(number);
    let mut page = [0; PAGE_SIZE];
    if number.is_multiple_of(10) {
        return page;
    }
    let mut at = 0;
    while at < PAGE_SIZE / 2 {
        let word = random.next_word();
        let text = match word % 4 {
            0 => word.to_string(),
            _ => WORDS[(word >> 8) as usize % WORDS.len()].to_owned(),
        };
        let bytes = text.len().min(PAGE_SIZE / 2 - at);
        page[at..at + bytes].copy_from_slice(&text.as_bytes()[..bytes]);
        at += bytes;
    }
    page
}

fn backing_beside(path: &std::path::Path, pages: u64) -> Result<Box<dyn Backing>, Box<dyn Error>> {
    let blocks = pages * PAGE_SIZE as u64 + PAGE_SIZE as u64;
    let options = FileBackingOptions::new(path.with_extension("backing"), Some(blocks));
    Ok(Box::new(FileBacking::open(&options)?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = PathBuf::from(arguments.next().ok_or("usage: snapshot FILE [PAGES]")?);
    let pages: u64 = match arguments.next() {
        Some(text) => text.to_str().ok_or("not a number of pages")?.parse()?,
        None => 20_000,
    };
    let options = ZswapOptions::default().max_pool_bytes((pages / 4).max(64) << 12);

    let zswap = Zswap::with_backing(options, backing_beside(&path, pages)?)?;
    let tenant = |name: &str, max_bytes, writeback| {
        zswap.add_tenant(
            TenantId::ROOT,
            TenantOptions::default().name(name.into()).max_bytes(max_bytes).writeback(writeback),
        )
    };
    let tenants =
        [tenant("web", u64::MAX, true)?, tenant("batch", pages * 256, true)?, TenantId::ROOT];
    for number in 0..pages {
        let tenant = tenants[number as usize % tenants.len()];
        zswap.store_for(tenant, PageKey(number), &page_of(number))?;
    }
    let mut page = [0; PAGE_SIZE];
    let mut random = SplitMix64::new(1);
    for _ in 0..pages {
        // The larger of two: some pages are used more than others.
        let number = (random.next_word() % pages).max(random.next_word() % pages);
        zswap.load(PageKey(number), &mut page)?;
    }

    let start = Instant::now();
    let summary = zswap.snapshot(&path)?;
    println!(
        "snapshot: {} pages, {} of them from the backing, {} bytes in {:.0?}",
        summary.pages(),
        summary.backing_pages(),
        summary.file_bytes,
        start.elapsed()
    );
    drop(zswap);

    let start = Instant::now();
    let (zswap, restored) =
        Zswap::from_snapshot(options, Some(backing_beside(&path, pages)?), &path)?;
    println!(
        "restored: {} pages in memory, {} in the backing, in {:.0?}",
        restored.memory_pages,
        restored.backing_pages,
        start.elapsed()
    );
    for number in 0..pages {
        if !zswap.load(PageKey(number), &mut page)? || page != page_of(number) {
            return Err(format!("page {number} did not come back").into());
        }
    }
    println!("all of them are as they were stored");
    Ok(())
}
