//! The supervisor's side of a helper: gives it commands to move pages. The helper carries them out
//! while no other change of these pages is pending.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::thread::futex;

use crate::locks::{HELPER, Lock};
use crate::page_table::BATCH_PAGES;
use crate::program::polled::Polled;
use crate::program::vmas::Rights;
use crate::range_set::overlap;
use uzswap::page::PAGE_SIZE;
use uzswap_preload::SharedControl;
use uzswap_preload::protocol::{
    FORKING_MAX, MAP_ANEW, MESSAGE_BYTES, Message, RUNS_MAX, holder, kind, work,
};
use uzswap_sys::foreign::Foreign;
use uzswap_sys::peer;

const _: () = assert!(BATCH_PAGES <= RUNS_MAX);

const PAGE: u64 = PAGE_SIZE as u64;

/// The time after which the evictor asks whether the process was stopped: then it waits longer.
const ANSWER_SOON: Duration = Duration::from_millis(2);

/// From then on, the evictor goes on as if the helper had nothing to do. A busy machine makes some
/// so late.
const LATE: Duration = Duration::from_millis(100);

/// How long the evictor waits at most for late helpers, and one part in so many of its time. Others
/// have pages, too, and wait for the evictor.
const WAIT_MAX: Duration = Duration::from_millis(20);
const WAIT_PART: u32 = 8;

/// The rest of the time that the evictor may wait for late helpers.
#[derive(Debug)]
pub(crate) struct Patience {
    /// When the part of the time is over that its waits until now are.
    used_up_to: Instant,
}

impl Patience {
    /// All of it.
    pub(crate) fn new(now: Instant) -> Patience {
        Patience { used_up_to: now }
    }

    fn left(&self, now: Instant) -> Duration {
        let used = self.used_up_to.saturating_duration_since(now) / WAIT_PART;
        WAIT_MAX.saturating_sub(used)
    }

    fn waited(&mut self, now: Instant, time: Duration) {
        self.used_up_to = self.used_up_to.max(now) + time * WAIT_PART;
    }
}

#[derive(Debug)]
pub(crate) struct Helper {
    connection: Polled<Foreign>,
    control: SharedControl,
    staging: u64,
    /// The evictor has waited for it, and no answer has come.
    is_late: AtomicBool,
    /// When the supervisor sent its last command.
    commanded: Lock<Option<Instant>, HELPER>,
}

/// What is heard of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    Done,
    /// Nothing yet.
    Late,
    /// The helper is gone.
    Gone,
}

/// A command of the helper.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) number: u32,
    /// Of [`uzswap_preload::protocol::work`].
    pub(crate) work: u32,
    /// The batch is mapped anew first, with these rights.
    pub(crate) anew: Option<Rights>,
    /// The batch that is filled.
    pub(crate) batch: Option<usize>,
    pub(crate) runs: Vec<MoveRun>,
    /// The batch whose memory is given back.
    pub(crate) drops: Option<usize>,
}

impl Command {
    /// Whether it moves pages by mremap.
    pub(crate) fn is_remap(&self) -> bool {
        work::is_remap(self.work)
    }
}

/// Adjacent pages that are moved to adjacent pages of staging.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MoveRun {
    pub(crate) page: u64,
    pub(crate) count: usize,
    /// Its first page of staging.
    pub(crate) staged: usize,
    /// How many of them were moved, as far as it was noted.
    pub(crate) moved: usize,
    /// Those among them that were missing.
    pub(crate) missing: usize,
    /// The supervisor may have removed markers since it gave the command.
    pub(crate) is_unmarked: bool,
    /// The kernel has reported that they were moved, by mremap.
    pub(crate) is_reported: bool,
    /// Before that it has reported that something else there was changed.
    pub(crate) is_doubted: bool,
}

/// How a run of a command went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunAnswer {
    /// Pages that were moved, from the first one on.
    pub(crate) moved: usize,
    /// Moved pages whose entries have markers, from the first one on.
    pub(crate) marked: usize,
    /// Why no more were moved, an errno or 0.
    pub(crate) error: i32,
}

impl MoveRun {
    /// Of one page, of which it is not known that it was moved.
    pub(crate) fn new(page: u64, staged: usize) -> MoveRun {
        MoveRun {
            page,
            count: 1,
            staged,
            moved: 0,
            missing: 0,
            is_unmarked: false,
            is_reported: false,
            is_doubted: false,
        }
    }

    pub(crate) fn pages(&self) -> Range<u64> {
        self.page..self.page + self.count as u64
    }

    pub(crate) fn addresses(&self) -> Range<u64> {
        self.page * PAGE..(self.page + self.count as u64) * PAGE
    }
}

/// Adds a page to the last run, or as a new one.
pub(crate) fn add_page(runs: &mut Vec<MoveRun>, page: u64, staged: usize) {
    match runs.last_mut() {
        Some(last) if last.pages().end == page => last.count += 1,
        _ => runs.push(MoveRun::new(page, staged)),
    }
}

impl Helper {
    /// A helper that is ready, with its staging.
    pub(crate) fn new(connection: Polled<Foreign>, control: SharedControl, staging: u64) -> Helper {
        let is_late = AtomicBool::new(false);
        Helper { connection, control, staging, is_late, commanded: Lock::new(None) }
    }

    pub(crate) fn connection(&self) -> &Polled<Foreign> {
        &self.connection
    }

    /// Has it end, with an exit code. It is a thread.
    pub(crate) fn end(&self, code: u32) {
        self.control.end.store(code + 1, Ordering::Relaxed); // at most 255
        self.ring();
    }

    /// Has it read the control memory.
    fn ring(&self) {
        self.control.bell.fetch_add(1, Ordering::Release);
        // The word is there, so nothing is refused.
        let _ = futex::wake(&self.control.bell, futex::Flags::empty(), 1);
    }

    /// Addresses of staging that a batch is.
    pub(crate) fn batch_at(&self, batch: usize) -> Range<u64> {
        self.staged_at(batch * BATCH_PAGES)..self.staged_at((batch + 1) * BATCH_PAGES)
    }

    /// The address of a page of staging.
    pub(crate) fn staged_at(&self, staged: usize) -> u64 {
        self.staging + staged as u64 * PAGE
    }

    /// Forks of its program that were about to be done so far.
    pub(crate) fn forks(&self) -> u32 {
        self.control.forks.load(Ordering::Relaxed)
    }

    /// An address on the stack of each thread of its program that is in a fork by the C library; 0
    /// for none.
    pub(crate) fn forking(&self) -> [u64; FORKING_MAX] {
        self.control.forking.each_ref().map(|thread| thread.load(Ordering::Relaxed))
    }

    /// Its program is to tell of forks before: from this one on, the first being 1; 0 for none.
    pub(crate) fn have_forks_reported(&self, from: u32) {
        self.control.tell_forks_from.store(from, Ordering::Relaxed);
    }

    /// Keeps it from moving pages; `false` where it does just now.
    pub(crate) fn hold(&self) -> bool {
        self.takes_lock(holder::NONE)
    }

    /// Holds it although it moves pages, or was about to. The caller has seen to it that it cannot.
    pub(crate) fn hold_at_work(&self) {
        self.control.lock.store(holder::SUPERVISOR, Ordering::Release);
    }

    /// As [`Helper::hold_at_work`], where that is certain only if it has the lock; whether it had.
    pub(crate) fn take_from_work(&self) -> bool {
        self.takes_lock(holder::HELPER)
    }

    /// The run that it is about to move by mremap, or has moved and waits for that to be read.
    pub(crate) fn remapped_run(&self) -> Option<usize> {
        let is_remapping = self.control.lock.load(Ordering::Acquire) == holder::REMAPPING;
        is_remapping.then(|| self.control.remapped_run.load(Ordering::Relaxed) as usize)
    }

    /// Holds it while it waits for that to be read; `false` where it does so no more.
    pub(crate) fn hold_remapping(&self, number: usize, run: &MoveRun) -> bool {
        let held = self.takes_lock(holder::REMAPPING);
        if held {
            let bytes = run.count as u64 * PAGE;
            self.control.runs[number].moved.store(bytes, Ordering::Relaxed); // as it does itself
        }
        held
    }

    fn takes_lock(&self, from: u32) -> bool {
        let lock = &self.control.lock;
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        lock.compare_exchange(from, holder::SUPERVISOR, acquire, relaxed).is_ok()
    }

    /// Lets it go on; `changed` where the program's mappings are not what they were.
    pub(crate) fn let_go(&self, changed: bool) {
        self.control.changes.fetch_add(u32::from(changed), Ordering::Relaxed);
        self.control.lock.store(holder::NONE, Ordering::Release);
    }

    /// Tells it a command, of which it begins nothing before [`Helper::carry_out`].
    pub(crate) fn give(&self, command: &Command) {
        let control = &self.control;
        for (run, entry) in command.runs.iter().zip(&control.runs) {
            entry.from.store(run.page * PAGE, Ordering::Relaxed);
            entry.to.store(self.staged_at(run.staged), Ordering::Relaxed);
            entry.bytes.store(run.count as u64 * PAGE, Ordering::Relaxed);
            entry.moved.store(0, Ordering::Relaxed);
            entry.marked.store(0, Ordering::Relaxed);
            entry.error.store(0, Ordering::Relaxed);
        }
        let memory_of = |batch: Option<usize>| batch.map_or(0..0, |batch| self.batch_at(batch));
        let (filled, dropped) = (memory_of(command.batch), memory_of(command.drops));
        control.fill_from.store(filled.start, Ordering::Relaxed);
        control.fill_bytes.store(filled.end - filled.start, Ordering::Relaxed);
        let anew = command.anew.map_or(0, |rights| MAP_ANEW | rights);
        control.fill_anew.store(anew, Ordering::Relaxed);
        control.drop_from.store(dropped.start, Ordering::Relaxed);
        control.drop_bytes.store(dropped.end - dropped.start, Ordering::Relaxed);
        control.run_count.store(command.runs.len() as u32, Ordering::Relaxed); // <= RUNS_MAX
        control.given.store(command.number, Ordering::Relaxed);
        control.work.store(command.work, Ordering::Release);
    }

    /// Takes back what a command would do in a range of addresses, and what it has found there: it
    /// may be something else by now. The caller holds it.
    pub(crate) fn take_back(&self, command: &Command, range: Range<u64>) {
        for (run, entry) in command.runs.iter().zip(&self.control.runs) {
            if overlap(&run.addresses(), &range) {
                entry.bytes.store(0, Ordering::Relaxed);
                entry.error.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Whether the batch of a command was mapped anew, if it was to be.
    pub(crate) fn has_mapped_anew(&self) -> bool {
        self.control.fill_anew.load(Ordering::Relaxed) == 0
    }

    /// Whether a command is done.
    pub(crate) fn has_done(&self, command: &Command) -> bool {
        self.control.done.load(Ordering::Acquire) == command.number
    }

    /// Whether a command is done in part. The caller holds it.
    pub(crate) fn has_paused(&self) -> bool {
        self.control.paused.load(Ordering::Relaxed) != 0
    }

    /// How each run of a command went.
    pub(crate) fn answers(&self, command: &Command) -> impl Iterator<Item = RunAnswer> {
        command.runs.iter().zip(&self.control.runs).map(|(run, entry)| {
            let pages = |bytes: &AtomicU64| {
                let pages = (bytes.load(Ordering::Relaxed) / PAGE) as usize;
                pages.min(run.count)
            };
            let error = entry.error.load(Ordering::Relaxed) as i32;
            RunAnswer { moved: pages(&entry.moved), marked: pages(&entry.marked), error }
        })
    }

    /// Has a command done; waited for as long as there is `patience`, and not where the process
    /// `is_stopped`.
    pub(crate) fn carry_out(
        &self,
        patience: &mut Patience,
        is_stopped: impl FnOnce() -> bool,
    ) -> Heard {
        self.ring();
        *self.commanded.lock() = Some(Instant::now());
        match self.hear(ANSWER_SOON) {
            Heard::Late if !is_stopped() => {
                let since = Instant::now();
                let heard = self.hear(patience.left(since));
                patience.waited(Instant::now(), since.elapsed());
                heard
            }
            heard => heard,
        }
    }

    /// Whether it has not answered a command in time.
    pub(crate) fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Relaxed)
    }

    /// Whether it is late, and may soon answer its last command.
    pub(crate) fn is_awaited(&self) -> bool {
        let since = *self.commanded.lock();
        self.is_late() && since.is_some_and(|since| since.elapsed() < LATE)
    }

    /// A helper without a process, with staging at this address.
    #[cfg(test)]
    pub(crate) fn of_nobody(staging: u64) -> Helper {
        use rustix::event::epoll::{CreateFlags, EventData, create};
        let epolls = [create(CreateFlags::CLOEXEC).unwrap()].into();
        let (connection, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let connection = Foreign::new(connection.into());
        let connection = Polled::add(&epolls, connection, EventData::new_u64(0)).unwrap();
        Helper::new(connection, SharedControl::new().unwrap().0, staging)
    }

    /// The memory that its process would share.
    #[cfg(test)]
    pub(crate) fn control(&self) -> &SharedControl {
        &self.control
    }

    /// Waits for the answer to the last command.
    pub(crate) fn hear(&self, patience: Duration) -> Heard {
        let heard = self.wait(patience);
        self.is_late.store(heard == Heard::Late, Ordering::Relaxed);
        heard
    }

    fn wait(&self, patience: Duration) -> Heard {
        let patience = Timespec::try_from(patience).expect("a short time");
        let mut bytes = [0; MESSAGE_BYTES];
        loop {
            let mut fds = [PollFd::new(&self.connection, PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&patience)) {
                Ok(0) => return Heard::Late,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return Heard::Gone,
            }
            match peer::receive(&self.connection, &mut bytes) {
                Ok(received) => {
                    let is_whole = received.bytes == MESSAGE_BYTES;
                    let is_alone = received.descriptors.is_empty();
                    let message = Message::from_bytes(&bytes).filter(|_| is_whole && is_alone);
                    let is_done = message.is_some_and(|message| message.kind == kind::DONE);
                    return if is_done { Heard::Done } else { Heard::Gone };
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                    _ => return Heard::Gone,
                },
            }
        }
    }
}

/// Sends a message and descriptors, and does not wait: who does not read gets `WouldBlock`.
pub(crate) fn send(
    connection: &impl AsFd,
    message: Message,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut extra = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        extra.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let bytes = message.to_bytes();
    let parts = [io::IoSlice::new(&bytes)];
    rustix::net::sendmsg(
        connection,
        &parts,
        &mut extra,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_that_are_late_are_waited_for_a_part_of_the_time() {
        let start = Instant::now();
        let mut patience = Patience::new(start);
        let (mut now, mut waited) = (start, Duration::ZERO);
        let mut longest = Duration::ZERO;
        // Whatever helpers do: each wait takes all that there is, and work takes a millisecond.
        while now < start + Duration::from_secs(8) {
            let time = patience.left(now);
            now += time;
            patience.waited(now, time);
            (waited, longest) = (waited + time, longest.max(time));
            now += Duration::from_millis(1);
        }
        assert_eq!(longest, WAIT_MAX);
        assert!(waited <= Duration::from_secs(1) + WAIT_MAX, "{waited:?}");
        assert!(waited >= Duration::from_millis(800), "{waited:?}");
        let later = now + WAIT_MAX * WAIT_PART;
        assert_eq!(patience.left(later), WAIT_MAX, "there is no more at once");
    }

    #[test]
    fn what_was_found_in_a_run_that_is_taken_back_is_forgotten() {
        use rustix::event::epoll;
        let (connection, _helper) = std::os::unix::net::UnixStream::pair().unwrap();
        let connection = Foreign::new(connection.into());
        let epolls = [epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()].into();
        let connection = Polled::add(&epolls, connection, epoll::EventData::new_u64(1)).unwrap();
        let helper = Helper::new(connection, SharedControl::new().unwrap().0, 1 << 30);
        let runs = vec![MoveRun::new(10, 0), MoveRun::new(12, 1), MoveRun::new(14, 2)];
        let (batch, drops) = (Some(0), None);
        let command = Command { number: 1, work: 0, anew: None, batch, runs, drops };
        helper.give(&command);
        // It has moved the first, was refused two, and pauses; then the second is unmapped.
        helper.control.runs[0].moved.store(PAGE, Ordering::Relaxed);
        for run in &helper.control.runs[1..3] {
            run.error.store(libc::ENOENT as u64, Ordering::Relaxed);
        }
        helper.take_back(&command, 11 * PAGE..13 * PAGE);
        let answers = helper.answers(&command).map(|run| (run.moved, run.marked, run.error));
        assert!(answers.eq([(1, 0, 0), (0, 0, 0), (0, 0, libc::ENOENT)]));
    }
}
