//! An address space of a program: what of it is registered, where its pages are, and the helper in
//! it.
//!
//! - P1: a page whose place is staging or the store is missing in the program; its next touch is
//!   told by the userfaultfd. A page whose place is the program is there, or is zero.
//! - P2: the helper moves pages only while nothing of the userfaultfd is read, and what is read to
//!   have changed is taken out of its command first: its addresses mean what they meant.
//! - P3: what a command did, be it in part, is noted in the table before anything else is read.
//! - P4: a page that the program has said it drops does not leave until it was missing once.

mod charge;
mod copies;
pub(crate) mod handle;
mod identity;
mod inheritance;
mod later_events;
mod layout;
mod lazy;
mod move_batch;
mod never_evicted;
mod pinned;
mod refused;
mod registration;
mod staging;
mod write_protect;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use charge::{Joined, Shared};
pub(crate) use charge::{Part, Told, process_size, resident_bytes};
use copies::Copies;
pub(crate) use copies::count_copies;
use identity::Identity;
use inheritance::{Doubt, Uncertain};
pub(crate) use inheritance::{FirstMessage, ForkAdvice};
use lazy::LazyLooks;
pub(crate) use move_batch::Moved;
use never_evicted::Words;
pub(crate) use never_evicted::leave_words_of_threads;
use pinned::Pinned;
pub(crate) use refused::Way;
use registration::ScanState;
pub(crate) use registration::{Look, register};
use staging::Staging;
pub(crate) use staging::{BATCH_PAGES, Batch, STAGING_BYTES};
pub(crate) use write_protect::AdviceAtFork;
use write_protect::{Forks, LastAdvice, Prepared, Reports};

use crate::admission::peer::Peer;
use crate::fork::group::Member;
use crate::page_table::{Entry, HEAT_MAX, PageTable, Place, UNKNOWN};
use crate::policy::clock::ClockHand;
use crate::policy::readahead::{FreshStreams, Streams};
use crate::policy::refaults::Refaults;
use crate::range_set::RangeSet;
use crate::sched::source_mix::SourceMix;
use crate::target::helper::{Command, Helper};
use crate::target::procfs::{ProcessFiles, Size, has_locked_memory, number_in_namespace};
use crate::telemetry::status::ProcessStatus;
use crate::token_bucket::Bucket;
use uzswap::page::PAGE_SIZE;
use uzswap_preload::protocol::work;
use uzswap_sys::process;
use uzswap_sys::userfaultfd::Userfaultfd;

const PAGE: u64 = PAGE_SIZE as u64;

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
    /// Of a child: the last process before it that was known when it forked.
    forked_by: Option<u32>,
    identity: Identity,
    /// The helper's thread: it has the memory as long as anybody has, unlike the first thread.
    pub(crate) thread: Option<u32>,
    /// Numbers of the first thread and the helper in a PID namespace of their own, and here.
    renumbered: Vec<(u32, u32)>,
    pub(crate) uffd: Arc<Userfaultfd>,
    helper: Option<Arc<Helper>>,
    pub(crate) table: PageTable,
    /// Slots of pages that it has forgotten, which are not in the queue yet.
    released: Vec<u32>,
    /// Registered with the userfaultfd.
    pub(crate) registered: RangeSet,
    /// Never to be moved: staging, the helper's stack, the page of identity.
    pub(crate) own: RangeSet,
    /// Not to be moved for now, [`AddressSpace::own`] among it: locked, sealed.
    left: RangeSet,
    /// Locked mappings of it (mlock), as far as the kernel refused to move them.
    locked: RangeSet,
    lazy_looks: LazyLooks,
    /// Pages that are in [`AddressSpace::left`] because the kernel holds them for I/O.
    pinned: Pinned,
    /// Whether the kernel refused the last move for want of memory or of mappings (ENOMEM).
    has_no_memory: bool,
    left_since: Instant,
    /// Pages of which the kernel uses some words past any userfaultfd, and which are never moved:
    /// of those at the end of a thread (see [`leave_words_of_threads`]), and arguments.
    words: Words,
    /// Arguments are among them.
    knows_arguments: bool,
    /// That was asked for of all that is registered.
    knows_words: bool,
    /// The program has said that it drops this, and may not have done so yet (P4).
    removing: RangeSet,
    /// Where something was moved to since all that was told was read: each of them.
    moved_in: RangeSet,
    /// Parts of that where memory was known to be registered before, of whose end was not told yet.
    untold: RangeSet,
    /// Parts of that whose end may have been told, as they were told to be unmapped: or that was
    /// what was there before, and it is to be told that this has moved on.
    departed: RangeSet,
    /// Parts of that which were told to be unmapped, in one go each, which was taken to be of what
    /// was there before, as something is there that is registered.
    doubted: Vec<RangeSet>,
    /// What was known of pages there before, and which of them were registered.
    elder: BTreeMap<u64, Entry>,
    elder_registered: RangeSet,
    staging: Staging,
    command: Option<Command>,
    commands: u32,
    /// What the last command did, and the batch whose memory it gives back.
    collected: Moved,
    dropping: Option<usize>,
    hand: ClockHand,
    files: Option<Arc<ProcessFiles>>,
    pub(crate) looks: ScanState,
    forks: Forks,
    /// Of a child: inherited of its parent, at first.
    advice: Option<LastAdvice>,
    reports: Reports,
    /// Of a child that was not asked which memory of its parent it has.
    undecided: Option<Uncertain>,
    /// Of a child, once it was asked.
    doubt: Option<Doubt>,
    /// Evicted pages whose content is not known, until the kernel poisons them.
    poison_later: RangeSet,
    /// Some of its pages may be another process's as well.
    pub(crate) group: Option<Member>,
    /// When it came into the group.
    joined: Option<Joined>,
    /// It is a child, and its process is expected to make itself known.
    expected: bool,
    /// What is registered is protected from being written to unasked, where it may be another's.
    pub(crate) protects: bool,
    /// Some of what is not registered yet may be another process's as well.
    shares_unregistered: bool,
    /// To be protected still, which the kernel refuses while mappings change.
    to_protect: RangeSet,
    /// It was protected for the fork that it is about to do.
    prepared: Option<Prepared>,
    shared: Shared,
    copies: Copies,
    /// Pages that were resident when it was last looked at.
    was_resident: Option<u64>,
    /// Pages that faults were given since, less those that have left.
    told_pages: i64,
    /// Bytes that it counted for then.
    pub(crate) counted: u64,
    pub(crate) gone: bool,
    pub(crate) streams: Streams,
    /// Of memory that was never touched.
    pub(crate) fresh: FreshStreams,
    /// First writes to protected pages.
    writes: Streams,
    /// Threads whose faults came last.
    pub(crate) threads: SourceMix,
    /// All workers of the server read its faults, as several threads have them.
    pub(crate) has_all_workers: bool,
    /// Faults that were served.
    pub(crate) faults: u64,
    pub(crate) refaults: Refaults,
    /// Children that may join it, of which its userfaultfd has not told.
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
            removing: RangeSet::default(),
            moved_in: RangeSet::default(),
            untold: RangeSet::default(),
            departed: RangeSet::default(),
            doubted: Vec::new(),
            elder: BTreeMap::new(),
            elder_registered: RangeSet::default(),
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
            doubt: None,
            poison_later: RangeSet::default(),
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
        self.end_doubt_of_child();
        self.forget_secret();
        let shared = std::mem::take(&mut self.expected).then_some(self.shared.bytes);
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

    /// The thread that the userfaultfd tells of by this number; `None` where that is not known, or
    /// costs more than a fault to find out: the kernel tells the number in the thread's own PID
    /// namespace.
    pub(crate) fn thread_told(&self, number: u32) -> Option<u32> {
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
        // The first thread is told as long as there is another.
        if let Some(code) = process::first_thread_code(pid)
            && files.has_helper_as_thread()
            && files.threads().count() <= 1
        {
            helper.end(code);
        }
    }

    /// Whether its process was killed or ends, and other threads of it may have its memory still:
    /// the helper ends at no other time, and lets go of the memory some time before it is gone.
    pub(crate) fn is_ending(&self) -> bool {
        self.files.as_ref().is_some_and(|files| self.has_lost_helper(files.size()))
    }

    /// Likewise, if its size by the helper's thread is this. The connection of such a helper may go
    /// on all the same, as another process or thread has it, too.
    pub(crate) fn has_lost_helper(&self, size: Option<Size>) -> bool {
        self.files.is_some() && size.is_none_or(|size| size.mapped == 0)
    }

    /// What is told of it while it runs, but for the name of its process; `None` before that is
    /// known.
    pub(crate) fn status(&self) -> Option<ProcessStatus> {
        Some(ProcessStatus {
            pid: self.pid?,
            name: String::new(),
            resident_bytes: self.resident_bytes().saturating_sub(self.shared.bytes),
            stored_pages: self.table.stored_pages(),
            aside_pages: self.table.staged_pages(),
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
        let sets = [
            &self.registered,
            &self.own,
            &self.left,
            &self.removing,
            &self.moved_in,
            &self.untold,
            &self.departed,
            &self.elder_registered,
            &self.to_protect,
        ];
        let sets = sets.iter().map(|set| set.bytes()).sum::<usize>() + self.words.bytes();
        let sets = sets + self.pinned.bytes() + self.locked.bytes() + self.lazy_looks.bytes();
        self.table.bytes() + self.staging.owners.bytes() + sets
    }
}

/// The pages of a range of addresses.
fn pages(range: Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}
