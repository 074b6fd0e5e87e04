//! Values of 1 byte to 1 MiB over the pages of a store.
//!
//! ```text
//!  value 7 of 9,000 bytes    | 4096 | 4096 | 808, zeros |     its run: three pages
//!  table, by value key       7 -> first page: 44 bits | length - 1: 20 bits
//!  page keys of the store    | page of the shard, upper: 30 | shard: 6 | lower: 14 |
//! ```
//!
//! A table leads from a value's key to its run: neighbouring pages of the store, aligned so that a
//! unit has pages of one value. The store's budget counts the table. A small value has a page of
//! its own: zeros to its end cost some 20 bytes of the pool, and the time of a whole page.
//!
//! - V1: each stored value has a run of its own. Pages of a run never change, and the run after a
//!   later store is another. So a reader that found all pages of a run has one whole value.
//! - V2: a run is in the table only while all of its pages are in the store. Whoever takes it out
//!   of the table removes its pages.
//! - V3: after a store, whatever its outcome, the key never gives the value it had before.
//!
//! The table is an index of kind `radix`: 8 bytes a value where keys are neighbours, 24 to 26 where
//! they are random. A B-tree took 17 to 27, and two to five times as long for a look-up.
//! A table's lock is held for a look-up or an insert, and never for the store of a page.

use std::cell::RefCell;
use std::fmt;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::AuditError;
use crate::compressor::UNIT_PAGES_MAX;
use crate::index::{Entry, Index, IndexError, IndexKind};
use crate::page::{PAGE_SIZE, Page, PageKey};
use crate::random::mix;
use crate::zswap::{LoadError, StoreError, TenantId, Zswap, with_room};

/// The longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << LENGTH_BITS;

const LENGTH_BITS: u32 = 20;

/// Bits of a page's number in its shard: 2^44 pages are stored before numbers are used again.
const NUMBER_BITS: u32 = u64::BITS - LENGTH_BITS;

/// Shards are more than the threads that ever meet in one.
const SHARD_BITS: u32 = 6;

/// Pages of a shard that are neighbours in the store: its shards have such regions.
const REGION_BITS: u32 = 14;

/// Neighbouring keys of one shard: an index has a leaf for as many.
const NEIGHBOUR_BITS: u32 = 9;

/// Values by keys of 64 bits, in the pages of a store. Threads share them by `&Values`.
///
/// ```
/// use uzswap::values::Values;
/// use uzswap::zswap::{Incompressible, ZswapOptions};
///
/// // Units of 16 KiB are compressed together. Pages that do not compress are kept as they are.
/// let options = ZswapOptions::default()
///     .compressor("zstd:1".parse()?)
///     .unit_pages(4)
///     .incompressible(Incompressible::StoreAsIs)
///     .max_pool_bytes(64 << 20);
/// let values = Values::new(options.build()?)?;
/// values.store(7, &[1; 9_000])?;
/// assert_eq!(values.value_len(7), Some(9_000));
///
/// let mut value = Vec::new();
/// assert!(values.load(7, &mut value)?);
/// assert_eq!(value, [1; 9_000]);
/// assert!(values.invalidate(7) && !values.load(7, &mut value)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Values {
    zswap: Arc<Zswap>,
    shards: Box<[Shard]>,
}

/// A shard of the table, on cache lines of its own.
#[repr(align(128))]
struct Shard(Mutex<Table>);

struct Table {
    /// Value keys to runs.
    index: Box<dyn Index>,
    /// The number of the next page.
    next: u64,
    /// Numbers are used again: a run of a page that is held is passed over.
    is_reused: bool,
    /// Sum of the lengths.
    bytes: u64,
}

/// The pages of a value, by their numbers in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// From 1.
    first: u64,
    /// Bytes of the value, 1 to [`VALUE_BYTES_MAX`].
    len: usize,
}

/// The buffer of a load.
enum Room<'a> {
    Vec(&'a mut Vec<u8>),
    Slice(&'a mut [u8]),
}

/// Values held, and their table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct ValueStats {
    /// Values held.
    pub values: u64,
    /// Sum of their lengths.
    pub value_bytes: u64,
    /// Bytes of the table, which count as metadata of the store's budget.
    pub table_bytes: u64,
}

/// Values need a store without pages: their page keys are none of the caller's.
#[derive(Debug, Error)]
#[error("values need an empty store, this one holds {} pages", .zswap.len())]
pub struct NotEmpty {
    /// The store, as it was.
    pub zswap: Box<Zswap>,
}

/// Why a value was not stored or loaded. After a failed store the key holds nothing; after a failed
/// load it holds what it held, and the content of the caller's buffer is unspecified.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum ValueError {
    /// The value is empty or too long.
    #[error("value {key} is refused: it has {len} bytes, of 1 to {VALUE_BYTES_MAX}")]
    Length {
        /// The value.
        key: u64,
        /// Its bytes.
        len: usize,
    },
    /// The store refused a page of it.
    #[error("value {key} of {len} bytes is refused")]
    Refused {
        /// The value.
        key: u64,
        /// Its bytes.
        len: usize,
        /// The page, by its key in the store, and the reason.
        #[source]
        source: StoreError,
    },
    /// No memory for it in the table.
    #[error("no headroom in the table for value {key}")]
    TableFull {
        /// The value.
        key: u64,
        /// What the index said.
        #[source]
        source: IndexError,
    },
    /// A page of it is corrupt, or the backing did not give it.
    #[error("cannot load value {key} of {len} bytes")]
    Load {
        /// The value.
        key: u64,
        /// Its bytes.
        len: usize,
        /// The page, by its key in the store, and the reason.
        #[source]
        source: LoadError,
    },
    /// A page of it is not in the store.
    #[error("value {key} of {len} bytes is corrupt: the store does not hold all of its pages")]
    Lost {
        /// The value.
        key: u64,
        /// Its bytes.
        len: usize,
    },
    /// The buffer is shorter than the value, or cannot grow.
    #[error("value {key} has {len} bytes, and the buffer has room for {room}")]
    NoRoom {
        /// The value.
        key: u64,
        /// Its bytes.
        len: usize,
        /// Bytes that the buffer has, or could get.
        room: usize,
    },
}

impl ValueError {
    /// The value.
    pub fn key(&self) -> u64 {
        match self {
            ValueError::Length { key, .. }
            | ValueError::Refused { key, .. }
            | ValueError::TableFull { key, .. }
            | ValueError::Load { key, .. }
            | ValueError::Lost { key, .. }
            | ValueError::NoRoom { key, .. } => *key,
        }
    }

    /// Whether the budget was used up, rather than the machine's memory.
    pub fn is_pool_limit(&self) -> bool {
        match self {
            ValueError::Refused { source, .. } => source.is_pool_limit(),
            ValueError::TableFull { source, .. } => matches!(source, IndexError::OverBudget(_)),
            _ => false,
        }
    }

    /// Whether the store has no room for the value: in the budget, the tenant's limit, the backing
    /// or the machine.
    fn is_for_want_of_room(&self) -> bool {
        match self {
            ValueError::Refused { source, .. } => matches!(
                source,
                StoreError::PoolLimit { .. }
                    | StoreError::TenantLimit { .. }
                    | StoreError::AllocFail { .. }
                    | StoreError::IndexFull { .. }
                    | StoreError::Backing { .. }
            ),
            ValueError::TableFull { .. } => true,
            _ => false,
        }
    }
}

thread_local! {
    /// A thread's room for the last unit of a value, which is padded.
    static PADDED: RefCell<Box<[Page; UNIT_PAGES_MAX]>> = RefCell::new(Box::new(no_pages()));
}

fn no_pages() -> [Page; UNIT_PAGES_MAX] {
    [[0; PAGE_SIZE]; UNIT_PAGES_MAX]
}

impl Values {
    /// No values yet, over `zswap`, which has none but their pages from here on.
    ///
    /// # Errors
    ///
    /// [`NotEmpty`], with the store.
    pub fn new(zswap: Zswap) -> Result<Values, NotEmpty> {
        if !zswap.is_empty() {
            return Err(NotEmpty { zswap: Box::new(zswap) });
        }
        let table = |_| Table {
            index: IndexKind::Radix.build_on(zswap.budget()),
            next: 1,
            is_reused: false,
            bytes: 0,
        };
        let shards = (0..1 << SHARD_BITS).map(table).map(|table| Shard(Mutex::new(table)));
        Ok(Values { shards: shards.collect(), zswap: Arc::new(zswap) })
    }

    /// Keeps a copy of `value`, 1 byte to [`VALUE_BYTES_MAX`], under `key`, for the root. The key's
    /// previous value is gone, also if the new one is refused.
    ///
    /// # Errors
    ///
    /// [`ValueError`]; nothing is kept of the value. A page that does not compress is a reason, if
    /// the store refuses such pages.
    pub fn store(&self, key: u64, value: &[u8]) -> Result<(), ValueError> {
        self.store_by(key, value, |first, pages| {
            all_stored(|outcome| self.zswap.store_all(first, pages, |_, stored| outcome(stored)))
        })
    }

    /// The same, with the value made to take little room, whatever the time.
    ///
    /// # Errors
    ///
    /// As [`Values::store`].
    pub fn store_densely(&self, key: u64, value: &[u8]) -> Result<(), ValueError> {
        self.store_by(key, value, |first, pages| {
            all_stored(|outcome| {
                self.zswap.store_all_densely(first, pages, |_, stored| outcome(stored));
            })
        })
    }

    /// Keeps a copy of `value` under `key`, for `tenant`, page by page: units do not serve tenants.
    ///
    /// # Errors
    ///
    /// As [`Values::store`].
    pub fn store_for(&self, tenant: TenantId, key: u64, value: &[u8]) -> Result<(), ValueError> {
        self.store_by(key, value, |first, pages| {
            let mut keys = (first.0..).map(PageKey).zip(pages);
            keys.try_for_each(|(key, page)| self.zswap.store_for(tenant, key, page).map(drop))
        })
    }

    /// Fills `value` with the value of `key`, and keeps it; `false` where the key holds none, and
    /// `value` is untouched, unless another thread removed the key's value meanwhile.
    ///
    /// # Errors
    ///
    /// [`ValueError`].
    pub fn load(&self, key: u64, value: &mut Vec<u8>) -> Result<bool, ValueError> {
        Ok(self.load_by(key, Room::Vec(value), false)?.is_some())
    }

    /// Copies the value of `key` to the start of `value`, and keeps it; its length. `None` as in
    /// [`Values::load`].
    ///
    /// # Errors
    ///
    /// [`ValueError`]; also where `value` is too short: [`Values::value_len`] tells the length.
    pub fn load_into(&self, key: u64, value: &mut [u8]) -> Result<Option<usize>, ValueError> {
        self.load_by(key, Room::Slice(value), false)
    }

    /// Fills `value` with the value of `key` and drops it; `false` as in [`Values::load`]. Of
    /// several threads that ask for the same value, one gets it.
    ///
    /// # Errors
    ///
    /// [`ValueError`]; the value stays.
    pub fn load_exclusive(&self, key: u64, value: &mut Vec<u8>) -> Result<bool, ValueError> {
        Ok(self.load_by(key, Room::Vec(value), true)?.is_some())
    }

    /// [`Values::load_into`] that drops the value, as [`Values::load_exclusive`] does.
    ///
    /// # Errors
    ///
    /// As [`Values::load_into`]; the value stays.
    pub fn load_exclusive_into(
        &self,
        key: u64,
        value: &mut [u8],
    ) -> Result<Option<usize>, ValueError> {
        self.load_by(key, Room::Slice(value), true)
    }

    /// Forgets the value of `key`; whether there was one.
    pub fn invalidate(&self, key: u64) -> bool {
        let (shard, lock) = self.shard(key);
        let removed = lock.lock().take(key, None);
        removed.inspect(|&run| self.drop_pages(shard, run)).is_some()
    }

    /// Bytes of the value of `key`, where it holds one. This is no use of the value.
    pub fn value_len(&self, key: u64) -> Option<usize> {
        self.shard(key).1.lock().get(key).map(|run| run.len)
    }

    /// Values held, in memory and in the backing; exact while no other thread changes them.
    pub fn len(&self) -> u64 {
        self.stats().values
    }

    /// Whether no value is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Values held, and their table; the rest is in [`Zswap::stats`].
    pub fn stats(&self) -> ValueStats {
        let mut stats = ValueStats::default();
        for shard in &self.shards {
            let table = shard.lock();
            stats.values += table.index.count() as u64;
            stats.value_bytes += table.bytes;
            stats.table_bytes += table.index.bytes() as u64;
        }
        stats
    }

    /// The store, for its limit, statistics, tenants, and a shrinker. Its pages are the values':
    /// whoever stores or removes one breaks a value.
    pub fn zswap(&self) -> &Arc<Zswap> {
        &self.zswap
    }

    /// Checks the tables, and that the store holds the pages of each value and no others. Only
    /// while no other thread uses the values.
    ///
    /// # Errors
    ///
    /// The first broken invariant, in words.
    pub fn audit(&self) -> Result<(), AuditError> {
        let mut pages = 0;
        for (shard, lock) in (0..).zip(&self.shards) {
            let table = lock.lock();
            table.index.audit()?;
            let (mut bytes, mut lost) = (0, None);
            table.index.for_each(PageKey(0)..=PageKey(u64::MAX), &mut |key, entry| {
                let run = Run::of(entry);
                bytes += run.len as u64;
                pages += run.pages();
                let mut numbers = run.first..run.first + run.pages();
                if !numbers.all(|number| self.zswap.contains(page_key(shard, number))) {
                    lost = Some(key.0);
                }
            });
            if let Some(key) = lost {
                return Err(format!("V2: a page of value {key} is not in the store").into());
            }
            if bytes != table.bytes {
                return Err(format!("values sum to {bytes} bytes, {} counted", table.bytes).into());
            }
        }
        match self.zswap.len() {
            held if held == pages => Ok(()),
            held => Err(format!("V2: values have {pages} pages, the store holds {held}").into()),
        }
    }

    /// Stores by `put`, which takes pages of one unit; once more, where the key's previous value
    /// took the headroom.
    fn store_by(
        &self,
        key: u64,
        value: &[u8],
        put: impl Fn(PageKey, &[Page]) -> Result<(), StoreError>,
    ) -> Result<(), ValueError> {
        self.try_store(key, value, &put).or_else(|refused| {
            let made_room = self.invalidate(key); // V3
            if made_room && refused.is_for_want_of_room() {
                return self.try_store(key, value, &put);
            }
            Err(refused)
        })
    }

    fn try_store(
        &self,
        key: u64,
        value: &[u8],
        put: impl Fn(PageKey, &[Page]) -> Result<(), StoreError>,
    ) -> Result<(), ValueError> {
        let len = value.len();
        if !(1..=VALUE_BYTES_MAX).contains(&len) {
            return Err(ValueError::Length { key, len });
        }
        let (shard, lock) = self.shard(key);
        let run = lock.lock().next_run(len, self.zswap.options().unit_pages, |number| {
            self.zswap.contains(page_key(shard, number))
        });
        let stored = self.store_pages(page_key(shard, run.first), value, put);
        let entered = stored.map_err(|source| ValueError::Refused { key, len, source });
        let entered = entered.and_then(|()| {
            // Nested, so that the lock is let go before pages are dropped or written back.
            let put = || lock.lock().put(key, run);
            let put = self.zswap.with_headroom(put);
            put.map_err(|source| ValueError::TableFull { key, source })
        });
        match entered {
            Ok(replaced) => replaced.into_iter().for_each(|run| self.drop_pages(shard, run)),
            Err(_) => self.drop_pages(shard, run),
        }
        entered.map(drop)
    }

    /// Stores the pages of a value, a unit at a time, the last one padded with zeros.
    fn store_pages(
        &self,
        first: PageKey,
        value: &[u8],
        put: impl Fn(PageKey, &[Page]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let unit_pages = self.zswap.options().unit_pages;
        let (pages, tail) = value.as_chunks::<PAGE_SIZE>();
        let before_tail = if tail.is_empty() { 0 } else { pages.len() % unit_pages };
        let (pages, last_pages) = pages.split_at(pages.len() - before_tail);
        let mut key = first;
        for unit in pages.chunks(unit_pages) {
            put(key, unit)?;
            key.0 += unit.len() as u64;
        }
        if tail.is_empty() {
            return Ok(());
        }
        with_room(&PADDED, no_pages, |unit| {
            unit[..before_tail].copy_from_slice(last_pages);
            let (page, padding) = unit[before_tail].split_at_mut(tail.len());
            page.copy_from_slice(tail);
            padding.fill(0);
            put(key, &unit[..=before_tail])
        })
    }

    fn load_by(
        &self,
        key: u64,
        mut room: Room<'_>,
        is_exclusive: bool,
    ) -> Result<Option<usize>, ValueError> {
        let (shard, lock) = self.shard(key);
        loop {
            let Some(run) = lock.lock().get(key) else { return Ok(None) };
            let Run { len, .. } = run;
            let loaded = self.load_pages(shard, run, room.take(key, len)?, is_exclusive);
            let is_whole = loaded.map_err(|source| ValueError::Load { key, len, source })?;
            if !is_whole {
                // Replaced or removed meanwhile, unless V2 is broken: look up again.
                if lock.lock().get(key) == Some(run) {
                    return Err(ValueError::Lost { key, len });
                }
                continue;
            }
            if !is_exclusive {
                return Ok(Some(len));
            }
            if lock.lock().take(key, Some(run)).is_some() {
                self.drop_pages(shard, run);
                return Ok(Some(len));
            }
        }
    }

    /// Fills `value`, as long as the run's; whether all pages were there. With `in_place`, pages of
    /// the backing stay there.
    fn load_pages(
        &self,
        shard: u64,
        run: Run,
        value: &mut [u8],
        in_place: bool,
    ) -> Result<bool, LoadError> {
        let load = |number, page: &mut Page| match in_place {
            true => self.zswap.load_in_place(page_key(shard, number), page),
            false => self.zswap.load(page_key(shard, number), page),
        };
        let (pages, tail) = value.as_chunks_mut::<PAGE_SIZE>();
        for (number, page) in (run.first..).zip(&mut *pages) {
            if !load(number, page)? {
                return Ok(false);
            }
        }
        if tail.is_empty() {
            return Ok(true);
        }
        let mut last = [0; PAGE_SIZE];
        let is_there = load(run.first + pages.len() as u64, &mut last)?;
        tail.copy_from_slice(&last[..tail.len()]);
        Ok(is_there)
    }

    /// Removes the pages of a run that is in no table.
    fn drop_pages(&self, shard: u64, run: Run) {
        self.zswap.invalidate_range(run.keys(shard));
    }

    /// The shard of a key, and its number.
    fn shard(&self, key: u64) -> (u64, &Shard) {
        let number = mix(key >> NEIGHBOUR_BITS) & ((1 << SHARD_BITS) - 1);
        (number, &self.shards[number as usize])
    }
}

impl fmt::Debug for Values {
    /// One line; what is held is in [`Values::stats`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").field("zswap", &self.zswap).finish_non_exhaustive()
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Poisoned only by a broken invariant; other keys are as good as they were.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn get(&self, key: u64) -> Option<Run> {
        self.index.get(PageKey(key)).map(Run::of)
    }

    /// Puts a run in; the one that it replaced.
    fn put(&mut self, key: u64, run: Run) -> Result<Option<Run>, IndexError> {
        let replaced = self.index.insert_or_replace(PageKey(key), run.entry())?.map(Run::of);
        self.bytes += run.len as u64;
        self.bytes -= replaced.map_or(0, |run| run.len as u64);
        Ok(replaced)
    }

    /// Removes the run of a key, where `only` is given if it is that one.
    fn take(&mut self, key: u64, only: Option<Run>) -> Option<Run> {
        let removed = self.index.remove(PageKey(key), only.map(Run::entry)).map(Run::of)?;
        self.bytes -= removed.len as u64;
        Some(removed)
    }

    /// A run for `len` bytes that no value has had (V1), in one region of the store. Its start is
    /// aligned to its pages, to a unit at most.
    fn next_run(&mut self, len: usize, unit_pages: usize, is_held: impl Fn(u64) -> bool) -> Run {
        loop {
            let mut run = Run { first: self.next, len };
            let alignment = run.pages().next_power_of_two().min(unit_pages as u64);
            run.first = run.first.next_multiple_of(alignment);
            let end = run.first + run.pages();
            if run.first >> REGION_BITS != (end - 1) >> REGION_BITS {
                run.first = run.first.next_multiple_of(1 << REGION_BITS);
            }
            let end = run.first + run.pages();
            if end > 1 << NUMBER_BITS {
                (self.next, self.is_reused) = (1, true);
                continue;
            }
            self.next = end;
            if !(self.is_reused && (run.first..end).any(&is_held)) {
                return run;
            }
        }
    }
}

impl Run {
    fn of(entry: Entry) -> Run {
        let bits = entry.0.get();
        Run { first: bits >> LENGTH_BITS, len: (bits as usize & (VALUE_BYTES_MAX - 1)) + 1 }
    }

    fn entry(self) -> Entry {
        let bits = self.first << LENGTH_BITS | (self.len - 1) as u64;
        Entry(NonZeroU64::new(bits).expect("numbers start at 1"))
    }

    fn pages(self) -> u64 {
        self.len.div_ceil(PAGE_SIZE) as u64
    }

    fn keys(self, shard: u64) -> RangeInclusive<PageKey> {
        page_key(shard, self.first)..=page_key(shard, self.first + self.pages() - 1)
    }
}

impl Room<'_> {
    /// `len` bytes of it.
    fn take(&mut self, key: u64, len: usize) -> Result<&mut [u8], ValueError> {
        match self {
            Room::Vec(value) => {
                let missing = len.saturating_sub(value.len());
                let room = value.capacity();
                value.try_reserve_exact(missing).map_err(|_| ValueError::NoRoom {
                    key,
                    len,
                    room,
                })?;
                value.resize(len, 0);
                Ok(value)
            }
            Room::Slice(value) => {
                let room = value.len();
                value.get_mut(..len).ok_or(ValueError::NoRoom { key, len, room })
            }
        }
    }
}

/// The key in the store of a page of a shard. Pages of a region are neighbours; the shards' regions
/// take turns, so that they are in different shards of the store.
fn page_key(shard: u64, number: u64) -> PageKey {
    let region = number >> REGION_BITS << SHARD_BITS | shard;
    PageKey(region << REGION_BITS | (number & ((1 << REGION_BITS) - 1)))
}

/// The first refusal of a call that stores pages.
fn all_stored<T>(
    store: impl FnOnce(&mut dyn FnMut(Result<T, StoreError>)),
) -> Result<(), StoreError> {
    let mut all = Ok(());
    store(&mut |stored| {
        if all.is_ok() {
            all = stored.map(drop);
        }
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zswap::ZswapOptions;

    #[test]
    fn numbers_that_are_used_again_pass_over_values_that_are_held() {
        let options = ZswapOptions::default().unit_pages(4);
        let values = Values::new(options.build().unwrap()).unwrap();
        let lengths = [1, 4096, 4 * 4096, 5 * 4096, 100 * 4096, 2 * 4096 + 1, VALUE_BYTES_MAX];
        let fill = |key: u64, byte: usize| {
            let len = lengths[key as usize % 7];
            values.store(key, &vec![byte as u8; len]).unwrap();
        };
        (0..100).for_each(|key| fill(key, 1));
        (0..100).filter(|key| key % 3 == 0).for_each(|key| assert!(values.invalidate(key)));
        // All keys are of one shard: `shard` finds it by their upper bits.
        values.shard(0).1.lock().next = (1 << NUMBER_BITS) - 300;
        (100..300).for_each(|key| fill(key, 2));
        assert!(values.shard(0).1.lock().is_reused);
        values.audit().unwrap();
        values.zswap.audit().unwrap();
        let mut value = Vec::new();
        for key in 0..300 {
            let is_held = key >= 100 || key % 3 != 0;
            assert_eq!(values.load(key, &mut value).unwrap(), is_held);
            let byte = 1 + u8::from(key >= 100);
            let len = lengths[key as usize % 7];
            assert!(!is_held || value == vec![byte; len], "value {key}");
        }
    }

    #[test]
    fn a_run_is_in_one_region_and_in_units_of_its_own() {
        for unit_pages in [1, 2, 16] {
            let budget = Arc::default();
            let index = IndexKind::Radix.build_on(&budget);
            let mut table = Table { index, next: 1, is_reused: false, bytes: 0 };
            let (mut before, mut words) = (0, crate::random::SplitMix64::new(1));
            for _ in 0..2000 {
                let len = words.next_word() as usize % (1 << (12 + words.next_word() % 9)) + 1;
                let run = table.next_run(len, unit_pages, |_| panic!("numbers are new"));
                assert_eq!((run, run.len), (Run::of(run.entry()), len));
                let end = run.first + run.pages();
                let (first, last) = (page_key(3, run.first).0, page_key(3, end - 1).0);
                assert_eq!((last - first, run.first > before), (run.pages() - 1, true));
                assert_eq!(first >> REGION_BITS, last >> REGION_BITS);
                let units = (last / unit_pages as u64) - (first / unit_pages as u64) + 1;
                assert_eq!(units, run.pages().div_ceil(unit_pages as u64));
                before = end - 1;
            }
        }
    }
}
