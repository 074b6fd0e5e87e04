//! Goal: each JSON document of each command is as its schema in docs/reference/schema describes it.
//! Method: runs every command on a small input, to standard output and to a file, and validates the
//! documents. Commands that need userfaultfd are counted as ignored where it is refused, with the
//! reason.
//! Blind to: fields that these inputs do not make, as the failures of a live study on the kernel;
//! the document of `uzswap-torture` (its tests validate it).

mod support;
use uzswap_testing::{trials, wait_for};

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use serde_json::Value;
use support::{Lab, expect_error, text, uzswap};
use trials::trial;
use uzswap::page::{PAGE_SIZE, PageKey};
use uzswap::zswap::{Zswap, ZswapOptions};
use uzswap_cli::report::Schema;
use uzswap_testing::json_schema::{self, document, file_name, folder, schema, validate};

fn main() -> ExitCode {
    let no_run = trials::no_run(env!("CARGO_BIN_EXE_uzswap"));
    trials::run([
        trial("every_schema_describes_every_field", None, schemas_are_whole),
        trial("the_validator_finds_what_is_wrong", None, validator),
        trial("comparisons", None, comparisons),
        trial("advice", None, advice),
        trial("studies", None, studies),
        trial("other_commands", None, others),
        trial("runs_and_samples_of_them", no_run.clone(), runs),
        trial("a_command_under_a_limit", no_run, live),
        trial("a_file_is_beside_the_text", None, beside),
        trial("a_file_that_cannot_be_written_is_an_error", None, unwritten),
    ])
}

// ---- The schemas. ----

fn schemas_are_whole() {
    let mut files = BTreeSet::new();
    for entry in Schema::ALL {
        let (name, schema) = (entry.name(), schema(entry.name()));
        files.insert(file_name(name));
        assert_eq!(schema["title"], name);
        assert_eq!(schema["properties"]["schema"]["const"], name);
        assert_eq!(schema["properties"]["command"]["const"], entry.command());
        let mut wrong = Vec::new();
        json_schema::check_schema(&schema, &schema, name, &mut wrong);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
    assert_eq!(files.len(), Schema::ALL.len(), "two documents have one name");
    let there = fs::read_dir(folder()).unwrap();
    let there: BTreeSet<_> =
        there.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(there, files);
}

fn validator() {
    let root = schema("uzswap-classes/1");
    let mut whole = document(&uzswap(&["classes", "--json"]).stdout);
    let found = |value: &Value| validate(value, &root, &root, "").join("; ");
    assert_eq!(found(&whole), "");
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 7] = [
        (|value| value["extra"] = 1.into(), ": extra is not described"),
        (|value| drop(value.as_object_mut().unwrap().remove("machine")), ": no \"machine\""),
        (|value| value["class_count"] = "119".into(), ".class_count: type \"integer\""),
        (|value| value["class_count"] = (-1).into(), ".class_count: minimum 0"),
        (|value| value["classes"][3]["slots"] = 1.5.into(), ".classes[3].slots: type"),
        (|value| value["created_at"] = "yesterday".into(), ".created_at: format"),
        (|value| value["command"] = "class".into(), ".command: const"),
    ];
    for (change, words) in changes {
        let mut changed = whole.clone();
        change(&mut changed);
        assert!(found(&changed).contains(words), "'{words}' is not in: {}", found(&changed));
    }
    whole["machine"]["cpus"] = Value::Null;
    assert!(found(&whole).contains(".machine.cpus: type"), "{}", found(&whole));
}

// ---- The documents. ----

/// Validates a document of this form.
fn check(document: &Value, form: Schema) {
    json_schema::check(document, form.name());
}

/// Validates what a command prints with `--json`.
fn printed(arguments: &[&str], code: i32, form: Schema) -> Value {
    let output = uzswap(&[arguments, &["--json"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    let document = document(&output.stdout);
    check(&document, form);
    document
}

/// A file of pages.
fn pages(lab: &Lab) -> PathBuf {
    let path = lab.path("corpus");
    let contents = (0..100 * PAGE_SIZE).map(|at| ((at * at) >> 7) as u8);
    fs::write(&path, contents.collect::<Vec<u8>>()).unwrap();
    path
}

fn comparisons() {
    let lab = Lab::new();
    let (pages, sizes, backing) = (pages(&lab), lab.path("sizes"), lab.path("backing"));
    fs::write(&sizes, "900\n0\n4096\n".repeat(100)).unwrap();
    let once = ["compare", "--runs", "1"];
    let of = |arguments: &[&str]| printed(&[&once, arguments].concat(), 0, Schema::Compare);
    let old = lab.path("old");
    let baseline = ["--corpus", text(&pages), "--baseline", text(&old)];
    fs::write(&old, of(&baseline[..2]).to_string()).unwrap();
    let changed = of(&baseline);
    assert!(changed["baseline"]["changes"][0]["percent"].is_number(), "{changed}");
    of(&["--sizes", text(&sizes)]);
    let large = lab.path("large");
    fs::File::create(&large).and_then(|file| file.set_len(3 << 20)).unwrap();
    let sampled = of(&["--corpus", text(&large), "--sample", "1M"]);
    assert!(sampled["combinations"][0]["whole"].is_object(), "{sampled}");
    of(&["--workload", "text", "--size", "1M", "--zpool", "zbud"]);
    let limited = ["--zpool", "zbud", "--max-pool", "60K,none", "--corpus", text(&pages)];
    of(&limited);
    let limited = of(&[&limited[..], &["--backing", text(&backing)]].concat());
    assert!(limited["combinations"][0]["access"].is_object(), "{limited}");
    assert_eq!(limited["settings"]["runs_each"], 1);
}

fn advice() {
    let lab = Lab::new();
    let pages = pages(&lab);
    let found = printed(&["advise", "--corpus", text(&pages)], 0, Schema::Advise);
    // Three compressors, as run and as the kernel has them.
    let zpools = |it: &Value| it["zpool"].as_str().unwrap().to_owned();
    let zpools: Vec<String> = found["measured"].as_array().unwrap().iter().map(zpools).collect();
    assert_eq!(zpools, [["packed"; 3], ["zsmalloc"; 3]].concat(), "{found}");
    let own = std::process::id().to_string();
    printed(&["advise", "--sample", "1M", "--pid", &own], 0, Schema::Advise);
    printed(&["advise", "--sample", "1M", "--budget", "1s"], 0, Schema::Advise);
}

fn studies() {
    let lab = Lab::new();
    let pages = pages(&lab);
    let index = ["bench", "index", "--keys", "1000", "--rounds", "1"];
    printed(&index, 0, Schema::BenchIndex);
    printed(&[&index[..], &["--index", "radix,BTreeMap"]].concat(), 0, Schema::BenchIndex);
    printed(&["bench", "map", "--seconds", "0.02"], 0, Schema::BenchMap);
    for origin in [["--corpus", text(&pages)], ["--size", "1M"]] {
        let study = ["bench", "same-filled", "--rounds", "1"];
        printed(&[&study[..], &origin].concat(), 0, Schema::BenchSameFilled);
    }
    let load = ["bench", "swapload", "--size", "16M", "--seconds", "0.02", "--runs", "2"];
    let load = printed(&load, 0, Schema::BenchSwapload);
    assert_eq!(load["runs_each"], 2);
}

fn others() {
    let lab = Lab::new();
    printed(&["classes"], 0, Schema::Classes);
    printed(&["classes", "--zpool", "zblock"], 0, Schema::Classes);
    let doctor = document(&uzswap(&["doctor", "--json"]).stdout);
    check(&doctor, Schema::Doctor);
    let (pages, set) = (pages(&lab), lab.path("set"));
    let captured = ["capture", "-o", text(&set), "--from", text(&pages)];
    printed(&captured, 0, Schema::Capture);
    let (me, out) = (std::process::id().to_string(), lab.path("fleet"));
    let sampled = ["sample", "--pid", &me, "--out", text(&out), "--interval", "100ms"];
    printed(&[&sampled[..], &["--intervals", "1"]].concat(), 0, Schema::Sample);
    let snapshot = lab.path("snapshot");
    let zswap = Zswap::new(ZswapOptions::default()).unwrap();
    for key in 0..20 {
        zswap.store(PageKey(key), &[key as u8; PAGE_SIZE]).unwrap();
    }
    zswap.snapshot(&snapshot).unwrap();
    printed(&["stat", text(&snapshot)], 0, Schema::Stat);
    printed(&["stat", "--verify", text(&snapshot)], 0, Schema::Stat);
    // One with a backing and tenants, of the first version.
    let old = uzswap_testing::data("snapshot-1.uzs");
    let old = printed(&["stat", text(&old)], 0, Schema::Stat);
    assert_eq!(old["written_at"], "2026-11-22T03:11:44Z");
    let empty = printed_line(&["top", "--count", "1", "--json"]);
    assert!(empty["runs"].is_array(), "{empty}");
}

/// The only line of a sample.
fn printed_line(arguments: &[&str]) -> Value {
    let output = uzswap(arguments);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 1);
    let document = document(&output.stdout);
    check(&document, Schema::Top);
    document
}

/// A program that fills some memory, and is ended with its supervisor.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.stdin.take()); // it reads to the end
        self.0.wait().unwrap();
    }
}

fn runs() {
    let lab = Lab::new();
    let [stats, backing, trace, samples] =
        ["stats", "backing", "trace", "samples"].map(|name| lab.path(name));
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    command.args(["run", "--quiet", "--limit", "64M", "--stats", text(&stats)]);
    command.args(["--backing", text(&backing), "--record", text(&trace)]);
    command.args([
        "--",
        env!("CARGO_BIN_EXE_uzswap"),
        "workload",
        "text",
        "--size",
        "2M",
        "--hold",
    ]);
    let mut running = Running(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
    let pid = running.0.id().to_string();
    wait_for("the run", || uzswap(&["top", &pid, "--count", "1"]).status.success().then_some(()));
    let sample = printed_line(&["top", &pid, "--count", "1", "--json"]);
    assert_eq!(sample["runs"].as_array().unwrap().len(), 1, "{sample}");
    let audit = printed(&["top", &pid, "--audit"], 0, Schema::TopAudit);
    assert_eq!(audit["audits"].as_array().unwrap().len(), 1, "{audit}");
    // To a file, beside the view.
    let to_file = format!("--json={}", samples.display());
    let output = uzswap(&["top", &pid, "--count", "2", "--interval", "0.1", &to_file]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("COMMAND"), "{output:?}");
    let samples = fs::read_to_string(samples).unwrap();
    assert_eq!(samples.lines().count(), 2);
    samples.lines().for_each(|line| check(&document(line.as_bytes()), Schema::Top));
    drop(running.0.stdin.take());
    assert!(running.0.wait().unwrap().success());
    drop(running);
    let report = document(&fs::read(&stats).unwrap());
    check(&report, Schema::Run);
    assert!(report["backing"].is_object() && report["trace"].is_object(), "{report}");
    let plain = lab.path("plain");
    let output = uzswap(&["run", "--limit", "64M", "--stats", text(&plain), "--", "true"]);
    assert!(output.status.success(), "{output:?}");
    check(&document(&fs::read(&plain).unwrap()), Schema::Run);
    // A trace that is not empty.
    let recorded = lab.path("recorded");
    record(&recorded);
    let replay = ["compare", "--runs", "1", "--zpool", "zbud", "--trace", text(&recorded)];
    let replay = printed(&replay, 0, Schema::Compare);
    assert!(replay["corpus"]["trace"].is_object(), "{replay}");
}

/// Records a program that does not fit in its limit.
fn record(path: &Path) {
    let output = uzswap(&[
        "run",
        "--limit",
        "16M",
        "--record",
        text(path),
        "--",
        env!("CARGO_BIN_EXE_uzswap"),
        "workload",
        "text",
        "--size",
        "24M",
    ]);
    assert!(output.status.success(), "{output:?}");
}

fn live() {
    // Held, so that its peak is seen: the percent is of it.
    let held = "sleep 0.3 | exec \"$0\" workload text --size 8M --hold";
    let command = ["--", "sh", "-c", held, env!("CARGO_BIN_EXE_uzswap")];
    let of = |arguments: &[&str], code| {
        let limited = ["compare", "--runs", "1", "--zpool", "zbud", "--json"];
        let output = uzswap(&[&limited, arguments, &command].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        let document = document(&output.stdout);
        check(&document, Schema::CompareLimit);
        document
    };
    let done = of(&["--limit", "80%", "--check", "echo same"], 0);
    assert_eq!(done["combinations"][0]["runs"].as_array().unwrap().len(), 1, "{done}");
    assert_eq!(done["program"]["argv"][0], "sh");
    let failed = of(&["--limit", "64M", "--check", "date +%N"], 1);
    assert_eq!(failed["combinations"][0]["failure"]["kind"], "wrong", "{failed}");
}

// ---- A file beside the text. ----

fn beside() {
    let lab = Lab::new();
    let (pages, set, file) = (pages(&lab), lab.path("set"), lab.path("json"));
    let (with_equals, path) = (format!("--json={}", text(&file)), text(&file));
    let compare = ["compare", "--zpool", "zbud", "--runs", "1", "--corpus", text(&pages)];
    let csv = [&compare[..], &["--csv"]].concat();
    let capture = ["capture", "-o", text(&set), "--from", text(&pages)];
    let index = ["bench", "index", "--keys", "100", "--rounds", "1"];
    for (arguments, form, words) in [
        (&compare[..], Schema::Compare, "(c) PEAK"),
        (&csv, Schema::Compare, "pool_total_size,"),
        (&capture, Schema::Capture, "origin"),
        (&index, Schema::BenchIndex, "x rbtree"),
        (&["classes"], Schema::Classes, "classes: 119"),
        (&["doctor"], Schema::Doctor, "userfaultfd"),
    ] {
        for flag in [&[&*with_equals][..], &["--json", path]] {
            if arguments[0] == "capture" && flag.len() > 1 {
                expect_error(&uzswap(&[arguments, flag].concat()), 2, &["unexpected argument"]);
                continue;
            }
            let output = uzswap(&[arguments, flag].concat());
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(stdout.contains(words), "{arguments:?}: {stdout}");
            check(&document(&fs::read(&file).unwrap()), form);
            fs::remove_file(&file).unwrap();
        }
    }
    // A positional argument is no file of JSON.
    let snapshot = lab.path("snapshot");
    Zswap::new(ZswapOptions::default()).unwrap().snapshot(&snapshot).unwrap();
    check(&document(&uzswap(&["stat", "--json", text(&snapshot)]).stdout), Schema::Stat);
    let output = uzswap(&["stat", &with_equals, text(&snapshot)]);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("snapshot"), "{output:?}");
    check(&document(&fs::read(&file).unwrap()), Schema::Stat);
}

fn unwritten() {
    for arguments in
        [&["classes"][..], &["doctor"], &["bench", "index", "--keys", "100", "--rounds", "1"]]
    {
        // The text is printed all the same.
        let output = uzswap(&[arguments, &["--json=/dev/full"]].concat());
        expect_error(&output, 1, &["cannot write --json /dev/full", "os error 28"]);
        assert!(!output.stdout.is_empty(), "{arguments:?}");
        // Before any work.
        let output = uzswap(&[arguments, &["--json=/no/such/folder/file"]].concat());
        expect_error(&output, 2, &["cannot write --json /no/such/folder/file", "os error 2"]);
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    let output = uzswap(&["top", "--count", "1", "--json=/dev/full"]);
    expect_error(&output, 1, &["cannot write --json /dev/full", "os error 28"]);
    // A program is not overwritten where the command line lacks the `--` before it.
    let lab = Lab::new();
    let program = lab.path("program");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let output = uzswap(&["compare", "--json", text(&program)]);
    expect_error(&output, 2, &["it is a program; put -- before a command to run"]);
    assert_eq!(fs::read_to_string(&program).unwrap(), "#!/bin/sh\n");
}
