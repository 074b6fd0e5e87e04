//! Advice about forks: of a parent, and as the mappings of a child show it.

use std::io;
use std::ops::Range;

use crate::program::procfs::ProcessFiles;
use crate::range_set::RangeSet;
use uzswap_preload::protocol::identity;

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

/// The answer of a child's mappings.
#[derive(Debug)]
pub(super) struct OwnMappings {
    /// Registered with its userfaultfd: the child has it since the fork.
    pub(super) registered: RangeSet,
    /// With `MADV_WIPEONFORK`.
    pub(super) wiped: RangeSet,
    pub(super) child: Child,
}

/// Who answers for a child.
#[derive(Debug)]
pub(super) enum Child {
    Process(ProcessFiles),
    #[cfg(test)]
    Assumed {
        resident: RangeSet,
        has_run: bool,
    },
}

impl OwnMappings {
    pub(super) fn of(files: ProcessFiles) -> io::Result<OwnMappings> {
        let [registered, wiped] = files.mappings_with(["um", "wf"])?;
        Ok(OwnMappings { registered, wiped, child: Child::Process(files) })
    }

    /// Where the child has pages in memory; `None` where the kernel does not tell.
    pub(super) fn resident_in(&self, range: Range<u64>) -> Option<RangeSet> {
        match &self.child {
            Child::Process(files) => files.pages_in(range).ok(),
            #[cfg(test)]
            Child::Assumed { resident, .. } => Some(resident.clone()),
        }
    }

    /// Whether the library has run in the child, by the page of identity at this address.
    pub(super) fn has_run_library(&self, page: u64) -> bool {
        match &self.child {
            Child::Process(files) => {
                let mut word = [0; 8];
                let at = page + identity::HAS_RUN as u64 * 8;
                files.memory.read(at, &mut word).is_ok() && word != [0; 8]
            }
            #[cfg(test)]
            Child::Assumed { has_run, .. } => *has_run,
        }
    }
}
