//! Units: neighbours that are compressed together, as one object.
//!
//! ```text
//!  keys        | 8 | 9 | 10 | 11 |       a unit of four, 9 is a same-filled page
//!  pages of it |     0b1101      |       bit n: the page of the n-th key is in the object
//!  object      | key header | number: 6 | pages of it: 2 | bytes - 1: 2 | compressed pages |
//! ```
//!
//! Each page has an entry of its own, which names the object and a share of its bytes. A page
//! leaves alone: it is loaded, replaced, invalidated or written back. The last one frees the object
//! (U1). Bytes of pages that left stay in the object. They count as unused memory of the pool, and
//! [`Zswap::compact`] splits units of which half or less of the pages are left.
//!
//! A thread keeps the unit that it decompressed last: the next page of that is copied. The number
//! of a unit, which no other unit of the store ever has, tells whether it is that one.
//!
//! - U1: an object with a unit is freed with the last entry that names it. All of these are of one
//!   shard, which is locked while the last one is found.
//! - U2: entries of a unit are put in under one lock: none is removed before the others are there.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::{Content, Held, UNIT_SHARE_MAX};
use super::load::shown;
use super::parts::StoreId;
use super::shard::unit_keys;
use super::tenant_id::TenantNumber;
use super::{
    Effort, OBJECT_HEADER_MAX, StoreError, Stored, TenantId, WhenFull, Zswap, object_header,
    with_room, with_scratch,
};
use crate::compressor::{Corrupt, UNIT_PAGES_MAX};
use crate::index::IndexError;
use crate::page::{PAGE_SIZE, Page, PageKey};

const NUMBER_BYTES: usize = 6;

/// Bytes in front of the compressed pages.
pub(super) const HEAD_BYTES: usize = NUMBER_BYTES + 2 + 2;

/// Bytes that a unit may be compressed to: two bytes count them.
const BYTES_MAX: usize = 1 << 16;

const OBJECT_BYTES_MAX: usize = OBJECT_HEADER_MAX + HEAD_BYTES + BYTES_MAX;

/// Counts of a store's units.
#[derive(Debug, Default)]
pub(super) struct Units {
    /// Units that were made.
    made: AtomicU64,
    pub(super) opened: AtomicU64,
    pub(super) opened_for_one: AtomicU64,
}

/// A thread's room for the object of a unit.
pub(super) type ObjectRoom = [u8; OBJECT_BYTES_MAX];

/// A thread's room for a unit: pages to compress, and an object.
pub(super) struct Room {
    pub(super) pages: Vec<Page>,
    pub(super) object: Box<ObjectRoom>,
}

/// The unit that a thread decompressed last.
struct Opened {
    of: Option<(StoreId, PageKey, u64)>,
    /// How many of its pages were asked for.
    uses: u64,
    pages: Box<[Page; UNIT_PAGES_MAX]>,
}

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room::new()));
    static OPENED: RefCell<Box<Opened>> = RefCell::new(Box::new(Opened::new()));
}

impl Room {
    pub(super) fn new() -> Room {
        let object = vec![0; OBJECT_BYTES_MAX].into_boxed_slice();
        Room { pages: Vec::new(), object: object.try_into().expect("as long") }
    }
}

impl Opened {
    fn new() -> Opened {
        let pages = vec![[0; PAGE_SIZE]; UNIT_PAGES_MAX].into_boxed_slice();
        Opened { of: None, uses: 0, pages: pages.try_into().expect("as many") }
    }
}

/// The start of a unit's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) number: u64,
    /// Bit n: the page of the n-th key is in it.
    mask: u16,
    /// Bytes of the compressed pages.
    bytes: usize,
}

impl Head {
    fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..NUMBER_BYTES].copy_from_slice(&self.number.to_le_bytes()[..NUMBER_BYTES]);
        head[NUMBER_BYTES..8].copy_from_slice(&self.mask.to_le_bytes());
        head[8..].copy_from_slice(&((self.bytes - 1) as u16).to_le_bytes()); // 1 to BYTES_MAX
        head
    }

    /// The head of an object, and the compressed pages behind it.
    fn split(object: &[u8]) -> Result<(Head, &[u8]), Corrupt> {
        let Some((&[n0, n1, n2, n3, n4, n5, m0, m1, b0, b1], data)) = object.split_first_chunk()
        else {
            return Err(shown(object, HEAD_BYTES));
        };
        let bytes = usize::from(u16::from_le_bytes([b0, b1])) + 1;
        let head = Head {
            number: u64::from_le_bytes([n0, n1, n2, n3, n4, n5, 0, 0]),
            mask: u16::from_le_bytes([m0, m1]),
            bytes,
        };
        Ok((head, data.get(..bytes).ok_or_else(|| shown(data, bytes))?))
    }

    fn page_count(self) -> usize {
        self.mask.count_ones() as usize
    }

    /// The place of a page among those in the object.
    fn place_of(self, number: u64) -> Option<usize> {
        let bit = 1_u16.checked_shl(number as u32)?;
        (self.mask & bit != 0).then(|| (self.mask & (bit - 1)).count_ones() as usize)
    }
}

impl Zswap {
    /// Keeps copies of `pages` under `first` and the keys after it, for the root. Pages of one unit
    /// ([`ZswapOptions::unit_pages`](super::ZswapOptions::unit_pages), aligned) are compressed
    /// together, where the result fits the pool. [`Zswap::store`] stores the others. `outcome` is
    /// called once for each page, with no lock held.
    ///
    /// # Panics
    ///
    /// If a key would exceed 2^64 - 1.
    pub fn store_all(
        &self,
        first: PageKey,
        pages: &[Page],
        outcome: impl FnMut(PageKey, Result<Stored, StoreError>),
    ) {
        self.store_all_by(Effort::Fast, first, pages, outcome);
    }

    /// The same, with pages made to take little room, whatever the time.
    ///
    /// # Panics
    ///
    /// As [`Zswap::store_all`].
    pub fn store_all_densely(
        &self,
        first: PageKey,
        pages: &[Page],
        outcome: impl FnMut(PageKey, Result<Stored, StoreError>),
    ) {
        self.store_all_by(Effort::Dense, first, pages, outcome);
    }

    fn store_all_by(
        &self,
        effort: Effort,
        first: PageKey,
        mut pages: &[Page],
        mut outcome: impl FnMut(PageKey, Result<Stored, StoreError>),
    ) {
        self.id.enter();
        let unit_pages = self.options.unit_pages;
        let mut key = first;
        while !pages.is_empty() {
            let to_boundary = unit_pages - (key.0 as usize & (unit_pages - 1));
            let (group, rest) = pages.split_at(to_boundary.min(pages.len()));
            let mut stored = [None; UNIT_PAGES_MAX];
            if group.len() > 1 {
                self.store_unit(effort, key, group, &mut stored);
            }
            for (page, stored) in group.iter().zip(stored) {
                let stored = stored.map(Ok);
                let single = || self.store_by(effort, TenantId::ROOT, key, page);
                outcome(key, stored.unwrap_or_else(single));
                key = match key.0.checked_add(1) {
                    Some(next) => PageKey(next),
                    None => {
                        assert!(rest.is_empty(), "a key exceeds 2^64 - 1");
                        key
                    }
                };
            }
            pages = rest;
        }
    }

    /// Stores the pages of one unit together, if that can be done; which it stored.
    fn store_unit(
        &self,
        effort: Effort,
        key: PageKey,
        pages: &[Page],
        stored: &mut [Option<Stored>; UNIT_PAGES_MAX],
    ) {
        let start = self.sample();
        if self.options.when_full == WhenFull::Bypass
            && !self.hysteresis.admit(self.limited_bytes())
        {
            return; // each page is refused with the reason
        }
        let mut words = [None; UNIT_PAGES_MAX];
        let mut mask = 0_u16;
        let position = key.0 as usize & (self.options.unit_pages - 1);
        for (at, page) in pages.iter().enumerate() {
            words[at] = self.options.same_filled.word(page);
            mask |= u16::from(words[at].is_none()) << (position + at);
        }
        if mask.count_ones() < 2 {
            return;
        }
        let kept = with_room(&ROOM, Room::new, |room| {
            let unit_pages = if mask.count_ones() as usize == pages.len() {
                pages
            } else {
                room.pages.clear();
                let of_unit = pages.iter().zip(words).filter(|(_, word)| word.is_none());
                room.pages.extend(of_unit.map(|(page, _)| page));
                &room.pages
            };
            self.keep_unit(effort, key, mask, unit_pages, &mut room.object, usize::MAX)
        });
        let Some(of_unit) = kept else { return };
        let of_word = |word| Held::of_root(Content::SameFilled(word));
        let held = words.map(|word| word.map_or(of_unit, of_word));
        self.put_unit(key, &held[..pages.len()], of_unit, stored);
        self.hysteresis.note_growth(self.limited_bytes());
        if let Some(start) = start {
            self.latencies.store.record(start.elapsed() / pages.len() as u32); // 16 at most
        }
    }

    /// Compresses the pages of a unit, those in `mask`, and puts the object into the pool, if it
    /// has `bytes_max` at most; what is known of each page.
    pub(super) fn keep_unit(
        &self,
        effort: Effort,
        key: PageKey,
        mask: u16,
        pages: &[Page],
        object: &mut ObjectRoom,
        bytes_max: usize,
    ) -> Option<Held> {
        let count = pages.len();
        let front = OBJECT_HEADER_MAX + HEAD_BYTES;
        let header_bytes = self.options.object_header_bytes;
        let most = self.zpool.object_size_max().saturating_sub(header_bytes + HEAD_BYTES);
        let most = most.min(count * UNIT_SHARE_MAX - HEAD_BYTES).min(BYTES_MAX);
        let most = most.min(bytes_max.saturating_sub(HEAD_BYTES));
        let out = &mut object[front..front + most];
        let bytes = self.compressor.compress_unit(effort, pages.as_flattened(), out)?;
        let number = self.units.made.fetch_add(1, Ordering::Relaxed) + 1;
        let head = Head { number, mask, bytes };
        object[OBJECT_HEADER_MAX..front].copy_from_slice(&head.to_bytes());
        let start = OBJECT_HEADER_MAX - header_bytes;
        let first = self.unit_key(key);
        object[start..OBJECT_HEADER_MAX].copy_from_slice(&object_header(first)[..header_bytes]);
        let checksum = self.checksum_of(first, &object[OBJECT_HEADER_MAX..front + bytes]);
        let share = (HEAD_BYTES + bytes) / count; // at most UNIT_SHARE_MAX
        self.charge(TenantNumber::ROOT, (share * count) as u64).ok()?;
        match self.zpool.insert(&object[start..front + bytes]) {
            Ok(handle) => {
                let content = Content::InUnit { handle, bytes: share as u16 };
                Some(Held { content, checksum, written: None, tenant: TenantNumber::ROOT })
            }
            Err(_) => {
                self.uncharge(TenantNumber::ROOT, (share * count) as u64);
                None
            }
        }
    }

    /// Puts the entries of a unit into the index (U2) and frees what they replaced.
    fn put_unit(
        &self,
        key: PageKey,
        held: &[Held],
        of_unit: Held,
        stored: &mut [Option<Stored>; UNIT_PAGES_MAX],
    ) {
        let mut stale = [None; UNIT_PAGES_MAX];
        let mut shard = self.shards.of(key).lock();
        let mut in_unit = 0;
        for (at, &held) in held.iter().enumerate() {
            let key = PageKey(key.0 + at as u64);
            let put: Result<_, IndexError> = shard.put(key, held);
            if let Ok(replaced) = put {
                stale[at] = replaced;
                shard.counters.duplicate_entry += u64::from(replaced.is_some());
                shard.counters.zswpout += 1;
                in_unit += u64::from(held.content.handle().is_some());
                stored[at] = Some(match held.content {
                    Content::SameFilled(_) => Stored::SameFilled,
                    content => Stored::Compressed { bytes: content.compressed_bytes() as usize },
                });
            }
        }
        shard.counters.stored_units += u64::from(in_unit > 0);
        drop(shard);
        stale.into_iter().flatten().for_each(|held| self.release(held));
        let pages = held.iter().filter(|held| held.content == of_unit.content).count() as u64;
        self.release_shares(of_unit, in_unit, pages);
    }

    /// Gives up the shares of those pages of a new unit that no entry names: `in_unit` of `pages`
    /// have one. Where none has, the last one frees the object.
    pub(super) fn release_shares(&self, of_unit: Held, in_unit: u64, pages: u64) {
        let bytes = of_unit.content.compressed_bytes() as u16; // a share
        let left = Held { content: Content::LeftUnit { bytes }, ..of_unit };
        for page in in_unit..pages {
            let is_last = in_unit == 0 && page + 1 == pages;
            self.release_object(if is_last { of_unit } else { left });
        }
    }

    /// The first key of the unit of a key.
    fn unit_key(&self, key: PageKey) -> PageKey {
        PageKey(key.0 & !(self.options.unit_pages as u64 - 1))
    }

    /// Restores a page from a slot with its unit, or from the unit that this thread has open.
    pub(super) fn restore_of_unit(
        &self,
        key: PageKey,
        held: Held,
        slot: &[u8],
        page: &mut Page,
    ) -> Result<(), Corrupt> {
        let first = self.unit_key(key);
        let object = self.check_header(first, slot)?;
        let (head, data) = Head::split(object)?;
        let place = head.place_of(key.0 - first.0);
        let place = place.ok_or_else(|| Corrupt("the unit does not have the page".to_owned()))?;
        with_room(&OPENED, Opened::new, |opened| {
            let unit = Some((self.id, first, head.number));
            if opened.of == unit {
                opened.uses += 1;
            } else {
                self.check_sum(first, &object[..HEAD_BYTES + head.bytes], held.checksum)?;
                if opened.uses == 1 && opened.of.is_some_and(|of| of.0 == self.id) {
                    self.units.opened_for_one.fetch_add(1, Ordering::Relaxed);
                }
                opened.of = None;
                let pages = opened.pages[..head.page_count()].as_flattened_mut();
                self.compressor.decompress_unit(data, pages)?;
                (opened.of, opened.uses) = (unit, 1);
                self.units.opened.fetch_add(1, Ordering::Relaxed);
            }
            page.copy_from_slice(&opened.pages[place]);
            Ok(())
        })
    }

    /// Splits units of which half or less is left: each page is an object of its own then. Returns
    /// how many were split.
    pub(super) fn split_units(&self) -> usize {
        let unit_pages = self.options.unit_pages as u64;
        if unit_pages == 1 {
            return 0;
        }
        let mut split = 0;
        for lock in self.shards.iter() {
            let mut sparse = Vec::new();
            let shard = lock.lock();
            if shard.counters.unit_pages == 0 {
                continue;
            }
            shard.for_each(&mut |key, held| {
                if let Content::InUnit { handle, .. } = held.content {
                    let is_here = |&key: &PageKey| {
                        shard.get(key).is_some_and(|of| of.1.content.handle() == Some(handle))
                    };
                    let mut keys = unit_keys(key, unit_pages).filter(is_here);
                    let is_first = keys.next() == Some(key);
                    // A unit may have been made of fewer pages than it has keys.
                    let left = 1 + keys.count();
                    let is_half = |slot: &[u8]| {
                        let unit = self.unit_in(key, slot);
                        unit.is_ok_and(|(head, _)| 2 * left <= head.page_count())
                    };
                    let is_sparse = is_first
                        && 2 * left as u64 <= unit_pages
                        && self.zpool.read(handle, is_half) == Ok(true);
                    if is_sparse && sparse.try_reserve(1).is_ok() {
                        sparse.push(key);
                    }
                }
            });
            drop(shard);
            split += sparse.into_iter().filter(|&key| self.split_unit(key)).count();
        }
        split
    }

    /// Has each page of the unit that this one is in be an object of its own; whether the unit is
    /// gone.
    fn split_unit(&self, key: PageKey) -> bool {
        let lock = self.shards.of(key);
        let mut is_gone = false;
        let mut page = [0; PAGE_SIZE];
        let Some(unit) = lock.lock().get(key).and_then(|(_, held)| held.content.handle()) else {
            return false;
        };
        for key in unit_keys(key, self.options.unit_pages as u64) {
            let shard = lock.lock();
            let Some((entry, held)) = shard.get(key) else { continue };
            if held.content.handle() != Some(unit) {
                continue;
            }
            let Ok(number) = self.with_slot(key, held, shard, |slot| {
                self.restore(key, held, slot, &mut page)?;
                Ok(self.unit_in(key, slot)?.0.number)
            }) else {
                return false;
            };
            let made = with_scratch(|scratch| {
                let packed = self.compress(Effort::Fast, key, &page, scratch).ok()?;
                self.insert_packed(held.tenant, key, packed, scratch, || false).ok()
            });
            let Some(made) = made else { return false };
            let made = Held { written: held.written, ..made };
            let mut shard = lock.lock();
            let is_same =
                shard.get(key) == Some((entry, held)) && self.is_still_unit(key, held, number);
            if !is_same || !shard.replace_object(key, entry, made) {
                drop(shard);
                self.release_object(made);
                return false;
            }
            let left = shard.leave_unit(key, held);
            is_gone = left.content.handle().is_some();
            shard.counters.split_units += u64::from(is_gone);
            drop(shard);
            self.release_object(left);
        }
        is_gone
    }

    /// Whether the unit that the page of `key` is in, whose shard is locked, has this number. An
    /// equal entry does not prove that.
    pub(super) fn is_still_unit(&self, key: PageKey, held: Held, number: u64) -> bool {
        let handle = held.content.handle().expect("it is in the pool");
        let number_in =
            |slot: &[u8]| self.unit_in(key, slot).is_ok_and(|(head, _)| head.number == number);
        self.zpool.read(handle, number_in).unwrap_or(false)
    }

    /// The head of the unit in the slot of a page, and its compressed pages.
    pub(super) fn unit_in<'a>(
        &self,
        key: PageKey,
        slot: &'a [u8],
    ) -> Result<(Head, &'a [u8]), Corrupt> {
        Head::split(self.check_header(self.unit_key(key), slot)?)
    }
}
