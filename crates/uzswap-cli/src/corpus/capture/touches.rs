//! Samples the memory that processes touch, by the kernel's accessed bits.
//!
//! ```text
//!  clear_refs: no page is touched --> the program runs --> smaps: touched pages --> a window
//!        ^                                                                            |
//!        '----------------------------------------------------------------------------'
//! ```
//!
//! A window counts a page once, however often the program touched it. So the pages of a window are
//! the least that the program needed in that time: its working set, by Denning's definition. The
//! kernel does not flush the TLB, so a page may be missed whose translation stayed there: one or
//! two thousand at most.

use std::fs::{self, File};
use std::io::{self, Read};
use std::thread;
use std::time::{Duration, Instant};

use super::CaptureError;
use super::process::processes;
use crate::corpus::working_set::Window;
use uzswap::page::PAGE_SIZE;
use uzswap_sys::signals::SignalsHeld;

/// The shortest time of a window. Shorter ones tell repeated touches apart, and cost more.
const WINDOW: Duration = Duration::from_millis(25);

/// A window lasts so many times as long as its reading took: reading takes a twentieth of the time.
const READING_PART: u32 = 20;

/// A window that a capture cuts off counts from this length on.
const WINDOW_LEAST: Duration = Duration::from_millis(10);

/// Time between two looks for the end of a window.
const POLL: Duration = Duration::from_millis(2);

/// Clears the accessed bits of all pages: `CLEAR_REFS_ALL` of the kernel's fs/proc/task_mmu.c.
const CLEAR_ALL: &str = "1";

/// The windows of some processes.
#[derive(Debug)]
pub(super) struct Touches {
    windows: Vec<Window>,
    /// Start of the running window.
    since: Option<Instant>,
    /// Time between its start and its end.
    length: Duration,
    /// The text of smaps, kept for its memory.
    text: Vec<u8>,
}

impl Touches {
    pub(super) fn new() -> Touches {
        Touches { windows: Vec::new(), since: None, length: WINDOW, text: Vec::new() }
    }

    /// Whether a window is over, or none has begun.
    pub(super) fn is_due(&self) -> bool {
        self.since.is_none_or(|since| since.elapsed() >= self.length)
    }

    /// Ends the window, and begins one. A process that is new since has touched all that it has.
    pub(super) fn turn(&mut self, pids: &[i32]) {
        let reading = Instant::now();
        self.end(pids);
        // Where one has ended, the next call begins the window.
        let are_clear = pids.iter().all(|&pid| clear(pid).is_ok());
        self.length = (reading.elapsed() * READING_PART).max(WINDOW);
        self.since = are_clear.then(Instant::now);
    }

    /// Ends the window. A capture follows, which touches the pages itself.
    pub(super) fn end(&mut self, pids: &[i32]) {
        let Some(since) = self.since.take() else { return };
        let time = since.elapsed();
        if time < WINDOW_LEAST {
            return;
        }
        let mut window = Window { length: time, ..Window::default() };
        for &pid in pids {
            // A process that has ended has no text; its memory is gone.
            let _ = look(pid, &mut window, &mut self.text);
        }
        if window.resident_pages > 0 {
            self.windows.push(window);
        }
    }

    /// The windows so far.
    pub(super) fn into_windows(self) -> Vec<Window> {
        self.windows
    }
}

/// The windows of a process, or of the tree below it, for some time. None where the kernel does not
/// say which pages are touched, or not to us.
pub(super) fn watch(
    pid: i32,
    has_tree: bool,
    time: Duration,
    signals: &SignalsHeld,
) -> Result<Vec<Window>, CaptureError> {
    let (start, mut touches) = (Instant::now(), Touches::new());
    while start.elapsed() < time {
        if let Some(signal) = signals.pending() {
            return Err(CaptureError::Interrupted(signal));
        }
        if touches.is_due() {
            if !is_possible(pid) {
                break;
            }
            touches.turn(&processes(pid, has_tree, &mut Vec::new()));
        }
        thread::sleep(POLL);
    }
    touches.end(&processes(pid, has_tree, &mut Vec::new()));
    Ok(touches.into_windows())
}

/// Whether the kernel says which pages a process touches: one without CONFIG_PROC_PAGE_MONITOR does
/// not.
fn is_possible(pid: i32) -> bool {
    File::options().write(true).open(format!("/proc/{pid}/clear_refs")).is_ok()
}

/// Clears the accessed bits of a process.
pub(super) fn clear(pid: i32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), CLEAR_ALL)
}

/// Adds the pages of a process that were touched since its bits were cleared. `text` is kept for
/// its memory.
pub(super) fn look(pid: i32, window: &mut Window, text: &mut Vec<u8>) -> io::Result<()> {
    text.clear();
    File::open(format!("/proc/{pid}/smaps"))?.read_to_end(text)?;
    add(window, &String::from_utf8_lossy(text)); // names may be anything
    Ok(())
}

/// Adds the anonymous pages of a text of smaps. The text counts touched pages of a mapping together
/// with those of its file; the anonymous ones have their share. Of pages that several processes
/// have, each has its part (`Pss`), where no file's are among them.
fn add(window: &mut Window, smaps: &str) {
    let (mut resident, mut part, mut touched) = (0, 0, 0);
    for line in smaps.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let kib = || value.trim_ascii().strip_suffix(" kB")?.parse::<u64>().ok();
        match name {
            "Rss" => resident = kib().unwrap_or(0),
            "Pss" => part = kib().unwrap_or(0),
            "Referenced" => touched = kib().unwrap_or(0),
            // The last of the three.
            "Anonymous" => {
                let anonymous = match kib().unwrap_or(0) {
                    anonymous if anonymous == resident => part,
                    anonymous => anonymous,
                };
                window.resident_pages += pages(anonymous);
                window.touched_pages += pages(touched * anonymous / resident.max(1));
                (resident, part, touched) = (0, 0, 0);
            }
            _ => {}
        }
    }
}

fn pages(kib: u64) -> u64 {
    kib * 1024 / PAGE_SIZE as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_pages_have_their_share_of_the_touched_ones() {
        let text = "\
55d0-55d1 rw-p 00000000 00:00 0  [heap]\n\
Size:                400 kB\nRss:                 400 kB\nPss:                 200 kB\n\
Referenced:          100 kB\nAnonymous:           400 kB\n\
LazyFree:              0 kB\nVmFlags: rd wr mr\n\
7f00-7f01 r-xp 00000000 fe:01 42  /usr/lib/x.so\n\
Rss:                 800 kB\nReferenced:          800 kB\nAnonymous:             0 kB\n\
7f02-7f03 rw-p 00000000 fe:01 42  /usr/lib/x.so\n\
Rss:                  80 kB\nPss:                  60 kB\n\
Referenced:           40 kB\nAnonymous:            40 kB\n";
        let mut window = Window::default();
        add(&mut window, text);
        assert_eq!((window.touched_pages, window.resident_pages), (12 + 5, 50 + 10));
    }

    /// The pages that this process touches, and no other, count in the next window.
    #[test]
    fn a_window_has_what_was_touched_in_it() {
        let own = [i32::try_from(std::process::id()).unwrap()];
        assert!(is_possible(own[0]), "this kernel has no /proc/PID/clear_refs");
        let mut pages = vec![1_u8; 2048 * PAGE_SIZE];
        let mut touches = Touches::new();
        assert!(touches.is_due());
        touches.turn(&own);
        for page in pages.chunks_mut(PAGE_SIZE).take(1024) {
            page[0] = 2;
        }
        let start = Instant::now();
        while start.elapsed() < WINDOW_LEAST {
            std::thread::yield_now();
        }
        touches.turn(&own);
        // Other tests of this process touch pages, too, and the TLB hides some.
        let window = touches.windows[0];
        assert!(window.touched_pages >= 512, "{window:?}");
        assert!(window.resident_pages - window.touched_pages >= 512, "{window:?}");
        assert!(window.length >= WINDOW_LEAST);
        assert_eq!(pages[0], 2);
    }
}
