//! Goal: of large memory a sample is read, in bounded memory. Its figures are scaled to all of it,
//! with intervals that hold.
//! Method: the real binary on sparse files, page sets, core dumps, processes and commands. The
//! pages of a sample are looked up in the whole.
//! Blind to: times, and processes that change while they are read.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{
    Lab, capture_to, expect_error, expect_success, has_note, small_core, stdout_of_success, text,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;
use uzswap::page::{PAGE_SIZE, Page};
use uzswap_cli::corpus::capture::{capture_workload, thin_page_set};
use uzswap_cli::corpus::page_set::{About, PageSet};
use uzswap_cli::corpus::sample::SamplePlan;
use uzswap_cli::corpus::workload::Workload;

const UNIT: u64 = 16 * PAGE_SIZE as u64;

fn uzswap(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    stdout_of_success(command.args(arguments).output().unwrap())
}

fn compare(corpus: &Path, flags: &[&str]) -> Value {
    let arguments = ["compare", "--runs", "1", "--json", "--corpus", text(corpus)];
    serde_json::from_str(&uzswap(&[&arguments, flags].concat())).unwrap()
}

/// As [`uzswap`], in 400 MiB of addresses for each process.
fn uzswap_in_little(arguments: &[&str]) -> String {
    let script = "ulimit -v 409600; exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", script, env!("CARGO_BIN_EXE_uzswap")]).args(arguments).output();
    stdout_of_success(output.unwrap())
}

/// Each page of a set by its mapping and address.
fn by_place(set: &PageSet) -> HashMap<(String, u64), Page> {
    let mut pages = set.pages.iter();
    let mut places = HashMap::new();
    for range in &set.about.ranges {
        for (number, page) in (0..range.pages).zip(&mut pages) {
            places.insert((range.name.clone(), range.start + number * PAGE_SIZE as u64), *page);
        }
    }
    assert_eq!(places.len(), set.pages.len());
    places
}

/// Checks that a sample has whole units of the whole: pages of their places, and no gaps.
fn is_part_of(sample: &PageSet, whole: &PageSet) {
    let (part, all) = (by_place(sample), by_place(whole));
    let about = sample.about.sample.expect("it is a sample");
    assert_eq!(about.of_pages, whole.about.page_count);
    assert_eq!(about.pages, sample.pages.len() as u64);
    for (place, page) in &part {
        let other = all.get(place).unwrap_or_else(|| panic!("{place:x?} is new"));
        let differ = (0..PAGE_SIZE).filter(|&at| other[at] != page[at]).collect::<Vec<_>>();
        assert!(differ.is_empty(), "{place:x?} has changed at {differ:?}");
    }
    let windows: HashSet<_> = part.keys().map(|(name, at)| (name, at / UNIT)).collect();
    for place @ (name, at) in all.keys() {
        if windows.contains(&(name, at / UNIT)) {
            assert!(part.contains_key(place), "{at:x} is left out of its unit");
        }
    }
}

/// A process that holds a workload.
struct Holder {
    child: Child,
}

impl Holder {
    fn new(workload: &str, size: &str) -> Holder {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
        command.args(["workload", workload, "--size", size, "--hold"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // On one processor: the kernel writes the number of the processor into memory of a thread
        // (rseq).
        let all = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap());
        sched_setaffinity(None, &one).unwrap();
        let child = command.spawn();
        sched_setaffinity(None, &all).unwrap();
        let mut child = child.unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        // The holder changes no page any more once it sleeps in its read.
        let stat = format!("/proc/{}/stat", child.id());
        while !fs::read_to_string(&stat).unwrap().contains(") S ") {
            std::thread::sleep(Duration::from_millis(1));
        }
        Holder { child }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_file_of_64_gib_takes_little_memory() {
    let lab = Lab::new();
    let path = lab.path("large");
    let file = File::create(&path).unwrap();
    file.set_len(64 << 30).unwrap();
    (0..64).for_each(|at| file.write_all_at(&[7; 100_000], at << 30).unwrap());
    let source = ["compare", "--runs", "1", "--corpus", text(&path), "--sample"];
    let compared = |flags: &[&str]| uzswap_in_little(&[&source, flags].concat());
    let document: Value =
        serde_json::from_str(&compared(&["16M", "--zpool", "zsmalloc", "--json"])).unwrap();
    let sample = &document["corpus"]["sample"];
    assert_eq!((sample["of_pages"].as_u64(), sample["units"].as_u64()), (Some(1 << 24), Some(256)));
    let whole = &document["combinations"][0]["whole"];
    assert!(whole["same_filled_pages"]["high"].as_u64().unwrap() > (1 << 24) * 9 / 10, "{whole}");
    let page = compared(&["16M"]);
    assert!(page.contains("sample    4,096 of 16,777,216 pages (0.024 %), runs of 16, seed 1"));
    assert!(
        page.contains("SCALED TO ALL PAGES") && page.contains("sha256 of the sample"),
        "{page}"
    );
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    let csv = compared(&["2M", "--csv"]);
    assert!(csv.lines().next().unwrap().ends_with(",whole_pool_low_bytes,whole_pool_high_bytes"));
}

#[test]
fn intervals_of_a_sample_have_the_figures_of_the_whole() {
    let lab = Lab::new();
    let whole = lab.path("whole");
    capture_workload(Workload::Mixed, 1, 32 << 20, &whole).unwrap();
    let all = compare(&whole, &["--sample", "all"]);
    assert!(all["corpus"]["sample"].is_null() && all["combinations"][0]["whole"].is_null());
    assert_eq!(compare(&whole, &[])["corpus"], all["corpus"], "it is below the default");
    assert_eq!(compare(&whole, &["--sample", "9G"])["corpus"], all["corpus"]);
    let sampled = compare(&whole, &["--sample", "8M"]);
    assert_eq!(sampled["corpus"]["sample"]["of_pages"], all["corpus"]["pages"]);
    assert_eq!(sampled["corpus"]["origin"], all["corpus"]["origin"]);
    assert_ne!(sampled["corpus"]["sha256"], all["corpus"]["sha256"]);
    for (one, other) in [0, 1, 2].map(|at| (&sampled["combinations"][at], &all["combinations"][at]))
    {
        for (name, truth) in [
            ("pool_bytes", "pool_total_size"),
            ("compressed_bytes", "compressed_bytes"),
            ("same_filled_pages", "same_filled_pages"),
            ("rejected_pages", "rejected_pages"),
        ] {
            let number = |value: &Value| value.as_u64().unwrap();
            let (found, truth) = (&one["whole"][name], number(&other[truth]));
            let (low, high) = (number(&found["low"]), number(&found["high"]));
            assert!(low <= truth && truth <= high, "{name} is {truth}: {found}");
            assert!(low < high && low <= number(&found["estimate"]), "{found}");
        }
    }
    let limited = ["--sample", "8M", "--max-pool", "1M", "--zpool", "zbud"];
    assert!(compare(&whole, &limited)["combinations"][0]["whole"].is_null());
}

#[test]
fn a_process_is_sampled_by_its_units() {
    let lab = Lab::new();
    let holder = Holder::new("mixed", "24M");
    let pid = holder.pid();
    let capture = |name: &str, flags: &[&str]| -> PageSet {
        let path = lab.path(name);
        let flags = [&["--pid", &pid, "--freeze"], flags].concat();
        expect_success(&capture_to(&path).args(flags).output().unwrap());
        PageSet::read(&path).unwrap()
    };
    let whole = capture("whole", &["--sample", "all"]);
    assert_eq!(whole.about.sample, None);
    let sample = capture("sample", &["--sample", "4M"]);
    is_part_of(&sample, &whole);
    let about = sample.about.sample.unwrap();
    assert!((800..1200).contains(&about.pages) && about.seed == 1, "{about:?}");
    assert_eq!(capture("again", &["--sample", "4M"]).about.sha256, sample.about.sha256);
    let other = capture("other", &["--sample", "4M", "--seed", "2"]);
    is_part_of(&other, &whole);
    assert_ne!(other.about.sha256, sample.about.sha256);
    // A page set that is a sample is scaled as one.
    let document = compare(&lab.path("sample"), &["--zpool", "zbud"]);
    assert_eq!(document["corpus"]["sample"]["units"], about.units);
    let live = ["compare", "--pid", &pid, "--sample", "4M", "--runs", "1", "--json"];
    let live: Value = serde_json::from_str(&uzswap(&live)).unwrap();
    assert_eq!(live["corpus"]["sample"]["of_pages"], about.of_pages);
    assert!(live["combinations"][0]["whole"]["pool_bytes"]["low"].as_u64() > Some(5 << 20));
}

#[test]
fn a_smaller_sample_of_a_page_set_has_units_of_all_of_it() {
    let lab = Lab::new();
    let [whole, some, few] = ["whole", "some", "few"].map(|name| lab.path(name));
    let about = capture_workload(Workload::Mixed, 1, 8 << 20, &whole).unwrap();
    let all = PageSet::read(&whole).unwrap();
    let plan = |pages, seed| SamplePlan { pages_max: Some(pages), seed };
    let thin = |from: &Path, about: &About, to: &Path, plan: SamplePlan| {
        thin_page_set(from, about, to, plan).unwrap()
    };
    assert_eq!(thin(&whole, &about, &some, plan(about.page_count, 1)), None);
    let about = thin(&whole, &about, &some, plan(800, 1)).unwrap();
    is_part_of(&PageSet::read(&some).unwrap(), &all);
    assert!((600..=1000).contains(&about.page_count), "{:?}", about.sample);
    // Again, from pages that are a sample already.
    let about = thin(&some, &about, &few, plan(200, 2)).unwrap();
    is_part_of(&PageSet::read(&few).unwrap(), &all);
    assert!((100..=300).contains(&about.page_count), "{:?}", about.sample);
    let read = PageSet::read(&few).unwrap().about;
    assert_eq!((read.sample, read.ranges, read.sha256), (about.sample, about.ranges, about.sha256));
}

#[test]
fn a_command_is_sampled_at_its_peak() {
    let lab = Lab::new();
    let program = env!("CARGO_BIN_EXE_uzswap");
    // The workload holds its memory until its input ends: a second after it has all.
    let input = lab.path("input");
    let script = format!(
        "set -e; mkfifo {input}
         {program} workload numeric --size 16M --hold < {input} & exec 3> {input}
         until grep -q 'RssAnon:.* 1[6-9]... kB' /proc/$!/status; do kill -0 $!; sleep 0.05; done
         sleep 1; exec 3>&-; wait",
        input = text(&input)
    );
    expect_success(&lab.capture(&["--sample", "2M", "--tree", "--", "sh", "-c", &script]));
    let set = lab.read();
    let sample = set.about.sample.unwrap();
    // Units are part-filled in the small processes beside it.
    assert!(sample.of_pages > 4000 && (16..128).contains(&sample.units), "{sample:?}");
    assert!(sample.pages <= sample.units * 16 && sample.pages == set.about.page_count);
    assert!(has_note(&set.about, "of the peak"), "{:?}", set.about.notes);
}

#[test]
fn a_file_is_sampled_by_the_pages_in_it() {
    let lab = Lab::new();
    let raw = lab.path("raw");
    let mut bytes: Vec<u8> =
        (0..2000_u16).flat_map(|number| [number.to_le_bytes(); PAGE_SIZE / 2]).flatten().collect();
    bytes.extend([1; 100]);
    fs::write(&raw, &bytes).unwrap();
    let take = |flags: &[&str]| -> PageSet {
        expect_success(&lab.capture(&[&["--from", text(&raw)], flags].concat()));
        lab.read()
    };
    let whole = take(&[]);
    for seed in ["1", "2", "3"] {
        is_part_of(&take(&["--sample", "2M", "--seed", seed]), &whole);
    }
}

#[test]
fn a_core_dump_is_sampled_without_its_holes() {
    let lab = Lab::new();
    let path = lab.path("core");
    // Its first segment of writable memory, of 2 pages, becomes one of 8 MiB at the file's end.
    let mut core = small_core();
    let segment = 64 + 56;
    let old = u64::from_le_bytes(core[segment + 8..segment + 16].try_into().unwrap());
    let at = (core.len() as u64).next_multiple_of(PAGE_SIZE as u64);
    assert!(old < at);
    let bytes: u64 = 8 << 20;
    core[segment + 8..segment + 16].copy_from_slice(&at.to_le_bytes());
    for field in [32, 40] {
        core[segment + field..segment + field + 8].copy_from_slice(&bytes.to_le_bytes());
    }
    let file = File::create(&path).unwrap();
    file.write_all_at(&core, 0).unwrap();
    file.set_len(at + bytes).unwrap();
    // Every second window has data in it.
    for window in (0..bytes / UNIT).step_by(2) {
        let data: Vec<u8> = (0..UNIT / 2).map(|byte| (byte >> 12) as u8 + 1).collect();
        file.write_all_at(&data, at + window * UNIT).unwrap();
    }
    let take = |flags: &[&str]| -> PageSet {
        expect_success(&lab.capture(&[&["--from", text(&path)], flags].concat()));
        lab.read()
    };
    let whole = take(&[]);
    assert!(whole.about.page_count < 8 * 64 + 100, "{}", whole.about.page_count);
    let sample = take(&["--sample", "1M"]);
    is_part_of(&sample, &whole);
    assert!(sample.about.page_count < whole.about.page_count);
}

#[test]
fn a_side_file_that_does_not_fit_is_refused_before_the_pages_are_read() {
    let lab = Lab::new();
    let path = lab.path("pages");
    let about: About = capture_workload(Workload::Text, 1, 4 << 20, &path).unwrap();
    let wrong = About { page_count: about.page_count + 1, ..about };
    fs::write(lab.path("pages.json"), serde_json::to_vec(&wrong).unwrap()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_uzswap"))
        .args(["compare", "--sample", "1M", "--corpus", text(&path)])
        .output()
        .unwrap();
    expect_error(&output, 2, &["does not belong to", "its page_count is"]);
}
