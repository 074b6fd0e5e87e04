//! Goal: the kernel's own swap is set up as asked for, holds its limit, and the machine is as
//! before after it, whatever ends it.
//! Method: the real binary runs programs on each engine; the machine's swap areas, devices, mounts,
//! cgroups and settings are compared with those before. Tests that cannot run here are counted as
//! ignored, with the reason.
//! Again: UZSWAP_KILL_SEED, the seed of the moments at which a run is killed.
//! Blind to: kernels with memory cgroups of version 2 (unit tests use files for them), zpools.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use serde_json::Value;

use uzswap::random::SplitMix64;
use uzswap_testing::trials;

const MIB: u64 = 1 << 20;

/// A limit, and a program that needs more: half of it is swapped.
const LIMIT: u64 = 64 * MIB;
const PROGRAM: [&str; 4] = ["workload", "text", "--size", "96M"];

/// How far above its limit all of it may be for some ms: the program takes 200 MiB/s, and the
/// kernel reclaims no faster. With a pool that does not count it is 20 MiB and more.
const OVER: u64 = 14 * MIB;
/// Runs in which the limit must be held once.
const RUNS_MAX: usize = 4;

/// A machine that is not as before by then will not be.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let zram = missing_zram();
    let zswap = missing_zswap();
    let both = zram.clone().or_else(|| zswap.clone());
    let mut all: Vec<Trial> = Vec::new();
    let mut add = |name: &str, missing: &Option<String>, test: Box<dyn FnOnce() + Send>| {
        all.push(trials::trial(name, missing.clone(), test));
    };
    add("exit_codes_of_a_command_in_a_cgroup", &None, Box::new(exit_codes));
    add("zram_swaps_and_holds_its_limit", &zram, Box::new(|| swaps("zram", "loop")));
    add("zswap_on_loop_swaps", &zswap, Box::new(|| swaps("zswap", "loop")));
    add("zswap_on_a_file_swaps", &zswap.clone().or_else(no_disk), Box::new(on_a_file));
    add("zswap_on_zram_swaps", &both, Box::new(|| swaps("zswap", "zram")));
    let root = missing_root();
    add("what_cannot_be_undone_stays_in_the_journal", &root, Box::new(cannot_be_undone));
    add("one_run_at_a_time_changes_the_machine", &both, Box::new(one_at_a_time));
    add("what_cannot_be_set_up_changes_nothing", &both, Box::new(refusals));
    add("interrupted_it_is_as_before", &zram, Box::new(interrupted));
    add("killed_at_any_time_it_is_as_before", &both, Box::new(killed_at_any_time));
    add("killed_with_its_watcher_it_is_restored_by_doctor", &both, Box::new(killed_with_watcher));
    let missing = both.clone().or_else(|| trials::not_installed("unshare"));
    add("killed_in_a_namespace_it_is_restored", &missing, Box::new(killed_in_a_namespace));
    let missing = both
        .or_else(|| ["losetup", "mkswap", "swapon"].into_iter().find_map(trials::not_installed));
    add("what_others_have_is_let_be", &missing, Box::new(of_others));
    // The machine is one.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, all).exit_code()
}

fn missing_root() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let is_memory = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        words[2] == "cgroup" && words[3].split(',').any(|option| option == "memory")
            || words[2] == "cgroup2"
                && fs::read_to_string(Path::new(words[1]).join("cgroup.controllers"))
                    .is_ok_and(|text| text.split_whitespace().any(|name| name == "memory"))
    };
    if !mounts.lines().any(is_memory) {
        return Some("no memory cgroup".to_owned());
    }
    let areas = fs::read_to_string("/proc/swaps").unwrap().lines().count() - 1;
    (areas > 0).then(|| "there is other swap, where pages may be".to_owned())
}

fn missing_zram() -> Option<String> {
    let is_missing = !Path::new("/sys/class/zram-control").exists();
    missing_root().or_else(|| is_missing.then(|| "no zram".to_owned()))
}

fn missing_zswap() -> Option<String> {
    let is_missing = !Path::new("/sys/module/zswap/parameters/enabled").exists();
    let no_loop = !Path::new("/dev/loop-control").exists();
    missing_root()
        .or_else(|| is_missing.then(|| "no zswap".to_owned()))
        .or_else(|| no_loop.then(|| "no loop devices".to_owned()))
}

fn no_disk() -> Option<String> {
    let kind = Command::new("stat").args(["-f", "-c", "%T", env!("CARGO_TARGET_TMPDIR")]).output();
    let kind = String::from_utf8(kind.unwrap().stdout).unwrap();
    let takes_swap = ["ext2/ext3", "xfs"].contains(&kind.trim());
    (!takes_swap).then(|| format!("the target folder is on {}", kind.trim()))
}

fn uzswap() -> Command {
    Command::new(env!("CARGO_BIN_EXE_uzswap"))
}

/// All of the machine that a run may change.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Machine(BTreeMap<String, String>);

impl Machine {
    fn now() -> Machine {
        let mut all = BTreeMap::new();
        let mut add = |name: String, text: String| {
            all.insert(name, text);
        };
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        // How much of an area is used changes by itself.
        let swaps = read("/proc/swaps");
        let swaps = swaps.lines().skip(1).map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            [words[0], words[2], words[4]].join(" ")
        });
        add("swaps".to_owned(), swaps.collect::<Vec<_>>().join("\n"));
        for name in names("/sys/module/zswap/parameters") {
            let text = read(&format!("/sys/module/zswap/parameters/{name}"));
            add(format!("zswap {name}"), text);
        }
        let disks = names("/sys/block");
        add("disks".to_owned(), disks.join(" "));
        for disk in disks {
            for setting in ["loop/backing_file", "disksize", "diskseq"] {
                if disk.starts_with("loop") || disk.starts_with("zram") {
                    add(format!("{disk} {setting}"), read(&format!("/sys/block/{disk}/{setting}")));
                }
            }
        }
        add("mounts".to_owned(), read("/proc/mounts"));
        add("swappiness".to_owned(), read("/proc/sys/vm/swappiness"));
        for folder in ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"] {
            let all = names(folder);
            let groups = all.iter().filter(|name| Path::new(folder).join(name).is_dir());
            let groups: Vec<&str> = groups.map(String::as_str).collect();
            add(folder.to_owned(), groups.join(" "));
        }
        add("controllers".to_owned(), read("/sys/fs/cgroup/cgroup.subtree_control"));
        add("journals".to_owned(), names("/run/uzswap").join(" "));
        add("swap files".to_owned(), names(env!("CARGO_TARGET_TMPDIR")).join(" "));
        Machine(all)
    }

    /// Waits until it is as it was then.
    fn wait_until_as_before(&self, what: &str) {
        let since = Instant::now();
        loop {
            let now = Machine::now();
            if now == *self {
                return;
            }
            if since.elapsed() > PATIENCE {
                let changed: Vec<_> =
                    now.0.iter().filter(|(name, text)| self.0.get(*name) != Some(text)).collect();
                panic!("{what}: not as before: {changed:#?}, before: {self:#?}");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn is_as_before(&self, what: &str) {
        let now = Machine::now();
        assert_eq!(now, *self, "{what}");
    }
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn kernel_run(engine: &str, backing: &str) -> Command {
    let mut command = uzswap();
    command.args(["kernel-run", "--engine", engine, "--backing", backing, "--size", "256M"]);
    command.args(["--limit", &LIMIT.to_string()]);
    command
}

/// The name of a program of ours, for a command line.
fn program() -> Vec<&'static str> {
    [&["--", env!("CARGO_BIN_EXE_uzswap")], &PROGRAM[..]].concat()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Runs until the limit was held: another program may keep the keeper from a processor for longer
/// than its period. All else must be right in each run.
fn swaps(engine: &str, backing: &str) {
    let mut peaks = Vec::new();
    while peaks.len() < RUNS_MAX {
        let peak = run_and_check(engine, backing);
        if peak <= LIMIT + OVER {
            return;
        }
        peaks.push(peak);
    }
    panic!("{engine} on {backing}: peaks of {peaks:?} bytes");
}

/// One run; its peak in bytes.
fn run_and_check(engine: &str, backing: &str) -> u64 {
    let before = Machine::now();
    let mut command = kernel_run(engine, backing);
    command.arg("--probe").args(program());
    let output = command.output().unwrap();
    before.is_as_before(engine);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors, "");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let keeper = &report["keeper"];
    let told = format!("{engine} on {backing}: {}", {
        let mut short = report.clone();
        short["keeper"]["timeline"] = Value::Null;
        short
    });
    assert!(number(&keeper["stored_pages_at_peak"]) * 4096 > 16 * MIB, "{told}");
    let pool = number(&keeper["peak_pool_bytes"]);
    assert!(pool > MIB && pool < number(&keeper["stored_pages_at_peak"]) * 4096, "{told}");
    assert!(number(&keeper["peak_anonymous_bytes"]) > LIMIT / 2, "{told}");
    assert_eq!(number(&keeper["failed"]), 0, "{told}");
    assert_eq!(number(&report["oom_kills"]), 0, "{told}");
    let timeline = keeper["timeline"].as_array().unwrap();
    assert!((2..=512).contains(&timeline.len()), "{}", timeline.len());
    // The probe runs for as long as the program, and is right.
    let probe = &report["probe"];
    assert_eq!(number(&probe["wrong"]), 0, "{told}");
    for times in ["pageout_ns", "touch_ns"] {
        let times = probe[times].as_array().unwrap();
        let count: u64 = times.iter().map(|time| number(&time[1])).sum();
        assert!(count >= 10, "{told}");
        assert!(times.iter().all(|time| number(&time[0]) > 100), "{told}");
    }
    number(&keeper["peak_bytes"])
}

fn on_a_file() {
    swaps("zswap", &format!("file:{}", env!("CARGO_TARGET_TMPDIR")));
}

fn exit_codes() {
    let cgroup = tempfile::tempdir().unwrap();
    let folder = cgroup.path().to_str().unwrap();
    let run = |command: &[&str]| {
        let output = uzswap().args(["in-cgroup", folder, "--"]).args(command).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, errors) = run(&["true"]);
    assert_eq!(code, Some(125), "{errors}");
    assert!(errors.contains(folder), "{errors}");
    fs::write(cgroup.path().join("cgroup.procs"), "").unwrap();
    assert_eq!(run(&["true"]), (Some(0), String::new()));
    assert_eq!(run(&["sh", "-c", "exit 7"]).0, Some(7));
    assert_eq!(run(&["/no/such/program"]).0, Some(127));
    assert_eq!(run(&["/etc/passwd"]).0, Some(126));
    // The process that writes 0 enters.
    assert_eq!(fs::read_to_string(cgroup.path().join("cgroup.procs")).unwrap(), "0");
}

fn refusals() {
    let before = Machine::now();
    let refused = |engine: &str, extra: &[&str], code: i32, said: &str| {
        let output = kernel_run(engine, "loop").args(extra).args(["--", "true"]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(errors.contains(said), "{errors}");
        before.is_as_before(said);
    };
    for engine in ["zram", "zswap"] {
        refused(engine, &["--compressor", "lz9"], 2, "has no compressor 'lz9'; it has: ");
    }
    if !Path::new("/sys/module/zswap/parameters/zpool").exists() {
        refused("zswap", &["--zpool", "zbud"], 2, "no choice of allocators");
    }
    refused("zram", &["--size", "4096"], 2, "40960");
    // A folder that is none, on the last of some steps.
    let output = kernel_run("zswap", "file:/no/such/folder").args(["--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    before.is_as_before("no folder");
}

/// A run that goes on until it is ended; it has started its program.
/// A run that ends when it is killed. After a failed assertion it is interrupted, so that it
/// restores the machine for the tests that follow.
struct Endless(Child);

impl Deref for Endless {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Endless {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            kill(self.0.id(), 2);
            let _ = self.0.wait();
        }
    }
}

/// One that is started by another command, if one is given.
fn start_endless(engine: &str, backing: &str, by: &[&str]) -> Endless {
    let run = kernel_run(engine, backing);
    let mut command = match by {
        [] => run,
        [program, options @ ..] => {
            let mut command = Command::new(program);
            command.args(options).arg(run.get_program()).args(run.get_args());
            command
        }
    };
    let child = command
        .args(["--", "sleep", "1000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let child = Endless(child);
    let since = Instant::now();
    while !runs_program(child.id(), "sleep") {
        assert!(since.elapsed() < PATIENCE, "{engine}: its program does not start");
        thread::sleep(Duration::from_millis(2));
    }
    child
}

/// Children of a process.
fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn words(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
}

fn runs_program(pid: u32, name: &str) -> bool {
    children(pid).into_iter().any(|child| words(child).starts_with(name))
}

fn kill(pid: u32, signal: i32) {
    let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

fn interrupted() {
    if let Some(reason) = trials::no_signal(2) {
        println!("{reason}");
        return;
    }
    let before = Machine::now();
    let mut run = start_endless("zram", "loop", &[]);
    kill(run.id(), 2);
    let status = run.wait().unwrap();
    assert_eq!(status.signal(), Some(2));
    before.is_as_before("interrupted");
}

/// Random numbers from a printed seed.
struct Random {
    seed: u64,
    words: SplitMix64,
}

impl Random {
    fn new() -> Random {
        let seed = std::env::var("UZSWAP_KILL_SEED").ok().and_then(|seed| seed.parse().ok());
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = seed.unwrap_or(now);
        Random { seed, words: SplitMix64::new(seed) }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.words.next_word() % bound
    }
}

fn killed_at_any_time() {
    let before = Machine::now();
    let mut random = Random::new();
    println!("UZSWAP_KILL_SEED={}", random.seed);
    let engines = [("zram", "loop"), ("zswap", "loop"), ("zswap", "zram")];
    for round in 0..10 {
        let (engine, backing) = engines[round % engines.len()];
        let mut run = kernel_run(engine, backing)
            .args(program())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        // Early moments are many: most changes are made in the first tenth of a second.
        let most = [20, 100, 1000][round % 3] * 1000;
        thread::sleep(Duration::from_micros(random.below(most)));
        let group = rustix::process::Pid::from_raw(run.id() as i32).unwrap();
        let signal = rustix::process::Signal::KILL;
        match round % 2 {
            0 => rustix::process::kill_process(group, signal),
            _ => rustix::process::kill_process_group(group, signal),
        }
        .unwrap();
        run.wait().unwrap();
        before.wait_until_as_before(&format!("round {round}, {engine} on {backing}"));
    }
}

/// Kills a run and the process that would put the machine back.
fn kill_with_watcher(run: &mut Child) {
    let is_watcher = |pid: &u32| words(*pid).contains("restore-when-ended");
    let watcher = children(run.id()).into_iter().find(is_watcher).expect("there is a watcher");
    for signal in [1, 2, 15] {
        kill(watcher, signal);
    }
    assert!(words(watcher).contains("restore-when-ended"), "a signal has ended it");
    kill(watcher, 9);
    run.kill().unwrap();
    run.wait().unwrap();
}

fn doctor(arguments: &[&str]) -> Output {
    uzswap().arg("doctor").args(arguments).output().unwrap()
}

fn killed_with_watcher() {
    let before = Machine::now();
    for (engine, backing) in [("zram", "loop"), ("zswap", "loop"), ("zswap", "zram")] {
        let mut run = start_endless(engine, backing, &[]);
        let at_work = doctor(&["--restore"]);
        let text = String::from_utf8(at_work.stdout).unwrap();
        assert!(at_work.status.success() && text.contains("which still runs"), "{text}");
        kill_with_watcher(&mut run);
        assert_ne!(Machine::now(), before, "nobody has put it back yet");
        let told = String::from_utf8(doctor(&[]).stdout).unwrap();
        assert!(told.contains(&format!("changed by process {}", run.id())), "{told}");
        // Two at once.
        let mut other = uzswap();
        let other = other.args(["doctor", "--restore"]).stdout(Stdio::piped()).spawn().unwrap();
        let output = doctor(&["--restore"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        before.is_as_before(engine);
        let other = other.wait_with_output().unwrap();
        assert!(other.status.success());
        let lines = [output.stdout, other.stdout].concat();
        let lines = String::from_utf8(lines).unwrap();
        assert_eq!(lines.matches("swap area /dev/").count(), 1, "{lines}");
    }
    let output = doctor(&["--restore"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "nothing to undo\n");
    assert!(!String::from_utf8(doctor(&[]).stdout).unwrap().contains("kernel's swap"));
}

/// The kernel forgets the folder of a swap area with the mount namespace that it was turned on in.
fn killed_in_a_namespace() {
    let before = Machine::now();
    for (engine, backing) in [("zram", "loop"), ("zswap", "loop"), ("zswap", "zram")] {
        let mut run = start_endless(engine, backing, &["unshare", "-m"]);
        kill_with_watcher(&mut run);
        // The kernel removes the namespace with its last process.
        thread::sleep(Duration::from_millis(100));
        let output = doctor(&["--restore"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        before.wait_until_as_before(engine);
    }
}

fn one_at_a_time() {
    let before = Machine::now();
    let other = if before.0["zswap compressor"].trim() == "lzo" { "lzo-rle" } else { "lzo" };
    let mut run = start_endless("zswap", "loop", &[]);
    let second = |expected: i32| {
        let mut command = kernel_run("zswap", "loop");
        let output = command.args(["--compressor", other, "--", "true"]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(expected), "{errors}");
        errors
    };
    let errors = second(3);
    assert!(errors.contains(&format!("process {} uses", run.id())), "{errors}");
    kill_with_watcher(&mut run);
    // Leftovers are undone before any setting is recorded as the previous one.
    second(0);
    before.is_as_before("after a later run");
}

/// Devices of somebody else, which are removed when this is dropped.
struct Others {
    zram: String,
    loop_device: String,
    _file: tempfile::NamedTempFile,
}

fn tool(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Others {
    fn new() -> Others {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 * MIB).unwrap();
        let loop_device = tool("losetup", &["--find", "--show", file.path().to_str().unwrap()]);
        let zram = fs::read_to_string("/sys/class/zram-control/hot_add").unwrap().trim().to_owned();
        let others = Others { zram, loop_device, _file: file };
        let device = others.device();
        let size = format!("/sys/block/zram{}/disksize", others.zram);
        File::options().write(true).open(size).unwrap().write_all(b"16M").unwrap();
        tool("mkswap", &[&device]);
        tool("swapon", &["-p", "5", &device]);
        others
    }

    fn device(&self) -> String {
        format!("/dev/zram{}", self.zram)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        // A test that fails may have lost some of it.
        let _ = Command::new("swapoff").arg(self.device()).status();
        let _ = fs::write("/sys/class/zram-control/hot_remove", &self.zram);
        let _ = Command::new("losetup").args(["--detach", &self.loop_device]).status();
    }
}

/// Leaves a journal of a process that has ended.
fn leave_journal(changes: &[Value]) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let header = serde_json::json!({"version": 1, "pid": 1, "start": 1, "boot": boot.trim()});
    let lines = [&[header], changes].concat();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::DirBuilder::new().mode(0o700).create("/run/uzswap").unwrap();
    fs::write("/run/uzswap/1-1.journal", text).unwrap();
}

fn cannot_be_undone() {
    let before = Machine::now();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    leave_journal(&[serde_json::json!({"change": {"folder": {"path": folder.path()}}})]);
    for _ in 0..2 {
        let output = doctor(&["--restore"]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{errors}");
        assert!(errors.contains("Directory not empty (os error 39)"), "{errors}");
    }
    fs::remove_file(file).unwrap();
    let output = doctor(&["--restore"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), text.contains(" removed")), (Some(0), true), "{text}");
    before.is_as_before("at last");
}

/// A journal of a process that has ended, with changes by which others' devices came to be named:
/// theirs have the numbers of ours, which are gone.
fn foreign_names(others: &Others) {
    let zram: u32 = others.zram.parse().unwrap();
    let number: u32 = others.loop_device.strip_prefix("/dev/loop").unwrap().parse().unwrap();
    let later = 1_u64 << 40;
    let bytes = 16 * MIB;
    leave_journal(&[
        serde_json::json!({"change": {"new-zram": {"before": [], "last_sequence": later}}}),
        serde_json::json!(zram),
        serde_json::json!({"change": {"zram":
            {"change": 0, "number": zram, "sequence": later, "bytes": bytes}}}),
        serde_json::json!({"change": {"loop": {"number": number, "backing": "/run/uzswap/none"}}}),
        serde_json::json!({"change": {"swap-area":
            {"path": others.device(), "uuid": "00".repeat(16)}}}),
    ]);
    let output = doctor(&["--restore"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("its UUID has changed") && text.contains(" by now"), "{text}");
}

fn of_others() {
    let before_all = Machine::now();
    let others = Others::new();
    let before = Machine::now();
    assert_ne!(before, before_all);
    for (engine, backing) in [("zram", "loop"), ("zswap", "loop"), ("zswap", "zram")] {
        let output = kernel_run(engine, backing).args(["--", "true"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["other_areas"], serde_json::json!([others.device()]));
        before.is_as_before(engine);
        let mut run = start_endless(engine, backing, &[]);
        kill_with_watcher(&mut run);
        assert!(doctor(&["--restore"]).status.success());
        before.is_as_before(engine);
    }
    foreign_names(&others);
    before.is_as_before("a journal that names devices of others");
    // A device that was added meanwhile, and has no size yet, is somebody's too.
    let mut run = start_endless("zram", "loop", &[]);
    let added = fs::read_to_string("/sys/class/zram-control/hot_add").unwrap();
    kill_with_watcher(&mut run);
    assert!(doctor(&["--restore"]).status.success());
    let path = PathBuf::from(format!("/sys/block/zram{}", added.trim()));
    assert!(path.exists(), "it was removed");
    fs::write("/sys/class/zram-control/hot_remove", added.trim()).unwrap();
    before.is_as_before("with a device that came later");
    drop(others);
    // Numbers of detached loop devices count on.
    let last = Machine::now();
    assert_eq!(last.0["swaps"], before_all.0["swaps"]);
    assert_eq!(last.0["disks"], before_all.0["disks"]);
}
