//! The file of a journal: read, written and undone.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cgroup_tree;
use super::change::Change;
use super::error::{KernelSwapError, UndoError};
use super::kernel_files::{block_devices, last_disk_sequence, read_setting};
use super::undo::{self, Outcome, Restored};
use uzswap_sys::process::start_time;
use uzswap_sys::swap::read_into;

/// Where journals are.
pub(super) const FOLDER: &str = "/run/uzswap";

pub(super) const EXTENSION: &str = "journal";

/// The version of the format.
const VERSION: u32 = 1;

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

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Change(Change),
    Undone(usize),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) change: Change,
    is_undone: bool,
    /// Of [`Change::NewZram`]: the number of the device, once the kernel has made it.
    number: Option<u32>,
}

/// The file, held open and locked.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) file: File,
    pub(super) path: PathBuf,
    end: u64,
    pub(super) header: Header,
    pub(super) entries: Vec<Entry>,
    /// Of the owner: the folder, locked.
    _folder: Option<File>,
}

impl Log {
    /// A new one of this process, in `file` of the folder `locked`.
    pub(super) fn create(path: &Path, file: File, locked: File) -> Result<Log, KernelSwapError> {
        let pid = std::process::id();
        let header = Header {
            version: VERSION,
            pid,
            start: start_time(pid).unwrap_or(0),
            boot: boot_id().map_err(|error| KernelSwapError::kernel("read boot_id", error))?,
        };
        // The kernel tells the paths of swap areas and mounts without links.
        let path = fs::canonicalize(path).unwrap_or(path.to_owned());
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

    pub(super) fn append(&mut self, change: Change) -> io::Result<usize> {
        let line = serde_json::to_string(&Line::Change(change.clone())).expect("strings, numbers");
        self.write(&(line + "\n"))?;
        self.entries.push(Entry { change, is_undone: false, number: None });
        Ok(self.entries.len() - 1)
    }

    pub(super) fn mark_undone(&mut self, at: usize) -> io::Result<()> {
        let line = serde_json::to_string(&Line::Undone(at)).expect("a number");
        self.write(&(line + "\n"))?;
        self.entries[at].is_undone = true;
        Ok(())
    }

    /// Makes a zram device. A process that is killed here leaves either no device or its number in
    /// the journal: the read(2) that makes the device copies the number into the journal's page,
    /// and the kernel acts on SIGKILL when that call returns.
    pub(super) fn make_zram(&mut self) -> io::Result<(usize, u32)> {
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
            io::Error::new(io::ErrorKind::InvalidData, format!("'{}' is not a number", text.trim()))
        })?;
        self.entries[at].number = Some(number);
        Ok((at, number))
    }

    /// Undoes one change, if it is not undone yet.
    pub(super) fn undo(&mut self, at: usize) -> Result<Outcome, UndoError> {
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
                let _ = cgroup_tree::kill_all(folder); // said below, where it cannot be removed
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
    let header = lines.next().ok_or("the file is empty")?;
    let header: Header =
        serde_json::from_str(header).map_err(|error| format!("line 1: {error}"))?;
    if header.version != VERSION {
        return Err(format!("version {} instead of {VERSION}", header.version));
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
                entries.get_mut(at).ok_or_else(|| wrong(&"unknown change"))?.is_undone = true;
            }
        }
    }
    Ok((header, entries))
}

fn boot_id() -> io::Result<String> {
    read_setting(Path::new("/proc/sys/kernel/random/boot_id"))
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
pub(super) fn name_of(pid: u32) -> String {
    format!("{pid}-{}.{EXTENSION}", start_time(pid).unwrap_or(0))
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
    use super::*;

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
}
