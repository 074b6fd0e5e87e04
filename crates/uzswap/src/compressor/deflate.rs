//! Raw deflate by libdeflate.

use std::cell::RefCell;

use libdeflater::{CompressionLvl, Compressor as Context, Decompressor};

use super::{CompressError, CompressorKind, Corrupt, UnitCompressor, restored};

pub(super) const LEVEL_DEFAULT: i32 = 6;

/// The levels libdeflate takes; 0 stores.
pub(super) const LEVELS: (i32, i32) = (0, 12);

#[derive(Debug)]
pub(super) struct Deflate {
    level: i32,
}

impl Deflate {
    pub(super) fn new(level: i32) -> Deflate {
        Deflate { level }
    }
}

thread_local! {
    /// A context is made for one level.
    static COMPRESSION: RefCell<Option<(i32, Context)>> = const { RefCell::new(None) };
    static DECOMPRESSION: RefCell<Decompressor> = RefCell::new(Decompressor::new());
}

fn context(level: i32) -> Context {
    Context::new(CompressionLvl::new(level).expect("levels are checked where they are parsed"))
}

impl UnitCompressor for Deflate {
    fn kind(&self) -> CompressorKind {
        CompressorKind::Deflate(self.level)
    }

    fn compress_pages(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        let made = COMPRESSION.with_borrow_mut(|slot| {
            let (level, compressor) = slot.get_or_insert_with(|| (self.level, context(self.level)));
            if *level != self.level {
                (*level, *compressor) = (self.level, context(self.level));
            }
            compressor.deflate_compress(pages, out)
        });
        made.map_err(|_| CompressError::TooBig) // its only error
    }

    fn decompress_pages(&self, object: &[u8], pages: &mut [u8]) -> Result<(), Corrupt> {
        let made =
            DECOMPRESSION.with_borrow_mut(|context| context.deflate_decompress(object, pages));
        restored(made.map_err(|error| Corrupt(format!("deflate: {error}")))?, pages)
    }
}
