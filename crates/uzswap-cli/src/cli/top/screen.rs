//! The view on a terminal: draws each sample, and answers keys at once.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use super::rates::{History, TopRun};
use super::sampler::Sampler;
use super::state::{Key, State, Then};
use super::terminal::Terminal;
use super::view::{About, Size, picture};
use crate::cli::{Failure, write_out};
use uzswap_pager::{NoAnswer, Survey};
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
            let mut course = Course::Continue;
            if let Some(sample) = sampler.take(Duration::ZERO) {
                course = self.take(sample)?;
                if course == Course::Continue {
                    samples += 1;
                    record(&self.runs)?;
                    course = self.draw()?;
                }
                if count == Some(samples) {
                    course = Course::End;
                }
            }
            if course == Course::End || self.answer_keys(sampler.is_busy())? == Course::End {
                return Ok(());
            }
        }
        if self.terminal.is_none() {
            write_out(b"\n")?; // after the ^C of the terminal
        }
        Ok(())
    }

    /// Takes a sample into the view.
    fn take(&mut self, sample: Result<Survey, NoAnswer>) -> Result<Course, Failure> {
        let is_first = self.drawn.is_none();
        match sample {
            Ok(survey) => {
                self.runs = self.history.next(survey.runs);
                self.silent = survey.silent;
                self.state.arrange(&mut self.runs);
            }
            Err(NoAnswer::NoRun { .. }) if !is_first => return Ok(Course::End), // it has ended
            // The last picture stays.
            Err(NoAnswer::Silent { pid, .. } | NoAnswer::Full { pid }) if !is_first => {
                self.silent = BTreeSet::from([pid]);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Course::Continue)
    }

    /// Waits for keys, for a short time.
    fn answer_keys(&mut self, is_busy: bool) -> Result<Course, Failure> {
        let wait = if is_busy && self.drawn.is_none() { LOOK_FOR_SAMPLE } else { LOOK_EVERY };
        let keys = match &mut self.terminal {
            Some(terminal) => terminal.read(wait),
            None => {
                std::thread::sleep(wait);
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
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let size = size
        .map(|size| Size { columns: usize::from(size.ws_col), lines: usize::from(size.ws_row) });
    size.filter(|size| size.columns > 0 && size.lines > 0).unwrap_or(Size::TERMINAL)
}
