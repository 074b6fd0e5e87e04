#!/usr/bin/env python3
"""Compares samples of a large memory with the whole of it.

    accuracy.py UZSWAP [--size 6G] [--sample 1G] [--seeds 5] [--kinds] [--folder DIR]

The memory is a process that holds the built-in workload, or with --kinds a file in which the
workloads follow each other, so that its parts differ as much as they can. The table has the
estimates of each seed beside the truth, and the time and memory of each command.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time

KINDS = ["string-map", "json-tree", "numeric", "text", "pointers", "images"]
UNITS = {"M": 1 << 20, "G": 1 << 30}
FIGURES = [("pool_bytes", "pool_total_size"), ("compressed_bytes", "compressed_bytes"),
           ("same_filled_pages", "same_filled_pages"), ("rejected_pages", "rejected_pages")]


def parsed(size):
    """Bytes of `6G` or `512M`."""
    return int(size[:-1]) * UNITS[size[-1]]


class Holder:
    """A process that holds a workload."""

    def __init__(self, uzswap, kind, size, seed):
        self.child = subprocess.Popen(
            [uzswap, "workload", kind, "--size", str(size), "--seed", str(seed), "--hold"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for line in self.child.stdout:
            if line == "ready\n":
                break

    def __enter__(self):
        return ["--pid", str(self.child.pid)]

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()


def file_of_kinds(uzswap, size, folder):
    """A file in which the workloads follow each other."""
    path = os.path.join(folder, "kinds")
    with open(path, "wb") as pages:
        for seed, kind in enumerate(KINDS, 1):
            part = os.path.join(folder, "part")
            with Holder(uzswap, kind, size // len(KINDS), seed) as source:
                subprocess.run([uzswap, "capture", *source, "--sample", "all", "-o", part],
                               check=True, stdout=subprocess.DEVNULL)
            with open(part, "rb") as taken:
                while chunk := taken.read(1 << 24):
                    pages.write(chunk)
            os.remove(part)
    return ["--corpus", path]


def compared(uzswap, source, flags, folder):
    """The document of a comparison, its seconds, and the peak of its largest process in MiB."""
    document = os.path.join(folder, "document")
    start = time.monotonic()
    # A shell of its own: its peak is that of the processes that it waited for.
    script = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, "
              "stdout=subprocess.DEVNULL); "
              "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    command = [uzswap, "compare", *source, "--runs", "1", f"--json={document}", *flags]
    done = subprocess.run(["python3", "-c", script, *command], check=True, stdout=subprocess.PIPE,
                          env={**os.environ, "TMPDIR": folder})
    seconds = time.monotonic() - start
    with open(document, encoding="utf-8") as text:
        return json.load(text), seconds, int(done.stdout) // 1024


def print_rows(seed, found, whole, cost):
    """One row a combination; whether each interval has the truth."""
    held = []
    for one, other in zip(found["combinations"], whole["combinations"]):
        cells = []
        for name, truth in FIGURES:
            scaled, true = one["whole"][name], other[truth]
            is_held = scaled["low"] <= true <= scaled["high"]
            held.append(is_held)
            error = 100 * (scaled["estimate"] / true - 1) if true else 0
            reach = 100 * (scaled["high"] - scaled["estimate"]) / true if true else 0
            cells.append(f"{error:+.2f} ({reach:.2f}){'' if is_held else ' !'}")
        print(f"| {seed} | {one['name']} | {' | '.join(cells)} | {cost} |", flush=True)
    return held


def main():
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uzswap")
    parser.add_argument("--size", default="6G")
    parser.add_argument("--sample", default="1G")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    uzswap = os.path.abspath(options.uzswap)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        size = parsed(options.size)
        if options.kinds:
            measure(options, uzswap, file_of_kinds(uzswap, size, folder), folder)
        else:
            with Holder(uzswap, "mixed", size, 1) as source:
                measure(options, uzswap, source, folder)


def measure(options, uzswap, source, folder):
    """The whole once, then the sample of each seed."""
    whole, seconds, mib = compared(uzswap, source, ["--sample", "all"], folder)
    print(f"whole: {whole['corpus']['pages']} pages, {seconds:.1f} s, {mib} MiB")
    print("| seed | allocator | pool % | compressed % | same-filled % | refused % | s, MiB |")
    print("|---|---|---|---|---|---|---|")
    held = []
    for seed in range(1, options.seeds + 1):
        flags = ["--sample", options.sample, "--seed", str(seed)]
        found, seconds, mib = compared(uzswap, source, flags, folder)
        held += print_rows(seed, found, whole, f"{seconds:.1f}, {mib}")
    print(f"{sum(held)} of {len(held)} intervals have the truth")


if __name__ == "__main__":
    main()
