//! Checks that each refusal has a reason in the world, and that each counter has its expected
//! value.

use super::faults::{Fault, Struck};
use super::pages::Kind;
use super::plan::Plan;
use uzswap::budget::{GrowError, OverBudget};
use uzswap::compressor::CompressError;
use uzswap::index::IndexError;
use uzswap::page::PAGE_SIZE;
use uzswap::zpool::{ArenaError, ZpoolError};
use uzswap::zswap::{
    Counters, Incompressible, LoadError, StoreError, Stored, TooLarge, WhenFull, Zswap,
};

/// The faults that make a write to the backing fail.
pub(super) const WRITES: [Fault; 5] = [
    Fault::WriteError,
    Fault::Outage,
    Fault::ShortWrite,
    Fault::NoSpace,
    Fault::ObjectRot, // a page that is found corrupt is not written
];

/// Facts at the time of a refusal.
#[derive(Debug)]
pub(super) struct Refused<'a> {
    pub(super) plan: &'a Plan,
    pub(super) zswap: &'a Zswap,
    pub(super) kind: Kind,
    pub(super) tenant: usize,
    pub(super) struck: Struck,
    /// The limits that each tenant had since the store began; none where that is not known.
    pub(super) limits: Option<&'a [Vec<u64>]>,
    /// Pages that the store holds at most.
    pub(super) present: usize,
    /// Other threads remove tenants, and make new ones.
    pub(super) tenants_change: bool,
}

impl Refused<'_> {
    /// Checks the reason of a refusal; what it is called.
    pub(super) fn check(&self, error: &StoreError) -> Result<&'static str, String> {
        let (name, is_right) = self.judge(error)?;
        match is_right {
            true => Ok(name),
            false => Err(format!("refused without a reason: {error:?}; faults: {}", self.struck)),
        }
    }

    fn judge(&self, error: &StoreError) -> Result<(&'static str, bool), String> {
        let Refused { plan, struck, .. } = self;
        let options = &plan.options;
        let rejects = options.incompressible == Incompressible::Reject;
        let max_bytes = options.max_pool_bytes;
        Ok(match error {
            StoreError::CompressPoor { reason: TooLarge::Compressor(reason), .. } => {
                let by_itself =
                    matches!(self.kind, Kind::Dense | Kind::Noise) || struck.by(&LONGER);
                let told = struck.by(&[Fault::CompressTooBig]) || by_itself;
                ("refused: compressed too large", rejects && told && is_too_big(reason))
            }
            StoreError::CompressPoor { reason: TooLarge::Zpool(reason), .. } => {
                let most = self.zswap.zpool().object_size_max();
                let right = matches!(reason, ZpoolError::TooBig { bytes, max, .. }
                    if bytes > max && *max == most);
                ("refused: too large for the pool", right)
            }
            StoreError::NoTenant { .. } => ("refused: no such tenant", self.tenants_change),
            StoreError::CompressFail { .. } => {
                ("refused: compressor failed", rejects && struck.by(&[Fault::CompressFail]))
            }
            StoreError::PoolLimit { pool_bytes, max_bytes: max, accept_bytes, .. } => {
                let full = pool_bytes >= max || pool_bytes > accept_bytes;
                let bypass = options.when_full == WhenFull::Bypass;
                ("refused: pool was full", bypass && full && *max == max_bytes)
            }
            StoreError::TenantLimit { source, .. } => {
                let at = source.tenant.number();
                let known = self.limits.is_none_or(|all| all[at].contains(&source.max_bytes));
                let over = source.current_bytes + source.bytes > source.max_bytes;
                let is_above = self.tenants_change || plan.is_below(self.tenant, at);
                ("refused: tenant limit", known && over && is_above)
            }
            StoreError::AllocFail { source, .. } => match source {
                ZpoolError::NoPages(ArenaError::Limit { source, .. }) => {
                    ("refused: pool is full", passes(plan, source))
                }
                ZpoolError::NoTables(GrowError::OverBudget(over)) => {
                    ("refused: tables are over the budget", passes(plan, over))
                }
                ZpoolError::NoPages(_) => ("refused: no pages", struck.by(&[Fault::NoPages])),
                ZpoolError::NoTables(_) => ("refused: no tables", struck.by(&[Fault::NoTables])),
                _ => ("refused: by the pool", false),
            },
            StoreError::IndexFull { source, .. } => match source {
                IndexError::OverBudget(over) => {
                    ("refused: index is over the budget", passes(plan, over))
                }
                IndexError::NoMemory => ("refused: no index", struck.by(&[Fault::NoIndex])),
                IndexError::KeyTooLarge { .. } => ("refused: key too large", plan.is_narrow()),
                _ => ("refused: by the index", false),
            },
            StoreError::Backing { refused, source, .. } => {
                let (_, is_right) = self.judge(refused)?;
                let full = source.kind() == std::io::ErrorKind::StorageFull
                    && may_be_full(plan, self.present);
                ("refused: by the backing too", is_right && (struck.by(&WRITES) || full))
            }
            _ => ("refused: no known reason", false),
        })
    }

    /// Checks how a page that was not refused is kept; what that is called.
    pub(super) fn check_kept(
        &self,
        stored: Stored,
        is_same_filled: bool,
    ) -> Result<&'static str, String> {
        let options = &self.plan.options;
        let (name, is_right) = match stored {
            Stored::SameFilled => ("stored: same-filled", is_same_filled),
            Stored::Compressed { bytes } => {
                ("stored: compressed", !is_same_filled && (1..=PAGE_SIZE).contains(&bytes))
            }
            Stored::AsIs => {
                let by_itself = matches!(self.kind, Kind::Dense | Kind::Noise);
                let is_refused = by_itself || self.struck.by(&REFUSALS);
                let name = match options.incompressible {
                    Incompressible::StoreAsIs => "stored: as is",
                    Incompressible::Reject => "stored: staged",
                };
                let allowed = options.incompressible == Incompressible::StoreAsIs
                    || is_refused
                        && self.plan.blocks.is_some()
                        && options.max_pool_bytes >= 16 * PAGE_SIZE as u64;
                (name, allowed && !is_same_filled)
            }
            Stored::WrittenThrough => {
                ("stored: written through", self.plan.blocks.is_some() && !is_same_filled)
            }
            _ => ("stored: in no known way", false),
        };
        if is_right { Ok(name) } else { Err(format!("kept as {stored:?}")) }
    }
}

/// The faults that make a page one that does not shrink.
const REFUSALS: [Fault; 3] = [Fault::CompressLonger, Fault::CompressTooBig, Fault::CompressFail];

const LONGER: [Fault; 1] = [Fault::CompressLonger];

fn is_too_big(reason: &CompressError) -> bool {
    *reason == CompressError::TooBig
}

/// Whether a backing can be full: each page has a copy in two blocks at most, and a batch that is
/// on its way has 64.
pub(super) fn may_be_full(plan: &Plan, present: usize) -> bool {
    plan.blocks.is_some_and(|blocks| blocks as usize <= 2 * present + 64)
}

/// Checks the reason of a load that failed; what it is called.
pub(super) fn check_load_error(
    zswap: &Zswap,
    struck: Struck,
    error: &LoadError,
) -> Result<&'static str, String> {
    let (name, is_right) = match error {
        LoadError::Corrupt { place, .. } if place == zswap.zpool().name() => {
            ("load: corrupt in the pool", struck.by(&[Fault::ObjectRot]))
        }
        LoadError::Corrupt { .. } => ("load: corrupt in the backing", struck.by_lie()),
        LoadError::Backing { .. } => {
            ("load: not read", struck.by(&[Fault::ReadError, Fault::Outage]))
        }
        _ => ("load: no known reason", false),
    };
    match is_right {
        true => Ok(name),
        false => Err(format!("failed without a reason: {error:?}; faults: {struck}")),
    }
}

/// What the operations add up to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) stored: u64,
    pub(super) written_through: u64,
    /// Pages that are in the pool as they are, where such are refused.
    pub(super) staged: u64,
    /// Stores that found the key taken; not known where keys are shared.
    pub(super) replaced: Option<u64>,
    pub(super) loads: u64,
    pub(super) corrupt_in_pool: u64,
    pub(super) corrupt: u64,
    pub(super) not_read: u64,
    pub(super) exclusive: u64,
    pub(super) invalidated: u64,
    pub(super) no_index: u64,
    /// Refusals but for those by the index.
    pub(super) refused: u64,
    /// Pages that were left out of the snapshots that the store went on from.
    pub(super) left_out: u64,
    /// Pages that these brought to the backing, at most.
    pub(super) to_backing: u64,
}

impl Totals {
    /// Counts a store that kept its page.
    pub(super) fn note_stored(&mut self, plan: &Plan, stored: Stored) {
        let rejects = plan.options.incompressible == Incompressible::Reject;
        self.stored += 1;
        self.written_through += u64::from(stored == Stored::WrittenThrough);
        self.staged += u64::from(rejects && stored == Stored::AsIs);
    }

    /// Checks why a page that may have been there was not loaded, and counts it; what that is
    /// called.
    pub(super) fn note_failed_load(
        &mut self,
        zswap: &Zswap,
        was_there: bool,
        struck: Struck,
        error: &LoadError,
    ) -> Result<&'static str, String> {
        if !was_there {
            return Err(format!("expected no page, found {error:?}"));
        }
        let answer = check_load_error(zswap, struck, error)?;
        match answer {
            "load: not read" => self.not_read += 1,
            _ => self.corrupt += 1,
        }
        Ok(answer)
    }

    pub(super) fn add(&mut self, other: &Totals) {
        self.stored += other.stored;
        self.written_through += other.written_through;
        self.staged += other.staged;
        self.replaced = self.replaced.zip(other.replaced).map(|(a, b)| a + b);
        self.loads += other.loads;
        self.corrupt_in_pool += other.corrupt_in_pool;
        self.corrupt += other.corrupt;
        self.not_read += other.not_read;
        self.exclusive += other.exclusive;
        self.invalidated += other.invalidated;
        self.no_index += other.no_index;
        self.refused += other.refused;
        self.left_out += other.left_out;
        self.to_backing += other.to_backing;
    }
}

/// The pages that must be held: all, and those kept as a word.
pub(super) type HeldPages = (u64, u64);

/// Checks the store's figures, while nothing happens. `held` is not known where keys are shared;
/// objects were read `rotten_reads` times with a bit changed.
pub(super) fn check_figures(
    plan: &Plan,
    zswap: &Zswap,
    totals: &Totals,
    held: Option<HeldPages>,
    rotten_reads: u64,
) -> Result<(), String> {
    let Counters {
        pool_total_size,
        stored_pages,
        same_filled_pages,
        stored_incompressible_pages,
        unit_pages,
        backing_pages,
        clean_pages,
        zswpout,
        zswpin,
        backing_loads,
        promoted_pages,
        exclusive_loads,
        invalidated_pages,
        duplicate_entry,
        pool_limit_hit,
        reject_alloc_fail,
        reject_kmemcache_fail,
        reject_compress_fail,
        reject_compress_poor,
        reject_tenant_limit,
        reject_reclaim_fail: _, // the reasons are checked where they are given
        written_back_pages,
        dropped_clean_pages,
        written_through_pages,
        staged_pages,
        recompressed_pages,
        stored_units,
        opened_units,
        units_opened_for_one,
        joined_units,
        split_units,
        decompress_fail,
        backing_read_fail,
    } = zswap.counters();
    let refusals =
        reject_alloc_fail + reject_compress_fail + reject_compress_poor + reject_tenant_limit;
    let refused = totals.refused + written_through_pages + staged_pages;
    let reclaims = plan.options.when_full == WhenFull::Reclaim;
    let (pages, words) = held.unwrap_or((stored_pages + backing_pages, same_filled_pages));
    let replaced = totals.replaced.unwrap_or(duplicate_entry);
    let loads = totals.loads + totals.exclusive;
    let equal = [
        ("zswpout", zswpout, totals.stored),
        (
            "zswpout, of what became of them",
            zswpout,
            exclusive_loads
                + invalidated_pages
                + duplicate_entry
                + stored_pages
                + backing_pages
                + totals.left_out,
        ),
        ("loads", zswpin + backing_loads, loads + totals.corrupt_in_pool),
        ("exclusive_loads", exclusive_loads, totals.exclusive),
        ("invalidated_pages", invalidated_pages, totals.invalidated),
        ("duplicate_entry", duplicate_entry, replaced),
        ("pages held", stored_pages + backing_pages, pages),
        ("same_filled_pages", same_filled_pages, words),
        ("reject_kmemcache_fail", reject_kmemcache_fail, totals.no_index),
        ("backing_read_fail", backing_read_fail, totals.not_read),
    ];
    if let Some((name, found, expected)) = equal.iter().find(|(_, a, b)| a != b) {
        return Err(format!("{name}: expected {expected}, found {found}"));
    }
    if zswap.lost_objects() > 0 {
        return Err(format!("{} objects were not there to be freed", zswap.lost_objects()));
    }
    let max_bytes = plan.options.max_pool_bytes;
    let memory = zswap.memory();
    let at_most = [
        ("pool_total_size over the limit", pool_total_size, max_bytes),
        ("pool_bytes over the limit", memory.pool_bytes, max_bytes),
        ("pool_peak_bytes over the limit", memory.pool_peak_bytes, max_bytes),
        ("the budget's peak over the limit", zswap.budget().peak_bytes(), max_bytes),
        ("clean_pages", clean_pages, stored_pages - same_filled_pages),
        ("same-filled and incompressible pages", same_filled_pages, stored_pages),
        ("incompressible pages", stored_incompressible_pages, stored_pages),
        ("unit_pages", unit_pages, stored_pages - same_filled_pages),
        ("units_opened_for_one", units_opened_for_one, opened_units),
        ("joined_units", joined_units, recompressed_pages),
        ("split_units", split_units, stored_units + joined_units),
        ("promoted_pages", promoted_pages, backing_loads),
        ("corrupt loads not counted", totals.corrupt, decompress_fail),
        ("decompress_fail", decompress_fail, totals.corrupt + rotten_reads),
        ("written through", totals.written_through, written_through_pages),
        ("staged", totals.staged, staged_pages),
        (
            "written through or staged",
            written_through_pages + staged_pages,
            totals.written_through + totals.staged + totals.no_index,
        ),
        ("refusals counted", refusals, refused),
        ("refusals not counted", refused, refusals + if reclaims { 0 } else { pool_limit_hit }),
        ("backing_pages", backing_pages, backing_pages_max(&zswap.counters()) + totals.to_backing),
    ];
    if let Some((name, found, most)) = at_most.iter().find(|(_, a, b)| a > b) {
        return Err(format!("{name}: expected at most {most}, found {found}"));
    }
    if plan.blocks.is_none()
        && backing_pages + written_back_pages + dropped_clean_pages + backing_loads > 0
    {
        return Err("pages in a backing that is not there".to_owned());
    }
    // One in 16 of each thread is timed.
    let latencies = zswap.latencies();
    let timed = [
        ("stores timed", latencies.store.count, totals.stored),
        ("loads timed", latencies.load.count + latencies.backing_load.count, loads),
    ];
    if let Some((name, found, most)) = timed.iter().find(|(_, a, b)| a > b) {
        return Err(format!("{name}: expected at most {most}, found {found}"));
    }
    if !plan.options.latencies && timed.iter().any(|(_, found, _)| *found > 0) {
        return Err("times were taken that were not asked for".to_owned());
    }
    Ok(())
}

/// Whether a refusal is one of the plan's budget, and was right.
pub(super) fn passes(plan: &Plan, over: &OverBudget) -> bool {
    over.max_bytes == plan.options.max_pool_bytes
        && over.counted == plan.options.counted
        && over.used_bytes <= over.max_bytes
        && over.used_bytes + over.asked_bytes > over.max_bytes
}

fn backing_pages_max(counters: &Counters) -> u64 {
    counters.written_back_pages + counters.dropped_clean_pages + counters.written_through_pages
}

/// Checks that a store that holds nothing takes what it took at first. Its lists of tenants and the
/// arena's list of free runs stay; so many `tenants` had a number of their own.
pub(super) fn check_empty(
    plan: &Plan,
    zswap: &Zswap,
    start: usize,
    tenants: usize,
) -> Result<(), String> {
    zswap.compact();
    zswap.audit()?;
    let memory = zswap.memory();
    let counters = zswap.counters();
    let held = [
        ("pool_bytes", memory.pool_bytes),
        ("compressed_bytes", memory.compressed_bytes),
        ("stored_pages", counters.stored_pages),
        ("backing_pages", counters.backing_pages),
        ("reserve_bytes", memory.reserve_bytes),
    ];
    if let Some((name, bytes)) = held.iter().find(|(_, bytes)| *bytes > 0) {
        return Err(format!("an empty store: {name} is {bytes}"));
    }
    // A list of 24 bytes each, or so, in each shard.
    let lists = plan.options.shards * tenants * 32;
    if memory.index_bytes as usize > start + lists {
        return Err(format!("an empty store: its index takes {} bytes", memory.index_bytes));
    }
    if let Some(tenant) = zswap.tenants().iter().find(|tenant| tenant.current_bytes > 0) {
        return Err(format!("an empty store: tenant {} is charged", tenant.number));
    }
    Ok(())
}
