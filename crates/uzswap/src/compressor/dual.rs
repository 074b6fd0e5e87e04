//! Two compressors in one: a fast one, and a dense one for pages that are recompressed. As zram's
//! primary and secondary algorithms, but that either may be asked at any time.
//!
//! ```text
//!  | the object that one of them made | by which, for which end, and of the page's shuffle? |
//! ```

use std::sync::atomic::{AtomicU32, Ordering};

use super::filter::{Filter, Part, SHUFFLED};
use super::{CompressError, Compressor, Corrupt, OUTPUT_BYTES, ObjectFormat, Output};
use crate::page::Page;

/// The fast one's.
const FAST: u8 = 0;
/// The dense one's.
const DENSE: u8 = 1;
/// The fast one's, of a page of which the dense one made more.
const SHORTER: u8 = 2;

/// The fast one compresses one of so many dense pages as well, and the shorter object stays. Of
/// pages with many short matches zstd can make a third more than lz4. With each page, a thrashing
/// program took 8 to 20 % longer.
const TRY_EVERY: u32 = 16;

/// So many pages after one of which the fast one made less.
const TRIES: u32 = 64;

/// Two compressors. An object is a byte longer than that of the one that made it.
#[derive(Debug)]
pub struct Dual {
    fast: Part,
    dense: Part,
    filter: Filter,
    /// Pages that were made dense.
    count: AtomicU32,
    /// Of how many more pages both objects are made.
    tries: AtomicU32,
}

impl Dual {
    /// Of a fast one, and one that leaves less.
    pub fn new(fast: Box<dyn Compressor>, dense: Box<dyn Compressor>) -> Dual {
        Dual::filtered(fast, dense, Filter::None)
    }

    /// The same, both of them behind a filter.
    pub fn filtered(fast: Box<dyn Compressor>, dense: Box<dyn Compressor>, filter: Filter) -> Dual {
        let (fast, dense) = (Part::new(fast, filter), Part::new(dense, filter));
        Dual { fast, dense, filter, count: AtomicU32::new(0), tries: AtomicU32::new(0) }
    }

    /// The last byte of an object, and the bytes before.
    fn tag_of<'a>(&self, object: &'a [u8]) -> Result<(u8, &'a [u8]), Corrupt> {
        let Some((&tag, object)) = object.split_last() else {
            return Err(Corrupt("the object is empty".to_owned()));
        };
        let which = if self.filter.is_none() { tag } else { tag & !SHUFFLED };
        match which {
            FAST | DENSE | SHORTER => Ok((tag, object)),
            _ => Err(Corrupt(format!("the object names compressor {which}; expected 0, 1 or 2"))),
        }
    }

    /// Whether both are to compress the next page. Threads may lose a count to each other.
    fn tries_both(&self) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Relaxed);
        let tries = self.tries.load(Ordering::Relaxed);
        self.tries.store(tries.saturating_sub(1), Ordering::Relaxed);
        tries > 0 || count.is_multiple_of(TRY_EVERY)
    }
}

impl Compressor for Dual {
    fn name(&self) -> String {
        let [fast, dense] = [&self.fast, &self.dense].map(|part| part.compressor().name());
        self.filter.name_of(&format!("{fast}+{dense}"))
    }

    fn format(&self) -> ObjectFormat {
        let both = (self.fast.compressor().format(), self.dense.compressor().format());
        match self.filter {
            Filter::None => ObjectFormat::Pair(Box::new(both)),
            Filter::Shuffle | Filter::Auto => ObjectFormat::FilteredPair(Box::new(both)),
        }
    }

    fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        self.fast.compress(FAST, page, out)
    }

    fn compress_densely(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        let dense = self.dense.compress(DENSE, page, out);
        if !self.tries_both() {
            return dense;
        }
        let mut other = [0; OUTPUT_BYTES];
        match (dense, self.fast.compress(SHORTER, page, &mut other)) {
            (Ok(dense), Ok(fast)) if dense <= fast => Ok(dense),
            (_, Ok(fast)) => {
                self.tries.store(TRIES, Ordering::Relaxed);
                out[..fast].copy_from_slice(&other[..fast]);
                Ok(fast)
            }
            (dense, Err(_)) => dense,
        }
    }

    fn is_dense(&self, object: &[u8]) -> bool {
        object.last().is_none_or(|tag| tag & !SHUFFLED != FAST)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let (tag, object) = self.tag_of(object)?;
        match tag & !SHUFFLED {
            DENSE => self.dense.decompress(object, tag, page),
            _ => self.fast.decompress(object, tag, page),
        }
    }

    fn unit_pages_max(&self) -> usize {
        let [fast, dense] =
            [&self.fast, &self.dense].map(|part| part.compressor().unit_pages_max());
        fast.min(dense)
    }

    fn compress_unit(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        self.fast.compress_unit(FAST, pages, out)
    }

    fn compress_unit_densely(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        self.dense.compress_unit(DENSE, pages, out)
    }

    fn decompress_unit(&self, object: &[u8], pages: &mut [u8]) -> Result<(), Corrupt> {
        let (tag, object) = self.tag_of(object)?;
        match tag & !SHUFFLED {
            DENSE => self.dense.decompress_unit(object, tag, pages),
            _ => self.fast.decompress_unit(object, tag, pages),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::page::PAGE_SIZE;

    /// Makes objects of the length that the page's first byte says, tens of bytes, and counts.
    #[derive(Debug)]
    struct Counting {
        calls: Arc<AtomicU32>,
        bytes_of: fn(&Page) -> usize,
    }

    impl Compressor for Counting {
        fn name(&self) -> String {
            "counting".to_owned()
        }

        fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let bytes = (self.bytes_of)(page);
            if bytes > PAGE_SIZE {
                return Err(CompressError::TooBig);
            }
            out[..bytes].fill(page[0]);
            Ok(bytes)
        }

        fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
            page.fill(object[0]);
            Ok(())
        }
    }

    /// The dense one makes 100 bytes of any page but those of 9, which it cannot compress; the fast
    /// one 10 bytes for each in the first byte.
    fn dual() -> (Dual, Arc<AtomicU32>) {
        let calls = Arc::new(AtomicU32::new(0));
        let fast = Counting { calls: Arc::clone(&calls), bytes_of: |page| 10 * page[0] as usize };
        let bytes_of = |page: &Page| if page[0] == 9 { PAGE_SIZE + 1 } else { 100 };
        let dense = Counting { calls: Arc::default(), bytes_of };
        (Dual::new(Box::new(fast), Box::new(dense)), calls)
    }

    /// Bytes of the dense object of a page of this byte, and what they say of it.
    fn made(dual: &Dual, byte: u8) -> (usize, u8) {
        let mut out = [0; OUTPUT_BYTES];
        let bytes = dual.compress_densely(&[byte; PAGE_SIZE], &mut out).unwrap();
        let mut page = [0; PAGE_SIZE];
        dual.decompress(&out[..bytes], &mut page).unwrap();
        assert_eq!(page, [byte; PAGE_SIZE]);
        assert!(dual.is_dense(&out[..bytes]));
        (bytes, out[bytes - 1])
    }

    #[test]
    fn the_fast_one_is_asked_for_one_page_in_sixteen_unless_it_made_less() {
        let (dual, calls) = dual();
        let asked = || calls.swap(0, Ordering::Relaxed);
        (0..160).for_each(|_| assert_eq!(made(&dual, 20), (101, DENSE)));
        assert_eq!(asked(), 10);
        // As long an object is no gain.
        (0..16).for_each(|_| assert_eq!(made(&dual, 10), (101, DENSE)));
        assert_eq!(asked(), 1);
        // The fast one is asked for the first of these, and makes less.
        (0..40).for_each(|_| assert_eq!(made(&dual, 5), (51, SHORTER)));
        assert_eq!(asked(), 40);
        (0..160).for_each(|_| assert_eq!(made(&dual, 20), (101, DENSE)));
        assert_eq!(asked(), 64 + 6, "64 pages more, and one in sixteen of 96");
    }

    #[test]
    fn pages_that_the_dense_one_cannot_compress_are_the_fast_ones_while_it_is_asked() {
        let (dual, _) = dual();
        assert_eq!(made(&dual, 9), (91, SHORTER));
        let mut out = [0; OUTPUT_BYTES];
        // The fast one makes 2,000 bytes, the dense one 100.
        assert_eq!(dual.compress_densely(&[200; PAGE_SIZE], &mut out), Ok(101));
    }
}
