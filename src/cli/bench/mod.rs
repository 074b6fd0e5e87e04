//! `uzswap bench STUDY`: one part of the store at a time, beside its rivals.

mod map;
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
    /// Map and unmap an object that crosses a page border, by every method
    Map(map::Map),
    /// Compare the checks for same-filled pages
    SameFilled(same_filled::SameFilled),
}

impl Bench {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.study {
            Study::Map(study) => study.run(),
            Study::SameFilled(study) => study.run(),
        }
    }
}
