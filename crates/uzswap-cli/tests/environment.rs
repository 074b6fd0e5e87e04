//! Goal: under `uzswap run` a program stays managed whatever environment another one starts it
//! with, and starts and fails as it would without `run`.
//! Method: a program, compiled here, starts itself by each function of the C library.
//! Blind to: programs that start others by system calls of their own; loaders other than glibc's.

use uzswap_testing::outputs::text;
use uzswap_testing::trials;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::OnceLock;

/// Ways to start a program with the environment that is given, and with that of its own.
const GIVEN: [&str; 10] = [
    "execve",
    "execvpe",
    "fexecve",
    "execveat",
    "syscall",
    "syscall_at",
    "execle",
    "execle_of_ten",
    "posix_spawn",
    "posix_spawnp",
];
const OWN: [&str; 7] = ["execv", "execvp", "execl", "execl_of_ten", "execlp", "system", "popen"];

/// A name, what it lacks here, and the test.
type Case = (&'static str, Option<String>, fn());

fn main() -> ExitCode {
    let folder = tempfile::tempdir().unwrap();
    let missing = trials::no_run(env!("CARGO_BIN_EXE_uzswap")).or_else(|| compile(folder.path()));
    let python = trials::not_installed("python3");
    let all: [Case; 9] = [
        ("each_function_keeps_it", None, || stay_managed("each")),
        ("no_environment_at_all", None, || stay_managed("null")),
        ("what_the_program_gives_stays", None, what_is_given),
        ("an_environment_that_cannot_be_read", None, || as_alone("errors")),
        ("an_environment_that_is_too_long", None, || as_alone("too_long")),
        ("the_child_of_a_vfork_leaves_nothing", None, after_vfork),
        ("a_root_without_the_library", None, hidden),
        ("env_and_a_run_in_a_run", trials::not_installed("env"), cleared_by_env),
        ("python_that_clears_it", python, cleared_by_python),
    ];
    trials::run(
        all.into_iter()
            .map(|(name, lacking, test)| trials::trial(name, missing.clone().or(lacking), test)),
    )
}

/// Of `uzswap run`; one that hangs is ended, and fails with 137.
fn run(argv: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "100", env!("CARGO_BIN_EXE_uzswap"), "run", "--limit", "64M"]);
    command.arg("--").args(argv);
    command
}

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Compiles the program; why it cannot be.
fn compile(folder: &Path) -> Option<String> {
    let program = PROGRAM.get_or_init(|| folder.join("execs"));
    let source = format!("{}/tests/programs/execs.c", env!("CARGO_MANIFEST_DIR"));
    trials::why_fails(Command::new("gcc").args(["-w", "-O1", "-o"]).arg(program).arg(source))
}

fn program() -> &'static str {
    PROGRAM.get().unwrap().to_str().unwrap()
}

/// The output of a command, which must end well.
fn printed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (text(&stdout), text(&stderr));
    assert!(status.success(), "{status}: {stdout}{stderr}");
    assert!(!stderr.contains("cannot be preloaded"), "{stderr}");
    stdout
}

/// What each of these ways prints.
fn lines(ways: &[&str], says: &str) -> String {
    let arguments = |way: &str| if way.ends_with("ten") { 10 } else { 3 };
    ways.iter().map(|way| format!("{way} {} arguments: {says}\n", arguments(way))).collect()
}

fn stay_managed(mode: &str) {
    let expected = lines(&GIVEN, "managed") + &lines(&OWN, "managed");
    assert_eq!(printed(&mut run(&[program(), mode])), expected);
}

/// Other variables are there, and in their order; the library comes before others that are
/// preloaded. A program may refuse to be managed.
fn what_is_given() {
    let own = "managed A=1 LD_PRELOAD=:libm.so.6 B=2";
    let mut expected = lines(&GIVEN, own) + &lines(&OWN, own);
    expected += &lines(&["execve"], "managed");
    expected += &lines(&["execve"], "unmanaged");
    for count in [255, 256, 4095] {
        expected += &lines(&["execve"], &("managed".to_owned() + &" C=".repeat(count)));
    }
    assert_eq!(printed(&mut run(&[program(), "own"])), expected);
}

fn as_alone(mode: &str) {
    let alone = printed(Command::new(program()).arg(mode));
    assert_eq!(printed(&mut run(&[program(), mode])), alone);
}

fn after_vfork() {
    assert_eq!(printed(&mut run(&[program(), "vfork"])), lines(&["vfork"], "managed"));
}

/// The loader would complain of the library on the program's standard error.
fn hidden() {
    let folder = tempfile::tempdir().unwrap();
    let hidden = folder.path().to_str().unwrap();
    let mut command = run(&[program(), "hidden", hidden]);
    let printed = printed(command.env("TMPDIR", folder.path()));
    assert_eq!(printed, lines(&["execve"], "unmanaged"));
}

fn cleared_by_env() {
    let uzswap = env!("CARGO_BIN_EXE_uzswap");
    for inner in [&[][..], &[uzswap, "run", "--limit", "60M", "--"]] {
        for clears in [&["-i"][..], &["-u", "LD_PRELOAD"], &["-u", "UZSWAP_SOCKET"]] {
            let argv = [inner, &["env"], clears, &[program(), "report", "env"]].concat();
            let mut command = run(&argv);
            command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
            let printed = printed(&mut command);
            assert!(printed.starts_with("env 3 arguments: managed"), "{argv:?}: {printed}");
        }
    }
}

/// Python starts programs in other ways: by posix_spawn, by vfork, after a fork.
fn cleared_by_python() {
    const SCRIPT: &str = r#"
import os, subprocess, sys
program = [sys.argv[1], "report", "python"]
for options in [{}, {"close_fds": False}, {"preexec_fn": os.getpid}]:
    subprocess.run(program, env={}, check=True, **options)
os.waitpid(os.posix_spawn(program[0], program, {}), 0)
os.execve(program[0], program, {})
"#;
    let printed = printed(&mut run(&["python3", "-c", SCRIPT, program()]));
    assert_eq!(printed, lines(&["python"; 5], "managed"));
}
