//! Pools with a limit: their options in a comparison, and their store.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use uzswap::backing::{
    BLOCK_SIZE, Backing, BackingError, Block, BlockWrite, FileBacking, FileBackingOptions,
};
use uzswap::budget::Counted;
use uzswap::by_name::by_name;
use uzswap::compressor::Compressor;
use uzswap::named_enum::named;
use uzswap::zswap::{
    Lru, RecordOptions, ShrinkerOptions, WhenFull, WrittenAs, Zswap, ZswapOptions, ZswapParts,
};

/// The most the pool may own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MaxPool {
    /// No limit but the machine's: nothing is written back then.
    #[serde(rename = "none")]
    None,
    /// So many bytes of host pages.
    #[serde(rename = "bytes")]
    Bytes(u64),
}

impl MaxPool {
    /// The same as [`ZswapOptions::max_pool_bytes`].
    pub fn bytes(self) -> u64 {
        match self {
            MaxPool::None => u64::MAX,
            MaxPool::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for MaxPool {
    /// Short, as it is given on the command line: `none`, `20M`, `516K`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            MaxPool::None => f.write_str("none"),
            MaxPool::Bytes(bytes) if bytes % (1 << 20) == 0 => write!(f, "{}M", bytes >> 20),
            MaxPool::Bytes(bytes) if bytes >= 10 << 20 => {
                write!(f, "{:.1}M", bytes as f64 / (1 << 20) as f64)
            }
            MaxPool::Bytes(bytes) => write!(f, "{}K", bytes.div_ceil(1 << 10)),
        }
    }
}

/// Whether a thread writes pages back before stores have to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ShrinkerMode {
    /// Stores do it.
    #[default]
    Off,
    /// The shrinker keeps the pool below its accept threshold.
    On,
    /// The shrinker writes back before that too: the kernel's `shrinker_enabled`.
    Dynamic,
}

named!(ShrinkerMode, "shrinker", Off => "off", On => "on", Dynamic => "dynamic");
by_name!(ShrinkerMode);

impl ShrinkerMode {
    /// How the thread works, if there is one.
    pub fn options(self) -> Option<ShrinkerOptions> {
        match self {
            ShrinkerMode::Off => None,
            ShrinkerMode::On => Some(ShrinkerOptions::default()),
            ShrinkerMode::Dynamic => Some(ShrinkerOptions::default().dynamic(true)),
        }
    }
}

/// Choices that differ between combinations of limited pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitParts {
    /// The limit.
    pub max_pool: MaxPool,
    /// The order in which pages are written back.
    pub lru: Lru,
    /// How they are written.
    pub written_as: WrittenAs,
    /// Action of a store that finds the pool full.
    pub when_full: WhenFull,
    /// Who else writes back.
    pub shrinker: ShrinkerMode,
}

/// The choices of each of [`LimitParts`], and what is the same for all combinations.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The limits.
    pub max_pools: Vec<MaxPool>,
    /// The orders.
    pub lrus: Vec<Lru>,
    /// The forms.
    pub written_as: Vec<WrittenAs>,
    /// The behaviours.
    pub when_full: Vec<WhenFull>,
    /// The threads.
    pub shrinkers: Vec<ShrinkerMode>,
    /// What is the same for all.
    pub settings: LimitSettings,
}

/// Settings shared by all limited pools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitSettings {
    /// Percent of the limit below which a pool that was full takes pages again.
    pub accept_threshold_percent: u8,
    /// Where pages are written back to, if anywhere.
    pub backing: Option<BackingFile>,
    /// Whether objects have checksums.
    pub checksum: bool,
    /// The accesses that follow the stores.
    pub accesses: AccessSettings,
}

/// A file or device to write pages back to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackingFile {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes to take of it.
    pub bytes: u64,
}

impl BackingFile {
    /// Opens it, for one store.
    ///
    /// # Errors
    ///
    /// [`BackingError`].
    pub fn open(&self) -> Result<FileBacking, BackingError> {
        FileBacking::open(&FileBackingOptions::new(&self.path, Some(self.bytes)))
    }
}

/// The accesses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AccessSettings {
    /// How many.
    pub count: u64,
    /// The exponent of their distribution.
    pub skew: f64,
    /// Start of their random numbers.
    pub seed: u64,
    /// Whether a page that is loaded leaves the store, and is stored again: swap-in and swap-out.
    pub exclusive: bool,
}

impl Limits {
    /// Every choice, the first of each list first. An unlimited pool has no use for the others, and
    /// comes once.
    pub(super) fn parts(&self) -> Vec<LimitParts> {
        let mut all = Vec::new();
        for &max_pool in &self.max_pools {
            let first = all.len();
            for &lru in &self.lrus {
                for &written_as in &self.written_as {
                    for &when_full in &self.when_full {
                        for &shrinker in &self.shrinkers {
                            all.push(LimitParts { max_pool, lru, written_as, when_full, shrinker });
                        }
                    }
                }
            }
            if max_pool == MaxPool::None {
                all.truncate(first + 1);
                all[first].shrinker = ShrinkerMode::Off;
            }
        }
        all
    }

    /// Choices that distinguish these parts from the others, each after a blank.
    pub(super) fn name_of(&self, parts: LimitParts) -> String {
        let mut name = String::new();
        let mut add = |several: bool, what: String| {
            if several {
                name += &format!(" {what}");
            }
        };
        if parts.max_pool == MaxPool::None {
            add(self.max_pools.len() > 1, "unlimited".to_owned());
            return name;
        }
        add(self.max_pools.len() > 1, parts.max_pool.to_string());
        add(self.lrus.len() > 1, parts.lru.to_string());
        add(self.written_as.len() > 1, parts.written_as.to_string());
        add(self.when_full.len() > 1, parts.when_full.to_string());
        let shrinker = match parts.shrinker {
            ShrinkerMode::Off => "no-shrinker".to_owned(),
            ShrinkerMode::On => "shrinker".to_owned(),
            ShrinkerMode::Dynamic => "dynamic".to_owned(),
        };
        add(self.shrinkers.len() > 1, shrinker);
        name
    }
}

/// Pages that went to a backing and came from it.
#[derive(Debug, Default)]
pub struct Meter {
    reads: AtomicU64,
    written_blocks: AtomicU64,
}

impl Meter {
    /// Reads so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_blocks.load(Ordering::Relaxed) * BLOCK_SIZE as u64
    }
}

/// A backing with a meter.
#[derive(Debug)]
struct Metered {
    backing: FileBacking,
    meter: Arc<Meter>,
}

impl Backing for Metered {
    fn name(&self) -> String {
        self.backing.name()
    }

    fn block_count(&self) -> u32 {
        self.backing.block_count()
    }

    fn write(&self, writes: &mut [BlockWrite<'_>]) {
        self.backing.write(writes);
        let written = writes.iter().filter(|write| write.outcome.is_ok());
        let blocks: usize = written.map(|write| write.blocks.len()).sum();
        self.meter.written_blocks.fetch_add(blocks as u64, Ordering::Relaxed);
    }

    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()> {
        self.meter.reads.fetch_add(1, Ordering::Relaxed);
        self.backing.read(first, blocks)
    }

    fn discard(&self, blocks: Range<u32>) -> io::Result<()> {
        self.backing.discard(blocks)
    }
}

/// The backing of a limited pool, opened.
#[derive(Debug)]
pub(super) struct OpenBacking(Option<Metered>);

/// Opens the backing, if these parts have a use for it.
pub(super) fn open(
    settings: &LimitSettings,
    parts: LimitParts,
    meter: &Arc<Meter>,
) -> Result<OpenBacking, BackingError> {
    let file = settings.backing.as_ref().filter(|_| parts.max_pool != MaxPool::None);
    let backing = file.map(BackingFile::open).transpose()?;
    Ok(OpenBacking(backing.map(|backing| Metered { backing, meter: Arc::clone(meter) })))
}

/// A store with a limit; `None` where there is no memory for what is known of the backing's blocks.
pub(super) fn build(
    options: ZswapOptions,
    settings: &LimitSettings,
    parts: LimitParts,
    compressor: Box<dyn Compressor>,
    backing: OpenBacking,
) -> Option<Zswap> {
    let options = options
        .max_pool_bytes(parts.max_pool.bytes())
        .counted(Counted::Pool)
        // as the kernel does
        .accept_threshold_percent(settings.accept_threshold_percent)
        .when_full(parts.when_full)
        .records(Some(RecordOptions::default().lru(parts.lru).checksum(settings.checksum)))
        .written_as(parts.written_as);
    let backing = backing.0.map(|backing| Box::new(backing) as Box<dyn Backing>);
    let parts = ZswapParts { compressor, backing, ..ZswapParts::of(options).ok()? };
    Zswap::from_parts(options, parts, |budget| options.index.build_on(budget)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlimited_pool_comes_once() {
        let limits = Limits {
            max_pools: vec![MaxPool::None, MaxPool::Bytes(20 << 20)],
            lrus: vec![Lru::SecondChance, Lru::Plain],
            written_as: vec![WrittenAs::Pages],
            when_full: vec![WhenFull::Reclaim],
            shrinkers: vec![ShrinkerMode::On, ShrinkerMode::Off],
            settings: LimitSettings {
                accept_threshold_percent: 90,
                backing: None,
                checksum: false,
                accesses: AccessSettings { count: 1, skew: 0.0, seed: 1, exclusive: false },
            },
        };
        let names: Vec<String> =
            limits.parts().into_iter().map(|parts| limits.name_of(parts)).collect();
        assert_eq!(
            names,
            [
                " unlimited",
                " 20M second-chance shrinker",
                " 20M second-chance no-shrinker",
                " 20M plain shrinker",
                " 20M plain no-shrinker"
            ]
        );
        assert_eq!(limits.parts()[0].shrinker, ShrinkerMode::Off);
    }

    #[test]
    fn limits_have_short_names() {
        let names = [4096, 500_000, 20 << 20, (20 << 20) + 4096, 3 << 40]
            .map(|bytes| MaxPool::Bytes(bytes).to_string());
        assert_eq!(names, ["4K", "489K", "20M", "20.0M", "3145728M"]);
    }
}
