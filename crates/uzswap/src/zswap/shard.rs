//! A shard: the index of some of the 64 MiB regions of key space, behind one lock.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::counters::Counters;
use super::entry::{Content, Held, Written};
use super::long_words::LongWords;
use super::lru::{Lists, Lru, Order};
use super::records::Records;
use super::tenant_id::TenantNumber;
use crate::AuditError;
use crate::budget::Budget;
use crate::index::{Entry, Index, IndexError};
use crate::page::PageKey;

/// Pages in a region that is never divided between shards: 64 MiB, as the kernel splits its trees.
const REGION_BITS: u32 = 14;

/// Tries before a lock counts as held for long: some microseconds.
const SPINS: usize = 100;

/// The shards, found by key.
#[derive(Debug)]
pub(super) struct Shards(Box<[ShardLock]>);

/// A shard's lock, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ShardLock(Mutex<Shard>);

#[derive(Debug)]
pub(super) struct Shard {
    index: Box<dyn Index>,
    keeping: Keeping,
    /// Pages of a unit, a power of two: 1 where there are none.
    unit_pages: u64,
    /// Compressed bytes of the pages in the pool.
    pub(super) compressed_bytes: u64,
    pub(super) counters: Counters,
}

/// The keys of the unit that a key is in.
pub(super) fn unit_keys(key: PageKey, unit_pages: u64) -> impl Iterator<Item = PageKey> {
    let first = key.0 & !(unit_pages - 1);
    (first..=first | (unit_pages - 1)).map(PageKey)
}

/// Where what is known of a page is kept.
#[derive(Debug)]
enum Keeping {
    /// In its index entry; long words beside it.
    Entries(LongWords),
    /// In a record that its index entry names.
    Records(Recorded),
}

#[derive(Debug)]
struct Recorded {
    records: Records,
    lists: Lists,
    order: Arc<Order>,
}

/// A page that was taken off its list, to be written back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Victim {
    pub(super) key: PageKey,
    pub(super) entry: Entry,
    pub(super) held: Held,
}

impl Shards {
    /// `count` of them, a power of two; with records where there is an order.
    pub(super) fn new(
        count: usize,
        unit_pages: usize,
        budget: &Arc<Budget>,
        index: impl Fn() -> Box<dyn Index>,
        records: Option<(Lru, Arc<Order>)>,
    ) -> Shards {
        assert!(count.is_power_of_two(), "{count} shards are no power of two");
        let keeping = |number| match &records {
            None => Keeping::Entries(LongWords::new(budget)),
            Some((lru, order)) => Keeping::Records(Recorded {
                records: Records::new(budget),
                lists: Lists::new(*lru, number, Arc::clone(order), budget),
                order: Arc::clone(order),
            }),
        };
        let shard = |number| {
            ShardLock(Mutex::new(Shard {
                index: index(),
                keeping: keeping(number),
                unit_pages: unit_pages as u64,
                compressed_bytes: 0,
                counters: Counters::default(),
            }))
        };
        Shards((0..count).map(shard).collect())
    }

    /// The shard of a number.
    pub(super) fn number(&self, number: usize) -> &ShardLock {
        &self.0[number]
    }

    /// The shard of a key. Neighbouring regions are in different shards.
    #[inline]
    pub(super) fn of(&self, key: PageKey) -> &ShardLock {
        &self.0[self.place(key.0 >> REGION_BITS)]
    }

    /// The shards of a range of keys, each once.
    pub(super) fn of_range(
        &self,
        keys: &RangeInclusive<PageKey>,
    ) -> impl Iterator<Item = &ShardLock> {
        let regions = keys.start().0 >> REGION_BITS..=keys.end().0 >> REGION_BITS;
        // As many neighbours as there are shards are in all of them.
        regions.take(self.0.len()).map(|region| &self.0[self.place(region)])
    }

    /// The shard of a region. Their number is a power of two.
    #[inline]
    fn place(&self, region: u64) -> usize {
        region as usize & (self.0.len() - 1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ShardLock> {
        self.0.iter()
    }

    pub(super) fn bytes(&self) -> usize {
        let bytes = |shard: &Shard| shard.index.bytes() + shard.keeping.bytes();
        let indexes = self.iter().map(|lock| bytes(&lock.lock())).sum::<usize>();
        self.0.len() * size_of::<ShardLock>() + indexes
    }
}

impl ShardLock {
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Shard> {
        // Poisoned only by a broken invariant; other keys are as good as they were.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the shard if that takes a moment only.
    pub(super) fn lock_soon(&self) -> Option<MutexGuard<'_, Shard>> {
        for _ in 0..SPINS {
            match self.0.try_lock() {
                Ok(shard) => return Some(shard),
                Err(TryLockError::Poisoned(shard)) => return Some(shard.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }
}

impl Shard {
    /// The entry of a key, and what is known of its page.
    pub(super) fn get(&self, key: PageKey) -> Option<(Entry, Held)> {
        let entry = self.index.get(key)?;
        Some((entry, self.keeping.held(entry)))
    }

    /// Notes that a page that [`Shard::get`] found was used.
    pub(super) fn note_use(&mut self, entry: Entry) {
        if let Keeping::Records(Recorded { records, lists, .. }) = &mut self.keeping {
            lists.note_use(records, Records::number(entry));
        }
    }

    /// Puts a page in; what was stored under its key before.
    pub(super) fn put(&mut self, key: PageKey, held: Held) -> Result<Option<Held>, IndexError> {
        let tenant = match &self.keeping {
            Keeping::Records(recorded) => recorded.order.tenants.heir(held.tenant),
            Keeping::Entries(_) => TenantNumber::ROOT,
        };
        let entry = self.keeping.add(key, Held { tenant, ..held })?;
        let replaced = self.index.insert_or_replace(key, entry).inspect_err(|_| {
            self.keeping.release(entry);
        })?;
        if let Keeping::Records(Recorded { order, .. }) = &self.keeping {
            order.tenants.hand_over(held.tenant, tenant, held.content.compressed_bytes());
        }
        self.count_held(held, u64::wrapping_add);
        if let (Some(before), Keeping::Records(recorded)) = (replaced, &mut self.keeping) {
            let Recorded { records, lists, .. } = recorded;
            lists.inherit_uses(records, Records::number(before), Records::number(entry));
        }
        Ok(replaced.map(|entry| self.forget(key, entry)))
    }

    /// Makes room for pages of a tenant, so that [`Shard::hand_over`] takes no memory.
    pub(super) fn reserve(&mut self, tenant: TenantNumber) -> Result<(), IndexError> {
        match &mut self.keeping {
            Keeping::Records(recorded) => recorded.lists.reserve(tenant),
            Keeping::Entries(_) => Ok(()),
        }
    }

    /// All pages of a tenant that was removed are another's now, for which there is room.
    pub(super) fn hand_over(&mut self, from: TenantNumber, to: TenantNumber) {
        let Keeping::Records(Recorded { records, lists, order }) = &mut self.keeping else {
            return;
        };
        lists.merge(records, from, to);
        let mut bytes = 0;
        for record in records.iter_mut().filter(|record| record.tenant() == from) {
            record.set_tenant(to);
            bytes += record.held().content.compressed_bytes();
        }
        order.tenants.hand_over(from, to, bytes);
    }

    /// Removes whatever is under the key.
    pub(super) fn take(&mut self, key: PageKey) -> Option<Held> {
        self.index.take(key).map(|entry| self.forget(key, entry))
    }

    /// Removes what is under keys of a range, as far as `taken` has room; how many there were.
    pub(super) fn take_range(
        &mut self,
        keys: RangeInclusive<PageKey>,
        taken: &mut [(PageKey, Held)],
    ) -> usize {
        let Shard { index, keeping, .. } = self;
        let mut room = taken.iter_mut();
        let count = index.take_range(keys, room.len(), &mut |key, entry| {
            *room.next().expect("at most as many") = (key, keeping.release(entry));
        });
        for at in 0..count {
            let ((key, held), later) = (taken[at], &taken[at + 1..count]);
            self.count_held(held, u64::wrapping_sub);
            taken[at].1 = match held.content {
                // The last of a unit frees its object.
                Content::InUnit { handle, bytes }
                    if later.iter().any(|(_, held)| held.content.handle() == Some(handle)) =>
                {
                    Held { content: Content::LeftUnit { bytes }, ..held }
                }
                _ => self.leave_unit(key, held),
            };
        }
        count
    }

    /// A removed page. One of a unit frees no object while the shard has others of that unit.
    pub(super) fn leave_unit(&self, key: PageKey, held: Held) -> Held {
        let Content::InUnit { handle, bytes } = held.content else { return held };
        let is_needed =
            unit_keys(key, self.unit_pages).filter(|&other| other != key).any(|other| {
                let entry = self.index.get(other);
                entry.is_some_and(|entry| self.keeping.held(entry).content.handle() == Some(handle))
            });
        match is_needed {
            true => Held { content: Content::LeftUnit { bytes }, ..held },
            false => held,
        }
    }

    /// Removes the entry if it is still this one.
    pub(super) fn remove(&mut self, key: PageKey, entry: Entry) -> Option<Held> {
        self.index.remove_if(key, entry).then(|| self.forget(key, entry))
    }

    /// Current state of a page that was looked up before; `None` if it has gone since.
    pub(super) fn current(&self, entry: Entry) -> Option<Held> {
        let Keeping::Records(recorded) = &self.keeping else { return None };
        let number = recorded.records.number_if_current(entry)?;
        Some(recorded.records.get(number).held())
    }

    /// Changes what is known of a page, which must be current.
    pub(super) fn set(&mut self, entry: Entry, held: Held) {
        let before = self.keeping.held(entry);
        self.count_held(before, u64::wrapping_sub);
        self.count_held(held, u64::wrapping_add);
        if let Keeping::Records(Recorded { records, lists, .. }) = &mut self.keeping {
            let number = Records::number(entry);
            records.get_mut(number).set_held(held);
            Self::relist(records, lists, number);
        }
    }

    /// Has another object stand for a page that is in the pool, whose entry must be current;
    /// whether it does: not while the page is being written. The one before is in no entry any
    /// more then.
    pub(super) fn replace_object(&mut self, key: PageKey, entry: Entry, by: Held) -> bool {
        match &mut self.keeping {
            Keeping::Records(Recorded { records, .. }) => {
                let is_free = !records.get(Records::number(entry)).is_being_written();
                if is_free {
                    self.set(entry, by);
                }
                is_free
            }
            Keeping::Entries(words) => {
                let before = Held::of_root(Content::of(entry, words));
                // Neither takes memory: an object is no word, and the key has an entry.
                let packed = by.content.pack(words);
                let put = packed.and_then(|entry| self.index.insert_or_replace(key, entry));
                if put.is_ok() {
                    self.count_held(before, u64::wrapping_sub);
                    self.count_held(by, u64::wrapping_add);
                }
                put.is_ok()
            }
        }
    }

    /// Gives up copies of pages that are in the pool too, `most` of them; which.
    pub(super) fn drop_copies(&mut self, most: usize, dropped: &mut Vec<Written>) {
        if self.counters.clean_pages == 0 {
            return;
        }
        let Keeping::Records(Recorded { records, .. }) = &self.keeping else { return };
        let mut clean: Vec<(Entry, Held)> = Vec::new();
        for number in records.numbers() {
            let held = records.get(number).held();
            let Some(written) = held.written.filter(|_| held.content != Content::WrittenBack)
            else {
                continue;
            };
            if dropped.len() >= most
                || dropped.try_reserve(1).is_err()
                || clean.try_reserve(1).is_err()
            {
                break;
            }
            dropped.push(written);
            clean.push((records.entry(number), Held { written: None, ..held }));
        }
        clean.into_iter().for_each(|(entry, held)| self.set(entry, held));
    }

    /// Takes the coldest page of a tenant off its list; see [`Lists::take_coldest`].
    pub(super) fn take_coldest(
        &mut self,
        tenant: TenantNumber,
        until: u64,
        looks: &mut usize,
    ) -> Option<Victim> {
        let Keeping::Records(Recorded { records, lists, .. }) = &mut self.keeping else {
            return None;
        };
        let number = lists.take_coldest(records, tenant, until, looks)?;
        Some(Self::victim(records, number))
    }

    /// Takes the page of a key off its list, if it is still this one.
    pub(super) fn take_listed(&mut self, key: PageKey, held: Held) -> Option<Victim> {
        let (entry, now) = self.get(key)?;
        let Keeping::Records(Recorded { records, lists, .. }) = &mut self.keeping else {
            return None;
        };
        let number = Records::number(entry);
        if now != held || !records.get(number).is_listed() {
            return None;
        }
        lists.remove(records, number);
        Some(Self::victim(records, number))
    }

    fn victim(records: &mut Records, number: u32) -> Victim {
        let record = records.get_mut(number);
        record.set_uses(0);
        record.set_being_written(true);
        let (key, held) = (record.key, record.held());
        Victim { key, entry: records.entry(number), held }
    }

    /// Ends the writeback of a page, which must be current.
    pub(super) fn end_writing(&mut self, entry: Entry) {
        if let Keeping::Records(Recorded { records, lists, .. }) = &mut self.keeping {
            let number = Records::number(entry);
            records.get_mut(number).set_being_written(false);
            Self::relist(records, lists, number);
        }
    }

    /// How many pages are held.
    pub(super) fn pages(&self) -> u64 {
        self.counters.stored_pages + self.counters.backing_pages
    }

    /// Says how often a page, which must be current, was used.
    pub(super) fn set_uses(&mut self, entry: Entry, uses: u8) {
        if let Keeping::Records(Recorded { records, lists, .. }) = &mut self.keeping {
            lists.set_uses(records, Records::number(entry), uses);
        }
    }

    /// Calls `visit` for each page on a list, the coldest of a list first, with the time when it
    /// was put at the hot end; then for each other page, with `None`.
    pub(super) fn for_each_by_age(&self, visit: &mut dyn FnMut(PageKey, Option<u64>)) {
        if let Keeping::Records(Recorded { records, lists, .. }) = &self.keeping {
            lists.for_each(records, &mut |time, record| visit(record.key, Some(time)));
        }
        self.index.for_each(PageKey(0)..=PageKey(u64::MAX), &mut |key, entry| {
            let listed = match &self.keeping {
                Keeping::Records(kept) => kept.records.get(Records::number(entry)).is_listed(),
                Keeping::Entries(_) => false,
            };
            if !listed {
                visit(key, None);
            }
        });
    }

    /// Whether a page, which must be current, was used since it was taken off its list.
    pub(super) fn is_used(&self, entry: Entry) -> bool {
        match &self.keeping {
            Keeping::Records(recorded) => recorded.records.get(Records::number(entry)).uses() > 0,
            Keeping::Entries(_) => false,
        }
    }

    /// Takes the coldest page of a tenant off its list if it was used less than another; see
    /// [`Lists::take_coldest_below`].
    pub(super) fn take_coldest_below(&mut self, tenant: TenantNumber, uses: u8) -> Option<Victim> {
        let Keeping::Records(Recorded { records, lists, .. }) = &mut self.keeping else {
            return None;
        };
        let number = lists.take_coldest_below(records, tenant, uses)?;
        Some(Self::victim(records, number))
    }

    /// How often a page, which must be current, was used.
    pub(super) fn uses(&mut self, entry: Entry) -> u8 {
        match &mut self.keeping {
            Keeping::Records(Recorded { records, lists, .. }) => {
                lists.uses(records, Records::number(entry))
            }
            Keeping::Entries(_) => 0,
        }
    }

    /// Notes that a page of a tenant had to be read from the backing.
    pub(super) fn note_backing_load(&mut self, tenant: TenantNumber) {
        self.counters.backing_loads += 1;
        if let Keeping::Records(recorded) = &mut self.keeping {
            recorded.lists.note_backing_load(tenant);
        }
    }

    /// A tenant's pages on the list, and how many of those are protected.
    pub(super) fn listed_pages(&self, tenant: TenantNumber) -> (usize, usize) {
        match &self.keeping {
            Keeping::Records(recorded) => recorded.lists.pages(tenant),
            Keeping::Entries(_) => (0, 0),
        }
    }

    /// Calls `visit` for each page held.
    pub(super) fn for_each(&self, visit: &mut dyn FnMut(PageKey, Held)) {
        self.index.for_each(PageKey(0)..=PageKey(u64::MAX), &mut |key, entry| {
            visit(key, self.keeping.held(entry));
        });
    }

    /// Walks the index and what is beside it, and checks them. No page is being written now, but
    /// those that are `staged` for it, of any shard.
    pub(super) fn audit(&self, staged: &[Victim]) -> Result<(), AuditError> {
        self.index.audit().map_err(|error| format!("{}: {error}", self.index.name()))?;
        let (mut words, mut entries, mut in_pool) = (0, 0, 0);
        self.for_each(&mut |_, held| {
            entries += 1;
            words += usize::from(held.content.has_slot());
            in_pool += usize::from(held.content.handle().is_some());
        });
        match &self.keeping {
            Keeping::Entries(kept) if words != kept.used() => {
                Err(format!("entries name {words} words, {} are kept", kept.used()).into())
            }
            Keeping::Entries(_) => Ok(()),
            Keeping::Records(Recorded { records, lists, .. }) => {
                records.audit()?;
                if records.used() != entries {
                    return Err(format!("{entries} entries, {} records", records.used()).into());
                }
                let listed = lists.audit(records)?;
                let is_here = |victim: &&Victim| {
                    let number = records.number_if_current(victim.entry);
                    number.is_some_and(|number| { records.get(number).key } == victim.key)
                };
                let mut to_write = 0;
                for victim in staged.iter().filter(is_here) {
                    let record = records.get(Records::number(victim.entry));
                    // Of its tenant, or of the one above that took over from it.
                    let held = Held { tenant: record.tenant(), ..victim.held };
                    if !record.is_being_written() || record.held() != held {
                        return Err(
                            format!("S5: page {} is not as it was staged", victim.key).into()
                        );
                    }
                    to_write += 1;
                }
                let numbers = records.numbers();
                let marked =
                    numbers.filter(|&number| records.get(number).is_being_written()).count();
                if listed + to_write != in_pool || marked != to_write {
                    return Err(format!(
                        "S5: {in_pool} pages in the pool, {listed} on lists, {to_write} staged, \
                         {marked} marked"
                    )
                    .into());
                }
                Ok(())
            }
        }
    }

    /// A page is on a list while it is in the pool and not being written back (S5). Only a
    /// [`Victim`] leaves the pool, and a victim is on no list.
    fn relist(records: &mut Records, lists: &mut Lists, number: u32) {
        let record = records.get(number);
        let is_in_pool = record.held().content.handle().is_some();
        if is_in_pool && !record.is_being_written() && !record.is_listed() {
            lists.put_hot(records, number);
        }
    }

    fn forget(&mut self, key: PageKey, entry: Entry) -> Held {
        let held = self.keeping.release(entry);
        self.count_held(held, u64::wrapping_sub);
        self.leave_unit(key, held)
    }

    fn count_held(&mut self, held: Held, add: fn(u64, u64) -> u64) {
        let counters = &mut self.counters;
        let count = |counter: &mut u64| *counter = add(*counter, 1);
        if held.written.is_some() && held.content != Content::WrittenBack {
            count(&mut counters.clean_pages);
        }
        match held.content {
            Content::WrittenBack => {
                count(&mut counters.backing_pages);
                return;
            }
            Content::SameFilled(_) => count(&mut counters.same_filled_pages),
            Content::AsIs { .. } => count(&mut counters.stored_incompressible_pages),
            Content::InUnit { .. } => count(&mut counters.unit_pages),
            Content::Compressed { .. } | Content::LeftUnit { .. } => {}
        }
        count(&mut counters.stored_pages);
        self.compressed_bytes = add(self.compressed_bytes, held.content.compressed_bytes());
    }
}

impl Keeping {
    fn held(&self, entry: Entry) -> Held {
        match self {
            Keeping::Entries(words) => Held::of_root(Content::of(entry, words)),
            Keeping::Records(recorded) => recorded.records.get(Records::number(entry)).held(),
        }
    }

    /// Keeps what is known of a page; the entry for its key.
    fn add(&mut self, key: PageKey, held: Held) -> Result<Entry, IndexError> {
        match self {
            Keeping::Entries(words) => held.content.pack(words),
            Keeping::Records(Recorded { records, lists, order }) => {
                lists.reserve(held.tenant)?;
                let number = records.insert(key, held)?;
                order.count_page();
                if held.content.handle().is_some() {
                    lists.add(records, number);
                }
                Ok(records.entry(number))
            }
        }
    }

    /// Forgets what an entry is about that is in the index no more.
    fn release(&mut self, entry: Entry) -> Held {
        match self {
            Keeping::Entries(words) => Held::of_root(Content::release(entry, words)),
            Keeping::Records(Recorded { records, lists, order }) => {
                let number = Records::number(entry);
                lists.remove(records, number);
                order.uncount_page();
                records.remove(number)
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Keeping::Entries(words) => words.bytes(),
            Keeping::Records(recorded) => recorded.records.bytes() + recorded.lists.bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::Location;
    use crate::index::IndexKind;
    use crate::zpool::Handle;
    use crate::zswap::parts::StoreId;
    use crate::zswap::tenant::Tenants;
    use crate::zswap::{TenantId, TenantOptions};

    #[test]
    fn a_range_has_the_shards_of_its_keys_once_each() {
        let shards = Shards::new(64, 1, &Arc::default(), || IndexKind::Radix.build(), None);
        let region = |n: u64| n << REGION_BITS;
        for (start, end, expected) in [
            (7, 7, 1),
            (region(1) - 1, region(1), 2),
            (region(62), region(66) - 1, 4),
            (5, region(63), 64),
            (0, u64::MAX, 64),
            (region(9), region(8), 0),
        ] {
            let found: Vec<*const ShardLock> =
                shards.of_range(&(PageKey(start)..=PageKey(end))).map(std::ptr::from_ref).collect();
            assert_eq!(found.len(), expected, "{start:#x} to {end:#x}");
            let of = |key| std::ptr::from_ref(shards.of(PageKey(key)));
            assert!(expected == 0 || found.contains(&of(start)) && found.contains(&of(end)));
            assert!((1..found.len()).all(|n| !found[..n].contains(&found[n])));
        }
    }

    #[test]
    fn shards_take_memory_each_with_its_index() {
        let bytes = |count| {
            let shards = Shards::new(count, 1, &Arc::default(), || IndexKind::Radix.build(), None);
            shards.bytes()
        };
        assert_eq!(bytes(1), size_of::<ShardLock>() + IndexKind::Radix.build().bytes());
        assert_eq!(bytes(64), 64 * bytes(1));
    }

    #[test]
    fn a_staged_page_is_taken_once_and_only_as_it_was_staged() {
        let order = Arc::new(Order::new(Tenants::new(StoreId::new(), 1)));
        let records = Some((Lru::Plain, order));
        let shards = Shards::new(1, 1, &Arc::default(), || IndexKind::Radix.build(), records);
        let key = PageKey(7);
        let mut shard = shards.of(key).lock();
        let handle = Handle::from_bits(1);
        let staged = Held { checksum: 1, ..Held::of_root(Content::AsIs { handle }) };
        shard.put(key, staged).unwrap();
        let other = Held { checksum: 2, ..staged };
        assert!(shard.take_listed(PageKey(8), staged).is_none(), "not there");
        assert!(shard.take_listed(key, other).is_none(), "stored again since");
        assert_eq!(shard.listed_pages(TenantNumber::ROOT).0, 1);
        let victim = shard.take_listed(key, staged).unwrap();
        assert_eq!((victim.key, victim.held), (key, staged));
        assert_eq!(shard.listed_pages(TenantNumber::ROOT).0, 0);
        assert!(shard.take_listed(key, staged).is_none(), "being written");
        shard.end_writing(victim.entry);
        assert_eq!(shard.audit(&[]), Ok(()));
    }

    #[test]
    fn as_many_copies_are_given_up_as_are_asked_for() {
        let order = Arc::new(Order::new(Tenants::new(StoreId::new(), 1)));
        let records = Some((Lru::Plain, order));
        let shards = Shards::new(1, 1, &Arc::default(), || IndexKind::Radix.build(), records);
        let mut shard = shards.of(PageKey(0)).lock();
        for number in 0..5 {
            let at = Location::new(number, 0).unwrap();
            let written = Some(Written { at, bytes: 4096, as_is: true, checksum: 0 });
            let content = Content::AsIs { handle: Handle::from_bits(1 + u64::from(number)) };
            let held = Held { written, ..Held::of_root(content) };
            shard.put(PageKey(number.into()), held).unwrap();
        }
        let mut dropped = Vec::new();
        shard.drop_copies(3, &mut dropped);
        assert_eq!((dropped.len(), shard.counters.clean_pages), (3, 2));
        shard.drop_copies(3, &mut dropped);
        assert_eq!((dropped.len(), shard.counters.clean_pages), (3, 2));
        shard.drop_copies(9, &mut dropped);
        assert_eq!((dropped.len(), shard.counters.clean_pages), (5, 0));
    }

    #[test]
    fn a_page_begun_for_a_tenant_that_is_removed_is_of_the_one_above() {
        let order = Arc::new(Order::new(Tenants::new(StoreId::new(), 1)));
        let removed = order.tenants.add(TenantId::ROOT, TenantOptions::default()).unwrap();
        let tenant = removed.as_number();
        let handle = Handle::from_bits(1);
        let held = Held { tenant, ..Held::of_root(Content::AsIs { handle }) };
        order.tenants.charge(tenant, held.content.compressed_bytes()).unwrap();
        order.tenants.begin_removal(removed).unwrap().begin();
        let records = Some((Lru::Plain, order));
        let shards = Shards::new(1, 1, &Arc::default(), || IndexKind::Radix.build(), records);
        let mut shard = shards.of(PageKey(7)).lock();
        shard.put(PageKey(7), held).unwrap();
        assert_eq!(shard.get(PageKey(7)).unwrap().1.tenant, TenantNumber::ROOT);
        assert_eq!(shard.listed_pages(TenantNumber::ROOT).0, 1);
    }
}
