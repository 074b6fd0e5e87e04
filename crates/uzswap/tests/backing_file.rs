//! Goal: a file as backing gives back what was written, and refuses what it must not touch.
//! Method: random batches against a copy in memory, by every submission; other openers, strangers'
//! files, files changed meanwhile. Also a full disk and a read-only one if this user can mount them
//! (else counted as ignored, with the reason).
//! Blind to: devices that fail or lie.

#![allow(unsafe_code, reason = "setrlimit is not in the standard library")]

use uzswap_testing::trials;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use trials::trial;
use uzswap::backing::{
    BLOCK_SIZE, Backing, BackingError, Block, BlockWrite, Direct, FileBacking, FileBackingOptions,
    IoMode, Submission, zeroed_blocks,
};
use uzswap::random::SplitMix64;

/// Why a test cannot run here.
type Missing = Option<String>;

/// Set for a child of ours in a mount namespace of its own, or under a limit: what it is to do.
const CHILD: &str = "UZSWAP_TEST_BACKING";

fn main() -> ExitCode {
    if let Ok(what) = std::env::var(CHILD) {
        child(&what);
        return ExitCode::SUCCESS;
    }
    trials::run([
        trial("batches_come_back", None, batches_come_back),
        trial("a_child_removes_no_file_of_its_parent", None, a_child_removes_no_file_of_its_parent),
        trial("threads_write_and_read_at_once", None, threads_write_and_read_at_once),
        trial("direct_io_can_be_asked_for", no_direct(), direct_io_can_be_asked_for),
        trial("a_run_outside_writes_nothing", None, a_run_outside_writes_nothing),
        trial("a_file_is_removed_unless_kept", None, a_file_is_removed_unless_kept),
        trial("what_a_killed_store_left_is_taken", None, what_a_killed_store_left_is_taken),
        trial("a_vanished_file_goes_on", None, a_vanished_file_goes_on),
        trial("a_second_opener_is_refused", None, a_second_opener_is_refused),
        trial("who_opens_waits_for_a_moment", None, who_opens_waits_for_a_moment),
        trial("a_strangers_file_is_refused", None, a_strangers_file_is_refused),
        trial("other_kinds_are_refused", None, other_kinds_are_refused),
        trial("a_symbolic_link_is_followed", None, a_symbolic_link_is_followed),
        trial("sizes_that_cannot_be_are_refused", None, sizes_that_cannot_be_are_refused),
        trial("a_shortened_file_is_an_error", None, a_shortened_file_is_an_error),
        trial("a_missing_directory_is_told", None, a_missing_directory_is_told),
        trial("discarded_blocks_go_back", no_holes(), discarded_blocks_go_back),
        trial("space_is_taken_at_once_or_not", None, space_is_taken_at_once_or_not),
        trial("a_file_limit_is_told", None, || run_child("limit", None)),
        trial("it_goes_without_a_ring", None, || run_child("no-ring", None)),
        trial("a_closed_directory_is_told", no_other_user(), a_closed_directory_is_told),
        trial("a_full_disk_is_told", no_mount(SMALL), || run_child("full", Some(SMALL))),
        trial("a_read_only_disk_is_told", no_mount(READ_ONLY), || {
            run_child("read-only", Some(READ_ONLY));
        }),
        trial("a_device_needs_permission", no_loop(), a_device_needs_permission),
    ])
}

/// Mounts a disk of 1 MiB.
const SMALL: &str = "mount -t tmpfs -o size=1m none /mnt";
/// Mounts a disk that cannot be written.
const READ_ONLY: &str = "mount -t tmpfs -o size=1m,ro none /mnt";
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn no_mount(script: &str) -> Missing {
    if !is_root() {
        return Some("not root: cannot mount".to_owned());
    }
    match Command::new("unshare").args(["--mount", "sh", "-c", script]).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("cannot run unshare: {error}")),
    }
}

fn no_other_user() -> Missing {
    if !is_root() {
        return Some("not root: cannot run as another user".to_owned());
    }
    let status = Command::new("true").uid(NOBODY).gid(NOBODY).status();
    status.err().map(|error| format!("cannot run as user {NOBODY}: {error}"))
}

fn no_direct() -> Missing {
    let folder = folder();
    let backing = FileBacking::open(&options(&folder, 4)).unwrap();
    (backing.io_mode() == IoMode::Buffered).then(|| "this file system has no direct I/O".to_owned())
}

fn no_holes() -> Missing {
    let folder = folder();
    let backing = FileBacking::open(&options(&folder, 4)).unwrap();
    backing.discard(0..4).unwrap();
    (!backing.is_punching()).then(|| "this file system punches no holes".to_owned())
}

fn no_loop() -> Missing {
    if !is_root() {
        return Some("not root: cannot make a loop device".to_owned());
    }
    let folder = folder();
    LoopDevice::new(&folder).err()
}

/// Runs this program again, after `script` in a mount namespace of its own.
fn run_child(what: &str, script: Option<&str>) {
    let program = std::env::current_exe().unwrap();
    let output = match script {
        Some(script) => Command::new("unshare")
            .args(["--mount", "sh", "-c", &format!("{script} && exec \"$0\"")])
            .arg(program)
            .env(CHILD, what)
            .output(),
        None => Command::new(program).env(CHILD, what).output(),
    }
    .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn child(what: &str) {
    match what {
        "limit" => under_a_file_limit(),
        "no-ring" => without_a_ring(),
        "full" => on_a_full_disk(),
        "read-only" => on_a_read_only_disk(),
        "open" => {
            let path = std::env::args().nth(1).unwrap();
            let error = FileBacking::open(&FileBackingOptions::new(path, Some(1 << 20)));
            println!("{}", error.map_or_else(|error| error.to_string(), |_| "opened".to_owned()));
        }
        _ => panic!("{what}"),
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A file in `folder` with so many usable blocks.
fn options(folder: &TempDir, blocks: u64) -> FileBackingOptions {
    FileBackingOptions::new(folder.path().join("backing"), Some((blocks + 1) * BLOCK_SIZE as u64))
}

fn open_error(options: &FileBackingOptions) -> BackingError {
    FileBacking::open(options).expect_err("it must be refused")
}

/// Checks that the message names the path and contains `text`.
fn expect(error: &BackingError, path: &Path, text: &str) {
    let message = error.to_string();
    assert!(message.starts_with(&format!("{}: ", path.display())), "{message}");
    assert!(message.contains(text), "{message}");
}

fn filled(random: &mut SplitMix64, count: usize) -> Box<[Block]> {
    let mut blocks = zeroed_blocks(count).unwrap();
    for block in &mut blocks {
        let word = random.next_word();
        for (place, bytes) in block.0.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *bytes = (word ^ place as u64).to_le_bytes();
        }
    }
    blocks
}

fn write(backing: &FileBacking, first: u32, blocks: &[Block]) -> io::Result<()> {
    let mut writes = [BlockWrite::new(first, blocks)];
    backing.write(&mut writes);
    let [write] = writes;
    write.outcome
}

fn batches_come_back() {
    const BLOCKS: usize = 300;
    for direct in [Direct::Auto, Direct::Never] {
        for submission in Submission::ALL.map(Some).into_iter().chain([None]) {
            for in_flight in [1, 3, 64] {
                let folder = folder();
                let mut options = options(&folder, BLOCKS as u64);
                (options.direct, options.submission) = (direct, submission);
                (options.in_flight, options.preallocate) = (in_flight, in_flight != 3);
                let backing = FileBacking::open(&options).unwrap();
                assert_eq!(backing.block_count() as usize, BLOCKS);
                random_batches(&backing, in_flight as u64);
            }
        }
    }
}

/// Writes batches of runs that do not overlap, and compares all blocks with a copy in memory.
/// A forked child that ends its copy of a backing leaves its parent the file.
fn a_child_removes_no_file_of_its_parent() {
    let folder = folder();
    let options = options(&folder, 4);
    let backing = FileBacking::open(&options).unwrap();
    // SAFETY: the child drops its copy, and ends.
    match unsafe { libc::fork() } {
        0 => {
            drop(backing);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) };
        }
        child => {
            let mut status = 0;
            // SAFETY: the child is ours; the pointer is to an integer of our own.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child's end");
        }
    }
    assert!(options.path.exists());
    drop(backing);
    assert!(!options.path.exists());
}

fn random_batches(backing: &FileBacking, seed: u64) {
    let mut random = SplitMix64::new(seed);
    let count = backing.block_count() as usize;
    let mut model = filled(&mut random, count);
    write(backing, 0, &model).unwrap();
    for _ in 0..5 {
        let mut runs = Vec::new();
        let mut at = 0;
        while at < count {
            let length = random.next_word() as usize % 5;
            let length = length.min(count - at);
            if !random.next_word().is_multiple_of(3) {
                runs.push((at, filled(&mut random, length)));
            }
            at += length.max(1);
        }
        let turn = random.next_word() as usize % runs.len();
        runs.rotate_left(turn);
        let mut writes: Vec<_> =
            runs.iter().map(|(first, blocks)| BlockWrite::new(*first as u32, blocks)).collect();
        backing.write(&mut writes);
        for write in &writes {
            write.outcome.as_ref().unwrap();
        }
        for (first, blocks) in &runs {
            model[*first..][..blocks.len()].clone_from_slice(blocks);
        }
        let mut back = zeroed_blocks(count).unwrap();
        backing.read(0, &mut back).unwrap();
        assert!(back.iter().zip(&model).all(|(one, other)| one.0 == other.0));
        let first = random.next_word() as usize % count;
        backing.read(first as u32, &mut back[..1]).unwrap();
        assert_eq!(back[0].0, model[first].0);
    }
}

fn threads_write_and_read_at_once() {
    let folder = folder();
    let backing = &FileBacking::open(&options(&folder, 4 * 64)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            scope.spawn(move || {
                let mut random = SplitMix64::new(thread.into());
                for _ in 0..20 {
                    let blocks = filled(&mut random, 64);
                    let mut writes: Vec<_> = blocks
                        .chunks(2)
                        .enumerate()
                        .map(|(run, blocks)| BlockWrite::new(thread * 64 + run as u32 * 2, blocks))
                        .collect();
                    backing.write(&mut writes);
                    assert!(writes.iter().all(|write| write.outcome.is_ok()));
                    let mut back = zeroed_blocks(64).unwrap();
                    backing.read(thread * 64, &mut back).unwrap();
                    assert!(back.iter().zip(&blocks).all(|(one, other)| one.0 == other.0));
                }
            });
        }
    });
}

fn direct_io_can_be_asked_for() {
    let folder = folder();
    let mut options = options(&folder, 4);
    options.direct = Direct::Always;
    assert_eq!(FileBacking::open(&options).unwrap().io_mode(), IoMode::Direct);
    options.direct = Direct::Never;
    let backing = FileBacking::open(&options).unwrap();
    assert_eq!(backing.io_mode(), IoMode::Buffered);
    assert_eq!(backing.submission(), Submission::Sequential);
}

fn a_run_outside_writes_nothing() {
    let folder = folder();
    let backing = FileBacking::open(&options(&folder, 4)).unwrap();
    let two = zeroed_blocks(2).unwrap();
    let seven = filled(&mut SplitMix64::new(1), 2);
    write(&backing, 0, &two).unwrap();
    let mut writes = [BlockWrite::new(0, &seven), BlockWrite::new(3, &two)];
    backing.write(&mut writes);
    for write in &writes {
        assert_eq!(write.outcome.as_ref().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let mut back = filled(&mut SplitMix64::new(2), 2);
    backing.read(0, &mut back).unwrap();
    assert!(back.iter().all(|block| block.0 == [0; BLOCK_SIZE]));
    assert_eq!(backing.read(3, &mut back).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(backing.read(u32::MAX, &mut back).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(backing.discard(4..5).unwrap_err().kind(), ErrorKind::InvalidInput);
    backing.write(&mut []);
    backing.read(4, &mut []).unwrap();
}

fn a_file_is_removed_unless_kept() {
    let folder = folder();
    let mut options = options(&folder, 4);
    let backing = FileBacking::open(&options).unwrap();
    let metadata = fs::metadata(&options.path).unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o777), (5 * 4096, 0o600));
    drop(backing);
    assert!(!options.path.exists());

    options.keep = true;
    drop(FileBacking::open(&options).unwrap());
    assert!(options.path.exists());
    // The file is not ours to remove, and it has a size.
    (options.keep, options.bytes) = (false, None);
    let backing = FileBacking::open(&options).unwrap();
    assert_eq!(backing.block_count(), 4);
    drop(backing);
    assert!(options.path.exists());
    // The file can be made larger and smaller.
    for blocks in [10, 2] {
        options.bytes = Some((blocks + 1) * 4096);
        let backing = FileBacking::open(&options).unwrap();
        assert_eq!(u64::from(backing.block_count()), blocks);
        assert_eq!(fs::metadata(&options.path).unwrap().len(), (blocks + 1) * 4096);
    }
    // An empty file is taken and stays.
    File::create(&options.path).unwrap();
    drop(FileBacking::open(&options).unwrap());
    assert!(options.path.exists());
}

/// A file that no other user has access to.
fn write_private(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn what_a_killed_store_left_is_taken() {
    let folder = folder();
    let options = options(&folder, 4);
    let backing = FileBacking::open(&options).unwrap();
    let left = fs::read(&options.path).unwrap();
    drop(backing);
    write_private(&options.path, &left);
    let backing = FileBacking::open(&options).unwrap();
    random_batches(&backing, 1);
    drop(backing);
    assert!(!options.path.exists());
}

fn a_vanished_file_goes_on() {
    let folder = folder();
    let options = options(&folder, 50);
    let backing = FileBacking::open(&options).unwrap();
    fs::remove_file(&options.path).unwrap();
    random_batches(&backing, 1);
    // Another store's file is at the path now: it stays.
    let other = FileBacking::open(&options).unwrap();
    drop(backing);
    assert!(options.path.exists());
    random_batches(&other, 2);
}

fn a_second_opener_is_refused() {
    let folder = folder();
    let options = options(&folder, 4);
    let backing = FileBacking::open(&options).unwrap();
    let error = open_error(&options);
    assert!(matches!(error, BackingError::InUse { .. }));
    expect(&error, &options.path, "in use");
    let link = folder.path().join("link");
    fs::hard_link(&options.path, &link).unwrap();
    assert!(matches!(
        open_error(&FileBackingOptions::new(&link, Some(1 << 20))),
        BackingError::InUse { .. }
    ));
    drop(backing);
    drop(FileBacking::open(&options).unwrap());
}

/// For a store that was killed: the kernel may have its file for a moment longer.
fn who_opens_waits_for_a_moment() {
    let folder = folder();
    let options = options(&folder, 4);
    let before = FileBacking::open(&options).unwrap();
    let ends = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(before);
    });
    drop(FileBacking::open(&options).unwrap());
    assert!(!options.path.exists());
    ends.join().unwrap();
}

fn a_strangers_file_is_refused() {
    let folder = folder();
    let mut options = options(&folder, 4);
    options.overwrite = true; // is about devices
    for content in [vec![1], vec![0; 100_000], b"uzswap scratch\n\x02\x00".to_vec()] {
        fs::write(&options.path, &content).unwrap();
        let error = open_error(&options);
        assert!(matches!(error, BackingError::NotScratch { .. }));
        expect(&error, &options.path, "other content");
        assert!(fs::read(&options.path).unwrap() == content);
    }
}

fn other_kinds_are_refused() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let cases: [(PathBuf, &str); 3] = [
        (folder.path().to_owned(), "directory"),
        (pipe, "pipe"),
        (PathBuf::from("/dev/null"), "character device"),
    ];
    for (path, kind) in cases {
        for bytes in [None, Some(1 << 20)] {
            let error = open_error(&FileBackingOptions::new(&path, bytes));
            assert!(matches!(error, BackingError::WrongKind { .. }), "{error}");
            expect(&error, &path, kind);
        }
    }
    open_error(&FileBackingOptions::new("", Some(1 << 20)));
    open_error(&FileBackingOptions::new("/dev/null/file", Some(1 << 20)));
}

fn a_symbolic_link_is_followed() {
    let folder = folder();
    let mut options = options(&folder, 4);
    let link = folder.path().join("link");
    symlink(&options.path, &link).unwrap();
    let path = std::mem::replace(&mut options.path, link.clone());
    expect(&open_error(&options), &link, "No such file"); // it leads nowhere, and is not made
    write_private(&path, &[]);
    random_batches(&FileBacking::open(&options).unwrap(), 1);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && path.exists());
}

fn sizes_that_cannot_be_are_refused() {
    let folder = folder();
    let mut options = options(&folder, 1);
    assert_eq!(FileBacking::open(&options).unwrap().block_count(), 1);
    for bytes in [0, 1, 4096, 8191] {
        options.bytes = Some(bytes);
        let error = open_error(&options);
        assert!(matches!(error, BackingError::TooSmall { .. }));
        expect(&error, &options.path, "8192 bytes at least");
        assert!(!options.path.exists());
    }
    options.bytes = None;
    let error = open_error(&options);
    assert!(matches!(error, BackingError::NoSize { .. }));
    expect(&error, &options.path, "give a size");
    // More than any file system here has, or than it allows a file.
    options.bytes = Some(u64::MAX);
    let error = open_error(&options);
    assert!(matches!(error, BackingError::Os { .. }), "{error}");
    expect(&error, &options.path, "fewer bytes");
    assert!(!options.path.exists());
}

fn a_shortened_file_is_an_error() {
    for direct in [Direct::Auto, Direct::Never] {
        let folder = folder();
        let mut options = options(&folder, 8);
        options.direct = direct;
        let backing = FileBacking::open(&options).unwrap();
        let blocks = filled(&mut SplitMix64::new(1), 8);
        write(&backing, 0, &blocks).unwrap();
        let file = OpenOptions::new().write(true).open(&options.path).unwrap();
        let mut back = zeroed_blocks(8).unwrap();
        for bytes in [8 * 4096 + 100, 5 * 4096, 0] {
            file.set_len(bytes).unwrap();
            assert_eq!(backing.read(0, &mut back).unwrap_err().kind(), ErrorKind::UnexpectedEof);
            assert_eq!(
                backing.read(7, &mut back[..1]).unwrap_err().kind(),
                ErrorKind::UnexpectedEof
            );
            // To write would make the file long again, with zeros where blocks were.
            for first in [0, 7] {
                let error = write(&backing, first, &blocks[..1]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            }
        }
        // The header went too: what is left is nobody's.
        file.write_all_at(b"x", 0).unwrap();
        drop(backing);
    }
}

fn a_missing_directory_is_told() {
    let path = folder().path().join("missing/file");
    let error = open_error(&FileBackingOptions::new(&path, Some(1 << 20)));
    expect(&error, &path, "cannot create it: No such file or directory");
    expect(&error, &path, "create the directory first");
}

fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

fn discarded_blocks_go_back() {
    let folder = folder();
    let mut options = options(&folder, 255);
    for punch in [true, false] {
        options.punch = punch;
        let backing = FileBacking::open(&options).unwrap();
        let blocks = filled(&mut SplitMix64::new(1), 255);
        write(&backing, 0, &blocks).unwrap();
        let before = allocated(&options.path);
        backing.discard(10..210).unwrap();
        let freed = before - allocated(&options.path);
        assert_eq!(freed, if punch { 200 * 4096 } else { 0 });
        // Its neighbours are as they were, and it can be written again.
        let mut back = zeroed_blocks(1).unwrap();
        for block in [9, 210] {
            backing.read(block, &mut back).unwrap();
            assert_eq!(back[0].0, blocks[block as usize].0);
        }
        random_batches(&backing, 1);
    }
}

fn space_is_taken_at_once_or_not() {
    let folder = folder();
    let mut options = options(&folder, 255);
    let backing = FileBacking::open(&options).unwrap();
    assert_eq!(allocated(&options.path) >= 1 << 20, backing.is_preallocated());
    drop(backing);
    options.preallocate = false;
    let backing = FileBacking::open(&options).unwrap();
    assert!(!backing.is_preallocated());
    assert!(allocated(&options.path) < 1 << 20);
}

fn set_limit(resource: libc::__rlimit_resource_t, limit: u64) {
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: the pointer is to a structure of ours, which the call reads.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// With two descriptors left: those are of the file and of its directory.
fn without_a_ring() {
    let folder = folder();
    let free = File::open("/dev/null").unwrap().as_raw_fd();
    set_limit(libc::RLIMIT_NOFILE, free as u64 + 2);
    let mut options = options(&folder, 100);
    options.submission = Some(Submission::Uring);
    let backing = FileBacking::open(&options).unwrap();
    assert_eq!(backing.submission(), Submission::Threads);
    random_batches(&backing, 1);
}

fn under_a_file_limit() {
    set_limit(libc::RLIMIT_FSIZE, 1 << 16);
    let folder = folder();
    let error = open_error(&options(&folder, 16));
    expect(&error, &folder.path().join("backing"), "File too large");
    expect(&error, &folder.path().join("backing"), "ulimit -f");
    assert!(!folder.path().join("backing").exists());
    random_batches(&FileBacking::open(&options(&folder, 15)).unwrap(), 1);
}

fn on_a_full_disk() {
    let mut options = FileBackingOptions::new("/mnt/backing", Some(2 << 20));
    let error = open_error(&options);
    expect(&error, &options.path, "No space left on device");
    expect(&error, &options.path, "free some space");
    assert!(!options.path.exists());

    // A sparse one is made, and meets the end of the disk later: each write says so or is whole.
    options.preallocate = false;
    for submission in Submission::ALL {
        options.submission = Some(submission);
        let backing = FileBacking::open(&options).unwrap();
        let blocks = filled(&mut SplitMix64::new(1), 500);
        let mut writes: Vec<_> = blocks
            .chunks(10)
            .enumerate()
            .map(|(run, blocks)| BlockWrite::new(run as u32 * 10, blocks))
            .collect();
        backing.write(&mut writes);
        let full = writes.iter().filter(|write| write.outcome.is_err()).count();
        assert!((10..40).contains(&full), "{full} of 50");
        let mut back = zeroed_blocks(10).unwrap();
        for write in &writes {
            match &write.outcome {
                Ok(()) => {
                    backing.read(write.first, &mut back).unwrap();
                    assert!(back.iter().zip(write.blocks).all(|(one, other)| one.0 == other.0));
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::StorageFull),
            }
        }
        // Given back, the space can be used again.
        backing.discard(0..500).unwrap();
        write(&backing, 300, &blocks[..100]).unwrap();
    }

    // Space that a file already has is not allocated again.
    let mut options = FileBackingOptions::new("/mnt/kept", Some(600 << 10));
    options.keep = true;
    for _ in 0..2 {
        assert!(FileBacking::open(&options).unwrap().is_preallocated());
    }
}

fn on_a_read_only_disk() {
    let path = Path::new("/mnt/backing");
    let error = open_error(&FileBackingOptions::new(path, Some(1 << 20)));
    expect(&error, path, "Read-only file system");
    expect(&error, path, "writable file system");
}

fn a_closed_directory_is_told() {
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Where the other user can run it.
    let program = folder.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let path = folder.path().join("backing");
    let output = Command::new(program)
        .arg(&path)
        .env(CHILD, "open")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(message.contains("Permission denied") && message.contains("this user"), "{message}");
}

/// A block device on a file of 1 MiB.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn new(folder: &TempDir) -> Result<LoopDevice, String> {
        let image = folder.path().join("image");
        let file = File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(1 << 20).map_err(|error| error.to_string())?;
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let output = output.map_err(|error| format!("cannot run losetup: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() {
            Ok(LoopDevice(text(&output.stdout).into()))
        } else {
            Err(text(&output.stderr))
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

fn a_device_needs_permission() {
    let folder = folder();
    let device = LoopDevice::new(&folder).unwrap();
    let mut options = FileBackingOptions::new(&device.0, None);
    let error = open_error(&options);
    assert!(matches!(error, BackingError::NotScratch { .. }));
    expect(&error, &device.0, "overwrite option");
    options.overwrite = true;
    let backing = FileBacking::open(&options).unwrap();
    assert_eq!(backing.block_count(), 255);
    random_batches(&backing, 1);
    backing.discard(5..100).unwrap();
    assert!(matches!(open_error(&options), BackingError::InUse { .. }));
    drop(backing);
    // Now it has our mark; a part of it can be asked for.
    (options.overwrite, options.bytes) = (false, Some(1 << 19));
    assert_eq!(FileBacking::open(&options).unwrap().block_count(), 127);
    assert!(device.0.exists());
}
