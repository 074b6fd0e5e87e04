//! The process at the other end of a unix socket, as the kernel reports it: a pidfd, which always
//! names that process, even if its PID is reused.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::foreign::Foreign;

// Of the kernel's asm-generic/socket.h and linux/socket.h; libc has none of them.
const SO_PASSPIDFD: libc::c_int = 76;
const SO_PEERPIDFD: libc::c_int = 77;
const SO_PASSRIGHTS: libc::c_int = 83;
const SCM_PIDFD: libc::c_int = 4;

/// Descriptors that one message may bring; more are refused.
pub const DESCRIPTORS_MAX: usize = 3;

/// Descriptors that the kernel lets one message bring (its `SCM_MAX_FD`). There is room for all of
/// them: the kernel closes in the receiving thread what finds no room.
const KERNEL_MAX: usize = 253;

/// Room for those and a pidfd, each part with a header of 16 bytes, in words of 8.
const CONTROL_WORDS: usize = (16 + KERNEL_MAX * 4).div_ceil(8) + (16_usize + 4).div_ceil(8);

/// A pidfd of the process that made this connection.
///
/// # Errors
///
/// The kernel's: `ENOPROTOOPT` before Linux 6.5, `ESRCH` where the process has ended and was
/// waited for, `EMFILE`.
pub fn of_connection(connection: &impl AsFd) -> io::Result<OwnedFd> {
    let mut pidfd: RawFd = -1;
    let mut bytes = size_of::<RawFd>() as libc::socklen_t;
    let socket = connection.as_fd().as_raw_fd();
    // SAFETY: both pointers are to variables of ours of the sizes that the call expects.
    let asked = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut bytes,
        )
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made this descriptor just now, for this caller alone.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// Has the kernel add a pidfd of the sender to each message that this socket receives.
///
/// # Errors
///
/// The kernel's: `ENOPROTOOPT` before Linux 6.5.
pub fn tell_senders(socket: &impl AsFd) -> io::Result<()> {
    set(socket, SO_PASSPIDFD, true)
}

/// Whether this unix socket, and each connection to it, takes descriptors from now on. Where not,
/// the kernel refuses a message that brings some: `EPERM` for its sender.
///
/// # Errors
///
/// The kernel's: `ENOPROTOOPT` before Linux 6.16.
pub fn let_descriptors(socket: &impl AsFd, may_come: bool) -> io::Result<()> {
    set(socket, SO_PASSRIGHTS, may_come)
}

fn set(socket: &impl AsFd, option: libc::c_int, is_on: bool) -> io::Result<()> {
    let value = libc::c_int::from(is_on);
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the pointer is to an integer of ours, of the size that is given.
    let set = unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const value).cast(), bytes)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The number of a pidfd's process, as the /proc of this process has it.
///
/// # Errors
///
/// Of reading `/proc/self/fdinfo`; `NotFound` where the process has ended.
pub fn number_of(pidfd: BorrowedFd<'_>) -> io::Result<u32> {
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let number = told.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    number.filter(|&number| number > 0).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// A message.
#[derive(Debug, Default)]
pub struct Received {
    /// Its length in bytes, be it more than there was room for; 0 at the end of a connection.
    pub bytes: usize,
    /// The descriptors that came along, closed on exec.
    pub descriptors: Vec<Foreign>,
    /// Of the process that sent it, after [`tell_senders`].
    pub sender: Option<OwnedFd>,
}

/// Receives a message into the start of `room`, and does not wait for one.
///
/// # Errors
///
/// The kernel's: `EAGAIN` where there is none. `EMFILE` where no descriptor is left for one that
/// came along (the kernel has closed that in this thread); `InvalidData` where more came than
/// [`DESCRIPTORS_MAX`].
pub fn receive(socket: &impl AsFd, room: &mut [u8]) -> io::Result<Received> {
    receive_with(socket, room, libc::MSG_TRUNC)
}

/// As [`receive`], of a stream, which may be TCP: no more bytes than there is room for.
///
/// # Errors
///
/// As [`receive`].
pub fn receive_part(socket: &impl AsFd, room: &mut [u8]) -> io::Result<Received> {
    receive_with(socket, room, 0)
}

fn receive_with(socket: &impl AsFd, room: &mut [u8], flags: libc::c_int) -> io::Result<Received> {
    let mut control = [MaybeUninit::<u64>::zeroed(); CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // SAFETY: all zero is such a value: null pointers and lengths of 0.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the header names `room` and `control` with their sizes; both are borrowed for this.
    let received = unsafe { libc::recvmsg(socket, &raw mut header, flags) };
    let bytes = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let filled = (header.msg_controllen as usize).min(size_of_val(&control));
    // SAFETY: the array was zeroed, so each word is one.
    let words = control.map(|word| unsafe { word.assume_init() });
    let mut found = Received { bytes, ..Received::default() };
    for (level, kind, data) in parts(&words, filled) {
        for number in data {
            // SAFETY: the kernel made this descriptor for this message, and it is named once.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            match (level, kind) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    found.descriptors.push(Foreign::new(descriptor));
                }
                (libc::SOL_SOCKET, SCM_PIDFD) => found.sender = Some(descriptor),
                _ => unreachable!("the kernel sends no other part unasked"),
            }
        }
    }
    match found.descriptors.len() > DESCRIPTORS_MAX {
        true => Err(io::ErrorKind::InvalidData.into()),
        false if header.msg_flags & libc::MSG_CTRUNC != 0 => {
            Err(io::Error::from_raw_os_error(libc::EMFILE))
        }
        false => Ok(found),
    }
}

/// The parts of a message's control data (cmsg(3)) that carry descriptors: level, kind, and the
/// descriptors' numbers.
fn parts(words: &[u64], filled: usize) -> Vec<(libc::c_int, libc::c_int, Vec<RawFd>)> {
    const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).take(filled).collect();
    let int = |at: usize| {
        bytes.get(at..at + 4).and_then(|four| Some(i32::from_ne_bytes(four.try_into().ok()?)))
    };
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(length) = bytes.get(at..at + 8) {
        let length = u64::from_ne_bytes(length.try_into().expect("eight of them")) as usize;
        let (Some(level), Some(kind)) = (int(at + 8), int(at + 12)) else { break };
        if length < HEADER_BYTES {
            break;
        }
        let end = at + length;
        let numbers = (at + HEADER_BYTES..end).step_by(4).map_while(int).filter(|&fd| fd >= 0);
        found.push((level, kind, numbers.collect()));
        at = end.next_multiple_of(8);
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::net::UnixDatagram;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

    use super::*;

    fn send(socket: &impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut extra = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(extra.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let parts = [io::IoSlice::new(bytes)];
        rustix::net::sendmsg(socket, &parts, &mut extra, SendFlags::empty()).unwrap();
    }

    /// No descriptor is left of the other end, once a thread has closed it.
    fn fails_soon(mut write: impl FnMut() -> io::Result<()>) {
        let since = std::time::Instant::now();
        while write().is_ok() {
            assert!(since.elapsed().as_secs() < 10, "a descriptor is left");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_socket_that_takes_no_descriptors_refuses_them_at_once() {
        let (here, there) = UnixDatagram::pair().unwrap();
        match let_descriptors(&here, false) {
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => return,
            set => set.unwrap(),
        }
        let null = File::open("/dev/null").unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut extra = SendAncillaryBuffer::new(&mut space);
        let descriptors = [null.as_fd()];
        assert!(extra.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let parts = [io::IoSlice::new(b"one")];
        let sent = rustix::net::sendmsg(&there, &parts, &mut extra, SendFlags::empty());
        assert_eq!(sent, Err(rustix::io::Errno::PERM));
        let_descriptors(&here, true).unwrap();
        send(&there, b"one", &[null.as_fd()]);
        assert_eq!(receive(&here, &mut [0; 4]).unwrap().descriptors.len(), 1);
    }

    #[test]
    fn a_message_comes_with_its_descriptors_and_its_sender() {
        let (here, there) = UnixDatagram::pair().unwrap();
        let mut room = [0; 4];
        assert_eq!(receive(&here, &mut room).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        send(&there, b"none", &[]);
        let got = receive(&here, &mut room).unwrap();
        assert_eq!((got.bytes, &room), (4, b"none"));
        assert!(got.sender.is_none() && got.descriptors.is_empty());
        tell_senders(&here).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let null = File::open("/dev/null").unwrap();
        send(&there, b"longer", &[reader.as_fd(), null.as_fd()]);
        drop(reader);
        let got = receive(&here, &mut room).unwrap();
        assert_eq!((got.bytes, got.descriptors.len(), &room), (6, 2, b"long"));
        assert_eq!(number_of(got.sender.unwrap().as_fd()).unwrap(), std::process::id());
        writer.write_all(b"x").unwrap();
        assert_eq!(rustix::io::read(&got.descriptors[0], &mut room).unwrap(), 1);
        drop(got.descriptors);
        fails_soon(|| writer.write_all(b"x"));
    }

    #[test]
    fn too_many_descriptors_are_refused_and_closed() {
        let (here, there) = UnixDatagram::pair().unwrap();
        tell_senders(&here).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        send(&there, b"many", &[reader.as_fd(); 8]);
        drop(reader);
        let error = receive(&here, &mut [0; 4]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        fails_soon(|| writer.write_all(b"x"));
    }

    #[test]
    fn the_peer_of_a_connection_is_known() {
        let (here, _there) = std::os::unix::net::UnixStream::pair().unwrap();
        let pidfd = of_connection(&here).unwrap();
        assert_eq!(number_of(pidfd.as_fd()).unwrap(), std::process::id());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        let flags = rustix::process::PidfdFlags::empty();
        let pidfd = rustix::process::pidfd_open(pid, flags).unwrap();
        child.wait().unwrap();
        assert_eq!(number_of(pidfd.as_fd()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
