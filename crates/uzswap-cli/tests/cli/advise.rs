//! Goal: `uzswap advise` answers for a command, a process, a file and the machine, and its advice
//! is that of the pages that it was given.
//! Method: pages that compress well, badly and not at all; programs of a known size.
//! Blind to: whether a machine does better with it (bench/advise measures that).

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::accesses;
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

/// Pages of a file: enough for a limit above the lowest that is advised.
const PAGES: usize = 9000;

/// A file of pages, of each of which so many bytes are random.
fn pages(lab: &Lab, random_bytes: usize) -> String {
    let path = lab.path(&format!("pages-{random_bytes}"));
    let mut random = SplitMix64::new(3);
    let mut bytes = Vec::new();
    for _ in 0..PAGES {
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
    let (saves, all) = (run["saves_bytes"].as_f64().unwrap(), (PAGES * PAGE_SIZE) as f64);
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
fn no_limit_is_advised_that_run_cannot_keep() {
    // The shell has them twice.
    let script = "x=$(head -c 4000000 /dev/zero | tr '\\0' 'a b'); sleep 0.5; echo ${#x}";
    let found = document(&["--", "sh", "-c", script]);
    assert_eq!(found["advice"], Value::Array(Vec::new()), "{found}");
    let verdict = found["verdict"][0].as_str().unwrap();
    assert!(verdict.contains("below 16.0 MiB"), "{verdict}");
}

#[test]
fn a_limit_that_is_tried_has_times_that_were_measured() {
    let script = "x=$(head -c 60000000 /dev/zero | tr '\\0' 'a b'); sleep 1; echo ${#x}";
    let found = document(&["--try", "--sample", "16M", "--", "sh", "-c", script]);
    let run = &found["advice"][0];
    let trial = &run["trial"];
    assert_eq!(trial["real_s"].as_array().map(Vec::len), Some(3), "{found}");
    assert!(trial["alone_s"].as_f64().unwrap() >= 1.0, "{trial}");
    let limit = run["takes_bytes"].as_u64().unwrap();
    let (low, high) = (&run["limit_range"]["low_bytes"], &run["limit_range"]["high_bytes"]);
    assert!(low.as_u64().unwrap() <= limit, "{run}");
    assert!(high.as_u64().is_none_or(|high| limit <= high), "{run}");
    let verdict = found["verdict"].to_string();
    assert!(verdict.contains("Tried in ") && verdict.contains("times the time alone"), "{verdict}");
    // Without --try, the page states no time.
    let page = text_of(&["--sample", "16M", "--", "sh", "-c", script]);
    assert!(!page.contains("times its time") && page.contains("advise --try"), "{page}");
}

/// A program that its loader gives no library: `cc -static`, with so many MiB for a second.
#[test]
fn a_static_program_gets_the_reason_in_place_of_a_limit() {
    let lab = Lab::new();
    let (source, program) = (lab.path("static.c"), lab.path("static"));
    let text = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
                int main(void) { char *p = malloc(40 << 20); memset(p, 7, 40 << 20);\n\
                usleep(600000); return p[9] != 7; }\n";
    fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source).status();
    assert!(compiled.unwrap().success(), "cc -static needs the static C library");
    let program = program.to_str().unwrap();
    for command in [vec![program], vec!["sh", "-c", "\"$0\" | cat; true", program]] {
        let found = document(&[&["--"], &command[..]].concat());
        let verdict = found["verdict"][0].as_str().unwrap();
        let expected = "uzswap run cannot manage this program: it is a static program (static)";
        assert!(verdict.starts_with(expected), "{verdict}");
        let tools = found["advice"].as_array().unwrap();
        assert!(tools.iter().all(|it| it["tool"] != "run"), "{found}");
    }
}

#[test]
fn shared_memory_is_named_beside_the_pages() {
    let lab = Lab::new();
    let source = lab.path("shares.c");
    let text = "#include <string.h>\n#include <sys/mman.h>\n#include <unistd.h>\n\
                int main(void) { long n = 40 << 20; char *p = mmap(0, n, 3, MAP_SHARED |\n\
                MAP_ANONYMOUS, -1, 0); memset(p, 7, n); usleep(600000); return p[9] != 7; }\n";
    fs::write(&source, text).unwrap();
    let program = lab.path("shares");
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(compiled.success());
    let found = document(&["--", program.to_str().unwrap()]);
    let bytes = found["target"]["uncounted"]["shared_bytes"].as_u64().unwrap();
    assert!((40 << 20..44 << 20).contains(&bytes), "{found}");
    let notes = found["warnings"].to_string();
    assert!(notes.contains("Not counted: 40.") && notes.contains("of shared memory"), "{notes}");
}

#[test]
fn a_process_and_the_machine_are_sampled() {
    let _alone = accesses();
    let mut holder = Command::new(env!("CARGO_BIN_EXE_uzswap"))
        .args(["workload", "text", "--size", "32M", "--hold"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(holder.stdout.take().unwrap()));
    assert!(lines.any(|line| line.unwrap() == "ready"));
    // Windows are longer on a busy machine.
    let pid = holder.id().to_string();
    let found = document(&["--pid", &pid, "--sample", "8M", "--observe", "4s"]);
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
