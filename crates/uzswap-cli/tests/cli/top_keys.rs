//! Goal: `uzswap top` obeys its keys on a terminal, and restores the terminal's settings.
//! Method: the real binary on a pseudo-terminal. Runs are sockets that this process answers, with
//! figures of its own. Runs of others may be there.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Lab, send};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::json;
use uzswap_testing::wait_for;

/// Runs: the number, MiB of the pool, the ratio.
const RUNS: [(u32, u64, f64); 3] = [(4_100_001, 9, 2.0), (4_100_002, 20, 3.0), (4_100_003, 5, 5.0)];

const UP: &str = "\x1b[A";
const DOWN: &str = "\x1bOB";
const ESCAPE: &str = "\x1b";

/// A name that would turn the terminal red.
const EVIL: &str = "evil\x1b[31m";

/// Answers as three runs do.
fn answer(lab: &Lab) {
    for (pid, pool_mib, ratio) in RUNS {
        let folder = lab.path(&format!("uzswap-{pid}"));
        std::fs::create_dir(&folder).unwrap();
        let listener = UnixListener::bind(folder.join("status")).unwrap();
        let status = json!({
            "pid": pid,
            "command": [EVIL, pid.to_string()],
            "pool_bytes": pool_mib << 20,
            "limit_bytes": 64 << 20,
            "ratio": ratio,
            "processes": [{"pid": 1, "name": format!("child-of-{pid}"), "stored_pages": 256}],
        });
        thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = write!(stream.unwrap(), "{status}"); // top may have ended
            }
        });
    }
}

/// Opens a terminal of 80 columns: its screen and keyboard, and the end for programs.
fn open_terminal() -> (File, OwnedFd) {
    // A program that inherited the screen would keep the terminal open.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let main = openpt(flags).unwrap();
    grantpt(&main).unwrap();
    unlockpt(&main).unwrap();
    let line = ioctl_tiocgptpeer(&main, flags).unwrap();
    let size = Winsize { ws_row: 40, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&line, size).unwrap();
    (File::from(main), line)
}

fn start_top(lab: &Lab, line: &OwnedFd, has_keyboard: bool) -> Child {
    let stdio = || Stdio::from(line.try_clone().unwrap());
    Command::new(env!("CARGO_BIN_EXE_uzswap"))
        .args(["top", "--interval", "0.1"])
        .env("TMPDIR", lab.directory.path())
        .stdin(if has_keyboard { stdio() } else { Stdio::null() })
        .stdout(stdio())
        .stderr(Stdio::null())
        // In a group of its own: the kernel ignores SIGTSTP in an orphaned group, which that of the
        // tests may be.
        .process_group(0)
        .spawn()
        .unwrap()
}

/// `uzswap top` on a terminal of 80 columns.
struct Terminal {
    top: Child,
    keyboard: File,
    line: OwnedFd,
    before: String,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start(lab: &Lab, has_keyboard: bool) -> Terminal {
        let (keyboard, line) = open_terminal();
        let before = settings(&line);
        let top = start_top(lab, &line, has_keyboard);
        let mut reader = keyboard.try_clone().unwrap();
        let output = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&output);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                written.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Terminal { top, keyboard, line, before, output }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// The last complete picture, without the terminal's sequences.
    fn picture(&self) -> String {
        let output = self.output.lock().unwrap();
        let text = String::from_utf8(output.clone()).unwrap();
        let Some((complete, _)) = text.rsplit_once("\x1b[J") else { return String::new() };
        let picture = complete.rsplit("\x1b[H").next().unwrap();
        let plain = ["\x1b[K", "\x1b[7m", "\x1b[m", "\r"];
        plain.iter().fold(picture.to_owned(), |text, sequence| text.replace(sequence, ""))
    }

    fn wait(&self, what: &str, is_shown: impl Fn(&str) -> bool) -> String {
        wait_for(what, || Some(self.picture()).filter(|picture| is_shown(picture)))
    }

    /// Waits for the three runs in an order.
    fn wait_for_order(&self, order: &str, expected: [usize; 3]) {
        let expected = expected.map(|number| RUNS[number - 1].0);
        self.wait(&format!("the runs by {order}"), |picture| {
            let title = format!("uzswap top, every 0.1 s, by {order}");
            picture.starts_with(&title) && own_runs(picture) == expected
        });
    }

    /// Selects one of the three runs.
    fn select(&mut self, number: usize) {
        let wanted = RUNS[number - 1].0;
        self.press(&UP.repeat(100));
        wait_for("the selection of the run", || {
            let selected = marked(&self.picture());
            if selected != Some(wanted) {
                self.press(DOWN);
                thread::sleep(Duration::from_millis(20));
            }
            (selected == Some(wanted)).then_some(())
        });
    }

    /// Waits for the end; its exit code. The settings are as before.
    fn end(mut self) -> Option<i32> {
        wait_for("the end of top", || self.top.try_wait().unwrap());
        assert_eq!(settings(&self.line), self.before);
        self.top.wait().unwrap().code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.top.kill();
        let _ = self.top.wait();
    }
}

/// All settings of a terminal.
fn settings(line: &OwnedFd) -> String {
    format!("{:?}", tcgetattr(line).unwrap())
}

fn own_runs(picture: &str) -> Vec<u32> {
    let first = |line: &str| line.trim_start_matches('>').split_whitespace().next()?.parse().ok();
    let pids = picture.lines().filter_map(first);
    pids.filter(|pid| RUNS.iter().any(|run| run.0 == *pid)).collect()
}

fn marked(picture: &str) -> Option<u32> {
    let line = picture.lines().find_map(|line| line.strip_prefix('>'))?;
    line.split_whitespace().next()?.parse().ok()
}

#[test]
fn keys_change_the_order_and_the_page() {
    let lab = Lab::new();
    answer(&lab);
    let mut terminal = Terminal::start(&lab, true);
    terminal.wait_for_order("PID", [1, 2, 3]);
    assert_ne!(settings(&terminal.line), terminal.before);
    for (key, order, expected) in [
        ("p", "pool", [2, 1, 3]),
        ("r", "ratio", [3, 2, 1]),
        ("m", "memory", [2, 1, 3]),
        ("f", "faults", [1, 2, 3]),
        ("n", "PID", [1, 2, 3]),
    ] {
        terminal.press(key);
        terminal.wait_for_order(order, expected);
    }
    let picture = terminal.picture();
    assert!(picture.lines().all(|line| line.len() <= 80 && line.is_ascii()), "{picture}");
    assert!(picture.contains("evil?[31m") && !picture.contains('\x1b'), "{picture:?}");
    assert!(picture.trim_end().ends_with("q quit"), "{picture}");

    terminal.select(2);
    terminal.press("\r");
    let processes = terminal.wait("the processes", |picture| picture.contains("PROCESS"));
    assert!(processes.contains("child-of-4100002"), "{processes}");
    assert!(!processes.contains("child-of-4100001"), "{processes}");
    terminal.press(ESCAPE);
    terminal.wait_for_order("PID", [1, 2, 3]);
    terminal.press("\n");
    terminal.wait("the processes", |picture| picture.contains("PROCESS"));
    terminal.press("q");
    terminal.wait_for_order("PID", [1, 2, 3]);
    terminal.press("q");
    assert_eq!(terminal.end(), Some(0));
}

/// A slow line delivers the bytes of a key in pieces.
#[test]
fn a_key_in_two_pieces_is_one_key() {
    let lab = Lab::new();
    answer(&lab);
    let mut terminal = Terminal::start(&lab, true);
    terminal.wait_for_order("PID", [1, 2, 3]);
    terminal.select(1);
    let mut tries = 0;
    while tries < 4 {
        let is_first = marked(&terminal.picture()) == Some(RUNS[0].0);
        let (key, next) = if is_first { (DOWN, RUNS[1].0) } else { (UP, RUNS[0].0) };
        let (escape, rest) = key.split_at(1);
        // After more than one read takes, of a key without an effect: the arrow to the right.
        terminal.press(&"\x1b[C".repeat(100));
        let since = Instant::now();
        terminal.press(escape);
        thread::sleep(Duration::from_millis(8));
        terminal.press(rest);
        // On a busy machine the rest may come too late.
        if since.elapsed() < Duration::from_millis(20) {
            tries += 1;
            terminal.wait("the other run", |picture| marked(picture) == Some(next));
        } else {
            thread::sleep(Duration::from_millis(200));
        }
    }
    terminal.press("q");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn a_terminal_that_is_gone_ends_it() {
    let lab = Lab::new();
    answer(&lab);
    let (mut screen, line) = open_terminal();
    let mut top = start_top(&lab, &line, true);
    drop(line);
    let mut picture = Vec::new();
    while !picture.ends_with(b"\x1b[J") {
        let mut byte = [0];
        screen.read_exact(&mut byte).unwrap();
        picture.extend(byte);
    }
    drop(screen);
    let ended = (0..1000).find_map(|_| {
        thread::sleep(Duration::from_millis(10));
        top.try_wait().unwrap()
    });
    let _ = top.kill();
    assert_eq!(ended.map(|status| status.code()), Some(Some(1)));
}

#[test]
fn signals_restore_the_terminal() {
    let lab = Lab::new();
    answer(&lab);
    for signal in ["-TERM", "-INT", "-HUP"] {
        let terminal = Terminal::start(&lab, true);
        terminal.wait("a picture", |picture| picture.ends_with("q quit\n"));
        assert_ne!(settings(&terminal.line), terminal.before);
        send(signal, terminal.top.id());
        assert_eq!(terminal.end(), Some(0), "{signal}");
    }
}

#[test]
fn a_stop_by_the_keyboard_restores_the_terminal() {
    let lab = Lab::new();
    answer(&lab);
    let mut terminal = Terminal::start(&lab, true);
    terminal.wait("a picture", |picture| picture.ends_with("q quit\n"));
    terminal.press("\x1a");
    let stat = format!("/proc/{}/stat", terminal.top.id());
    wait_for("the stop", || {
        let stat = std::fs::read_to_string(&stat).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('T').then_some(())
    });
    assert_eq!(settings(&terminal.line), terminal.before);
    send("-CONT", terminal.top.id());
    terminal.press("p");
    terminal.wait_for_order("pool", [2, 1, 3]);
    assert_ne!(settings(&terminal.line), terminal.before);
    terminal.press("q");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn without_a_keyboard_the_picture_is_the_same() {
    let lab = Lab::new();
    answer(&lab);
    let mut terminal = Terminal::start(&lab, false);
    terminal.wait_for_order("PID", [1, 2, 3]);
    assert_eq!(settings(&terminal.line), terminal.before);
    terminal.press("p");
    terminal.wait("a picture", |picture| picture.ends_with("Ctrl-C ends it\n"));
    send("-TERM", terminal.top.id());
    assert_eq!(terminal.end(), Some(0));
}
