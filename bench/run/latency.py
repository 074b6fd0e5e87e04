#!/usr/bin/env python3
"""What a page fault costs the thread that has it: uzswap run against the kernel's zram swap.

Needs root, a memory cgroup of version 1, zram and a C compiler. Pages are touched at random, with
nothing and with some time between two touches; both take turns, with the same real memory about.

    bench/run/latency.py [--rounds N] [--before UZSWAP]

With `--before`, another build of uzswap takes its turns, too.
"""

import argparse
import os
import statistics
import subprocess
import tempfile

from zram import CGROUP, HERE, Run, Zram, accept_before, cgroup, managed_by_each

PAGES = 60000  # 234 MiB
LIMIT = 175 << 20
# Touches, and nanoseconds between two of them.
SETTINGS = [(150000, 0), (80000, 30000), (12000, 300000)]
COLUMNS = ["faults", "mean", "p50", "p90", "p99", "p99.9"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    accept_before(parser)
    arguments = parser.parse_args()
    print(f"us, {'':16}" + "".join(f"{name:>9}" for name in COLUMNS))
    with cgroup() as enter, tempfile.TemporaryDirectory() as folder:
        touch = os.path.join(folder, "touch")
        source = os.path.join(HERE, "touch.c")
        subprocess.run(["cc", "-O2", "-o", touch, source], check=True)
        for touches, think in SETTINGS:
            measure([touch, str(PAGES), str(touches), str(think)], think, arguments, enter)


def measure(command, think, arguments, enter):
    zram = Zram(4096)
    try:
        options = ["--quiet", "--compressor", "lz4", "--limit", str(LIMIT)]
        managed = managed_by_each(arguments.before, options, command)
        limit = LIMIT

        def kernel():
            Zram.write(f"{CGROUP}/memory.limit_in_bytes", str(limit // 4096 * 4096))
            return Run(command, zram.used, enter)

        ours = Run(managed["uzswap"])
        for _ in range(3):
            limit += ours.peak - kernel().peak
        rows = {label: [] for label in [*managed, "zram"]}
        for _ in range(arguments.rounds):
            for label in rows:
                run = kernel() if label == "zram" else Run(managed[label])
                if run.code == 0:
                    rows[label].append([float(number) for number in run.output.split()])
        medians = {}
        for label, all in rows.items():
            medians[label] = [statistics.median(column) for column in zip(*all)]
            text = "".join(f"{number:9.1f}" for number in medians[label])
            print(f"{think // 1000:4} apart, {label:6}   {text}", flush=True)
        ratios = [a / b for a, b in zip(medians["uzswap"], medians["zram"])]
        print(f"{think // 1000:4} apart, ratio    " + "".join(f"{ratio:9.2f}" for ratio in ratios))
    finally:
        zram.close()


if __name__ == "__main__":
    main()
