//! zstd by libzstd, one frame a page without checksum, as in the kernel. Level 3 is the default
//! there and here.

use std::cell::RefCell;

use zstd_safe::{CCtx, DCtx};

use super::{CompressError, CompressorKind, Corrupt, UnitCompressor, restored};

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

impl UnitCompressor for Zstd {
    fn kind(&self) -> CompressorKind {
        CompressorKind::Zstd(self.level)
    }

    fn compress_pages(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        let made = COMPRESSION.with_borrow_mut(|context| context.compress(out, pages, self.level));
        made.map_err(|code| CompressError::Failed(zstd_safe::get_error_name(code).to_owned()))
    }

    fn decompress_pages(&self, object: &[u8], pages: &mut [u8]) -> Result<(), Corrupt> {
        let made = DECOMPRESSION.with_borrow_mut(|context| context.decompress(pages, object));
        let name = |code| Corrupt(format!("zstd: {}", zstd_safe::get_error_name(code)));
        restored(made.map_err(name)?, pages)
    }
}
