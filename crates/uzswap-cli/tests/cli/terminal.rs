//! Goal: no name that somebody else chose controls the terminal: of files, of programs, in
//! snapshots and side files.
//! Method: names with escape sequences, C1 controls and bidirectional formats in many commands; no
//! such character reaches standard output or standard error.
//! Blind to: what the program under `run` prints itself, and progress bars, which need a terminal.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::support::{text, uzswap};
use serde_json::Value;
use tempfile::TempDir;
use uzswap::zswap::{RecordOptions, TenantId, TenantOptions, Zswap, ZswapOptions};

/// Red, a C1 control sequence introducer, a right-to-left override, and a delete.
const EVIL: &str = "a\x1b[31m\u{9b}2J\u{202e}b\x7f";

fn evil_path(folder: &TempDir) -> PathBuf {
    folder.path().join(EVIL)
}

/// Checks both outputs; they name the file in an escaped form.
#[track_caller]
fn expect_escaped(output: &Output, code: i32, is_named: bool) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{}", told.escape_debug());
    let all = String::from_utf8_lossy(&output.stdout).into_owned() + &told;
    let is_raw = |c: &char| c.is_control() && *c != '\n' && *c != '\t' || *c == '\u{202e}';
    assert_eq!(all.chars().find(is_raw), None, "{}", all.escape_debug());
    let escaped = r"a\u001b[31m\u009b2J\u202eb\u007f";
    assert!(!is_named || all.contains(escaped), "{}", all.escape_debug());
}

#[test]
fn names_of_files_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let path = evil_path(&folder);
    let file = text(&path);
    for (arguments, code) in [
        (&["stat", file][..], 2),
        (&["compare", "--corpus", file], 2),
        (&["compare", "--sizes", file], 2),
        (&["compare", "--trace", file], 2),
        (&["capture", "-o", file, "--from", file], 2),
        (&["bench", "same-filled", "--corpus", file], 2),
        (&["capture", "-o", text(&folder.path().join("pages")), "--", file], 2),
        (&["run", "--limit", "64M", "--stats", text(&path.join("x")), "--", "true"], 2),
    ] {
        expect_escaped(&uzswap(arguments), code, true);
    }
    fs::write(&path, "no snapshot").unwrap();
    expect_escaped(&uzswap(&["stat", file]), 2, true);
    fs::write(&path, [7; 4096]).unwrap();
    let compare = ["compare", "--corpus", file, "--zpool", "zbud", "--compressor", "lz4"];
    for form in [&[][..], &["--csv"], &["--json"]] {
        let output = uzswap(&[&compare[..], &["--runs", "1"], form].concat());
        expect_escaped(&output, 0, false);
        if form == ["--json"] {
            serde_json::from_slice::<Value>(&output.stdout).unwrap();
        }
    }
}

#[test]
fn arguments_are_escaped() {
    for arguments in [&[EVIL][..], &["stat", "--colour", EVIL], &["workload", "text", EVIL]] {
        expect_escaped(&uzswap(arguments), 2, false);
    }
    expect_escaped(&uzswap(&["workload", "text", "--size", EVIL]), 2, false);
    expect_escaped(&uzswap(&["run", "--metrics", EVIL, "--", "true"]), 2, false);
}

/// A process that ends its name, and with it our line, forges no line of ours.
#[test]
fn names_of_processes_are_a_part_of_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("a\nuzswap: b");
    std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
    let mut process = Command::new(&program).arg("100").spawn().unwrap();
    let pid = process.id().to_string();
    let page_set = folder.path().join("pages");
    let capture = || uzswap(&["capture", "--pid", &pid, "-o", text(&page_set)]);
    let alive = capture();
    process.kill().unwrap();
    let stat = format!("/proc/{pid}/stat");
    while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    let ended = capture();
    process.wait().unwrap();
    let compare = ["compare", "--corpus", text(&page_set), "--zpool", "zbud", "--runs", "1"];
    for (output, code) in [(alive, 0), (ended, 2), (uzswap(&compare), 0)] {
        expect_escaped(&output, code, false);
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(told.contains(r"a\u000auzswap: b"), "{told}");
    }
}

#[test]
fn snapshots_of_others_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let options = ZswapOptions::default().records(Some(RecordOptions::default()));
    let store = Zswap::new(options).unwrap();
    let tenant = TenantOptions::default().name(EVIL.to_owned());
    store.add_tenant(TenantId::ROOT, tenant).unwrap();
    let path = folder.path().join("snapshot");
    store.snapshot(&path).unwrap();
    for form in [&[][..], &["--json"], &["--prometheus"]] {
        expect_escaped(&uzswap(&[&["stat", text(&path)], form].concat()), 0, false);
    }
}
