//! Goal: the README and the docs work for a reader who does as they say, and nothing else.
//! Method: each Rust program is built in a package of its own, outside the workspace, with the
//! features that `cargo add` of its page has. Each block of shell lines runs in a folder with the
//! files that its page names. A comment `<!-- not run: REASON -->` before a block exempts it.
//! Blind to: what the programs of shell blocks print; blocks of dated experiments.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use libtest_mimic::Trial;
use tempfile::TempDir;
use uzswap_testing::trials;

/// The command by which a reader adds the store.
const ADD: &str = "cargo add uzswap";

/// The start of the comment that exempts a block; its reason follows.
const NOT_RUN: &str = "<!-- not run: ";

/// A stand-in for the reader's own job: a heap that shrinks, for a moment.
const JOB: &str = "rows = [b'%09d,' % i * 100 for i in range(20000)]\nprint(len(rows))\n";

/// A fenced block of a page.
#[derive(Debug, Clone, PartialEq)]
struct Block {
    /// Its first line, which has the fence.
    line: usize,
    /// `rust,no_run`, `sh`, or nothing.
    kind: String,
    text: String,
    /// The line of words before it.
    before: String,
}

impl Block {
    fn is(&self, language: &str) -> bool {
        self.kind.split(',').next() == Some(language)
    }

    /// Why it is exempt.
    fn exemption(&self) -> Option<&str> {
        self.before.strip_prefix(NOT_RUN)?.strip_suffix(" -->")
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The pages of users, by their paths from the root.
fn pages() -> Vec<String> {
    let mut pages: Vec<String> =
        ["README.md", "crates/uzswap/README.md", "crates/uzswap-cli/README.md"]
            .map(str::to_owned)
            .into();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "md") {
                let path = path.strip_prefix(root()).unwrap();
                pages.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    pages.sort();
    pages
}

fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut open, mut before) = (Vec::new(), None::<Block>, String::new());
    for (at, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(kind), None) => {
                let (kind, before) = (kind.to_owned(), std::mem::take(&mut before));
                open = Some(Block { line: at + 1, kind, text: String::new(), before });
            }
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.text += line;
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) if !line.trim().is_empty() => line.clone_into(&mut before),
            (None, None) => {}
        }
    }
    assert_eq!(open, None, "a block has no end");
    blocks
}

/// The features that the commands of a page add, up to a block.
fn features(blocks: &[Block]) -> Vec<String> {
    let lines = blocks.iter().filter(|block| block.is("sh")).flat_map(|block| block.text.lines());
    let lists = lines.filter_map(|line| line.strip_prefix(ADD)?.trim().strip_prefix("--features"));
    lists.flat_map(|list| list.trim().split(',')).map(str::to_owned).collect()
}

/// Builds a program as its reader does, and runs it if it may. The name of its package is its own:
/// cargo takes packages of one name in one target folder for the same.
fn build(name: &str, program: &str, features: &[String], is_run: bool) {
    let package = TempDir::new().unwrap();
    let file = |name: &str, text: &str| fs::write(package.path().join(name), text).unwrap();
    fs::create_dir(package.path().join("src")).unwrap();
    file("src/main.rs", program);
    file(
        "Cargo.toml",
        &format!(
            "[package]\nname = {name:?}\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
             uzswap = {{ path = {:?}, features = {features:?} }}\n",
            root().join("crates/uzswap")
        ),
    );
    // The versions that are there.
    fs::copy(root().join("Cargo.lock"), package.path().join("Cargo.lock")).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([if is_run { "run" } else { "build" }, "--quiet", "--offline"]);
    cargo.arg("--target-dir").arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("docs"));
    let output = cargo.current_dir(&package).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A folder with the files that pages name, and `sudo` for a root who needs none.
fn reader_folder(blocks: &[Block]) -> TempDir {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    file("job.py", JOB);
    file("small.py", JOB);
    let sizes = (0..20_000).map(|number| format!("{}\n", 500 + number * 7919 % 3000));
    file("sizes.txt", &sizes.collect::<String>());
    // Programs of the page itself, by the name in the words before.
    for block in blocks.iter().filter(|block| block.is("python") && block.exemption().is_none()) {
        let name = block.before.split('`').find(|word| word.ends_with(".py"));
        file(name.unwrap_or_else(|| panic!("line {}: no `NAME.py`", block.line)), &block.text);
    }
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("sudo"), "#!/bin/sh\nexec \"$@\"\n").unwrap();
    fs::set_permissions(bin.join("sudo"), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Runs the blocks of a page one after the other.
fn run(page: &str, blocks: &[Block]) {
    let folder = reader_folder(blocks);
    let own = Path::new(env!("CARGO_BIN_EXE_uzswap")).parent().unwrap();
    let old = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}/bin:{}:{old}", folder.path().display(), own.display());
    for block in blocks.iter().filter(|block| is_to_run(block)) {
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &block.text]).env("PATH", &path).current_dir(&folder);
        shell.env("XDG_STATE_HOME", folder.path().join("state")); // a salt of its own
        let output = shell.stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{page}:{}: {}\n{errors}", block.line, output.status);
    }
}

/// Whether a block is run: not if it is exempt, or if the programs of its page are built with it.
fn is_to_run(block: &Block) -> bool {
    let is_addition = block.text.lines().all(|line| line.starts_with(ADD));
    block.is("sh") && block.exemption().is_none() && !is_addition
}

/// Why no shell block can be run.
fn no_shell() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("pages have sudo, and this is not root".to_owned());
    }
    let is_there = |name: &str| Command::new(name).arg("--version").output().is_ok();
    if !is_there("python3") {
        return Some("python3 is not installed".to_owned());
    }
    let doctor = Command::new(env!("CARGO_BIN_EXE_uzswap")).arg("doctor").output().unwrap();
    (!doctor.status.success()).then(|| "uzswap run does not work here".to_owned())
}

/// Each way to read a page, with a planted one.
fn extraction() {
    let page = "# Page\n\n```sh\ncargo add uzswap\n```\n\nSave it as `a.py`:\n\n```python\nx\n```\n\
                \n<!-- not run: needs a farm -->\n```sh\ncargo add uzswap --features a,b\nmoo\n\
                ```\n";
    let found = blocks(page);
    assert_eq!(found.iter().map(|block| block.line).collect::<Vec<_>>(), [3, 9, 14]);
    assert_eq!((&*found[1].kind, &*found[1].text), ("python", "x\n"));
    assert_eq!(found[1].before, "Save it as `a.py`:");
    assert_eq!(found[2].exemption(), Some("needs a farm"));
    assert!(!is_to_run(&found[0]) && !is_to_run(&found[2]));
    assert_eq!(features(&found[..2]), [""; 0]);
    assert_eq!(features(&found), ["a", "b"]);
}

fn main() -> ExitCode {
    let mut all: Vec<Trial> = vec![trials::trial("blocks_are_found", None, extraction)];
    let missing = no_shell();
    for page in pages() {
        let blocks = blocks(&fs::read_to_string(root().join(&page)).unwrap());
        for (at, block) in blocks.iter().enumerate().filter(|(_, block)| block.is("rust")) {
            let (text, features) = (block.text.clone(), features(&blocks[..at]));
            let is_run = block.kind == "rust";
            let title = format!("program {page}:{}", block.line);
            let name = title.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
            all.push(trials::trial(title, None, move || build(&name, &text, &features, is_run)));
        }
        let is_dated = page.starts_with("docs/experiments/");
        if !is_dated && blocks.iter().any(is_to_run) {
            let name = format!("shell {page}");
            all.push(trials::trial(name, missing.clone(), move || run(&page, &blocks)));
        }
    }
    trials::run(all)
}
