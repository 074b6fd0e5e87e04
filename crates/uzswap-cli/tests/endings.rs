//! Goal: a program under `uzswap run` ends as it would without, and nothing of it is left; where
//! `uzswap` itself ends, nothing runs on with memory that is gone.
//! Method: the real binary; programs are shells and this one again. Tests that cannot run here are
//! counted as ignored, with the reason.
//! Blind to: how soon something ends, but for a deadline of some seconds.

#[allow(dead_code, reason = "what is not used here is in other tests")]
mod process_tree;
use uzswap::random::SplitMix64;
use uzswap_testing::outputs::{expect, text};
use uzswap_testing::trials;

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Time to notice a killed supervisor, with slack for a busy machine.
const SOON: Duration = Duration::from_secs(5);

const PAGE: usize = 4096;

/// A name, what it needs, and the test.
type Case = (&'static str, &'static [&'static str], fn());

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [first, mib, after] if first == "--fill" => return fill(mib.parse().unwrap(), after),
        _ => {}
    }
    let missing = trials::no_run(env!("CARGO_BIN_EXE_uzswap"));
    let tests: [Case; 32] = [
        ("signals_reach_the_program", &[], signals_reach_the_program),
        ("interrupts_reach_the_program", &["SIGINT"], || signal_reaches("INT")),
        ("hang_ups_reach_the_program", &["SIGHUP"], || signal_reaches("HUP")),
        ("ctrl_c_hits_once", &["SIGINT", "script"], ctrl_c_hits_once),
        ("no_program_outlives_the_supervisor", &[], none_outlives_the_supervisor),
        ("a_program_that_starts_without_its_supervisor_ends", &["sleep"], starts_too_late),
        ("no_message_is_written_into_data", &[], no_message_is_written_into_data),
        ("a_killed_program_leaves_nothing", &[], a_killed_program_leaves_nothing),
        ("a_program_that_ends_has_lost_nothing", &[], an_end_is_no_loss),
        ("a_limit_that_is_too_small_is_told", &[], too_small_is_told),
        ("locked_memory_is_named", &["python3"], locked_memory_is_named),
        ("what_does_not_shrink_is_kept_to_its_limit", &[], too_small_is_kept_to),
        ("there_may_be_more_programs_than_descriptors", &[], more_than_descriptors),
        ("closed_streams_are_no_matter", &[], closed_streams),
        ("what_was_preloaded_stays_so", &[], what_was_preloaded),
        ("a_run_in_a_run_has_its_own_limit", &[], run_in_a_run),
        ("nobody_has_to_read_what_is_told", &[], nobody_reads),
        ("the_exit_code_is_not_that_of_the_statistics", &[], stats_that_fail),
        ("the_library_is_where_it_can_be_loaded", &[], folder_that_does_not_fit),
        ("a_program_has_no_thread_but_its_own", &["unshare", "nsenter"], threads),
        ("an_exec_leaves_no_helper", &[], helpers_of_execs),
        ("programs_may_refuse_to_be_managed", &["env", "sleep"], refused),
        ("static_programs_clear_the_environment", &["static"], cleared_by_a_static_program),
        ("static_programs_are_told", &["static"], static_programs),
        ("unmanaged_programs_keep_to_the_limit", &["static"], static_program_that_grows),
        ("children_of_static_programs_count", &["static"], static_program_that_forks),
        ("stopped_programs_are_not_told", &["gcc"], stopped_programs),
        ("programs_of_valgrind_run", &["valgrind"], programs_of_valgrind),
        ("setuid_programs_are_told", &["setpriv", "sleep", "root"], setuid_programs),
        ("programs_may_become_another_user", &["setpriv", "root"], another_user),
        ("background_programs_are_waited_for", &[], background),
        ("the_program_reads_and_writes_pipes", &[], pipes),
    ];
    trials::run_those_that_wait(tests.into_iter().map(|(name, needs, test)| {
        let missing = missing.clone().or_else(|| needs.iter().find_map(|need| lacks(need)));
        trials::trial(name, missing, test)
    }))
}

/// Why a test that needs this cannot run.
fn lacks(need: &str) -> Option<String> {
    match need {
        "SIGHUP" => trials::no_signal(1),
        "SIGINT" => trials::no_signal(2),
        "root" => trials::not_root(),
        "static" => {
            let build = "echo 'int main(void) { return 0; }' | gcc -static -x c - -o /dev/null";
            trials::why_fails(Command::new("sh").args(["-c", build]))
        }
        program => trials::not_installed(program),
    }
}

fn run(limit: &str, argv: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    command.args(["run", "--limit", limit, "--"]).args(argv);
    command
}

fn this() -> String {
    std::env::current_exe().unwrap().to_str().unwrap().to_owned()
}

fn told(output: &Output) -> String {
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// This program again: pages of its own, and what it does then.
fn fill(mib: usize, after: &str) -> ExitCode {
    let mut memory = vec![0_u8; mib << 20];
    let mut words = SplitMix64::new(1);
    for (number, page) in memory.chunks_mut(PAGE).enumerate() {
        page[..8].copy_from_slice(&number.to_ne_bytes());
        if after == "random" {
            page.fill_with(|| words.next_word() as u8);
        }
    }
    if after == "wait" {
        println!("ready");
        thread::sleep(Duration::from_secs(100));
    }
    if after == "exit" {
        exit_while_others_read(memory);
    }
    for (number, page) in memory.chunks(PAGE).enumerate() {
        assert!(after == "random" || page[..8] == number.to_ne_bytes(), "page {number}");
    }
    println!("filled");
    ExitCode::SUCCESS
}

/// Ends the process with threads that wait for pages, some of them staged.
fn exit_while_others_read(memory: Vec<u8>) -> ! {
    let memory: &'static [u8] = memory.leak();
    let pages = memory.len() / PAGE;
    for mut random in 0..8_u32 {
        thread::spawn(move || {
            loop {
                random = random.wrapping_mul(1_103_515_245).wrapping_add(12345);
                std::hint::black_box(memory[(random >> 8) as usize % pages * PAGE]);
            }
        });
    }
    thread::sleep(Duration::from_millis(50));
    std::process::exit(3)
}

/// A started program that has said that it is ready.
fn start(command: &mut Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended early");
    }
    (child, lines)
}

fn ended(mut child: Child, mut stdout: BufReader<std::process::ChildStdout>) -> Output {
    let (mut out, mut errors) = (Vec::new(), Vec::new());
    stdout.read_to_end(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut errors).unwrap();
    Output { status: child.wait().unwrap(), stdout: out, stderr: errors }
}

fn kill(signal: &str, pid: u32) {
    let status = Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status();
    assert!(status.unwrap().success());
}

fn is_alive(pid: u32) -> bool {
    // The third field of what is after the name in parentheses.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn all_end(pids: &[u32]) {
    let deadline = Instant::now() + SOON;
    while let Some(pid) = pids.iter().find(|pid| is_alive(**pid)) {
        let name = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(Instant::now() < deadline, "process {pid} lives on: {name}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn signals_reach_the_program() {
    signal_reaches("TERM");
    signal_reaches("USR1");
    // One that it does not handle ends it, and so `uzswap`.
    let (child, stdout) = start(&mut run("64M", &["sh", "-c", "echo ready; exec sleep 100"]));
    kill("TERM", child.id());
    expect(&ended(child, stdout), 128 + 15);
}

fn signal_reaches(signal: &str) {
    let script = format!(
        "trap 'echo got {signal}; exit 7' {signal}; echo ready; while :; do sleep 0.02; done"
    );
    let (child, stdout) = start(&mut run("64M", &["sh", "-c", &script]));
    kill(signal, child.id());
    let output = ended(child, stdout);
    expect(&output, 7);
    assert_eq!(text(&output.stdout), format!("got {signal}\n"));
}

/// A terminal sends it to the program and to `uzswap`, which must not pass it on.
fn ctrl_c_hits_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script");
    let script = "trap 'echo hit' INT\necho ready\nfor i in 1 2 3 4 5 6 7 8 9 10; do\n\
                  sleep 0.1\ndone\nexit 3\n";
    fs::write(&path, script).unwrap();
    let uzswap = env!("CARGO_BIN_EXE_uzswap");
    // A shell between script and uzswap would end by the signal and say so.
    let line = format!("exec {uzswap} run --limit 64M -- sh {}", path.display());
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", &line, "/dev/null"]).stdin(Stdio::piped());
    let (mut child, stdout) = start(&mut command);
    let mut terminal = child.stdin.take().unwrap();
    terminal.write_all(b"\x03").unwrap();
    let output = ended(child, stdout);
    expect(&output, 3);
    assert_eq!(text(&output.stdout).matches("hit").count(), 1, "{}", told(&output));
}

fn none_outlives_the_supervisor() {
    for mib in ["1", "48"] {
        let script = format!("sleep 100 & (sleep 100; true) & {} --fill {mib} wait", this());
        let (child, stdout) = start(&mut run("32M", &["sh", "-c", &script]));
        // Each process that was started has its helper. The guard has none, and is the first.
        let pids = uzswap_testing::wait_for("programs with their helpers", || {
            let mut pids = process_tree::all_below(child.id());
            pids.retain(|pid| !process_tree::is_helper(*pid));
            let is_ready = |pid: &u32| {
                process_tree::name(*pid) == "uzswap-guard" || process_tree::is_managed(*pid)
            };
            (pids.len() >= 5 && pids[1..].iter().all(is_ready)).then_some(pids)
        });
        let names: BTreeMap<u32, String> =
            pids.iter().map(|pid| (*pid, process_tree::name(*pid))).collect();
        kill("KILL", child.id());
        all_end(&pids[1..]);
        let output = ended(child, stdout);
        expect(&output, 128 + 9);
        // The guard says so, which is there before the first page leaves, or the helper: that of a
        // program of root's may not write to the program's standard error.
        let has_guard = pids.iter().any(|pid| names[pid] == "uzswap-guard");
        let is_told = has_guard || !rustix::process::geteuid().is_root();
        let said = text(&output.stderr);
        assert!(!is_told || said.contains("the supervisor is gone"), "{}", told(&output));
    }
}

/// A program that starts as its supervisor is killed: its socket is there, or was removed since.
fn starts_too_late() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = run("32M", &[&this(), "--fill", "1", "wait"]);
    let (child, stdout) = start(command.env("TMPDIR", folder.path()));
    let pids = process_tree::all_below(child.id());
    let environment = fs::read(format!("/proc/{}/environ", pids.last().unwrap())).unwrap();
    let of_run = environment.split(|byte| *byte == 0).filter_map(|variable| {
        let (name, value) = std::str::from_utf8(variable).unwrap().split_once('=')?;
        ["LD_PRELOAD", "UZSWAP_SOCKET"].contains(&name).then_some((name, value))
    });
    let of_run: BTreeMap<&str, &str> = of_run.collect();
    kill("KILL", child.id());
    all_end(&pids);
    expect(&ended(child, stdout), 128 + 9);
    for is_removed in [false, true] {
        if is_removed {
            fs::remove_file(of_run["UZSWAP_SOCKET"]).unwrap();
        }
        let output = Command::new("sleep").arg("10").envs(&of_run).output().unwrap();
        expect(&output, 128 + 9);
        assert!(text(&output.stderr).contains("the supervisor is gone"), "{}", told(&output));
    }
}

/// The helper says why the program ends where the guard cannot: on its standard error, if that is
/// no file of data. A helper of a program of root's has given up the right to.
fn no_message_is_written_into_data() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    for (how, is_log) in [("2>", true), ("2>>", true), ("2<>", false)] {
        fs::write(&file, "").unwrap();
        let script = format!("exec {how} {}; exec {} --fill 48 wait", file.display(), this());
        let (child, stdout) = start(&mut run("32M", &["sh", "-c", &script]));
        let guard = uzswap_testing::wait_for("a guard", || {
            let mut pids = process_tree::all_below(child.id()).into_iter();
            pids.find(|pid| process_tree::name(*pid) == "uzswap-guard")
        });
        kill("KILL", guard);
        kill("KILL", child.id());
        let output = ended(child, stdout);
        expect(&output, 128 + 9);
        let said = fs::read_to_string(&file).unwrap();
        let is_told = is_log && !rustix::process::geteuid().is_root();
        assert_eq!(said.contains("the supervisor is gone"), is_told, "{how}: {said}");
        assert!(is_told || said.is_empty(), "{said}");
    }
}

fn a_killed_program_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = run("32M", &[&this(), "--fill", "48", "wait"]);
    let (child, stdout) = start(command.env("TMPDIR", folder.path()));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let pids = process_tree::all_below(child.id());
    kill("KILL", pids[1]);
    let output = ended(child, stdout);
    expect(&output, 128 + 9);
    all_end(&pids);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

fn an_end_is_no_loss() {
    for _ in 0..20 {
        let output = run("16M", &[&this(), "--fill", "40", "exit"]).output().unwrap();
        expect(&output, 3);
        assert!(!text(&output.stderr).contains("was ended"), "{}", told(&output));
    }
}

/// Incompressible memory does not fit.
fn too_small_is_told() {
    let output = run("12M", &[&this(), "--fill", "48", "random"]).output().unwrap();
    expect(&output, 128 + 9);
    let said = told(&output);
    let line = said.lines().find(|line| line.starts_with("uzswap: out of memory")).expect(&said);
    let numbers: Vec<f64> = line.split([' ', '(']).filter_map(|word| word.parse().ok()).collect();
    let [used, limit, resident, stays, pool, tables, unmanaged, _process] = numbers[..] else {
        panic!("{said}")
    };
    // Memory may have grown since the last sample; the pool's size is exact. A 64th that is free is
    // as good as nothing.
    assert!(limit == 12.0 && used > limit * 63.0 / 64.0 && pool > limit / 2.0, "{said}");
    assert!((resident + pool + tables + unmanaged - used).abs() < 2.0, "{said}");
    assert!(stays <= resident, "{said}");
}

/// A program locks all of its memory once some of it was evicted, and staging with it. All that is
/// locked does not fit.
fn locked_memory_is_named() {
    for flags in ["MCL_CURRENT", "MCL_CURRENT | MCL_FUTURE"] {
        let lock = format!(
            "import ctypes, time; MCL_CURRENT, MCL_FUTURE = 1, 2
memory = bytearray(b'x' * (80 << 20))
assert ctypes.CDLL(None).mlockall({flags}) == 0
until = time.time() + 60
while time.time() < until:
    for at in range(0, len(memory), 4096):
        memory[at] += memory[at] < 200"
        );
        let output = run("40M", &["python3", "-c", &lock]).output().unwrap();
        let said = told(&output);
        if said.contains("AssertionError") {
            return; // its user may not lock as much
        }
        expect(&output, 128 + 9);
        assert!(said.contains(" MiB of mappings are locked)"), "{said}");
        // The kernel would fill the 16 MiB of staging, too.
        let peak = said.split("peak ").nth(1).and_then(|rest| rest.split(' ').next());
        let peak: f64 = peak.and_then(|peak| peak.parse().ok()).expect(&said);
        assert!(peak < 44.0, "{said}");
    }
}

/// The peak stays near the limit, too: an allocating thread gets a page at a time while evicted
/// pages take as much memory as before. Memory that was filled before it was registered caused no
/// fault, so on a busy machine the peak is no measure.
fn too_small_is_kept_to() {
    let output = run("40M", &[&this(), "--fill", "160", "random"]).output().unwrap();
    expect(&output, 128 + 9);
    let said = told(&output);
    let (counts, _) = said.split_once(" fresh").expect(&said);
    let fresh: u32 = counts.rsplit(' ').next().unwrap().parse().unwrap();
    // Memory is registered from some 10 MiB below the limit on.
    assert!(fresh < (16 << 20) / PAGE as u32, "{said}");
}

/// Each takes ten descriptors: as many are taken as the kernel allows. Where that is too few, some
/// run unmanaged, with a warning. Where nothing could be run, nothing is.
fn more_than_descriptors() {
    let uzswap = env!("CARGO_BIN_EXE_uzswap");
    // The helpers that the supervisor sends away look for that within a second.
    let programs = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do (sleep 1.5 && printf .) & done; wait; \
                    ulimit -n";
    for (limit, code, prints, says) in [
        ("-Sn 32", 0, "............32\n", "peak"),
        ("-n 64", 0, "............64\n", "the limit is 64 (ulimit -n)"),
        ("-n 20", 3, "", "run needs 64 at least"),
    ] {
        let line = format!("ulimit {limit}; exec '{uzswap}' run --limit 64M -- sh -c '{programs}'");
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        let output = command.args(["-c", &line]).env("TMPDIR", folder.path()).output().unwrap();
        expect(&output, code);
        assert_eq!(text(&output.stdout), prints, "{}", told(&output));
        assert!(text(&output.stderr).contains(says), "{}", told(&output));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{limit}");
    }
}

fn closed_streams() {
    let (uzswap, this) = (env!("CARGO_BIN_EXE_uzswap"), this());
    for closed in ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"] {
        let program = format!("'{this}' --fill 24 check; exit 9");
        let line = format!("exec '{uzswap}' run --limit 16M -- sh -c \"{program}\" {closed}");
        expect(&Command::new("sh").args(["-c", &line]).output().unwrap(), 9);
    }
}

fn what_was_preloaded() {
    let script = "echo \"$LD_PRELOAD\"; cat /proc/self/maps";
    let output = run("64M", &["sh", "-c", script]).env("LD_PRELOAD", "libm.so.6").output().unwrap();
    expect(&output, 0);
    let stdout = text(&output.stdout);
    assert!(stdout.lines().next().unwrap().ends_with(":libm.so.6"), "{stdout}");
    assert!(stdout.contains("libuzswap_preload.so") && stdout.contains("/libm"), "{stdout}");
}

fn nobody_reads() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let status = run("64M", &["sh", "-c", "sleep 0.2; exit 3"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(3));
}

fn stats_that_fail() {
    let with = |file: &str, script: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
        command.args(["run", "--limit", "64M", "--stats", file, "--", "sh", "-c", script]);
        command.output().unwrap()
    };
    // The program's own failure counts for more.
    for (script, code) in [("exit 5", 5), ("exit 0", 1)] {
        let late = with("/dev/full", script);
        expect(&late, code);
        let said = text(&late.stderr);
        assert!(said.contains("--stats /dev/full: No space left"), "{said}");
    }
    for (file, code) in [("/", 2), ("/dev/null/stats", 2)] {
        let early = with(file, "echo on");
        expect(&early, code);
        assert!(early.stdout.is_empty(), "{file}: it was run");
    }
}

fn folder_that_does_not_fit() {
    let folder = tempfile::Builder::new().prefix("a b:c").tempdir().unwrap();
    let this = this();
    let output = run("16M", &[&this, "--fill", "96", "check"])
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    expect(&output, 0);
    let told = text(&output.stderr);
    assert!(!told.contains("is unmanaged") && !told.contains(" 0 pages stored"), "{told}");
}

fn run_in_a_run() {
    let (uzswap, this) = (env!("CARGO_BIN_EXE_uzswap"), this());
    let program = format!("'{this}' --fill 40 check; exit 9");
    let inner = [uzswap, "run", "--limit", "20M", "--", "sh", "-c", &program];
    let output = run("64M", &inner).output().unwrap();
    expect(&output, 9);
    let told = text(&output.stderr);
    assert_eq!(told.matches(" MiB of ").count(), 2, "{told}");
    let stored: Vec<u64> = told
        .lines()
        .filter_map(|line| {
            line.strip_prefix("uzswap: ")?.split_once(" pages stored")?.0.parse().ok()
        })
        .collect();
    assert!(stored[0] > 5000, "{told}"); // by the inner one, which ends first
}

/// Python 3.12 warns of a fork where its process has several threads, chromium's zygote ends, and
/// the kernel refuses other user namespaces.
fn threads() {
    const SCRIPT: &str = r#"
told() {
    grep Threads /proc/self/status
    cut -d' ' -f20 /proc/self/stat
    ls /proc/$$/task | wc -l
    cat /proc/$$/task/$$/children | wc -w
}
told
(told; true)
unshare --user sleep 100 &
tries=0
while [ "$(readlink /proc/$!/ns/user)" = "$(readlink /proc/$$/ns/user)" ] && [ $tries -lt 200 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
nsenter --user=/proc/$!/ns/user true
echo enters $?
kill $!
unshare --user --map-root-user unshare --mount true
echo leaves $?
unshare --user --map-root-user --pid sh -c 'cat /proc/version >/dev/null; echo forks $?'
"#;
    for argument in ["--type=zygote", "--type=other"] {
        let alone = Command::new("sh").args(["-c", SCRIPT, argument]).output().unwrap();
        let output = run("64M", &["sh", "-c", SCRIPT, argument]).output().unwrap();
        expect(&output, 0);
        assert_eq!(text(&output.stdout), text(&alone.stdout), "{}", told(&output));
    }
}

/// A helper ends where its program becomes another one, which has its own.
fn helpers_of_execs() {
    let script = "echo ready; exec sh -c 'exec sh -c \"exec sleep 100\"'";
    let (mut child, _stdout) = start(&mut run("64M", &["sh", "-c", script]));
    uzswap_testing::wait_for("sleep and its helper", || {
        let below = process_tree::all_below(child.id());
        let is_sleep = |pid: &u32| process_tree::name(*pid) == "sleep";
        let sleep = below.iter().find(|pid| is_sleep(pid))?;
        let helpers = below.iter().filter(|pid| process_tree::is_helper(**pid)).count();
        (process_tree::is_managed(*sleep) && helpers == 1).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Runs a program that has no helper, long enough to be seen.
fn is_unmanaged(argv: &[&str], folder: &Path, why: &str) {
    let output = run("64M", argv).current_dir(folder).output().unwrap();
    expect(&output, 0);
    let stderr = text(&output.stderr);
    assert_eq!(stderr.matches("is unmanaged").count(), 1, "{stderr}");
    assert!(stderr.contains(&format!("is unmanaged: {why}")), "{stderr}");
}

/// A program may refuse to be managed, also where its parent runs the same one.
fn refused() {
    let why = "its UZSWAP_SOCKET is not that of this run";
    is_unmanaged(&["env", "UZSWAP_SOCKET=", "sleep", "2"], Path::new("/"), why);
    let script = "UZSWAP_SOCKET= sh -c 'sleep 2; true'; true";
    let output = run("64M", &["sh", "-c", script]).output().unwrap();
    expect(&output, 0);
    // The shell, and sleep of it.
    let stderr = text(&output.stderr);
    assert_eq!(stderr.matches(&format!("is unmanaged: {why}")).count(), 2, "{stderr}");
}

/// A static program has no library that would put the environment back.
fn cleared_by_a_static_program() {
    let folder = open_folder();
    let source = r#"
#include <unistd.h>
int main(void)
{
    char *none[] = {0};
    return execle("/bin/sleep", "sleep", "2", (char *) 0, none);
}
"#;
    static_program(folder.path(), "clears", source);
    is_unmanaged(&["./clears"], folder.path(), "its LD_PRELOAD lacks the library");
}

/// Builds a program that the preload library is not loaded into.
fn static_program(folder: &Path, name: &str, source: &str) {
    compile(folder, name, source, &["-static"]);
}

fn compile(folder: &Path, name: &str, source: &str, options: &[&str]) {
    fs::write(folder.join("source.c"), source).unwrap();
    let mut command = Command::new("gcc");
    command.args(["-O1", "-o", name, "source.c"]).args(options).current_dir(folder);
    expect(&command.output().unwrap(), 0);
}

fn static_programs() {
    let folder = open_folder();
    let source = "#include <unistd.h>\nint main(void) { sleep(2); return 0; }\n";
    static_program(folder.path(), "wait", source);
    is_unmanaged(&["./wait"], folder.path(), "it is a static program");
}

/// A static program takes four times the limit in half a second, and the supervisor ends it soon
/// after. With --require-managed, the command refuses to start the program.
fn static_program_that_grows() {
    const SOURCE: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(void)
{
    for (int i = 0; i < 400; i++) {
        memset(malloc(1 << 20), i, 1 << 20);
        usleep(1000);
    }
    sleep(1);
    return 0;
}
"#;
    let folder = open_folder();
    static_program(folder.path(), "grows", SOURCE);
    for argv in [&["./grows"][..], &["sh", "-c", "sleep 0.3; ./grows"]] {
        let output = run("100M", argv).current_dir(folder.path()).output().unwrap();
        expect(&output, 128 + 9);
        assert!(text(&output.stderr).contains("unmanaged programs alone pass --limit"));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    command.args(["run", "--require-managed", "--limit", "100M", "--", "./grows"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    expect(&output, 3);
    let why = "cannot manage ./grows: it is a static program";
    assert!(text(&output.stderr).contains(why), "{}", told(&output));
}

/// The kernel divides its pages among children that end before the second look at them.
fn static_program_that_forks() {
    const SOURCE: &str = r#"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(void)
{
    volatile char *memory = memset(malloc(100 << 20), 1, 100 << 20);
    signal(SIGCHLD, SIG_IGN);
    for (int i = 0; i < 300; i++) {
        if (!fork()) {
            usleep(200000);
            _exit(0);
        }
        usleep(20000);
    }
    return memory[50 << 20] - 1;
}
"#;
    let folder = open_folder();
    static_program(folder.path(), "forks", SOURCE);
    let output = run("40M", &["./forks"]).current_dir(folder.path()).output().unwrap();
    expect(&output, 128 + 9);
    assert!(text(&output.stderr).contains("out of memory"), "{}", told(&output));
}

fn setuid_programs() {
    let folder = open_folder();
    let found = Command::new("sh").args(["-c", "command -v sleep"]).output().unwrap();
    copy(Path::new(text(&found.stdout).trim()), &folder, "sleep", 0o4755);
    let argv = ["setpriv", NOBODY[0], NOBODY[1], NOBODY[2], "./sleep", "2"];
    is_unmanaged(&argv, folder.path(), "it is a setuid program");
}

const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

fn another_user() {
    let folder = open_folder();
    copy(Path::new(&this()), &folder, "this", 0o755);
    let argv = ["setpriv", NOBODY[0], NOBODY[1], NOBODY[2], "./this", "--fill", "48", "check"];
    let output = run("32M", &argv).current_dir(folder.path()).output().unwrap();
    expect(&output, 0);
    assert_eq!(text(&output.stdout), "filled\n");
    assert!(!text(&output.stderr).contains("is unmanaged"), "{}", told(&output));
}

/// Unmanaged: valgrind refuses threads that are not its own.
fn programs_of_valgrind() {
    let output =
        run("256M", &["valgrind", "-q", "sh", "-c", "(exit 3) || echo 3"]).output().unwrap();
    expect(&output, 0);
    assert_eq!(text(&output.stdout), "3\n");
}

/// A program that is stopped before its loader runs may say hello when it goes on. The supervisor
/// waits ten seconds for the hello of one that runs.
fn stopped_programs() {
    const SOURCE: &str = r#"
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
    int status;
    pid_t pid = fork();
    if (!pid) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execl("/bin/echo", "echo", "went on", (char *) 0);
    }
    waitpid(pid, &status, 0);
    sleep(12);
    ptrace(PTRACE_DETACH, pid, 0, 0);
    waitpid(pid, &status, 0);
    return status;
}
"#;
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), "stops", SOURCE, &[]);
    let output = run("64M", &["./stops"]).current_dir(folder.path()).output().unwrap();
    expect(&output, 0);
    assert_eq!(text(&output.stdout), "went on\n");
    assert!(!text(&output.stderr).contains("is unmanaged"), "{}", told(&output));
}

/// A folder that every user may look into.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    folder
}

fn copy(from: &Path, folder: &TempDir, name: &str, mode: u32) {
    let to: PathBuf = folder.path().join(name);
    fs::copy(from, &to).unwrap();
    fs::set_permissions(&to, Permissions::from_mode(mode)).unwrap();
}

fn background() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("done");
    let script = format!("(sleep 0.5; echo done >{}) & exit 4", path.display());
    expect(&run("64M", &["sh", "-c", &script]).output().unwrap(), 4);
    assert_eq!(fs::read_to_string(path).unwrap(), "done\n");
}

fn pipes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("input");
    fs::write(&path, "some text\n".repeat(100_000)).unwrap();
    let mut command = run("64M", &["sort", "-u"]);
    let output = command.stdin(File::open(path).unwrap()).output().unwrap();
    expect(&output, 0);
    assert_eq!(text(&output.stdout), "some text\n");
}
