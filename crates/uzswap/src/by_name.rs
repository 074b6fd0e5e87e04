//! Choices in what serde writes and reads: by the names that a command line takes.

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
