#!/usr/bin/env python3
"""What a page fault costs the thread that has it: uzswap run against the kernel's zram swap.

Needs a C compiler, and what bench/run/zram.py needs. Pages are touched at random, with nothing and
with some time between two touches; both take turns, under the same limit.

    bench/run/latency.py [--rounds N] [--before UZSWAP]

With `--before`, another build of uzswap takes its turns, too.
"""

import argparse
import os
import statistics
import subprocess
import tempfile

from zram import HERE, accept_before, runs_of_round

PAGES = 60000  # 234 MiB
LIMIT = "175M"
# Touches, and nanoseconds between two of them.
SETTINGS = [(150000, 0), (80000, 30000), (12000, 300000)]
COLUMNS = ["faults", "mean", "p50", "p90", "p99", "p99.9"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    accept_before(parser)
    arguments = parser.parse_args()
    print(f"us, {'':16}" + "".join(f"{name:>9}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        touch = os.path.join(folder, "touch")
        source = os.path.join(HERE, "touch.c")
        subprocess.run(["cc", "-O2", "-o", touch, source], check=True)
        for touches, think in SETTINGS:
            measure([touch, str(PAGES), str(touches), str(think)], think, arguments)


def measure(command, think, arguments):
    rows = {label: [] for label in ["uzswap", *(["before"] if arguments.before else []), "zram"]}
    for turn in range(arguments.rounds):
        runs, _ = runs_of_round(turn, arguments.before, LIMIT, command, ["--compressor", "lz4"])
        for label in rows.keys() & runs.keys():
            rows[label].append([float(number) for number in runs[label]["output"].split()])
    medians = {}
    for label, all in rows.items():
        medians[label] = [statistics.median(column) for column in zip(*all)]
        text = "".join(f"{number:9.1f}" for number in medians[label])
        print(f"{think // 1000:4} apart, {label:6}   {text}", flush=True)
    ratios = [a / b for a, b in zip(medians["uzswap"], medians["zram"])]
    print(f"{think // 1000:4} apart, ratio    " + "".join(f"{ratio:9.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
