//! The tree of processes: a thread that looks for those without a helper.
//!
//! It has no part in keeping to the limit. What it asks of the file system may take a tenth of a
//! second where others write.

use std::cmp::Ordering::{self, Equal, Greater, Less};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::account::unmanaged_parts::{Parts, Seen};
use crate::monitor::unmanaged_reason::{self, Facts};
use crate::policy::thrashing::{self, Thrashing, Times};
use crate::program::peer::Peer;
use crate::program::procfs::{
    children_of, page_table_bytes_of, part_of_anonymous_of, size_of, thread_and_program_of, threads,
};
use crate::sched::other_load::{OtherLoad, Used};
use crate::telemetry::status;
use crate::{PAGE_SIZE, Pager, lock, mib};
use uzswap_sys::escape::one_line;
use uzswap_sys::held_folder::remove_left;
use uzswap_sys::process;

/// How often it looks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The thread looks again so soon at processes that it saw for the first time: a program may be
/// short, and take the whole limit. Looks take one part in so many of a processor at most.
pub(crate) const LOOK_SOON: Duration = Duration::from_millis(100);
const LOOK_PART: u32 = 20;

/// Between these it follows unmanaged memory, as soon as that may have taken the headroom: programs
/// fill so many bytes a second at most, as a rule. Looks take one part in so many of a processor at
/// most while no memory is unmanaged.
const FILLED_BYTES: u64 = 2 << 30;
const FOLLOW_MIN: Duration = Duration::from_millis(10);
const FOLLOW_PART: u32 = 100;

/// When it looks a second time at the load of others: two looks tell it.
const LOAD_AFTER: Duration = Duration::from_millis(200);

/// Looks that find a process without a helper until it is reported: a program that has just started
/// says hello in a moment, or ends. Where nothing tells that no helper will come, one may wait for
/// pages, of which there are hardly any: that of a managed program's child, above all.
const LOOKS: u32 = 2;
const LOOKS_WITHOUT_SIGN: u32 = 20;

/// Programs that are named as unmanaged. All others count as well.
const TOLD_MAX: usize = 100;

/// How long it rests after a survey of memory that does not count: so many times what that took,
/// where it took long.
const SURVEY_PART: u32 = 10;
const SURVEY_REST_MIN: Duration = Duration::from_millis(10);

/// A process without a helper.
#[derive(Debug)]
pub(crate) struct Unmanaged {
    pub(crate) bytes: u64,
    pub(crate) peer: Peer,
    /// One of its threads that has its memory.
    pub(crate) thread: u32,
}

/// Looks that others ask for: how many, and how many of these were done.
#[derive(Debug, Default)]
pub(crate) struct AskedLooks {
    asked: AtomicU64,
    done: AtomicU64,
}

/// How long a look that was asked for is waited for at most.
const PATIENCE: Duration = Duration::from_secs(1);

impl Pager {
    /// Has the thread look at the tree now, and waits until it has.
    pub(crate) fn look_at_tree(&self) {
        let AskedLooks { asked, done } = &self.asked_looks;
        let (since, number) = (Instant::now(), asked.fetch_add(1, Relaxed) + 1);
        self.tree_bell.ring();
        while done.load(Acquire) < number && since.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What is known of the tree.
struct Tree {
    pager: Arc<Pager>,
    /// Processes that had a helper at the last look.
    managed: BTreeSet<u32>,
    /// Processes without a helper, and how many looks in a row found them so.
    without: BTreeMap<u32, u32>,
    /// Processes with a known reason, and the program of each.
    reported: BTreeMap<u32, PathBuf>,
    /// Programs and reasons that were reported.
    told: BTreeSet<(PathBuf, &'static str)>,
    /// Their parts of anonymous memory, as far as the kernel was asked.
    parts: Parts,
    other_load: OtherLoad,
    thrashing: Thrashing,
}

/// How much a look does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Counts the memory of processes without a helper.
    Follow,
    /// Counts the look for those that were seen for the first time a moment ago.
    Newcomers,
    /// Counts the look for all.
    Full,
}

impl Depth {
    /// Whether it counts as a look at a process that had so many.
    fn counts(self, looks: u32) -> bool {
        match self {
            Depth::Follow => false,
            Depth::Newcomers => looks < LOOKS,
            Depth::Full => true,
        }
    }
}

/// When to look next.
#[derive(Debug)]
struct Due {
    follow: Instant,
    newcomers: Option<Instant>,
    full: Instant,
}

impl Due {
    fn now(now: Instant) -> Due {
        Due { follow: now, newcomers: None, full: now }
    }

    fn next(&self) -> Instant {
        let others = self.newcomers.map_or(self.full, |newcomers| newcomers.min(self.full));
        others.min(self.follow)
    }

    fn depth(&self, is_asked: bool, now: Instant) -> Option<Depth> {
        if is_asked || now >= self.full {
            return Some(Depth::Full);
        }
        let is_soon = self.newcomers.is_some_and(|newcomers| now >= newcomers);
        let follows = now >= self.follow;
        is_soon.then_some(Depth::Newcomers).or_else(|| follows.then_some(Depth::Follow))
    }

    /// A look took so long, which is to be one part in so many of the time, and found so much
    /// headroom.
    fn looked(
        &mut self,
        depth: Depth,
        has_newcomers: bool,
        took: Duration,
        part: u32,
        headroom: u64,
    ) {
        let now = Instant::now();
        let until_filled = Duration::from_secs_f64(headroom as f64 / FILLED_BYTES as f64);
        self.follow = now + until_filled.max(FOLLOW_MIN).max(took * part);
        if depth == Depth::Full {
            self.full = now + LOOK_EVERY;
        }
        let soon = now + LOOK_SOON.max(took * LOOK_PART);
        self.newcomers = match depth {
            Depth::Follow => self.newcomers.or(has_newcomers.then_some(soon)),
            _ => has_newcomers.then_some(soon),
        };
    }
}

/// Starts the thread, which ends once its bell rings after `Pager::stop` was set.
pub(crate) fn start(pager: &Arc<Pager>) -> io::Result<JoinHandle<()>> {
    let pager = Arc::clone(pager);
    let tree = Tree {
        pager,
        managed: BTreeSet::new(),
        without: BTreeMap::new(),
        reported: BTreeMap::new(),
        told: BTreeSet::new(),
        parts: Parts::default(),
        other_load: OtherLoad::default(),
        thrashing: Thrashing::default(),
    };
    thread::Builder::new().name("uzswap-tree".to_owned()).spawn(move || tree.run())
}

impl Tree {
    fn run(mut self) {
        self.pager.raised.lower_this();
        status::distinct_places().iter().for_each(|place| remove_left(place));
        let surveys = start_surveys(&self.pager);
        let mut due = Due::now(Instant::now());
        let mut load_after = Some(Instant::now() + LOAD_AFTER);
        while !self.pager.stop.load(Relaxed) {
            let AskedLooks { asked, done } = &self.pager.asked_looks;
            let asked = asked.load(Relaxed);
            let is_asked = asked > done.load(Relaxed);
            if let Some(depth) = due.depth(is_asked, Instant::now()) {
                let began = process::thread_time();
                let has_newcomers = self.look(depth);
                self.pager.asked_looks.done.store(asked, Release);
                let took = process::thread_time().saturating_sub(began);
                let follows = self.pager.account.unmanaged().bytes() > 0;
                let part = if follows { LOOK_PART } else { FOLLOW_PART };
                due.looked(depth, has_newcomers, took, part, self.pager.headroom_bytes());
            }
            if load_after.take_if(|at| Instant::now() >= *at).is_some() {
                self.look_at_load(&processes(&self.pager));
            }
            let _ = surveys.as_ref().map(|surveys| surveys.thread().unpark());
            let next = load_after.map_or(due.next(), |load| load.min(due.next()));
            self.pager.tree_bell.wait(next.saturating_duration_since(Instant::now()));
        }
    }

    fn look_at_load(&mut self, processes: &[u32]) {
        let used = Used::now(processes);
        self.pager.is_beside_others.store(self.other_load.see(used), Relaxed);
        let Some(Used { at, programs: ran, .. }) = used else { return };
        let waited = Duration::from_nanos(self.pager.meter.faults().sum_ns);
        if let Some(times) = self.thrashing.see(Times { at, waited, ran }) {
            self.pager.warn(&format!(
                "for {} s programs have waited for pages {times} times as long as they ran; they \
                 would run faster with a --limit above {:.1} MiB",
                thrashing::WINDOW.as_secs(),
                mib(self.pager.account.limit_bytes()),
            ));
        }
    }

    /// Looks for processes without a helper: static and setuid programs. Their memory counts, and
    /// stays. Returns whether it saw some for the first time.
    fn look(&mut self, depth: Depth) -> bool {
        let mut has_newcomers = false;
        let mut counted = AddressSpaces::new(process::compare_memory);
        let mut managed = BTreeSet::new();
        for (pid, thread) in helpers(&self.pager) {
            managed.extend([pid, thread]); // the helper may be a process
            counted.add(thread);
        }
        self.pager.drop_changed_outsiders();
        let outsiders = self.pager.outsiders();
        let mut without = BTreeMap::new();
        let (mut found, mut outside) = (Vec::new(), Vec::new());
        let processes = processes(&self.pager);
        if depth != Depth::Follow {
            self.pager.account.note_page_tables(page_table_bytes(&self.pager));
            self.look_at_load(&processes);
        }
        for pid in processes {
            if managed.contains(&pid) {
                continue;
            }
            // One that ended, or that the kernel lets nobody look at, has no program.
            let Some((thread, program)) = thread_and_program_of(pid) else { continue };
            let before = *self.without.get(&pid).unwrap_or(&0);
            let looks = match before {
                0 if self.is_forked_by_unmanaged(pid, &without) => LOOKS,
                _ => before + u32::from(depth.counts(before)),
            };
            has_newcomers |= looks < LOOKS;
            without.insert(pid, looks);
            let Some(seen) = seen(pid, thread, looks) else { continue };
            // One that had a helper is no newcomer. Memory of one that has called exec is its own.
            if looks < LOOKS && seen.is_forked && !self.managed.contains(&pid) {
                continue;
            }
            // Of several that have one memory (vfork, CLONE_VM), the first counts.
            if !counted.add(thread) {
                continue;
            }
            let outsider = outsiders.iter().find(|outsider| outsider.pid() == pid);
            let has_space =
                outsider.is_none() && seen.is_forked && self.pager.see_without_helper(pid);
            match outsider {
                Some(outsider) => outside.push((seen, outsider.counted_bytes())),
                None if has_space => {}
                None => found.push(seen),
            }
            if looks < LOOKS {
                continue;
            }
            if self.reported.get(&pid) != Some(&program)
                && let Some(why) = self.why_unmanaged(&seen, &managed)
            {
                self.report(pid, program, why);
            }
        }
        self.reported.retain(|pid, _| without.contains_key(pid));
        (self.managed, self.without) = (managed, without);
        let now = Instant::now();
        if depth != Depth::Follow {
            self.parts.look(now, &found, |seen| {
                let since = Instant::now();
                (part_of_anonymous_of(seen.thread), since.elapsed())
            });
        }
        let found = found.into_iter().map(|seen| (seen, self.parts.bytes_of(now, &seen)));
        let counted: Vec<(Seen, u64)> = found.chain(outside).collect();
        *self.pager.largest_unmanaged.lock().unwrap_or_else(PoisonError::into_inner) =
            largest(&counted);
        let each = counted.into_iter().map(|(seen, bytes)| (seen.process.0, bytes));
        self.pager.see_unmanaged(each.collect());
        has_newcomers
    }

    /// Why a process that was seen often enough has no helper; `None` while one may come.
    fn why_unmanaged(&self, seen: &Seen, managed: &BTreeSet<u32>) -> Option<&'static str> {
        let (pid, _) = seen.process;
        let is_managed = |parent: &u32| managed.contains(parent);
        // A child has its parent's mappings, those of the library among them.
        let is_child = || process::parent_of(pid).filter(is_managed).is_some();
        let sign = match seen.is_forked && is_child() {
            true => None,
            false => Facts::of(pid).reason(&self.pager.socket),
        };
        // A stopped process may connect when it goes on.
        let is_late = || seen.looks >= LOOKS_WITHOUT_SIGN && !process::is_stopped(pid);
        sign.or_else(|| is_late().then(|| unmanaged_reason::without_sign(seen.is_forked)))
    }

    fn report(&mut self, pid: u32, program: PathBuf, why: &'static str) {
        self.reported.insert(pid, program.clone());
        let name = program.to_string_lossy().into_owned();
        let name = one_line(&name); // a name of a file may be anything
        if self.told.len() < TOLD_MAX && self.told.insert((program, why)) {
            self.pager.warn(&format!(
                "process {pid} ({name}) is unmanaged: {why}; its memory counts but cannot be \
                 evicted"
            ));
        }
    }

    /// Whether no helper will come: an unmanaged process has forked it, and it runs the same
    /// program. The child counts at once, as the parent's part is the less for it.
    fn is_forked_by_unmanaged(&self, pid: u32, seen_now: &BTreeMap<u32, u32>) -> bool {
        let looks = |parent: &u32| seen_now.get(parent).or_else(|| self.without.get(parent));
        let is_unmanaged = |parent: &u32| looks(parent).is_some_and(|&looks| looks >= LOOKS);
        process::parent_of(pid).filter(is_unmanaged).is_some() && process::runs_what_was_forked(pid)
    }
}

/// The largest of the processes that were seen and so many bytes counted of. A number comes again:
/// it has not ended since.
fn largest(counted: &[(Seen, u64)]) -> Option<Unmanaged> {
    let mut largest: Option<Unmanaged> = None;
    for (seen, bytes) in counted {
        if *bytes <= largest.as_ref().map_or(0, |largest| largest.bytes) {
            continue;
        }
        let (pid, start) = seen.process;
        let is_it = |peer: &Peer| start_of(pid) == Some(start) && peer.is_alive();
        if let Some(peer) = Peer::open(pid).filter(is_it) {
            largest = Some(Unmanaged { bytes: *bytes, peer, thread: seen.thread });
        }
    }
    largest.filter(|it| it.peer.descends_from(std::process::id()))
}

/// A process without a helper, as it is now; `None` where it has ended.
fn seen(pid: u32, thread: u32, looks: u32) -> Option<Seen> {
    let process = (pid, start_of(pid)?);
    let size = size_of(thread)?;
    Some(Seen {
        process,
        thread,
        anonymous_bytes: size.anonymous * PAGE_SIZE as u64,
        other_pages: size.others,
        is_forked: process::runs_what_was_forked(pid),
        looks,
    })
}

/// When a process started; its first thread may have ended before others.
fn start_of(pid: u32) -> Option<u64> {
    process::parent_and_start(pid).map(|(_, start)| start)
}

/// Starts a thread that sees how much memory does not count, now and each time that it is unparked,
/// but for a rest. Nobody waits for its end, as the kernel may walk for seconds. So the thread
/// keeps nothing of the run alive that has an end of its own, as the file of the backing.
fn start_surveys(pager: &Arc<Pager>) -> io::Result<JoinHandle<()>> {
    let uncounted = Arc::clone(pager.account.uncounted());
    let pager = Arc::downgrade(pager);
    let threads = move || -> Option<Vec<u32>> {
        let pager = pager.upgrade().filter(|pager| !pager.stop.load(Relaxed))?;
        let managed = helpers(&pager).map(|(_, thread)| thread);
        Some(managed.chain(pager.account.unmanaged().pids()).collect())
    };
    let survey = move || {
        while let Some(threads) = threads() {
            let since = Instant::now();
            uncounted.survey(threads.into_iter());
            let rest = since.elapsed() * SURVEY_PART;
            if rest >= SURVEY_REST_MIN {
                thread::sleep(rest);
            }
            thread::park();
        }
    };
    thread::Builder::new().name("uzswap-survey".to_owned()).spawn(survey)
}

/// Threads of processes, one for each address space.
struct AddressSpaces<C> {
    compare: C,
    /// In the order that this compares by.
    threads: Vec<u32>,
}

impl<C: FnMut(u32, u32) -> io::Result<Ordering>> AddressSpaces<C> {
    fn new(compare: C) -> Self {
        AddressSpaces { compare, threads: Vec::new() }
    }

    /// Adds that of a thread; `false` where it is there already. One that cannot be compared is
    /// taken to be new.
    fn add(&mut self, thread: u32) -> bool {
        let (mut from, mut to) = (0, self.threads.len());
        while from < to {
            let middle = from + (to - from) / 2;
            match (self.compare)(self.threads[middle], thread) {
                Ok(Equal) => return false,
                Ok(Less) => from = middle + 1,
                Ok(Greater) => to = middle,
                Err(_) if (self.compare)(thread, thread).is_err() => return true,
                Err(_) => {
                    self.threads.remove(middle); // it has ended
                    to -= 1;
                }
            }
        }
        self.threads.insert(from, thread);
        true
    }
}

/// Ends a process, and all others of the run that have its memory: as long as one of them is there,
/// the memory stays. It has it by this thread.
pub(crate) fn end_with_memory(pager: &Pager, peer: &Peer, thread: u32) {
    let has_it = |other: u32| process::compare_memory(other, thread).is_ok_and(Ordering::is_eq);
    let is_its_own = || threads(peer.pid()).is_ok_and(|mut own| own.any(has_it));
    if peer.is_alive() && is_its_own() {
        for pid in processes(pager).into_iter().filter(|pid| *pid != peer.pid()) {
            // A process that has its number by then is not ended: it is asked once more.
            let is_it = || thread_and_program_of(pid).is_some_and(|(thread, _)| has_it(thread));
            if is_it()
                && let Some(other) = Peer::open(pid).filter(|_| is_it())
            {
                other.kill();
            }
        }
    }
    peer.kill();
}

/// Waits until a process that was killed has no memory any more; for a moment at most, as the
/// kernel may keep it from ending.
pub(crate) fn await_end(thread: u32) {
    let since = Instant::now();
    while size_of(thread).is_some_and(|size| size.mapped > 0) && since.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes of the kernel's page tables of all managed programs.
pub(crate) fn page_table_bytes(pager: &Pager) -> u64 {
    helpers(pager).filter_map(|(_, thread)| page_table_bytes_of(thread)).sum()
}

/// Processes with a helper, and that thread.
fn helpers(pager: &Pager) -> impl Iterator<Item = (u32, u32)> {
    pager.spaces().into_iter().filter_map(|space| {
        let space = lock(&space);
        Some((space.pid?, space.thread?))
    })
}

/// All processes below this one that are not its own.
pub(crate) fn processes(pager: &Pager) -> Vec<u32> {
    let guard = pager.guard_pid();
    let mut processes = below(std::process::id());
    processes.retain(|pid| Some(*pid) != guard);
    processes
}

/// All processes below one.
fn below(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        at += 1;
        found.extend(children_of(pid));
    }
    found.remove(0);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_space_counts_once() {
        // Of ten threads each has that of its last digit; some end while they are compared.
        for gone in [0, 3, 7] {
            let mut asked = 0;
            let compare = |one: u32, other: u32| {
                asked += 1;
                let is_gone = |thread: u32| asked > 400 && thread % 10 < gone && thread < 100;
                match is_gone(one) || is_gone(other) {
                    true => Err(io::ErrorKind::NotFound.into()),
                    false => Ok((one % 10 * 7 % 10).cmp(&(other % 10 * 7 % 10))),
                }
            };
            let mut spaces = AddressSpaces::new(compare);
            let new = (0..1000_u32).filter(|thread| spaces.add(*thread)).count();
            assert!(new >= 10 && new <= 10 + gone as usize * 11, "{new} of 10");
            assert!(gone > 0 || new == 10);
            assert!(asked < 10_000, "{asked}: each is compared with some");
        }
        let mut none = AddressSpaces::new(|_, _| Err(io::ErrorKind::Unsupported.into()));
        assert!((0..5).all(|thread| none.add(thread)), "a kernel without it");
    }
}
