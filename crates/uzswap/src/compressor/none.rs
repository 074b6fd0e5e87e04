//! No compression: measures the cost of the allocators alone.

use super::{CompressError, Compressor, Corrupt, ObjectFormat, Output};
use crate::page::{PAGE_SIZE, Page};

#[derive(Debug)]
pub(super) struct NoCompression;

impl Compressor for NoCompression {
    fn name(&self) -> String {
        "none".to_owned()
    }

    fn format(&self) -> ObjectFormat {
        ObjectFormat::None
    }

    fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        out[..PAGE_SIZE].copy_from_slice(page);
        Ok(PAGE_SIZE)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        *page = *<&Page>::try_from(object).map_err(|_| Corrupt::length(object.len(), PAGE_SIZE))?;
        Ok(())
    }
}
