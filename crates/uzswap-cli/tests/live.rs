//! Goal: what only some machines and users can show: other users, full disks, kernel threads,
//! signals, locked memory, zram.
//! Method: the real binary, end to end. A test that cannot run here is counted as ignored, with the
//! reason in brackets; with UZSWAP_LIVE=require that is a failure.
//! Blind to: Yama and other security modules.

#![allow(unsafe_code, reason = "mlockall is not in the standard library")]

mod support;
use uzswap_testing::varied_pages;
use uzswap_testing::{trials, wait_for};

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Output};

use support::{
    Lab, capture_to, expect_error, expect_success, has_note, is_root, is_running, odd_seconds,
    open_to_all, send, small_core, text,
};
use trials::{no_signal, trial};
use uzswap::compressor::{CompressorKind, OUTPUT_BYTES};
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::same_filled::SameFilled;
use uzswap::zpool::zsmalloc::{ClassTable, ZsmallocOptions};
use uzswap::zswap::{Incompressible, Zswap, ZswapOptions};
use varied_pages::varied_pages;

/// Why a test cannot run here.
type Missing = Option<String>;

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
const NOBODY: u32 = 65534;

/// Set for a child of ours whose memory is locked: `try` or `store`.
const LOCKED: &str = "UZSWAP_TEST_LOCKED";

/// Set for a child of ours that takes a snapshot: how many pages its store has.
const SNAPSHOT_PAGES: &str = "UZSWAP_TEST_SNAPSHOT_PAGES";

fn main() -> ExitCode {
    if let Ok(pages) = std::env::var(SNAPSHOT_PAGES) {
        return snapshot_child(pages.parse().unwrap());
    }
    if let Ok(what) = std::env::var(LOCKED) {
        return locked_child(&what);
    }
    let interrupt = interrupted_by::<SIGINT>;
    let terminate = interrupted_by::<SIGTERM>;
    trials::run([
        trial("a_kernel_thread_is_told", no_kernel_threads(), a_kernel_thread_is_told),
        trial("another_users_process_is_refused", no_other_user(), another_users_process),
        trial("a_closed_directory_is_refused", no_other_user(), a_closed_directory),
        trial("another_user_is_told_what_run_needs", no_other_user(), what_run_needs),
        trial("an_unreadable_corpus_is_refused", no_other_user(), an_unreadable_corpus),
        trial("a_full_disk_leaves_nothing", no_small_disk(), a_full_disk_leaves_nothing),
        trial("a_full_disk_leaves_the_old_snapshot", no_small_disk(), full_disk_snapshot),
        trial("the_holes_of_a_core_dump_are_no_pages", no_holes(), the_holes_of_a_core_dump),
        trial("an_interrupt_ends_a_capture_and_its_command", no_signal(SIGINT), interrupt),
        trial("locked_memory_is_no_more_than_it_need_be", no_locked_memory(), locked_memory),
        trial("lzo_is_as_long_as_in_zram", no_zram("lzo"), as_long_as_in_zram::<false>),
        trial("lzo_rle_is_as_long_as_in_zram", no_zram("lzo-rle"), as_long_as_in_zram::<true>),
        trial("sigterm_ends_a_capture_and_its_command", no_signal(SIGTERM), terminate),
    ])
}

fn no_kernel_threads() -> Missing {
    let name = fs::read_to_string("/proc/2/comm").unwrap_or_default();
    (name.trim() != "kthreadd").then(|| "process 2 is no kernel thread here".to_owned())
}

fn no_other_user() -> Missing {
    if !is_root() {
        return None; // We are nobody special ourselves.
    }
    let status = Command::new("true").uid(NOBODY).gid(NOBODY).status();
    status.err().map(|error| format!("cannot run as user {NOBODY}: {error}"))
}

fn no_small_disk() -> Missing {
    if !is_root() {
        return Some("not root: cannot mount a small tmpfs".to_owned());
    }
    let script = "mount -t tmpfs -o size=256k none /mnt";
    match Command::new("unshare").args(["--mount", "sh", "-c", script]).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("cannot run unshare: {error}")),
    }
}

fn no_holes() -> Missing {
    let lab = Lab::new();
    let file = fs::File::create(lab.path("sparse")).unwrap();
    file.set_len(1 << 20).unwrap();
    let allocated = file.metadata().unwrap().blocks() * 512;
    (allocated >= 1 << 20).then(|| "this file system makes no holes".to_owned())
}

fn no_locked_memory() -> Missing {
    let status = locked("try");
    (!status.success()).then(|| format!("cannot lock memory that is mapped later: {status}"))
}

/// Runs this program again, with its memory locked.
fn locked(what: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap()).env(LOCKED, what).status().unwrap()
}

fn locked_memory() {
    assert!(locked("store").success());
}

/// Locks what will be mapped, and stores some pages; fails where that takes much memory.
fn locked_child(what: &str) -> ExitCode {
    // SAFETY: concerns this process alone, which ends soon.
    if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
        return ExitCode::FAILURE;
    }
    if what == "store" {
        let resident = || {
            let statm = fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
        };
        let before = resident();
        let zswap = Zswap::new(ZswapOptions::bare()).unwrap();
        for (key, page) in varied_pages(1, 1000).enumerate() {
            // Incompressible pages are refused.
            let _ = zswap.store(PageKey(key as u64), &page);
        }
        assert!(zswap.counters().stored_pages > 500);
        let pages = resident() - before;
        assert!(pages < 4000, "{pages} pages more are resident");
    }
    ExitCode::SUCCESS
}

/// Runs uzswap as a user that is not root.
fn as_nobody(lab: &Lab, arguments: &[&str]) -> Output {
    if !is_root() {
        return Command::new(env!("CARGO_BIN_EXE_uzswap")).args(arguments).output().unwrap();
    }
    // The build directory may be closed to others.
    let binary = lab.path("uzswap");
    fs::copy(env!("CARGO_BIN_EXE_uzswap"), &binary).unwrap();
    open_to_all(lab.directory.path());
    let mut command = Command::new(&binary);
    command.args(arguments).uid(NOBODY).gid(NOBODY);
    // Busy while another test's new process, just forked, still has the copy open for writing.
    wait_for("the copy to be free", || match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
        other => Some(other.unwrap()),
    })
}

fn a_kernel_thread_is_told() {
    Lab::new().refused(&["--pid", "2"], 2, &["(kthreadd) is a kernel thread"]);
}

/// A child that ends with its variable.
struct Sleep(Child);

impl Drop for Sleep {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn another_users_process() {
    let lab = Lab::new();
    let place = lab.path("place");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o1777)).unwrap();
    let ours = Sleep(Command::new("sleep").arg("60").spawn().unwrap());
    let pid = if is_root() { ours.0.id() } else { 1 };
    let output = place.join("pages");
    let output = as_nobody(&lab, &["capture", "-o", text(&output), "--pid", &pid.to_string()]);
    expect_error(&output, 3, &["of process", "ptrace", "CAP_SYS_PTRACE", "ptrace_scope"]);
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
}

fn what_run_needs() {
    let output = as_nobody(&Lab::new(), &["doctor"]);
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stdout).unwrap();
    let verdict = text.lines().next().unwrap();
    assert!(verdict.starts_with("uzswap run does not work here: no "), "{verdict}");
    // Whatever the settings are: a fork needs the capability.
    assert!(verdict.contains("no EVENT_FORK"), "{verdict}");
    for advice in ["CAP_SYS_PTRACE", "sudo uzswap run"] {
        assert!(text.contains(advice), "no '{advice}' in\n{text}");
    }
    assert!(!text.contains("setcap"), "every user could read any process:\n{text}");
}

fn a_closed_directory() {
    let lab = Lab::new();
    let closed = lab.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    let output = closed.join("pages");
    let output = as_nobody(&lab, &["capture", "-o", text(&output), "--from", "/proc/self/status"]);
    expect_error(&output, 3, &["cannot create", "Permission denied"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(message.matches("Permission denied").count(), 1, "said twice: {message}");
}

fn an_unreadable_corpus() {
    let lab = Lab::new();
    let pages = lab.path("pages");
    fs::write(&pages, [1; PAGE_SIZE]).unwrap();
    fs::set_permissions(&pages, fs::Permissions::from_mode(0o000)).unwrap();
    for flag in ["--corpus", "--sizes"] {
        let output = as_nobody(&lab, &["compare", flag, text(&pages)]);
        expect_error(&output, 3, &["Permission denied"]);
    }
}

fn a_full_disk_leaves_nothing() {
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
        .output()
        .unwrap();
    expect_error(&output, 1, &["cannot write", "No space left on device", "nothing was kept"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "files were left");
}

/// Takes a snapshot of some pages to `/mnt/s`; what went wrong, on standard output.
fn snapshot_child(pages: u64) -> ExitCode {
    let incompressible = Incompressible::StoreAsIs;
    let zswap = Zswap::new(ZswapOptions::default().incompressible(incompressible)).unwrap();
    let made: Vec<Page> = varied_pages(1, pages as usize).collect();
    for (key, page) in made.iter().enumerate() {
        zswap.store(PageKey(key as u64), page).unwrap();
    }
    if let Err(error) = zswap.snapshot("/mnt/s") {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        println!("{error}: {}", cause.unwrap_or_default());
    }
    // The store is as it was.
    let mut page = [0; PAGE_SIZE];
    for (key, expected) in made.iter().enumerate() {
        assert!(zswap.load(PageKey(key as u64), &mut page).unwrap() && page == *expected);
    }
    ExitCode::SUCCESS
}

fn full_disk_snapshot() {
    let script = "mount -t tmpfs -o size=256k none /mnt || exit 99
                  export UZSWAP_TEST_SNAPSHOT_PAGES
                  UZSWAP_TEST_SNAPSHOT_PAGES=40 \"$1\" && cp /mnt/s \"$2\" || exit 98
                  UZSWAP_TEST_SNAPSHOT_PAGES=2000 \"$1\"
                  cmp /mnt/s \"$2\" && ls -A /mnt
                  mount -o remount,ro /mnt
                  UZSWAP_TEST_SNAPSHOT_PAGES=40 \"$1\"
                  cmp /mnt/s \"$2\" && ls -A /mnt";
    let lab = Lab::new();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .arg(lab.path("copy"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), output.status.code()), (4, Some(0)), "{text}");
    assert!(lines[0].contains("free some space") && lines[0].contains("os error 28"), "{text}");
    assert!(lines[2].contains("/mnt/.s.part (choose a writable path)"), "{text}");
    assert!(lines[2].contains("os error 30"), "{text}");
    assert_eq!((lines[1], lines[3]), ("s", "s"), "{text}");
}

fn the_holes_of_a_core_dump() {
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
    file.write_all_at(&[9; PAGE_SIZE], (1 << 20) + 32 * PAGE_SIZE as u64).unwrap();
    file.set_len((1 << 20) + 64 * PAGE_SIZE as u64).unwrap();
    expect_success(&lab.capture(&["--from", path.to_str().unwrap()]));
    let set = lab.read();
    let kept = set.pages.iter().map(|page| page[0]).collect::<Vec<_>>();
    assert_eq!(kept, [9, 4]);
    assert_eq!(set.about.ranges[0].start, 0x60_0000 + 32 * PAGE_SIZE as u64);
    assert!(has_note(&set.about, "63 pages are holes"), "{:?}", set.about.notes);
}

fn interrupted_by<const SIGNAL: i32>() {
    let lab = Lab::new();
    let seconds = &odd_seconds(20 + SIGNAL as u32);
    let mut capture =
        capture_to(&lab.path("pages")).args(["--", "sleep", seconds]).spawn().unwrap();
    wait_for("sleep", || is_running(seconds).then_some(()));
    send(&format!("-{SIGNAL}"), capture.id());
    let status = wait_for("its end", || capture.try_wait().unwrap());
    assert_eq!(status.signal(), Some(SIGNAL), "{status}");
    assert!(!is_running(seconds));
    assert!(lab.files().is_empty(), "{:?}", lab.files());
}

/// A zram device of our own, which goes with its variable. Devices that were there are left alone.
struct Zram(String);

impl Zram {
    fn new() -> io::Result<Zram> {
        fs::read_to_string("/sys/class/zram-control/hot_add").map(|id| Zram(id.trim().to_owned()))
    }

    fn attribute(&self, name: &str) -> String {
        format!("/sys/block/zram{}/{name}", self.0)
    }

    /// Whether the device is one that we can use, with this compressor.
    fn start(&self, compressor: &str) -> io::Result<fs::File> {
        fs::write(self.attribute("comp_algorithm"), compressor)?;
        fs::write(self.attribute("disksize"), "64M")?;
        let mut options = fs::File::options();
        options.write(true).custom_flags(libc::O_DIRECT).open(format!("/dev/zram{}", self.0))
    }

    /// Bytes of compressed data that it holds, by its statistics.
    fn compressed_bytes(&self) -> usize {
        let stat = fs::read_to_string(self.attribute("mm_stat")).unwrap();
        stat.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = fs::write(self.attribute("reset"), "1");
        let _ = fs::write("/sys/class/zram-control/hot_remove", &self.0);
    }
}

fn no_zram(compressor: &str) -> Missing {
    let started = Zram::new().and_then(|zram| zram.start(compressor).map(drop));
    started.err().map(|error| format!("no zram device with {compressor}: {error}"))
}

/// What direct I/O takes.
#[repr(align(4096))]
struct Aligned(Page);

fn as_long_as_in_zram<const RLE: bool>() {
    let kind = if RLE { CompressorKind::LzoRle } else { CompressorKind::Lzo };
    let compressor = kind.build();
    let zram = Zram::new().unwrap();
    let device = zram.start(&compressor.name()).unwrap();
    let huge_bytes = ClassTable::new(ZsmallocOptions::default()).huge_bytes();
    for seed in [1, 2] {
        let mut sum = 0;
        for (number, page) in varied_pages(seed, 2000).enumerate() {
            let before = zram.compressed_bytes();
            let at = (seed as usize * 2000 + number) * PAGE_SIZE;
            device.write_all_at(&Aligned(page).0, at as u64).unwrap();
            let theirs = zram.compressed_bytes() - before;
            let ours = match compressor.compress(&page, &mut [0; OUTPUT_BYTES]) {
                _ if SameFilled::default().word(&page).is_some() => 0,
                // As large a slot as the page takes: zram keeps the page as it is.
                Ok(bytes) if bytes < huge_bytes => bytes,
                _ => PAGE_SIZE,
            };
            assert_eq!(ours, theirs, "{kind} seed {seed} page {number}");
            sum += theirs;
        }
        println!("{kind} seed {seed}: {sum} bytes");
    }
}
