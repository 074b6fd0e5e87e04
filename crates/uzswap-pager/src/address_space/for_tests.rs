//! An address space of this process, whose helper carries out nothing.

use super::{AddressSpace, PAGE};
use crate::program::helper::Helper;

/// An address of staging without memory.
pub(super) const STAGING: u64 = 1 << 40;

/// Pages that a [`Written`] has.
pub(super) const WRITTEN: u64 = 3;

impl AddressSpace {
    /// Commands may be given at once.
    pub(super) fn with_helper(staging: u64) -> AddressSpace {
        let mut space = AddressSpace::of_nothing();
        space.process.read(std::process::id());
        space.commands.meet(Helper::of_nobody(staging));
        space.unevictable.begin_word_scan();
        space
    }
}

/// Three written pages of this process, between pages that nobody has touched.
#[derive(Debug)]
pub(super) struct Written {
    _memory: Vec<u8>,
    /// The address of the first.
    pub(super) start: u64,
}

impl Written {
    pub(super) fn new() -> Written {
        // The allocator has the kernel map so much anew.
        const BYTES: usize = 64 << 20;
        const HUGE_BYTES: u64 = 2 << 20;
        let mut memory = vec![0; BYTES];
        let base = memory.as_ptr().addr() as u64;
        // A huge page ends behind them.
        let start = (base + HUGE_BYTES).next_multiple_of(HUGE_BYTES) - WRITTEN * PAGE;
        for page in 0..WRITTEN {
            memory[(start - base + page * PAGE) as usize] = 1;
        }
        Written { _memory: memory, start }
    }

    /// The number of the first.
    pub(super) fn page(&self) -> u64 {
        self.start / PAGE
    }
}
