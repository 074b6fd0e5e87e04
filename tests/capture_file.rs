//! Goal: files become page sets page by page, core dumps by what the process could write to;
//! damaged ones and outputs that cannot be written are told, and leave nothing half done.
//! Method: the real binary on small files made here, a full disk on a small tmpfs.
//! Blind to: core dumps of 32 bits and of other byte orders.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{Lab, capture_to, expect_error, expect_success, has_note, is_root, skip};
use uzswap::page::PAGE_SIZE;

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
fn a_full_disk_leaves_nothing() {
    let name = "full disk";
    if !is_root() {
        return skip(name, "not root: cannot mount a small tmpfs");
    }
    let lab = Lab::new();
    let small = lab.path("small");
    fs::create_dir(&small).unwrap();
    fs::write(lab.path("raw"), vec![7; 1 << 20]).unwrap();
    // In a mount namespace of its own: it goes with the shell.
    let script = "mount -t tmpfs -o size=256k none \"$1\" || exit 99
                  \"$2\" capture -o \"$1/pages\" --from \"$3\"; code=$?
                  ls -A \"$1\"
                  exit $code";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(&small)
        .arg(env!("CARGO_BIN_EXE_uzswap"))
        .arg(lab.path("raw"))
        .output();
    let output = match output {
        Ok(output) if output.status.code() != Some(99) => output,
        Ok(output) => return skip(name, &String::from_utf8_lossy(&output.stderr)),
        Err(error) => return skip(name, &format!("cannot run unshare: {error}")),
    };
    if output.status.code() == Some(1) {
        return skip(name, &String::from_utf8_lossy(&output.stderr));
    }
    expect_error(&output, 3, &["cannot write", "No space left on device", "nothing was kept"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "files were left");
}

/// A core dump of 64 bits: a NT_FILE note, a writable segment of two pages, a read-only one, and a
/// writable one of a mapped file.
fn small_core() -> Vec<u8> {
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
fn the_holes_of_a_core_dump_are_no_pages() {
    let lab = Lab::new();
    let path = lab.path("core");
    let mut core = small_core();
    // The first segment becomes a hole of 2 pages at 1 MiB, and data after it.
    core.truncate(5 * PAGE_SIZE);
    let at = 64 + 56;
    core[at + 8..at + 16].copy_from_slice(&(1_u64 << 20).to_le_bytes());
    core[at + 32..at + 40].copy_from_slice(&(64 * PAGE_SIZE as u64).to_le_bytes());
    core[at + 40..at + 48].copy_from_slice(&(64 * PAGE_SIZE as u64).to_le_bytes());
    fs::write(&path, core).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    use std::os::unix::fs::FileExt;
    file.write_all_at(&[9; PAGE_SIZE], (1 << 20) + 32 * PAGE_SIZE as u64).unwrap();
    file.set_len((1 << 20) + 64 * PAGE_SIZE as u64).unwrap();
    expect_success(&lab.capture(&["--from", path.to_str().unwrap()]));
    let set = lab.read();
    let kept = set.pages.iter().map(|page| page[0]).collect::<Vec<_>>();
    if kept.len() > 4 {
        return skip("holes", "this file system does not tell holes");
    }
    assert_eq!(kept, [9, 4]);
    assert_eq!(set.about.ranges[0].start, 0x60_0000 + 32 * PAGE_SIZE as u64);
    assert!(has_note(&set.about, "63 pages are holes"), "{:?}", set.about.notes);
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
    refused(&no_memory, &["no writable memory"]);
    // Any other damage: an error or pages, never a crash.
    for at in 0..64 + 4 * 56 {
        let mut damaged = core.clone();
        damaged[at] ^= 0xff;
        fs::write(&path, damaged).unwrap();
        let about = uzswap::lab::capture::capture_file(&path, &lab.path("pages"));
        assert!(about.is_ok() || lab.path("core").exists());
    }
}
