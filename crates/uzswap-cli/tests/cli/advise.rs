//! Goal: `uzswap advise` answers for a command, a process, a file and the machine, and its advice
//! is that of the pages that it was given.
//! Method: pages that compress well, badly and not at all; programs of a known size.
//! Blind to: whether a machine does better with it (bench/advise measures that).

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{Lab, expect_error, stdout_of_success};
use serde_json::Value;
use uzswap::page::PAGE_SIZE;
use uzswap::random::SplitMix64;

fn advise(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uzswap")).arg("advise").args(arguments).output().unwrap()
}

fn text_of(arguments: &[&str]) -> String {
    stdout_of_success(advise(arguments))
}

fn document(arguments: &[&str]) -> Value {
    serde_json::from_str(&text_of(&[&["--json"], arguments].concat())).unwrap()
}

/// A file of pages, of each of which so many bytes are random.
fn pages(lab: &Lab, random_bytes: usize) -> String {
    let path = lab.path(&format!("pages-{random_bytes}"));
    let mut random = SplitMix64::new(3);
    let mut bytes = Vec::new();
    for _ in 0..3000 {
        let page = (0..PAGE_SIZE).map(|at| match at < random_bytes {
            true => random.next_word() as u8,
            false => (at % 13) as u8,
        });
        bytes.extend(page.collect::<Vec<u8>>());
    }
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_ratio_of_the_pages_decides() {
    let lab = Lab::new();
    let page = text_of(&["--corpus", &pages(&lab, PAGE_SIZE)]);
    assert!(page.starts_with("Do not bother"), "{page}");
    assert!(!page.contains("uzswap run --limit"), "{page}");

    let page = text_of(&["--", "true"]);
    assert!(page.starts_with("Do not bother: there are "), "{page}");

    let half = document(&["--corpus", &pages(&lab, PAGE_SIZE / 2)]);
    let run = &half["advice"][0];
    assert_eq!(run["tool"], "run", "{half}");
    let ratio = run["ratio"].as_f64().unwrap();
    assert!((1.6..2.1).contains(&ratio), "{half}");
    // Half stays; half is compressed.
    let (saves, all) = (run["saves_bytes"].as_f64().unwrap(), (3000 * PAGE_SIZE) as f64);
    let expected = all / 2.0 * (1.0 - 1.0 / ratio);
    assert!((saves - expected).abs() < 2e6, "{saves} of {all}: {half}");
    assert_eq!(run["confidence"], "medium");
    let page = text_of(&["--corpus", &pages(&lab, PAGE_SIZE / 2)]);
    assert!(page.lines().all(|line| line.len() <= 80 && line.is_ascii()), "{page}");
}

#[test]
fn a_command_gets_a_line_to_paste_that_works_as_it_is() {
    // The command rests, so that a limit is worth it on a slow machine, too.
    let script = "x=$(head -c 40000000 /dev/zero | tr '\\0' 'a b'); sleep 2; echo ${#x}";
    let found = document(&["--sample", "16M", "--", "sh", "-c", script]);
    assert!(found["target"]["bytes"].as_u64().unwrap() > 30_000_000, "{found}");
    let lines = found["advice"][0]["settings"][0]["lines"].as_array().unwrap();
    let line = lines[0].as_str().unwrap();
    assert!(line.starts_with("uzswap run --limit "), "{line}");
    // The shell reads the quoted command as it was given.
    let (_, command) = line.split_once(" -- ").unwrap();
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "40000000\n");
}

#[test]
fn a_process_and_the_machine_are_sampled() {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_uzswap"))
        .args(["workload", "text", "--size", "32M", "--hold"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(holder.stdout.take().unwrap()));
    assert!(lines.any(|line| line.unwrap() == "ready"));
    let found = document(&["--pid", &holder.id().to_string(), "--sample", "8M"]);
    let bytes = found["target"]["bytes"].as_u64().unwrap();
    assert!((30 << 20..60 << 20).contains(&bytes), "{found}");
    let sampled = found["corpus"]["sample"]["pages"].as_u64().unwrap() * PAGE_SIZE as u64;
    assert!(sampled < 12 << 20, "{found}");
    assert_eq!(found["target"]["is_machine"], false);
    // The process rests, so that it touches hardly any page in a window.
    assert!(found["working_set"]["windows"].as_u64().unwrap() >= 8, "{found}");
    assert!(found["working_set"]["touched_bytes"].as_u64().unwrap() < bytes / 8, "{found}");
    let outlook = found["outlook"].as_array().unwrap();
    assert!(outlook.iter().all(|it| it["least_time_factor"] == 1.0), "{found}");
    let kept = outlook.last().unwrap()["kept_bytes"].as_u64().unwrap();
    assert_eq!(kept, bytes / 4, "{found}");

    let found = document(&["--system", "--sample", "8M", "--budget", "20s"]);
    assert_eq!(found["target"]["is_machine"], true);
    assert!(found["target"]["bytes"].as_u64().unwrap() >= bytes / 2, "{found}");
    let tools: Vec<&Value> =
        found["advice"].as_array().unwrap().iter().map(|it| &it["tool"]).collect();
    assert!(!tools.contains(&&Value::from("run")), "{found}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
}

#[test]
fn wrong_targets_are_refused_in_words() {
    let none = Path::new("/nope").display().to_string();
    for (arguments, code, words) in [
        (&["--corpus", &*none][..], 2, "/nope"),
        (&["--pid", "0"], 2, "0"),
        (&["--pid", "4194304"], 2, "4194304"),
        (&["--system", "--pid", "1"], 2, "cannot be used with"),
        (&["--tree", "--corpus", &none], 2, "--pid"),
        (&["--budget", "0s"], 2, "expected a time"),
        (&["--sample", "1K"], 2, "least of 1M"),
        (&["--", "/nope/program"], 2, "/nope/program"),
    ] {
        expect_error(&advise(arguments), code, &[words]);
    }
}
