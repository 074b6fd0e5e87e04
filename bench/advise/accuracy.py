#!/usr/bin/env python3
"""Is the advice of `uzswap advise` right? Four programs of this repository, and others.

For each program:
  advice  uzswap advise -- CMD: compressor, limit, predicted saving; seconds beyond the command's own
  sweep   uzswap compare -- CMD with all pages, four allocators x five compressors, filtered: the
          memory of the advised combination against that of the sweep's best by the same goal
  live    uzswap compare --limit LIMIT -- CMD: the saving that the runs show, against the prediction

Usage: accuracy.py [--uzswap PATH] [--runs N] [NAME ...]
Needs: root (as `uzswap run` does), python3, sqlite3, node, xz, sort, perl, cc, g++, git, php; a program that is not
installed is skipped.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
OWN = os.path.join(HERE, "../../crates/uzswap-cli/tests/programs")
# As `run` keeps pages.
FILTER = ["--filter", "auto"]
COMPRESSORS = "lz4,lzo,lzo-rle,zstd,deflate"
# The rule of crates/uzswap-cli/src/report/choice.rs.
SAVING_MIN, US_PER_PERCENT = 3.0, 1.0


def programs(folder):
    """Name, whether it is of this repository, and the command."""
    table = os.path.join(folder, "table.sql")
    with open(os.path.join(OWN, "table.sql")) as text, open(table, "w") as out:
        out.write(text.read().replace("ROWS", "300000"))
    lines = os.path.join(folder, "lines")
    with open(lines, "w") as out:
        for number in range(600_000):
            key = number * 2654435761 % 2**32
            out.write(f"{key:010} line {number} of a file that is sorted by {key:x}\n")
    perl = "my %h; $h{$_ * 7919 % 1000003} = \"value of $_\" for 1..400000; print scalar(keys %h), \"\\n\""
    numbers = "import array; a = array.array('d', (x * 0.5 for x in range(12_000_000))); print(sum(a))"
    small = "my %h; $h{$_} = \"v$_\" for 1..60000; my $s = 0; $s += length $h{$_} for 1..60000; sleep 1"
    source, static = (os.path.join(folder, name) for name in ("map.cpp", "static"))
    with open(source, "w") as out:
        out.write("#include <bits/stdc++.h>\nint main() { std::map<int, std::regex> m; return m.size(); }\n")
    holder = "#include <stdlib.h>\n#include <unistd.h>\nint main(void) { char *p = malloc(90 << 20);\n" \
        "for (long i = 0; i < 90 << 20; i++) p[i] = (i >> 12) * 7 + (i & 63); sleep(1); return p[1] == 9; }"
    if shutil.which("cc"):
        subprocess.run(["cc", "-O", "-static", "-xc", "-", "-o", static], input=holder.encode(), check=True)
    repository = os.path.join(folder, "repository")
    if shutil.which("git"):
        copies = f"cp {lines} {repository}/lines; cd {repository}; split -n 300 lines part; git add ."
        commit = "git -c user.email=a@b -c user.name=a commit -qm all"
        subprocess.run(["sh", "-ec", f"git init -q {repository}; {copies}; {commit}"], check=True)
    php = "$a = []; for ($i = 0; $i < 600000; $i++) $a[$i * 7919 % 1000003] = \"value $i\"; echo count($a);"
    return [
        ("perl, small", False, ["perl", "-e", small]),
        ("static", False, [static]),
        ("c++", False, ["g++", "-O2", "-c", source, "-o", "/dev/null"]),
        ("git repack", False, ["git", "-C", repository, "repack", "-adfq"]),
        ("php", False, ["php", "-r", php]),
        ("python lists", True, ["python3", os.path.join(OWN, "lists.py"), "4"]),
        ("node maps", True, ["node", os.path.join(OWN, "maps.js"), "1"]),
        ("sqlite", True, ["sh", "-c", f"sqlite3 :memory: <{table}"]),
        ("python forks", True, ["python3", os.path.join(OWN, "forks.py"), "1"]),
        ("sort", False, ["sort", "-S", "80%", "--parallel=1", lines, "-o", "/dev/null"]),
        ("xz", False, ["sh", "-c", f"xz -3 -T1 -k -c {lines} | cksum"]),
        ("perl hash", False, ["perl", "-e", perl]),
        ("python array", False, ["python3", "-c", numbers]),
    ]


def answer(uzswap, *arguments):
    """The JSON document of a command, and the seconds that it took."""
    start = time.monotonic()
    done = subprocess.run([uzswap, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise RuntimeError(f"{arguments}: exit {done.returncode}\n{done.stderr.decode()[-2000:]}")
    return json.loads(done.stdout), time.monotonic() - start


def choose(rows):
    """The combination that the rule comes to, among (bytes, us a page, label)."""
    best = None
    for row in sorted(rows, key=lambda row: row[1]):
        if best is not None:
            saved = (1 - row[0] / best[0]) * 100
            if saved < SAVING_MIN or row[1] - best[1] > saved * US_PER_PERCENT:
                continue
        best = row
    return best


def sweep(uzswap, command):
    """Memory and time a page of each combination, on all pages."""
    flags = ["--zpool", "packed,zsmalloc,zbud,z3fold", "--compressor", COMPRESSORS, *FILTER]
    flags += ["--runs", "1", "--sample", "all", "--tree", "--json"]
    document, _ = answer(uzswap, "compare", *flags, "--", *command)
    rows = []
    for row in document["combinations"]:
        us = (row["store_ns"]["p50"] + row["load_ns"]["p50"]) / 1000
        rows.append((row["bytes_with_rejected"], us, f"{row['name']} {row['compressor']}"))
    return rows


def measure(uzswap, command, runs):
    start = time.monotonic()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command, check=True, **quiet)
    alone = time.monotonic() - start
    capture = os.path.join(tempfile.gettempdir(), f"advise-{os.getpid()}.pages")
    start = time.monotonic()
    flags = ["capture", "--tree", "--sample", "64M", "-o", capture, "--"]
    subprocess.run([uzswap, *flags, *command], check=True, **quiet)
    captured = time.monotonic() - start
    for path in (capture, capture + ".json"):
        os.unlink(path)
    advice, seconds = answer(uzswap, "advise", "--json", "--", *command)
    run = next((one for one in advice["advice"] if one["tool"] == "run"), None)
    if run is None:
        return f" {advice['verdict'][0]}"
    limit = run["settings"][0]["lines"][0].split("--limit ")[1].split()[0]
    rows = sweep(uzswap, command)
    best = choose(rows)
    compressor = run["compressor"]
    advised = next(row for row in rows if row[2] == f"packed {compressor}~auto")
    flags = ["--limit", limit, "--zpool", "packed", "--compressor", compressor, *FILTER]
    live, _ = answer(uzswap, "compare", *flags, "--runs", str(runs), "--json", "--", *command)
    row = live["combinations"][0]
    if not row["runs"]:
        return f"does not live in {limit}: {row['failure']['message'][:60]}"
    peaks = sorted(one["peak_bytes"] for one in row["runs"])
    times = sorted(one["real_s"] for one in row["runs"])
    saved = live["warm_up"]["peak_bytes"] - peaks[len(peaks) // 2]
    return (
        f"{limit:>6} {run['compressor']:8} {best[2]:21} {advised[0] / best[0]:6.3f}"
        f" {run['saves_bytes'] / 2**20:8.1f} {saved / 2**20:8.1f} {run['saves_bytes'] / saved:6.2f}"
        f" {times[len(times) // 2] / alone:7.2f} {alone:6.2f} {(seconds - captured) / alone:7.2f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--uzswap", default=os.path.join(HERE, "../../target/release/uzswap"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    print(
        "program      limit  advised  best of the sweep      memory  predicts   saves  ratio"
        "  x time  alone  beyond\n"
        "                                                    to best       MiB     MiB"
        "                  s   /alone"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, is_own, command in programs(folder):
            if arguments.names and name not in arguments.names:
                continue
            if shutil.which(command[0]) is None:
                print(f"{name:13} skipped: {command[0]} is not installed")
                continue
            try:
                found = measure(arguments.uzswap, command, arguments.runs)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                found = f"failed: {error}"
            print(f"{name:13}{found}{'' if is_own else '  (not of this repository)'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
