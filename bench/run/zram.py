#!/usr/bin/env python3
"""uzswap run against the kernel's zram swap, under the same limit, in turns.

The script names the loads. `uzswap compare --engine uzswap,zram` runs them, holds the limit and
counts memory; it needs root, a memory cgroup and zram. A load whose program is not installed says
so, and the others go on. Each run must print the same as `alone`: under `uzswap run` without a limit.

    bench/run/zram.py [--rounds N] [--percent P] [--compressor NAME] [--before UZSWAP] [NAME...]

With `--before`, another build of uzswap runs each load in turns with this one.
"""

import argparse
import glob
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
UZSWAP = os.environ.get("UZSWAP", os.path.join(HERE, "../../target/release/uzswap"))

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


def accept_before(parser):
    """Adds the option that names another build."""

    def build(path):
        if not os.access(path, os.X_OK):
            raise argparse.ArgumentTypeError(f"cannot run {path}")
        return path

    parser.add_argument("--before", metavar="UZSWAP", type=build, help="another build, to run in turns with this one")


def study(build, engines, limit, command, options):
    """The document of a study by the product: one run without a limit and one on each engine, with their output."""
    with tempfile.NamedTemporaryFile() as document, tempfile.NamedTemporaryFile("r") as outputs:
        done = f"tr '\\n' ' ' < {{dir}}/output >> {outputs.name}; echo >> {outputs.name}"
        compare = [build, "compare", "--engine", engines, "--limit", limit, "--runs", "1", f"--json={document.name}"]
        compare += ["--zpool", "zsmalloc", "--timeout", "90s", "--cleanup", done, *options, "--"]
        compare += ["sh", "-c", 'exec "$@" > {dir}/output', "sh", *command]
        ended = subprocess.run(compare, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        found = json.loads(document.read() or "null")
        if not found:
            raise RuntimeError(ended.stderr.decode(errors="replace"))
        found["warm_up"]["output"], *lines = outputs
        for row, line in zip(found["combinations"], lines):
            for run in row["runs"]:
                run["output"] = line
        return found


def runs_of_round(turn, before, limit, command, options):
    """A round, in which builds and engines take turns: its runs that ended well by label, and the limit in bytes."""
    studies = [("uzswap", UZSWAP, "uzswap,zram" if turn % 2 == 0 else "zram,uzswap")]
    studies += [("before", before, "uzswap")] if before else []
    runs = {}
    for label, build, engines in studies if turn % 2 == 0 else reversed(studies):
        found = study(build, engines, limit, command, options)
        limit = str(found["settings"]["limit_bytes"])
        runs |= {"alone": found["warm_up"]} if label == "uzswap" else {}
        for row in found["combinations"]:
            name = row.get("kernel", label)
            if row["failure"]:
                print(f"{name}: {row['failure']['message']}", flush=True)
            else:
                runs[name] = row["runs"][0]
    return runs, limit


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--percent", type=int, help="limit, in percent of the peak (each load has its own)")
    parser.add_argument("--compressor", default="lz4", help="of both engines")
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"{'':10} {'limit':>6} {'alone':>7} {'uzswap':>16} {'zram':>16} {'uzswap/zram':>12}"
          f" {'memory, MiB':>18}" + (f" {'before':>16} {'now/before':>11}" if arguments.before else ""))
    for name, load in loads.items():
        if missing := load.missing():
            print(f"{name:10} skipped: {missing} is not installed", flush=True)
            continue
        # Sources are in memory, as the study's were.
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            try:
                measure(name, load.prepare(folder), arguments, f"{arguments.percent or load.percent}%")
            except RuntimeError as error:
                print(f"{name:10} {error}", flush=True)


def measure(name, command, arguments, limit):
    options = ["--compressor", arguments.compressor, "--check", "md5sum < {dir}/output"]
    rounds = []
    for turn in range(arguments.rounds):
        runs, limit = runs_of_round(turn, arguments.before, limit, command, options)
        rounds.append(runs)

    def figures(label, figure):
        return [runs[label][figure] for runs in rounds if label in runs]

    def median(values):
        return statistics.median(values) if values else float("nan")

    def times(label):
        all = figures(label, "real_s")
        return f"{median(all):6.1f}s {f'{min(all):.1f}-{max(all):.1f}' if all else '':>8}"

    def ratio(other):
        return median([runs["uzswap"]["real_s"] / runs[other]["real_s"] for runs in rounds if {"uzswap", other} <= {*runs}])

    memory = {label: median(figures(label, "peak_bytes")) / 2**20 for label in ("uzswap", "zram")}
    print(
        f"{name:10} {int(limit) >> 20:5}M {median(figures('alone', 'real_s')):6.1f}s {times('uzswap')} {times('zram')}"
        f" {ratio('zram'):12.2f} {memory['uzswap']:9.0f} {memory['zram']:8.0f}"
        + (f" {times('before')} {ratio('before'):11.2f}" if arguments.before else ""),
        flush=True,
    )


if __name__ == "__main__":
    main()
