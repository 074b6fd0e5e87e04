//! Memory of captured processes that `uzswap run` could not evict.

use std::fs;

use procfs::process::Process;

use crate::corpus::observed::Unmanaged;
use uzswap::page::PAGE_SIZE;
use uzswap_pager::{Uncounted, UncountedPeak, why_unmanageable};

/// The programs of some processes that `run` cannot manage, each once, with their anonymous memory
/// by `pages_of`.
pub(super) fn unmanaged(pids: &[i32], pages_of: impl Fn(i32) -> u64) -> Vec<Unmanaged> {
    let mut all: Vec<Unmanaged> = Vec::new();
    for &pid in pids {
        let Some(why) = why_unmanageable(pid.unsigned_abs()) else { continue };
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let program = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = pages_of(pid) * PAGE_SIZE as u64;
        match all.iter_mut().find(|other| other.program == program && other.why == why) {
            Some(other) => other.bytes += bytes,
            None => all.push(Unmanaged { program, why: why.to_owned(), bytes }),
        }
    }
    all
}

/// Growth that is worth a new survey: a 64th.
const GROWN_PART: u64 = 64;

/// The memory that `run` neither counts nor evicts, over time.
#[derive(Debug, Default)]
pub(super) struct UncountedSurvey {
    peak: UncountedPeak,
    /// Bytes that were resident and not anonymous at the last survey.
    mapped_bytes: u64,
}

impl UncountedSurvey {
    /// Looks at some processes, where there may be more of it than before.
    pub(super) fn look(&mut self, pids: &[i32]) {
        let shared = |pid| Process::new(pid).and_then(|it| it.statm()).map_or(0, |it| it.shared);
        let mapped: u64 = pids.iter().map(|&pid| shared(pid) * PAGE_SIZE as u64).sum();
        if mapped > self.mapped_bytes + self.mapped_bytes / GROWN_PART {
            self.mapped_bytes = mapped;
            self.peak.survey(pids.iter().map(|pid| pid.unsigned_abs()));
        }
    }

    /// The most that there was.
    pub(super) fn peak(&self) -> Uncounted {
        self.peak.get()
    }
}
