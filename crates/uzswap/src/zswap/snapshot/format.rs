//! The layout of a snapshot file; all numbers are little-endian.
//!
//! ```text
//!  magic 8 | version 4 | length 4 | header: JSON | checksum 8
//!  "PAGE" 4 | records 4 | length 4 | records ... | checksum 8      a block, as often as needed
//!  "END\n" 4 | counts, file's length, chain: 9 x 8 | checksum 8
//!
//!  record: key 8 | tenant 2 | kind 1 | uses 1 | length 2 | data
//! ```
//!
//! Checksums are 64-bit XXH3, of all that is before them in their part. The checksum of the header
//! has seed 0. That of each later part has the *chain* as seed: it begins as the header's checksum
//! and continues with each block's. So blocks cannot be omitted, doubled or moved.

use super::{PageForm, SnapshotSummary};
use crate::page::PAGE_SIZE;
use crate::sealed::{self, CHECKSUM_BYTES};

/// What a snapshot begins with. No text file does, and no file that was sent as text is the same.
pub(super) const MAGIC: &[u8; 8] = b"uzsnap\r\n";

/// The version of the layout that this program writes.
pub const VERSION: u32 = 2;

/// The oldest version that it reads. In version 1 the header does not tell the format of objects,
/// only the name of the compressor.
pub const VERSION_MIN: u32 = 1;

/// The longest header: room for all tenants with names of 3 KiB each.
pub(super) const HEADER_BYTES_MAX: usize = 1 << 22; // 4 MiB

pub(super) const BLOCK_TAG: &[u8; 4] = b"PAGE";
pub(super) const END_TAG: &[u8; 4] = b"END\n";
pub(super) const BLOCK_PREFIX_BYTES: usize = 12;

/// A block with so many bytes of records gets no more.
pub(super) const BLOCK_BYTES: usize = 1 << 18; // 256 KiB

/// The most bytes of records in a block.
pub(super) const BLOCK_BYTES_MAX: usize = BLOCK_BYTES + RECORD_BYTES_MAX;

pub(super) const RECORD_PREFIX_BYTES: usize = 14;
pub(super) const RECORD_BYTES_MAX: usize = RECORD_PREFIX_BYTES + PAGE_SIZE;

/// Numbers between the trailer's tag and its checksum.
const TRAILER_NUMBERS: usize = 9;
pub(super) const TRAILER_BYTES: usize = END_TAG.len() + TRAILER_NUMBERS * 8 + CHECKSUM_BYTES; // 84

/// The kinds of records.
pub(super) const SAME_FILLED: u8 = 0;
pub(super) const POOL_OBJECT: u8 = 1;
pub(super) const POOL_AS_IS: u8 = 2;
pub(super) const BACKING_OBJECT: u8 = 3;
pub(super) const BACKING_AS_IS: u8 = 4;

/// The kind of a page.
pub(super) fn kind_of(form: PageForm<'_>, in_backing: bool) -> u8 {
    match (form, in_backing) {
        (PageForm::Word(_), _) => SAME_FILLED,
        (PageForm::Object(_), false) => POOL_OBJECT,
        (PageForm::AsIs(_), false) => POOL_AS_IS,
        (PageForm::Object(_), true) => BACKING_OBJECT,
        (PageForm::AsIs(_), true) => BACKING_AS_IS,
    }
}

/// The end of a file: what was in it, and the chain over all of it.
pub(super) fn trailer(summary: &SnapshotSummary, chain: u64) -> [u8; TRAILER_BYTES] {
    let numbers = numbers_of(summary, chain).map(u64::to_le_bytes);
    sealed::numbers(END_TAG, numbers, chain).0
}

fn numbers_of(summary: &SnapshotSummary, chain: u64) -> [u64; TRAILER_NUMBERS] {
    let SnapshotSummary {
        same_filled_pages,
        pool_objects,
        pool_as_is_pages,
        backing_objects,
        backing_as_is_pages,
        data_bytes,
        skipped_pages,
        file_bytes,
    } = *summary;
    [
        same_filled_pages,
        pool_objects,
        pool_as_is_pages,
        backing_objects,
        backing_as_is_pages,
        data_bytes,
        skipped_pages,
        file_bytes,
        chain,
    ]
}

/// The number of pages that were left out, which only the trailer knows.
pub(super) fn skipped_pages(trailer: &[u8; TRAILER_BYTES]) -> u64 {
    u64_at(trailer, 4 + 6 * 8)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
