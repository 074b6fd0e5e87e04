//! Where the pages of a capture go.

use crate::corpus::page_set::{PageRange, PageSetError, PageSetWriter};
use uzswap::page::Page;

/// Takes the pages that a capture reads.
pub(super) trait PageSink {
    /// Takes pages, which lie at `range`.
    fn push(&mut self, range: PageRange, pages: &[Page]) -> Result<(), PageSetError>;

    /// Notes that the pages are a sample of so many, drawn with `seed`.
    fn set_sample(&mut self, of_pages: u64, seed: u64);

    /// Pages so far.
    fn page_count(&self) -> u64;
}

impl PageSink for PageSetWriter {
    fn push(&mut self, range: PageRange, pages: &[Page]) -> Result<(), PageSetError> {
        PageSetWriter::push(self, range, pages)
    }

    fn set_sample(&mut self, of_pages: u64, seed: u64) {
        PageSetWriter::set_sample(self, of_pages, seed);
    }

    fn page_count(&self) -> u64 {
        PageSetWriter::page_count(self)
    }
}
