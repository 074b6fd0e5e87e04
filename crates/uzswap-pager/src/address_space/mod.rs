//! One address space: where each page is, which ranges are registered, and the helper's commands.
//!
//! - P1: a staged or stored page is missing in the program, and the userfaultfd reports its next
//!   touch. A page whose place is the program is resident, or zero-filled at its next touch.
//! - P2: the helper moves pages only while no event is read. Ranges that an event changed are taken
//!   out of the command first, so its addresses keep their meaning.
//! - P3: the supervisor notes the result of a command, also of a part, before it reads an event.
//! - P4: a page that the program drops by `madvise` is not evicted before it was missing once.

#[cfg(any(test, debug_assertions))]
mod audit;
mod charge;
mod copies;
mod fork_advice;
pub(crate) mod handle;
mod identity;
mod inheritance;
mod layout;
mod lazy;
mod markers;
mod move_batch;
mod never_evicted;
mod pinned;
mod refused;
mod registration;
mod resolve;
mod staging;
mod write_protect;

use std::cmp::Ordering;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use charge::{Joined, Shared};
pub(crate) use charge::{Part, Told, process_size, resident_bytes};
use copies::Copies;
pub(crate) use copies::count_copies;
pub(crate) use fork_advice::ForkAdvice;
use identity::Identity;
use inheritance::Uncertain;
pub(crate) use layout::Change;
use layout::Changes;
use lazy::LazyLooks;
use markers::Markers;
pub(crate) use move_batch::Moved;
use never_evicted::Words;
pub(crate) use never_evicted::leave_words_of_threads;
use pinned::Pinned;
pub(crate) use refused::Way;
use registration::ScanState;
pub(crate) use registration::{Look, register};
use staging::Staging;
pub(crate) use staging::{Batch, STAGING_BYTES};
pub(crate) use write_protect::AdviceAtFork;
use write_protect::{Forks, LastAdvice, Prepared, Reports};

use crate::fork_group::Member;
use crate::page_table::{Entry, HEAT_MAX, PageTable, Place, UNKNOWN};
use crate::policy::clock::ClockHand;
use crate::policy::readahead::{FreshStreams, Streams};
use crate::policy::refaults::Refaults;
use crate::program::helper::{Command, Helper};
use crate::program::peer::Peer;
use crate::program::procfs::{ProcessFiles, Size, has_locked_memory, number_in_namespace};
use crate::range_set::RangeSet;
use crate::sched::source_mix::SourceMix;
use crate::telemetry::status::ProcessStatus;
use crate::token_bucket::Bucket;
use uzswap::page::PAGE_SIZE;
use uzswap_preload::protocol::work;
use uzswap_sys::process;
use uzswap_sys::userfaultfd::Userfaultfd;

const PAGE: u64 = PAGE_SIZE as u64;

/// How long the server waits for the forking thread before it protects pages. Other changes of the
/// mappings come first.
const PROTECT_MAX: Duration = Duration::from_micros(500);

/// Children that may join a process of which nothing was registered when it forked: for each, all
/// that it has is protected. Others run unmanaged.
const JOINS_AT_ONCE: u32 = 1024;
const JOINS_EACH_SECOND: u32 = 128;

/// An address space.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    pub(crate) pid: Option<u32>,
    /// The process, where it is known.
    pub(crate) peer: Option<Arc<Peer>>,
    /// Of a child: its nearest ancestor that was known when it was forked.
    forked_by: Option<u32>,
    identity: Identity,
    /// The helper's thread, which has the memory longer than the first thread may.
    pub(crate) thread: Option<u32>,
    /// Numbers of the first thread and the helper in their PID namespace, and in the supervisor's.
    renumbered: Vec<(u32, u32)>,
    pub(crate) uffd: Arc<Userfaultfd>,
    helper: Option<Arc<Helper>>,
    pub(crate) table: PageTable,
    /// Slots of forgotten pages, until the space is unlocked.
    released: Vec<u32>,
    /// Ranges that are registered with the userfaultfd.
    pub(crate) registered: RangeSet,
    /// Memory of the library, which never moves: staging, the helper's stack, the page of identity.
    pub(crate) own: RangeSet,
    /// Memory that does not move for now: locked, sealed, and [`AddressSpace::own`].
    left: RangeSet,
    /// Locked mappings (mlock) that the kernel refused to move.
    locked: RangeSet,
    lazy_looks: LazyLooks,
    /// Pages in [`AddressSpace::left`] that the kernel holds for I/O.
    pinned: Pinned,
    /// The kernel refused the last move with ENOMEM: no memory, or too many mappings.
    has_no_memory: bool,
    left_since: Instant,
    /// Pages that never move because the kernel reads or writes words in them past any userfaultfd:
    /// words for the end of a thread (see [`leave_words_of_threads`]), and arguments.
    words: Words,
    /// Arguments are among them.
    knows_arguments: bool,
    /// Words in all registered memory are known.
    knows_words: bool,
    markers: Markers,
    /// Ranges that the program has reported to drop, and may not have dropped yet (P4).
    removing: RangeSet,
    /// Changes of mappings that the table does not follow yet, because an event is pending.
    changes: Changes,
    staging: Staging,
    command: Option<Command>,
    commands: u32,
    /// The result of the last command, and the batch whose memory it frees.
    collected: Moved,
    dropping: Option<usize>,
    hand: ClockHand,
    files: Option<Arc<ProcessFiles>>,
    pub(crate) looks: ScanState,
    forks: Forks,
    /// Advice about forks; a child begins with its parent's.
    advice: Option<LastAdvice>,
    reports: Reports,
    /// Of a child whose markers the supervisor has not read yet.
    undecided: Option<Uncertain>,
    /// Evicted pages with unknown content that the kernel has not poisoned yet.
    poison_later: RangeSet,
    /// Memory that was registered since changes are pending.
    registered_since: RangeSet,
    /// The processes with which it may share pages.
    pub(crate) group: Option<Member>,
    /// When it joined the group.
    joined: Option<Joined>,
    /// A child whose helper is expected.
    expected: bool,
    /// Registered pages that it may share are write-protected.
    pub(crate) protects: bool,
    /// Unregistered memory may be shared.
    shares_unregistered: bool,
    /// Ranges still to protect: the kernel refuses while mappings change.
    to_protect: RangeSet,
    /// The state of the protection for an announced fork.
    prepared: Option<Prepared>,
    shared: Shared,
    copies: Copies,
    /// Resident pages at the last sample.
    was_resident: Option<u64>,
    /// Pages that faults brought since the last sample, less evicted pages.
    told_pages: i64,
    /// Bytes that it counted for at the last sample.
    pub(crate) counted: u64,
    pub(crate) gone: bool,
    pub(crate) streams: Streams,
    /// Streams of faults in memory that was never touched.
    pub(crate) fresh: FreshStreams,
    /// Streams of first writes to protected pages.
    writes: Streams,
    /// Whether the last faults came from several threads.
    pub(crate) threads: SourceMix,
    /// All workers read its faults, because several threads fault in turn.
    pub(crate) has_all_workers: bool,
    /// Faults that were served.
    pub(crate) faults: u64,
    pub(crate) refaults: Refaults,
    /// A budget for children that join without an event of their fork.
    pub(crate) joins: Bucket,
}

impl AddressSpace {
    /// A space whose process is known or not yet.
    pub(crate) fn new(uffd: Userfaultfd, pid: Option<u32>) -> AddressSpace {
        AddressSpace::with(Arc::new(uffd), pid)
    }

    fn with(uffd: Arc<Userfaultfd>, pid: Option<u32>) -> AddressSpace {
        AddressSpace {
            pid,
            peer: None,
            forked_by: None,
            identity: Identity::default(),
            thread: None,
            renumbered: Vec::new(),
            uffd,
            helper: None,
            table: PageTable::default(),
            released: Vec::new(),
            registered: RangeSet::default(),
            own: RangeSet::default(),
            left: RangeSet::default(),
            locked: RangeSet::default(),
            lazy_looks: LazyLooks::new(Instant::now()),
            pinned: Pinned::new(Instant::now()),
            has_no_memory: false,
            left_since: Instant::now(),
            words: Words::default(),
            knows_arguments: false,
            knows_words: false,
            markers: Markers::default(),
            removing: RangeSet::default(),
            changes: Changes::default(),
            staging: Staging::new(),
            command: None,
            commands: 0,
            collected: Moved::default(),
            dropping: None,
            hand: ClockHand::default(),
            files: None,
            looks: ScanState::default(),
            forks: Forks::new(),
            advice: None,
            reports: Reports::default(),
            undecided: None,
            poison_later: RangeSet::default(),
            registered_since: RangeSet::default(),
            group: None,
            joined: None,
            expected: false,
            protects: false,
            shares_unregistered: false,
            to_protect: RangeSet::default(),
            prepared: None,
            shared: Shared::default(),
            copies: Copies::default(),
            was_resident: None,
            told_pages: 0,
            counted: 0,
            gone: false,
            streams: Streams::default(),
            fresh: FreshStreams::default(),
            writes: Streams::default(),
            threads: SourceMix::default(),
            has_all_workers: false,
            faults: 0,
            refaults: Refaults::default(),
            joins: Bucket::new(JOINS_AT_ONCE, JOINS_EACH_SECOND),
        }
    }

    /// A space of no process, without a userfaultfd.
    #[cfg(test)]
    pub(crate) fn of_nothing() -> AddressSpace {
        let nothing = std::fs::File::open("/dev/null").unwrap();
        AddressSpace::new(Userfaultfd::from_fd(nothing.into()), None)
    }

    /// The space of a child that was forked with this userfaultfd. A secret identifies its process.
    pub(crate) fn of_child(
        uffd: Arc<Userfaultfd>,
        parent: &AddressSpace,
        secret: [u8; 16],
    ) -> AddressSpace {
        let identity = Identity::of_child(&parent.identity, secret);
        AddressSpace { identity, forked_by: parent.root(), ..AddressSpace::with(uffd, None) }
    }

    /// Its process, or the last known one before it.
    pub(crate) fn root(&self) -> Option<u32> {
        self.pid.or(self.forked_by)
    }

    /// Takes this process for the space's.
    #[cfg(test)]
    pub(crate) fn take_this_process(&mut self) {
        self.files = Some(Arc::new(ProcessFiles::of_thread(std::process::id()).unwrap()));
    }

    /// Whether the kernel refused the last move for want of memory or of mappings (ENOMEM).
    pub(crate) fn has_no_memory(&self) -> bool {
        self.has_no_memory
    }

    /// Its pages in this range are left alone for a while.
    pub(crate) fn stays(&mut self, range: Range<u64>) {
        self.left.insert(range);
    }

    /// The helper is there: pages can leave from now on.
    pub(crate) fn meet(
        &mut self,
        peer: Arc<Peer>,
        helper: Helper,
        files: ProcessFiles,
    ) -> io::Result<()> {
        let pid = peer.pid();
        self.look_by(files, pid);
        self.left = self.own.clone();
        self.pid = Some(pid);
        self.peer = Some(peer);
        let shared = std::mem::take(&mut self.expected).then_some(self.shared.bytes);
        if self.is_undecided() {
            self.decide_inheritance(&[]);
        }
        self.forget_secret();
        self.helper = Some(Arc::new(helper));
        self.share_all(self.protects && self.registered != RangeSet::default());
        // Some of it may be in its own count by now, as it has written to it.
        self.shared.bytes = self.shared.bytes.min(shared.unwrap_or(u64::MAX));
        if self.joined.is_some() && self.registered != RangeSet::default() {
            // What its parent's supervisor knew may be newer than the fork: some of it may not be
            // registered here, and a page that leaves such memory is lost.
            self.registered = RangeSet::default();
            self.register_and(false)?;
        }
        Ok(())
    }

    /// Looks at its process by these files from now on.
    fn look_by(&mut self, files: ProcessFiles, pid: u32) {
        let renumbered = |here| number_in_namespace(here).map(|there| (there, here));
        self.renumbered = [files.thread, pid].into_iter().map_while(renumbered).collect();
        self.thread = Some(files.thread);
        self.files = Some(Arc::new(files));
    }

    /// The thread that the userfaultfd reports by this number of its own PID namespace. `None` if
    /// it is unknown, or if a search would cost more than a fault.
    pub(crate) fn thread_told(&self, number: u32) -> Option<u32> {
        self.thread?;
        if self.renumbered.is_empty() {
            return Some(number);
        }
        self.renumbered.iter().find(|(there, _)| *there == number).map(|(_, here)| *here)
    }

    /// The same for a process with locked memory, whatever the search costs.
    fn search_thread_told(&self, number: u32) -> Option<u32> {
        self.thread_told(number).or_else(|| {
            if !has_locked_memory(self.thread?) {
                return None;
            }
            let is_it = |&thread: &u32| number_in_namespace(thread) == Some(number);
            self.files.as_ref()?.threads().find(is_it)
        })
    }

    pub(crate) fn helper(&self) -> Option<Arc<Helper>> {
        self.helper.clone().filter(|_| !self.gone)
    }

    /// Keeps the helper from moving pages, and notes what it has moved; `false` where it is at
    /// work. One that was stopped may not go on for long: it is kept from moving any more.
    pub(crate) fn hold_commands(&mut self) -> bool {
        let Some(helper) = self.helper.clone() else { return true };
        let held = helper.hold();
        if held {
            self.collect(helper.has_paused());
        } else if self.hold_remapping(&helper) {
            return true;
        }
        let is_in_the_way = !held || self.command.is_some();
        if is_in_the_way && helper.is_late() && self.is_stopped() {
            return self.hold_stopped(&helper, held);
        }
        held
    }

    /// Breaks the command off of a helper that was stopped, wherever that was, and holds it. It may
    /// go on at any moment.
    fn hold_stopped(&mut self, helper: &Helper, held: bool) -> bool {
        // What it begins from now on has no pages.
        self.take_back(0..u64::MAX);
        let batch = self.command.as_ref().and_then(|command| command.batch);
        let is_remap = self.command.as_ref().is_some_and(|command| command.work == work::REMAP);
        if is_remap && !held {
            if !helper.take_from_work() {
                return false; // it is in mremap, or about to be
            }
        } else if let (Some(batch), false) = (batch, held) {
            // It may be about to move some: none are moved to what is not registered.
            if self.uffd.unregister(helper.batch_at(batch)).is_err() {
                return false;
            }
            self.markers.expect_stray(); // it may be about to mark those that it has moved
        }
        if self.break_off().is_err() {
            return held;
        }
        helper.hold_at_work();
        true
    }

    /// Something has changed in a range of addresses: no page of it is moved any more by a command
    /// that was given before (P2).
    pub(crate) fn take_back(&self, range: Range<u64>) {
        if let (Some(helper), Some(command)) = (&self.helper, &self.command) {
            helper.take_back(command, range);
        }
    }

    /// Lets the helper go on; `changed` where the program's mappings are not what they were.
    pub(crate) fn let_commands(&self, changed: bool) {
        if let Some(helper) = &self.helper {
            helper.let_go(changed);
        }
    }

    /// Whether its process has the memory still: that may have called exec(2) just now. `true`
    /// where the kernel does not tell.
    pub(crate) fn has_memory_of_its_process(&self) -> bool {
        let Some(files) = &self.files else { return true };
        let differs =
            |thread| process::compare_memory(thread, files.thread).is_ok_and(Ordering::is_ne);
        files.has_helper_as_thread() || !files.threads().all(differs)
    }

    /// Whether the memory is gone. Of one with a helper that tells it.
    pub(crate) fn is_dead(&self) -> bool {
        self.uffd.is_memory_gone()
    }

    /// Whether the helper was stopped, alone or with its process.
    pub(crate) fn is_stopped(&self) -> bool {
        self.thread.is_some_and(process::is_stopped)
    }

    /// A helper that is a thread ends where it alone is left of its process: threads that end one
    /// by one leave it there. The exit code is that of the last one, of which the kernel keeps
    /// nothing: as a rule, it is the first one, of which it does.
    pub(crate) fn end_helper_left_alone(&self) {
        let (Some(pid), Some(files), Some(helper)) = (self.pid, &self.files, self.helper()) else {
            return;
        };
        // The kernel shows the exit code of the first thread while another one lives.
        if let Some(code) = process::first_thread_code(pid)
            && files.has_helper_as_thread()
            && files.threads().count() <= 1
        {
            helper.end(code);
        }
    }

    /// Whether the process ends, while other threads may still have its memory. The helper ends at
    /// no other time, and it releases the memory some time before it is gone.
    pub(crate) fn is_ending(&self) -> bool {
        self.files.as_ref().is_some_and(|files| self.has_lost_helper(files.size()))
    }

    /// The same, by its size as the helper's thread shows it. The connection of an ended helper may
    /// live on, if another process or thread has the descriptor.
    pub(crate) fn has_lost_helper(&self, size: Option<Size>) -> bool {
        self.files.is_some() && size.is_none_or(|size| size.mapped == 0)
    }

    /// Its row of the run's status, without the name of the process; `None` before the process is
    /// known.
    pub(crate) fn status(&self) -> Option<ProcessStatus> {
        Some(ProcessStatus {
            pid: self.pid?,
            name: String::new(),
            resident_bytes: self.resident_bytes().saturating_sub(self.shared.bytes),
            stored_pages: self.table.stored_pages(),
            staged_pages: self.table.staged_pages(),
            faults: self.faults,
        })
    }

    /// Mappings with each of these flags.
    fn mappings_with<const N: usize>(&self, wanted: [&str; N]) -> io::Result<[RangeSet; N]> {
        match &self.files {
            Some(files) => files.mappings_with(wanted),
            None => Ok([const { RangeSet::new() }; N]),
        }
    }

    /// A page is back in the program, with this heat if it was in the store.
    pub(crate) fn returned(&mut self, page: u64, heat: u8) {
        let entry = self.table.get(page);
        let heat = match entry.place {
            Place::Staged(staged) => {
                self.staging.owners.take(staged);
                HEAT_MAX
            }
            Place::Stored(_) | Place::Program => heat,
        };
        self.table.set(page, Entry { heat, returned: true, ..UNKNOWN });
        self.told_pages += 1;
        self.note_missing(page);
    }

    /// A page of zeros is there, which a thread has asked for, or which was filled ahead of that.
    pub(crate) fn filled_fresh(&mut self, page: u64, ahead: bool) {
        self.returned(page, 0);
        if ahead {
            self.table.set(page, Entry { ahead, returned: true, ..UNKNOWN });
        }
    }

    /// The kernel's page of zeros is there: it takes no memory, and there is nothing to move.
    pub(crate) fn zeroed(&mut self, page: u64) {
        self.table.set(page, UNKNOWN);
        self.note_missing(page);
    }

    fn note_missing(&mut self, page: u64) {
        self.removing.remove(page * PAGE..(page + 1) * PAGE);
        self.touched(page..page + 1);
    }

    /// Memory of what is known, in bytes, about.
    pub(crate) fn bytes(&self) -> usize {
        let sets = [&self.registered, &self.own, &self.left, &self.removing, &self.to_protect];
        let sets = sets.iter().map(|set| set.bytes()).sum::<usize>() + self.words.bytes();
        let sets = sets
            + self.pinned.bytes()
            + self.markers.bytes()
            + self.locked.bytes()
            + self.lazy_looks.bytes();
        self.table.bytes() + self.staging.owners.bytes() + sets
    }
}

/// The pages of a range of addresses.
fn pages(range: Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}
