//! The folder of a run. Every user may enter it, as programs change their user; nobody may list it.
//!
//! ```text
//!  uzswap-XXXXXXXXXXXX/      0711
//!    .uzswap-lock            0600   locked while the run goes on
//!    libuzswap_preload.so    0555   what programs load
//!    x86_64 and others              this folder
//!    i686, i586 and others   0711   with a stub of that name, for programs of 32 bits
//!    <32 hex digits>         0666   the socket that helpers connect to: a name that only the
//!                                   processes of the run have, in their environment
//!    status, audit           0600   the sockets of `uzswap top`
//! ```
//!
//! Modes are set whatever the umask is, and each file is made new (`O_EXCL`).

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::telemetry::status::{self, Answer};
use crate::{AuditReport, RunStatus};
use uzswap_preload::protocol::LIBRARY_NAME;
use uzswap_preload::{LIBRARY, STUB_32};
use uzswap_sys::held_folder::{HeldFolder, LOCK_NAME};

/// The loader puts the platform of the program here, in LD_PRELOAD: see ld.so(8).
const PLATFORM: &str = "$PLATFORM";

/// Platforms of programs of 64 bits, as glibc has them; and musl, which puts nothing there.
const PLATFORMS_64: [&str; 4] = ["x86_64", "haswell", "xeon_phi", PLATFORM];

/// Platforms of programs of 32 bits. The first one is a folder, and others are links to it.
const PLATFORMS_32: [&str; 4] = ["i686", "i586", "i486", "i386"];

/// Connections that wait to be accepted; a process that connects waits where there are more.
const BACKLOG: i32 = 128;

/// Where the socket of helpers is bound, before it has its own name: /proc/net/unix tells every
/// user the path that a socket was bound to.
const UNREADY_NAME: &str = "unready";

/// The folder, which goes with this.
#[derive(Debug)]
pub(super) struct RunDir {
    folder: HeldFolder,
    socket_name: String,
}

impl RunDir {
    /// A new one, with the library in it.
    pub(super) fn new() -> io::Result<RunDir> {
        let place = status::place_for_library()?;
        // Nobody else may enter it before all is there.
        let folder = HeldFolder::new(&place, 0o700)?;
        let socket_name = random_bytes()?.map(|byte| format!("{byte:02x}")).concat();
        let folder = RunDir { folder, socket_name };
        write_library(&folder.library(), LIBRARY)?;
        let of_32 = folder.path().join(PLATFORMS_32[0]);
        fs::create_dir(&of_32)?;
        fs::set_permissions(&of_32, Permissions::from_mode(0o711))?;
        write_library(&of_32.join(LIBRARY_NAME), &STUB_32)?;
        let links = PLATFORMS_64.map(|name| (name, "."));
        let links_32 = PLATFORMS_32[1..].iter().map(|name| (*name, PLATFORMS_32[0]));
        for (name, target) in links.into_iter().chain(links_32) {
            symlink(target, folder.path().join(name))?;
        }
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What is preloaded into programs.
    fn library(&self) -> PathBuf {
        self.path().join(LIBRARY_NAME)
    }

    /// The name of that for LD_PRELOAD: in a program of 32 bits, of a library that does nothing.
    pub(super) fn preloaded(&self) -> PathBuf {
        self.path().join(PLATFORM).join(LIBRARY_NAME)
    }

    /// The socket that helpers connect to.
    pub(super) fn socket(&self) -> PathBuf {
        self.path().join(&self.socket_name)
    }

    /// Listens there, and lets all users enter.
    pub(super) fn listen(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        let unready = self.path().join(UNREADY_NAME);
        bind(&listener, &SocketAddrUnix::new(&unready)?)?;
        fs::set_permissions(&unready, Permissions::from_mode(0o666))?;
        listen(&listener, BACKLOG)?;
        fs::rename(unready, self.socket())?;
        fs::set_permissions(self.path(), Permissions::from_mode(0o711))?;
        SocketAddrUnix::new(self.socket())?; // the path may be too long
        Ok(listener)
    }
}

/// It is removed file by file: to list it takes a descriptor, of which there may be none left.
impl Drop for RunDir {
    fn drop(&mut self) {
        let of_32 = self.path().join(PLATFORMS_32[0]);
        let _ = fs::remove_file(of_32.join(LIBRARY_NAME));
        let _ = fs::remove_dir(of_32);
        let sockets = [RunStatus::SOCKET, AuditReport::SOCKET, UNREADY_NAME, &self.socket_name];
        // The lock is last: a process that is killed meanwhile leaves a folder with it.
        let files = [LIBRARY_NAME].into_iter().chain(sockets).chain(PLATFORMS_64);
        for name in files.chain(PLATFORMS_32).chain([LOCK_NAME]) {
            let _ = fs::remove_file(self.path().join(name)); // it was not there yet
        }
        let _ = fs::remove_dir(self.path()); // else the folder does it
    }
}

fn write_library(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut library = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    library.write_all(content)?;
    library.set_permissions(Permissions::from_mode(0o555))
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
        let class_for = |platform: &str| {
            let path = folder.preloaded().to_str().unwrap().replace(PLATFORM, platform);
            fs::read(path).unwrap()[4]
        };
        assert!(PLATFORMS_64.iter().all(|platform| class_for(platform) == 2));
        assert!(PLATFORMS_32.iter().all(|platform| class_for(platform) == 1));
        assert_eq!(folder.socket_name.len(), 32);
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        assert!(sockets.contains(&folder.path().join(UNREADY_NAME).display().to_string()));
        assert!(!sockets.contains(&folder.socket_name));
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
