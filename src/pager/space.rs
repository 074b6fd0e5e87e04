//! An address space of a program: what of it is watched, where its pages are, and the helper in it.
//!
//! - P1: a page whose place is staging or the store is missing in the program; its next touch is
//!   told by the userfaultfd. A page whose place is the program is there, or is zero.
//! - P2: the helper moves pages only while nothing of the userfaultfd is read, and what is read to
//!   have changed is taken out of its command first: its addresses mean what they meant.
//! - P3: what a command did, be it in part, is noted in the table before anything else is read.
//! - P4: a page that the program has said it drops does not leave until it was missing once.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::family::Family;
use super::hand::Hand;
use super::helper::{Command, Helper, MoveRun, add_page};
use super::process_files::{
    Mapping, ProcessFiles, growth_under_way, has_locked_memory, number_in_namespace,
};
use super::ranges::{Ranges, count};
use super::status::ProcessStatus;
use super::streams::Streams;
use super::table::{Entry, HEAT_MAX, PageTable, Place, UNKNOWN};
use super::{SpaceLock, lock};
use crate::page::{PAGE_SIZE, Page};
use crate::sys::preload::SharedControl;
use crate::sys::preload::protocol::work;
use crate::sys::process;
use crate::sys::remote;
use crate::sys::userfaultfd::Userfaultfd;

/// Pages that are moved by one command: the kernel flushes the TLB once for more than 33, and page
/// by page below.
pub(super) const TRAY_PAGES: usize = 512;

/// Pages of a process that can be aside at once: 16 MiB.
pub(super) const STAGING_PAGES: usize = 8 * TRAY_PAGES;

/// Bytes of staging: one page more, whose touch tells of a fork.
pub(super) const STAGING_BYTES: u64 = (STAGING_PAGES as u64 + 1) * PAGE;

const PAGE: u64 = PAGE_SIZE as u64;

/// A page of staging that belongs to nobody.
const NOBODY: u64 = u64::MAX;

/// Pages that are aside in the program.
#[derive(Debug)]
struct Staging {
    /// By page of staging: the page of the program.
    owners: Box<[u64]>,
    /// Trays with pages, the oldest first.
    filled: VecDeque<usize>,
    /// Trays without.
    empty: Vec<usize>,
    /// A tray of which all is in the store, and that has its memory still.
    spent: Option<usize>,
}

/// How a command to move went.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) pages: usize,
    /// Pages that are not the program's alone, or may not be: the first, and how many.
    pub(super) shared: Vec<(u64, usize)>,
    /// Pages that are not all of one mapping.
    pub(super) split: Vec<(u64, usize)>,
}

/// Pages of a tray that are to be stored.
#[derive(Debug, Default)]
pub(super) struct Tray {
    pub(super) number: usize,
    pub(super) staged: Vec<StagedPage>,
}

/// A page that is aside.
#[derive(Debug, Clone, Copy)]
pub(super) struct StagedPage {
    /// Its page of staging, and the address of that.
    pub(super) number: u32,
    pub(super) address: u64,
    /// The page of the program that it was when it was asked for.
    pub(super) owner: u64,
}

/// An address space.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) pid: Option<u32>,
    /// The helper's thread: it has the memory as long as anybody has, unlike the first thread.
    pub(super) thread: Option<u32>,
    /// Numbers of the first thread and the helper in a PID namespace of their own, and here.
    renumbered: Vec<(u32, u32)>,
    pub(super) uffd: Arc<Userfaultfd>,
    helper: Option<Arc<Helper>>,
    pub(super) table: PageTable,
    /// Registered with the userfaultfd.
    pub(super) watched: Ranges,
    /// Never to be moved: staging, and the helper's stack.
    own: Ranges,
    /// Not to be moved for now, [`Space::own`] among it: locked, read-only.
    left: Ranges,
    left_since: Instant,
    /// Pages with a word that the kernel clears when a thread ends: never moved (see
    /// [`leave_words_of_threads`]).
    words: Ranges,
    /// That was asked for of all that is watched.
    knows_words: bool,
    /// The program has said that it drops this, and may not have done so yet (P4).
    removing: Ranges,
    /// Where something was moved to since all that was told was read.
    moved_in: Ranges,
    /// Parts of that where memory was known to be watched before, of whose end was not told yet.
    untold: Ranges,
    /// What was known of pages there before.
    elder: BTreeMap<u64, Entry>,
    staging: Staging,
    command: Option<Command>,
    commands: u32,
    /// What the last command did, and the tray whose memory it gives back.
    collected: Moved,
    dropping: Option<usize>,
    hand: Hand,
    files: Option<Arc<ProcessFiles>>,
    /// Size of the address space, in pages, when its mappings were last looked at.
    watched_at_size: u64,
    /// What was asked for before a fork, and when; of a child, what it has of its parent.
    advice: Option<(Option<Instant>, [Ranges; 3])>,
    /// Some of its pages may be another process's as well.
    pub(super) family: Option<Family>,
    /// When it came into the family, and what that had parted then.
    born: Option<(Instant, u64)>,
    /// What is watched is registered for write protection too.
    pub(super) protects: bool,
    /// To be protected still, which the kernel refuses while mappings change.
    to_protect: Ranges,
    /// It was protected for the fork that it is about to do.
    prepared: Option<Prepared>,
    shared: Shared,
    pub(super) gone: bool,
    pub(super) streams: Streams,
    /// First writes to protected pages.
    writes: Streams,
    /// Faults that were served.
    pub(super) faults: u64,
}

/// What of the memory of a process that is about to fork is not protected.
#[derive(Debug, Default)]
struct Prepared {
    /// Never: stacks of threads.
    spared: Ranges,
    /// Not any more: it was touched since.
    touched: Ranges,
}

/// Memory that is another process's too, as it was told last.
#[derive(Debug, Default)]
struct Shared {
    bytes: u64,
    /// When that was asked for, and how long it took; nothing where it is not known.
    told: Option<(Instant, Duration)>,
}

/// How long what was told of shared pages counts at most.
const SHARED_FOR: Duration = Duration::from_millis(50);

/// How long a child may be without a helper: it is looked twice for such in that time.
const ASSUMED_FOR: Duration = Duration::from_secs(1);

/// How long what was asked for before a fork is that fork's.
const ADVICE_FOR: Duration = Duration::from_secs(1);

/// Processes smaller than this make their pages their own unasked.
const PROTECTED_BYTES_MIN: u64 = 4 << 20;

/// How long it is waited for that who forks goes on, before pages are protected: a moment after
/// that was read. Other changes of the mappings are to be read first.
const PROTECT_MAX: Duration = Duration::from_micros(500);

/// How long of that without giving the processor away: who runs there then may write to pages that
/// are not protected yet, for some milliseconds.
const SPIN_MAX: Duration = Duration::from_micros(200);

/// How far the list of robust futexes of a thread and the word that is cleared at its end are from
/// each other at most: 16 bytes in glibc 2.36.
const BESIDE: u64 = 64;

/// Where such a list may be: a program can name any address, and names 0 where there is none.
const LISTS: Range<u64> = PAGE..1 << 56;

/// Where no more pages are resident of what may be a thread's stack, it is not watched: there is
/// little to win, and each thread that ends would be held up to tell that it drops its stack.
const STACK_PAGES: u64 = 16;

/// How long pages that could not be moved are left alone.
const LEFT_FOR: Duration = Duration::from_secs(5);

impl Space {
    /// A space whose process is known or not yet.
    pub(super) fn new(uffd: Userfaultfd, pid: Option<u32>) -> Space {
        Space {
            pid,
            thread: None,
            renumbered: Vec::new(),
            uffd: Arc::new(uffd),
            helper: None,
            table: PageTable::default(),
            watched: Ranges::default(),
            own: Ranges::default(),
            left: Ranges::default(),
            left_since: Instant::now(),
            words: Ranges::default(),
            knows_words: false,
            removing: Ranges::default(),
            moved_in: Ranges::default(),
            untold: Ranges::default(),
            elder: BTreeMap::new(),
            staging: Staging {
                owners: vec![NOBODY; STAGING_PAGES].into(),
                filled: VecDeque::new(),
                empty: (0..STAGING_PAGES / TRAY_PAGES).rev().collect(),
                spent: None,
            },
            command: None,
            commands: 0,
            collected: Moved::default(),
            dropping: None,
            hand: Hand::default(),
            files: None,
            watched_at_size: 0,
            advice: None,
            family: None,
            born: None,
            protects: false,
            to_protect: Ranges::default(),
            prepared: None,
            shared: Shared::default(),
            gone: false,
            streams: Streams::default(),
            writes: Streams::default(),
            faults: 0,
        }
    }

    /// The helper is there: pages can leave from now on.
    pub(super) fn meet(
        &mut self,
        pid: u32,
        connection: OwnedFd,
        control: SharedControl,
        staging: u64,
        own: Range<u64>,
    ) -> io::Result<()> {
        let area = staging..staging + STAGING_BYTES;
        // The page whose touch tells of a fork. The rest is by the helper, while it moves pages.
        self.uffd.register(area.end - PAGE..area.end, true, false)?;
        let thread = helper_thread(pid)?;
        self.thread = Some(thread);
        let renumbered = |here| number_in_namespace(here).map(|there| (there, here));
        self.renumbered = [thread, pid].into_iter().map_while(renumbered).collect();
        self.files = Some(Arc::new(ProcessFiles::open(thread)?));
        self.own.insert(area);
        self.own.insert(own);
        self.left = self.own.clone();
        self.pid = Some(pid);
        self.helper = Some(Arc::new(Helper::new(connection, control, staging)));
        if self.family.is_some() && self.watched != Ranges::default() {
            // What its parent's supervisor knew may be newer than the fork: some of it may not be
            // watched here, and a page that leaves such memory is lost.
            self.watched = Ranges::default();
            self.watch_and(false)?;
        }
        Ok(())
    }

    /// The thread that the userfaultfd tells of by this number; `None` where that is not known, or
    /// costs more than a fault to find out: the kernel tells the number in the thread's own PID
    /// namespace.
    pub(super) fn thread_told(&self, number: u32) -> Option<u32> {
        self.thread?;
        if self.renumbered.is_empty() {
            return Some(number);
        }
        self.renumbered.iter().find(|(there, _)| *there == number).map(|(_, here)| *here)
    }

    /// Likewise, of one that may have locked memory, whatever it costs.
    fn search_thread_told(&self, number: u32) -> Option<u32> {
        self.thread_told(number).or_else(|| {
            if !has_locked_memory(self.thread?) {
                return None;
            }
            let is_it = |&thread: &u32| number_in_namespace(thread) == Some(number);
            threads(self.thread?).ok()?.find(is_it)
        })
    }

    pub(super) fn helper(&self) -> Option<Arc<Helper>> {
        self.helper.clone().filter(|_| !self.gone)
    }

    /// Keeps the helper from moving pages, and notes what it has moved; `false` where it is at
    /// work.
    pub(super) fn hold_commands(&mut self) -> bool {
        let Some(helper) = self.helper.clone() else { return true };
        let held = helper.hold();
        if held {
            self.collect(helper.has_paused());
        }
        held
    }

    /// Something has changed in a range of addresses: no page of it is moved any more by a command
    /// that was given before (P2).
    pub(super) fn take_back(&self, range: Range<u64>) {
        if let (Some(helper), Some(command)) = (&self.helper, &self.command) {
            helper.take_back(command, range);
        }
    }

    /// Lets the helper go on; `changed` where the program's mappings are not what they were.
    pub(super) fn let_commands(&self, changed: bool) {
        if let Some(helper) = &self.helper {
            helper.let_go(changed);
        }
    }

    /// Bytes of anonymous memory that the process has; pages that others have too count here.
    pub(super) fn resident_bytes(&self) -> u64 {
        let size = self.files.as_ref().and_then(|files| files.size());
        size.map_or_else(|| self.assumed_bytes(), |size| size.anonymous * PAGE)
    }

    /// What a child is taken to have whose helper is not there yet: the pages that the others have
    /// made their own since, and it has alone. Nothing if it has ended or runs another program, and
    /// nothing after a while, for then it is found to be unmanaged.
    fn assumed_bytes(&self) -> u64 {
        let (Some(family), Some((at, before))) = (&self.family, self.born) else { return 0 };
        let is_young = self.pid.is_none() && at.elapsed() < ASSUMED_FOR;
        let pages = if is_young { family.parted() - before } else { 0 };
        if pages == 0 || self.is_dead() { 0 } else { pages * PAGE }
    }

    /// Whether the memory is gone. Of one with a helper that tells it.
    pub(super) fn is_dead(&self) -> bool {
        // Nothing is mapped so low; `ENOMEM` is said of memory that is gone.
        let asked = self.uffd.unregister(PAGE * 16..PAGE * 17);
        asked.is_err_and(|error| error.raw_os_error() == Some(libc::ENOMEM))
    }

    /// What is told of it while it runs, but for the name of its process; `None` before that is
    /// known.
    pub(super) fn status(&self) -> Option<ProcessStatus> {
        Some(ProcessStatus {
            pid: self.pid?,
            name: String::new(),
            resident_bytes: self.resident_bytes().saturating_sub(self.shared.bytes),
            stored_pages: self.table.stored_pages(),
            aside_pages: self.table.staged_pages(),
            faults: self.faults,
        })
    }

    /// Memory that children of a fork do not get (MADV_DONTFORK), such that they get as zeros
    /// (MADV_WIPEONFORK), and stacks. Nothing where no process is known: no page has left it.
    pub(super) fn fork_advice(&mut self) -> io::Result<[Ranges; 3]> {
        let was_told = self.is_about_to_fork();
        let before = self.advice.take();
        if was_told && !self.has_threads() {
            return Ok(before.map(|(_, advice)| advice).unwrap_or_default());
        }
        // Other threads may have changed it since; of one that has ended, part is told or nothing.
        let now = self.ask_fork_advice();
        match before {
            Some((_, advice)) if now.is_err() || self.is_dead() => Ok(advice),
            _ => now,
        }
    }

    /// A child has what its parent had, as long as it says nothing else before a fork of its own.
    pub(super) fn inherit_advice(&mut self, wiped: Ranges, stacks: Ranges) {
        self.advice = Some((None, [Ranges::new(), wiped, stacks]));
    }

    fn ask_fork_advice(&self) -> io::Result<[Ranges; 3]> {
        self.mappings_with(["dc", "wf", "nh"])
    }

    /// Mappings with each of these flags.
    fn mappings_with<const N: usize>(&self, wanted: [&str; N]) -> io::Result<[Ranges; N]> {
        match &self.files {
            Some(files) => files.mappings_with(wanted),
            None => Ok([const { Ranges::new() }; N]),
        }
    }

    /// Watches all anonymous memory that is not watched yet.
    pub(super) fn watch(&mut self) -> io::Result<()> {
        if self.protects && self.family.is_none() && !self.is_about_to_fork() {
            self.shares_no_more(); // the fork has failed
        }
        // Threads have new stacks all the time.
        self.watch_and(self.protects && !self.has_threads())
    }

    /// Likewise, where it may all be another process's as well.
    pub(super) fn watch_shared(&mut self) -> io::Result<()> {
        self.watch_and(self.protects)
    }

    /// As [`Space::watch`]; with `protect` what may be protected is.
    fn watch_and(&mut self, protect: bool) -> io::Result<()> {
        let Some(files) = self.files.clone() else { return Ok(()) };
        if self.uffd.is_changing() {
            return Ok(()); // soon
        }
        if self.left_since.elapsed() > LEFT_FOR {
            self.left_since = Instant::now();
            self.left = self.own.clone();
            self.words.iter().for_each(|word| self.left.insert(word));
        }
        self.watched_at_size = files.size().map_or(0, |size| size.mapped);
        let mut registered = Vec::new();
        for mapping in files.anonymous_mappings()? {
            let unwatched = self.watched.outside(mapping.range.clone());
            if mapping.is_above_guard
                && unwatched == [mapping.range.clone()]
                && files.has_at_most(mapping.range, STACK_PAGES)
            {
                continue;
            }
            for part in unwatched {
                for part in self.left.outside(part) {
                    match self.uffd.register(part.clone(), true, self.protects) {
                        Ok(()) => registered.push(part),
                        // It went, or another userfaultfd has it, or it is of a special kind.
                        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                            return Err(error);
                        }
                        Err(_) => {}
                    }
                }
            }
        }
        if registered.is_empty() {
            return Ok(());
        }
        // A part may have had a hole when it was registered, where something else is now that is
        // not. A mapping is registered as a whole or not at all: what lies in one now is watched,
        // if nothing has changed since of which nobody was told yet.
        let now = files.anonymous_mappings()?;
        if self.uffd.is_changing() {
            return Ok(());
        }
        let spared = protect.then(|| self.stacks()).flatten();
        let spared = spared.and_then(|stacks| self.not_to_protect(stacks));
        for part in registered {
            let at = now.partition_point(|mapping| mapping.range.end <= part.start);
            let is_whole = now.get(at).is_some_and(|Mapping { range, .. }| {
                range.start <= part.start && part.end <= range.end
            });
            if is_whole {
                for part in spared.iter().flat_map(|spared| spared.outside(part.clone())) {
                    self.to_protect.insert(part);
                }
                self.watched.insert(part);
                self.knows_words = false;
            }
        }
        self.have_forks_told(true);
        self.protect(PROTECT_MAX);
        Ok(())
    }

    /// It has pages in common with others.
    pub(super) fn joins(&mut self, family: Family) {
        self.born = Some((Instant::now(), family.parted()));
        self.family = Some(family);
        self.shared.told = None;
    }

    /// A process of some size is to ask before it makes pages its own that others have, too, which
    /// takes memory that no fault for a missing page announces; not in the `stacks` of its threads
    /// and of threads that may come. What else is spared; `None` where nothing is protected.
    pub(super) fn protect_all(
        &mut self,
        resident_bytes: u64,
        stacks: Option<Ranges>,
    ) -> Option<Ranges> {
        if resident_bytes < PROTECTED_BYTES_MIN {
            return None;
        }
        let spared = self.not_to_protect(stacks?)?;
        let Space { watched, to_protect, uffd, protects, .. } = self;
        for part in watched.iter() {
            if !*protects {
                // What is not mapped any more is not protected.
                let _ = uffd.register(part.clone(), true, true);
            }
            spared.outside(part).into_iter().for_each(|part| to_protect.insert(part));
        }
        self.protects = true;
        self.protect(PROTECT_MAX);
        Some(spared)
    }

    /// As [`Space::protect_all`], where all but the rest was protected before the fork.
    pub(super) fn protect_rest(&mut self, rest: &Ranges) {
        rest.iter().for_each(|part| self.to_protect.insert(part));
        self.protects = true;
        self.protect(PROTECT_MAX);
    }

    /// Protects what is to be protected; `false` where something is left after this time, as
    /// mappings change.
    pub(super) fn protect(&mut self, most: Duration) -> bool {
        let since = Instant::now();
        loop {
            let next = self.to_protect.iter().next();
            let Some(part) = next else { return true };
            match self.uffd.write_protect(part.clone()) {
                Err(error) if is_busy(&error) => {
                    if since.elapsed() >= most {
                        return false;
                    }
                    if since.elapsed() >= SPIN_MAX {
                        std::thread::yield_now();
                    }
                }
                // What is not there any more needs no protection.
                Ok(()) | Err(_) => self.to_protect.remove(part),
            }
        }
    }

    /// Stacks of threads that there are, or were: mappings of their own since Linux 6.7 (MAP_STACK:
    /// no huge pages). `None` where that is not known.
    pub(super) fn stacks(&self) -> Option<Ranges> {
        self.thread?;
        self.mappings_with(["nh"]).ok().map(|[stacks]| stacks)
    }

    /// What must not be protected, as [`leave_words_of_threads`] says; `None` where that is not
    /// known. A stack is spared without a thread, too: one may come before it is protected.
    fn not_to_protect(&self, stacks: Ranges) -> Option<Ranges> {
        if !self.has_threads() {
            return Some(stacks);
        }
        let mut spared = stacks;
        for thread in threads(self.thread?).ok()? {
            if Some(thread) == self.thread {
                continue;
            }
            // None on its way in or out, or it is a thread of another kind.
            let list = process::robust_list(thread).ok().filter(|list| LISTS.contains(list))?;
            let page = list / PAGE * PAGE;
            if Some(thread) == self.pid {
                spared.insert(page - PAGE..page + PAGE * 2); // not on a stack that was mapped so
            } else if spared.within(list..list + 1).next().is_none() {
                return None;
            }
        }
        Some(spared)
    }

    /// Whether it has more threads than one and the helper.
    fn has_threads(&self) -> bool {
        self.thread.is_some_and(|thread| threads(thread).is_ok_and(|threads| threads.count() > 2))
    }

    /// Nobody has pages of it any more.
    pub(super) fn shares_no_more(&mut self) {
        self.family = None;
        self.to_protect = Ranges::default();
        self.prepared = None;
        if std::mem::take(&mut self.protects) {
            // What stays protected as mappings change is asked for.
            self.watched.iter().for_each(|part| drop(self.uffd.write_unprotect(part, true)));
        }
    }

    /// Lets a page be written that was protected, and up to `most` with it: those. Who waits for
    /// them is not woken; where it is none, something has happened that is to be read first, and
    /// who waits is to look again.
    pub(super) fn let_write(&mut self, page: u64, most: usize) -> Range<u64> {
        let window = self.writes.window(page, most);
        let tries = [self.watched_around(page, window), page..page + 1];
        let may_be_written = |pages: &Range<u64>| {
            self.uffd.write_unprotect(pages.start * PAGE..pages.end * PAGE, false).is_ok()
        };
        let freed = tries.into_iter().find(may_be_written).unwrap_or(page..page);
        self.touched(freed.clone());
        self.made_own(count(&freed));
        freed
    }

    /// Some pages are not protected any more, or were missing.
    fn touched(&mut self, pages: Range<u64>) {
        if let Some(Prepared { spared, touched }) = &mut self.prepared {
            let parts = spared.outside(pages.start * PAGE..pages.end * PAGE);
            parts.into_iter().for_each(|part| touched.insert(part));
        }
    }

    /// The pages of a window that are watched in a row with `page`; that in any case.
    pub(super) fn watched_around(&self, page: u64, window: Range<u64>) -> Range<u64> {
        let mut parts = self.watched.within(window.start * PAGE..window.end * PAGE);
        parts.find(|part| part.contains(&(page * PAGE))).map_or(page..page + 1, pages)
    }

    /// Some pages were shared, and are no more: each takes a page more, here or where it was shared
    /// with. That counts here until it is looked at again.
    fn made_own(&mut self, pages: usize) {
        self.shared.bytes = self.shared.bytes.saturating_sub(pages as u64 * PAGE);
        let _ = self.family.as_ref().map(|family| family.part(pages));
    }

    /// Tells the helper to move `most` pages aside, those that the hand comes to next, and to give
    /// the memory of a tray back that is in the store. `false` where there is nothing of either.
    /// The caller has called [`leave_words_of_threads`], has the helper do it, without the lock,
    /// and then calls [`Space::dropped`].
    pub(super) fn give_move(&mut self, most: usize) -> io::Result<bool> {
        let (Some(helper), None) = (self.helper(), &self.command) else { return Ok(false) };
        let mut tray = (most > 0 && self.may_move()).then(|| self.staging.empty.pop()).flatten();
        let runs = match tray {
            Some(tray) => self.next_pages(tray, most)?,
            None => Vec::new(),
        };
        if runs.is_empty() {
            self.staging.empty.extend(tray.take());
        }
        Ok(self.give(&helper, work::MOVE, tray, runs))
    }

    /// Tells the helper to move pages of which that failed: those that are shared with a process
    /// that was forked, once they are this process's alone; those of several mappings one by one.
    pub(super) fn give_move_of(&mut self, failed: &Moved) -> bool {
        let is_shared = !failed.shared.is_empty();
        let wanted = if is_shared { &failed.shared } else { &failed.split };
        let given = self.give_move_these(wanted, is_shared);
        if is_shared && given {
            self.made_own(wanted.iter().map(|wanted| wanted.1).sum());
        }
        given
    }

    /// Tells the helper to move pages that another process had as well, and that have left that.
    pub(super) fn give_move_after(&mut self, pages: &[(u64, usize)]) -> bool {
        self.give_move_these(pages, true)
    }

    fn give_move_these(&mut self, wanted: &[(u64, usize)], is_shared: bool) -> bool {
        if wanted.is_empty() || !self.may_move() {
            return false;
        }
        let (Some(helper), None) = (self.helper(), &self.command) else { return false };
        let Some(tray) = self.staging.empty.pop() else { return false };
        let first = tray * TRAY_PAGES;
        let mut runs: Vec<MoveRun> = Vec::new();
        let mut count = 0;
        for page in wanted.iter().flat_map(|&(page, count)| page..page + count as u64) {
            let address = page * PAGE;
            let entry = self.table.get(page);
            let is_here = entry.place == Place::Program
                && !self.removing.contains(address)
                && !self.words.contains(address)
                && self.watched.within(address..address + PAGE).next().is_some();
            if is_here && count < TRAY_PAGES {
                match is_shared {
                    true => add_page(&mut runs, page, first + count),
                    false => runs.push(MoveRun::new(page, first + count)),
                }
                count += 1;
            }
        }
        if runs.is_empty() {
            self.staging.empty.push(tray);
            return self.give(&helper, work::MOVE, None, runs);
        }
        if is_shared && self.protects {
            // The helper is not to wait for room.
            for run in &runs {
                let _ = self.uffd.write_unprotect(run.addresses(), true);
            }
        }
        let what = if is_shared { work::OWN_AND_MOVE } else { work::MOVE };
        self.give(&helper, what, Some(tray), runs)
    }

    fn give(
        &mut self,
        helper: &Helper,
        what: u32,
        tray: Option<usize>,
        runs: Vec<MoveRun>,
    ) -> bool {
        let drops = self.staging.spent.take();
        if runs.is_empty() && drops.is_none() {
            return false;
        }
        self.commands = self.commands.wrapping_add(1);
        let command = Command { number: self.commands, tray, runs, drops };
        helper.give(&command, what);
        self.command = Some(command);
        true
    }

    /// The helper has said that it is done: what came of it, and pages of a tray that is empty now.
    pub(super) fn dropped(&mut self) -> (Moved, usize) {
        self.collect(false);
        let moved = std::mem::take(&mut self.collected);
        match self.dropping.take() {
            Some(tray) => {
                self.staging.empty.push(tray);
                (moved, TRAY_PAGES)
            }
            None => (moved, 0),
        }
    }

    /// The pages of a window around `page` that no command moves now: of those the table does not
    /// know whether they are in the program still. Empty where the page itself is one.
    pub(super) fn not_commanded(&self, page: u64, window: Range<u64>) -> Range<u64> {
        let mut free = window;
        for run in self.command.iter().flat_map(|command| &command.runs) {
            let pages = run.pages();
            if pages.end <= page {
                free.start = free.start.max(pages.end);
            } else {
                free.end = free.end.min(pages.start.max(free.start));
            }
        }
        if free.contains(&page) { free } else { page..page }
    }

    /// Notes what a command did, if it is done, or `in_part` (P3).
    fn collect(&mut self, in_part: bool) {
        let Some(mut command) = self.command.take() else { return };
        let Some(helper) = self.helper.clone() else { return };
        let is_done = helper.has_done(&command);
        if is_done || in_part {
            let answers: Vec<(usize, i32)> = helper.answers(&command).collect();
            for (run, (count, _)) in command.runs.iter_mut().zip(&answers) {
                for at in run.moved..*count {
                    let (page, staged) = (run.page + at as u64, run.staged + at);
                    let place = Place::Staged(staged as u32);
                    self.table.set(page, Entry { place, ..self.table.get(page) });
                    self.staging.owners[staged] = page;
                }
                run.moved = *count;
            }
            if is_done {
                return self.done(command, answers.into_iter().map(|(_, error)| error));
            }
        }
        self.command = Some(command);
    }

    /// A command is done, and all that it moved is noted; why each run stopped, an errno or 0.
    fn done(&mut self, command: Command, errors: impl Iterator<Item = i32>) {
        self.dropping = command.drops;
        let mut moved = Moved::default();
        for (run, error) in command.runs.iter().zip(errors) {
            moved.pages += run.moved;
            if run.moved == run.count {
                continue;
            }
            let (stopped_at, rest) = (run.page + run.moved as u64, run.count - run.moved);
            match error {
                libc::EBUSY => moved.shared.push((stopped_at, rest)),
                // A border between mappings is in it.
                libc::EINVAL if rest > 1 => moved.split.push((stopped_at, rest)),
                // Locked in memory, read-only, or of a special kind.
                libc::EINVAL => self.left.insert(stopped_at * PAGE..(stopped_at + 1) * PAGE),
                // It is not there any more (MADV_FREE).
                libc::ENOENT => self.table.set(stopped_at, UNKNOWN),
                _ => {} // it went, or will be tried again
            }
        }
        if moved.pages > 0 {
            self.staging.filled.extend(command.tray);
        } else {
            self.staging.empty.extend(command.tray);
        }
        self.collected = moved;
    }

    /// Pages that the hand comes to next, as runs that go into a tray.
    fn next_pages(&mut self, tray: usize, most: usize) -> io::Result<Vec<MoveRun>> {
        let Some(files) = &self.files else { return Ok(Vec::new()) };
        let Space { hand, table, watched, left, removing, .. } = self;
        let resident = &mut |range| files.resident(range);
        let pages = hand.pick(most, table, watched, left, removing, resident)?;
        let mut runs = Vec::new();
        for (page, staged) in pages.into_iter().zip(tray * TRAY_PAGES..) {
            add_page(&mut runs, page, staged);
        }
        Ok(runs)
    }

    /// Trays with pages.
    pub(super) fn filled_trays(&self) -> usize {
        self.staging.filled.len()
    }

    /// Takes the tray that was filled first, to store what is in it still.
    pub(super) fn take_oldest_tray(&mut self) -> Option<Tray> {
        let number = self.staging.filled.pop_front()?;
        self.tray(number)
    }

    /// Takes the tray that was filled last, likewise.
    pub(super) fn take_newest_tray(&mut self) -> Option<Tray> {
        let number = self.staging.filled.pop_back()?;
        self.tray(number)
    }

    fn tray(&self, number: usize) -> Option<Tray> {
        let helper = self.helper.as_ref()?;
        let pages = number * TRAY_PAGES..(number + 1) * TRAY_PAGES;
        let staged = pages
            .map(|staged| StagedPage {
                number: staged as u32,
                address: helper.staged_at(staged),
                owner: self.staging.owners[staged],
            })
            .filter(|staged| staged.owner != NOBODY)
            .collect();
        Some(Tray { number, staged })
    }

    /// A page of a tray is in the store now; `false` where it has left the tray meanwhile.
    pub(super) fn stored(&mut self, staged: u32, slot: u32) -> bool {
        let owner = std::mem::replace(&mut self.staging.owners[staged as usize], NOBODY);
        if owner == NOBODY {
            return false;
        }
        let entry = self.table.get(owner);
        if entry.place == Place::Staged(staged) {
            self.table.set(owner, Entry { place: Place::Stored(slot), ..entry });
        } else if let Some(entry) = self.elder.get_mut(&owner) {
            entry.place = Place::Stored(slot);
        }
        true
    }

    /// Puts a tray back that could not be emptied.
    pub(super) fn keep_tray(&mut self, number: usize) {
        self.staging.filled.push_back(number);
    }

    /// All of a tray is in the store, or has gone back: its memory goes with the next command.
    pub(super) fn spend_tray(&mut self, number: usize) {
        self.staging.spent = Some(number);
    }

    /// Whether a tray's memory is to be given back.
    pub(super) fn has_spent_tray(&self) -> bool {
        self.staging.spent.is_some()
    }

    /// Whether one more tray can be filled.
    pub(super) fn has_empty_tray(&self) -> bool {
        !self.staging.empty.is_empty()
    }

    /// Whether an address is in staging.
    pub(super) fn is_staging(&self, address: u64) -> bool {
        self.helper.as_ref().is_some_and(|helper| {
            let start = helper.staged_at(0);
            (start..start + STAGING_BYTES).contains(&address)
        })
    }

    /// Pages of staging with pages of the program.
    pub(super) fn pages_aside(&self) -> Vec<u32> {
        let owners = self.staging.owners.iter().zip(0..);
        owners.filter(|(owner, _)| **owner != NOBODY).map(|(_, staged)| staged).collect()
    }

    /// Whether a touch of this address tells of a fork.
    pub(super) fn tells_fork(&self, address: u64) -> bool {
        self.helper.as_ref().is_some_and(|helper| address >= helper.staged_at(STAGING_PAGES))
            && self.is_staging(address)
    }

    /// Whether the program is to tell of a fork before: copies of all that it has would not fit, or
    /// some of it is watched.
    pub(super) fn have_forks_told(&self, is_large: bool) {
        if let Some(helper) = &self.helper {
            helper.have_forks_told(is_large || self.watched != Ranges::default());
        }
    }

    /// The program is about to fork: watches what is to be protected then, and asks what it takes
    /// to know by then, when there is less time. No page leaves until it has. The page that told of
    /// it is filled; who waits for it is not woken. `false` where it is to ask again: the helper is
    /// at work, or the mappings change.
    pub(super) fn will_fork(&mut self, told_by: Range<u64>) -> bool {
        if !self.hold_commands() {
            return false;
        }
        let is_filled = self.uffd.zeropage(told_by, false).is_ok();
        if is_filled {
            self.take_back(0..u64::MAX);
        }
        self.let_commands(is_filled);
        if !is_filled {
            return false;
        }
        let _ = self.watch(); // what is not watched is not protected
        let advice = self.ask_fork_advice().ok();
        let stacks = advice.as_ref().map(|[.., stacks]| stacks.clone());
        self.advice = advice.map(|advice| (Some(Instant::now()), advice));
        // What is protected by then is so in the child, too, from its first moment on.
        let spared = self.protect_all(self.resident_bytes(), stacks);
        self.prepared = spared.map(|spared| Prepared { spared, ..Prepared::default() });
        true
    }

    /// It has forked: what was to be protected, and is not; `None` where that was not prepared.
    pub(super) fn take_unprotected(&mut self) -> Option<Ranges> {
        let prepared = self.prepared.take().filter(|_| self.is_about_to_fork())?;
        let mut rest = prepared.touched;
        self.to_protect.iter().for_each(|part| rest.insert(part));
        Some(rest)
    }

    /// Whether pages may leave now.
    fn may_move(&self) -> bool {
        self.knows_words && !self.is_about_to_fork()
    }

    pub(super) fn is_about_to_fork(&self) -> bool {
        matches!(&self.advice, Some((Some(told), _)) if told.elapsed() < ADVICE_FOR)
    }

    /// Reads a page that is aside.
    pub(super) fn read_staged(&self, staged: u32, page: &mut Page) -> io::Result<()> {
        let (Some(thread), Some(helper)) = (self.thread, &self.helper) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        remote::read(thread, helper.staged_at(staged as usize), page)
    }

    /// A page is back in the program, with this heat if it was in the store.
    pub(super) fn returned(&mut self, page: u64, heat: u8) {
        let entry = self.table.get(page);
        let heat = match entry.place {
            Place::Staged(staged) => {
                self.staging.owners[staged as usize] = NOBODY;
                HEAT_MAX
            }
            Place::Stored(_) | Place::Program => heat,
        };
        self.table.set(page, Entry { heat, returned: true, ..UNKNOWN });
        self.was_missing(page);
    }

    /// The kernel's page of zeros is there: it takes no memory, and there is nothing to move.
    pub(super) fn zeroed(&mut self, page: u64) {
        self.table.set(page, UNKNOWN);
        self.was_missing(page);
    }

    fn was_missing(&mut self, page: u64) {
        self.removing.remove(page * PAGE..(page + 1) * PAGE);
        self.touched(page..page + 1);
    }

    /// Forgets a range of pages; `release` is called for each slot that one of them named.
    pub(super) fn forget(&mut self, range: Range<u64>, release: &mut dyn FnMut(u32)) {
        let Space { table, staging, .. } = self;
        table.take_range(pages(range), &mut |_, entry| match entry.place {
            Place::Stored(slot) => release(slot),
            Place::Staged(staged) => staging.owners[staged as usize] = NOBODY,
            Place::Program => {}
        });
    }

    /// Forgets all pages.
    pub(super) fn forget_all(&mut self, release: &mut dyn FnMut(u32)) {
        self.forget(0..u64::MAX - PAGE, release);
        while let Some((&page, _)) = self.elder.first_key_value() {
            self.drop_aside(page, release);
        }
    }

    /// The program drops a range of pages, now or in a moment (P4).
    pub(super) fn removed(&mut self, range: Range<u64>, release: &mut dyn FnMut(u32)) {
        self.forget(range.clone(), release);
        self.removing.insert(range);
    }

    /// The program has unmapped a range.
    pub(super) fn unmapped(&mut self, range: Range<u64>, release: &mut dyn FnMut(u32)) {
        self.to_protect.remove(range.clone());
        self.removing.remove(range.clone());
        self.words.remove(range.clone());
        let late = self.late(range.clone());
        // What is told of it next is of what is there now.
        self.untold.remove(range.clone());
        self.moved_in.remove(range.clone());
        for part in late.outside(range.clone()) {
            self.forget(part.clone(), release);
            self.watched.remove(part.clone());
            self.left.remove(part);
        }
        for part in late.within(range) {
            for page in pages(part) {
                self.drop_aside(page, release);
            }
        }
    }

    /// The program has moved a range.
    pub(super) fn moved(&mut self, from: Range<u64>, to: u64, release: &mut dyn FnMut(u32)) {
        for range in [from.clone(), to..to + (from.end - from.start)] {
            self.to_protect.remove(range.clone());
            self.removing.remove(range.clone());
            self.words.remove(range);
        }
        // Not asked of the kernel: memory may be there still (MREMAP_DONTUNMAP).
        let mut late = Ranges::default();
        self.untold.within(from.clone()).for_each(|part| late.insert(part));
        self.untold.remove(from.clone());
        self.moved_in.remove(from.clone());
        let mut entries = Vec::new();
        let mut watched = Vec::new();
        for part in late.outside(from.clone()) {
            let taken = &mut |page, entry| entries.push((page, entry));
            self.table.take_range(pages(part.clone()), taken);
            watched.extend(self.watched.within(part.clone()));
            self.watched.remove(part.clone());
            self.left.remove(part);
        }
        for page in late.within(from.clone()).flat_map(pages) {
            entries.extend(self.elder.remove(&page).map(|entry| (page, entry)));
        }
        // What is known there is of memory that has gone, as will be told.
        let into = to..to + (from.end - from.start);
        let mut elder = Vec::new();
        self.table.take_range(pages(into.clone()), &mut |page, entry| elder.push((page, entry)));
        for (page, entry) in elder {
            self.drop_aside(page, release);
            self.elder.insert(page, entry);
            self.untold.insert(page * PAGE..(page + 1) * PAGE);
        }
        let known: Vec<Range<u64>> = self.watched.within(into.clone()).collect();
        known.into_iter().for_each(|part| self.untold.insert(part));
        self.watched.remove(into.clone());
        self.left.remove(into.clone());
        for (page, entry) in entries {
            let page = page - from.start / PAGE + to / PAGE;
            if let Place::Staged(staged) = entry.place {
                self.staging.owners[staged as usize] = page;
            }
            self.table.set(page, entry);
        }
        for part in watched {
            self.watched.insert(part.start - from.start + to..part.end - from.start + to);
        }
        self.moved_in.insert(into);
    }

    /// The parts of a range that something has been moved to since they were unmapped, which is
    /// told only now: the kernel tells in another order than it does where two threads do it. They
    /// were known to be watched when something came there; or memory is there, and it is watched,
    /// so it is not what was unmapped.
    fn late(&self, range: Range<u64>) -> Ranges {
        let mut late = Ranges::default();
        self.untold.within(range.clone()).for_each(|part| late.insert(part));
        if self.moved_in.within(range.clone()).next().is_some() {
            let watched_now = self.mappings_with(["um"]).map(|[watched]| watched);
            for part in self.moved_in.within(range) {
                let now = watched_now.as_ref().map(|now| now.within(part).collect());
                now.unwrap_or_else(|_| Vec::new()).into_iter().for_each(|part| late.insert(part));
            }
        }
        late
    }

    fn drop_aside(&mut self, page: u64, release: &mut dyn FnMut(u32)) {
        match self.elder.remove(&page).map(|entry| entry.place) {
            Some(Place::Stored(slot)) => release(slot),
            Some(Place::Staged(staged)) => self.staging.owners[staged as usize] = NOBODY,
            Some(Place::Program) | None => {}
        }
    }

    /// All that is told was read: what is told from now on was done after it, if nothing is under
    /// way.
    pub(super) fn settle(&mut self, release: &mut dyn FnMut(u32)) {
        if self.moved_in != Ranges::default() && !self.uffd.is_changing() {
            self.moved_in = Ranges::default();
            self.untold = Ranges::default();
            while let Some((&page, _)) = self.elder.first_key_value() {
                self.drop_aside(page, release);
            }
        }
    }

    /// A page is missing, and the mappings change. Where the thread that waits for it is in
    /// mremap(2), lets the kernel itself fill what is locked of what the mapping grows by: it does
    /// so, first page first, before it tells that it moved it, and that would never be told. None
    /// of what is elsewhere, though what was locked before is there as a rule; nothing where the
    /// helper is at work. Whether it is that.
    pub(super) fn leave_growth_to_kernel(&mut self, address: u64, waits: u32) -> bool {
        let growth = self.search_thread_told(waits).and_then(growth_under_way);
        if let Some(growth) = growth {
            self.leave_to_kernel(address..address.saturating_add(growth));
        }
        growth.is_some()
    }

    fn leave_to_kernel(&mut self, range: Range<u64>) {
        let Ok([locked]) = self.mappings_with(["lo"]) else { return };
        if !self.hold_commands() {
            return;
        }
        let mut unknown = Ranges::default();
        for page in locked.within(range).flat_map(pages) {
            if self.table.get(page).place == Place::Program {
                unknown.insert(page * PAGE..(page + 1) * PAGE);
            }
        }
        for part in unknown.iter() {
            let _ = self.uffd.unregister(part.clone());
            self.watched.remove(part.clone());
            self.to_protect.remove(part.clone());
            self.take_back(part);
        }
        self.let_commands(true);
    }

    /// Memory of what is known, in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        self.table.bytes() + STAGING_PAGES * size_of::<u64>()
    }
}

// What is asked of the kernel at each look is asked for without the space's lock: faults wait for
// that.

/// As [`Space::resident_bytes`].
pub(super) fn resident_bytes(space: &SpaceLock) -> u64 {
    let files = lock(space).files.clone();
    let size = files.and_then(|files| files.size());
    size.map_or_else(|| lock(space).assumed_bytes(), |size| size.anonymous * PAGE)
}

/// Whether the address space has grown or shrunk since it was last looked at.
pub(super) fn has_changed(space: &SpaceLock) -> bool {
    let (files, before) = {
        let space = lock(space);
        (space.files.clone(), space.watched_at_size)
    };
    files.and_then(|files| files.size()).is_some_and(|size| size.mapped != before)
}

/// Leaves pages where they are that threads need at their end. The kernel clears a word of a thread
/// then for whoever joins it, past any userfaultfd: were that page away, the word would stay as it
/// is. glibc has it on the thread's stack, beside the thread's list of robust futexes, which can be
/// asked for. Such a page is left until it is unmapped: the next thread may have the same stack.
pub(super) fn leave_words_of_threads(space: &SpaceLock) {
    let helper = {
        let mut space = lock(space);
        space.knows_words = true; // of what is watched now
        space.thread
    };
    let Some(helper) = helper else { return };
    // Of one with no threads but its first and the helper nobody joins any.
    let Some(threads) = threads(helper).ok().map(Vec::from_iter) else { return };
    if threads.len() <= 2 {
        return;
    }
    // An error where it has ended.
    let lists = threads.into_iter().filter_map(|thread| process::robust_list(thread).ok());
    let lists: Vec<u64> = lists.filter(|list| LISTS.contains(list)).collect();
    let mut space = lock(space);
    for list in lists {
        let word = (list - BESIDE) / PAGE * PAGE..(list + BESIDE).next_multiple_of(PAGE);
        space.words.insert(word.clone());
        space.left.insert(word);
    }
}

/// Bytes of anonymous memory that count as this process's: where pages are shared since a fork, its
/// part of them (`Pss_Anon`). What was told of it last counts for so many times of what it took.
pub(super) fn counted_bytes(space: &SpaceLock, times: u32) -> u64 {
    let resident = resident_bytes(space);
    let (files, before, told) = {
        let space = lock(space);
        let files = space.files.clone().filter(|_| space.family.is_some());
        (files, space.shared.bytes, space.shared.told)
    };
    let Some(files) = files else { return resident };
    let now = Instant::now();
    if told.is_some_and(|(at, took)| now < at + (took * times).min(SHARED_FOR)) {
        return resident.saturating_sub(before);
    }
    let part = files.part_of_anonymous().unwrap_or(0); // it has ended
    let took = now.elapsed();
    let mut space = lock(space);
    // What was made its own meanwhile may not be told of.
    let made_own = before.saturating_sub(space.shared.bytes);
    space.shared.bytes = resident.saturating_sub(part).saturating_sub(made_own);
    space.shared.told = Some((now, took));
    part
}

/// The mappings are being changed.
fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAGAIN)
}

/// The thread of the helper in a process.
fn helper_thread(pid: u32) -> io::Result<u32> {
    let is_helper = |thread: &u32| {
        let name = fs::read(format!("/proc/{thread}/comm"));
        name.is_ok_and(|name| name == b"uzswap-helper\n")
    };
    threads(pid)?.find(is_helper).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The threads of the process that one of them is of.
fn threads(thread: u32) -> io::Result<impl Iterator<Item = u32>> {
    let tasks = fs::read_dir(format!("/proc/{thread}/task"))?;
    Ok(tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()))
}

/// The pages of a range of addresses.
fn pages(range: Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}
