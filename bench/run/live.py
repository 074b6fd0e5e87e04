#!/usr/bin/env python3
"""What the live mode costs a run: `uzswap compare --limit` against `uzswap run` alone, in turns.

Both run the same command with the same parts under the same limit. The script prints the medians,
the mean difference with its 95 % interval (Student's, round by round), the processor time of the
study's own process beside its runs, and how often that process was woken.

    bench/run/live.py [--rounds N] [--limit SIZE] [-- COMMAND...]
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
UZSWAP = os.environ.get("UZSWAP", os.path.join(HERE, "../../target/release/uzswap"))
PARTS = ["--zpool", "zsmalloc", "--compressor", "lz4"]
# Student's t, 97.5 %, by degrees of freedom.
STUDENT = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", default="64M")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    command = options.command or [UZSWAP, "workload", "text", "--size", "96M"]
    rows = []
    for turn in range(options.rounds):
        order = [alone, study] if turn % 2 == 0 else [study, alone]
        pair = {of.__name__: of(options.limit, command) for of in order}
        rows.append((pair["alone"], pair["study"]))
        print(json.dumps(pair), flush=True)
    for figure in ("real_s", "cpu_s"):
        report(figure, [row[0][figure] for row in rows], [row[1][figure] for row in rows])
    own = [row[1]["own_cpu_s"] / row[1]["real_of_all_s"] * 100 for row in rows]
    wakes = [row[1]["wakes"] / row[1]["real_of_all_s"] for row in rows]
    print(f"study itself: {statistics.median(own):.2f} % of a processor (median), "
          f"{max(own):.2f} % at most; {statistics.median(wakes):.0f} wakes/s")


def alone(limit, command):
    """A run without a study around it."""
    with tempfile.NamedTemporaryFile() as stats:
        start = time.monotonic()
        child = subprocess.Popen(
            [UZSWAP, "run", "--quiet", "--limit", limit, *PARTS, "--stats", stats.name, "--",
             *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        real = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return {"real_s": real, "cpu_s": used.ru_utime + used.ru_stime}


def study(limit, command):
    """A study of one combination and one run; its first run is the one without a limit."""
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        child = subprocess.Popen(
            [UZSWAP, "compare", "--limit", limit, *PARTS, "--runs", "1", "--json", "--", *command],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL)
        wakes = 0
        while True:
            wakes = max(wakes, waits_of(child.pid))
            pid, status, used = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(0.05)
        real = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        report = json.load(output)
    run, warm_up = report["combinations"][0]["runs"][0], report["warm_up"]
    cpu = [of["user_s"] + of["sys_s"] for of in (run, warm_up)]
    return {
        "real_s": run["real_s"],
        "cpu_s": cpu[0],
        "own_cpu_s": max(used.ru_utime + used.ru_stime - sum(cpu), 0),
        "real_of_all_s": real,
        "wakes": wakes,
    }


def waits_of(pid):
    """How often the threads of a process have waited for something."""
    count = 0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/status") as status:
                lines = dict(line.split(":", 1) for line in status)
            count += int(lines["voluntary_ctxt_switches"])
    except (OSError, KeyError):
        pass  # it has ended
    return count


def report(figure, base, values):
    differences = [value - one for one, value in zip(base, values)]
    mean = statistics.mean(differences)
    degrees = len(differences) - 1
    point = STUDENT[degrees - 1] if degrees <= len(STUDENT) else 2.1
    reach = point * statistics.stdev(differences) / math.sqrt(len(differences))
    middle = statistics.median(base)
    print(f"{figure}: alone {middle:.3f}, in a study {statistics.median(values):.3f} (medians); "
          f"difference {mean:+.3f}, 95 % {mean - reach:+.3f} to {mean + reach:+.3f} "
          f"({(mean - reach) / middle * 100:+.1f} % to {(mean + reach) / middle * 100:+.1f} %)")


if __name__ == "__main__":
    main()
