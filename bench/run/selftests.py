#!/usr/bin/env python3
"""The kernel's own tests of memory, tools/testing/selftests/mm, with and without uzswap run.

Builds them from the newest linux-source package of the distribution, and runs each twice: alone,
and under uzswap run beside a process that keeps the run at its limit. Exit codes and results should be
the same; a difference without a known reason makes the exit code 1. A missing source is told, and
nothing runs. Needs root, gcc, make, rsync, and libcap, libnuma and liburing for some of the tests.

Tests that need hugetlb pages, a module, or two nodes of memory are left out; so are those that mark
memory of the machine as broken, or take all of it.

    bench/run/selftests.py [--source FILE] [--build FOLDER] [--json FILE] [NAME...]
"""

import argparse
import collections
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from zram import HERE, UZSWAP

# Seconds after which a test counts as hung.
TIMEOUT = 60

# MiB of the limit, and of the process beside a test, whose pages shrink to half.
SIZES = (16, 14)

# These take more, which does not shrink.
LARGER = {"mremap_test": (128, 100), "pagemap_ioctl": (64, 50)}

# Parts of the source that `make headers` and the tests read.
NEEDED = [
    "Makefile", "Kbuild", "Kconfig", "arch/x86", "include", "mm/gup_test.h", "scripts",
    "tools/arch/x86/include", "tools/build", "tools/include", "tools/scripts",
    "tools/testing/selftests", "usr/include", "usr/Makefile",
]

TESTS = [
    "cow",
    "droppable",
    "gup_longterm",
    "khugepaged",
    "ksm_functional_tests",
    "ksm_tests -M -p 10",
    "ksm_tests -P -s 100",
    "ksm_tests -U",
    "ksm_tests -Z -p 10 -z 1",
    "madv_populate",
    "map_fixed_noreplace",
    "map_populate",
    "mdwe_test",
    "memfd_secret",
    "mkdirty",
    "mlock-random-test",
    "mlock2-tests",
    "mremap_dontunmap",
    "mremap_test",
    "mrelease_test",
    "mseal_test",
    "on-fault-limit",
    "pagemap_ioctl",
    "pkey_sighandler_tests_64",
    "protection_keys_64",
    "seal_elf",
    "soft-dirty",
    "split_huge_page_test",
    "uffd-stress anon 20 16",
    "uffd-stress shmem 20 16",
    "uffd-unit-tests",
    "va_high_addr_switch",
    "virtual_address_range",
]

# Why a test may differ: docs/reference/selftests.md has the same in words.
THREAD = "the helper may map memory where the test has just found a place"
BUSY = "EBUSY: the program's own userfaultfd on memory that is registered"
HUGE = "the kernel makes no huge page of registered memory where some of its pages are missing"
KNOWN = {
    "khugepaged": HUGE,
    "ksm_functional_tests": BUSY,
    "map_fixed_noreplace": THREAD,
    "pagemap_ioctl": BUSY,
    "uffd-stress anon 20 16": BUSY,
    "uffd-unit-tests": BUSY,
}

# Settings that tests change, and leave changed when they are ended. `run` of KSM comes last.
SETTINGS = [
    "/sys/kernel/mm/ksm/*",
    "/sys/kernel/mm/transparent_hugepage/**/*",
    "/sys/kernel/mm/ksm/run",
    "/proc/sys/vm/nr_hugepages",
    "/proc/sys/vm/overcommit_memory",
]

Result = collections.namedtuple("Result", "code lines told")


@contextlib.contextmanager
def settings_kept():
    """Puts back the settings of the machine after each test."""
    kept = [(path, setting(path)) for path in settings()]
    try:
        yield
    finally:
        for path, value in kept:
            if setting(path) != value:
                # Some can only be changed while nothing is merged: 2 ends that.
                if path.startswith("/sys/kernel/mm/ksm/"):
                    write("/sys/kernel/mm/ksm/run", "2")
                write(path, value)


def settings():
    found = [path for pattern in SETTINGS for path in glob.glob(pattern, recursive=True)]
    return [path for path in found if os.path.isfile(path) and os.stat(path).st_mode & 0o200]


def setting(path):
    """The value, or of `a [b] c` the chosen one."""
    with open(path) as file:
        text = file.read().strip()
    chosen = re.search(r"\[(.+?)\]", text)
    return chosen[1] if chosen else text


def write(path, value):
    with contextlib.suppress(OSError), open(path, "w") as file:
        file.write(value)


def find_source():
    found = glob.glob("/usr/src/linux-source-*.tar.xz")
    version = lambda path: [int(part) for part in re.findall(r"\d+", os.path.basename(path))]
    return max(found, key=version, default=None)


def build(source, folder):
    """Unpacks what is needed and builds what can be built; the folder of the tests."""
    tree = os.path.join(folder, os.path.basename(source).removesuffix(".tar.xz"))
    tests = os.path.join(tree, "tools/testing/selftests")
    if not os.path.isdir(tests):
        base = os.path.basename(tree)
        members = [f"{base}/{name}" for name in NEEDED]
        subprocess.run(["tar", "-xf", source, "-C", folder, *members], check=True)
    group = "mm" if os.path.isdir(f"{tests}/mm") else "vm"
    with open(os.path.join(folder, "build.log"), "w") as log:
        for arguments in (["headers"], ["-k", "-C", tests, f"TARGETS={group}"]):
            # Some tests need a library that is not there: the others are built.
            subprocess.run(["make", "-C", tree, *arguments], stdout=log, stderr=log)
    return os.path.join(tests, group)


def run(command, folder):
    """One test. What it starts is ended with it."""
    with settings_kept(), tempfile.TemporaryFile() as told:
        child = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=told, stderr=told,
            start_new_session=True)
        try:
            code = child.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            code = "hangs"
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        told.seek(0)
        text = told.read().decode(errors="replace")
    return Result(code, results(text), text)


def results(text):
    """Names and outcomes, without numbers and addresses: TAP, or words in brackets."""
    lines = []
    for line in text.splitlines():
        found = re.match(r"#? *(ok|not ok) \d+ (.*)", line)
        if found:
            lines.append(f"{found[1]} {re.sub(r'0x[0-9a-f]+|[0-9]+', 'N', found[2])}")
        elif re.search(r"\[(OK|PASS|FAIL|SKIP)\]|\b(PASS|FAIL|SKIP)(ED)?\b", line):
            lines.append(re.sub(r"0x[0-9a-f]+|[0-9.]+", "N", line.strip()))
    return lines


def differences(without, with_it):
    """Lines of results that only one of the two has."""
    first, second = (collections.Counter(result.lines) for result in (without, with_it))
    lines = [f"without: {line}" for line in (first - second).elements()]
    return lines + [f"under run: {line}" for line in (second - first).elements()]


def tell(test, without, with_it):
    """Prints one line, and what differs; whether both are the same."""
    lines = differences(without, with_it)
    same = without.code == with_it.code and not lines
    word = "same" if same else f"differs ({KNOWN.get(test, 'no known reason')})"
    print(f"{test}: {without.code} and {with_it.code}, {len(without.lines)} results, {word}")
    for line in lines[:12]:
        print(f"    {line}")
    ends = [line for line in with_it.told.splitlines() if line.startswith("uzswap: ")]
    for line in ends if not same else ends[1:2]:
        print(f"    | {line}")
    sys.stdout.flush()
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", default=find_source(), help="a linux-source-*.tar.xz")
    parser.add_argument("--build", help="a folder to build in, which stays")
    parser.add_argument("--json", help="a file for all that the tests printed")
    parser.add_argument("names", nargs="*", help="the first words of tests")
    given = parser.parse_args()
    if given.source is None:
        print("skipped: no /usr/src/linux-source-*.tar.xz (install a linux-source package)")
        return 0
    if os.geteuid() != 0:
        print("skipped: some of the tests need root")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.build or temporary
        tests = build(given.source, folder)
        neighbour = os.path.join(temporary, "neighbour")
        subprocess.run(
            ["gcc", "-O2", "-o", neighbour, os.path.join(HERE, "neighbour.c")], check=True)
        return compare(given, tests, neighbour)


def compare(given, tests, neighbour):
    told, failed = {}, 0
    for test in TESTS:
        argv = test.split()
        argv[0] = os.path.join(tests, argv[0])
        if given.names and test.split()[0] not in given.names:
            continue
        if not shutil.which(argv[0]):
            print(f"{test}: not built")
            continue
        without = run(argv, tests)
        limit, beside = LARGER.get(test, SIZES)
        under = [UZSWAP, "run", "--limit", f"{limit}M", "--", neighbour, str(beside), *argv]
        with_it = run(under, tests)
        told[test] = {"without": without._asdict(), "under": with_it._asdict()}
        if not tell(test, without, with_it) and test not in KNOWN:
            failed += 1
    if given.json:
        with open(given.json, "w") as file:
            json.dump(told, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
