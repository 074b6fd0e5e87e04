//! Goal: whatever the threads of a program do with their memory, in whatever order, under
//! `uzswap run` each of its pages, and of its children's, holds what was written last.
//! Method: a program in C, compiled here, draws operations from a seed: advice (also about forks,
//! MADV_FREE), mremap, mprotect, mlock, forks by each way, pages pinned by process_vm_readv,
//! O_DIRECT and io_uring. Shared memory, which `run` leaves alone, has the value of each page.
//! Longer: UZSWAP_FUZZ_RUN_SECONDS, for each setting (2). Others: UZSWAP_FUZZ_RUN_SEED.
//! Blind to: programs of one thread with much memory; see the adversary of the test `run`.

use uzswap_testing::trials;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::SystemTime;

/// One way to run the program.
struct Setting {
    name: &'static str,
    limit_mib: u32,
    threads: u32,
    /// In use at a time. The children, which run beside, need some more.
    mib: u32,
    /// How the pages are kept.
    options: &'static [&'static str],
    /// Cold pages go to a file. Without one, the pool must hold all of them.
    has_file: bool,
}

const fn setting(name: &'static str, limit_mib: u32, threads: u32, mib: u32) -> Setting {
    Setting { name, limit_mib, threads, mib, options: &[], has_file: true }
}

const SETTINGS: [Setting; 6] = [
    Setting { has_file: false, ..setting("one_thread", 20, 1, 24) },
    setting("two_threads", 18, 2, 20),
    setting("three_threads", 26, 3, 24),
    setting("four_threads", 50, 4, 56),
    Setting { has_file: false, options: &["--unit", "16K"], ..setting("units", 20, 1, 24) },
    Setting {
        options: &["--unit", "64K", "--compressor", "zstd:1"],
        ..setting("units_of_three_threads", 26, 3, 24)
    },
];

fn main() -> ExitCode {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("fuzz_run");
    let missing = compile(&program).or_else(|| trials::no_run(env!("CARGO_BIN_EXE_uzswap")));
    trials::run(SETTINGS.map(|setting| {
        let (name, program) = (setting.name, program.clone());
        trials::trial(name, missing.clone(), move || all_pages_are_right(&program, &setting))
    }))
}

/// Why the program cannot be compiled here.
fn compile(program: &Path) -> Option<String> {
    let sources = ["fuzz_run.c", "pinned.c"]
        .map(|name| format!("{}/tests/fuzz_run/{name}", env!("CARGO_MANIFEST_DIR")));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(program);
    trials::why_fails(compiler.args(sources))
}

fn of_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

fn all_pages_are_right(program: &Path, setting: &Setting) {
    let Setting { name, limit_mib, threads, mib, options, has_file } = setting;
    let seconds = of_environment("UZSWAP_FUZZ_RUN_SECONDS").unwrap_or(2);
    let now = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
    let seed = of_environment("UZSWAP_FUZZ_RUN_SEED").unwrap_or_else(now);
    // The program ends one that hangs, after a minute.
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", &(seconds + 200).to_string(), env!("CARGO_BIN_EXE_uzswap")]);
    command.args(["run", "--limit", &format!("{limit_mib}M")]).args(*options);
    if *has_file {
        command.arg("--backing").arg(program.with_file_name(name));
    }
    command.arg("--").arg(program);
    command
        .args([seed, seconds, (*threads).into(), (*mib).into()].map(|number| number.to_string()));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "UZSWAP_FUZZ_RUN_SEED={seed}: {}\n{said}", output.status);
    assert!(!said.contains(" 0 pages stored"), "{said}");
    assert!(printed.contains(" pages checked"), "{printed}");
}
