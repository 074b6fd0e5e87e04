//! Goal: lzo and lzo-rle compress each page to the length it has in the kernel.
//! Method: the whole corpus `mixed` against the sizes of kernel 6.1, and made-up pages of many
//! kinds against the lengths that zram of kernel 6.18 held for them.
//! Blind to: contents of objects. `live.rs` asks the running kernel page by page.

use uzswap_testing::golden;
use uzswap_testing::varied_pages;

use golden::{mixed_corpus, sizes};
use uzswap::compressor::{CompressError, Compressor, CompressorKind, OUTPUT_BYTES};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::same_filled::SameFilled;
use uzswap::zpool::zsmalloc::{ClassTable, ZsmallocOptions};
use varied_pages::varied_pages;

const KINDS: [CompressorKind; 2] = [CompressorKind::Lzo, CompressorKind::LzoRle];

fn length(compressor: &dyn Compressor, page: &Page) -> Option<usize> {
    match compressor.compress(page, &mut [0; OUTPUT_BYTES]) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            assert_eq!(error, CompressError::TooBig);
            None
        }
    }
}

#[test]
fn each_page_of_mixed_is_as_long_as_in_kernel_6_1() {
    let compressors = KINDS.map(|kind| (kind.build(), sizes("mixed", &kind.to_string())));
    for (number, page) in mixed_corpus().enumerate() {
        for (compressor, sizes) in &compressors {
            let ours = match SameFilled::default().word(&page) {
                None => length(&**compressor, &page).unwrap_or(0),
                Some(_) => 0,
            };
            assert_eq!(ours, usize::from(sizes[number]), "{} page {number}", compressor.name());
        }
    }
}

/// Bytes of compressed data that zram of kernel 6.18 holds for the pages of seeds 1 and 2.
const ZRAM_6_18: [(CompressorKind, [usize; 2]); 2] = [
    (CompressorKind::Lzo, [2_946_008, 2_881_679]),
    (CompressorKind::LzoRle, [2_953_232, 2_884_056]),
];

#[test]
fn varied_pages_are_as_long_together_as_in_kernel_6_18() {
    let huge_bytes = ClassTable::new(ZsmallocOptions::default()).huge_bytes();
    for (kind, held) in ZRAM_6_18 {
        let compressor = kind.build();
        let ours = [1, 2].map(|seed| -> usize {
            let pages =
                varied_pages(seed, 2000).filter(|page| SameFilled::default().word(page).is_none());
            // zram keeps a page as it is if that saves it no slot.
            let held = |bytes: Option<usize>| bytes.filter(|&bytes| bytes < huge_bytes);
            pages.map(|page| held(length(&*compressor, &page)).unwrap_or(PAGE_SIZE)).sum()
        });
        assert_eq!(ours, held, "{kind}");
    }
}
