//! Goal: a capture holds the pages of the process, or reports why not. It leaves nothing half done
//! behind: no file, no stopped process, no process at all.
//! Method: the real binary on real processes. The helpers are this test binary itself, run with
//! `HELPER` set; they fill pages with a word that tells which page it is.
//! Blind to: kernels without PAGEMAP_SCAN (a unit test covers the fallback), swap, other machines.

mod support;

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support::{
    Lab, capture_to, expect_error, expect_success, has_note, is_running, odd_seconds, send,
};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap_cli::corpus::capture::capture_workload;
use uzswap_cli::corpus::page_set::{About, PageSet};
use uzswap_cli::corpus::workload::Workload;
use uzswap_testing::wait_for;

/// Environment variable that makes this binary a helper, and the helper's name.
const HELPER: &str = "UZSWAP_TEST_HELPER";

/// First word of a page that a helper filled; the second is the page's number.
const MAGIC: u64 = 0x7a73_7761_705f_6d6d;

// The helpers.

/// Not a test unless `HELPER` names what to be.
#[test]
fn helper() {
    let Ok(name) = std::env::var(HELPER) else { return };
    let ready = || {
        let mut output = std::io::stdout().lock();
        output.write_all(b"\nready\n").and_then(|()| output.flush()).unwrap();
    };
    let wait_for_end = || {
        let mut rest = Vec::new();
        let _ = std::io::stdin().lock().read_to_end(&mut rest);
    };
    match name.as_str() {
        "hold" => {
            let pages = pattern(2048);
            ready();
            wait_for_end();
            drop(pages);
        }
        "big" => {
            let pages = pattern(16 * 1024);
            ready();
            wait_for_end();
            drop(pages);
        }
        "parent" => {
            let mut child = helper_command("hold").stdout(Stdio::inherit()).spawn().unwrap();
            wait_for_end();
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        "freed" => {
            let pages = pattern(8192);
            thread::sleep(Duration::from_millis(150));
            drop(pages);
            thread::sleep(Duration::from_millis(50));
        }
        "at-the-end" => {
            let _pages = std::hint::black_box(pattern(2048));
            std::process::exit(7);
        }
        "churn" => {
            let workers: Vec<_> = (0..2)
                .map(|_| {
                    thread::spawn(|| {
                        let since = Instant::now();
                        while since.elapsed() < Duration::from_secs(20) {
                            std::hint::black_box(pattern(512));
                        }
                    })
                })
                .collect();
            let _held = pattern(2048);
            ready();
            wait_for_end();
            std::process::exit(i32::from(workers.is_empty()));
        }
        other => panic!("no helper {other}"),
    }
}

/// `count` pages, each with the magic word and its number, the rest of it nearly empty.
fn pattern(count: usize) -> Vec<u64> {
    // One page more than needed: a large block of malloc begins 16 bytes into a page.
    let mut words = vec![0; (count + 1) * PAGE_SIZE / 8];
    let first = words.as_ptr().align_offset(PAGE_SIZE);
    for (number, page) in words[first..].chunks_exact_mut(PAGE_SIZE / 8).take(count).enumerate() {
        page[..2].copy_from_slice(&[MAGIC, number as u64]);
    }
    words
}

/// The numbers of the pattern's pages that are in `pages`.
fn pattern_numbers(pages: &[Page]) -> HashSet<u64> {
    let word = |page: &Page, index: usize| {
        u64::from_ne_bytes(page[index * 8..index * 8 + 8].try_into().unwrap())
    };
    pages.iter().filter(|page| word(page, 0) == MAGIC).map(|page| word(page, 1)).collect()
}

fn helper_command(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["helper", "--exact", "--nocapture"])
        .env(HELPER, name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // The harness complains there when we have read enough of its output.
        .stderr(Stdio::null());
    command
}

/// A helper that said it is ready; ended when dropped.
struct Helper {
    child: Child,
    _input: ChildStdin,
}

impl Helper {
    fn start(name: &str) -> Helper {
        let mut child = helper_command(name).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        assert!(output.lines().any(|line| line.unwrap() == "ready"), "{name} is not ready");
        let input = child.stdin.take().unwrap();
        Helper { child, _input: input }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn state(&self) -> char {
        process_state(self.child.id()).unwrap()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Its own children end when their input does.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn process_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

// The command under test.

fn this_binary() -> String {
    std::env::current_exe().unwrap().to_str().unwrap().to_owned()
}

/// Captures a helper as a command.
fn capture_helper(lab: &Lab, name: &str, options: &[&str]) -> Output {
    capture_to(&lab.path("pages"))
        .args(options)
        .args(["--", &this_binary(), "helper", "--exact", "--nocapture"])
        .env(HELPER, name)
        .output()
        .unwrap()
}

// Processes.

#[test]
fn a_process_is_captured_page_by_page() {
    let helper = Helper::start("hold");
    let pid = helper.pid();
    for arguments in [&["--pid", &pid][..], &["--pid", &pid, "--freeze"]] {
        let lab = Lab::new();
        let output = lab.capture(arguments);
        expect_success(&output);
        let summary = String::from_utf8_lossy(&output.stdout);
        assert!(summary.contains("pages") && summary.contains("origin"), "{summary}");
        let set = lab.read();
        assert_eq!(pattern_numbers(&set.pages).len(), 2048);
        assert_eq!(set.about.ranges.iter().map(|range| range.pages).sum::<u64>(), {
            set.about.page_count
        });
        assert!(set.about.ranges.iter().any(|range| range.name == "[stack]"));
        assert!(set.about.ranges.iter().all(|range| range.pid.unwrap().to_string() == pid));
        assert_eq!(lab.files(), ["pages", "pages.json"]);
        assert_ne!(helper.state(), 'T', "it was left stopped");
    }
}

#[test]
fn json_prints_the_side_file() {
    let helper = Helper::start("hold");
    let lab = Lab::new();
    let output = lab.capture(&["--json", "--pid", &helper.pid()]);
    expect_success(&output);
    let about: About = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(about, lab.read().about);
}

#[test]
fn a_tree_is_its_children_too() {
    let parent = Helper::start("parent");
    let lab = Lab::new();
    expect_success(&lab.capture(&["--pid", &parent.pid()]));
    assert_eq!(pattern_numbers(&lab.read().pages).len(), 0);
    expect_success(&lab.capture(&["--tree", "--freeze", "--pid", &parent.pid()]));
    let set = lab.read();
    assert_eq!(pattern_numbers(&set.pages).len(), 2048);
    let pids: HashSet<_> = set.about.ranges.iter().map(|range| range.pid).collect();
    assert_eq!(pids.len(), 2);
}

#[test]
fn pages_that_a_fork_shares_are_there_once() {
    let script = "x=$(head -c 8388608 /dev/zero | tr '\\0' a); (echo ready; read line); : $x";
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(shell.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let (lab, pid) = (Lab::new(), shell.id().to_string());
    // The kernel tells frames of pages to those who have CAP_SYS_ADMIN.
    for without in [&[][..], &["setpriv", "--bounding-set=-sys_admin"]] {
        let mut words = without.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
        words.push(env!("CARGO_BIN_EXE_uzswap").to_owned());
        words.extend(["capture", "--tree", "--pid", &pid, "-o"].map(str::to_owned));
        let mut command = Command::new(&words[0]);
        let output = command.args(&words[1..]).arg(lab.path("pages")).output();
        if output.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            println!("SKIP without CAP_SYS_ADMIN: there is no setpriv here");
            continue;
        }
        expect_success(&output.unwrap());
        let is_of_it = |page: &&Page| page.iter().all(|byte| *byte == b'a');
        let count = lab.read().pages.iter().filter(is_of_it).count();
        // The shell may hold a copy of its own, but not one for each process.
        let all = resident_pages(&pid);
        assert!(count >= 2040 && count <= all, "{count} pages; {all} are resident");
    }
    drop(shell.stdin.take());
    shell.wait().unwrap();
}

/// Resident anonymous pages of one process.
fn resident_pages(pid: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() / 4
}

#[test]
fn memory_that_comes_and_goes_does_not_stop_a_capture() {
    let helper = Helper::start("churn");
    let pid = helper.pid();
    for arguments in [&["--pid", &pid][..], &["--pid", &pid, "--freeze"]] {
        let lab = Lab::new();
        expect_success(&lab.capture(arguments));
        assert_eq!(pattern_numbers(&lab.read().pages).len(), 2048, "{arguments:?}");
    }
}

#[test]
fn a_process_killed_while_it_is_read_is_kept_as_far_as_it_was_read() {
    let mut cut_short = 0;
    for delay_ms in [0, 4, 8, 16, 32, 64] {
        let lab = Lab::new();
        let helper = Helper::start("big");
        let capture = capture_to(&lab.path("pages"))
            .args(["--pid", &helper.pid()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(delay_ms));
        drop(helper);
        let output = capture.wait_with_output().unwrap();
        if output.status.success() {
            let set = lab.read();
            let pages = set.pages.iter().filter(|page| page.iter().all(|byte| *byte == 0)).count();
            assert!(pages < 64, "{pages} pages of zeros that the process did not have");
            cut_short += usize::from(has_note(&set.about, "ended while it was read"));
        } else {
            assert_eq!(output.status.code(), Some(2));
            let message = String::from_utf8_lossy(&output.stderr);
            let known = ["no process with PID", "ended before", "is a zombie"];
            assert!(known.iter().any(|words| message.contains(words)), "{message}");
            assert!(lab.files().is_empty());
        }
    }
    println!("{cut_short} of 6 were cut short");
}

#[test]
fn processes_that_cannot_be_captured_are_told() {
    let lab = Lab::new();
    lab.refused(&["--pid", "2147483646"], 2, &["no process with PID 2147483646"]);
    lab.refused(&["--pid", "0"], 2, &["0 is not in"]);
    let mut zombie = Command::new("true").spawn().unwrap();
    wait_for("a zombie", || (process_state(zombie.id()) == Some('Z')).then_some(()));
    lab.refused(&["--pid", &zombie.id().to_string()], 2, &["is a zombie"]);
    zombie.wait().unwrap();
}

// Commands.

#[test]
fn a_command_is_captured_at_its_peak_though_it_frees_it() {
    for options in [&[][..], &["--tree"], &["--no-trace"]] {
        let lab = Lab::new();
        let output = capture_helper(&lab, "freed", options);
        expect_success(&output);
        let set = lab.read();
        let have = pattern_numbers(&set.pages).len();
        assert!(have >= 8192 * 85 / 100, "{have} of 8192 pages with {options:?}");
        assert!(has_note(&set.about, "of the peak of"), "{:?}", set.about.notes);
        assert!(has_note(&set.about, "exit status 0"), "{:?}", set.about.notes);
        assert_eq!(has_note(&set.about, "not traced"), options.contains(&"--no-trace"));
        // Standard output is the command's.
        assert!(String::from_utf8_lossy(&output.stdout).contains("test result"));
        assert!(String::from_utf8_lossy(&output.stderr).contains("written"));
    }
}

#[test]
fn a_command_is_captured_at_its_exit_with_all_it_has() {
    for options in [&["--at", "peak"][..], &["--at", "exit"], &["--at", "60s"]] {
        let lab = Lab::new();
        expect_success(&capture_helper(&lab, "at-the-end", options));
        let set = lab.read();
        assert_eq!(pattern_numbers(&set.pages).len(), 2048, "{options:?}");
        assert!(has_note(&set.about, "exit status 7"), "{:?}", set.about.notes);
        assert_eq!(has_note(&set.about, "ended before 60s"), options.contains(&"60s"));
    }
}

#[test]
fn a_command_that_ends_at_once_still_has_pages() {
    let lab = Lab::new();
    let output = lab.capture(&["--", "sh", "-c", "kill -SEGV $$"]);
    expect_success(&output);
    let about = lab.read().about;
    assert!(has_note(&about, "ended by SIGSEGV"), "{:?}", about.notes);
    assert!(about.origin.contains("sh -c"));
}

#[test]
fn the_children_of_a_command_are_captured_though_they_are_short() {
    let lab = Lab::new();
    let script = format!("{} helper --exact --nocapture; true", this_binary());
    let output = capture_to(&lab.path("pages"))
        .args(["--tree", "--", "sh", "-c", &script])
        .env(HELPER, "at-the-end")
        .output()
        .unwrap();
    expect_success(&output);
    // The child may have been captured just before it had all: within a tenth.
    let have = pattern_numbers(&lab.read().pages).len();
    assert!(have >= 2048 * 85 / 100, "{have} of 2048 pages");
}

#[test]
fn a_shell_that_starts_many_programs_is_captured() {
    // The capture hung once: it took a process that had stopped for its tracer for one that
    // somebody else had stopped, and did not resume it.
    let lab = Lab::new();
    let script = format!(
        "for i in $(seq 100); do /bin/true; done; {} helper --exact --nocapture; exit 5",
        this_binary()
    );
    let mut capture = capture_to(&lab.path("pages"))
        .args(["--tree", "--", "sh", "-c", &script])
        .env(HELPER, "freed")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let since = Instant::now();
    let status = loop {
        match capture.try_wait().unwrap() {
            Some(status) => break status,
            None if since.elapsed() > Duration::from_secs(20) => {
                send("-TERM", capture.id());
                capture.wait().unwrap();
                panic!("it hung");
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    assert!(status.success());
    let set = lab.read();
    assert!(pattern_numbers(&set.pages).len() >= 8192 * 85 / 100);
    assert!(has_note(&set.about, "exit status 5"), "{:?}", set.about.notes);
}

#[test]
fn a_command_is_captured_after_a_time_and_ended() {
    let lab = Lab::new();
    let seconds = odd_seconds(1);
    let since = Instant::now();
    let output = lab.capture(&["--at", "200ms", "--", "sleep", &seconds]);
    expect_success(&output);
    assert!((0.2..5.0).contains(&since.elapsed().as_secs_f64()));
    assert!(has_note(&lab.read().about, "captured after 0.2"));
    assert!(!is_running(&seconds));
}

#[test]
fn a_command_that_does_not_listen_is_ended_with_what_it_started_since() {
    let lab = Lab::new();
    let seconds = odd_seconds(5);
    // Caught, not ignored: the programs that it starts listen.
    let script = format!("trap 'true' TERM; while :; do sleep {seconds}; done");
    let output = lab.capture(&["--at", "200ms", "--", "sh", "-c", &script]);
    expect_success(&output);
    assert!(!is_running(&seconds));
}

#[test]
fn an_ignored_signal_does_not_end_a_capture() {
    let lab = Lab::new();
    let script = "trap '' HUP; exec \"$@\"";
    let mut capture = Command::new("sh")
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_uzswap"), "capture", "-o"])
        .arg(lab.path("pages"))
        .args(["--at", "400ms", "--", "sleep", &odd_seconds(4)])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("sleep", || is_running(&odd_seconds(4)).then_some(()));
    send("-HUP", capture.id());
    assert!(capture.wait().unwrap().success());
    assert!(!lab.read().pages.is_empty());
}

#[test]
fn a_killed_capture_takes_the_command_with_it() {
    let lab = Lab::new();
    let seconds = odd_seconds(3);
    let mut capture =
        capture_to(&lab.path("pages")).args(["--", "sleep", &seconds]).spawn().unwrap();
    wait_for("sleep", || is_running(&seconds).then_some(()));
    capture.kill().unwrap();
    let status: ExitStatus = capture.wait().unwrap();
    assert_eq!(status.signal(), Some(9));
    wait_for("the end of sleep", || (!is_running(&seconds)).then_some(()));
    assert!(lab.files().iter().all(|name| name.starts_with('.')), "{:?}", lab.files());
}

#[test]
fn an_interrupted_freeze_lets_the_process_run() {
    let helper = Helper::start("big");
    for delay_ms in [2, 10, 25] {
        let lab = Lab::new();
        let mut capture = capture_to(&lab.path("pages"))
            .args(["--freeze", "--pid", &helper.pid()])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(delay_ms));
        send("-TERM", capture.id());
        let status = wait_for("its end", || capture.try_wait().unwrap());
        wait_for("the process to run", || (helper.state() != 'T').then_some(()));
        if !status.success() {
            assert_eq!(status.signal(), Some(15));
            assert!(lab.files().is_empty(), "{:?}", lab.files());
        }
    }
}

#[test]
fn a_frozen_process_runs_again_when_the_capture_is_killed() {
    let helper = Helper::start("big");
    // The capture may have ended before it is killed: then again.
    for _ in 0..20 {
        let lab = Lab::new();
        let mut capture = capture_to(&lab.path("pages"))
            .args(["--freeze", "--pid", &helper.pid()])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let stopped = wait_for("its end", || match (helper.state(), capture.try_wait().unwrap()) {
            ('T', _) => Some(true),
            (_, ended) => ended.map(|_| false),
        });
        send("-KILL", capture.id());
        let status = capture.wait().unwrap();
        wait_for("the process to run", || (helper.state() != 'T').then_some(()));
        if stopped && status.signal() == Some(9) {
            return;
        }
    }
    panic!("no capture was killed in time");
}

#[test]
fn commands_that_do_not_start_are_told() {
    let lab = Lab::new();
    lab.refused(&["--", "/no/program"], 2, &["cannot run '/no/program'", "No such file"]);
    let plain = lab.path("plain");
    fs::write(&plain, "text").unwrap();
    let plain = plain.to_str().unwrap();
    lab.refused(&["--", plain], 3, &["cannot run", "Permission denied"]);
    lab.refused(&["--no-trace", "--", "true"], 2, &["ended before the first sample"]);
    lab.refused(&["--at", "soon", "--", "true"], 2, &["expected peak, exit, or a time"]);
    lab.refused(&["--at", "exit", "--pid", "1"], 2, &["--at", "cannot be used with"]);
    lab.refused(&["--no-trace", "--pid", "1"], 2, &["--no-trace", "cannot be used with"]);
    lab.refused(&[], 2, &["required", "--pid"]);
    lab.refused(&["--pid", "1", "--", "true"], 2, &["cannot be used with"]);
}

// The workload.

#[test]
fn a_workload_is_the_same_again_and_other_seeds_are_others() {
    let lab = Lab::new();
    let pages = |seed| {
        let out = lab.path("pages");
        let about = capture_workload(Workload::Text, seed, 4 << 20, &out).unwrap();
        assert_eq!(about.origin, format!("workload text, seed {seed}, 4194304 bytes"));
        assert!((1000..1100).contains(&about.page_count), "{}", about.page_count);
        PageSet::read(&out).unwrap().pages
    };
    let first: HashSet<Page> = pages(1).into_iter().collect();
    let same = |again: &[Page]| again.iter().filter(|page| first.contains(*page)).count();
    let again = pages(1);
    assert_eq!(same(&again), again.len());
    assert!(same(&pages(2)) < 20);
}

#[test]
fn workload_names_and_sizes_are_checked() {
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_uzswap")).arg("workload").args(arguments).output().unwrap()
    };
    expect_error(&run(&["webscale"]), 2, &["webscale", "string-map", "images"]);
    expect_error(&run(&["text", "--size", "12X"]), 2, &["'12X'", "expected a size"]);
    let output = run(&["text", "--size", "1M", "--seed", "3"]);
    expect_success(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("text 1.0 MiB seed 3: ") && text.lines().count() == 1, "{text}");
}
