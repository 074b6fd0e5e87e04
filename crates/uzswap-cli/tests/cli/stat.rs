//! Goal: `uzswap stat` tells what is in a snapshot, in three forms that agree, and which files are
//! none; statistics are Prometheus text by its rules.
//! Method: the command on files that were made here; a parser of the exposition format, written
//! after its specification, with the checks that Prometheus' own linter makes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{Lab, expect_error, expect_success};
use uzswap::backing::MemoryBacking;
use uzswap::page::{PAGE_SIZE, PageKey};
use uzswap::zswap::{TenantId, TenantOptions, Zswap, ZswapOptions};

const HARD_NAME: &str = "a \"b\" \\ c\nd";

fn store() -> Zswap {
    let options = ZswapOptions::default().max_pool_bytes(1000 << 12);
    let zswap = Zswap::with_backing(options, Box::new(MemoryBacking::new(100).unwrap())).unwrap();
    let name = HARD_NAME.to_owned();
    let options = TenantOptions::default().name(name).max_bytes(1 << 20).writeback(true);
    let tenant = zswap.add_tenant(TenantId::ROOT, options).unwrap();
    let mut page = [0; PAGE_SIZE];
    for key in 0..200_u64 {
        page[..8].copy_from_slice(&(key / 3).to_le_bytes());
        zswap.store_for(tenant, PageKey(key), &page).unwrap();
    }
    zswap.shrink(TenantId::ROOT, 30);
    for key in 0..300 {
        zswap.load(PageKey(key), &mut page).unwrap();
    }
    zswap
}

fn stat(path: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uzswap"))
        .arg("stat")
        .arg(path)
        .args(arguments)
        .output()
        .unwrap()
}

/// A sample's labels.
type Labels = BTreeMap<String, String>;

/// A family of samples: kind, help, and name, labels and value of each.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    samples: Vec<(String, Labels, f64)>,
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn parse_labels(text: &str) -> Labels {
    let mut labels = Labels::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").unwrap();
        assert!(is_name(name), "{text}");
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next().expect("a label's value ends") {
                (at, '"') => break at + 1,
                (_, '\\') => value.push(match chars.next().unwrap().1 {
                    'n' => '\n',
                    escaped @ ('\\' | '"') => escaped,
                    other => panic!("\\{other} in {text}"),
                }),
                (_, other) => value.push(other),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "twice in {text}");
        rest = &after[end..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    labels
}

/// Reads the text exposition format: families one after the other, HELP and TYPE before samples.
fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'));
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            current = name.to_owned();
            let family = Family { help: help.to_owned(), ..Family::default() };
            assert!(families.insert(current.clone(), family).is_none(), "{name} twice");
            continue;
        }
        let family = families.get_mut(&current).unwrap();
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(name == current && family.samples.is_empty());
            family.kind = kind.to_owned();
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.replace("+Inf", "inf").parse().unwrap();
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, parse_labels(labels.strip_suffix('}').unwrap())),
            None => (series, Labels::new()),
        };
        let allowed = match family.kind.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"].map(|end| format!("{current}{end}")),
            _ => [current.clone(), String::new(), String::new()],
        };
        assert!(is_name(name) && allowed.contains(&name.to_owned()), "{line}");
        family.samples.push((name.to_owned(), labels, value));
    }
    families
}

#[test]
fn prometheus_text_follows_its_rules() {
    let stats = store().stats();
    let families = parse(&stats.prometheus());
    for (name, family) in &families {
        assert!(family.help.len() > 10 && name.starts_with("uzswap_"), "{name}");
        match family.kind.as_str() {
            "counter" => assert!(name.ends_with("_total"), "{name}"),
            "gauge" => assert!(!name.ends_with("_total"), "{name}"),
            "histogram" => {
                assert!(name.ends_with("_seconds"), "{name}");
                let of = |end: &str| -> Vec<&(String, Labels, f64)> {
                    family.samples.iter().filter(|sample| sample.0.ends_with(end)).collect()
                };
                let (buckets, sum, count) = (of("_bucket"), of("_sum"), of("_count"));
                let le = |sample: &(String, Labels, f64)| -> f64 {
                    sample.1["le"].replace("+Inf", "inf").parse().unwrap()
                };
                assert!(buckets.is_sorted_by(|a, b| le(a) < le(b) && a.2 <= b.2), "{name}");
                let last = buckets.last().unwrap();
                assert!(le(last).is_infinite() && last.2 == count[0].2, "{name}");
                assert!(sum.len() == 1 && sum[0].2 >= 0.0 && buckets.len() == 28);
            }
            other => panic!("{name} is {other}"),
        }
    }
    for counter in stats.counters.list() {
        let names = ["", "_total", "_bytes"].map(|end| format!("uzswap_{}{end}", counter.name));
        let found: Vec<&Family> = names.iter().filter_map(|name| families.get(name)).collect();
        assert_eq!(found.len(), 1, "{}", counter.name);
        assert_eq!(
            found[0].samples,
            [(found[0].samples[0].0.clone(), Labels::new(), counter.value as f64)]
        );
    }
    let stores = &families["uzswap_store_seconds"];
    assert_eq!(stores.samples.last().unwrap().2, stats.latencies.store.count as f64);
    let sum = stores.samples[stores.samples.len() - 2].2;
    assert!((sum - stats.latencies.store.sum_ns as f64 / 1e9).abs() < 1e-9);
    let tenant = &families["uzswap_tenant_max_bytes"].samples;
    assert_eq!((tenant[1].1["name"].as_str(), tenant[1].2), (HARD_NAME, (1 << 20) as f64));
    assert!(tenant[0].2.is_infinite());
    assert_eq!(families["uzswap_backing_blocks"].samples[0].2, 100.0);
}

#[test]
fn three_forms_of_one_snapshot_agree() {
    let lab = Lab::new();
    let path = lab.path("s");
    let zswap = store();
    let summary = zswap.snapshot(&path).unwrap();

    let output = stat(&path, &["--json", "--verify"]);
    expect_success(&output);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((json["pages"].as_u64(), json["verified_pages"].as_u64()), (Some(200), Some(200)));
    assert_eq!(json["file_bytes"].as_u64(), Some(summary.file_bytes));
    assert_eq!(json["stats"]["options"]["zpool"], "zsmalloc");
    assert_eq!(json["stats"]["tenants"][1]["name"], HARD_NAME);

    let output = stat(&path, &["--prometheus"]);
    expect_success(&output);
    let families = parse(std::str::from_utf8(&output.stdout).unwrap());
    let stored = json["stats"]["counters"]["stored_pages"].as_u64().unwrap();
    assert_eq!(families["uzswap_stored_pages"].samples[0].2, stored as f64);

    let output = stat(&path, &["--verify"]);
    expect_success(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    for words in [
        "200 pages decompressed",
        "second-chance, checksums on",
        "compressed, in the pool",
        "a \"b\" \\ c?d",
        "zswpout",
        "of 400 KiB: memory",
        "p99",
    ] {
        assert!(text.contains(words), "no '{words}' in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn what_is_no_whole_snapshot_is_refused_by_its_kind() {
    let lab = Lab::new();
    let path = lab.path("s");
    store().snapshot(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let refused = |bytes: &[u8], code, words: &[&str]| {
        let other = lab.path("other");
        fs::write(&other, bytes).unwrap();
        expect_error(&stat(&other, &[]), code, words);
    };
    refused(&bytes[..bytes.len() - 1], 1, &["truncated", "1 bytes before the end of the trailer"]);
    let mut changed = bytes.clone();
    changed[bytes.len() - 200] ^= 4;
    refused(&changed, 1, &["damaged in block 0", "checksum", "older copy"]);
    changed = [&bytes[..], b"x"].concat();
    refused(&changed, 1, &["data follows the end"]);
    changed[8] = 9;
    refused(&changed, 2, &["version 9", "reads versions 1 to 2"]);
    refused(b"#!/bin/sh\nexit 0\n", 2, &["not a snapshot", "#!/bin/s"]);
    refused(b"", 1, &["truncated: the file ends at byte 0"]);
    expect_error(&stat(&lab.path("none"), &[]), 2, &["cannot open snapshot", "No such file"]);
    expect_error(&stat(lab.directory.path(), &[]), 2, &["directory"]);
    expect_error(&stat(&path, &["--json", "--prometheus"]), 2, &["cannot be used with"]);
}
