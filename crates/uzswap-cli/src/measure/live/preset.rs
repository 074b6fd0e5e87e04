//! Presets: common studies of memory developers, with command and steps around it.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::LiveCommand;
use uzswap::by_name::by_name;

/// The folder of a run in a build: the copy of the source tree.
const TREE: &str = "{dir}/tree";

/// Threads of the usemem preset where none are asked for, and bytes of each.
const USEMEM_THREADS: usize = 2;
const USEMEM_BYTES: u64 = 64 << 20;

/// Bytes of the memhog preset, and rounds.
const MEMHOG_BYTES: u64 = 256 << 20;
const MEMHOG_ROUNDS: usize = 8;

/// Seconds of the stress preset, as the linux-mm study ran it.
const STRESS_SECONDS: u64 = 300;

/// A ready study.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// A source tree, copied to the run's folder and built there by make.
    Build,
    /// Threads that fill memory of their own and read it again.
    Usemem {
        /// How many.
        threads: usize,
        /// Bytes of each.
        bytes: u64,
        /// Whether pages are read in random order.
        is_random: bool,
    },
    /// One thread that fills memory again and again.
    Memhog {
        /// Its bytes.
        bytes: u64,
        /// How often.
        rounds: usize,
    },
    /// stress-ng as the linux-mm study ran it.
    Stress {
        /// For how long.
        seconds: u64,
    },
}

/// A text that names no preset, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown preset '{0}'; one of: build, usemem, usemem:4x64M, usemem:4x64M:random, memhog, \
     memhog:256M, stress, stress:60s"
)]
pub struct PresetNameError(String);

impl FromStr for Preset {
    type Err = PresetNameError;

    fn from_str(text: &str) -> Result<Preset, PresetNameError> {
        let error = || PresetNameError(text.to_owned());
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let (first, second) = (parts.next(), parts.next());
        if parts.next().is_some() {
            return Err(error());
        }
        match (name, first, second) {
            ("build", None, None) => Ok(Preset::Build),
            ("usemem", size, order) => {
                let (threads, bytes) = match size {
                    None => (USEMEM_THREADS, USEMEM_BYTES),
                    Some(size) => {
                        let (threads, bytes) = size.split_once('x').ok_or_else(error)?;
                        let threads = threads.parse().ok().filter(|it| (1..=1024).contains(it));
                        (threads.ok_or_else(error)?, bytes_of(bytes).ok_or_else(error)?)
                    }
                };
                let is_random = match order {
                    None | Some("sequential") => false,
                    Some("random") => true,
                    Some(_) => return Err(error()),
                };
                Ok(Preset::Usemem { threads, bytes, is_random })
            }
            ("memhog", size, None) => {
                let bytes = size.map_or(Some(MEMHOG_BYTES), bytes_of).ok_or_else(error)?;
                Ok(Preset::Memhog { bytes, rounds: MEMHOG_ROUNDS })
            }
            ("stress", time, None) => {
                let seconds = match time {
                    None => STRESS_SECONDS,
                    Some(time) => {
                        let number = time.strip_suffix('s').and_then(|it| it.parse().ok());
                        number.filter(|&seconds| seconds > 0).ok_or_else(error)?
                    }
                };
                Ok(Preset::Stress { seconds })
            }
            _ => Err(error()),
        }
    }
}

/// `64M` or `1G`, at least a page.
fn bytes_of(text: &str) -> Option<u64> {
    let shift = match text.as_bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => return None,
    };
    let number: u64 = text[..text.len() - 1].parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| (4096..1 << 46).contains(bytes))
}

by_name!(Preset);

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Preset::Build => f.write_str("build"),
            Preset::Usemem { threads, bytes, is_random } => {
                let order = if *is_random { "random" } else { "sequential" };
                write!(f, "usemem:{threads}x{}K:{order}", bytes >> 10)
            }
            Preset::Memhog { bytes, .. } => write!(f, "memhog:{}K", bytes >> 10),
            Preset::Stress { seconds } => write!(f, "stress:{seconds}s"),
        }
    }
}

/// The machine, as far as a preset depends on it.
#[derive(Debug, Clone, Copy)]
pub struct PresetPlace<'a> {
    /// The source tree that is built.
    pub source: Option<&'a Path>,
    /// This program, which has usemem and memhog in it.
    pub own_program: &'a Path,
    /// Processors: that many jobs are built at once.
    pub cpus: usize,
    /// Size of a tmpfs for the build; without one it is on disk.
    pub tmpfs_bytes: Option<u64>,
}

impl Preset {
    /// The command and what surrounds it.
    ///
    /// # Errors
    ///
    /// In words, if something is missing.
    pub fn command(&self, place: &PresetPlace<'_>) -> Result<LiveCommand, String> {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<OsString>>();
        let own = |arguments: Vec<String>| -> Vec<OsString> {
            let mut argv = vec![place.own_program.as_os_str().to_owned(), "use-memory".into()];
            argv.extend(arguments.into_iter().map(OsString::from));
            argv
        };
        let mut command = LiveCommand { preset: Some(*self), ..LiveCommand::new(Vec::new()) };
        if place.source.is_some() && *self != Preset::Build {
            return Err(format!("--source works with --preset build only, not {self}"));
        }
        match self {
            Preset::Build => {
                let source = place.source.ok_or_else(|| {
                    "--preset build needs --source DIR, a tree that make(1) builds".to_owned()
                })?;
                let makefile = ["Makefile", "makefile", "GNUmakefile"];
                if !makefile.iter().any(|name| source.join(name).is_file()) {
                    return Err(format!(
                        "--source {} has no Makefile; give a tree that make(1) builds",
                        source.display()
                    ));
                }
                let jobs = format!("-j{}", place.cpus);
                // The same bytes each time: without dates, users and hosts in them.
                command.argv = words(&[
                    "env",
                    "SOURCE_DATE_EPOCH=0",
                    "KBUILD_BUILD_TIMESTAMP=0",
                    "KBUILD_BUILD_USER=user",
                    "KBUILD_BUILD_HOST=host",
                    "make",
                    "-C",
                    TREE,
                    &jobs,
                ]);
                // A kernel that nobody has configured gets its smallest configuration.
                command.prepare = Some(format!(
                    "cp -a {} {TREE} && cd {TREE} && if test -e Kconfig && test ! -e .config; \
                     then make tinyconfig; fi",
                    quoted(source)
                ));
                command.check = Some(format!(
                    "cd {TREE} && find . -name '*.o' -type f | LC_ALL=C sort | xargs cat | cksum"
                ));
                command.tmpfs_bytes = place.tmpfs_bytes;
            }
            Preset::Usemem { threads, bytes, is_random } => {
                let mut arguments = vec![
                    "--threads".to_owned(),
                    threads.to_string(),
                    "--size".to_owned(),
                    bytes.to_string(),
                ];
                if *is_random {
                    arguments.push("--random".to_owned());
                }
                command.argv = own(arguments);
            }
            Preset::Memhog { bytes, rounds } => {
                command.argv = own(vec![
                    "--hog".to_owned(),
                    "--size".to_owned(),
                    bytes.to_string(),
                    "--rounds".to_owned(),
                    rounds.to_string(),
                ]);
            }
            Preset::Stress { seconds } => {
                let timeout = format!("{seconds}s");
                command.argv = words(&[
                    "stress-ng",
                    "--io",
                    "4",
                    "--vm",
                    "4",
                    "--vm-bytes",
                    "1000M",
                    // Totals of different methods are not to be compared.
                    "--vm-method",
                    "rand-set",
                    "--timeout",
                    &timeout,
                    "--metrics-brief",
                ]);
            }
        }
        Ok(command)
    }

    /// A remark on the preset's figures.
    pub fn note(&self) -> Option<String> {
        match self {
            Preset::Stress { .. } => Some(format!(
                "stress-ng runs for a fixed time: read its counts, not its run time. An operation \
                 of io is sync(2), syncfs(2) and syncfs of each of {} mounts; their number and the \
                 dirty pages of the whole machine decide it, so that it cannot measure an index or \
                 an allocator. --vm-bytes is divided by the workers: 250 MB each.",
                mounts()
            )),
            _ => None,
        }
    }
}

/// Mounts of this process.
fn mounts() -> usize {
    std::fs::read_to_string("/proc/self/mounts").map_or(0, |text| text.lines().count())
}

/// A path for the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}

/// The operations that stress-ng counted, by stressor.
pub(super) fn stress_counts(output: &str) -> Vec<(String, f64)> {
    // stress-ng: metrc: [17] vm  1234 ... : stressor, bogo ops, real, usr, sys, ops/s (real), ...
    let mut counts = Vec::new();
    for line in output.lines() {
        let Some((_, row)) = line.split_once(']') else { continue };
        let words: Vec<&str> = row.split_whitespace().collect();
        if let [name @ ("io" | "vm"), operations, ..] = &words[..]
            && let Ok(operations) = operations.parse()
            && words.len() >= 6
        {
            counts.push((format!("{name} operations"), operations));
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(source: Option<&Path>) -> PresetPlace<'_> {
        let own_program = Path::new("/bin/uzswap");
        PresetPlace { source, own_program, cpus: 2, tmpfs_bytes: Some(1 << 30) }
    }

    #[test]
    fn names_are_parsed_or_refused_in_words() {
        let parsed = |text: &str| text.parse::<Preset>();
        let usemem = |threads, bytes, is_random| Preset::Usemem { threads, bytes, is_random };
        assert_eq!(parsed("build"), Ok(Preset::Build));
        assert_eq!(parsed("usemem"), Ok(usemem(2, 64 << 20, false)));
        assert_eq!(parsed("usemem:52x300M:random"), Ok(usemem(52, 300 << 20, true)));
        assert_eq!(parsed("memhog:48G"), Ok(Preset::Memhog { bytes: 48 << 30, rounds: 8 }));
        assert_eq!(parsed("stress:5s"), Ok(Preset::Stress { seconds: 5 }));
        for wrong in ["", "built", "usemem:4", "usemem:0x1M", "usemem:2x1", "memhog:", "stress:0s"]
        {
            assert!(parsed(wrong).unwrap_err().to_string().contains("one of: build"), "{wrong}");
        }
        for name in ["build", "usemem:3x5M:random", "memhog:7M", "stress:9s"] {
            let preset = parsed(name).unwrap();
            assert_eq!(parsed(&preset.to_string()), Ok(preset));
        }
    }

    #[test]
    fn a_build_needs_a_tree_that_make_builds() {
        let missing = Preset::Build.command(&place(None)).unwrap_err();
        assert!(missing.contains("--source DIR"), "{missing}");
        let none = Preset::Build.command(&place(Some(Path::new("/proc")))).unwrap_err();
        assert!(none.contains("/proc has no Makefile"), "{none}");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("Makefile"), "all:\n").unwrap();
        let command = Preset::Build.command(&place(Some(folder.path()))).unwrap();
        assert!(command.text().ends_with("make -C {dir}/tree -j2"), "{}", command.text());
        assert_eq!(command.tmpfs_bytes, Some(1 << 30));
        let usemem = Preset::Memhog { bytes: 1, rounds: 1 };
        assert!(usemem.command(&place(Some(folder.path()))).is_err());
    }

    #[test]
    fn the_counts_of_stress_ng_are_read() {
        let output = "stress-ng: info:  [7] dispatching hogs: 4 io, 4 vm\n\
            stress-ng: metrc: [7] stressor   bogo ops real time  usr time  sys time   bogo ops/s\n\
            stress-ng: metrc: [7]                       (secs)    (secs)    (secs)   (real time)\n\
            stress-ng: metrc: [7] io        73778     5.00      0.01      0.05     14755.60  1.0\n\
            stress-ng: metrc: [7] vm          512     5.04      3.88      0.30       101.59  2.0\n";
        let counts = stress_counts(output);
        assert_eq!(
            counts,
            [("io operations".to_owned(), 73778.0), ("vm operations".to_owned(), 512.0)]
        );
        assert!(stress_counts("make: [x] vm").is_empty());
    }
}
