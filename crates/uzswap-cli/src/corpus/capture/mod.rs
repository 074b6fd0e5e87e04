//! Captures the resident anonymous pages of processes in a page set.
//!
//! ```text
//!  /proc/PID/maps --> private mappings --> pagemap: present, anonymous --> /proc/PID/mem --> set
//!                                            ^                                 |
//!                                            '------ looked at again after ----'
//! ```
//!
//! - C1: a page that was not read is not in the set; nothing is made up for it.
//! - C2: a process that was stopped runs again, and a command that was started has ended, whatever
//!   the outcome. A signal that ends this process is acted on after that.
//! - C3: nothing is under the output's name unless the capture was complete.

mod command;
mod file;
mod process;
mod residency;
mod sink;
mod touches;
mod unmanaged;
mod visit;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::corpus::observed::Observed;
use crate::corpus::page_set::{About, PageRange, PageSetError, PageSetWriter, Place};
use crate::corpus::sample::SamplePlan;
use crate::corpus::workload::Workload;
use unmanaged::{UncountedSurvey, unmanaged};
use uzswap::page::PAGE_SIZE;
use uzswap_sys::escape::one_line;
use uzswap_sys::signals::{SignalNumber, SignalsHeld};
pub use visit::{Visited, clear_touches, processes_of_system, processes_of_tree, touches, visit};

/// Bytes of a workload written between two looks for signals.
const WORKLOAD_CHUNK_BYTES: usize = 1 << 20;

/// What to capture of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureOptions {
    /// How much of the memory to read.
    pub sample: SamplePlan,
    /// Its children and their children too. A page that several of them share since a fork is
    /// captured once for each.
    pub tree: bool,
    /// Stop the process while its pages are read, so that they are of one moment.
    pub freeze: bool,
    /// Do not trace a command that is run, for one that traces others itself or that gains rights
    /// when it starts. Memory at its exit is then seen by polling only.
    pub untraced: bool,
    /// Sample the memory that the processes touch, too: those of a command while it runs, a process
    /// for this long before its capture.
    pub touches: Option<Duration>,
    /// A command's standard output goes to our standard error: ours carries results only.
    pub stdout_to_stderr: bool,
}

/// When to capture a command that is run for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureAt {
    /// When it has most resident anonymous memory: looked at every 10 ms, captured whenever it has
    /// grown by 10 %, and a last time when it exits. The largest capture is kept.
    Peak,
    /// When it exits, just before its memory goes.
    Exit,
    /// This long after it was started; it is ended then. When it exits before, at its exit.
    After(Duration),
}

/// Why nothing was captured. The message has the kernel's error in it: there is no chain of
/// sources to print after it.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The page set was not written.
    #[error(transparent)]
    Output(#[from] PageSetError),
    /// No such process.
    #[error("no process with PID {pid}")]
    Gone {
        /// Its id.
        pid: i32,
    },
    /// The process is not ours to look into.
    #[error(
        "cannot read {what} of process {pid}: {error}; this needs the right to ptrace it: run as \
         the same user, or with CAP_SYS_PTRACE (as root), and see kernel.yama.ptrace_scope"
    )]
    NoPermission {
        /// Its id.
        pid: i32,
        /// Which file of /proc.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// A kernel thread has no memory of its own.
    #[error(
        "process {pid} ({}) is a kernel thread: it has no address space to capture",
        one_line(name)
    )]
    KernelThread {
        /// Its id.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// The process has ended and its parent has not waited for it yet.
    #[error("process {pid} ({}) is a zombie: it has ended and its memory is gone", one_line(name))]
    Zombie {
        /// Its id.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// The process ended before the first page was read.
    #[error("process {pid} ended before any of its pages was read")]
    Ended {
        /// Its id.
        pid: i32,
    },
    /// The command ended before the first look at it.
    #[error("{origin} ended before the first sample of its memory")]
    Unseen {
        /// The command.
        origin: String,
    },
    /// There is nothing to capture.
    #[error("{origin} has no resident anonymous pages")]
    NoPages {
        /// What was looked at.
        origin: String,
    },
    /// Something else went wrong with the process.
    #[error("cannot read {what} of process {pid}: {error}")]
    Process {
        /// Its id.
        pid: i32,
        /// Which file of /proc.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// The command line to run is empty.
    #[error("give a command to run")]
    NoCommand,
    /// The command does not start.
    #[error("cannot run '{}': {error}", one_line(program))]
    Command {
        /// The program.
        program: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The input file does not read.
    #[error("cannot read {}: {error}", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The input is not something to take pages from.
    #[error("{} {reason}", path.display())]
    BadInput {
        /// The file.
        path: PathBuf,
        /// The fault, as a continuation of its name.
        reason: String,
    },
    /// The core dump is truncated or malformed.
    #[error("{} is a damaged core dump: {reason}", path.display())]
    BadCore {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A signal asked this process to end.
    #[error("interrupted by {0}; nothing was kept")]
    Interrupted(SignalNumber),
}

impl CaptureError {
    /// Whether the machine is the reason (permission, disk, I/O) and not what was asked for.
    pub fn is_machine(&self) -> bool {
        match self {
            CaptureError::Output(error) => error.is_machine(),
            CaptureError::NoPermission { .. }
            | CaptureError::Process { .. }
            | CaptureError::Interrupted(_) => true,
            CaptureError::Command { error, .. } => !command::is_wrong_program(error),
            CaptureError::Input { error, .. } => {
                !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
            }
            _ => false,
        }
    }
}

/// Captures the process `pid`, or the tree below it, into the page set `out`.
///
/// SIGINT, SIGTERM and SIGHUP are held back in this thread until a stopped process runs again and
/// the temporary file is gone.
///
/// # Errors
///
/// [`CaptureError`]. A process that ends while it is read is not an error if any page was read: the
/// notes tell.
pub fn capture_pid<'a>(
    pid: i32,
    out: impl Into<Place<'a>>,
    options: &CaptureOptions,
) -> Result<About, CaptureError> {
    let signals = SignalsHeld::new();
    let mut writer = PageSetWriter::create(out)?;
    let name = process::check(pid)?;
    let mut origin = format!("process {pid} ({})", one_line(&name));
    if options.tree {
        origin.push_str(" and its children");
    }
    let mut observed = Observed::default();
    if let Some(time) = options.touches {
        observed.windows = touches::watch(pid, options.tree, time, &signals)?;
        let pids = process::processes(pid, options.tree, &mut Vec::new());
        let mut survey = UncountedSurvey::default();
        survey.look(&pids);
        observed.uncounted = survey.peak();
        observed.unmanaged = unmanaged(&pids, command::pages_of);
    }
    let notes = process::capture(pid, options, &mut writer, &signals)?;
    Ok(About { observed, ..finish(writer, origin, notes)? })
}

/// Takes a sample of all processes that this one may read, the largest first. Processes
/// that half of `budget` does not reach are left out: pages are read in the other half.
///
/// # Errors
///
/// [`CaptureError::NoPages`] where there is none that it may read; of the output.
pub fn capture_system<'a>(
    out: impl Into<Place<'a>>,
    options: &CaptureOptions,
    budget: Duration,
) -> Result<About, CaptureError> {
    let signals = SignalsHeld::new();
    let mut writer = PageSetWriter::create(out)?;
    let deadline = Instant::now() + budget / 2;
    let notes = process::capture_system(options.sample, deadline, &mut writer, &signals)?;
    finish(writer, "all processes".to_owned(), notes)
}

/// Runs a command and captures it, or the tree below it, into the page set `out`. The command has
/// our standard input, output and error, unless the options say otherwise. The command is always
/// stopped while its pages are read.
///
/// # Errors
///
/// [`CaptureError`]. The command has ended then.
pub fn capture_command<'a>(
    argv: &[OsString],
    at: CaptureAt,
    out: impl Into<Place<'a>>,
    options: &CaptureOptions,
) -> Result<About, CaptureError> {
    command::capture(argv, at, out.into(), options)
}

/// Takes the pages of a file: those of the writable segments if it is an ELF core dump, all of its
/// bytes otherwise. Of a regular file with more pages than `plan` has room for, a sample of them.
///
/// # Errors
///
/// [`CaptureError::Input`], [`CaptureError::BadInput`], [`CaptureError::BadCore`] and
/// [`CaptureError::Output`].
pub fn capture_file<'a>(
    from: &Path,
    out: impl Into<Place<'a>>,
    plan: SamplePlan,
) -> Result<About, CaptureError> {
    file::capture(from, out.into(), plan)
}

/// Whether `path` is an ELF file of type core. An unreadable one is not: reading it says why.
pub fn is_core_dump(path: &Path) -> bool {
    let is_file = fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    is_file && File::open(path).and_then(|file| file::is_core(&file)).unwrap_or(false)
}

/// Takes a sample of a page set, with its origin and time. `None` where `plan` has room for all of
/// its pages, where the set is a sample already, and where `from` is not a regular file.
///
/// # Errors
///
/// As [`capture_file`], and [`CaptureError::Output`] for a side file that does not fit.
pub fn sample_page_set<'a>(
    from: &Path,
    out: impl Into<Place<'a>>,
    plan: SamplePlan,
) -> Result<Option<About>, CaptureError> {
    file::sample_page_set(from, out.into(), plan)
}

/// Takes a smaller sample of a page set, of which `about` is the description: some of its units.
/// `None` where `plan` has room for all of its pages.
///
/// # Errors
///
/// [`CaptureError::Input`], [`CaptureError::Output`], [`CaptureError::Interrupted`].
pub fn thin_page_set<'a>(
    from: &Path,
    about: &About,
    out: impl Into<Place<'a>>,
    plan: SamplePlan,
) -> Result<Option<About>, CaptureError> {
    file::thin(from, about, out.into(), plan)
}

/// Builds a workload, and writes the pages of its heap. Its bytes are the same on any machine.
///
/// # Errors
///
/// [`CaptureError::Interrupted`] and [`CaptureError::Output`].
pub fn capture_workload<'a>(
    workload: Workload,
    seed: u64,
    bytes: usize,
    out: impl Into<Place<'a>>,
) -> Result<About, CaptureError> {
    let signals = SignalsHeld::new();
    let mut writer = PageSetWriter::create(out)?;
    let heap = workload.build(seed, bytes);
    for (name, start, area) in heap.areas() {
        let mut at = start;
        for chunk in area.chunks(WORKLOAD_CHUNK_BYTES) {
            if let Some(signal) = signals.pending() {
                return Err(CaptureError::Interrupted(signal));
            }
            let (whole, over) = chunk.as_chunks::<PAGE_SIZE>();
            let range = |start| PageRange { pid: None, start, pages: 0, name: name.to_owned() };
            writer.push(range(at), whole)?;
            at += whole.as_flattened().len() as u64;
            if !over.is_empty() {
                let mut last = [0; PAGE_SIZE];
                last[..over.len()].copy_from_slice(over);
                writer.push(range(at), &[last])?;
            }
        }
    }
    let origin = format!("workload {workload}, seed {seed}, {bytes} bytes");
    finish(writer, origin, Vec::new())
}

/// Completes the page set; one without pages is an error.
fn finish(
    writer: PageSetWriter,
    origin: String,
    notes: Vec<String>,
) -> Result<About, CaptureError> {
    if writer.page_count() == 0 {
        return Err(CaptureError::NoPages { origin });
    }
    Ok(writer.finish(origin, notes)?)
}
