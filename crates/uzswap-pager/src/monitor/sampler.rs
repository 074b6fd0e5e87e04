//! The sampler: a thread that measures the usage of programs, and queues memory for the
//! registrars.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::sched_getaffinity;

use crate::Pager;
use crate::fault::Workers;
use crate::fork::pss_survey;
use crate::monitor::{registrar, unmanaged, unmanaged_schedule};
use crate::sched::cpu_share::{CpuSample, CpuShare};
use crate::sched::run_queue::RunQueue;
use crate::sched::watchdog::Watchdog;
use uzswap_sys::process;

/// Most programs have their helper by then.
const HELPER_AFTER: Duration = Duration::from_millis(20);

/// Programs touch new memory at most this fast. The period of samples follows from it.
const BYTES_PER_MS_MAX: u64 = 4 << 20;

/// The period of samples near the limit, and far below it. There samples serve the reported peak:
/// of many programs they take this part of a processor, and come more seldom.
const PERIOD_MIN: Duration = Duration::from_millis(1);
const PERIOD_FAR: Duration = Duration::from_millis(10);
const PERIOD_PART: u32 = 100;
const PERIOD_MAX: Duration = Duration::from_millis(50);

/// The part of a processor for samples while the supervisor's share is used up.
const ORDINARY_PART: u32 = 10;

/// The period of the first samples, and how long it lasts: short programs have a peak, too.
const PERIOD_NEW: Duration = Duration::from_millis(2);
const NEW_FOR: Duration = Duration::from_millis(100);

/// Released slots that are freed at once while nothing is evicted. Fewer are freed once two
/// samples find as many.
const MUCH_RELEASED: usize = 128;

pub(crate) struct Sampler {
    pager: Arc<Pager>,
    server: Arc<Workers>,
    /// Of each worker of the server.
    turns: Vec<Watchdog>,
    /// Of all workers but the first.
    workers: Vec<JoinHandle<io::Result<()>>>,
    registrars: Vec<JoinHandle<()>>,
    tree: Option<JoinHandle<()>>,
    start: Instant,
    /// The thread has real-time priority for short work.
    goes_first: bool,
    /// Once something is shared that has to be known.
    survey: Option<JoinHandle<()>>,
    /// The survey was due at the last sample.
    was_survey_due: bool,
    share: Share,
    /// Slots that the last sample found released.
    released: usize,
}

impl Sampler {
    pub(crate) fn new(pager: Arc<Pager>, server: Arc<Workers>) -> Sampler {
        let turns = pager.sched.turns.each().iter().map(|_| Watchdog::new()).collect();
        let share = Share::new(pager.sched.share_percent);
        Sampler {
            pager,
            server,
            turns,
            workers: Vec::new(),
            registrars: Vec::new(),
            tree: None,
            start: Instant::now(),
            goes_first: false,
            survey: None,
            was_survey_due: false,
            share,
            released: 0,
        }
    }

    pub(crate) fn run(mut self) -> io::Result<()> {
        process::prefer_this_thread();
        self.goes_first = process::run_first().is_ok();
        while !self.pager.wakers.is_stopping() {
            let since = process::thread_time();
            let used = self.pager.sample();
            // Not by the clock: on a busy machine a sample waits, and programs grow meanwhile.
            let took = process::thread_time().saturating_sub(since);
            let goal = self.pager.account.goal_bytes();
            if used > goal || self.note_released() {
                self.pager.wakers.evictor.wake();
            }
            self.keep_others()?;
            let is_survey_due = self.pager.account.is_survey_due();
            if std::mem::replace(&mut self.was_survey_due, is_survey_due) || is_survey_due {
                self.pager.wakers.surveyor.wake();
            }
            self.keep_to_share();
            let is_registered = self.check_turns();
            let room_ms = goal.saturating_sub(used) / BYTES_PER_MS_MAX / 2;
            let most = match self.start.elapsed() < NEW_FOR {
                true => PERIOD_NEW,
                false => (took * PERIOD_PART).clamp(PERIOD_FAR, PERIOD_MAX),
            };
            let pause = Duration::from_millis(room_ms).clamp(PERIOD_MIN, most);
            let pause = if is_registered { PERIOD_MIN } else { pause };
            let least = if self.share.is_raised { Duration::ZERO } else { took * ORDINARY_PART };
            self.pager.wakers.sampler.wait(pause.max(least.min(PERIOD_MAX)));
        }
        self.pager.sched.note_ordinary(self.share.account.ordinary());
        self.workers.drain(..).try_for_each(end_of)
    }

    /// Checks for a starving worker of the server; whether the next check must come soon.
    fn check_turns(&mut self) -> bool {
        let Sampler { pager, server, turns, .. } = self;
        let each = turns.iter_mut().zip(pager.sched.turns.each()).enumerate();
        let checks =
            each.map(|(at, (register, turns))| register.check(turns, || server.is_asked(at)));
        checks.fold(false, |any, is_registered| any | is_registered)
    }

    /// Has all threads but those that keep register over growth run at ordinary priority while the
    /// supervisor's share of the processors is used up, and before others again once it is not.
    fn keep_to_share(&mut self) {
        let Sampler { pager, share, .. } = self;
        let now = Instant::now();
        let is_raised = share.account.see(
            now,
            CpuSample {
                is_contended: share.run_queue.is_contended(pager.sched.turns.giving_way()),
                is_beside_others: pager.sched.is_beside_others(),
                is_ineffective: pager.progress.is_ineffective(now),
            },
            || pager.sched.raised.demanded(),
        );
        if is_raised == std::mem::replace(&mut share.is_raised, is_raised) {
            return;
        }
        pager.sched.note_ordinary(share.account.ordinary());
        pager.sched.set_raised(is_raised);
    }

    /// Notes the number of released slots; whether the evictor must free them although there is
    /// headroom.
    fn note_released(&mut self) -> bool {
        let released = self.pager.store.release_queue().len();
        let before = std::mem::replace(&mut self.released, released);
        released >= MUCH_RELEASED || released > 0 && released == before
    }

    /// When the tree of processes is scanned first. A managed program has a helper by the earlier
    /// time; an unmanaged one may take the limit before the later time.
    fn tree_after(&self) -> Duration {
        if self.pager.spaces().is_empty() { HELPER_AFTER } else { unmanaged_schedule::SOON }
    }

    /// Starts registrars and workers once there is something to register, and the
    /// scans of the tree once the program is not short. Fails if one of these threads has failed.
    fn keep_others(&mut self) -> io::Result<()> {
        if self.registrars.is_empty() && !self.pager.to_scan.is_empty() {
            self.registrars = self.beside_others(|sampler| registrar::start(&sampler.pager))?;
            self.workers = self.beside_others(|sampler| sampler.server.start_others());
        }
        if self.survey.is_none() && self.pager.account.is_survey_due() {
            self.survey = Some(self.beside_others(|sampler| pss_survey::start(&sampler.pager))?);
        }
        let is_grown = self.pager.account.take_growth_of_uncounted();
        match &self.tree {
            Some(_) if is_grown => self.pager.wakers.tree.wake(),
            None if is_grown || self.start.elapsed() >= self.tree_after() => {
                self.tree = Some(self.beside_others(|sampler| unmanaged::start(&sampler.pager))?);
            }
            _ => {}
        }
        let ended = self.registrars.extract_if(.., |thread| thread.is_finished());
        let single = [&mut self.tree, &mut self.survey];
        let single = single.map(|thread| thread.take_if(|thread| thread.is_finished()));
        ended.chain(single.into_iter().flatten()).for_each(end_of);
        let mut ended = self.workers.extract_if(.., |thread| thread.is_finished());
        ended.try_for_each(end_of)
    }

    /// Does what takes longer than some microseconds.
    fn beside_others<T>(&mut self, work: impl FnOnce(&mut Sampler) -> T) -> T {
        if self.goes_first {
            let _ = process::run_when_idle(None, false);
        }
        let done = work(self);
        self.goes_first = self.goes_first && process::run_first().is_ok();
        done
    }
}

/// The supervisor's share of the processors, and what it goes by.
struct Share {
    account: CpuShare,
    run_queue: RunQueue,
    is_raised: bool,
}

impl Share {
    /// In percent of the processors that this process may use.
    fn new(percent: u8) -> Share {
        let processors = sched_getaffinity(None).map_or(1, |set| set.count());
        Share {
            account: CpuShare::new(percent, processors, Instant::now()),
            run_queue: RunQueue::new(processors),
            is_raised: true,
        }
    }
}

/// How a thread has ended.
fn end_of<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
