//! Goal: `uzswap run --record` writes all that is done to the store, whatever happens to the run or
//! the file, and `uzswap compare --trace` replays just that. With `--backing` pages come back from
//! a file as they were, or their program ends.
//! Method: the real binary, end to end, with a program that is this one again; traces made here for
//! what needs no program. Tests that cannot run here are counted as ignored, with the reason.

use uzswap_testing::outputs::{expect, text};
use uzswap_testing::trials;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use uzswap::page::{PAGE_SIZE, PageKey};
use uzswap::random::SplitMix64;
use uzswap::trace::{Recorder, TraceAbout};

/// Its name, why it cannot run here, and what it does.
type Test = (&'static str, Option<String>, fn());

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, program, mib] = &arguments[..]
        && flag == "--program"
    {
        return work(program, mib.parse().unwrap());
    }
    let run = trials::no_run(env!("CARGO_BIN_EXE_uzswap"));
    let disk = run.clone().or_else(no_tmpfs);
    let tests: [Test; 12] = [
        ("a_run_is_replayed_as_it_was", run.clone(), a_run_is_replayed),
        ("a_killed_run_leaves_what_it_did", run.clone(), a_killed_run),
        ("a_disk_that_is_full_ends_the_recording_alone", run.clone(), a_full_disk),
        ("a_pipe_that_nobody_reads_ends_the_recording_alone", run.clone(), nobody_reads),
        ("a_trace_that_cannot_be_made_is_told_before", run.clone(), no_trace),
        ("what_does_not_shrink_goes_to_the_backing", run.clone(), backing),
        ("a_backing_that_cannot_be_had_is_told_before", run.clone(), no_backing),
        ("a_page_that_is_lost_in_the_backing_ends_the_program", run, lost_backing),
        ("pages_stay_in_the_pool_where_the_disk_is_full", disk, full_backing),
        ("flags_that_make_no_sense_are_refused", None, flags),
        ("files_that_are_no_traces_are_refused", None, no_traces),
        ("reports_have_all_forms", None, reports),
    ];
    trials::run(tests.into_iter().map(|(name, missing, test)| trials::trial(name, missing, test)))
}

/// The program: fills so much memory, and looks at it again and again.
fn work(program: &str, mib: usize) -> ExitCode {
    let mut random = SplitMix64::new(7);
    let mut memory = vec![0_u8; mib << 20];
    let is_plain = program == "plain";
    for page in memory.chunks_exact_mut(PAGE_SIZE) {
        // Half of it at most shrinks to nothing; the rest to half, or not at all.
        let from = if is_plain { PAGE_SIZE / 2 } else { 0 };
        let (words, _) = page[from..].as_chunks_mut::<8>();
        words.iter_mut().for_each(|word| *word = random.next_word().to_ne_bytes());
        if is_plain && random.next_word().is_multiple_of(4) {
            page.fill(random.next_word() as u8);
        }
    }
    let sum = |memory: &[u8]| {
        let words = memory.as_chunks::<8>().0.iter();
        words.fold(0_u64, |sum, word| sum.rotate_left(5) ^ u64::from_ne_bytes(*word))
    };
    let expected = sum(&memory);
    if program == "forever" {
        println!("filled");
    }
    let rounds = if program == "forever" { u32::MAX } else { 3 };
    for _ in 0..rounds {
        if sum(&memory) != expected {
            return ExitCode::from(9);
        }
    }
    memory.truncate(mib << 19);
    memory.shrink_to_fit();
    println!("{expected:x} {:x}", sum(&memory));
    ExitCode::SUCCESS
}

fn uzswap() -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "120", env!("CARGO_BIN_EXE_uzswap")]);
    command
}

/// The program in so much memory.
fn run_in(limit: &str, options: &[&str], program: &str, mib: &str) -> Command {
    let mut command = uzswap();
    command.args(["run", "--limit", limit]).args(options).arg("--");
    command.arg(std::env::current_exe().unwrap()).args(["--program", program, mib]);
    command
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

struct Room {
    folder: TempDir,
}

impl Room {
    fn new() -> Room {
        Room { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn stats(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.path("stats")).unwrap()).unwrap()
    }
}

fn compare(trace: &Path, options: &[&str]) -> Output {
    let mut command = uzswap();
    command.args(["compare", "--trace"]).arg(trace).args(["--runs", "1"]).args(options);
    command.output().unwrap()
}

fn a_run_is_replayed() {
    let room = Room::new();
    let (trace, stats) = (room.name("trace"), room.name("stats"));
    let plain = Command::new(std::env::current_exe().unwrap())
        .args(["--program", "plain", "24"])
        .output()
        .unwrap();
    let output =
        run_in("12M", &["--record", &trace, "--stats", &stats], "plain", "24").output().unwrap();
    expect(&output, 0);
    assert_eq!(text(&output.stdout), text(&plain.stdout));
    let stats = room.stats();
    let (recorded, store, counts) = (&stats["trace"], &stats["store"], &stats["counts"]);
    assert_eq!(recorded["complete"], true, "{stats}");
    assert!(text(&output.stderr).contains("uzswap: recorded "), "{}", text(&output.stderr));
    let bytes = std::fs::metadata(&trace).unwrap().len();
    assert_eq!(number(&recorded["bytes"]), bytes);
    // All operations on the store; pages count once they were evicted or the program has them.
    assert_eq!(recorded["stores"], store["zswpout"]);
    assert_eq!(recorded["loads"], store["zswpin"]);
    assert_eq!(recorded["frees"], store["invalidated_pages"]);
    assert!(number(&recorded["stores"]) >= number(&counts["stored_pages"]), "{stats}");
    assert!(number(&recorded["loads"]) >= number(&counts["restored_pages"]), "{stats}");
    assert!(number(&counts["restored_pages"]) > 1000, "{stats}");
    // The program looked at its memory again and again: most contents came more than once.
    assert!(number(&recorded["contents"]) < number(&recorded["stores"]), "{stats}");

    let as_is = ["--json", "--incompressible", "store-as-is"];
    for (options, keeps_all) in [(&as_is[..], true), (&as_is[..1], false)] {
        let output = compare(&room.path("trace"), options);
        expect(&output, 0);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["corpus"]["kind"], "trace");
        assert_eq!(report["corpus"]["trace"]["complete"], true);
        let runs = report["combinations"].as_array().unwrap();
        assert_eq!(runs.len(), 6);
        for run in runs {
            let replayed = &run["trace"];
            assert_eq!(replayed["stores"], recorded["stores"]);
            let loads = number(&replayed["loads"]) + number(&replayed["missed_loads"]);
            assert_eq!(loads, number(&recorded["loads"]));
            assert!(number(&run["verified_pages"]) >= number(&replayed["loads"]));
            assert_eq!(run["store_ns"]["count"], replayed["stores"]);
            assert_eq!(run["load_ns"]["count"], replayed["loads"]);
            assert!(number(&run["pool_total_size"]) > 1 << 20);
            if keeps_all {
                assert_eq!(replayed["refused_stores"], 0);
                assert_eq!(replayed["frees"], recorded["frees"]);
            }
        }
    }
}

fn a_killed_run() {
    let room = Room::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    command.args(["run", "--limit", "12M", "--record", &room.name("trace"), "--"]);
    command.arg(std::env::current_exe().unwrap()).args(["--program", "forever", "24"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let since = Instant::now();
    while std::fs::metadata(room.path("trace")).map_or(0, |metadata| metadata.len()) < 1 << 20 {
        assert!(since.elapsed() < Duration::from_secs(60), "nothing is recorded");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let output = compare(&room.path("trace"), &["--zpool", "zsmalloc"]);
    expect(&output, 0);
    let report = text(&output.stdout);
    // Wherever its lines are broken.
    let words: Vec<&str> = report.split_ascii_whitespace().collect();
    assert!(words.join(" ").contains("CUT OFF: the recording did not end"), "{report}");
}

fn a_full_disk() {
    let room = Room::new();
    assert!(Command::new("mkfifo").arg(room.path("trace")).status().unwrap().success());
    // Takes the start of the file and no more.
    let mut reader = Command::new("head")
        .args(["-c", "20"])
        .arg(room.path("trace"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let options = ["--record", &room.name("trace"), "--stats", &room.name("stats")];
    let output = run_in("12M", &options, "plain", "24").output().unwrap();
    reader.wait().unwrap();
    // The program did well, and the trace is not whole.
    expect(&output, 1);
    let said = text(&output.stderr);
    assert_eq!(said.matches("the recording ends here").count(), 1, "{said}");
    assert!(said.contains(&room.name("trace")) && said.contains("os error 32"), "{said}");
    let stats = room.stats();
    assert_eq!(stats["trace"]["complete"], false, "{stats}");
    assert!(stats["trace"]["error"].as_str().unwrap().contains("os error 32"), "{stats}");
    assert!(number(&stats["counts"]["stored_pages"]) > 1000, "{stats}");
}

/// A program of the run holds the pipe that it would have to read.
fn nobody_reads() {
    let room = Room::new();
    let trace = room.name("trace");
    assert!(Command::new("mkfifo").arg(&trace).status().unwrap().success());
    let reader = std::fs::OpenOptions::new().read(true).write(true).open(&trace).unwrap();
    let output = run_in("12M", &["--record", &trace], "plain", "24").output().unwrap();
    drop(reader);
    expect(&output, 1);
    let said = text(&output.stderr);
    let words = format!("{trace}: its reader took nothing for 5s; the recording ends here");
    assert!(said.contains(&words), "{said}");
}

fn no_trace() {
    for (path, code, words) in [
        ("/dev/full", 1, "No space left"),
        ("/no/such/folder/trace", 2, "No such file"),
        ("/tmp", 2, "Is a directory"),
    ] {
        let output = uzswap()
            .args(["run", "--limit", "64M", "--record", path, "--", "echo", "started"])
            .output()
            .unwrap();
        expect(&output, code);
        assert!(output.stdout.is_empty(), "{path}: the program was started");
        let said = text(&output.stderr);
        assert!(said.contains(path) && said.contains(words), "{said}");
    }
}

/// Pages that do not shrink, twice the limit.
fn backing() {
    let room = Room::new();
    let (file, stats) = (room.name("backing"), room.name("stats"));
    let output = run_in("24M", &[], "random", "48").output().unwrap();
    expect(&output, 137);
    assert!(text(&output.stderr).contains("out of memory"), "{}", text(&output.stderr));
    let plain = Command::new(std::env::current_exe().unwrap())
        .args(["--program", "random", "48"])
        .output()
        .unwrap();
    for share in [&["--max-pool", "6M"][..], &[]] {
        let trace = room.name("trace");
        let options = ["--backing", &file, "--stats", &stats, "--record", &trace];
        let output = run_in("24M", &[&options, share].concat(), "random", "48").output().unwrap();
        expect(&output, 0);
        assert_eq!(text(&output.stdout), text(&plain.stdout));
        let said = text(&output.stderr);
        assert!(said.contains("pages written back to") && said.contains(&file), "{said}");
        assert!(!room.path("backing").exists());
        let stats = room.stats();
        let (backing, store) = (&stats["backing"], &stats["store"]);
        let share = if share.is_empty() { 12 << 20 } else { 6 << 20 };
        assert_eq!(backing["max_pool_bytes"], share);
        assert!(number(&stats["pool_peak_bytes"]) < share + (2 << 20), "{stats}");
        assert!(number(&backing["written_back_pages"]) > 1000, "{stats}");
        assert!(number(&backing["read_pages"]) > 1000, "{stats}");
        assert!(number(&backing["written_bytes"]) > 4 << 20, "{stats}");
        assert!(backing["error"].is_null(), "{stats}");
        // Pages read from the file were not brought back into the pool first.
        assert_eq!(store["promoted_pages"], 0, "{stats}");
        let loads = number(&store["zswpin"]) + number(&store["backing_loads"]);
        assert_eq!(number(&stats["trace"]["loads"]), loads, "{stats}");
    }
}

fn no_backing() {
    let room = Room::new();
    std::fs::write(room.path("mine"), "important").unwrap();
    let run = |options: &[&str]| {
        let mut command = uzswap();
        command.args(["run", "--limit", "64M"]).args(options).args(["--", "echo", "started"]);
        let output = command.output().unwrap();
        assert!(output.stdout.is_empty(), "{options:?}: the program was started");
        output
    };
    for (path, code, words) in [
        (room.name("mine"), 2, "other content"),
        (room.name("no/such"), 2, "No such file"),
        ("/proc/self/backing".to_owned(), 2, "No such file"),
        ("/sys/backing".to_owned(), 3, "cannot create it"),
    ] {
        let output = run(&["--backing", &path]);
        expect(&output, code);
        let said = text(&output.stderr);
        assert!(said.contains(&path) && said.contains(words), "{said}");
    }
    assert_eq!(std::fs::read(room.path("mine")).unwrap(), b"important");
    expect(&run(&["--max-pool", "1M"]), 2);
    let output = run(&["--backing", &room.name("new"), "--max-pool", "64M"]);
    expect(&output, 2);
    assert!(text(&output.stderr).contains("must be less than --limit"), "{}", text(&output.stderr));
    assert!(!room.path("new").exists());
}

/// Somebody makes the file shorter.
fn lost_backing() {
    let room = Room::new();
    let file = room.path("backing");
    let mut command =
        run_in("12M", &["--backing", &room.name("backing"), "--max-pool", "3M"], "forever", "24");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "filled\n");
    std::fs::File::options().write(true).open(&file).unwrap().set_len(PAGE_SIZE as u64).unwrap();
    let output = child.wait_with_output().unwrap();
    expect(&output, 137);
    let said = text(&output.stderr);
    assert!(said.contains("from block"), "{said}");
    assert!(said.contains("the process was ended"), "{said}");
    assert!(!file.exists());
}

/// Why there can be no small disk here.
fn no_tmpfs() -> Option<String> {
    let room = Room::new();
    match Small::mount(&room) {
        Ok(_) => None,
        Err(reason) => Some(format!("no tmpfs can be mounted: {reason}")),
    }
}

/// A disk of 1 MiB: less than is written back, however far the program is ahead of that.
struct Small {
    path: PathBuf,
}

impl Small {
    fn mount(room: &Room) -> Result<Small, String> {
        let path = room.path("small");
        std::fs::create_dir(&path).unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&path);
        let output = command.output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(Small { path }),
            false => Err(text(&output.stderr).trim().to_owned()),
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(&self.path).status().unwrap().success());
    }
}

fn full_backing() {
    let room = Room::new();
    let small = Small::mount(&room).unwrap();
    let file = small.path.join("backing").to_str().unwrap().to_owned();
    let options = ["--backing", &file, "--max-pool", "2M", "--stats", &room.name("stats")];
    // Compressed it fits, with room for the program: only the share does not hold.
    let output = run_in("24M", &options, "plain", "32").output().unwrap();
    expect(&output, 0);
    let said = text(&output.stderr);
    let told = "cannot write: No space left on device (os error 28); pages stay in the pool";
    assert_eq!(said.matches(told).count(), 1, "{said}");
    let stats = room.stats();
    assert!(number(&stats["pool_peak_bytes"]) > 4 << 20, "{stats}");
    assert!(stats["backing"]["error"].as_str().unwrap().contains("os error 28"), "{stats}");
    // And this does not.
    let output = run_in("24M", &options, "random", "48").output().unwrap();
    expect(&output, 137);
    assert!(text(&output.stderr).contains("out of memory"), "{}", text(&output.stderr));
    assert!(!Path::new(&file).exists());
}

/// A small trace.
fn made(path: &Path) {
    let about = TraceAbout { origin: "a test".to_owned(), recorded_at: String::new() };
    let recorder = Recorder::create(path, &about, |error| panic!("{error}")).unwrap();
    let mut random = SplitMix64::new(1);
    for key in 0..3000 {
        let mut page = [5; PAGE_SIZE];
        let end = random.next_word() as usize % PAGE_SIZE;
        page[..end].iter_mut().for_each(|byte| *byte = random.next_word() as u8);
        recorder.store(PageKey(key), &page);
        recorder.load(PageKey(key / 2));
        if key % 3 == 0 {
            recorder.free(PageKey(key));
            recorder.store(PageKey(key), &page);
        }
    }
    assert!(recorder.finish().complete);
}

fn flags() {
    let room = Room::new();
    let path = room.path("trace");
    made(&path);
    for options in [
        &["--corpus", "x"][..],
        &["--pid", "1"],
        &["--sizes", "x"],
        &["--workload", "mixed"],
        &["--size", "1M"],
        &["--seed", "2"],
        &["--tree"],
        &["--at", "exit"],
        &["--free", "odd"],
        &["--max-pool", "1M"],
        &["--backing", "x"],
        &["--lru", "plain"],
        &["--exclusive"],
        &["--", "true"],
    ] {
        let output = compare(&path, options);
        expect(&output, 2);
        let said = text(&output.stderr);
        assert!(said.contains("cannot be used with"), "{options:?}: {said}");
    }
}

fn no_traces() {
    let room = Room::new();
    let path = room.path("trace");
    made(&path);
    let whole = std::fs::read(&path).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    for (bytes, words) in [
        (&b"PK\x03\x04"[..], "is not a trace"),
        (&whole[..30], "truncated before the first block"),
        (&whole[..100], "no events"),
        (&changed, "is corrupt at byte"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let output = compare(&path, &[]);
        expect(&output, 2);
        let said = text(&output.stderr);
        assert!(said.contains(words) && said.contains(path.to_str().unwrap()), "{said}");
    }
    for (path, words) in [("/no/such/file", "No such file"), ("/dev/null", "not a regular file")] {
        let output = compare(path.as_ref(), &[]);
        expect(&output, 2);
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let output = compare(&path, &["--json"]);
    expect(&output, 0);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["corpus"]["trace"]["complete"], false);
}

fn reports() {
    let room = Room::new();
    let path = room.path("trace");
    made(&path);
    let output = compare(&path, &["--details"]);
    expect(&output, 0);
    let report = text(&output.stdout);
    for words in [
        "trace of a test, 4,000 stores",
        "3,000 loads, 1,000 frees",
        "distinct contents",
        "LEFT OUT",
        "when the pool was largest",
        "POOL AT THE END",
        "Refused with lz4",
        "Densest with zstd",
    ] {
        assert!(report.contains(words), "no '{words}' in:\n{report}");
    }
    for words in ["FREE HALF", "HALF FREED", "freed: a random half", "CUT OFF"] {
        assert!(!report.contains(words), "'{words}' in:\n{report}");
    }
    assert!(report.lines().all(|line| line.len() <= 80), "{report}");
    let output = compare(&path, &["--csv"]);
    expect(&output, 0);
    assert_eq!(text(&output.stdout).lines().count(), 7);
}
