//! The fault server: serves page faults, follows changes of mappings and forks, and admits helpers.
//!
//! ```text
//!  worker          epoll: which descriptor has a message?
//!    |-- dispatch        messages of a userfaultfd, each kind in its turn
//!    |     '-- fork_event      a child from its parent; who else shares pages
//!    |-- page_fault      serve one fault, or have it wait for headroom
//!    |     '-- page_loader     evicted pages, into a buffer, with nothing locked
//!    |-- wake_ups        the threads to wake, once nothing is locked
//!    |-- entrance        a connection, and its process by the kernel's word
//!    |-- handshake       from a connection to the helper of an address space
//!    '-- orphan          memory whose helper has ended
//! ```
//!
//! The state is in `spaces` (which worker reads which address space), `waiting` (faults that wait)
//! and `helpers` (pending and ready). `pending_forks` has children that wait for events of their
//! parents, `orphan` memory without a helper. A worker has its own in `worker_state`. One lock
//! guards the server: a worker reads messages under it, and releases it before it serves faults and
//! wakes threads.

mod dispatch;
mod entrance;
mod fork_event;
mod handshake;
mod helpers;
mod orphan;
mod page_fault;
mod page_loader;
mod pending_forks;
mod spaces;
mod token;
mod touch;
mod waiting;
mod wake_ups;
mod worker;
mod worker_state;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use fork_event::EndedMember;
use helpers::Helpers;
use orphan::Orphans;
use page_fault::{FRESH_MAX, Fault};
use pending_forks::PendingForks;
use rustix::event::epoll;
use spaces::Spaces;
use token::Token;
use waiting::Waiting;
pub(crate) use worker::{Workers, count as count_of_workers};

use crate::address_space::AddressSpace;
use crate::store::read_queue::Reader;
use crate::{Pager, lock, untouched_pages};
use uzswap::page::{PAGE_SIZE, Page};
use uzswap_sys::process;

const PAGE: u64 = PAGE_SIZE as u64;

/// The state behind the lock of [`Workers`].
#[derive(Debug)]
pub(crate) struct FaultServer {
    pager: Arc<Pager>,
    spaces: Spaces,
    helpers: Helpers,
    waiting: Waiting,
    pending_forks: PendingForks,
    orphans: Orphans,
    /// The message about children that are not followed any more was printed.
    has_reported_children: bool,
    /// Some address space may have ranges still to protect.
    protects: bool,
    /// Reads the file behind the pool, if there is one.
    reader: Option<Arc<Reader>>,
    /// The content of pages that were never touched.
    zeros: Arc<Box<[Page]>>,
}

impl FaultServer {
    fn new(
        pager: Arc<Pager>,
        listener: &OwnedFd,
        epolls: Arc<[OwnedFd]>,
    ) -> io::Result<FaultServer> {
        let first = &epolls[0];
        epoll::add(first, listener, Token::Listener.data(), epoll::EventFlags::IN)?;
        epoll::add(first, &pager.wakers.server, Token::Wake.data(), epoll::EventFlags::IN)?;
        for epoll in &*epolls {
            epoll::add(epoll, &pager.wakers.server_end, Token::Over.data(), epoll::EventFlags::IN)?;
        }
        let helpers = Helpers::new(Arc::clone(&pager), Arc::clone(&epolls));
        let orphans = Orphans::new(Arc::clone(&epolls));
        let spaces = Spaces::new(epolls, Arc::clone(&pager.sched.turns));
        let start = || Reader::start(&pager.store, &pager.wakers).map(Arc::new);
        let reader = pager.store.has_file().then(start).transpose()?;
        Ok(FaultServer {
            pager,
            spaces,
            helpers,
            waiting: Waiting::default(),
            pending_forks: PendingForks::default(),
            orphans,
            has_reported_children: false,
            protects: false,
            reader,
            zeros: Arc::new(untouched_pages(FRESH_MAX)),
        })
    }

    /// Has new faults wait. The evictor wakes up once they are in the list: its wake-up of the
    /// server then finds them.
    fn add_waiting(&mut self, faults: Vec<Fault>) {
        let await_room = faults.iter().any(Fault::awaits_room);
        self.waiting.add(faults);
        self.note_awaited();
        if await_room {
            self.pager.wakers.evictor.wake();
        }
    }

    fn note_awaited(&self) {
        self.pager.progress.set_awaited(!self.waiting.is_empty());
    }

    /// Whether there is work that no descriptor reports.
    fn is_busy(&self) -> bool {
        let has_work = !self.waiting.is_empty() || self.protects;
        has_work || self.orphans.has_young() || self.helpers.has_unanswered()
    }

    /// Answers helpers that had to wait, then these, which have sent a message or have ended: after
    /// the userfaultfds that were readable at the same time.
    fn hear_helpers(&mut self, helpers: Vec<u32>) {
        self.answer_greetings();
        helpers.into_iter().for_each(|id| self.hear_helper(id));
    }

    /// Goes on with what could not be done at once.
    fn go_on(&mut self) {
        self.orphan_without_helpers();
        self.orphans.check();
        if self.protects {
            let protects = |(_, space)| !lock(space).protect(Duration::ZERO);
            self.protects = self.spaces.iter().filter(|space| protects(*space)).count() > 0;
        }
    }

    /// Removes a space, and frees its pages.
    fn remove_space(&mut self, id: u32) {
        let Some(shared) = self.spaces.remove(id) else { return };
        self.pager.remove_space(&shared);
        let mut space = lock(&shared);
        self.spaces.take_from_workers(&space.uffd, None);
        if let Some(helper) = space.commands.helper() {
            helper.connection().leave(); // the evictor may have the space still
        }
        space.commands.end();
        space.forget_all();
        space.faults.end();
        let member = EndedMember::take(&mut space);
        drop(space);
        self.bequeath(member);
    }

    /// Warns of a core file, in which evicted pages are missing: the kernel does not ask for them.
    fn warn_of_core(&self, id: u32) {
        let Some(space) = self.spaces.get(id).map(lock) else { return };
        let (missing, pid) =
            (space.table.stored_pages() + space.table.staged_pages(), space.process.pid());
        drop(space);
        if let (1.., Some(pid)) = (missing, pid)
            && process::has_dumped_core(pid)
        {
            self.pager.warn(&format!(
                "the core file of process {pid} has zeros for {missing} evicted pages"
            ));
        }
    }

    /// Forgets address spaces whose memory is gone. No event reports the end of one without a
    /// helper, or of one whose connection another process has, too.
    fn forget_dead(&mut self, may_be: impl Fn(&AddressSpace) -> bool) {
        for id in self.spaces.ids_of(|space| may_be(space) && space.is_dead()) {
            if lock(&self.spaces[id]).process.pid().is_some() {
                self.helpers.forget_of_space(id);
                self.warn_of_core(id);
            }
            self.remove_space(id);
        }
    }

    /// Orphans spaces whose helpers have ended though their connections go on: nothing is known of
    /// their memory any more, which counts as that of unmanaged programs.
    fn orphan_without_helpers(&mut self) {
        if !self.pager.wakers.take_lost_helper() {
            return;
        }
        for id in self.spaces.ids_of(|space| space.process.is_ending()) {
            self.helpers.forget_of_space(id);
            self.warn_of_core(id);
            self.orphan_space(id);
        }
    }

    /// Checks for ends that no message reports.
    fn check_for_ends(&mut self) {
        self.forget_dead(|_| true);
        self.helpers.drop_silent();
        self.orphans.check();
        self.spaces.iter().for_each(|(_, space)| lock(space).end_helper_left_alone());
    }
}
