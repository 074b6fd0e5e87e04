//! What this machine allows, and what that means for `uzswap run`: userfaultfd, the features of the
//! kernel, the settings around them, and the command that would enable what is missing.
//!
//! What can be tried is tried ([`Probes`]); the rest is read from files of the kernel. A
//! [`Report`] is made of the two and of nothing else.

mod files;
mod findings;
mod probes;

use std::path::Path;

use serde::Serialize;

use files::Files;
pub use probes::{Failure, Outcome, Probes};
use uzswap_sys::userfaultfd::{self, Features, Userfaultfd};

/// What `run` asks of userfaultfd.
pub const RUN_FEATURES: Features = Features(
    Features::EVENT_FORK.0
        | Features::EVENT_REMAP.0
        | Features::EVENT_REMOVE.0
        | Features::EVENT_UNMAP.0
        | Features::MOVE.0
        | Features::THREAD_ID.0
        | Features::WP_UNPOPULATED.0,
);

/// How good a [`Finding`] is for `run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// `run` works; there is something to know.
    Note,
    /// `run` cannot work.
    Missing,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject of the check.
    pub topic: &'static str,
    /// How good it is.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What it means for `run`.
    pub means: String,
    /// Commands that would change it, for root if they need it; each is enough unless `means` says
    /// otherwise.
    pub fix: Vec<String>,
}

/// All that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether `run` can work.
    pub works: bool,
    /// The verdict in a sentence, with the reasons.
    pub verdict: String,
    /// In the order in which they matter.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Tries and reads everything on this machine; takes some milliseconds. It forks a process that
    /// ends at once and starts a shell that does nothing.
    pub fn of_this_machine() -> Report {
        let mut all = findings::all(&Files::below(Path::new("/")), &Probes::run());
        all.splice(0..0, findings::strange_proc());
        Report::new(all)
    }

    /// Of the files of the kernel below `root`, and of what was tried.
    pub fn of(root: &Path, probes: &Probes) -> Report {
        Report::new(findings::all(&Files::below(root), probes))
    }

    fn new(findings: Vec<Finding>) -> Report {
        let missing: Vec<&str> = findings
            .iter()
            .filter(|finding| finding.state == State::Missing)
            .map(|finding| finding.topic)
            .collect();
        let works = missing.is_empty();
        let verdict = match works {
            true => "uzswap run works here".to_owned(),
            false => format!("uzswap run does not work here: no {}", missing.join(", no ")),
        };
        Report { works, verdict, findings }
    }
}

/// Bytes that programs can get from this machine or the memory cgroup of this process:
/// `MemAvailable`, or the rest below the cgroup's limit without inactive files. `None` if the
/// kernel does not tell.
pub fn available_memory() -> Option<u64> {
    available_memory_of(Path::new("/"))
}

/// As that, of the files of the kernel below `root`.
pub fn available_memory_of(root: &Path) -> Option<u64> {
    Files::below(root).available_memory()
}

/// Whether `run` can work here, at the price of four system calls and three small files if it can.
///
/// # Errors
///
/// The missing parts, from a whole [`Report`].
pub fn what_run_needs() -> Result<(), Vec<Finding>> {
    let open_files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if let Some(finding) = findings::few_open_files(open_files.maximum) {
        return Err(vec![finding]);
    }
    let little = findings::MEMORY_LIMITS.iter().find_map(|limit| {
        findings::little_memory(limit, rustix::process::getrlimit(limit.resource).maximum)
    });
    if let Some(finding) = little {
        return Err(vec![finding]);
    }
    let fd = userfaultfd::create(false);
    let has_features = fd.and_then(|fd| Userfaultfd::from_fd(fd).api(RUN_FEATURES)).is_ok();
    let files = Files::below(Path::new("/"));
    if let Some(finding) = findings::strange_proc() {
        return Err(vec![finding]);
    }
    let may_fault = has_features && (files.is_full_mode_for_all() || files.programs_may_trace());
    if may_fault && files.may_read_programs() {
        return Ok(());
    }
    let mut findings = Report::of_this_machine().findings;
    findings.retain(|finding| finding.state == State::Missing);
    if findings.is_empty() { Ok(()) } else { Err(findings) }
}
