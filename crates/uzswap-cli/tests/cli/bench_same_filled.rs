//! Goal: `uzswap bench same-filled` counts what is in a corpus and says why when it cannot.
//! Method: the real binary on pages made by hand, whose shares and iterations are known; its text,
//! its JSON, its exit codes. Blind to: times.

use std::fs;
use std::process::{Command, Output, Stdio};

use crate::support::{stdout_alone, text};
use serde_json::Value;
use tempfile::TempDir;

const PAGE: usize = 4096;
const CHECKS: [&str; 4] = ["forward", "backward", "last-first", "vector"];

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uzswap"))
        .args(["bench", "same-filled"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts")
}

/// Standard output of a run that must end well and keep standard error empty.
fn stdout_of(args: &[&str]) -> String {
    stdout_alone(run(args))
}

/// A page of `fill` with another byte in each of `words`.
fn page(fill: u8, words: &[usize]) -> Vec<u8> {
    let mut page = vec![fill; PAGE];
    words.iter().for_each(|word| page[word * 8 + 3] ^= 1);
    page
}

#[test]
fn the_figures_are_those_of_the_pages() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("pages");
    let pages = [
        page(0, &[]),
        page(0, &[]),
        page(0, &[0]),      // seen at once by all
        page(0x11, &[]),    // same-filled, not zero
        page(0x11, &[511]), // a tail: 511 compares forward, 1 for the others
        page(0x11, &[511]), // a duplicate
        page(0x22, &[256]), // 256 from either end, in block 4
        page(0x22, &[1]),   // 1 forward, 511 backward, 2 last-first, in block 0
    ];
    fs::write(&path, pages.concat()).unwrap();
    let args = ["--corpus", text(&path), "--rounds", "3"];
    let report: Value =
        serde_json::from_str(&stdout_of(&[&args[..], &["--json"]].concat())).unwrap();
    let census = &report["census"];
    for (key, count) in
        [("pages", 8), ("zero_pages", 2), ("same_filled_pages", 3), ("duplicate_pages", 1)]
    {
        assert_eq!(census[key], count, "{key}");
    }
    assert_eq!((&report["rounds"], &report["corpus"]["pages"]), (&3.into(), &8.into()));
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<&str> = checks.iter().map(|of| of["check"].as_str().unwrap()).collect();
    assert_eq!(names, CHECKS);
    let all = [
        3 * 511 + 1 + 511 + 511 + 256 + 1,
        3 * 511 + 1 + 1 + 1 + 256 + 511,
        3 * 511 + 1 + 1 + 1 + 257 + 2,
        3 * 9 + 1 + 1 + 1 + 6 + 2,
    ];
    let whole = [(511.0, 1), (511.0, 1), (511.0, 1), (9.0, 64)];
    for ((of, all), (whole, words)) in checks.iter().zip(all).zip(whole) {
        assert_eq!(of["iteration_words"], words);
        assert_eq!(of["all"]["iterations_mean"].as_f64(), Some(f64::from(all) / 8.0), "{of}");
        for setting in ["same_filled", "in_cache"] {
            assert_eq!(of[setting]["iterations_mean"].as_f64(), Some(whole), "{of}");
        }
        for setting in ["all", "same_filled", "in_cache"] {
            for figure in ["ns_per_page", "mb_per_s", "speed_vs_forward"] {
                let [min, median, max] =
                    ["min", "median", "max"].map(|key| of[setting][figure][key].as_f64().unwrap());
                assert!(0.0 < min && min <= median && median <= max, "{of}");
            }
        }
    }
    let page = stdout_of(&args);
    for part in [
        "8 pages",
        "zero 2 (25.00 %), same-filled with those 3 (37.50 %)",
        "ALL PAGES",
        "SAME-FILLED PAGES",
        "only 3 of them",
        "ONE ZERO PAGE, IN CACHE",
        "ITERATIONS: ",
    ] {
        assert!(page.contains(part), "'{part}' is missing:\n{page}");
    }
}

#[test]
fn a_corpus_without_same_filled_pages_says_so() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("pages");
    fs::write(&path, [page(1, &[9]), page(2, &[0])].concat()).unwrap();
    let args = ["--corpus", text(&path), "--rounds", "1"];
    let page = stdout_of(&args);
    assert!(
        page.contains("SAME-FILLED PAGES: this corpus has none") && !page.contains("NaN"),
        "{page}"
    );
    let report: Value =
        serde_json::from_str(&stdout_of(&[&args[..], &["--json"]].concat())).unwrap();
    for of in report["checks"].as_array().unwrap() {
        assert!(of["same_filled"].is_null() && of["in_cache"].is_object(), "{of}");
    }
}

#[test]
fn the_built_in_workload_is_the_default() {
    let page = stdout_of(&["--size", "2M", "--rounds", "1"]);
    assert!(page.contains("workload mixed, seed 1"), "{page}");
    for line in page.lines() {
        assert!(line.len() <= 100 && line.is_ascii() && line == line.trim_end(), "{line}");
    }
}

#[test]
fn bad_input_is_explained() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing");
    let truncated = folder.path().join("truncated");
    fs::write(&truncated, [1; PAGE + 1]).unwrap();
    for (args, words) in [
        (&["--corpus", text(&missing)][..], "No such file"),
        (&["--corpus", text(&truncated)], "truncated in page 1"),
        (&["--corpus", text(folder.path())], "directory"),
        (&["--corpus", text(&truncated), "--seed", "2"], "cannot be used with"),
        (&["--rounds", "0"], "1..=1000"),
        (&["--size", "lots"], "expected a size"),
        (&["--pid", "1"], "unexpected argument"),
    ] {
        let output = run(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: '{words}' is not in: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
