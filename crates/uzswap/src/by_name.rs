//! Choices in what serde writes and reads: by the names that a command line takes.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Error, Visitor};

/// Reads a name.
#[derive(Debug)]
pub struct Name<T>(pub PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Name<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
        name.parse().map_err(E::custom)
    }
}

/// Has serde write and read types by their names.
#[doc(hidden)]
#[macro_export]
macro_rules! by_name {
    ($($type:ty),+ $(,)?) => {
        $(
            impl serde::Serialize for $type {
                fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                    to.collect_str(self)
                }
            }

            impl<'a> serde::Deserialize<'a> for $type {
                fn deserialize<D: serde::Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
                    from.deserialize_str($crate::by_name::Name(std::marker::PhantomData))
                }
            }
        )+
    };
}

pub use by_name;

by_name!(
    crate::backing::Direct,
    crate::backing::Submission,
    crate::budget::Counted,
    crate::compressor::CompressorKind,
    crate::compressor::Filter,
    crate::compressor::FilteredKind,
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
