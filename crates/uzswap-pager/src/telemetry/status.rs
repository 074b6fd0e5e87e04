//! The state of a run while it runs, and its audit: one JSON document for each connection to the
//! socket `status`, or `audit`, in its folder, for its own user and root.
//!
//! A socket is there only while, or after, a supervisor listens at it: one that refuses is of a
//! supervisor that was killed.

use std::ffi::OsString;
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::Mode;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::telemetry::socket_server::{Answerer, More, Speaker, Verdict};
use crate::{AuditReport, FaultTimes, HeldBack, Pager, PagerCounts, lock, ratio};
use uzswap::zswap::{LatencyCounts, Stats};
use uzswap_sys::held_folder::PREFIX;

/// An answer of a supervisor at a socket of its own.
pub trait Answer: Serialize + DeserializeOwned {
    /// The socket, in the folder of a run.
    const SOCKET: &'static str;

    /// The supervisor's process.
    fn pid(&self) -> u32;
}

impl Answer for RunStatus {
    const SOCKET: &'static str = "status";

    fn pid(&self) -> u32 {
        self.pid
    }
}

impl Answer for AuditReport {
    const SOCKET: &'static str = "audit";

    fn pid(&self) -> u32 {
        self.pid
    }
}

/// Connections that wait to be accepted at most. The thread that accepts them waits for no peer.
pub(crate) const BACKLOG: i32 = 128;

/// The present state of a run. Its parts are taken one after the other while it goes on: their sums
/// are exact only while it stands still.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunStatus {
    /// Of the supervisor.
    pub version: String,
    /// The supervisor's process.
    pub pid: u32,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Since it was started, in seconds.
    pub elapsed_s: f64,
    /// Where its metrics are, if they were asked for.
    pub metrics: Option<String>,
    /// The limit.
    pub limit_bytes: u64,
    /// Usage of the last sample: resident and unmanaged memory, pool and metadata. At most 50 ms
    /// old.
    pub used_bytes: u64,
    /// The most there was at once, as it was sampled.
    pub peak_bytes: u64,
    /// Resident anonymous memory of all programs then, pages of several of them once.
    pub resident_bytes: u64,
    /// Memory of processes without a helper: anonymous, and their part of what is shared.
    pub unmanaged_bytes: u64,
    /// Host pages of the pool.
    pub pool_bytes: u64,
    /// What is known of pages: index, tables, descriptors.
    pub metadata_bytes: u64,
    /// Memory that is held back from programs.
    pub held_back: HeldBack,
    /// Pages in the store. Processes that a fork made share them.
    pub stored_pages: u64,
    /// Stored pages, uncompressed, to the pool; none where it is empty.
    pub ratio: Option<f64>,
    /// Pages in and out since the start.
    pub counts: PagerCounts,
    /// Faults since the start.
    pub faults: FaultTimes,
    /// How many of them took how long, to a sixteenth.
    pub fault_times: LatencyCounts,
    /// Processes with a helper.
    pub processes: Vec<ProcessStatus>,
}

/// A process of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// Its number.
    pub pid: u32,
    /// Its name: `comm` in /proc.
    pub name: String,
    /// Its resident anonymous memory; near the limit its part of what others have too.
    pub resident_bytes: u64,
    /// Its pages in the store; others may have them too.
    pub stored_pages: u64,
    /// Its staged pages, which are resident: the field of JSON keeps its name.
    #[serde(rename = "aside_pages")]
    pub staged_pages: u64,
    /// Its faults that were served, since it was started or forked.
    pub faults: u64,
}

/// Tells the present state.
#[derive(Debug)]
pub(crate) struct Reporter {
    pager: Arc<Pager>,
    command: Vec<String>,
    metrics: Option<String>,
    start: Instant,
}

impl Reporter {
    pub(crate) fn new(pager: Arc<Pager>, argv: &[OsString], metrics: Option<String>) -> Reporter {
        let command = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Reporter { pager, command, metrics, start: Instant::now() }
    }

    /// What the store says of itself.
    pub(crate) fn store(&self) -> Stats {
        self.pager.store.zswap().stats()
    }

    /// The present state.
    pub(crate) fn status(&self) -> RunStatus {
        let pager = &*self.pager;
        let (mut known, mut staging_bytes) = (pager.store.slot_bytes(), 0);
        let mut processes = Vec::new();
        for space in pager.spaces() {
            let space = lock(&space);
            known += space.bytes() as u64;
            staging_bytes += space.staging_bytes();
            processes.extend(space.status());
        }
        // One that has no name any more has just ended.
        processes.retain_mut(|process| {
            let name = fs::read(format!("/proc/{}/comm", process.pid));
            name.is_ok_and(|name| {
                process.name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
                true
            })
        });
        let zswap = pager.store.zswap();
        let counters = zswap.counters();
        let (pool_bytes, stored_pages) = (counters.pool_total_size, counters.stored_pages);
        let of_store = zswap.budget().used_bytes().saturating_sub(pool_bytes);
        let (faults, fault_times) = pager.meter.times_and_counts();
        let figures = pager.account.figures();
        RunStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            command: self.command.clone(),
            elapsed_s: self.start.elapsed().as_secs_f64(),
            metrics: self.metrics.clone(),
            limit_bytes: figures.limit,
            used_bytes: figures.known,
            peak_bytes: pager.account.peak().total,
            resident_bytes: figures.resident,
            unmanaged_bytes: figures.unmanaged,
            pool_bytes,
            metadata_bytes: of_store + known,
            held_back: pager.account.held_back(staging_bytes, known),
            stored_pages,
            ratio: ratio(stored_pages, pool_bytes),
            counts: pager.meter.counts(),
            faults,
            fault_times,
            processes,
        }
    }
}

/// Answers at a socket of a run's folder with the document that `answer` makes, in a thread.
pub(crate) fn serve<T: Answer>(
    folder: &Path,
    answer: impl Fn() -> T + Send + 'static,
) -> io::Result<Answerer> {
    // Under another name until it listens.
    let (unready, ready) = (folder.join("new"), folder.join(T::SOCKET));
    let socket = bind_private(&unready, 0o600)?;
    rustix::net::listen(&socket, BACKLOG)?;
    fs::rename(unready, ready)?;
    Answerer::start(&format!("uzswap-{}", T::SOCKET), socket, Documents { answer, text: None })
}

/// Sends a document to each peer that may have it.
struct Documents<F> {
    answer: F,
    /// All peers of one turn are sent this.
    text: Option<String>,
}

impl<T: Answer, F: Fn() -> T + Send + 'static> Speaker for Documents<F> {
    fn begin_turn(&mut self) {
        self.text = None;
    }

    fn greet(&mut self, peer: BorrowedFd<'_>) -> Verdict {
        let is_allowed = |uid: u32| uid == 0 || uid == own_user();
        if !socket_peercred(peer).is_ok_and(|peer| is_allowed(peer.uid.as_raw())) {
            return Verdict::Close;
        }
        let text = self.text.get_or_insert_with(|| {
            serde_json::to_string(&(self.answer)()).expect("strings and numbers") + "\n"
        });
        Verdict::Reply(text.clone().into_bytes())
    }

    fn hear(&mut self, _heard: &[u8], _more: More) -> Verdict {
        Verdict::Close
    }
}

/// A socket that is bound to `path` with `mode`, of which the umask takes nothing from its user. It
/// does not block, and does not listen yet.
pub(crate) fn bind_private(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let socket = stream_socket()?;
    // The file has the mode of the descriptor from its first instant, but for the umask.
    rustix::fs::fchmod(socket.as_fd(), Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let made = fs::symlink_metadata(path)?.mode() & 0o777;
    if made & 0o600 != 0o600 {
        fs::set_permissions(path, Permissions::from_mode(made | 0o600))?;
    }
    Ok(socket)
}

/// A socket that does not block.
fn stream_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Connects to a unix socket, and waits for nobody: `ConnectionRefused` where nobody listens,
/// `WouldBlock` where too many wait already.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = stream_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Where folders of runs may be, the best one first.
fn places() -> impl Iterator<Item = PathBuf> {
    const OTHERS: [&str; 4] = ["/tmp", "/var/tmp", "/run", "/dev/shm"];
    std::iter::once(std::env::temp_dir()).chain(OTHERS.map(PathBuf::from))
}

/// Where a library can be from which programs are preloaded: it must be allowed to be executed, and
/// LD_PRELOAD is a list with colons or spaces.
pub(crate) fn place_for_library() -> io::Result<PathBuf> {
    use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
    let is_fit = |place: &PathBuf| {
        let has_separator = place.as_os_str().as_encoded_bytes().iter().any(|b| b" :".contains(b));
        let may_execute =
            statvfs(place).is_ok_and(|found| !found.f_flag.contains(StatVfsMountFlags::NOEXEC));
        let may_write = access(place, Access::WRITE_OK).is_ok();
        !has_separator && may_execute && may_write && is_safe_from_others(place)
    };
    let none = || {
        let all: Vec<String> = places().map(|place| place.display().to_string()).collect();
        let all = all.join(", ");
        io::Error::other(format!(
            "no folder of {all} is writable, allows execution and is safe from other users; set \
             TMPDIR to a folder of your own"
        ))
    };
    places().find(is_fit).ok_or_else(none)
}

/// Whether only root and this user can replace files in a folder. Each part of its path belongs to
/// one of them, and is sticky if others may write there.
fn is_safe_from_others(folder: &Path) -> bool {
    const GROUP_AND_OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let is_safe = |part: &Path| {
        fs::metadata(part).is_ok_and(|found| {
            let is_sticky = found.mode() & STICKY != 0;
            [0, own_user()].contains(&found.uid())
                && (is_sticky || found.mode() & GROUP_AND_OTHERS_WRITE == 0)
        })
    };
    fs::canonicalize(folder).is_ok_and(|path| path.ancestors().all(is_safe))
}

/// The places that are there, each once.
pub(crate) fn distinct_places() -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> =
        places().filter_map(|place| fs::canonicalize(place).ok()).collect();
    places.sort();
    places.dedup();
    places
}

/// What may be folders of runs.
pub(crate) fn folders() -> Vec<(PathBuf, Metadata)> {
    let places = distinct_places();
    let entries = places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()))
        .filter_map(|entry| Some((entry.path(), fs::symlink_metadata(entry.path()).ok()?)))
        .filter(|(_, metadata)| metadata.is_dir())
        .collect()
}

pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}
