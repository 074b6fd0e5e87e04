//! The flags of pools with limits.

use std::fs;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::builder::RangedU64ValueParser;

use super::Failure;
use super::args::distinct;
use super::size::{parse_max_pool, parse_percent, parse_size};
use crate::measure::experiment::Experiment;
use crate::measure::limited_pool::{
    AccessSettings, BackingFile, LimitSettings, Limits, MaxPool, ShrinkerMode,
};
use uzswap::backing::BackingError;
use uzswap::page::PAGE_SIZE;
use uzswap::zswap::{Lru, WhenFull, WrittenAs};

/// Blocks beside one for each page: the header, and room for batches that find no run long enough.
const SPARE_BLOCKS: u64 = 1 << 8;

/// Accesses to each page, on average.
const ACCESSES_PER_PAGE: u64 = 4;

/// What a pool is limited to.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// Pool limits: 512M, 20% of memory, none. Adds accesses by Zipf's law
    ///
    /// Every page is stored, then pages are asked for by Zipf's law: how many of them the pool
    /// answers, and how fast. "none" is a pool without limit, to compare with.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_max_pool)]
    max_pool: Vec<MaxPool>,
    /// File for cold pages; created and removed, unless it is a block device
    ///
    /// Without it a full pool refuses pages. A file that is there must be one of ours, or empty; a
    /// block device must have our mark. Each run opens it anew.
    #[arg(long, value_name = "FILE")]
    backing: Option<PathBuf>,
    /// Bytes to take of it [default: enough for all pages]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "backing",
          hide_short_help = true)]
    backing_size: Option<usize>,
    /// Eviction orders: second-chance (default), frequency, plain, protected
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    lru: Vec<Lru>,
    /// Shrinker threads, which write back early: off (default), on, dynamic
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    shrinker: Vec<ShrinkerMode>,
    /// A store that finds the pool full: reclaim (default), or bypass to the backing
    ///
    /// reclaim: it writes back the coldest pages itself until there is room. bypass: its page goes
    /// to the backing, as those of all others do until the pool is below the accept threshold.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', hide_short_help = true)]
    when_full: Vec<WhenFull>,
    /// Form of written pages: pages (default), or objects as they are in the pool
    #[arg(long, value_name = "NAMES", value_delimiter = ',', hide_short_help = true)]
    written_as: Vec<WrittenAs>,
    /// Percent of the limit below which a full pool takes pages again [default: 90]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, hide_short_help = true)]
    accept_threshold: Option<u8>,
    /// A checksum of each object: on or off (default)
    #[arg(long, value_name = "ON|OFF", value_parser = parse_switch, hide_short_help = true)]
    checksum: Option<bool>,
    /// Accesses after the stores [default: 4 for each page]
    #[arg(long, value_name = "N", hide_short_help = true,
          value_parser = RangedU64ValueParser::<u64>::new().range(1..=1 << 40))]
    accesses: Option<u64>,
    /// Skew of the accesses: page of rank k in proportion to 1/k^SKEW [default: 0.99]
    #[arg(long, value_name = "SKEW", value_parser = parse_skew, hide_short_help = true)]
    skew: Option<f64>,
    /// A load takes the page out, and it is stored again: swap-in and swap-out
    #[arg(long, hide_short_help = true)]
    exclusive: bool,
}

impl LimitArgs {
    /// Checks that the flags fit together.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let given = [
            ("--backing", self.backing.is_some()),
            ("--lru", !self.lru.is_empty()),
            ("--shrinker", !self.shrinker.is_empty()),
            ("--when-full", !self.when_full.is_empty()),
            ("--written-as", !self.written_as.is_empty()),
            ("--accept-threshold", self.accept_threshold.is_some()),
            ("--checksum", self.checksum.is_some()),
            ("--accesses", self.accesses.is_some()),
            ("--skew", self.skew.is_some()),
            ("--exclusive", self.exclusive),
        ];
        let first = given.iter().find(|(_, given)| *given);
        if self.max_pool.is_empty()
            && let Some((flag, _)) = first
        {
            return Err(Failure::Usage(anyhow!(
                "{flag} needs --max-pool: a pool without a limit keeps every page; give a limit \
                 below the size of the pages, such as --max-pool 64M"
            )));
        }
        let writes = [
            ("--shrinker", self.shrinker.iter().any(|&mode| mode != ShrinkerMode::Off)),
            ("--written-as", !self.written_as.is_empty()),
        ];
        if self.backing.is_none()
            && let Some((flag, _)) = writes.iter().find(|(_, given)| *given)
        {
            return Err(Failure::Usage(anyhow!(
                "{flag} needs --backing, the file or device that pages are written to"
            )));
        }
        Ok(())
    }

    /// The limits of an experiment with so many pages, if it has any; the backing was opened once.
    pub(super) fn of(&self, pages: u64, seed: u64) -> Result<Option<Limits>, Failure> {
        if self.max_pool.is_empty() {
            return Ok(None);
        }
        let backing = self.backing.clone().map(|path| BackingFile {
            path,
            bytes: self
                .backing_size
                .map_or((pages + pages / 8 + SPARE_BLOCKS) * PAGE_SIZE as u64, |bytes| {
                    bytes as u64
                }),
        });
        if let Some(backing) = &backing {
            backing.open().map_err(no_backing)?;
        }
        Ok(Some(Limits {
            max_pools: distinct(&self.max_pool),
            lrus: or_default(&self.lru),
            written_as: or_default(&self.written_as),
            when_full: or_default(&self.when_full),
            shrinkers: or_default(&self.shrinker),
            settings: LimitSettings {
                accept_threshold_percent: self.accept_threshold.unwrap_or(90),
                backing,
                checksum: self.checksum.unwrap_or(false),
                accesses: AccessSettings {
                    count: self.accesses.unwrap_or(pages * ACCESSES_PER_PAGE),
                    skew: self.skew.unwrap_or(0.99),
                    seed,
                    exclusive: self.exclusive,
                },
            },
        }))
    }

    /// Removes the file that a run left which was killed: it has our mark, as any that was there
    /// before has, or nothing yet.
    pub(super) fn remove_left(&self, experiment: &Experiment) {
        let limits = experiment.limits.as_ref();
        if let Some(backing) = limits.and_then(|limits| limits.settings.backing.as_ref())
            && let Ok(left) = fs::metadata(&backing.path)
        {
            // A file that cannot be opened or removed is not ours to remove.
            match left.is_file() && left.len() == 0 {
                true => drop(fs::remove_file(&backing.path)),
                false => drop(backing.open()),
            }
        }
    }
}

fn or_default<T: Copy + PartialEq + Default>(values: &[T]) -> Vec<T> {
    if values.is_empty() { vec![T::default()] } else { distinct(values) }
}

/// Whether the user or the machine is at fault for a missing backing.
pub(super) fn no_backing(error: BackingError) -> Failure {
    let is_machine = match &error {
        BackingError::Os { error, .. } => {
            use std::io::ErrorKind::{InvalidInput, NotFound};
            ![InvalidInput, NotFound].contains(&error.kind())
        }
        BackingError::InUse { .. } | BackingError::NoDirect { .. } | BackingError::NoMemory(_) => {
            true
        }
        _ => false,
    };
    let error = anyhow::Error::from(error).context("--backing");
    if is_machine { Failure::Machine(error) } else { Failure::Usage(error) }
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

fn parse_skew(text: &str) -> Result<f64, String> {
    let skew = text.parse().ok().filter(|skew| (0.0..=10.0).contains(skew));
    skew.ok_or_else(|| "skew must be a number from 0 (none) to 10".to_owned())
}
