//! The plan of a seed: the store's options, its tenants, and the rates of faults.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use super::faults::{FAULTS, Fault, FaultSet};
use super::planted_bugs::PlantedBug;
use super::world::{Disk, FailingIndex, LyingCompressor, RottingPool, World};
use uzswap::backing::Submission;
use uzswap::budget::{Budget, Counted};
use uzswap::compressor::{CompressorKind, Filter};
use uzswap::index::IndexKind;
use uzswap::page::{PAGE_SIZE, PageKey};
use uzswap::random::SplitMix64;
use uzswap::same_filled::{SameFilled, SameFilledCheck};
use uzswap::zpool::zsmalloc::{CHAIN_SIZE_MAX, CHAIN_SIZE_MIN, ChainRule, ObjectMapping};
use uzswap::zpool::zsmalloc::{HandleHeader, ZsmallocOptions};
use uzswap::zpool::{Arena, HostPages, ZpoolKind};
use uzswap::zswap::{
    Incompressible, Lru, RecordOptions, TenantId, TenantOptions, WhenFull, WrittenAs, Zswap,
    ZswapOptions, ZswapParts,
};

/// Bits of a region of keys that is never divided between shards.
const REGION_BITS: u32 = 14;

/// Added to a region whose keys lie past 32 bits.
const BEYOND: u64 = 1 << 20;

/// A limit that is soon met, in bytes.
const SMALL_POOL: u64 = 16 * PAGE_SIZE as u64;

/// Random choices.
#[derive(Debug)]
pub(super) struct Dice(SplitMix64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(SplitMix64::new(seed))
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.0.next_word() % end as u64) as usize
    }

    /// True one time in so many.
    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(super) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// Keys beside each other in some regions, or far apart.
fn some_keys(dice: &mut Dice, count: usize) -> Arc<[PageKey]> {
    match dice.below(8) {
        0..5 => keys_in_regions(dice, count),
        5..7 => {
            let stride = dice.of(&[1 << 9, 1 << 12, 1 << 20, 1 << 33, 1 << 52]);
            (0..count as u64).map(|number| PageKey(number * stride)).collect()
        }
        _ => {
            let mut keys = BTreeSet::new();
            while keys.len() < count {
                keys.insert(PageKey(dice.0.next_word()));
            }
            keys.into_iter().collect()
        }
    }
}

/// Keys in some regions. The last region may be beyond those of an index of narrow keys.
fn keys_in_regions(dice: &mut Dice, count: usize) -> Arc<[PageKey]> {
    let per_region = count.div_ceil(dice.of(&[1, 3, 9]));
    let stride = dice.of(&[1, 1, 7]);
    let beyond = if dice.one_in(8) { BEYOND } else { 0 };
    let key = |number: usize| {
        let (region, place) = (number / per_region, (number % per_region) as u64);
        let is_last = (region + 1) * per_region >= count;
        let region = region as u64 + if is_last { beyond } else { 0 };
        PageKey((region << REGION_BITS) + place * stride)
    };
    (0..count).map(key).collect()
}

/// All that a seed decides before its history.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) options: ZswapOptions,
    pub(super) checksum: bool,
    /// Blocks of the backing, if there is one.
    pub(super) blocks: Option<u32>,
    /// Number of keys.
    pub(super) keys: usize,
    /// Whether the backing is a file too, and how it is written.
    file: Option<Submission>,
    /// The key of each number, in the order of numbers.
    all_keys: Arc<[PageKey]>,
    /// The parent of each tenant but the root.
    pub(super) parents: Vec<usize>,
    pub(super) rates: [u32; FAULTS],
}

impl Plan {
    /// The plan of a seed.
    pub(super) fn new(seed: u64, faults: FaultSet, plant: Option<PlantedBug>) -> Plan {
        let dice = &mut Dice::new(seed ^ 0x746f_7274_7572_6521);
        let mut faults = faults;
        // Half of the seeds have all of them, the others some.
        if dice.one_in(2) {
            let some = dice.below(1 << FAULTS);
            faults = faults.filter(|fault| some >> fault.number() & 1 == 1);
        }
        let with_records = !dice.one_in(16);
        let silent = faults.filter(Fault::is_silent) != FaultSet::NONE;
        let checksum = with_records && (silent || !dice.one_in(4));
        if !checksum {
            faults = faults.filter(|fault| !fault.is_silent());
        }
        let keys = dice.of(&[48, 200, 200, 600, 600, 1500]);
        let pool_pages = dice.of(&[usize::MAX, 8, keys / 16 + 4, keys / 6 + 4, keys / 3 + 4]);
        let blocks = dice.of(&[
            None,
            Some(keys as u32 * 4),
            Some(keys as u32),
            Some(keys as u32 / 2),
            Some(keys as u32 / 8 + 1),
            Some(2),
        ]);
        let compressor = dice.of(&[
            CompressorKind::Lz4,
            CompressorKind::Lz4,
            CompressorKind::Lzo,
            CompressorKind::LzoRle,
            CompressorKind::Zstd(1),
            CompressorKind::Zstd(3),
            CompressorKind::Deflate(1),
            CompressorKind::None,
        ]);
        let dense = dice.of(&[
            None,
            None,
            Some(CompressorKind::Zstd(3)),
            Some(CompressorKind::Lz4),
            Some(CompressorKind::Deflate(6)),
        ]);
        // With the tag of a pair a page as it is would be too long.
        let dense = dense.filter(|_| compressor != CompressorKind::None);
        if compressor == CompressorKind::None {
            faults = faults.filter(|fault| fault != Fault::CompressLonger);
        }
        let zsmalloc = ZsmallocOptions::default()
            .chain_size(CHAIN_SIZE_MIN + dice.below(CHAIN_SIZE_MAX - CHAIN_SIZE_MIN + 1))
            .chain_rule(dice.of(&ChainRule::ALL))
            .handle_header(dice.of(&HandleHeader::ALL))
            .mapping(dice.of(&ObjectMapping::ALL));
        let same_filled = match dice.below(8) {
            0 => SameFilled { check: SameFilledCheck::Off, zero_only: false },
            1 => SameFilled { check: SameFilledCheck::Vector, zero_only: true },
            2 => SameFilled { check: SameFilledCheck::LastFirst, zero_only: false },
            _ => SameFilled::default(),
        };
        let mut plan =
            Plan {
                options: ZswapOptions::default()
                    .zpool(dice.of(&ZpoolKind::ALL))
                    .zsmalloc(zsmalloc)
                    .compressor(compressor)
                    .dense(dense)
                    .index(dice.of(&IndexKind::ALL))
                    .shards(dice.of(&[1, 4, 64]))
                    .incompressible(dice.of(&[Incompressible::Reject, Incompressible::StoreAsIs]))
                    .object_header_bytes(dice.of(&[0, 0, 8]))
                    .max_pool_bytes((pool_pages as u64).saturating_mul(PAGE_SIZE as u64))
                    .accept_threshold_percent(dice.of(&[90, 50, 100, 0]))
                    .when_full(dice.of(&[WhenFull::Reclaim, WhenFull::Reclaim, WhenFull::Bypass]))
                    .host_pages(HostPages::Small)
                    .same_filled(same_filled)
                    .records(with_records.then(|| {
                        RecordOptions::default().lru(dice.of(&Lru::ALL)).checksum(checksum)
                    }))
                    .written_as(dice.of(&[WrittenAs::Pages, WrittenAs::Objects]))
                    .latencies(!dice.one_in(8))
                    .counted(if dice.one_in(4) { Counted::PoolAndMetadata } else { Counted::Pool }),
                checksum,
                blocks: blocks.filter(|_| with_records),
                keys,
                file: dice.one_in(8).then(|| dice.of(&Submission::ALL)),
                all_keys: some_keys(dice, keys),
                parents: Vec::new(),
                rates: [0; FAULTS],
            };
        if with_records {
            for number in 0..dice.of(&[0, 0, 1, 3, 7]) {
                plan.parents.push(dice.below(number + 1));
            }
        }
        let mildest = dice.of(&[1, 4, 16]);
        for fault in Fault::ALL {
            let rate = match fault {
                Fault::Outage => dice.of(&[200, 1000]),
                Fault::Meanwhile => dice.of(&[4, 16]),
                Fault::FileError => dice.of(&[10, 40]),
                Fault::DiscardError => dice.of(&[2, 8]),
                Fault::FileShort => dice.of(&[2, 8]),
                Fault::ObjectRot | Fault::BitRot => dice.of(&[30, 100, 400]),
                _ => dice.of(&[10, 40, 160]),
            };
            // Of these there are few calls.
            let is_rare =
                matches!(fault, Fault::FileError | Fault::FileShort | Fault::DiscardError);
            if faults.has(fault) {
                plan.rates[fault.number()] = rate * if is_rare { 1 } else { mildest };
            }
        }
        // Drawn last, so that the seeds of zsmalloc have the histories that find planted bugs.
        if plan.options.zpool == ZpoolKind::Z3fold && dice.one_in(2) {
            plan.options.zpool = ZpoolKind::Zblock;
        }
        // With the tag of a filter, too.
        if compressor != CompressorKind::None {
            plan.options.filter = dice.of(&Filter::ALL);
        }
        let dense = plan.options.dense.unwrap_or(compressor);
        if [compressor, dense].iter().all(|kind| kind.build().unit_pages_max() > 1) {
            plan.options.unit_pages = dice.of(&[1, 1, 2, 4, 16]);
        }
        plan.suit(plant);
        plan
    }

    /// Changes the plan so that a planted bug can show.
    fn suit(&mut self, plant: Option<PlantedBug>) {
        let Some(plant) = plant else { return };
        let options = &mut self.options;
        options.records.get_or_insert_with(RecordOptions::default).checksum = true;
        options.incompressible = Incompressible::StoreAsIs;
        options.same_filled = SameFilled::default();
        self.all_keys = keys_in_regions(&mut Dice::new(self.keys as u64), self.keys);
        // With the index in the budget fewer words are stored at the worst moments.
        options.counted = Counted::Pool;
        match plant {
            PlantedBug::KeyOnlyErase => {
                (options.compressor, options.max_pool_bytes) = (CompressorKind::Lz4, u64::MAX);
                self.rates[Fault::Meanwhile.number()] = 4;
            }
            PlantedBug::Overshoot => {
                (options.zpool, options.max_pool_bytes) = (ZpoolKind::Zbud, SMALL_POOL);
                // A store that asks for the limit itself never has the pool pass it.
                options.when_full = WhenFull::Reclaim;
            }
            PlantedBug::EarlySuccess | PlantedBug::WrongBlock => {
                (self.blocks, options.max_pool_bytes) = (Some(self.keys as u32), SMALL_POOL);
            }
            PlantedBug::UncheckedObject => {
                options.records = Some(RecordOptions::default().checksum(false));
                (options.compressor, options.dense) = (CompressorKind::Lz4, None);
                options.filter = Filter::None;
                self.rates[Fault::ObjectRot.number()] = 30;
            }
            _ => {}
        }
    }

    /// Changes the store that is built: to that of another seed. Keys and tenants stay.
    pub(super) fn change_store(&mut self, seed: u64) {
        let other = Plan::new(seed, FaultSet::NONE, None);
        self.options = other.options;
        self.checksum = other.checksum;
        (self.blocks, self.file) = (other.blocks, other.file);
    }

    /// Sees to it that the store finds what changes silently, if that of `like` does.
    pub(super) fn check_as(&mut self, like: &Plan) {
        if like.checksum {
            self.checksum = true;
            self.options.records.get_or_insert_with(RecordOptions::default).checksum = true;
        }
    }

    /// Whether the pool takes a page as it is.
    pub(super) fn pool_takes_pages(&self) -> bool {
        let max = match self.options.zpool {
            ZpoolKind::Zbud => 3968,
            ZpoolKind::Zblock => 4079,
            _ => PAGE_SIZE,
        };
        PAGE_SIZE + self.options.object_header_bytes <= max
    }

    /// Whether some keys are past 32 bits.
    pub(super) fn is_wide(&self) -> bool {
        self.key(self.keys - 1).0 > u64::from(u32::MAX)
    }

    pub(super) fn is_narrow(&self) -> bool {
        self.options.index == IndexKind::BTree32
    }

    /// The key of a number; in the order of numbers.
    pub(super) fn key(&self, number: usize) -> PageKey {
        self.all_keys[number]
    }

    /// The numbers of the keys of a unit, of which this is one.
    pub(super) fn unit(&self, number: usize) -> Range<usize> {
        let unit_pages = self.options.unit_pages as u64;
        let unit_of = |key: &PageKey| key.0 / unit_pages;
        let unit = unit_of(&self.key(number));
        let keys = &self.all_keys;
        keys.partition_point(|key| unit_of(key) < unit)
            ..keys.partition_point(|key| unit_of(key) <= unit)
    }

    /// The number of a key.
    pub(super) fn number(&self, key: PageKey) -> Option<usize> {
        self.all_keys.binary_search(&key).ok()
    }

    /// The compressor, as it fails.
    pub(super) fn compressor(&self, world: &Arc<World>) -> LyingCompressor {
        let dense = self.options.dense.map(CompressorKind::build);
        let compressor = self.options.filter.before(self.options.compressor.build(), dense);
        LyingCompressor::new(Arc::clone(world), compressor)
    }

    /// Whether an operation on the tenant numbered so is one on the other, or below it.
    pub(super) fn is_below(&self, mut tenant: usize, above: usize) -> bool {
        while tenant != above && tenant > 0 {
            tenant = self.parents[tenant - 1];
        }
        tenant == above
    }

    /// The store, its tenants, and the limits these begin with.
    pub(super) fn build(&self, world: &Arc<World>) -> Result<(Zswap, Vec<TenantId>), String> {
        let zswap = self.store(world)?;
        let mut tenants = vec![TenantId::ROOT];
        for (number, &parent) in self.parents.iter().enumerate() {
            let options = TenantOptions::default().name(format!("tenant {}", number + 1));
            let id = zswap.add_tenant(tenants[parent], options).map_err(|e| e.to_string())?;
            tenants.push(id);
        }
        Ok((zswap, tenants))
    }

    /// The store, new, on doubles of its own.
    pub(super) fn store(&self, world: &Arc<World>) -> Result<Zswap, String> {
        let budget = Arc::new(Budget::new(self.options.max_pool_bytes, self.options.counted));
        let arena = Arc::new(Arena::on(budget, HostPages::Small));
        let zpool = self.options.zpool.build(Arc::clone(&arena), self.options.zsmalloc);
        let disk = self.blocks.map(|blocks| Disk::new(Arc::clone(world), blocks, self.file));
        let disk = disk
            .transpose()
            .map_err(|error| format!("cannot create the file of a disk: {error}"))?;
        let parts = ZswapParts {
            arena,
            zpool: Box::new(RottingPool::new(Arc::clone(world), zpool)),
            compressor: Box::new(self.compressor(world)),
            backing: disk.map(|disk| Box::new(disk) as Box<dyn uzswap::backing::Backing>),
        };
        let index = |budget: &Arc<Budget>| {
            let index = FailingIndex::new(Arc::clone(world), self.options.index.build_on(budget));
            Box::new(index) as Box<dyn uzswap::index::Index>
        };
        Zswap::from_parts(self.options, parts, index)
            .map_err(|error| format!("cannot build a store: {error}"))
    }

    /// For people.
    pub(super) fn summary(&self) -> Summary {
        let options = &self.options;
        Summary {
            zpool: options.zpool.name(),
            chain_size: options.zsmalloc.chain_size,
            mapping: options.zsmalloc.mapping.name(),
            compressor: options.compressor.to_string(),
            dense: options.dense.map(|dense| dense.to_string()),
            filter: options.filter.name(),
            unit_pages: options.unit_pages,
            index: options.index.name(),
            shards: options.shards,
            lru: options.records.map(|records| records.lru.name()),
            checksum: self.checksum,
            when_full: options.when_full.name(),
            incompressible: options.incompressible.name(),
            written_as: options.written_as.name(),
            max_pool_bytes: Some(options.max_pool_bytes).filter(|&bytes| bytes < u64::MAX),
            backing_blocks: self.blocks,
            file: self.file.map(Submission::name),
            keys: self.keys,
            last_key: self.key(self.keys - 1).0,
            tenants: self.parents.len() + 1,
        }
    }
}

/// A plan in short.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    zpool: &'static str,
    chain_size: usize,
    mapping: &'static str,
    compressor: String,
    dense: Option<String>,
    filter: &'static str,
    unit_pages: usize,
    index: &'static str,
    shards: usize,
    lru: Option<&'static str>,
    checksum: bool,
    when_full: &'static str,
    incompressible: &'static str,
    written_as: &'static str,
    max_pool_bytes: Option<u64>,
    backing_blocks: Option<u32>,
    file: Option<&'static str>,
    keys: usize,
    last_key: u64,
    tenants: usize,
}
