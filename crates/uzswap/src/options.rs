//! Options: a setter for each, and the error of one that is out of its range.

use thiserror::Error;

/// An option out of its range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{option} must be {range}, got {given}")]
pub struct OptionError {
    /// The option's name.
    pub option: &'static str,
    /// Its range, in words.
    pub range: &'static str,
    /// The value given.
    pub given: u64,
}

impl OptionError {
    /// Checks an option; `is_valid` says whether `given` is in its range.
    pub(crate) fn check(
        is_valid: bool,
        option: &'static str,
        range: &'static str,
        given: usize,
    ) -> Result<(), OptionError> {
        match is_valid {
            true => Ok(()),
            false => Err(OptionError { option, range, given: given as u64 }),
        }
    }
}

/// Gives options a setter for each field, of the same name: `Options::default().shards(4)`.
macro_rules! setters {
    ($type:ident, $($field:ident: $value:ty),+ $(,)?) => {
        impl $type {
            $(
                #[doc = concat!(
                    "The same options with another [`", stringify!($field), "`](field@",
                    stringify!($type), "::", stringify!($field), ")."
                )]
                #[must_use]
                pub fn $field(mut self, $field: $value) -> $type {
                    self.$field = $field;
                    self
                }
            )+
        }
    };
}

pub(crate) use setters;

/// Writes and reads choices by the names that a command line takes.
#[cfg(feature = "serde")]
mod by_name {
    use std::fmt;
    use std::marker::PhantomData;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error, Visitor};
    use serde::ser::{Serialize, Serializer};

    struct Name<T>(PhantomData<T>);

    impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Name<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a name")
        }

        fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
            name.parse().map_err(E::custom)
        }
    }

    macro_rules! by_name {
        ($($type:ty),+ $(,)?) => {
            $(
                impl Serialize for $type {
                    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                        serializer.collect_str(self)
                    }
                }

                impl<'a> Deserialize<'a> for $type {
                    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
                        from.deserialize_str(Name(PhantomData))
                    }
                }
            )+
        };
    }

    by_name!(
        crate::backing::Direct,
        crate::backing::Submission,
        crate::budget::Counted,
        crate::compressor::CompressorKind,
        crate::index::IndexKind,
        crate::same_filled::SameFilledCheck,
        crate::zpool::HostPages,
        crate::zpool::ZpoolKind,
        crate::zpool::zsmalloc::ChainRule,
        crate::zpool::zsmalloc::HandleHeader,
        crate::zpool::zsmalloc::ObjectMapping,
        crate::zswap::Incompressible,
        crate::zswap::Lru,
        crate::zswap::WhenFull,
        crate::zswap::WrittenAs,
    );
}
