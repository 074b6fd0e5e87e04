//! `uzswap bench STUDY`: one part of the store at a time, beside its rivals.

mod same_filled;

use clap::Subcommand;

use super::Failure;

/// What `uzswap bench` is asked for.
#[derive(Debug, clap::Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    study: Study,
}

#[derive(Debug, Subcommand)]
enum Study {
    /// Compare the checks for same-filled pages
    SameFilled(same_filled::SameFilled),
}

impl Bench {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.study {
            Study::SameFilled(study) => study.run(),
        }
    }
}
