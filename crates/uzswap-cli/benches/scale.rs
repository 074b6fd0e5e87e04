//! Whether the cost of a page stays flat from 10 thousand to 4 million pages.
//!
//! For each number of pages a fresh process fills the store from the same source pages over and
//! over; another one runs the bare compressor with a copy to fresh memory. Then 100 thousand pages
//! are loaded in the order they were stored, and as many in random order. Growth in both is the
//! machine's (caches, address translation); growth in the store alone is ours.
//!
//! `cargo bench --bench scale`; without `--bench` it stops at 10 thousand pages.

mod common;

use std::hint::black_box;
use std::time::Instant;

use common::{Bare, Shared, Store, anonymous_bytes, median, ratio};
use uzswap::compressor::CompressorKind;
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::zswap::{Incompressible, Zswap, ZswapOptions};

/// Loads measured, at most.
const LOADS: usize = 100_000;

const TITLES: [&str; 3] = ["store", "load in order", "load in random order"];

fn main() {
    if let Some(args) = common::contender_args() {
        let pages = common::read_pages(&args[1]);
        return contender(&args[0], &pages, args[2].parse().unwrap());
    }
    let corpus = common::Corpus::new();
    let (counts, rounds): (&[usize], _) = if common::is_full_run() {
        (&[10_000, 100_000, 1_000_000, 4_000_000], 3)
    } else {
        (&[10_000], 1)
    };
    let rounds = common::number_from_env("UZSWAP_ROUNDS", rounds);
    println!("ns/page    {}", TITLES.map(|title| format!("{title:^36}")).join(" "));
    println!(
        "   pages   {}  bytes/page",
        TITLES.map(|_| format!("{:^36}", "zswap     / bare")).join(" ")
    );
    for &count in counts {
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (name, runs) in ["bare", "zswap"].into_iter().zip(&mut runs) {
                runs.push(common::run_contender(&[name, corpus.path(), &count.to_string()]));
            }
        }
        let figures = |contender: usize, place: usize| {
            runs[contender].iter().map(|run: &Vec<f64>| run[place]).collect::<Vec<f64>>()
        };
        let columns = [0, 1, 2].map(|place| {
            let (bare, zswap) = (figures(0, place), figures(1, place));
            format!("{:>8.0} {:>27}", median(&zswap), ratio(&zswap, &bare))
        });
        println!("{count:>8}   {} {:>10.0}", columns.join(" "), median(&figures(1, 3)));
    }
}

fn contender(name: &str, pages: &[Page], count: usize) {
    let compressor = CompressorKind::Lz4.build();
    let zswap = Zswap::new(ZswapOptions::bare().incompressible(Incompressible::StoreAsIs)).unwrap();
    let before = anonymous_bytes();
    let [store, in_order, random] = match name {
        "bare" => measure(&mut Bare::new(&*compressor, count), pages, count),
        _ => measure(&mut Shared(&zswap), pages, count),
    };
    let memory = (anonymous_bytes() - before) as f64 / count as f64;
    println!("{store} {in_order} {random} {memory}");
}

/// ns a page to store all, to load some in order, and to load some in random order.
fn measure(store: &mut impl Store, pages: &[Page], count: usize) -> [f64; 3] {
    let start = Instant::now();
    for key in 0..count {
        store.store(key, &pages[key % pages.len()]);
    }
    let store_ns = start.elapsed().as_nanos() as f64 / count as f64;
    let loads = LOADS.min(count);
    let in_order: Vec<usize> = (count - loads..count).collect();
    // A prime far from powers of two, as a stride: no neighbours.
    let random: Vec<usize> = (0..loads).map(|i| i * 2_654_435_761 % count).collect();
    [store_ns, load(store, &in_order), load(store, &random)]
}

fn load(store: &mut impl Store, keys: &[usize]) -> f64 {
    let mut page = [0; PAGE_SIZE];
    let start = Instant::now();
    for &key in keys {
        store.load(key, &mut page);
        black_box(&page);
    }
    start.elapsed().as_nanos() as f64 / keys.len() as f64
}
