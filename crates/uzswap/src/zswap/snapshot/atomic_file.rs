//! The file of a snapshot: written as `.NAME.part` beside it, and renamed once it is complete.
//!
//! The part is locked while it is written. A temporary file without a lock belongs to a process
//! that has ended, and the next snapshot removes it. Two snapshots to one path at a time have
//! different names.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::SnapshotError;
use crate::files::{Contents, Place, create_private};

/// Tries to make a part that others remove all the time.
const TRIES: usize = 10;

/// A snapshot that is not in its place yet; dropped before, nothing of it is left.
#[derive(Debug)]
pub(super) struct PartFile {
    path: PathBuf,
    part: PathBuf,
    pub(super) file: File,
    is_placed: bool,
}

impl PartFile {
    pub(super) fn create(path: &Path) -> Result<PartFile, SnapshotError> {
        let not_a_file = |what| SnapshotError::NotAFile { path: path.to_owned(), what };
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return Err(not_a_file("a directory")),
            Ok(metadata) if !metadata.is_file() => return Err(not_a_file("not a regular file")),
            _ => {}
        }
        let Some(_) = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"))
        else {
            return Err(not_a_file("a directory"));
        };
        // A link stays, and what it names is replaced.
        let target = Place::of(path, Contents::Pages)
            .map_err(|source| SnapshotError::Create { path: path.to_owned(), source })?;
        let mut part_name = OsString::from(".");
        part_name.push(target.path().file_name().unwrap_or_default());
        part_name.push(".part");
        let part = target.path().with_file_name(&part_name);
        let target = target.path().to_owned();
        let fail = |source| SnapshotError::Create { path: part.clone(), source };
        for _ in 0..TRIES {
            let new = create_private(&part);
            let (file, is_new) = match new {
                Ok(file) => (file, true),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    match open_stale(&part) {
                        Ok(file) => (file, false),
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        Err(error) => return Err(fail(error)),
                    }
                }
                Err(error) => return Err(fail(error)),
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(SnapshotError::Busy { path: path.to_owned() });
                }
                Err(TryLockError::Error(error)) => return Err(fail(error)),
            }
            // Before the lock, the file may have been removed, or have become a snapshot.
            if !is_same(&file, &part).map_err(fail)? {
                continue;
            }
            if is_new {
                return Ok(PartFile { path: target, part, file, is_placed: false });
            }
            fs::remove_file(&part).map_err(fail)?;
        }
        Err(SnapshotError::Busy { path: path.to_owned() })
    }

    /// Writes it to disk and gives it its name.
    pub(super) fn place(mut self) -> Result<(), SnapshotError> {
        let fail = |action, path: &Path| {
            let path = path.to_owned();
            move |source| SnapshotError::Place { action, path, source }
        };
        self.file.sync_all().map_err(fail("write to disk", &self.part))?;
        fs::rename(&self.part, &self.path).map_err(fail("put in place", &self.path))?;
        self.is_placed = true;
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(directory)
            .and_then(|file| file.sync_all())
            .map_err(|source| SnapshotError::SyncDirectory { path: directory.to_owned(), source })
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.is_placed {
            // Where that fails, the next snapshot does it.
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// Opens what has a part's name, if it is a file.
fn open_stale(part: &Path) -> io::Result<File> {
    if !fs::symlink_metadata(part)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is there, and no file"));
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(part)
}

fn is_same(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_part_is_alone_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let part = PartFile::create(&path).unwrap();
        assert!(matches!(PartFile::create(&path), Err(SnapshotError::Busy { .. })));
        assert_eq!(names(directory.path()), [".s.part"]);
        drop(part);
        assert!(names(directory.path()).is_empty());
        // Left by a process that was killed: nobody has it locked.
        fs::write(directory.path().join(".s.part"), "half").unwrap();
        let part = PartFile::create(&path).unwrap();
        assert_eq!(part.file.metadata().unwrap().len(), 0);
        part.place().unwrap();
        assert_eq!(names(directory.path()), ["s"]);
        let mode = fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_link_stays_and_a_part_that_is_none_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        PartFile::create(&link).unwrap().place().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&file).unwrap().len(), 0);
        fs::create_dir(directory.path().join(".file.part")).unwrap();
        assert!(matches!(PartFile::create(&file), Err(SnapshotError::Create { .. })));
        assert_eq!(names(directory.path()), [".file.part", "file", "link"]);
    }

    #[test]
    fn a_file_is_the_one_under_a_path_or_that_cannot_be_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("other"), "").unwrap();
        let file = File::create(path("file")).unwrap();
        assert!(is_same(&file, &path("file")).unwrap());
        assert!(!is_same(&file, &path("other")).unwrap());
        assert!(!is_same(&file, &path("missing")).unwrap());
        let error = is_same(&file, &path("file/below")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }
}
