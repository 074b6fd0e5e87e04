//! Finds the commit and the target of the build, which `uzswap --version` prints.

use std::env;
use std::fs;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = env::var("TARGET").expect("cargo sets it");
    println!("cargo::rustc-env=UZSWAP_TARGET={target}");
    // Each commit would build a debug binary, and link all its tests, once more.
    let is_release = env::var("PROFILE").as_deref() == Ok("release");
    let commit = if is_release { packaged_commit().or_else(checked_out_commit) } else { None };
    let commit = commit.unwrap_or_else(|| "no commit".to_owned());
    println!("cargo::rustc-env=UZSWAP_COMMIT={commit}");
}

/// The commit that `cargo package` noted in what it packed.
fn packaged_commit() -> Option<String> {
    let text = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\":")?;
    let commit = rest.trim_start().strip_prefix('"')?.get(..12)?;
    Some(commit.to_owned())
}

/// The commit of the checkout, and whether its files are other ones.
fn checked_out_commit() -> Option<String> {
    // A package that was unpacked inside of somebody's repository is none of its commits.
    fs::metadata("../../.git").ok()?;
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={log}");
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let is_changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if is_changed { commit + ", changed" } else { commit })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
