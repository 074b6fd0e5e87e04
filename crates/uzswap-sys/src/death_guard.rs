//! The guard: a small process that acts if this process is killed. The guard shares this process's
//! table of files, so descriptors stay open until the guard has done its work: killing every
//! process that runs code of a certain file. The guard knows the file by device and inode: anybody
//! can give a file any name. The guard's file stays open, so no other file gets this inode.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::signals::SignalMask;

/// How long it is waited between two looks at all processes, at first and at most.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Looks in a row that must find none: a program that starts maps its libraries some hundred
/// microseconds later.
const QUIET_LOOKS: u32 = 3;

/// A file as the kernel's `maps` name it in a mapping: device, inode, with the spaces around them.
struct MappedFile(Vec<u8>);

impl MappedFile {
    fn of(file: &File) -> io::Result<MappedFile> {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE);
        // SAFETY: a new mapping where the kernel likes, of a file that is open.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rights, kind, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let maps = fs::read_to_string("/proc/self/maps");
        // SAFETY: the mapping that was made above, which nobody else has.
        unsafe { libc::munmap(at, PAGE) };
        let start = format!("{:x}-", at.addr());
        let maps = maps?;
        let line = maps.lines().find(|line| line.starts_with(&start));
        let fields = line.map(|line| line.split(' ').skip(3).take(2).collect::<Vec<&str>>());
        match fields.as_deref() {
            Some([device, inode]) => Ok(MappedFile(format!(" {device} {inode} ").into_bytes())),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Bytes of a mapping.
const PAGE: usize = 4096;

/// Rights and offset of a mapping before device and inode: `r-xp 00001000`. An offset has more
/// digits from 4 GiB on, where no library has code.
const RIGHTS_BYTES: usize = 13;
/// The place of the `x` in it.
const EXECUTABLE_AT: usize = 2;

/// The process beside this one. It ends when this is dropped.
#[derive(Debug)]
pub struct DeathGuard {
    pid: i32,
    /// Of this process: read by the guard.
    _watched: OwnedFd,
    _spare: Spare,
    _file: File,
    /// The guard was ended.
    ended: Once,
}

/// Descriptors for the guard to look at processes with, where this process has no more of them.
type Spare = [OwnedFd; 4];

impl DeathGuard {
    /// Starts one. If this process ends before the guard, the guard kills all processes that have a
    /// part of `file` mapped to be executed. If it found one, it writes `message` to standard
    /// error.
    ///
    /// # Errors
    ///
    /// The kernel's: `EAGAIN` or `ENOMEM` where there can be no more processes, and `EPERM` for a
    /// file on a file system that is mounted noexec.
    pub fn start(file: &File, message: &[u8]) -> io::Result<DeathGuard> {
        let (mapped, file) = (MappedFile::of(file)?, file.try_clone()?);
        let watched = pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
        let spare = || watched.try_clone();
        let spare = [spare()?, spare()?, spare()?, spare()?];
        // The guard exits without a signal, so a wait for children here does not see it.
        // SAFETY: as fork(2): a copy of this thread on a copy of its stack. The guard makes system
        // calls only, allocates nothing and does not return.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES, 0, 0, 0, 0) };
        match pid {
            0 => guard(watched.as_fd(), spare, &mapped.0, message),
            -1 => Err(io::Error::last_os_error()),
            pid => {
                let (pid, ended) = (pid as i32, Once::new()); // a pid_t
                Ok(DeathGuard { pid, _watched: watched, _spare: spare, _file: file, ended })
            }
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    /// Ends the guard: there is nothing to guard any more.
    pub fn end(&self) {
        self.ended.call_once(|| {
            // SAFETY: a signal to a child that nobody else waits for.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            // SAFETY: no status is asked for.
            unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) };
        });
    }
}

impl Drop for DeathGuard {
    fn drop(&mut self) {
        self.end();
    }
}

/// The guard's life. The guard must not allocate: another thread may have held the allocator's lock
/// when this memory was copied.
fn guard(watched: BorrowedFd<'_>, spare: Spare, mapped: &[u8], message: &[u8]) -> ! {
    // Ctrl-C and the like are for the others.
    SignalMask::block_all();
    let _ = rustix::thread::set_name(c"uzswap-guard");
    while wait_for(watched).is_err() {}
    drop(spare);
    let (mut quiet, mut pause, mut is_told) = (0, PAUSE, false);
    while quiet < QUIET_LOOKS {
        if end_all(mapped) {
            quiet = 0;
            if !std::mem::replace(&mut is_told, true) {
                tell(message);
            }
            pause = (pause * 2).min(PAUSE_MAX);
        } else {
            quiet += 1;
            pause = PAUSE;
        }
        sleep(pause);
    }
    // SAFETY: ends this process alone, without exit handlers.
    unsafe { libc::_exit(0) }
}

fn wait_for(watched: BorrowedFd<'_>) -> rustix::io::Result<()> {
    poll(&mut [PollFd::from_borrowed_fd(watched, PollFlags::IN)], None).map(drop)
}

fn sleep(time: Duration) {
    let time = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let _ = rustix::thread::nanosleep(&time);
}

/// Kills all processes that have the file mapped; whether there were such.
fn end_all(mapped: &[u8]) -> bool {
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(proc) = openat(CWD, c"/proc", folder, Mode::empty()) else { return false };
    let mut room = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(&proc, &mut room);
    let mut any = false;
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { break };
        let Some(pid) = number(entry.file_name()) else { continue };
        let Ok(process) = openat(&proc, entry.file_name(), folder, Mode::empty()) else { continue };
        // One that may not be killed is another user's, who has his own.
        if has_mapped(process.as_fd(), mapped).unwrap_or(false)
            && kill_process(pid, Signal::KILL).is_ok()
        {
            any = true;
        }
    }
    any
}

/// The process that a folder of `/proc` is of.
fn number(name: &CStr) -> Option<Pid> {
    let name = std::str::from_utf8(name.to_bytes()).ok()?;
    Pid::from_raw(name.parse().ok()?)
}

/// Whether a process has it mapped as executable, by its folder in `/proc`. Its memory is not
/// looked at, which may be waiting to be filled.
fn has_mapped(process: BorrowedFd<'_>, mapped: &[u8]) -> Result<bool, Errno> {
    let file = openat(process, c"maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    has_line(mapped, |room| rustix::io::read(&file, room))
}

/// Whether a line of `maps`, which are read piece by piece, has this part and an executable
/// mapping.
fn has_line(
    part: &[u8],
    mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> Result<bool, Errno> {
    let mut room = [0_u8; 8192];
    // A possible beginning of the text stays from one piece to the next.
    let mut kept = 0;
    loop {
        let known = match read(&mut room[kept..]) {
            Ok(0) => return Ok(false),
            Ok(got) => kept + got,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        let mut windows = room[..known].windows(RIGHTS_BYTES + part.len());
        if windows.any(|it| it[EXECUTABLE_AT] == b'x' && it[RIGHTS_BYTES..] == *part) {
            return Ok(true);
        }
        kept = known.min(RIGHTS_BYTES + part.len() - 1);
        room.copy_within(known - kept..known, 0);
    }
}

/// Says it on standard error, unless that has to be waited for.
fn tell(message: &[u8]) {
    let errors = io::stderr();
    let mut ready = [PollFd::from_borrowed_fd(errors.as_fd(), PollFlags::OUT)];
    if poll(&mut ready, Some(&Timespec::default())) == Ok(1) {
        let _ = rustix::io::write(errors, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &[u8] = b" fe:00 4711 ";

    /// In a text that is read in pieces of the room's size.
    fn is_found_in(mut text: &[u8]) -> Result<bool, Errno> {
        has_line(FILE, |room| Ok(io::Read::read(&mut text, room).unwrap()))
    }

    #[test]
    fn a_file_is_found_wherever_its_line_is_cut() {
        let text = b"7f00-7f01 r--p 00000000 fe:00 4711      /tmp/library.so\n\
            7f01-7f02 r-xp 00001000 fe:00 4711      /tmp/library.so\n7f02-7f03 rw-p 0 0 0\n";
        for piece in 1..text.len() {
            let found = |part: &[u8]| {
                let mut rest = &text[..];
                has_line(part, |room| {
                    let size = piece.min(room.len()).min(rest.len());
                    room[..size].copy_from_slice(&rest[..size]);
                    rest = &rest[size..];
                    Ok(size)
                })
            };
            assert_eq!(found(FILE), Ok(true), "{piece}");
            assert_eq!(found(b" fe:00 471 "), Ok(false), "{piece}");
            assert_eq!(found(b" fe:01 4711 "), Ok(false), "{piece}");
        }
        // Longer than the room: a process with many mappings.
        let long = [&b"7f00-7f01 rw-p 00000000 00:00 0\n".repeat(1000)[..], text].concat();
        assert_eq!(is_found_in(&long), Ok(true));
        assert_eq!(has_line(FILE, |_| Err(Errno::ACCESS)), Err(Errno::ACCESS));
    }

    /// The name of a file and a mapping that is only read are nobody's reason to end.
    #[test]
    fn a_name_and_a_reader_are_not_found() {
        let texts = [
            &b"7f00-7f01 r-xp 00000000 00:01 99      /memfd: fe:00 4711  (deleted)\n"[..],
            b"7f00-7f01 r--p 00000000 fe:00 4711      /tmp/uzswap-abc/library.so\n",
        ];
        for text in texts {
            assert_eq!(is_found_in(text), Ok(false), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn own_mappings_are_found() {
        let folder = OFlags::RDONLY | OFlags::DIRECTORY;
        let own = openat(CWD, c"/proc/self", folder, Mode::empty()).unwrap();
        let file_of = |path| MappedFile::of(&File::open(path).unwrap()).unwrap().0;
        let program = std::env::current_exe().unwrap();
        assert_eq!(has_mapped(own.as_fd(), &file_of(program.to_str().unwrap())), Ok(true));
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert_eq!(has_mapped(own.as_fd(), &file_of(manifest)), Ok(false));
    }

    #[test]
    fn no_other_file_gets_the_inode_while_there_is_a_guard() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("library");
        std::fs::write(&path, [0; PAGE]).unwrap();
        let guard = DeathGuard::start(&File::open(&path).unwrap(), b"").unwrap();
        std::fs::remove_file(&path).unwrap();
        let removed = format!("{} (deleted)", path.display());
        let is_open = || {
            let mut open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            open.any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to == *removed))
        };
        assert!(is_open());
        drop(guard);
        assert!(!is_open());
    }

    #[test]
    fn a_guard_ends_with_its_owner_and_is_seen_by_nobody() {
        let program = File::open(std::env::current_exe().unwrap()).unwrap();
        let guard = DeathGuard::start(&program, b"").unwrap();
        let pid = guard.pid();
        let folder = format!("/proc/{pid}");
        assert!(std::fs::exists(&folder).unwrap());
        // SAFETY: no status is asked for. Other tests have children, too.
        let waited = unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::WNOHANG) };
        assert_eq!(waited, -1);
        guard.end();
        assert!(!std::fs::exists(&folder).unwrap());
    }
}
