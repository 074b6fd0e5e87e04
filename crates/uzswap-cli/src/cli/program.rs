//! The program of a command line: whether `run` can manage it, before it starts.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};

/// Scripts may name scripts as their interpreters: so many at most, as `BINPRM_MAX_RECURSION` of
/// Linux (fs/exec.c) has it.
const SCRIPTS_MAX: usize = 5;

/// Bytes of a script's first line that the kernel reads: `BINPRM_BUF_SIZE`.
const LINE_BYTES: u64 = 256;

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;

/// The program that a command would start, and the reason for which `run` cannot manage it, in
/// words; `None` where it can, or where the program cannot be read: its start says why.
pub(super) fn why_unmanageable(command: &OsStr) -> Option<(PathBuf, &'static str)> {
    let mut path = find(command)?;
    for _ in 0..SCRIPTS_MAX {
        match interpreter(&path) {
            Some(next) => path = next,
            None => break,
        }
    }
    let mode = fs::metadata(&path).ok()?.permissions().mode();
    // Root has the rights of a setuid program already, as a rule.
    let is_root = rustix::process::geteuid().is_root();
    if mode & (S_ISUID | S_ISGID) != 0 && !is_root {
        return Some((path, "it is a setuid program"));
    }
    let why = match loader(&File::open(&path).ok()?) {
        Ok(true) => return None,
        Ok(false) => "it is a static program",
        Err(_) => "it is no 64-bit ELF program",
    };
    Some((path, why))
}

/// As execvp(3) finds it.
fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let folders = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(command));
    paths.find(|path| {
        let is_executable = |file: fs::Metadata| file.permissions().mode() & 0o111 != 0;
        path.metadata().is_ok_and(|file| file.is_file() && is_executable(file))
    })
}

/// The interpreter that a script names in its first line; `None` of another file.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(path).ok()?.take(LINE_BYTES).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.next().map(|word| OsStr::from_bytes(word).into())
}

/// Whether a program names a loader, which loads the library of a run.
fn loader(file: &File) -> object::read::Result<bool> {
    let data = &ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let mut programs = header.program_headers(endian, data)?.iter();
    Ok(programs.any(|program| program.p_type(endian) == elf::PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_judged_by_their_interpreters() {
        let folder = tempfile::tempdir().unwrap();
        let script = |name: &str, line: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("{line}\nexit\n")).unwrap();
            path
        };
        let good = script("good", "#! /bin/sh -e");
        assert_eq!(why_unmanageable(good.as_os_str()), None);
        let indirect = script("indirect", &format!("#!{}", good.display()));
        assert_eq!(why_unmanageable(indirect.as_os_str()), None);
        let empty = script("empty", "text");
        let (path, why) = why_unmanageable(empty.as_os_str()).unwrap();
        assert_eq!((path, why), (empty.clone(), "it is no 64-bit ELF program"));
        let bad = script("bad", &format!("#!{}", empty.display()));
        assert_eq!(why_unmanageable(bad.as_os_str()).unwrap().0, empty);
    }

    #[test]
    fn commands_are_found_as_the_shell_finds_them() {
        assert!(find("sh".as_ref()).is_some_and(|path| path.ends_with("sh")));
        assert_eq!(find("no-such-program-at-all".as_ref()), None);
        assert_eq!(why_unmanageable("no-such-program-at-all".as_ref()), None);
        assert_eq!(why_unmanageable("sh".as_ref()), None);
    }
}
