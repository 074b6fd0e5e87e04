//! The terminal as a keyboard: each key at once and without an echo, until this is dropped.
//!
//! Ctrl-C stays a signal, so it also ends a `top` that hangs. Ctrl-Z arrives as a key: the settings
//! are restored before the process stops. A stop from outside (`kill -STOP`) restores nothing; the
//! shell has settings of its own.
//!
//! Crossterm 0.29 takes an Escape for a key where the rest of a sequence comes a moment later. On a
//! terminal that is gone it reads without an end: docs/experiments/2026-11-30-top-library.md.

use std::io;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
};

use super::state::Key;

const ESCAPE: u8 = 0x1b;
const CTRL_Z: u8 = 0x1a;
const CTRL_BACKSLASH: u8 = 0x1c;

/// The value of a special character that no key has.
const NO_KEY: u8 = 0;

/// How long the rest of a key's sequence may take. Escape alone is a key, too.
const REST_OF_SEQUENCE: Duration = Duration::from_millis(25);

/// Bytes of the longest sequence that a key sends.
const SEQUENCE_MAX: usize = 16;

/// Standard input, if it is a terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    /// The settings from before it was set to keys.
    before: Termios,
    is_raw: bool,
    /// The start of a sequence.
    held: Vec<u8>,
}

impl Terminal {
    /// Standard input, with its settings as they are; `None` where it is no terminal.
    pub(super) fn open() -> Option<Terminal> {
        let before = tcgetattr(io::stdin()).ok()?;
        Some(Terminal { before, is_raw: false, held: Vec::new() })
    }

    /// The keys that were pressed, after `wait` at most. In the background there are none.
    pub(super) fn read(&mut self, wait: Duration) -> Vec<Key> {
        if !is_in_foreground() || !self.make_raw() {
            thread::sleep(wait);
            return Vec::new();
        }
        let mut keys = self.read_some(wait).unwrap_or_default();
        while !self.held.is_empty()
            && let Some(more) = self.read_some(REST_OF_SEQUENCE)
        {
            keys.extend(more);
        }
        if self.held == [ESCAPE] {
            keys.push(Key::Escape);
        }
        self.held.clear();
        keys
    }

    /// Keys of what comes within `wait`; `None` if nothing does.
    fn read_some(&mut self, wait: Duration) -> Option<Vec<Key>> {
        let timeout = Timespec::try_from(wait).expect("a short time");
        let stdin = io::stdin();
        let is_ready = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout));
        if !is_ready.is_ok_and(|count| count > 0) {
            return None; // a signal, too
        }
        let mut bytes = [0; 64];
        match rustix::io::read(&stdin, &mut bytes) {
            Ok(0) | Err(_) => {
                thread::sleep(wait); // the terminal is gone: a hangup follows
                None
            }
            Ok(count) => {
                self.held.extend_from_slice(&bytes[..count]);
                Some(self.take_keys())
            }
        }
    }

    fn take_keys(&mut self) -> Vec<Key> {
        let (codes, rest) = decode(&self.held);
        self.held = rest.to_vec();
        codes.into_iter().map(|code| self.key_of(code)).collect()
    }

    fn key_of(&mut self, code: Code) -> Key {
        match code {
            Code::Key(key) => key,
            Code::Suspend => {
                self.restore();
                // Ignored where no shell would continue it.
                let _ = kill_process(getpid(), Signal::TSTP);
                Key::Resumed
            }
        }
    }

    /// Sets the terminal to keys, unless it is; whether it is.
    fn make_raw(&mut self) -> bool {
        let Ok(mut settings) = tcgetattr(io::stdin()) else { return false };
        let lines = LocalModes::ICANON | LocalModes::ECHO;
        // A shell that continues this process may have restored its own settings.
        if settings.local_modes.intersects(lines) {
            if !self.is_raw {
                // The settings of now: a program in the foreground may have others.
                self.before = settings.clone();
            }
            settings.local_modes.remove(lines | LocalModes::IEXTEN);
            for code in [SpecialCodeIndex::VSUSP, SpecialCodeIndex::VQUIT] {
                settings.special_codes[code] = NO_KEY;
            }
            settings.special_codes[SpecialCodeIndex::VMIN] = 1;
            settings.special_codes[SpecialCodeIndex::VTIME] = 0;
            self.is_raw |= tcsetattr(io::stdin(), OptionalActions::Now, &settings).is_ok();
        }
        self.is_raw
    }

    /// Restores the settings. In the background that would stop the process, and is the shell's.
    fn restore(&mut self) {
        if self.is_raw && is_in_foreground() {
            // Now: a terminal that holds its output back would delay the end.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
        }
        self.is_raw = false;
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Whether this process may read from its terminal. One that does not control it always may.
fn is_in_foreground() -> bool {
    tcgetpgrp(io::stdin()).map_or(true, |group| group == getpgrp())
}

/// The meaning of a key's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    Key(Key),
    /// Ctrl-Z.
    Suspend,
}

/// The keys of a terminal's bytes, and the start of a sequence at their end. Unknown sequences and
/// bytes are no keys.
fn decode(mut bytes: &[u8]) -> (Vec<Code>, &[u8]) {
    let mut codes = Vec::new();
    while let Some((&first, after)) = bytes.split_first() {
        let (code, rest) = match (first, after) {
            (ESCAPE, [b'[' | b'O', parts @ ..]) => {
                let is_last = |byte: &u8| (0x40..=0x7e).contains(byte);
                match parts.iter().position(is_last) {
                    Some(last) => (key_of_sequence(parts[last]), &parts[last + 1..]),
                    None if bytes.len() < SEQUENCE_MAX => break,
                    None => (None, &[][..]),
                }
            }
            (ESCAPE, []) => break,
            _ => (key_of_byte(first), after),
        };
        codes.extend(code);
        bytes = rest;
    }
    (codes, bytes)
}

fn key_of_sequence(last: u8) -> Option<Code> {
    match last {
        b'A' => Some(Code::Key(Key::Up)),
        b'B' => Some(Code::Key(Key::Down)),
        _ => None,
    }
}

fn key_of_byte(byte: u8) -> Option<Code> {
    Some(Code::Key(match byte {
        ESCAPE => Key::Escape,
        b'\r' | b'\n' => Key::Enter,
        CTRL_BACKSLASH => Key::Quit,
        CTRL_Z => return Some(Code::Suspend),
        _ if byte.is_ascii_graphic() => Key::Char(char::from(byte)),
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_keys_and_sequences() {
        let keys = |bytes: &[u8]| {
            let (codes, rest) = decode(bytes);
            let key = |code| match code {
                Code::Key(key) => key,
                Code::Suspend => Key::Resumed,
            };
            (codes.into_iter().map(key).collect::<Vec<Key>>(), rest.len())
        };
        let chars = |text: &str| text.chars().map(Key::Char).collect::<Vec<Key>>();
        assert_eq!(keys(b""), (vec![], 0));
        assert_eq!(keys(b"fq\xc3\xa4\0 "), (chars("fq"), 0));
        assert_eq!(
            keys(b"\r\n\x1a\x1c"),
            (vec![Key::Enter, Key::Enter, Key::Resumed, Key::Quit], 0)
        );
        assert_eq!(keys(b"\x1b[A\x1bOB\x1b[1;5Aj").0[..3], [Key::Up, Key::Down, Key::Up]);
        // Other keys: page down, F5.
        assert_eq!(keys(b"\x1b[6~\x1b[15~k"), (chars("k"), 0));
        for held in [&b"\x1b"[..], b"\x1b[", b"\x1bO", b"\x1b[15;2"] {
            assert_eq!(keys(&[b"n", held].concat()), (chars("n"), held.len()));
        }
        assert_eq!(keys(b"\x1bq"), (vec![Key::Escape, Key::Char('q')], 0));
        assert_eq!(keys(b"\x1b\x1b[A"), (vec![Key::Escape, Key::Up], 0));
        assert_eq!(keys(&[b"\x1b[", &[b'0'; SEQUENCE_MAX][..]].concat()), (vec![], 0));
    }
}
