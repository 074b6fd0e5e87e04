//! Goal: nobody gets into a run, and nobody in it stops the others.
//! Method: the real binary, end to end. Another user looks for a way in. A program of the run
//! speaks the helpers' protocol as an enemy while another one checks each of its pages. Programs
//! change their user, their root and their descriptors, and are managed still.
//! Longer: UZSWAP_HOSTILE_SECONDS, for each attack (2). Others: UZSWAP_HOSTILE_SEED.

mod enemy;
#[allow(dead_code, reason = "what is not used here is in other tests")]
mod process_tree;
use uzswap_testing::outputs::text;
use uzswap_testing::trials;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use tempfile::TempDir;
use uzswap::random::SplitMix64;
use uzswap_preload::protocol::{Message, SOCKET_VARIABLE, kind};

const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--attack", attack, seconds, seed] => {
            return enemy::run(attack, seconds.parse().unwrap(), seed.parse().unwrap());
        }
        ["--victim", mib] => return victim(mib.parse().unwrap()),
        ["--hold", mib] => {
            let memory = fill(mib.parse().unwrap());
            std::thread::sleep(Duration::from_secs(60));
            check_all(&memory);
            return ExitCode::SUCCESS;
        }
        ["--check", mib] => {
            check_all(&fill(mib.parse().unwrap()));
            return ExitCode::SUCCESS;
        }
        ["--stranger", path] => return stranger(Path::new(path)),
        _ => {}
    }
    let missing = trials::no_run(env!("CARGO_BIN_EXE_uzswap"));
    let mut tests = Vec::new();
    let root = missing.clone().or_else(trials::not_root);
    let mut add = |name: String, missing: Option<String>, test: Box<dyn FnOnce() + Send>| {
        tests.push(trials::trial(name, missing, test));
    };
    for attack in enemy::ATTACKS {
        let test = move || a_victim_beside(attack);
        add(format!("beside_an_enemy_{attack}"), missing.clone(), Box::new(test));
    }
    add("another_user_gets_nothing".into(), root.clone(), Box::new(another_user));
    add("modes_are_right_whatever_the_umask".into(), missing.clone(), Box::new(modes));
    add("no_run_is_in_a_folder_of_others".into(), root.clone(), Box::new(folders_of_others));
    add(
        "helpers_have_users_of_their_own".into(),
        root.clone().or_else(|| trials::not_installed("unshare")),
        Box::new(users_of_helpers),
    );
    add("the_helper_has_no_rights".into(), root.clone(), Box::new(rights_of_helper));
    let setpriv = root.clone().or_else(|| trials::not_installed("setpriv"));
    add("a_door_is_of_one_process".into(), root.clone(), Box::new(door_of_one));
    add("an_unmanaged_program_is_ended_first".into(), setpriv, Box::new(unmanaged_first));
    let name = "a_program_that_has_ended_costs_no_other".to_owned();
    add(
        name,
        missing.clone().or_else(|| trials::not_installed("timeout")),
        Box::new(ended_by_itself),
    );
    let deep = missing.clone().or_else(|| trials::not_installed("python3"));
    add("memory_counts_wherever_its_program_is".into(), deep, Box::new(deep_program));
    add("memory_counts_when_its_helper_is_gone".into(), missing.clone(), Box::new(helper_gone));
    let python = missing.clone().or_else(|| trials::not_installed("python3"));
    add("one_memory_of_many_counts_once".into(), python.clone(), Box::new(one_memory));
    add("all_that_have_a_memory_are_ended".into(), python.clone(), Box::new(all_of_memory));
    add("lists_of_futexes_take_little_time".into(), python, Box::new(robust_lists));
    let few = Box::new(helpers_that_return);
    add("helpers_that_return_are_few".into(), missing.clone(), few);
    let raw = missing.or_else(|| trials::not_installed("python3"));
    add("forks_without_end_end_no_other_fork".into(), raw, Box::new(forks_without_end));
    let python = root.or_else(|| trials::not_installed("python3"));
    for (name, change) in CHANGES {
        let test = move || managed_after(change);
        add(format!("managed_after_{name}"), python.clone(), Box::new(test));
    }
    let setpriv = python.or_else(|| trials::not_installed("setpriv"));
    add("managed_as_another_user_with_umask_077".into(), setpriv, Box::new(user_with_umask));
    trials::run(tests)
}

/// Of `uzswap run`; one that hangs is ended, and fails with 137.
fn run(limit: &str, argv: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    let seconds = (100 + attack_seconds()).to_string();
    command.args(["-s", "KILL", &seconds, env!("CARGO_BIN_EXE_uzswap")]);
    command.args(["run", "--limit", limit, "--"]).args(argv);
    command
}

fn expect(output: &Output, code: i32) {
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{}{told}", text(&output.stdout));
    assert!(!told.contains("panicked"), "{told}");
}

fn this() -> String {
    std::env::current_exe().unwrap().to_str().unwrap().to_owned()
}

/// A folder that every user may enter.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    folder
}

/// This program, which may be in a folder that others may not enter.
fn copy_for_others(folder: &Path) -> PathBuf {
    let program = folder.join("this");
    fs::copy(this(), &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    program
}

fn attack_seconds() -> u64 {
    std::env::var("UZSWAP_HOSTILE_SECONDS").map_or(2, |seconds| seconds.parse().unwrap())
}

fn seed() -> u64 {
    std::env::var("UZSWAP_HOSTILE_SEED").map_or(1, |seed| seed.parse().unwrap())
}

/// This program again: memory that does not fit, whose pages it checks at least once and until the
/// input ends; then it tells the longest time that a touch took.
fn victim(mib: usize) -> ExitCode {
    let (pages, memory) = (mib << 8, fill(mib));
    println!("ready");
    let over = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()).unwrap());
    let (mut words, mut longest, mut touches) = (SplitMix64::new(1), Duration::ZERO, 0_u64);
    while touches == 0 || !over.is_finished() {
        let number = words.next_word() as usize % pages;
        let before = Instant::now();
        let found = memory[(number << 9) + 7];
        longest = longest.max(before.elapsed());
        assert_eq!(found, number as u64, "page {number}");
        touches += 1;
    }
    println!("{touches} touches, {} ms at most", longest.as_millis());
    ExitCode::SUCCESS
}

fn fill(mib: usize) -> Vec<u64> {
    let mut memory = vec![0_u64; mib << 17];
    for (number, page) in memory.chunks_mut(512).enumerate() {
        page[7] = number as u64;
    }
    memory
}

fn check_all(memory: &[u64]) {
    for (number, page) in memory.chunks(512).enumerate() {
        assert_eq!(page[7], number as u64);
    }
    println!("all is there");
}

/// Before a command in a shell: it has no helper of the library. An enemy knows the socket still.
const UNMANAGED: &str = "env -u LD_PRELOAD UZSWAP_SOCKET= ENEMY_SOCKET=\"$UZSWAP_SOCKET\"";

/// The enemy has no helper of the library, and says that it is one.
fn a_victim_beside(attack: &str) {
    let (this, seconds, seed) = (this(), attack_seconds(), seed());
    let enemy = format!("{UNMANAGED} '{this}' --attack {attack} {seconds} {seed}");
    // The victim's input ends with the enemy.
    let script = format!("({enemy} >&2; echo the enemy ends: $? >&2) | '{this}' --victim 60");
    let output = run("40M", &["sh", "-c", &script]).output().unwrap();
    expect(&output, 0);
    let (said, told) = (text(&output.stdout), text(&output.stderr));
    assert!(said.contains(" touches, "), "{said}{told}");
    // The enemy may lose its own memory by its attack, never the victim's.
    let ends = [0, 128 + 7, 128 + 9].map(|code| format!("the enemy ends: {code}\n"));
    assert!(ends.iter().any(|end| told.contains(end)), "{told}");
    // A close that waits takes half a minute.
    let longest = said.split_whitespace().rev().nth(3).and_then(|ms| ms.parse::<u64>().ok());
    assert!(longest.is_some_and(|ms| attack != "lingering" || ms < 2000), "{said}{told}");
    println!("{attack}: {}", said.trim().replace('\n', ", "));
}

/// A run with a program that waits for its input to end, and the environment of that program.
struct Waiting {
    child: Child,
    folder: PathBuf,
    socket: PathBuf,
}

impl Waiting {
    fn start(umask: &str, place: &Path) -> Waiting {
        Waiting::start_with(umask, place, "echo ready; cat")
    }

    fn start_with(umask: &str, place: &Path, program: &str) -> Waiting {
        let uzswap = env!("CARGO_BIN_EXE_uzswap");
        let script = format!("umask {umask}; exec '{uzswap}' run --limit 64M -- sh -c '{program}'");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("TMPDIR", place);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let folder = fs::read_dir(place).unwrap().next().unwrap().unwrap().path();
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let program = fs::read_to_string(children).unwrap();
        let program = program.split_whitespace().next().unwrap().to_owned();
        let environment = fs::read(format!("/proc/{program}/environ")).unwrap();
        let name = format!("{SOCKET_VARIABLE}=");
        let socket = environment
            .split(|byte| *byte == 0)
            .find_map(|variable| variable.strip_prefix(name.as_bytes()))
            .map(|path| PathBuf::from(text(path)))
            .unwrap();
        Waiting { child, folder, socket }
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        expect(&self.child.wait_with_output().unwrap(), 0);
        assert!(!self.folder.exists());
    }
}

fn another_user() {
    let place = open_folder();
    let run = Waiting::start("022", place.path());
    let program = copy_for_others(place.path());
    let mut command = Command::new("setpriv");
    command.args(NOBODY).arg(&program).arg("--stranger").arg(&run.socket);
    let output = command.output().unwrap();
    fs::remove_file(program).unwrap();
    expect(&output, 0);
    run.end();
}

/// As another user: the path of the socket is known here, which it is not to be.
fn stranger(socket: &Path) -> ExitCode {
    let folder = socket.parent().unwrap();
    assert!(fs::read_dir(folder).is_err(), "the folder can be listed");
    let told = fs::read_to_string("/proc/net/unix").unwrap();
    let name = socket.file_name().unwrap().to_str().unwrap();
    assert!(!told.contains(name), "/proc/net/unix tells the name");
    let kind_of_socket = SocketType::SEQPACKET;
    for path in told.lines().filter_map(|line| line.split_whitespace().nth(7)) {
        let is_of_run = Path::new(path).starts_with(folder);
        if is_of_run && let Ok(address) = SocketAddrUnix::new(path) {
            for kind in [kind_of_socket, SocketType::STREAM] {
                let socket = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
                assert!(rustix::net::connect(&socket, &address).is_err(), "{path} lets in");
            }
        }
    }
    // Where it knows the name all the same, the supervisor knows that it is none of the run.
    for hello in [kind::HELLO_EXEC, kind::HELLO_FORK] {
        let connection = rustix::net::socket(AddressFamily::UNIX, kind_of_socket, None).unwrap();
        rustix::net::connect(&connection, &SocketAddrUnix::new(socket).unwrap()).unwrap();
        let message = Message::new(hello, [0x10_0000, 0x1_0000]).to_bytes();
        let _ = rustix::io::write(&connection, &message);
        let answer = rustix::io::read(&connection, &mut [0; 64]);
        assert!(matches!(answer, Ok(0) | Err(_)), "it was answered: {answer:?}");
    }
    ExitCode::SUCCESS
}

fn modes() {
    for umask in ["000", "022", "077", "777"] {
        let place = open_folder();
        let run = Waiting::start(umask, place.path());
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&run.folder), 0o711, "umask {umask}");
        // The sockets of `top` may come after the program.
        let since = Instant::now();
        let found = loop {
            let paths = fs::read_dir(&run.folder).unwrap().map(|entry| entry.unwrap().path());
            // Links have no mode of their own.
            let is_ready = |path: &PathBuf| !path.ends_with("new") && !path.is_symlink();
            let found = paths.filter(is_ready).map(|path| (mode(&path), path == run.socket));
            let mut found: Vec<(u32, bool)> = found.collect();
            found.sort_unstable();
            if found.len() == 6 || since.elapsed() > Duration::from_secs(20) {
                break found;
            }
        };
        // The library, the lock and two sockets of `top`, that of helpers, the folder for 32 bits.
        let own = (0o600, false);
        let expected = [(0o555, false), own, own, own, (0o666, true), (0o711, false)];
        assert_eq!(found, expected, "umask {umask}");
        run.end();
    }
}

/// No two helpers hold the same socket: one could connect it to itself.
fn door_of_one() {
    let sockets = |pid: u32| -> BTreeSet<PathBuf> {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
        let links = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).collect()
    };
    let place = open_folder();
    let run = Waiting::start_with("022", place.path(), "sleep 100 & echo ready; cat; kill $!");
    let since = Instant::now();
    loop {
        let mut helpers = process_tree::all_below(run.child.id());
        helpers.retain(|pid| process_tree::is_helper(*pid));
        let held: Vec<BTreeSet<PathBuf>> = helpers.into_iter().map(sockets).collect();
        // The shell, sleep and cat: each has its connection, its door, and the pair by which the
        // program ends with the helper.
        if held.len() == 3 && held.iter().all(|held| held.len() == 4) {
            let together: BTreeSet<&PathBuf> = held.iter().flatten().collect();
            assert_eq!(together.len(), 12, "{held:?}");
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "{held:?}");
    }
    run.end();
}

/// Its memory counts, and it would have the others ended for it.
fn unmanaged_first() {
    let place = open_folder();
    let program = copy_for_others(place.path());
    let (program, nobody) = (program.display(), NOBODY.join(" "));
    // The victim's input ends with the other.
    let script = format!(
        "(setpriv {nobody} {UNMANAGED} '{program}' --hold 60; echo it ends: $? >&2) | \
         '{program}' --victim 10"
    );
    let output = run("48M", &["sh", "-c", &script]).output().unwrap();
    expect(&output, 0);
    let told = text(&output.stderr);
    assert!(text(&output.stdout).contains(" touches, ") && told.contains("it ends: 137"), "{told}");
}

/// An unmanaged program ends when the supervisor is about to end the largest one, or before the
/// supervisor has seen that: it was enough.
fn ended_by_itself() {
    let this = this();
    for seconds in ["3.1", "3.16", "3.22"] {
        // The victim's input ends with the other.
        let script = format!(
            "({UNMANAGED} timeout {seconds} '{this}' --hold 75; echo it ends: $? >&2) | \
             '{this}' --victim 60"
        );
        let output = run("40M", &["sh", "-c", &script]).output().unwrap();
        expect(&output, 0);
        let told = text(&output.stderr);
        assert!(told.contains("it ends: 124") || told.contains("it ends: 137"), "{told}");
    }
}

/// The kernel tells no path of a program that is longer than a page.
fn deep_program() {
    let place = open_folder();
    let deep = r#"
import os, shutil, sys
os.chdir(sys.argv[2])
for i in range(25):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
shutil.copy(sys.argv[1], "this")
os.environ["UZSWAP_SOCKET"] = ""
os.execv("./this", ["./this", "--hold", "60"])
"#;
    let (this, place) = (this(), place.path().display());
    // The victim's input ends with the other.
    let script = format!(
        "(python3 -c '{deep}' '{this}' '{place}'; echo it ends: $? >&2) | '{this}' --victim 10"
    );
    let output = run("48M", &["sh", "-c", &script]).output().unwrap();
    expect(&output, 0);
    let told = text(&output.stderr);
    assert!(text(&output.stdout).contains(" touches, ") && told.contains("it ends: 137"), "{told}");
}

/// The library of a run must not be where another user can put something else in its place.
fn folders_of_others() {
    let others =
        [("open to all", 0o777, 0), ("open to a group", 0o775, 0), ("of nobody", 0o755, 65534)];
    for (name, mode, owner) in others {
        for below in ["", "inner"] {
            let folder = open_folder();
            std::os::unix::fs::chown(folder.path(), Some(owner), None).unwrap();
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            let place = folder.path().join(below);
            fs::create_dir_all(&place).unwrap();
            let mut command = run("64M", &["sh", "-c", "echo $LD_PRELOAD"]);
            let output = command.env("TMPDIR", &place).output().unwrap();
            expect(&output, 0);
            let library = text(&output.stdout);
            assert!(library.contains("uzswap"), "{library}");
            assert!(!library.starts_with(place.to_str().unwrap()), "{name}: {library}");
        }
    }
}

/// A helper's user is none that another process can have: two helpers of one number, in two PID
/// namespaces, have two.
fn users_of_helpers() {
    let script = "for task in /proc/$$/task/*; do grep -l uzswap-helper $task/comm >/dev/null && \
                  grep -E '^(NSpid|Uid):' $task/status; done; sleep 0.3";
    let inner = ["unshare", "-p", "-f", "--mount-proc", "sh", "-c", script];
    let seen = || {
        let output = run("64M", &inner).output().unwrap();
        expect(&output, 0);
        text(&output.stdout)
    };
    let (one, other) = (seen(), seen());
    let line = |text: &str, name: &str| -> String {
        let line = text.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in '{text}'")).to_owned()
    };
    let number = |text: &str| line(text, "NSpid:").split_whitespace().last().unwrap().to_owned();
    assert_eq!(number(&one), number(&other));
    assert_ne!(line(&one, "Uid:"), line(&other, "Uid:"));
}

/// A thread ends after the handshake: the memory of its process counts as unmanaged.
fn helper_gone() {
    let this = this();
    let script = format!(
        "({UNMANAGED} '{this}' --attack gone 8 1; echo it ends: $? >&2) | \
         '{this}' --victim 10"
    );
    let output = run("48M", &["sh", "-c", &script]).output().unwrap();
    expect(&output, 0);
    let told = text(&output.stderr);
    assert!(text(&output.stdout).contains(" touches, ") && told.contains("it ends: 137"), "{told}");
}

/// Some MiB of memory, and processes that have the same (clone(2) with `CLONE_VM`), for a while.
const ONE_MEMORY: &str = r#"
import ctypes, os, signal, sys, time
mib, count, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
memory = b"7" * (mib << 20)
libc = ctypes.CDLL(None, use_errno=True)
stacks = ctypes.create_string_buffer(count * 16384 + 16)
end = (ctypes.addressof(stacks) + 16) & ~15
all = []
for i in range(count):
    stack = ctypes.c_void_p(end + i * 16384 + 16000)
    pid = libc.clone(libc.pause, stack, 0x100 | signal.SIGCHLD, None)
    assert pid > 0, os.strerror(ctypes.get_errno())
    all.append(pid)
time.sleep(seconds)
for pid in all:
    os.kill(pid, 9)
"#;

/// The exit code of an attack beside a victim, and the messages of the run.
fn one_memory_beside_a_victim(without_helper: bool, numbers: &str) -> String {
    let unset = if without_helper { UNMANAGED } else { "" };
    let script = format!(
        "({unset} python3 -c '{ONE_MEMORY}' {numbers} >&2; echo it ends: $? >&2) | \
         '{}' --victim 40",
        this()
    );
    let output = run("100M", &["sh", "-c", &script]).output().unwrap();
    expect(&output, 0);
    let told = text(&output.stderr);
    assert!(text(&output.stdout).contains(" touches, "), "the victim has ended: {told}");
    told
}

/// The enemy would have the others ended for memory that it does not have.
fn one_memory() {
    for without_helper in [true, false] {
        let told = one_memory_beside_a_victim(without_helper, "5 60 4");
        assert!(told.contains("it ends: 0") && !told.contains("out of memory"), "{told}");
    }
}

/// As long as one of them is there, their memory stays.
fn all_of_memory() {
    let told = one_memory_beside_a_victim(true, "150 5 8");
    assert!(told.contains("it ends: 137"), "{told}");
    assert_eq!(told.matches("out of memory").count(), 1, "{told}");
}

/// Threads have lists of robust futexes that name other addresses all the time.
fn robust_lists() {
    let script = r#"
import ctypes, mmap, threading, time
libc = ctypes.CDLL(None)
entries, step = 2047, 8192
list = mmap.mmap(-1, entries * step)
start = ctypes.addressof(ctypes.c_char.from_buffer(list))
for i in range(entries):
    next = start + (i + 1) % entries * step
    list[i * step:i * step + 8] = next.to_bytes(8, "little")
heads = [(ctypes.c_uint64 * 3)(start, 0, 0) for _ in range(40)]
until = time.time() + 4
def hold(head):
    libc.syscall(273, head, 24)
    while time.time() < until:
        time.sleep(0.2)
    libc.syscall(273, None, 24)
threads = [threading.Thread(target=hold, args=(head,)) for head in heads]
for thread in threads:
    thread.start()
memory = ctypes.create_string_buffer(60 << 20)
def touch():
    while time.time() < until:
        for part in range(60): # others run meanwhile
            libc.memset(ctypes.c_void_p(ctypes.addressof(memory) + (part << 20)), part, 1 << 20)
threads.append(threading.Thread(target=touch))
threads[-1].start()
count = 0
while time.time() < until:
    count += 1
    for number, head in enumerate(heads):
        head[1] = (1 << 36) + (number * 4001 + count * 16000000) * 16384 % (1 << 45)
    time.sleep(0.002)
for thread in threads:
    thread.join()
"#;
    let output = run("48M", &["python3", "-c", script]).output().unwrap();
    expect(&output, 0);
    let told = text(&output.stderr);
    let before = |unit: &str| -> f64 {
        let number = told.split(unit).next().unwrap().split_whitespace().last().unwrap();
        number.parse().unwrap()
    };
    let (seconds, pages) = (before(" s of processor"), before(" pages stored"));
    assert!(seconds / pages < 300e-6, "a page that leaves takes long: {told}");
}

/// A program that gives up root's rights must not have a helper that keeps them. The program can
/// still leave a core file.
fn rights_of_helper() {
    let place = open_folder();
    let run = Waiting::start("022", place.path());
    let children = format!("/proc/{0}/task/{0}/children", run.child.id());
    let program = fs::read_to_string(children).unwrap();
    let program = program.split_whitespace().next().unwrap().to_owned();
    let since = Instant::now();
    loop {
        let below = process_tree::all_below(run.child.id());
        let status = below.into_iter().find_map(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok();
            status.filter(|status| status.contains("uzswap-helper"))
        });
        let status = status.expect("it has a helper");
        let line = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        };
        let none = "0000000000000000";
        let capabilities = ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"].map(line);
        let users = line("Uid:");
        let users: Vec<u32> = users.split_whitespace().map(|user| user.parse().unwrap()).collect();
        if line("NoNewPrivs:") == "1" {
            assert_eq!(capabilities, [none; 4]);
            assert!(users.iter().all(|&user| user >= 0x7000_0000), "{users:?}");
            assert_eq!(line("Groups:"), "");
            assert_eq!(line("Seccomp:"), "2");
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "{status}");
    }
    let owner = fs::metadata(format!("/proc/{program}/mem")).unwrap().uid();
    assert_eq!(owner, 0);
    run.end();
}

/// Work of a program before it forks, near its limit.
const CHANGES: [(&str, &str); 5] = [
    ("nothing", "pass"),
    ("a_change_of_user", "os.setgroups([]); os.setgid(65534); os.setuid(65534)"),
    ("a_chroot", "os.chroot(folder)"),
    ("closing_all", "os.closerange(3, 65536)"),
    ("all_of_that", "os.chroot(folder); os.closerange(3, 65536); os.setuid(65534)"),
];

/// A program changes what it may reach, then forks children that need more than the limit each:
/// what is not managed would be ended.
fn managed_after(change: &str) {
    let place = open_folder();
    let script = format!(
        r#"
import os, sys
folder = sys.argv[1]
def fill(mib, seed):
    return [(seed * 1000003 + i).to_bytes(8, "little") * 512 for i in range(mib * 256)]
def check(pages, seed):
    for i, page in enumerate(pages):
        assert page[:8] == (seed * 1000003 + i).to_bytes(8, "little"), i
shared = fill(40, 1)
{change}
for child in range(3):
    pid = os.fork()
    if pid == 0:
        check(shared, 1)
        own = fill(60, child + 2)
        check(own, child + 2)
        check(shared, 1)
        os._exit(7)
    status = os.waitpid(pid, 0)[1]
    assert status == 7 << 8, status
check(shared, 1)
os.write(1, b"all is there\n")
"#
    );
    let argv = ["python3", "-c", &script, place.path().to_str().unwrap()];
    let output = run("48M", &argv).output().unwrap();
    expect(&output, 0);
    assert_eq!(text(&output.stdout), "all is there\n");
    assert!(!text(&output.stderr).contains("is unmanaged"), "{}", text(&output.stderr));
}

/// Nothing of it is registered, with so much memory: what it leaves is never poisoned.
fn helpers_that_return() {
    let script = format!("exec {UNMANAGED} '{}' --attack returning 1 1", this());
    expect(&run("1G", &["sh", "-c", &script]).output().unwrap(), 0);
}

/// A program that forks past the library takes all descriptors. Another one forks still.
///
/// The other one needs more than the limit before that: the enemy's children lack pages. The limit
/// has headroom for these 91, which are unmanaged and have up to 1 MiB of their own each. Otherwise
/// the supervisor would end the largest process for them, which may be the other one.
fn forks_without_end() {
    let enemy = r#"
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
fork = lambda: libc.syscall({"x86_64": 57}[os.uname().machine])
memory = [i.to_bytes(8, "little") * 512 for i in range(10000)]
open(sys.argv[1] + "/is-filled", "w").close()
while not os.path.exists(sys.argv[1] + "/needs-more"):
    time.sleep(0.01)
if fork() == 0:
    for child in range(90):
        if fork() == 0:
            libc.sleep(5)
            os._exit(0)
    libc.sleep(5)
    os._exit(0)
time.sleep(6)
"#;
    let victim = r#"
import os, sys, time
while not os.path.exists(sys.argv[1] + "/is-filled"):
    time.sleep(0.01)
memory = [i.to_bytes(8, "little") * 512 for i in range(50000)]
open(sys.argv[1] + "/needs-more", "w").close()
until = time.time() + 5
while time.time() < until:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    status = os.waitpid(pid, 0)[1]
    assert status == 7 << 8, status
    time.sleep(0.1)
for i, page in enumerate(memory):
    assert page[:8] == i.to_bytes(8, "little"), i
os.write(1, b"all is there\n")
"#;
    if std::env::consts::ARCH != "x86_64" {
        return;
    }
    let place = open_folder();
    let (uzswap, path) = (env!("CARGO_BIN_EXE_uzswap"), place.path());
    fs::write(path.join("enemy"), enemy).unwrap();
    fs::write(path.join("victim"), victim).unwrap();
    let path = path.display();
    let script = format!(
        "ulimit -n 120; exec timeout -s KILL 60 '{uzswap}' run --limit 180M -- \
         sh -c 'python3 {path}/enemy {path} & python3 {path}/victim {path}; echo it ends: $?; wait'"
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    expect(&output, 0);
    let (said, told) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(said, "all is there\nit ends: 0\n", "{told}");
    assert!(told.contains("is not followed any more"), "{told}");
}

/// The library and the socket are for all users of the run, whatever the umask.
fn user_with_umask() {
    let place = open_folder();
    let uzswap = env!("CARGO_BIN_EXE_uzswap");
    let program = copy_for_others(place.path());
    let script = format!(
        "umask 077; exec '{uzswap}' run --limit 48M -- setpriv {} '{}' --check 60",
        NOBODY.join(" "),
        program.display()
    );
    let output =
        Command::new("sh").args(["-c", &script]).env("TMPDIR", place.path()).output().unwrap();
    expect(&output, 0);
    assert_eq!(text(&output.stdout), "all is there\n");
}
