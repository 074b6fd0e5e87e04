#!/usr/bin/env python3
"""Plants one small fault after the other in a small crate of a part, and sees that a test fails.

    tests/mutants/quick.py [index] [zpool]     both parts; seconds each fault, after the first build

Prints a line for each. Exits with 1 if one survived, 2 if one cannot be planted or does not compile.
docs/experiments/2026-11-26-mutation.md says more.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

# Part, file, the text as it is (once in the file), the text with the fault, the test that sees it.
FAULTS = [
    ("index", "radix/lone.rs", "if self.distance(home, next) >= self.distance(gap, next)",
     "if self.distance(home, next) > self.distance(gap, next)", "--lib"),
    ("index", "radix/lone.rs", "if self.used >= slots / 4 * 3", "if self.used > slots / 4 * 3",
     "--lib"),
    ("index", "radix/leaf.rs", "(place as u16, Some(entry)); // < 512",
     "(0, Some(entry)); // < 512", "--lib"),
    ("index", "radix/leaf.rs", "larger => larger.smaller().capacity() / 3 * 2,", "_ => 0,", "--lib"),
    ("index", "radix/mod.rs", "self.lone.remove(number);\n        Ok(None)", "Ok(None)", "--lib"),
    ("index", "radix/hash.rs", "product as u64 ^ (product >> 64) as u64", "product as u64", "--lib"),
    ("index", "node_arena.rs", "self.truncate(self.used.div_ceil(CHUNK_NODES) + 1);", "", "--lib"),
    ("index", "xarray.rs", "self.levels -= 1;\n                    self.remove_node(old);",
     "self.remove_node(old);", "index_model"),
    ("zpool", "handle.rs", "handle.generation().wrapping_add(1)", "handle.generation()",
     "zpool_model"),
    ("zpool", "chunked.rs", "self.occupied &= !(1 << list);", "", "zpool_model"),
    ("zpool", "zbud.rs", "let end = if buddies.first == 0 { End::First } else { End::Last };",
     "let end = End::Last;", "zpool_model"),
    ("zpool", "zsmalloc/class.rs", "used * 100 / slots / 10 + 1", "used * 100 / slots / 10",
     "zsmalloc_classes"),
]


def tests(crate, target, test):
    chosen = ["--lib"] if test == "--lib" else ["--test", test]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "RUST_BACKTRACE": "0",
                   "CARGO_PROFILE_DEV_DEBUG": "0"}
    build = ["cargo", "test", "-q", *chosen]
    built = subprocess.run([*build, "--no-run"], cwd=crate, env=environment, capture_output=True)
    if built.returncode:
        return None, built.stderr.decode()
    try:
        run = subprocess.run(build, cwd=crate, env=environment, capture_output=True, timeout=300)
    except subprocess.TimeoutExpired:
        return False, "it does not end"
    failed = [line for line in run.stdout.decode().splitlines() if line.startswith("    ")]
    return run.returncode == 0, failed[-1].strip() if failed else "aborted"


def main():
    parts = sys.argv[1:] or ["index", "zpool"]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        crate, target = pathlib.Path(folder, "crate"), pathlib.Path(folder, "target")
        for part in parts:
            faults = [fault for fault in FAULTS if fault[0] == part]
            subprocess.run(["sh", HERE / "crate.sh", part, crate], check=True)
            for test in sorted({fault[4] for fault in faults}):
                passed, said = tests(crate, target, test)
                if not passed:
                    sys.exit(f"{part}, {test}: fails without a fault: {said}")
            for _, file, before, after, test in faults:
                path = crate / "src" / part / file
                text = path.read_text()
                if text.count(before) != 1:
                    print(f"{part}/{file}: not there once: {before}", file=sys.stderr)
                    sys.exit(2)
                path.write_text(text.replace(before, after))
                passed, said = tests(crate, target, test)
                path.write_text(text)
                if passed is None:
                    print(f"{part}/{file}: does not compile: {after}\n{said}", file=sys.stderr)
                    sys.exit(2)
                first = (after or f"without {before}").splitlines()[0]
                print(f"{part}/{file}: {first}: {'SURVIVED' if passed else said}", flush=True)
                survived += passed
    sys.exit(survived > 0)


if __name__ == "__main__":
    main()
