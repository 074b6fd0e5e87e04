//! Compressed lengths of the pages of a corpus, by the kind of their mapping.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::corpus::page_set::PageRange;
use crate::measure::replay::Corpus;
use uzswap::compressor::{Compressor, OUTPUT_BYTES};
use uzswap::page::PAGE_SIZE;
use uzswap::same_filled::SameFilled;

/// Lengths are counted in steps of so many bytes.
pub const CHUNK_BYTES: usize = 1 << 6; // 64

/// Adjacent pages of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindPages {
    /// `heap`, `stack`, `anonymous`, `file` or `other`; `all pages` where ranges are unknown.
    pub kind: String,
    /// How many pages.
    pub pages: u64,
}

impl KindPages {
    /// Pages of which no mapping is known.
    pub fn unknown(pages: u64) -> Vec<KindPages> {
        vec![KindPages { kind: "all pages".to_owned(), pages }]
    }

    /// The kinds of the ranges of a page set; of a set without ranges, `pages` of no known kind.
    pub fn of_ranges(ranges: &[PageRange], pages: u64) -> Vec<KindPages> {
        if ranges.is_empty() {
            return KindPages::unknown(pages);
        }
        let mut kinds: Vec<KindPages> = Vec::new();
        for range in ranges {
            let kind = kind_of(&range.name);
            match kinds.last_mut() {
                Some(last) if last.kind == kind => last.pages += range.pages,
                _ => kinds.push(KindPages { kind: kind.to_owned(), pages: range.pages }),
            }
        }
        kinds
    }
}

/// The kind of a mapping, by its name in a page set.
pub(crate) fn kind_of(name: &str) -> &'static str {
    match name {
        "[heap]" => "heap",
        "anon" => "anonymous",
        name if name.starts_with("[anon") => "anonymous",
        name if name.starts_with("[stack") => "stack",
        name if name.starts_with('/') => "file",
        _ => "other",
    }
}

/// The pages of one kind, by the length that a compressor makes of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindLengths {
    /// The kind, as in [`KindPages`].
    pub kind: String,
    /// Pages of this kind.
    pub pages: u64,
    /// Of these, same-filled pages; they have no length.
    pub same_filled_pages: u64,
    /// Of these, pages that equal one before, of any kind, and are not same-filled. Hashes of 64
    /// bits are compared: of a million pages, one count in 40 million is too high.
    #[serde(default)]
    pub duplicate_pages: u64,
    /// Of these, pages that the compressor does not make smaller than a page.
    pub incompressible_pages: u64,
    /// Sum of the lengths.
    pub compressed_bytes: u64,
    /// Pages of 1 to 64 bytes once compressed, of 65 to 128, and so on up to 4096.
    pub pages_by_length: Vec<u64>,
}

impl KindLengths {
    fn new(kind: &str) -> KindLengths {
        KindLengths {
            kind: kind.to_owned(),
            pages: 0,
            same_filled_pages: 0,
            duplicate_pages: 0,
            incompressible_pages: 0,
            compressed_bytes: 0,
            pages_by_length: vec![0; PAGE_SIZE / CHUNK_BYTES],
        }
    }

    fn add(&mut self, length: Option<usize>) {
        // A page that cannot be compressed takes a page.
        let length = length.unwrap_or(PAGE_SIZE).clamp(1, PAGE_SIZE);
        self.incompressible_pages += u64::from(length == PAGE_SIZE);
        self.compressed_bytes += length as u64;
        self.pages_by_length[(length - 1) / CHUNK_BYTES] += 1;
    }
}

/// Compresses every page once. Kinds are in the order in which they come first; pages beyond those
/// that `kinds` counts are left out.
pub fn measure(
    corpus: &Corpus,
    compressor: &dyn Compressor,
    same_filled: SameFilled,
    kinds: &[KindPages],
) -> Vec<KindLengths> {
    let mut all: Vec<KindLengths> = Vec::new();
    let (mut page, mut out) = ([0; PAGE_SIZE], [0; OUTPUT_BYTES]);
    let mut numbers = 0..corpus.page_count();
    let mut hashes = HashSet::new();
    for part in kinds {
        let at = all.iter().position(|kind| kind.kind == part.kind).unwrap_or_else(|| {
            all.push(KindLengths::new(&part.kind));
            all.len() - 1
        });
        let lengths = &mut all[at];
        for number in numbers.by_ref().take(part.pages as usize) {
            corpus.copy_page(number, &mut page);
            lengths.pages += 1;
            match same_filled.word(&page) {
                Some(_) => lengths.same_filled_pages += 1,
                None => {
                    let is_new = hashes.insert(XxHash3_64::oneshot(&page));
                    lengths.duplicate_pages += u64::from(!is_new);
                    lengths.add(compressor.compress(&page, &mut out).ok());
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::size_list::{SizeList, StripPadding};

    fn range(name: &str, pages: u64) -> PageRange {
        PageRange { pid: None, start: 0, pages, name: name.to_owned() }
    }

    #[test]
    fn adjacent_ranges_of_a_kind_are_one() {
        let names = ["[heap]", "anon", "[anon:malloc]", "/lib/x", "[stack]", "[vdso]"];
        let kinds = KindPages::of_ranges(&names.map(|name| range(name, 2)), 12);
        let kinds: Vec<_> = kinds.iter().map(|it| (it.kind.as_str(), it.pages)).collect();
        assert_eq!(kinds, [("heap", 2), ("anonymous", 4), ("file", 2), ("stack", 2), ("other", 2)]);
        assert_eq!(KindPages::of_ranges(&[], 7), KindPages::unknown(7));
    }

    #[test]
    fn a_page_is_a_copy_of_one_before_whatever_its_kind() {
        let page = |byte: u8| std::array::from_fn(|at| byte ^ (at / 7) as u8);
        let mut changed = page(1);
        changed[4095] ^= 1;
        let same_filled = [7; PAGE_SIZE];
        let pages = [page(1), page(2), same_filled, page(1), same_filled, changed, page(1)];
        let kinds =
            [("a", 3), ("b", 4)].map(|(kind, pages)| KindPages { kind: kind.to_owned(), pages });
        let corpus = Corpus::Pages(pages.to_vec());
        let all = measure(&corpus, &StripPadding, SameFilled::default(), &kinds);
        let counts = all.iter().map(|kind| (kind.same_filled_pages, kind.duplicate_pages));
        assert_eq!(counts.collect::<Vec<_>>(), [(1, 0), (1, 2)]);
    }

    #[test]
    fn each_page_is_counted_once_by_its_length() {
        let sizes = [0, 1, 64, 65, 4096, 100];
        let corpus = Corpus::Sizes(sizes.into_iter().collect::<SizeList>());
        let kinds: Vec<KindPages> = [("a", 3), ("b", 2), ("a", 9)]
            .map(|(kind, pages)| KindPages { kind: kind.to_owned(), pages })
            .to_vec();
        let all = measure(&corpus, &StripPadding, SameFilled::default(), &kinds);
        let [a, b] = &all[..] else { panic!("{all:?}") };
        assert_eq!((a.pages, a.same_filled_pages, a.compressed_bytes), (4, 1, 165));
        assert_eq!(a.pages_by_length[..3], [2, 1, 0]);
        assert_eq!((b.pages, b.incompressible_pages, b.compressed_bytes), (2, 1, 4161));
        assert_eq!((b.pages_by_length[1], b.pages_by_length[63]), (1, 1));
    }
}
