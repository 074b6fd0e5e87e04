//! Goal: the house rules that no compiler checks.
//! Method: reads the sources as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers, and what each may name of ours beside itself. The picture is in ARCHITECTURE.md.
const LAYERS: &[(&str, &[&str])] = &[
    ("sys", &[]),
    ("preload", &[]),
    ("audit", &[]),
    ("by_name", CHOICES),
    ("options", &[]),
    ("random", &[]),
    ("named_enum", &[]),
    ("page", &[]),
    ("files", &[]),
    ("budget", &["named_enum"]),
    ("budgeted_vec", &["budget"]),
    ("same_filled", BASE),
    ("doctor", &["sys"]),
    ("compressor", BASE),
    ("backing", &["sys", "options", "named_enum", "page", "files"]),
    ("sealed", &[]),
    ("trace", &["page", "same_filled", "files", "random", "sealed"]),
    ("zpool", MECHANISM),
    ("index", MECHANISM),
    ("zswap", STORE),
    ("values", &["page", "random", "compressor", "index", "zswap"]),
    ("c", &["options", "page", "backing", "values", "zswap"]),
    ("kernel_swap", &["sys", "named_enum"]),
    ("fleet", &["named_enum", "random", "page", "zpool"]),
    ("human_size", &[]),
    ("corpus", CORPUS),
    ("measure", MEASURE),
    ("sampler", SAMPLER),
    ("report", REPORT),
    ("advise", ADVISE),
    ("html", HTML),
    ("pager", PAGER),
    ("cli", CLI),
    ("main", &["cli"]),
    ("torture", TORTURE),
];

const BASE: &[&str] = &["sys", "named_enum", "page", "random"];
#[rustfmt::skip]
const CHOICES: &[&str] = &[
    "backing", "budget", "compressor", "index", "same_filled", "zpool", "zswap",
];
const MECHANISM: &[&str] =
    &["sys", "options", "named_enum", "page", "random", "budget", "budgeted_vec"];
#[rustfmt::skip]
const STORE: &[&str] = &[
    "options", "named_enum", "page", "files", "budget", "budgeted_vec", "same_filled", "compressor",
    "backing", "zpool", "index", "random", "sealed",
];
#[rustfmt::skip]
const CORPUS: &[&str] = &[
    "sys", "random", "page", "files", "same_filled", "compressor", "zpool", "pager",
    "human_size",
];
#[rustfmt::skip]
const MEASURE: &[&str] = &[
    "sys", "by_name", "random", "named_enum", "page", "budget", "same_filled", "compressor",
    "backing", "trace", "zpool", "index", "zswap", "kernel_swap", "pager", "human_size",
    "corpus",
];
const SAMPLER: &[&str] =
    &["sys", "page", "files", "same_filled", "compressor", "corpus", "measure", "fleet"];
#[rustfmt::skip]
const REPORT: &[&str] = &[
    "sys", "by_name", "named_enum", "page", "zpool", "index", "zswap", "pager", "human_size",
    "corpus", "measure",
];
#[rustfmt::skip]
const ADVISE: &[&str] = &[
    "by_name", "random", "named_enum", "page", "zpool", "pager", "human_size", "corpus", "measure",
    "report",
];
#[rustfmt::skip]
const HTML: &[&str] = &[
    "sys", "page", "index", "zswap", "pager", "human_size", "measure", "report", "advise",
];
const PAGER: &[&str] = &["sys", "preload", "page", "random", "backing", "doctor", "zswap", "trace"];
#[rustfmt::skip]
const CLI: &[&str] = &[
    "sys", "named_enum", "page", "files", "budget", "same_filled", "compressor", "backing",
    "zpool", "index", "zswap", "human_size", "corpus", "measure", "report", "advise", "html",
    "doctor", "pager", "trace", "kernel_swap", "random", "sampler", "fleet",
];

#[rustfmt::skip]
const TORTURE: &[&str] = &[
    "named_enum", "page", "budget", "same_filled", "compressor", "backing", "zpool", "index",
    "zswap", "random", "cli",
];

/// Folders of the packages.
const PACKAGES: &[&str] = &[
    "crates/uzswap-sys",
    "crates/uzswap",
    "crates/uzswap-c",
    "crates/uzswap-preload",
    "crates/uzswap-pager",
    "crates/uzswap-kernel-swap",
    "crates/uzswap-fleet",
    "crates/uzswap-cli",
    "crates/uzswap-torture",
    "crates/uzswap-testing",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Sources below a folder of the workspace, by their path from it.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(root()).unwrap().to_owned(), text));
            }
        }
    }
    assert!(!found.is_empty());
    found
}

/// The layer of a source: its package, or the first name below that one's `src`.
fn layer_of(path: &Path) -> String {
    let mut parts = path.iter().skip(1).map(|part| part.to_string_lossy());
    let package = parts.next().unwrap().into_owned();
    let inside = parts.nth(1).unwrap();
    let module = inside.strip_suffix(".rs").unwrap_or(&inside);
    match (&*package, module) {
        ("uzswap-sys", _) => "sys".to_owned(),
        ("uzswap-preload", _) => "preload".to_owned(),
        ("uzswap-c", _) => "c".to_owned(),
        ("uzswap-pager", "doctor") => "doctor".to_owned(),
        ("uzswap-pager", _) => "pager".to_owned(),
        ("uzswap-kernel-swap", _) => "kernel_swap".to_owned(),
        ("uzswap-fleet", _) => "fleet".to_owned(),
        ("uzswap-torture", _) => "torture".to_owned(),
        _ => module.to_owned(),
    }
}

/// Layers that a line names: modules of its own package, and of the others.
fn used_in<'a>(line: &'a str, own: &str) -> Vec<&'a str> {
    let mut used = Vec::new();
    let named = |rest: &'a str| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    };
    for (prefix, layer) in [
        ("crate::", None),
        ("uzswap::", None),
        ("uzswap_sys", Some("sys")),
        ("uzswap_preload", Some("preload")),
        ("uzswap_c::", Some("c")),
        ("uzswap_pager::doctor", Some("doctor")),
        ("uzswap_pager", Some("pager")),
        ("uzswap_kernel_swap", Some("kernel_swap")),
        ("uzswap_fleet", Some("fleet")),
        ("uzswap_cli", Some("cli")),
        ("uzswap_torture", Some("torture")),
    ] {
        // In the pager, `crate::` is the pager's own, but for the doctor.
        let inside = own == "pager" && prefix == "crate::";
        let rests = line.split(prefix).skip(1);
        used.extend(
            rests
                .map(|rest| layer.unwrap_or(named(rest)))
                .filter(|layer| !inside || *layer == "doctor"),
        );
    }
    used
}

#[test]
fn layers_name_what_is_below_them() {
    let mut wrong = Vec::new();
    let layered = PACKAGES.iter().filter(|package| !package.ends_with("testing"));
    for (path, text) in layered.flat_map(|package| sources(&format!("{package}/src"))) {
        let layer = layer_of(&path);
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
            assert_eq!(layer, "lib", "{} is in no layer", path.display());
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            for used in used_in(line, &layer) {
                let known = LAYERS.iter().any(|(name, _)| *name == used);
                if known && used != layer && !allowed.contains(&used) {
                    wrong.push(format!("{}:{}: {layer} names {used}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Modules of one folder, and which of the others each names.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The first name of a path, or of each path of a list in braces.
fn first_names(paths: &str) -> Vec<&str> {
    let first = |path: &str| {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        path.find(|c| !is_name(c)).unwrap_or(path.len())
    };
    let Some(list) = paths.strip_prefix('{') else { return vec![&paths[..first(paths)]] };
    let (mut names, mut depth, mut begins) = (Vec::new(), 0, true);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            c if begins && !c.is_whitespace() => {
                names.push(&list[at..at + first(&list[at..])]);
                begins = false;
            }
            _ => {}
        }
    }
    names
}

/// The names that follow `crate::` and the path of a folder, or `super::` as often as a module is
/// below that folder. Comments and tests do not count.
fn names_in(text: &str, folder: &[String], depth: usize) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(line));
    let code = code.collect::<Vec<&str>>().join("\n");
    let absolute = folder.iter().fold("crate::".to_owned(), |path, part| path + part + "::");
    let mut names = BTreeSet::new();
    for prefix in [absolute, "super::".repeat(depth)] {
        for (at, _) in code.match_indices(&prefix) {
            if !code[..at].ends_with(':') {
                let found = first_names(&code[at + prefix.len()..]);
                names.extend(found.into_iter().map(str::to_owned));
            }
        }
    }
    names
}

/// The modules that are part of a circle, or between two, and which of these each names.
fn circles(mut graph: Graph) -> Graph {
    loop {
        let before = graph.clone();
        let named: BTreeSet<String> = graph.values().flatten().cloned().collect();
        graph.retain(|module, names| {
            names.retain(|name| before.contains_key(name));
            named.contains(module) && !names.is_empty()
        });
        if graph == before {
            return graph;
        }
    }
}

#[test]
fn modules_of_a_folder_name_each_other_in_no_circle() {
    let mut wrong = Vec::new();
    for package in PACKAGES {
        let mut folders: BTreeMap<Vec<String>, Graph> = BTreeMap::new();
        for (path, text) in sources(&format!("{package}/src")) {
            let parts = path.with_extension("");
            let parts = parts.iter().skip(3).map(|part| part.to_string_lossy().into_owned());
            let module: Vec<String> =
                parts.filter(|part| !["lib", "main", "mod"].contains(&part.as_str())).collect();
            for (depth, own) in (0..module.len()).map(|at| (module.len() - at, &module[at])) {
                let folder = &module[..module.len() - depth];
                let names = folders.entry(folder.to_vec()).or_default();
                let mut found = names_in(&text, folder, depth);
                found.remove(own);
                names.entry(own.clone()).or_default().extend(found);
            }
        }
        for (folder, graph) in folders {
            for (module, names) in circles(graph) {
                wrong.push(format!("{package}/src/{}: {module} names {names:?}", folder.join("/")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A question changes nothing: functions that act are named by a verb.
#[test]
fn questions_borrow_what_they_ask_as_shared() {
    const QUESTIONS: [&str; 5] = ["is", "has", "was", "may", "will"];
    let mut wrong = Vec::new();
    for (path, text) in sources("crates") {
        for (before, after) in text.match_indices("fn ").map(|(at, _)| text.split_at(at + 3)) {
            let name = after.split(['(', '<']).next().unwrap_or_default();
            let is_question =
                name.split_once('_').is_some_and(|(first, _)| QUESTIONS.contains(&first));
            let receiver = after.split_once('(').map_or("", |(_, rest)| rest.trim_start());
            if is_question && receiver.starts_with("&mut self") {
                let line = before.lines().count();
                wrong.push(format!("{}:{line}: {name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "a question that takes &mut self:\n{}", wrong.join("\n"));
}

/// Functions or structs of a source, by their keyword: the name, and the lines to the last brace.
fn items<'a>(lines: &'a [&'a str], keyword: &str) -> Vec<(&'a str, &'a [&'a str])> {
    let is_modifier = |word: &str| word == "const" || word.starts_with("pub");
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some((before, after)) = line.split_once(keyword) else { continue };
        let indent = line.len() - line.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let head = lines[at..].iter().position(|line| line.ends_with([';', '{', '}']));
        let head = head.map_or(at, |lines| at + lines);
        if before.split_whitespace().all(is_modifier) && lines[head].ends_with('{') {
            let length = lines[at..].iter().position(|line| *line == end).unwrap() + 1;
            found.push((first_names(after)[0], &lines[at..at + length]));
        }
    }
    found
}

/// A reader has an overview of one page of a function, and of few fields.
#[test]
fn files_functions_and_structs_of_the_pager_are_small() {
    const LINES_MAX: usize = 500;
    const FUNCTION_MAX: usize = 70;
    const FIELDS_MAX: usize = 15;
    // Reports that are printed: a field for each figure.
    const REPORTS: [&str; 2] = ["RunReport", "RunStatus"];
    let mut wrong = Vec::new();
    for (path, text) in sources("crates/uzswap-pager/src") {
        let lines: Vec<&str> = text.lines().collect();
        let mut check = |name: &str, count: usize, most: usize| {
            if count > most {
                wrong.push(format!("{}: {name} has {count}, at most {most}", path.display()));
            }
        };
        check("lines: the file", lines.len(), LINES_MAX);
        for (name, function) in items(&lines, "fn ") {
            check(&format!("lines: {name}"), function.len(), FUNCTION_MAX);
        }
        for (name, fields) in items(&lines, "struct ") {
            let names = fields[1..].iter().filter_map(|field| field.trim().split_once(": "));
            let fields = names.filter(|(name, _)| !name.starts_with(['/', '#'])).count();
            let is_report = REPORTS.contains(&name);
            check(&format!("fields: {name}"), if is_report { 0 } else { fields }, FIELDS_MAX);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Names in a source, without comments and strings.
fn identifiers(text: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(line));
    // Every second part of a line is in quotes, but for quotes in quotes.
    code.flat_map(|line| line.split('"').step_by(2))
        .flat_map(|part| part.split(move |c| !is_name(c)))
        .collect()
}

/// The words of a name, in small letters: split at `_`, and at capitals in names of types.
fn words(name: &str) -> Vec<String> {
    let is_constant = !name.contains(|c: char| c.is_ascii_lowercase());
    let mut spaced = String::new();
    for c in name.chars() {
        let is_border = c == '_' || c.is_ascii_uppercase() && !is_constant;
        spaced.extend(is_border.then_some(' '));
        spaced.extend((c != '_').then_some(c.to_ascii_lowercase()));
    }
    spaced.split(' ').map(str::to_owned).collect()
}

#[test]
fn names_of_the_pager_have_no_word_that_its_glossary_replaces() {
    let glossary = fs::read_to_string(root().join("crates/uzswap-pager/GLOSSARY.md")).unwrap();
    let cells = glossary.lines().filter_map(|line| line.split('|').nth(3));
    let mut replaced: BTreeSet<&str> = cells.flat_map(|cell| cell.split([',', ' '])).collect();
    replaced.remove("");
    assert!(replaced.contains("told") && replaced.contains("aside"), "{replaced:?}");
    let mut wrong = Vec::new();
    for (path, text) in sources("crates/uzswap-pager/src") {
        for name in identifiers(&text) {
            let words = words(name);
            let replaced = words.iter().filter(|word| replaced.contains(word.as_str()));
            wrong.extend(replaced.map(|word| format!("{}: {name}: {word}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "words that GLOSSARY.md replaces:\n{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_is_in_three_packages_alone() {
    for (path, text) in PACKAGES.iter().flat_map(|package| sources(&format!("{package}/src"))) {
        let is_allowed = text.contains("allow(unsafe_code") || text.contains("expect(unsafe_code");
        let fences = ["uzswap-sys", "uzswap-preload", "uzswap-c"]
            .map(|package| format!("crates/{package}/src/lib.rs"));
        assert!(
            !is_allowed || fences.iter().any(|fence| path == Path::new(fence)),
            "{} allows unsafe code; it belongs in uzswap-sys",
            path.display()
        );
    }
    for (path, text) in sources("crates/uzswap-c/src") {
        assert!(
            !text.contains("unsafe {") || path.ends_with("boundary.rs"),
            "{} has an unsafe block; it belongs in boundary.rs",
            path.display()
        );
    }
}

#[test]
fn sources_are_ascii_and_fit_the_line() {
    for (path, text) in sources("crates") {
        let is_described = text.starts_with("//!") || text.starts_with("#![doc = include_str!");
        assert!(is_described, "{} starts without a module doc", path.display());
        for (number, line) in text.lines().enumerate() {
            let place = format!("{}:{}", path.display(), number + 1);
            assert!(line.is_ascii(), "{place}: not ASCII");
            assert!(line.len() <= 100 || line.contains("http"), "{place}: over 100 columns");
        }
    }
}

/// A bug that cannot be planted any more proves nothing: each patch must find its lines.
#[test]
fn planted_bugs_still_apply() {
    let mut stale = Vec::new();
    let mut hunks = 0;
    for entry in fs::read_dir(root().join("tests/planted")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "patch") {
            continue;
        }
        let patch = fs::read_to_string(&path).unwrap();
        let mut source = String::new();
        // Each part begins with the head of a hunk, or with the names of a file.
        for part in patch.split("\n@@ ") {
            let mut lines = part.lines();
            let head = lines.next().unwrap_or_default();
            if head.contains(" @@") {
                let old: Vec<&str> = lines
                    .take_while(|line| !line.starts_with("--- "))
                    .filter(|line| !line.starts_with('+'))
                    .map(|line| line.get(1..).unwrap_or_default())
                    .collect();
                hunks += 1;
                if !source.contains(&old.join("\n")) {
                    stale.push(format!("{}: {head}", path.display()));
                }
            }
            if let Some(name) = part.lines().find_map(|line| line.strip_prefix("--- a/")) {
                source = fs::read_to_string(root().join(name)).unwrap_or_default();
            }
        }
    }
    assert!(hunks > 30, "{hunks}");
    assert!(stale.is_empty(), "{}", stale.join("\n"));
}
