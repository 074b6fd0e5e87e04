//! zstd by libzstd, one frame a page without checksum, as in the kernel. Level 3 is the default
//! there and here.

use std::cell::RefCell;

use zstd_safe::{CCtx, DCtx};

use super::{
    CompressError, Compressor, Corrupt, OUTPUT_BYTES, ObjectFormat, UNIT_PAGES_MAX, fitting,
    restored,
};
use crate::page::Page;

pub(super) const LEVEL_DEFAULT: i32 = 3;

/// The levels libzstd takes; negative ones are faster.
pub(super) fn levels() -> (i32, i32) {
    (zstd_safe::min_c_level(), zstd_safe::max_c_level())
}

#[derive(Debug)]
pub(super) struct Zstd {
    level: i32,
}

impl Zstd {
    pub(super) fn new(level: i32) -> Zstd {
        Zstd { level }
    }
}

thread_local! {
    static COMPRESSION: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    static DECOMPRESSION: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

impl Compressor for Zstd {
    fn name(&self) -> String {
        super::CompressorKind::Zstd(self.level).to_string()
    }

    fn format(&self) -> ObjectFormat {
        ObjectFormat::Zstd
    }

    fn compress(&self, page: &Page, out: &mut [u8; OUTPUT_BYTES]) -> Result<usize, CompressError> {
        fitting(self.compress_unit(page, out)?)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        self.decompress_unit(object, page)
    }

    fn unit_pages_max(&self) -> usize {
        UNIT_PAGES_MAX
    }

    fn compress_unit(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        let made = COMPRESSION.with_borrow_mut(|context| context.compress(out, pages, self.level));
        made.map_err(|code| CompressError::Failed(zstd_safe::get_error_name(code).to_owned()))
    }

    fn decompress_unit(&self, object: &[u8], pages: &mut [u8]) -> Result<(), Corrupt> {
        let made = DECOMPRESSION.with_borrow_mut(|context| context.decompress(pages, object));
        let name = |code| Corrupt(format!("zstd: {}", zstd_safe::get_error_name(code)));
        restored(made.map_err(name)?, pages)
    }
}
