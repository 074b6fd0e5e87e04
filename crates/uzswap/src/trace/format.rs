//! The layout of a trace file; all numbers are little-endian, short ones LEB128.
//!
//! ```text
//!  magic 8 | version 4 | length 4 | header: JSON | checksum 8
//!  "OPS\n" 4 | event bytes 4 | contents 4 | body bytes 4 | checksum 8 | body | checksum 8  a block
//!  "END\n" 4 | totals, chain: 8 x 8 | checksum 8
//!
//!  body: zstd of (events ... | contents, 4096 each)
//!  event: kind 1 | nanoseconds since the one before | key | content: number, or word 8
//! ```
//!
//! Checksums are 64-bit XXH3, of all that is before them in their part. The checksum of the header
//! has seed 0. Those of a block's prefix and of the end have the *chain* as seed: it begins as the
//! header's checksum and continues with each body's, whose seed is its prefix's. So blocks cannot
//! be omitted, doubled or moved.

use super::{Content, Event, Operation, TraceTotals};
use crate::page::{PAGE_SIZE, PageKey};
use crate::sealed::{self, CHECKSUM_BYTES, TAG_BYTES};

/// What a trace begins with. No text file does, and no file that was sent as text is the same.
pub(super) const MAGIC: &[u8; 8] = b"uztrac\r\n";

/// The version of the layout that this program writes and reads.
pub const VERSION: u32 = 1;

/// The longest header: room for the longest command line that says something.
pub(super) const HEADER_BYTES_MAX: usize = 1 << 16; // 64 KiB

pub(super) const BLOCK_TAG: &[u8; 4] = b"OPS\n";
pub(super) const END_TAG: &[u8; 4] = b"END\n";

/// A block's tag, its three lengths and their checksum.
pub(super) const BLOCK_PREFIX_BYTES: usize = TAG_BYTES + 3 * 4 + CHECKSUM_BYTES; // 24

/// A block with so many contents, or so many bytes of events, gets no more.
pub(super) const BLOCK_CONTENTS: usize = 1 << 6; // 64: 256 KiB
pub(super) const BLOCK_EVENT_BYTES: usize = 1 << 14; // 16 KiB

/// The longest event: its kind, and three numbers.
pub(super) const EVENT_BYTES_MAX: usize = 1 + 3 * NUMBER_BYTES_MAX;

/// The most bytes of events in a block.
pub(super) const BLOCK_EVENT_BYTES_MAX: usize = BLOCK_EVENT_BYTES + EVENT_BYTES_MAX;

/// Maximum length of a written body, with what zstd adds to incompressible bytes.
pub(super) const BODY_BYTES_MAX: usize =
    (BLOCK_EVENT_BYTES_MAX + BLOCK_CONTENTS * PAGE_SIZE) / 128 * 129 + 1024;

/// The longest number: 64 bits, 7 a byte.
const NUMBER_BYTES_MAX: usize = 10;

/// Numbers between the end's tag and its checksum.
const END_NUMBERS: usize = 8;
pub(super) const END_BYTES: usize = TAG_BYTES + END_NUMBERS * 8 + CHECKSUM_BYTES; // 76

/// The kinds of events.
const STORE_PAGE: u8 = 0;
const STORE_WORD: u8 = 1;
const LOAD: u8 = 2;
const FREE: u8 = 3;

/// The prefix of a block's body; its checksum is the seed of the body's.
pub(super) fn block_prefix(chain: u64, lengths: [usize; 3]) -> ([u8; BLOCK_PREFIX_BYTES], u64) {
    let lengths = lengths.map(|length| (length as u32).to_le_bytes()); // under 1 MiB
    sealed::numbers(BLOCK_TAG, lengths, chain)
}

/// The end of a file.
pub(super) fn end(totals: &TraceTotals, chain: u64) -> [u8; END_BYTES] {
    let TraceTotals { blocks, stores, same_filled_stores, loads, frees, contents, ns } = *totals;
    let numbers = [blocks, stores, same_filled_stores, loads, frees, contents, ns, chain];
    sealed::numbers(END_TAG, numbers.map(u64::to_le_bytes), chain).0
}

/// Adds an event that came so long after the one before.
pub(super) fn put_event(bytes: &mut Vec<u8>, since_ns: u64, event: &Event) {
    let (kind, argument) = match event.operation {
        Operation::Store(Content::Page(number)) => (STORE_PAGE, Some(number)),
        Operation::Store(Content::Word(_)) => (STORE_WORD, None),
        Operation::Load => (LOAD, None),
        Operation::Free => (FREE, None),
    };
    bytes.push(kind);
    put_number(bytes, since_ns);
    put_number(bytes, event.key.0);
    argument.into_iter().for_each(|number| put_number(bytes, number));
    if let Operation::Store(Content::Word(word)) = event.operation {
        bytes.extend(word.to_ne_bytes());
    }
}

/// Takes the event after one of this time off the front of `bytes`; why there is none.
pub(super) fn take_event(bytes: &mut &[u8], before_ns: u64) -> Result<Event, &'static str> {
    let (&kind, rest) = bytes.split_first().ok_or("an event is truncated")?;
    *bytes = rest;
    let since = take_number(bytes)?;
    let ns = before_ns.checked_add(since).ok_or("a timestamp is out of range")?;
    let key = PageKey(take_number(bytes)?);
    let operation = match kind {
        STORE_PAGE => Operation::Store(Content::Page(take_number(bytes)?)),
        STORE_WORD => {
            let (word, rest) = bytes.split_first_chunk::<8>().ok_or("an event is truncated")?;
            *bytes = rest;
            Operation::Store(Content::Word(u64::from_ne_bytes(*word)))
        }
        LOAD => Operation::Load,
        FREE => Operation::Free,
        _ => return Err("unknown kind of event"),
    };
    Ok(Event { ns, key, operation })
}

fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80); // its lowest 7 bits
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Result<u64, &'static str> {
    let mut number = 0;
    for place in 0..NUMBER_BYTES_MAX {
        let (&byte, rest) = bytes.split_first().ok_or("an event is truncated")?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if place == NUMBER_BYTES_MAX - 1 && bits > 1 {
            break;
        }
        number |= bits << (7 * place);
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err("a number exceeds 64 bits")
}
