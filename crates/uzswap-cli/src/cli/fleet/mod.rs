//! Commands for many machines: `uzswap sample` and `uzswap fleet`.

mod params;
mod replay;
pub(super) mod sample;
mod simulate;

use clap::Subcommand;
use uzswap_fleet::folder::FolderError;
use uzswap_fleet::table::hush_decoding;

use super::Failure;

/// What `uzswap fleet` is asked for.
#[derive(Debug, clap::Args)]
pub(super) struct Fleet {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Replay settings of a far-memory controller over all samples of a folder
    Replay(replay::Replay),
    /// Make machines of sampled processes, from a seed
    Simulate(simulate::Simulate),
}

impl Fleet {
    pub(super) fn run(self) -> Result<(), Failure> {
        hush_decoding();
        match self.task {
            Task::Replay(task) => task.run(),
            Task::Simulate(task) => task.run(),
        }
    }
}

/// The exit code of a file that was not read or not written.
fn failure(error: FolderError) -> Failure {
    match error {
        FolderError::NotATable { .. } => Failure::Check(error.into()),
        error => Failure::of(error.is_machine(), error),
    }
}

/// A hash as documents have it: JSON's numbers have 53 bits.
fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// A percentage of 0 to 100 in plain digits, with or without its sign.
fn parse_percent(text: &str) -> Option<f64> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    number.parse().ok().filter(|percent| is_plain && (0.0..=100.0).contains(percent))
}
