//! Threads that read pages from the file behind the pool: the server waits for none of them, and
//! several are read at once.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar};
use std::thread::JoinHandle;

use super::PageStore;
use crate::locks::{Lock, READ_QUEUE};
use crate::wakers::Wakers;
use uzswap::page::{PAGE_SIZE, Page};

/// How many pages are read at once.
const THREADS: usize = 4;

/// Pages that were read and may wait to be taken: some were not asked for after all, or by who has
/// ended. One that is forgotten too early is read again.
const READ_MAX: usize = 64;

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Reader {
    work: Arc<Work>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Work {
    store: Arc<PageStore>,
    wakers: Arc<Wakers>,
    state: Lock<State, READ_QUEUE>,
    asked: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Slots to read, the first one first.
    queue: VecDeque<u32>,
    /// By slot, which is held so long: another page does not get it meanwhile.
    pages: BTreeMap<u32, Reading>,
    /// Slots that were read, the oldest first; some have been taken since.
    read: VecDeque<u32>,
    is_over: bool,
}

#[derive(Debug)]
struct Reading {
    /// `None` while it is read; else the page, or in words why it cannot be had.
    content: Option<Result<Box<Page>, String>>,
    /// Nobody waits for it.
    is_ahead: bool,
}

impl Reader {
    /// Starts the threads.
    pub(crate) fn start(store: &Arc<PageStore>, wakers: &Arc<Wakers>) -> io::Result<Reader> {
        let work = Arc::new(Work {
            store: Arc::clone(store),
            wakers: Arc::clone(wakers),
            state: Lock::default(),
            asked: Condvar::new(),
        });
        let mut reader = Reader { work, threads: Vec::new() };
        for _ in 0..THREADS {
            let work = Arc::clone(&reader.work);
            let thread = std::thread::Builder::new().name("uzswap-reader".to_owned());
            reader.threads.push(thread.spawn(move || work.run())?);
        }
        Ok(reader)
    }

    /// Fills `page` with that of a slot that somebody waits for; in words why that cannot be.
    /// `None` where it is read still: the server is woken once it is there.
    pub(crate) fn take(&self, slot: u32, page: &mut Page) -> Option<Result<(), String>> {
        let mut state = self.work.state.lock();
        match state.pages.get_mut(&slot) {
            None => {
                self.work.ask(&mut state, slot, false);
                return None;
            }
            Some(reading) if reading.content.is_none() => {
                reading.is_ahead = false;
                return None;
            }
            Some(_) => {}
        }
        let content = state.pages.remove(&slot).and_then(|reading| reading.content)?;
        drop(state);
        self.work.store.release(slot);
        Some(content.map(|content| page.copy_from_slice(&*content)))
    }

    /// As that, of a slot that nobody waits for; `None` where it was not read.
    pub(crate) fn take_if_read(&self, slot: u32, page: &mut Page) -> Option<Result<(), String>> {
        let is_read = |reading: &Reading| reading.content.is_some();
        let has_it = self.work.state.lock().pages.get(&slot).is_some_and(is_read);
        if has_it { self.take(slot, page) } else { None }
    }

    /// A slot will be asked for, it may be.
    pub(crate) fn want(&self, slot: u32) {
        let mut state = self.work.state.lock();
        if !state.pages.contains_key(&slot) {
            self.work.ask(&mut state, slot, true);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.work.state.lock().is_over = true;
        self.work.asked.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Work {
    /// Has a slot read, which its page holds now.
    fn ask(&self, state: &mut State, slot: u32, is_ahead: bool) {
        self.store.share(slot);
        state.pages.insert(slot, Reading { content: None, is_ahead });
        state.queue.push_back(slot);
        self.asked.notify_one();
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while !state.is_over {
            let Some(slot) = state.queue.pop_front() else {
                state = state.wait(&self.asked);
                continue;
            };
            drop(state);
            let mut page = Box::new([0; PAGE_SIZE]);
            let content = self.store.load(slot, &mut page).map(|()| page);
            state = self.state.lock();
            let Some(reading) = state.pages.get_mut(&slot) else { continue };
            reading.content = Some(content);
            if !reading.is_ahead {
                self.wakers.server.wake();
            }
            state.read.push_back(slot);
            self.forget_some(&mut state);
        }
    }

    /// Forgets the oldest pages that nobody has taken.
    fn forget_some(&self, state: &mut State) {
        while state.read.len() > READ_MAX {
            let Some(slot) = state.read.pop_front() else { return };
            if state.pages.get(&slot).is_some_and(|reading| reading.content.is_some()) {
                state.pages.remove(&slot);
                self.store.release(slot);
            }
        }
    }
}
