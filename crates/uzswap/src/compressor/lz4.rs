//! lz4 by liblz4, as in the kernel: the fast compressor at acceleration 1.

use std::cell::RefCell;

use super::{
    CompressError, Compressor, Corrupt, OUTPUT_BYTES, ObjectFormat, UNIT_PAGES_MAX, fitting,
    restored,
};
use crate::page::Page;
use uzswap_sys::lz4::{Lz4State, decompress};

#[derive(Debug)]
pub(super) struct Lz4;

thread_local! {
    static STATE: RefCell<Lz4State> = RefCell::new(Lz4State::new());
}

impl Compressor for Lz4 {
    fn name(&self) -> String {
        "lz4".to_owned()
    }

    fn format(&self) -> ObjectFormat {
        ObjectFormat::Lz4
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
        let bytes = STATE.with_borrow_mut(|state| state.compress(pages, out, 1));
        bytes.ok_or(CompressError::TooBig)
    }

    fn decompress_unit(&self, object: &[u8], pages: &mut [u8]) -> Result<(), Corrupt> {
        let bytes = decompress(object, pages);
        restored(bytes.ok_or_else(|| Corrupt("invalid lz4 block".to_owned()))?, pages)
    }
}
