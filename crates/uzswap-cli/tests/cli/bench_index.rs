//! Goal: `uzswap bench index` and `uzswap bench swapload` measure what they are asked for, and say
//! what is wrong with a request.
//! Method: the built command on tiny sizes; its text, JSON and exit codes. Blind to: times.

use std::process::Output;

use crate::support::{expect_error, stdout_alone, uzswap};
use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    uzswap(&[&["bench"], arguments].concat())
}

/// What a run that succeeds prints.
fn stdout(arguments: &[&str]) -> String {
    stdout_alone(bench(arguments))
}

fn json(arguments: &[&str]) -> Value {
    let text = stdout(&[arguments, &["--json"]].concat());
    serde_json::from_str(&text).expect("one JSON document")
}

fn expect_usage(arguments: &[&str], words: &str) {
    let output = bench(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert!(stderr.contains(words), "{arguments:?}: no '{words}' in: {stderr}");
}

const INDEXES: [&str; 7] =
    ["radix", "btree", "btree32", "xarray", "rbtree", "BTreeMap", "hashbrown"];

#[test]
fn every_index_has_a_line_at_every_size_and_order() {
    let text = stdout(&["index", "--keys", "64,1000", "--rounds", "2"]);
    for order in ["sequential", "random", "clusters"] {
        assert!(text.contains(&format!("\n64 KEYS, {order}\n")), "{text}");
        assert!(text.contains(&format!("\n1,000 KEYS, {order}\n")), "{text}");
    }
    for index in INDEXES {
        let lines = text.lines().filter(|line| line.split(' ').next() == Some(index)).count();
        // In the table of times; and in the one of ratios, but for the base.
        assert_eq!(lines, if index == "rbtree" { 6 } else { 12 }, "{index}: {text}");
    }
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
}

#[test]
fn the_json_document_has_times_ratios_and_bytes() {
    let report = json(&["index", "--keys", "5000", "--order", "shuffled", "--rounds", "3"]);
    assert_eq!((&report["rounds"], &report["seed"]), (&Value::from(3), &Value::from(1)));
    let cells = report["cells"].as_array().expect("a list");
    assert_eq!(cells.len(), INDEXES.len());
    for (cell, index) in cells.iter().zip(INDEXES) {
        assert_eq!((&cell["index"], &cell["keys"]), (&Value::from(index), &Value::from(5000)));
        for operation in ["insert", "lookup", "lookup_chain", "replace", "remove"] {
            let ns = &cell[operation]["ns"];
            let [min, median, max] =
                ["min", "median", "max"].map(|name| ns[name].as_f64().expect("a number"));
            assert!(0.0 < min && min <= median && median <= max, "{index}, {operation}: {ns}");
            let ratio = cell[operation]["times_faster"]["median"].as_f64().expect("a number");
            assert!(ratio > 0.0 && (index != "rbtree" || ratio == 1.0), "{index}: {ratio}");
        }
        let counted = cell["counted_bytes_per_entry"].as_f64();
        assert_eq!(counted.is_none(), ["BTreeMap", "hashbrown"].contains(&index), "{index}");
        assert!(counted.is_none_or(|bytes| (8.0..60.0).contains(&bytes)), "{index}: {counted:?}");
        let resident = &cell["resident_bytes_per_entry"]["median"];
        assert!(resident.as_f64().expect("a number") > 4.0, "{index}: {resident}");
    }
}

#[test]
#[cfg(target_env = "gnu")] // elsewhere the heap cannot be asked to give memory back
fn tables_that_were_outgrown_do_not_count() {
    let report = json(&["index", "--keys", "300000", "--index", "hashbrown", "--rounds", "1"]);
    for cell in report["cells"].as_array().expect("a list") {
        // 2^19 buckets of 17 bytes are 29.7 bytes an entry; the table before had half as many.
        let resident = cell["resident_bytes_per_entry"]["median"].as_f64().expect("a number");
        assert!((29.0..33.0).contains(&resident), "{}: {resident}", cell["order"]);
    }
}

#[test]
fn without_the_base_there_are_no_ratios() {
    let arguments = ["index", "--keys", "100", "--order", "random", "--index", "btree,radix"];
    assert!(!stdout(&arguments).contains("x rbtree"));
    assert_eq!(json(&arguments)["cells"][0]["insert"]["times_faster"], Value::Null);
}

#[test]
fn what_is_no_request_is_refused() {
    expect_usage(&["index", "--index", "tree"], "one of: radix, btree");
    expect_usage(&["index", "--order", "sorted"], "one of: sequential, random");
    expect_usage(&["index", "--keys", "0"], "0 is not in 1..=");
    expect_usage(&["index", "--rounds", "0"], "0 is not in 1..=");
    expect_usage(&["index", "--keys", "-5"], "-5");
    expect_usage(&["indexes"], "indexes");
    let output = uzswap(&["index-run"]);
    assert_eq!(output.status.code(), Some(3), "a run without orders");
}

const SMALL_LOAD: [&str; 7] = ["swapload", "--size", "16M", "--seconds", "0.02", "--runs", "3"];

#[test]
fn the_swap_load_has_a_line_for_each_index_and_number_of_shards() {
    let text = stdout(&[&SMALL_LOAD[..], &["--shards", "1,64"]].concat());
    assert!(text.contains("\n1 SHARD: one lock") && text.contains("\n64 SHARDS, a lock"), "{text}");
    for index in ["rbtree", "btree", "radix"] {
        let lines = text.lines().filter(|line| line.split(' ').next() == Some(index)).count();
        assert_eq!(lines, 6, "{index}: {text}");
    }
    assert_eq!(text.matches("an index that took no time").count(), 2, "{text}");
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
}

#[test]
fn the_swap_load_in_json_has_rates_and_the_share_of_the_index() {
    let report = json(&[&SMALL_LOAD[..], &["--index", "btree32,rbtree"]].concat());
    assert_eq!(report["bytes"], 16 << 20);
    let cells = report["cells"].as_array().expect("a list");
    assert_eq!(cells.len(), 2);
    for (cell, index) in cells.iter().zip(["btree32", "rbtree"]) {
        assert_eq!((&cell["index"], &cell["shards"]), (&Value::from(index), &Value::from(1)));
        for rate in ["io", "vm", "io_per_cpu", "vm_per_cpu", "index_operations"] {
            assert!(cell[rate]["mean"].as_f64().expect("a number") > 0.0, "{index}, {rate}");
            assert_eq!(cell[rate]["times_rbtree"] == 1.0, index == "rbtree");
        }
        let share = cell["index_share"]["median"].as_f64().expect("a number");
        assert!((0.0..1.0).contains(&share), "{index}: {share}");
    }
}

#[test]
fn what_is_no_swap_load_is_refused() {
    expect_usage(&["swapload", "--shards", "3"], "power of two");
    expect_usage(&["swapload", "--shards", "0"], "power of two");
    expect_usage(&["swapload", "--size", "1M"], "must be at least");
    expect_usage(&["swapload", "--seconds", "0"], "seconds must be");
    expect_usage(&["swapload", "--index", "BTreeMap"], "one of: radix");
    expect_usage(&["swapload", "--compressor", "zip"], "zip");
    expect_usage(&["swapload", "--runs", "0"], "0 is not in 1..=");
    assert_eq!(uzswap(&["swapload-run"]).status.code(), Some(3), "a run without orders");
    let too_large = bench(&["swapload", "--size", "1000T"]);
    expect_error(&too_large, 3, &["1000 TiB does not fit"]);
}
