//! Goal: `uzswap compare --limit` runs a command for each combination in turns, under a limit that
//! holds. A row that cannot be measured says why, and no run leaves anything behind.
//! Method: the real binary, end to end, with a program that is this one again. A test that cannot
//! run here counts as ignored, with the reason.

use uzswap_testing::outputs::{expect, text};
use uzswap_testing::{trials, wait_for};

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use uzswap::page::PAGE_SIZE;
use uzswap::random::SplitMix64;

type Test = (&'static str, Option<String>, fn());

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, work, mib] = &arguments[..]
        && flag == "--program"
    {
        return program(work, mib.parse().unwrap());
    }
    let run = trials::no_run(env!("CARGO_BIN_EXE_uzswap"));
    let tmpfs = run.clone().or_else(trials::not_root);
    let signal = run.clone().or_else(|| trials::no_signal(2));
    let stress = run.clone().or_else(|| trials::not_installed("stress-ng"));
    let make = run
        .clone()
        .or_else(|| trials::not_installed("make"))
        .or_else(|| trials::not_installed("cc"));
    let kernel = run.clone().or_else(no_kernel_swap);
    let not_root = run.clone().or_else(no_nobody);
    let tests: [Test; 18] = [
        ("a_study_has_every_table_and_holds_its_limit", run.clone(), whole_study),
        ("units_are_rows_of_their_own_and_hold_more", run.clone(), units),
        ("rows_are_there_in_text_and_csv_too", run.clone(), forms),
        ("a_combination_that_does_not_fit_is_a_row", run.clone(), does_not_fit),
        ("a_check_that_prints_something_else_is_exit_code_1", run.clone(), wrong_check),
        ("a_command_that_fails_is_shown_with_its_output", run.clone(), failing_command),
        ("a_command_that_hangs_is_killed_with_all_its_processes", run.clone(), hanging_command),
        ("each_run_has_a_folder_of_its_own", run.clone(), folders),
        ("a_tmpfs_is_gone_after_its_run", tmpfs, tmpfs_of_a_run),
        ("an_interrupt_leaves_nothing", signal, interrupted),
        ("the_kernel_is_compared_and_put_back", kernel.clone(), kernel_engine),
        ("the_kernel_may_lack_the_usual_compressor", kernel.clone(), kernel_compressor),
        ("a_killed_study_leaves_the_machine_as_it_was", kernel, killed_study),
        ("without_root_there_are_our_own_figures", not_root, without_root),
        ("a_source_tree_is_built_the_same_each_time", make, preset_build),
        ("memory_is_used_as_memory_developers_do", run.clone(), preset_memory),
        ("stress_is_counted_with_its_mounts", stress, preset_stress),
        ("flags_that_make_no_sense_are_refused", None, flags),
    ];
    trials::run(tests.into_iter().map(|(name, missing, test)| trials::trial(name, missing, test)))
}

/// The program: fills memory with pages that shrink to a quarter, or not at all, or in which
/// neighbours are alike, and reads them.
fn program(work: &str, mib: usize) -> ExitCode {
    let mut random = SplitMix64::new(7);
    let mut memory = vec![0_u8; mib << 20];
    let part = if work == "random" { PAGE_SIZE } else { PAGE_SIZE / 4 };
    for (number, page) in memory.chunks_exact_mut(PAGE_SIZE).enumerate() {
        if number % 256 == 0 {
            // As fast as a program that computes what it stores.
            std::thread::sleep(Duration::from_millis(5));
        }
        if work == "alike" {
            random = SplitMix64::new(number as u64 / 64);
        }
        for word in page[..part].as_chunks_mut::<8>().0 {
            *word = random.next_word().to_ne_bytes();
        }
    }
    let mut sums = Vec::new();
    for _ in 0..6 {
        let words = memory.as_chunks::<8>().0.iter();
        sums.push(words.fold(0_u64, |sum, word| sum.rotate_left(5) ^ u64::from_ne_bytes(*word)));
    }
    if sums.iter().any(|sum| *sum != sums[0]) {
        return ExitCode::from(9);
    }
    println!("sum {:x}", sums[0]);
    ExitCode::SUCCESS
}

fn uzswap() -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "120", env!("CARGO_BIN_EXE_uzswap")]);
    command
}

/// `uzswap compare` of a command.
fn compare(options: &[&str], command: &[&str]) -> Output {
    let mut study = uzswap();
    study.arg("compare").args(options).arg("--").args(command);
    study.output().unwrap()
}

fn own(work: &str, mib: &str) -> [String; 4] {
    let exe = std::env::current_exe().unwrap();
    [exe.to_str().unwrap(), "--program", work, mib].map(str::to_owned)
}

/// A study of this program, as JSON.
fn study_of(options: &[&str], work: &str, mib: &str) -> (Output, Value) {
    let command = own(work, mib);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let output = compare(&[options, &["--json"]].concat(), &command);
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr))
    });
    (output, json)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is not a list"))
}

fn whole_study() {
    let options = ["--limit", "60%", "--runs", "3", "--check", "echo same"];
    let (output, json) = study_of(&options, "shrinks", "64");
    expect(&output, 0);
    let limit = number(&json["settings"]["limit_bytes"]);
    let peak = number(&json["warm_up"]["peak_bytes"]);
    assert!((64e6..90e6).contains(&peak), "a peak of {peak}");
    assert!((limit - peak * 0.6).abs() < 2.0, "{limit} of {peak}");
    let rows = list(&json["combinations"]);
    let labels: Vec<&str> = rows.iter().map(|row| row["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["zsmalloc lz4", "zbud lz4", "z3fold lz4"]);
    for row in rows {
        assert_eq!(row["base"], "zsmalloc lz4");
        let runs = list(&row["runs"]);
        let label = &row["label"];
        assert_eq!(runs.len(), 3, "{}", row["failure"]);
        assert_eq!(row["differences"].is_null(), row["label"] == row["base"]);
        for run in runs {
            for figure in ["real_s", "user_s", "sys_s", "engine_cpu_s", "free_ms"] {
                assert!(number(&run[figure]) > 0.0, "{label}: {figure}");
            }
            let of = |figure: &str| number(&run[figure]);
            // 25 MiB had to leave, and were read six times.
            assert!(of("stored_pages") > 3000.0 && of("loaded_pages") > 3000.0, "{label}");
            assert!(of("freed_pages") >= of("loaded_pages") * 0.9, "{label}");
            let peak = of("peak_bytes");
            assert!(peak <= limit + f64::from(8 << 20), "{peak} bytes of {limit}");
            assert!(of("pool_peak_bytes") > 1e6 && of("pool_peak_pages") > 1000.0, "{label}");
            let timeline = list(&run["timeline"]);
            let most = timeline.iter().map(|sample| number(&sample["pool_bytes"]));
            let most = most.fold(0.0, f64::max);
            assert!(most > of("pool_peak_bytes") / 2.0 && most <= of("pool_peak_bytes"), "{label}");
        }
        for verb in ["store_ns", "load_ns", "fault_ns"] {
            let counted = list(&row[verb]["buckets"]).iter().map(|it| number(&it["count"]));
            let counted: f64 = counted.sum();
            assert!(counted > 500.0 && (counted - number(&row[verb]["count"])).abs() < 0.5);
        }
    }
    // Pages that shrink to a quarter: zbud pairs them, zsmalloc does not need to.
    let pool_of = |row: &Value| number(&row["pool_peak_bytes"]) / number(&row["pool_peak_pages"]);
    let (zsmalloc, zbud) = (pool_of(&rows[0]), pool_of(&rows[1]));
    assert!((1000.0..1400.0).contains(&zsmalloc), "{zsmalloc} bytes a page");
    assert!((2000.0..2300.0).contains(&zbud), "{zbud} bytes a page");
    let percent = number(&rows[1]["pool_percent_of_base"]);
    let bytes = |row: &Value| number(&row["pool_peak_bytes"]);
    assert!((percent - bytes(&rows[1]) / bytes(&rows[0]) * 100.0).abs() < 1e-6);
}

fn units() {
    let options = ["--limit", "50%", "--runs", "1", "--zpool", "packed", "--unit", "4K,16K"];
    let (output, json) = study_of(&options, "alike", "48");
    expect(&output, 0);
    let rows = list(&json["combinations"]);
    let labels: Vec<&str> = rows.iter().map(|row| row["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["packed lz4", "packed lz4 16K"]);
    let unit_pages = rows.iter().map(|row| row["unit_pages"].as_u64());
    assert_eq!(unit_pages.collect::<Vec<_>>(), [None, Some(4)]);
    let bytes = |row: &Value| number(&row["pool_peak_bytes"]) / number(&row["pool_peak_pages"]);
    let (alone, together) = (bytes(&rows[0]), bytes(&rows[1]));
    assert!(together < alone / 2.0, "{alone} bytes a page alone, {together} in units");
}

fn forms() {
    let command = own("shrinks", "24");
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let options = ["--limit", "60%", "--runs", "2", "--zpool", "zsmalloc,zbud", "--details"];
    let output = compare(&options, &command);
    expect(&output, 0);
    let page = text(&output.stdout);
    let words = page.split_whitespace().collect::<Vec<&str>>().join(" ");
    for part in [
        "(a) RUN TIME",
        "real zbud lz4",
        "(b) LATENCY",
        "zbud lz4, store (ns)",
        "zbud lz4, fault (ns)",
        "(c) PEAK POOL SIZE",
        "(d) BEYOND THE STUDY",
        "LARGEST FREEING",
        "POOL OVER TIME",
        "fewer than 3 rounds show no difference",
        "Peak pool of zbud lz4 against zsmalloc lz4: +",
    ] {
        assert!(words.contains(part), "no '{part}' in\n{page}");
    }
    assert!(page.starts_with("Use z"), "{page}");
    let wide = page.lines().find(|line| line.len() > 80 && !line.starts_with("command"));
    assert_eq!(wide, None, "{page}");
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));

    let output = compare(&[&options[..], &["--csv"]].concat(), &command);
    expect(&output, 0);
    let page = text(&output.stdout);
    let columns: Vec<usize> = page.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [columns[0]; 5], "{page}");
    assert!(page.starts_with("label,run,real_s,") && page.contains("\nzbud lz4,2,"), "{page}");
}

fn does_not_fit() {
    // Random pages do not shrink.
    let options = ["--limit", "20M", "--runs", "2", "--zpool", "zsmalloc", "--find-limit"];
    let (output, json) = study_of(&options, "random", "32");
    expect(&output, 1);
    let row = &json["combinations"][0];
    assert_eq!(row["failure"]["kind"], "did_not_fit", "{row}");
    assert!(row["failure"]["output"].as_str().unwrap().contains("out of memory"), "{row}");
    assert_eq!(list(&row["runs"]).len(), 0);
    let (fits, fails) = (
        number(&row["smallest_limit"]["fits_bytes"]),
        number(&row["smallest_limit"]["fails_bytes"]),
    );
    assert!(fails >= f64::from(20 << 20) && fails < fits, "{row}");
    assert!(fits > f64::from(32 << 20) && fits < f64::from(56 << 20), "{row}");
    assert!(text(&output.stderr).contains("every combination failed"), "{}", text(&output.stderr));
}

fn wrong_check() {
    let options = ["--limit", "60%", "--runs", "2", "--zpool", "zsmalloc", "--check", "date +%N"];
    let (output, json) = study_of(&options, "shrinks", "16");
    expect(&output, 1);
    assert_eq!(json["combinations"][0]["failure"]["kind"], "wrong");
    let options = ["--limit", "60%", "--runs", "1", "--zpool", "zsmalloc", "--check", "exit 4"];
    let command = own("shrinks", "16");
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let output = compare(&options, &command);
    expect(&output, 2);
    let told = text(&output.stderr);
    assert!(told.contains("--check 'exit 4' failed (exit status: 4)"), "{told}");
}

fn failing_command() {
    let output = compare(&["--limit", "60%"], &["sh", "-c", "echo the reason; exit 7"]);
    expect(&output, 2);
    let told = text(&output.stderr);
    assert!(told.contains("failed with exit code 7") && told.contains("the reason"), "{told}");
    let output = compare(&["--limit", "60%"], &["no-such-program"]);
    expect(&output, 2);
    let told = text(&output.stderr);
    assert!(told.contains("cannot run no-such-program: "), "{told}");

    // The third run fails; the first is the warm-up.
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("runs");
    let own = own("shrinks", "16").join(" ");
    let script = format!(
        "echo >> {0}; test $(wc -l < {0}) != 3 || {{ echo third; exit 5; }}; {own}",
        count.display()
    );
    let options = ["--limit", "60%", "--runs", "3", "--zpool", "zsmalloc,zbud", "--json"];
    let output = compare(&options, &["sh", "-c", &script]);
    expect(&output, 0);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (whole, failed) = (&json["combinations"][0], &json["combinations"][1]);
    assert_eq!((list(&whole["runs"]).len(), list(&failed["runs"]).len()), (3, 0), "{json}");
    assert_eq!(failed["failure"]["kind"], "command");
    assert_eq!(failed["failure"]["message"], "failed with exit code 5");
    assert!(failed["failure"]["output"].as_str().unwrap().contains("third"));
}

/// Processes whose command line has a certain text.
fn processes_with(part: &str) -> usize {
    let folders = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = folders.filter_map(|folder| std::fs::read(folder.path().join("cmdline")).ok());
    lines.filter(|line| text(line).replace('\0', " ").contains(part)).count()
}

/// Waits until no process has the text in its command line.
fn all_gone(part: &str) {
    let start = Instant::now();
    while processes_with(part) > 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "processes are left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn hanging_command() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("was-here");
    let script =
        format!("test -e {0} && {{ sleep 86401 & sleep 86401; }}; touch {0}", mark.display());
    let script = format!("{script}; {}", own("shrinks", "16").join(" "));
    let options = ["--limit", "60%", "--runs", "2", "--zpool", "zbud", "--timeout", "1s", "--json"];
    let output = compare(&options, &["sh", "-c", &script]);
    expect(&output, 1);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["combinations"][0]["failure"]["kind"], "timed_out", "{json}");
    all_gone("sleep 86401");
}

fn folders() {
    let script =
        format!("test \"$(cat {{dir}}/made)\" = yes && {}", own("shrinks", "16").join(" "));
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let prepare = "test ! -e {dir}/made && echo yes > {dir}/made";
    let cleanup = format!("echo {{dir}} >> {}", log.display());
    let options = [
        "--limit",
        "60%",
        "--runs",
        "2",
        "--zpool",
        "zbud",
        "--prepare",
        prepare,
        "--check",
        "cat {dir}/made",
        "--cleanup",
        &cleanup,
    ];
    let output = compare(&options, &["sh", "-c", &script]);
    expect(&output, 0);
    let log = std::fs::read_to_string(log).unwrap();
    let folders: Vec<&str> = log.lines().collect();
    assert_eq!(folders.len(), 3, "{log}");
    assert!(folders.iter().all(|folder| !Path::new(folder).exists()), "{log}");
}

fn tmpfs_of_a_run() {
    let _alone = SWAP.lock();
    let mounts = || std::fs::read_to_string("/proc/mounts").unwrap();
    let before = mounts();
    let check = "stat -f -c %T {dir}; df -k --output=size {dir} | tail -n 1";
    let script = format!("{}; cp /etc/passwd {{dir}}", own("shrinks", "16").join(" "));
    let options = [
        "--limit",
        "60%",
        "--runs",
        "1",
        "--zpool",
        "zbud",
        "--tmpfs",
        "24M",
        "--check",
        check,
        "--cleanup",
        "{ stat -f -c %T {dir}; ls {dir}; } >&2; exit 3",
    ];
    let output = compare(&options, &["sh", "-c", &script]);
    // The output of what fails is shown.
    expect(&output, 2);
    let told = text(&output.stderr);
    assert!(told.contains("tmpfs\npasswd"), "{told}");
    let output = compare(&options[..10], &["sh", "-c", &script]);
    expect(&output, 0);
    assert!(text(&output.stdout).contains("a fresh tmpfs of 24.0 MiB"), "{}", text(&output.stdout));
    assert_eq!(mounts(), before);
}

fn interrupted() {
    let temporary = tempfile::tempdir().unwrap();
    let mut study = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    study.args(["compare", "--limit", "60%", "--runs", "1", "--", "sh", "-c"]);
    study.arg("touch {dir}/there; sleep 86402").env("TMPDIR", temporary.path());
    study.stdout(Stdio::piped()).stderr(Stdio::piped());
    let study = study.spawn().unwrap();
    wait_for("the command", || (processes_with("sleep 86402") >= 2).then_some(()));
    let pid = rustix::process::Pid::from_child(&study);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = study.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(2), "{}", text(&output.stderr));
    all_gone("sleep 86402");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}

/// Why the kernel's own swap cannot be set up here.
fn no_kernel_swap() -> Option<String> {
    let is_there = |path: &str| Path::new(path).exists();
    trials::not_root().or_else(|| {
        let zram = is_there("/sys/class/zram-control/hot_add");
        (!zram).then(|| "the kernel has no zram".to_owned())
    })
}

/// Why no program can be run as another user.
fn no_nobody() -> Option<String> {
    trials::not_root().or_else(|| trials::not_installed("setpriv"))
}

/// All that a study of the kernel's engines changes.
fn machine() -> String {
    let mut state = String::new();
    let mut add = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        state += &format!("{}: {text}\n", path.display());
    };
    for path in ["/proc/swaps", "/proc/mounts", "/proc/sys/vm/swappiness"] {
        add(Path::new(path));
    }
    let names = |folder: &str| -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    names("/sys/module/zswap/parameters").iter().for_each(|path| add(path));
    let devices = names("/sys/block");
    let cgroups = names("/sys/fs/cgroup/memory");
    let of_ours =
        |path: &&std::path::PathBuf| text(path.as_os_str().as_encoded_bytes()).contains("uzswap");
    let cgroups: Vec<_> = cgroups.iter().filter(of_ours).collect();
    format!("{state}{devices:?} {cgroups:?} {:?}", names("/run/uzswap"))
}

/// Waits until the machine is as it was.
fn put_back(before: &str) {
    let start = Instant::now();
    loop {
        let now = machine();
        if now == before {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "before: {before}\nnow: {now}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn kernel_engine() {
    let _alone = SWAP.lock();
    let before = machine();
    let options = [
        "--limit",
        "60%",
        "--runs",
        "1",
        "--engine",
        "uzswap,zram,zswap",
        "--compressor",
        "lzo-rle,842",
        "--zpool",
        "zsmalloc",
        "--check",
        "echo same",
    ];
    let command = own("shrinks", "64");
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    // 842 is none of ours.
    expect(&compare(&[&options[..], &["--json"]].concat(), &command), 2);
    let options: Vec<&str> =
        options.iter().map(|word| if *word == "lzo-rle,842" { "lzo-rle" } else { word }).collect();
    let (output, json) = study_of(&options, "shrinks", "64");
    expect(&output, 0);
    let limit = number(&json["settings"]["limit_bytes"]);
    let rows = list(&json["combinations"]);
    let labels: Vec<&str> = rows.iter().map(|row| row["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["zsmalloc lzo-rle", "zram lzo-rle", "zswap lzo-rle"]);
    for row in &rows[1..] {
        let failure = row["failure"]["message"].as_str().unwrap_or_default();
        if row["kernel"] == "zswap" && failure.contains("no zswap") {
            continue; // not in this kernel
        }
        let of = |figure: &str| number(&row["runs"][0][figure]);
        assert!(failure.is_empty(), "{row}");
        assert!(of("stored_pages") > 3000.0 && of("loaded_pages") > 3000.0, "{}", row["label"]);
        let peak = of("peak_bytes");
        assert!(peak < limit + f64::from(12 << 20), "{peak} of {limit}: {}", row["label"]);
        assert!(of("pool_peak_bytes") > 1e6 && of("pool_peak_pages") > 1000.0, "{}", row["label"]);
        assert!(number(&row["store_ns"]["count"]) > 10.0, "{}", row["label"]);
        assert!(number(&row["load_ns"]["count"]) > 10.0, "{}", row["label"]);
    }
    put_back(&before);
}

/// Kernels lack the usual compressor here and there: the study takes another, and says which. A
/// compressor that was named is never replaced.
fn kernel_compressor() {
    let _alone = SWAP.lock();
    let before = machine();
    for engine in ["zram", "zswap"] {
        let options = ["--limit", "60%", "--runs", "1", "--zpool", "zsmalloc", "--engine", engine];
        let (output, json) = study_of(&options, "shrinks", "16");
        let row = &json["combinations"][0];
        let failure = row["failure"]["message"].as_str().unwrap_or_default();
        if failure.contains(&format!("no {engine}")) {
            continue; // not in this kernel
        }
        expect(&output, 0);
        let compressor = row["compressor"].as_str().unwrap();
        assert_eq!(row["label"], format!("{engine} {compressor}"));
        let lacks = format!("The {engine} of this kernel lacks lz4: its row has {compressor},");
        let remark = |note: &Value| note.as_str().unwrap().starts_with(&lacks);
        assert_eq!(list(&json["notes"]).iter().any(remark), compressor != "lz4", "{json}");
        if compressor != "lz4" {
            let named = [&options[..], &["--compressor", "lz4"]].concat();
            let (output, json) = study_of(&named, "shrinks", "16");
            expect(&output, 1);
            let failure = json["combinations"][0]["failure"]["message"].as_str().unwrap();
            assert!(failure.contains("'lz4'"), "{failure}");
        }
    }
    put_back(&before);
}

/// Studies that change the machine, or look at what is changed, are made one at a time.
static SWAP: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn killed_study() {
    let _alone = SWAP.lock();
    let before = machine();
    let mut random = SplitMix64::new(u64::from(std::process::id()));
    let mut was_changed = 0;
    let temporary = tempfile::tempdir().unwrap();
    for _ in 0..10 {
        let mut study = Command::new(env!("CARGO_BIN_EXE_uzswap"));
        study.env("TMPDIR", temporary.path());
        study.args(["compare", "--limit", "60%", "--runs", "9", "--engine", "zram,zswap"]);
        study.args(["--compressor", "lzo-rle", "--tmpfs", "1M", "--"]).args(own("shrinks", "32"));
        let mut study = study.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // At any moment of the warm-up and of the first runs.
        std::thread::sleep(Duration::from_millis(random.next_word() % 1500));
        was_changed += usize::from(machine() != before);
        study.kill().unwrap();
        study.wait().unwrap();
        put_back(&before);
        all_gone("live_study --program shrinks 32");
    }
    assert!(was_changed >= 3, "killed before anything was changed: {was_changed} of 10");
    let output = uzswap().args(["doctor", "--restore"]).output().unwrap();
    expect(&output, 0);
    // The next study removes the folders of those that were killed.
    let mut study = uzswap();
    study.args(["compare", "--limit", "60%", "--runs", "1", "--zpool", "zsmalloc", "--"]);
    expect(&study.args(own("shrinks", "16")).env("TMPDIR", temporary.path()).output().unwrap(), 0);
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

fn without_root() {
    // Where the other user may go.
    let folder = tempfile::Builder::new().prefix("live-study-").tempdir_in("/tmp").unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), permissions).unwrap();
    let uzswap = folder.path().join("uzswap");
    let program = folder.path().join("program");
    std::fs::copy(env!("CARGO_BIN_EXE_uzswap"), &uzswap).unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut study = Command::new("setpriv");
    study.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    // Programs can be run by who may trace them.
    study.args(["--inh-caps", "+sys_ptrace", "--ambient-caps", "+sys_ptrace"]).arg(&uzswap);
    study.args(["compare", "--limit", "60%", "--runs", "1", "--engine", "uzswap,kernel", "--json"]);
    study.args(["--zpool", "zsmalloc", "--"]).arg(&program).args(["--program", "shrinks", "16"]);
    study.current_dir("/").env("TMPDIR", "/tmp").env_remove("XDG_RUNTIME_DIR");
    let output = study.output().unwrap();
    expect(&output, 0);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (own, kernel) = (&json["combinations"][0], &json["combinations"][1]);
    assert_eq!(list(&own["runs"]).len(), 1, "{}", own["failure"]);
    assert_eq!(kernel["failure"]["kind"], "machine", "{}", kernel["failure"]);
    let told = kernel["failure"]["message"].as_str().unwrap();
    assert!(told.contains("root"), "{told}");
}

fn preset(options: &[&str]) -> Output {
    uzswap()
        .arg("compare")
        .args(options)
        .args(["--runs", "1", "--zpool", "zsmalloc"])
        .output()
        .unwrap()
}

fn preset_build() {
    let tree = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| std::fs::write(tree.path().join(name), text).unwrap();
    file("Makefile", "all: a.o b.o\n%.o: %.c\n\t@cc -g -c -o $@ $<\n");
    for name in ["a", "b"] {
        file(&format!("{name}.c"), &format!("const char *{name}(void) {{ return __FILE__; }}\n"));
    }
    let source = tree.path().to_str().unwrap();
    // Debug information has the path of the folder: it must be the same in each run.
    let output = preset(&["--preset", "build", "--source", source, "--limit", "200%", "--json"]);
    expect(&output, 0);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["program"]["preset"], "build");
    assert_eq!(
        list(&json["combinations"][0]["runs"]).len(),
        1,
        "{}",
        json["combinations"][0]["failure"]
    );
    let tmpfs = json["program"]["tmpfs_bytes"].as_u64();
    assert_eq!(tmpfs.is_some(), trials::not_root().is_none());
    assert!(!tree.path().join("a.o").exists(), "the source itself was built");

    let output = preset(&["--preset", "build"]);
    expect(&output, 2);
    assert!(text(&output.stderr).contains("--source DIR"), "{}", text(&output.stderr));
}

fn preset_memory() {
    for (name, pages) in [("usemem:2x16M:random", 3000.0), ("memhog:32M", 3000.0)] {
        let output = preset(&["--preset", name, "--json"]);
        expect(&output, 0);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["settings"]["limit"]["percent"], 60.0);
        let run = &json["combinations"][0]["runs"][0];
        assert!(
            number(&run["stored_pages"]) > pages,
            "{name}: {}",
            json["combinations"][0]["failure"]
        );
    }
}

fn preset_stress() {
    let output = preset(&["--preset", "stress:2s", "--limit", "400M"]);
    expect(&output, 0);
    let page = text(&output.stdout);
    let words = page.split_whitespace().collect::<Vec<&str>>().join(" ");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap().lines().count();
    let note = format!("syncfs of each of {mounts} mounts");
    for part in ["COUNT", "io operations, zsmalloc lz4", "vm operations, zsmalloc lz4", &note] {
        assert!(words.contains(part), "no '{part}' in\n{page}");
    }
}

fn flags() {
    let refused = |options: &[&str], word: &str| {
        let output = compare(options, &["true"]);
        expect(&output, 2);
        let told = text(&output.stderr);
        assert!(told.contains(word), "'{word}' is not in {told}");
    };
    refused(&["--limit", "lots"], "expected a size");
    refused(&["--limit", "0%"], "limit must be a size, or 1%");
    refused(&["--limit", "5K"], "at least 1M");
    refused(&["--check", "true"], "--check needs --limit and a command");
    refused(&["--preset", "usemem"], "cannot be used with");
    refused(&["--limit", "1M", "--source", "/"], "--source needs --preset build");
    refused(&["--limit", "1M", "--max-pool", "8M"], "cannot be used with");
    refused(&["--limit", "1M", "--at", "exit"], "cannot be used with");
    refused(&["--limit", "1M", "--unit", "16K", "--compressor", "lzo"], "one page at a time");
    refused(&["--limit", "1M", "--timeout", "90"], "expected a time with");
    let output = uzswap().args(["compare", "--limit", "60%"]).output().unwrap();
    expect(&output, 2);
}
