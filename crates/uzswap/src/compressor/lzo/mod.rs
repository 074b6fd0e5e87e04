//! lzo, the kernel's LZO1X-1, and lzo-rle, its variant with runs of zeros; both of our own, from
//! the published description of the format (docs/reference/lzo-stream.md).
//!
//! An object is a stream of instructions. Each copies bytes from before, makes zeros, or brings
//! literals, and the low bits of most count up to three more literals.

mod decode;
mod encode;

use std::cell::RefCell;

use super::{CompressError, Compressor, Corrupt, ObjectFormat, Output, fitting};
use crate::page::Page;
use encode::Dictionary;

/// The first byte of a stream that says its version; the version is the second.
const FIRST_OF_VERSIONED: u8 = 17;

/// First bytes of a stream from here on are one literal, two ...
const FIRST_OF_LITERALS: u8 = 18;

/// Instructions from here on reach over 16 KiB back, are runs of zeros, or end the stream. Those
/// below bring literals, or are short matches that our encoder does not make.
const FAR: u8 = 1 << 4;

/// Instructions from here on reach up to 16 KiB back.
const NEAR: u8 = 1 << 5;

/// Instructions from here on are matches of 3 to 8 bytes, up to 2 KiB back.
const SHORT: u8 = 1 << 6;

/// Either of the two. Both decompress what the other compressed.
#[derive(Debug)]
pub(super) struct Lzo {
    /// With runs of zeros: lzo-rle.
    pub(super) runs: bool,
}

thread_local! {
    static DICTIONARY: RefCell<Dictionary> = const { RefCell::new(Dictionary::new()) };
}

impl Compressor for Lzo {
    fn name(&self) -> String {
        if self.runs { "lzo-rle" } else { "lzo" }.to_owned()
    }

    fn format(&self) -> ObjectFormat {
        ObjectFormat::Lzo
    }

    fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        let compress = if self.runs { encode::compress::<true> } else { encode::compress::<false> };
        let bytes = DICTIONARY.with_borrow_mut(|dictionary| compress(page, out, dictionary));
        fitting(bytes.ok_or(CompressError::TooBig)?)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        decode::decompress(object, page).map_err(|fault| Corrupt(format!("lzo: {fault}")))
    }
}
