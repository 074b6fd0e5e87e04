//! `uzswap bench STUDY`: benchmarks of single parts of the store, beside their rivals.

pub(super) mod index;
mod map;
mod same_filled;
pub(super) mod swapload;

use std::io;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Subcommand;

use super::Failure;
use super::corpus::bar;
use crate::lab::study::{Spread, StudyError};
use uzswap_sys::interrupt;

/// What `uzswap bench` is asked for.
#[derive(Debug, clap::Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    study: Study,
}

#[derive(Debug, Subcommand)]
enum Study {
    /// Compare the indexes: time an operation, memory an entry
    Index(index::IndexArgs),
    /// Map and unmap an object that crosses a page border, by every method
    Map(map::Map),
    /// Compare the checks for same-filled pages
    SameFilled(same_filled::SameFilled),
    /// Check whether a faster index speeds up swapping: the setting of the 2019 study
    Swapload(swapload::SwaploadArgs),
}

impl Bench {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.study {
            Study::Index(study) => study.run(),
            Study::Map(study) => study.run(),
            Study::SameFilled(study) => study.run(),
            Study::Swapload(study) => study.run(),
        }
    }
}

/// The result of an inner command, which does one run of a study.
fn answer(study: &str, done: io::Result<()>) -> Result<(), Failure> {
    done.with_context(|| format!("this hidden command reads its task from `uzswap bench {study}`"))
        .map_err(Failure::Machine)
}

/// Runs a study with a bar on standard error, if that is a terminal. An interrupt has its effect
/// once the study's children are gone.
fn with_progress<T>(
    study: impl FnOnce(&mut dyn FnMut(usize, usize, &str)) -> Result<T, StudyError>,
) -> Result<T, Failure> {
    interrupt::watch().context("cannot install signal handlers").map_err(Failure::Machine)?;
    let bar = bar(0, "{elapsed:>4} [{bar:30}] {pos}/{len}  {msg}");
    bar.enable_steady_tick(Duration::from_millis(250));
    let result = study(&mut |done, total, next| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(next.to_owned());
    });
    bar.finish_and_clear();
    interrupt::end_if_noted();
    result.map_err(|error| match error {
        StudyError::Check { .. } => Failure::Check(error.into()),
        StudyError::Machine { .. } | StudyError::Interrupted => Failure::Machine(error.into()),
    })
}

/// Seconds from 0.01 to 3600.
///
/// # Errors
///
/// It is no number of that range.
pub fn parse_seconds(text: &str) -> Result<Duration, anyhow::Error> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(anyhow!("seconds must be 0.01 to 3600, such as 1 or 0.5")),
    }
}

/// A figure to three digits: `8.24`, `82.4`, `824`.
fn three_digits(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        9.995..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A median with its range: `5.88 (5.2-6.6)`.
fn with_range(spread: Spread) -> String {
    let end = |value: f64| if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") };
    format!("{} ({}-{})", three_digits(spread.median), end(spread.min), end(spread.max))
}
