//! The entrance: connections of processes, each with its process by the kernel's word.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::net::SocketFlags;
use rustix::process::{Resource, getrlimit};

use crate::admission::lineage::Lineage;
use crate::program::peer::Peer;
use uzswap_sys::foreign::Foreign;
use uzswap_sys::peer;

/// Descriptors that are kept for children of programs that fork, which cannot be refused.
const SPARE_FILES: u64 = 16;

/// Where helpers come in.
#[derive(Debug)]
pub(super) struct Entrance {
    listener: OwnedFd,
    /// A spare descriptor, closed for a moment if there is none for a connection.
    spare: Mutex<Option<OwnedFd>>,
    lineage: Mutex<Lineage>,
}

/// A connection, and the process at its other end.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) connection: Foreign,
    pub(super) peer: Peer,
}

impl Entrance {
    pub(super) fn new(listener: OwnedFd) -> io::Result<Entrance> {
        // Connections have this from it. Before Linux 6.16 they take what nobody asked for.
        let _ = peer::let_descriptors(&listener, false);
        let spare = Mutex::new(Some(listener.try_clone()?));
        let lineage = Mutex::new(Lineage::of(std::process::id()));
        Ok(Entrance { listener, spare, lineage })
    }

    pub(super) fn listener(&self) -> &OwnedFd {
        &self.listener
    }

    /// Accepts a connection by the path of the socket.
    ///
    /// # Errors
    ///
    /// `WouldBlock` where there is none; `PermissionDenied` for a process that is none of the run;
    /// the kernel's else.
    pub(super) fn accept(&self) -> io::Result<Arrival> {
        let accept = || rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC);
        let connection = accept().inspect_err(|error| {
            if *error == rustix::io::Errno::MFILE {
                self.turn_away(accept);
            }
        })?;
        let connection = Foreign::new(connection);
        let peer = Peer::of_connection(&connection)?;
        self.check(Arrival { connection, peer })
    }

    /// Whether somebody who has come is of the run. The walk to the supervisor may take long: the
    /// caller holds no lock.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` where he is not, or where that is not found out.
    pub(super) fn check(&self, arrival: Arrival) -> io::Result<Arrival> {
        let mut lineage = self.lineage.lock().unwrap_or_else(PoisonError::into_inner);
        match lineage.find(&arrival.peer) {
            true => Ok(arrival),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Closes a connection for which there is no descriptor. Epoll would report it for ever.
    fn turn_away(&self, accept: impl FnOnce() -> rustix::io::Result<OwnedFd>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        drop(spare.take());
        drop(accept().map(Foreign::new));
        *spare = self.listener.try_clone().ok();
    }
}

/// Whether so many descriptors more leave the spare ones.
pub(super) fn leaves_spare_files(more: u64) -> bool {
    new_descriptor().is_ok_and(|newest| newest_leaves_spare_files(&newest, more))
}

/// Whether a descriptor that was made just now, and so many more, leave the spare ones. The kernel
/// gives the lowest number that is free.
pub(super) fn newest_leaves_spare_files(newest: &impl AsFd, more: u64) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    newest.as_fd().as_raw_fd() as u64 + more + SPARE_FILES < limit
}

/// One that is closed again at once.
fn new_descriptor() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?)
}
