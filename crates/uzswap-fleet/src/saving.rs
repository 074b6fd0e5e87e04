//! The memory that sampled pages would save, by the size classes of zsmalloc.

use uzswap::named_enum::named;
use uzswap::page::PAGE_SIZE;
use uzswap::zpool::zsmalloc::{ClassTable, ZsmallocOptions};

use crate::table::PageRow;

/// A compressor whose lengths the table `pages` has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lengths {
    /// lz4.
    #[default]
    Lz4,
    /// lzo-rle.
    LzoRle,
    /// zstd at level 3.
    Zstd,
}

named!(Lengths, "compressor", Lz4 => "lz4", LzoRle => "lzo-rle", Zstd => "zstd");

impl Lengths {
    /// The length of a page with this compressor, in bytes; none of a same-filled page.
    pub fn of(self, page: &PageRow) -> Option<u64> {
        match self {
            Lengths::Lz4 => page.lz4_bytes,
            Lengths::LzoRle => page.lzo_rle_bytes,
            Lengths::Zstd => page.zstd_bytes,
        }
    }
}

/// The memory of some pages, and what of it compression saves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Saving {
    /// Pages.
    pub pages: u64,
    /// Thousandths of a byte: a slot's share of its zspage is no whole number.
    saved_millibytes: u64,
}

impl Saving {
    /// Bytes that are saved, once all pages are compressed.
    pub fn bytes(self) -> u64 {
        self.saved_millibytes / 1000
    }

    /// The same for so many pages that are alike.
    pub fn bytes_of(self, pages: u64) -> u64 {
        let all = u128::from(self.saved_millibytes) * u128::from(pages);
        let bytes = all / 1000 / u128::from(self.pages.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Adds another one's pages.
    pub fn add(&mut self, other: Saving) {
        self.pages += other.pages;
        self.saved_millibytes += other.saved_millibytes;
    }
}

/// What each length takes in a pool whose zspages are full.
#[derive(Debug)]
pub struct Prices {
    saved_millibytes: Vec<u64>,
}

impl Default for Prices {
    fn default() -> Prices {
        let table = ClassTable::new(ZsmallocOptions::default());
        let page = 1000 * PAGE_SIZE as u64;
        let saved = |bytes: usize| {
            let class = table.class_of(bytes.max(1));
            page - page * class.pages as u64 / class.slots as u64
        };
        Prices { saved_millibytes: (0..=PAGE_SIZE).map(saved).collect() }
    }
}

impl Prices {
    /// The saving of one page. A same-filled page takes no memory of the pool, a page that does not
    /// shrink is not stored.
    pub fn of(&self, page: &PageRow, lengths: Lengths) -> Saving {
        let saved_millibytes = match lengths.of(page) {
            None => 1000 * PAGE_SIZE as u64,
            Some(bytes) => self.saved_millibytes[(bytes as usize).min(PAGE_SIZE)],
        };
        Saving { pages: 1, saved_millibytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_saves_what_its_slot_leaves() {
        let prices = Prices::default();
        let page = |lz4_bytes| PageRow { lz4_bytes, ..PageRow::default() };
        let saved = |lz4_bytes| prices.of(&page(lz4_bytes), Lengths::Lz4).bytes();
        assert_eq!(saved(None), 4096, "a same-filled page");
        assert_eq!(saved(Some(4096)), 0, "a page that does not shrink");
        // With its header of 8 bytes it fits the slot of 2,048, two to a page.
        assert_eq!(saved(Some(2040)), 2048);
        // 2,168 of 4,096 with the header: a slot of 2,176 takes its share of the tail, too.
        let table = ClassTable::new(ZsmallocOptions::default());
        let class = table.class_of(2168);
        assert!(class.tail_waste_bytes() > 0);
        let taken = (class.pages * PAGE_SIZE).div_ceil(class.slots) as u64;
        assert_eq!(saved(Some(2168)), 4096 - taken);
        assert_eq!(saved(Some(u64::MAX)), 0, "a length that no page has");
        let mut two = prices.of(&page(None), Lengths::Lz4);
        two.add(prices.of(&page(Some(4096)), Lengths::Lz4));
        assert_eq!((two.pages, two.bytes(), two.bytes_of(10)), (2, 4096, 20480));
        assert_eq!(Saving::default().bytes_of(u64::MAX), 0);
    }
}
