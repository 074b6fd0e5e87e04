#!/usr/bin/env python3
"""Times a page of `store_many` and `load_many` beside the same calls in Rust, in turns.

Needs the package built with the feature `timing`:

    MATURIN_PEP517_ARGS="--features timing" pip install ./python

A round stores and loads each batch of the file: by Python into one store, and by Rust into another
one, with `Zswap::store_all` and `Zswap::load` on memory of its own. Times are processor time of
the thread, which other programs lengthen less than they do the clock's. The first round does not
count.
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
    if not hasattr(_uzswap, "Batch"):
        sys.exit("the package is built without the feature timing")
    data = uzswap.read_page_set(options.pages).pages.cast("B")
    step = options.batch * uzswap.PAGE_SIZE
    batches = [data[at : at + step] for at in range(0, len(data) - step + 1, step)]
    rounds = [one_round(batches, options) for _ in range(options.rounds + 1)][1:]
    print(f"{len(batches)} batches of {options.batch} pages, {options.compressor}, "
          f"{options.rounds} rounds; ns of processor time a page: median (least to most)")
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
    now = time.thread_time_ns
    times = [0, 0, 0, 0]
    for number, batch in enumerate(batches):
        key = number * options.batch
        of_rust = _uzswap.Batch(batch)
        calls = [
            lambda: python.store_many(key, batch),
            lambda: of_rust.store_many(rust, key),
            lambda: python.load_many(key, buffer),
            lambda: of_rust.load_many(rust, key),
        ]
        # The first call may find less in the processor's caches: they take turns.
        for at in (0, 1, 2, 3) if number % 2 else (1, 0, 3, 2):
            start = now()
            calls[at]()
            times[at] += now() - start
        assert buffer == batch
    return [ns / (len(batches) * options.batch) for ns in times]


def spread(values, form=".0f"):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


if __name__ == "__main__":
    main()
