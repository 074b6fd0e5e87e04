//! A filter before a compressor: the byte shuffle of 8-byte words, for the pages that gain by it.
//!
//! ```text
//!  | the object that the compressor made of the page, or of its shuffle | of which of them |
//! ```

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use uzswap_sys::shuffle::{shuffle, unshuffle};

use super::learned::Learned;
use super::{
    CompressError, Compressor, CompressorKind, CompressorNameError, Corrupt, Dual, ObjectFormat,
    Output,
};
use crate::named_enum::named;
use crate::page::{PAGE_SIZE, Page};

/// The bit of an object's last byte that says that it is of the page's shuffle.
pub(super) const SHUFFLED: u8 = 4;

/// A change of pages before they are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Filter {
    /// Nothing.
    #[default]
    None,
    /// The byte shuffle of 8-byte words, as Blosc's: byte i of each word together. An object is a
    /// byte longer.
    Shuffle,
    /// The shuffle where it saves bytes, by what it saved of pages like this one. An object is a
    /// byte longer.
    Auto,
}

named!(Filter, "filter", None => "none", Shuffle => "shuffle", Auto => "auto");

impl Filter {
    /// Whether there is none: for serde, which leaves the field out then.
    pub fn is_none(&self) -> bool {
        *self == Filter::None
    }

    /// The name of a compressor behind this filter: `lz4`, `lz4~auto`.
    pub fn name_of(self, compressor: &str) -> String {
        match self {
            Filter::None => compressor.to_owned(),
            _ => format!("{compressor}~{self}"),
        }
    }

    /// One compressor or two, behind this filter.
    pub fn before(
        self,
        fast: Box<dyn Compressor>,
        dense: Option<Box<dyn Compressor>>,
    ) -> Box<dyn Compressor> {
        match dense {
            Some(dense) => Box::new(Dual::filtered(fast, dense, self)),
            None if self.is_none() => fast,
            None => Box::new(Filtered::new(fast, self)),
        }
    }
}

/// A compressor and the filter before it, by name: `lz4`, `lz4~auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FilteredKind {
    /// The compressor.
    pub compressor: CompressorKind,
    /// The filter.
    pub filter: Filter,
}

impl FilteredKind {
    /// The compressor, behind the filter.
    pub fn build(self) -> Box<dyn Compressor> {
        self.filter.before(self.compressor.build(), None)
    }
}

impl From<CompressorKind> for FilteredKind {
    fn from(compressor: CompressorKind) -> FilteredKind {
        FilteredKind { compressor, filter: Filter::None }
    }
}

impl fmt::Display for FilteredKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.filter.name_of(&self.compressor.to_string()))
    }
}

impl FromStr for FilteredKind {
    type Err = CompressorNameError;

    fn from_str(text: &str) -> Result<Self, CompressorNameError> {
        let (compressor, filter) = text.split_once('~').unwrap_or((text, Filter::None.name()));
        Ok(FilteredKind { compressor: compressor.parse()?, filter: filter.parse()? })
    }
}

thread_local! {
    /// Room for a shuffled page or unit. Away while a compressor uses it, as that may want it, too.
    static SHUFFLED_PAGES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Runs `run` with room for so many bytes, of any content.
fn with_room<T>(bytes: usize, run: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut room = SHUFFLED_PAGES.take();
    room.resize(room.len().max(bytes), 0);
    let done = run(&mut room[..bytes]);
    SHUFFLED_PAGES.set(room);
    done
}

/// Makes an object: of a page, or of a unit.
type Compress = fn(&dyn Compressor, &[u8], &mut [u8]) -> Result<usize, CompressError>;

/// How a page is made an object.
#[derive(Debug)]
enum Way {
    Plain,
    Shuffled,
    /// Either.
    Learned(Learned),
}

/// A compressor behind a filter. Its objects have no byte yet that says which way they went.
#[derive(Debug)]
pub(super) struct Part {
    compressor: Box<dyn Compressor>,
    way: Way,
}

impl Part {
    pub(super) fn new(compressor: Box<dyn Compressor>, filter: Filter) -> Part {
        let way = match filter {
            Filter::None => Way::Plain,
            Filter::Shuffle => Way::Shuffled,
            Filter::Auto => Way::Learned(Learned::new()),
        };
        Part { compressor, way }
    }

    pub(super) fn compressor(&self) -> &dyn Compressor {
        &*self.compressor
    }

    /// Compresses a page and puts `tag` behind the object, with [`SHUFFLED`] if it is of the
    /// shuffle; the length with it.
    pub(super) fn compress(
        &self,
        tag: u8,
        page: &Page,
        out: &mut Output,
    ) -> Result<usize, CompressError> {
        let compress: Compress = |compressor, page, out| {
            let out = out.first_chunk_mut().expect("room for a page");
            let bytes = compressor.compress(page.try_into().expect("a page"), out)?;
            match bytes {
                1..PAGE_SIZE => Ok(bytes), // and the tag
                _ => Err(CompressError::of_length(bytes)),
            }
        };
        self.compress_by(compress, tag, page, out)
    }

    /// The same with a unit. The way is that of its first page's kind.
    pub(super) fn compress_unit(
        &self,
        tag: u8,
        pages: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CompressError> {
        let compress: Compress = |compressor, pages, out| {
            let most = out.len() - 1; // the tag is behind
            let bytes = compressor.compress_unit(pages, &mut out[..most])?;
            if !(1..=most).contains(&bytes) {
                return Err(CompressError::of_length(bytes));
            }
            Ok(bytes)
        };
        if out.is_empty() {
            return Err(CompressError::TooBig);
        }
        self.compress_by(compress, tag, pages, out)
    }

    fn compress_by(
        &self,
        compress: Compress,
        tag: u8,
        pages: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CompressError> {
        let plain = |tag, pages: &[u8], out: &mut [u8]| {
            let bytes = compress(&*self.compressor, pages, out)?;
            out[bytes] = tag;
            Ok(bytes + 1)
        };
        let shuffled = |out: &mut [u8]| {
            with_room(pages.len(), |room| {
                shuffle(pages, room);
                plain(tag | SHUFFLED, room, out)
            })
        };
        let learned = match &self.way {
            Way::Plain => return plain(tag, pages, out),
            Way::Shuffled => return shuffled(out),
            Way::Learned(learned) => learned,
        };
        let choice = learned.choose(pages.first_chunk().expect("whole pages"));
        let compress = |is_shuffled, out: &mut [u8]| match is_shuffled {
            true => shuffled(out),
            false => plain(tag, pages, out),
        };
        let chosen = compress(choice.is_shuffled, out);
        if !choice.tries_both {
            return chosen;
        }
        let mut other_out = vec![0; out.len()];
        let other = compress(!choice.is_shuffled, &mut other_out);
        let count = pages.len() / PAGE_SIZE;
        let length = |result: &Result<usize, _>| match result {
            Ok(bytes) => bytes / count,
            Err(_) => PAGE_SIZE + 1,
        };
        let (of_plain, of_shuffled) = match choice.is_shuffled {
            true => (length(&other), length(&chosen)),
            false => (length(&chosen), length(&other)),
        };
        let is_right = learned.note(&choice, of_plain, of_shuffled) == choice.is_shuffled;
        match other {
            Ok(bytes) if !is_right || chosen.is_err() => {
                out[..bytes].copy_from_slice(&other_out[..bytes]);
                Ok(bytes)
            }
            _ => chosen,
        }
    }

    /// Restores the page that became `object` and `tag`. Other bits than [`SHUFFLED`] say nothing
    /// here, and without a filter none does.
    pub(super) fn decompress(
        &self,
        object: &[u8],
        tag: u8,
        page: &mut Page,
    ) -> Result<(), Corrupt> {
        if tag & SHUFFLED == 0 {
            return self.compressor.decompress(object, page);
        }
        with_room(PAGE_SIZE, |room| {
            self.compressor.decompress(object, room.first_chunk_mut().expect("a page"))?;
            unshuffle(room, page);
            Ok(())
        })
    }

    /// The same with a unit.
    pub(super) fn decompress_unit(
        &self,
        object: &[u8],
        tag: u8,
        pages: &mut [u8],
    ) -> Result<(), Corrupt> {
        if tag & SHUFFLED == 0 {
            return self.compressor.decompress_unit(object, pages);
        }
        with_room(pages.len(), |room| {
            self.compressor.decompress_unit(object, room)?;
            unshuffle(room, pages);
            Ok(())
        })
    }
}

/// A compressor behind a filter. An object is a byte longer than that of the compressor.
#[derive(Debug)]
pub struct Filtered {
    part: Part,
    filter: Filter,
}

impl Filtered {
    /// Of one compressor. With two, [`Dual::filtered`] has one byte for both purposes.
    pub fn new(compressor: Box<dyn Compressor>, filter: Filter) -> Filtered {
        Filtered { part: Part::new(compressor, filter), filter }
    }
}

impl Compressor for Filtered {
    fn name(&self) -> String {
        self.filter.name_of(&self.part.compressor().name())
    }

    fn format(&self) -> ObjectFormat {
        ObjectFormat::Filtered(Box::new(self.part.compressor().format()))
    }

    fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        self.part.compress(0, page, out)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let (tag, object) = tag_of(object)?;
        self.part.decompress(object, tag, page)
    }

    fn unit_pages_max(&self) -> usize {
        self.part.compressor().unit_pages_max()
    }

    fn compress_unit(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        self.part.compress_unit(0, pages, out)
    }

    fn decompress_unit(&self, object: &[u8], pages: &mut [u8]) -> Result<(), Corrupt> {
        let (tag, object) = tag_of(object)?;
        self.part.decompress_unit(object, tag, pages)
    }
}

/// The last byte of an object, and the bytes before.
fn tag_of(object: &[u8]) -> Result<(u8, &[u8]), Corrupt> {
    match object.split_last() {
        Some((&tag @ (0 | SHUFFLED), object)) => Ok((tag, object)),
        Some((tag, _)) => {
            Err(Corrupt(format!("the object names filter {tag}; expected 0 or {SHUFFLED}")))
        }
        None => Err(Corrupt("the object is empty".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::compressor::OUTPUT_BYTES;
    use crate::random::SplitMix64;

    /// Words that share their upper bytes: the shuffle saves more than half.
    fn page_of_pointers(random: &mut SplitMix64) -> Page {
        let mut page = [0; PAGE_SIZE];
        for word in page.as_chunks_mut::<8>().0 {
            *word = (0x7f12_3400_0000 | random.next_word() & 0xff_fff8).to_le_bytes();
        }
        page
    }

    /// Text of few words: the shuffle loses.
    fn page_of_text(random: &mut SplitMix64) -> Page {
        let mut page = [0; PAGE_SIZE];
        let words = ["mapping ", "page ", "of ", "compressed ", "the ", "objects ", "zspage "];
        let mut at = 0;
        while at < PAGE_SIZE {
            let word = words[random.next_word() as usize % words.len()].as_bytes();
            let bytes = word.len().min(PAGE_SIZE - at);
            page[at..at + bytes].copy_from_slice(&word[..bytes]);
            at += bytes;
        }
        page
    }

    fn noise(random: &mut SplitMix64) -> Page {
        let mut page = [0; PAGE_SIZE];
        page.fill_with(|| random.next_word() as u8);
        page
    }

    fn lz4() -> Box<dyn Compressor> {
        CompressorKind::Lz4.build()
    }

    /// The object of a page, which every decoder of its format restores.
    fn object(codec: &dyn Compressor, page: &Page) -> Result<Vec<u8>, CompressError> {
        let (mut out, mut back) = ([0; OUTPUT_BYTES], [0; PAGE_SIZE]);
        let bytes = codec.compress(page, &mut out)?;
        for codec in [codec, &*codec.format().decoder().unwrap()] {
            codec.decompress(&out[..bytes], &mut back).unwrap();
            assert!(back == *page, "{}", codec.name());
        }
        Ok(out[..bytes].to_vec())
    }

    #[test]
    fn auto_stays_near_the_better_way_of_pages_that_take_turns() {
        let random = &mut SplitMix64::new(1);
        let codecs = Filter::ALL.map(|filter| filter.before(lz4(), None));
        let mut bytes = [0; 3];
        for number in 0..600 {
            let page = match number % 3 {
                0 => page_of_text(random),
                _ => page_of_pointers(random),
            };
            let [plain, shuffle, auto] =
                [0, 1, 2].map(|codec| object(&*codecs[codec], &page).unwrap().len());
            assert_eq!(plain < shuffle, number % 3 == 0, "{plain} and {shuffle} bytes");
            bytes[0] += plain.min(shuffle - 1);
            bytes[1] += auto - 1;
            bytes[2] += plain;
        }
        let [best, auto, plain] = bytes;
        assert!(auto * 100 < best * 101, "auto {auto} bytes, the better way {best}");
        assert!(auto * 3 < plain * 2, "auto {auto} bytes, plain {plain}");
        // A page that neither way compresses is refused, whatever was learned before.
        assert_eq!(object(&*codecs[2], &noise(random)), Err(CompressError::TooBig));
    }

    /// Counts.
    #[derive(Debug)]
    struct Counting(Box<dyn Compressor>, Arc<AtomicUsize>);

    impl Compressor for Counting {
        fn name(&self) -> String {
            self.0.name()
        }

        fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.compress(page, out)
        }

        fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
            self.0.decompress(object, page)
        }
    }

    #[test]
    fn both_objects_are_made_of_few_pages() {
        let calls = Arc::new(AtomicUsize::new(0));
        let auto = Filtered::new(Box::new(Counting(lz4(), Arc::clone(&calls))), Filter::Auto);
        let random = &mut SplitMix64::new(1);
        let mut asked = |page: fn(&mut SplitMix64) -> Page| {
            for _ in 0..4000 {
                let _ = auto.compress(&page(random), &mut [0; OUTPUT_BYTES]);
            }
            calls.swap(0, Ordering::Relaxed) - 4000
        };
        for page in [page_of_text, page_of_pointers, noise] {
            let both = asked(page);
            assert!((30..150).contains(&both), "both objects were made of {both} pages");
        }
    }

    #[test]
    fn objects_that_no_filter_made_are_corrupt() {
        let (random, page) = (&mut SplitMix64::new(1), &mut [0; PAGE_SIZE]);
        let pairs = |filter: Filter| filter.before(lz4(), Some(lz4()));
        let filtered = Filter::Shuffle.before(lz4(), None);
        for (codec, tags) in [
            (filtered, &[0, 4][..]),
            (pairs(Filter::None), &[0, 1, 2]),
            (pairs(Filter::Auto), &[0, 1, 2, 4, 5, 6]),
        ] {
            let mut object = object(&*codec, &page_of_text(random)).unwrap();
            for tag in 0..=u8::MAX {
                *object.last_mut().unwrap() = tag;
                let done = codec.decompress(&object, page);
                assert_eq!(done.is_ok(), tags.contains(&tag), "{}: {tag}", codec.name());
                for cut in (0..object.len() - 1).step_by(7) {
                    let mut object = object[..cut].to_vec();
                    assert!(codec.decompress(&object, page).is_err(), "{tag}, {cut} bytes");
                    object.push(tag);
                    assert!(codec.decompress(&object, page).is_err(), "{tag}, {cut} and 1 bytes");
                }
            }
        }
    }

    #[test]
    fn a_filtered_pair_says_all_in_one_byte() {
        let random = &mut SplitMix64::new(1);
        let pair = Dual::filtered(lz4(), CompressorKind::Lz4.build(), Filter::Shuffle);
        assert_eq!(pair.name(), "lz4+lz4~shuffle");
        let page = page_of_pointers(random);
        let alone = Filtered::new(lz4(), Filter::Shuffle);
        assert_eq!(alone.name(), "lz4~shuffle");
        assert_ne!(pair.format(), Dual::new(lz4(), lz4()).format());
        let (alone, fast) = (object(&alone, &page).unwrap(), object(&pair, &page).unwrap());
        assert_eq!((alone.len(), alone.last()), (fast.len(), fast.last()));
        let mut out = [0; OUTPUT_BYTES];
        let dense = pair.compress_densely(&page, &mut out).unwrap();
        assert_eq!(out[dense - 1], SHUFFLED | 1);
        let is_dense = [0, 1, 2].map(|tag| [tag, tag | SHUFFLED].map(|tag| pair.is_dense(&[tag])));
        assert_eq!(is_dense, [[false; 2], [true; 2], [true; 2]]);
    }
}
