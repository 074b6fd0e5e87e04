//! Helpers that come: each proves whose it is, and gets what it needs.
//!
//! ```text
//!  Connected --- Hello ---> Greeting --- its space is known ---> Welcomed --- Ready ---> Proving
//!      the kernel names         (a forked child that may         its userfaultfd fills a page,
//!      the process              be behind its parent)            which its memory shows then
//! ```
//!
//! Nothing that a program says is believed. The kernel names its process, which must descend from
//! the supervisor. A forked child has a secret that it can have read in its own memory alone
//! ([`FaultServer::identify`]). Later the supervisor reads a process by descriptors that are bound
//! to the address space of its userfaultfd. Any message but the one that is due ends the helper.

use std::cmp::Ordering;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::entrance::leaves_spare_files;
use super::helpers::{Sent, Stage, Welcomed, new_channel};
use super::{FaultServer, PAGE};
use crate::address_space::{AddressSpace, STAGING_BYTES};
use crate::doctor::RUN_FEATURES;
use crate::lock;
use crate::program::helper::{Helper, send};
use crate::program::peer::Peer;
use crate::program::procfs::ProcessFiles;
use crate::run_dir::random_bytes;
use uzswap::page::PAGE_SIZE;
use uzswap_preload::SharedControl;
use uzswap_preload::protocol::{Message, kind};
use uzswap_sys::foreign::Foreign;
use uzswap_sys::userfaultfd::Userfaultfd;
use uzswap_sys::{peer, process};

/// Descriptors that are opened for a helper that is ready: its files of /proc.
const OPENED_FILES: u64 = 6;

/// Where memory of programs may be: the kernel's mmap_min_addr as a rule, and 57 bits of address.
const USER_MEMORY: Range<u64> = 1 << 16..1 << 56;

/// Whose space a process is.
enum Identity {
    AddressSpace(u32),
    /// Nothing of its parent was registered when it forked, or it has no parent here.
    New,
    /// The supervisor must read pending events first, of its parent or its own.
    Pending,
}

impl FaultServer {
    /// A helper says something, or is gone.
    pub(super) fn hear_helper(&mut self, id: u32) {
        if let Some(space) = self.helpers.forget(id) {
            // Nothing is asked for: its connection has ended.
            self.warn_of_core(space);
            self.orphan_space(space);
            return;
        }
        match self.helpers.receive(id) {
            Some(Ok(stage)) => self.go_on_with(id, stage),
            Some(Err(error)) => self.helpers.refuse(id, &error),
            None => {}
        }
    }

    /// Goes on with helpers that could not be answered yet.
    pub(super) fn answer_greetings(&mut self) {
        if !self.helpers.has_unanswered() {
            return;
        }
        for id in self.helpers.pending_ids() {
            if let Some(stage) = self.helpers.take_stage(id) {
                self.go_on_with(id, stage);
            }
        }
    }

    /// Does what a helper's stage asks for.
    fn go_on_with(&mut self, id: u32, stage: Stage) {
        let done = match stage {
            Stage::Greeting(hello) => self.welcome(id, hello).map(Some),
            Stage::Proving(welcomed, ready, sent) => self.meet(id, welcomed, ready, sent),
            Stage::Unable { errno, is_of_staging } => {
                let error = io::Error::from_raw_os_error(errno as i32);
                let pid = self.helpers.peer(id).pid();
                let cause = if is_of_staging {
                    format!(
                        "its limits (ulimit -v, -d) leave no {} MiB of addresses for the helper",
                        STAGING_BYTES >> 20
                    )
                } else {
                    "it cannot create a userfaultfd".to_owned()
                };
                self.pager.warn(&format!("process {pid} is unmanaged: {cause}: {error}"));
                Err(error)
            }
            stage => Ok(Some(stage)),
        };
        match done {
            Ok(Some(stage)) => self.helpers.set_stage(id, stage),
            Ok(None) => {} // it is ready
            Err(error) => self.helpers.refuse(id, &error),
        }
    }

    /// Answers a hello, once it can be.
    fn welcome(&mut self, id: u32, hello: Message) -> io::Result<Stage> {
        let [start, bytes, secret @ ..] = hello.words;
        let own = memory(start, bytes)?;
        let is_forked = hello.kind == kind::HELLO_FORK;
        let identity = if is_forked { self.identify(secret)? } else { Identity::New };
        let space = match identity {
            Identity::AddressSpace(space) => Some(space),
            Identity::New => None,
            Identity::Pending => return Ok(Stage::Greeting(hello)),
        };
        let (control, file) = SharedControl::new()?;
        let (lent_channel, channel) = new_channel()?;
        let connection = self.helpers.connection(id);
        let welcome = |kind| Message::new(kind, [STAGING_BYTES]);
        let (file, lent) = (file.as_fd(), lent_channel.as_fd());
        let _ = peer::let_descriptors(connection, true); // its userfaultfd, with the next message
        match (space, self.helpers.device()) {
            (Some(space), _) => {
                let space = lock(&self.spaces[space]);
                let uffd = space.uffd.as_fd();
                send(connection, welcome(kind::WELCOME_FORKED), &[file, lent, uffd])?;
            }
            (None, Some(device)) => {
                let device = device.as_fd();
                send(connection, welcome(kind::WELCOME_DEVICE), &[file, lent, device])?;
            }
            (None, None) => send(connection, welcome(kind::WELCOME_CALL), &[file, lent])?,
        }
        Ok(Stage::Welcomed(Welcomed { own, control, channel, is_forked, space }))
    }

    /// The space that a fork made, by the secret that its page of identity was filled with when the
    /// child touched it: nobody else can have read that.
    fn identify(&self, secret: [u64; 2]) -> io::Result<Identity> {
        if secret == [0; 2] {
            return Ok(Identity::New);
        }
        let is_it =
            |space: &AddressSpace| space.process.pid().is_none() && space.has_secret(secret);
        match self.spaces.find(is_it) {
            // No page is evicted before all events were read.
            Some((id, _)) if self.pending_forks.has_child(id) => Ok(Identity::Pending),
            Some((id, _)) => Ok(Identity::AddressSpace(id)),
            None => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// A helper is ready, if its process has the memory that its userfaultfd is of; the stage to
    /// stay in where that cannot be asked now.
    fn meet(
        &mut self,
        id: u32,
        welcomed: Welcomed,
        ready: Message,
        sent: Sent,
    ) -> io::Result<Option<Stage>> {
        let Claims { staging, identity, end_word } = Claims::of(&ready)?;
        let peer = Arc::clone(self.helpers.peer(id));
        if self.has_space_of(peer.pid()) || self.orphans.has_too_many_of(peer.pid()) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let joins = welcomed.is_forked && welcomed.space.is_none();
        let relatives = if joins { self.relatives_to_join(peer.pid())? } else { None };
        // Several that were admitted at a time may have taken descriptors since.
        if !leaves_spare_files(OPENED_FILES) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let page = staging.end - PAGE;
        let helper = sent.helper.as_ref().map(|helper| helper.as_fd().try_clone_to_owned());
        let helper = helper.transpose()?.map(Peer::new).transpose()?;
        let (space, files) = match welcomed.space {
            Some(space) => match self.prove_child(space, &peer, helper.as_ref(), page)? {
                Some(files) => (space, files),
                None => return Ok(Some(Stage::Proving(welcomed, ready, sent))),
            },
            None => self.prove_new(sent.userfaultfd, &peer, helper.as_ref(), page)?,
        };
        let connection = self.helpers.make_ready(id, space, welcomed.channel)?;
        self.pager.drop_outsiders(|outsider| outsider.pid() == peer.pid());
        let could_exceed = relatives.is_some_and(|relatives| self.join(space, &relatives));
        let mut child = lock(&self.spaces[space]);
        let staging_start = staging.start;
        child.unevictable.add_library(staging);
        child.unevictable.add_library(welcomed.own);
        child.identify_by(identity);
        let helper = Helper::new(connection, welcomed.control, staging_start);
        let met = child.meet(peer, helper, files);
        child.unevictable.keep_end_word(end_word);
        if could_exceed {
            let _ = child.register_shared();
        }
        drop(child);
        if met.is_err() && !welcomed.is_forked {
            // The process has ended already, and its connection is closed: no event follows.
            self.helpers.forget(id);
            self.remove_space(space);
        }
        self.pager.wakers.evictor.wake();
        Ok(None)
    }

    /// Proves that a process is the child of this space, and opens its files. `None` while mappings
    /// change: the kernel fills no page then.
    fn prove_child(
        &self,
        space: u32,
        peer: &Peer,
        helper: Option<&Peer>,
        page: u64,
    ) -> io::Result<Option<ProcessFiles>> {
        // The process may have ended since its hello.
        let child = self.spaces.get(space).ok_or(io::ErrorKind::NotFound)?;
        let child = lock(child);
        if child.process.pid().is_some() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let files = ProcessFiles::open(peer, helper)?;
        match prove(&child.uffd, &files, page) {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
            proved => proved.map(|()| Some(files)),
        }
    }

    /// Proves that a userfaultfd is of the memory of a process; adds its space, and opens its
    /// files.
    fn prove_new(
        &mut self,
        userfaultfd: Foreign,
        peer: &Peer,
        helper: Option<&Peer>,
        page: u64,
    ) -> io::Result<(u32, ProcessFiles)> {
        let uffd = Userfaultfd::from_stranger(userfaultfd)?;
        uffd.api(RUN_FEATURES)?;
        let files = ProcessFiles::open(peer, helper)?;
        prove(&uffd, &files, page)?;
        if self.has_space_with_memory_of(files.thread) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let space = AddressSpace::new(uffd, Some(peer.pid()));
        Ok((self.spaces.add(&self.pager, space, 0)?, files))
    }

    /// Whether a process is managed already: it has one helper, and counts once. The memory of the
    /// program that it was before an exec(2) is gone, or its helper's for a moment.
    fn has_space_of(&self, pid: u32) -> bool {
        let is_of_it = |space: &AddressSpace| {
            space.process.pid() == Some(pid) && !space.is_dead() && space.process.has_its_memory()
        };
        self.spaces.find(is_of_it).is_some()
    }

    /// Whether the memory of a thread is managed already: that of a process which was made by
    /// clone(2) with `CLONE_VM` is its parent's.
    fn has_space_with_memory_of(&self, thread: u32) -> bool {
        let has_it = |helper| process::compare_memory(helper, thread).is_ok_and(Ordering::is_eq);
        self.spaces.find(|space| space.process.thread().is_some_and(has_it)).is_some()
    }
}

/// Addresses that a helper claims in its message of readiness.
struct Claims {
    staging: Range<u64>,
    /// The page of identity, or 0.
    identity: u64,
    end_word: u64,
}

impl Claims {
    fn of(ready: &Message) -> io::Result<Claims> {
        let [start, bytes, identity, end_word] = ready.words;
        let staging = memory(start, bytes)?;
        if bytes != STAGING_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if identity != 0 {
            memory(identity, PAGE)?;
        }
        Ok(Claims { staging, identity, end_word })
    }
}

/// A range of addresses that a program tells: whole pages where memory may be.
fn memory(start: u64, bytes: u64) -> io::Result<Range<u64>> {
    let end = start.checked_add(bytes).filter(|end| *end <= USER_MEMORY.end);
    let end = end.filter(|end| start >= USER_MEMORY.start && start < *end);
    match end {
        Some(end) if start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE) => Ok(start..end),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Proves that a userfaultfd and the files of a process are of one address space. The userfaultfd
/// fills a missing page with a nonce, and the process's memory shows it. The caller has opened the
/// file of the memory last, after the userfaultfd. The page is private, before and after.
fn prove(uffd: &Userfaultfd, files: &ProcessFiles, page: u64) -> io::Result<()> {
    let nonce = random_bytes()?;
    let mut content = [0; PAGE_SIZE];
    content[..nonce.len()].copy_from_slice(&nonce);
    uffd.register(page..page + PAGE, true, false)?;
    let filled = uffd.copy(page, &content, true, false);
    filled.map_err(|stopped| io::Error::from_raw_os_error(stopped.errno))?;
    let mut read = [0; 16];
    // Two processes that map it may show the same nonce.
    let is_own = || files.mappings.has_private(page..page + PAGE);
    let was_own = is_own()?;
    files.memory.read(page, &mut read)?;
    if read == nonce && was_own && is_own()? {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}
