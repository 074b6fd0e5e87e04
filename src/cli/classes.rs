//! `uzswap classes`: the size classes of zsmalloc.

use super::Failure;

/// What `uzswap classes` is asked for.
#[derive(Debug, clap::Args)]
pub(super) struct Classes {}

impl Classes {
    pub(super) fn run(self) -> Result<(), Failure> {
        Ok(())
    }
}
