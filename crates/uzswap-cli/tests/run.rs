//! Goal: programs run as they would under `uzswap run`, whatever they do to their memory.
//! Method: the real binary, end to end; an adversarial program, which is this one again; installed
//! programs, whose output must be that of a run without a limit. Tests that cannot run here are
//! counted as ignored, with the reason.
//! Longer: UZSWAP_ADVERSARY_SECONDS. Others: UZSWAP_ADVERSARY_SEED, UZSWAP_ADVERSARY_WITHOUT.
#![allow(unsafe_code, reason = "the adversary does what the standard library has no way to")]

mod adversary;
#[allow(dead_code, reason = "what is not used here is in other tests")]
mod process_tree;
use uzswap_testing::outputs::{expect, text};
use uzswap_testing::trials;

use std::fs;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitCode, Output, Stdio};
use std::sync::mpsc;
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--adversary") => adversary::run(&arguments[1..]),
        Some("--scenario") => adversary::scenarios::run(&arguments[1]),
        _ => {}
    }
    let missing = trials::no_run(env!("CARGO_BIN_EXE_uzswap"));
    let mut all = Vec::new();
    let mut add = |name: String, missing: Option<String>, test: Box<dyn FnOnce() + Send>| {
        let is_undisturbed = name == "growth_in_one_call_is_held_back";
        all.push(trials::trial(name, missing, move || {
            if is_undisturbed {
                let _alone = UNDISTURBED.write().unwrap_or_else(PoisonError::into_inner);
                test();
            } else {
                let _beside_others = UNDISTURBED.read().unwrap_or_else(PoisonError::into_inner);
                test();
            }
        }));
    };
    for (name, limit, code, said) in SCENARIOS {
        let test = move || scenario(name, limit, code, said);
        add(format!("scenario_{}", name.replace('-', "_")), missing.clone(), Box::new(test));
    }
    let missing_namespace = missing.clone().or_else(no_namespace);
    for (limit, scenario) in [("40M", "grow-locked"), ("20M", "forks-at-once")] {
        let name = format!("in_a_pid_namespace_{}", scenario.replace('-', "_"));
        add(name, missing_namespace.clone(), Box::new(move || in_namespace(limit, scenario)));
    }
    for (name, program, arguments) in PROGRAMS {
        let missing = missing.clone().or_else(|| trials::not_installed(program));
        add(name.to_owned(), missing, Box::new(move || same_output(program, arguments)));
    }
    let missing_tracer = ["strace", "python3"].into_iter().find_map(trials::not_installed);
    let missing_tracer = missing.clone().or(missing_tracer);
    add("a_tracer_keeps_what_it_needs".to_owned(), missing_tracer, Box::new(traced));
    for (name, missing, before, scenario, with_guard) in [
        ("killed_at_work_stay", missing.clone(), &[][..], "stay", false),
        ("killed_at_work_stay_shared", missing.clone(), &[], "stay-shared", false),
        // Nothing in the child of such a fork sees that the supervisor is gone.
        ("killed_at_work_forked_directly", missing.clone(), &[], "stay-forked-directly", false),
        ("killed_at_work_in_a_pid_namespace", missing_namespace, &NAMESPACE, "stay", false),
        ("killed_at_work_with_its_guard", missing.clone(), &[], "stay", true),
    ] {
        let test = move || supervisor_is_killed(before, scenario, with_guard);
        add(name.to_owned(), missing, Box::new(test));
    }
    add("endings_are_the_programs".to_owned(), missing.clone(), Box::new(endings));
    add("what_was_used_is_told".to_owned(), missing.clone(), Box::new(statistics));
    let name = "without_a_limit_it_is_what_is_available".to_owned();
    add(name, missing.clone(), Box::new(usual_limit));
    let name = "faults_downwards_bring_several_pages".to_owned();
    add(name, missing.clone(), Box::new(faults_downwards));
    for scenario in ["huge-maps", "every-16th", "one-in-3400-kib", "many-small-maps"] {
        let name = format!("what_is_sparse_costs_as_what_is_dense_{}", scenario.replace('-', "_"));
        add(name, missing.clone(), Box::new(move || sparse(scenario)));
    }
    let name = "threads_that_end_are_not_held_up".to_owned();
    add(name, missing.clone(), Box::new(threads_that_end));
    let name = "growth_after_forks_is_held_back".to_owned();
    add(name, missing.clone(), Box::new(growth_after_forks));
    let name = "growth_beside_barriers_is_held_back".to_owned();
    add(name, missing.clone(), Box::new(growth_beside_barriers));
    let name = "growth_in_one_call_is_held_back".to_owned();
    add(name, missing.clone(), Box::new(growth_in_one_call));
    let name = "growth_beside_unknown_mappings_is_held_back".to_owned();
    add(name, missing.clone(), Box::new(growth_beside_unknown));
    let name = "faults_that_are_told_again_count_once".to_owned();
    add(name, missing.clone(), Box::new(repeated_faults));
    let name = "copies_that_do_not_fit_are_held_back".to_owned();
    add(name, missing.clone(), Box::new(copies_that_do_not_fit));
    let name = "children_that_have_ended_take_nothing".to_owned();
    add(name, missing.clone(), Box::new(ended_children));
    let name = "forks_that_fit_cost_nothing".to_owned();
    add(name, missing.clone(), Box::new(forks_in_turn));
    let name = "what_forks_share_counts_once".to_owned();
    add(name, missing.clone(), Box::new(counted_once));
    let name = "pages_of_many_small_children_count_once".to_owned();
    add(name, missing.clone(), Box::new(small_counted_once));
    let name = "helpers_of_killed_children_count_nothing".to_owned();
    add(name, missing.clone(), Box::new(helpers_count_nothing));
    let name = "what_is_stopped_holds_up_nobody".to_owned();
    add(name, missing.clone(), Box::new(nobody_held_up));
    let missing_core = missing.clone().or_else(no_core_file);
    add("what_a_core_file_lacks_is_told".to_owned(), missing_core, Box::new(core_file));
    let name = "who_shares_memory_is_shown_no_zeros".to_owned();
    add(name, missing.clone(), Box::new(no_zeros));
    let name = "a_message_waits_for_no_program".to_owned();
    add(name, missing.clone(), Box::new(messages_beside_writes));
    let name = "what_does_not_fit_the_pool_stays".to_owned();
    add(name, missing.clone(), Box::new(unfit_pages));
    add("pages_that_stay_are_named".to_owned(), missing.clone(), Box::new(pages_that_stay));
    let name = "arguments_can_be_read".to_owned();
    add(name, missing.clone(), Box::new(arguments_stay));
    for (how, mib, percent, without) in [
        ("in_60_percent", 80, 60, "fork,direct_fork"),
        ("in_40_percent", 80, 40, "fork,direct_fork"),
        ("where_it_forks", 40, 120, "direct_fork"),
        ("with_a_file", 80, 60, "direct_fork"),
    ] {
        let name = format!("the_adversary_finds_nothing_wrong_{how}");
        let has_file = how == "with_a_file";
        let test = move || adversary_in(mib, percent, without, has_file);
        add(name, missing.clone(), Box::new(test));
    }
    trials::run(all)
}

/// The test that has this lock to write runs beside no other test of this file. Beside three
/// others, in one run of twelve, the supervisor gets no processor and cannot hold the growth back.
static UNDISTURBED: RwLock<()> = RwLock::new(());

/// Name, limit, exit code, what it prints. Each has 32 MiB of its own.
const SCENARIOS: [(&str, &str, i32, &str); 48] = [
    ("fill", "16M", 0, ""),
    ("code-7", "16M", 7, ""),
    ("abort", "16M", 128 + 6, ""),
    ("close-all", "16M", 0, ""),
    ("thread-execs", "16M", 6, "from sh"),
    ("limits", "16M", 0, ""),
    ("own-userfaultfd", "16M", 0, ""),
    ("grow-locked", "40M", 0, ""),
    ("moves-take-long", "24M", 0, ""),
    ("moves-over-moves", "16M", 0, ""),
    ("grows-over", "16M", 0, ""),
    ("cannot-unmap", "16M", 0, ""),
    ("guards-stay", "16M", 0, ""),
    // Other rights than to be read and written.
    ("executable", "16M", 0, ""),
    ("read-only", "16M", 0, ""),
    ("no-access", "16M", 0, ""),
    ("execute-only", "16M", 0, ""),
    ("write-only", "16M", 0, ""),
    ("code", "16M", 0, ""),
    ("pinned", "24M", 0, ""),
    ("pinned-read-only", "24M", 0, ""),
    ("pinned-after-read-only", "20M", 0, ""),
    ("no-more-mappings", "16M", 0, ""),
    ("write-barrier", "20M", 0, ""),
    ("rights-change", "24M", 0, ""),
    ("read-only-forked", "24M", 0, ""),
    ("locked-all", "16M", 0, ""),
    ("enters-namespace", "16M", 0, ""),
    ("threads-end-one-by-one", "16M", 5, ""),
    ("background", "16M", 0, "background done"),
    ("threads-end", "16M", 0, ""),
    ("words-of-threads", "16M", 0, ""),
    ("owners-end", "16M", 0, ""),
    ("processors-stay", "16M", 0, ""),
    ("stack-is-told", "16M", 0, ""),
    ("stacks-come", "16M", 0, ""),
    ("child-changes", "24M", 0, ""),
    ("private-file", "48M", 0, ""),
    ("freed-lazily", "80M", 0, ""),
    ("forks-in-forks", "40M", 0, ""),
    ("parents-end", "16M", 0, ""),
    ("workers", "48M", 0, ""),
    // Over before much is known of it.
    ("both-write", "34M", 0, ""),
    // Watched, and nothing has to leave: forks are fast.
    ("threads-end-in-forks", "38M", 0, ""),
    ("advice-beside-forks", "16M", 0, ""),
    ("advice-after-forks", "24M", 0, ""),
    ("moves-before-forks", "16M", 0, ""),
    ("unmaps-after-forks", "24M", 0, ""),
];

/// Each takes some tens of MiB, and prints what depends on all of it.
const PROGRAMS: [(&str, &str, &[&str]); 3] = [
    ("python_is_right", "python3", &["-c", PYTHON]),
    (
        "sort_is_right",
        "sh",
        &[
            "-c",
            "seq 1 150000 | sed 's/.*/& some more words &/' | sort -R -S 100M \
          --random-source=/bin/sh | sort -r -S 100M | cksum",
        ],
    ),
    ("sqlite_is_right", "sqlite3", &[":memory:", SQL]),
];

const PYTHON: &str = "
import zlib
d = {i: ('value %d ' % i) * 4 for i in range(250000)}
l = sorted(d.values())
for i in range(0, 250000, 3): del d[i]
s = sum(zlib.crc32(v.encode()) for v in l) + sum(zlib.crc32(v.encode()) for v in d.values())
print(len(d), len(l), s)
";

const CALLS: &str = "
import os, zlib
pages = [os.urandom(1000) + bytes(3096) for _ in range(20000)]
for i, page in enumerate(pages):
    zlib.crc32(page)
    if i % 50 == 0: os.stat('/')
print(len(pages))
";

const SQL: &str = "
create table t(a integer primary key, b text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 300000)
insert into t select i, 'row ' || i || ' with some more text in it ' || (i * 7919 % 300007) from n;
create index b on t(b);
select count(*), sum(length(b)), min(b), max(b), sum(a * length(b)) from t where b > 'row 2';
select group_concat(a) from (select a from t order by b limit 50);
";

/// Of `uzswap run`, as it is started here.
fn run_in(limit: &str, program: &str, arguments: &[&str]) -> Command {
    run_for(0, limit, &[], program, arguments)
}

/// The same, for a program that takes so many seconds: one that hangs is ended, and fails with 137.
fn run_for(
    seconds: u32,
    limit: &str,
    options: &[&str],
    program: &str,
    arguments: &[&str],
) -> Command {
    let mut command = Command::new("timeout");
    let seconds = (100 + seconds).to_string();
    command.args(["-s", "KILL", &seconds, env!("CARGO_BIN_EXE_uzswap")]);
    command.args(["run", "--limit", limit]).args(options).args(["--", program]).args(arguments);
    command
}

fn this_program() -> String {
    std::env::current_exe().unwrap().to_str().unwrap().to_owned()
}

/// Runs a program in a PID namespace of its own.
const NAMESPACE: [&str; 3] = ["unshare", "--pid", "--fork"];

/// Why there can be no PID namespace here.
fn no_namespace() -> Option<String> {
    let output = Command::new(NAMESPACE[0]).args(&NAMESPACE[1..]).arg("true").output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(text(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

fn scenario(name: &str, limit: &str, code: i32, said: &str) {
    let output = run_in(limit, &this_program(), &["--scenario", name]).output().unwrap();
    expect(&output, code);
    assert!(text(&output.stdout).contains(said), "{}", text(&output.stdout));
}

/// 28 MiB shrink to half in a pool of zbud, and 4 MiB are not taken by it.
fn unfit_pages() {
    let options = ["--limit", "28M", "--compressor", "lz4", "--zpool", "zbud"];
    let (output, told) = told_by(&options, "unfit");
    expect(&output, 0);
    let [refused, stored] =
        ["reject_compress_poor", "zswpout"].map(|name| told["store"][name].as_u64().unwrap());
    assert!(refused > 0 && stored > 0, "{told}");
}

/// Starts a scenario that stays until it is ended, and waits until it has its memory.
fn start(limit: &str, before: &[&str], name: &str) -> (Child, ChildStdout) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_uzswap"))
        .args(["run", "--quiet", "--limit", limit, "--"])
        .args(before)
        .args([&this_program(), "--scenario", name])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    assert_eq!(stdout.read(&mut [0; 6]).unwrap(), 6, "it ended early");
    (child, stdout)
}

/// The supervisor is killed while pages leave and come back: the program is ended.
fn supervisor_is_killed(before: &[&str], name: &str, with_guard: bool) {
    for round in 0..12 {
        let (mut child, mut stdout) = start("24M", before, name);
        // The guard starts before the first eviction. Until then each helper ends its program.
        let guard = uzswap_testing::wait_for("a guard", || {
            let processes = process_tree::all_below(child.id());
            processes.into_iter().find(|pid| process_tree::name(*pid) == "uzswap-guard")
        });
        thread::sleep(Duration::from_millis(100 + round * 7));
        if with_guard {
            let killed = Command::new("sh").args(["-c", &format!("kill -KILL {guard}")]).status();
            assert!(killed.unwrap().success());
        }
        child.kill().unwrap();
        // The stream ends when the last of them has ended.
        let (end, ended) = mpsc::channel();
        thread::spawn(move || end.send(io::copy(&mut stdout, &mut io::sink())));
        ended.recv_timeout(uzswap_testing::PATIENCE).expect("a program that was ended").unwrap();
        let output = child.wait_with_output().unwrap();
        expect(&output, 128 + 9);
        let said = text(&output.stderr);
        // A helper of a program of root's may not write to the program's standard error.
        let is_told = name == "stay" && !(with_guard && rustix::process::geteuid().is_root());
        assert!(!is_told || said.contains("the supervisor is gone"), "{said}");
        assert!(!said.contains("adversary: "), "it has seen what is not its own: {said}");
    }
}

/// Where its threads have other numbers than here, as in a container.
fn in_namespace(limit: &str, scenario: &str) {
    let this = this_program();
    let arguments = [&NAMESPACE[1..], &[&this, "--scenario", scenario]].concat();
    expect(&run_in(limit, NAMESPACE[0], &arguments).output().unwrap(), 0);
}

/// The limit is a third of what it takes without.
fn same_output(program: &str, arguments: &[&str]) {
    let plain = Command::new(program).args(arguments).output().unwrap();
    assert!(plain.status.success(), "{}", text(&plain.stderr));
    let output = run_in("40M", program, arguments).output().unwrap();
    expect(&output, 0);
    assert_eq!(text(&output.stdout), text(&plain.stdout));
}

/// The tracer alone can give pages up while its program is stopped, which goes on once it has them:
/// one of two runs went round in circles.
fn traced() {
    let program = ["120", "strace", "-f", "-o", "/dev/null", "python3", "-c", CALLS];
    for _ in 0..2 {
        let output = run_in("36M", "timeout", &program).output().unwrap();
        expect(&output, 0);
        assert_eq!(text(&output.stdout), "20000\n");
    }
}

fn endings() {
    expect(&run_in("64M", "sh", &["-c", "exit 42"]).output().unwrap(), 42);
    expect(&run_in("64M", "/no/such/program", &[]).output().unwrap(), 127);
    expect(&run_in("64M", "/etc/passwd", &[]).output().unwrap(), 126);
    expect(&run_in("64M", "sh", &["-c", "kill -TERM $$"]).output().unwrap(), 128 + 15);
}

fn statistics() {
    let told = report("16M", "fill-and-leave");
    assert_eq!(told["limit_bytes"], 16 << 20);
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    assert!(number(&told["counts"]["stored_pages"]) > 0.0, "{told}");
    let stored = number(&told["store"]["zswpout"]) * 4096.0;
    let pool = number(&told["pool_peak_bytes"]);
    let ratio = number(&told["ratio"]);
    assert!(ratio > 1.0 && ratio * pool < stored + 1.0, "{told}");
    let parts = told["at_peak"].as_object().unwrap().values().map(number).sum::<f64>();
    assert_eq!(parts, number(&told["peak_bytes"]), "{told}");
    let metadata = number(&told["metadata_peak_bytes"]);
    assert!(metadata > 0.0 && metadata + pool < (16 << 20) as f64, "{told}");
    let waited = number(&told["faults"]["sum_ns"]);
    assert!(waited >= number(&told["faults"]["max_ns"]), "{told}");
    assert!(number(&told["own_cpu_ns"]) > 0.0 && number(&told["own_bytes"]) > 0.0, "{told}");
}

/// Other tests take some of it meanwhile.
fn usual_limit() {
    let told = report_with(&[], "fill");
    let limit = told["limit_bytes"].as_u64().unwrap();
    let available = uzswap_pager::doctor::available_memory().unwrap();
    assert!(limit > available / 4 && limit < available * 2, "{available}, {told}");
    assert_eq!(told["counts"]["stored_pages"], 0, "{told}");
}

/// Each page is touched four times, downwards: several come back for one fault.
fn faults_downwards() {
    let (pages, faults, told) = pages_and_faults("down");
    assert!(pages > 8192 && faults * 4 < pages, "{told}");
}

/// 32 MiB are touched four times, which is some pages more than half of that each time.
fn sparse(scenario: &str) {
    let told = report("20M", scenario);
    let count = |name: &str| told["counts"][name].as_u64().unwrap();
    assert!(count("stored_pages") > 4096 && count("stored_pages") < 8192 * 5, "{told}");
    assert!(count("fresh_pages") < 8192 * 11 / 10, "{told}");
    assert!(told["metadata_peak_bytes"].as_u64().unwrap() < 2 << 20, "{told}");
    let tables = told["page_tables_peak_bytes"].as_u64().unwrap();
    assert!(scenario != "one-in-3400-kib" || tables >= 8192 * 4096, "{told}");
}

/// Their stacks are not watched, so pages are filled at once: no thread is about to drop one.
fn threads_that_end() {
    let (pages, faults, told) = pages_and_faults("threads-end");
    assert!(pages > 8192 && faults * 5 < pages, "{told}");
}

/// Pages that came back, or were new, and faults, of a scenario in half of its memory.
fn pages_and_faults(scenario: &str) -> (u64, u64, serde_json::Value) {
    let told = report("16M", scenario);
    let count = |name: &str| told["counts"][name].as_u64().unwrap();
    let pages = count("restored_pages") + count("rescued_pages") + count("fresh_pages");
    (pages, told["faults"]["count"].as_u64().unwrap(), told)
}

/// One child of 32 MiB at a time has room: nothing is watched, and it is counted as it is.
fn forks_in_turn() {
    let told = report("200M", "forks-in-turn");
    assert_eq!(told["faults"]["count"].as_u64().unwrap(), 0, "{told}");
    assert!(told["peak_bytes"].as_u64().unwrap() < 100 << 20, "{told}");
}

/// Pages that both write to become COW copies: some 70 MiB that no fault reports.
fn growth_after_forks() {
    let told = report("38M", "both-write");
    let peak = told["peak_bytes"].as_u64().unwrap();
    assert!(peak < (38 << 20) * 6 / 5, "{told}");
}

/// 64 MiB, of a program with 8192 mappings that are known: a look at them takes milliseconds.
fn growth_beside_barriers() {
    let told = report("32M", "grow-beside-barriers");
    let peak = told["peak_bytes"].as_u64().unwrap();
    assert!(peak < (32 << 20) * 6 / 5, "{told}");
}

/// The kernel fills 64 MiB in one call (MAP_POPULATE, MADV_POPULATE_WRITE), without a fault. The
/// preload library fills them in parts; in one, the peak was 66 to 103 MiB.
fn growth_in_one_call() {
    let told = report("32M", "fills-at-once");
    let peak = told["peak_bytes"].as_u64().unwrap();
    assert!(peak < (32 << 20) * 5 / 4, "{told}");
}

/// 64 MiB, of a program with 16,384 mappings: the first look at all of them takes 30 ms.
fn growth_beside_unknown() {
    for scenario in ["grow-below-mappings", "grow-above-mappings"] {
        let told = report("32M", scenario);
        let peak = told["peak_bytes"].as_u64().unwrap();
        assert!(peak < (32 << 20) * 11 / 10, "{scenario}: {told}");
    }
}

/// The kernel tells the fault of a thread once more for each signal that comes in the meantime. The
/// two threads of the scenario wait for as long as it runs at most.
fn repeated_faults() {
    let start = Instant::now();
    let told = report("33M", "signals-while-waiting");
    let waited = Duration::from_nanos(told["faults"]["sum_ns"].as_u64().unwrap());
    assert!(waited > Duration::from_millis(500), "it was to wait for room: {told}");
    assert!(waited < start.elapsed() * 2, "{told}");
}

/// Four children with 32 MiB each, in a pool of which there were up to 44 MiB: some are ended.
fn copies_that_do_not_fit() {
    let (output, told) = told_by(&["--limit", "24M"], "many-write");
    let said = text(&output.stderr);
    assert!(
        matches!(output.status.code(), Some(0 | 137)) && said.contains("out of memory"),
        "{said}"
    );
    let peak = told["peak_bytes"].as_u64().unwrap();
    assert!(peak < (24 << 20) * 6 / 5, "{told}");
}

/// 32 MiB of a private file's pages stay: in little more, nothing goes on, and it is said why.
fn pages_that_stay() {
    let (output, _) = told_by(&["--limit", "33M"], "private-file");
    let said = text(&output.stderr);
    let line = said.lines().find(|line| line.contains("out of memory")).expect(&said);
    let stays = line.split("of which ").nth(1).and_then(|rest| rest.split(' ').next());
    let stays: f64 = stays.and_then(|stays| stays.parse().ok()).expect(line);
    assert!(output.status.signal() == Some(9) && stays >= 31.0, "{said}");
}

/// 400 children, one after the other: with a table of 32 KiB for each, that is 13 MiB.
fn ended_children() {
    let told = report("24M", "forks-in-turn");
    assert!(told["metadata_peak_bytes"].as_u64().unwrap() < 6 << 20, "{told}");
}

/// 30 children that read 32 MiB which they share: little has to leave, if anything. Were it counted
/// for each of them, they would be seen to take 1 GiB, and get copies of their own.
fn counted_once() {
    let told = report("64M", "many-read");
    let stored = told["counts"]["stored_pages"].as_u64().unwrap();
    assert!(stored < 8192, "{told}");
    let peak = told["peak_bytes"].as_u64().unwrap();
    assert!(peak < (64 << 20) * 5 / 4, "{told}");
}

/// 60 children with some 0.5 MiB of their own, beside 3 MiB that they share: 35 MiB. Were those
/// counted for each of them, that would be 180 more.
fn small_counted_once() {
    let told = report("32M", "many-small");
    let peak = told["peak_bytes"].as_u64().unwrap();
    assert!(peak < (32 << 20) * 5 / 4, "{told}");
}

/// The helper of a killed child has the 32 MiB that the child shared with its parent. Counted by
/// itself, it would add 16 MiB to the peak.
fn helpers_count_nothing() {
    let told = report("100M", "killed-children");
    let peak = told["peak_bytes"].as_u64().unwrap();
    assert!(peak < 40 << 20, "{told}");
}

/// Two processes of 32 MiB, of which one is stopped: pages of the other leave.
fn nobody_held_up() {
    let told = report("44M", "stopped");
    let peak = told["peak_bytes"].as_u64().unwrap();
    assert!(peak < (44 << 20) * 6 / 5, "{told}");
}

/// Why the kernel writes no core file to the folder that a program runs in.
fn no_core_file() -> Option<String> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let elsewhere = pattern.starts_with(['|', '@']) || pattern.contains('/') || pattern.is_empty();
    elsewhere.then(|| format!("core files go to {}", pattern.trim()))
}

/// For a core file the kernel reads no evicted page of a dying program.
fn core_file() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["-c", "ulimit -c unlimited; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_uzswap")];
    let output = Command::new("sh")
        .args(options)
        .args(["run", "--limit", "16M", "--", &this_program(), "--scenario", "abort"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    expect(&output, 128 + 6);
    assert!(fs::read_dir(folder.path()).unwrap().count() > 0, "no core file");
    let said = text(&output.stderr);
    assert!(said.contains("the core file of process"), "{said}");
}

/// A process has its memory from one that has ended, as the child of a vfork(2) may.
fn no_zeros() {
    let output = run_in("16M", &this_program(), &["--scenario", "outlived"]).output().unwrap();
    expect(&output, 0);
    assert_eq!(text(&output.stdout), "right");
}

/// A program and its supervisor have one pipe. Programs with too little address space for a helper
/// get a message each.
fn messages_beside_writes() {
    let script = "\"$0\" --scenario writes-to-stderr & \
                  for size in $(seq 9000 50 14000); do \
                  sh -c \"ulimit -v $size; exec true\" >/dev/null 2>&1; done; wait $!";
    let arguments = ["-c", script, &this_program()];
    let output = run_in("24M", "sh", &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "it ended with {}", output.status);
    let message = b"is unmanaged: its limits";
    assert!(output.stderr.windows(message.len()).any(|words| words == message));
}

/// ps and others find a program by its arguments, while all else leaves it.
fn arguments_stay() {
    let (mut child, _stdout) = start("16M", &[], "stay");
    let is_program = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.starts_with(this_program().as_bytes()) && arguments.ends_with(b"\0stay\0")
    };
    for _ in 0..20 {
        // The helper has the same.
        let mut below = process_tree::all_below(child.id());
        below.retain(|pid| is_program(pid) && !process_tree::is_helper(*pid));
        assert_eq!(below.len(), 1);
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The statistics of a scenario.
fn report(limit: &str, scenario: &str) -> serde_json::Value {
    report_with(&["--limit", limit], scenario)
}

fn report_with(options: &[&str], scenario: &str) -> serde_json::Value {
    let (output, told) = told_by(options, scenario);
    expect(&output, 0);
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    told
}

/// How a scenario ended, and its statistics.
fn told_by(options: &[&str], scenario: &str) -> (Output, serde_json::Value) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stats");
    let output = Command::new(env!("CARGO_BIN_EXE_uzswap"))
        .args(["run", "--quiet", "--stats", path.to_str().unwrap()])
        .args(options)
        .args(["--", &this_program(), "--scenario", scenario])
        .output()
        .unwrap();
    let told = fs::read(path).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    (output, serde_json::from_slice(&told).unwrap())
}

/// The adversary with so much memory, in a part of that. Forks by system call alone are left away:
/// their pages stay; and other forks where children, a dozen at a time, have no room beside it.
fn adversary_in(mib: u32, percent: u32, without: &str, has_file: bool) {
    let number = |name: &str, usual: u32| {
        std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
    };
    let (seconds, seed) =
        (number("UZSWAP_ADVERSARY_SECONDS", 4), number("UZSWAP_ADVERSARY_SEED", percent));
    let limit = format!("{}M", mib * percent / 100);
    let words = [seed, seconds, mib].map(|number| number.to_string());
    let arguments = ["--adversary", &words[0], &words[1], "4", &words[2]];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let options = ["--backing", file.to_str().unwrap(), "--max-pool", "12M"];
    let options = if has_file { &options[..] } else { &[] };
    let mut command = run_for(seconds, &limit, options, &this_program(), &arguments);
    if std::env::var_os("UZSWAP_ADVERSARY_WITHOUT").is_none() {
        command.env("UZSWAP_ADVERSARY_WITHOUT", without);
    }
    expect(&command.output().unwrap(), 0);
}
