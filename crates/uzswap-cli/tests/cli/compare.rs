//! Goal: `uzswap compare` does its whole job as a user starts it, and says why when it cannot.
//! Method: the real binary on small corpora; its text, JSON and CSV; every exit code; a run that is
//! killed, an interrupt.
//! Blind to: times.

use crate::support::{expect_error, stdout_alone, text};
use uzswap::random::SplitMix64;
use uzswap_testing::{golden, wait_for};

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

const PAGE: usize = 4096;
const SIGTERM: i32 = 15;

fn uzswap() -> Command {
    Command::new(env!("CARGO_BIN_EXE_uzswap"))
}

fn run(args: &[&str]) -> Output {
    uzswap().args(args).stdin(Stdio::null()).output().expect("the binary starts")
}

/// Standard output of a run that must end well and keep standard error empty.
fn stdout_of(args: &[&str]) -> String {
    stdout_alone(run(args))
}

/// The lines of a page fit a terminal of 80 columns.
fn expect_narrow(page: &str) {
    for line in page.lines() {
        assert!(line.len() <= 80 && line.is_ascii(), "{line}");
        assert_eq!(line, line.trim_end());
    }
}

/// 300 pages: some of one word, some of text, some that do not shrink.
fn corpus(folder: &TempDir) -> PathBuf {
    let mut bytes = Vec::new();
    let mut words = SplitMix64::new(7);
    let mut random = || words.next_word() as u8;
    for number in 0..300 {
        match number % 10 {
            0 => bytes.extend([0x5a; PAGE]),
            1 => bytes.extend((0..PAGE).map(|_| random())),
            kind => bytes.extend((0..PAGE).map(|at| match at % (8 * kind) {
                0..4 => random(),
                _ => b'a' + kind as u8,
            })),
        }
    }
    let path = folder.path().join("pages");
    fs::write(&path, bytes).expect("the temporary folder is writable");
    path
}

#[test]
fn units_are_told_apart_and_keep_the_same_pages() {
    let args = ["compare", "--size", "4M", "--runs", "1", "--zpool", "zsmalloc", "--json"];
    let units = ["--unit", "4K,16k,64K", "--compressor", "zstd:1"];
    let report: Value = serde_json::from_str(&stdout_of(&[&args[..], &units].concat())).unwrap();
    let rows = report["combinations"].as_array().unwrap();
    let name = |row: &Value| row["name"].as_str().unwrap().to_owned();
    let names: Vec<String> = rows.iter().map(name).collect();
    assert_eq!(names, ["zsmalloc 4K", "zsmalloc 16K", "zsmalloc 64K"]);
    let unit_pages = |row: &Value| row["unit_pages"].as_u64();
    assert_eq!(rows.iter().map(unit_pages).collect::<Vec<_>>(), [None, Some(4), Some(16)]);
    for row in rows {
        assert_eq!(row["base"], "zsmalloc 4K");
        for same in ["stored_pages", "same_filled_pages", "verified_pages", "freed_pages"] {
            assert_eq!(row[same], rows[0][same], "{same}");
        }
    }
    let bytes = |row: usize| rows[row]["compressed_bytes"].as_u64().unwrap();
    assert!(bytes(1) < bytes(0), "{} bytes in units, {} alone", bytes(1), bytes(0));
    for (args, told) in [
        (&["--unit", "12K"][..], "expected 4K, 8K, 16K, 32K or 64K"),
        (&["--unit", "16383"][..], "expected 4K, 8K, 16K, 32K or 64K"),
        (&["--unit", "16K", "--compressor", "lz4,lzo"], "'lzo' takes one page at a time; use lz4"),
        (&["--unit", "16K", "--max-pool", "1M"], "cannot be used with"),
    ] {
        let output = run(&[&["compare"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(told), "no '{told}' in: {message}");
    }
}

#[test]
fn the_verdict_comes_first_and_tables_fit_80_columns() {
    let folder = TempDir::new().unwrap();
    let pages = corpus(&folder);
    let page = stdout_of(&["compare", "--corpus", text(&pages), "--runs", "2"]);
    let first = page.lines().next().unwrap();
    assert!(first.starts_with("Use ") || first.starts_with("Do not compress"), "{page}");
    for part in ["real z3fold zstd", "STORE p50", "POOL", "ALL IN", "HALF FREED", "--details"] {
        assert!(page.contains(part), "'{part}' is missing:\n{page}");
    }
    for part in ["|@", "sys ", "\nsettings ", "SUMMARY"] {
        assert!(!page.contains(part), "'{part}' is a detail:\n{page}");
    }
    expect_narrow(&page);
}

#[test]
fn the_details_have_every_section_and_fit_80_columns() {
    let folder = TempDir::new().unwrap();
    let pages = corpus(&folder);
    let page = stdout_of(&["compare", "--corpus", text(&pages), "--runs", "2", "--details"]);
    for part in [
        "corpus ",
        "settings ",
        "machine ",
        "(a) RUN TIME",
        "LABEL ",
        "MEDIAN",
        "real zsmalloc lz4",
        "sys  zbud lz4",
        "user z3fold lz4",
        "(b) LATENCY",
        "STORE p50",
        "p99",
        "z3fold lz4, load",
        "|@",
        "(c) PEAK POOL SIZE",
        "REFUSED",
        "ALL IN",
        "(d) POOL AFTER FREEING",
        "HALF FREED",
        "COMPACTED",
        "REFILLED",
        "SUMMARY",
        "Fastest with lz4",
        "Densest with lz4",
        "The trade",
    ] {
        assert!(page.contains(part), "'{part}' is missing:\n{page}");
    }
    expect_narrow(&page);
}

/// Against an older document: equal sizes hold, others break a bound, and CI sees it.
#[test]
fn a_baseline_has_bounds_that_hold_or_not() {
    let folder = TempDir::new().unwrap();
    let (pages, old) = (corpus(&folder), folder.path().join("old.json"));
    let compare = ["compare", "--corpus", text(&pages), "--runs", "3", "--zpool", "zsmalloc"];
    stdout_of(&[&compare[..], &["--json", text(&old)]].concat());
    let against = ["--baseline", text(&old), "--fail-on", "pool>1%,all_in>1%,ratio<-1%"];
    let page = stdout_of(&[&compare[..], &against].concat());
    assert!(page.contains("CHANGE SINCE THE BASELINE"), "{page}");
    assert!(!page.contains("FAILED") && !page.contains("Note: The pages"), "{page}");

    let larger = ["--incompressible", "store-as-is", "--json"];
    let output = run(&[&compare[..], &against, &larger].concat());
    expect_error(&output, 1, &["--fail-on: pool>1%: zsmalloc lz4 changed by +"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let broken = document["baseline"]["broken_bounds"].as_array().unwrap();
    assert!(!broken.is_empty(), "{document}");
    let notes = document["baseline"]["notes"].to_string();
    assert!(notes.contains("settings"), "{notes}");

    for (arguments, why) in [
        (&["--baseline", "/nope"][..], "/nope"),
        (&["--baseline", text(&pages)], "cannot read --baseline"),
        (&["--fail-on", "pool>1%"], "--baseline"),
        (&["--baseline", text(&old), "--fail-on", "pol>1%"], "no figure 'pol'"),
    ] {
        expect_error(&run(&[&compare[..], arguments].concat()), 2, &[why]);
    }
}

#[test]
fn the_built_in_workload_is_the_default() {
    let page = stdout_of(&["compare", "--size", "2M", "--runs", "1", "--zpool", "z3fold,zbud"]);
    assert!(page.contains("workload mixed, seed 1"), "{page}");
    let notes: Vec<&str> = page.split("\n\n").next().unwrap().split("Note: ").collect();
    assert!(notes.iter().any(|it| it.starts_with("These pages come from a built-in")), "{page}");
    assert!(notes.iter().any(|it| it.starts_with("Only ")), "{page}");
    // No zsmalloc: the first is the base.
    let base = page.lines().find(|line| line.contains("base")).unwrap();
    assert!(base.starts_with("real z3fold lz4"), "{base}");
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("'{key}' is no number in {value}"))
}

/// Pages of addresses near each other: their upper bytes are the same, at a distance of 8.
fn corpus_of_pointers(folder: &TempDir) -> PathBuf {
    let mut words = SplitMix64::new(7);
    let mut pointer = || (0x7f00_0000_0000 | words.next_word() & 0xff_fff8).to_le_bytes();
    let path = folder.path().join("pointers");
    fs::write(&path, (0..300 * PAGE / 8).flat_map(|_| pointer()).collect::<Vec<u8>>()).unwrap();
    path
}

#[test]
fn filters_are_compared_with_each_other() {
    let folder = TempDir::new().unwrap();
    let pages = corpus_of_pointers(&folder);
    let args = ["compare", "--corpus", text(&pages), "--runs", "1", "--zpool", "zsmalloc"];
    let with = |more: &[&str]| stdout_of(&[&args[..], more].concat());
    let filters = ["--compressor", "lz4", "--filter", "none,auto,auto"];
    let document = with(&[&filters[..], &["--json"]].concat());
    let document: Value = serde_json::from_str(&document).unwrap();
    let runs = document["combinations"].as_array().unwrap();
    let names: Vec<&str> = runs.iter().map(|run| run["compressor"].as_str().unwrap()).collect();
    assert_eq!(names, ["lz4", "lz4~auto"]);
    let bytes = runs.iter().map(|run| number(run, "compressed_bytes")).collect::<Vec<_>>();
    assert!(bytes[1] * 3 < bytes[0] * 2, "{bytes:?}");
    assert_eq!(number(&runs[1], "verified_pages"), 300);
    let page = with(&filters);
    assert!(page.starts_with("Use zsmalloc + lz4~auto: "), "{page}");
    assert!(page.contains("zsmalloc lz4~auto"), "{page}");

    let refused = run(&["compare", "--compressor", "lz4,none", "--filter", "none,auto"]);
    let why = "--filter auto does not work with --compressor none; choose another compressor";
    expect_error(&refused, 2, &[why]);
}

#[test]
fn the_json_document_is_complete_and_adds_up() {
    let folder = TempDir::new().unwrap();
    let pages = corpus(&folder);
    let args = [
        "compare",
        "--corpus",
        text(&pages),
        "--runs",
        "3",
        "--json",
        "--compressor",
        "lz4,zstd",
        "--object-header",
        "zbud=8,z3fold=8",
    ];
    let document: Value = serde_json::from_str(&stdout_of(&args)).unwrap();
    let corpus = &document["corpus"];
    assert_eq!(number(corpus, "pages"), 300);
    assert_eq!(corpus["sha256"].as_str().map(str::len), Some(64));
    let runs = document["combinations"].as_array().unwrap();
    let labels: Vec<String> = runs
        .iter()
        .map(|run| format!("{} {}", run["zpool"], run["compressor"]).replace('"', ""))
        .collect();
    assert_eq!(
        labels,
        ["zsmalloc lz4", "zbud lz4", "z3fold lz4", "zsmalloc zstd", "zbud zstd", "z3fold zstd"]
    );
    for run in runs {
        let rejects: u64 = [
            "reject_compress_poor",
            "reject_compress_fail",
            "reject_alloc_fail",
            "reject_kmemcache_fail",
        ]
        .into_iter()
        .map(|key| number(run, key))
        .sum();
        assert_eq!(number(run, "stored_pages") + rejects, 300);
        assert_eq!(number(run, "verified_pages"), number(run, "stored_pages"));
        assert_eq!(number(run, "same_filled_pages"), 30);
        let (full, free) = (number(run, "pool_total_size"), number(run, "pool_after_free_bytes"));
        assert!(full.is_multiple_of(PAGE as u64) && free <= full);
        assert!(number(run, "pool_after_compact_bytes") <= free);
        assert!(number(run, "compressed_bytes") < full);
        assert!(number(run, "metadata_bytes") > 0);
        // Real memory holds what is accounted for, and little else.
        let accounted = full + number(run, "metadata_bytes") + number(run, "reserve_bytes");
        let rss = number(run, "rss_bytes");
        assert!(rss >= full && rss < accounted + (1 << 20), "{rss} of {accounted}");
        for key in ["real_s", "sys_s", "user_s"] {
            assert_eq!(run[key].as_array().map(Vec::len), Some(3), "{key}");
        }
        for (key, stored) in [("store_ns", 300), ("load_ns", number(run, "stored_pages"))] {
            let latency = &run[key];
            let steps = ["p50", "p90", "p99", "max"].map(|step| number(latency, step));
            assert!(steps.is_sorted() && steps[0] > 0, "{steps:?}");
            let buckets = latency["buckets"].as_array().unwrap();
            let count: u64 = buckets.iter().map(|bucket| number(bucket, "count")).sum();
            assert_eq!(count, 3 * stored, "{key}");
            for bucket in buckets {
                assert!(number(bucket, "from_ns") * 2 <= number(bucket, "to_ns").max(2));
            }
        }
    }
    let percent = runs[1]["pool_percent_of_base"].as_f64().unwrap();
    let bytes = number(&runs[1], "pool_total_size") as f64;
    assert!((percent - bytes / number(&runs[0], "pool_total_size") as f64 * 100.0).abs() < 1e-9);
}

#[test]
fn one_allocator_alone_has_its_compressors_compared_with_each_other() {
    let folder = TempDir::new().unwrap();
    let pages = corpus(&folder);
    let of = |zpools: &str| {
        let args = ["compare", "--corpus", text(&pages), "--runs", "1", "--zpool", zpools];
        let args = [&args[..], &["--compressor", "lz4,zstd", "--json"]].concat();
        let json: Value = serde_json::from_str(&stdout_of(&args)).unwrap();
        let rows = json["combinations"].as_array().unwrap().clone();
        rows.iter().map(|row| row["pool_percent_of_base"] == 100.0).collect::<Vec<bool>>()
    };
    assert_eq!(of("zsmalloc,zsmalloc"), [true, false]);
    assert_eq!(of("zbud,zsmalloc"), [false, true, false, true]);
    let args = ["compare", "--corpus", text(&pages), "--runs", "1", "--zpool", "zbud"];
    let page = stdout_of(&[&args[..], &["--compressor", "lz4,zstd"]].concat());
    let is_base = |line: &str| line.split('|').any(|cell| cell.trim() == "base");
    let bases: Vec<&str> = page.lines().filter(|line| is_base(line)).collect();
    assert!(bases.len() >= 2 && bases.iter().all(|line| line.contains("lz4")), "{page}");
}

#[test]
fn the_csv_has_a_row_a_run() {
    let args = [
        "compare",
        "--size",
        "1M",
        "--runs",
        "2",
        "--csv",
        "--zpool",
        "zsmalloc",
        "--compressor",
        "lz4,none",
        "--incompressible",
        "store-as-is",
    ];
    let rows: Vec<String> = stdout_of(&args).lines().map(str::to_owned).collect();
    assert_eq!(rows.len(), 1 + 2 * 2);
    assert!(
        rows[0].starts_with("zpool,compressor,index,mapping,run,pages,stored_pages,"),
        "{}",
        rows[0]
    );
    let fields = rows[0].split(',').count();
    assert!(rows.iter().all(|row| row.split(',').count() == fields));
    assert!(
        rows[1].starts_with("zsmalloc,lz4,radix,contiguous,1,")
            && rows[4].starts_with("zsmalloc,none,radix,contiguous,2,")
    );
}

#[test]
fn sizes_are_stored_as_given() {
    let folder = TempDir::new().unwrap();
    let list = folder.path().join("sizes");
    fs::write(
        &list,
        "# two same-filled\n0\n0\n\n1\n100 # text\n2048\n3960\n3961\n4088\n4089\n4096\n",
    )
    .unwrap();
    let args = [
        "compare",
        "--sizes",
        text(&list),
        "--runs",
        "1",
        "--json",
        "--object-header",
        "zbud=8,z3fold=8",
    ];
    let document: Value = serde_json::from_str(&stdout_of(&args)).unwrap();
    let runs = document["combinations"].as_array().unwrap();
    let figures: Vec<(u64, u64, u64)> = runs
        .iter()
        .map(|run| {
            assert_eq!(run["compressor"], "sizes");
            assert_eq!(number(run, "same_filled_pages"), 2);
            assert_eq!(number(run, "verified_pages"), number(run, "stored_pages"));
            let rejected = number(run, "reject_compress_poor");
            (number(run, "stored_pages"), rejected, number(run, "compressed_bytes"))
        })
        .collect();
    // With their headers, zbud takes objects up to 3968 bytes and z3fold up to 4096.
    let small = 1 + 100 + 2048 + 3960;
    assert_eq!(
        figures,
        [(10, 0, small + 3961 + 4088 + 4089 + 4096), (6, 4, small), (8, 2, small + 3961 + 4088)]
    );
    let page = stdout_of(&["compare", "--sizes", text(&list), "--runs", "1"]);
    assert!(page.contains("contents made up") && !page.contains("zbud=8,z3fold=8"));
}

#[test]
fn a_list_of_sizes_gives_the_figures_of_kernel_6_1() {
    let folder = TempDir::new().unwrap();
    let list = folder.path().join("sizes");
    let kernel =
        golden::Line::all(include_str!("../../../uzswap-testing/data/kernel-6.1-zswap.csv"));
    for corpus in ["mixed", "cc1"] {
        let sizes = golden::sizes(corpus, "lz4");
        let lines: Vec<String> = sizes.iter().map(u16::to_string).collect();
        fs::write(&list, lines.join("\n")).unwrap();
        let args = format!(
            "compare --json --runs 1 --chain-size 4 --chain-rule used-percent \
             --object-header zbud=8,z3fold=8 --sizes {}",
            text(&list)
        );
        let args: Vec<&str> = args.split(' ').collect();
        let document: Value = serde_json::from_str(&stdout_of(&args)).unwrap();
        for run in document["combinations"].as_array().unwrap() {
            let zpool = run["zpool"].as_str().unwrap();
            let line = kernel.iter().find(|line| {
                ["corpus", "compressor", "zpool"].map(|name| line.text(name))
                    == [corpus, "lz4", zpool]
            });
            for (key, column) in [
                ("pool_total_size", "pool_bytes"),
                ("pool_after_free_bytes", "pool_after_rand50_freed"),
                ("pool_after_refill_bytes", "pool_after_refill"),
            ] {
                let (ours, theirs) = (number(run, key), line.unwrap().number(column).unwrap());
                // Once objects were freed, z3fold depends on when a kernel worker ran.
                let exact = zpool != "z3fold" || key == "pool_total_size";
                let off = if exact { 0 } else { theirs / 50 };
                assert!(ours.abs_diff(theirs) <= off, "{corpus} {zpool} {key}: {ours} {theirs}");
            }
        }
    }
}

#[test]
fn odd_pages_can_be_freed() {
    let folder = TempDir::new().unwrap();
    let list = folder.path().join("sizes");
    fs::write(&list, "1500\n".repeat(1000)).unwrap();
    let args = [
        "compare",
        "--sizes",
        text(&list),
        "--runs",
        "1",
        "--json",
        "--free",
        "odd",
        "--zpool",
        "zbud",
    ];
    let document: Value = serde_json::from_str(&stdout_of(&args)).unwrap();
    let run = &document["combinations"][0];
    assert_eq!(number(run, "freed_pages"), 500);
    // Two neighbours share a page, and one of each two goes: no page comes free.
    assert_eq!(number(run, "pool_total_size"), 500 * 4096);
    assert_eq!(number(run, "pool_after_free_bytes"), 500 * 4096);
}

#[test]
fn the_same_filled_check_can_be_chosen() {
    let folder = TempDir::new().unwrap();
    let pages = corpus(&folder); // 30 pages of 0x5a
    let report = |flags: &[&str]| -> Value {
        let args = ["compare", "--corpus", text(&pages), "--runs", "1", "--json"];
        serde_json::from_str(&stdout_of(&[&args, flags].concat())).unwrap()
    };
    for (flags, check, zero_only, same_filled) in [
        (&[][..], "vector", false, 30),
        (&["--same-filled", "backward"], "backward", false, 30),
        (&["--same-filled", "off"], "off", false, 0),
        (&["--same-filled-zero-only"], "vector", true, 0),
    ] {
        let report = report(flags);
        assert_eq!(report["settings"]["same_filled"], check);
        assert_eq!(report["settings"]["same_filled_zero_only"], zero_only);
        let run = &report["combinations"][0];
        assert_eq!(number(run, "same_filled_pages"), same_filled, "{flags:?}");
        assert_eq!(number(run, "verified_pages"), number(run, "stored_pages"), "{flags:?}");
    }
    let args = ["--same-filled", "forward", "--same-filled-zero-only", "--runs", "1", "--details"];
    let page = stdout_of(&[&["compare", "--corpus", text(&pages)][..], &args].concat());
    let words = page.split_whitespace().collect::<Vec<&str>>().join(" ");
    assert!(words.contains("same-filled pages: forward, zero only;"), "{page}");
}

#[test]
fn a_command_can_be_compared_and_keeps_off_standard_output() {
    let binary = env!("CARGO_BIN_EXE_uzswap");
    let args = [
        "compare", "--runs", "1", "--zpool", "zsmalloc", "--json", "--", binary, "workload",
        "text", "--size", "4M",
    ];
    let output = run(&args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.starts_with("text 4.0 MiB seed 1"), "what the command prints: {stderr}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(number(&document["corpus"], "pages") > 0, "{}", document["corpus"]);
    assert_eq!(
        number(&document["combinations"][0], "verified_pages"),
        number(&document["combinations"][0], "stored_pages")
    );

    let args = ["compare", "--runs", "1", "--zpool", "zsmalloc", "--", "no-such-command-here"];
    expect_error(&run(&args), 2, &["no-such-command-here"]);
}

#[test]
fn a_running_process_can_be_compared() {
    let mut process = uzswap()
        .args(["workload", "json-tree", "--size", "2M", "--hold"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"));
    let pid = process.id().to_string();
    let page = stdout_of(&["compare", "--pid", &pid, "--runs", "1"]);
    assert!(page.contains(&format!("process {pid} (uzswap)")), "{page}");
    drop(process.stdin.take());
    assert!(process.wait().unwrap().success(), "it goes on as if nothing had been");
}

/// 300 pages in a pool of 60 KiB, which is less than half of what they need.
fn limited(pages: &Path, flags: &[&str]) -> Value {
    let args = ["compare", "--runs", "1", "--json", "--zpool", "zsmalloc", "--max-pool", "60K"];
    let corpus = ["--corpus", text(pages)];
    serde_json::from_str(&stdout_of(&[&args, &corpus[..], flags].concat())).unwrap()
}

fn sum_of_first_run(access: &Value, keys: &[&str]) -> u64 {
    keys.iter().map(|key| access[key][0].as_u64().unwrap()).sum()
}

#[test]
fn a_limited_pool_with_a_backing_loses_nothing() {
    let folder = TempDir::new().unwrap();
    let pages = corpus(&folder);
    let backing = folder.path().join("backing");
    for extra in [
        &[][..],
        &["--exclusive"],
        &["--when-full", "bypass", "--written-as", "objects", "--checksum", "on"],
        &["--shrinker", "on,dynamic", "--exclusive", "--accept-threshold", "60"],
        &["--incompressible", "store-as-is", "--skew", "0", "--accesses", "777"],
    ] {
        let flags = [
            &["--compressor", "lz4", "--backing", text(&backing), "--lru"][..],
            &["frequency,plain"],
            extra,
        ];
        let report = limited(&pages, &flags.concat());
        assert_eq!(report["settings"]["limits"]["backing"]["path"], text(&backing));
        let runs = report["combinations"].as_array().unwrap();
        assert_eq!(runs.len(), if extra.contains(&"on,dynamic") { 4 } else { 2 });
        for run in runs {
            let access = &run["access"];
            let accesses = if extra.contains(&"777") { 777 } else { 4 * 300 };
            assert_eq!(number(access, "accesses"), accesses);
            assert_eq!(number(run, "verified_pages"), 300, "{extra:?}: every page is somewhere");
            assert_eq!(number(run, "rejected_pages"), 0, "{extra:?}");
            assert!(number(access, "pool_peak_bytes") <= 60 << 10);
            let share = |key: &str| access[key].as_f64().unwrap();
            assert_eq!(share("miss_share"), 0.0);
            assert!((share("pool_hit_share") + share("backing_hit_share") - 1.0).abs() < 1e-9);
            assert!(share("pool_hit_share") > 0.1 && share("backing_hit_share") > 0.0);
            let loads = ["pool_load_ns", "backing_load_ns"]
                .map(|key| number(&access[key], "count"))
                .iter()
                .sum::<u64>();
            let stores = if extra.contains(&"--exclusive") { accesses } else { 0 };
            assert_eq!((loads, number(&access["store_ns"], "count")), (accesses, stores));
            let left = sum_of_first_run(access, &["written_back_pages", "written_through_pages"]);
            assert!(left > 0 && sum_of_first_run(access, &["written_bytes"]) > 0, "{access}");
        }
        assert!(!backing.exists(), "what was made is removed");
    }
}

#[test]
fn a_limited_pool_without_backing_refuses_and_says_so() {
    let folder = TempDir::new().unwrap();
    let pages = corpus(&folder);
    for when_full in ["reclaim", "bypass"] {
        let report = limited(&pages, &["--when-full", when_full]);
        let (run, access) = (&report["combinations"][0], &report["combinations"][0]["access"]);
        let refused = sum_of_first_run(access, &["refused_pages"]);
        assert!(refused > 100, "{when_full}: {refused}");
        assert_eq!(number(run, "rejected_pages"), refused);
        assert_eq!(access["backing_hit_share"], 0.0);
        let shares = ["pool_hit_share", "miss_share"].map(|key| access[key].as_f64().unwrap());
        assert!((shares[0] + shares[1] - 1.0).abs() < 1e-9 && shares[1] > 0.0, "{shares:?}");
        assert!(number(access, "pool_peak_bytes") <= 60 << 10);
        let sentence = report["summary"].as_array().unwrap().last().unwrap().to_string();
        assert!(sentence.contains("Refused by a full pool"), "{sentence}");
    }
}

#[test]
fn a_run_without_limits_has_no_word_of_them() {
    let args = ["compare", "--size", "1M", "--runs", "1", "--zpool", "zbud"];
    let report: Value =
        serde_json::from_str(&stdout_of(&[&args[..], &["--json"]].concat())).unwrap();
    let run = &report["combinations"][0];
    let absent = [&report["settings"]["limits"], &run["limit"], &run["access"]];
    assert!(absent.into_iter().all(Value::is_null), "{report}");
    assert!(run["phases"][0]["access"].is_null());
    let page = stdout_of(&args);
    assert!(!page.contains("(e)") && !page.contains("limits ") && !page.contains("ACCESS"));
    assert!(!stdout_of(&[&args[..], &["--csv"]].concat()).contains("max_pool"));
}

#[test]
fn limits_are_in_the_text_and_the_csv() {
    let folder = TempDir::new().unwrap();
    let (pages, backing) = (corpus(&folder), folder.path().join("backing"));
    let args = [
        "compare",
        "--corpus",
        text(&pages),
        "--runs",
        "2",
        "--zpool",
        "zsmalloc,zbud",
        "--max-pool",
        "none,100K",
        "--backing",
        text(&backing),
        "--lru",
        "second-chance,frequency,plain,protected",
        "--exclusive",
        "--details",
        "--compressor",
        "lz4",
    ];
    let page = stdout_of(&args);
    assert!(page.starts_with("Most accesses a second: "), "{page}");
    for part in [
        "limits    pool none,100K,",
        "(e) ACCESSES UNDER A LIMIT",
        "POOL HIT",
        "WRITEBACK",
        "Best hit rate of a limited pool with lz4: ",
        "Store p99 with lz4 against zsmalloc unlimited",
        " | 0.1 MiB",
    ] {
        assert!(page.contains(part), "'{part}' is missing:\n{page}");
    }
    expect_narrow(&page);
    let rows: Vec<String> =
        stdout_of(&[&args[..], &["--csv"]].concat()).lines().map(str::to_owned).collect();
    assert_eq!(rows.len(), 1 + 2 * 2 * 5);
    assert!(rows[0].contains(",max_pool_bytes,lru,"), "{}", rows[0]);
    let fields = rows[0].split(',').count();
    assert!(rows.iter().all(|row| row.split(',').count() == fields));
    assert!(rows[3].contains(",102400,second-chance,pages,reclaim,off,"), "{}", rows[3]);
}

#[test]
fn lists_of_sizes_can_be_limited_too() {
    let folder = TempDir::new().unwrap();
    let (list, backing) = (folder.path().join("sizes"), folder.path().join("backing"));
    fs::write(&list, "900\n2000\n0\n4096\n".repeat(100)).unwrap();
    for form in ["pages", "objects"] {
        let args = ["--zpool", "z3fold", "--json", "--runs", "1", "--max-pool", "64K"];
        let files = ["compare", "--sizes", text(&list), "--backing", text(&backing)];
        let output = stdout_of(&[&files[..], &args, &["--written-as", form]].concat());
        let report: Value = serde_json::from_str(&output).unwrap();
        assert_eq!(number(&report["combinations"][0], "verified_pages"), 400, "{form}");
    }
}

#[test]
fn a_backing_that_cannot_be_had_is_explained() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        text(&path).to_owned()
    };
    let (pages, theirs) = (corpus(&folder), file("theirs", b"a letter"));
    let fresh = text(&folder.path().join("fresh")).to_owned();
    let directory = text(folder.path()).to_owned();
    let nowhere = format!("{directory}/no/such");
    let locked = folder.path().join("in-use");
    let taken = fs::File::create(&locked).unwrap();
    taken.lock().unwrap();
    for (flags, code, words) in [
        (&["--backing", &theirs][..], 2, "has other content"),
        (&["--backing", &directory], 2, "is a directory"),
        (&["--backing", &nowhere], 2, "create the directory first"),
        (&["--backing", text(&locked)], 3, "in use by another store"),
        (&["--backing", "/proc/uzswap"], 2, "create the directory first"),
        (&["--backing", &fresh, "--backing-size", "4K"], 2, "too few"),
        (&["--backing", &fresh, "--backing-size", "15T"], 3, "preallocate it"),
    ] {
        let args = ["compare", "--corpus", text(&pages), "--max-pool", "60K"];
        let output = run(&[&args[..], flags].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {stderr}");
        assert!(stderr.contains(words), "{flags:?}: '{words}' is not in: {stderr}");
    }
    assert_eq!(fs::read(&theirs).unwrap(), b"a letter");
    assert!(!Path::new(&fresh).exists());

    // A backing that becomes full: what does not fit is refused, nothing is lost.
    let flags = ["--backing", &fresh, "--backing-size", "64K"];
    let report = limited(&pages, &flags);
    let refused = sum_of_first_run(&report["combinations"][0]["access"], &["refused_pages"]);
    assert!(refused > 0 && number(&report["combinations"][0], "verified_pages") > 0, "{report}");
}

#[test]
fn an_interrupt_removes_the_backing() {
    let temporary = TempDir::new().unwrap();
    let backing = temporary.path().join("backing");
    let comparison = uzswap()
        .args(["compare", "--size", "2M", "--runs", "1000", "--max-pool", "256K", "--backing"])
        .arg(&backing)
        .env("TMPDIR", temporary.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // There is a file to leave behind.
    wait_for("the backing of a run", || backing.exists().then_some(()));
    assert!(signal("-TERM", comparison.id()));
    let output = comparison.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(SIGTERM), "{output:?}");
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "files are left");
}

#[test]
fn bad_input_is_explained() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        text(&path).to_owned()
    };
    let empty = file("empty", b"");
    let truncated = file("truncated", &[1; PAGE * 2 + 17]);
    let one_page = file("one", &[1; PAGE]);
    let junk = file("junk.sizes", b"# sizes\n100\nAttaching 1 probe...\n");
    let large = file("large.sizes", b"4097\n");
    let nothing = file("nothing.sizes", b"# no sizes\n\n");
    let directory = text(folder.path()).to_owned();
    let missing = format!("{directory}/missing");
    let gone = {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id().to_string()
    };
    let cases: &[(&[&str], &str)] = &[
        (&["--corpus", &empty], "empty"),
        (&["--corpus", &truncated], "truncated in page 2"),
        (&["--corpus", &directory], "directory"),
        (&["--corpus", &missing], "No such file"),
        (&["--sizes", &junk], "line 3"),
        (&["--sizes", &large], "line 1"),
        (&["--sizes", &nothing], "has no sizes"),
        (&["--sizes", &missing], "No such file"),
        (&["--sizes", &directory], "directory"),
        (&["--pid", &gone], "no process"),
        (&["--pid", "0"], "--pid"),
        (&["--pid", "2000000000"], "no process"),
        (&["--zpool", "slab"], "one of: zsmalloc, zbud, z3fold"),
        (&["--zpool", "zsmalloc,"], "one of: zsmalloc, zbud, z3fold"),
        (&["--compressor", "lz77"], "one of: lz4, lzo, lzo-rle, zstd, deflate, none"),
        (&["--compressor", "zstd:99"], "level"),
        (&["--workload", "webscale"], "one of: mixed"),
        (&["--free", "all"], "one of: half, odd"),
        (&["--incompressible", "keep"], "one of: reject, store-as-is"),
        (&["--chain-rule", "best"], "one of: used-percent, least-waste"),
        (&["--handle-header", "under"], "one of: in-object, beside"),
        (&["--chain-size", "3"], "4..=16"),
        (&["--object-header", "zbud"], "zbud=8,z3fold=8"),
        (&["--object-header", "slab=8"], "one of: zsmalloc, zbud, z3fold"),
        (&["--object-header", "zbud=65"], "0 to 64"),
        (&["--object-header", "zbud=8,zbud=16"], "gives zbud twice"),
        (&["--at", "exit", "--pid", "1"], "--at"),
        (&["--runs", "-1"], "invalid value '-1' for '--runs <N>'"),
        (&["--runs", "0"], "1..=1000"),
        (&["--size", "lots"], "expected a size"),
        (&["--at", "noon", "--", "true"], "peak, exit"),
        (&["--at", "exit"], "required"),
        (&["--tree", "--corpus", &one_page], "--tree"),
        (&["--corpus", &one_page, "--pid", "1"], "cannot be used with"),
        (&["--corpus", &one_page, "--", "true"], "cannot be used with"),
        (&["--sizes", &junk, "--seed", "2"], "cannot be used with"),
        (&["--sizes", &junk, "--sample", "1G"], "cannot be used with"),
        (&["--trace", &junk, "--sample", "1G"], "cannot be used with"),
        (&["--workload", "text", "--sample", "1G"], "cannot be used with"),
        (&["--sample", "1G"], "--sample needs --pid, --corpus or a command"),
        (&["--corpus", &one_page, "--sample", "0"], "at least 1 byte"),
        (&["--corpus", &one_page, "--sample", "100"], "below the least of 1M"),
        (&["--corpus", &one_page, "--sample", "some"], "expected a size"),
        (&["--sizes", &junk, "--compressor", "lz4"], "cannot be used with"),
        (&["--same-filled", "last"], "one of: forward, backward, last-first, vector, off"),
        (&["--same-filled", "off", "--same-filled-zero-only"], "choose a check"),
        (&["--sizes", &junk, "--same-filled", "off"], "cannot be used with"),
        (&["--json", "--csv"], "cannot be used with"),
        (&["--max-pool", "0"], "at least 4096 bytes"),
        (&["--max-pool", "120%"], "0 to 100"),
        (&["--max-pool", "lots"], "expected a size such as 512M, a share of memory such as 20%"),
        (&["--backing", "file"], "--backing needs --max-pool"),
        (&["--lru", "plain"], "--lru needs --max-pool"),
        (&["--exclusive"], "--exclusive needs --max-pool"),
        (&["--max-pool", "1M", "--lru", "random"], "one of: second-chance, frequency, plain"),
        (&["--max-pool", "1M", "--shrinker", "on"], "--shrinker needs --backing"),
        (&["--max-pool", "1M", "--written-as", "objects"], "--written-as needs --backing"),
        (&["--max-pool", "1M", "--backing-size", "1M"], "required"),
        (&["--max-pool", "1M", "--accept-threshold", "101"], "0 to 100"),
        (&["--max-pool", "1M", "--checksum", "maybe"], "expected on or off"),
        (&["--max-pool", "1M", "--skew", "-1"], "skew must be"),
        (&["--max-pool", "1M", "--accesses", "0"], "0 is not in"),
        (&["stray"], "unexpected argument"),
    ];
    for (args, words) in cases {
        let output = run(&[&["compare"][..], args].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: '{words}' is not in: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_place_for_the_pages_is_needed() {
    let output = uzswap().arg("compare").env("TMPDIR", "/no/such/folder").output().unwrap();
    expect_error(&output, 3, &["TMPDIR"]);
}

#[test]
fn pages_and_sizes_may_come_through_a_pipe() {
    for (flag, contents) in [("--corpus", "head -c 40960 /dev/zero"), ("--sizes", "seq 1 10")] {
        let script = format!(
            "{contents} | {} compare --runs 2 --csv {flag} /dev/stdin",
            env!("CARGO_BIN_EXE_uzswap")
        );
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{flag}: {stderr}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(",2,10,"), "{output:?}");
    }
}

#[test]
fn pages_and_sizes_may_be_standard_input() {
    let folder = TempDir::new().unwrap();
    let sizes = folder.path().join("sizes");
    fs::write(&sizes, "900\n".repeat(300)).unwrap();
    for (flag, file) in [("--corpus", &corpus(&folder)), ("--sizes", &sizes)] {
        let output = uzswap()
            .args(["compare", "--zpool", "zbud", "--runs", "2", "--json", flag, "/dev/stdin"])
            .stdin(fs::File::open(file).unwrap())
            .output()
            .unwrap();
        assert!(output.status.success(), "{flag}: {output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["corpus"]["pages"], 300, "{flag}");
        assert_eq!(report["combinations"][0]["pages"], 300, "{flag}");
    }
}

#[test]
fn a_corpus_that_changes_is_told() {
    let folder = TempDir::new().unwrap();
    let path = corpus(&folder);
    let comparison = uzswap()
        .args(["compare", "--runs", "1000", "--corpus", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process_of_a_run(&comparison);
    // Replaced, not cut: a run may be reading it.
    let shorter = folder.path().join("shorter");
    fs::write(&shorter, [1; 7 * PAGE]).unwrap();
    fs::rename(&shorter, &path).unwrap();
    let output = comparison.wait_with_output().unwrap();
    expect_error(&output, 3, &["has 7 pages now and had 300"]);
}

#[test]
fn a_heap_that_does_not_fit_is_not_built() {
    for arguments in [&["compare", "--size", "100T"][..], &["workload", "text", "--size", "100T"]] {
        expect_error(&run(arguments), 3, &["100 TiB does not fit"]);
    }
}

#[test]
fn a_limit_of_file_sizes_is_told() {
    let temporary = TempDir::new().unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 64; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_uzswap")])
        .args(["compare", "--size", "2M"])
        .env("TMPDIR", temporary.path())
        .output()
        .unwrap();
    expect_error(&output, 3, &["File too large", "TMPDIR"]);
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "temporary files are left");
}

#[test]
fn a_run_needs_its_orders() {
    expect_error(&run(&["compare-run"]), 3, &["uzswap compare"]);
}

/// A comparison that takes long.
fn long_comparison(temporary: &TempDir) -> Child {
    uzswap()
        .args(["compare", "--size", "2M", "--runs", "1000"])
        .env("TMPDIR", temporary.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The process of a run, once there is one.
fn process_of_a_run(comparison: &Child) -> u32 {
    wait_for("a run", || run_of(comparison))
}

/// The process of the run that is under way, if there is one.
fn run_of(comparison: &Child) -> Option<u32> {
    let children = format!("/proc/{0}/task/{0}/children", comparison.id());
    let children = fs::read_to_string(children).unwrap_or_default();
    let mut children = children.split_whitespace();
    let run = children.find(|run| {
        let command = fs::read(format!("/proc/{run}/cmdline")).unwrap_or_default();
        command.split(|&byte| byte == 0).any(|argument| argument == b"compare-run")
    });
    run.map(|run| run.parse().unwrap())
}

/// SIGTERM where it is to end: what a script starts in its background ignores SIGINT.
fn signal(name: &str, pid: u32) -> bool {
    Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success()
}

#[test]
fn a_killed_run_is_named() {
    // The child may end by itself before the signal arrives: then the next one is killed.
    for _ in 0..20 {
        let temporary = TempDir::new().unwrap();
        let mut comparison = long_comparison(&temporary);
        let killed = process_of_a_run(&comparison);
        signal("-KILL", killed);
        // The command ends, or has gone on to the next child.
        while comparison.try_wait().unwrap().is_none() {
            if run_of(&comparison).is_some_and(|next| next != killed) {
                signal("-TERM", comparison.id());
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let output = comparison.wait_with_output().unwrap();
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
        if output.status.signal() == Some(SIGTERM) {
            continue;
        }
        expect_error(&output, 3, &["lz4, run 1: its process was killed (signal 9)"]);
        assert!(output.stdout.is_empty());
        return;
    }
    panic!("no run was killed in time");
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let temporary = TempDir::new().unwrap();
    let comparison = long_comparison(&temporary);
    process_of_a_run(&comparison);
    let pid = comparison.id();
    assert!(fs::read_dir(temporary.path()).unwrap().count() > 0, "the pages are somewhere");
    assert!(signal("-TERM", pid));
    let output = comparison.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(SIGTERM), "{output:?}");
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "temporary files are left");
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let status = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        let parent = status.rsplit(") ").next().unwrap_or_default().split(' ').nth(1);
        assert_ne!(parent, Some(pid.to_string().as_str()), "a run is left: {status}");
    }
}

#[test]
fn every_option_of_its_help_is_under_a_heading() {
    let help = stdout_of(&["compare", "-h"]);
    let plain = help.split("\nOptions:\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    let options: Vec<&str> =
        plain.unwrap_or_default().lines().filter(|line| line.trim().starts_with('-')).collect();
    assert!(matches!(options[..], [only] if only.contains("--help")), "{options:?}");
    assert!(help.lines().count() <= 40, "{} lines", help.lines().count());
    let long = stdout_of(&["compare", "--help"]);
    for flag in ["--chain-size", "--mapping", "--written-as", "--skew", "--accept-threshold"] {
        assert!(long.contains(flag) && !help.contains(flag), "{flag}");
    }
}
