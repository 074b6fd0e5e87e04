#!/usr/bin/env python3
"""Whether studies agree: the same `uzswap compare --limit` several times.

For each combination, the script counts the studies that call its difference to the base real, by
sign. A study disagrees if it calls a difference real that most of the others call real with the
other sign.

    bench/run/repeats.py [--repeats N] [OPTIONS OF COMPARE...] -- COMMAND...
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
UZSWAP = os.environ.get("UZSWAP", os.path.join(HERE, "../../target/release/uzswap"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=10)
    if "--" not in sys.argv:
        parser.error("a command is needed after --")
    end = sys.argv.index("--")
    options, of_compare = parser.parse_known_args(sys.argv[1:end])
    arguments = of_compare + sys.argv[end:]
    signs = {}
    for turn in range(options.repeats):
        row = []
        for found in study(arguments)["combinations"]:
            real = found["differences"] and found["differences"]["real_s"]
            if not real:
                continue
            sign = 0 if real["low"] is None or real["low"] <= 0 <= real["high"] else 1 if real["mean"] > 0 else -1
            signs.setdefault((found["base"], found["label"]), []).append(sign)
            row.append(f"{found['label']} {real['mean']:+.3f} s{'' if sign else ' ~'}")
        print(f"{turn + 1:3}: {', '.join(row)}", flush=True)
    disagree = 0
    for (base, label), found in signs.items():
        slower, faster = found.count(1), found.count(-1)
        disagree += min(slower, faster)
        print(f"{label} against {base}: slower {slower}, faster {faster}, no difference {found.count(0)}")
    called = sum(sign != 0 for found in signs.values() for sign in found)
    print(f"{called - disagree} of {called} real differences have the sign that most have")


def study(arguments):
    with tempfile.NamedTemporaryFile() as report:
        command = [UZSWAP, "compare", f"--json={report.name}", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.load(report)


if __name__ == "__main__":
    main()
