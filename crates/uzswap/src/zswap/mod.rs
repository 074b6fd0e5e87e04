//! The store: a compressed page cache, shared by threads.
//!
//! ```text
//!  store   key, page -> one word? -> compress -> zpool.insert -> index, what was there is freed
//!                                    (no lock)    (class lock)   (shard lock)
//!  load    key -> index -> word? fill : zpool.read -> decompress
//! ```
//!
//! - S1: after a store, whatever its outcome, the key never gives the page it had before; until
//!   then it gives that page. (Kernels up to 6.9 remove it first, later ones as here.)
//! - S2: a refused store changes nothing else; the caller keeps its page.
//! - S3: every handle is in one entry, and every object has a handle, but for those that the pool
//!   lost.
//! - S4: an entry that was looked up is removed by its key and identity, never by key alone.
//! - S5: a page with a record is on its tenant's list while it is in the pool and is not being
//!   written, or staged for that.
//! - S6: a block of the backing is held once by each copy in it, and by whoever reads or writes it.
//! - S7: a page leaves the pool once it has been written, and not before; where that fails, nothing
//!   has changed.
//! - S8: a handle leads to the object of its entry: one with its key in the header, and with its
//!   checksum, where there are any.
//!
//! Locks are taken in the order batch, shard, staged, pool, extents. A load goes from shard to pool
//! hand over hand, so the object is pinned before its entry can go. Compression and decompression
//! hold no shard lock, and neither does the backing. Blocks are held while they are read; what was
//! read counts if its entry is the same afterwards.
//!
//! Compressor, pool and backing may be of others; what they do wrong ends in `parts`.

mod batch;
mod checksum;
mod cold_ends;
mod counters;
mod entry;
mod error;
mod hysteresis;
mod join;
mod latency;
mod load;
mod long_words;
mod lru;
mod options;
mod parts;
#[cfg(feature = "prometheus")]
mod prometheus;
mod recompress;
mod records;
mod shard;
mod shrinker;
#[cfg(feature = "snapshot")]
pub mod snapshot;
mod stats;
mod tenant;
mod tenant_id;
mod tier;
mod unit;
mod write_queue;
mod writeback;

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::LocalKey;
use std::time::Instant;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use batch::BATCH_PAGES;
pub use counters::{Counter, CounterKind, Counters};
use entry::{Content, Held, Written};
pub use error::{BuildError, LoadError, StoreError, Stored, TooLarge};
use hysteresis::Hysteresis;
pub use hysteresis::WhenFull;
use latency::Latencies;
pub use latency::{LatencyBucket, LatencyCounts, LatencyStats};
pub use lru::Lru;
use lru::Order;
pub use options::{Incompressible, RecordOptions, WrittenAs, ZswapOptions};
use parts::{Behind, Packer, Pool, StoreId};
#[cfg(feature = "prometheus")]
#[doc(hidden)]
pub use prometheus::Text as PrometheusText;
use shard::Shards;
pub use shrinker::{Shrinker, ShrinkerOptions};
pub use stats::{BackingStats, OptionNames, Stats};
use tenant::{HeldTenant, Tenants};
pub use tenant::{OverTenantLimit, TenantError, TenantOptions, TenantStats};
use tenant_id::TenantNumber;
pub use tenant_id::{TENANTS_MAX, TenantId};
use tier::Tier;
use unit::Units;
use write_queue::WriteQueue;
pub use writeback::Shrunk;

use crate::backing::Backing;
use crate::budget::{Budget, Counted};
use crate::compressor::{CompressError, Compressor, CompressorKind, Corrupt, OUTPUT_BYTES, Output};
use crate::index::{Index, IndexError};
use crate::page::{PAGE_SIZE, Page, PageKey};
use crate::zpool::{Arena, Zpool, ZpoolError};
use crate::{AuditError, OptionError};

/// Entries of a range that are removed under one lock of their shard.
const RANGE_BATCH: usize = 64;

/// The longest header that can be put in front of an object, in bytes.
pub const OBJECT_HEADER_MAX: usize = 64;

/// Memory of a store, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct MemoryUse {
    /// Host pages that the pool owns: the kernel's `pool_total_size`.
    pub pool_bytes: u64,
    /// The most there were at once.
    pub pool_peak_bytes: u64,
    /// Sum of the compressed lengths, which nothing takes less than.
    pub compressed_bytes: u64,
    /// Index nodes, shards and records.
    pub index_bytes: u64,
    /// State of the backing's blocks, the buffer of a batch, tenants, counts of latencies.
    pub policy_bytes: u64,
    /// The allocator's tables: handles, page descriptors, free lists.
    pub zpool_metadata_bytes: u64,
    /// Resident host pages that the arena keeps for the next caller: at most 256 KiB, and the rest
    /// of a huge page.
    pub reserve_bytes: u64,
}

impl MemoryUse {
    /// Everything beside the pool's host pages.
    pub fn metadata_bytes(&self) -> u64 {
        self.index_bytes + self.policy_bytes + self.zpool_metadata_bytes
    }
}

/// The compressed page store.
pub struct Zswap {
    id: StoreId,
    zpool: Pool,
    arena: Arc<Arena>,
    compressor: Packer,
    tier: Option<Tier>,
    /// Pages that the next batch takes first.
    write_queue: WriteQueue,
    options: ZswapOptions,
    hysteresis: Hysteresis,
    /// With records.
    order: Option<Arc<Order>>,
    shards: Shards,
    units: Units,
    latencies: Latencies,
}

/// Parts to build a store from, for those that have no name.
#[derive(Debug)]
pub struct ZswapParts {
    /// Where the pool's host pages are from.
    pub arena: Arc<Arena>,
    /// The allocator, empty and alone on its arena.
    pub zpool: Box<dyn Zpool>,
    /// The compressor.
    pub compressor: Box<dyn Compressor>,
    /// Where pages are written back to.
    pub backing: Option<Box<dyn Backing>>,
}

/// A thread's room for one object: header, then whatever the compressor makes.
struct Scratch {
    bytes: [u8; OBJECT_HEADER_MAX + OUTPUT_BYTES],
}

/// An object in a [`Scratch`].
#[derive(Debug, Clone, Copy)]
struct Packed {
    /// Its length without the header.
    bytes: usize,
    /// It is the page.
    as_is: bool,
}

/// Whether to compress a page fast or densely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    Fast,
    Dense,
}

thread_local! {
    static SCRATCH: RefCell<Box<Scratch>> = RefCell::new(Box::new(Scratch::new()));
}

/// Gives `work` this thread's room for something; a new one, where a store whose part is another
/// store has it.
pub(crate) fn with_room<R, T>(
    room: &'static LocalKey<RefCell<Box<R>>>,
    new: impl FnOnce() -> R,
    work: impl FnOnce(&mut R) -> T,
) -> T {
    room.with(|room| match room.try_borrow_mut() {
        Ok(mut room) => work(&mut room),
        Err(_) => work(&mut Box::new(new())),
    })
}

fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    with_room(&SCRATCH, Scratch::new, work)
}

/// Times that a store writes back a batch to get room for one page, before it gives up.
const RECLAIM_TRIES: usize = 8;

/// Pages that a store writes back at a time: few, as it waits for them.
const RECLAIM_PAGES: usize = BATCH_PAGES / 4;

impl Zswap {
    /// An empty store of the parts that the options name, without a backing.
    ///
    /// # Errors
    ///
    /// [`BuildError`], where an option is out of its range.
    pub fn new(options: ZswapOptions) -> Result<Zswap, BuildError> {
        Zswap::of(options, ZswapParts::of(options)?)
    }

    /// An empty store with a compressor that has no name: the one of `options` is not looked at.
    ///
    /// # Errors
    ///
    /// As [`Zswap::new`].
    pub fn with_compressor(
        options: ZswapOptions,
        compressor: Box<dyn Compressor>,
    ) -> Result<Zswap, BuildError> {
        Zswap::of(options, ZswapParts { compressor, ..ZswapParts::of(options)? })
    }

    /// An empty store that writes pages back to `backing`, which must be its alone.
    ///
    /// # Errors
    ///
    /// As [`Zswap::new`]. Also if the options have no records, or if there is no memory for a batch
    /// and for the state of the blocks, about 2 bytes each.
    pub fn with_backing(
        options: ZswapOptions,
        backing: Box<dyn Backing>,
    ) -> Result<Zswap, BuildError> {
        Zswap::of(options, ZswapParts { backing: Some(backing), ..ZswapParts::of(options)? })
    }

    /// An empty store of these parts, and of the index of `options`.
    fn of(options: ZswapOptions, parts: ZswapParts) -> Result<Zswap, BuildError> {
        Zswap::from_parts(options, parts, |budget| options.index.build_on(budget))
    }

    /// An empty store of these parts: of `options` only the policies are looked at. The limit is
    /// that of the arena's budget. `index` makes the index of a shard, on that budget: what one
    /// takes that is not charged there, no limit is on.
    ///
    /// # Errors
    ///
    /// As [`Zswap::with_backing`].
    ///
    /// # Panics
    ///
    /// If a part panics as it tells its name.
    pub fn from_parts(
        options: ZswapOptions,
        parts: ZswapParts,
        index: impl Fn(&Arc<Budget>) -> Box<dyn Index>,
    ) -> Result<Zswap, BuildError> {
        options.check()?;
        if parts.backing.is_some() && options.records.is_none() {
            return Err(BuildError::BackingWithoutRecords);
        }
        if options.unit_pages > parts.compressor.unit_pages_max() {
            let compressor = parts.compressor.name();
            return Err(BuildError::NoUnits { compressor, pages: options.unit_pages });
        }
        let id = StoreId::new();
        let order = options.records.map(|_| Arc::new(Order::new(Tenants::new(id, options.shards))));
        let records = options.records.zip(order.clone());
        let budget = Arc::clone(parts.arena.budget());
        Ok(Zswap {
            id,
            zpool: Pool::new(parts.zpool, id),
            arena: parts.arena,
            compressor: Packer::new(parts.compressor, id),
            write_queue: match parts.backing {
                Some(_) => WriteQueue::new(budget.max_bytes())?,
                None => WriteQueue::default(),
            },
            tier: parts.backing.map(|backing| Tier::new(Behind::new(backing, id))).transpose()?,
            hysteresis: Hysteresis::new(budget.max_bytes(), options.accept_threshold_percent),
            shards: Shards::new(
                options.shards,
                options.unit_pages,
                &budget,
                || index(&budget),
                records.map(|(records, order)| (records.lru, order)),
            ),
            order,
            options,
            units: Units::default(),
            latencies: Latencies::default(),
        })
    }

    /// Keeps a copy of `page` under `key`, for the root. The key's previous page is gone, also if
    /// the new one is refused.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; counted by its reason, and nothing but the key's earlier page has changed.
    pub fn store(&self, key: PageKey, page: &Page) -> Result<Stored, StoreError> {
        self.store_by(Effort::Fast, TenantId::ROOT, key, page)
    }

    /// The same, with the page made to take little room, whatever the time:
    /// [`Compressor::compress_densely`].
    ///
    /// # Errors
    ///
    /// As [`Zswap::store`].
    pub fn store_densely(&self, key: PageKey, page: &Page) -> Result<Stored, StoreError> {
        self.store_by(Effort::Dense, TenantId::ROOT, key, page)
    }

    /// Keeps a copy of `page` under `key`, for `tenant`. Where that is removed meanwhile, the page
    /// is of the one above it, as all of its pages.
    ///
    /// # Errors
    ///
    /// As [`Zswap::store`]; where there is no such tenant that is not counted.
    pub fn store_for(
        &self,
        tenant: TenantId,
        key: PageKey,
        page: &Page,
    ) -> Result<Stored, StoreError> {
        self.store_by(Effort::Fast, tenant, key, page)
    }

    fn store_by(
        &self,
        effort: Effort,
        tenant: TenantId,
        key: PageKey,
        page: &Page,
    ) -> Result<Stored, StoreError> {
        self.id.enter();
        let start = self.sample();
        let Some(holding) = self.hold_tenant(tenant) else {
            self.drop_stale(key);
            return Err(StoreError::NoTenant { key, tenant });
        };
        let tenant = holding.number;
        let held = self.keep(effort, tenant, key, page).or_else(|refused| {
            self.count_refusal(&refused);
            self.write_through(tenant, key, page, refused)
        });
        let held = held.inspect_err(|_| {
            self.drop_stale(key);
        })?;
        self.with_headroom(|| self.put(key, held)).map_err(|source| {
            self.release(held);
            let refused = StoreError::IndexFull { key, source };
            self.count_refusal(&refused);
            refused
        })?;
        if matches!(held.content, Content::AsIs { .. }) && self.rejects() {
            self.stage(key, held);
        }
        self.hysteresis.note_growth(self.limited_bytes());
        if let Some(start) = start {
            self.latencies.store.record(start.elapsed());
        }
        Ok(match held.content {
            Content::SameFilled(_) => Stored::SameFilled,
            Content::Compressed { bytes, .. } => Stored::Compressed { bytes: usize::from(bytes) },
            Content::AsIs { .. } => Stored::AsIs,
            Content::InUnit { .. } | Content::LeftUnit { .. } => unreachable!("a page alone"),
            Content::WrittenBack => Stored::WrittenThrough,
        })
    }

    /// Whether a page is held under `key`, in memory or in the backing. This is no use of the page.
    pub fn contains(&self, key: PageKey) -> bool {
        self.id.enter();
        self.shards.of(key).lock().get(key).is_some()
    }

    /// Pages held, in memory and in the backing; exact while no other thread changes the store.
    pub fn len(&self) -> u64 {
        self.id.enter();
        self.shards.iter().map(|shard| shard.lock().pages()).sum()
    }

    /// Whether no page is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys of the pages held, in no particular order. A shard's keys are copied when the
    /// iterator comes to it, 8 bytes each: a page that comes or goes meanwhile may be missed.
    pub fn keys(&self) -> impl Iterator<Item = PageKey> {
        self.shards.iter().flat_map(|shard| {
            self.id.enter();
            let shard = shard.lock();
            let mut keys = Vec::with_capacity(shard.pages() as usize);
            shard.for_each(&mut |key, _| keys.push(key));
            keys
        })
    }

    /// Forgets the page of `key`; whether there was one.
    pub fn invalidate(&self, key: PageKey) -> bool {
        self.id.enter();
        let mut shard = self.shards.of(key).lock();
        let removed = shard.take(key);
        shard.counters.invalidated_pages += u64::from(removed.is_some());
        drop(shard);
        removed.inspect(|&held| self.release(held)).is_some()
    }

    /// Forgets every page with a key in `keys`; how many there were.
    pub fn invalidate_range(&self, keys: RangeInclusive<PageKey>) -> usize {
        self.id.enter();
        let mut count = 0;
        // A batch at a time: freeing takes no memory, and the shard is let go in between.
        let mut taken = [(PageKey(0), Held::of_root(Content::SameFilled(0))); RANGE_BATCH];
        for lock in self.shards.of_range(&keys) {
            let mut full = true;
            while full {
                let mut shard = lock.lock();
                let batch = shard.take_range(keys.clone(), &mut taken);
                shard.counters.invalidated_pages += batch as u64;
                drop(shard);
                taken[..batch].iter().for_each(|&(_, held)| self.release(held));
                count += batch;
                full = batch == taken.len();
            }
        }
        count
    }

    /// Packs the pool's objects together and gives every page that comes free back to the kernel;
    /// the host pages that the packing freed.
    pub fn compact(&self) -> usize {
        self.id.enter();
        let before = self.budget().pool_bytes();
        self.split_units();
        let split = before.saturating_sub(self.budget().pool_bytes()) as usize / PAGE_SIZE;
        let freed = self.zpool.compact();
        self.arena.trim();
        split + freed
    }

    /// Compacts the pool where so much of it came to be unused since the last time that it is worth
    /// it; whether that freed anything.
    fn compact_if_worth_it(&self) -> bool {
        let Some(order) = &self.order else { return false };
        let pool_bytes = self.budget().pool_bytes();
        let unused = || self.budget().pool_bytes().saturating_sub(order.tenants.all_bytes());
        self.hysteresis.is_worth_compacting(pool_bytes, unused()) && {
            // Before too: a split that finds no room comes here, and must not split again.
            self.hysteresis.note_compacted(unused());
            let split = self.split_units();
            let freed = self.zpool.compact();
            self.hysteresis.note_compacted(unused());
            split > 0 || freed > 0
        }
    }

    /// What the store did and holds.
    pub fn counters(&self) -> Counters {
        self.id.enter();
        let mut sum = Counters {
            pool_total_size: bytes_of_pages(self.zpool.stats().pool_pages),
            opened_units: self.units.opened.load(Ordering::Relaxed),
            units_opened_for_one: self.units.opened_for_one.load(Ordering::Relaxed),
            ..Counters::default()
        };
        self.shards.iter().for_each(|shard| sum.add(&shard.lock().counters));
        sum
    }

    /// Memory of the store by use.
    pub fn memory(&self) -> MemoryUse {
        self.id.enter();
        let zpool = self.zpool.stats();
        let arena = self.arena.stats();
        MemoryUse {
            pool_bytes: bytes_of_pages(zpool.pool_pages),
            pool_peak_bytes: bytes_of_pages(arena.peak_pages),
            compressed_bytes: self.shards.iter().map(|shard| shard.lock().compressed_bytes).sum(),
            index_bytes: self.shards.bytes() as u64,
            policy_bytes: self.policy_bytes() as u64,
            zpool_metadata_bytes: zpool.metadata_bytes.saturating_add(arena.metadata_bytes) as u64,
            reserve_bytes: bytes_of_pages(arena.reserve_pages),
        }
    }

    /// How long the verbs took, if that is measured.
    pub fn latencies(&self) -> LatencyStats {
        self.latencies.stats()
    }

    /// Makes a tenant below `parent`.
    ///
    /// # Errors
    ///
    /// [`TenantError`].
    pub fn add_tenant(
        &self,
        parent: TenantId,
        options: TenantOptions,
    ) -> Result<TenantId, TenantError> {
        self.id.enter();
        self.order.as_ref().ok_or(TenantError::NoRecords)?.tenants.add(parent, options)
    }

    /// Changes a tenant's options; also those of the root. Bytes over a lower limit stay until they
    /// go by themselves.
    ///
    /// # Errors
    ///
    /// [`TenantError`].
    pub fn set_tenant(&self, tenant: TenantId, options: TenantOptions) -> Result<(), TenantError> {
        self.id.enter();
        self.order.as_ref().ok_or(TenantError::NoRecords)?.tenants.set(tenant, options)
    }

    /// Removes a tenant. Its pages are those of the one above from here on, which was charged for
    /// them before: no page goes, and the order stays. A later tenant may have its number and never
    /// its id. Looks at every page known, a shard at a time.
    ///
    /// # Errors
    ///
    /// [`TenantError`]: it is the root, there are others below it, or it is not there.
    pub fn remove_tenant(&self, tenant: TenantId) -> Result<(), TenantError> {
        self.id.enter();
        let order = self.order.as_ref().ok_or(TenantError::NoRecords)?;
        let removal = order.tenants.begin_removal(tenant)?;
        for shard in self.shards.iter() {
            let reserved = shard.lock().reserve(removal.to);
            reserved.map_err(|source| TenantError::NoMemory { tenant, source })?;
        }
        removal.begin();
        for shard in self.shards.iter() {
            shard.lock().hand_over(removal.from, removal.to);
        }
        order.tenants.hand_over_loads(removal.from, removal.to);
        Ok(())
    }

    /// Holds a tenant, if it is there; without records there is the root alone.
    fn hold_tenant(&self, tenant: TenantId) -> Option<HeldTenant<'_>> {
        match &self.order {
            Some(order) => order.tenants.hold(tenant),
            None => (tenant == TenantId::ROOT).then_some(HeldTenant::ROOT),
        }
    }

    /// The tenant that has this number now: of a restored store, those of the snapshot.
    pub fn tenant_id(&self, number: usize) -> Option<TenantId> {
        self.order.as_ref()?.tenants.id_of(number)
    }

    /// The tenant of [`TenantId::to_bits`], which may be gone; `None` if it is of another store.
    pub fn tenant_of_bits(&self, bits: u64) -> Option<TenantId> {
        TenantId::of_bits(self.id, bits)
    }

    /// All tenants, the root first; none without records.
    pub fn tenants(&self) -> Vec<TenantStats> {
        self.id.enter();
        self.order.as_ref().map_or_else(Vec::new, |order| order.tenants.stats())
    }

    /// The budget: memory in use, and its limit.
    pub fn budget(&self) -> &Arc<Budget> {
        self.arena.budget()
    }

    /// The options it was made with.
    pub fn options(&self) -> &ZswapOptions {
        &self.options
    }

    /// Where pages are written back to.
    pub fn backing(&self) -> Option<&dyn Backing> {
        self.tier.as_ref().map(|tier| tier.backing().part())
    }

    /// The allocator.
    pub fn zpool(&self) -> &dyn Zpool {
        self.zpool.part()
    }

    /// Objects that the allocator did not free, or may have kept where it failed to take them. Only
    /// one of others loses any.
    pub fn lost_objects(&self) -> u64 {
        self.zpool.lost()
    }

    /// Walks every structure and checks it. Only while no other thread uses the store.
    ///
    /// # Errors
    ///
    /// The first broken invariant, in words.
    pub fn audit(&self) -> Result<(), AuditError> {
        self.id.enter();
        self.zpool.audit().map_err(|error| format!("{}: {error}", self.zpool.name()))?;
        let (mut objects, mut compressed_bytes) = (0, 0);
        let mut copies = Vec::new();
        let mut units = std::collections::HashSet::new();
        let mut charged = std::collections::BTreeMap::new();
        let staged = self.write_queue.to_vec();
        for lock in self.shards.iter() {
            let shard = lock.lock();
            shard.audit(&staged)?;
            let mut broken = None;
            let mut bytes = 0;
            shard.for_each(&mut |key, held| {
                bytes += held.content.compressed_bytes();
                *charged.entry(held.tenant).or_insert(0) += held.content.compressed_bytes();
                copies.extend(held.written);
                if held.content == Content::WrittenBack && held.written.is_none() {
                    broken = Some(format!("S7: page {key} is nowhere"));
                }
                let Some(handle) = held.content.handle() else { return };
                let is_in_unit = matches!(held.content, Content::InUnit { .. });
                objects += usize::from(!is_in_unit || units.insert(handle.to_bits()));
                if let Err(error) = self.zpool.read(handle, |_| ()) {
                    broken = Some(format!("S3: page {key}: {error}"));
                }
            });
            if let Some(error) = broken {
                return Err(error.into());
            }
            if bytes != shard.compressed_bytes {
                return Err(format!(
                    "entries sum to {bytes} compressed bytes, {} counted",
                    shard.compressed_bytes
                )
                .into());
            }
            compressed_bytes += bytes;
        }
        if let Some(order) = &self.order {
            order.tenants.audit(&charged)?;
        }
        match &self.tier {
            Some(tier) => tier.audit(&copies)?,
            None if copies.is_empty() => {}
            None => return Err("S6: copies without a backing".into()),
        }
        let stats = self.zpool.stats();
        let lost = self.zpool.lost() as usize;
        if !(objects..=objects + lost).contains(&stats.objects) {
            return Err(format!(
                "S3: {objects} entries with objects, {} objects, {lost} lost",
                stats.objects
            )
            .into());
        }
        if bytes_of_pages(stats.pool_pages) < compressed_bytes {
            return Err(format!(
                "{} host pages cannot hold {compressed_bytes} bytes",
                stats.pool_pages
            )
            .into());
        }
        Ok(())
    }

    /// Restores every page in the pool, and checks that each object is that of its entry: its
    /// header, its checksum, that it decompresses. Takes as long as to load all of them; no page
    /// counts as used. Only while no other thread uses the store.
    ///
    /// # Errors
    ///
    /// The first object that is not, in words.
    pub fn audit_objects(&self) -> Result<(), AuditError> {
        let mut page = Box::new([0; PAGE_SIZE]);
        for lock in self.shards.iter() {
            let mut broken = None;
            lock.lock().for_each(&mut |key, held| {
                let Some(handle) = held.content.handle() else { return };
                let mut restored = Ok(());
                let restore =
                    &mut |slot: &[u8]| restored = self.restore(key, held, slot, &mut page);
                if let Err(error) = self.zpool.read(handle, restore) {
                    broken = Some(format!("S3: page {key}: {error}"));
                } else if let Err(Corrupt(why)) = restored {
                    broken = Some(format!("S8: page {key}: {why}"));
                }
            });
            if let Some(error) = broken {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Brings a page into memory and returns the entry for the index.
    fn keep(
        &self,
        effort: Effort,
        tenant: TenantNumber,
        key: PageKey,
        page: &Page,
    ) -> Result<Held, StoreError> {
        if let Some(word) = self.options.same_filled.word(page) {
            return Ok(Held { tenant, ..Held::of_root(Content::SameFilled(word)) });
        }
        let pool_bytes = self.limited_bytes();
        if self.options.when_full == WhenFull::Bypass && !self.hysteresis.admit(pool_bytes) {
            let Hysteresis { max_bytes, accept_bytes, .. } = self.hysteresis;
            return Err(StoreError::PoolLimit { key, pool_bytes, max_bytes, accept_bytes });
        }
        with_scratch(|scratch| {
            let packed = self.compress(effort, key, page, scratch)?;
            // The key's previous page may have used the headroom.
            let reclaim = || self.drop_stale(key) || self.make_room();
            self.insert_packed(tenant, key, packed, scratch, reclaim)
        })
    }

    /// Compresses a page into `scratch`.
    fn compress(
        &self,
        effort: Effort,
        key: PageKey,
        page: &Page,
        scratch: &mut Scratch,
    ) -> Result<Packed, StoreError> {
        let rejects = self.rejects();
        match self.compressor.compress(effort, page, scratch.output()) {
            Ok(bytes) if bytes < PAGE_SIZE || rejects => Ok(Packed { bytes, as_is: false }),
            Err(reason) if rejects => Err(match reason {
                CompressError::TooBig => {
                    StoreError::CompressPoor { key, reason: TooLarge::Compressor(reason) }
                }
                CompressError::Failed(reason) => StoreError::CompressFail { key, reason },
            }),
            _ => Ok(scratch.pack_page(page)),
        }
    }

    fn rejects(&self) -> bool {
        self.options.incompressible == Incompressible::Reject
    }

    /// Puts an object into the pool, charged to its tenant. Where there is no room, `reclaim` is
    /// asked to make some; whether it did.
    fn insert_packed(
        &self,
        tenant: TenantNumber,
        key: PageKey,
        packed: Packed,
        scratch: &mut Scratch,
        reclaim: impl Fn() -> bool,
    ) -> Result<Held, StoreError> {
        let Packed { bytes, as_is } = packed;
        let object = scratch.object(self.options.object_header_bytes, key, bytes);
        let checksum = self.checksum_of(key, &object[self.options.object_header_bytes..]);
        self.charge(tenant, bytes as u64)
            .map_err(|source| StoreError::TenantLimit { key, source })?;
        let mut result = self.zpool.insert(object);
        for _ in 0..RECLAIM_TRIES {
            if !matches!(result, Err(ZpoolError::NoPages(_) | ZpoolError::NoTables(_))) {
                break;
            }
            self.hysteresis.note_full();
            if !self.compact_if_worth_it() && !reclaim() {
                break;
            }
            result = self.zpool.insert(object);
        }
        let handle = result.map_err(|source| {
            self.uncharge(tenant, bytes as u64);
            match source {
                ZpoolError::TooBig { .. } | ZpoolError::Empty => {
                    StoreError::CompressPoor { key, reason: TooLarge::Zpool(source) }
                }
                source => StoreError::AllocFail { key, source },
            }
        })?;
        let content = match as_is {
            false => Content::Compressed { handle, bytes: bytes as u16 }, // <= 4096
            true => Content::AsIs { handle },
        };
        Ok(Held { content, checksum, written: None, tenant })
    }

    /// Calls `insert`, which takes metadata. Where that is in the budget the pool makes room for
    /// it, and `insert` is called again.
    pub(crate) fn with_headroom<T>(
        &self,
        mut insert: impl FnMut() -> Result<T, IndexError>,
    ) -> Result<T, IndexError> {
        let mut result = insert();
        for _ in 0..RECLAIM_TRIES {
            if !matches!(result, Err(IndexError::OverBudget(_))) || !self.make_room() {
                break;
            }
            result = insert();
        }
        result
    }

    /// Writes the coldest pages back, if a store may wait for that; whether any left the pool.
    fn make_room(&self) -> bool {
        self.options.when_full == WhenFull::Reclaim && self.reclaim()
    }

    /// Writes the coldest pages back; whether any left the pool.
    fn reclaim(&self) -> bool {
        let shrinks = self.shrink(TenantId::ROOT, RECLAIM_PAGES).pages() > 0;
        if shrinks && self.options.counted == Counted::PoolAndMetadata {
            self.arena.trim(); // what the pool gave up is in the budget until then
        }
        shrinks
    }

    /// Sends a page that the pool refused to the backing, if there is one and the tenant may use
    /// it: in a batch if the page can wait in the pool, else at once.
    fn write_through(
        &self,
        tenant: TenantNumber,
        key: PageKey,
        page: &Page,
        refused: StoreError,
    ) -> Result<Held, StoreError> {
        let (Some(tier), Some(order)) = (&self.tier, &self.order) else { return Err(refused) };
        if !order.tenants.may_write_back(tenant) {
            return Err(refused);
        }
        let does_not_shrink =
            matches!(refused, StoreError::CompressPoor { .. } | StoreError::CompressFail { .. });
        if does_not_shrink && let Some(held) = self.keep_until_written(tenant, key, page) {
            return Ok(held);
        }
        self.free_blocks(tier, 1);
        let at = tier.write_page(page).map_err(|source| StoreError::Backing {
            key,
            backing: tier.backing().name(),
            refused: Box::new(refused),
            source,
        })?;
        self.shards.of(key).lock().counters.written_through_pages += 1;
        let checksum = self.checksum_of(key, page);
        let written = Written { at, bytes: PAGE_SIZE as u16, as_is: true, checksum };
        Ok(Held { content: Content::WrittenBack, checksum: 0, written: Some(written), tenant })
    }

    /// Puts an entry into the index and frees the entry that it replaced. The old one goes even if
    /// that fails (S1): a record, or a long word, needs memory whether the key has an entry or not.
    fn put(&self, key: PageKey, held: Held) -> Result<(), IndexError> {
        let mut shard = self.shards.of(key).lock();
        let put = shard.put(key, held);
        let stale = match put {
            Ok(replaced) => replaced,
            Err(_) => shard.take(key),
        };
        shard.counters.duplicate_entry += u64::from(stale.is_some());
        shard.counters.zswpout += u64::from(put.is_ok());
        drop(shard);
        stale.inspect(|&held| self.release(held));
        put.map(drop)
    }

    /// Removes what an earlier store left under the key, as this one fails (S1); whether there was
    /// anything.
    fn drop_stale(&self, key: PageKey) -> bool {
        let mut shard = self.shards.of(key).lock();
        let stale = shard.take(key);
        shard.counters.duplicate_entry += u64::from(stale.is_some());
        drop(shard);
        stale.inspect(|&held| self.release(held)).is_some()
    }

    /// Gives up all that was held of a page that is in no entry any more.
    fn release(&self, held: Held) {
        self.release_object(held);
        if let (Some(written), Some(tier)) = (held.written, &self.tier) {
            tier.release(written);
        }
    }

    /// Frees the object of a page that names it no more, if no other page does.
    fn release_object(&self, held: Held) {
        if let Some(handle) = held.content.handle() {
            self.zpool.remove(handle);
        }
        self.uncharge(held.tenant, held.content.compressed_bytes());
    }

    /// Charges a tenant for an object; at its limit, once it has written one page back.
    fn charge(&self, tenant: TenantNumber, bytes: u64) -> Result<(), OverTenantLimit> {
        let Some(order) = &self.order else { return Ok(()) };
        let Err(over) = order.tenants.charge(tenant, bytes) else { return Ok(()) };
        if self.options.when_full == WhenFull::Reclaim
            && self.shrink(over.tenant, RECLAIM_PAGES).pages() > 0
        {
            return order.tenants.charge(tenant, bytes);
        }
        Err(over)
    }

    fn uncharge(&self, tenant: TenantNumber, bytes: u64) {
        if let (Some(order), true) = (&self.order, bytes > 0) {
            order.tenants.uncharge(tenant, bytes);
        }
    }

    /// The time now, if this verb is timed.
    fn sample(&self) -> Option<Instant> {
        if self.options.latencies { latency::sample() } else { None }
    }

    fn has_checksums(&self) -> bool {
        self.options.records.is_some_and(|records| records.checksum)
    }

    /// The checksum of bytes, where there are any: else 0.
    fn checksum_of(&self, key: PageKey, bytes: &[u8]) -> u32 {
        if self.has_checksums() { checksum::checksum(key, bytes) } else { 0 }
    }

    /// Checks that `bytes` are those that had this checksum, where there are any.
    fn check_sum(&self, key: PageKey, bytes: &[u8], expected: u32) -> Result<(), Corrupt> {
        if self.has_checksums() { checksum::check(key, bytes, expected) } else { Ok(()) }
    }

    /// Bytes in use of what the limit is on.
    fn limited_bytes(&self) -> u64 {
        self.budget().used_bytes()
    }

    fn policy_bytes(&self) -> usize {
        let tenants = self.order.as_ref().map_or(0, |order| order.tenants.bytes());
        let tier = self.tier.as_ref().map_or(0, |tier| tier.usage().1);
        Latencies::bytes() + tenants + tier + self.write_queue.bytes()
    }

    /// Counts a refusal by its reason.
    fn count_refusal(&self, error: &StoreError) {
        let (StoreError::CompressPoor { key, .. }
        | StoreError::CompressFail { key, .. }
        | StoreError::PoolLimit { key, .. }
        | StoreError::TenantLimit { key, .. }
        | StoreError::AllocFail { key, .. }
        | StoreError::IndexFull { key, .. }
        | StoreError::NoTenant { key, .. }
        | StoreError::Backing { key, .. }) = error;
        let counters = &mut self.shards.of(*key).lock().counters;
        *match error {
            StoreError::CompressPoor { .. } => &mut counters.reject_compress_poor,
            StoreError::CompressFail { .. } => &mut counters.reject_compress_fail,
            StoreError::PoolLimit { .. } => &mut counters.pool_limit_hit,
            StoreError::TenantLimit { .. } => &mut counters.reject_tenant_limit,
            StoreError::AllocFail { .. } => {
                // The pool's limit, or the machine's.
                counters.pool_limit_hit += u64::from(error.is_pool_limit());
                &mut counters.reject_alloc_fail
            }
            StoreError::IndexFull { .. } => {
                counters.pool_limit_hit += u64::from(error.is_pool_limit());
                &mut counters.reject_kmemcache_fail
            }
            // Counted when the pool refused it, and not the store's.
            StoreError::Backing { .. } | StoreError::NoTenant { .. } => return,
        } += 1;
    }
}

impl fmt::Debug for Zswap {
    /// One line; what is in the store is in [`Zswap::stats`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zswap")
            .field("zpool", &format_args!("{}", self.zpool.name()))
            .field("compressor", &format_args!("{}", self.compressor.name()))
            .field("pool_bytes", &self.budget().pool_bytes())
            .finish_non_exhaustive()
    }
}

impl ZswapParts {
    /// The parts that options name, without a backing.
    ///
    /// # Errors
    ///
    /// [`OptionError`], where an option is out of its range.
    pub fn of(options: ZswapOptions) -> Result<ZswapParts, OptionError> {
        options.check()?;
        let budget = Arc::new(Budget::new(options.max_pool_bytes, options.counted));
        let arena = Arc::new(Arena::on(budget, options.host_pages));
        let zpool = options.zpool.build(Arc::clone(&arena), options.zsmalloc);
        let dense = options.dense.map(CompressorKind::build);
        let compressor = options.filter.before(options.compressor.build(), dense);
        Ok(ZswapParts { arena, zpool, compressor, backing: None })
    }
}

/// Bytes of so many host pages; a pool of others may report more than there can be.
fn bytes_of_pages(pages: usize) -> u64 {
    (pages as u64).saturating_mul(PAGE_SIZE as u64)
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { bytes: [0; OBJECT_HEADER_MAX + OUTPUT_BYTES] }
    }

    /// Where a compressor writes to.
    fn output(&mut self) -> &mut Output {
        (&mut self.bytes[OBJECT_HEADER_MAX..]).try_into().expect("scratch has both")
    }

    /// Puts an object of another place in.
    fn pack(&mut self, object: &[u8]) -> Packed {
        self.output()[..object.len()].copy_from_slice(object);
        Packed { bytes: object.len(), as_is: false }
    }

    /// Puts a page in as it is.
    fn pack_page(&mut self, page: &Page) -> Packed {
        Packed { as_is: true, ..self.pack(page) }
    }

    /// The object of `bytes`, with its header in front, which ends where the output starts.
    fn object(&mut self, header_bytes: usize, key: PageKey, bytes: usize) -> &[u8] {
        let start = OBJECT_HEADER_MAX - header_bytes;
        self.bytes[start..OBJECT_HEADER_MAX].copy_from_slice(&object_header(key)[..header_bytes]);
        &self.bytes[start..OBJECT_HEADER_MAX + bytes]
    }
}

/// The key, padded with zeros to the longest header.
fn object_header(key: PageKey) -> [u8; OBJECT_HEADER_MAX] {
    let mut header = [0; OBJECT_HEADER_MAX];
    header[..size_of::<u64>()].copy_from_slice(&key.0.to_le_bytes());
    header
}
