//! Made-up pages of many kinds, the same on every machine, with varied compression ratios.

use uzswap::page::{PAGE_SIZE, Page};
use uzswap::random::SplitMix64;

/// Seeded choices.
#[derive(Debug)]
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(SplitMix64::new(seed))
    }

    pub fn word(&mut self) -> u64 {
        self.0.next_word()
    }

    pub fn byte(&mut self) -> u8 {
        self.word() as u8
    }

    /// 0 to `bound` - 1.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }

    /// `from` to `to`, both included; small ones as likely as large ones.
    pub fn length(&mut self, from: usize, to: usize) -> usize {
        let scale = 1 << self.below(13);
        (from + self.below(scale)).min(to)
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }
}

/// `count` pages from a seed.
pub fn varied_pages(seed: u64, count: usize) -> impl Iterator<Item = Page> {
    let mut random = Random::new(seed);
    (0..count).map(move |_| varied_page(&mut random))
}

pub fn varied_page(random: &mut Random) -> Page {
    let mut bytes = Vec::with_capacity(2 * PAGE_SIZE);
    match random.below(10) {
        0 => text(random, &mut bytes),
        1 => records(random, &mut bytes),
        2 => sparse(random, &mut bytes),
        3 => runs_of_zeros(random, &mut bytes),
        4 => repeated_unit(random, &mut bytes),
        5 => copies(random, &mut bytes),
        6 => few_symbols(random, &mut bytes),
        7 => {
            bytes = random.bytes(PAGE_SIZE);
            let at = random.below(PAGE_SIZE + 1);
            bytes[at..].fill(random.byte());
        }
        8 => bytes = random.bytes(PAGE_SIZE),
        _ => numbers(random, &mut bytes),
    }
    *bytes.first_chunk().expect("at least a page")
}

fn text(random: &mut Random, bytes: &mut Vec<u8>) {
    let letters = |random: &mut Random| -> Vec<u8> {
        (0..random.length(2, 14)).map(|_| b'a' + (random.byte() & random.byte()) % 26).collect()
    };
    let words: Vec<Vec<u8>> = (0..random.length(20, 400)).map(|_| letters(random)).collect();
    while bytes.len() < PAGE_SIZE {
        let word = random.below(words.len());
        bytes.extend(&words[random.below(word + 1)]);
        bytes.extend(if random.below(9) == 0 { ",\n" } else { " " }.bytes());
    }
}

fn records(random: &mut Random, bytes: &mut Vec<u8>) {
    let heap = random.word() & 0x7fff_ffff_f000;
    let padding = 8 * random.below(12);
    let mut counter = random.word() as u32;
    while bytes.len() < PAGE_SIZE {
        counter = counter.wrapping_add(1 + random.below(3) as u32);
        bytes.extend(counter.to_le_bytes());
        bytes.extend((random.below(16) as u32).to_le_bytes());
        bytes.extend((heap + 16 * random.below(4096) as u64).to_le_bytes());
        bytes.extend((heap + 48 * u64::from(counter & 0xff)).to_le_bytes());
        bytes.resize(bytes.len() + padding, 0);
    }
}

fn sparse(random: &mut Random, bytes: &mut Vec<u8>) {
    bytes.resize(PAGE_SIZE, 0);
    for _ in 0..random.length(1, 500) {
        bytes[random.below(PAGE_SIZE)] = random.byte();
    }
}

fn runs_of_zeros(random: &mut Random, bytes: &mut Vec<u8>) {
    while bytes.len() < PAGE_SIZE {
        let count = random.length(0, 40);
        bytes.extend(random.bytes(count));
        let zeros = random.length(0, 2100);
        bytes.resize(bytes.len() + zeros, 0);
    }
}

fn repeated_unit(random: &mut Random, bytes: &mut Vec<u8>) {
    let length = random.length(1, 700);
    let unit = random.bytes(length);
    while bytes.len() < PAGE_SIZE {
        bytes.extend(&unit);
    }
    for _ in 0..random.length(0, 60) {
        bytes[random.below(PAGE_SIZE)] ^= 1 << random.below(8);
    }
}

fn copies(random: &mut Random, bytes: &mut Vec<u8>) {
    while bytes.len() < PAGE_SIZE {
        let count = random.length(1, 600);
        bytes.extend(random.bytes(count));
        for _ in 0..random.below(30) {
            let distance = random.length(1, bytes.len());
            for _ in 0..random.length(3, 300) {
                bytes.push(bytes[bytes.len() - distance]);
            }
        }
    }
}

fn few_symbols(random: &mut Random, bytes: &mut Vec<u8>) {
    let symbols = random.bytes(5);
    let used = 2 + random.below(4);
    bytes.extend((0..PAGE_SIZE).map(|_| symbols[random.below(used)]));
}

fn numbers(random: &mut Random, bytes: &mut Vec<u8>) {
    let mut number = random.word() >> random.below(64);
    let step = random.length(1, 4096);
    while bytes.len() < PAGE_SIZE {
        number = number.wrapping_add(random.below(step) as u64);
        bytes.extend(number.to_le_bytes());
    }
}
