#!/usr/bin/env python3
"""Tries every mutant of a package in one build: each function has all its mutants in it.

    tests/mutants/all.py build FOLDER [PACKAGE]  copies the workspace, plants the mutants, builds
    tests/mutants/all.py run FOLDER [PART...]    tries mutants in a random order, until all are done
    tests/mutants/all.py score FOLDER            the score of each part, with its 95 % interval
    tests/mutants/all.py left FOLDER [PART...]   the survivors
    tests/mutants/all.py again FOLDER [PART...]  tries caught mutants and their tests once more

Needs cargo-mutants, which names the mutants. docs/experiments/2026-11-26-mutation.md says more.
"""

import collections
import concurrent.futures
import dataclasses
import fnmatch
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Package:
    """The files of a package that are tried: globs below `src`."""
    name: str
    files: list
    # The parts of the score, each by a pattern of paths; without any, each file is one.
    parts: dict = dataclasses.field(default_factory=dict)
    optimisation: int = 3
    # For its tests, unless the caller sets these.
    environment: dict = dataclasses.field(default_factory=dict)

    @property
    def folder(self):
        return pathlib.Path("crates", self.name)

    def part(self, mutant):
        path = mutant["file"].removeprefix(f"{self.folder}/src/")
        found = (part for part, paths in self.parts.items() if fnmatch.fnmatch(path, paths))
        return next(found, path)

    def parts_of(self, mutants):
        return list(self.parts) or sorted({self.part(mutant) for mutant in mutants})


PACKAGES = {package.name: package for package in [
    Package("uzswap", ["**"], {"zpool": "zpool/*", "index": "index/*", "compressor": "compressor/*",
                              "zswap": "zswap/*", "the rest": "*"}),
    # The parts without a system call.
    Package("uzswap-pager", [
        "range_set.rs", "page_table.rs", "fork_group.rs", "token_bucket.rs", "account/*.rs",
        "policy/*.rs", "address_space/layout.rs", "address_space/resolve.rs",
        "address_space/resolve/orders.rs", "address_space/staging.rs",
        "address_space/move_batch.rs", "address_space/changes.rs", "address_space/copies.rs",
        "address_space/fault_history.rs", "address_space/fork_reports.rs",
        "address_space/refused.rs", "fork/pss_survey/*.rs", "reclaim/idle_rounds.rs",
        "reclaim/progress.rs", "store/slots.rs", "telemetry/counters.rs", "admission/lineage.rs",
        "monitor/unmanaged_schedule.rs",
    ], optimisation=1, environment={"UZSWAP_MODEL_HISTORIES": "100"}),
]}
# All threads of a test sleep for so long: it waits for ever.
HANG_SECONDS = 40
MEMORY_BYTES = 4 << 30
# The compiler takes minutes to optimise a function of more lines, with those of its mutants.
OPTIMISED_LINES = 200
# Exit code of a program with a failed test.
FAILED = 101
# Runs of a test without a mutant, to see that it does not fail by chance.
REPEATS = 3
JOBS = int(os.environ.get("UZSWAP_JOBS", "1"))
# A test that takes longer without a mutant is left out.
MEASURE_SECONDS = int(os.environ.get("UZSWAP_MEASURE_SECONDS", "60"))

# Chooses the mutant of this process, and notes which functions a test reaches.
SWITCH = """//! The mutant that this process runs, and which functions it reaches.
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

const UNKNOWN: u32 = u32::MAX;
const NOTES: u32 = u32::MAX - 1;
static ACTIVE: AtomicU32 = AtomicU32::new(UNKNOWN);
static SEEN: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];

/// The number of the mutant to run, in the function whose first mutant is this.
#[inline]
pub fn at(first: u32) -> u32 {
    let active = ACTIVE.load(Relaxed);
    if active >= NOTES { look(active, first) } else { active }
}

#[cold]
fn look(mut active: u32, first: u32) -> u32 {
    if active == UNKNOWN {
        active = match std::env::var("UZSWAP_MUTANT") {
            Ok(number) => number.parse().unwrap(),
            Err(_) if std::env::var_os("UZSWAP_REACHED").is_some() => NOTES,
            Err(_) => 0,
        };
        ACTIVE.store(active, Relaxed);
    }
    if active == NOTES {
        if !SEEN[first as usize].swap(true, Relaxed) {
            let path = std::env::var_os("UZSWAP_REACHED").unwrap();
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            file.unwrap().write_all(format!("{first}\\n").as_bytes()).unwrap();
        }
        return 0;
    }
    active
}
"""


def package_of(folder):
    return PACKAGES[(folder / "package").read_text()]


# Planting ---------------------------------------------------------------------------------------

def offset(lines, place):
    return lines[place["line"] - 1] + place["column"] - 1


def rustc_wrapper(folder):
    """A compiler that lets this workspace use an attribute that is not stable."""
    wrapper = folder / "rustc"
    wrapper.write_text('#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec "$@" --cap-lints=warn\n')
    wrapper.chmod(0o755)
    return str(wrapper)


def line_starts(text):
    starts = [0]
    for found in re.finditer("\n", text):
        starts.append(found.end())
    return starts


def body_start(text, start, end):
    """The place after the brace that opens a function's body."""
    depth, place = 0, start
    while place < end:
        rest = text[place:place + 2]
        if rest == "//":
            place = text.index("\n", place)
        elif rest == "#[":
            depth, place = depth + 1, place + 1
        elif text[place] in "([":
            depth += 1
        elif text[place] in ")]":
            depth -= 1
        elif text[place] == "{" and depth == 0:
            return place + 1
        elif text[place] == '"':
            place = text.index('"', place + 1)
        place += 1
    raise ValueError("no body")


def plant(text, mutants):
    """The text with all mutants of its functions, the lines of each, those that need a build."""
    starts = line_starts(text)
    functions = collections.defaultdict(list)
    alone = []
    for mutant in mutants:
        if mutant["function"] is None:
            alone.append(mutant["number"])
            continue
        span = mutant["function"]["span"]
        functions[offset(starts, span["start"]), offset(starts, span["end"])].append(mutant)
    pieces, done, lines, line = [], 0, [], 1

    def add(piece, number=None):
        nonlocal line
        pieces.append(piece)
        first, line = line, line + piece.count("\n")
        if number is not None:
            lines.append((first, line - piece.endswith("\n"), number))

    for (start, end), here in sorted(functions.items()):
        opened, closed = body_start(text, start, end), end - 1
        signature = text[start:opened]
        is_const = re.search(r"\bconst fn\b", signature)
        if start < done or is_const or re.search("-> impl (?!Iterator<)", signature):
            alone += [mutant["number"] for mutant in here]
            continue
        first = here[0]["number"]
        # The arms of a choice have one type.
        iterator = re.search(r"-> impl (Iterator<.*>)( \+ '\w+)? {$", signature, re.DOTALL)
        as_boxed = f") as Box<dyn {iterator[1]} + '_>" if iterator else ""
        boxed = "Box::new(" if iterator else ""
        add(text[done:start])
        if text.count("\n", start, end) * len(here) > OPTIMISED_LINES:
            add("#[optimize(none)]\n")
        add(text[start:opened])
        add(f"\nmatch crate::mutant::at({first}) {{\n")
        for mutant in here:
            number = mutant["number"]
            from_ = offset(starts, mutant["span"]["start"])
            to = offset(starts, mutant["span"]["end"])
            add(f"{number} => {{ {boxed}{{\n", number)
            body = f"{text[opened:from_]}{mutant['replacement']} {text[to:closed]}"
            add(f"{body}\n}}{as_boxed} }}\n", number)
        add(f"_ => {{ {boxed}{{", -first)
        add(f"{text[opened:closed]}}}{as_boxed} }}\n}}\n", -first)
        done = closed
    add(text[done:])
    return "".join(pieces), lines, alone


def plant_all(folder, mutants, dropped):
    by_file = collections.defaultdict(list)
    for mutant in mutants:
        if mutant["number"] not in dropped:
            by_file[mutant["file"]].append(mutant)
    alone, lines = [], {}
    for file in {mutant["file"] for mutant in mutants}:
        text = (folder / "origin" / file).read_text()
        planted, lines[file], not_here = plant(text, by_file[file])
        alone += not_here
        target = folder / "tree" / file
        if not target.exists() or target.read_text() != planted:
            target.write_text(planted)
    return lines, alone


def failures(folder, environment):
    """The exit code and the errors of a check: the file, the line and the text of each."""
    command = ["cargo", "check", "-p", package_of(folder).name, "--lib", "--all-features",
               "--message-format=json"]
    run = subprocess.run(command, cwd=folder / "tree", env=environment, capture_output=True)
    found = []
    for line in run.stdout.splitlines():
        message = json.loads(line).get("message")
        if not isinstance(message, dict) or message["level"] != "error":
            continue
        spans = [span for span in message["spans"] if span["is_primary"]] or message["spans"]
        for span in spans:
            found.append((span["file_name"], span["line_start"], message["message"]))
    return run.returncode, found, run.stderr.decode()


def build(folder, package):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package").write_text(package.name)
    environment = {**os.environ, "CARGO_TARGET_DIR": str(folder / "target"),
                   "RUSTC_WORKSPACE_WRAPPER": rustc_wrapper(folder)}
    for name in ["origin", "tree"]:
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
        for item in ["Cargo.toml", "Cargo.lock", "README.md", "crates", "docs", "tests", "bench"]:
            source = ROOT / item
            if source.is_dir():
                shutil.copytree(source, folder / name / item, symlinks=True)
            else:
                shutil.copy(source, folder / name / item)
    files = [f"--file={package.folder}/src/{file}" for file in package.files]
    listed = subprocess.run(["cargo", "mutants", "--list", "--json", "--package", package.name,
                             "--config", ROOT / "tests/mutants/mutants.toml", *files],
                            cwd=folder / "origin", check=True, capture_output=True).stdout
    mutants = json.loads(listed)
    for number, mutant in enumerate(mutants, 1):
        mutant["number"] = number
    (folder / "mutants.json").write_text(json.dumps(mutants))
    print(f"{len(mutants)} mutants", flush=True)
    tree = folder / "tree" / package.folder / "src"
    (tree / "mutant.rs").write_text(SWITCH.replace("COUNT", str(len(mutants) + 1)))
    text = (tree / "lib.rs").read_text()
    text = text.replace("#![warn", "#![feature(optimize_attribute)]\n#![warn", 1)
    text += "#[doc(hidden)]\n#[allow(missing_docs)]\npub mod mutant;\n"
    (tree / "lib.rs").write_text(text)
    manifest = folder / "tree" / "Cargo.toml"
    section = f"[profile.dev.package.{package.name}]\n"
    before, after = manifest.read_text().split(section)
    after = after.replace("opt-level = 3", f"opt-level = {package.optimisation}", 1)
    manifest.write_text(f"{before}{section}debug = false\n{after}")
    unviable, unplanted = set(), set()
    while True:
        lines, alone = plant_all(folder, mutants, unviable | unplanted)
        code, errors, said = failures(folder, environment)
        print(f"{len(errors)} errors, {len(unviable)} do not compile", flush=True)
        if code == 0:
            break
        before = len(unviable) + len(unplanted)
        for file, line, message in errors:
            for first, last, number in lines.get(file, []):
                if not first <= line <= last:
                    continue
                if number > 0:
                    unviable.add(number)
                else:
                    # The function as it is does not stand beside its mutants.
                    print(f"{file}:{line}: {message}", flush=True)
                    name = mutants[-number - 1]["function"]
                    unplanted |= {mutant["number"] for mutant in mutants if mutant["file"] == file
                                  and mutant["function"] == name}
        if len(unviable) + len(unplanted) == before:
            sys.exit(f"no mutant's error: {errors[:5]}\n{said[-3000:]}")
    notes = {"unviable": sorted(unviable - unplanted), "alone": sorted({*alone, *unplanted})}
    (folder / "notes.json").write_text(json.dumps(notes))
    command = ["cargo", "test", "-p", package.name, "--all-features", "--lib", "--tests",
               "--no-run", "--message-format=json"]
    built = subprocess.run(command, cwd=folder / "tree", env=environment, check=True,
                           stdout=subprocess.PIPE)
    programs = [json.loads(line) for line in built.stdout.splitlines()]
    programs = {program["target"]["name"]: program["executable"] for program in programs
                if program.get("executable") and program["profile"]["test"]}
    (folder / "programs.json").write_text(json.dumps(programs))
    print(f"{len(unviable)} do not compile, {len(notes['alone'])} need a build of their own")


# Running ----------------------------------------------------------------------------------------

def ticks(pid):
    """Processor time of a process, and whether all its threads sleep."""
    used, sleeps = 0, True
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        sleeps &= fields[0] == "S"
        used += int(fields[11]) + int(fields[12])
    return used, sleeps


def run_test(folder, program, test, extra, seconds):
    """A test in a process: passed, failed, crashed, slow, hangs or memory; its seconds, and the
    clock's. A failed assertion is `failed`; other ends of the process are `crashed`."""
    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        pathlib.Path("/proc/self/oom_score_adj").write_text("1000")

    package = package_of(folder)
    crate = folder / "tree" / package.folder
    environment = {**package.environment, **os.environ, "RUST_BACKTRACE": "0",
                   "CARGO_MANIFEST_DIR": str(crate), "TMPDIR": str(folder / "tmp"), **extra}
    command = [program, "--exact", test, "--test-threads=1"]
    child = subprocess.Popen(command, cwd=crate, env=environment, preexec_fn=limit,
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, process_group=0)
    still, last, verdict, began, pause = 0, None, None, time.monotonic(), 0.002
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(pause)
        pause = min(pause * 1.3, 0.2)
        if pause < 0.2:
            continue
        try:
            used, sleeps = ticks(child.pid)
            resident = int(pathlib.Path(f"/proc/{child.pid}/statm").read_text().split()[1]) * 4096
        except OSError:
            continue
        # Only this process's own time counts: one that was stopped has not waited.
        still = still + 1 if sleeps and used == last else 0
        last = used
        if resident > MEMORY_BYTES:
            verdict = "memory"
        elif still > HANG_SECONDS / 0.2:
            verdict = "hangs"
        if verdict:
            os.killpg(child.pid, signal.SIGKILL)
            _, status, usage = os.wait4(child.pid, 0)
            break
    child.returncode = 0
    try:
        os.killpg(child.pid, signal.SIGKILL)  # children of its own
    except OSError:
        pass
    if not verdict:
        ended = -os.waitstatus_to_exitcode(status)
        if ended in (signal.SIGXCPU, signal.SIGKILL):
            verdict = "slow"
        else:
            verdict = {0: "passed", -FAILED: "failed"}.get(ended, "crashed")
    return verdict, usage.ru_utime + usage.ru_stime, time.monotonic() - began


def measure(folder, programs):
    """Each test alone without a mutant: its seconds, and the functions that it reaches."""
    def one(name, test):
        reached = folder / "tmp" / f"reached-{name}-{test}"
        verdict, used, took = run_test(folder, programs[name], test,
                                       {"UZSWAP_REACHED": str(reached)}, MEASURE_SECONDS)
        text = reached.read_text() if reached.exists() else ""
        functions = sorted({int(line) for line in text.split()})
        print(f"{name} {test}: {verdict}, {used:.2f} s, {took:.2f} s by the clock, "
              f"{len(functions)} functions", flush=True)
        return verdict, {"program": name, "test": test, "seconds": used, "firsts": functions}

    tests = []
    for name, program in programs.items():
        known = folder / f"tests-{name}.json"
        if not known.exists():
            listed = subprocess.run([program, "--list", "--format=terse"], capture_output=True,
                                    text=True, cwd=folder / "tree").stdout
            names = re.findall(r"^(.*): test$", listed, re.M)
            with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
                measured = list(pool.map(lambda test: one(name, test), names))
            known.write_text(json.dumps([test for verdict, test in measured
                                         if verdict == "passed" and test["firsts"]]))
        tests += json.loads(known.read_text())
    return tests


def firsts(mutants, notes):
    """The first planted mutant of each one's function."""
    out, first_of = {}, {}
    left = {*notes["unviable"], *notes["alone"]}
    for mutant in mutants:
        if mutant["number"] not in left:
            key = mutant["file"], json.dumps(mutant["function"])
            out[mutant["number"]] = first_of.setdefault(key, mutant["number"])
    return out


def read(folder, name):
    return json.loads((folder / name).read_text())


def results(folder):
    path = folder / "results.jsonl"
    out = {}
    if path.exists():
        for line in path.read_text().splitlines():
            result = json.loads(line)
            out[result["number"]] = result
    return out


def in_order(mutants, package, chosen):
    """A random order, the same each time, that takes the parts in turn."""
    queues = {name: [mutant for mutant in mutants if package.part(mutant) == name]
              for name in chosen or package.parts_of(mutants)}
    for name, queue in queues.items():
        random.Random(name).shuffle(queue)
    while any(queues.values()):
        for queue in queues.values():
            if queue:
                yield queue.pop()


def try_mutant(folder, programs, mutant, tests, killers):
    """Tests that reach the function, those first that killed a neighbour, then by their seconds."""
    key = mutant["file"], json.dumps(mutant["function"])
    spent = 0
    order = sorted(tests, key=lambda test: (-killers[key][test["test"]] * (test["seconds"] < 20),
                                            test["seconds"]))
    for test in order:
        seconds = math.ceil(test["seconds"] * 5 + 3)
        verdict, used, _ = run_test(folder, programs[test["program"]], test["test"],
                                    {"UZSWAP_MUTANT": str(mutant["number"])}, seconds)
        spent += used
        if verdict != "passed":
            killers[key][test["test"]] += 1
            return {"verdict": verdict, "test": test["test"], "seconds": round(spent, 2)}
    return {"verdict": "survived" if tests else "unreached", "seconds": round(spent, 2)}


def run(folder, chosen):
    (folder / "tmp").mkdir(exist_ok=True)
    mutants, notes, programs = (read(folder, f"{name}.json")
                                for name in ["mutants", "notes", "programs"])
    tests = measure(folder, programs)
    # Long tests come last, for those that survive the short ones.
    longest = float(os.environ.get("UZSWAP_LONGEST", "1000"))
    first_of, done = firsts(mutants, notes), results(folder)
    killers = collections.defaultdict(collections.Counter)

    def one(mutant):
        number = mutant["number"]
        before = {"verdict": "unreached", "seconds": 0.0, "passed": [], **done.get(number, {})}
        if number not in first_of or before["verdict"] not in ("survived", "unreached"):
            return
        tests_left = [test for test in tests if first_of[number] in test["firsts"]
                      and test["seconds"] <= longest and test["test"] not in before["passed"]]
        if not tests_left and number in done:
            return
        result = try_mutant(folder, programs, mutant, tests_left, killers)
        if result["verdict"] == "unreached":
            result["verdict"] = before["verdict"]
        if result["verdict"] == "survived":
            result["passed"] = before["passed"] + [test["test"] for test in tests_left]
        result["seconds"] = round(result["seconds"] + before["seconds"], 2)
        result = {"number": number, **result, "name": mutant["name"]}
        with open(folder / "results.jsonl", "a") as file:
            file.write(json.dumps(result) + "\n")

    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(one, in_order(mutants, package_of(folder), chosen)))


def interval(killed, tried):
    """Wilson's 95 % interval."""
    z = 1.96
    if not tried:
        return 0.0, 1.0
    share = killed / tried
    middle = (share + z * z / 2 / tried) / (1 + z * z / tried)
    half = z / (1 + z * z / tried) * math.sqrt(share * (1 - share) / tried + z * z / 4 / tried ** 2)
    return middle - half, middle + half


def score(folder):
    mutants, notes, done = read(folder, "mutants.json"), read(folder, "notes.json"), results(folder)
    package = package_of(folder)
    by_part = {name: [mutant["number"] for mutant in mutants if package.part(mutant) == name]
               for name in package.parts_of(mutants)}
    for name, numbers in [*by_part.items(), ("all", [mutant["number"] for mutant in mutants])]:
        tried = [done[number] for number in numbers if number in done]
        killed = sum(result["verdict"] not in ("survived", "unreached") for result in tried)
        unreached = sum(result["verdict"] == "unreached" for result in tried)
        low, high = interval(killed, len(tried))
        counts = collections.Counter(result["verdict"] for result in tried)
        ways = ", ".join(f"{counts[way]} {way}" for way in
                         ["failed", "crashed", "slow", "hangs", "memory"] if counts[way])
        unviable = len(set(numbers) & set(notes["unviable"]))
        alone = len(set(numbers) & set(notes["alone"]))
        print(f"{name}: {len(numbers)} mutants, {unviable} do not compile, {alone} need a build; "
              f"{len(tried)} tried, {killed} killed ({ways}), {len(tried) - killed} survived "
              f"({unreached} unreached): {killed / max(len(tried), 1):.1%} [{low:.1%}, {high:.1%}]")


def again(folder, chosen):
    """Tries each caught mutant once more with the test that caught it, and those tests without a
    mutant: a test that fails by chance catches nothing."""
    mutants, programs = read(folder, "mutants.json"), read(folder, "programs.json")
    known = [test for name in programs for test in read(folder, f"tests-{name}.json")]
    known = {test["test"]: test for test in known}
    part = package_of(folder).part
    caught = [result for number, result in results(folder).items()
              if result["verdict"] not in ("survived", "unreached")
              and (not chosen or part(mutants[number - 1]) in chosen)]

    def verdict(test, extra):
        seconds = math.ceil(known[test]["seconds"] * 5 + 3)
        return run_test(folder, programs[known[test]["program"]], test, extra, seconds)[0]

    def with_mutant(result):
        found = verdict(result["test"], {"UZSWAP_MUTANT": str(result["number"])})
        if found != result["verdict"]:
            print(f"{result['number']} {result['verdict']}, then {found}: {result['name']}; "
                  f"{result['test']}", flush=True)
        return found

    def without(test):
        found = [verdict(test, {"UZSWAP_MUTANT": "0"}) for _ in range(REPEATS)]
        if set(found) != {"passed"}:
            print(f"{test} without a mutant: {found}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        counts = collections.Counter(pool.map(with_mutant, caught))
        tests = sorted({result["test"] for result in caught})
        list(pool.map(without, tests))
    print(f"{len(caught)} caught before; now {dict(counts)}; {len(tests)} tests, {REPEATS} times "
          "each without a mutant")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    command, folder, chosen = sys.argv[1], pathlib.Path(sys.argv[2]).absolute(), sys.argv[3:]
    if command == "build":
        build(folder, PACKAGES[chosen[0] if chosen else "uzswap"])
    elif command == "run":
        run(folder, chosen)
    elif command == "again":
        again(folder, chosen)
    elif command == "score":
        score(folder)
    else:
        part = package_of(folder).part
        parts = {mutant["number"]: part(mutant) for mutant in read(folder, "mutants.json")}
        for number, result in sorted(results(folder).items()):
            is_left = result["verdict"] in ("survived", "unreached")
            if is_left and (not chosen or parts[number] in chosen):
                print(f"{number} {result['verdict']} {result['name']}")


if __name__ == "__main__":
    main()
