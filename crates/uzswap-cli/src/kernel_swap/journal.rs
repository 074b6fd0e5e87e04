//! The journal: each change of the machine, written to a file before it is made.
//!
//! ```text
//!  /run/uzswap/                    root, 0700
//!    PID-START.journal             root, 0600; locked (flock) while its owner or a restorer has it
//!    PID-START-N/                  what the owner mounts and makes
//! ```
//!
//! A journal is lines of JSON: a header, changes, and the numbers of changes that are undone.
//! Whoever ends without undoing its changes leaves them to its watcher, a process that was started
//! with the journal, or to `uzswap doctor --restore`.

use std::fmt;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::KernelSwapError;
use super::kernel_files::{block_devices, last_disk_sequence, read_setting, write_setting};
use super::restore::{self, Restored};
use super::undo::{self, Outcome, UndoError};
use uzswap_sys::process::start_time;
use uzswap_sys::stderr;
use uzswap_sys::swap::read_into;

/// Where journals are.
pub(super) const FOLDER: &str = "/run/uzswap";

/// The hidden subcommand of a watcher; the path of a journal follows.
pub const WATCHER_COMMAND: &str = "restore-when-ended";

pub(super) const EXTENSION: &str = "journal";

/// The version of the format.
const VERSION: u32 = 1;

/// Tries to make a journal while others remove the folder, which is empty then.
const TRIES: usize = 100;

/// Room in a journal for the number of a zram device.
const NUMBER_BYTES: usize = 16;
const PAGE: u64 = 4096;

/// Whose journal it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) pid: u32,
    /// When the process started, in clock ticks since boot.
    pub(super) start: u64,
    /// /proc/sys/kernel/random/boot_id.
    pub(super) boot: String,
}

/// A change of the machine, with all that is needed to undo it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Change {
    /// A setting of /proc or /sys, without white space around its texts.
    Setting { path: PathBuf, old: String, new: String },
    /// The memory controller, enabled for the children of a cgroup of version 2.
    Controller { cgroup: PathBuf, children: Vec<String> },
    /// A folder.
    Folder { path: PathBuf },
    /// A regular file.
    File { path: PathBuf },
    /// A file system, mounted at a folder of ours.
    Mount { folder: PathBuf },
    /// A loop device of a number of ours, with a file of ours.
    Loop { number: u32, backing: PathBuf },
    /// A zram device is about to be made. The kernel writes its number into the journal.
    NewZram { before: Vec<u32>, last_sequence: u64 },
    /// The device that `change` has made, before it is given its size.
    Zram { change: usize, number: u32, sequence: u64, bytes: u64 },
    /// A swap area that has our UUID in its header, in hexadecimal.
    SwapArea { path: PathBuf, uuid: String },
    /// A memory cgroup.
    Cgroup { folder: PathBuf },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Change(Change),
    Undone(usize),
}

#[derive(Debug)]
struct Entry {
    change: Change,
    is_undone: bool,
    /// Of [`Change::NewZram`]: the number of the device, once the kernel has made it.
    number: Option<u32>,
}

/// A change in a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChangeId(usize);

/// The file, held open and locked.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    path: PathBuf,
    end: u64,
    header: Header,
    entries: Vec<Entry>,
    /// Of the owner: the folder, locked.
    _folder: Option<File>,
}

impl Log {
    /// A new one of this process.
    fn create(folder: &Path) -> Result<Log, KernelSwapError> {
        let pid = std::process::id();
        let header = Header {
            version: VERSION,
            pid,
            start: start_time(pid).unwrap_or(0),
            boot: boot_id().map_err(|error| KernelSwapError::kernel("read boot_id", error))?,
        };
        let path = folder.join(name_of(pid));
        let (locked, file) = make_file(folder, &path)?;
        // The kernel tells the paths of swap areas and mounts without links.
        let path = fs::canonicalize(&path).unwrap_or(path);
        // A restorer that sees it this early finds its owner alive.
        file.lock().map_err(|error| KernelSwapError::on("lock", &path, error))?;
        let folder = Some(locked);
        let mut log = Log { file, path, end: 0, header, entries: Vec::new(), _folder: folder };
        let line = serde_json::to_string(&log.header).expect("strings and numbers");
        log.write(&(line + "\n")).map_err(|error| {
            let _ = fs::remove_file(&log.path); // nothing was changed yet
            KernelSwapError::on("write", &log.path, error)
        })?;
        Ok(log)
    }

    /// Of a file that is open, and locked.
    pub(super) fn parse(file: File, path: &Path) -> Result<Log, KernelSwapError> {
        let cannot_read = |error| KernelSwapError::on("read", path, error);
        let length = file.metadata().map_err(cannot_read)?.len();
        let mut text = String::new();
        (&file).take(length).read_to_string(&mut text).map_err(cannot_read)?;
        // A line without its end was being written: its change was not made.
        let end = text.rfind('\n').map_or(0, |at| at + 1);
        let parsed = match end {
            // Its owner was killed before it wrote the header.
            0 => Ok((Header::default(), Vec::new())),
            end => parse(&text[..end]),
        };
        let (header, entries) =
            parsed.map_err(|reason| KernelSwapError::Damaged { path: path.to_owned(), reason })?;
        file.set_len(end as u64).map_err(|error| KernelSwapError::on("cut", path, error))?;
        let path = path.to_owned();
        Ok(Log { file, path, end: end as u64, header, entries, _folder: None })
    }

    /// Writes at its end, and waits until it is on the disk.
    fn write(&mut self, text: &str) -> io::Result<()> {
        self.file.write_all_at(text.as_bytes(), self.end)?;
        self.file.sync_data()?;
        self.end += text.len() as u64;
        Ok(())
    }

    fn append(&mut self, change: Change) -> io::Result<usize> {
        let line = serde_json::to_string(&Line::Change(change.clone())).expect("strings, numbers");
        self.write(&(line + "\n"))?;
        self.entries.push(Entry { change, is_undone: false, number: None });
        Ok(self.entries.len() - 1)
    }

    fn mark_undone(&mut self, at: usize) -> io::Result<()> {
        let line = serde_json::to_string(&Line::Undone(at)).expect("a number");
        self.write(&(line + "\n"))?;
        self.entries[at].is_undone = true;
        Ok(())
    }

    /// Makes a zram device. A process that is killed here leaves either no device or its number in
    /// the journal: the read(2) that makes the device copies the number into the journal's page,
    /// and the kernel acts on SIGKILL when that call returns.
    fn make_zram(&mut self) -> io::Result<(usize, u32)> {
        let control = File::open("/sys/class/zram-control/hot_add")?;
        let before = block_devices("zram")?;
        let at = self.append(Change::NewZram { before, last_sequence: last_disk_sequence()? })?;
        // The room is in one page of the file.
        let left = (PAGE - self.end % PAGE) as usize; // 1 to 4096
        let padding = if left < NUMBER_BYTES { "\n".repeat(left) } else { String::new() };
        let place = self.end + padding.len() as u64;
        self.write(&format!("{padding}{}\n", " ".repeat(NUMBER_BYTES)))?;
        read_into(&control, &self.file, place, NUMBER_BYTES)?;
        let mut room = [0; NUMBER_BYTES];
        self.file.read_exact_at(&mut room, place)?;
        let text = String::from_utf8_lossy(&room);
        let number = text.trim().parse().map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, format!("'{}' is no number", text.trim()))
        })?;
        self.entries[at].number = Some(number);
        Ok((at, number))
    }

    /// Undoes one change, if it is not undone yet.
    fn undo(&mut self, at: usize) -> Result<Outcome, UndoError> {
        if self.entries[at].is_undone {
            return Ok(Outcome::Nothing);
        }
        let change = self.entries[at].change.clone();
        let outcome = match change {
            Change::NewZram { before, last_sequence } => {
                self.undo_new_zram(at, &before, last_sequence)?
            }
            change => undo::undo(&change)?,
        };
        // Where that cannot be written, the same is found out again.
        self.mark_undone(at).map_err(|source| {
            UndoError::new(format!("write {}", self.path.display()), source, "")
        })?;
        Ok(outcome)
    }

    /// Of a device that was made, and perhaps not written down as such.
    fn undo_new_zram(
        &mut self,
        at: usize,
        before: &[u32],
        last_sequence: u64,
    ) -> Result<Outcome, UndoError> {
        let Some(number) = self.entries[at].number else { return Ok(Outcome::Nothing) };
        let is_known = self
            .entries
            .iter()
            .any(|entry| matches!(entry.change, Change::Zram { change, .. } if change == at));
        let Some(sequence) = undo::zram_sequence(number) else { return Ok(Outcome::Nothing) };
        let is_new = !before.contains(&number) && (sequence == 0 || sequence > last_sequence);
        if is_known || !is_new {
            return Ok(Outcome::Nothing);
        }
        // Written down first: once it is removed, others may get a device with its number.
        let device = Change::Zram { change: at, number, sequence, bytes: 0 };
        let device = self.append(device).map_err(|source| {
            UndoError::new(format!("write {}", self.path.display()), source, "")
        })?;
        self.undo(device)
    }

    /// Undoes all that is left, the last change first. What cannot be undone stays in the journal.
    pub(super) fn undo_all(&mut self) -> Restored {
        let mut restored = Restored::default();
        if boot_id().is_ok_and(|boot| boot != self.header.boot) {
            self.forget_last_boot();
        }
        // Programs end before their memory is brought back from swap.
        for entry in self.entries.iter().filter(|entry| !entry.is_undone) {
            if let Change::Cgroup { folder } = &entry.change {
                let _ = super::cgroup::kill_all(folder); // said below, where it cannot be removed
            }
        }
        for at in (0..self.entries.len()).rev() {
            match self.undo(at) {
                Ok(outcome) => restored.add(outcome),
                Err(error) => restored.failed.push(error),
            }
        }
        restored
    }

    /// What is left of a machine that was started again since: files on a disk.
    fn forget_last_boot(&mut self) {
        for entry in &mut self.entries {
            let stays = matches!(entry.change, Change::File { .. } | Change::Folder { .. });
            entry.is_undone |= !stays;
        }
    }

    fn is_undone(&self) -> bool {
        self.entries.iter().all(|entry| entry.is_undone)
    }

    /// Whether its name leads to another file now, or to none: it was removed.
    pub(super) fn is_removed(file: &File, path: &Path) -> bool {
        let there = fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()));
        there.is_none() || there != file.metadata().ok().map(|found| (found.dev(), found.ino()))
    }

    /// Removes it, if all is undone, and the folder, if that is empty.
    pub(super) fn remove_if_done(&self) -> io::Result<()> {
        if !self.is_undone() {
            return Ok(());
        }
        fs::remove_file(&self.path)?;
        if let Some(folder) = self.path.parent() {
            let _ = fs::remove_dir(folder); // others may have theirs in it
        }
        Ok(())
    }
}

fn parse(text: &str) -> Result<(Header, Vec<Entry>), String> {
    let mut lines = text.lines();
    let header = lines.next().ok_or("it is empty")?;
    let header: Header =
        serde_json::from_str(header).map_err(|error| format!("line 1: {error}"))?;
    if header.version != VERSION {
        return Err(format!("its version is {}, not {VERSION}", header.version));
    }
    let mut entries: Vec<Entry> = Vec::new();
    for (number, line) in lines.enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |reason: &dyn fmt::Display| format!("line {}: {reason}", number + 2);
        if let Ok(device) = line.trim().parse() {
            let awaits = |entry: &&mut Entry| {
                matches!(entry.change, Change::NewZram { .. }) && entry.number.is_none()
            };
            let last = entries.last_mut().filter(awaits);
            last.ok_or_else(|| wrong(&"a number"))?.number = Some(device);
            continue;
        }
        match serde_json::from_str(line).map_err(|error| wrong(&error))? {
            Line::Change(change) => {
                entries.push(Entry { change, is_undone: false, number: None });
            }
            Line::Undone(at) => {
                entries.get_mut(at).ok_or_else(|| wrong(&"no such change"))?.is_undone = true;
            }
        }
    }
    Ok((header, entries))
}

fn boot_id() -> io::Result<String> {
    read_setting(Path::new("/proc/sys/kernel/random/boot_id"))
}

/// Makes the file, and the folder around it if there is none. The folder is locked with it: of two
/// processes that change the same setting, the second would take the first one's value for what was
/// before. For the same reason what others have left is undone first.
fn make_file(folder: &Path, path: &Path) -> Result<(File, File), KernelSwapError> {
    for _ in 0..TRIES {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(KernelSwapError::on("make", folder, error));
            }
            _ => {}
        }
        match check_folder(folder) {
            Err(KernelSwapError::Kernel { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                continue;
            }
            checked => checked?,
        }
        let Ok(locked) = File::open(folder) else { continue };
        match locked.try_lock() {
            Ok(()) if Log::is_removed(&locked, folder) => continue,
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(restore::in_use_in(folder)),
            Err(TryLockError::Error(error)) => {
                return Err(KernelSwapError::on("lock", folder, error));
            }
        }
        restore::finish_others(folder)?;
        let made = File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
        match made {
            Ok(file) => return Ok((locked, file)),
            // Another process has just removed the empty folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(KernelSwapError::on("make", path, error));
            }
        }
    }
    Err(KernelSwapError::on("make", path, io::Error::from(io::ErrorKind::NotFound)))
}

/// Refuses a folder in which other users could make journals.
pub(super) fn check_folder(folder: &Path) -> Result<(), KernelSwapError> {
    let found = fs::symlink_metadata(folder)
        .map_err(|error| KernelSwapError::on("look at", folder, error))?;
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    let own = rustix::process::geteuid().as_raw();
    if !found.is_dir() || owner != own || mode != 0o700 {
        return Err(KernelSwapError::Folder { path: folder.to_owned(), owner, mode });
    }
    Ok(())
}

/// The name of a process's journal.
fn name_of(pid: u32) -> String {
    format!("{pid}-{}.{EXTENSION}", start_time(pid).unwrap_or(0))
}

/// The process that restores when this one ends.
#[derive(Debug)]
struct Watcher(Child);

impl Watcher {
    /// Starts this program as the watcher of a journal; nothing but SIGKILL ends it from then on.
    fn start(journal: &Path) -> Result<Watcher, KernelSwapError> {
        let cannot = |error| KernelSwapError::kernel("start the process that restores", error);
        let child = Command::new("/proc/self/exe")
            .arg0("uzswap")
            .arg(WATCHER_COMMAND)
            .arg(journal)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        let mut watcher = Watcher(child);
        let mut byte = [0];
        let told = watcher.0.stdout.take().expect("it is piped").read_exact(&mut byte);
        told.map_err(cannot)?;
        Ok(watcher)
    }
}

impl Watcher {
    /// Ends it, with nothing to restore.
    fn cancel(mut self) {
        let _ = self.0.kill();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The changes of this process, which are undone with the last copy of this.
#[derive(Debug, Clone)]
pub struct Journal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    log: Mutex<Log>,
    /// Dropped after the log: it waits for a lock that this process has.
    _watcher: Option<Watcher>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let log = self.log.get_mut().unwrap_or_else(PoisonError::into_inner);
        let restored = log.undo_all();
        let removed = log.remove_if_done();
        for error in &restored.failed {
            stderr::log(&format!("cannot {error}"));
        }
        if let Err(error) = removed {
            stderr::log(&format!("cannot remove {}: {error}", log.path.display()));
        }
        // Closing the file would do it, where no child that is about to exec had a copy.
        let _ = log.file.unlock();
    }
}

impl Journal {
    /// A new journal of this process in /run/uzswap, and a watcher: the program itself with the
    /// subcommand [`WATCHER_COMMAND`], which leads to
    /// [`restore_when_ended`](super::restore_when_ended).
    ///
    /// # Errors
    ///
    /// [`KernelSwapError::NotRoot`]; [`KernelSwapError::Folder`] where other users have access to
    /// the folder; [`KernelSwapError::InUse`] while a process has a journal, be it this one;
    /// [`KernelSwapError::NotUndone`] where an ended process has left something that cannot be
    /// undone; [`KernelSwapError::Kernel`] where a file cannot be made, or where the watcher does
    /// not start.
    pub fn open() -> Result<Journal, KernelSwapError> {
        if !rustix::process::geteuid().is_root() {
            return Err(KernelSwapError::NotRoot);
        }
        let folder = Path::new(FOLDER);
        // First, so that it finds a journal of which no line is written yet.
        let watcher = Watcher::start(&folder.join(name_of(std::process::id())))?;
        match Log::create(folder) {
            Ok(log) => Ok(Journal::of(log, Some(watcher))),
            Err(error) => {
                // It would wait for the lock of another journal of this process.
                watcher.cancel();
                Err(error)
            }
        }
    }

    fn of(log: Log, watcher: Option<Watcher>) -> Journal {
        Journal(Arc::new(Inner { log: Mutex::new(log), _watcher: watcher }))
    }

    /// In another folder and without a watcher.
    #[cfg(test)]
    pub(super) fn open_in(folder: &Path) -> Result<Journal, KernelSwapError> {
        Ok(Journal::of(Log::create(folder)?, None))
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.log().path.clone()
    }

    /// Undoes all that is left, the last change first. What cannot be undone stays in the journal,
    /// and is tried again when the last copy of the journal is dropped.
    ///
    /// # Errors
    ///
    /// [`KernelSwapError::NotUndone`].
    pub fn undo_all(&self) -> Result<Restored, KernelSwapError> {
        self.log().undo_all().checked()
    }

    /// A name that no other journal, and no other change of this one, has: `PID-START-N`.
    pub(super) fn unique_name(&self) -> String {
        let log = self.log();
        format!("{}-{}-{}", log.header.pid, log.header.start, log.entries.len())
    }

    /// The folder of journals.
    pub(super) fn folder(&self) -> PathBuf {
        self.log().path.parent().expect("it is in a folder").to_owned()
    }

    /// Writes a change down, then makes it. Where `make` fails, nothing has been made.
    pub(super) fn make<T>(
        &self,
        change: Change,
        make: impl FnOnce() -> Result<T, KernelSwapError>,
    ) -> Result<(ChangeId, T), KernelSwapError> {
        let mut log = self.log();
        let cannot_write = |log: &Log, error| KernelSwapError::on("write", &log.path, error);
        let at = log.append(change).map_err(|error| cannot_write(&log, error))?;
        match make() {
            Ok(made) => Ok((ChangeId(at), made)),
            Err(error) => {
                log.mark_undone(at).map_err(|error| cannot_write(&log, error))?;
                Err(error)
            }
        }
    }

    /// Changes a setting; `None` where it has that text already.
    pub(super) fn set(&self, path: &Path, new: &str) -> Result<Option<ChangeId>, KernelSwapError> {
        let old = read_setting(path).map_err(|error| KernelSwapError::on("read", path, error))?;
        if old == new {
            return Ok(None);
        }
        let change = Change::Setting { path: path.to_owned(), old, new: new.to_owned() };
        let (id, ()) = self.make(change, || {
            let action = format!("write '{new}' to {}", path.display());
            write_setting(path, new).map_err(|error| KernelSwapError::kernel(action, error))
        })?;
        Ok(Some(id))
    }

    /// Makes a zram device, which has no size yet: the two changes, and its number.
    pub(super) fn make_zram(&self, bytes: u64) -> Result<([ChangeId; 2], u32), KernelSwapError> {
        let mut log = self.log();
        let cannot = |error| KernelSwapError::kernel("make a zram device", error);
        let (at, number) = log.make_zram().map_err(cannot)?;
        let sequence = undo::zram_sequence(number).unwrap_or(0);
        let device = Change::Zram { change: at, number, sequence, bytes };
        let device = log.append(device).map_err(cannot)?;
        Ok(([ChangeId(at), ChangeId(device)], number))
    }

    /// Undoes changes, the last one first.
    pub(super) fn undo(&self, changes: &[ChangeId]) -> Restored {
        let mut restored = Restored::default();
        let mut log = self.log();
        for change in changes.iter().rev() {
            match log.undo(change.0) {
                Ok(outcome) => restored.add(outcome),
                Err(error) => restored.failed.push(error),
            }
        }
        restored
    }
}

/// A folder for journals, or for whatever is changed.
#[cfg(test)]
pub(super) fn private_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let permissions = fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().permissions(permissions).tempdir().unwrap()
}

#[cfg(test)]
mod tests {
    use super::private_folder as folder;
    use super::*;

    fn setting(folder: &Path, text: &str) -> PathBuf {
        let path = folder.join("setting");
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_setting_is_written_down_first_and_put_back() {
        let (all, journals) = (folder(), folder());
        let path = setting(all.path(), "lzo\n");
        let journal = Journal::open_in(journals.path()).unwrap();
        assert!(journal.set(&path, "lzo").unwrap().is_none());
        let id = journal.set(&path, "lz4").unwrap().unwrap();
        let text = fs::read_to_string(journal.path()).unwrap();
        assert!(text.contains("\"old\":\"lzo\""), "{text}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "lz4");
        assert!(journal.undo(&[id]).failed.is_empty());
        assert_eq!(read_setting(&path).unwrap(), "lzo");
        // Done once is done: the next value is somebody else's.
        fs::write(&path, "lz4").unwrap();
        assert!(journal.undo(&[id]).undone.is_empty());
        assert_eq!(read_setting(&path).unwrap(), "lz4");
        let file = journal.path();
        drop(journal);
        assert!(!file.exists());
    }

    #[test]
    fn a_setting_that_others_changed_meanwhile_stays() {
        let (all, journals) = (folder(), folder());
        let path = setting(all.path(), "60");
        let journal = Journal::open_in(journals.path()).unwrap();
        journal.set(&path, "200").unwrap().unwrap();
        fs::write(&path, "100").unwrap();
        let restored = journal.undo_all().unwrap();
        assert_eq!((restored.undone.len(), restored.left.len()), (0, 1), "{restored:?}");
        assert_eq!(read_setting(&path).unwrap(), "100");
    }

    #[test]
    fn what_fails_is_not_undone() {
        let journals = folder();
        let journal = Journal::open_in(journals.path()).unwrap();
        let path = journals.path().join("of-others");
        fs::write(&path, "").unwrap();
        let error = journal.make(Change::File { path: path.clone() }, || {
            File::create_new(&path).map_err(|error| KernelSwapError::on("make", &path, error))
        });
        assert!(error.unwrap_err().to_string().contains("of-others"));
        drop(journal);
        assert!(path.exists());
    }

    #[test]
    fn the_last_change_is_undone_first() {
        let (all, journals) = (folder(), folder());
        let journal = Journal::open_in(journals.path()).unwrap();
        let outer = all.path().join("a");
        let inner = outer.join("b");
        for path in [&outer, &inner] {
            journal
                .make(Change::Folder { path: path.clone() }, || {
                    fs::create_dir(path).map_err(|error| KernelSwapError::on("make", path, error))
                })
                .unwrap();
        }
        drop(journal);
        assert!(!outer.exists());
    }

    #[test]
    fn a_journal_is_read_as_it_was_written() {
        let change = Change::Folder { path: "/x".into() };
        let header = Header { version: 1, pid: 1, start: 2, boot: "b".to_owned() };
        let zram = Change::NewZram { before: vec![0], last_sequence: 9 };
        let line = |line: &Line| serde_json::to_string(line).unwrap();
        let text = [
            serde_json::to_string(&header).unwrap(),
            line(&Line::Change(change.clone())),
            line(&Line::Change(zram.clone())),
            "\n7\n              ".to_owned(),
            line(&Line::Undone(0)),
        ]
        .join("\n");
        let (read, entries) = parse(&text).unwrap();
        assert_eq!(read, header);
        assert_eq!((&entries[0].change, entries[0].is_undone), (&change, true));
        assert_eq!((&entries[1].change, entries[1].is_undone), (&zram, false));
        assert_eq!((entries[0].number, entries[1].number), (None, Some(7)));
        for wrong in ["", "{}", &text.replace("\"version\":1", "\"version\":2"), &(text + "\n7")] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_without_its_end_is_none() {
        let (all, journals) = (folder(), folder());
        let path = setting(all.path(), "60");
        let journal = Journal::open_in(journals.path()).unwrap();
        journal.set(&path, "200").unwrap();
        let text = fs::read_to_string(journal.path()).unwrap();
        let copy = all.path().join("copy");
        fs::write(&copy, format!("{text}{{\"change\":{{\"fold")).unwrap();
        let file = File::options().read(true).write(true).open(&copy).unwrap();
        let mut log = Log::parse(file, &copy).unwrap();
        assert_eq!(log.entries.len(), 1);
        assert_eq!(log.undo_all().undone.len(), 1);
        assert_eq!(read_setting(&path).unwrap(), "60");
        log.remove_if_done().unwrap();
        assert!(!copy.exists());
        // Nor is a header.
        fs::write(&copy, "{\"version\":1,").unwrap();
        let file = File::options().read(true).write(true).open(&copy).unwrap();
        let mut log = Log::parse(file, &copy).unwrap();
        assert!(log.undo_all().failed.is_empty());
        log.remove_if_done().unwrap();
        assert!(!copy.exists());
    }

    #[test]
    fn one_process_at_a_time_has_a_journal() {
        let journals = folder();
        let journal = Journal::open_in(journals.path()).unwrap();
        let error = Journal::open_in(journals.path()).unwrap_err();
        let own = std::process::id();
        assert!(matches!(error, KernelSwapError::InUse { pid } if pid == own), "{error}");
        drop(journal);
        drop(Journal::open_in(journals.path()).unwrap());
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let journals = folder();
        fs::set_permissions(journals.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let error = Journal::open_in(journals.path()).unwrap_err();
        assert!(matches!(error, KernelSwapError::Folder { mode: 0o755, .. }), "{error}");
    }

    #[test]
    fn after_a_restart_of_the_machine_files_alone_are_removed() {
        let (all, journals) = (folder(), folder());
        let path = setting(all.path(), "60");
        let journal = Journal::open_in(journals.path()).unwrap();
        journal.set(&path, "200").unwrap();
        let file = all.path().join("file");
        fs::write(&file, "").unwrap();
        journal.make(Change::File { path: file.clone() }, || Ok(())).unwrap();
        journal.log().header.boot = "another".to_owned();
        drop(journal);
        assert_eq!(read_setting(&path).unwrap(), "200");
        assert!(!file.exists());
    }
}
