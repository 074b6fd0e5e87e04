//! The shared parts of the layouts of traces and snapshots: their start, their end, and the
//! checksums of the parts between.

pub(crate) const MAGIC_BYTES: usize = 8;
pub(crate) const PREFIX_BYTES: usize = MAGIC_BYTES + 4 + 4;
pub(crate) const TAG_BYTES: usize = 4;
pub(crate) const CHECKSUM_BYTES: usize = 8;

pub(crate) fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// The chain after a part with this checksum.
pub(crate) fn next_in_chain(chain: u64, part_checksum: u64) -> u64 {
    checksum(chain, &part_checksum.to_le_bytes())
}

/// The start of a file, for a header as JSON; its checksum is the first of the chain.
pub(crate) fn header(magic: &[u8; MAGIC_BYTES], version: u32, json: &[u8]) -> (Vec<u8>, u64) {
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + json.len() + CHECKSUM_BYTES);
    bytes.extend(magic);
    bytes.extend(version.to_le_bytes());
    bytes.extend((json.len() as u32).to_le_bytes()); // <= HEADER_BYTES_MAX
    bytes.extend(json);
    let sum = checksum(0, &bytes);
    bytes.extend(sum.to_le_bytes());
    (bytes, sum)
}

/// A part of a tag and numbers, with their checksum; and that checksum.
pub(crate) fn numbers<const WIDTH: usize, const BYTES: usize>(
    tag: &[u8; TAG_BYTES],
    numbers: impl IntoIterator<Item = [u8; WIDTH]>,
    chain: u64,
) -> ([u8; BYTES], u64) {
    let mut bytes = [0; BYTES];
    bytes[..TAG_BYTES].copy_from_slice(tag);
    let at = BYTES - CHECKSUM_BYTES;
    let (places, _) = bytes[TAG_BYTES..at].as_chunks_mut::<WIDTH>();
    places.iter_mut().zip(numbers).for_each(|(place, number)| *place = number);
    let sum = checksum(chain, &bytes[..at]);
    bytes[at..].copy_from_slice(&sum.to_le_bytes());
    (bytes, sum)
}
