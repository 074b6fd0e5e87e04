//! Fuzzing from seeds: a fixed number of them, or with `UZSWAP_FUZZ_SECONDS=N` as many as there is
//! time for. The caller prints the seed of what fails.

pub mod forge;
pub mod slow_lzo;

use std::time::{Duration, Instant};

use crate::varied_pages::Random;

/// Seeds: `count` of them, or for as long as the environment says.
pub fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let seconds = std::env::var("UZSWAP_FUZZ_SECONDS").ok();
    let seconds = seconds.map(|text| text.parse().expect("UZSWAP_FUZZ_SECONDS"));
    let since = Instant::now();
    (0..).take_while(move |&seed| match seconds {
        Some(seconds) => since.elapsed() < Duration::from_secs(seconds),
        None => seed < count,
    })
}

/// Numbers that parsers get wrong.
const EDGES: [u64; 12] = [
    0,
    1,
    4095,
    4096,
    4097,
    u16::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 52,
    i64::MAX as u64,
    u64::MAX - 4095,
    u64::MAX,
];

pub fn edge(random: &mut Random) -> u64 {
    EDGES[random.below(EDGES.len())]
}

/// Damages `bytes` in one to four places: bits, bytes, words, what is cut, doubled or put in.
pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len() + 1);
        let count = random.length(1, 64).min(bytes.len() - at);
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.extend(random.bytes(count)),
            2 => drop(bytes.drain(at..at + count)),
            3 => {
                let copy = bytes[at..at + count].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            4 => bytes[at..at + count.min(8)].fill(if random.below(2) == 0 { 0xff } else { 0 }),
            5 => {
                let count = count.min(8);
                let put = random.bytes(count);
                bytes[at..at + count].copy_from_slice(&put);
            }
            _ if count > 0 => bytes[at] ^= 1 << random.below(8),
            _ => bytes.push(random.byte()),
        }
    }
}
