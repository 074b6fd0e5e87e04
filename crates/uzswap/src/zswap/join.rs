//! Joining: pages of a unit that rest in the pool become one dense object.
//!
//! As in [recompression](super::recompress), nothing is locked while the pages are compressed. A
//! page that is another one by then, or is somewhere else, stays what it is. The object then has
//! bytes of a page that left.

use std::cell::RefCell;
use std::ops::Range;

use super::entry::{Content, Held};
use super::shard::unit_keys;
use super::tenant_id::TenantNumber;
use super::unit::{HEAD_BYTES, Head, Room as UnitRoom};
use super::{Effort, LoadError, Zswap, with_room};
use crate::compressor::UNIT_PAGES_MAX;
use crate::index::Entry;
use crate::page::{PAGE_SIZE, PageKey};

/// A page as it was found.
struct Member {
    key: PageKey,
    entry: Entry,
    held: Held,
    object: Object,
}

/// The object that a page is in. A later one may have the same entry.
enum Object {
    /// Its own: these bytes of the room.
    Own(Range<usize>),
    /// The unit of this number.
    Unit(u64),
}

/// A thread's room for pages and their objects.
struct Room {
    members: Vec<Member>,
    objects: Vec<u8>,
    /// Of their objects, those of pages that left a unit included.
    bytes: usize,
    unit: UnitRoom,
}

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room::new()));
}

impl Room {
    fn new() -> Room {
        Room { members: Vec::new(), objects: Vec::new(), bytes: 0, unit: UnitRoom::new() }
    }
}

impl Member {
    /// The number of the unit that it is in.
    fn unit(&self) -> Option<u64> {
        match self.object {
            Object::Own(_) => None,
            Object::Unit(number) => Some(number),
        }
    }
}

impl Zswap {
    /// Compresses all pages of the unit that `key` is in
    /// ([`ZswapOptions::unit_pages`](super::ZswapOptions::unit_pages)) again, densely and together,
    /// and keeps the result if it is smaller than their objects. Else, and without units, each page
    /// is [recompressed](Zswap::recompress) alone. Returns the bytes saved. Pages that the pool has
    /// as they were, and those of other tenants than the root, stay what they are.
    ///
    /// # Errors
    ///
    /// [`LoadError::Corrupt`]; the entry stays.
    pub fn recompress_unit(&self, key: PageKey) -> Result<usize, LoadError> {
        self.id.enter();
        let unit_pages = self.options.unit_pages as u64;
        if unit_pages > 1
            && let Some(saved) = with_room(&ROOM, Room::new, |room| self.join(room, key))?
        {
            return Ok(saved);
        }
        unit_keys(key, unit_pages).map(|key| self.recompress(key)).sum()
    }

    /// Has one object for the pages of a unit; the bytes saved, or `None` where that would not be
    /// smaller.
    fn join(&self, room: &mut Room, key: PageKey) -> Result<Option<usize>, LoadError> {
        let is_dense = self.restore_members(room, key)?;
        let Room { members, objects, bytes: before, unit } = room;
        if is_dense || members.len() < 2 {
            return Ok(is_dense.then_some(0));
        }
        let position = |member: &Member| member.key.0 & (self.options.unit_pages as u64 - 1);
        let mask = members.iter().fold(0, |mask, member| mask | 1 << position(member));
        let bytes_max = *before - 1;
        let made =
            self.keep_unit(Effort::Dense, key, mask, &unit.pages, &mut unit.object, bytes_max);
        let Some(made) = made else { return Ok(None) };
        let mut left = [None; UNIT_PAGES_MAX];
        let mut joined = 0;
        let mut shard = self.shards.of(key).lock();
        for &Member { key, entry, held, ref object } in &*members {
            let is_same = shard.get(key) == Some((entry, held))
                && match object {
                    Object::Own(bytes) => self.is_still_object(key, held, &objects[bytes.clone()]),
                    Object::Unit(number) => self.is_still_unit(key, held, *number),
                };
            let by = Held { written: held.written, ..made };
            if is_same && shard.replace_object(key, entry, by) {
                left[joined] = Some(shard.leave_unit(key, held));
                joined += 1;
            }
        }
        shard.counters.recompressed_pages += joined as u64;
        shard.counters.joined_units += u64::from(joined > 0);
        drop(shard);
        left.into_iter().flatten().for_each(|held| self.release_object(held));
        self.release_shares(made, joined as u64, members.len() as u64);
        let after = made.content.compressed_bytes() as usize * members.len();
        Ok(Some(if joined == 0 { 0 } else { *before - after }))
    }

    /// Restores the pages of a unit that are in the pool into the room; whether all of them are one
    /// dense unit.
    fn restore_members(&self, room: &mut Room, key: PageKey) -> Result<bool, LoadError> {
        room.members.clear();
        room.objects.clear();
        room.bytes = 0;
        room.unit.pages.clear();
        let mut dense = true;
        for key in unit_keys(key, self.options.unit_pages as u64) {
            let shard = self.shards.of(key).lock();
            let Some((entry, held)) = shard.get(key) else { continue };
            let is_compressed =
                matches!(held.content, Content::Compressed { .. } | Content::InUnit { .. });
            if !is_compressed || held.tenant != TenantNumber::ROOT {
                continue;
            }
            let mut page = [0; PAGE_SIZE];
            let object = self.with_slot(key, held, shard, |slot| {
                self.restore(key, held, slot, &mut page)?;
                if let Content::InUnit { .. } = held.content {
                    let (Head { number, .. }, data) = self.unit_in(key, slot)?;
                    dense &= self.compressor.is_dense(data)?;
                    let is_new = room.members.iter().all(|member| member.unit() != Some(number));
                    room.bytes += if is_new { HEAD_BYTES + data.len() } else { 0 };
                    return Ok(Object::Unit(number));
                }
                let object = self.check_slot(key, held, slot)?;
                let start = room.objects.len();
                room.objects.extend_from_slice(object);
                room.bytes += object.len();
                Ok(Object::Own(start..room.objects.len()))
            })?;
            room.unit.pages.push(page);
            room.members.push(Member { key, entry, held, object });
        }
        let mut units = room.members.iter().map(Member::unit);
        let first = units.next().flatten();
        Ok(dense && first.is_some() && units.all(|unit| unit == first))
    }
}
