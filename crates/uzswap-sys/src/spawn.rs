//! Starts a program without a copy of this process's page tables, by `posix_spawn`.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt;
use std::process::Command;
use std::ptr;

use super::inherited::Inherited;
use super::ptrace;
use super::signals::SignalMask;

/// Starts a command and returns its PID. The command is found as a shell finds it; it gets the
/// signal mask `mask`, SIGPIPE by default, this process's environment with these variables changed,
/// and what is to be inherited. To set a mask or a limit, the standard library forks and copies the
/// page tables, which takes 0.2 ms; `posix_spawn` can set a mask alone.
///
/// # Errors
///
/// The kernel's, also of exec; `InvalidInput` where a word has a NUL in it.
///
/// # Panics
///
/// Without a first word.
pub fn spawn(
    argv: &[OsString],
    changed: &[(&str, &OsStr)],
    mask: SignalMask,
    inherited: &Inherited,
) -> io::Result<u32> {
    assert!(!argv.is_empty(), "a command has a name");
    let fork = || {
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).envs(changed.iter().copied());
        Ok(ptrace::spawn(&mut command, mask, inherited.clone(), false)?.id())
    };
    if !inherited.is_empty() {
        return fork();
    }
    let words = strings(argv.iter().cloned())?;
    let is_changed = |name: &OsStr| changed.iter().any(|(changed, _)| name == *changed);
    let kept = std::env::vars_os().filter(|(name, _)| !is_changed(name));
    let all = kept.chain(changed.iter().map(|(name, value)| (name.into(), value.into())));
    let variables = strings(all.map(|(name, value)| [name, value].join(OsStr::new("="))))?;
    let (words_at, variables_at) = (pointers(&words), pointers(&variables));
    let mut attributes = MaybeUninit::<libc::posix_spawnattr_t>::uninit();
    // SAFETY: the pointer is to room for it.
    done(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
    // SAFETY: initialised just now; in glibc and musl nothing in it needs to be freed.
    let mut attributes = unsafe { attributes.assume_init() };
    let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
    // SAFETY: as above.
    done(unsafe { libc::posix_spawnattr_setflags(&raw mut attributes, flags as libc::c_short) })?;
    // SAFETY: both are initialised.
    done(unsafe { libc::posix_spawnattr_setsigmask(&raw mut attributes, mask.set()) })?;
    let pipe = SignalMask::of(libc::SIGPIPE);
    // SAFETY: both are initialised.
    done(unsafe { libc::posix_spawnattr_setsigdefault(&raw mut attributes, pipe.set()) })?;
    let mut pid = 0;
    // SAFETY: the lists end with null, and what they name lives as long as this call.
    let spawned = done(unsafe {
        libc::posix_spawnp(
            &raw mut pid,
            words_at[0],
            ptr::null(),
            &raw const attributes,
            words_at.as_ptr().cast(),
            variables_at.as_ptr().cast(),
        )
    });
    match spawned {
        Ok(()) => Ok(pid as u32),
        // A script that names no shell: execvp has one run it, posix_spawn does not.
        Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => fork(),
        Err(error) => Err(error),
    }
}

fn strings(words: impl Iterator<Item = OsString>) -> io::Result<Vec<CString>> {
    words.map(|word| Ok(CString::new(word.into_vec())?)).collect()
}

/// A list as exec wants it.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

fn done(errno: libc::c_int) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    /// Output of a command, started with a signal held back, to the file named by its last argument
    /// and by a variable.
    fn output(argv: &[&str], changed: &[(&str, &OsStr)]) -> io::Result<String> {
        output_of_heir(argv, changed, &Inherited::default())
    }

    fn output_of_heir(
        argv: &[&str],
        changed: &[(&str, &OsStr)],
        inherited: &Inherited,
    ) -> io::Result<String> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("output");
        let last = [path.clone().into_os_string()];
        let argv: Vec<OsString> = argv.iter().map(OsString::from).chain(last).collect();
        let changed = [changed, &[("OUTPUT", path.as_os_str())]].concat();
        let pid = spawn(&argv, &changed, SignalMask::of(libc::SIGUSR1), inherited)?;
        let mut status = 0;
        // SAFETY: the pointer is to an integer of our own.
        assert_eq!(unsafe { libc::waitpid(pid as i32, &raw mut status, 0) }, pid as i32);
        assert_eq!(status, 0);
        fs::read_to_string(path)
    }

    #[test]
    fn a_program_has_its_words_its_variables_and_its_mask() {
        let script = "echo $0 $1 $HOME > $OUTPUT";
        let told = output(&["sh", "-c", script, "a", "b c"], &[("HOME", OsStr::new("x=y"))]);
        assert_eq!(told.unwrap(), "a b c x=y\n");
        let told = output(&["cp", "/proc/self/status"], &[]).unwrap();
        assert!(told.contains("SigBlk:\t0000000000000200\n"), "{told}");
    }

    #[test]
    fn a_program_has_the_limits_that_it_is_given() {
        let one_gib = |resource| {
            let maximum = getrlimit(resource).maximum;
            (resource, Rlimit { current: Some(1 << 30), maximum })
        };
        let limits = vec![one_gib(Resource::As), one_gib(Resource::Data)];
        let inherited = Inherited::take(limits);
        let told = output_of_heir(&["cp", "/proc/self/limits"], &[], &inherited).unwrap();
        let has =
            |name| told.lines().any(|line| line.starts_with(name) && line.contains(" 1073741824 "));
        assert!(has("Max address space") && has("Max data size"), "{told}");
        let told = output_of_heir(&["cp", "/proc/self/status"], &[], &inherited).unwrap();
        assert!(told.contains("SigBlk:\t0000000000000200\n"), "{told}");
    }

    #[test]
    fn a_script_that_names_no_shell_is_run_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, "echo $1 > $OUTPUT\n").unwrap();
        fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(output(&[script.to_str().unwrap(), "word"], &[]).unwrap(), "word\n");
    }

    #[test]
    fn what_cannot_be_started_is_an_error() {
        let kind = |word: &str| output(&[word], &[]).unwrap_err().kind();
        assert_eq!(kind("/no/such"), io::ErrorKind::NotFound);
        assert_eq!(kind("/etc/passwd"), io::ErrorKind::PermissionDenied);
        assert_eq!(kind("a\0b"), io::ErrorKind::InvalidInput);
    }
}
