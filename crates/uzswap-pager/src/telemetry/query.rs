//! Queries runs for their state or their audit, at the sockets in their folders.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::sockopt::socket_peercred;

use crate::telemetry::status::{Answer, RunStatus, connect, folders, own_user};

/// How long runs may take to answer, all of them at once.
const SURVEY_WAIT: Duration = Duration::from_secs(5);

/// How long a single run may take: its user waits for this one.
const RUN_WAIT: Duration = Duration::from_secs(10);

/// From one query of a single run to the next, while the run answers none.
const QUERY_AGAIN: Duration = Duration::from_millis(50);

/// Bytes of an answer at most: a thousand processes take a fiftieth of that.
const ANSWER_MAX: usize = 8 << 20;

/// Runs that are queried at once: each takes a descriptor.
const ASKED_AT_ONCE: usize = 256;

/// The runs of this user. Root is answered by those of all users.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Survey<T = RunStatus> {
    /// The answers of runs, in the order of their process numbers.
    pub runs: Vec<T>,
    /// The process numbers of supervisors that did not answer within 5 s: busy or stopped.
    pub silent: BTreeSet<u32>,
}

/// Why there is no state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// No supervisor has this process number, or it belongs to another user.
    #[error("no run with PID {pid} for this user; 'uzswap top' lists them")]
    NoRun {
        /// The number in the query.
        pid: u32,
    },
    /// The run is there. Its supervisor had no processor time, or a signal stopped it.
    #[error("run {pid} did not answer within {wait_s} s; it is busy or stopped")]
    Silent {
        /// The number of the supervisor.
        pid: u32,
        /// The time that the query took, in seconds.
        wait_s: u64,
    },
    /// A run of an unknown number accepts no connection, and it may be this one.
    #[error("no run with PID {pid} answered, and a run accepts no connection: busy or stopped")]
    Full {
        /// The number in the query.
        pid: u32,
    },
}

/// Queries all runs of this user, side by side, and waits 5 s at most.
pub fn survey<T: Answer>() -> Survey<T> {
    let mut round = Round::connect(T::SOCKET);
    let silent = round.read(Instant::now() + SURVEY_WAIT);
    Survey { runs: round.runs(), silent }
}

/// Queries the run of a supervisor, again and again while that accepts no connection or closes one
/// without an answer, and waits 10 s at most.
///
/// # Errors
///
/// [`NoAnswer`]; at once where there is no such run.
pub fn find_run<T: Answer>(pid: u32) -> Result<T, NoAnswer> {
    find_run_within(pid, RUN_WAIT)
}

fn find_run_within<T: Answer>(pid: u32, wait: Duration) -> Result<T, NoAnswer> {
    let until = Instant::now() + wait;
    loop {
        let mut round = Round::connect(T::SOCKET);
        // A run in another namespace of process numbers has another number here.
        let is_there = round.asked.iter().any(|asked| asked.pid == pid);
        round.asked.retain(|asked| !is_there || asked.pid == pid);
        round.read(until);
        if let Some(run) = round.runs().into_iter().find(|run: &T| run.pid() == pid) {
            return Ok(run);
        }
        if !is_there && !round.is_one_full {
            return Err(NoAnswer::NoRun { pid });
        }
        if Instant::now() + QUERY_AGAIN >= until {
            return Err(match is_there {
                true => NoAnswer::Silent { pid, wait_s: wait.as_secs() },
                false => NoAnswer::Full { pid },
            });
        }
        thread::sleep(QUERY_AGAIN);
    }
}

/// One query of each run.
struct Round {
    asked: Vec<Asked>,
    /// Whether a run has so many connections in its queue that it takes no more.
    is_one_full: bool,
}

impl Round {
    /// Connects to the runs of this user, as root to those of all users.
    fn connect(socket: &str) -> Round {
        let own = own_user();
        let is_asked = |metadata: &Metadata| own == 0 || metadata.uid() == own;
        let folders = folders().into_iter().filter(|(_, metadata)| is_asked(metadata));
        let mut round = Round { asked: Vec::new(), is_one_full: false };
        for (folder, metadata) in folders {
            match Asked::new(&folder.join(socket), metadata.uid()) {
                Ok(asked) => round.asked.push(asked),
                Err(error) => round.is_one_full |= error.kind() == io::ErrorKind::WouldBlock,
            }
            if round.asked.len() == ASKED_AT_ONCE {
                break;
            }
        }
        round
    }

    /// Reads all answers, side by side, until they are complete or it is too late. The process
    /// numbers of the supervisors for which it is too late.
    fn read(&mut self, until: Instant) -> BTreeSet<u32> {
        let mut bytes = vec![0; 64 << 10];
        let mut waiting: Vec<&mut Asked> = self.asked.iter_mut().collect();
        while !waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).expect("a short time");
            let wanted = waiting.iter().map(|asked| PollFd::new(&asked.socket, PollFlags::IN));
            let mut wanted: Vec<PollFd<'_>> = wanted.collect();
            match poll(&mut wanted, Some(&timeout)) {
                Ok(1..) => {}
                Err(Errno::INTR) => continue,
                Ok(0) | Err(_) => break,
            }
            let ready: Vec<bool> = wanted.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut ready = ready.into_iter();
            waiting.retain_mut(|asked| !ready.next().unwrap_or(false) || asked.read(&mut bytes));
        }
        waiting.into_iter().map(|asked| asked.pid).collect()
    }

    /// The complete answers.
    fn runs<T: Answer>(&self) -> Vec<T> {
        let answers = self.asked.iter().filter(|asked| asked.is_complete);
        let mut runs: Vec<T> =
            answers.filter_map(|asked| serde_json::from_slice(&asked.answer).ok()).collect();
        runs.sort_by_key(T::pid);
        runs
    }
}

/// A run that was queried for its state.
struct Asked {
    /// The process that listens: the supervisor.
    pid: u32,
    socket: OwnedFd,
    answer: Vec<u8>,
    is_complete: bool,
}

impl Asked {
    /// Queries at a socket in the folder of `user`. Root and that user answer there; another would
    /// pretend to be one of them.
    fn new(path: &Path, user: u32) -> io::Result<Asked> {
        let socket = connect(path)?;
        let listener = socket_peercred(&socket)?;
        if ![0, user].contains(&listener.uid.as_raw()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let pid = listener.pid.as_raw_nonzero().get().unsigned_abs();
        Ok(Asked { pid, socket, answer: Vec::new(), is_complete: false })
    }

    /// Reads what is there; whether more is to come.
    fn read(&mut self, bytes: &mut [u8]) -> bool {
        match rustix::net::recv(&self.socket, &mut *bytes, RecvFlags::empty()) {
            Ok((0, _)) => {
                self.is_complete = true;
                false
            }
            Ok((count, _)) => {
                self.answer.extend_from_slice(&bytes[..count]);
                self.answer.len() <= ANSWER_MAX
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use uzswap_sys::held_folder::PREFIX;

    /// A folder where this process listens as a supervisor does.
    fn listen() -> (tempfile::TempDir, UnixListener) {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(RunStatus::SOCKET)).unwrap();
        (folder, listener)
    }

    #[test]
    fn a_silent_run_is_there_and_a_closed_query_is_repeated() {
        let pid = std::process::id();
        assert_eq!(find_run::<RunStatus>(pid), Err(NoAnswer::NoRun { pid }));
        let (folder, listener) = listen();
        // The kernel accepts; nobody answers.
        let silent = NoAnswer::Silent { pid, wait_s: 0 };
        assert_eq!(find_run_within::<RunStatus>(pid, QUERY_AGAIN * 2), Err(silent));
        let answering = thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                // The client of the query above has gone; the two next ones are closed.
                if number >= 3 && write!(stream, "{{\"pid\": {pid}}}").is_ok() {
                    return;
                }
            }
        });
        assert_eq!(find_run::<RunStatus>(pid).unwrap().pid, pid);
        answering.join().unwrap();
        drop(folder);
    }
}
