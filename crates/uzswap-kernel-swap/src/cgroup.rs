//! A memory cgroup, of version 1 or 2, that limits the anonymous memory of programs.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::cgroup_tree::{children, kill_all};
use super::change::Change;
use super::error::KernelSwapError;
use super::journal::{Changes, Journal};
use super::kernel_files::{Figures, number_of, unescaped, write_setting};

const PAGE: u64 = 4096;

/// Values of swappiness, of which the first is taken that the kernel takes: with the highest it
/// takes anonymous pages alone (200 since Linux 5.8).
const SWAPPINESS: [&str; 2] = ["200", "100"];

/// Bytes that one call reclaims at most: the pool may grow meanwhile, and is not looked at.
const RECLAIM_MAX: u64 = 256 << 10;

/// Bytes by which one write lowers a limit of version 1: those that the kernel reclaims at once
/// (`SWAP_CLUSTER_MAX`). The kernel takes the new limit at a moment at which usage is below it.
/// Programs take at once what is reclaimed for them, so a large step waits for such a moment for
/// tenths of a second.
const LIMIT_STEP: u64 = 32 * PAGE;

/// Swappiness for one call of memory.reclaim: `max` since Linux 6.17, numbers since 6.10.
const RECLAIM_SWAPPINESS: [&str; 3] = [" swappiness=max", " swappiness=200", ""];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    fn usage_file(self) -> &'static str {
        match self {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        }
    }

    fn limit_file(self) -> &'static str {
        match self {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        }
    }

    /// Resident anonymous memory, of the cgroup and those below it.
    fn anonymous(self) -> &'static str {
        match self {
            Version::V1 => "total_rss",
            Version::V2 => "anon",
        }
    }

    /// The file with a line `oom_kill N`.
    fn events_file(self) -> &'static str {
        match self {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        }
    }
}

/// Memory use of the programs in a cgroup, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct MemoryUsage {
    /// Resident anonymous memory.
    pub anonymous: u64,
    /// All that is charged to it: with page cache, tmpfs, and tables of the kernel.
    pub all: u64,
}

/// What [`MemoryCgroup::hold`] found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// What was used before.
    pub usage: MemoryUsage,
    /// The limit is as it was asked for: there is nothing to be reclaimed any more.
    pub is_reached: bool,
    /// The kernel could not reclaim what it was asked for.
    pub is_refused: bool,
}

/// A memory cgroup of our own. Dropping it ends the programs in it and removes it.
#[derive(Debug)]
pub(super) struct MemoryCgroup {
    folder: PathBuf,
    version: Version,
    stat: Figures,
    usage: Figures,
    limit: File,
    /// Those that made it.
    changes: Option<Changes>,
}

/// Where memory cgroups are made.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    /// The mount, below the root that was searched.
    folder: PathBuf,
}

impl Hierarchy {
    /// By /proc/mounts below `root`, where mounts are, too. With both versions mounted, memory
    /// belongs to one of them.
    fn find(root: &Path) -> io::Result<Option<Hierarchy>> {
        let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
        let mounts = fs::read_to_string(root.join("proc/mounts"))?;
        let found = |wanted: &dyn Fn(&str, &str, &Path) -> bool| {
            mounts.lines().find_map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                let &[_, point, kind, options, ..] = &words[..] else { return None };
                let folder = below(&unescaped(point));
                wanted(kind, options, &folder).then_some(folder)
            })
        };
        let v1 = found(&|kind, options, _| {
            kind == "cgroup" && options.split(',').any(|option| option == "memory")
        });
        if let Some(folder) = v1 {
            return Ok(Some(Hierarchy { version: Version::V1, folder }));
        }
        let v2 = found(&|kind, _, folder| {
            let controllers = fs::read_to_string(folder.join("cgroup.controllers"));
            kind == "cgroup2" && has_memory(&controllers.unwrap_or_default())
        });
        Ok(v2.map(|folder| Hierarchy { version: Version::V2, folder }))
    }
}

fn has_memory(controllers: &str) -> bool {
    controllers.split_whitespace().any(|name| name == "memory")
}

impl MemoryCgroup {
    /// Makes one, without a limit, at the top of the hierarchy.
    ///
    /// # Errors
    ///
    /// [`KernelSwapError::NoMemoryCgroup`]; [`KernelSwapError::Kernel`] where one cannot be made.
    pub(super) fn make(journal: &Journal) -> Result<MemoryCgroup, KernelSwapError> {
        MemoryCgroup::make_below(Path::new("/"), journal)
    }

    /// The same, with the files of the kernel below `root`.
    fn make_below(root: &Path, journal: &Journal) -> Result<MemoryCgroup, KernelSwapError> {
        let hierarchy = Hierarchy::find(root)
            .map_err(|error| KernelSwapError::kernel("read /proc/mounts", error))?
            .ok_or(KernelSwapError::NoMemoryCgroup)?;
        let mut changes = Changes::new(journal);
        if hierarchy.version == Version::V2 {
            enable_memory(&hierarchy.folder, &mut changes)?;
            let setting = root.join("proc/sys/vm/swappiness");
            first_taken(&SWAPPINESS, |text| changes.set(&setting, text))?;
        }
        let folder = hierarchy.folder.join(format!("uzswap-{}", journal.unique_name()));
        changes.make(Change::Cgroup { folder: folder.clone() }, || {
            fs::create_dir(&folder).map_err(|error| {
                KernelSwapError::on("make cgroup", &folder, error)
                    .advise("the cgroup hierarchy must be writable; in most containers it is not")
            })
        })?;
        let mut cgroup = MemoryCgroup::open(folder, hierarchy.version)?;
        cgroup.changes = Some(changes);
        if cgroup.version == Version::V1 {
            let setting = cgroup.folder.join("memory.swappiness");
            first_taken(&SWAPPINESS, |text| {
                write_setting(&setting, text)
                    .map_err(|error| KernelSwapError::on("write to", &setting, error))
            })?;
        }
        Ok(cgroup)
    }

    fn open(folder: PathBuf, version: Version) -> Result<MemoryCgroup, KernelSwapError> {
        let figures = |name: &str| {
            let path = folder.join(name);
            Figures::open(&path).map_err(|error| KernelSwapError::on("open", &path, error))
        };
        let (stat, usage) = (figures("memory.stat")?, figures(version.usage_file())?);
        let path = folder.join(version.limit_file());
        let limit = File::options().write(true).open(&path);
        let limit = limit.map_err(|error| KernelSwapError::on("open", &path, error))?;
        Ok(MemoryCgroup { folder, version, stat, usage, limit, changes: None })
    }

    /// Its folder: what `uzswap in-cgroup` takes.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Current memory use of its programs. The kernel's counts are up to some hundred KiB behind.
    ///
    /// # Errors
    ///
    /// Of reading the cgroup's files.
    pub(super) fn usage(&self) -> io::Result<MemoryUsage> {
        let text = self.stat.text()?;
        let anonymous =
            number_of(&text, self.version.anonymous()).ok_or_else(|| self.stat.strange())?;
        Ok(MemoryUsage { anonymous, all: self.usage.number()? })
    }

    /// Limits the anonymous memory in it, in bytes: its limit becomes what all of it takes now and
    /// what is left for anonymous memory. Page cache, tmpfs and tables are not limited. Where less
    /// than nothing is left, the kernel reclaims in this thread, at most 256 KiB in a call: the
    /// pool grows meanwhile. To be called again and again.
    ///
    /// # Errors
    ///
    /// Of reading and writing the cgroup's files.
    pub(super) fn hold(&self, limit_bytes: u64) -> io::Result<Held> {
        let usage = self.usage()?;
        let limit = (usage.all + limit_bytes).saturating_sub(usage.anonymous) / PAGE * PAGE;
        let next = limit.max(usage.all.saturating_sub(RECLAIM_MAX) / PAGE * PAGE);
        let is_done = match self.version {
            Version::V1 => self.lower_limit(usage.all, next)?,
            Version::V2 => {
                let is_done = next >= usage.all || self.reclaim(usage.all - next)?;
                // Below what is used the kernel would kill.
                let now = self.usage()?;
                let left = limit_bytes.saturating_sub(now.anonymous) / PAGE * PAGE;
                self.write_limit(now.all + left)? && is_done
            }
        };
        Ok(Held { usage, is_reached: is_done && next == limit, is_refused: !is_done })
    }

    /// Of version 1: sets a limit, step by step where it is below what is used; `false` where the
    /// kernel could not reclaim one of them.
    fn lower_limit(&self, used: u64, limit: u64) -> io::Result<bool> {
        let mut next = used.max(limit);
        loop {
            next = next.saturating_sub(LIMIT_STEP).max(limit);
            match self.write_limit(next)? {
                true if next > limit => {}
                is_done => return Ok(is_done),
            }
        }
    }

    fn write_limit(&self, bytes: u64) -> io::Result<bool> {
        tolerate(self.limit.write_all_at(bytes.to_string().as_bytes(), 0))
    }

    /// Of version 2: has the kernel reclaim so many bytes.
    fn reclaim(&self, bytes: u64) -> io::Result<bool> {
        let path = self.folder.join("memory.reclaim");
        for swappiness in RECLAIM_SWAPPINESS {
            match write_setting(&path, &format!("{bytes}{swappiness}")) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                // Before Linux 5.19: a write to memory.high reclaims; as a limit it slows down.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let high = self.folder.join("memory.high");
                    let limit = self.usage.number()?.saturating_sub(bytes);
                    let done = tolerate(write_setting(&high, &limit.to_string()));
                    write_setting(&high, "max")?;
                    return done;
                }
                result => return tolerate(result),
            }
        }
        Ok(false)
    }

    /// Processes in it that the kernel has killed for want of memory.
    ///
    /// # Errors
    ///
    /// Of reading the cgroup's files.
    pub(super) fn oom_kills(&self) -> io::Result<u64> {
        let text = fs::read_to_string(self.folder.join(self.version.events_file()))?;
        number_of(&text, "oom_kill")
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no line 'oom_kill'"))
    }

    /// Ends all processes in it, and waits until they are gone.
    ///
    /// # Errors
    ///
    /// Of reading the cgroup's files; `TimedOut` where one is not gone after 20 seconds.
    pub(super) fn kill_all(&self) -> io::Result<()> {
        kill_all(&self.folder)
    }

    /// Ends all processes in it, and removes it.
    ///
    /// # Errors
    ///
    /// [`KernelSwapError::NotUndone`]; it stays in the journal.
    pub(super) fn remove(mut self) -> Result<(), KernelSwapError> {
        let undone = self.changes.take().map(|mut changes| changes.undo());
        undone.unwrap_or_default().checked().map(drop)
    }
}

/// Tries values, until one is taken.
fn first_taken(
    values: &[&str],
    mut set: impl FnMut(&str) -> Result<(), KernelSwapError>,
) -> Result<(), KernelSwapError> {
    let (last, others) = values.split_last().expect("there is one");
    match others.iter().any(|value| set(value).is_ok()) {
        true => Ok(()),
        false => set(last),
    }
}

/// Whether it was done; errors that say that memory could not be reclaimed are none.
fn tolerate(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EBUSY | libc::ENOMEM | libc::EAGAIN | libc::EINTR)
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Of version 2: gives children of a cgroup the memory controller, if they do not have it.
fn enable_memory(folder: &Path, changes: &mut Changes) -> Result<(), KernelSwapError> {
    let path = folder.join("cgroup.subtree_control");
    let enabled =
        fs::read_to_string(&path).map_err(|error| KernelSwapError::on("read", &path, error))?;
    if has_memory(&enabled) {
        return Ok(());
    }
    let change = Change::Controller { cgroup: folder.to_owned(), children: children(folder) };
    changes.make(change, || {
        write_setting(&path, "+memory").map_err(|error| {
            KernelSwapError::on("enable the memory controller in", &path, error).advise(
                "EBUSY: a cgroup with processes of its own cannot enable controllers for \
                         children",
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::log::private_folder;
    use super::*;
    use std::process::Command;

    const V1: &str = "proc /proc proc rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";

    /// A machine with cgroups of version 2, of which the files are files.
    fn machine(subtree_control: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n");
        file("proc/sys/vm/swappiness", "60\n");
        file("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
        file("sys/fs/cgroup/cgroup.subtree_control", subtree_control);
        file("sys/fs/cgroup/system.slice/cgroup.procs", "");
        root
    }

    /// The cgroup of a folder that has files as the kernel would make them.
    fn group(root: &Path, anonymous: u64, current: u64) -> MemoryCgroup {
        let folder = root.join("group");
        fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        file("memory.stat", &format!("anon {anonymous}\nfile 500\n"));
        file("memory.current", &format!("{current}\n"));
        file("memory.max", "");
        file("memory.reclaim", "");
        file("memory.events", "low 0\noom 3\noom_kill 2\n");
        file("cgroup.procs", "");
        MemoryCgroup::open(folder, Version::V2).unwrap()
    }

    #[test]
    fn the_hierarchy_with_memory_is_found() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        let mounts = root.path().join("proc/mounts");
        fs::write(&mounts, V1).unwrap();
        let found = Hierarchy::find(root.path()).unwrap().unwrap();
        assert_eq!(found.version, Version::V1);
        assert_eq!(found.folder, root.path().join("sys/fs/cgroup/memory"));
        // The unified one has no memory controller where version 1 has it.
        fs::write(&mounts, V1.replace("memory", "blkio")).unwrap();
        assert_eq!(Hierarchy::find(root.path()).unwrap(), None);
        let root = machine("cpu\n");
        let found = Hierarchy::find(root.path()).unwrap().unwrap();
        assert_eq!(found.version, Version::V2);
    }

    #[test]
    fn version_2_gives_children_the_controller_and_takes_it_back() {
        let root = machine("cpu\n");
        let journals = private_folder();
        let journal = Journal::open_in(journals.path()).unwrap();
        let cgroup = root.path().join("sys/fs/cgroup");
        // Its folder has no files here: the kernel would make them.
        let error = MemoryCgroup::make_below(root.path(), &journal).unwrap_err().to_string();
        assert!(error.contains("memory.stat"), "{error}");
        let text = fs::read_to_string(journal.path()).unwrap();
        for part in ["controller", "swappiness", "system.slice", "\"cgroup\":{\"folder\""] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // All is undone, as far as files can tell: the kernel has a list there.
        let read = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
        assert_eq!(read("proc/sys/vm/swappiness").trim(), "60");
        assert!(!children(&cgroup).iter().any(|name| name.starts_with("uzswap-")));
        assert!(read("sys/fs/cgroup/cgroup.subtree_control").starts_with("+memory"));
        let change = Change::Controller { cgroup: cgroup.clone(), children: Vec::new() };
        fs::write(cgroup.join("cgroup.subtree_control"), "cpu memory\n").unwrap();
        let outcome = super::super::undo::undo(&change).unwrap();
        assert!(format!("{outcome:?}").contains("system.slice"), "{outcome:?}");
        let children = vec!["system.slice".to_owned()];
        super::super::undo::undo(&Change::Controller { cgroup: cgroup.clone(), children }).unwrap();
        assert!(read("sys/fs/cgroup/cgroup.subtree_control").starts_with("-memory"));
    }

    #[test]
    fn what_is_enabled_already_stays_so() {
        let root = machine("cpu memory\n");
        let journals = private_folder();
        let journal = Journal::open_in(journals.path()).unwrap();
        let folder = root.path().join("sys/fs/cgroup");
        enable_memory(&folder, &mut Changes::new(&journal)).unwrap();
        assert_eq!(fs::read_to_string(journal.path()).unwrap().lines().count(), 1); // its header
    }

    #[test]
    fn the_limit_is_of_anonymous_memory() {
        let root = tempfile::tempdir().unwrap();
        let mib = |count: u64| count << 20;
        let cgroup = group(root.path(), mib(10), mib(100));
        let read = |name: &str| fs::read_to_string(root.path().join("group").join(name)).unwrap();
        let held = cgroup.hold(mib(30)).unwrap();
        assert_eq!(held.usage, MemoryUsage { anonymous: mib(10), all: mib(100) });
        assert!(held.is_reached && !held.is_refused);
        // 20 MiB more than is used.
        assert_eq!(read("memory.max").trim(), mib(120).to_string());
        assert_eq!(read("memory.reclaim"), "");
        // 4 MiB too much: reclaimed step by step, and never a limit below what is used.
        assert!(!cgroup.hold(mib(6)).unwrap().is_reached);
        assert_eq!(read("memory.reclaim"), format!("{RECLAIM_MAX} swappiness=max"));
        assert!(read("memory.max").starts_with(&mib(100).to_string()));
        assert_eq!(cgroup.oom_kills().unwrap(), 2);
    }

    #[test]
    fn version_1_lowers_its_limit_step_by_step() {
        let root = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
        file("memory.stat", "rss 1\ntotal_rss 10485760\n");
        file("memory.usage_in_bytes", "104857600\n");
        file("memory.limit_in_bytes", "");
        let cgroup = MemoryCgroup::open(root.path().to_owned(), Version::V1).unwrap();
        let limit = || fs::read_to_string(root.path().join("memory.limit_in_bytes")).unwrap();
        // 10 MiB of 100 MiB are anonymous.
        let held = cgroup.hold(30 << 20).unwrap();
        assert_eq!((held.is_reached, limit()), (true, (120_u64 << 20).to_string()));
        let held = cgroup.hold(10 << 20).unwrap();
        assert_eq!((held.is_reached, limit()), (true, (100_u64 << 20).to_string()));
        let held = cgroup.hold(6 << 20).unwrap();
        assert_eq!((held.is_reached, held.is_refused), (false, false));
        assert!(limit().starts_with(&((100 << 20) - RECLAIM_MAX).to_string()), "{}", limit());
        // A step is no further than the end.
        let held = cgroup.hold((10 << 20) - LIMIT_STEP - PAGE).unwrap();
        assert!(held.is_reached);
        assert!(limit().starts_with(&((100 << 20) - LIMIT_STEP - PAGE).to_string()), "{}", limit());
    }

    #[test]
    fn version_2_without_the_memory_controller_is_none() {
        let root = machine("cpu\n");
        fs::write(root.path().join("sys/fs/cgroup/cgroup.controllers"), "cpu pids\n").unwrap();
        let journals = private_folder();
        let journal = Journal::open_in(journals.path()).unwrap();
        let error = MemoryCgroup::make_below(root.path(), &journal).unwrap_err();
        assert!(matches!(error, KernelSwapError::NoMemoryCgroup), "{error}");
        // Nothing was changed.
        let read = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
        assert_eq!(read("proc/sys/vm/swappiness").trim(), "60");
        assert_eq!(read("sys/fs/cgroup/cgroup.subtree_control"), "cpu\n");
    }

    #[test]
    fn of_two_mounts_of_version_2_the_one_with_memory_is_taken() {
        let root = machine("cpu memory\n");
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("mnt/other/cgroup.controllers", "\n");
        file(
            "proc/mounts",
            "cgroup2 /mnt/other cgroup2 rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        );
        let found = Hierarchy::find(root.path()).unwrap().unwrap();
        assert_eq!(found.folder, root.path().join("sys/fs/cgroup"));
    }

    #[test]
    fn what_is_in_a_cgroup_ends_with_it() {
        let root = tempfile::tempdir().unwrap();
        let cgroup = group(root.path(), 0, 0);
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let procs = root.path().join("group/cgroup.procs");
        fs::write(&procs, format!("{}\n", child.id())).unwrap();
        let waiter = std::thread::spawn(move || {
            let status = child.wait().unwrap();
            fs::write(procs, "").unwrap(); // the kernel does
            status
        });
        cgroup.kill_all().unwrap();
        assert!(!waiter.join().unwrap().success());
    }
}
