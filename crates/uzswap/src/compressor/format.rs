//! The format of objects: which decoder reads which bytes, and by which tag.
//!
//! ```text
//!  compressor          format         a decoder reads it if
//!  zstd:1, zstd:19     zstd           it is zstd's, of any level
//!  lzo, lzo-rle        lzo            it is LZO's: a stream says itself which of the two it is
//!  lz4+zstd:3          (lz4, zstd)    it is this pair's: the last byte says which of the two
//!  lz4~auto            filtered lz4   the same: the last byte says if it is of a shuffled page
//!  lz4+zstd:3~auto     filtered (..)  the last byte says both
//!  one of others       by its name    its name is the same
//! ```
//!
//! Two compressors read each other's objects exactly if their formats are equal. Parameters that
//! only the encoder uses (levels, which filter) are not part of a format; a tag is.

use std::fmt;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::{Compressor, CompressorKind, Dual, Filter, Filtered};

/// The format of a compressor's objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum ObjectFormat {
    /// An LZ4 block.
    Lz4,
    /// An LZO1X stream, with or without runs of zeros.
    Lzo,
    /// A zstd frame.
    Zstd,
    /// A raw deflate stream.
    Deflate,
    /// The page.
    None,
    /// An object of the first or the second format, and a byte that says which: 0 to 2.
    Pair(Box<(ObjectFormat, ObjectFormat)>),
    /// An object of this format, of the page or of its shuffle, and a byte that says which: 0 or 4.
    Filtered(Box<ObjectFormat>),
    /// As `Pair`, and 4 more in its byte where the object is of the page's shuffle.
    FilteredPair(Box<(ObjectFormat, ObjectFormat)>),
    /// The format of a compressor of others, whose name no other compressor may have.
    Other(String),
}

impl ObjectFormat {
    /// The format that snapshots of version 1 mean by a compressor's name: all that they tell.
    pub(crate) fn of_name(name: &str) -> ObjectFormat {
        let of_kind = |name: &str| name.parse().ok().map(CompressorKind::format);
        let of_pair = || {
            let (fast, dense) = name.split_once('+')?;
            Some(ObjectFormat::Pair(Box::new((of_kind(fast)?, of_kind(dense)?))))
        };
        of_kind(name).or_else(of_pair).unwrap_or_else(|| ObjectFormat::Other(name.to_owned()))
    }

    /// A compressor of this crate that reads objects of this format; `None` where it has none, or
    /// where the feature of that compressor is off.
    pub fn decoder(&self) -> Option<Box<dyn Compressor>> {
        let kind = match self {
            ObjectFormat::Lz4 => CompressorKind::Lz4,
            #[cfg(feature = "lzo")]
            ObjectFormat::Lzo => CompressorKind::Lzo,
            #[cfg(feature = "zstd")]
            ObjectFormat::Zstd => CompressorKind::Zstd(super::zstd::LEVEL_DEFAULT),
            #[cfg(feature = "deflate")]
            ObjectFormat::Deflate => CompressorKind::Deflate(super::deflate::LEVEL_DEFAULT),
            ObjectFormat::None => CompressorKind::None,
            ObjectFormat::Pair(both) => {
                return Some(Box::new(Dual::new(both.0.decoder()?, both.1.decoder()?)));
            }
            ObjectFormat::Filtered(one) => {
                return Some(Box::new(Filtered::new(one.decoder()?, Filter::Shuffle)));
            }
            ObjectFormat::FilteredPair(both) => {
                let (fast, dense) = (both.0.decoder()?, both.1.decoder()?);
                return Some(Box::new(Dual::filtered(fast, dense, Filter::Shuffle)));
            }
            ObjectFormat::Other(_) => return None,
            #[allow(unreachable_patterns, reason = "with all features there are no others")]
            _ => return None,
        };
        Some(kind.build())
    }

    /// Whether its objects have two degrees of density.
    pub(crate) fn is_pair(&self) -> bool {
        matches!(self, ObjectFormat::Pair(_) | ObjectFormat::FilteredPair(_))
    }
}

impl fmt::Display for ObjectFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectFormat::Lz4 => f.write_str("lz4"),
            ObjectFormat::Lzo => f.write_str("lzo"),
            ObjectFormat::Zstd => f.write_str("zstd"),
            ObjectFormat::Deflate => f.write_str("deflate"),
            ObjectFormat::None => f.write_str("none"),
            ObjectFormat::Pair(both) => write!(f, "({}, {})", both.0, both.1),
            ObjectFormat::Filtered(one) => write!(f, "filtered {one}"),
            ObjectFormat::FilteredPair(both) => write!(f, "filtered ({}, {})", both.0, both.1),
            ObjectFormat::Other(name) => write!(f, "'{name}'"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(fast: ObjectFormat, dense: ObjectFormat) -> ObjectFormat {
        ObjectFormat::Pair(Box::new((fast, dense)))
    }

    #[test]
    fn levels_are_no_part_of_a_format_and_a_tag_is() {
        let of = ObjectFormat::of_name;
        assert_eq!(of("zstd:1"), of("zstd"));
        assert_eq!(of("lzo"), of("lzo-rle"));
        assert_eq!(of("zstd:1+zstd:3"), pair(ObjectFormat::Zstd, ObjectFormat::Zstd));
        assert_ne!(of("zstd:1+zstd:3"), of("zstd:1"));
        assert_ne!(of("lz4+zstd"), of("zstd+lz4"));
    }

    #[test]
    fn unknown_names_are_of_others() {
        for name in ["zstd:dictionary", "lz4+mine", "mine", "", "zstd:1+", "lz4+lz4+lz4"] {
            let format = ObjectFormat::of_name(name);
            assert_eq!(format, ObjectFormat::Other(name.to_owned()));
            assert!(format.decoder().is_none());
        }
    }

    #[test]
    fn a_decoder_has_the_format_that_it_reads() {
        let names = ["lz4", "lzo", "lzo-rle", "zstd:19", "deflate:1", "none", "lzo+deflate:9"];
        for format in names.map(ObjectFormat::of_name) {
            assert_eq!(format.decoder().unwrap().format(), format);
            let nested = pair(format.clone(), pair(format.clone(), ObjectFormat::Lz4));
            assert_eq!(nested.decoder().unwrap().format(), nested);
            let both = Box::new((nested.clone(), ObjectFormat::Filtered(Box::new(nested))));
            let nested = ObjectFormat::FilteredPair(both);
            assert_eq!(nested.decoder().unwrap().format(), nested);
            let json = serde_json::to_string(&nested).unwrap();
            assert_eq!(serde_json::from_str::<ObjectFormat>(&json).unwrap(), nested, "{json}");
        }
    }

    #[test]
    fn objects_of_two_compressors_have_two_degrees_of_density() {
        for name in ["lz4+zstd", "zstd:1+zstd:19", "lz4+lz4"] {
            assert!(ObjectFormat::of_name(name).is_pair(), "{name}");
        }
        for name in ["lz4", "lzo-rle", "zstd:3", "deflate", "none", "mine", "lz4+mine"] {
            assert!(!ObjectFormat::of_name(name).is_pair(), "{name}");
        }
    }
}
