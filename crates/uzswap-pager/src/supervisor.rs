//! Starts a program under the pager and waits for its end.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::doctor::{self, Finding};
use crate::fault::{Workers, count_of_workers};
use crate::messages::{Messages, log};
use crate::monitor::sampler::Sampler;
use crate::policy::recompress::Density;
use crate::reclaim::evictor::Evictor;
use crate::run_dir::RunDir;
use crate::sched::priorities::Priorities;
use crate::store::PageStore;
use crate::store::writeback::{WriteBack, WriteBackOptions};
use crate::telemetry::metrics::{self, MetricsAddress, MetricsSocket};
use crate::telemetry::socket_server::Answerer;
use crate::telemetry::status::{self, Reporter};
use crate::{Pager, RunReport, too_many_files};
use uzswap::backing::BackingError;
use uzswap::trace::{Recorder, TraceAbout, TraceError};
use uzswap::zswap::{BuildError, Zswap, ZswapOptions};
use uzswap_preload::LIBRARY;
use uzswap_preload::protocol::{LIBRARY_NAME, SOCKET_VARIABLE};
use uzswap_sys::foreign;
use uzswap_sys::inherited::Inherited;
use uzswap_sys::process;
use uzswap_sys::signals::{self, SignalNumber};
use uzswap_sys::spawn;
use uzswap_sys::wait::{self, Waiter};

/// How a program is run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Resident anonymous memory of the program and its children, and the pool, in bytes.
    pub limit_bytes: u64,
    /// What the pool is made of. Its second compressor, if it has one, compresses pages once the
    /// pool leaves programs too little.
    pub store: ZswapOptions,
    /// Where pages are written back to.
    pub write_back: Option<WriteBackOptions>,
    /// The file for a trace of the store's operations, and the trace's description of itself.
    pub record: Option<(PathBuf, TraceAbout)>,
    /// How much of all processors the supervisor's threads may take before others while threads
    /// wait for one, in percent.
    pub cpu_share_percent: u8,
    /// No warnings.
    pub quiet: bool,
    /// Where the run answers Prometheus, if it is to.
    pub metrics: Option<MetricsAddress>,
}

/// Why a program was not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It cannot be started.
    #[error("cannot run {program}")]
    Program {
        /// As it was given.
        program: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The supervisor cannot be set up.
    #[error("cannot {what}")]
    Setup {
        /// What was tried.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// There is no place for its metrics.
    #[error("cannot listen on --metrics {address}")]
    Metrics {
        /// As it was given.
        address: MetricsAddress,
        /// The kernel's error; `AlreadyExists` for a file that is no socket.
        source: io::Error,
    },
    /// The machine does not allow it.
    #[error("this machine does not allow `uzswap run`\n{}", advice(.0))]
    Machine(Vec<Finding>),
    /// There is no library to put into programs.
    #[error(
        "`uzswap run` does not support this processor: the preload library is built for x86-64 \
             only"
    )]
    Processor,
    /// There is no file to write pages back to.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// There is no store of these options.
    #[error(transparent)]
    Store(#[from] BuildError),
    /// There is no trace to record to.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The supervisor failed, and its programs end with it.
    #[error("{reason}; the program was ended")]
    Failed {
        /// Why.
        reason: String,
    },
}

/// The missing features, and the commands that would allow them.
fn advice(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { topic, found, means, fix, .. } in findings {
        text += &format!("  {topic}: {found}; {means}\n");
        fix.iter().for_each(|command| text += &format!("      # {command}\n"));
    }
    text + "`uzswap doctor` reports every finding"
}

fn setup<T>(what: &'static str, result: io::Result<T>) -> Result<T, RunError> {
    result.map_err(|source| {
        // Its programs run already while the last parts are set up, and may have taken them.
        let source = match source.raw_os_error() {
            Some(libc::EMFILE) => io::Error::other(too_many_files(&source)),
            _ => source,
        };
        RunError::Setup { what, source }
    })
}

/// Begins the trace of what is done to the store.
fn start_recorder(
    ((path, about), file): (&(PathBuf, TraceAbout), File),
) -> Result<Recorder, TraceError> {
    Recorder::begin(path, file, about, |error| {
        log(&format!("{error}; the recording ends here, the program continues"));
    })
}

/// Opens the store, and the file behind it.
fn open_store(options: &RunOptions, recorder: Option<Recorder>) -> Result<PageStore, RunError> {
    let (zswap, write_back) = match &options.write_back {
        None => (Zswap::new(options.store)?, None),
        Some(write_back) => {
            let (write_back, file) =
                WriteBack::open(write_back, options.limit_bytes, options.quiet)?;
            (Zswap::with_backing(options.store, file)?, Some(write_back))
        }
    };
    let density = options.store.dense.map(|_| Density::new());
    Ok(PageStore::new(zswap, write_back, density, recorder))
}

/// The state that the supervisor's threads share, before any of them runs.
fn new_pager(
    options: &RunOptions,
    recorder: Option<Recorder>,
    socket: PathBuf,
) -> Result<Arc<Pager>, RunError> {
    let store = open_store(options, recorder)?;
    let sched = Priorities::new(count_of_workers(), options.cpu_share_percent);
    let pager = Pager::new(options.limit_bytes, store, sched, socket, options.quiet);
    Ok(Arc::new(setup("create an eventfd", pager)?))
}

/// Runs a command with its arguments under a limit, to its end and that of all processes that it
/// has started; how it ended, and what was used.
///
/// # Errors
///
/// [`RunError`].
pub fn run(argv: &[OsString], options: &RunOptions) -> Result<(ExitStatus, RunReport), RunError> {
    if LIBRARY.is_empty() {
        return Err(RunError::Processor);
    }
    let inherited = Inherited::take(allow_memory());
    doctor::what_run_needs().map_err(RunError::Machine)?;
    // The file may be a pipe that nobody reads: open it before signals are held back.
    let trace = options.record.as_ref().map(|(path, _)| Recorder::make_file(path)).transpose()?;
    let metrics_socket = options.metrics.as_ref().map(MetricsSocket::listen).transpose()?;
    let folder = setup("create a folder for the preload library", RunDir::new())?;
    let (library, socket) = (folder.preloaded(), folder.socket());
    let listener = setup("listen on the run's socket", folder.listen())?;

    // Before any thread is started.
    let waiter = Waiter::new();
    let _messages = setup("start a thread", Messages::start())?;
    let recorder = options.record.as_ref().zip(trace).map(start_recorder).transpose()?;
    let pager = new_pager(options, recorder, socket.clone())?;
    setup("start a thread", foreign::start())?;
    setup("become the reaper of orphaned processes", wait::adopt_orphans())?;
    let workers = setup("start the fault server", Workers::new(Arc::clone(&pager), listener))?;
    let first = Arc::clone(&workers);
    let server = setup("start a thread", spawn("uzswap-server", move || first.run()))?;
    // The program is loaded while the rest is started.
    let preloads = preloads(&library, &std::env::var_os("LD_PRELOAD").unwrap_or_default());
    let changed = [(SOCKET_VARIABLE, socket.as_os_str()), ("LD_PRELOAD", &preloads)];
    // Before the program: a user who sees it run may query the run.
    let _answerers = start_answerers(&pager, metrics_socket, argv, options, folder.path())?;
    let child = spawn::spawn(argv, &changed, waiter.mask_before(), &inherited);
    let child = child.map_err(|source| RunError::Program {
        program: argv[0].to_string_lossy().into_owned(),
        source,
    });
    allow_many_files();
    allow_processor_time();
    let others = Others::start(&pager, workers, folder.path());
    let others = others.inspect_err(|_| {
        if let Ok(child) = child {
            let _ = signals::send(child as i32, SignalNumber(libc::SIGKILL));
        }
    })?;
    let Others { evictor, sampler } = others;
    let threads = [server, evictor, sampler];
    let mut is_over = || threads.iter().any(JoinHandle::is_finished);
    let mut see_dumped = |pid| pager.await_end_of_space(pid);
    let waited = child.map(|child| waiter.wait(child, &mut see_dumped, &mut is_over));

    pager.stop_all();
    drop(folder); // while they end
    let ended = end_of(threads, matches!(waited, Ok(None)));
    pager.free_released();
    #[cfg(debug_assertions)]
    pager.audit().unwrap_or_else(|error| panic!("the audit of the run: {error}"));
    let trace = pager.store.finish_recording();
    let status = waited?;
    ended?;
    let status = status.ok_or_else(failed)?;
    pager.end_guard();
    Ok((ExitStatus::from_raw(status), pager.report(trace)))
}

/// The threads that a program needs once it runs.
struct Others {
    evictor: JoinHandle<io::Result<()>>,
    sampler: JoinHandle<io::Result<()>>,
}

impl Others {
    fn start(pager: &Arc<Pager>, workers: Arc<Workers>, folder: &Path) -> Result<Others, RunError> {
        let library = setup("open the preload library", File::open(folder.join(LIBRARY_NAME)))?;
        let evictor = Evictor::new(Arc::clone(pager), library);
        let evictor = setup("start a thread", spawn("uzswap-evictor", || evictor.run()))?;
        let sampler = Sampler::new(Arc::clone(pager), workers);
        let sampler = setup("start a thread", spawn("uzswap-sampler", || sampler.run()))?;
        Ok(Others { evictor, sampler })
    }
}

/// Starts the threads that answer queries of the state, audit it, and serve metrics.
fn start_answerers(
    pager: &Arc<Pager>,
    metrics_socket: Option<MetricsSocket>,
    argv: &[OsString],
    options: &RunOptions,
    folder: &Path,
) -> Result<([Answerer; 2], Option<Answerer>), RunError> {
    let metrics_at = metrics_socket.as_ref().map(|socket| socket.address().clone());
    if metrics_at != options.metrics
        && let Some(at) = &metrics_at
    {
        pager.warn(&format!("serving metrics at {at}")); // the kernel has chosen the port
    }
    let metrics_at = metrics_at.map(|at| at.to_string());
    let reporter = Arc::new(Reporter::new(Arc::clone(pager), argv, metrics_at));
    let (state, audited) = (Arc::clone(&reporter), Arc::clone(pager));
    let status = status::serve(folder, move || state.status());
    let status = setup("listen on the run's socket", status)?;
    let audit = status::serve(folder, move || audited.audit_running());
    let audit = setup("listen on the run's socket", audit)?;
    let metrics = metrics_socket.map(|socket| metrics::serve(reporter, socket)).transpose();
    let metrics = setup("start a thread", metrics)?;
    Ok(([status, audit], metrics))
}

/// The results of the threads that were asked to end. Where one ended unasked, others may wait for
/// what it would have done: they are not waited for.
fn end_of(
    threads: impl IntoIterator<Item = JoinHandle<io::Result<()>>>,
    unasked: bool,
) -> Result<(), RunError> {
    for thread in threads {
        if unasked && !thread.is_finished() {
            continue;
        }
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(source)) => return Err(RunError::Setup { what: "serve the programs", source }),
            Err(_) => return Err(failed()), // it has reported why
        }
    }
    Ok(())
}

fn failed() -> RunError {
    RunError::Failed { reason: "the supervisor failed".to_owned() }
}

fn spawn(
    name: &str,
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let work = || {
        process::keep_capabilities_for_programs();
        work()
    };
    thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Allows this process as many open files as it may have: the supervisor has ten for each managed
/// process. What it has started by now keeps its own limit.
fn allow_many_files() {
    const MANY: u64 = 1 << 20; // the kernel's own limit (fs.nr_open), if nobody changed it
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let may_have = |maximum: u64| {
        let limit = Rlimit { current: Some(maximum), maximum: Some(maximum) };
        current.is_none_or(|current| current >= maximum)
            || setrlimit(Resource::Nofile, limit).is_ok()
    };
    // More than is allowed, for root; then what is.
    let _ = may_have(MANY.max(maximum.unwrap_or(0))) || maximum.is_some_and(may_have);
}

/// Allows this process as much processor time as it may have: its programs have limits of their
/// own, and would all end with it.
fn allow_processor_time() {
    raise(Resource::Cpu, getrlimit(Resource::Cpu).maximum);
}

/// Allows this process as much memory as it may have: it may need more than one of its programs.
/// The limits that were changed, for the program to have.
fn allow_memory() -> Vec<(Resource, Rlimit)> {
    let limits = [Resource::As, Resource::Data].map(|resource| (resource, getrlimit(resource)));
    let mut changed = limits.to_vec();
    changed.retain(|(resource, limit)| limit.current.is_some() && raise(*resource, limit.maximum));
    changed
}

/// Takes a limit away, for root, or makes it the largest that is allowed.
fn raise(resource: Resource, maximum: Option<u64>) -> bool {
    setrlimit(resource, Rlimit { current: None, maximum: None })
        .or_else(|_| setrlimit(resource, Rlimit { current: maximum, maximum }))
        .is_ok()
}

/// The libraries to preload: ours, and those that are preloaded anyway, but for that of another run
/// in which this one is: a program has one helper.
fn preloads(library: &Path, others: &OsStr) -> OsString {
    let mut all = library.as_os_str().to_owned();
    for other in others.as_bytes().split(|byte| b": ".contains(byte)) {
        let other = Path::new(OsStr::from_bytes(other));
        if !other.as_os_str().is_empty() && other.file_name() != library.file_name() {
            all.push(":");
            all.push(other);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_one_helper() {
        let preloads = |others| preloads(Path::new("/tmp/a/libours.so"), OsStr::new(others));
        assert_eq!(preloads(""), "/tmp/a/libours.so");
        assert_eq!(preloads("/tmp/b/libours.so:libm.so x.so"), "/tmp/a/libours.so:libm.so:x.so");
    }

    #[test]
    fn nobody_waits_for_those_that_wait_for_a_thread_that_failed() {
        fn park_for_ever() -> io::Result<()> {
            loop {
                thread::park();
            }
        }
        let start = |work: fn() -> io::Result<()>| spawn("a test", work).unwrap();
        let waits = || start(park_for_ever);
        let ends = || start(|| Ok(()));
        let fails = || start(|| Err(io::ErrorKind::NotFound.into()));
        let panics = || start(|| panic!("on purpose"));
        assert!(end_of([ends(), ends()], false).is_ok());
        let failed = panics();
        while !failed.is_finished() {
            thread::yield_now();
        }
        assert!(matches!(end_of([waits(), failed, waits()], true), Err(RunError::Failed { .. })));
        assert!(matches!(end_of([ends(), fails()], false), Err(RunError::Setup { .. })));
        assert!(matches!(end_of([panics(), ends()], false), Err(RunError::Failed { .. })));
    }
}
