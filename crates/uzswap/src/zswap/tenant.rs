//! Tenants: the counterpart of memory cgroups. Each has a limit of its own on the compressed bytes
//! that are kept for it, and says whether its pages may be written back.
//!
//! Tenants form a tree under the root, which always exists. A page is charged to its tenant and to
//! every one above; a limit, or writeback off, holds for all below.
//!
//! ```text
//!  there -> removed: its pages go to the one above, shard by shard -> free, once nothing names it
//!   odd      even                                                      even, and odd again
//! ```
//!
//! A number is used again, and each time with another *life*: who kept the id of a tenant that was
//! removed never means another one. Whoever goes on with a number beyond a shard's lock *holds* it.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::cold_ends::ColdEnds;
use super::parts::StoreId;
use super::tenant_id::{TENANTS_MAX, TenantId, TenantNumber};
use crate::AuditError;
use crate::index::IndexError;
use crate::options::setters;

/// What a tenant may do.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
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

setters!(TenantOptions, name: String, max_bytes: u64, writeback: bool);

impl Default for TenantOptions {
    /// No limit of its own.
    fn default() -> Self {
        TenantOptions { name: String::new(), max_bytes: u64::MAX, writeback: true }
    }
}

/// What a tenant has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct TenantStats {
    /// Its number.
    pub number: usize,
    /// The number of the one above; the root has none.
    pub parent: Option<usize>,
    /// Its options.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub options: TenantOptions,
    /// Compressed bytes kept for it and those below now: the kernel's `memory.zswap.current`.
    pub current_bytes: u64,
    /// The most there were at once.
    pub peak_bytes: u64,
}

/// Why a tenant was not made, changed or removed.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TenantError {
    /// There are as many as there can be.
    #[error("a store has at most {TENANTS_MAX} tenants")]
    TooMany,
    /// The store has no such tenant, or has it no more.
    #[error("tenant {0} does not exist or was removed")]
    Unknown(TenantId),
    /// The root is always there.
    #[error("cannot remove the root tenant")]
    Root,
    /// There are tenants below it.
    #[error("cannot remove tenant {tenant} before the tenants below it, such as tenant {below}")]
    HasBelow {
        /// The tenant.
        tenant: TenantId,
        /// One of those below it.
        below: TenantId,
    },
    /// The tenant above has no memory for the lists of its pages; nothing was removed.
    #[error("cannot remove tenant {tenant}: no memory for the lists of the tenant above")]
    NoMemory {
        /// The tenant.
        tenant: TenantId,
        /// What was not to be had.
        #[source]
        source: IndexError,
    },
    /// The store keeps no records, and so cannot tell whose a page is.
    #[error("a store without records has the root tenant only; set ZswapOptions::records")]
    NoRecords,
}

/// A tenant's limit that a page would have gone over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{bytes} more bytes exceed the limit of tenant {tenant}, {max_bytes} bytes \
         ({current_bytes} in use)"
)]
pub struct OverTenantLimit {
    /// The tenant of the limit: that of the page, or one above it.
    pub tenant: TenantId,
    /// Bytes that were to be kept.
    pub bytes: u64,
    /// Bytes that are kept already.
    pub current_bytes: u64,
    /// The limit.
    pub max_bytes: u64,
}

const NO_PARENT: u16 = u16::MAX;

/// One of them.
#[derive(Debug)]
pub(super) struct Tenant {
    /// Odd while it is there.
    life: AtomicU32,
    /// Those that hold its number.
    holders: AtomicU32,
    /// [`NO_PARENT`] for the root.
    parent: AtomicU16,
    name: Mutex<String>,
    max_bytes: AtomicU64,
    writeback: AtomicBool,
    current_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    /// Loads from the backing that the dynamic shrinker has not yet made up for.
    pub(super) backing_loads: AtomicU64,
    pub(super) cold_ends: ColdEnds,
}

/// All of them, by number. Their memory is used again, and is not given back.
#[derive(Debug)]
pub(super) struct Tenants {
    store: StoreId,
    slots: Box<[OnceLock<Box<Tenant>>]>,
    /// They come and go one after the other.
    changes: Mutex<()>,
    shards: usize,
}

/// While there is one, its number is no other tenant's.
#[derive(Debug)]
pub(super) struct HeldTenant<'a> {
    pub(super) number: TenantNumber,
    /// None for the root, which stays.
    holders: Option<&'a AtomicU32>,
}

impl HeldTenant<'_> {
    pub(super) const ROOT: HeldTenant<'static> =
        HeldTenant { number: TenantNumber::ROOT, holders: None };
}

impl Drop for HeldTenant<'_> {
    fn drop(&mut self) {
        if let Some(holders) = self.holders {
            holders.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A tenant that is about to go, and the one its pages go to. No other comes or goes meanwhile.
#[derive(Debug)]
pub(super) struct Removal<'a> {
    tenants: &'a Tenants,
    _changes: MutexGuard<'a, ()>,
    pub(super) from: TenantNumber,
    pub(super) to: TenantNumber,
}

impl Removal<'_> {
    /// From here on it is known no more. Stores begun for it may bring pages until its number is
    /// free; they belong to the heir.
    pub(super) fn begin(&self) {
        self.tenants.get(self.from).life.fetch_add(1, Ordering::SeqCst);
    }
}

impl Tenants {
    /// The root alone, of a store with `shards` shards.
    pub(super) fn new(store: StoreId, shards: usize) -> Tenants {
        let tenants = Tenants {
            store,
            slots: (0..TENANTS_MAX).map(|_| OnceLock::new()).collect(),
            changes: Mutex::new(()),
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
        let _changes = lock(&self.changes);
        self.find(parent).ok_or(TenantError::Unknown(parent))?;
        self.insert(Some(parent.number), options)
    }

    /// Begins to remove a tenant.
    pub(super) fn begin_removal(&self, id: TenantId) -> Result<Removal<'_>, TenantError> {
        let changes = lock(&self.changes);
        let tenant = self.find(id).ok_or(TenantError::Unknown(id))?;
        let to = tenant.parent().ok_or(TenantError::Root)?;
        if let Some((below, _)) = self.iter().find(|(_, one)| one.parent() == Some(id.number)) {
            return Err(TenantError::HasBelow { tenant: id, below: self.id(below) });
        }
        Ok(Removal { tenants: self, _changes: changes, from: id.number, to })
    }

    /// Whether another tenant can get the number of a removed one: nothing is charged to it, no
    /// operation holds it, and nothing held is below it.
    fn is_free(&self, number: TenantNumber, tenant: &Tenant) -> bool {
        !tenant.is_there()
            && tenant.holders.load(Ordering::SeqCst) == 0
            && tenant.current_bytes.load(Ordering::SeqCst) == 0
            && !self
                .all()
                .any(|(below, other)| other.parent() == Some(number) && !self.is_free(below, other))
    }

    /// Holds a tenant, if it is there.
    pub(super) fn hold(&self, id: TenantId) -> Option<HeldTenant<'_>> {
        let tenant = self.slots.get(id.number()).filter(|_| self.is_own(id))?.get()?;
        let held = self.hold_number(id.number);
        // In this order: whoever finds the life as it was is counted before it ends.
        (tenant.life.load(Ordering::SeqCst) == id.life).then_some(held)
    }

    /// Holds the tenant of a record, whose shard is locked.
    pub(super) fn hold_number(&self, number: TenantNumber) -> HeldTenant<'_> {
        if number == TenantNumber::ROOT {
            return HeldTenant::ROOT;
        }
        let holders = &self.get(number).holders;
        holders.fetch_add(1, Ordering::SeqCst);
        HeldTenant { number, holders: Some(holders) }
    }

    /// Owner of a page that was begun for a tenant: the nearest one above, if the tenant was
    /// removed meanwhile. Asked and acted upon under the lock of the page's shard.
    pub(super) fn heir(&self, number: TenantNumber) -> TenantNumber {
        let there = self.path(number).find(|(_, tenant)| tenant.is_there());
        there.map_or(TenantNumber::ROOT, |(heir, _)| heir)
    }

    /// Bytes that were charged to a tenant are its heir's alone.
    pub(super) fn hand_over(&self, from: TenantNumber, heir: TenantNumber, bytes: u64) {
        let removed = self.path(from).take_while(|(number, _)| *number != heir);
        removed.for_each(|(_, tenant)| tenant.uncharge(bytes));
    }

    /// The loads that the dynamic shrinker has not made up for are the heir's.
    pub(super) fn hand_over_loads(&self, from: TenantNumber, heir: TenantNumber) {
        let loads = self.get(from).backing_loads.swap(0, Ordering::Relaxed);
        self.get(heir).backing_loads.fetch_add(loads, Ordering::Relaxed);
    }

    fn insert(
        &self,
        parent: Option<TenantNumber>,
        options: TenantOptions,
    ) -> Result<TenantId, TenantError> {
        let free = self.all().find(|(number, tenant)| self.is_free(*number, tenant));
        let number = match free {
            Some((number, _)) => number,
            None => TenantNumber(self.all().count() as u16), // <= TENANTS_MAX
        };
        let slot = self.slots.get(number.number()).ok_or(TenantError::TooMany)?;
        let tenant = slot.get_or_init(|| Box::new(Tenant::new(self.shards)));
        let parent = parent.map_or(NO_PARENT, |parent| parent.0);
        tenant.parent.store(parent, Ordering::Relaxed);
        tenant.peak_bytes.store(0, Ordering::Relaxed);
        tenant.backing_loads.store(0, Ordering::Relaxed);
        tenant.set(options);
        tenant.life.fetch_add(1, Ordering::SeqCst);
        Ok(self.id(number))
    }

    /// Changes a tenant. Bytes over a lower limit stay; nothing more is kept until usage is below
    /// it.
    pub(super) fn set(&self, id: TenantId, options: TenantOptions) -> Result<(), TenantError> {
        let _changes = lock(&self.changes);
        self.find(id).ok_or(TenantError::Unknown(id))?.set(options);
        Ok(())
    }

    /// The tenant that has this number now.
    pub(super) fn id_of(&self, number: usize) -> Option<TenantId> {
        self.number(number).map(|number| self.id(number))
    }

    /// The number of a tenant that is there.
    pub(super) fn number(&self, number: usize) -> Option<TenantNumber> {
        let number = TenantNumber(u16::try_from(number).ok()?);
        self.slots.get(number.number())?.get().filter(|tenant| tenant.is_there()).map(|_| number)
    }

    /// The id that the tenant of a number has now.
    fn id(&self, number: TenantNumber) -> TenantId {
        let store = (number != TenantNumber::ROOT).then_some(self.store);
        TenantId { store, number, life: self.get(number).life.load(Ordering::SeqCst) }
    }

    /// Whether an id is of this store.
    fn is_own(&self, id: TenantId) -> bool {
        id.store.is_none_or(|store| store == self.store)
    }

    fn find(&self, id: TenantId) -> Option<&Tenant> {
        let tenant = self.slots.get(id.number()).filter(|_| self.is_own(id))?.get()?;
        (tenant.life.load(Ordering::SeqCst) == id.life).then_some(tenant)
    }

    /// The tenant of a record.
    pub(super) fn get(&self, number: TenantNumber) -> &Tenant {
        self.slots[number.number()].get().expect("pages are of tenants that there were")
    }

    /// Those that are there.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TenantNumber, &Tenant)> {
        self.all().filter(|(_, tenant)| tenant.is_there())
    }

    /// Also those that were removed.
    fn all(&self) -> impl Iterator<Item = (TenantNumber, &Tenant)> {
        let tenants = self.slots.iter().map_while(OnceLock::get);
        tenants.zip(0..).map(|(tenant, number)| (TenantNumber(number), &**tenant))
    }

    /// The tenant, and those above it up to the root.
    fn path(&self, number: TenantNumber) -> impl Iterator<Item = (TenantNumber, &Tenant)> {
        let next = |(_, tenant): &(TenantNumber, &Tenant)| tenant.parent();
        let first = Some((number, self.get(number)));
        std::iter::successors(first, move |at| next(at).map(|above| (above, self.get(above))))
    }

    /// Whether pages of the tenant may go to the backing.
    pub(super) fn may_write_back(&self, number: TenantNumber) -> bool {
        self.path(number)
            .all(|(_, tenant)| !tenant.is_there() || tenant.writeback.load(Ordering::Relaxed))
    }

    /// Whether `number` is `above` or below it.
    pub(super) fn is_below(&self, number: TenantNumber, above: TenantNumber) -> bool {
        self.path(number).any(|(number, _)| number == above)
    }

    /// Charges a tenant, and those above it, for bytes that will be kept. Their limits hold at
    /// every instant.
    pub(super) fn charge(&self, number: TenantNumber, bytes: u64) -> Result<(), OverTenantLimit> {
        for (at, tenant) in self.path(number) {
            if let Err(over) = tenant.charge(self.id(at), bytes) {
                let charged = self.path(number).take_while(|(charged, _)| *charged != at);
                charged.for_each(|(_, tenant)| tenant.uncharge(bytes));
                return Err(over);
            }
        }
        Ok(())
    }

    /// Compressed bytes of all pages in the pool.
    pub(super) fn all_bytes(&self) -> u64 {
        self.get(TenantNumber::ROOT).current_bytes.load(Ordering::Relaxed)
    }

    /// Takes a charge back.
    pub(super) fn uncharge(&self, number: TenantNumber, bytes: u64) {
        self.path(number).for_each(|(_, tenant)| tenant.uncharge(bytes));
    }

    /// Notes the most bytes that a tenant had in an earlier life of the store.
    pub(super) fn note_peak(&self, id: TenantId, bytes: u64) {
        self.get(id.number).peak_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> Vec<TenantStats> {
        let _changes = lock(&self.changes);
        self.iter().map(|(number, tenant)| tenant.stats(number)).collect()
    }

    /// All tenants, numbered from 0 on without gaps, each after the one above it: as in a snapshot.
    pub(super) fn in_order(&self) -> (Vec<TenantStats>, Places) {
        let _changes = lock(&self.changes);
        let mut stats: Vec<TenantStats> = Vec::new();
        let mut places = Places(vec![None; self.all().count()]);
        // The lowest number whose parent has a place: all keep theirs where there are no gaps.
        while let Some((number, tenant)) = self.iter().find(|(number, tenant)| {
            places.of(*number).is_none()
                && tenant.parent().is_none_or(|above| places.of(above).is_some())
        }) {
            let parent = tenant.parent().and_then(|above| places.of(above));
            places.0[number.number()] = Some((self.id(number), stats.len()));
            stats.push(TenantStats { number: stats.len(), parent, ..tenant.stats(number) });
        }
        (stats, places)
    }

    /// The place of a page's tenant, or of the nearest one above it that has one. Under the lock of
    /// the page's shard.
    pub(super) fn place(&self, number: TenantNumber, places: &Places) -> usize {
        let place = |(number, _): (TenantNumber, &Tenant)| {
            let (id, place) = (*places.0.get(number.number())?)?;
            (id == self.id(number)).then_some(place)
        };
        self.path(number).find_map(place).unwrap_or(0)
    }

    /// Checks the charges against what each tenant's pages are in sum.
    pub(super) fn audit(&self, charged: &BTreeMap<TenantNumber, u64>) -> Result<(), AuditError> {
        if let Some(number) = charged.keys().find(|number| !self.get(**number).is_there()) {
            return Err(format!("pages of tenant {number}, which was removed").into());
        }
        for (id, tenant) in self.all() {
            let below = charged.iter().filter(|(other, _)| self.is_below(**other, id));
            let sum: u64 = below.map(|(_, bytes)| bytes).sum();
            let current = tenant.current_bytes.load(Ordering::Relaxed);
            if current != sum {
                return Err(format!("tenant {id}: {sum} bytes kept, {current} charged").into());
            }
        }
        Ok(())
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> usize {
        let each = size_of::<Tenant>() + self.shards * size_of::<AtomicU64>();
        self.slots.len() * size_of::<OnceLock<Box<Tenant>>>() + self.all().count() * each
    }
}

/// Where tenants are in a snapshot, by number.
#[derive(Debug)]
pub(super) struct Places(Vec<Option<(TenantId, usize)>>);

impl Places {
    fn of(&self, number: TenantNumber) -> Option<usize> {
        self.0[number.number()].map(|(_, place)| place)
    }
}

impl Tenant {
    /// One that is not there yet.
    fn new(shards: usize) -> Tenant {
        Tenant {
            life: AtomicU32::new(0),
            holders: AtomicU32::new(0),
            parent: AtomicU16::new(NO_PARENT),
            name: Mutex::default(),
            max_bytes: AtomicU64::new(0),
            writeback: AtomicBool::new(true),
            current_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            backing_loads: AtomicU64::new(0),
            cold_ends: ColdEnds::new(shards),
        }
    }

    fn is_there(&self) -> bool {
        self.life.load(Ordering::SeqCst) % 2 == 1
    }

    fn parent(&self) -> Option<TenantNumber> {
        let parent = self.parent.load(Ordering::Relaxed);
        (parent != NO_PARENT).then_some(TenantNumber(parent))
    }

    fn set(&self, options: TenantOptions) {
        *lock(&self.name) = options.name;
        self.max_bytes.store(options.max_bytes, Ordering::Relaxed);
        self.writeback.store(options.writeback, Ordering::Relaxed);
    }

    fn stats(&self, number: TenantNumber) -> TenantStats {
        TenantStats {
            number: number.number(),
            parent: self.parent().map(TenantNumber::number),
            options: TenantOptions {
                name: lock(&self.name).clone(),
                max_bytes: self.max_bytes.load(Ordering::Relaxed),
                writeback: self.writeback.load(Ordering::Relaxed),
            },
            current_bytes: self.current_bytes.load(Ordering::Relaxed),
            peak_bytes: self.peak_bytes.load(Ordering::Relaxed),
        }
    }

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
        // Whoever finds nothing charged sees that all of it has ended.
        self.current_bytes.fetch_sub(bytes, Ordering::SeqCst);
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
        let tenants = Tenants::new(StoreId::new(), 1);
        let above = tenants.add(TenantId::ROOT, limit(100)).unwrap();
        let below = tenants.add(above, limit(80)).unwrap();
        let beside = tenants.add(above, limit(u64::MAX)).unwrap();
        tenants.charge(below.number, 80).unwrap();
        assert_eq!(tenants.charge(below.number, 1).unwrap_err().tenant, below);
        tenants.charge(beside.number, 20).unwrap();
        let over = tenants.charge(beside.number, 1).unwrap_err();
        assert_eq!((over.tenant, over.current_bytes, over.max_bytes), (above, 100, 100));
        let current = || -> Vec<u64> { tenants.stats().iter().map(|t| t.current_bytes).collect() };
        assert_eq!(current(), [100, 100, 80, 20]);
        tenants.uncharge(below.number, 80);
        assert_eq!(current(), [20, 20, 0, 20]);
        tenants.set(above, TenantOptions { writeback: false, ..limit(0) }).unwrap();
        assert!(
            !tenants.may_write_back(below.number) && tenants.may_write_back(TenantNumber::ROOT)
        );
        assert!(
            tenants.charge(below.number, 1).is_err() && tenants.charge(below.number, 0).is_err()
        );
        assert!(
            tenants.is_below(below.number, above.number)
                && !tenants.is_below(above.number, below.number)
        );
    }

    #[test]
    fn there_are_so_many_tenants_and_no_more() {
        let tenants = Tenants::new(StoreId::new(), 1);
        for number in 1..TENANTS_MAX {
            let id = tenants.add(TenantId::ROOT, TenantOptions::default()).unwrap();
            assert_eq!(id.number(), number);
        }
        let refused = tenants.add(TenantId::ROOT, TenantOptions::default());
        assert_eq!(refused.unwrap_err(), TenantError::TooMany);
        let unknown = TenantId { store: None, number: TenantNumber(TENANTS_MAX as u16), life: 1 };
        assert_eq!(tenants.set(unknown, limit(1)), Err(TenantError::Unknown(unknown)));
    }

    #[test]
    fn each_tenant_takes_its_memory_and_a_time_for_each_shard() {
        let bytes = |shards, more| {
            let tenants = Tenants::new(StoreId::new(), shards);
            for _ in 0..more {
                tenants.add(TenantId::ROOT, TenantOptions::default()).unwrap();
            }
            tenants.bytes()
        };
        for shards in [1, 64] {
            let each = size_of::<Tenant>() + 8 * shards;
            assert_eq!(bytes(shards, 1), bytes(shards, 0) + each);
            assert_eq!(bytes(shards, 5), bytes(shards, 0) + 5 * each);
            assert!(bytes(shards, 0) >= each + TENANTS_MAX * size_of::<usize>());
        }
    }

    #[test]
    fn a_number_is_free_once_nothing_is_held_by_it_or_below_it() {
        let tenants = Tenants::new(StoreId::new(), 1);
        let above = tenants.add(TenantId::ROOT, TenantOptions::default()).unwrap();
        let below = tenants.add(above, TenantOptions::default()).unwrap();
        let held = tenants.hold(below).unwrap();
        for id in [below, above] {
            tenants.begin_removal(id).unwrap().begin();
        }
        let add = || tenants.add(TenantId::ROOT, TenantOptions::default()).unwrap().number();
        assert_eq!(add(), 3);
        drop(held);
        assert_eq!([add(), add(), add()], [above.number(), below.number(), 4]);
    }
}
