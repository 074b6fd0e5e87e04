//! The user's command and the steps around each of its runs: a fresh folder, --prepare, --check,
//! --cleanup.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::child::{Ended, Exit, run_to_end};
use super::failure::Failure;
use super::preset::{Preset, stress_counts};
use uzswap_sys::mounts::{Tmpfs, TmpfsOptions};

/// Stands for the folder of a run in the command and in what surrounds it.
pub const DIR: &str = "{dir}";

/// The most bytes that `--check` may print.
const CHECK_MAX: u64 = 1 << 20;

/// The end of a command's output that a failure shows, in bytes.
const TAIL: u64 = 2000;

/// The work of each run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LiveCommand {
    /// The program and its arguments.
    #[serde(serialize_with = "as_words", deserialize_with = "of_words")]
    pub argv: Vec<OsString>,
    /// A shell command before each run.
    pub prepare: Option<String>,
    /// A shell command after each run, also after one that failed.
    pub cleanup: Option<String>,
    /// A shell command after each run that must print the same each time.
    pub check: Option<String>,
    /// Size of the tmpfs that each run gets as its folder; without one the folder is on disk.
    pub tmpfs_bytes: Option<u64>,
    /// Seconds after which a run is killed.
    #[serde(rename = "timeout_s", serialize_with = "as_seconds", deserialize_with = "of_seconds")]
    pub timeout: Option<Duration>,
    /// The preset that it comes from.
    pub preset: Option<Preset>,
}

fn as_words<S: Serializer>(argv: &[OsString], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(argv.iter().map(|word| word.to_string_lossy()))
}

fn of_words<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Vec<OsString>, D::Error> {
    let words = Vec::<String>::deserialize(deserializer)?;
    Ok(words.into_iter().map(OsString::from).collect())
}

fn as_seconds<S: Serializer>(timeout: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    timeout.map(|timeout| timeout.as_secs_f64()).serialize(serializer)
}

fn of_seconds<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let seconds = Option::<f64>::deserialize(deserializer)?;
    seconds.map(Duration::try_from_secs_f64).transpose().map_err(D::Error::custom)
}

impl LiveCommand {
    /// A command alone, on no tmpfs and for as long as it takes.
    pub fn new(argv: Vec<OsString>) -> LiveCommand {
        LiveCommand {
            argv,
            prepare: None,
            cleanup: None,
            check: None,
            tmpfs_bytes: None,
            timeout: None,
            preset: None,
        }
    }

    /// The command on one line.
    pub fn text(&self) -> String {
        let words: Vec<_> = self.argv.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    /// Whether a run needs a folder.
    fn has_folder(&self) -> bool {
        let shell = [&self.prepare, &self.cleanup, &self.check];
        self.tmpfs_bytes.is_some()
            || self.argv.iter().any(|word| contains(word.as_bytes()))
            || shell.into_iter().flatten().any(|text| contains(text.as_bytes()))
    }
}

fn contains(text: &[u8]) -> bool {
    text.windows(DIR.len()).any(|part| part == DIR.as_bytes())
}

/// Each `{dir}` replaced by a folder.
fn with_folder(text: &OsStr, folder: &Path) -> OsString {
    let mut replaced = Vec::new();
    let mut rest = text.as_bytes();
    while let Some(at) = rest.windows(DIR.len()).position(|part| part == DIR.as_bytes()) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(folder.as_os_str().as_bytes());
        rest = &rest[at + DIR.len()..];
    }
    replaced.extend_from_slice(rest);
    OsString::from_vec(replaced)
}

/// A folder that is removed when it is dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn make(path: PathBuf) -> io::Result<Folder> {
        // Programs of other users may work in it.
        fs::DirBuilder::new().mode(0o755).create(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The study removes the rest with its own folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The place of one run: made before it, gone after it.
#[derive(Debug)]
pub(super) struct Place<'a> {
    command: &'a LiveCommand,
    /// The folder of the study.
    base: &'a Path,
    // Unmounted before it is removed.
    tmpfs: Option<Tmpfs>,
    folder: Option<Folder>,
    output: File,
}

impl<'a> Place<'a> {
    /// Makes the folder and prepares it.
    pub(super) fn make(command: &'a LiveCommand, base: &'a Path) -> Result<Place<'a>, Failure> {
        let cannot = |what: &str, error: io::Error| {
            Failure::machine(format!("cannot create {what} for a run: {error}"))
        };
        let folder = command.has_folder().then(|| Folder::make(base.join("run")));
        let folder = folder.transpose().map_err(|error| cannot("a folder", error))?;
        let tmpfs = command.tmpfs_bytes.zip(folder.as_ref()).map(|(bytes, folder)| {
            Tmpfs::mount(&folder.0, &TmpfsOptions { bytes, swapped: false })
        });
        let tmpfs = tmpfs
            .transpose()
            .map_err(|error| cannot(&format!("a tmpfs ({DIR}; --tmpfs needs root)"), error))?;
        let output = tempfile::tempfile().map_err(|error| cannot("a file", error))?;
        let place = Place { command, base, tmpfs, folder, output };
        if let Some(prepare) = &command.prepare {
            place.shell(prepare, "--prepare", false)?;
        }
        Ok(place)
    }

    /// Where the engine's statistics go.
    pub(super) fn stats(&self) -> PathBuf {
        self.base.join("stats")
    }

    /// The command, with its folder in it.
    pub(super) fn argv(&self) -> Vec<OsString> {
        self.command.argv.iter().map(|word| self.filled_in(word)).collect()
    }

    fn filled_in(&self, text: &OsStr) -> OsString {
        match &self.folder {
            Some(folder) => with_folder(text, &folder.0),
            None => text.to_owned(),
        }
    }

    /// Where the command's output goes.
    pub(super) fn output(&self) -> &File {
        &self.output
    }

    /// Whether the kernel is kept from swapping the folder; true without a tmpfs.
    pub(super) fn is_never_swapped(&self) -> bool {
        self.tmpfs.as_ref().is_none_or(|tmpfs| !tmpfs.is_swapped())
    }

    /// The counts of a preset, from the command's output.
    pub(super) fn counts(&self) -> Vec<(String, f64)> {
        let Some(Preset::Stress { .. }) = self.command.preset else { return Vec::new() };
        stress_counts(&tail_of(&self.output).unwrap_or_default())
    }

    /// The end of the command's output.
    pub(super) fn tail(&self) -> String {
        tail_of(&self.output)
            .unwrap_or_else(|error| format!("(its output cannot be read: {error})"))
    }

    /// The output of `--check`.
    pub(super) fn check(&self) -> Result<Option<Vec<u8>>, Failure> {
        let Some(check) = &self.command.check else { return Ok(None) };
        self.shell(check, "--check", true).map(Some)
    }

    /// Cleans up.
    pub(super) fn clean_up(self) -> Result<(), Failure> {
        match &self.command.cleanup {
            Some(cleanup) => self.shell(cleanup, "--cleanup", false).map(drop),
            None => Ok(()),
        }
    }

    fn shell(&self, text: &str, option: &str, is_asked: bool) -> Result<Vec<u8>, Failure> {
        let failed = |why: String| Failure::command(format!("{option} '{text}' {why}"));
        let cannot = |error: io::Error| failed(format!("cannot run: {error}"));
        let output = tempfile::tempfile().map_err(cannot)?;
        let errors = if is_asked { tempfile::tempfile() } else { output.try_clone() };
        let errors = errors.map_err(cannot)?;
        let mut command = Command::new("sh");
        command.arg("-c").arg(self.filled_in(OsStr::new(text))).stdin(Stdio::null());
        command.stdout(output.try_clone().map_err(cannot)?);
        command.stderr(errors.try_clone().map_err(cannot)?);
        let Ended { exit, .. } = run_to_end(&mut command, self.command.timeout).map_err(cannot)?;
        match exit {
            Exit::Status(status) if status.success() => {}
            Exit::Status(status) => {
                let shown = tail_of(&errors).unwrap_or_default();
                return Err(failed(format!("failed ({status})")).with_output(shown));
            }
            Exit::TimedOut => return Err(failed("took longer than --timeout".to_owned())),
            Exit::Interrupted => return Err(Failure::interrupted()),
        }
        let mut printed = Vec::new();
        if is_asked {
            let mut output = output;
            output.seek(SeekFrom::Start(0)).map_err(cannot)?;
            output.take(CHECK_MAX + 1).read_to_end(&mut printed).map_err(cannot)?;
            if printed.len() as u64 > CHECK_MAX {
                return Err(failed("printed more than 1 MiB; print a checksum instead".to_owned()));
            }
        }
        Ok(printed)
    }
}

fn tail_of(file: &File) -> io::Result<String> {
    let mut file = file.try_clone()?;
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(end.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // Not half of a line.
    let whole = match text.split_once('\n') {
        Some((_, rest)) if end > TAIL => rest,
        _ => &text,
    };
    Ok(whole.trim_end().to_owned())
}

/// A program as the shell would find it in PATH.
pub(super) fn find_program(program: &OsStr) -> io::Result<PathBuf> {
    let not_found = || io::Error::from(io::ErrorKind::NotFound);
    let runnable = |path: PathBuf| {
        let metadata = fs::metadata(&path)?;
        if metadata.is_dir() || metadata.permissions().mode() & 0o111 == 0 {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        Ok(path)
    };
    if program.as_bytes().contains(&b'/') {
        return runnable(PathBuf::from(program));
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let mut refusal = not_found();
    for folder in std::env::split_paths(&folders) {
        match runnable(folder.join(program)) {
            Ok(path) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => refusal = error,
            Err(_) => {}
        }
    }
    Err(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(argv: &[&str]) -> LiveCommand {
        LiveCommand::new(argv.iter().map(OsString::from).collect())
    }

    #[test]
    fn a_run_has_a_folder_of_its_own_for_a_while() {
        let mut command = command(&["cat", "{dir}/in-{dir}"]);
        command.prepare = Some("echo old > {dir}/file".to_owned());
        command.check = Some("cat {dir}/file; echo noise >&2".to_owned());
        let base = tempfile::tempdir().unwrap();
        let place = Place::make(&command, base.path()).unwrap();
        let folder = place.folder.as_ref().unwrap().0.clone();
        let text = folder.to_str().unwrap();
        assert_eq!(place.argv()[1].to_str().unwrap(), format!("{text}/in-{text}"));
        assert_eq!(place.check().unwrap().unwrap(), b"old\n");
        place.clean_up().unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn commands_around_it_that_fail_are_shown_with_what_they_print() {
        let mut command = command(&["true"]);
        let base = tempfile::tempdir().unwrap();
        let base = base.path();
        command.prepare = Some("echo the reason; exit 9".to_owned());
        let failure = Place::make(&command, base).unwrap_err();
        assert!(failure.message.contains("--prepare 'echo the reason; exit 9' failed"));
        assert_eq!(failure.output, "the reason");
        command.prepare = None;
        command.check = Some("seq 1 400000".to_owned());
        let failure = Place::make(&command, base).unwrap().check().unwrap_err();
        assert!(failure.message.contains("more than 1 MiB"), "{}", failure.message);
    }

    #[test]
    fn programs_are_found_as_the_shell_finds_them() {
        assert!(find_program(OsStr::new("sh")).is_ok());
        let kind = |name: &str| find_program(OsStr::new(name)).unwrap_err().kind();
        assert_eq!(kind("no-such-program"), io::ErrorKind::NotFound);
        assert_eq!(kind("/no/such/program"), io::ErrorKind::NotFound);
        assert_eq!(kind("/etc/passwd"), io::ErrorKind::PermissionDenied);
    }
}
