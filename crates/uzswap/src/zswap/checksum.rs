//! Checksums of objects: of the bytes in the pool, and of the bytes in the backing.

use twox_hash::XxHash3_64;

use crate::compressor::Corrupt;
use crate::page::PageKey;

/// The lower half of the XXH3 of `bytes` with the key as its seed: an object that is found under
/// another key does not have it either. Of what is corrupt at random, one in 2^32 is not noticed.
pub(super) fn checksum(key: PageKey, bytes: &[u8]) -> u32 {
    XxHash3_64::oneshot_with_seed(key.0, bytes) as u32
}

/// Checks that `bytes` are those that had this checksum.
pub(super) fn check(key: PageKey, bytes: &[u8], expected: u32) -> Result<(), Corrupt> {
    let found = checksum(key, bytes);
    if found == expected {
        return Ok(());
    }
    Err(Corrupt(format!("checksum mismatch: expected {expected:#010x}, found {found:#010x}")))
}
