//! Writes to a file, many in flight at once, through io_uring.
//!
//! While a write is in flight, the kernel reads its memory. [`Ring::write`] borrows that memory and
//! returns only when nothing is in flight any more, even after an error.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use super::blocks::{self, BLOCK_SIZE, BlockWrite};

/// The most that one request moves; the rest of a longer run follows it.
const REQUEST_BYTES_MAX: usize = 1 << 30; // the kernel's limit is 2^31 - 4096

/// A queue of requests to the kernel.
pub struct Ring {
    /// `None` once the kernel has refused to go on.
    ring: Option<IoUring>,
    depth: usize,
}

impl Ring {
    /// A queue of `depth` requests, 1 to 4096.
    ///
    /// # Errors
    ///
    /// The kernel's: `ENOSYS` before 5.1, `EPERM` where the machine or a container forbids it,
    /// `ENOMEM` where it counts as locked memory (before 5.12) and that is limited.
    pub fn new(depth: usize) -> io::Result<Ring> {
        let depth = depth.clamp(1, 4096);
        let ring = IoUring::new(depth as u32)?;
        // Kernels before 5.6 have no plain write.
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Write::CODE) {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Ok(Ring { ring: Some(ring), depth })
    }

    /// Writes every run to `file`, whose block 0 is at `start` bytes, and fills in the outcomes.
    /// The runs must not overlap: they are written in any order.
    pub fn write(&mut self, file: &File, start: u64, writes: &mut [BlockWrite<'_>]) {
        let queued = match &mut self.ring {
            Some(ring) => {
                let (queued, failed) = write_queued(ring, self.depth, file, start, writes);
                if failed {
                    // The queue may still hold requests that the kernel has not seen, and must not
                    // see later.
                    self.ring = None;
                }
                queued
            }
            None => 0,
        };
        for write in &mut writes[queued..] {
            finish(file, start, write, 0);
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("depth", &self.depth).finish_non_exhaustive()
    }
}

/// Where in the file a run begins, in bytes.
fn offset_of(start: u64, write: &BlockWrite<'_>) -> u64 {
    start + u64::from(write.first) * BLOCK_SIZE as u64
}

/// Writes what comes after the first `done` bytes, and waits for it.
fn finish(file: &File, start: u64, write: &mut BlockWrite<'_>, done: usize) {
    let rest = &blocks::bytes(write.blocks)[done..];
    write.outcome = file.write_all_at(rest, offset_of(start, write) + done as u64);
}

/// Returns how many of the writes are done (the first ones), and whether the ring failed; nothing
/// is in flight then. Must not panic: that would leave requests in flight.
fn write_queued(
    ring: &mut IoUring,
    depth: usize,
    file: &File,
    start: u64,
    writes: &mut [BlockWrite<'_>],
) -> (usize, bool) {
    let mut pushed = 0;
    let mut completed = 0;
    loop {
        while pushed < writes.len() && pushed - completed < depth {
            let write = &writes[pushed];
            let memory = blocks::bytes(write.blocks);
            let length = memory.len().min(REQUEST_BYTES_MAX) as u32;
            let request = opcode::Write::new(types::Fd(file.as_raw_fd()), memory.as_ptr(), length)
                .offset(offset_of(start, write))
                .build()
                .user_data(pushed as u64);
            // SAFETY: file and memory are borrowed until `write` returns. That happens only after
            // the request has completed, or after the ring is gone without having passed it on.
            if unsafe { ring.submission().push(&request) }.is_err() {
                break; // the queue is full
            }
            pushed += 1;
        }
        if pushed == completed {
            return (pushed, false);
        }
        let wanted = if pushed < writes.len() { 1 } else { pushed - completed };
        let entered = ring.submit_and_wait(wanted);
        completed += reap(ring, file, start, writes);
        if let Err(error) = entered
            && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
        {
            let unseen = ring.submission().len();
            while completed < pushed - unseen {
                thread::sleep(Duration::from_micros(50));
                completed += reap(ring, file, start, writes);
            }
            return (pushed - unseen, true);
        }
    }
}

/// Takes what has completed; how many that were.
fn reap(ring: &mut IoUring, file: &File, start: u64, writes: &mut [BlockWrite<'_>]) -> usize {
    let mut count = 0;
    for completion in ring.completion() {
        count += 1;
        let Some(write) = writes.get_mut(completion.user_data() as usize) else { continue };
        match completion.result() {
            written if written >= 0 => {
                let done = (written as usize).min(size_of_val(write.blocks));
                if done == size_of_val(write.blocks) {
                    write.outcome = Ok(());
                } else {
                    finish(file, start, write, done);
                }
            }
            error if [libc::EINTR, libc::EAGAIN].contains(&-error) => {
                finish(file, start, write, 0);
            }
            error => write.outcome = Err(io::Error::from_raw_os_error(-error)),
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn numbered(count: usize) -> Box<[blocks::Block]> {
        let mut blocks = blocks::zeroed(count).unwrap();
        for (number, block) in blocks.iter_mut().enumerate() {
            block.0.fill(number as u8 + 1);
        }
        blocks
    }

    /// A ring; where the machine has none, says that a test is skipped and why. To the stream
    /// itself, as what a test prints is shown of failures only.
    fn ring(depth: usize) -> Option<Ring> {
        let told = |error| writeln!(io::stderr(), "skipped: no io_uring here: {error}");
        Ring::new(depth).map_err(told).ok()
    }

    fn check(file: &File, start: u64, expected: &[blocks::Block]) {
        let mut back = blocks::zeroed(expected.len()).unwrap();
        file.read_exact_at(blocks::bytes_mut(&mut back), start).unwrap();
        assert!(blocks::bytes(&back) == blocks::bytes(expected));
    }

    #[test]
    fn a_ring_writes_more_than_its_depth() {
        let file = tempfile::tempfile().unwrap();
        let Some(mut ring) = ring(3) else { return };
        let blocks = numbered(50);
        let mut writes: Vec<_> = blocks
            .chunks(2)
            .enumerate()
            .map(|(run, blocks)| BlockWrite::new(run as u32 * 2, blocks))
            .collect();
        ring.write(&file, 512, &mut writes);
        assert!(writes.iter().all(|write| write.outcome.is_ok()));
        check(&file, 512, &blocks);
        ring.write(&file, 0, &mut []);
    }

    #[test]
    fn each_write_has_its_own_outcome() {
        let file = File::open("/dev/null").unwrap();
        let Some(mut ring) = ring(4) else { return };
        let blocks = numbered(1);
        let mut writes: Vec<_> = (0..9).map(|block| BlockWrite::new(block, &blocks)).collect();
        ring.write(&file, 0, &mut writes);
        for write in writes {
            assert_eq!(write.outcome.unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
    }

    #[test]
    fn a_ring_that_breaks_is_left() {
        let file = tempfile::tempfile().unwrap();
        let Some(mut ring) = ring(4) else { return };
        let other = File::open("/dev/null").unwrap();
        let ring_fd = ring.ring.as_ref().unwrap().as_raw_fd();
        // SAFETY: both are open descriptors; the ring's is closed once, by its owner, whatever it
        // leads to.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), ring_fd) }, ring_fd);
        let blocks = numbered(9);
        for _ in 0..2 {
            let mut writes: Vec<_> = (0..9)
                .map(|block| BlockWrite::new(block, &blocks[block as usize..][..1]))
                .collect();
            ring.write(&file, 0, &mut writes);
            assert!(writes.iter().all(|write| write.outcome.is_ok()));
            assert!(ring.ring.is_none());
            check(&file, 0, &blocks);
            file.set_len(0).unwrap();
        }
    }
}
