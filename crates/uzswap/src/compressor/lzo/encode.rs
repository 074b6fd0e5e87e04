//! The encoder: LZO1X-1, with runs of zeros where bitstream version 1 is asked for.
//!
//! The encoder makes the choices of the kernel's encoder, so an object has the same length
//! (`tests/golden_lzo.rs`):
//!
//! - One pass, greedy. A dictionary leads from a hash of four bytes to the last place they were
//!   looked up at; empty slots lead to place 0. Places inside a match are not entered.
//! - The longer no match was found, the more is skipped: 1 byte, and 1 more for every 32 literals.
//! - No match or run starts in the last 20 bytes; one that reaches there ends on a step of 8.

use super::{FAR, FIRST_OF_VERSIONED, NEAR};
use crate::compressor::OUTPUT_BYTES;
use crate::page::{PAGE_SIZE, Page};

/// Bits of a hash: the kernel's dictionary has 8192 places.
const HASH_BITS: u32 = 13;

/// Multiplier of the hash of four bytes, as a little-endian word.
const HASH_FACTOR: u32 = 0x1824_429d;

/// The first place where a match or run may start; 4 would do, but the kernel starts here.
const SEARCH_START: usize = 5;

/// No match or run starts from here on.
const SEARCH_END: usize = PAGE_SIZE - 20;

/// The shortest match or run.
const MATCH_MIN: usize = 4;

/// The longest run of zeros of one instruction: 11 bits, counted from [`MATCH_MIN`].
const RUN_MAX: usize = (1 << 11) - 1 + MATCH_MIN; // 2051

/// Literals are copied so many at a time.
const LITERAL_CHUNK: usize = 16;

/// Where each hash was last seen in the page. The table may be used again for any page.
#[derive(Debug)]
pub(super) struct Dictionary([u16; 1 << HASH_BITS]);

impl Dictionary {
    pub(super) const fn new() -> Dictionary {
        Dictionary([0; 1 << HASH_BITS])
    }

    /// The place these four bytes may have been at before; they are at `place` now.
    #[inline(always)]
    fn replace(&mut self, bytes: u32, place: usize) -> usize {
        let slot = &mut self.0[(bytes.wrapping_mul(HASH_FACTOR) >> (32 - HASH_BITS)) as usize];
        usize::from(std::mem::replace(slot, place as u16))
    }
}

/// Compresses `page` to the start of `out`; `None` if that is too small. `RUNS`: with bitstream
/// version 1, in which runs of zeros have an instruction.
pub(super) fn compress<const RUNS: bool>(
    page: &Page,
    out: &mut [u8; OUTPUT_BYTES],
    dictionary: &mut Dictionary,
) -> Option<usize> {
    dictionary.0.fill(0);
    let mut output = Output { bytes: out, end: 0, count_at: 0 };
    if RUNS {
        output.put(u32::from_le_bytes([FIRST_OF_VERSIONED, 1, 0, 0]), 2)?;
    }
    // What is before `literals` is encoded.
    let (mut literals, mut at) = (0, SEARCH_START);
    while at < SEARCH_END {
        let bytes = word(page, at);
        if RUNS && bytes == 0 {
            output.literals(page, literals, at)?;
            let length = run_length(page, at);
            output.run(length)?;
            at += length;
            literals = at;
            continue;
        }
        let before = dictionary.replace(bytes, at);
        if word(page, before) != bytes {
            at += 1 + ((at - literals) >> 5);
            continue;
        }
        output.literals(page, literals, at)?;
        let length = match_length(page, before, at);
        output.copy(length, at - before)?;
        at += length;
        literals = at;
    }
    // A stream of up to 238 literals alone has a shorter form; a page of literals has 4096.
    output.many_literals(&page[literals..])?;
    output.put(u32::from_le_bytes([FAR | 1, 0, 0, 0]), 3)?;
    Some(output.end)
}

/// Four bytes of the page, as a little-endian word.
#[inline(always)]
fn word(page: &Page, at: usize) -> u32 {
    // Places are below 4093. The mask tells the compiler that they are in the page.
    let bytes = page[at & (PAGE_SIZE - 1)..].first_chunk();
    u32::from_le_bytes(*bytes.expect("a place before the end of the page"))
}

#[inline(always)]
fn double_word(page: &Page, at: usize) -> u64 {
    let bytes = page[at..].first_chunk();
    u64::from_le_bytes(*bytes.expect("a place before the end of the page"))
}

/// How far the bytes from `before` on repeat at `at`; four do.
#[inline(always)]
fn match_length(page: &Page, before: usize, at: usize) -> usize {
    let mut length = MATCH_MIN;
    loop {
        let differs = double_word(page, before + length) ^ double_word(page, at + length);
        if differs != 0 {
            return length + differs.trailing_zeros() as usize / 8;
        }
        length += 8;
        if at + length >= SEARCH_END {
            return length;
        }
    }
}

/// How many zeros there are from `at` on; four are.
#[inline(always)]
fn run_length(page: &Page, at: usize) -> usize {
    let end = SEARCH_END.min(at + RUN_MAX);
    let mut next = at + MATCH_MIN;
    while next + 8 <= end {
        let bytes = double_word(page, next);
        if bytes != 0 {
            return next + bytes.trailing_zeros() as usize / 8 - at;
        }
        next += 8;
    }
    while next < end && page[next] == 0 {
        next += 1;
    }
    next - at
}

/// The stream as far as it is written.
struct Output<'a> {
    bytes: &'a mut [u8; OUTPUT_BYTES],
    end: usize,
    /// The byte of the last instruction whose low bits count up to three literals after it.
    count_at: usize,
}

impl Output<'_> {
    /// The low `count` bytes of `word`; up to 4 are written.
    #[inline(always)]
    fn put(&mut self, word: u32, count: usize) -> Option<()> {
        *self.bytes.get_mut(self.end..)?.first_chunk_mut()? = word.to_le_bytes();
        self.end += count;
        Some(())
    }

    /// A length that did not fit its instruction: a zero byte for every 255.
    fn long(&mut self, mut length: usize) -> Option<()> {
        while length > 255 {
            self.put(0, 1)?;
            length -= 255;
        }
        self.put(length as u32, 1)
    }

    /// The bytes of the page from `from` to `to`, before an instruction.
    #[inline(always)]
    fn literals(&mut self, page: &Page, from: usize, to: usize) -> Option<()> {
        let count = to - from;
        let chunk = page[from..].first_chunk::<LITERAL_CHUNK>();
        match (chunk, self.bytes[self.end..].first_chunk_mut::<{ LITERAL_CHUNK + 1 }>()) {
            (Some(chunk), Some(room)) if count <= LITERAL_CHUNK => {
                let long = count > 3;
                let start = usize::from(long);
                room[0] = (count as u8).wrapping_sub(3);
                room[start..start + LITERAL_CHUNK].copy_from_slice(chunk);
                self.bytes[self.count_at] |= if long { 0 } else { count as u8 };
                self.end += start + count;
                Some(())
            }
            _ => self.many_literals(&page[from..to]),
        }
    }

    /// Literals, any number.
    #[cold]
    fn many_literals(&mut self, literals: &[u8]) -> Option<()> {
        match literals.len() {
            0 => {}
            count @ 1..=3 => self.bytes[self.count_at] |= count as u8,
            count @ 4..=18 => self.put(count as u32 - 3, 1)?,
            count => {
                self.put(0, 1)?;
                self.long(count - 18)?;
            }
        }
        self.bytes.get_mut(self.end..)?.get_mut(..literals.len())?.copy_from_slice(literals);
        self.end += literals.len();
        Some(())
    }

    /// A match.
    #[inline(always)]
    fn copy(&mut self, length: usize, distance: usize) -> Option<()> {
        let (length, back) = (length as u32, distance as u32 - 1);
        if length <= 8 && back < 0x800 {
            self.count_at = self.end;
            return self.put((length - 1) << 5 | (back & 7) << 2 | (back >> 3) << 8, 2);
        }
        if length <= 33 {
            self.put(u32::from(NEAR) | (length - 2) | back << 10, 3)?;
        } else {
            self.put(u32::from(NEAR), 1)?;
            self.long(length as usize - 33)?;
            self.put(back << 2, 2)?;
        }
        self.count_at = self.end - 2;
        Some(())
    }

    /// A run of zeros.
    #[inline(always)]
    fn run(&mut self, length: usize) -> Option<()> {
        let length = (length - MATCH_MIN) as u32;
        self.put(u32::from(FAR) | 8 | (length & 7) | 0xfffc << 8 | (length >> 3) << 24, 4)?;
        self.count_at = self.end - 3;
        Some(())
    }
}
