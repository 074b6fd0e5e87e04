//! Cost of the store over its compressor, and against a plain hash map; one thread and two.
//!
//! Every contender runs in a fresh process, in turn, round after round: A B C A B C. A figure is
//! the median of the rounds; a ratio is the median of the rounds' ratios, with their range.
//! `bare` is the compressor and a copy to memory that is resident before the clock starts,
//! `bare-fresh` the same to memory that is not, as any store's is.
//!
//! `cargo bench --bench store` measures the built-in workload's pages; `UZSWAP_CORPUS=FILE` another
//! corpus, `UZSWAP_ROUNDS=N` more rounds. Without `--bench` it runs once over few pages, to see
//! that it works.

mod common;

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use common::{Bare, Plain, Shared, Store, anonymous_bytes, median, ratio, shuffled};
use uzswap::compressor::CompressorKind;
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::random::mix;
use uzswap::zpool::zsmalloc::{HandleHeader, ZsmallocOptions};
use uzswap::zpool::{HostPages, ZpoolKind};
use uzswap::zswap::{Incompressible, Zswap, ZswapOptions};

const CONTENDERS: [&str; 14] = [
    "bare",
    "bare-fresh",
    "zswap",
    "zswap-beside",
    "zswap-records",
    "zswap-huge",
    "zswap-packed",
    "hashmap",
    "bare-2",
    "zswap-2",
    "zswap-huge-2",
    "zswap-packed-2",
    "zswap-4",
    "zswap-packed-4",
];

/// Time of a contender, and its anonymous memory at the end.
const FIGURES: [&str; 5] = [
    "store, ns/page",
    "load, ns/page",
    "load in random order, ns/page",
    "memory, bytes/page",
    "memory, a random half removed",
];

fn main() {
    if let Some(args) = common::contender_args() {
        return contender(&args[0], &common::read_pages(&args[1]));
    }
    let corpus = common::Corpus::new();
    let rounds =
        common::number_from_env("UZSWAP_ROUNDS", if common::is_full_run() { 7 } else { 1 });
    let mut samples: HashMap<&str, Vec<Vec<f64>>> = HashMap::new();
    for _ in 0..rounds {
        for name in CONTENDERS {
            samples.entry(name).or_default().push(common::run_contender(&[name, corpus.path()]));
        }
    }
    for (place, title) in FIGURES.iter().enumerate() {
        println!("\n{title:32} {:>28} {:>28}", "/ bare", "/ hashmap");
        for name in CONTENDERS {
            let figures = |name| samples[name].iter().map(|run| run[place]).collect::<Vec<f64>>();
            let mine = figures(name);
            let (bare, map) = (ratio(&mine, &figures("bare")), ratio(&mine, &figures("hashmap")));
            println!("  {name:20} {:9.1} {bare:>28} {map:>28}", median(&mine));
        }
    }
    println!();
    for name in ["bare", "zswap", "zswap-huge"] {
        let speedup = |place: usize| {
            let figures = |name| samples[name].iter().map(|run| run[place]).collect::<Vec<f64>>();
            ratio(&figures(name), &figures(&format!("{name}-2")))
        };
        println!("two threads over one, {name:11} store {}, load {}", speedup(0), speedup(1));
    }
    for threads in ["", "-2", "-4"] {
        let over_zsmalloc = |place: usize| {
            let figures = |name: &str| {
                samples[format!("{name}{threads}").as_str()]
                    .iter()
                    .map(|run| run[place])
                    .collect::<Vec<f64>>()
            };
            ratio(&figures("zswap-packed"), &figures("zswap"))
        };
        let [store, load, random] = [0, 1, 2].map(over_zsmalloc);
        println!(
            "packed over zsmalloc{threads:2} store {store}, load {load}, in random order {random}"
        );
    }
}

fn contender(name: &str, pages: &[Page]) {
    let compressor = CompressorKind::Lz4.build();
    let threads = name.rsplit('-').next().and_then(|last| last.parse().ok()).unwrap_or(1);
    match name {
        "bare" | "bare-fresh" | "bare-2" => {
            let bare = |_| match (name, Bare::new(&*compressor, pages.len())) {
                ("bare-fresh", bare) => bare,
                (_, bare) => bare.touched(),
            };
            let mut stores: Vec<Bare<'_>> = (0..threads).map(bare).collect();
            // Its memory was there before: the compressed bytes are what it holds of it.
            measure(pages, &mut stores, |stores| stores.iter().map(Bare::bytes).sum());
        }
        "hashmap" => {
            let mut stores = [Plain { compressor: &*compressor, map: HashMap::new() }];
            measure(pages, &mut stores, |_| anonymous_bytes());
        }
        _ => {
            let handle_header = match name {
                "zswap-beside" => HandleHeader::Beside,
                _ => HandleHeader::InObject,
            };
            let zpool = match name.contains("packed") {
                true => ZpoolKind::Packed,
                false => ZpoolKind::Zsmalloc,
            };
            let host_pages = if name.contains("huge") { HostPages::Huge } else { HostPages::Small };
            let options = match name {
                // An order of eviction, checksums, times.
                "zswap-records" => ZswapOptions::default(),
                _ => ZswapOptions::bare(),
            };
            let zswap = Zswap::new(
                options
                    .zpool(zpool)
                    .zsmalloc(ZsmallocOptions::default().handle_header(handle_header))
                    .incompressible(Incompressible::StoreAsIs)
                    .host_pages(host_pages),
            )
            .unwrap();
            let mut stores: Vec<Shared<'_>> = (0..threads).map(|_| Shared(&zswap)).collect();
            measure(pages, &mut stores, |_| anonymous_bytes());
        }
    }
}

/// Stores and loads all pages, each thread its share, and removes half of them; prints the figures.
/// `held` gives the bytes that the stores, or this process, hold at the moment.
fn measure<S: Store>(pages: &[Page], stores: &mut [S], held: impl Fn(&[S]) -> usize) {
    let in_order: Vec<usize> = (0..pages.len()).collect();
    let share = pages.len().div_ceil(stores.len());
    // A thread loads and removes what it stored.
    let mut random = shuffled(pages.len());
    random.sort_by_key(|key| key / share);
    let half: Vec<usize> = random.iter().copied().filter(|&key| mix(key as u64) & 1 == 1).collect();
    let before = held(stores);
    let held = |stores: &[S]| (held(stores) - before) as f64 / pages.len() as f64;
    let store = time(stores, &in_order, &|store, part| {
        for &key in part {
            store.store(key, &pages[key]);
        }
    });
    let full = held(stores);
    let load_all = |store: &mut S, part: &[usize]| {
        let mut page = [0; PAGE_SIZE];
        for &key in part {
            store.load(key, &mut page);
            black_box(&page);
        }
    };
    let load = time(stores, &in_order, &load_all);
    let load_random = time(stores, &random, &load_all);
    for key in half {
        stores[key / share].remove(key);
    }
    stores.iter_mut().for_each(S::compact);
    println!("{store} {load} {load_random} {full} {}", held(stores));
}

/// Runs each store over its share of `keys` on a thread of its own; ns a key.
fn time<S: Store>(
    stores: &mut [S],
    keys: &[usize],
    run: &(dyn Fn(&mut S, &[usize]) + Sync),
) -> f64 {
    let share = keys.len().div_ceil(stores.len());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (store, part) in stores.iter_mut().zip(keys.chunks(share)) {
            scope.spawn(move || run(store, part));
        }
    });
    start.elapsed().as_nanos() as f64 / keys.len() as f64
}
