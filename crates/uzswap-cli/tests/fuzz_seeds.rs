//! Goal: what coverage-guided fuzzing has found once stays found.
//! Method: each target of `fuzz/` on each input that is kept in `fuzz/seeds`.
//! Blind to: what is in none of them; `fuzz/run.sh` looks for that.

use uzswap_testing::fuzz;
mod fuzz_targets;

use std::fs;
use std::path::{Path, PathBuf};

use fuzz_targets::TARGETS;

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_target_takes_its_seeds() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    for (name, check) in TARGETS {
        let files = files(&seeds.join(name));
        assert!(!files.is_empty(), "{name} has no seeds");
        for path in files {
            println!("{}", path.display()); // that of the last line, where it panics
            check(&fs::read(&path).unwrap());
        }
    }
}

#[test]
fn every_target_has_a_program() {
    let programs = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets"));
    let names: Vec<&str> =
        programs.iter().map(|path| path.file_stem().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, TARGETS.map(|(name, _)| name));
}
