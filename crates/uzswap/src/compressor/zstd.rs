//! zstd by libzstd, one frame a page without checksum, as in the kernel. Level 3 is the default
//! there and here.

use std::cell::RefCell;

use zstd_safe::{CCtx, DCtx};

use super::{CompressError, Compressor, Corrupt, OUTPUT_BYTES, ObjectFormat, fitting};
use crate::page::{PAGE_SIZE, Page};

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
        let result =
            COMPRESSION.with_borrow_mut(|context| context.compress(&mut out[..], page, self.level));
        match result {
            Ok(bytes) => fitting(bytes),
            Err(code) => Err(CompressError::Failed(zstd_safe::get_error_name(code).to_owned())),
        }
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        match DECOMPRESSION.with_borrow_mut(|context| context.decompress(&mut page[..], object)) {
            Ok(PAGE_SIZE) => Ok(()),
            Ok(bytes) => Err(Corrupt::length(bytes)),
            Err(code) => Err(Corrupt(format!("zstd: {}", zstd_safe::get_error_name(code)))),
        }
    }
}
