//! Trials that cannot run everywhere: they are counted as ignored, with the reason.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

/// A test, or why it cannot run here. With UZSWAP_LIVE=require it is run all the same, and fails.
pub fn trial(
    name: impl Into<String>,
    missing: Option<String>,
    test: impl FnOnce() + Send + 'static,
) -> Trial {
    let is_required = std::env::var_os("UZSWAP_LIVE").is_some_and(|value| value == "require");
    let trial = Trial::test(name, move || {
        test();
        Ok(())
    });
    match missing {
        Some(reason) => trial.with_kind(reason).with_ignored_flag(!is_required),
        None => trial,
    }
}

/// Runs those that the command line asks for.
pub fn run(trials: impl IntoIterator<Item = Trial>) -> ExitCode {
    run_with(Arguments::from_args(), trials)
}

/// The same for tests that wait most of their time: four for each processor at a time.
pub fn run_those_that_wait(trials: impl IntoIterator<Item = Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(4 * processors);
    run_with(arguments, trials)
}

fn run_with(arguments: Arguments, trials: impl IntoIterator<Item = Trial>) -> ExitCode {
    libtest_mimic::run(&arguments, trials.into_iter().collect()).exit_code()
}

/// Why a command fails that a test needs; `None` where it ends well.
pub fn why_fails(command: &mut Command) -> Option<String> {
    match command.output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ")),
        Err(error) => Some(format!("{}: {error}", command.get_program().to_string_lossy())),
    }
}

/// Why `run` of this binary of `uzswap` manages no program here.
pub fn no_run(uzswap: &str) -> Option<String> {
    let mut run = Command::new("timeout");
    run.args(["-s", "KILL", "120", uzswap, "run", "--limit", "64M", "--", "true"]);
    why_fails(&mut run).or_else(|| {
        let told = String::from_utf8_lossy(&run.output().ok()?.stderr).into_owned();
        told.contains("is unmanaged").then_some(told)
    })
}

/// Why a test that needs root cannot run.
pub fn not_root() -> Option<String> {
    // The owner of /proc/self is who we are.
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    (!is_root).then(|| "only root may".to_owned())
}

/// Why a program cannot be run here.
pub fn not_installed(program: &str) -> Option<String> {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let is_there = found.is_ok_and(|output| output.status.success());
    (!is_there).then(|| format!("{program} is not installed"))
}

/// Why a signal reaches nothing that is started here: it is ignored, as SIGINT is in the background
/// of a script, and SIGHUP under nohup.
pub fn no_signal(signal: i32) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let is_ignored = u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << (signal - 1) != 0;
    is_ignored.then(|| format!("signal {signal} is ignored here"))
}
