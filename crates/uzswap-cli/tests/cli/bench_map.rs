//! Goal: `uzswap bench map` measures what it says, and `compare --mapping` replays with it.
//! Method: the real binary, for moments; figures held against each other, never against a time.

use crate::support::{expect_error, uzswap};
use serde_json::Value;

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
    let report = json(&[
        "compare",
        "--size",
        "4M",
        "--runs",
        "1",
        "--zpool",
        "zsmalloc,zbud",
        "--mapping",
        "contiguous,copy,vm",
        "--compressor",
        "lz4",
        "--json",
    ]);
    let runs = report["combinations"].as_array().unwrap();
    let name = |run: &Value| run["name"].as_str().unwrap().to_owned();
    let names: Vec<String> = runs.iter().map(name).collect();
    assert_eq!(names, ["zsmalloc contiguous", "zsmalloc copy", "zsmalloc vm", "zbud"]);
    assert_eq!(runs[3]["mapping"], Value::Null);
    for run in &runs[..3] {
        assert_eq!(run["base"], "zsmalloc contiguous");
        assert_eq!(run["pool_total_size"], runs[0]["pool_total_size"], "{run}");
        // Shared memory counts: a pool of it shows in the resident size.
        let bytes = |of: &str| run[of].as_f64().unwrap();
        assert!(bytes("rss_bytes") > 0.9 * bytes("pool_total_size"), "{run}");
    }
    let output = uzswap(&["compare", "--mapping", "none"]);
    expect_error(&output, 2, &["unknown mapping 'none'; one of: copy, vm, contiguous"]);
}
