//! Goal: `uzswap classes` prints the table it is asked for, and says what is wrong with a request.
//! Method: the built command, its output and exit code. Blind to: the table itself, which
//! `zsmalloc_classes` covers.

use std::process::{Command, Output, Stdio};

use crate::support::stdout_alone;

fn uzswap(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    command.arg("classes").args(arguments);
    command
}

fn output(arguments: &[&str]) -> Output {
    uzswap(arguments).output().expect("the command starts")
}

/// What a run that succeeds prints.
fn stdout(arguments: &[&str]) -> String {
    stdout_alone(output(arguments))
}

#[test]
fn the_default_table_ends_with_its_totals() {
    let text = stdout(&[]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "chain size 8, chain rule least-waste, handle header in-object");
    let fields =
        |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    assert_eq!(fields(lines[3]), ["0", "32", "1", "128", "0", "0.00", "1-24"]);
    assert_eq!(fields(lines[11 + 3]), ["11", "208", "3", "59", "16", "0.13", "185-200"]);
    assert_eq!(fields(lines[118 + 3]), ["254", "4096", "1", "1", "0", "0.00", "3625-4096"]);
    assert_eq!(
        lines[119 + 3..],
        [
            "",
            "classes: 119",
            "huge: from 3625 bytes on, an object takes a whole page",
            "mean waste of objects of 1 to 4096 bytes: 59.7 bytes of the slot, 63.8 with its share \
             of the tail",
        ]
    );
    // Columns end where their headings end.
    let width = lines[2].len();
    assert!(lines[2..119 + 3].iter().all(|line| line.len() == width && width <= 100));
}

#[test]
fn kernel_6_1_is_a_matter_of_options() {
    let text = stdout(&["--chain-size", "4", "--chain-rule", "used-percent"]);
    assert!(text.contains("classes: 69\nhuge: from 3257 bytes on"), "{text}");
    assert!(text.contains(": 150.8 bytes of the slot, 154.9 with"), "{text}");
}

#[test]
fn handles_beside_the_objects_serve_a_whole_slot() {
    let text = stdout(&["--handle-header", "beside"]);
    assert!(text.contains(" 1-32\n") && text.contains("huge: from 3633 bytes on"), "{text}");
}

#[test]
fn the_types_of_zblock_have_a_table_of_their_own() {
    let text = stdout(&["--zpool", "zblock"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "types of zblock; tails have the header of a block");
    let fields =
        |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    assert_eq!(fields(lines[3]), ["0", "144", "1", "28", "64", "1.56", "1-143"]);
    assert_eq!(fields(lines[36 + 3]), ["36", "4080", "4", "4", "64", "0.39", "3632-4079"]);
    assert_eq!(lines[37 + 4..37 + 6], ["classes: 37", "an object is shorter than its slot"]);
    assert!(lines[37 + 6].starts_with("mean waste of objects of 1 to 4079 bytes"), "{text}");

    let json: serde_json::Value =
        serde_json::from_str(&stdout(&["--zpool=zblock", "--json"])).expect("JSON");
    assert_eq!((&json["zpool"], &json["class_count"]), (&"zblock".into(), &37.into()));
    assert!(json.get("chain_size").is_none() && json.get("huge_bytes").is_none());
}

#[test]
fn json_has_the_same_figures() {
    let text = stdout(&["--json", "--chain-size=16"]);
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["zpool"], "zsmalloc");
    assert_eq!(json["chain_size"], 16);
    assert_eq!(json["chain_rule"], "least-waste");
    assert_eq!(json["handle_header"], "in-object");
    assert_eq!((&json["class_count"], &json["huge_bytes"]), (&192.into(), &3833.into()));
    let classes = json["classes"].as_array().expect("a list");
    assert_eq!(classes.len(), 192);
    let mut next = 1;
    for class in classes {
        assert_eq!(class["object_bytes_min"], next, "the ranges adjoin");
        next = class["object_bytes_max"].as_u64().expect("a number") + 1;
        let [slot, pages, slots, tail] = ["slot_bytes", "pages", "slots", "tail_waste_bytes"]
            .map(|name| class[name].as_u64().expect("a number"));
        assert_eq!(slot * slots + tail, pages * 4096);
    }
    assert_eq!(next, 4097);
}

#[test]
fn bad_values_are_refused_with_exit_code_2() {
    for (arguments, message) in [
        (["--chain-size", "3"], "3 is not in 4..=16"),
        (["--chain-size", "17"], "17 is not in 4..=16"),
        (["--chain-size", "four"], "invalid digit"),
        (["--chain-rule", "best"], "unknown chain rule 'best'; one of: used-percent, least-waste"),
        (["--handle-header", "out"], "unknown handle header 'out'; one of: in-object, beside"),
        (["--chain-sizes", "8"], "unexpected argument"),
        (["--zpool", "zbud"], "zbud has no size classes; one of: zsmalloc, zblock"),
        (["--zpool", "slab"], "unknown zpool 'slab'"),
    ] {
        let output = output(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && stderr.contains(message), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = uzswap(&[])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the command ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
