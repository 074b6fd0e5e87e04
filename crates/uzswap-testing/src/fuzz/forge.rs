//! Makes damaged files with right checksums, so that the damage passes the checksum.

use uzswap::page::PAGE_SIZE;

use super::{edge, mutate};
use crate::varied_pages::Random;

/// Makes the checksums of a snapshot right again, so that damage gets past them.
pub fn forge_snapshot(bytes: &mut [u8]) {
    let hash = twox_hash::XxHash3_64::oneshot_with_seed;
    let length = |bytes: &[u8], at: usize| -> Option<usize> {
        let word = bytes.get(at..at + 4)?;
        usize::try_from(u32::from_le_bytes(word.try_into().unwrap())).ok()
    };
    let sign = |bytes: &mut [u8], start: usize, end: usize, seed: u64| -> Option<u64> {
        let sum = hash(seed, bytes.get(start..end)?);
        bytes.get_mut(end..end + 8)?.copy_from_slice(&sum.to_le_bytes());
        Some(sum)
    };
    let Some(mut end) = length(bytes, 12).map(|json| 16_usize.saturating_add(json)) else { return };
    let Some(mut chain) = sign(bytes, 0, end, 0) else { return };
    loop {
        let start = end + 8;
        match bytes.get(start..start + 4) {
            Some(b"PAGE") => {
                let Some(records) = length(bytes, start + 8) else { return };
                end = start + 12 + records;
                let Some(sum) = sign(bytes, start, end, chain) else { return };
                chain = hash(chain, &sum.to_le_bytes());
            }
            Some(b"END\n") => {
                if let Some(place) = bytes.get_mut(start + 68..start + 76) {
                    place.copy_from_slice(&chain.to_le_bytes());
                }
                sign(bytes, start, start + 76, chain);
                return;
            }
            _ => return,
        }
    }
}

/// A trace of one block, damaged where there is `random`, with the right checksums. `totals`, of
/// stores, words, loads, frees, contents and nanoseconds, make its end; without them it is cut off.
pub fn forge_trace(
    events: &[u8],
    contents: &[u8],
    totals: Option<[u64; 6]>,
    mut random: Option<&mut Random>,
) -> Vec<u8> {
    let mut one_in = |count| random.as_mut().is_some_and(|random| random.below(count) == 0);
    let (is_damaged, wrong) = (one_in(8), [one_in(60), one_in(60), one_in(60)]);
    let hash = twox_hash::XxHash3_64::oneshot_with_seed;
    let mut bytes = b"uztrac\r\n\x01\0\0\0\x02\0\0\0{}".to_vec();
    let chain = hash(0, &bytes);
    bytes.extend(chain.to_le_bytes());
    let mut body = Vec::with_capacity(1 << 20);
    zstd_safe::compress(&mut body, &[events, contents].concat(), 1).unwrap();
    if let Some(random) = random.as_mut().filter(|_| is_damaged) {
        mutate(random, &mut body);
    }
    let mut prefix = b"OPS\n".to_vec();
    let lengths = [events.len(), contents.len() / PAGE_SIZE, body.len()];
    for (length, wrong) in lengths.into_iter().zip(wrong) {
        let random = random.as_mut().filter(|_| wrong);
        let length = random.map_or(length as u64, |random| edge(random));
        prefix.extend((length as u32).to_le_bytes());
    }
    let seed = hash(chain, &prefix);
    bytes.extend(prefix);
    bytes.extend(seed.to_le_bytes());
    bytes.extend(&body);
    let sum = hash(seed, &body);
    bytes.extend(sum.to_le_bytes());
    if let Some([stores, words, loads, frees, contents, ns]) = totals {
        let chain = hash(chain, &sum.to_le_bytes());
        let mut end = b"END\n".to_vec();
        for number in [1, stores, words, loads, frees, contents, ns, chain] {
            end.extend(number.to_le_bytes());
        }
        let sum = hash(chain, &end);
        bytes.extend(end);
        bytes.extend(sum.to_le_bytes());
    }
    bytes
}
