//! Goal: each JSON document of each command is as its schema in docs/reference/schema describes it.
//! Method: runs every command on a small input, to standard output and to a file, and validates the
//! documents. The validator is here: it knows the keywords of these schemas and refuses others.
//! Commands that need userfaultfd are counted as ignored where it is refused, with the reason.
//! Blind to: fields that these inputs do not make, as the failures of a live study on the kernel.

mod support;
use uzswap_testing::trials;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};

use serde_json::{Map, Value};
use support::{Lab, expect_error, wait_for};
use trials::trial;
use uzswap::page::{PAGE_SIZE, PageKey};
use uzswap::zswap::{Zswap, ZswapOptions};
use uzswap_cli::lab::report::Schema;

fn main() -> ExitCode {
    let no_run = no_run();
    trials::run([
        trial("every_schema_describes_every_field", None, schemas_are_whole),
        trial("the_validator_finds_what_is_wrong", None, validator),
        trial("comparisons", None, comparisons),
        trial("advice", None, advice),
        trial("studies", None, studies),
        trial("torture", None, torture),
        trial("other_commands", None, others),
        trial("runs_and_samples_of_them", no_run.clone(), runs),
        trial("a_command_under_a_limit", no_run, live),
        trial("a_file_is_beside_the_text", None, beside),
        trial("a_file_that_cannot_be_written_is_an_error", None, unwritten),
    ])
}

fn no_run() -> Option<String> {
    let output = uzswap(&["run", "--limit", "64M", "--", "true"]);
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).replace('\n', " "))
}

fn uzswap(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uzswap")).args(arguments).output().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

// ---- The schemas. ----

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/schema")
}

/// The file of a schema: `uzswap-bench-map/1` is in `bench-map-1.json`.
fn file_name(name: &str) -> String {
    name.strip_prefix("uzswap-").unwrap().replace('/', "-") + ".json"
}

fn schema(name: &str) -> Value {
    let path = folder().join(file_name(name));
    let contents = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&contents).unwrap()
}

fn schemas_are_whole() {
    let mut files = BTreeSet::new();
    for entry in Schema::ALL {
        let (name, schema) = (entry.name(), schema(entry.name()));
        files.insert(file_name(name));
        assert_eq!(schema["title"], name);
        assert_eq!(schema["properties"]["schema"]["const"], name);
        assert_eq!(schema["properties"]["command"]["const"], entry.command());
        let mut wrong = Vec::new();
        check_schema(&schema, &schema, name, &mut wrong);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
    assert_eq!(files.len(), Schema::ALL.len(), "two documents have one name");
    let there = fs::read_dir(folder()).unwrap();
    let there: BTreeSet<_> =
        there.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(there, files);
}

/// Whether the validator knows all keywords, each field has a description, and no object takes
/// fields that are not described.
fn check_schema(schema: &Value, root: &Value, at: &str, wrong: &mut Vec<String>) {
    const KNOWN: [&str; 17] = [
        "$schema",
        "$defs",
        "$ref",
        "title",
        "description",
        "type",
        "const",
        "enum",
        "format",
        "minimum",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "minItems",
        "maxItems",
        "anyOf",
    ];
    let keywords = schema.as_object().unwrap();
    for keyword in keywords.keys() {
        if !KNOWN.contains(&keyword.as_str()) {
            wrong.push(format!("{at}: the validator has no {keyword}"));
        }
    }
    if let Some(reference) = keywords.get("$ref")
        && target(root, reference).is_none()
    {
        wrong.push(format!("{at}: {reference} leads nowhere"));
    }
    if schema["type"] == "object" && !keywords.contains_key("additionalProperties") {
        wrong.push(format!("{at}: takes every field"));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        let description = field["description"].as_str().unwrap_or_default();
        if !description.ends_with('.') || !description.is_ascii() {
            wrong.push(format!("{at}: no description"));
        }
        check_schema(field, root, &at, wrong);
    }
    let parts = schema["$defs"].as_object().into_iter().flatten().map(|(_, part)| part);
    let parts = parts.chain(schema["anyOf"].as_array().into_iter().flatten());
    let others = ["items", "additionalProperties"].map(|keyword| &schema[keyword]);
    for part in parts.chain(others.into_iter().filter(|part| part.is_object())) {
        check_schema(part, root, at, wrong);
    }
}

fn target<'a>(root: &'a Value, reference: &Value) -> Option<&'a Value> {
    root.pointer(reference.as_str()?.strip_prefix('#')?)
}

// ---- The validator. ----

/// What is wrong with a value, by its place.
fn validate(value: &Value, schema: &Value, root: &Value, at: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let keywords = schema.as_object().unwrap();
    for (keyword, wanted) in keywords {
        let is_right = match keyword.as_str() {
            "$ref" => {
                wrong.extend(validate(value, target(root, wanted).unwrap(), root, at));
                true
            }
            "anyOf" => {
                let parts = wanted.as_array().unwrap();
                parts.iter().any(|part| validate(value, part, root, at).is_empty())
            }
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|wanted| is_of(value, wanted)),
                _ => is_of(value, wanted),
            },
            "const" => value == wanted,
            "enum" => wanted.as_array().unwrap().contains(value),
            "format" => value.as_str().is_none_or(is_date_time),
            "minimum" => value.as_f64().is_none_or(|value| value >= wanted.as_f64().unwrap()),
            "minItems" => {
                value.as_array().is_none_or(|list| list.len() as u64 >= wanted.as_u64().unwrap())
            }
            "maxItems" => {
                value.as_array().is_none_or(|list| list.len() as u64 <= wanted.as_u64().unwrap())
            }
            "items" => {
                for (place, item) in value.as_array().into_iter().flatten().enumerate() {
                    wrong.extend(validate(item, wanted, root, &format!("{at}[{place}]")));
                }
                true
            }
            "properties" => {
                for (name, part) in wanted.as_object().unwrap() {
                    if let Some(field) = value.get(name) {
                        wrong.extend(validate(field, part, root, &format!("{at}.{name}")));
                    }
                }
                true
            }
            "required" => {
                for name in wanted.as_array().unwrap() {
                    if value.is_object() && value.get(name.as_str().unwrap()).is_none() {
                        wrong.push(format!("{at}: no {name}"));
                    }
                }
                true
            }
            "additionalProperties" => {
                let none = Map::new();
                let known = schema["properties"].as_object().unwrap_or(&none);
                for (name, field) in value.as_object().unwrap_or(&none) {
                    match wanted {
                        _ if known.contains_key(name) => {}
                        Value::Bool(false) => wrong.push(format!("{at}: {name} is not described")),
                        part => wrong.extend(validate(field, part, root, &format!("{at}.{name}"))),
                    }
                }
                true
            }
            "$schema" | "$defs" | "title" | "description" => true,
            _ => panic!("{at}: the validator has no {keyword}"),
        };
        if !is_right {
            let value = value.to_string();
            wrong.push(format!("{at}: {keyword} {wanted}: {}", &value[..value.len().min(80)]));
        }
    }
    wrong
}

fn is_of(value: &Value, wanted: &Value) -> bool {
    match wanted.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("no type {other}"),
    }
}

/// `2026-01-31T08:15:00Z`.
fn is_date_time(text: &str) -> bool {
    let like = "0000-00-00T00:00:00Z";
    let fits = |(c, like): (char, char)| if like == '0' { c.is_ascii_digit() } else { c == like };
    text.len() == like.len() && text.chars().zip(like.chars()).all(fits)
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

fn document(bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Validates a document of this form.
fn check(document: &Value, form: Schema) {
    let name = form.name();
    assert_eq!(document["schema"], name);
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    let schema = schema(name);
    let wrong = validate(document, &schema, &schema, name);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    runs_are_lists(document, name);
}

/// `runs` means one thing: a list with an element a run.
fn runs_are_lists(value: &Value, at: &str) {
    for (name, field) in value.as_object().into_iter().flatten() {
        assert!(name != "runs" || field.is_array(), "{at}: runs is {field}");
        runs_are_lists(field, at);
    }
    value.as_array().into_iter().flatten().for_each(|item| runs_are_lists(item, at));
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
    assert_eq!(found["measured"].as_array().unwrap().len(), 3, "{found}");
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

fn torture() {
    let small = ["torture", "--seeds", "2", "--ops", "300"];
    printed(&small, 0, Schema::Torture);
    let planted = ["torture", "--seed", "3", "--seeds", "4", "--plant", "lost-entry"];
    let planted = printed(&planted, 1, Schema::Torture);
    assert!(planted["failure"]["steps"].is_array(), "{planted}");
}

fn others() {
    let lab = Lab::new();
    printed(&["classes"], 0, Schema::Classes);
    let doctor = document(&uzswap(&["doctor", "--json"]).stdout);
    check(&doctor, Schema::Doctor);
    let (pages, set) = (pages(&lab), lab.path("set"));
    let captured = ["capture", "-o", text(&set), "--from", text(&pages)];
    printed(&captured, 0, Schema::Capture);
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
    let torture = ["torture", "--seeds", "1", "--ops", "100"];
    let compare = ["compare", "--zpool", "zbud", "--runs", "1", "--corpus", text(&pages)];
    let csv = [&compare[..], &["--csv"]].concat();
    let capture = ["capture", "-o", text(&set), "--from", text(&pages)];
    let index = ["bench", "index", "--keys", "100", "--rounds", "1"];
    for (arguments, form, words) in [
        (&torture[..], Schema::Torture, "100 operations"),
        (&compare, Schema::Compare, "(c) PEAK"),
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
    for arguments in [
        &["classes"][..],
        &["doctor"],
        &["torture", "--seeds", "1", "--ops", "100"],
        &["bench", "index", "--keys", "100", "--rounds", "1"],
    ] {
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
