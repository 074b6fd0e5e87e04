//! The state of each page of an address space: in the program, staged or stored, and its heat.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::ops::Range;

use uzswap::page::{PAGE_SIZE, Page, PageKey};

/// Pages in a part of the table that is allocated at once: 2 MiB of address space.
const CHUNK_PAGES: u64 = 512;

/// Pages of one command. The kernel flushes the TLB once for more than 33 pages, and for each page
/// below.
pub(crate) const BATCH_PAGES: usize = 512;

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the program: resident, or zero-filled at its next touch.
    Program,
    /// Staged, in this page of staging.
    Staged(u32),
    /// Stored, in this slot.
    Stored(u32),
}

/// A page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) place: Place,
    /// A fault filled the page after its registration: if its place is the program, it is
    /// resident, and no query of the kernel is needed.
    pub(crate) returned: bool,
    /// The hand picks it in one turn of 2^heat: 0 to [`HEAT_MAX`].
    pub(crate) heat: u8,
    /// Filled with zeros ahead of any touch, for the fault of a page before it.
    pub(crate) ahead: bool,
}

/// The most: one turn of 32. With 128, hot pages fault some 5 % less, and the hand passes four
/// times as many.
pub(crate) const HEAT_MAX: u8 = 5;

/// Pages of zeros that take no memory before they are written: for a short program they never are.
pub(crate) fn untouched_pages(count: usize) -> Box<[Page]> {
    vec![[0; PAGE_SIZE]; count].into()
}

/// The key of a slot in the store.
pub(crate) fn key(slot: u32) -> PageKey {
    PageKey(u64::from(slot))
}

/// An entry in 32 bits: a number, two bits of place, three bits of heat above them, and one for a
/// page that was read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Packed(u32);

const NUMBER_BITS: u32 = 26;
/// The most slots and pages of staging there can be: 256 GiB of pages.
pub(crate) const NUMBERS: u32 = 1 << NUMBER_BITS;
const STAGED: u32 = 1 << NUMBER_BITS;
const STORED: u32 = 2 << NUMBER_BITS;
/// Of two bits.
const PLACES: usize = 4;
const HEAT_SHIFT: u32 = NUMBER_BITS + 2;
const HEATS: u32 = 8;
const AHEAD: u32 = 1 << 31;

impl Packed {
    const NOTHING: Packed = Packed(0);

    fn of(entry: Entry) -> Packed {
        let place = match entry.place {
            Place::Program => u32::from(entry.returned),
            Place::Staged(number) => STAGED | number,
            Place::Stored(number) => STORED | number,
        };
        let ahead = if entry.ahead { AHEAD } else { 0 };
        Packed(place | u32::from(entry.heat) << HEAT_SHIFT | ahead)
    }

    /// Where the page is, without the number: below [`PLACES`].
    fn place(self) -> usize {
        (self.0 / NUMBERS % PLACES as u32) as usize
    }

    fn entry(self) -> Entry {
        let number = self.0 % NUMBERS;
        let place = match self.0 & (STAGED | STORED) {
            STAGED => Place::Staged(number),
            STORED => Place::Stored(number),
            _ => Place::Program,
        };
        let heat = ((self.0 >> HEAT_SHIFT) % HEATS) as u8; // up to HEAT_MAX
        let returned = place == Place::Program && number != 0;
        Entry { place, returned, heat, ahead: self.0 & AHEAD != 0 }
    }
}

/// A page of which nothing is known.
pub(crate) const UNKNOWN: Entry =
    Entry { place: Place::Program, returned: false, heat: 0, ahead: false };

/// The most entries of a chunk that is a list, and the number at which it becomes a list again. A
/// longer list takes as much memory as all entries of a chunk.
const LISTED_MAX: usize = CHUNK_PAGES as usize / 4;
const LISTED_AGAIN: usize = LISTED_MAX / 2;

/// An entry that is not nothing, by its place in the chunk.
type Listed = (u16, Packed);

/// Entries of all pages of a chunk.
#[derive(Debug, Clone)]
struct All {
    /// Those that are not nothing.
    used: u16,
    entries: [Packed; CHUNK_PAGES as usize],
}

/// The entries of a chunk that are not nothing; at least one. Many programs touch few pages of each
/// 2 MiB: tables of hashes, shadow memory of sanitizers, stacks.
#[derive(Debug, Clone)]
enum Chunk {
    /// The only one.
    One(Listed),
    /// In the order of their places.
    Few(Vec<Listed>),
    All(Box<All>),
}

impl Chunk {
    fn get(&self, at: usize) -> Packed {
        match self {
            Chunk::All(all) => all.entries[at],
            Chunk::One((place, entry)) if usize::from(*place) == at => *entry,
            Chunk::One(_) => Packed::NOTHING,
            Chunk::Few(few) => find(few, at).map_or(Packed::NOTHING, |found| few[found].1),
        }
    }

    /// Puts an entry in, which may be nothing, and takes out what was there before. `false` with it
    /// where none is left.
    fn replace(&mut self, at: usize, new: Packed) -> (Packed, bool) {
        if new == Packed::NOTHING { self.take(at) } else { (self.put(at, new), true) }
    }

    fn put(&mut self, at: usize, new: Packed) -> Packed {
        match self {
            Chunk::All(all) => {
                let before = std::mem::replace(&mut all.entries[at], new);
                all.used += u16::from(before == Packed::NOTHING);
                return before;
            }
            Chunk::One((place, entry)) if usize::from(*place) == at => {
                return std::mem::replace(entry, new);
            }
            Chunk::One(one) => *self = Chunk::Few(vec![*one]),
            Chunk::Few(few) => {
                if let Ok(found) = find(few, at) {
                    return std::mem::replace(&mut few[found].1, new);
                }
                if few.len() == LISTED_MAX {
                    *self = Chunk::All(all(few));
                    return self.put(at, new);
                }
            }
        }
        let Chunk::Few(few) = self else { unreachable!("it is a list by now") };
        if few.len() == few.capacity() {
            few.reserve_exact((few.len() / 2).max(1));
        }
        let place = find(few, at).unwrap_or_else(|place| place);
        few.insert(place, (at as u16, new)); // below CHUNK_PAGES
        Packed::NOTHING
    }

    fn take(&mut self, at: usize) -> (Packed, bool) {
        match self {
            Chunk::One((place, entry)) if usize::from(*place) == at => (*entry, false),
            Chunk::One(_) => (Packed::NOTHING, true),
            Chunk::Few(few) => {
                let Ok(found) = find(few, at) else { return (Packed::NOTHING, true) };
                let (_, before) = few.remove(found);
                if few.len() * 4 <= few.capacity() {
                    few.shrink_to(few.len() * 2);
                }
                (before, !few.is_empty())
            }
            Chunk::All(all) => {
                let before = std::mem::replace(&mut all.entries[at], Packed::NOTHING);
                all.used -= u16::from(before != Packed::NOTHING);
                if usize::from(all.used) <= LISTED_AGAIN {
                    *self = Chunk::Few(self.from(0).collect());
                }
                (before, true)
            }
        }
    }

    fn is_full(&self) -> bool {
        matches!(self, Chunk::All(all) if u64::from(all.used) == CHUNK_PAGES)
    }

    /// The entries from a place on that are not nothing, each by its place.
    fn from(&self, at: usize) -> impl Iterator<Item = Listed> + '_ {
        let (listed, all): (&[Listed], &[Packed]) = match self {
            Chunk::One(one) => (std::slice::from_ref(one), &[]),
            Chunk::Few(few) => (few, &[]),
            Chunk::All(all) => (&[], &all.entries[at..]),
        };
        let listed = &listed[find(listed, at).unwrap_or_else(|place| place)..];
        let all = (at as u16..).zip(all.iter().copied());
        listed.iter().copied().chain(all.filter(|(_, entry)| *entry != Packed::NOTHING))
    }

    /// Memory of it alone, in bytes, with what malloc needs.
    fn bytes(&self) -> usize {
        const MALLOC: usize = 16;
        match self {
            Chunk::One(_) => 0,
            Chunk::Few(few) => few.capacity() * size_of::<Listed>() + MALLOC,
            Chunk::All(_) => size_of::<All>() + MALLOC,
        }
    }
}

/// Where an entry is in a list of them, or where it belongs.
fn find(few: &[Listed], at: usize) -> Result<usize, usize> {
    match few.last() {
        Some((last, _)) if usize::from(*last) < at => Err(few.len()), // pages come in order mostly
        _ => few.binary_search_by_key(&at, |(place, _)| usize::from(*place)),
    }
}

fn all(few: &[Listed]) -> Box<All> {
    let entries = [Packed::NOTHING; CHUNK_PAGES as usize];
    let mut all = Box::new(All { used: few.len() as u16, entries }); // of CHUNK_PAGES
    few.iter().for_each(|(at, entry)| all.entries[usize::from(*at)] = *entry);
    all
}

/// The table, by number of page: its address divided by 4096.
#[derive(Debug, Default)]
pub(crate) struct PageTable {
    chunks: BTreeMap<u64, Chunk>,
    /// Entries that are not nothing, by place.
    places: [u64; PLACES],
    /// Memory of the chunks alone.
    chunk_bytes: usize,
}

impl PageTable {
    pub(crate) fn get(&self, page: u64) -> Entry {
        let chunk = self.chunks.get(&(page / CHUNK_PAGES));
        chunk.map_or(UNKNOWN, |chunk| chunk.get((page % CHUNK_PAGES) as usize).entry())
    }

    pub(crate) fn set(&mut self, page: u64, entry: Entry) {
        let (number, at) = (page / CHUNK_PAGES, (page % CHUNK_PAGES) as usize);
        let new = Packed::of(entry);
        let before = match self.chunks.entry(number) {
            MapEntry::Vacant(_) if new == Packed::NOTHING => return,
            MapEntry::Vacant(vacant) => {
                vacant.insert(Chunk::One((at as u16, new))); // below CHUNK_PAGES
                Packed::NOTHING
            }
            MapEntry::Occupied(mut occupied) => {
                let chunk = occupied.get_mut();
                self.chunk_bytes -= chunk.bytes();
                let (before, is_used) = chunk.replace(at, new);
                match is_used {
                    true => self.chunk_bytes += chunk.bytes(),
                    false => drop(occupied.remove()),
                }
                before
            }
        };
        if new != Packed::NOTHING {
            self.places[new.place()] += 1;
        }
        if before != Packed::NOTHING {
            self.places[before.place()] -= 1;
        }
    }

    /// Of the pages from `page` on, those up to `end` of which all is known, or of which not all
    /// is: where they end, and whether it is. To 2 MiB of address space; not much longer than it
    /// takes to look at `most` times that where something is known of it.
    pub(crate) fn known_stretch(&self, page: u64, end: u64, most: usize) -> (u64, bool) {
        let first = page / CHUNK_PAGES;
        let known = self.chunks.get(&first).is_some_and(Chunk::is_full);
        let chunks_end = end.div_ceil(CHUNK_PAGES);
        let mut next = first + 1;
        if next < chunks_end {
            let mut seen = self.chunks.range(next..chunks_end).take(most);
            next = match known {
                true => seen
                    .zip(next..)
                    .take_while(|((number, chunk), next)| *number == next && chunk.is_full())
                    .last()
                    .map_or(next, |(_, last)| last + 1),
                false => match seen.find(|(_, chunk)| chunk.is_full()) {
                    Some((&number, _)) => number,
                    // Where nothing is known there may be much of it.
                    None => match self.chunks.range(next..chunks_end).nth(most) {
                        Some((&number, _)) => number,
                        None => chunks_end,
                    },
                },
            };
        }
        ((next * CHUNK_PAGES).min(end), known)
    }

    /// The pages of a range, whether anything is known of them or not.
    pub(crate) fn entries(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, Entry)> {
        let chunk = |page| self.chunks.get(&(page / CHUNK_PAGES));
        let mut now = chunk(pages.start);
        pages.map(move |page| {
            if page % CHUNK_PAGES == 0 {
                now = chunk(page);
            }
            let entry = now.map(|chunk| chunk.get((page % CHUNK_PAGES) as usize).entry());
            (page, entry.unwrap_or(UNKNOWN))
        })
    }

    /// The pages of a range of which something is known, however large it is.
    pub(crate) fn known(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, Entry)> {
        let chunks = match pages.is_empty() {
            true => self.chunks.range(0..0),
            false => self.chunks.range(pages.start / CHUNK_PAGES..pages.end.div_ceil(CHUNK_PAGES)),
        };
        chunks.flat_map(move |(number, chunk)| {
            let first = number * CHUNK_PAGES;
            let end = pages.end;
            let from = pages.start.saturating_sub(first); // below CHUNK_PAGES
            let entries =
                chunk.from(from as usize).map(move |(at, entry)| (first + u64::from(at), entry));
            entries
                .take_while(move |(page, _)| *page < end)
                .map(|(page, entry)| (page, entry.entry()))
        })
    }

    /// Forgets a range of pages; calls `visit` for each of which something is known.
    pub(crate) fn take_range(&mut self, pages: Range<u64>, visit: &mut dyn FnMut(u64, Entry)) {
        if pages.is_empty() {
            return;
        }
        let chunks = pages.start / CHUNK_PAGES..pages.end.div_ceil(CHUNK_PAGES);
        let numbers: Vec<u64> = self.chunks.range(chunks).map(|(&number, _)| number).collect();
        for number in numbers {
            let first = number * CHUNK_PAGES;
            let is_whole = pages.start <= first && first + CHUNK_PAGES <= pages.end;
            if is_whole && let Some(chunk) = self.chunks.remove(&number) {
                self.chunk_bytes -= chunk.bytes();
                for (at, was) in chunk.from(0) {
                    self.places[was.place()] -= 1;
                    visit(first + u64::from(at), was.entry());
                }
                continue;
            }
            let some = pages.start.max(first)..pages.end.min(first + CHUNK_PAGES);
            let some: Vec<(u64, Entry)> = self.known(some).collect();
            for (page, entry) in some {
                self.set(page, UNKNOWN);
                visit(page, entry);
            }
        }
    }

    /// Calls `visit` for each page of which something is known.
    pub(crate) fn for_each(&self, visit: &mut dyn FnMut(u64, Entry)) {
        for (number, chunk) in &self.chunks {
            for (at, entry) in chunk.from(0) {
                visit(number * CHUNK_PAGES + u64::from(at), entry.entry());
            }
        }
    }

    /// Number of staged pages.
    pub(crate) fn staged_pages(&self) -> u64 {
        self.places[Packed(STAGED).place()]
    }

    /// Number of stored pages.
    pub(crate) fn stored_pages(&self) -> u64 {
        self.places[Packed(STORED).place()]
    }

    /// Memory, in bytes, about.
    pub(crate) fn bytes(&self) -> usize {
        // Insertion in order leaves nodes of the tree little more than half full.
        const IN_TREE: usize = size_of::<(u64, Chunk)>() * 11 / 6;
        self.chunks.len() * IN_TREE + self.chunk_bytes
    }
}
