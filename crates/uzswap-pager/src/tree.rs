//! The tree of processes: a thread that looks for those without a helper.
//!
//! It has no part in keeping to the limit. What it asks of the file system may take a tenth of a
//! second where others write.

use std::cmp::Ordering::{self, Equal, Greater, Less};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::manageable::has_loader;
use super::other_load::{OtherLoad, Used};
use super::parts::{Parts, Seen};
use super::peer::Peer;
use super::process_files::{
    children_of, page_table_bytes_of, part_of_anonymous_of, size_of, threads,
};
use super::status::LIBRARY_NAME;
use super::thrashing::{self, Thrashing, Times};
use super::{PAGE_SIZE, Pager, lock, mib, status};
use uzswap_sys::escape::one_line;
use uzswap_sys::held_folder::remove_left;
use uzswap_sys::process;

/// How often it looks.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The thread looks again so soon at processes that it saw for the first time: a program may be
/// short, and take the whole limit. Looks take one part in so many of a processor at most.
pub(super) const LOOK_SOON: Duration = Duration::from_millis(100);
const LOOK_PART: u32 = 20;

/// When it looks a second time at the load of others: two looks tell it.
const LOAD_AFTER: Duration = Duration::from_millis(200);

/// Looks that find a process without a helper until it is told: a program that has just started
/// says hello in a moment, or ends. What a managed program has forked waits for pages before, where
/// there are hardly any; or it has none, and is unmanaged.
const LOOKS: u32 = 2;
const LOOKS_AT_FORKED: u32 = 20;

/// Programs that are named as unmanaged. All others count as well.
const TOLD_MAX: usize = 100;

/// How long it rests after a survey of memory that does not count: so many times what that took,
/// where it took long.
const SURVEY_PART: u32 = 10;
const SURVEY_REST_MIN: Duration = Duration::from_millis(10);

/// A process without a helper.
#[derive(Debug)]
pub(super) struct Unmanaged {
    pub(super) bytes: u64,
    pub(super) peer: Peer,
    /// One of its threads that has its memory.
    pub(super) thread: u32,
}

/// Looks that others ask for: how many, and how many of these were done.
#[derive(Debug, Default)]
pub(super) struct AskedLooks {
    asked: AtomicU64,
    done: AtomicU64,
}

/// How long a look that was asked for is waited for at most.
const PATIENCE: Duration = Duration::from_secs(1);

impl Pager {
    /// Has the thread look at the tree now, and waits until it has.
    pub(super) fn look_at_tree(&self) {
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
    /// Programs of which that was told.
    told: BTreeSet<PathBuf>,
    /// Their parts of anonymous memory, as far as the kernel was asked.
    parts: Parts,
    other_load: OtherLoad,
    thrashing: Thrashing,
}

/// Starts the thread, which ends once its bell rings after `Pager::stop` was set.
pub(super) fn start(pager: &Arc<Pager>) -> io::Result<JoinHandle<()>> {
    let pager = Arc::clone(pager);
    let tree = Tree {
        pager,
        managed: BTreeSet::new(),
        without: BTreeMap::new(),
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
        let (mut next_look, mut next_full_look) = (Instant::now(), Instant::now());
        let mut load_after = Some(next_look + LOAD_AFTER);
        while !self.pager.stop.load(Relaxed) {
            let AskedLooks { asked, done } = &self.pager.asked_looks;
            let asked = asked.load(Relaxed);
            let is_asked = asked > done.load(Relaxed);
            if is_asked || Instant::now() >= next_look {
                let is_full = is_asked || Instant::now() >= next_full_look;
                let began = process::thread_time();
                let has_newcomers = self.look(is_full);
                self.pager.asked_looks.done.store(asked, Release);
                if is_full {
                    next_full_look = Instant::now() + LOOK_EVERY;
                }
                let took = process::thread_time().saturating_sub(began);
                let soon = Instant::now() + LOOK_SOON.max(took * LOOK_PART);
                next_look = if has_newcomers { soon.min(next_full_look) } else { next_full_look };
            }
            if load_after.take_if(|at| Instant::now() >= *at).is_some() {
                self.look_at_load(&processes(&self.pager));
            }
            let _ = surveys.as_ref().map(|surveys| surveys.thread().unpark());
            let next = load_after.unwrap_or(next_look).min(next_look);
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
                mib(self.pager.limit_bytes),
            ));
        }
    }

    /// Looks for processes without a helper: static and setuid programs. Their memory counts, and
    /// stays. Returns whether it saw some for the first time. Between full looks only these matter.
    fn look(&mut self, is_full: bool) -> bool {
        let mut has_newcomers = false;
        let mut counted = AddressSpaces::new(process::compare_memory);
        let mut managed = BTreeSet::new();
        for (pid, thread) in helpers(&self.pager) {
            managed.insert(pid);
            counted.add(thread);
        }
        self.pager.drop_changed_outsiders();
        let outsiders = self.pager.outsiders();
        self.pager.page_tables_peak.fetch_max(page_table_bytes(&self.pager), Relaxed);
        let mut without = BTreeMap::new();
        let (mut found, mut outside) = (Vec::new(), Vec::new());
        let processes = processes(&self.pager);
        self.look_at_load(&processes);
        for pid in processes {
            if managed.contains(&pid) {
                continue;
            }
            // One that ended, or that the kernel lets nobody look at, has no program.
            let Some((thread, program)) = thread_and_program_of(pid) else { continue };
            let before = *self.without.get(&pid).unwrap_or(&0);
            let looks = match before {
                0 if self.is_forked_by_unmanaged(pid, &without) => LOOKS,
                _ => before + u32::from(is_full || before < LOOKS),
            };
            has_newcomers |= looks < LOOKS;
            without.insert(pid, looks);
            // One that had a helper is no newcomer.
            if looks < LOOKS && !self.managed.contains(&pid) {
                continue;
            }
            // Of several that have one memory (vfork, CLONE_VM), the first counts.
            if !counted.add(thread) {
                continue;
            }
            let outsider = outsiders.iter().find(|outsider| outsider.pid() == pid);
            let Some(seen) = seen(pid, thread, looks) else { continue };
            if outsider.is_none() && seen.is_forked {
                self.pager.see_without_helper(pid);
            }
            match outsider {
                Some(outsider) => outside.push((seen, outsider.counted_bytes())),
                None => found.push(seen),
            }
            if looks < LOOKS {
                continue;
            }
            let is_parent =
                |it: &u32| managed.contains(it) && program_of(*it).as_ref() == Some(&program);
            if looks < LOOKS_AT_FORKED && process::parent_of(pid).filter(is_parent).is_some() {
                continue;
            }
            // What is stopped may say hello when it goes on.
            if process::is_stopped(pid) || self.told.contains(&program) {
                continue;
            }
            let Some(why) = why_unmanaged(pid, looks) else { continue };
            if self.told.len() < TOLD_MAX {
                self.told.insert(program.clone());
                let program = program.to_string_lossy();
                let program = one_line(&program); // a name of a file may be anything
                self.pager.warn(&format!(
                    "process {pid} ({program}) is unmanaged: {why}; its memory counts but cannot \
                     be evicted"
                ));
            }
        }
        (self.managed, self.without) = (managed, without);
        let now = Instant::now();
        self.parts.look(now, &found, |seen| {
            let since = Instant::now();
            (part_of_anonymous_of(seen.thread), since.elapsed())
        });
        let found = found.into_iter().map(|seen| (seen, self.parts.bytes_of(now, &seen)));
        let counted: Vec<(Seen, u64)> = found.chain(outside).collect();
        *self.pager.largest_unmanaged.lock().unwrap_or_else(PoisonError::into_inner) =
            largest(&counted);
        let each = counted.into_iter().map(|(seen, bytes)| (seen.process.0, bytes));
        self.pager.see_unmanaged(each.collect());
        has_newcomers
    }

    /// Whether no helper will come: an unmanaged process has forked it, and it runs the same
    /// program. The child counts at once, as the parent's part is the less for it.
    fn is_forked_by_unmanaged(&self, pid: u32, seen_now: &BTreeMap<u32, u32>) -> bool {
        let looks = |parent: &u32| seen_now.get(parent).or_else(|| self.without.get(parent));
        let is_unmanaged = |parent: &u32| looks(parent).is_some_and(|&looks| looks >= LOOKS);
        process::parent_of(pid).filter(is_unmanaged).is_some() && process::runs_what_was_forked(pid)
    }
}

/// Why a process has no helper after so many looks; `None` while one may come.
fn why_unmanaged(pid: u32, looks: u32) -> Option<&'static str> {
    const NOT_LOADED: &str = "preload library not loaded (static, 32-bit, setuid or LD_PRELOAD \
                              changed)";
    const NO_HELPER: &str = "it has no helper (valgrind, a zygote of chromium)";
    let (maps, environment) = (read(pid, "maps"), read(pid, "environ"));
    match has_library(&maps, &environment) {
        Some(false) => Some(NOT_LOADED),
        _ if looks < LOOKS_AT_FORKED => None,
        Some(true) => Some(NO_HELPER),
        None => Some(NOT_LOADED),
    }
}

/// Whether a process has the preload library; `None` while its loader may not have come so far.
fn has_library(maps: &[u8], environment: &[u8]) -> Option<bool> {
    let has = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|window| window == part);
    let library = LIBRARY_NAME.as_bytes();
    if has(maps, library) {
        return Some(true);
    }
    // A loader maps preloaded libraries before those that the program names.
    let has_c_library = has(maps, b"/libc.so") || has(maps, b"/libc-");
    (has_c_library || !has_loader(maps) || !has(environment, library)).then_some(false)
}

/// A file of a process in /proc; nothing of one that is another user's, or has ended.
fn read(pid: u32, file: &str) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default()
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
    let uncounted = Arc::clone(&pager.uncounted);
    let pager = Arc::downgrade(pager);
    let threads = move || -> Option<Vec<u32>> {
        let pager = pager.upgrade().filter(|pager| !pager.stop.load(Relaxed))?;
        let managed = helpers(&pager).map(|(_, thread)| thread);
        Some(managed.chain(pager.unmanaged_each().keys().copied()).collect())
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
pub(super) fn end_with_memory(pager: &Pager, peer: &Peer, thread: u32) {
    let has_it = |other: u32| process::compare_memory(other, thread).is_ok_and(Ordering::is_eq);
    let is_its_own = || threads(peer.pid()).is_ok_and(|mut own| own.any(|own| own == thread));
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

/// A thread of a process that has its memory, and the file of the program that it runs: the first
/// thread may have ended before others.
pub(super) fn thread_and_program_of(pid: u32) -> Option<(u32, PathBuf)> {
    let with_program = |thread| Some((thread, program_of(thread)?));
    with_program(pid).or_else(|| threads(pid).ok()?.find_map(with_program))
}

/// The file of the program that a process runs; `None` where it has no memory any more. The kernel
/// tells no path that is longer than a page.
fn program_of(pid: u32) -> Option<PathBuf> {
    match fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(path) => Some(path),
        Err(_) if size_of(pid).is_some_and(|size| size.mapped > 0) => {
            Some("a program whose path is unknown".into())
        }
        Err(_) => None,
    }
}

/// What the kernel's page tables of all programs with a helper take, in bytes.
pub(super) fn page_table_bytes(pager: &Pager) -> u64 {
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
pub(super) fn processes(pager: &Pager) -> Vec<u32> {
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
    fn a_program_that_is_being_loaded_is_not_unmanaged_yet() {
        let ours = format!("7f00-7f01 r-xp 0 fe:00 1 /tmp/uzswap-x/{LIBRARY_NAME}\n");
        let program = "5500-5501 r-xp 0 fe:00 2 /bin/cat\n";
        let loader = "7f02-7f03 r-xp 0 fe:00 3 /lib64/ld-linux-x86-64.so.2\n";
        let c_library = "7f04-7f05 r-xp 0 fe:00 4 /lib/x86_64-linux-gnu/libc.so.6\n";
        let set = format!("LD_PRELOAD=/tmp/uzswap-x/{LIBRARY_NAME}\0HOME=/\0");
        for (maps, environment, expected) in [
            (vec![program, loader], &*set, None),
            (vec![program, loader, &ours], &set, Some(true)),
            (vec![program, loader, &ours, c_library], &set, Some(true)),
            (vec![program, loader, c_library], &set, Some(false)), // of 32 bits
            (vec![program, loader], "LD_PRELOAD=libjemalloc.so\0", Some(false)),
            (vec![program], &set, Some(false)), // static
            (vec![], "", Some(false)),          // setuid
        ] {
            let maps = maps.concat();
            assert_eq!(has_library(maps.as_bytes(), environment.as_bytes()), expected, "{maps}");
        }
    }

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
