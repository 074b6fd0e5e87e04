//! Records of pages beside their 64 bits: place in the eviction order, tenant, checksums, copy in
//! the backing. The kernel has `zswap_entry`: 56 bytes there and 52 here.
//!
//! ```text
//!  index entry | record's number: 32 | its generation: 31 | 1 |
//! ```
//!
//! Records are in chunks of 64 with a bitmap of the used ones. A new record takes the first free
//! place, so that the chunks at the end become free and go back. The generation changes with every
//! use of a place, so an entry that was looked up before differs from its successors.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::entry::{Content, Held, Written};
use super::tenant_id::{TENANTS_MAX, TenantNumber};
use crate::AuditError;
use crate::backing::Location;
use crate::budget::Budget;
use crate::budgeted_vec::BudgetedVec;
use crate::index::{Entry, IndexError};
use crate::page::PageKey;

/// No record: ends lists.
pub(super) const NONE: u32 = u32::MAX;

const CHUNK_BITS: u32 = 6;
const CHUNK_RECORDS: usize = 1 << CHUNK_BITS; // 64, the bits of a word
const CHUNK_BYTES: usize = size_of::<[Record; CHUNK_RECORDS]>();

/// Numbers below [`NONE`].
const CHUNKS_MAX: usize = (NONE >> CHUNK_BITS) as usize;

const GENERATION_MASK: u32 = u32::MAX >> 1;

/// The most that uses are counted to.
pub(super) const USES_MAX: u8 = 15;

/// The bits of [`Record::epoch`].
pub(super) const EPOCH_BITS: u32 = 16 - TENANT_BITS;

/// One page. Not aligned for 64 bits: that would take 4 bytes more.
#[derive(Debug, Clone, Copy)]
#[repr(C, packed(4))]
pub(super) struct Record {
    pub(super) key: PageKey,
    /// Where it is in memory, packed by [`Content::to_bits`].
    content: u64,
    /// The next record towards the hot end of the list.
    pub(super) hotter: u32,
    /// The next record towards the cold end.
    pub(super) colder: u32,
    /// When it was put at the hot end.
    pub(super) stamp: u32,
    /// Counts the uses of this place.
    generation: u32,
    checksum: u32,
    written_checksum: u32,
    /// Where the copy in the backing is: the lower 32 of [`Location::BITS`].
    location: u32,
    /// Bytes of that copy, and whether it is the page as it is; 0 where there is none.
    written: u16,
    /// The tenant's number, and the epoch above it.
    tenant: u16,
    location_high: u8,
    /// Uses, and flags.
    state: u8,
}

const _: () = assert!(size_of::<Record>() == 52);

const TENANT_BITS: u32 = TENANTS_MAX.ilog2();
const TENANT_MASK: u16 = TENANTS_MAX as u16 - 1;
const _: () = assert!(TENANTS_MAX.is_power_of_two() && Location::BITS == 40);

const WRITTEN_BYTES: u16 = (1 << 13) - 1;
const WRITTEN_AS_IS: u16 = 1 << 15;

const USES: u8 = USES_MAX;
/// It is on a list.
const LISTED: u8 = 1 << 4;
/// It is being written back.
const WRITING: u8 = 1 << 5;
/// The content is a word.
const WORD: u8 = 1 << 6;

impl Record {
    const FREE: Record = Record {
        key: PageKey(0),
        content: 0,
        hotter: NONE,
        colder: NONE,
        stamp: 0,
        generation: 0,
        checksum: 0,
        written_checksum: 0,
        location: 0,
        written: 0,
        tenant: 0,
        location_high: 0,
        state: 0,
    };

    /// What it says of the page.
    pub(super) fn held(&self) -> Held {
        let content = match self.state & WORD {
            0 => Content::from_bits(self.content),
            _ => Content::SameFilled(self.content),
        };
        let written = (self.written != 0).then(|| Written {
            at: Location::from_bits(u64::from(self.location_high) << 32 | u64::from(self.location))
                .expect("40 bits"),
            bytes: self.written & WRITTEN_BYTES,
            as_is: self.written & WRITTEN_AS_IS != 0,
            checksum: self.written_checksum,
        });
        Held { content, checksum: self.checksum, written, tenant: self.tenant() }
    }

    /// Makes it say this of the page.
    pub(super) fn set_held(&mut self, held: Held) {
        self.state &= !WORD;
        self.content = match held.content {
            Content::SameFilled(word) => {
                self.state |= WORD;
                word
            }
            content => content.to_bits(),
        };
        self.checksum = held.checksum;
        self.set_tenant(held.tenant);
        self.written = 0;
        if let Some(written) = held.written {
            self.written = written.bytes | if written.as_is { WRITTEN_AS_IS } else { 0 };
            self.written_checksum = written.checksum;
            let bits = written.at.bits();
            (self.location, self.location_high) = (bits as u32, (bits >> 32) as u8);
        }
    }

    pub(super) fn tenant(&self) -> TenantNumber {
        TenantNumber::from_bits(self.tenant & TENANT_MASK)
    }

    pub(super) fn set_tenant(&mut self, tenant: TenantNumber) {
        self.tenant = self.tenant & !TENANT_MASK | tenant.number() as u16; // < TENANTS_MAX
    }

    /// When the uses were last counted, modulo 2^[`EPOCH_BITS`].
    pub(super) fn epoch(&self) -> u32 {
        u32::from(self.tenant >> TENANT_BITS)
    }

    pub(super) fn set_epoch(&mut self, epoch: u32) {
        self.tenant = self.tenant & TENANT_MASK | (epoch as u16) << TENANT_BITS;
    }

    pub(super) fn uses(&self) -> u8 {
        self.state & USES
    }

    pub(super) fn set_uses(&mut self, uses: u8) {
        self.state = self.state & !USES | uses.min(USES_MAX);
    }

    pub(super) fn is_listed(&self) -> bool {
        self.state & LISTED != 0
    }

    pub(super) fn set_listed(&mut self, listed: bool) {
        self.state = if listed { self.state | LISTED } else { self.state & !LISTED };
    }

    pub(super) fn is_being_written(&self) -> bool {
        self.state & WRITING != 0
    }

    pub(super) fn set_being_written(&mut self, writing: bool) {
        self.state = if writing { self.state | WRITING } else { self.state & !WRITING };
    }
}

/// The records of a shard, by number.
#[derive(Debug)]
pub(super) struct Records {
    chunks: BudgetedVec<Chunk>,
    /// Which chunks have a free place, a bit each.
    with_room: BudgetedVec<u64>,
    used: usize,
    /// The generation of a place's first use: past those of places that were given back.
    first_generation: u32,
}

#[derive(Debug)]
struct Chunk {
    records: Box<[Record; CHUNK_RECORDS]>,
    used: u64,
}

fn split(number: u32) -> (usize, usize) {
    ((number >> CHUNK_BITS) as usize, number as usize % CHUNK_RECORDS)
}

impl Records {
    pub(super) fn new(budget: &Arc<Budget>) -> Records {
        Records {
            chunks: BudgetedVec::new(budget),
            with_room: BudgetedVec::new(budget),
            used: 0,
            first_generation: 0,
        }
    }

    /// Adds a record of a page.
    ///
    /// # Errors
    ///
    /// [`IndexError`], of memory; nothing was added.
    pub(super) fn insert(&mut self, key: PageKey, held: Held) -> Result<u32, IndexError> {
        let chunk = match self.first_with_room() {
            Some(chunk) => chunk,
            None => match self.add_chunk() {
                Ok(chunk) => chunk,
                Err(refused) => {
                    self.trim(); // the tables may have grown for it
                    return Err(refused);
                }
            },
        };
        let Chunk { records, used } = &mut self.chunks[chunk];
        let place = used.trailing_ones() as usize;
        *used |= 1 << place;
        if *used == u64::MAX {
            self.with_room[chunk / 64] &= !(1 << (chunk % 64));
        }
        self.used += 1;
        let generation = records[place].generation;
        records[place] = Record { key, generation, ..Record::FREE };
        records[place].set_held(held);
        Ok((chunk << CHUNK_BITS | place) as u32) // as many chunks as numbers allow
    }

    /// The numbers of the records in use.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        let places = |used: u64| (0..CHUNK_RECORDS).filter(move |place| used >> place & 1 == 1);
        self.chunks.iter().enumerate().flat_map(move |(chunk, Chunk { used, .. })| {
            places(*used).map(move |place| (chunk << CHUNK_BITS | place) as u32)
        })
    }

    /// The records in use.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.chunks.iter_mut().flat_map(|Chunk { records, used }| {
            let used = *used;
            let is_used = move |place: &usize| used >> place & 1 == 1;
            records.iter_mut().zip(0..).filter(move |(_, place)| is_used(place)).map(|(one, _)| one)
        })
    }

    /// Frees a record; what it said.
    pub(super) fn remove(&mut self, number: u32) -> Held {
        let (chunk, place) = split(number);
        let Chunk { records, used } = &mut self.chunks[chunk];
        let held = records[place].held();
        records[place].generation = records[place].generation.wrapping_add(1) & GENERATION_MASK;
        *used &= !(1 << place);
        self.with_room[chunk / 64] |= 1 << (chunk % 64);
        self.used -= 1;
        self.trim();
        held
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> &Record {
        let (chunk, place) = split(number);
        &self.chunks[chunk].records[place]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Record {
        let (chunk, place) = split(number);
        &mut self.chunks[chunk].records[place]
    }

    /// The index entry of a record.
    pub(super) fn entry(&self, number: u32) -> Entry {
        let generation = u64::from(self.get(number).generation);
        Entry(NonZeroU64::MIN | (u64::from(number) << 32 | generation << 1))
    }

    /// The record of an index entry.
    pub(super) fn number(entry: Entry) -> u32 {
        (entry.0.get() >> 32) as u32
    }

    /// The record of an entry that may have gone since.
    pub(super) fn number_if_current(&self, entry: Entry) -> Option<u32> {
        let number = Records::number(entry);
        let (chunk, place) = split(number);
        let chunk = self.chunks.get(chunk)?;
        (chunk.used >> place & 1 == 1 && self.entry(number) == entry).then_some(number)
    }

    /// Records in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK_BYTES + self.chunks.bytes() + self.with_room.bytes()
    }

    fn first_with_room(&self) -> Option<usize> {
        let word = self.with_room.iter().position(|&word| word != 0)?;
        Some(word * 64 + self.with_room[word].trailing_zeros() as usize)
    }

    fn add_chunk(&mut self) -> Result<usize, IndexError> {
        let chunk = self.chunks.len();
        self.chunks.reserve_one(CHUNKS_MAX)?;
        if chunk / 64 == self.with_room.len() {
            self.with_room.reserve_one(CHUNKS_MAX)?;
            self.with_room.push(0);
        }
        self.chunks.budget().charge_metadata(CHUNK_BYTES as u64)?;
        let mut records = Vec::new();
        if records.try_reserve_exact(CHUNK_RECORDS).is_err() {
            self.chunks.budget().uncharge_metadata(CHUNK_BYTES as u64);
            return Err(IndexError::NoMemory);
        }
        let free = Record { generation: self.first_generation, ..Record::FREE };
        records.resize(CHUNK_RECORDS, free);
        let records = records.into_boxed_slice().try_into().expect("made with this length");
        self.chunks.push(Chunk { records, used: 0 });
        self.with_room[chunk / 64] |= 1 << (chunk % 64);
        Ok(chunk)
    }

    /// Gives back the free chunks at the end, but for one: whoever adds and removes a record in
    /// turn need not ask the heap each time.
    fn trim(&mut self) {
        let is_free = |chunk: &Chunk| chunk.used == 0;
        while self.used == 0 && !self.chunks.is_empty()
            || self.chunks.len() >= 2 && self.chunks[self.chunks.len() - 2..].iter().all(is_free)
        {
            self.drop_last_chunk();
        }
        if self.chunks.is_empty() {
            self.chunks.release();
            self.with_room.release();
        } else if self.chunks.len() < self.chunks.capacity() / 2 {
            self.chunks.shrink(4);
            self.with_room.shrink(4);
        }
    }

    fn drop_last_chunk(&mut self) {
        let Some(last) = self.chunks.pop() else { return };
        let newest = last.records.iter().map(|record| record.generation).max();
        self.first_generation = self.first_generation.max(newest.unwrap_or(0));
        drop(last);
        self.chunks.budget().uncharge_metadata(CHUNK_BYTES as u64);
        let chunk = self.chunks.len();
        self.with_room[chunk / 64] &= !(1 << (chunk % 64));
        self.with_room.truncate(chunk.div_ceil(64));
    }

    /// Checks that the counts and bitmaps agree.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let used: u32 = self.chunks.iter().map(|chunk| chunk.used.count_ones()).sum();
        if used as usize != self.used {
            return Err(format!("{used} records in use, {} counted", self.used).into());
        }
        for (number, chunk) in self.chunks.iter().enumerate() {
            let has_room = self.with_room[number / 64] >> (number % 64) & 1 == 1;
            if has_room != (chunk.used != u64::MAX) {
                return Err(format!("chunk {number} of records: room marked {has_room}").into());
            }
        }
        Ok(())
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        while !self.chunks.is_empty() {
            self.drop_last_chunk();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zpool::Handle;

    fn held(number: u64) -> Held {
        let handle = Handle::from_bits(number << 20 | 5);
        Held {
            content: Content::Compressed { handle, bytes: 4096 },
            checksum: number as u32,
            written: None,
            tenant: TenantNumber::ROOT,
        }
    }

    #[test]
    fn a_record_keeps_all_that_is_held() {
        let handle = Handle::from_bits(u64::MAX >> (64 - Handle::BITS));
        let written = [
            None,
            Some(Written {
                at: Location::new(u32::MAX, 4080).unwrap(),
                bytes: 1,
                as_is: false,
                checksum: u32::MAX,
            }),
            Some(Written {
                at: Location::new(0, 0).unwrap(),
                bytes: 4096,
                as_is: true,
                checksum: 0,
            }),
            Some(Written {
                at: Location::new(7, 16).unwrap(),
                bytes: 4096,
                as_is: false,
                checksum: 1,
            }),
        ];
        for content in [
            Content::SameFilled(u64::MAX),
            Content::SameFilled(0),
            Content::Compressed { handle, bytes: 1 },
            Content::AsIs { handle },
            Content::WrittenBack,
        ] {
            for written in written {
                let mut record = Record::FREE;
                record.set_uses(2);
                let held = Held { content, checksum: 3, written, tenant: TenantNumber::ROOT };
                record.set_held(held);
                assert_eq!((record.held(), record.uses()), (held, 2));
            }
        }
    }

    #[test]
    fn numbers_are_used_again_under_another_entry_and_chunks_go_back() {
        let mut records = Records::new(&Arc::default());
        let numbers: Vec<u32> =
            (0..10_000).map(|n| records.insert(PageKey(n), held(n)).unwrap()).collect();
        assert_eq!(numbers, (0..10_000).collect::<Vec<u32>>());
        let old = records.entry(77);
        assert_eq!(records.number_if_current(old), Some(77));
        assert_eq!(records.remove(77), held(77));
        assert_eq!(records.number_if_current(old), None);
        assert_eq!(records.insert(PageKey(1), held(1)).unwrap(), 77);
        assert!(records.number_if_current(old).is_none() && records.entry(77) != old);
        records.audit().unwrap();
        let full = records.bytes();
        for number in (1..10_000).rev() {
            records.remove(number);
        }
        records.audit().unwrap();
        assert!(records.bytes() < full / 50, "{} of {full}", records.bytes());
        let entry = records.entry(0);
        records.remove(0);
        assert_eq!((records.used(), records.bytes()), (0, 0));
        assert_eq!(records.insert(PageKey(0), held(0)).unwrap(), 0);
        assert_eq!(records.number_if_current(entry), None);
    }

    #[test]
    fn the_tables_shrink_with_the_records() {
        let mut records = Records::new(&Arc::default());
        let count = 200 * CHUNK_RECORDS as u64;
        (0..count).for_each(|n| _ = records.insert(PageKey(n), held(n)).unwrap());
        let full = records.chunks.capacity();
        for number in (1..count as u32).rev() {
            records.remove(number);
            let (chunks, capacity) = (records.chunks.len(), records.chunks.capacity());
            assert!(capacity <= (2 * chunks + 1).max(8), "{capacity} places for {chunks} chunks");
            assert!(capacity == full || chunks < full / 2, "{chunks} chunks need no smaller table");
            assert!(records.with_room.capacity() <= capacity, "{chunks} chunks");
        }
    }

    #[test]
    fn places_that_were_given_back_are_taken_again_in_their_order() {
        const COUNT: u32 = 130 * CHUNK_RECORDS as u32; // their bitmap has three words
        let mut records = Records::new(&Arc::default());
        let fill = |records: &mut Records, from| {
            for number in from..COUNT {
                let key = PageKey(u64::from(number));
                assert_eq!(records.insert(key, held(key.0)).unwrap(), number);
            }
            records.audit().unwrap();
        };
        fill(&mut records, 0);
        for kept in [129, 128, 127, 66, 65, 64, 63, 2, 1].map(|kept| kept * CHUNK_RECORDS as u32) {
            (kept..COUNT).rev().for_each(|number| _ = records.remove(number));
            records.audit().unwrap();
            fill(&mut records, kept);
        }
    }
}
