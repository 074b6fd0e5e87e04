//! Programs that come: their helpers are greeted, and get what they need.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketFlags};

use super::{PAGE, Server, Token};
use crate::doctor::RUN_FEATURES;
use crate::pager::helper::send;
use crate::pager::lock;
use crate::pager::space::{STAGING_BYTES, Space, is_busy};
use crate::sys::pagemap;
use crate::sys::preload::SharedControl;
use crate::sys::preload::protocol::{MESSAGE_BYTES, Message, kind};
use crate::sys::userfaultfd::Userfaultfd;

/// A helper that has come, and has not said that it is ready.
#[derive(Debug)]
pub(super) struct Newcomer {
    connection: OwnedFd,
    pid: u32,
    own: Range<u64>,
    control: SharedControl,
    forked: bool,
    /// The space that its parent's fork made.
    space: Option<u32>,
}

/// Whose space a process is.
enum Found {
    Space(u32),
    None,
    /// It may be one of which something is to be read first.
    Later,
}

impl Server {
    /// A program has come.
    pub(super) fn accept(&mut self) -> io::Result<()> {
        let connection = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC)?;
        let peer = rustix::net::sockopt::socket_peercred(&connection)?;
        let control = SharedControl::new()?;
        let id = self.number();
        let token = Token::Helper(id).data();
        epoll::add(&self.epolls[0], &connection, token, epoll::EventFlags::IN)?;
        let pid = peer.pid.as_raw_nonzero().get() as u32; // a process number is not negative
        let newcomer = Newcomer { connection, pid, own: 0..0, control, forked: false, space: None };
        self.newcomers.insert(id, newcomer);
        Ok(())
    }

    /// A helper says something, or is gone.
    pub(super) fn heard(&mut self, id: u32) {
        if let Some(&space) = self.helpers.get(&id) {
            // Nothing is asked for: its connection has ended.
            self.helpers.remove(&id);
            self.tell_of_core(space);
            self.leave(space);
            return;
        }
        let Some(newcomer) = self.newcomers.get(&id) else { return };
        match receive(&newcomer.connection) {
            Ok((message, fd)) => self.hear(id, message, fd),
            // It has ended, mostly.
            Err(error) => {
                self.newcomers.remove(&id);
                self.failed_to("greet a program", &error);
            }
        }
    }

    /// A helper has said something.
    pub(super) fn hear(&mut self, id: u32, message: Message, fd: Option<OwnedFd>) {
        if !self.newcomers.contains_key(&id) {
            return;
        }
        if let Err(error) = self.greet(id, message, fd) {
            // It runs on without us, if it may; its connection closes.
            self.newcomers.remove(&id);
            self.failed_to("greet a program", &error);
        }
    }

    /// Goes on with a helper that says hello or that it is ready.
    fn greet(&mut self, id: u32, message: Message, fd: Option<OwnedFd>) -> io::Result<()> {
        match message.kind {
            kind::HELLO_EXEC | kind::HELLO_FORK => {
                let own = message.first..message.first.saturating_add(message.second);
                let pid = self.newcomers[&id].pid;
                let space = match message.kind {
                    kind::HELLO_FORK => match self.forked_space(pid, own.start) {
                        // Before that, none of its pages leave.
                        Found::Space(space) if self.has_all_told_before(space) => Some(space),
                        Found::None => None,
                        Found::Space(_) | Found::Later => {
                            self.hellos.push((id, message));
                            return Ok(());
                        }
                    },
                    _ => None,
                };
                let newcomer = self.newcomers.get_mut(&id).expect("the caller has it");
                newcomer.forked = message.kind == kind::HELLO_FORK;
                newcomer.own = own;
                newcomer.space = space;
                let control = newcomer.control.as_fd();
                let welcome = |kind| Message::new(kind, STAGING_BYTES, 0);
                match (space, &self.device) {
                    (Some(space), _) => {
                        let space = lock(&self.spaces[&space]);
                        let uffd = space.uffd.as_fd();
                        let message = welcome(kind::WELCOME_FORKED);
                        send(&newcomer.connection, message, &[control, uffd])
                    }
                    (None, Some(device)) => {
                        let message = welcome(kind::WELCOME_DEVICE);
                        send(&newcomer.connection, message, &[control, device.as_fd()])
                    }
                    (None, None) => {
                        send(&newcomer.connection, welcome(kind::WELCOME_CALL), &[control])
                    }
                }
            }
            kind::READY if message.second == STAGING_BYTES => {
                let newcomer = self.newcomers.remove(&id).expect("the caller has it");
                let space = match newcomer.space {
                    // It may have ended, and been found dead, since it said hello.
                    Some(space) if !self.spaces.contains_key(&space) => {
                        return Err(io::ErrorKind::NotFound.into());
                    }
                    Some(space) => space,
                    None => {
                        let fd = fd.ok_or(io::ErrorKind::InvalidData)?;
                        let uffd = Userfaultfd::from_fd(fd);
                        uffd.api(RUN_FEATURES)?;
                        self.add_space(Space::new(uffd, Some(newcomer.pid)), 0)?
                    }
                };
                let token = Token::Helper(id).data();
                // From now on the evictor reads what it says; its end is told in any case.
                epoll::modify(
                    &self.epolls[0],
                    &newcomer.connection,
                    token,
                    epoll::EventFlags::empty(),
                )?;
                self.helpers.insert(id, space);
                let Newcomer { connection, pid, own, control, forked, .. } = newcomer;
                let could_exceed = forked && newcomer.space.is_none() && self.is_child(space, pid);
                let mut child = lock(&self.spaces[&space]);
                let release = &mut |slot| self.pager.release(slot);
                let met = child.meet(pid, connection, control, message.first, own, release);
                if could_exceed {
                    let _ = child.watch_shared(release);
                }
                drop(child);
                if met.is_err() && !forked {
                    // It has ended already, which nobody tells us: its connection is closed.
                    self.helpers.remove(&id);
                    self.gone(space);
                }
                self.pager.ring();
                met
            }
            kind::CANNOT => {
                let error = io::Error::from_raw_os_error(message.first as i32);
                let pid = self.newcomers[&id].pid;
                self.pager.warn(&format!("process {pid} runs unmanaged: userfaultfd: {error}"));
                Err(error)
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The space that a fork made, of a process that has one page for sure at `address`. Told from
    /// those of its brothers by an effect that only its own has: the mark of write protection.
    fn forked_space(&self, pid: u32, address: u64) -> Found {
        let opened = match File::open(format!("/proc/{pid}/pagemap")) {
            Ok(opened) => opened,
            Err(error) => {
                self.failed_to("greet a program", &error);
                return Found::None;
            }
        };
        let is_marked = || {
            let mut room = [[0; pagemap::ENTRY_BYTES]; 1];
            pagemap::entries(&opened, address, &mut room)
                .is_ok_and(|mut entries| entries.all(pagemap::Entry::is_write_protected))
        };
        let range = address..address + PAGE;
        let mut found = Found::None;
        for (&id, space) in &self.spaces {
            let space = lock(space);
            // In a brother of it the program's memory may be there, which must stay as it is.
            let is_brother = space.watched.has_some_of(&range);
            if space.pid.is_some() || is_brother {
                continue;
            }
            // What is not told yet may have brought watched memory there.
            if space.uffd.is_changing() {
                found = Found::Later;
                continue;
            }
            if space.uffd.register(range.clone(), false, true).is_err() {
                continue;
            }
            let protected = space.uffd.write_protect(range.clone());
            if protected.as_ref().is_err_and(is_busy) {
                found = Found::Later;
                continue;
            }
            let marked = protected.is_ok() && is_marked();
            let _ = space.uffd.write_unprotect(range.clone(), true);
            let _ = space.uffd.unregister(range.clone());
            if marked {
                return Found::Space(id);
            }
        }
        found
    }
}

/// Receives a message, and a descriptor if one came along.
fn receive(connection: &OwnedFd) -> io::Result<(Message, Option<OwnedFd>)> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut extra = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received =
        rustix::net::recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut extra, flags)?;
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::from_raw_os_error(libc::EMFILE)); // for what came along
    }
    let fd = extra.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let message = Message::from_bytes(&bytes[..received.bytes]);
    message.map(|message| (message, fd)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
