//! The compressors, behind one interface.
//!
//! Each keeps its working state per thread and uses it again from page to page.

#[cfg(feature = "deflate")]
mod deflate;
mod dual;
mod filter;
mod format;
mod learned;
mod lz4;
#[cfg(feature = "lzo")]
mod lzo;
mod none;
#[cfg(feature = "zstd")]
mod zstd;

use std::fmt;
use std::str::FromStr;

pub use dual::Dual;
pub use filter::{Filter, Filtered, FilteredKind};
pub use format::ObjectFormat;
use thiserror::Error;

use crate::named_enum::UnknownName;
use crate::page::{PAGE_SIZE, Page};

/// Room a compressor is given: more than any of them makes of one page, so that none has to look
/// for the end on every byte. A result over [`PAGE_SIZE`] counts as not fitting.
pub const OUTPUT_BYTES: usize = PAGE_SIZE + PAGE_SIZE / 16 + 64; // 4416

/// That room.
pub type Output = [u8; OUTPUT_BYTES];

/// The most pages of a unit: 64 KiB.
pub const UNIT_PAGES_MAX: usize = 16;

/// A page compressor. Shared by threads. A compressor must not call its own store.
pub trait Compressor: Send + Sync + fmt::Debug {
    /// The name it is chosen by, with its level where it was given one.
    fn name(&self) -> String;

    /// The format of its objects. Where it is equal to that of another compressor, each must read
    /// what the other made: snapshots are restored by that.
    fn format(&self) -> ObjectFormat {
        ObjectFormat::Other(self.name())
    }

    /// Compresses `page` to the start of `out`; the compressed length, 1 to [`PAGE_SIZE`].
    ///
    /// # Errors
    ///
    /// [`CompressError`]; `out` then holds nothing of use.
    fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError>;

    /// The same, for a page that is to take little room, whatever the time: where this is two
    /// compressors ([`Dual`]), by the other one.
    ///
    /// # Errors
    ///
    /// As [`Compressor::compress`].
    fn compress_densely(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        self.compress(page, out)
    }

    /// Whether [`Compressor::compress_densely`] would make the same of the page that became
    /// `object`.
    fn is_dense(&self, _object: &[u8]) -> bool {
        true
    }

    /// Restores the page that became `object`.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] where `object` is not the compressed form of exactly one page. The content of
    /// `page` is unspecified then.
    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt>;

    /// The most pages that it compresses together, as one object: 1 where it takes one page only.
    fn unit_pages_max(&self) -> usize {
        1
    }

    /// Compresses a unit to the start of `out`: 2 to [`Compressor::unit_pages_max`] whole pages,
    /// one after the other. The compressed length, 1 to `out.len()`.
    ///
    /// # Errors
    ///
    /// [`CompressError`]; `out` then holds nothing of use.
    fn compress_unit(&self, _pages: &[u8], _out: &mut [u8]) -> Result<usize, CompressError> {
        Err(CompressError::Failed(format!("{} takes one page at a time", self.name())))
    }

    /// The same, for a unit that is to take little room, whatever the time.
    ///
    /// # Errors
    ///
    /// As [`Compressor::compress_unit`].
    fn compress_unit_densely(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        self.compress_unit(pages, out)
    }

    /// Restores the unit that became `object`: as many pages as `pages` has room for.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] where `object` is not the compressed form of exactly so many pages. The content
    /// of `pages` is unspecified then.
    fn decompress_unit(&self, _object: &[u8], _pages: &mut [u8]) -> Result<(), Corrupt> {
        Err(Corrupt(format!("{} makes one page at a time", self.name())))
    }
}

/// A compressor that makes a unit as it makes a page.
trait UnitCompressor: Send + Sync + fmt::Debug {
    fn kind(&self) -> CompressorKind;

    fn compress_pages(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError>;

    fn decompress_pages(&self, object: &[u8], pages: &mut [u8]) -> Result<(), Corrupt>;
}

impl<C: UnitCompressor> Compressor for C {
    fn name(&self) -> String {
        self.kind().to_string()
    }

    fn format(&self) -> ObjectFormat {
        self.kind().format()
    }

    fn compress(&self, page: &Page, out: &mut Output) -> Result<usize, CompressError> {
        fitting(self.compress_pages(page, out)?)
    }

    fn decompress(&self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        self.decompress_pages(object, page)
    }

    fn unit_pages_max(&self) -> usize {
        UNIT_PAGES_MAX
    }

    fn compress_unit(&self, pages: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        self.compress_pages(pages, out)
    }

    fn decompress_unit(&self, object: &[u8], pages: &mut [u8]) -> Result<(), Corrupt> {
        self.decompress_pages(object, pages)
    }
}

/// Why a page was not compressed.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CompressError {
    /// The result would be larger than the page.
    #[error("the compressed page exceeds 4096 bytes")]
    TooBig,
    /// The compressor itself failed.
    #[error("the compressor failed: {0}")]
    Failed(String),
}

/// The object is not the compressed form of a page.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("not a compressed page: {0}")]
pub struct Corrupt(pub String);

impl Corrupt {
    fn length(bytes: usize, expected: usize) -> Corrupt {
        Corrupt(format!("the object decompresses to {bytes} bytes instead of {expected}"))
    }
}

impl CompressError {
    /// The error for a length that no object has: over a page, 0, or over the room.
    pub(crate) fn of_length(bytes: usize) -> CompressError {
        match bytes {
            0 => CompressError::Failed("it returned an object of 0 bytes".to_owned()),
            1..=OUTPUT_BYTES => CompressError::TooBig,
            _ => CompressError::Failed(format!(
                "it returned {bytes} bytes in a buffer of {OUTPUT_BYTES}"
            )),
        }
    }
}

/// Checks the length of pages that were restored.
fn restored(bytes: usize, pages: &[u8]) -> Result<(), Corrupt> {
    if bytes == pages.len() { Ok(()) } else { Err(Corrupt::length(bytes, pages.len())) }
}

/// A result's length, if it is one that is kept.
fn fitting(bytes: usize) -> Result<usize, CompressError> {
    if bytes <= PAGE_SIZE { Ok(bytes) } else { Err(CompressError::TooBig) }
}

/// The compressors, by name. `zstd` and `deflate` take a level after a colon: `zstd:19`.
///
/// Each but `lz4` and `none` needs the feature of its name.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompressorKind {
    /// liblz4's fast compressor at acceleration 1.
    Lz4,
    #[cfg(feature = "lzo")]
    /// LZO1X-1 as in the kernel; of our own.
    Lzo,
    #[cfg(feature = "lzo")]
    /// The kernel's LZO1X-1 with runs of zeros, zram's default there; of our own.
    LzoRle,
    #[cfg(feature = "zstd")]
    /// libzstd at this level.
    Zstd(i32),
    #[cfg(feature = "deflate")]
    /// Raw deflate by libdeflate at this level.
    Deflate(i32),
    /// No compression: every page is an object of 4096 bytes.
    None,
}

impl CompressorKind {
    /// The names there are, by the features that are on.
    pub const NAMES: &'static [&'static str] = &[
        "lz4",
        #[cfg(feature = "lzo")]
        "lzo",
        #[cfg(feature = "lzo")]
        "lzo-rle",
        #[cfg(feature = "zstd")]
        "zstd",
        #[cfg(feature = "deflate")]
        "deflate",
        "none",
    ];

    /// The format of its objects.
    pub fn format(self) -> ObjectFormat {
        match self {
            CompressorKind::Lz4 => ObjectFormat::Lz4,
            #[cfg(feature = "lzo")]
            CompressorKind::Lzo | CompressorKind::LzoRle => ObjectFormat::Lzo,
            #[cfg(feature = "zstd")]
            CompressorKind::Zstd(_) => ObjectFormat::Zstd,
            #[cfg(feature = "deflate")]
            CompressorKind::Deflate(_) => ObjectFormat::Deflate,
            CompressorKind::None => ObjectFormat::None,
        }
    }

    /// The compressor.
    pub fn build(self) -> Box<dyn Compressor> {
        match self {
            CompressorKind::Lz4 => Box::new(lz4::Lz4),
            #[cfg(feature = "lzo")]
            CompressorKind::Lzo => Box::new(lzo::Lzo { runs: false }),
            #[cfg(feature = "lzo")]
            CompressorKind::LzoRle => Box::new(lzo::Lzo { runs: true }),
            #[cfg(feature = "zstd")]
            CompressorKind::Zstd(level) => Box::new(zstd::Zstd::new(level)),
            #[cfg(feature = "deflate")]
            CompressorKind::Deflate(level) => Box::new(deflate::Deflate::new(level)),
            CompressorKind::None => Box::new(none::NoCompression),
        }
    }
}

impl fmt::Display for CompressorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompressorKind::Lz4 => f.write_str("lz4"),
            #[cfg(feature = "lzo")]
            CompressorKind::Lzo => f.write_str("lzo"),
            #[cfg(feature = "lzo")]
            CompressorKind::LzoRle => f.write_str("lzo-rle"),
            #[cfg(feature = "zstd")]
            CompressorKind::Zstd(zstd::LEVEL_DEFAULT) => f.write_str("zstd"),
            #[cfg(feature = "zstd")]
            CompressorKind::Zstd(level) => write!(f, "zstd:{level}"),
            #[cfg(feature = "deflate")]
            CompressorKind::Deflate(deflate::LEVEL_DEFAULT) => f.write_str("deflate"),
            #[cfg(feature = "deflate")]
            CompressorKind::Deflate(level) => write!(f, "deflate:{level}"),
            CompressorKind::None => f.write_str("none"),
        }
    }
}

/// Why a compressor's name was not understood.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CompressorNameError {
    /// No such compressor.
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    /// A level that the compressor does not have.
    #[error("level of compressor '{name}' must be {min} to {max}, got '{level}'")]
    Level {
        /// The compressor.
        name: String,
        /// What was given.
        level: String,
        /// Its lowest level.
        min: i32,
        /// Its highest level.
        max: i32,
    },
    /// A level for a compressor that has none.
    #[error("compressor '{0}' has no levels")]
    NoLevels(String),
    /// A compressor whose feature is off.
    #[error("compressor '{0}' is not built in; enable its feature of the crate uzswap")]
    NotBuilt(String),
}

impl FromStr for CompressorKind {
    type Err = CompressorNameError;

    fn from_str(text: &str) -> Result<Self, CompressorNameError> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        #[cfg(any(feature = "zstd", feature = "deflate"))]
        let in_range = |default: i32, (min, max): (i32, i32)| match level {
            None => Ok(default),
            Some(level) => {
                level.parse().ok().filter(|number| (min..=max).contains(number)).ok_or_else(|| {
                    CompressorNameError::Level {
                        name: name.to_owned(),
                        level: level.to_owned(),
                        min,
                        max,
                    }
                })
            }
        };
        match (name, level) {
            #[cfg(feature = "zstd")]
            ("zstd", _) => in_range(zstd::LEVEL_DEFAULT, zstd::levels()).map(CompressorKind::Zstd),
            #[cfg(feature = "deflate")]
            ("deflate", _) => {
                in_range(deflate::LEVEL_DEFAULT, deflate::LEVELS).map(CompressorKind::Deflate)
            }
            ("lz4", None) => Ok(CompressorKind::Lz4),
            #[cfg(feature = "lzo")]
            ("lzo", None) => Ok(CompressorKind::Lzo),
            #[cfg(feature = "lzo")]
            ("lzo-rle", None) => Ok(CompressorKind::LzoRle),
            ("none", None) => Ok(CompressorKind::None),
            ("lz4" | "none", Some(_)) => Err(CompressorNameError::NoLevels(name.to_owned())),
            #[cfg(feature = "lzo")]
            ("lzo" | "lzo-rle", Some(_)) => Err(CompressorNameError::NoLevels(name.to_owned())),
            #[allow(unreachable_patterns, reason = "with its feature, it is matched above")]
            ("lzo" | "lzo-rle" | "zstd" | "deflate", _) => {
                Err(CompressorNameError::NotBuilt(name.to_owned()))
            }
            _ => Err(UnknownName {
                what: "compressor",
                name: name.to_owned(),
                known: CompressorKind::NAMES.join(", "),
            }
            .into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_refused_is_told_with_the_reason() {
        for (text, told) in [
            ("lz4:1", "compressor 'lz4' has no levels"),
            ("none:", "compressor 'none' has no levels"),
            #[cfg(feature = "lzo")]
            ("lzo:1", "compressor 'lzo' has no levels"),
            #[cfg(feature = "lzo")]
            ("lzo-rle:9", "compressor 'lzo-rle' has no levels"),
            #[cfg(feature = "deflate")]
            ("deflate:13", "level of compressor 'deflate' must be 0 to 12, got '13'"),
            #[cfg(feature = "deflate")]
            ("deflate:", "level of compressor 'deflate' must be 0 to 12, got ''"),
        ] {
            assert_eq!(text.parse::<CompressorKind>().unwrap_err().to_string(), told);
        }
        for text in ["", "lz5", "lz5:1", ":1"] {
            let error = text.parse::<CompressorKind>().unwrap_err();
            assert!(matches!(error, CompressorNameError::Unknown(_)), "{text}: {error}");
        }
    }

    /// A thread keeps its working state from page to page, and each level has its own.
    #[cfg(all(feature = "zstd", feature = "deflate"))]
    #[test]
    fn levels_that_take_turns_give_the_lengths_that_each_gives_alone() {
        fn length(kind: CompressorKind) -> usize {
            let mut words = crate::random::SplitMix64::new(1);
            let mut page = [0; PAGE_SIZE];
            for at in 0..PAGE_SIZE {
                let word = words.next_word() as usize;
                let again = page[at.saturating_sub(1 + word % 300)];
                page[at] = if word >> 32 & 3 == 0 { (word >> 40) as u8 } else { again };
            }
            kind.build().compress(&page, &mut [0; OUTPUT_BYTES]).unwrap()
        }
        let alone = |kind| std::thread::spawn(move || length(kind)).join().unwrap();
        for kinds in [
            [CompressorKind::Deflate(1), CompressorKind::Deflate(12)],
            [CompressorKind::Zstd(1), CompressorKind::Zstd(19)],
        ] {
            let [fast, dense] = kinds.map(alone);
            assert!(dense < fast, "{kinds:?}: {fast} and {dense} bytes");
            let turns = [0, 1, 0, 0, 1, 1].map(|level| length(kinds[level]));
            assert_eq!(turns, [fast, dense, fast, fast, dense, dense], "{kinds:?}");
        }
    }
}
