//! Code that the benchmarks share: pages, peers, statistics.

#![allow(dead_code, reason = "each benchmark is a crate of its own and uses a part")]

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;
use uzswap::compressor::{Compressor, OUTPUT_BYTES};
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::SplitMix64;
use uzswap::zswap::Zswap;
use uzswap_cli::corpus::capture::capture_workload;
use uzswap_cli::corpus::workload::Workload;
use uzswap_sys::process::{self, trim_heap};

/// Whether this is a real run (`cargo bench`) or a look whether it works (`cargo test --benches`).
pub(crate) fn is_full_run() -> bool {
    std::env::args().any(|arg| arg == "--bench")
}

/// A number from the environment, for more rounds than the default.
pub(crate) fn number_from_env(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

/// The pages to measure: the file that `UZSWAP_CORPUS` names, or the built-in workload's, captured
/// from a child process.
pub(crate) struct Corpus {
    path: PathBuf,
    _folder: Option<TempDir>,
}

impl Corpus {
    pub(crate) fn new() -> Corpus {
        if let Some(path) = std::env::var_os("UZSWAP_CORPUS") {
            return Corpus { path: path.into(), _folder: None };
        }
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("workload.pages");
        let bytes = if is_full_run() { 256 << 20 } else { 8 << 20 };
        let about = capture_workload(Workload::Mixed, 1, bytes, &path).unwrap();
        println!("{}: {} pages", about.origin, about.page_count);
        Corpus { path, _folder: Some(folder) }
    }

    pub(crate) fn path(&self) -> &str {
        self.path.to_str().expect("a path in UTF-8")
    }
}

/// Runs this benchmark again, in a fresh process, as one contender; the figures it prints.
pub(crate) fn run_contender(args: &[&str]) -> Vec<f64> {
    let exe = std::env::current_exe().unwrap();
    let output = Command::new(exe).arg("--contender").args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// The contender of this process, with its arguments.
pub(crate) fn contender_args() -> Option<Vec<String>> {
    let mut args = std::env::args().skip(1);
    (args.next().as_deref() == Some("--contender")).then(|| args.collect())
}

pub(crate) fn read_pages(path: &str) -> Vec<Page> {
    let bytes = std::fs::read(path).unwrap();
    let (pages, rest) = bytes.as_chunks::<PAGE_SIZE>();
    assert!(rest.is_empty());
    pages.to_vec()
}

/// Anonymous memory of this process, in bytes, counted page by page.
pub(crate) fn anonymous_bytes() -> usize {
    process::anonymous_bytes().unwrap() as usize
}

/// 0 to `count` in an order without neighbours.
pub(crate) fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut words = SplitMix64::new(1);
    for i in (1..count).rev() {
        order.swap(i, words.next_word() as usize % (i + 1));
    }
    order
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median of the rounds' ratios, and their range.
pub(crate) fn ratio(mine: &[f64], base: &[f64]) -> String {
    let mut ratios: Vec<f64> = mine.iter().zip(base).map(|(mine, base)| mine / base).collect();
    ratios.sort_by(f64::total_cmp);
    format!("{:.3} ({:.3} to {:.3})", median(&ratios), ratios[0], ratios[ratios.len() - 1])
}

/// Something that keeps compressed pages.
pub(crate) trait Store: Send {
    fn store(&mut self, key: usize, page: &Page);
    fn load(&mut self, key: usize, page: &mut Page);
    fn remove(&mut self, key: usize);
    /// Gives back what can be given back after removals.
    fn compact(&mut self);
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

/// The compressor and a copy: what any store pays.
pub(crate) struct Bare<'a> {
    compressor: &'a dyn Compressor,
    out: Box<[u8; OUTPUT_BYTES]>,
    kept: Vec<u8>,
    /// Where a page's bytes start, and how many there are: 48 and 16 bits.
    places: Vec<u64>,
}

impl<'a> Bare<'a> {
    /// Room for `count` pages, none of it touched.
    pub(crate) fn new(compressor: &'a dyn Compressor, count: usize) -> Self {
        let kept = Vec::with_capacity(count * PAGE_SIZE);
        Bare { compressor, out: Box::new([0; OUTPUT_BYTES]), kept, places: vec![0; count] }
    }

    /// Compressed bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.places.iter().map(|place| *place as usize & 0xffff).sum()
    }

    /// Touches the room, so that storing does not.
    pub(crate) fn touched(mut self) -> Self {
        self.kept.resize(self.kept.capacity(), 1);
        self.kept.clear();
        self
    }
}

impl Store for Bare<'_> {
    fn store(&mut self, key: usize, page: &Page) {
        let bytes = compress_or_copy(self.compressor, page, &mut self.out);
        self.places[key] = (self.kept.len() << 16 | bytes) as u64;
        self.kept.extend_from_slice(&self.out[..bytes]);
    }

    fn load(&mut self, key: usize, page: &mut Page) {
        let (start, bytes) = (self.places[key] as usize >> 16, self.places[key] as usize & 0xffff);
        let object = &self.kept[start..start + bytes];
        decompress_or_copy(self.compressor, object, page);
    }

    /// Only the compressed bytes that are left are counted.
    fn remove(&mut self, key: usize) {
        self.places[key] &= !0xffff;
    }

    fn compact(&mut self) {}
}

/// A hash map from keys to vectors of exactly the compressed length.
pub(crate) struct Plain<'a> {
    pub(crate) compressor: &'a dyn Compressor,
    pub(crate) map: HashMap<u64, Vec<u8>>,
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

    fn remove(&mut self, key: usize) {
        self.map.remove(&(key as u64));
    }

    /// More than a plain program does: a smaller table, and malloc's free pages to the kernel.
    fn compact(&mut self) {
        self.map.shrink_to_fit();
        trim_heap();
    }
}

/// The store.
pub(crate) struct Shared<'a>(pub(crate) &'a Zswap);

impl Store for Shared<'_> {
    fn store(&mut self, key: usize, page: &Page) {
        self.0.store(PageKey(key as u64), page).unwrap();
    }

    fn load(&mut self, key: usize, page: &mut Page) {
        assert!(self.0.load(PageKey(key as u64), page).unwrap());
    }

    fn remove(&mut self, key: usize) {
        assert!(self.0.invalidate(PageKey(key as u64)));
    }

    fn compact(&mut self) {
        self.0.compact();
    }
}
