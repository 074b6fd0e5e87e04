//! Goal: `uzswap sample` predicts what `compare --pid` measures, within its budget. Its files hold
//! nothing that names a process, and are whole or not there.
//! Method: the real binary on stopped processes of a known workload, and killed, cut short and
//! refused. The test `fleet` has the full disk.
//! Blind to: ages beyond a few intervals (unit tests have them), kernels without clear_refs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::accesses;
use crate::support::{Lab, expect_error, open_to_all, send, stdout_of_success, text};
use uzswap::page::PAGE_SIZE;
use uzswap_fleet::folder::read;
use uzswap_fleet::table::{IntervalRow, PageRow, RunRow, Table};

fn uzswap(lab: &Lab) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    command.env("XDG_STATE_HOME", lab.path("state"));
    command
}

/// A process with a heap, stopped unless it `runs`.
struct Heap(Child);

impl Heap {
    fn build(size: &str, runs: bool) -> Heap {
        let mut child = Command::new(env!("CARGO_BIN_EXE_uzswap"))
            .args(["workload", "mixed", "--size", size, "--hold"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        if !runs {
            send("-STOP", child.id());
        }
        Heap(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn json(output: Output) -> Value {
    serde_json::from_str(&stdout_of_success(output)).unwrap()
}

/// The files of a table in a folder.
fn files<T: Table>(folder: &Path) -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with(T::NAME) && name.ends_with(".parquet")
        })
        .collect();
    names.sort();
    names
}

fn rows<T: Table>(folder: &Path) -> Vec<T> {
    files::<T>(folder).iter().flat_map(|path| read(path).unwrap()).collect()
}

#[test]
fn the_predicted_saving_is_that_of_a_comparison() {
    let _alone = accesses();
    let (lab, heap) = (Lab::new(), Heap::build("48M", false));
    let out = lab.path("out");
    let quick = ["--interval", "1s", "--intervals", "2", "--budget", "100%", "--json"];
    let mut command = uzswap(&lab);
    command.args(["sample", "--pid", &heap.pid(), "--out", text(&out)]).args(quick);
    let sampled = json(command.output().unwrap());
    let compared = Command::new(env!("CARGO_BIN_EXE_uzswap"))
        .args(["compare", "--runs", "1", "--zpool", "zsmalloc", "--json", "--pid", &heap.pid()])
        .args(["--compressor", "lz4,lzo-rle,zstd"])
        .output();
    let compared = json(compared.unwrap());
    for (place, key) in ["lz4", "lzo_rle", "zstd"].into_iter().enumerate() {
        let row = &compared["combinations"][place];
        let number = |name: &str| row[name].as_f64().unwrap();
        let page = PAGE_SIZE as f64;
        let saved = number("stored_pages") * page - number("pool_total_size");
        let predicted = sampled["saved_bytes"][key].as_f64().unwrap();
        let off = predicted / saved - 1.0;
        assert!(off.abs() < 0.05, "{key}: predicted {predicted}, compared {saved}: {off:+.3}");
    }
    // A stopped process touches nothing.
    let process = &sampled["processes"][0];
    assert_eq!(process["working_set_pages"], 0, "{process}");
    assert_eq!(process["sampled_pages"], sampled["resident_pages"], "all pages are sampled");
    let intervals = rows::<IntervalRow>(&out);
    let of_process: Vec<_> = intervals.iter().filter(|row| row.process.is_some()).collect();
    assert_eq!(of_process.len(), 2);
    let last = of_process[1];
    assert_eq!(last.cold_pages, [last.resident_pages; 2]);
    assert_eq!(last.promoted_pages, [0]);
    assert!((0.9..10.0).contains(&last.seconds), "{last:?}");
    assert_eq!(intervals.len(), 4, "the machine has a row of each interval");
}

#[test]
fn tables_have_nothing_that_names_a_process() {
    let (lab, heap) = (Lab::new(), Heap::build("4M", true));
    let out = lab.path("out");
    let run = |target: &str| {
        let mut command = uzswap(&lab);
        command.args(["sample", target, &heap.pid(), "--out", text(&out), "--interval", "100ms"]);
        stdout_of_success(command.args(["--intervals", "2", "--budget", "90"]).output().unwrap())
    };
    let shown = run("--pid");
    assert!(shown.contains("uzswap") && shown.contains(&heap.pid()), "{shown}");
    assert!(shown.lines().all(|line| line.len() <= 80 || line.contains("written")), "{shown}");
    run("--tree");
    let pages = rows::<PageRow>(&out);
    let maps = fs::read_to_string(format!("/proc/{}/maps", heap.pid())).unwrap();
    let addresses: Vec<std::ops::Range<u64>> = maps
        .lines()
        .map(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let number = |hex| u64::from_str_radix(hex, 16).unwrap() / PAGE_SIZE as u64;
            number(start)..number(end)
        })
        .collect();
    assert!(pages.len() > 500);
    for page in &pages {
        let kinds = ["heap", "stack", "anonymous", "file", "other"];
        assert!(kinds.contains(&page.kind.as_str()), "{page:?}");
        assert!(!addresses.iter().any(|range| range.contains(&page.page)), "{page:?}");
    }
    let runs = rows::<RunRow>(&out);
    let targets: Vec<_> = runs.iter().map(|run| run.target.as_str()).collect();
    assert!(targets.contains(&"process") && targets.contains(&"tree"), "{targets:?}");
    assert!(
        runs.iter().all(|run| run.notes.is_empty() && run.version == env!("CARGO_PKG_VERSION"))
    );
    // Two samples of one machine, and of one process of it.
    assert_eq!(runs[0].host, runs[1].host);
    assert_ne!(runs[0].run, runs[1].run);
    assert_eq!(pages.first().unwrap().process, pages.last().unwrap().process);
    let names = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for entry in fs::read_dir(&out).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        assert!(!names(&bytes).contains("/proc/"), "a name is in a file");
    }
}

#[test]
fn a_sample_stays_within_its_budget() {
    let _alone = accesses();
    let (lab, _heap) = (Lab::new(), Heap::build("32M", true));
    let out = lab.path("out");
    let script = "\"$0\" \"$@\"; times";
    let mut shell = Command::new("bash");
    shell.env("XDG_STATE_HOME", lab.path("state"));
    shell.args(["-c", script, env!("CARGO_BIN_EXE_uzswap"), "sample", "--system"]);
    shell.args(["--out", text(&out), "--interval", "1s", "--intervals", "3", "--budget", "10%"]);
    let start = Instant::now();
    let printed = stdout_of_success(shell.output().unwrap());
    let elapsed = start.elapsed().as_secs_f64();
    // The last line has the times of children: 0m0.123s 0m0.456s.
    let times = printed.lines().last().unwrap().split_whitespace().map(|time| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
        minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
    });
    let spent: f64 = times.sum();
    let run = &rows::<RunRow>(&out)[0];
    // After its last wait the sample writes some kilobytes.
    assert!(spent < 0.1 * elapsed + 0.1, "{spent} s of {elapsed} s");
    assert!((run.cpu_us as f64 / 1e6 - spent).abs() < 0.1, "{run:?}, and {spent} s");
    assert!(run.sampled_pages > 100 && run.sampled_pages <= run.resident_pages, "{run:?}");
    assert_eq!((run.intervals, run.budget_percent), (3, 10.0));
}

/// Begins a sample that takes an hour, with a save at each reading after 200 ms.
fn begin(lab: &Lab, heap: &Heap, out: &Path) -> Child {
    let mut command = uzswap(lab);
    command.args(["sample", "--pid", &heap.pid(), "--out", text(out), "--interval", "50ms"]);
    command.args(["--for", "1h", "--budget", "100%", "--save-every", "200ms"]);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits until a sample has written more than so many intervals; its row.
fn wait_for_intervals(out: &Path, more_than: u64) -> RunRow {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let paths = fs::read_dir(out).into_iter().flatten();
        let is_run = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("runs-")
        };
        let mut runs = paths.map(|entry| entry.unwrap().path()).filter(is_run);
        let row = runs.next().and_then(|path| read::<RunRow>(&path).unwrap().pop());
        if let Some(row) = row.filter(|row| row.intervals > more_than) {
            return row;
        }
        assert!(Instant::now() < deadline, "no save");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_sample_has_left_all_but_its_last_moment() {
    let (lab, heap) = (Lab::new(), Heap::build("4M", true));
    let out = lab.path("out");
    let mut killed = begin(&lab, &heap, &out);
    // Over a cycle, so that pages are read twice.
    let saved = wait_for_intervals(&out, 20);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let runs = rows::<RunRow>(&out);
    assert_eq!((runs.len(), runs[0].ended_by.as_str()), (1, "nothing"));
    assert!(runs[0].intervals >= saved.intervals, "{runs:?}, {saved:?}");
    let intervals = rows::<IntervalRow>(&out);
    // A kill between two files leaves intervals that the row of the run does not tell of.
    assert!(intervals.len() as u64 >= 2 * runs[0].intervals, "{runs:?}");
    let numbers: Vec<u64> =
        intervals.iter().filter(|row| row.process.is_none()).map(|row| row.interval).collect();
    assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "{numbers:?}");
    let pages = rows::<PageRow>(&out).len() as u64;
    assert!(pages > 500 && runs[0].sampled_pages > 500, "{pages} pages, {runs:?}");

    // Another one removes a file that was half written, and no whole one.
    let part = out.join(".runs-1.parquet.x.part");
    fs::write(&part, "half").unwrap();
    let files = fs::read_dir(&out).unwrap().count();
    let ended = begin(&lab, &heap, &out);
    thread::sleep(Duration::from_millis(700));
    send("-TERM", ended.id());
    stdout_of_success(ended.wait_with_output().unwrap());
    assert!(!part.exists(), "{}", part.display());
    assert_eq!(fs::read_dir(&out).unwrap().count(), files - 1 + 3);

    let replay = |more: &[&str]| {
        let mut command = uzswap(&lab);
        command.args(["fleet", "replay", text(&out)]).args(more).output().unwrap().stdout
    };
    let document: Value = serde_json::from_slice(&replay(&["--json"])).unwrap();
    assert_eq!((&document["machines"], &document["samples_without_end"]), (&2.into(), &1.into()));
    let shown = String::from_utf8(replay(&[])).unwrap();
    assert!(shown.contains("Nothing ended 1 sample"), "{shown}");
}

#[test]
fn signals_end_a_sample_with_all_tables() {
    let (lab, heap) = (Lab::new(), Heap::build("4M", true));
    for signal in ["-TERM", "-INT"] {
        let out = lab.path(signal);
        let ended = begin(&lab, &heap, &out);
        wait_for_intervals(&out, 1);
        send(signal, ended.id());
        let shown = stdout_of_success(ended.wait_with_output().unwrap());
        assert!(shown.contains("a signal ended it early"), "{shown}");
        let runs = rows::<RunRow>(&out);
        assert_eq!((runs.len(), runs[0].ended_by.as_str()), (1, "signal"));
        assert_eq!(rows::<IntervalRow>(&out).len() as u64, 2 * runs[0].intervals);
        assert_eq!(rows::<PageRow>(&out).len() as u64, runs[0].sampled_pages);
        assert!(runs[0].sampled_pages > 500 && runs[0].notes.contains("signal"), "{runs:?}");
    }
}

#[test]
fn a_process_that_ends_is_no_error_and_a_full_disk_is_one() {
    let lab = Lab::new();
    let out = lab.path("out");
    let mut short = Command::new("sleep").arg("2").spawn().unwrap();
    let mut command = uzswap(&lab);
    command.args(["sample", "--pid", &short.id().to_string(), "--out", text(&out)]);
    command.args(["--interval", "500ms", "--for", "1m", "--budget", "100%", "--json"]);
    let waits = thread::spawn(move || command.output().unwrap());
    short.wait().unwrap();
    let document = json(waits.join().unwrap());
    assert!(document["notes"].to_string().contains("its target ended early"), "{document}");
    let run = &rows::<RunRow>(&out)[0];
    assert!(run.intervals < 5 && run.ended_by == "target", "{run:?}");

    // Files of half a KiB at most.
    let (full, heap) = (lab.path("full"), Heap::build("4M", true));
    let mut shell = Command::new("bash");
    shell.env("XDG_STATE_HOME", lab.path("state"));
    let script = "ulimit -f 1; exec \"$0\" \"$@\"";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_uzswap"), "sample", "--pid", &heap.pid()]);
    shell.args(["--out", text(&full), "--interval", "100ms", "--intervals", "1"]);
    let output = shell.args(["--budget", "100%"]).output().unwrap();
    expect_error(&output, 3, &["cannot write", "full/pages-", "os error 27", "before stay"]);
    assert_eq!(fs::read_dir(&full).unwrap().count(), 0, "half a file");
}

#[test]
fn wrong_calls_are_refused_before_the_work() {
    let lab = Lab::new();
    let (out, file) = (lab.path("out"), lab.path("file"));
    fs::write(&file, "").unwrap();
    let out = text(&out).to_owned();
    for (arguments, code, words) in [
        (&["--out", &out, "--pid", "2000000000"][..], 2, "no process with PID 2000000000"),
        (&["--out", &out, "--pid", "2"], 2, "kernel thread"),
        (&["--out", &out, "--pid", "1", "--system"], 2, "cannot be used with"),
        (&["--out", &out, "--budget", "0"], 2, "0.01 to 100"),
        (&["--out", &out, "--for", "10s"], 2, "--for is shorter than one interval"),
        (&["--out", text(&file)], 2, "os error"),
        (&["--system"], 2, "--out"),
    ] {
        let output = uzswap(&lab).arg("sample").args(arguments).output().unwrap();
        expect_error(&output, code, &[words]);
    }
    // A salt that others can read is none.
    open_to_all(&lab.path("state/uzswap/fleet-salt"));
    let output = uzswap(&lab).args(["sample", "--out", &out]).output().unwrap();
    expect_error(&output, 2, &["cannot take the salt", "fleet-salt", "chmod 600"]);
}
