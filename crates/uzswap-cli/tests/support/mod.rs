//! Helpers that the tests of the command share.

#![allow(dead_code, reason = "each test file takes what it needs of this")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use uzswap::page::PAGE_SIZE;
use uzswap_cli::corpus::page_set::{About, PageSet};

/// A directory to capture into.
pub(crate) struct Lab {
    pub(crate) directory: TempDir,
}

impl Lab {
    pub(crate) fn new() -> Lab {
        Lab { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `uzswap capture -o pages` with `arguments`.
    pub(crate) fn capture(&self, arguments: &[&str]) -> Output {
        capture_to(&self.path("pages")).args(arguments).output().unwrap()
    }

    pub(crate) fn read(&self) -> PageSet {
        PageSet::read(&self.path("pages")).unwrap()
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Captures, expects this exit code and these words on standard error, and nothing left behind.
    pub(crate) fn refused(&self, arguments: &[&str], code: i32, words: &[&str]) {
        let before = self.files();
        let output = self.capture(arguments);
        expect_error(&output, code, words);
        assert_eq!(self.files(), before, "{arguments:?} left something behind");
    }
}

/// Runs the binary to its end.
pub(crate) fn uzswap(arguments: &[impl AsRef<OsStr>]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    command.args(arguments).stdin(Stdio::null()).output().expect("the binary starts")
}

pub(crate) fn capture_to(output: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    command.arg("capture").arg("-o").arg(output);
    command
}

#[track_caller]
pub(crate) fn expect_error(output: &Output, code: i32, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    for word in words {
        assert!(message.contains(word), "no '{word}' in: {message}");
    }
}

#[track_caller]
pub(crate) fn expect_success(output: &Output) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {message}", output.status);
}

/// Standard output of a run that must end well.
#[track_caller]
pub(crate) fn stdout_of_success(output: Output) -> String {
    expect_success(&output);
    String::from_utf8(output.stdout).expect("output is text")
}

/// Standard output of a run that must end well and write nothing to standard error.
#[track_caller]
pub(crate) fn stdout_alone(output: Output) -> String {
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{}", output.status);
    stdout_of_success(output)
}

/// A path of these tests, as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

pub(crate) fn has_note(about: &About, words: &str) -> bool {
    about.notes.iter().any(|note| note.contains(words))
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn send(signal: &str, pid: u32) {
    let sent = Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

/// A number of seconds for `sleep` that no other test run on this machine has.
pub(crate) fn odd_seconds(test: u32) -> String {
    format!("3{test}.{}", std::process::id())
}

/// Whether a `sleep` of that many seconds runs.
pub(crate) fn is_running(seconds: &str) -> bool {
    fs::read_dir("/proc").unwrap().filter_map(Result::ok).any(|entry| {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut arguments = arguments.split(|byte| *byte == 0);
        arguments.next() == Some(b"sleep") && arguments.next() == Some(seconds.as_bytes())
    })
}

pub(crate) fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A core dump of 64 bits: a NT_FILE note, a writable segment of two pages, a read-only one, and a
/// writable one of a mapped file.
pub(crate) fn small_core() -> Vec<u8> {
    const HEADERS: usize = 64 + 4 * 56;
    let mut note = Vec::new();
    let words: [u64; 5] = [1, 4096, 0x70_0000, 0x70_1000, 0];
    let description_bytes = words.len() * 8 + "/lib/libx.so\0".len();
    for word in [5, description_bytes as u32, 0x4649_4c45] {
        note.extend(word.to_le_bytes());
    }
    note.extend(b"CORE\0\0\0\0");
    note.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    note.extend(b"/lib/libx.so\0\0\0\0");

    let page = PAGE_SIZE as u64;
    let mut core = Vec::new();
    core.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    for half in [4_u16, 62] {
        core.extend(half.to_le_bytes()); // ET_CORE, x86-64
    }
    core.extend(1_u32.to_le_bytes());
    for word in [0_u64, 64, 0] {
        core.extend(word.to_le_bytes()); // entry, program headers, section headers
    }
    core.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 4, 0, 0, 0] {
        core.extend(half.to_le_bytes());
    }
    let mut segment = |kind: u32, flags: u32, offset: u64, address: u64, bytes: u64, align: u64| {
        core.extend(kind.to_le_bytes());
        core.extend(flags.to_le_bytes());
        for word in [offset, address, 0, bytes, bytes, align] {
            core.extend(word.to_le_bytes());
        }
    };
    segment(4, 0, HEADERS as u64, 0, note.len() as u64, 4); // PT_NOTE
    segment(1, 6, page, 0x60_0000, 2 * page, page); // PT_LOAD, read and write
    segment(1, 5, 3 * page, 0x40_0000, page, page); // read and execute
    segment(1, 6, 4 * page, 0x70_0000, page, page);
    core.extend(note);
    core.resize(PAGE_SIZE, 0);
    for fill in 1..=4 {
        core.extend([fill; PAGE_SIZE]);
    }
    core
}
