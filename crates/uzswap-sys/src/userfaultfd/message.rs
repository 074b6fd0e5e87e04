//! What is read from a userfaultfd.

use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd};

use super::{Userfaultfd, abi};

/// Room for one message, 32 bytes: `struct uffd_msg`.
///
/// The userfaultfd of a forked child that nobody took is closed with it.
#[repr(C)]
pub struct Message {
    /// 0 where there is none (any more).
    event: u8,
    reserved: [u8; 7],
    arguments: [u64; 3],
}

const _: () = assert!(size_of::<Message>() == 32);

/// What happened in the memory. Addresses are bytes of the address space that was registered.
#[derive(Debug)]
pub enum Event {
    /// A thread touched a page that is missing or write-protected, and waits.
    PageFault {
        /// The start of the page; the byte that was touched with
        /// [`EXACT_ADDRESS`](super::Features::EXACT_ADDRESS).
        address: u64,
        /// It wants to write.
        write: bool,
        /// The page is there, and write-protected.
        wp: bool,
        /// Its thread ID in its own PID namespace; 0 without
        /// [`THREAD_ID`](super::Features::THREAD_ID).
        thread: u32,
    },
    /// The process forks; it goes on when this is read. Registered ranges stay registered in the
    /// child.
    Fork {
        /// The child's, with the features of the parent's.
        child: Userfaultfd,
    },
    /// Memory has moved within the address space.
    Remap {
        /// Where it was.
        from: u64,
        /// Where it is.
        to: u64,
        /// Bytes.
        len: u64,
    },
    /// Pages were dropped: they are missing from now on, and zero if the file or the program says
    /// nothing else.
    Remove {
        /// The first byte.
        start: u64,
        /// The byte after the last.
        end: u64,
    },
    /// Memory was unmapped; something else may be there by now.
    Unmap {
        /// The first byte.
        start: u64,
        /// The byte after the last.
        end: u64,
    },
}

impl Message {
    /// Room without a message.
    pub const EMPTY: Message = Message { event: 0, reserved: [0; 7], arguments: [0; 3] };

    /// The message, once; `None` where there is none (any more) or none that was asked for by a
    /// feature known here.
    pub fn take(&mut self) -> Option<Event> {
        let [first, second, third] = self.arguments;
        match std::mem::replace(&mut self.event, 0) {
            abi::EVENT_PAGEFAULT => Some(Event::PageFault {
                address: second,
                write: first & abi::PAGEFAULT_WRITE != 0,
                wp: first & abi::PAGEFAULT_WP != 0,
                thread: low_half(third),
            }),
            abi::EVENT_FORK => {
                let fd = low_half(first) as i32; // a file descriptor, which the kernel gives as u32
                // SAFETY: the kernel made the descriptor for this message, which is taken once.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                Some(Event::Fork { child: Userfaultfd::from_fd(fd) })
            }
            abi::EVENT_REMAP => Some(Event::Remap { from: first, to: second, len: third }),
            abi::EVENT_REMOVE => Some(Event::Remove { start: first, end: second }),
            abi::EVENT_UNMAP => Some(Event::Unmap { start: first, end: second }),
            _ => None,
        }
    }
}

/// The `u32` that is first in memory in a field of 8 bytes.
fn low_half(field: u64) -> u32 {
    let [a, b, c, d, ..] = field.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

impl Default for Message {
    fn default() -> Message {
        Message::EMPTY
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if self.event == abi::EVENT_FORK {
            drop(self.take());
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("event", &self.event).finish_non_exhaustive()
    }
}
