//! A reader of a column's pages that refuses sizes which no honest file has.
//!
//! parquet reserves the memory that a page or a dictionary says it needs, before it looks whether
//! that is there.

use std::io::Read;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

/// The most bytes of a page, decompressed. Writers end a page at 1 MiB (parquet, Arrow), or at a
/// row group of 122,880 rows (DuckDB).
const PAGE_BYTES_MAX: u64 = 1 << 24;

/// The pages of a column with at most so many values.
pub(super) struct BoundedPages {
    inner: SerializedPageReader<CheckedPages>,
    /// A page that was looked at: each page of the file is read once, from its header on.
    next: Option<Page>,
    left: usize,
}

impl BoundedPages {
    pub(super) fn new(file: Bytes, column: &ColumnChunkMetaData, most: usize) -> Result<Self> {
        let inner = SerializedPageReader::new(Arc::new(CheckedPages(file)), column, 0, None)?;
        Ok(BoundedPages { inner, next: None, left: most })
    }

    fn read(&mut self) -> Result<Option<Page>> {
        let page = self.inner.get_next_page()?;
        match &page {
            // A value takes four bytes at least: no column of booleans has a dictionary.
            Some(Page::DictionaryPage { buf, num_values, .. })
                if *num_values as usize > buf.len() / 4 =>
            {
                return Err(said("its dictionary has more values than bytes for them"));
            }
            Some(page @ (Page::DataPage { .. } | Page::DataPageV2 { .. })) => {
                let left = self.left.checked_sub(page.num_values() as usize);
                self.left = left.ok_or_else(|| said("it has more values than rows"))?;
            }
            _ => {}
        }
        Ok(page)
    }
}

fn said(text: &str) -> ParquetError {
    ParquetError::General(text.to_owned())
}

impl Iterator for BoundedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        match self.next.take() {
            Some(page) => Ok(Some(page)),
            None => self.read(),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        if self.next.is_none() {
            self.next = self.read()?;
        }
        let about = |page: &Page| PageMetadata {
            num_rows: match page {
                Page::DataPageV2 { num_rows, .. } => Some(*num_rows as usize),
                _ => None,
            },
            num_levels: Some(page.num_values() as usize),
            is_dict: matches!(page, Page::DictionaryPage { .. }),
        };
        Ok(self.next.as_ref().map(about))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.get_next_page().map(drop)
    }
}

/// The bytes of a file whose pages are read one after the other: a read without a length begins at
/// the header of a page.
struct CheckedPages(Bytes);

impl Length for CheckedPages {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

impl ChunkReader for CheckedPages {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let header = self.0.get_read(start)?.into_inner();
        match page_bytes(&header) {
            Some(bytes) if bytes <= PAGE_BYTES_MAX => Ok(header.reader()),
            Some(bytes) => Err(said(&format!("a page of {bytes} bytes is over {PAGE_BYTES_MAX}"))),
            None => Err(said("a page begins without its type and size")),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// The size of a page by its header: of Thrift's compact protocol fields 1, its type, and 2, its
/// size decompressed, both of 32 bits.
fn page_bytes(header: &[u8]) -> Option<u64> {
    const NEXT_FIELD_I32: u8 = 0x15;
    let mut header = header.reader();
    let mut size = 0;
    for _ in 0..2 {
        let mut byte = [0];
        header.read_exact(&mut byte).ok().filter(|()| byte[0] == NEXT_FIELD_I32)?;
        size = 0;
        for shift in (0..35).step_by(7) {
            header.read_exact(&mut byte).ok()?;
            size |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                break;
            }
        }
    }
    // Zigzag: the sign is the lowest bit. parquet refuses a size below 0.
    Some(size >> 1)
}
