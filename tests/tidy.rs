//! Goal: the house rules that no compiler checks.
//! Method: reads the sources as text.

use std::fs;
use std::path::{Path, PathBuf};

/// The layers, and what each may name of ours beside itself. The picture is in ARCHITECTURE.md.
const LAYERS: [(&str, &[&str]); 19] = [
    ("sys", &[]),
    ("names", &[]),
    ("page", &[]),
    ("files", &[]),
    ("budget", &["names"]),
    ("table", &["budget"]),
    ("same_filled", BASE),
    ("doctor", &["sys"]),
    ("compressor", BASE),
    ("backing", &["sys", "names", "page", "files"]),
    ("trace", &["page", "same_filled", "files"]),
    ("zpool", MECHANISM),
    ("index", MECHANISM),
    ("zswap", STORE),
    ("kernel_swap", &["sys", "files", "names"]),
    ("lab", LAB),
    ("pager", PAGER),
    ("cli", CLI),
    ("main", &["cli"]),
];

const BASE: &[&str] = &["sys", "names", "page"];
const MECHANISM: &[&str] = &["sys", "names", "page", "budget", "table"];
#[rustfmt::skip]
const STORE: &[&str] = &[
    "names", "page", "files", "budget", "table", "same_filled", "compressor", "backing", "zpool",
    "index",
];
#[rustfmt::skip]
const LAB: &[&str] = &[
    "sys", "names", "page", "files", "budget", "same_filled", "compressor", "backing", "zpool",
    "index", "zswap", "trace", "pager", "kernel_swap",
];
const PAGER: &[&str] = &["sys", "page", "backing", "doctor", "zswap", "trace"];
#[rustfmt::skip]
const CLI: &[&str] = &[
    "sys", "names", "page", "files", "budget", "same_filled", "compressor", "backing", "zpool",
    "index", "zswap", "lab", "doctor", "pager", "trace", "kernel_swap",
];

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty());
    found
}

fn layer_of(path: &Path) -> String {
    let inside = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

#[test]
fn layers_name_only_what_is_below_them() {
    let mut wrong = Vec::new();
    for (path, text) in sources("src") {
        let layer = layer_of(&path);
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
            assert_eq!(layer, "lib", "{} is in no layer", path.display());
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            for used in line.split("crate::").skip(1) {
                let used: String =
                    used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let known = LAYERS.iter().any(|(name, _)| *name == used);
                if known && used != layer && !allowed.contains(&used.as_str()) {
                    wrong.push(format!("{}:{}: {layer} names {used}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_is_in_sys_alone() {
    for (path, text) in sources("src") {
        let smuggled = text.contains("allow(unsafe_code") || text.contains("expect(unsafe_code");
        assert!(
            !smuggled || path.ends_with("src/sys/mod.rs"),
            "{} allows unsafe code; it belongs in src/sys",
            path.display()
        );
    }
}

#[test]
fn sources_are_ascii_and_fit_the_line() {
    for (path, text) in ["src", "tests", "benches", "examples"].into_iter().flat_map(sources) {
        assert!(text.starts_with("//!"), "{} starts without a module doc", path.display());
        for (number, line) in text.lines().enumerate() {
            let place = format!("{}:{}", path.display(), number + 1);
            assert!(line.is_ascii(), "{place}: not ASCII");
            assert!(line.len() <= 100 || line.contains("http"), "{place}: over 100 columns");
        }
    }
}
