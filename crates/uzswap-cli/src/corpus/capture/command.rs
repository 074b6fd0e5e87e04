//! Captures a command: runs it, follows its resident memory, and stops it at its exit.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use procfs::process::Process;

use super::process::{self, Frozen};
use super::touches::Touches;
use super::unmanaged::{UncountedSurvey, unmanaged};
use super::{CaptureAt, CaptureError, CaptureOptions};
use crate::corpus::observed::{Observed, Unmanaged};
use crate::corpus::page_set::{About, PageSetWriter, Place};
use crate::corpus::sample::SamplePlan;
use uzswap::page::PAGE_SIZE;
use uzswap_sys::inherited::Inherited;
use uzswap_sys::ptrace::{self, Event};
use uzswap_sys::signals::{self, SignalNumber, SignalsHeld};

/// How often the command's memory is looked at. Each look is a few reads of /proc.
const LOOK_EVERY: Duration = Duration::from_millis(8);

/// How often its signals are passed on and its end is noticed: seldom while nothing happens, often
/// after something did. A shell that starts programs stops several times for each.
const POLL_IDLE: Duration = Duration::from_millis(2);
const POLL_BUSY: Duration = Duration::from_micros(50);

/// The kernel counts the pages of several processes for one part in so many of the time. A process
/// that ends has them counted more often, because a tree may be largest then.
const COUNT_PART: u32 = 20;
const COUNT_PART_AT_EXIT: u32 = 4;

/// Time between the signal that ends a command and SIGKILL.
const END_WAIT: Duration = Duration::from_secs(1);

/// Growth that is worth a new capture: a tenth, and at least this many pages.
const GROWTH_PAGES_MIN: u64 = 1 << 8; // 1 MiB

pub(super) fn capture(
    argv: &[OsString],
    at: CaptureAt,
    out: Place<'_>,
    options: &CaptureOptions,
) -> Result<About, CaptureError> {
    let signals = SignalsHeld::new();
    // Made first and kept: a command is not run for an output that cannot be written.
    let first_writer = PageSetWriter::create(out)?;
    let (mut running, started) = Running::start(argv, options, &signals)?;
    let mut taker = Taker {
        out,
        tree: options.tree,
        plan: options.sample,
        signals: &signals,
        spare: Some(first_writer),
        kept: None,
        peak_pages: 0,
        counted: None,
        touches: options.touches.map(|_| Touches::new()),
        uncounted: UncountedSurvey::default(),
    };
    let mut notes = Vec::new();
    // Whether the moment that was asked for came, which ended the command.
    let mut on_time = false;
    let after = match at {
        CaptureAt::After(wait) => Some(wait),
        CaptureAt::Peak | CaptureAt::Exit => None,
    };
    // Without the exit stop there is only what polling sees.
    let polls = at == CaptureAt::Peak || (at == CaptureAt::Exit && !running.is_traced());
    if let Some(reason) = &running.untraced {
        notes.push(format!(
            "the command was not traced ({reason}): its memory was sampled every {} ms, and pages \
             that it had at its exit may be missing",
            LOOK_EVERY.as_millis()
        ));
    }
    let mut looked = started;
    let mut pause = POLL_BUSY;
    let status = loop {
        if let Some(signal) = signals.pending() {
            return Err(CaptureError::Interrupted(signal)); // dropping `running` ends the command
        }
        match running.next_event() {
            Some((pid, Event::AtExit)) => {
                taker.at_exit(&mut running, pid, at)?;
                running.resume(pid);
                pause = POLL_BUSY;
                continue;
            }
            Some((pid, Event::Ended(status))) if pid == running.pid => break status,
            Some(_) => {
                pause = POLL_BUSY;
                continue;
            }
            None => {}
        }
        if after.is_some_and(|wait| started.elapsed() >= wait) {
            taker.take(&mut running)?;
            if taker.kept.is_some() {
                on_time = true;
                notes.push(format!(
                    "captured after {:.3} s; the command was ended then",
                    started.elapsed().as_secs_f64()
                ));
                break running.end();
            }
        }
        if polls && looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            taker.look(&mut running, COUNT_PART)?;
        }
        taker.watch(running.pid);
        thread::sleep(pause);
        pause = (pause * 2).min(POLL_IDLE);
    };
    running.let_go();
    drop(running);
    taker.finish(argv, at, (!on_time).then_some(status), notes)
}

/// The command, and whatever is traced with it. Dropped before its end, it is ended.
struct Running {
    pid: i32,
    /// Processes below the command that are traced.
    others: Vec<i32>,
    /// Why the command is not traced, if it is not.
    untraced: Option<String>,
    /// Processes at their exit stop.
    at_exit: Vec<i32>,
    ended: Option<ExitStatus>,
    /// Events that came while something else was waited for.
    backlog: Vec<(i32, Event)>,
}

impl Running {
    fn start(
        argv: &[OsString],
        options: &CaptureOptions,
        signals: &SignalsHeld,
    ) -> Result<(Running, Instant), CaptureError> {
        let (program, arguments) = argv.split_first().ok_or(CaptureError::NoCommand)?;
        let mut command = Command::new(program);
        if options.stdout_to_stderr {
            command.stdout(io::stderr());
        }
        let child = ptrace::spawn(
            command.args(arguments),
            signals.mask_before(),
            Inherited::take(Vec::new()),
            !options.untraced,
        )
        .map_err(|error| CaptureError::Command {
            program: program.to_string_lossy().into_owned(),
            error: found_nowhere(program, error),
        })?;
        let started = Instant::now();
        let untraced = if options.untraced {
            Some("as asked for".to_owned())
        } else {
            ptrace::attach(&child, options.tree).err().map(|error| error.to_string())
        };
        let running = Running {
            pid: child.id() as i32, // a pid_t that std gives as u32
            others: Vec::new(),
            untraced,
            at_exit: Vec::new(),
            ended: None,
            backlog: Vec::new(),
        };
        Ok((running, started))
    }

    fn is_traced(&self) -> bool {
        self.untraced.is_none()
    }

    /// The next thing that happened, if anything did.
    fn next_event(&mut self) -> Option<(i32, Event)> {
        if !self.backlog.is_empty() {
            return Some(self.backlog.remove(0));
        }
        self.poll()
    }

    /// Collects what happens for later: a traced process goes nowhere unless it is polled.
    fn pump(&mut self) {
        while let Some(event) = self.poll() {
            self.backlog.push(event);
        }
    }

    fn poll(&mut self) -> Option<(i32, Event)> {
        if self.ended.is_some() {
            return None;
        }
        for pid in std::iter::once(self.pid).chain(self.others.clone()) {
            let event = match ptrace::poll(pid) {
                Ok(None) => continue,
                Ok(Some(event)) => event,
                // Waited for by somebody else: where SIGCHLD is ignored, by the kernel.
                Err(_) => Event::Ended(ExitStatus::default()),
            };
            match event {
                Event::Forked(new) => self.others.push(new),
                Event::AtExit => self.at_exit.push(pid),
                Event::Ended(status) if pid == self.pid => self.ended = Some(status),
                Event::Ended(_) => self.others.retain(|other| *other != pid),
                Event::Handled => {}
            }
            return Some((pid, event));
        }
        None
    }

    fn resume(&mut self, pid: i32) {
        self.at_exit.retain(|at_exit| *at_exit != pid);
        let _ = ptrace::resume(pid); // it is gone, at worst
    }

    /// Ends the command, kindly first; its status.
    fn end(&mut self) -> ExitStatus {
        let mut all = Vec::new();
        for signal in [libc::SIGTERM, libc::SIGKILL] {
            // After the signal, a shell that ignores it starts the next program of its loop. Where
            // the command is gone, those it had are known from before.
            let new = process::tree(self.pid, &mut Vec::new());
            all.extend(new.into_iter().filter(|pid| !all.contains(pid)).collect::<Vec<i32>>());
            // Processes below it first: their parent may be gone after its signal.
            for &pid in all.iter().rev() {
                let _ = signals::send(pid, SignalNumber(signal));
                let _ = signals::send(pid, SignalNumber(libc::SIGCONT));
            }
            let since = Instant::now();
            while self.ended.is_none() && (signal == libc::SIGKILL || since.elapsed() < END_WAIT) {
                self.pump();
                self.backlog.clear();
                for pid in std::mem::take(&mut self.at_exit) {
                    let _ = ptrace::resume(pid);
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        self.ended.unwrap_or_default()
    }

    /// Stops tracing what the command left behind, which runs on.
    fn let_go(&mut self) {
        for pid in std::mem::take(&mut self.others) {
            let _ = ptrace::detach(pid); // it is gone, at worst
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.end();
        }
        self.let_go();
    }
}

/// Takes captures and keeps the largest.
struct Taker<'a> {
    out: Place<'a>,
    tree: bool,
    plan: SamplePlan,
    signals: &'a SignalsHeld,
    /// A writer without pages.
    spare: Option<PageSetWriter>,
    kept: Option<Kept>,
    /// The most resident anonymous pages seen.
    peak_pages: u64,
    /// Start and length of the last count of pages that processes may share.
    counted: Option<(Instant, Duration)>,
    /// Samples the memory that is touched, if that was asked for.
    touches: Option<Touches>,
    /// Memory that is not anonymous, sampled with the touches.
    uncounted: UncountedSurvey,
}

struct Kept {
    writer: PageSetWriter,
    notes: Vec<String>,
    /// Programs that `run` cannot manage.
    unmanaged: Vec<Unmanaged>,
    /// Resident anonymous pages when it was taken.
    resident_pages: u64,
}

impl Taker<'_> {
    /// Ends a window of touched pages that is over.
    fn watch(&mut self, pid: i32) {
        if let Some(touches) = &mut self.touches
            && touches.is_due()
        {
            let pids = process::processes(pid, self.tree, &mut Vec::new());
            self.uncounted.look(&pids);
            touches.turn(&pids);
        }
    }

    /// Captures if the memory has grown enough since the last capture.
    fn look(&mut self, running: &mut Running, part: u32) -> Result<(), CaptureError> {
        let Some(resident) = self.resident(running.pid, part) else { return Ok(()) };
        self.peak_pages = self.peak_pages.max(resident);
        let worth = match &self.kept {
            Some(kept) => {
                let growth = (kept.resident_pages / 10).max(GROWTH_PAGES_MIN);
                kept.resident_pages + growth
            }
            // Traced, it is seen at its exit whatever its size is.
            None if running.is_traced() => GROWTH_PAGES_MIN,
            None => 1,
        };
        if resident >= worth { self.take(running) } else { Ok(()) }
    }

    /// The last look at a process that is about to end.
    fn at_exit(
        &mut self,
        running: &mut Running,
        pid: i32,
        at: CaptureAt,
    ) -> Result<(), CaptureError> {
        if pid != running.pid {
            return match at {
                CaptureAt::Peak => self.look(running, COUNT_PART_AT_EXIT),
                CaptureAt::Exit | CaptureAt::After(_) => Ok(()),
            };
        }
        let resident = self.resident(pid, 0).unwrap_or(0);
        self.peak_pages = self.peak_pages.max(resident);
        if at == CaptureAt::Peak {
            // The kernel's own record of the peak, which polling may have missed.
            if !self.tree {
                self.peak_pages = self.peak_pages.max(recorded_peak(pid).unwrap_or(0));
            }
            if self.kept.as_ref().is_some_and(|kept| kept.resident_pages > resident) {
                return Ok(());
            }
        }
        self.take(running)
    }

    /// Captures now. A process that is gone by then is no error: an earlier capture stays.
    fn take(&mut self, running: &mut Running) -> Result<(), CaptureError> {
        let mut writer = match self.spare.take() {
            Some(writer) => writer,
            None => PageSetWriter::create(self.out)?,
        };
        let mut notes = Vec::new();
        let pid = running.pid;
        if let Some(touches) = &mut self.touches {
            let pids = process::processes(pid, self.tree, &mut Vec::new());
            self.uncounted.look(&pids);
            touches.end(&pids);
        }
        let frozen = Frozen::stop(pid, self.tree, &mut notes, &mut || running.pump());
        let taken = frozen.and_then(|frozen| {
            let resident_pages = self.resident(pid, 0).unwrap_or(0);
            let pids = process::processes(pid, self.tree, &mut notes);
            let unmanaged = unmanaged(&pids, pages_of);
            process::read_all(&pids, self.plan, &mut writer, self.signals, &mut notes)?;
            drop(frozen);
            Ok((resident_pages, unmanaged))
        });
        match taken {
            Ok((resident_pages, unmanaged)) if writer.page_count() > 0 => {
                self.peak_pages = self.peak_pages.max(resident_pages);
                self.kept = Some(Kept { writer, notes, unmanaged, resident_pages });
                Ok(())
            }
            Ok(_) | Err(CaptureError::Gone { .. } | CaptureError::Ended { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Resident anonymous pages of the process or the tree, each once. To count those of several
    /// processes, the kernel walks them all. `None` where that would take more than one `part` in
    /// so many of the time since the last count.
    fn resident(&mut self, pid: i32, part: u32) -> Option<u64> {
        let pids = process::processes(pid, self.tree, &mut Vec::new());
        if let [one] = pids[..] {
            return Some(resident_anonymous(one).unwrap_or(0));
        }
        if self.counted.is_some_and(|(at, took)| at.elapsed() < took * part) {
            return None;
        }
        let start = Instant::now();
        let pages = pids.into_iter().map(pages_of).sum();
        self.counted = Some((start, start.elapsed()));
        Some(pages)
    }

    /// Completes the page set of the largest capture. `ended` is the command's status if it ended
    /// by itself.
    fn finish(
        self,
        argv: &[OsString],
        at: CaptureAt,
        ended: Option<ExitStatus>,
        mut notes: Vec<String>,
    ) -> Result<About, CaptureError> {
        let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
        let origin = format!("command {}", words.join(" "));
        let Some(mut kept) = self.kept else { return Err(CaptureError::Unseen { origin }) };
        if let (CaptureAt::After(wait), Some(_)) = (at, ended) {
            notes.push(format!("the command ended before {wait:?}: captured at its exit"));
        }
        if at == CaptureAt::Peak {
            let (pages, peak) = (kept.writer.of_pages(), self.peak_pages.max(1));
            let percent = (100.0 * pages as f64 / peak as f64).min(100.0);
            kept.writer.set_peak(peak);
            notes.push(format!("captured at {percent:.0} % of the peak of {peak} resident pages"));
        }
        notes.extend(ended.map(ended_with));
        notes.extend(kept.notes);
        let windows = self.touches.map_or(Vec::new(), Touches::into_windows);
        let (uncounted, unmanaged) = (self.uncounted.peak(), kept.unmanaged);
        let observed = Observed { windows, uncounted, unmanaged };
        Ok(About { observed, ..super::finish(kept.writer, origin, notes)? })
    }
}

/// Anonymous pages of a process, of those that others have as well its part. Where the kernel does
/// not count parts, all of them.
pub(super) fn pages_of(pid: i32) -> u64 {
    part_of_anonymous(pid).or_else(|| resident_anonymous(pid)).unwrap_or(0)
}

fn resident_anonymous(pid: i32) -> Option<u64> {
    let memory = Process::new(pid).and_then(|process| process.statm()).ok()?;
    Some(memory.resident.saturating_sub(memory.shared))
}

/// The part of a process in anonymous pages that it may share with others. In pages.
fn part_of_anonymous(pid: i32) -> Option<u64> {
    let rollup = Process::new(pid).and_then(|process| process.smaps_rollup()).ok()?;
    let all = rollup.memory_map_rollup.0.first()?;
    Some(all.extension.map.get("Pss_Anon")? / PAGE_SIZE as u64) // procfs gives bytes
}

/// The peak that the kernel keeps (VmHWM), less the file pages of now: about the anonymous peak.
fn recorded_peak(pid: i32) -> Option<u64> {
    let process = Process::new(pid).ok()?;
    let peak_kib = process.status().ok()?.vmhwm?;
    let shared = process.statm().ok()?.shared;
    Some((peak_kib * 1024 / PAGE_SIZE as u64).saturating_sub(shared))
}

fn ended_with(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("the command ended with exit status {code}"),
        (None, Some(signal)) => format!("the command was ended by {}", SignalNumber(signal)),
        (None, None) => format!("the command ended: {status}"),
    }
}

/// A program that is in no directory of PATH is not found, even if one of them may not be looked
/// into, for which the kernel says that permission was denied.
fn found_nowhere(program: &OsStr, error: io::Error) -> io::Error {
    let is_name = !program.as_bytes().contains(&b'/');
    if error.raw_os_error() != Some(libc::EACCES) || !is_name {
        return error;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join(program).exists()) {
        return error;
    }
    io::Error::from_raw_os_error(libc::ENOENT)
}

/// Whether the error of starting a command is of the command line and not of the machine.
pub(super) fn is_wrong_program(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || matches!(error.raw_os_error(), Some(libc::ENOEXEC | libc::EISDIR))
}
