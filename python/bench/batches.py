#!/usr/bin/env python3
"""Times a page of `store_many` and `load_many` beside the same calls in Rust, in turns.

Needs the package built with the feature `timing`:

    MATURIN_PEP517_ARGS="--features timing" pip install ./python

A round stores and loads each batch of the file, by Python into one store and by Rust into another
one of the same options. Python's time is that of the call; Rust's is of `Zswap::store_all`, and of
`Zswap::load` for each page. The first round does not count.
"""

import argparse
import statistics
import sys
import time

import uzswap
from uzswap import _uzswap


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", help="a page set, or any file of whole pages")
    parser.add_argument("--compressor", default="lz4")
    parser.add_argument("--batch", type=int, default=256, help="pages of a call")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if not hasattr(_uzswap, "time_in_rust"):
        sys.exit("the package is built without the feature timing")
    data = uzswap.read_page_set(options.pages).pages.cast("B")
    step = options.batch * uzswap.PAGE_SIZE
    batches = [data[at : at + step] for at in range(0, len(data) - step + 1, step)]
    rounds = [one_round(batches, options) for _ in range(options.rounds + 1)][1:]
    print(f"{len(batches)} batches of {options.batch} pages, {options.compressor}, "
          f"{options.rounds} rounds; ns a page: median (least to most)")
    for name, at in (("store", 0), ("load", 2)):
        python, rust = ([one[at + of] for one in rounds] for of in (0, 1))
        ratios = [a / b for a, b in zip(python, rust)]
        print(f"{name:5}  python {spread(python)}  rust {spread(rust)}  "
              f"python/rust {spread(ratios, '.3f')}")


def one_round(batches, options):
    """Nanoseconds a page: stores of Python and Rust, loads of both."""
    python, rust = (
        uzswap.Store(compressor=options.compressor, incompressible="store-as-is") for _ in range(2)
    )
    buffer = bytearray(len(batches[0]))
    times = [0, 0, 0, 0]
    for number, batch in enumerate(batches):
        key = number * options.batch
        # Who is first has the pages not yet in the processor's caches: they take turns.
        for turn in (number, number + 1):
            if turn % 2 == 0:
                start = time.perf_counter_ns()
                python.store_many(key, batch)
                stored = time.perf_counter_ns()
                missing = python.load_many(key, buffer)
                loaded = time.perf_counter_ns()
                assert not missing and buffer == batch
                taken = {0: stored - start, 2: loaded - stored}
            else:
                store_ns, load_ns = _uzswap.time_in_rust(rust, key, batch)
                taken = {1: store_ns, 3: load_ns}
            for at, ns in taken.items():
                times[at] += ns
    return [ns / (len(batches) * options.batch) for ns in times]


def spread(values, form=".0f"):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


if __name__ == "__main__":
    main()
