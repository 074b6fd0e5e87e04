#!/usr/bin/env python3
"""uzswap run against the kernel's zram swap, at the same real memory, in one interleaved run.

Needs root, a memory cgroup of version 1 and zram. A load whose program is not installed says so, and
the others go on. Real memory is sampled every 10 ms: resident
anonymous memory of the program and its children, where pages that several have count once, and the
pool: the supervisor's own anonymous memory, or mem_used_total of the zram device. The cgroup's limit
is chosen, by trial runs and after each round, so that the kernel takes as much as uzswap did.

    bench/run/zram.py [--rounds N] [--percent P] [--compressor NAME] [--before UZSWAP] [NAME...]

With `--before`, another build of uzswap runs each load in turns with this one.
"""

import argparse
import contextlib
import glob
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
UZSWAP = os.path.join(HERE, "../../target/release/uzswap")
CGROUP = "/sys/fs/cgroup/memory/uzswap-bench"

# Seconds after which a run counts as lost.
TIMEOUT = 90

# The cgroup ends programs although there is swap left: a run is tried so many times.
KERNEL_TRIALS = 6

PYTHON = r"""
import random, sys, hashlib
n = 1500000
rows, index = [], {}
for i in range(n):
    s = "user-%d name-%d text %s" % (i, i * 7919 % 1000003, ("abc%d" % (i % 97)) * 6)
    rows.append(s)
    if i % 4 == 0:
        index[s[:20]] = i
r = random.Random(1)
h = 0
for _ in range(n // 40):
    h = (h * 31 + len(rows[r.randrange(n)])) & 0xffffffff
for _ in range(n):
    h = (h * 31 + ord(rows[r.randrange(n // 10)][-1])) & 0xffffffff
m = hashlib.md5()
for s in rows:
    m.update(s.encode())
print(h, m.hexdigest(), sum(index.values()))
"""

HOT_COLD = r"""
import random
page, pages = 4096, 60000
words = [b"alpha", b"beta", b"gamma", b"delta", b"epsilon", b"zeta", b"eta", b"theta"]
r = random.Random(7)
memory = bytearray(page * pages)
for at in range(pages):
    text = b" ".join(words[r.randrange(8)] + b"%d" % r.randrange(1000) for _ in range(300))[:page]
    memory[at * page : at * page + len(text)] = text
h = 0
for step in range(4000000):
    # Of 100 accesses 98 go to a tenth of the pages.
    at = r.randrange(pages // 10) if step % 50 else r.randrange(pages)
    h = (h * 31 + memory[at * page + step % page]) & 0xffffffff
print(h)
"""

SCAN = r"""
page, pages = 4096, 60000
import random, hashlib
r = random.Random(7)
words = [b"alpha", b"beta", b"gamma", b"delta", b"epsilon", b"zeta", b"eta", b"theta"]
block = b" ".join(words[r.randrange(8)] * 3 + b"%d" % r.randrange(10) for _ in range(40000))[: page * 64]
memory = bytearray()
for at in range(pages // 64):
    memory += block[at:] + block[:at]
for _ in range(6):
    print(hashlib.md5(memory).hexdigest())
"""


DATA = os.path.abspath(os.path.join(HERE, "../../crates/uzswap-cli/tests/programs"))

NODE = r"""
let a = [];
for (let i = 0; i < 600000; i++) a.push({i, s: 'x' + i + 'y'.repeat(i % 50)});
let h = 0;
for (let k = 0; k < 6; k++) for (const o of a) h = (h * 31 + o.s.length + o.i) | 0;
console.log(h);
"""

SQLITE = """
create table t(a integer primary key, b text, c int);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 700000)
    insert into t select i, 'name ' || i || ' of ' || (i * 7919 % 1000), i % 1000 from n;
create index x on t(c, b);
select sum(length(b)), count(distinct c) from t;
select sum(a) from t where c = 77;
"""


def c_build(folder):
    zstd = subprocess.check_output(["sh", f"{DATA}/zstd-sources.sh"], text=True).strip()
    make = f"make -f {DATA}/zstd.mk LEVEL=2 ZSTD={zstd}"
    return ["sh", "-c", f"cd {folder} && {make} clean && {make} -j2"]


def sort(folder):
    lines = os.path.join(folder, "lines")
    text = "seq 1 3000000 | awk '{ print ($1 * 7919) % 3000017, \"line\", $1 }'"
    subprocess.run(f"{text} > {lines}", shell=True, check=True)
    return ["bash", "-o", "pipefail", "-c", f"sort -S 300M --parallel=1 {lines} | md5sum"]


def java(folder):
    subprocess.run(["javac", "-d", folder, os.path.join(DATA, "Maps.java")], check=True)
    return ["java", "-Xmx1g", "-cp", folder, "Maps", "9"]


def redis(folder):
    for name, step in (("first", 1), ("second", 3)):
        with open(os.path.join(folder, name), "w") as commands:
            for number in range(0, 90000, step):
                value = f"the_{name}_value_of_{number}_" * 20
                commands.write(f"SET key:{number} {value}\n")
    return ["sh", os.path.join(DATA, "redis.sh"), folder, "20000"]


def reads(threads):
    """234 MiB, of which pages are read at random, 400,000 touches of all threads together."""

    def prepare(folder):
        program = os.path.join(folder, "reads")
        subprocess.run(["cc", "-O2", "-pthread", "-o", program, f"{HERE}/reads.c"], check=True)
        return [program, "60000", str(threads), "400000"]

    return prepare


def kernel(folder):
    """mm/ of the distribution's kernel source, in the smallest configuration."""
    archive = sorted(glob.glob("/usr/src/linux-source-*.tar.xz"))[-1]
    subprocess.run(["tar", "-C", folder, "--strip-components=1", "-xf", archive], check=True)
    make = f"make -s -C {folder} -j2"
    subprocess.run(f"{make} tinyconfig && {make} prepare", shell=True, check=True, stdout=subprocess.DEVNULL)
    return ["sh", "-c", f"find {folder}/mm -name '*.o' -delete; {make} mm/ && cat {folder}/mm/*.o | md5sum"]


class Load:
    """Prepares what it needs in a folder, and gives its command."""

    def __init__(self, prepare, *programs, percent=50, files=""):
        self.prepare, self.programs, self.percent, self.files = prepare, programs, percent, files

    def missing(self):
        """The first program or file that is not installed, if there is one."""
        missing = [name for name in self.programs if not shutil.which(name)]
        return missing[0] if missing else self.files if self.files and not glob.glob(self.files) else None


LOADS = {
    "python": Load(lambda folder: [sys.executable, "-c", PYTHON]),
    "hot-cold": Load(lambda folder: [sys.executable, "-c", HOT_COLD]),
    "scan": Load(lambda folder: [sys.executable, "-c", SCAN]),
    "c-build": Load(c_build, "make", "cc"),
    "sort": Load(sort, "bash", "awk"),
    "node": Load(lambda folder: ["node", "-e", NODE], "node"),
    "java": Load(java, "java", "javac"),
    "redis": Load(redis, "redis-server", "redis-cli"),
    "sqlite3": Load(lambda folder: ["sqlite3", ":memory:", SQLITE], "sqlite3"),
    "reads-1": Load(reads(1), "cc", percent=75),
    "reads-2": Load(reads(2), "cc", percent=75),
    "reads-4": Load(reads(4), "cc", percent=75),
    "kernel": Load(kernel, "make", "cc", "flex", "bison", percent=66, files="/usr/src/linux-source-*.tar.xz"),
}


def below(pid):
    found = [pid]
    for at in found:
        try:
            threads = os.listdir(f"/proc/{at}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{at}/task/{thread}/children") as children:
                    found += [int(child) for child in children.read().split()]
            except OSError:
                pass
    return found


def is_helper(pid):
    """The helper of `uzswap run`, which has the memory of its program."""
    try:
        with open(f"/proc/{pid}/comm") as name:
            return name.read() == "uzswap-helper\n"
    except OSError:
        return False


def anonymous(pid):
    try:
        with open(f"/proc/{pid}/statm") as statm:
            _, resident, files = statm.read().split()[:3]
        return (int(resident) - int(files)) * 4096
    except (OSError, ValueError):
        return 0


def share_of_anonymous(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as smaps:
            return next(int(line.split()[1]) * 1024 for line in smaps if line.startswith("Pss_Anon"))
    except (OSError, StopIteration):
        return 0


def parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def program(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None


def anonymous_below(pid):
    """Of large processes, and what they have forked, the share of what others have as well."""
    all_bytes = {pid: anonymous(pid) for pid in below(pid) if not is_helper(pid)}
    programs = {pid: program(pid) for pid, size in all_bytes.items() if size > 4 << 20}
    parents = {pid: parent(pid) for pid in programs}
    # The kernel takes long to answer, and processes of a parallel build share nothing.
    is_forked = lambda pid: parents[pid] in programs and programs[parents[pid]] == programs[pid]
    forked = [pid for pid in programs if is_forked(pid)]
    for pid in {*forked, *(parents[pid] for pid in forked)}:
        all_bytes[pid] = share_of_anonymous(pid)
    return sum(all_bytes.values())


class Zram:
    """A swap device, the only one: what went to another would not be counted."""

    def __init__(self, megabytes):
        with open("/proc/swaps") as swaps:
            others = [line.split()[0] for line in swaps][1:]
        if others:
            sys.exit(f"there is other swap, which is to be off: swapoff {' '.join(others)}")
        with open("/sys/class/zram-control/hot_add") as add:
            self.number = add.read().strip()
        block = f"/sys/block/zram{self.number}"
        self.write(f"{block}/comp_algorithm", "lz4")
        self.write(f"{block}/disksize", f"{megabytes}M")
        self.device = f"/dev/zram{self.number}"
        subprocess.run(["mkswap", self.device], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["swapon", "-p", "100", self.device], check=True)

    @staticmethod
    def write(path, text):
        with open(path, "w") as file:
            file.write(text)

    def used(self):
        with open(f"/sys/block/zram{self.number}/mm_stat") as stat:
            return int(stat.read().split()[2])

    def close(self):
        subprocess.run(["swapoff", self.device], check=False)
        self.write("/sys/class/zram-control/hot_remove", self.number)


class Run:
    """A program, its time, its output, its peak of real memory."""

    def __init__(self, command, pool=lambda: 0, prepare=None):
        self.peak = 0
        start = time.monotonic()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=prepare
        )
        done = threading.Event()

        def sample():
            while not done.wait(0.01):
                used = anonymous_below(process.pid) + pool()
                self.peak = max(self.peak, used)

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            output, self.errors = process.communicate(timeout=TIMEOUT)
        except BaseException as interrupted:
            # `timeout` as a shell would, or this is ended: it and all below it.
            for pid in reversed(below(process.pid)):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            output, self.errors = process.communicate()
            if not isinstance(interrupted, subprocess.TimeoutExpired):
                raise
        finally:
            done.set()
            sampler.join()
        self.seconds = time.monotonic() - start
        self.code = process.returncode
        self.output = output
        self.digest = hashlib.md5(output).hexdigest()


@contextlib.contextmanager
def cgroup():
    """A memory cgroup for the kernel's runs, removed at the end however that comes: what enters it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.makedirs(CGROUP, exist_ok=True)
    try:
        yield lambda: Zram.write(f"{CGROUP}/cgroup.procs", str(os.getpid()))
    finally:
        # A killed process leaves its cgroup a moment after it was waited for.
        for _ in range(100):
            with contextlib.suppress(OSError):
                os.rmdir(CGROUP)
                break
            time.sleep(0.05)
        else:
            print(f"cannot remove {CGROUP}: processes are in it still", file=sys.stderr)


def accept_before(parser):
    """Adds the option that names another build."""

    def build(path):
        if not os.access(path, os.X_OK):
            raise argparse.ArgumentTypeError(f"cannot run {path}")
        return path

    parser.add_argument("--before", metavar="UZSWAP", type=build, help="another build, to run in turns with this one")


def managed_by_each(before, options, command):
    """The command under this build and, if there is one, under the build before."""
    builds = {"uzswap": UZSWAP} | ({"before": before} if before else {})
    return {label: [build, "run", *options, "--", *command] for label, build in builds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--percent", type=int, help="limit, in percent of the peak (each load has its own)")
    parser.add_argument("--compressor", default="lz4", help="of uzswap; zram has lz4")
    parser.add_argument("--command", help="a shell command of yours, instead of the loads here")
    accept_before(parser)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(LOADS))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in LOADS]
    if unknown:
        parser.error(f"no load is called {', '.join(unknown)}: {', '.join(LOADS)}")
    loads = {name: LOADS[name] for name in arguments.names or LOADS}
    if arguments.command:
        loads = {"yours": Load(lambda _: ["sh", "-c", arguments.command])}
    with cgroup() as enter:
        print(f"{'':10} {'limit':>6} {'alone':>7} {'uzswap':>16} {'zram':>16} {'uzswap/zram':>12}"
              f" {'real memory, MiB':>18}" + (f" {'before':>16} {'now/before':>11}" if arguments.before else ""))
        for name, load in loads.items():
            if missing := load.missing():
                print(f"{name:10} skipped: {missing} is not installed", flush=True)
                continue
            # Sources are in memory, as the study's were.
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                measure(name, load.prepare(folder), arguments, arguments.percent or load.percent, enter)


def measure(name, command, arguments, percent, enter):
    alone = Run(command)
    if alone.code != 0:
        print(f"{name:10} fails without a limit, with {alone.code}: {alone.errors[-300:]}", flush=True)
        return
    limit = alone.peak * percent // 100
    options = ["--quiet", "--compressor", arguments.compressor, "--limit", str(limit)]
    managed = managed_by_each(arguments.before, options, command)
    zram = Zram(4096)
    try:
        cgroup_limit = limit
        killed = 0
        times = {"alone": [], "zram": [], **{label: [] for label in managed}}
        peaks = {label: [] for label in times}

        def kernel():
            nonlocal killed
            Zram.write(f"{CGROUP}/memory.limit_in_bytes", str(cgroup_limit // 4096 * 4096))
            for _ in range(KERNEL_TRIALS):
                run = Run(command, zram.used, enter)
                if run.code == 0:
                    break
                killed += 1
            return run

        def take_as_much(ours, theirs):
            nonlocal cgroup_limit
            cgroup_limit = max(cgroup_limit + int(ours - theirs), 8 << 20)

        first = Run(managed["uzswap"])
        for _ in range(3):
            take_as_much(first.peak, kernel().peak)
        for _ in range(arguments.rounds):
            run = Run(command)
            times["alone"].append(run.seconds)
            for label in [*managed, "zram"]:
                run = kernel() if label == "zram" else Run(managed[label])
                if run.code != 0 or run.digest != alone.digest:
                    print(f"{name}: {label} ended with {run.code}: {run.errors[-300:]}", flush=True)
                    continue
                times[label].append(run.seconds)
                peaks[label].append(run.peak)
            if peaks["uzswap"] and peaks["zram"]:
                # Peaks differ from run to run: half of the way.
                take_as_much(statistics.mean(peaks["uzswap"]) / 2, peaks["zram"][-1] / 2)
        median = {label: statistics.median(all) if all else float("nan") for label, all in times.items()}
        ratios = [a / b for a, b in zip(times["uzswap"], times["zram"])]
        spread = lambda all: f"{min(all):.1f}-{max(all):.1f}" if all else ""
        against = [a / b for a, b in zip(times["uzswap"], times["before"])] if arguments.before else []
        before = (
            f" {median['before']:6.1f}s {spread(times['before']):>8} {statistics.median(against):11.2f}"
            if against
            else ""
        )
        memory = {label: statistics.median(all) / 2**20 if all else 0 for label, all in peaks.items()}
        print(
            f"{name:10} {limit >> 20:5}M {median['alone']:6.1f}s {median['uzswap']:6.1f}s"
            f" {spread(times['uzswap']):>8} {median['zram']:6.1f}s {spread(times['zram']):>8}"
            f" {statistics.median(ratios) if ratios else float('nan'):12.2f}"
            f" {memory['uzswap']:9.0f} {memory['zram']:8.0f}"
            + before
            + (f"  zram's cgroup killed {killed} more" if killed else ""),
            flush=True,
        )
    finally:
        zram.close()


if __name__ == "__main__":
    main()
