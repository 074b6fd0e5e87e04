//! The check of `--filter`, for the commands that have it.

use anyhow::anyhow;

use super::Failure;
use uzswap::compressor::{CompressorKind, Filter};

/// Refuses a filter before `none`: with the tag of a filter no page would fit a page.
pub(super) fn check_filter(
    compressors: &[CompressorKind],
    filters: &[Filter],
) -> Result<(), Failure> {
    match filters.iter().find(|filter| !filter.is_none()) {
        Some(filter) if compressors.contains(&CompressorKind::None) => {
            Err(Failure::Usage(anyhow!(
                "--filter {filter} does not work with --compressor none; choose another compressor"
            )))
        }
        _ => Ok(()),
    }
}
