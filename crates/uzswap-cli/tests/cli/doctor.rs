//! Goal: each verdict of `uzswap doctor`, and the advice that goes with it.
//! Method: made-up files of the kernel and made-up outcomes of probes; then the real program.
//! `live` tests the view of another user.
//! Blind to: whether a command of the advice helps.

use std::fs;

use crate::support::uzswap;
use serde_json::Value;
use tempfile::TempDir;
use uzswap_pager::doctor::{
    Failure, Finding, Probes, Report, State, available_memory_of, what_run_needs,
};

const EPERM: i32 = 1;
const EINVAL: i32 = 22;
const ENOTTY: i32 = 25;
const ENOSYS: i32 = 38;

/// All sets of capabilities, and none.
const ALL: &str = "000001ffffffffff";
const NONE: &str = "0000000000000000";

/// A machine where everything is as it should be: root, Linux 6.18, cgroup v2.
struct Machine {
    root: TempDir,
    probes: Probes,
}

impl Machine {
    fn new() -> Machine {
        let events = ["EVENT_FORK", "EVENT_REMAP", "EVENT_REMOVE", "EVENT_UNMAP"];
        let features = events.into_iter().chain(["MOVE", "WP_UNPOPULATED"]);
        let machine = Machine {
            root: tempfile::tempdir().unwrap(),
            probes: Probes {
                by_syscall: Ok(()),
                by_device: Ok(()),
                user_mode_only: Ok(()),
                features: features.map(|name| (name, Ok(()))).collect(),
                pagemap_scan: Ok(()),
                read_memory: Ok(()),
            },
        };
        machine
            .status("0", ALL, 0)
            .file("proc/self/uid_map", "         0          0 4294967295\n")
            .file("proc/self/cgroup", "0::/user.slice/a.scope\n")
            .file("proc/self/limits", "Max open files            20000     20000     files\n")
            .file("proc/sys/vm/unprivileged_userfaultfd", "0\n")
            .file("proc/sys/vm/overcommit_memory", "0\n")
            .file("proc/sys/kernel/osrelease", "6.18.1\n")
            .file("proc/sys/kernel/yama/ptrace_scope", "1\n")
            .file("proc/swaps", "Filename Type Size Used Priority\n")
            .file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
            .file("sys/kernel/mm/transparent_hugepage/defrag", "always [madvise] never\n")
            .file("sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "1\n")
            .file("sys/module/zswap/parameters/enabled", "N\n")
            .file("sys/module/zswap/parameters/compressor", "zstd\n")
            .file("lib64/ld-linux-x86-64.so.2", "")
    }

    fn file(self, path: &str, text: &str) -> Machine {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn status(self, user: &str, capabilities: &str, seccomp: u8) -> Machine {
        let text = format!(
            "Name:\tuzswap\nUid:\t{user}\t{user}\t{user}\t{user}\nCapEff:\t{capabilities}\n\
             CapBnd:\t{ALL}\nCapAmb:\t{NONE}\nSeccomp:\t{seccomp}\nSeccomp_filters:\t0\n"
        );
        self.file("proc/self/status", &text)
    }

    fn refuses_userfaultfd(mut self, full: i32, user_mode: Option<i32>) -> Machine {
        self.probes.by_syscall = Err(Failure::Os(full));
        self.probes.by_device = Err(Failure::Os(13));
        self.probes.user_mode_only = user_mode.map_or(Ok(()), |errno| Err(Failure::Os(errno)));
        self
    }

    fn refuses(mut self, feature: &str, failure: Failure) -> Machine {
        let found = self.probes.features.iter_mut().find(|(name, _)| *name == feature).unwrap();
        found.1 = Err(failure);
        self
    }

    fn report(&self) -> Report {
        Report::of(self.root.path(), &self.probes)
    }

    /// Checks that `run` cannot work, for this reason alone.
    #[track_caller]
    fn lacks(&self, topic: &str, words: &[&str]) {
        let report = self.report();
        assert!(!report.works);
        assert_eq!(report.verdict, format!("uzswap run does not work here: no {topic}"));
        self.says(topic, State::Missing, words);
    }

    /// That `run` works all the same.
    #[track_caller]
    fn notes(&self, topic: &str, words: &[&str]) {
        assert!(self.report().works);
        self.says(topic, State::Note, words);
    }

    #[track_caller]
    fn says(&self, topic: &str, state: State, words: &[&str]) {
        let report = self.report();
        let finding = report.findings.iter().find(|finding| finding.topic == topic).unwrap();
        assert_eq!(finding.state, state, "{finding:?}");
        let Finding { found, means, fix, .. } = finding;
        let text = format!("{found}: {means}\n{}", fix.join("\n"));
        for word in words {
            assert!(text.contains(word), "'{word}' is not in '{text}'");
        }
    }

    #[track_caller]
    fn says_nothing(&self, topic: &str) {
        let report = self.report();
        assert!(report.findings.iter().all(|finding| finding.topic != topic), "{report:?}");
    }
}

#[test]
fn a_good_machine_has_nothing_to_note() {
    let report = Machine::new().report();
    assert_eq!(report.verdict, "uzswap run works here");
    for finding in &report.findings {
        assert_eq!(finding.state, State::Ok, "{finding:?}");
        assert!(finding.fix.is_empty() && !finding.means.is_empty(), "{finding:?}");
    }
    assert_eq!(report.findings.len(), 20);
}

#[test]
fn files_that_cannot_be_read_are_no_obstacle() {
    let machine = Machine::new();
    let nothing = tempfile::tempdir().unwrap();
    let report = Report::of(nothing.path(), &machine.probes);
    // Without a loader there is nothing to preload into.
    assert_eq!(report.verdict, "uzswap run does not work here: no LD_PRELOAD");
}

#[test]
fn userfaultfd_can_be_refused_in_many_ways() {
    let sysctl = "sysctl -w vm.unprivileged_userfaultfd=1";
    Machine::new()
        .refuses_userfaultfd(EPERM, None)
        .lacks("userfaultfd", &["user mode only", "EFAULT", sysctl, "/dev/userfaultfd", "udev"]);
    // Before Linux 5.11 there is no user mode only.
    Machine::new()
        .refuses_userfaultfd(EPERM, Some(EINVAL))
        .lacks("userfaultfd", &["none: Operation not permitted", sysctl]);
    Machine::new()
        .refuses_userfaultfd(ENOSYS, Some(ENOSYS))
        .lacks("userfaultfd", &["no userfaultfd system call", "CONFIG_USERFAULTFD"]);
    for errno in [EPERM, ENOSYS] {
        Machine::new().status("0", ALL, 2).refuses_userfaultfd(errno, Some(errno)).lacks(
            "userfaultfd",
            &["seccomp", "docker run --device /dev/userfaultfd --cap-add SYS_PTRACE"],
        );
    }
    // A filter that lets it through is not to blame.
    Machine::new()
        .status("0", ALL, 2)
        .refuses_userfaultfd(EPERM, None)
        .lacks("userfaultfd", &["user mode only", sysctl]);
}

#[test]
fn a_capability_of_uzswap_alone_is_not_enough() {
    let mut machine = Machine::new().status("1000", "0000000000080000", 0);
    machine.probes.by_device = Err(Failure::Os(13));
    machine.lacks("userfaultfd", &["for uzswap alone", "sysctl", "chmod 0666"]);
    let machine = machine.file("proc/sys/vm/unprivileged_userfaultfd", "1\n");
    machine.notes("CAP_SYS_PTRACE", &["uzswap alone"]);
    // With the device open to all, no setting is needed.
    let mut machine = Machine::new().status("1000", "0000000000080000", 0);
    machine.probes.by_syscall = Err(Failure::Os(EPERM));
    machine.notes("CAP_SYS_PTRACE", &["uzswap alone"]);
}

#[test]
fn forks_need_a_capability_of_the_machine() {
    let fork = |machine: Machine| machine.refuses("EVENT_FORK", Failure::Os(EPERM));
    let container = "docker run --device /dev/userfaultfd --cap-add SYS_PTRACE";
    let machine = fork(Machine::new().status("1000", NONE, 0));
    machine.lacks("EVENT_FORK", &["would read zeros", "sudo uzswap run", container]);
    machine.says("CAP_SYS_PTRACE", State::Note, &["not root"]);
    let machine = fork(Machine::new().file("proc/self/uid_map", "0 100000 65536\n"));
    machine.lacks("EVENT_FORK", &["user namespace", "sudo docker run", container]);
    machine.says("CAP_SYS_PTRACE", State::Note, &["outside of the namespace"]);
    // The setting and the device do not give EVENT_FORK: they are no advice where that is missing.
    let machine = Machine::new().status("1000", NONE, 0).refuses_userfaultfd(EPERM, None);
    let report = fork(machine).report();
    let fixes: Vec<&str> = report.findings.iter().flat_map(|it| &it.fix).map(|it| &**it).collect();
    assert!(fixes.iter().any(|fix| fix.starts_with("sudo uzswap run")), "{fixes:?}");
    assert!(!fixes.iter().any(|fix| fix.contains("sysctl") || fix.contains("chmod")), "{fixes:?}");
}

#[test]
fn old_kernels_are_told_by_what_they_lack() {
    Machine::new().refuses("MOVE", Failure::Os(EINVAL)).lacks("MOVE", &["Linux 6.8"]);
    let machine = Machine::new().refuses("WP_UNPOPULATED", Failure::Os(EINVAL));
    machine.lacks("WP_UNPOPULATED", &["Linux 6.4"]);
    for feature in ["EVENT_REMAP", "EVENT_REMOVE", "EVENT_UNMAP", "EVENT_FORK"] {
        Machine::new()
            .refuses(feature, Failure::Wrong("madvise was not reported"))
            .lacks(feature, &["madvise was not reported"]);
    }
    let mut machine = Machine::new();
    machine.probes.pagemap_scan = Err(Failure::Os(ENOTTY));
    machine.lacks("PAGEMAP_SCAN", &["Linux 6.7"]);
}

#[test]
fn memory_of_programs_must_be_readable() {
    for (scope, advice) in [("2\n", "sysctl -w kernel.yama.ptrace_scope=1"), ("3\n", "next boot")] {
        let mut machine = Machine::new().file("proc/sys/kernel/yama/ptrace_scope", scope);
        machine.probes.read_memory = Err(Failure::Os(EPERM));
        machine.lacks("/proc/PID/mem", &["Operation not permitted", advice]);
    }
    let mut machine = Machine::new().status("0", ALL, 2);
    machine.probes.read_memory = Err(Failure::Os(ENOSYS));
    machine.lacks("/proc/PID/mem", &["docker run --device /dev/userfaultfd --cap-add SYS_PTRACE"]);
}

#[test]
fn the_least_limit_of_the_cgroups_counts() {
    let v2 = Machine::new()
        .file("sys/fs/cgroup/user.slice/memory.max", "104857600\n")
        .file("sys/fs/cgroup/user.slice/a.scope/memory.max", "max\n");
    v2.notes("memory cgroup", &["v2, limit 100 MiB"]);
    let both = v2.file("sys/fs/cgroup/user.slice/a.scope/memory.max", "209715200\n");
    both.notes("memory cgroup", &["v2, limit 100 MiB"]);
    // In a container the group's path is one of outside.
    let inside = Machine::new().file("sys/fs/cgroup/memory.max", "52428800\n");
    inside.notes("memory cgroup", &["v2, limit 50 MiB"]);
    let v1 = |limit| {
        Machine::new()
            .file("proc/self/cgroup", "5:cpu,cpuacct:/b\n4:memory:/a\n0::/c\n")
            .file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", limit)
            .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    };
    v1("1048576\n").notes("memory cgroup", &["v1, limit 1 MiB"]);
    v1("9223372036854771712\n").says("memory cgroup", State::Ok, &["v1, no limit"]);
}

#[test]
fn what_is_available_is_the_least_of_machine_and_cgroups() {
    let available = |machine: &Machine| available_memory_of(machine.root.path());
    assert_eq!(available(&Machine::new()), None);
    let machine = || Machine::new().file("proc/meminfo", "MemFree: 7 kB\nMemAvailable: 2048 kB\n");
    assert_eq!(available(&machine()), Some(2 << 20));
    let v2 = machine()
        .file("sys/fs/cgroup/user.slice/memory.max", "1000000\n")
        .file("sys/fs/cgroup/user.slice/memory.current", "500000\n")
        .file("sys/fs/cgroup/user.slice/memory.stat", "anon 300\ninactive_file 1000\nfile 7\n")
        .file("sys/fs/cgroup/user.slice/a.scope/memory.max", "max\n");
    assert_eq!(available(&v2), Some(501_000));
    // The one below has less left, then nothing: more is used than is allowed since.
    let group = "sys/fs/cgroup/user.slice/a.scope";
    let below = v2
        .file(&format!("{group}/memory.max"), "400000\n")
        .file(&format!("{group}/memory.current"), "100000\n");
    assert_eq!(available(&below), Some(300_000));
    let over = below.file(&format!("{group}/memory.current"), "400001\n");
    assert_eq!(available(&over), Some(0));
    let v1 = machine()
        .file("proc/self/cgroup", "4:memory:/a\n0::/c\n")
        .file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000\n")
        .file("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "500000\n")
        .file("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 9\ntotal_inactive_file 40000\n");
    assert_eq!(available(&v1), Some(540_000));
}

#[test]
fn settings_around_are_noted() {
    let huge = "sys/kernel/mm/transparent_hugepage/enabled";
    Machine::new()
        .file(huge, "[always] madvise never\n")
        .notes("huge pages", &["always, defrag madvise", "echo madvise > /sys/kernel/mm"]);
    Machine::new()
        .file("proc/sys/vm/overcommit_memory", "2\n")
        .notes("overcommit", &["strict", "vm.overcommit_memory=0"]);
    let files = |soft: u32, hard: u32, capabilities: &str| {
        let limits = format!("Max open files            {soft}     {hard}     files\n");
        Machine::new().file("proc/self/limits", &limits).status("0", capabilities, 0)
    };
    let in_container = "000001fffeffffff"; // without CAP_SYS_RESOURCE
    files(256, 600, in_container)
        .notes("open files", &["600", "some 60 processes", "prlimit --pid"]);
    files(256, 6000, in_container).says("open files", State::Ok, &["6000", "some 600 processes"]);
    files(63, 63, ALL).says("open files", State::Missing, &["63", "64 at least", "ulimit -n"]);
    files(256, 600, ALL).says("open files", State::Ok, &["600", "large process trees"]);
    let memory = |name: &str, capabilities: &str| {
        let limits = format!("{name:<26}65536     8192000     bytes\n");
        Machine::new().file("proc/self/limits", &limits).status("0", capabilities, 0)
    };
    let wanted = ["8000 KiB", "256 MiB at least", "ulimit -v unlimited"];
    memory("Max address space", in_container).says("address space", State::Missing, &wanted);
    let wanted = ["8000 KiB", "256 MiB at least", "ulimit -d unlimited"];
    memory("Max data size", in_container).says("data segment", State::Missing, &wanted);
    memory("Max data size", ALL).says_nothing("data segment");
    Machine::new()
        .file("proc/swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 1 0 100\n")
        .notes("zram", &["1 in use as swap"]);
    Machine::new().file("sys/block/zram0/disksize", "0\n").says(
        "zram",
        State::Ok,
        &["1 device(s), none in use"],
    );
    Machine::new().file("sys/module/zswap/parameters/enabled", "Y\n").notes("zswap", &["on, zstd"]);
    Machine::new().status("0", ALL, 2).notes("seccomp", &["filter"]);
}

#[test]
fn the_program_says_what_the_library_says() {
    let output = uzswap(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let works = report["works"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(if works { 0 } else { 3 }));
    assert_eq!(what_run_needs().is_ok(), works);
    assert_eq!(works, report["verdict"] == "uzswap run works here");
    let text = uzswap(&["doctor"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert_eq!(text.lines().next(), report["verdict"].as_str());
    let findings = report["findings"].as_array().unwrap();
    for finding in findings {
        let topic = finding["topic"].as_str().unwrap();
        assert!(text.lines().any(|line| line.contains(topic)), "{topic}");
        assert!(["ok", "note", "missing"].contains(&finding["state"].as_str().unwrap()));
    }
    let missing = findings.iter().any(|finding| finding["state"] == "missing");
    assert_eq!(missing, !works);
}
