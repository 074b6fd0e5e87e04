//! The view on a terminal: draws each sample, and answers keys at once.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use super::rates::{History, TopRun};
use super::sampler::{Sample, Sampler};
use super::state::{Key, State, Then};
use super::terminal::Terminal;
use super::view::{About, Size, picture};
use crate::cli::{Failure, window, write_out};
use uzswap_pager::NoAnswer;
use uzswap_sys::interrupt;

/// How soon Ctrl-C and another size of the terminal are seen, and how soon a sample that was begun.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOK_FOR_SAMPLE: Duration = Duration::from_millis(5);

/// The view.
pub(super) struct Screen {
    terminal: Option<Terminal>,
    interval: Duration,
    state: State,
    history: History,
    runs: Vec<TopRun>,
    silent: BTreeSet<u32>,
    /// The size of the last picture.
    drawn: Option<Size>,
}

/// The course of the view after one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Continue,
    End,
}

/// A sample, as the view took it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// The view has new figures.
    New,
    /// The only run did not answer: the figures stay.
    Silent,
    /// The only run has ended.
    Ended,
}

impl Screen {
    /// With a sample every `interval`.
    pub(super) fn new(interval: Duration) -> Screen {
        Screen {
            terminal: Terminal::open(),
            interval,
            state: State::default(),
            history: History::default(),
            runs: Vec::new(),
            silent: BTreeSet::new(),
            drawn: None,
        }
    }

    /// Draws until a key or a signal ends it, the only run has ended, or `count` samples are drawn.
    /// `record` takes each sample.
    ///
    /// # Errors
    ///
    /// No run to show, of `record`, and of writes to the terminal.
    pub(super) fn show(
        mut self,
        mut sampler: Sampler,
        count: Option<u64>,
        mut record: impl FnMut(&[TopRun]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut samples = 0;
        let mut next = Instant::now();
        while !interrupt::noted() {
            if !sampler.is_busy() && Instant::now() >= next {
                sampler.begin()?;
                next = (next + self.interval).max(Instant::now());
            }
            if let Some(sample) = sampler.take(Duration::ZERO) {
                match self.take(sample)? {
                    Taken::New => record(&self.runs)?,
                    Taken::Silent => {}
                    Taken::Ended => return Ok(()),
                }
                samples += 1;
                if self.draw()? == Course::End || count == Some(samples) {
                    return Ok(());
                }
            }
            if self.answer_keys(sampler.is_busy())? == Course::End {
                return Ok(());
            }
        }
        if self.terminal.is_none() {
            write_out(b"\n")?; // after the ^C of the terminal
        }
        Ok(())
    }

    /// Takes a sample into the view.
    fn take(&mut self, sample: Sample) -> Result<Taken, Failure> {
        let is_first = self.drawn.is_none();
        match sample {
            Ok(survey) => {
                self.runs = self.history.next(survey.runs);
                self.silent = survey.silent;
                self.state.arrange(&mut self.runs);
                Ok(Taken::New)
            }
            Err(error) if is_first => Err(error.into()),
            Err(NoAnswer::NoRun { .. }) => Ok(Taken::Ended),
            Err(NoAnswer::Silent { pid, .. } | NoAnswer::Full { pid }) => {
                self.silent = BTreeSet::from([pid]);
                Ok(Taken::Silent)
            }
        }
    }

    /// Waits for keys, for a short time.
    fn answer_keys(&mut self, is_busy: bool) -> Result<Course, Failure> {
        let wait = if is_busy && self.drawn.is_none() { LOOK_FOR_SAMPLE } else { LOOK_EVERY };
        let keys = match &mut self.terminal {
            Some(terminal) => terminal.read(wait),
            None => {
                thread::sleep(wait);
                Vec::new()
            }
        };
        for &key in &keys {
            if self.state.press(key, &mut self.runs) == Then::End {
                return Ok(Course::End);
            }
            if key == Key::Resumed {
                self.drawn = self.drawn.map(|_| Size { columns: 0, lines: 0 }); // clears
            }
        }
        let is_old = self.drawn.is_some_and(|drawn| !keys.is_empty() || drawn != size());
        if is_old { self.draw() } else { Ok(Course::Continue) }
    }

    /// Draws over the last picture.
    fn draw(&mut self) -> Result<Course, Failure> {
        let size = size();
        let about = About {
            interval: self.interval,
            silent: &self.silent,
            has_keys: self.terminal.is_some(),
        };
        let is_over_same = self.drawn.replace(size) == Some(size);
        let mut text = if is_over_same { "\x1b[H" } else { "\x1b[2J\x1b[H" }.to_owned();
        for line in picture(&self.state, &self.runs, &about, size) {
            // Reverse video for the selected run.
            let (on, off) = if line.is_selected { ("\x1b[7m", "\x1b[m") } else { ("", "") };
            text += &format!("{on}{}{off}\x1b[K\n", line.text);
        }
        text += "\x1b[J";
        Ok(if write_out(text.as_bytes())? { Course::Continue } else { Course::End })
    }
}

/// The terminal's size.
fn size() -> Size {
    window::size().map_or(Size::TERMINAL, |(columns, lines)| Size { columns, lines })
}
