//! The folder of a run. Every user may enter it, as programs change their user; nobody may list it.
//!
//! ```text
//!  uzswap-XXXXXX/            0711
//!    libuzswap_preload.so    0555   what programs load
//!    <32 hex digits>         0666   the socket that helpers connect to: a name that only the
//!                                   processes of the run have, in their environment
//!    status                  0600   the socket of `uzswap top`
//! ```
//!
//! Modes are set whatever the umask is, and each file is made new (`O_EXCL`).

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen};
use rustix::rand::{GetRandomFlags, getrandom};

use super::status::{self, FOLDER_PREFIX, LIBRARY_NAME, SOCKET_NAME};
use uzswap_preload::LIBRARY;

/// Connections that wait to be accepted; a process that connects waits where there are more.
const BACKLOG: i32 = 128;

/// Where the socket of helpers is bound, before it has its own name: /proc/net/unix tells every
/// user the path that a socket was bound to.
const UNREADY_NAME: &str = "unready";

/// The folder, which goes with this.
#[derive(Debug)]
pub(super) struct RunDir {
    path: PathBuf,
    socket_name: String,
}

impl RunDir {
    /// A new one, with the library in it.
    pub(super) fn new() -> io::Result<RunDir> {
        let place = status::place_for_library()?;
        // Nobody else may enter it before all is there.
        let mut builder = tempfile::Builder::new();
        builder.prefix(FOLDER_PREFIX).permissions(Permissions::from_mode(0o700));
        let path = builder.tempdir_in(place)?.keep();
        let socket_name = random_bytes()?.map(|byte| format!("{byte:02x}")).concat();
        let folder = RunDir { path, socket_name };
        let mut library =
            File::options().write(true).create_new(true).mode(0o600).open(folder.library())?;
        library.write_all(LIBRARY)?;
        library.set_permissions(Permissions::from_mode(0o555))?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What is preloaded into programs.
    pub(super) fn library(&self) -> PathBuf {
        self.path.join(LIBRARY_NAME)
    }

    /// The socket that helpers connect to.
    pub(super) fn socket(&self) -> PathBuf {
        self.path.join(&self.socket_name)
    }

    /// Listens there, and lets all users enter.
    pub(super) fn listen(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        let unready = self.path.join(UNREADY_NAME);
        bind(&listener, &SocketAddrUnix::new(&unready)?)?;
        fs::set_permissions(&unready, Permissions::from_mode(0o666))?;
        listen(&listener, BACKLOG)?;
        fs::rename(unready, self.socket())?;
        fs::set_permissions(&self.path, Permissions::from_mode(0o711))?;
        SocketAddrUnix::new(self.socket())?; // the path may be too long
        Ok(listener)
    }
}

/// It is removed file by file: to list it takes a descriptor, of which there may be none left.
impl Drop for RunDir {
    fn drop(&mut self) {
        for name in [LIBRARY_NAME, SOCKET_NAME, UNREADY_NAME, &self.socket_name] {
            let _ = fs::remove_file(self.path.join(name)); // it was not there yet
        }
        if fs::remove_dir(&self.path).is_err() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Bytes that nobody can guess.
pub(super) fn random_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn modes_and_names_are_what_they_are_said_to_be() {
        let folder = RunDir::new().unwrap();
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(folder.path()), 0o700);
        let _listener = folder.listen().unwrap();
        let modes = [folder.path(), &folder.library(), &folder.socket()].map(mode);
        assert_eq!(modes, [0o711, 0o555, 0o666]);
        assert_eq!(folder.socket_name.len(), 32);
        let told = fs::read_to_string("/proc/net/unix").unwrap();
        assert!(told.contains(&folder.path().join(UNREADY_NAME).display().to_string()));
        assert!(!told.contains(&folder.socket_name));
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
