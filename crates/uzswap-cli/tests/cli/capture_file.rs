//! Goal: files become page sets page by page, core dumps by their writable segments. Damaged files
//! and outputs that cannot be written are reported, and leave nothing half done.
//! Method: the real binary on small files made here, a full disk on a small tmpfs.
//! Blind to: core dumps of 32 bits and of other byte orders.

use std::fs;
use std::path::Path;

use crate::support::{Lab, capture_to, expect_error, expect_success, has_note, small_core};
use uzswap::page::PAGE_SIZE;
use uzswap_cli::corpus::sample::SamplePlan;

#[test]
fn a_raw_file_is_cut_into_pages() {
    let lab = Lab::new();
    let raw = lab.path("raw");
    let mut bytes: Vec<u8> = (0..10 * PAGE_SIZE).map(|at| (at / PAGE_SIZE) as u8 + 1).collect();
    bytes.extend([42; 100]);
    fs::write(&raw, &bytes).unwrap();
    let output = lab.capture(&["--from", raw.to_str().unwrap()]);
    expect_success(&output);
    let set = lab.read();
    assert_eq!(set.pages.len(), 11);
    bytes.resize(11 * PAGE_SIZE, 0);
    assert_eq!(set.pages.as_flattened(), bytes);
    assert!(has_note(&set.about, "a last page of 100 bytes was padded"));
    assert_eq!(set.about.ranges.len(), 1);
}

#[test]
fn a_file_of_the_side_files_name_is_not_replaced() {
    let lab = Lab::new();
    let raw = lab.path("raw");
    fs::write(&raw, [1; PAGE_SIZE]).unwrap();
    let raw = raw.to_str().unwrap();
    let others = lab.path("pages.json");
    fs::write(&others, "{\"name\": \"a package\"}").unwrap();
    lab.refused(&["--from", raw], 2, &["pages.json is not the side file", "another name"]);
    assert!(fs::read_to_string(&others).unwrap().contains("a package"));
    fs::remove_file(&others).unwrap();
    // One of ours is.
    expect_success(&lab.capture(&["--from", raw]));
    expect_success(&lab.capture(&["--from", raw]));
}

#[test]
fn an_output_that_ends_in_a_slash_is_told_at_once() {
    let lab = Lab::new();
    let output = capture_to(&lab.path("pages/")).args(["--", "no-such-command"]).output().unwrap();
    expect_error(&output, 2, &["pages/ is a directory"]);
    assert_eq!(lab.files(), [""; 0]);
}

#[test]
fn inputs_that_are_no_files_of_pages_are_told() {
    let lab = Lab::new();
    let empty = lab.path("empty");
    fs::write(&empty, []).unwrap();
    let directory = lab.directory.path().to_str().unwrap();
    lab.refused(&["--from", empty.to_str().unwrap()], 2, &["is empty"]);
    lab.refused(&["--from", directory], 2, &["is a directory"]);
    lab.refused(&["--from", "/dev/zero"], 2, &["device without an end"]);
    lab.refused(&["--from", "/no/such/file"], 2, &["cannot read /no/such/file", "No such file"]);
}

#[test]
fn outputs_that_cannot_be_are_told() {
    let lab = Lab::new();
    let to =
        |output: &Path| capture_to(output).args(["--from", "/proc/self/status"]).output().unwrap();
    expect_error(&to(lab.directory.path()), 2, &["is a directory"]);
    expect_error(&to(Path::new("/dev/null")), 2, &["/dev/null is not a regular file"]);
    expect_error(&to(&lab.path("none/pages")), 2, &["cannot create", "No such file"]);
    fs::create_dir(lab.path("pages.json")).unwrap();
    expect_error(&to(&lab.path("pages")), 2, &["pages.json is a directory"]);
    assert_eq!(lab.files(), ["pages.json"]);
}

#[test]
fn a_core_dump_gives_its_writable_pages() {
    let lab = Lab::new();
    let path = lab.path("core");
    fs::write(&path, small_core()).unwrap();
    expect_success(&lab.capture(&["--from", path.to_str().unwrap()]));
    let set = lab.read();
    assert_eq!(set.pages.iter().map(|page| page[0]).collect::<Vec<_>>(), [1, 2, 4]);
    let ranges: Vec<_> =
        set.about.ranges.iter().map(|range| (range.start, range.pages, &*range.name)).collect();
    assert_eq!(ranges, [(0x60_0000, 2, "anon"), (0x70_0000, 1, "/lib/libx.so")]);
    assert!(set.about.origin.starts_with("core dump"));
}

#[test]
fn damaged_core_dumps_are_told() {
    let lab = Lab::new();
    let path = lab.path("core");
    let core = small_core();
    let refused = |bytes: &[u8], words: &[&str]| {
        fs::write(&path, bytes).unwrap();
        lab.refused(&["--from", path.to_str().unwrap()], 2, words);
    };
    refused(&core[..core.len() - 1], &["truncated", "0x700000", "the file ends at 20479"]);
    refused(&core[..100], &["damaged core dump", "headers"]);
    refused(&core[..40], &["damaged core dump", "headers"]);
    let mut far = core.clone();
    far[64 + 56 + 8..64 + 56 + 16].fill(0xff);
    refused(&far, &["truncated"]);
    let mut no_memory = core.clone();
    for segment in 1..4 {
        no_memory[64 + segment * 56 + 4] = 5;
    }
    refused(&no_memory, &["no segment of writable memory"]);
    // Any other damage: an error or pages, never a crash.
    for at in 0..64 + 4 * 56 {
        let mut damaged = core.clone();
        damaged[at] ^= 0xff;
        fs::write(&path, damaged).unwrap();
        let about =
            uzswap_cli::corpus::capture::capture_file(&path, &lab.path("pages"), SamplePlan::ALL);
        assert!(about.is_ok() || lab.path("core").exists());
    }
}
