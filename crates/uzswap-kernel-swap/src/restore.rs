//! Finds journals of killed processes, and undoes their changes.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::error::KernelSwapError;
use super::log::{EXTENSION, FOLDER, Log, check_folder};
use super::undo::Restored;
use uzswap_sys::process::start_time;
use uzswap_sys::signals::SignalMask;
use uzswap_sys::stderr::log;

/// A journal whose process has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOver {
    /// The file.
    pub path: PathBuf,
    /// The process that it was of.
    pub pid: u32,
}

/// Journals of processes that have ended, and of which the watcher has ended too or is at work.
/// None where this process may not look.
pub fn left_over() -> Vec<LeftOver> {
    left_over_in(Path::new(FOLDER))
}

fn left_over_in(folder: &Path) -> Vec<LeftOver> {
    let journals = journals(folder).unwrap_or_default().into_iter();
    let named = journals.filter_map(|path| Some((owner(&path)?, path)));
    let ended = named.filter(|((pid, start), _)| start_time(*pid) != Some(*start));
    ended.map(|((pid, _), path)| LeftOver { path, pid }).collect()
}

/// Undoes all journals whose process has ended. Several processes may do so at the same time.
///
/// # Errors
///
/// [`KernelSwapError::NotRoot`]; [`KernelSwapError::Folder`] where other users have access to the
/// folder of journals; [`KernelSwapError::Kernel`]; [`KernelSwapError::Damaged`]. Changes that
/// cannot be undone are in [`Restored::failed`].
pub fn restore() -> Result<Restored, KernelSwapError> {
    let folder = Path::new(FOLDER);
    if folder.exists() && !rustix::process::geteuid().is_root() {
        return Err(KernelSwapError::NotRoot);
    }
    restore_in(folder)
}

fn restore_in(folder: &Path) -> Result<Restored, KernelSwapError> {
    let mut all = Restored::default();
    if !folder.try_exists().map_err(|error| KernelSwapError::on("look at", folder, error))? {
        return Ok(all);
    }
    check_folder(folder)?;
    let journals = journals(folder).map_err(|error| KernelSwapError::on("list", folder, error))?;
    let mut damaged = None;
    for path in journals {
        match restore_journal(&path, false) {
            Ok(restored) => all.append(restored),
            Err(error) => damaged = Some(error),
        }
    }
    let _ = fs::remove_dir(folder); // others may have theirs in it
    damaged.map_or(Ok(all), Err)
}

/// Undoes a journal, once its owner has ended or, where `is_given_up` says so, has let it be.
fn restore_journal(path: &Path, is_given_up: bool) -> Result<Restored, KernelSwapError> {
    let mut restored = Restored::default();
    let file = match File::options().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(restored),
        opened => opened.map_err(|error| KernelSwapError::on("open", path, error))?,
    };
    let cannot_lock = |error| KernelSwapError::on("lock", path, error);
    let is_alive = || owner(path).is_some_and(|(pid, start)| start_time(pid) == Some(start));
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) => return Err(cannot_lock(error)),
        Err(TryLockError::WouldBlock) if !is_given_up && is_alive() => {
            restored.left.push(in_use(path));
            return Ok(restored);
        }
        // Another process restores it.
        Err(TryLockError::WouldBlock) => file.lock().map_err(cannot_lock)?,
    }
    if Log::is_removed(&file, path) {
        return Ok(restored);
    }
    // For a moment after its creation no process locks it.
    if !is_given_up && is_alive() {
        restored.left.push(in_use(path));
        return Ok(restored);
    }
    let mut log = Log::parse(file, path)?;
    restored = log.undo_all();
    log.remove_if_done().map_err(|error| KernelSwapError::on("remove", path, error))?;
    Ok(restored)
}

/// An error: a process that runs has a journal in this folder.
pub(super) fn in_use_in(folder: &Path) -> KernelSwapError {
    let owners = journals(folder).unwrap_or_default().into_iter().filter_map(|path| owner(&path));
    let mut running = owners.filter(|(pid, start)| start_time(*pid) == Some(*start));
    KernelSwapError::InUse { pid: running.next().map_or(0, |(pid, _)| pid) }
}

/// Undoes what processes that have ended left in this folder, which the caller has locked.
pub(super) fn finish_others(folder: &Path) -> Result<(), KernelSwapError> {
    let left = journals(folder).map_err(|error| KernelSwapError::on("list", folder, error))?;
    for path in left {
        if !restore_journal(&path, false)?.checked()?.left.is_empty() && path.exists() {
            return Err(in_use_in(folder));
        }
    }
    Ok(())
}

fn in_use(path: &Path) -> String {
    let pid = owner(path).map_or(0, |(pid, _)| pid);
    format!("{} belongs to process {pid}, which still runs; its changes stay", path.display())
}

fn journals(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut journals = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new(EXTENSION)) {
            journals.push(path);
        }
    }
    journals.sort();
    Ok(journals)
}

/// The process of a journal, and its start, by the name of the file.
fn owner(path: &Path) -> Option<(u32, u64)> {
    let (pid, start) = path.file_stem()?.to_str()?.split_once('-')?;
    Some((pid.parse().ok()?, start.parse().ok()?))
}

/// The life of a watcher: tells on standard output that nothing but SIGKILL ends it, waits until
/// standard input ends, then undoes what is left in the journal.
///
/// # Errors
///
/// As [`restore`], and [`KernelSwapError::NotUndone`].
pub fn restore_when_ended(journal: &Path) -> Result<(), KernelSwapError> {
    SignalMask::block_all();
    // A session of its own: the group of its parent may be killed as one.
    let _ = rustix::process::setsid(); // fails for the first process of a group
    // The kernel ends others first when memory runs out.
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    let mut output = io::stdout();
    // The parent may have ended already: then the input has ended too.
    let _ = output.write_all(b".").and_then(|()| output.flush());
    let mut input = io::stdin().lock();
    loop {
        match input.read(&mut [0]) {
            Ok(0) => break,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
            _ => {}
        }
    }
    let restored = restore_journal(journal, true);
    // Without a journal it may be there, too: it is made first.
    let _ = journal.parent().map(fs::remove_dir);
    let restored = restored?;
    if !restored.undone.is_empty() {
        let what = restored.undone.join(", ");
        log(&format!("undid the changes of a process that ended: {what}"));
    }
    for text in &restored.left {
        log(text);
    }
    restored.checked().map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::journal::Journal;
    use super::super::log::private_folder;
    use super::*;
    use std::os::unix::fs::DirBuilderExt;
    use std::sync::Barrier;
    use std::thread;

    /// A journal of a process that has ended, with one setting, which is 60 and was 200.
    fn left_behind(folder: &Path, setting: &Path) -> PathBuf {
        fs::write(setting, "60").unwrap();
        let journal = Journal::open_in(folder).unwrap();
        journal.set(setting, "200").unwrap();
        let text = fs::read_to_string(journal.path()).unwrap();
        drop(journal);
        fs::write(setting, "200").unwrap();
        // It went with the last journal.
        let _ = fs::DirBuilder::new().mode(0o700).create(folder);
        let path = folder.join("1-1.journal"); // the first process has started at 0 or later
        fs::write(&path, text).unwrap();
        path
    }

    fn folders() -> (tempfile::TempDir, tempfile::TempDir) {
        (private_folder(), private_folder())
    }

    #[test]
    fn what_a_process_left_behind_is_undone() {
        let (all, journals) = folders();
        let folder = journals.path().join("uzswap");
        let setting = all.path().join("setting");
        assert!(restore_in(&folder).unwrap().undone.is_empty());
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let path = left_behind(&folder, &setting);
        assert_eq!(left_over_in(&folder), [LeftOver { path: path.clone(), pid: 1 }]);
        let restored = restore_in(&folder).unwrap();
        assert_eq!(restored.undone.len(), 1, "{restored:?}");
        assert_eq!(fs::read_to_string(&setting).unwrap(), "60");
        assert!(!folder.exists());
    }

    #[test]
    fn what_a_living_process_has_is_let_be() {
        let (all, journals) = folders();
        let setting = all.path().join("setting");
        fs::write(&setting, "60").unwrap();
        let journal = Journal::open_in(journals.path()).unwrap();
        journal.set(&setting, "200").unwrap();
        assert_eq!(left_over_in(journals.path()), []);
        let restored = restore_in(journals.path()).unwrap();
        assert_eq!((restored.undone.len(), restored.left.len()), (0, 1));
        assert_eq!(fs::read_to_string(&setting).unwrap(), "200");
        assert!(journal.path().exists());
    }

    #[test]
    fn restorers_at_once_undo_each_change_once() {
        let (all, journals) = folders();
        let setting = all.path().join("setting");
        for _ in 0..20 {
            left_behind(journals.path(), &setting);
            let start = Barrier::new(4);
            let undone = thread::scope(|scope| {
                let restorers: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            start.wait();
                            restore_journal(&journals.path().join("1-1.journal"), false)
                        })
                    })
                    .collect();
                let all = restorers.into_iter().map(|restorer| restorer.join().unwrap().unwrap());
                all.map(|restored| restored.undone.len()).sum::<usize>()
            });
            assert_eq!(undone, 1);
        }
    }

    #[test]
    fn what_cannot_be_undone_stays_in_the_journal() {
        let (all, journals) = folders();
        let folder = all.path().join("full");
        let journal = Journal::open_in(journals.path()).unwrap();
        let change = super::super::change::Change::Folder { path: folder.clone() };
        journal
            .make(change, || {
                fs::create_dir(&folder).map_err(|error| KernelSwapError::on("make", &folder, error))
            })
            .unwrap();
        let file = folder.join("file");
        fs::write(&file, "").unwrap();
        let error = journal.undo_all().unwrap_err().to_string();
        assert!(error.contains("full") && error.contains("doctor --restore"), "{error}");
        let path = journal.path();
        drop(journal);
        assert!(path.exists());
        fs::remove_file(&file).unwrap();
        assert_eq!(restore_journal(&path, true).unwrap().undone.len(), 1);
        assert!(!path.exists() && !folder.exists());
    }
}
