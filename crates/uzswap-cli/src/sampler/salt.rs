//! The salt of a machine: what is hashed with it cannot be looked up elsewhere.
//!
//! A file in the folder of this user's state has the salt. Its user alone can read that file, and
//! no table has the salt. Hashes are the first 8 bytes of SHA-256 over salt, kind and value.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};
use tempfile::Builder;
use twox_hash::XxHash3_128;

use uzswap::files::{Contents, Place, check_private};
use uzswap::page::Page;

const BYTES: usize = 32;

const FILE_NAME: &str = "fleet-salt";

/// The kind of a hashed value: equal bytes of two kinds have two hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Host,
    Process,
    Job,
    Page,
    /// Origin of a process's page numbers.
    Origin,
}

/// The salt itself.
#[derive(Clone)]
pub struct Salt([u8; BYTES]);

impl std::fmt::Debug for Salt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Salt(..)")
    }
}

impl Salt {
    /// The salt of this user on this machine, which is made at the first call.
    ///
    /// # Errors
    ///
    /// The file, and why it cannot be read or made: the kernel's error, or a rule of
    /// docs/reference/files.md.
    pub fn of_this_machine() -> Result<Salt, (PathBuf, io::Error)> {
        let folder = state_folder();
        Salt::in_folder(&folder).map_err(|error| (folder.join(FILE_NAME), error))
    }

    fn in_folder(folder: &Path) -> io::Result<Salt> {
        let path = folder.join(FILE_NAME);
        match read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => return read,
        }
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut salt = [0; BYTES];
        getrandom(&mut salt, GetRandomFlags::empty())?;
        // The mode of a temporary file is 0600.
        let mut part = Builder::new().prefix(".fleet-salt.").tempfile_in(folder)?;
        part.write_all(&salt)?;
        part.as_file().sync_all()?;
        match part.persist_noclobber(&path) {
            Ok(_) => Ok(Salt(salt)),
            // Another sample was first.
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => read(&path),
            Err(error) => Err(error.error),
        }
    }

    /// The hash of some bytes of a kind.
    pub(super) fn hash(&self, of: Of, bytes: &[u8]) -> u64 {
        let digest = Sha256::new().chain_update(self.0).chain_update([of as u8]);
        let digest = digest.chain_update(bytes).finalize();
        u64::from_le_bytes(*digest.first_chunk().expect("a digest has 32 bytes"))
    }

    /// The hash of a page. SHA-256 of its 128-bit hash takes a fraction of that of the page.
    pub(super) fn hash_page(&self, page: &Page) -> u64 {
        self.hash(Of::Page, &XxHash3_128::oneshot(page).to_le_bytes())
    }
}

fn read(path: &Path) -> io::Result<Salt> {
    let mut file: File = Place::of(path, Contents::Pages)?.open(OFlags::RDONLY)?;
    check_private(&file)?;
    let mut salt = [0; BYTES];
    file.read_exact(&mut salt).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            let text = format!("it is shorter than {BYTES} bytes; remove it, and ids change");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        }
        _ => error,
    })?;
    Ok(Salt(salt))
}

/// The folder of this user's state: by the XDG base directory specification, and of root that of
/// the system.
fn state_folder() -> PathBuf {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let of_user = || match absolute("HOME") {
        Some(home) if !rustix::process::geteuid().is_root() => home.join(".local/state"),
        _ => PathBuf::from("/var/lib"),
    };
    absolute("XDG_STATE_HOME").unwrap_or_else(of_user).join("uzswap")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_salt_stays_and_its_user_alone_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("state");
        let salt = Salt::in_folder(&place).unwrap();
        assert_eq!(Salt::in_folder(&place).unwrap().0, salt.0);
        let path = place.join(FILE_NAME);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let other = Salt::in_folder(folder.path()).unwrap();
        assert_ne!(salt.hash(Of::Host, b"a"), other.hash(Of::Host, b"a"));
        assert_ne!(salt.hash(Of::Host, b"a"), salt.hash(Of::Job, b"a"));
        assert_eq!(format!("{salt:?}"), "Salt(..)");

        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let error = Salt::in_folder(&place).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "short").unwrap();
        let error = Salt::in_folder(&place).unwrap_err();
        assert!(error.to_string().contains("shorter than 32 bytes"), "{error}");
    }
}
