//! `--sample`: how much of a large memory is read.

use std::str::FromStr;

use super::size::parse_size;
use crate::corpus::sample::SamplePlan;
use uzswap::page::PAGE_SIZE;

/// How much to read, as it is given on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampleSize {
    /// Everything.
    All,
    /// About so many bytes where there are more.
    Bytes(u64),
}

impl Default for SampleSize {
    fn default() -> SampleSize {
        SampleSize::Bytes(1 << 30)
    }
}

impl FromStr for SampleSize {
    type Err = String;

    fn from_str(text: &str) -> Result<SampleSize, String> {
        const BYTES_MIN: u64 = 1 << 20; // a smaller one says nothing
        if text == "all" {
            return Ok(SampleSize::All);
        }
        match parse_size(text)? as u64 {
            bytes @ BYTES_MIN.. => Ok(SampleSize::Bytes(bytes)),
            bytes => Err(format!(
                "a sample of {bytes} bytes is below the least of {}M; give a larger size, or all",
                BYTES_MIN >> 20
            )),
        }
    }
}

/// The plan for a sample of this size, or of the default's, drawn with `seed`.
pub(super) fn plan(size: Option<SampleSize>, seed: u64) -> SamplePlan {
    let pages_max = match size.unwrap_or_default() {
        SampleSize::All => None,
        SampleSize::Bytes(bytes) => Some(bytes / PAGE_SIZE as u64),
    };
    SamplePlan { pages_max, seed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_all_or_a_mebibyte_at_least() {
        assert_eq!("all".parse(), Ok(SampleSize::All));
        assert_eq!("1M".parse(), Ok(SampleSize::Bytes(1 << 20)));
        for (text, word) in
            [("0", "at least 1 byte"), ("100", "least of 1M"), ("1023K", "least of 1M")]
        {
            let error = text.parse::<SampleSize>().unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        assert!("ALL".parse::<SampleSize>().unwrap_err().contains("expected a size"));
        assert_eq!(plan(None, 3), SamplePlan { pages_max: Some(1 << 18), seed: 3 });
        assert_eq!(plan(Some(SampleSize::All), 3).pages_max, None);
    }
}
