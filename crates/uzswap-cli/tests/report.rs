//! Goal: `--report` writes a page that is well-formed, loads nothing, shows the numbers of its
//! document, and takes no text of others for markup.
//! Method: makes pages by commands, takes them apart, and opens them in a headless Chromium.
//! Blind to: the looks of a page. Without Chromium or userfaultfd, some trials count as ignored.

mod support;
use uzswap_testing::trials;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use support::{Lab, expect_error, expect_success, uzswap};
use trials::trial;
use uzswap::page::PAGE_SIZE;
use uzswap::random::mix;
use uzswap_cli::advise::AdviceReport;
use uzswap_cli::html;
use uzswap_cli::report::Report;

fn main() -> ExitCode {
    let no_run = trials::no_run(env!("CARGO_BIN_EXE_uzswap"));
    let no_browser = match browser() {
        Some(_) => None,
        None => Some("no chromium, chromium-browser or google-chrome".to_owned()),
    };
    trials::run([
        trial("the_checks_find_what_is_wrong", None, checks),
        trial("a_comparison", None, comparison),
        trial("advice", None, advice),
        trial("studies", None, studies),
        trial("a_run_and_a_command_under_a_limit", no_run.clone(), runs),
        trial("text_of_others_is_no_markup", None, hostile_names),
        trial("a_program_with_a_hostile_name", no_run.clone(), hostile_program),
        trial("documents_without_data_and_with_too_many", None, degenerate),
        trial("runs_without_data_and_with_too_many", no_run.clone(), degenerate_runs),
        trial("a_page_that_cannot_be_written_is_an_error", None, unwritten),
        trial("a_run_whose_page_cannot_be_written", no_run.clone(), unwritten_run),
        trial("a_browser_shows_the_numbers", no_browser.clone(), browsed),
        trial("a_browser_shows_those_of_runs", no_browser.or(no_run), browsed_runs),
    ])
}

/// The page that a command writes.
fn page_of(arguments: &[&str]) -> String {
    let lab = Lab::new();
    let path = lab.path("page.html");
    let flag = format!("--report={}", path.display());
    let place = arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len());
    let (own, command) = arguments.split_at(place);
    expect_success(&uzswap(&[own, &[&flag], command].concat()));
    fs::read_to_string(&path).unwrap()
}

/// A file of pages that compress to different lengths, the longer the later; one in ten is
/// same-filled.
fn pages(path: &Path) {
    let byte = |at: usize| {
        let page = at / PAGE_SIZE;
        match at % PAGE_SIZE {
            _ if page.is_multiple_of(10) => 7,
            offset if offset < page * 8 => (mix(at as u64) >> 32) as u8,
            _ => 0,
        }
    };
    fs::write(path, (0..200 * PAGE_SIZE).map(byte).collect::<Vec<u8>>()).unwrap();
}

fn comparison_page() -> String {
    let lab = Lab::new();
    let path = lab.path("corpus");
    pages(&path);
    page_of(&["compare", "--corpus", path.to_str().unwrap(), "--runs", "3"])
}

fn run_page() -> String {
    let program = env!("CARGO_BIN_EXE_uzswap");
    page_of(&[
        "run", "--quiet", "--limit", "16M", "--", program, "workload", "text", "--size", "24M",
    ])
}

fn live_page() -> String {
    let program = env!("CARGO_BIN_EXE_uzswap");
    let own =
        ["compare", "--limit", "80%", "--runs", "2", "--zpool", "zbud", "--check", "echo '<b>'"];
    page_of(&[&own[..], &["--", program, "workload", "text", "--size", "32M"]].concat())
}

// ---- Taking a page apart. ----

/// The start tags, and the first mistake: a tag that is not closed, or that ends another.
fn tags(page: &str) -> Result<Vec<&str>, String> {
    const VOID: [&str; 2] = ["meta", "!doctype"];
    let (mut found, mut open): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        let raw = matches!(open.last(), Some(&"script" | &"style"));
        let end = rest[at..].find('>').ok_or("a tag without an end")? + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(closed) = tag.strip_prefix('/') {
            let last = open.pop();
            if last != Some(closed) {
                return Err(format!("</{closed}> ends {last:?}"));
            }
            continue;
        }
        if raw {
            return Err(format!("<{tag}> in {:?}", open.last()));
        }
        if tag.matches('"').count() % 2 == 1 {
            return Err(format!("<{tag}> ends within an attribute"));
        }
        found.push(tag);
        let name = tag.split([' ', '/']).next().unwrap_or_default();
        if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    open.pop().map_or(Ok(found), |name| Err(format!("<{name}> is not closed")))
}

/// The text between two others.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let from = text.find(start)? + start.len();
    Some(&text[from..from + text[from..].find(end)?])
}

/// The document in a page.
fn document(page: &str) -> Value {
    let text = between(page, "<script type=\"application/json\" id=\"data\">", "</script>");
    serde_json::from_str(text.expect("no document")).unwrap()
}

/// All mistakes of a page.
fn mistakes(page: &str) -> Vec<String> {
    let mut mistakes = Vec::new();
    let found = tags(page).unwrap_or_else(|mistake| {
        mistakes.push(mistake);
        Vec::new()
    });
    if page.len() > 500_000 {
        mistakes.push(format!("{} bytes", page.len()));
    }
    for word in ["http", "src=", "<link", "@import", "<iframe", "onload", "javascript:", "NaN"] {
        if page.contains(word) {
            mistakes.push(format!("'{word}' is in it"));
        }
    }
    if page.matches("url(").count() != page.matches("url(#hatch)").count() {
        mistakes.push("a url() of something else".to_owned());
    }
    if page.matches("<script").count() != 1 {
        mistakes.push("not one script element".to_owned());
    }
    let mut ids = BTreeSet::new();
    for tag in found {
        if tag.contains("\"inf") || tag.contains("\"-inf") || tag.contains(",inf") {
            mistakes.push(format!("<{tag}>"));
        }
        if let Some(id) = between(tag, " id=\"", "\"")
            && !ids.insert(id)
        {
            mistakes.push(format!("the id {id} twice"));
        }
    }
    let pictures = page.matches("<svg role=\"img\"").count();
    if pictures != page.matches("<title id=\"figure-").count() {
        mistakes.push("a picture without a title".to_owned());
    }
    if page.matches("<figure>").count() != page.matches("<figcaption>").count() {
        mistakes.push("a figure without a caption".to_owned());
    }
    mistakes
}

/// Checks a page, and returns its document.
fn check(page: &str) -> Value {
    assert_eq!(mistakes(page), [""; 0], "{}", &page[..page.len().min(2000)]);
    document(page)
}

/// The numbers in the table of the first figure with a title.
fn numbers(page: &str, title: &str) -> Vec<f64> {
    let figure = page.split("<figure>").find(|part| part.contains(&format!("<h3>{title}</h3>")));
    let figure = figure.unwrap_or_else(|| panic!("no figure {title}"));
    let figure = figure.split("</figure>").next().unwrap();
    let values = figure.split("<data value=\"").skip(1);
    values.map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
}

/// Compares numbers of a page with those of its document: reading them may change the last bit.
#[track_caller]
fn assert_same(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= expected.abs() * 1e-14, "{found} is not {expected}");
    }
}

/// Numbers of the document, at these places of each element of a list.
fn expected(list: &Value, places: &[&str]) -> Vec<f64> {
    let elements = list.as_array().unwrap().iter();
    let at = |element: &Value| -> Vec<f64> {
        let number = |place: &&str| element.pointer(place).unwrap().as_f64().unwrap();
        places.iter().map(number).collect()
    };
    elements.flat_map(at).collect()
}

fn checks() {
    let good = html::page(
        &json!({ "schema": "uzswap-bench-index/1", "version": "1", "command": "x",
        "created_at": "now", "machine": { "kernel": "", "cpu": "", "cpus": 1 },
        "rounds": 1, "seed": 1, "cells": [] }),
        "y",
    );
    let good = good.unwrap();
    assert_eq!(mistakes(&good), [""; 0]);
    for (from, to, words) in [
        ("</section>", "", "ends Some"),
        ("</html>", "", "is not closed"),
        ("<h2>", "<h2 title=\"a>", "within an attribute"),
        ("<h2>", "<h2 style=\"width:inf%\" x=\"inf\">", "inf"),
        ("</h2>", "NaN</h2>", "NaN"),
        ("<main>", "<main><script></script>", "not one script"),
        ("</style>", "a { background: url(x) }</style>", "url()"),
        ("<header>", "<header id=\"data\">", "twice"),
        ("<main>", &"<main>long".repeat(60_000), "bytes"),
    ] {
        let bad = mistakes(&good.replacen(from, to, 1)).join("; ");
        assert!(bad.contains(words), "'{words}' is not in: {bad}");
    }
}

// ---- Pages of commands. ----

fn comparison() {
    let page = comparison_page();
    let document = check(&page);
    let combinations = &document["combinations"];
    let mut times = Vec::new();
    for combination in combinations.as_array().unwrap() {
        for (run, seconds) in combination["real_s"].as_array().unwrap().iter().enumerate() {
            times.extend([(run + 1) as f64, seconds.as_f64().unwrap()]);
        }
    }
    assert_eq!(times.len(), 6 * 3 * 2);
    assert_same(&numbers(&page, "Seconds a run"), &times);
    let phases = [
        "/pool_total_size",
        "/rss_bytes",
        "/pool_after_free_bytes",
        "/rss_after_free_bytes",
        "/pool_after_compact_bytes",
        "/rss_after_compact_bytes",
        "/pool_after_refill_bytes",
        "/rss_after_refill_bytes",
    ];
    assert_eq!(
        numbers(&page, "Pool and resident memory by phase"),
        expected(combinations, &phases)
    );
    let store = ["/store_ns/p50", "/bytes_with_rejected"];
    let density = numbers(&page, "Memory against the time of a store");
    assert_same(&density, &expected(combinations, &store));
    let mut buckets = Vec::new();
    for combination in combinations.as_array().unwrap() {
        let all = combination["load_ns"]["buckets"].as_array().unwrap().iter();
        let used: Vec<Value> = all.filter(|bucket| bucket["count"] != 0).cloned().collect();
        buckets.extend(expected(&used.into(), &["/from_ns", "/to_ns", "/count"]));
    }
    assert_same(&numbers(&page, "Load"), &buckets);
    let kinds = &document["compressed_lengths"][0]["kinds"];
    let counts = kinds[0]["pages_by_length"].as_array().unwrap();
    let counted: u64 = counts.iter().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!((counted, &kinds[0]["same_filled_pages"]), (180, &json!(20)));
    assert_eq!(document["combinations"][0]["same_filled_pages"], 20);
    // The store compresses the same pages to the same lengths.
    let refused = document["combinations"][0]["rejected_pages"].as_u64().unwrap();
    assert_eq!(refused, 0, "{document}");
    assert_eq!(kinds[0]["compressed_bytes"], document["combinations"][0]["compressed_bytes"]);
    let lengths = numbers(&page, "Compressed length, lz4");
    let drawn: f64 = lengths.chunks(3).map(|row| row[2]).sum();
    assert_eq!(drawn as u64, counted);
    assert_reads::<Report>(&document);
    assert!(page.contains("compare --corpus "), "no command line");
}

/// A report reads its document, and writes the same.
fn assert_reads<T: Serialize + DeserializeOwned>(document: &Value) {
    let report: T = serde_json::from_value(document.clone()).unwrap();
    assert_eq!(serde_json::to_value(&report).unwrap(), *document);
}

fn advice() {
    let lab = Lab::new();
    let path = lab.path("<b>");
    pages(&path);
    let page = page_of(&["advise", "--corpus", path.to_str().unwrap()]);
    let document = check(&page);
    assert_reads::<AdviceReport>(&document);
    let measured = &document["measured"];
    let ends = ["/bytes/estimate", "/bytes/low", "/bytes/high"];
    let memory = numbers(&page, "Memory of all pages");
    let all = document["target"]["bytes"].as_f64().unwrap();
    assert_same(&memory, &[expected(measured, &ends), vec![all]].concat());
    let sentence = document["verdict"][0].as_str().unwrap();
    assert!(page.contains(sentence), "{sentence}");
}

fn studies() {
    let index = page_of(&["bench", "index", "--keys", "1000", "--rounds", "2"]);
    let document = check(&index);
    let cells: Vec<Value> = document["cells"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|cell| cell["order"] == "random")
        .cloned()
        .collect();
    let spread = |name: &str| {
        let places = ["median", "min", "max"].map(|part| format!("/{name}/ns/{part}"));
        expected(&cells.clone().into(), &places.each_ref().map(String::as_str))
    };
    let names = ["insert", "lookup", "lookup_chain", "replace", "remove"];
    let times: Vec<f64> = names.into_iter().flat_map(spread).collect();
    assert_same(&numbers(&index, "1,000 keys, random"), &times);
    let map = page_of(&["bench", "map", "--seconds", "0.02"]);
    assert_eq!(check(&map)["command"], "bench map");
    let same_filled = page_of(&["bench", "same-filled", "--size", "1M", "--rounds", "1"]);
    let census = &check(&same_filled)["census"];
    let places = ["/pages", "/same_filled_pages", "/zero_pages", "/duplicate_pages"];
    assert_same(&numbers(&same_filled, "Pages by kind"), &expected(&json!([census]), &places));
    let load = ["bench", "swapload", "--size", "16M", "--seconds", "0.02", "--runs", "2"];
    let load = page_of(&load);
    let places = ["/index_ns/median", "/index_ns/min", "/index_ns/max"];
    let times = expected(&check(&load)["cells"], &places);
    assert_same(&numbers(&load, "Time of an operation of the index"), &times);
}

fn runs() {
    let page = run_page();
    let document = check(&page);
    let moved = ["/stored_pages", "/restored_pages", "/rescued_pages", "/fresh_pages"];
    let moved = expected(&json!([document["counts"]]), &moved);
    assert_same(&numbers(&page, "Pages that moved"), &moved);
    assert!(page.contains("<h3>Store</h3>"), "stores were not timed");
    let faults = numbers(&page, "Fault, from its arrival to the page");
    let faults: f64 = faults.chunks(3).map(|row| row[2]).sum();
    assert_eq!(faults as u64, document["fault_latencies"]["count"]);

    let page = live_page();
    let document = check(&page);
    let findings = &document["combinations"][0];
    let mut times = Vec::new();
    for (run, found) in findings["runs"].as_array().unwrap().iter().enumerate() {
        times.extend([(run + 1) as f64, found["real_s"].as_f64().unwrap()]);
    }
    assert_eq!(times.len(), 4);
    assert_same(&numbers(&page, "From start to end"), &times);
    let samples = findings["runs"][0]["timeline"].as_array().unwrap();
    let first = numbers(&page, findings["label"].as_str().unwrap());
    let seconds = samples[0]["ms"].as_f64().unwrap() / 1000.0;
    assert_same(&first[..2], &[seconds, samples[0]["resident_bytes"].as_f64().unwrap()]);
}

// ---- Text of others. ----

const HOSTILE: &str = "<script>alert(1)<b>\"&'-->";

fn hostile_names() {
    let lab = Lab::new();
    let path = lab.path(HOSTILE);
    pages(&path);
    let page = page_of(&["compare", "--corpus", path.to_str().unwrap(), "--runs", "1"]);
    let document = check(&page);
    assert!(document["corpus"]["origin"].as_str().unwrap().contains(HOSTILE), "{document}");
    assert!(page.contains("&lt;script&gt;alert(1)&lt;b&gt;&quot;&amp;&#39;--&gt;"));
    assert!(!page.contains("<b>"));
}

fn hostile_program() {
    let lab = Lab::new();
    let path = lab.path(HOSTILE);
    fs::write(&path, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let program = path.to_str().unwrap();
    for arguments in [
        &["run", "--limit", "64M", "--", program, "</script><script>x"][..],
        &["compare", "--limit", "64M", "--runs", "1", "--", program, "</script><script>x"],
    ] {
        let page = page_of(arguments);
        check(&page);
        assert!(page.contains("&lt;/script&gt;&lt;script&gt;x"), "{arguments:?}");
    }
}

// ---- Documents without data. ----

/// The same with every number 0, with every list empty, or with lists of one element.
fn reduced(document: &Value) -> Vec<Value> {
    fn map(value: &Value, change: fn(&Value) -> Option<Value>) -> Value {
        match change(value) {
            Some(changed) => changed,
            None => match value {
                Value::Array(all) => all.iter().map(|item| map(item, change)).collect(),
                Value::Object(fields) => {
                    let fields =
                        fields.iter().map(|(name, field)| (name.clone(), map(field, change)));
                    Value::Object(fields.collect())
                }
                other => other.clone(),
            },
        }
    }
    let zeros = |value: &Value| value.is_number().then(|| 0.into());
    let no_lists = |value: &Value| value.is_array().then(|| json!([]));
    let no_inner_lists = |value: &Value| {
        let is_inner = value.as_array().is_some_and(|all| {
            all.iter().all(|it| {
                it.get("label").is_none() && it.get("name").is_none() && it.get("index").is_none()
            })
        });
        is_inner.then(|| json!([]))
    };
    let short = |value: &Value| match value {
        Value::Array(all) if all.len() > 1 => Some(json!([all[0]])),
        _ => None,
    };
    [zeros, no_lists, no_inner_lists, short].map(|change| map(document, change)).to_vec()
}

fn check_reduced(document: &Value) {
    for reduced in reduced(document) {
        let page = html::page(&reduced, "uzswap").unwrap();
        let _: Value = check(&page);
        let again = html::page(&reduced, "uzswap").unwrap();
        assert_eq!(page, again, "a page differs from the one before");
    }
}

fn degenerate() {
    let comparison = document(&comparison_page());
    check_reduced(&comparison);
    check_enlarged(&comparison);
    for study in [
        &["bench", "index", "--keys", "100", "--rounds", "1"][..],
        &["bench", "map", "--seconds", "0.01"],
        &["bench", "same-filled", "--size", "1M", "--rounds", "1"],
        &["bench", "swapload", "--size", "16M", "--seconds", "0.01", "--runs", "1"],
    ] {
        check_reduced(&document(&page_of(study)));
    }
    let unknown = json!({ "schema": "uzswap-classes/1", "version": "1", "command": "classes",
        "created_at": "", "machine": { "kernel": "", "cpu": "", "cpus": 1 } });
    assert!(html::page(&unknown, "").unwrap_err().to_string().contains("has no page"));
}

fn degenerate_runs() {
    check_reduced(&document(&run_page()));
    let mut live = document(&live_page());
    check_reduced(&live);
    check_enlarged(&live);
    live["combinations"][0]["engine"] = "kernel".into();
    live["combinations"][0]["kernel"] = "zram".into();
    let failure = json!({ "kind": "did_not_fit", "message": "<too> small", "output": "" });
    live["combinations"][0]["failure"] = failure;
    let page = html::page(&live, "uzswap").unwrap();
    check(&page);
    assert!(page.contains("the kernel") && page.contains("&lt;too&gt; small"));
    check_reduced(&live);
}

/// A document of many combinations and runs.
fn enlarged(document: &Value, combinations: usize, runs: usize) -> Value {
    let mut large = document.clone();
    let all = large["combinations"].as_array_mut().unwrap();
    for list in ["runs", "real_s", "sys_s"] {
        if let Some(list) = all[0][list].as_array_mut() {
            *list = vec![list[0].clone(); runs];
        }
    }
    if let Some(samples) = all[0].pointer_mut("/runs/0/timeline") {
        *samples = vec![samples[0].clone(); 512].into();
        let run = all[0]["runs"][0].clone();
        all[0]["runs"] = vec![run; runs].into();
    }
    *all = vec![all[0].clone(); combinations];
    large
}

fn check_enlarged(document: &Value) {
    for (combinations, runs) in [(3, 5), (6, 40), (40, 20), (3, 300)] {
        let large = enlarged(document, combinations, runs);
        let page = html::page(&large, "uzswap").unwrap();
        let kept = check(&page);
        assert_eq!(kept["schema"], large["schema"]);
        assert!(kept == large || page.contains("--json=FILE writes all of"));
    }
}

// ---- Files that cannot be written. ----

fn unwritten() {
    let index = ["bench", "index", "--keys", "100", "--rounds", "1"];
    let output = uzswap(&[&index[..], &["--report=/dev/full"]].concat());
    expect_error(&output, 1, &["cannot write --report /dev/full", "os error 28"]);
    // The text is printed all the same.
    assert!(!output.stdout.is_empty());
    let output = uzswap(&[&index[..], &["--report=/no/such/folder/file"]].concat());
    expect_error(&output, 2, &["cannot write --report /no/such/folder/file", "os error 2"]);
    assert!(output.stdout.is_empty());
    let lab = Lab::new();
    let program = lab.path("program");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let output = uzswap(&["compare", "--report", program.to_str().unwrap()]);
    expect_error(&output, 2, &["--report", "it is a program; put -- before a command to run"]);
    assert_eq!(fs::read_to_string(&program).unwrap(), "#!/bin/sh\n");
}

fn unwritten_run() {
    let output = uzswap(&["run", "--limit", "64M", "--report=/dev/full", "--", "echo", "done"]);
    expect_error(&output, 1, &["cannot write --report /dev/full", "os error 28"]);
    assert_eq!(output.stdout, b"done\n");
    let output = uzswap(&["run", "--report=/no/such/folder/file", "--", "echo", "done"]);
    expect_error(&output, 2, &["cannot write --report /no/such/folder/file", "os error 2"]);
    assert!(output.stdout.is_empty());
}

// ---- In a browser. ----

/// The program of a browser with a headless mode.
fn browser() -> Option<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find_map(|name| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file()))
}

/// The elements that a browser makes of a page.
fn opened(page: &str) -> String {
    let lab = Lab::new();
    let path = lab.path("page.html");
    fs::write(&path, page).unwrap();
    let mut command = Command::new(browser().unwrap());
    command.args(["--headless", "--disable-gpu", "--no-sandbox", "--enable-logging=stderr"]);
    command.arg(format!("--user-data-dir={}", lab.path("profile").display()));
    let output = command.args([OsStr::new("--dump-dom"), path.as_os_str()]).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert!(!log.contains("CONSOLE"), "{log}");
    String::from_utf8(output.stdout).unwrap()
}

fn values(page: &str) -> Vec<&str> {
    page.split("<data value=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

fn check_opened(page: &str) {
    let dom = opened(page);
    assert_eq!(document(&dom), document(page));
    assert_eq!(values(&dom), values(page));
    let figures = |text: &str| text.matches("<figure>").count();
    assert_eq!(figures(&dom), figures(page));
    for element in ["rect", "circle", "polyline", "path", "text", "line"] {
        let count = |text: &str| text.matches(&format!("<{element} ")).count();
        assert_eq!(count(&dom), count(page), "{element}");
    }
}

fn browsed() {
    check_opened(&comparison_page());
    check_opened(&page_of(&["bench", "index", "--keys", "100", "--rounds", "1"]));
    check_opened(&page_of(&["bench", "map", "--seconds", "0.01"]));
}

fn browsed_runs() {
    check_opened(&run_page());
    check_opened(&live_page());
}
