//! The backing: a slower and larger place that pages are written back to, in blocks of 4096 bytes.
//!
//! | part | what it does |
//! |---|---|
//! | [`Backing`] | moves blocks; a file or device: [`FileBacking`], or memory: [`MemoryBacking`] |
//! | [`Extents`] | knows which blocks are free, and how many objects each of the others holds |
//! | [`Location`] | names a place in a block, in 40 bits |
//!
//! A page is written as it is, in a block of its own, or compressed. Objects are packed into a run
//! of blocks one after the other, from multiples of 16 bytes on, and may cross a block border. The
//! way of a batch:
//!
//! ```
//! use uzswap::backing::{Backing, BlockWrite, Extents, Location, MemoryBacking, zeroed_blocks};
//!
//! let backing = MemoryBacking::new(1024)?;
//! let mut extents = Extents::new(backing.block_count())?; // behind a lock of the owner
//!
//! // A run of up to 2 blocks, each held once, by the writer.
//! let run = extents.take_run(2).expect("a free block");
//! let mut buffer = zeroed_blocks(run.len())?;
//! let place = Location::new(run.start, 0).expect("the start of a block");
//! let object = [7; 1000];
//! buffer[0].0[..1000].copy_from_slice(&object);
//! for block in place.blocks(object.len()) {
//!     extents.hold(block)?; // once more, by the object
//! }
//!
//! // Without the lock:
//! let mut writes = [BlockWrite::new(run.start, &buffer)];
//! backing.write(&mut writes);
//! assert!(writes[0].outcome.is_ok()); // else: release the objects' holds too
//!
//! for block in run {
//!     extents.release(block)?; // the writer's; blocks without objects become free
//! }
//! assert_eq!(extents.used_blocks(), 1);
//!
//! // Later the object is invalidated, and what became free is given back in large pieces.
//! for block in place.blocks(object.len()) {
//!     extents.release(block)?;
//! }
//! while let Some(range) = extents.begin_discard(1) {
//!     let outcome = backing.discard(range.clone()); // without the lock
//!     extents.end_discard(range)?; // only now can it be taken again
//!     outcome?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod extents;
mod file;
mod location;
mod memory;
mod open;

use std::fmt;
use std::io;
use std::ops::Range;

pub use error::BackingError;
#[doc(hidden)]
pub use extents::{Extents, UnknownBlock};
pub use file::FileBacking;
#[doc(hidden)]
pub use location::Location;
pub use memory::MemoryBacking;
pub use open::{Direct, FileBackingOptions, IoMode, Submission};

use crate::page::PAGE_SIZE;
pub use uzswap_sys::blocks::{
    BLOCK_SIZE, Block, BlockWrite, bytes as block_bytes, bytes_mut as block_bytes_mut,
    zeroed as zeroed_blocks,
};

const _: () = assert!(BLOCK_SIZE == PAGE_SIZE);

/// A place for blocks of 4096 bytes, by number. A backing is scratch: its content means nothing to
/// the next process. Shared by threads. A backing must not call its own store.
pub trait Backing: Send + Sync + fmt::Debug {
    /// For messages: the path.
    fn name(&self) -> String;

    /// Its capacity, in blocks.
    fn block_count(&self) -> u32;

    /// Does all the writes, several of them in flight at once, waits for them and fills in each
    /// one's outcome, which is an error until then. The runs of one call must not overlap. A run
    /// that is not all inside makes every outcome `InvalidInput`, and nothing is written.
    fn write(&self, writes: &mut [BlockWrite<'_>]);

    /// Reads adjacent blocks, from number `first` on.
    ///
    /// # Errors
    ///
    /// `InvalidInput` where they are not all inside, `UnexpectedEof` where the file is shorter than
    /// it was made; else the kernel's. The content of `blocks` is unspecified then.
    fn read(&self, first: u32, blocks: &mut [Block]) -> io::Result<()>;

    /// Says that the blocks' contents are not needed any more, so that their space can be given
    /// back. Where that is not possible it does nothing.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read). The blocks can be written again in any case.
    fn discard(&self, blocks: Range<u32>) -> io::Result<()>;
}

/// Checks that `len` blocks from `first` on are inside of `count`.
fn check_inside(first: u32, len: usize, count: u32) -> io::Result<()> {
    match (first as usize).checked_add(len) {
        Some(end) if end <= count as usize => Ok(()),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Checks all runs of a batch; if one is outside, all of them get that outcome.
fn check_writes(writes: &mut [BlockWrite<'_>], count: u32) -> bool {
    let inside =
        writes.iter().all(|write| check_inside(write.first, write.blocks.len(), count).is_ok());
    if !inside {
        fail_all(writes, || io::ErrorKind::InvalidInput.into());
    }
    inside
}

/// Gives every write the same outcome.
fn fail_all(writes: &mut [BlockWrite<'_>], error: impl Fn() -> io::Error) {
    for write in writes {
        write.outcome = Err(error());
    }
}
