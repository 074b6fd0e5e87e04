//! The thread that keeps programs and pool under the limit.
//!
//! ```text
//!  near the limit -> watch anonymous memory -> move pages aside -> oldest tray -> store -> drop
//!                    (userfaultfd, once)       (helper, 128 at once)  (copy, compress) (helper)
//! ```
//!
//! Pages that are touched while they are aside come back without compression: a second chance, as
//! there is no accessed bit to ask.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::space::{TRAY_PAGES, Tray};
use super::{Pager, SpaceLock, lock};
use crate::page::{PAGE_SIZE, Page};
use crate::sys::remote;

/// Programs are taken to touch new memory at most this fast: what decides how often they are looked
/// at.
const BYTES_PER_MS_MAX: u64 = 4 << 20;

/// How often programs are looked at, at least.
const LOOK_MAX: Duration = Duration::from_millis(50);
const LOOK_MIN: Duration = Duration::from_millis(1);

/// How often the mappings of programs are looked at while their memory is watched.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// Trays of pages aside that a space may have before the oldest is stored.
const TRAYS_ASIDE: usize = 8;

/// Rounds without any page freed after which nothing can be done about the limit.
const ROUNDS_IN_VAIN: u32 = 200;

pub(super) struct Evictor {
    pager: Arc<Pager>,
    buffer: Box<[Page; TRAY_PAGES]>,
    watched_at: Option<Instant>,
    in_vain: u32,
}

impl Evictor {
    pub(super) fn new(pager: Arc<Pager>) -> Evictor {
        Evictor {
            pager,
            buffer: Box::new([[0; PAGE_SIZE]; TRAY_PAGES]),
            watched_at: None,
            in_vain: 0,
        }
    }

    pub(super) fn run(mut self) {
        while !self.pager.stop.load(Ordering::Relaxed) {
            let used = self.pager.sample();
            let limit = self.pager.limit_bytes;
            let margin = self.pager.margin_bytes();
            // Watching takes a moment, in which programs grow.
            if used > limit.saturating_sub(margin * 4) {
                self.watch();
            }
            if used > limit.saturating_sub(margin) {
                let freed = self.evict();
                self.pager.tell_room();
                if freed > 0 {
                    self.in_vain = 0;
                    continue;
                }
                self.in_vain += 1;
                if self.in_vain >= ROUNDS_IN_VAIN && self.pager.sample() > limit {
                    self.in_vain = 0;
                    self.pager.is_stuck();
                }
            }
            let room_ms = limit.saturating_sub(margin).saturating_sub(used) / BYTES_PER_MS_MAX / 2;
            let pause = Duration::from_millis(room_ms).clamp(LOOK_MIN, LOOK_MAX);
            self.pager.wait(pause);
        }
    }

    /// Watches what is not watched yet: of programs that map or unmap memory at once, of all now
    /// and then, for the two may even out.
    fn watch(&mut self) {
        let is_due = self.watched_at.is_none_or(|at| at.elapsed() >= WATCH_EVERY);
        if is_due {
            self.watched_at = Some(Instant::now());
        }
        for space in self.pager.spaces() {
            let mut space = lock(&space);
            if is_due || space.has_changed() {
                // One that has just ended is told of by its helper.
                let _ = space.watch();
            }
        }
    }

    /// Frees some memory; pages that left it.
    fn evict(&mut self) -> usize {
        let spaces = self.pager.spaces();
        let mut by_size: Vec<(u64, SpaceLock)> = spaces
            .into_iter()
            .map(|space| {
                let bytes = lock(&space).resident_bytes();
                (bytes, space)
            })
            .collect();
        by_size.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        for (_, space) in &by_size {
            match self.evict_from(space) {
                Ok(0) | Err(_) => {}
                Ok(freed) => return freed,
            }
        }
        0
    }

    /// Moves pages of one space aside and stores those that were longest.
    fn evict_from(&mut self, space: &SpaceLock) -> io::Result<usize> {
        let helper = lock(space).helper();
        let Some(helper) = helper else { return Ok(0) };
        let mut is_dry = false;
        while !is_dry && lock(space).filled_trays() < TRAYS_ASIDE {
            let given = lock(space).give_move()?;
            is_dry = !given;
            if given {
                if !helper.wait() {
                    return Ok(0);
                }
                let moved = lock(space).collect();
                if let Some(moved) = moved {
                    self.pager.meter.moved(moved.pages);
                    if !moved.shared.is_empty() && lock(space).give_move_of(&moved.shared)? {
                        if !helper.wait() {
                            return Ok(0);
                        }
                        if let Some(moved) = lock(space).collect() {
                            self.pager.meter.moved(moved.pages);
                        }
                    }
                    is_dry = moved.pages == 0;
                }
            }
        }
        let tray = lock(space).take_tray();
        let Some(tray) = tray else { return Ok(0) };
        let number = tray.number;
        if let Err(error) = self.store(space, tray) {
            lock(space).keep_tray(number);
            return Err(error);
        }
        if lock(space).give_drop(number)? && helper.wait() {
            lock(space).empty_tray(number);
            // All of the tray: also what was taken back, of which there was a copy.
            return Ok(TRAY_PAGES);
        }
        Ok(0)
    }

    /// Puts a tray's pages into the store.
    fn store(&mut self, space: &SpaceLock, tray: Tray) -> io::Result<()> {
        let Some(pid) = lock(space).pid else { return Err(io::ErrorKind::NotFound.into()) };
        let runs = tray.staged.chunk_by(|a, b| a.0 + 1 == b.0);
        let mut stored = 0;
        for run in runs {
            let pages = &mut self.buffer[..run.len()];
            remote::read(pid, run[0].1, pages.as_flattened_mut())?;
            for (&(staged, _), page) in run.iter().zip(pages.iter()) {
                let slot = self.pager.store(page).map_err(io::Error::other)?;
                if lock(space).stored(staged, slot) {
                    stored += 1;
                } else {
                    self.pager.release(slot);
                }
            }
        }
        self.pager.meter.stored(stored);
        Ok(())
    }
}
