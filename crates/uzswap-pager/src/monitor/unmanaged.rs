//! Unmanaged processes: a thread that scans the tree of processes for those without a helper.
//!
//! The evictor does not wait for this thread. Its reads of /proc may take a tenth of a second while
//! others write.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::account::unmanaged_parts::{Parts, Seen};
use crate::fork::outsiders::Outsider;
use crate::monitor::memory_ids::AddressSpaces;
use crate::monitor::process_tree::{Unmanaged, helpers, page_table_bytes, processes};
use crate::monitor::unmanaged_reason::{self, Facts};
use crate::monitor::unmanaged_schedule::{Depth, SCANS, Scanned, Schedule};
use crate::policy::thrashing::{self, Thrashing, Times};
use crate::program::peer::Peer;
use crate::program::procfs::{part_of_anonymous_of, size_of, thread_and_program_of};
use crate::sched::other_load::{OtherLoad, Used};
use crate::telemetry::status;
use crate::{PAGE_SIZE, Pager, mib};
use uzswap_sys::escape::one_line;
use uzswap_sys::held_folder::remove_left;
use uzswap_sys::process;

/// When the load of others is sampled a second time: two samples show it.
const LOAD_AFTER: Duration = Duration::from_millis(200);

/// Scans until a process without a helper is reported although no sign says that none will come.
/// The helper may wait for pages, above all that of a managed program's child.
const SCANS_WITHOUT_SIGN: u32 = 20;

/// Programs that are named as unmanaged. All others count as well.
const NAMED_MAX: usize = 100;

/// How long it rests after a survey of memory that does not count: so many times what that took,
/// where it took long.
const SURVEY_PART: u32 = 10;
const SURVEY_REST_MIN: Duration = Duration::from_millis(10);

/// What is known of the tree.
struct Tree {
    pager: Arc<Pager>,
    /// Programs that had a helper at the last scan.
    managed: BTreeSet<u32>,
    /// Processes without a helper, and how many scans in a row found them so.
    without: BTreeMap<u32, u32>,
    /// Processes with a known reason, and the program of each.
    reported: BTreeMap<u32, PathBuf>,
    /// Programs and reasons that were reported.
    named: BTreeSet<(PathBuf, &'static str)>,
    /// Their parts of anonymous memory, as far as the kernel was asked.
    parts: Parts,
    other_load: OtherLoad,
    thrashing: Thrashing,
}

/// Starts the thread, which ends once it is woken at the end of the run.
pub(crate) fn start(pager: &Arc<Pager>) -> io::Result<JoinHandle<()>> {
    let pager = Arc::clone(pager);
    let tree = Tree {
        pager,
        managed: BTreeSet::new(),
        without: BTreeMap::new(),
        reported: BTreeMap::new(),
        named: BTreeSet::new(),
        parts: Parts::default(),
        other_load: OtherLoad::default(),
        thrashing: Thrashing::default(),
    };
    thread::Builder::new().name("uzswap-tree".to_owned()).spawn(move || tree.run())
}

/// One pass over the tree.
struct Scan {
    /// Programs with a helper, and the helpers.
    managed: BTreeSet<u32>,
    /// The programs alone.
    programs: BTreeSet<u32>,
    /// Processes without one, and how many scans in a row found them so.
    without: BTreeMap<u32, u32>,
    counted: AddressSpaces<fn(u32, u32) -> io::Result<Ordering>>,
    /// Unmanaged processes that share no page with managed ones.
    found: Vec<Seen>,
    /// Unmanaged processes that share pages with managed ones, and the bytes that they count.
    outside: Vec<(Seen, u64)>,
    /// Some processes were seen for the first time.
    has_newcomers: bool,
}

impl Scan {
    fn begin(pager: &Pager) -> Scan {
        let mut counted = AddressSpaces::new(process::compare_memory as fn(u32, u32) -> _);
        let (mut managed, mut programs) = (BTreeSet::new(), BTreeSet::new());
        for (pid, thread) in helpers(pager) {
            managed.extend([pid, thread]); // the helper may be a process
            programs.insert(pid);
            counted.add(thread);
        }
        let (without, found, outside) = (BTreeMap::new(), Vec::new(), Vec::new());
        Scan { managed, programs, without, counted, found, outside, has_newcomers: false }
    }
}

impl Tree {
    fn run(mut self) {
        self.pager.sched.raised.lower_this();
        status::distinct_places().iter().for_each(|place| remove_left(place));
        let surveys = start_surveys(&self.pager);
        let mut schedule = Schedule::new(Instant::now());
        let mut load_after = Some(Instant::now() + LOAD_AFTER);
        while !self.pager.wakers.is_stopping() {
            let requests = self.pager.tree.waiting();
            if let Some(depth) = schedule.depth(requests.is_some(), Instant::now()) {
                let began = process::thread_time();
                let has_newcomers = self.scan(depth);
                if let Some(requests) = requests {
                    self.pager.tree.answer(requests);
                }
                let scanned = Scanned {
                    depth,
                    has_newcomers,
                    has_unmanaged: self.pager.account.unmanaged().bytes() > 0,
                    took: process::thread_time().saturating_sub(began),
                    headroom_bytes: self.pager.headroom_bytes(),
                };
                schedule.end_scan(Instant::now(), scanned);
            }
            if load_after.take_if(|at| Instant::now() >= *at).is_some() {
                self.sample_load(&processes(&self.pager));
            }
            let _ = surveys.as_ref().map(|surveys| surveys.thread().unpark());
            let next = load_after.map_or(schedule.next(), |load| load.min(schedule.next()));
            self.pager.wakers.tree.wait(next.saturating_duration_since(Instant::now()));
        }
    }

    fn sample_load(&mut self, processes: &[u32]) {
        let used = Used::now(processes);
        self.pager.sched.note_others(self.other_load.see(used));
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

    /// Scans the tree for processes without a helper, static and setuid programs. Their memory
    /// counts, and stays. Returns whether it saw some for the first time.
    fn scan(&mut self, depth: Depth) -> bool {
        let mut scan = Scan::begin(&self.pager);
        self.pager.drop_changed_outsiders();
        let outsiders = self.pager.outsiders.all();
        let processes = processes(&self.pager);
        if depth != Depth::Follow {
            self.pager.account.note_page_tables(page_table_bytes(&self.pager));
            self.sample_load(&processes);
        }
        // A child before its helper, which has the same memory and is a child of the supervisor.
        for pid in processes.into_iter().rev() {
            if !scan.managed.contains(&pid) {
                self.visit(pid, depth, &outsiders, &mut scan);
            }
        }
        let Scan { programs, without, found, outside, has_newcomers, .. } = scan;
        self.reported.retain(|pid, _| without.contains_key(pid));
        (self.managed, self.without) = (programs, without);
        self.count(depth, &found, outside);
        has_newcomers
    }

    /// Adds a process without a helper to a scan, and reports it once that is certain.
    fn visit(&mut self, pid: u32, depth: Depth, outsiders: &[Arc<Outsider>], scan: &mut Scan) {
        // A process that ended, or that the kernel lets nobody read, has no program.
        let Some((thread, program)) = thread_and_program_of(pid) else { return };
        let before = *self.without.get(&pid).unwrap_or(&0);
        let scans = match before {
            0 if self.is_forked_by_unmanaged(pid, &scan.without) => SCANS,
            _ => before + u32::from(depth.counts(before)),
        };
        // A stopped process may connect when it goes on: from then on its scans count.
        let scans = if scans > SCANS && process::is_stopped(pid) { SCANS } else { scans };
        scan.has_newcomers |= scans < SCANS;
        scan.without.insert(pid, scans);
        let Some(is_forked) = process::runs_what_was_forked(pid) else { return };
        // A program that had a helper is no newcomer; a helper whose child was killed is one. After
        // exec its memory is its own.
        if scans < SCANS && is_forked && !self.managed.contains(&pid) {
            return;
        }
        if !scan.counted.add(thread) {
            return;
        }
        // After the comparison: before it, the child of a vfork may have its parent's memory.
        let Some(seen) = seen(pid, thread, scans) else { return };
        let outsider = outsiders.iter().find(|outsider| outsider.pid() == pid);
        let has_space = outsider.is_none() && seen.is_forked && self.pager.see_without_helper(pid);
        match outsider {
            Some(outsider) => scan.outside.push((seen, outsider.counted_bytes())),
            None if has_space => {}
            None => scan.found.push(seen),
        }
        if scans >= SCANS
            && self.reported.get(&pid) != Some(&program)
            && let Some(why) = self.why_unmanaged(&seen, &scan.managed)
        {
            self.report(pid, program, why);
        }
    }

    /// Counts the memory of the processes that a scan found.
    fn count(&mut self, depth: Depth, found: &[Seen], outside: Vec<(Seen, u64)>) {
        let now = Instant::now();
        if depth != Depth::Follow {
            self.parts.query(now, found, |seen| {
                let since = Instant::now();
                (part_of_anonymous_of(seen.thread), since.elapsed())
            });
        }
        let found = found.iter().map(|seen| (*seen, self.parts.bytes_of(now, seen)));
        let counted: Vec<(Seen, u64)> = found.chain(outside).collect();
        self.pager.tree.note_largest(largest(&counted));
        let each = counted.into_iter().map(|(seen, bytes)| (seen.process.0, bytes));
        self.pager.see_unmanaged(each.collect());
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
        let is_late = seen.scans >= SCANS_WITHOUT_SIGN;
        sign.or_else(|| is_late.then(|| unmanaged_reason::without_sign(seen.is_forked)))
    }

    fn report(&mut self, pid: u32, program: PathBuf, why: &'static str) {
        self.reported.insert(pid, program.clone());
        let name = program.to_string_lossy().into_owned();
        let name = one_line(&name); // a name of a file may be anything
        if self.named.len() < NAMED_MAX && self.named.insert((program, why)) {
            self.pager.warn(&format!(
                "process {pid} ({name}) is unmanaged: {why}; its memory counts but cannot be \
                 evicted"
            ));
        }
    }

    /// Whether no helper will come: an unmanaged process has forked it, and it runs the same
    /// program. The child counts at once, as the parent's part is the less for it.
    fn is_forked_by_unmanaged(&self, pid: u32, seen_now: &BTreeMap<u32, u32>) -> bool {
        let scans = |parent: &u32| seen_now.get(parent).or_else(|| self.without.get(parent));
        let is_unmanaged = |parent: &u32| scans(parent).is_some_and(|&scans| scans >= SCANS);
        process::parent_of(pid).filter(is_unmanaged).is_some()
            && process::runs_what_was_forked(pid) == Some(true)
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
fn seen(pid: u32, thread: u32, scans: u32) -> Option<Seen> {
    let process = (pid, start_of(pid)?);
    let size = size_of(thread)?;
    Some(Seen {
        process,
        thread,
        anonymous_bytes: size.anonymous * PAGE_SIZE as u64,
        other_pages: size.others,
        // One that has ended by now would count in full, as after an exec.
        is_forked: process::runs_what_was_forked(pid)?,
        scans,
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
        let pager = pager.upgrade().filter(|pager| !pager.wakers.is_stopping())?;
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
