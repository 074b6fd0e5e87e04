//! The workers: threads of the fault server ([`super::spaces`] says which one reads which space).

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::thread::sched_getaffinity;

use super::FaultServer;
use super::dispatch::{Dispatched, MESSAGES, Unread};
use super::entrance::{Arrival, Entrance};
use super::token::Token;
use super::worker_state::WorkerState;
use crate::Pager;
use crate::lock;
use crate::locks::{FAULT_SERVER, Guard, Lock};
use crate::sched::affinity::Affinity;
use crate::sched::source_mix::SourceMix;

/// Workers at most.
const WORKERS_MAX: usize = 8;

/// Reads of one userfaultfd before the worker turns to others.
const TURNS: usize = 64;

/// How long the end of the run waits for readers of memory of ended programs.
const END_MAX: Duration = Duration::from_secs(1);

/// How long a worker pauses if an address space cannot be read for longer than some microseconds.
const PAUSE: Duration = Duration::from_micros(50);

/// Number of workers: the processors of the calling thread.
pub(crate) fn count() -> usize {
    sched_getaffinity(None).map_or(1, |set| (set.count() as usize).clamp(1, WORKERS_MAX))
}

/// State that the workers share.
#[derive(Debug)]
pub(crate) struct Workers {
    pager: Arc<Pager>,
    entrance: Entrance,
    server: Lock<FaultServer, FAULT_SERVER>,
    /// The epoll set of each worker.
    epolls: Arc<[OwnedFd]>,
    /// A worker has panicked, maybe with nothing locked. Its programs would wait for ever.
    has_failed: AtomicBool,
}

impl Workers {
    /// Workers for programs that connect to this listener; none runs yet.
    pub(crate) fn new(pager: Arc<Pager>, listener: OwnedFd) -> io::Result<Arc<Workers>> {
        let new = |_: &_| epoll::create(epoll::CreateFlags::CLOEXEC);
        let epolls = pager.sched.turns.each().iter().map(new).collect::<Result<Arc<[_]>, _>>()?;
        let entrance = Entrance::new(listener)?;
        let server =
            FaultServer::new(Arc::clone(&pager), entrance.listener(), Arc::clone(&epolls))?;
        let (server, has_failed) = (Lock::new(server), AtomicBool::new(false));
        Ok(Arc::new(Workers { pager, entrance, server, epolls, has_failed }))
    }

    /// The first worker: answers until the end of the run.
    pub(crate) fn run(self: Arc<Self>) -> io::Result<()> {
        Worker::new(self, 0).run()
    }

    /// Starts the other workers, as many as the system allows: one is enough.
    pub(crate) fn start_others(self: &Arc<Self>) -> Vec<JoinHandle<io::Result<()>>> {
        let start = |number| {
            let workers = Arc::clone(self);
            let thread = thread::Builder::new().name("uzswap-server".to_owned());
            let thread = thread.spawn(move || Worker::new(workers, number).run()).ok()?;
            self.lock().spaces.add_worker();
            Some(thread)
        };
        (1..self.epolls.len()).map_while(start).collect()
    }

    /// Whether a message waits for a worker.
    pub(crate) fn is_asked(&self, worker: usize) -> bool {
        let mut fds = [PollFd::new(&self.epolls[worker], PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Takes connections when no worker waits for them, and drops those of strangers.
    fn admit(&self, arrival: io::Result<Arrival>) {
        if let Ok(arrival) = arrival {
            let _ = self.lock().helpers.admit(arrival); // there is no more memory in the kernel
        }
    }

    fn lock(&self) -> Guard<'_, FaultServer, FAULT_SERVER> {
        assert!(!self.has_failed.load(Ordering::Relaxed), "another worker has failed");
        self.pager.sched.turns.lock(&self.server)
    }
}

#[derive(Debug)]
struct Worker {
    workers: Arc<Workers>,
    state: WorkerState,
    /// Address spaces that could not be read in time.
    deferred: BTreeSet<u32>,
    /// Work is left that no descriptor reports.
    is_busy: bool,
}

impl Drop for Worker {
    fn drop(&mut self) {
        if thread::panicking() {
            self.workers.has_failed.store(true, Ordering::Relaxed);
        }
    }
}

impl Worker {
    /// The worker that is the calling thread.
    fn new(workers: Arc<Workers>, number: usize) -> Worker {
        let turns = Arc::clone(&workers.pager.sched.turns.each()[number]);
        let affinity = Affinity::new(Arc::clone(&turns));
        let state = WorkerState {
            number,
            affinity,
            turns,
            sources: SourceMix::default(),
            pages: workers.lock().page_server(),
        };
        Worker { workers, state, deferred: BTreeSet::new(), is_busy: false }
    }

    /// Answers until the end of the run.
    fn run(mut self) -> io::Result<()> {
        let workers = Arc::clone(&self.workers);
        let _raised = workers.pager.sched.raised.raise_this();
        self.state.turns.start();
        let epoll = &workers.epolls[self.state.number];
        let mut events = [const { MaybeUninit::uninit() }; 64];
        let mut checked = Instant::now();
        while !workers.pager.wakers.is_stopping() {
            let timeout = Duration::from_millis(if self.is_busy { 1 } else { 1000 });
            let timeout = Timespec::try_from(timeout).expect("a short time");
            let (ready, _) = match epoll::wait(epoll, &mut events, Some(&timeout)) {
                Ok(ready) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut helpers = Vec::new();
            for event in ready.iter() {
                match Token::of(event.data) {
                    Token::Listener => workers.admit(workers.entrance.accept()),
                    Token::Channel(id) => {
                        let arrival = workers.lock().helpers.take_sent(id);
                        if let Some(arrival) = arrival {
                            workers.admit(workers.entrance.check(arrival));
                        }
                    }
                    Token::Orphan(id) => {
                        workers.lock().orphans.read(id);
                        self.is_busy = true; // it may end
                    }
                    Token::Wake => {
                        workers.pager.wakers.server.clear();
                        self.is_busy = true;
                    }
                    Token::Over => {}
                    // After the userfaultfds: a fork is read before its child says hello.
                    Token::Helper(id) => helpers.push(id),
                    Token::Userfaultfd(id) => self.read(id),
                }
            }
            if self.is_busy || !helpers.is_empty() {
                self.go_on(helpers);
            }
            if self.state.number == 0 && checked.elapsed() >= Duration::from_secs(1) {
                checked = Instant::now();
                workers.lock().check_for_ends();
            }
        }
        if self.state.number == 0 {
            self.release_all();
        }
        Ok(())
    }

    /// Releases the memory of ended programs once no reader has it: for process_vm_readv of
    /// another process missing pages would read as zeros.
    fn release_all(&self) {
        let since = Instant::now();
        loop {
            let mut server = self.workers.lock();
            if server.orphan_all() || since.elapsed() >= END_MAX {
                return;
            }
            drop(server);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reads the messages of a userfaultfd and answers them.
    fn read(&mut self, id: u32) {
        for turn in 0..TURNS {
            let Some(mut answered) = self.answer(id) else { return };
            if let Err(unread) = &answered {
                if *unread != Unread::IsLocked {
                    thread::yield_now();
                }
                let Some(again) = self.answer(id) else { return };
                answered = again;
            }
            let count = match answered {
                Ok(count) => count,
                Err(unread) => {
                    self.deferred.insert(id);
                    self.is_busy = true;
                    if !matches!(unread, Unread::Moves | Unread::IsLocked) {
                        thread::sleep(PAUSE);
                    }
                    return;
                }
            };
            if count == MESSAGES {
                continue; // there may be more
            }
            if count == 0 && turn == 1 {
                self.state.affinity.note_running_on();
            }
            if count == 0 || !self.state.affinity.gives_way() {
                return;
            }
        }
    }

    /// Reads some messages of a userfaultfd and answers them; how many, or `None` where its space
    /// is gone.
    fn answer(&mut self, id: u32) -> Option<Result<usize, Unread>> {
        let mut server = self.workers.lock();
        let shared = server.spaces.get(id).cloned()?;
        let dispatched = server.dispatch(&mut self.state, id, &shared);
        self.is_busy |= server.is_busy();
        let may_join = server.waiting.is_empty();
        drop(server);
        let Dispatched { count, space, faults, guard, rest } = match dispatched {
            Ok(dispatched) => dispatched,
            Err(unread) => {
                if unread == Unread::IsLocked {
                    drop(lock(&shared)); // waits
                }
                return Some(Err(unread));
            }
        };
        let waiting = self.state.pages.serve_all(&shared, space, faults);
        if count > 0 {
            self.state.turns.end();
        }
        let may_join = may_join && waiting.is_empty();
        if rest.is_any() || !waiting.is_empty() {
            let mut server = self.workers.lock();
            server.finish(id, &shared, rest);
            server.add_waiting(waiting);
            self.is_busy |= server.is_busy();
        }
        self.state.wake(may_join);
        drop(guard); // once it is woken
        Some(Ok(count))
    }

    /// Reads messages of helpers, and continues work that could not be done at once.
    fn go_on(&mut self, helpers: Vec<u32>) {
        self.workers.lock().hear_helpers(helpers);
        std::mem::take(&mut self.deferred).into_iter().for_each(|id| self.read(id));
        self.workers.lock().go_on();
        if self.try_waiting() {
            self.try_waiting();
        }
        let server = self.workers.lock();
        self.is_busy = server.is_busy() || !self.deferred.is_empty();
        let may_join = server.waiting.is_empty();
        let last = server.spaces.get(self.state.sources.last()).cloned();
        drop(server);
        let wake_ups = &self.state.pages.wake_ups;
        let own = || last.map(|space| Arc::clone(&lock(&space).uffd));
        if !wake_ups.is_empty() && wake_ups.has_other_than(own().as_ref()) {
            // The faulting thread of this worker runs before these are woken.
            self.state.affinity.leave();
        }
        self.state.wake(may_join);
    }

    /// Tries the faults that wait; whether it must try them once more.
    fn try_waiting(&mut self) -> bool {
        let mut server = self.workers.lock();
        let FaultServer { waiting, spaces, .. } = &mut *server;
        let faults = waiting.take(|id| spaces.get(id).cloned());
        if faults.is_empty() {
            server.note_awaited();
            return false;
        }
        drop(server);
        let mut not_served = Vec::new();
        for (fault, space) in faults {
            not_served.extend(self.state.pages.serve_all(&space, lock(&space), vec![fault]));
        }
        let mut server = self.workers.lock();
        let are_due = server.waiting.put_back(not_served);
        server.note_awaited();
        are_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_worker_that_panics_with_nothing_locked_ends_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let workers = Workers::new(Arc::new(Pager::for_tests()), listener.into()).unwrap();
        drop(Worker::new(Arc::clone(&workers), 0));
        drop(workers.lock());
        let failing = Arc::clone(&workers);
        let failing = thread::spawn(move || {
            let _worker = Worker::new(failing, 0);
            panic!("on purpose");
        });
        failing.join().unwrap_err();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(workers.lock()))).is_err());
    }
}
