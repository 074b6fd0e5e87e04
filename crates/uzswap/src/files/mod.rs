//! Makes and opens the files that commands write, so that no other user reads or redirects them.
//!
//! Two kinds, of which docs/reference/files.md has the table:
//!
//! - [`Contents::Pages`]: memory of programs. Its user alone can read it, whatever the umask; it
//!   is in a directory in which no other user can replace it.
//! - [`Contents::Report`]: figures. A report is made as the shell's `>` makes a file. In a
//!   directory that every user can write, no link and no file of another user is taken for it.
//!
//! The rules are checked on the descriptor that is used, never on a path alone. The kernel has some
//! of them as `fs.protected_symlinks`, `_hardlinks`, `_regular` and `_fifos`, which may be off.

mod patient;
mod rules;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fchmod, fstat, openat, statat};
use rustix::io::Errno;

pub use patient::PatientFile;

/// The mode of a file of pages.
const PAGES_MODE: u32 = 0o600;

/// The mode of a new report; the umask takes from it.
const REPORT_MODE: u32 = 0o666;

/// Links that lead to links: the kernel follows as many.
const LINKS_MAX: usize = 40;

/// Tries to open a file that is made and removed by others all the time.
const TRIES: usize = 10;

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Pages of programs.
    Pages,
    /// Figures.
    Report,
}

/// A name in a directory that is held open: what is checked there is what is used.
#[derive(Debug)]
pub struct Place {
    contents: Contents,
    directory: OwnedFd,
    name: OsString,
    path: PathBuf,
    /// Whether a link led here.
    was_link: bool,
    /// Whether it is a link of /proc to an open file: there is no name to look at.
    is_magic: bool,
}

impl Place {
    /// The place of a file with these contents: `path`, or the end of the links that are there. The
    /// file itself need not be there.
    ///
    /// # Errors
    ///
    /// The kernel's, for a directory that is not there above all. `InvalidInput` where a rule
    /// forbids a link or a directory; the text says which, and what to do.
    pub fn of(path: &Path, contents: Contents) -> io::Result<Place> {
        let mut path = path.to_owned();
        for links in 0..LINKS_MAX {
            let mut place = Place::at(path, contents)?;
            place.was_link = links > 0;
            let Some(found) = place.stat()?.filter(|found| kind(found) == FileType::Symlink) else {
                return Ok(place);
            };
            if is_proc(&place.directory)? {
                place.is_magic = true;
                return Ok(place);
            }
            rules::check_link(&fstat(&place.directory)?, &found)?;
            let target = rustix::fs::readlinkat(&place.directory, &place.name, Vec::new())?;
            path = directory_of(&place.path).join(OsStr::from_bytes(target.as_bytes()));
        }
        Err(Errno::LOOP.into())
    }

    /// The last name of a path, in its directory.
    fn at(path: PathBuf, contents: Contents) -> io::Result<Place> {
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let Some(name) = name.map(OsStr::to_owned) else {
            // As open(2) says it, where that is a directory.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(CWD, &path, flags, Mode::empty())?;
            return Err(Errno::ISDIR.into());
        };
        let directory = directory_of(&path);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, directory, flags, Mode::empty())?;
        if contents == Contents::Pages {
            rules::check_directory(directory, &fstat(&opened)?)?;
        }
        Ok(Place { contents, directory: opened, name, path, was_link: false, is_magic: false })
    }

    /// The path, with the last links followed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this file is what has the name. Where that is not known, it is not.
    pub fn is_there(&self, file: &File) -> bool {
        let Ok(ours) = fstat(file) else { return false };
        let there = self.stat().ok().flatten();
        there.is_some_and(|there| (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino))
    }

    /// Removes what has the name.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn remove(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty())?)
    }

    /// Whether a link led here.
    pub fn was_link(&self) -> bool {
        self.was_link
    }

    /// The file with this name; `None` where there is none.
    fn stat(&self) -> io::Result<Option<Stat>> {
        match statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a file of pages, for reading and writing.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` where anything has the name, a link too; the kernel's.
    pub fn create_new(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(PAGES_MODE);
        let file = File::from(openat(&self.directory, &self.name, flags | OFlags::CLOEXEC, mode)?);
        // The umask may have taken from it, and some file systems do as they like.
        let made = fchmod(&file, mode).map_err(io::Error::from);
        match made.and_then(|()| rules::check_made(&fstat(&file)?)) {
            Ok(()) => Ok(file),
            Err(error) => {
                let _ = self.remove(); // it is empty, and ours
                Err(error)
            }
        }
    }

    /// Opens what is there, with these flags, if the rules allow it. Nothing is changed in it. For
    /// pages, [`check_private`] is to follow before anything is.
    ///
    /// # Errors
    ///
    /// `InvalidInput` where a rule forbids it, with a text that says which; the kernel's.
    pub fn open(&self, flags: OFlags) -> io::Result<File> {
        let check = |found: &Stat| match self.contents {
            Contents::Pages => rules::check_pages(found, self.is_magic),
            Contents::Report => rules::check_report(&fstat(&self.directory)?, found),
        };
        let no_follow = if self.is_magic { OFlags::empty() } else { OFlags::NOFOLLOW };
        if !self.is_magic {
            // Before it is opened, which has effects on some devices, and waits at a pipe.
            check(&self.stat()?.ok_or(Errno::NOENT)?)?;
        }
        let flags = flags | no_follow | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = File::from(openat(&self.directory, &self.name, flags, Mode::empty())?);
        let found = fstat(&file)?;
        check(&found)?;
        if self.contents == Contents::Pages && kind(&found) == FileType::Fifo && !self.is_magic {
            // From now on its user alone can read from it.
            fchmod(file.as_fd(), Mode::from_raw_mode(PAGES_MODE))?;
        }
        Ok(file)
    }

    /// Makes a report, if there is nothing, with the mode that the umask leaves.
    fn create_report(&self) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(REPORT_MODE);
        Ok(File::from(openat(&self.directory, &self.name, flags | OFlags::CLOEXEC, mode)?))
    }
}

/// Opens an output that is written from start to end: a file, created or emptied, or an existing
/// pipe or character device. To open a pipe waits for a reader.
///
/// # Errors
///
/// As of [`Place::of`], [`Place::create_new`] and [`Place::open`].
pub fn open_output(path: &Path, contents: Contents) -> io::Result<File> {
    let place = Place::of(path, contents)?;
    for _ in 0..TRIES {
        let made = match contents {
            _ if place.is_magic => Err(Errno::EXIST.into()),
            Contents::Pages => place.create_new(),
            Contents::Report => place.create_report(),
        };
        let opened = match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                place.open(OFlags::WRONLY)
            }
            other => return other,
        };
        match opened {
            // It has just been removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !place.is_magic => {}
            Err(error) => return Err(error),
            Ok(file) => {
                if contents == Contents::Pages {
                    check_private(&file)?;
                }
                if file.metadata()?.is_file() {
                    file.set_len(0)?;
                }
                return Ok(file);
            }
        }
    }
    Err(Errno::BUSY.into())
}

/// Makes a file of pages where nothing is; for reading and writing.
///
/// # Errors
///
/// As of [`Place::of`] and [`Place::create_new`]; `AlreadyExists` for a link, too.
pub fn create_private(path: &Path) -> io::Result<File> {
    Place::at(path.to_owned(), Contents::Pages)?.create_new()
}

/// Whether an open file may be given pages: one that other users have access to may not, nor one
/// that has another name.
///
/// # Errors
///
/// `InvalidInput` with a text that says what to do; the kernel's.
pub fn check_private(file: &File) -> io::Result<()> {
    rules::check_private(&fstat(file)?)
}

fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

/// Whether a directory is of /proc, where links lead to open files and not to names.
fn is_proc(directory: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(directory)?.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
