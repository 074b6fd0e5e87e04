//! The rules, each of which says what to do where it forbids something.

use std::io;
use std::path::Path;

use rustix::fs::{FileType, Stat};

use super::{PAGES_MODE, kind};

const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o002;
const MODE_BITS: u32 = 0o7777;
const NOT_ITS_USER: u32 = 0o077;

/// A path that is refused: the user may give another.
fn refuse(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn is_open_to_all(directory: &Stat) -> bool {
    directory.st_mode & OTHERS_WRITE != 0
}

/// No other user can replace a file of pages.
pub(super) fn check_directory(path: &Path, found: &Stat) -> io::Result<()> {
    if !is_open_to_all(found) || found.st_mode & STICKY != 0 {
        return Ok(());
    }
    Err(refuse(format!(
        "every user can replace files in its directory {} (mode {:o}, not sticky); choose another \
         directory, or chmod +t this one",
        path.display(),
        found.st_mode & MODE_BITS
    )))
}

/// A link in a directory that every user can write is one of this user, or of the directory's.
pub(super) fn check_link(directory: &Stat, link: &Stat) -> io::Result<()> {
    let is_trusted = [own_user(), directory.st_uid].contains(&link.st_uid);
    if !is_open_to_all(directory) || is_trusted {
        return Ok(());
    }
    Err(refuse(format!(
        "it is a symbolic link of user {} in a directory that every user can write; give the path \
         of a file",
        link.st_uid
    )))
}

/// A new file of pages has the mode that it was given.
pub(super) fn check_made(found: &Stat) -> io::Result<()> {
    match found.st_mode & NOT_ITS_USER {
        0 => Ok(()),
        _ => Err(refuse(format!(
            "its mode is {:o} after creation with mode {PAGES_MODE:o}; choose a file system that \
             keeps modes",
            found.st_mode & MODE_BITS
        ))),
    }
}

/// Checks that pages may be written to this file. A pipe that the caller has handed to this process
/// open (`is_handed`) may belong to any user.
pub(super) fn check_pages(found: &Stat, is_handed: bool) -> io::Result<()> {
    match kind(found) {
        FileType::RegularFile => check_owner(found, &[own_user()]),
        FileType::Fifo if is_handed => Ok(()),
        FileType::Fifo => check_owner(found, &[own_user()]),
        FileType::CharacterDevice => check_owner(found, &[own_user(), 0]),
        // Whether this user may write it is the kernel's to decide.
        FileType::BlockDevice => Ok(()),
        other => Err(wrong_kind(other)),
    }
}

/// No other user has access to a file of pages, and it is nowhere else.
pub(super) fn check_private(found: &Stat) -> io::Result<()> {
    if kind(found) != FileType::RegularFile {
        return Ok(());
    }
    if found.st_mode & NOT_ITS_USER != 0 {
        return Err(refuse(format!(
            "other users have access to it (mode {:o}), and it would hold pages of programs; chmod \
             600 it, or remove it",
            found.st_mode & MODE_BITS
        )));
    }
    check_names(found)
}

/// Checks that a report may be written to this file. The rules are those of the shell's `>`, unless
/// every user can write the directory.
pub(super) fn check_report(directory: &Stat, found: &Stat) -> io::Result<()> {
    match kind(found) {
        FileType::RegularFile | FileType::Fifo if is_open_to_all(directory) => {
            check_owner(found, &[own_user(), directory.st_uid])?;
            check_names(found)
        }
        FileType::RegularFile | FileType::Fifo | FileType::CharacterDevice => Ok(()),
        other => Err(wrong_kind(other)),
    }
}

fn check_owner(found: &Stat, allowed: &[u32]) -> io::Result<()> {
    if allowed.contains(&found.st_uid) {
        return Ok(());
    }
    Err(refuse(format!(
        "it belongs to user {}, not to user {}; remove it, or choose another path",
        found.st_uid,
        own_user()
    )))
}

/// Another name may be where others look for it.
fn check_names(found: &Stat) -> io::Result<()> {
    match found.st_nlink {
        0 | 1 => Ok(()),
        names => Err(refuse(format!(
            "it has {names} hard links; remove this one, or choose another path"
        ))),
    }
}

fn wrong_kind(kind: FileType) -> io::Error {
    let name = match kind {
        FileType::Directory => return rustix::io::Errno::ISDIR.into(),
        FileType::Socket => "a socket",
        FileType::BlockDevice => "a block device",
        FileType::Symlink => "a symbolic link",
        _ => "no file",
    };
    refuse(format!("it is {name}; give the path of a file or a pipe"))
}
