//! The guard: a small process that acts if this process is killed. The guard shares this process's
//! table of files, so descriptors stay open until the guard has done its work: killing every
//! process that maps a certain file.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

/// The process beside this one. It ends when this is dropped.
#[derive(Debug)]
pub struct DeathGuard {
    pid: i32,
    /// Of this process: read by the guard.
    _watched: OwnedFd,
    _spare: Spare,
}

/// Descriptors for the guard to look at processes with, where this process has no more of them.
type Spare = [OwnedFd; 4];

impl DeathGuard {
    /// Starts one. If this process ends before the guard, the guard kills all processes that map a
    /// file with `mapped` in its path. If it found one, it writes `message` to standard error.
    ///
    /// # Errors
    ///
    /// The kernel's: `EAGAIN` or `ENOMEM` where there can be no more processes.
    ///
    /// # Panics
    ///
    /// If `mapped` is empty or has more than 1000 bytes.
    pub fn start(mapped: &[u8], message: &[u8]) -> io::Result<DeathGuard> {
        assert!((1..=1000).contains(&mapped.len()), "{} bytes to look for", mapped.len());
        let watched = pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
        let spare = || watched.try_clone();
        let spare = [spare()?, spare()?, spare()?, spare()?];
        // The guard exits without a signal, so a wait for children here does not see it.
        // SAFETY: as fork(2): a copy of this thread on a copy of its stack. The guard makes system
        // calls only, allocates nothing and does not return.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES, 0, 0, 0, 0) };
        match pid {
            0 => guard(watched.as_fd(), spare, mapped, message),
            -1 => Err(io::Error::last_os_error()),
            pid => Ok(DeathGuard { pid: pid as i32, _watched: watched, _spare: spare }), // a pid_t
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }
}

impl Drop for DeathGuard {
    fn drop(&mut self) {
        // SAFETY: a signal to a child that nobody else waits for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        // SAFETY: no status is asked for.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) };
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

/// Whether a process has it mapped, by its folder in `/proc`. Its memory is not looked at, which
/// may be waiting to be filled.
fn has_mapped(process: BorrowedFd<'_>, mapped: &[u8]) -> Result<bool, Errno> {
    let file = openat(process, c"maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    contains(mapped, |room| rustix::io::read(&file, room))
}

/// Whether a part is in what is read, piece by piece.
fn contains(
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
        if room[..known].windows(part.len()).any(|window| window == part) {
            return Ok(true);
        }
        kept = known.min(part.len() - 1);
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

    #[test]
    fn a_part_is_found_wherever_it_is_cut() {
        let text = b"0-1 r-xp /lib/libc.so\n1-2 r--p /tmp/uzswap-abc/library.so\n2-3 rw-p [heap]\n";
        for piece in 1..text.len() {
            let found = |part: &[u8]| {
                let mut rest = &text[..];
                contains(part, |room| {
                    let size = piece.min(room.len()).min(rest.len());
                    room[..size].copy_from_slice(&rest[..size]);
                    rest = &rest[size..];
                    Ok(size)
                })
            };
            assert_eq!(found(b"uzswap-abc/library.so"), Ok(true), "{piece}");
            assert_eq!(found(b"[heap]"), Ok(true), "{piece}");
            assert_eq!(found(b"0"), Ok(true), "{piece}");
            assert_eq!(found(b"uzswap-abd/library.so"), Ok(false), "{piece}");
        }
        // Longer than the room: a process with many mappings.
        let long = [&b"7f00-7f01 rw-p 00000000 00:00 0\n".repeat(1000)[..], text].concat();
        let mut rest = &long[..];
        let found = contains(b"uzswap-abc/library.so", |room| {
            use std::io::Read;
            Ok(rest.read(room).unwrap())
        });
        assert_eq!(found, Ok(true));
        assert_eq!(contains(b"any", |_| Err(Errno::ACCESS)), Err(Errno::ACCESS));
    }

    #[test]
    fn own_mappings_are_found() {
        let folder = OFlags::RDONLY | OFlags::DIRECTORY;
        let own = openat(CWD, c"/proc/self", folder, Mode::empty()).unwrap();
        assert_eq!(has_mapped(own.as_fd(), b"[stack]"), Ok(true));
        assert_eq!(has_mapped(own.as_fd(), b"no/such/library.so"), Ok(false));
    }

    #[test]
    fn a_guard_ends_with_its_owner_and_is_seen_by_nobody() {
        let guard = DeathGuard::start(b"no/such/library.so", b"").unwrap();
        let pid = guard.pid();
        let folder = format!("/proc/{pid}");
        assert!(std::fs::exists(&folder).unwrap());
        // SAFETY: no status is asked for. Other tests have children, too.
        let waited = unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::WNOHANG) };
        assert_eq!(waited, -1);
        drop(guard);
        assert!(!std::fs::exists(&folder).unwrap());
    }
}
