//! What the store costs over its compressor, and against a plain hash map; one thread and two.
//!
//! Every contender runs in a fresh process, in turn, round after round: A B C A B C. A figure is
//! the median of the rounds; a ratio is the median of the rounds' ratios, with their range.
//!
//! `cargo bench --bench store` measures the built-in workload's pages; `UZSWAP_CORPUS=FILE` another
//! corpus, `UZSWAP_ROUNDS=N` more rounds. Without `--bench` (as `cargo test` calls it) it runs
//! once over few pages, to see that it works.

use std::collections::HashMap;
use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use uzswap::compressor::{Compressor, CompressorKind, OUTPUT_BYTES};
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::zpool::zsmalloc::{HandleHeader, ZsmallocOptions};
use uzswap::zswap::{Incompressible, Zswap, ZswapOptions};

const CONTENDERS: [&str; 6] = ["bare", "zswap", "zswap-dense", "zswap-2", "bare-2", "hashmap"];

/// What a contender took, in ns a page, and the anonymous memory it came to hold, in bytes.
#[derive(Debug, Clone, Copy)]
struct Sample {
    store: f64,
    load: f64,
    load_random: f64,
    rss: f64,
}

fn main() {
    let mut args = std::env::args().skip(1);
    if let (Some("--contender"), Some(name), Some(corpus)) =
        (args.next().as_deref(), args.next(), args.next())
    {
        return contender(&name, &read_pages(&corpus));
    }
    let full = std::env::args().any(|arg| arg == "--bench");
    let corpus = std::env::var("UZSWAP_CORPUS").expect("corpus");
    let rounds =
        std::env::var("UZSWAP_ROUNDS").map_or(if full { 7 } else { 1 }, |n| n.parse().unwrap());
    let mut samples: HashMap<&str, Vec<Sample>> = HashMap::new();
    for _ in 0..rounds {
        for name in CONTENDERS {
            samples.entry(name).or_default().push(run(name, &corpus));
        }
    }
    report(&samples);
}

fn run(name: &str, corpus: &str) -> Sample {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--contender", name, corpus])
        .output()
        .unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let figures: Vec<f64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [store, load, load_random, rss] = figures[..] else { panic!("{text}") };
    Sample { store, load, load_random, rss }
}

fn report(samples: &HashMap<&str, Vec<Sample>>) {
    type Figure = fn(&Sample) -> f64;
    let figures: [(&str, Figure); 4] = [
        ("store ns/page", |s| s.store),
        ("load ns/page", |s| s.load),
        ("load, random order", |s| s.load_random),
        ("anonymous RSS, MiB", |s| s.rss / 1048576.0),
    ];
    for (title, figure) in figures {
        println!("\n{title}");
        for name in CONTENDERS {
            let mine: Vec<f64> = samples[name].iter().map(figure).collect();
            let ratios = |base: &str| {
                let pairs = samples[base].iter().map(figure).zip(&mine);
                let mut ratios: Vec<f64> = pairs.map(|(base, mine)| mine / base).collect();
                ratios.sort_by(f64::total_cmp);
                format!(
                    "{:.3} ({:.3} to {:.3})",
                    median(&ratios),
                    ratios[0],
                    ratios[ratios.len() - 1]
                )
            };
            println!(
                "  {name:12} {:9.1}   / bare {}   / hashmap {}",
                median(&mine),
                ratios("bare"),
                ratios("hashmap")
            );
        }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn read_pages(path: &str) -> Vec<Page> {
    let bytes = std::fs::read(path).unwrap();
    let (pages, rest) = bytes.as_chunks::<PAGE_SIZE>();
    assert!(rest.is_empty());
    pages.to_vec()
}

fn anonymous_bytes() -> f64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find(|line| line.starts_with("Anonymous:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

/// Pages in an order without neighbours.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = 1u64;
    for i in (1..count).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    order
}

fn contender(name: &str, pages: &[Page]) {
    let order: Vec<usize> = (0..pages.len()).collect();
    let random = shuffled(pages.len());
    let threads = if name.ends_with("-2") { 2 } else { 1 };
    match name {
        "bare" | "bare-2" => {
            let compressor = CompressorKind::Lz4.build();
            let bytes = pages.len() * PAGE_SIZE / threads;
            let mut stores: Vec<Bare<'_>> =
                (0..threads).map(|_| Bare::new(&*compressor, bytes, pages.len())).collect();
            measure_split(pages, &mut stores, &order, &random);
        }
        "hashmap" => {
            let compressor = CompressorKind::Lz4.build();
            let mut stores = [Plain { compressor: &*compressor, map: HashMap::new() }];
            measure_split(pages, &mut stores, &order, &random);
        }
        _ => {
            let handle_header =
                if name == "zswap-dense" { HandleHeader::Beside } else { HandleHeader::InObject };
            let chain_size = if name == "zswap-dense" { 16 } else { 8 };
            let zsmalloc = ZsmallocOptions { handle_header, chain_size, ..Default::default() };
            let zswap = Zswap::new(ZswapOptions {
                zsmalloc,
                incompressible: Incompressible::StoreAsIs,
                ..Default::default()
            });
            let mut stores: Vec<Shared<'_>> = (0..threads).map(|_| Shared(&zswap)).collect();
            measure_split(pages, &mut stores, &order, &random);
        }
    }
}

trait Store: Send {
    fn store(&mut self, key: usize, page: &Page);
    fn load(&mut self, key: usize, page: &mut Page);
}

/// As the store with `Incompressible::StoreAsIs`: a page that does not shrink is kept whole.
fn compress_or_copy(
    compressor: &dyn Compressor,
    page: &Page,
    out: &mut [u8; OUTPUT_BYTES],
) -> usize {
    match compressor.compress(page, out) {
        Ok(bytes) if bytes < PAGE_SIZE => bytes,
        _ => {
            out[..PAGE_SIZE].copy_from_slice(page);
            PAGE_SIZE
        }
    }
}

fn decompress_or_copy(compressor: &dyn Compressor, object: &[u8], page: &mut Page) {
    match object.try_into() {
        Ok(whole) => *page = whole,
        Err(_) => compressor.decompress(object, page).unwrap(),
    }
}

struct Bare<'a> {
    compressor: &'a dyn Compressor,
    out: Box<[u8; OUTPUT_BYTES]>,
    kept: Vec<u8>,
    places: Vec<(u32, u16)>,
}

impl<'a> Bare<'a> {
    fn new(compressor: &'a dyn Compressor, bytes: usize, count: usize) -> Self {
        let mut kept = vec![1; bytes];
        kept.clear();
        Bare { compressor, out: Box::new([0; OUTPUT_BYTES]), kept, places: vec![(0, 0); count] }
    }
}

impl Store for Bare<'_> {
    fn store(&mut self, key: usize, page: &Page) {
        let bytes = compress_or_copy(self.compressor, page, &mut self.out);
        self.places[key] = (self.kept.len() as u32, bytes as u16);
        self.kept.extend_from_slice(&self.out[..bytes]);
    }

    fn load(&mut self, key: usize, page: &mut Page) {
        let (start, bytes) = self.places[key];
        let object = &self.kept[start as usize..start as usize + usize::from(bytes)];
        decompress_or_copy(self.compressor, object, page);
    }
}

struct Plain<'a> {
    compressor: &'a dyn Compressor,
    map: HashMap<u64, Vec<u8>>,
}

impl Store for Plain<'_> {
    fn store(&mut self, key: usize, page: &Page) {
        let mut out = [0; OUTPUT_BYTES];
        let bytes = compress_or_copy(self.compressor, page, &mut out);
        self.map.insert(key as u64, out[..bytes].to_vec());
    }

    fn load(&mut self, key: usize, page: &mut Page) {
        decompress_or_copy(self.compressor, &self.map[&(key as u64)], page);
    }
}

struct Shared<'a>(&'a Zswap);

impl Store for Shared<'_> {
    fn store(&mut self, key: usize, page: &Page) {
        self.0.store(PageKey(key as u64), page).unwrap();
    }

    fn load(&mut self, key: usize, page: &mut Page) {
        assert!(self.0.load(PageKey(key as u64), page).unwrap());
    }
}

/// Stores and loads all pages, each thread its share; prints the sample.
fn measure_split<S: Store>(pages: &[Page], stores: &mut [S], order: &[usize], random: &[usize]) {
    let before = anonymous_bytes();
    let time = |stores: &mut [S], order: &[usize], run: &(dyn Fn(&mut S, &[usize]) + Sync)| {
        let start = Instant::now();
        let share = order.len().div_ceil(stores.len());
        std::thread::scope(|scope| {
            let parts = stores.iter_mut().zip(order.chunks(share));
            let mut parts: Vec<_> = parts.collect();
            let mine = parts.pop();
            for (store, part) in parts {
                scope.spawn(move || run(store, part));
            }
            if let Some((store, part)) = mine {
                run(store, part);
            }
        });
        start.elapsed().as_nanos() as f64 / order.len() as f64
    };
    let store = time(stores, order, &|store, part| {
        for &key in part {
            store.store(key, &pages[key]);
        }
    });
    let rss = anonymous_bytes() - before;
    let load_all = |store: &mut S, part: &[usize]| {
        let mut page = [0; PAGE_SIZE];
        for &key in part {
            store.load(key, &mut page);
            black_box(&page);
        }
    };
    let load = time(stores, order, &load_all);
    // Both threads of `bare-2` keep their own half: their random order must be of that half.
    let share = order.len().div_ceil(stores.len());
    let halves: Vec<usize> = (0..stores.len())
        .flat_map(|part| random.iter().copied().filter(move |key| key / share == part))
        .collect();
    let load_random = time(stores, &halves, &load_all);
    println!("{store} {load} {load_random} {rss}");
}
