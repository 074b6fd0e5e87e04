//! Errors of samples of large memory, by units of several lengths and many seeds.
//!
//! Goal: 95 % of the estimates are within 1 % of the whole with a sample of a twelfth, and 95 % of
//! the intervals have the truth.
//! Method: every page of some memory is compressed once. Of the lengths, larger memory is made.
//! Objects of these lengths go into the real allocators: all of them once, and then those of each
//! sample.
//! Blind to: times, and processes that change while they are read.
//!
//! `cargo bench -p uzswap-cli --bench sampling` prints a table. `UZSWAP_SEEDS=N` is another number
//! of samples, `UZSWAP_UNITS=128,16` the lengths of units in pages, `UZSWAP_MIB=N` a quarter of
//! each memory, `UZSWAP_MEMORY=mixed,files` the kinds of memory. `UZSWAP_CORPUS=FILE:FILE` adds
//! page sets as one more kind. Without `--bench` it runs once over few pages, to see that it works.

use std::env;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use uzswap::compressor::{Compressor, CompressorKind, OUTPUT_BYTES};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::random::SplitMix64;
use uzswap::same_filled::SameFilled;
use uzswap::zpool::zsmalloc::ZsmallocOptions;
use uzswap::zpool::{Arena, ZpoolKind};
use uzswap_cli::corpus::sample::{
    Estimate, Population, SamplePlan, UNIT_BYTES, UnitSums, UnitWalk,
};
use uzswap_cli::corpus::workload::Workload;
use uzswap_cli::measure::replay::open_bytes;

const COMPRESSORS: [CompressorKind; 3] =
    [CompressorKind::Lz4, CompressorKind::LzoRle, CompressorKind::Zstd(3)];
const ZPOOLS: [ZpoolKind; 3] = [ZpoolKind::Zsmalloc, ZpoolKind::Zbud, ZpoolKind::Z3fold];

/// A sample is one part in so many of the whole.
const SHARE: u64 = 12;

/// The whole is so many times as large as the memory that is compressed.
const TILES: usize = 4;

/// Length of a same-filled page, and of one that its compressor gives up.
const SAME_FILLED: u16 = 0;
const REFUSED: u16 = u16::MAX;

fn parameter<T: FromStr>(name: &str, default: T) -> T {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Lengths of the pages of some memory by each compressor.
#[derive(Default)]
struct Lengths {
    of: [Vec<u16>; COMPRESSORS.len()],
}

impl Lengths {
    fn add(&mut self, pages: &[Page]) {
        thread::scope(|scope| {
            for (lengths, kind) in self.of.iter_mut().zip(COMPRESSORS) {
                scope.spawn(move || {
                    let compressor = kind.build();
                    lengths.extend(pages.iter().map(|page| length(&*compressor, page)));
                });
            }
        });
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(bytes.as_chunks::<PAGE_SIZE>().0);
    }

    fn pages(&self) -> usize {
        self.of[0].len()
    }
}

fn length(compressor: &dyn Compressor, page: &Page) -> u16 {
    if SameFilled::default().word(page).is_some() {
        return SAME_FILLED;
    }
    compressor.compress(page, &mut [0; OUTPUT_BYTES]).map_or(REFUSED, |bytes| bytes as u16)
}

/// Memory of one kind.
struct Memory {
    name: &'static str,
    lengths: Lengths,
    /// Whether windows have some of their pages only.
    is_sparse: bool,
}

/// Adds heaps of a workload to about `bytes`, each of `heap_bytes`.
fn add_heaps(lengths: &mut Lengths, workload: Workload, bytes: usize, heap_bytes: usize) {
    for seed in 1..=bytes.div_ceil(heap_bytes) as u64 {
        let heap = workload.build(seed, heap_bytes);
        heap.areas().iter().for_each(|(_, _, area)| lengths.add_bytes(area));
    }
}

/// A process whose parts of up to a megabyte lie among each other.
fn mixed(bytes: usize) -> Memory {
    let mut lengths = Lengths::default();
    add_heaps(&mut lengths, Workload::Mixed, bytes, bytes.min(32 << 20));
    Memory { name: "mixed", lengths, is_sparse: false }
}

/// Each workload in one stretch, so that parts differ as much as they can.
fn kinds(bytes: usize) -> Memory {
    let mut lengths = Lengths::default();
    let kinds = &Workload::ALL[1..];
    for &kind in kinds {
        let mut one = Lengths::default();
        add_heaps(&mut one, kind, bytes / kinds.len(), (bytes / kinds.len()).min(64 << 20));
        for (all, one) in lengths.of.iter_mut().zip(&one.of) {
            (0..TILES).for_each(|_| all.extend(one));
        }
    }
    Memory { name: "kinds", lengths, is_sparse: false }
}

/// Files of the machine, zeros, noise and text in blocks of 16 KiB to 16 MiB.
fn files(bytes: usize) -> Memory {
    let mut lengths = Lengths::default();
    let mut random = SplitMix64::new(7);
    let mut paths = ["/usr/lib", "/usr/share", "/usr/bin"]
        .iter()
        .flat_map(|folder| files_below(Path::new(folder)))
        .collect::<Vec<PathBuf>>();
    paths.sort();
    let text = Workload::Text.build(1, (bytes / 8).max(1 << 20));
    let text = text.areas()[0].2.to_vec();
    while lengths.pages() * PAGE_SIZE < bytes {
        let block = (1_usize << 14) << (random.next_word() % 11);
        let mut room = vec![0; block];
        match random.next_word() % 10 {
            0..5 if !paths.is_empty() => {
                let path = &paths[random.next_word() as usize % paths.len()];
                let Ok(read) = File::open(path).and_then(|mut file| file.read(&mut room)) else {
                    continue;
                };
                room.truncate(read.next_multiple_of(PAGE_SIZE));
            }
            0..6 => room.chunks_mut(8).for_each(|word| {
                word.copy_from_slice(&random.next_word().to_le_bytes()[..word.len()]);
            }),
            6..8 => {}
            _ => {
                let block = block.min(text.len());
                let at = random.next_word() as usize % (text.len() - block + 1);
                room[..block].copy_from_slice(&text[at..at + block]);
            }
        }
        lengths.add_bytes(&room);
    }
    Memory { name: "files", lengths, is_sparse: false }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files_below(&entry.path())),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

/// Page sets, one after the other.
fn captures(paths: &str) -> Memory {
    let mut lengths = Lengths::default();
    for path in paths.split(':') {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
        lengths.add_bytes(&bytes);
    }
    Memory { name: "captures", lengths, is_sparse: false }
}

/// All memory: places of pages in their order, `None` where none is resident.
struct Whole<'a> {
    lengths: &'a [u16],
    /// Numbers into `lengths`, by place.
    places: Vec<Option<u32>>,
}

impl<'a> Whole<'a> {
    fn new(memory: &'a Memory, compressor: usize) -> Whole<'a> {
        let lengths = &memory.lengths.of[compressor];
        let tiles = if memory.name == "kinds" { 1 } else { TILES };
        let mut random = SplitMix64::new(3);
        let (mut places, mut resident) = (Vec::new(), u64::MAX);
        for number in (0..tiles).flat_map(|_| 0..lengths.len() as u32) {
            if memory.is_sparse && places.len() % 64 == 0 {
                resident = random.next_word();
            }
            let is_resident = !memory.is_sparse || random.next_word() <= resident;
            places.push(is_resident.then_some(number));
        }
        Whole { lengths, places }
    }

    /// Units of so many places: the lengths of the pages of each.
    fn units(&self, unit_pages: usize) -> Vec<Vec<u16>> {
        let of = |places: &[Option<u32>]| -> Vec<u16> {
            places.iter().flatten().map(|number| self.lengths[*number as usize]).collect()
        };
        self.places.chunks(unit_pages).map(of).filter(|unit| !unit.is_empty()).collect()
    }
}

/// Units in a pool.
struct Stored {
    /// Sums of each, with the growth of the pool as it is.
    sums: Vec<UnitSums>,
    /// The growth of each without free slots.
    filled: Vec<u64>,
    /// Bytes of free slots at the end.
    open: u64,
}

/// Puts units into a pool, one after the other.
fn stored<'a>(
    zpool: ZpoolKind,
    arena: &Arc<Arena>,
    units: impl Iterator<Item = &'a [u16]>,
) -> Stored {
    let pool = zpool.build(Arc::clone(arena), ZsmallocOptions::default());
    let object = [1; PAGE_SIZE];
    let (mut pool_bytes, mut filled_bytes) = (0, 0);
    let mut all = Stored { sums: Vec::new(), filled: Vec::new(), open: 0 };
    for unit in units {
        let mut sums = UnitSums { pages: unit.len() as u64, ..UnitSums::default() };
        for &length in unit {
            match length {
                SAME_FILLED => sums.same_filled_pages += 1,
                length if usize::from(length) <= pool.object_size_max() => {
                    pool.insert(&object[..length.into()]).unwrap();
                    sums.compressed_bytes += u64::from(length);
                }
                _ => sums.rejected_pages += 1,
            }
        }
        let now = (pool.stats().pool_pages * PAGE_SIZE) as u64;
        (sums.pool_bytes, pool_bytes) = (now - pool_bytes, now);
        all.open = open_bytes(&*pool);
        all.filled.push((now - all.open).saturating_sub(filled_bytes));
        filled_bytes = now - all.open;
        all.sums.push(sums);
    }
    all
}

/// The units that are drawn with `seed`.
fn drawn(units: &[Vec<u16>], seed: u64) -> impl Iterator<Item = &[u16]> {
    let pages: u64 = units.iter().map(|unit| unit.len() as u64).sum();
    let counted = Population { pages, units: units.len() as u64 };
    let plan = SamplePlan { pages_max: Some(pages / SHARE), seed };
    let mut walk = UnitWalk::drawing(counted, plan).unwrap();
    (0..).zip(units).filter_map(move |(place, unit)| {
        let start = place * UNIT_BYTES; // a window of its own
        walk.meets(None, "", &(start..start + PAGE_SIZE as u64)).then_some(&unit[..])
    })
}

/// Errors of the estimates of one figure over all seeds.
#[derive(Default)]
struct Errors {
    /// In percent of the truth, and half of the interval.
    errors: Vec<(f64, f64)>,
    held: usize,
}

impl Errors {
    fn add(&mut self, found: Estimate, truth: u64) {
        if truth == 0 {
            return;
        }
        let percent = |value: f64| 100.0 * value / truth as f64;
        let half = percent((found.high - found.low) as f64 / 2.0);
        self.errors.push((percent(found.estimate as f64 - truth as f64), half));
        self.held += usize::from((found.low..=found.high).contains(&truth));
    }

    /// Mean error, 95th percentile and largest, mean of half intervals, intervals with the truth.
    fn in_words(&self) -> String {
        let count = self.errors.len().max(1) as f64;
        let mean = self.errors.iter().map(|it| it.0).sum::<f64>() / count;
        let half = self.errors.iter().map(|it| it.1).sum::<f64>() / count;
        let mut sizes: Vec<f64> = self.errors.iter().map(|it| it.0.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let at = |share: f64| sizes.get((share * count).ceil() as usize - 1).unwrap_or(&0.0);
        let held = 100.0 * self.held as f64 / count;
        format!("{mean:+.2} | {:.2} | {:.2} | {half:.2} | {held:.0} %", at(0.95), at(1.0))
    }
}

/// The totals of units.
fn total(units: &[UnitSums], of: fn(&UnitSums) -> u64) -> u64 {
    units.iter().map(of).sum()
}

/// Lengths of units, and the number of samples.
#[derive(Debug)]
struct Plan {
    unit_pages: Vec<usize>,
    seeds: u64,
}

/// Rows of the table for one compressor and one allocator.
fn rows(memory: &Memory, compressor: usize, zpool: ZpoolKind, plan: &Plan) -> String {
    let whole = Whole::new(memory, compressor);
    let mut rows = String::new();
    let mut truth = None;
    let arena = Arc::new(Arena::new()); // its pages serve one pool after the other
    for &unit_pages in &plan.unit_pages {
        let units = whole.units(unit_pages);
        let truth = truth
            .get_or_insert_with(|| stored(zpool, &arena, units.iter().map(|unit| &unit[..])).sums);
        let of_pages = total(truth, |unit| unit.pages);
        let (mut pool, mut compressed) = (Errors::default(), Errors::default());
        let mut mended = Errors::default();
        for seed in 1..=plan.seeds {
            let Stored { sums, filled, open } = stored(zpool, &arena, drawn(&units, seed));
            let estimate = |of: fn(&UnitSums) -> u64, most: usize| {
                let units: Vec<_> = sums.iter().map(|unit| (unit.pages, of(unit))).collect();
                Estimate::of_total(&units, of_pages, most as u64)
            };
            let found = estimate(|unit| unit.pool_bytes, 2 * PAGE_SIZE);
            pool.add(found, total(truth, |unit| unit.pool_bytes));
            let filled: Vec<_> = sums.iter().map(|unit| unit.pages).zip(filled).collect();
            let found = Estimate::of_total(&filled, of_pages, 2 * PAGE_SIZE as u64).plus(open);
            mended.add(found, total(truth, |unit| unit.pool_bytes));
            let found = estimate(|unit| unit.compressed_bytes, PAGE_SIZE);
            compressed.add(found, total(truth, |unit| unit.compressed_bytes));
        }
        let kind = COMPRESSORS[compressor];
        for (figure, errors) in
            [("pool, to scale", pool), ("pool, open once", mended), ("compressed", compressed)]
        {
            let errors = errors.in_words();
            let words = format!("{} | {kind} | {zpool} | {unit_pages} | {figure}", memory.name);
            rows += &format!(
                "| {words} | {errors} |
"
            );
        }
    }
    rows
}

fn main() {
    let is_bench = env::args().any(|argument| argument == "--bench");
    let mib: usize = parameter("UZSWAP_MIB", if is_bench { 256 } else { 8 });
    let seeds = parameter("UZSWAP_SEEDS", if is_bench { 40 } else { 2 });
    let unit_pages = env::var("UZSWAP_UNITS")
        .unwrap_or_else(|_| "128,16".to_owned())
        .split(',')
        .map(|pages| pages.parse().expect("UZSWAP_UNITS has numbers of pages"))
        .collect();
    let plan = Plan { unit_pages, seeds };
    println!(
        "| memory | compressor | allocator | unit | figure | mean % | 95 % | most | half | held |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let all: [(&str, &dyn Fn() -> Memory); 5] = [
        ("mixed", &|| mixed(mib << 20)),
        ("kinds", &|| kinds(mib << 20)),
        ("files", &|| files(mib << 20)),
        ("sparse", &|| Memory { name: "sparse", is_sparse: true, ..mixed(mib << 20) }),
        ("captures", &|| captures(&env::var("UZSWAP_CORPUS").unwrap_or_default())),
    ];
    let some = if is_bench { "mixed,kinds,files,sparse" } else { "kinds,sparse" };
    let mut wanted = env::var("UZSWAP_MEMORY").unwrap_or_else(|_| some.to_owned());
    if env::var("UZSWAP_CORPUS").is_ok() {
        wanted += ",captures";
    }
    let is_wanted = |name: &str| wanted.split(',').any(|one| one == name);
    for (_, make) in all.iter().filter(|(name, _)| is_wanted(name)) {
        let memory = make();
        let tasks: Vec<(usize, ZpoolKind)> =
            (0..COMPRESSORS.len()).flat_map(|one| ZPOOLS.map(|zpool| (one, zpool))).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(&(one, zpool)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                print!("{}", rows(&memory, one, zpool, &plan));
            }
        };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(work);
            }
        });
    }
}
