//! A reader of a column's pages that stops a file which has more values than it may have.

use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};

/// The pages of a column with at most so many values.
pub(super) struct BoundedPages {
    inner: Box<dyn PageReader>,
    left: usize,
}

impl BoundedPages {
    pub(super) fn new(inner: Box<dyn PageReader>, most: usize) -> BoundedPages {
        BoundedPages { inner, left: most }
    }
}

impl Iterator for BoundedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.inner.get_next_page()?;
        if let Some(page @ (Page::DataPage { .. } | Page::DataPageV2 { .. })) = &page {
            let left = self.left.checked_sub(page.num_values() as usize);
            let many = || ParquetError::General("it has more values than rows".to_owned());
            self.left = left.ok_or_else(many)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.inner.skip_next_page()
    }
}
