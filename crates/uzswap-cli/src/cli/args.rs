//! Code for flags that several commands share.

use anyhow::anyhow;
use clap::builder::RangedU64ValueParser;

use super::Failure;
use uzswap::compressor::CompressorKind;

/// A number of rounds, or of runs of each of several variants.
pub(super) fn rounds() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}

/// The values without repetitions.
pub(super) fn distinct<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut distinct = Vec::new();
    for &value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

/// Checks that the compressors take units of so many pages.
pub(super) fn check_units<'a>(
    pages: usize,
    compressors: impl IntoIterator<Item = &'a CompressorKind>,
) -> Result<(), Failure> {
    let refuses = |compressor: &&CompressorKind| compressor.build().unit_pages_max() < pages;
    let Some(compressor) = compressors.into_iter().find(refuses) else { return Ok(()) };
    Err(Failure::Usage(anyhow!(
        "compressor '{compressor}' takes one page at a time; use lz4, zstd or deflate with --unit"
    )))
}
