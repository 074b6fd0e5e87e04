//! Cost of each compressor per page, against lz4, and its compression ratio.
//!
//! All compressors take turns in one process every few pages, three times, and the fastest of the
//! three counts: else other work on the machine would decide. The pages are in cache then. A figure
//! is the median of the rounds; a ratio is the median of the rounds' ratios, with their range.
//! Same-filled pages are left out, as a store never compresses them; pages that a compressor does
//! not shrink are compressed in vain and not decompressed.
//!
//! `cargo bench --bench codec` measures pages of the built-in workload, those of them that are half
//! zeros or more, and made-up ones with runs of zeros. `UZSWAP_CORPUS=FILE` takes another corpus
//! for the first two, `UZSWAP_ROUNDS=N` more rounds, `UZSWAP_CODECS=lz4,lz4~auto` other
//! compressors, also behind a filter (the first is the base). Without `--bench` it runs once over
//! few pages, to see that it works.

mod common;

use std::hint::black_box;
use std::time::Instant;

use common::{median, ratio};
use uzswap::compressor::{Compressor, CompressorKind, FilteredKind, OUTPUT_BYTES};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::random::SplitMix64;
use uzswap::same_filled::SameFilled;
use uzswap_sys::shuffle::{shuffle, unshuffle};

/// Pages that a compressor takes before it is another's turn: under a millisecond for the fast.
const TURN_PAGES: usize = 64;

/// Times that the compressors take turns over the same pages; the fastest counts.
const TURN_REPEATS: usize = 3;

/// Pages of a set, at most: few enough for many rounds.
const PAGES_MAX: usize = 16_384;

fn main() {
    let corpus = common::Corpus::new();
    let (pages_max, rounds) = if common::is_full_run() { (PAGES_MAX, 9) } else { (64, 1) };
    let rounds = common::number_from_env("UZSWAP_ROUNDS", rounds);
    let codecs = std::env::var("UZSWAP_CODECS").unwrap_or(CompressorKind::NAMES.join(","));
    let codecs: Vec<Box<dyn Compressor>> =
        codecs.split(',').map(|name| name.parse::<FilteredKind>().expect(name).build()).collect();

    let mut pages = common::read_pages(corpus.path());
    pages.retain(|page| SameFilled::default().word(page).is_none());
    let zeros = |page: &Page| page.iter().filter(|&&byte| byte == 0).count();
    let half_zeros = pages.iter().filter(|page| zeros(page) >= PAGE_SIZE / 2).copied().collect();
    let sets: [(&str, Vec<Page>); 3] = [
        ("corpus", pages),
        ("corpus, half zeros or more", half_zeros),
        ("made up, 90 % zeros in runs", pages_of_zeros(pages_max)),
    ];
    measure_shuffle(&sets[0].1, rounds);
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
    /// None of a page that does not shrink.
    objects: Vec<Option<Vec<u8>>>,
    compress_ns: Vec<f64>,
    decompress_ns: Vec<f64>,
}

fn measure(name: &str, pages: &[Page], codecs: &[Box<dyn Compressor>], rounds: usize) {
    let mut out = [0; OUTPUT_BYTES];
    let mut contenders = Vec::new();
    for codec in codecs {
        let object = |page| codec.compress(page, &mut out).ok().map(|bytes| out[..bytes].to_vec());
        let objects: Vec<Option<Vec<u8>>> = pages.iter().map(object).collect();
        let (compress_ns, decompress_ns) = (Vec::new(), Vec::new());
        contenders.push(Contender { codec: &**codec, objects, compress_ns, decompress_ns });
    }
    let mut page = [0; PAGE_SIZE];
    for _ in 0..rounds {
        let mut ns = vec![[0; 2]; codecs.len()];
        for (turn, pages) in pages.chunks(TURN_PAGES).enumerate() {
            let mut fastest = vec![[u128::MAX; 2]; codecs.len()];
            for _ in 0..TURN_REPEATS {
                for (contender, fastest) in contenders.iter().zip(&mut fastest) {
                    let codec = contender.codec;
                    let taken = time(pages, |page| drop(black_box(codec.compress(page, &mut out))));
                    fastest[0] = taken.min(fastest[0]);
                    let objects = &contender.objects[turn * TURN_PAGES..][..pages.len()];
                    let taken = time(objects, |object| {
                        if let Some(object) = object {
                            codec.decompress(object, &mut page).unwrap();
                            black_box(&page);
                        }
                    });
                    fastest[1] = taken.min(fastest[1]);
                }
            }
            for (ns, fastest) in ns.iter_mut().zip(fastest) {
                *ns = [ns[0] + fastest[0], ns[1] + fastest[1]];
            }
        }
        for (contender, [compress_ns, decompress_ns]) in contenders.iter_mut().zip(ns) {
            let objects = contender.objects.iter().flatten().count();
            contender.compress_ns.push(compress_ns as f64 / pages.len() as f64);
            contender.decompress_ns.push(decompress_ns as f64 / objects as f64);
        }
    }
    let base = &contenders[0];
    let title = format!("{name}: {} pages, ns/page", pages.len());
    println!("\n{title:44} compress / {0:23} decompress / {0:21} compressed", base.codec.name());
    for contender in &contenders {
        let bytes = |object: &Option<Vec<u8>>| object.as_ref().map_or(PAGE_SIZE, Vec::len);
        let bytes: usize = contender.objects.iter().map(bytes).sum();
        println!(
            "  {:28} {:9.1} {:>28} {:9.1} {:>28} {:9.1} %",
            contender.codec.name(),
            median(&contender.compress_ns),
            ratio(&contender.compress_ns, &base.compress_ns),
            median(&contender.decompress_ns),
            ratio(&contender.decompress_ns, &base.decompress_ns),
            bytes as f64 * 100.0 / (pages.len() * PAGE_SIZE) as f64,
        );
    }
}

/// Cost of the byte shuffle and of the way back: of the fastest round, as both always do the same.
fn measure_shuffle(pages: &[Page], rounds: usize) {
    let mut page = [0; PAGE_SIZE];
    for (name, way) in [("shuffle", shuffle as fn(&[u8], &mut [u8])), ("unshuffle", unshuffle)] {
        let round = |pages: &[Page]| {
            let taken = time(pages, |from| {
                way(from, &mut page);
                black_box(&page);
            });
            taken as f64 / pages.len() as f64
        };
        // In cache, as a compressor leaves them.
        let ns = pages.chunks(TURN_PAGES).cycle().take(rounds * TURN_PAGES).map(round);
        println!("{name}: {:.1} ns/page", ns.fold(f64::INFINITY, f64::min));
    }
}

/// Runs `run` on each of them; ns together.
fn time<T>(them: &[T], run: impl FnMut(&T)) -> u128 {
    let start = Instant::now();
    them.iter().for_each(run);
    start.elapsed().as_nanos()
}
