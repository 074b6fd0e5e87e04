//! What a seed stands for: the store's options, its tenants, and how often what fails.

use std::sync::Arc;

use serde::Serialize;

use super::faults::{FAULTS, Fault, FaultSet};
use super::plants::Plant;
use super::world::{Disk, FailingIndex, LyingCompressor, RottingPool, World};
use crate::budget::{Budget, Counted};
use crate::compressor::CompressorKind;
use crate::index::IndexKind;
use crate::lab::SplitMix64;
use crate::page::{PAGE_SIZE, PageKey};
use crate::same_filled::{SameFilled, SameFilledCheck};
use crate::zpool::{Arena, HostPages, ZpoolKind};
use crate::zswap::{
    Incompressible, Lru, RecordOptions, TenantId, TenantOptions, WhenFull, WrittenAs, Zswap,
    ZswapOptions, ZswapParts,
};

/// Bits of a region of keys that is never divided between shards.
const REGION_BITS: u32 = 14;

/// Added to a region whose keys are to be past 32 bits.
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

/// All that a seed decides before its history.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) options: ZswapOptions,
    pub(super) checksum: bool,
    /// Blocks of the backing, if there is one.
    pub(super) blocks: Option<u32>,
    /// Number of keys.
    pub(super) keys: usize,
    per_region: usize,
    stride: u64,
    /// Where the last region is, for an index of narrow keys: beyond them.
    beyond: bool,
    /// The parent of each tenant but the root.
    pub(super) parents: Vec<usize>,
    pub(super) rates: [u32; FAULTS],
}

impl Plan {
    /// The plan of a seed.
    pub(super) fn new(seed: u64, faults: FaultSet, plant: Option<Plant>) -> Plan {
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
            CompressorKind::None,
        ]);
        if compressor == CompressorKind::None {
            faults = faults.filter(|fault| fault != Fault::CompressLonger);
        }
        let same_filled = match dice.below(8) {
            0 => SameFilled { check: SameFilledCheck::Off, zero_only: false },
            1 => SameFilled { check: SameFilledCheck::Vector, zero_only: true },
            2 => SameFilled { check: SameFilledCheck::LastFirst, zero_only: false },
            _ => SameFilled::default(),
        };
        let mut plan = Plan {
            options: ZswapOptions {
                zpool: dice.of(&[ZpoolKind::Zsmalloc, ZpoolKind::Zbud, ZpoolKind::Z3fold]),
                compressor,
                index: dice.of(&IndexKind::ALL),
                shards: dice.of(&[1, 4, 64]),
                incompressible: dice.of(&[Incompressible::Reject, Incompressible::StoreAsIs]),
                object_header_bytes: dice.of(&[0, 0, 8]),
                max_pool_bytes: (pool_pages as u64).saturating_mul(PAGE_SIZE as u64),
                accept_threshold_percent: dice.of(&[90, 50, 100, 0]),
                when_full: dice.of(&[WhenFull::Reclaim, WhenFull::Reclaim, WhenFull::Bypass]),
                host_pages: HostPages::Small,
                same_filled,
                records: with_records.then(|| RecordOptions { lru: dice.of(&Lru::ALL), checksum }),
                written_as: dice.of(&[WrittenAs::Pages, WrittenAs::Objects]),
                latencies: !dice.one_in(8),
                counted: if dice.one_in(4) { Counted::PoolAndMetadata } else { Counted::Pool },
                ..ZswapOptions::default()
            },
            checksum,
            blocks: blocks.filter(|_| with_records),
            keys,
            per_region: keys.div_ceil(dice.of(&[1, 3, 9])),
            stride: dice.of(&[1, 1, 7]),
            beyond: dice.one_in(8),
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
        plan.suit(plant);
        plan
    }

    /// Changes the plan so that a planted bug can show.
    fn suit(&mut self, plant: Option<Plant>) {
        let Some(plant) = plant else { return };
        let options = &mut self.options;
        options.records.get_or_insert_with(RecordOptions::default).checksum = true;
        options.incompressible = Incompressible::StoreAsIs;
        options.same_filled = SameFilled::default();
        // With the index in the budget fewer words are stored at the worst moments.
        options.counted = Counted::Pool;
        match plant {
            Plant::KeyOnlyErase => {
                (options.compressor, options.max_pool_bytes) = (CompressorKind::Lz4, u64::MAX);
                self.rates[Fault::Meanwhile.number()] = 4;
            }
            Plant::Overshoot => {
                (options.zpool, options.max_pool_bytes) = (ZpoolKind::Zbud, SMALL_POOL);
            }
            Plant::EarlySuccess | Plant::WrongBlock => {
                (self.blocks, options.max_pool_bytes) = (Some(self.keys as u32), SMALL_POOL);
            }
            Plant::UncheckedObject => {
                options.records = Some(RecordOptions { checksum: false, ..Default::default() });
                options.compressor = CompressorKind::Lz4;
                self.rates[Fault::ObjectRot.number()] = 30;
            }
            _ => {}
        }
    }

    /// Changes the store that is built: to that of another seed, but for the compressor where no
    /// other one knows the objects. Keys and tenants stay.
    pub(super) fn change_store(&mut self, seed: u64, keeps_compressor: bool) {
        let other = Plan::new(seed, FaultSet::NONE, None);
        let compressor = match keeps_compressor {
            true => self.options.compressor,
            false => other.options.compressor,
        };
        self.options = ZswapOptions { compressor, ..other.options };
        self.checksum = other.checksum;
        self.blocks = other.blocks;
    }

    /// Whether the pool takes a page as it is.
    pub(super) fn pool_takes_pages(&self) -> bool {
        let max = if self.options.zpool == ZpoolKind::Zbud { 3968 } else { PAGE_SIZE };
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
        let (region, place) = (number / self.per_region, number % self.per_region);
        let mut region = region as u64;
        if self.beyond && (region + 1) as usize * self.per_region >= self.keys {
            region += BEYOND;
        }
        PageKey((region << REGION_BITS) + place as u64 * self.stride)
    }

    /// The number of a key.
    pub(super) fn number(&self, key: PageKey) -> Option<usize> {
        let region = (key.0 >> REGION_BITS) & !BEYOND;
        let place = key.0 % (1 << REGION_BITS) / self.stride;
        let number = region as usize * self.per_region + place as usize;
        (number < self.keys && self.key(number) == key).then_some(number)
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
            let options =
                TenantOptions { name: format!("tenant {}", number + 1), ..Default::default() };
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
        let compressor = self.options.compressor.build();
        let parts = ZswapParts {
            arena,
            zpool: Box::new(RottingPool::new(Arc::clone(world), zpool)),
            compressor: Box::new(LyingCompressor::new(Arc::clone(world), compressor)),
            backing: self.blocks.map(|blocks| {
                Box::new(Disk::new(Arc::clone(world), blocks)) as Box<dyn crate::backing::Backing>
            }),
        };
        let index = |budget: &Arc<Budget>| {
            let index = FailingIndex::new(Arc::clone(world), self.options.index.build_on(budget));
            Box::new(index) as Box<dyn crate::index::Index>
        };
        Zswap::from_parts(self.options, parts, index)
            .map_err(|error| format!("no memory for a store: {error}"))
    }

    /// For people.
    pub(super) fn summary(&self) -> Summary {
        let options = &self.options;
        Summary {
            zpool: options.zpool.name(),
            compressor: options.compressor.to_string(),
            index: options.index.name(),
            shards: options.shards,
            lru: options.records.map(|records| records.lru.name()),
            checksum: self.checksum,
            when_full: options.when_full.name(),
            incompressible: options.incompressible.name(),
            written_as: options.written_as.name(),
            max_pool_bytes: Some(options.max_pool_bytes).filter(|&bytes| bytes < u64::MAX),
            backing_blocks: self.blocks,
            keys: self.keys,
            tenants: self.parents.len() + 1,
        }
    }
}

/// A plan in short.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    zpool: &'static str,
    compressor: String,
    index: &'static str,
    shards: usize,
    lru: Option<&'static str>,
    checksum: bool,
    when_full: &'static str,
    incompressible: &'static str,
    written_as: &'static str,
    max_pool_bytes: Option<u64>,
    backing_blocks: Option<u32>,
    keys: usize,
    tenants: usize,
}
