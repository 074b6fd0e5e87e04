//! A table of what holds host pages: pages of chunks, blocks, zspages. Its entries have numbers,
//! and are linked into lists.
//!
//! Every entry has its pages or is on the vacant list.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use crate::AuditError;
use crate::budget::{Budget, GrowError};
use crate::budgeted_vec::BudgetedVec;

/// Number of an entry.
pub(super) type EntryId = u32;

/// The number of no entry.
pub(super) const NONE: EntryId = EntryId::MAX;

/// One entry: `P`, its host pages, and `S`, the owner's notes on what is in them.
#[derive(Debug)]
pub(super) struct Entry<P, S> {
    /// `None` while the entry is vacant.
    pages: Option<P>,
    /// Neighbours on a list; of a vacant entry, the next vacant one.
    pub(super) previous: EntryId,
    pub(super) next: EntryId,
    state: S,
}

/// A table with so many lists. Indexed by number for the owner's notes.
#[derive(Debug)]
pub(super) struct Table<P, S, const LISTS: usize> {
    entries: BudgetedVec<Entry<P, S>>,
    pub(super) vacant_head: EntryId,
    pub(super) used: usize,
    pub(super) heads: [EntryId; LISTS],
}

impl<P, S, const LISTS: usize> Table<P, S, LISTS> {
    pub(super) fn new(budget: &Arc<Budget>) -> Table<P, S, LISTS> {
        let entries = BudgetedVec::new(budget);
        Table { entries, vacant_head: NONE, used: 0, heads: [NONE; LISTS] }
    }

    /// Entries with pages.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Bytes of the table beyond its own struct.
    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.bytes()
    }

    /// Entries, vacant ones included: numbers are below it.
    pub(super) fn id_end(&self) -> EntryId {
        self.entries.len() as u32
    }

    /// Whether the number names an entry with pages.
    pub(super) fn is_used(&self, id: EntryId) -> bool {
        self.entries.get(id as usize).is_some_and(|entry| entry.pages.is_some())
    }

    /// Makes sure that the next [`Table::add`] finds room: a vacant entry, or one more of at most
    /// `max`. Whether that is one more.
    pub(super) fn reserve(&mut self, max: usize) -> Result<bool, GrowError> {
        let is_full = self.vacant_head == NONE;
        if is_full {
            self.entries.reserve_one(max)?;
        }
        Ok(is_full)
    }

    /// Takes pages in, on no list.
    pub(super) fn add(&mut self, pages: P, state: S) -> EntryId {
        let entry = Entry { pages: Some(pages), previous: NONE, next: NONE, state };
        self.used += 1;
        if self.vacant_head == NONE {
            self.entries.push(entry);
            return self.id_end() - 1;
        }
        let id = self.vacant_head;
        self.vacant_head = self.entry(id).next;
        self.entries[id as usize] = entry;
        id
    }

    /// Lets go of pages that are on no list.
    pub(super) fn take(&mut self, id: EntryId) -> P {
        let entry = &mut self.entries[id as usize];
        entry.next = std::mem::replace(&mut self.vacant_head, id);
        self.used -= 1;
        entry.pages.take().expect("an entry that is let go was in use")
    }

    /// Takes all pages, leaving the table unusable: the pool is going away.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = P> {
        self.entries.drain_from(0).filter_map(|entry| entry.pages)
    }

    /// Gives the memory back if there are no pages.
    pub(super) fn release_if_empty(&mut self) {
        if self.used == 0 {
            self.entries.release();
            self.vacant_head = NONE;
        }
    }

    #[inline]
    pub(super) fn pages(&self, id: EntryId) -> &P {
        self.entry(id).pages.as_ref().expect("an entry in use has pages")
    }

    #[inline]
    pub(super) fn pages_mut(&mut self, id: EntryId) -> &mut P {
        self.entry_mut(id).pages.as_mut().expect("an entry in use has pages")
    }

    /// The pages of two entries.
    pub(super) fn pair_mut(&mut self, one: EntryId, other: EntryId) -> [&mut P; 2] {
        let both = self.entries.get_disjoint_mut([one as usize, other as usize]);
        let both = both.expect("an entry is not its own other");
        both.map(|entry| entry.pages.as_mut().expect("an entry in use has pages"))
    }

    /// The entries with pages.
    pub(super) fn iter(&self) -> impl Iterator<Item = (EntryId, &P, &S)> {
        let entries = (0..).zip(self.entries.iter());
        entries.filter_map(|(id, entry)| Some((id, entry.pages.as_ref()?, &entry.state)))
    }

    #[inline]
    pub(super) fn entry(&self, id: EntryId) -> &Entry<P, S> {
        &self.entries[id as usize]
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, id: EntryId) -> &mut Entry<P, S> {
        &mut self.entries[id as usize]
    }

    /// Puts an entry that is on no list at the head of one.
    pub(super) fn link(&mut self, list: usize, id: EntryId) {
        let next = std::mem::replace(&mut self.heads[list], id);
        let entry = self.entry_mut(id);
        (entry.previous, entry.next) = (NONE, next);
        if next != NONE {
            self.entry_mut(next).previous = id;
        }
    }

    /// Takes an entry off its list.
    pub(super) fn unlink(&mut self, list: usize, id: EntryId) {
        let &Entry { previous, next, .. } = self.entry(id);
        match previous {
            NONE => self.heads[list] = next,
            previous => self.entry_mut(previous).next = next,
        }
        if next != NONE {
            self.entry_mut(next).previous = previous;
        }
    }

    /// Walks a list, each entry of which must have pages and be right for it; their number and the
    /// last of them.
    pub(super) fn audit_list(
        &self,
        list: usize,
        is_right: impl Fn(&S) -> bool,
    ) -> Result<(usize, EntryId), String> {
        let (mut count, mut id, mut previous) = (0, self.heads[list], NONE);
        while id != NONE {
            let entry = self.entries.get(id as usize).ok_or("a list leaves the table")?;
            // A list that meets itself is found here: an entry has one `previous`.
            if entry.pages.is_none() || !is_right(&entry.state) || entry.previous != previous {
                return Err(format!("entry {id} does not belong on its list"));
            }
            count += 1;
            (previous, id) = (id, entry.next);
        }
        Ok((count, previous))
    }

    /// Counts the used entries and walks the list of the vacant ones.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let used = self.iter().count();
        if used != self.used {
            return Err(format!("{used} entries have pages, {} are counted", self.used).into());
        }
        let (mut vacant, mut id) = (0, self.vacant_head);
        while id != NONE {
            let entry = self.entries.get(id as usize).ok_or("the vacant list leaves the table")?;
            vacant += 1;
            if entry.pages.is_some() || vacant > self.entries.len() {
                return Err(format!("entry {id} does not belong on the vacant list").into());
            }
            id = entry.next;
        }
        if vacant + used != self.entries.len() {
            let entries = self.entries.len();
            return Err(format!("{vacant} entries vacant, {used} used of {entries}").into());
        }
        Ok(())
    }
}

impl<P, S, const LISTS: usize> Index<EntryId> for Table<P, S, LISTS> {
    type Output = S;

    #[inline]
    fn index(&self, id: EntryId) -> &S {
        &self.entry(id).state
    }
}

impl<P, S, const LISTS: usize> IndexMut<EntryId> for Table<P, S, LISTS> {
    #[inline]
    fn index_mut(&mut self, id: EntryId) -> &mut S {
        &mut self.entry_mut(id).state
    }
}
