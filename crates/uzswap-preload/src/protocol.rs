//! The protocol between the supervisor and the helper in a program. Both sides compile this file.
//!
//! ```text
//!  helper                            supervisor
//!   Connect, by path or door  ------>    (the kernel names the process; it is one of the run)
//!   Hello, with the secret    ------>    (finds the memory of a forked child by it)
//!                             <------    Welcome, with descriptors: control memory, the door, and
//!                                        a userfaultfd or the device to make one
//!   Ready, with the userfaultfd --->     (fills a page by it, and reads that of the process)
//!                             <------    the bell: a command is in the control memory
//!   Done                      ------>
//! ```
//!
//! Each message is one packet. The supervisor drops a connection on which any other message comes.
//! The helper ends with its program; when the supervisor ends, the helper ends the program, for
//! parts of its memory are gone.
//!
//! A helper connects by the path of a socket. After chroot(2) or in a mount namespace its program
//! does not reach that path. Then the helper sends one end of a pair of sockets through the *door*.
//! Each helper holds a door of its own, and lends it to its program for the moment of a fork. A
//! program that has not the rights to take it from the helper asks for it.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Of this protocol: the first word of every message.
pub const MAGIC: u32 = 0x757a_0005;

/// The variable that names the supervisor's socket.
pub const SOCKET_VARIABLE: &str = "UZSWAP_SOCKET";

/// The file name of the preload library.
pub const LIBRARY_NAME: &str = "libuzswap_preload.so";

/// Runs of pages in one command.
pub const RUNS_MAX: usize = 512;

/// What a message is.
pub mod kind {
    /// From the helper: a program has started.
    pub const HELLO_EXEC: u32 = 1;
    /// From the helper: a program has forked, and this is the child.
    pub const HELLO_FORK: u32 = 2;
    /// From the supervisor: make a userfaultfd with the device that comes along.
    pub const WELCOME_DEVICE: u32 = 3;
    /// From the supervisor: make a userfaultfd with the system call.
    pub const WELCOME_CALL: u32 = 4;
    /// From the supervisor: this is your userfaultfd, which was made when your parent forked.
    pub const WELCOME_FORKED: u32 = 5;
    /// From the helper: it can work.
    pub const READY: u32 = 6;
    /// From the helper: it cannot, and ends.
    pub const CANNOT: u32 = 7;
    /// From the helper: the command was carried out.
    pub const DONE: u32 = 9;
    /// From the supervisor: the program runs as it would without a helper, which ends.
    pub const END: u32 = 10;
    /// From the helper, through the door: a connection comes along.
    pub const CONNECT: u32 = 11;
}

/// A packet. The words mean something else in each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Message {
    /// [`MAGIC`].
    pub magic: u32,
    /// Of [`kind`].
    pub kind: u32,
    /// HELLO: address and bytes of the helper's own memory, and the secret that it read on the page
    /// of identity, 0 and 0 for none. WELCOME: bytes of staging wanted. READY: address and bytes of
    /// staging, address of the page of identity, address of the word that the kernel clears when
    /// the first thread ends (0: not known). CANNOT: an errno, and 1 if it is of the
    /// memory for staging, 0 if of the userfaultfd.
    pub words: [u64; WORDS],
}

/// Words of a [`Message`].
pub const WORDS: usize = 4;

/// Bytes of a [`Message`].
pub const MESSAGE_BYTES: usize = size_of::<Message>();

impl Message {
    /// A message of this kind; the words that are not given are 0.
    pub fn new<const N: usize>(kind: u32, given: [u64; N]) -> Message {
        let mut words = [0; WORDS];
        words[..N].copy_from_slice(&given);
        Message { magic: MAGIC, kind, words }
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0..4].copy_from_slice(&self.magic.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.kind.to_ne_bytes());
        for (to, word) in bytes[8..].chunks_exact_mut(8).zip(self.words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// The message of these bytes; `None` if they are none of this protocol.
    pub fn from_bytes(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let mut words = [0; WORDS];
        for (word, from) in words.iter_mut().zip(bytes[8..].chunks_exact(8)) {
            *word = u64::from_ne_bytes(from.try_into().ok()?);
        }
        let message = Message { magic: word(0)?, kind: word(4)?, words };
        (message.magic == MAGIC).then_some(message)
    }
}

/// Holder of the lock of a [`Control`].
pub mod holder {
    /// Nobody.
    pub const NONE: u32 = 0;
    /// The helper, which carries out a command.
    pub const HELPER: u32 = 1;
    /// The supervisor, which reads what the userfaultfd has.
    pub const SUPERVISOR: u32 = 2;
    /// The helper, which is in mremap(2): the kernel reports the move, and the helper goes on once
    /// the report was read. The supervisor takes the lock after the pages have moved.
    pub const REMAPPING: u32 = 3;
}

/// What a command does with its runs of pages.
pub mod work {
    /// Moves pages to staging, and write-protects their empty entries: UFFDIO_MOVE and
    /// UFFDIO_WRITEPROTECT.
    pub const MOVE: u32 = 1;
    /// As that, once the pages are the program's alone: MADV_POPULATE_WRITE.
    pub const OWN_AND_MOVE: u32 = 2;
    /// Moves read-only pages to staging: mremap(2) with MREMAP_DONTUNMAP. UFFDIO_MOVE takes pages
    /// that can be written alone.
    pub const REMAP: u32 = 3;
    /// Gives pages back to the kernel that the program has freed lazily (MADV_FREE) and not written
    /// since: MADV_PAGEOUT. Without swap, the kernel keeps all other pages.
    pub const DROP_FREED: u32 = 4;
    /// As [`REMAP`], of pages that can be written and not read.
    pub const REMAP_UNREADABLE: u32 = 5;

    /// Whether a command moves pages by mremap(2).
    pub fn is_remap(work: u32) -> bool {
        matches!(work, REMAP | REMAP_UNREADABLE)
    }
}

/// Staging is mapped anew before it is filled; the bits below are its rights (PROT_READ ...).
pub const MAP_ANEW: u32 = 1 << 31;

/// Threads in a fork that [`Control::forking`] has room for.
pub const FORKING_MAX: usize = 8;

/// Between two functions of a fork, a stack grows or shrinks by less. The stacks of two threads are
/// further apart: a guard page is between them.
pub const SAME_STACK_BYTES: u64 = 4096;

/// Memory that both map: one command at a time, and the lock that keeps a command and the news of
/// the userfaultfd apart.
///
/// A command names addresses. Once the supervisor has read that the program changed a mapping, the
/// program continues and may map something else there. So the supervisor reads no event while pages
/// move, and takes back the runs that an event concerns before more pages move.
///
/// While there is something to be read, the kernel refuses to move pages. The helper lets go of the
/// lock then, and tells in `paused` that it has begun.
///
/// The supervisor takes the lock from a stopped helper once the batch is not registered any more:
/// the helper then moves nothing, and its answer is ignored.
#[derive(Debug)]
#[repr(C)]
pub struct Control {
    /// For each thread of the program that is in a fork by the C library, an address on its stack;
    /// 0 elsewhere.
    pub forking: [AtomicU64; FORKING_MAX],
    /// Of [`holder`].
    pub lock: AtomicU32,
    /// How many times changes of the program's mappings were read.
    pub changes: AtomicU32,
    /// The number of the command. A command is done when `done` is equal to it.
    pub given: AtomicU32,
    /// The number of the last command that was carried out.
    pub done: AtomicU32,
    /// 1 while a command is carried out in part, and whoever has the lock may look how far it is.
    pub paused: AtomicU32,
    /// Forks of the program that were about to be done.
    pub forks: AtomicU32,
    /// From this number on, counted from 1, forks are announced by a touch of the last page of
    /// staging; 0: never.
    pub tell_forks_from: AtomicU32,
    /// The supervisor adds 1 for each command, and wakes the helper, which waits for that (futex).
    pub bell: AtomicU32,
    /// To a helper that is a thread: all other threads have ended, each by itself. An exit code and
    /// 1: the program's is that of the last thread.
    pub end: AtomicU32,
    /// The program adds 1 where it needs the door, and waits until `lent` is as much (futexes): the
    /// helper sends the door to a socket, which has the name `lend_to`.
    pub wish: AtomicU32,
    /// As far as the helper has sent it, or failed to.
    pub lent: AtomicU32,
    /// The first bytes of a name in the abstract namespace, which the kernel gave.
    pub lend_to: AtomicU64,
    /// Of [`work`].
    pub work: AtomicU32,
    /// Runs of the command.
    pub run_count: AtomicU32,
    /// Memory of staging that the runs go to: its start. The kernel moves pages to what is
    /// registered with the userfaultfd alone. Staging is registered for the command only:
    /// discarding registered memory waits until the supervisor reads the event, and the supervisor
    /// may be gone.
    pub fill_from: AtomicU64,
    /// Its bytes; 0 where there are no runs.
    pub fill_bytes: AtomicU64,
    /// [`MAP_ANEW`] and the rights that it needs, where it has others. The helper stores 0 once it
    /// is mapped.
    pub fill_anew: AtomicU32,
    /// With [`holder::REMAPPING`]: the run that is moved.
    pub remapped_run: AtomicU32,
    /// Memory of staging that is given back to the kernel afterwards, in any case: its start.
    pub drop_from: AtomicU64,
    /// Its bytes; 0 for none.
    pub drop_bytes: AtomicU64,
    /// The runs.
    pub runs: [Run; RUNS_MAX],
}

/// Adjacent pages of the program.
#[derive(Debug)]
#[repr(C)]
pub struct Run {
    /// Where they are.
    pub from: AtomicU64,
    /// Where they go in staging.
    pub to: AtomicU64,
    /// Their bytes; 0 once it was taken back.
    pub bytes: AtomicU64,
    /// The answer: bytes that were moved, from the first one on.
    pub moved: AtomicU64,
    /// The answer: bytes whose empty entries were write-protected, from the first one on. The
    /// kernel refuses that while an event is pending. Not with [`work::REMAP`].
    pub marked: AtomicU64,
    /// The answer: why not all were moved, an errno, or 0.
    pub error: AtomicU64,
}
