//! Compresses sampled pages: lengths and hashes of them, and not one byte, are kept.

use std::collections::HashMap;

use super::pace::Pace;
use super::salt::{Of, Salt};
use crate::corpus::page_set::PageRange;
use crate::measure::compressed_lengths::kind_of;
use uzswap::compressor::{Compressor, CompressorKind, OUTPUT_BYTES};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::same_filled::SameFilled;
use uzswap_fleet::table::{Encoder, PageRow};
use uzswap_fleet::{Lengths, Prices, Saving};

/// The compressors of the table, in the order of its columns.
pub(super) const LENGTHS: [Lengths; 3] = [Lengths::Lz4, Lengths::LzoRle, Lengths::Zstd];

/// Page numbers of an address space of 64 bits.
const NUMBERS: u64 = 1 << 52;

/// The hashes of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) process: u64,
    pub(super) job: u64,
}

/// The table `pages`, page by page.
pub(super) struct PageTable<'a> {
    run: u64,
    host: u64,
    salt: &'a Salt,
    pace: &'a Pace,
    ids: HashMap<u32, Ids>,
    compressors: [Box<dyn Compressor>; 3],
    prices: Prices,
    encoder: Encoder<PageRow>,
    savings: HashMap<u64, [Saving; 3]>,
}

impl<'a> PageTable<'a> {
    pub(super) fn new(
        (run, host): (u64, u64),
        salt: &'a Salt,
        pace: &'a Pace,
        ids: HashMap<u32, Ids>,
    ) -> PageTable<'a> {
        let kinds = [CompressorKind::Lz4, CompressorKind::LzoRle, CompressorKind::Zstd(3)];
        let (compressors, prices) = (kinds.map(CompressorKind::build), Prices::default());
        let (encoder, savings) = (Encoder::new(), HashMap::new());
        PageTable { run, host, salt, pace, ids, compressors, prices, encoder, savings }
    }

    /// Adds adjacent pages of a process, and waits until the time that they took is paid for.
    pub(super) fn add(&mut self, range: &PageRange, pages: &[Page]) {
        let Some(ids) = range.pid.and_then(|pid| self.ids.get(&pid).copied()) else { return };
        let kind = kind_of(&range.name);
        let origin = self.salt.hash(Of::Origin, &ids.process.to_le_bytes());
        let first = (range.start / PAGE_SIZE as u64).wrapping_sub(origin);
        for (place, page) in (0..).zip(pages) {
            let row = self.row(ids, kind, first.wrapping_add(place) % NUMBERS, page);
            let savings = self.savings.entry(ids.process).or_default();
            for (saving, lengths) in savings.iter_mut().zip(LENGTHS) {
                saving.add(self.prices.of(&row, lengths));
            }
            self.encoder.push(row);
        }
        self.pace.pay();
    }

    fn row(&self, ids: Ids, kind: &str, number: u64, page: &Page) -> PageRow {
        let same_filled = SameFilled::default().word(page).is_some();
        let mut out = [0; OUTPUT_BYTES];
        // A page that does not shrink takes a page.
        let mut length = |compressor: &dyn Compressor| {
            compressor.compress(page, &mut out).map_or(PAGE_SIZE as u64, |bytes| bytes as u64)
        };
        let [lz4_bytes, lzo_rle_bytes, zstd_bytes] =
            self.compressors.each_ref().map(|it| (!same_filled).then(|| length(&**it)));
        PageRow {
            run: self.run,
            host: self.host,
            process: ids.process,
            job: ids.job,
            kind: kind.to_owned(),
            page: number,
            age_seconds: None, // the kernel counts touched pages, and does not name them
            same_filled,
            hash64: self.salt.hash_page(page),
            lz4_bytes,
            lzo_rle_bytes,
            zstd_bytes,
        }
    }

    /// The bytes of the file, and the savings of each process by compressor.
    pub(super) fn finish(self) -> (Vec<u8>, HashMap<u64, [Saving; 3]>) {
        (self.encoder.finish(), self.savings)
    }
}
