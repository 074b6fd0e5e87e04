//! One class's zspages: host pages cut into slots, sorted by fullness.
//!
//! ```text
//!             zspage of 2 host pages, slots of 1632 bytes
//!  |        slot 0       |      slot 1      |  slot 2 ...     | slot 4 | tail
//!  | word |  object      | word |  object   | word | object   |
//!    |
//!    |-- in use: cell of the handle << 1 | 1
//!    '-- free:   next free slot << 1
//! ```
//!
//! In a huge class, and in a pool with [`HandleHeader::Beside`](super::HandleHeader::Beside), the
//! word is kept in a table instead. A word never crosses a page border: slots start at multiples of
//! 16 bytes. How an object that does is reached is the business of `P`, the zspage's pages.
//!
//! - Z1: a slot's word has bit 0 set if and only if the slot holds an object; it then names the
//!   cell that leads back to the slot. Every cell in use leads to such a slot of this class.
//! - Z2: the free list and the slots never used yet are the slots not in use.
//! - Z3: a zspage with room is on the list of its fullness group; no zspage is empty.

use std::ops::Range;
use std::sync::Arc;

use super::class::{FULLNESS_GROUPS, HANDLE_BYTES, SizeClass, fullness_group};
use super::mapping::{Contiguous, WriteMode, ZspagePages};
use crate::AuditError;
use crate::budget::{Budget, GrowError};
use crate::budgeted_vec::BudgetedVec;
use crate::page::PAGE_SIZE;
use crate::zpool::handle::{CELLS_MAX, Handle, HandleTable, Location};
use crate::zpool::lock::PoolPart;
use crate::zpool::table::{Entry, EntryId, NONE, Table};

/// Number of a zspage in its class.
pub(super) type ZspageId = EntryId;

/// The free-list end in a slot's word, as its 31 low bits.
const LAST: u32 = u32::MAX >> 1;

/// The most zspages of a class: a location has 31 bits for the number.
const ZSPAGES_MAX: usize = 1 << 31;

const _: () = assert!(CELLS_MAX - 1 <= (u32::MAX >> 1) as usize); // of a slot's word

/// What is in a zspage.
#[derive(Debug)]
struct Slots {
    /// Slots in use.
    used: u16,
    /// Slots from here on were never used: they follow the free list in order.
    untouched: u16,
    /// Head of the list of freed slots.
    free_head: u32,
}

/// One zspage; 32 bytes. Its list is that of its fullness group.
type Zspage<P> = Entry<P, Slots>;

const _: () = assert!(size_of::<Zspage<Contiguous>>() == 32);

/// Everything of one size class that its lock protects.
#[derive(Debug)]
pub(super) struct ClassPages<P> {
    class: SizeClass,
    /// Bytes of the word in front of an object: 8, or 0 where it is kept in `beside`.
    header_bytes: usize,
    handles: HandleTable,
    zspages: Table<P, Slots, FULLNESS_GROUPS>,
    /// Words of the slots, `class.slots` a zspage, where they are not in the slots.
    beside: BudgetedVec<u32>,
    /// Zspages per group.
    group_counts: [usize; FULLNESS_GROUPS],
    /// Slots used to group, so that no insert divides.
    groups: Box<[u8]>,
}

impl<P: ZspagePages> PoolPart for ClassPages<P> {
    fn reserve(&mut self) -> Result<(), GrowError> {
        self.handles.reserve()?;
        if self.zspages.reserve(ZSPAGES_MAX)? && self.header_bytes == 0 {
            self.beside.reserve(self.class.slots, usize::MAX)?;
        }
        Ok(())
    }
}

impl<P: ZspagePages> ClassPages<P> {
    pub(super) fn new(
        place: usize,
        class: SizeClass,
        header_in_slot: bool,
        budget: &Arc<Budget>,
    ) -> ClassPages<P> {
        let set = u8::try_from(place).expect("at most 255 classes");
        let group = |used| fullness_group(used, class.slots) as u8; // < 12
        ClassPages {
            class,
            header_bytes: if header_in_slot { HANDLE_BYTES } else { 0 },
            handles: HandleTable::new(set, budget),
            zspages: Table::new(budget),
            beside: BudgetedVec::new(budget),
            group_counts: [0; FULLNESS_GROUPS],
            groups: (0..=class.slots).map(group).collect(),
        }
    }

    pub(super) fn class(&self) -> &SizeClass {
        &self.class
    }

    pub(super) fn objects(&self) -> usize {
        self.handles.used()
    }

    pub(super) fn zspage_count(&self) -> usize {
        self.zspages.used()
    }

    pub(super) fn group_counts(&self) -> [usize; FULLNESS_GROUPS] {
        self.group_counts
    }

    /// Host pages that packing the objects perfectly would free.
    pub(super) fn freeable_pages(&self) -> usize {
        let free_slots = self.zspage_count() * self.class.slots - self.objects();
        free_slots / self.class.slots * self.class.pages
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.groups.len()
            + self.handles.bytes()
            + self.zspages.heap_bytes()
            + self.zspage_count() * self.class.pages * P::TABLE_BYTES_A_PAGE
            + self.beside.bytes()
    }

    /// Gives the tables' memory back if the class holds nothing.
    pub(super) fn release_if_empty(&mut self) {
        self.handles.release_if_empty();
        self.zspages.release_if_empty();
        if self.zspage_count() == 0 {
            self.beside.release();
        }
    }

    /// The zspage that the next object goes to: the fullest that has room.
    pub(super) fn zspage_with_room(&self) -> Option<ZspageId> {
        self.zspages.heads[..FULLNESS_GROUPS - 1].iter().rev().copied().find(|&head| head != NONE)
    }

    /// Makes a zspage of `pages`. Empty until the caller places an object in it.
    pub(super) fn add_zspage(&mut self, pages: P) -> ZspageId {
        debug_assert_eq!(pages.page_count(), self.class.pages);
        let id = self.zspages.add(pages, Slots { used: 0, untouched: 0, free_head: LAST });
        if self.header_bytes == 0 {
            self.beside.resize(self.zspages.id_end() as usize * self.class.slots, 0);
        }
        self.link(id);
        id
    }

    /// Copies `object` into a free slot of a zspage that has one.
    pub(super) fn place(&mut self, id: ZspageId, object: &[u8]) -> Handle {
        let listed = self.group(id);
        let slot = self.pop_slot(id);
        self.relist(id, listed);
        let handle = self.handles.insert(location(id, slot));
        self.set_word(id, slot, handle.cell() << 1 | 1);
        let room = self.room(slot);
        self.zspages
            .pages_mut(id)
            .write(room, WriteMode::WriteOnly, |room| room[..object.len()].copy_from_slice(object));
        handle
    }

    /// The bytes of a zspage that an object in `slot` may take.
    #[inline]
    fn room(&self, slot: u32) -> Range<usize> {
        let start = slot as usize * self.class.slot_bytes;
        start + self.header_bytes..start + self.class.slot_bytes
    }

    /// Calls `reader` with an object and the slack behind it; `None` where the handle names none.
    #[inline]
    pub(super) fn read<R>(&self, handle: Handle, reader: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let (id, slot) = zspage_and_slot(self.handles.get(handle)?);
        Some(self.zspages.pages(id).read(self.room(slot), reader))
    }

    /// As [`ClassPages::read`], to change the object.
    #[inline]
    pub(super) fn write<R>(
        &mut self,
        handle: Handle,
        mode: WriteMode,
        writer: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        let (id, slot) = zspage_and_slot(self.handles.get(handle)?);
        let room = self.room(slot);
        Some(self.zspages.pages_mut(id).write(room, mode, writer))
    }

    /// Whether the slot of an object is in two pages; `None` where the handle names none.
    pub(super) fn crosses_pages(&self, handle: Handle) -> Option<bool> {
        let (_, slot) = zspage_and_slot(self.handles.get(handle)?);
        let room = self.room(slot);
        Some(room.start / PAGE_SIZE != (room.end - 1) / PAGE_SIZE)
    }

    /// Frees an object, and the pages of the zspage that it leaves empty; `None` where the handle
    /// names none.
    pub(super) fn remove(&mut self, handle: Handle) -> Option<Option<P>> {
        let (id, slot) = zspage_and_slot(self.handles.remove(handle)?);
        let listed = self.group(id);
        self.push_slot(id, slot);
        if self.zspages[id].used > 0 {
            self.relist(id, listed);
            return Some(None);
        }
        self.unlink(id, listed);
        Some(Some(self.vacate(id)))
    }

    /// Pops a free slot: the last freed first, then those never used. Leaves the lists alone.
    fn pop_slot(&mut self, id: ZspageId) -> u32 {
        let free_head = self.zspages[id].free_head;
        let next = if free_head == LAST { LAST } else { self.word(id, free_head) >> 1 };
        let zspage = &mut self.zspages[id];
        debug_assert!(usize::from(zspage.used) < self.class.slots);
        zspage.used += 1;
        zspage.free_head = next;
        if free_head != LAST {
            return free_head;
        }
        zspage.untouched += 1;
        u32::from(zspage.untouched) - 1
    }

    /// Pushes a slot on the free list. Leaves the group lists alone.
    fn push_slot(&mut self, id: ZspageId, slot: u32) {
        let free_head = self.zspages[id].free_head;
        self.set_word(id, slot, free_head << 1);
        let zspage = &mut self.zspages[id];
        zspage.free_head = slot;
        zspage.used -= 1;
    }

    /// Moves a zspage to the list of its group, if that is not `listed` any more.
    fn relist(&mut self, id: ZspageId, listed: usize) {
        if self.group(id) != listed {
            self.unlink(id, listed);
            self.link(id);
        }
    }

    fn group(&self, id: ZspageId) -> usize {
        self.group_of(&self.zspages[id])
    }

    fn group_of(&self, slots: &Slots) -> usize {
        usize::from(self.groups[usize::from(slots.used)])
    }

    /// Puts a zspage at the head of its group's list.
    fn link(&mut self, id: ZspageId) {
        let group = self.group(id);
        self.zspages.link(group, id);
        self.group_counts[group] += 1;
    }

    /// Takes a zspage off the list of `group`.
    fn unlink(&mut self, id: ZspageId, group: usize) {
        self.zspages.unlink(group, id);
        self.group_counts[group] -= 1;
    }

    /// Takes the pages out of an empty, unlinked zspage.
    fn vacate(&mut self, id: ZspageId) -> P {
        debug_assert_eq!(self.zspages[id].used, 0);
        self.zspages.take(id)
    }

    /// Takes the pages of every zspage, leaving the class unusable: the pool is going away.
    pub(super) fn take_pages(&mut self) -> impl Iterator<Item = P> {
        self.zspages.take_all()
    }

    /// The low half of a slot's word; the high half is not used.
    fn word(&self, id: ZspageId, slot: u32) -> u32 {
        if self.header_bytes == 0 {
            return self.beside[id as usize * self.class.slots + slot as usize];
        }
        let start = slot as usize * self.class.slot_bytes;
        let word =
            self.zspages.pages(id).piece(start).first_chunk().expect("a slot has room for a word");
        u64::from_ne_bytes(*word) as u32
    }

    fn set_word(&mut self, id: ZspageId, slot: u32, word: u32) {
        if self.header_bytes == 0 {
            self.beside[id as usize * self.class.slots + slot as usize] = word;
            return;
        }
        let start = slot as usize * self.class.slot_bytes;
        let place =
            self.zspages.pages_mut(id).piece_mut(start).first_chunk_mut().expect("room for a word");
        *place = u64::from(word).to_ne_bytes();
    }

    /// One step of compaction: takes the fullest zspage that has room and fills it from the
    /// emptiest ones. The pages that came free are appended to `emptied`; `false` when nothing is
    /// left to gain. This is the order of kernels from 6.4.
    pub(super) fn compact_step(&mut self, emptied: &mut Vec<P>) -> bool {
        if self.freeable_pages() == 0 {
            return false;
        }
        let Some(destination) = self.zspage_with_room() else { return false };
        // Off its list, so that it is not its own source.
        self.unlink(destination, self.group(destination));
        let mut moved = false;
        while self.freeable_pages() > 0 && !self.is_full(destination) {
            let Some(source) = self.emptiest_zspage() else { break };
            self.unlink(source, self.group(source));
            self.move_objects(source, destination);
            moved = true;
            if self.zspages[source].used == 0 {
                emptied.push(self.vacate(source));
            } else {
                self.link(source);
            }
        }
        self.link(destination);
        moved
    }

    fn emptiest_zspage(&self) -> Option<ZspageId> {
        self.zspages.heads[..FULLNESS_GROUPS - 1].iter().copied().find(|&head| head != NONE)
    }

    fn is_full(&self, id: ZspageId) -> bool {
        usize::from(self.zspages[id].used) == self.class.slots
    }

    /// Moves objects, lowest slot first, until the source is empty or the destination full. Both
    /// are off their lists.
    fn move_objects(&mut self, source: ZspageId, destination: ZspageId) {
        for from in 0..u32::from(self.zspages[source].untouched) {
            if self.zspages[source].used == 0 || self.is_full(destination) {
                break;
            }
            let word = self.word(source, from);
            if word & 1 == 0 {
                continue;
            }
            let to = self.pop_slot(destination);
            self.copy_slot((source, from), (destination, to));
            self.set_word(destination, to, word);
            self.handles.relocate(word >> 1, location(destination, to));
            self.push_slot(source, from);
        }
    }

    fn copy_slot(&mut self, from: (ZspageId, u32), to: (ZspageId, u32)) {
        let bytes = self.class.slot_bytes;
        let [source, destination] = self.zspages.pair_mut(from.0, to.0);
        let (from, to) = (from.1 as usize * bytes, to.1 as usize * bytes);
        let mut copied = 0;
        while copied < bytes {
            let (from, to) = (source.piece(from + copied), destination.piece_mut(to + copied));
            let piece = from.len().min(to.len()).min(bytes - copied);
            to[..piece].copy_from_slice(&from[..piece]);
            copied += piece;
        }
    }

    /// Checks Z1 to Z3 for every zspage of the class.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        self.handles.audit()?;
        let mut used = 0;
        for (id, _, slots) in self.zspages.iter() {
            self.audit_zspage(id).map_err(|error| format!("zspage {id}: {error}"))?;
            used += usize::from(slots.used);
        }
        // Each slot in use has a handle that leads to it: of as many handles, each leads to one.
        if used != self.objects() {
            return Err(format!("{used} slots in use for {} handles", self.objects()).into());
        }
        self.zspages.audit()?;
        self.audit_lists()
    }

    fn audit_zspage(&self, id: ZspageId) -> Result<(), AuditError> {
        let zspage = &self.zspages[id];
        let slots = self.class.slots;
        let pages = self.zspages.pages(id).page_count();
        if pages != self.class.pages {
            return Err(format!("it has {pages} pages, its class {}", self.class.pages).into());
        }
        if zspage.used == 0 || usize::from(zspage.used) > slots {
            return Err(format!("Z3: {} of {slots} slots in use", zspage.used).into());
        }
        let mut in_use = 0;
        for slot in 0..u32::from(zspage.untouched) {
            let word = self.word(id, slot);
            if word & 1 == 0 {
                continue;
            }
            in_use += 1;
            if self.handles.location_of_cell(word >> 1) != Some(location(id, slot)) {
                return Err(
                    format!("Z1: slot {slot} names cell {}, which does not", word >> 1).into()
                );
            }
        }
        if in_use != zspage.used {
            return Err(format!("Z1: {in_use} words in use, {} counted", zspage.used).into());
        }
        let (mut free, mut next) = (slots - usize::from(zspage.untouched), zspage.free_head);
        while next != LAST {
            if next >= u32::from(zspage.untouched) || self.word(id, next) & 1 != 0 {
                return Err(format!("Z2: the free list holds slot {next}").into());
            }
            free += 1;
            if free > slots {
                return Err("Z2: the free list has a cycle".into());
            }
            next = self.word(id, next) >> 1;
        }
        if free + usize::from(zspage.used) != slots {
            return Err(format!("Z2: {free} free, {} used of {slots}", zspage.used).into());
        }
        Ok(())
    }

    fn audit_lists(&self) -> Result<(), AuditError> {
        for group in 0..FULLNESS_GROUPS {
            let walked = self.zspages.audit_list(group, |slots| self.group_of(slots) == group);
            let (count, _) = walked.map_err(|error| format!("Z3: list {group}: {error}"))?;
            let counted = self.group_counts[group];
            if count != counted {
                return Err(format!("Z3: list {group} has {count}, {counted} counted").into());
            }
        }
        if self.group_counts.iter().sum::<usize>() != self.zspage_count() {
            return Err("Z3: a zspage is on no list".into());
        }
        Ok(())
    }
}

/// A location: zspage number (31 bits), slot (8 bits).
fn location(id: ZspageId, slot: u32) -> Location {
    debug_assert!(slot < 256 && (id as usize) < ZSPAGES_MAX);
    u64::from(id) << 8 | u64::from(slot)
}

fn zspage_and_slot(location: Location) -> (ZspageId, u32) {
    ((location >> 8) as u32, (location & 0xff) as u32)
}

#[cfg(test)]
mod tests {
    use super::super::ZsmallocOptions;
    use super::super::class::ClassTable;
    use super::*;
    use crate::zpool::Arena;

    type Pages = ClassPages<Contiguous>;

    /// A class of 5 slots: slots 0 and 2 of zspage 0, one slot of zspage 1, zspage 2 is gone.
    fn class(arena: &Arena) -> Pages {
        let class = *ClassTable::new(ZsmallocOptions::default()).class_of(3200);
        assert_eq!(class.slots, 5);
        let mut pages = Pages::new(0, class, true, arena.budget());
        let mut handles = Vec::new();
        for objects in [3, 1, 1] {
            pages.reserve().unwrap();
            let id = pages.add_zspage(Contiguous::take(arena, class.pages).unwrap());
            for _ in 0..objects {
                pages.reserve().unwrap();
                handles.push(pages.place(id, &[7; 3200]));
            }
        }
        for number in [1, 4] {
            let emptied = pages.remove(handles[number]).unwrap();
            emptied.into_iter().for_each(|pages| pages.give_back(arena));
        }
        pages
    }

    #[test]
    fn an_audit_tells_each_fault() {
        type Fault = (fn(&mut Pages), &'static str);
        // Lists 5 and 3 hold zspages of 2 and of 1 slot in use.
        let faults: [Fault; 21] = [
            (|pages| pages.class.pages += 1, "pages, its class"),
            (|pages| pages.zspages[0].used = 0, "Z3: 0 of 5 slots in use"),
            (|pages| pages.zspages[0].used = 6, "Z3: 6 of 5 slots in use"),
            (|pages| pages.handles.relocate(0, location(1, 0)), "Z1: slot 0 names cell 0"),
            (|pages| pages.zspages[0].used = 3, "Z1: 2 words in use, 3 counted"),
            (|pages| pages.set_word(0, 2, LAST << 1), "Z1: 1 words in use, 2 counted"),
            (|pages| pages.zspages[0].free_head = 0, "Z2: the free list holds slot 0"),
            (|pages| pages.zspages[0].free_head = 4, "Z2: the free list holds slot 4"),
            (|pages| pages.zspages[0].free_head = LAST, "Z2: 2 free, 2 used of 5"),
            (|pages| pages.set_word(0, 1, 1 << 1), "Z2: the free list has a cycle"),
            (
                |pages| {
                    pages.handles.reserve().unwrap();
                    pages.handles.insert(location(0, 0));
                },
                "3 slots in use for 4 handles",
            ),
            (|pages| pages.zspages.vacant_head = 9, "the vacant list leaves the table"),
            (|pages| pages.zspages.vacant_head = 1, "entry 1 does not belong on the vacant list"),
            (
                |pages| pages.zspages.entry_mut(2).next = 2,
                "entry 2 does not belong on the vacant list",
            ),
            (|pages| pages.zspages.vacant_head = NONE, "0 entries vacant, 2 used of 3"),
            (|pages| pages.zspages.used = 3, "2 entries have pages, 3 are counted"),
            (|pages| pages.zspages.heads.swap(3, 5), "Z3: list 3: entry 0 does not belong"),
            (
                |pages| pages.zspages.entry_mut(1).previous = 0,
                "Z3: list 3: entry 1 does not belong",
            ),
            (
                |pages| (pages.zspages[2].used, pages.zspages.heads[3]) = (1, 2),
                "Z3: list 3: entry 2 does not belong",
            ),
            (|pages| pages.group_counts[3] = 2, "Z3: list 3 has 1, 2 counted"),
            (
                |pages| (pages.zspages.heads[3], pages.group_counts[3]) = (NONE, 0),
                "Z3: a zspage is on no list",
            ),
        ];
        let arena = Arena::new();
        for (plant, told) in faults {
            let mut pages = class(&arena);
            pages.audit().unwrap();
            plant(&mut pages);
            let error = pages.audit().unwrap_err().to_string();
            assert!(error.contains(told), "no '{told}' in: {error}");
            pages.take_pages().for_each(|pages| pages.give_back(&arena));
        }
    }
}
