//! The options of a store.

use super::error::BuildError;
use super::hysteresis::WhenFull;
use super::lru::Lru;
use super::{OBJECT_HEADER_MAX, Zswap};
use crate::budget::Counted;
use crate::compressor::{CompressorKind, Filter, UNIT_PAGES_MAX};
use crate::index::IndexKind;
use crate::named_enum::named;
use crate::options::{NoEffect, OptionError, setters};
use crate::same_filled::{SameFilled, SameFilledCheck};
use crate::zpool::zsmalloc::{CHAIN_SIZE_MAX, CHAIN_SIZE_MIN, ZsmallocOptions};
use crate::zpool::{HostPages, ZpoolKind};

/// Every shard takes memory while the store is empty.
const SHARDS_MAX: usize = 1 << 16;

/// Policy for a page that does not compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Incompressible {
    /// The page is refused if the pool does not take it: kernels up to 6.17. With a backing it is
    /// written there uncompressed: with the next batch if the pool can hold it until then, else at
    /// once, by itself.
    #[default]
    Reject,
    /// The page is kept as it is, in 4096 bytes, if compression does not save any: kernels from
    /// 6.18.
    StoreAsIs,
}

named!(
    Incompressible, "policy for incompressible pages",
    Reject => "reject", StoreAsIs => "store-as-is",
);

/// How pages are written to the backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WrittenAs {
    /// Decompressed, a block each, as the kernel does.
    #[default]
    Pages,
    /// As the objects that they are in the pool, one after the other: nothing is decompressed, and
    /// less is written.
    Objects,
}

named!(WrittenAs, "form of written pages", Pages => "pages", Objects => "objects");

/// Data kept of each page beside its 8 bytes of index entry: the order of eviction, its tenant,
/// checksums, its copy in the backing. 52 bytes a page.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct RecordOptions {
    /// The order in which pages are written back.
    pub lru: Lru,
    /// A checksum of each object, checked at load and at writeback. Costs 1 % of a store with lz4.
    pub checksum: bool,
}

impl Default for RecordOptions {
    /// The order of kernel 6.12, with checksums.
    fn default() -> Self {
        RecordOptions { lru: Lru::default(), checksum: true }
    }
}

/// Parts and limits of a store: the builder of [`Zswap`].
///
/// ```
/// use uzswap::zswap::ZswapOptions;
///
/// let zswap = ZswapOptions::default()
///     .compressor("zstd:3".parse()?)
///     .max_pool_bytes(64 << 20)
///     .build()?;
/// assert!(zswap.is_empty());
///
/// let refused = ZswapOptions::default().shards(3).build().unwrap_err();
/// assert_eq!(refused.to_string(), "shards must be a power of two, got 3");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct ZswapOptions {
    /// The allocator.
    pub zpool: ZpoolKind,
    /// Options of zsmalloc, if it is the allocator.
    pub zsmalloc: ZsmallocOptions,
    /// The compressor.
    pub compressor: CompressorKind,
    /// A second one, for pages that are to take little room ([`super::Zswap::store_densely`],
    /// [`super::Zswap::recompress`]). An object is a byte longer then.
    pub dense: Option<CompressorKind>,
    /// Pages of a unit, which [`super::Zswap::store_all`] compresses together: 1, 2, 4, 8 or 16,
    /// as far as the compressor takes them; 1 for none.
    pub unit_pages: usize,
    /// The filter before them. Not with the compressor `none`, whose objects would be too long.
    pub filter: Filter,
    /// The index of a shard.
    pub index: IndexKind,
    /// Shards, each an index with its own lock; a power of two, at most 2^16. With 64, threads
    /// hardly ever meet in one. Kernels up to 6.8 had 1 for a swap device.
    pub shards: usize,
    /// The policy for pages that do not shrink.
    pub incompressible: Incompressible,
    /// Bytes in front of each object that hold its key and are checked at load, 0 to
    /// [`super::OBJECT_HEADER_MAX`]. Kernel 6.1 puts 8 there where the allocator can evict (zbud,
    /// z3fold).
    pub object_header_bytes: usize,
    /// The budget in bytes, of which a pool takes whole pages; `u64::MAX` for none. A share of the
    /// machine's memory is [`percent_of_memory`](crate::budget::percent_of_memory).
    pub max_pool_bytes: u64,
    /// The memory that this limits: all that grows with the pages stored, or the host pages alone.
    pub counted: Counted,
    /// Percent of that below which a pool that was full takes pages again, 0 to 100: the kernel's
    /// `accept_threshold_percent`.
    pub accept_threshold_percent: u8,
    /// Action of a store that finds the pool full.
    pub when_full: WhenFull,
    /// How large the pages are that the kernel gives.
    pub host_pages: HostPages,
    /// Which pages are kept as one word.
    pub same_filled: SameFilled,
    /// Data kept of each page; without it there is no writeback, and there are no tenants or
    /// checksums.
    pub records: Option<RecordOptions>,
    /// How pages are written to the backing.
    pub written_as: WrittenAs,
    /// Whether times are counted: of one in 16 stores and loads, and of each writeback.
    pub latencies: bool,
}

impl Default for ZswapOptions {
    /// zsmalloc and lz4, bounded by the machine alone.
    fn default() -> Self {
        ZswapOptions {
            zpool: ZpoolKind::Zsmalloc,
            zsmalloc: ZsmallocOptions::default(),
            compressor: CompressorKind::Lz4,
            dense: None,
            unit_pages: 1,
            filter: Filter::None,
            index: IndexKind::Radix,
            shards: 1 << 6,
            incompressible: Incompressible::Reject,
            object_header_bytes: 0,
            max_pool_bytes: u64::MAX,
            counted: Counted::default(),
            accept_threshold_percent: 90,
            when_full: WhenFull::default(),
            host_pages: HostPages::Small,
            same_filled: SameFilled::default(),
            records: Some(RecordOptions::default()),
            written_as: WrittenAs::default(),
            latencies: true,
        }
    }
}

impl ZswapOptions {
    /// The options of a store that only keeps pages: no records, no latencies.
    #[must_use]
    pub fn bare() -> ZswapOptions {
        ZswapOptions { records: None, latencies: false, ..ZswapOptions::default() }
    }

    /// An empty store: the same as [`Zswap::new`].
    ///
    /// # Errors
    ///
    /// [`BuildError`], where an option is out of its range.
    pub fn build(self) -> Result<Zswap, BuildError> {
        Zswap::new(self)
    }

    /// Checks that no option would be ignored: each is at its default, or has an effect beside the
    /// others. A sweep over allocators may keep the options of one of them, so [`Zswap::new`] does
    /// not check this.
    ///
    /// # Errors
    ///
    /// [`NoEffect`], with the first option that would be ignored.
    ///
    /// ```
    /// use uzswap::zswap::{WhenFull, ZswapOptions};
    ///
    /// let refused = ZswapOptions::default().when_full(WhenFull::Bypass).check_effects();
    /// assert_eq!(refused.unwrap_err().needs, "max_pool_bytes");
    /// ```
    pub fn check_effects(&self) -> Result<(), NoEffect> {
        let default = ZswapOptions::default();
        let (given, zsmalloc) = (&self.zsmalloc, &default.zsmalloc);
        NoEffect::check(
            self.zpool == ZpoolKind::Zsmalloc,
            "zpool zsmalloc",
            &[
                ("chain_size", given.chain_size == zsmalloc.chain_size),
                ("chain_rule", given.chain_rule == zsmalloc.chain_rule),
                ("handle_header", given.handle_header == zsmalloc.handle_header),
                ("mapping", given.mapping == zsmalloc.mapping),
            ],
        )?;
        NoEffect::check(
            self.same_filled.check != SameFilledCheck::Off,
            "a check for same-filled pages",
            &[("same_filled_zero_only", !self.same_filled.zero_only)],
        )?;
        let percent = self.accept_threshold_percent;
        NoEffect::check(
            self.max_pool_bytes != u64::MAX,
            "max_pool_bytes",
            &[
                ("when_full", self.when_full == default.when_full),
                ("accept_threshold_percent", percent == default.accept_threshold_percent),
            ],
        )
    }

    /// Checks the ranges.
    pub(super) fn check(&self) -> Result<(), OptionError> {
        let (chain, header) = (self.zsmalloc.chain_size, self.object_header_bytes);
        let percent = self.accept_threshold_percent;
        OptionError::check(self.shards.is_power_of_two(), "shards", "a power of two", self.shards)?;
        OptionError::check(self.shards <= SHARDS_MAX, "shards", "at most 65536", self.shards)?;
        let is_unit = self.unit_pages.is_power_of_two() && self.unit_pages <= UNIT_PAGES_MAX;
        OptionError::check(is_unit, "unit_pages", "1, 2, 4, 8 or 16", self.unit_pages)?;
        OptionError::check(header <= OBJECT_HEADER_MAX, "object_header_bytes", "0 to 64", header)?;
        OptionError::check(
            percent <= 100,
            "accept_threshold_percent",
            "0 to 100",
            usize::from(percent),
        )?;
        let range = CHAIN_SIZE_MIN..=CHAIN_SIZE_MAX;
        OptionError::check(range.contains(&chain), "chain_size", "4 to 16", chain)
    }
}

setters!(RecordOptions, lru: Lru, checksum: bool);

setters!(
    ZswapOptions,
    zpool: ZpoolKind,
    zsmalloc: ZsmallocOptions,
    compressor: CompressorKind,
    dense: Option<CompressorKind>,
    unit_pages: usize,
    filter: Filter,
    index: IndexKind,
    shards: usize,
    incompressible: Incompressible,
    object_header_bytes: usize,
    max_pool_bytes: u64,
    counted: Counted,
    accept_threshold_percent: u8,
    when_full: WhenFull,
    host_pages: HostPages,
    same_filled: SameFilled,
    records: Option<RecordOptions>,
    written_as: WrittenAs,
    latencies: bool,
);
