//! Density and time of the allocators while objects come and go.
//!
//! A pool is filled, then a random half of its objects is freed and others of other lengths come,
//! four times. The first table has the size of the pool over the bytes of its objects: full, the
//! most after any call, after the last frees, and those compacted. The second has the times of each
//! insert, read and remove. Allocators take turns, round after round; times are of all rounds.
//!
//! `cargo bench --bench churn` takes the lengths of a heap that compresses to a third;
//! `UZSWAP_SIZES=FILE` others, one a line. Without `--bench` the pool is small.

mod common;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use uzswap::page::PAGE_SIZE;
use uzswap::random::SplitMix64;
use uzswap::zpool::zsmalloc::ZsmallocOptions;
use uzswap::zpool::{Arena, Handle, Zpool, ZpoolKind};

/// The longest that every allocator takes: zbud's.
const OBJECT_BYTES_MAX: usize = 3968;

/// The figures of one history of a pool.
#[derive(Default)]
struct Figures {
    full: f64,
    most: f64,
    freed: f64,
    compacted: f64,
    insert_ns: Vec<u64>,
    read_ns: Vec<u64>,
    remove_ns: Vec<u64>,
}

struct Churn<'a> {
    sizes: &'a [usize],
    random: SplitMix64,
    arena: Arc<Arena>,
    pool: Box<dyn Zpool>,
    live: Vec<(Handle, usize)>,
    object_bytes: usize,
    figures: Figures,
}

impl Churn<'_> {
    fn below(&mut self, end: usize) -> usize {
        (self.random.next_word() % end as u64) as usize
    }

    fn ratio(&self) -> f64 {
        (self.arena.stats().used_pages * PAGE_SIZE) as f64 / self.object_bytes as f64
    }

    fn insert(&mut self) {
        let place = self.below(self.sizes.len());
        let bytes = self.sizes[place];
        let object = vec![7; bytes];
        let start = Instant::now();
        let handle = self.pool.insert(&object).unwrap();
        self.figures.insert_ns.push(start.elapsed().as_nanos() as u64);
        self.live.push((handle, bytes));
        self.object_bytes += bytes;
    }

    fn read_and_remove(&mut self) {
        let place = self.below(self.live.len());
        let (handle, _) = self.live[place];
        let start = Instant::now();
        let sum = |object: &[u8]| object.iter().step_by(64).map(|&byte| u64::from(byte)).sum();
        self.pool.read(handle, &mut |object| _ = black_box::<u64>(sum(object))).unwrap();
        self.figures.read_ns.push(start.elapsed().as_nanos() as u64);
        let place = self.below(self.live.len());
        let (handle, bytes) = self.live.swap_remove(place);
        let start = Instant::now();
        self.pool.remove(handle).unwrap();
        self.figures.remove_ns.push(start.elapsed().as_nanos() as u64);
        self.object_bytes -= bytes;
    }

    fn run(mut self, objects: usize) -> Figures {
        (0..objects).for_each(|_| self.insert());
        self.figures.full = self.ratio();
        for round in 0..4 {
            for _ in 0..objects / 2 {
                self.read_and_remove();
                self.figures.most = self.figures.most.max(self.ratio());
            }
            self.figures.freed = self.ratio();
            if round == 3 {
                self.pool.compact();
                self.figures.compacted = self.ratio();
            }
            for _ in 0..objects / 2 {
                self.insert();
                self.figures.most = self.figures.most.max(self.ratio());
            }
        }
        self.pool.audit().unwrap();
        self.figures
    }
}

/// Lengths as of a compiler's pages by lz4: most near 1200 bytes, few above 2200.
fn built_in_sizes() -> Vec<usize> {
    let mut random = SplitMix64::new(1);
    let mut part = |bytes: u64| random.next_word() % bytes;
    (0..20_000).map(|_| (200 + part(700) + part(700) + part(700)) as usize).collect()
}

fn main() {
    let sizes: Vec<usize> = match std::env::var("UZSWAP_SIZES") {
        Ok(path) => {
            let text = std::fs::read_to_string(path).expect("UZSWAP_SIZES is a file");
            let sizes = text.lines().map(|line| line.parse::<usize>().expect("a length a line"));
            sizes.filter(|bytes| (1..=OBJECT_BYTES_MAX).contains(bytes)).collect()
        }
        Err(_) => built_in_sizes(),
    };
    let (objects, rounds) = if common::is_full_run() { (16_000, 5) } else { (1_000, 1) };
    let rounds = common::number_from_env("UZSWAP_ROUNDS", rounds);
    let mut all: Vec<Vec<Figures>> = ZpoolKind::ALL.map(|_| Vec::new()).into();
    for _ in 0..rounds {
        for (kind, all) in ZpoolKind::ALL.into_iter().zip(&mut all) {
            let arena = Arc::new(Arena::new());
            let churn = Churn {
                sizes: &sizes,
                random: SplitMix64::new(1),
                pool: kind.build(Arc::clone(&arena), ZsmallocOptions::default()),
                arena,
                live: Vec::new(),
                object_bytes: 0,
                figures: Figures::default(),
            };
            all.push(churn.run(objects));
        }
    }
    println!(
        "{objects} objects        full     most    freed  compacted   over the objects' bytes"
    );
    for (kind, all) in ZpoolKind::ALL.into_iter().zip(&mut all) {
        let Figures { full, most, freed, compacted, .. } = &all[0];
        println!("{kind:18} {full:8.4} {most:8.4} {freed:8.4} {compacted:10.4}");
    }
    for (kind, all) in ZpoolKind::ALL.into_iter().zip(&mut all) {
        for (name, of) in [
            ("insert", (|figures| &figures.insert_ns) as fn(&Figures) -> &Vec<u64>),
            ("read", |figures| &figures.read_ns),
            ("remove", |figures| &figures.remove_ns),
        ] {
            let mut ns: Vec<u64> = all.iter().flat_map(of).copied().collect();
            ns.sort_unstable();
            let at = |permille: usize| ns[(ns.len() - 1) * permille / 1000];
            println!(
                "{kind:10} {name:8} p50 {:6} p99 {:6} p99.9 {:6} max {:8} ns",
                at(500),
                at(990),
                at(999),
                at(1000)
            );
        }
    }
}
