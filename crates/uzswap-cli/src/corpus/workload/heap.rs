//! The image of a heap: blocks, their headers and their free lists, at addresses of its own.
//!
//! ```text
//!  SMALL_START   header | block | header | block | ...   grows at its end, as brk does
//!  MAPPED_START  pages of large blocks                   each begins on a page
//! ```
//!
//! The allocator follows the rules of glibc's malloc that shape pages. Chunks of 16 bytes have a
//! header, and small free ones are in lists by size. Above, the allocator takes the best fit and
//! merges neighbours; from 128 KiB on it maps pages. Nothing of the process gets into the image:
//! pointers are addresses in the image, numbers are little-endian, and fresh memory is zero. So the
//! same calls make the same bytes on any machine.
//!
//! - H1: blocks do not overlap, and each lies in the image.
//! - H2: a free chunk keeps the bytes of its block, but for the links of its list.

use std::collections::{BTreeMap, BTreeSet};

use uzswap::page::PAGE_SIZE;

/// Where the small blocks begin: the heap of a program without ASLR on x86-64.
const SMALL_START: u64 = 0x5555_5575_9000;

/// Where the mapped blocks begin.
const MAPPED_START: u64 = 0x7fff_d000_0000;

/// The list head of malloc in the C library, in which lists of large free chunks end.
const LIST_HEAD: u64 = 0x7fff_f7e1_ace0;

/// The key that malloc writes into small free blocks, to see that one is freed twice.
const FREE_KEY: u64 = 0x9ae1_6a3b_2f90_404f;

/// The chunk of malloc's own tables, the first of a heap.
const OWN_TABLES_BYTES: u64 = 0x280;

/// Bytes of the next chunk that belong to a block in use: its first word.
const NEXT_CHUNK_BYTES: usize = 8;

/// Bytes from which a block is a mapping.
const MAPPED_BYTES_MIN: u64 = 1 << 17; // 128 KiB

/// The longest chunk with a list of its own.
const LISTED_BYTES_MAX: u64 = 1040;

/// Flags in the header of a chunk: the one before it is in use, the chunk is a mapping.
const IN_USE: u64 = 1;
const IS_MAPPED: u64 = 2;

const PAGE: u64 = PAGE_SIZE as u64;

/// A heap; see the module. Its image is in memory until the heap is dropped.
#[derive(Default)]
pub struct Heap {
    small: Vec<u8>,
    mapped: Vec<u8>,
    /// Small free chunks by their bytes over 16, the last freed last.
    listed: Vec<Vec<u64>>,
    /// Large free chunks: their bytes by address, and the same by size.
    large: BTreeMap<u64, u64>,
    large_by_bytes: BTreeSet<(u64, u64)>,
    /// Free pages of the mapped area: their bytes by address.
    unmapped: BTreeMap<u64, u64>,
    unmapped_bytes: u64,
    /// A word for each thing that was built.
    pub(super) parts: Vec<&'static str>,
}

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heap").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Heap {
    /// A heap with malloc's own tables alone.
    pub(super) fn new() -> Heap {
        let mut heap = Heap { small: vec![0; NEXT_CHUNK_BYTES], ..Heap::default() };
        heap.allocate(OWN_TABLES_BYTES);
        heap
    }

    /// Bytes that a process with this heap has resident.
    pub fn bytes(&self) -> usize {
        self.small.len() + self.mapped.len() - self.unmapped_bytes as usize // a part of `mapped`
    }

    /// Resident memory in ascending order: the kind of mapping, the address of its first byte, its
    /// bytes. The small blocks alone may end inside a page.
    pub fn areas(&self) -> Vec<(&'static str, u64, &[u8])> {
        let mut areas = vec![("[heap]", SMALL_START, &self.small[..])];
        let mut at = MAPPED_START;
        let end = MAPPED_START + self.mapped.len() as u64;
        for (&hole, &bytes) in self.unmapped.iter().chain([(&end, &0)]) {
            if hole > at {
                let place = |address: u64| (address - MAPPED_START) as usize;
                areas.push(("anon", at, &self.mapped[place(at)..place(hole)]));
            }
            at = hole + bytes;
        }
        areas
    }

    /// A block of at least `bytes`; its address, a multiple of 16. Its contents are zero, or of
    /// blocks that were there before.
    pub(super) fn allocate(&mut self, bytes: u64) -> u64 {
        if bytes >= MAPPED_BYTES_MIN {
            return self.map(bytes);
        }
        let chunk = chunk_bytes(bytes);
        let list = self.listed.get_mut((chunk / 16) as usize);
        if let Some(block) = list.and_then(Vec::pop) {
            self.write(block + 8, &[0; 8]); // as malloc clears the key
            return block;
        }
        let at = match self.large_by_bytes.range((chunk, 0)..).next() {
            Some(&(found, at)) => {
                self.take_large(at);
                let rest = found - chunk;
                if rest >= 32 {
                    self.add_large(at + chunk, rest);
                }
                self.set_header(at, if rest >= 32 { chunk } else { found } | IN_USE);
                at
            }
            None => {
                let at = SMALL_START + (self.small.len() - NEXT_CHUNK_BYTES) as u64;
                self.small.resize(self.small.len() + chunk as usize, 0);
                self.set_header(at, chunk | IN_USE);
                at
            }
        };
        at + 16
    }

    /// Frees the block at `address`.
    pub(super) fn free(&mut self, address: u64) {
        let header = self.word(address - 8);
        let chunk = header & !15;
        let at = address - 16;
        if header & IS_MAPPED != 0 {
            self.unmap(at, chunk);
        } else if chunk <= LISTED_BYTES_MAX {
            let list = (chunk / 16) as usize;
            if self.listed.len() <= list {
                self.listed.resize(list + 1, Vec::new());
            }
            let next = self.listed[list].last().copied().unwrap_or(0);
            self.listed[list].push(address);
            // The link is mangled with its place, as since glibc 2.32.
            self.write_words(address, &[next ^ (address >> 12), FREE_KEY]);
        } else {
            self.merge_large(at, chunk);
        }
    }

    /// Writes into a block.
    pub(super) fn write(&mut self, address: u64, bytes: &[u8]) {
        let (area, start) = match address {
            MAPPED_START.. => (&mut self.mapped, MAPPED_START),
            _ => (&mut self.small, SMALL_START),
        };
        let at = (address - start) as usize;
        area[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes 64-bit numbers into a block.
    pub(super) fn write_words(&mut self, address: u64, words: &[u64]) {
        for (place, word) in (0..).zip(words) {
            self.write(address + place * 8, &word.to_le_bytes());
        }
    }

    /// The 64-bit number at an address of a block.
    pub(super) fn word(&self, address: u64) -> u64 {
        let (area, start) = match address {
            MAPPED_START.. => (&self.mapped, MAPPED_START),
            _ => (&self.small, SMALL_START),
        };
        let at = (address - start) as usize;
        u64::from_le_bytes(area[at..at + 8].try_into().expect("a word has 8 bytes"))
    }

    /// The size of the chunk at `at` and its flags, in its second word.
    fn set_header(&mut self, at: u64, header: u64) {
        self.write(at + 8, &header.to_le_bytes());
    }

    /// Frees a large chunk, merged with free neighbours.
    fn merge_large(&mut self, mut at: u64, mut chunk: u64) {
        if let Some((&before, &bytes)) = self.large.range(..at).next_back()
            && before + bytes == at
        {
            self.take_large(before);
            (at, chunk) = (before, chunk + bytes);
        }
        if let Some(&bytes) = self.large.get(&(at + chunk)) {
            self.take_large(at + chunk);
            chunk += bytes;
        }
        self.add_large(at, chunk);
    }

    fn add_large(&mut self, at: u64, chunk: u64) {
        let link = |chunk: Option<&(u64, u64)>| chunk.map_or(LIST_HEAD, |(_, at)| *at);
        let next = link(self.large_by_bytes.range((chunk, at)..).next());
        let before = link(self.large_by_bytes.range(..(chunk, at)).next_back());
        self.large.insert(at, chunk);
        self.large_by_bytes.insert((chunk, at));
        self.set_header(at, chunk | IN_USE);
        self.write_words(at + 16, &[next, before]);
    }

    fn take_large(&mut self, at: u64) {
        let bytes = self.large.remove(&at).expect("the chunk is in both lists");
        self.large_by_bytes.remove(&(bytes, at));
    }

    /// A block of its own pages, behind a header.
    fn map(&mut self, bytes: u64) -> u64 {
        let wanted = (bytes + 16).next_multiple_of(PAGE);
        let room = self.unmapped.iter().find(|(_, room)| **room >= wanted);
        let at = match room.map(|(&at, &room)| (at, room)) {
            Some((at, room)) => {
                self.unmapped.remove(&at);
                self.unmapped_bytes -= wanted;
                if room > wanted {
                    self.unmapped.insert(at + wanted, room - wanted);
                }
                at
            }
            None => {
                let at = MAPPED_START + self.mapped.len() as u64;
                self.mapped.resize(self.mapped.len() + wanted as usize, 0);
                at
            }
        };
        self.set_header(at, wanted | IS_MAPPED);
        at + 16
    }

    /// Gives back the pages of a mapping; the next one there finds zeros.
    fn unmap(&mut self, mut at: u64, mut bytes: u64) {
        self.unmapped_bytes += bytes;
        let place = (at - MAPPED_START) as usize;
        self.mapped[place..place + bytes as usize].fill(0);
        if let Some((&before, &room)) = self.unmapped.range(..at).next_back()
            && before + room == at
        {
            self.unmapped.remove(&before);
            (at, bytes) = (before, bytes + room);
        }
        if let Some(room) = self.unmapped.remove(&(at + bytes)) {
            bytes += room;
        }
        self.unmapped.insert(at, bytes);
    }
}

/// The chunk that malloc takes for a block.
fn chunk_bytes(bytes: u64) -> u64 {
    (bytes + 8).next_multiple_of(16).max(32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap::random::SplitMix64;

    /// Random blocks keep their bytes until they are freed: none overlaps another.
    #[test]
    fn blocks_keep_their_bytes() {
        let mut heap = Heap::new();
        let mut words = SplitMix64::new(7);
        let mut blocks: Vec<(u64, usize, u8)> = Vec::new();
        let check = |heap: &Heap, (at, bytes, fill): (u64, usize, u8)| {
            let (_, start, area) = *heap
                .areas()
                .iter()
                .find(|(_, start, area)| (*start..start + area.len() as u64).contains(&at))
                .unwrap();
            let at = (at - start) as usize;
            assert!(area[at..at + bytes].iter().all(|byte| *byte == fill), "{at:#x} {bytes}");
        };
        for turn in 0..20_000 {
            let word = words.next_word();
            if blocks.len() > 200 || (word & 1 == 1 && !blocks.is_empty()) {
                let block = blocks.swap_remove(word as usize / 2 % blocks.len());
                check(&heap, block);
                heap.free(block.0);
            } else {
                let bytes = match word >> 60 {
                    0 => 1 + (word >> 1) as usize % (1 << 18),
                    1..4 => 1 + (word >> 1) as usize % (1 << 13),
                    _ => 1 + (word >> 1) as usize % 200,
                };
                let at = heap.allocate(bytes as u64);
                assert_eq!(at % 16, 0);
                heap.write(at, &vec![turn as u8; bytes]);
                blocks.push((at, bytes, turn as u8));
            }
        }
        blocks.into_iter().for_each(|block| check(&heap, block));
    }

    #[test]
    fn freed_mappings_are_not_resident_and_come_back_as_zeros() {
        let mut heap = Heap::new();
        let before = heap.bytes();
        let [one, other] = [heap.allocate(1 << 18), heap.allocate(1 << 18)];
        heap.write(one, &[7; 100]);
        heap.free(one);
        heap.free(other);
        assert_eq!(heap.bytes(), before);
        assert_eq!(heap.areas().len(), 1);
        assert_eq!(heap.allocate(1 << 19), one, "the two are one hole");
        assert_eq!(heap.word(one), 0);
    }
}
