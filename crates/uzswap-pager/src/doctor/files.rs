//! Settings of the kernel and of this process, read from the files of /proc and /sys below a root.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// From linux/capability.h.
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_RESOURCE: u32 = 24;

/// A limit of memory cgroup v1 at or above this is none: the largest multiple of a page, or what
/// the kernel makes of it.
const NO_LIMIT_V1: u64 = i64::MAX as u64 - (1 << 16);

/// What a version of memory cgroups calls the files of a group, and what a line of `memory.stat`
/// begins with.
struct CgroupNames {
    limit: &'static str,
    used: &'static str,
    unused_files: &'static str,
}

const CGROUP_V1: CgroupNames = CgroupNames {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    unused_files: "total_inactive_file ",
};

const CGROUP_V2: CgroupNames =
    CgroupNames { limit: "memory.max", used: "memory.current", unused_files: "inactive_file " };

/// The memory cgroup of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryCgroup {
    /// 1 or 2.
    pub(super) version: u8,
    /// The least limit of it and those above it, in bytes.
    pub(super) limit: Option<u64>,
    /// What is left below their limits, in bytes, were unused files dropped; the least.
    pub(super) free: Option<u64>,
}

/// The files.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
}

impl Files {
    /// The files below `root`, which has `proc` and `sys`.
    pub(super) fn below(root: &Path) -> Files {
        Files { root: root.to_owned() }
    }

    /// A file's text, without white space around it; `None` where it cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let mut file = File::open(self.root.join(path.trim_start_matches('/'))).ok()?;
        // /proc tells no sizes.
        let mut text = String::with_capacity(4096);
        file.read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned())
    }

    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Names in a folder, in order; none where there is none.
    pub(super) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(folder.trim_start_matches('/')));
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The choice in brackets: `always [madvise] never`.
    pub(super) fn choice(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    }

    /// A line of /proc/self/status.
    pub(super) fn status(&self, name: &str) -> Option<String> {
        self.line("/proc/self/status", &format!("{name}:"))
    }

    /// Whether a set of capabilities of /proc/self/status has `CAP_SYS_PTRACE`.
    pub(super) fn may_trace(&self, set: &str) -> bool {
        self.has_capability(set, CAP_SYS_PTRACE)
    }

    /// Whether this process may raise its hard limits: root in a container may not, as a rule.
    pub(super) fn may_raise_limits(&self) -> bool {
        self.has_capability("CapEff", CAP_SYS_RESOURCE)
    }

    fn has_capability(&self, set: &str, capability: u32) -> bool {
        let bits = self.status(set).and_then(|bits| u64::from_str_radix(&bits, 16).ok());
        bits.is_some_and(|bits| bits >> capability & 1 == 1)
    }

    /// Whether a filter of system calls is on this process.
    pub(super) fn has_seccomp(&self) -> bool {
        self.status("Seccomp").is_some_and(|mode| mode != "0")
    }

    pub(super) fn is_root(&self) -> bool {
        let ids = self.status("Uid").unwrap_or_default();
        ids.split_whitespace().nth(1) == Some("0") // real, effective, saved, file system
    }

    /// Whether users are those of the machine, and not of a container with a mapping.
    pub(super) fn is_first_user_namespace(&self) -> bool {
        self.text("/proc/self/uid_map")
            .is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
    }

    /// Whether programs that this process starts have `CAP_SYS_PTRACE`: by exec, root keeps what is
    /// in the bounding set, others keep the ambient set.
    pub(super) fn programs_may_trace(&self) -> bool {
        let kept = if self.is_root() { "CapBnd" } else { "CapAmb" };
        self.may_trace(kept) && self.is_first_user_namespace()
    }

    /// Yama's `kernel.yama.ptrace_scope`, where there is Yama.
    pub(super) fn ptrace_scope(&self) -> Option<u64> {
        self.number("/proc/sys/kernel/yama/ptrace_scope")
    }

    /// Whether the memory of programs that this process starts may be read, as far as Yama has it.
    pub(super) fn may_read_programs(&self) -> bool {
        match self.ptrace_scope() {
            None | Some(0 | 1) => true,
            Some(2) => self.may_trace("CapEff"),
            Some(_) => false,
        }
    }

    /// `vm.unprivileged_userfaultfd`.
    pub(super) fn is_full_mode_for_all(&self) -> bool {
        self.number("/proc/sys/vm/unprivileged_userfaultfd") == Some(1)
    }

    pub(super) fn memory_cgroup(&self) -> Option<MemoryCgroup> {
        let text = self.text("/proc/self/cgroup")?;
        let path_of = |wanted: fn(&str, &str) -> bool| {
            text.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':');
                let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
                wanted(id, controllers).then(|| path.to_owned())
            })
        };
        // With both mounted, memory belongs to one of them.
        let v1 = path_of(|_, controllers| controllers.split(',').any(|name| name == "memory"));
        let (version, mount, names, path) = match v1 {
            Some(path) => (1, "/sys/fs/cgroup/memory", CGROUP_V1, path),
            None => (2, "/sys/fs/cgroup", CGROUP_V2, path_of(|id, _| id == "0")?),
        };
        let limit_and_free = |folder: &Path| {
            let file = |name| format!("{mount}/{}/{name}", folder.display());
            let limit = self.number(&file(names.limit)).filter(|&limit| limit < NO_LIMIT_V1)?;
            let used = self.number(&file(names.used)).unwrap_or(0);
            let unused_files = self.number_after(&file("memory.stat"), names.unused_files);
            let kept = used.saturating_sub(unused_files.unwrap_or(0));
            Some((limit, limit.saturating_sub(kept)))
        };
        // In a container the path may be one of outside: the mount is its own then.
        let (limits, frees): (Vec<u64>, Vec<u64>) =
            Path::new(&path).ancestors().filter_map(limit_and_free).unzip();
        let (limit, free) = (limits.into_iter().min(), frees.into_iter().min());
        Some(MemoryCgroup { version, limit, free })
    }

    /// What follows the begin of the first line that begins so, without white space around it.
    fn line(&self, path: &str, begin: &str) -> Option<String> {
        let text = self.text(path)?;
        Some(text.lines().find_map(|line| line.strip_prefix(begin))?.trim().to_owned())
    }

    /// The number that follows the begin of a line.
    fn number_after(&self, path: &str, begin: &str) -> Option<u64> {
        self.line(path, begin)?.split_whitespace().next()?.parse().ok()
    }

    /// What programs can have before the machine, or a memory cgroup, has no more, in bytes.
    pub(super) fn available_memory(&self) -> Option<u64> {
        let of_machine = self.number_after("/proc/meminfo", "MemAvailable:")? * 1024; // it says kB
        let of_cgroup = self.memory_cgroup().and_then(|cgroup| cgroup.free);
        Some(of_machine.min(of_cgroup.unwrap_or(u64::MAX)))
    }

    /// A soft limit of /proc/self/limits; `None` for none.
    pub(super) fn soft_limit(&self, name: &str) -> Option<u64> {
        self.number_after("/proc/self/limits", name)
    }

    /// A hard limit of it.
    pub(super) fn hard_limit(&self, name: &str) -> Option<u64> {
        self.line("/proc/self/limits", name)?.split_whitespace().nth(1)?.parse().ok()
    }

    /// The loader of programs that are linked dynamically: of glibc or of musl.
    pub(super) fn loaders(&self) -> Vec<String> {
        let is_loader = |name: &String| {
            (name.starts_with("ld-") || name.starts_with("ld64")) && name.contains(".so")
        };
        let folders = ["/lib64", "/lib"].into_iter();
        folders
            .flat_map(|folder| {
                let names = self.names(folder).into_iter().filter(is_loader);
                names.map(move |name| format!("{folder}/{name}"))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yama_decides_whose_memory_may_be_read() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let may_read = || Files::below(root.path()).may_read_programs();
        assert!(may_read(), "without Yama");
        for (scope, for_root, for_others) in
            [("0\n", true, true), ("1\n", true, true), ("2\n", true, false), ("3\n", false, false)]
        {
            file("proc/sys/kernel/yama/ptrace_scope", scope);
            file("proc/self/status", "CapEff:\t000001ffffffffff\n");
            assert_eq!(may_read(), for_root, "{scope}");
            file("proc/self/status", "CapEff:\t0000000000000000\n");
            assert_eq!(may_read(), for_others, "{scope}");
        }
    }
}
