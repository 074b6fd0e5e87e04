//! A compressor double that fails, and whose lengths vary.

use std::sync::Arc;

use super::{Point, World, is_pinned};
use crate::faults::Fault;
use crate::planted_bugs::PlantedBug;
use uzswap::compressor::{CompressError, Compressor, Corrupt, ObjectFormat, Output};
use uzswap::page::{PAGE_SIZE, Page};

#[derive(Debug)]
pub(crate) struct LyingCompressor {
    world: Arc<World>,
    inner: Box<dyn Compressor>,
}

/// Maximum padding of an object; its last byte holds the length.
const LONGER_MAX: u64 = 200;

impl LyingCompressor {
    pub(crate) fn new(world: Arc<World>, inner: Box<dyn Compressor>) -> LyingCompressor {
        LyingCompressor { world, inner }
    }

    /// What may happen before something is compressed.
    fn begin(&self) -> Result<(), CompressError> {
        self.world.happen(Point::Free);
        if self.world.strikes(Fault::CompressFail) {
            return Err(CompressError::Failed("it was told to".to_owned()));
        }
        match self.world.strikes(Fault::CompressTooBig) {
            true => Err(CompressError::TooBig),
            false => Ok(()),
        }
    }

    /// Compresses a page; where lengths differ, to something that is longer by some bytes.
    fn compress_longer(
        &self,
        page: &Page,
        out: &mut Output,
        densely: bool,
    ) -> Result<usize, CompressError> {
        self.begin()?;
        let bytes = match densely {
            true => self.inner.compress_densely(page, out)?,
            false => self.inner.compress(page, out)?,
        };
        if !self.world.has(Fault::CompressLonger) {
            return Ok(bytes);
        }
        self.world.note(Fault::CompressLonger);
        let most = if densely { 1 } else { LONGER_MAX };
        let longer = 1 + (self.world.draw() % most) as usize;
        let end = bytes + longer;
        if end > PAGE_SIZE {
            return Err(CompressError::TooBig);
        }
        out[bytes..end].fill(longer as u8);
        Ok(end)
    }
}

impl Compressor for LyingCompressor {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn format(&self) -> ObjectFormat {
        match self.world.has(Fault::CompressLonger) {
            true => ObjectFormat::Other(self.name()),
            false => self.inner.format(),
        }
    }

    fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        self.compress_longer(page, out, false)
    }

    fn compress_densely(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        self.compress_longer(page, out, true)
    }

    fn is_dense(&self, object: &[u8]) -> bool {
        !self.world.has(Fault::CompressLonger) && self.inner.is_dense(object)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        self.world.happen(if is_pinned() { Point::Pinned } else { Point::Free });
        let object = match self.world.has(Fault::CompressLonger) {
            false => object,
            true => {
                let longer = object.last().map_or(0, |&last| usize::from(last));
                let end = object.len().checked_sub(longer);
                &object[..end.ok_or_else(|| Corrupt("shorter than it says".to_owned()))?]
            }
        };
        self.inner.decompress(object, page)?;
        if self.world.is_planted(PlantedBug::WrongPage) && self.world.draw().is_multiple_of(256) {
            page[99] ^= 1;
        }
        Ok(())
    }

    fn unit_pages_max(&self) -> usize {
        self.inner.unit_pages_max()
    }

    fn compress_unit(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        self.begin()?;
        self.inner.compress_unit(pages, out)
    }

    fn compress_unit_densely(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        self.begin()?;
        self.inner.compress_unit_densely(pages, out)
    }

    fn decompress_unit(&self, object: &[u8], pages: &mut [u8]) -> Result<(), Corrupt> {
        self.world.happen(if is_pinned() { Point::Pinned } else { Point::Free });
        self.inner.decompress_unit(object, pages)
    }
}
