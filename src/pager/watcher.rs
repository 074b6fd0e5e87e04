//! The threads that look at the mappings of programs, and watch what is new.
//!
//! To register memory takes the lock of a program's mappings. A thread that changes them may have
//! been put aside with it for some milliseconds, and others grow meanwhile: so there is more than
//! one, and nobody waits for them.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::process_files::Size;
use super::space::{Look, Space, watch};
use super::{Pager, SpaceLock, lock};
use crate::sys::process;

/// While one is held up, the other goes on.
const WATCHERS: usize = 2;

/// How often the mappings of a program are looked at, about, where its size stays the same.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// Spaces that are to be looked at, in turn.
#[derive(Debug, Default)]
pub(super) struct ToWatch {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    spaces: VecDeque<SpaceLock>,
    is_over: bool,
}

impl ToWatch {
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).spaces.is_empty()
    }

    /// Adds those that are due.
    pub(super) fn add(&self, due: Due) {
        for space in due.changed.into_iter().chain(due.longest.map(|(_, space)| space)) {
            lock(&space).looks.is_awaited = true;
            self.state.lock().unwrap_or_else(PoisonError::into_inner).spaces.push_back(space);
            self.changed.notify_one();
        }
    }

    /// Nobody is looked at any more.
    pub(super) fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.changed.notify_all();
    }

    /// Waits for one; `None` at the end.
    fn next(&self) -> Option<SpaceLock> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let has_none = |state: &mut State| state.spaces.is_empty() && !state.is_over;
        let waited = self.changed.wait_while(state, has_none);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_over { None } else { state.spaces.pop_front() }
    }
}

/// Those of some spaces that are to be looked at: where the size has changed, at once; of the
/// others now and then, for what comes and goes may even out, but one at a time, as those that grow
/// are looked at meanwhile.
#[derive(Debug, Default)]
pub(super) struct Due {
    changed: Vec<SpaceLock>,
    longest: Option<(Duration, SpaceLock)>,
}

impl Due {
    /// One, which has this size.
    pub(super) fn see(&mut self, space: &SpaceLock, locked: &Space, size: Size) {
        match locked.looks.due(size) {
            None => {}
            Some(Look::Changed) => self.changed.push(Arc::clone(space)),
            Some(Look::After(time)) => {
                let longest = self.longest.as_ref().map_or(WATCH_EVERY, |(longest, _)| *longest);
                if time >= longest {
                    self.longest = Some((time, Arc::clone(space)));
                }
            }
        }
    }
}

/// Starts them.
pub(super) fn start(pager: &Arc<Pager>) -> io::Result<Vec<JoinHandle<()>>> {
    let work = |pager: Arc<Pager>| {
        process::prefer_this_thread();
        // For some microseconds at a time; where that is not allowed, as soon as may be.
        let _ = process::run_first();
        while let Some(space) = pager.to_watch.next() {
            // One that has just ended is told of by its helper.
            let _ = watch(&space);
            lock(&space).looks.is_awaited = false;
        }
    };
    let start = |_| {
        let pager = Arc::clone(pager);
        thread::Builder::new().name("uzswap-watcher".to_owned()).spawn(move || work(pager))
    };
    (0..WATCHERS).map(start).collect()
}
