//! What each compressor costs a page, against lz4, and what it makes of the pages.
//!
//! All compressors take turns in one process, page set by page set, round after round, and in every
//! round lz4 goes first. A figure is the median of the rounds; a ratio is the median of the rounds'
//! ratios, with their range. Same-filled pages are left out, as a store never compresses them;
//! pages that a compressor does not shrink are compressed in vain and not decompressed.
//!
//! `cargo bench --bench codec` measures the built-in workload's pages, those of them that are half
//! zeros or more, and made-up ones with runs of zeros; `UZSWAP_CORPUS=FILE` takes another corpus for
//! the first two, `UZSWAP_ROUNDS=N` more rounds, `UZSWAP_CODECS=lz4,lzo` fewer compressors. Without
//! `--bench` it runs once over few pages, to see that it works.

mod common;

use std::hint::black_box;
use std::time::Instant;

use common::{median, ratio};
use uzswap::compressor::{Compressor, CompressorKind, OUTPUT_BYTES};
use uzswap::lab::SplitMix64;
use uzswap::page::{PAGE_SIZE, Page, same_filled_word};

/// Pages of a set, at most: few enough for many rounds.
const PAGES_MAX: usize = 16_384;

fn main() {
    let corpus = common::Corpus::new();
    let (pages_max, rounds) = if common::is_full_run() { (PAGES_MAX, 9) } else { (64, 1) };
    let rounds = common::number_from_env("UZSWAP_ROUNDS", rounds);
    let codecs = std::env::var("UZSWAP_CODECS").unwrap_or(CompressorKind::NAMES.join(","));
    let codecs: Vec<Box<dyn Compressor>> =
        codecs.split(',').map(|name| name.parse::<CompressorKind>().expect(name).build()).collect();

    let mut pages = common::read_pages(corpus.path());
    pages.retain(|page| same_filled_word(page).is_none());
    let zeros = |page: &Page| page.iter().filter(|&&byte| byte == 0).count();
    let half_zeros = pages.iter().filter(|page| zeros(page) >= PAGE_SIZE / 2).copied().collect();
    let sets: [(&str, Vec<Page>); 3] = [
        ("corpus", pages),
        ("corpus, half zeros or more", half_zeros),
        ("made up, 90 % zeros in runs", pages_of_zeros(pages_max)),
    ];
    for (name, pages) in sets {
        let pages = spread(pages, pages_max);
        if !pages.is_empty() {
            measure(name, &pages, &codecs, rounds);
        }
    }
}

/// `count` of the pages, from all places.
fn spread(pages: Vec<Page>, count: usize) -> Vec<Page> {
    let step = pages.len().div_ceil(count).max(1);
    pages.into_iter().step_by(step).collect()
}

/// Pages of 1 to 16 random bytes and 9 times as many zeros, again and again.
fn pages_of_zeros(count: usize) -> Vec<Page> {
    let mut random = SplitMix64::new(1);
    let mut page = || {
        let mut page = [0; PAGE_SIZE];
        let mut at = 0;
        while at < PAGE_SIZE {
            let draw = random.next_word();
            let bytes = 1 + draw as usize % 16;
            for byte in page[at..].iter_mut().take(bytes) {
                *byte = random.next_word() as u8;
            }
            at += bytes * 10;
        }
        page
    };
    (0..count).map(|_| page()).collect()
}

/// A compressor, what it made of the pages, and ns a page, round by round.
struct Contender<'a> {
    codec: &'a dyn Compressor,
    objects: Vec<Vec<u8>>,
    compress_ns: Vec<f64>,
    decompress_ns: Vec<f64>,
}

fn measure(name: &str, pages: &[Page], codecs: &[Box<dyn Compressor>], rounds: usize) {
    let mut out = [0; OUTPUT_BYTES];
    let mut contenders: Vec<Contender<'_>> = codecs
        .iter()
        .map(|codec| {
            let object =
                |page| codec.compress(page, &mut out).ok().map(|bytes| out[..bytes].to_vec());
            let objects = pages.iter().filter_map(object).collect();
            Contender { codec: &**codec, objects, compress_ns: vec![], decompress_ns: vec![] }
        })
        .collect();
    let mut page = [0; PAGE_SIZE];
    for _ in 0..rounds {
        for contender in &mut contenders {
            let codec = contender.codec;
            let ns = time(pages, |page| drop(black_box(codec.compress(page, &mut out))));
            contender.compress_ns.push(ns);
            let ns = time(&contender.objects, |object| {
                codec.decompress(object, &mut page).unwrap();
                black_box(&page);
            });
            contender.decompress_ns.push(ns);
        }
    }
    let base = &contenders[0];
    let title = format!("{name}: {} pages, ns/page", pages.len());
    println!("\n{title:44} compress / {0:23} decompress / {0:21} compressed", base.codec.name());
    for contender in &contenders {
        let bytes: usize = contender.objects.iter().map(Vec::len).sum();
        let in_vain = (pages.len() - contender.objects.len()) * PAGE_SIZE;
        println!(
            "  {:28} {:9.1} {:>28} {:9.1} {:>28} {:9.1} %",
            contender.codec.name(),
            median(&contender.compress_ns),
            ratio(&contender.compress_ns, &base.compress_ns),
            median(&contender.decompress_ns),
            ratio(&contender.decompress_ns, &base.decompress_ns),
            (bytes + in_vain) as f64 * 100.0 / (pages.len() * PAGE_SIZE) as f64,
        );
    }
}

/// Runs `run` on each of them; ns each.
fn time<T>(them: &[T], run: impl FnMut(&T)) -> f64 {
    let start = Instant::now();
    them.iter().for_each(run);
    start.elapsed().as_nanos() as f64 / them.len() as f64
}
