//! Goal: `uzswap bench index` and `uzswap bench swapload` measure what they are asked for, and say
//! what is wrong with a request.
//! Method: the built command on tiny sizes; its text, JSON and exit codes. Blind to: times.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    command.arg("bench").args(arguments).stdin(Stdio::null());
    command.output().expect("the command starts")
}

/// What a run that succeeds prints.
fn stdout(arguments: &[&str]) -> String {
    let output = bench(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).expect("ASCII")
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

const INDEXES: [&str; 6] = ["radix", "btree", "btree32", "rbtree", "BTreeMap", "hashbrown"];

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
    let output = bench(&["index-run"]);
    assert_eq!(output.status.code(), Some(3), "a run without orders");
}
