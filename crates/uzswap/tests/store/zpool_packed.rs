//! Goal: the pool of packed is as dense as its head says, after every call.
//! Method: seeded lengths of the shape that compressed pages have, filled, then a random half freed
//! and refilled with lengths of another shape, round after round. No call of `compact`.
//! Blind to: lengths that leave a part of each region unused, as of objects over 16 KiB.

use std::sync::Arc;

use uzswap::page::PAGE_SIZE;
use uzswap::random::SplitMix64;
use uzswap::zpool::zsmalloc::ZsmallocOptions;
use uzswap::zpool::{Arena, Handle, Zpool, ZpoolKind};

/// Lengths at the 0th, 5th, ... 100th percent. Pages of a compiler and of a mixed heap by lz4, and
/// those of the compiler by zstd.
type Shape = [usize; 21];
const CC1: Shape = [
    16, 232, 556, 655, 754, 821, 887, 952, 1009, 1075, 1137, 1207, 1291, 1391, 1484, 1576, 1719,
    1921, 2079, 2204, 4091,
];
const MIXED: Shape = [
    16, 195, 400, 610, 822, 1027, 1236, 1443, 1647, 1852, 2060, 2258, 2463, 2664, 2870, 3072, 3277,
    3479, 3690, 3895, 4096,
];
const ZSTD: Shape = [
    16, 165, 335, 387, 440, 493, 537, 575, 610, 646, 683, 722, 766, 823, 898, 978, 1068, 1156,
    1291, 1484, 2365,
];

struct Filled {
    pool: Box<dyn Zpool>,
    arena: Arc<Arena>,
    random: SplitMix64,
    live: Vec<(Handle, usize)>,
    payload_bytes: usize,
}

impl Filled {
    fn new(seed: u64) -> Filled {
        let arena = Arc::new(Arena::new());
        Filled {
            pool: ZpoolKind::Packed.build(Arc::clone(&arena), ZsmallocOptions::default()),
            arena,
            random: SplitMix64::new(seed),
            live: Vec::new(),
            payload_bytes: 0,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        (self.random.next_word() % end as u64) as usize
    }

    fn insert(&mut self, shape: &Shape) {
        let place = self.below(20);
        let bytes = shape[place] + self.below(shape[place + 1] - shape[place]);
        let handle = self.pool.insert(&vec![bytes as u8; bytes]).unwrap();
        self.live.push((handle, bytes));
        self.payload_bytes += bytes;
    }

    fn remove(&mut self) {
        let place = self.below(self.live.len());
        let (handle, bytes) = self.live.swap_remove(place);
        let is_same = |object: &[u8]| object.len() == bytes && object[bytes / 2] == bytes as u8;
        self.pool.read(handle, &mut |object| assert!(is_same(object))).unwrap();
        self.pool.remove(handle).unwrap();
        self.payload_bytes -= bytes;
    }

    /// Checks that the pool has at most `ratio` times the bytes of its objects, and `more_bytes`.
    fn check(&self, ratio: f64, more_bytes: usize) {
        let pool_bytes = self.arena.stats().used_pages * PAGE_SIZE;
        let most = ratio * self.payload_bytes as f64 + more_bytes as f64;
        let payload_bytes = self.payload_bytes;
        assert!(pool_bytes as f64 <= most, "{pool_bytes} bytes for {payload_bytes} of objects");
    }
}

#[test]
fn a_full_pool_has_one_percent_more_than_its_objects() {
    for (seed, shape, ratio) in [(1, CC1, 1.010), (2, MIXED, 1.008), (3, ZSTD, 1.011)] {
        let mut filled = Filled::new(seed);
        for _ in 0..16_000 {
            filled.insert(&shape);
            // The last region is 16 KiB, or a 64th of the pool.
            filled.check(1.01 + 1.0 / 64.0, 16 << 10);
        }
        filled.check(ratio, 0);
        filled.pool.audit().unwrap();
    }
}

#[test]
fn a_pool_of_any_history_has_six_percent_more_than_its_objects() {
    for (seed, shapes) in [(1, [CC1, CC1]), (2, [CC1, MIXED]), (3, [MIXED, ZSTD])] {
        let mut filled = Filled::new(seed);
        (0..16_000).for_each(|_| filled.insert(&shapes[0]));
        for round in 1..=4 {
            for _ in 0..filled.live.len() / 2 {
                filled.remove();
                filled.check(1.06, 0);
            }
            while filled.payload_bytes < 18 << 20 {
                filled.insert(&shapes[round % 2]);
                filled.check(1.06, 0);
            }
        }
        // One comes for each that goes.
        for _ in 0..16_000 {
            filled.remove();
            filled.insert(&shapes[1]);
            filled.check(1.06, 0);
        }
        filled.pool.audit().unwrap();
    }
}

#[test]
fn a_pool_that_empties_stays_dense() {
    let mut filled = Filled::new(1);
    // Three logs.
    (0..36_000).for_each(|_| filled.insert(&CC1));
    filled.check(1.010, 0);
    while !filled.live.is_empty() {
        filled.remove();
        // Each log may be below 4 MiB then.
        filled.check(1.06, if filled.payload_bytes < 12 << 20 { 3 << 16 } else { 0 });
    }
    assert_eq!(filled.arena.stats().used_pages, 0);
}

#[test]
fn compaction_makes_a_pool_as_dense_as_a_full_one() {
    let mut filled = Filled::new(1);
    (0..16_000).for_each(|_| filled.insert(&CC1));
    (0..8_000).for_each(|_| filled.remove());
    for _ in 0..2 {
        let before = filled.pool.stats();
        let freed = filled.pool.compact();
        assert!(freed > 0);
        assert_eq!(filled.pool.stats().pool_pages, before.pool_pages - freed);
        filled.check(1.015, 0);
        filled.pool.audit().unwrap();
        (0..200).for_each(|_| filled.remove());
    }
    filled.live.iter().for_each(|&(handle, bytes)| {
        filled.pool.read(handle, &mut |object| assert_eq!(object[0], bytes as u8)).unwrap();
    });
}

/// Objects of units of four pages: a pool of them is less dense, as a region holds few.
#[test]
fn objects_of_any_length_are_packed() {
    const UNITS: Shape = [
        100, 1800, 2687, 2900, 3100, 3300, 3500, 3700, 3900, 4050, 4228, 4500, 4700, 5000, 5400,
        5900, 6400, 7000, 7588, 9000, 16_448,
    ];
    let mut filled = Filled::new(1);
    (0..6_000).for_each(|_| filled.insert(&UNITS));
    filled.check(1.03, 0);
    for _ in 0..6_000 {
        filled.remove();
        filled.insert(&UNITS);
        filled.check(1.06, 0);
    }
    filled.pool.audit().unwrap();
}
