//! Folders that go with their process. A later process removes those whose process was killed.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

/// Names of these folders begin so.
pub const PREFIX: &str = "uzswap-";

/// And end in so many hexadecimal digits.
const DIGITS: usize = 12;

/// A file in each, which its process has locked (flock(2)).
pub const LOCK_NAME: &str = ".uzswap-lock";

/// Its name until it is locked: nobody takes the folder for one that was left.
const UNLOCKED_NAME: &str = ".uzswap-lock.new";

/// The permission of the group and of others to write.
const OTHERS_WRITE: u32 = 0o022;

/// A folder, which is removed with all that is in it when this is dropped.
#[derive(Debug)]
pub struct HeldFolder {
    path: PathBuf,
    /// Also open in processes that were forked: they may need the folder for longer.
    _lock: File,
}

impl HeldFolder {
    /// A new one in the folder `place`, with these permissions whatever the umask is.
    ///
    /// # Errors
    ///
    /// The kernel's, of the new folder.
    pub fn new(place: &Path, mode: u32) -> io::Result<HeldFolder> {
        let path = make(place)?;
        let held = lock(&path).and_then(|lock| {
            fs::set_permissions(&path, Permissions::from_mode(mode))?;
            Ok(lock)
        });
        match held {
            Ok(lock) => Ok(HeldFolder { path, _lock: lock }),
            Err(error) => {
                let _ = fs::remove_dir_all(&path);
                Err(error)
            }
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A new one in `TMPDIR`, or in `/tmp`; there [`remove_left`] comes first.
///
/// # Errors
///
/// As of [`HeldFolder::new`].
pub fn temporary_folder(mode: u32) -> io::Result<HeldFolder> {
    let place = std::env::temp_dir();
    remove_left(&place);
    HeldFolder::new(&place, mode)
}

impl Drop for HeldFolder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// A folder with a new name that nobody else may enter.
fn make(place: &Path) -> io::Result<PathBuf> {
    loop {
        let mut bytes = [0; DIGITS / 2];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        let name = bytes.map(|byte| format!("{byte:02x}")).concat();
        let path = place.join(format!("{PREFIX}{name}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                // The umask may have taken our own rights.
                made.and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o700)))?;
                return Ok(path);
            }
        }
    }
}

/// The lock of a new folder. A file system without locks gives a folder that stays if its process
/// is killed.
fn lock(folder: &Path) -> io::Result<File> {
    let unlocked = folder.join(UNLOCKED_NAME);
    let file = File::options().write(true).create_new(true).mode(0o600).open(&unlocked)?;
    file.set_permissions(Permissions::from_mode(0o600))?; // whatever the umask is
    match file.try_lock() {
        Ok(()) => fs::rename(unlocked, folder.join(LOCK_NAME))?,
        Err(_) => fs::remove_file(unlocked)?,
    }
    Ok(file)
}

/// Removes folders of this user in `place` that no process holds any more. No other user can write
/// to one of these.
pub fn remove_left(place: &Path) {
    let user = rustix::process::geteuid().as_raw();
    let is_of_us = |found: &Metadata| found.uid() == user && found.mode() & OTHERS_WRITE == 0;
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let path = entry.path();
        // Of the name itself, were it a link.
        let is_folder = || entry.metadata().is_ok_and(|found| found.is_dir() && is_of_us(&found));
        if has_name(&entry.file_name())
            && is_folder()
            && let Ok(lock) =
                File::options().read(true).custom_flags(flags).open(path.join(LOCK_NAME))
            && lock.metadata().is_ok_and(|found| found.is_file() && is_of_us(&found))
            && lock.try_lock().is_ok()
        {
            remove(&path);
        }
    }
}

/// Whether it is the name of one of these folders.
fn has_name(name: &OsStr) -> bool {
    let digits = name.as_encoded_bytes().strip_prefix(PREFIX.as_bytes());
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
}

/// Removes a folder, which may be gone. The lock goes last, and stays if a file cannot be removed:
/// a later process finds the folder by it.
fn remove(folder: &Path) {
    let mut is_all = true;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_folder = entry.file_type().is_ok_and(|found| found.is_dir());
        is_all &= match is_folder {
            true => fs::remove_dir_all(entry.path()).is_ok(),
            false => entry.file_name() == LOCK_NAME || fs::remove_file(entry.path()).is_ok(),
        };
    }
    if is_all {
        let _ = fs::remove_file(folder.join(LOCK_NAME));
        let _ = fs::remove_dir(folder);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(place: &Path) -> Vec<PathBuf> {
        fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// As a process leaves it that is killed.
    fn leave(held: HeldFolder) -> PathBuf {
        let path = held.path.clone();
        let moved = path.with_extension("moved");
        fs::rename(&path, &moved).unwrap();
        drop(held);
        fs::rename(moved, &path).unwrap();
        path
    }

    #[test]
    fn a_folder_goes_with_its_process_or_with_the_next() {
        let place = tempfile::tempdir().unwrap();
        let held = HeldFolder::new(place.path(), 0o755).unwrap();
        let mode = fs::metadata(held.path()).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o755);
        let left = leave(HeldFolder::new(place.path(), 0o700).unwrap());
        fs::create_dir(left.join("folder")).unwrap();
        fs::write(left.join("folder/file"), "pages").unwrap();
        assert_eq!(names(place.path()).len(), 2);
        remove_left(place.path());
        let next = HeldFolder::new(place.path(), 0o700).unwrap();
        assert!(held.path().exists() && next.path().exists() && !left.exists());
        drop((held, next));
        assert!(names(place.path()).is_empty());
    }

    #[test]
    fn other_folders_and_links_stay() {
        let place = tempfile::tempdir().unwrap();
        let name = |text: &str| place.path().join(text);
        let digits = "0123456789ab";
        let [short, long, target, shared] = [&digits[1..], "0123456789abc", "target", digits]
            .map(|text| name(&format!("uzswap-{text}")));
        for folder in [&short, &long, &target, &shared] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join(LOCK_NAME), "").unwrap();
        }
        let others = Permissions::from_mode(0o777);
        fs::set_permissions(&shared, others).unwrap();
        let [unlocked, by_link] = ["uzswap-aaaaaaaaaaaa", "uzswap-bbbbbbbbbbbb"].map(name);
        fs::create_dir(&unlocked).unwrap();
        fs::create_dir(&by_link).unwrap();
        symlink(target.join(LOCK_NAME), by_link.join(LOCK_NAME)).unwrap();
        symlink(&target, name("uzswap-cccccccccccc")).unwrap();
        let before = names(place.path()).len();
        remove_left(place.path());
        assert_eq!(names(place.path()).len(), before);
        assert!(target.join(LOCK_NAME).exists());
        // Without others' rights it is one that was left.
        fs::set_permissions(&shared, Permissions::from_mode(0o755)).unwrap();
        remove_left(place.path());
        assert!(!shared.exists());
        assert_eq!(names(place.path()).len(), before - 1);
    }
}
