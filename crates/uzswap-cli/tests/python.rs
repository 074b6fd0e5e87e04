//! Goal: the Python package builds, installs and does what its docs say.
//! Method: builds its wheel with the command of this build and debug code, installs it in a virtual
//! environment below `target/python`, and runs the suite in `python/tests` there. Where
//! UZSWAP_PYTHON_WITH_RAY names an interpreter with ray and polars, it runs the tests of fleets.
//! Blind to: other versions of CPython than the one that is here; a release build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

use uzswap_testing::trials;

/// Packages that the build needs.
const BUILD_NEEDS: [&str; 2] = ["maturin>=1.9,<2", "typing_extensions"];

/// Packages without which some tests are skipped.
const TEST_NEEDS: [&str; 3] = ["mypy", "numpy", "pyarrow"];

/// The modules of the suite.
const SUITES: [&str; 5] = ["test_store", "test_command", "test_files", "test_fleet", "test_docs"];

/// The suite of which parts need Ray and Polars.
const WITH_RAY: &str = "test_fleet";

fn main() -> ExitCode {
    let missing = if is_listing() { None } else { no_environment() };
    trials::run(SUITES.map(|suite| {
        trials::trial(suite, missing.clone(), move || {
            static INSTALLED: OnceLock<()> = OnceLock::new();
            INSTALLED.get_or_init(install);
            let tests = root().join("python/tests");
            let file = format!("{suite}.py");
            let mut python = if suite == WITH_RAY { python_with_ray() } else { python() };
            succeed(python.args(["-m", "unittest", "discover", "-p", &file, "-s"]).arg(tests));
        })
    }))
}

/// Whether the harness only lists the tests: that needs no environment.
fn is_listing() -> bool {
    std::env::args().any(|argument| argument == "--list")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The folder of everything that is built here; later runs find it.
fn folder() -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_uzswap")).ancestors().nth(2).unwrap();
    target.join("python")
}

/// The interpreter of the environment.
fn python() -> Command {
    let mut command = Command::new(folder().join("venv/bin/python"));
    // The package is the installed one, and nothing that is set outside changes it.
    command.args(["-P", "-B"]).env_remove("PYTHONPATH").env_remove("PYTHONHOME");
    command
}

/// The interpreter that the variable names, with the package beside its own; else the usual one,
/// for which the tests that need more are skipped.
fn python_with_ray() -> Command {
    let Some(interpreter) = std::env::var_os("UZSWAP_PYTHON_WITH_RAY") else { return python() };
    let package = folder().join("package");
    let _ = fs::remove_dir_all(&package);
    succeed(pip("install").args(["--no-deps", "--target"]).args([&package, &wheel()]));
    let mut command = Command::new(interpreter);
    command.args(["-P", "-B"]).env("PYTHONPATH", package).env_remove("PYTHONHOME");
    command
}

fn pip(verb: &str) -> Command {
    let mut command = python();
    command.args(["-m", "pip", verb, "--quiet", "--retries=1", "--disable-pip-version-check"]);
    command
}

/// Makes the environment where there is none; why it cannot be made.
fn no_environment() -> Option<String> {
    let mut version = Command::new("python3");
    version.args(["-c", "import sys, ensurepip; assert sys.version_info >= (3, 11), sys.version"]);
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv"]).arg(folder().join("venv"));
    let why = trials::why_fails(&mut version)
        .or_else(|| trials::why_fails(&mut environment))
        .or_else(|| trials::why_fails(pip("install").args(BUILD_NEEDS)));
    if why.is_none() {
        // Tests that miss one of these are skipped.
        for need in TEST_NEEDS {
            trials::why_fails(pip("install").arg(need));
        }
    }
    let last = why?.chars().rev().take(200).collect::<Vec<_>>();
    Some(format!("no CPython 3.11 with maturin: {}", last.iter().rev().collect::<String>()))
}

/// Builds the wheel and installs it.
fn install() {
    let wheels = wheels();
    let _ = fs::remove_dir_all(&wheels);
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", folder().join("venv/bin").display());
    succeed(
        pip("wheel")
            .args(["--no-build-isolation", "--no-deps", "--wheel-dir"])
            .arg(&wheels)
            .arg(root().join("python"))
            .env("PATH", path)
            // Of this build, which has compiled most of what the package needs.
            .env("CARGO_TARGET_DIR", folder().parent().unwrap())
            .env("MATURIN_PEP517_ARGS", "--profile dev")
            .env("UZSWAP_BINARY", env!("CARGO_BIN_EXE_uzswap")),
    );
    succeed(pip("install").args(["--no-deps", "--force-reinstall"]).arg(wheel()));
}

fn wheels() -> PathBuf {
    folder().join("wheels")
}

/// The wheel that was built.
fn wheel() -> PathBuf {
    fs::read_dir(wheels()).unwrap().next().unwrap().unwrap().path()
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|out| String::from_utf8_lossy(&out).into_owned());
    assert!(output.status.success(), "{command:?}:\n{stdout}{stderr}");
}
