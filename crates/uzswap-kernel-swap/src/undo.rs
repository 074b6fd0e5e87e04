//! Undoes one change. Each is checked first: a change that was never made, or is undone already, or
//! that another process has overwritten, stays as it is.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use super::cgroup_tree;
use super::change::Change;
use super::error::{KernelSwapError, UndoError};
use super::kernel_files::{
    disk_sequence, mount_points, read_setting, swap_areas, unescaped, while_busy, write_setting,
};
use super::swap_header::uuid_of;
use uzswap_sys::swap::{loop_detach, loop_remove, swap_off};

/// Mounts on top of each other that are unmounted.
const MOUNTS_MAX: usize = 4;

/// Advice, where a device is busy.
const END_ITS_USERS: &str = "end the processes that have it open";

/// What became of a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is undone; in words.
    Undone(String),
    /// There was nothing to undo.
    Nothing,
    /// Another process owns it now; in words.
    Left(String),
}

/// What became of the changes of a journal.
#[derive(Debug, Default)]
pub struct Restored {
    /// What was undone, a sentence each.
    pub undone: Vec<String>,
    /// What stays as it is, as somebody else has changed it since; a sentence each.
    pub left: Vec<String>,
    /// What could not be undone. It stays in the journal.
    pub failed: Vec<UndoError>,
}

impl Restored {
    pub(super) fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Undone(text) => self.undone.push(text),
            Outcome::Left(text) => self.left.push(text),
            Outcome::Nothing => {}
        }
    }

    /// The same, or an error with what failed.
    pub(super) fn checked(self) -> Result<Restored, KernelSwapError> {
        match self.failed.is_empty() {
            true => Ok(self),
            false => Err(KernelSwapError::NotUndone(self.failed)),
        }
    }

    pub(super) fn append(&mut self, other: Restored) {
        self.undone.extend(other.undone);
        self.left.extend(other.left);
        self.failed.extend(other.failed);
    }
}

/// Undoes a change, if it was made and is still ours.
pub(super) fn undo(change: &Change) -> Result<Outcome, UndoError> {
    match change {
        Change::Setting { path, old, new } => undo_setting(path, old, new),
        Change::Controller { cgroup, children } => undo_controller(cgroup, children),
        Change::Folder { path } => undo_folder(path),
        Change::File { path } => undo_file(path),
        Change::Mount { folder } => undo_mount(folder),
        Change::Loop { number, backing } => undo_loop_device(*number, backing),
        Change::NewZram { .. } => Ok(Outcome::Nothing), // the journal has its number
        Change::Zram { number, sequence, bytes, .. } => undo_zram(*number, *sequence, *bytes),
        Change::SwapArea { path, uuid } => undo_swap_area(path, uuid),
        Change::Cgroup { folder } => undo_memory_cgroup(folder),
    }
}

fn undo_setting(path: &Path, old: &str, new: &str) -> Result<Outcome, UndoError> {
    let shown = path.display();
    let now = match read_setting(path) {
        Ok(now) => now,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Outcome::Nothing),
        Err(error) => return Err(UndoError::new(format!("read {shown}"), error, "")),
    };
    if now == old {
        return Ok(Outcome::Nothing);
    }
    if now != new {
        return Ok(Outcome::Left(format!(
            "{shown} stays {now}: it was changed after uzswap set {new}; before that it was {old}"
        )));
    }
    let what = || format!("write '{old}' to {shown}");
    write_setting(path, old).map_err(|error| UndoError::new(what(), error, ""))?;
    Ok(Outcome::Undone(format!("{shown} is {old} again")))
}

fn undo_controller(cgroup: &Path, children: &[String]) -> Result<Outcome, UndoError> {
    let path = cgroup.join("cgroup.subtree_control");
    let enabled = match fs::read_to_string(&path) {
        Ok(enabled) => enabled,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Outcome::Nothing),
        Err(error) => {
            return Err(UndoError::new(format!("read {}", path.display()), error, ""));
        }
    };
    if !enabled.split_whitespace().any(|name| name == "memory") {
        return Ok(Outcome::Nothing);
    }
    let is_new = |name: &String| !children.contains(name);
    if let Some(user) = cgroup_tree::children(cgroup).into_iter().find(is_new) {
        return Ok(Outcome::Left(format!(
            "the memory controller of {} stays on, because cgroup {user} may use it",
            cgroup.display()
        )));
    }
    write_setting(&path, "-memory")
        .map_err(|error| UndoError::new(format!("write to {}", path.display()), error, ""))?;
    Ok(Outcome::Undone(format!("the memory controller of {} is off again", cgroup.display())))
}

fn undo_folder(path: &Path) -> Result<Outcome, UndoError> {
    match fs::remove_dir(path) {
        Ok(()) => Ok(Outcome::Undone(format!("{} removed", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Outcome::Nothing),
        Err(error) => Err(UndoError::new(format!("remove {}", path.display()), error, "")),
    }
}

fn undo_file(path: &Path) -> Result<Outcome, UndoError> {
    let cannot = |error| UndoError::new(format!("remove {}", path.display()), error, "");
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Outcome::Nothing),
        Err(error) => Err(cannot(error)),
        Ok(found) if !found.is_file() => {
            Ok(Outcome::Left(format!("{} is no file any more: it stays", path.display())))
        }
        Ok(_) => {
            fs::remove_file(path).map_err(cannot)?;
            Ok(Outcome::Undone(format!("{} removed", path.display())))
        }
    }
}

fn undo_mount(folder: &Path) -> Result<Outcome, UndoError> {
    let cannot = |error: io::Error| {
        UndoError::new(
            format!("unmount {}", folder.display()),
            error,
            "end the processes that have files in it",
        )
    };
    for unmounted in 0..MOUNTS_MAX {
        let points = mount_points().map_err(cannot)?;
        if !points.iter().any(|point| point == folder) {
            return Ok(match unmounted {
                0 => Outcome::Nothing,
                _ => Outcome::Undone(format!("{} unmounted", folder.display())),
            });
        }
        let try_it = || unmount(folder, UnmountFlags::NOFOLLOW).map_err(io::Error::from);
        while_busy(try_it).map_err(cannot)?;
    }
    Err(cannot(io::ErrorKind::ResourceBusy.into()))
}

fn undo_loop_device(number: u32, backing: &Path) -> Result<Outcome, UndoError> {
    let folder = PathBuf::from(format!("/sys/block/loop{number}"));
    let device = format!("/dev/loop{number}");
    if !folder.exists() {
        return Ok(Outcome::Nothing);
    }
    let cannot = |error| UndoError::new(format!("detach {device}"), error, END_ITS_USERS);
    if let Some(attached) = loop_file(number) {
        if !is_path_of(&attached, backing) {
            return Ok(Outcome::Left(format!("{device} has {} by now", attached.display())));
        }
        let open = File::options().read(true).write(true).open(&device).map_err(cannot)?;
        match loop_detach(&open) {
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => return Err(cannot(error)),
            _ => drop(open), // the last one that closes it detaches the file
        }
    }
    let control = File::open("/dev/loop-control").map_err(cannot)?;
    match while_busy(|| loop_remove(&control, number)) {
        Err(error) if error.raw_os_error() != Some(libc::ENODEV) => Err(cannot(error)),
        _ => Ok(Outcome::Undone(format!("{device} removed"))),
    }
}

/// Whether the kernel tells this path of a file. Once the mount of the file has gone with its
/// namespace, the path begins at that mount.
fn is_path_of(told: &Path, file: &Path) -> bool {
    let is_tail = || told.strip_prefix("/").is_ok_and(|tail| file.ends_with(tail));
    told == file || is_tail() && !told.exists()
}

/// The file of a loop device, if it has one.
pub(super) fn loop_file(number: u32) -> Option<PathBuf> {
    let path = format!("/sys/block/loop{number}/loop/backing_file");
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim_end_matches('\n');
    Some(unescaped(text.strip_suffix(" (deleted)").unwrap_or(text)))
}

/// The sequence number of a zram device, 0 where the kernel has none; `None` without the device.
pub(super) fn zram_sequence(number: u32) -> Option<u64> {
    let disk = format!("zram{number}");
    Path::new("/sys/block").join(&disk).exists().then(|| disk_sequence(&disk).unwrap_or(0))
}

fn undo_zram(number: u32, sequence: u64, bytes: u64) -> Result<Outcome, UndoError> {
    let device = PathBuf::from(format!("/dev/zram{number}"));
    // Another device may have its number by now.
    if zram_sequence(number).is_none_or(|now| now != sequence) {
        return Ok(Outcome::Nothing);
    }
    let cannot =
        |error| UndoError::new(format!("remove {}", device.display()), error, END_ITS_USERS);
    let size = PathBuf::from(format!("/sys/block/zram{number}/disksize"));
    let size: u64 = read_setting(&size).map_err(cannot)?.parse().unwrap_or(0);
    if size != 0 && size != bytes {
        let shown = device.display();
        return Ok(Outcome::Left(format!(
            "{shown} stays: it has {size} bytes, so another process uses it"
        )));
    }
    if swap_areas().map_err(cannot)?.contains(&device) {
        return Err(cannot(io::ErrorKind::ResourceBusy.into()));
    }
    let remove =
        || write_setting(Path::new("/sys/class/zram-control/hot_remove"), &number.to_string());
    match while_busy(remove) {
        Err(error) if error.raw_os_error() != Some(libc::ENODEV) => Err(cannot(error)),
        _ => Ok(Outcome::Undone(format!("{} removed", device.display()))),
    }
}

fn undo_swap_area(path: &Path, uuid: &str) -> Result<Outcome, UndoError> {
    let shown = path.display();
    let advice = "end programs with much memory";
    let cannot = |error| UndoError::new(format!("turn swap area {shown} off"), error, advice);
    // The kernel tells another path once its mount namespace is gone: the UUID decides.
    match uuid_of(path) {
        Ok(found) if found.as_deref() == Some(uuid) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Outcome::Nothing),
        Err(error) => return Err(cannot(error)),
        Ok(_) if swap_areas().map_err(cannot)?.iter().any(|area| area == path) => {
            return Ok(Outcome::Left(format!("swap area {shown} stays on: its UUID has changed")));
        }
        Ok(_) => return Ok(Outcome::Nothing),
    }
    match swap_off(path) {
        // The area is off already; another process may have been faster.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(Outcome::Nothing),
        Err(error) => Err(cannot(error)),
        Ok(()) => Ok(Outcome::Undone(format!("swap area {shown} is off"))),
    }
}

fn undo_memory_cgroup(folder: &Path) -> Result<Outcome, UndoError> {
    match cgroup_tree::remove_all(folder) {
        Ok(true) => Ok(Outcome::Undone(format!("{} removed", folder.display()))),
        Ok(false) => Ok(Outcome::Nothing),
        Err(error) => {
            let what = format!("remove {}", folder.display());
            Err(UndoError::new(what, error, "end the processes in its cgroup.procs"))
        }
    }
}
