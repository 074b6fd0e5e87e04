//! What the facts mean for `run`.

use libc::{EINVAL, ENOSYS, ENOTTY, EPERM};
use rustix::process::Resource;

use super::files::Files;
use super::probes::{Failure, Outcome, Probes};
use super::{Finding, State};

const MIB: u64 = 1 << 20;

/// Descriptors that leave room for a tree of some hundred processes, and of each.
const FILES_WANTED: u64 = 1024;
const FILES_OF_PROCESS: u64 = 10;

/// Descriptors with which a run can start: some twenty are the supervisor's own.
const FILES_MIN: u64 = 64;

const SYSCTL: &str = "sysctl -w vm.unprivileged_userfaultfd=1";
const DEVICE_MODE: &str = "chmod 0666 /dev/userfaultfd";

/// Full mode and EVENT_FORK at once: docs/how-to/without-root.md, docs/how-to/containers.md.
const AS_ROOT: &str = "sudo uzswap run --limit SIZE -- runuser -u USER -- COMMAND";
const CONTAINER: &str = "docker run --device /dev/userfaultfd --cap-add SYS_PTRACE ...";
const ROOTFUL_CONTAINER: &str =
    "sudo docker run --device /dev/userfaultfd --cap-add SYS_PTRACE ...";

pub(super) fn all(files: &Files, probes: &Probes) -> Vec<Finding> {
    let mut found = vec![userfaultfd(files, probes)];
    found.extend(probes.features.iter().map(|(name, outcome)| feature(files, name, outcome)));
    found.push(pagemap_scan(&probes.pagemap_scan));
    found.push(read_memory(files, &probes.read_memory));
    found.push(kernel(files));
    found.push(capability(files));
    found.push(seccomp(files));
    found.push(loader(files));
    found.push(memory_cgroup(files));
    found.push(huge_pages(files));
    found.push(overcommit(files));
    found.push(open_files(files));
    found.extend(MEMORY_LIMITS.iter().filter_map(|limit| {
        little_memory(limit, files.hard_limit(limit.in_proc).filter(|_| !files.may_raise_limits()))
    }));
    found.push(locked_memory(files));
    found.push(zram(files));
    found.push(zswap(files));
    found
}

fn finding(
    topic: &'static str,
    state: State,
    found: impl Into<String>,
    means: impl Into<String>,
) -> Finding {
    Finding { topic, state, found: found.into(), means: means.into(), fix: Vec::new() }
}

impl Finding {
    fn fixed_by(mut self, commands: &[&str]) -> Finding {
        self.fix = commands.iter().map(|&command| command.to_owned()).collect();
        self
    }
}

/// /proc knows neither this process nor any other by its number: doctor can read nothing there.
pub(super) fn strange_proc() -> Option<Finding> {
    let link = std::fs::read_link("/proc/self").ok()?;
    let is_ours = link.to_str()?.parse() == Ok(std::process::id());
    let means = "processes have other PIDs there, so no process can be inspected";
    let strange = || finding("/proc", State::Missing, "mounted for another PID namespace", means);
    (!is_ours).then(|| strange().fixed_by(&["mount -t proc proc /proc", "unshare --mount-proc"]))
}

fn is(outcome: &Outcome, errno: i32) -> bool {
    *outcome == Err(Failure::Os(errno))
}

/// Says how something ended.
fn ended(outcome: &Outcome) -> String {
    outcome.as_ref().map_or_else(ToString::to_string, |()| "allowed".to_owned())
}

fn userfaultfd(files: &Files, probes: &Probes) -> Finding {
    let make = |state, found: &str, means: &str| finding("userfaultfd", state, found, means);
    let works = "page faults in system calls are served too";
    // A program cannot do what its supervisor may: it has capabilities of its own.
    if probes.by_device.is_ok() {
        return make(State::Ok, "full mode, by /dev/userfaultfd", works);
    }
    if probes.by_syscall.is_ok() {
        if files.is_full_mode_for_all() || files.programs_may_trace() {
            return make(State::Ok, "full mode, by the system call", works);
        }
        return make(
            State::Missing,
            "full mode for uzswap alone",
            "programs that uzswap starts lack CAP_SYS_PTRACE and cannot create a userfaultfd",
        )
        .fixed_by(&[SYSCTL, DEVICE_MODE]);
    }
    let knows = files.text("/proc/sys/vm/unprivileged_userfaultfd").is_some();
    let blocked = is(&probes.user_mode_only, EPERM) || is(&probes.user_mode_only, ENOSYS) && knows;
    if blocked && files.has_seccomp() {
        let found = format!("none: seccomp blocks the system call ({})", ended(&probes.by_syscall));
        let means = "a container needs the device /dev/userfaultfd, and CAP_SYS_PTRACE";
        return make(State::Missing, &found, means).fixed_by(&[container(files)]);
    }
    if is(&probes.user_mode_only, ENOSYS) {
        return make(
            State::Missing,
            "none: this kernel has no userfaultfd system call",
            "run needs a kernel with CONFIG_USERFAULTFD=y",
        );
    }
    let found = match probes.user_mode_only {
        Ok(()) => "for faults in user mode only".to_owned(),
        Err(_) => format!("none: {}", ended(&probes.by_syscall)),
    };
    let means = "system calls of programs would fail with EFAULT on compressed memory";
    let missing = make(State::Missing, &found, means);
    // The setting and the device give full mode, but not EVENT_FORK.
    if probes.features.iter().any(|(name, outcome)| *name == "EVENT_FORK" && outcome.is_err()) {
        return missing.fixed_by(&[AS_ROOT]);
    }
    missing.fixed_by(&[
        SYSCTL,
        DEVICE_MODE,
        r#"echo 'KERNEL=="userfaultfd", MODE="0666"' > /etc/udev/rules.d/60-userfaultfd.rules"#,
        AS_ROOT,
    ])
}

/// The command for a container that `run` works in: root of a user namespace may not follow forks.
fn container(files: &Files) -> &'static str {
    if files.is_first_user_namespace() { CONTAINER } else { ROOTFUL_CONTAINER }
}

fn feature(files: &Files, name: &'static str, outcome: &Outcome) -> Finding {
    let (since, purpose, without) = match name {
        "EVENT_FORK" => {
            ("4.11", "forked children keep their evicted pages", "a child would read zeros")
        }
        "EVENT_REMAP" => ("4.11", "mremap is followed", "moved memory would be lost"),
        "EVENT_REMOVE" => ("4.11", "madvise is followed", "dropped pages would come back"),
        "EVENT_UNMAP" => ("4.11", "munmap is followed", "unmapped pages would come back"),
        "WP_UNPOPULATED" => {
            ("6.4", "the page table tells evicted pages from fresh ones", "pages would be mixed up")
        }
        _ => ("6.8", "pages are moved out atomically", "pages cannot be evicted"),
    };
    match outcome {
        Ok(()) => finding(name, State::Ok, "tried, works", purpose),
        Err(Failure::Os(EINVAL)) => finding(
            name,
            State::Missing,
            "this kernel does not have it",
            format!("{without}; run needs Linux {since} or newer"),
        ),
        Err(Failure::Os(EPERM)) if name == "EVENT_FORK" => {
            let means = format!(
                "{without}; this needs CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 is not enough"
            );
            let found = ended(outcome);
            if !files.is_first_user_namespace() {
                let means =
                    format!("{means}, nor is root of a user namespace (rootless container)");
                return finding(name, State::Missing, found, means).fixed_by(&[ROOTFUL_CONTAINER]);
            }
            // A file capability would let every user of the machine read any process.
            finding(name, State::Missing, found, means).fixed_by(&[AS_ROOT, CONTAINER])
        }
        Err(_) => finding(name, State::Missing, ended(outcome), without),
    }
}

fn pagemap_scan(outcome: &Outcome) -> Finding {
    let topic = "PAGEMAP_SCAN";
    match outcome {
        Ok(()) => finding(topic, State::Ok, "tried, works", "resident pages are found quickly"),
        Err(Failure::Os(ENOTTY | EINVAL)) => finding(
            topic,
            State::Missing,
            "this kernel does not have it",
            "resident pages cannot be found; run needs Linux 6.7 or newer",
        ),
        Err(_) => finding(topic, State::Missing, ended(outcome), "resident pages cannot be found"),
    }
}

fn read_memory(files: &Files, outcome: &Outcome) -> Finding {
    let topic = "/proc/PID/mem";
    let scope = files.ptrace_scope();
    let scope_text = scope.map_or("no yama".to_owned(), |scope| format!("ptrace_scope {scope}"));
    if outcome.is_ok() {
        let found = format!("tried on a child, works ({scope_text})");
        return finding(topic, State::Ok, found, "uzswap can read the pages of programs");
    }
    let found = format!("{} ({scope_text})", ended(outcome));
    let missing = finding(topic, State::Missing, found, "uzswap cannot read the pages of programs");
    match scope {
        Some(2) => missing.fixed_by(&["sysctl -w kernel.yama.ptrace_scope=1"]),
        Some(3..) => Finding {
            means: missing.means + "; ptrace_scope 3 cannot be lowered before the next boot",
            ..missing
        },
        _ if files.has_seccomp() => missing.fixed_by(&[container(files)]),
        _ => missing,
    }
}

fn kernel(files: &Files) -> Finding {
    let release = files.text("/proc/sys/kernel/osrelease");
    let found = release.unwrap_or_else(|| "unknown".to_owned());
    finding("kernel", State::Ok, found, "run needs Linux 6.8 or newer")
}

fn capability(files: &Files) -> Finding {
    let topic = "CAP_SYS_PTRACE";
    let has = files.may_trace("CapEff");
    let user = if files.is_root() { "root" } else { "not root" };
    if !files.is_first_user_namespace() {
        let means = "EVENT_FORK needs it outside of the namespace";
        return finding(topic, State::Note, format!("{user} of a user namespace"), means);
    }
    match (has, files.programs_may_trace()) {
        (true, true) => finding(topic, State::Ok, user, "forks can be followed"),
        (true, false) => {
            let means = "programs that uzswap starts do not inherit it";
            finding(topic, State::Note, format!("{user}, for uzswap alone"), means)
        }
        (false, _) => {
            finding(topic, State::Note, format!("{user}, no"), "forks cannot be followed")
        }
    }
}

fn seccomp(files: &Files) -> Finding {
    if files.has_seccomp() {
        let means = "the filter can refuse system calls; those that run needs were tried above";
        finding("seccomp", State::Note, "this process has a filter", means)
    } else {
        finding("seccomp", State::Ok, "none", "no system call is filtered")
    }
}

fn loader(files: &Files) -> Finding {
    let loaders = files.loaders();
    match loaders.first() {
        Some(loader) => finding(
            "LD_PRELOAD",
            State::Ok,
            loader,
            "dynamically linked programs are managed; static and setuid ones are not",
        ),
        None => finding(
            "LD_PRELOAD",
            State::Missing,
            "no dynamic loader in /lib or /lib64",
            "without one all programs are static, and run would manage none",
        ),
    }
}

fn memory_cgroup(files: &Files) -> Finding {
    let topic = "memory cgroup";
    match files.memory_cgroup() {
        None => finding(topic, State::Ok, "none", "nothing else limits the program"),
        Some(group) => match group.limit {
            None => {
                let found = format!("v{}, no limit", group.version);
                finding(topic, State::Ok, found, "nothing else limits the program")
            }
            Some(limit) => {
                let found = format!("v{}, limit {} MiB", group.version, limit / MIB);
                let means = "the pool and uzswap count against it too: keep --limit below it";
                finding(topic, State::Note, found, means)
            }
        },
    }
}

fn huge_pages(files: &Files) -> Finding {
    let folder = "/sys/kernel/mm/transparent_hugepage";
    let topic = "huge pages";
    let Some(enabled) = files.choice(&format!("{folder}/enabled")) else {
        return finding(topic, State::Ok, "none", "pages are evicted and faulted in one by one");
    };
    let defrag = files.choice(&format!("{folder}/defrag"));
    let collapses = files.number(&format!("{folder}/khugepaged/defrag")) == Some(1);
    let found = format!(
        "{enabled}, defrag {}, khugepaged {}",
        defrag.as_deref().unwrap_or("unknown"),
        if collapses { "defragments" } else { "does not defragment" }
    );
    if enabled == "always" {
        let means = "one touch can allocate 2 MiB: peaks are higher, small limits are slower";
        let fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
        return finding(topic, State::Note, found, means).fixed_by(&[fix]);
    }
    finding(topic, State::Ok, found, "only programs that ask for huge pages get them")
}

fn overcommit(files: &Files) -> Finding {
    let topic = "overcommit";
    match files.number("/proc/sys/vm/overcommit_memory") {
        Some(2) => finding(
            topic,
            State::Note,
            "2, strict",
            "compressed memory counts as committed, so large programs can get ENOMEM",
        )
        .fixed_by(&["sysctl -w vm.overcommit_memory=0"]),
        mode => {
            let found = mode.map_or("unknown".to_owned(), |mode| mode.to_string());
            finding(topic, State::Ok, found, "programs may map more than the limit")
        }
    }
}

/// Where so few descriptors are allowed, as a hard limit, that nothing can be run.
pub(super) fn few_open_files(limit: Option<u64>) -> Option<Finding> {
    let limit = limit.filter(|&limit| limit < FILES_MIN)?;
    let means = format!("run needs {FILES_MIN} at least");
    let raise = format!("ulimit -n {FILES_WANTED}");
    Some(finding(OPEN_FILES, State::Missing, limit.to_string(), means).fixed_by(&[&raise]))
}

/// A limit of the memory that a process may have.
pub(super) struct MemoryLimit {
    topic: &'static str,
    pub(super) resource: Resource,
    /// Its name in `/proc/self/limits`.
    in_proc: &'static str,
    /// Its option of `ulimit`.
    option: &'static str,
}

pub(super) const MEMORY_LIMITS: [MemoryLimit; 2] = [
    MemoryLimit {
        topic: "address space",
        resource: Resource::As,
        in_proc: "Max address space",
        option: "-v",
    },
    MemoryLimit {
        topic: "data segment",
        resource: Resource::Data,
        in_proc: "Max data size",
        option: "-d",
    },
];

/// The supervisor's threads have stacks of 2 MiB, and their allocator 64 MiB of addresses each.
const MEMORY_MIN: u64 = 256 << 20;

/// Where so little memory is allowed, as a hard limit in bytes, that the supervisor would fail.
pub(super) fn little_memory(limit: &MemoryLimit, bytes: Option<u64>) -> Option<Finding> {
    let bytes = bytes.filter(|&bytes| bytes < MEMORY_MIN)?;
    let means = format!(
        "run needs {} MiB at least; its programs may have less: uzswap run ... -- sh -c 'ulimit {} \
         KIB; exec COMMAND'",
        MEMORY_MIN / MIB,
        limit.option
    );
    let raise = format!("ulimit {} unlimited", limit.option);
    let found = format!("{} KiB", bytes / 1024);
    Some(finding(limit.topic, State::Missing, found, means).fixed_by(&[&raise]))
}

const OPEN_FILES: &str = "open files";

fn open_files(files: &Files) -> Finding {
    let topic = OPEN_FILES;
    let limit = files.hard_limit("Max open files");
    if let Some(finding) = few_open_files(limit) {
        return finding;
    }
    // As many as may be are taken, and more where hard limits may be raised.
    let limit = match limit {
        Some(limit) if !files.may_raise_limits() => limit,
        limit => {
            let found = limit.map_or("no limit".to_owned(), |limit| limit.to_string());
            return finding(topic, State::Ok, found, "enough for large process trees");
        }
    };
    let most = limit / FILES_OF_PROCESS;
    let means = format!(
        "enough for some {most} processes at a time, ten for each; further ones run unmanaged"
    );
    if limit >= FILES_WANTED {
        return finding(topic, State::Ok, limit.to_string(), means);
    }
    let raise = format!("prlimit --pid $$ --nofile={}", FILES_WANTED * 16);
    finding(topic, State::Note, limit.to_string(), means).fixed_by(&[&raise])
}

fn locked_memory(files: &Files) -> Finding {
    let limit = files.soft_limit("Max locked memory");
    let found = limit.map_or("no limit".to_owned(), |limit| format!("limit {} KiB", limit / 1024));
    finding(
        "locked memory",
        State::Ok,
        found,
        "locked memory stays resident and counts against --limit",
    )
}

fn zram(files: &Files) -> Finding {
    let devices: Vec<String> =
        files.names("/sys/block").into_iter().filter(|name| name.starts_with("zram")).collect();
    let swaps = files.text("/proc/swaps").unwrap_or_default();
    let used: Vec<&str> = swaps
        .lines()
        .filter_map(|line| line.split_whitespace().next()?.strip_prefix("/dev/zram"))
        .collect();
    let topic = "zram";
    if !used.is_empty() {
        let found = format!("{} in use as swap", used.len());
        let means = "the kernel may compress pages too, including those of the pool";
        return finding(topic, State::Note, found, means);
    }
    let found = match devices.len() {
        0 => "no device".to_owned(),
        count => format!("{count} device(s), none in use as swap"),
    };
    finding(topic, State::Ok, found, "the kernel compresses no pages itself")
}

fn zswap(files: &Files) -> Finding {
    let parameter = |name: &str| files.text(&format!("/sys/module/zswap/parameters/{name}"));
    match parameter("enabled").as_deref() {
        None => finding("zswap", State::Ok, "not in the kernel", "no effect on run"),
        Some("Y" | "1") => {
            let compressor = parameter("compressor").unwrap_or_else(|| "unknown".to_owned());
            let means = "with swap, the kernel compresses pages too, including those of the pool";
            finding("zswap", State::Note, format!("on, {compressor}"), means)
        }
        Some(_) => finding("zswap", State::Ok, "off", "no effect on run"),
    }
}
