//! Goal: the same pages in the same order take the same host pages as in kernel 6.1.
//! Method: objects of the compressed sizes that zswap 6.1 had, against its counters; and one corpus
//! end to end through our own lz4. The figures are in crates/uzswap-testing/data.
//! Blind to: more than one CPU.
//!
//! Everything is equal to the page, but z3fold once objects were freed: 97 pages of 11333 off at
//! most. There a kernel worker packs the pages of a freed object later than the call that frees. If
//! our packing waits until 64 objects were freed, as many as the kernel's swap-slot cache frees at
//! once, the largest difference falls from 97 to 27 pages; it grows again beyond 64.

use uzswap_testing::golden;

use golden::{Experiment, Line, in_random_half, is_odd, mixed_corpus, sizes};
use sha2::{Digest, Sha256};
use uzswap::page::{PAGE_SIZE, PageKey};
use uzswap::zpool::ZpoolKind;
use uzswap::zpool::zsmalloc::{ChainRule, HandleHeader, ObjectMapping, ZsmallocOptions};
use uzswap::zswap::{StoreError, Stored, Zswap, ZswapOptions};

const KERNEL: &str = include_str!("../../../uzswap-testing/data/kernel-6.1-zswap.csv");
const KERNEL_COMPACT: &str = include_str!("../../../uzswap-testing/data/kernel-6.1-compact.csv");

/// What kernel 6.1 is built with.
fn zsmalloc_6_1() -> ZsmallocOptions {
    ZsmallocOptions::default()
        .chain_size(4)
        .chain_rule(ChainRule::UsedPercent)
        .handle_header(HandleHeader::InObject)
        .mapping(ObjectMapping::Contiguous)
}

/// Bytes that zswap 6.1 puts in front of the object: its key, where the allocator can evict.
fn object_header_bytes(kind: ZpoolKind) -> usize {
    if kind == ZpoolKind::Zsmalloc { 0 } else { 8 }
}

/// A pool as kernel 6.1 has it, and requests as its zswap makes them.
fn experiment(kind: ZpoolKind, sizes: &[u16]) -> Experiment {
    let header = object_header_bytes(kind);
    let requests = sizes.iter().map(|&bytes| usize::from(bytes));
    let requests = requests.map(|bytes| if bytes == 0 { 0 } else { bytes + header });
    Experiment::new(kind, zsmalloc_6_1(), requests)
}

/// Compares pool bytes with the kernel's, where those were measured.
fn check(line: &Line<'_>, column: &str, bytes: u64, permille_off: u64) {
    let Some(kernel) = line.number(column) else { return };
    let what = ["corpus", "compressor", "zpool"].map(|name| line.text(name)).join(" ");
    let page = PAGE_SIZE as u64;
    let (ours, theirs) = (bytes / page, kernel / page);
    println!("{what} {column}: {ours} pages, kernel {theirs}");
    assert!(
        bytes.abs_diff(kernel) * 1000 <= kernel * permille_off,
        "{what} {column}: {ours} pages, kernel {theirs}, allowed off {permille_off}/1000"
    );
}

/// Both corpora, every compressor, one allocator.
fn compare(kind: ZpoolKind) {
    let lines = Line::all(KERNEL);
    let lines: Vec<_> = lines.iter().filter(|line| line.text("zpool") == kind.name()).collect();
    assert_eq!(lines.len(), 8);
    // Largest differences of z3fold: 0.86 % and 0.07 %.
    let (freed_off, refilled_off) = if kind == ZpoolKind::Z3fold { (9, 1) } else { (0, 0) };
    for line in lines {
        let sizes = sizes(line.text("corpus"), line.text("compressor"));
        let mut run = experiment(kind, &sizes);
        check(line, "pool_bytes", run.store(|_| true), 0);
        let same_filled = line.number("same_filled").unwrap();
        let stored = run.pool.stats().objects as u64 + same_filled;
        assert_eq!(Some(stored), line.number("stored_pages"), "{kind}: stored pages");
        check(line, "pool_after_odd_freed", run.free(is_odd), freed_off);
        run.pool.audit().unwrap();

        let mut run = experiment(kind, &sizes);
        run.store(|_| true);
        check(line, "pool_after_rand50_freed", run.free(in_random_half), freed_off);
        check(line, "pool_after_refill", run.store(in_random_half), refilled_off);
        run.pool.audit().unwrap();
    }
}

#[test]
fn zsmalloc_takes_the_pages_of_kernel_6_1() {
    compare(ZpoolKind::Zsmalloc);
}

#[test]
fn zbud_takes_the_pages_of_kernel_6_1() {
    compare(ZpoolKind::Zbud);
}

#[test]
fn z3fold_takes_the_pages_of_kernel_6_1() {
    compare(ZpoolKind::Z3fold);
}

/// The order of moves is that of later kernels; both pack a class as densely as it goes.
#[test]
fn zsmalloc_compacts_to_the_pages_of_kernel_6_1() {
    for line in Line::all(KERNEL_COMPACT) {
        let sizes = sizes(line.text("corpus"), line.text("comp"));
        for column in ["rand50_shrunk", "odd_shrunk"] {
            let half = if column == "odd_shrunk" { is_odd } else { in_random_half };
            let mut run = experiment(ZpoolKind::Zsmalloc, &sizes);
            assert_eq!(Some(run.store(|_| true)), line.number("full"));
            let sparse = run.free(half);
            let freed = run.pool.compact();
            run.pool.audit().unwrap();
            assert_eq!(Some(run.pool_bytes()), line.number(column), "{column}");
            assert_eq!(sparse - run.pool_bytes(), (freed * PAGE_SIZE) as u64);
        }
    }
}

#[test]
fn a_corpus_through_our_lz4_gives_the_counters_of_kernel_6_1() {
    let sizes = sizes("mixed", "lz4");
    let stores = ZpoolKind::ALL.map(|zpool| {
        let object_header_bytes = object_header_bytes(zpool);
        let options = ZswapOptions::bare().zpool(zpool).zsmalloc(zsmalloc_6_1());
        Zswap::new(options.object_header_bytes(object_header_bytes)).unwrap()
    });
    let mut sha256 = Sha256::new();
    for (index, page) in mixed_corpus().enumerate() {
        sha256.update(&page[..]);
        let [zsmalloc, others @ ..] = &stores;
        let bytes = match zsmalloc.store(PageKey(index as u64), &page) {
            Ok(Stored::Compressed { bytes }) => bytes,
            // The kernel asked its allocator for nothing.
            Ok(Stored::SameFilled) | Err(StoreError::CompressPoor { .. }) => 0,
            other => panic!("page {index}: {other:?}"),
        };
        assert_eq!(bytes, usize::from(sizes[index]), "page {index}");
        for store in others {
            // Refused where it is too large for that allocator.
            let _ = store.store(PageKey(index as u64), &page);
        }
    }
    let digest: String = sha256.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, "9ef3731e547a2c33201e57e45ea33ea6b5a4b18b9f115fadda83f00224bed4e6");
    for line in Line::all(KERNEL) {
        if (line.text("corpus"), line.text("compressor")) != ("mixed", "lz4") {
            continue;
        }
        let store = stores.iter().find(|store| store.zpool().name() == line.text("zpool"));
        let counters = store.expect("an allocator of ours").counters();
        check(&line, "pool_bytes", counters.pool_total_size, 0);
        assert_eq!(Some(counters.stored_pages), line.number("stored_pages"));
        assert_eq!(Some(counters.same_filled_pages), line.number("same_filled"));
    }
}
