//! lz4 by liblz4, as in the kernel: the fast compressor at acceleration 1.

use std::cell::RefCell;

use super::{CompressError, Compressor, Corrupt, OUTPUT_BYTES, ObjectFormat, fitting};
use crate::page::{PAGE_SIZE, Page};
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
        let bytes = STATE.with_borrow_mut(|state| state.compress(page, out, 1));
        fitting(bytes.ok_or(CompressError::TooBig)?)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        match decompress(object, page) {
            Some(PAGE_SIZE) => Ok(()),
            Some(bytes) => Err(Corrupt::length(bytes)),
            None => Err(Corrupt("invalid lz4 block".to_owned())),
        }
    }
}
