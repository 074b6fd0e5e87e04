//! Goal: pages that a pool frees go back to the kernel, and the figures of the store are what the
//! kernel sees.
//! Method: anonymous memory of this process (`smaps_rollup`) around filling and emptying a store.
//! One test a process: other tests' memory would be in the figure.

use uzswap::page::{PAGE_SIZE, PageKey};
use uzswap::random::SplitMix64;
use uzswap::zpool::zsmalloc::{ObjectMapping, ZsmallocOptions};
use uzswap::zpool::{HostPages, ZpoolKind};
use uzswap::zswap::{Zswap, ZswapOptions};
use uzswap_sys::process;

/// Slack for malloc, the page tables of this process, and the arena's reserve.
const SLACK: u64 = 2 << 20;

fn anonymous_bytes() -> u64 {
    process::anonymous_bytes().unwrap()
}

/// Stores pages of 100 to 2100 bytes that do not compress.
fn fill(zswap: &Zswap, pages: u64) {
    let mut words = SplitMix64::new(1);
    for key in 0..pages {
        let mut page = [0u8; PAGE_SIZE];
        for byte in &mut page[..100 + key as usize % 2000] {
            *byte = words.next_word() as u8;
        }
        zswap.store(PageKey(key), &page).unwrap();
    }
}

#[test]
fn freed_pages_go_back_to_the_kernel() {
    let allocators = ZpoolKind::ALL
        .into_iter()
        .flat_map(|zpool| HostPages::ALL.map(|pages| (zpool, pages, ObjectMapping::Contiguous)));
    let mapped = [ObjectMapping::Copy, ObjectMapping::Vm]
        .map(|mapping| (ZpoolKind::Zsmalloc, HostPages::Small, mapping));
    for (zpool, host_pages, mapping) in allocators.chain(mapped) {
        let place = format!("{zpool} on {host_pages} pages, {mapping}");
        let before = anonymous_bytes();
        let zsmalloc = ZsmallocOptions::default().mapping(mapping);
        let options = ZswapOptions::bare().zpool(zpool).zsmalloc(zsmalloc).host_pages(host_pages);
        let zswap = Zswap::new(options).unwrap();
        fill(&zswap, 40_000);
        let memory = zswap.memory();
        let counted = memory.pool_bytes + memory.metadata_bytes() + memory.reserve_bytes;
        let full = anonymous_bytes() - before;
        assert!(counted.abs_diff(full) < SLACK, "{place}: {full} resident, {counted} counted");

        let half = zswap.invalidate_range(PageKey(0)..=PageKey(19_999));
        assert_eq!(half, 20_000);
        zswap.compact();
        let memory = zswap.memory();
        let counted = memory.pool_bytes + memory.metadata_bytes() + memory.reserve_bytes;
        let left = anonymous_bytes() - before;
        assert!(counted.abs_diff(left) < SLACK, "{place}: {left} resident, {counted} counted");
        assert!(left < full * 2 / 3, "{place}: {left} of {full} bytes left with half the pages");

        zswap.invalidate_range(PageKey(0)..=PageKey(u64::MAX));
        zswap.compact();
        // The remainder is the rest of a huge page in use, and is reported.
        let (left, reserve) = (anonymous_bytes() - before, zswap.memory().reserve_bytes);
        assert!(left < SLACK + reserve, "{place}: an empty store keeps {left} bytes");

        // A full store that goes away.
        fill(&zswap, 5_000);
        assert!(zswap.memory().pool_bytes > 2 * SLACK);
        drop(zswap);
        let left = anonymous_bytes().saturating_sub(before);
        assert!(left < SLACK, "{place}: a dropped store keeps {left} bytes");
    }
}
