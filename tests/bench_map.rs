//! Goal: `uzswap bench map` measures what it says, and `compare --mapping` replays with it.
//! Method: the real binary, for moments; figures held against each other, never against a time.

use std::process::{Command, Output};

use serde_json::Value;
use uzswap::lab::SplitMix64;
use uzswap::page::PAGE_SIZE;

fn uzswap(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uzswap")).args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = uzswap(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn processors() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

#[test]
fn every_method_and_mode_is_counted_on_every_processor() {
    let report = json(&["bench", "map", "--seconds", "0.05", "--json"]);
    assert_eq!(report["object"]["slot_bytes"], 1680);
    assert_eq!(report["object"]["split"], serde_json::json!([736, 944]));
    assert_eq!(report["cpus"].as_array().unwrap().len(), processors());
    assert_eq!((&report["touch"], &report["seconds"]), (&Value::Bool(false), &0.05.into()));
    let methods = report["methods"].as_array().unwrap();
    let names: Vec<String> = methods
        .iter()
        .map(|method| {
            let name = |field: &str| method[field].as_str().unwrap().to_owned();
            format!("{} {}", name("mapping"), name("mode"))
        })
        .collect();
    let expected = ["copy", "vm", "contiguous"]
        .map(|mapping| ["RO", "WO", "RW"].map(|mode| format!("{mapping} {mode}")));
    assert_eq!(names, expected.concat());
    for method in methods {
        let workers = method["workers"].as_array().unwrap();
        assert_eq!(workers.len(), processors());
        let mut mappings = 0;
        for worker in workers {
            mappings += worker["mappings"].as_u64().unwrap();
            assert!(worker["mappings"].as_u64().unwrap() >= 10);
            let costs = worker["cycles_per_map_by_round"].as_array().unwrap();
            assert_eq!(costs.len(), 10);
            let spread = |name: &str| worker["cycles_per_map"][name].as_f64().unwrap();
            let (min, median, max) = (spread("min"), spread("median"), spread("max"));
            assert!(0.0 < min && min <= median && median <= max, "{worker}");
            let mean = worker["cycles"].as_f64().unwrap() / worker["mappings"].as_f64().unwrap();
            assert!(min <= mean && mean <= max, "{worker}");
        }
        let a_second = method["mappings_per_second"].as_f64().unwrap();
        assert!((a_second - mappings as f64 / 0.05).abs() < 1.0, "{method}");
        assert!(method["over_copy"]["median"].as_f64().unwrap() > 0.0);
        assert!(method["mapping"] != "copy" || method["over_copy"]["max"] == 1.0);
    }
}

#[test]
fn one_worker_prints_what_the_original_printed() {
    let output = uzswap(&["bench", "map", "--single-threaded", "--touch", "--seconds", "0.05"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("uzswap ") && text.contains("bench map: 1 worker pinned to"),
        "{text}"
    );
    assert!(text.contains("all touched"), "{text}");
    for column in ["CPU", "CYCLES", "MAPPINGS", "CYCLES/MAP", "/ copy"] {
        assert!(text.contains(column), "{text}");
    }
    for method in ["copy", "vm", "contiguous"] {
        for mode in ["RO", "WO", "RW"] {
            let lines =
                text.lines().filter(|line| line.starts_with(&format!("{method:10} {mode}")));
            assert_eq!(lines.count(), 2, "{text}");
        }
    }
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
}

#[test]
fn other_seconds_than_it_can_do_are_refused() {
    for seconds in ["0", "-1", "NaN", "soon", "1e9"] {
        let output = uzswap(&["bench", "map", "--seconds", seconds]);
        assert_eq!(output.status.code(), Some(2), "--seconds {seconds}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("0.01 to 3600"), "{message}");
    }
}

#[test]
fn compare_takes_the_same_pages_with_every_mapping() {
    let folder = tempfile::TempDir::new().unwrap();
    let corpus = folder.path().join("pages");
    let mut words = SplitMix64::new(1);
    let mut pages = vec![[0_u8; PAGE_SIZE]; 1000];
    for (n, page) in pages.iter_mut().enumerate() {
        // Up to 3800 bytes that do not compress.
        page[..n * 37 % 3800].fill_with(|| words.next_word() as u8);
    }
    std::fs::write(&corpus, pages.as_flattened()).unwrap();
    let corpus = corpus.to_str().unwrap();
    let compare = |mapping: &str| {
        json(&[
            "compare",
            "--corpus",
            corpus,
            "--runs",
            "1",
            "--zpool",
            "zsmalloc",
            "--mapping",
            mapping,
            "--json",
        ])
    };
    let reports = ["contiguous", "copy", "vm"].map(compare);
    for (report, mapping) in reports.iter().zip(["contiguous", "copy", "vm"]) {
        assert_eq!(report["settings"]["mapping"], mapping);
        let (run, base) = (&report["runs"][0], &reports[0]["runs"][0]);
        let figures = ["pool_total_size", "pool_after_free_bytes", "pool_after_compact_bytes"];
        assert!(figures.iter().all(|&figure| run[figure] == base[figure]), "{run}, {base}");
        // Shared memory counts: a pool of it shows in the resident size.
        let [pool, rss] = ["pool_total_size", "rss_bytes"].map(|name| run[name].as_u64().unwrap());
        assert!(pool > 1 << 20 && rss > pool / 10 * 9, "{mapping}: {run}");
    }
    let output = uzswap(&["compare", "--mapping", "none"]);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("unknown mapping 'none'; one of: copy, vm, contiguous"), "{message}");
}
