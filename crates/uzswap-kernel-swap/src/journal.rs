//! The journal: a file that gets each change of the machine before the change is made.
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

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::change::Change;
use super::error::KernelSwapError;
use super::kernel_files::{read_setting, write_setting};
use super::log::{FOLDER, Log, check_folder, name_of};
use super::restore;
use super::undo::{self, Restored};
use uzswap_sys::stderr;

/// The hidden subcommand of a watcher; the path of a journal follows.
pub const WATCHER_COMMAND: &str = "restore-when-ended";

/// Tries to make a journal while others remove the folder, which is empty then.
const TRIES: usize = 100;

/// A change in a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChangeId(usize);

/// The log of a new journal of this process.
fn make_log(folder: &Path) -> Result<Log, KernelSwapError> {
    let path = folder.join(name_of(std::process::id()));
    let (locked, file) = make_file(folder, &path)?;
    Log::create(&path, file, locked)
}

/// Makes the file, and the folder around it if there is none. The folder is locked with it: of two
/// processes that change the same setting, the second would take the first one's value for what was
/// before. For the same reason the changes of ended processes are undone first.
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
    /// [`KernelSwapError::NotRoot`]; [`KernelSwapError::Folder`] if other users have access to the
    /// folder; [`KernelSwapError::InUse`] if any process has a journal, even this one.
    /// [`KernelSwapError::NotUndone`] if a change of an ended process cannot be undone;
    /// [`KernelSwapError::Kernel`] if a file cannot be created, or the watcher does not start.
    pub fn open() -> Result<Journal, KernelSwapError> {
        if !rustix::process::geteuid().is_root() {
            return Err(KernelSwapError::NotRoot);
        }
        let folder = Path::new(FOLDER);
        // First, so that it finds a journal of which no line is written yet.
        let watcher = Watcher::start(&folder.join(name_of(std::process::id())))?;
        match make_log(folder) {
            Ok(log) => Ok(Journal::of(log, Some(watcher))),
            Err(error) => {
                // The watcher would wait for the lock of another journal of this process.
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
        Ok(Journal::of(make_log(folder)?, None))
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file.
    #[cfg(test)]
    pub(super) fn path(&self) -> PathBuf {
        self.log().path.clone()
    }

    /// Undoes all that is left, the last change first. Changes that cannot be undone stay in the
    /// journal. They are tried again when the last copy of the journal is dropped.
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
        self.log().path.parent().expect("its path has a folder").to_owned()
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
        let cannot = |error| KernelSwapError::kernel("create a zram device", error);
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

/// Changes that are undone when this is dropped.
#[derive(Debug)]
pub(super) struct Changes {
    pub(super) journal: Journal,
    pub(super) made: Vec<ChangeId>,
}

impl Changes {
    pub(super) fn new(journal: &Journal) -> Changes {
        Changes { journal: journal.clone(), made: Vec::new() }
    }

    pub(super) fn make<T>(
        &mut self,
        change: Change,
        make: impl FnOnce() -> Result<T, KernelSwapError>,
    ) -> Result<T, KernelSwapError> {
        let (id, made) = self.journal.make(change, make)?;
        self.made.push(id);
        Ok(made)
    }

    pub(super) fn set(&mut self, path: &Path, text: &str) -> Result<(), KernelSwapError> {
        self.made.extend(self.journal.set(path, text)?);
        Ok(())
    }

    /// Undoes them, the last one first.
    pub(super) fn undo(&mut self) -> Restored {
        self.journal.undo(&std::mem::take(&mut self.made))
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        // A failed undo stays in the journal, which reports it when it is dropped.
        self.undo();
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::private_folder as folder;
    use super::*;
    use std::fs;

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
