//! What is known of the pages of an address space that are not where the program left them.

use std::collections::BTreeMap;
use std::ops::Range;

/// Pages in a part of the table that is allocated at once: 2 MiB of address space.
const CHUNK_PAGES: u64 = 512;

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere but in the program: it is there, or was never touched and is zero.
    Program,
    /// Moved aside, into this page of staging.
    Staged(u32),
    /// In the store, under this slot.
    Stored(u32),
}

/// A page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) place: Place,
    /// It was filled since it was watched, and so is there if its place is the program: the kernel
    /// need not be asked.
    pub(super) returned: bool,
    /// The hand picks it in one turn of 2^heat: 0 to [`HEAT_MAX`].
    pub(super) heat: u8,
}

/// The most: one turn of 32. With 128, hot pages fault some 5 % less, and the hand looks at four
/// times as many.
pub(super) const HEAT_MAX: u8 = 5;

/// An entry in 32 bits: a number, two bits of place, and three bits of heat above them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Packed(u32);

const NUMBER_BITS: u32 = 26;
/// The most slots and pages of staging there can be: 256 GiB of pages.
pub(super) const NUMBERS: u32 = 1 << NUMBER_BITS;
const STAGED: u32 = 1 << NUMBER_BITS;
const STORED: u32 = 2 << NUMBER_BITS;
/// Of two bits.
const PLACES: usize = 4;
const HEAT_SHIFT: u32 = NUMBER_BITS + 2;

impl Packed {
    const NOTHING: Packed = Packed(0);

    fn of(entry: Entry) -> Packed {
        let place = match entry.place {
            Place::Program => u32::from(entry.returned),
            Place::Staged(number) => STAGED | number,
            Place::Stored(number) => STORED | number,
        };
        Packed(place | u32::from(entry.heat) << HEAT_SHIFT)
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
        let heat = (self.0 >> HEAT_SHIFT) as u8; // up to HEAT_MAX
        let returned = place == Place::Program && number != 0;
        Entry { place, returned, heat }
    }
}

/// A page of which nothing is known.
pub(super) const UNKNOWN: Entry = Entry { place: Place::Program, returned: false, heat: 0 };

#[derive(Debug, Clone)]
struct Chunk {
    /// Entries that are not nothing.
    used: u16,
    entries: Box<[Packed; CHUNK_PAGES as usize]>,
}

/// The table, by number of page: its address divided by 4096.
#[derive(Debug, Default)]
pub(super) struct PageTable {
    chunks: BTreeMap<u64, Chunk>,
    /// Entries that are not nothing, by place.
    places: [u64; PLACES],
}

impl PageTable {
    pub(super) fn get(&self, page: u64) -> Entry {
        self.chunks
            .get(&(page / CHUNK_PAGES))
            .map_or(UNKNOWN, |chunk| chunk.entries[(page % CHUNK_PAGES) as usize].entry())
    }

    pub(super) fn set(&mut self, page: u64, entry: Entry) {
        let (number, at) = (page / CHUNK_PAGES, (page % CHUNK_PAGES) as usize);
        let new = Packed::of(entry);
        if new == Packed::NOTHING && !self.chunks.contains_key(&number) {
            return;
        }
        let chunk = self.chunks.entry(number).or_insert_with(|| Chunk {
            used: 0,
            entries: Box::new([Packed::NOTHING; CHUNK_PAGES as usize]),
        });
        let before = std::mem::replace(&mut chunk.entries[at], new);
        if new != Packed::NOTHING {
            chunk.used += 1;
            self.places[new.place()] += 1;
        }
        if before != Packed::NOTHING {
            chunk.used -= 1;
            self.places[before.place()] -= 1;
        }
        if chunk.used == 0 {
            self.chunks.remove(&number);
        }
    }

    /// Of the pages from `page` on, those up to `end` of which all is known, or of which not all
    /// is: where they end, and whether it is. To 2 MiB of address space.
    pub(super) fn known_stretch(&self, page: u64, end: u64) -> (u64, bool) {
        let is_known = |number: u64| {
            self.chunks.get(&number).is_some_and(|chunk| u64::from(chunk.used) == CHUNK_PAGES)
        };
        let first = page / CHUNK_PAGES;
        let known = is_known(first);
        let mut next = first + 1;
        // Where nothing is known there may be much of it: the next chunk that there is tells.
        while next * CHUNK_PAGES < end && is_known(next) == known {
            next = match known {
                true => next + 1,
                false => self
                    .chunks
                    .range(next..)
                    .find(|(_, chunk)| u64::from(chunk.used) == CHUNK_PAGES)
                    .map_or(end.div_ceil(CHUNK_PAGES), |(&number, _)| number),
            };
        }
        ((next * CHUNK_PAGES).min(end), known)
    }

    /// The pages of a range, whether anything is known of them or not.
    pub(super) fn entries(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, Entry)> {
        let chunk = |page| self.chunks.get(&(page / CHUNK_PAGES));
        let mut now = chunk(pages.start);
        pages.map(move |page| {
            if page % CHUNK_PAGES == 0 {
                now = chunk(page);
            }
            let entry = now.map(|chunk| chunk.entries[(page % CHUNK_PAGES) as usize].entry());
            (page, entry.unwrap_or(UNKNOWN))
        })
    }

    /// Forgets a range of pages; calls `visit` for each of which something is known.
    pub(super) fn take_range(&mut self, pages: Range<u64>, visit: &mut dyn FnMut(u64, Entry)) {
        if pages.is_empty() {
            return;
        }
        let chunks = pages.start / CHUNK_PAGES..=(pages.end - 1) / CHUNK_PAGES;
        let numbers: Vec<u64> = self.chunks.range(chunks).map(|(&number, _)| number).collect();
        for number in numbers {
            let first = number * CHUNK_PAGES;
            let Some(chunk) = self.chunks.get_mut(&number) else { continue };
            let start = pages.start.max(first);
            let end = pages.end.min(first + CHUNK_PAGES);
            for page in start..end {
                let entry = &mut chunk.entries[(page - first) as usize];
                if *entry != Packed::NOTHING {
                    let was = std::mem::replace(entry, Packed::NOTHING);
                    chunk.used -= 1;
                    self.places[was.place()] -= 1;
                    visit(page, was.entry());
                }
            }
            if chunk.used == 0 {
                self.chunks.remove(&number);
            }
        }
    }

    /// Calls `visit` for each page of which something is known.
    pub(super) fn for_each(&self, visit: &mut dyn FnMut(u64, Entry)) {
        for (number, chunk) in &self.chunks {
            for (entry, page) in chunk.entries.iter().zip(number * CHUNK_PAGES..) {
                if *entry != Packed::NOTHING {
                    visit(page, entry.entry());
                }
            }
        }
    }

    /// Pages that are aside.
    pub(super) fn staged_pages(&self) -> u64 {
        self.places[Packed(STAGED).place()]
    }

    /// Pages that are in the store.
    pub(super) fn stored_pages(&self) -> u64 {
        self.places[Packed(STORED).place()]
    }

    /// Memory, in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * (CHUNK_PAGES as usize * size_of::<Packed>() + 32)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_table_is_a_map() {
        let mut table = PageTable::default();
        let mut twin = BTreeMap::new();
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..100_000 {
            let page = random(3000);
            let place = match random(3) {
                0 => Place::Program,
                1 => Place::Staged(random(1 << 26) as u32),
                _ => Place::Stored(random(1 << 26) as u32),
            };
            let returned = place == Place::Program && random(2) == 0;
            let entry = Entry { place, returned, heat: random(6) as u8 };
            match random(20) {
                0 => {
                    let pages = page..page + random(1200);
                    let mut taken = Vec::new();
                    table.take_range(pages.clone(), &mut |page, entry| taken.push((page, entry)));
                    let expected: Vec<(u64, Entry)> =
                        twin.range(pages.clone()).map(|(&page, &entry)| (page, entry)).collect();
                    assert_eq!(taken, expected);
                    twin.retain(|page, _| !pages.contains(page));
                }
                _ if entry == UNKNOWN => {
                    table.set(page, entry);
                    twin.remove(&page);
                }
                _ => {
                    table.set(page, entry);
                    twin.insert(page, entry);
                }
            }
            assert_eq!(table.get(page), twin.get(&page).copied().unwrap_or(UNKNOWN));
            if page % 64 == 0 {
                let count = |like: fn(Place) -> bool| {
                    twin.values().filter(|entry| like(entry.place)).count() as u64
                };
                assert_eq!(table.staged_pages(), count(|place| matches!(place, Place::Staged(_))));
                assert_eq!(table.stored_pages(), count(|place| matches!(place, Place::Stored(_))));
            }
        }
        for page in [0, 5, 511, 512, 1700] {
            for end in [page + 1, page + 700, 4000] {
                let (known_to, known) = table.known_stretch(page, end);
                let is_known = |page: u64| {
                    let first = page / CHUNK_PAGES * CHUNK_PAGES;
                    (first..first + CHUNK_PAGES).all(|page| twin.contains_key(&page))
                };
                assert!((page..known_to).all(|page| is_known(page) == known));
                assert!(known_to == end || is_known(known_to) != known, "{page} to {known_to}");
            }
        }
        let chunks = twin.keys().map(|page| page / CHUNK_PAGES).collect::<BTreeSet<u64>>().len();
        let bytes = chunks * CHUNK_PAGES as usize * size_of::<Packed>();
        assert!((bytes..bytes + bytes / 8).contains(&table.bytes()), "{}", table.bytes());
        let mut all = Vec::new();
        table.for_each(&mut |page, entry| all.push((page, entry)));
        assert_eq!(all, twin.into_iter().collect::<Vec<_>>());
        table.take_range(0..u64::MAX, &mut |_, _| ());
        assert_eq!((table.bytes(), table.places), (0, [0; PLACES]));
    }
}
