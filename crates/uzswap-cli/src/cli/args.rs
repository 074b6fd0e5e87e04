//! Code for flags that several commands share.

use std::time::Duration;

use anyhow::anyhow;
use clap::builder::RangedU64ValueParser;

use super::Failure;
use crate::report::format::once_each;
use uzswap::compressor::CompressorKind;

/// A number of rounds, or of runs of each of several variants.
pub(super) fn rounds() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}

/// The values without repetitions.
pub(super) fn distinct<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    once_each(values.iter().copied())
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

/// Parses `500ms`, `90s`, `10m`, `2h`.
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time with ms, s, m or h, such as 90s".to_owned();
    parse_any_time(text).filter(|time| !time.is_zero()).ok_or_else(expected)
}

/// The same, of times that may be 0.
pub(super) fn parse_any_time(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(at);
    let factor = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * factor).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_any_time("0s"), Some(Duration::ZERO));
        for wrong in ["90", "0s", "s", "1d", "-1s", "1.2.3s", "99999999999999999999h"] {
            assert!(parse_time(wrong).unwrap_err().contains("such as 90s"), "{wrong}");
        }
    }
}
