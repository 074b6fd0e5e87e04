//! Goal: `uzswap top` and `run --metrics` report runs as they are, and no client can disturb a run.
//! A run leaves nothing behind, not even one that was killed.
//! Method: the real binary, end to end, in its own folder for temporary files. This test is also
//! the program that runs; it stands still during a query. Raw clients over both sockets. Tests that
//! cannot run here are counted as ignored, with the reason.

mod support;
use uzswap::random::SplitMix64;
use uzswap_testing::{trials, wait_for};

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use support::{Lab, expect_error, expect_success, is_root, open_to_all, send};

/// Memory of the program, and its limit.
const MIB: usize = 32;
const LIMIT: &str = "16M";
const LIMIT_BYTES: u64 = 16 << 20;

const SIGINT: i32 = 2;
const NOBODY: u32 = 65534;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("--program"), _) => return program(),
        (Some("--read"), Some(path)) => return read_socket(Path::new(&path)),
        (Some("--answer"), Some(path)) => return answer_at(Path::new(&path)),
        _ => {}
    }
    let missing = trials::no_run(env!("CARGO_BIN_EXE_uzswap"));
    let tests: [(&str, fn()); 14] = [
        ("a_run_is_told_as_it_is", told_as_it_is),
        ("intervals_add_up", intervals_add_up),
        ("text_has_a_line_for_each", text),
        ("what_is_no_run_is_refused", refused),
        ("a_stopped_run_is_no_missing_run", stopped),
        ("metrics_are_prometheus_text", metrics),
        ("requests_that_are_none_are_answered", garbage),
        ("who_does_not_read_stops_nobody", who_does_not_read),
        ("a_scrape_is_answered_beside_clients_of_all_kinds", clients_of_all_kinds),
        ("connections_are_bounded", connections_are_bounded),
        ("sockets_for_metrics_are_made_and_removed", metrics_at_a_path),
        ("left_overs_are_removed", left_overs),
        ("an_audit_finds_that_all_holds", audited),
        ("a_violation_is_told_by_the_exit_code", violated),
    ];
    let no_other_user = missing.clone().or_else(no_other_user);
    let other_user = trials::trial("another_user_is_sent_nothing", no_other_user, another_user);
    let no_interrupt = missing.clone().or_else(|| trials::no_signal(SIGINT));
    let interrupted = trials::trial("interrupted_it_ends_well", no_interrupt, interrupted);
    let tests = tests.map(|(name, test)| trials::trial(name, missing.clone(), test));
    trials::run_those_that_wait(tests.into_iter().chain([interrupted, other_user]))
}

/// Fills its memory and says so; for each line it reads, touches all of it once more.
fn program() -> ExitCode {
    let mut memory = vec![0_u64; MIB << 17];
    let mut words = SplitMix64::new(1);
    // One word in eight: it shrinks well, and no page is one repeated word.
    for word in memory.iter_mut().step_by(8) {
        *word = words.next_word() >> 44;
    }
    println!("ready");
    for _ in std::io::stdin().lines() {
        let sum: u64 = memory.iter().step_by(512).sum();
        println!("{sum}");
    }
    ExitCode::SUCCESS
}

/// Prints all that a socket says.
fn read_socket(path: &Path) -> ExitCode {
    let mut text = String::new();
    match UnixStream::connect(path).and_then(|mut stream| stream.read_to_string(&mut text)) {
        // The peer closed the connection before the read: nothing more comes.
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{}: {error}", path.display()),
    }
    print!("{text}");
    ExitCode::SUCCESS
}

/// Answers of a process that pretends to be a run.
const FALSE_COMMAND: &str = "no such command";

/// Answers at a socket as a run does, until it is killed.
fn answer_at(path: &Path) -> ExitCode {
    let listener = UnixListener::bind(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    println!("ready");
    for stream in listener.incoming() {
        let _ = write!(stream.unwrap(), "{{\"pid\": 1, \"command\": [\"{FALSE_COMMAND}\"]}}");
    }
    ExitCode::SUCCESS
}

/// A process that ends with its variable.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Why nothing can be done as another user here.
fn no_other_user() -> Option<String> {
    if !is_root() {
        return Some("not root: cannot be another user".to_owned());
    }
    let status = Command::new("true").uid(NOBODY).gid(NOBODY).status();
    status.err().map(|error| format!("cannot run as user {NOBODY}: {error}"))
}

fn uzswap(lab: &Lab) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    command.env("TMPDIR", lab.directory.path());
    command
}

/// The program in less memory.
struct Run {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Run {
    /// Starts it and waits until it stands still.
    fn start(lab: &Lab, flags: &[&str]) -> Run {
        let mut child = uzswap(lab)
            .args(["run", "--quiet", "--limit", LIMIT])
            .args(flags)
            .arg("--")
            .arg(std::env::current_exe().unwrap())
            .arg("--program")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(stdout.next().unwrap().unwrap(), "ready");
        Run { child, stdin, stdout }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it touch all of its memory.
    fn touch(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.stdout.next().unwrap().unwrap();
    }

    /// Has it end.
    fn end(mut self) {
        drop(self.stdin.take());
        wait_for("the end of the run", || self.child.try_wait().unwrap());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn top(lab: &Lab, arguments: &[&str]) -> Output {
    uzswap(lab).arg("top").args(arguments).output().unwrap()
}

/// The state of one run.
fn look(lab: &Lab, run: &Run) -> Value {
    let output = top(lab, &[&run.pid().to_string(), "--json", "--count", "1"]);
    expect_success(&output);
    let mut runs: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = runs["runs"][0].take();
    assert!(run.is_object() && runs["runs"].as_array().unwrap().len() == 1, "{runs}");
    run
}

/// The same once nothing changes any more.
fn still(lab: &Lab, run: &Run) -> Value {
    let mut last = look(lab, run);
    wait_for("a run that stands still", || {
        std::thread::sleep(Duration::from_millis(60));
        let now = look(lab, run);
        let same = |name| now[name] == last[name];
        let is_still = same("counts") && same("fault_times") && same("used_bytes");
        last = now;
        is_still.then_some(())
    });
    last
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"))
}

/// The folders of runs.
fn folders(lab: &Lab) -> Vec<PathBuf> {
    let names = lab.files().into_iter().filter(|name| name.starts_with("uzswap-"));
    names.map(|name| lab.path(&name)).collect()
}

/// Checks that these differ by a tenth at most.
fn expect_close(a: u64, b: u64) {
    assert!(a.abs_diff(b) <= a.max(b) / 10, "{a} is not {b}");
}

fn told_as_it_is() {
    let lab = Lab::new();
    let mut run = Run::start(&lab, &[]);
    run.touch();
    let told = still(&lab, &run);
    assert_eq!(told["pid"], run.pid());
    assert_eq!(told["command"][1], "--program");
    assert_eq!(told["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&told["metrics"], number(&told["limit_bytes"])), (&Value::Null, LIMIT_BYTES));
    let bytes = |name: &str| number(&told[name]);
    let used = bytes("used_bytes");
    assert!(used > LIMIT_BYTES / 2 && used <= LIMIT_BYTES * 11 / 10, "{told}");
    assert!(bytes("resident_bytes") <= used && bytes("peak_bytes") >= used, "{told}");
    let parts = ["resident_bytes", "unmanaged_bytes", "pool_bytes", "metadata_bytes"];
    expect_close(used, parts.map(bytes).iter().sum());

    let stored = bytes("stored_pages");
    assert!(stored > 1000, "{told}");
    let ratio = told["ratio"].as_f64().unwrap();
    assert!((ratio - stored as f64 * 4096.0 / bytes("pool_bytes") as f64).abs() < 1e-9);
    assert!(ratio > 1.2, "{ratio}");
    let counts = &told["counts"];
    assert!(number(&counts["stored_pages"]) >= stored && number(&counts["restored_pages"]) > 0);

    let [process] = &told["processes"].as_array().unwrap()[..] else { panic!("{told}") };
    let pid = number(&process["pid"]);
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(process["name"], comm.trim_end());
    assert_eq!(number(&process["stored_pages"]), stored);
    expect_close(number(&process["resident_bytes"]), bytes("resident_bytes"));
    // Where its pages are: each of them is in one place.
    let resident = number(&process["resident_bytes"]) / 4096;
    assert!(number(&process["aside_pages"]) <= resident, "{told}");
    let pages = (MIB << 8) as u64;
    assert!(resident + stored >= pages && resident + stored < pages + pages / 10, "{told}");

    let faults = number(&told["faults"]["count"]);
    assert!(faults > 0 && faults == number(&process["faults"]), "{told}");
    let times = &told["fault_times"];
    let buckets = times["buckets"].as_array().unwrap();
    let sum: u64 = buckets.iter().map(|bucket| number(&bucket["count"])).sum();
    assert!(sum == faults && number(&times["count"]) == faults, "{told}");
    let end = |bucket: &Value| number(&bucket["below_ns"]);
    assert!(buckets.is_sorted_by(|a, b| end(a) < end(b)), "{told}");
    assert!(end(buckets.last().unwrap()) > number(&told["faults"]["max_ns"]));
    assert!(number(&times["sum_ns"]) >= number(&told["faults"]["max_ns"]));
    // The first look is at all of the run.
    assert_eq!(number(&told["interval"]["faults"]), faults);
    let median = number(&told["faults"]["p50_ns"]);
    expect_close(number(&told["interval"]["p50_ns"]), median);

    let folder = &folders(&lab)[..];
    let [folder] = folder else { panic!("{folder:?}") };
    let socket = fs::metadata(folder.join("status")).unwrap();
    assert!(socket.file_type().is_socket() && socket.permissions().mode() & 0o777 == 0o600);
    // `top` shows the values of the socket.
    let mut text = String::new();
    UnixStream::connect(folder.join("status")).unwrap().read_to_string(&mut text).unwrap();
    let raw: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&raw["counts"], &raw["processes"]), (&told["counts"], &told["processes"]));
    run.end();
    assert_eq!(lab.files(), [""; 0]);
}

fn audited() {
    let lab = Lab::new();
    let mut run = Run::start(&lab, &[]);
    let pid = run.pid().to_string();
    let is_over = AtomicBool::new(false);
    // While pages move, and at rest.
    thread::scope(|scope| {
        let audits = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                expect_success(&top(&lab, &["--audit"]));
            }
        });
        (0..5).for_each(|_| run.touch());
        is_over.store(true, Ordering::Relaxed);
        audits.join().unwrap();
    });
    let stored = number(&still(&lab, &run)["stored_pages"]);
    let output = top(&lab, &[&pid, "--audit", "--json"]);
    expect_success(&output);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [audit] = &document["audits"].as_array().unwrap()[..] else { panic!("{document}") };
    assert_eq!((&audit["pid"], &audit["violation"]), (&Value::from(run.pid()), &Value::Null));
    assert_eq!((number(&audit["spaces"]), number(&audit["skipped_spaces"])), (1, 0), "{audit}");
    assert!(number(&audit["pages"]) >= stored && stored > 1000, "{audit}");
    assert!(number(&audit["slots"]) >= stored, "{audit}");
    let output = top(&lab, &[&pid, "--audit"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(&format!("run {pid}: 1 address spaces, ")), "{text}");
    assert!(text.ends_with(": all invariants hold\n"), "{text}");
    run.end();
    expect_error(&top(&lab, &[&pid, "--audit"]), 3, &["no run with PID"]);
    expect_error(&top(&lab, &["--audit"]), 3, &["no run of this user"]);
    expect_error(&top(&lab, &["--audit", "--count", "1"]), 2, &["cannot be used with"]);
}

/// This test pretends to be the supervisor.
fn violated() {
    let lab = Lab::new();
    let folder = lab.path("uzswap-a-test");
    fs::create_dir(&folder).unwrap();
    let listener = UnixListener::bind(folder.join("audit")).unwrap();
    let pid = std::process::id();
    let violation = r#"{"invariant": "P1", "pid": 7, "address": 4096, "text": "it is resident"}"#;
    let answer = format!(r#"{{"pid": {pid}, "spaces": 2, "violation": {violation}}}"#);
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let output = top(&lab, &[&pid.to_string(), "--audit"]);
    server.join().unwrap();
    expect_error(&output, 1, &["an invariant does not hold"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.ends_with("P1, process 7, page 0x1000: it is resident\n"), "{text}");
}

fn intervals_add_up() {
    let lab = Lab::new();
    let mut run = Run::start(&lab, &[]);
    still(&lab, &run);
    let mut top = uzswap(&lab)
        .args(["top", &run.pid().to_string(), "--json", "--interval", "0.1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut next = || -> Value {
        let look: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        look["runs"][0].clone()
    };
    let first = next();
    let at_start = number(&first["faults"]["count"]);
    assert_eq!(number(&first["interval"]["faults"]), at_start);
    run.touch();
    let in_all = number(&still(&lab, &run)["faults"]["count"]);
    assert!(in_all > at_start);
    let (mut sum, mut seconds) = (at_start, first["interval"]["seconds"].as_f64().unwrap());
    loop {
        let look = next();
        sum += number(&look["interval"]["faults"]);
        seconds += look["interval"]["seconds"].as_f64().unwrap();
        assert_eq!(sum, number(&look["faults"]["count"]));
        assert!((seconds - look["elapsed_s"].as_f64().unwrap()).abs() < 1e-3);
        if sum == in_all {
            break;
        }
    }
    // `top` ends with the run that it was to show.
    run.end();
    wait_for("the end of top", || top.try_wait().unwrap());
    assert_eq!(top.wait().unwrap().code(), Some(0));
}

fn text() {
    let lab = Lab::new();
    let run = Run::start(&lab, &[]);
    let output = top(&lab, &["--count", "2", "--interval", "0.1"]);
    expect_success(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\x1b') && text.lines().all(|line| line.len() <= 100), "{text}");
    let columns: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    let expected =
        ["PID", "COMMAND", "LIMIT", "USED", "RESIDENT", "POOL", "RATIO", "FAULTS/s", "P50", "P99"];
    assert_eq!(columns, expected);
    let pid = run.pid().to_string();
    let of_run = |line: &&str| line.split_whitespace().next() == Some(&pid);
    assert_eq!(text.lines().filter(of_run).count(), 2, "{text}");
    assert!(text.lines().any(|line| line.contains("stored") && line.contains("  top-")), "{text}");

    // On a terminal it is drawn over.
    let program = format!("{} top {pid} --count 2 --interval 0.1", env!("CARGO_BIN_EXE_uzswap"));
    let drawn = Command::new("script")
        .args(["-qec", &program, "/dev/null"])
        .env("TMPDIR", lab.directory.path())
        .stdin(Stdio::null())
        .output();
    if let Ok(output) = drawn {
        expect_success(&output);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("\x1b[2J\x1b[Huzswap top, every 0.1 s"), "{text:?}");
        assert_eq!(text.matches("\x1b[H").count(), 2, "{text:?}");
        assert!(text.contains("RESIDENT") && text.ends_with("\x1b[J"), "{text:?}");
    }
    run.end();
}

fn interrupted() {
    let lab = Lab::new();
    let run = Run::start(&lab, &[]);
    let pid = run.pid().to_string();
    let mut top = uzswap(&lab)
        .args(["top", &pid, "--json", "--interval", "3600"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    send("-INT", top.id());
    wait_for("the end of top", || top.try_wait().unwrap());
    assert_eq!(top.wait().unwrap().code(), Some(0));
    assert!(lines.next().is_none());
    // A reader that stops reading ends it too.
    let mut top = uzswap(&lab)
        .args(["top", &pid, "--interval", "0.1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(top.stdout.take());
    wait_for("the end of top", || top.try_wait().unwrap());
    assert_eq!(top.wait().unwrap().code(), Some(0));
    run.end();
}

fn refused() {
    let lab = Lab::new();
    let own = std::process::id().to_string();
    expect_error(&top(&lab, &[&own, "--count", "1"]), 2, &["no run with PID", &own]);
    expect_error(&top(&lab, &[&own, "--json"]), 2, &["no run with PID"]);
    for arguments in [
        ["--interval", "0"],
        ["--interval", "nan"],
        ["--interval", "-1"],
        ["--interval", "1e9"],
        ["--count", "0"],
        ["--count", "x"],
        ["name", "--json"],
    ] {
        expect_error(&top(&lab, &arguments), 2, &["error:"]);
    }
    for address in ["0.0.0.0:0", "[::]:1", "10.0.0.1:9100", "localhost:1", "unix:", "9100"] {
        let output = uzswap(&lab)
            .args(["run", "--limit", LIMIT, "--metrics", address, "--", "echo", "started"])
            .output()
            .unwrap();
        expect_error(&output, 2, &["--metrics", "unix:PATH"]);
        assert!(output.stdout.is_empty(), "{address}");
    }
    // Runs of others may be there.
    let output = top(&lab, &["--json", "--count", "1"]);
    expect_success(&output);
    let look: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = look["runs"].as_array().unwrap();
    if runs.is_empty() {
        let output = top(&lab, &["--count", "1"]);
        expect_success(&output);
        assert!(output.stdout.is_empty());
        expect_error(&output, 0, &["no run of this user"]);
    }
}

/// A run that is there and does not answer, as it is stopped.
fn stopped() {
    let lab = Lab::new();
    let run = Run::start(&lab, &[]);
    still(&lab, &run);
    let pid = run.pid().to_string();
    send("-STOP", run.pid());
    wait_for("the stop", || (state_of(&pid) == Some('T')).then_some(()));
    thread::scope(|scope| {
        scope.spawn(|| {
            let output = top(&lab, &[&pid, "--count", "1"]);
            let told = format!("run {pid} did not answer within 10 s");
            expect_error(&output, 3, &[&told, "stopped"]);
            assert!(output.stdout.is_empty());
        });
        // One of many is not there, and is named.
        let output = top(&lab, &["--json", "--count", "1"]);
        expect_error(&output, 0, &[&pid, "did not answer"]);
        assert!(!String::from_utf8(output.stdout).unwrap().contains(&format!("\"pid\":{pid},")));
    });
    // Ctrl-C does not wait for it.
    let mut top = uzswap(&lab).args(["top", &pid]).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("a thread that waits for the run", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", top.id())).unwrap().count();
        (tasks > 1).then_some(())
    });
    send("-INT", top.id());
    let mut message = String::new();
    top.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert_eq!((top.wait().unwrap().code(), &*message), (Some(0), ""));
    send("-CONT", run.pid());
    assert_eq!(look(&lab, &run)["pid"], run.pid());
    run.end();
}

/// Sends a request and reads the answer: its status, its head and its body.
fn ask(mut stream: impl Read + Write, request: &[u8]) -> (u32, String, String) {
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.strip_prefix("HTTP/1.1 ").unwrap().split(' ').next().unwrap();
    (status.parse().unwrap(), head.to_owned(), body.to_owned())
}

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n";

fn address(lab: &Lab, run: &Run) -> String {
    look(lab, run)["metrics"].as_str().unwrap().to_owned()
}

/// Samples by name and labels, each line of which was checked.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    let mut families = BTreeSet::new();
    let mut family = ("", "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(
                families.insert(name) && name.starts_with("uzswap_") && help.len() > 8,
                "{line}"
            );
            family = (name, "");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(
                name == family.0 && ["gauge", "counter", "histogram"].contains(&kind),
                "{line}"
            );
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            family.1 = kind;
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let end = name.strip_prefix(family.0).unwrap_or_else(|| panic!("{line} in {family:?}"));
        assert!(end.is_empty() != (family.1 == "histogram"), "{line}");
        let value = value.replace("+Inf", "inf").parse().unwrap();
        assert!(found.insert(series.to_owned(), value).is_none(), "{line} twice");
    }
    found
}

fn metrics() {
    let lab = Lab::new();
    let mut run = Run::start(&lab, &["--metrics", "127.0.0.1:0"]);
    run.touch();
    let told = still(&lab, &run);
    let address = told["metrics"].as_str().unwrap();
    let (status, head, body) = ask(TcpStream::connect(address).unwrap(), GET);
    assert_eq!(status, 200);
    assert!(head.contains("Content-Type: text/plain; version=0.0.4\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    let samples = samples(&body);
    let of = |name: &str| samples[&format!("uzswap_{name}")];
    let same = |name: &str, value: &Value| assert_eq!(of(name), value.as_f64().unwrap(), "{name}");
    same("run_limit_bytes", &told["limit_bytes"]);
    same("run_used_bytes", &told["used_bytes"]);
    same("run_peak_bytes", &told["peak_bytes"]);
    same("run_memory_bytes{part=\"pool\"}", &told["pool_bytes"]);
    same("run_memory_bytes{part=\"resident\"}", &told["resident_bytes"]);
    for kind in ["margin", "staging", "tables"] {
        let name = format!("run_held_back_bytes{{kind=\"{kind}\"}}");
        same(&name, &told["held_back"][format!("{kind}_bytes")]);
    }
    // The growth that is expected falls while the run stands still.
    let growth = &told["held_back"]["growth_bytes"];
    assert!(of("run_held_back_bytes{kind=\"growth\"}") <= growth.as_f64().unwrap());
    assert!(told["held_back"]["margin_bytes"].as_u64() >= Some(1 << 20));
    for name in ["fresh", "restored", "rescued", "stored", "moved"] {
        same(&format!("run_{name}_pages_total"), &told["counts"][format!("{name}_pages")]);
    }
    same("stored_pages", &told["stored_pages"]);
    same("run_fault_seconds_count", &told["faults"]["count"]);
    same("run_fault_seconds_bucket{le=\"+Inf\"}", &told["faults"]["count"]);
    let sum_ns = told["fault_times"]["sum_ns"].as_f64().unwrap();
    assert!((of("run_fault_seconds_sum") - sum_ns / 1e9).abs() < 1e-9);
    // 2^15 ns: the buckets below it are the same ones.
    let below = |bucket: &&Value| number(&bucket["below_ns"]) <= 1 << 15;
    let buckets = told["fault_times"]["buckets"].as_array().unwrap();
    let count: u64 = buckets.iter().filter(below).map(|bucket| number(&bucket["count"])).sum();
    assert_eq!(of("run_fault_seconds_bucket{le=\"0.000032768\"}"), count as f64);
    let process = &told["processes"][0];
    let labels = format!("{{pid=\"{}\",name={}}}", process["pid"], process["name"]);
    same(&format!("process_resident_bytes{labels}"), &process["resident_bytes"]);
    same(&format!("process_stored_pages{labels}"), &process["stored_pages"]);
    same(&format!("process_faults_total{labels}"), &process["faults"]);

    // The port is taken.
    let output = uzswap(&lab)
        .args(["run", "--limit", LIMIT, "--metrics", address, "--", "echo", "started"])
        .output()
        .unwrap();
    expect_error(&output, 3, &["--metrics", address]);
    assert!(output.stdout.is_empty());
    run.end();
    assert_eq!(lab.files(), [""; 0]);
}

fn garbage() {
    let lab = Lab::new();
    let run = Run::start(&lab, &["--metrics", "127.0.0.1:0"]);
    let address = address(&lab, &run);
    let connect = || {
        let stream = TcpStream::connect(&address).unwrap();
        // One that is not answered fails.
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    };
    let long = [b"GET /metrics HTTP/1.1\r\nX: ".to_vec(), vec![b'y'; 20_000]].concat();
    let requests: [(&[u8], u32); 8] = [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", 200),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics HTTP/3\r\n\r\n", 505),
        (b"\0\xff\xfe garbage\r\n\r\n", 400),
        (b"{\"json\": 1}\n\n", 400),
        (&long, 431),
        (GET, 200),
    ];
    for (request, expected) in requests {
        let (status, head, body) = ask(connect(), request);
        assert_eq!(status, expected, "{head}");
        assert_eq!(body.is_empty(), request.starts_with(b"HEAD"), "{head}");
    }
    // In pieces.
    let mut stream = connect();
    for byte in &GET[..GET.len() - 1] {
        stream.write_all(&[*byte]).unwrap();
    }
    assert_eq!(ask(stream, b"\n").0, 200);
    // Some of a request and then nothing, or the end.
    assert_eq!(ask(connect(), b"GET /met").0, 408);
    let stream = connect();
    (&stream).write_all(b"GET /met").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(ask(stream, b"").0, 400);
    // Nothing at all.
    drop(connect());
    let mut words = SplitMix64::new(3);
    for bytes in 0..40 {
        let noise: Vec<u8> = (0..bytes * 50).map(|_| words.next_word() as u8).collect();
        let mut stream = connect();
        let _ = stream.write_all(&noise);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(ask(connect(), GET).0, 200);
    run.end();
}

fn who_does_not_read() {
    let lab = Lab::new();
    let mut run = Run::start(&lab, &["--metrics", "[::1]:0"]);
    let address = address(&lab, &run);
    let status = folders(&lab)[0].join("status");
    // More than are answered or may wait.
    let ask_status: Vec<_> = (0..40).map(|_| UnixStream::connect(&status).unwrap()).collect();
    let ask_metrics = silent(&address, 60);
    run.touch();
    look(&lab, &run);
    assert_eq!(ask(patient(&address), GET).0, 200);
    let more = silent(&address, 20);
    run.touch();
    run.end();
    assert_eq!(lab.files(), [""; 0]);
    drop((ask_status, ask_metrics, more));
}

/// One that fails where it is answered later than other clients would be let go one by one.
fn patient(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// Clients that say one byte each and then nothing.
fn silent(address: &str, count: usize) -> Vec<TcpStream> {
    let one = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"G").unwrap();
        stream
    };
    (0..count).map(one).collect()
}

/// Connects, does something, and connects again once that fails, until it is stopped.
fn again_and_again(is_over: &AtomicBool, address: &str, mut act: impl FnMut(&mut TcpStream)) {
    while !is_over.load(Ordering::Relaxed) {
        if let Ok(mut stream) = TcpStream::connect(address) {
            act(&mut stream);
        }
    }
}

fn clients_of_all_kinds() {
    let lab = Lab::new();
    let mut run = Run::start(&lab, &["--metrics", "127.0.0.1:0"]);
    let address = address(&lab, &run);
    let status = folders(&lab)[0].join("status");
    let is_over = AtomicBool::new(false);
    let is_on = || !is_over.load(Ordering::Relaxed);
    thread::scope(|scope| {
        // A byte at a time.
        let slow = |stream: &mut TcpStream| {
            let header = "X: y\r\n".bytes().cycle();
            for byte in b"GET /metrics HTTP/1.1\r\n".iter().copied().chain(header) {
                if !is_on() || stream.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(1)); // its pace
            }
        };
        // A request without an end.
        let giant = |stream: &mut TcpStream| {
            while is_on() && stream.write_all(&[b'A'; 64 << 10]).is_ok() {}
        };
        // Many at once, of which no answer is read.
        let many = GET.repeat(1000);
        let greedy = move |stream: &mut TcpStream| {
            let _ = stream.write_all(&many);
            let _ = stream.read(&mut [0]);
        };
        let (is_over, address) = (&is_over, &address);
        scope.spawn(move || again_and_again(is_over, address, slow));
        scope.spawn(move || again_and_again(is_over, address, giant));
        scope.spawn(move || again_and_again(is_over, address, greedy));
        let silent = silent(address, 60);
        let deaf: Vec<_> = (0..40).map(|_| UnixStream::connect(&status).unwrap()).collect();
        for _ in 0..20 {
            assert_eq!(ask(patient(address), GET).0, 200);
            look(&lab, &run);
        }
        run.touch();
        is_over.store(true, Ordering::Relaxed);
        drop((silent, deaf));
    });
    run.end();
    assert_eq!(lab.files(), [""; 0]);
}

fn connections_are_bounded() {
    let lab = Lab::new();
    let run = Run::start(&lab, &["--metrics", "127.0.0.1:0"]);
    let address = address(&lab, &run);
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", run.pid())).unwrap().count();
    let before = descriptors();
    let silent = silent(&address, 100);
    // It is accepted after them.
    assert_eq!(ask(patient(&address), GET).0, 200);
    let more = descriptors() - before;
    assert!((1..=40).contains(&more), "{more} descriptors for 100 connections");
    drop(silent);
    run.end();
}

fn another_user() {
    let lab = Lab::new();
    let run = Run::start(&lab, &[]);
    let folder = folders(&lab).remove(0);
    let socket = folder.join("status");
    let program = lab.path("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    // The modes let everybody in; it is the process that is asked.
    open_to_all(lab.directory.path());
    open_to_all(&folder);
    open_to_all(&program);
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let read_as = |user| {
        let mut command = Command::new(&program);
        command.arg("--read").arg(&socket).uid(user).gid(user);
        // Busy while another test's new process, just forked, still has the copy open for writing.
        wait_for("the copy to be free", || match command.output() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
            other => Some(other.unwrap()),
        })
    };
    let output = read_as(NOBODY);
    expect_success(&output);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
    let output = read_as(0);
    expect_success(&output);
    assert!(output.stdout.starts_with(b"{"), "root is sent the state");

    // One that another user answers for root is no run.
    let false_run = lab.path("uzswap-false");
    fs::create_dir(&false_run).unwrap();
    fs::set_permissions(&false_run, fs::Permissions::from_mode(0o777)).unwrap();
    let mut answering = Command::new(&program);
    answering.arg("--answer").arg(false_run.join("status")).uid(NOBODY).gid(NOBODY);
    let mut answering = Killed(answering.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(answering.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let shown = || {
        let output = top(&lab, &["--json", "--count", "1"]);
        expect_success(&output);
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(!shown().contains(FALSE_COMMAND));
    // In a folder of its own it may say whatever it likes.
    std::os::unix::fs::chown(&false_run, Some(NOBODY), None).unwrap();
    assert!(shown().contains(FALSE_COMMAND));
    run.end();
}

fn metrics_at_a_path() {
    let lab = Lab::new();
    let path = lab.path("metrics");
    let flag = format!("unix:{}", path.display());
    let refuse = |code, words: &[&str]| {
        let output = uzswap(&lab)
            .args(["run", "--limit", LIMIT, "--metrics", &flag, "--", "echo", "started"])
            .output()
            .unwrap();
        expect_error(&output, code, words);
        assert!(output.stdout.is_empty());
    };
    // One that nobody listens at is replaced.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let run = Run::start(&lab, &["--metrics", &flag]);
    let mode = fs::metadata(&path).unwrap().mode() & 0o777;
    assert!(mode & 0o600 == 0o600 && mode & 0o117 == 0, "{mode:o}");
    let (status, _, body) = ask(UnixStream::connect(&path).unwrap(), GET);
    assert_eq!(status, 200);
    assert_eq!(samples(&body)["uzswap_run_limit_bytes"], LIMIT_BYTES as f64);
    assert_eq!(ask(UnixStream::connect(&path).unwrap(), b"GET /x HTTP/1.1\r\n\r\n").0, 404);
    refuse(3, &["in use"]);
    assert_eq!(ask(UnixStream::connect(&path).unwrap(), GET).0, 200);
    run.end();
    assert_eq!(lab.files(), [""; 0]);

    fs::write(&path, "precious").unwrap();
    refuse(2, &["metrics", "is not a socket"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    let missing = format!("unix:{}", lab.path("no/such/folder").display());
    let output = uzswap(&lab)
        .args(["run", "--limit", LIMIT, "--metrics", &missing, "--", "true"])
        .output()
        .unwrap();
    expect_error(&output, 2, &["No such file"]);

    // A file that has taken its place stays.
    fs::remove_file(&path).unwrap();
    let run = Run::start(&lab, &["--metrics", &flag]);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "other").unwrap();
    run.end();
    assert_eq!(lab.files(), ["metrics"]);
}

fn left_overs() {
    let lab = Lab::new();
    let mut run = Run::start(&lab, &[]);
    let killed = folders(&lab).remove(0);
    let pid = look(&lab, &run)["processes"][0]["pid"].to_string();
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    wait_for("the end of the program", || (!is_alive(&pid)).then_some(()));
    assert!(killed.join("status").exists());
    let output = top(&lab, &["--json", "--count", "1"]);
    expect_success(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains(&format!("\"pid\":{},", run.pid())), "{text}");

    // These are not to be removed: held by a process, or not known to be of one that has ended.
    let mut keep = BTreeSet::new();
    let mut make = |name: &str, files: &[&str]| {
        let folder = lab.path(name);
        fs::create_dir(&folder).unwrap();
        files.iter().for_each(|file| fs::write(folder.join(file), "").unwrap());
        keep.insert(folder.clone());
        folder
    };
    let library = "libuzswap_preload.so";
    make("uzswap-000000000000", &[]);
    make("uzswap-000000000001", &[library, ".uzswap-lock.new"]);
    make("uzswap-named", &[library, ".uzswap-lock"]);
    let held = make("uzswap-000000000002", &[library, ".uzswap-lock"]);
    let lock = fs::File::open(held.join(".uzswap-lock")).unwrap();
    lock.lock().unwrap();
    let elsewhere = make("elsewhere", &[library, ".uzswap-lock"]);
    let link = lab.path("uzswap-000000000003");
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    keep.insert(link);
    // Short programs do not wait for that.
    let run_a_while = || {
        let argv = ["run", "--limit", LIMIT, "--", "sleep", "1"];
        let output = uzswap(&lab).args(argv).output().unwrap();
        expect_success(&output);
        let found: BTreeSet<PathBuf> = lab.files().iter().map(|name| lab.path(name)).collect();
        found
    };
    assert!(killed.exists());
    assert_eq!(run_a_while(), keep);
    drop(lock);
    keep.remove(&held);
    assert_eq!(run_a_while(), keep);
}

/// Whether a process runs: one that was killed may wait for its parent yet.
fn is_alive(pid: &str) -> bool {
    state_of(pid).is_some_and(|state| state != 'Z')
}

/// The letter of a process's state.
fn state_of(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}
