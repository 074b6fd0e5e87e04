#!/usr/bin/env python3
"""What uzswap run costs a program that needs less than its limit, and a short one.

Pairs of runs, with and without, in turn; needs what `uzswap run` needs.

    bench/run/below.py [--pairs N]
"""

import argparse
import statistics
import subprocess
import sys
import time

from zram import UZSWAP

PYTHON = """
rows = ["row %d of %s" % (i, "abc" * (i % 9)) for i in range(600000)]
index = {row: at for at, row in enumerate(rows)}
print(sum(index[row] for row in rows[::3]))
"""


def seconds(command):
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=15)
    pairs = parser.parse_args().pairs
    run = [UZSWAP, "run", "--quiet", "--limit", "4G", "--"]
    short, long = ["true"], [sys.executable, "-c", PYTHON]
    starts = [(seconds(short), seconds(run + short)) for _ in range(pairs * 10)]
    more = [1000 * (with_it - without) for without, with_it in starts]
    at = statistics.quantiles(more, n=10)
    print(f"true: {statistics.median(more):.2f} ms more ({at[0]:.2f} to {at[-1]:.2f}; 10 to 90 %)")
    times = [(seconds(long), seconds(run + long)) for _ in range(pairs)]
    ratios = [with_it / without for without, with_it in times]
    at = statistics.quantiles(ratios, n=10)
    alone = statistics.median(without for without, _ in times)
    print(
        f"python3, {alone:.2f} s: {statistics.median(ratios):.3f} times as long"
        f" ({at[0]:.3f} to {at[-1]:.3f})"
    )


if __name__ == "__main__":
    main()
