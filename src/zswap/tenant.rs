//! Tenants: what memory cgroups are to zswap. Each has a limit of its own on the compressed bytes
//! that are kept for it, and says whether its pages may be written back.
//!
//! Tenants form a tree under the root, which always is there: a page is charged to its tenant and
//! to every one above, and a limit, or a no to writeback, holds for all below.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::lru::ColdEnds;

/// The most tenants of a store, the root included.
pub const TENANTS_MAX: usize = 1 << 10; // 1024

/// A tenant of one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(u16);

impl TenantId {
    /// The tenant whose pages are all those that no other one's are.
    pub const ROOT: TenantId = TenantId(0);

    /// The tenant of a number that a record kept.
    pub(super) const fn from_number(number: u16) -> TenantId {
        TenantId(number)
    }

    /// Its number, 0 to [`TENANTS_MAX`] - 1.
    pub fn number(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a tenant may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantOptions {
    /// Its name, for people.
    pub name: String,
    /// The most compressed bytes that are kept for it and those below: the kernel's
    /// `memory.zswap.max`. 0 keeps none; same-filled pages take none.
    pub max_bytes: u64,
    /// Whether its pages may go to the backing: the kernel's `memory.zswap.writeback`. Where not,
    /// a page that the pool refuses is refused.
    pub writeback: bool,
}

impl Default for TenantOptions {
    /// No limit of its own.
    fn default() -> Self {
        TenantOptions { name: String::new(), max_bytes: u64::MAX, writeback: true }
    }
}

/// What a tenant has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantStats {
    /// Its number.
    pub number: usize,
    /// The number of the one above; the root has none.
    pub parent: Option<usize>,
    /// Its options.
    #[serde(flatten)]
    pub options: TenantOptions,
    /// Compressed bytes kept for it and those below now: the kernel's `memory.zswap.current`.
    pub current_bytes: u64,
    /// The most there were at once.
    pub peak_bytes: u64,
}

/// Why a tenant was not made or changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TenantError {
    /// There are as many as there can be.
    #[error("a store has at most {TENANTS_MAX} tenants")]
    TooMany,
    /// The store has no such tenant.
    #[error("the store has no tenant {0}")]
    Unknown(TenantId),
    /// The store keeps no records, and so cannot tell whose a page is.
    #[error("a store without records has no tenants but the root: set ZswapOptions::records")]
    NoRecords,
}

/// A tenant's limit that a page would have gone over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{bytes} more bytes exceed the {max_bytes} of tenant {tenant} ({current_bytes} kept)")]
pub struct OverTenantLimit {
    /// Whose limit it is: that of the page, or one above it.
    pub tenant: TenantId,
    /// Bytes that were to be kept.
    pub bytes: u64,
    /// Bytes that are kept already.
    pub current_bytes: u64,
    /// The limit.
    pub max_bytes: u64,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Tenant {
    parent: Option<TenantId>,
    name: Mutex<String>,
    max_bytes: AtomicU64,
    writeback: AtomicBool,
    current_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    /// Loads from the backing that the dynamic shrinker has not yet made up for.
    pub(super) backing_loads: AtomicU64,
    pub(super) cold_ends: ColdEnds,
}

/// All of them, by number; none ever goes.
#[derive(Debug)]
pub(super) struct Tenants {
    slots: Box<[OnceLock<Box<Tenant>>]>,
    /// How many there are; new ones are made one after the other.
    count: Mutex<usize>,
    shards: usize,
}

impl Tenants {
    /// The root alone, of a store with `shards` shards.
    pub(super) fn new(shards: usize) -> Tenants {
        let tenants = Tenants {
            slots: (0..TENANTS_MAX).map(|_| OnceLock::new()).collect(),
            count: Mutex::new(0),
            shards,
        };
        let root = TenantOptions { name: "root".to_owned(), ..TenantOptions::default() };
        tenants.insert(None, root).expect("the first");
        tenants
    }

    /// Makes a tenant below `parent`.
    pub(super) fn add(
        &self,
        parent: TenantId,
        options: TenantOptions,
    ) -> Result<TenantId, TenantError> {
        self.find(parent).ok_or(TenantError::Unknown(parent))?;
        self.insert(Some(parent), options)
    }

    fn insert(
        &self,
        parent: Option<TenantId>,
        options: TenantOptions,
    ) -> Result<TenantId, TenantError> {
        let mut count = lock(&self.count);
        let slot = self.slots.get(*count).ok_or(TenantError::TooMany)?;
        let tenant = Tenant {
            parent,
            name: Mutex::new(options.name),
            max_bytes: AtomicU64::new(options.max_bytes),
            writeback: AtomicBool::new(options.writeback),
            current_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            backing_loads: AtomicU64::new(0),
            cold_ends: ColdEnds::new(self.shards),
        };
        slot.set(Box::new(tenant)).expect("slots are filled in order");
        *count += 1;
        Ok(TenantId(*count as u16 - 1)) // <= TENANTS_MAX
    }

    /// Changes a tenant. What is over a lower limit stays; nothing more is kept until it is below.
    pub(super) fn set(&self, id: TenantId, options: TenantOptions) -> Result<(), TenantError> {
        let tenant = self.find(id).ok_or(TenantError::Unknown(id))?;
        *lock(&tenant.name) = options.name;
        tenant.max_bytes.store(options.max_bytes, Ordering::Relaxed);
        tenant.writeback.store(options.writeback, Ordering::Relaxed);
        Ok(())
    }

    /// The tenant of a number.
    pub(super) fn id(&self, number: usize) -> Option<TenantId> {
        let id = TenantId(u16::try_from(number).ok()?);
        self.find(id).map(|_| id)
    }

    pub(super) fn find(&self, id: TenantId) -> Option<&Tenant> {
        self.slots.get(id.number())?.get().map(|tenant| &**tenant)
    }

    /// The tenant of a record.
    pub(super) fn get(&self, id: TenantId) -> &Tenant {
        self.find(id).expect("pages are of tenants that there are")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TenantId, &Tenant)> {
        self.slots
            .iter()
            .map_while(OnceLock::get)
            .zip(0..)
            .map(|(tenant, n)| (TenantId(n), &**tenant))
    }

    /// The tenant, and those above it up to the root.
    fn path(&self, id: TenantId) -> impl Iterator<Item = (TenantId, &Tenant)> {
        let next = |(_, tenant): &(TenantId, &Tenant)| tenant.parent;
        let first = Some((id, self.get(id)));
        std::iter::successors(first, move |at| next(at).map(|id| (id, self.get(id))))
    }

    /// Whether pages of the tenant may go to the backing.
    pub(super) fn may_write_back(&self, id: TenantId) -> bool {
        self.path(id).all(|(_, tenant)| tenant.writeback.load(Ordering::Relaxed))
    }

    /// Whether `id` is `above` or below it.
    pub(super) fn is_below(&self, id: TenantId, above: TenantId) -> bool {
        self.path(id).any(|(id, _)| id == above)
    }

    /// Charges a tenant, and those above it, for bytes that will be kept. Their limits hold at
    /// every instant.
    pub(super) fn charge(&self, id: TenantId, bytes: u64) -> Result<(), OverTenantLimit> {
        for (at, tenant) in self.path(id) {
            if let Err(over) = tenant.charge(at, bytes) {
                let charged = self.path(id).take_while(|(charged, _)| *charged != at);
                charged.for_each(|(_, tenant)| tenant.uncharge(bytes));
                return Err(over);
            }
        }
        Ok(())
    }

    /// Compressed bytes of all pages in the pool.
    pub(super) fn all_bytes(&self) -> u64 {
        self.get(TenantId::ROOT).current_bytes.load(Ordering::Relaxed)
    }

    /// Takes a charge back.
    pub(super) fn uncharge(&self, id: TenantId, bytes: u64) {
        self.path(id).for_each(|(_, tenant)| tenant.uncharge(bytes));
    }

    /// Notes the most bytes that a tenant had in an earlier life of the store.
    pub(super) fn note_peak(&self, id: TenantId, bytes: u64) {
        self.get(id).peak_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> Vec<TenantStats> {
        let stats = |(id, tenant): (TenantId, &Tenant)| TenantStats {
            number: id.number(),
            parent: tenant.parent.map(TenantId::number),
            options: TenantOptions {
                name: lock(&tenant.name).clone(),
                max_bytes: tenant.max_bytes.load(Ordering::Relaxed),
                writeback: tenant.writeback.load(Ordering::Relaxed),
            },
            current_bytes: tenant.current_bytes.load(Ordering::Relaxed),
            peak_bytes: tenant.peak_bytes.load(Ordering::Relaxed),
        };
        self.iter().map(stats).collect()
    }

    /// Checks the charges against what each tenant's pages are in sum.
    pub(super) fn audit(&self, charged: &BTreeMap<TenantId, u64>) -> Result<(), String> {
        for (id, tenant) in self.iter() {
            let below = charged.iter().filter(|(other, _)| self.is_below(**other, id));
            let sum: u64 = below.map(|(_, bytes)| bytes).sum();
            let current = tenant.current_bytes.load(Ordering::Relaxed);
            if current != sum {
                return Err(format!("tenant {id}: {sum} bytes kept, {current} charged"));
            }
        }
        Ok(())
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> usize {
        let each = size_of::<Tenant>() + self.shards * size_of::<AtomicU64>();
        self.slots.len() * size_of::<OnceLock<Box<Tenant>>>() + self.iter().count() * each
    }
}

impl Tenant {
    fn charge(&self, id: TenantId, bytes: u64) -> Result<(), OverTenantLimit> {
        let max_bytes = self.max_bytes.load(Ordering::Relaxed);
        let charged =
            self.current_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                now.checked_add(bytes).filter(|&sum| sum <= max_bytes)
            });
        match charged {
            Ok(before) => {
                self.peak_bytes.fetch_max(before + bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(current_bytes) => {
                Err(OverTenantLimit { tenant: id, bytes, current_bytes, max_bytes })
            }
        }
    }

    /// Loads from the backing since the last call, `most` of them: the rest is kept for the next.
    pub(super) fn take_backing_loads(&self, most: u64) -> u64 {
        let take = |loads: u64| Some(loads - loads.min(most));
        let before = self.backing_loads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.expect("it always takes").min(most)
    }

    fn uncharge(&self, bytes: u64) {
        self.current_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(max_bytes: u64) -> TenantOptions {
        TenantOptions { max_bytes, ..TenantOptions::default() }
    }

    #[test]
    fn a_limit_holds_for_all_below_and_a_refusal_charges_nobody() {
        let tenants = Tenants::new(1);
        let above = tenants.add(TenantId::ROOT, limit(100)).unwrap();
        let below = tenants.add(above, limit(80)).unwrap();
        let beside = tenants.add(above, limit(u64::MAX)).unwrap();
        tenants.charge(below, 80).unwrap();
        assert_eq!(tenants.charge(below, 1).unwrap_err().tenant, below);
        tenants.charge(beside, 20).unwrap();
        let over = tenants.charge(beside, 1).unwrap_err();
        assert_eq!((over.tenant, over.current_bytes, over.max_bytes), (above, 100, 100));
        let current = || -> Vec<u64> { tenants.stats().iter().map(|t| t.current_bytes).collect() };
        assert_eq!(current(), [100, 100, 80, 20]);
        tenants.uncharge(below, 80);
        assert_eq!(current(), [20, 20, 0, 20]);
        tenants.set(above, TenantOptions { writeback: false, ..limit(0) }).unwrap();
        assert!(!tenants.may_write_back(below) && tenants.may_write_back(TenantId::ROOT));
        assert!(tenants.charge(below, 1).is_err() && tenants.charge(below, 0).is_err());
        assert!(tenants.is_below(below, above) && !tenants.is_below(above, below));
    }

    #[test]
    fn there_are_so_many_tenants_and_no_more() {
        let tenants = Tenants::new(1);
        for number in 1..TENANTS_MAX {
            let id = tenants.add(TenantId::ROOT, TenantOptions::default()).unwrap();
            assert_eq!(tenants.id(number), Some(id));
        }
        let refused = tenants.add(TenantId::ROOT, TenantOptions::default());
        assert_eq!(refused.unwrap_err(), TenantError::TooMany);
        let unknown = TenantId(TENANTS_MAX as u16);
        assert_eq!(tenants.set(unknown, limit(1)), Err(TenantError::Unknown(unknown)));
    }
}
