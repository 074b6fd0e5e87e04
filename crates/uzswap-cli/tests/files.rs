//! Goal: no other user reads or redirects a file that a command writes, and an output that cannot
//! be written is an error of the command.
//! Method: a table of what may be at a path, times the users, the umasks, the directories and a
//! chroot, for each kind of file. Each case is a process of its own, which makes the file as the
//! commands do. Then the commands themselves, where another user has prepared the path, where the
//! disk is full, and at /dev/full. Tests that cannot run here are counted as ignored, with the
//! reason.
//! Blind to: access lists, security modules, file systems without modes.

#![allow(unsafe_code, reason = "to become another user is not in the standard library")]

mod support;
use uzswap_testing::trials;

use std::fs::{self, File, Metadata, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

use support::{Lab, expect_error, is_root, text, uzswap};
use trials::trial;
use uzswap::backing::{FileBacking, FileBackingOptions};
use uzswap::files::{Contents, open_output};
use uzswap::page::{PAGE_SIZE, PageKey};
use uzswap::trace::{Recorder, TraceAbout};
use uzswap::zswap::{Zswap, ZswapOptions};
use uzswap_cli::corpus::page_set::{PageRange, PageSetWriter};

const NOBODY: u32 = 65534;
const ANOTHER: u32 = 65533;

/// Content of the files that nobody may write to.
const PRECIOUS: &[u8] = b"precious";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|first| first == "--child") {
        return child(&arguments[2..]);
    }
    let alone = || matrix(&[own_user()]);
    let users = || matrix(&[0, NOBODY]);
    let not_root = trials::not_root();
    let no_run = trials::no_run(env!("CARGO_BIN_EXE_uzswap"));
    trials::run([
        trial("files_of_one_user", None, alone),
        trial("files_among_users", not_root.clone(), users),
        trial("commands_refuse_what_another_user_prepared", not_root.clone(), prepared),
        trial("runs_refuse_what_another_user_prepared", not_root.or(no_run.clone()), run_prepared),
        trial("standard_output_that_is_full_is_an_error", None, full_output),
        trial("a_run_with_outputs_that_are_full_is_an_error", no_run.clone(), full_outputs_of_run),
        trial("a_full_disk_is_an_error", no_run.or_else(no_small_disk), full_disk),
        trial("pipes_and_open_files_are_outputs", None, pipes),
    ])
}

fn own_user() -> u32 {
    fs::metadata("/proc/self").unwrap().uid()
}

fn no_small_disk() -> Option<String> {
    let script = "mount -t tmpfs -o size=64k none /mnt";
    trials::why_fails(Command::new("unshare").args(["--mount", "sh", "-c", script]))
}

// ---- The kinds of files, made in a process of its own. ----

/// The kinds of files that commands write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// `run --backing`, `compare --backing`.
    Backing,
    /// `run --record`.
    Trace,
    /// Of a store.
    Snapshot,
    /// `capture -o`.
    PageSet,
    /// `run --stats`, `--json=FILE`.
    Report,
}

const SUBJECTS: [Subject; 5] =
    [Subject::Backing, Subject::Trace, Subject::Snapshot, Subject::PageSet, Subject::Report];

impl Subject {
    fn named(name: &str) -> Subject {
        SUBJECTS.into_iter().find(|subject| format!("{subject:?}") == name).unwrap()
    }

    /// Makes the file as the commands do.
    fn make(self, path: &Path) -> Result<(), String> {
        let said = |error: &dyn std::error::Error| {
            let source = error.source().map(|source| format!(": {source}"));
            format!("{error}{}", source.unwrap_or_default())
        };
        match self {
            Subject::Backing => {
                let options = FileBackingOptions::new(path, Some(1 << 16)).keep(true);
                FileBacking::open(&options).map(drop).map_err(|error| said(&error))
            }
            Subject::Trace => {
                let recorder = Recorder::create(path, &TraceAbout::default(), |_| {});
                let report = recorder.map_err(|error| said(&error))?.finish();
                report.error.map_or(Ok(()), Err)
            }
            Subject::Snapshot => {
                let zswap = Zswap::new(ZswapOptions::default()).unwrap();
                zswap.store(PageKey(1), &[7; PAGE_SIZE]).unwrap();
                zswap.snapshot(path).map(drop).map_err(|error| said(&error))
            }
            Subject::PageSet => {
                let write = || {
                    let mut writer = PageSetWriter::create(path)?;
                    let range = PageRange { pid: None, start: 0, pages: 0, name: String::new() };
                    writer.push(range, &[[7; PAGE_SIZE]])?;
                    writer.finish("a test".to_owned(), Vec::new())
                };
                write().map(drop).map_err(|error| said(&error))
            }
            Subject::Report => open_output(path, Contents::Report)
                .and_then(|mut file| file.write_all(b"{}\n"))
                .map_err(|error| said(&error)),
        }
    }

    /// Whether it takes the place of what is there, which then stays as it is.
    fn replaces(self) -> bool {
        matches!(self, Subject::Snapshot | Subject::PageSet)
    }
}

/// Becomes a user in a place, and makes a file there: `SUBJECT PATH USER UMASK ROOT`.
fn child(arguments: &[String]) -> ExitCode {
    let [subject, path, user, umask, root] = arguments else { panic!("{arguments:?}") };
    let user: u32 = user.parse().unwrap();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask.parse().unwrap()));
    if root != "-" {
        std::os::unix::fs::chroot(root).unwrap();
        std::env::set_current_dir("/").unwrap();
    }
    if user != rustix::process::getuid().as_raw() {
        // SAFETY: takes numbers; this process has one thread.
        let groups = unsafe { libc::setgroups(0, std::ptr::null()) };
        // SAFETY: takes a number; this process has one thread.
        let group = unsafe { libc::setgid(user) };
        // SAFETY: takes a number; this process has one thread.
        let user = unsafe { libc::setuid(user) };
        assert_eq!((groups, group, user), (0, 0, 0));
    }
    match Subject::named(subject).make(Path::new(path)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}

// ---- The table. ----

/// What is at the path. `Their` things belong to a user that is neither root nor the one who makes
/// the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum There {
    Nothing,
    OwnPrivate,
    OwnReadable,
    OwnLink,
    OwnHardLink,
    OwnPipe,
    Directory,
    TheirFile,
    TheirLink,
    TheirDanglingLink,
    TheirPipe,
}

const ALONE: [There; 6] = [
    There::Nothing,
    There::OwnPrivate,
    There::OwnReadable,
    There::OwnLink,
    There::OwnHardLink,
    There::Directory,
];

const AMONG_USERS: [There; 5] = [
    There::OwnPipe,
    There::TheirFile,
    There::TheirLink,
    There::TheirDanglingLink,
    There::TheirPipe,
];

/// The directory of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum In {
    /// Of the user, 0700.
    Own,
    /// As /tmp.
    Sticky,
    /// Everybody may do everything.
    Open,
}

/// What is to come of it.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    /// A file with this mode.
    Made(u32),
    /// An error with these words.
    Refused(&'static str),
}

struct Case {
    subject: Subject,
    user: u32,
    umask: u32,
    directory: In,
    there: There,
    chroot: bool,
}

impl Case {
    /// The table of docs/reference/files.md.
    fn expected(&self) -> Expected {
        use Expected::{Made, Refused};
        let is_report = self.subject == Subject::Report;
        let is_backing = self.subject == Subject::Backing;
        let replaces = self.subject.replaces();
        let mode = if is_report { 0o666 & !self.umask } else { 0o600 };
        if self.directory == In::Open && !is_report && self.there != There::Directory {
            let is_pipe = [There::OwnPipe, There::TheirPipe].contains(&self.there);
            let kind_first = replaces && is_pipe;
            return Refused(if kind_first { "regular file" } else { "not sticky" });
        }
        match self.there {
            There::Nothing => Made(mode),
            There::OwnPrivate | There::OwnLink => Made(0o600),
            There::OwnReadable if is_report => Made(0o644),
            There::OwnReadable if replaces => Made(0o600),
            There::OwnReadable => Refused("chmod 600"),
            There::OwnHardLink if replaces => Made(0o600),
            There::OwnHardLink if is_report && self.directory == In::Own => Made(0o600),
            There::OwnHardLink => Refused("hard link"),
            There::Directory => Refused("irectory"),
            // It has a reader.
            There::OwnPipe | There::TheirPipe if is_backing => Refused("is a pipe"),
            There::OwnPipe | There::TheirPipe if replaces => Refused("regular file"),
            There::OwnPipe => Made(if is_report { 0o644 } else { 0o600 }),
            There::TheirFile if replaces => match self.directory {
                In::Sticky if self.user != 0 => Refused("Operation not permitted"),
                _ => Made(0o600),
            },
            There::TheirFile | There::TheirPipe if is_report && self.directory == In::Own => {
                Made(0o666)
            }
            There::TheirFile | There::TheirPipe => Refused("it belongs to user 65533"),
            There::TheirLink | There::TheirDanglingLink if self.subject == Subject::PageSet => {
                match self.directory {
                    In::Sticky if self.user != 0 => Refused("Operation not permitted"),
                    _ => Made(0o600),
                }
            }
            There::TheirLink | There::TheirDanglingLink if self.directory == In::Own => {
                match self.there {
                    There::TheirDanglingLink if is_backing => Refused("No such file"),
                    There::TheirDanglingLink => Made(mode),
                    _ => Made(0o600),
                }
            }
            There::TheirLink | There::TheirDanglingLink => Refused("symbolic link of user 65533"),
        }
    }

    fn describe(&self) -> String {
        let Case { subject, user, umask, directory, there, chroot } = self;
        format!("{subject:?}, user {user}, umask {umask:03o}, {directory:?}, {there:?}, {chroot}")
    }

    fn run(&self) {
        let lab = Lab::new();
        let root = lab.directory.path();
        fs::set_permissions(root, Permissions::from_mode(0o755)).unwrap();
        let (folder, other) = (lab.path("folder"), lab.path("other"));
        for (path, mode) in [(&folder, self.directory.mode()), (&other, 0o700)] {
            fs::create_dir(path).unwrap();
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        // The sticky one is root's, as /tmp is, where that can be.
        if self.directory == In::Own {
            give(&folder, self.user);
        }
        give(&other, self.user);
        let (path, victim) = (folder.join("file"), other.join("victim"));
        let inside = |path: &Path| match self.chroot {
            true => Path::new("/").join(path.strip_prefix(root).unwrap()),
            false => path.to_owned(),
        };
        let _reader = self.there.put(&path, &victim, &inside(&victim), self.user, self.subject);
        let before = fs::symlink_metadata(&path).ok();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let (user, umask) = (self.user.to_string(), self.umask.to_string());
        command.args(["--child", &format!("{:?}", self.subject), text(&inside(&path))]);
        command.args([&*user, &*umask, if self.chroot { text(root) } else { "-" }]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        let at = self.describe();
        match self.expected() {
            Expected::Made(mode) => {
                assert!(output.status.success(), "{at}: {said}");
                let made = fs::symlink_metadata(&path).unwrap();
                let made = if made.is_symlink() { fs::metadata(&victim).unwrap() } else { made };
                assert_eq!(made.mode() & 0o7777, mode, "{at}: mode {:o}", made.mode());
                let is_new = before.is_none_or(|before| before.ino() != made.ino());
                assert!(!is_new || made.uid() == self.user, "{at}: of user {}", made.uid());
                if self.subject == Subject::PageSet {
                    let side = fs::metadata(folder.join("file.json")).unwrap();
                    assert_eq!(side.mode() & 0o7777, 0o600, "{at}");
                }
            }
            Expected::Refused(words) => {
                assert_eq!(output.status.code(), Some(1), "{at}: not refused: {said}");
                assert!(said.contains(words), "{at}: no '{words}' in: {said}");
                let after = fs::symlink_metadata(&path).ok();
                let same = |one: &Metadata| (one.mode(), one.len(), one.uid());
                assert_eq!(after.as_ref().map(same), before.as_ref().map(same), "{at}");
                let left = fs::read_dir(&folder).unwrap().count();
                assert_eq!(left, usize::from(self.there != There::Nothing), "{at}: left-overs");
                assert!(self.there != There::TheirDanglingLink || !victim.exists(), "{at}");
            }
        }
        self.check_victim(&victim);
    }

    /// The target of another user's link is unchanged, whether the command refused or replaced the
    /// link.
    fn check_victim(&self, victim: &Path) {
        let is_own = matches!(self.there, There::OwnLink);
        let is_written = matches!(self.expected(), Expected::Made(_)) && !self.subject.replaces();
        let is_led = self.subject == Subject::Snapshot && self.there == There::TheirLink;
        if is_own || is_written || is_led && self.directory == In::Own {
            return;
        }
        if matches!(self.there, There::TheirLink | There::OwnHardLink) {
            let found = fs::read(victim).unwrap();
            assert!(found == self.victim_contents(), "{}: the victim was changed", self.describe());
        }
    }

    fn victim_contents(&self) -> &'static [u8] {
        // A backing takes an empty file alone.
        if self.subject == Subject::Backing { b"" } else { PRECIOUS }
    }
}

impl In {
    fn mode(self) -> u32 {
        match self {
            In::Own => 0o700,
            In::Sticky => 0o1777,
            In::Open => 0o777,
        }
    }
}

fn give(path: &Path, user: u32) {
    if own_user() != user {
        chown(path, Some(user), None).unwrap();
    }
}

fn make(path: &Path, contents: &[u8], mode: u32, user: u32) {
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    give(path, user);
}

fn make_pipe(path: &Path, mode: u32, user: u32) {
    let mode = rustix::fs::Mode::from_raw_mode(mode);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
    rustix::fs::chmod(path, mode).unwrap();
    give(path, user);
}

impl There {
    /// Puts it there; the reader of a pipe. A link leads to `inside`, which is `victim` as the
    /// process sees it.
    fn put(
        self,
        path: &Path,
        victim: &Path,
        inside: &Path,
        user: u32,
        subject: Subject,
    ) -> Option<File> {
        let contents: &[u8] = if subject == Subject::Backing { b"" } else { PRECIOUS };
        match self {
            There::Nothing => {}
            There::OwnPrivate => make(path, b"", 0o600, user),
            There::OwnReadable => make(path, b"", 0o644, user),
            There::TheirFile => make(path, b"", 0o666, ANOTHER),
            There::Directory => fs::create_dir(path).unwrap(),
            There::OwnHardLink => {
                make(victim, contents, 0o600, user);
                fs::hard_link(victim, path).unwrap();
            }
            There::OwnLink | There::TheirLink | There::TheirDanglingLink => {
                if self != There::TheirDanglingLink {
                    make(victim, contents, 0o600, user);
                }
                symlink(inside, path).unwrap();
                let owner = if self == There::OwnLink { user } else { ANOTHER };
                if own_user() != owner {
                    std::os::unix::fs::lchown(path, Some(owner), None).unwrap();
                }
            }
            There::OwnPipe | There::TheirPipe => {
                match self {
                    There::OwnPipe => make_pipe(path, 0o644, user),
                    _ => make_pipe(path, 0o666, ANOTHER),
                }
                // Both ends are held: nobody waits for the other.
                return Some(File::options().read(true).write(true).open(path).unwrap());
            }
        }
        None
    }
}

/// All that there may be, for these users.
fn matrix(users: &[u32]) {
    let (mut cases, mut failed) = (0, Vec::new());
    let mut run = |case: Case| {
        cases += 1;
        let outcome = std::panic::catch_unwind(|| case.run());
        if outcome.is_err() {
            failed.push(case.describe());
        }
    };
    let is_alone = users.len() == 1;
    for &user in users {
        for subject in SUBJECTS {
            for directory in [In::Own, In::Sticky, In::Open] {
                let there = ALONE.iter().chain(AMONG_USERS.iter().filter(|_| !is_alone));
                for &there in there {
                    let umasks: &[u32] = match there {
                        There::Nothing => &[0, 0o022, 0o077, 0o777],
                        _ => &[0],
                    };
                    for &umask in umasks {
                        for chroot in [false, true] {
                            if chroot && (!is_root() || is_alone) {
                                continue;
                            }
                            run(Case { subject, user, umask, directory, there, chroot });
                        }
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} of {cases} cases:\n{}", failed.len(), failed.join("\n"));
    assert!(cases >= 100, "{cases} cases");
}

// ---- The commands. ----

/// A directory as /tmp, with things of another user in it.
fn prepared_folder(lab: &Lab, victim: &Path) -> [PathBuf; 3] {
    fs::set_permissions(lab.directory.path(), Permissions::from_mode(0o1777)).unwrap();
    let names = ["file", "link", "pipe"].map(|name| lab.path(name));
    make(&names[0], b"", 0o666, NOBODY);
    symlink(victim, &names[1]).unwrap();
    std::os::unix::fs::lchown(&names[1], Some(NOBODY), Some(NOBODY)).unwrap();
    make_pipe(&names[2], 0o666, NOBODY);
    names
}

fn check_prepared(names: &[PathBuf; 3]) {
    let [file, link, pipe] = names;
    assert_eq!((fs::read(file).unwrap().len(), fs::metadata(file).unwrap().uid()), (0, NOBODY));
    assert!(fs::symlink_metadata(link).unwrap().is_symlink());
    assert!(fs::metadata(pipe).unwrap().file_type().is_fifo());
}

/// An empty file of root that another user's link leads to.
fn victim(lab: &Lab) -> PathBuf {
    let victim = lab.path("victim");
    make(&victim, b"", 0o600, 0);
    victim
}

fn prepared() {
    let (lab, own) = (Lab::new(), Lab::new());
    let victim = victim(&own);
    let names = prepared_folder(&lab, &victim);
    let pages = own.path("pages");
    let contents: Vec<u8> = (0..100 * PAGE_SIZE).map(|at| ((at * at) >> 7) as u8).collect();
    make(&pages, &contents, 0o600, 0);
    let compare = ["compare", "--corpus", text(&pages), "--runs", "1", "--max-pool", "60K"];
    for (path, words) in names.iter().zip(["belongs to user", "symbolic link", "is a pipe"]) {
        let output = uzswap(&[&compare[..], &["--backing", text(path)]].concat());
        expect_error(&output, 2, &[text(path), words]);
    }
    // The file of --json, of all commands.
    for (path, words) in names.iter().zip(["belongs to user", "symbolic link", ""]) {
        let output = uzswap(&["classes", &format!("--json={}", text(path))]);
        expect_error(&output, 2, &["--json", text(path), words]);
        assert!(output.stdout.is_empty(), "{}: printed", path.display());
    }
    check_prepared(&names);
    // The output of a capture replaces an existing file.
    let output = uzswap(&["capture", "-o", text(&names[2]), "--from", text(&pages)]);
    expect_error(&output, 2, &["not a regular file"]);
    check_prepared(&names);
    assert_eq!(fs::metadata(&victim).unwrap().len(), 0);
    for path in &names[..2] {
        let output = uzswap(&["capture", "-o", text(path), "--from", text(&pages)]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let made = fs::symlink_metadata(path).unwrap();
        assert!(made.is_file() && made.uid() == 0 && made.mode() & 0o777 == 0o600);
    }
    assert_eq!(fs::metadata(&victim).unwrap().len(), 0);
}

fn run_prepared() {
    let (lab, own) = (Lab::new(), Lab::new());
    let victim = victim(&own);
    let names = prepared_folder(&lab, &victim);
    for flag in ["--backing", "--record", "--stats"] {
        for (path, words) in names.iter().zip(["belongs to user", "symbolic link", ""]) {
            let arguments = ["run", "--limit", "64M", flag, text(path), "--", "echo", "started"];
            let output = uzswap(&arguments);
            expect_error(&output, 2, &[text(path), words]);
            assert!(output.stdout.is_empty(), "{flag} {}: it was run", path.display());
        }
    }
    check_prepared(&names);
    assert_eq!(fs::metadata(&victim).unwrap().len(), 0);
}

/// Every command that prints a result.
fn full_output() {
    let lab = Lab::new();
    let pages = lab.path("pages");
    make(&pages, &[5; 8 * PAGE_SIZE], 0o600, own_user());
    let snapshot = lab.path("snapshot");
    Subject::Snapshot.make(&snapshot).unwrap();
    let (pages, snapshot, out) = (text(&pages), text(&snapshot), lab.path("out"));
    let beside = format!("--json={}", lab.path("beside").display());
    let commands: [&[&str]; 12] = [
        &["classes"],
        &["classes", &beside],
        &["classes", "--json"],
        &["compare", "--corpus", pages, "--runs", "1", "--zpool", "zbud"],
        &["compare", "--corpus", pages, "--runs", "1", "--zpool", "zbud", "--json"],
        &["capture", "-o", text(&out), "--from", pages],
        &["capture", "-o", text(&out), "--json", "--from", pages],
        &["stat", snapshot],
        &["stat", snapshot, "--json"],
        &["top", "--json", "--count", "1"],
        &["doctor"],
        &["workload", "text", "--size", "1M"],
    ];
    for arguments in commands {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
        command.args(arguments).stdout(full).stderr(Stdio::piped());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("standard output") && said.contains("os error 28"), "{said}");
    }
}

fn full_outputs_of_run() {
    for flag in ["--stats", "--record"] {
        for (script, code) in [("exit 0", 1), ("exit 7", if flag == "--stats" { 7 } else { 1 })] {
            let arguments = ["run", "--limit", "64M", flag, "/dev/full", "--", "sh", "-c", script];
            expect_error(&uzswap(&arguments), code, &["/dev/full", "os error 28"]);
        }
    }
}

/// Runs a command with a full disk at `/mnt`.
fn on_a_full_disk(lab: &Lab, script: &str) -> Output {
    let prepare =
        "mount -t tmpfs -o size=64k none /mnt && head -c 64k /dev/zero > /mnt/fill || exit 99";
    Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            &format!("{prepare}; {script}"),
            env!("CARGO_BIN_EXE_uzswap"),
        ])
        .arg(lab.path("pages"))
        .output()
        .unwrap()
}

fn full_disk() {
    let lab = Lab::new();
    make(&lab.path("pages"), &[5; 8 * PAGE_SIZE], 0o600, own_user());
    for (script, path) in [
        ("$0 run --limit 64M --stats /mnt/out -- true", "/mnt/out"),
        ("$0 run --limit 64M --record /mnt/out -- true", "/mnt/out"),
        ("$0 capture -o /mnt/out --from $1", "/mnt/out"),
        ("$0 compare --corpus $1 --runs 1 --zpool zbud --json > /mnt/out", "standard output"),
        ("$0 classes > /mnt/out", "standard output"),
        ("$0 classes --json=/mnt/out", "--json /mnt/out"),
        ("$0 compare --corpus $1 --runs 1 --zpool zbud --json=/mnt/out", "--json /mnt/out"),
        ("$0 top --count 1 --json=/mnt/out", "--json /mnt/out"),
    ] {
        let output = on_a_full_disk(&lab, script);
        expect_error(&output, 1, &[path, "os error 28"]);
    }
}

fn pipes() {
    let lab = Lab::new();
    // An open file, by its name in /proc: one that this process was given.
    let path = lab.path("given");
    make(&path, b"old", 0o600, own_user());
    let given = File::options().write(true).open(&path).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let user = own_user().to_string();
    for subject in ["Trace", "Report"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--child", subject, "/dev/stdout", &user, "18", "-"]);
        let output = command.stdout(given.try_clone().unwrap()).output().unwrap();
        assert!(output.status.success(), "{subject}");
        assert!(fs::metadata(&path).unwrap().len() > 3 || subject == "Report");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--child", subject, "/dev/stdout", &user, "18", "-"]);
        let output = command.stdout(Stdio::piped()).output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty(), "{subject}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--child", subject, "/dev/null", &user, "18", "-"]);
        assert!(command.output().unwrap().status.success(), "{subject}");
    }
    // A file that others may read is no place for pages, however it was opened.
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    command.args(["--child", "Trace", "/dev/stderr", &user, "18", "-"]);
    let output = command.stderr(given).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("chmod 600"));
    // One that waits for its reader.
    let pipe = lab.path("pipe");
    make_pipe(&pipe, 0o644, own_user());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--child", "Trace", text(&pipe), &user, "18", "-"]);
    let mut writer = command.spawn().unwrap();
    let read = fs::read(&pipe).unwrap();
    assert!(writer.wait().unwrap().success() && !read.is_empty());
    assert_eq!(fs::metadata(&pipe).unwrap().mode() & 0o777, 0o600);
}
