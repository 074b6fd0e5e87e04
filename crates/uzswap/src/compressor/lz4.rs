//! lz4 by liblz4, as in the kernel: the fast compressor at acceleration 1.

use std::cell::RefCell;

use super::{CompressError, CompressorKind, Corrupt, UnitCompressor, restored};
use uzswap_sys::lz4::{Lz4State, decompress};

#[derive(Debug)]
pub(super) struct Lz4;

thread_local! {
    static STATE: RefCell<Lz4State> = RefCell::new(Lz4State::new());
}

impl UnitCompressor for Lz4 {
    fn kind(&self) -> CompressorKind {
        CompressorKind::Lz4
    }

    fn compress_pages(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        let bytes = STATE.with_borrow_mut(|state| state.compress(pages, out, 1));
        bytes.ok_or(CompressError::TooBig)
    }

    fn decompress_pages(&self, object: &[u8], pages: &mut [u8]) -> Result<(), Corrupt> {
        let bytes = decompress(object, pages);
        restored(bytes.ok_or_else(|| Corrupt("invalid lz4 block".to_owned()))?, pages)
    }
}
