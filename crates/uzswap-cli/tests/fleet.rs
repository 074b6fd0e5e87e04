//! Goal: `uzswap fleet` chooses settings from the files of samples, the same for any number of
//! threads, and says which file is damaged. The SQL files of the docs answer from the same files.
//! Method: the real binary samples this test, makes machines of that and replays them. duckdb runs
//! the SQL files; without it that is ignored, with the reason.
//! Blind to: ages of real programs over hours.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Output};

use serde_json::Value;
use support::{Lab, expect_error, stdout_of_success, text};
use uzswap_fleet::folder::{read, samples};
use uzswap_fleet::table::{ReplayRow, RunRow};
use uzswap_testing::json_schema;
use uzswap_testing::trials::{self, trial, why_fails};

fn main() -> ExitCode {
    let no_duckdb = why_fails(Command::new("python3").args(["-c", "import duckdb"]));
    let no_duckdb = no_duckdb.map(|_| "python3 has no duckdb; pip install duckdb".to_owned());
    trials::run([
        trial("any_number_of_threads_gives_the_same_bytes", None, replays),
        trial("a_damaged_file_is_named", None, damaged),
        trial("wrong_calls_are_refused", None, refused),
        trial("a_full_disk_ends_a_sample_and_its_files_stay", no_small_disk(), full_disk),
        trial("sql_files_answer_from_the_tables", no_duckdb, sql),
    ])
}

fn uzswap(lab: &Lab, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    command.env("XDG_STATE_HOME", lab.path("state")).args(arguments).output().unwrap()
}

fn json(output: Output, name: &str) -> Value {
    let document = serde_json::from_str(&stdout_of_success(output)).unwrap();
    json_schema::check(&document, name);
    document
}

/// So many machines in the folder `fleet`, made of a sample of this process.
fn machines(lab: &Lab, count: &str) {
    let (sampled, fleet) = (lab.path("sampled"), lab.path("fleet"));
    let pid = std::process::id().to_string();
    let sample = ["sample", "--tree", &pid, "--out", text(&sampled), "--budget", "100%"];
    let sample = uzswap(lab, &[&sample[..], &["--interval", "50ms", "--intervals", "20"]].concat());
    stdout_of_success(sample);
    let arguments = ["fleet", "simulate", text(&sampled), "--out", text(&fleet), "--seed", "5"];
    let made = uzswap(lab, &[&arguments[..], &["--machines", count, "--json"]].concat());
    let made = json(made, "uzswap-fleet-simulate/1");
    assert_eq!(made["machines"].to_string(), count);
    assert_eq!(fs::read_dir(&fleet).unwrap().count(), 3 * count.parse::<usize>().unwrap());
}

fn replay(lab: &Lab, more: &[&str]) -> Output {
    let fleet = lab.path("fleet");
    uzswap(lab, &[&["fleet", "replay", text(&fleet)], more].concat())
}

/// Four settings, within the objective where any is.
const GRID: [&str; 2] = ["--params", "threshold-percentile=90,98,90,warm-up=0,1s,slo=100%"];

fn replays() {
    let lab = Lab::new();
    machines(&lab, "12");
    let files: Vec<_> = ["1", "2", "5"]
        .into_iter()
        .map(|threads| {
            let out = lab.path(threads);
            let rest = ["--threads", threads, "--out", text(&out), "--json"];
            let all = [&GRID[..], &rest].concat();
            let output = replay(&lab, &all);
            let document: Value = serde_json::from_slice(&output.stdout).unwrap();
            json_schema::check(&document, "uzswap-fleet-replay/1");
            let is_met = document["settings"][0]["within_slo"].as_bool().unwrap();
            expect_error(&output, i32::from(!is_met), &[]);
            assert_eq!(document["machines"], 12);
            let settings = document["settings"].as_array().unwrap();
            assert_eq!(settings.len(), 4, "a repeated value is one");
            (fs::read(out).unwrap(), settings.clone())
        })
        .collect();
    assert!(files[0] == files[1] && files[0] == files[2]);
    let rows: Vec<ReplayRow> = read(&lab.path("1")).unwrap();
    assert_eq!(rows.len(), 4 * 13);
    assert!(rows.iter().filter(|row| row.host.is_none()).count() == 4);
    assert!(rows.iter().any(|row| row.active_intervals > 0), "{rows:?}");

    let output = replay(&lab, &["--params", "warm-up=0s"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.lines().all(|line| line.len() <= 80), "{shown}");
    assert!(shown.starts_with("12 machines. Use ") && shown.contains("P98/MIN"), "{shown}");
    let is_met = shown.contains(" | met ") || shown.contains("  met ");
    assert_eq!(output.status.code(), Some(i32::from(!is_met)), "{shown}");
}

fn damaged() {
    let lab = Lab::new();
    machines(&lab, "3");
    let fleet = lab.path("fleet");
    let mut names: Vec<_> = fs::read_dir(&fleet).unwrap().map(|it| it.unwrap().path()).collect();
    names.sort();
    let intervals = names.iter().find(|path| name(path).starts_with("intervals-")).unwrap();
    let whole = fs::read(intervals).unwrap();
    for cut in [0, 3, 12, whole.len() / 2, whole.len() - 1] {
        fs::write(intervals, &whole[..cut]).unwrap();
        let output = replay(&lab, &[]);
        expect_error(&output, 1, &[name(intervals), "is not a table 'intervals' of uzswap"]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(message.lines().count(), 1, "one line and no panic: {message}");
    }
    // Another table in its place.
    let pages = names.iter().find(|path| name(path).starts_with("pages-")).unwrap();
    fs::copy(pages, intervals).unwrap();
    expect_error(&replay(&lab, &[]), 1, &[name(intervals), "column "]);
    fs::remove_file(intervals).unwrap();
    fs::create_dir(intervals).unwrap();
    expect_error(&replay(&lab, &[]), 1, &[name(intervals), "not a regular file"]);
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

fn refused() {
    let lab = Lab::new();
    let (empty, none) = (lab.path("empty"), lab.path("none"));
    fs::create_dir(&empty).unwrap();
    for (arguments, words) in [
        (&["replay", text(&empty)][..], "has no file intervals-*.parquet"),
        (&["replay", text(&none)], "No such file or directory (os error 2)"),
        (&["replay", text(&empty), "--params", "threshold-percentile=101"], "0 to 100"),
        (&["replay", text(&empty), "--params", "warm-up=5"], "expected a time"),
        (&["replay", text(&empty), "--params", "slo=x"], "such as 0.2%"),
        (&["replay", text(&empty), "--params", "compressor=gzip"], "lz4, lzo-rle"),
        (&["simulate", text(&empty), "--out", text(&none)], "has no file intervals-*.parquet"),
    ] {
        expect_error(&uzswap(&lab, &[&["fleet"], arguments].concat()), 2, &[words]);
    }
}

fn no_small_disk() -> Option<String> {
    let script = "mount -t tmpfs -o size=64k none /mnt";
    why_fails(Command::new("unshare").args(["--mount", "sh", "-c", script]))
}

fn full_disk() {
    let lab = Lab::new();
    let [disk, copy] = ["disk", "copy"].map(|name| lab.path(name));
    fs::create_dir(&disk).unwrap();
    fs::create_dir(&copy).unwrap();
    // Intervals of 10 ms of a small process fill 64 KiB in some seconds.
    let script = "mount -t tmpfs -o size=64k none \"$1\" || exit 99\n\
                  sleep 100 & \"$0\" sample --pid $! --out \"$1\" --interval 10ms --for 1h \
                  --budget 100% --save-every 10ms; code=$?; kill $!\n\
                  cp -a \"$1\"/. \"$2\"; exit $code";
    let mut shell = Command::new("unshare");
    shell.env("XDG_STATE_HOME", lab.path("state"));
    shell.args(["--mount", "bash", "-c", script, env!("CARGO_BIN_EXE_uzswap")]);
    let output = shell.args([&disk, &copy]).output().unwrap();
    expect_error(&output, 3, &["cannot write", text(&disk), "os error 28", "before stay"]);
    let names = fs::read_dir(&copy).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !text(Path::new(&name)).starts_with('.')), "half a file");
    let sample = &samples(&copy).unwrap()[0];
    let (intervals, pages) = sample.rows().unwrap();
    let run: RunRow = read(sample.run.as_ref().unwrap()).unwrap().remove(0);
    assert!(run.intervals > 3 && intervals.len() as u64 >= 2 * run.intervals, "{run:?}");
    assert_eq!((run.ended_by.as_str(), pages.len() as u64), ("nothing", run.sampled_pages));
}

fn sql() {
    let lab = Lab::new();
    machines(&lab, "6");
    let out = lab.path("fleet/replays.parquet");
    replay(&lab, &[&GRID[..], &["--out", text(&out)]].concat());
    let queries = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/how-to/fleet");
    let program = "import duckdb, sys\n\
                   print(len(duckdb.sql(open(sys.argv[1]).read()).fetchall()))";
    for (query, least) in [("machines", 1), ("settings", 2), ("suffering-jobs", 1)] {
        let mut python = Command::new("python3");
        python.current_dir(lab.directory.path()).args(["-c", program]);
        let output = python.arg(queries.join(query).with_extension("sql")).output().unwrap();
        let rows: usize = stdout_of_success(output).trim().parse().unwrap();
        assert!(rows >= least, "{query}: {rows} rows");
    }
}
