//! What the live tests share.

#![allow(dead_code, reason = "each test file takes what it needs of this")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use uzswap::lab::page_set::{About, PageSet};

/// Says that a test could not run here, and why. With `UZSWAP_LIVE=require` that is a failure.
pub(crate) fn skip(name: &str, reason: &str) {
    // Written, not printed: the test harness hides what passing tests print.
    writeln!(std::io::stderr(), "SKIP {name}: {reason}").expect("standard error takes a line");
    let required = std::env::var_os("UZSWAP_LIVE").is_some_and(|value| value == "require");
    assert!(!required, "{name} was skipped and UZSWAP_LIVE=require is set");
}

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

pub(crate) fn capture_to(output: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    command.arg("capture").arg("-o").arg(output);
    command
}

pub(crate) fn expect_error(output: &Output, code: i32, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    for word in words {
        assert!(message.contains(word), "no '{word}' in: {message}");
    }
}

pub(crate) fn expect_success(output: &Output) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {message}", output.status);
}

pub(crate) fn has_note(about: &About, words: &str) -> bool {
    about.notes.iter().any(|note| note.contains(words))
}

pub(crate) fn is_root() -> bool {
    // The owner of /proc/self is who we are.
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").unwrap().uid() == 0
}
