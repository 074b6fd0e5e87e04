//! Messages of the supervisor on standard error, written by a thread of their own.
//!
//! A program may have the supervisor's standard error, and it may be a pipe. A program that writes
//! an evicted page to the pipe holds the kernel's lock of the pipe until the page is back. A full
//! pipe waits for its reader. No thread that serves programs may wait for either.

use std::backtrace::Backtrace;
use std::collections::VecDeque;
use std::panic;
use std::sync::Condvar;
use std::{io, thread};

use crate::locks::{Lock, MESSAGES};
use uzswap_sys::{process, stderr};

/// Messages that wait; more are counted only.
const WAITING_MAX: usize = 1 << 8;

static QUEUE: Queue = Queue::new();

/// A message, or a failed thread's last words: to the thread that writes, if there is one.
pub(crate) fn log(text: &str) {
    if !QUEUE.push(text) {
        stderr::log(text);
    }
}

/// The message for a supervisor that has reached its limit of descriptors.
pub(crate) fn too_many_files(error: &io::Error) -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.unwrap_or(u64::MAX);
    format!("{error}: the limit is {limit} (ulimit -n), and each process needs 10")
}

/// Bytes in MiB.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The thread that writes. Dropped, all messages are written.
#[derive(Debug)]
pub(crate) struct Messages(());

impl Messages {
    /// Starts it. From here on a thread that panics says so through it, too.
    pub(crate) fn start() -> io::Result<Messages> {
        let work = || {
            process::keep_capabilities_for_programs();
            QUEUE.write_all(stderr::log);
        };
        QUEUE.state.lock().is_open = true; // before the thread reads it
        let started = thread::Builder::new().name("uzswap-messages".to_owned()).spawn(work);
        if let Err(error) = started {
            QUEUE.state.lock().is_open = false;
            return Err(error);
        }
        panic::set_hook(Box::new(|why| log(&format!("{why}\n{}", Backtrace::capture()))));
        Ok(Messages(()))
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        if !thread::panicking() {
            drop(panic::take_hook());
        }
        QUEUE.close();
    }
}

struct Queue {
    state: Lock<State, MESSAGES>,
    changed: Condvar,
}

struct State {
    is_open: bool,
    /// Whether one is being written.
    is_writing: bool,
    waiting: VecDeque<String>,
    /// Messages that found no place.
    missed: u64,
}

impl Queue {
    const fn new() -> Queue {
        let state =
            State { is_open: false, is_writing: false, waiting: VecDeque::new(), missed: 0 };
        Queue { state: Lock::new(state), changed: Condvar::new() }
    }

    /// Never waits. `false` if the queue is closed: the message is the caller's.
    fn push(&self, text: &str) -> bool {
        let mut state = self.state.lock();
        if !state.is_open {
            return false;
        }
        if state.waiting.len() < WAITING_MAX {
            state.waiting.push_back(text.to_owned());
        } else {
            state.missed += 1;
        }
        self.changed.notify_all();
        true
    }

    /// Writes the messages until the queue is closed.
    fn write_all(&self, write: impl Fn(&str)) {
        let mut state = self.state.lock();
        loop {
            let text = state.waiting.pop_front().or_else(|| missed(&mut state));
            if let Some(text) = text {
                state.is_writing = true;
                drop(state);
                write(&text);
                state = self.state.lock();
                state.is_writing = false;
                continue;
            }
            self.changed.notify_all(); // for `close`
            if !state.is_open {
                return;
            }
            state = state.wait(&self.changed);
        }
    }

    /// Waits until all is written.
    fn close(&self) {
        let mut state = self.state.lock();
        state.is_open = false;
        self.changed.notify_all();
        while !state.waiting.is_empty() || state.missed > 0 || state.is_writing {
            state = state.wait(&self.changed);
        }
    }
}

/// A message about those that found no place.
fn missed(state: &mut State) -> Option<String> {
    let count = std::mem::take(&mut state.missed);
    (count > 0).then(|| format!("{count} messages are missing here: standard error was full"))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn a_message_waits_for_nobody_and_is_written_at_last() {
        let queue = Queue::new();
        assert!(!queue.push("before"));
        queue.state.lock().is_open = true;
        let written = Mutex::new(Vec::new());
        // A pipe that nobody reads, until it is opened.
        let (opened, open) = sync_channel::<()>(0);
        let open = Mutex::new(open);
        thread::scope(|scope| {
            scope.spawn(|| {
                queue.write_all(|text| {
                    let _ = open.lock().unwrap().recv();
                    written.lock().unwrap().push(text.to_owned());
                });
            });
            assert!(queue.push("first"));
            while !queue.state.lock().is_writing {
                thread::yield_now();
            }
            for number in 0..WAITING_MAX + 3 {
                assert!(queue.push(&number.to_string()));
            }
            drop(opened);
            queue.close();
            let written = written.lock().unwrap();
            assert_eq!(written.len(), 1 + WAITING_MAX + 1);
            assert_eq!((&*written[0], &*written[1]), ("first", "0"));
            assert_eq!(
                written.last().unwrap(),
                "3 messages are missing here: standard error was full"
            );
        });
        assert!(!queue.push("after"));
    }
}
