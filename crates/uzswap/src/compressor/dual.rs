//! Two compressors in one: a fast one, and a dense one for pages that are recompressed. As zram's
//! primary and secondary algorithms, but that either may be asked at any time.
//!
//! ```text
//!  | the object that one of them made | 0: the fast one's, 1: the dense one's |
//! ```

use super::{CompressError, Compressor, Corrupt, OUTPUT_BYTES, ObjectFormat, fitting};
use crate::page::{PAGE_SIZE, Page};

const FAST: u8 = 0;
const DENSE: u8 = 1;

/// Two compressors. An object is a byte longer than that of the one that made it.
#[derive(Debug)]
pub struct Dual {
    fast: Box<dyn Compressor>,
    dense: Box<dyn Compressor>,
}

impl Dual {
    /// Of a fast one, and one that leaves less.
    pub fn new(fast: Box<dyn Compressor>, dense: Box<dyn Compressor>) -> Dual {
        Dual { fast, dense }
    }
}

/// Has one of them compress a page, and says which.
fn compress(
    compressor: &dyn Compressor,
    which: u8,
    page: &Page,
    out: &mut [u8; OUTPUT_BYTES],
) -> Result<usize, CompressError> {
    let bytes = compressor.compress(page, out)?;
    if !(1..=PAGE_SIZE).contains(&bytes) {
        return Err(CompressError::of_length(bytes));
    }
    out[bytes] = which; // there is room for more than a page
    fitting(bytes + 1)
}

impl Compressor for Dual {
    fn name(&self) -> String {
        format!("{}+{}", self.fast.name(), self.dense.name())
    }

    fn format(&self) -> ObjectFormat {
        ObjectFormat::Pair(Box::new((self.fast.format(), self.dense.format())))
    }

    fn compress(&self, page: &Page, out: &mut [u8; OUTPUT_BYTES]) -> Result<usize, CompressError> {
        compress(&*self.fast, FAST, page, out)
    }

    fn compress_densely(
        &self,
        page: &Page,
        out: &mut [u8; OUTPUT_BYTES],
    ) -> Result<usize, CompressError> {
        compress(&*self.dense, DENSE, page, out)
    }

    fn is_dense(&self, object: &[u8]) -> bool {
        object.last() != Some(&FAST)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        match object.split_last() {
            Some((&FAST, object)) => self.fast.decompress(object, page),
            Some((&DENSE, object)) => self.dense.decompress(object, page),
            Some((which, _)) => {
                Err(Corrupt(format!("the object names compressor {which}; expected 0 or 1")))
            }
            None => Err(Corrupt("the object is empty".to_owned())),
        }
    }
}
