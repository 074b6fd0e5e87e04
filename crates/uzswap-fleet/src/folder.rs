//! The folder of a fleet: the files of each sample, each whole or not there.
//!
//! ```text
//!  DIR/pages-RUN.parquet  intervals-RUN.parquet  intervals-RUN-1.parquet ...  runs-RUN.parquet
//!  DIR/replays*.parquet
//!  DIR/.NAME.XXXX.part    locked while it is written; without a lock, of a killed process
//! ```
//!
//! - J1: under its final name a file is complete and on disk.
//! - J2: a file that is being written by another process is left alone.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::table::{IntervalRow, NotATable, PageRow, RunRow, Table, decode};

/// The largest file that is read. A part of a sample has a MiB.
const FILE_BYTES_MAX: u64 = 1 << 30;

const SUFFIX: &str = ".parquet";

/// Why a file of a fleet was not read or not written.
#[derive(Debug, Error)]
pub enum FolderError {
    /// A file or the folder does not open or does not read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// A file is damaged, or is no table of ours.
    #[error("{} is not a table '{table}' of uzswap: {error}", path.display())]
    NotATable {
        /// The file.
        path: PathBuf,
        /// The table that it should be.
        table: &'static str,
        /// What is wrong with it.
        error: NotATable,
    },
    /// The folder has no sample.
    #[error(
        "{} has no file intervals-*.parquet; `uzswap sample --out` writes them",
        path.display()
    )]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// A file or the folder was not written. A file of its name is as it was before.
    #[error("cannot write {}: {error}; files that were written before stay", path.display())]
    Write {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
}

impl FolderError {
    /// Whether the machine is the reason (permission, disk, I/O) and not the path or file given.
    pub fn is_machine(&self) -> bool {
        use io::ErrorKind::{AlreadyExists, InvalidInput, NotADirectory, NotFound};
        match self {
            FolderError::Read { error, .. } => {
                ![InvalidInput, NotADirectory, NotFound].contains(&error.kind())
            }
            FolderError::Write { error, .. } => {
                ![AlreadyExists, NotADirectory].contains(&error.kind())
            }
            _ => false,
        }
    }
}

/// The name of a file of table `T` of a sample. Parts count from 0.
pub fn file_name<T: Table>(run: u64, part: u32) -> String {
    let part = if part == 0 { String::new() } else { format!("-{part}") };
    format!("{}-{run:016x}{part}{SUFFIX}", T::NAME)
}

/// Makes the folder where it is missing, and removes what killed processes left in it.
///
/// # Errors
///
/// [`FolderError::Write`].
pub fn prepare(folder: &Path) -> Result<(), FolderError> {
    let failed = |error| FolderError::Write { path: folder.to_owned(), error };
    fs::create_dir_all(folder).map_err(failed)?;
    for entry in fs::read_dir(folder).map_err(failed)?.filter_map(Result::ok) {
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        if !(name.starts_with('.') && name.contains(".parquet.") && name.ends_with(".part")) {
            continue;
        }
        // No link and no pipe: opening one could wait or lead elsewhere.
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            // Where that fails, the next one does it.
            let _ = fs::remove_file(entry.path());
        }
    }
    // A folder that takes no file is an error before the work.
    tempfile::tempfile_in(folder).map(drop).map_err(failed)
}

/// Writes a file, on disk and whole before it has its name.
///
/// # Errors
///
/// [`FolderError::Write`].
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FolderError> {
    let written = || {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let prefix = [b".", name.as_bytes(), b"."].concat();
        let mut part = tempfile::Builder::new()
            .prefix(std::ffi::OsStr::from_bytes(&prefix))
            .suffix(".part")
            .make_in(folder, |path| File::options().write(true).create_new(true).open(path))?;
        part.as_file().lock()?;
        part.as_file_mut().write_all(bytes)?;
        part.as_file().sync_all()?;
        part.persist(path).map_err(|error| error.error)?;
        // Some file systems cannot sync a folder: theirs to lose.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(())
    };
    written().map_err(|error| FolderError::Write { path: path.to_owned(), error })
}

/// The rows of a file.
///
/// # Errors
///
/// [`FolderError::Read`] and [`FolderError::NotATable`], which name the file.
pub fn read<T: Table>(path: &Path) -> Result<Vec<T>, FolderError> {
    let failed = |error| FolderError::Read { path: path.to_owned(), error };
    let metadata = fs::metadata(path).map_err(failed)?;
    let not_a_table =
        |error| FolderError::NotATable { path: path.to_owned(), table: T::NAME, error };
    if !metadata.is_file() {
        return Err(not_a_table(NotATable("it is not a regular file".to_owned())));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(not_a_table(NotATable(format!(
            "it has {} MiB, over the {} MiB that are read",
            metadata.len() >> 20,
            FILE_BYTES_MAX >> 20
        ))));
    }
    decode(fs::read(path).map_err(failed)?).map_err(not_a_table)
}

/// The samples of a folder, in the order of their names.
///
/// # Errors
///
/// [`FolderError::Read`] and [`FolderError::Empty`].
pub fn samples(folder: &Path) -> Result<Vec<SampleFiles>, FolderError> {
    let failed = |error| FolderError::Read { path: folder.to_owned(), error };
    let mut parts: BTreeMap<String, Vec<(u32, PathBuf)>> = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let name = name.strip_prefix("intervals-").and_then(|rest| rest.strip_suffix(SUFFIX));
        let Some(name) = name else { continue };
        let numbered =
            name.rsplit_once('-').and_then(|(run, part)| Some((run, part.parse().ok()?)));
        let (run, part) = numbered.unwrap_or((name, 0));
        parts.entry(run.to_owned()).or_default().push((part, path));
    }
    if parts.is_empty() {
        return Err(FolderError::Empty { path: folder.to_owned() });
    }
    let files = |(run, mut parts): (String, Vec<(u32, PathBuf)>)| {
        parts.sort();
        let of_table = |name| Some(folder.join(format!("{name}-{run}{SUFFIX}")));
        SampleFiles {
            intervals: parts.into_iter().map(|(_, path)| path).collect(),
            pages: of_table(PageRow::NAME).filter(|path| path.exists()),
            run: of_table(RunRow::NAME).filter(|path| path.exists()),
        }
    };
    Ok(parts.into_iter().map(files).collect())
}

/// The files of one sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleFiles {
    /// Table `intervals`: its parts, in the order of time. At least one.
    pub intervals: Vec<PathBuf>,
    /// Table `pages`, where it is there.
    pub pages: Option<PathBuf>,
    /// Table `runs`, where it is there.
    pub run: Option<PathBuf>,
}

impl SampleFiles {
    /// All intervals and pages, as far as they were written.
    ///
    /// # Errors
    ///
    /// [`FolderError::Read`] and [`FolderError::NotATable`], which name the file.
    pub fn rows(&self) -> Result<(Vec<IntervalRow>, Vec<PageRow>), FolderError> {
        let mut intervals = Vec::new();
        for part in &self.intervals {
            intervals.append(&mut read(part)?);
        }
        let pages = self.pages.as_deref().map_or(Ok(Vec::new()), read)?;
        Ok((intervals, pages))
    }

    /// Whether something ended the sample; not where it goes on still, or was killed.
    ///
    /// # Errors
    ///
    /// [`FolderError::Read`] and [`FolderError::NotATable`], which name the file.
    pub fn has_end(&self) -> Result<bool, FolderError> {
        let rows: Vec<RunRow> = self.run.as_deref().map_or(Ok(Vec::new()), read)?;
        Ok(rows.last().is_some_and(|row| row.ended_by != "nothing"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{RunRow, encode};

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_killed_process_left_goes_and_what_another_writes_stays() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(".runs-1.parquet.AbC123.part");
        let held = folder.path().join(".runs-2.parquet.AbC123.part");
        let other = folder.path().join(".notes.part");
        for path in [&left, &held, &other] {
            fs::write(path, "half").unwrap();
        }
        let writer = File::open(&held).unwrap();
        writer.lock().unwrap();
        prepare(folder.path()).unwrap();
        assert_eq!(names(folder.path()), [".notes.part", ".runs-2.parquet.AbC123.part"]);
    }

    #[test]
    fn a_file_is_whole_under_its_name_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(file_name::<RunRow>(7, 0));
        let row = RunRow { run: 7, notes: "a note".to_owned(), ..RunRow::default() };
        write(&path, &encode([row.clone()])).unwrap();
        assert_eq!(names(folder.path()), ["runs-0000000000000007.parquet"]);
        assert_eq!(read::<RunRow>(&path).unwrap(), [row]);
        let below = path.join("below");
        let error = write(&below, b"x").unwrap_err();
        assert!(error.to_string().contains("below: Not a directory (os error 20)"), "{error}");
        assert!(matches!(samples(folder.path()), Err(FolderError::Empty { .. })));

        let huge = folder.path().join("huge.parquet");
        File::create(&huge).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        let error = read::<RunRow>(&huge).unwrap_err().to_string();
        assert!(
            error.contains("huge.parquet is not a table 'runs' of uzswap: it has 1024 MiB, over")
        );
    }
}
