//! The eviction order: lists of records, cold to hot.
//!
//! ```text
//!   cold end                                     hot end
//!   evicted <--- record <--> record <--> record <--- stored, spared
//! ```
//!
//! Each shard has a list for each tenant, so that the order needs no lock of its own. *Stamps* find
//! the coldest page of all shards. A clock ticks once in some stores, and a record notes it when it
//! is put at the hot end; the list whose cold end has the oldest stamp is next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::cold_ends::EMPTY;
use super::records::{EPOCH_BITS, NONE, Record, Records, USES_MAX};
use super::tenant::Tenants;
use super::tenant_id::TenantNumber;
use crate::AuditError;
use crate::budget::Budget;
use crate::budgeted_vec::BudgetedVec;
use crate::index::IndexError;
use crate::named_enum::named;

/// The orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Lru {
    /// First in, first out, but a page that was used since is spared once: kernels from 6.12 on.
    #[default]
    SecondChance,
    /// First in, first out, by counted uses: a page is spared while its count, halved each time, is
    /// not 0. A page loaded from the backing comes back into a full pool only in exchange for a
    /// page with fewer uses. Ours, after TinyLFU, with exact counts.
    Frequency,
    /// Least recently used: a load moves the page to the hot end. Kernels up to 6.7.
    Plain,
    /// The same, and the pages that the backing was lately asked for protect as many of those that
    /// are left from the dynamic shrinker: kernels 6.8 to 6.11.
    Protected,
}

named!(
    Lru, "eviction order",
    SecondChance => "second-chance", Frequency => "frequency", Plain => "plain",
    Protected => "protected",
);

/// Loads, for each page that the store knows, after which counted uses count half.
const EPOCH_LOADS: u64 = 4;

/// An epoch is as long as if there were so many pages at least.
const EPOCH_PAGES_MIN: u64 = 1 << 8;

/// Pages that are looked at to find the one whose place another may take.
const LOOKS_TO_DISPLACE: usize = 64;

/// Loads that a shard counts by itself before it tells the others.
const LOADS_COUNTED: u32 = 1 << 4;

/// Pages put at a hot end of a shard between two ticks of the clock.
const TICK_PAGES: u32 = 1 << 4;

/// A list is left for another when its pages came to the hot end so many ticks after those at the
/// cold end of that other.
const SLACK_TICKS: u64 = 2;

/// The clock of stamps, shared by the shards: read at every store, written at few.
#[derive(Debug, Default)]
pub(super) struct Clock(AtomicU64);

impl Clock {
    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn tick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The time of a stamp, which is its lower half.
    fn time_of(&self, stamp: u32) -> u64 {
        let now = self.now();
        now.saturating_sub(u64::from((now as u32).wrapping_sub(stamp)))
    }
}

/// When counted uses were last halved.
#[derive(Debug, Default)]
struct Epoch {
    number: AtomicU32,
    loads: AtomicU64,
    pages: AtomicU64,
}

impl Epoch {
    /// Counts loads; after enough of them an epoch ends.
    fn count(&self, loads: u64) {
        let loads = self.loads.fetch_add(loads, Ordering::Relaxed) + loads;
        let enough = EPOCH_LOADS * self.pages.load(Ordering::Relaxed).max(EPOCH_PAGES_MIN);
        // Of several threads that see the end, one resets the count.
        if loads >= enough
            && self.loads.compare_exchange(loads, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.number.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A record's uses now: halved once for each epoch since they were counted.
    fn age(&self, record: &mut Record) -> u8 {
        let now = self.number.load(Ordering::Relaxed) % (1 << EPOCH_BITS);
        let epochs = now.wrapping_sub(record.epoch()) % (1 << EPOCH_BITS);
        let uses = record.uses().checked_shr(epochs).unwrap_or(0);
        record.set_uses(uses);
        record.set_epoch(now);
        uses
    }
}

/// A shard's list of one tenant.
#[derive(Debug, Clone, Copy)]
struct List {
    hot_end: u32,
    cold_end: u32,
    pages: usize,
    /// Pages that [`Lru::Protected`] spares now.
    protected: usize,
}

impl List {
    const EMPTY: List = List { hot_end: NONE, cold_end: NONE, pages: 0, protected: 0 };

    /// Puts a record on the cold side of another one, or at the hot end where that is [`NONE`].
    fn link_below(&mut self, records: &mut Records, number: u32, hotter: u32) {
        let colder = match hotter {
            NONE => std::mem::replace(&mut self.hot_end, number),
            other => std::mem::replace(&mut records.get_mut(other).colder, number),
        };
        let record = records.get_mut(number);
        (record.hotter, record.colder) = (hotter, colder);
        record.set_listed(true);
        match colder {
            NONE => self.cold_end = number,
            other => records.get_mut(other).hotter = number,
        }
        self.pages += 1;
    }

    fn unlink(&mut self, records: &mut Records, number: u32) {
        let record = records.get_mut(number);
        let (hotter, colder) = (record.hotter, record.colder);
        record.set_listed(false);
        match hotter {
            NONE => self.hot_end = colder,
            other => records.get_mut(other).colder = colder,
        }
        match colder {
            NONE => self.cold_end = hotter,
            other => records.get_mut(other).hotter = hotter,
        }
        self.pages -= 1;
    }

    /// Counts a page that came to the hot end, as kernel 6.8 does: the protection is halved once it
    /// exceeds a quarter of the pages.
    fn protect(&mut self) {
        self.protected += 1;
        if self.protected > self.pages / 4 {
            self.protected /= 2;
        }
    }
}

/// A shard's lists.
#[derive(Debug)]
pub(super) struct Lists {
    lru: Lru,
    shard: usize,
    /// By tenant; those at the end without pages may be missing.
    lists: BudgetedVec<List>,
    order: Arc<Order>,
    /// Pages until the clock's next tick.
    until_tick: u32,
    /// Loads until they are counted.
    until_loads: u32,
}

/// State that the shards' lists share.
#[derive(Debug)]
pub(super) struct Order {
    clock: Clock,
    epoch: Epoch,
    pub(super) tenants: Tenants,
}

/// Where the coldest page of all is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coldest {
    /// In this shard's list.
    pub(super) shard: usize,
    /// Of this tenant.
    pub(super) tenant: TenantNumber,
    /// Pages that came to the hot end later are not as cold as those of other lists.
    pub(super) until: u64,
}

impl Order {
    pub(super) fn new(tenants: Tenants) -> Order {
        Order { clock: Clock::default(), epoch: Epoch::default(), tenants }
    }

    /// The list with the oldest cold end, of those tenants from `scope` down that may be written
    /// back.
    pub(super) fn coldest(&self, scope: TenantNumber) -> Option<Coldest> {
        let (mut oldest, mut next) = ((EMPTY, 0, scope), EMPTY);
        for (id, tenant) in self.tenants.iter() {
            if !self.tenants.is_below(id, scope) || !self.tenants.may_write_back(id) {
                continue;
            }
            for (time, shard) in tenant.cold_ends.iter() {
                if time < oldest.0 {
                    (next, oldest) = (oldest.0, (time, shard, id));
                } else {
                    next = next.min(time);
                }
            }
        }
        let (time, shard, tenant) = oldest;
        let until = next.saturating_add(SLACK_TICKS);
        (time != EMPTY).then_some(Coldest { shard, tenant, until })
    }

    /// Counts a page that the store came to know.
    pub(super) fn count_page(&self) {
        self.epoch.pages.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a page that it knows no more.
    pub(super) fn uncount_page(&self) {
        self.epoch.pages.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lists {
    pub(super) fn new(lru: Lru, shard: usize, order: Arc<Order>, budget: &Arc<Budget>) -> Lists {
        Lists {
            lru,
            shard,
            lists: BudgetedVec::new(budget),
            order,
            until_tick: TICK_PAGES,
            until_loads: LOADS_COUNTED,
        }
    }

    /// Makes room for a page of a tenant, so that no later call takes memory for it.
    pub(super) fn reserve(&mut self, tenant: TenantNumber) -> Result<(), IndexError> {
        let count = tenant.number() + 1;
        if let Some(more) = count.checked_sub(self.lists.len()).filter(|&more| more > 0) {
            self.lists.reserve_exact(more)?;
            self.lists.resize(count, List::EMPTY);
        }
        Ok(())
    }

    /// Puts the record of a new page at the hot end.
    pub(super) fn add(&mut self, records: &mut Records, number: u32) {
        let record = records.get_mut(number);
        self.order.epoch.age(record); // of now
        record.set_uses(self.lru.first_uses());
        self.put_hot(records, number);
    }

    /// Puts a record that is on no list at the hot end.
    pub(super) fn put_hot(&mut self, records: &mut Records, number: u32) {
        self.until_tick -= 1;
        if self.until_tick == 0 {
            self.until_tick = TICK_PAGES;
            self.order.clock.tick();
        }
        let now = self.order.clock.now();
        let record = records.get_mut(number);
        record.stamp = now as u32;
        let tenant = record.tenant();
        let list = &mut self.lists[tenant.number()];
        list.link_below(records, number, NONE);
        list.protect();
        if list.pages == 1 {
            self.order.tenants.get(tenant).cold_ends.set(self.shard, now);
        }
    }

    /// A key that is stored again is used as often as before, where uses are counted.
    pub(super) fn inherit_uses(&self, records: &mut Records, before: u32, now: u32) {
        if self.lru == Lru::Frequency {
            let uses = self.uses(records, before);
            records.get_mut(now).set_uses(uses);
        }
    }

    /// Takes a record off its list, if it is on one.
    pub(super) fn remove(&mut self, records: &mut Records, number: u32) {
        let record = records.get(number);
        if !record.is_listed() {
            return;
        }
        let tenant = record.tenant();
        let list = &mut self.lists[tenant.number()];
        list.unlink(records, number);
        if list.pages == 0 {
            self.order.tenants.get(tenant).cold_ends.set(self.shard, EMPTY);
        }
    }

    /// Moves the pages of a tenant to the list of another, for which there must be room, each in
    /// its place by age.
    pub(super) fn merge(&mut self, records: &mut Records, from: TenantNumber, to: TenantNumber) {
        let Some(gone) = self.lists.get_mut(from.number()) else { return };
        let gone = std::mem::replace(gone, List::EMPTY);
        self.order.tenants.get(from).cold_ends.set(self.shard, EMPTY);
        let clock = &self.order.clock;
        let time = |records: &Records, number| clock.time_of(records.get(number).stamp);
        let list = &mut self.lists[to.number()];
        let (mut moved, mut hotter) = (gone.cold_end, list.cold_end);
        while moved != NONE {
            let next = records.get(moved).hotter;
            while hotter != NONE && time(records, hotter) <= time(records, moved) {
                hotter = records.get(hotter).hotter;
            }
            list.link_below(records, moved, hotter);
            moved = next;
        }
        list.protected += gone.protected;
        if list.cold_end != NONE {
            let coldest = time(records, list.cold_end);
            self.order.tenants.get(to).cold_ends.set(self.shard, coldest);
        }
    }

    /// Notes that a page was used.
    pub(super) fn note_use(&mut self, records: &mut Records, number: u32) {
        let record = records.get_mut(number);
        match self.lru {
            Lru::SecondChance => record.set_uses(1),
            Lru::Frequency => {
                let uses = self.order.epoch.age(record);
                record.set_uses((uses + 1).min(USES_MAX));
                self.until_loads -= 1;
                if self.until_loads == 0 {
                    self.until_loads = LOADS_COUNTED;
                    self.order.epoch.count(u64::from(LOADS_COUNTED));
                }
            }
            Lru::Plain | Lru::Protected if record.is_listed() => {
                self.remove(records, number);
                self.put_hot(records, number);
            }
            Lru::Plain | Lru::Protected => record.set_uses(1),
        }
    }

    /// Notes that a page of a tenant had to be read from the backing.
    pub(super) fn note_backing_load(&mut self, tenant: TenantNumber) {
        self.order.tenants.get(tenant).backing_loads.fetch_add(1, Ordering::Relaxed);
        if let Some(list) = self.lists.get_mut(tenant.number()) {
            list.protect();
        }
    }

    /// Takes the coldest record of a tenant off its list, if it came to the hot end at `until` or
    /// before. Of `looks` at records each one costs one; none is looked at when they are used up.
    pub(super) fn take_coldest(
        &mut self,
        records: &mut Records,
        tenant: TenantNumber,
        until: u64,
        looks: &mut usize,
    ) -> Option<u32> {
        loop {
            let (number, time) = self.coldest(records, tenant)?;
            if time > until || *looks == 0 {
                return None;
            }
            *looks -= 1;
            self.remove(records, number);
            let record = records.get_mut(number);
            let spared = match self.lru {
                Lru::SecondChance if record.uses() > 0 => 0,
                Lru::Frequency => match self.order.epoch.age(record) {
                    0 => return Some(number),
                    uses => uses / 2,
                },
                _ => return Some(number),
            };
            record.set_uses(spared);
            self.put_hot(records, number);
        }
    }

    /// Takes the coldest record of a tenant off its list if it was used less than `uses` times;
    /// else it is spared. In orders that do not count, every page in the pool is less than one that
    /// is wanted now.
    pub(super) fn take_coldest_below(
        &mut self,
        records: &mut Records,
        tenant: TenantNumber,
        uses: u8,
    ) -> Option<u32> {
        if self.lru != Lru::Frequency {
            return self.take_coldest(records, tenant, u64::MAX, &mut { LOOKS_TO_DISPLACE });
        }
        let (number, _) = self.coldest(records, tenant)?;
        let is_less = self.order.epoch.age(records.get_mut(number)) < uses;
        self.remove(records, number);
        if !is_less {
            self.put_hot(records, number);
        }
        is_less.then_some(number)
    }

    /// The record at the cold end, and when it came to the hot end.
    fn coldest(&self, records: &Records, tenant: TenantNumber) -> Option<(u32, u64)> {
        let number = self.lists.get(tenant.number())?.cold_end;
        if number == NONE {
            return None;
        }
        let time = self.order.clock.time_of(records.get(number).stamp);
        self.order.tenants.get(tenant).cold_ends.set(self.shard, time);
        Some((number, time))
    }

    /// The uses of a page now.
    pub(super) fn uses(&self, records: &mut Records, number: u32) -> u8 {
        self.order.epoch.age(records.get_mut(number))
    }

    /// Calls `visit` for each record of each list, a list's coldest first, with the time at which
    /// it was put at the hot end.
    pub(super) fn for_each(&self, records: &Records, visit: &mut dyn FnMut(u64, &Record)) {
        for list in self.lists.iter() {
            let mut at = list.cold_end;
            while at != NONE {
                let record = records.get(at);
                visit(self.order.clock.time_of(record.stamp), record);
                at = record.hotter;
            }
        }
    }

    /// Says how often a page was used.
    pub(super) fn set_uses(&self, records: &mut Records, number: u32, uses: u8) {
        let record = records.get_mut(number);
        self.order.epoch.age(record); // of now
        record.set_uses(uses);
    }

    /// Pages of a tenant, and how many of those are protected.
    pub(super) fn pages(&self, tenant: TenantNumber) -> (usize, usize) {
        self.lists.get(tenant.number()).map_or((0, 0), |list| (list.pages, list.protected))
    }

    pub(super) fn bytes(&self) -> usize {
        self.lists.bytes()
    }

    /// Walks the lists and checks them; how many pages are on them.
    pub(super) fn audit(&self, records: &Records) -> Result<usize, AuditError> {
        let mut listed = 0;
        for (list, tenant) in self.lists.iter().zip(0..) {
            let (mut at, mut hotter, mut pages) = (list.hot_end, NONE, 0);
            while at != NONE {
                let record = records.get(at);
                if record.hotter != hotter
                    || !record.is_listed()
                    || record.tenant().number() != tenant
                {
                    return Err(
                        format!("record {at} is not linked as its list of {tenant} is").into()
                    );
                }
                (hotter, at) = (at, record.colder);
                pages += 1;
            }
            if pages != list.pages || hotter != list.cold_end {
                return Err(format!(
                    "tenant {tenant}: {pages} pages listed, {} counted",
                    list.pages
                )
                .into());
            }
            let Some(number) = self.order.tenants.number(tenant) else {
                match list.pages {
                    0 => continue,
                    _ => {
                        return Err(format!("a list of tenant {tenant}, which there is not").into());
                    }
                }
            };
            let told = self.order.tenants.get(number).cold_ends.time(self.shard);
            let right = match list.cold_end {
                NONE => told == EMPTY,
                cold => told <= self.order.clock.time_of(records.get(cold).stamp),
            };
            if !right {
                return Err(format!("tenant {tenant}: the cold end is older than told").into());
            }
            listed += pages;
        }
        Ok(listed)
    }
}

impl Lru {
    /// Initial count of uses of a page that comes into the pool.
    fn first_uses(self) -> u8 {
        match self {
            Lru::SecondChance => 1, // as it was stored with a reference, since 6.12
            Lru::Plain | Lru::Protected | Lru::Frequency => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageKey;
    use crate::zpool::Handle;
    use crate::zswap::entry::{Content, Held};
    use crate::zswap::parts::StoreId;
    use crate::zswap::{TenantId, TenantOptions};

    #[test]
    fn an_epoch_ends_after_some_loads_for_each_page() {
        let epoch = Epoch::default();
        let number = || epoch.number.load(Ordering::Relaxed);
        let enough = EPOCH_LOADS * EPOCH_PAGES_MIN;
        epoch.count(enough - 1);
        assert_eq!(number(), 0);
        epoch.count(1);
        assert_eq!(number(), 1);
        epoch.pages.store(2 * EPOCH_PAGES_MIN, Ordering::Relaxed);
        epoch.count(enough);
        assert_eq!(number(), 1);
        epoch.count(enough);
        assert_eq!(number(), 2);
    }

    #[test]
    fn a_quarter_of_the_pages_is_protected_at_most() {
        let mut list = List { pages: 100, ..List::EMPTY };
        for protected in (1..=25).chain(13..=25).chain([13, 14]) {
            list.protect();
            assert_eq!(list.protected, protected);
        }
        list.pages = 0;
        list.protect();
        assert!(list.protected <= 7);
    }

    /// A list of one tenant and its records, with pages whose keys are their numbers.
    struct Listed {
        lists: Lists,
        records: Records,
    }

    impl Listed {
        fn new(lru: Lru, pages: u64) -> Listed {
            let order = Arc::new(Order::new(Tenants::new(StoreId::new(), 1)));
            let mut lists = Lists::new(lru, 0, order, &Arc::default());
            let mut records = Records::new(&Arc::default());
            lists.reserve(TenantNumber::ROOT).unwrap();
            for key in 0..pages {
                let number = records.insert(PageKey(key), object()).unwrap();
                assert_eq!(u64::from(number), key);
                lists.add(&mut records, number);
            }
            Listed { lists, records }
        }

        fn note_uses(&mut self, uses: &[(u32, usize)]) {
            for &(number, count) in uses {
                (0..count).for_each(|_| self.lists.note_use(&mut self.records, number));
            }
        }

        fn take(&mut self, until: u64, looks: &mut usize) -> Option<u32> {
            let taken =
                self.lists.take_coldest(&mut self.records, TenantNumber::ROOT, until, looks);
            self.lists.audit(&self.records).unwrap();
            taken
        }

        /// All pages in the order in which they are taken, and the looks that took.
        fn take_all(mut self) -> (Vec<u32>, usize) {
            let mut looks = usize::MAX;
            let taken = std::iter::from_fn(|| self.take(u64::MAX, &mut looks)).collect();
            (taken, usize::MAX - looks)
        }
    }

    fn object() -> Held {
        Held::of_root(Content::Compressed { handle: Handle::from_bits(1), bytes: 1 })
    }

    #[test]
    fn each_order_takes_its_coldest_page_first() {
        let taken = |lru, uses: &[(u32, usize)]| {
            let mut listed = Listed::new(lru, 4);
            listed.note_uses(uses);
            listed.take_all()
        };
        let uses = [(2, 4), (1, 1), (0, 2)];
        // Every page is spared once, since it was stored or used.
        assert_eq!(taken(Lru::SecondChance, &uses), (vec![0, 1, 2, 3], 8));
        // Each time that a page is spared its uses are halved.
        assert_eq!(taken(Lru::Frequency, &uses), (vec![3, 1, 0, 2], 10));
        for lru in [Lru::Plain, Lru::Protected] {
            assert_eq!(taken(lru, &uses), (vec![3, 2, 1, 0], 4));
            assert_eq!(taken(lru, &[]), (vec![0, 1, 2, 3], 4));
        }
    }

    #[test]
    fn a_page_is_spared_again_if_it_was_used_since() {
        for lru in Lru::ALL {
            let mut listed = Listed::new(lru, 4);
            let first = listed.take(u64::MAX, &mut { usize::MAX }).unwrap();
            listed.note_uses(&[(1, 1)]);
            let (others, _) = listed.take_all();
            assert_eq!((first, &others[..]), (0, &[2, 3, 1][..]), "{lru}");
        }
    }

    #[test]
    fn pages_are_taken_as_far_as_a_time_and_for_so_many_looks() {
        let mut listed = Listed::new(Lru::Plain, 40);
        let mut looks = 100;
        let mut take = |until| {
            let taken = std::iter::from_fn(|| listed.take(until, &mut looks));
            (taken.collect::<Vec<u32>>(), looks)
        };
        let per_tick = TICK_PAGES;
        assert_eq!(take(0), ((0..per_tick - 1).collect(), 85));
        assert_eq!(take(0), (vec![], 85));
        assert_eq!(take(1), ((per_tick - 1..2 * per_tick - 1).collect(), 69));
        let mut listed = Listed::new(Lru::Frequency, 3);
        listed.note_uses(&[(0, 8), (1, 8), (2, 8)]);
        assert_eq!(listed.take(u64::MAX, &mut 0), None);
        let mut looks = 7;
        assert_eq!((listed.take(u64::MAX, &mut looks), looks), (None, 0));
        // Seven looks at three pages: two halvings for each, and one more for the first.
        let uses = |number| listed.lists.uses(&mut listed.records, number);
        assert_eq!([0, 1, 2].map(uses), [1, 2, 2]);
    }

    #[test]
    fn a_page_gives_way_to_one_with_more_uses() {
        for (uses, below, taken) in [(3, 4, true), (3, 3, false), (0, 1, true), (0, 0, false)] {
            let mut listed = Listed::new(Lru::Frequency, 2);
            listed.note_uses(&[(0, uses)]);
            let Listed { mut lists, mut records } = listed;
            let found = lists.take_coldest_below(&mut records, TenantNumber::ROOT, below);
            assert_eq!(found, taken.then_some(0), "{uses} uses, below {below}");
            // One that stays is at the hot end, and one that is taken on no list.
            lists.audit(&records).unwrap();
            assert_eq!(records.get(0).is_listed(), !taken);
            let coldest = lists.take_coldest_below(&mut records, TenantNumber::ROOT, 1);
            assert_eq!(coldest, Some(1));
        }
        let mut listed = Listed::new(Lru::SecondChance, 2);
        let root = TenantNumber::ROOT;
        assert_eq!(listed.lists.take_coldest_below(&mut listed.records, root, 0), Some(0));
    }

    #[test]
    fn the_pages_of_a_tenant_that_goes_are_spared_by_the_other() {
        let tenants = Tenants::new(StoreId::new(), 1);
        let gone = tenants.add(TenantId::ROOT, TenantOptions::default()).unwrap().number;
        let mut lists =
            Lists::new(Lru::Protected, 0, Arc::new(Order::new(tenants)), &Arc::default());
        let mut records = Records::new(&Arc::default());
        for (tenant, pages, loads) in [(TenantNumber::ROOT, 40, 3), (gone, 40, 5)] {
            lists.reserve(tenant).unwrap();
            for _ in 0..pages {
                let held = Held { tenant, ..object() };
                let number = records.insert(PageKey(u64::MAX), held).unwrap();
                lists.add(&mut records, number);
            }
            (0..loads).for_each(|_| lists.note_backing_load(tenant));
        }
        let [(_, kept), (_, protected)] = [TenantNumber::ROOT, gone].map(|it| lists.pages(it));
        assert!(kept > 0 && protected > 0);
        lists.merge(&mut records, gone, TenantNumber::ROOT);
        let pages = [TenantNumber::ROOT, gone].map(|it| lists.pages(it));
        assert_eq!(pages, [(80, kept + protected), (0, 0)]);
        records.iter_mut().for_each(|record| record.set_tenant(TenantNumber::ROOT));
        lists.audit(&records).unwrap();
    }

    #[test]
    fn uses_count_half_for_each_epoch_since() {
        let epoch = Epoch::default();
        let mut records = Records::new(&Arc::default());
        let number = records.insert(PageKey(1), object()).unwrap();
        let record = records.get_mut(number);
        let most = 1 << EPOCH_BITS;
        for start in [0, 1, most - 1, most, 5 * most - 2] {
            for (epochs, uses) in [(0, 12), (1, 6), (2, 3), (3, 1), (4, 0)] {
                epoch.number.store(start, Ordering::Relaxed);
                epoch.age(record);
                record.set_uses(12);
                epoch.number.store(start + epochs, Ordering::Relaxed);
                // They are halved once, however often they are asked for.
                assert_eq!([(); 2].map(|()| epoch.age(record)), [uses; 2], "{start}, {epochs}");
                assert_eq!((record.uses(), record.epoch()), (uses, (start + epochs) % most));
                assert_eq!(record.tenant(), TenantNumber::ROOT);
            }
        }
    }

    #[test]
    fn an_epoch_is_as_long_as_the_pages_that_are_known() {
        let order = Order::new(Tenants::new(StoreId::new(), 1));
        (0..3 * EPOCH_PAGES_MIN).for_each(|_| order.count_page());
        (0..EPOCH_PAGES_MIN).for_each(|_| order.uncount_page());
        order.epoch.count(EPOCH_LOADS * 2 * EPOCH_PAGES_MIN - 1);
        assert_eq!(order.epoch.number.load(Ordering::Relaxed), 0);
        order.epoch.count(1);
        assert_eq!(order.epoch.number.load(Ordering::Relaxed), 1);
        // A shard tells of its loads many at a time.
        let mut listed = Listed::new(Lru::Frequency, 1);
        let epochs = |listed: &Listed| listed.lists.order.epoch.number.load(Ordering::Relaxed);
        let loads = (EPOCH_LOADS * EPOCH_PAGES_MIN) as usize;
        listed.note_uses(&[(0, loads - 1)]);
        assert_eq!(epochs(&listed), 0);
        listed.note_uses(&[(0, 1)]);
        assert_eq!(epochs(&listed), 1);
    }
}
