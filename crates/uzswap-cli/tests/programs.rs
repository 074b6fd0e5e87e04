//! Goal: real programs print under `uzswap run` what they print without, byte for byte.
//! Method: each runs twice as it is, and the higher peak is taken; then in parts of that. Programs
//! that are not installed here are counted as ignored, with the reason.
//! Blind to: how fast they are; what is random in them (threads of node and java).
//! Larger: UZSWAP_PROGRAMS_SCALE, UZSWAP_PROGRAMS_REPEAT. UZSWAP_PROGRAMS_TELL tells what was used.
#![allow(unsafe_code, reason = "an allocator of its own")]

mod arena;
#[allow(dead_code, reason = "what is not used here is in other tests")]
mod process_tree;
use uzswap::random::SplitMix64;
use uzswap_testing::outputs::text;
use uzswap_testing::trials;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, Output};

/// The allocator of this whole file, which is one of its own programs.
#[global_allocator]
static ARENA: arena::Arena = arena::Arena::new();

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, scale] = &arguments[..]
        && first == "--arena"
    {
        return arena::run(scale);
    }
    let missing = trials::no_run(env!("CARGO_BIN_EXE_uzswap"));
    trials::run(PROGRAMS.iter().map(|program| {
        let missing = missing.clone();
        let not_installed = || program.needs.iter().find_map(|need| trials::not_installed(need));
        let missing = missing.or_else(not_installed);
        let missing = missing.or_else(|| too_small(program.gib));
        trials::trial(program.name, missing, || compare(program))
    }))
}

struct Program {
    name: &'static str,
    needs: &'static [&'static str],
    /// GiB of memory that must be free, and of disk for temporary files.
    gib: u64,
    /// The command, which may use this empty folder. The scale is 1 or more.
    command: fn(&Path, u64) -> Vec<String>,
    /// The limits, in percent of its peak, and what with. Its memory must fit there compressed.
    limits: &'static [(u64, With)],
}

/// Options of a run beside a limit.
#[derive(Debug, Clone, Copy)]
enum With {
    Nothing,
    /// A file behind a pool of a quarter of the limit, however well the pages compress.
    File,
}

const LIMITS: &[(u64, With)] = &[(50, With::Nothing), (30, With::Nothing)];

/// For those whose pool does not fit, so that pages are written back and read again.
const FILE: &[(u64, With)] = &[(50, With::Nothing), (30, With::Nothing), (25, With::File)];

const PROGRAMS: [Program; 27] = [
    Program {
        name: "python_with_dicts_and_lists",
        needs: &["python3"],
        gib: 1,
        command: |_, scale| script("python3", "lists.py", scale * 2),
        limits: LIMITS,
    },
    Program {
        name: "python_that_forks",
        needs: &["python3"],
        gib: 1,
        command: |_, scale| script("python3", "forks.py", scale),
        limits: LIMITS,
    },
    Program { name: "sort", needs: &["sort", "cksum"], gib: 1, command: sort, limits: LIMITS },
    Program {
        name: "sort_of_long_lines",
        needs: &["sort", "cksum"],
        gib: 2,
        command: sort_of_long_lines,
        limits: &[(50, With::Nothing), (30, With::Nothing)],
    },
    Program {
        name: "c_build",
        needs: &["gcc", "make", "cksum"],
        gib: 1,
        command: c_build,
        limits: LIMITS,
    },
    Program { name: "sqlite", needs: &["sqlite3"], gib: 1, command: sqlite, limits: FILE },
    Program {
        name: "node",
        needs: &["node"],
        gib: 1,
        command: |_, scale| script("node", "maps.js", scale),
        limits: FILE,
    },
    Program { name: "java", needs: &["java", "javac"], gib: 1, command: java, limits: FILE },
    Program {
        name: "redis_with_a_background_save",
        needs: &["redis-server", "redis-cli", "redis-benchmark"],
        gib: 1,
        command: redis,
        limits: LIMITS,
    },
    Program {
        name: "c_with_musl",
        needs: &["musl-gcc"],
        gib: 1,
        command: |folder, scale| heap(folder, scale, &["musl-gcc", "-O1"]),
        limits: LIMITS,
    },
    // Each thread takes a lock of musl when it ends, which the kernel then releases.
    more("threads_with_musl", &["musl-gcc"], |folder, scale| {
        of_c("threads.c", folder, scale, &["musl-gcc", "-O1"])
    }),
    more("threads_with_glibc", &["gcc"], |folder, scale| {
        of_c("threads.c", folder, scale, &["gcc", "-O1", "-pthread"])
    }),
    Program {
        name: "rust_with_an_allocator_of_its_own",
        needs: &[],
        gib: 1,
        command: |_, scale| {
            let this = std::env::current_exe().unwrap();
            vec![this.to_str().unwrap().to_owned(), "--arena".to_owned(), scale.to_string()]
        },
        limits: LIMITS,
    },
    more("ruby", &["ruby"], |_, scale| script("ruby", "trees.rb", scale)),
    more("php", &["php"], |_, scale| script("php", "tables.php", scale)),
    more("lua", &["lua"], |_, scale| script("lua", "tables.lua", scale)),
    more("guile", &["guile"], |_, scale| script("guile", "tables.scm", scale)),
    more("sbcl", &["sbcl"], sbcl),
    more("erlang_with_ten_thousand_processes", &["erl", "erlc"], erlang),
    Program { limits: SIXTY, ..more("ocaml", &["ocamlopt"], ocaml) },
    more("go_with_c", &["go", "gcc"], go),
    more("address_sanitizer", &["gcc"], |folder, scale| {
        heap(folder, scale, &["gcc", "-O1", "-fsanitize=address"])
    }),
    more("leak_check_of_the_address_sanitizer", &["gcc"], |folder, scale| {
        of_c("kept.c", folder, scale, &["gcc", "-O1", "-fsanitize=address"])
    }),
    more("leak_sanitizer", &["gcc"], |folder, scale| {
        of_c("kept.c", folder, scale, &["gcc", "-O1", "-fsanitize=leak"])
    }),
    Program { limits: SIXTY, ..more("postgres", &["psql", "pg_isready", "setpriv"], postgres) },
    Program { limits: SIXTY, ..more("chromium", &["chromium"], chromium) },
    Program {
        // A third of it is what each of a hundred processes needs to run at all.
        limits: &[(80, With::Nothing)],
        ..more("nginx_with_a_hundred_workers", &["nginx", "curl"], nginx)
    },
];

/// Less takes these minutes.
const SIXTY: &[(u64, With)] = &[(60, With::Nothing)];

/// A program that is only tried at the limits at which it should be as good as without.
const fn more(
    name: &'static str,
    needs: &'static [&'static str],
    command: fn(&Path, u64) -> Vec<String>,
) -> Program {
    let limits = &[(60, With::Nothing), (50, With::Nothing)];
    Program { name, needs, gib: 1, command, limits }
}

fn data(name: &str) -> String {
    format!("{}/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn script(program: &str, name: &str, scale: u64) -> Vec<String> {
    vec![program.to_owned(), data(name), scale.to_string()]
}

fn shell(text: String) -> Vec<String> {
    vec!["sh".to_owned(), "-c".to_owned(), text]
}

/// 8 MB of lines.
fn sort(folder: &Path, scale: u64) -> Vec<String> {
    sort_lines(folder, 50_000 * scale, 8)
}

/// Lines of half a page: each is some faults, as they are put in order. A scale of 8 sorts a
/// gigabyte.
fn sort_of_long_lines(folder: &Path, scale: u64) -> Vec<String> {
    sort_lines(folder, 64_000 * scale, 160)
}

/// Sorts lines of a file, with so many times two words in each.
fn sort_lines(folder: &Path, count: u64, words: usize) -> Vec<String> {
    let path = folder.join("lines");
    let mut file = BufWriter::new(File::create(&path).unwrap());
    let mut random = SplitMix64::new(1);
    let words = "some words, ".repeat(words);
    for number in 0..count {
        let key = random.next_word() >> 40;
        writeln!(file, "{key} line {number} with the key {key} and {words}").unwrap();
    }
    file.into_inner().unwrap().sync_data().unwrap();
    let (folder, path) = (folder.display(), path.display());
    shell(format!("LC_ALL=C sort -S 50% -T {folder} --parallel=2 {path} | cksum"))
}

/// The C library that one of our dependencies brings, or the half of it that decompresses; its
/// objects are the same to the bit.
fn c_build(folder: &Path, scale: u64) -> Vec<String> {
    let (folder, rules, zstd) = (folder.display(), data("zstd.mk"), zstd_sources());
    let parts = if scale == 1 { "PARTS='common decompress'" } else { "" };
    let make = format!("make -f {rules} ZSTD={zstd} {parts}");
    shell(format!("cd {folder} && {make} clean && {make} -j2"))
}

fn zstd_sources() -> String {
    let mut script = Command::new("sh");
    let told = script.arg(data("zstd-sources.sh")).env("CARGO", env!("CARGO")).output().unwrap();
    let folder = text(&told.stdout);
    assert!(told.status.success() && !folder.is_empty(), "{}", text(&told.stderr));
    folder.trim().to_owned()
}

fn sqlite(folder: &Path, scale: u64) -> Vec<String> {
    let text = fs::read_to_string(data("table.sql")).unwrap();
    let path = folder.join("table.sql");
    fs::write(&path, text.replace("ROWS", &(120_000 * scale).to_string())).unwrap();
    shell(format!("sqlite3 :memory: <{}", path.display()))
}

/// Compiled before: the compiler is not what is looked at.
fn java(folder: &Path, scale: u64) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let compiled = Command::new("javac").args(["-d", folder, &data("Maps.java")]).output().unwrap();
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    ["java", "-Xmx1g", "-cp", folder, "Maps", &(scale * 5).to_string()].map(str::to_owned).into()
}

fn redis(folder: &Path, scale: u64) -> Vec<String> {
    for (name, step) in [("first", 1), ("second", 3)] {
        let mut file = BufWriter::new(File::create(folder.join(name)).unwrap());
        for number in (0..25_000 * scale).step_by(step) {
            let value = format!("the_{name}_value_of_{number}_").repeat(20);
            writeln!(file, "SET key:{number} {value}").unwrap();
        }
    }
    let requests = (500 * scale).to_string();
    vec!["sh".to_owned(), data("redis.sh"), folder.to_str().unwrap().to_owned(), requests]
}

/// Ends with success, or shows why not.
fn must(command: &mut Command) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{}\n{}", text(&stdout), text(&stderr));
}

/// `heap.c`, compiled by such a command.
fn heap(folder: &Path, scale: u64, compiler: &[&str]) -> Vec<String> {
    of_c("heap.c", folder, scale, compiler)
}

/// A program of this folder, compiled.
fn of_c(source: &str, folder: &Path, scale: u64, compiler: &[&str]) -> Vec<String> {
    let program = folder.join("program");
    let mut command = Command::new(compiler[0]);
    must(command.args(&compiler[1..]).arg("-o").arg(&program).arg(data(source)));
    vec![program.to_str().unwrap().to_owned(), scale.to_string()]
}

fn sbcl(_folder: &Path, scale: u64) -> Vec<String> {
    ["sbcl", "--script", &data("tables.lisp"), &scale.to_string()].map(str::to_owned).into()
}

fn erlang(folder: &Path, scale: u64) -> Vec<String> {
    must(Command::new("erlc").arg("-o").arg(folder).arg(data("processes.erl")));
    let (folder, scale) = (folder.to_str().unwrap(), scale.to_string());
    let start = ["erl", "-noshell", "-pa", folder, "-run", "processes", "main", &scale];
    start.map(str::to_owned).into()
}

fn ocaml(folder: &Path, scale: u64) -> Vec<String> {
    let (source, program) = (folder.join("trees.ml"), folder.join("trees"));
    fs::copy(data("trees.ml"), &source).unwrap();
    must(Command::new("ocamlopt").arg(source).arg("-o").arg(&program));
    vec![program.to_str().unwrap().to_owned(), scale.to_string()]
}

fn go(folder: &Path, scale: u64) -> Vec<String> {
    let program = folder.join("tables");
    let mut compiler = Command::new("go");
    compiler.env("CGO_ENABLED", "1").env("GO111MODULE", "off");
    must(compiler.args(["build", "-o"]).arg(&program).arg(data("tables.go")));
    vec![program.to_str().unwrap().to_owned(), scale.to_string()]
}

/// As a user without rights, if there is one for it: the server refuses root.
fn postgres(folder: &Path, scale: u64) -> Vec<String> {
    let (folder, rows) = (folder.to_str().unwrap(), (40_000 * scale).to_string());
    ["sh", &data("postgres.sh"), folder, &rows, "postgres"].map(str::to_owned).into()
}

fn nginx(folder: &Path, scale: u64) -> Vec<String> {
    let times = (40 * scale).to_string();
    let (folder, script) = (folder.display(), data("nginx.sh"));
    shell(format!(
        "rm -rf {folder}/server && mkdir {folder}/server && sh {script} {folder}/server {times}"
    ))
}

/// Its zygotes fork the processes that make the page.
fn chromium(folder: &Path, scale: u64) -> Vec<String> {
    let (folder, page) = (folder.display(), data("page.html"));
    shell(format!(
        "chromium --headless --no-sandbox --disable-gpu --user-data-dir={folder}/user \
         --virtual-time-budget=600000 --dump-dom 'file://{page}?{scale}' | cksum"
    ))
}

fn setting(name: &str) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(1)
}

/// Of `uzswap run`, as it is started here.
fn run_in(limit: u64, options: &[&str], argv: &[String]) -> Command {
    let mut command = Command::new("timeout");
    // One that hangs is ended, and fails with 137.
    let seconds = (300 * setting("UZSWAP_PROGRAMS_SCALE")).to_string();
    command.args(["-s", "KILL", &seconds, env!("CARGO_BIN_EXE_uzswap")]);
    command.args(["run", "--limit", &limit.to_string()]).args(options).arg("--").args(argv);
    command
}

/// Whether the machine is, for what takes so many GiB.
fn too_small(gib: u64) -> Option<String> {
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    let disk = Command::new("df").args(["-kP", std::env::temp_dir().to_str().unwrap()]).output();
    let told = text(&disk.unwrap().stdout);
    let free = told.lines().nth(1).and_then(|line| line.split_ascii_whitespace().nth(3));
    let free_kib: u64 = free.unwrap().parse().unwrap();
    let needed = gib << 20;
    match (kib < needed, free_kib < needed) {
        (true, _) => Some(format!("less than {gib} GiB of memory are free")),
        (_, true) => Some(format!("less than {gib} GiB are free for temporary files")),
        _ => None,
    }
}

fn compare(program: &Program) {
    let folder = tempfile::tempdir().unwrap();
    let argv = (program.command)(folder.path(), setting("UZSWAP_PROGRAMS_SCALE"));
    let run = || {
        let mut command = Command::new(&argv[0]);
        let (plain, peak) = process_tree::output_and_peak(command.args(&argv[1..])).unwrap();
        assert!(plain.status.success(), "{}\n{}", text(&plain.stdout), text(&plain.stderr));
        (plain, peak)
    };
    // The processes that run at the same time vary: compilers, on a busy machine.
    let ((plain, first), (again, second)) = (run(), run());
    assert_eq!(text(&again.stdout), text(&plain.stdout), "it prints another thing each time");
    let peak = first.max(second);
    let file = folder.path().join("behind the pool");
    let file = file.to_str().unwrap();
    for &(percent, with) in program.limits {
        let limit = peak * percent / 100;
        let max_pool = (limit / 4).to_string();
        let options: &[&str] = match with {
            With::Nothing => &[],
            With::File => &["--backing", file, "--max-pool", &max_pool],
        };
        for _ in 0..setting("UZSWAP_PROGRAMS_REPEAT") {
            let run = run_in(limit, options, &argv).output().unwrap();
            let Output { status, stdout, stderr } = run;
            let (stdout, stderr) = (text(&stdout), text(&stderr));
            let told = format!("{percent} % of {peak} bytes, {with:?}\n{stdout}\n{stderr}");
            let code = status.code().or(status.signal().map(|signal| 128 + signal));
            assert_eq!(code, Some(0), "{told}");
            assert_eq!(stdout, text(&plain.stdout), "{told}");
            let is_unused = stderr.contains(" 0 pages written back") || stderr.contains(", 0 read");
            assert!(matches!(with, With::Nothing) || !is_unused, "the file was not used: {told}");
            if std::env::var_os("UZSWAP_PROGRAMS_TELL").is_some() {
                eprintln!("{}, {percent} % of {peak} bytes, {with:?}: {stderr}", program.name);
            }
        }
    }
}
