//! Advice of a program about forks.

use std::io;

use crate::program::procfs::ProcessFiles;
use crate::range_set::RangeSet;

/// Memory that a fork treats in a way of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ForkAdvice {
    /// `MADV_DONTFORK`: the child does not have it.
    pub(crate) not_copied: RangeSet,
    /// `MADV_WIPEONFORK`: the child has zeros.
    pub(crate) wiped: RangeSet,
    /// Stacks of threads.
    pub(crate) stacks: RangeSet,
}

impl ForkAdvice {
    /// The flags of such mappings in /proc/PID/smaps, in the order of the fields.
    const FLAGS: [&str; 3] = ["dc", "wf", "nh"];

    /// Asks the kernel for that of a process.
    pub(super) fn of(files: &ProcessFiles) -> io::Result<ForkAdvice> {
        let [not_copied, wiped, stacks] = files.mappings_with(ForkAdvice::FLAGS)?;
        Ok(ForkAdvice { not_copied, wiped, stacks })
    }
}
