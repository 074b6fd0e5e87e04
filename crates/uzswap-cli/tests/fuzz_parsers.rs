//! Goal: for any file or command line, a parser returns a value or an error: no panic, no hang, no
//! memory or output out of proportion.
//! Method: valid inputs damaged from seeds, and random ones; an allocator that notes the largest
//! request. `UZSWAP_FUZZ_SECONDS=N` goes on for longer.
//! Blind to: objects (see `lzo`), and what the libraries of other compressors do with theirs.

#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

use uzswap_testing::fuzz;
mod support;
use uzswap_testing::varied_pages;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Parser;
use fuzz::forge::{forge_snapshot, forge_trace};
use fuzz::{edge, mutate, seeds};
use support::{Lab, small_core};
use uzswap::compressor::CompressorKind;
use uzswap::page::{PAGE_SIZE, PageKey};
use uzswap::zpool::ZpoolKind;
use uzswap::zswap::snapshot::{SnapshotOptions, SnapshotReader};
use uzswap::zswap::{Incompressible, TenantId, TenantOptions, Zswap, ZswapOptions};
use uzswap_cli::cli::Cli;
use uzswap_cli::corpus::capture::capture_file;
use uzswap_cli::corpus::page_set::{PageSet, side_path};
use uzswap_cli::corpus::sample::SamplePlan;
use uzswap_cli::corpus::size_list::SizeList;
use uzswap_cli::corpus::workload::Workload;
use uzswap_cli::measure::replay::{FreedHalf, Trace, replay_trace};
use varied_pages::Random;

/// The system's allocator, and the largest request.
struct Noting;

static LARGEST_REQUEST: AtomicUsize = AtomicUsize::new(0);

/// More than anything here needs: chunks of 1 MiB are read at a time.
const REQUEST_BYTES_MAX: usize = 8 << 20;

// SAFETY: every call is passed to the system's allocator as it came.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST_REQUEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST_REQUEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        LARGEST_REQUEST.fetch_max(bytes, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Noting = Noting;

fn check_requests(what: &str, seed: u64) {
    let largest = LARGEST_REQUEST.load(Ordering::Relaxed);
    assert!(largest <= REQUEST_BYTES_MAX, "{what}, seed {seed}: {largest} bytes at once");
}

/// Replaces a number or another value of a JSON text.
fn replace_value(random: &mut Random, text: &mut Vec<u8>) {
    let starts: Vec<usize> = (2..text.len()).filter(|&at| text[at - 2..at] == *b": ").collect();
    let Some(&start) = starts.get(random.below(starts.len().max(1))) else { return };
    let end = text[start..].iter().position(|byte| b",]}\n".contains(byte));
    let end = end.map_or(text.len(), |bytes| start + bytes);
    let value = match random.below(8) {
        0 => "-1".to_owned(),
        1 => "1e999".to_owned(),
        2 => "null".to_owned(),
        3 => "[".repeat(random.length(1, 4000)),
        4 => "\"\\ud800\"".to_owned(),
        _ => edge(random).to_string(),
    };
    text.splice(start..end, value.bytes());
}

/// A directory in memory, where there is one: page sets are synced to disk.
fn quick_lab() -> Lab {
    match tempfile::tempdir_in("/dev/shm") {
        Ok(directory) => Lab { directory },
        Err(_) => Lab::new(),
    }
}

#[test]
fn snapshots() {
    let options = ZswapOptions::default().shards(1);
    let zswap = Zswap::new(options).unwrap();
    let tenant = zswap.add_tenant(TenantId::ROOT, TenantOptions::default()).unwrap();
    let mut page = [0; PAGE_SIZE];
    for key in 0..12 {
        page[..100].fill(key as u8);
        page[200] = 1;
        zswap.store_for(tenant, PageKey(key), &page).unwrap();
    }
    zswap.store(PageKey(99), &[5; PAGE_SIZE]).unwrap();
    let mut valid = Vec::new();
    zswap.snapshot_to(&mut valid, SnapshotOptions::default()).unwrap();
    let mut forged = valid.clone();
    forge_snapshot(&mut forged);
    assert!(forged == valid, "the forger knows the layout");
    let (mut read, mut restored) = (0, 0);
    for seed in seeds(1500) {
        let mut random = Random::new(seed);
        let mut bytes = valid.clone();
        match random.below(4) {
            0 => mutate(&mut random, &mut bytes),
            1 => {
                // A number of the header's JSON.
                let json = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
                let places: Vec<usize> = (17..16 + json)
                    .filter(|&at| bytes[at - 1] == b':' && bytes[at].is_ascii_digit())
                    .collect();
                let at = places[random.below(places.len())];
                let end = at + bytes[at..].iter().position(|byte| !byte.is_ascii_digit()).unwrap();
                let number = edge(&mut random).to_string();
                let longer = json + number.len() - (end - at);
                bytes.splice(at..end, number.bytes());
                bytes[12..16].copy_from_slice(&(longer as u32).to_le_bytes());
            }
            2 => {
                for _ in 0..1 + random.below(3) {
                    let at = random.below(bytes.len());
                    bytes[at] = random.byte();
                }
            }
            _ => {
                let at = random.below(bytes.len() - 8);
                bytes[at..at + 8].copy_from_slice(&edge(&mut random).to_le_bytes());
            }
        }
        if random.below(4) > 0 {
            forge_snapshot(&mut bytes);
        }
        if let Ok(mut reader) = SnapshotReader::new("fuzz", &bytes[..]) {
            while let Ok(Some(block)) = reader.next_block() {
                assert!(block.pages().all(|page| page.form.bytes() <= PAGE_SIZE));
            }
            read += u64::from(reader.summary().is_some());
            let reader = SnapshotReader::new("fuzz", &bytes[..]).unwrap();
            drop(reader.header().stats.prometheus());
            if let Ok((zswap, _)) = Zswap::new(options).unwrap().restore_from(reader) {
                zswap.audit().unwrap();
                drop(zswap.stats());
                restored += 1;
            }
        }
        check_requests("snapshots", seed);
    }
    assert!(read > 20 && restored > 20, "{read} were read and {restored} restored");
}

#[test]
fn traces() {
    let lab = quick_lab();
    let path = lab.path("trace");
    // Key by key a page, a word, a load, a free.
    let (mut events, mut contents) = (Vec::new(), Vec::new());
    for key in 0..40_u8 {
        let mut page = [key; PAGE_SIZE];
        page[7] = 200;
        events.extend([0, 1, key, key, 1, 1, key]);
        events.extend([key; 8]);
        events.extend([2, 1, key, 3, 1, key]);
        contents.extend(page);
    }
    let totals = [80, 40, 40, 40, 40, 160];
    let valid = forge_trace(&events, &contents, Some(totals), None);
    fs::write(&path, &valid).unwrap();
    let trace = Trace::read(&path).expect("the forger knows the layout");
    assert!(trace.info().complete && trace.info().totals.events() == 160);
    let (mut read, mut cut, mut refused) = (0, 0, 0);
    for seed in seeds(3000) {
        let mut random = Random::new(seed);
        let bytes = match random.below(3) {
            0 => {
                let mut bytes = valid.clone();
                mutate(&mut random, &mut bytes);
                bytes
            }
            _ => {
                let mut events = events.clone();
                match random.below(3) {
                    0 => mutate(&mut random, &mut events),
                    _ => {
                        let at = random.below(events.len());
                        events[at] ^= 1 << random.below(8);
                    }
                }
                let pages = if random.below(4) == 0 { 1 + random.below(40) } else { 40 };
                let totals = (random.below(2) > 0).then_some(totals);
                let contents = &contents[..pages * PAGE_SIZE];
                forge_trace(&events, contents, totals, Some(&mut random))
            }
        };
        fs::write(&path, &bytes).unwrap();
        match Trace::read(&path) {
            Ok(trace) => {
                let info = trace.info();
                assert!(info.bytes <= bytes.len() as u64, "seed {seed}");
                assert!(info.totals.events() > 0, "seed {seed}");
                read += 1;
                cut += u64::from(!info.complete);
                let zswap = || Zswap::new(ZswapOptions::bare()).unwrap();
                let run = replay_trace(&trace, "lz4", zswap).expect("the pages are right");
                assert_eq!(run.traced.unwrap().counts.stores, info.totals.stores, "seed {seed}");
            }
            Err(error) => {
                assert!(!error.is_machine() && error.to_string().len() > 20, "{error}");
                refused += 1;
            }
        }
        check_requests("trace", seed);
    }
    assert!(read > 50 && cut > 20 && refused > 100, "{read} read, {cut} cut, {refused} refused");
}

#[test]
fn page_sets() {
    let lab = quick_lab();
    let path = lab.path("pages");
    fs::write(lab.path("raw"), vec![7; 3 * PAGE_SIZE]).unwrap();
    capture_file(&lab.path("raw"), &path, SamplePlan::ALL).unwrap();
    let pages = fs::read(&path).unwrap();
    let side = fs::read(side_path(&path)).unwrap();
    // Two ranges, so that there is something to add up.
    let mut two: serde_json::Value = serde_json::from_slice(&side).unwrap();
    let mut second = two["ranges"][0].clone();
    two["ranges"][0]["pages"] = 1.into();
    second["pages"] = 2.into();
    two["ranges"].as_array_mut().unwrap().push(second);
    let side = serde_json::to_vec_pretty(&two).unwrap();
    let mut read = 0;
    for seed in seeds(3000) {
        let mut random = Random::new(seed);
        let (mut pages, mut side) = (pages.clone(), side.clone());
        match random.below(8) {
            0 => mutate(&mut random, &mut pages),
            1 => mutate(&mut random, &mut side),
            2 => side = random.bytes(100),
            _ => {
                for _ in 0..1 + random.below(3) {
                    replace_value(&mut random, &mut side);
                }
            }
        }
        fs::write(&path, &pages).unwrap();
        fs::write(side_path(&path), &side).unwrap();
        match PageSet::read(&path) {
            Ok(set) => {
                assert_eq!(set.pages.as_flattened(), pages, "seed {seed}");
                assert_eq!(set.about.page_count, set.pages.len() as u64, "seed {seed}");
                let in_ranges = set.about.ranges.iter().map(|range| u128::from(range.pages));
                let ranges_add_up = in_ranges.sum::<u128>() == u128::from(set.about.page_count);
                assert!(set.about.ranges.is_empty() || ranges_add_up, "seed {seed}");
                read += 1;
            }
            Err(error) => assert!(!error.is_machine() && error.to_string().len() > 20, "{error}"),
        }
        check_requests("page set", seed);
    }
    assert!(read > 0);
}

#[test]
fn core_dumps() {
    let lab = quick_lab();
    let (path, out) = (lab.path("core"), lab.path("pages"));
    let core = small_core();
    let headers = 64 + 4 * 56 + 100;
    let (mut captured, mut refused) = (0, 0);
    for seed in seeds(1500) {
        let mut random = Random::new(seed);
        let mut damaged = core.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(headers / 4) * 4;
            match random.below(4) {
                0 => mutate(&mut random, &mut damaged),
                1 => damaged[..headers.min(core.len())][at] = random.byte(),
                2 => damaged[at..at + 4].copy_from_slice(&(edge(&mut random) as u32).to_le_bytes()),
                _ => damaged[at..at + 8].copy_from_slice(&edge(&mut random).to_le_bytes()),
            }
            damaged.resize(damaged.len().max(core.len()), 0);
        }
        if random.below(4) == 0 {
            damaged.truncate(random.below(damaged.len()));
        }
        fs::write(&path, &damaged).unwrap();
        match capture_file(&path, &out, SamplePlan::ALL) {
            Ok(about) => {
                assert_eq!(PageSet::read(&out).unwrap().about, about, "seed {seed}");
                // Each of up to four segments may end inside a page.
                let most = damaged.len() / PAGE_SIZE + 5;
                assert!(about.page_count <= most as u64, "seed {seed}: {} pages", about.page_count);
                fs::remove_file(&out).unwrap();
                fs::remove_file(side_path(&out)).unwrap();
                captured += 1;
            }
            Err(error) => {
                assert!(!error.is_machine(), "seed {seed}: {error}");
                refused += 1;
            }
        }
        assert_eq!(lab.files(), ["core"], "seed {seed}");
        check_requests("core dump", seed);
    }
    assert!(captured * 10 > refused && refused * 10 > captured, "{captured}, {refused}");
}

#[test]
fn size_lists() {
    let list: Vec<u8> =
        (0..50).flat_map(|n| format!("{} # {n}\r\n", n * 83).into_bytes()).collect();
    for seed in seeds(20_000) {
        let mut random = Random::new(seed);
        let mut text = list.clone();
        match random.below(4) {
            0 => text = random.bytes(60),
            _ => mutate(&mut random, &mut text),
        }
        match SizeList::parse(&text[..], Path::new("list")) {
            Ok(sizes) => {
                let lines = text.split(|&byte| byte == b'\n').count();
                assert!((1..=lines).contains(&sizes.page_count()), "seed {seed}");
                let mut page = [0; PAGE_SIZE];
                (0..sizes.page_count()).for_each(|number| sizes.make_page(number, &mut page));
            }
            Err(error) => assert!(error.to_string().len() < 400, "seed {seed}: {error}"),
        }
        check_requests("size list", seed);
    }
}

/// A parsed value means the same once it is printed.
fn check_name<T: FromStr + Display + PartialEq>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert!(value.to_string().parse().is_ok_and(|again: T| again == value), "{text}");
    }
}

#[test]
fn names_and_the_command_line() {
    let words = "lz4 lzo lzo-rle zstd:19 deflate:0 none zsmalloc zbud z3fold zblock packed half \
                 odd reject store-as-is mixed json-tree 512M 1.5GiB .5K 99999999T 2s 500ms peak \
                 exit zbud=8 -- - : = 18446744073709551615 -1 1e9";
    let words: Vec<&str> = words.split_whitespace().collect();
    let flags = [
        ["compare", "--compressor"],
        ["compare", "--zpool"],
        ["compare", "--object-header"],
        ["compare", "--at"],
        ["compare", "--runs"],
        ["classes", "--chain-size"],
        ["workload", "--size"],
    ];
    for seed in seeds(6000) {
        let mut random = Random::new(seed);
        let mut text = words[random.below(words.len())].as_bytes().to_vec();
        if random.below(4) > 0 {
            mutate(&mut random, &mut text);
        }
        let text = String::from_utf8_lossy(&text);
        check_name::<CompressorKind>(&text);
        check_name::<ZpoolKind>(&text);
        check_name::<Incompressible>(&text);
        check_name::<FreedHalf>(&text);
        check_name::<Workload>(&text);
        let [command, flag] = flags[random.below(flags.len())];
        let _ = Cli::try_parse_from(["uzswap", command, flag, &text]);
        check_requests("name", seed);
    }
}
